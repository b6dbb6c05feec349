"""Segments of documents. A segment is the plain text that a model translates, together with its marks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from nmt_cli.corpus.tokenizer import normalize, visible
from nmt_cli.documents.placeholders import Piece, Protection

_WHITE = re.compile(r"(?:\s|&nbsp;|&#160;|&#[xX][aA]0;)++")
# A segment with this many characters or marks ends after the current sentence. A segment with twice as many ends at
# once. The limits exist because the time to place marks grows with the number of characters times the number of marks.
# A cut between sentences does not change the translation, because sentences of long lines are translated separately.
_LONG_TEXT = 1000
_MANY_MARKS = 25
_LONG_TAG = 500  # a tag with more characters is never repeated
_CLOSERS = "\"'\u201d\u2019\u00bb)\\]"
_WIDE_STOPS = "\u3002\uff01\uff1f"
_SENTENCE_END = re.compile(rf"(?:[.!?\u2026][{_CLOSERS}]*(?=\s)|[{_WIDE_STOPS}][{_CLOSERS}]*)\s*")
_ENTITY_START = re.compile(r"&[^&;]*\Z")  # matches the beginning of an unfinished HTML entity
_ENTITY_CUT = re.compile(r"&(?:[a-zA-Z]+|#[0-9]+|#[xX][0-9a-fA-F]+)\Z")  # an HTML entity without its semicolon
_LAST_STOP = re.compile(rf"[.!?\u2026{_WIDE_STOPS}][{_CLOSERS}]*\Z")
_NEAR = 20  # number of characters to search backwards


@dataclass
class Mark:
    """A tag, or a standalone mark such as an image, a comment, code or a placeholder."""

    parts: Parts
    offset: int  # in the segment's text
    # The neighboring characters: " " for white space and at both ends of the segment, "" for a standalone mark or the
    # tag of an element without text.
    before: str = " "
    after: str = " "
    name: str = ""  # the name of a tag, or "" for other marks
    kind: str = "standalone"  # "standalone", "open" or "close"
    ordered: bool = False  # whether a standalone mark must keep its place in the order of all ordered marks
    joins: bool = False  # whether the words on both sides of a standalone mark may form one word
    once: bool = False  # whether a tag must not be repeated
    may_be_empty: bool = True  # whether the element of a tag may have no content
    parent: int | None = None  # the index of the innermost element around the mark
    index: int = 0  # the number of marks before this one in the segment


@dataclass
class Element:
    """Two tags and the text between them. An element may contain other elements."""

    open: Mark
    close: Mark
    parent: int | None  # the index of the innermost element around this one


@dataclass
class MarkedSegment:
    text: str  # white space is normalized
    elements: list[Element]
    standalone: list[Mark]
    escape: Callable[[str], str]  # escapes plain text for the document
    forbidden: re.Pattern[str] | None  # a translation may contain a match only as often as `text` does
    outer_space: tuple[str, str]  # at the start and end of `text`: " " if an element has white space there, else ""
    result: Parts  # the parts of the source until the translation replaces them
    # If not None, `result` contains smaller segments, and this function divides the translation among them.
    divide: Callable[[Any], None] | None = None


@dataclass
class Rewritten:
    """Parts whose translation is converted to the markup of the document by the function `rewrite`."""

    parts: Parts
    rewrite: Callable[[str], str]


Part: TypeAlias = str | MarkedSegment | Rewritten
Parts: TypeAlias = list[Part]


def segments_of(parts: Parts) -> list[MarkedSegment]:
    """Return all segments in `parts`, in order. Segments inside a mark precede the segment that has the mark."""
    found = []
    for part in parts:
        if isinstance(part, MarkedSegment):
            for mark in part.standalone:
                found += segments_of(mark.parts)
            for element in part.elements:
                found += segments_of(element.open.parts) + segments_of(element.close.parts)
            found.append(part)
        elif isinstance(part, Rewritten):
            found += segments_of(part.parts)
    return found


def render(parts: Parts) -> str:
    return "".join(map(_rendered, parts))


def _rendered(part: Part) -> str:
    if isinstance(part, str):
        return part
    return part.rewrite(render(part.parts)) if isinstance(part, Rewritten) else render(part.result)


def plain_parts(
    text: str,
    protection: Protection | None = None,
    escape: Callable[[str], str] = str,
    unescape: Callable[[str], str] = str,
) -> Parts:
    """Return the parts of text without markup. `protection` finds placeholders in the text.

    `unescape` converts the source to plain text, and `escape` converts a translation to the form of the document.
    """
    builder = SegmentBuilder(escape, protection)
    builder.add_source(text, unescape)
    return builder.build()


@dataclass
class SegmentBuilder:
    """Builds a segment piece by piece, or several segments if one would be too long."""

    escape: Callable[[str], str] = str
    protection: Protection | None = None
    text: str = ""
    source: Parts = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    _space: bool = False  # whether white space follows the last word so far
    _separated: bool = False  # whether a standalone mark separates the last word from the next word
    _line: list[Mark | str] = field(default_factory=list)  # the marks, words and spaces of the segment, in order
    _built: Parts = field(default_factory=list)  # the finished segments and the text between them

    def add_source(self, source: str, unescape: Callable[[str], str] = str) -> None:
        """Add text from the document. `unescape` converts the text to plain text. Placeholders become marks."""
        for piece in _with_whole_entities(self.protection.pieces(source)) if self.protection else [Piece(source)]:
            if piece.kind == "text":
                for part in _short_parts(piece.source):
                    end = match.end() if self._size >= 1 and (match := _SENTENCE_END.search(part)) else len(part)
                    self.add_text(unescape(part[:end]), part[:end])
                    self.add_text(unescape(part[end:]), part[end:])
            elif piece.kind in ("open", "close"):
                self.add_tag(piece.name, [piece.source], close=piece.kind == "close", once=True)
            else:
                self.add_standalone([piece.source], ordered=piece.kind == "ordered")

    def add_text(self, text: str, source: str) -> None:
        """Add plain text. `source` is the text as written in the document."""
        if not text:
            return
        if not (text := visible(text)):
            self.source.append(source)
            return
        words = normalize(text)
        if self._is_full(space=self._space or not words):
            self._begin_another()
            if not words:
                self._built.append(source)
                return
        self.source.append(source)
        if not words or normalize(f".{text}")[1] == " ":  # begins with white space
            self._add_space()
        if not words:
            return
        between = self._separated and self.text[-1:].isalnum() and words[0].isalnum()
        self.text += (" " if self.text and (self._space or between) else "") + words
        self._line.append(words)
        self._space = False
        self._separated = False
        if normalize(f"{text}.")[-2] == " ":
            self._add_space()

    def _add_space(self) -> None:
        self._space = True
        self._line.append(" ")

    def add_tag(
        self, name: str, parts: Parts, *, close: bool = False, once: bool = False, may_be_empty: bool = True
    ) -> None:
        """Add a tag. For `once` and `may_be_empty`, see Mark."""
        long = sum(len(part) for part in parts if isinstance(part, str)) > _LONG_TAG  # copies could fill the memory
        once = once or long or (self.protection is not None and self.protection.once)
        kind = "close" if close else "open"
        self._add(Mark(parts, len(self.text), name=name, kind=kind, once=once, may_be_empty=may_be_empty))

    def add_standalone(self, parts: Parts, *, ordered: bool = False, joins: bool = False) -> None:
        """Add a mark that is not a tag. For `ordered` and `joins`, see Mark."""
        self._add(Mark(parts, len(self.text), ordered=ordered, joins=joins))
        self._separated = self._separated or not joins

    def _add(self, mark: Mark) -> None:
        if self._is_full(space=self._space):
            self._begin_another()
            mark.offset = 0
        self.source += mark.parts
        mark.index = len(self.marks)
        self.marks.append(mark)
        self._line.append(mark)

    @property
    def _size(self) -> float:
        """The size of the segment as a multiple of the limits."""
        return max(len(self.text) / _LONG_TEXT, len(self.marks) / _MANY_MARKS)

    def _is_full(self, *, space: bool) -> bool:
        """Return whether the segment must end here. `space` tells whether white space follows its last word."""
        stop = _LAST_STOP.search(self.text[-_NEAR:]) if self._size >= 1 else None
        return self._size >= 2 or (stop is not None and (space or stop[0][0] in _WIDE_STOPS))

    def _begin_another(self) -> None:
        self._built += self._segment()
        self.text, self.source, self.marks, self._line = "", [], [], []
        self._space = False
        self._separated = False

    def build(self) -> Parts:
        """Return the segments and the white space around them. Text without a letter does not become a segment."""
        return [*self._built, *self._segment()]

    def _segment(self) -> Parts:
        if not any(character.isalpha() for character in self.text):
            return self.source
        source, lead, trail = list(self.source), "", ""
        if self._line[0] == " " and isinstance(first := source[0], str):
            lead = match[0] if (match := _WHITE.match(first)) else ""
            source[0] = first[len(lead) :]
        if self._line[-1] == " " and isinstance(last := source[-1], str):
            trail = _trailing_space(last)
            source[-1] = last[: len(last) - len(trail)]
        elements, standalone = _matched(self.marks)
        indices = {mark.index for mark in standalone}
        empty = [element for element in elements if element.open.offset == element.close.offset]
        self._set_neighbors(indices | {mark.index for element in empty for mark in (element.open, element.close)})
        inner = [each for each in self._line if isinstance(each, str) or each.index in indices]
        before = " " if inner[0] == " " and not lead else ""
        after = " " if inner[-1] == " " and not trail else ""
        forbidden = self.protection.forbidden if self.protection else None
        segment = MarkedSegment(self.text, elements, standalone, self.escape, forbidden, (before, after), source)
        return [lead, segment, trail]

    def _set_neighbors(self, opaque: set[int]) -> None:
        """Set `before` and `after` of all marks. Only marks whose index is in `opaque` count as neighbors."""
        before = after = " "
        for each in self._line:
            if isinstance(each, Mark):
                each.before = before
                before = "" if each.index in opaque else before
            else:
                before = each[-1]
        for each in reversed(self._line):
            if isinstance(each, Mark):
                each.after = after
                after = "" if each.index in opaque else after
            else:
                after = each[0]


def _with_whole_entities(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces. If a placeholder, such as a URL, ends inside an HTML entity, extend it to the semicolon."""
    last: Piece | None = None
    for piece in pieces:
        if last and piece.kind == "text" and piece.source.startswith(";") and _ENTITY_CUT.search(last.source[-_NEAR:]):
            yield last._replace(source=f"{last.source};")
            last, piece = None, piece._replace(source=piece.source[1:])
        if last:
            yield last
        last = piece if piece.kind != "text" else None
        if not last:
            yield piece
    if last:
        yield last


