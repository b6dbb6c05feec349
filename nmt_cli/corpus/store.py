"""Read and write prepared corpora. The directory of a corpus contains a manifest and these files:

train.src.ids  train.tgt.ids          the token ids of all sentences, each ended by EOS, little-endian uint16 or uint32
train.src.offsets  train.tgt.offsets  where each sentence starts, and where the last one ends, little-endian int64
tokenizer.model                       the SentencePiece tokenizer
tokenizer.target.model                a separate tokenizer for target text, in some corpora
tokenizer.words                       the words of the source text and their counts, if corpus.tokenizer.words is true
dev.src dev.tgt test.src test.tgt     held-out text in UTF-8, one sentence per line
general.src general.tgt               another held-out set, in some corpora
cleaning.json                         counts of dropped pairs, and of held-out lines with near-duplicates
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt_cli.corpus import words
from nmt_cli.corpus.readers import read_lines
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError

StoredIds = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Lengths = npt.NDArray[np.int64]
KIND = "corpus"
BLOCK = 1 << 18  # sentences whose lengths are processed together: 2 MB per side, which fits into a CPU cache
HELD_OUT = ("dev", "test", "general")  # names of the sets that are not trained on


def id_type(vocabulary_size: int) -> str:
    """Return the NumPy type of stored token ids."""
    return "<u2" if vocabulary_size <= 1 << 16 else "<u4"


@dataclass(frozen=True)
class Side:
    """The training sentences of one language. Sentence i is `ids[offsets[i]:offsets[i + 1]]`, including EOS."""

    ids: StoredIds
    offsets: Lengths

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, sentences: Lengths | None = None) -> Lengths:
        """Return the lengths of the given sentences, or of all sentences, in tokens with EOS."""
        if sentences is None:
            return np.diff(self.offsets)
        lengths: Lengths = self.offsets[sentences + 1] - self.offsets[sentences]
        return lengths

    def length_blocks(self) -> Iterator[Lengths]:
        """Yield the lengths of all sentences in blocks, so that memory does not grow with the corpus."""
        for first in range(0, len(self), BLOCK):
            yield np.diff(self.offsets[first : first + BLOCK + 1])

    def gather(self, sentences: Lengths) -> tuple[npt.NDArray[np.int64], Lengths]:
        """Return the concatenated ids of `sentences`, and their lengths."""
        starts, lengths = self.offsets[sentences], self.lengths(sentences)
        positions = np.arange(lengths.sum()) + np.repeat(starts + lengths - np.cumsum(lengths), lengths)
        return self.ids[positions].astype(np.int64), lengths


def lines_by_pair(manifest: dict[str, Any], split: str) -> dict[tuple[str, str], list[int]]:
    """Return, for each language pair, its line indices in a held-out set. Return {} unless there are several pairs."""
    found, start = dict[tuple[str, str], list[int]](), 0
    for src, tgt, count in manifest.get("languages", {}).get(split, []):
        found.setdefault((src, tgt), []).extend(range(start, start + count))
        start += count
    return found if len(found) > 1 else {}


@dataclass(frozen=True)
class Corpus:
    """An open prepared corpus."""

    directory: Path
    manifest: dict[str, Any]
    src: Side
    tgt: Side

    @property
    def tokenizer_file(self) -> Path:
        return self.directory / "tokenizer.model"

    @property
    def identity(self) -> str:
        """A digest of the hashes of all files that determine the trained weights."""
        files = self.manifest["files"]
        others = "cleaning.json", words.FILE
        return artefact.digest({name: files[name]["sha256"] for name in sorted(files) if name not in others})

    @property
    def seen_tokens(self) -> int:
        """The 99.9th percentile of the source lengths, in tokens with EOS."""
        longest = max(int(block.max()) for block in self.src.length_blocks())
        counts = np.zeros(longest + 1, np.int64)
        for block in self.src.length_blocks():
            counts += np.bincount(block, minlength=longest + 1)
        position = 0.999 * (len(self.src) - 1)  # index of the percentile in the sorted lengths, usually not whole
        before = math.floor(position)
        nearest = np.searchsorted(np.cumsum(counts), [before, min(before + 1, len(self.src) - 1)], "right")
        return math.ceil(np.quantile(nearest, position - before))

    def in_epoch(self, number: int) -> "Corpus":
        """Return the training text of an epoch (from 0). A line keeps its number in all epochs, but may be empty."""
        return self

    @property
    def parts(self) -> list[int]:
        """The number of pairs in each part of the corpus.

        A part is, for example, one file. Corpora of older versions have a single part.
        """
        pairs = [int(part["pairs"]) for part in self.manifest.get("parts", [])]
        return pairs if sum(pairs) == len(self.src) else [len(self.src)]

    @property
    def fewest_lines(self) -> int:
        """A lower bound on the number of nonempty lines in an epoch."""
        return len(self.src)

    def lines_by_pair(self, split: str) -> dict[tuple[str, str], list[int]]:
        """Return the result of the function `lines_by_pair` for a held-out set of this corpus."""
        return lines_by_pair(self.manifest, split)

    def lines(self, split: str) -> tuple[list[str], list[str]]:
        """Return the source and target lines of "dev", "test" or "general", or empty lists if the set is missing."""
        return read_lines(self.directory / f"{split}.src"), read_lines(self.directory / f"{split}.tgt")


class SideWriter(contextlib.ExitStack):
    """Writes the training ids of one side, "src" or "tgt". Each call to `append` adds sentences."""

    def __init__(self, directory: Path, name: str, vocabulary_size: int) -> None:
        super().__init__()
        self.tokens = 0
        self._type = id_type(vocabulary_size)
        self._ids = self.enter_context((directory / f"train.{name}.ids").open("xb"))
        self._offsets = self.enter_context((directory / f"train.{name}.offsets").open("xb"))
        self._offsets.write(bytes(8))

    def append(self, ids: npt.NDArray[Any], lengths: Lengths) -> None:
        """Append sentences. `ids` are their concatenated ids, `lengths` their numbers of ids, both with EOS."""
        self._ids.write(ids.astype(self._type, copy=False).tobytes())
        self._offsets.write((self.tokens + np.cumsum(lengths)).astype("<i8").tobytes())
        self.tokens += len(ids)


def open_corpus(directory: Path, *, content: bool = False) -> Corpus:
    """Open a prepared corpus, after checking the sizes of its files. With `content`, also check hashes and all ids.

    Raises MissingError if there is no corpus, and DataError if the corpus is damaged.
    """
    if not artefact.present(directory):
        raise MissingError(f"no prepared corpus in {directory}. Create one with nmt prepare, or pass --data DIR")
    manifest = artefact.verify(directory, KIND, content=content)
    # Corpora of older versions lack this entry, and always have one vocabulary for both sides.
    manifest.setdefault("source_vocabulary_size", manifest["vocabulary_size"])
    sides = list[Side]()
    for name, size in ("src", "source_vocabulary_size"), ("tgt", "vocabulary_size"):
        side = open_side(directory, name, int(manifest[size]))
        sides.append(_checked(side, int(manifest[size]) if content else None, directory / f"train.{name}.ids"))
    if len(sides[0]) != len(sides[1]):
        counts = f"{len(sides[0]):,} source and {len(sides[1]):,} target sentences"
        raise DataError(f"{directory} is damaged: {counts}. Prepare it again")
    return Corpus(directory, manifest, *sides)


def open_side(directory: Path, name: str, vocabulary_size: int) -> Side:
    """Open one side, "src" or "tgt", that a SideWriter wrote. Its arrays are memory-mapped.

    Raises DataError if a file is empty or cut off.
    """
    types = {"ids": id_type(vocabulary_size), "offsets": "<i8"}
    files = {directory / f"train.{name}.{part}": dtype for part, dtype in types.items()}
    try:
        return Side(*(np.asarray(np.memmap(file, dtype, "r")) for file, dtype in files.items()))
    except ValueError:  # the file is empty, or ends within a number
        raise DataError(f"{directory}/train.{name}.* are damaged: one is empty or cut off. Prepare it again") from None


def _checked(side: Side, vocabulary_size: int | None, file: Path) -> Side:
    """Check the ids and offsets of a side, and return the side. Raises DataError if they are damaged.

    The offsets must cover all ids, there must be a sentence, no sentence may be empty, and all ids must be below
    `vocabulary_size`, if given. `file` is the path of the ids, for the error.
    """
    covered = side.offsets[0] == 0 and side.offsets[-1] == len(side.ids)
    shortest = min((block.min() for block in side.length_blocks()), default=0)
    if not covered or shortest < 1 or (vocabulary_size is not None and side.ids.max() >= vocabulary_size):
        raise DataError(f"{file} is damaged: its ids do not fit its offsets, or the vocabulary. Prepare it again")
    return side
