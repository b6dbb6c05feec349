"""Files of sentence pairs, read as a stream of bytes: plain, .gz or .zst text, .tsv, .jsonl and .parquet.

Lines end at line feeds and nowhere else, and nothing here holds a corpus in memory or trusts a count it has not
made. Owns pyarrow.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from nmt_cli.errors import DataError, MissingError, printable

Chunk = tuple[list[bytes | None], list[bytes | None]]  # source and target lines; None: over the byte limit
BLOCK = 1 << 20
# Text packs 3 to 20 times; beyond this a small file is a trap for the disk.
MAX_EXPANSION, ALWAYS_ALLOWED = 200, 1 << 28
_MAGIC = {
    b"\x1f\x8b": "gzip (name it .gz)",
    b"\x28\xb5\x2f\xfd": "zstd (name it .zst)",
    b"PK\x03\x04": "a zip archive (unpack it)",
    b"BZh": "bzip2 (unpack it)",
    b"\xfd7zXZ": "xz (unpack it)",
    b"\xff\xfe": "UTF-16 or UTF-32 (convert it to UTF-8)",
    b"\xfe\xff": "UTF-16 (convert it to UTF-8)",
    b"\x00\x00\xfe\xff": "UTF-32 (convert it to UTF-8)",
    b"PAR1": "parquet (name it .parquet)",
}


@dataclass(frozen=True)
class Part:
    """Two parallel files, or one file (`src` is `tgt`) that holds both sides."""

    src: Path
    tgt: Path

    @property
    def files(self) -> list[Path]:
        return [self.src] if self.src == self.tgt else [self.src, self.tgt]


@dataclass(frozen=True)
class Reader:
    """How to read a part: the languages' keys and the longest line."""

    src: str
    tgt: str
    max_line_bytes: int

    def chunks(self, part: Part) -> Iterator[Chunk]:
        """Yield the pairs of a part, some thousands at a time.

        Raises:
            MissingError: a file is not there.
            DataError: it is damaged, or its sides do not match.
        """
        kind = _kind(part.src)
        if kind == "parquet":
            yield from _parquet_chunks(part.src, self.src, self.tgt, self.max_line_bytes)
        elif part.src != part.tgt:
            yield from _parallel(part, self.max_line_bytes)
        elif kind in ("tsv", "jsonl"):
            number = 1
            for lines in _lines(part.src, self.max_line_bytes):
                yield self._split(part.src, kind, number, lines)
                number += len(lines)
        else:
            raise DataError(f"{part.src} cannot hold both sides: name it .tsv, .jsonl, or .parquet")

    def _split(self, path: Path, kind: str, number: int, lines: list[bytes | None]) -> Chunk:
        """Split lines with both sides; `number` is that of the first line."""
        src: list[bytes | None] = []
        tgt: list[bytes | None] = []
        for i, line in enumerate(lines, number):
            try:
                one, other = (None, None) if line is None else self._fields(kind, line)
            except (ValueError, TypeError, KeyError, RecursionError):
                wanted = "source, tab, target" if kind == "tsv" else f"an object with {self.src!r} and {self.tgt!r}"
                raise DataError(f"{path}, line {i}: expected {wanted}") from None
            src.append(one)
            tgt.append(other)
        return src, tgt

    def _fields(self, kind: str, line: bytes) -> tuple[bytes, bytes]:
        if kind == "tsv":
            src, tgt = line.removesuffix(b"\r").split(b"\t")
            return src, tgt
        value = json.loads(line)
        value = value.get("translation", value)
        if not isinstance(value[self.src], str) or not isinstance(value[self.tgt], str):
            raise TypeError
        return value[self.src].encode(errors="surrogatepass"), value[self.tgt].encode(errors="surrogatepass")

    def text(self, parts: list[Part]) -> tuple[list[str], list[str]]:
        """Return a development or test set whole, as it stands: only a CR before LF and a leading BOM go.

        Raises:
            DataError: a line is not UTF-8 or too long; here nothing may be dropped.
        """
        sides: tuple[list[str], list[str]] = ([], [])
        for part in parts:
            for chunk in self.chunks(part):
                for side, lines in zip(sides, chunk, strict=True):
                    for line in lines:
                        side.append(self._held_out_line(part, len(side) + 1, line))
        return sides

    def _held_out_line(self, part: Part, number: int, line: bytes | None) -> str:
        try:
            if line is None:
                raise ValueError(f"longer than {self.max_line_bytes} bytes")
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except ValueError as error:
            where = " or ".join(str(file) for file in part.files)
            raise DataError(f"{where}, line {number}: {printable(error, 80)}") from None
        return text.removesuffix("\r").replace("\n", " ")


def scan(part: Part) -> list[dict[str, Any]]:
    """Return name, bytes, rows and bytes of text of each file of a part, after checking that they match.

    Raises:
        MissingError: a file is not there.
        DataError: a file is empty, packed or damaged, or the two have different numbers of lines.
    """
    facts = []
    for path in part.files:
        check_file(path)
        kind = _kind(path)
        rows, text_bytes = (_parquet_size if kind == "parquet" else _count)(path)
        if not rows:
            raise DataError(f"{path} is empty")
        facts.append({"name": path.name, "bytes": path.stat().st_size, "rows": rows, "text_bytes": text_bytes})
    if facts[0]["rows"] != facts[-1]["rows"]:
        raise DataError(
            f"{part.src} has {facts[0]['rows']:,} lines, {part.tgt} has {facts[1]['rows']:,}: they are not parallel. "
            "Compare the files where they were made"
        )
    return facts


