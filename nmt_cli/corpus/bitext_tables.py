"""Read parallel text from TSV, CSV, JSON lines and parquet files, and from OPUS zip archives."""

import contextlib
import csv
import errno
import io
import itertools
import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nmt_cli.corpus.raw_rows import Piece, RawRows, Row
from nmt_cli.corpus.readers import MAX_LINE_BYTES, lines_of
from nmt_cli.system.errors import DataError, StorageError

MOST_ROWS = 40  # maximum number of parquet rows read at once
MOST_BATCH_BYTES = 1 << 26  # maximum size of these rows in memory, as estimated by `_rows_at_once`
MOST_PIECE_BYTES = 1 << 22  # maximum size of a piece of several parquet rows
LONGEST_FIELD = 4 * MAX_LINE_BYTES  # maximum characters of a CSV field
TOO_LONG = ...  # replaces a parquet cell of more than MAX_LINE_BYTES; pickling preserves the identity of `...`
_FIELD = rb'(?:[^",\r][^,\r]*+|"[^"]*+(?:""[^"]*+)*+"|)'
# Matches a line that is a complete CSV row, such as `a,"b, c"`. `_csv_rows` parses other lines to find the row's end.
_WHOLE_ROW = re.compile(_FIELD + rb"(?:," + _FIELD + rb")*+\r?")


@dataclass(frozen=True)
class Columns:
    """The columns of a table, each given by its name or its number. Numbers start at 1."""

    src: str
    tgt: str
    score: str | None = None
    # The language codes, if the recipe chooses no columns. A header row with both codes then determines the columns.
    languages: tuple[str, str] | None = None

    def of_header(self, cells: Sequence[str]) -> "Columns":
        """Return the columns whose names in the header row are the language codes.

        Return `self` if `languages` is None, or if the row lacks a code or repeats one.
        """
        codes = [cell.strip().lower() for cell in cells]
        if not self.languages or not all(codes.count(code.lower()) == 1 for code in self.languages):
            return self
        src, tgt = (cells[codes.index(code.lower())].strip() for code in self.languages)
        return Columns(src, tgt)

    @property
    def names(self) -> list[str]:
        return [self.src, self.tgt, *([self.score] if self.score else [])]


def read_tsv(file: io.BufferedReader, path: Path, columns: Columns) -> RawRows:
    """Return the rows of a TSV file. Quotes are ordinary characters. Columns given by name need a header row."""
    rows, indices = _table(_numbered_lines(file), _texts, columns, path)
    return RawRows(rows, partial(_parse_tsv, path, indices))


def _numbered_lines(file: io.BufferedReader) -> Iterator[Piece]:
    return ((number, 1, len(line or b""), line) for number, line in enumerate(lines_of(file), 1))


def _texts(line: bytes | None) -> list[str]:
    return [cell.decode(errors="replace") for cell in _cells(line)]


def _parse_tsv(path: Path, indices: list[int], number: int, line: bytes | None) -> Iterator[Row]:
    if line is None:
        yield None, None, None
        return
    cells = _cells(line)
    if max(indices) >= len(cells):
        yield line[:200], b"", None  # a column is missing; cleaning drops the row, because its target is empty
        return
    score = _number(cells[indices[2]], path, number) if len(indices) > 2 else None
    yield cells[indices[0]], cells[indices[1]], score


def read_csv(file: io.BufferedReader, path: Path, columns: Columns) -> RawRows:
    """Return the rows of a CSV file. Cells may be quoted. Columns given by name need a header row."""
    rows, indices = _table(_csv_rows(file, path), _csv_cells, columns, path)
    return RawRows(rows, partial(_parse_csv, path, indices))


def _csv_rows(file: io.BufferedReader, path: Path) -> Iterator[Piece]:
    """Yield each row as a list of its lines, with the number of the last line."""
    lines, number = ((line or b"") for line in lines_of(file)), 0
    for line in lines:
        row, size = [line], len(line)
        if not _WHOLE_ROW.fullmatch(line):
            try:
                _csv_cells(_extending(row, lines))
            except csv.Error as error:
                several = f"lines {number + 1:,} to {number + len(row):,}"
                lines_read = several if len(row) > 1 else f"line {number + 1:,}"
                reason = str(error).partition(" - do you")[0]  # "do you need to open the file in universal-newline …"
                advice = "Is a quotation mark missing? Correct the first line of the row, or export the file again"
                raise DataError(f"{path}, {lines_read}: {reason}. {advice}") from None
            size = sum(map(len, row))
        number += len(row)
        yield number, 1, size, row


