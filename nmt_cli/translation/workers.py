"""Search in several processes at once: small matrix products gain more from two processes than from two threads.

On the CPU workers are forks of this process, so that the weights are in memory once; in a job of several processes
(`accelerate launch`) they are these, each with its own device. They are fed a few sentences at a time and speak lines
of JSON: no pickle. A worker ends when the process that feeds it does.
"""

import contextlib
import functools
import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from nmt_cli.console import warn
from nmt_cli.errors import NmtError, StorageError
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.search import CPU_ROWS, CUDA_ROWS, Hypothesis, SearchSettings, Source, search

SHARE = 16  # sentences handed to a worker at once
POLL_SECONDS = 0.002
PATIENCE_SECONDS = 300  # for the other processes of a launched job to start
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


@contextlib.contextmanager
def telling(connection: socket.socket) -> Iterator[None]:
    """Send an error to the process at the other end, which tells the user, instead of raising it.

    Nothing is raised either where that process has gone.
    """
    try:
        yield
    except NmtError as error:
        with contextlib.suppress(ConnectionError):
            connection.sendall(json.dumps([-1, error.exit_code, str(error)]).encode() + b"\n")
    except ConnectionError:
        pass


def serve(
    connection: socket.socket, models: Sequence[Transformer], dtype: torch.dtype, settings: SearchSettings, device: str
) -> None:
    """Search what comes in until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    state = {"open": 0}
    with telling(connection):
        placed = [model.to(device) for model in models]
        for number, hypotheses in steady_search(placed, dtype, _receive(connection, state), settings):
            state["open"] -= 1
            answer = [number, [list(vars(h).values()) for h in hypotheses]]
            connection.sendall(json.dumps(answer).encode() + b"\n")


def _fork(run: Callable[[], None], ours: Sequence[socket.socket]) -> int:
    """Run something in a child process and return its id.

    The child closes what is ours: else its siblings would not notice that their parent has gone.
    """
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for connection in ours:
            connection.close()
        run()
        code = 0
    except (OSError, KeyboardInterrupt):
        pass  # the parent has gone
    finally:
        os._exit(code)


def _close(connections: Sequence[socket.socket], pids: Sequence[int]) -> None:
    """Let other processes go, and end these children: they have nothing to save."""
    for connection in connections:
        connection.close()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)


@contextlib.contextmanager
def forked(
    models: Sequence[Transformer], dtype: torch.dtype, settings: SearchSettings, devices: Sequence[str]
) -> Iterator[list[socket.socket]]:
    """Start one process per device, and yield the connections to them."""
    ours: list[socket.socket] = []
    pids: list[int] = []
    try:
        for device in devices:
            connection, theirs = socket.socketpair()
            ours.append(connection)
            pids.append(_fork(functools.partial(serve, theirs, models, dtype, settings, device), ours))
            theirs.close()
        yield ours
    finally:
        _close(ours, pids)


def _address() -> str:
    """Return where a launched job's processes meet: a name in Linux's table, not in any directory."""
    return f"\0nmt-translate-{os.getuid()}-{os.environ.get('MASTER_PORT', '')}"


def _ours(connection: socket.socket) -> bool:
    """Return whether the process at the other end is this user's."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


@contextlib.contextmanager
def gathered(world: int, run: Callable[[], None]) -> Iterator[list[socket.socket]]:
    """Yield the connections to all processes of a launched job, of which this is the first.

    Args:
        world: how many there are.
        run: what the others do, which call `joined`. A child of this process does it too, in its place.

    Raises:
        StorageError: not all of them came.
    """
    connections: list[socket.socket] = []
    pids: list[int] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(_address())
        listener.listen(world)
        listener.settimeout(PATIENCE_SECONDS)
        try:
            pids.append(_fork(run, [listener]))
            while len(connections) < world:
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    came = f"only {len(connections)} of {world} processes came within {PATIENCE_SECONDS} s"
                    raise StorageError(f"{came}. Start the job again") from None
                if _ours(connection):
                    connections.append(connection)
            yield connections
        finally:
            listener.close()
            _close(connections, pids)


def joined() -> socket.socket:
    """Return a connection to the first process of the launched job that this one belongs to.

    Raises:
        StorageError: it did not come.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        connection = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(ConnectionRefusedError):
            connection.connect(_address())
            if _ours(connection):
                return connection
        connection.close()
        time.sleep(POLL_SECONDS)
    raise StorageError(f"the first process of the job did not come within {PATIENCE_SECONDS} s. Start the job again")


class _Worker:
    """A process that searches, seen from the one that feeds it, and what it is working on."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.connection.setblocking(False)  # else both could wait for the other to read what they write
        self.numbers: dict[int, int] = {}  # of the sentences sent, in order -> the caller's
        self.sent, self.open, self.buffer, self.unsent = 0, 0, b"", bytearray()

    def give(self, batch: list[tuple[int, Source]]) -> None:
        """Hand over some sentences, as far as there is room on the way; `send` sends the rest."""
        self.numbers.update((self.sent + i, number) for i, (number, _) in enumerate(batch))
        self.sent, self.open = self.sent + len(batch), self.open + len(batch)
        message = [[list(map(int, s.ids)), list(map(int, s.prefix)), s.key] for _, s in batch]
        self.unsent += json.dumps(message).encode() + b"\n"
        self.send()

    def send(self) -> None:
        """Send what there is room for."""
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
            number, *found = json.loads(line)
            if number < 0:
                raise next(kind for kind in NmtError.__subclasses__() if kind.exit_code == found[0])(found[1])
            self.open -= 1
            yield self.numbers.pop(number), [Hypothesis(*h) for h in found[0]]


def parallel_search(
    connections: Sequence[socket.socket], sources: Iterator[Source | None], settings: SearchSettings, *, cuda: bool
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Do what `search` does in other processes.

    Args:
        connections: to processes that `serve`.
        sources: what to search.
        settings: of the search.
        cuda: whether these have GPUs, which want more sentences at once.
    """
    workers = [_Worker(connection) for connection in connections]
    full = (settings.rows or CPU_ROWS) // settings.beam + SHARE
    if cuda:
        full = (settings.rows or CUDA_ROWS) // settings.beam * 2
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
