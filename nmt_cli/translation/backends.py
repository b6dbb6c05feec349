"""Choose a backend: torch on GPUs, and the C engine on CPUs (or torch if the engine is not available)."""

import os
from collections.abc import Sequence
from pathlib import Path

from nmt_cli.engine import library, safetensors_file
from nmt_cli.engine.model import SIGNATURES
from nmt_cli.system.console import warn
from nmt_cli.system.errors import UsageError
from nmt_cli.transformer.directory import WEIGHTS, ModelDirectory
from nmt_cli.translation import engine_backend
from nmt_cli.translation.queue import Backend

MAX_THREADS = 16  # maximum search threads on a CPU, unless `workers` is given
GPU_FILES = "/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd"  # device files of the NVIDIA, WSL and AMD drivers


def may_have_gpu() -> bool:
    """Return False only if this process certainly cannot use a GPU. Does not import torch, which would be slow."""
    on_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not on_cpu and not hidden and any(Path(file).exists() for file in GPU_FILES)


def choose(models: Sequence[ModelDirectory], precision: str, workers: int | None, cores: int) -> Backend:
    """Return the backend for an ensemble of models.

    `workers` is the maximum number of GPUs or, without a GPU, the number of threads. `cores` is the number of CPU
    cores that this process may use.

    Raises UsageError if `workers` is less than 1, or if the precision is unknown or not available here.
    """
    if precision not in ("auto", "fp32", "bf16", "int8"):
        raise UsageError(f"precision must be auto, fp32, bf16 or int8, not {precision!r}")
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, not {workers}")
    if may_have_gpu():
        from nmt_cli.translation import torch_backend

        if torch_backend.has_gpu():
            return torch_backend.on_gpus(models, precision, workers)
    threads = workers or min(cores, MAX_THREADS)
    if precision == "bf16":
        raise UsageError("--precision bf16 needs a GPU. On a CPU, use int8 or fp32")
    if engine := library.load(SIGNATURES):
        weights = [
            (each.config.architecture, *safetensors_file.read_tensors(each.directory / WEIGHTS)) for each in models
        ]
        return engine_backend.on_engine(engine, weights, precision, threads, cores)
    if precision == "int8":
        raise UsageError("--precision int8 needs the engine, which is not available (see nmt env). Use auto")
    warn("the engine is not available (see nmt env), so PyTorch translates, several times more slowly")
    from nmt_cli.translation import torch_backend

    return torch_backend.on_cpu(models, threads)
