"""A recipe played from raw text to the score: every command once, nothing twice, and what the files say is true."""

import contextlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from small_run import make_run

from nmt_cli.commands import app as cli
from nmt_cli.commands import reproduce as module
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.corpus.readers import read_lines
from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe import loading, schema
from nmt_cli.reporting.report import report
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.scoring.score import evaluate
from nmt_cli.storage import artefact
from nmt_cli.system.errors import MissingError, OutputError
from nmt_cli.training import metrics
from nmt_cli.training.run import read_run
from nmt_cli.translation.translator import Translator

Captured = pytest.CaptureFixture[str]


class Place(NamedTuple):
    data: Path
    run: Path

    def play(self, settings: schema.Recipe, *, dry_run: bool = False) -> int:
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
    assert place.play(loading.load(tiny_recipe_file)) == 0
    return place


def test_a_dry_run_says_what_it_takes_before_anything_is_prepared(
    tiny_recipe_file: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert Place(tmp_path / "d", tmp_path / "r").play(loading.load(tiny_recipe_file), dry_run=True) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert all(fact in said.err for fact in ("download", "disk", "8 x P100", "3.5 d", "time to the end"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("name", ["numbers", "hub:owner/numbers", "toy-en-de"])
def test_a_corpus_prepared_with_other_settings_is_refused(
    tiny_recipe_file: Path, numbers_corpus: Path, tmp_path: Path, name: str, dry_run: bool
) -> None:
    settings = loading.load(tiny_recipe_file, ["corpus.limit=499"])
    if name != "numbers":
        settings.corpus.name, settings.corpus.train_src, settings.corpus.train_tgt = name, [], []
    with pytest.raises(OutputError, match=r"exists with other inputs \((limit: None -> 499|name)"):
        Place(numbers_corpus, tmp_path / "run").play(settings, dry_run=dry_run)


def test_a_corpus_of_a_name_alone_is_taken_as_it_is(
    tiny_recipe_file: Path, numbers_corpus: Path, tmp_path: Path
) -> None:
    settings = loading.load(tiny_recipe_file, ["corpus.limit=499", "corpus.train_src=null", "corpus.train_tgt=null"])
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
    assert played.play(loading.load(tiny_recipe_file)) == 0
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
        assert played.play(loading.load(tiny_recipe_file, [f"expect.{change}" for change in changes])) == 0
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
    assert f"the model was taken, at step {taken['step']}: {taken['dev_perplexity']:.3f}." in page
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
    assert Place(tmp_path / "data", tmp_path / "run").play(loading.load(tiny_recipe_file, changes)) == 0
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
        assert place.play(loading.load(tiny_recipe_file, changes)) == 0
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


@pytest.mark.parametrize(
    ("rank", "dry_run", "prepared", "has_text", "code", "steps", "expected"),
    [
        ("0", False, False, True, 0, [10], "prepare train average translate score"),
        ("0", False, True, True, 0, [10], "prepare train average translate score"),  # it compares what is there
        ("0", False, True, False, 0, [10], "train average translate score"),
        ("0", False, False, False, 0, [10], "prepare train average translate score"),  # it says what is missing
        ("0", False, True, True, 0, [], "prepare train translate score"),  # hours of 0: the model is the first one
        ("0", False, True, True, 143, [10], "prepare train"),
        ("1", False, True, True, 0, [10], "train"),
        ("1", False, True, True, 143, [10], "train"),
        ("1", False, False, True, 0, [10], "wait wait train"),  # until the first process has prepared it
        ("0", True, False, True, 0, [], "prepare-dry estimate"),
        ("0", True, True, True, 0, [], "prepare estimate"),
        ("1", True, False, True, 0, [], "estimate"),
    ],
)
def test_each_stage_gets_what_it_needs_and_runs_where_it_should(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    rank: str, dry_run: bool, prepared: bool, has_text: bool, code: int, steps: list[int], expected: str,
) -> None:  # fmt: skip
    settings = loading.load(tiny_recipe_file)
    text = schema.Corpus(name="raw", train_src=["a"] if has_text else [], train_tgt=["b"])
    data, run, options, files = (
        tmp_path / "data",
        tmp_path / "run",
        PrepareOptions(workers=3, dry_run=dry_run),
        object(),
    )
    done, there = list[Any](), [prepared]

    def stage(name: str, *arguments: Any, answer: Any = None) -> Any:
        def called(*given: Any) -> Any:
            assert given == arguments, name
            done.append(name)
            return answer

        return called

    def prepare(*given: Any) -> None:
        assert given[:2] == (text, data)
        assert replace(given[2], dry_run=dry_run) == options
        done.append("prepare-dry" if given[2].dry_run else "prepare")
        there[0] = True

    def sleep(seconds: float) -> None:
        done.append("wait")
        there[0] = len(done) == 2

    monkeypatch.setattr(module.time, "sleep", sleep)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(module, "prepare", prepare)
    monkeypatch.setattr(module.artefact, "present", lambda place: there[0] and place == data)
    monkeypatch.setattr(module.checkpoints, "steps_in", lambda place: steps if place == run else pytest.fail("where?"))
    monkeypatch.setattr(module, "train", stage("train", settings, data, run, answer=code))
    monkeypatch.setattr(module, "average", stage("average", run, None, None, data))
    monkeypatch.setattr(module, "read_run", lambda *places: files if places == (run, data) else pytest.fail("where?"))
    monkeypatch.setattr(module, "_translate", stage("translate", files, run / "model", answer={"test": []}))
    monkeypatch.setattr(module, "_score", stage("score", files, {"test": []}, evaluate))
    monkeypatch.setattr(module, "dry_run", stage("estimate", settings, data, answer=0))
    assert module.reproduce(settings, text, data, run, options, evaluate) == code
    assert done == expected.split()


@pytest.mark.parametrize(("precision", "used"), [("fp32", "fp32"), ("bf16", "auto"), ("auto", "auto")])
def test_translations_count_as_this_models_only_when_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, used: str
) -> None:
    files, asked = read_run(*make_run(tmp_path, f"training.precision={precision}")), list[Any]()
    (files.directory / "translations.json").write_text('{"made_by": "another model"}')

    class Fake(contextlib.nullcontext[Any]):
        def __init__(self, *given: Any, **how: Any) -> None:
            assert (given, how) == ((Path("model"),), {"precision": used})

        def __enter__(self) -> "Fake":
            return self

        def translate(self, sources: list[str], **options: Any) -> list[Any]:
            assert options == files.settings.decoding.model_dump()
            asked.append(len(sources))
            if len(asked) == 2:
                raise KeyboardInterrupt
            return [SimpleNamespace(text=f"{line}!") for line in sources]

    monkeypatch.setattr(module, "Translator", Fake)
    with pytest.raises(KeyboardInterrupt):
        module._translate(files, Path("model"))
    assert files.translations("test") is files.translations("dev") is None, "test.hyp is of another model"
    found = module._translate(files, Path("model"))
    assert found == {split: [f"{line}!" for line in files.corpus.lines(split)[0]] for split in ("dev", "test")}
    assert {split: files.translations(split) for split in found} == found
    assert all(
        (files.directory / f"{split}.hyp").read_text() == "".join(f"{line}\n" for line in lines)
        for split, lines in found.items()
    )
    assert module._translate(files, Path("model")) == found
    assert asked == [3, 7, 3, 7]
    for lacking in (replace(files, model=None), replace(files, corpus=None)):
        with pytest.raises(MissingError, match="has no model yet"):
            module._translate(lacking, Path("model"))


@pytest.mark.parametrize(
    ("tgt", "published", "split", "metric"),
    [
        ("de", "paper_bleu", "test", "paper-bleu-quotes"),
        ("fr", "paper_bleu", "test", "paper-bleu"),
        ("labels", "paper_f1", "test", "paper-bleu"),  # and brackets, which alone are counted of trees
        ("de", "paper_dev_bleu", "dev", "paper-bleu-quotes"),
    ],
)
def test_scores_are_shown_beside_what_was_published_and_what_the_start_gave(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tgt: str, published: str, split: str, metric: str
) -> None:
    """With figures made up: test and general text are better than before, or the same; dev is worse."""
    start = tmp_path / "start"
    files = read_run(*make_run(tmp_path, f"expect.{published}=27.3"))
    files.settings.training.init_from = str(start)
    assert files.corpus
    corpus = replace(files.corpus, manifest={**files.corpus.manifest, "tgt": tgt, "generated": True})
    records = [{**files.validations[-1], "dev_perplexity": None}]
    files = replace(files, corpus=corpus, validations=records)
    after = {"dev": 30.0, "test": 15.0, "general": 40.0}
    before = {"dev": 31.0, "test": 14.0, "general": 40.0}
    names = ("bleu", "paper-bleu", "paper-bleu-quotes", "brackets")

    def score(options: Any, lines: list[str]) -> Any:
        assert (options.corpus, options.metrics) == (corpus.directory, ("bleu", "chrf"))
        value = float(lines[0])

        def one(metric: str) -> Any:
            shown = f"{value:.1f}/{metric}"
            how = {"signature": f"{metric} of", "verbose": f"{value:g}"}
            return SimpleNamespace(metric=metric, name=f"({metric})", score=value, shown=lambda: shown, **how)

        return SimpleNamespace(scores=[one(name) for name in names], warnings=[f"a warning at {value:g}"])

    def translate(run: Any, place: Path) -> dict[str, list[str]]:
        assert (run.directory, run.model, place) == (files.directory / "start", {"its": "manifest"}, start)
        return {split: [str(figure)] * 7 for split, figure in before.items()}

    monkeypatch.setattr(module, "_translate", translate)
    monkeypatch.setattr(module.artefact, "verify", lambda place, *_, **__: {"its": "manifest"})
    monkeypatch.setattr(module, "pronoun_accuracy", lambda *lines: (3, 7))
    module._score(files, {split: [str(figure)] * 7 for split, figure in after.items()}, score)
    said = capsys.readouterr().err
    rows = [re.split(r"  +", line.strip()) for line in said.split("\n") if re.match(r"(dev|test|general) \(", line)]
    known = {("test", "bleu"): "10 to 20", (split, metric): "27.3 (the paper)", (split, "brackets"): "27.3 (the paper)"}
    expected = [(place, name, known.get((place, name), "")) for place in after for name in names]
    assert rows == [
        [f"{place} ({name})", *filter(None, [mark]), f"{before[place]}/{name}", f"{after[place]}/{name}"]
        for place, name, mark in expected
    ]
    warned = [line.removeprefix("nmt: warning: ") for line in said.split("\n") if "nmt: warning" in line]
    assert [line.partition(": here")[0] for line in warned] == [
        "dev (bleu) fell from 31.00 to 30.00",
        "a warning at 15",
    ]
    assert "(bleu): bleu of 15\n(paper-bleu): paper-bleu of 15\n" in said
    assert re.search(r"dev perplexity after step 200 +inf\n", said)
    assert said.count("  source      ") == 4  # of 7: every second one
    assert "3 of 7" in said
    files.settings.corpus.src = "de"
    module._score(files, {split: [str(figure)] * 7 for split, figure in after.items()}, score)
    assert "3 of 7" not in capsys.readouterr().err, "only the English side has those pronouns"
