"""Translate on several GPUs, with a forked worker process for each. Worker processes end with their parent."""

import contextlib
import itertools
import os
import queue as queues
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import torch

from nmt_cli.system.child_processes import end_with_parent
from nmt_cli.system.errors import NmtError, StorageError
from nmt_cli.transformer.hardware import reuse_memory
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.queue import SegmentQueue, WorkerQueue
from nmt_cli.translation.search import rows_at_once, search
from nmt_cli.translation.segments import Segment

SHARE = 16 * 32  # source tokens to send, per worker, before checking for results
POLL_SECONDS = 0.01  # time between checks for new segments while workers search
Prepare = Callable[[torch.device], tuple[Sequence[Transformer], torch.dtype]]


@dataclass
class _Worker:
    connection: Connection
    pid: int
    open: int = 0  # number of segments sent to this worker that have no result yet

    def send(self, value: object) -> None:
        with contextlib.suppress(ConnectionError):  # `receive` reports the lost connection
            self.connection.send(value)

    def receive(self) -> list[tuple[int, Any]]:
        """Wait for results. Return (number, hypotheses) for each finished segment, as numbered by the parent.

        Raises the error that the worker sent, or StorageError if the worker has ended.
        """
        try:
            results = self.connection.recv()
        except (EOFError, OSError):
            raise StorageError("a worker ended, probably because memory ran out. Pass --workers 1") from None
        if error := next((result for result in results if isinstance(result, NmtError)), None):
            raise error
        self.open -= len(results)
        return list(results)


def _serve(connection: Connection, prepare: Prepare, device: torch.device, parent_pid: int) -> None:
    """Translate numbered segments that the parent sends, and send back their hypotheses or the first error.

    The process exits after an error, or when the parent ends.
    """
    results: queues.SimpleQueue[Any] = queues.SimpleQueue()
    numbers = dict[Segment, int]()

    def done(segment: Segment) -> None:
        error = segment.error
        if error and not isinstance(error, NmtError):
            error = NmtError(f"a worker failed: {type(error).__name__}: {error}")
        results.put(error or (numbers.pop(segment), segment.hypotheses))

    def run(queue: WorkerQueue) -> None:
        models, dtype = prepare(device)
        search(models, dtype, queue)

    def receive() -> None:  # in a thread, because otherwise worker and parent could each wait until the other reads
        with contextlib.suppress(EOFError, OSError):
            while True:
                numbered = connection.recv()
                numbers.update((segment, number) for number, segment in numbered)
                segments.submit(segment for _, segment in numbered)

    try:
        end_with_parent(parent_pid, thread_lasts=False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        reuse_memory()
        segments = SegmentQueue([run], done)
        threading.Thread(target=receive, daemon=True).start()
        while True:
            batch = [results.get()]
            while not results.empty():
                batch.append(results.get())
            connection.send(batch)
            if any(isinstance(result, NmtError) for result in batch):
                return
    finally:
        os._exit(0)


def _close(workers: list[_Worker], owner_pid: int) -> None:
    """Kill workers, which have nothing to save. In a fork of the owner, only close the copies of the connections."""
    for worker in workers:
        worker.connection.close()
        if os.getpid() == owner_pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(worker.pid, signal.SIGKILL)  # SIGTERM could be lost while the worker is starting
                os.waitpid(worker.pid, 0)


class Workers:
    """Worker processes that translate, one for each device.

    The first search starts the processes. Each process calls `prepare` to get its models.
    """

    def __init__(self, devices: Sequence[torch.device], prepare: Prepare) -> None:
        self._devices = devices
        self._prepare = prepare
        self._workers: list[_Worker] = []
        self.close = weakref.finalize(self, _close, self._workers, os.getpid())

    @property
    def started(self) -> bool:
        return bool(self._workers)

    def search(self, queue: WorkerQueue) -> None:
        """Translate the segments of a queue.

        After an error, or if the queue is closed, kill the processes, because they may still be translating segments.
        """
        try:
            self.start()
            self._search(queue)
        except BaseException:
            _close(self._workers, os.getpid())
            self._workers.clear()
            raise

    def start(self) -> None:
        """Fork a worker process for each device that does not have one yet."""
        for device in self._devices[len(self._workers) :]:
            ours, theirs = Pipe()
            parent_pid = os.getpid()
            pid = os.fork()
            if not pid:
                ours.close()
                for worker in self._workers:  # otherwise, their connections would stay open after the parent ends
                    worker.connection.close()
                _serve(theirs, self._prepare, device, parent_pid)
            theirs.close()
            self._workers.append(_Worker(ours, pid))

    def _search(self, queue: WorkerQueue) -> None:
        rows = 2 * len(self._devices) * rows_at_once(self._devices[0])
        numbers = itertools.count()
        sent = dict[int, Segment]()
        while True:
            free = rows - sum(segment.options.beam for segment in sent.values())
            taken = queue.take(free, float("inf"), SHARE * len(self._workers))
            if not (sent or taken):
                return
            shares: list[list[tuple[int, Segment]]] = [[] for _ in self._workers]
            for segment in taken:
                idlest = min(range(len(shares)), key=lambda i: self._workers[i].open)
                self._workers[idlest].open += 1
                number = next(numbers)
                sent[number] = segment
                shares[idlest].append((number, replace(segment, owner=None, unconstrained=None)))
            for worker, share in zip(self._workers, shares, strict=True):
                if share:
                    worker.send(share)
            busy = [worker for worker in self._workers if worker.open]
            ready = wait([worker.connection for worker in busy], 0.0 if taken else POLL_SECONDS)
            results = [result for worker in busy if worker.connection in ready for result in worker.receive()]
            for number, hypotheses in results:
                sent[number].hypotheses = hypotheses
            queue.finish([sent.pop(number) for number, _ in results])
