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

# From the bottom up. A module may import from its own room and from rooms further down.
ORDER = [
    ["__init__", "errors"],
    ["recipe", "console"],
    ["artefact"],
    ["corpus"],
    ["transformer"],
    ["translation"],
    ["scoring"],
    ["training"],
    ["interop", "reporting"],
    ["reproduce", "doctor"],
    ["cli"],
    ["__main__"],
]
# Rooms on one level see the rooms below but not each other, unless both names are listed here as (importer, imported).
NEIGHBOURS = {("recipe", "console"), ("errors", "__init__")}

# Who may import it, at any depth of indentation: a module, or a room with all its modules.
OWNERS = {
    "yaml": {"recipe"},
    "rich": {"console"},
    "sentencepiece": {"corpus.tokenizer"},
    "safetensors": {"transformer.weights", "interop"},
    "sacrebleu": {"scoring"},
    "accelerate": {"training.distributed"},
    "datasets": {"corpus.sources"},
    "huggingface_hub": {"corpus.sources"},
    "pyarrow": {"corpus.sources", "corpus.readers"},
    "typer": {"cli"},
    "regex": {"scoring.paper_bleu"},
    "matplotlib": {"reporting.attend"},
    "transformers": {"interop"},
    "ctranslate2": {"interop"},
    "numpy": {"corpus", "transformer", "translation", "scoring", "training", "interop", "reporting"},
    "torch": {"transformer", "translation", "training", "interop", "reporting"},
}
# Imported by every command before it has said no to a wrong option: not even inside a function.
LIGHT = ["__init__", "__main__", "cli", "errors", "recipe", "console", "artefact"]
HEAVY = {
    "torch",
    "numpy",
    "datasets",
    "accelerate",
    "sentencepiece",
    "sacrebleu",
    "safetensors",
    "pyarrow",
    "matplotlib",
}
HELP_IMPORTS_NONE_OF = {"torch", "numpy", "datasets", "accelerate", "sentencepiece", "sacrebleu", "yaml"}
THIRD_PARTY = {*OWNERS}

