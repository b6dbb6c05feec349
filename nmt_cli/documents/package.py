"""Documents in a zip file: Office Open XML, OpenDocument and EPUB."""

from collections.abc import Mapping
from typing import NamedTuple

from nmt_cli.documents.archive import Archive
from nmt_cli.documents.document import Document, declaring_utf8
from nmt_cli.documents.segment import Parts, render

_REGIONS = """
af-ZA ar-SA bg-BG bn-BD bs-BA ca-ES cs-CZ cy-GB da-DK de-DE el-GR en-US es-ES et-EE eu-ES fa-IR fi-FI fr-FR ga-IE gl-ES
he-IL hi-IN hr-HR hu-HU hy-AM id-ID is-IS it-IT ja-JP ka-GE kk-KZ ko-KR lt-LT lv-LV mk-MK ms-MY nb-NO nl-NL nn-NO no-NO
pl-PL pt-PT ro-RO ru-RU sk-SK sl-SI sq-AL sr-RS sv-SE sw-KE ta-IN te-IN th-TH tr-TR uk-UA ur-PK vi-VN zh-CN
"""
_REGION_OF = {code.split("-")[0]: code for code in _REGIONS.split()}


def with_region(language: str) -> str:
    """Return a language code with a region, as office programs expect it: de-DE for de."""
    return _REGION_OF.get(language, language.replace("_", "-"))


class Member(NamedTuple):
    """A file with text inside the zip file."""

    source: str
    parts: Parts
    encoding: str


class Package(Document):
    """A zip file. Members without text are copied as they are."""

    def __init__(self, archive: Archive, members: Mapping[str, Member]) -> None:
        self._archive = archive
        self._members = members
        super().__init__([part for member in members.values() for part in member.parts])

    def to_bytes(self) -> bytes:
        contents = dict[str, bytes]()
        for name, member in self._members.items():
            if (written := render(member.parts)) != member.source:
                declared = declaring_utf8(written) if member.encoding == "utf-8" else written
                contents[name] = declared.encode(member.encoding)
        return self._archive.replaced(contents)
