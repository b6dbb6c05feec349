"""Who may import what. Reads the source with `ast`: nothing here runs the code it judges, but for `nmt --help`."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

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
    "rich": {"console"},
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
# Loaded before a command has said no to a wrong option: nothing heavy in them, not even inside a function.
LIGHT = ["__main__", "cli", "errors", "recipe", "console", "artefact"]
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


@dataclass(frozen=True)
class Import:
    """`module` imports `target`; top: as soon as it is imported itself."""

    module: str
    target: str
    top: bool
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"

    @property
    def library(self) -> str:
        return self.target.split(".")[0]

    @property
    def ours(self) -> str | None:
        """The module of this package that is imported, or None."""
        return (self.target.removeprefix("nmt_cli").lstrip(".") or "__init__") if self.library == "nmt_cli" else None


def room(module: str) -> str:
    return module.split(".")[0]


def nodes(tree: ast.AST, top: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every node and whether it runs when the module is imported."""
    for child in ast.iter_child_nodes(tree):
        yield child, top
        inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        inner |= isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
        yield from nodes(child, top and not inner)


def modules() -> dict[str, Path]:
    """Return every module by its dotted name inside the package ("corpus.store"; a room's own file is "corpus")."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return names


KNOWN = modules()


def imports_of(name: str) -> Iterator[Import]:
    for node, top in nodes(ast.parse(KNOWN[name].read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} imports relatively; this test reads absolute imports"
            base, targets = node.module or "", []
            # `from nmt_cli import recipe` names a module, `from nmt_cli.errors import DataError` something in one.
            for alias in node.names:
                inside = f"{base}.{alias.name}".removeprefix("nmt_cli.")
                targets.append(f"nmt_cli.{inside}" if base.startswith("nmt_cli") and inside in KNOWN else base)
        else:
            continue
        yield from (Import(name, target, top, node.lineno) for target in dict.fromkeys(targets))


IMPORTS = [item for name in KNOWN for item in imports_of(name)]


def test_the_package_is_found_and_read() -> None:
    assert {"errors", "cli", "corpus.store", "training.train", "corpus"} <= KNOWN.keys()
    assert any(i.module == "training.batches" and i.target == "nmt_cli.transformer.model" and i.top for i in IMPORTS)
    assert any(i.module == "scoring.score" and i.library == "sacrebleu" and not i.top for i in IMPORTS)


def test_rooms_import_what_the_tables_allow() -> None:
    allowed = FOUNDATION | {name: rooms | FOUNDATION.keys() for name, rooms in ROOMS.items()} | {PACKAGE_ITSELF: PUBLIC}
    assert {room(name) for name in KNOWN} == allowed.keys()
    between = [(i, room(i.module), room(i.ours)) for i in IMPORTS if i.ours]
    assert not [str(i) for i, a, b in between if b not in allowed[a] | {a, PACKAGE_ITSELF}]


def test_the_tables_are_small_and_run_downhill() -> None:
    table = FOUNDATION | ROOMS
    names = list(table)
    assert sum(map(len, table.values())) <= MOST_ARROWS
    for i, name in enumerate(names):
        assert table[name] <= set(names[:i]), f"{name} imports a room that stands above it"
    for extra in ("parsing", "interop", "reporting"):
        assert [name for name in names if extra in table[name]] == ["cli"]


def test_no_module_needs_itself() -> None:
    needs = {name: {i.ours for i in IMPORTS if i.module == name and i.ours in KNOWN} for name in KNOWN}
    del needs[PACKAGE_ITSELF]
    while free := [name for name, targets in needs.items() if not targets & needs.keys()]:
        for name in free:
            del needs[name]
    assert not needs, "these modules import each other in a circle"


def test_each_dependency_has_its_owner() -> None:
    for owners in OWNERS.values():
        assert owners <= KNOWN.keys()
    libraries = [i for i in IMPORTS if i.library not in sys.stdlib_module_names | {"nmt_cli"}]
    assert not [str(i) for i in libraries if not {i.module, room(i.module)} & OWNERS.get(i.library, set())]


def test_what_every_command_loads_imports_nothing_heavy() -> None:
    assert not [str(i) for i in IMPORTS if i.module in LIGHT and i.library in HEAVY]
    reached, queue = set(), ["__main__", "cli", "artefact"]
    while queue:
        name = queue.pop()
        for item in IMPORTS:
            if item.module == name and item.top:
                assert item.library not in HEAVY | {"yaml", "pydantic", "rich"}, str(item)
                if item.ours in KNOWN and item.ours not in reached:
                    reached.add(item.ours)
                    queue.append(item.ours)


def test_help_loads_none_of_the_heavy_dependencies() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "nmt_cli", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "prepare" in done.stdout
    loaded = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.split("\n") if "|" in line}
    assert "nmt_cli" in loaded
    assert not loaded & (HEAVY | {"yaml", "pydantic"})


# --- what may not be written at all ---------------------------------------------------------------------------------


def violations(source: str) -> Iterator[str]:
    """Yield what a source file does that no file of this package may do."""
    for node, _ in nodes(ast.parse(source)):
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


@pytest.mark.parametrize("name", KNOWN)
def test_no_file_runs_data_as_code(name: str) -> None:
    assert list(violations(KNOWN[name].read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        *("import pickle", "from pickle import loads", "def f():\n    import dill", "eval('1')", "exec(x)"),
        *("x = torch.load(p, weights_only=True)", "from torch import load", "yaml.load(x, Loader=yaml.SafeLoader)"),
        *("subprocess.run(c, shell=True)", "subprocess.run(c, shell=flag)", "archive.extractall(d)", "import tarfile"),
        *("os.system('ls')", "np.load(p, allow_pickle=True)", "load_dataset(n, trust_remote_code=True)"),
        "text.splitlines()",
    ],
)
def test_the_gate_catches(source: str) -> None:
    assert list(violations(source))


def test_the_gate_lets_harmless_code_pass() -> None:
    assert not list(
        violations("import re, json\nmodel.eval()\nre.compile('x')\nsubprocess.run([a])\nyaml.safe_load(x)")
    )
