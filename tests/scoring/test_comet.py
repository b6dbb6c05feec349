"""COMET runs as a separate program. These tests use a stand-in with the same command line and JSON output."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from texts import write

from nmt_cli.scoring import score
from nmt_cli.scoring.score import ScoreOptions
from nmt_cli.scoring.score_report import Report
from nmt_cli.system.errors import DataError, MissingError, NmtError, UsageError

# The interface of comet-score 2.2.7. A score is the share of the reference's letters in the translation.
STAND_IN = """#!{python}
import argparse, json
parser = argparse.ArgumentParser()
for short, long in ("-s", "--sources"), ("-r", "--references"):
    parser.add_argument(short, long, required=True)
parser.add_argument("-t", "--translations", nargs="+")
parser.add_argument("--model", required=True)
parser.add_argument("--to_json", required=True)
parser.add_argument("--quiet", action="store_true")
parser.add_argument("--only_system", action="store_true")
options = parser.parse_args()
src, ref = ([x.strip() for x in open(f, encoding="utf-8")] for f in (options.sources, options.references))
data = {{}}
for name in options.translations:
    mt = [x.strip() for x in open(name, encoding="utf-8")]
    assert len(mt) == len(src) == len(ref)
    shares = [len(set(m) & set(r)) / max(1, len(set(r))) for m, r in zip(mt, ref)]
    data[name] = [dict(src=s, mt=m, ref=r, COMET=x) for s, m, r, x in zip(src, mt, ref, shares)]
{change}
json.dump(data, open(options.to_json, "w"))
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    reference = [f"Satz {'abcdefghij'[i % 10]} mit Nummer {i}" for i in range(60)]
    texts = {"ref": reference, "src": [f"source {i}" for i in range(60)], "good": [line[:-1] for line in reference]}
    texts["bad"] = [line[: 5 + i % 4] + "\r" for i, line in enumerate(reference)]
    return {name: write(tmp_path / name, lines) for name, lines in texts.items()}


def program(folder: Path, change: str = "") -> Path:
    file = folder / "comet-score"
    file.write_text(STAND_IN.format(python=sys.executable, change=change))
    file.chmod(0o755)
    return file


def evaluate(files: dict[str, Path], python: Path | None, **more: Any) -> Report:
    options: dict[str, Any] = {"source": files["src"], "references": (files["ref"],), "hypothesis": files["good"]}
    return score.evaluate(ScoreOptions(**{**options, "metrics": ("comet",), "comet_python": python, **more}))


def test_comet_is_scored_compared_and_gated_like_bleu(files: dict[str, Path], tmp_path: Path) -> None:
    segments = tmp_path / "segments.jsonl"
    report = evaluate(
        files, program(tmp_path), baseline=files["bad"], segments=segments, fail_under=99, fail_if_worse=True
    )
    (comet,) = report.scores
    rows = [json.loads(line)["comet"] for line in segments.read_text().splitlines()]
    assert comet.score == pytest.approx(sum(rows) / 60)
    pairs = zip(*(files[name].read_text().splitlines() for name in ("good", "ref")), strict=True)
    assert rows == pytest.approx([100 * len({*said} & {*wanted}) / len({*wanted}) for said, wanted in pairs])
    assert comet.mean == pytest.approx(comet.score, abs=1)
    assert 0 < (comet.ci or 0) < 5
    assert "|bs:1000|seed:12345|" in comet.signature
    assert "model:Unbabel/wmt22-comet-da" in comet.signature
    (compared,) = report.comparisons
    assert compared["difference"] > 10
    assert compared["p_bs"] < 0.05
    assert compared["p_ar"] < 0.05
    assert report.failures == [f"COMET {comet.score:.4f} is below --fail-under 99"]
    turned = evaluate(files, program(tmp_path), hypothesis=files["bad"], baseline=files["good"], fail_if_worse=True)
    assert "significantly worse" in turned.failures[0]
    named = evaluate(files, program(tmp_path), comet_model="Unbabel/XCOMET-XL").text()
    assert "COMET of Unbabel/XCOMET-XL, times 100, on the same test set (for its license," in named


