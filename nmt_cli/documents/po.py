"""Message catalogues of gettext: polib reads and writes them, and wraps their lines.

Messages without a translation, and those marked fuzzy, get one and are marked fuzzy: a person looks through them.
"""

import re
from collections.abc import Callable

import polib

from nmt_cli.documents import markup
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import Builder, Parts, render
from nmt_cli.errors import DataError

_NEW_LINE = re.compile(r"(\r?\n)")


class Catalogue:
    """A file, and the messages in it that have no translation.

    `parts` are their texts; once these are translated, `written` returns the file.
    """

    def __init__(self, text: str, protection: Protection | None) -> None:
        try:
            self._file = polib.pofile(text, wrapwidth=78)
        except (OSError, UnicodeError, ValueError) as error:
            raise DataError(f"this is no message catalogue: {error}") from None
        self._text, self._filled = text, list[Callable[[], None]]()
        self.parts: Parts = []
        forms = re.search(r"nplurals\s*=\s*(\d+)", self._file.metadata.get("Plural-Forms", ""))
        self._forms = int(forms[1]) if forms else 2
        self._protection = protection
        for entry in self._file:
            if not entry.obsolete and not _is_done(entry):
                self._add(entry)

    def _add(self, entry: polib.POEntry) -> None:
        protection = self._protection and self._protection.with_flags(entry.flags)
        singular = self._message(entry.msgid, protection)
        plural = self._message(entry.msgid_plural, protection) if entry.msgid_plural else []

        def fill() -> None:
            if plural:
                texts = [singular if form == 0 and self._forms > 1 else plural for form in range(self._forms)]
                entry.msgstr_plural = {form: render(text) for form, text in enumerate(texts)}
            else:
                entry.msgstr = render(singular)
            if not entry.fuzzy:
                entry.flags.append("fuzzy")

        self._filled.append(fill)

    def _message(self, text: str, protection: Protection | None) -> Parts:
        """Read a message, line by line: as many go out as came in. One with tags is HTML."""
        parts, tagged = Parts(), markup.has_tags(text, protection)
        for line in _NEW_LINE.split(text):
            if tagged:
                parts += markup.parse(line, protection)
            else:
                builder = Builder(protection=protection)
                builder.add_source(line)
                parts += builder.build()
        self.parts += parts
        return parts

    def written(self) -> str:
        if not self._filled:
            return self._text
        for fill in self._filled:
            fill()
        return f"{self._file}\n"


def _is_done(entry: polib.POEntry) -> bool:
    texts = list(entry.msgstr_plural.values()) if entry.msgid_plural else [entry.msgstr]
    return not entry.fuzzy and bool(texts) and all(texts)
