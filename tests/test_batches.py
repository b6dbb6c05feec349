"""Which sentences make a step, and their dropout masks: properties that must hold for every corpus and seed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli import recipe
from nmt_cli.corpus.store import Corpus, Side
from nmt_cli.training import batches
from nmt_cli.training.batches import BatchPlan, default_memory_tokens, dropout_masks, group_micro_batches
from nmt_cli.transformer.model import PAD, Masks

lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)


def corpus_of(sentence_lengths: list[tuple[int, int]]) -> Corpus:
    """Return a corpus in memory; sentence i has the ids i + 3, ..., and ends with EOS (2)."""
    sides = []
    for side in (0, 1):
        sizes = np.array([pair[side] for pair in sentence_lengths])
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        ids = np.concatenate([np.append(np.full(n - 1, i + 3 + 100 * side), 2) for i, n in enumerate(sizes)])
        sides.append(Side(ids.astype("<u2"), offsets))
    return Corpus(Path("nowhere"), {}, sides[0], sides[1])


def skewed(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Return lengths as real sentences have them: mostly short, some long, both sides alike."""
    draw = np.random.default_rng(seed)
    src = np.clip(draw.lognormal(3, 0.6, count), 1, 250).astype(int)
    tgt = np.clip(src * draw.normal(1, 0.15, count), 1, 250).astype(int)
    return list(zip(src.tolist(), tgt.tolist(), strict=True))


def epoch(plan: BatchPlan, number: int) -> list[list[list[int]]]:
    first = number * plan.steps_per_epoch
    return [[m.tolist() for m in plan.micro_batches_of(first + i)] for i in range(plan.steps_per_epoch)]


@settings(max_examples=60, deadline=None)
@given(lengths, st.integers(1, 200), st.integers(1, 9), st.integers(0, 2**31))
def test_an_epoch_holds_every_sentence_exactly_once(
    pairs: list[tuple[int, int]], tokens: int, micro_batches: int, seed: int
) -> None:
    plan = BatchPlan(corpus_of(pairs), tokens, micro_batches, seed)
    assert 1 <= plan.steps_per_epoch <= len(pairs)
    for number in (0, 3):
        cut = epoch(plan, number)
        assert all(len(step) == micro_batches for step in cut)
        assert sorted(i for step in cut for m in step for i in m) == list(range(len(pairs)))


@settings(max_examples=40, deadline=None)
@given(lengths, st.integers(1, 200), st.integers(0, 2**31), st.permutations(range(12)))
def test_a_step_is_a_pure_function_of_seed_and_number(
    pairs: list[tuple[int, int]], tokens: int, seed: int, order: list[int]
) -> None:
    corpus = corpus_of(pairs)
    in_order = BatchPlan(corpus, tokens, 3, seed)
    expected = [[m.tolist() for m in in_order.micro_batches_of(step)] for step in range(12)]
    out_of_order = BatchPlan(corpus, tokens, 3, seed)
    for step in order:  # a resumed run starts anywhere
        assert [m.tolist() for m in out_of_order.micro_batches_of(step)] == expected[step]


def test_two_threads_may_ask_for_steps_of_different_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, cut = corpus_of(skewed(300)), batches._cut
    expected = epoch(BatchPlan(corpus, 500, 4, 1), 0)
    plan = BatchPlan(corpus, 500, 4, 1)

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.undo()
        plan.micro_batches_of(plan.steps_per_epoch)  # by the other thread
        return cut(*arguments)

    monkeypatch.setattr(batches, "_cut", interrupted)
    assert [m.tolist() for m in plan.micro_batches_of(0)] == expected[0]


def test_nearly_all_sources_are_as_long_as_what_was_seen_or_shorter() -> None:
    assert BatchPlan(corpus_of([(n, 5) for n in range(1, 1501)]), 500, 1, 1).seen_tokens == 1499


@pytest.mark.parametrize(
    ("rank", "world", "tokens", "groups"),
    [(0, 1, 7, [[0, 1, 2], [3, 4], [5]]), (0, 1, 5, [[0, 1], [2], [3], [4], [5]]), (1, 2, 5, [[3], [5]])],
)
def test_micro_batches_are_grouped_up_to_the_memory(rank: int, world: int, tokens: int, groups: list[Any]) -> None:
    assert group_micro_batches([3, 0, 4, 2, 5, 5], rank, world, tokens) == groups


