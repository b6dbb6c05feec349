"""Connections: their number, their memory, and their patience with slow clients."""

import asyncio
import contextlib
import errno
import http
import json
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from nmt_cli.system.console import warn
from nmt_cli.system.errors import UsageError

HEADER_SECONDS = 30  # for a request's headers to arrive
WRITE_SECONDS = 30  # in which a client has to read WRITE_BYTES of an answer
WRITE_BYTES = 1 << 16
MOST_HEAD = 1 << 16  # bytes of a request that are no body: URL, headers, sizes of chunks, trailers
MOST_HEADERS = 100
MOST_PIPELINED = 32  # requests that a client sends before it has read the answers to those before
PIECE = 1 << 13  # bytes that are parsed before the limits are looked at
LINGER_SECONDS, LINGER_BYTES = 1, 1 << 20  # in which a refused client may read why
GRACE_SECONDS = 1  # that a connection waits for its client before another may take its place
MOST_CONNECTIONS = 512
SPARE_FILES = 32  # for what else is opened while the server runs
BACKLOG = 128
RETRY_SECONDS = 1  # after the system had no file for a connection
WARN_SECONDS = 60


class _Timer:
    """Calls something after some time, unless it is stopped or started again before."""

    runs = False

    def start(self, seconds: float, function: Callable[[], None]) -> None:
        def call() -> None:
            self.runs = False
            function()

        self.stop()
        self._handle = asyncio.get_running_loop().call_later(seconds, call)
        self.runs = True

    def stop(self) -> None:
        if self.runs:
            self._handle.cancel()
        self.runs = False


