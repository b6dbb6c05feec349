"""Find the header cells of Excel's tables, so that they are copied.

Excel refuses a file in which a header cell differs from the column's name in the definition of the table.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from nmt_cli.documents.archive import Archive

_TABLE = re.compile(r"<(?:\w+:)?table\b(?P<attributes>[^<>]*)>")
_RANGE = re.compile(r"\sref=[\"']\$?([A-Z]{1,3})\$?(\d{1,7}):\$?([A-Z]{1,3})\$?\d{1,7}[\"']")
_NO_HEADER = re.compile(r"\sheaderRowCount=[\"']0[\"']")
_RELATION = re.compile(r"<(?:\w+:)?Relationship\b(?P<attributes>[^<>]*)>")
_TARGET = re.compile(r"\sTarget=[\"']([^\"'<>]*)[\"']")
_CELL = re.compile(r"<(?:\w+:)?c\b(?P<attributes>[^<>]*)>\s*<(?:\w+:)?v>(?P<index>\d{1,9})<")
_SHARED = re.compile(r"\st=[\"']s[\"']")
_REFERENCE = re.compile(r"\sr=[\"']([A-Z]{1,3})(\d{1,7})[\"']")


Rows: TypeAlias = dict[int, set[int]]  # maps row numbers to column numbers; both begin at 1


def headers(archive: Archive, sheets: Sequence[str]) -> dict[str, Rows]:
    """Return the header cells of all tables, by sheet. `sheets` are the paths of the sheets in the archive."""
    names, found = set(archive.names), dict[str, Rows]()
    for sheet in sheets:
        folder, base = posixpath.split(sheet)
        relations = f"{folder}/_rels/{base}.rels"
        if relations not in names:
            continue
        for match in _RELATION.finditer(_text(archive, relations)):
            target = _TARGET.search(match["attributes"])
            name = posixpath.normpath(posixpath.join("/", folder, target[1])).lstrip("/") if target else ""
            if name not in names or "/table" not in match["attributes"]:
                continue
            for row, columns in _header_rows(_text(archive, name)):
                found.setdefault(sheet, {}).setdefault(row, set()).update(columns)
    return found


def is_header(tag: str, rows: Rows) -> bool:
    """Return whether the cell with this start tag is in `rows`. A tag without a position counts as well."""
    reference = _REFERENCE.search(tag)
    return not reference or _number(reference[1]) in rows.get(int(reference[2]), ())


def shared_headers(archive: Archive, found: Mapping[str, Rows]) -> set[int]:
    """Return the indices of the shared strings that header cells use. `found` is the result of `headers`."""
    indices = set[int]()
    for sheet, rows in found.items():
        for cell in _CELL.finditer(_text(archive, sheet)):
            if _SHARED.search(cell["attributes"]) and is_header(cell["attributes"], rows):
                indices.add(int(cell["index"]))
    return indices


def _text(archive: Archive, name: str) -> str:
    return archive.read(name).decode("utf-8", "replace")


def _header_rows(text: str) -> Iterator[tuple[int, range]]:
    """Yield the row and the columns of the header of each table that has one."""
    for table in _TABLE.finditer(text):
        match = _RANGE.search(table["attributes"])
        if match and not _NO_HEADER.search(table["attributes"]):
            yield int(match[2]), range(_number(match[1]), _number(match[3]) + 1)


def _number(letters: str) -> int:
    """Return the number of the column with these letters: 27 for AA."""
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - ord("A") + 1
    return number
