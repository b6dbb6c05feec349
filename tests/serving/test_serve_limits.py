"""Clients that send endlessly, read nothing or hold connections: memory and log stay small, others are served."""

import asyncio
import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from texts import ROOT

pytest.importorskip("starlette")
import uvicorn
from serving import LONG, PAIR, ask, resident, server, service_of
from starlette.requests import Request
from starlette.testclient import TestClient
from uvicorn.server import ServerState

from nmt_cli.serving import connections, fields
from nmt_cli.serving.app import create_app
from nmt_cli.serving.connections import Listener, Protocol
from nmt_cli.system.errors import UsageError

MEGABYTE = 1 << 20
PAGES = MEGABYTE // os.sysconf("SC_PAGE_SIZE")
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
TRANSLATE = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
POST = TRANSLATE + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[tuple[int, str]]:
    """A server's process ID and address; a thread drains its log."""
    with server(str(model), "--char-limit", "1000000") as (process, address):
        assert process.stderr
        threading.Thread(target=process.stderr.read, daemon=True).start()
        ask(address, "rot")
        yield process.pid, address


def connect(address: str) -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((parts.hostname, parts.port), timeout=30)


def send(connection: socket.socket, data: bytes, times: int) -> None:
    """Send data many times, until the peer closes the connection."""
    with contextlib.suppress(OSError):
        for _ in range(times):
            connection.sendall(data)


def received(connection: socket.socket) -> bytes:
    """Return all data until the peer closes or resets the connection."""
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            found += data
    return bytes(found)


