"""Accelerator marks in the labels of programs: `_Open` of GTK, `&Save` of Qt, Windows and KDE.

The model never sees the mark. It returns at the same letter if the translation has it, otherwise at a letter that no
other label of the file uses. In scripts without capitals the letter follows in parentheses, as in `開く(_O)`.
Sources: https://docs.gtk.org/gtk4/class.Label.html#mnemonics; https://doc.qt.io/qt-6/qshortcut.html#mnemonic.
"""

import re
from collections import Counter
from dataclasses import dataclass

from nmt_cli.documents.placeholders import Protection

_MARK = re.compile(r"(?:&amp;|&(?!amp;)|_)(?=[^\W_])")
_DOUBLED = re.compile(r"__|&&|(?:&amp;){2}")  # a literal character
_ENTITY = re.compile(r"&(?!amp;)(?:#x?[0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_OPAQUE = re.compile(r"<[^<>]*+>|&(?:#x?[0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});|\\.")  # letters that no one sees
_TRAIL = re.compile(r"(?:\.{1,3}|[\u2026:\uff1a\u3002])\Z")
_MOST_WORDS, _LONGEST = 6, 80  # of a label


@dataclass(frozen=True)
class Accelerator:
    mark: str
    letter: str
    plain: str  # the label without its mark


def find(text: str) -> Accelerator | None:
    """Return the accelerator of a label, or None. Sentences and identifiers such as file_name have none."""
    if len(text) > _LONGEST or len(text.split()) > _MOST_WORDS or _DOUBLED.search(text) or _ENTITY.search(text):
        return None
    marks = list(_MARK.finditer(text))
    if len(marks) != 1 or text.count("_") + text.count("&") != 1:
        return None
    start, end = marks[0].span()
    plain = text[:start] + text[end:]
    first = next((each for each in plain if each.isalnum()), "")
    in_word = start > 0 and text[start - 1].isalnum()
    # "AT&T" and "file_name" are no labels, nor is "the _id" or "100&percent".
    if first.islower() or (in_word and not (text[start - 1].isalpha() and text[end].islower())):
        return None
    return Accelerator(marks[0][0], text[end], plain)


def marked(text: str, accelerator: Accelerator, used: Counter[str]) -> str:
    """Return a translation with the mark. `used` counts the letters of the file's labels so far."""
    hidden = [match.span() for match in _OPAQUE.finditer(text)] + list(Protection().spans(text))
    free = [
        index
        for index, character in enumerate(text)
        if character.isalnum() and not any(start <= index < end for start, end in hidden)
    ]
    wanted = accelerator.letter.casefold()
    same = [index for index in free if text[index].casefold() == wanted]
    cased = [index for index in free if text[index].lower() != text[index].upper()]
    if same or cased:
        begins = [index for index in cased if not index or not text[index - 1].isalnum()]
        unused = [index for index in [*begins, *cased] if not used[text[index].casefold()]]
        same.sort(key=lambda index: index > 0 and text[index - 1].isalnum())  # beginnings of words first
        index = [*same, *unused, *begins, *cased][0]
        used[text[index].casefold()] += 1
        return text[:index] + accelerator.mark + text[index:]
    used[wanted] += 1
    end = len(text.rstrip())
    trail = _TRAIL.search(text[:end], max(end - 3, 0))
    end = trail.start() if trail else end
    return f"{text[:end]}({accelerator.mark}{accelerator.letter.upper()}){text[end:]}"
