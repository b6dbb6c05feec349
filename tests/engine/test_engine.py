"""The engine's search compared with torch's, in every shape and with every option; its memory, errors and files."""

import ctypes
import gc
import itertools
import json
import mmap
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import random_pairs
from searching import (
    SHAPES,
    V,
    assert_same,
    by_engine,
    by_torch,
    engine_model,
    engine_tensors,
    model_of,
    options,
    search_all,
    searched,
    sources_of,
)
from tiny_model import make_model

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.engine import library, safetensors_file
from nmt_cli.engine.layout import tensor_shapes
from nmt_cli.engine.model import SIGNATURES, Model
from nmt_cli.engine.safetensors_file import Tensor
from nmt_cli.system.errors import DataError, DivergedError, StorageError
from nmt_cli.transformer.directory import open_model
from nmt_cli.translation import engine_backend, retry
from nmt_cli.translation import search as torch_search
from nmt_cli.translation.constraints import Constraints
from nmt_cli.translation.engine_backend import EngineSearch
from nmt_cli.translation.options import Sampling, SearchOptions
from nmt_cli.translation.queue import Search, WorkerQueue
from nmt_cli.translation.segments import Segment
from nmt_cli.translation.shortlist import Shortlist

WAYS = [
    options(beam=4, extra_length=6, alignments=True),
    options(beam=1, extra_length=6, alignments=True),
    options(beam=5, alpha=1.3, extra_length=9, n_best=5, alignments=True),
    options(beam=40, alpha=0, extra_length=4, n_best=40),
    options(beam=1, extra_length=8, sampling=Sampling(1.4, 9, 0.9, 3)),
    options(beam=1, extra_length=8, sampling=Sampling(0.8)),
    options(beam=1, extra_length=8, sampling=Sampling(top_p=0.5)),
]


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_every_shape_gives_the_same_results_as_torch(number: int) -> None:
    """Single models and ensembles of two take turns."""
    models = [model_of(seed, eos=1.5, vocabulary=77, **SHAPES[number]) for seed in range(2)]
    sources = sources_of(5, 4, vocabulary=39, longest=20)
    prefixes = [[5, 6, 7][: i % 4] for i in range(5)]
    for turn, way in enumerate(WAYS, number):
        members = models[: 1 + turn % 2]
        ours, theirs = (searched(members, sources, way, engine=e, prefixes=prefixes) for e in (True, False))
        assert_same(ours, theirs)
        same = [(a, b) for pair in zip(ours, theirs, strict=True) for a, b in zip(*pair, strict=True) if a.ids == b.ids]
        assert len(same) > 0.9 * sum(map(len, ours))
        assert all(a.source_positions == b.source_positions for a, b in same)
        assert all(
            len(a.source_positions) == (len(a.ids) if way.alignments else 0) for a in itertools.chain(*ours, *theirs)
        )


def test_segments_of_all_options_share_one_search() -> None:
    """Each result has the same bits as in a search of its own."""
    model = model_of(3, eos=1.5, max_length=64)
    sources, draw = sources_of(40, 3, longest=40), random.Random(1)
    ways = [draw.choice(WAYS) for _ in sources]
    segments = [Segment(ids, way, [4] * (i % 3), (i,)) for i, (ids, way) in enumerate(zip(sources, ways, strict=True))]
    search = partial(engine_backend.search, [engine_model(model)])
    search_all(search, segments)
    for i, segment in enumerate(segments):
        alone = Segment(segment.ids, segment.options, segment.prefix, (i,))
        search_all(search, [alone])
        assert segment.hypotheses == alone.hypotheses


@pytest.mark.parametrize("int8", [False, True])
def test_rows_do_not_see_each_other(int8: bool) -> None:
    """The hypotheses and scores of a sentence are the same to the last bit, whichever others are searched with it."""
    model = engine_model(model_of(3, eos=2), int8=int8)
    sources, how, found = sources_of(100, 3, longest=14), options(n_best=2), []
    for order, rows in ((1, 4), (1, 384), (-1, 100)):
        segments = [Segment(ids, how) for ids in sources]
        search_all(by_engine([model], rows), segments[::order])
        found.append([segment.hypotheses for segment in segments])
    assert found[0] == found[1] == found[2]


