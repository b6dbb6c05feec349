"""The prepared corpus on disk: a directory that holds, beside its manifest:

train.src.ids  train.tgt.ids          all sentences end to end, each closed by EOS; little-endian uint16 or uint32
train.src.offsets  train.tgt.offsets  int64, one more than there are sentences
tokenizer.model                       the joint SentencePiece model (tokenizer.target.model: of target text, if another)
dev.src dev.tgt test.src test.tgt     (and general.src general.tgt) raw UTF-8 text, one sentence a line
cleaning.json                         which pairs were dropped, and why; which held-out lines have twins
"""

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt_cli.corpus.readers import read_lines
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Lengths = npt.NDArray[np.int64]
KIND = "corpus"


def id_type(vocabulary_size: int) -> str:
    return "<u2" if vocabulary_size <= 1 << 16 else "<u4"


@dataclass(frozen=True)
class Side:
    """The sentences of one side: `ids[offsets[i]:offsets[i + 1]]` is sentence i with its EOS."""

    ids: Ids
    offsets: Lengths

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self) -> Lengths:
        return np.diff(self.offsets)

    def gather(self, sentences: Lengths) -> tuple[npt.NDArray[np.int64], Lengths]:
        """Return the ids of `sentences` end to end, and their lengths."""
        starts = self.offsets[sentences]
        lengths = self.offsets[sentences + 1] - starts
        positions = np.arange(lengths.sum()) + np.repeat(starts + lengths - np.cumsum(lengths), lengths)
        return self.ids[positions].astype(np.int64), lengths


@dataclass(frozen=True)
class Corpus:
    directory: Path
    manifest: dict[str, Any]
    src: Side
    tgt: Side

    @property
    def tokenizer_file(self) -> Path:
        return self.directory / "tokenizer.model"

    @property
    def identity(self) -> str:
        """The SHA-256 of everything training depends on."""
        files = self.manifest["files"]
        return artefact.digest({name: files[name]["sha256"] for name in sorted(files) if name != "cleaning.json"})

    @property
    def seen_tokens(self) -> int:
        """The 99.9th percentile of the source lengths."""
        return math.ceil(np.quantile(self.src.lengths(), 0.999))

    def lines(self, split: str) -> tuple[list[str], list[str]]:
        """Return the raw source and target lines of "dev", "test" or "general"; empty lists without such a split."""
        return read_lines(self.directory / f"{split}.src"), read_lines(self.directory / f"{split}.tgt")


class SideWriter(contextlib.ExitStack):
    """Writes one side ("src" or "tgt") of the training ids, some sentences at a time."""

    def __init__(self, directory: Path, name: str, vocabulary_size: int) -> None:
        super().__init__()
        self.tokens, self._kind = 0, id_type(vocabulary_size)
        self._ids = self.enter_context((directory / f"train.{name}.ids").open("xb"))
        self._offsets = self.enter_context((directory / f"train.{name}.offsets").open("xb"))
        self._offsets.write(bytes(8))

    def append(self, ids: npt.NDArray[Any], lengths: Lengths) -> None:
        """Add sentences: their ids end to end, each closed by EOS, and their lengths with it."""
        self._ids.write(ids.astype(self._kind, copy=False).tobytes())
        self._offsets.write((self.tokens + np.cumsum(lengths)).astype("<i8").tobytes())
        self.tokens += len(ids)


def open_corpus(directory: Path, *, content: bool = False) -> Corpus:
    """Open a prepared corpus after checking its files' sizes (with `content`, also hashes) against its manifest."""
    if not artefact.present(directory):
        raise MissingError(f"no prepared corpus in {directory}. Make one with nmt prepare, or name another: --data DIR")
    manifest = artefact.verify(directory, KIND, content=content)
    manifest.setdefault("source_vocabulary_size", manifest["vocabulary_size"])  # in older ones they are always the same
    sides = list[Side]()
    for name, size in ("src", "source_vocabulary_size"), ("tgt", "vocabulary_size"):
        kinds = {"ids": id_type(int(manifest[size])), "offsets": "<i8"}
        files = {directory / f"train.{name}.{part}": kind for part, kind in kinds.items()}
        try:
            side = Side(*(np.asarray(np.memmap(file, kind, "r")) for file, kind in files.items()))
        except ValueError:  # of an empty file, or of half a number
            raise DataError(f"{directory}/train.{name}.* are damaged: they hold no numbers. Prepare it anew") from None
        sides.append(_checked(side, int(manifest[size]) if content else None, directory / f"train.{name}.ids"))
    if len(sides[0]) != len(sides[1]):
        raise DataError(f"{directory} is damaged: {len(sides[0]):,} source and {len(sides[1]):,} target sentences")
    return Corpus(directory, manifest, *sides)


def _checked(side: Side, vocabulary_size: int | None, file: Path) -> Side:
    """Return a side whose sentences cover its ids, none empty; with `vocabulary_size`, all ids are below it."""
    ends = side.offsets[0] == 0 and side.offsets[-1] == len(side.ids)
    if not ends or side.lengths().min() < 1 or (vocabulary_size is not None and side.ids.max() >= vocabulary_size):
        raise DataError(f"{file} is damaged: its ids do not fit its offsets, or the vocabulary. Prepare it anew")
    return side
