"""Search in forks of this process, fed a few segments at a time. A worker ends when its connection does.

Small matrix products gain more from two processes than from two threads.
"""

import contextlib
import os
import queue
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch

from nmt_cli.errors import NmtError, StorageError
from nmt_cli.transformer.hardware import reuse_memory
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.search import Results, SearchSettings, rows_at_once, search_with_oom_retry
from nmt_cli.translation.segments import Segment

SHARE = 16  # segments handed to a worker at once, about
POLL_SECONDS, BUSY_POLL_SECONDS = 0.002, 0.01  # between two looks for new lines; the second while a worker searches
_END = Segment(-1, [])
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
        """Return the results of a step, or raise the worker's error."""
        try:
            results = self.connection.recv()
        except (EOFError, OSError):
            raise StorageError("a worker ended, probably for want of memory. Use fewer: --workers 1") from None
        if isinstance(results, NmtError):
            raise results
        self.open -= len(results)
        return results


def _serve(connection: Connection, prepare: Prepare, device: torch.device) -> None:
    """Search what comes in, settings and then segments, and again; end with the parent."""
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    settings, unfinished = SearchSettings(), 0

    def receive() -> None:  # in a thread of its own: else both could wait for the other to read what they write
        with contextlib.suppress(EOFError, OSError):
            while True:
                messages.put(connection.recv())
        os._exit(0)

    def segments() -> Iterator[Segment | None]:
        nonlocal settings, unfinished
        while True:
            if unfinished and messages.empty():
                yield None
                continue
            message = messages.get()
            if isinstance(message, SearchSettings):
                settings = message
                return
            unfinished += len(message)
            yield from message

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
                    unfinished -= len(results)
                    connection.send(results)
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


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in this thread alone: small products gain nothing from two, and wait long where a core is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Workers:
    """Processes that search, one for each device, with the models that `prepare` returns in each. They start when there
    is more than one segment to search: on a CPU one that comes alone is searched here, sooner than it could be sent."""

    def __init__(self, devices: Sequence[torch.device], prepare: Prepare) -> None:
        self._devices, self._prepare = devices, prepare
        self._workers: list[_Worker] = []
        self.close = weakref.finalize(self, _close, self._workers, os.getpid())

    @property
    def started(self) -> bool:
        return bool(self._workers)

    def _start(self, settings: SearchSettings) -> None:
        if self._devices[0].type == "cpu":
            with _one_thread():
                self._prepare(self._devices[0])  # here, so that all workers share the memory of the weights
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

    def search(self, segments: Iterator[Segment | None], settings: SearchSettings) -> Results:
        """Do what `search` does. After one that is not taken to its end there can be no other."""
        most = rows_at_once(settings, self._devices[0]) // settings.beam
        cpu = self._devices[0].type == "cpu"
        full = (most + SHARE if cpu else most * 2) * len(self._devices)
        more, started = True, False
        while more or any(worker.open for worker in self._workers):
            batch: list[Segment] = []
            unfinished = sum(worker.open for worker in self._workers)
            while more and unfinished < full and len(batch) < SHARE * len(self._devices):
                segment = next(segments, _END)
                if segment is None or segment is _END:
                    more = segment is None
                    break
                batch.append(segment)
            if cpu and len(batch) == 1 and not unfinished:
                with _one_thread():
                    results = [*search_with_oom_retry(*self._prepare(self._devices[0]), iter(batch), settings)]
                yield from results
                continue
            if batch and not started:
                self._start(settings)
                started = True
            shares: list[list[Segment]] = [[] for _ in self._workers]
            for segment in batch:  # all workers have as many as the others
                idlest = min(range(len(shares)), key=lambda i: self._workers[i].open)
                self._workers[idlest].open += 1
                shares[idlest].append(segment)
            for worker, share in zip(self._workers, shares, strict=True):
                if share:
                    worker.send(share)
            busy = [worker for worker in self._workers if worker.open]
            if not busy:
                yield []
                continue
            ready = wait([worker.connection for worker in busy], 0 if batch else BUSY_POLL_SECONDS if more else None)
            yield from (worker.receive() for worker in busy if worker.connection in ready)
