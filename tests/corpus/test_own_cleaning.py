"""The `cleaning` settings of an entry of corpus.sources apply to the text of that entry only."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import texts
from texts import bitext_section

from nmt_cli.corpus import cleaning, store, synthetic
from nmt_cli.corpus.readers import Chunk
from nmt_cli.corpus.tokenizer import Tokenizer, train
from nmt_cli.recipe import schema
from nmt_cli.storage import artefact
from nmt_cli.transformer import config

Pairs = list[tuple[str, str]]
GOOD = texts.pairs(60)
DEV = [("the small green house sleeps near the old tree", "das kleine grüne haus schläft bei dem baum")]
PLAIN = {"max_tokens": 40, "max_ratio": 4, "drop_near_twins": False}
LONG = " ".join(f"{word} 7" for word in texts.EN)
# For each setting: a value that PLAIN and the defaults do not have, pairs to clean, and how many of these remain with
# the usual value and with this one.
CASES: dict[str, tuple[Any, Pairs, int, int]] = {
    "drop_copies": (False, [("same {}", "same {}")], 0, 1),
    "check_script": (False, [("пример текста {}", "beispiel text {}")], 0, 1),
    "drop_duplicates": (False, [("twice {}", "zweimal {}")] * 3, 1, 3),
    "max_tokens": (None, [(LONG + " {}", LONG + " x {}")], 0, 1),
    "max_ratio": (None, [("one {}", "ein text von vielen worten ist viel zu lang {}")], 0, 1),
    "drop_near_twins": (True, [("the small green house sleeps near the old {}", "etwas {}")], 1, 0),
}


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    file.write_bytes(train([line for pair in [*GOOD, *DEV] for line in pair], 400))
    return file


def prepared(
    tmp_path: Path, tokenizer_file: Path, several: list[Pairs], settings: list[Any], held_out: Pairs = DEV
) -> list[Pairs]:
    """Prepare each text with its own `cleaning` settings, and a dev set. Return the remaining pairs of each text."""
    entries: list[dict[str, Any]] = []
    for number, (text, own) in enumerate(zip(several, settings, strict=True)):
        file = texts.write(tmp_path / f"{number}.tsv", (f"{src}\t{tgt}" for src, tgt in text))
        entries.append({"files": [str(file)], "cleaning": own})
    dev = texts.write(tmp_path / "dev.tsv", (f"{src}\t{tgt}" for src, tgt in held_out))
    entries.append({"files": [str(dev)], "split": "dev"})
    section = bitext_section(*entries, cleaning=PLAIN, tokenizer={"file": str(tokenizer_file)})
    corpus = store.open_corpus(texts.run(section, tmp_path / "out"))
    model = Tokenizer(tokenizer_file)
    sides = [
        model.decode([side.ids[side.offsets[i] : side.offsets[i + 1] - 1].tolist() for i in range(len(side))])
        for side in (corpus.src, corpus.tgt)
    ]
    pairs = list(zip(*sides, strict=True))
    return [[pairs.pop(0) for _ in range(part)] for part in corpus.parts]


@pytest.mark.parametrize("setting", CASES)
@pytest.mark.parametrize("own", [0, 1])
def test_each_setting_applies_to_its_own_text(tmp_path: Path, tokenizer_file: Path, setting: str, own: int) -> None:
    value, pairs, usual, other = CASES[setting]
    several = [[*GOOD[:30], *_named(pairs, "first")], [*GOOD[30:], *_named(pairs, "second")]]
    settings: list[Any] = [None, None]
    settings[own] = {**PLAIN, setting: value}
    left = prepared(tmp_path, tokenizer_file, several, settings)
    for number, (text, name) in enumerate(zip(left, ("first", "second"), strict=True)):
        assert text[:30] == GOOD[30 * number : 30 * number + 30]
        count = other if number == own else usual
        assert Counter(text[30:]) == Counter(_named(pairs, name)[:count])


def _named(pairs: Pairs, name: str) -> Pairs:
    return [(src.format(name), tgt.format(name)) for src, tgt in pairs]


@pytest.mark.parametrize("own", [0, 1])
def test_a_source_may_keep_its_entities(tmp_path: Path, tokenizer_file: Path, own: int) -> None:
    settings: list[Any] = [None, None]
    settings[own] = {**PLAIN, "unescape": False}
    raw, repaired = ("this &amp; that", "dies &amp; das"), ("this & that", "dies & das")
    left = prepared(tmp_path, tokenizer_file, [[*GOOD[:30], raw], [*GOOD[30:], raw]], settings)
    assert [text[-1] for text in left] == ([raw, repaired] if own == 0 else [repaired, raw])


def test_held_out_pairs_are_dropped_however_a_source_is_repaired(tmp_path: Path, tokenizer_file: Path) -> None:
    raw = ("this &amp; that", "dies &amp; das")
    several = [[*GOOD[:30], raw], [*GOOD[30:], raw]]
    left = prepared(tmp_path, tokenizer_file, several, [{**PLAIN, "unescape": False}, None], [raw])
    assert left == [GOOD[:30], GOOD[30:]]
    report = artefact.read_json(tmp_path / "out" / "cleaning.json")
    assert report["twins"]["dev"]["equal"] == {"source": 0, "target": 0, "both": 0}


@pytest.mark.parametrize(("settings", "kept"), [([{**PLAIN, "drop_duplicates": False}, None], [2, 0]),
                                                ([None, {**PLAIN, "drop_duplicates": False}], [1, 2])])  # fmt: skip
def test_a_pair_is_a_duplicate_of_pairs_in_any_source(
    tmp_path: Path, tokenizer_file: Path, settings: list[Any], kept: list[int]
) -> None:
    """The `drop_duplicates` of a source decides on its own pairs, even if an earlier source keeps the same pair."""
    pair = ("twice here", "zweimal hier")
    left = prepared(tmp_path, tokenizer_file, [[*GOOD[:30], pair, pair], [*GOOD[30:], pair, pair]], settings)
    assert [text.count(pair) for text in left] == kept


def test_lines_to_translate_are_repaired_like_their_source(tmp_path: Path) -> None:
    entries: list[dict[str, Any]] = [{"files": ["a.tsv"], "cleaning": {"unescape": False}}, {"files": ["b.tsv"]}]
    section = bitext_section(*entries, synthetic=[{"model": "m"}])
    chunks = [Chunk([b"a &amp; 1", b"held &amp; out"], [b"x"] * 2, source=0)]
    chunks.append(Chunk([b"b &amp; 2", b"held &amp; out"], [b"x"] * 2, source=1))
    [entry], stats = section.synthetic, cleaning.CleaningStats()
    inputs = synthetic.Inputs(section, tmp_path, tmp_path, [("held &amp; out", "x")], lambda: chunks)
    synthetic.select_lines(entry, inputs, tmp_path / "lines", stats)
    assert (tmp_path / "lines").read_text() == "a &amp; 1\nb & 2\n"
    assert stats.dropped == {cleaning.HELD_OUT: 2}


def test_the_largest_max_tokens_of_all_sources_limits_lines_to_translate() -> None:
    """Longer lines are split before translation."""

    def limit(*own: int | None, corpus: int | None = 100) -> int | None:
        entries = [{"files": [f"{i}.tsv"], "cleaning": {"max_tokens": most}} for i, most in enumerate(own)]
        entries.append({"files": ["more.tsv"]})
        section = bitext_section(*entries, cleaning={"max_tokens": corpus})
        return config.from_recipe(schema.Recipe(corpus=section), 400).max_tokens

    assert limit() == 100
    assert limit(50, 20) == 100
    assert limit(50, 200) == 200
    assert limit(50, None) is None
    assert limit(50, corpus=None) is None