class Refused(Exception):
    """The parser must go no further."""


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits on headers, pipelined requests and slow clients."""

    _deaf = False  # further data is dropped
    _refused = False
    _head = 0  # bytes of this request that are no body
    _in_head = False
    _refusal: tuple[int, str] | None = None
    since = 0.0  # when it last began to wait for its client
    on_lost: Callable[["Protocol"], None] | None = None

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._timer = _Timer()  # until the headers are there
        self._slow = _Timer()  # until the answer is read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=0)  # pause_writing whenever the client leaves anything unread
        super().connection_made(transport)
        self.since = time.monotonic()
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._head += len(data)
            if self._head > LINGER_BYTES:
                self.transport.abort()
        for begin in range(0, len(data), PIECE):
            if self._deaf or self.transport.is_closing():
                return
            piece = data[begin : begin + PIECE]
            self._head += len(piece)
            super().data_received(piece)
            if self._head > MOST_HEAD:
                self._refusal = 431, f"The headers of a request may have {MOST_HEAD:,} bytes"
                self.send_400_response("")
        self._wait()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:  # these are answered, then the connection ends
            self.cycle.keep_alive, self._deaf = False, True
            raise Refused
        self._in_head, self.since = True, time.monotonic()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # a trailer, which no route uses
            return
        if len(self.headers) >= MOST_HEADERS:
            self._refusal = 431, f"A request may have {MOST_HEADERS} headers"
            raise Refused
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.since = time.monotonic()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, unless the answer to an earlier one is due."""
        if self._deaf:
            return
        self._deaf = True
        running = self._in_request()
        if running and (self.cycle.response_started or not self.cycle.more_body):
            self.transport.abort()
            return
        if running:
            self.cycle.disconnected, self.cycle.waiting_for_100_continue = True, False
            self.cycle.message_event.set()
        status, text = self._refusal or (400, msg)
        body = json.dumps({"error": text}).encode()
        head = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self._refused = True
        self.transport.write(head.encode() + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.since = time.monotonic()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._slow.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.stop()
        self._slow.stop()
        super().connection_lost(exc)
        if self.on_lost:
            self.on_lost(self)

    @property
    def waits_for_client(self) -> bool:
        """Whether nothing happens here until the client sends or reads something."""
        return self.flow is not None and (self.flow.write_paused or not self._in_request() or self.cycle.more_body)

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        if self._in_request():
            self._timer.stop()
        elif not self._timer.runs:
            self._timer.start(HEADER_SECONDS, self._give_up)

    def _give_up(self) -> None:
        if not self._in_request():
            self.transport.close()

    def _watch_reader(self, before: int | None = None) -> None:
        """Cut the connection if the client reads less than WRITE_BYTES of its answer in WRITE_SECONDS."""
        left = self.transport.get_write_buffer_size()
        if before is not None and left > before - WRITE_BYTES:
            self.transport.abort()
        else:
            self._slow.start(WRITE_SECONDS, lambda: self._watch_reader(left))


class Listener:
    """Takes connections from a socket, `most` at once. The others wait in the socket's backlog, and take the places of
    connections that wait for their clients."""

    def __init__(self, port: socket.socket, most: int, make: Callable[[], Protocol]) -> None:
        self._port, self._most, self._make = port, most, make
        self._loop = asyncio.get_running_loop()
        self._open, self._tasks = set[Protocol](), set[asyncio.Task[None]]()
        self._timer = _Timer()
        self._warned = -float(WARN_SECONDS)
        port.setblocking(False)
        port.listen(BACKLOG)
        self._listen()

    @property
    def taken(self) -> int:
        """The connections that there are."""
        return len(self._open)

    def close(self) -> None:
        """Accept the connections in the backlog, and no more."""
        self._accept()
        self._stop()
        self._port.close()

    def _listen(self) -> None:
        self._timer.stop()
        if self._port.fileno() >= 0:
            self._loop.add_reader(self._port, self._accept)

    def _stop(self, seconds: float | None = None) -> None:
        """Take no connection, for some time or until one ends."""
        self._loop.remove_reader(self._port)
        self._timer.stop()
        if seconds is not None:
            self._timer.start(seconds, self._listen)

    def _accept(self) -> None:
        if len(self._open) >= self._most:
            self._make_room()
        for _ in range(self._most - len(self._open)):
            try:
                connection, _ = self._port.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._warn(f"no connection can be taken: {error.strerror}. Raise ulimit -n, or give less --connections")
                self._stop(RETRY_SECONDS)
                return
            connection.setblocking(False)
            protocol = self._make()
            protocol.on_lost = self._lost
            self._open.add(protocol)
            task = self._loop.create_task(self._connect(protocol, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, protocol: Protocol, connection: socket.socket) -> None:
        await self._loop.connect_accepted_socket(lambda: protocol, connection)

    def _make_room(self) -> None:
        """Cut the connection that has waited longest for its client; look again later where none has waited enough."""
        self._warn(f"all {self._most} connections are in use: those that wait longest for their clients are cut")
        waiting = [each for each in self._open if each.waits_for_client]
        oldest = min(waiting, key=lambda each: each.since, default=None)
        if oldest and time.monotonic() - oldest.since >= GRACE_SECONDS:
            oldest.transport.abort()
            self._stop()  # until _lost
        else:
            self._stop(GRACE_SECONDS / 4)

    def _lost(self, protocol: Protocol) -> None:
        self._open.discard(protocol)
        self._loop.call_soon(self._listen)  # the system has its file back only then

    def _warn(self, text: str) -> None:
        if time.monotonic() - self._warned >= WARN_SECONDS:
            self._warned = time.monotonic()
            warn(text)


def connections(asked: int | None) -> int:
    """Return the most connections at once; UsageError if the limit of open files does not allow `asked`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return asked or MOST_CONNECTIONS
    with contextlib.suppress(OSError):
        opened = len(list(Path("/dev/fd").iterdir()))
    room = limit - opened - SPARE_FILES
    if room < (asked or 1):
        raise UsageError(
            f"{limit:,} open files are too few for {asked or 1:,} connections. Raise the limit: "
            f"ulimit -n {opened + SPARE_FILES + (asked or MOST_CONNECTIONS)}"
        )
    return asked or min(MOST_CONNECTIONS, room)
