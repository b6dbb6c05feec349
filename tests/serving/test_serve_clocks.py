"""Clocks, exact limits, values that released versions share, and requests that end early."""

import asyncio
import contextlib
import hashlib
import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

pytest.importorskip("starlette")
from serving import DAY, PAIR, client_of, service_of
from starlette.requests import Request
from starlette.testclient import TestClient
from test_serve_limits import GET, ended, listening
from test_serve_steps import stored

from nmt_cli.serving import connections, deepl_documents, fields, key_store, on_demand, sqlite_connection, work
from nmt_cli.serving.app import create_app
from nmt_cli.serving.database import MIGRATIONS, Database
from nmt_cli.serving.deepl_documents import Job, Jobs
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.key_store import KeyStore
from nmt_cli.serving.on_demand import Loader
from nmt_cli.serving.service import Limits
from nmt_cli.serving.texts import TextFormat
from nmt_cli.serving.work import Workers
from nmt_cli.system.errors import DataError


@pytest.mark.parametrize("owner", ["work", "connections"])
def test_the_log_has_at_most_one_warning_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], owner: str
) -> None:
    now = 0.0
    module = {"work": work, "connections": connections}[owner]
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    warner: Any
    if owner == "work":
        warner = Workers()
    else:
        warner = connections.Listener.__new__(connections.Listener)
        warner._warned_at = -60.0
    for now in (1.0, 1.5, 60.9, 61.0, 120.9, 121.5):
        warner._warn(f"at {now}")
    found = [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert found == ["1.0", "61.0", "121.5"]


def test_a_model_that_failed_is_tried_again_after_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(on_demand.time, "monotonic", lambda: now)
    load = Mock(side_effect=[ValueError("no"), ValueError("no"), Mock()])
    model = Loader(load, idle=math.inf).add(stored())

    async def run() -> None:
        nonlocal now
        for moment, loads, fits in ((5, 1, False), (64.9, 1, False), (65, 2, False), (125.5, 3, True)):
            now = moment
            with contextlib.nullcontext() if fits else pytest.raises(Refusal, match="cannot be loaded"):
                async with model.held():
                    assert fits
            assert load.call_count == loads

    asyncio.run(run())
    assert capsys.readouterr().err.count("cannot be loaded: no") == 2


def test_small_bodies_are_always_read(model: Path) -> None:
    """They are read even while large bodies take all the memory for bodies."""
    body = json.dumps({"q": "rot", **PAIR})
    headers = {"Content-Type": "application/json"}
    with service_of(model) as service, TestClient(create_app(service)) as client:
        service.body_memory.bytes = fields.MAX_BODY_MEMORY
        for size, status in ((1 << 16, 200), ((1 << 16) + 1, 503)):
            assert client.post("/translate", content=body.ljust(size), headers=headers).status_code == status
        assert service.body_memory.bytes == fields.MAX_BODY_MEMORY


def test_the_limit_on_the_size_of_a_head_is_exact() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    async def test(place: tuple[str, int], listener: Any) -> None:
        reader, writer = await asyncio.open_connection(*place)
        writer.write((GET + b"X: ").ljust(1 << 16, b"x"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.3)
        writer.write(b"x")
        assert (await asyncio.wait_for(ended(reader), 10)).startswith(b"HTTP/1.1 431 ")

    listening(app, 5, test)


def test_databases_of_a_released_version_stay_valid(tmp_path: Path) -> None:
    """Other values would make the server refuse its database, or let two versions write it at once."""
    with contextlib.closing(Database(tmp_path / "a.db")) as database:
        assert database.read("PRAGMA user_version") == [(len(MIGRATIONS),)]
    assert (tmp_path / "a.db").read_bytes()[68:72] == b"nmt1"
    released = ["fdb32decb79937f9"]  # append the digest of each new migration, and change no digest
    assert [hashlib.sha256("".join(each.split()).encode()).hexdigest()[:16] for each in MIGRATIONS] == released
    postgres = pytest.importorskip("nmt_cli.serving.postgres_connection", exc_type=Exception)
    assert postgres.LOCKS.to_bytes(4, "big") == b"nmt1"
    assert (sqlite_connection.BUSY_SECONDS, postgres.BUSY_SECONDS, postgres.NETWORK_SECONDS) == (5, 5, 10)


def test_no_more_documents_are_removed_than_necessary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits on size, number and age are exact."""
    now, pair = 10_000.0, ("en", "de")
    monkeypatch.setattr(deepl_documents.time, "monotonic", lambda: now)
    monkeypatch.setattr(deepl_documents, "MAX_BYTES", 10)
    monkeypatch.setattr(deepl_documents, "MAX_KEPT", 4)

    def left(size: int, *ages: float) -> list[float]:
        jobs = Jobs()
        kept = [Job("text", ".txt", pair, b"xyz", status="done", ended=now - age) for age in ages]
        jobs._jobs = {each.id: each for each in kept}
        jobs._remove_old(Job("text", ".txt", pair, bytes(size)))
        return [now - each.ended for each in jobs._jobs.values()]

    assert left(4, 9, 1800) == [9, 1800]
    assert left(5, 9, 1800) == [9]
    assert left(0, 9, 1800.5) == [9]
    assert left(1, 3, 2, 1) == [3, 2, 1]
    assert left(7, 3, 2, 1) == [1]
    monkeypatch.setattr(deepl_documents, "MAX_BYTES", 100)
    assert left(1, 4, 3, 2) == [4, 3, 2]
    assert left(1, 4, 1, 3, 2) == [1, 3, 2]


@pytest.mark.parametrize("kind", ["multipart/form-data", "application/x-www-form-urlencoded", "application/json", ""])
def test_without_a_body_the_query_has_the_fields(client: TestClient, kind: str) -> None:
    """The type of the body does not matter."""
    headers = {"Content-Type": kind} if kind else {}
    answer = client.post("/translate", params={"q": "", **PAIR}, headers=headers)
    assert (answer.status_code, answer.json()) == (200, {"translatedText": ""})


def test_a_connection_that_is_being_opened_waits_for_no_client() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError

    async def test(_place: Any, listener: Any) -> None:
        assert not listener._make_protocol().waits_for_client

    listening(app, 5, test)


def test_texts_and_entries_may_be_longer_than_other_fields(model: Path) -> None:
    long = "x" * 10_001
    pair = {"source_lang": "DE", "target_lang": "DE"}
    with service_of(model, limits=Limits()) as service, TestClient(create_app(service)) as client:
        for texts in ([long], [long[:6000]] * 2):
            for body in ({"json": {"text": texts, **pair}}, {"data": {"text": texts, **pair}}):
                found = client.post("/v2/translate", **body).json()["translations"]
                assert [each["text"] for each in found] == texts
        assert client.post("/translate", json={"q": long, "source": "de", "target": "de"}).json() == {
            "translatedText": long
        }
        new = {"name": "a", "source_lang": "EN", "target_lang": "DE", "entries_format": "tsv", "entries": f"a\t{long}"}
        assert client.post("/v2/glossaries", json=new).status_code == 201
        assert client.post("/v3/glossaries", json={"name": "a", "dictionaries": [new]}).status_code == 201
        answer = client.post("/v2/translate", json={"text": "x", **pair, "model_type": long})
        assert answer.json() == {"message": "Invalid request: model_type has more than 10,000 characters"}


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (b'{"result": [["a"]]}\n', True),
        (b'{"refusal": "no"}\n', True),
        (b"", False),
        (ConnectionResetError(), False),
        (asyncio.CancelledError(), False),
        (KeyError(), False),
    ],
)
def test_a_process_is_reused_unless_its_call_ended_early(answer: Any, kept: bool) -> None:
    """Otherwise, its answer could be returned for the next call."""

    async def run() -> None:
        workers, process = Workers(), Mock(returncode=None, wait=AsyncMock())
        process.stdin.drain = AsyncMock()
        process.stdout.readline = AsyncMock(side_effect=[answer])
        workers._idle = [(asyncio.get_running_loop(), process)]
        kinds = {bytes: DataError if kept else Refusal, ConnectionResetError: Refusal}
        if kept and b"result" in answer:
            assert await workers.in_process(TextFormat(), ["a"]) == [["a"]]
        else:
            with pytest.raises(kinds.get(type(answer), type(answer))) as caught:
                await workers.in_process(TextFormat(), ["a"])
            assert getattr(caught.value, "status", 503) == 503
        assert ([each for _, each in workers._idle], process.kill.call_count) == ([process] * kept, 1 - kept)
        await workers.close()
        process.kill.assert_called_once_with()

    asyncio.run(run())


def test_a_document_has_a_copy_of_the_state_of_its_request() -> None:
    """The texts of the document count for the request's key, but not in the request's log line."""
    request = Request({"type": "http", "headers": [], "state": {"key": "a"}})
    copy = deepl_documents._detached(request)
    copy.state.texts = 3
    assert copy.state.key == "a"
    assert not hasattr(request.state, "texts")


def test_a_client_learns_when_a_limit_of_its_key_ends(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_store.time, "time", lambda: DAY + 5 * 3600 + 62.5)
    database = Database(tmp_path / "a.db")
    keys = KeyStore(database)
    headers = {"Authorization": f"Bearer {keys.add('a', per_minute=1, per_day=3)}"}
    texts = {"text": ["rot"], "source_lang": "DE", "target_lang": "DE", "q": "rot", "source": "de", "target": "de"}
    with client_of(model, database=database) as client:
        for path, status, seconds in (("/translate", 200, None), ("/translate", 429, 58), ("/v2/translate", 429, 58)):
            answer = client.post(path, json=texts, headers=headers)
            assert (answer.status_code, answer.headers.get("Retry-After")) == (status, seconds and str(seconds))
        keys.limit("a", None, None)
        keys.limit("a", None, 3)
        for path, status in (("/translate", 429), ("/v2/translate", 456)):
            answer = client.post(path, json=texts, headers=headers)
            assert (answer.status_code, answer.headers["Retry-After"]) == (status, "68338")
