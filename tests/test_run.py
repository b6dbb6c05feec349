"""A run opened for reading."""

import subprocess
import sys
from pathlib import Path

import pytest
from small_run import make_run

from nmt_cli import artefact
from nmt_cli.errors import DataError, MissingError
from nmt_cli.training.run import read_run, translations_id


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_run(tmp_path_factory.mktemp("small"))


def test_a_run_and_its_corpus_are_opened(small: tuple[Path, Path]) -> None:
    directory, data = small
    run = read_run(directory, data)
    assert run.corpus.directory == data
    assert [record["step"] for record in run.validations] == [100, 200]
    assert len(run.steps) == 20
    assert run.model["steps"] == [100, 200]


def test_translations_are_those_of_this_model_and_decoding(small: tuple[Path, Path]) -> None:
    directory, data = small
    run = read_run(directory, data)
    stamp = directory / "translations.json"
    stamp.unlink()
    assert run.translations("test") is None, "nothing says what made test.hyp"
    try:
        stamp.write_bytes(artefact.json_bytes({"made_by": translations_id(run.model, run.settings.decoding)}))
        assert len(run.translations("test") or []) == 7
        assert run.translations("dev") is None
        stamp.write_bytes(artefact.json_bytes({"made_by": "another model"}))
        assert run.translations("test") is None
    finally:
        stamp.unlink()


def test_another_corpus_is_refused_and_a_missing_one_warned_of(
    small: tuple[Path, Path], numbers_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory, _ = small
    with pytest.raises(DataError, match="another corpus"):
        read_run(directory, numbers_corpus)
    assert read_run(directory, numbers_corpus, any_corpus=True).corpus.directory == numbers_corpus
    assert read_run(directory).corpus is None
    assert "--data" in capsys.readouterr().err
    with pytest.raises(MissingError, match="nmt train"):
        read_run(tmp_path)


def test_a_hub_corpus_beside_the_runs_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, data = make_run(tmp_path)
    stored = directory / "recipe.yaml"
    stored.write_text(stored.read_text().replace("name: own", "name: hub:owner/name"))
    place = tmp_path / "hub" / "data" / "owner-name"
    place.parent.mkdir(parents=True)
    data.rename(place)
    runs = tmp_path / "hub" / "runs"
    (tmp_path / "runs").rename(runs)
    assert read_run(runs / "small").corpus.directory == place
    monkeypatch.chdir(tmp_path / "hub")
    assert read_run(Path("runs/small")).corpus.directory == Path("data/owner-name")


def test_reading_a_run_needs_no_torch() -> None:
    code = "import sys, nmt_cli.training.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
