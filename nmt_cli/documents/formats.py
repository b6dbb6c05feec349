"""The registry of formats. `nmt translate`, the server and their error messages read names and suffixes from it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nmt_cli.documents.document import Document, ReadOptions


@dataclass(frozen=True)
class Format:
    name: str  # the value of --format
    module: str  # of this package; it defines read(text, options) -> Document
    suffixes: tuple[str, ...] = ()  # none: only the server reads this format
    to_utf8: str = "iconv"  # a command that converts such files to UTF-8, for error messages

    def read(self, text: str, options: ReadOptions) -> Document:
        """Return a text as a document. Raise DataError if it does not have this format."""
        module = importlib.import_module(f"nmt_cli.documents.{self.module}")  # only the formats in use are loaded
        document: Document = module.read(text, options)
        return document


_ALL = (
    Format("html", "html", (".html", ".htm")),
    Format("md", "markdown", (".md", ".markdown")),
    Format("po", "po", (".po", ".pot"), to_utf8="msgconv -t UTF-8"),  # it also changes the charset in the header
    Format("xml", "xml"),
)
FORMATS = {each.name: each for each in _ALL}
SUFFIXES = {suffix: each.name for each in _ALL for suffix in each.suffixes}
