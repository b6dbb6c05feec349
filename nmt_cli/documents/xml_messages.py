"""XML files of messages: find elements with their offsets, and read their content as text with inline markup.

No entity that a file declares is expanded, and nothing external is read.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from html import unescape

from nmt_cli.documents import html, xml
from nmt_cli.documents.messages import MOST_LEVELS, text_parts, wrong
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import Parts, Rewritten, SegmentBuilder
from nmt_cli.system.errors import printable

_ATTRIBUTE = re.compile(r"""(?<![^\s<>/="'])([^\s<>/="']++)\s*+=\s*+(?:"([^"<]*+)"|'([^'<]*+)')""")


@dataclass
class Element:
    """An element from offset `start` to `end`, with its content from `inner` to `close`."""

    name: str  # the name without a prefix
    tag: str  # the start tag
    start: int
    inner: int
    close: int = 0
    end: int = 0
    parent: "Element | None" = None
    children: list["Element"] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether the element is an empty-element tag such as <target/>."""
        return self.tag.endswith("/>")

    def get(self, name: str) -> str:
        """Return the value of an attribute, or ""."""
        return next((value for key, value, _, _ in attributes(self.tag) if key == name), "")

    def content(self, source: str) -> str:
        return source[self.inner : self.close]

    def space_before(self, source: str) -> str:
        """Return the text between the preceding tag and this element."""
        return source[source.rfind(">", 0, self.start) + 1 : self.start]

    def child(self, name: str) -> "Element | None":
        return next((each for each in self.children if each.name == name), None)

    def has(self, name: str, value: str) -> bool:
        """Return whether an attribute has this value. An element without the attribute inherits its parent's value."""
        element: Element | None = self
        while element:
            if found := element.get(name):
                return found == value
            element = element.parent
        return False


def attributes(tag: str) -> Iterator[tuple[str, str, int, int]]:
    """For each attribute, yield its name, its unescaped value, and the start and end of the value in the tag."""
    for match in _ATTRIBUTE.finditer(tag):
        group = 2 if match[2] is not None else 3
        yield match[1], unescape(match[group]), *match.span(group)


def with_attribute(tag: str, name: str, value: str) -> str:
    """Return a start tag with an attribute set to a value. The value must not need escaping."""
    for key, _, start, end in attributes(tag):
        if key == name:
            return tag[:start] + value + tag[end:]
    body = tag.rstrip("/>").rstrip()
    return f'{body} {name}="{value}"{tag[len(body) :].lstrip() if tag.endswith("/>") else ">"}'


def elements(source: str, root: str, kind: str) -> list[Element]:
    """Return all elements in order. `kind` names the format in error messages.

    Raise DataError if the source is not XML with a single outermost element named `root`, or if elements are nested
    more than MOST_LEVELS levels deep.
    """
    found, stack, offset = list[Element](), list[Element](), 0
    for token in xml.tokens_of(source):
        start, offset = offset, offset + len(token.source)
        name = token.name.rpartition(":")[2]
        if token.kind in ("start", "empty"):
            element = Element(name, token.source, start, offset, offset, offset, stack[-1] if stack else None)
            if len(stack) >= MOST_LEVELS:
                raise wrong(source, start, kind, f"elements nested more than {MOST_LEVELS} levels deep")
            if not stack and (found or name != root):
                raise wrong(source, start, kind, f"an element other than <{root}>")
            if stack:
                stack[-1].children.append(element)
            found.append(element)
            if token.kind == "start":
                stack.append(element)
        elif token.kind == "end":
            if not stack or stack[-1].name != name:
                raise wrong(source, start, kind, f"</{printable(name, 40)}> without a start tag")
            closed = stack.pop()
            closed.close, closed.end = start, offset
        elif token.kind == "text" and ("<" in token.source or (not stack and token.source.strip())):
            raise wrong(source, start, kind, "text that is not XML")
    if stack or not found:
        what = f"<{printable(stack[-1].name, 40)}> without an end tag" if stack else f"no <{root}>"
        raise wrong(source, len(source), kind, what)
    return found


Role = Callable[[str, str], tuple[str, str]]


@dataclass(frozen=True)
class Escapes:
    """The escapes that a format uses in addition to those of XML.

    `lines` matches a separator of lines. Its only group contains the whole match. It is None if text has no separators.
    """

    escape: Callable[[str], str] = str
    unescape: Callable[[str], str] = str
    lines: re.Pattern[str] | None = None


class InlineReader:
    """Reads the content of elements as text with inline markup.

    `role` takes an element's name and start tag, and returns a kind and a label. The kinds are:
    - "tag": an element with text inside
    - "copy": an element that is copied with its content
    - "block": an element whose content is a segment of its own
    - "open" and "close": elements that stand for a start tag and an end tag
    The two elements of a pair, "open" and "close", have the same label. For the other kinds, the label is "".
    """

    def __init__(self, role: Role, escapes: Escapes | None = None) -> None:
        self._role = role
        self._escapes = escapes or Escapes()

    def cut(self, source: str, protection: Protection | None) -> Parts:
        """Cut the content of an element into segments and strings to copy."""
        tokens, parts, index = xml.tokens_of(source), Parts(), 0
        plain = unescape(source)
        if all(token.kind == "text" for token in tokens) and html.is_html(plain, protection):
            return self._html(source, protection)
        ends, _ = xml.tree_of(tokens)
        spelling = xml.Spelling()
        builder = self._builder(spelling, protection)
        while index < len(tokens):
            token = tokens[index]
            kind, label = self._kind(token)
            is_whole = kind == "copy" or (label and label != token.name)  # copied with its content
            stop = ends.get(index, index) + 1 if is_whole else index + 1
            whole = "".join(each.source for each in tokens[index:stop])
            if kind == "text":
                for number, line in enumerate(self._lines(whole)):
                    if number % 2:
                        parts += [*builder.build(), line]
                        builder = self._builder(spelling, protection)
                    else:
                        xml.add_text(builder, line, partial(self._unescaped, spelling))
            elif kind in ("cdata", "block"):
                inner = xml.cdata_parts(token, protection) if kind == "cdata" else [whole]
                parts += [*builder.build(), *inner]
                builder = self._builder(spelling, protection)
            elif kind == "copy":
                builder.add_standalone([whole], joins=token.kind == "comment")
            else:
                builder.add_tag(label, [whole], close=kind == "close", once=True)
            index = stop
        return parts + builder.build()

    def _html(self, source: str, protection: Protection | None) -> Parts:
        """Return the parts of text that is escaped HTML."""
        parts, spelling = Parts(), xml.Spelling()
        for number, line in enumerate(self._lines(source)):
            own = text_parts(self._unescaped(spelling, line), protection)
            parts.append(line if number % 2 else Rewritten(own, partial(self._escaped, spelling)))
        return parts

    def _kind(self, token: xml.Token) -> tuple[str, str]:
        """Return the kind and the label of a token.

        The kind is "text", "cdata", "block", "copy", "open" or "close". The two tags of a pair, "open" and "close",
        have the same label. For the other kinds, the label is "".
        """
        if token.kind in ("text", "cdata"):
            return token.kind, ""
        if not token.name:
            return "copy", ""
        kind, label = self._role(token.name.rpartition(":")[2], token.source)
        if kind == "block":
            return kind, ""
        if token.kind == "end":
            return "close", token.name
        if kind == "copy" or (token.kind == "start" and xml.NOT_TRANSLATED.search(token.source)):
            return "copy", ""
        if kind == "tag":
            return ("copy", "") if token.kind == "empty" else ("open", token.name)
        return kind, label

    def _unescaped(self, spelling: xml.Spelling, text: str) -> str:
        return self._escapes.unescape(spelling.unescape(text))

    def _lines(self, text: str) -> list[str]:
        return self._escapes.lines.split(text) if self._escapes.lines else [text]

    def _builder(self, spelling: xml.Spelling, protection: Protection | None) -> SegmentBuilder:
        return SegmentBuilder(partial(self._escaped, spelling), protection)

    def _escaped(self, spelling: xml.Spelling, text: str) -> str:
        return spelling.escape(self._escapes.escape(text))
