"""Damaged text: dropped final stops, typos within words, the same noise on both sides."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.corpus import damage


@pytest.mark.parametrize(
    ("text", "without"),
    [("A man.", "A man"), ("Well ...", "Well"), ("猫。", "猫"), ("Why?", "Why?"), (".", "."), ("No stop", "No stop")],
)
def test_only_final_stops_are_dropped(text: str, without: str) -> None:
    assert damage.without_stop(text) == without


@given(st.text(st.characters(codec="utf-8"), max_size=60), st.integers(0, 999))
def test_damage_depends_on_its_generator_alone_and_never_empties_text(text: str, seed: int) -> None:
    for change in (damage.with_typos, lambda line, draw: " ".join(damage.with_noise(line, line, draw))):
        assert change(text, random.Random(seed)) == change(text, random.Random(seed))
    assert bool(text) == bool(damage.without_stop(text))
    assert bool(text) == bool(damage.with_typos(text, random.Random(seed)))


def test_one_word_in_ten_has_a_typo_of_one_letter() -> None:
    words, typos, lengths = ["hundred"] * 40 + ["at"] * 10, 0, set()
    for seed in range(50):
        damaged = damage.with_typos(" ".join(words), random.Random(seed)).split()
        wrong = [word for word in damaged if word not in ("hundred", "at")]
        assert len(damaged) == 50
        typos += len(wrong)
        lengths |= {len(word) for word in wrong}
    assert typos == pytest.approx(50 * 40 / 10, rel=0.2)
    assert lengths == {6, 7, 8}, "dropped, swapped or replaced, and doubled letters"
    assert damage.with_typos("a house", random.Random(3), least=1) not in ("a house", "")
    assert damage.with_typos("it is 5", random.Random(3), least=1) == "it is 5"


def test_noise_is_the_same_on_both_sides() -> None:
    draw, seen = random.Random(1), set[str]()
    for _ in range(200):
        src, tgt = damage.with_noise("Hello.", "Hallo.", draw)
        assert src.replace("Hello.", "") == tgt.replace("Hallo.", "")
        seen.add("url" if "https" in src else "number" if any(map(str.isdigit, src)) else "emoji")
    assert seen == {"url", "number", "emoji"}


def test_numbers_times_and_urls_of_noise_are_written_as_usual() -> None:
    draw = random.Random(2)
    made = [damage.noise(draw) for _ in range(3000)]
    number = r"[1-9]?\d{1,3}|(0|[1-9]\d{0,2})\.\d\d|(1?\d|2[0-3]):[0-5]\d"
    url = rf"https://www\.[a-z]{{4,10}}\.({'|'.join(damage.DOMAINS)})/[a-z]{{4,10}}"
    assert [text for text in made if text not in damage.EMOJI and not re.fullmatch(f"{number}|{url}", text)] == []
    assert {bool(re.fullmatch(r"\d+:0\d", text)) for text in made} == {False, True}
