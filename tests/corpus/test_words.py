"""The words of the source are counted, stored with the corpus, and follow the tokenizer to runs and models."""

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import texts

from nmt_cli.corpus import prepare, store, words
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.corpus.shards import prepare_shard
from nmt_cli.recipe import loading
from nmt_cli.system.errors import BusyError, DataError, OutputError, UsageError
from nmt_cli.system.shard import Shard
from nmt_cli.training.checkpoints import open_run

PAIRS = texts.pairs(60, seed=3)


def prepared(tmp_path: Path, name: str, **more: Any) -> Path:
    corpus = texts.own(tmp_path / "in", PAIRS, **more)
    prepare.prepare(corpus, tmp_path / name, PrepareOptions(workers=1))
    return tmp_path / name


@pytest.mark.parametrize(
    ("lines", "language", "counts"),
    [
        (["The the THE", "a-b 3rd"], "en", {"the": 3, "a": 1, "b": 1, "rd": 1}),
        (["Don't don\u2019t a'b'c"], "en", {"don't": 2, "don": 2, "t": 2, "a'b'c": 1, "a": 1, "b": 1, "c": 1}),
        ([">>fr<< >>bt<< to be >>or<<"], "en", {"to": 1, "be": 1, "or": 1}),
        (["İIı", "İIı"], "tr", {"iıı": 2}),
        (["Haus Straße", "HAUS"], "de", {"haus": 2, "straße": 1}),
        (["日本語 שלום हिन्दी x_y email을 webで man¹"], "ja", {"x": 1, "y": 1}),
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


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"a\n", "line 1"), (b"a\t1\nb\t1\t2\n", "line 2"), (b"a\tx\n", "line 1"), (b"a 1\n", "line 1"),
        (b"\n", "line 1"), (b"a\t0\n", "line 1"), (b"a\t-5\n", "line 1"), (b"a\t1_0\n", "line 1"),
        (b"\t1\n", "line 1"), (b"a b\t1\n", "line 1"), (b"a\t1", "last line"), (b"\xff\t1\n", "UTF-8"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(DataError, match=rf"w(, | is damaged: .*){why}"):
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
    reused = {"file": str(whole / "tokenizer.model"), "words": True}
    (whole / "tokenizer.words").write_bytes(words.to_bytes(Counter({"aardvark": 7})))
    for name, tokenizer in (("trained", settings), ("reused", reused)):
        one = prepared(tmp_path, f"{name}-one", tokenizer=tokenizer)
        corpus, out = texts.own(tmp_path / "in", PAIRS, tokenizer=tokenizer), tmp_path / f"{name}-two"
        while not out.exists():
            for number in (1, 2):
                with contextlib.suppress(BusyError):
                    prepare_shard(corpus, out, PrepareOptions(workers=1), Shard(number, 2))
        assert (out / "tokenizer.words").read_bytes() == (one / "tokenizer.words").read_bytes()


def test_changed_words_of_a_reused_tokenizer_count_as_other_inputs(tmp_path: Path) -> None:
    first = prepared(tmp_path, "first", tokenizer={"vocabulary_size": 400, "words": True})
    reused = {"file": str(first / "tokenizer.model"), "words": True}
    prepared(tmp_path, "second", tokenizer=reused)
    prepared(tmp_path, "second", tokenizer=reused)
    (first / "tokenizer.words").write_bytes(b"aardvark\t7\n")
    with pytest.raises(OutputError, match=r"tokenizer\.words is a different file"):
        prepared(tmp_path, "second", tokenizer=reused)
    (first / "tokenizer.words").write_bytes(b"aardvark")
    with pytest.raises(DataError, match=r"tokenizer\.words is damaged"):
        prepared(tmp_path, "third", tokenizer=reused)


def test_words_change_neither_the_identity_of_a_corpus_nor_a_run(tmp_path: Path) -> None:
    """A run started without a word list resumes on the corpus with one, and gets the list."""
    size = {"vocabulary_size": 400}
    plain = prepared(tmp_path, "a", tokenizer=size)
    counted = prepared(tmp_path, "b", tokenizer=size | {"words": True})
    corpora = [store.open_corpus(each) for each in (plain, counted)]
    assert corpora[0].identity == corpora[1].identity
    values: dict[str, Any] = {"name": "x", "model": {"num_layers": 1, "d_model": 8, "num_heads": 1}}
    before, after = (
        loading.from_plain({**values, "corpus": {"name": "own", "tokenizer": size | more}}, "test")
        for more in ({}, {"words": True})
    )
    run = tmp_path / "run"
    open_run(before, corpora[0], run)
    assert not (run / "tokenizer.words").exists()
    (run / "model").mkdir()  # something has been trained
    open_run(after, corpora[1], run)
    assert (run / "tokenizer.words").read_bytes() == (counted / "tokenizer.words").read_bytes()
    open_run(before, corpora[0], run)
    assert not (run / "tokenizer.words").exists()


def test_several_source_languages_are_refused() -> None:
    pairs = [{"files": ["a", "b"], "src": "en", "tgt": "de"}, {"files": ["c", "d"], "src": "de", "tgt": "en"}]
    values = {"corpus": {"name": "own", "tokenizer": {"words": True}, "sources": pairs}}
    with pytest.raises(UsageError, match=r"corpus\.tokenizer\.words requires a single source language"):
        loading.from_plain(values, "test")
    pairs[1]["src"] = "en"
    assert loading.from_plain(values, "test").corpus.tokenizer.words


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
