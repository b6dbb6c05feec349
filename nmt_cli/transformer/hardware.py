"""Functions for devices, dtypes, memory, CUDA graphs, and copies between the host and the device."""

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.fx.experimental._config
from torch import Tensor

from nmt_cli.system.console import warn
from nmt_cli.system.errors import UsageError
from nmt_cli.system.operating_system import cpu_features, set_malloc_options

BACKEND = "inductor"  # the backend of torch.compile
ALIGNMENT = 16  # bytes; each array in a buffer begins at a multiple of this number
T = TypeVar("T")


def choose_device() -> torch.device:
    """Return GPU number LOCAL_RANK (default: the first), or the CPU if there is no GPU or ACCELERATE_USE_CPU is set."""
    count = torch.cuda.device_count()
    if not count or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"):
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % count)


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype for "auto", "fp32" or "bf16". "auto" selects bf16 if the hardware supports it, or else fp32.

    Raises UsageError for "bf16" if the hardware does not support it.
    """
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = "AVX512" in torch.backends.cpu.get_cpu_capability() and cpu_features() & {"avx512_bf16", "amx_bf16"}
    if precision == "bf16" and not has_bf16:
        raise UsageError("this hardware does not support precision bf16. Use auto or fp32")
    return torch.bfloat16 if has_bf16 and precision != "fp32" else torch.float32


@functools.cache
def compiled(function: Callable[..., Any], device: torch.device, eager: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` compiled for tensors of any size.

    Return `eager` if torch cannot compile for the device, and always on a CPU, where compiled code is slower.
    """
    return torch.compile(function, dynamic=True, backend=BACKEND) if can_compile(device) else eager


@functools.cache
def can_compile(device: torch.device) -> bool:
    """Try torch.compile on a GPU, and return whether it works. If not, warn why. On a CPU, return False."""
    if device.type == "cpu":
        return False
    from torch._inductor import config as inductor  # takes a second: it imports torch's compiler

    torch.fx.experimental._config.use_duck_shape = False  # sizes that are equal in one batch may differ in the next
    torch._dynamo.config.specialize_float = True  # the float arguments are settings, which never change
    torch._dynamo.config.optimize_ddp = False  # do not split graphs: each is a single layer
    # Cast all weights of a layer in one kernel. Combine no reductions, because that may fail (pytorch issue 187269).
    inductor.combo_kernels = inductor.combo_kernels_pointwise_only = True
    try:
        torch.compile(torch.neg, backend=BACKEND)(torch.zeros(2, device=device))
    except Exception as error:  # no Triton, C compiler, Python headers or writable cache
        warn(f"torch.compile does not work here, so training is slower: {str(error).strip() or error!r}")
        return False
    return True


def reuse_memory() -> None:
    """Make glibc keep freed memory for the next tensor, instead of returning large blocks to the kernel.

    This saves a sixth of the time of a training step, and a third of the time of a search step with a vocabulary of
    37,000 subwords (see tests/benchmarks/README.md). The setting affects the whole process, so only commands and the
    processes that they fork call this function.
    """
    m_trim_threshold, m_mmap_max, m_arena_max = -1, -4, -8  # malloc.h
    # With a single arena, a thread can reuse memory that another thread has freed.
    set_malloc_options({m_arena_max: 1, m_mmap_max: 0, m_trim_threshold: 2**31 - 1})


class Staged:
    """Copies several arrays to the device in one transfer. All copies must have the shapes and dtypes of `arrays`.

    `copy` overwrites a buffer on the host, so the previous transfer must have ended. `tensors` are the arrays on the
    device.
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
    """Return the stream for all graph captures of this process, and the lock for that stream.

    Torch has only 32 streams and hands them out in turn. If each capture took a new stream, a capture would sooner or
    later get the stream on which batches are copied.
    """
    return torch.cuda.Stream(device), threading.Lock()


class Replayed:
    """Calls a function of arrays and, on a GPU, replays it as a CUDA graph, which launches all its kernels at once.

    `storage` returns a value that identifies the memory that the function uses besides its arrays. When two calls in a
    row have the same shapes and the same value, the second call captures a graph, and later calls replay the graph. The
    function must not copy anything to the host. A result is valid until the next call.
    """

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
    """Return a CUDA graph of the kernels that `function` launches, and the function's result.

    Every replay overwrites the result. `function` must not copy anything to the host. Graphs with the same `pool`
    (`CUDAGraph.pool`) share memory, so never replay two of them at the same time, and copy the result of one before
    replaying another.
    """
    stream, lock = _capture_stream(device)
    free, total = torch.cuda.mem_get_info(device)
    with lock, torch.cuda.stream(stream):
        # A capture cannot use the memory in torch's cache. Empty it only if needed, because this is slow.
        if free < total / 8:
            torch.cuda.empty_cache()
        torch.cuda.synchronize(device)
        # If capture_begin ran out of memory, torch would abort. This allocation raises an error first.
        torch.empty(1024, dtype=torch.uint8, device=device)
        graph = torch.cuda.CUDAGraph()
        # "thread_local", because other threads prepare batches and write checkpoints.
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            output = function()
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the first error has ended the capture
                graph.capture_end()
            raise
        graph.capture_end()
    return graph, output


class ToHost:
    """Starts copies of tensors to the host on the current stream. `get` waits for the copies, in any thread."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        # A non-blocking copy from CUDA allocates pinned memory.
        self._copies = {name: x.detach().to("cpu", non_blocking=True, copy=True) for name, x in tensors.items()}
        self._copied = recorded(next(iter(tensors.values())).device)

    def get(self) -> dict[str, Tensor]:
        self._copied.synchronize()
        return self._copies


def recorded(device: torch.device) -> Any:
    """Return an event recorded on the device's current stream."""
    event = torch.get_device_module(device).Event()
    event.record()
    return event