ENDLESS = {
    "headers": (GET, b"X: a\r\n"),
    "a header": (GET + b"X: ", b"aaaaaaaa"),
    "a name": (GET, b"aaaaaaaa"),
    "a URL": (b"GET /health?", b"aaaaaaaa"),
    "a method": (b"", b"G"),
    "empty lines": (b"", b"\r\n"),
    "cookies": (GET, b"Cookie: a=b\r\n"),
    "trailers": (POST + b"1\r\n{\r\n0\r\n", b"X: a\r\n"),
    "a trailer": (POST + b"1\r\n{\r\n0\r\nX: ", b"aaaaaaaa"),
    "trailers after an answer": (GET + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: a\r\n"),
    "a chunk's extension": (POST + b"1;", b"aaaaaaaa"),
    "zeros of a chunk's size": (POST, b"0"),
    "chunks of one byte": (POST, b"1\r\n \r\n"),
    "chunks of one byte with extensions": (POST, b"1;aaaaaaaa\r\n \r\n"),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_endless_heads_are_refused(served: tuple[int, str], kind: str) -> None:
    """The server refuses them after 64 KB, uses little memory, and still answers other clients."""
    process, address = served
    begin, unit = ENDLESS[kind]
    before = resident(process)
    with connect(address) as connection:
        send(connection, begin, 1)
        sent = 0
        unit *= 4096 // len(unit)
        connection.settimeout(10)
        with contextlib.suppress(ConnectionError):
            while sent < 32 * MEGABYTE:
                connection.sendall(unit)
                sent += len(unit)
        assert resident(process) - before < 16 * PAGES
        assert sent < 32 * MEGABYTE, "the server reads no more of it"
    assert ask(address, "rot")


@pytest.mark.parametrize(("kind", "status"), [("headers", 431), ("a header", 431), ("a URL", 431), ("a method", 400)])
def test_a_refused_head_gets_an_error_response(served: tuple[int, str], kind: str, status: int) -> None:
    _, address = served
    begin, unit = ENDLESS[kind]
    with connect(address) as connection:
        connection.sendall(begin + unit * (80_000 // len(unit)))
        head, _, body = received(connection).partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"connection: close" in head
    assert list(json.loads(body)) == ["error"]


def test_limits_on_headers_are_exact(served: tuple[int, str]) -> None:
    _, address = served
    for lines, length, status in ((98, 10, 200), (100, 10, 431), (1, 60_000, 200), (1, 80_000, 431)):
        with connect(address) as connection:
            more = b"".join(b"X%d: %s\r\n" % (number, b"a" * length) for number in range(lines))
            connection.sendall(GET + more + b"Connection: close\r\n\r\n")
            assert received(connection).startswith(b"HTTP/1.1 %d " % status), (lines, length)


def test_limits_apply_to_each_request_of_a_connection(served: tuple[int, str]) -> None:
    _, address = served
    headers = {"X": "a" * 40_000, "Content-Type": "application/json"}
    body = json.dumps({"q": "", **PAIR}).encode().ljust(3 * MEGABYTE)
    chunks = [body[at : at + 1000] for at in range(0, len(body), 1000)]
    asked = (("GET", "/health", None), ("POST", "/translate", body), ("POST", "/translate", chunks))
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    for method, path, data in asked * 2:
        connection.request(method, path, data, headers, encode_chunked=data is chunks)
        answer = connection.getresponse()
        assert (answer.status, answer.will_close) == (200, False), answer.read()
        answer.read()


def test_pipelined_requests_are_bounded(served: tuple[int, str]) -> None:
    """After a long request, 32 are answered and the connection closes."""
    process, address = served
    body = json.dumps({"q": LONG * 20, **PAIR}).encode()
    before = resident(process)
    with connect(address) as connection:
        connection.sendall(TRANSLATE + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        sender = threading.Thread(target=send, args=(connection, (GET + b"\r\n") * 1000, 200))
        sender.start()
        answers = received(connection)
        sender.join(60)
        assert resident(process) - before < 32 * PAGES
    assert answers.count(b"HTTP/1.1 200 ") == 33
    assert answers.count(b"connection: close") == 1


def test_pipelined_requests_are_answered_in_order(served: tuple[int, str]) -> None:
    _, address = served
    with connect(address) as connection:
        connection.sendall((GET + b"\r\n") * 20 + GET + b"Connection: close\r\n\r\n")
        assert received(connection).count(b'{"status":"ok"}') == 21


def test_malformed_requests_are_not_logged(model: Path) -> None:
    """Valid requests are logged. SIGINT ends the server."""
    with server(str(model)) as (process, address):
        for data in (
            b"nonsense\r\n\r\n",
            GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            GET + b"X: a\r\n" * 200,
        ):
            for _ in range(20):
                with connect(address) as connection:
                    connection.sendall(data)
                    connection.recv(1 << 16)
        ask(address, "rot")
        process.send_signal(signal.SIGINT)
        stdout, log = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (0, "")
    assert log.count("POST /translate 200 1 text 3 characters") == 1
    assert {line.split(" 200 ")[0] for line in log.splitlines()} <= {"GET /health", "POST /translate"}, log


@contextlib.contextmanager
def few_files(model: Path, files: int, *options: str) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """Yield a server with a low limit on open files, and its address."""
    command = [sys.executable, "-m", "nmt_cli", "serve", "--workers", "1", "--port", "0", str(model), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=limit)
    try:
        assert process.stderr
        line = process.stderr.readline()
        assert line.startswith("serving "), line
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.wait()


def test_idle_connections_do_not_block_others(model: Path) -> None:
    """A client is served beside 16 connections that are idle or in half a request. The log has one line about these."""
    with few_files(model, 40) as (process, address):
        with contextlib.ExitStack() as stack:
            for number in range(16):
                connection = stack.enter_context(connect(address))
                connection.sendall((b"", GET, GET + b"\r\n", POST + b"1")[number % 4])
            begun = time.monotonic()
            for _ in range(20):
                assert ask(address, "rot")
            assert time.monotonic() - begun < 30
        process.terminate()
        _, log = process.communicate(timeout=60)
    lines = [line for line in log.splitlines() if not line.startswith(("GET /health 200", "POST /translate "))]
    assert len(lines) == 1, log[:2000]
    assert "connections are in use" in lines[0]


Application = Callable[[Any, Any, Any], Awaitable[None]]


def listening(app: Application, limit: int, test: Callable[[tuple[str, int], Listener], Awaitable[None]]) -> None:
    """Run a test with the address of a listener that allows `limit` connections to an application."""

    async def run() -> None:
        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
        config.load()
        state = ServerState()
        port = socket.create_server(("127.0.0.1", 0))
        listener = Listener(port, limit, lambda: Protocol(config, state, {}))
        try:
            await asyncio.wait_for(test(port.getsockname(), listener), 60)
        finally:
            listener.close()
            for each in list(state.connections):
                each.transport.abort()
            await asyncio.sleep(0.01)

    asyncio.run(run())


async def answer(send: Any, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return all data until the connection is closed or reset."""
    found = bytearray()
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            found += data
    return bytes(found)


def test_a_busy_connection_is_never_closed_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection waits until a busy one is free. An idle connection is closed to make room."""
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.05)

    async def test(place: tuple[str, int], listener: Listener) -> None:
        work = asyncio.Event()
        app.work = work  # type: ignore[attr-defined]
        busy = [await asyncio.open_connection(*place) for _ in range(2)]
        for _, writer in busy:
            writer.write(GET + b"\r\n")
        await asyncio.sleep(0.1)
        idle = await asyncio.open_connection(*place)
        third = await asyncio.open_connection(*place)
        third[1].write(GET + b"\r\n")
        waiting = asyncio.ensure_future(third[0].readline())
        assert await asyncio.wait_for(ended(idle[0]), 10) == b""
        fourth = await asyncio.open_connection(*place)
        fourth[1].write(GET + b"\r\n")
        late = asyncio.ensure_future(fourth[0].readline())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert not late.done(), "all three connections are busy"
        assert listener.count == 3
        work.set()
        for reader, _ in busy:
            assert b"200" in await reader.readline()
        assert b"200" in await waiting
        assert b"200" in await late

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await app.work.wait()  # type: ignore[attr-defined]
        await answer(send, b"ok")

    listening(app, 3, test)


def test_closed_connections_are_no_longer_counted() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"ok")

    async def test(place: tuple[str, int], listener: Listener) -> None:
        for number in range(20):
            reader, writer = await asyncio.open_connection(*place)
            writer.write((GET + b"\r\n", b"", b"nonsense\r\n\r\n", GET + b"X: a\r\n" * 200)[number % 4])
            if number % 4 != 1:
                assert b"HTTP/1.1" in await reader.readline()
            writer.close()
        while listener.count:
            await asyncio.sleep(0.01)

    listening(app, 20, test)


def test_stalled_readers_are_disconnected_and_slow_readers_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.5)
    size = 32 * MEGABYTE

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"x" * size)

    async def test(place: tuple[str, int], listener: Listener) -> None:
        _, idle = await asyncio.open_connection(*place, limit=1 << 16)
        idle.write(GET + b"\r\n")
        reader, writer = await asyncio.open_connection(*place, limit=1 << 16)
        writer.write(GET + b"Connection: close\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        read = 0
        for _ in range(5):
            await asyncio.sleep(0.2)
            read += len(await reader.readexactly(MEGABYTE))
        assert listener.count == 1, "the stalled connection is closed"
        while data := await reader.read(MEGABYTE):
            read += len(data)
        assert read == size

    listening(app, 5, test)


def test_a_stalled_reader_that_sends_another_request_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second request stops the timer for headers, but not the timer for reading the answer."""
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.1)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more in (True, False):
            await send({"type": "http.response.body", "body": b"x" * 16 * MEGABYTE, "more_body": more})

    async def test(place: tuple[str, int], listener: Listener) -> None:
        reader, writer = await asyncio.open_connection(*place, limit=1 << 16)
        writer.write(GET + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(GET)
        async with asyncio.timeout(5):
            while listener.count:
                await asyncio.sleep(0.01)

    listening(app, 5, test)


def test_readers_below_the_lowest_speed_are_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.5)
    monkeypatch.setattr(connections, "WRITE_BYTES", 20 * MEGABYTE)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"x" * 32 * MEGABYTE)

    async def read_slowly(reader: asyncio.StreamReader) -> None:
        for _ in range(16):
            await reader.readexactly(MEGABYTE)
            await asyncio.sleep(0.1)

    async def test(place: tuple[str, int], listener: Listener) -> None:
        reader, writer = await asyncio.open_connection(*place, limit=1 << 16)
        writer.write(GET + b"\r\n")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await read_slowly(reader)

    listening(app, 5, test)


def test_connections_follow_the_limit_on_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = len(list(Path("/dev/fd").iterdir()))
    for limit, asked, most in (
        (1 << 20, None, 512),
        (resource.RLIM_INFINITY, None, 512),
        (1 << 20, 7, 7),
        (1 << 20, 1000, 1000),
        (resource.RLIM_INFINITY, 9999, 9999),
        (opened + 32 + 100, None, 100),
        (opened + 32 + 100, 100, 100),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert connections.connection_limit(asked) == most
    with pytest.raises(UsageError, match=r"too low for 101 connections. Raise it: ulimit -n \d+"):
        connections.connection_limit(101)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (opened + 16, 1 << 20))
    with pytest.raises(UsageError, match=r"too low for 1 connection\."):
        connections.connection_limit(None)


def test_lack_of_file_descriptors_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connections, "RETRY_SECONDS", 0.05)

    async def test(place: tuple[str, int], listener: Listener) -> None:
        real = listener.server_socket
        fails = Mock(wraps=real, accept=Mock(side_effect=OSError(24, "Too many open files")))
        fails.fileno = real.fileno
        listener.server_socket = fails
        _, writer = await asyncio.open_connection(*place)
        await asyncio.sleep(0.2)
        assert 2 <= fails.accept.call_count <= 20
        listener.server_socket = real
        writer.write(GET + b"\r\n")
        while not listener.count:
            await asyncio.sleep(0.01)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"ok")

    listening(app, 5, test)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "nmt: warning: cannot accept connections: Too many open files. Raise ulimit -n, or lower --connections"
    ]


def test_concurrent_large_bodies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "MAX_BODY_MEMORY", 300_000)
    reading = fields.BodyMemory()

    async def body(*sizes: int, wait: asyncio.Event | None = None) -> Any:
        chunks = [{"type": "http.request", "body": b" " * size, "more_body": True} for size in sizes]

        async def receive() -> dict[str, Any]:
            if chunks:
                return chunks.pop(0)
            if wait:
                await wait.wait()
            return {"type": "http.request", "body": b"", "more_body": False}

        return await fields.read(
            Request({"type": "http", "headers": [], "query_string": b""}, receive), 10**6, 5, reading
        )

    async def run() -> None:
        event = asyncio.Event()
        first = asyncio.ensure_future(body(100_000, 100_000, wait=event))
        await asyncio.sleep(0.01)
        assert reading.bytes == 200_000
        for sizes in ((150_000,), (60_000, 150_000)):
            with pytest.raises(fields.Refusal, match="Too many large requests") as caught:
                await body(*sizes)
            assert caught.value.status == 503
            assert caught.value.headers == {"Retry-After": "1", "Connection": "close"}
        await body(30_000, 30_000)
        assert reading.bytes == 200_000
        event.set()
        await first
        assert reading.bytes == 0
        await body(150_000)
        task = asyncio.ensure_future(body(100_000, wait=asyncio.Event()))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        assert reading.bytes == 0

    asyncio.run(run())


def test_refused_bodies_are_no_longer_counted(model: Path) -> None:
    with service_of(model) as service, TestClient(create_app(service)) as client:
        for data in (b"{" * 100_000, b" " * 100_000, b"x" * 10_000_000):
            assert client.post("/translate", content=data, headers={"Content-Type": "application/json"}).is_client_error
            assert service.body_memory.bytes == 0
