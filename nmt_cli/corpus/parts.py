"""Parts of a corpus that several machines prepare together in a shared directory.

A part is a run of about PART_PAIRS consecutive training pairs. (Elsewhere, "a part of the corpus" is the text of one
source.) A bucket is a range of pair hashes. The shared directory contains these directories, where N is the number of a
part and B the number of a bucket:

job            the settings and input files, which must be the same for all shards
held-out       the held-out pairs
cleaned/N      the cleaned text of part N, and the hashes of its pairs in ascending order
text           the number of parts and the hashes of the input files, stored by the first shard that has read all text
repeated/B     the pairs that equal an earlier pair and have a hash in bucket B, as positions in the whole cleaned text
tokenizer      the tokenizer, and the text of the held-out pairs
encoded/N      the token ids of part N

Each of them is committed by one rename, and never changes. Its manifest contains the hashes of its files.
"""

import functools
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt_cli.corpus import stages, store
from nmt_cli.corpus.cleaning import CleaningStats
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError, OutputError

PART_PAIRS = 100_000
HASH_BYTES = 16
KIND = "shared part"
Positions = npt.NDArray[np.uint64]  # positions of pairs in the whole cleaned text


def keep(target: Path, files: dict[str, bytes], entries: dict[str, Any]) -> None:
    """Commit a directory with these files and manifest entries, unless another shard has just committed it."""
    try:
        sealed = {"entries": entries, "digest": artefact.digest(entries)}
        with artefact.staged(target, KIND, sealed, own_name=True) as stage:
            for name, data in files.items():
                artefact.write_file(stage / name, data)
    except OutputError:
        if not artefact.present(target):
            raise


def entries_of(directory: Path, *, content: bool = False, later: Path | None = None) -> dict[str, Any]:
    """Return the entries that `keep` stored in a committed directory.

    Raises DataError if the directory is missing or damaged. This function checks the entries and the sizes of the
    files and, with `content`, also the hashes of the files. `later` is a directory that was made from these files.
    The error advises the user to remove `later` as well, because it may contain the same damage.
    """
    try:
        manifest = artefact.verify(directory, KIND, content=content)
        entries: dict[str, Any] = manifest.get("entries", {})
        if artefact.digest(entries) != manifest.get("digest"):
            raise DataError(f"{directory / artefact.MANIFEST} is damaged: its entries do not match their digest")
    except (DataError, MissingError) as error:
        damaged = f"{directory} and {later}" if later else directory
        raise DataError(f"{error}. Remove {damaged}, and run all shards again") from None
    return entries


def numbers_in(directory: Path) -> set[int]:
    """Return the numbers of the parts or buckets that a directory holds."""
    if not directory.is_dir():
        return set()
    return {int(path.name) for path in directory.iterdir() if path.name.isdecimal()}


def numbered(directory: Path, number: int) -> Path:
    return directory / f"{number:07}"


def plain(stats: CleaningStats) -> dict[str, Any]:
    """Convert counts to JSON values, which `stats_of` converts back."""
    kept = {str(part): count for part, count in stats.kept.items()}
    counts = {"read": stats.read, "dropped": dict(stats.dropped), "kept": kept}
    by_part = [[*key, count] for key, count in stats.by_part.items()]
    sides = [[*key, count] for key, count in stats.sides.items()]
    samples = {"by_part": by_part, "sides": sides, "turned": stats.turned}
    return {**counts, **samples, "examples": stats.examples, "first_line": stats.first_line}


def stats_of(values: dict[str, Any]) -> CleaningStats:
    """Convert JSON values from `plain` to counts."""
    stats = CleaningStats(int(values["read"]), first_line=values["first_line"], turned=int(values["turned"]))
    stats.dropped.update(values["dropped"])
    stats.kept.update({int(part): count for part, count in values["kept"].items()})
    stats.by_part.update({(part, reason): count for part, reason, count in values["by_part"]})
    stats.sides.update({(part, swapped): count for part, swapped, count in values["sides"]})
    stats.examples = {reason: [(src, tgt) for src, tgt in pairs] for reason, pairs in values["examples"].items()}
    return stats


def sorted_hashes(hashes: bytes) -> dict[str, bytes]:
    """Return the contents of two files: the sorted hashes, and for each hash the position of its pair in the part."""
    pairs = np.frombuffer(hashes, "<u8").reshape(-1, 2)
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))  # stable: equal hashes keep their order
    return {"hashes": pairs[order].tobytes(), "order": order.astype("<u4").tobytes()}


def _mapped(file: Path, dtype: str) -> npt.NDArray[Any]:
    """Map the numbers in a file, which may be empty, into memory."""
    return np.memmap(file, dtype, "r") if file.stat().st_size else np.zeros(0, dtype)


