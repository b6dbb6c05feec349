"""Labelled bracket precision, recall and F1 of linearised trees, as evalb counts with its COLLINS.prm.

Words that are punctuation in the gold tree are left out before spans are compared, and with them brackets that hold
nothing else; equal brackets on one span match one to one. Source: EVALB (Sekine and Collins 1997), COLLINS.prm.
Differs from evalb: a hypothesis that is no tree, or one of another number of words, has all its gold brackets missed
and none found; evalb leaves such sentences out. Words are not in the linear form, so they are not compared.
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
        ("ADVP" if label == "PRT" else label, counted[first], counted[end])
        for label, first, end in phrases
        if label not in {"TOP", "-NONE-", *PUNCTUATION} and counted[first] < counted[end]
    )


def compare(hypothesis: str, gold: str) -> Brackets:
    """Count the brackets of one sentence; both trees are linear forms, a ValueError says that the gold one is none."""
    phrases, gold_tags = spans(gold.split())
    counted = [0, *itertools.accumulate(tag not in PUNCTUATION for tag in gold_tags)]
    wanted = _brackets(phrases, counted)
    try:
        phrases, tags = spans(hypothesis.split())
    except ValueError:
        return Brackets(wanted.total(), sentences=1, unparsable=1)
    if len(tags) != len(gold_tags):
        return Brackets(wanted.total(), sentences=1, wrong_length=1)
    obtained = _brackets(phrases, counted)
    matched = (obtained & wanted).total()
    return Brackets(wanted.total(), obtained.total(), matched, 1, int(obtained == wanted))


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
