"""Ensembles of different models, reused slots, the maximum number of terms, and memory that is freed."""

import ctypes
import os
import random
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from searching import (
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

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.engine import library
from nmt_cli.engine.model import SIGNATURES, Model
from nmt_cli.translation.constraints import MAX_TERMS, Constraints
from nmt_cli.translation.engine_backend import EngineSearch
from nmt_cli.translation.segments import Segment
from nmt_cli.translation.shortlist import Shortlist

V = 77
UNLIKE: list[list[dict[str, Any]]] = [
    [{"norm": "pre", "num_heads": 2, "d_k": 6, "d_v": 3}, {"num_layers": 1, "d_model": 20}],
    [{"decoder_cell": "ssru", "num_layers": 3}, {"norm": "pre", "positions": "learned", "d_model": 20}],
    [{"num_layers": 1}, {"decoder_cell": "ssru", "norm": "pre"}],
    [{"positions": "marian"}, {"positions": "marian", "d_model": 2}],
    [{"decoder_cell": "ssru", "d_model": 34}, {"decoder_cell": "ssru", "norm": "pre"}, {"output_bias": True}],
]


@pytest.mark.parametrize("shapes", UNLIKE)
def test_members_of_an_ensemble_may_differ(shapes: list[dict[str, Any]]) -> None:
    """Their sizes, norms and cells may differ, because each member has its own heads, states and caches."""
    models = [model_of(seed, eos=1.5, vocabulary=V, **shape) for seed, shape in enumerate(shapes)]
    sources, how = sources_of(8, 4, vocabulary=V), options(beam=3, extra_length=6, n_best=2, alignments=True)
    ours, theirs = (searched(models, sources, how, engine=engine, rows=9) for engine in (True, False))
    assert_same(ours, theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert [(h.ids, h.source_positions) for h in mine] == [(h.ids, h.source_positions) for h in other]


@pytest.mark.parametrize("members", [1, 2])
def test_an_ensemble_finds_no_token_beyond_its_vocabulary(members: int) -> None:
    """The beam has room for every possible hypothesis."""
    models = [model_of(seed, vocabulary=5, eos=0) for seed in range(members)]
    [hypotheses] = searched(models, [[3, 4, EOS]], options(beam=100, extra_length=1, n_best=100), engine=True)
    assert {i for hypothesis in hypotheses for i in hypothesis.ids} <= {1, 3, 4}
    assert len(hypotheses) == 1 + 3 + 9 + 27


@pytest.mark.parametrize("shape", [{}, {"decoder_cell": "ssru"}])
@pytest.mark.parametrize("constrained", [False, True])
def test_a_slot_forgets_its_previous_sentence(shape: dict[str, Any], constrained: bool) -> None:
    """A reused slot keeps no states, no alignment evidence and no terms."""
    model = engine_model(model_of(3, eos=1.2, vocabulary=V, **shape))
    draw, begins = random.Random(2), bytes([1] * V)
    segments = [
        Segment(
            ids,
            options(draw.choice([1, 3, 9]), alignments=draw.random() < 0.7),
            max_tokens=draw.randint(4, 12),
            constraints=Constraints([[[draw.randint(3, 76)]]], begins) if constrained else None,
        )
        for ids in sources_of(24, 5, vocabulary=V, longest=18)
    ]
    search, waiting = EngineSearch([model], 2), segments[::-1]
    while waiting or search.segments:
        while waiting and len(search.segments) < 2:
            search.enter([waiting.pop()])
        search.run(3)
    for segment in segments:
        alone = EngineSearch([model], 1)
        again = Segment(segment.ids, segment.options, max_tokens=segment.max_tokens, constraints=segment.constraints)
        alone.enter([again])
        assert alone.run(1000) == [again]
        assert again.hypotheses == segment.hypotheses


def test_the_maximum_number_of_terms_is_met() -> None:
    """Each term is one bit of a 64-bit number. A hypothesis may end only if the last bit is set, too."""
    vocabulary = MAX_TERMS + 4
    model = model_of(1, eos=3, vocabulary=vocabulary, max_length=99)
    for count in (MAX_TERMS, 33):
        terms = [[[token]] for token in range(4, 4 + count)]
        constraints, found = Constraints(terms, bytes([1] * vocabulary)), []
        for search in (by_engine([engine_model(model)]), *([by_torch([model])] if count < MAX_TERMS else [])):
            segment = Segment([5, 6, EOS], options(beam=2), max_tokens=count + 3, constraints=constraints)
            search_all(search, [segment])
            assert segment.hypotheses
            assert set(segment.hypotheses[0].ids) >= {token for [[token]] in terms}
            found.append([segment.hypotheses])
        assert_same(found[0], found[-1])


class Usage(ctypes.Structure):
    """The result of glibc's mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks"),
            *("fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated() -> int:
    """Return the bytes that this process has allocated and not freed."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Usage
    usage = ask()
    return int(usage.uordblks + usage.hblkhd)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_memory_is_freed() -> None:
    """Segments that leave, searches that end and models that are deleted free their memory."""
    engine = library.load(SIGNATURES)
    assert engine
    weights = model_of(1, eos=0, vocabulary=V, d_model=64, d_ff=256, max_length=400)
    tensors, state = engine_tensors(weights)
    model, long = engine_model(weights), [5] * 300 + [EOS]
    listed = Shortlist([5], [0] * V, [])

    def segments(count: int, **more: Any) -> list[Segment]:
        return [Segment(long, options(16, alignments=True, **more), max_tokens=20) for _ in range(count)]

    def slots_used_again() -> None:
        for _ in range(5):
            for sources in (segments(2), segments(1, shortlist=listed)):
                search.enter(sources)
                search.run(3)
                for slot in [*search.segments]:
                    search.leave(slot)

    def searches() -> None:
        for _ in range(5):
            other = EngineSearch([model, model], 2)
            other.enter(segments(2, shortlist=listed))
            other.run(2)

    def searches_that_grow() -> None:
        for _ in range(5):
            other = EngineSearch([model, model], 2)
            for beam in (1, 16, 64, 128):
                other.enter([Segment(long, options(beam), max_tokens=20)])
                other.run(2)
                for slot in [*other.segments]:
                    other.leave(slot)

    def models() -> None:
        for int8 in (False, True):
            Model(engine, weights.settings, tensors, state, int8=int8)

    search = EngineSearch([model], 40)
    for use in (slots_used_again, searches, searches_that_grow, models):
        use()
        before = allocated()
        use()
        assert allocated() - before <= 50_000, use.__name__
    before = allocated()
    search.enter(segments(40))
    full = allocated() - before
    for slot in [*search.segments]:
        search.leave(slot)
    assert allocated() - before < full / 2, "slots keep the megabytes that alignments of long sentences took"


def test_a_shortlist_can_be_reused_many_times() -> None:
    """Its columns stay gathered between uses, because another segment needs columns after them."""
    model, draw = engine_model(model_of(3, eos=1.5, vocabulary=150)), random.Random(1)
    ways = [options(2, shortlist=Shortlist(draw.sample(range(3, 150), 60), [0] * 150, [])) for _ in range(2)]
    search, found = EngineSearch([model], 3), list[list[Any]]()
    search.enter([Segment([5, 6, EOS], way, max_tokens=30) for way in ways])
    for _ in range(400):
        search.leave(next(slot for slot, segment in search.segments.items() if segment.options == ways[0]))
        search.enter([Segment([5, 6, EOS], ways[0], max_tokens=30)])
    while search.segments:
        found += [[segment.options, segment.hypotheses] for segment in search.run(9)]
    for way, hypotheses in found:
        alone = EngineSearch([model], 1)
        alone.enter([segment := Segment([5, 6, EOS], way, max_tokens=30)])
        assert alone.run(99) == [segment]
        assert segment.hypotheses == hypotheses


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_search_whose_memory_runs_out_is_freed() -> None:
    """The buffers that it could not replace stay valid. In a child, which freeing one of them twice would kill."""
    vocabulary = 20_000
    model = engine_model(model_of(1, eos=0, vocabulary=vocabulary))

    def segment(beam: int) -> Segment:
        return Segment([5, 6, EOS], options(beam), max_tokens=3)

    def fails(megabytes: int) -> bool:
        """Search with a beam of 2, and then, with so much more memory, with one of 1,000, which needs about 160 MB."""
        search = EngineSearch([model], 1)
        search.enter([segment(2)])
        search.run(3)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (megabytes << 20), before[1]))
        try:
            search.enter([segment(1000)])
        except MemoryError:
            return True
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        return False

    child = os.fork()
    if not child:
        failures = 0
        try:
            failures = sum(map(fails, range(0, 240, 12)))
        finally:
            os._exit(failures)
    assert 2 < os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 20