def _trailing_space(source: str) -> str:
    end = ""
    for match in _WHITE.finditer(source):
        end = match[0] if match.end() == len(source) else ""
    return end


def _short_parts(source: str) -> Iterator[str]:
    """Cut text into parts that are short enough for a segment, if possible between sentences, or else between words."""
    begin = 0
    while len(source) - begin > _LONG_TEXT:
        limit = begin + _LONG_TEXT
        ends = [match.end() for match in _SENTENCE_END.finditer(source, begin, limit)]
        cut = ends[-1] if ends else source.rfind(" ", begin, limit) + 1
        if cut <= begin:
            entity = _ENTITY_START.search(source, limit - _NEAR, limit)
            cut = entity.start() if entity else limit
        yield source[begin:cut]
        begin = cut
    yield source[begin:]


def _matched(marks: list[Mark]) -> tuple[list[Element], list[Mark]]:
    """Find the tags that form elements. Return the elements, outer elements first, and all other marks.

    A tag without a partner becomes an ordered standalone mark, because its element may begin or end outside the
    segment. If an element is still open when an outer element closes, its opening tag has no partner either.
    """
    partners: dict[int, Mark] = {}
    open_marks, names = list[Mark](), Counter[str]()
    for mark in marks:
        if mark.kind == "open":
            open_marks.append(mark)
            names[mark.name] += 1
        elif mark.kind == "close" and names[mark.name]:
            while (opened := open_marks.pop()).name != mark.name:
                names[opened.name] -= 1
            names[mark.name] -= 1
            partners[opened.index] = mark
    elements, standalone, around = list[Element](), list[Mark](), list[int]()
    for mark in marks:
        mark.parent = around[-1] if around else None
        if mark.index in partners:
            elements.append(Element(mark, partners[mark.index], mark.parent))
            around.append(len(elements) - 1)
        elif around and elements[around[-1]].close is mark:
            around.pop()
        else:
            mark.ordered = mark.ordered or mark.kind != "standalone"
            standalone.append(mark)
    return elements, standalone