def check_file(path: Path) -> None:
    """Refuse what is not there, a directory, or a pipe that nobody may ever write to."""
    if not path.is_file():
        raise MissingError(f"{path} is {'not a file' if path.exists() else 'not there'}. Check the path")


def _kind(path: Path) -> str:
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    suffix = name.rpartition(".")[2]
    return suffix if suffix in ("tsv", "jsonl", "parquet") else "text"


def _blocks(path: Path) -> Iterator[bytes]:
    """Yield the unpacked bytes of a text file, some at a time.

    Raises:
        DataError: it is packed, truncated or corrupt, unpacks to far too much, or is no UTF-8 text at all.
    """
    check_file(path)
    size = 0
    limit = max(ALWAYS_ALLOWED, MAX_EXPANSION * path.stat().st_size)
    with _unpacked(path) as file:
        while True:
            try:
                block = file.read(BLOCK)
            except (EOFError, OSError, zlib.error) as error:
                if isinstance(error, OSError) and error.errno:
                    raise
                raise DataError(f"{path} is truncated or corrupt: {printable(error, 80)}. Fetch it again") from None
            if not block:
                return
            kind = next((what for magic, what in _MAGIC.items() if not size and block.startswith(magic)), None)
            if kind:
                raise DataError(f"{path} is not plain text: it looks like {kind}")
            size += len(block)
            if size > limit:
                raise DataError(f"{path} unpacks to over {MAX_EXPANSION} times its size. Unpack it first to use it")
            yield block


def _unpacked(path: Path) -> BinaryIO:
    if path.suffix == ".zst":
        import pyarrow

        return cast(BinaryIO, pyarrow.input_stream(str(path), compression="zstd"))
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _count(path: Path) -> tuple[int, int]:
    """Return the number of lines (line feeds, and an unfinished last line) and of bytes of a text file."""
    rows = size = 0
    last = b"\n"
    for block in _blocks(path):
        rows += block.count(b"\n")
        size += len(block)
        last = block[-1:]
    return rows + (last != b"\n"), size


def _lines(path: Path, max_line_bytes: int) -> Iterator[list[bytes | None]]:
    """Yield the lines of a text file, some thousands at a time; None for a line over the limit."""
    carry: bytes | None = b""  # the start of a line whose end has not come; None: it is too long already
    for block in _blocks(path):
        lines: list[bytes | None] = list(block.split(b"\n"))
        first = lines[0]
        lines[0] = None if carry is None or first is None else carry + first
        lines = [None if line is None or len(line) > max_line_bytes else line for line in lines]
        carry = lines.pop()
        if lines:
            yield lines
    if carry != b"":
        yield [carry]


def _parallel(part: Part, max_line_bytes: int) -> Iterator[Chunk]:
    readers = [_lines(path, max_line_bytes) for path in part.files]
    waiting: list[list[bytes | None]] = [[], []]
    while True:
        for i in (0, 1):
            waiting[i] = waiting[i] or next(readers[i], [])
        count = min(map(len, waiting))
        if not count:
            break
        yield waiting[0][:count], waiting[1][:count]
        waiting = [side[count:] for side in waiting]
    if any(waiting):
        raise DataError(f"{part.src} and {part.tgt} changed while they were read. Run the same command again")


def parquet_rows(path: Path) -> int:
    """Return the number of rows of a parquet file, from its footer."""
    return int(_parquet(path).metadata.num_rows)


def _parquet_size(path: Path) -> tuple[int, int]:
    metadata = _parquet(path).metadata
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return metadata.num_rows, sum(group.total_byte_size for group in groups)


def _parquet(path: Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a whole parquet file: {printable(error, 100)}") from None


def _parquet_chunks(path: Path, src: str, tgt: str, max_line_bytes: int) -> Iterator[Chunk]:
    import pyarrow

    file = _parquet(path)
    try:
        for batch in file.iter_batches(4096, columns=["translation"]):
            column = batch.column("translation")
            sides = [column.field(key).cast(pyarrow.binary()).to_pylist() for key in (src, tgt)]
            src_lines, tgt_lines = (
                [None if line is None or len(line) > max_line_bytes else line for line in side] for side in sides
            )
            yield src_lines, tgt_lines
    except KeyError:
        raise DataError(f"{path} has no column 'translation' with {src!r} and {tgt!r}") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is damaged: {printable(error, 100)}. Remove it and fetch it again") from None


def split_lines(data: bytes, name: str) -> list[str]:
    """Split UTF-8 bytes on line feeds only; `name` is the file's, for messages.

    Raises:
        DataError: the bytes are not UTF-8; names the line.
    """
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}, line {line:,} is not UTF-8. Convert it, for example with iconv") from None
    return lines[:-1] if lines[-1] == "" else lines


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file; [] where it does not exist."""
    return split_lines(path.read_bytes(), str(path)) if path.exists() else []
