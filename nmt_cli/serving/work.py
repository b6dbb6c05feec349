"""Where the work of a request runs, so that the event loop stays free and a request ends at its deadline.

Work on a short text is done at once: it takes less time than a change of threads. Loops over many items run in a few
threads, and stop at the next item when their request is over. A pattern cannot be interrupted, so long texts with
markup are parsed and written in processes, which are killed when their request is over.
"""

import functools
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

from anyio import CapacityLimiter, to_process, to_thread

from nmt_cli.processors import usable_cores

Result = TypeVar("Result")
SHORT = 1000  # characters
NICE = 5  # searches and the event loop go before these processes
PROCESS_BYTES = 1 << 30


class Workers:
    def __init__(self) -> None:
        cores = usable_cores()
        self._short, self._threads = CapacityLimiter(4 * cores), CapacityLimiter(cores)
        self._processes = CapacityLimiter(max(1, cores // 2))  # searches need the other cores

    async def run(self, function: Callable[..., Result], *arguments: object, characters: int, marked: bool) -> Result:
        """Call a function on a text of so many characters, plain or marked; a cancelled caller ends its process."""
        if marked and characters > SHORT:
            call = functools.partial(_call, function, *arguments)
            return await to_process.run_sync(call, cancellable=True, limiter=self._processes)
        if marked or characters > SHORT:
            limiter = self._threads if characters > SHORT else self._short
            return await to_thread.run_sync(function, *arguments, limiter=limiter)
        return function(*arguments)

    async def mapped(
        self, function: Callable[..., Result], *columns: Iterable[object], short: bool = False
    ) -> list[Result]:
        """Return a function's results for all items, as `map` does, from a thread; a cancelled caller leaves it after
        the item in hand."""
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


def _call(function: Callable[..., Result], *arguments: object) -> Result:
    _settle()
    return function(*arguments)


@functools.cache
def _settle() -> None:
    os.nice(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process itself
    resource.setrlimit(resource.RLIMIT_AS, (PROCESS_BYTES, PROCESS_BYTES))
