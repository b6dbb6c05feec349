"""The sentences and the dropout of each step, for every corpus and seed."""

import dataclasses
import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import plan_of

from nmt_cli.corpus import store
from nmt_cli.corpus.store import Corpus, Side
from nmt_cli.recipe import schema
from nmt_cli.training import batches, mixing
from nmt_cli.training.batches import BatchPlan, default_memory_tokens, group_micro_batches
from nmt_cli.transformer.model import PAD

lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)


def corpus_of(sentence_lengths: list[tuple[int, int]]) -> Corpus:
    """Return a corpus in memory. Sentence i repeats the id i + 3 (target side: i + 103) and ends with EOS (2)."""
    sides = []
    for side in (0, 1):
        sizes = np.array([pair[side] for pair in sentence_lengths])
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        ids = np.concatenate([np.append(np.full(n, i + 3 + 100 * side)[1:], 2)[:n] for i, n in enumerate(sizes)])
        sides.append(Side(ids.astype("<u2"), offsets))
    return Corpus(Path("nowhere"), {}, sides[0], sides[1])


def skewed(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Return lengths like those of real sentences: mostly short, some long, both sides alike."""
    draw = np.random.default_rng(seed)
    src = np.clip(draw.lognormal(3, 0.6, count), 1, 250).astype(int)
    tgt = np.clip(src * draw.normal(1, 0.15, count), 1, 250).astype(int)
    return list(zip(src.tolist(), tgt.tolist(), strict=True))


def epoch(plan: BatchPlan, number: int) -> list[list[list[int]]]:
    first = number * plan.steps_per_epoch
    return [[m.tolist() for m in plan.micro_batches_of(first + i)] for i in range(plan.steps_per_epoch)]


@pytest.mark.parametrize("weights", [[], [1, 3]])
def test_reading_a_corpus_in_blocks_does_not_change_the_plan(
    monkeypatch: pytest.MonkeyPatch, weights: list[float]
) -> None:
    text = dataclasses.replace(corpus_of(skewed(700)), manifest={"parts": [{"pairs": 200}, {"pairs": 500}]})

    def plan() -> list[Any]:
        made = plan_of(text, 90, 2, weights=weights)
        longest = made.longest_pairs(300, torch.device("cpu")).src.lengths_B.tolist()
        return [epoch(made, 0), epoch(made, 1), made.longest, longest, text.seen_tokens]

    whole = plan()
    assert whole[2] == max(max(pair) for pair in skewed(700))
    assert whole[4] == math.ceil(np.quantile([src for src, _ in skewed(700)], 0.999))
    for module in (store, batches):
        monkeypatch.setattr(module, "BLOCK", 33)
    assert plan() == whole


def test_many_sentences_are_shuffled_in_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sentence occurs once, and its position does not depend on its number."""
    monkeypatch.setattr(mixing, "LARGE", 9999)
    monkeypatch.setattr(mixing, "BLOCK", 3000)
    orders = [mixing.shuffled(np.random.Generator(np.random.Philox([seed])), 10_000) for seed in (1, 1, 2)]
    assert (orders[0] == orders[1]).all()
    assert (orders[0] != orders[2]).any()
    assert (np.sort(orders[0]) == np.arange(10_000)).all()
    neighbors = np.diff(orders[0].astype(int))
    assert 3000 < np.abs(neighbors).mean() < 3700, "the mean distance of two random numbers is a third of their range"
    assert abs(np.corrcoef(orders[0], np.arange(10_000))[0, 1]) < 0.05


@settings(max_examples=25, deadline=None)
@given(lengths, st.integers(1, 200), st.integers(1, 9), st.integers(0, 2**31))
def test_an_epoch_holds_every_sentence_exactly_once(
    pairs: list[tuple[int, int]], tokens: int, micro_batches: int, seed: int
) -> None:
    plan = plan_of(corpus_of(pairs), tokens, micro_batches, seed)
    assert 1 <= plan.steps_per_epoch <= len(pairs)
    for number in (0, 3):
        cut = epoch(plan, number)
        assert all(len(step) == micro_batches for step in cut)
        assert all(any(step) for step in cut), "no step is empty"
        assert sorted(i for step in cut for m in step for i in m) == list(range(len(pairs)))
        for step in cut:
            keys = [(max(pairs[i]), sum(pairs[i]), i) for m in step for i in m]
            assert keys == sorted(keys), "by length, then by cost, then by number"


def test_steps_change_only_where_one_would_be_empty() -> None:
    """Three sentences make three steps, although one is long. If no step is empty, the cost alone decides."""
    plan = plan_of(corpus_of([(1, 1), (90, 90), (1, 1)]), 31, 2, 1)
    assert [sum(map(len, step)) for step in epoch(plan, 0)] == [1, 1, 1]
    assert batches.without_empty_parts([0, 0, 0, 3]) == [0, 1, 2, 3]
    assert batches.without_empty_parts([0, 3, 3, 3]) == [0, 1, 2, 3]
    assert batches.without_empty_parts([0, 4, 4, 9]) == [0, 4, 5, 9]
    for bounds in ([0, 4, 5, 9], [0, 1, 8, 9], [0, 9]):
        assert batches.without_empty_parts(bounds) == bounds


@settings(max_examples=40, deadline=None)
@given(lengths, st.integers(1, 200), st.integers(0, 2**31), st.permutations(range(12)))
def test_a_step_depends_only_on_seed_and_number(
    pairs: list[tuple[int, int]], tokens: int, seed: int, order: list[int]
) -> None:
    corpus = corpus_of(pairs)
    in_order = plan_of(corpus, tokens, 3, seed)
    expected = [[m.tolist() for m in in_order.micro_batches_of(step)] for step in range(12)]
    out_of_order = plan_of(corpus, tokens, 3, seed)
    for step in order:  # a resumed run may start at any step
        assert [m.tolist() for m in out_of_order.micro_batches_of(step)] == expected[step]


def test_two_threads_may_ask_for_steps_of_different_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, cut = corpus_of(skewed(300)), batches.cut_evenly
    expected = epoch(plan_of(corpus, 500, 4, 1), 0)
    plan = plan_of(corpus, 500, 4, 1)

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.undo()
        plan.micro_batches_of(plan.steps_per_epoch)  # by the other thread
        return cut(*arguments)

    monkeypatch.setattr(batches, "cut_evenly", interrupted)
    assert [m.tolist() for m in plan.micro_batches_of(0)] == expected[0]


@pytest.mark.parametrize(
    ("costs", "parts", "bounds"),
    [([1] * 10, 5, [0, 2, 4, 6, 8, 10]), ([1, 1, 1, 1, 4], 2, [0, 4, 5]), ([5], 3, [0, 1, 1, 1]),
     ([2, 9, 2], 1, [0, 3]), ([1, 2, 3, 4, 5, 6], 3, [0, 4, 5, 6]), ([9, 1, 1], 3, [0, 1, 1, 3])],
)  # fmt: skip
def test_parts_of_nearly_equal_cost(costs: list[int], parts: int, bounds: list[int]) -> None:
    for size in (1, 2, 3, 99):
        blocks = [np.array(costs[first : first + size], np.uint16) for first in range(0, len(costs), size)]
        assert batches.cut_evenly(blocks, sum(costs), parts) == bounds


def test_a_step_waits_for_its_copy_and_keeps_its_memory_on_the_gpu() -> None:
    done, stream = list[Any](), object()
    event = SimpleNamespace(wait=lambda on: done.append(("wait", on)))
    buffers = [SimpleNamespace(is_cuda=cuda, record_stream=lambda on, i=i: done.append((i, on)))
               for i, cuda in enumerate((True, False, True))]  # fmt: skip
    batch = batches.StepBatch([SimpleNamespace(buffer=buffer) for buffer in buffers], 1, 1.0, event)  # type: ignore
    batch.wait(stream)
    assert done == [("wait", stream), (0, stream), (2, stream)]


def test_seen_tokens_is_a_high_percentile_of_source_lengths() -> None:
    assert corpus_of([(n, 5) for n in range(1, 1501)]).seen_tokens == 1499


@pytest.mark.parametrize(
    ("rank", "world", "tokens", "groups"),
    [(0, 1, 7, [[0, 1, 2], [3, 4], [5]]), (0, 1, 5, [[0, 1], [2], [3], [4], [5]]), (1, 2, 5, [[3], [5]])],
)
def test_micro_batches_are_grouped_up_to_the_memory(rank: int, world: int, tokens: int, groups: list[Any]) -> None:
    assert group_micro_batches([3, 0, 4, 2, 5, 5], rank, world, tokens) == groups


@pytest.mark.parametrize(
    ("megabytes", "processes", "tokens"), [(1, 1, 256), (1000, 1, 2122), (1000, 2, 1061), (10_000, 1, 8192)]
)
def test_the_default_of_memory_tokens_fits_the_memory(
    megabytes: int, processes: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token of each side takes 8 x 3 x (14 x 256 + 2 x 1024 + 4 x 4 x 128) + 16 x 256 bytes in training."""
    monkeypatch.setattr(batches, "usable_memory", lambda: megabytes * 1_000_000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    unequal = {"num_layers": 3, "d_k": 32, "d_v": 96}
    for layers in ({"num_layers": 3}, {"encoder_layers": 5, "decoder_layers": 1}, unequal):
        small = schema.Model(**layers, d_model=256, d_ff=1024, num_heads=4)
        assert default_memory_tokens(small, torch.device("cpu")) == tokens


@pytest.mark.parametrize(("megabytes", "tokens"), [(1, 256), (1000, 3184), (10_000, 31_844)])
def test_the_default_of_memory_tokens_on_a_gpu_takes_more_of_its_memory(
    megabytes: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is the same as above. On a GPU, the number of tokens has no upper bound."""
    properties = SimpleNamespace(total_memory=megabytes * 1_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {torch.device("cuda", 1): properties}.__getitem__)
    small = schema.Model(num_layers=3, d_model=256, d_ff=1024, num_heads=4)
    assert default_memory_tokens(small, torch.device("cuda", 1)) == tokens


def test_the_order_of_an_epoch_never_changes_between_versions() -> None:
    """Another version of nmt may resume a run."""
    corpus = corpus_of([(3, 3)] * 8)
    orders = {(seed, number): [step[0][0] for step in epoch(plan_of(corpus, 3, 1, seed), number)]
              for seed, number in ((1, 0), (1, 1), (2, 0), (0, 1))}  # fmt: skip
    assert orders == {
        (1, 0): [1, 7, 0, 4, 6, 3, 5, 2],
        (1, 1): [5, 0, 3, 1, 7, 4, 2, 6],
        (2, 0): [2, 3, 1, 0, 4, 6, 5, 7],
        (0, 1): [1, 4, 6, 5, 7, 3, 2, 0],
    }


@pytest.mark.parametrize(("tokens", "steps"), [(100, 1), (35, 1), (24, 1), (23, 2), (20, 2), (10, 4), (5, 7), (1, 7)])
def test_an_epoch_has_the_nearest_number_of_steps(tokens: int, steps: int) -> None:
    assert (
        plan_of(corpus_of([(5, 5), (4, 6), (6, 4), (3, 5), (1, 9), (9, 1), (3, 9)]), tokens, 2, 1).steps_per_epoch
        == steps
    )


def test_an_epoch_has_no_more_steps_than_lines_with_text() -> None:
    text = corpus_of([(9, 9)] * 8)
    few: Any = SimpleNamespace(src=text.src, tgt=text.tgt, fewest_lines=3)
    assert [batches.count_steps(few, tokens) for tokens in (1, 24, 36)] == [3, 3, 2]


class Changing(Corpus):
    """The text of the corpus changes after the first epoch."""

    def in_epoch(self, number: int) -> Corpus:
        return corpus_of([(3, 1), (0, 0), (2, 7), (5, 5)] if number else [(1, 1), (0, 0), (4, 4), (3, 2)])


def test_steps_are_cut_sorted_and_counted_by_the_text_of_their_epoch() -> None:
    """A line that was joined to an earlier one is empty and belongs to no step."""
    text = Changing(*vars(corpus_of([(9, 9)] * 4)).values())
    plan = plan_of(text, 100, 2, 1)
    assert plan.steps_per_epoch == 1
    assert [epoch(plan, number) for number in (0, 1)] == [[[[0, 3, 2], []]], [[[0, 3], [2]]]]
    assert [plan.tokens(np.array([2, 3]), index) for index in (0, 1)] == [(7, 6), (7, 12)]
    assert plan.batch(np.array([2]), 1).tgt.lengths_B.tolist() == [7]
    assert plan.src_lengths.tolist() == [9] * 4


def test_the_tokens_of_both_sides_of_a_step_are_counted() -> None:
    plan = plan_of(corpus_of([(9, 1), (5, 5)] * 50), 100, 1, 1)
    assert [sum(map(len, step)) for step in epoch(plan, 0)] == [20] * 5


def test_costs_above_16_bits_are_summed_exactly() -> None:
    pairs = [(40_000, 40_000), *[(100, 100)] * 2000]
    plan = plan_of(corpus_of(pairs), 60_000, 1, 1)
    order = plan.mixing.order(0).tolist()
    costs = np.array([sum(pairs[i]) for i in order])
    bounds = batches.cut_evenly([costs], 480_000, plan.steps_per_epoch)
    assert len(bounds) == 5
    steps = [sorted(order[start:end]) for start, end in itertools.pairwise(bounds)]
    assert [sorted(i for m in step for i in m) for step in epoch(plan, 0)] == steps


def test_the_longest_pairs_fill_a_batch_by_their_longer_side() -> None:
    plan = plan_of(corpus_of([(3, 3), (1, 9), (5, 5), (8, 2), (4, 4)]), 100, 1, 1)
    for tokens, longest in ((1, [9]), (9, [9]), (16, [9]), (17, [9, 2]), (22, [9, 2, 5]), (99, [9, 2, 5, 4, 3])):
        batch = plan.longest_pairs(tokens, torch.device("cpu"))
        assert batch.tgt.lengths_B.tolist() == longest


def test_steps_mix_lengths_and_micro_batches_do_not() -> None:
    pairs = skewed(4000)
    plan = plan_of(corpus_of(pairs), 4000, 8, 1)
    longer = np.array(pairs).max(1)
    means, spreads = [], []
    for step in epoch(plan, 0):
        everything = longer[[i for m in step for i in m]]
        means.append(everything.mean())
        spreads += [longer[m].std() / everything.std() for m in step]
        firsts = [longer[m].min() for m in step]
        assert firsts == sorted(firsts), "sorted by length inside a step"
    assert np.std(means) < 0.15 * np.mean(means), "a step is a random sample of all lengths"
    assert np.median(spreads) < 0.2


@pytest.mark.parametrize(("tokens", "micro_batches"), [(2000, 8), (25_000, 8), (25_000, 1)])
def test_a_step_has_the_recipes_tokens_of_each_side(tokens: int, micro_batches: int) -> None:
    pairs = skewed(12_000)
    plan = plan_of(corpus_of(pairs), tokens, micro_batches, 1)
    src, tgt = (np.array([p[side] for p in pairs]) for side in (0, 1))
    sizes = np.array([[side[[i for m in u for i in m]].sum() for side in (src, tgt)] for u in epoch(plan, 0)])
    # An epoch has a whole number of steps. If they are few, all are a little larger or smaller than in the recipe.
    assert sizes.mean(0) == pytest.approx([tokens, tokens], rel=0.1)
    assert sizes.sum(1) == pytest.approx(np.full(len(sizes), sizes.sum(1).mean()), rel=0.1 if tokens > 9999 else 0.25)


def test_batches_are_packed_in_order_with_shifted_targets() -> None:
    plan = plan_of(corpus_of([(3, 4), (1, 2), (5, 1)]), 100, 1, 1)
    batch = plan.batch(np.array([2, 0, 1]), 0)
    assert batch.src_N.tolist() == [5, 5, 5, 5, 2, 3, 3, 2, 2]
    assert batch.tgt_out_N.tolist() == [2, 103, 103, 103, 2, 104, 2]
    assert batch.tgt_in_N.tolist() == [PAD, PAD, 103, 103, 103, PAD, 104]
    assert batch.src.lengths_B.tolist() == [5, 3, 1]
    assert batch.tgt.lengths_B.tolist() == [1, 4, 2]
    parts = [x for owner in (batch, batch.src, batch.tgt) for x in vars(owner).values() if isinstance(x, torch.Tensor)]
    assert len({x.untyped_storage().data_ptr() for x in parts}) == 1, "one buffer, so one copy to the device"


def test_a_model_may_read_sources_without_eos() -> None:
    """EOS is left out of all sources except empty ones, which consist of EOS."""
    plan = plan_of(corpus_of([(3, 2), (1, 4)]), 100, 1, 1, source_eos=False)
    batch = plan.batch(np.array([0, 1]), 0)
    assert batch.src_N.tolist() == [3, 3, 2]
    assert batch.tgt_out_N.tolist() == [103, 2, 104, 104, 104, 2]
    assert plan.src_lengths.tolist() == [2, 1]


def test_dropout_depends_on_sentence_and_step_but_not_on_the_batch() -> None:
    corpus, chosen = corpus_of(skewed(50)), np.array([30, 2, 11])
    plan, other = (plan_of(corpus, 100, 2, seed) for seed in (1, 2))
    batch, apart = plan.batch(chosen, 7), [plan.batch(chosen[i : i + 1], 7) for i in range(3)]
    assert torch.equal(batch.src_seeds_N, torch.cat([one.src_seeds_N for one in apart]))
    assert torch.equal(batch.tgt_seeds_N, torch.cat([one.tgt_seeds_N for one in apart]))
    drawn = [
        batch.src_seeds_N,
        batch.tgt_seeds_N,
        plan.batch(chosen, 8).src_seeds_N,
        other.batch(chosen, 7).src_seeds_N,
    ]
    assert len(torch.cat(drawn).unique()) == sum(map(len, drawn))
