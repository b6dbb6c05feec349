"""`nmt reproduce` runs each stage once, skips finished stages and prints scores beside the expected ones."""

import contextlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from few_samples import few_samples
from small_run import make_run

from nmt_cli.commands import app
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.corpus.readers import read_lines
from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe import loading, schema
from nmt_cli.reporting.report import report
from nmt_cli.reproduction import held_out, reproduce, score_table, synthetic_gain
from nmt_cli.reproduction.held_out import translate_held_out
from nmt_cli.reproduction.score_table import show_scores
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.scoring.score import evaluate
from nmt_cli.storage import artefact
from nmt_cli.system.errors import MissingError, OutputError
from nmt_cli.training.metrics_log import read_records
from nmt_cli.training.run import read_run
from nmt_cli.translation.translator import Translator

Captured = pytest.CaptureFixture[str]


class Paths(NamedTuple):
    data: Path
    run: Path

    def reproduce(self, settings: schema.Recipe, *, dry_run: bool = False) -> int:
        options = PrepareOptions(workers=1, dry_run=dry_run)
        return reproduce.reproduce(settings, settings.corpus, self.data, self.run, options, evaluate)


@pytest.fixture(scope="module", autouse=True)
def few_samples_for_intervals() -> Iterator[None]:
    with few_samples():
        yield


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nmt_cli.training.estimate.MEASURED_SECONDS", 0.1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_recipe_file: Path) -> Paths:
    """The tiny recipe, reproduced once. Tests share it and must not change it."""
    directory = tmp_path_factory.mktemp("reproduced")
    paths = Paths(directory / "data" / "numbers", directory / "runs" / "tiny")
    assert paths.reproduce(loading.load(tiny_recipe_file)) == 0
    return paths


