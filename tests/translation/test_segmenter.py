"""Segments of long lines, and halves of segments that failed."""

import dataclasses
import json
import random
import re
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_model import make_model
from translators import parts_of

from nmt_cli import Terms, Translator
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.storage import artefact
from nmt_cli.translation.segmenter import halves, looping, sentences_of, split_line


def characters() -> Any:
    """Return a tokenizer with a token for each language code, and one for each character except spaces."""

    def encode(texts: list[str]) -> list[list[str]]:
        return [re.findall(r">>\w+<<|\S", text) for text in texts]

    language = lambda ids: [token for token in ids[:1] if token.startswith(">>")]  # noqa: E731
    return SimpleNamespace(encode=encode, language=language)


def cut(line: str, seen: int, limit: int, terms: Terms | None = None) -> list[str]:
    """Split a line into sources, check their ends and lengths, and return their characters."""
    sources = split_line(characters(), line, seen, limit, terms)
    assert all(ids[-1] == EOS and len(ids) <= limit for ids in sources)
    return ["".join(ids[:-1]) for ids in sources]


def test_splitting_loses_nothing_and_keeps_the_limit(translator: Translator) -> None:
    draw = random.Random(1)
    for count in range(1, 80):
        text = draw.choices(["der", "Hund", "geht,", "rot.", "blau;", "x" * 30, "?!", "Haus"], k=count % 40 + 1)
        parts = split_line(translator.tokenizer, " ".join(text), 12, 12)
        assert all(1 < len(ids) <= 12 for ids in parts)
        assert "".join(translator.tokenizer.decode([ids[:-1] for ids in parts])).replace(" ", "") == "".join(text)


