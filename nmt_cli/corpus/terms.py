"""Terms: phrases of the source, each with the forms of which its translation must say one.

Everything here goes by words: runs of letters and digits, or single other characters (so each Chinese or Japanese one).
A phrase is in a text where its words are, one after the other. A text is read from its beginning: of several phrases at
a word the longest counts, and what it covers belongs to no other, so of two that overlap the first counts. To occur
once in the translation is enough, however often the phrase occurs: a pronoun may stand for the second, or one word for
both.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.corpus.readers import split_lines
from nmt_cli.corpus.tokenizer import WIDE, normalise
from nmt_cli.system.errors import DataError

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
        """Return the first of the forms that a translation contains, or None."""
        text = _joined_words(translation, self.any_case)
        return next((form for form, joined in self._joined_forms if joined in text), None)

    @functools.cached_property
    def _joined_forms(self) -> list[tuple[str, str]]:
        return [(form, _joined(words(form, self.any_case))) for form in self.forms]


def words(text: str, any_case: bool = False) -> Words:
    return tuple(_WORD.findall(text.casefold() if any_case else text))


def _joined(those: Words) -> str:
    return "\n".join(["", *those, ""])


@functools.lru_cache(maxsize=16)  # many terms are looked for in the same translation
def _joined_words(text: str, any_case: bool) -> str:
    return _joined(words(text, any_case))


class Terms:
    """A list of terms, ready to be found in texts.

    DataError, with the line, for two with the same phrase.
    """

    def __init__(self, terms: Iterable[Term], name: str = "the list of terms") -> None:
        self.terms = list(terms)
        self._exact = dict[Words, Term]()
        self._any_case = dict[Words, Term]()  # by case-folded words
        self._lengths = dict[str, list[int]]()  # of the phrases that begin with a case-folded word, longest first
        folded_phrases = dict[Words, Term]()  # the first term of each
        for term in self.terms:
            phrase = words(term.source)
            folded = _folded(phrase)
            same_case = self._exact.get(phrase) or self._any_case.get(folded)
            if other := folded_phrases.get(folded) if term.any_case else same_case:
                place = f"{name}, line {term.line:,}: “{term.source}”"
                raise DataError(f"{place} repeats line {other.line:,}. Leave one of them out")
            folded_phrases.setdefault(folded, term)
            if term.any_case:
                self._any_case[folded] = term
            else:
                self._exact[phrase] = term
            lengths = self._lengths.setdefault(folded[0], [])
            if len(phrase) not in lengths:
                lengths.append(len(phrase))
                lengths.sort(reverse=True)

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
        return list(dict.fromkeys(term for term, _, _ in self.spans(text)))

    def spans(self, text: str) -> Iterator[tuple[Term, int, int]]:
        """Yield the terms in a normalised text, each with where its phrase begins and ends."""
        matches = list(_WORD.finditer(text))
        exact, place = tuple(match[0] for match in matches), 0
        folded = _folded(exact)
        while place < len(exact):
            step = 1
            for length in self._lengths.get(folded[place], ()):
                end = min(place + length, len(exact))
                term = self._exact.get(exact[place:end]) or self._any_case.get(folded[place:end])
                if term:
                    yield term, matches[place].start(), matches[end - 1].end()
                    step = end - place
                    break
            place += step


def _folded(phrase: Words) -> Words:
    return tuple(word.casefold() for word in phrase)
