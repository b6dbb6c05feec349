"""The user's text files, plain or gzip: split into lines, hashed and counted in one reading.

Lines end at line feeds and nowhere else, and no corpus is held in memory.
"""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nmt_cli.errors import DataError, MissingError

Chunk = tuple[list[bytes | None], list[bytes | None]]  # source and target lines; None: over MAX_LINE_BYTES
BLOCK = MAX_LINE_BYTES = 1 << 20
_OTHER_FORMATS = {
    ".zst": "Unpack it with zstd -d",
    ".tsv": "Cut it into two text files with cut -f1 and cut -f2",
    ".jsonl": "Write each side into a text file with jq -r",
    ".parquet": "Write each side into a text file, or name the data set: hub:OWNER/NAME, with --mirror DIR",
    ".mrg": "Bracketed trees need corpus.format=trees, as in recipes/parsing.yaml",
}
_MAGIC = {b"\x1f\x8b": "gzip", b"PK\3\4": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC |= {b"PAR1": "parquet", b"\xff\xfe": "UTF-16 or UTF-32", b"\xfe\xff": "UTF-16", b"\0\0\xfe\xff": "UTF-32"}


def split_lines(data: bytes, name: str) -> list[str]:
    """Return the lines of UTF-8 text, split at line feeds only.

    Raises:
        DataError: a line is not UTF-8; the message says which of `name`.
    """
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}, line {number:,} is not UTF-8. Convert it, for example with iconv") from None
    return lines[:-1] if lines[-1] == "" else lines


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file; [] where it does not exist."""
    return split_lines(path.read_bytes(), str(path)) if path.exists() else []


class _Hashed:
    """A file that hashes what is read of it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.sha256 = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.sha256.update(data)
        return data


def _blocks(path: Path, sources: list[dict[str, Any]]) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file; at its end add its name, bytes and SHA-256 to `sources`."""
    if not path.is_file():
        raise MissingError(f"{path} is {'not a file' if path.exists() else 'not there'}. Check the path")
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix in _OTHER_FORMATS:
        raise DataError(f"{path}: only plain text and .gz are read, one sentence a line. {_OTHER_FORMATS[suffix]}")
    with path.open("rb") as raw:
        hashed: Any = _Hashed(raw)
        file = gzip.GzipFile(fileobj=hashed) if path.suffix == ".gz" else hashed
        first = True
        try:
            while block := file.read(BLOCK):
                kind = next((kind for magic, kind in _MAGIC.items() if first and block.startswith(magic)), None)
                if kind:
                    raise DataError(f"{path} is not plain text, it looks like {kind}. Unpack or convert it to UTF-8")
                first = False
                yield block
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path} is truncated or corrupt: {error}. Copy it again") from None
        sources.append({"name": path.name, "bytes": raw.tell(), "sha256": hashed.sha256.hexdigest()})


def _lines(path: Path, sources: list[dict[str, Any]]) -> Iterator[list[bytes | None]]:
    """Yield some thousands of lines at a time; None for a line over the limit."""
    carry: bytes | None = b""  # the start of a line whose end has not come; None: it is too long already
    for block in _blocks(path, sources):
        first, *rest = block.split(b"\n")
        lines: list[bytes | None] = [None if carry is None else carry + first, *rest]
        lines = [None if line is None or len(line) > MAX_LINE_BYTES else line for line in lines]
        carry = lines.pop()
        yield lines
    yield [] if carry == b"" else [carry]


def read_pairs(src: Path, tgt: Path, sources: list[dict[str, Any]]) -> Iterator[Chunk]:
    """Yield the pairs of two parallel files, some thousands at a time; at their end add their facts to `sources`.

    Raises:
        MissingError: a file is not there.
        DataError: a file is empty, packed or damaged, or the two have different numbers of lines.
    """
    streams = [_lines(path, sources) for path in (src, tgt)]
    waiting: list[list[bytes | None]] = [[], []]
    rows = [0, 0]
    while True:
        for i, stream in enumerate(streams):
            while not waiting[i] and (lines := next(stream, None)) is not None:
                waiting[i] = lines
                rows[i] += len(lines)
        count = min(map(len, waiting))
        if not count:
            break
        yield waiting[0][:count], waiting[1][:count]
        waiting = [lines[count:] for lines in waiting]
    for i, stream in enumerate(streams):
        rows[i] += sum(map(len, stream))
    if 0 in rows:
        raise DataError(f"{(src, tgt)[rows.index(0)]} is empty")
    if rows[0] != rows[1]:
        raise DataError(
            f"{src} has {rows[0]:,} lines, {tgt} has {rows[1]:,}: they are not parallel. Compare them at their origin"
        )
    for source in sources[-2:]:
        source["rows"] = rows[0]
