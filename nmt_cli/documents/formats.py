"""The registry of formats. `nmt translate`, the server and the error messages take names and suffixes from it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nmt_cli.system.errors import DataError

if TYPE_CHECKING:
    from nmt_cli.documents.document import Document, ReadOptions


@dataclass(frozen=True)
class Format:
    name: str  # the value of --format
    module: str  # a module of this package with read(text, options) -> Document, or read(data, options) if `binary`
    suffixes: tuple[str, ...] = ()  # if empty, only --format and the server's clients can select the format
    to_utf8: str = "iconv"  # a command that converts such files to UTF-8, for error messages
    binary: bool = False  # `read` takes bytes; other formats take text, and their files must be UTF-8
    marker: bytes = b""  # bytes near the start of each file; a file without them has another format

    def read(self, source: str | bytes, options: ReadOptions) -> Document:
        """Parse text or the bytes of a file into a document. Raise DataError if the source is not in this format."""
        module = importlib.import_module(f"nmt_cli.documents.{self.module}")  # loads only the formats in use
        if self.binary or isinstance(source, str):
            document: Document = module.read(source, options)
            return document
        text = self._decoded(source)
        mark = "\ufeff" if text.startswith("\ufeff") else ""
        document = module.read(text.removeprefix(mark), options)
        document.mark = mark
        document.declares_encoding = self.name in _DECLARING
        return document

    def _decoded(self, data: bytes) -> str:
        from nmt_cli.corpus.readers import check_plain  # slow to import; every command imports this module

        check_plain(data, "the input")
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            wrong = f"the input is not UTF-8: byte {error.start:,} is invalid"
            raise DataError(f"{wrong}. Convert it, for example with {self.to_utf8}") from None


_BEGINNING = 4096  # number of bytes at the start of a file in which to look for a marker
_DECLARING = {"html", "xml", "xliff", "android", "stringsdict", "resx", "qt"}  # formats that may declare an encoding

_ALL = (
    Format("html", "html", (".html", ".htm")),
    Format("md", "markdown", (".md", ".markdown")),
    Format("po", "po", (".po", ".pot"), to_utf8="msgconv -t UTF-8"),  # msgconv also updates the charset in the header
    Format("xml", "xml"),
    Format("xliff", "xliff", (".xlf", ".xliff")),
    Format("json", "json_messages", (".json",)),
    Format("arb", "arb", (".arb",)),
    Format("yaml", "yaml_messages", (".yml", ".yaml")),
    Format("android", "android", (".xml",), marker=b"<resources"),
    Format("strings", "apple_strings", (".strings",), binary=True),
    Format("stringsdict", "plist", (".stringsdict",)),
    Format("properties", "properties", (".properties",), binary=True),
    Format("resx", "resx", (".resx", ".resw")),
    Format("qt", "qt", (".ts",), marker=b"<TS"),
    Format("laravel", "laravel", (".php",)),
    Format("srt", "srt", (".srt",), binary=True),
    Format("vtt", "webvtt", (".vtt",), binary=True),
    Format("ass", "ass", (".ass", ".ssa"), binary=True),
    Format("docx", "ooxml", (".docx", ".docm", ".dotx"), binary=True),
    Format("pptx", "ooxml", (".pptx", ".pptm", ".ppsx", ".potx"), binary=True),
    Format("xlsx", "ooxml", (".xlsx", ".xlsm", ".xltx"), binary=True),
    Format("odt", "odf", (".odt", ".ott"), binary=True),
    Format("odp", "odf", (".odp", ".otp"), binary=True),
    Format("ods", "odf", (".ods", ".ots"), binary=True),
    Format("epub", "epub", (".epub",), binary=True),
)
FORMATS = {each.name: each for each in _ALL}
SUFFIXES = {suffix: each.name for each in _ALL for suffix in each.suffixes}


def kind_of(file: Path) -> str | None:
    """Return the name of the format for a file's suffix, or None. A regular file must contain the marker, if any."""
    name = SUFFIXES.get(file.suffix.lower())
    if name and (marker := FORMATS[name].marker) and file.is_file():
        with file.open("rb") as stream:
            return name if marker in stream.read(_BEGINNING) else None
    return name
