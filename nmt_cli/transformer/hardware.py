"""What the hardware offers: devices, arithmetic, memory, copies to the host."""

import contextlib
import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.fx.experimental._config
from torch import Tensor

from nmt_cli.system.console import warn
from nmt_cli.system.errors import UsageError

BACKEND = "inductor"  # of torch.compile
ALIGNMENT = 16  # bytes: of arrays that share memory
T = TypeVar("T")


def choose_device() -> torch.device:
    """Return this process's GPU (by LOCAL_RANK, else the first); the CPU without one or with ACCELERATE_USE_CPU."""
    count = torch.cuda.device_count()
    if not count or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"):
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % count)


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the arithmetic for "auto", "fp32" or "bf16": auto is bf16 where the hardware has it."""
    if device.type == "cuda":
        has = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has = "AVX512" in torch.backends.cpu.get_cpu_capability() and _cpu_has("avx512_bf16", "amx_bf16")
    if precision == "bf16" and not has:
        raise UsageError("precision is bf16, which this hardware does not have. Set it to auto or fp32")
    return torch.bfloat16 if has and precision != "fp32" else torch.float32


def _cpu_has(*flags: str) -> bool:
    try:
        words = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return any(flag in words for flag in flags)


@functools.cache
def compiled(function: Callable[..., Any], device: torch.device, eager: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled for tensors of any size, or `eager`: on a CPU, where compiled code is slower, and
    where nothing can be compiled."""
    return torch.compile(function, dynamic=True, backend=BACKEND) if _can_compile(device) else eager


@functools.cache
def _can_compile(device: torch.device) -> bool:
    if device.type == "cpu":
        return False
    from torch._inductor import config as inductor  # takes a second: torch's compiler

    torch.fx.experimental._config.use_duck_shape = False  # two sizes that are equal now may differ in the next batch
    torch._dynamo.config.specialize_float = True  # floats are settings, not data
    torch._dynamo.config.optimize_ddp = False  # it would cut graphs at DDP's buckets; a graph is but one layer
    # One kernel for all weights that a layer casts; not for reductions, which may fail (issue 187269 of pytorch).
    inductor.combo_kernels = inductor.combo_kernels_pointwise_only = True
    try:
        torch.compile(torch.neg, backend=BACKEND)(torch.zeros(2, device=device))
    except Exception as error:  # for want of Triton, a C compiler, Python's headers, a cache that can be written
        warn(f"torch.compile does not work here, so training is slower: {str(error).strip() or error!r}")
        return False
    return True


def reuse_memory() -> None:
    """Make glibc keep freed memory for the next tensor; large ones would come anew from the kernel. That saves a sixth
    of a training step, a third of a search step with 37,000 subwords (tests/benchmarks/README.md). It holds for the
    whole process, so it is for commands and their forks, not for a user's own process."""
    m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8  # malloc.h
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(m_arena_max, 1)  # else what the thread that prepares batches frees is of no use to the others
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


class Staged:
    """Memory for arrays of these shapes and types, on the host and on the device: a call copies them all at once.

    The host's is written anew by each call, so the device must have done with the one before.
    """

    def __init__(self, device: torch.device, arrays: Sequence[npt.NDArray[Any]]) -> None:
        ends = list(itertools.accumulate(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays))
        self._host = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=True)
        self._device = torch.empty_like(self._host, device=device)
        starts = [0, *ends[:-1]]
        self._arrays = [
            self._host.numpy()[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            for start, array in zip(starts, arrays, strict=True)
        ]
        self.tensors = [
            self._device[start : start + array.nbytes].view(torch.from_numpy(array).dtype).view(array.shape)
            for start, array in zip(starts, arrays, strict=True)
        ]

    def copy(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        for staged, array in zip(self._arrays, arrays, strict=True):
            np.copyto(staged, array)
        self._device.copy_(self._host, non_blocking=True)


@functools.cache
def _capture_stream(device: torch.device) -> tuple[torch.cuda.Stream, threading.Lock]:
    """Return what all captures of this process take turns on. Torch hands out 32 streams in turn: with a new one for
    each search, one would soon be that on which batches are copied."""
    return torch.cuda.Stream(device), threading.Lock()


class Replayed:
    """Calls of one function of arrays that reads nothing on the host. On CUDA a call with the same shapes, and the same
    value of `storage`, as the call before is captured as a graph, which the next ones replay: one copy and one launch
    for hundreds of kernels. What a call returns is to be read before the next one."""

    def __init__(self, device: torch.device, storage: Callable[[], object]) -> None:
        self.device, self.storage = device, storage
        self.key: object = None
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, function: Callable[..., Tensor], *arrays: npt.NDArray[Any]) -> Tensor:
        if self.device.type != "cuda":
            return function(*(torch.from_numpy(array) for array in arrays))
        if (key := ([array.shape for array in arrays], self.storage())) != self.key:
            self.key, self.graph = key, None
            self.inputs = Staged(self.device, arrays)
            self.inputs.copy(arrays)
            return function(*self.inputs.tensors)
        self.inputs.copy(arrays)
        if not self.graph:
            self.graph, self.output = captured(self.device, lambda: function(*self.inputs.tensors))
        self.graph.replay()
        return self.output


def captured(device: torch.device, function: Callable[[], T], pool: Any = None) -> tuple[torch.cuda.CUDAGraph, T]:
    """Return a graph of what `function` launches, and its result, which every replay overwrites.

    `function` must not read from the device. Graphs with the same `pool` (`CUDAGraph.pool`) reuse each other's memory:
    never replay two at once, and copy a result before the next replay.
    """
    stream, lock = _capture_stream(device)
    free, total = torch.cuda.mem_get_info(device)
    with lock, torch.cuda.stream(stream):
        if free < total / 8:  # a capture cannot use what the allocator keeps; freeing it is slow
            torch.cuda.empty_cache()
        torch.cuda.synchronize(device)
        # A beginning allocates a little. Where that failed, torch would abort as it destroys the graph: fail here.
        torch.empty(1024, dtype=torch.uint8, device=device)
        graph = torch.cuda.CUDAGraph()
        # Other threads prepare batches and write checkpoints meanwhile.
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            output = function()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # of a capture that the first error ended
                graph.capture_end()
            raise
        graph.capture_end()
    return graph, output


class ToHost:
    """Copies of tensors to the host, enqueued on the current stream; `get` waits for them, in any thread."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        # From CUDA and not blocking, so into pinned memory.
        self._copies = {name: x.detach().to("cpu", non_blocking=True, copy=True) for name, x in tensors.items()}
        self._copied = recorded(next(iter(tensors.values())).device)

    def get(self) -> dict[str, Tensor]:
        self._copied.synchronize()
        return self._copies


def recorded(device: torch.device) -> Any:
    event = torch.get_device_module(device).Event()
    event.record()
    return event
