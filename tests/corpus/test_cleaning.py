"""Cleaning: repaired lines, and pairs dropped for the first reason that applies."""

import json
from collections import Counter
from pathlib import Path

import pytest
import texts

from nmt_cli.corpus import cleaning, cleaning_report, parts
from nmt_cli.corpus.cleaning import CleaningStats
from nmt_cli.corpus.raw_text import RawText, Split
from nmt_cli.corpus.readers import Chunk
from nmt_cli.corpus.tokenizer import normalize
from nmt_cli.recipe.schema import Cleaning, Corpus
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError

Cleaned = tuple[bytes, bytes, bytes, CleaningStats]


def clean(*pairs: tuple[bytes | None, bytes | None], held_out: frozenset[bytes] = frozenset(), **more: bool) -> Cleaned:
    corpus = Corpus(src="en", tgt="de", cleaning=Cleaning(**more))
    return cleaning.clean_chunk(corpus, held_out, Chunk([p[0] for p in pairs], [p[1] for p in pairs]))


def test_normalized_text_is_one_line_with_single_spaces() -> None:
    breaks = "\0\n\r\x1c\x1f\x7f\x85\x9f\xa0\u1680\u2000\u200b\u2028\u2029\u202f\u205f\u3000\ufeff\ud800\udfff "
    line = normalize(breaks + "".join(f"x{char}{char}" for char in breaks))
    assert line == normalize(line) == " ".join("x" * len(breaks))
    kept = "é ½ ﬁ ~a! \xad\u200c\u200d"
    assert normalize(f" e\u0301  {kept[2:]}") == kept


def test_entities_are_replaced_once_on_request() -> None:
    for text, plain in (
        ("R&amp;D", "R&D"),
        ("&amp;lt;", "&lt;"),
        ("&#252;&#xFC;&uuml;", "üüü"),
        ("&#128512;&#x1F600;&frac12;&there4;", "😀😀½∴"),
        ("&quot;a&#32;b&nbsp;", '"a b'),
        ("Q&A, AT&T ?a=1&copy=2 &unknownentity;", "Q&A, AT&T ?a=1&copy=2 &unknownentity;"),
    ):
        assert cleaning.repair(text, Cleaning()) == plain
        assert cleaning.repair(text, Cleaning(unescape=False)) == text


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ((None, b"ein"), cleaning.LONG_LINE),
        ((b"a", None), cleaning.LONG_LINE),
        ((b"a\xff", b"ein"), cleaning.NOT_UTF8),
        ((b"a", b"ein\xff"), cleaning.NOT_UTF8),
        ((b" \t", b"ein"), cleaning.EMPTY),
        ((b"one", b"\xe2\x80\xa8"), cleaning.EMPTY),
        ((b"same ", b" same"), cleaning.COPY),
        (("Привет, мир".encode(), b"Hallo Welt"), cleaning.SCRIPT),
        ((b"a dog", "一只狗".encode()), cleaning.SCRIPT),
    ],
)
def test_each_reason_drops_its_pair(pair: tuple[bytes | None, bytes | None], reason: str) -> None:
    src, tgt, hashes, stats = clean((b"a dog", b"ein Hund"), pair)
    assert (src, tgt, hashes) == (b"a dog\n", b"ein Hund\n", cleaning.pair_hash("a dog", "ein Hund"))
    assert (stats.read, stats.dropped, len(stats.examples[reason])) == (2, {reason: 1}, 1)


def test_a_chunk_becomes_lines_hashes_and_counts() -> None:
    """If a file is listed twice, the hashes tell its repetitions apart; held-out pairs are dropped from each."""
    held_out = cleaning.held_out_hashes([("gone", "weg")], Cleaning())
    raw: list[tuple[bytes | None, bytes | None]] = [
        (b"one", b"eins"), (None, b"x"), (b"y", None), (b"gone", b"weg"), (b"a\xff" + b"b" * 300, b"c"),
        (b"d", b"\xe9"), (b"two &lt; ", "zwei\u00a0<".encode()), (b"", b"leer"),
    ]  # fmt: skip
    chunk = Chunk([src for src, _ in raw], [tgt for _, tgt in raw], 2)
    src, tgt, hashes, stats = cleaning.clean_chunk(Corpus(src="en", tgt="de"), held_out, chunk)
    assert (src, tgt) == (b"one\ntwo <\n", b"eins\nzwei <\n")
    assert hashes == cleaning.pair_hash("one", "eins", 2) + cleaning.pair_hash("two <", "zwei <", 2)
    assert stats == CleaningStats(
        8,
        Counter({cleaning.LONG_LINE: 2, cleaning.HELD_OUT: 1, cleaning.NOT_UTF8: 2, cleaning.EMPTY: 1}),
        {
            cleaning.LONG_LINE: [("(too long)", ""), ("", "(too long)")],
            cleaning.HELD_OUT: [("gone", "weg")],
            cleaning.NOT_UTF8: [("a\\xff" + "b" * 195, "c"), ("d", "\\xe9")],
            cleaning.EMPTY: [("", "leer")],
        },
        {cleaning.NOT_UTF8: 5},
    )


