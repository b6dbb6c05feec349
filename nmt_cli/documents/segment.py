"""A segment: the plain text that a model translates, and the marks that stand in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from nmt_cli.corpus.tokenizer import normalise, visible
from nmt_cli.documents.placeholders import Piece, Protection

_WHITE = re.compile(r"(?:\s|&nbsp;|&#160;|&#[xX][aA]0;)++")
# A segment of so many characters or marks ends with its sentence, one of twice as many at once: the time to place
# marks grows with the product of the two, and sentences of long lines are translated one by one in any case.
_LONG, _MANY = 1000, 25
_LONG_TAG = 500
_CLOSERS = "\"'\u201d\u2019\u00bb)\\]"
_WIDE = "\u3002\uff01\uff1f"
_SENTENCE_END = re.compile(rf"(?:[.!?\u2026][{_CLOSERS}]*(?=\s)|[{_WIDE}][{_CLOSERS}]*)\s*")
_ENTITY_START = re.compile(r"&[^&;]*\Z")  # of HTML
_ENTITY_CUT = re.compile(r"&(?:[a-zA-Z]+|#[0-9]+|#[xX][0-9a-fA-F]+)\Z")
_LAST, _NEAR = re.compile(rf"[.!?\u2026{_WIDE}][{_CLOSERS}]*\Z"), 20  # so many characters are looked at


@dataclass
class Mark:
    """A tag or a point, as it is met: `at` is the length of the text before it.

    `before` and `after` are the characters beside it: a space for any white space and for the segment's ends, nothing
    for another point or a tag of an element without text.
    """

    parts: Parts
    at: int
    before: str = " "
    after: str = " "
    name: str = ""  # of a tag
    kind: str = "point"  # or "open" or "close"
    ordered: bool = False  # a point that must not pass another such point
    joins: bool = False  # a point that does not part the words beside it
    once: bool = False  # a tag that must not be repeated
    hollow: bool = True  # a tag that may stand beside its partner, with nothing between
    parent: int | None = None  # the element around it, by its number
    order: int = 0  # among all marks


@dataclass
class Element:
    """Two tags and the stretch of the source between them; elements nest."""

    open: Mark
    close: Mark
    parent: int | None  # the element around it, by its number, which is lower


@dataclass
class Segment:
    text: str  # normalised
    elements: list[Element]
    points: list[Mark]
    write: Callable[[str], str]  # text as the document spells it
    forbidden: re.Pattern[str] | None  # the translation must have none of this that the text lacks
    ends: tuple[str, str]  # white space before and after the text, where that stands within tags
    result: Parts  # at first the source as it stands


Part: TypeAlias = str | Segment
Parts: TypeAlias = list[Part]


def segments_of(parts: Parts) -> list[Segment]:
    """Return all segments of a document, those inside of tags before the one that holds the tags."""
    found = []
    for part in parts:
        if isinstance(part, Segment):
            for mark in part.points:
                found += segments_of(mark.parts)
            for element in part.elements:
                found += segments_of(element.open.parts) + segments_of(element.close.parts)
            found.append(part)
    return found


def render(parts: Parts) -> str:
    return "".join(part if isinstance(part, str) else render(part.result) for part in parts)


@dataclass
class Builder:
    """Collects a segment, piece by piece, or several where one would be too long."""

    write: Callable[[str], str] = str
    protection: Protection | None = None
    text: str = ""
    source: Parts = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    _space: bool = False  # there was white space since the last word
    _parted: bool = False  # a point parts what comes from the last word
    _line: list[Mark | str] = field(default_factory=list)  # marks, words and spaces, as they come
    _built: Parts = field(default_factory=list)  # the segments before this one

    def add_source(self, source: str, read: Callable[[str], str] = str) -> None:
        """Add a piece of text as the document spells it, which `read` turns into text; placeholders become points."""
        for piece in _whole(self.protection.pieces(source)) if self.protection else [Piece(source)]:
            if piece.kind == "text":
                for part in _parts(piece.source):
                    end = match.end() if self._size >= 1 and (match := _SENTENCE_END.search(part)) else len(part)
                    self.add_text(read(part[:end]), part[:end])
                    self.add_text(read(part[end:]), part[end:])
            elif piece.kind in ("open", "close"):
                self.add_tag(piece.name, [piece.source], close=piece.kind == "close", once=True)
            else:
                self.add_point([piece.source], ordered=piece.kind == "ordered")

    def add_text(self, text: str, source: str) -> None:
        if not text:
            return
        if not (text := visible(text)):
            self.source.append(source)
            return
        words = normalise(text)
        if self._is_full(space=self._space or not words):
            self._begin_another()
            if not words:
                self._built.append(source)
                return
        self.source.append(source)
        if not words or normalise(f".{text}")[1] == " ":
            self._add_space()
        if not words:
            return
        between = self._parted and self.text[-1:].isalnum() and words[0].isalnum()
        self.text += (" " if self.text and (self._space or between) else "") + words
        self._line.append(words)
        self._space = self._parted = False
        if normalise(f"{text}.")[-2] == " ":
            self._add_space()

    def _add_space(self) -> None:
        self._space = True
        self._line.append(" ")

    def add_tag(self, name: str, parts: Parts, *, close: bool = False, once: bool = False, hollow: bool = True) -> None:
        """Add a tag: `once`, if it must not be repeated; not `hollow`, if it means nothing right beside its partner."""
        long = sum(len(part) for part in parts if isinstance(part, str)) > _LONG_TAG  # repeated, it fills the memory
        once = once or long or (self.protection is not None and self.protection.once)
        kind = "close" if close else "open"
        self._add(Mark(parts, len(self.text), name=name, kind=kind, once=once, hollow=hollow))

    def add_point(self, parts: Parts, *, ordered: bool = False, joins: bool = False) -> None:
        """Add what the model does not see; where it does not join them, the words beside it are two."""
        self._add(Mark(parts, len(self.text), ordered=ordered, joins=joins))
        self._parted = self._parted or not joins

    def _add(self, mark: Mark) -> None:
        if self._is_full(space=self._space):
            self._begin_another()
            mark.at = 0
        self.source += mark.parts
        mark.order = len(self.marks)
        self.marks.append(mark)
        self._line.append(mark)

    @property
    def _size(self) -> float:
        return max(len(self.text) / _LONG, len(self.marks) / _MANY)

    def _is_full(self, *, space: bool) -> bool:
        """Return whether the segment shall end, before white space or not."""
        end = _LAST.search(self.text[-_NEAR:]) if self._size >= 1 else None
        return self._size >= 2 or (end is not None and (space or end[0][0] in _WIDE))

    def _begin_another(self) -> None:
        self._built += self._segment()
        self.text, self.source, self.marks, self._line = "", [], [], []
        self._space = self._parted = False

    def build(self) -> Parts:
        """Return the segments, with the white space around them; all as it stands if there is nothing to translate."""
        return [*self._built, *self._segment()]

    def _segment(self) -> Parts:
        if not any(character.isalpha() for character in self.text):
            return self.source
        source, lead, trail = list(self.source), "", ""
        if self._line[0] == " " and isinstance(first := source[0], str):
            lead = match[0] if (match := _WHITE.match(first)) else ""
            source[0] = first[len(lead) :]
        if self._line[-1] == " " and isinstance(last := source[-1], str):
            trail = _white_end(last)
            source[-1] = last[: len(last) - len(trail)]
        elements, points = _matched(self.marks)
        those = {point.order for point in points}
        empty = [element for element in elements if element.open.at == element.close.at]  # each becomes a point
        self._look_around(those | {mark.order for element in empty for mark in (element.open, element.close)})
        inner = [each for each in self._line if isinstance(each, str) or each.order in those]
        space_first, space_last = inner[0] == " " and not lead, inner[-1] == " " and not trail
        before = " " if space_first else ""
        after = " " if space_last else ""
        forbidden = self.protection.forbidden if self.protection else None
        return [lead, Segment(self.text, elements, points, self.write, forbidden, (before, after), source), trail]

    def _look_around(self, points: set[int]) -> None:
        before = after = " "
        for each in self._line:
            if isinstance(each, Mark):
                each.before = before
            before = _beside(each, before, points, -1)
        for each in reversed(self._line):
            if isinstance(each, Mark):
                each.after = after
            after = _beside(each, after, points, 0)


def _whole(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield pieces; a placeholder that ends in the midst of an entity, as an address does, has all of it."""
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


