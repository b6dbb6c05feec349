"""COMET runs as a program beside ours: a stand-in with its command line and its JSON, and what goes wrong."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from texts import write

from nmt_cli.errors import DataError, MissingError, NmtError, UsageError
from nmt_cli.scoring import score
from nmt_cli.scoring.report import Report
from nmt_cli.scoring.score import ScoreOptions

# As comet-score of unbabel-comet 2.2.7: a score is the share of the reference's letters that the translation has.
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
    assert "COMET of Unbabel/XCOMET-XL (see the model's card for its licence)" in named


def test_a_python_runs_the_module_of_unbabel_comet(files: dict[str, Path], tmp_path: Path) -> None:
    """Our own Python has no such module, and the error says how to get one."""
    with pytest.raises(
        DataError, match=r"failed with code 1: .*No module named 'comet'.*bin/pip install unbabel-comet"
    ):
        evaluate(files, Path(sys.executable))


@pytest.mark.parametrize(
    ("change", "more", "kind", "message"),
    [
        ("data = 3", {}, DataError, "wrote no scores that can be read"),
        ("data[options.translations[0]].pop()", {}, DataError, "did not score every one of 60 lines"),
        ("data[options.translations[0]][0]['COMET'] = float('nan')", {}, DataError, "did not score every one"),
        ("raise SystemExit('no model of that name')", {}, DataError, "code 1: no model of that name. Run it by hand"),
        ("", {"source": None}, UsageError, "needs the sources"),
        ("", {"comet_python": None}, UsageError, "needs --comet-python"),
        ("", {"comet_python": Path("nowhere/python")}, MissingError, "no Python or program nowhere/python"),
    ],
)
def test_what_goes_wrong_is_said(
    files: dict[str, Path], tmp_path: Path, change: str, more: dict[str, Any], kind: type[NmtError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        evaluate(files, program(tmp_path, change), **more)
