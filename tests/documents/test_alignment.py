"""The alignment of a real model, and of tokens with known texts."""

from types import SimpleNamespace
from typing import Any

import pytest
from tiny_model import make_model

from nmt_cli import Translator
from nmt_cli.documents import alignment
from nmt_cli.documents.alignment import offsets_in, translate_aligned
from nmt_cli.documents.placement import Aligned
from nmt_cli.translation.options import SearchOptions


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Translator(make_model(tmp_path_factory.mktemp("tiny")), precision="fp32", workers=1) as one:
        yield one


def test_links_end_in_the_translation_and_begin_at_words_of_the_source(translator: Translator) -> None:
    """This holds even for text that the model sees in another spelling, or cut in two."""
    texts = ["der Hund", "die  Katze \u00a0 ist e\u0301in", "das Haus . " * 30, "", "\u2581 rot 日本"]
    results = list(translate_aligned(translator, [texts], SearchOptions()))
    assert [aligned.text for aligned in results] == [each.text for each in translator.translate(texts)]
    for text, aligned in zip(texts, results, strict=True):
        ends = [end for end, _ in aligned.links]
        assert ends == sorted(ends)
        assert all(end <= len(aligned.text) and text[origin].strip() for end, origin in aligned.links)
        assert not text or ends[-1] == len(aligned.text)


def test_links_with_two_vocabularies_and_several_parts() -> None:
    source, target = {1: "der", 2: "Hund", 3: "rot"}, {1: "red", 2: "the", 3: "dog"}

    def side(words: dict[int, str], **more: Any) -> Any:
        def decode(lists: list[list[int]]) -> list[str]:
            return [" ".join(words[each] for each in ids) for ids in lists]

        return SimpleNamespace(decode=decode, tokens=lambda ids: [f"\u2581{words[each]}" for each in ids], **more)

    tokenizer = side(source, target=side(target))
    parts = [([1, 2, 0], [3, 2], [1, 0]), ([3, 0], [1], [0])]
    hypotheses = [([ids, SimpleNamespace(ids=output, source_positions=looked)]) for ids, output, looked in parts]
    result: Any = SimpleNamespace(
        copy=None,
        case=None,
        corrections={},
        parts=lambda _: hypotheses,
        hypotheses=[SimpleNamespace(text="dog the red")],
    )
    translator: Any = SimpleNamespace(tokenizer=tokenizer)
    aligned = alignment.align(translator, result, "der Hund rot", 5)
    assert aligned == Aligned("dog the red", [(3, 4), (7, 0), (11, 9)])


def test_each_byte_of_a_character_begins_where_the_character_begins() -> None:
    """Its bytes decode to one character together, but a part of them to several replacement characters."""

    def decode(lists: list[list[int]]) -> list[str]:
        return ["a" * ids.count(0) + ("😀" if len(ids) >= 5 else "\ufffd" * ids.count(1)) for ids in lists]

    tokenizer = SimpleNamespace(decode=decode, tokens=lambda ids: ["<0x61>" if each == 0 else "<0xF0>" for each in ids])
    tokenizer.target = tokenizer
    ids = [0, 1, 1, 1, 1]
    parts = [([*ids, 2], SimpleNamespace(ids=ids, source_positions=[4, 3, 2, 1, 0]))]
    result: Any = SimpleNamespace(
        parts=lambda _: parts, hypotheses=[SimpleNamespace(text="a😀")], copy=None, case=None, corrections={}
    )
    translator: Any = SimpleNamespace(tokenizer=tokenizer)
    links = alignment.align(translator, result, "a😀", 0).links
    assert links == [(1, 1), (2, 1), (2, 1), (2, 1), (2, 0)]


def test_spellings_are_compared_by_characters() -> None:
    text = "abcdefghij " * 45 + "Straße ab"
    decoded = "abcdefghij " * 45 + "Strasse ab "
    assert offsets_in(decoded, text) == [*range(499), 499, 499, *range(500, 505), 504]


def test_long_spellings_are_compared_by_words() -> None:
    words = [f"dog{number:03}" for number in range(400)]
    text = "  ".join(words)
    decoded = f"{' '.join(words)} "
    offsets = offsets_in(decoded, text)
    for word in words:
        begin = decoded.index(word)
        assert offsets[begin : begin + 6] == list(range(text.index(word), text.index(word) + 6))


@pytest.mark.parametrize("text", ["a" * 20_000 + "\u2603", "\u2603 " + "a b " * 5000, "\u2603 " + "der Hund " * 2000])
def test_the_comparison_of_long_spellings_takes_bounded_time(text: str) -> None:
    """A comparison by characters would take time that grows at least with the square of the length."""
    decoded = f"{text.replace(chr(0x2603), ' ? ')} "
    offsets = offsets_in(decoded, text)
    assert len(offsets) == len(decoded) + 1
    assert offsets == sorted(offsets)
    assert offsets[-1] <= len(text)
