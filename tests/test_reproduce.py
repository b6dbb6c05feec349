"""A recipe played from raw text to the score: every command once, nothing twice, and what the files say is true."""

import re
import shutil
from pathlib import Path

import pytest

from nmt_cli import artefact, cli, recipe
from nmt_cli.corpus.readers import read_lines
from nmt_cli.corpus.store import open_corpus
from nmt_cli.reproduce import ReproduceOptions, reproduce
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.training import metrics

Played = tuple[recipe.Recipe, ReproduceOptions]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, tiny_recipe_file: Path) -> Played:
    """A tiny recipe reproduced once."""
    directory = tmp_path_factory.mktemp("reproduced")
    settings = recipe.load(tiny_recipe_file)
    options = ReproduceOptions(directory / "data" / "numbers", directory / "runs" / "tiny", workers=1)
    assert reproduce(settings, options) == 0
    return settings, options


def test_a_dry_run_says_what_it_takes_before_anything_is_prepared(
    tiny_recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt_cli.training.estimate.MEASURED_SECONDS", 0.1)
    settings, options = recipe.load(tiny_recipe_file), ReproduceOptions(tmp_path / "d", tmp_path / "r", dry_run=True)
    assert reproduce(settings, options) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert all(fact in said.err for fact in ("download", "disk", "8 x P100", "3.5 d", "time to the end"))
    assert list(tmp_path.iterdir()) == []


def test_every_stage_leaves_its_artefact_and_again_nothing_is_done(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, options = played
    corpus = open_corpus(options.data, content=True)
    assert artefact.verify(options.run / "model", "model")["steps"] == [10, 20, 30]
    for split in ("dev", "test"):
        assert len(read_lines(options.run / f"{split}.hyp")) == len(corpus.lines(split)[0]) == 20
    watched = [*options.data.iterdir(), *options.run.glob("checkpoints/*"), *options.run.glob("*.hyp")]
    before = [(path, path.stat().st_mtime_ns) for path in watched]
    capsys.readouterr()
    assert reproduce(settings, options) == 0
    said = capsys.readouterr()
    assert [(path, path.stat().st_mtime_ns) for path, _ in before] == before
    assert "4/5 translate" not in said.err  # the translations of this very model are kept
    score = corpus_bleu(read_lines(options.run / "test.hyp"), corpus.lines("test")[1])[0]
    assert f"{score:.2f}" in said.err
    assert said.out == ""
    assert [r["step"] for r in metrics.read(options.run / "metrics.jsonl") if "nll" in r] == [5, 10, 15, 20, 25, 30]


def test_what_was_expected_stands_beside_what_came(
    tiny_recipe_file: Path, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what is expected differs from the run's recipe, so that nothing is trained."""
    changes = ("bleu=[98,100]", "paper_bleu=31.5", "paper_dev_bleu=32.5", "dev_steps=[30]", "dev_perplexity=[123]")
    settings = recipe.load(tiny_recipe_file, [f"expect.{change}" for change in changes])
    assert reproduce(settings, played[1]) == 0
    said = capsys.readouterr().err
    assert re.search(r"dev perplexity after step 30 +123 +\d", said)
    assert re.search(r"dev BLEU as in the paper.* 32\.5 \(the paper\) +\d", said)
    assert re.search(r"test BLEU as in the paper.* 31\.5 \(the paper\) +\d", said)
    assert re.search(r"test BLEU \(sacreBLEU\) +98 to 100 +\d", said)
    assert re.search(r"nmt: warning: test BLEU \S+ is less than 98", said)


def test_goes_on_where_something_is_missing(played: Played, tmp_path: Path) -> None:
    settings, options = played
    run = tmp_path / "run"
    shutil.copytree(options.run, run)
    before = (run / "test.hyp").read_bytes()
    (run / "test.hyp").unlink()
    shutil.rmtree(run / "model")
    shutil.rmtree(run / "checkpoints" / "step-0000030")
    assert reproduce(settings, ReproduceOptions(options.data, run, workers=1)) == 0
    assert (run / "test.hyp").read_bytes() == before  # trained, averaged and translated again, to the same bits


def test_the_command_writes_the_report_after_it(
    played: Played, tiny_recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, options = played
    page = options.run / "report.html"
    assert not page.exists()
    cli.reproduce(tiny_recipe_file, data=options.data, run=options.run, workers=1)
    assert f"report: {page}" in capsys.readouterr().err
    assert page.stat().st_size > 1000
