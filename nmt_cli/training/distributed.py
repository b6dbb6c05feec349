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
from nmt_cli.errors import INTERRUPTED, TERMINATED, NmtError, UsageError, from_os_error

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ECHO_SECONDS = 1.0  # launchers forward a signal that a terminal or a scheduler has sent to every process already
TIMEOUT_SECONDS = 600  # for another process: it may be validating or saving


def make_accelerator(settings: recipe.Recipe, run: Path, tracker: str | None = None) -> Any:
    """Return Accelerate's view of device and processes, after refusing what it could not train the same model on."""
    if os.environ.get("MASTER_ADDR") and "WORLD_SIZE" not in os.environ:
        warn(
            "this is one process alone, though several were asked for: on CPUs accelerate launch starts only one. Use "
            "ACCELERATE_USE_CPU=true torchrun --standalone --nproc_per_node 2 -m nmt_cli train RECIPE"
        )
    usable = [str(each.value) for each in tracking.get_available_trackers()]
    if tracker and tracker not in usable:
        installed = ", ".join(usable) or "none"
        raise UsageError(
            f"no tracker {tracker!r} here (installed: {installed}). pip install {tracker}, or leave it out"
        )
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
    processes, micro_batches = accelerator.num_processes, settings.training.micro_batches
    if processes > micro_batches:
        raise UsageError(
            f"{processes} processes cannot share {micro_batches} micro-batches. "
            "Raise training.micro_batches or launch fewer"
        )
    return accelerator


class Stop:
    """While entered, a signal asks for an end after this step; a second one, a second later, exits at once."""

    def __init__(self) -> None:
        self.signal, self._since = 0, 0.0

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
    if accelerator.num_processes == 1:
        return value
    return int(accelerator.gather(torch.tensor([value], device=accelerator.device)).max())


def on_main(accelerator: Any, work: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    """Do `work` on the main process and return its JSON-like answer on all; where it fails, all exit with its code.

    The others wait meanwhile. They say nothing: the main process tells the user.
    """
    answer: dict[str, Any] = {}
    failure: NmtError | None = None
    if accelerator.is_main_process:
        try:
            answer = work() or {}
        except NmtError as error:
            failure = error
        except OSError as error:
            failure = from_os_error(error)
    if accelerator.num_processes > 1:
        code, answer = _broadcast(accelerator, [failure.exit_code if failure else 0, answer])
        if code and not failure:
            raise SystemExit(code)
    if failure:
        raise failure
    return answer


def _broadcast(accelerator: Any, value: Any) -> Any:
    """Return the main process' JSON-like value on all: its length, then its bytes."""
    message = json.dumps(value).encode()
    size = torch.tensor(len(message), device=accelerator.device)
    torch.distributed.broadcast(size, 0)
    padded = message[: int(size)].ljust(int(size))
    content = torch.tensor(list(padded), dtype=torch.uint8, device=accelerator.device)
    torch.distributed.broadcast(content, 0)
    return json.loads(bytes(content.tolist()))
