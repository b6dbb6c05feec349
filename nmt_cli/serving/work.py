"""Process requests without blocking the event loop, so that every request can be stopped at its deadline.

Short plain text is processed in the event loop, because switching to a thread would take longer. Other short texts, and
long lists of items, are processed in threads. If the request is cancelled, the thread stops after the current item.
Files and long texts with markup are processed in child processes, because a thread cannot be interrupted while it
matches a regular expression. If the request is cancelled, the child process is killed.
"""

import asyncio
import contextlib
import json
import math
import os
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from base64 import b64decode, b64encode
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any, TypeVar, cast

from anyio import CapacityLimiter, to_thread

from nmt_cli.documents.placement import Aligned
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.texts import TextFormat
from nmt_cli.system.console import warn
from nmt_cli.system.errors import BusyError, DataError, StorageError
from nmt_cli.system.resources import usable_cores

Result = TypeVar("Result")
SHORT_TEXT = 1000  # characters
IMPORT_ROOT = Path(__file__).parents[2]  # the directory that contains the package nmt_cli
WARN_SECONDS = 60  # minimum time between two warnings about the database
MAX_RESULT = 1 << 28  # maximum bytes of a result from a child process


class Workers:
    """The threads and child processes that process requests."""

    def __init__(self) -> None:
        cores = usable_cores()
        self._short_threads = CapacityLimiter(4 * cores)  # so that short texts do not wait for long ones
        self._threads = CapacityLimiter(cores)
        # API keys have a separate database thread, so that checking a key never waits for a glossary query.
        self._account_threads = CapacityLimiter(1)
        self._glossary_threads = CapacityLimiter(1)
        # Texts use at most half of the cores (or the only core), to leave cores for beam search. Files have a limit of
        # their own, so that texts do not wait for a file, which may take minutes.
        self._text_processes, self._file_processes = (asyncio.Semaphore(max(1, cores // 2)) for _ in range(2))
        self._killed = list[Process]()
        self._tasks = set[asyncio.Task[None]]()
        self._warned = -math.inf  # when the last warning about the database was logged
        self._idle = list[tuple[asyncio.AbstractEventLoop, Process]]()  # processes and their event loops

    async def in_thread(self, function: Callable[..., Result], *arguments: object, short: bool = False) -> Result:
        return await to_thread.run_sync(function, *arguments, limiter=self._short_threads if short else self._threads)

    async def map_in_thread(
        self, function: Callable[..., Result], *columns: Iterable[object], short: bool = False
    ) -> list[Result]:
        """Return the results of `function` for all items, like `map`, but in a thread.

        If cancelled, stop after the current item.
        """
        cancelled = threading.Event()

        def run() -> list[Result]:
            results = list[Result]()
            for items in zip(*columns, strict=True):
                if cancelled.is_set():
                    break
                results.append(function(*items))
            return results

        try:
            limiter = self._short_threads if short else self._threads
            return await to_thread.run_sync(run, abandon_on_cancel=True, limiter=limiter)
        finally:
            cancelled.set()

    async def in_database(self, function: Callable[..., Result], *arguments: object, accounts: bool = False) -> Result:
        """Return the result of a function that uses the database. Raise Refusal (503) if the database cannot be used.

        `accounts` selects the thread for API keys. If cancelled, return at once; the function still completes.
        """
        try:
            limiter = self._account_threads if accounts else self._glossary_threads
            return await to_thread.run_sync(function, *arguments, abandon_on_cancel=True, limiter=limiter)
        except (BusyError, StorageError) as error:
            self._warn(str(error))
            raise Refusal(503, "The server's database cannot be used: try again later", retry_after=1) from None

    def _warn(self, text: str) -> None:
        if time.monotonic() - self._warned >= WARN_SECONDS:
            self._warned = time.monotonic()
            warn(text)

    async def in_process(self, text_format: TextFormat, texts: Sequence[str], results: Any = None) -> Any:
        """Run `units_of`, or `assemble` if `results` is given, in a child process, and return the result.

        Cancellation kills the process. Raise DataError if a text is not in this format, and Refusal (503) if the
        process fails.
        """
        return await self._call({"format": asdict(text_format), "texts": texts, "results": results})

    async def file_units(self, text_format: TextFormat, data: bytes) -> list[str]:
        """Read a file in a child process, and return its units. Raise DataError if the file is not in this format."""
        call = {"format": asdict(text_format), "file": b64encode(data).decode(), "results": None}
        return cast(list[str], await self._call(call))

    async def assemble_file(self, text_format: TextFormat, data: bytes, results: Sequence[Aligned]) -> bytes:
        """Assemble a translated file from the translations of its units, in a child process."""
        call = {"format": asdict(text_format), "file": b64encode(data).decode(), "results": results}
        return b64decode(await self._call(call))

    async def _call(self, call: dict[str, Any]) -> Any:
        line = json.dumps(call, default=astuple).encode() + b"\n"
        async with self._file_processes if "file" in call else self._text_processes:
            process = self._take() or await _start()
            try:
                assert process.stdin
                assert process.stdout
                process.stdin.write(line)
                await process.stdin.drain()
                answer = json.loads(await process.stdout.readline())
            except (OSError, ValueError):  # the process was killed, perhaps for lack of memory
                self._kill(process)
                raise Refusal(503, "The text could not be processed: try again later", retry_after=1) from None
            except BaseException:
                self._kill(process)
                raise
            self._idle.append((asyncio.get_running_loop(), process))
        if "refusal" in answer:
            raise DataError(answer["refusal"])
        return answer["result"]

    def _take(self) -> Process | None:
        """Take an idle process of this event loop from the list. Return None if there is none."""
        while self._idle:
            loop, process = self._idle.pop()
            if loop is asyncio.get_running_loop() and process.returncode is None:
                return process
        return None

    def _kill(self, process: Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        self._killed = [each for each in self._killed if each.returncode is None] + [process]

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Start background work, for which no request waits. `close` cancels it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # a strong reference, because the event loop keeps only a weak one
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel background work, kill idle processes, and wait until all killed processes have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while process := self._take():
            self._kill(process)
        for process in self._killed:
            await process.wait()


async def _start() -> Process:
    # -P excludes the working directory from the module search path, so find the package through PYTHONPATH.
    paths = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-P", "-m", "nmt_cli.serving.text_process"]
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env=environment, limit=MAX_RESULT)
