"""Scores of damaged sources: several metrics, several references, and each language's rules."""

from typing import Any

import pytest

from nmt_cli.scoring.metrics import Score
from nmt_cli.scoring.robustness import AS_IT_IS, damages, score_damaged, table

SOURCES = ["Iyi dir. I", "B c."]
REFERENCES = [["Ein Ijs. IX", "x."], ["Other", "y"]]


def scored(intervals: bool) -> tuple[list[dict[str, Any]], list[tuple[list[str], list[list[str]], bool]]]:
    """Return the rows and the calls of a metric that counts capital letters, once as BLEU and, doubled, as TER."""
    calls = list[tuple[list[str], list[list[str]], bool]]()

    def score(hypotheses: list[str], references: list[list[str]], wanted: bool) -> list[Score]:
        calls.append((hypotheses, references, wanted))
        value = float(sum(letter.isupper() for line in hypotheses for letter in line))
        return [
            Score(name, name.upper(), value * factor, f"of {name}", {}, "", ci=1.5 if wanted else None)
            for name, factor in (("bleu", 1), ("ter", 2))
        ]

    def translate(lines: list[str]) -> list[str]:
        return [line.replace("I", "i").replace("İ", "i") for line in lines]

    rows = score_damaged(SOURCES, REFERENCES, ["Ab. C", "D."], translate, ("tr", "nl"), score, intervals)
    return rows, calls


def test_each_damage_has_a_row_for_each_metric() -> None:
    rows, calls = scored(True)
    names = [AS_IT_IS, "lower case", "no final stop", "typos", "Title Case", "UPPER CASE"]
    assert [row["source"] for row in rows] == [name for name in names for _ in "12"]
    assert [row["metric"] for row in rows] == ["bleu", "ter"] * 6
    assert {row["signature"] for row in rows if row["metric"] == "ter"} == {"of ter"}
    assert all(row["ci"] == 1.5 for row in rows)
    for row in rows:
        loss = row["undamaged"] - row["score"]
        assert row["loss"] == (-loss if row["metric"] == "ter" else loss)
    assert [(row["score"], row["undamaged"], row["loss"]) for row in rows[-2:]] == [(5, 4, -1), (10, 8, 2)]
    assert [wanted for _, _, wanted in calls] == [True, *[False, True] * 5], (
        "intervals are for the scores that are shown"
    )


def test_every_reference_is_changed_by_the_rules_of_its_language() -> None:
    _, calls = scored(False)
    assert calls[0][:2] == (["Ab. C", "D."], REFERENCES)
    undamaged, damaged = calls[1::2], calls[2::2]
    changed = [call[1] for call in damaged]
    assert changed == [call[1] for call in undamaged]
    assert changed == [
        [["ein ijs. ix", "x."], ["other", "y"]],
        [["Ein Ijs. IX", "x"], ["Other", "y"]],
        REFERENCES,
        [["Ein IJs. IX", "X."], ["Other", "Y"]],
        [["EIN IJS. IX", "X."], ["OTHER", "Y"]],
    ]
    assert [call[0] for call in undamaged] == [
        ["ab. c", "d."], ["Ab. C", "D"], ["Ab. C", "D."], ["Ab. C", "D."], ["AB. C", "D."],
    ]  # fmt: skip
    lower, stops, _, title, upper = (call[0] for call in damaged)
    assert (lower, stops) == (["ıyi dir. ı", "b c."], ["iyi dir. i", "B c"])
    assert (title, upper) == (["iyi Dir. i", "B C."], ["iYi DiR. i", "B C."])
    assert not any(wanted for _, _, wanted in calls)


def test_typos_are_the_same_in_each_run() -> None:
    def typos() -> list[str]:
        [kind] = [kind for kind in damages("en", "de") if kind.name == "typos"]
        return [kind.of_source("hundred words of the same sentence follow each other here") for _ in range(30)]

    assert typos() == typos()
    assert len({*typos()}) > 10, "but they differ from line to line"


@pytest.mark.parametrize(("loss", "shown"), [(0.126, "0.13"), (-0.004, "0.00"), (-2.5, "-2.50"), (0.0, "0.00")])
def test_the_table_has_a_score_and_a_loss_for_each_metric(loss: float, shown: str) -> None:
    rows = [
        {"source": name, "metric": metric, "score": 12.345, "ci": ci, "loss": loss}
        for name in (AS_IT_IS, "typos")
        for metric, ci in (("bleu", 0.5), ("chrf", None))
    ]
    assert table(rows) == [
        ["source", "BLEU", "loss", "chrF2", "loss"],
        [AS_IT_IS, "12.35 ± 0.50", "", "12.35", ""],
        ["typos", "12.35 ± 0.50", shown, "12.35", shown],
    ]
