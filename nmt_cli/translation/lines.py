"""Read lines from a file, a pipe or a terminal as they arrive."""

import codecs
import itertools
import os
import re
import select
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from nmt_cli.corpus.readers import MAX_LINE_BYTES, check_plain
from nmt_cli.system.errors import DataError

READ_BYTES = 1 << 16  # maximum bytes per read
# Approximate number of characters in a chunk of lines. The segments of a chunk are sorted and queued together.
CHUNK_CHARACTERS = 1 << 16


def count_lines(descriptor: int) -> int | None:
    """Return the number of lines left to read. Return None unless the input is a regular file of at most 1 GiB."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > 1 << 30:
        return None
    offset, count, end = os.lseek(descriptor, 0, os.SEEK_CUR), 0, b"\n"
    while block := os.pread(descriptor, MAX_LINE_BYTES, offset):
        offset += len(block)
        count += block.count(b"\n")
        end = block[-1:]
    return count + (end != b"\n")


def chunks_of(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield lines in chunks of about CHUNK_CHARACTERS characters."""
    chunk, size = list[str](), 0
    for line in lines:
        chunk.append(line)
        size += len(line) + 1 if isinstance(line, str) else 1  # if it is not str, the segmenter will raise TypeError
        if size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def read_chunks(
    descriptor: int,
    counts: Counter[str],
    name: str = "line",
    *,
    strict: bool = False,
    first: int = 1,
    all_read: Callable[[], object] = lambda: None,
) -> Iterator[list[str]]:
    """Yield lines in chunks of about CHUNK_CHARACTERS characters, or in shorter chunks if the next read would block.

    Lines of more than MAX_LINE_BYTES are cut. In a line that is not UTF-8, U+FFFD replaces each run of invalid bytes.
    `counts` counts both kinds of lines. Raise DataError if line 1 is not UTF-8 and looks like the start of a compressed
    or binary file. With `strict`, raise it for any line that is not UTF-8. `name` is the word for a line in messages,
    and `first` the number of the first line. Call `all_read` when the caller has taken the last chunk and asks for
    another.
    """
    chunk, size = list[str](), 0
    for line in _read(descriptor, counts, name, strict, first):
        if line is not None:
            chunk.append(line)
            size += len(line) + 1
        if size >= CHUNK_CHARACTERS or (chunk and line is None and not select.select([descriptor], [], [], 0)[0]):
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
    all_read()


def read_lines(descriptor: int, counts: Counter[str], name: str = "line", *, strict: bool = False) -> Iterator[str]:
    """Yield the lines that `read_chunks` reads."""
    return itertools.chain.from_iterable(read_chunks(descriptor, counts, name, strict=strict))


def _read(descriptor: int, counts: Counter[str], name: str, strict: bool, first: int) -> Iterator[str | None]:
    """Yield lines. A read may block, so yield None before it: the caller can then pass on the lines that it has."""
    number, line, block = first - 1, b"", b"more"
    while block:
        yield None
        block = os.read(descriptor, READ_BYTES)
        if not block and line:
            *ends, rest = b"", b""  # the input ends without a line feed: end its last line here
        else:
            *ends, rest = block.split(b"\n")
        for end in ends:
            number += 1
            whole, line = line + end, b""
            counts["huge"] += len(whole) > MAX_LINE_BYTES
            try:
                text = _decode(whole, "strict")
            except UnicodeDecodeError:
                if number == 1:
                    check_plain(whole, "the input")
                if strict:
                    raise DataError(f"{name} {number} is not UTF-8. Convert it, or leave out --strict") from None
                counts["invalid"] += 1
                counts["first invalid"] = counts["first invalid"] or number
                text = re.sub("\ufffd+", "\ufffd", _decode(whole, "replace"))
            yield text
        line = (line + rest)[: MAX_LINE_BYTES + 1]  # one byte over the limit shows that the line is too long


def _decode(line: bytes, errors: str) -> str:
    """Return the text of a line. If the line is too long, cut it at a character boundary."""
    return codecs.utf_8_decode(line[:MAX_LINE_BYTES], errors, len(line) <= MAX_LINE_BYTES)[0]
