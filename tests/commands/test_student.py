"""Recipes with synthetic text train two models, with and without it, and compare them in a table."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmt_cli.commands import teacher
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.corpus.readers import read_lines
from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe import loading, schema
from nmt_cli.reproduction import reproduce, synthetic_gain
from nmt_cli.scoring.metrics import corpus_bleu
from nmt_cli.scoring.score import evaluate
from nmt_cli.storage import artefact
from nmt_cli.training.run import translations_id
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.options import Sampling

ROWS = ("test BLEU", "test chrF", "megabytes, float32", "megabytes, 8 bits", "source words per second", "milliseconds")


pytestmark = pytest.mark.usefixtures("few_samples")


def reproduced(values: dict, tmp_path: Path, captured: pytest.CaptureFixture[str]) -> dict[str, list[float]]:
    """Reproduce a recipe, and return the rows of its last table."""
    settings = loading.from_plain(values, "test")
    data, run = tmp_path / "data" / "numbers", tmp_path / "runs" / "student"
    options = PrepareOptions(workers=1, translate=teacher.translate)
    assert reproduce.reproduce(settings, settings.corpus, data, run, options, evaluate) == 0
    table = captured.readouterr().err.partition("with and without synthetic text")[2]
    rows = {name: re.search(rf"^{name}[^\n]*?  +([\d., ±]+)$", table, re.MULTILINE) for name in ROWS}
    assert all(rows.values()), table
    assert ("teacher (scored with beam 1)" in table) == bool(values["training"]["teacher"])
    found = {name: row[1] for name, row in rows.items() if row}
    plain = {name: re.sub(r" ± \d+\.\d+", "", row).replace(",", "").split() for name, row in found.items()}
    assert all(found[name].count("±") == len(plain[name]) for name in ROWS[:2]), "scores have an interval"
    return {name: [float(figure) for figure in row] for name, row in plain.items()}


def test_a_student_is_compared_with_its_teacher_and_with_training_on_real_pairs(
    tiny_recipe,
    reference_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The teacher is scored with its own search settings and timed with those of the student."""
    speed, timed = synthetic_gain.measure_speed, list[Any]()

    def speeds(model: Path, lines: list[str], decoding: schema.Decoding) -> tuple[float, float]:
        assert min(speed(model, lines[:1], decoding)) > 0
        timed.append((model, lines, decoding))
        return 1000.0 + len(timed), 10.25 * len(timed)

    monkeypatch.setattr(synthetic_gain, "measure_speed", speeds)
    monkeypatch.setattr(synthetic_gain, "TIMED_LINES", 9)
    monkeypatch.setattr(synthetic_gain, "REPEATS", 1)
    small = ("model.encoder_layers=3", "model.decoder_layers=1", "training.steps=10", "decoding.beam=2")
    values = tiny_recipe(*small).model_dump()
    values["corpus"]["synthetic"] = [{"side": "src", "beam": 2}]
    values["training"]["teacher"] = str(reference_run)
    rows = reproduced(values, tmp_path, capsys)
    corpora = [open_corpus(tmp_path / "data" / name) for name in ("numbers", "numbers-without")]
    assert len(corpora[1].src) == 500
    assert len(corpora[0].src) > 500
    assert corpora[0].tokenizer_file.read_bytes() == corpora[1].tokenizer_file.read_bytes()
    models = [load_model(tmp_path / "runs" / name) for name in ("student", "student-without")]
    assert all(model.recipe.model.depths == (3, 1) for model in models)
    assert models[0].manifest["corpus"] != models[1].manifest["corpus"]
    references = corpora[0].lines("test")[1]
    places = [tmp_path / "runs" / name for name in ("student/teacher", "student", "student-without")]
    bleu = [corpus_bleu(read_lines(place / "test.hyp"), references)[0] for place in places]
    assert rows["test BLEU"] == pytest.approx(bleu, abs=0.006)
    sizes = [(place / "model" / "model.safetensors").stat().st_size for place in (reference_run, *places[1:])]
    assert rows["megabytes, float32"] == pytest.approx([size / 1e6 for size in sizes], abs=0.006)
    assert rows["megabytes, 8 bits"] == pytest.approx([size / 4e6 for size in sizes], abs=0.006)
    assert all(len(figures) == 3 and min(figures) >= 0 for figures in rows.values())
    assert (rows["source words per second"], rows["milliseconds"]) == ([1001, 1002, 1003], [10.2, 20.5, 30.8])
    models_timed = [reference_run / "model", *(place / "model" for place in places[1:])]
    sources = corpora[0].lines("test")[0]
    assert timed == [(model, sources[:9], tiny_recipe(*small).decoding) for model in models_timed]
    made_by = artefact.read_json(places[0] / "translations.json")["made_by"]
    manifest = artefact.read_json(reference_run / "model" / "manifest.json")
    assert made_by == translations_id(manifest, tiny_recipe().decoding)
    watched = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.hyp")}
    timed.clear()
    assert reproduced(values, tmp_path, capsys) == rows
    assert {path: path.stat().st_mtime_ns for path in watched} == watched, "nothing is done twice"


