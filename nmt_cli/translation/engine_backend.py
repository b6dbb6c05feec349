"""Search on a CPU with the C engine, without torch. engine.c follows the rules described in search.py."""

import ctypes
import itertools
import platform
from array import array
from collections.abc import Iterable, Mapping, Sequence
from ctypes import POINTER, byref, c_double, c_int32, c_void_p
from functools import partial
from typing import Any

from nmt_cli.engine import library
from nmt_cli.engine.model import Model, Request
from nmt_cli.engine.safetensors_file import Tensor
from nmt_cli.engine.team import Team
from nmt_cli.system.errors import NOT_FINITE, DivergedError
from nmt_cli.translation.queue import Backend, WorkerQueue
from nmt_cli.translation.retry import search_within_memory
from nmt_cli.translation.segments import Hypothesis, Segment

ROWS = 384  # maximum hypotheses that a thread searches at once
ENCODE_TOKENS = 2048  # maximum source tokens encoded together, between two steps of a search
MAX_SOURCE_TOKENS = 1 << 16  # maximum source tokens of all segments that a thread searches at once, to limit memory
MAX_TEAM = 8  # maximum threads that share a matrix product; more threads would each have too little to compute
STEPS = 8  # search steps before the queue is checked again
# Engine levels at which 8-bit products are faster than float32 products. The base level is one of them only on x86-64.
FAST_INT8 = (
    "amx",
    "avx512",
    "avxvnni",
    "avx2",
    "i8mm",
    "dotprod",
    *(["base"] if platform.machine() == "x86_64" else []),
)
NOT_FINITE_CODE, NO_MEMORY_CODE = -1, -2  # errors that engine.c returns instead of a count


def best_precision(level: str) -> str:
    return "int8" if level in FAST_INT8 else "fp32"


def on_engine(
    engine: library.Library,
    weights: Sequence[tuple[Any, Mapping[str, Tensor], object]],
    precision: str,
    threads: int,
    cores: int = 1,
) -> Backend:
    """Return a backend for an ensemble.

    `weights` holds, for each model, its architecture, its tensors, and an object that keeps their memory alive.
    `threads` is the number of search threads, and `cores` the number of usable cores. While some search threads are
    idle, helper threads compute parts of the large products of the others.
    """
    chosen = best_precision(engine.level) if precision == "auto" else precision
    models = [Model(engine, *each, int8=chosen == "int8") for each in weights]
    size = min(threads, cores, MAX_TEAM)
    team = Team(engine, size) if size > 1 else None
    return Backend([partial(search, models, team=team)] * threads, f"{chosen}, {engine.level}")


def search(models: Sequence[Model], queue: WorkerQueue, team: Team | None = None) -> None:
    """Search the segments of a queue with an ensemble. Segments with different options may be searched together."""
    search_within_memory(partial(search_with_rows, models, team=team), queue, ROWS)


def search_with_rows(models: Sequence[Model], queue: WorkerQueue, rows: int, team: Team | None = None) -> None:
    """Search with at most `rows` hypotheses at once. A segment with a wider beam is searched alone."""
    engine_search = EngineSearch(models, rows, team)
    while True:
        inside = engine_search.segments.values()
        used_rows = sum(segment.options.beam for segment in inside)
        used_tokens = sum(len(segment.ids) for segment in inside)
        # Each encoding reads all weights of the encoder, so encode several segments together. Wait until an eighth of
        # the rows is free.
        if used_rows <= rows * 7 // 8:
            segments = queue.take(rows - used_rows, MAX_SOURCE_TOKENS - used_tokens, ENCODE_TOKENS)
            if team and segments and queue.others_have_segments:
                team.expect_search()
            engine_search.enter(segments)
        if not engine_search.segments:
            return
        done = engine_search.run(STEPS)
        cancelled = [slot for slot, segment in engine_search.segments.items() if segment.cancelled]
        queue.finish(done + [engine_search.leave(slot) for slot in cancelled])


