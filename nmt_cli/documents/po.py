"""Message catalogues of gettext: messages without a translation, and fuzzy ones, get one and are marked fuzzy.

A person looks through these. All other text comes out byte for byte: no library does that, and polib opens a text that
is the path of a file.
"""

import re
from collections import Counter
from dataclasses import dataclass

from nmt_cli.documents import markup, plurals
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.po_header import header_edits, plural_field
from nmt_cli.documents.po_syntax import Edit, Message, edited, read, spelled
from nmt_cli.documents.segment import Builder, Parts, render

_NEW_LINE = re.compile(r"(\r?\n)")


@dataclass
class _Open:
    """A message to fill, with the parts of its texts; `one_fits`: the singular has all placeholders of the plural."""

    message: Message
    singular: Parts
    plural: Parts
    one_fits: bool


class Catalogue:
    """A file, and its messages that have no translation.

    `parts` are their texts; once these are translated, `written` returns the file. `language` is the target language.
    """

    def __init__(self, text: str, protection: Protection | None, language: str = "") -> None:
        self.parts: Parts = []
        self._text = text
        self._protection = protection
        self._language = language
        self._new_line = "\r\n" if re.match(r"[^\n]*\r\n", text) else "\n"
        messages = read(text)
        self._header = next((message for message in messages if message.is_header), None)
        self._has_plurals = any(message.plural for message in messages)
        self._forms = plurals.parse(plural_field(self._header, language))
        self._open = [self._opened(message) for message in messages if message.id.text and not self._is_done(message)]

    def _is_done(self, message: Message) -> bool:
        due = self._forms.count if self._forms and message.plural else 1
        return "fuzzy" not in message.flags and len(message.forms) >= due and all(form.text for form in message.forms)

    def _opened(self, message: Message) -> _Open:
        protection = self._protection_of(message)
        one, several = message.id.text, message.plural.text if message.plural else ""
        fits = _placeholders(several, protection) <= _placeholders(one, protection)
        return _Open(message, self._parts_of(one, protection), self._parts_of(several, protection), fits)

    def _protection_of(self, message: Message) -> Protection | None:
        """Return the protection of a message's texts."""
        return self._protection and self._protection.with_flags(message.flags)

    def _parts_of(self, text: str, protection: Protection | None) -> Parts:
        """Read a message, line by line: as many go out as came in. One with tags is HTML."""
        parts, is_html = Parts(), markup.has_tags(text, protection)
        for line in _NEW_LINE.split(text):
            if is_html:
                parts += markup.parse(line, protection)
            else:
                builder = Builder(protection=protection)
                builder.add_source(line)
                parts += builder.build()
        self.parts += parts
        return parts

    def written(self) -> str:
        if not self._open:
            return self._text
        edits = [edit for each in self._open for edit in self._edits(each)]
        if self._header:
            edits += header_edits(self._header, self._language, self._new_line, has_plurals=self._has_plurals)
        return edited(self._text, edits)

    def _edits(self, each: _Open) -> list[Edit]:
        forms = each.message.forms
        if each.message.plural:
            lines = self._plural_lines(each)
        else:
            lines = [spelled("msgstr", render(each.singular), self._new_line)]
        return [*each.message.flagged(self._new_line), (forms[0].start, forms[-1].end, self._new_line.join(lines))]

    def _plural_lines(self, each: _Open) -> list[str]:
        """Return the forms of a message; a person's own forms stay unchanged."""
        rule = self._forms or plurals.GERMANIC
        takes_one = rule.count > 1 and (rule.alone or each.one_fits)
        kept = {} if "fuzzy" in each.message.flags else {i: old for i, old in enumerate(each.message.forms) if old.text}
        lines = list[str]()
        for form in range(max([rule.count, *(form + 1 for form in kept)])):
            if form in kept:
                lines.append(self._text[kept[form].start : kept[form].end])
            else:
                text = render(each.singular if takes_one and form == rule.one else each.plural)
                lines.append(spelled(f"msgstr[{form}]", text, self._new_line))
        return lines


def _placeholders(text: str, protection: Protection | None) -> Counter[str]:
    pieces = (protection or Protection()).pieces(text)
    return Counter(piece.source for piece in pieces if piece.kind in ("point", "ordered"))
