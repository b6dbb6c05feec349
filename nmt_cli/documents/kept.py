"""Words that a user keeps from translation, and a user's pattern for placeholders."""

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

_LETTER = rf"[^\W{WIDE}]"  # of a script with spaces between words
_TOKEN = re.compile(rf"{_LETTER}++|\S")
_SPACE = re.compile(r"(?:\s|&nbsp;)++")
_SECONDS = 1.0  # for a pattern and a text


@dataclass(frozen=True)
class Kept:
    """Phrases that stay as they are, as whole words with this case, and a pattern whose matches do."""

    phrases: tuple[str, ...] = ()
    pattern: str = ""

    @cached_property
    def _by_token(self) -> dict[str, list[list[str]]]:
        """The words of all phrases by their first token, long phrases first. HTML spells "&" as "&amp;"."""
        found = dict[str, list[list[str]]]()
        for phrase in dict.fromkeys([*self.phrases, *(escape(each, quote=False) for each in self.phrases)]):
            if token := _TOKEN.search(phrase):
                found.setdefault(token[0], []).append(phrase.split())
        for phrases in found.values():
            phrases.sort(key=lambda words: -sum(map(len, words)))
        return found

    @cached_property
    def _compiled(self) -> Any:
        import regex  # type: ignore[import-untyped]  # has a time limit, which re lacks

        return regex.compile(self.pattern)

    def matches(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the spans of the pattern's matches. Raise DataError if it takes too long."""
        if not self.pattern:
            return
        try:
            for match in self._compiled.finditer(text, timeout=_SECONDS):
                if match.start() < match.end():
                    yield match.span()
        except TimeoutError:
            wrong = f"--protect-pattern takes more than {_SECONDS:g} second for “{printable(text, 40)}”"
            raise DataError(f"{wrong}. Avoid nested repetitions, as in (a+)+") from None

    def phrases_in(self, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the spans of phrases between two offsets."""
        least = start
        for token in _TOKEN.finditer(text, start, end) if self.phrases else ():
            if token.start() < least:
                continue
            for words in self._by_token.get(token[0], ()):
                if (stop := _matched(text, words, token.start())) and stop <= end:
                    yield token.start(), stop
                    least = stop
                    break


@lru_cache(maxsize=4)
def kept_phrases(phrases: tuple[str, ...]) -> Kept:
    """Return the same `Kept` for the same phrases, because it takes long to sort many."""
    return Kept(phrases)


def _matched(text: str, words: list[str], offset: int) -> int:
    """Return where the words end that stand at an offset, or 0 if they do not, or end inside a word."""
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
    """Return the words of a file, one phrase per line, and a pattern; None without either."""
    if not (keep or pattern):
        return None
    if pattern:
        import regex

        try:
            regex.compile(pattern)
        except regex.error as error:
            raise UsageError(
                f"--protect-pattern “{printable(pattern, 40)}” is no regular expression: {error}"
            ) from None
    phrases = [line.strip("\ufeff \t\r") for line in split_lines(keep.read_bytes(), str(keep))] if keep else []
    return Kept(tuple(filter(None, phrases)), pattern or "")
