"""Bracket F1 as evalb counts it: every figure here was counted by hand."""

import json
from pathlib import Path

import pytest
import texts
from nmt_cli.scoring.inputs import ScoreOptions

from nmt_cli.errors import DataError, UsageError
from nmt_cli.parsing.brackets import Brackets, compare, corpus_brackets
from nmt_cli.scoring import score

# (S (NP I) (VP saw (NP the man) (PP with (NP glasses))) .): S 0-6, NP 0-1, VP 1-6, NP 2-4, PP 4-6, NP 5-6
GOLD = "S NP PRP /NP VP VBD NP DT NN /NP PP IN NP NNS /NP /PP /VP . /S"
# The same with the phrase at the noun: S, NP 0-1, VP 1-6, NP 2-6, NP 2-4, PP 4-6, NP 5-6
ATTACHED = "S NP PRP /NP VP VBD NP NP DT NN /NP PP IN NP NNS /NP /PP /NP /VP . /S"


def counts(gold: int, found: int, matched: int, **more: int) -> Brackets:
    return Brackets(gold, found, matched, 1, **{"complete": int(gold == found == matched), **more})


@pytest.mark.parametrize(
    ("hypothesis", "gold", "expected"),
    [
        (GOLD, GOLD, counts(6, 6, 6)),
        (ATTACHED, GOLD, counts(6, 7, 6)),
        (GOLD, ATTACHED, counts(7, 6, 6)),
        # Parts of speech are no brackets, and a wrong one costs nothing.
        (GOLD.replace("VBD", "NN").replace("IN", "XX"), GOLD, counts(6, 6, 6)),
        # A wrong label is missed and found for nothing.
        (GOLD.replace("PP", "SBAR"), GOLD, counts(6, 6, 5)),
        # TOP is none either, on whichever side it stands.
        (f"TOP {GOLD} /TOP", GOLD, counts(6, 6, 6)),
        # ADVP and PRT are one label.
        ("S VB PRT RP /PRT /S", "S VB ADVP RB /ADVP /S", counts(2, 2, 2)),
        # Two brackets of one label on one span match one each: S, NP, NP against S, NP.
        ("S NP NP NN /NP /NP /S", "S NP NN /NP /S", counts(2, 3, 2)),
        ("S NP NN /NP /S", "S NP NP NN /NP /NP /S", counts(3, 2, 2)),
        # Punctuation is left out: wherever it hangs, the spans are the same; a phrase of nothing else is no bracket.
        ("S NP NN , /NP VP VB /VP . /S", "S NP NN /NP , VP VB . /VP /S", counts(3, 3, 3)),
        ("S NP NN /NP PRN : /PRN VP VB /VP /S", "S NP NN /NP : VP VB /VP /S", counts(3, 3, 3)),
        ("S `` NP NN /NP '' VP VB /VP . /S", "S NP `` NN '' /NP VP VB /VP . /S", counts(3, 3, 3)),
        # The gold tree says what is punctuation: "," is none here, so NP 0-1 and NP 0-2 differ.
        ("S NP NN , /NP VB /S", "S NP NN /NP CC VB /S", counts(2, 2, 1)),
        # -LRB- is a word like others.
        ("S NP NN -LRB- /NP VB /S", "S NP NN /NP -LRB- VB /S", counts(2, 2, 1)),
        # No tree, or another number of words: all six are missed and none found.
        (GOLD.replace(" /VP", ""), GOLD, counts(6, 0, 0, wrong_length=1)),
        (GOLD.replace("/PP /VP", "/VP /PP"), GOLD, counts(6, 0, 0, unparsable=1)),
        ("", GOLD, counts(6, 0, 0, wrong_length=1)),
        (GOLD.replace("DT NN", "NN"), GOLD, counts(6, 0, 0, wrong_length=1)),
        ("", "", counts(0, 0, 0)),
    ],
)
def test_the_brackets_of_one_sentence(hypothesis: str, gold: str, expected: Brackets) -> None:
    assert compare(hypothesis, gold) == expected


def test_the_brackets_of_a_corpus_are_summed_before_they_are_divided() -> None:
    found = corpus_brackets([GOLD, ATTACHED, "S S", ""], [GOLD, GOLD, "NP NN /NP", ""])
    # gold 6 + 6 + 1, found 6 + 7 + 0, matched 6 + 6 + 0; complete: the first and the empty one
    assert found == Brackets(13, 13, 12, 4, 2, 0, 1)
    assert (found.precision, found.recall, found.f1) == pytest.approx((1200 / 13, 1200 / 13, 1200 / 13))
    found = corpus_brackets([ATTACHED, "S S /S"], [GOLD, "NP NN /NP"])
    assert found == Brackets(7, 7, 6, 2, 0, 1, 0)
    found = corpus_brackets(["S VB /S"], ["S NP VB /NP /S"])
    assert (found.precision, found.recall, found.f1) == (100, 50, pytest.approx(200 / 3))


