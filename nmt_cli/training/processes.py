"""Train in several processes on one machine: choose their number, start them, and end them together."""

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

import accelerate
import torch

from nmt_cli.recipe import schema
from nmt_cli.system.child_processes import end_with_parent, signals_blocked
from nmt_cli.system.console import is_quiet, set_quiet
from nmt_cli.system.errors import StorageError, UsageError
from nmt_cli.system.operating_system import LOOPBACK, START_METHOD, shared_file
from nmt_cli.system.resources import usable_cores, usable_memory
from nmt_cli.training.accelerator import INIT_METHOD
from nmt_cli.training.stopping import SIGNALS
from nmt_cli.transformer.directory import parameter_count
from nmt_cli.transformer.hardware import choose_device

TOKENS_PER_PROCESS = 256  # with fewer tokens per step, another CPU process costs more time than it saves
MAX_PROCESSES = 16
LAST_SECONDS = 20.0  # at the end, process 0 is killed if it does not exit by itself within this time
# The main thread must poll, because a signal that the kernel delivers to another thread does not wake it.
POLL_SECONDS = 1.0
LAUNCHER_VARS = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"}  # set by launchers


def local_processes(settings: schema.Recipe) -> int:
    """Return the number of training processes to start on this machine.

    On CPUs, this is `training.processes`. The default is one per core, up to MAX_PROCESSES, because several processes
    are faster than several threads. The default is lower if each process would get less than TOKENS_PER_PROCESS tokens
    of a step, or if all together would use more than a quarter of the memory. On other devices, under a launcher and
    in a daemon process, the number is 1.
    """
    if choose_device().type != "cpu" or os.environ.keys() & LAUNCHER_VARS or multiprocessing.current_process().daemon:
        return 1
    training = settings.training
    parameters = parameter_count(settings.model, settings.corpus.tokenizer.vocabulary_size)
    replicas = usable_memory() // (64 * parameters)  # a replica takes 16 bytes per parameter
    cores = usable_cores()
    # OMP_NUM_THREADS limits torch's threads. Ignore this limit under `accelerate launch`, which sets the variable to 1.
    if "ACCELERATE_MIXED_PRECISION" not in os.environ:
        cores = min(cores, torch.get_num_threads())
    most = min(cores, training.tokens_per_step // TOKENS_PER_PROCESS, replicas, MAX_PROCESSES)
    return training.processes or max(1, most)


def _refuse_unconnected_machines() -> None:
    """Raise UsageError if `accelerate launch` runs on the CPUs of several machines.

    The command does not connect CPU processes on different machines.
    """
    address = os.environ.get("MASTER_ADDR", "")
    by_accelerate = "ACCELERATE_MIXED_PRECISION" in os.environ and not os.environ.keys() & LAUNCHER_VARS
    if by_accelerate and address and address != "localhost" and not address.startswith("127."):
        guide = "“Several processes and machines” in recipes/README.md"
        advice = f"Run torchrun --nnodes on each machine (see {guide}), or remove --main_process_ip"
        problem = "accelerate launch does not connect CPU processes on different machines, so each would train alone"
        raise UsageError(f"{problem}. {advice}")


def in_processes(settings: schema.Recipe, work: Callable[[], int]) -> int:
    """Call `work` in this process or in several child processes. Return the result of process 0.

    If a process reports an error, raise it. If a process fails without a report, return its exit code. If a signal in
    SIGNALS killed the process, return the exit code that SIGNALS gives. Raise StorageError for any other signal.
    `work` must be picklable, because child processes are not forked on macOS.
    """
    _refuse_unconnected_machines()
    if torch.get_num_threads() > usable_cores():  # threads in excess of usable cores would only wait for each other
        torch.set_num_threads(usable_cores())
    count = local_processes(settings)
    return work() if count == 1 else _in_children(count, work)


@dataclass(frozen=True)
class _Job:
    """The settings that the processes of one training run share."""

    parent: int  # process id
    count: int
    rendezvous: Path  # the file through which the processes find each other
    sender: Connection  # sends the result or an error to the parent
    threads: int  # torch's threads in each process
    quiet: bool
    work: Callable[[], int]


def _in_children(count: int, work: Callable[[], int]) -> int:
    context: ForkContext | SpawnContext = multiprocessing.get_context("fork")
    if START_METHOD == "spawn":
        context = multiprocessing.get_context("spawn")
        resource_tracker.ensure_running()  # before signals are blocked, because this call unblocks them
    receiver, sender = context.Pipe(duplex=False)
    children = list[BaseProcess]()
    handlers = dict[int, Any]()

    def forward(number: int, _frame: FrameType | None) -> None:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, number)  # type: ignore[arg-type]  # the child has been started, so it has a pid

    with shared_file() as rendezvous:
        threads = max(1, torch.get_num_threads() // count)
        job = _Job(os.getpid(), count, rendezvous, sender, threads, is_quiet(), work)
        try:
            with signals_blocked(SIGNALS):  # each child process unblocks them when it can handle them
                for rank in range(count):
                    child: BaseProcess = context.Process(target=_run, args=(rank, job), daemon=True)
                    child.start()
                    children.append(child)
                for number in SIGNALS:
                    handlers[number] = signal.signal(number, forward)
            code, result = _wait_for_outcome(children, receiver)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for child in reversed(children):
                if child is children[0]:
                    child.join(LAST_SECONDS)  # it may be writing a checkpoint
                child.kill()
                child.join()
    if isinstance(result, Exception):
        raise result
    if code < 0 and -code not in SIGNALS:
        problem = f"another process of this run does not respond because signal {-code} killed it"
        raise StorageError(f"{problem}. Run the same command again to resume")
    return SIGNALS.get(-code, code) if code else int(result)


def _wait_for_outcome(children: Sequence[BaseProcess], receiver: Connection) -> tuple[int, Any]:
    """Wait until process 0 ends, a process fails, or a message (a result or an error) arrives.

    Return an exit code and the message. The exit code is 0 unless a process failed. The message is 0 if a process
    failed or if no message arrived.
    """
    codes = [child.exitcode for child in children]
    while codes[0] is None and not any(codes) and not receiver.poll():
        running = [child.sentinel for child, code in zip(children, codes, strict=True) if code is None]
        wait([receiver, *running], POLL_SECONDS)
        codes = [child.exitcode for child in children]
    if code := next(filter(None, codes), 0):
        return code, 0
    return 0, receiver.recv() if receiver.poll() else 0


def _run(rank: int, job: _Job) -> None:
    """Call `job.work` as process `rank`. If the call fails, send the error to the parent.

    Only process 0 sends the result of the call and prints progress.
    """
    end_with_parent(job.parent)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # until training installs its own handlers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # an earlier training run may have set it
    torch.set_num_threads(job.threads)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": job.count, "LOCAL_WORLD_SIZE": job.count}
    network = {"GLOO_SOCKET_IFNAME": LOOPBACK, INIT_METHOD: f"file://{job.rendezvous}"}
    variables = ranks | network | {"OMP_NUM_THREADS": job.threads}
    os.environ.update({name: str(value) for name, value in variables.items()})
    set_quiet(job.quiet or rank > 0)
    try:
        result = job.work()
        if not rank:
            job.sender.send(result)
    except SystemExit:
        if not rank:  # all processes raise it; one report is enough
            raise
    except Exception as error:
        error.add_note(traceback.format_exc()[-2000:])
        job.sender.send(error)
