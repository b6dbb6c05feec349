"""Where the work of a request runs, so that the event loop stays free and a request ends at its deadline.

Work on a short plain text is done at once: it takes less time than a change of threads. Other short texts, and loops
over many items, run in a few threads; loops stop at the next item when their request is over. A pattern cannot be
interrupted, so long texts with markup are parsed and written in processes, which are killed when their request is over.
"""

import asyncio
import contextlib
import json
import os
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.texts import Form
from nmt_cli.system.errors import DataError
from nmt_cli.system.processors import usable_cores

Result = TypeVar("Result")
SHORT = 1000  # characters
PACKAGE = Path(__file__).parents[2]
MOST_ANSWER = 1 << 28  # bytes of a process' answer


class Workers:
    def __init__(self) -> None:
        cores = usable_cores()
        self._short, self._threads = CapacityLimiter(4 * cores), CapacityLimiter(cores)
        self._processes = asyncio.Semaphore(max(1, cores // 2))  # searches need the other cores
        self._idle = list[tuple[asyncio.AbstractEventLoop, Process]]()

    async def in_thread(self, function: Callable[..., Result], *arguments: object, short: bool = False) -> Result:
        return await to_thread.run_sync(function, *arguments, limiter=self._short if short else self._threads)

    async def mapped(
        self, function: Callable[..., Result], *columns: Iterable[object], short: bool = False
    ) -> list[Result]:
        """Return a function's results for all items, as `map` does, from a thread; cancellation stops it after the
        current item."""
        over = threading.Event()

        def run() -> list[Result]:
            found = list[Result]()
            for items in zip(*columns, strict=True):
                if over.is_set():
                    break
                found.append(function(*items))
            return found

        try:
            limiter = self._short if short else self._threads
            return await to_thread.run_sync(run, abandon_on_cancel=True, limiter=limiter)
        finally:
            over.set()

    async def in_process(self, form: Form, texts: Sequence[str], found: Any = None) -> Any:
        """Return `units_of` the texts, or with `found` what `write` returns, from a process; cancellation kills it.
        DataError where a text is not of its kind."""
        call = {"form": asdict(form), "texts": texts, "found": found}
        line = json.dumps(call, default=astuple).encode() + b"\n"
        async with self._processes:
            process = self._take() or await _start()
            try:
                assert process.stdin
                assert process.stdout
                process.stdin.write(line)
                await process.stdin.drain()
                answer = json.loads(await process.stdout.readline())
            except (OSError, ValueError):  # it has been killed, as for want of memory
                _kill(process)
                raise Refusal(503, "The text could not be processed: try again later", retry_after=1) from None
            except BaseException:
                _kill(process)
                raise
            self._idle.append((asyncio.get_running_loop(), process))
        if "refusal" in answer:
            raise DataError(answer["refusal"])
        return answer["result"]

    def _take(self) -> Process | None:
        """Return an idle process of this event loop that lives."""
        while self._idle:
            loop, process = self._idle.pop()
            if loop is asyncio.get_running_loop() and process.returncode is None:
                return process
        return None

    async def close(self) -> None:
        """End the idle processes."""
        while process := self._take():
            _kill(process)
            await process.wait()


async def _start() -> Process:
    # -P: code in the working directory is none of ours.
    paths = [str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-P", "-m", "nmt_cli.serving.text_process"]
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment, limit=MOST_ANSWER)


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
