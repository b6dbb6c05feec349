"""Limits on the number of connections, and on the memory and time that each may take."""

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

from nmt_cli.system.console import counted, warn
from nmt_cli.system.errors import UsageError

HEADER_SECONDS = 30  # time for a request's headers to arrive
WRITE_SECONDS = 30  # a client must read WRITE_BYTES of a response in this time
WRITE_BYTES = 1 << 16
MAX_HEAD_BYTES = 1 << 16  # maximum bytes of a request without its body: URL, headers, chunk sizes, trailers
MAX_HEADERS = 100
MAX_PIPELINED = 32  # requests that a client may send before it reads the responses
PIECE = 1 << 13  # bytes to parse between two checks of the limits
LINGER_SECONDS = 1  # time that a refused client has to read the response
LINGER_BYTES = 1 << 20  # maximum bytes that a refused client may still send
GRACE_SECONDS = 1  # after waiting this long for its client, a connection may be closed for another
DEFAULT_CONNECTIONS = 512
SPARE_FILES = 32  # file descriptors for everything but connections
BACKLOG = 128
RETRY_SECONDS = 1  # pause before accepting connections again if the system lacked file descriptors or memory
WARN_SECONDS = 60  # minimum time between two warnings


class _Timer:
    """Calls a function after a delay, unless it is stopped or started again first."""

    running = False

    def start(self, seconds: float, function: Callable[[], None]) -> None:
        def call() -> None:
            self.running = False
            function()

        self.stop()
        self._handle = asyncio.get_running_loop().call_later(seconds, call)
        self.running = True

    def stop(self) -> None:
        if self.running:
            self._handle.cancel()
        self.running = False


