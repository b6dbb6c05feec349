"""Labelled bracket precision, recall and F1 of linearised trees, as evalb counts with its COLLINS.prm.

TOP and parts of speech are no brackets; words that are punctuation (by the gold tree's part of speech) are left out
before spans are compared, and with them brackets that hold nothing else; ADVP and PRT are one label; equal brackets on
one span match one to one. Source: EVALB (Sekine and Collins 1997), its README and parameter file COLLINS.prm.

Differs from evalb: a hypothesis that is no tree, or one of another number of words, has all its gold brackets missed
and none found; evalb leaves such sentences out. Words are not in the linear form, so they are not compared.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from nmt_cli.errors import DataError
from nmt_cli.parsing.trees import Phrase, spans

PUNCTUATION = frozenset((",", ":", "``", "''", "."))
NOT_COUNTED = frozenset(("TOP", "-NONE-", *PUNCTUATION))
SAME = {"PRT": "ADVP"}
SIGNATURE = "evalb conventions|prm:COLLINS|unparsable:missed"


class Brackets(NamedTuple):
    """Counts of one sentence, or their sums. `found` are the brackets of hypotheses of the right number of words."""

    gold: int = 0
    found: int = 0
    matched: int = 0
    sentences: int = 0
    complete: int = 0  # hypotheses with all brackets right and no other
    unparsable: int = 0  # hypotheses that are no trees
    wrong_length: int = 0  # hypotheses that are trees of another number of words

    def scores(self) -> tuple[float, float, float]:
        """Return precision, recall and F1 in percent; 0 where there is nothing to divide by."""
        precision, recall = 100 * self.matched / (self.found or 1), 100 * self.matched / (self.gold or 1)
        return precision, recall, 200 * self.matched / (self.found + self.gold or 1)


def _brackets(phrases: list[Phrase], counted: Sequence[int]) -> Counter[Phrase]:
    """Return the brackets that count; `counted[i]` is how many of the first i words do."""
    return Counter(
        (SAME.get(label, label), counted[first], counted[end])
        for label, first, end in phrases
        if label not in NOT_COUNTED and counted[first] < counted[end]
    )


def compare(hypothesis: str, gold: str) -> Brackets:
    """Count the brackets of one sentence; both trees are linear forms, a ValueError says that the gold one is none."""
    phrases, gold_tags = spans(gold.split())
    counted = [0, *itertools.accumulate(tag not in PUNCTUATION for tag in gold_tags)]
    wanted = _brackets(phrases, counted)
    total = wanted.total()
    try:
        phrases, tags = spans(hypothesis.split())
    except ValueError:
        return Brackets(total, sentences=1, unparsable=1)
    if len(tags) != len(gold_tags):
        return Brackets(total, sentences=1, wrong_length=1)
    obtained = _brackets(phrases, counted)
    matched = (obtained & wanted).total()
    return Brackets(total, obtained.total(), matched, 1, int(matched == total == obtained.total()))


def corpus_brackets(hypotheses: Sequence[str], gold: Sequence[str]) -> Brackets:
    """Return the sums over all sentences; a DataError says that a gold line is no tree, or none has a bracket."""
    total = Brackets()
    for number, (line, tree) in enumerate(zip(hypotheses, gold, strict=True), 1):
        try:
            total = Brackets(*map(sum, zip(total, compare(line, tree), strict=True)))
        except ValueError as error:
            raise DataError(f"line {number:,} of the gold trees is not a linearised tree: {error}") from None
    if not total.gold:
        raise DataError("the gold trees have no brackets: they may be sentences. Give trees, bracketed or linearised")
    return total
