"""The header of a gettext catalog: fill in the fields that a template leaves to the translator."""

import bisect
import itertools
import re

from nmt_cli.corpus.languages import base_of
from nmt_cli.documents import plurals
from nmt_cli.documents.po_syntax import Edit, Field, Message, edited

_CODE = re.compile(r"[a-z]{2,3}(?:_[A-Za-z]{2,4})?")
# Fields that may still have the placeholder value of a template. The patterns match the header with its escapes, so a
# line ends with a backslash and an n.
_LINE = r"(?:\A|(?<=\\n)){}:[ \t]*+"
_CHARSET = re.compile(_LINE.format("Content-Type") + r"[^\\]*?\bcharset=(?P<value>[^\\;\s]*+)", re.IGNORECASE)
_ENCODING = re.compile(_LINE.format("Content-Transfer-Encoding") + r"(?P<value>ENCODING|)(?=\\n|\s*\Z)")
_LANGUAGE = re.compile(_LINE.format("Language") + r"(?P<value>LANGUAGE|LL|)[ \t]*(?=\\n|\Z)")
_NAMED_LANGUAGE = re.compile(_LINE.format("Language") + r"(?P<value>[A-Za-z]{2,3}(?:[-_@][A-Za-z]++)*+)(?=\\n|\Z)")
_PLURALS = re.compile(_LINE.format("Plural-Forms") + r"(?P<value>[^\\]*+)")
_INITIAL = re.compile("PACKAGE VERSION|YEAR-MO-DA|FULL NAME|LANGUAGE|CHARSET|ENCODING|INTEGER|EXPRESSION")


def locale_of(code: str) -> str:
    """Return a language code in gettext's form, such as pt_BR for pt-BR or de for deu_Latn, or "" if there is none."""
    _, _, rest = code.replace("-", "_").partition("_")
    locale = base_of(code) + (f"_{rest}" if rest and rest != "Latn" else "")
    return locale if _CODE.fullmatch(locale) else ""


def language_of(header: Message | None) -> str:
    """Return the language code that a header names, or "" if it names none."""
    match = _NAMED_LANGUAGE.search(_raw(header.forms[0])) if header else None
    return match["value"] if match and match["value"] != "LL" else ""


def plural_field(header: Message | None, language: str) -> str:
    """Return a header's Plural-Forms field. If it is missing or lacks nplurals, return the target language's rule.

    Return "" if this rule is unknown, too. Raise DataError if nplurals is out of range.
    """
    match = _PLURALS.search(_raw(header.forms[0])) if header else None
    field = match["value"] if match else ""
    return field if plurals.parse(field) else plurals.field_of(locale_of(language))


def header_edits(header: Message, language: str, new_line: str, *, has_plurals: bool) -> list[Edit]:
    """Return edits that set the charset to UTF-8, and the transfer encoding, language and plural forms if still open.

    A missing Plural-Forms field is added if `has_plurals` is true. If the edits leave no placeholder value of the
    template, they also remove the header's fuzzy flag.
    """
    raw = _raw(header.forms[0])
    charset = _CHARSET.search(raw)
    forms = _PLURALS.search(raw)
    values = [
        (charset if charset and charset["value"].upper() != "UTF-8" else None, "UTF-8"),
        (_ENCODING.search(raw), "8bit"),
        (_LANGUAGE.search(raw), locale_of(language)),
        (forms if forms and not plurals.parse(forms["value"]) else None, plural_field(header, language)),
    ]
    edits = [(*match.span("value"), value) for match, value in values if match and value]
    edits = [(start, end, f" {value}" if raw[start - 1] == ":" else value) for start, end, value in edits]
    moved = [_moved(header.forms[0], edit) for edit in edits]
    if has_plurals and not forms and raw and (field := plural_field(header, language)):
        end, last = header.forms[0].end, "" if raw.endswith(r"\n") else r"\n"
        moved.append((end, end, f'{new_line}"{last}Plural-Forms: {field}\\n"'))
    if moved and not _INITIAL.search(edited(raw, edits)):
        moved += header.unflag_edits()
    return moved


def _raw(field: Field) -> str:
    """Return the strings of a field, joined but not unescaped."""
    return "".join(field.source[start:end] for start, end in field.strings)


def _moved(field: Field, edit: Edit) -> Edit:
    """Turn an edit of the joined strings into an edit of the file."""
    begins = list(itertools.accumulate((end - start for start, end in field.strings), initial=0))

    def in_file(offset: int) -> int:
        index = bisect.bisect(begins, offset) - 1
        return field.strings[index][0] + offset - begins[index]

    start, end, text = edit
    last = in_file(end - 1) + 1
    return (in_file(start) if start < end else last), last, text
