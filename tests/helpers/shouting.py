"""Jobs whose "translation" of a line is its number and the line in capitals, and a program that runs one worker."""

import os
import sys
import time
from pathlib import Path

from nmt_cli.sharding import inputs, job
from nmt_cli.sharding.job import Job
from nmt_cli.sharding.worker import Translate, Worker
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import DivergedError
from nmt_cli.system.shard import parse

POISON = b"poison"


def shout(source: int, target: int, first: int, _: object = None, *, pause: float = 0.0) -> None:
    """Translate lines from one file descriptor to another. Fail at a POISON line after writing the lines before it."""
    with os.fdopen(os.dup(source), "rb") as lines:
        for number, line in enumerate(lines, first):
            if line.strip() == POISON:
                raise DivergedError("the model's scores are not finite")
            os.write(target, b"%d %s\n" % (number, line.removesuffix(b"\n").upper()))
            time.sleep(pause)


def expected(data: bytes) -> bytes:
    """Return the translation of a whole file."""
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    return b"".join(b"%d %s\n" % (number, line.upper()) for number, line in enumerate(lines, 1))


def begin(out: Path | str, *files: Path | str, lines: int = 10, **identity: str) -> Job:
    return job.begin(str(out), inputs.find([str(file) for file in files]), {"model": "capitals", **identity}, lines)


def work(some_job: Job, shard: str = "1/1", translate: Translate = shout) -> Worker:
    """Do a worker's part in this process and return the worker."""
    worker = Worker(some_job, parse(shard), translate, one_line=True, stop=lambda: None)
    worker.run(Progress("", None, "lines"))
    return worker


if __name__ == "__main__":
    place, shard, wait, *names = sys.argv[1:]
    work(begin(place, *names), shard, lambda *ends: shout(*ends, pause=float(wait)))
