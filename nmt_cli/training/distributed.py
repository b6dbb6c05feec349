"""The processes of a run: how they find each other, what one decides for all, how all stop at the same step."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import FrameType
from typing import Any

import accelerate
import torch
from accelerate import tracking

from nmt_cli import recipe
from nmt_cli.console import set_quiet, warn
from nmt_cli.errors import INTERRUPTED, TERMINATED, BusyError, NmtError, StorageError, UsageError, from_os_error
from nmt_cli.training.batches import physical_memory
from nmt_cli.transformer.hardware import choose_device
from nmt_cli.transformer.model import parameter_count

TOKENS_PER_PROCESS, MAX_PROCESSES = 256, 16  # of a CPU
SIGNALS = {signal.SIGTERM: TERMINATED, signal.SIGINT: INTERRUPTED, signal.SIGUSR1: TERMINATED}  # and exit codes
AGREE_EVERY = 10  # steps on CUDA between two answers of all processes: each waits for the devices
MEETING = "NMT_MEETING"  # variable: the file by which forks find each other (no port that others could use)
ECHO_SECONDS = 1.0  # launchers forward a signal that a terminal or a scheduler has sent to every process already
SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")
# Settings of Accelerate's configuration that are not followed, each with the value that means none, and what to do.
NOT_FOLLOWED = {
    "DYNAMO_BACKEND": ("no", "nothing is compiled"),
    "MIXED_PRECISION": ("no", "set training.precision in the recipe (there is no fp16 or fp8)"),
    "GRADIENT_ACCUMULATION_STEPS": ("1", "set training.tokens_per_step, and training.memory_tokens for less memory"),
    "GRADIENT_CLIPPING": ("none", "if training diverges, lower training.rate_factor or raise training.warmup_steps"),
}


class LostProcessError(StorageError):  # the others may know why
    pass


def local_processes(settings: recipe.Recipe) -> int:
    """Return how many processes train: on a CPU as many as there are cores with enough to do, which is faster than one
    of as many threads. With a GPU, or where a launcher has started several, this one."""
    if choose_device().type != "cpu" or "WORLD_SIZE" in os.environ:
        return 1
    training, vocabulary_size = settings.training, settings.corpus.tokenizer.vocabulary_size
    replicas = physical_memory() // (64 * parameter_count(settings.model, vocabulary_size))  # 16 bytes each, a quarter
    launched = "ACCELERATE_MIXED_PRECISION" in os.environ  # by accelerate, which allows one thread by OMP_NUM_THREADS
    cores = len(os.sched_getaffinity(0)) if launched else torch.get_num_threads()
    most = min(cores, training.tokens_per_step // TOKENS_PER_PROCESS, replicas, MAX_PROCESSES)
    return training.processes or max(1, most)


def in_processes(settings: recipe.Recipe, work: Callable[[], int]) -> int:
    """Do `work` in this process, the main one, and in forks of it; return its answer, or raise what ended any."""
    if (count := local_processes(settings)) == 1:
        return work()
    parent, threads, share = os.getpid(), torch.get_num_threads(), max(1, torch.get_num_threads() // count)
    children, (causes, to_causes), meeting = list[int](), Pipe(duplex=False), os.memfd_create("nmt")
    world = {"world_size": count, "local_world_size": count, "omp_num_threads": share, "gloo_socket_ifname": "lo"}
    job = {"rank": 0, "local_rank": 0, "master_port": 0, MEETING: f"file:///proc/self/fd/{meeting}", **world}
    with accelerate.utils.patch_environment(**job):
        try:
            _forget_processes()
            torch.set_num_threads(share)
            for rank in range(1, count):
                if not (pid := os.fork()):
                    _follow(rank, parent, to_causes, work)
                children.append(pid)
            to_causes.close()
            return work()
        except LostProcessError as lost:
            with contextlib.suppress(EOFError):
                raise causes.recv() if causes.poll(1) else lost from None
            raise
        finally:
            for pid in children:  # they have nothing to save
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            os.close(meeting)
            _forget_processes()
            torch.set_num_threads(threads)


def _follow(rank: int, parent: int, causes: Connection, work: Callable[[], int]) -> None:
    """Be a fork: work in silence, tell the main process of an error that it may not meet itself, and end before it."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == parent:
            set_quiet(True)
            os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
            work()
    except LostProcessError:
        pass
    except Exception as error:
        told = isinstance(error, NmtError)
        causes.send(error if told else NmtError(f"a process failed: {type(error).__name__}: {error}"))
    finally:
        os._exit(0)


def _forget_processes() -> None:
    """Make torch and Accelerate forget the processes of a training that is over."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def make_accelerator(settings: recipe.Recipe, run: Path, tracker: str | None = None) -> Any:
    """Return Accelerate's view of device and processes, or refuse what would not train the same model."""
    if tracker and tracker not in (installed := [str(each.value) for each in tracking.get_available_trackers()]):
        raise UsageError(f"no tracker {tracker!r} here (there are {installed}). pip install {tracker}, or leave it out")
    if kinds := [kind for kind in SHARDED if os.environ.get(f"ACCELERATE_USE_{kind}", "").lower() == "true"]:
        advice = "Models of this size fit on every device: accelerate launch --multi_gpu -m nmt_cli train RECIPE"
        raise UsageError(f"the accelerate configuration asks for {kinds[0]}, which is not supported. {advice}")
    # Another process may be validating or saving: wait for it ten minutes.
    timeout = timedelta(seconds=float(os.environ.get("NMT_PATIENCE_SECONDS", 600)))
    ddp = accelerate.DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True)
    handlers = [ddp, accelerate.InitProcessGroupKwargs(timeout=timeout, init_method=os.environ.get(MEETING))]
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
        return LostProcessError(f"lost another process of this run: {text[:150]}. The same command resumes")
    return error
