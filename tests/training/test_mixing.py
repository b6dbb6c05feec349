"""Weights of the parts of a corpus: shares of tokens, passes over each part, stages, temperature."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from steps import plan_of

from nmt_cli.corpus.prepare import part_names
from nmt_cli.corpus.store import Corpus, Side
from nmt_cli.recipe import loading, schema
from nmt_cli.system.errors import UsageError
from nmt_cli.training.mixing import Mixing


def corpus(parts: list[tuple[int, int]]) -> Corpus:
    """Return a corpus of parts, each with a number of pairs and the length of all its sentences."""
    lengths = np.repeat([length for _, length in parts], [pairs for pairs, _ in parts])
    offsets = np.append(0, np.cumsum(lengths))
    side = Side(np.ones(offsets[-1], np.uint16), offsets)
    manifest = {"parts": [{"name": str(i), "pairs": pairs} for i, (pairs, _) in enumerate(parts)]}
    return Corpus(Path("none"), manifest, side, side)


def training(**settings: object) -> schema.Training:
    return loading.from_plain({"training": settings}, "test").training


def mixing(parts: list[tuple[int, int]], steps: int = 10, **settings: object) -> Mixing:
    return Mixing(corpus(parts), steps, training(**settings))


def test_without_weights_an_epoch_has_every_sentence_once() -> None:
    mixed = mixing([(300, 5), (20, 9)])
    for epoch in range(3):
        assert sorted(mixed.order(epoch)) == list(range(320))
        plain = np.random.Generator(np.random.Philox([1, epoch])).permutation(320)
        assert (mixed.order(epoch) == plain).all(), "as in a corpus without parts"


def test_the_weights_of_entries_are_those_of_the_parts_of_the_corpus() -> None:
    """Without the real pairs, only the synthetic entries are parts."""
    for real_pairs, expected in ((True, [1, 3, 1, 2]), (False, [1, 2])):
        synthetic = [{"files": ["a"], "model": "m"}, {"files": ["b"], "model": "m", "weight": 2}]
        sources = [{"files": ["c.tsv"], "weight": 3}, {"files": ["d.tsv"], "split": "dev"}]
        settings = {"name": "own", "train_src": ["e"], "train_tgt": ["f"], "real_pairs": real_pairs}
        recipe = loading.from_plain({"corpus": {**settings, "sources": sources, "synthetic": synthetic}}, "a test")
        assert recipe.training.weights == expected
        assert len(part_names(recipe.corpus)) == len(expected)


@pytest.mark.parametrize(("weights", "shares"), [([1, 1], [0.5, 0.5]), ([0.3, 0.9], [0.25, 0.75]), ([0, 2], [0, 1])])
def test_weights_are_shares_of_the_tokens(weights: list[float], shares: list[float]) -> None:
    mixed = mixing([(3000, 5), (200, 9)], weights=weights)
    for epoch in range(4):
        order = mixed.order(epoch)
        tokens = [5 * (order < 3000).sum(), 9 * (order >= 3000).sum()]
        assert np.allclose(np.array(tokens) / (3000 * 5 + 200 * 9), shares, atol=0.001)


@pytest.mark.parametrize("weights", [[5, 1], [1, 5]])
def test_each_part_is_read_in_whole_passes(weights: list[float]) -> None:
    mixed = mixing([(70, 5), (31, 5)], weights=weights)
    order = np.concatenate([mixed.order(epoch) for epoch in range(40)])
    for sentences in (range(70), range(70, 101)):
        times = np.array([(order == sentence).sum() for sentence in sentences])
        assert times.max() - times.min() <= 1, "no sentence is repeated before all others are used"
        assert times.min() >= 5


def test_the_tokens_of_a_part_are_those_of_both_sides() -> None:
    """A target sentence of the second part has three times as many tokens as its source."""
    text = corpus([(400, 4), (100, 4)])
    lengths = np.repeat([4, 12], [400, 100])
    offsets = np.append(0, np.cumsum(lengths))
    text = dataclasses.replace(text, tgt=Side(np.ones(offsets[-1], np.uint16), offsets))
    order = Mixing(text, 10, training(weights=[1, 1])).order(0)
    assert [(order < 400).sum(), (order >= 400).sum()] == [300, 150]


def test_steps_of_a_mix_are_even_although_its_sentences_differ_in_length() -> None:
    """An epoch takes a quarter of its tokens from sentences of 2 and of 60 tokens, whose numbers are random."""
    lengths = np.append(np.full(300, 31), np.tile([2, 60], 150))
    offsets = np.append(0, np.cumsum(lengths))
    side = Side(np.ones(offsets[-1], np.uint16), offsets)
    text = dataclasses.replace(corpus([(300, 31), (300, 31)]), src=side, tgt=side)
    plan = plan_of(text, 310, 1, weights=[3, 1])
    assert plan.steps_per_epoch == 60
    for epoch in range(4):
        sizes = [plan.tokens(plan.micro_batches_of(60 * epoch + step)[0], 60 * epoch)[0] for step in range(60)]
        assert max(sizes) - min(sizes) <= 2 * 60


def test_each_pass_has_an_order_of_its_own() -> None:
    """This holds in every part and stage. Here an epoch takes half of each small part, and the second stage begins with
    a new pass.
    """
    weights = [1, 1, 6]
    mixed = mixing([(40, 4), (40, 4), (80, 4)], weights=weights, stages=[{"from_step": 30, "weights": weights}])
    halves = list[frozenset[int]]()
    for stage, epochs in ((0, [0, 1, 2]), (1, [3, 4, 5, 6])):
        for part in (0, 1):
            taken = [[i - 40 * part for i in mixed.order(epoch).tolist() if i // 40 == part] for epoch in epochs]
            assert [len({*half}) for half in taken] == [20] * len(epochs), stage
            assert sorted(taken[0] + taken[1]) == [*range(40)]
            halves += map(frozenset, taken[::2])
    assert len({*halves}) == len(halves) == 8


def test_temperature_flattens_the_sizes() -> None:
    parts = [(1000, 4), (10, 4)]
    assert mixing(parts, temperature=1).stages[0].shares == ()
    small = [mixing(parts, temperature=temperature).stages[0].shares[1] for temperature in (1.001, 2, 5, 100)]
    assert np.allclose(small, [0.0100, 1 / 11, 1 / (1 + 100**0.2), 0.4885], atol=0.0003)


def test_a_stage_begins_at_its_step_with_a_new_epoch() -> None:
    stages = [{"from_step": 25, "weights": [0, 1]}, {"from_step": 47}]
    mixed = mixing([(100, 4), (100, 4)], weights=[1, 0], stages=stages)
    assert [mixed.locate(step) for step in (0, 9, 10, 24, 25, 46, 47, 58)] == [
        (0, 0), (0, 9), (1, 0), (2, 4), (3, 0), (5, 1), (6, 0), (7, 1),
    ]  # fmt: skip
    parts = [set(mixed.order(epoch) // 100) for epoch in range(8)]
    assert parts == [{0}] * 3 + [{1}] * 3 + [{0, 1}] * 2


def test_steps_follow_the_stages() -> None:
    text = corpus([(100, 4), (100, 9)])
    plan = plan_of(text, 50, 2, weights=[1, 0], stages=[{"from_step": 7, "weights": [0, 1]}])
    parts = [{int(i) // 100 for part in plan.micro_batches_of(step) for i in part} for step in range(14)]
    assert parts == [{0}] * 7 + [{1}] * 7


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": [1]}, r"training\.weights has 1 number, but the corpus has 2 parts"),
        ({"weights": [1, 1, 1]}, r"training\.weights has 3 numbers, but the corpus has 2 parts"),
        (
            {"stages": [{}, {"from_step": 5, "weights": [1]}]},
            r"training\.stages\[1\]\.weights has 1 number,",
        ),
        ({"weights": [0, 0]}, r"training\.weights selects no text"),
    ],
)
def test_wrong_weights_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mixing([(10, 4), (10, 4)], **settings)


def test_an_epoch_with_fewer_sentences_than_steps_is_refused() -> None:
    text = corpus([(100, 1), (10, 90)])
    with pytest.raises(UsageError, match=r"fewer sentences than there are steps in an epoch"):
        plan_of(text, 10, 1, weights=[0, 1]).micro_batches_of(0)


def test_weights_given_with_the_sources_become_training_weights() -> None:
    sources = [{"files": ["a.tsv"], "weight": 2}, {"files": ["dev.tsv"], "split": "dev"}, {"files": ["b.tsv"]}]
    recipe = loading.from_plain({"corpus": {"name": "own", "sources": sources}}, "test")
    assert recipe.training.weights == [2, 1]
    with pytest.raises(UsageError, match=r"training\.stages must be in ascending order"):
        loading.from_plain({"training": {"stages": [{"from_step": 9}, {"from_step": 3}]}}, "test")
