"""Search against brute force, against a plain search without caches, alone against in company, and by force.

Models are random and float64 unless a test says otherwise: then equal means equal.
"""

import gc
import itertools
import math
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from reference import batch_of, random_model, random_pairs, tiny
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.transformer import cache
from nmt_cli.transformer.attention import linear
from nmt_cli.transformer.cache import BLOCK, DecoderCache, _logits, activation_ranges, for_inference
from nmt_cli.transformer.hardware import Int8Linear, PackedLinear, Replayed, choose_dtype
from nmt_cli.transformer.model import PAD, Transformer
from nmt_cli.translation import candidates
from nmt_cli.translation.candidates import Sampling
from nmt_cli.translation.search import SearchSettings, _Slots, score_targets, search
from nmt_cli.translation.segments import Hypothesis, Segment, length_penalty

DOUBLE = torch.float64
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
READS = {"cpu", "tolist", "item", "__bool__", "__int__", "__float__", "__index__", "nonzero", "masked_select"}
READS |= {"_local_scalar_dense", "equal", "is_nonzero", "unique", "_unique2"}
V = 30


def model_of(
    seed: int = 0,
    vocabulary: int = V,
    dtype: torch.dtype = DOUBLE,
    eos: float = 1,
    device: str = "cpu",
    **changes: object,
) -> Transformer:
    model = random_model(tiny(**changes), vocabulary, seed)
    with torch.no_grad():  # sharper choices; with a larger `eos` many sentences end by themselves
        model.embedding.weight *= 2
        model.embedding.weight[EOS] *= eos
    return for_inference(model.to(device, dtype), dtype)


def sources_of(count: int, seed: int = 0, vocabulary: int = V, longest: int = 9) -> list[list[int]]:
    lengths = torch.randint(2, longest, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [pair[0] for pair in random_pairs(seed, vocabulary, [(n, 2) for n in lengths])]


def searched(
    models: list[Transformer], sources: list[list[int]], how: SearchSettings, dtype: torch.dtype = DOUBLE
) -> list[list[Hypothesis]]:
    segments = iter([Segment(i, ids, key=(i,)) for i, ids in enumerate(sources)])
    results = dict(itertools.chain.from_iterable(search(models, dtype, segments, how)))
    assert sorted(results) == list(range(len(sources)))
    return [results[i] for i in range(len(sources))]


def log_probabilities(model: Transformer, source: list[int], prefixes: list[list[int]]) -> torch.Tensor:
    """Return log-probabilities (prefixes x V) of what follows, by the whole model and no cache."""
    with torch.no_grad():
        batch = batch_of([(source, [*prefix, EOS]) for prefix in prefixes])
        logits = model.logits(model(batch))
    ends = batch.tgt.lengths_B.cumsum(0) - 1
    return torch.log_softmax(logits[ends], -1)


def plain_beam(model: Transformer, source: list[int], how: SearchSettings) -> tuple[list[int], float, int]:
    """Return the best translation by the search that search.py describes, one sentence and one step at a time, with
    its score and the steps it took."""
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
            (total / float(length_penalty(position + 1, how.alpha)), ids)
            for total, ids, token in every[: how.beam]
            if token == EOS
        ]
        if how.beam == 1 and finished:
            break
        alive = [(total, [*ids, token]) for total, ids, token in every if token != EOS][: how.beam]
        longest = min(position + 2 + 10 * how.alpha, limit)
        if finished and alive and alive[0][0] / length_penalty(longest, how.alpha) <= max(finished)[0]:
            break
    best = max(finished, key=lambda f: f[0])
    return best[1], best[0], position + 1


