"""Office Open XML: Word (.docx), PowerPoint (.pptx) and Excel (.xlsx) files.

This module translates paragraphs with their runs, alternative texts, captions of charts, and document
properties such as the title. It copies fields, deleted text and formulas.
"""

import re
from collections.abc import Callable, Collection
from functools import partial

from nmt_cli.documents.archive import Archive
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.markup import Markup, Reader
from nmt_cli.documents.package import Member, Package, with_region
from nmt_cli.documents.runs import RunReader
from nmt_cli.documents.segment import Parts
from nmt_cli.documents.sheets import Rows, headers, is_header, shared_headers
from nmt_cli.system.errors import DataError

_TYPES = "[Content_Types].xml"
_OVERRIDE = re.compile(r"<(?:\w+:)?Override\b(?P<attributes>[^<>]*)>")
_PART = re.compile(r"\sPartName=[\"'](?:/)?([^\"'<>]*)[\"']")
_TYPE = re.compile(r"\sContentType=[\"']([^\"'<>]*)\+xml[\"']")
_ROOTS = "http://schemas.openxmlformats.org", "http://purl.oclc.org/ooxml"  # of transitional and strict files
_PREFIXES = {
    "wordprocessingml": "w",
    "drawingml": "a",
    "spreadsheetml": "x",
    "presentationml": "p",
    "drawingml/chart": "c",
    "drawingml/wordprocessingDrawing": "wp",
    "drawingml/spreadsheetDrawing": "xdr",
    "drawingml/picture": "pic",
}
_PROPERTY = re.compile(r"(?<=<dc:language>)[^<>]*(?=</)")
_LANGUAGE = re.compile(
    r"(?P<before><w:(?:lang|themeFontLang)\b[^<>]*?\sw:val=[\"']|<a:(?:rPr|defRPr|endParaRPr)\b[^<>]*?\slang=[\"'])[^\"'<>]*(?=[\"'])"
)


def _namespaces() -> dict[str, str]:
    """Map the URI of each namespace to the prefix that Microsoft's programs use."""
    found = {"http://purl.org/dc/elements/1.1/": "dc", "urn:schemas-microsoft-com:vml": "v"}
    found[f"{_ROOTS[0]}/package/2006/metadata/core-properties"] = "cp"
    for name, prefix in _PREFIXES.items():
        first, slash, rest = name.partition("/")
        found[f"{_ROOTS[0]}/{first}/2006/{rest if slash else 'main'}"] = prefix
        found[f"{_ROOTS[1]}/{first}/{rest if slash else 'main'}"] = prefix
    return found


class _TextReader(RunReader):
    """Reads any member with paragraphs.

    Elements in `copied` are copied. `kept` returns the start tags of further elements to copy, as indices.
    """

    namespaces = _namespaces()
    texts = frozenset({"c:v", "dc:title", "dc:subject", "dc:description", "cp:keywords", "cp:category"})
    copied = frozenset({"w:del", "w:moveFrom", "c:numCache", "c:numLit", "w:instrText", "m:oMath", "m:oMathPara"})
    attributes = dict.fromkeys(("wp:docPr", "p:cNvPr", "pic:cNvPr", "xdr:cNvPr"), ("descr", "title"))
    attributes |= {"v:shape": ("alt",), "w:tblCaption": ("w:val",), "w:tblDescription": ("w:val",)}

    def __init__(
        self, data: bytes, name: str, options: ReadOptions, kept: Callable[[Markup], Collection[int]] | None = None
    ) -> None:
        super().__init__(data, name, options)
        self._kept = kept(self.markup) if kept else ()

    def is_copied(self, index: int) -> bool:
        return index in self._kept or super().is_copied(index)

    def in_language(self, source: str) -> str:
        if not self.language:
            return source
        return _LANGUAGE.sub(lambda match: match["before"] + with_region(self.language), source)


class _LanguageReader(_TextReader):
    """Sets the language in a member without text."""

    def parts(self) -> Parts:
        return [self.in_language(self.markup.text)]


