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
from nmt_cli.errors import INTERRUPTED, TERMINATED, BusyError, NmtError, StorageError, UsageError, from_os_error

SIGNALS = {signal.SIGTERM: TERMINATED, signal.SIGINT: INTERRUPTED, signal.SIGUSR1: TERMINATED}  # and exit codes
AGREE_EVERY = 10  # steps on CUDA between two answers of all processes: each waits for the devices
ECHO_SECONDS = 1.0  # launchers forward a signal that a terminal or a scheduler has sent to every process already
SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")
# Settings of Accelerate's configuration that are not followed, each with the value that means none, and what to do.
NOT_FOLLOWED = {
    "DYNAMO_BACKEND": ("no", "nothing is compiled"),
    "MIXED_PRECISION": ("no", "set training.precision in the recipe (there is no fp16 or fp8)"),
    "GRADIENT_ACCUMULATION_STEPS": ("1", "set training.tokens_per_step, and training.memory_tokens for less memory"),
    "GRADIENT_CLIPPING": ("none", "if training diverges, lower training.rate_factor or raise training.warmup_steps"),
}


def make_accelerator(settings: recipe.Recipe, run: Path, tracker: str | None = None) -> Any:
    """Return Accelerate's view of device and processes, or refuse what would not train the same model."""
    if "MASTER_ADDR" in os.environ and "WORLD_SIZE" not in os.environ:
        command = "ACCELERATE_USE_CPU=true torchrun --standalone --nproc_per_node 2 -m nmt_cli train RECIPE"
        warn(f"on CPUs accelerate launch starts only one process, whatever --num_processes says. Use {command}")
    if tracker and tracker not in (installed := [str(each.value) for each in tracking.get_available_trackers()]):
        raise UsageError(f"no tracker {tracker!r} here (there are {installed}). pip install {tracker}, or leave it out")
    if kinds := [kind for kind in SHARDED if os.environ.get(f"ACCELERATE_USE_{kind}", "").lower() == "true"]:
        advice = "Models of this size fit on every device: accelerate launch --multi_gpu -m nmt_cli train RECIPE"
        raise UsageError(f"the accelerate configuration asks for {kinds[0]}, which is not supported. {advice}")
    # Another process may be validating or saving: wait for it ten minutes.
    timeout = timedelta(seconds=float(os.environ.get("NMT_PATIENCE_SECONDS", 600)))
    ddp = accelerate.DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True)
    handlers = [ddp, accelerate.InitProcessGroupKwargs(timeout=timeout)]
    on_cpu = not torch.cuda.is_available()  # and not on Apple's GPU: it has no float64 for the sums
    options = {"mixed_precision": "no", "dynamo_backend": "no", "log_with": tracker, "project_dir": run}
    try:
        accelerator = accelerate.Accelerator(cpu=on_cpu, kwargs_handlers=handlers, **options)
    except RuntimeError as error:
        raise to_user_error(error, settings) from error
    accelerator.gradient_accumulation_steps = 1  # the launcher may have set it, and backward() divides by it
    for name, (nothing, advice) in NOT_FOLLOWED.items() if accelerator.is_main_process else ():
        value = os.environ.get(f"ACCELERATE_{name}", nothing).lower()
        if value != nothing and (value != "bf16" or settings.training.precision == "fp32"):
            warn(f"{name.lower()} {value} of the accelerate configuration is not followed: {advice}")
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
    if accelerator.num_processes == 1:
        return value
    return int(accelerator.gather(torch.tensor([value], device=accelerator.device)).max())


def agree_after(step: int, accelerator: Any) -> bool:
    """Return whether all processes ask each other after this step whether to stop."""
    return accelerator.num_processes == 1 or accelerator.device.type != "cuda" or step % AGREE_EVERY == 0


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
        return StorageError(f"out of memory. {advice} {now}, or with more training.micro_batches")
    if "EADDRINUSE" in text:
        advice = "Give this one another: torchrun --master_port N, or accelerate launch --main_process_port N"
        return BusyError(f"port {os.environ.get('MASTER_PORT')} is in use, perhaps by another training job. {advice}")
    if isinstance(error, torch.distributed.DistError) or "gloo" in text:
        return StorageError(f"lost another process of this run: {text[:150]}. The same command resumes")
    return error
