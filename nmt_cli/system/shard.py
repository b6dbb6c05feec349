"""The number of a worker among all workers, from the command line or from the variables of a scheduler."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nmt_cli.system.errors import UsageError


@dataclass(frozen=True)
class Array:
    """The environment variables of a scheduler's array jobs. "" means that the scheduler sets no such variable."""

    task: str  # the number of this task
    count: str = ""  # the number of tasks
    first: str = ""  # the number of the first task
    last: str = ""  # the number of the last task
    step: str = ""  # the difference between the numbers of two consecutive tasks
    lowest: int = 0  # the lowest number that a task can have


ARRAYS = (
    Array(
        "SLURM_ARRAY_TASK_ID",
        count="SLURM_ARRAY_TASK_COUNT",
        first="SLURM_ARRAY_TASK_MIN",
        step="SLURM_ARRAY_TASK_STEP",
    ),
    Array("JOB_COMPLETION_INDEX"),  # Kubernetes
    Array("AWS_BATCH_JOB_ARRAY_INDEX", count="AWS_BATCH_JOB_ARRAY_SIZE"),
    Array("CLOUD_RUN_TASK_INDEX", count="CLOUD_RUN_TASK_COUNT"),
    Array("BATCH_TASK_INDEX", count="BATCH_TASK_COUNT"),  # Google Cloud
    Array("SGE_TASK_ID", first="SGE_TASK_FIRST", last="SGE_TASK_LAST", step="SGE_TASK_STEPSIZE", lowest=1),
    Array("LSB_JOBINDEX", last="LSB_JOBINDEX_END", step="LSB_JOBINDEX_STEP", lowest=1),  # 0 outside array jobs
    Array("PBS_ARRAY_INDEX"),
    Array("HQ_TASK_ID"),  # HyperQueue
)
# Variables of the processes in a task: rank, number of processes.
RANKS = (
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("RANK", "WORLD_SIZE"),
)
ADVICE = "Pass the worker's number and the number of workers, such as --shard 1/8"


class Shard(NamedTuple):
    """Worker `number` (from 1) of `workers`. In `nmt translate`, a worker that has done its share helps the others."""

    number: int
    workers: int

    def __str__(self) -> str:
        return f"{self.number}/{self.workers}"

    def start(self, total: int) -> int:
        """Return the number (from 0) of the first of `total` units in this worker's share."""
        return (self.number - 1) * total // self.workers

    def end(self, total: int) -> int:
        return self.number * total // self.workers


def parse(text: str, environment: Mapping[str, str] = os.environ) -> Shard:
    """Return the shard for the value of --shard: "3/8", "auto" or "auto/8".

    "auto" reads the scheduler's variables for the tasks of an array job and for the processes of a task. If both are
    set, process P (from 0) of Q in task I (from 1) of N is worker (I - 1) * Q + P + 1 of N * Q. If neither is set,
    raise UsageError. In "auto/8", 8 replaces N or, outside array jobs, Q. Without any variables, it means 1/8.
    """
    if found := re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text):
        shard = Shard(int(found[1]), int(found[2]))
        if not 1 <= shard.number <= shard.workers:
            raise UsageError(f"--shard {text}: the worker's number must be from 1 to {shard.workers}")
        return shard
    if not (found := re.fullmatch(r"auto(?:/([0-9]{1,9}))?", text)) or found[1] == "0":
        raise UsageError(f"--shard must be I/N, auto or auto/N, not {text[:40]!r}. {ADVICE}")
    return _from_scheduler(environment, int(found[1] or 0))


def _from_scheduler(environment: Mapping[str, str], count: int) -> Shard:
    numbers = {name: int(value) for name, value in environment.items() if re.fullmatch("[0-9]{1,9}", value)}
    task, tasks = 0, 1
    array = next((each for each in ARRAYS if numbers.get(each.task, -1) >= each.lowest), None)
    rank, ranks = next(((numbers[a], numbers[b]) for a, b in RANKS if a in numbers and numbers.get(b)), (0, 1))
    if array:
        # If the first number is unknown, this still works: N consecutive task numbers have N different remainders.
        first = numbers.get(array.first, array.lowest)
        step = numbers.get(array.step) or 1
        tasks = count or numbers.get(array.count, 0)
        if not tasks and array.last in numbers:
            tasks = (numbers[array.last] - first) // step + 1
        if tasks < 1:
            raise UsageError(f"{array.task} is set, but the number of tasks N is not. Pass --shard auto/N")
        task = (numbers[array.task] - first) // step % tasks
    elif ranks > 1 or count:
        ranks = count or ranks
    else:
        known = ", ".join((ARRAYS[0].task, ARRAYS[1].task, RANKS[0][0]))
        raise UsageError(f"--shard auto needs the variables of a scheduler, such as {known}. {ADVICE}")
    return Shard(task * ranks + rank % ranks + 1, tasks * ranks)
