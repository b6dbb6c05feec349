"""Find near-duplicates of held-out lines in the training text.

Lines are compared after folding: letter case and punctuation are removed, each number becomes 0, and each Chinese or
Japanese character becomes a word. Two lines are near-duplicates if the Jaccard index of their word sets (the number of
shared words divided by the number of different words in the two lines) is at least 0.6.

Prefix filtering (Bayardo, Ma and Srikant 2007) finds all near-duplicates without comparing every pair of lines: it
compares only lines that share one of their rarest words, as all near-duplicates do. Only the held-out lines are
indexed, so memory does not grow with the training text. The time grows with the number of matches: in text made from a
few templates, a line may match thousands of held-out lines.
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
from nmt_cli.corpus.store import HELD_OUT
from nmt_cli.recipe.cleaning import Cleaning

EQUAL_SOURCE, EQUAL_TARGET, EQUAL_PAIR, NEAR_SOURCE, NEAR_TARGET, NEAR_PAIR = (1 << bit for bit in range(6))
# Target language of recipes/parsing.yaml. For it, no lines are indexed: nearly all parse labels are near-duplicates.
LABELS = "labels"
SEVERAL_ZEROS = re.compile("0+")
Flags = npt.NDArray[np.uint8]  # a byte for each held-out line; its bits (EQUAL_SOURCE and so on) are kinds of matches


class _Folding(dict[int, str]):
    """Maps the code of a character to its folded form, which is computed on first use."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        category, name = unicodedata.category(char)[0], unicodedata.name(char, "")
        if category in "LM":
            folded = f" {char} " if name.startswith(("CJK", "HIRAGANA", "KATAKANA")) else char
        else:
            folded = "0" if category == "N" else " "
        self[code] = folded
        return folded


_FOLDING = _Folding()


def fold(line: str) -> list[str]:
    """Return the folded words of a line."""
    text = line.casefold().translate(_FOLDING)
    if "00" in text:
        text = SEVERAL_ZEROS.sub("0", text)
    return text.split()


