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
from nmt_cli.scoring.inputs import ScoreOptions

from nmt_cli import artefact
from nmt_cli.errors import DataError, DownloadError, MissingError, NmtError, OutputError, UsageError
from nmt_cli.scoring import report, score
from nmt_cli.scoring.paper_bleu import paper_bleu

# Words that lines and tokenizers break at, between ordinary ones.
WORDS = [
    "the",
    "cat,",
    "on",
    "«a»",
    "mat.",
    "Größe",
    "3,5",
    "it's",
    "(x-y)",
    "...",
    "„gut“",
    "&amp;",
    "!?",
    "中文",
    "U.S.",
]
WORDS += ["$5", "''", "%", "", "\u00a0", "a\u2028b", "c\u0085d", "e\rf", "\r", "g\x0bh", "\x1c"]


def random_lines(rng: random.Random, count: int) -> list[str]:
    return [" ".join(rng.choices(WORDS, k=rng.choice((0, 1, 3, 8, 15)))) for _ in range(count)]


def spoiled(rng: random.Random, lines: list[str], rate: float) -> list[str]:
    return [" ".join(w if rng.random() > rate else rng.choice(WORDS) for w in line.split(" ")) for line in lines]


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Four sentences, a source and two systems: one good, one bad."""
    reference = [f"Das ist der kurze Satz Nummer {i}, und er endet hier." for i in range(40)]
    return {
        "ref": write(tmp_path / "ref", reference),
        "src": write(tmp_path / "src", [f"This is sentence {i}." for i in range(40)]),
        "good": write(tmp_path / "good", [line.replace("kurze ", "") for line in reference]),
        "bad": write(
            tmp_path / "bad", ["", "This is sentence 1.", *(line[: 20 + i] for i, line in enumerate(reference[2:]))]
        ),
    }


def found(**changes: Any) -> dict[str, Any]:
    changes["references"] = tuple(changes.get("references", ()))
    return score.evaluate(ScoreOptions(**changes))


def test_fifty_random_files_equal_the_sacrebleu_command(tmp_path: Path) -> None:
    rng = random.Random(5)
    for group in range(5):
        lines = random_lines(rng, 30)
        reference = write(tmp_path / f"ref{group}", lines)
        systems = [write(tmp_path / f"hyp{group}-{i}", spoiled(rng, lines, i / 10)) for i in range(10)]
        command = [sys.executable, "-m", "sacrebleu", str(reference), "-m", "bleu", "chrf", "ter", "-w", "6", "-i"]
        output = subprocess.run([*command, *map(str, systems)], capture_output=True, check=True).stdout
        for path, expected in zip(systems, json.loads(output), strict=True):
            ours = found(hypothesis=path, references=[reference], metrics=("bleu", "chrf", "ter"))
            assert {s["name"]: f"{s['score']:.6f}" for s in ours["scores"]} == {
                name: value for name, value in expected.items() if name != "system"
            }


def test_signatures_equal_the_sacrebleu_command(files: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "sacrebleu", str(files["ref"]), str(files["good"]), "-i", str(files["bad"])]
    output = subprocess.run([*command, "-m", "bleu", "chrf", "ter"], capture_output=True, check=True).stdout
    ours = found(hypothesis=files["bad"], references=[files["ref"], files["good"]], metrics=("bleu", "chrf", "ter"))
    assert [s["signature"] for s in ours["scores"]] == [s["signature"] for s in json.loads(output)]


def test_several_metrics_and_library_functions_agree(files: dict[str, Path]) -> None:
    hypotheses, reference = (files[name].read_text().split("\n")[:-1] for name in ("good", "ref"))
    ours = {s["metric"]: s for s in found(hypothesis=files["good"], references=[files["ref"]], language="de")["scores"]}
    assert list(ours) == ["bleu", "chrf", "paper-bleu"]
    assert score.corpus_bleu(hypotheses, reference) == (ours["bleu"]["score"], ours["bleu"]["signature"])
    assert score.corpus_chrf(hypotheses, reference) == (ours["chrf"]["score"], ours["chrf"]["signature"])
    assert paper_bleu(hypotheses, reference, language="de").score == ours["paper-bleu"]["score"]
    with pytest.raises(DataError, match="2 hypotheses against 1"):
        score.corpus_bleu(["a", "b"], ["a"])
    with pytest.raises(DataError, match="0 hypotheses"):
        score.corpus_bleu([], [])


def test_standard_input_memory_and_file_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = ["a\rb \x0b c", "d\u0085e \u2028 f g h", "", "i\r", "\u00a0"]
    path, reference = write(tmp_path / "hyp", lines), write(tmp_path / "ref", [line + " x" for line in lines])
    results = [found(hypothesis=path, references=[reference])]
    for name in (None, Path("-")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
        results.append(found(hypothesis=name, references=[reference]))
    results.append(score.evaluate(ScoreOptions(references=(reference,)), lines))
    assert len({json.dumps(result["scores"]) for result in results}) == 1
    assert {result["hypotheses"]["sha256"] for result in results} == {sha256(path.read_bytes()).hexdigest()}
    assert {result["hypotheses"]["lines"] for result in results} == {5}
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(MissingError, match="standard input is closed"):
        found(references=[reference])


@pytest.mark.parametrize(
    ("hypothesis", "reference", "error", "message"),
    [
        (b"a\nb\n", b"a\n", DataError, r"line counts differ .*hyp: 2.*ref: 1"),
        (b"a\n", b"a\nb", DataError, r"line counts differ .*hyp: 1.*ref: 2"),
        (b"", b"a\n", DataError, r"hyp: 0.*ref: 1"),
        (b"", b"", DataError, "nothing to score"),
        (b"\n\n", b"\n\n", DataError, "nothing to score"),
        (b"a\nb\xff\n", b"a\nb\n", DataError, "hyp, line 2 is not UTF-8"),
        (b"a\nb\n", b"\xed\xa0\x80\nb\n", DataError, "ref, line 1 is not UTF-8"),
    ],
)
def test_refuses_data(tmp_path: Path, hypothesis: bytes, reference: bytes, error: type[NmtError], message: str) -> None:
    (tmp_path / "hyp").write_bytes(hypothesis)
    (tmp_path / "ref").write_bytes(reference)
    with pytest.raises(error, match=message) as caught:
        found(hypothesis=tmp_path / "hyp", references=[tmp_path / "ref"])
    assert caught.value.exit_code == 65
    assert "\n" not in str(caught.value)


def test_blank_hypotheses_are_scored_and_counted(files: dict[str, Path]) -> None:
    ours = found(hypothesis=files["bad"], references=[files["ref"]], source=files["src"])
    assert (ours["empty"], ours["copies"]) == (1, 1)
    assert "40 lines, 1 empty, 1 copied from the source" in report.text(ours)
    blank = write(files["ref"].parent / "blank", [""] * 40)
    for entry in found(hypothesis=blank, references=[files["ref"]], language="de")["scores"]:
        assert entry["score"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one way"),
        ({"references": ["r"], "corpus": Path("c")}, "one way"),
        ({"references": ["r"], "metrics": ("blue",)}, "--metric must be one of bleu, chrf"),
        ({"references": ["r"], "format": "xml"}, "--format"),
        ({"references": ["r"], "tokenize": "14a"}, "--tokenize"),
        ({"references": ["r"], "fail_under": float("nan")}, "--fail-under must be between"),
        ({"references": ["r"], "fail_under": 101.0}, "--fail-under must be between"),
        ({"references": ["r"], "fail_under": 5.0, "metrics": ("ter",)}, "error rate"),
        ({"references": ["r"], "fail_if_worse": True}, "needs --baseline"),
    ],
)
def test_refuses_options_before_reading(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        found(**options)
    assert caught.value.exit_code == 2


def test_missing_files_and_languages(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="nowhere"):
        found(hypothesis=tmp_path / "nowhere", references=[files["ref"]])
    with pytest.raises(MissingError):
        found(hypothesis=tmp_path, references=[files["ref"]])
    for language in (None, "cs"):
        with pytest.raises(UsageError, match="--language: one of de, en, fr"):
            found(hypothesis=files["good"], references=[files["ref"]], metrics=("paper-bleu",), language=language)


def test_prepared_corpus(files: dict[str, Path], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    with artefact.staged(corpus, "corpus", {"src": "en", "tgt": "de", "name": "mine"}) as stage:
        for side, name in (("src", "src"), ("tgt", "ref")):
            (stage / f"test.{side}").write_bytes(files[name].read_bytes())
    ours = found(hypothesis=files["good"], corpus=corpus)
    assert ours["language"] == "de"
    assert [s["metric"] for s in ours["scores"]] == ["bleu", "chrf", "paper-bleu"]
    assert ours["copies"] == 0
    assert score.source_lines(ScoreOptions(corpus=corpus))[1] == "This is sentence 1."
    with pytest.raises(MissingError, match=r"no dev\.src"):
        found(hypothesis=files["good"], corpus=corpus, split="dev")
    with pytest.raises(MissingError, match="nmt prepare other"):
        found(hypothesis=files["good"], corpus=tmp_path / "other")
    with pytest.raises(UsageError, match="--model needs"):
        score.source_lines(ScoreOptions(references=(files["ref"],)))
    flipped = bytearray((corpus / "test.tgt").read_bytes())
    flipped[3] ^= 1
    (corpus / "test.tgt").write_bytes(flipped)
    with pytest.raises(DataError, match=r"test\.tgt is damaged"):
        found(hypothesis=files["good"], corpus=corpus)


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
    with pytest.raises(DownloadError, match=r"wmt14/full en-de .*test-full\.tgz.*no network.*--reference") as caught:
        found(hypothesis=files["good"], test_set="wmt14/full", language_pair="en-de")
    assert caught.value.exit_code == 69
    with pytest.raises(UsageError, match="Did you mean wmt14/full"):
        found(test_set="wmt14full", language_pair="en-de")
    with pytest.raises(UsageError, match="one of cs-en, de-en"):
        found(test_set="wmt14", language_pair="en-xx")
    for field, name in (("src", "src"), ("ref", "ref"), ("docid", "src"), ("genre", "src"), ("origlang", "src")):
        write(tmp_path / "wmt14" / f"wmt14.en-de.{field}", files[name].read_text().split("\n")[:-1])
    ours = found(hypothesis=files["good"], test_set="wmt14", language_pair="en-de")
    assert [s["metric"] for s in ours["scores"]] == ["bleu", "chrf", "paper-bleu"]
    assert "filtered" in ours["warnings"][0]
    assert "wmt14/full" in ours["warnings"][0]


@pytest.mark.parametrize("line", ["Das ist gut .", "l&apos; homme", "Hal@@ lo", "▁Hallo ▁Welt", "a @-@ b"])
def test_warns_of_tokenised_hypotheses(files: dict[str, Path], line: str, capfd: pytest.CaptureFixture[str]) -> None:
    options = ScoreOptions(references=(files["ref"],))
    assert score.score_command(options, [line] * 40) == 0
    captured = capfd.readouterr()
    assert "40 of 40 hypotheses look tokenised" in captured.err
    assert "tokenised (" not in captured.out
    score.score_command(options, ["Das ist gut: 3.5 %, z. B. & so!"] * 40)
    assert capfd.readouterr().err == ""


def test_gate(files: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    def run(**changes: Any) -> tuple[int, str]:
        code = score.score_command(ScoreOptions(references=(files["ref"],), **changes))
        captured = capfd.readouterr()
        assert captured.out.startswith(str(changes["hypothesis"]))
        return code, captured.err

    exact = found(hypothesis=files["good"], references=[files["ref"]])["scores"][0]["score"]
    assert run(hypothesis=files["good"], fail_under=exact) == (0, "")
    code, err = run(hypothesis=files["good"], fail_under=exact + 1e-9)
    assert code == 1
    assert "is below --fail-under" in err
    assert err.count("\n") == 1
    code, err = run(hypothesis=files["bad"], baseline=files["good"], fail_if_worse=True)
    assert code == 1
    assert "significantly worse than the baseline's" in err
    assert run(hypothesis=files["good"], baseline=files["bad"], fail_if_worse=True) == (0, "")
    assert run(hypothesis=files["good"], baseline=files["good"], fail_if_worse=True) == (0, "")
    assert run(hypothesis=files["bad"], baseline=files["good"])[0] == 0
    assert run(hypothesis=files["bad"], baseline=files["good"], metrics=("ter",), fail_if_worse=True)[0] == 1


def test_significance_equals_the_sacrebleu_command(files: dict[str, Path]) -> None:
    systems = [str(files["good"]), str(files["bad"])]
    for flag, key in (("--paired-bs", "p_bs"), ("--paired-ar", "p_ar")):
        command = [sys.executable, "-m", "sacrebleu", str(files["ref"]), flag, "-f", "json", "-w", "4", "-i", *systems]
        theirs = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        ours = found(hypothesis=files["bad"], baseline=files["good"], references=[files["ref"]])["comparisons"][0]
        assert f"{ours[key]:.4f}" == f"{theirs[1]['BLEU']['p_value']:.4f}"
        assert f"{ours['score']:.4f}" == f"{theirs[1]['BLEU']['score']:.4f}"
        if key == "p_bs":
            assert f"{ours['score_ci']:.4f}" == f"{theirs[1]['BLEU']['ci']:.4f}"


def test_details_segments_and_markdown(files: dict[str, Path], tmp_path: Path) -> None:
    evil = "a|b <img src=x> `c` \x1b[31m [x](http://y) @all"
    hypotheses = [evil, *files["good"].read_text().split("\n")[1:-1]]
    target = tmp_path / "segments.jsonl"
    options = ScoreOptions(
        references=(files["ref"],),
        source=files["src"],
        baseline=files["good"],
        details=True,
        segments=target,
        language="de",
    )
    ours = score.evaluate(options, hypotheses)
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["line"] for row in rows] == list(range(1, 41))
    assert rows[0]["hypothesis"] == evil
    assert rows[0]["chrf"] < rows[1]["chrf"] == rows[1]["baseline_chrf"]
    assert ours["worst"][0]["line"] == ours["lost"][0]["line"] == 1
    assert (ours["wins"], ours["losses"]) == (0, 1)
    assert [(row["words"], row["segments"]) for row in ours["lengths"]] == [("11 to 20", 40)]
    assert ours["lengths"][0]["bleu"] == ours["scores"][0]["score"]
    markdown, text = report.markdown(ours), report.text(ours)
    assert "\x1b" not in markdown + text
    assert r"a\|b &lt;img src=x>" in markdown
    assert r"\[x\](http" in markdown
    assert "0 better, 1 worse, 39 equal" in text
    assert all(line.count("|") - line.count("\\|") in (0, 3, 4, 5, 7) for line in markdown.splitlines())


def test_json_is_complete_and_unrounded(files: dict[str, Path], capfd: pytest.CaptureFixture[str]) -> None:
    options = ScoreOptions(hypothesis=files["good"], references=(files["ref"],), format="json", fail_under=99.0)
    assert score.score_command(options) == 1
    ours = json.loads(capfd.readouterr().out)
    assert ours["scores"][0]["score"] != round(ours["scores"][0]["score"], 2)
    assert "tok:13a" in ours["scores"][0]["signature"]
    assert set(ours["versions"]) == {"nmt", "sacrebleu"}
    assert ours["references"] == [
        {"name": str(files["ref"]), "lines": 40, "sha256": sha256(files["ref"].read_bytes()).hexdigest()}
    ]
    assert ours["failures"]


def test_closed_standard_output(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="standard output is closed"):
        score.score_command(ScoreOptions(hypothesis=files["good"], references=(files["ref"],)))


def test_says_what_a_number_compares_with() -> None:
    full = {"metric": "paper-bleu", "ref_len": 64_496, "signature": "case:mixed"}
    assert "27.3 (base) and 28.4 (big)" in report.comparable(full, "de")
    assert "27.3" not in report.comparable(full | {"ref_len": 64_495}, "de")
    assert "Not with sacreBLEU" in report.comparable(full | {"ref_len": 10}, "de")
    bleu = {"metric": "bleu", "ref_len": 62_688, "signature": "case:mixed"}
    assert "28.6" in report.comparable(bleu, None)
    assert "28.6" not in report.comparable(bleu | {"signature": "case:lc"}, None)


def test_warns_of_the_filtered_test_set(tmp_path: Path) -> None:
    path = write(tmp_path / "lines", ["a"] * 2737)
    assert (
        "filtered newstest2014"
        in found(hypothesis=path, references=[path], metrics=("paper-bleu",), language="de")["warnings"][0]
    )


@pytest.mark.skipif("NMT_CORPORA" not in os.environ, reason="NMT_CORPORA is not set")
def test_newstest2014_is_recognised() -> None:
    import pyarrow.parquet as parquet

    file = Path(os.environ["NMT_CORPORA"]) / "wmt14-mini" / "de-en" / "test-00000-of-00001.parquet"
    lines = [row["de"] for row in parquet.read_table(file)["translation"].to_pylist()]
    hypotheses = [line.rpartition(" ")[0] for line in lines]
    assert len(lines) == 3003
    score_bleu, _ = score.corpus_bleu(hypotheses, lines)
    assert 80 < score_bleu < 100
    metric = score._metric("bleu", [lines], ScoreOptions())
    assert metric.corpus_score(hypotheses, None).ref_len == 62_688


def test_torch_is_never_imported(files: dict[str, Path]) -> None:
    code = (
        "import sys; from pathlib import Path; from nmt_cli.scoring.score import *\n"
        "good, bad, reference = map(Path, sys.argv[1:])\n"
        "score_command(ScoreOptions(hypothesis=good, references=(reference,), baseline=bad, language='de'))\n"
        "assert not {'torch', 'yaml', 'rich', 'datasets', 'accelerate'} & set(sys.modules), sorted(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(score.__file__).parents[2])}
    paths = [str(files[name]) for name in ("good", "bad", "ref")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True, capture_output=True, env=environment)