class EngineSearch:
    """The engine's search in one thread, with an ensemble of models and up to `slots` segments at once.

    Idle threads of `team` help with this search's large matrix products. Raises DivergedError if scores are not finite,
    and MemoryError if there is too little memory. After either error, the search cannot be used again.
    """

    def __init__(self, models: Sequence[Model], slots: int, team: Team | None = None) -> None:
        self.models = models  # this reference keeps the models in memory for engine.c
        self.team = team  # this reference also keeps the team in memory
        self.library = models[0].library
        self.longest = min(model.longest for model in models)
        self.segments: dict[int, Segment] = {}  # the segment in each slot that is in use
        handles = (c_void_p * len(models))(*(model.handle for model in models))
        self.handle = self.library.search_new(handles, len(models), slots, team and team.handle)
        if not self.handle:
            raise MemoryError
        self._free = list(range(slots))[::-1]
        self._memory: dict[int, list[Any]] = {}  # for each slot, the arrays that the engine reads
        self._done = (c_int32 * slots)()
        self._ids = (c_int32 * self.longest)()
        self._source_positions = (c_int32 * self.longest)()
        self._sums = (c_double * self.longest)()
        self._score = c_double()

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self.library.search_free(handle)

    def enter(self, segments: Sequence[Segment]) -> None:
        """Put segments into free slots and encode them."""
        if not segments:
            return
        slots = [self._free.pop() for _ in segments]
        requests = (Request * len(slots))()
        for slot, request, segment in zip(slots, requests, segments, strict=True):
            source = segment.source(self.models[0].source_eos)
            self._memory[slot] = _fill(request, segment, source, segment.limit(self.longest))
            if segment.options.shortlist and len(self.models) == 1:
                tokens = array("i", segment.options.shortlist.tokens(segment))
                self._memory[slot].append(tokens)
                request.listed = ctypes.cast(tokens.buffer_info()[0], POINTER(c_int32))
                request.listed_count = len(tokens)
        _check(self.library.enter(self.handle, requests, (c_int32 * len(slots))(*slots), len(slots)))
        self.segments.update(zip(slots, segments, strict=True))

    def run(self, steps: int) -> list[Segment]:
        """Run until a segment is done, for at most `steps` steps. Return finished segments with their hypotheses."""
        count = _check(self.library.run(self.handle, steps, self._done))
        done = []
        for slot in self._done[:count]:
            hypotheses = self._hypotheses(slot)
            done.append(self.leave(slot))
            done[-1].hypotheses = hypotheses
        return done

    def leave(self, slot: int) -> Segment:
        """Free a slot and return its segment."""
        self.library.leave(self.handle, slot)
        del self._memory[slot]
        self._free.append(slot)
        return self.segments.pop(slot)

    def _hypotheses(self, slot: int) -> list[Hypothesis]:
        found = []
        outputs = self._ids, self._sums, self._source_positions, byref(self._score)
        for rank in range(self.library.found(self.handle, slot)):
            length = self.library.hypothesis(self.handle, slot, rank, *outputs)
            sums = self._sums[: length + 1]
            steps = [sums[0], *(b - a for a, b in itertools.pairwise(sums))]
            positions = self._source_positions[:length] if self.segments[slot].options.alignments else []
            ids = self._ids[:length]
            found.append(Hypothesis(ids, sums[-1], self._score.value, steps, source_positions=positions))
        return found


def _fill(request: Request, segment: Segment, source: Sequence[int], limit: int) -> list[Any]:
    """Fill in the engine's request for a segment. Return the arrays to which the request points."""
    memory, options = list[Any](), segment.options

    def pointer(values: Iterable[Any], code: str, kind: Any) -> Any:
        memory.append(numbers := array(code, values))
        return ctypes.cast(numbers.buffer_info()[0], POINTER(kind))

    request.ids = pointer(source, "i", c_int32)
    request.length = len(source)
    request.prefix = pointer(segment.prefix, "i", c_int32)
    request.prefix_length = len(segment.prefix)
    request.limit = limit
    request.width = options.beam
    request.best = options.n_best
    # 0: no alignments; 1: alignments with a source that ends with EOS; 2: with a source that does not.
    request.align = options.alignments * (1 if source is segment.ids else 2)
    request.alpha = options.alpha
    request.offset = options.penalty_offset
    request.background = segment.background
    request.temperature = request.top_p = 1.0
    if constraints := segment.constraints:
        for name in ("tokens", "parents", "fails", "sizes"):
            setattr(request, name, pointer(getattr(constraints, name), "i", c_int32))
        request.gains = pointer(itertools.chain.from_iterable(constraints.gains), "i", c_int32)
        request.nodes = len(constraints.tokens)
        request.terms = len(constraints.sizes)
        request.begins = constraints.begins
        memory.append(constraints.begins)
    elif sampling := options.sampling:
        request.uniform = pointer(segment.random().random(limit), "d", c_double)
        request.temperature = sampling.temperature
        request.top_k = sampling.top_k
        request.top_p = sampling.top_p
    return memory


def _check(result: int) -> int:
    if result == NO_MEMORY_CODE:
        raise MemoryError
    if result == NOT_FINITE_CODE:
        raise DivergedError(NOT_FINITE)
    return result
