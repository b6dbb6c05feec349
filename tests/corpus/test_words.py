"""The words of the source are counted, stored with the corpus, and follow the tokenizer to runs and models."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import texts

from nmt_cli.corpus import prepare, words
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.corpus.shards import Share, prepare_shard
from nmt_cli.system.errors import DataError

PAIRS = texts.pairs(60, seed=3)


def prepared(tmp_path: Path, name: str, **more: Any) -> Path:
    corpus = texts.own(tmp_path / "in", PAIRS, **more)
    prepare.prepare(corpus, tmp_path / name, PrepareOptions(workers=1))
    return tmp_path / name


@pytest.mark.parametrize(
    ("lines", "language", "counts"),
    [
        (["The the THE", "a-b don't 3rd"], "en", {"the": 3, "a": 1, "b": 1, "don": 1, "t": 1, "rd": 1}),
        ([">>fr<< >>bt<< to be >>or<<"], "en", {"to": 1, "be": 1, "or": 1}),
        (["İIı", "İIı"], "tr", {"iıı": 2}),
        (["Haus Straße", "HAUS"], "de", {"haus": 2, "straße": 1}),
        (["日本語 שלום हिन्दी x_y"], "ja", {"x": 1, "y": 1}),
        (["A" * 40, "a" * 41], "en", {"a" * 40: 1}),
        ([], "en", {}),
    ],
)
def test_words_are_counted_in_lowercase(lines: list[str], language: str, counts: dict[str, int]) -> None:
    assert words.count(lines, language) == Counter(counts)


def test_a_file_has_the_most_frequent_words_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counter({"b": 2, "a": 2, "c": 30, "ü": 1})
    file = tmp_path / "tokenizer.words"
    file.write_bytes(words.to_bytes(counts))
    assert file.read_text() == "c\t30\na\t2\nb\t2\nü\t1\n"
    assert words.read(file) == counts
    monkeypatch.setattr(words, "MOST_WORDS", 2)
    assert words.to_bytes(counts) == b"c\t30\na\t2\n"
    assert words.to_bytes(Counter()) == b""


@pytest.mark.parametrize("content", [b"a\n", b"a\t1\t2\n", b"a\tx\n", b"\xff\t1\n", b"a 1\n", b"\n"])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(DataError, match=r"w is damaged: each line must have a word, a tab and a number"):
        words.read(tmp_path / "w")


def test_prepare_counts_the_source_alone_and_only_if_asked(tmp_path: Path) -> None:
    expected = words.count([src for src, _ in PAIRS], "en")
    out = prepared(tmp_path, "with", tokenizer={"vocabulary_size": 400, "words": True})
    assert words.read(out / "tokenizer.words") == expected
    without = prepared(tmp_path, "without", tokenizer={"vocabulary_size": 400})
    assert not (without / "tokenizer.words").exists()
    assert (out / "tokenizer.model").read_bytes() == (without / "tokenizer.model").read_bytes()


def test_shards_count_the_same_words(tmp_path: Path) -> None:
    settings = {"vocabulary_size": 400, "words": True}
    whole = prepared(tmp_path, "whole", tokenizer=settings)
    corpus = texts.own(tmp_path / "in", PAIRS, tokenizer=settings)
    prepare_shard(corpus, tmp_path / "sharded", PrepareOptions(workers=1), Share(1, 1))
    assert (tmp_path / "sharded/tokenizer.words").read_bytes() == (whole / "tokenizer.words").read_bytes()


def test_the_words_of_a_reused_tokenizer_stay_known(tmp_path: Path) -> None:
    first = prepared(tmp_path, "first", tokenizer={"vocabulary_size": 400, "words": True})
    (first / "tokenizer.words").write_bytes(words.to_bytes(Counter({"aardvark": 7, "zebra": 1})))
    file = str(first / "tokenizer.model")
    both = prepared(tmp_path, "both", tokenizer={"file": file, "words": True})
    assert words.read(both / "tokenizer.words") == words.count([src for src, _ in PAIRS], "en") | Counter(
        {"aardvark": 7, "zebra": 1}
    )
    neither = prepared(tmp_path, "neither", tokenizer={"file": file})
    assert not (neither / "tokenizer.words").exists()


def test_a_copy_has_the_words_of_its_original_or_none(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a/tokenizer.words").write_bytes(b"a\t1\n")
    words.copy(tmp_path / "a/tokenizer.model", tmp_path / "b/tokenizer.model")
    assert (tmp_path / "b/tokenizer.words").read_bytes() == b"a\t1\n"
    (tmp_path / "a/tokenizer.words").unlink()
    words.copy(tmp_path / "a/tokenizer.model", tmp_path / "b/tokenizer.model")
    assert not list((tmp_path / "b").iterdir())