def listing(seed: int, vocabulary: int) -> Shortlist:
    """Return a shortlist of random tokens, some of them for every source."""
    draw = random.Random(seed)
    lists = [draw.sample(range(1, vocabulary), draw.randint(0, 9)) for _ in range(vocabulary)]
    ends = list(itertools.accumulate(map(len, lists)))
    return Shortlist(draw.sample(range(3, vocabulary), 5), ends, list(itertools.chain.from_iterable(lists)))


@pytest.mark.parametrize("way", [WAYS[0], WAYS[2], WAYS[4], WAYS[6]])
@pytest.mark.parametrize("shape", [{}, {"decoder_cell": "ssru", "output_bias": True, "norm": "pre"}])
def test_shortlists_give_the_same_results_as_torch(shape: dict[str, Any], way: SearchOptions) -> None:
    """Hypotheses have listed tokens only, and log-probabilities are normalized over these tokens."""
    model, shortlist = model_of(2, eos=1.5, vocabulary=150, **shape), listing(5, 150)
    sources, prefixes = sources_of(20, 4, vocabulary=150, longest=12), [[5, 6, 7][: i % 4] for i in range(20)]
    chosen = replace(way, shortlist=shortlist)
    ours, theirs = (searched([model], sources, chosen, engine=e, prefixes=prefixes) for e in (True, False))
    assert_same(ours, theirs)
    for source, prefix, hypotheses in zip(sources, prefixes, ours, strict=True):
        allowed = set(shortlist.tokens(Segment(source, chosen, prefix)))
        assert all(set(hypothesis.ids) <= allowed for hypothesis in hypotheses)
    others = searched([model], sources, way, engine=True, prefixes=prefixes)
    assert [each[0].ids for each in others] != [each[0].ids for each in ours]


def test_terms_and_prefixes_are_always_listed() -> None:
    constraints = Constraints([[[90, 91]], [[92], [93, 94]]], bytes([1] * 150))
    shortlist, source = listing(6, 150), [7, 8, EOS]
    for engine in (True, False):
        model = model_of(2, eos=1.5, vocabulary=150)
        segment = Segment(source, options(8, shortlist=shortlist), [80, 81], max_tokens=20, constraints=constraints)
        search_all(by_engine([engine_model(model)]) if engine else by_torch([model]), [segment])
        assert segment.hypotheses
        for hypothesis in segment.hypotheses:
            assert hypothesis.ids[:2] == [80, 81]
            assert {90, 91} <= set(hypothesis.ids)


@pytest.mark.parametrize("int8", [False, True])
def test_shortlists_of_other_segments_have_no_effect(int8: bool) -> None:
    """A result has the same bits alone and beside others, with and without shortlists, and in reused slots."""
    model = engine_model(model_of(3, eos=1.5, vocabulary=500), int8=int8)
    draw, segments, before = random.Random(3), list[Segment](), list[Segment]()
    for ids in sources_of(60, 3, vocabulary=500, longest=14):
        way = replace(draw.choice(WAYS), shortlist=draw.choice([None, listing(1, 500), listing(2, 500)]))
        segments.append(Segment(ids, way, random_key=(len(segments),)))
    for rows in (8, 384):
        again = [Segment(segment.ids, segment.options, random_key=segment.random_key) for segment in segments]
        search_all(by_engine([model], rows), again)
        if rows == 384:
            assert [segment.hypotheses for segment in again] == [segment.hypotheses for segment in before]
        before = again
    for segment in before[:20]:
        alone = Segment(segment.ids, segment.options, random_key=segment.random_key)
        search_all(by_engine([model]), [alone])
        assert alone.hypotheses == segment.hypotheses


