"""Correct typos in source text before it is translated, with the words of the training text.

A word that the training text has is never changed. Any other word becomes the most frequent word of the training text
that differs by a slip of the fingers, or if there is none, by any other letter. Names, acronyms, code and the phrases
of a glossary stay.
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nmt_cli.corpus import letter_case, words
from nmt_cli.corpus.damage import NEIGHBORS
from nmt_cli.corpus.terms import Terms
from nmt_cli.corpus.words import MAX_LETTERS, WORD
from nmt_cli.translation.case import FIXED, Part

# Number of times that a word must occur to be a correction. On Multi30k, 1 corrects 5 % more of the typos than 10, and
# changes twice as many words that are no typos.
FREQUENT = 10
SHORTEST = 3  # letters; most shorter strings are close to many words
MAX_ALPHABET = 64  # letters
REMEMBERED = 10_000  # number of unknown words whose corrections are cached
_SPACED = re.compile(r"\S+")
_SENTENCE_ENDS = ".", "!", "?", "\u2026", "<<"  # << ends a language token
_OPENERS = " \"'(\u00bf\u00a1\u201c\u201e\u2018\u00ab\u00bb-\u2013\u2014"
_LOOK_BACK = 10  # number of characters before a word that are examined to find the end of a sentence


class Spelling:
    """Corrects the source text of one model."""

    def __init__(self, counts: Mapping[str, int], language: str) -> None:
        """`counts` has the words of the training text, in lowercase, and how often each occurs."""
        self.counts = counts
        self.language = language
        self.frequent = {word for word, count in counts.items() if count >= FREQUENT}
        letters = Counter(itertools.chain.from_iterable(self.frequent))
        self.alphabet = sorted(letters, key=lambda letter: (-letters[letter], letter))[:MAX_ALPHABET]
        self.correction = functools.lru_cache(REMEMBERED)(self._correction)

    def part(self, part: Part, terms: Terms | None) -> tuple[Part, dict[str, str]]:
        """Correct a part of a text. Also return each changed word with its correction."""
        text, changes = self.corrected(part.text, terms)
        if not changes:
            return part, changes
        case = part.case
        if case and case.capitals:  # these words have been converted to lowercase, and may have typos
            case = replace(case, capitals=frozenset(self.corrected(word, terms)[0] for word in case.capitals))
        return replace(part, text=text, case=case), changes

    def corrected(self, text: str, terms: Terms | None = None) -> tuple[str, dict[str, str]]:
        """Correct a normalized text. Also return each changed word with its correction."""
        typos = list(self._typos(text))
        if not typos:
            return text, {}
        fixed = [(start, end) for _, start, end in (terms.spans(text) if terms else ())]
        fixed += [match.span() for match in _SPACED.finditer(text) if FIXED.search(match[0])]
        inside = {start for start, end in fixed for start in range(start, end)}
        changes, pieces, last = dict[str, str](), list[str](), 0
        for word, correction in typos:
            if word.start() in inside:
                continue
            changes[word[0]] = correction
            pieces += [text[last : word.start()], correction]
            last = word.end()
        return "".join([*pieces, text[last:]]), changes

    def _typos(self, text: str) -> Iterator[tuple[re.Match[str], str]]:
        """Yield the unknown words that have a correction, and the correction in the same case.

        Words with capitals are not corrected, unless the first letter is the only capital and begins a sentence.
        """
        for word in WORD.finditer(text):
            if word[0] in self.counts or not SHORTEST <= len(word[0]) <= MAX_LETTERS:
                continue
            small = letter_case.lower(word[0], self.language)
            if word[0] == small:
                if correction := self.correction(small):
                    yield word, correction
                continue
            first = word[0][1:].islower() and _begins_sentence(text, word.start())
            if first and small not in self.counts and (correction := self.correction(small)):
                yield word, letter_case.capitalized(correction, self.language)

    def _correction(self, word: str) -> str:
        """Return the most frequent word that is one slip away, or if there is none, one letter, or if none, ""."""
        slips = _one_slip_away(word, self.alphabet)
        found = self.frequent.intersection(slips) or self.frequent.intersection(_one_letter_away(word, self.alphabet))
        return max(found, key=lambda each: (self.counts[each], each), default="")


def read_spelling(tokenizer_file: Path, language: str) -> Spelling | None:
    """Return the Spelling of the model with this tokenizer, or None if it has no counts of words."""
    file = words.beside(tokenizer_file)
    return Spelling(words.read(file), language) if file.is_file() else None


def _one_slip_away(word: str, alphabet: Sequence[str]) -> Iterator[str]:
    """Yield words that a typist may have meant: with letters swapped, left out or doubled, or a neighboring key hit."""
    for index in range(len(word) + 1):
        before, after = word[:index], word[index:]
        for letter in alphabet:
            yield before + letter + after
        if before[-1:] == after[:1]:
            yield before + after[1:]
        for letter in NEIGHBORS.get(after[:1], ""):
            yield before + letter + after[1:]
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]


def _one_letter_away(word: str, alphabet: Sequence[str]) -> Iterator[str]:
    """Yield the word with another letter in place of one, and without a letter."""
    for index in range(len(word)):
        before, after = word[:index], word[index + 1 :]
        yield before + after
        for letter in alphabet:
            yield before + letter + after


def _begins_sentence(text: str, offset: int) -> bool:
    first = max(0, offset - _LOOK_BACK)
    before = text[first:offset].rstrip(_OPENERS)
    return before.endswith(_SENTENCE_ENDS) if before else first == 0
