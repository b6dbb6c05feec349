"""The case of phrases and emphasized words, the tokens of shortlists, and searches repeated with less memory."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from nmt_cli.corpus.terms import Terms
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.system.errors import StorageError
from nmt_cli.translation import case, retry
from nmt_cli.translation.case import TITLE, UPPER, WORDS, Case, Caser, unusual
from nmt_cli.translation.retry import search_within_memory
from nmt_cli.translation.segmenter import sentences_of
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
    assert upper.written("a New Yorker xNew York") == "A NEW YORKER XNEW YORK", (
        "parts of longer words are not the phrase"
    )
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
    shortlist = Shortlist([7], [1, 1, 3, 3, 5], [4, 5, 6, 8, 7])  # lists of the source tokens 0 to 4
    assert tokens(shortlist, [EOS]) == sorted({EOS, 5, 6, 7})
    assert tokens(shortlist, [0, 4, 4, 3]) == [EOS, 4, 7, 8]
    terms = SimpleNamespace(tokens=[0, 12, 9])
    assert tokens(shortlist, [1], prefix=[10, 0], constraints=terms) == [EOS, 7, 9, 10, 12]


class Queue:
    """Stands in for a worker's queue, with its narrowest beam and the number of segments that a search may take."""

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


def tokenizer_of(*known: str, target: Any = None) -> Any:
    """Return a tokenizer with one token per known word, or the number after its colon, and one per letter of others."""
    sizes = {word: int(size or 1) for word, _, size in (each.partition(":") for each in known)}
    tokenizer = SimpleNamespace(encode=lambda texts: [[0] * sizes.get(text, len(text)) for text in texts])
    tokenizer.target = target or tokenizer
    return tokenizer


@pytest.mark.parametrize(
    ("language", "known", "text", "expected"),
    [
        ("en", ["straße"], "THE STRASSE IS CLOSED", "The strasse is closed"),
        ("de", ["straße"], "DIE STRASSE IST LANG", "Die straße Ist Lang"),  # unknown words may be nouns
        ("en", [], "THE DOG KNOWS WHAT I’LL DO", "The dog knows what I’ll do"),
        ("en", [], "THE DOG KNOWS WHAT I'LL DO", "The dog knows what I'll do"),
        ("fr", [], "LE CHIEN I’A VU", "Le chien i’a vu"),
        ("fr", [], "IL A UN CHIEN ICI", "Il a un chien ici"),
        ("nl", [], "DE UN IS HIER", "De UN is hier"),
        ("en", [], "WELL-KNOWN HATS ARE HERE", "Well-known hats are here"),
        ("en", ["Paris"], "WE GO TO PARIS", "We go to Paris"),
        ("en", ["Paris:2"], "WE GO TO PARIS", "We go to paris"),  # by accident
        ("de", ["Paris:2"], "IN PARIS IST ES", "In Paris Ist Es"),
        ("en", ["ii"], "THE WORLD WAR II ENDED", "The world war II ended"),
        ("en", ["vi"], "THE KING HENRY VI RUNS", "The king henry VI runs"),
        ("sv", ["vi"], "HENRY VI OCH HUNDEN", "Henry vi och hunden"),
        ("en", ["mix"], "A MIX OF WATER AND AIR", "A mix of water and air"),
        ("en", [], "A MIX OF WATER AND AIR", "A MIX of water and air"),  # the Roman numeral 1009, unless it is a word
        ("en", [], "THE NGO AND THE WTO HELP THE USA WITH AIDS", "The NGO and the WTO help the USA with AIDS"),
        ("en", ["NGOS"], "THE NGOS AND THE FRDP HELP", "The NGOS and the FRDP help"),
        ("en", [], "The WATER Runs Home Today Now", "The WATER runs home today now"),
        ("en", [], "The Dog And The Water Home in", None),
        ("en", [], "in The Dog And The Water Home", None),
        ("en", [], "The Dog in an old Water", None),
        ("en", [], "The Dog in an Old Water", "The dog in an old water"),
        ("en", [], "The Dog with an Old Water", None),
        ("de", [], "Der Hund in dem Alten Wasser", None),
        ("zh", [], "我在 Water Dog City Home", None),
        ("en", [], "WATER AND AIR. Dog here. AIR", "Water and air.|Dog here. AIR"),
        ("en", [], "WATER AND AIR. NO DOG. AIR HERE", "Water and air. No dog. Air here"),
        ("en", ["the"], "the 2ND AND 3RD dogs", None),
        ("en", [], "THE 2ND AND 3RD DOGS", "The 2nd and 3rd dogs"),
        ("de", [], "DER 2ND UND 3RD", "Der 2ND Und 3RD"),
    ],
)
def test_the_usual_form_of_words(language: str, known: list[str], text: str, expected: str | None) -> None:
    caser = Caser(tokenizer_of(*known), language, "xx")
    parts = caser.parts(text, sentences_of(text))
    assert "|".join(part.text for part in parts) == (expected or text)
    assert any(part.case for part in parts) == bool(expected)


def test_forms_of_terms_keep_their_case() -> None:
    """They keep it in the translation, and the phrases keep theirs in the source."""
    caser, text = Caser(tokenizer_of(), "en", "de"), "THE dog AND THE BIG CAT"
    [part] = caser.parts(text, sentences_of(text), Terms.parse(["dog\teBay|iTunes", "cat\tKatze", "big\tgroß\tany"]))
    assert part.case
    assert (part.text, part.case.kept) == ("The dog and the big cat", {"dog", "eBay", "iTunes"})
    assert part.case.written("eBay und Katze") == "eBay UND KATZE"
    [part] = caser.parts(text := "SEE New (WATER) AND AIR", sentences_of(text), Terms.parse(["New (\tx"]))
    assert part.text == "See New (water) and air", "the phrase ends before the word"


def test_a_prefix_is_converted_by_the_tokenizer_of_the_translation() -> None:
    """It is converted as a whole or not at all."""
    caser = Caser(tokenizer_of("wasser", target=tokenizer_of("Wasser")), "en", "de")
    assert caser.prefix("DAS WASSER IST KALT") == "Das Wasser Ist Kalt"
    for same in ("DAS WASSER IST KALT. Der Hund.", "Das Wasser", "", "DAS Wasser IST KALT", "iPhone"):
        assert caser.prefix(same) == same
