"""Bracket F1 as evalb computes it. Every figure here was counted by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import texts

from nmt_cli.parsing.brackets import Brackets, compare, corpus_brackets
from nmt_cli.parsing.score import evaluate, wanted
from nmt_cli.scoring.score import ScoreOptions, print_report
from nmt_cli.storage import artefact, manifests
from nmt_cli.system.errors import DataError, UsageError

# (S (NP I) (VP saw (NP the man) (PP with (NP glasses))) .): S 0-6, NP 0-1, VP 1-6, NP 2-4, PP 4-6, NP 5-6
GOLD = "S NP PRP /NP VP VBD NP DT NN /NP PP IN NP NNS /NP /PP /VP . /S"
# The same with the prepositional phrase attached to the noun: S, NP 0-1, VP 1-6, NP 2-6, NP 2-4, PP 4-6, NP 5-6
ATTACHED = "S NP PRP /NP VP VBD NP NP DT NN /NP PP IN NP NNS /NP /PP /NP /VP . /S"


def counts(gold: int, found: int, matched: int, **more: int) -> Brackets:
    return Brackets(gold, found, matched, 1, **{"complete": int(gold == found == matched), **more})


@pytest.mark.parametrize(
    ("hypothesis", "gold", "expected"),
    [
        (GOLD, GOLD, counts(6, 6, 6)),
        (ATTACHED, GOLD, counts(6, 7, 6)),
        # Parts of speech are no brackets, and do not count. A wrong label costs precision and recall.
        (GOLD.replace("VBD", "NN").replace("PP", "SBAR"), GOLD, counts(6, 6, 5)),
        # TOP, punctuation and traces do not count, either.
        (f"TOP {GOLD} /TOP", GOLD, counts(6, 6, 6)),
        *((f"S {name} NN /{name} /S", "S NN /S", counts(1, 1, 1)) for name in ("-NONE-", ",", ":", "``", "''", ".")),
        ("S VB PRT RP /PRT /S", "S VB ADVP RB /ADVP /S", counts(2, 2, 2)),  # evalb treats them as one label
        # Two brackets of one label on one span match one each: S, NP, NP against S, NP.
        ("S NP NP NN /NP /NP /S", "S NP NN /NP /S", counts(2, 3, 2)),
        ("S NP NP NN /NP /NP /S", "S NP NP NN /NP /NP /S", counts(3, 3, 3)),
        # Punctuation is removed: its position does not matter, and a phrase of punctuation alone is no bracket.
        ("S `` NP NN /NP '' VP VB /VP : /S", "S NP `` NN '' /NP VP VB /VP : /S", counts(3, 3, 3)),
        ("S NP NN /NP PRN , /PRN VB /S", "S NP NN /NP , VB /S", counts(2, 2, 2)),
        # The gold tree decides which words are punctuation: "," is none here, so NP 0-1 and NP 0-2 differ.
        ("S NP NN , /NP VB /S", "S NP NN /NP CC VB /S", counts(2, 2, 1)),
        # No tree, or another number of words: all six are missed.
        (GOLD.replace(" /VP", ""), GOLD, counts(6, 0, 0, wrong_length=1)),
        (GOLD.replace("/PP /VP", "/VP /PP"), GOLD, counts(6, 0, 0, unparsable=1)),
        ("", GOLD, counts(6, 0, 0, wrong_length=1)),
    ],
)
def test_the_brackets_of_one_sentence(hypothesis: str, gold: str, expected: Brackets) -> None:
    assert compare(hypothesis, gold) == expected


def test_scores_of_a_corpus_divide_the_sums() -> None:
    total = corpus_brackets([GOLD, ATTACHED, "S S", ""], [GOLD, GOLD, "NP NN /NP", ""])
    # gold 6 + 6 + 1, found 6 + 7 + 0, matched 6 + 6 + 0; complete: the first and the empty one
    assert total == Brackets(13, 13, 12, 4, 2, 0, 1)
    assert total.scores() == pytest.approx((1200 / 13, 1200 / 13, 1200 / 13))
    assert corpus_brackets(["S VB /S"], ["S NP VB /NP /S"]).scores() == (100, 50, pytest.approx(200 / 3))
    assert corpus_brackets(["X"], ["S VB /S"]).scores() == (0, 0, 0)


def options_for(folder: Path, hypotheses: list[str], gold: list[str], **more: Any) -> ScoreOptions:
    files = texts.write(folder / "hyp", hypotheses), texts.write(folder / "gold", gold)
    return ScoreOptions(files[0], (files[1],), **{"metrics": ("brackets",), **more})


def test_the_command_scores_against_bracketed_trees(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    gold = [
        "( (S (NP-SBJ-1 (PRP I))\n  (VP (VBD saw) (NP (DT the) (NN man)) (PP-CLR (IN with) (NP (NNS glasses))))",
        "  (. .)) )",
        "(TOP (NP (NN rain)))",
    ]
    words = texts.write(
        tmp_path / "words", ["I saw the man with glasses !", "rain"]
    )  # different from the words of the trees
    more: dict[str, Any] = {"segments": tmp_path / "rows", "fail_under": 90, "source": words}
    options = options_for(tmp_path, [ATTACHED, "NN NN"], gold, **more)
    assert print_report(evaluate(options), "json") == 1  # 2 x 6 / (7 + 7) is 85.71
    (entry,) = json.loads(capfd.readouterr().out)["scores"]
    expected = {"score": 1200 / 14, "precision": 600 / 7, "recall": 600 / 7, "complete_match": 0}
    expected |= {"gold": 7, "found": 7, "matched": 6, "complete": 0, "unparsable": 0, "wrong_length": 1}
    assert {name: entry[name] for name in expected} == pytest.approx(expected)
    first, second = (json.loads(line) for line in (tmp_path / "rows").read_text().split("\n")[:2])
    assert first["tree"].endswith("(. !)))")
    assert (first["brackets"]["matched"], second["tree"]) == (6, None)
    spaced = texts.write(tmp_path / "spaced", ["I saw the man with glasses .", "a\u00a0b"])
    evaluate(options_for(tmp_path, [GOLD, "NP NN /NP"], gold, segments=tmp_path / "rows", source=spaced))
    assert json.loads((tmp_path / "rows").read_text().split("\n")[1])["tree"] == "(TOP (NP (NN a\u00a0b)))"
    better = evaluate(options, [ATTACHED, "NP NN /NP"])  # the lines of a model: 2 x 7 / (7 + 8)
    assert (better.failures, better.scores[0].signature) == ([], "evalb conventions|prm:COLLINS|unparsable:missed")
    spoilt = evaluate(options, [GOLD, "/X"]).scores[0].details
    assert (spoilt["unparsable"], spoilt["complete_match"]) == (1, 50), "a share of all sentences"
    assert "precision=87.5, recall=100.0, complete match=50.0, gold=7, found=8, matched=7" in better.text()


@pytest.mark.parametrize(
    ("hypotheses", "gold", "message"),
    [
        (["S NN /S"] * 2, ["(S", "(NN a))"], "line counts differ"),
        (["(S", "  (NN a))", "", "(S (NN b))"], ["(S", "  (NN a))", "(S (NN b))"], "hyp contains bracketed trees"),
        (["S NN /S"], ["S NN /NP"], "line 1 of the gold trees"),
        (["S NN /S"] * 3, ["S NN /S", "S NN /NP", "S NN /S"], "line 2 of the gold trees is not a linearized tree: /NP"),
        (["a cat"], ["a cat"], "the gold trees have no brackets"),
    ],
)
def test_input_that_cannot_be_scored_is_refused(
    tmp_path: Path, hypotheses: list[str], gold: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        evaluate(options_for(tmp_path, hypotheses, gold))


def test_a_corpus_of_labels_is_scored_by_its_brackets(tmp_path: Path) -> None:
    for language in ("labels", "de"):
        entries = {"src": "en", "tgt": language, "name": "own", "pairs": 1, "vocabulary_size": 9}
        with artefact.staged(tmp_path / language, "corpus", entries) as stage:
            for name in manifests.NEEDED["corpus"]:
                (stage / name).touch()
            texts.write(stage / "test.src", ["a"])
            texts.write(stage / "test.tgt", ["S NN /S"])
    options = ScoreOptions(corpus=tmp_path / "labels")
    for metrics in ((), ("brackets",)):
        with pytest.raises(UsageError, match="--robust damages text, not trees"):
            evaluate(ScoreOptions(corpus=tmp_path / "labels", robust=True, metrics=metrics))
    for wrong in ({"references": (tmp_path, tmp_path)}, {"baseline": tmp_path}, {"metrics": ("brackets", "bleu")}):
        with pytest.raises(UsageError, match="takes one --reference, no --baseline and no other --metric"):
            evaluate(ScoreOptions(corpus=tmp_path / "labels", **wrong))
    assert (wanted(options), evaluate(options, ["S NN /S"]).scores[0].score) == (True, 100)
    assert wanted(ScoreOptions(corpus=tmp_path / "de", metrics=("bleu", "brackets")))  # `evaluate` refuses it
    others = [ScoreOptions(corpus=tmp_path / "de"), ScoreOptions(corpus=tmp_path / "labels", metrics=("chrf",))]
    assert not any(wanted(options) for options in [*others, ScoreOptions(references=(tmp_path / "labels",))])
