"""Parse the XML of office documents into tokens, and find the paragraphs and other text."""

import re
from collections.abc import Callable, Mapping
from functools import partial

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.items import Item, inner
from nmt_cli.documents.package import Member
from nmt_cli.documents.segment import Parts, Rewritten, SegmentBuilder, plain_parts, render
from nmt_cli.documents.xml import INVALID, Spelling, Token, tokens_of
from nmt_cli.system.errors import DataError

_DEEPEST = 100  # maximum depth of elements; office documents have a few dozen levels
_MOST_TAGS = 5_000_000  # about 1 GB of memory
_BOMS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_NAMESPACE = re.compile(r"\sxmlns(?::(?P<prefix>[^\s=\"'<>]+))?\s*=\s*[\"'](?P<uri>[^\"'<>]*)[\"']")
_ATTRIBUTE = re.compile(r"(?<=\s)(?P<name>[^\s=\"'<>/]++)\s*+=\s*+(?P<quote>[\"'])(?P<value>[^<]*?)(?P=quote)")
_LINE_END = re.compile(r"(\r?\n|&#10;|&#xA;)")
_SPACES = re.compile(r"(?:\s|&nbsp;|&#160;|&#xA0;|<text:s\b[^<>]*/>)+", re.IGNORECASE)


def xml_text(data: bytes, name: str) -> tuple[str, str]:
    """Return the text and the encoding of an XML file. `name` is the name of the file in messages.

    Raise DataError if the file is not valid text, has characters that XML forbids, declares entities, or has too many
    tags.
    """
    encoding = _BOMS.get(data[:2], "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(f"{name[:60]} is not {encoding.upper()}: byte {error.start:,} is invalid") from None
    if "<!ENTITY" in text:
        raise DataError(f"{name[:60]} declares entities, which nmt does not support")
    if text.count("<") > _MOST_TAGS:
        raise DataError(f"{name[:60]} has more than {_MOST_TAGS:,} tags. Split the file")
    if INVALID.search(text):
        raise DataError(f"{name[:60]} has characters that XML does not allow")
    return text, encoding


class Markup:
    """The tokens of an XML file.

    `names` lists the tag name of each token, or "" if the token is not a tag. In these names, the prefixes in
    `namespaces` replace the file's own namespace prefixes. `ends` maps the index of each start tag to the index of its
    end tag.
    """

    def __init__(self, data: bytes, file_name: str, namespaces: Mapping[str, str]) -> None:
        """`namespaces` maps URIs to prefixes.

        Raise DataError if the file is not well-formed or nests elements too deeply, or if `xml_text` does.
        """
        self.text, self.encoding = xml_text(data, file_name)
        self.tokens = tokens_of(self.text)
        self.sources = [token.source for token in self.tokens]
        used = {match["prefix"] or "": match["uri"] for match in _NAMESPACE.finditer(self.text)}
        self._prefixes = {prefix: namespaces[uri] for prefix, uri in used.items() if uri in namespaces}
        self._prefixes_in_file = {usual: f"{prefix}:" if prefix else "" for prefix, usual in self._prefixes.items()}
        self.names = list(map(self._usual_name, self.tokens))
        self.ends = self._end_tags(file_name)

    def own(self, name: str) -> str:
        """Convert an element's name from the prefix in `namespaces` to the prefix that the file uses."""
        prefix, _, local = name.partition(":")
        return self._prefixes_in_file.get(prefix, f"{prefix}:") + local

    def source(self, begin: int, end: int) -> str:
        return "".join(self.sources[begin:end])

    def end(self, index: int) -> int:
        """If the token at `index` is a start tag, return the index after its end tag. Otherwise return `index + 1`."""
        return self.ends.get(index, index) + 1

    def _usual_name(self, token: Token) -> str:
        if not token.name:
            return ""
        prefix, colon, local = token.name.partition(":")
        if not colon:
            prefix, local = "", prefix
        usual = self._prefixes.get(prefix, prefix)
        return f"{usual}:{local}" if usual else local

    def _end_tags(self, file_name: str) -> dict[int, int]:
        """Return `ends`. Raise DataError if tags do not match."""
        ends, opened = dict[int, int](), list[int]()
        for index, token in enumerate(self.tokens):
            if token.kind == "start":
                opened.append(index)
                if len(opened) > _DEEPEST:
                    raise DataError(f"{file_name[:60]} nests elements more than {_DEEPEST} levels deep")
            elif token.kind == "end":
                if not opened or self.tokens[opened[-1]].name != token.name:
                    raise DataError(f"{file_name[:60]} is damaged: </{token.name[:40]}> is out of place")
                ends[opened.pop()] = index
            elif token.kind == "text" and "<" in token.source:
                raise DataError(f"{file_name[:60]} is damaged: it is not well-formed XML")
        if opened:
            raise DataError(f"{file_name[:60]} is damaged: <{self.tokens[opened[-1]].name[:40]}> has no end tag")
        return ends


class Reader:
    """Finds the text of one kind of XML file. Derived classes define the elements and read the paragraphs."""

    namespaces: Mapping[str, str] = {}
    paragraphs: frozenset[str] = frozenset()  # names of the elements that are paragraphs
    texts: frozenset[str] = frozenset()  # names of elements that contain nothing but text
    copied: frozenset[str] = frozenset()  # names of elements without text to translate
    attributes: Mapping[str, tuple[str, ...]] = {}  # for each element, the attributes with text

    def __init__(self, data: bytes, name: str, options: ReadOptions) -> None:
        self.markup = Markup(data, name, self.namespaces)
        self.options = options
        self.protection = options.protection()
        self.language = options.language.replace("_", "-")

    def parts(self) -> Parts:
        return self.walk(0, len(self.markup.tokens))

    def member(self) -> Member:
        return Member(self.markup.text, self.parts(), self.markup.encoding)

    def paragraph(self, begin: int, end: int) -> Parts:
        """Return the parts of a paragraph. `begin` and `end - 1` are the indices of its start and end tag."""
        raise NotImplementedError

    def is_copied(self, index: int) -> bool:
        """Return whether the element that begins with this token is copied unchanged."""
        return self.markup.names[index] in self.copied

    def walk(self, begin: int, end: int) -> Parts:
        """Return the parts of the tokens from `begin` to `end`."""
        markup, parts, index, copied_from = self.markup, Parts(), begin, begin
        while index < end:
            name, is_start = markup.names[index], index in markup.ends
            stop = index + 1
            found = Parts()
            if is_start and self.is_copied(index):
                index = markup.end(index)
                continue
            if is_start and name in self.paragraphs:
                stop = markup.end(index)
                found = self.paragraph(index, stop)
            elif is_start and name in self.texts and markup.ends[index] == index + 2:
                stop = markup.end(index)
                found = [markup.sources[index], *self.plain(markup.sources[index + 1]), markup.sources[index + 2]]
            elif name in self.attributes and markup.tokens[index].kind != "end":
                found = self._tag(index)
            else:
                index += 1
                continue
            parts += [markup.source(copied_from, index), *found]
            index = copied_from = stop
        return [*parts, markup.source(copied_from, end)]

    def plain(self, source: str, quote: str = "") -> Parts:
        """Return the parts of text without markup, line by line. For `quote`, see Spelling."""
        parts = Parts()
        for line in _LINE_END.split(source):
            spelling = Spelling(quote)
            parts += plain_parts(line, self.protection, spelling.escape, spelling.unescape)
        return [rewritten(parts, source, str)]

    def _tag(self, index: int) -> Parts:
        """Return the parts of a tag that may have attributes with text."""
        source, names = self.markup.sources[index], self.attributes[self.markup.names[index]]
        parts, end = Parts(), 0
        for match in _ATTRIBUTE.finditer(source):
            if match["name"] in names and match["value"].strip():
                start, stop = match.span("value")
                parts += [source[end:start], *self.plain(match["value"], match["quote"])]
                end = stop
        return [*parts, source[end:]]

    def segments(
        self, items: list[Item], add_text: Callable[[SegmentBuilder, Item, Spelling], None], template: str = "{}"
    ) -> Parts:
        """Return the parts of a paragraph's items. A segment ends at each item of the kind "break".

        `add_text` adds an item of text to a builder. Marks and tags replace "{}" in `template`, which delimits them.
        """
        parts, begin = Parts(), 0
        for stop in [*(index for index, item in enumerate(items) if item.kind == "break"), len(items)]:
            stretch = items[begin:stop]
            first, last = inner(stretch)
            spelling = Spelling()
            builder = SegmentBuilder(spelling.escape, self.protection)
            parts += _marks(stretch[:first], template)
            for item in stretch[first:last]:
                if item.kind == "text":
                    add_text(builder, item, spelling)
                elif item.kind == "mark":
                    builder.add_standalone(_marks([item], template), ordered=True, joins=item.joins)
                else:
                    builder.add_tag(item.name, _marks([item], template), close=item.kind == "close", once=True)
            parts += [*builder.build(), *_marks([*stretch[last:], *items[stop : stop + 1]], template)]
            begin = stop + 1
        return parts


def rewritten(inside: Parts, source: str, write: Callable[[str], str]) -> Rewritten:
    """Let `write` convert the translation of `inside` to markup.

    If the translation differs from the original only in white space, write `source` instead.
    """
    return Rewritten(inside, partial(_source_or_markup, _without_spaces(render(inside)), source, write))


def _source_or_markup(before: str, source: str, write: Callable[[str], str], translated: str) -> str:
    return source if _without_spaces(translated) == before else write(translated)


def _without_spaces(text: str) -> str:
    """Remove white space, because a translation may move a space to the other side of a tag."""
    return _SPACES.sub("", text)


def _marks(items: list[Item], template: str) -> Parts:
    parts, (before, after) = Parts(), template.split("{}")
    for item in items:
        parts += [before, *(item.parts or [item.source]), after]
    return parts