def test_a_dry_run_estimates_before_anything_is_prepared(
    tiny_recipe_file: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert Paths(tmp_path / "d", tmp_path / "r").reproduce(loading.load(tiny_recipe_file), dry_run=True) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert all(fact in output.err for fact in ("download", "disk", "8 x P100", "3.5 d", "training time"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("name", ["numbers", "hub:owner/numbers", "toy-en-de"])
def test_a_corpus_prepared_with_other_settings_is_refused(
    tiny_recipe_file: Path, numbers_corpus: Path, tmp_path: Path, name: str, dry_run: bool
) -> None:
    settings = loading.load(tiny_recipe_file, ["corpus.limit=499"])
    if name != "numbers":
        settings.corpus.name, settings.corpus.train_src, settings.corpus.train_tgt = name, [], []
    with pytest.raises(OutputError, match=r"was prepared from other inputs \((limit: None -> 499|name)"):
        Paths(numbers_corpus, tmp_path / "run").reproduce(settings, dry_run=dry_run)


def test_a_corpus_without_text_files_in_the_recipe_is_used_as_it_is(
    tiny_recipe_file: Path, numbers_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nmt_cli.training.estimate.roofline_rows", lambda *_: [])
    settings = loading.load(tiny_recipe_file, ["corpus.limit=499", "corpus.train_src=null", "corpus.train_tgt=null"])
    assert Paths(numbers_corpus, tmp_path / "run").reproduce(settings, dry_run=True) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_changes_no_artefact(finished: Paths, tiny_recipe_file: Path, capsys: Captured) -> None:
    corpus = open_corpus(finished.data, content=True)
    assert artefact.verify(finished.run / "model", "model")["steps"] == [10, 20, 30]
    for split in ("dev", "test"):
        assert len(read_lines(finished.run / f"{split}.hyp")) == len(corpus.lines(split)[0]) == 20
    watched = [*finished.data.iterdir(), *finished.run.glob("checkpoints/*"), *finished.run.glob("*.hyp")]
    before = [(path, path.stat().st_mtime_ns) for path in watched]
    capsys.readouterr()
    assert finished.reproduce(loading.load(tiny_recipe_file)) == 0
    output = capsys.readouterr()
    assert [(path, path.stat().st_mtime_ns) for path, _ in before] == before
    assert not re.search("4/5 translate|nmt: warning", output.err)  # the model's translations are reused
    score = corpus_bleu(read_lines(finished.run / "test.hyp"), corpus.lines("test")[1])[0]
    assert f"{score:.2f}" in output.err
    assert output.out == ""
    assert [r["step"] for r in read_records(finished.run / "metrics.jsonl") if "nll" in r] == [5, 10, 15, 20, 25, 30]


def test_expected_scores_are_shown_beside_obtained_ones(
    tiny_recipe_file: Path, finished: Paths, capsys: Captured
) -> None:
    """The recipe differs from the run's in its `expect` section only, so nothing is trained."""
    bleu = corpus_bleu(read_lines(finished.run / "test.hyp"), open_corpus(finished.data).lines("test")[1])[0]
    for least, warned in ((bleu, False), (math.nextafter(bleu, 100), True)):
        changes = (f"bleu=[{least!r},99]", "paper_dev_bleu=32.5", "dev_steps=[30]", "dev_perplexity=[123]")
        assert finished.reproduce(loading.load(tiny_recipe_file, [f"expect.{change}" for change in changes])) == 0
        said = capsys.readouterr().err
        assert re.search(r"dev perplexity after step 30 +123 +\d", said)
        assert re.search(r"dev paper-BLEU-quotes +32\.5 \(the paper\) +\d", said)
        assert re.search(rf"test BLEU +{least:g} to 99 +{bleu:.2f}", said)
        assert (f"is below the expected {least:g}. Find the cause with nmt doctor {finished.run}" in said) == warned


@pytest.mark.parametrize(("best", "row"), [("true", "100 +3 +2.00"), ("false", "200 +4 +9.00")])
def test_the_perplexity_belongs_to_the_selected_weights(tmp_path: Path, capsys: Captured, best: str, row: str) -> None:
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
    show_scores(files, {"test": files.corpus.lines("test")[1]}, evaluate)
    said = capsys.readouterr().err
    assert re.search(f"dev perplexity after step {row}\n", said)
    assert re.search(r"test paper-BLEU-quotes +27\.3 \(the paper\) +\d", said)
    (files.directory / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    page = report(files.directory, [files.directory], data=[files.corpus.directory]).read_text()
    selected = records[0 if best == "true" else 1]
    assert f"of the selected model, at step {selected['step']}: {selected['dev_perplexity']:.3f}." in page
    cells = re.findall(r"<td[^>]*>([\d.]+)</td>", page)
    assert (cells.count(f"{selected['dev_perplexity']:.3f}"), cells.count(f"{selected['dev_bleu']:.2f}")) == (2, 2)


def test_pronouns_of_generated_text_are_counted(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, given = read_run(*make_run(tmp_path)), list[Any]()
    sources, references = files.corpus.lines("test")
    corpus = replace(files.corpus, manifest={**files.corpus.manifest, "generated": True})
    monkeypatch.setattr(score_table, "pronoun_accuracy", lambda *lines: given.append(lines) or (3, 7))
    show_scores(replace(files, corpus=corpus), {"test": references[::-1]}, evaluate)
    assert given == [(sources, references[::-1], references)]
    said = capsys.readouterr().err
    assert re.search(r"correct pronouns \(pairs of nouns unseen in training\) +3 of 7", said)
    assert "(generated text, not comparable with other corpora)" in said


def test_without_a_test_set_a_message_tells_how_to_name_one(
    tiny_recipe_file: Path, tmp_path: Path, capsys: Captured
) -> None:
    changes = ["corpus.test_src=null", "corpus.test_tgt=null", "training.steps=10", "averaging.last=1"]
    assert Paths(tmp_path / "data", tmp_path / "run").reproduce(loading.load(tiny_recipe_file, changes)) == 0
    said = capsys.readouterr().err
    assert "no test set to score. Set corpus.test_src and corpus.test_tgt, or corpus.hold_out" in said
    assert "is the mean of 1 checkpoint (step 10)\n" in said
    assert "test BLEU" not in said
    assert not (tmp_path / "run" / "test.hyp").exists()


def test_more_training_or_other_search_settings_renew_the_translations(
    finished: Paths, tiny_recipe_file: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(finished.data, tmp_path / "run")
    warning = "averaging.last is 2, but the run has only 1 checkpoint to average"
    runs, used = [(10, 50, 2), (20, 50, 2), (20, 1, 2), (20, 1, 0), (20, 1, 2)], list[dict[str, str]]()
    monkeypatch.setattr(held_out, "Translator", lambda *a, **k: used.append(k) or Translator(*a, **k))
    for i, (steps, extra_length, times) in enumerate(runs):
        if i == 4:
            (paths.run / "dev.hyp").unlink()
        changes = [f"training.steps={steps}", f"decoding.extra_length={extra_length}", "averaging.last=2"]
        assert paths.reproduce(loading.load(tiny_recipe_file, changes)) == 0
        said = capsys.readouterr().err
        assert said.count("4/5 translate") == times
        assert (warning in said) == (steps == 10)
        assert artefact.verify(paths.run / "model", "model")["steps"] == [*range(10, steps + 1, 10)][-2:]
    assert used == [{"precision": "fp32"}] * 4  # the precision of training
    assert (paths.run / "test.hyp").stat().st_size < (finished.run / "test.hyp").stat().st_size


def test_the_command_writes_the_report_at_the_end(finished: Paths, tiny_recipe_file: Path, capsys: Captured) -> None:
    page = finished.run / "report.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "reproduce", lambda *_: 143)
        assert app.reproduce(tiny_recipe_file, data=finished.data, run=finished.run) == 143
    assert not page.exists()
    assert app.reproduce(tiny_recipe_file, data=finished.data, run=finished.run, workers=1) == 0
    assert f"report: {page}" in capsys.readouterr().err
    assert page.stat().st_size > 1000


@pytest.mark.parametrize(
    ("rank", "dry_run", "prepared", "has_text", "code", "steps", "expected"),
    [
        ("0", False, False, True, 0, [10], "prepare train average translate score"),
        (
            "0",
            False,
            True,
            True,
            0,
            [10],
            "prepare train average translate score",
        ),  # `prepare` compares the existing corpus with the settings
        ("0", False, True, False, 0, [10], "train average translate score"),
        ("0", False, False, False, 0, [10], "prepare train average translate score"),  # `prepare` reports missing text
        ("0", False, True, True, 0, [], "prepare train translate score"),  # max_hours 0 leaves the initial model
        ("0", False, True, True, 143, [10], "prepare train"),
        ("1", False, True, True, 0, [10], "train"),
        ("1", False, True, True, 143, [10], "train"),
        ("1", False, False, True, 0, [10], "wait wait train"),  # waits until the first process has prepared the corpus
        ("0", True, False, True, 0, [], "prepare-dry estimate"),
        ("0", True, True, True, 0, [], "prepare estimate"),
        ("1", True, False, True, 0, [], "estimate"),
    ],
)
def test_each_stage_runs_in_the_right_process_with_its_arguments(
    tiny_recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    rank: str, dry_run: bool, prepared: bool, has_text: bool, code: int, steps: list[int], expected: str,
) -> None:  # fmt: skip
    settings = loading.load(tiny_recipe_file)
    text = schema.Corpus(name="raw", train_src=["a"] if has_text else [], train_tgt=["b"])
    data, run = tmp_path / "data", tmp_path / "run"
    options, files = PrepareOptions(workers=3, dry_run=dry_run), object()
    done, corpus_exists = list[Any](), [prepared]

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
        corpus_exists[0] = True

    def sleep(seconds: float) -> None:
        done.append("wait")
        corpus_exists[0] = len(done) == 2

    monkeypatch.setattr(reproduce.time, "sleep", sleep)
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setattr(reproduce, "prepare", prepare)
    monkeypatch.setattr(reproduce.artefact, "present", lambda place: corpus_exists[0] and place == data)
    monkeypatch.setattr(
        reproduce.checkpoints, "steps_in", lambda place: steps if place == run else pytest.fail("where?")
    )
    monkeypatch.setattr(reproduce, "train", stage("train", settings, data, run, answer=code))
    monkeypatch.setattr(reproduce, "average", stage("average", run, None, None, data))
    monkeypatch.setattr(
        reproduce, "read_run", lambda *places: files if places == (run, data) else pytest.fail("where?")
    )
    monkeypatch.setattr(reproduce, "translate_held_out", stage("translate", files, run / "model", answer={"test": []}))
    monkeypatch.setattr(reproduce, "show_scores", stage("score", files, {"test": []}, evaluate))
    monkeypatch.setattr(reproduce, "dry_run", stage("estimate", settings, data, answer=0))
    assert reproduce.reproduce(settings, text, data, run, options, evaluate) == code
    assert done == expected.split()


@pytest.mark.parametrize(("precision", "used"), [("fp32", "fp32"), ("bf16", "auto"), ("auto", "auto")])
def test_translations_are_reused_only_when_complete(
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
            assert options == files.settings.decoding.model_dump(exclude={"target_prefix"})
            asked.append(len(sources))
            if len(asked) == 2:
                raise KeyboardInterrupt
            return [SimpleNamespace(text=f"{line}!") for line in sources]

    monkeypatch.setattr(held_out, "Translator", Fake)
    with pytest.raises(KeyboardInterrupt):
        translate_held_out(files, Path("model"))
    assert files.translations("test") is files.translations("dev") is None, "another model made test.hyp"
    found = translate_held_out(files, Path("model"))
    assert found == {split: [f"{line}!" for line in files.corpus.lines(split)[0]] for split in ("dev", "test")}
    assert {split: files.translations(split) for split in found} == found
    assert all(
        (files.directory / f"{split}.hyp").read_text() == "".join(f"{line}\n" for line in lines)
        for split, lines in found.items()
    )
    assert translate_held_out(files, Path("model")) == found
    assert asked == [3, 7, 3, 7]
    for lacking, text in (
        (replace(files, model=None), "has no model yet"),
        (replace(files, corpus=None), "the corpus of"),
    ):
        with pytest.raises(MissingError, match=text):
            translate_held_out(lacking, Path("model"))


@pytest.mark.parametrize(
    ("tgt", "published", "split", "metric"),
    [
        ("de", "paper_bleu", "test", "paper-bleu-quotes"),
        ("fr", "paper_bleu", "test", "paper-bleu"),
        ("labels", "paper_f1", "test", "paper-bleu"),  # and brackets, the metric of trees
        ("de", "paper_dev_bleu", "dev", "paper-bleu-quotes"),
    ],
)
def test_scores_are_shown_beside_published_ones_and_those_before_fine_tuning(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tgt: str, published: str, split: str, metric: str
) -> None:
    """The scores are made up: after fine-tuning, test is better, general is equal, and dev is worse."""
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

        pairs = [SimpleNamespace(pair="en-fr", scores=[one("ter")])] if options.split == "dev" else []
        return SimpleNamespace(scores=[one(name) for name in names], pairs=pairs, warnings=[f"a warning at {value:g}"])

    def translate(run: Any, place: Path) -> dict[str, list[str]]:
        assert (run.directory, run.model, place) == (files.directory / "start", {"its": "manifest"}, start)
        return {split: [str(figure)] * 7 for split, figure in before.items()}

    monkeypatch.setattr(score_table, "translate_held_out", translate)
    monkeypatch.setattr(score_table.artefact, "verify", lambda place, *_, **__: {"its": "manifest"})
    monkeypatch.setattr(score_table, "pronoun_accuracy", lambda *lines: (3, 7))
    show_scores(files, {split: [str(figure)] * 7 for split, figure in after.items()}, score)
    said = capsys.readouterr().err
    rows = [re.split(r"  +", line.strip()) for line in said.split("\n") if re.match(r"(dev|test|general) \(", line)]
    known = {("test", "bleu"): "10 to 20", (split, metric): "27.3 (the paper)", (split, "brackets"): "27.3 (the paper)"}
    expected = [(place, name, known.get((place, name), "")) for place in after for name in names]
    assert rows == [
        [f"{place} ({name})", *filter(None, [mark]), f"{before[place]}/{name}", f"{after[place]}/{name}"]
        for place, name, mark in expected
    ]
    assert re.search(r"dev en-fr \(ter\) +31\.0/ter +30\.0/ter\n", said)
    warned = [line.removeprefix("nmt: warning: ") for line in said.split("\n") if "nmt: warning" in line]
    assert [line.partition(": the model")[0] for line in warned] == [
        "dev (bleu) fell from 31.00 to 30.00",
        "a warning at 15",
    ]
    assert "(bleu): bleu of 15\n(paper-bleu): paper-bleu of 15\n" in said
    assert re.search(r"dev perplexity after step 200 +inf\n", said)
    assert said.count("  source      ") == 4  # every second of 7 lines
    assert "3 of 7" in said
    files.settings.corpus.src = "de"
    show_scores(files, {split: [str(figure)] * 7 for split, figure in after.items()}, score)
    assert "3 of 7" not in capsys.readouterr().err, "pronouns are counted only for English sources"


def test_each_set_is_compared_with_its_own_expectation(tmp_path: Path, capsys: Captured) -> None:
    """The expected BLEU applies to the test set. Without a test set, the signatures of dev are shown."""
    files = read_run(*make_run(tmp_path, "expect.bleu=[10,20]"))
    figures = {"dev": 5.0, "test": 10.0, "general": 3.0}

    def score(options: Any, lines: list[str]) -> Any:
        value = figures[options.split]
        how = {"signature": f"of {options.split}", "verbose": f"{value:g}", "shown": lambda: f"{value:g}"}
        scores = [SimpleNamespace(metric="bleu", name="(bleu)", score=value, **how)]
        return SimpleNamespace(scores=scores, pairs=[], warnings=[])

    lines = files.corpus.lines("test")[1]
    show_scores(files, dict.fromkeys(figures, lines), score)
    said = capsys.readouterr().err
    assert "warning" not in said
    assert re.search(r"test \(bleu\) +10 to 20 +10\n", said)
    assert re.search(r"dev \(bleu\) +5\n", said)
    assert "(bleu): of test 10\n" in said
    files.corpus.__dict__["lines"] = lambda split: ([], [])
    show_scores(files, dict.fromkeys(("dev", "general"), lines), score)
    assert "(bleu): of dev 5\n" in capsys.readouterr().err
    files.corpus.__dict__["lines"] = lambda split: (lines, lines)
    figures["test"] = 9.99
    show_scores(files, {"test": lines}, score)
    assert "test BLEU 9.99 is below the expected 10. Find the cause" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("side", "several", "names"),
    [
        ("src", False, ["teacher (scored with beam 4)", "with", "without"]),
        ("tgt", False, ["with", "without"]),  # its model translates in the other direction
        ("src", True, ["with", "without"]),  # its model may have other languages
    ],
)
def test_a_teacher_is_compared_only_in_its_own_direction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str, several: bool, names: list[str]
) -> None:
    files, tables, scores = (
        read_run(*make_run(tmp_path, "decoding.beam=4")),
        list[Any](),
        [SimpleNamespace(shown=str)] * 2,
    )
    files.settings.corpus.synthetic = [schema.Synthetic(side=side, model=str(files.directory))]
    files.corpus.__dict__["lines_by_pair"] = lambda split: {("en", "de"): [0]} if several else {}
    monkeypatch.setattr(synthetic_gain, "table", lambda *given: tables.append(given))
    monkeypatch.setattr(synthetic_gain, "translate_held_out", lambda *_: {"test": files.corpus.lines("test")[1]})
    monkeypatch.setattr(synthetic_gain, "measure_speed", lambda *_: (1.0, 2.0))
    synthetic_gain.compare_models(files, files, lambda *_: SimpleNamespace(scores=scores))
    assert [columns[1:] for _, columns, _ in tables] == [names]


def test_every_set_of_a_corpus_is_translated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("src", "tgt"):
        (tmp_path / name).write_text(f"general {name}\n")
    changes = [f"corpus.general_{name}={tmp_path / name}" for name in ("src", "tgt")]
    changes += [f"corpus.mix_{name}=[{tmp_path / name}]" for name in ("src", "tgt")]
    files, asked = read_run(*make_run(tmp_path / "run", "decoding.beam=3", *changes)), list[int]()

    class Upper(contextlib.nullcontext[Any]):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(self)

        def translate(self, sources: list[str], **_: Any) -> list[Any]:
            asked.append(len(sources))
            return [SimpleNamespace(text=line.upper()) for line in sources]

    monkeypatch.setattr(held_out, "Translator", Upper)
    found = translate_held_out(files, Path("model"))
    assert found == {
        name: [line.upper() for line in files.corpus.lines(name)[0]] for name in ("dev", "test", "general")
    }
    assert found["general"] == ["GENERAL SRC"]
    assert translate_held_out(files, Path("another")) == found
    assert asked == [3, 7, 1], "the translations are stored"
