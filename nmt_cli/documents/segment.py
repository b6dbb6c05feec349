"""A segment: the plain text that a model translates, and the marks that stand in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from nmt_cli.corpus.tokenizer import normalise
from nmt_cli.documents.placeholders import Piece, Protection

_WHITE = r"(?:\s|&nbsp;|&#160;|&#[xX][aA]0;)+"
_WHITE_START, _WHITE_END = re.compile(rf"\A{_WHITE}"), re.compile(rf"{_WHITE}\Z")


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
    forbidden: re.Pattern[str] | None  # what the translation must not say
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
    """Collects a segment, piece by piece."""

    write: Callable[[str], str] = str
    protection: Protection | None = None
    text: str = ""
    source: Parts = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    _space: bool = False  # there was white space since the last word
    _parted: bool = False  # a point parts what comes from the last word
    _line: list[Mark | str] = field(default_factory=list)  # marks, words and spaces, as they come

    def add_source(self, source: str, read: Callable[[str], str] = str) -> None:
        """Add a piece of text as the document spells it, which `read` turns into text; placeholders become points."""
        for piece in self.protection.pieces(source) if self.protection else [Piece(source)]:
            if piece.kind == "text":
                self.add_text(read(piece.source), piece.source)
            elif piece.kind in ("open", "close"):
                self.add_tag(piece.name, [piece.source], close=piece.kind == "close")
            else:
                self.add_point([piece.source], ordered=piece.kind == "ordered")

    def add_text(self, text: str, source: str) -> None:
        if not text:
            return
        self.source.append(source)
        words = normalise(text)
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
        once = once or (self.protection is not None and self.protection.once)
        kind = "close" if close else "open"
        self._add(Mark(parts, len(self.text), name=name, kind=kind, once=once, hollow=hollow))

    def add_point(self, parts: Parts, *, ordered: bool = False, joins: bool = False) -> None:
        """Add what the model does not see; where it does not join them, the words beside it are two."""
        self._add(Mark(parts, len(self.text), ordered=ordered, joins=joins))
        self._parted = self._parted or not joins

    def _add(self, mark: Mark) -> None:
        self.source += mark.parts
        mark.order = len(self.marks)
        self.marks.append(mark)
        self._line.append(mark)

    def build(self) -> Parts:
        """Return the segment, with the white space around it; all as it stands if there is nothing to translate."""
        if not any(character.isalpha() for character in self.text):
            return self.source
        source, lead, trail = list(self.source), "", ""
        if self._line[0] == " " and isinstance(first := source[0], str):
            source[0] = rest = _WHITE_START.sub("", first)
            lead = first[: len(first) - len(rest)]
        if self._line[-1] == " " and isinstance(last := source[-1], str):
            source[-1] = rest = _WHITE_END.sub("", last)
            trail = last[len(rest) :]
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
