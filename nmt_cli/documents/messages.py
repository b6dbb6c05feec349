"""Translate files of messages. A message is a string that a program loads by a key.

The module for each format finds the messages and their offsets, and unescapes and escapes strings. Messages that the
translation does not change are copied byte for byte. So is everything around the messages, except plural categories and
attributes such as the language.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from nmt_cli.documents import accelerators, html, icu
from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.encodings import paired
from nmt_cli.documents.icu import Cut, is_same
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.plural_categories import categories, one_is_exact
from nmt_cli.documents.po_syntax import Edit, edited
from nmt_cli.documents.segment import Parts, plain_parts, render
from nmt_cli.system.errors import DataError

MOST_LEVELS = 100  # maximum depth of nested elements, objects and lists
_MODIFIER = "(?:Raw)?(?:Ctrl|Control|Alt|Shift|Cmd|Command|Meta|Option|Super|Win)[+-]"
_SHORTCUT = rf"(?:{_MODIFIER})++(?:\w++|\S)|F\d{{1,2}}|Del|Esc|Ins|PgDn|PgUp"
# Line ends and tabs divide a message. A shortcut after a tab, as in Open\tCtrl+O, is copied.
LINES = re.compile(rf"(\r\n?|\n|\t(?:(?:{_SHORTCUT})(?![^\r\n\t]))?)")
# Values that are not text: keys such as "menu.file_open", file names, paths, colors and, in _DATE, date patterns.
_IDENTIFIER = re.compile(
    r"\s*+(?:[a-z][\w-]*+(?:\.[a-z_][\w-]++)++(?:\.[A-Z]\w*+)?+|[a-z][^\W_]*+(?:_\w++)++|[a-z]++(?:-[a-z]*+)*+\d[\w-]*+"
    r"|(?:\.{1,2}|@?[\w-]++)?+(?:/[\w@-]++)++\.\w++|\.{0,2}/[\w@-]++(?:/[\w@-]++)*+/?+|#[0-9A-Fa-f]{3,8}|:\w++)\s*+"
)
_DATE = re.compile(r"%[-_^]?+[A-Za-z]|[^\w%]")


def text_parts(text: str, protection: Protection | None) -> Parts:
    """Cut a message into parts: segments, and strings to copy, such as line ends, tabs and shortcuts."""
    parse = html.parse if html.is_html(text, protection) else plain_parts
    parts = Parts()
    for number, line in enumerate(LINES.split(text)):
        parts += [line] if number % 2 else parse(line, protection)
    return parts


def is_code(text: str) -> bool:
    """Return whether a value in a data file is not text but an identifier, a path, a color or a date pattern."""
    return bool(_IDENTIFIER.fullmatch(text)) or ("%" in text and not _DATE.sub("", text))


class MessageText:
    """The text of a message, in parts. An ICU message becomes several sentences.

    If a message that is not ICU has an accelerator mark, as in "&Open", the parts lack the mark, and `write` inserts it
    into the translation.
    """

    def __init__(self, source: str, cut: Cut, protection: Protection | None, language: str) -> None:
        self._source = source
        self._accelerator = accelerators.find(source)
        self._icu = icu.parse(source, cut, protection, language) if "{" in source else None
        plain = self._accelerator.plain if self._accelerator else source
        self.parts = self._icu.parts if self._icu else cut(plain, protection)
        self._before = render(self.parts)

    def write(self, used: Counter[str]) -> str:
        """Return the translation. Count the letter of its accelerator, if any, in `used`."""
        if self._icu:
            return self._icu.write()
        written = render(self.parts)
        if is_same(written, self._before):
            return self._source
        return accelerators.marked(written, self._accelerator, used) if self._accelerator else written


@dataclass
class Message:
    """A string in a file, from offset `start` to `end`."""

    start: int
    end: int
    text: str
    spell: Callable[[str], str] = str  # escapes text for the file
    cut: Cut = text_parts
    flags: Sequence[str] = ()  # gettext flags, which select the forms of placeholders
    is_new: bool = False  # whether to write the translation even if it is equal to the text

    def __post_init__(self) -> None:
        self.text = paired(self.text)


@dataclass
class Plural:
    """An entry of the file for one plural category, from offset `start` to `end`: the category's name and a message."""

    category: str
    name: tuple[int, int]  # the offsets of the category's name in the file
    start: int
    end: int
    message: Message