def test_hashes_distinguish_pairs_and_repetitions() -> None:
    pairs = [
        ("a", "b", 0),
        ("b", "a", 0),
        ("a b", "", 0),
        ("", "a b", 0),
        ("a", "b", 1),
        ("a", "b", 2),
        ("a", "b", 256),
    ]
    hashes = {cleaning.pair_hash(src, tgt, repetition) for src, tgt, repetition in pairs}
    assert (len(hashes), {len(each) for each in hashes}) == (len(pairs), {16})
    assert cleaning.pair_hash("a", "b") == cleaning.pair_hash("a", "b", 0)


def test_statistics_of_chunks_are_added() -> None:
    total = CleaningStats()
    for read, first, shifted in (
        (10, {}, False),
        (20, {cleaning.NOT_UTF8: 7}, True),
        (30, {cleaning.NOT_UTF8: 1}, True),
    ):
        stats = CleaningStats(read, first_line={**first, **({cleaning.SHIFTED: 1} if shifted else {})})
        for i in range(2 if first else 0):
            stats.drop(cleaning.NOT_UTF8, f"{read}.{i}", "x")
        total.add(stats)
    assert (total.read, total.dropped) == (60, {cleaning.NOT_UTF8: 4})
    assert total.examples == {cleaning.NOT_UTF8: [("20.0", "x"), ("20.1", "x"), ("30.0", "x")]}
    assert total.first_line == {cleaning.NOT_UTF8: 17, cleaning.SHIFTED: 11}
    assert total.warnings() == [
        "not UTF-8: 4 lines, the first is line 17",
        "from about line 11 on, one side seems to be shifted relative to the other",
    ]
    one = CleaningStats(5000, Counter({cleaning.NOT_UTF8: 1}), {}, {cleaning.NOT_UTF8: 4321})
    assert one.warnings() == ["not UTF-8: 1 line, the first is line 4,321"]
    assert CleaningStats(9, Counter({cleaning.EMPTY: 3})).warnings() == []


def test_the_first_reason_that_applies_counts() -> None:
    cyrillic = "мир".encode()
    assert clean((b"", b""))[3].dropped == {cleaning.EMPTY: 1}
    assert clean((cyrillic, cyrillic))[3].dropped == {cleaning.COPY: 1}
    held_out = cleaning.held_out_hashes([("мир", "Welt"), ("same", "same")], Cleaning())
    assert clean((cyrillic, b"Welt"), held_out=held_out)[3].dropped == {cleaning.SCRIPT: 1}
    done = clean((cyrillic, b"Welt"), (b"same", b"same"), held_out=held_out, check_script=False, drop_copies=False)
    assert done[3].dropped == {cleaning.HELD_OUT: 2}


def test_optional_reasons_can_be_switched_off() -> None:
    done = clean((b"same", b"same"), ("мир".encode(), b"Welt"), drop_copies=False, check_script=False)
    assert done[3].dropped == {}


def test_held_out_pairs_are_cleaned_before_the_comparison() -> None:
    held_out = [("R&amp;D is\u2028fun", "FuE macht Spaß"), ("Only here", "Nur hier")]
    train = [(b"R&D is fun", "FuE  macht Spaß".encode()), (b"Only here", b"anders"), (b"A third", b"Ein drittes")]
    src, _, _, stats = clean(*train, held_out=cleaning.held_out_hashes(held_out, Cleaning()))
    assert stats.dropped == {cleaning.HELD_OUT: 1}
    assert src == b"Only here\nA third\n"
    tagged = [
        (f"{tokens}gone".encode(), b"weg") for tokens in (">>de<< ", ">>de<< >>bt<< ", ">>bt<<", ">>a<< >>b<< >>c<< ")
    ]
    src, _, _, stats = clean(*tagged, held_out=cleaning.held_out_hashes([("gone", "weg")], Cleaning()))
    assert src == tagged[3][0] + b"\n", "the tokens of a language and of a tag do not hide a pair"


