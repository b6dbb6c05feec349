"""Segments: what is searched by itself. Long lines are cut into several, failed ones in two, results are joined."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from nmt_cli.corpus.cleaning import normalise
from nmt_cli.corpus.tokenizer import EOS, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

_CLOSERS = "[\"'\u201d\u2019\u00bb)\\]]*"
_SENTENCE_END = re.compile(rf"[.!?\u2026]{_CLOSERS}(?=\s)|[\u3002\uff01\uff1f]{_CLOSERS}")
_CLAUSE_END = re.compile(rf"[,;:\u2013\u2014]{_CLOSERS}(?=\s)|[\u3001\uff0c\uff1b\uff1a]")
_WORD_END = re.compile(r"(?=\s)")
LOOP_TOKENS, LOOP_PERIOD = 12, 8
Length = TypeVar("Length", float, "Tensor")
SMALLEST = 4  # tokens; a shorter source is not translated in halves


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a segment.

    Attributes:
        ids: tokens, without EOS.
        log_probability: of the tokens and EOS, in nats.
        score: log-probability over length penalty.
        token_log_probabilities: of each token and of EOS.
    """

    ids: list[int]
    log_probability: float
    score: float
    token_log_probabilities: list[float]


@dataclass
class Segment:
    """A stretch of a line that is searched by itself.

    Attributes:
        id: names it from here to its result.
        ids: source tokens, closed by EOS.
        prefix: tokens that every translation must begin with; fewer than the model's max_length.
        key: decides, with the seed, what is sampled for it.
        depth: how often it was halved.
        hypotheses: the result, best first.
        halves: what it was translated in instead.
    """

    id: int
    ids: Sequence[int]
    prefix: Sequence[int] = ()
    key: int = 0
    depth: int = 0
    hypotheses: list[Hypothesis] = field(default_factory=list)
    halves: list["Segment"] = field(default_factory=list)

    def leaves(self) -> list["Segment"]:
        """Return the segments whose translations make up the line's."""
        return [leaf for half in self.halves for leaf in half.leaves()] if self.halves else [self]


@dataclass(frozen=True)
class SegmentOptions:
    """How lines become segments.

    Attributes:
        longest: most tokens the model can count, of a source or a translation, with EOS.
        limit: longest source the model was trained on, in tokens with EOS.
        split: whether longer lines are split, and failed translations tried again in halves; else lines are cut.
        samples: translations drawn of each line; 0 for search.
    """

    longest: int
    limit: int
    split: bool
    samples: int = 0


@dataclass(frozen=True)
class ScoredTranslation:
    """One translation of a line, joined from its segments'.

    Attributes:
        text: detokenised.
        score: log-probability over length penalty.
        log_probability: of all tokens, in nats.
        tokens: subwords; each segment ends with </s>.
        token_log_probabilities: of each of them.
        ids: of the tokens, without </s>.
    """

    text: str
    score: float
    log_probability: float
    tokens: list[str]
    token_log_probabilities: list[float]
    ids: list[int]


def length_penalty(length: Length, alpha: float) -> Length:
    """Return ((5 + length) / 6) ^ alpha, EOS counted in the length: 1 at length 1."""
    penalty: Length = ((5 + length) / 6) ** alpha
    return penalty


def encode(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
    """Return each line's ids, closed by EOS; [] for a line without text."""
    return [[*ids, EOS] if ids else [] for ids in tokenizer.encode([normalise(line) for line in lines])]


def join(tokenizer: Tokenizer, parts: Sequence[Hypothesis], alpha: float) -> ScoredTranslation:
    """Return a line's translation from its segments'; an empty one for a line without any."""
    texts = tokenizer.decode([part.ids for part in parts])
    values = [value for part in parts for value in part.token_log_probabilities]
    total = math.fsum(part.log_probability for part in parts)
    return ScoredTranslation(
        texts[0] if len(texts) == 1 else " ".join(filter(None, map(str.strip, texts))),
        parts[0].score if len(parts) == 1 else total / length_penalty(len(values), alpha),
        total,
        [token for part in parts for token in tokenizer.pieces([*part.ids, EOS])],
        values,
        [i for part in parts for i in part.ids],
    )


def split(tokenizer: Tokenizer, line: str, limit: int) -> list[list[int]]:
    """Return a normalised line as sources of at most `limit` tokens, EOS counted.

    A longer line is cut at its sentence ends; a longer sentence where clauses end, else between words, else anywhere.
    """
    ids = tokenizer.encode([line])[0]
    if len(ids) < limit:
        return [[*ids, EOS]] if ids else []
    parts = _cut(line, _SENTENCE_END)
    for ends in (_CLAUSE_END, _WORD_END):
        sizes = [len(x) for x in tokenizer.encode(parts)]
        parts = [
            small
            for part, size in zip(parts, sizes, strict=True)
            for small in (_packed(tokenizer, _cut(part, ends), limit) if size >= limit else [part])
        ]
    return [[*ids[i : i + limit - 1], EOS] for ids in tokenizer.encode(parts) for i in range(0, len(ids), limit - 1)]


def _cut(text: str, ends: re.Pattern[str]) -> list[str]:
    """Return the stretches of a text that end where the pattern does."""
    places = [0, *(match.end() for match in ends.finditer(text)), len(text)]
    parts = [text[a:b].strip() for a, b in itertools.pairwise(places)]
    return [part for part in parts if part]


def _packed(tokenizer: Tokenizer, parts: list[str], limit: int) -> list[str]:
    """Join neighbours as far as they fit."""
    packed: list[str] = []
    size = 0
    for part, ids in zip(parts, tokenizer.encode(parts), strict=True):
        size += len(ids)
        if packed and size < limit:
            packed[-1] += f" {part}"
        else:
            packed.append(part)
            size = len(ids)
    return packed


def looping(sequence: Sequence[int]) -> bool:
    """Return whether some stretch of at most LOOP_PERIOD items comes again and again, at least four times."""
    if len(sequence) < LOOP_TOKENS:
        return False
    array = np.asarray(sequence)
    for period in range(1, LOOP_PERIOD + 1):
        same = array[period:] == array[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], same, [0]])))
        longest = (edges[1::2] - edges[::2]).max(initial=0)
        if longest >= max(LOOP_TOKENS - period, 3 * period):
            return True
    return False


def halves(tokenizer: Tokenizer, ids: Sequence[int]) -> list[list[int]]:
    """Return a source in two, at a clause's end near the middle if there is one, else between words; [] if too short.

    Args:
        tokenizer: of the model.
        ids: closed by EOS; so are the halves.
    """
    tokens = tokenizer.pieces(list(ids[:-1]))
    if len(tokens) < SMALLEST:
        return []
    middle = len(tokens) / 2
    starts = [i for i in range(1, len(tokens)) if tokens[i].startswith("\u2581")]
    clauses = [i for i in starts if tokens[i - 1][-1] in ".,;:!?\u2013\u2014" and abs(i - middle) <= middle / 2]
    place = min(clauses or starts or [round(middle)], key=lambda i: abs(i - middle))
    return [[*ids[:place], EOS], list(ids[place:])]
