"""Search in forks of this process, fed a few segments at a time over socket pairs as lines of JSON.

Small matrix products gain more from two processes than from two threads. A worker ends at the end of its socket.
"""

import contextlib
import json
import os
import queue
import select
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from nmt_cli.errors import NmtError, StorageError
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.candidates import Sampling
from nmt_cli.translation.search import Results, SearchSettings, rows_at_once, search_with_oom_retry
from nmt_cli.translation.segments import Hypothesis, Segment

SHARE = 16  # segments handed to a worker at once, about
POLL_SECONDS = 0.002
_END = Segment(-1, [])
Prepare = Callable[[torch.device], tuple[Sequence[Transformer], torch.dtype]]


class _Channel:
    def __init__(self, connection: socket.socket, pid: int = 0) -> None:
        self.connection, self.pid = connection, pid
        self.open = 0  # segments sent to the worker that have no result yet
        self._received = b""

    def receive(self) -> list[Any]:
        """Wait for something to come and return the values that are complete, or raise ConnectionError."""
        data = self.connection.recv(1 << 16)
        if not data:
            raise ConnectionError
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def send(self, value: Any) -> None:
        with contextlib.suppress(ConnectionError):  # `receive` says why
            self.connection.sendall(json.dumps(value).encode() + b"\n")


def _serve(channel: _Channel, prepare: Prepare, device: torch.device) -> None:
    """Search what comes in, settings (an object) and then segments (lists), and again; end with the parent.

    An error is told as a negative exit code and a text.
    """
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    values: dict[str, Any] = {}

    def receive() -> None:  # in a thread of its own: else both could wait for the other to read what they write
        with contextlib.suppress(ConnectionError):
            while True:
                for message in channel.receive():
                    messages.put(message)
        os._exit(0)

    def segments() -> Iterator[Segment | None]:
        nonlocal values
        while True:
            if channel.open and messages.empty():
                yield None
                continue
            message = messages.get()
            if isinstance(message, dict):
                values = message
                return
            channel.open += len(message)
            yield from (Segment(*fields) for fields in message)

    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        torch.set_num_threads(1)
        threading.Thread(target=receive, daemon=True).start()
        models, dtype = prepare(device)
        values = messages.get()
        while True:
            values["sampling"] = values["sampling"] and Sampling(**values["sampling"])
            for result in search_with_oom_retry(models, dtype, segments(), SearchSettings(**values)):
                if result:
                    channel.open -= 1
                    channel.send([result[0], [list(vars(h).values()) for h in result[1]]])
    except Exception as error:
        text = str(error) if isinstance(error, NmtError) else f"a worker failed: {type(error).__name__}: {error}"
        channel.send([-getattr(error, "exit_code", 1), text])
    finally:
        os._exit(0)


def _close(channels: list[_Channel], owner: int) -> None:
    """End workers, which have nothing to save; a fork of their owner leaves them alone."""
    for channel in channels:
        channel.connection.close()
        if os.getpid() == owner:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(channel.pid, signal.SIGTERM)
                os.waitpid(channel.pid, 0)


class Workers:
    """Processes that search, one for each device, with the models that `prepare` returns in each. They start when there
    is more than one segment to search: on a CPU one that comes alone is searched here, sooner than it could be sent."""

    def __init__(self, devices: Sequence[torch.device], prepare: Prepare) -> None:
        self._devices, self._prepare = devices, prepare
        self._channels: list[_Channel] = []
        self.close = weakref.finalize(self, _close, self._channels, os.getpid())

    def _start(self, settings: SearchSettings) -> None:
        for device in self._devices[len(self._channels) :]:
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if not pid:
                ours.close()
                for channel in self._channels:  # else siblings would not notice that their parent has gone
                    channel.connection.close()
                _serve(_Channel(theirs), self._prepare, device)
            theirs.close()
            self._channels.append(_Channel(ours, pid))
        for channel in self._channels:
            channel.send(asdict(settings))

    def search(self, segments: Iterator[Segment | None], settings: SearchSettings) -> Results:
        """Do what `search` does. After one that is not taken to its end there can be no other."""
        most = rows_at_once(settings, self._devices[0]) // settings.beam
        cpu = self._devices[0].type == "cpu"
        full = (most + SHARE if cpu else most * 2) * len(self._devices)
        more, started = True, False
        try:
            while more or any(channel.open for channel in self._channels):
                batch: list[Segment] = []
                open_ = sum(channel.open for channel in self._channels)
                while more and open_ < full and len(batch) < SHARE * len(self._devices):
                    segment = next(segments, _END)
                    if segment is None or segment is _END:
                        more = segment is None
                        break
                    batch.append(segment)
                if cpu and len(batch) == 1 and not open_:
                    yield from self._search_here(batch, settings)
                    continue
                if batch and not started:
                    self._start(settings)
                    started = True
                self._share(batch)
                busy = {channel.connection: channel for channel in self._channels if channel.open}
                if not busy:
                    yield None
                    continue
                wait = 0 if batch else POLL_SECONDS if more else None
                for connection in select.select(busy, [], [], wait)[0]:
                    for number, content in busy[connection].receive():
                        if number < 0:
                            errors = {kind.exit_code: kind for kind in NmtError.__subclasses__()}
                            raise errors.get(-number, NmtError)(content)
                        busy[connection].open -= 1
                        yield number, [Hypothesis(*values) for values in content]
        except ConnectionError:
            raise StorageError("a worker ended, probably for want of memory. Use fewer: --workers 1") from None

    def _search_here(self, batch: list[Segment], settings: SearchSettings) -> list[Any]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # products this small gain nothing from two, and wait long where a core is busy
        try:
            return list(search_with_oom_retry(*self._prepare(self._devices[0]), iter(batch), settings))
        finally:
            torch.set_num_threads(threads)

    def _share(self, batch: list[Segment]) -> None:
        """Send each worker some of these, so that all have as many as the others."""
        shares: dict[_Channel, list[Any]] = {}
        for segment in batch:
            idlest = min(self._channels, key=lambda channel: channel.open)
            idlest.open += 1
            shares.setdefault(idlest, []).append([segment.id, segment.ids, segment.prefix, segment.key])
        for channel, share in shares.items():
            channel.send(share)
