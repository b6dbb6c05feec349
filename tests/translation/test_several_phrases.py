"""Case of phrases and emphasized words, tokens of shortlists, and searches again with less memory."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.system.errors import StorageError
from nmt_cli.translation import case, retry
from nmt_cli.translation.case import TITLE, UPPER, WORDS, Case, unusual
from nmt_cli.translation.retry import search_within_memory
from nmt_cli.translation.shortlist import Shortlist


def test_text_that_may_have_unusual_case() -> None:
    for text, found in (
        ("The Lord of the Rings", True), ("The Lord of a rings", False), ("Hot Water", True), ("Hot water now", False),
        ("Hot", False),
        ("a DOG", True), ("A dog", False), ("I am", False), ("", False), ("5 Dogs", False), ("NATO", True),
    ):  # fmt: skip
        assert unusual(text) == found, text


def test_phrases_keep_their_case_the_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = frozenset(("New York", "New York City", "iPhone", "a-b c"))
    upper = Case(UPPER, "en", "de", kept)
    assert upper.written("in New York City, New York and „iPhone“") == "IN New York City, New York AND „iPhone“"
    assert upper.written("a New Yorker xNew York") == "A NEW YORKER XNEW YORK", "parts of longer words are others"
    assert Case(TITLE, "en", "de", frozenset(("dog",))).written("the „dog“, dog-house") == "The „dog“, Dog-House"
    assert Case(TITLE, "en", "tr", kept).written("iyi a-b c iPhone") == "İyi a-b c iPhone"
    assert Case(UPPER, "en", "de", frozenset(("iPhone",))).written("iPhone-hülle iPhones") == "iPhone-HÜLLE IPHONES"
    monkeypatch.setattr(case, "MOST_PHRASES", 1)
    assert upper.written("New York City, New York") == "New York City, NEW YORK"


def test_words_are_emphasized_where_the_source_was() -> None:
    loud = Case(WORDS, "en", "tr", capitals=frozenset(("very", "sure")))
    source = ["▁I", "▁am", "▁ve", "ry", ",", "▁sure"]
    target = ["▁çok", "▁em", "in", "im", "."]
    assert loud.emphasized("çok eminim.", source, target, [3, 1, 5, 5, 5]) == "ÇOK eminim.", "the first letters decide"
    assert loud.emphasized("çok eminim.", source, target, [1, 5, 1, 1, 1]) == "çok EMİNİM."
    assert loud.emphasized("çok eminim.", source, ["▁çok", "▁«", "em", "inim."], [0, 0, 2]) == "çok EMİNİM."
    assert loud.emphasized("çok eminim.", source, target, [0]) == "çok eminim.", "no position, no capitals"
    assert loud.emphasized("çok eminim çok.", source, target, [2] * 5) == "çok eminim çok.", "other words"
    assert loud.emphasized("eminim", source, ["▁çok", "▁em"], [5, 5]) == "eminim"


def tokens(shortlist: Shortlist, ids: list[int], prefix: Sequence[int] = (), constraints: Any = None) -> list[int]:
    segment: Any = SimpleNamespace(ids=ids, prefix=prefix, constraints=constraints)
    return shortlist.tokens(segment)


def test_tokens_of_a_segment_are_those_of_its_source_prefix_and_terms() -> None:
    shortlist = Shortlist([7], [1, 1, 3, 3, 5], [4, 5, 6, 8, 7])  # lists of the sources 0 to 4
    assert tokens(shortlist, [EOS]) == sorted({EOS, 5, 6, 7})
    assert tokens(shortlist, [0, 4, 4, 3]) == [EOS, 4, 7, 8]
    terms = SimpleNamespace(tokens=[0, 12, 9])
    assert tokens(shortlist, [1], prefix=[10, 0], constraints=terms) == [EOS, 7, 9, 10, 12]


class Queue:
    """A queue of segments with a beam, and the number of segments that a search may take."""

    def __init__(self) -> None:
        self.allowance = math.inf
        self.narrowest_beam = 2
        self.restarts = 0

    def restart(self) -> None:
        self.restarts += 1


def test_a_search_that_ran_out_of_memory_is_repeated_with_fewer_rows(capsys: pytest.CaptureFixture[str]) -> None:
    queue: Any = Queue()
    seen = list[tuple[int, float]]()
    failing = [True, True, False, True, False, False, False, False]

    def search(_: Any, rows: int) -> None:
        seen.append((rows, queue.allowance))
        if failing.pop(0):
            raise MemoryError

    search_within_memory(search, queue, 13)
    few = retry.REDUCED_SEGMENTS
    assert seen == [(13, math.inf), *((rows, few) for rows in (6, 3, 6, 3, 6, 12)), (13, math.inf)]
    assert (queue.restarts, failing) == (3, [])
    warnings = [line.split()[-4] for line in capsys.readouterr().err.splitlines()]
    assert warnings == ["6", "3", "3"]


def test_one_sentence_without_room_and_other_errors_end_the_search() -> None:
    queue: Any = Queue()
    seen = list[int]()

    def search(_: Any, rows: int) -> None:
        seen.append(rows)
        raise MemoryError if len(seen) < 9 else ValueError

    with pytest.raises(StorageError, match=r"too little memory to translate one sentence\. Lower --beam"):
        search_within_memory(search, queue, 9)
    assert seen == [9, 4, 2]

    def broken(_: Any, __: int) -> None:
        raise RuntimeError("not of memory")

    with pytest.raises(RuntimeError, match="not of memory"):
        search_within_memory(broken, queue, 9)
