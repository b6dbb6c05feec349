"""Documents that are zip files: Office Open XML, OpenDocument and EPUB."""

from collections.abc import Mapping
from typing import NamedTuple

from nmt_cli.documents.archive import Archive
from nmt_cli.documents.document import Document, declaring_utf8
from nmt_cli.documents.segment import Parts, render

_CODES = """
af-ZA ar-SA bg-BG bn-BD bs-BA ca-ES cs-CZ cy-GB da-DK de-DE el-GR en-US es-ES et-EE eu-ES fa-IR fi-FI fr-FR ga-IE gl-ES
he-IL hi-IN hr-HR hu-HU hy-AM id-ID is-IS it-IT ja-JP ka-GE kk-KZ ko-KR lt-LT lv-LV mk-MK ms-MY nb-NO nl-NL nn-NO no-NO
pl-PL pt-PT ro-RO ru-RU sk-SK sl-SI sq-AL sr-RS sv-SE sw-KE ta-IN te-IN th-TH tr-TR uk-UA ur-PK vi-VN zh-CN
"""
_CODE_WITH_REGION = {code.split("-")[0]: code for code in _CODES.split()}


def with_region(language: str) -> str:
    """Return the code that office programs expect, such as de-DE for de.

    If the language is unknown or has a region or script already, only replace "_" with a hyphen.
    """
    return _CODE_WITH_REGION.get(language, language.replace("_", "-"))


class Member(NamedTuple):
    """A member whose text is translated or whose language is set."""

    source: str
    parts: Parts
    encoding: str


class Package(Document):
    """A zip file. `members` maps names to the members that may change. All others are copied."""

    def __init__(self, archive: Archive, members: Mapping[str, Member]) -> None:
        self._archive = archive
        self._members = members
        super().__init__([part for member in members.values() for part in member.parts])

    def to_bytes(self) -> bytes:
        contents = dict[str, bytes]()
        for name, member in self._members.items():
            if (written := render(member.parts)) != member.source:
                text = declaring_utf8(written) if member.encoding == "utf-8" else written
                contents[name] = text.encode(member.encoding)
        return self._archive.replaced(contents)
