"""Phrases that the user wants to keep untranslated, and the user's pattern for placeholders."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from html import escape
from pathlib import Path
from typing import Any

from nmt_cli.corpus.readers import split_lines
from nmt_cli.corpus.tokenizer import WIDE
from nmt_cli.system.errors import DataError, UsageError, printable

_LETTER = rf"[^\W{WIDE}]"  # a letter of a script with spaces between words
_TOKEN = re.compile(rf"{_LETTER}++|\S")
_SPACE = re.compile(r"(?:\s|&nbsp;)++")
_SECONDS = 1.0  # time limit for matching the pattern in one text


@dataclass(frozen=True)
class Kept:
    """Phrases and a pattern to keep untranslated. Phrases match whole words and are case-sensitive."""

    phrases: tuple[str, ...] = ()
    pattern: str = ""

    @cached_property
    def _by_token(self) -> dict[str, list[list[str]]]:
        """For each token, the phrases that begin with it, as lists of words, longest first.

        The phrases are listed both as given and, if that differs, escaped for HTML.
        """
        found = dict[str, list[list[str]]]()
        for phrase in dict.fromkeys([*self.phrases, *(escape(each, quote=False) for each in self.phrases)]):
            if token := _TOKEN.search(phrase):
                found.setdefault(token[0], []).append(phrase.split())
        for phrases in found.values():
            phrases.sort(key=lambda words: -sum(map(len, words)))
        return found

    @cached_property
    def _compiled(self) -> Any:
        import regex  # type: ignore[import-untyped]  # supports a timeout, which re lacks

        return regex.compile(self.pattern)

    def matches(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the spans of the pattern's matches, except empty ones. Raise DataError if matching takes too long."""
        if not self.pattern:
            return
        try:
            for match in self._compiled.finditer(text, timeout=_SECONDS):
                if match.start() < match.end():
                    yield match.span()
        except TimeoutError:
            wrong = f"--protect-pattern takes more than {_SECONDS:g} second for “{printable(text, 40)}”"
            raise DataError(f"{wrong}. Avoid nested repetitions such as (a+)+") from None

    def phrases_in(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the spans of phrases between two offsets. The spans do not overlap."""
        next_start = start
        for token in _TOKEN.finditer(text, start, end) if self.phrases else ():
            if token.start() < next_start:
                continue
            for words in self._by_token.get(token[0], ()):
                if (stop := _end_of_phrase(text, words, token.start())) and stop <= end:
                    yield token.start(), stop
                    next_start = stop
                    break


@lru_cache(maxsize=4)
def kept_phrases(phrases: tuple[str, ...]) -> Kept:
    """Return a `Kept`, which is cached because grouping many phrases takes long."""
    return Kept(phrases)


def _end_of_phrase(text: str, words: list[str], offset: int) -> int:
    """Return the end of the phrase at `offset`, or 0 if it is not there or ends inside a word."""
    for index, word in enumerate(words):
        if index:
            space = _SPACE.match(text, offset)
            if not space:
                return 0
            offset = space.end()
        if not text.startswith(word, offset):
            return 0
        offset += len(word)
    inside = re.match(_LETTER, text[offset - 1]) and re.match(_LETTER, text[offset : offset + 1])
    return 0 if inside else offset


def kept(keep: Path | None, pattern: str | None) -> Kept | None:
    """Return a `Kept` for the phrases in the file `keep`, one per line, and for a pattern.

    Return None if there is neither a file nor a pattern. Raise UsageError if the pattern is not a regular expression,
    and DataError if the file is not UTF-8.
    """
    if not (keep or pattern):
        return None
    if pattern:
        import regex

        try:
            regex.compile(pattern)
        except regex.error as error:
            raise UsageError(
                f"--protect-pattern “{printable(pattern, 40)}” is not a regular expression: {error}"
            ) from None
    phrases = [line.strip("\ufeff \t\r") for line in split_lines(keep.read_bytes(), str(keep))] if keep else []
    return Kept(tuple(filter(None, phrases)), pattern or "")
