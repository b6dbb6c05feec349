"""Readers of parallel text in tables: TSV, CSV, JSON lines and parquet, and the zip archives of OPUS."""

import contextlib
import csv
import errno
import io
import itertools
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli.corpus.readers import MAX_LINE_BYTES, lines_of
from nmt_cli.system.errors import DataError

Row = tuple[bytes | None, bytes | None, float | None]  # source, target, score; None for a side over MAX_LINE_BYTES
ROWS = 100  # of a parquet file, read at once: a few dictionary-encoded bytes may stand for many long rows
LONGEST_FIELD = 4 * MAX_LINE_BYTES  # characters of a CSV field


@dataclass(frozen=True)
class Columns:
    """The columns of a table, each given by its name, or by its number from 1."""

    src: str
    tgt: str
    score: str | None = None

    @property
    def names(self) -> list[str]:
        return [self.src, self.tgt, *([self.score] if self.score else [])]


def read_tsv(file: io.BufferedReader, path: Path, columns: Columns) -> Iterator[Row]:
    """Yield the rows of a TSV file. Quotes have no meaning. Columns given by name need a header in the first line."""
    lines = lines_of(file)
    indices = _indices(columns, lambda: [cell.decode(errors="replace") for cell in _cells(next(lines, b""))], path)
    for number, line in enumerate(lines, 1 + (not _numbered(columns))):
        if line is None:
            yield None, None, None
            continue
        cells = _cells(line)
        if max(indices) >= len(cells):
            yield line[:200], b"", None  # which cleaning drops, because a side is empty
            continue
        score = _number(cells[indices[2]], path, number) if columns.score else None
        yield cells[indices[0]], cells[indices[1]], score


def read_csv(file: io.BufferedReader, path: Path, columns: Columns) -> Iterator[Row]:
    """Yield the rows of a CSV file, whose cells may be quoted. Columns given by name need a header in the first row."""
    csv.field_size_limit(LONGEST_FIELD)
    lines = ((line or b"").decode(errors="surrogateescape") + "\n" for line in lines_of(file))
    rows = csv.reader(lines, strict=True)
    try:
        indices = _indices(columns, lambda: next(rows, []), path)
        for row in rows:
            if max(indices) >= len(row):
                yield _line(",".join(row)[:200]), b"", None
                continue
            score = _number(row[indices[2]], path, rows.line_num) if columns.score else None
            yield _line(row[indices[0]]), _line(row[indices[1]]), score
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num:,}: {error}. Export the file again") from None


def read_json_lines(file: io.BufferedReader, path: Path, columns: Columns) -> Iterator[Row]:
    """Yield the row in each line of JSON. A dotted name such as translation.en leads into objects."""
    for number, line in enumerate(lines_of(file), 1):
        if line is None:
            yield None, None, None
            continue
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            cells = [_member(value, name) for name in columns.names]
        except (ValueError, RecursionError, LookupError) as error:
            reason = f"no member {error}" if isinstance(error, LookupError) else "not JSON"
            raise DataError(f"{path}, line {number:,}: {reason}. Correct the line, or name the columns") from None
        score = _number(cells[2], path, number) if columns.score else None
        src, tgt = (_text(cell, name, path, number) for cell, name in zip(cells[:2], columns.names, strict=False))
        yield _line(src), _line(tgt), score


def read_parquet(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield the rows of a parquet file. A dotted name such as translation.en leads into structs."""
    import pyarrow
    from pyarrow import compute, parquet

    row = 0
    try:
        file = parquet.ParquetFile(path)
        for batch in file.iter_batches(ROWS, columns=[name.partition(".")[0] for name in columns.names]):
            sides = list[list[Any]]()
            for name in columns.names:
                column: Any = batch
                for part in name.split("."):
                    column = column.column(part) if column is batch else compute.struct_field(column, part)
                sides.append(column.to_pylist())
            for cells in zip(*sides, strict=True):
                row += 1
                score = _number(cells[2], path, row) if columns.score else None
                src, tgt = (_text(cell, name, path, row) for cell, name in zip(cells[:2], columns.names, strict=False))
                yield _line(src), _line(tgt), score
    except (pyarrow.ArrowException, OSError, KeyError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split())[:100]
        raise DataError(f"{path} cannot be read as parquet: {reason}. Check the file and its columns") from None


def read_opus(path: Path, src: str, tgt: str) -> Iterator[Row]:
    """Yield the pairs of a zip archive of OPUS, whose members NAME.SRC and NAME.TGT have a pair per line."""
    try:
        with contextlib.ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path))
            sides = [lines_of(stack.enter_context(archive.open(name))) for name in _members(archive, path, src, tgt)]
            for number, pair in enumerate(itertools.zip_longest(*sides, fillvalue=_MISSING), 1):
                if _MISSING in pair:
                    raise DataError(f"{path}: one side ends before line {number:,} of the other. Download it again")
                yield pair[0], pair[1], None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which a wrong offset causes
            raise
        raise DataError(f"{path} is truncated or corrupt: {str(error)[:100]}. Download it again") from None


_MISSING: Any = object()


def _members(archive: zipfile.ZipFile, path: Path, src: str, tgt: str) -> list[str]:
    """Return the two members that hold the text: names that differ only in their languages."""
    names = archive.namelist()
    for name in names:
        stem = name.removesuffix(f".{src}")
        if stem != name and f"{stem}.{tgt}" in names:
            return [name, f"{stem}.{tgt}"]
    raise DataError(f"{path} has no members NAME.{src} and NAME.{tgt}. Check the languages")


def _numbered(columns: Columns) -> bool:
    return all(name.isdecimal() for name in columns.names)


def _indices(columns: Columns, header: Callable[[], Sequence[str]], path: Path) -> list[int]:
    """Return the position of each column. Call `header` only if the columns are given by name."""
    if _numbered(columns):
        return [max(0, int(name) - 1) for name in columns.names]
    names = [name.strip() for name in header()]
    for name in columns.names:
        if name not in names:
            known = ", ".join(names)[:100]
            raise DataError(f"{path} has no column {name!r}, only {known}. Name the columns by header or number")
    return [names.index(name) for name in columns.names]


def _cells(line: bytes | None) -> list[bytes]:
    return (line or b"").removesuffix(b"\r").split(b"\t")


def _text(cell: Any, name: str, path: Path, line: int) -> str:
    """Return the text of a cell, "" for null; DataError if it is a number, a list and so on."""
    if isinstance(cell, bytes):  # from a parquet file whose writer did not mark the column as text
        return cell.decode(errors="surrogateescape")
    if cell is not None and not isinstance(cell, str):
        raise DataError(f"{path}, line {line:,}: {name} is {str(cell)[:40]!r}, not text. Correct the line")
    return cell or ""


def _line(text: str) -> bytes | None:
    """Return the text of a cell as one line; None if it is too long."""
    # Cleaning drops lines with lone surrogates, because they are not UTF-8.
    line = " ".join(text.split()).encode(errors="surrogatepass")
    return line if len(line) <= MAX_LINE_BYTES else None


def _member(value: Any, name: str) -> Any:
    """Return a member of nested objects by its name, or by its path with dots."""
    if not isinstance(value, dict):
        raise KeyError(name)
    if name in value:
        return value[name]
    for part in name.split("."):
        if not isinstance(value, dict):
            raise KeyError(name)
        value = value[part]
    return value


def _number(cell: Any, path: Path, line: int) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        shown = cell[:40].decode(errors="replace") if isinstance(cell, bytes) else str(cell)[:40]
        raise DataError(f"{path}, line {line:,}: the score is {shown!r}, not a number. Check the column") from None
