"""Compute labeled bracket precision, recall and F1 of linearized trees, as evalb does with COLLINS.prm.

Words that are punctuation in the gold tree are removed before spans are compared, and so are brackets that contain
only such words. Brackets with the same label and span match one to one. Source: EVALB (Sekine and Collins 1997),
COLLINS.prm.

If a hypothesis is not a tree, or has a different number of words, all gold brackets count as missed. evalb skips such
hypotheses. The linear form contains no words, so words are not compared.
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
    """Counts for a sentence, or sums of counts."""

    gold: int = 0
    found: int = 0  # brackets of hypotheses with the right number of words
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
    """Count the brackets that are scored. `positions` maps word indexes to positions that do not count punctuation."""
    return Counter(
        ("ADVP" if label == "PRT" else label, positions[first], positions[end])
        for label, first, end in phrases
        if label not in {"TOP", "-NONE-", *PUNCTUATION} and positions[first] < positions[end]
    )


def compare(hypothesis: str, gold: str) -> Brackets:
    """Count the brackets of one sentence, given in the linear form. Raise ValueError if `gold` is not a tree."""
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
    """Return the counts of all sentences. Raise DataError if a gold line is not a tree or if there are no brackets."""
    total = Brackets()
    for number, (line, tree) in enumerate(zip(hypotheses, gold, strict=True), 1):
        try:
            total = Brackets(*map(sum, zip(total, compare(line, tree), strict=True)))
        except ValueError as error:
            raise DataError(f"line {number:,} of the gold trees is not a linearized tree: {error}") from None
    if not total.gold:
        raise DataError("the gold trees have no brackets: they may be sentences. Pass trees, bracketed or linearized")
    return total
