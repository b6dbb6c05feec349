"""`nmt score` equals sacreBLEU in every printed digit, and refuses inputs whose score would mislead."""

import functools
import io
import json
import random
import socket
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy
import pyarrow.parquet
import pytest
from sacrebleu import sentence_bleu, sentence_chrf
from sacrebleu_command import sacrebleu
from texts import write

from nmt_cli import __version__
from nmt_cli.scoring import checks, languages, metrics, score, significance
from nmt_cli.scoring.score import ScoreOptions
from nmt_cli.scoring.score_report import InputText, NearDuplicates, Report, ScoredSegment, TermCounts
from nmt_cli.storage import artefact, manifests
from nmt_cli.system.errors import DataError, DownloadError, MissingError, OutputError, UsageError

# Words that are hard for tokenizers and line readers, among ordinary ones.
WORDS = "the cat, on «a» mat. Größe 3,5 it's (x-y) ... „gut“ &amp; !? 中文 U.S. $5 '' %".split()  # noqa: SIM905
WORDS += ["", "\u00a0", "a\u2028b", "c\u0085d", "e\rf", "\r", "g\x0bh", "\x1c"]


DATA = Path(__file__).parents[1] / "data" / "score"


def test_references_without_text_are_refused(tmp_path: Path) -> None:
    hypotheses, blank = write(tmp_path / "hyp", ["a", "b"]), write(tmp_path / "blank", ["", " "])
    for references in ((blank,), (hypotheses, blank)):
        with pytest.raises(DataError, match="blank has no text to compare with"):
            score.evaluate(ScoreOptions(hypotheses, references))


def test_lengths_of_chinese_are_counted_in_characters(tmp_path: Path) -> None:
    lines = write(tmp_path / "zh", ["猫在 这里。", "一只很大的黑猫在花园里睡觉。", "一二三四五六七八九十" * 6])
    report = score.evaluate(ScoreOptions(lines, (lines,), language="zh", metrics=("bleu",), details=True))
    rows = [(row["length"], row["unit"], row["segments"]) for row in report.lengths()]
    assert rows == [("1 to 10", "characters", 1), ("11 to 20", "characters", 1), ("over 50", "characters", 1)]
    assert "BLEU by characters in the reference" in report.text()


@pytest.mark.parametrize("language", ["germn", "", "d", "jp", "zh_", "de en", "\x00", "en-", "zh/CN"])
def test_an_invalid_language_code_is_refused(tmp_path: Path, language: str) -> None:
    """The tokenizer of another language would give a wrong score."""
    lines = write(tmp_path / "hyp", ["a"])
    with pytest.raises(UsageError, match="is not a language code"):
        score.evaluate(ScoreOptions(lines, (lines,), language=language))


@pytest.mark.parametrize("language", ["de", "DE", "zh-CN", "pt_BR", "zh-Hant-TW", "yue", "es-419"])
def test_language_codes_are_accepted(tmp_path: Path, language: str) -> None:
    lines = write(tmp_path / "hyp", ["a b c d e"])
    assert score.evaluate(ScoreOptions(lines, (lines,), language=language, metrics=("bleu",))).language == language