@pytest.mark.parametrize(
    ("line", "language", "expected"),
    [
        ("Straße – „ü“ 12 %", "de", False),
        ("naïve Здр", "en", False),
        ("не naïf", "ru", True),
        ("не no", "ru", False),  # exactly half
        ("日本語のテキスト OK", "ja", False),
        ("狗 dog.", "zh", False),  # one of four letters, but a whole word
        ("狗 dogs", "zh", True),
        ("only English", "ja", True),
        ("привет", "xx", False),
        ("안녕 World", "hi", True),
    ],
)
def test_a_line_is_foreign_if_most_letters_are(line: str, language: str, expected: bool) -> None:
    assert cleaning.foreign(line, language) is expected


WRITTEN = {  # words in one script -> the languages written in it
    "Straße": "en de fr cs es it pt nl sv da no fi et lv lt pl sk sl hr hu ro tr vi id ca is ga mt",
    **{"собака": "ru uk bg mk be kk", "σκύλος": "el", "كلب": "ar fa ur", "כלב": "he", "कुत्ता": "hi mr ne", "কুকুর": "bn"},
    **{"કૂતરો": "gu", "ਕੁੱਤਾ": "pa", "நாய்": "ta", "కుక్క": "te", "ನಾಯಿ": "kn", "നായ": "ml", "බල්ලා": "si", "개": "ko"},
    "犬 いぬ イヌ": "zh ja",
}


def test_each_language_has_exactly_one_script() -> None:
    for text, languages in WRITTEN.items():
        for word in text.split():
            for language in " ".join(WRITTEN.values()).split():
                assert cleaning.foreign(word, language) == (language not in languages.split()), (word, language)
            assert not cleaning.foreign(word, "eo")


def test_each_side_is_checked_for_its_own_script() -> None:
    english, russian = "a small dog", "маленькая собака"
    sides = {("en", "ru"): (english, russian), ("ru", "en"): (russian, english)}
    for languages, pair in sides.items():
        corpus, raw = Corpus(src=languages[0], tgt=languages[1]), [line.encode() for line in pair]
        for chunk, dropped in ((Chunk(raw[:1], raw[1:]), 0), (Chunk(raw[1:], raw[:1]), 1)):
            stats = cleaning.clean_chunk(corpus, frozenset(), chunk)[3]
            assert stats.dropped[cleaning.SCRIPT] == dropped


def test_shifted_sides_are_noticed() -> None:
    src, tgt = (list(side) for side in zip(*texts.pairs(2000), strict=True))
    assert not cleaning.shifted(src, tgt)
    for lag in (1, 2, 3):
        assert cleaning.shifted(src[lag:], tgt[:-lag])
        assert cleaning.shifted(src[:500], tgt[lag : 500 + lag])
    assert not cleaning.shifted(src[:499], tgt[1:500])  # too few lines
    assert not cleaning.shifted(["same"] * 1000, ["gleich"] * 1000)


def test_the_first_three_examples_are_kept_and_cut() -> None:
    stats = clean((b"x" * 500, b"x" * 500), *((f"s{i}".encode(), f"s{i}".encode()) for i in range(9)))[3]
    assert len(stats.examples[cleaning.COPY]) == 3
    stats.add(stats)
    assert stats.dropped[cleaning.COPY] == 20
    assert [src for src, _ in stats.examples[cleaning.COPY]] == ["x" * 200, "s0", "s1"]


@pytest.mark.parametrize(
    ("swapped", "straight", "share"),
    [(4, 0, None), (5, 0, "100%"), (5, 94, "5%"), (5, 95, None), (6, 113, "5%"), (6, 114, None), (0, 0, None)],
)
def test_five_swapped_pairs_that_are_over_a_twentieth_give_a_warning(
    swapped: int, straight: int, share: str | None
) -> None:
    stats = CleaningStats(sides=Counter({(0, False): 500, (0, True): 3, (1, True): swapped, (1, False): straight}))
    expected = f"{share} of the pairs of b seem to have swapped sides. Exchange the files, or set"
    assert [line[: len(expected)] for line in stats.swapped_sides("ab")] == [expected] * bool(share)


