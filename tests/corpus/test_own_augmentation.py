"""Augmentation of each part of a corpus by its own settings."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import texts

from nmt_cli.corpus import augmentation, damage
from nmt_cli.corpus.augmentation import Augmentation, augment_block
from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.recipe.text_source import Augment

ENDS = (30, 30, 70, 90, 100)  # of parts: the second is empty, the third and fourth span two blocks
BLOCK = 40
ALL = dict.fromkeys(Augment.model_fields, 0.3)
Lines = list[tuple[list[int], list[int]]]


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(augmentation, "BLOCK", BLOCK)
        patch.setattr(damage, "STOPS", "0123456789")  # the lines end with numbers
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    directory = tmp_path_factory.mktemp("parts")
    text = texts.pairs(100)
    text[99] = (" ".join(src for src, _ in texts.pairs(5, seed=3)), " ".join(tgt for _, tgt in texts.pairs(5, seed=3)))
    return open_corpus(texts.run(texts.own(directory / "in", text), directory / "data"))


def augmented(
    corpus: Corpus, *settings: dict[str, float], whole: dict[str, float] | None = None, seed: int = 1
) -> Lines:
    """Return the lines of an epoch, with the settings of each part, or with those of the whole corpus."""
    parts = tuple(zip(ENDS, [Augment(**each) for each in settings], strict=False))
    how = Augmentation(corpus.directory, corpus.identity, Augment(**(whole or {})), ("en", "de"), seed, (), parts)

    def side(number: int) -> Iterator[list[int]]:
        for block in range(3):
            ids, lengths = augment_block(how, (0, block))[number]
            yield from (line.tolist() for line in np.split(ids, np.cumsum(lengths)[:-1]))

    return list(zip(side(0), side(1), strict=True))


def plain(corpus: Corpus) -> Lines:
    return augmented(corpus)


OWN = [{"typos": 0.3, "bpe_dropout": 0.2}] * 5


@pytest.fixture(scope="module")
def alike(corpus: Corpus) -> Lines:
    """The lines of an epoch whose parts all have the settings OWN."""
    return augmented(corpus, *OWN)


@pytest.mark.parametrize("kind", Augment.model_fields)
@pytest.mark.parametrize("part", [0, 2, 3, 4])
def test_the_settings_of_a_part_change_no_byte_of_the_others(
    corpus: Corpus, alike: Lines, kind: str, part: int
) -> None:
    after = augmented(corpus, *OWN[:part], {kind: 0.7}, *OWN[part + 1 :])
    start, end = (0, *ENDS)[part], ENDS[part]
    assert after[:start] == alike[:start]
    assert after[end:] == alike[end:]
    assert after[start:end] != alike[start:end]


def test_a_part_without_augmentation_keeps_its_text(corpus: Corpus) -> None:
    lines, unchanged = augmented(corpus, ALL, {}, {}, ALL, {}), plain(corpus)
    assert lines[30:70] == unchanged[30:70]
    assert lines[90:] == unchanged[90:]
    assert lines[:30] != unchanged[:30]
    assert lines[70:90] != unchanged[70:90]


def test_lines_of_two_parts_are_never_joined(corpus: Corpus) -> None:
    """Even if both have the same settings."""
    for seed in range(5):
        lines = augmented(corpus, *[{"joined": 1}] * 5, seed=seed)
        assert all(lines[start][0] for start in (0, 30, 70, 90))
        assert not all(src for src, _ in lines)


def test_blocks_within_a_part_are_augmented_as_if_the_corpus_had_only_this_part(corpus: Corpus) -> None:
    """The text of a pair depends only on the seed, the epoch and the position of the pair."""
    whole = augmented(corpus, whole=ALL)
    assert augmented(corpus, *[ALL] * 5)[:30] != whole[:30], "a part that ends within a block is augmented differently"
    parts: Any = ((40, Augment(typos=1)), (100, Augment(**ALL)))
    how = Augmentation(corpus.directory, corpus.identity, Augment(), ("en", "de"), 1, (), parts)
    expected = Augmentation(corpus.directory, corpus.identity, Augment(**ALL), ("en", "de"), 1)
    for block in (1, 2):
        for one, two in zip(augment_block(how, (0, block)), augment_block(expected, (0, block)), strict=True):
            assert all(np.array_equal(left, right) for left, right in zip(one, two, strict=True))


def test_one_part_is_augmented_like_the_corpus(corpus: Corpus, tmp_path: Path) -> None:
    parts: Any = ((100, Augment(**ALL)),)
    how = Augmentation(corpus.directory, corpus.identity, Augment(), ("en", "de"), 1, (), parts)
    whole = augmented(corpus, whole=ALL)
    found = [line.tolist() for block in range(3) for ids, lengths in augment_block(how, (0, block))[:1]
             for line in np.split(ids, np.cumsum(lengths)[:-1])]  # fmt: skip
    assert found == [src for src, _ in whole]