def test_scores_of_japanese_suggest_ja_mecab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    lines = write(tmp_path / "ja", ["猫がいる。", "犬もいる。"])
    options = ScoreOptions(lines, (lines,), language="ja", metrics=("bleu",))
    assert "--tokenize ja-mecab" in score.evaluate(options).scores[0].compare_with
    assert "mecab" not in score.evaluate(replace(options, language="zh")).scores[0].compare_with
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(UsageError, match=r'needs more packages: pip install "sacrebleu\[ja\]"'):
        score.evaluate(replace(options, tokenize="ja-mecab"))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Files with forty references, their sources, and the translations of a good and a bad system."""
    reference = [f"Das ist der kurze Satz Nummer {i}, und er endet hier." for i in range(40)]
    bad = ["", "This is sentence 1.", *(line[: 20 + i] for i, line in enumerate(reference[2:]))]
    return {
        "ref": write(tmp_path / "ref", reference),
        "src": write(tmp_path / "src", [f"This is sentence {i}." for i in range(40)]),
        "good": write(tmp_path / "good", [line.replace("kurze ", "") for line in reference]),
        "bad": write(tmp_path / "bad", bad),
    }


def evaluate(**changes: Any) -> Report:
    return score.evaluate(ScoreOptions(**{**changes, "references": tuple(changes.get("references", ()))}))


def test_random_files_equal_the_sacrebleu_command(tmp_path: Path) -> None:
    rng, names = random.Random(5), ("bleu", "chrf", "ter")
    lines = [rng.choices(WORDS, k=rng.choice((0, 1, 3, 8, 15))) for _ in range(100)]
    reference, systems = write(tmp_path / "ref", map(" ".join, lines)), []
    for i in range(10):
        spoilt = [" ".join(w if rng.random() > i / 10 else rng.choice(WORDS) for w in words) for words in lines]
        systems.append(write(tmp_path / f"hyp{i}", spoilt))
    for path, row in zip(systems, sacrebleu(reference, "-m", *names, "-w", 6, "-i", *systems), strict=True):
        ours = evaluate(hypothesis=path, references=[reference], metrics=names, intervals=False).scores
        assert {s.name: f"{s.score:.6f}" for s in ours} == {k: value for k, value in row.items() if k != "system"}


def test_options_and_significance_equal_the_sacrebleu_command(files: dict[str, Path]) -> None:
    good, bad, reference = (files[name] for name in ("good", "bad", "ref"))
    names, changed = ("bleu", "chrf", "ter"), ("-lc", "--chrf-lowercase", "--tokenize", "intl")
    theirs = sacrebleu(reference, good, "-i", bad, "-m", *names, "-w", 6, "--confidence", *changed)
    twice: dict[str, Any] = {"metrics": (*names, "bleu"), "references": [reference, good]}
    ours = evaluate(hypothesis=bad, lowercase=True, tokenize="intl", **twice).scores
    assert [(s.signature, round(s.score, 6)) for s in ours] == [(s["signature"], s["score"]) for s in theirs]
    rows = [(s["confidence_mean"], s["confidence_var"]) for s in theirs]  # theirs of chrF and TER are float32
    assert [(s.mean, s.ci) for s in ours] == [pytest.approx(row, abs=1e-5) for row in rows]
    plain = evaluate(hypothesis=bad, lowercase=True, tokenize="intl", intervals=False, **twice).scores
    assert [(s.score, s.mean, s.ci) for s in plain] == [(s.score, None, None) for s in ours]
    assert ours[0].signature == plain[0].signature.replace("|case", "|bs:1000|seed:12345|case")
    assert ours[0].verbose.translate({ord("="): " = ", ord(","): ""}) == theirs[0]["verbose_score"]
    only_bleu: dict[str, Any] = {"metrics": ("bleu",), "intervals": False, "references": [reference]}
    (compared,) = evaluate(hypothesis=bad, baseline=good, **only_bleu).comparisons
    for kind in ("bs", "ar"):
        rows = sacrebleu(reference, f"--paired-{kind}", "-f", "json", "-w", 4, "-i", good, bad)
        old, new = (row["BLEU"] for row in rows)
        row = {"baseline": old["score"], "score": new["score"], f"p_{kind}": new["p_value"]}
        if kind == "bs":
            row |= {"baseline_ci": old["ci"], "score_ci": new["ci"]}
        assert {key: compared[key] for key in row} == pytest.approx(row)
    assert compared["difference"] == compared["score"] - compared["baseline"]


@pytest.mark.parametrize("seed", ["abc", "-3", "1.5"])
def test_a_wrong_seed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: str) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", seed)
    path = write(tmp_path / "ref", ["der Hund", "das Haus"])
    with pytest.raises(UsageError, match=f"SACREBLEU_SEED='{seed}' is not a seed. Use a whole number of 0 or more"):
        evaluate(hypothesis=path, references=[path], metrics=("bleu",))


def test_intervals_of_a_published_test_set_equal_those_of_sacrebleu(
    corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are from newstest2014, and the user sets a seed. The randomization test's signature has no bootstrap."""
    table = pyarrow.parquet.read_table(corpora / "wmt14-mini" / "de-en" / "test-00000-of-00001.parquet")
    lines = [row["de"] for row in table["translation"].to_pylist()[:200]]
    rng = random.Random(1)
    spoilt = [" ".join(word for word in line.split() if rng.random() > 0.2) for line in lines]
    paths = write(tmp_path / "ref", lines), write(tmp_path / "hyp", spoilt)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    few_trials = functools.partial(significance.PairedTest, n_samples=9)
    monkeypatch.setattr(significance, "PairedTest", few_trials)
    theirs = sacrebleu(paths[0], "-i", paths[1], "-m", "bleu", "-w", 6, "--confidence")
    report = evaluate(hypothesis=paths[1], references=[paths[0]], metrics=("bleu",), baseline=paths[1])
    ours = report.scores[0]
    got = {"score": ours.score, "confidence_mean": ours.mean, "confidence_var": ours.ci}
    assert got == pytest.approx({key: theirs[key] for key in got}, abs=5e-7)
    assert ours.signature == theirs["signature"]
    assert "bs:" not in report.comparisons[0]["signature_ar"]
    assert f"BLEU  {ours.score:.2f} ± {ours.ci:.2f}  " in report.text()


