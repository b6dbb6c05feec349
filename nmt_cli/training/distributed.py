"""The processes of a run: how they find each other, what one decides for all, how all stop at the same step."""

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

SIGNALS = {signal.SIGTERM: TERMINATED, signal.SIGINT: INTERRUPTED, signal.SIGUSR1: TERMINATED}  # and exit codes
ECHO_SECONDS = 1.0  # launchers forward a signal that a terminal or a scheduler has sent to every process already


def make_accelerator(settings: recipe.Recipe, run: Path, tracker: str | None = None) -> Any:
    """Return Accelerate's view of device and processes, or refuse what would not train the same model."""
    if "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        command = "ACCELERATE_USE_CPU=true torchrun --standalone --nproc_per_node 2 -m nmt_cli train RECIPE"
        warn(f"on CPUs accelerate launch starts only one process, whatever --num_processes says. Use {command}")
    if tracker and tracker not in (installed := [str(each.value) for each in tracking.get_available_trackers()]):
        raise UsageError(f"no tracker {tracker!r} here (there are {installed}). pip install {tracker}, or leave it out")
    # Another process may be validating or saving: wait for it ten minutes.
    timeout = timedelta(seconds=float(os.environ.get("NMT_PATIENCE_SECONDS", 600)))
    handlers = [
        accelerate.DistributedDataParallelKwargs(broadcast_buffers=False),
        accelerate.InitProcessGroupKwargs(timeout=timeout),
    ]
    on_cpu = not torch.cuda.is_available()  # and not on Apple's GPU: it has no float64 for the sums
    accelerator = accelerate.Accelerator(
        mixed_precision="no", cpu=on_cpu, log_with=tracker, project_dir=run, kwargs_handlers=handlers
    )
    accelerator.gradient_accumulation_steps = 1  # the launcher may have set it, and backward() divides by it
    kind = str(accelerator.distributed_type.value)
    if kind != "NO" and not kind.startswith("MULTI"):
        raise UsageError(f"{kind} is not supported: models of this size fit on every device. Launch with plain DDP")
    return accelerator


class Stop:
    """While entered, a signal asks for an end after this step; a second one, a second later, exits at once."""

    asked, exit_code, _since = False, TERMINATED, 0.0

    def __enter__(self) -> "Stop":
        self._before = [signal.signal(number, self._handle) for number in SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        code = SIGNALS[signal.Signals(number)]
        if not self.asked:
            self.asked, self.exit_code, self._since = True, code, time.monotonic()
        elif time.monotonic() - self._since > ECHO_SECONDS:
            os._exit(code)


def largest(accelerator: Any, value: int) -> int:
    """Return the largest of all processes' values."""
    return int(accelerator.gather(torch.tensor([value], device=accelerator.device)).max())


def on_main(accelerator: Any, work: Callable[..., dict[str, Any] | None], *arguments: Any) -> dict[str, Any]:
    """Do `work` on the main process and return its answer on all; where it fails, all exit with the same code."""
    answer: dict[str, Any] = {}
    failure: NmtError | None = None
    if accelerator.is_main_process:
        try:
            answer = work(*arguments) or {}
        except (NmtError, OSError) as error:
            failure = from_os_error(error) if isinstance(error, OSError) else error
    code, answer = accelerate.utils.broadcast_object_list([failure.exit_code if failure else 0, answer])
    if failure:
        raise failure
    if code:
        raise SystemExit(code)
    return answer


def to_user_error(error: RuntimeError | MemoryError, settings: recipe.Recipe) -> BaseException:
    """Map a torch error to an NmtError; return an unknown one itself."""
    text = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
        advice = "Resume with --set training.memory_tokens=N, lower than"
        now = settings.training.memory_tokens or "what fits this memory"
        return StorageError(f"out of memory. {advice} {now}, or begin a new run with more training.micro_batches")
    if isinstance(error, torch.distributed.DistError) or "gloo" in text:
        return StorageError(f"lost another process of this run: {text[:150]}. The same command resumes")
    return error
