"""EPUB 2 and 3: translate the chapters, the tables of contents, and a book's title, description and subjects."""

import posixpath
import re
from html import unescape
from urllib.parse import unquote

from nmt_cli.documents import html
from nmt_cli.documents.archive import Archive
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.markup import Reader, rewritten, xml_text
from nmt_cli.documents.package import Member, Package
from nmt_cli.documents.segment import Part, Parts, render
from nmt_cli.system.errors import DataError

_NCX = {"http://www.daisy.org/z3986/2005/ncx/": "ncx"}
_DUBLIN_CORE = {"http://purl.org/dc/elements/1.1/": "dc"}
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_ROOT_FILE = re.compile(r"<(?:\w+:)?rootfile\b[^<>]*?\sfull-path=[\"']([^\"'<>]*)[\"']")
_ENCRYPTED = re.compile(r"<(?:\w+:)?CipherReference\b[^<>]*?\sURI=[\"']([^\"'<>]*)[\"']")
_ITEM = re.compile(r"<(?:\w+:)?item\b([^<>]*)>")
_HREF = re.compile(r"\shref=[\"']([^\"'<>]*)[\"']")
_TYPE = re.compile(r"\smedia-type=[\"']([^\"'<>]*)[\"']")
_LANGUAGE = re.compile(r"(<(?:dc:)?language\b[^<>]*>)[^<>]*(?=</)")


class _Contents(Reader):
    """Reads the table of contents of EPUB 2, the NCX file."""

    namespaces = _NCX
    texts = frozenset({"ncx:text"})


class _BookData(Reader):
    """Reads the title, description and subjects in the package document, and sets its language."""

    namespaces = _DUBLIN_CORE
    texts = frozenset({"dc:title", "dc:description", "dc:subject"})

    def parts(self) -> Parts:
        parts = super().parts()
        if not self.language:
            return parts
        replaced = rf"\g<1>{self.language}"
        return [_LANGUAGE.sub(replaced, part) if isinstance(part, str) else part for part in parts]


_CHAPTER, _PACKAGE = "application/xhtml+xml", "application/oebps-package+xml"
_READERS = {"application/x-dtbncx+xml": _Contents, _PACKAGE: _BookData}


def read(data: bytes, options: ReadOptions) -> Package:
    archive = Archive(data, options.max_unpacked)
    names = set(archive.names)
    if _CONTAINER not in names:
        raise DataError(f"the file has no {_CONTAINER}, so it is not an EPUB book. Check its format")
    root = _ROOT_FILE.search(_text(archive, _CONTAINER))
    if not root or root[1] not in names:
        raise DataError(f"the file is damaged: {_CONTAINER} does not name a package document")
    kinds = _manifest(_text(archive, root[1]), posixpath.dirname(root[1])) | {root[1]: _PACKAGE}
    paths = _ENCRYPTED.findall(_text(archive, _ENCRYPTION)) if _ENCRYPTION in names else []
    encrypted = set(map(unquote, paths))
    members = dict[str, Member]()
    for name in archive.names:
        if kinds.get(name) == _CHAPTER and name in encrypted:
            raise DataError("the book is protected by digital rights management: its chapters are encrypted")
        if kinds.get(name) == _CHAPTER:
            text, encoding = xml_text(archive.read(name), name)
            parts = html.parse(text, options.protection(), options.ignored, options.language, xml=True)
            members[name] = Member(text, [_rewritten(part) for part in parts], encoding)
        elif kinds.get(name) in _READERS:
            reader = _READERS[kinds[name]](archive.read(name), name, options)
            members[name] = reader.member()
    return Package(archive, members)


def _rewritten(part: Part) -> Part:
    """Copy the source of a part if the translation does not change its text."""
    return part if isinstance(part, str) else rewritten([part], render([part]), str)


def _text(archive: Archive, name: str) -> str:
    return xml_text(archive.read(name), name)[0]


def _manifest(text: str, folder: str) -> dict[str, str]:
    """Map the paths of a book's files to their media types. `text` is the package document, and `folder` its folder."""
    kinds = dict[str, str]()
    for item in _ITEM.finditer(text):
        path, kind = _HREF.search(item[1]), _TYPE.search(item[1])
        if path and kind:
            kinds[posixpath.normpath(posixpath.join(folder, unquote(unescape(path[1]))))] = kind[1]
    return kinds
