"""The raw text of a corpus and the interface of its sources: generated text, Multi30k, hub data sets, user files."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nmt_cli.corpus.catalog import Size
from nmt_cli.corpus.readers import Chunk, count_pairs
from nmt_cli.recipe import schema
from nmt_cli.system.console import warn
from nmt_cli.system.errors import DataError, MissingError

MOST_COUNTED = 1 << 30  # bytes of all files together; if they are larger, a dry run does not count the pairs


@dataclass(frozen=True)
class Split:
    """One split of a corpus: "train", "dev", "test" or "general". Its pairs can be read only once."""

    name: str  # names the split in messages
    chunks: Iterable[Chunk]
    rows: int | None = None  # required number of pairs; None: any


@dataclass(frozen=True)
class RawText:
    """The raw text of a corpus. Its splits can be read only once."""

    origin: str  # address, directory or description of the source
    splits: dict[str, Split]
    files: list[Path] = field(default_factory=list)  # local files that hold the text
    advice: str | None = None  # ends the error about a wrong number of pairs; None: warn instead
    hashes: dict[Path, str] = field(default_factory=dict)  # SHA-256 of files that were read to the end


def checked_chunks(text: RawText, split: str, setting: str | None = "corpus.rows") -> Iterator[Chunk]:
    """Yield the pairs of a split, and then check their number.

    If the number is wrong, raise DataError with the advice of `text`, or only warn if `text` has no advice. For
    training pairs, the error also offers to accept the number with `setting`, if given.
    """
    rows, expected = 0, text.splits[split].rows
    for chunk in text.splits[split].chunks:
        yield chunk
        rows += len(chunk.src)
    if expected not in (None, rows):
        message = f"{split} has {rows:,} pairs, but {expected:,} are expected ({text.origin})"
        if text.advice is not None:
            accept = f", or accept this number with {setting}={rows}" if split == "train" and setting else ""
            raise DataError(f"{message}. {text.advice}{accept}")
        warn(f"{message}. The text is an excerpt or another edition, so results will differ")


def text_bytes(files: Iterable[Path]) -> int:
    """Estimate the uncompressed size, in bytes, of the text in files."""
    packed = (".gz", ".bz2", ".xz", ".zst", ".zip", ".parquet")  # the text in them is about three times as large
    return sum(file.stat().st_size * (3 if file.suffix in packed else 1) for file in files)


def first_pairs(chunks: Iterable[Chunk], count: int) -> Iterator[Chunk]:
    """Yield the first `count` pairs, or all of them if there are fewer. Read no further."""
    for chunk in chunks:
        if len(chunk.src) >= count:
            yield chunk._replace(src=chunk.src[:count], tgt=chunk.tgt[:count], scores=chunk.scores[:count])
            return
        yield chunk
        count -= len(chunk.src)


class Source(ABC):
    """A source of raw text for one corpus section, perhaps from a local mirror instead of the network."""

    generated: bool = False  # whether a program generated the text

    def __init__(self, corpus: schema.Corpus, mirror: Path | None) -> None:
        self.corpus = corpus
        self.mirror = mirror

    @property
    def fills_cache(self) -> bool:
        """Whether `open` stores a copy of the whole text in the cache of the hub client."""
        return False

    @property
    @abstractmethod
    def origin(self) -> str:
        """Address, directory or description of the source."""

    def open_named(self, downloads: Path, work: Path) -> Mapping[int, RawText]:
        """Open each named corpus in corpus.sources, as `open` does. Return the texts by index in corpus.sources."""
        return {}

    @abstractmethod
    def open(self, downloads: Path, work: Path) -> RawText:
        """Return the text, ready to be read. `downloads` is the directory for downloads, `work` for temporary files."""

    @abstractmethod
    def local_files(self) -> list[Path]:
        """Return the local files that hold the text: the user's files, or the files in the mirror."""

    @abstractmethod
    def published_size(self) -> Size:
        """Return the published size of the text, for use if there are no local files."""

    def size(self) -> Size:
        """Estimate the size of the text without reading it."""
        files = self.local_files()
        if not files:
            return self.published_size()
        if not all(file.is_file() for file in files):
            return Size(0, None, self.corpus.rows)
        return Size(0, text_bytes(files), self.corpus.rows)

    def count_pairs(self) -> int | None:
        """Return the number of training pairs in local files.

        Return None if there are no local files, or if counting would take minutes. Raises MissingError if a file does
        not exist.
        """
        files = self.local_files()
        for file in files:
            if not file.is_file():
                raise MissingError(f"{file} does not exist. Check the path")
        if not files or sum(file.stat().st_size for file in files) > MOST_COUNTED:
            return None
        return count_pairs(self.open(Path(), Path()).splits["train"].chunks)
