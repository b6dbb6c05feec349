"""Who may import what. Reads the source with `ast`: nothing here runs the code it judges, but for `nmt --help`."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "nmt_cli"

# What every room may import, and the rooms: each with those it may import besides.
FOUNDATION: dict[str, set[str]] = {
    "errors": set(),
    "console": {"errors"},
    "recipe": {"errors", "console"},
    "artefact": {"errors"},
}
ROOMS: dict[str, set[str]] = {
    "corpus": set(),
    "transformer": set(),
    "translation": {"corpus", "transformer"},
    "scoring": {"corpus"},
    "training": {"corpus", "transformer", "translation", "scoring"},
    "reproduce": {"corpus", "translation", "scoring", "training"},
    "parsing": {"corpus", "scoring"},
    "interop": {"corpus", "transformer", "translation", "scoring", "training"},
    "reporting": {"corpus", "transformer", "translation", "scoring", "training"},
    "cli": {"corpus", "translation", "scoring", "training", "reproduce", "parsing", "interop", "reporting"},
    "__main__": {"cli"},
}
MOST_ARROWS = 45
# Anybody may ask for the version; and the package itself hands out Translator when it is first asked for.
PACKAGE_ITSELF, PUBLIC = "__init__", {"translation"}

# Who may import it, at any depth of indentation: a module, or a room with all its modules.
OWNERS = {
    "yaml": {"recipe"},
    "pydantic": {"recipe"},
    "rich": {"console", "reporting.attend"},
    "typer": {"cli"},
    "jinja2": {"reporting"},
    "sentencepiece": {"corpus.tokenizer", "interop"},
    "safetensors": {"transformer.weights"},
    "sacrebleu": {"scoring"},
    "regex": {"scoring.paper_bleu"},
    "accelerate": {"training.distributed"},
    "datasets": {"corpus.sources"},
    "huggingface_hub": {"corpus.sources"},
    "transformers": {"interop"},
    "ctranslate2": {"interop"},
    "numpy": {"corpus", "transformer", "translation", "scoring", "training", "interop", "reporting"},
    "torch": {"transformer", "translation", "training", "interop", "reporting"},
}
HEAVY = set(OWNERS) - {"yaml", "pydantic", "rich", "typer"}

FORBIDDEN_MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "tarfile"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
# The right end of a dotted call, such as torch.load or os.system.
FORBIDDEN_ATTRIBUTES = {
    *("torch.load", "torch.save", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "os.system", "os.popen"),
    *("tempfile.mktemp", "subprocess.getoutput", "subprocess.getstatusoutput"),
}
# splitlines ends a line at U+2028, U+0085 and more: sides of a corpus would no longer match. Bytes split on \n only.
FORBIDDEN_METHODS = {"extractall", "load_checkpoint_in_model", "load_state", "splitlines"}


class Import(NamedTuple):
    """`module` imports from `library`; ours: the module of this package, or ""."""

    module: str
    library: str
    ours: str


def room(module: str) -> str:
    return module.split(".")[0]


# Every module by its dotted name inside the package: "corpus.store"; a room's own file is "corpus".
FILES = {path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path for path in PACKAGE.rglob("*.py")}
FILES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}


def imports_of(name: str) -> Iterator[Import]:
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            targets = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} imports relatively; this test reads absolute imports"
            # `from nmt_cli import recipe` names a module, `from nmt_cli.errors import DataError` something in one.
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            targets = {i if i.removeprefix("nmt_cli.") in FILES else str(node.module) for i in inside}
        else:
            continue
        for target in targets:
            library, _, inner = target.partition(".")
            yield Import(name, library, (inner or "__init__") if library == "nmt_cli" else "")


IMPORTS = [item for name in FILES for item in imports_of(name)]


def test_rooms_import_what_the_tables_allow() -> None:
    allowed = FOUNDATION | {name: rooms | FOUNDATION.keys() for name, rooms in ROOMS.items()} | {PACKAGE_ITSELF: PUBLIC}
    assert {room(name) for name in FILES} == allowed.keys()
    ours = [i for i in IMPORTS if i.ours]
    assert len(ours) > 100
    assert not [i for i in ours if room(i.ours) not in allowed[room(i.module)] | {room(i.module), PACKAGE_ITSELF}]


def test_the_tables_are_small_and_run_downhill() -> None:
    table = FOUNDATION | ROOMS
    names = list(table)
    assert sum(map(len, table.values())) <= MOST_ARROWS
    for i, name in enumerate(names):
        assert table[name] <= set(names[:i]), f"{name} imports a room that stands above it"
    for extra in ("parsing", "interop", "reporting"):
        assert [name for name in names if extra in table[name]] == ["cli"]


def test_no_module_needs_itself() -> None:
    needs = {name: {i.ours for i in IMPORTS if i.module == name and i.ours in FILES} for name in FILES}
    del needs[PACKAGE_ITSELF]
    while free := [name for name, targets in needs.items() if not targets & needs.keys()]:
        for name in free:
            del needs[name]
    assert not needs, "these modules import each other in a circle"


def test_each_dependency_has_its_owner() -> None:
    assert set().union(*OWNERS.values()) <= FILES.keys()
    libraries = [i for i in IMPORTS if i.library not in sys.stdlib_module_names | {"nmt_cli"}]
    assert not [i for i in libraries if not {i.module, room(i.module)} & OWNERS.get(i.library, set())]


def test_help_loads_none_of_the_heavy_dependencies() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "nmt_cli", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "prepare" in done.stdout
    loaded = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.split("\n") if "|" in line}
    assert "nmt_cli" in loaded
    assert not loaded & (HEAVY | {"yaml", "pydantic"})


def violations(source: str) -> Iterator[str]:
    """Yield what a source file does that no file of this package may do."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (f"imports {a.name}" for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names} & FORBIDDEN_ATTRIBUTES
            names |= {str(node.module).split(".")[0]} & FORBIDDEN_MODULES
            yield from (f"imports {name}" for name in names)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in FORBIDDEN_CALLS | FORBIDDEN_ATTRIBUTES or name.split(".")[-1] in FORBIDDEN_METHODS:
                yield f"calls {name}"
            for keyword in node.keywords:
                dangerous = keyword.arg in ("shell", "trust_remote_code", "allow_pickle")
                if dangerous and ast.unparse(keyword.value) != "False":
                    yield f"passes {keyword.arg}={ast.unparse(keyword.value)}"


def test_no_file_runs_data_as_code() -> None:
    assert [(name, list(violations(path.read_text()))) for name, path in FILES.items()] == [(n, []) for n in FILES]
