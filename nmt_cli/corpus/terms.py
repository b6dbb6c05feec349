"""Glossaries. A glossary lists source phrases with the accepted forms of their translations.

Matching works on words. A word is a run of letters, digits and underscores, or any other single character except white
space. Each Chinese or Japanese character is a word. A phrase matches if the text contains its words in sequence.
Matches do not overlap: the text is scanned from its start, and the longest phrase that begins at a word wins. One
accepted form anywhere in the translation satisfies a term, even if the phrase occurs several times, because a pronoun
may translate the second occurrence.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.corpus.readers import split_lines
from nmt_cli.corpus.tokenizer import WIDE, normalize
from nmt_cli.system.errors import DataError

_WORD = re.compile(rf"[^\W{WIDE}]+|[{WIDE}]|[^\w\s]")
ANY = "any"  # flag of a term that ignores case
MOST_WORDS = 50  # maximum number of words in a phrase or a form

Words = tuple[str, ...]


@dataclass(frozen=True)
class Term:
    """A source phrase and its accepted forms, one of which the translation must contain."""

    source: str
    forms: tuple[str, ...]
    any_case: bool = False  # ignore letter case when matching; constrained decoding uses the forms as listed
    line: int = 0  # line number in the glossary file

    def form_in(self, translation: str) -> str | None:
        """Return the first accepted form that `translation` contains, or None."""
        text = _joined_words(translation, self.any_case)
        return next((form for form, joined in self._joined_forms if joined in text), None)

    @functools.cached_property
    def _joined_forms(self) -> list[tuple[str, str]]:
        return [(form, _joined(words(form, self.any_case))) for form in self.forms]


def words(text: str, any_case: bool = False) -> Words:
    """Return the words of `text`, case-folded if `any_case`."""
    return tuple(_WORD.findall(text.casefold() if any_case else text))


def _joined(some_words: Words) -> str:
    """Join words so that substrings match whole words only."""
    return "\n".join(["", *some_words, ""])


@functools.lru_cache(maxsize=16)  # because one translation is searched for many terms
def _joined_words(text: str, any_case: bool) -> str:
    return _joined(words(text, any_case))


class Terms:
    """A glossary, indexed to find its terms in text.

    Raises DataError, with the line number, if two terms have the same phrase. Phrases that differ only in case are the
    same if one of the terms ignores case.
    """

    def __init__(self, terms: Iterable[Term], name: str = "the glossary") -> None:
        self.terms = list(terms)
        self._exact = dict[Words, Term]()
        self._any_case = dict[Words, Term]()  # keyed by case-folded words
        self._lengths = dict[str, list[int]]()  # case-folded first word -> phrase lengths in words, longest first
        folded_phrases = dict[Words, Term]()  # case-folded phrase -> its first term
        for term in self.terms:
            phrase = words(term.source)
            folded = _folded(phrase)
            same_case = self._exact.get(phrase) or self._any_case.get(folded)
            if other := folded_phrases.get(folded) if term.any_case else same_case:
                where = f"{name}, line {term.line:,}: “{term.source}”"
                raise DataError(f"{where} repeats line {other.line:,}. Remove one of them")
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
        """Read a glossary file in the format of `parse`."""
        return cls.parse(split_lines(path.read_bytes(), str(path)), str(path))

    @classmethod
    def parse(cls, lines: Iterable[str], name: str = "the glossary") -> "Terms":
        """Parse lines of the form `phrase<TAB>form|form`. With `<TAB>any` at the end, the term ignores case.

        Empty lines and lines that begin with # are ignored. Raises DataError if there are no terms, or, with the line
        number, if a line is invalid or repeats a phrase.
        """
        terms = []
        for number, line in enumerate(lines, 1):
            if not line.strip("\ufeff \t\r") or line.startswith("#"):
                continue
            source, *rest = map(normalize, line.split("\t"))
            forms = [form.strip() for form in rest[0].split("|")] if rest else []
            flags = [flag for flag in rest[1:] if flag]
            sizes = [len(words(text)) for text in (source, *forms)]
            if max(sizes) > MOST_WORDS:
                raise DataError(f"{name}, line {number:,} has a phrase of more than {MOST_WORDS} words. Shorten it")
            if not forms or min(sizes) == 0 or flags not in ([], [ANY]):
                wanted = "a phrase, a tab, forms separated by |, and optionally a tab and “any” (to ignore case)"
                raise DataError(f"{name}, line {number:,} is not a term. Write {wanted}")
            terms.append(Term(source, tuple(dict.fromkeys(forms)), bool(flags), number))
        if not terms:
            raise DataError(f"{name} has no terms. Write one term per line, with a tab between phrase and translation")
        return cls(terms, name)

    def find(self, text: str) -> list[Term]:
        """Return the terms that occur in normalized text, each once."""
        return list(dict.fromkeys(term for term, _, _ in self.spans(text)))

    def spans(self, text: str) -> Iterator[tuple[Term, int, int]]:
        """Yield each match in normalized text: the term, and the start and end offsets of its phrase."""
        matches = list(_WORD.finditer(text))
        exact = tuple(match[0] for match in matches)
        folded = _folded(exact)
        first = 0
        while first < len(exact):
            after = first + 1
            for length in self._lengths.get(folded[first], ()):
                end = min(first + length, len(exact))
                term = self._exact.get(exact[first:end]) or self._any_case.get(folded[first:end])
                if term:
                    yield term, matches[first].start(), matches[end - 1].end()
                    after = end
                    break
            first = after


def _folded(phrase: Words) -> Words:
    return tuple(word.casefold() for word in phrase)
