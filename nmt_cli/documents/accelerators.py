"""Accelerator marks in user interface labels: `_Open` in GTK, `&Save` in Qt, Windows and KDE.

The model never sees the mark. In the translation, the mark precedes the same letter. If the translation lacks that
letter, the mark precedes a letter that no earlier label in the file uses, or else the first letter of a word. If no
letter of the translation has a case, the mark and the source's letter follow in parentheses, as in `開く(_O)`.
Sources: https://docs.gtk.org/gtk4/class.Label.html#mnemonics; https://doc.qt.io/qt-6/qshortcut.html#mnemonic.
"""

import re
from collections import Counter
from dataclasses import dataclass

from nmt_cli.documents.placeholders import Protection

_MARK = re.compile(r"(?:&amp;|&(?!amp;)|_)(?=[^\W_])")
_WORD_BEFORE = re.compile(r"(?<!\w)\w++\Z")
_MARK_CHARACTER = re.compile("[&_]")
_DOUBLED = re.compile(r"__|&&|(?:&amp;){2}")  # a literal underscore or ampersand
_ENTITY = re.compile(r"&(?!amp;)(?:#x?[0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_OPAQUE = re.compile(
    r"<[^<>]*+>|&(?!amp;\w)(?:#x?[0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});|\\."
)  # tags, entities and escapes
_TRAIL = re.compile(r"(?:\.{1,3}|[\u2026:\uff1a\u3002])\Z")  # final punctuation, which follows the mark in parentheses
_MOST_WORDS, _LONGEST = 6, 80  # maximum words and characters in a label


@dataclass(frozen=True)
class Accelerator:
    mark: str  # "_", "&" or "&amp;"
    letter: str
    plain: str  # the label without its mark


def find(text: str) -> Accelerator | None:
    """Return the accelerator of a label, or None. Sentences and identifiers such as file_name have none."""
    if (
        len(text) > _LONGEST
        or not _MARK_CHARACTER.search(text)
        or len(text.split()) > _MOST_WORDS
        or _DOUBLED.search(text)
        or _ENTITY.search(text)
    ):
        return None
    hidden = _hidden(text)
    marks = [match for match in _MARK_CHARACTER.finditer(text) if not _is_inside(match.start(), hidden)]
    match = _MARK.match(text, marks[0].start()) if len(marks) == 1 else None
    if not match:
        return None
    start, end = match.span()
    plain = text[:start] + text[end:]
    first = next((each for each in plain if each.isalnum()), "")
    word = _WORD_BEFORE.search(text, 0, start)
    is_sentence = plain.rstrip().endswith(".") and not plain.rstrip().endswith("..")
    # In "AT&T", "file_name", "the _id" and "“allow_empty” is false.", the "&" or "_" is not a mark.
    in_identifier = word is not None and not (word[0][0].isupper() and word[0].isalpha() and text[end].islower())
    if first.islower() or is_sentence or in_identifier:
        return None
    return Accelerator(match[0], text[end], plain)


def _hidden(text: str) -> list[tuple[int, int]]:
    """Return the spans of tags, entities, escapes and placeholders. Their letters cannot be accelerators."""
    return [*(match.span() for match in _OPAQUE.finditer(text)), *Protection().spans(text)]


def _is_inside(offset: int, spans: list[tuple[int, int]]) -> bool:
    return any(start <= offset < end for start, end in spans)


def marked(text: str, accelerator: Accelerator, used: Counter[str]) -> str:
    """Insert the mark into a translation, and count the letter in `used`, the letters marked so far in the file."""
    hidden = _hidden(text)
    free = [i for i, character in enumerate(text) if character.isalnum() and not _is_inside(i, hidden)]
    wanted = accelerator.letter.casefold()
    same = [index for index in free if text[index].casefold() == wanted]
    cased = [index for index in free if text[index].lower() != text[index].upper()]
    if same or cased:
        initials = [index for index in cased if not index or not text[index - 1].isalnum()]
        unused = [index for index in [*initials, *cased] if not used[text[index].casefold()]]
        same.sort(key=lambda index: index > 0 and text[index - 1].isalnum())  # initials first
        index = [*same, *unused, *initials, *cased][0]
        used[text[index].casefold()] += 1
        return text[:index] + accelerator.mark + text[index:]
    used[wanted] += 1
    end = len(text.rstrip())
    trail = _TRAIL.search(text[:end], max(end - 3, 0))
    end = trail.start() if trail else end
    return f"{text[:end]}({accelerator.mark}{accelerator.letter.upper()}){text[end:]}"
