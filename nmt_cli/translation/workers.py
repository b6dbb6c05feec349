"""Search on several GPUs, in a fork of this process for each, fed a few segments at a time. A worker ends when its
connection does."""

import contextlib
import itertools
import os
import queue
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch

from nmt_cli.system.errors import NmtError, StorageError
from nmt_cli.transformer.hardware import reuse_memory
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.search import rows_at_once, search_with_oom_retry
from nmt_cli.translation.segments import Feed, Results, SearchSettings, Segment

SHARE = 16  # segments handed to a worker at once, about
POLL_SECONDS = 0.01  # between two looks for new segments while workers search
_END = Segment([])
Prepare = Callable[[torch.device], tuple[Sequence[Transformer], torch.dtype]]


@dataclass
class _Worker:
    connection: Connection
    pid: int
    open: int = 0  # segments it was sent and has no result of yet

    def send(self, value: object) -> None:
        with contextlib.suppress(ConnectionError):  # `receive` says why
            self.connection.send(value)

    def receive(self) -> Any:
        """Return the numbers of segments that are done, with their hypotheses, or raise the worker's error."""
        try:
            results = self.connection.recv()
        except (EOFError, OSError):
            raise StorageError("a worker ended, probably for want of memory. Use fewer: --workers 1") from None
        if isinstance(results, NmtError):
            raise results
        self.open -= len(results)
        return results


def _serve(connection: Connection, prepare: Prepare, device: torch.device) -> None:
    """Search what comes in, settings and then numbered segments, and again; end with the parent."""
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    settings, numbers = SearchSettings(), dict[Segment, int]()

    def receive() -> None:  # in a thread of its own: else both could wait for the other to read what they write
        with contextlib.suppress(EOFError, OSError):
            while True:
                messages.put(connection.recv())
        os._exit(0)

    def segments() -> Iterator[Segment | None]:
        nonlocal settings
        while True:
            if numbers and messages.empty():
                yield None
                continue
            message = messages.get()
            if isinstance(message, SearchSettings):
                settings = message
                return
            for number, segment in message:
                numbers[segment] = number
                yield segment

    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        reuse_memory()
        threading.Thread(target=receive, daemon=True).start()
        models, dtype = prepare(device)
        settings = messages.get()
        while True:
            for results in search_with_oom_retry(models, dtype, segments(), settings):
                if results:
                    connection.send([(numbers.pop(segment), segment.hypotheses) for segment in results])
    except Exception as error:
        told = isinstance(error, NmtError)
        connection.send(error if told else NmtError(f"a worker failed: {type(error).__name__}: {error}"))
    finally:
        os._exit(0)


def _close(workers: list[_Worker], owner: int) -> None:
    """End workers, which have nothing to save; a fork of their owner leaves them alone."""
    for worker in workers:
        worker.connection.close()
        if os.getpid() == owner:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(worker.pid, signal.SIGTERM)
                os.waitpid(worker.pid, 0)


class Workers:
    """Processes that search, one for each device, with the models that `prepare` returns in each. They start with the
    first search."""

    def __init__(self, devices: Sequence[torch.device], prepare: Prepare) -> None:
        self._devices, self._prepare = devices, prepare
        self._workers: list[_Worker] = []
        self.close = weakref.finalize(self, _close, self._workers, os.getpid())

    @property
    def started(self) -> bool:
        return bool(self._workers)

    def _start(self, settings: SearchSettings) -> None:
        for device in self._devices[len(self._workers) :]:
            ours, theirs = Pipe()
            pid = os.fork()
            if not pid:
                ours.close()
                for worker in self._workers:  # else siblings would not notice that their parent has gone
                    worker.connection.close()
                _serve(theirs, self._prepare, device)
            theirs.close()
            self._workers.append(_Worker(ours, pid))
        for worker in self._workers:
            worker.send(settings)

    def search(self, segments: Feed, settings: SearchSettings) -> Results:
        """Do what `search` does. One that is not taken to its end ends the workers, which still have its segments."""
        try:
            yield from self._search(segments, settings)
        except BaseException:
            _close(self._workers, os.getpid())
            self._workers.clear()
            raise

    def _search(self, segments: Feed, settings: SearchSettings) -> Results:
        full = rows_at_once(self._devices[0]) // settings.beam * 2 * len(self._devices)
        more, numbers, entered = True, itertools.count(), dict[int, Segment]()
        self._start(settings)
        while more or entered:
            shares: list[list[tuple[int, Segment]]] = [[] for _ in self._workers]
            while more and len(entered) < full and sum(map(len, shares)) < SHARE * len(self._workers):
                segment = next(segments, _END)
                if segment is None or segment is _END:
                    more = segment is None
                    break
                idlest = min(range(len(shares)), key=lambda i: self._workers[i].open)
                self._workers[idlest].open += 1
                number = next(numbers)
                entered[number] = segment
                shares[idlest].append((number, replace(segment, owner=None, plain=None)))
            for worker, share in zip(self._workers, shares, strict=True):
                if share:
                    worker.send(share)
            busy = [worker for worker in self._workers if worker.open]
            if not busy:
                yield []
                continue
            seconds = POLL_SECONDS if more else None
            if any(shares):
                seconds = 0.0
            ready = wait([worker.connection for worker in busy], seconds)
            for worker in busy:
                if worker.connection in ready:
                    results = worker.receive()
                    for number, hypotheses in results:
                        entered[number].hypotheses = hypotheses
                    yield [entered.pop(number) for number, _ in results]
