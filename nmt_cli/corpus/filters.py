"""Filters that a recipe can switch on (corpus.filters). Each filter drops pairs with one kind of fault."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

from nmt_cli.corpus import language_id
from nmt_cli.corpus.tokenizer import without_first_tokens
from nmt_cli.recipe import schema
from nmt_cli.recipe.cleaning import Filters
from nmt_cli.system.errors import UsageError

# Reasons to drop a pair, as stored in cleaning.json.
FEW_LETTERS = "few letters"
CAPITALS = "many capitals"
NUMBERS = "different numbers"
REPEATS = "repeated words"
SWAPPED = "swapped sides"
LANGUAGE = "another language"
REASONS = {  # reason -> setting in corpus.filters
    FEW_LETTERS: "min_letters", CAPITALS: "max_capitals", NUMBERS: "numbers",
    REPEATS: "repeats", SWAPPED: "swapped", LANGUAGE: "language",
}  # fmt: skip
# The settings with which `nmt prepare --stats` tries filters that are off in the recipe.
ADVISED = Filters(language=True, swapped="drop", numbers=True, repeats=True, min_letters=0.5, max_capitals=0.5)

_LOOP = re.compile(r"(?:^| )(\S+(?: \S+){0,5}?)(?: \1){3}(?: |$)")
_DIGIT = re.compile(r"\d")
SAMPLE = 100  # approximate number of pairs per chunk that are checked for swapped sides
LEAST_LETTERS = 10  # lines with fewer uppercase and lowercase letters are not checked for capitals
INSTALL = 'Install it: pip install "nmt-cli[filters]"'


def faults(src: str, tgt: str, corpus: schema.Corpus) -> Iterator[str]:
    """Yield the reason of each filter that drops this pair."""
    filters = corpus.filters
    if filters.min_letters and any(has_few_letters(line, filters.min_letters) for line in (src, tgt)):
        yield FEW_LETTERS
    if filters.max_capitals < 1 and any(has_many_capitals(line, filters.max_capitals) for line in (src, tgt)):
        yield CAPITALS
    if filters.numbers and numbers_differ(src, tgt):
        yield NUMBERS
    if filters.repeats and (loops(src) or loops(tgt)):
        yield REPEATS
    if filters.swapped == "drop" and are_swapped(src, tgt, corpus):
        yield SWAPPED
    if filters.language and (language_id.is_foreign(src, corpus.src) or language_id.is_foreign(tgt, corpus.tgt)):
        yield LANGUAGE


def loops(line: str) -> bool:
    """Return whether a line repeats a sequence of one to six words four times in a row."""
    words = line.split(" ")
    return len(words) - len(set(words)) >= 3 and _LOOP.search(line) is not None


def turns(src: str, tgt: str, corpus: schema.Corpus) -> bool:
    """Return whether to exchange the sides of a pair: they are swapped, and the recipe asks to exchange them."""
    return corpus.filters.swapped == "turn" and are_swapped(src, tgt, corpus)


def sample_of_sides(src: Sequence[str], tgt: Sequence[str], corpus: schema.Corpus) -> Iterator[bool]:
    """Sample pairs evenly. For each sampled pair in the languages of the corpus, yield whether its sides are swapped.

    Yields nothing if eldc is not installed or cannot tell the languages apart.
    """
    if not language_id.tells_apart(corpus.src, corpus.tgt):
        return
    for i in range(0, len(src), max(1, len(src) // SAMPLE)):
        line = without_first_tokens(src[i])
        if are_swapped(line, tgt[i], corpus):
            yield True
        elif language_id.is_in(line, corpus.src) and language_id.is_in(tgt[i], corpus.tgt):
            yield False


def are_swapped(src: str, tgt: str, corpus: schema.Corpus) -> bool:
    """Return whether the source is probably in the target language, and the target in the source language."""
    return language_id.is_in(src, corpus.tgt) and language_id.is_in(tgt, corpus.src)


def has_few_letters(line: str, least: float) -> bool:
    """Return whether the share of letters and combining marks in a line is below `least`. Spaces do not count."""
    characters = line.replace(" ", "")
    needed, letters = least * len(characters), sum(map(str.isalpha, characters))
    if letters >= needed:
        return False
    marks = sum(unicodedata.category(char)[0] == "M" for char in characters)  # such as vowels of Indic scripts
    return letters + marks < needed


def has_many_capitals(line: str, most: float) -> bool:
    """Return whether a line has ten or more cased letters, and the share of capitals among them is above `most`."""
    capitals = sum(map(str.isupper, line))
    if capitals <= most * LEAST_LETTERS:
        return False
    cased = capitals + sum(map(str.islower, line))
    return cased >= LEAST_LETTERS and capitals > most * cased


def numbers_differ(src: str, tgt: str) -> bool:
    """Return whether each side contains some digit more often than the other side does.

    The order of digits and the marks between them do not matter. If a side has no digits, return False, because it may
    spell numbers out.
    """
    if not (_DIGIT.search(src) and _DIGIT.search(tgt)):
        return False
    digits = [Counter(unicodedata.digit(char) for char in line if char.isdigit()) for line in (src, tgt)]
    return bool(digits[0] - digits[1]) and bool(digits[1] - digits[0])


def check(corpus: schema.Corpus) -> None:
    """Raise UsageError if the recipe's filters need eldc, but it is not installed or does not support the languages."""
    for section in corpus.trained:
        filters, languages = section.filters, (section.src, section.tgt)
        if not filters.language and filters.swapped == "keep":
            continue
        if not language_id.is_installed():
            raise UsageError(f"corpus.filters.language and swapped need eldc. {INSTALL}")
        if filters.language and (unknown := [code for code in languages if not language_id.knows(code)]):
            raise UsageError(
                f"corpus.filters.language does not know {unknown[0][:20]!r}. Correct the code, or set the filter to no"
            )
        if filters.swapped != "keep" and not language_id.tells_apart(*languages):
            raise UsageError(f"corpus.filters.swapped: {' and '.join(languages)} cannot be told apart. Set it to keep")
