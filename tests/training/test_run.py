"""A run opened for reading."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_run import make_run

from nmt_cli.corpus.readers import read_lines
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.training.run import read_run


def test_another_corpus_is_refused_and_a_missing_one_warned_of(
    numbers_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, data = make_run(tmp_path)
    with pytest.raises(DataError, match="another corpus"):
        read_run(directory, numbers_corpus)
    assert read_run(directory, numbers_corpus, any_corpus=True).corpus.directory == numbers_corpus
    (directory / "translations.json").unlink()
    assert read_run(directory, data).translations("test") is None, "nothing says what made test.hyp"
    data.rename(tmp_path / "elsewhere")
    assert read_run(directory).corpus is None
    assert "--data" in capsys.readouterr().err
    with pytest.raises(MissingError, match="nmt train"):
        read_run(tmp_path)


def test_which_validation_is_of_the_weights_and_which_translations_of_the_model(tmp_path: Path) -> None:
    directory, data = make_run(tmp_path)
    files = read_run(directory, data)
    losses = [None, 2.0, 1.0, 1.5]  # None: it was not finite
    files = replace(files, validations=[{"step": step, "dev_nll": loss} for step, loss in enumerate(losses)])
    none = replace(files, validations=[])
    for best, step in ((True, 2), (False, 3)):
        files.settings.averaging.best = best
        assert files.validation["step"] == step
        assert none.validation == {}
    assert [record["step"] for record in read_run(directory, data).steps] == [*range(10, 201, 10)]
    assert [record["step"] for record in read_run(directory, data).validations] == [100, 200]
    assert files.translations("test") == read_lines(directory / "test.hyp")
    assert files.translations("dev") is None
    assert replace(files, model=None).translations("test") is None
    another = {**files.model, "files": {"model.safetensors": {"sha256": "1" * 64}}}
    assert replace(files, model=another).translations("test") is None
    for name, value in (("beam", 2), ("alpha", 0.7), ("extra_length", 4), ("split", False)):
        changed = files.settings.decoding.model_copy(update={name: value})
        settings = files.settings.model_copy(update={"decoding": changed})
        assert replace(files, settings=settings).translations("test") is None, name
    (directory / "corpus.json").write_text("{}")
    with pytest.raises(DataError, match="another corpus"):
        read_run(directory, data)


def test_a_hub_corpus_beside_the_runs_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, data = make_run(tmp_path)
    stored = directory / "recipe.yaml"
    stored.write_text(stored.read_text().replace("name: own", "name: hub:owner/name"))
    moved = data.rename(tmp_path / "moved")
    data.mkdir()
    assert read_run(directory).corpus is None
    place = moved.rename(data / "owner-name")
    assert read_run(directory).corpus.directory == place
    monkeypatch.chdir(tmp_path)
    assert read_run(Path("runs/small")).corpus.directory == Path("data/owner-name")
    (tmp_path / "here" / "data").mkdir(parents=True)
    shutil.copytree(place, tmp_path / "here" / "data" / "owner-name")
    monkeypatch.chdir(tmp_path / "here")
    assert read_run(directory).corpus.directory == Path("data/owner-name"), "here comes before beside"
    (directory / "model" / "manifest.json").unlink()
    assert read_run(directory).model is None, "it is being written, or was left"
    monkeypatch.chdir(tmp_path / "runs")
    assert read_run(Path("small")).corpus.directory == place


def test_reading_a_run_needs_no_torch() -> None:
    code = "import sys, nmt_cli.training.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