def _white_end(source: str) -> str:
    end = ""
    for match in _WHITE.finditer(source):
        end = match[0] if match.end() == len(source) else ""
    return end


def _parts(source: str) -> Iterator[str]:
    """Yield a text in parts that are not too long for a segment, cut between sentences or words, if that can be."""
    begin = 0
    while len(source) - begin > _LONG:
        limit = begin + _LONG
        ends = [match.end() for match in _SENTENCE_END.finditer(source, begin, limit)]
        cut = ends[-1] if ends else source.rfind(" ", begin, limit) + 1
        if cut <= begin:
            entity = _ENTITY_START.search(source, limit - _NEAR, limit)
            cut = entity.start() if entity else limit
        yield source[begin:cut]
        begin = cut
    yield source[begin:]


def _beside(each: Mark | str, character: str, points: set[int], side: int) -> str:
    """Return what is beside the next mark: nothing for a point; tags of elements are passed over."""
    if isinstance(each, str):
        return each[side]
    return "" if each.order in points else character


def _matched(marks: list[Mark]) -> tuple[list[Element], list[Mark]]:
    """Return the pairs of tags, outer ones first, and all other marks.

    A tag without its partner is a point that keeps its place among those: what it means may begin or end outside of the
    segment. So is the opening tag that another element's end leaves open.
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
            partners[opened.order] = mark
    elements, points, around = list[Element](), list[Mark](), list[int]()
    for mark in marks:
        mark.parent = around[-1] if around else None
        if mark.order in partners:
            elements.append(Element(mark, partners[mark.order], mark.parent))
            around.append(len(elements) - 1)
        elif around and elements[around[-1]].close is mark:
            around.pop()
        else:
            mark.ordered = mark.ordered or mark.kind != "point"
            points.append(mark)
    return elements, points