class _PropertyReader(_TextReader):
    """Reads the properties of a document, such as the title, and sets the property for the language."""

    def with_language(self, source: str) -> str:
        return _PROPERTY.sub(with_region(self.language), source)


def _prompts(markup: Markup) -> set[int]:
    """Return the placeholders of a slide layout or slide master. Their text is a prompt."""
    return {index for index in markup.starts("p:sp") if "p:ph" in markup.names[index : markup.end(index)]}


def _strings(numbers: Collection[int], markup: Markup) -> set[int]:
    """Return the shared strings with these numbers."""
    return {index for number, index in enumerate(markup.starts("x:si")) if number in numbers}


def _header_cells(rows: Rows, markup: Markup) -> set[int]:
    return {index for index in markup.starts("x:c") if rows and is_header(markup.sources[index], rows)}


_SHEET, _STRINGS = "spreadsheetml.worksheet", "spreadsheetml.sharedStrings"
# Maps the last two words of a content type to the reader for its members. `read` chooses the readers for worksheets and
# shared strings.
_READERS: dict[str, Callable[[bytes, str, ReadOptions], Reader]] = {
    "document.main": _TextReader,
    "template.main": _TextReader,
    "macroEnabled.main": _TextReader,
    "macroEnabledTemplate.main": _TextReader,
    "wordprocessingml.header": _TextReader,
    "wordprocessingml.footer": _TextReader,
    "wordprocessingml.footnotes": _TextReader,
    "wordprocessingml.endnotes": _TextReader,
    "wordprocessingml.comments": _TextReader,
    "wordprocessingml.styles": _LanguageReader,
    "wordprocessingml.settings": _LanguageReader,
    "presentationml.slide": _TextReader,
    "presentationml.notesSlide": _TextReader,
    "presentationml.slideLayout": partial(_TextReader, kept=_prompts),
    "presentationml.slideMaster": partial(_TextReader, kept=_prompts),
    "presentation.main": _LanguageReader,
    "slideshow.main": _LanguageReader,
    "drawingml.chart": _TextReader,
    "drawingml.diagramData": _TextReader,
    "drawingml.diagramDrawing": _TextReader,
    "openxmlformats-officedocument.drawing": _TextReader,
    "spreadsheetml.comments": _TextReader,
    "openxmlformats-package.core-properties": _PropertyReader,
}


def read(data: bytes, options: ReadOptions) -> Package:
    archive = Archive(data, options.max_unpacked)
    if _TYPES not in archive.names:
        raise DataError(f"the file has no {_TYPES}, so it is not a Word, PowerPoint or Excel file. Check its format")
    kinds = _content_types(archive.read(_TYPES).decode("utf-8", "replace"))
    tables = headers(archive, [name for name in archive.names if kinds.get(name) == _SHEET])
    members = dict[str, Member]()
    for name in archive.names:
        kind = kinds.get(name, "")
        content = archive.read(name) if kind in _READERS or kind in (_SHEET, _STRINGS) else b""
        if kind in _READERS:
            members[name] = _READERS[kind](content, name, options).member()
        elif kind == _STRINGS:
            kept = partial(_strings, shared_headers(archive, tables))
            members[name] = _TextReader(content, name, options, kept).member()
        elif b"inlineStr" in content:
            kept = partial(_header_cells, tables.get(name, {}))
            members[name] = _TextReader(content, name, options, kept).member()
    if not members:
        raise DataError("the file has no Word, PowerPoint or Excel text. Check its format")
    return Package(archive, members)


def _content_types(text: str) -> dict[str, str]:
    """Map each member to the last two words of its content type, such as wordprocessingml.header or document.main."""
    found = dict[str, str]()
    for match in _OVERRIDE.finditer(text):
        part, kind = _PART.search(match["attributes"]), _TYPE.search(match["attributes"])
        if part and kind:
            found[part[1]] = ".".join(kind[1].split(".")[-2:])
    return found
