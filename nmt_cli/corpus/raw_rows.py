"""Rows of parallel text. One process reads them and other processes parse them, because parsing takes longer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

# The source, target and score of a pair. A side of more than MAX_LINE_BYTES is None.
Row = tuple[bytes | None, bytes | None, float | None]
# The number of a piece's first line or row (for messages), the number of its rows, its approximate bytes, its content.
Piece = tuple[int, int, int, Any]
Parse = Callable[[int, Any], Iterable[Row]]  # (number of the first line or row, content of the piece) -> rows


@dataclass(frozen=True)
class RawRows:
    """The unparsed rows of a file, in pieces, and the function that parses a piece."""

    pieces: Iterator[Piece]
    parse: Parse


class Unparsed:
    """Pieces of a file that are parsed on first use. Pickling does not parse them."""

    def __init__(self, pieces: list[tuple[int, Any]], count: int, parse: Parse) -> None:
        self.pieces = pieces  # (number of the first line or row, content) of each piece
        self.count = count  # number of rows in all pieces
        self.parse = parse

    @cached_property
    def columns(self) -> list[list[Any]]:
        """The sources, the targets and the scores of all rows."""
        rows = [row for piece in self.pieces for row in self.parse(*piece)]
        return [list(column) for column in zip(*rows, strict=True)]


class Column(Sequence[Any]):
    """The sources, the targets or the scores of unparsed rows. `len` does not parse them."""

    def __init__(self, table: Unparsed, column: int) -> None:
        self.table = table
        self.column = column  # an index in `Unparsed.columns`

    def __len__(self) -> int:
        return self.table.count

    def __getitem__(self, key: Any) -> Any:
        return self.table.columns[self.column][key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.table.columns[self.column])
