"""Near-duplicates of held-out lines in the training text: found exactly, counted, shown and dropped."""

import random
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import texts

from nmt_cli.corpus import cleaning, near_duplicates
from nmt_cli.scoring import score
from nmt_cli.scoring.score import ScoreOptions
from nmt_cli.storage import artefact

PAIRS = texts.pairs(300, seed=3)


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("The 3 Dogs, “don't” – 1,000 km!", "the 0 dogs don t 0 0 km"),
        ("Straße ÉTÉ", "strasse été"),
        ("他喜欢 tea。", "他 喜 欢 tea"),
        ("いぬ、イヌ 犬５", "い ぬ イ ヌ 犬 0"),
        ("개는 x² ½ _a_ a\u0301", "개는 x0 0 a a\u0301"),
        ("हिन्दी में", "हिन्दी में"),
        ("10 of 12 in 5", "0 of 0 in 0"),
        ("...", ""),
    ],
)
def test_folding_keeps_words_without_case_digits_and_punctuation(line: str, folded: str) -> None:
    assert " ".join(near_duplicates.fold(line)) == folded


def test_exactly_the_lines_within_the_limit_are_found() -> None:
    """Compare with the exact Jaccard index of all pairs of lines, many of which are right at the limit."""
    rng = random.Random(9)
    words = [f"w{'x' * i}" for i in range(14)]
    lines = [" ".join(rng.choices(words, k=rng.randint(0, 9))) for _ in range(400)]
    held_out, train = lines[:200], lines[200:]
    index, on_the_limit = near_duplicates.Index(held_out), 0
    for line in train:
        equal, near = index.find(line)
        expected = set()
        for i, other in enumerate(held_out):
            a, b = set(line.split()), set(other.split())
            jaccard = Fraction(len(a & b), len(a | b) or 1)
            expected |= {i} if jaccard >= Fraction(3, 5) else set()
            on_the_limit += jaccard == Fraction(3, 5)
        assert near == expected
        assert set(equal) == {i for i, other in enumerate(held_out) if other == line != ""}
    assert on_the_limit > 50


@pytest.mark.parametrize("rule", ["digit", "word", "order", "case", "stop"])
def test_every_planted_near_duplicate_is_found(rule: str) -> None:
    def plant(line: str) -> str:
        words = line.split()
        if rule == "digit":
            return " ".join([*words[:-1], words[-1][:-1] + "7"])
        if rule == "word":
            return " ".join([*words[:-1], "another"]) if len(set(words)) > 3 else line
        if rule == "order":
            return " ".join([words[1], words[0], *words[2:]])
        return line.upper() if rule == "case" else line + " ."

    held_out = near_duplicates.HeldOutIndex(*zip(*PAIRS[:100], strict=True))
    train = [(plant(src), "nothing of it") for src, _ in PAIRS[:100]] + PAIRS[100:]
    flags, near = held_out.look_up(*zip(*train, strict=True))
    assert (flags & near_duplicates.NEAR_SOURCE).all()
    assert near[:100].all()
    equal = rule in ("digit", "case", "stop")
    assert np.count_nonzero(flags & near_duplicates.EQUAL_SOURCE) == 100 if equal else True
    assert not (flags & near_duplicates.EQUAL_PAIR).any()


def test_one_similar_side_makes_a_near_duplicate() -> None:
    held_out = near_duplicates.HeldOutIndex(["the old men see a dog"], ["die alten Männer sehen einen Hund"])
    source, target = ("the old men see a cat", "ganz anders"), ("unlike it", "Die alten Männer sehen einen Hund!")
    flags, near = held_out.look_up(*zip(source, target, ("neither", "keins"), strict=True))
    assert near.tolist() == [True, True, False]
    assert flags.tolist() == [near_duplicates.NEAR_SOURCE | near_duplicates.NEAR_TARGET | near_duplicates.EQUAL_TARGET]


