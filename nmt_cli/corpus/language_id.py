"""Detect the language of lines with eldc, which is an optional dependency.

On short lines, eldc was the most accurate of eight detectors. It takes 4 microseconds per line. See
tests/benchmarks/corpus_filters.py.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from nmt_cli.corpus.languages import base_of, near

_NORWEGIAN = {"nb": "no", "nn": "no"}  # eldc has one code for both


class Guess(NamedTuple):
    language: str
    is_sure: bool


@functools.cache
def _eldc() -> tuple[Callable[[str], Any], frozenset[str]] | None:
    """Return eldc's detector and the languages that it knows, or None if eldc is not installed."""
    try:
        import eldc
    except ImportError:
        return None
    eldc.init()
    return eldc.instance().detect_details, frozenset(eldc.LANGUAGES)


def is_installed() -> bool:
    return _eldc() is not None


@functools.lru_cache(2)  # several filters in turn check the same two sides of a pair
def _guess(line: str) -> Guess:
    detector = _eldc()
    assert detector
    found = detector[0](line)
    return Guess(found.language, found.reliable)


@functools.cache
def _code(language: str) -> str:
    """Return eldc's code for a language."""
    base = base_of(language)
    return _NORWEGIAN.get(base, base)


@functools.cache
def _accepted(language: str) -> frozenset[str]:
    """Return eldc's codes for a language and for languages that are easily mistaken for it."""
    detector = _eldc()
    return frozenset(map(_code, near(base_of(language)))) & (detector[1] if detector else frozenset())


def knows(language: str) -> bool:
    """Return whether eldc knows a language or one easily mistaken for it. Without eldc, return False."""
    return bool(_accepted(language))


def tells_apart(src: str, tgt: str) -> bool:
    """Return whether eldc is installed, knows both languages and can tell them apart."""
    detector = _eldc()
    return detector is not None and {_code(src), _code(tgt)} <= detector[1] and _code(src) != _code(tgt)


def is_foreign(line: str, language: str) -> bool:
    """Return whether the detector is sure that a line is neither in `language` nor in one easily mistaken for it.

    The detector is never sure of very short lines.
    """
    guess = _guess(line)
    return guess.is_sure and guess.language not in _accepted(language)


def is_in(line: str, language: str) -> bool:
    """Return whether `language` is the most likely language of a line."""
    return _guess(line).language == _code(language)
