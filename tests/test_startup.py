"""Starting takes less than a translation: a command imports what it needs and no more."""

import subprocess
import sys
from pathlib import Path

import pytest
from texts import ROOT
from tiny_model import make_model

from nmt_cli import artefact, recipe, stored
from nmt_cli.engine import library
from nmt_cli.errors import DataError, UsageError
from nmt_cli.translation.backends import may_have_gpu

HEAVY = {"torch", "numpy", "datasets", "pandas", "pyarrow", "transformers", "accelerate", "safetensors", "sacrebleu"}


def loaded_by(*words: str, text: str = "") -> set[str]:
    """The packages and modules of the first level that `nmt WORDS` imports."""
    command = [sys.executable, "-X", "importtime", "-m", "nmt_cli", *words]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=100, check=True)
    lines = [line for line in done.stderr.split("\n") if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


def test_the_command_line_alone_draws_nothing_and_reads_no_recipe() -> None:
    loaded = loaded_by("--version")
    assert "typer" in loaded
    assert not loaded & (HEAVY | {"rich", "pydantic", "yaml", "sentencepiece"})


def test_the_help_of_translate_loads_nothing_heavy() -> None:
    loaded = loaded_by("translate", "--help")
    assert "rich" in loaded
    assert not loaded & (HEAVY | {"pydantic", "yaml", "sentencepiece"})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def test_a_translation_by_the_engine_loads_nothing_heavy(model: Path) -> None:
    if library.describe().startswith("none") or may_have_gpu():
        pytest.skip("torch translates here")
    loaded = loaded_by("translate", "--model", str(model), "--beam", "4", text="der Hund\n")
    assert "sentencepiece" in loaded
    assert not loaded & (HEAVY | {"rich", "pydantic"})


def plain(section: object) -> object:
    return {name: plain(value) for name, value in vars(section).items()} if hasattr(section, "__dict__") else section


def test_a_stored_recipe_is_read_as_recipe_py_reads_it(model: Path, tmp_path: Path) -> None:
    """One of the same settings without pydantic; one that lacks a setting, or has more, by recipe.py itself."""
    text = (model / "recipe.yaml").read_text()
    light, full = stored.load(model / "recipe.yaml"), recipe.load_stored(model / "recipe.yaml")
    assert not isinstance(light, recipe.Recipe), f"stored.SETTINGS is now {names_of_all_settings()!r}"
    assert plain(light) == full.model_dump()
    (tmp_path / "old.yaml").write_text(text.replace("  tied_output: true\n", ""))
    assert stored.load(tmp_path / "old.yaml") == full
    (tmp_path / "new.yaml").write_text(text.replace("  tied_output: true\n", "  tied_output: true\n  experts: 8\n"))
    (tmp_path / "torn.yaml").write_text(text + "[")
    for name, message in (("new", "unknown settings of the model: model.experts"), ("torn", "is not valid YAML")):
        with pytest.raises(DataError, match=message):
            stored.load(tmp_path / f"{name}.yaml")


def names_of_all_settings() -> str:
    return artefact.digest(stored._shape(recipe.Recipe().model_dump()))


def test_the_ranges_of_search_are_those_of_the_recipe() -> None:
    """At each bound a value is taken, beyond it recipe.py's error is raised; nothing but numbers in range is light."""
    defaults = vars(recipe.Decoding())
    assert stored.RANGES.keys() == defaults.keys()
    for name, (kind, low, high) in stored.RANGES.items():
        for bound, beyond in ((low, low - 1), (high, high + 1)):
            assert vars(stored.checked_decoding({**defaults, name: kind(bound)})) == {**defaults, name: bound}
            assert recipe.Decoding(**{**defaults, name: kind(bound)})
            if kind is not bool:
                with pytest.raises(UsageError, match=f"this translation: decoding.{name} must be "):
                    stored.checked_decoding({**defaults, name: beyond})
    assert stored.checked_decoding({**defaults, "beam": "7"}).beam == 7
    with pytest.raises(UsageError):
        stored.checked_decoding({**defaults, "alpha": float("nan")})