def _needed(size: int) -> int:
    """Return the minimum number of words that a line of `size` different words shares with a near-duplicate."""
    return -(-3 * size // 5)


class Index:
    """Index of one side of the held-out lines."""

    def __init__(self, lines: Iterable[str]) -> None:
        folded = [fold(line) for line in lines]
        count = Counter(word for words in folded for word in set(words))
        # Words are replaced by their ranks, from 0 for the rarest word.
        self._rank = {word: rank for rank, word in enumerate(sorted(count, key=lambda word: (count[word], word)))}
        self._sets = [frozenset(self._rank[word] for word in words) for words in folded]
        self._equal = defaultdict[str, list[int]](list)  # folded text -> indices of lines
        # rank of a word -> the lines that have this word among their rarest words, sorted by the size of the word set
        self._lines = defaultdict[int, list[int]](list)
        self._sizes = defaultdict[int, list[int]](list)  # rank of a word -> the sizes of the word sets of these lines
        for line in sorted(range(len(folded)), key=lambda i: len(self._sets[i])):
            words = self._sets[line]
            if words:
                self._equal[" ".join(folded[line])].append(line)
            for rank in sorted(words)[: len(words) - _needed(len(words)) + 1]:
                self._sizes[rank].append(len(words))
                self._lines[rank].append(line)

    def find(self, line: str) -> tuple[Sequence[int], set[int]]:
        """Return the indices of held-out lines that equal a training line after folding, and of its near-duplicates.

        The near-duplicates include the equal lines.
        """
        folded = fold(line)
        words = set(folded)
        size, needed = len(words), _needed(len(words))
        known = {self._rank[word] for word in words if word in self._rank}
        if not known or len(known) < needed:
            return (), set()
        candidates = set[int]()
        unknown = size - len(known)  # number of words that are in no held-out line; these count as the rarest
        for rarer_words, rank in enumerate(sorted(known)[: len(known) - needed + 1], unknown):
            if sizes := self._sizes.get(rank):
                # Held-out lines that share a rarer word are already candidates. Other lines share at most
                # size - rarer_words words with this line, which limits the size of their word sets: a Jaccard index
                # shared / (a + b - shared) >= 3/5 means 8 * shared >= 3 * (a + b).
                most = 8 * (size - rarer_words) // 3 - size
                first, end = bisect.bisect_left(sizes, needed), bisect.bisect_right(sizes, most)
                candidates.update(self._lines[rank][first:end])
        sets = self._sets
        near = {i for i in candidates if 8 * len(sets[i] & known) >= 3 * (size + len(sets[i]))}
        return self._equal.get(" ".join(folded), ()) if near else (), near


class HeldOutIndex:
    """Index of both sides of the held-out lines."""

    def __init__(self, src: Sequence[str], tgt: Sequence[str]) -> None:
        self.count = len(src)
        self._src, self._tgt = Index(src), Index(tgt)

    def look_up(self, src: Sequence[str], tgt: Sequence[str]) -> tuple[Flags, npt.NDArray[np.bool_]]:
        """Look up training pairs. Return flags for all held-out lines, and which of the pairs are near-duplicates."""
        flags, near = np.zeros(self.count, np.uint8), np.zeros(len(src), bool)
        for i, lines in enumerate(zip(src, tgt, strict=True)):
            (equal_src, near_src), (equal_tgt, near_tgt) = self._src.find(lines[0]), self._tgt.find(lines[1])
            near[i] = bool(near_src or near_tgt)
            equal_pair = set(equal_src).intersection(equal_tgt)
            found: tuple[tuple[int, Any], ...] = (
                (EQUAL_SOURCE, equal_src), (EQUAL_TARGET, equal_tgt), (EQUAL_PAIR, equal_pair),
                (NEAR_SOURCE, near_src), (NEAR_TARGET, near_tgt), (NEAR_PAIR, near_src & near_tgt),
            )  # fmt: skip
            for bit, held_out in found if near[i] else ():
                flags[list(held_out)] |= bit
        return flags, near


def load(directory: Path, unescape: bool, target: str) -> HeldOutIndex:
    """Index the held-out lines in a directory (dev.src and so on), repaired as cleaning with `unescape` would.

    The index is empty if `target`, the target language, is LABELS.
    """
    if target == LABELS:
        return HeldOutIndex([], [])
    cleaning = Cleaning(unescape=unescape)
    src, tgt = (
        [repair(line, cleaning) for split in HELD_OUT for line in read_lines(directory / f"{split}.{side}")]
        for side in ("src", "tgt")
    )
    return HeldOutIndex(src, tgt)


def summary(directory: Path, flags: Flags) -> dict[str, dict[str, Any]]:
    """Return, for each held-out set, how many lines have duplicates and near-duplicates in the training text.

    `near_lines` lists the line numbers (from 1) of the lines with near-duplicates. Empty sets are left out.
    """
    found, start = dict[str, dict[str, Any]](), 0
    for split in HELD_OUT if len(flags) else ():
        count = len(read_lines(directory / f"{split}.src"))
        split_flags = flags[start : start + count]
        start += count
        if not count:
            continue

        def flagged(bits: int, split_flags: Flags = split_flags) -> int:
            return int(np.count_nonzero(split_flags & bits))

        equal = {"source": flagged(EQUAL_SOURCE), "target": flagged(EQUAL_TARGET), "both": flagged(EQUAL_PAIR)}
        near = {"source": flagged(NEAR_SOURCE), "target": flagged(NEAR_TARGET), "both": flagged(NEAR_PAIR)}
        numbers = (np.flatnonzero(split_flags & (NEAR_SOURCE | NEAR_TARGET)) + 1).tolist()
        found[split] = {"lines": count, "equal": equal, "near": near, "near_lines": numbers}
    return found


def sentence(split: str, found: dict[str, Any]) -> str:
    """Return a message with the counts that `summary` found for a held-out set."""
    near, lines = found["near"], f"{len(found['near_lines']):,} of {found['lines']:,} {split} lines"
    sides = f"source {near['source']:,}, target {near['target']:,}, both in one pair {near['both']:,}"
    return f"near-duplicates in training: {lines} ({sides})"