def test_standard_input_memory_and_file_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["a\rb \x0b c", "d\u0085e \u2028 f g h", "", "i\r", "\u00a0"]
    path, reference = write(tmp_path / "hyp", lines), write(tmp_path / "ref", [line + " x" for line in lines])
    reports = [evaluate(hypothesis=path, references=[reference])]
    for name in (None, Path("-")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
        reports.append(evaluate(hypothesis=name, references=[reference]))
    reports.append(score.evaluate(ScoreOptions(references=(reference,)), lines))
    assert all(report.scores == reports[0].scores for report in reports)
    assert {report.hypotheses.sha256 for report in reports} == {sha256(path.read_bytes()).hexdigest()}
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(MissingError, match="standard input is closed"):
        evaluate(references=[reference])


@pytest.mark.parametrize(
    ("role", "hypothesis", "other", "message"),
    [
        ("references", [b"a"], [b"a", b"b"], r"line counts differ .*hyp: 1.*other: 2"),
        *((role, [b"a"], [b"a", b"b"], "line counts differ") for role in ("source", "baseline")),
        ("references", [b"", b""], [b"", b""], "nothing to score"),
        ("references", [b"a", b"b"], [b"a", b"\xed\xa0\x80"], "other, line 2 is not UTF-8"),
        ("references", [b"a"], [b"\x1f\x8b\x08"], "other is not plain text, it looks like gzip. Unpack"),
    ],
)
def test_refuses_data(tmp_path: Path, role: str, hypothesis: list[bytes], other: list[bytes], message: str) -> None:
    ours, theirs = write(tmp_path / "hyp", hypothesis), write(tmp_path / "other", other)
    inputs: dict[str, Any] = {"hypothesis": ours, "references": [ours]}
    with pytest.raises(DataError, match=message):
        evaluate(**{**inputs, role: [theirs] if role == "references" else theirs})


def test_empty_lines_and_copies_are_counted(tmp_path: Path) -> None:
    sources = write(tmp_path / "src", ["", "b", "a b", "d"])
    report = score.evaluate(ScoreOptions(references=(sources,), source=sources, language="de"), ["", " ", "a b", "c"])
    assert "4 lines, 2 empty, 1 copied from the source" in report.text()
    tagged = write(tmp_path / "tagged", [">>de<<", ">>de<< b", ">>de<< >>bt<< a b", "d"])
    report = score.evaluate(ScoreOptions(references=(sources,), source=tagged, language="de"), ["", " ", "a b", "c"])
    assert report.copies == 1, "a copy need not repeat the tokens before its source"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pass exactly one"),
        ({"references": ["r"], "corpus": Path("c")}, "pass exactly one"),
        *(({"references": ["r"], "fail_under": n}, "must be from 0 to 100") for n in (float("nan"), -0.1, 100.1)),
        *(({"references": ["r"], "fail_under": n, "metrics": ("ter",)}, "must be from 0 to 100") for n in (0.0, 5.0)),
        ({"references": ["r"], "terms": Path("t")}, "--terms needs the source. Add --source FILE"),
        ({"references": ["r"], "fail_if_worse": True}, "Add --baseline FILE"),
        ({"references": ["r"], "metrics": ("blue",)}, "--metric must be one of bleu"),
        ({"test_set": "wmt14full", "language_pair": "en-de"}, "Names look like wmt14/full"),
        ({"test_set": "wmt14", "language_pair": "en-xx"}, "one of cs-en, de-en"),
        ({"test_set": "wmt14"}, "needs --language-pair: one of cs-en, de-en"),
    ],
)
def test_refuses_options_before_reading(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate(**options)


@pytest.mark.usefixtures("few_samples")
def test_prepared_corpus(files: dict[str, Path], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    entries = {"src": "en", "tgt": "de", "name": "mine", "pairs": 1, "vocabulary_size": 9}
    with artefact.staged(corpus, "corpus", entries) as stage:
        for name in manifests.NEEDED["corpus"]:
            (stage / name).touch()
        for side, name in (("src", "src"), ("tgt", "ref")):
            (stage / f"test.{side}").write_bytes(files[name].read_bytes())
    report = evaluate(hypothesis=files["good"], corpus=corpus)
    assert (report.language, report.copies) == ("de", 0)
    assert [s.metric for s in report.scores] == ["bleu", "chrf", "paper-bleu", "paper-bleu-quotes"]
    for language, count in (("fr", 3), ("cs", 2)):  # --language wins over the corpus
        assert len(evaluate(hypothesis=files["good"], corpus=corpus, language=language).scores) == count
    translated = score.evaluate(ScoreOptions(corpus=corpus), lambda sources: [line.upper() for line in sources])
    assert translated.hypotheses.lines[1] == "THIS IS SENTENCE 1."
    for options in ({"references": (files["ref"],)}, {"corpus": corpus, "hypothesis": files["good"]}):
        with pytest.raises(UsageError, match=r"--model translates the source\. Pass --corpus"):
            score.evaluate(ScoreOptions(**options), lambda sources: sources)
    with pytest.raises(MissingError, match=r"corpus has no dev set\. Set corpus\.dev_src"):
        evaluate(hypothesis=files["good"], corpus=corpus, split="dev")
    with pytest.raises(MissingError, match=r"other is not a prepared corpus\. Pass a directory that nmt prepare wrote"):
        evaluate(hypothesis=files["good"], corpus=tmp_path / "other")


@pytest.mark.usefixtures("few_samples")
def test_named_test_set_without_network(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sacrebleu.dataset import DATASETS

    def offline(*arguments: Any, **options: Any) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    for name in ("wmt14", "wmt14/full"):
        monkeypatch.setattr(DATASETS[name], "_outdir", str(tmp_path / name))
        monkeypatch.setattr(DATASETS[name], "_rawdir", str(tmp_path / name / "raw"))
    with pytest.raises(DownloadError, match=r"wmt14/full en-de .*test-full\.tgz.*no network.*--reference"):
        evaluate(hypothesis=files["good"], test_set="wmt14/full", language_pair="en-de")
    for field in ("src", "ref", "docid", "genre", "origlang"):
        write(tmp_path / "wmt14" / f"wmt14.en-de.{field}", files["ref"].read_text().split("\n")[:-1])
    report = evaluate(hypothesis=files["good"], test_set="wmt14", language_pair="en-de")
    assert (report.language, len(report.scores), report.test_set) == ("de", 4, "wmt14")
    terms = write(tmp_path / "terms", ["Satz\tSatz"])
    with_terms = evaluate(
        hypothesis=files["good"],
        test_set="wmt14",
        language_pair="en-de",
        terms=terms,
        metrics=("chrf",),
        intervals=False,
    )
    assert with_terms.terms == TermCounts(40, 40, 40)
    for count, warnings in ((2737, 1), (3003, 0)):
        path = write(tmp_path / "lines", ["a"] * count)
        assert len(evaluate(hypothesis=path, references=[path], metrics=("chrf",)).warnings) == warnings


def test_all_references_of_a_test_set_are_used(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sacrebleu.dataset import DATASETS

    dataset, good = DATASETS["wmt20/tworefs"], files["good"].read_text().split("\n")[:-1]
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path))
    names = dataset.fieldnames("en-de")
    assert len([name for name in names if name.startswith("ref")]) == 2
    last = max(name for name in names if name.startswith("ref"))
    for name in names:
        write(Path(dataset._get_txt_file_path("en-de", name)), good if name == last else ["x"] * len(good))
    report = evaluate(hypothesis=files["good"], test_set="wmt20/tworefs", language_pair="en-de", metrics=("bleu",))
    assert report.scores[0].score == pytest.approx(100)


def test_tokenized_hypotheses_give_a_warning(files: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    options, plain = ScoreOptions(references=(files["ref"],)), "Das ist gut: 3.5 %, z. B. & so!"
    tokenized = ["Das ist gut .", "l&apos; homme", "Hal@@ lo", "▁Hallo"]
    assert score.evaluate(options, [plain] * 36 + tokenized).warnings == []  # one in ten is allowed
    report = score.evaluate(options, [plain] * 35 + ["A @-@ B", *tokenized])
    assert "**Warning:** 5 of 40 hypotheses look tokenized" in report.markdown()
    assert score.print_report(report, "text") == 0
    assert "look tokenized" in capfd.readouterr().err


def test_text_without_spaces_scored_by_words_gives_a_warning(tmp_path: Path) -> None:
    said, words = "the hypotheses look Chinese or Japanese", ["ein Satz", "noch einer"]
    for lines, language, warned in (
        (["我们去看电影。"] * 3 + words, None, True),
        (["我们去看电影。"] * 2 + words, None, False),  # half of them are allowed
        (["映画を見る。"] * 3, "zh", False),
    ):
        references = write(tmp_path / "lines", lines)
        options = ScoreOptions(references=(references,), language=language, metrics=("bleu",), intervals=False)
        assert any(said in warning for warning in score.evaluate(options, lines).warnings) == warned


@pytest.mark.usefixtures("few_samples")
def test_a_score_equal_to_fail_under_passes(files: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    def gate(name: str, **changes: Any) -> str:
        code = score.print_report(evaluate(hypothesis=files[name], references=[files["ref"]], **changes), "text")
        captured = capfd.readouterr()
        assert captured.out.rstrip().endswith("gate passed") == (not code)
        assert captured.err.count("\n") == code
        return captured.err

    exact = evaluate(hypothesis=files["good"], references=[files["ref"]]).scores[0].score
    assert not gate("good", fail_under=exact)
    assert f"BLEU {exact:.4f} is below --fail-under" in gate("good", fail_under=exact + 1e-9)
    assert not gate("bad", fail_under=0)
    for first in ("bleu", "paper-bleu"):
        assert not gate("ref", fail_under=100, metrics=(first, "ter"), language="de")


@pytest.mark.parametrize(
    ("metric", "p_bs", "p_ar", "scores", "code"),
    [
        ("bleu", 0.049, 0.9, (30.0, 20.0), 1),
        ("bleu", 0.05, 0.01, (30.0, 20.0), 0),
        ("bleu", 0.01, 0.01, (20.0, 30.0), 0),
        ("ter", 0.01, 0.01, (30.0, 20.0), 0),  # lower is better
        ("ter", 0.01, 0.01, (20.0, 30.0), 1),
        ("bleu", 0.01, 0.01, (20.0, 20.0), 0),
    ],
)
def test_the_gate_reads_the_bootstrap_of_the_first_metric(
    files: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    metric: str,
    p_bs: float,
    p_ar: float,
    scores: tuple[float, float],
    code: int,
) -> None:
    def paired(_systems: Any, scorers: dict[str, Any], _references: Any, kind: str) -> Any:
        (name,) = scorers
        p_value = float(code) if name == "chrf" else {"bs": p_bs, "ar": p_ar}[kind]
        results = [SimpleNamespace(score=score, ci=1.0, p_value=p_value) for score in scores]
        return lambda: ({name: kind}, {name: results})

    monkeypatch.setattr(significance, "PairedTest", paired)
    more: dict[str, Any] = {"references": (files["ref"],), "metrics": (metric, "chrf"), "baseline": files["bad"]}
    report = evaluate(hypothesis=files["good"], **more, fail_if_worse=True)
    assert score.print_report(report, "text") == code
    told = json.loads(report.json())
    assert (told["wins"], told["losses"]) == (25, 15), "segments are scored without details, too"
    lines = report.markdown().split("\n")
    assert lines[0].endswith("❌" if code else "✅")
    name = metrics.METRICS[metric]
    old, new = scores
    p = [1.0, 1.0] if old == new else [p_bs, p_ar]
    assert f"| {name} | {old:.2f} ± 1.00 | {new:.2f} ± 1.00 | {new - old:+.2f} | {p[0]:.4f} | {p[1]:.4f} |" in lines
    failure = (
        f"{name} {new:.2f} is significantly worse than the baseline's {old:.2f} (p = {p_bs:.4f}, paired bootstrap)"
    )
    assert report.failures == [failure] * code


def test_an_empty_translation_is_shown(tmp_path: Path) -> None:
    paths = write(tmp_path / "hyp", ["", "a"]), write(tmp_path / "ref", ["a dog", "a"])
    first, _ = evaluate(hypothesis=paths[0], references=[paths[1]], details=True).segments
    assert first.texts() == [("reference", "a dog"), ("hypothesis", "")]


@pytest.mark.usefixtures("few_samples")
def test_lengths_and_extremes(tmp_path: Path) -> None:
    references = [[f"wort{i}" for i in range(count)] for count in (0, 10, 11, 50, 51)]
    kept = [["x"], *(words[: len(words) // part] for words, part in zip(references[1:], (1, 2, 1, 4), strict=True))]
    kept[3].pop()
    other = [["x"], ["y"], *references[2:]]
    ours, theirs, true = ([" ".join(words) for words in lines] for lines in (kept, other, references))
    paths = [write(tmp_path / "ref", true)], write(tmp_path / "hyp", ours), write(tmp_path / "other", theirs)
    report = evaluate(references=paths[0], hypothesis=paths[1], baseline=paths[2], details=True)
    rows = [(row["length"], row["segments"]) for row in report.lengths()]
    assert rows == [("1 to 10", 2), ("11 to 20", 1), ("41 to 50", 1), ("over 50", 1)]
    assert report.lengths()[1]["bleu"] == metrics.corpus_bleu(ours[2:3], true[2:3])[0]
    groups = {name: [segment.line for segment in group] for name, group in report.extremes().items()}
    assert groups == {"worst": [1, 5, 3], "best": [2, 4, 3], "lost": [5, 3, 4], "gained": [2]}
    assert "Segments by chrF2: 1 better, 3 worse, 1 equal." in report.text()
    told = json.loads(report.json())
    assert (told["wins"], told["losses"]) == (1, 3)


@pytest.mark.usefixtures("few_samples")
def test_every_score_uses_the_same_tokenizer_and_case(tmp_path: Path) -> None:
    """With sacreBLEU's default tokenizer, a Chinese sentence would be one word and could score 0."""
    lines, ours = (
        ["我们昨天在北京看了一场电影。", "他喜欢早上喝一杯热茶。"],
        ["我们昨天在北京看了两场电影。", "他喜欢早上喝一杯热茶。"],
    )
    paths = {"references": [write(tmp_path / "ref", lines)], "hypothesis": write(tmp_path / "hyp", ours)}
    for language, tokenizer in (("zh-CN", "zh"), ("ZH_tw", "zh"), ("ja", "char"), ("de", "13a")):
        report = evaluate(**paths, details=True, language=language, metrics=("bleu",))
        assert f"|tok:{tokenizer}|" in report.scores[0].signature
        assert metrics.corpus_bleu(ours, lines, language=language)[0] == report.scores[0].score
        assert report.lengths()[0]["bleu"] == report.scores[0].score
        assert report.segments[0].bleu == sentence_bleu(ours[0], lines[:1], tokenize=tokenizer).score
    assert ["Pass --language zh or ja" in warning for warning in evaluate(**paths).warnings] == [True]
    paths = {"references": [write(tmp_path / "ref", ["Ein Haus"])], "hypothesis": write(tmp_path / "hyp", ["ein haus"])}
    assert evaluate(**paths, details=True, lowercase=True).segments[0].chrf == 100


@pytest.mark.usefixtures("few_samples")
def test_equal_translations_are_not_significantly_different(files: dict[str, Path]) -> None:
    same = evaluate(hypothesis=files["good"], baseline=files["good"], references=[files["ref"]], details=True)
    assert [row[f"p_{kind}"] for row in same.comparisons for kind in ("bs", "ar")] == [1.0] * 4
    assert [*same.extremes()] == ["worst", "best"]


@pytest.mark.usefixtures("few_samples")
def test_text_cannot_break_the_report(files: dict[str, Path], tmp_path: Path) -> None:
    evil = "a|b <img src=x> `c` \x1b[31m [x](http://y) @all"
    hypotheses = [evil, *files["good"].read_text().split("\n")[1:-2], "Das ist"]
    more: dict[str, Any] = {"source": files["src"], "baseline": files["good"], "segments": tmp_path / "segments.jsonl"}
    report = score.evaluate(ScoreOptions(references=(files["ref"],), details=True, language="de", **more), hypotheses)
    rows = [json.loads(line) for line in more["segments"].read_text().split("\n")[:-1]]
    names = ["line", "hypothesis", "references", "bleu", "chrf", "source", "baseline", "baseline_chrf"]
    assert (list(rows[0]), rows[0]["hypothesis"], rows[39]["line"]) == (names, evil, 40)
    assert rows[0]["chrf"] < rows[1]["chrf"] == rows[1]["baseline_chrf"]
    for row in (rows[1], rows[39]):
        texts = row["hypothesis"], row["references"]
        assert (row["bleu"], row["chrf"]) == (sentence_bleu(*texts).score, sentence_chrf(*texts).score)
    markdown = report.markdown()
    assert "\x1b" not in markdown + report.text()
    assert r"a\|b &lt;img src=x> \`c\` \\x1b\[31m \[x\](http://y) \@all" in markdown
    assert all(line.count("|") - line.count("\\|") in (0, 3, 4, 5, 7) for line in markdown.split("\n"))


def test_json_is_complete_and_unrounded(
    files: dict[str, Path], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = evaluate(hypothesis=files["good"], references=[files["ref"]], fail_under=99.0)
    assert score.print_report(report, "json") == 1
    ours = json.loads(capfd.readouterr().out)
    bleu = ours["scores"][0]
    counts = ["precisions", "bp", "length_ratio", "hyp_len", "ref_len"]
    assert list(bleu) == ["metric", "name", "score", "signature", *counts, "compare_with", "mean", "ci"]
    assert (bleu["hyp_len"], bleu["ref_len"], bleu["length_ratio"]) == (480, 520, 480 / 520)
    texts = [files[name].read_text().split("\n")[:-1] for name in ("good", "ref")]
    assert metrics.corpus_bleu(*texts)[0] == bleu["score"]
    assert (bleu["mean"], bleu["ci"]) == (pytest.approx(bleu["score"], abs=1e-5), 0)  # all lines are equal
    assert set(ours["versions"]) == {"nmt", "sacrebleu"}
    assert (ours["source"], ours["gated"], len(ours["failures"])) == (None, True, 1)
    hashed = sha256(files["ref"].read_bytes()).hexdigest()
    assert ours["references"] == [{"name": str(files["ref"]), "lines": 40, "sha256": hashed}]
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="standard output is closed"):
        score.print_report(report, "json")


def filled(**changes: Any) -> Report:
    """Return a report with a value in every field."""
    words = "one two three four five six"
    rows = [
        (words, 90.0, 80.0),
        (f"{words} seven", 10.0, 30.0),
        (f"{words} {words}", 50.0, 50.0),
        (f"a|b {words}", 60.0, 0.0),
    ]
    segments = [
        ScoredSegment(
            line=i,
            hypothesis=text,
            references=[text.replace("seven", "nine")],
            bleu=5.0 * i,
            chrf=chrf,
            source=f"source {i}",
            baseline=f"old {i}",
            baseline_chrf=old,
            details={"comet": i / 2},
        )
        for i, (text, chrf, old) in enumerate(rows, 1)
    ]
    bleu = metrics.Score(
        metric="bleu",
        name="BLEU",
        score=25.318,
        signature="nrefs:1|case:mixed",
        details={"bp": 0.9, "ref_len": 40},
        compare_with=f"{'figures ' * 15}of others",
        verbose="30.0/20.0 (BP=0.900)",
        mean=25.4,
        ci=1.256,
    )
    compared = {"metric": "bleu", "name": "BLEU", "baseline": 26.4, "score": 25.318, "difference": -1.082}
    compared |= {"baseline_ci": 0.7, "score_ci": 1.25, "p_bs": 0.03, "p_ar": 0.041234}
    report = Report(
        scores=[bleu, metrics.Score("chrf", "chrF2", 48.0, "chrF|2", {}, "nothing")],
        comparisons=[compared],
        empty=2,
        copies=1234,
        language="de",
        test_set="wmt",
        tokenize="13a",
        lowercase=True,
        hypotheses=InputText("h*p", ["x"] * 4, "hash of hypotheses"),
        references=[InputText("ref", ["x"] * 4, "bb"), InputText("ref2", ["x"] * 4, "cc")],
        source=InputText("src", ["x"] * 4, "hash of source"),
        baseline=InputText("base|line", ["x"] * 4, "hash of baseline"),
        near_duplicates=NearDuplicates("2 of 4 are near-duplicates", {"lines": 4, "near_lines": [2, 4]}),
        terms=TermCounts(8, 3, 1),
        warnings=["look_at this"],
        gated=True,
        failures=["BLEU is low", "it is worse"],
        details=True,
        intervals=False,
        segments=segments,
    )
    return replace(report, **changes)


def test_a_complete_report_equals_the_recorded_text_markdown_and_json() -> None:
    report = filled()
    assert f"{report.text()}\n" == (DATA / "report.txt").read_text()
    assert f"{report.markdown()}\n" == (DATA / "report.md").read_text()
    told, expected = json.loads(report.json()), json.loads((DATA / "report.json").read_text())
    assert told.pop("versions")["nmt"] == __version__
    assert (list(told), told) == (list(expected), expected)


def test_a_report_without_details_a_baseline_or_a_gate() -> None:
    plain = filled(details=False, baseline=None, gated=False, failures=[], copies=None, terms=TermCounts(0, 0, 0))
    text = plain.text().split("\n")
    assert text[:4] == [
        "h*p against ref, ref2: 4 lines, 2 empty",
        "terms used: none (0 of 0, in 0 lines)",
        "2 of 4 are near-duplicates",
        "",
    ]
    assert text[-1] == "       compare with nothing"
    assert plain.markdown().split("\n")[0] == "### BLEU 25.32 ± 1.26"
    told = json.loads(plain.json())
    assert told["twins"] == {"lines": 4, "near_lines": [2, 4]}
    assert {"wins", "losses", "lengths", "worst", "best"}.isdisjoint(told)
    assert filled(failures=[]).text().endswith("\n\ngate passed")
    ranged = filled(intervals=True).bleu_by_near_duplicates()
    assert [(count, score.ci is None) for count, score in ranged.values()] == [(2, False)] * 2
    alone = filled(intervals=True, near_duplicates=NearDuplicates("", {"near_lines": [2]})).bleu_by_near_duplicates()
    assert [(count, score.ci is None) for count, score in alone.values()] == [(1, True), (3, False)]
    everywhere = NearDuplicates("", {"near_lines": [1, 2, 3, 4]})
    assert list(filled(near_duplicates=everywhere).bleu_by_near_duplicates()) == ["with"]
    nowhere = NearDuplicates("", {"near_lines": []})
    assert filled(near_duplicates=nowhere).bleu_by_near_duplicates() == {}, "it would be the BLEU of all lines"
    units = [filled(tokenize=name).unit for name in ("zh", "char", "ja-mecab", "13a", "ko-mecab", "none")]
    assert units == ["characters"] * 3 + ["words"] * 3
    long = filled(segments=[replace(filled().segments[0], hypothesis="x" * 1200)]).text()
    assert f"hypothesis  {'x' * 1000}\n" in long


@pytest.mark.usefixtures("few_samples")
def test_every_language_has_its_tokenizer_and_its_metrics(tmp_path: Path) -> None:
    tokenizers = {**dict.fromkeys(("zh", "zh-CN", "ZH_tw"), "zh"), **dict.fromkeys(("de", "", "zhx", "ko"), "13a")}
    tokenizers |= dict.fromkeys(("ja", "th", "my", "km", "lo", "JA-jp"), "char")
    assert {language: languages.tokenizer_of(language) for language in tokenizers} == tokenizers
    lines = write(tmp_path / "lines", ["a b c d e"])
    for language, names in (("de", 4), ("fr", 3), ("de-AT", 2), (None, 2)):
        scores = evaluate(hypothesis=lines, references=[lines], language=language, intervals=False).scores
        assert [score.metric for score in scores] == ["bleu", "chrf", "paper-bleu", "paper-bleu-quotes"][:names]


def test_the_seed_is_in_every_signature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signatures of sacreBLEU's BLEU and of the paper's BLEU have it."""
    seeds, make = list[Any](), numpy.random.default_rng
    monkeypatch.setattr(
        "nmt_cli.scoring.significance.np.random.default_rng", lambda seed: seeds.append(seed) or make(seed)
    )
    lines = write(tmp_path / "lines", ["der Hund ist da"] * 2)
    for written, shown in (("0", "0"), ("7", "7"), ("None", "none")):
        monkeypatch.setenv("SACREBLEU_SEED", written)
        more: dict[str, Any] = {"metrics": ("bleu", "paper-bleu"), "language": "de"}
        for scored in evaluate(hypothesis=lines, references=[lines], **more).scores:
            assert f"nrefs:1|bs:1000|seed:{shown}|case:mixed|" in scored.signature
    assert seeds == [0, 0, 7, 7, None, None]


def test_moses_tokens_are_compared_unchanged() -> None:
    lines, other = ["l&apos; homme ( est ) là !"], ["l&apos; homme (est) là!"]
    assert (
        metrics.corpus_bleu(other, lines, tokenized=True)[0]
        < metrics.corpus_bleu(other, lines)[0]
        == pytest.approx(100)
    )
    assert "|tok:none|" in metrics.corpus_bleu(lines, lines, language="fr", tokenized=True)[1]


def test_a_corpus_with_moses_tokens_is_scored_in_its_tokens_without_a_warning(tmp_path: Path) -> None:
    entries = {"src": "en", "tgt": "de", "name": "mine", "pairs": 1, "vocabulary_size": 9, "recipe": {"moses": True}}
    with artefact.staged(tmp_path / "corpus", "corpus", entries) as stage:
        for name in manifests.NEEDED["corpus"]:
            (stage / name).touch()
        for name in ("test.src", "test.tgt", "dev.src", "dev.tgt"):
            write(stage / name, ["das ist gut ."] * 2)
        twins = {"lines": 2, "near": {"source": 1, "target": 0, "both": 0}, "near_lines": [1]}
        write(stage / "cleaning.json", [json.dumps({"twins": {"dev": twins}})])
    report = evaluate(hypothesis=tmp_path / "corpus" / "test.tgt", corpus=tmp_path / "corpus", intervals=False)
    assert (report.tokenized, report.tokenize, report.warnings, report.near_duplicates) == (True, "none", [], None)
    assert [score.metric for score in report.scores] == ["bleu", "chrf"]
    assert "|tok:none|" in report.scores[0].signature
    named = evaluate(hypothesis=tmp_path / "corpus" / "test.tgt", corpus=tmp_path / "corpus", tokenize="intl")
    assert named.tokenize == "intl"
    dev = evaluate(hypothesis=tmp_path / "corpus" / "dev.tgt", corpus=tmp_path / "corpus", split="dev", intervals=False)
    assert dev.near_duplicates
    assert dev.near_duplicates.sentence.startswith("near-duplicates in training: 1 of 2 dev lines (source 1, ")


def test_a_signal_during_a_download_is_not_a_failed_download(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.dataset import DATASETS

    monkeypatch.setattr(socket, "setdefaulttimeout", limit := Mock())
    for stop, kind in ((SystemExit(143), SystemExit), (SystemExit(1), DownloadError), (OSError("x"), DownloadError)):
        monkeypatch.setattr(DATASETS["wmt14"], "get_source_file", Mock(side_effect=stop))
        with pytest.raises(kind):
            evaluate(test_set="wmt14", language_pair="en-de")
    limit.assert_called_with(60)  # seconds; sacreBLEU would wait forever


def test_a_gate_reports_every_failure_and_names_need_not_be_unicode(
    files: dict[str, Path], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert score.print_report(filled(hypotheses=InputText("h\udcff", ["x"] * 4, "")), "json") == 1
    captured = capfdbinary.readouterr()
    assert json.loads(captured.out)["hypotheses"]["name"] == "h\udcff"
    failures = b"nmt score: gate failed: BLEU is low\nnmt score: gate failed: it is worse\n"
    assert captured.err == b"nmt: warning: look_at this\n" + failures


@pytest.mark.parametrize(
    ("line", "tokenized"),
    [
        *(
            (line, True)
            for line in ("so .", "so , ja", "a . b", "&quot;ja&quot;", "l&apos;eau", "R&amp;D", "a &#124; b")
        ),
        *((line, True) for line in ("Hal@@ lo", "E @-@ Mail", "▁ja", "hal▁lo")),
        *(
            (line, False)
            for line in ("So.", ".5 und ,5", "a .5", "so ... ja", "a@b.de", "R&D; &", "&nbsp;", "@@", "a-b")
        ),
    ],
)
def test_marks_of_tokenizers_are_recognized(line: str, tokenized: bool) -> None:
    assert bool(checks.TOKENIZED.search(line)) is tokenized


@pytest.mark.parametrize(
    ("line", "found"),
    [("これはいい", True), ("カタカナ", True), ("电影", True), ("한국어", False), ("ไทย", False), ("é", False)],
)
def test_chinese_and_japanese_are_recognized_in_any_script(line: str, found: bool) -> None:
    assert bool(checks.CHINESE_OR_JAPANESE.search(line)) is found


def test_segments_never_replace_an_input(files: dict[str, Path]) -> None:
    inputs = {"hypothesis": files["good"], "source": files["src"], "baseline": files["bad"]}
    before = {name: file.read_bytes() for name, file in files.items()}
    for name in files:
        with pytest.raises(OutputError, match=f"{name} is also an input"):
            evaluate(**inputs, references=(files["ref"],), segments=files[name])
    assert {name: file.read_bytes() for name, file in files.items()} == before
