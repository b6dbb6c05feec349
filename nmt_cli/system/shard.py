"""The number of a worker among all workers, from the command line or from the variables of a scheduler."""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from nmt_cli.system.errors import UsageError

# Environment variables of array jobs: the task's number, the first task's number, and the number of tasks (or the last
# task's number). "" means that the scheduler sets no such variable.
ARRAYS = (
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT"),
    ("JOB_COMPLETION_INDEX", "", ""),  # Kubernetes
    ("AWS_BATCH_JOB_ARRAY_INDEX", "", "AWS_BATCH_JOB_ARRAY_SIZE"),
    ("CLOUD_RUN_TASK_INDEX", "", "CLOUD_RUN_TASK_COUNT"),
    ("BATCH_TASK_INDEX", "", "BATCH_TASK_COUNT"),  # Google Cloud
    ("SGE_TASK_ID", "SGE_TASK_FIRST", "SGE_TASK_LAST"),
    ("LSB_JOBINDEX", "", "LSB_JOBINDEX_END"),
    ("PBS_ARRAY_INDEX", "", ""),
    ("HQ_TASK_ID", "", ""),  # HyperQueue
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
    array = next((names for names in ARRAYS if names[0] in numbers), None)
    rank, ranks = next(((numbers[a], numbers[b]) for a, b in RANKS if a in numbers and numbers.get(b)), (0, 1))
    if array:
        tasks = count or numbers.get(array[2], 0)
        if not tasks:
            raise UsageError(f"{array[0]} is set, but the number of tasks N is not. Pass --shard auto/N")
        # If the first number is unknown, this still works: N consecutive task numbers have N different remainders.
        task = (numbers[array[0]] - numbers.get(array[1], 0)) % tasks
    elif ranks > 1 or count:
        ranks = count or ranks
    else:
        known = ", ".join(names[0] for names in (*ARRAYS[:2], *RANKS[:1]))
        raise UsageError(f"--shard auto needs the variables of a scheduler, such as {known}. {ADVICE}")
    return Shard(task * ranks + rank % ranks + 1, tasks * ranks)
