"""Comparison of two measurements: the places where they differ, in a few lines."""

from collections.abc import Iterator
from itertools import zip_longest

MOST_LINES, WIDTH = 8, 110
ABSENT = "(absent)"
WORDS = "words"  # the key of a message, which may change


def differences(old: object, new: object, where: str = "") -> list[str]:
    """Return a line for every part of two JSON-like values that differs."""
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        names = [name for name in dict.fromkeys([*old, *new]) if name != WORDS]
        parts = [(f"{where}/{name}", old.get(name, ABSENT), new.get(name, ABSENT)) for name in names]
    elif isinstance(old, list) and isinstance(new, list):
        numbered = enumerate(zip_longest(old, new, fillvalue=ABSENT), 1)
        parts = [(f"{where}[{number}]", *pair) for number, pair in numbered]
    else:
        return [f"{where or 'value'}:", f"  old {shown(old, new)}", f"  new {shown(new, old)}"]
    return [line for part, *pair in parts for line in differences(*pair, part)]


def shown(value: object, other: object) -> str:
    """Return a value on one line, from shortly before the first place where it differs from another."""
    text, twin = repr(value), repr(other)
    first = next((i for i, (a, b) in enumerate(zip(text, twin, strict=False)) if a != b), min(len(text), len(twin)))
    start = max(0, first - 30)
    return ("…" if start else "") + text[start : start + WIDTH] + ("…" if len(text) > start + WIDTH else "")


def summary(old: object, new: object) -> list[str]:
    """Return the first few differences of two values; none where they are equal."""
    lines = differences(old, new)
    left = len(lines) - MOST_LINES
    return [*lines[:MOST_LINES], f"… and {left} lines more"] if left > 0 else lines


def words(old: object, new: object) -> list[str]:
    """Return the pairs of messages whose words differ, one above the other."""
    pairs = dict.fromkeys(_messages(old, new))
    lines = [line for pair in pairs for line in zip(("words old", "words new"), pair, strict=True)]
    return [f"{head}: {text}" for head, text in lines][: 2 * MOST_LINES]


def _messages(old: object, new: object) -> Iterator[tuple[str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        if old.get(WORDS) != new.get(WORDS):
            yield str(old.get(WORDS)), str(new.get(WORDS))
        for name in old.keys() & new.keys():
            yield from _messages(old[name], new[name])