def test_speed_covers_all_words_and_single_lines(tiny_recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake clock: 0.1 s for each of the first 20 lines, 0.2 s for others, and 5 s more for a new list of lines."""
    clock, seen = [0.0], set[str]()

    class Slow(contextlib.nullcontext[Any]):
        def __enter__(self) -> "Slow":
            return self

        def translate(self, texts: list[str], **options: Any) -> Iterator[str]:
            assert options == decoding.model_dump(exclude={"target_prefix"})
            clock[0] += sum(0.1 if lines.index(text) < 20 else 0.2 for text in texts) + 5 * (str(texts) not in seen)
            seen.add(str(texts))
            yield from texts

    def opened(place: Path, **how: Any) -> Slow:
        assert (place, how) == (Path("model"), {"workers": 1}), "one core"
        return Slow()

    decoding = tiny_recipe().decoding
    monkeypatch.setattr(synthetic_gain, "Translator", opened)
    monkeypatch.setattr(synthetic_gain, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    lines = [f"line number {number}" for number in range(40)]
    assert synthetic_gain.measure_speed(Path("model"), lines, decoding) == pytest.approx((120 / 6, 100))


def test_a_recipe_with_synthetic_text_runs_again_without_it(
    tiny_recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so with one or several processes, but not in a dry run or after an interrupted first part."""
    values = tiny_recipe("expect.bleu=[1,2]", "expect.parameters=5").model_dump()
    values["corpus"] |= {"synthetic": [{"side": "src"}], "real_pairs": False}
    values["training"]["teacher"] = "t"
    settings, text = loading.from_plain(values, "test"), schema.Corpus(name="raw")
    data, run, calls = tmp_path / "data", tmp_path / "run", list[Any]()
    plain = reproduce.without_synthetic(settings, data)
    assert loading.differences(settings.model_dump(), plain.model_dump()) == [
        "name: tiny -> tiny-without",
        f"corpus.synthetic: {[each.model_dump() for each in settings.corpus.synthetic]} -> []",
        "corpus.real_pairs: False -> True",
        f"corpus.tokenizer.file: None -> {data / 'tokenizer.model'}",
        "training.teacher: t -> None",
        "expect.parameters: 5 -> None",
        "expect.bleu: [1.0, 2.0] -> []",
    ]
    codes = [0, 0]
    monkeypatch.setattr(reproduce, "run_stages", lambda *given: calls.append(given) or codes[len(calls) - 1])
    monkeypatch.setattr(reproduce, "read_run", lambda *places: places)
    monkeypatch.setattr(reproduce, "compare_models", lambda *given: calls.append(given))
    options = PrepareOptions(workers=1)
    first = (settings, text, data, run, options, evaluate)
    places = tmp_path / "data-without", tmp_path / "run-without"
    second = (plain, plain.corpus, *places, options, evaluate)
    compared = ((run, data), places[::-1], evaluate)
    for rank, ends, expected in (
        ("0", [0, 0], [first, second, compared]),
        ("1", [0, 0], [first, second]),
        ("0", [143, 0], [first]),
        ("0", [0, 143], [first, second]),
    ):
        monkeypatch.setenv("RANK", rank)
        calls.clear()
        codes[:] = ends
        assert reproduce.reproduce(*first) == max(ends)
        assert calls == expected
    calls.clear()
    codes[:] = [0]
    dry = (*first[:4], PrepareOptions(workers=1, dry_run=True), evaluate)
    assert reproduce.reproduce(*dry) == 0
    assert calls == [dry]
    calls.clear()
    plain.corpus.synthetic = []
    assert reproduce.reproduce(plain, *first[1:]) == 0
    assert len(calls) == 1


def test_there_is_no_comparison_without_a_test_set(
    tiny_recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_recipe("corpus.synthetic.model=m", "corpus.synthetic.side=tgt")
    corpus = SimpleNamespace(lines=lambda split: ([], []), lines_by_pair=lambda split: {})
    files: Any = SimpleNamespace(settings=settings, directory=tmp_path, corpus=corpus)
    monkeypatch.setattr(synthetic_gain, "translate_held_out", lambda *_: pytest.fail("it translates"))
    synthetic_gain.compare_models(files, files, evaluate)
    assert capsys.readouterr().err == "There is no test set, so the models are not compared\n"


def test_a_teacher_translates_with_its_beam_or_by_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[Any]()

    class Upper(contextlib.nullcontext[Any]):
        def __enter__(self) -> "Upper":
            return self

        def translate(self, lines: list[str], **options: Any) -> Iterator[Any]:
            calls.append(options)
            yield from (SimpleNamespace(text=line.upper()) for line in lines)

    monkeypatch.setattr("nmt_cli.translation.translator.Translator", lambda model: Upper())
    for sampling in (False, True):
        assert list(teacher.translate(Path("model"), ["a", "b"], 3, sampling)) == ["A", "B"]
    assert calls == [{"beam": 3, "sampling": None}, {"beam": 3, "sampling": Sampling()}]


def test_back_translation_is_compared_with_training_without_it(
    tiny_recipe,
    reference_run: Path,
    numbers_text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reverse model is not a teacher and has no column."""
    monkeypatch.setattr(synthetic_gain, "TIMED_LINES", 3)
    monkeypatch.setattr(synthetic_gain, "REPEATS", 1)
    values = tiny_recipe("training.steps=6", "corpus.limit=250").model_dump()
    values["corpus"] |= {"src": "de", "tgt": "en"}  # the available model translates the other way
    for split in ("train", "dev", "test"):
        src, tgt = f"{split}_src", f"{split}_tgt"
        values["corpus"] |= {src: values["corpus"][tgt], tgt: values["corpus"][src]}
    mono = [str(numbers_text / "train.en")]
    values["corpus"]["synthetic"] = [{"side": "tgt", "files": mono, "tag": "bt", "model": str(reference_run)}]
    rows = reproduced(values, tmp_path, capsys)
    assert all(len(figures) == 2 for figures in rows.values())
    assert artefact.present(tmp_path / "runs" / "student-without" / "model")
    corpora = [open_corpus(tmp_path / "data" / name) for name in ("numbers", "numbers-without")]
    assert len(corpora[1].src) == 250
    assert len(corpora[0].src) > 250
