"""Normalization and other work on lines take time linear in their length, for any text."""

import itertools
import random
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_model import train_tokenizer

from nmt_cli.corpus import cleaning, near_duplicates
from nmt_cli.corpus.terms import Term, Terms
from nmt_cli.corpus.tokenizer import MOST_MARKS, Tokenizer, normalize
from nmt_cli.recipe import schema

SMALL = 24_000  # characters
# Text that makes a naive normalization slow.
UNITS = {
    "marks in the wrong order": "\u0301\u0316",
    "marks of many classes": "\u0301\u0316\u0315\u0334\u05b0\u064b\u0c55",
    "a mark that NFC splits": "\u0344\u0316",
    "a letter that NFC splits": "\ufb2c\u0316\u0301",
    "letters with marks": "a\u0301\u0316",
    "letters with 40 marks": "a" + "\u0301\u0316" * 20,
    "jamo": "\u1100\u1161\u11a8",
    "symbols": "\u2500\u2026",
    "musical marks": "\U0001d165\U0001d16d",
}
LETTERS = "".join(char for char in map(chr, range(0x3400, 0x20000)) if char.isalpha())  # all distinct


def _seconds(act: Callable[[str], object], text: str) -> float:
    best = 1e9
    for _ in range(2):
        start = time.process_time()
        act(text)
        best = min(best, time.process_time() - start)
    return best


def _grows_linearly(act: Callable[[str], object], text_of: Callable[[int], str]) -> None:
    act(text_of(100))  # fills caches
    small, large = (_seconds(act, text_of(size)) for size in (SMALL, 4 * SMALL))
    assert large < 10 * small + 0.1, f"{small:.3f} s for {SMALL:,} characters, {large:.3f} s for {4 * SMALL:,}"


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS.keys())
def test_normalization_takes_linear_time(unit: str) -> None:
    _grows_linearly(normalize, lambda size: "x" + unit * (size // len(unit)))


def test_tokenizer_cleaning_terms_and_folding_take_linear_time(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.model"
    file.write_bytes(train_tokenizer())
    tokenizer, terms = Tokenizer(file), Terms([Term("Hund", ("dog",))])
    marks = UNITS["marks in the wrong order"]
    for act in (
        lambda line: tokenizer.encode_pair(line, line),
        lambda line: tokenizer.encode([line]),
        lambda line: cleaning.repair(line, schema.Cleaning()),
        lambda line: cleaning.repair("&#769;&#790;" * (len(line) // 12), schema.Cleaning()),
        lambda line: list(terms.spans(line)),
        near_duplicates.fold,
    ):
        _grows_linearly(act, lambda size: "x" + marks * (size // 2))


def test_the_check_of_the_script_takes_linear_time() -> None:
    assert len(LETTERS) > 4 * SMALL // 2
    _grows_linearly(lambda line: cleaning.foreign(line, "de"), lambda size: LETTERS[: size // 2])


def _longest_run(text: str) -> int:
    runs = itertools.groupby(text, lambda char: unicodedata.combining(char) > 0)
    return max((len([*run]) for marks, run in runs if marks), default=0)


def _texts(longest: int) -> list[str]:
    draw = random.Random(3)
    marks = "".join(UNITS.values())
    units = [*marks, *"aé\u1e09ﬃ \u00a0ä日"]
    texts = []
    for _ in range(800):
        runs = ["".join(draw.choices(marks, k=draw.randrange(longest))) for _ in range(3)]
        texts.append("".join(draw.choice(units) + run for run in runs) + "".join(draw.choices(units, k=9)))
    return texts


def test_text_with_few_marks_in_a_row_becomes_plain_nfc() -> None:
    texts = [text for text in _texts(25) if _longest_run(unicodedata.normalize("NFD", text)) <= MOST_MARKS]
    assert len(texts) > 130
    for text in texts:
        assert normalize(text) == " ".join(unicodedata.normalize("NFC", text).replace("\u00a0", " ").split())


def test_normalization_keeps_30_marks_in_a_row_and_is_idempotent() -> None:
    longest = 0
    for text in _texts(80):
        once = normalize(text)
        assert normalize(once) == once
        assert unicodedata.is_normalized("NFC", once)
        longest = max(longest, _longest_run(once))
    assert longest == MOST_MARKS


def test_marks_beyond_30_are_dropped_at_any_position() -> None:
    for before in range(62):
        bounded = "x" * before + "\u0316" * 30 + "y"
        assert normalize("x" * before + "\u0316" * 31 + "y") == bounded
        assert normalize(bounded + "…" * 40) == bounded + "…" * 40
