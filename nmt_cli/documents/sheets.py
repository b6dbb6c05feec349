"""Excel's tables: the cells above their columns. Excel refuses a file in which a column and its cell differ."""

import posixpath
import re
from collections.abc import Iterator, Sequence

from nmt_cli.documents.archive import Archive

_TABLE = re.compile(r"<(?:\w+:)?table\b(?P<attributes>[^<>]*)>")
_RANGE = re.compile(r"\sref=[\"']\$?([A-Z]{1,3})\$?(\d{1,7}):\$?([A-Z]{1,3})\$?\d{1,7}[\"']")
_NO_HEADER = re.compile(r"\sheaderRowCount=[\"']0[\"']")
_RELATION = re.compile(r"<(?:\w+:)?Relationship\b(?P<attributes>[^<>]*)>")
_TARGET = re.compile(r"\sTarget=[\"']([^\"'<>]*)[\"']")
_CELL = re.compile(r"<(?:\w+:)?c\b(?P<attributes>[^<>]*)>\s*<(?:\w+:)?v>(?P<index>\d{1,9})<")
_SHARED = re.compile(r"\st=[\"']s[\"']")
_PLACE = re.compile(r"\sr=[\"']([A-Z]{1,3})(\d{1,7})[\"']")


def header_cells(archive: Archive, sheets: Sequence[str]) -> tuple[set[str], set[int]]:
    """Return the sheets that have tables, and the indices of the shared strings in the first rows of these tables."""
    names, with_tables, indices = set(archive.names), set[str](), set[int]()
    for sheet in sheets:
        folder, base = posixpath.split(sheet)
        relations = f"{folder}/_rels/{base}.rels"
        if relations not in names:
            continue
        rows = dict[int, set[int]]()  # the columns of headers
        for match in _RELATION.finditer(archive.read(relations).decode("utf-8", "replace")):
            target = _TARGET.search(match["attributes"])
            name = posixpath.normpath(posixpath.join("/", folder, target[1])).lstrip("/") if target else ""
            if name in names and "/table" in match["attributes"]:
                for row, columns in _header_rows(archive.read(name).decode("utf-8", "replace")):
                    rows.setdefault(row, set()).update(columns)
        if not rows:
            continue
        with_tables.add(sheet)
        for cell in _CELL.finditer(archive.read(sheet).decode("utf-8", "replace")):
            place = _PLACE.search(cell["attributes"])
            shared = _SHARED.search(cell["attributes"])
            if place and shared and _number(place[1]) in rows.get(int(place[2]), ()):
                indices.add(int(cell["index"]))
    return with_tables, indices


def _header_rows(text: str) -> Iterator[tuple[int, range]]:
    """Yield the row and the columns of each table's header."""
    for table in _TABLE.finditer(text):
        match = _RANGE.search(table["attributes"])
        if match and not _NO_HEADER.search(table["attributes"]):
            yield int(match[2]), range(_number(match[1]), _number(match[3]) + 1)


def _number(letters: str) -> int:
    """Return the number of a column: 27 for AA."""
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - ord("A") + 1
    return number
