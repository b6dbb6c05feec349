"""Correct typos in source text before it is translated, based on the word counts of the training text.

A word with a count is never changed. Any other word is replaced by the most frequent training word that differs by one
typing slip (see `_one_slip_away`). If there is none, it is replaced by the most frequent training word that differs by
any one letter. Only lowercase words that stand alone between spaces and punctuation are corrected. Therefore names,
acronyms, code, addresses and placeholders stay unchanged. The phrases of a glossary also stay unchanged.
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nmt_cli.corpus import words
from nmt_cli.corpus.damage import NEIGHBORS
from nmt_cli.corpus.terms import Terms
from nmt_cli.translation.case import EDGES, Part

# Only a word that occurs at least FREQUENT times in the training text, and on average at least once in every RARE
# words, can be a correction. Typos were inserted into the test set of Multi30k. Without these two limits, the share of
# corrected typos would be 5 percentage points higher. But in the test set without
# typos, 68 of the 11,877 words would be replaced; with the limits, 30 are.
FREQUENT = 10
RARE = 500_000
SHORTEST = 3  # minimum letters of a word to correct; most shorter words are one letter away from many others
MAX_ALPHABET = 64  # maximum number of different letters to try in corrections
REMEMBERED = 10_000  # number of unknown words whose corrections are cached
_SPACED = re.compile(r"\S+")


class Spelling:
    """Corrects the source text of one model."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        """`counts` holds the count of each word of the training text, in lowercase."""
        self.counts = counts
        least = max(FREQUENT, sum(counts.values()) // RARE)
        self.frequent = {word for word, count in counts.items() if count >= least}
        letters = Counter(itertools.chain.from_iterable(self.frequent))
        self.alphabet = sorted(letters, key=lambda letter: (-letters[letter], letter))[:MAX_ALPHABET]
        self.correction = functools.lru_cache(REMEMBERED)(self._correction)

    def part(self, part: Part, terms: Terms | None) -> tuple[Part, dict[str, str]]:
        """Return a corrected part of a text, and the correction of each changed word."""
        text, changes = self.corrected(part.text, terms)
        if not changes:
            return part, changes
        case = part.case
        if case:
            case = replace(case, capitals=frozenset(changes.get(word, word) for word in case.capitals))
        return replace(part, text=text, case=case), changes

    def corrected(self, text: str, terms: Terms | None = None) -> tuple[str, dict[str, str]]:
        """Return a corrected normalized text, and the correction of each changed word."""
        typos = list(self._typos(text))
        if typos and terms:
            phrases = [(start, end) for _, start, end in terms.spans(text)]
            typos = [typo for typo in typos if not any(start <= typo[0] < end for start, end in phrases)]
        changes, pieces, last = dict[str, str](), list[str](), 0
        for start, word, correction in typos:
            changes[word] = correction
            pieces += [text[last:start], correction]
            last = start + len(word)
        return "".join([*pieces, text[last:]]), changes

    def _typos(self, text: str) -> Iterator[tuple[int, str, str]]:
        """Yield the offset, the word and its correction for each unknown word that has a correction."""
        for token in _SPACED.finditer(text):
            word = token[0].strip(EDGES)
            if word in self.counts or not SHORTEST <= len(word) <= words.MAX_LETTERS or not words.is_word(word):
                continue
            if correction := self.correction(word):
                yield token.start() + token[0].index(word), word, correction

    def _correction(self, word: str) -> str:
        """Return the most frequent word that is one slip away.

        If there is none, return the most frequent word that differs by one letter. If there is none either, return "".
        """
        slips = _one_slip_away(word, self.alphabet)
        found = self.frequent.intersection(slips) or self.frequent.intersection(_one_letter_away(word, self.alphabet))
        return max(found, key=lambda each: (self.counts[each], each), default="")


def read_spelling(tokenizer_file: Path) -> Spelling | None:
    """Return the Spelling of the model with this tokenizer, or None if the model has no word counts."""
    file = words.beside(tokenizer_file)
    return Spelling(words.read(file)) if file.is_file() else None


def _one_slip_away(word: str, alphabet: Sequence[str]) -> Iterator[str]:
    """Yield the words that a user may have meant who typed `word` with one slip.

    A slip swaps two neighboring letters, omits a letter, doubles a letter, or hits a key beside the intended key.
    """
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
    """Yield the words that result from removing or replacing one letter."""
    for index in range(len(word)):
        before, after = word[:index], word[index + 1 :]
        yield before + after
        for letter in alphabet:
            yield before + letter + after