def test_nothing_right_is_zero_and_no_error() -> None:
    found = corpus_brackets(["X"], ["S VB /S"])
    assert (found.precision, found.recall, found.f1) == (0, 0, 0)


@pytest.mark.parametrize(
    ("hypotheses", "gold"),
    [([], []), (["S A /S"], ["S A /S"] * 2), (["NN"], ["S NP VB /S /NP"]), (["a cat"], ["a cat"])],
)
def test_what_cannot_be_scored(hypotheses: list[str], gold: list[str]) -> None:
    with pytest.raises(DataError):
        corpus_brackets(hypotheses, gold)


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_scores_against_bracketed_trees(tmp_path: Path) -> None:
    trees = [
        "( (S (NP-SBJ-1 (PRP I))\n  (VP (VBD saw) (NP (DT the) (NN man)) (PP-CLR (IN with) (NP (NNS glasses))))",
        "  (. .)) )",
        "(TOP (NP (NN rain)))",
    ]
    gold, hypothesis = texts.write(tmp_path / "gold.mrg", trees), texts.write(tmp_path / "hyp", [ATTACHED, "NN NN"])
    rows = tmp_path / "rows"
    done = texts.nmt(
        "score", hypothesis, "--reference", gold, "--metric", "brackets", "--format", "json", "--segments", rows,
        "--fail-under", 90,
    )  # fmt: skip
    assert done.returncode == 1  # 2 x 6 / (7 + 7) is 85.71
    (entry,) = json.loads(done.stdout)["scores"]
    assert entry["score"] == pytest.approx(1200 / 14)
    assert (entry["precision"], entry["recall"]) == (pytest.approx(600 / 7), pytest.approx(600 / 7))
    assert (entry["gold"], entry["found"], entry["matched"], entry["complete"]) == (7, 7, 6, 0)
    assert (entry["unparsable"], entry["wrong_length"], entry["complete_match"]) == (0, 1, 0)
    first, second = (json.loads(line) for line in rows.read_text().split("\n")[:2])
    assert first["tree"].startswith("(TOP (S (NP (PRP I)) (VP (VBD saw) (NP (NP (DT the)")
    assert (first["brackets"]["matched"], second["tree"]) == (6, None)


def test_linear_gold_scores_the_same_and_the_text_says_how_failures_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold, hypothesis = texts.write(tmp_path / "gold", [GOLD] * 2), texts.write(tmp_path / "hyp", [ATTACHED, "S S /S"])
    for format in ("text", "markdown"):
        options = ScoreOptions(hypothesis, (gold,), metrics=("brackets",), format=format, details=True)
        assert score.score_command(options) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "63.16" in said  # 2 x 6 / (12 + 7)
        assert "precision=85.71, recall=50.00, matched=6, gold=12, found=7" in said
        assert "not a tree=1, wrong number of words=0" in said
        assert "has all its gold brackets missed" in said


def test_counts_of_lines_that_differ(tmp_path: Path) -> None:
    gold = texts.write(tmp_path / "gold.mrg", ["(S", "(NN a))"])
    hypothesis = texts.write(tmp_path / "hyp", ["S NN /S"] * 2)
    with pytest.raises(DataError, match="line counts differ"):
        score.evaluate(ScoreOptions(hypothesis, (gold,), metrics=("brackets",)))


def test_hypotheses_in_brackets_are_refused_and_not_scored_as_failures(tmp_path: Path) -> None:
    gold = texts.write(tmp_path / "gold.mrg", ["(S", "  (NN a))", "(S (NN b))"])
    for lines in (["(S (NN a))", "(S (NN b))"], ["(S", "  (NN a))", "", "(S (NN b))"]):
        hypothesis = texts.write(tmp_path / "hyp", lines)
        with pytest.raises(DataError, match="hyp holds trees in brackets"):
            score.evaluate(ScoreOptions(hypothesis, (gold,), metrics=("brackets",)))


def test_gold_that_is_no_tree(tmp_path: Path) -> None:
    hypothesis = texts.write(tmp_path / "hyp", ["S NN /S"])
    for line, message in (("(S (NN a)", "1 of its brackets"), ("S NN /NP", "line 1 of the gold trees")):
        gold = texts.write(tmp_path / "gold", [line])
        with pytest.raises(DataError, match=message):
            score.evaluate(ScoreOptions(hypothesis, (gold,), metrics=("brackets",)))


def test_options_that_mean_nothing_for_brackets(tmp_path: Path) -> None:
    file = texts.write(tmp_path / "gold", [GOLD])
    for options in (
        ScoreOptions(file, (file, file), metrics=("brackets",)),
        ScoreOptions(file, (file,), metrics=("brackets",), baseline=file),
    ):
        with pytest.raises(UsageError, match="takes one --reference and no --baseline"):
            score.evaluate(options)
