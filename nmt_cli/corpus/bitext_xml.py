"""Readers of parallel text in XML: TMX, XLIFF 1.2 and XLIFF 2.

Inline codes, such as <ph>, are left out of the text. Files are parsed piece by piece and are never in memory as a
whole. Files that declare entities are refused, and a file cannot make the parser read other files.
"""

import io
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from xml.parsers import expat

from nmt_cli.corpus.languages import base_of
from nmt_cli.corpus.raw_rows import Piece, RawRows, Row
from nmt_cli.corpus.readers import MAX_LINE_BYTES
from nmt_cli.system.console import warn
from nmt_cli.system.errors import DataError

PIECE = 1 << 18  # bytes parsed at once
# Maximum size of a tag or comment. expat reads an unfinished tag again from its start for each piece, so the time for a
# tag grows with the square of its size.
MOST_MARKUP_BYTES = 1 << 22
MOST_DEPTH = 100  # maximum number of nested elements
MOST_SEGMENTS = 100_000  # maximum number of segments stored for a TMX unit
MOST_LANGUAGES = 10  # a warning lists about this many languages
_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\t\n\r")
_SPACES = bytes.maketrans(_CONTROLS, b" " * len(_CONTROLS))
# Matches &#11; and &#x1f;, for example.
_CONTROL_REFERENCE = re.compile(rb"&#(?:0*(?:[0-8]|1[124-9]|2[0-9]|3[01])|x0*(?:[0-8bcefBCEF]|1[0-9a-fA-F]));")
_REFERENCE_BYTES = 16  # a character reference that begins in the last 16 bytes of a piece may end in the next piece
Segment = str | None  # None: longer than MAX_LINE_BYTES
# Values of the attribute `state` for finished translations. Of these, XLIFF 2 has only "final".
FINISHED = {"final", "signed-off"}


def read_tmx(file: io.BufferedReader, path: Path, src: str, tgt: str) -> RawRows:
    """Return the pairs in a TMX file. Language codes without a region, such as de, also match de-AT."""
    return RawRows(_units(_Tmx(src, tgt), file, path), _parse_unit)


def read_xliff(file: io.BufferedReader, path: Path, src: str, tgt: str, finished: bool) -> RawRows:
    """Return the translated segments in the parts of an XLIFF file that are translated from `src` to `tgt`.

    If `finished`, leave out segments that have neither approved="yes" nor a state in FINISHED.
    """
    return RawRows(_units(_Xliff(src, tgt, finished), file, path), _parse_unit)


def _parse_unit(_: int, unit: tuple[Segment, Segment]) -> Iterator[Row]:
    yield _line(unit[0]), _line(unit[1]), None


def _line(segment: Segment) -> bytes | None:
    line = " ".join((segment or "").split()).encode()
    return line if segment is not None and len(line) <= MAX_LINE_BYTES else None