FORBIDDEN_MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "tarfile"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
# The right end of a dotted call, such as torch.load or os.system.
FORBIDDEN_ATTRIBUTES = {
    "torch.load",
    "torch.save",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "os.system",
    "os.popen",
    "tempfile.mktemp",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
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


def modules(package: Path = PACKAGE) -> dict[str, Path]:
    """Return every module by its dotted name inside the package ("corpus.store"; a room's own file is "corpus")."""
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        names[name] = path
    return names


def nodes(tree: ast.AST, top: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Yield every node and whether it runs when the module is imported."""
    for child in ast.iter_child_nodes(tree):
        yield child, top
        inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            inner = True
        yield from nodes(child, top and not inner)


def imports_of(name: str, path: Path, known: dict[str, Path]) -> list[Import]:
    found = []
    for node, top in nodes(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} imports relatively; this test reads absolute imports"
            base = node.module or ""
            # `from nmt_cli import recipe` names a module, `from nmt_cli.errors import DataError` something in one.
            targets = []
            for alias in node.names:
                inside = f"{base}.{alias.name}".removeprefix("nmt_cli.")
                targets.append(f"nmt_cli.{inside}" if base.startswith("nmt_cli") and inside in known else base)
        else:
            continue
        found += [Import(name, target, top, node.lineno) for target in dict.fromkeys(targets)]
    return found


KNOWN = modules()
IMPORTS = [found for name, path in KNOWN.items() for found in imports_of(name, path, KNOWN)]


def ours(found: Import) -> str | None:
    """Return the module of this package that is imported, or None."""
    if found.target == "nmt_cli":
        return "__init__"
    return found.target.removeprefix("nmt_cli.") if found.target.startswith("nmt_cli.") else None


def room(module: str) -> str:
    return module.split(".")[0]


def level(module: str) -> int:
    levels = [i for i, rooms in enumerate(ORDER) if room(module) in rooms]
    assert levels, f"{module} is in no room of ORDER"
    return levels[0]


def allowed(module: str, owners: set[str]) -> bool:
    return module in owners or room(module) in owners


def test_the_package_is_found_and_read() -> None:
    assert {"errors", "cli", "corpus.store", "training.train", "corpus"} <= KNOWN.keys()
    assert any(i.module == "training.batches" and i.target == "nmt_cli.transformer.model" and i.top for i in IMPORTS)
    assert any(i.module == "recipe" and i.target == "yaml" and not i.top for i in IMPORTS)


def test_every_room_has_its_level() -> None:
    assert {room(name) for name in KNOWN} <= {name for rooms in ORDER for name in rooms}


def test_imports_run_downhill_only() -> None:
    uphill = []
    for found in IMPORTS:
        target = ours(found)
        if target is None or room(target) == room(found.module):
            continue
        neighbours = (room(found.module), room(target)) in NEIGHBOURS
        if level(target) > level(found.module) or (level(target) == level(found.module) and not neighbours):
            uphill.append(str(found))
    assert not uphill


def test_no_module_needs_itself() -> None:
    needs: dict[str, set[str]] = {name: set() for name in KNOWN}
    for found in IMPORTS:
        target = ours(found)
        if target is not None and target in KNOWN:
            needs[found.module].add(target)
    while free := [name for name, targets in needs.items() if not targets & needs.keys()]:
        for name in free:
            del needs[name]
    assert not needs, "these modules import each other in a circle"


@pytest.mark.parametrize("dependency", OWNERS)
def test_each_heavy_dependency_has_its_owner(dependency: str) -> None:
    users = [found for found in IMPORTS if found.target.split(".")[0] == dependency]
    assert not [str(found) for found in users if not allowed(found.module, OWNERS[dependency])]


def test_owners_exist() -> None:
    for owners in OWNERS.values():
        assert owners <= KNOWN.keys()


def test_every_third_party_import_has_an_owner() -> None:
    known = sys.stdlib_module_names | THIRD_PARTY | {"nmt_cli"}
    assert not [str(found) for found in IMPORTS if found.target.split(".")[0] not in known]


@pytest.mark.parametrize("name", LIGHT)
def test_what_every_command_loads_imports_nothing_heavy_at_any_depth(name: str) -> None:
    mine = [found for found in IMPORTS if found.module == name]
    assert not [str(found) for found in mine if found.target.split(".")[0] in HEAVY]


def test_importing_a_light_module_reaches_no_heavy_one() -> None:
    reached, queue = set(), list(LIGHT)
    while queue:
        name = queue.pop()
        for found in IMPORTS:
            if found.module == name and found.top:
                assert found.target.split(".")[0] not in HEAVY | {"yaml", "rich"}, str(found)
                target = ours(found)
                if target in KNOWN and target not in reached:
                    reached.add(target)
                    queue.append(target)


def test_help_loads_none_of_the_heavy_dependencies() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "nmt_cli", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "prepare" in done.stdout
    loaded = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "nmt_cli" in loaded
    assert not loaded & HELP_IMPORTS_NONE_OF


# --- what may not be written at all ---------------------------------------------------------------------------------


def violations(source: str) -> list[str]:
    """Return what a source file does that no file of this package may do."""
    found = []
    for node, _ in nodes(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            found += [f"imports {name}" for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
            whole = [f"{names[0]}.{a.name}" for a in node.names] if isinstance(node, ast.ImportFrom) else []
            found += [f"imports {name}" for name in whole if name in FORBIDDEN_ATTRIBUTES]
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name.endswith(".splitlines") and name.split(".")[0].isupper():
            continue  # a constant of the file itself
        if name in FORBIDDEN_CALLS or name in FORBIDDEN_ATTRIBUTES or name.split(".")[-1] in FORBIDDEN_METHODS:
            found.append(f"calls {name}")
        for keyword in node.keywords:
            if keyword.arg in ("shell", "trust_remote_code", "allow_pickle") and ast.unparse(keyword.value) != "False":
                found.append(f"passes {keyword.arg}={ast.unparse(keyword.value)}")
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_no_file_runs_data_as_code(name: str) -> None:
    assert violations(KNOWN[name].read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import dill",
        "eval('1')",
        "exec(x)",
        "x = torch.load(p, weights_only=True)",
        "from torch import load",
        "yaml.load(x, Loader=yaml.SafeLoader)",
        "subprocess.run(c, shell=True)",
        "subprocess.run(c, shell=flag)",
        "archive.extractall(d)",
        "import tarfile",
        "os.system('ls')",
        "np.load(p, allow_pickle=True)",
        "load_dataset(n, trust_remote_code=True)",
        "text.splitlines()",
    ],
)
def test_the_gate_catches(source: str) -> None:
    assert violations(source)


def test_the_gate_lets_harmless_code_pass() -> None:
    assert (
        violations(
            "import re, json\nmodel.eval()\nre.compile('x')\nTABLE.splitlines()\nsubprocess.run([a])\nyaml.safe_load(x)"
        )
        == []
    )
