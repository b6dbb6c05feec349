"""Run `nmt` on the null GPU: python nmt.py COMMAND ..., in the environment that device.py prints.

Kernels compute nothing there, so the script writes the best continuations of each search step itself: random tokens,
and EOS at the end. NULL_GPU_COUNTS names a file for the counts, in JSON. NULL_GPU_COMPILE=aot_eager compiles without
generating kernels, and `no` does not compile. With NULL_GPU_KILL_AT=N, training is killed before step N.
"""

import atexit
import ctypes
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from device import Counters

from nmt_cli.__main__ import main
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.training.trainer import Trainer
from nmt_cli.transformer import hardware
from nmt_cli.translation import backends

LENGTH = 12  # average length of a random translation


def device_array(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    """Return an array that shares memory with a tensor of doubles on the null GPU, where memory is host memory."""
    memory = (ctypes.c_double * tensor.numel()).from_address(tensor.data_ptr())
    return np.ctypeslib.as_array(memory).reshape(tensor.shape)


def let_searches_end() -> None:
    """Make search steps return falling scores, back-pointers in order, and random ids; one best id in LENGTH is EOS."""
    replay: Callable[..., torch.Tensor] = hardware.Replayed.__call__
    rng = np.random.default_rng(1)

    def ending(self: Any, function: Any, *arrays: Any) -> torch.Tensor:
        best = replay(self, function, *arrays)
        best_3SC = device_array(best)
        _, alive_SW, forced_S = arrays[:3]
        width, candidates = alive_SW.shape[1], best_3SC.shape[2]
        order = np.arange(candidates) % width
        best_3SC[0] = alive_SW.max(1, keepdims=True) - 0.5 - 0.1 * np.arange(candidates)
        best_3SC[1] = order if np.isfinite(alive_SW).all() else 0
        best_3SC[2] = rng.integers(EOS + 1, 100, best_3SC[2].shape)
        best_3SC[2][:, 0][rng.random(len(alive_SW)) < 1 / LENGTH] = EOS
        if len(forced_S):
            best_3SC[2] = np.where(forced_S[:, None], forced_S[:, None], best_3SC[2])
        return best

    hardware.Replayed.__call__ = ending


def choose_compiler() -> None:
    backend = os.environ.get("NULL_GPU_COMPILE", "inductor")
    if backend == "no":
        hardware.can_compile = lambda device: False
    else:
        hardware.BACKEND = backend


def kill_at(step: int) -> None:
    take = Trainer.take_step

    def killed(self: Any, now: int, batch: Any) -> Any:
        if now == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return take(self, now, batch)

    Trainer.take_step = killed


def write_counts() -> None:
    if path := os.environ.get("NULL_GPU_COUNTS"):
        counts: dict[str, Any] = dict(Counters().now())
        counts["peak_mb"] = torch.cuda.max_memory_allocated() >> 20
        counts["reserved_mb"] = torch.cuda.max_memory_reserved() >> 20
        Path(path).write_text(json.dumps(counts))


if __name__ == "__main__":
    backends.GPU_FILES = ("/dev/null",)  # a file that exists, because the driver's files do not
    let_searches_end()
    choose_compiler()
    if "NULL_GPU_KILL_AT" in os.environ:
        kill_at(int(os.environ["NULL_GPU_KILL_AT"]))
    atexit.register(write_counts)
    main()