def test_near_duplicates_are_counted_shown_and_dropped_on_request(tmp_path: Path) -> None:
    test = [("The 4 old men see a dog.", "Die 4 alten Männer sehen einen Hund."), ("Far away", "Ganz weit weg")]
    near = [
        ("THE 5 old men see a dog", "etwas ganz anderes"),
        ("the 4 old men see a cat", "die 4 alten Männer sehen einen Hund"),
    ]
    sides = {
        f"test_{side}": str(texts.write(tmp_path / side, lines))
        for side, lines in zip(("src", "tgt"), zip(*test, strict=True), strict=True)
    }
    out = texts.run(texts.own(tmp_path / "in", [*PAIRS, *near], **sides), tmp_path / "out")
    found = artefact.read_json(out / "cleaning.json")["twins"]
    counts = {"equal": {"source": 1, "target": 1, "both": 0}, "near": {"source": 1, "target": 1, "both": 1}}
    assert found == {"test": {"lines": 2, **counts, "near_lines": [1]}}
    report = score.evaluate(ScoreOptions(corpus=out, details=True), [test[0][1], "Nichts davon ist hier"])
    assert "near-duplicates in training: 1 of 2 test lines (source 1, target 1, both in one pair 1)" in report.text()
    parts = report.bleu_by_near_duplicates()
    assert [lines for lines, _ in parts.values()] == [1, 1]
    assert parts["with"][1].score == pytest.approx(100)
    assert parts["without"][1].score < 20
    assert "BLEU of the 1 line with near-duplicates: 100.00\n" in report.markdown()  # one line has no interval
    section = texts.own(tmp_path / "in", [*PAIRS, *near], **sides, cleaning={"drop_near_twins": True})
    dropped = artefact.read_json(texts.run(section, tmp_path / "dropped") / "cleaning.json")
    assert dropped["dropped"][cleaning.NEAR_DUPLICATE]["pairs"] == 2
    assert dropped["kept"] == len(PAIRS)
    assert dropped["twins"]["test"]["near_lines"] == []


def test_near_duplicates_are_counted_by_split_and_side(tmp_path: Path) -> None:
    sets = {
        "dev": [("R&amp;D is fun", "x y z"), ("a b c", "lone")],
        "test": [("d e f", "g h i")],
        "general": [("j k", "l m")],
    }
    for split, pairs in sets.items():
        for side, lines in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
            texts.write(tmp_path / f"{split}.{side}", lines)
    held_out = near_duplicates.load(tmp_path, True, "de")
    train = [
        ("R&D is fun", "x y z"),
        ("nothing", "x y z"),
        ("g h i", "d e f"),
        ("j k", "other"),
        ("D E F!", "g h w i"),
        ("q", "lone"),
    ]
    flags, near = held_out.look_up(*zip(*train, strict=True))
    assert near.tolist() == [True, True, False, True, True, True]
    none = {"source": 0, "target": 0, "both": 0}
    dev, both = {"source": 1, "target": 2, "both": 1}, {"source": 1, "target": 1, "both": 1}
    assert near_duplicates.summary(tmp_path, flags) == {
        "dev": {"lines": 2, "equal": dev, "near": dev, "near_lines": [1, 2]},
        "test": {"lines": 1, "equal": none | {"source": 1}, "near": both, "near_lines": [1]},
        "general": {"lines": 1, "equal": none | {"source": 1}, "near": none | {"source": 1}, "near_lines": [1]},
    }
    assert near_duplicates.sentence(
        "dev", {"lines": 2000, "near": {"source": 1000, "target": 3, "both": 2}, "near_lines": [1, 5]}
    ) == ("near-duplicates in training: 2 of 2,000 dev lines (source 1,000, target 3, both in one pair 2)")
    as_written = near_duplicates.load(tmp_path, False, "de").look_up(["R&D is fun", "R&amp;D is fun"], ["", ""])
    assert as_written[1].tolist() == [True, True]  # four of five words are shared, then all of them
    assert as_written[0].tolist() == [near_duplicates.NEAR_SOURCE | near_duplicates.EQUAL_SOURCE, 0, 0, 0]
    apart = near_duplicates.HeldOutIndex(["a b c", "d e f"], ["g h i", "j k l"])
    flags, _ = apart.look_up(["a b c"], ["j k l"])  # the source of one line, the target of the other
    assert flags.tolist() == [
        near_duplicates.NEAR_SOURCE | near_duplicates.EQUAL_SOURCE,
        near_duplicates.NEAR_TARGET | near_duplicates.EQUAL_TARGET,
    ]
    trees = near_duplicates.load(tmp_path, True, near_duplicates.LABELS)
    assert (trees.count, near_duplicates.summary(tmp_path, trees.look_up(["a b c"], ["x y z"])[0])) == (0, {})
