"""Search in several processes at once: small matrix products gain more from two processes than from two threads.

Workers are forks of this process, so that the weights are in memory once. They are fed a few sentences at a time and
speak lines of JSON: no pickle. A worker ends when its parent does.
"""

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from nmt_cli.console import warn
from nmt_cli.errors import DivergedError, NmtError, StorageError
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.search import CPU_ROWS, CUDA_ROWS, Hypothesis, SearchSettings, Source, search

SHARE = 16  # sentences handed to a worker at once
POLL_SECONDS = 0.002
_ENDED = "a worker process ended, probably for want of memory. Use fewer: --workers 1"


def steady_search(
    models: Sequence[Transformer], dtype: torch.dtype, sources: Iterator[Source | None], settings: SearchSettings
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Do what `search` does; where memory does not suffice, start the unfinished sentences again in smaller batches.

    Raises:
        StorageError: there is too little memory for one sentence.
    """
    cuda = models[0].embedding.weight.is_cuda
    rows = settings.rows or (CUDA_ROWS if cuda else CPU_ROWS)
    unfinished: dict[int, Source] = {}
    count = 0
    while True:
        numbers: dict[int, int] = {}  # of this search's sentences -> ours

        def feed(again: list[int], numbers: dict[int, int]) -> Iterator[Source | None]:
            nonlocal count
            given = 0
            for number in again:
                numbers[given] = number
                given += 1
                yield unfinished[number]
            for source in sources:
                if source is not None:
                    numbers[given] = count
                    unfinished[count] = source
                    given += 1
                    count += 1
                yield source

        try:
            for index, hypotheses in search(
                models, dtype, feed(list(unfinished), numbers), replace(settings, rows=rows)
            ):
                number = numbers.pop(index)
                del unfinished[number]
                yield number, hypotheses
            return
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
                raise
        rows //= 2
        if rows < settings.beam:
            raise StorageError("there is too little memory to translate one sentence. Lower --beam")
        warn(f"out of memory: going on with {rows} hypotheses at once")


def _receive(connection: socket.socket, state: dict[str, int]) -> Iterator[Source | None]:
    """Yield the sentences that come in; None where none is there and others are being searched."""
    buffer = b""
    while True:
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            for ids, prefix, key in json.loads(line):
                state["open"] += 1
                yield Source(ids, prefix, key)
        if state["open"] and not select.select([connection], [], [], 0)[0]:
            yield None
            continue
        data = connection.recv(1 << 16)
        if not data:
            return
        buffer += data


def _work(
    connection: socket.socket, models: Sequence[Transformer], dtype: torch.dtype, settings: SearchSettings, device: str
) -> None:
    """Serve until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    state = {"open": 0}
    try:
        placed = [model.to(device) for model in models]
        for number, hypotheses in steady_search(placed, dtype, _receive(connection, state), settings):
            state["open"] -= 1
            connection.sendall(json.dumps([number, [list(vars(h).values()) for h in hypotheses]]).encode() + b"\n")
    except NmtError as error:
        connection.sendall(json.dumps([-1, str(error), isinstance(error, DivergedError)]).encode() + b"\n")


class _Worker:
    """One forked process and what it is working on."""

    def __init__(
        self,
        models: Sequence[Transformer],
        dtype: torch.dtype,
        settings: SearchSettings,
        device: str,
        others: list["_Worker"],
    ) -> None:
        self.connection, theirs = socket.socketpair()
        self.connection.setblocking(False)  # else both could wait for the other to read what they write
        self.numbers: dict[int, int] = {}  # of the sentences sent, in order -> the caller's
        self.sent, self.open, self.buffer, self.unsent = 0, 0, b"", bytearray()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self.connection.close()
                for other in others:  # else they would not notice that their parent has gone
                    other.connection.close()
                _work(theirs, models, dtype, settings, device)
                code = 0
            except (OSError, KeyboardInterrupt):
                pass  # the parent has gone
            finally:
                os._exit(code)
        theirs.close()

    def give(self, batch: list[tuple[int, Source]]) -> None:
        """Hand over some sentences, as far as there is room on the way; `send` sends the rest."""
        self.numbers.update((self.sent + i, number) for i, (number, _) in enumerate(batch))
        self.sent, self.open = self.sent + len(batch), self.open + len(batch)
        message = [[list(map(int, s.ids)), list(map(int, s.prefix)), s.key] for _, s in batch]
        self.unsent += json.dumps(message).encode() + b"\n"
        self.send()

    def send(self) -> None:
        """Send what there is room for.

        Raises:
            StorageError: the worker has ended.
        """
        try:
            del self.unsent[: self.connection.send(self.unsent)]
        except BlockingIOError:
            pass
        except ConnectionError:
            raise StorageError(_ENDED) from None

    def results(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield what has come back; call it only when something has.

        Raises:
            StorageError: the worker has ended.
        """
        try:
            data = self.connection.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            raise StorageError(_ENDED)
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            number, *found = json.loads(line)
            if number < 0:
                raise DivergedError(found[0]) if found[1] else StorageError(found[0])
            self.open -= 1
            yield self.numbers.pop(number), [Hypothesis(*h) for h in found[0]]


def parallel_search(
    models: Sequence[Transformer],
    dtype: torch.dtype,
    sources: Iterator[Source | None],
    settings: SearchSettings,
    devices: Sequence[str],
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Do what `search` does, in one forked process per entry of `devices`."""
    workers: list[_Worker] = []
    full = (settings.rows or CPU_ROWS) // settings.beam + SHARE
    if any(device != "cpu" for device in devices):
        full = (settings.rows or CUDA_ROWS) // settings.beam * 2
    try:
        for device in devices:
            workers.append(_Worker(models, dtype, settings, device, workers))
        count, more = 0, True
        while more or any(worker.open for worker in workers):
            idlest = min(workers, key=lambda worker: worker.open)
            batch: list[tuple[int, Source]] = []
            while more and idlest.open < full and len(batch) < SHARE:
                try:
                    source = next(sources)
                except StopIteration:
                    more = False
                    break
                if source is None:
                    break
                batch.append((count, source))
                count += 1
            if batch:
                idlest.give(batch)
            busy = [worker.connection for worker in workers if worker.open]
            unsent = [worker.connection for worker in workers if worker.unsent]
            wait = 0 if batch or not busy else POLL_SECONDS if more else None
            readable, writable, _ = select.select(busy, unsent, [], wait)
            for worker in workers:
                if worker.connection in writable:
                    worker.send()
                if worker.connection in readable:
                    yield from worker.results()
    finally:
        for worker in workers:
            worker.connection.close()
        for worker in workers:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(worker.pid, 0)