def _extending(row: list[bytes], lines: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines in `row`, and then lines taken from `lines`. Append each line taken to `row`."""
    yield from row
    for line in lines:
        row.append(line)
        yield line


def _csv_cells(lines: Iterable[bytes]) -> list[str]:
    """Parse CSV lines, and return the cells of the first row."""
    csv.field_size_limit(LONGEST_FIELD)
    return next(csv.reader((line.decode(errors="surrogateescape") + "\n" for line in lines), strict=True))


def _parse_csv(path: Path, indices: list[int], number: int, row: list[bytes]) -> Iterator[Row]:
    cells = _csv_cells(row)
    if max(indices) >= len(cells):
        yield _line(",".join(cells)[:200]), b"", None
        return
    score = _number(cells[indices[2]], path, number) if len(indices) > 2 else None
    yield _line(cells[indices[0]]), _line(cells[indices[1]]), score


def read_json_lines(file: io.BufferedReader, path: Path, columns: Columns) -> RawRows:
    """Return the rows of a file with one JSON object per line. The column translation.en is `en` in `translation`."""
    rows = (row for row in _numbered_lines(file) if row[3] is None or row[3].strip())
    return RawRows(rows, partial(_parse_json, path, columns))


def _parse_json(path: Path, columns: Columns, number: int, line: bytes | None) -> Iterator[Row]:
    if line is None:
        yield None, None, None
        return
    try:
        value = json.loads(line)
        cells = [_member(value, name) for name in columns.names]
    except (ValueError, RecursionError, LookupError) as error:
        reason = f"no member {error}" if isinstance(error, LookupError) else "not JSON"
        raise DataError(f"{path}, line {number:,}: {reason}. Correct the line, or set columns") from None
    yield _row(path, columns, number, cells)


def _row(path: Path, columns: Columns, number: int, cells: Sequence[Any]) -> Row:
    score = _number(cells[2], path, number) if columns.score else None
    src, tgt = (
        None if cell is TOO_LONG else _line(_text(cell, name, path, number))
        for cell, name in zip(cells[:2], columns.names, strict=False)
    )
    return src, tgt, score


def read_parquet(path: Path, columns: Columns) -> RawRows:
    """Return the rows of a parquet file. The column translation.en is the field `en` of the struct `translation`."""
    return RawRows(_batches(path, columns), partial(_parse_batch, path, columns))


def _parse_batch(path: Path, columns: Columns, first: int, batch: list[list[Any]]) -> Iterator[Row]:
    for number, cells in enumerate(zip(*batch, strict=True), first):
        yield _row(path, columns, number, cells)


def _batches(path: Path, columns: Columns) -> Iterator[Piece]:
    import pyarrow
    from pyarrow import parquet

    first = 1
    try:
        file = parquet.ParquetFile(path)
        tops = [name.partition(".")[0] for name in columns.names]
        for group in range(file.num_row_groups):
            rows = _rows_at_once(file.metadata.row_group(group), tops)
            for batch in file.iter_batches(rows, row_groups=[group], columns=tops, use_threads=False):
                count = max(1, MOST_PIECE_BYTES * len(batch) // max(batch.nbytes, 1))
                for start in range(0, len(batch), count):
                    piece = batch.slice(start, count)
                    yield first, len(piece), piece.nbytes, [_cells_of(piece, name) for name in columns.names]
                    first += len(piece)
    except MemoryError:
        raise StorageError(f"there is too little memory to read {path}. Write it with smaller row groups") from None
    except (pyarrow.ArrowException, OSError, KeyError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split()).partition(". ")[0].rstrip(".")[:100]
        raise DataError(f"{path} cannot be read as parquet: {reason}. Check the file and its columns") from None


def _rows_at_once(group: Any, tops: list[str]) -> int:
    """Return how many rows of a row group to read at once: at most MOST_ROWS, of about MOST_BATCH_BYTES in total.

    A cell counts as its column's average, or as the column's whole dictionary if that is larger, because every row may
    repeat the same long value from the dictionary.
    """
    row_bytes = 0.0
    for column in map(group.column, range(group.num_columns)):
        if column.path_in_schema.partition(".")[0] in tops:
            dictionary = column.data_page_offset - (column.dictionary_page_offset or column.data_page_offset)
            share = max(dictionary / max(column.total_compressed_size, 1), 1 / max(group.num_rows, 1))
            row_bytes += column.total_uncompressed_size * share
    return max(1, min(MOST_ROWS, int(MOST_BATCH_BYTES / max(row_bytes, 1))))


def _cells_of(batch: Any, name: str) -> list[Any]:
    """Return the cells of a column, with TOO_LONG in place of cells of more than MAX_LINE_BYTES."""
    import pyarrow
    from pyarrow import compute

    column = batch
    for part in name.split("."):
        column = column.column(part) if column is batch else compute.struct_field(column, part)
    try:
        sizes = compute.binary_length(column).to_pylist()
    except pyarrow.ArrowNotImplementedError:  # a column of another type, such as numbers
        return list(column.to_pylist())
    if max(filter(None, sizes), default=0) <= MAX_LINE_BYTES:
        return list(column.to_pylist())
    return [
        TOO_LONG if size and size > MAX_LINE_BYTES else cell.as_py() for size, cell in zip(sizes, column, strict=True)
    ]


def read_opus(path: Path, src: str, tgt: str) -> RawRows:
    """Return the pairs in an OPUS zip archive, whose members NAME.SRC and NAME.TGT have the same number of lines."""
    return RawRows(_opus_rows(path, src, tgt), _parse_pair)


def _parse_pair(_: int, pair: tuple[bytes | None, bytes | None]) -> Iterator[Row]:
    yield *pair, None


def _opus_rows(path: Path, src: str, tgt: str) -> Iterator[Piece]:
    try:
        with contextlib.ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path))
            sides = [lines_of(stack.enter_context(archive.open(name))) for name in _members(archive, path, src, tgt)]
            for number, pair in enumerate(itertools.zip_longest(*sides, fillvalue=_MISSING), 1):
                if _MISSING in pair:
                    raise DataError(f"{path}: one side ends before line {number:,} of the other. Download it again")
                yield number, 1, len(pair[0] or b"") + len(pair[1] or b""), pair
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a wrong offset in the archive gives EINVAL
            raise
        raise DataError(f"{path} is truncated or corrupt: {str(error)[:100]}. Download it again") from None


_MISSING: Any = object()


def _members(archive: zipfile.ZipFile, path: Path, src: str, tgt: str) -> list[str]:
    """Return the names of the source and target members, which differ only in the language code."""
    names = archive.namelist()
    for name in names:
        stem = name.removesuffix(f".{src}")
        if stem != name and f"{stem}.{tgt}" in names:
            return [name, f"{stem}.{tgt}"]
    raise DataError(f"{path} has no members NAME.{src} and NAME.{tgt}. Check the languages")


def _numbered(columns: Columns) -> bool:
    return all(name.isdecimal() for name in columns.names)


def _table(
    rows: Iterator[Piece], cells_of: Callable[[Any], list[str]], columns: Columns, path: Path
) -> tuple[Iterator[Piece], list[int]]:
    """Return the rows without the header row, if there is one, and the index of each of `columns` in a row."""
    may_have_header = columns.languages or not _numbered(columns)
    first = list(itertools.islice(rows, 1 if may_have_header else 0))
    header = [cell for *_, content in first for cell in cells_of(content)]
    columns = columns.of_header(header)
    if _numbered(columns):
        rows = itertools.chain(first, rows)
    return rows, _indices(columns, header, path)


def _indices(columns: Columns, header: Sequence[str], path: Path) -> list[int]:
    """Return the index of each of `columns` in a row. `header` is not used if the columns are given by number."""
    if _numbered(columns):
        return [max(0, int(name) - 1) for name in columns.names]
    names = [name.strip() for name in header]
    for name in columns.names:
        if name not in names:
            known = ", ".join(names)[:100]
            raise DataError(f"{path} has no column {name!r}, only {known}. Set columns to header names or numbers")
    return [names.index(name) for name in columns.names]


def _cells(line: bytes | None) -> list[bytes]:
    return (line or b"").removesuffix(b"\r").split(b"\t")


def _text(cell: Any, name: str, path: Path, line: int) -> str:
    """Return the text of a cell, or "" for null. Raises DataError for values of other types, such as numbers."""
    if isinstance(cell, bytes):  # from a parquet file whose writer did not mark the column as text
        return cell.decode(errors="surrogateescape")
    if cell is not None and not isinstance(cell, str):
        raise DataError(f"{path}, line {line:,}: {name} is {str(cell)[:40]!r}, not text. Correct the line")
    return cell or ""


def _line(text: str) -> bytes | None:
    """Return text as one line, with single spaces, or None if it is too long."""
    # The encoding of a lone surrogate is not valid UTF-8, so cleaning drops the line.
    line = " ".join(text.split()).encode(errors="surrogatepass")
    return line if len(line) <= MAX_LINE_BYTES else None


def _member(value: Any, name: str) -> Any:
    """Return the member of a JSON object with this name or dotted path. Raises KeyError if there is none."""
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
