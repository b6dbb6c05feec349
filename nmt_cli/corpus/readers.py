"""The user's text files, plain or gzip, as lines that end at line feeds and nowhere else."""

import codecs
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from nmt_cli.system.console import counted
from nmt_cli.system.errors import DataError, MissingError

CHUNK, MAX_LINE_BYTES = 4000, 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"PK\3\4": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC |= {b"PAR1": "parquet", b"\xff\xfe": "UTF-16 or UTF-32", b"\xfe\xff": "UTF-16", b"\0\0\xfe\xff": "UTF-32"}


class Chunk(NamedTuple):  # some thousands of pairs; None stands for a line over MAX_LINE_BYTES
    src: list[bytes | None]
    tgt: list[bytes | None]
    repetition: int = 0  # how often the corpus lists the two files before: [a, a] is 0, then 1


def check_plain(data: bytes, name: str) -> None:
    if kind := next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None):
        raise DataError(f"{name} is not plain text, it looks like {kind}. Unpack or convert it to UTF-8")


def split_lines(data: bytes, name: str) -> list[str]:
    """Return the lines of UTF-8 text, without a BOM, split at line feeds only; DataError names a line of other text."""
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        check_plain(data, name)
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
        self.sha256.update(memoryview(buffer)[:size])
        return size


def lines(path: Path, hashes: dict[Path, str]) -> Iterator[bytes | None]:
    """Yield every line without its line feed; None for one over the limit, which is never held in memory."""
    if not path.is_file():
        raise MissingError(f"{path} is {'not a file' if path.exists() else 'not there'}. Check the path")
    if path.name.removesuffix(".gz").endswith((".tsv", ".jsonl", ".parquet", ".mrg")):
        raise DataError(f"{path}: convert it to plain text or .gz, one file a side (trees need corpus.format=trees)")
    try:
        with _HashedFile(path) as raw:
            packed = io.BufferedReader(raw)
            file = io.BufferedReader(gzip.GzipFile(fileobj=packed)) if path.suffix == ".gz" else packed
            check_plain(file.peek(4), str(path))
            while line := file.readline(MAX_LINE_BYTES + 1):
                whole = line.endswith(b"\n") or len(line) <= MAX_LINE_BYTES
                yield line.removesuffix(b"\n") if whole else None
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
            hashes[path] = raw.sha256.hexdigest()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is truncated or corrupt: {error}. Copy it again") from None


def read_pairs(src: str, tgt: str, repetition: int, hashes: dict[Path, str]) -> Iterator[Chunk]:
    """Yield the pairs of two parallel files, some thousands at a time; then store the SHA-256 of both in `hashes`."""
    sides = lines(Path(src), hashes), lines(Path(tgt), hashes)
    for before in count(0, CHUNK):
        chunk = Chunk(list(islice(sides[0], CHUNK)), list(islice(sides[1], CHUNK)), repetition)
        if len(chunk.src) != len(chunk.tgt):
            totals = [before + len(read) + sum(1 for _ in rest) for read, rest in zip(chunk[:2], sides, strict=True)]
            what = f"{src} has {counted(totals[0], 'line')}, {tgt} has {totals[1]:,}"
            raise DataError(f"{what}: they are not parallel. Compare them at their origin")
        if not chunk.src:
            return
        yield chunk
