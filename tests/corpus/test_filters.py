"""Filters of corpus.filters: what each drops and keeps, its counts, and the statistics of --stats."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import texts

from nmt_cli.corpus import filter_stats, filters, language_id
from nmt_cli.corpus.cleaning import TURNED, CleaningStats, clean_chunk
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.corpus.readers import Chunk
from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe.cleaning import Filters
from nmt_cli.recipe.schema import Corpus
from nmt_cli.storage import artefact
from nmt_cli.system import console
from nmt_cli.system.errors import DataError, UsageError

EN = [
    "The small children are playing in the garden of their grandmother this afternoon",
    "A man with a red hat is walking slowly along the river with his two dogs",
    "Several people are waiting for the next train because the last one was too late",
    "She would have bought the house if the bank had given her the money",
    "We are going to have breakfast together before the meeting starts",
    "Nobody knows why the old church was closed for such a long time",
]
DE = [
    "Die kleinen Kinder spielen heute Nachmittag im Garten ihrer Großmutter",
    "Ein Mann mit einem roten Hut geht langsam mit seinen zwei Hunden am Fluss entlang",
    "Mehrere Leute warten auf den nächsten Zug, weil der letzte zu spät gekommen ist",
    "Sie hätte das Haus gekauft, wenn die Bank ihr das Geld gegeben hätte",
    "Wir werden zusammen frühstücken, bevor die Besprechung beginnt",
    "Niemand weiß, warum die alte Kirche so lange geschlossen war",
]
FRENCH = "Les enfants jouent dans le jardin de leur grand-mère cet après-midi"
PAIRS = list(zip(EN, DE, strict=True))
STRAIGHT = [
    (". ".join(src), ". ".join(tgt)) for src, tgt in (zip(*p, strict=True) for p in itertools.permutations(PAIRS, 3))
]


def section(**chosen: Any) -> Corpus:
    return Corpus(src="en", tgt="de", filters=Filters(**chosen))


def clean(pairs: list[tuple[str, str]], corpus: Corpus) -> tuple[list[tuple[str, str]], CleaningStats]:
    sides = ([line.encode() for line in side] for side in zip(*pairs, strict=True))
    src, tgt, _, stats = clean_chunk(corpus, frozenset(), Chunk(*sides))
    return list(zip(src.decode().split("\n")[:-1], tgt.decode().split("\n")[:-1], strict=True)), stats


@pytest.mark.parametrize(
    ("setting", "reason", "bad", "good"),
    [
        ({"language": True}, filters.LANGUAGE, [(FRENCH, DE[0]), (EN[0], FRENCH), (EN[0], EN[1])],
         [("Yes", "Nein"), ("Paris", "Paris, Île"), ("OK.", "OK")]),
        ({"swapped": "drop"}, filters.SWAPPED, [(DE[0], EN[0]), ("das ist ja gut", "that is good")],
         [(EN[0], EN[1]), (DE[1], DE[0]), (FRENCH, DE[0])]),
        ({"numbers": True}, filters.NUMBERS, [("5 dogs", "6 Hunde"), ("in 1999", "1998"), ("a 3, b 4", "4 und 7")],
         [("1,234.5", "1 234,5"), ("two dogs", "2 Hunde"), ("3 pm, 15 km", "15 Uhr, 15 km, 3"), ("٣ dogs", "3 Hunde")]),
        ({"repeats": True}, filters.REPEATS, [("a b a b a b a b", "x"), ("x", "so so so so")],
         [("a b a b a b", "so so so"), ("aaaaaaaa", "x x y x x")]),
        ({"min_letters": 0.5}, filters.FEW_LETTERS, [("a 12", "ein Wort"), ("word", "12.50 %"), ("-", "Strich")],
         [("ab 12", "ein 12"), ("हिन्दी", "ja")]),
        ({"max_capitals": 0.5}, filters.CAPITALS, [("NEWS OF THe day", "neu"), ("news", "DAS IST NEU heute")],
         [("NEWS OF T", "neu"), ("NEWS now today", "neu"), ("news", "日本語" * 9)]),
    ],
)  # fmt: skip
def test_each_filter_drops_its_faults_and_no_others(
    setting: dict[str, Any], reason: str, bad: list[tuple[str, str]], good: list[tuple[str, str]]
) -> None:
    kept, stats = clean([*PAIRS, *bad, *good], section(**setting).model_copy(update={"cleaning": UNCHECKED}))
    assert kept == [*PAIRS, *good]
    assert stats.dropped == {reason: len(bad)}
    assert stats.examples == {reason: bad[:3]}
    assert stats.by_part == {(0, reason): len(bad)}
    assert clean([*PAIRS, *bad, *good], section().model_copy(update={"cleaning": UNCHECKED}))[1].dropped == {}


UNCHECKED = Corpus().cleaning.model_copy(update={"drop_copies": False, "check_script": False})


def test_swapped_pairs_are_turned_and_counted() -> None:
    mixed = [(tgt, src) if i % 2 else (src, tgt) for i, (src, tgt) in enumerate(PAIRS)]
    kept, stats = clean(mixed, section(swapped="turn", language=True))
    assert kept == PAIRS
    assert (stats.turned, stats.dropped, stats.examples[TURNED][0]) == (3, {}, (DE[1], EN[1]))


def test_close_languages_are_not_another_language() -> None:
    danish = "Børnene leger i haven hele eftermiddagen, mens deres forældre laver mad"
    assert not language_id.is_foreign(danish, "nb")
    assert language_id.is_foreign(danish, "de")
    assert language_id.is_foreign(danish, "de-AT")
    for code in ("nb", "nn", "no", "nn-NO", "nob"):
        assert language_id.knows(code)
        assert language_id.tells_apart(code, "de")
        assert not language_id.tells_apart(code, "no")
    assert language_id.is_in("Eg veit ikkje kvifor den gamle kyrkja har vore stengd så lenge", "nn")
    assert not language_id.tells_apart("en-GB", "en-US")


def own(folder: Path, **more: Any) -> Corpus:
    """Write mixed.tsv with English and German pairs, half of them swapped; return a corpus of other, made-up pairs."""
    mixed = [(tgt, src) if i % 2 else (src, tgt) for i, (src, tgt) in enumerate(STRAIGHT)]
    (folder / "mixed.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in mixed))
    return texts.own(folder / "own", texts.pairs(300), src="en", tgt="de", **more)


def entry(folder: Path, **more: Any) -> dict[str, Any]:
    return {"files": [str(folder / "mixed.tsv")], **more}


def reports(capsys: pytest.CaptureFixture[str], out: Path) -> tuple[str, dict[str, Any]]:
    return capsys.readouterr().err, artefact.read_json(out / "cleaning.json")


def test_a_source_has_filters_of_its_own_and_counts_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [entry(tmp_path, filters={"swapped": "turn"}), entry(tmp_path)]
    corpus = own(tmp_path, sources=sources, filters={"swapped": "drop", "numbers": True})
    shown, report = reports(capsys, texts.run(corpus, tmp_path / "data"))
    assert "exchanged the swapped sides of 60 pairs" in shown
    assert report["turned"]["pairs"] == report["dropped"][filters.SWAPPED]["pairs"] == 60
    parts = [(part["read"], part["kept"], part["dropped"]) for part in report["parts"]]
    assert parts == [(300, 300, {}), (120, 120, {}), (120, 60, {filters.SWAPPED: 60})]
    assert [part["name"] for part in report["parts"][1:]] == [str(tmp_path / "mixed.tsv")] * 2
    assert report["warnings"] == []


def test_swapped_sides_are_noticed_without_a_filter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown, report = reports(capsys, texts.run(own(tmp_path, sources=[entry(tmp_path)]), tmp_path / "data"))
    found = f"50% of the pairs of {tmp_path / 'mixed.tsv'} seem to have swapped sides. Exchange the files"
    assert found in " ".join(shown.split())
    assert [warning.startswith(found) for warning in report["warnings"]] == [True]
    with pytest.raises(DataError, match="seem to have swapped sides"):
        texts.run(own(tmp_path, sources=[entry(tmp_path)]), tmp_path / "strict", strict=True)


def test_held_out_pairs_are_turned_as_training_pairs_are(tmp_path: Path) -> None:
    corpus = own(tmp_path, sources=[entry(tmp_path)], filters={"swapped": "turn"}, train_src=[], train_tgt=[])
    corpus = corpus.model_copy(update={"hold_out": 20})
    opened = open_corpus(texts.run(corpus, tmp_path / "data"))
    held_out = list(zip(*opened.lines("test"), strict=True)) + list(zip(*opened.lines("dev"), strict=True))
    assert len(held_out) == 12
    assert set(held_out) <= set(STRAIGHT)


def test_statistics_try_every_filter_and_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = own(tmp_path, sources=[entry(tmp_path, filters={"max_capitals": 0.3})], filters={"numbers": True})
    rows = [("5 of 6 DOGS", "7 Hunde"), ("gone", "")]
    with (tmp_path / "own" / "train.en").open("a") as src, (tmp_path / "own" / "train.de").open("a") as tgt:
        for row in rows:
            src.write(f"{row[0]}\n")
            tgt.write(f"{row[1]}\n")
    before = sorted(tmp_path.rglob("*"))
    filter_stats.show(corpus, tmp_path / "data" / "own", PrepareOptions(workers=1))
    assert sorted(tmp_path.rglob("*")) == before
    tables = capsys.readouterr().out.split("mixed.tsv: 120 pairs read")
    found = [{tuple(line.split("  ")[0].split(": ")): line.split() for line in table.split("\n")} for table in tables]
    names = [{row[0]: cells for row, cells in table.items()} for table in found]
    assert names[0]["empty side"][2:5] == ["on", "1", "0.33"]
    assert names[0]["filters.numbers"][1:5] == ["yes", "on", "1", "0.33"]
    assert names[0]["filters.max_capitals"][1:4] == ["0.5", "off", "0"]
    assert names[1]["filters.max_capitals"][1:4] == ["0.3", "on", "0"]
    assert names[1]["filters.numbers"][1:4] == ["yes", "off", "0"]
    assert names[1]["filters.swapped"][1:5] == ["drop", "off", "60", "50.00"]
    assert int(names[1]["filters.language"][3]) > 50


def test_turned_pairs_do_not_count_for_the_language_filter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = own(tmp_path, sources=[entry(tmp_path, filters={"swapped": "turn", "language": True})])
    filter_stats.show(corpus, tmp_path / "data" / "own", PrepareOptions(workers=1))
    table = capsys.readouterr().out.split("mixed.tsv: 120 pairs read")[1]
    cells = {line.split("  ")[0].split(":")[0]: line.split() for line in table.split("\n")}
    assert cells["filters.swapped"][1:4] == ["turn", "on", "60"]
    assert cells["filters.language"][1:4] == ["yes", "on", "0"]


@pytest.fixture
def without_eldc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    language_id._eldc.cache_clear()
    language_id._accepted.cache_clear()
    monkeypatch.setitem(sys.modules, "eldc", None)
    yield
    language_id._eldc.cache_clear()
    language_id._accepted.cache_clear()


def test_filters_that_cannot_work_are_refused(tmp_path: Path) -> None:
    for settings, message in (
        ({"tgt": "xx", "filters": {"language": True}}, r"filters\.language does not know 'xx'\. Correct the code"),
        ({"src": "nn", "tgt": "nb", "filters": {"swapped": "turn"}}, "swapped: nn and nb cannot be told apart"),
    ):
        corpus = texts.own(tmp_path / "own", texts.pairs(300), **settings)
        with pytest.raises(UsageError, match=message):
            texts.run(corpus, tmp_path / "data")
        with pytest.raises(UsageError, match=message):
            filter_stats.show(corpus, tmp_path / "data", PrepareOptions(workers=1))
    assert not (tmp_path / "data").exists()


@pytest.mark.usefixtures("without_eldc")
def test_without_eldc_only_two_filters_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for setting in ({"language": True}, {"swapped": "drop"}):
        corpus = texts.own(tmp_path / "own", texts.pairs(300), filters=setting)
        with pytest.raises(UsageError, match=r'need eldc\. Install it: pip install "nmt-cli\[filters\]"$'):
            texts.run(corpus, tmp_path / "data")
    corpus = texts.own(tmp_path / "own", texts.pairs(300), filters={"numbers": True})
    filter_stats.show(corpus, tmp_path / "data", PrepareOptions(workers=1))
    shown, logged = capsys.readouterr()
    assert 'the filters language and swapped need eldc. Install it: pip install "nmt-cli[filters]"' in logged
    assert "filters.numbers" in shown
    assert "filters.language" not in shown
    texts.run(corpus, tmp_path / "data")


@pytest.mark.parametrize(
    ("line", "share", "many"),
    [
        ("ABCDEF ghij", 0.5, True),  # six of ten
        ("ABCDE fghij", 0.5, False),  # exactly half
        ("ABCDEF ghi", 0.5, False),  # nine letters
        ("ABCDEFG hijklm", 0.5, True),
        ("ABCDEFG hijklmn", 0.5, False),
        ("ABCDEFGHIJ", 0.9, True),
        ("ABCDEFGHIJ", 1.0, False),
        ("ABCDEF ghij 日本", 0.55, True),  # letters without case do not count
    ],
)
def test_a_line_of_ten_cased_letters_or_more_may_have_too_many_capitals(line: str, share: float, many: bool) -> None:
    assert filters.has_many_capitals(line, share) is many


@pytest.mark.parametrize(
    ("line", "least", "few"),
    [
        ("ab 12", 0.5, False),
        ("ab 123", 0.5, True),
        ("a 1", 0.5, False),
        ("a\u0301\u0301 1", 0.75, False),
        ("12", 0.1, True),
    ],
)
def test_letters_and_marks_below_the_share_are_too_few(line: str, least: float, few: bool) -> None:
    assert filters.has_few_letters(line, least) is few


def test_the_languages_of_every_training_text_are_checked() -> None:
    entries: list[dict[str, Any]] = [{"files": ["a.tsv"]}, {"files": ["b.tsv"], "tgt": "xx"}]
    for chosen, message in (
        ({"language": True}, r"filters\.language does not know 'xx'"),
        ({"swapped": "drop"}, "swapped: en and xx cannot be told apart"),
    ):
        with pytest.raises(UsageError, match=message):
            filters.check(texts.bitext_section(*entries, filters=chosen))
        own_filters = [entries[0], {**entries[1], "filters": {}}]
        filters.check(texts.bitext_section(*own_filters, filters=chosen))
        filters.check(texts.bitext_section(entries[0], {**entries[1], "split": "dev"}, filters=chosen))


@pytest.mark.parametrize(("count", "sampled"), [(0, 0), (1, 1), (150, 150), (250, 125), (4000, 100)])
def test_about_a_hundred_pairs_of_a_chunk_are_sampled_without_their_tokens(
    monkeypatch: pytest.MonkeyPatch, count: int, sampled: int
) -> None:
    seen = list[tuple[str, str]]()
    monkeypatch.setattr(filters, "are_swapped", lambda src, tgt, _: seen.append((src, tgt)) or len(seen) % 2)
    src, tgt = ([f"{tokens}{i}" for i in range(count)] for tokens in (">>de<< >>tm<< a ", "b "))
    monkeypatch.setattr(language_id, "is_in", lambda *_: True)
    found = list(filters.sample_of_sides(src, tgt, section()))
    assert seen == [(f"a {i}", f"b {i}") for i in range(0, count, max(1, count // 100))]
    assert found == [not i % 2 for i in range(sampled)]
    assert list(filters.sample_of_sides(src, tgt, Corpus(src="nb", tgt="nn"))) == []


def test_statistics_cover_the_pairs_up_to_the_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are printed even with --quiet."""
    corpus = texts.own(tmp_path / "own", [*texts.pairs(40), ("1", "")], limit=39)
    monkeypatch.setattr(console, "_quiet", True)
    filter_stats.show(corpus, tmp_path / "data" / "own", PrepareOptions(workers=1))
    shown = capsys.readouterr().out
    assert "train.en: 39 pairs read; a pair may have several faults" in " ".join(shown.split())
    assert "empty side" not in shown


def test_there_are_no_statistics_of_trees(tmp_path: Path) -> None:
    corpus = texts.own(tmp_path / "own", texts.pairs(3), format="trees", tgt="labels")
    with pytest.raises(UsageError, match=r"^--stats supports text, not trees\. Remove --stats$"):
        filter_stats.show(corpus, tmp_path / "data", PrepareOptions(workers=1))
