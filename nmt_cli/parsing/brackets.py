"""Compute labeled bracket precision, recall and F1 of linearized trees, as evalb does with COLLINS.prm.

Words that are punctuation in the gold tree are removed before spans are compared. Brackets that contain only
punctuation are removed as well. Brackets with the same label and span match one to one. Source: EVALB (Sekine and
Collins 1997), COLLINS.prm.

If a hypothesis is not a tree, or if its number of words differs from the gold tree, all gold brackets count as missed.
In contrast, evalb skips such a hypothesis. The linear form contains no words, so words are not compared.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from nmt_cli.parsing.trees import Phrase, spans
from nmt_cli.system.errors import DataError

PUNCTUATION = {",", ":", "``", "''", "."}
SIGNATURE = "evalb conventions|prm:COLLINS|unparsable:missed"


class Brackets(NamedTuple):
    """Counts for one sentence or for a whole corpus."""

    gold: int = 0
    found: int = 0  # brackets of hypotheses that are trees with the gold number of words
    matched: int = 0
    sentences: int = 0
    complete: int = 0  # hypotheses with exactly the gold brackets
    unparsable: int = 0  # hypotheses that are not trees
    wrong_length: int = 0  # hypotheses that are trees with a different number of words

    def scores(self) -> tuple[float, float, float]:
        """Return precision, recall and F1 in percent. A ratio with the denominator 0 counts as 0."""
        precision = 100 * self.matched / (self.found or 1)
        recall = 100 * self.matched / (self.gold or 1)
        return precision, recall, 200 * self.matched / (self.found + self.gold or 1)


def _brackets(phrases: list[Phrase], positions: Sequence[int]) -> Counter[Phrase]:
    """Count the brackets that are scored. `positions[i]` is the number of words before word i except punctuation."""
    return Counter(
        ("ADVP" if label == "PRT" else label, positions[first], positions[end])
        for label, first, end in phrases
        if label not in {"TOP", "-NONE-", *PUNCTUATION} and positions[first] < positions[end]
    )


def compare(hypothesis: str, gold: str) -> Brackets:
    """Count the brackets of a hypothesis and its gold tree, both in linear form.

    Raise ValueError if `gold` is not a tree.
    """
    phrases, gold_tags = spans(gold.split())
    positions = [0, *itertools.accumulate(tag not in PUNCTUATION for tag in gold_tags)]
    expected = _brackets(phrases, positions)
    try:
        phrases, tags = spans(hypothesis.split())
    except ValueError:
        return Brackets(expected.total(), sentences=1, unparsable=1)
    if len(tags) != len(gold_tags):
        return Brackets(expected.total(), sentences=1, wrong_length=1)
    found = _brackets(phrases, positions)
    matched = (found & expected).total()
    return Brackets(expected.total(), found.total(), matched, 1, int(found == expected))


def corpus_brackets(hypotheses: Sequence[str], gold: Sequence[str]) -> Brackets:
    """Return the counts of all sentences.

    Raise DataError if a gold line is not a tree, or if the gold lines have no brackets.
    """
    total = Brackets()
    for number, (line, tree) in enumerate(zip(hypotheses, gold, strict=True), 1):
        try:
            total = Brackets(*map(sum, zip(total, compare(line, tree), strict=True)))
        except ValueError as error:
            raise DataError(f"line {number:,} of the gold trees is not a linearized tree: {error}") from None
    if not total.gold:
        raise DataError(
            "the gold trees have no brackets. If they are sentences, pass their trees, bracketed or linearized"
        )
    return total