def test_full_width_beam_search_is_brute_force() -> None:
    """200 random models; a full-width search finds the n best of all sequences there are."""
    length, best = 4, 5
    sequences = [list(s) for n in range(length) for s in itertools.product([1, 3, 4], repeat=n)]
    for seed in range(200):
        model = model_of(seed, vocabulary=5)
        source = sources_of(1, seed, vocabulary=5, longest=3)[0]
        how = SearchSettings(beam=128, alpha=0.6 + seed % 3, extra_length=length - len(source), best=best)
        forced = score_targets([model], DOUBLE, [(source, [*s, EOS]) for s in sequences])
        scores = [math.fsum(values) / ((5 + len(values)) / 6) ** how.alpha for values in forced]
        ranked = sorted(zip(scores, sequences, strict=True), reverse=True)
        (hypotheses,) = searched([model], [source], how)
        assert [h.ids for h in hypotheses] == [s for _, s in ranked[:best]]
        assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in ranked[:best]], abs=1e-10)


@pytest.mark.parametrize(("beam", "alpha", "eos"), [(1, 4.0, 2), (4, 0.6, 2), (3, 0.0, 2), (5, 1.5, 2), (5, 4.0, 4)])
def test_beam_search_is_the_plain_search(beam: int, alpha: float, eos: float) -> None:
    how = SearchSettings(beam=beam, alpha=alpha, extra_length=5, rows=5 * beam)
    for seed, changes in enumerate([{}, {"norm": "pre"}, {"positions": "learned"}]):
        model, sources = model_of(seed, eos=eos, **changes), sources_of(15, seed)
        for source, (best,) in zip(sources, searched([model], sources, how), strict=True):
            ids, score, _ = plain_beam(model, source, how)
            assert best.score == pytest.approx(score, abs=1e-10)
            assert best.ids == ids