def test_a_line_that_is_longer_than_those_of_training_is_split(
    echo: Translator, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The 99.9th percentile of training is in model.json. A single sentence is cut only beyond the filter's limit."""
    assert echo.segmenter.seen_tokens == echo.segmenter.filter_tokens == echo.max_length == 128
    assert Translator(make_model(tmp_path, "corpus.cleaning.max_tokens=40")).segmenter.seen_tokens == 40

    def with_seen_tokens(seen: int) -> Path:
        directory = shutil.copytree(model, tmp_path / f"seen-{seen}")
        config, manifest = directory / "model.json", directory / "manifest.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "seen_tokens": seen}))
        entries = json.loads(manifest.read_text())
        entries["files"]["model.json"] = {"bytes": config.stat().st_size, "sha256": artefact.sha256(config)}
        manifest.write_text(json.dumps(entries))
        return directory

    seen_12, seen_20 = with_seen_tokens(12), with_seen_tokens(20)
    for both in ([model, seen_12], [seen_12, model], [seen_20, seen_12]):
        assert Translator(both).segmenter.seen_tokens == 12
    two, one = "der Hund geht. die Katze ist rot.", "der Hund geht und die Katze ist rot"
    sizes = [len(ids) + 1 for ids in echo.tokenizer.encode([two, one])]
    most = sizes[1]
    for seen, limit, pieces in ((0, 128, (1, 1)), (-1, 128, (2, 1)), (-1, most, (2, 1)), (-1, most - 1, (2, 2))):
        for text, size, count in zip((two, one), sizes, pieces, strict=True):
            monkeypatch.setattr(echo.segmenter, "seen_tokens", size + seen)
            monkeypatch.setattr(echo.segmenter, "filter_tokens", limit)
            echo.counts.clear()
            (translation,) = echo.translate([text])
            assert len(translation.segments) == count
            assert echo.counts["split"] == (count > 1)
            assert translation.text == text


def test_a_line_that_may_not_be_split_is_cut_before_its_eos(echo: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    (ids,) = echo.tokenizer.encode(["rot " * 127])
    assert len(ids) == 127
    whole = dataclasses.replace(echo.config.decoding, split=False)
    monkeypatch.setattr(echo, "config", dataclasses.replace(echo.config, decoding=whole))
    for words, cut in ((127, 0), (128, 1)):
        (translation,) = echo.translate(["rot " * words], prefixes=["rot " * words])
        assert parts_of(translation) == [([*ids, EOS], [*ids, *ids, EOS])]  # the prefix and the line
        assert (echo.counts["cut"], echo.counts["split"]) == (2 * cut, 0)
    monkeypatch.undo()
    echo.counts.clear()
    (translation,) = echo.translate(["rot. " * 150])
    assert translation.text == ("rot. " * 150).strip()
    assert (echo.counts["cut"], echo.counts["split"]) == (0, 1), "nothing of a split line is lost"


def test_loops_are_recognized() -> None:
    for loop in ([5] * 12, [5, 6] * 6, [5, 6, 7] * 4, [*range(8)] * 4):
        assert looping([91, 92, *loop, 93])
        assert not looping([91, 92, *loop[1:], 93])
    assert not looping([*range(9)] * 5)


def test_halves_are_at_a_clause_or_between_words(translator: Translator) -> None:
    tokenizer = translator.tokenizer
    for text, first in (("der Hund geht, die Katze steht nicht", "der Hund geht,"), ("rot blau rot blau", "rot blau")):
        ids = [*tokenizer.encode([text])[0], EOS]
        a, b = halves(tokenizer, ids)
        assert tokenizer.decode([a[:-1]])[0] == first
        assert [*a[:-1], *b] == ids
        assert a[-1] == EOS
    chinese = SimpleNamespace(tokens=lambda ids: list("▁我喜欢，他真的不喜欢")[: len(ids)])
    assert halves(chinese, [*range(11), EOS]) == [[*range(5), EOS], [*range(5, 11), EOS]]
    for clause, cut in ((1, 4), (2, 2), (6, 6), (7, 4)):  # only an end of a clause in the middle half counts
        eight = ["\u2581a" + "," * (i == clause) for i in range(1, 9)]
        first, _ = halves(SimpleNamespace(tokens=lambda _, eight=eight: eight), [*range(8), EOS])
        assert first == [*range(cut), EOS]
    multilingual = SimpleNamespace(tokens=lambda _: ["\u2581>>deu<<", "\u2581Donau", "dampf", "schiff", "fahrt"])
    assert halves(multilingual, [*range(5), EOS]) == [[0, 1, EOS], [0, 2, 3, 4, EOS]]
    assert halves(tokenizer, [5, 5, 5, EOS]) == []
    assert halves(tokenizer, [5, 5, 5, 5, EOS]) == [[5, 5, EOS], [5, 5, EOS]]


def test_lines_are_cut_at_every_mark_that_ends_a_sentence_or_a_clause() -> None:
    for mark in (".", "!", "?", "…", "?!", ".”", "!)", "?“", ".'", ".»"):
        assert cut(f"ab cd{mark} ef gh", 1, 99) == [f"abcd{mark}", "efgh"], mark
        assert cut(f"ab cd{mark}ef gh", 1, 99) == [f"abcd{mark}efgh"], "no space follows"
    for mark in ("。", "！", "？", "。」", "！？", "？）"):
        assert cut(f"ab cd{mark}ef gh", 1, 99) == [f"abcd{mark}", "efgh"], mark
    for mark in (",", ";", ":", "–", "—", ",“"):
        assert cut(f"ab cd{mark} ef gh ij", 1, 9) == [f"abcd{mark}", "efghij"], mark
        assert cut(f"ab cd{mark} ef gh ij", 1, 99) == [f"abcd{mark}efghij"], "there is room for all"
    for mark in ("、", "，", "：", "；", "，」"):
        assert cut(f"ab cd{mark}ef gh ij", 1, 9) == [f"abcd{mark}", "efghij"], mark
    for phrase in ("ab cd.", "ef gh", "cd. ef"):
        pieces = 1 if phrase == "cd. ef" else 2
        assert len(cut("ab cd. ef gh", 1, 99, Terms.parse([f"{phrase}\tx"]))) == pieces, "not within a phrase"


def test_pieces_are_as_long_as_the_limit_allows() -> None:
    """Each source also needs room for EOS and its language token."""
    assert cut("a, b, c, d, e, f", 1, 5) == ["a,b,", "c,d,", "e,f"]
    assert cut("a, b, c, d, e, f", 1, 6) == ["a,b,", "c,d,", "e,f"]
    assert cut("a, b, c, d, e, f", 1, 7) == ["a,b,c,", "d,e,f"]
    assert cut("ab cd ef gh", 1, 5) == ["abcd", "efgh"]
    assert cut("ab cd ef gh", 1, 6) == ["abcd", "efgh"]
    assert cut("abcdefgh", 1, 4) == ["abc", "def", "gh"]
    assert cut("aa. bb. c", 8, 99) == ["aa.bb.c"]
    assert cut("aa. bb. c", 7, 99) == ["aa.", "bb.", "c"]
    for limit, expected in ((5, ["abc", "def"]), (6, ["abcd", "ef"]), (8, ["abcdef"]), (9, ["abcdef"])):
        assert cut(">>deu<< abcdef", 1, limit) == [f">>deu<<{part}" for part in expected], "never a language alone"
    assert cut(">>deu<< ab. cd. ef.", 1, 9) == [">>deu<<ab.", ">>deu<<cd.", ">>deu<<ef."]


def test_sentences_are_found_with_their_positions() -> None:
    text = "Titel\n  Er kam.  Sie ging!\n\n „Wer?“ sagte z. B. er… \n \nEnde 。は い"
    spans = sentences_of(text)
    assert [text[a:b] for a, b in spans] == [
        "Titel",
        "Er kam.",
        "Sie ging!",
        "„Wer?“",
        "sagte z. B. er…",
        "Ende 。",
        "は い",
    ]
    assert all(a < b <= c for (a, b), (c, _) in pairwise([*spans, (len(text), 0)]))
    assert sentences_of("") == sentences_of(" \n ") == []


@pytest.mark.parametrize("sign", ["\u00ad", "\u2060", "\u200b", "\ufeff"])
def test_invisible_characters_do_not_cut_a_word(echo: Translator, sign: str) -> None:
    lines = [f"the d{sign}og", f"ไ{sign}ก"]
    [seen, thai] = [translation.segments[0].ids for translation in echo.translate(lines)]
    assert seen == echo.tokenizer.encode(["the dog"])[0] + [EOS]
    spaced = "ไ ก" if sign in "\u200b\ufeff" else "ไก"
    assert thai == echo.tokenizer.encode([spaced])[0] + [EOS]
