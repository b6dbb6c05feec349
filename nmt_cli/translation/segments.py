"""Long lines in pieces a model can translate, and signs that a translation went wrong."""

import itertools
import re

import numpy as np

from nmt_cli.corpus.tokenizer import EOS, Tokenizer

_CLOSERS = "[\"'\u201d\u2019\u00bb)\\]]*"
_SENTENCE_END = re.compile(rf"[.!?\u2026]{_CLOSERS}(?=\s)|[\u3002\uff01\uff1f]{_CLOSERS}")
_CLAUSE_END = re.compile(rf"[,;:\u2013\u2014]{_CLOSERS}(?=\s)|[\u3001\uff0c\uff1b\uff1a]")
_WORD_END = re.compile(r"(?=\s)")
LOOP_PIECES, LOOP_PERIOD = 12, 8
SMALLEST = 4  # pieces; a shorter source is not translated in halves


def split(tokenizer: Tokenizer, line: str, limit: int) -> list[list[int]]:
    """Return a normalised line as segments of at most `limit` pieces, EOS counted.

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
    segments = tokenizer.encode(parts)
    return [[*ids[i : i + limit - 1], EOS] for ids in segments for i in range(0, len(ids), limit - 1)]


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


def looping(ids: list[int]) -> bool:
    """Return whether some stretch of at most LOOP_PERIOD pieces comes again and again, at least four times."""
    if len(ids) < LOOP_PIECES:
        return False
    array = np.asarray(ids)
    for period in range(1, LOOP_PERIOD + 1):
        same = array[period:] == array[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate([[0], same, [0]])))
        longest = (edges[1::2] - edges[::2]).max(initial=0)
        if longest >= max(LOOP_PIECES - period, 3 * period):
            return True
    return False


def halves(tokenizer: Tokenizer, ids: list[int]) -> list[list[int]]:
    """Return a source in two, at a clause's end near the middle if there is one, else between words; [] if too short.

    Args:
        tokenizer: of the model.
        ids: closed by EOS; so are the halves.
    """
    pieces = tokenizer.pieces(ids[:-1])
    if len(pieces) < SMALLEST:
        return []
    middle = len(pieces) / 2
    starts = [i for i in range(1, len(pieces)) if pieces[i].startswith("\u2581")]
    clauses = [i for i in starts if pieces[i - 1][-1] in ".,;:!?\u2013\u2014" and abs(i - middle) <= middle / 2]
    place = min(clauses or starts or [round(middle)], key=lambda i: abs(i - middle))
    return [[*ids[:place], EOS], ids[place:]]
