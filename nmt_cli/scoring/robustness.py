"""Damage the source in ways that are common in typed text (case, final stops, typos), and score the translations."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from nmt_cli.corpus import damage, letter_case
from nmt_cli.corpus.tokenizer import without_first_tokens
from nmt_cli.scoring.metrics import METRICS, Score

SEED = 1  # random seed for the typos
AS_IT_IS = "as it is"
NOTE = (
    "Loss: how much worse the score is than that of the ideal translation. The ideal is the translation of the "
    "undamaged source, but in upper or title case like the source, and without a final stop if the source lost its "
    f"own. For the lower-cased source, case is ignored. Typos are in one of ten words (seed {SEED})."
)
Change = Callable[[str], str]
Translate = Callable[[list[str]], list[str]]
# Takes hypotheses, references, and whether to compute intervals; returns a score for each metric.
ScoreMetrics = Callable[[list[str], list[list[str]], bool], list[Score]]


@dataclass(frozen=True)
class Damage:
    """A way to damage the source, and the change that adapts the reference to it."""

    name: str
    of_source: Change
    of_target: Change
    changes_output: bool = False  # whether `of_target` is also applied to the translation


def damages(src: str, tgt: str) -> list[Damage]:
    """Return the kinds of damage for a language pair. A language is "" if it is unknown."""
    rng = random.Random(SEED)  # noqa: S311  # not for secrets

    def in_case(name: str, change: Callable[[str, str], str], *, changes_output: bool = False) -> Damage:
        return Damage(name, lambda line: change(line, src), lambda line: change(line, tgt), changes_output)

    return [
        in_case("lower case", letter_case.lower, changes_output=True),
        Damage("no final stop", damage.without_stop, damage.without_stop),
        Damage("typos", lambda line: damage.with_typos(line, rng), str),
        in_case("Title Case", letter_case.title),
        in_case("UPPER CASE", letter_case.upper),
    ]


def score_damaged(
    sources: list[str], references: list[list[str]], plain: list[str], translate: Translate,
    languages: tuple[str, str], score: ScoreMetrics, intervals: bool,
) -> list[dict[str, Any]]:  # fmt: skip
    """Damage the sources, translate them, and return a row for each kind of damage and each metric.

    `plain` contains the translations of the undamaged sources.
    """
    rows = [_row(AS_IT_IS, each, each) for each in score(plain, references, intervals)]
    for kind in damages(*languages):
        hypotheses = translate([_damaged(line, kind) for line in sources])
        if kind.changes_output:
            hypotheses = list(map(kind.of_target, hypotheses))
        expected = [list(map(kind.of_target, lines)) for lines in references]
        undamaged = score(list(map(kind.of_target, plain)), expected, False)
        rows += map(partial(_row, kind.name), score(hypotheses, expected, intervals), undamaged)
    return rows


def _damaged(line: str, kind: Damage) -> str:
    """Damage a source line. Keep tokens at its beginning, such as >>de<<, as they are."""
    text = without_first_tokens(line)
    return line[: len(line) - len(text)] + kind.of_source(text)


def _row(name: str, score: Score, undamaged: Score) -> dict[str, Any]:
    loss = undamaged.score - score.score
    return {
        "source": name,
        "metric": score.metric,
        "name": score.name,
        "score": score.score,
        "ci": score.ci,
        "undamaged": undamaged.score,
        "loss": -loss if score.metric == "ter" else loss,
        "signature": score.signature,
    }


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return the rows of a table, header first. A row has the scores and the losses for one kind of source."""
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    lines = [["source", *(cell for metric in metrics for cell in (METRICS[metric], "loss"))]]
    for name in dict.fromkeys(row["source"] for row in rows):
        line = [name]
        for row in rows:
            if row["source"] == name:
                interval = "" if row["ci"] is None else f" ± {row['ci']:.2f}"
                line += [
                    f"{row['score']:.2f}{interval}",
                    "" if name == AS_IT_IS else f"{round(row['loss'], 2) + 0:.2f}",
                ]
        lines.append(line)
    return lines
