"""A recipe played from raw text to the score: every command once, nothing twice, and what the files say is true."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from small_run import make_run

from nmt_cli import artefact, cli, recipe
from nmt_cli import reproduce as module
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.corpus.readers import read_lines
from nmt_cli.corpus.store import open_corpus
from nmt_cli.errors import OutputError
from nmt_cli.reporting.report import report
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.scoring.score import evaluate
from nmt_cli.training import metrics
from nmt_cli.training.run import read_run
from nmt_cli.translation.translator import Translator

Captured = pytest.CaptureFixture[str]


class Place(NamedTuple):
    data: Path
    run: Path

    def play(self, settings: recipe.Recipe, *, dry_run: bool = False) -> int:
        options = PrepareOptions(workers=1, dry_run=dry_run)
        return module.reproduce(settings, settings.corpus, self.data, self.run, options, evaluate)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt_cli.training.estimate.MEASURED_SECONDS", 0.1)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, tiny_recipe_file: Path) -> Place:
    """The tiny recipe reproduced once. Do not change it: it is shared."""
    directory = tmp_path_factory.mktemp("reproduced")
    place = Place(directory / "data" / "numbers", directory / "runs" / "tiny")
    assert place.play(recipe.load(tiny_recipe_file)) == 0
    return place


def test_a_dry_run_says_what_it_takes_before_anything_is_prepared(
    tiny_recipe_file: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert Place(tmp_path / "d", tmp_path / "r").play(recipe.load(tiny_recipe_file), dry_run=True) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert all(fact in said.err for fact in ("download", "disk", "8 x P100", "3.5 d", "time to the end"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("name", ["numbers", "hub:owner/numbers", "toy-en-de"])
def test_a_corpus_prepared_with_other_settings_is_refused(
    tiny_recipe_file: Path, numbers_corpus: Path, tmp_path: Path, name: str, dry_run: bool
) -> None:
    settings = recipe.load(tiny_recipe_file, ["corpus.limit=499"])
    if name != "numbers":
        settings.corpus.name, settings.corpus.train_src, settings.corpus.train_tgt = name, [], []
    with pytest.raises(OutputError, match=r"exists with other inputs \((limit: None -> 499|name)"):
        Place(numbers_corpus, tmp_path / "run").play(settings, dry_run=dry_run)


def test_a_corpus_of_a_name_alone_is_taken_as_it_is(
    tiny_recipe_file: Path, numbers_corpus: Path, tmp_path: Path
) -> None:
    settings = recipe.load(tiny_recipe_file, ["corpus.limit=499", "corpus.train_src=null", "corpus.train_tgt=null"])
    assert Place(numbers_corpus, tmp_path / "run").play(settings, dry_run=True) == 0
    assert list(tmp_path.iterdir()) == []


def test_every_stage_leaves_its_artefact_and_again_nothing_is_done(
    played: Place, tiny_recipe_file: Path, capsys: Captured
) -> None:
    corpus = open_corpus(played.data, content=True)
    assert artefact.verify(played.run / "model", "model")["steps"] == [10, 20, 30]
    for split in ("dev", "test"):
        assert len(read_lines(played.run / f"{split}.hyp")) == len(corpus.lines(split)[0]) == 20
    watched = [*played.data.iterdir(), *played.run.glob("checkpoints/*"), *played.run.glob("*.hyp")]
    before = [(path, path.stat().st_mtime_ns) for path in watched]
    capsys.readouterr()
    assert played.play(recipe.load(tiny_recipe_file)) == 0
    said = capsys.readouterr()
    assert [(path, path.stat().st_mtime_ns) for path, _ in before] == before
    assert not re.search("4/5 translate|nmt: warning", said.err)  # the translations of this very model are kept
    score = corpus_bleu(read_lines(played.run / "test.hyp"), corpus.lines("test")[1])[0]
    assert f"{score:.2f}" in said.err
    assert said.out == ""
    assert [r["step"] for r in metrics.read(played.run / "metrics.jsonl") if "nll" in r] == [5, 10, 15, 20, 25, 30]


def test_what_was_expected_stands_beside_what_came(tiny_recipe_file: Path, played: Place, capsys: Captured) -> None:
    """Only what is expected differs from the run's recipe, so that nothing is trained."""
    bleu = corpus_bleu(read_lines(played.run / "test.hyp"), open_corpus(played.data).lines("test")[1])[0]
    for least, warned in ((bleu, False), (math.nextafter(bleu, 100), True)):
        changes = (f"bleu=[{least!r},99]", "paper_dev_bleu=32.5", "dev_steps=[30]", "dev_perplexity=[123]")
        assert played.play(recipe.load(tiny_recipe_file, [f"expect.{change}" for change in changes])) == 0
        said = capsys.readouterr().err
        assert re.search(r"dev perplexity after step 30 +123 +\d", said)
        assert re.search(r"dev paper-BLEU-quotes +32\.5 \(the paper\) +\d", said)
        assert re.search(rf"test BLEU +{bleu:g} to 99 +{bleu:.2f}", said)
        assert (f"the least expected. nmt doctor {played.run} says why" in said) == warned