def test_all_warnings_are_printed_and_the_first_is_an_error_if_strict(capsys: pytest.CaptureFixture[str]) -> None:
    text = RawText("here", {"train": Split("x", [])})
    stats = CleaningStats(200, Counter({cleaning.NOT_UTF8: 2}), {}, {cleaning.NOT_UTF8: 9, cleaning.SHIFTED: 1})
    stats.sides.update({(0, True): 50})
    found = cleaning_report.warn(stats, text, ["a"], strict=False)
    assert [line.partition(",")[0][:30] for line in found] == [
        "not UTF-8: 2 lines",
        "from about line 1 on",
        "100% of the pairs of a seem to",
    ]
    assert capsys.readouterr().err.count("nmt: warning: ") == 3
    for more in ({}, {cleaning.NOT_UTF8: 9}):
        one = CleaningStats(
            200, Counter(dict.fromkeys(more, 2)), {}, more, sides=Counter({(0, True): 50 - 50 * len(more)})
        )
        with pytest.raises(DataError, match=r"\. Correct the files, or run without --strict$"):
            cleaning_report.warn(one, text, ["a"], strict=True)
    assert cleaning_report.warn(CleaningStats(200), text, ["a"], strict=True) == []


@pytest.mark.parametrize(
    ("least", "low"),
    [(0, [True, False, False, True, False, False]), (0.5, [True, True, True, True, True, False]), (None, [False] * 6)],
)
def test_a_score_below_the_minimum_is_low(least: float | None, low: list[bool]) -> None:
    """So is a negative score, and NaN. A line without a score, such as an overlong line, counts as 0."""
    scores = [-0.1, 0.0, None, float("nan"), 0.499, 0.5]
    entry = {"files": ["a.tsv"], **({} if least is None else {"score": "3", "min_score": least})}
    chunk = Chunk([b"a"] * 6, [b"b"] * 6, source=0, scores=scores)
    corpus = texts.bitext_section(entry)
    assert [cleaning.has_low_score(corpus, chunk, index) for index in range(6)] == low


def test_synthetic_text_is_checked_for_the_scripts_of_its_own_languages() -> None:
    corpus, russian = Corpus(src="en", tgt="de"), "собака".encode()
    for languages, kept in ((("en", "ru"), 1), (("en", "de"), 0), (("ru", "de"), 0), (None, 0)):
        chunk = Chunk([b"a dog"], [russian], languages=languages)
        stats = cleaning.clean_chunk(corpus, frozenset(), chunk)[3]
        assert (stats.kept[0], stats.dropped[cleaning.SCRIPT]) == (kept, 1 - kept)


def test_counts_of_a_part_survive_json() -> None:
    """Every field has a distinct value."""
    stats = CleaningStats(
        9,
        Counter({cleaning.EMPTY: 2, cleaning.COPY: 1}),
        {cleaning.EMPTY: [("a", ""), ("", "b")]},
        {cleaning.NOT_UTF8: 3},
        Counter({0: 3, 2: 4}),
        Counter({(1, cleaning.EMPTY): 2, (2, cleaning.COPY): 1}),
        Counter({(0, True): 5, (2, False): 6}),
        turned=7,
    )
    assert vars(parts.stats_of(json.loads(json.dumps(parts.plain(stats))))) == vars(stats)
    assert all(vars(stats).values())


def test_pairs_of_a_part_are_counted_before_cleaning_and_after_encoding(tmp_path: Path) -> None:
    """Encoding drops repeated and uneven pairs."""
    some = texts.pairs(150)
    rows = {"a": [*some[:140], ("", "x")], "b": [*some[100:120], *some[140:], ("see", "seh " * 40), some[140]]}
    entries = []
    for name, pairs in rows.items():
        lines = [f"{src}\t{tgt}" for src, tgt in pairs]
        entries.append({"files": [str(texts.write(tmp_path / f"{name}.tsv", lines))]})
    out = texts.run(texts.bitext_section(*entries, tokenizer={"vocabulary_size": 400}), tmp_path / "data")
    found = artefact.read_json(out / "cleaning.json")["parts"]
    assert [(part["read"], part["kept"], part["dropped"]) for part in found] == [
        (141, 140, {cleaning.EMPTY: 1}),
        (32, 10, {}),
    ]
