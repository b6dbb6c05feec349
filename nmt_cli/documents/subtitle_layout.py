"""Divide a translated sentence among subtitle cues, and break the text of a cue into lines."""

import bisect
import itertools
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from nmt_cli.documents.placement import UNSPACED, Aligned

SPEED = 17  # characters per second that people can read
LINES = 2  # maximum lines in a cue
# Costs of a division. A word in the wrong cue also costs its distance from the right cue, in cues.
_EMPTY = 1000  # cost of each cue without a word
_TOO_FAST = 0.2  # cost of each character beyond what SPEED allows
_TOO_LONG = 0.5  # cost of each character that does not fit into LINES
_NO_PAUSE = 0.4  # cost of each cut between cues that is not after a punctuation mark
_MOST_WORDS = 300  # maximum words in a cue
_PAUSES = ',;:.!?\u2026\u2013\u2014)"\u3001\u3002'
# Text is not divided before this punctuation.
_NOT_FIRST = re.compile(r"[^\w\s(\[{\u00a1\u00bf\u201e\u201c\u2018\u00ab]")


class _Word(NamedTuple):
    start: int  # offset in the translation
    end: int
    cue: int  # the index of the cue that contains the source of the word
    pauses: bool = False  # whether the word ends with a punctuation mark


def divided(aligned: Aligned, texts: Sequence[str], seconds: Sequence[float], line_length: int) -> list[Aligned]:
    """Divide the translation of a sentence among cues, and return one piece per cue.

    `texts` are the source texts of the cues. Joined with spaces, they are the source of `aligned`. `seconds` lists the
    duration of each cue. `line_length` is in characters.
    """
    begins = [0, *itertools.accumulate(len(text) + 1 for text in texts[:-1])]
    words = _words(aligned, begins)
    cuts = _best_cuts(words, seconds, LINES * line_length)
    pieces = list[Aligned]()
    for begin, text, (first, last) in zip(begins, texts, itertools.pairwise(cuts), strict=True):
        start, end = (words[first].start, words[last - 1].end) if first < last else (0, 0)
        own = [(stop - start, origin) for stop, origin in aligned.links if start < stop <= end]
        links = [(stop, min(max(origin - begin, 0), len(text) - 1)) for stop, origin in own]
        pieces.append(Aligned(aligned.text[start:end], links))
    return pieces


def _words(aligned: Aligned, begins: list[int]) -> list[_Word]:
    """Return the indivisible pieces of a translation. Each belongs to the cue with the source of its first token.

    `begins` lists the offset of each cue in the source.
    """
    words, start = list[_Word](), 0
    for end, origin in aligned.links:
        token = aligned.text[start:end]
        begin, start = start + len(token) - len(token.lstrip()), end
        if not token.strip():
            continue
        joined = words and words[-1].end == begin
        cut = UNSPACED.search(aligned.text[begin - 1 : begin + 1]) and not _NOT_FIRST.match(aligned.text, begin)
        stop = begin + len(token.strip())
        if joined and not cut:
            words[-1] = words[-1]._replace(end=stop)
        else:
            words.append(_Word(begin, stop, bisect.bisect(begins, origin) - 1))
    if words:
        words[-1] = words[-1]._replace(end=len(aligned.text.rstrip()))
    return [word._replace(pauses=aligned.text[word.end - 1] in _PAUSES) for word in words]


def _best_cuts(words: list[_Word], seconds: Sequence[float], capacity: int) -> list[int]:
    """Find the division with the lowest cost. Return the index of each cue's first word, and then the number of words.

    `seconds` lists the duration of each cue. A cue has room for `capacity` characters.
    """
    count = len(words)
    best = [0.0] + [float("inf")] * count  # the lowest cost, by the number of words in the cues so far
    origins = list[list[int]]()
    for cue, duration in enumerate(seconds):
        wrong = [0, *itertools.accumulate(abs(word.cue - cue) for word in words)]
        costs, chosen = [float("inf")] * (count + 1), [0] * (count + 1)
        for first in range(count + 1):
            for last in range(first, min(count, first + _MOST_WORDS) + 1):
                size = words[last - 1].end - words[first].start if first < last else 0
                cost = best[first] + wrong[last] - wrong[first]
                cost += _EMPTY * (first == last) + _NO_PAUSE * (0 < last < count and not words[last - 1].pauses)
                cost += _TOO_FAST * max(size - SPEED * duration, 0) + _TOO_LONG * max(size - capacity, 0)
                if cost < costs[last]:
                    costs[last], chosen[last] = cost, first
        best = costs
        origins.append(chosen)
    cuts = [count]
    for chosen in reversed(origins):
        cuts.append(chosen[cuts[-1]])
    return cuts[::-1]


def broken_into_lines(marked: str, token: re.Pattern[str], length: int) -> list[str]:
    """Break the text of a cue into as few lines as possible, about equally wide, of at most `length` columns.

    Marks, which `token` matches, have no width, and wide characters of East Asia have two columns. A word wider than
    `length` gets a line of its own.
    """
    words = _printed_words(marked, token)
    if not words:
        return [marked]
    widths = [_width(token.sub("", word)) for word, _ in words]
    has_space = [spaced for _, spaced in words]  # whether a space precedes the word
    narrow, wide = max(widths, default=0), length
    count = len(_filled(widths, has_space, length))
    while narrow < wide:  # find the narrowest width for the same number of lines
        middle = (narrow + wide) // 2
        if len(_filled(widths, has_space, middle)) > count:
            narrow = middle + 1
        else:
            wide = middle
    lines = list[str]()
    for first, last in itertools.pairwise([*_filled(widths, has_space, narrow), len(words)]):
        line = "".join(" " * spaced + word for word, spaced in words[first:last])
        lines.append(line[has_space[first] :])
    return lines


def _printed_words(marked: str, token: re.Pattern[str]) -> list[tuple[str, bool]]:
    """Return each word of a text, with the marks beside it, and whether a space precedes it."""
    words, word, space, end = list[tuple[str, bool]](), "", False, 0
    for match in itertools.chain(token.finditer(marked), [None]):
        for part in re.findall(r"\s+|\S+", marked[end : match.start() if match else len(marked)]):
            if part.isspace():
                if word:
                    words.append((word, space))
                word, space = "", True
                continue
            for character in _divisible(part):
                if word and UNSPACED.search(word[-1]) and not _NOT_FIRST.match(character):
                    words.append((word, space))
                    word, space = "", False
                word += character
        if match:
            word += match[0]
            end = match.end()
    return [*words, (word, space)] if word else words


def _divisible(part: str) -> list[str]:
    """Return the characters of `part` if it contains a script without spaces, or else `part` as a whole."""
    return list(part) if UNSPACED.search(part) else [part]


def _width(text: str) -> int:
    return sum(1 + (unicodedata.east_asian_width(each) in "WF") for each in text)


def _filled(widths: list[int], has_space: list[bool], length: int) -> list[int]:
    """Put as many words as fit into each line. Return the index of the first word of each line."""
    firsts, used = [0], 0
    for index, width in enumerate(widths):
        used += width + (has_space[index] and index > firsts[-1])
        if used > length and index > firsts[-1]:
            firsts.append(index)
            used = width
    return firsts
