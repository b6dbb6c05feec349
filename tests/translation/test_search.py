"""Search is compared with brute force, with a plain search without caches, with other batches, and with forced scores.

Models are random. torch searches in float64 unless a test chooses another dtype, so its results must be equal. The
engine searches with the same weights in float32, so its hypotheses must be the same, and its scores within rounding.
"""

import contextlib
import gc
import itertools
import math
import re
import weakref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from reference import batch_of, random_model, tiny
from searching import DOUBLE, V, by_engine, by_torch, engine_model, model_of, options, search_all, searched, sources_of
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.engine import library
from nmt_cli.engine.model import SIGNATURES
from nmt_cli.system.errors import DivergedError, StorageError
from nmt_cli.transformer.cache import BLOCK, DecoderCache, for_inference
from nmt_cli.transformer.hardware import Replayed
from nmt_cli.transformer.model import PAD, Transformer
from nmt_cli.translation import candidates, engine_backend
from nmt_cli.translation import search as torch_search
from nmt_cli.translation.constraints import Constraints
from nmt_cli.translation.engine_backend import EngineSearch
from nmt_cli.translation.options import Sampling, SearchOptions
from nmt_cli.translation.queue import SegmentQueue
from nmt_cli.translation.search import Slots, score_targets
from nmt_cli.translation.segments import Hypothesis, Segment, length_penalty

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
NO_QUEUE: Any = SimpleNamespace(take=lambda *_, **__: [])
READS = {"cpu", "tolist", "item", "__bool__", "__int__", "__float__", "__index__", "nonzero", "masked_select"}
READS |= {"_local_scalar_dense", "equal", "is_nonzero", "unique", "_unique2"}


@pytest.mark.parametrize("engine", [False, True])
def test_a_cancelled_segment_leaves_the_search(engine: bool) -> None:
    model = model_of(2, eos=0, max_length=400)
    first, second = (Segment(sources_of(1)[0], options(extra_length=9), [5] * length) for length in (380, 20))
    search = by_engine([engine_model(model)], 8) if engine else by_torch([model], rows=8)
    done = list[Segment]()

    def cancel_other(segment: Segment) -> None:
        first.cancelled = True
        done.append(segment)

    queue = SegmentQueue([search], cancel_other)
    queue.submit([first, second])
    queue.wait_for(lambda: len(done) == 2, 60)
    queue.close()
    assert done == [second, first]
    assert second.hypotheses
    assert not first.hypotheses


def test_the_engine_is_installed() -> None:
    """Without the engine, the tests of both searches would test torch alone."""
    assert library.describe() != "none"
    assert library.load(SIGNATURES)


def log_probabilities(model: Transformer, source: list[int], prefixes: list[list[int]]) -> torch.Tensor:
    """Return the log-probabilities of the next token (prefixes x V), by the whole model without a cache."""
    with torch.no_grad():
        batch = batch_of([(source, [*prefix, EOS]) for prefix in prefixes])
        logits = model.logits(model(batch))
    ends = batch.tgt.lengths_B.cumsum(0) - 1
    return torch.log_softmax(logits[ends], -1)


def plain_beam(model: Transformer, source: list[int], how: SearchOptions) -> tuple[list[tuple[float, list[int]]], int]:
    """Return the n best translations with their scores by the rules of search.py, and the number of steps. Compute one
    sentence and one step at a time."""
    limit = min(len(source) + how.extra_length, model.settings.max_length)
    alive: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for position in range(limit):
        scores = log_probabilities(model, source, [ids for _, ids in alive])
        every = [
            (total + float(scores[row, token]), ids, token)
            for row, (total, ids) in enumerate(alive)
            for token in range(1, scores.shape[1])
            if position + 1 < limit or token == EOS
        ]
        every = sorted(every, key=lambda c: -c[0])[: 2 * how.beam]
        finished += [
            (total / float(length_penalty(position + 1, how)), ids)
            for total, ids, token in every[: how.beam]
            if token == EOS
        ]
        if how.beam == 1 and finished:
            break
        alive = [(total, [*ids, token]) for total, ids, token in every if token != EOS][: how.beam]
        longest = min(position + 2 + 10 * how.alpha, limit)
        finished = sorted(finished, key=lambda f: -f[0])[: how.n_best]
        full = len(finished) == how.n_best
        if full and alive and alive[0][0] / length_penalty(longest, how) <= finished[-1][0]:
            break
    return finished, position + 1