@dataclass
class PluralGroup:
    items: list[Plural]
    separator: str  # the text between two items in the file
    ordinal: bool = False

    def unused(self, language: str) -> list[Plural]:
        """Return the items whose plural category does not exist in the target language.

        Many libraries use "zero" for the count 0 in every language, so "zero" is never returned. Return an empty list
        if the language is unknown.
        """
        needed = categories(language, ordinal=self.ordinal)
        return [item for item in self.items if needed and item.category not in (*needed, "zero")]


@dataclass
class Found:
    """The contents of a file: messages, plural groups, and edits that do not depend on the translation."""

    messages: list[Message] = field(default_factory=list)
    groups: list[PluralGroup] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)
    target: str = ""  # the target language that the file names, if any


class MessageFile(Document):
    """A file whose messages are translated in place."""

    def __init__(self, source: str, found: Found, options: ReadOptions) -> None:
        self._source = source
        self._language = options.language
        self.target = found.target
        self._edits = found.edits
        self._groups = [group for group in found.groups if any(item.category == "other" for item in group.items)]
        self._removed = list[Edit]()
        gone = {start for group in self._groups for start in self._remove_unused(group)}
        self._texts = dict[int, tuple[Message, MessageText]]()  # by offset
        for message in found.messages:
            if message.start not in gone:
                protection = options.protection(strict=True, flags=message.flags)
                text = MessageText(message.text, message.cut, protection, options.language)
                self._texts[message.start] = message, text
        super().__init__([part for _, text in self._texts.values() for part in text.parts])

    def write(self) -> str:
        used = Counter[str]()
        written = {start: text.write(used) for start, (_, text) in self._texts.items()}
        edits = [*self._edits, *self._removed]
        for group in self._groups:
            edits += self._additions(group, written)
        for start, (message, _) in self._texts.items():
            if message.is_new or written[start] != message.text:
                edits.append((start, message.end, message.spell(written[start])))
        return edited(self._source, edits)

    def _remove_unused(self, group: PluralGroup) -> Iterator[int]:
        """Remove plural categories that do not exist in the target language. Yield the offsets of their messages.

        Keep the last item, and items that a comment or other text separates from the next item.
        """
        unused = group.unused(self._language)
        for item, following in pairwise(group.items):
            between = self._source[item.end : following.start]
            if item in unused and not between.replace(",", "").strip():
                self._removed.append((item.start, following.start, ""))
                yield item.message.start

    def _additions(self, group: PluralGroup, written: dict[int, str]) -> list[Edit]:
        """Return edits that add missing plural categories of the target language, with the text of "other".

        If the target language also uses "one" for other numbers than 1, and "one" lacks a placeholder of "other", as in
        "one file", also replace the text of "one" in `written` with that of "other".
        """
        by_name = {item.category: item for item in group.items}
        other = by_name["other"]
        if other.message.start not in written:
            return []
        text, one = written[other.message.start], by_name.get("one")
        if one and one.message.start in written and not one_is_exact(self._language) and self._language:
            protection = Protection(strict=True, flags=one.message.flags)
            if not placeholders(other.message.text, protection) <= placeholders(one.message.text, protection):
                written[one.message.start] = text
        needed = categories(self._language, ordinal=group.ordinal)
        spelled = other.message.spell(text) if text != other.message.text else self._source_of(other)
        before, after = self._source[other.start : other.name[0]], self._source[other.name[1] : other.message.start]
        end = self._source[other.message.end : other.end]
        new = [f"{before}{name}{after}{spelled}{end}{group.separator}" for name in needed if name not in by_name]
        return [(other.start, other.start, "".join(new))] if new else []

    def _source_of(self, item: Plural) -> str:
        return self._source[item.message.start : item.message.end]


def placeholders(text: str, protection: Protection | None) -> Counter[str]:
    pieces = (protection or Protection()).pieces(text)
    return Counter(piece.source for piece in pieces if piece.kind in ("standalone", "ordered"))


def wrong(source: str, offset: int, kind: str, what: str) -> DataError:
    """Return the error for a file that is not valid at `offset`. `what` completes "line N has ..."."""
    return DataError(f"this is not a valid {kind}: line {source.count(chr(10), 0, offset) + 1:,} has {what}")
