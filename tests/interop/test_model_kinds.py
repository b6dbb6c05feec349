"""`nmt models` and `nmt serve` find models in directories and describe them without reading their weights."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny_model import make_model
from typer.testing import CliRunner

from nmt_cli.commands.app import app
from nmt_cli.corpus import tokenizer as spm
from nmt_cli.interop.model_kinds import find_models, list_models, named_and_found
from nmt_cli.recipe import schema
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.transformer.config import from_recipe
from nmt_cli.transformer.directory import WEIGHTS


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a model with unreadable weights, a multilingual model, a parser, a damaged model, and other things."""
    parent = tmp_path_factory.mktemp("models")
    make_model(parent / "a-run")
    shutil.copytree(parent / "a-run" / "model", parent / "b-model")
    (parent / "b-model" / WEIGHTS).write_bytes(b"")
    shutil.copytree(parent / "a-run" / "model", parent / "c-damaged")
    (parent / "c-damaged" / "model.json").write_text('{"format": 99}')
    lines = [f">>{code}<< der Hund geht und die Katze ist rot" for code in ("deu", "fra")] * 50
    shutil.copytree(parent / "a-run" / "model", parent / "d-several")
    (parent / "d-several" / "tokenizer.model").write_bytes(spm.train(lines, 320, tags=[">>deu<<", ">>fra<<"]))
    parser = shutil.copytree(parent / "a-run" / "model", parent / "e-parser")
    settings = json.loads((parser / "model.json").read_text())
    (parser / "model.json").write_text(json.dumps({**settings, "output": "trees"}))
    (parent / "f-empty").mkdir()
    (parent / "g.txt").write_text("x")
    shutil.copytree(parent / "a-run", parent / ".hidden")
    return parent


def test_models_are_described_without_their_weights(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = find_models(directory)
    assert [(each.path.name, [direction[:2] for direction in each.directions]) for each in found] == [
        ("a-run", [("en", "de")]),
        ("b-model", [("en", "de")]),
        ("d-several", [("en", "deu"), ("en", "fra")]),
    ]
    assert found[2].directions[1].prefix == ">>fra<< "
    assert found[0].open() == directory / "a-run" / "model"
    assert found[0].bytes == sum(file.stat().st_size for file in (directory / "a-run" / "model").iterdir())
    assert found[0].parameters > 5000
    [warning] = capsys.readouterr().err.strip().split("\n")
    assert warning.startswith(f"nmt: warning: {directory / 'c-damaged'} is skipped: ")
    assert "format '99', not 1" in warning


def test_a_tag_of_synthetic_text_is_no_language(tmp_path: Path) -> None:
    """Only back-translated lines of the training text begin with it, not lines to translate."""
    model = make_model(tmp_path)
    lines = ["der Hund geht und die Katze ist rot"] * 50
    (model / "tokenizer.model").write_bytes(spm.train(lines, 320, tags=[">>bt<<"]))
    recipe = schema.Recipe(corpus=schema.Corpus(synthetic=[schema.Synthetic(files=["x"], tag="bt")]))
    settings = json.loads((model / "model.json").read_text())
    (model / "model.json").write_text(json.dumps({**settings, "tags": from_recipe(recipe, 320).tags}))
    assert find_models(tmp_path)[0].directions == (("en", "de", ""),)


def test_named_models_are_told_apart_from_models_in_directories(directory: Path) -> None:
    named, found = named_and_found([directory / "a-run", directory, directory / "b-model", Path("nowhere")])
    assert named == (directory / "a-run" / "model", directory / "b-model", Path("nowhere"))
    assert [each.path.name for each in found] == ["a-run", "b-model", "d-several"]
    with pytest.raises(DataError, match="format '99'"):
        named_and_found([directory / "c-damaged"])
    assert named_and_found([directory / "f-empty"]) == ((directory / "f-empty",), ())


def test_nmt_models_lists_models(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(app, ["models", *words])

    lines = run(str(directory / "a-run"), str(directory)).stdout.split("\n")
    assert [line.split()[0] for line in lines if line] == ["en-de", "en-de", "en-de", "en-deu", "en-fra"]
    assert lines[0].endswith(f"MB  {directory / 'a-run'}")
    assert [each["pairs"] for each in json.loads(run(str(directory), "--json").stdout)][2] == [
        ["en", "deu"],
        ["en", "fra"],
    ]
    with pytest.raises(MissingError, match="no directory nowhere"):
        list_models([Path("nowhere")])
    with pytest.raises(MissingError, match="no model in "):
        list_models([directory / "f-empty"])
    monkeypatch.chdir(directory / "f-empty")
    assert isinstance(run().exception, MissingError)


def test_models_that_do_not_name_their_languages_are_skipped_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    magic = (1).to_bytes(8, "little")
    files = {"of-ctranslate2/model.bin": b"\6\0\0\0", "of-marian-1/model.bin": magic, "of-marian-2/small.bin": magic}
    for name, data in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(data)
    assert find_models(tmp_path) == []
    warnings = capsys.readouterr().err.strip().split("\n")
    assert [warning.partition(" is skipped: ")[0].rpartition("/")[2] for warning in warnings] == [
        "of-ctranslate2",
        "of-marian-1",
        "of-marian-2",
    ]
    assert all("nmt import --src CODE --tgt CODE" in warning for warning in warnings)
