"""Read plain or compressed text files. Only a line feed ends a line."""

import codecs
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from nmt_cli.corpus.opening import opened, uncompressed_name
from nmt_cli.system.console import counted
from nmt_cli.system.errors import DataError

CHUNK = 4000  # pairs that are read and processed together
MAX_LINE_BYTES = 1 << 20
BLOCK_BYTES = 1 << 18  # bytes per read call; one call per line would take twice as long
_MAGIC = {b"\x1f\x8b": "gzip", b"PK\3\4": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_MAGIC |= {b"PAR1": "parquet", b"\xff\xfe": "UTF-16 or UTF-32", b"\xfe\xff": "UTF-16", b"\0\0\xfe\xff": "UTF-32"}

FilePair = tuple[str, str]  # paths of the source side and the target side


class Chunk(NamedTuple):
    """Pairs of raw lines that are processed together, usually up to CHUNK. A line over MAX_LINE_BYTES is None."""

    src: Sequence[bytes | None]
    tgt: Sequence[bytes | None]
    repetition: int = 0  # number of earlier entries with the same files: 0 and 1 for the entries [a, a]
    source: int | None = None  # index in corpus.sources
    part: int = 0  # number of the part of the corpus, from 0, in the order of the manifest
    scores: Sequence[float | None] = ()  # score of each pair, if the source has a column of scores
    languages: tuple[str, str] | None = None  # set for synthetic text, whose source lines already have tag tokens


def check_plain(data: bytes, name: str) -> None:
    """Raise DataError if `data` begins like a compressed or parquet file, or like UTF-16 or UTF-32 text."""
    if kind := next((kind for magic, kind in _MAGIC.items() if data.startswith(magic)), None):
        raise DataError(f"{name} is not plain text, it looks like {kind}. Unpack it or convert it to UTF-8")


def split_lines(data: bytes, name: str) -> list[str]:
    """Return the lines of UTF-8 text, split at line feeds only. Removes a BOM at the start.

    Raises DataError if a line is not UTF-8. The error names the line or the actual format of the file.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        check_plain(data, name)
        number = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}, line {number:,} is not UTF-8. Convert it, for example with iconv") from None
    return lines[:-1] if lines[-1] == "" else lines


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, or [] if the file does not exist."""
    return split_lines(path.read_bytes(), str(path)) if path.exists() else []


def raw_lines(path: Path, hashes: dict[Path, str]) -> Iterator[bytes | None]:
    """Yield the lines of a plain or compressed file as bytes without line feeds. Yield None for an overlong line.

    At the end of the file, store its SHA-256 in `hashes`. Raises DataError if the file has another format.
    """
    if uncompressed_name(path).endswith((".tsv", ".csv", ".tmx", ".xlf", ".xliff", ".jsonl", ".parquet", ".mrg")):
        advice = "List it under corpus.sources, or convert it to plain text, one file per side"
        raise DataError(f"{path} is not plain text in one language. {advice} (for trees, set corpus.format=trees)")
    with opened(path, hashes) as file:
        check_plain(file.peek(4), str(path))
        yield from lines_of(file)


def lines_of(file: Any) -> Iterator[bytes | None]:
    """Yield the lines of an open binary file. Yield None for a line of more than MAX_LINE_BYTES.

    Memory stays bounded, however long a line is.
    """
    rest = b""
    while block := file.read1(BLOCK_BYTES):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()[: MAX_LINE_BYTES + 1]  # one byte over the limit marks the line as too long
        if max(map(len, lines), default=0) <= MAX_LINE_BYTES:
            yield from lines
        else:
            yield from (line if len(line) <= MAX_LINE_BYTES else None for line in lines)
    if rest:
        yield rest if len(rest) <= MAX_LINE_BYTES else None


def read_pairs(src: str, tgt: str, repetition: int, hashes: dict[Path, str]) -> Iterator[Chunk]:
    """Yield the pairs of two parallel files in chunks. At the end, store the SHA-256 of both files in `hashes`.

    Raises DataError if the files have different numbers of lines. `repetition` is stored in the chunks.
    """
    sides = raw_lines(Path(src), hashes), raw_lines(Path(tgt), hashes)
    for start in count(0, CHUNK):
        chunk = Chunk(list(islice(sides[0], CHUNK)), list(islice(sides[1], CHUNK)), repetition)
        if len(chunk.src) != len(chunk.tgt):
            totals = [start + len(read) + sum(1 for _ in rest) for read, rest in zip(chunk[:2], sides, strict=True)]
            found = f"{src} has {counted(totals[0], 'line')}, {tgt} has {totals[1]:,}"
            raise DataError(f"{found}: they are not parallel. Compare them with the originals")
        if not chunk.src:
            return
        yield chunk


def read_files(files: list[FilePair], hashes: dict[Path, str]) -> Iterator[Chunk]:
    """Do the same as `read_pairs` for several pairs of files, one after the other."""
    for i, (src, tgt) in enumerate(files):
        yield from read_pairs(src, tgt, files[:i].count((src, tgt)), hashes)


def count_pairs(chunks: Iterable[Chunk]) -> int:
    """Read and parse all chunks, and return the number of pairs."""
    return sum(1 for chunk in chunks for _ in chunk.src)
