"""Terms: phrases of the source, each with the forms of which its translation must say one.

Everything here goes by words: runs of letters and digits, or single other characters (so each Chinese or Japanese one).
A phrase is in a text where its words are, one after the other. Of several that begin at a word the longest counts, and
what it covers belongs to no other. To occur once in the translation is enough, however often the phrase occurs: a
pronoun may stand for the second, or one word for both.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.corpus.readers import split_lines
from nmt_cli.corpus.tokenizer import WIDE, normalise
from nmt_cli.errors import DataError

_WORD = re.compile(rf"[^\W{WIDE}]+|[{WIDE}]|[^\w\s]")
ANY = "any"  # the flag of a term that may be written in any case
MOST_WORDS = 50  # of a phrase or a form

Words = tuple[str, ...]


@dataclass(frozen=True)
class Term:
    source: str
    forms: tuple[str, ...]  # of which a translation must say one
    any_case: bool = False  # of the source and of the translation; where a form has to be forced, it is as listed
    line: int = 0  # of the file that it comes from

    def said(self, translation: str) -> str | None:
        """Return the first of the forms that a translation says, or None."""
        text = _joined(words(translation, self.any_case))
        return next((form for form in self.forms if _joined(words(form, self.any_case)) in text), None)


def words(text: str, any_case: bool = False) -> Words:
    return tuple(_WORD.findall(text.casefold() if any_case else text))


def _joined(those: Words) -> str:
    return "\n".join(["", *those, ""])


class Terms:
    """A list of terms, ready to be found in texts.

    DataError, with the line, for two with the same phrase, and for phrases one of which begins as another ends: where
    they overlap in a text it would be unclear which of them to say.
    """

    def __init__(self, terms: Iterable[Term], name: str = "the list of terms") -> None:
        self.terms = list(terms)
        self._by_start = dict[str, list[tuple[Words, Term]]]()  # by the first word in any case, long ones first
        for term in self.terms:
            phrase = words(term.source)
            self._by_start.setdefault(phrase[0].casefold(), []).append((phrase, term))
        for same_start in self._by_start.values():
            same_start.sort(key=lambda each: -len(each[0]))
        self._check(name)

    @classmethod
    def read(cls, path: Path) -> "Terms":
        return cls.parse(split_lines(path.read_bytes(), str(path)), str(path))

    @classmethod
    def parse(cls, lines: Iterable[str], name: str = "the list of terms") -> "Terms":
        """Read lines of a phrase, a tab, its forms with | between, and, after a tab, `any` if case is no matter; those
        that begin with # are comments. DataError names the line that is otherwise."""
        terms = []
        for number, line in enumerate(lines, 1):
            if not line.strip("\ufeff \t\r") or line.startswith("#"):
                continue
            source, *rest = map(normalise, line.split("\t"))
            forms = [form.strip() for form in rest[0].split("|")] if rest else []
            flags = [flag for flag in rest[1:] if flag]
            sizes = [len(words(text)) for text in (source, *forms)]
            if not forms or min(sizes) == 0 or max(sizes) > MOST_WORDS or flags not in ([], [ANY]):
                wanted = "a phrase, a tab, one or more forms with | between, and at most a tab and “any” (case)"
                raise DataError(f"{name}, line {number:,} is no term: {wanted}")
            terms.append(Term(source, tuple(dict.fromkeys(forms)), bool(flags), number))
        if not terms:
            raise DataError(f"{name} has no terms. Write one a line: a phrase, a tab, its translation")
        return cls(terms, name)

    def find(self, text: str) -> list[Term]:
        """Return the terms in a normalised text, each once."""
        exact, found, place = words(text), dict[Term, None](), 0
        folded = _folded(exact)
        while place < len(exact):
            length = 1
            for phrase, term in self._by_start.get(folded[place], ()):
                if _equal(phrase, exact[place : place + len(phrase)], term.any_case):
                    found[term], length = None, len(phrase)
                    break
            place += length
        return list(found)

    def _check(self, name: str) -> None:
        starts = dict[Words, list[tuple[Words, Term]]]()  # by the words, in any case, that phrases begin with
        phrases = [each for same_start in self._by_start.values() for each in same_start]
        for phrase, term in phrases:
            for length in range(1, len(phrase) + 1):
                starts.setdefault(_folded(phrase[:length]), []).append((phrase, term))
        for phrase, term in phrases:
            for begin in range(len(phrase)):
                rest = phrase[begin:]
                for other_phrase, other in starts.get(_folded(rest), ()):
                    longer = len(other_phrase) > len(rest)
                    same = _equal(rest, other_phrase[: len(rest)], term.any_case or other.any_case)
                    if other is not term and same and longer == bool(begin):
                        first, second = sorted((term, other), key=lambda each: each.line)
                        what = "repeats"
                        if begin:
                            what = f"can overlap “{first.source}” of"
                        place = f"{name}, line {second.line:,}: “{second.source}”"
                        raise DataError(f"{place} {what} line {first.line:,}. Leave one of them out")


def _folded(phrase: Words) -> Words:
    return tuple(word.casefold() for word in phrase)


def _equal(phrase: Words, other: Words, any_case: bool) -> bool:
    if any_case:
        return _folded(phrase) == _folded(other)
    return phrase == other