@pytest.mark.parametrize("shape", SHAPES)
def test_8_bits_are_nearly_float32(shape: dict[str, Any]) -> None:
    """Token log-probabilities of given translations are near those of float32, in every shape."""
    model = model_of(1, vocabulary=77, **{"d_model": 64, "d_ff": 128, **shape})
    pairs = random_pairs(2, 39, [(9, 7)] * 40)
    scores = []
    for int8 in (False, True):
        segments = [Segment(list(src), options(1), list(tgt[:-1]), max_tokens=len(tgt)) for src, tgt in pairs]
        search_all(by_engine([engine_model(model, int8=int8)]), segments)
        assert [s.hypotheses[0].ids for s in segments] == [list(tgt[:-1]) for _, tgt in pairs]
        values = itertools.chain.from_iterable(s.hypotheses[0].token_log_probabilities for s in segments)
        scores.append(torch.tensor(list(values)))
    assert 0 < (scores[0] - scores[1]).square().mean().sqrt() < 0.1 * scores[0].std()


NO_NUMBER = np.array([0x7FFFFFFF], np.uint32).view(np.float32).item()  # a NaN with all bits of its payload set


@pytest.mark.parametrize("bad", [float("nan"), NO_NUMBER, float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_end_the_search(bad: float) -> None:
    """This holds for every weight in which torch notices them. Neither a maximum nor 8-bit weights hide them."""
    model, noticed, sources, how = model_of(1, norm="pre"), 0, sources_of(1), options(2, extra_length=3)
    for name in [name for name, _ in model.named_parameters() if not name.startswith("output.")]:
        numbers = [model.get_parameter(name).data.view(-1)[-1:]]
        if name == "embedding.weight":
            numbers.append(model.output.weight.data[V - 1, -1:])
        before = [number.clone() for number in numbers]
        for number in numbers:
            number.fill_(bad)
        try:
            searched([model], sources, how)
        except DivergedError:
            noticed += 1
            for int8 in (False, True):
                with pytest.raises(DivergedError, match="not finite"):
                    search_all(by_engine([engine_model(model, int8=int8)]), [Segment(ids, how) for ids in sources])
        for number, old in zip(numbers, before, strict=True):
            number.copy_(old)
    assert noticed > 30


def test_background_segments_let_others_run() -> None:
    """Beside foreground segments they advance in one call of `run` in four, otherwise in all. Results do not change."""
    model = engine_model(model_of(2, eos=0, max_length=200))
    ids, limit = sources_of(1)[0], 24

    def calls_until_done(*neighbors: bool) -> tuple[int, Any]:
        search = EngineSearch([model], 4)
        first = Segment(ids, options(2), max_tokens=limit, background=True)
        search.enter([first, *(Segment(ids, options(2), max_tokens=100, background=each) for each in neighbors)])
        for call in itertools.count(1):
            if first in search.run(1):
                return call, first.hypotheses

    alone, hypotheses = calls_until_done()
    assert alone == limit
    assert calls_until_done(True) == (limit, hypotheses)
    calls, same = calls_until_done(False, True)
    assert 4 * (limit - 1) < calls <= 4 * limit
    assert same == hypotheses


def test_memory_that_runs_out_halves_the_rows(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """After a failed allocation, unfinished segments start again, fewer at once. If one alone fails, it is an error."""
    model, sources = engine_model(model_of(2)), sources_of(60)
    expected = searched([model_of(2)], sources, options(), engine=True)
    init, enter, least = EngineSearch.__init__, EngineSearch.enter, 100
    slots = dict[EngineSearch, int]()

    def noted(search: EngineSearch, models: Any, count: int, team: Any) -> None:
        init(search, models, count, team)
        slots[search] = count

    def limited(search: EngineSearch, segments: Sequence[Segment]) -> None:
        if slots[search] - len(search.segments) > least:
            raise MemoryError
        enter(search, segments)

    monkeypatch.setattr(EngineSearch, "__init__", noted)
    monkeypatch.setattr(EngineSearch, "enter", limited)
    segments = [Segment(ids, options()) for ids in sources]
    search = partial(engine_backend.search, [model])
    search_all(search, segments)
    assert [segment.hypotheses for segment in segments] == expected
    assert "continuing with 96 hypotheses" in capfd.readouterr().err
    least = 0
    with pytest.raises(StorageError, match="too little memory"):
        search_all(search, [Segment(sources[0], options())])


def limited_search(search: Callable[[WorkerQueue, int], None], rows: int = 8) -> Search:
    return lambda queue: retry.search_within_memory(search, queue, rows)


def test_rows_grow_again_after_memory_ran_out(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(retry, "REDUCED_SEGMENTS", 3)
    failures, rows_of = [8, 4], list[int]()

    def search(queue: WorkerQueue, rows: int) -> None:
        while taken := queue.take(1, 1000, 1):
            rows_of.append(rows)
            if failures and taken == segments[1:2] and rows == failures[0]:
                failures.pop(0)
                raise MemoryError
            queue.finish(taken)

    segments = [Segment(ids, options(1)) for ids in sources_of(9)]
    assert search_all(limited_search(search), segments) == segments
    assert rows_of == [8, 8, 4, 2, 2, 2, 2, 4, 4, 4, 8]
    assert capfd.readouterr().err.count("out of memory: continuing with") == 2


def test_unfinished_segments_are_searched_again_in_their_order(capfd: Any) -> None:
    segments, taken = [Segment([i, EOS], options(1)) for i in range(6)], list[list[int]]()

    def search(queue: WorkerQueue, _: int) -> None:
        count = 4 if not taken else 6
        given = queue.take(count, 1000, 1000)
        taken.append([segment.ids[0] for segment in given])
        if len(taken) == 1:
            queue.finish([given[1]])
            raise MemoryError
        queue.finish(given)

    done = search_all(limited_search(search), segments)
    assert [segment.ids[0] for segment in done] == [1, 0, 2, 3, 4, 5]
    assert taken == [[0, 1, 2, 3], [0, 2, 3, 4, 5]]
    assert capfd.readouterr().err.count("continuing with 4 hypotheses at once") == 1


def test_an_error_other_than_exhausted_memory_is_not_retried_with_fewer_rows() -> None:
    tried = list[int]()

    def search(queue: WorkerQueue, rows: int) -> None:
        tried.append(rows)
        queue.take(8, 1000, 1000)
        raise RuntimeError("sizes do not match")

    with pytest.raises(RuntimeError, match="sizes do not match"):
        search_all(limited_search(search), [Segment([EOS], options(1))])
    assert tried == [8, 8], "retried once, alone"


def test_slots_are_used_again() -> None:
    """Long, short, wide and narrow segments take turns with the pages and buffers of few slots."""
    model = engine_model(model_of(4, eos=1.2, max_length=128))
    draw = random.Random(2)
    cases = [(draw.randint(1, 100), draw.choice([1, 2, 7, 33, 64])) for _ in range(60)]
    segments = [
        Segment([*[3 + i % 20 for i in range(n)], EOS], options(w), max_tokens=min(n + 11, 128)) for n, w in cases
    ]
    search, waiting = EngineSearch([model], 3), list(segments)
    while waiting or search.segments:
        while waiting and len(search.segments) < 3:
            search.enter([waiting.pop()])
        search.run(5)
    for segment in segments:
        alone = EngineSearch([model], 1)
        alone.enter([again := Segment(segment.ids, segment.options, max_tokens=segment.max_tokens)])
        assert alone.run(1000) == [again]
        assert again.hypotheses == segment.hypotheses


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_that_do_not_fit_their_recipe_are_refused(shape: dict[str, Any]) -> None:
    """A tensor that is missing or has another shape is noticed before its address is read."""
    model, engine = model_of(1, **shape), library.load(SIGNATURES)
    assert engine
    tensors, state = engine_tensors(model)
    needed = [name for name, _ in model.named_parameters() if not name.startswith("output.")]
    assert set(needed) == set(tensor_shapes(model.settings, V))
    for name in needed:
        less = {other: tensor for other, tensor in tensors.items() if other != name}
        *rest, last = tensors[name].shape
        for wrong in (less, {**less, name: Tensor(tensors[name].address, (*rest, last + 1))}):
            with pytest.raises(DataError, match="do not fit the model's settings"):
                Model(engine, model.settings, wrong, state, int8=False)


def weights_file(path: Path, header: dict[str, Any] | bytes, numbers: int = 6, size: int | None = None) -> Path:
    """Write a safetensors file of this many numbers. `size` replaces the size of the header that the file states."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = np.arange(numbers, dtype=np.float32).tobytes()
    path.write_bytes((len(text) if size is None else size).to_bytes(8, "little") + text + data)
    return path


def entry(first: int, last: int, *shape: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


def test_weights_are_read_at_the_offsets_of_the_header(tmp_path: Path) -> None:
    header = {"__metadata__": {"a": "b"}, "one": entry(16, 24, 2), "two": entry(0, 16, 2, 2), "none": entry(24, 24, 0)}
    tensors, mapped = safetensors_file.read_tensors(weights_file(tmp_path / "w", header))
    assert {name: tensor.shape for name, tensor in tensors.items()} == {"one": (2,), "two": (2, 2), "none": (0,)}
    for name, numbers in (("one", [4.0, 5.0]), ("two", [0.0, 1.0, 2.0, 3.0])):
        assert list((ctypes.c_float * len(numbers)).from_address(tensors[name].address)) == numbers
    assert len(mapped) == 24
    many = weights_file(tmp_path / "many", {"x": entry(0, 24, *[1] * 7, 6), "y": entry(24, 24, 0, (1 << 62) - 1)})
    assert safetensors_file.read_tensors(many)[0]["x"].shape == (*[1] * 7, 6)
    assert safetensors_file.read_tensors(weights_file(tmp_path / "none", {}, 0))[0] == {}


@pytest.mark.parametrize(("kept", "zeros"), [([0], [3, 4, 5]), ([5], [0, 1, 2, 3]), ([1, 4], [0, 3]), ([], range(6))])
def test_memory_is_released_except_for_tensors_that_are_read_in_place(kept: list[int], zeros: Sequence[int]) -> None:
    """Only whole pages are released, and they read as zeros. Each tensor takes 1.5 pages. The first is at offset 0."""
    memory = mmap.mmap(-1, 9 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"\1" * len(memory))
    base, size = ctypes.addressof(ctypes.c_char.from_buffer(memory)), 3 * mmap.PAGESIZE // 2
    safetensors_file.release(memory, [Tensor(base + i * size, (size // 4,)) for i in reversed(kept)])
    for i in range(6):
        content = memory[i * size : (i + 1) * size]
        assert (0 in content) == (i not in kept) or i not in zeros
        assert i not in kept or content == b"\1" * size
        assert i not in zeros or content.count(0) >= mmap.PAGESIZE // 2


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_an_opened_model_keeps_only_its_embeddings(tmp_path: Path, positions: str) -> None:
    """These are the embeddings of tokens and of positions. The engine has packed copies of the other tensors."""
    changes = "model.d_model=128", "model.d_ff=512", f"model.positions={positions}"
    path = make_model(tmp_path, *changes) / "model.safetensors"
    engine, settings = library.load(SIGNATURES), open_model(path.parent).config.architecture
    tensors, memory = safetensors_file.read_tensors(path)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    before = bytes(memory)
    assert engine
    model = Model(engine, settings, tensors, memory, int8=True)
    for name, tensor in tensors.items():
        first = tensor.address - base
        same = memory[first : first + tensor.bytes] == before[first : first + tensor.bytes]
        kept = name in ("embedding.weight", "src_positions.weight", "tgt_positions.weight")
        assert same == kept or tensor.bytes < 2 * mmap.PAGESIZE, name
    assert model.handle


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    header = safetensors_file._header

    def longer(*arguments: Any) -> Any:
        size, entries = header(*arguments)
        return size + 1, entries

    monkeypatch.setattr(safetensors_file, "_header", longer)
    with pytest.raises(DataError, match="w was truncated while it was read"):
        safetensors_file.read_tensors(weights_file(tmp_path / "w", {"x": entry(0, 24, 6)}))


@pytest.mark.parametrize(
    ("header", "size", "words"),
    [
        ({"x": entry(0, 28, 7)}, None, "the offsets or the shape of x are wrong"),  # beyond the end of the file
        ({"x": entry(4, 28, 6)}, None, "the offsets or the shape of x are wrong"),
        ({"x": entry(-4, 4, 2)}, None, "the offsets or the shape of x are wrong"),  # before the data
        ({"x": entry(0, 8, 3)}, None, "the offsets or the shape of x are wrong"),  # fewer bytes than the shape needs
        ({"x": entry(0, 16, 3)}, None, "the offsets or the shape of x are wrong"),  # more bytes
        ({"x": entry(0, 24, -2, -3)}, None, "the offsets or the shape of x are wrong"),
        ({"x": entry(0, 12, 6, dtype="BF16")}, None, "has weights that are not F32: x is BF16"),
        ({"x": entry(0, 24, 6, dtype="I32")}, None, "has weights that are not F32: x is I32"),
        ({"x": {"dtype": "F32", "shape": [6]}}, None, "is damaged"),
        ({"x": {"dtype": "F32", "shape": 6, "data_offsets": [0, 24]}}, None, "is damaged"),
        ({"x": [0, 24]}, None, "is damaged"),
        ({"x": entry(0, 24, 6, dtype="F16")}, None, "has weights that are not F32: x is F16"),
        ({"x": entry(0, 20, 5)}, None, "4 bytes belong to no tensor"),
        ({"x": entry(0, 12, 3), "y": entry(0, 24, 6)}, None, "the offsets or the shape of y are wrong"),
        ({"x": entry(0, 24, *[1] * 8, 6)}, None, "the entry of x does not describe a tensor"),
        ({"x": entry(0, 24, 6, True)}, None, "the offsets or the shape of x are wrong"),
        ({"x": entry(False, 24, 6)}, None, "the offsets or the shape of x are wrong"),
        ({"x": entry(0, 24, 6), "y": entry(24, 24, 0, 1 << 62)}, None, "the offsets or the shape of y are wrong"),
        ({"x": {**entry(0, 24, 6), "data_offsets": [0, 24, 24]}}, None, "the entry of x does not describe a tensor"),
        (b'{"x": %b, "x": %b}' % ((json.dumps(entry(0, 24, 6)).encode(),) * 2), None, "a name occurs twice"),
        (b"[]", None, "is damaged"),
        (b"{", None, "is damaged"),
        (b"[" * 200_000, None, "is damaged"),
        (b"{}", 1 << 60, "is damaged"),
        (b"", 0, "is damaged"),
    ],
)
def test_a_damaged_file_of_weights_is_refused_before_it_is_read(
    tmp_path: Path, header: Any, size: int | None, words: str
) -> None:
    with pytest.raises(DataError, match=words) as caught:
        safetensors_file.read_tensors(weights_file(tmp_path / "w", header, size=size))
    assert str(tmp_path / "w") in str(caught.value)


def test_an_empty_file_holds_no_weights(tmp_path: Path) -> None:
    (tmp_path / "w").touch()
    with pytest.raises(DataError, match="is damaged"):
        safetensors_file.read_tensors(tmp_path / "w")


class Library:
    """The engine, but some of its functions return the given results."""

    def __init__(self, **results: int) -> None:
        self.engine, self.results, self.calls = library.load(SIGNATURES), results, list[str]()

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return (lambda *_: self.results[name]) if name in self.results else getattr(self.engine, name)


@pytest.mark.parametrize(
    ("results", "error"),
    [
        ({"model_new": 0}, StorageError),
        ({"search_new": 0}, MemoryError),
        ({"enter": -2}, MemoryError),
        ({"enter": -1}, DivergedError),
        ({"run": -2}, MemoryError),
        ({"run": -1}, DivergedError),
    ],
)
def test_an_error_of_the_engine_is_raised_and_memory_is_freed(results: dict[str, int], error: type[Exception]) -> None:
    """Numbers that are not finite raise another class of error than exhausted memory."""
    model, fake = model_of(1), Library(**results)
    tensors, state = engine_tensors(model)

    def use() -> None:
        search = EngineSearch([Model(fake, model.settings, tensors, state, int8=False)], 2)  # type: ignore[arg-type]
        search.enter([Segment([5, EOS], options(), max_tokens=5)])
        search.run(1)

    with pytest.raises(error) as caught:
        use()
    del caught
    gc.collect()
    freed = [name for name in ("model_free", "search_free") if name in fake.calls]
    made = {"model_new": 0, "search_new": 1}.get(next(iter(results)), 2)
    assert freed == ["model_free", "search_free"][:made]


def test_members_of_an_ensemble_may_have_different_maximum_lengths() -> None:
    """The smallest of them is the limit."""
    models = [model_of(seed, eos=0, max_length=length) for seed, length in ((1, 12), (2, 20))]
    for both in (models, models[::-1]):
        assert EngineSearch([engine_model(model) for model in both], 1).longest == 12
        for engine in (True, False):
            ((best,),) = searched(both, [[5, 6, EOS]], options(beam=2), engine=engine)
            assert len(best.ids) == 11


@pytest.mark.parametrize("engine", [True, False])
def test_a_source_above_the_token_limit_is_searched_alone(engine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one whose beam exceeds the number of hypotheses computed at once. The others are searched together."""
    held = list[tuple[int, int]]()  # source tokens and rows in slots, after each round of entering
    monkeypatch.setattr(engine_backend, "MAX_SOURCE_TOKENS", 12)
    monkeypatch.setattr(torch_search, "MAX_SOURCE_TOKENS", 12)
    run, step = EngineSearch.run, torch_search.Slots.step

    def counted(search: EngineSearch, steps: int) -> Any:
        inside = search.segments.values()
        held.append((sum(len(each.ids) for each in inside), sum(each.options.beam for each in inside)))
        return run(search, steps)

    def counted_too(slots: Any) -> None:
        inside = [segment for segment in slots.segments if segment]
        held.append((sum(len(each.ids) for each in inside), sum(each.options.beam for each in inside)))
        step(slots)

    monkeypatch.setattr(EngineSearch, "run", counted)
    monkeypatch.setattr(torch_search.Slots, "step", counted_too)
    sources, how = [[*range(3, 3 + n), EOS] for n in (4, 5, 20, 3, 3, 3, 14, 2)], options(beam=6, extra_length=4)
    model = model_of(2)
    found = searched([model], sources, how, engine=engine, rows=4)
    assert max(rows for _, rows in held) == 6
    alone = [searched([model], [source], how, engine=engine)[0] for source in sources]
    held.clear()
    together = searched([model], sources, how, engine=engine, rows=600)
    for others in (alone, together):
        assert [best.ids for (best,) in others] == [best.ids for (best,) in found]
    assert {tokens for tokens, _ in held if tokens > 12} == {21, 15}
    assert max(rows for _, rows in held) == 18, "three short sources with six hypotheses each"

    held.clear()  # long searches, which others join later
    searched([model_of(2, eos=0)], [[3, 4, 5, EOS]] * 7, options(beam=1, extra_length=50), engine=engine, rows=600)
    assert max(tokens for tokens, _ in held) == 12