@pytest.mark.parametrize(("megabytes", "tokens"), [(1, 256), (1000, 2122), (10_000, 8192)])
def test_tokens_computed_at_once_fit_the_memory(megabytes: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training keeps 8 x 3 x (14 x 256 + 2 x 1024 + 4 x 4 x 128) + 16 x 256 bytes of a token of each side."""
    monkeypatch.setattr(batches.os, "sysconf", {"SC_PHYS_PAGES": megabytes, "SC_PAGE_SIZE": 1_000_000}.get)
    small = recipe.Model(num_layers=3, d_model=256, d_ff=1024, num_heads=4)
    assert default_memory_tokens(small, torch.device("cpu")) == tokens


def test_epochs_and_seeds_differ() -> None:
    corpus = corpus_of(skewed(300))
    plan = BatchPlan(corpus, 500, 4, 1)
    assert plan.steps_per_epoch > 5
    orders = [epoch(plan, 0), epoch(plan, 1), epoch(plan, 2), epoch(BatchPlan(corpus, 500, 4, 2), 0)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])
    members = [sorted(i for m in step for i in m) for step in orders[0]]
    assert members != [sorted(i for m in step for i in m) for step in orders[1]], "the plan, not their order"


def test_steps_mix_lengths_and_micro_batches_do_not() -> None:
    pairs = skewed(4000)
    plan = BatchPlan(corpus_of(pairs), 4000, 8, 1)
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
    plan = BatchPlan(corpus_of(pairs), tokens, micro_batches, 1)
    src, tgt = (np.array([p[side] for p in pairs]) for side in (0, 1))
    sizes = np.array([[side[[i for m in u for i in m]].sum() for side in (src, tgt)] for u in epoch(plan, 0)])
    # Whole plan to an epoch: with few of them the rounding shows, and it is the same in all of them.
    assert sizes.mean(0) == pytest.approx([tokens, tokens], rel=0.1)
    assert sizes.sum(1) == pytest.approx(np.full(len(sizes), sizes.sum(1).mean()), rel=0.1 if tokens > 9999 else 0.25)


def test_batches_are_packed_in_order_with_shifted_targets() -> None:
    plan = BatchPlan(corpus_of([(3, 4), (1, 2), (5, 1)]), 100, 1, 1)
    batch = plan.batch(np.array([2, 0, 1]))
    assert batch.src_N.tolist() == [5, 5, 5, 5, 2, 3, 3, 2, 2]
    assert batch.tgt_out_N.tolist() == [2, 103, 103, 103, 2, 104, 2]
    assert batch.tgt_in_N.tolist() == [PAD, PAD, 103, 103, 103, PAD, 104]
    assert batch.src.lengths_B.tolist() == [5, 3, 1]
    assert batch.tgt.lengths_B.tolist() == [1, 4, 2]
    assert batch.src_N.dtype == torch.int64


# --- dropout masks --------------------------------------------------------------------------------------------------


def masks(
    *keys_and_tokens: tuple[tuple[int, ...], tuple[int, int]],
    width: int = 6,
    p: float = 0.3,
    dtype: Any = torch.float32,
) -> Masks:
    """Return masks for 3 places in the encoder and 4 in the decoder."""
    keys, tokens = zip(*keys_and_tokens, strict=True)
    model: Any = SimpleNamespace(
        settings=SimpleNamespace(d_model=width, dropout=p),
        dropout_places=lambda: (3, 4),
        embedding=SimpleNamespace(weight=torch.zeros(0)),
    )
    return dropout_masks(model, keys, tokens, dtype)


def test_masks_are_zeros_and_ones_one_block_per_place() -> None:
    drawn, narrow = masks(((1, 2, 3), (5, 7))), masks(((1, 2, 3), (5, 7)), dtype=torch.bfloat16)
    assert drawn.src_LND.shape == (3, 5, 6)
    assert drawn.tgt_LND.shape == (4, 7, 6)
    assert set(drawn.src_LND.unique().tolist()) == {0.0, 1.0}
    assert (drawn.src_LND.dtype, narrow.tgt_LND.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(narrow.tgt_LND.float(), drawn.tgt_LND)


def test_same_key_same_mask_and_every_part_of_the_key_counts() -> None:
    count = (20, 20)
    first = masks(((1, 2, 3), count))
    assert torch.equal(first.src_LND, masks(((1, 2, 3), count)).src_LND)
    for key in ((0, 2, 3), (1, 0, 3), (1, 2, 0), (1, 3, 2), (3, 2, 1)):
        other = masks((key, count))
        agreement = (first.src_LND == other.src_LND).float().mean()
        assert float(agreement) == pytest.approx(0.7**2 + 0.3**2, abs=0.1), "independent"
    flat = [first.src_LND.flatten(), first.tgt_LND.flatten()[: first.src_LND.numel()]]
    assert float((flat[0] == flat[1]).float().mean()) == pytest.approx(0.58, abs=0.1), "the two sides are, too"
    a, b = first.src_LND[:2]
    assert float((a == b).float().mean()) == pytest.approx(0.58, abs=0.2), "and the places"


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.9])
def test_the_keep_rate_is_one_minus_p(probability: float) -> None:
    share = float(masks(((1, 2, 3), (700, 1)), width=512, p=probability).src_LND.mean())
    assert share == pytest.approx(1 - probability, abs=4 * np.sqrt(probability * (1 - probability) / 1_075_200))
