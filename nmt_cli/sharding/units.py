"""Divide files into units, which are ranges of whole lines, in the same way on every worker."""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

from nmt_cli.corpus.readers import MAX_LINE_BYTES
from nmt_cli.sharding import inputs
from nmt_cli.sharding.inputs import Input
from nmt_cli.system.errors import DataError

UNIT_LINES = 10_000
MAX_UNIT_BYTES = 16 << 20  # a unit ends after the line that reaches this size
BLOCK = 1 << 20  # bytes that are read at once


class Unit(NamedTuple):
    number: int  # number of the unit among the units of all files, from 0
    file: int  # index of the input file
    first: int  # number of the first line in the file, from 1
    lines: int
    offset: int  # in the decompressed file, in bytes
    bytes: int

    @property
    def last(self) -> int:
        return self.first + self.lines - 1


class Content(NamedTuple):
    """The lines of a unit, and the hash of all its bytes. Lines longer than MAX_LINE_BYTES may be cut in `data`."""

    data: bytes
    sha256: str


def measure(file: IO[bytes], most_lines: int) -> Iterator[tuple[int, int]]:
    """Yield a tuple (lines, bytes) for each unit of an open file. A unit has at most `most_lines` lines."""
    import numpy as np  # here, because most workers read the plan and do not count

    lines = size = 0
    last = b""
    while block := file.read(BLOCK):
        ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
        start = first = 0  # offset of the rest of the block, and index of its first line end
        last = block[-1:]
        while start < len(block):
            by_lines = first + most_lines - lines - 1
            by_size = int(np.searchsorted(ends, start + MAX_UNIT_BYTES - size))
            final = min(by_lines, by_size)  # index of the line end that completes the unit
            complete = final < len(ends)
            stop = int(ends[final]) if complete else len(block)
            lines += min(final + 1, len(ends)) - first
            size += stop - start
            start = stop
            first = final + 1
            if complete:
                yield lines, size
                lines = size = 0
    if size:
        yield lines + (last != b"\n"), size


class Reader(contextlib.AbstractContextManager["Reader"]):
    """Reads the units of several files. To skip lines of a compressed file, it must decompress them."""

    def __init__(self, files: list[Input]) -> None:
        self._files = files
        self._file_index = -1  # index of the open file; -1 if none is open
        self._offset = 0
        self._stream: IO[bytes]
        self._opened = contextlib.ExitStack()

    def __exit__(self, *_: object) -> None:
        self._opened.close()
        self._file_index = -1

    def read(self, unit: Unit) -> Content:
        """Return the lines of a unit. Raise DataError if the file has changed since its lines were counted."""
        file = self._files[unit.file]
        if unit.file != self._file_index or (unit.offset < self._offset and file.compressed):
            self._opened.close()
            self._file_index, self._offset = unit.file, 0
            self._stream = self._opened.enter_context(inputs.opened(file))
        if not file.compressed:
            self._stream.seek(unit.offset)
        while file.compressed and self._offset < unit.offset:
            skipped = self._stream.read(min(BLOCK, unit.offset - self._offset))
            self._offset += len(skipped)
            if not skipped:
                break
        content = _content(self._stream, unit)
        if content is None:
            raise DataError(f"{file.place} has changed since its lines were counted. Start again with another --output")
        self._offset = unit.offset + unit.bytes
        return content


def _content(stream: IO[bytes], unit: Unit) -> Content | None:
    """Read a unit. Return None if the file ends too early or the number of lines is wrong."""
    if unit.bytes <= MAX_UNIT_BYTES + MAX_LINE_BYTES:
        data = stream.read(unit.bytes)
        complete = len(data) == unit.bytes and data.count(b"\n") + (not data.endswith(b"\n")) == unit.lines
        return Content(data, hashlib.sha256(data).hexdigest()) if complete else None
    kept, left, hashed = list[bytes](), unit.bytes, hashlib.sha256()
    while left:
        line = stream.readline(min(MAX_LINE_BYTES + 1, left))
        kept.append(line if line.endswith(b"\n") or len(line) == left else line + b"\n")
        while line:
            hashed.update(line)
            left -= len(line)
            if line.endswith(b"\n") or not left:
                break
            line = stream.readline(min(MAX_LINE_BYTES, left))
        if not line:
            return None
    return Content(b"".join(kept), hashed.hexdigest()) if len(kept) == unit.lines else None


def count(file: Input, most_lines: int) -> list[tuple[int, int]]:
    """Read a whole file and return a tuple (lines, bytes) for each of its units."""
    with inputs.opened(file) as stream:
        return list(measure(stream, most_lines))


def numbered(counts: Sequence[Sequence[Sequence[int]]]) -> list[Unit]:
    """Return the units of all files. `counts` are the results of `count` for each file."""
    units = list[Unit]()
    for file, sizes in enumerate(counts):
        first, offset = 1, 0
        for lines, size in sizes:
            units.append(Unit(len(units), file, first, lines, offset, size))
            first += lines
            offset += size
    return units
