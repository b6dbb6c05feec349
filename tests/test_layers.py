"""Which module may import which. The tests read the source with `ast`, and run only `nmt --help`."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "nmt_cli"

# Every room (a folder of the package, or `__main__`), lowest first, with the rooms that it may import.
ROOMS: dict[str, set[str]] = {
    "system": set(),
    "recipe": {"system"},
    "storage": {"system", "recipe"},
    "corpus": {"system", "recipe", "storage"},
    "sharding": {"system", "recipe", "storage", "corpus"},
    "engine": {"system"},
    "transformer": {"system", "recipe", "storage", "corpus", "engine"},
    "translation": {"system", "recipe", "storage", "corpus", "sharding", "engine", "transformer"},
    "documents": {"system", "corpus", "translation"},
    "scoring": {"system", "storage", "corpus"},
    "training": {"system", "recipe", "storage", "corpus", "transformer", "translation", "scoring"},
    "parsing": {"system", "recipe", "storage", "corpus", "scoring"},
    "interop": {"system", "recipe", "storage", "corpus", "transformer", "translation", "scoring"},
    "reporting": {
        "system",
        "recipe",
        "storage",
        "corpus",
        "engine",
        "transformer",
        "translation",
        "scoring",
        "training",
    },
    "reproduction": {"system", "recipe", "storage", "corpus", "translation", "scoring", "training"},
    "serving": {"system", "corpus", "translation", "documents"},
    "commands": {
        *("system", "recipe", "storage", "corpus", "sharding", "translation", "documents", "scoring", "training"),
        *("parsing", "interop", "reporting", "reproduction", "serving"),
    },
    "__main__": {"commands", "system"},
}
# Any room may import the package itself for its version. The package imports Translator and Terms on their first use.
PACKAGE_ITSELF, PUBLIC = "__init__", {"corpus", "translation"}

NETWORK = {
    f"transformer.{name}"
    for name in [
        "attention",
        "attention_scores",
        "cache",
        "hardware",
        "model",
        "recurrence",
        "sentence_attention",
        "weights",
    ]
}
SEARCH_BY_TORCH = {f"translation.{name}" for name in ["candidates", "search", "torch_backend", "workers"]}
SEGMENTS, TRANSLATOR = "translation.segments", "translation.translator"
# For each library, the modules that may import it, even inside functions. A room stands for all its modules.
OWNERS = {
    "yaml": {"recipe.yaml_file", "documents.yaml_messages"},
    "pydantic": {"recipe"},
    "rich": {"system.console", "reporting.attend"},
    "typer": {"commands"},
    "jinja2": {"reporting"},
    "hatchling": {"engine.build"},
    "sentencepiece": {"corpus.tokenizer", "interop"},
    "safetensors": {"transformer.weights", "interop"},
    "sacrebleu": {"scoring"},
    "sacremoses": {"corpus.moses", "corpus.moses_bpe"},
    "regex": {"scoring.paper_bleu", "documents.kept"},
    "accelerate": {"training"},
    "fsspec": {"sharding.bucket"},
    "psutil": {"system.operating_system"},
    "datasets": {"corpus.hub"},
    "triton": {"transformer.sentence_attention"},
    "datatrove": {"translation.datatrove_step"},
    "pyarrow": {"corpus.hub", "corpus.opening", "corpus.bitext_tables"},
    "huggingface_hub": {"corpus.hub", "interop"},
    "markdown_it": {"documents"},
    "transformers": {"interop"},
    "ctranslate2": {"interop"},
    "starlette": {"serving"},
    "anyio": {"serving.work", "serving.on_demand"},
    "python_multipart": {"serving.fields"},
    "uvicorn": {"serving.connections", "serving.server"},
    "prometheus_client": {"serving.metrics"},
    "py3langid": {"serving.detect"},
    "pg8000": {"serving.postgres_connection"},
    "eldc": {"corpus.language_id"},
    # Translation by the engine needs NumPy only for sampling, and never torch. Imports under TYPE_CHECKING count, too.
    "numpy": {
        "corpus",
        "scoring",
        "training",
        "interop",
        "reporting",
        *NETWORK,
        "translation.search",
        SEGMENTS,
        "serving.detect",
        "sharding.units",
    },
    "torch": {"training", "interop", "reporting", *NETWORK, *SEARCH_BY_TORCH, TRANSLATOR},
}
HEAVY = set(OWNERS) - {"yaml", "pydantic", "rich", "markdown_it", "typer"}  # rich imports markdown_it

# Names that no file may import, call or pass: dotted names and keyword=value. `splitlines` also ends a line at U+2028,
# U+0085 and others, so the sides of a corpus would no longer match. Split bytes on \n instead.
FORBIDDEN = re.compile(
    r"(_?pickle|dill|cloudpickle|shelve|marshal|joblib|tarfile)\b.*|eval|exec|compile|__import__|torch\.(load|save)"
    r"|yaml\.(unsafe_|full_)?load|os\.(system|popen)|tempfile\.mktemp|subprocess\.get(status)?output"
    r"|.*\.(extractall|load_checkpoint_in_model|load_state|splitlines)|(shell|trust_remote_code|allow_pickle)=(?!False).*"
)


class Import(NamedTuple):
    """`module` imports from `library`; `ours` is the imported module of this package, or ""."""

    module: str
    library: str
    ours: str


def room(module: str) -> str:
    return module.split(".")[0]


# Every module by its dotted name inside the package: "corpus.store"; a room's own file is "corpus".
FILES = {path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path for path in PACKAGE.rglob("*.py")}
FILES = {name.removesuffix(".__init__"): path for name, path in FILES.items()}


def is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


@functools.cache
def parsed(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text())


def imports_in(name: str, tree: ast.AST) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} imports relatively; this test reads absolute imports"
            # `from nmt_cli import recipe` imports a module, `from nmt_cli.system.errors import DataError` a class.
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            targets = {i if i.removeprefix("nmt_cli.") in FILES else str(node.module) for i in inside}
        else:
            continue
        for target in targets:
            library, _, inner = target.partition(".")
            yield Import(name, library, (inner or "__init__") if library == "nmt_cli" else "")


@functools.cache
def imports() -> list[Import]:
    """Return all imports of the package. It is parsed only once a test needs them."""
    return [item for name in FILES for item in imports_in(name, parsed(name))]


def test_rooms_import_only_lower_rooms_that_the_table_names() -> None:
    assert {room(name) for name in FILES} == {*ROOMS, PACKAGE_ITSELF}
    for i, (name, lower) in enumerate(ROOMS.items()):
        assert lower <= {*[*ROOMS][:i]}, f"{name} may import only rooms above it in the table"
    ours = [i for i in imports() if i.ours]
    assert len(ours) > 100
    allowed = ROOMS | {PACKAGE_ITSELF: PUBLIC}
    assert not [i for i in ours if room(i.ours) not in allowed[room(i.module)] | {room(i.module), PACKAGE_ITSELF}]
    used = {(room(i.module), room(i.ours)) for i in ours}
    assert not [(name, other) for name, lower in ROOMS.items() for other in lower if (name, other) not in used]


def test_each_dependency_is_imported_only_by_its_owners() -> None:
    assert set().union(*OWNERS.values()) <= FILES.keys() | ROOMS.keys()
    libraries = [i for i in imports() if i.library not in sys.stdlib_module_names | {"nmt_cli"}]
    assert not [i for i in libraries if not {i.module, room(i.module)} & OWNERS.get(i.library, set())]


def test_modules_on_the_path_of_the_engine_import_no_torch() -> None:
    """This holds at the top of a file, where the engine would have to wait for torch. Functions may import it."""
    for name in {"engine.model", "translation.engine_backend", "transformer.directory", SEGMENTS, TRANSLATOR}:
        reached = [name]
        for module in reached:  # the loop extends the list
            top = ast.Module([node for node in parsed(module).body if is_import(node)], [])
            targets = {(i.library, i.ours) for i in imports_in(module, top)}
            assert not {library for library, _ in targets} & {"torch", "numpy", "safetensors"}, (name, module)
            reached += sorted({ours for _, ours in targets if ours in FILES} - {*reached})


def test_help_loads_none_of_the_heavy_dependencies() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "nmt_cli", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "prepare" in done.stdout
    loaded = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.split("\n") if "|" in line}
    assert "nmt_cli" in loaded
    assert not loaded & (HEAVY | {"yaml", "pydantic"})


def violations(tree: ast.AST) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call):
            keywords = [f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in node.keywords]
            names += [ast.unparse(node.func), *keywords]
    return [name for name in names if FORBIDDEN.fullmatch(name)]


def test_no_file_runs_data_as_code() -> None:
    unsafe = "import pickle\nfrom os import system\nx.splitlines()\neval('1')\nload(f, allow_pickle=True, shell=False)"
    assert sorted(violations(ast.parse(unsafe))) == ["allow_pickle=True", "eval", "os.system", "pickle", "x.splitlines"]
    assert {name: violations(parsed(name)) for name in FILES} == {name: [] for name in FILES}
