"""Twins of held-out lines in the training text: lines that are equal, or nearly so, when they are folded.

Folded, a line is its words without case and punctuation, every number 0, every Chinese or Japanese character a word.
Two lines are near-twins if their sets of words have a Jaccard index of at least 0.6: what they share of all they have.
They are found exactly, by prefix filtering (Bayardo, Ma and Srikant 2007): sets that are so similar share a word also
among the rarest of either. Held-out lines are indexed and training lines looked up, so memory does not grow with the
training text. Time grows with the twins that are found: in text made of a few templates each line has thousands.
"""

import bisect
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt_cli.corpus.cleaning import repair
from nmt_cli.corpus.readers import read_lines
from nmt_cli.recipe import schema

EQUAL_SOURCE, EQUAL_TARGET, EQUAL_PAIR, NEAR_SOURCE, NEAR_TARGET, NEAR_PAIR = (1 << bit for bit in range(6))
SPLITS = ("dev", "test", "general")
LABELS = "labels"  # the target language of recipes/parsing.yaml: lines of them are all nearly equal
SEVERAL_ZEROS = re.compile("0+")
Flags = npt.NDArray[np.uint8]  # for every held-out line what of it occurs in training, the bits above


class _Folding(dict[int, str]):
    """What each character becomes, worked out when it is first met."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        kind, name = unicodedata.category(char), unicodedata.name(char, "")
        if kind[0] in "LM":
            folded = f" {char} " if name.startswith(("CJK", "HIRAGANA", "KATAKANA")) else char
        else:
            folded = "0" if kind[0] == "N" else " "
        self[code] = folded
        return folded


_FOLDING = _Folding()


def fold(line: str) -> list[str]:
    """Return the words of a line, folded; [] where it has none."""
    text = line.casefold().translate(_FOLDING)
    if "00" in text:
        text = SEVERAL_ZEROS.sub("0", text)
    return text.split()


def _needed(size: int) -> int:
    """Return how many words a set of `size` must at least share with a near-twin: 0.6 of them, rounded up."""
    return -(-3 * size // 5)


class Index:
    """One side of the held-out lines."""

    def __init__(self, lines: Iterable[str]) -> None:
        folded = [fold(line) for line in lines]
        count = Counter(word for words in folded for word in set(words))
        self._rank = {word: rank for rank, word in enumerate(sorted(count, key=lambda word: (count[word], word)))}
        self._sets = [frozenset(self._rank[word] for word in words) for words in folded]
        self._equal = defaultdict[str, list[int]](list)  # the lines of each folded text
        # By the rank of a word: the sizes of the sets that have it among their rarest, rising, and these lines.
        self._sizes, self._lines = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for line in sorted(range(len(folded)), key=lambda i: len(self._sets[i])):
            words = self._sets[line]
            if words:
                self._equal[" ".join(folded[line])].append(line)
            for rank in sorted(words)[: len(words) - _needed(len(words)) + 1]:
                self._sizes[rank].append(len(words))
                self._lines[rank].append(line)

    def find(self, line: str) -> tuple[Sequence[int], set[int]]:
        """Return the held-out lines that equal a training line when both are folded, and all near-twins of it."""
        folded = fold(line)
        words = set(folded)
        size, needed = len(words), _needed(len(words))
        known = {self._rank[word] for word in words if word in self._rank}
        if not known or len(known) < needed:
            return (), set()
        candidates, unknown = set[int](), size - len(known)  # words that no held-out line has: the rarest of all
        for place, rank in enumerate(sorted(known)[: len(known) - needed + 1], unknown):
            if sizes := self._sizes.get(rank):
                most = 8 * (size - place) // 3 - size  # of sets that share no rarer word, and so no more than the rest
                first, end = bisect.bisect_left(sizes, needed), bisect.bisect_right(sizes, most)
                candidates.update(self._lines[rank][first:end])
        sets = self._sets
        near = {i for i in candidates if 8 * len(sets[i] & known) >= 3 * (size + len(sets[i]))}  # integers: exact
        return self._equal.get(" ".join(folded), ()) if near else (), near


class Twins:
    """The held-out lines, both sides indexed."""

    def __init__(self, src: Sequence[str], tgt: Sequence[str]) -> None:
        self.count = len(src)
        self._src, self._tgt = Index(src), Index(tgt)

    def look_up(self, src: Sequence[str], tgt: Sequence[str]) -> tuple[Flags, npt.NDArray[np.bool_]]:
        """Return what of each held-out line occurs among these training pairs, and which pairs are near-twins."""
        flags, twins = np.zeros(self.count, np.uint8), np.zeros(len(src), bool)
        for i, lines in enumerate(zip(src, tgt, strict=True)):
            (equal_src, near_src), (equal_tgt, near_tgt) = self._src.find(lines[0]), self._tgt.find(lines[1])
            twins[i] = bool(near_src or near_tgt)
            equal_pair = set(equal_src).intersection(equal_tgt)
            found: tuple[tuple[int, Any], ...] = (
                (EQUAL_SOURCE, equal_src), (EQUAL_TARGET, equal_tgt), (EQUAL_PAIR, equal_pair),
                (NEAR_SOURCE, near_src), (NEAR_TARGET, near_tgt), (NEAR_PAIR, near_src & near_tgt),
            )  # fmt: skip
            for bit, held_out in found if twins[i] else ():
                flags[list(held_out)] |= bit
        return flags, twins


def load(directory: Path, unescape: bool, target: str) -> Twins:
    """Index the held-out text of a directory, which holds dev.src and so on, cleaned like training text; nothing of
    trees."""
    if target == LABELS:
        return Twins([], [])
    cleaning = schema.Cleaning(unescape=unescape)
    src, tgt = (
        [repair(line, cleaning) for split in SPLITS for line in read_lines(directory / f"{split}.{side}")]
        for side in ("src", "tgt")
    )
    return Twins(src, tgt)


def summary(directory: Path, flags: Flags) -> dict[str, dict[str, Any]]:
    """Return for each split how many lines have twins, and the numbers (from 1) of those that have a near-twin."""
    found, start = dict[str, dict[str, Any]](), 0
    for split in SPLITS if len(flags) else ():
        count = len(read_lines(directory / f"{split}.src"))
        here, start = flags[start : start + count], start + count
        if not count:
            continue

        def lines(bits: int, here: Flags = here) -> int:
            return int(np.count_nonzero(here & bits))

        equal = {"source": lines(EQUAL_SOURCE), "target": lines(EQUAL_TARGET), "both": lines(EQUAL_PAIR)}
        near = {"source": lines(NEAR_SOURCE), "target": lines(NEAR_TARGET), "both": lines(NEAR_PAIR)}
        numbers = (np.flatnonzero(here & (NEAR_SOURCE | NEAR_TARGET)) + 1).tolist()
        found[split] = {"lines": count, "equal": equal, "near": near, "near_lines": numbers}
    return found


def sentence(split: str, found: dict[str, Any]) -> str:
    """Say in one line how many lines of a split have near-twins."""
    near = found["near"]
    sides = f"source {near['source']:,}, target {near['target']:,}, both in one pair {near['both']:,}"
    return f"of {found['lines']:,} {split} lines {len(found['near_lines']):,} have a near-twin in training ({sides})"