class StopParsing(Exception):
    """Raised in a callback of the HTTP parser to make the parser stop."""


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with limits on headers, pipelined requests and slow clients."""

    _discarding = False  # whether further data are ignored
    _refused = False  # an error response was sent, and the connection is about to be closed
    _head_bytes = 0  # bytes of this request, without its body; after a refusal, all bytes that arrive are added
    _in_head = False
    _refusal: tuple[int, str] | None = None  # status and message; None: 400 and the parser's message
    waiting_since = 0.0  # when the connection last began to wait for its client
    on_lost: Callable[["Protocol"], None] | None = None

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, server_state, app_state)
        self._header_timer = _Timer()
        self._write_timer = _Timer()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=0)  # call pause_writing as soon as data wait for the client
        super().connection_made(transport)
        self.waiting_since = time.monotonic()
        self._update_header_timer()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._head_bytes += len(data)
            if self._head_bytes > LINGER_BYTES:
                self.transport.abort()
        for begin in range(0, len(data), PIECE):
            if self._discarding or self.transport.is_closing():
                return
            piece = data[begin : begin + PIECE]
            self._head_bytes += len(piece)
            super().data_received(piece)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refusal = 431, f"The headers of a request may have at most {MAX_HEAD_BYTES:,} bytes"
                self.send_400_response("")
        self._update_header_timer()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:  # answer the earlier requests, then close the connection
            self.cycle.keep_alive = False
            self._discarding = True
            raise StopParsing
        self._in_head = True
        self.waiting_since = time.monotonic()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:  # a trailer, which no route uses
            return
        if len(self.headers) >= MAX_HEADERS:
            self._refusal = 431, f"A request may have at most {MAX_HEADERS} headers"
            raise StopParsing
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._head_bytes -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.waiting_since = time.monotonic()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed or oversized request.

        If an earlier request still waits for its response, or a response has begun, close the connection instead.
        """
        if self._discarding:
            return
        self._discarding = True
        in_request = self._in_request()
        if in_request and (self.cycle.response_started or not self.cycle.more_body):
            self.transport.abort()
            return
        if in_request:
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False
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
        self.waiting_since = time.monotonic()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._write_timer.stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._header_timer.stop()
        self._write_timer.stop()
        super().connection_lost(exc)
        if self.on_lost:
            self.on_lost(self)

    @property
    def waits_for_client(self) -> bool:
        """Whether the connection makes no progress until the client sends or reads data."""
        return self.flow is not None and (self.flow.write_paused or not self._in_request() or self.cycle.more_body)

    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _update_header_timer(self) -> None:
        if self._in_request():
            self._header_timer.stop()
        elif not self._header_timer.running:
            self._header_timer.start(HEADER_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if not self._in_request():
            self.transport.close()

    def _watch_reader(self, unread_before: int | None = None) -> None:
        """Close the connection if the client reads less than WRITE_BYTES of its response in WRITE_SECONDS.

        `unread_before` is the number of unread bytes WRITE_SECONDS ago, or None if the watch begins now.
        """
        unread = self.transport.get_write_buffer_size()
        if unread_before is not None and unread > unread_before - WRITE_BYTES:
            self.transport.abort()
        else:
            self._write_timer.start(WRITE_SECONDS, lambda: self._watch_reader(unread))


class Listener:
    """Accepts up to `limit` connections from a socket.

    Further connections wait in the socket's backlog. While any wait there, the open connection that has waited longest
    for its client is closed to make room.
    """

    def __init__(self, server_socket: socket.socket, limit: int, make_protocol: Callable[[], Protocol]) -> None:
        self.server_socket = server_socket
        self._limit = limit
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._open = set[Protocol]()
        self._tasks = set[asyncio.Task[None]]()
        self._timer = _Timer()
        self._warned_at = -float(WARN_SECONDS)
        server_socket.setblocking(False)
        server_socket.listen(BACKLOG)
        self._listen()

    @property
    def count(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def close(self) -> None:
        """Accept the connections in the backlog, then stop listening."""
        self._accept()
        self._stop()
        self.server_socket.close()

    def _listen(self) -> None:
        self._timer.stop()
        if self.server_socket.fileno() >= 0:
            self._loop.add_reader(self.server_socket, self._accept)

    def _stop(self, seconds: float | None = None) -> None:
        """Stop accepting connections until an open one ends or, if `seconds` is given, until that time has passed."""
        self._loop.remove_reader(self.server_socket)
        self._timer.stop()
        if seconds is not None:
            self._timer.start(seconds, self._listen)

    def _accept(self) -> None:
        if len(self._open) >= self._limit:
            self._close_oldest()
        for _ in range(self._limit - len(self._open)):
            try:
                connection, _ = self.server_socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._warn(f"cannot accept connections: {error.strerror}. Raise ulimit -n, or lower --connections")
                self._stop(RETRY_SECONDS)
                return
            connection.setblocking(False)
            protocol = self._make_protocol()
            protocol.on_lost = self._lost
            self._open.add(protocol)
            task = self._loop.create_task(self._connect(protocol, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self, protocol: Protocol, connection: socket.socket) -> None:
        await self._loop.connect_accepted_socket(lambda: protocol, connection)

    def _close_oldest(self) -> None:
        """Close the connection that has waited longest for its client.

        If none has waited for GRACE_SECONDS, try again soon.
        """
        self._warn(f"all {self._limit} connections are in use: closing those that have waited longest for a client")
        waiting = [each for each in self._open if each.waits_for_client]
        oldest = min(waiting, key=lambda each: each.waiting_since, default=None)
        if oldest and time.monotonic() - oldest.waiting_since >= GRACE_SECONDS:
            oldest.transport.abort()
            self._stop()  # until `_lost` is called
        else:
            self._stop(GRACE_SECONDS / 4)

    def _lost(self, protocol: Protocol) -> None:
        self._open.discard(protocol)
        self._loop.call_soon(self._listen)  # later, because the file descriptor is still open

    def _warn(self, text: str) -> None:
        if time.monotonic() - self._warned_at >= WARN_SECONDS:
            self._warned_at = time.monotonic()
            warn(text)


def connection_limit(wanted: int | None) -> int:
    """Return the number of connections to allow. `wanted` is the user's number, or None for the default.

    Raise UsageError if the system's limit on open files is too low.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return wanted or DEFAULT_CONNECTIONS
    opened = 0
    with contextlib.suppress(OSError):  # /dev/fd may be missing
        opened = len(list(Path("/dev/fd").iterdir()))
    room = limit - opened - SPARE_FILES
    if room < (wanted or 1):
        raise UsageError(
            f"the limit of {limit:,} open files is too low for {counted(wanted or 1, 'connection')}. Raise it: "
            f"ulimit -n {opened + SPARE_FILES + (wanted or DEFAULT_CONNECTIONS)}"
        )
    return wanted or min(DEFAULT_CONNECTIONS, room)
