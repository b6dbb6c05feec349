"""Single connections: which one is closed for another, what a refused client gets, and exact limits."""

import asyncio
import errno
import http
import json
import re
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

pytest.importorskip("starlette")
from test_serve_limits import GET, POST, answer, ended, listening

from nmt_cli.serving import connections
from nmt_cli.serving.connections import Listener
from nmt_cli.system.errors import UsageError

Place = tuple[str, int]
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def ok(scope: Any, receive: Any, send: Any) -> None:
    """Read the whole body, and answer."""
    while (await receive()).get("more_body"):
        pass
    await answer(send, b"here")


async def connected(place: Place, data: bytes = b"") -> Peer:
    reader, writer = await asyncio.open_connection(*place, limit=1 << 16)
    writer.write(data)
    await asyncio.sleep(0.05)
    return reader, writer


async def served(peer: Peer, data: bytes = GET + b"\r\n") -> None:
    peer[1].write(data)
    await asyncio.wait_for(peer[0].readuntil(b"here"), 10)


async def large(send: Any) -> None:
    """Send a response in two parts, of which the first fills all buffers."""
    parts = b"here" + b"x" * (3 << 22), b"x" * (1 << 22)
    headers = [(b"content-length", str(sum(map(len, parts))).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": part is parts[0]})


async def begins_late(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(0.15)
    await (answer(send, b"here") if scope["path"] == "/health" else large(send))


LARGE = GET.replace(b"/health", b"/large") + b"\r\n"


@pytest.mark.parametrize(
    ("app", "first"),
    [
        (ok, b"POST /health HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"),  # it waits since its request began
        (begins_late, GET + b"\r\n"),  # since its response ended
        (begins_late, LARGE),  # since it stopped reading
    ],
)
def test_the_waiting_time_begins_with_the_last_event(monkeypatch: pytest.MonkeyPatch, app: Any, first: bytes) -> None:
    """The first connection does something after the second is opened, so the second has waited longer and is closed."""
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.05)

    async def test(place: Place, listener: Listener) -> None:
        if app is ok:
            one, two = await connected(place), await connected(place)
            one[1].write(first)
        else:
            one, two = await connected(place, first), await connected(place)
        await asyncio.sleep(0.25)
        await served(await connected(place))
        assert await asyncio.wait_for(ended(two[0]), 10) == b""
        assert listener.count == 2

    listening(app, 2, test)


@pytest.mark.parametrize("first", [LARGE, POST + b"5\r\nab", GET, b""])
def test_a_connection_that_waits_for_its_client_gives_way(monkeypatch: pytest.MonkeyPatch, first: bytes) -> None:
    """Its client does not read, or sends half a body, half a head, or nothing, for at least GRACE_SECONDS."""
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.4)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await (answer(send, b"here") if scope["path"] == "/health" else large(send))

    async def test(place: Place, listener: Listener) -> None:
        begun = time.monotonic()
        one = await connected(place, first)
        await served(await connected(place))
        assert 0.4 <= time.monotonic() - begun < 10
        await asyncio.wait_for(ended(one[0]), 10)

    listening(app, 1, test)


def test_the_time_for_headers_begins_with_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.4)

    async def test(place: Place, listener: Listener) -> None:
        one = await connected(place)
        await asyncio.sleep(0.2)
        await served(one)
        await asyncio.sleep(0.3)
        await served(one)
        one[1].write(GET)
        assert await asyncio.wait_for(ended(one[0]), 10) == b"", "half a head"

    listening(ok, 5, test)


def test_headers_in_small_pieces_get_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.4)

    async def test(place: Place, listener: Listener) -> None:
        reader, writer = await connected(place, GET)
        end = asyncio.create_task(ended(reader))
        for _ in range(50):
            if end.done():
                break
            writer.write(b"a")
            await asyncio.sleep(0.1)
        assert end.done(), "still open after 5 seconds"

    listening(ok, 5, test)


def test_a_client_that_has_read_its_response_may_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.2)

    async def test(place: Place, listener: Listener) -> None:
        one = await connected(place, LARGE)
        await one[0].readuntil(b"here")
        await one[0].readexactly(1 << 24)
        await asyncio.sleep(0.5)
        await served(one)

    listening(begins_late, 5, test)


def lingering(monkeypatch: pytest.MonkeyPatch, app: Any, test: Callable[[Place, Listener], Any]) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", 60)
    listening(app, 5, test)


def test_a_refused_client_reads_the_end_and_may_send_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_BYTES", 1 << 18)

    async def test(place: Place, listener: Listener) -> None:
        one = await connected(place, b"nonsense\r\n\r\n")
        found = await asyncio.wait_for(one[0].read(), 10)
        assert found.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert listener.count == 1, "the rest of its data is ignored"
        one[1].write(b"x" * (1 << 17))
        await asyncio.sleep(0.1)
        assert listener.count == 1
        one[1].write(b"x" * (1 << 19))
        async with asyncio.timeout(10):
            while listener.count:
                await asyncio.sleep(0.01)

    lingering(monkeypatch, ok, test)


def test_a_refused_client_that_stays_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", 0.1)

    async def test(place: Place, listener: Listener) -> None:
        one = await connected(place, b"nonsense\r\n\r\n")
        assert listener.count == 1
        async with asyncio.timeout(10):
            while listener.count:
                await asyncio.sleep(0.01)
        assert b" 400 " in await one[0].readline()

    listening(ok, 5, test)