def _units(handler: "_Handler", file: io.BufferedReader, path: Path) -> Iterator[Piece]:
    parser: Any = expat.ParserCreate()
    parser.buffer_text = True
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    parser.StartElementHandler = handler.start
    parser.EndElementHandler = handler.end
    parser.CharacterDataHandler = handler.characters
    parser.EntityDeclHandler = handler.refuse_entity
    size = 0
    try:
        for piece in _pieces(file):
            parser.Parse(piece)
            size += len(piece)
            if size - max(parser.CurrentByteIndex, 0) > MOST_MARKUP_BYTES:
                raise _Refused(f"a tag or comment has more than {MOST_MARKUP_BYTES:,} bytes. Export the file again")
            yield from handler.units
            handler.units.clear()
        parser.Parse(b"", True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        line = parser.CurrentLineNumber
        reason = str(error).partition(": line")[0]
        raise DataError(f"{path}, line {line:,}: not well-formed XML: {reason[:100]}. Export the file again") from None
    except _Refused as error:
        raise DataError(f"{path}, line {parser.CurrentLineNumber:,}: {error}") from None
    yield from handler.units
    if not handler.root:
        raise DataError(f"{path} is not {handler.kind}. Check its format")
    if handler.languages and not handler.found:
        languages = ", ".join(sorted(handler.languages))
        warn(f"{path} has no pairs of {' and '.join(handler.wanted)}. Its languages are {languages}. Check the codes")


def _pieces(file: io.BufferedReader) -> Iterator[bytes]:
    """Yield the file in pieces.

    Unless the file is UTF-16, replace the control characters that XML forbids, and references to them, with spaces.
    """
    if b"\0" in file.peek(4)[:4]:
        yield from iter(partial(file.read, PIECE), b"")
        return
    rest = b""  # may be the beginning of a reference that ends in the next piece
    while piece := file.read(PIECE):
        piece = rest + piece.translate(_SPACES)
        start = piece.rfind(b"&", -_REFERENCE_BYTES)
        piece, rest = (piece, b"") if start < 0 else (piece[:start], piece[start:])
        yield _CONTROL_REFERENCE.sub(b" ", piece)
    yield _CONTROL_REFERENCE.sub(b" ", rest)


class _Refused(Exception):
    """The file contains a construct that nmt refuses to read."""


class _Handler(ABC):
    """Collects pairs from the events of an XML parser."""

    kind: str
    roots: tuple[str, ...]
    codes: frozenset[str]  # inline elements whose text is markup of the original document

    def __init__(self, src: str, tgt: str) -> None:
        self.wanted = src, tgt
        self.languages = set[str]()  # languages of the units before the first pair
        self.found = False  # whether a pair was found
        self.units = list[Piece]()
        self.root = False  # whether the first element was read
        self.depth = 0
        self.text: list[str] | None = None  # the text of the segment being read
        self.size = 0  # number of characters of this segment read so far
        self.code_depth = 0  # depth of the outermost open code element in the segment; 0: none

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if ":" in name:
            name = name.rpartition(":")[2]
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise _Refused(f"elements are nested more than {MOST_DEPTH} levels deep. Export the file again")
        if self.depth == 1:
            if name not in self.roots:
                raise _Refused(f"the first element is {name[:40]!r}, so this is not {self.kind}")
            self.root = True
        if self.text is None:
            self.begin(name, attributes)
        elif name in self.codes and not self.code_depth:
            self.code_depth = self.depth

    def end(self, name: str) -> None:
        if self.code_depth == self.depth:
            self.code_depth = 0
        self.finish(name.rpartition(":")[2] if ":" in name else name)
        self.depth -= 1

    def characters(self, text: str) -> None:
        if self.text is not None and not self.code_depth:
            self.size += len(text)
            if self.size <= MAX_LINE_BYTES:
                self.text.append(text)

    def refuse_entity(self, name: str, *_: Any) -> None:
        raise _Refused(f"the file declares the entity {name[:40]!r}. Replace entities with characters")

    def unit_differs(self, *codes: str) -> None:
        """Store the languages of a unit without a pair, for a warning. After a pair was found, do nothing."""
        if not self.found and len(self.languages) < MOST_LANGUAGES:
            self.languages.update(filter(None, codes))

    def segment_begins(self) -> None:
        self.text = []
        self.size = 0

    def segment_ends(self) -> Segment:
        """Return the segment just read, or None if it is too long."""
        segment = "".join(self.text or ()) if self.size <= MAX_LINE_BYTES else None
        self.text = None
        return segment

    def unit_ends(self, src: Segment, tgt: Segment) -> None:
        self.found = True
        self.units.append((0, 1, len(src or "") + len(tgt or ""), (src, tgt)))

    @abstractmethod
    def begin(self, name: str, attributes: dict[str, str]) -> None:
        """Handle the start of an element outside of segments."""

    @abstractmethod
    def finish(self, name: str) -> None:
        """Handle the end of an element."""


class _Tmx(_Handler):
    kind = "TMX"
    roots = ("tmx",)
    codes = frozenset(("bpt", "ept", "ph", "it", "ut"))

    def __init__(self, src: str, tgt: str) -> None:
        super().__init__(src, tgt)
        self.language = ""
        self.unit = dict[str, Segment]()  # language code -> the unit's segment in this language

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        if name == "tu":
            self.unit = {}
        elif name == "tuv":
            self.language = (attributes.get("xml:lang") or attributes.get("lang") or "").replace("_", "-").lower()
        elif name == "seg":
            self.segment_begins()

    def finish(self, name: str) -> None:
        if name == "seg" and self.text is not None:
            segment = self.segment_ends()
            if len(self.unit) < MOST_SEGMENTS:
                self.unit.setdefault(self.language, segment)
        elif name == "tu" and self.text is None:
            sides = [_of_language(self.unit, code) for code in self.wanted]
            if all(side in self.unit for side in sides):
                self.unit_ends(self.unit[str(sides[0])], self.unit[str(sides[1])])
            else:
                self.unit_differs(*self.unit)


class _Xliff(_Handler):
    kind = "XLIFF"
    roots = ("xliff",)
    codes = frozenset(("bpt", "ept", "ph", "it"))  # only XLIFF 1.2 has these; XLIFF 2 keeps codes out of the text

    def __init__(self, src: str, tgt: str, finished: bool) -> None:
        super().__init__(src, tgt)
        self.finished = finished  # whether only finished segments are wanted
        self.pair = "", ""  # source and target language of the current part of the file
        self.sides = dict[str, Segment]()  # "source" or "target" -> segment
        self.side = ""
        self.approved = False  # whether the current segment is approved or has a state in FINISHED
        self.ignored_depth = 0  # depth of an open element to skip, such as <alt-trans>; 0: none

    def begin(self, name: str, attributes: dict[str, str]) -> None:
        if self.ignored_depth:
            return
        if name == "xliff" and "srcLang" in attributes:
            self.pair = attributes["srcLang"], attributes.get("trgLang", "")
        elif name == "file" and "source-language" in attributes:
            self.pair = attributes["source-language"], attributes.get("target-language", "")
        elif name in ("trans-unit", "segment"):
            self.sides = {}
            self.approved = attributes.get("approved") == "yes" or attributes.get("state") in FINISHED
        elif name in ("alt-trans", "seg-source", "ignorable", "matches"):
            self.ignored_depth = self.depth
        elif name in ("source", "target"):
            self.side = name
            self.approved = self.approved or attributes.get("state") in FINISHED
            self.segment_begins()

    def finish(self, name: str) -> None:
        if self.ignored_depth:
            self.ignored_depth = 0 if self.ignored_depth == self.depth else self.ignored_depth
        elif name == self.side and self.text is not None:
            self.sides[name] = self.segment_ends()
        elif name in ("trans-unit", "segment") and self.text is None:
            alike = all(_same(has, want) for has, want in zip(self.pair, self.wanted, strict=True))
            if not alike:
                self.unit_differs(*self.pair)
            elif len(self.sides) == 2 and (self.approved or not self.finished):
                self.unit_ends(self.sides["source"], self.sides["target"])
            self.sides = {}


@lru_cache(100)
def _same(code: str, wanted: str) -> bool:
    """Return whether `code` equals `wanted`, or at least has its language if `wanted` has no script or region."""
    code, wanted = (each.replace("_", "-").lower() for each in (code, wanted))
    return code == wanted or ("-" not in wanted and base_of(code) == base_of(wanted))


def _of_language(unit: dict[str, Segment], wanted: str) -> str | None:
    return next((code for code in unit if code and _same(code, wanted)), None)