@dataclass(frozen=True)
class Cleaned:
    """The cleaned text of all parts."""

    directory: Path  # the shared directory
    starts: tuple[int, ...]  # position of the first pair of each part, followed by the total number of pairs
    ends: store.Lengths  # position where each part of the corpus ends
    drops_duplicates: tuple[bool, ...]  # for each part of the corpus, whether duplicates are dropped

    @property
    def parts(self) -> int:
        return len(self.starts) - 1

    @property
    def pairs(self) -> int:
        return self.starts[-1]

    @property
    def buckets(self) -> int:
        """The number of buckets, each of which fits into memory. It is 0 if no part of the corpus drops duplicates."""
        return -(-self.pairs // stages.HASHES_AT_ONCE) if any(self.drops_duplicates) else 0

    def find_repeated(self, bucket: int) -> Positions:
        """Return the ascending positions of pairs that equal an earlier pair and have a hash in this bucket.

        Pairs in parts of the corpus that keep duplicates are left out.
        """
        found, positions = [np.zeros((0, 2), "<u8")], [np.zeros(0, np.uint64)]
        for part in range(self.parts):
            directory = numbered(self.directory / "cleaned", part)
            hashes = _mapped(directory / "hashes", "<u8").reshape(-1, 2)
            first, end = (_before(hashes, number * (1 << 64) // self.buckets) for number in (bucket, bucket + 1))
            found.append(np.asarray(hashes[first:end]))
            order = _mapped(directory / "order", "<u4")[first:end]
            positions.append(order.astype(np.uint64) + np.uint64(self.starts[part]))
        all_hashes, all_positions = np.concatenate(found), np.concatenate(positions)
        order = np.lexsort((all_positions, all_hashes[:, 1], all_hashes[:, 0]))
        same = (all_hashes[order[1:]] == all_hashes[order[:-1]]).all(1)
        repeated = np.sort(all_positions[order[1:][same]])
        part_of_pair = np.searchsorted(self.ends, repeated.astype(np.int64), "right")
        dropped: Positions = repeated[np.array(self.drops_duplicates, bool)[part_of_pair]]
        return dropped

    @functools.cached_property
    def _repeated(self) -> list[Positions]:
        directories = [numbered(self.directory / "repeated", bucket) for bucket in range(self.buckets)]
        for directory in directories:
            entries_of(directory, content=True)
        return [_mapped(directory / "positions", "<u8") for directory in directories]

    @property
    def distinct(self) -> int:
        """The number of pairs that are not dropped as duplicates. Requires that all buckets have been searched."""
        return self.pairs - sum(map(len, self._repeated))

    def repeats(self, part: int) -> stages.Repeated:
        """Return, for each pair of a part, whether it is dropped because it equals an earlier pair of the text."""
        start, end = self.starts[part : part + 2]
        repeated = np.zeros(end - start, bool)
        for positions in self._repeated:
            first, last = np.searchsorted(positions, np.array([start, end], np.uint64))
            repeated[(positions[first:last] - np.uint64(start)).astype(np.int64)] = True
        return repeated

    def chunks(self, part: int) -> Iterator[stages.TextChunk]:
        """Yield the text of a part. Raises DataError if the part is damaged."""
        directory, repeated = numbered(self.directory / "cleaned", part), self.repeats(part)
        entries_of(directory, content=True, later=self.directory / "repeated")
        src, tgt = ((directory / side).read_bytes().decode().split("\n") for side in ("src", "tgt"))
        for first, end, number in stages.spans(0, len(repeated), self.ends - self.starts[part]):
            yield src[first:end], tgt[first:end], repeated[first:end], number

    def sample(self, seed: int) -> Iterator[str]:
        """Yield a random sample of lines, on which the tokenizer is trained."""
        chunks = (chunk for part in range(self.parts) for chunk in self.chunks(part))
        yield from stages.sampled(chunks, self.distinct, seed)


def _before(hashes: npt.NDArray[np.uint64], bound: int) -> int:
    """Return the number of hashes whose first 8 bytes are below `bound`. The hashes are sorted."""
    first, end = 0, len(hashes)
    while first < end:  # a binary search by NumPy would read the whole file
        middle = (first + end) // 2
        if int(hashes[middle, 0]) < bound:
            first = middle + 1
        else:
            end = middle
    return first


def append_encoded(directory: Path, writers: dict[str, store.SideWriter], types: dict[str, str]) -> dict[str, Any]:
    """Append the ids of an encoded part to both sides of the corpus, and return the entries of the part.

    `types` maps the name of each side to the type of its ids. Raises DataError if the part is damaged.
    """
    entries = entries_of(directory, content=True)
    for name, writer in writers.items():
        ids = np.frombuffer((directory / f"{name}.ids").read_bytes(), types[name])
        lengths = np.frombuffer((directory / f"{name}.lengths").read_bytes(), "<u4")
        writer.append(ids, lengths.astype(np.int64))
    return entries


def encoded_files(results: list[tuple[Any, ...]], sizes: dict[str, int]) -> dict[str, bytes]:
    """Return the contents of the files of an encoded part, by name.

    Each of `results` begins with the ids and the lengths of both sides. `sizes` maps each side to its vocabulary size.
    """
    files = dict[str, io.BytesIO]()
    for ids, lengths, *_ in results:
        for side, (name, size) in enumerate(sizes.items()):
            files.setdefault(f"{name}.ids", io.BytesIO()).write(ids[side].astype(store.id_type(size)).tobytes())
            files.setdefault(f"{name}.lengths", io.BytesIO()).write(lengths[side].astype("<u4").tobytes())
    return {name: file.getvalue() for name, file in files.items()}