@pytest.mark.parametrize("more", [b"", b"Expect: 100-continue\r\n"])
def test_a_malformed_body_ends_its_request(monkeypatch: pytest.MonkeyPatch, more: bytes) -> None:
    """The application does not wait for the rest. The client gets one response and no "100 Continue"."""
    seen = list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (message := await receive()).get("more_body"):
            pass
        seen.append(message["type"])

    async def test(place: Place, listener: Listener) -> None:
        head = POST.replace(b"\r\n\r\n", b"\r\n" + more + b"\r\n")
        one = await connected(place, head + (b"zz\r\n" if more else b""))
        one[1].write(b"" if more else b"zz\r\n")
        found = await asyncio.wait_for(one[0].read(), 10)
        assert found.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert found.count(b"HTTP/1.1") == 1
        start, _, body = found.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in start
        assert json.loads(body) == {"error": "Invalid HTTP request received."}
        assert seen == ["http.disconnect"]

    lingering(monkeypatch, app, test)


@pytest.mark.parametrize(
    ("data", "begins"), [(GET + b"\r\nnonsense\r\n\r\n", False), (POST + b"1\r\nx\r\nzz\r\n", True)]
)
def test_no_error_is_written_into_an_earlier_response(data: bytes, begins: bool) -> None:
    """The connection closes without an error response if a request is being answered, or if a response has begun."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
        await asyncio.sleep(60)

    async def test(place: Place, listener: Listener) -> None:
        one = await connected(place, data[:-4] if begins else data)
        one[1].write(data[-4:] if begins else b"")
        found = await asyncio.wait_for(ended(one[0]), 10)
        assert found.count(b"HTTP/1.1") == begins
        assert b"400" not in found

    listening(app, 5, test)


@pytest.mark.parametrize(("headers", "status"), [(99, 200), (100, 200), (101, 431)])
def test_the_limit_on_the_number_of_headers_is_exact(headers: int, status: int) -> None:
    async def test(place: Place, listener: Listener) -> None:
        lines = b"".join(b"X%d: a\r\n" % number for number in range(headers - 2))
        found = await asyncio.wait_for(
            ended((await connected(place, GET + lines + b"Connection: close\r\n\r\n"))[0]), 10
        )
        assert found.startswith(f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n".encode())
        if status == 431:
            assert found.endswith(b'{"error": "A request may have at most 100 headers"}')

    listening(ok, 5, test)


def test_trailers_are_not_headers() -> None:
    """A request may have more trailers than MAX_HEADERS, and no trailer becomes a header."""
    seen = list[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await ok(scope, receive, send)
        seen.append([name for name, _ in scope["headers"]])

    async def test(place: Place, listener: Listener) -> None:
        trailers = b"".join(b"X%d: a\r\n" % number for number in range(101))
        await served(await connected(place), POST + b"1\r\nx\r\n0\r\n" + trailers + b"\r\n")
        assert seen == [[b"host", b"content-type", b"transfer-encoding"]]

    listening(app, 5, test)


def test_connections_in_the_backlog_are_served_when_a_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(place: Place, listener: Listener) -> None:
        with socket.create_connection(place) as one:
            one.sendall(GET + b"Connection: close\r\n\r\n")
            listener.close()
            monkeypatch.setattr(listener, "close", Mock())
            one.setblocking(False)
            found = b""
            while data := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(one, 1 << 16), 10):
                found += data
            assert found.endswith(b"here")

    listening(ok, 5, test)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_accepting_is_tried_again_if_the_system_lacks_resources(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """Clients that have left in the meantime are ignored. Any other error is a bug and is raised."""
    monkeypatch.setattr(connections, "RETRY_SECONDS", 0.01)

    async def test(place: Place, listener: Listener) -> None:
        real = listener.server_socket
        errors = [OSError(code, "lack"), ConnectionAbortedError(), InterruptedError(), OSError(errno.EBADF, "bug")]
        fails = Mock(wraps=real, accept=Mock(side_effect=errors))
        fails.fileno = real.fileno
        listener.server_socket = fails
        for _ in errors[:3]:
            listener._accept()
        with pytest.raises(OSError, match="bug"):
            listener._accept()
        listener.server_socket = real
        await served(await connected(place))

    listening(ok, 5, test)
    assert capsys.readouterr().err.count("cannot accept connections: lack. Raise ulimit -n") == 1


def test_the_error_names_the_limit_on_open_files_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = len(list(Path("/dev/fd").iterdir()))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 1 << 20))
    for wanted, needed in ((3000, 3000), (None, 512)):
        monkeypatch.setattr(connections, "SPARE_FILES", 100 if wanted is None else 32)
        with pytest.raises(UsageError) as caught:
            connections.connection_limit(wanted)
        found = re.search(r"64 open files is too low for ([\d,]+) connections?\..*ulimit -n (\d+)", str(caught.value))
        assert found
        assert (found[1], int(found[2])) == (f"{wanted or 1:,}", opened + connections.SPARE_FILES + needed)


def test_connections_are_limited_where_dev_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (connections.SPARE_FILES + 50, 0))
    monkeypatch.setattr(Path, "iterdir", Mock(side_effect=PermissionError))
    assert connections.connection_limit(None) == 50
