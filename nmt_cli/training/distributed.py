"""The processes of a run: how they find each other, what one decides for all, how all stop at the same step."""

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import accelerate
import torch
from accelerate import tracking
from torch import Tensor

from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.recipe import loading, schema
from nmt_cli.storage import artefact
from nmt_cli.system.console import set_quiet, warn
from nmt_cli.system.errors import (
    INTERRUPTED,
    TERMINATED,
    BusyError,
    DataError,
    NmtError,
    StorageError,
    UsageError,
    from_os_error,
    is_out_of_memory,
)
from nmt_cli.system.processors import usable_cores, usable_memory
from nmt_cli.system.signals import ECHO_SECONDS
from nmt_cli.transformer.directory import parameter_count
from nmt_cli.transformer.hardware import choose_device

Answer = TypeVar("Answer")
TOKENS_PER_PROCESS, MAX_PROCESSES = 256, 16  # of a CPU
SIGNALS: dict[int, int] = {signal.SIGTERM: TERMINATED, signal.SIGINT: INTERRUPTED, signal.SIGUSR1: TERMINATED}
LAST_SECONDS = 20.0  # for the first process to end by itself when another one was lost
SIGNAL_SECONDS = 1.0  # a signal that the kernel gave another thread than the main one wakes nothing
AGREE_EVERY = 10  # steps on CUDA between two answers of all processes: each waits for the devices
LAUNCHED = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}  # set by launchers
INIT_METHOD = "NMT_INIT_METHOD"  # environment variable: the file of the forks' rendezvous; others could use a port
SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")
# Settings of Accelerate's configuration that are not followed, each with the value that means none, and what to do.
IGNORED_SETTINGS = {
    "DYNAMO_BACKEND": ("no", "nothing is compiled"),
    "MIXED_PRECISION": ("no", "set training.precision in the recipe (there is no fp16 or fp8)"),
    "GRADIENT_ACCUMULATION_STEPS": ("1", "set training.tokens_per_step, and training.memory_tokens for less memory"),
    "GRADIENT_CLIPPING": ("none", "if training diverges, lower training.rate_factor or raise training.warmup_steps"),
}


