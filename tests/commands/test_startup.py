"""Commands start fast: each imports only the packages it needs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from texts import ROOT
from tiny_model import make_model

from nmt_cli.engine import library
from nmt_cli.recipe import loading, schema
from nmt_cli.storage import artefact, stored
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.translation.backends import may_have_gpu

HEAVY = {"torch", "numpy", "datasets", "pandas", "pyarrow", "transformers", "accelerate", "safetensors", "sacrebleu"}


def loaded_by(*words: str, text: str = "") -> set[str]:
    """Return the top-level packages and modules that `nmt WORDS` imports."""
    command = [sys.executable, "-X", "importtime", "-m", "nmt_cli", *words]
    done = subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True, timeout=100, check=True)
    lines = [line for line in done.stderr.split("\n") if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip().split(".")[0] for line in lines}


@pytest.mark.parametrize("words", [["--version"], ["translate", "--help"]])
def test_version_and_help_load_nothing_heavy(words: list[str]) -> None:
    loaded = loaded_by(*words)
    assert "typer" in loaded
    assert not loaded & (HEAVY | {"rich", "pydantic", "yaml", "sentencepiece"})


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
    light, full = stored.load(model / "recipe.yaml"), loading.load_stored(model / "recipe.yaml")
    assert not isinstance(light, schema.Recipe), f"stored.SETTINGS is now {names_of_all_settings()!r}"
    assert plain(light) == full.model_dump()
    (tmp_path / "old.yaml").write_text(text.replace("  tied_output: true\n", ""))
    assert stored.load(tmp_path / "old.yaml") == full
    (tmp_path / "new.yaml").write_text(text.replace("  tied_output: true\n", "  tied_output: true\n  experts: 8\n"))
    (tmp_path / "torn.yaml").write_text(text + "[")
    for name, message in (("new", "unknown settings of the model: model.experts"), ("torn", "is not valid YAML")):
        with pytest.raises(DataError, match=message):
            stored.load(tmp_path / f"{name}.yaml")


def names_of_all_settings() -> str:
    return artefact.digest(stored._shape(schema.Recipe().model_dump()))


@pytest.mark.parametrize("name", stored.RANGES)
def test_ranges_are_those_of_the_recipe(name: str) -> None:
    """At each bound a value is taken, beyond it both refuse; words are those that the recipe knows."""
    section = schema.Recipe.model_fields[name].default
    defaults, kinds = section.model_dump(), type(section)
    words = {key: get_args(kinds.model_fields[key].annotation) for key in stored.WORDS if key in defaults}
    assert stored.RANGES[name].keys() == defaults.keys() - words.keys()
    assert words == {key: stored.WORDS[key] for key in words}
    assert stored._in_range(defaults, name)
    for key, (kind, low, high) in stored.RANGES[name].items():
        for bound in (low, high):
            assert stored._in_range({**defaults, key: kind(bound)}, name)
            assert kinds(**{key: kind(bound)})
        beyond = [low - 1, high + 1] if key != "source_vocabulary" else [low - 1]  # the recipe bounds it by no number
        for wrong in [*beyond, "many", [], float("nan")]:
            assert not stored._in_range({**defaults, key: wrong}, name)
            with pytest.raises(UsageError, match=f"{name}.{key} must be "):
                loading.from_plain({name: {key: wrong}}, "a test")
        assert stored._in_range({**defaults, key: None}, name) == (key in stored.MAY_BE_NULL)
    for key in words:
        assert not stored._in_range({**defaults, key: "another"}, name)


def test_settings_of_search_beyond_their_ranges_are_refused() -> None:
    defaults = vars(schema.Decoding())
    assert vars(stored.checked_decoding({**defaults, "beam": 7})) == {**defaults, "beam": 7}
    assert stored.checked_decoding({**defaults, "beam": "7"}).beam == 7
    for wrong in ({"beam": 0}, {"alpha": float("nan")}):
        with pytest.raises(UsageError, match="this translation: decoding"):
            stored.checked_decoding({**defaults, **wrong})


def test_a_recipe_whose_values_are_wrong_is_refused_as_recipe_py_refuses_it(model: Path, tmp_path: Path) -> None:
    text = (model / "recipe.yaml").read_text()
    for old, new in (
        ("d_ff: 32", "d_ff: 0"),
        ("max_tokens: 250", "max_tokens: few"),
        ("max_tokens: 250", "max_tokens: 0"),
        ("norm: post", "norm: none"),
    ):
        assert old in text
        (tmp_path / "recipe.yaml").write_text(text.replace(old, new))
        with pytest.raises(DataError, match=f"{old.split(':')[0]} must be "):
            stored.load(tmp_path / "recipe.yaml")


@pytest.mark.parametrize("text", ["a: [", "- a", "a: \x00", "", "{}"])
def test_yaml_that_is_no_recipe_is_an_error_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    for load in (stored.load, loading.load_stored):
        with pytest.raises(DataError, match=re.escape(str(tmp_path / "recipe.yaml"))):
            load(tmp_path / "recipe.yaml")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "a: ["])
def test_yaml_that_is_nested_too_deep_is_refused(tmp_path: Path, opening: str) -> None:
    (tmp_path / "recipe.yaml").write_text("name: " * (opening in "[{a: ") + opening * 30_000)
    with pytest.raises(DataError, match="is not valid YAML"):
        stored.load(tmp_path / "recipe.yaml")
