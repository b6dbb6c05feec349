"""What computes a search: the engine on a CPU, torch on GPUs and where the engine is not installed."""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nmt_cli.engine import library
from nmt_cli.engine import weights as weights_file
from nmt_cli.engine.model import SIGNATURES, Model
from nmt_cli.engine.weights import Tensor
from nmt_cli.system.console import warn
from nmt_cli.system.errors import UsageError
from nmt_cli.transformer.directory import WEIGHTS, ModelDirectory
from nmt_cli.translation import engine_search
from nmt_cli.translation.scheduler import Search
from nmt_cli.translation.segments import Feed, Results, SearchSettings, Segment

MAX_THREADS = 16
FAST_INT8 = (
    "amx",
    "avx512",
    "avxvnni",
)  # levels at which 8-bit products are faster than float32, by their own instructions
GPU_FILES = "/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd"  # NVIDIA's driver, that of WSL, AMD's

ScoreTargets = Callable[[Sequence[Sequence[Sequence[int]]]], list[list[float]]]


@dataclass(frozen=True)
class Backend:
    searches: list[Search]  # each is run by a thread of its own
    about: str  # what computes, and in which arithmetic
    score_targets: ScoreTargets | None = None  # the log-probabilities of given translations; None: by the search
    close: Callable[[], object] = lambda: None


_END = Segment([])


def may_have_gpu() -> bool:
    """Return False where there is no GPU for sure, so that torch need not be imported to know."""
    on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not on_cpu and not hidden and any(Path(file).exists() for file in GPU_FILES)


def choose(models: Sequence[ModelDirectory], precision: str, workers: int | None, cores: int) -> Backend:
    """Return what searches with an ensemble of models here; UsageError where it does not have that precision."""
    if precision not in ("auto", "fp32", "bf16", "int8"):
        raise UsageError(f"precision must be auto, fp32, bf16 or int8, not {precision!r}")
    if may_have_gpu():
        from nmt_cli.translation import torch_backend

        if torch_backend.has_gpu():
            return torch_backend.on_gpus(models, precision, workers)
    threads = workers or min(cores, MAX_THREADS)
    if precision == "bf16":
        raise UsageError("--precision bf16 needs a GPU. Leave it out: a CPU computes in int8 or fp32")
    if engine := library.load(SIGNATURES):
        weights = [(each.recipe.model, *weights_file.read(each.directory / WEIGHTS)) for each in models]
        return of_engine(engine, weights, precision, threads)
    if precision == "int8":
        raise UsageError("--precision int8 needs the engine, which is not there (nmt env says why). Leave it out")
    warn("the engine is not there (nmt env says why): torch translates, several times as slowly")
    from nmt_cli.translation import torch_backend

    return torch_backend.on_cpu(models, threads)


def best_precision(level: str) -> str:
    return "int8" if level in FAST_INT8 else "fp32"


def of_engine(
    engine: library.Library, weights: Sequence[tuple[Any, Mapping[str, Tensor], object]], precision: str, threads: int
) -> Backend:
    """Return a backend of models, each given by its recipe's section, its tensors and what keeps their memory."""
    chosen = best_precision(engine.level) if precision == "auto" else precision
    models = [Model(engine, *each, int8=chosen == "int8") for each in weights]
    return Backend([partial(engine_search.search, models)] * threads, f"{chosen}, {engine.level}")


def by_settings(search: Callable[[Feed, SearchSettings], Results]) -> Search:
    """Return a search of any segments by one that takes those of equal settings: one such search after the other."""

    def run(segments: Feed) -> Results:
        waiting, ended = list[Segment](), False

        def equal(settings: SearchSettings) -> Iterator[Segment | None]:
            nonlocal ended
            for segment in segments:
                if segment is not None and segment.settings != settings:
                    waiting.append(segment)
                    return
                yield segment
            ended = True

        while waiting or not ended:
            if not waiting:
                segment = next(segments, _END)
                if segment is _END:
                    return
                if segment is None:
                    yield []
                    continue
                waiting.append(segment)
            first = waiting.pop()
            yield from search(itertools.chain([first], equal(first.settings)), first.settings)

    return run
