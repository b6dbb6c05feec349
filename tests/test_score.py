"""score: equal to sacreBLEU to every printed digit, and a refusal wherever a number would mislead."""

import io
import json
import os
import random
import subprocess
import sys
import urllib.error
import urllib.request
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from texts import write

from nmt_cli import artefact
from nmt_cli.errors import DataError, DownloadError, MissingError, OutputError, UsageError
from nmt_cli.scoring import metrics, score
from nmt_cli.scoring.paper_bleu import paper_bleu
from nmt_cli.scoring.report import Report
from nmt_cli.scoring.score import ScoreOptions

# Words that lines and tokenizers break at, between ordinary ones.
WORDS = "the cat, on «a» mat. Größe 3,5 it's (x-y) ... „gut“ &amp; !? 中文 U.S. $5 '' %".split()  # noqa: SIM905
WORDS += ["", "\u00a0", "a\u2028b", "c\u0085d", "e\rf", "\r", "g\x0bh", "\x1c"]


def spoiled(rng: random.Random, lines: list[str], rate: float) -> list[str]:
    return [" ".join(w if rng.random() > rate else rng.choice(WORDS) for w in line.split(" ")) for line in lines]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Forty sentences, a source and two systems: one good, one bad."""
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


def run(options: ScoreOptions, hypotheses: list[str] | None = None) -> int:
    return score.print_report(score.evaluate(options, hypotheses), options.format)


def sacrebleu(*words: object) -> Any:
    """Return what the sacrebleu command prints as JSON."""
    command = [sys.executable, "-m", "sacrebleu", *map(str, words)]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_fifty_random_files_equal_the_sacrebleu_command(tmp_path: Path) -> None:
    rng, names = random.Random(5), ("bleu", "chrf", "ter")
    for group in range(5):
        lines = [" ".join(rng.choices(WORDS, k=rng.choice((0, 1, 3, 8, 15)))) for _ in range(30)]
        reference = write(tmp_path / f"ref{group}", lines)
        systems = [write(tmp_path / f"hyp{group}-{i}", spoiled(rng, lines, i / 10)) for i in range(10)]
        for path, row in zip(systems, sacrebleu(reference, "-m", *names, "-w", 6, "-i", *systems), strict=True):
            ours = evaluate(hypothesis=path, references=[reference], metrics=names).scores
            assert {s.name: f"{s.score:.6f}" for s in ours} == {k: value for k, value in row.items() if k != "system"}


def test_signatures_and_significance_equal_the_sacrebleu_command(files: dict[str, Path]) -> None:
    good, bad, reference = (files[name] for name in ("good", "bad", "ref"))
    theirs = sacrebleu(reference, good, "-i", bad, "-m", "bleu", "chrf", "ter")
    ours = evaluate(hypothesis=bad, references=[reference, good], metrics=("bleu", "chrf", "ter")).scores
    assert [s.signature for s in ours] == [s["signature"] for s in theirs]
    (ours, *_) = evaluate(hypothesis=bad, baseline=good, references=[reference]).comparisons
    for flag, p_value in (("--paired-bs", ours["p_bs"]), ("--paired-ar", ours["p_ar"])):
        row = sacrebleu(reference, flag, "-f", "json", "-w", 4, "-i", good, bad)[1]["BLEU"]
        assert (f"{p_value:.4f}", f"{ours['score']:.4f}") == (f"{row['p_value']:.4f}", f"{row['score']:.4f}")
        if flag == "--paired-bs":
            assert f"{ours['score_ci']:.4f}" == f"{row['ci']:.4f}"


def test_several_metrics_and_library_functions_agree(files: dict[str, Path]) -> None:
    hypotheses, reference = (files[name].read_text().split("\n")[:-1] for name in ("good", "ref"))
    report = evaluate(hypothesis=files["good"], references=[files["ref"]], language="de")
    bleu, chrf, paper = report.scores
    assert metrics.corpus_bleu(hypotheses, reference) == (bleu.score, bleu.signature)
    assert metrics.corpus_chrf(hypotheses, reference) == (chrf.score, chrf.signature)
    assert (paper.metric, paper.score) == ("paper-bleu", paper_bleu(hypotheses, reference, language="de").score)
    for lines, message in ((["a", "b"], "2 hypotheses against 1"), ([], "0 hypotheses")):
        with pytest.raises(DataError, match=message):
            metrics.corpus_bleu(lines, ["a"])
    with pytest.raises(UsageError, match="--language: one of de, en, fr"):
        evaluate(hypothesis=files["good"], references=[files["ref"]], metrics=("paper-bleu",), language="cs")


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
    assert {len(report.hypotheses.lines) for report in reports} == {5}
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(MissingError, match="standard input is closed"):
        evaluate(references=[reference])


@pytest.mark.parametrize(
    ("hypothesis", "reference", "message"),
    [
        (b"a\n", b"a\nb", r"line counts differ .*hyp: 1.*ref: 2"),
        (b"\n\n", b"\n\n", "nothing to score"),
        (b"a\nb\xff\n", b"a\nb\n", "hyp, line 2 is not UTF-8"),
        (b"a\nb\n", b"\xed\xa0\x80\nb\n", "ref, line 1 is not UTF-8"),
    ],
)
def test_refuses_data(tmp_path: Path, hypothesis: bytes, reference: bytes, message: str) -> None:
    (tmp_path / "hyp").write_bytes(hypothesis)
    (tmp_path / "ref").write_bytes(reference)
    with pytest.raises(DataError, match=message) as caught:
        evaluate(hypothesis=tmp_path / "hyp", references=[tmp_path / "ref"])
    assert "\n" not in str(caught.value)


def test_blank_hypotheses_are_scored_and_counted(files: dict[str, Path]) -> None:
    report = evaluate(hypothesis=files["bad"], references=[files["ref"]], source=files["src"])
    assert (report.empty, report.copies) == (1, 1)
    assert "40 lines, 1 empty, 1 copied from the source" in report.text()
    blank = write(files["ref"].parent / "blank", [""] * 40)
    assert {s.score for s in evaluate(hypothesis=blank, references=[files["ref"]], language="de").scores} == {0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one way"),
        ({"references": ["r"], "corpus": Path("c")}, "one way"),
        ({"references": ["r"], "fail_under": float("nan")}, "number from 0 to 100"),
        ({"references": ["r"], "fail_under": 5.0, "metrics": ("ter",)}, "number from 0 to 100"),
        ({"references": ["r"], "fail_if_worse": True}, "needs --baseline"),
        ({"references": ["r"], "metrics": ("blue",)}, "--metric must be one of bleu"),
        ({"test_set": "wmt14full", "language_pair": "en-de"}, "Did you mean wmt14/full"),
        ({"test_set": "wmt14", "language_pair": "en-xx"}, "one of cs-en, de-en"),
    ],
)
def test_refuses_options_before_reading(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate(**options)


def test_prepared_corpus(files: dict[str, Path], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    with artefact.staged(corpus, "corpus", {"src": "en", "tgt": "de", "name": "mine"}) as stage:
        for side, name in (("src", "src"), ("tgt", "ref")):
            (stage / f"test.{side}").write_bytes(files[name].read_bytes())
    report = evaluate(hypothesis=files["good"], corpus=corpus)
    assert (report.language, report.copies) == ("de", 0)
    assert [s.metric for s in report.scores] == ["bleu", "chrf", "paper-bleu"]
    assert score.source_lines(ScoreOptions(corpus=corpus))[1] == "This is sentence 1."
    with pytest.raises(UsageError, match="--model needs"):
        score.source_lines(ScoreOptions(references=(files["ref"],)))
    with pytest.raises(FileNotFoundError, match=r"dev\.tgt"):
        evaluate(hypothesis=files["good"], corpus=corpus, split="dev")
    with pytest.raises(MissingError, match="nmt prepare other"):
        evaluate(hypothesis=files["good"], corpus=tmp_path / "other")


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
    assert [s.metric for s in report.scores] == ["bleu", "chrf", "paper-bleu"]
    path = write(tmp_path / "lines", ["a"] * 2737)
    assert "filtered newstest2014" in evaluate(hypothesis=path, references=[path], metrics=("chrf",)).warnings[0]


def test_warns_of_tokenised_hypotheses(files: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    options = ScoreOptions(references=(files["ref"],))
    for line in ("Das ist gut .", "l&apos; homme", "Hal@@ lo"):
        assert "40 of 40 hypotheses look tokenised" in score.evaluate(options, [line] * 40).warnings[0]
    assert score.evaluate(options, ["Das ist gut: 3.5 %, z. B. & so!"] * 40).warnings == []
    assert run(options, ["Hal@@ lo"] * 40) == 0
    assert "look tokenised" in capfd.readouterr().err


def test_gate(files: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    def gate(name: str, baseline: str | None = None, **changes: Any) -> tuple[int, str]:
        changes["baseline"] = files[baseline] if baseline else None
        code = run(ScoreOptions(files[name], references=(files["ref"],), **changes))
        captured = capfd.readouterr()
        assert captured.out.startswith(str(files[name]))
        assert captured.err.count("\n") == code
        return code, captured.err

    exact = evaluate(hypothesis=files["good"], references=[files["ref"]]).scores[0].score
    assert gate("good", fail_under=exact)[0] == 0
    code, err = gate("good", fail_under=exact + 1e-9)
    assert (code, "is below --fail-under" in err) == (1, True)
    code, err = gate("bad", "good", fail_if_worse=True)
    assert (code, "significantly worse than the baseline's" in err) == (1, True)
    assert gate("good", "bad", fail_if_worse=True)[0] == 0
    assert gate("bad", "good")[0] == 0
    assert gate("bad", "good", metrics=("ter",), fail_if_worse=True)[0] == 1


def test_details_segments_and_markdown(files: dict[str, Path], tmp_path: Path) -> None:
    evil = "a|b <img src=x> `c` \x1b[31m [x](http://y) @all"
    hypotheses = [evil, *files["good"].read_text().split("\n")[1:-1]]
    more: dict[str, Any] = {"source": files["src"], "baseline": files["good"], "segments": tmp_path / "segments.jsonl"}
    report = score.evaluate(ScoreOptions(references=(files["ref"],), details=True, language="de", **more), hypotheses)
    rows = [json.loads(line) for line in more["segments"].read_text().split("\n")[:-1]]
    assert [row["line"] for row in rows] == list(range(1, 41))
    assert rows[0]["hypothesis"] == evil
    assert rows[0]["chrf"] < rows[1]["chrf"] == rows[1]["baseline_chrf"]
    assert [group[0].line for group in report.extremes().values()] == [1, 40, 1, 40]
    assert report.changes() == (0, 1)
    assert report.lengths()[0] == {"words": "11 to 20", "segments": 40, "bleu": report.scores[0].score}
    markdown, text = report.markdown(), report.text()
    assert "\x1b" not in markdown + text
    assert r"a\|b &lt;img src=x>" in markdown
    assert r"\[x\](http" in markdown
    assert "0 better, 1 worse, 39 equal" in text
    assert all(line.count("|") - line.count("\\|") in (0, 3, 4, 5, 7) for line in markdown.split("\n"))


def test_json_is_complete_and_unrounded(
    files: dict[str, Path], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ScoreOptions(hypothesis=files["good"], references=(files["ref"],), format="json", fail_under=99.0)
    assert run(options) == 1
    ours = json.loads(capfd.readouterr().out)
    assert ours["scores"][0]["score"] != round(ours["scores"][0]["score"], 2)
    assert "tok:13a" in ours["scores"][0]["signature"]
    assert set(ours["versions"]) == {"nmt", "sacrebleu"}
    assert (ours["source"], len(ours["failures"])) == (None, 1)
    hashed = sha256(files["ref"].read_bytes()).hexdigest()
    assert ours["references"] == [{"name": str(files["ref"]), "lines": 40, "sha256": hashed}]
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="standard output is closed"):
        run(options)


@pytest.mark.skipif("NMT_CORPORA" not in os.environ, reason="NMT_CORPORA is not set")
def test_newstest2014_is_recognised() -> None:
    import pyarrow.parquet as parquet

    file = Path(os.environ["NMT_CORPORA"]) / "wmt14-mini" / "de-en" / "test-00000-of-00001.parquet"
    lines = [row["de"] for row in parquet.read_table(file)["translation"].to_pylist()]
    bleu, _ = metrics.score_lines("bleu", [line.rpartition(" ")[0] for line in lines], [lines])
    assert len(lines) == 3003
    assert 80 < bleu.score < 100
    assert bleu.details["ref_len"] == 62_688
    assert "28.6" in bleu.compare_with
    assert "28.6" not in metrics.comparable("bleu", "case:lc", 62_688, None)
    assert "27.3 (base) and 28.4 (big)" in metrics.comparable("paper-bleu", "case:mixed", 64_496, "de")
    assert "27.3" not in metrics.comparable("paper-bleu", "case:mixed", 64_495, "de")


def test_a_pipe_is_scored_and_torch_never_imported(files: dict[str, Path]) -> None:
    code = (
        "import sys; from pathlib import Path; from nmt_cli.scoring.score import *\n"
        "bad, reference = map(Path, sys.argv[1:])\n"
        "report = evaluate(ScoreOptions(references=(reference,), baseline=bad, language='de'))\n"
        "print_report(report, 'text')\n"
        "assert not {'torch', 'yaml', 'rich', 'datasets', 'accelerate'} & set(sys.modules), sorted(sys.modules)"
    )
    command = [sys.executable, "-c", code, str(files["bad"]), str(files["ref"])]
    root, data = Path(score.__file__).parents[2], files["good"].read_bytes()
    done = subprocess.run(command, check=True, capture_output=True, cwd=root, input=data)
    assert done.stdout.startswith(b"standard input against ")
