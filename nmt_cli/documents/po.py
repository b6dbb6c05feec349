"""Gettext catalogs: translate empty and fuzzy messages, and mark them fuzzy so that a person reviews them.

Everything else in the file, except a few fields of the header, is copied byte for byte. No library does this, and polib
even opens a file if the text of a catalog is its path.
"""

import re
from collections import Counter
from dataclasses import dataclass

from nmt_cli.documents import plurals
from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.messages import MessageText, placeholders, text_parts
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.po_header import header_edits, language_of, plural_field
from nmt_cli.documents.po_syntax import Edit, Message, edited, read_messages, spelled


def read(text: str, options: ReadOptions) -> Document:
    return Catalog(text, options.protection(strict=True), options.language)


@dataclass
class _OpenMessage:
    """A message to translate. `singular_fits` tells whether the singular has all the placeholders of the plural."""

    message: Message
    singular: MessageText
    plural: MessageText  # empty if the message has no plural
    singular_fits: bool


class Catalog(Document):
    """A catalog with segments for its untranslated and fuzzy messages. `language` is the target language."""

    def __init__(self, text: str, protection: Protection | None, language: str = "") -> None:
        self._text = text
        self._protection = protection
        self._language = language
        self._new_line = "\r\n" if re.match(r"[^\n]*\r\n", text) else "\n"
        messages = read_messages(text)
        self._header = next((message for message in messages if message.is_header), None)
        self.target = language_of(self._header)
        self._has_plurals = any(message.plural for message in messages)
        self._forms = plurals.parse(plural_field(self._header, language))
        self._open = [self._opened(message) for message in messages if message.id.text and not self._is_done(message)]
        super().__init__([part for each in self._open for part in (*each.singular.parts, *each.plural.parts)])

    def _is_done(self, message: Message) -> bool:
        count = self._forms.count if self._forms and message.plural else 1
        return "fuzzy" not in message.flags and len(message.forms) >= count and all(form.text for form in message.forms)

    def _opened(self, message: Message) -> _OpenMessage:
        protection = self._protection and self._protection.with_flags(message.flags)
        singular, plural = message.id.text, message.plural.text if message.plural else ""
        fits = placeholders(plural, protection) <= placeholders(singular, protection)
        one, several = (MessageText(text, text_parts, protection, self._language) for text in (singular, plural))
        return _OpenMessage(message, one, several, fits)

    def write(self) -> str:
        if not self._open:
            return self._text
        used = Counter[str]()  # how often each letter is an accelerator
        edits = [edit for each in self._open for edit in self._edits(each, used)]
        if self._header:
            edits += header_edits(self._header, self._language, self._new_line, has_plurals=self._has_plurals)
        return edited(self._text, edits)

    def _edits(self, each: _OpenMessage, used: Counter[str]) -> list[Edit]:
        forms = each.message.forms
        if each.message.plural:
            lines = self._plural_lines(each, used)
        else:
            lines = [spelled("msgstr", each.singular.write(used), self._new_line)]
        return [*each.message.flag_edits(self._new_line), (forms[0].start, forms[-1].end, self._new_line.join(lines))]

    def _plural_lines(self, each: _OpenMessage, used: Counter[str]) -> list[str]:
        """Return the msgstr fields of a message with a plural. Unless the message is fuzzy, keep nonempty fields."""
        rule = self._forms or plurals.GERMANIC
        has_singular = rule.count > 1 and (rule.singular_only or each.singular_fits)
        kept = {} if "fuzzy" in each.message.flags else {i: old for i, old in enumerate(each.message.forms) if old.text}
        lines = list[str]()
        for form in range(max([rule.count, *(form + 1 for form in kept)])):
            if form in kept:
                lines.append(self._text[kept[form].start : kept[form].end])
            else:
                text = (each.singular if has_singular and form == rule.singular else each.plural).write(used)
                lines.append(spelled(f"msgstr[{form}]", text, self._new_line))
        return lines