# Whether the engine searches (otherwise torch), and the tolerance of its scores.
SEARCHES = [(False, 1e-10), (True, 1e-4)]


def test_full_width_beam_search_equals_brute_force() -> None:
    """For each of 40 random models, a full-width search finds the n best of all sequences."""
    length, best = 4, 5
    sequences = [list(s) for n in range(length) for s in itertools.product([1, 3, 4], repeat=n)]
    for seed in range(40):
        model = model_of(seed, vocabulary=5, num_layers=1)
        source = sources_of(1, seed, vocabulary=5, longest=3)[0]
        penalty = {"alpha": 0.6 + seed % 3, "penalty_offset": (5.0, 0.0)[seed % 2]}
        how = options(beam=128, **penalty, extra_length=length - len(source), n_best=best)
        forced = score_targets([model], DOUBLE, [(source, [*s, EOS]) for s in sequences])
        base, offset = how.penalty_offset + 1, how.penalty_offset
        scores = [math.fsum(values) / ((offset + len(values)) / base) ** how.alpha for values in forced]
        ranked = sorted(zip(scores, sequences, strict=True), reverse=True)
        for engine, tolerance in SEARCHES:
            (hypotheses,) = searched([model], [source], how, engine=engine)
            assert [h.ids for h in hypotheses] == [s for _, s in ranked[:best]]
            assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in ranked[:best]], abs=tolerance)


@pytest.mark.parametrize(
    ("beam", "n_best", "alpha", "eos"),
    [(1, 1, 4.0, 2), (4, 1, 0.6, 2), (3, 1, 0.0, 2), (5, 1, 1.5, 2), (5, 1, 4.0, 4), (4, 4, 0.6, 2), (5, 2, 1.5, 4)],
)
def test_beam_search_equals_the_plain_search(beam: int, n_best: int, alpha: float, eos: float) -> None:
    how = options(beam=beam, alpha=alpha, extra_length=5, n_best=n_best)
    for seed, changes in enumerate([{}, {"norm": "pre"}, {"positions": "learned"}]):
        model, sources = model_of(seed, eos=eos, num_layers=1, **changes), sources_of(4, seed)
        plain = [plain_beam(model, source, how)[0] for source in sources]
        for engine, tolerance in SEARCHES:
            found = searched([model], sources, how, engine=engine, rows=5 * beam)
            for hypotheses, expected in zip(found, plain, strict=True):
                scores = [score for score, _ in expected]
                assert [each.score for each in hypotheses] == pytest.approx(scores, abs=tolerance)
                assert [each.ids for each in hypotheses] == [ids for _, ids in expected]


