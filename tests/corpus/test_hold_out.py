"""`corpus.hold_out`: sets taken from the user's text that share no side with training."""

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import texts

from nmt_cli.corpus import held_out, hold_out, near_duplicates, readers, store
from nmt_cli.corpus.held_out import HeldOutPair
from nmt_cli.recipe import schema
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError

PAIRS = texts.pairs(400, seed=5)


def naive_groups(pairs: list[tuple[Any, Any]]) -> list[set[int]]:
    """Merge sets of pairs until no two sets have an equal side."""
    sets = [{i} for i in range(len(pairs))]
    joined = True
    while joined:
        joined = False
        for a, b in itertools.combinations(range(len(sets)), 2):
            if any(pairs[i][side] == pairs[j][side] for i in sets[a] for j in sets[b] for side in (0, 1)):
                sets[a] |= sets.pop(b)
                joined = True
                break
    return sets


@pytest.mark.parametrize(("sides", "count"), [(4, 12), (30, 40), (60, 40), (200, 40)])
def test_groups_equal_those_of_merging_pairs_one_by_one(sides: int, count: int) -> None:
    draw = random.Random(sides)
    pairs = [(draw.randrange(sides), draw.randrange(sides)) for _ in range(count)]
    found = hold_out.groups(*np.array(pairs, np.uint64).T)
    expected = {i: min(group) for group in naive_groups(pairs) for i in group}
    assert found.tolist() == [expected[i] for i in range(count)]