@pytest.mark.parametrize(("best", "row"), [("true", "100 +3 +2.00"), ("false", "200 +4 +9.00")])
def test_the_perplexity_is_that_of_the_weights_that_were_taken(
    tmp_path: Path, capsys: Captured, best: str, row: str
) -> None:
    expect = [
        "expect.paper_bleu=27.3",
        "expect.dev_steps=[100,200]",
        "expect.dev_perplexity=[3,4]",
        f"averaging.best={best}",
    ]
    files = read_run(*make_run(tmp_path, *expect))
    records = [{**files.validations[-1], "step": step, "dev_nll": nll, "dev_perplexity": perplexity, "dev_bleu": bleu}
               for step, nll, perplexity, bleu in ((100, 0.7, 2.0, 34.56), (200, 2.2, 9.0, 23.45))]  # fmt: skip
    files = replace(files, validations=records)
    module._score(files, {"test": files.corpus.lines("test")[1]}, evaluate)
    said = capsys.readouterr().err
    assert re.search(f"dev perplexity after step {row}\n", said)
    assert re.search(r"test paper-BLEU-quotes +27\.3 \(the paper\) +\d", said)
    (files.directory / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    page = report(files.directory, [files.directory], data=[files.corpus.directory]).read_text()
    taken = records[0 if best == "true" else 1]
    assert f"<b>{taken['dev_perplexity']:.3f}</b><small>dev perplexity" in page
    cells = re.findall(r"<td[^>]*>([\d.]+)</td>", page)
    assert (cells.count(f"{taken['dev_perplexity']:.3f}"), cells.count(f"{taken['dev_bleu']:.2f}")) == (2, 2)


def test_pronouns_of_generated_text_are_counted_in_the_translations(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, given = read_run(*make_run(tmp_path)), list[Any]()
    sources, references = files.corpus.lines("test")
    corpus = replace(files.corpus, manifest={**files.corpus.manifest, "generated": True})
    monkeypatch.setattr(module, "pronoun_accuracy", lambda *lines: given.append(lines) or (3, 7))
    module._score(replace(files, corpus=corpus), {"test": references[::-1]}, evaluate)
    assert given == [(sources, references[::-1], references)]
    said = capsys.readouterr().err
    assert re.search("pronouns of antecedents never seen together +3 of 7", said)
    assert "(generated text: not comparable with anything)" in said


def test_without_a_test_set_it_says_how_to_have_a_test_score(
    tiny_recipe_file: Path, tmp_path: Path, capsys: Captured
) -> None:
    changes = ["corpus.test_src=null", "corpus.test_tgt=null", "training.steps=10", "averaging.last=1"]
    assert Place(tmp_path / "data", tmp_path / "run").play(recipe.load(tiny_recipe_file, changes)) == 0
    said = capsys.readouterr().err
    assert "no test score. Name one by corpus.test_src and test_tgt, or set corpus.hold_out" in said
    assert "is the mean of 1 checkpoint, of step 10\n" in said
    assert "test BLEU" not in said
    assert not (tmp_path / "run" / "test.hyp").exists()


def test_a_longer_run_and_another_search_make_translations_anew(
    played: Place, tiny_recipe_file: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, warning = (
        Place(played.data, tmp_path / "run"),
        "averaging.last is 2, but the run has only 1 checkpoint to average",
    )
    plays, used = [(10, 50, 2), (30, 50, 2), (30, 1, 2), (30, 1, 0), (30, 1, 2)], list[dict[str, str]]()
    monkeypatch.setattr(module, "Translator", lambda *a, **k: used.append(k) or Translator(*a, **k))
    for i, (steps, extra_length, times) in enumerate(plays):
        if i == 4:
            (place.run / "dev.hyp").unlink()
        changes = [f"training.steps={steps}", f"decoding.extra_length={extra_length}", "averaging.last=2"]
        assert place.play(recipe.load(tiny_recipe_file, changes)) == 0
        said = capsys.readouterr().err
        assert said.count("4/5 translate") == times
        assert (warning in said) == (steps == 10)
        assert artefact.verify(place.run / "model", "model")["steps"] == [*range(10, steps + 1, 10)][-2:]
    assert used == [{"precision": "fp32"}] * 4  # as it was trained
    assert (place.run / "test.hyp").stat().st_size < (played.run / "test.hyp").stat().st_size


def test_the_command_writes_the_report_after_it(played: Place, tiny_recipe_file: Path, capsys: Captured) -> None:
    page = played.run / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "reproduce", lambda *_: 143)
        assert cli.reproduce(tiny_recipe_file, data=played.data, run=played.run) == 143
    assert not page.exists()
    assert cli.reproduce(tiny_recipe_file, data=played.data, run=played.run, workers=1) == 0
    assert f"report: {page}" in capsys.readouterr().err
    assert page.stat().st_size > 1000
