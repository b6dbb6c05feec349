"""The processes of a run: how they find each other, what one decides for all, how all stop at the same step."""

import json
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import accelerate
import torch
from accelerate import tracking

from nmt_cli import recipe
from nmt_cli.console import warn
from nmt_cli.errors import INTERRUPTED, TERMINATED, NmtError, StorageError, UsageError, from_os_error

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ECHO_SECONDS = 1.0  # launchers forward a signal that a terminal or a scheduler has sent to every process already
TIMEOUT_SECONDS = 600  # for another process: it may be validating or saving
MESSAGE_BYTES = 1024


def make_accelerator(settings: recipe.Recipe, run: Path, tracker: str | None = None) -> Any:
    """Return Accelerate's view of device and processes, after refusing what it could not train the same model on."""
    if os.environ.get("MASTER_ADDR") and "WORLD_SIZE" not in os.environ:
        warn(
            "this is one process alone: on CPUs accelerate launch starts no more. Several: "
            "ACCELERATE_USE_CPU=true torchrun --standalone --nproc_per_node 2 -m nmt_cli train RECIPE"
        )
    if tracker and tracker not in (installed := [str(each.value) for each in tracking.get_available_trackers()]):
        raise UsageError(f"no tracker {tracker!r} here (there are {installed}). pip install {tracker}, or leave it out")
    timeout = timedelta(seconds=float(os.environ.get("NMT_PATIENCE_SECONDS", TIMEOUT_SECONDS)))
    accelerator = accelerate.Accelerator(
        mixed_precision="no",
        cpu=not torch.cuda.is_available(),  # not Apple's GPU: it has no float64 for the sums
        log_with=tracker,
        project_dir=run,
        kwargs_handlers=[
            accelerate.DistributedDataParallelKwargs(broadcast_buffers=False),
            accelerate.InitProcessGroupKwargs(timeout=timeout),
        ],
    )
    accelerator.gradient_accumulation_steps = 1  # the launcher may have set it, and backward() divides by it
    kind = str(accelerator.distributed_type.value)
    if kind != "NO" and not kind.startswith("MULTI"):
        raise UsageError(f"{kind} is not supported: models of this size fit on every device. Launch with plain DDP")
    processes, parts = accelerator.num_processes, settings.training.micro_batches
    if processes > parts:
        advice = "Raise training.micro_batches or launch fewer"
        raise UsageError(f"{processes} processes cannot share {parts} micro-batches. {advice}")
    return accelerator


class Stop:
    """While entered, a signal asks for an end after this step; a second one, a second later, exits at once."""

    signal, _since = 0, 0.0

    def __enter__(self) -> "Stop":
        self._before = [signal.signal(number, self._handle) for number in SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if not self.signal:
            self.signal, self._since = number, time.monotonic()
        elif time.monotonic() - self._since > ECHO_SECONDS:
            os._exit(INTERRUPTED if number == signal.SIGINT else TERMINATED)

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.signal == signal.SIGINT else TERMINATED


def largest(accelerator: Any, value: int) -> int:
    """Return the largest of all processes' values."""
    return int(accelerator.gather(torch.tensor([value], device=accelerator.device)).max())


def on_main(accelerator: Any, work: Callable[..., dict[str, Any] | None], *arguments: Any) -> dict[str, Any]:
    """Do `work` on the main process and return its JSON-like answer on all, who wait for it.

    Where it fails, the main process raises what the user is told, and the others exit with the same code.
    """
    answer: dict[str, Any] = {}
    failure: NmtError | None = None
    if accelerator.is_main_process:
        try:
            answer = work(*arguments) or {}
        except (NmtError, OSError) as error:
            failure = from_os_error(error) if isinstance(error, OSError) else error
    if accelerator.num_processes > 1:
        message = json.dumps([failure.exit_code if failure else 0, answer]).encode().ljust(MESSAGE_BYTES)
        content = torch.tensor(list(message), dtype=torch.uint8, device=accelerator.device)
        torch.distributed.broadcast(content, 0)
        code, answer = json.loads(bytes(content.tolist()))
        if code and not failure:
            raise SystemExit(code)
    if failure:
        raise failure
    return answer


def to_user_error(error: RuntimeError | MemoryError, settings: recipe.Recipe) -> BaseException:
    """Map a torch error to an NmtError; return an unknown one itself."""
    text = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
        now = settings.training.memory_tokens or "derived from the memory"
        return StorageError(
            f"out of memory. Compute fewer tokens at once: --set training.memory_tokens=N, now {now}; the run goes on "
            "where it was. A micro-batch is the least: a new run may have more of them (training.micro_batches)"
        )
    if isinstance(error, torch.distributed.DistError) or "gloo" in text:
        return StorageError(f"lost another process of this run: {text[:150]}. The same command resumes")
    return error