def test_a_long_chain_in_any_order_is_one_group() -> None:
    """Each pair shares its target with one neighbor and its source with the other."""
    chain = [(i // 2, (i + 1) // 2) for i in range(3000)]
    random.Random(1).shuffle(chain)
    assert set(hold_out.groups(*np.array(chain, np.uint64).T)) == {0}


def with_duplicates() -> list[tuple[str, str]]:
    """Return text with two more pairs for each pair, which share a side with it except for case or punctuation."""
    draw, made = random.Random(2), list[tuple[str, str]]()
    for i, (src, tgt) in enumerate(PAIRS):
        word = "".join(chr(ord("k") + int(digit)) for digit in str(i))
        made += [(src, tgt), (src.upper(), f"Übersetzung {word} dazu"), (f"source {word} of it", f"{tgt} !")]
    draw.shuffle(made)
    return made


def cut(section: Any, out: Path) -> dict[str, list[tuple[str, str]]]:
    data = store.open_corpus(texts.run(section, out))
    return {split: list(zip(*data.lines(split), strict=True)) for split in ("dev", "test", "general")}


def folded(pairs: list[tuple[str, str]], side: int) -> set[str]:
    return {" ".join(near_duplicates.fold(pair[side])) for pair in pairs}


def test_duplicates_are_held_out_together(tmp_path: Path) -> None:
    text = with_duplicates()
    sets = cut(texts.own(tmp_path / "in", text, hold_out=50), tmp_path / "out")
    assert (len(sets["dev"]), len(sets["test"]), sets["general"]) == (48, 48, [])  # groups of three
    train = [pair for pair in text if pair not in sets["dev"] + sets["test"]]
    for a, b in itertools.combinations((train, sets["dev"], sets["test"]), 2):
        for side in (0, 1):
            assert not folded(a, side) & folded(b, side)
    report = artefact.read_json(tmp_path / "out" / "cleaning.json")
    assert report["dropped"]["in dev or test"]["pairs"] == 96
    for split in ("dev", "test"):
        assert report["twins"][split]["equal"] == {"source": 0, "target": 0, "both": 0}
        lines = [text.index(pair) for pair in sets[split]]
        assert lines == sorted(lines)
        assert {line * 4 // len(text) for line in lines} == {0, 1, 2, 3}  # from all parts of the text


def test_pairs_that_share_a_side_with_other_text_are_not_held_out(tmp_path: Path) -> None:
    """All but four of the 60 pairs share a side with general text or a named set."""
    general = [(f"far {src}", f"weit {tgt}") for src, tgt in PAIRS[60:]]
    general += [(PAIRS[i][0].upper(), f"nichts davon {'x' * i}") for i in range(55)]
    dev = [("not at all this", PAIRS[55][1] + "?"), (general[3][0] + "!", "kein Wort davon")]
    files = {
        f"{kind}_{side}": str(texts.write(tmp_path / f"{kind}.{side}", lines))
        for kind, pairs in (("mix", general), ("dev", dev))
        for side, lines in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True)
    }
    lists = {name: [file] if name.startswith("mix") else file for name, file in files.items()}
    sets = cut(texts.own(tmp_path / "in", PAIRS[:60], hold_out=9, **lists), tmp_path / "out")
    assert sets["dev"] == dev
    assert len(sets["test"]) == 3
    assert set(sets["test"]) < set(PAIRS[56:60])
    assert len(sets["general"]) == 9
    assert set(sets["general"]) <= {*general[:3], *general[4:340]}
    shared = [("a", PAIRS[i][1]) for i in range(20)]  # all in one group
    with pytest.raises(DataError, match=r"no pair of .* can be held out for test, as each shares .* Add a test set"):
        texts.run(texts.own(tmp_path / "one", shared, hold_out=9, **lists), tmp_path / "none")


def test_groups_larger_than_a_set_stay_in_training() -> None:
    group = np.array([0] * 30 + list(range(30, 100)))
    sizes, taken = np.bincount(group, minlength=100), np.zeros(100, bool)
    hold_out.spread(group, sizes, 20, 0.25, taken)
    assert not taken[0]
    assert taken.sum() <= 20
    taken[:] = False
    hold_out.spread(group, sizes, 40, 0.25, taken)
    assert taken[0]
    assert sizes[taken].sum() == 40


def test_repeated_files_and_lines_are_held_out_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section = texts.own(tmp_path / "in", PAIRS + PAIRS[:50] + [(s + " ", t) for s, t in PAIRS[50:90]], hold_out=10)
    twice = {name: getattr(section, name) * 2 for name in ("train_src", "train_tgt")}
    sets = cut(section.model_copy(update=twice), tmp_path / "out")
    held_out = sets["dev"] + sets["test"]
    assert len(held_out) == len(set(held_out)) == 20
    report = artefact.read_json(tmp_path / "out" / "cleaning.json")
    assert report["twins"]["dev"]["equal"] == {"source": 0, "target": 0, "both": 0}
    assert capsys.readouterr().err.count("no dev set is given, so nmt holds out 10 pairs of ") == 1


def test_pairs_that_cleaning_drops_are_neither_counted_nor_held_out(tmp_path: Path) -> None:
    text: list[tuple[Any, Any]] = list(PAIRS)
    for i in range(0, 300, 3):
        text[i] = ("", text[i][1]) if i % 2 else (text[i][0], text[i][0])
    text[0] = (PAIRS[0][0].encode() + b"\xff", PAIRS[0][1])
    sets = cut(texts.own(tmp_path / "in", text, hold_out=20), tmp_path / "out")
    assert len(sets["dev"]) == len(sets["test"]) == 15  # a twentieth of the 300 usable pairs
    assert set(sets["dev"] + sets["test"]) <= {pair for i, pair in enumerate(PAIRS) if i >= 300 or i % 3}


def test_held_out_lines_are_not_cleaned_and_do_not_depend_on_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = [("\ufeff" + PAIRS[0][0], PAIRS[0][1]), *((f"{s}  &amp; so", f"{t} \r") for s, t in PAIRS[1:])]
    section = texts.own(tmp_path / "in", text[:20], hold_out=1)
    raw = [(s.removeprefix("\ufeff"), t.removesuffix("\r")) for s, t in text]
    alone = cut(section, tmp_path / "out")
    assert alone["dev"] + alone["test"]
    assert set(alone["dev"] + alone["test"]) <= set(raw)
    monkeypatch.setattr(readers, "CHUNK", 200)
    many = [(f"{'x' * i} {s}", f"{'x' * i} {t}") for i in range(8) for s, t in PAIRS]
    much = texts.own(tmp_path / "much", many, hold_out=100)
    with_one = hold_out.held_out_pairs(much, map)
    from nmt_cli.corpus.stages import Pool

    with Pool(2) as pool:
        assert hold_out.held_out_pairs(much, pool.map) == with_one
    assert {split: len(pairs) for split, pairs in with_one.items()} == {"dev": 100, "test": 100}


def test_sides_without_words_join_pairs_only_if_they_are_equal() -> None:
    chunk = readers.Chunk([b"?!", b"...", b"..."], [b"a", b"b", b"c"])
    section = texts.corpus({"name": "own", "train_src": ["a"], "train_tgt": ["b"]})
    first = hold_out.groups(*hold_out.hash_chunk(section, chunk)[:, :2].T)
    assert first.tolist() == [0, 1, 1]


def test_groups_are_spread_evenly_up_to_the_wanted_number() -> None:
    """The phase shifts all chosen groups alike. A group of three pairs takes the place of three groups."""

    def drawn(group: list[int], wanted: int, phase: float, *before: int) -> list[int]:
        sizes, taken = np.bincount(group, minlength=max(group) + 1), np.zeros(max(group) + 1, bool)
        taken[list(before)] = True
        hold_out.spread(np.array(group), sizes, wanted, phase, taken)
        return np.flatnonzero(taken).tolist()

    alone = list(range(20))
    assert drawn(alone, 4, 0.25) == [1, 6, 11, 16]
    assert drawn(alone, 4, 0.75) == [3, 8, 13, 18]
    assert drawn(alone, 4, 0.75, 8, 13) == [3, 8, 9, 13, 14, 18]
    assert drawn([0, 1, 1, 1, *range(4, 20)], 4, 0.25) == [1, 16]
    assert drawn([*range(16), 16, 16, 16, 19], 4, 0.25) == [1, 6, 11, 19]
    assert drawn([0, 1, 1, 1, 1, *range(5, 20)], 4, 0.25) == [1]


@pytest.mark.parametrize(("size", "count"), [(12, 240), (13, 0)])
def test_a_group_is_at_most_a_twentieth_of_a_large_set(tmp_path: Path, size: int, count: int) -> None:
    letters = str.maketrans("0123456789", "abcdefghij")  # folding makes all numbers equal
    text = [
        (f"x{min(i // size, 4800 // size - 1)}".translate(letters), f"y{i}".translate(letters)) for i in range(4800)
    ]
    section = texts.own(tmp_path, text, hold_out=240)
    if count:
        held_out = hold_out.held_out_pairs(section, map)
        assert {split: len(pairs) for split, pairs in held_out.items()} == {"dev": count, "test": count}
    else:
        with pytest.raises(DataError, match=r"no pair of .* can be held out for dev"):
            hold_out.held_out_pairs(section, map)


def test_lines_are_read_unchanged_from_any_chunk() -> None:
    sides = [["\ufeff a &amp; ", "b\r", "c\r\r", "", "ü"], ["A", " B\t\r", "\ufeffC", "D", "Ü\u2028 "]]
    raw = [[line.encode() for line in side] for side in sides]
    chunks = [
        readers.Chunk([*raw[0][:2]], [*raw[1][:2]]),
        readers.Chunk([], []),
        readers.Chunk([*raw[0][2:]], [*raw[1][2:]]),
    ]
    expected = [(" a &amp; ", "A"), ("b", " B\t"), ("c\r", "C"), ("", "D"), ("ü", "Ü\u2028 ")]
    for lines in ([0, 1, 2, 3, 4], [0, 4], [1, 2], [3], []):
        found = hold_out.pairs_at(schema.Corpus(), chunks, np.array(lines, int))
        assert list(found) == [(*expected[line], "en", "de") for line in lines]


def test_held_out_sources_begin_with_the_tokens_of_their_text() -> None:
    german, french = {"files": ["a", "b"]}, {"files": ["c", "d"], "tgt": "fr", "tag": "web"}
    section = texts.corpus({"name": "own", "src": "en", "tgt": "de", "sources": [german, french]})
    chunks = [readers.Chunk([b"a"], [b"b"], source=index) for index in (0, 1)]
    found = [*hold_out.pairs_at(section, chunks, np.array([0, 1]))]
    assert [pair.src for pair in found] == [section.prefix(0) + "a", section.prefix(1) + "a"]
    assert [pair[1:] for pair in found] == [("b", "en", "de"), ("b", "en", "fr")]
    assert len({section.prefix(0), section.prefix(1), ""}) == 3


def test_no_file_is_read_if_nothing_is_to_be_held_out() -> None:
    files: dict[str, Any] = {"name": "own", "train_src": ["absent"], "train_tgt": ["absent"]}
    sets = {f"{split}_{side}": "absent" for split in ("dev", "test", "general") for side in ("src", "tgt")}
    assert hold_out.held_out_pairs(texts.corpus(files), map) == {}
    assert hold_out.held_out_pairs(texts.corpus({**files, **sets, "hold_out": 5}), map) == {}


def test_the_same_pairs_are_held_out_in_every_version(tmp_path: Path) -> None:
    """Each set takes 4 of 80 pairs. The sets begin at a quarter, three quarters and half of an interval."""
    own = [(f"x {'y' * i}", f"z {'y' * i}") for i in range(1, 81)]
    general = [(f"v {'y' * i}", f"w {'y' * i}") for i in range(1, 81)]
    files = {
        f"mix_{name}": [str(texts.write(tmp_path / f"mix.{name}", [pair[side] for pair in general]))]
        for side, name in enumerate(("src", "tgt"))
    }
    found = hold_out.held_out_pairs(texts.own(tmp_path / "in", own, hold_out=9, **files), map)
    lines = {split: [pair.src.count("y") - 1 for pair in pairs] for split, pairs in found.items()}
    assert lines == {"dev": [5, 25, 45, 65], "test": [15, 35, 55, 75], "general": [10, 30, 50, 70]}


def test_held_out_pairs_share_no_side_with_sets_among_the_sources(tmp_path: Path) -> None:
    """Held-out sources begin with a tag. Pairs of the test set with a low score do not count."""
    shared = [(f"other {i}", tgt) for i, (_, tgt) in enumerate(PAIRS[:190])] + [(src, "x") for src, _ in PAIRS[190:]]
    rows = [f"{src}\t{tgt}\t{int(i < 380)}" for i, (src, tgt) in enumerate(shared)]
    entries: list[dict[str, Any]] = [
        {"files": [str(texts.write(tmp_path / "a.tsv", [f"{src}\t{tgt}" for src, tgt in PAIRS]))], "tag": "web"},
        {"files": [str(texts.write(tmp_path / "b.tsv", rows))], "split": "test", "score": "3", "min_score": 0.5},
    ]
    found = hold_out.held_out_pairs(texts.bitext_section(*entries, hold_out=9), map)
    assert found.keys() == {"dev"}
    assert {pair.src.removeprefix(">>web<< ") for pair in found["dev"]} <= {src for src, _ in PAIRS[380:]}
    assert len(found["dev"]) == 9


def test_languages_of_sets_survive_as_runs_of_lines(tmp_path: Path) -> None:
    pairs = [
        ("a", "b", "fr", "en"),
        ("c", "d", "de", "en"),
        ("e", "f", "de", "en"),
        ("g", "h", "de", "fr"),
        ("i", "j", "fr", "en"),
    ]
    sets = {"dev": [HeldOutPair(*pair) for pair in pairs], "test": [HeldOutPair("\u2028 k", "", "en", "de")]}
    runs = held_out.languages_of(sets)
    assert runs == {
        "dev": [("fr", "en", 1), ("de", "en", 2), ("de", "fr", 1), ("fr", "en", 1)],
        "test": [("en", "de", 1)],
    }
    held_out.write(tmp_path, sets)
    assert held_out.read(tmp_path, runs) == sets
    found = store.lines_by_pair({"languages": runs}, "dev")
    assert found == {("fr", "en"): [0, 4], ("de", "en"): [1, 2], ("de", "fr"): [3]}
    assert store.lines_by_pair({"languages": runs}, "test") == store.lines_by_pair({}, "dev") == {}


def test_pairs_of_a_set_with_tokens_are_dropped_from_training(tmp_path: Path) -> None:
    rows = [f"{src}\t{tgt}" for src, tgt in PAIRS[:200]]
    for name, lines in (("a.tsv", rows[:100]), ("b.tsv", rows[100:]), ("dev.tsv", rows[190:])):
        texts.write(tmp_path / name, lines)
    entries: list[dict[str, Any]] = [{"files": [str(tmp_path / f"{name}.tsv")], "tgt": "fr"} for name in ("b", "dev")]
    entries[1]["split"] = "dev"
    section = texts.bitext_section(
        {"files": [str(tmp_path / "a.tsv")]}, *entries, tokenizer={"vocabulary_size": 400}, cleaning={"max_ratio": None}
    )
    out = texts.run(section, tmp_path / "out")
    assert store.open_corpus(out).lines("dev")[0][0] == f">>fr<< {PAIRS[190][0]}"
    assert artefact.read_json(out / "cleaning.json")["dropped"]["in dev or test"]["pairs"] == 10