@pytest.mark.parametrize(
    ("seed", "eos", "extra", "steps"),
    [(4, 1.0, 50, [24, 3, 5, 6, 6]), (1, 1.4, 50, [54, 40, 56, 40, 56]), (4, 1.0, 4, [8, 3, 5, 5, 5])],
)
def test_search_stops_when_nothing_can_win_soon(
    seed: int, eos: float, extra: int, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bound computed for the longest length would take 35 and 44 steps instead of 24 and 40. A bound beyond the
    longest length would take 6 and 6 steps instead of the last two."""
    model, how = model_of(seed, eos=eos, max_length=64), options(extra_length=extra)
    step, taken = Slots.step, list[int]()
    monkeypatch.setattr(Slots, "step", lambda slots: taken.append(1) or step(slots))
    run = EngineSearch.run
    monkeypatch.setattr(EngineSearch, "run", lambda search, steps: taken.extend(search.segments) or run(search, steps))
    monkeypatch.setattr(engine_backend, "STEPS", 1)
    for source, count in zip(sources_of(5, 2), steps, strict=True):
        ((_, ids),), expected = plain_beam(model, source, how)
        assert expected == count
        for engine in (False, True):
            taken.clear()
            ((best,),) = searched([model], [source], how, engine=engine)
            assert (best.ids, len(taken)) == (ids, expected)


@pytest.mark.parametrize(("dtype", "tolerance", "ties"), [(DOUBLE, 1e-10, 0), (torch.float32, 1e-4, 1)])
def test_a_sentence_has_the_same_translation_in_any_batch(dtype: torch.dtype, tolerance: float, ties: int) -> None:
    """Batches are small or large, and in any order. In float32, rounding may decide one tie differently."""
    model, sources = model_of(3, dtype=dtype, eos=2), sources_of(50, 3, longest=14)
    how = options(extra_length=8)
    alone = searched([model], sources, how, dtype, rows=4)
    together = searched([model], sources, how, dtype, rows=256)
    reverse = searched([model], sources[::-1], how, dtype, rows=40)[::-1]
    for others in (together, reverse):
        scores = [[h.score for (h,) in results] for results in (alone, others)]
        assert scores[0] == pytest.approx(scores[1], abs=tolerance)
        assert sum(a.ids != b.ids for (a,), (b,) in zip(alone, others, strict=True)) <= ties


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_cached_steps_equal_the_whole_model(dtype: torch.dtype, tolerance: float) -> None:
    """In each of 40 steps, hypotheses continue each other at random, and often take over cache entries."""
    model, width = model_of(1, dtype=dtype, d_k=6, d_v=10, max_length=64), 3
    sources, generator = sources_of(2, 1), torch.Generator().manual_seed(2)
    decoder = DecoderCache([model], dtype, width)
    with torch.inference_mode():
        batch = batch_of([(source, [EOS]) for source in sources])
        decoder.resize([], 2)
        decoder.fill([1, 0], decoder.encode(batch.src_N, batch.src), [0, len(sources[0])], [len(s) for s in sources])
        texts: list[list[list[int]]] = [[[]] * width for _ in sources]
        last = torch.full((2, width), PAD)
        for position in range(40):
            positions = torch.full((2 * width,), position)
            (logits,) = decoder.step(last.flatten(), positions, *map(torch.from_numpy, decoder.allocate_entries()))
            assert torch.isinf(logits[:, V:]).all()
            ours = torch.log_softmax(logits, -1)[:, :V].view(2, width, V)
            for slot, source in ((1, sources[0]), (0, sources[1])):
                expected = log_probabilities(model, source, texts[slot])
                assert torch.allclose(ours[slot][:, 1:], expected[:, 1:], rtol=0, atol=tolerance)
            parents = torch.randint(0, width, (2, width), generator=generator)
            last = torch.randint(3, V, (2, width), generator=generator)
            decoder.reorder(parents.numpy())
            texts = [[[*texts[s][int(parents[s, w])], int(last[s, w])] for w in range(width)] for s in range(2)]


@torch.inference_mode()
def test_a_cache_does_not_grow_with_forgotten_hypotheses() -> None:
    """Hypotheses with a common ancestor share one entry for each of its positions. An empty slot needs none."""
    width, batch = 4, batch_of([([3, EOS], [EOS])])
    decoder = DecoderCache([model_of(1, max_length=64)], DOUBLE, width)
    decoder.resize([], 2)
    decoder.fill([0, 1], decoder.encode(batch.src_N, batch.src), [0, 0], [2, 2])
    decoder.release([1])
    for position in range(50):
        ids, positions = torch.full((2 * width,), 5), torch.full((2 * width,), position)
        decoder.step(ids, positions, *map(torch.from_numpy, decoder.allocate_entries()))
        decoder.reorder(np.array([[0] * width, range(width)]))
    assert decoder.past[0][0].shape[2] < 50 + 10 * width


@pytest.mark.parametrize("cell", ["attention", "ssru"])
def test_a_slot_filled_again_forgets_its_entries(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a long translation in the last slot, a cache of short ones is smaller."""
    lengths = [2, 2, 2, 2, 40, 3, 2, 40, 3, 2, 2, 40]
    segments = [Segment([5, 5, EOS], options(1), [7] * n, max_tokens=n + 2) for n in lengths]
    allocate, cropped = DecoderCache.allocate_entries, []

    def allocated(cache: DecoderCache) -> list[Any]:
        entries = cache.used_SWE.shape[2]
        used, new, before, src_lengths = allocate(cache)
        cropped.append(used.shape[2] < entries)
        assert before.max() < used.shape[2]
        return [used, new, before, src_lengths]

    monkeypatch.setattr(DecoderCache, "allocate_entries", allocated)
    search_all(by_torch([model_of(decoder_cell=cell)], rows=2), segments)
    assert any(cropped)


class Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat = tree_flatten((args, kwargs))[0]
        self.calls.append((str(function), [x.shape if isinstance(x, torch.Tensor) else x for x in flat]))
        return function(*args, **(kwargs or {}))


class HostReads(TorchFunctionMode):
    count = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += getattr(function, "__name__", "") in READS
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize(("beam", "members"), [(1, 1), (4, 1), (4, 2)])
@torch.inference_mode()
def test_a_step_reads_the_device_once_and_can_be_captured(device: str, beam: int, members: int) -> None:
    """Steps in caches of one size make the same calls with the same memory, and do not wait for the device."""
    models = [model_of(seed, device=device) for seed in range(members)]
    how = options(beam, extra_length=40)
    segments = [Segment(ids, how, [5] * (i % 2)) for i, ids in enumerate(sources_of(6, longest=14))]
    slots = Slots(models, DOUBLE, how, constrained=False, rows=1024)
    slots.cache.captured, slots.cache.round, steps, compute = True, 64, [], slots._best

    def recorded(*inputs: torch.Tensor) -> torch.Tensor:
        with Calls() as calls:
            output = compute(*inputs)
        steps.append((calls.calls, slots.cache.storage()))
        return output

    slots._best = recorded
    slots.encode(segments)
    slots.fill(NO_QUEUE)
    for _ in range(1 + 8 // beam):  # after these, the caches have their new size
        slots.step()
    steps.clear()
    for _ in range(8):
        slots.replayed.key = None  # on CUDA it would replay its graph and call nothing
        with HostReads() as reads:
            slots.step()
        assert reads.count == 1
    assert not {name.split(".")[1] for name, _ in steps[0][0]} & READS
    assert len(steps[0][0]) > 100
    assert all(step == steps[0] for step in steps[1:])


@pytest.mark.parametrize("captured", [False, True])
def test_the_size_of_captured_steps_changes_seldom(captured: bool) -> None:
    slots = Slots([model_of(1)], DOUBLE, options(4), constrained=False, rows=1024)
    slots.cache.captured, sizes = captured, []
    for count in (8, 5, 4, 3, 2, 4, 5):
        slots._resize(range(min(count, len(slots.segments))), count)
        sizes.append(len(slots.segments))
    assert sizes == ([8, 8, 8, 8, 2, 4, 8] if captured else [8, 8, 4, 4, 2, 4, 8])


@torch.inference_mode()
def test_caches_are_freed_as_soon_as_a_search_ends() -> None:
    """A search that starts again with fewer rows needs their memory."""
    slots = Slots([model_of(1)], DOUBLE, options(4), constrained=False, rows=1024)
    slots.encode([Segment([5, EOS], slots.options)])
    slots.fill(NO_QUEUE)
    slots.step()
    alive = weakref.ref(slots.cache)
    gc.disable()
    try:
        del slots
        assert alive() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=GPU)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", [options(extra_length=8), options(1, extra_length=8, sampling=Sampling())])
def test_replayed_steps_give_the_same_hypotheses(
    device: str, dtype: torch.dtype, how: SearchOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sources = model_of(3, device=device, dtype=dtype, eos=2, d_k=16, d_v=16), sources_of(300, 3, longest=14)
    replayed = searched([model], sources, how, dtype)
    monkeypatch.setattr(Replayed, "__call__", lambda _, best, *x: best(*(torch.from_numpy(y).cuda() for y in x)))
    assert searched([model], sources, how, dtype) == replayed


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize(("engine", "tolerance"), [(False, 1e-10), (True, 1e-4)])
def test_scores_equal_forced_scores(members: int, engine: bool, tolerance: float) -> None:
    """Forced scoring gives the same numbers. An ensemble averages probabilities."""
    models, sources = [model_of(seed) for seed in range(members)], sources_of(15, 5)
    how = options(beam=4, extra_length=6, n_best=3)
    for source, hypotheses in zip(sources, searched(models, sources, how, engine=engine, rows=32), strict=True):
        pairs = [(source, [*h.ids, EOS]) for h in hypotheses]
        forced = score_targets(models, DOUBLE, pairs)
        alone = zip(*(score_targets([model], DOUBLE, pairs) for model in models), strict=True)
        for h, values, each in zip(hypotheses, forced, alone, strict=True):
            assert h.token_log_probabilities == pytest.approx(values, abs=tolerance)
            assert values == pytest.approx(torch.tensor(each, dtype=DOUBLE).exp().mean(0).log().tolist(), abs=tolerance)
            assert h.log_probability == pytest.approx(math.fsum(values), abs=tolerance)
            assert h.score == pytest.approx(h.log_probability / ((5 + len(h.ids) + 1) / 6) ** 0.6, abs=tolerance)
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        assert len({tuple(h.ids) for h in hypotheses}) == 3


@pytest.mark.parametrize("engine", [False, True])
def test_an_ensemble_stops_at_the_length_of_its_shortest_model(engine: bool) -> None:
    models = [model_of(1, eos=-1), model_of(2, eos=-1, max_length=12)]
    for each in (models, models[::-1]):
        [[hypothesis, *_]] = searched(each, sources_of(5)[:1], options(extra_length=50), engine=engine)
        assert len(hypothesis.ids) <= 12


@pytest.mark.parametrize("engine", [False, True])
def test_scoring_leaves_out_the_eos_of_a_source_if_the_model_does(engine: bool) -> None:
    model, sources = model_of(3, source_eos=False), [[EOS], *sources_of(9, 5)]
    found = searched([model], sources, options(extra_length=6), engine=engine)
    forced = score_targets(
        [model], DOUBLE, [(ids, [*best.ids, EOS]) for ids, (best,) in zip(sources, found, strict=True)]
    )
    for (best,), values in zip(found, forced, strict=True):
        assert best.token_log_probabilities == pytest.approx(values, abs=1e-4 if engine else 1e-10)


@pytest.mark.parametrize("sizes", [(1000, 2), (2, 1000), (1024, 1024)])
def test_pairs_are_scored_in_batches_of_their_longer_sides(sizes: tuple[int, int]) -> None:
    src, tgt = ([5] * (size - 1) + [EOS] for size in sizes)
    batches = torch_search.pair_batches([(src, tgt)] * 10, torch.device("cpu"))
    assert [chosen for chosen, _ in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.parametrize("engine", [False, True])
def test_no_translation_exceeds_the_limits_of_its_source_and_the_model(engine: bool) -> None:
    model, sources = model_of(2, max_length=16, tied_output=False), sources_of(60, 2, longest=16)
    with torch.no_grad():
        model.output.weight[EOS] = 0  # it hardly ever ends by itself
        model.own_embeddings["output"].weight[EOS] = 0
    prefixes = [[5] * (i % 3) for i in range(60)]
    found = searched([model], sources, options(extra_length=3), engine=engine, prefixes=prefixes)
    spare = [
        min(len(source) + len(prefix) + 3, 16) - len(best.ids) - 1
        for source, prefix, (best,) in zip(sources, prefixes, found, strict=True)
    ]
    assert min(spare) == 0
    assert spare.count(0) > 30
    longest = searched([model], sources, options(extra_length=50), engine=engine)
    assert max(len(best.ids) for (best,) in longest) == 15


@pytest.mark.parametrize(("engine", "tolerance"), [(False, 1e-10), (True, 1e-4)])
def test_prefixes_are_kept_and_scored(engine: bool, tolerance: float) -> None:
    model, sources = model_of(4), sources_of(30, 4)
    prefixes, how = [[5, 6, 7][: i % 4] for i in range(30)], options(extra_length=6)
    found = searched([model], sources, how, rows=16, prefixes=prefixes, engine=engine)
    free = searched([model], sources, how, engine=engine)
    for source, prefix, (best,), (other,) in zip(sources, prefixes, found, free, strict=True):
        assert best.ids[: len(prefix)] == prefix
        (forced,) = score_targets([model], DOUBLE, [(source, [*best.ids, EOS])])
        assert best.token_log_probabilities == pytest.approx(forced, abs=tolerance)
        assert prefix or best.ids == other.ids


def test_a_long_source_does_not_widen_the_grids_of_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model, layouts, encode = model_of(max_length=99), list[Any](), DecoderCache.encode
    monkeypatch.setattr(DecoderCache, "encode", lambda self, ids, src: layouts.append(src) or encode(self, ids, src))
    sources = [*sources_of(1, longest=3), [3] * 63 + [EOS], *sources_of(20, 1)]
    together = searched([model], sources, options(beam=1, extra_length=3))
    assert sum(count * width**2 for count, width in layouts[0].blocks) < 4 * 64**2, "not 22 times 64 x 64"
    for source, (best,) in zip(sources, together, strict=True):
        assert searched([model], [source], options(beam=1, extra_length=3))[0][0].ids == best.ids


@pytest.mark.parametrize(("engine", "tolerance"), [(False, 1e-10), (True, 1e-4)])
def test_samples_depend_on_the_seed_and_the_key_alone(engine: bool, tolerance: float) -> None:
    model, sources = model_of(5, num_layers=1), sources_of(60, 5)
    draw = Sampling(temperature=1.3, top_k=12, top_p=0.95, seed=7)
    ways = [(1, draw), (50, draw), (384, replace(draw, seed=8)), (384, Sampling(top_k=1)), (384, None)]
    found = []
    for rows, sampling in ways:
        how = options(beam=1, extra_length=5, sampling=sampling)
        found.append([best for (best,) in searched([model], sources, how, rows=rows, engine=engine)])
    one, many, other, best, greedy = ([h.ids for h in each] for each in found)
    assert one == many
    assert best == greedy
    assert sum(a != b for a, b in zip(one, other, strict=True)) > 30
    forced = score_targets([model], DOUBLE, [(source, [*ids, EOS]) for source, ids in zip(sources, one, strict=True)])
    assert [h.token_log_probabilities for h in found[1]] == [pytest.approx(values, abs=tolerance) for values in forced]


def test_tokens_are_drawn_as_often_as_they_are_probable() -> None:
    scores = torch.tensor([[1.0, 2.0, 0.5, -1.0]], dtype=DOUBLE).repeat(10_000, 1)
    points = torch.arange(10_000, dtype=DOUBLE)[:, None] / 10_000
    for draw, count in ((Sampling(), 4), (Sampling(top_k=2), 2), (Sampling(top_p=0.8), 2), (Sampling(2.0), 4)):
        _, ids = candidates._draw(scores, draw, points)
        wanted = torch.softmax(scores[0] / draw.temperature, -1)
        wanted[wanted.argsort(descending=True)[count:]] = 0
        counts = torch.bincount(ids.flatten(), minlength=4) / 10_000
        assert torch.allclose(counts.double(), wanted / wanted.sum(), atol=2e-4)
    points = torch.tensor([[0.0], [0.49], [0.5], [0.99]], dtype=DOUBLE)
    _, ids = candidates._draw(torch.zeros(4, 4, dtype=DOUBLE), Sampling(top_p=0.5), points)  # exactly two tokens
    assert len(set(ids.flatten().tolist())) == 2
    assert torch.equal(ids[0::2], ids[1::2])


def test_top_k_may_exceed_the_vocabulary() -> None:
    """top_p may be 0, which leaves only the best token."""
    scores, points = torch.tensor([[1.0, 2.0, 0.5, -1.0]] * 50), torch.arange(50)[:, None] / 50
    for two in ((Sampling(top_k=9), Sampling()), (Sampling(top_p=0.0), Sampling(top_k=1))):
        assert torch.equal(*(candidates._draw(scores, sampling, points)[1] for sampling in two))


def test_an_ensembles_probabilities_are_not_rounded() -> None:
    """Scores of fewer bits are widened before they are averaged. Scores that are not finite give NaN."""
    logits = [torch.randn(4, 2 * BLOCK, generator=torch.Generator().manual_seed(seed)).bfloat16() for seed in (1, 2)]
    alive, none = torch.tensor([[0.0, -1.0], [-0.5, -2.0]]), torch.zeros(0, dtype=torch.int64)
    best = candidates.best_continuations(logits, alive, none, None, torch.zeros(2, 1))
    mean = torch.stack([torch.softmax(each.double(), -1) for each in logits]).mean(0).log()
    sums, indices = (mean + alive.view(4, 1)).view(2, -1).topk(4, 1)
    assert torch.allclose(best[0], sums, rtol=0, atol=1e-5)
    assert torch.equal(best[1] * 2 * BLOCK + best[2], indices.double())
    logits[1][3, 7] = torch.nan
    assert candidates.best_continuations(logits, alive, none, None, torch.zeros(2, 1))[0, 1].isnan().any()


@pytest.mark.parametrize("constrained", [False, True])
def test_scores_that_are_not_finite_end_the_search(constrained: bool) -> None:
    model = model_of(1)
    model.output.weight.data[7, 0] = math.nan
    constraints = Constraints([[[5]]], bytes([1] * V)) if constrained else None
    segment = Segment(sources_of(1)[0], options(), constraints=constraints)
    with pytest.raises(DivergedError, match="not finite"):
        search_all(by_torch([model]), [segment])
    model.embedding.weight.data[7, 0] = math.nan
    with pytest.raises(DivergedError, match="not finite"):
        score_targets([model], DOUBLE, [([5, EOS], [6, EOS])])


@pytest.mark.parametrize("engine", [False, True])
def test_neighbors_with_other_options_are_searched_with_their_own(engine: bool) -> None:
    model = model_of(3, eos=2, num_layers=1)
    ways = [options(2, extra_length=4, n_best=2), options(5, 1.5, 9), options(2, extra_length=4, alignments=True)]
    segments = [Segment(ids, ways[i % 5 % 3]) for i, ids in enumerate(sources_of(15, 5))]
    search = by_engine([engine_model(model)]) if engine else by_torch([model])
    search_all(search, segments)
    for segment in segments:
        search_all(search, [alone := Segment(segment.ids, segment.options)])
        for ours, other in zip(segment.hypotheses, alone.hypotheses, strict=True):
            assert (ours.ids, ours.source_positions) == (other.ids, other.source_positions)
            assert ours.score == pytest.approx(other.score, abs=1e-10)


@pytest.mark.parametrize("engine", [False, True])
def test_a_translation_ends_with_a_prefix_that_leaves_no_room(engine: bool) -> None:
    """At the longest length, EOS takes the place of the prefix's next token."""
    model = model_of(2, max_length=8)
    for length in (6, 7, 9):
        ((best,),) = searched([model], [[5, EOS]], options(), engine=engine, prefixes=[[6, 7, 8] * 3][:1])
        assert best.ids == ([6, 7, 8] * 3)[:7]
        segment = Segment([5, EOS], options(), [6, 7, 8] * 3, max_tokens=length)
        search_all(by_engine([engine_model(model)]) if engine else by_torch([model]), [segment])
        assert [h.ids for h in segment.hypotheses] == [([6, 7, 8] * 3)[: min(length, 8) - 1]]


def test_a_repeated_search_forgets_earlier_hypotheses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory runs out within a sentence. The search is repeated with ever fewer rows, down to the beam."""
    model, step, tried = model_of(3, eos=2), DecoderCache.step, list[int]()
    sources, how = sources_of(6, 3), options(beam=4, extra_length=9, n_best=4)
    expected = searched([model], sources, how)

    def limited(self: DecoderCache, ids: Any, positions: Any, *rest: Any) -> Any:
        tried.append(len(ids))
        if len(ids) > most and positions.max() >= 7:
            raise torch.OutOfMemoryError
        return step(self, ids, positions, *rest)

    monkeypatch.setattr(DecoderCache, "step", limited)
    monkeypatch.setattr(torch_search, "rows_at_once", lambda _: 16)
    for most in (8, 0):
        left = Hypothesis([9], 0.0, 0.0, [0.0])  # left by the failed search, and better than any other
        segments = [Segment(ids, how, hypotheses=[left]) for ids in sources]
        with pytest.raises(StorageError) if not most else contextlib.nullcontext():
            search_all(partial(torch_search.search, [model], DOUBLE), segments)
            assert [[h.ids for h in each.hypotheses] for each in segments] == [[h.ids for h in e] for e in expected]
    assert min(tried) == 4
    assert re.findall(r"continuing with (\d+)", capsys.readouterr().err)[:3] == ["8", "8", "4"]


def test_preparing_a_model_for_search_does_not_change_it() -> None:
    model = random_model(tiny(output_bias=True), V)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    frozen = for_inference(model.train(), torch.float32)
    assert model.training
    assert all(parameter.requires_grad and parameter.dtype == DOUBLE for parameter in model.parameters())
    assert [name for name, _ in model.named_modules()] == [n for n, _ in frozen.named_modules() if n != "output"]
    with torch.no_grad():
        frozen.output.weight.zero_()
        frozen.embedding.weight.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not frozen.training
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert (frozen.output.weight.dtype, frozen.embedding.weight.dtype) == (torch.float32, DOUBLE)
    assert frozen.output.weight.shape == (BLOCK, 12)
    assert torch.equal(frozen.output.bias[:V], before["output_bias"].float())


@pytest.mark.parametrize(("slots", "width", "blocks"), [(1, 1, 1), (5, 1, 4), (1, 4, 1), (3, 4, 2), (5, 3, 4)])
def test_the_best_found_by_blocks_are_the_best_of_all(slots: int, width: int, blocks: int) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(slots * width, blocks * BLOCK, generator=generator, dtype=DOUBLE)
    base = torch.randn(slots * width, 1, generator=generator, dtype=DOUBLE)
    largest = scores.view(slots * width, blocks, BLOCK).amax(-1)
    for most in (1, 2 * width, BLOCK):
        sums, parents, ids = candidates._top(scores, largest, base, width, most)
        wanted, indices = (scores + base).view(slots, -1).topk(most, 1)
        assert torch.equal(sums, wanted)
        assert torch.equal(parents * (blocks * BLOCK) + ids, indices)
