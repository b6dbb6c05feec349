"""One thread's search: sentences enter, steps run, and those that are done come out. engine.c describes the rest."""

import ctypes
import itertools
from array import array
from collections.abc import Iterable, Sequence
from ctypes import POINTER, byref, c_double, c_int32, c_void_p
from dataclasses import dataclass
from typing import Any, Protocol

from nmt_cli.engine.model import Model, Request

NOT_FINITE, NO_MEMORY = -1, -2  # what engine.c returns instead of a count


class Constraints(Protocol):
    """What every translation must say, as translation/constraints.py describes it."""

    tokens: list[int]
    parents: list[int]
    fails: list[int]
    gains: list[list[int]]
    sizes: list[int]
    begins: bytes


@dataclass(frozen=True)
class Sentence:
    ids: Sequence[int]  # closed by EOS
    limit: int  # longest translation in tokens, EOS counted, at most the model's longest
    prefix: Sequence[int] = ()  # every translation must begin so
    width: int = 4
    best: int = 1  # hypotheses to return
    alpha: float = 0.6
    align: bool = False
    uniform: Sequence[float] | None = None  # numbers from [0, 1) for each position of `limit`: draw tokens by them
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    patient: bool = False  # beside others that are not, it goes on in one of TURN (engine.c) calls of `run`
    constraints: Constraints | None = None


@dataclass(frozen=True)
class Found:
    ids: list[int]  # without EOS
    sums: list[float]  # of log-probabilities, after each token and EOS
    score: float
    looked: list[int]  # source positions that the tokens translate, if they were wanted


class Search:
    """Searches up to `slots` sentences at once with an ensemble of models; for one thread, which others run beside.

    ArithmeticError where the models' scores are not finite, MemoryError where memory does not suffice: after either
    the search is of no more use.
    """

    def __init__(self, models: Sequence[Model], slots: int) -> None:
        self.models, self.library = models, models[0].library
        self.longest = min(model.longest for model in models)
        handles = (c_void_p * len(models))(*(model.handle for model in models))
        self.handle = self.library.search_new(handles, len(models), slots)
        if not self.handle:
            raise MemoryError
        self._free = list(range(slots))[::-1]
        self._sentences: dict[int, Sentence] = {}  # by slot
        self._kept: dict[int, list[Any]] = {}  # by slot: what the engine reads until the sentence leaves it
        self._done = (c_int32 * slots)()
        self._ids, self._looked = ((c_int32 * self.longest)() for _ in range(2))
        self._sums, self._score = (c_double * self.longest)(), c_double()

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self.library.search_free(handle)

    def enter(self, sentences: Sequence[Sentence]) -> list[int]:
        """Put sentences into free slots, encode them, and return the slots."""
        slots = [self._free.pop() for _ in sentences]
        requests = (Request * len(sentences))()
        for slot, request, sentence in zip(slots, requests, sentences, strict=True):
            kept = self._kept[slot] = []  # what the request points to

            def pointer(values: Iterable[Any], code: str, kind: Any, kept: list[Any] = kept) -> Any:
                kept.append(numbers := array(code, values))
                return ctypes.cast(numbers.buffer_info()[0], POINTER(kind))

            for name in ("limit", "width", "best", "align", "alpha", "temperature", "top_k", "top_p", "patient"):
                setattr(request, name, getattr(sentence, name))
            request.ids, request.length = pointer(sentence.ids, "i", c_int32), len(sentence.ids)
            request.prefix, request.prefix_length = pointer(sentence.prefix, "i", c_int32), len(sentence.prefix)
            if sentence.uniform is not None:
                request.uniform = pointer(sentence.uniform, "d", c_double)
            if constraints := sentence.constraints:
                for name in ("tokens", "parents", "fails", "sizes"):
                    setattr(request, name, pointer(getattr(constraints, name), "i", c_int32))
                request.gains = pointer(itertools.chain.from_iterable(constraints.gains), "i", c_int32)
                request.nodes, request.terms = len(constraints.tokens), len(constraints.sizes)
                kept.append(constraints.begins)
                request.begins = constraints.begins
        _check(self.library.enter(self.handle, requests, (c_int32 * len(slots))(*slots), len(slots)))
        self._sentences.update(zip(slots, sentences, strict=True))
        return slots

    def run(self, steps: int) -> list[tuple[int, list[Found]]]:
        """Search on until some sentences are done, but for at most `steps`; return their slots, which are free then,
        and their hypotheses, best first: none where constraints leave none."""
        count = _check(self.library.run(self.handle, steps, self._done))
        return [(slot, self._pop(slot)) for slot in self._done[:count]]

    def leave(self, slot: int) -> None:
        """Give up the sentence in a slot."""
        self.library.leave(self.handle, slot)
        del self._sentences[slot], self._kept[slot]
        self._free.append(slot)

    def _pop(self, slot: int) -> list[Found]:
        found, align = [], self._sentences[slot].align
        into = self._ids, self._sums, self._looked, byref(self._score)
        for rank in range(self.library.found(self.handle, slot)):
            length = self.library.hypothesis(self.handle, slot, rank, *into)
            looked = self._looked[:length] if align else []
            found.append(Found(self._ids[:length], self._sums[: length + 1], self._score.value, looked))
        self.leave(slot)
        return found


def _check(result: int) -> int:
    if result == NO_MEMORY:
        raise MemoryError
    if result == NOT_FINITE:
        raise ArithmeticError
    return result