def local_processes(settings: schema.Recipe) -> int:
    """Return how many processes to train in: on a CPU one per core with enough to do (faster than as many threads)."""
    if choose_device().type != "cpu" or os.environ.keys() & LAUNCHED or multiprocessing.current_process().daemon:
        return 1
    training, size = settings.training, settings.corpus.tokenizer.vocabulary_size
    replicas = usable_memory() // (64 * parameter_count(settings.model, size))  # 16 bytes each, in a quarter
    launched = "ACCELERATE_MIXED_PRECISION" in os.environ  # by accelerate, which allows one thread by OMP_NUM_THREADS
    cores = usable_cores()
    if not launched:
        cores = min(cores, torch.get_num_threads())
    most = min(cores, training.tokens_per_step // TOKENS_PER_PROCESS, replicas, MAX_PROCESSES)
    return training.processes or max(1, most)


def _refuse_unconnected_machines() -> None:
    """Raise a UsageError where `accelerate launch` was to start a CPU run on several machines and connects none."""
    address = os.environ.get("MASTER_ADDR", "")
    launched = "ACCELERATE_MIXED_PRECISION" in os.environ and not os.environ.keys() & LAUNCHED
    if launched and address and address != "localhost" and not address.startswith("127."):
        advice = "Run torchrun --nnodes on each of them (README, Several processes), or leave --main_process_ip out"
        what = "accelerate launch does not connect CPUs of several machines: each would train alone"
        raise UsageError(f"{what}. {advice}")


def in_processes(settings: schema.Recipe, work: Callable[[], int]) -> int:
    """Do `work` here, or in several forks of this process; return the first one's answer, or raise what ended any."""
    _refuse_unconnected_machines()
    if torch.get_num_threads() > usable_cores():  # threads above the limit of a container only wait for each other
        torch.set_num_threads(usable_cores())
    if (count := local_processes(settings)) == 1:
        return work()
    (answers, sender), rendezvous = multiprocessing.Pipe(duplex=False), os.memfd_create("nmt")
    arguments, process = (count, rendezvous, sender, work), multiprocessing.get_context("fork").Process
    forks = [process(target=_fork, args=(rank, *arguments), daemon=True) for rank in range(count)]

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for fork in forks:  # each stops at once in a validation, and else at the same step as the others
            with contextlib.suppress(ProcessLookupError):
                os.kill(fork.pid, number)  # type: ignore[arg-type]  # it has been started

    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until all know what to do with them
    with contextlib.ExitStack() as at_end:
        at_end.callback(os.close, rendezvous)
        for fork in forks:
            fork.start()
            at_end.callback(fork.join)
            at_end.callback(fork.kill)
            if fork is forks[0]:  # the others are gone by then; it may be writing a checkpoint
                at_end.callback(fork.join, LAST_SECONDS)
        for number in SIGNALS:
            at_end.callback(signal.signal, number, signal.signal(number, pass_on))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        codes = [fork.exitcode for fork in forks]
        while codes[0] is None and not any(codes) and not answers.poll():
            running = [fork.sentinel for fork, code in zip(forks, codes, strict=True) if code is None]
            wait([answers, *running], SIGNAL_SECONDS)
            codes = [fork.exitcode for fork in forks]
        code = next(filter(None, codes), 0)
        answer = answers.recv() if not code and answers.poll() else 0
        if isinstance(answer, Exception):
            raise answer
    if code < 0 and -code not in SIGNALS:
        raise StorageError(f"lost another process of this run: signal {-code} ended it. The same command resumes")
    return SIGNALS.get(-code, code) if code else int(answer)


def _fork(rank: int, count: int, rendezvous: int, sender: Connection, work: Callable[[], int]) -> None:
    """Be one of `count` processes, in silence but for the first; send the first one's answer, or the error of any."""
    torch.multiprocessing._prctl_pr_set_pdeathsig(signal.SIGKILL)  # type: ignore[attr-defined]  # end with the command
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # until Stop handles it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # of a training before in the command
    torch.set_num_threads(threads := max(1, torch.get_num_threads() // count))
    job = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "OMP_NUM_THREADS": threads}
    where = {"GLOO_SOCKET_IFNAME": "lo", INIT_METHOD: f"file:///proc/self/fd/{rendezvous}"}
    os.environ.update({name: str(value) for name, value in (job | where).items()})
    if rank:
        set_quiet(True)
    try:
        answer = work()
        if not rank:
            sender.send(answer)
    except SystemExit:
        if not rank:  # else the first one says why
            raise
    except Exception as error:
        error.add_note(traceback.format_exc()[-2000:])
        sender.send(error)


def make_accelerator(settings: schema.Recipe, run: Path, tracker: str | None = None) -> Any:
    """Return Accelerate's view of device and processes, or refuse what would not train the same model."""
    if tracker and tracker not in (installed := [str(each.value) for each in tracking.get_available_trackers()]):
        raise UsageError(f"no tracker {tracker!r} here (there are {installed}). pip install {tracker}, or leave it out")
    if kinds := [kind for kind in SHARDED if os.environ.get(f"ACCELERATE_USE_{kind}", "").lower() == "true"]:
        advice = "Models of this size fit on every device: accelerate launch --multi_gpu -m nmt_cli train RECIPE"
        raise UsageError(f"the accelerate configuration asks for {kinds[0]}, which is not supported. {advice}")
    # Another process may be validating or saving: wait for it ten minutes.
    timeout = timedelta(seconds=float(os.environ.get("NMT_PATIENCE_SECONDS", 600)))
    ddp = accelerate.DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True)
    handlers = [ddp, accelerate.InitProcessGroupKwargs(timeout=timeout, init_method=os.environ.get(INIT_METHOD))]
    on_cpu = not torch.cuda.is_available()  # and not on Apple's GPU: it has no float64 for the sums
    options = {"mixed_precision": "no", "dynamo_backend": "no", "log_with": tracker, "project_dir": run}
    try:
        accelerator = accelerate.Accelerator(cpu=on_cpu, kwargs_handlers=handlers, **options)
    except RuntimeError as error:
        raise to_user_error(error, settings) from error
    accelerator.gradient_accumulation_steps = 1  # the launcher may have set it, and backward() divides by it
    for name, (nothing, advice) in IGNORED_SETTINGS.items() if accelerator.is_main_process else ():
        value = os.environ.get(f"ACCELERATE_{name}", nothing).lower()
        if value != nothing and (value != "bf16" or settings.training.precision == "fp32"):
            warn(f"{name.lower()} {value} of the accelerate configuration is not followed: {advice}")
    return accelerator


class Interrupted(BaseException):
    """A signal came in a block of `Stop.at_once`."""


class Stop:
    """While entered, a signal asks for an end after this step; a second one, a second later, exits at once."""

    asked, exit_code, _since, _raises = False, TERMINATED, 0.0, False

    def __enter__(self) -> "Stop":
        self._before = [signal.signal(number, self._handle) for number in SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, handler)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Raise Interrupted in this block at a signal, also one that came before: for what can be done again."""
        self._raises = True
        try:
            if self.asked:
                raise Interrupted
            yield
        finally:
            self._raises = False

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        code = SIGNALS[number]
        if not self.asked:
            self.asked, self.exit_code, self._since = True, code, time.monotonic()
            if self._raises:
                raise Interrupted
        elif time.monotonic() - self._since > ECHO_SECONDS:
            os._exit(code)


def max_over_processes(accelerator: Any, value: int) -> int:
    if accelerator.num_processes == 1:
        return value
    return int(accelerator.gather(torch.tensor([value], device=accelerator.device)).max())


def gather_objects(value: Any, world: int) -> list[Any]:
    return list(accelerate.utils.gather_object([value])) if world > 1 else [value]


def is_sync_step(step: int, accelerator: Any) -> bool:
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


def on_all(accelerator: Any, work: Callable[[], Answer]) -> Answer:
    """Do `work` on every process and return its own answer; where it fails on any, the first of these says why."""
    failure: NmtError | None = None
    try:
        answer = work()
    except (NmtError, OSError) as error:
        failure = from_os_error(error) if isinstance(error, OSError) else error
    codes = gather_objects(failure.exit_code if failure else 0, accelerator.num_processes)
    failed = [rank for rank, code in enumerate(codes) if code]
    if failure and failed[0] == accelerator.process_index:
        raise failure
    if failed:
        raise SystemExit(codes[failed[0]])
    return answer


def hand_over(accelerator: Any, tensors: Iterable[Tensor]) -> None:
    """Replace what these tensors hold by what the main process' hold."""
    for tensor in tensors if accelerator.num_processes > 1 else ():
        torch.distributed.broadcast(tensor, src=0)


def decisive(settings: schema.Recipe) -> dict[str, Any]:
    """Return the settings that must be the same on all machines; paths may differ."""
    return settings.model_dump(include={"model": True, "training": True}, exclude={"training": {"init_from"}})


def open_here(accelerator: Any, settings: schema.Recipe, data: Path, begun: dict[str, Any]) -> Corpus:
    """Open the corpus of this machine; a DataError says that it, or the recipe, is not that of the main process."""
    first_here = accelerator.is_local_main_process and not accelerator.is_main_process
    corpus = open_corpus(data, content=first_here)  # the main process has compared every byte
    if corpus.identity != begun["corpus"]:
        raise DataError(f"{data} on {artefact.HOST} is another corpus than on the first machine. Copy that one")
    if changes := loading.differences(begun["recipe"], decisive(settings)):
        what = f"the recipe on {artefact.HOST} is not that of the first machine: {'; '.join(changes)}"
        raise DataError(f"{what}. Give all machines the same recipe and --set")
    return corpus


def to_user_error(error: RuntimeError | MemoryError, settings: schema.Recipe) -> BaseException:
    """Map a torch error to an NmtError; return an unknown one itself."""
    text = str(error)
    if is_out_of_memory(error):
        advice = "Resume with --set training.memory_tokens=N, lower than"
        now = settings.training.memory_tokens or "what fits this memory"
        return StorageError(f"out of memory. {advice} {now}, or with more training.micro_batches")
    if "CUDA" in text and "captur" in text:
        return UsageError(f"a step cannot be captured as a CUDA graph: {text[:150]}. Set training.cuda_graphs=no")
    if "EADDRINUSE" in text:
        advice = "Give this one another: torchrun --master_port N, or accelerate launch --main_process_port N"
        return BusyError(f"port {os.environ.get('MASTER_PORT')} is in use, perhaps by another training job. {advice}")
    if "Unable to find address for: lo" in text:
        return StorageError("the network interface lo is down: set it up, or --set training.processes=1")
    if isinstance(error, torch.distributed.DistError) or "gloo" in text:
        return StorageError(f"lost another process of this run: {text[:150]}. The same command resumes")
    return error
