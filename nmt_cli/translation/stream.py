"""Bytes in and bytes out: lines as they come, never read far ahead, never held when huge, never cut on the way out."""

import os
import select
import stat
from collections.abc import Iterable, Iterator

MAX_LINE_BYTES = 1 << 20  # the rest of a longer line is read and dropped
READ_BYTES = 1 << 16
CHUNK_LINES, CHUNK_BYTES = 8192, 64 << 20
COUNTED_BYTES = 1 << 30  # a second's work
PIPE_BYTES = 4096  # POSIX: a write of at most this much to a pipe happens wholly or not at all


def count_lines(descriptor: int) -> int | None:
    """Return how many lines are left to read; None where that cannot be known, or not soon."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > COUNTED_BYTES:
        return None
    place, count, end = os.lseek(descriptor, 0, os.SEEK_CUR), 0, b"\n"
    while block := os.pread(descriptor, MAX_LINE_BYTES, place):
        place, count, end = place + len(block), count + block.count(b"\n"), block[-1:]
    return count + (end != b"\n")


class LineReader:
    """Splits a file descriptor into lines at line feeds only.

    Args:
        descriptor: an open file, pipe or terminal.

    Attributes:
        cut: how many lines were longer than MAX_LINE_BYTES.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.cut, self.ended = descriptor, 0, False
        self._parts: list[bytes] = []  # of the line being read
        self._size = 0
        self._long = False

    def take(self, *, wait: bool) -> list[bytes]:
        """Return the lines that are there, without their line feeds, up to a chunk; there may be none.

        Args:
            wait: if there is none, wait for one or for the end.
        """
        lines: list[bytes] = []
        size = 0
        while not self.ended and len(lines) < CHUNK_LINES and size < CHUNK_BYTES:
            if (lines or not wait) and not select.select([self.descriptor], [], [], 0)[0]:
                break
            block = os.read(self.descriptor, READ_BYTES)
            self.ended = not block
            for line in self._split(block):
                lines.append(line)
                size += len(line)
        return lines

    def _split(self, block: bytes) -> Iterator[bytes]:
        *whole, rest = block.split(b"\n")
        for part in whole:
            self._keep(part)
            yield self._take()
        self._keep(rest)
        if not block and self._size:  # the last line has no line feed
            yield self._take()

    def _keep(self, part: bytes) -> None:
        room = MAX_LINE_BYTES - self._size
        if len(part) > room:
            part, self._long = part[:room], True
        if part:
            self._parts.append(part)
            self._size += len(part)

    def _take(self) -> bytes:
        line = b"".join(self._parts)
        self.cut += self._long
        self._parts, self._size, self._long = [], 0, False
        return line


def write_lines(descriptor: int, lines: Iterable[str]) -> None:
    """Write lines at once, so that what is stopped between two writes has written whole lines."""
    block = b""
    for line in lines:
        data = line.encode() + b"\n"
        if block and len(block) + len(data) > PIPE_BYTES:
            _write(descriptor, block)
            block = b""
        block += data
    _write(descriptor, block)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
