"""Shortlists: the target tokens that the translation of a segment may contain.

A shortlist consists of the most frequent target tokens, and a list of the most probable translations of each source
token. The search considers only the tokens that `Shortlist.tokens` returns: all others have probability 0, and
the C engine does not compute their logits. Each segment has its own target tokens, which do not depend on the
other segments in a search.

The file `shortlist.bin` in a model directory begins with the format's name (16 bytes), followed by the SHA-256 (32
bytes) of the tokenizer files. Little-endian int32 numbers follow: three counts (of frequent tokens, source tokens and
listed tokens), the frequent tokens, the index at which each source token's list ends, and the lists one after another.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path

from nmt_cli.corpus.tokenizer import EOS, Tokenizer, files_of
from nmt_cli.system.errors import DataError
from nmt_cli.translation.segments import Segment

FILE = "shortlist.bin"
FORMAT = b"nmt shortlist 1\n"


class Shortlist:
    """A model's shortlist. `targets` holds the lists of all source tokens. The list of token i ends at `ends[i]`."""

    def __init__(self, frequent: Sequence[int], ends: Sequence[int], targets: Sequence[int]) -> None:
        self.frequent = array("i", frequent)
        self.ends = array("i", ends)
        self.targets = array("i", targets)
        self._always = frozenset(self.frequent) | {EOS}

    def tokens(self, segment: Segment) -> list[int]:
        """Return the target tokens for a segment, sorted.

        They are EOS, the frequent tokens, the lists of its source tokens, and the tokens of its prefix and constraints.
        """
        found = set(self._always).union(segment.prefix)
        for source in set(segment.ids):
            found.update(self.targets[self.ends[source - 1] if source else 0 : self.ends[source]])
        if segment.constraints:
            found.update(segment.constraints.tokens)
        found.discard(0)  # PAD, which is never produced; `constraints.tokens` holds 0 for the root of the automaton
        return sorted(found)

    def to_bytes(self, tokenizer_file: Path) -> bytes:
        sizes = array("i", [len(self.frequent), len(self.ends), len(self.targets)])
        numbers = sizes + self.frequent + self.ends + self.targets
        if sys.byteorder == "big":
            numbers.byteswap()
        return FORMAT + _tokenizer_hash(tokenizer_file) + numbers.tobytes()


def read_shortlist(directory: Path, tokenizer: Tokenizer, tokenizer_file: Path) -> Shortlist | None:
    """Return the shortlist in a model directory, or None if there is none.

    Raises DataError if the file is damaged or belongs to another tokenizer.
    """
    file = directory / FILE
    if not file.is_file():
        return None
    data = file.read_bytes()
    start = len(FORMAT) + 32
    numbers = array("i")
    numbers.frombytes(data[start : start + (len(data) - start) // 4 * 4])
    if sys.byteorder == "big":
        numbers.byteswap()
    command = f"nmt shortlist {directory} --src FILE --tgt FILE"
    sizes, rest = numbers[:3].tolist(), numbers[3:]
    right_size = (
        len(sizes) == 3 and min(sizes) >= 0 and sum(sizes) == len(rest) and len(data) == start + 12 + 4 * len(rest)
    )
    if not data.startswith(FORMAT) or not right_size or sizes[1] != tokenizer.vocabulary_size:
        raise DataError(f"{file} is damaged or not a shortlist of this model. Make one: {command}")
    if data[len(FORMAT) : start] != _tokenizer_hash(tokenizer_file):
        raise DataError(f"{file} belongs to another tokenizer. Make a new one: {command}")
    frequent, lists = rest[: sizes[0]], rest[sizes[0] :]
    ends, targets = lists[: sizes[1]], lists[sizes[1] :]
    ascending = all(a <= b for a, b in zip([0, *ends], ends, strict=False)) and ends[-1] == len(targets)
    if not ascending or not all(0 < i < tokenizer.target.vocabulary_size for i in (*frequent, *set(targets))):
        raise DataError(f"{file} is damaged: some token ids or list ends are out of range")
    return Shortlist(frequent, ends, targets)


def _tokenizer_hash(tokenizer_file: Path) -> bytes:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files_of(tokenizer_file))).digest()