@pytest.mark.parametrize(("seed", "eos", "steps"), [(4, 1.0, [24, 3, 5, 6, 6]), (1, 1.4, [54, 40, 56, 40, 56])])
def test_search_stops_when_nothing_can_win_soon(
    seed: int, eos: float, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the longest length what counts, it would take 35 and 44 steps where these take 24 and 40."""
    model, how, step, taken = model_of(seed, eos=eos, max_length=64), SearchSettings(), _Slots.step, list[int]()
    monkeypatch.setattr(_Slots, "step", lambda slots: taken.append(1) or step(slots))
    for source, count in zip(sources_of(5, 2), steps, strict=True):
        taken.clear()
        ((best,),) = searched([model], [source], how)
        ids, _, expected = plain_beam(model, source, how)
        assert (best.ids, len(taken)) == (ids, expected)
        assert expected == count


@pytest.mark.parametrize(("dtype", "tolerance", "ties"), [(DOUBLE, 1e-10, 0), (torch.float32, 1e-4, 1)])
def test_a_sentence_is_translated_alike_in_any_company(dtype: torch.dtype, tolerance: float, ties: int) -> None:
    """Alone, in batches of 64, in any order; what differs in float32 differs by a tie within rounding."""
    model, sources = model_of(3, dtype=dtype, eos=2), sources_of(300, 3, longest=14)
    alone = searched([model], sources, SearchSettings(extra_length=8, rows=4), dtype)
    together = searched([model], sources, SearchSettings(extra_length=8, rows=256), dtype)
    reverse = searched([model], sources[::-1], SearchSettings(extra_length=8, rows=100), dtype)[::-1]
    for others in (together, reverse):
        scores = [[h.score for (h,) in results] for results in (alone, others)]
        assert scores[0] == pytest.approx(scores[1], abs=tolerance)
        assert sum(a.ids != b.ids for (a,), (b,) in zip(alone, others, strict=True)) <= ties


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_cached_steps_are_the_whole_model(dtype: torch.dtype, tolerance: float) -> None:
    """40 steps in which hypotheses continue each other at random, so that entries are taken over many times."""
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
def test_a_cache_does_not_grow_with_what_is_forgotten() -> None:
    """Hypotheses that all come from one ancestor need one entry a position; a slot that was left needs none."""
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
    """Steps in caches of one size do the same with the same memory, and nothing in them waits for the device."""
    models = [model_of(seed, device=device) for seed in range(members)]
    segments = [Segment(i, ids, [5] * (i % 2)) for i, ids in enumerate(sources_of(6, longest=14))]
    slots = _Slots(models, DOUBLE, iter(segments), SearchSettings(beam, extra_length=40))
    slots.cache.captured, slots.cache.round, steps, compute = True, 64, [], slots._best

    def recorded(*inputs: torch.Tensor) -> torch.Tensor:
        with Calls() as calls:
            output = compute(*inputs)
        steps.append((calls.calls, slots.cache.storage()))
        return output

    slots._best = recorded
    slots.fill()
    for _ in range(1 + 8 // beam):  # then the caches are of the new size
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
def test_where_steps_are_captured_their_size_changes_seldom(captured: bool) -> None:
    slots = _Slots([model_of(1)], DOUBLE, iter([]), SearchSettings(4))
    slots.cache.captured, sizes = captured, []
    for count in (8, 5, 4, 3, 2, 4, 5):
        slots._resize(range(min(count, len(slots.segments))), count)
        sizes.append(len(slots.segments))
    assert sizes == ([8, 8, 8, 8, 2, 4, 8] if captured else [8, 8, 4, 4, 2, 4, 8])


@torch.inference_mode()
def test_caches_are_freed_as_soon_as_a_search_ends() -> None:
    """Else the search that starts again with fewer rows, for want of memory, finds it still taken."""
    slots = _Slots([model_of(1)], DOUBLE, iter([Segment(1, [5, EOS])]), SearchSettings(4))
    slots.fill()
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
@pytest.mark.parametrize(
    "how", [SearchSettings(extra_length=8), SearchSettings(1, extra_length=8, sampling=Sampling())]
)
def test_replayed_steps_are_the_steps(
    device: str, dtype: torch.dtype, how: SearchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sources = model_of(3, device=device, dtype=dtype, eos=2, d_k=16, d_v=16), sources_of(300, 3, longest=14)
    replayed = searched([model], sources, how, dtype)
    monkeypatch.setattr(Replayed, "__call__", lambda _, best, *x: best(*(torch.from_numpy(y).cuda() for y in x)))
    assert searched([model], sources, how, dtype) == replayed


@pytest.mark.parametrize("members", [1, 2])
def test_a_score_is_the_forced_score(members: int) -> None:
    """Every printed number is what forced scoring gives; an ensemble averages probabilities."""
    models, sources = [model_of(seed) for seed in range(members)], sources_of(40, 5)
    how = SearchSettings(beam=4, extra_length=6, best=3, rows=32)
    for source, hypotheses in zip(sources, searched(models, sources, how), strict=True):
        pairs = [(source, [*h.ids, EOS]) for h in hypotheses]
        forced = score_targets(models, DOUBLE, pairs)
        alone = zip(*(score_targets([model], DOUBLE, pairs) for model in models), strict=True)
        for h, values, each in zip(hypotheses, forced, alone, strict=True):
            assert h.token_log_probabilities == pytest.approx(values, abs=1e-10)
            assert values == pytest.approx(torch.tensor(each, dtype=DOUBLE).exp().mean(0).log().tolist(), abs=1e-10)
            assert h.log_probability == pytest.approx(math.fsum(values), abs=1e-10)
            assert h.score == pytest.approx(h.log_probability / ((5 + len(h.ids) + 1) / 6) ** 0.6, abs=1e-12)
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        assert len({tuple(h.ids) for h in hypotheses}) == 3


def test_no_translation_is_longer_than_its_own_source_allows_or_the_model_can_count() -> None:
    model, sources = model_of(2, max_length=16), sources_of(60, 2, longest=16)
    with torch.no_grad():
        model.output.weight[EOS] = 0  # it hardly ever ends by itself
    segments = [Segment(i, source, [5] * (i % 3)) for i, source in enumerate(sources)]
    steps = search([model], DOUBLE, iter(segments), SearchSettings(extra_length=3))
    results = dict(itertools.chain.from_iterable(steps))
    spare = [min(len(s.ids) + len(s.prefix) + 3, 16) - len(results[s.id][0].ids) - 1 for s in segments]
    assert min(spare) == 0
    assert spare.count(0) > 30
    assert max(len(h[0].ids) for h in searched([model], sources, SearchSettings(extra_length=50))) == 15


def test_prefixes_are_kept_and_scored() -> None:
    model, sources = model_of(4), sources_of(30, 4)
    prefixes = [[5, 6, 7][: i % 4] for i in range(30)]
    segments = iter([Segment(i, s, prefixes[i]) for i, s in enumerate(sources)])
    steps = search([model], DOUBLE, segments, SearchSettings(extra_length=6, rows=16))
    results = dict(itertools.chain.from_iterable(steps))
    free = searched([model], sources, SearchSettings(extra_length=6))
    for i, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
        (best,) = results[i]
        assert best.ids[: len(prefix)] == prefix
        (forced,) = score_targets([model], DOUBLE, [(source, [*best.ids, EOS])])
        assert best.token_log_probabilities == pytest.approx(forced, abs=1e-10)
        assert prefix or best.ids == free[i][0].ids


def test_a_long_source_does_not_widen_the_grids_of_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model, layouts, encode = model_of(max_length=99), list[Any](), DecoderCache.encode
    monkeypatch.setattr(DecoderCache, "encode", lambda self, ids, src: layouts.append(src) or encode(self, ids, src))
    sources = [*sources_of(1, longest=3), [3] * 63 + [EOS], *sources_of(20, 1)]
    together = searched([model], sources, SearchSettings(beam=1, extra_length=3))
    assert sum(count * width**2 for count, width in layouts[0].blocks) < 4 * 64**2, "not 22 times 64 x 64"
    for source, (best,) in zip(sources, together, strict=True):
        assert searched([model], [source], SearchSettings(beam=1, extra_length=3))[0][0].ids == best.ids


def test_samples_depend_on_the_seed_and_the_key_alone() -> None:
    model, sources = model_of(5), sources_of(60, 5)
    draw = Sampling(temperature=1.3, top_k=12, top_p=0.95, seed=7)
    ways = [(1, draw), (50, draw), (None, replace(draw, seed=8)), (None, Sampling(top_k=1)), (None, None)]
    hows = [SearchSettings(beam=1, extra_length=5, rows=rows, sampling=sampling) for rows, sampling in ways]
    found = [[best for (best,) in searched([model], sources, how)] for how in hows]
    one, many, other, best, greedy = ([h.ids for h in each] for each in found)
    assert one == many
    assert best == greedy
    assert sum(a != b for a, b in zip(one, other, strict=True)) > 30
    forced = score_targets([model], DOUBLE, [(source, [*ids, EOS]) for source, ids in zip(sources, one, strict=True)])
    assert [h.token_log_probabilities for h in found[1]] == [pytest.approx(values, abs=1e-10) for values in forced]


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


@pytest.mark.parametrize(("slots", "width", "blocks"), [(1, 1, 1), (5, 1, 4), (1, 4, 1), (3, 4, 2), (5, 3, 4)])
def test_the_best_by_blocks_are_the_best(slots: int, width: int, blocks: int) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(slots * width, blocks * BLOCK, generator=generator, dtype=DOUBLE)
    base = torch.randn(slots * width, 1, generator=generator, dtype=DOUBLE)
    largest = scores.view(slots * width, blocks, BLOCK).amax(-1)
    sums, parents, ids = candidates._top(scores, largest, base, width)
    wanted, places = (scores + base).view(slots, -1).topk(2 * width, 1)
    assert torch.equal(sums, wanted)
    assert torch.equal(parents * (blocks * BLOCK) + ids, places)


def test_int8_layers_are_nearly_the_layers_and_rows_are_independent() -> None:
    generator = torch.Generator().manual_seed(0)
    weights, biases = (
        [torch.randn(size, generator=generator) for size in sizes] for sizes in (((96, 64), (32, 96)), (96, 32))
    )
    x = torch.randn(20, 64, generator=generator)
    inner = [x @ weights[0].T + b for b in (biases[0], 0)]
    expected = [inner[0], inner[1], inner[0].relu() @ weights[1].T + biases[1]]
    for exact, (bias, fed) in zip(expected, ((biases[0], False), (None, False), (biases[0], True)), strict=True):
        first = Int8Linear(weights[0], bias, torch.float32, float(x.abs().max()))
        second = Int8Linear(weights[1], biases[1], torch.float32, float(inner[0].max()))
        if fed:
            first.fuse_relu_into(second)
            assert first(x).dtype == torch.uint8
        compute = torch.nn.Sequential(first, *([second] if fed else []))
        whole = compute(x)
        assert ((whole - exact).abs().amax(1) <= 0.03 * exact.abs().amax(1)).all()
        assert torch.equal(torch.cat([compute(row) for row in x.split(1)]), whole)
    layer = Int8Linear(torch.eye(2), None, torch.float32, 3.0)
    assert layer(torch.tensor([[9.0, -9.0], [0.0, 3.0]])).tolist() == [[3, -3], [0, 3]]  # larger ones are cut


def test_packed_layers_are_the_layers() -> None:
    for dtype, error in {choose_dtype("auto", torch.device("cpu")): 0, torch.float32: 1e-5}.items():
        weight, bias, x = (torch.randn(size).to(dtype) for size in ((96, 64), (96,), (20, 64)))
        for b in (bias, None):
            expected = torch.nn.functional.linear(x, weight, b)
            assert torch.allclose(PackedLinear(weight, b, dtype)(x), expected, rtol=0, atol=error)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_all_layers_are_of_bytes_by_ranges_and_logits_are_float32(
    activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranges are those of 100 real pairs; without them, and in small layers, a model is computed in 16 bits."""
    model = random_model(tiny(activation=activation, d_ff=96), 600).float()
    batch = batch_of(random_pairs(1, 600, [(5, 7)] * 100))
    ranges = activation_ranges(model, batch)
    exact, ours = (for_inference(model, torch.float32, known) for known in (None, ranges))
    layers = {name: layer for name, layer in ours.named_modules() if isinstance(layer, Int8Linear)}
    assert set(layers) == set(ranges) == {n for n, layer in exact.named_modules() if isinstance(layer, PackedLinear)}
    fed = {name.rpartition(".")[2] for name, layer in layers.items() if layer.result[1] == torch.uint8}
    assert fed == ({"inner"} if activation == "relu" else set())
    with torch.inference_mode():
        logits = [linear(each(batch), each.output) for each in (exact, ours)]
    assert logits[1].dtype == torch.float32
    assert (logits[0] - logits[1]).square().mean().sqrt() < 0.05 * logits[0].std()
    assert _logits(torch.full((2, 16), torch.inf), ours.output).isnan().all(), "bytes hide nothing"
    assert not [m for m in for_inference(model, torch.bfloat16).modules() if isinstance(m, Int8Linear)]
    monkeypatch.setattr(cache, "SMALL", model.decoder[0].feed_forward.inner.weight.numel() - 1)
    mixed = for_inference(model, torch.bfloat16, ranges).named_modules()
    assert {n.rpartition(".")[2] for n, m in mixed if isinstance(m, Int8Linear)} == {"inner", "outer", "output"}
    with torch.no_grad():
        model.decoder[0].feed_forward.inner.weight.fill_(3e38)
    assert activation_ranges(model, batch) == {}
