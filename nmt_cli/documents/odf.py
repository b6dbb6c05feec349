"""OpenDocument: text documents (.odt), presentations (.odp) and spreadsheets (.ods).

This module translates paragraphs and headings with their spans, notes, alternative texts, headers and footers of
slides, and document properties such as the title. It copies fields, tracked changes and formulas.
"""

import re

from nmt_cli.documents.archive import Archive
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.items import Item
from nmt_cli.documents.markup import Reader, rewritten
from nmt_cli.documents.package import Member, Package, with_region
from nmt_cli.documents.segment import Parts, SegmentBuilder
from nmt_cli.documents.xml import Spelling
from nmt_cli.system.errors import DataError

_MEMBER = re.compile(r"(?:[^/]+/)?(?:content|styles|meta)\.xml")  # members of the document, or of a chart in it
_ODF = "urn:oasis:names:tc:opendocument:xmlns:"
_NAMES = "text office table draw presentation style meta svg-compatible"
_BREAKS = {"text:tab", "text:line-break"}
_SPANS = {"text:span", "text:a", "text:meta", "text:ruby", "text:ruby-base"}
_TEXTS = """
dc:title dc:subject dc:description meta:keyword svg:title svg:desc presentation:footer-decl presentation:header-decl
text:index-title-template
"""
# Elements that may be inside a word
_JOINS = """
bookmark bookmark-start bookmark-end reference-mark reference-mark-start reference-mark-end change change-start
change-end soft-page-break note toc-mark toc-mark-start toc-mark-end alphabetical-index-mark
alphabetical-index-mark-start alphabetical-index-mark-end user-index-mark
"""
_JOINING = {f"text:{name}" for name in _JOINS.split()} | {"office:annotation", "office:annotation-end"}
_STYLE = re.compile(
    r"<style:style\b(?P<attributes>[^<>]*)>(?P<inside>(?:\s|<style:text-properties\b[^<>]*/>)*+)</style:style>"
)
_STYLE_NAME = re.compile(r"\sstyle:name=[\"']([^\"']*)[\"']")
_TEXT_STYLE = re.compile(r"\sstyle:family=[\"']text[\"']")
_STYLE_OF = re.compile(r"\stext:style-name=[\"']([^\"']*)[\"']")
# Properties that change how text looks. Spans whose style has none, as LibreOffice creates them, get no tags.
_VISIBLE = re.compile(
    r"\s(?!officeooo:|loext:|xmlns:|(?:fo|style):(?:language|country|script|rfc-language-tag)(?:-\w+)?=)[\w:-]+=[\"']"
)
_VALUE_TYPE = re.compile(r"\s(?:office|calcext):value-type=[\"'](\w+)[\"']")
_PROMPT = re.compile(r"\spresentation:placeholder=[\"']true[\"']")
_DEFAULTS = re.compile(
    r"<style:default-style\b[^<>]*+>(?:(?!</?style:default-style\b).)*+</style:default-style>", re.DOTALL
)
_LANGUAGE, _REGION = (re.compile(rf"(?<=\sfo:{name}=[\"'])[^\"'<>]*") for name in ("language", "country"))
_PROPERTY = re.compile(r"(?<=<dc:language>)[^<>]*(?=</)")


class _TextReader(Reader):
    """Reads a member: content, styles or metadata."""

    namespaces = {f"{_ODF}{name}:1.0": name.split("-")[0] for name in _NAMES.split()} | {
        "http://purl.org/dc/elements/1.1/": "dc"
    }
    paragraphs = frozenset({"text:p", "text:h"})
    texts = frozenset(_TEXTS.split())
    copied = frozenset({"text:tracked-changes", "text:ruby-text", "text:note-citation", "office:scripts"})

    def __init__(self, data: bytes, name: str, options: ReadOptions) -> None:
        super().__init__(data, name, options)
        self._invisible = set[str]()  # names of styles that do not change how text looks
        for style in _STYLE.finditer(self.markup.text):
            attributes, match = style["attributes"], _STYLE_NAME.search(style["attributes"])
            derived = "style:parent-style-name" in attributes or not _TEXT_STYLE.search(attributes)
            if match and not derived and not _VISIBLE.search(style["inside"]):
                self._invisible.add(match[1])

    def parts(self) -> Parts:
        parts = super().parts()
        if not self.language:
            return parts
        return [self._in_language(part) if isinstance(part, str) else part for part in parts]

    def _in_language(self, source: str) -> str:
        """Set the language in the metadata and in the default styles to the target language."""
        language, _, region = with_region(self.language).partition("-")

        def changed(match: re.Match[str]) -> str:
            return _REGION.sub(region or "none", _LANGUAGE.sub(language, match[0]))

        source = _DEFAULTS.sub(changed, source)
        return _PROPERTY.sub(with_region(self.language), source)

    def is_copied(self, index: int) -> bool:
        """Also copy cells that contain numbers, dates or formulas, and the prompts in slide placeholders."""
        name, source = self.markup.names[index], self.markup.sources[index]
        if name == "table:table-cell":
            kind = _VALUE_TYPE.search(source)
            return "table:formula=" in source or (kind is not None and kind[1] != "string")
        return bool(_PROMPT.search(source)) or super().is_copied(index)

    def paragraph(self, begin: int, end: int) -> Parts:
        markup, items, index = self.markup, list[Item](), begin + 1
        hidden = set[int]()  # end tags of spans whose style is invisible
        while index < end - 1:
            kind, name, stop = markup.tokens[index].kind, markup.names[index], index + 1
            if kind == "text":
                items.append(Item(markup.sources[index]))
            elif index in hidden:
                pass
            elif name in _SPANS and kind == "start" and self._is_invisible(index):
                hidden.add(markup.ends[index])
            elif name in _SPANS and kind != "empty":
                items.append(Item(markup.sources[index], "open" if kind == "start" else "close", name))
            else:
                stop = markup.end(index)
                items.append(self._other(index, stop))
            index = stop
        inside = self.segments(items, _add_text)
        first, last = markup.sources[begin], markup.sources[end - 1]
        return [rewritten(inside, markup.source(begin, end), lambda written: first + written + last)]

    def _is_invisible(self, index: int) -> bool:
        match = _STYLE_OF.search(self.markup.sources[index])
        return self.markup.names[index] == "text:span" and (not match or match[1] in self._invisible)

    def _other(self, index: int, stop: int) -> Item:
        """Return the item for an element other than a span: a space, a break, or a mark that may contain paragraphs."""
        name, source = self.markup.names[index], self.markup.source(index, stop)
        if name == "text:s":
            return Item(source, name=name)
        if name in _BREAKS:
            return Item(source, "break")
        return Item(kind="mark", parts=self.walk(index, stop), joins=name in _JOINING)


def _add_text(builder: SegmentBuilder, item: Item, spelling: Spelling) -> None:
    if item.name == "text:s":
        builder.add_text(" ", item.source)
    else:
        builder.add_source(item.source, spelling.unescape)


def read(data: bytes, options: ReadOptions) -> Package:
    archive = Archive(data, options.max_unpacked)
    if "content.xml" not in archive.names:
        raise DataError("the file has no content.xml, so it is not an OpenDocument file. Check its format")
    if b"<manifest:encryption-data" in archive.read("META-INF/manifest.xml"):
        raise DataError("the file has a password. Save it without one")
    members = dict[str, Member]()
    for name in archive.names:
        if _MEMBER.fullmatch(name):
            reader = _TextReader(archive.read(name), name, options)
            members[name] = reader.member()
    return Package(archive, members)
