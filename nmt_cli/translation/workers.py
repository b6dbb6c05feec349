"""Search in several processes at once: small matrix products gain more from two processes than from two threads.

Workers are forks of this process. They are fed a few segments at a time over socket pairs and speak lines of JSON: no
pickle. A worker ends when the process that started it does, however that ends: it then reads the end of its socket.
"""

import contextlib
import json
import os
import select
import signal
import socket
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from nmt_cli.errors import NmtError, StorageError
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.candidates import Sampling
from nmt_cli.translation.search import CPU_ROWS, CUDA_ROWS, SearchSettings, search_with_oom_retry
from nmt_cli.translation.segments import Hypothesis, Segment

SHARE = 16  # segments handed to a worker at once
POLL_SECONDS = 0.002
_ENDED = "a worker process ended, probably for want of memory. Use fewer: --workers 1"
Prepare = Callable[[torch.device], tuple[Sequence[Transformer], torch.dtype]]


class _Inbox:
    """What comes to a worker, each on a line of JSON: search settings (an object) or segments (a list)."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.messages, self.buffer = connection, deque[Any](), b""
        self.open = 0  # segments that came and have no result yet

    def take(self, *, wait: bool) -> Any:
        """Return the next message; None where there is none and `wait` is false.

        Raises:
            ConnectionError: the other side has gone.
        """
        while not self.messages:
            if not wait and not select.select([self.connection], [], [], 0)[0]:
                return None
            data = self.connection.recv(1 << 16)
            if not data:
                raise ConnectionError
            *lines, self.buffer = (self.buffer + data).split(b"\n")
            self.messages.extend(map(json.loads, lines))
        return self.messages.popleft()

    def segments(self) -> Iterator[Segment | None]:
        """Yield the segments that come before the next settings; None where there is none and others are searched."""
        while True:
            message = self.take(wait=not self.open)
            if isinstance(message, dict):
                self.messages.appendleft(message)
                return
            if message is None:
                yield None
                continue
            for fields in message:
                self.open += 1
                yield Segment(*fields)


def _serve(connection: socket.socket, prepare: Prepare, device: torch.device) -> None:
    """Search what comes in until the connection is closed. An error is sent to the other side, which raises it."""
    inbox = _Inbox(connection)

    def send(message: list[Any]) -> None:
        connection.sendall(json.dumps(message).encode() + b"\n")

    try:
        models, dtype = prepare(device)
        while True:
            values = inbox.take(wait=True)
            sampling = values["sampling"] and Sampling(**values["sampling"])
            settings = SearchSettings(**{**values, "sampling": sampling})
            for result in search_with_oom_retry(models, dtype, inbox.segments(), settings):
                if result:
                    inbox.open -= 1
                    send([result[0], [list(vars(h).values()) for h in result[1]]])
    except ConnectionError:
        pass
    except NmtError as error:
        send([-error.exit_code, str(error)])
    except Exception as error:  # any other is the user's to see, too, not only that a process has ended
        send([-NmtError.exit_code, f"a worker failed: {type(error).__name__}: {error}"])


class _Worker:
    """A worker process, seen from the one that feeds it."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid, self.connection = pid, connection
        self.connection.setblocking(False)  # else both could wait for the other to read what they write
        self.open, self.buffer, self.unsent = 0, b"", bytearray()

    def give(self, message: Any) -> None:
        """Hand over settings or segments, as far as there is room on the way; `send` sends the rest."""
        self.unsent += json.dumps(message).encode() + b"\n"
        self.send()

    def send(self) -> None:
        try:
            del self.unsent[: self.connection.send(self.unsent)]
        except BlockingIOError:
            pass
        except ConnectionError:
            self.unsent.clear()  # `results` says why it has ended

    def results(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield what has come back; call it only when something has.

        Raises:
            NmtError: the worker's, or StorageError: it has ended.
        """
        try:
            data = self.connection.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            raise StorageError(_ENDED)
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            number, content = json.loads(line)
            if number < 0:
                raise {kind.exit_code: kind for kind in NmtError.__subclasses__()}.get(-number, NmtError)(content)
            self.open -= 1
            yield number, [Hypothesis(*h) for h in content]


class Workers:
    """Processes that search, one for each device.

    They end when `close` is called, when this object is garbage, and when this process ends.

    Args:
        devices: the CPU several times, or different GPUs.
        prepare: called in each process: returns the models on a device, and their arithmetic.
    """

    def __init__(self, devices: Sequence[torch.device], prepare: Prepare) -> None:
        self._workers: list[_Worker] = []
        self._rows = CUDA_ROWS if devices[0].type == "cuda" else CPU_ROWS
        self.close = weakref.finalize(self, _close, self._workers, os.getpid())
        for device in devices:
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if not pid:
                # Else this child's siblings would not notice that their parent has gone.
                for connection in (ours, *(worker.connection for worker in self._workers)):
                    connection.close()
                _run(lambda: _serve(theirs, prepare, device))  # noqa: B023 - it does not return
            theirs.close()
            self._workers.append(_Worker(pid, ours))

    def search(
        self, segments: Iterator[Segment | None], settings: SearchSettings
    ) -> Iterator[tuple[int, list[Hypothesis]] | None]:
        """Do what `search` does. After one that is not taken to its end there can be no other."""
        for worker in self._workers:
            worker.give(asdict(settings))
        most = (settings.rows or self._rows) // settings.beam
        full = most * 2 if self._rows == CUDA_ROWS else most + SHARE
        more = True
        while more or any(worker.open for worker in self._workers):
            idlest = min(self._workers, key=lambda worker: worker.open)
            batch: list[Any] = []
            while more and idlest.open < full and len(batch) < SHARE:
                try:
                    segment = next(segments)
                except StopIteration:
                    more = False
                    break
                if segment is None:
                    break
                batch.append([segment.id, segment.ids, segment.prefix, segment.key])
            if batch:
                idlest.open += len(batch)
                idlest.give(batch)
            busy = {worker.connection: worker for worker in self._workers if worker.open}
            unsent = {worker.connection: worker for worker in self._workers if worker.unsent}
            if more and not busy:
                yield None
            wait = 0 if batch or not busy else POLL_SECONDS if more else None
            readable, writable, _ = select.select(busy, unsent, [], wait)
            for connection in writable:
                unsent[connection].send()
            for connection in readable:
                yield from busy[connection].results()


def _run(serve: Callable[[], None]) -> None:
    """Do a worker's work and end this process, quietly where its parent has gone."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        serve()
        code = 0
    except OSError:
        pass
    finally:
        os._exit(code)


def _close(workers: list[_Worker], owner: int) -> None:
    """End workers, which have nothing to save; a fork of their owner leaves them alone."""
    for worker in workers:
        worker.connection.close()
    for worker in workers if os.getpid() == owner else ():
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(worker.pid, signal.SIGTERM)
            os.waitpid(worker.pid, 0)
