"""Verify that a model gives the same results in two toolkits: compare token log-probabilities and translations.

Translations are compared without length penalty, and only if they end before our length limit, because other toolkits
define the penalty and the limit differently.
"""

import math
from collections.abc import Iterable, Sequence

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.interop.adapters import Adapter, TokenIds
from nmt_cli.system.console import table
from nmt_cli.system.errors import DataError
from nmt_cli.translation.translator import Translator

# Largest allowed difference between two log-probabilities of a token, in nats. For values below -1, it is a fraction of
# the value. Toolkits add float32 numbers in different orders. For most tokens, this causes smaller differences. With
# 6 + 6 layers and a vocabulary of 50,000, one of 15,215 tokens differed by 1.3e-4: the result of CTranslate2 differed
# from the float64 result by 1.2e-4, and that of nmt by 3.3e-5. So one token in FEW may differ by FAR.
TOLERANCE, FAR = 1e-4, 1e-3
FEW = 1000
# This fraction of the translations may differ, plus one translation. If two hypotheses are equally likely, rounding
# decides between them; this changes about one line in 8,000. A different kind of search changes many lines.
MAX_DIFFERING = 0.02
MAX_LISTED = 20  # differing lines shown to the user


def differences_of(ours: Iterable[list[float]], theirs: Iterable[list[float]]) -> list[float]:
    """Return the absolute differences of token log-probabilities, in nats, largest first.

    If our log-probability of a token is below -1, the difference is divided by the absolute value of that
    log-probability. If any difference is NaN, return a list of one NaN, because NaN cannot be sorted.
    """
    both = [pair for rows in zip(ours, theirs, strict=True) for pair in zip(*rows, strict=True)]
    differences = [abs(p - q) / max(1.0, -p) for p, q in both]
    return [math.nan] if any(map(math.isnan, differences)) else sorted(differences, reverse=True)


def are_rounding_errors(differences: Sequence[float]) -> bool:
    """Return whether rounding explains the differences of all tokens. `differences` is sorted, largest first."""
    return differences[0] <= FAR and differences[len(differences) // FEW] <= TOLERANCE


def compare(
    translator: Translator, adapter: Adapter, lines: dict[int, str], exact: bool, show: bool = True
) -> tuple[str, list[TokenIds], list[TokenIds]]:
    """Translate lines in both toolkits, and return a report, our translations and theirs.

    The keys of `lines` are their indexes in a file, from 0. If `exact` is true, raise DataError if rounding does not
    explain the differences. If `show` is true too, also print the translations that differ. If the adapter gives a
    reason not to compare translations (its `difference`), only compare log-probabilities, and return our translations
    twice.
    """
    decoding = translator.config.decoding
    beam = adapter.beam or decoding.beam
    translations = translator.translate(
        lines.values(), beam=beam, alpha=0.0, split=False, copy_wordless=False, case="off", spelling="off"
    )
    segments = [translation.segments[0] for translation in translations]
    sources = [segment.ids for segment in segments]
    ours = [[*segment.hypotheses[0].ids, EOS] for segment in segments]
    limits = [len(source) + decoding.extra_length for source in sources]
    theirs = ours if adapter.difference else list(adapter.translate(sources, beam, max(limits)))
    ended = [i for i, limit in enumerate(limits) if max(len(ours[i]), len(theirs[i])) < limit]
    differing = [i for i in ended if ours[i] != theirs[i]]
    pairs = list(zip(sources, ours, strict=True))
    differences = differences_of(translator.score_ids(pairs), adapter.score(pairs))
    largest = differences[0]
    if exact and not math.isfinite(largest):
        raise DataError("a log-probability is not finite. The weights are damaged or too large")
    same = f"{len(ended) - len(differing)} of {len(ended)} translations that end within the limit are the same."
    report = (
        f"On {len(lines)} sentences ({sum(map(len, ours)):,} tokens), beam {beam}, without length penalty: the largest "
        f"difference of a token's log-probability is {largest:.1e}; {adapter.difference or same}"
    )
    if exact and show and differing:
        numbers = [index + 1 for index in lines]
        decode = translator.tokenizer.target.decode
        rows = [[str(numbers[i]), *decode([ours[i][:-1], theirs[i][:-1]])] for i in differing[:MAX_LISTED]]
        table("lines that differ", ["line", "ours", "theirs"], rows)
    if exact and not (len(differing) <= 1 + MAX_DIFFERING * len(ended) and are_rounding_errors(differences)):
        must = (
            f"log-probabilities must agree within {TOLERANCE:g} (one in {FEW:,} within {FAR:g}), and at most "
            f"{MAX_DIFFERING:.0%} of translations may differ"
        )
        raise DataError(f"the converted model was discarded because {must}. {report}")
    return report, ours, theirs
