"""The user's text files, plain or gzip, as lines that end at line feeds and nowhere else."""

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from nmt_cli.errors import DataError, MissingError

Chunk = tuple[list[bytes | None], list[bytes | None]]  # source and target lines; None: over MAX_LINE_BYTES
CHUNK, MAX_LINE_BYTES = 4000, 1 << 20
_OTHER_FORMATS = {
    ".tsv": "Cut it into two text files with cut -f1 and cut -f2",
    ".jsonl": "Write each side into a text file with jq -r",
    ".parquet": "Write each side into a text file, or name the data set: hub:OWNER/NAME, with --mirror DIR",
    ".mrg": "Bracketed trees need corpus.format=trees, as in recipes/parsing.yaml",
}
_MAGIC = {b"\x1f\x8b": "gzip", b"PK\3\4": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC |= {b"PAR1": "parquet", b"\xff\xfe": "UTF-16 or UTF-32", b"\xfe\xff": "UTF-16", b"\0\0\xfe\xff": "UTF-32"}


def split_lines(data: bytes, name: str) -> list[str]:
    """Return the lines of UTF-8 text, split at line feeds only; DataError names the line that is not UTF-8."""
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}, line {number:,} is not UTF-8. Convert it, for example with iconv") from None
    return lines[:-1] if lines[-1] == "" else lines


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file; [] where it does not exist."""
    return split_lines(path.read_bytes(), str(path)) if path.exists() else []


class _HashedFile(io.FileIO):
    """A file whose SHA-256 is computed while it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.sha256 = hashlib.sha256()

    def readinto(self, buffer: Any) -> int | None:
        size = super().readinto(buffer)
        self.sha256.update(memoryview(buffer)[: size or 0])
        return size


def _lines(path: Path, hashes: dict[Path, str]) -> Iterator[bytes | None]:
    """Yield every line without its line feed; None for one over the limit, which is never held in memory."""
    if not path.is_file():
        raise MissingError(f"{path} is {'not a file' if path.exists() else 'not there'}. Check the path")
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix in _OTHER_FORMATS:
        raise DataError(f"{path}: only plain text and .gz are read, one sentence a line. {_OTHER_FORMATS[suffix]}")
    try:
        with _HashedFile(path) as raw:
            packed = io.BufferedReader(raw)
            file = io.BufferedReader(gzip.GzipFile(fileobj=packed)) if path.suffix == ".gz" else packed
            start = file.peek(4)
            kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
            if kind:
                raise DataError(f"{path} is not plain text, it looks like {kind}. Unpack or convert it to UTF-8")
            while line := file.readline(MAX_LINE_BYTES + 1):
                whole = line.endswith(b"\n") or len(line) <= MAX_LINE_BYTES
                yield line.removesuffix(b"\n") if whole else None
                while not whole and line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
            hashes[path] = raw.sha256.hexdigest()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is truncated or corrupt: {error}. Copy it again") from None


def read_pairs(src: str, tgt: str, hashes: dict[Path, str]) -> Iterator[Chunk]:
    """Yield the pairs of two parallel files, some thousands at a time; then store the SHA-256 of both in `hashes`."""
    sides, rows = (_lines(Path(src), hashes), _lines(Path(tgt), hashes)), [0, 0]
    while True:
        chunk = [list(islice(side, CHUNK)) for side in sides]
        rows = [count + len(lines) for count, lines in zip(rows, chunk, strict=True)]
        if not chunk[0] or len(chunk[0]) != len(chunk[1]):
            break
        yield chunk[0], chunk[1]
    rows = [count + sum(1 for _ in side) for count, side in zip(rows, sides, strict=True)]
    if 0 in rows:
        raise DataError(f"{(src, tgt)[rows.index(0)]} is empty")
    if rows[0] != rows[1]:
        counts = f"{src} has {rows[0]:,} lines, {tgt} has {rows[1]:,}"
        raise DataError(f"{counts}: they are not parallel. Compare them at their origin")
