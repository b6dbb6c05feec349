"""However a request ends, no text and no segment of it stays counted."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
from gate import Gate
from serving import PAIR, TEXTS, service_of
from starlette.testclient import TestClient

from nmt_cli import Translator
from nmt_cli.serving.app import create_app
from nmt_cli.serving.service import Limits, Service
from nmt_cli.system.errors import DivergedError

GERMAN = {"target_lang": "DE", "source_lang": "EN"}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate(monkeypatch)
    gate.opened.set()
    return gate


@contextlib.contextmanager
def asked(model: Path, **options: Any) -> Iterator[tuple[Service, TestClient]]:
    with service_of(model, **{"limits": Limits(5000, 50), **options}) as service:
        with TestClient(create_app(service), raise_server_exceptions=False) as client:
            yield service, client


@contextlib.contextmanager
def closed(gate: Gate) -> Iterator[None]:
    """Block the search until the gate is opened. Open it at the end, because closing a Translator waits for it."""
    gate.opened.clear()
    gate.entered.clear()
    try:
        yield
    finally:
        gate.opened.set()


def counts(service: Service) -> tuple[int, tuple[int, int], set[str]]:
    """Return the number of pending texts, of waiting and searched segments, and the segments' lines in /metrics."""
    gauges = ("nmt_segments_waiting ", "nmt_slots_in_use ")
    page = service.metrics.page().decode().split("\n")
    return service.pool.texts, service.pool.translators[0].load, {line for line in page if line.startswith(gauges)}


def check_nothing_is_left(service: Service) -> None:
    """Texts leave with the response; threads drop the segments of a cancelled text soon after."""
    assert service.pool.texts == 0
    end = time.monotonic() + 10
    while service.pool.translators[0].load != (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    assert counts(service) == (0, (0, 0), {"nmt_segments_waiting 0.0", "nmt_slots_in_use 0.0"})


ENDINGS: list[tuple[str, dict[str, Any], int]] = [
    ("/translate", {"json": {"q": TEXTS, **PAIR}}, 200),
    ("/translate", {"json": {"q": TEXTS, **PAIR, "format": "html", "alternatives": 2}}, 200),
    ("/translate", {"json": {"q": "", **PAIR}}, 200),
    ("/translate", {"json": {"q": ["", " \n", "rot"], **PAIR}}, 200),
    ("/translate", {"json": {"q": "der Hund geht. " * 300, **PAIR}}, 200),
    ("/translate", {"json": {"q": "rot", "source": "en", "target": "xx"}}, 400),
    ("/translate", {"json": {"q": "x" * 5001, **PAIR}}, 400),
    ("/translate", {"json": {"q": ["rot"] * 51, **PAIR}}, 400),
    ("/translate", {"content": b"x" * 1_000_000}, 413),
    ("/v2/translate", {"json": {"text": TEXTS, **GERMAN}}, 200),
    ("/v2/translate", {"json": {"text": TEXTS, **GERMAN, "glossary_id": "absent"}}, 404),
    ("/sentences", {"json": {"q": TEXTS[2], **PAIR}}, 200),
    ("/translate_file", {"data": PAIR, "files": {"file": ("a.txt", "rot\n\nund")}}, 200),
    ("/translate_file", {"data": PAIR, "files": {"file": ("a.md", "[" * 5000)}}, 400),
]


@pytest.mark.parametrize(("path", "body", "status"), ENDINGS)
def test_counts_after_each_response(model: Path, path: str, body: dict[str, Any], status: int) -> None:
    with asked(model) as (service, client):
        answer = client.post(path, **body)
        assert answer.status_code == status, answer.text
        check_nothing_is_left(service)


@pytest.mark.parametrize("error", [DivergedError("not finite"), MemoryError(), OSError(28, "full"), KeyError("bug")])
def test_counts_after_a_failed_search(model: Path, gate: Gate, error: Exception) -> None:
    with asked(model) as (service, client):
        gate.error = error
        assert client.post("/translate", json={"q": TEXTS, **PAIR}).status_code == 500
        check_nothing_is_left(service)


@pytest.mark.parametrize("failing", ["submit", "write"])
def test_counts_after_a_bug_before_or_after_the_search(
    model: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed submission cancels the texts that were submitted before it."""
    real = Translator.submit

    def submit(self: Translator, text: str, *arguments: Any, **options: Any) -> Any:
        if text == TEXTS[2]:
            raise KeyError("bug")
        return real(self, text, *arguments, **options)

    with asked(model) as (service, client):
        if failing == "submit":
            monkeypatch.setattr(Translator, "submit", submit)
        else:
            monkeypatch.setattr("nmt_cli.serving.service.assemble", None)
        assert client.post("/translate", json={"q": TEXTS, **PAIR}).status_code == 500
        check_nothing_is_left(service)


class Hung:
    """A request that waits for the search, or for a disconnect."""

    def __init__(self, service: Service, texts: list[str]) -> None:
        self._messages, self.sent = asyncio.Queue[dict[str, Any]](), list[Any]()
        body = json.dumps({"q": texts, **PAIR}).encode()
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/translate", "headers": headers, "query_string": b""}
        self._asked = asyncio.ensure_future(create_app(service)(scope, self._messages.get, self._send))

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    async def status(self, leave: bool = False) -> int:
        """Return the status of the response; with `leave`, after the client disconnects."""
        if leave:
            self._messages.put_nowait({"type": "http.disconnect"})
        await asyncio.wait_for(self._asked, 30)
        return int(self.sent[0]["status"])


def test_counts_after_a_disconnect_and_a_refusal(model: Path, gate: Gate) -> None:
    """Each request removes only its own texts from the count."""

    async def ask(service: Service) -> None:
        first, second = Hung(service, TEXTS), Hung(service, ["rot", "und"])
        while not (gate.entered and service.pool.texts == 5):
            await asyncio.sleep(0.01)
        assert await Hung(service, ["rot"]).status() == 429
        assert service.pool.texts == 5
        assert await first.status(leave=True) == 499
        assert service.pool.texts == 2
        gate.opened.set()
        assert await second.status() == 200

    with service_of(model, queue=5) as service, closed(gate):
        asyncio.run(ask(service))
        check_nothing_is_left(service)


def test_counts_after_a_disconnect_before_the_search_fails(model: Path, gate: Gate) -> None:
    async def ask(service: Service) -> None:
        left = Hung(service, TEXTS)
        while not gate.entered:
            await asyncio.sleep(0.01)
        assert await left.status(leave=True) == 499

    with service_of(model) as service, closed(gate):
        asyncio.run(ask(service))
        gate.error = DivergedError("not finite")
        gate.opened.set()
        check_nothing_is_left(service)


def test_counts_after_a_timeout(model: Path, gate: Gate) -> None:
    with asked(model, limits=Limits(seconds=0.2)) as (service, client), closed(gate):
        assert client.post("/translate", json={"q": TEXTS, **PAIR}).status_code == 504
        assert service.pool.texts == 0
        gate.opened.set()
        check_nothing_is_left(service)