def test_a_python_runs_unbabel_comets_module(files: dict[str, Path], tmp_path: Path) -> None:
    """The Python of the tests lacks this module, and the error tells how to install it."""
    said = r"failed with code 1: .*No module named 'comet'\)\. Run python .*bin/pip install unbabel-comet"
    for name in ("python", "python3", "python3.11"):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (tmp_path / name).chmod(0o755)
        with pytest.raises(DataError, match=said):
            evaluate(files, tmp_path / name)


@pytest.mark.parametrize(
    ("change", "more", "kind", "message"),
    [
        ("data = 3", {}, DataError, "wrote unreadable scores"),
        ("data[options.translations[0]].pop()", {}, DataError, "did not score all 60 lines"),
        ("data[options.translations[0]][0]['COMET'] = float('nan')", {}, DataError, "did not score all"),
        ("data[options.translations[0]][0]['COMET'] = float('inf')", {}, DataError, "did not score all"),
        ("raise SystemExit('no model of that name')", {}, DataError, "1: no model of that name. Run COMET by hand"),
        ("raise SystemExit('said before\\nlast ' + 300 * 'x')", {}, DataError, f"1: last {195 * 'x'}\\. Run COMET"),
        ("raise SystemExit", {}, DataError, r"failed with code 0: \. Run COMET by hand"),  # without an output file
        ("del data[options.translations[0]]", {}, DataError, "wrote unreadable scores .*system0"),
        ("data[options.translations[0]][0]['COMET'] = None", {}, DataError, "wrote unreadable scores"),
        ("", {"references": (Path("ref"), Path("ref"))}, UsageError, "needs the sources .* and one reference"),
        ("", {"source": None}, UsageError, "needs the sources"),
        ("", {"python": None}, UsageError, "needs --comet-python"),
        ("", {"python": Path("nowhere/python")}, MissingError, "--comet-python nowhere/python is not a file"),
    ],
)
def test_each_failure_is_one_error(
    files: dict[str, Path], tmp_path: Path, change: str, more: dict[str, Any], kind: type[NmtError], message: str
) -> None:
    more = {name: (files["ref"],) * 2 if name == "references" else value for name, value in more.items()}
    with pytest.raises(kind, match=message):
        evaluate(files, **{"python": program(tmp_path, change), **more})


def test_a_file_that_cannot_be_run_is_refused(files: dict[str, Path], tmp_path: Path) -> None:
    file = program(tmp_path)
    file.chmod(0o644)
    with pytest.raises(
        MissingError, match=r"cannot run .*comet-score \(--comet-python\): Permission denied\. Run python"
    ):
        evaluate(files, file)
    with pytest.raises(MissingError, match="is not a file"):
        evaluate(files, tmp_path)  # a directory


def test_the_program_gets_every_option(files: dict[str, Path], tmp_path: Path) -> None:
    """It gets sources, references, systems and the model's name. Carriage returns in the text become spaces."""
    change = """
said = [options.sources, options.references, *options.translations]
data["given"] = {name.rpartition("/")[2]: open(name, newline="").read() for name in said}
data["given"] |= {"model": options.model, "quiet": options.quiet, "only": options.only_system}
json.dump(data["given"], open(__file__ + ".given", "w"))
"""
    file = program(tmp_path, change)
    evaluate(files, file, baseline=files["bad"], comet_model="a/b", references=(files["ref"],), intervals=False)
    given = json.loads(Path(f"{file}.given").read_text())
    texts = {"source": "src", "reference": "ref", "system0": "good", "system1": "bad"}
    expected = {name: files[text].read_bytes().decode().replace("\r", " ") for name, text in texts.items()}
    assert given == {**expected, "model": "a/b", "quiet": True, "only": True}
    tagged = write(tmp_path / "tagged", [f">>de<< {line}" for line in files["src"].read_text().splitlines()])
    evaluate(files, file, baseline=files["bad"], source=tagged, intervals=False)
    assert json.loads(Path(f"{file}.given").read_text())["source"] == given["source"], "without tokens such as >>de<<"
