"""Errors: bad input, too much input, disconnects, failing models."""

import asyncio
import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette")
import uvicorn
from gate import Gate
from serving import PAIR, TEXTS, client_of, resident, service_of
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.testclient import TestClient
from uvicorn.server import ServerState

from nmt_cli.serving import connections, fields
from nmt_cli.serving.app import ROUTES, create_app
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.origins import Access
from nmt_cli.serving.pool import Completion, while_connected
from nmt_cli.serving.service import Limits, Service
from nmt_cli.system.errors import DivergedError, UsageError
from nmt_cli.translation.engine_backend import EngineSearch

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
LONG = "der Hund geht. " * 200


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def refused(answer: Any, status: int, words: str, name: str = "error") -> None:
    assert (answer.status_code, list(answer.json())) == (status, [name]), answer.text
    assert words in answer.json()[name]
    assert "\n" not in answer.json()[name]


BAD: list[tuple[Any, str]] = [
    ({}, "missing q parameter"),
    ({"q": None, **PAIR}, "missing q parameter"),
    ({"q": "rot", "target": "de"}, "missing source parameter"),
    ({"q": "rot", "source": "en"}, "missing target parameter"),
    ({"q": 5, **PAIR}, "q must be text"),
    ({"q": {"a": 1}, **PAIR}, "q must be text"),
    ({"q": ["rot", None], **PAIR}, "q must be text"),
    ({"q": [["rot"]], **PAIR}, "q must be text"),
    ({"q": "rot", "source": "zz", "target": "de"}, "zz is not supported"),
    ({"q": "rot", "source": "en", "target": "xx"}, "xx is not supported"),
    ({"q": "rot", "source": "de", "target": "en"}, "en is not available as a target language from de"),
    ({"q": "rot", "source": ["en"], "target": "de"}, "source must be text"),
    ({"q": "rot", "source": "", "target": "de"}, " is not supported"),
    ({"q": "rot", **PAIR, "format": "pdf"}, "format must be text or html"),
    ({"q": "rot", **PAIR, "format": 3}, "format must be text"),
    *[
        ({"q": "rot", **PAIR, "alternatives": wrong}, "alternatives must be a whole number from 0 to 10")
        for wrong in (10_000, "x", -1, 1.5, True, [1], "1e3", "٣", 10**30, float("inf"))
    ],
    ({"q": "rot\0und", **PAIR}, "NUL"),
    ({"q": "x" * 5001, **PAIR}, "request (5,001) exceeds text limit (5,000)"),
    ({"q": ["x" * 200] * 26, **PAIR}, "request (5,200) exceeds text limit (5,000)"),
    ({"q": ["rot"] * 51, **PAIR}, "51 texts exceed the limit of 50"),
    ([], "must be a JSON object"),
    ("rot", "must be a JSON object"),
    (None, "must be a JSON object"),
]


@pytest.mark.parametrize(("body", "words"), BAD, ids=[words[:30] for _, words in BAD])
def test_a_bad_request_gets_a_specific_error(client: TestClient, body: Any, words: str) -> None:
    refused(client.post("/translate", content=json.dumps(body), headers=JSON), 400, words)


RAW: list[tuple[bytes, dict[str, str], str]] = [
    (b"{", JSON, "not JSON"),
    (b"", JSON, "missing q parameter"),
    (b"\xff\xfe", JSON, "not JSON"),
    (b'{"q": "\xff"}', JSON, "not JSON"),
    (b"[" * 20_000, JSON, "not JSON"),
    (b"[" * 100_000, JSON, "more than 20,000 values"),
    (b'{"q": ' + b"9" * 10_000 + b"}", JSON, "not JSON"),
    (b'{"q": "\\ud83d", "source": "en", "target": "de"}', JSON, "half of a surrogate pair"),
    (b'{"q": "rot", "source": "\\udc00", "target": "de"}', JSON, "half of a surrogate pair"),
    (b"source=en&target=de&q=%00", FORM, "NUL"),
    (b"q", FORM, "missing source"),
    (b"&".join([b"q=a"] * 200), FORM, "Too many fields"),
    (b"x", {"Content-Type": "multipart/form-data"}, "Missing boundary"),
    (b"--a\r\nnonsense", {"Content-Type": "multipart/form-data; boundary=a"}, "Invalid request"),
    (b"q=rot", {"Content-Type": "text/plain"}, "missing q"),
    (b"--a--", {"Content-Type": "multipart/form-data; boundary=a; charset=punycode"}, "send the form in UTF-8"),
    (b"--a--", {"Content-Type": 'multipart/form-data; boundary=a; CHARSET="idna"'}, "in UTF-8"),
    (b"--a--", {"Content-Type": "multipart/form-data; boundary=a; charset=UTF-8"}, "missing"),
]


@pytest.mark.parametrize(("body", "headers", "words"), RAW, ids=[words for *_, words in RAW])
def test_a_malformed_body_is_refused(client: TestClient, body: bytes, headers: dict[str, str], words: str) -> None:
    refused(client.post("/translate", content=body, headers=headers), 400, words)


def test_limits_on_texts_and_characters_are_exact(model: Path) -> None:
    with client_of(model, limits=Limits(characters=6, texts=2)) as client:
        for texts, status in ((["rot", "rot"], 200), (["rot", "rote"], 400), (["rot", "ro", "r"], 400)):
            assert client.post("/translate", json={"q": texts, **PAIR}).status_code == status
            assert client.post("/v2/translate", json={"text": texts, "target_lang": "DE"}).status_code == status
            assert client.post("/detect", json={"q": texts}).status_code == status
        for text, status in (("rotrot", 200), ("rotrote", 400)):
            assert client.post("/sentences", json={"q": text, **PAIR}).status_code == status
            file = {"file": ("a.txt", text)}
            assert client.post("/translate_file", data=PAIR, files=file).status_code == status
        page = client.get("/metrics").text.split("\n")
        assert {"nmt_texts_total 8.0", "nmt_characters_total 30.0"} <= {*page}, "refused requests do not count"
        assert client.get("/v2/usage").json()["character_count"] == 30


def test_the_limit_on_bodies_is_exact(model: Path) -> None:
    """It is 12 bytes per character (JSON may escape it as a surrogate pair), 64 bytes per text, and 65,536 bytes."""
    body = json.dumps({"q": "rot", **PAIR})
    with client_of(model, limits=Limits(characters=6, texts=2)) as client:
        for size, status in ((65_736, 200), (65_737, 413)):
            answer = client.post("/translate", content=body.ljust(size), headers=JSON)
            assert answer.status_code == status
    assert answer.json() == {"error": "Invalid request: its 65,737 bytes exceed the limit of 65,736"}
    fields = [("q", (None, "a"))] * 2 + [(name, (None, code)) for name, code in PAIR.items()]
    with client_of(model, limits=Limits(characters=6, texts=2)) as client:
        more = [(f"n{number}", (None, "x")) for number in range(48)]
        assert client.post("/translate", files=[*fields, *more]).status_code == 200
        refused(client.post("/translate", files=[*fields, *more, ("n", (None, "x"))]), 400, "Too many fields")
        two = [("file", ("a.txt", "a"))] * 2
        refused(client.post("/translate_file", files=[*two, *fields[2:]]), 400, "Too many files")


def test_a_body_over_the_limit_is_read_to_its_end() -> None:
    chunks = [{"type": "http.request", "body": b"x" * 6, "more_body": more} for more in (True, True, False)]

    async def receive() -> dict[str, Any]:
        return chunks.pop(0)

    request = Request({"type": "http", "headers": [], "query_string": b""}, receive)
    with pytest.raises(Refusal, match="its 18 bytes exceed the limit of 10"):
        asyncio.run(fields.read(request, 10, 5, fields.BodyMemory()))
    assert not chunks


def test_ten_megabytes_and_a_hundred_thousand_texts_are_refused(client: TestClient) -> None:
    refused(client.post("/translate", json={"q": "x" * 10_000_000, **PAIR}), 413, "exceed the limit")
    refused(client.post("/translate", json={"q": ["a"] * 100_000, **PAIR}), 413, "exceed the limit")
    refused(client.post("/translate", json={"q": ["a"] * 5000, **PAIR}), 400, "5,000 texts exceed")
    refused(client.post("/translate", data={"q": ["a"] * 100_000, **PAIR}), 413, "exceed the limit")
    assert client.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/translate", 405),
        ("PUT", "/translate", 405),
        ("POST", "/languages", 405),
        ("GET", "/suggest", 405),
        ("POST", "/Translate", 404),
        ("GET", "/page/../app.py", 404),
        ("GET", "/page/%2e%2e/app.py", 404),
        ("GET", "/download_file/x", 404),
        ("DELETE", "/", 405),
        ("GET", "/sentences", 405),
        ("GET", "/translate_file", 405),
        ("GET", "/detect", 405),
    ],
)
def test_wrong_methods_and_paths_are_refused(client: TestClient, method: str, path: str, status: int) -> None:
    if (method, path) == ("DELETE", "/") and client.get("/").status_code == 404:
        status = 404
    answer = client.request(method, path)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert ("Allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.pdf", b"%PDF", "file format not supported. Send one of .arb, .ass, .docm, .docx, "),
        ("a", b"der Hund", "file format not supported"),
        ("a.txt", b"\xff\xfe\x00", "not text in UTF-8"),
        ("a.txt", b"\x00", "NUL"),
        ("a.po", b"nonsense", "not a message catalog"),
        ("a.txt", b"x" * 5001, "exceeds text limit"),
    ],
)
def test_files_that_cannot_be_translated_are_refused(client: TestClient, name: str, data: bytes, words: str) -> None:
    refused(client.post("/translate_file", data=PAIR, files={"file": (name, data)}), 400, words)
    refused(client.post("/translate_file", data={**PAIR, "file": "rot"}), 400, "missing file")


def test_pathological_markdown_is_refused(model: Path) -> None:
    with client_of(model, limits=Limits()) as client:
        for unit in ("[", "![", "[a][", "[*", "<[", "[<b>", "[a\n"):
            text = (unit * 100_000)[:100_000]
            answer = client.post("/translate_file", data=PAIR, files={"file": ("a.md", text)})
            refused(answer, 400, "too many brackets")


def test_html_that_repeats_one_tag_is_returned_unchanged(model: Path) -> None:
    with client_of(model, limits=Limits()) as client:
        for unit in ("<b>", "<b", "</b>", "<!--", "<code>", "&", "<b translate=no>", "%", "{", "<p>"):
            text = (unit * 20_000)[:20_000]
            answer = client.post("/translate", json={"q": text, **PAIR, "format": "html"})
            assert (answer.status_code, answer.json()["translatedText"]) == (200, text)


def test_incomplete_requests_time_out(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers and bodies have time limits; responses may take longer."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    real = Service.translate

    async def translate(self: Service, *arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(0.3)
        return await real(self, *arguments, **options)

    monkeypatch.setattr(Service, "translate", translate)
    body = json.dumps({"q": "rot", **PAIR})
    head = f"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"

    async def ask(config: uvicorn.Config) -> None:
        state = ServerState()
        made = await asyncio.get_running_loop().create_server(
            lambda: connections.Protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        place = made.sockets[0].getsockname()

        async def exchange(*parts: str) -> str:
            reader, writer = await asyncio.open_connection(*place)
            for part in parts:
                writer.write(part.encode())
            answer = await asyncio.wait_for(reader.read(), 60)
            writer.close()
            return answer.decode()

        assert await exchange() == ""
        assert await exchange(head) == ""
        assert "408" in (cut := await exchange(head, "\r\n", body[:5])).split("\n")[0]
        assert "took longer than 0.2 seconds" in cut
        assert "\r\nconnection: close\r\n" in cut.lower()
        whole = await exchange(head, "Connection: close\r\n\r\n", body)
        assert "translatedText" in whole
        twice = await exchange(head, "\r\n", body, head)  # the second request is incomplete
        assert twice.count("translatedText") == 1
        made.close()

    with service_of(model, limits=Limits(body_seconds=0.2)) as service:
        config = uvicorn.Config(create_app(service), log_config=None, lifespan="off", timeout_keep_alive=1)
        config.load()
        asyncio.run(ask(config))


def test_keys_are_checked_on_every_translation_route(model: Path) -> None:
    with client_of(model, keys=[b"one", "zw\u00f6lf".encode()]) as client:
        body: dict[str, Any] = {"q": "rot", **PAIR}
        file = {"file": ("a.txt", "rot")}
        refused(client.post("/translate_file", data=PAIR, files=file), 400, "API key is needed")
        for name in ("api_key", "apiKey"):
            refused(client.post("/translate_file", data={**PAIR, name: "on"}, files=file), 403, "Invalid API key")
            assert client.post("/translate_file", data={**PAIR, name: "one"}, files=file).status_code == 200
        for path in ("/translate", "/detect", "/sentences"):
            refused(client.post(path, json=body), 400, "API key is needed")
            refused(client.post(path, json={**body, "api_key": "two"}), 403, "Invalid API key")
            assert client.post(path, json={**body, "api_key": "zw\u00f6lf"}).status_code == 200
        assert client.post("/translate", json={**body, "apiKey": "one"}).status_code == 200
        assert client.post("/translate", data={**body, "api_key": "one"}).status_code == 200
        assert client.post("/translate", params={**body, "api_key": "one"}).status_code == 200
        for header in ("Bearer one", "bearer  one ", "DEEPL-AUTH-KEY one"):
            assert client.post("/translate", json=body, headers={"Authorization": header}).status_code == 200, header
        other = {"Authorization": "Basic one"}  # perhaps from a proxy; the key is in the field
        message = "An API key is needed, as api_key or in the Authorization header"
        assert client.post("/translate", json=body, headers=other).json() == {"error": message}
        assert client.post("/translate", json={**body, "api_key": "one"}, headers=other).status_code == 200
        message = "An API key is needed, in the Authorization header"
        assert client.get("/metrics", params={"api_key": "one"}).json() == {"error": message}
        assert client.post("/translate", json={**body, "api_key": ["one"]}).status_code == 400
        refused(client.post("/v2/translate", json={"text": ["rot"], "target_lang": "DE"}), 403, "needed", "message")
        refused(client.get("/metrics"), 400, "needed")
        assert client.get("/metrics", headers={"Authorization": "Bearer one"}).status_code == 200
        assert client.get("/languages").status_code == client.get("/health").status_code == 200
        assert client.get("/frontend/settings").json()["keyRequired"] is True


def test_only_these_routes_need_no_key(model: Path) -> None:
    """The page needs them before it has a key. The URL of a file is itself secret."""
    free = {"/languages", "/health", "/frontend/settings", "/spec", "/download_file/{key}", "/"}
    with client_of(model, keys=[b"one"]) as client:
        for route in ROUTES:
            for method in route.methods if isinstance(route, Route) else ():
                if method != "HEAD":
                    answer = client.request(method, route.path.replace("{key}", "x"))
                    assert ("An API key is needed" in answer.text) == (route.path not in free), (method, route.path)


def test_cors_headers_follow_the_allowed_origins(model: Path) -> None:
    asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    for method in ("POST", "DELETE"):
        more = {
            "Access-Control-Request-Method": method,
            "Access-Control-Request-Headers": "Authorization, Content-Type",
        }
        with client_of(model, access=Access(origins=("*",))) as client:
            answer = client.options("/translate", headers={**asked, **more})
        assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (200, "*")
    with client_of(model, access=Access(origins=("https://example.com",))) as own:
        assert "Access-Control-Allow-Origin" not in own.options("/translate", headers=asked).headers
        allowed = own.get("/health", headers={"Origin": "https://example.com"}).headers["Access-Control-Allow-Origin"]
        assert allowed == "https://example.com"
    with client_of(model) as none:
        assert "Access-Control-Allow-Origin" not in none.get("/languages", headers=asked).headers
        assert none.options("/translate", headers=asked).status_code == 405


class Caller(threading.Thread):
    """A thread that requests a translation and keeps the response."""

    def __init__(self, client: TestClient, **body: Any) -> None:
        super().__init__()
        self.client, self.body, self.answer = client, {**PAIR, **body}, None
        self.start()

    def run(self) -> None:
        self.answer = self.client.post("/translate", json=self.body)


def wait_for(condition: Any) -> None:
    for _ in range(6000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise TimeoutError


def test_a_full_queue_is_answered_with_retry_after(model: Path, gate: Gate) -> None:
    gate.opened.set()
    with service_of(model, queue=3) as service, TestClient(create_app(service)) as client:
        gate.opened.clear()
        first = Caller(client, q=["rot"] * 5)  # one request alone may exceed the queue
        wait_for(lambda: service.pool.texts == 5)
        answer = client.post("/translate", json={"q": "und", **PAIR})
        refused(answer, 429, "try again later")
        assert answer.headers["Retry-After"] == "1"
        gate.opened.set()
        first.join(60)
        assert first.answer.status_code == 200
        gate.opened.clear()
        some = [Caller(client, q=text) for text in TEXTS]
        wait_for(lambda: service.pool.texts == 3)
        refused(client.post("/translate", json={"q": "und", **PAIR}), 429, "try again later")
        gate.opened.set()
        for each in some:
            each.join(60)
            assert each.answer.status_code == 200
        assert service.pool.texts == 0


def test_a_translation_is_cancelled_at_its_timeout(model: Path, gate: Gate) -> None:
    gate.opened.set()
    with service_of(model, limits=Limits(seconds=0.2)) as service, TestClient(create_app(service)) as client:
        gate.opened.clear()
        refused(client.post("/translate", json={"q": LONG * 5, **PAIR}), 504, "longer than 0.2 seconds")
        assert service.pool.texts == 0
        gate.opened.set()
        translator = service.pool.translators[0]
        wait_for(lambda: translator.load == (0, 0))
        assert len(gate.entered) < 500, "of 1,000 sentences: cancelled ones are not searched"


def test_a_disconnect_frees_its_slots(model: Path, gate: Gate) -> None:
    gate.opened.set()
    with service_of(model, limits=Limits()) as service:
        translator, app = service.pool.translators[0], create_app(service)
        gate.opened.clear()
        body, sent = json.dumps({"q": LONG * 5, **PAIR}).encode(), list[Any]()

        async def ask() -> None:
            messages = asyncio.Queue[dict[str, Any]]()
            await messages.put({"type": "http.request", "body": body, "more_body": False})
            scope = {
                "type": "http",
                "method": "POST",
                "path": "/translate",
                "headers": [(b"content-type", b"application/json")],
                "query_string": b"",
            }

            async def send(message: Any) -> None:
                sent.append(message)

            asked = asyncio.ensure_future(app(scope, messages.get, send))
            while not gate.entered or not service.pool.texts:
                await asyncio.sleep(0.01)
            await messages.put({"type": "http.disconnect"})
            await asyncio.wait_for(asked, 30)

        before = len(gate.entered)
        asyncio.run(ask())
        assert [each.get("status") for each in sent[:1]] == [499]
        assert service.pool.texts == 0
        gate.opened.set()
        wait_for(lambda: translator.load == (0, 0))
        assert len(gate.entered) - before < 500, "of 1,000 sentences"


def test_the_server_survives_errors_during_the_search(model: Path, gate: Gate) -> None:
    gate.opened.set()
    with service_of(model) as service:
        with TestClient(create_app(service)) as client:
            gate.error = DivergedError("the model's scores are not finite")
            answer = client.post("/translate", json={"q": TEXTS, **PAIR})
            refused(answer, 500, "scores are not finite")
            gate.error = MemoryError()
            refused(client.post("/translate", json={"q": TEXTS, **PAIR}), 500, "memory")
            gate.error = OSError(28, "No space left on device")
            refused(client.post("/translate", json={"q": TEXTS, **PAIR}), 500, "No space left on device")
            gate.error = None
            assert client.post("/translate", json={"q": TEXTS, **PAIR}).status_code == 200


def test_errors_repeat_at_most_forty_characters_of_a_code(client: TestClient) -> None:
    for source, target, message in (
        ("x" * 99, "de", f"{'x' * 40} is not supported"),
        ("en", "y" * 99, f"{'y' * 40} is not supported"),
        (f"de-{'x' * 99}", "en", f"en is not available as a target language from de-{'x' * 37}"),
        ("de", f"en-{'x' * 99}", f"en-{'x' * 37} is not available as a target language from de"),
    ):
        answer = client.post("/translate", json={"q": "rot", "source": source, "target": target})
        assert (answer.status_code, answer.json()) == (400, {"error": message})


def test_a_request_without_texts_completes_at_once() -> None:
    async def done(left: int) -> bool:
        return Completion(left).future.done()

    assert [asyncio.run(done(left)) for left in (0, 1)] == [True, False]


def test_a_text_may_finish_after_its_request_is_cancelled() -> None:
    async def give_up() -> list[Any]:
        errors = list[Any]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        completion = Completion(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await completion.future
        completion.count_down(Mock())
        await asyncio.sleep(0.01)
        return errors

    assert asyncio.run(give_up()) == []


def test_a_disconnect_after_the_translation_is_no_error() -> None:
    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def ask(seconds: float) -> str:
        return await while_connected(Mock(receive=gone), asyncio.sleep(seconds, "done"))

    async def now() -> str:
        return "done"

    async def finish() -> str:
        return await while_connected(Mock(receive=gone), now())

    assert asyncio.run(finish()) == "done"
    with pytest.raises(ClientDisconnect):
        asyncio.run(ask(60))


def test_lack_of_memory_makes_smaller_batches(
    model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with service_of(model) as service, TestClient(create_app(service)) as client:
        expected = client.post("/translate", json={"q": TEXTS, **PAIR}).json()
        real, failures = EngineSearch.enter, [MemoryError(), MemoryError()]

        def enter(self: EngineSearch, sentences: Any) -> None:
            if failures:
                raise failures.pop()
            return real(self, sentences)

        monkeypatch.setattr(EngineSearch, "enter", enter)
        assert client.post("/translate", json={"q": TEXTS, **PAIR}).json() == expected
    assert not failures
    assert "out of memory: continuing with" in capfd.readouterr().err


def test_a_bug_is_answered_with_one_sentence(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with service_of(model) as service:
        monkeypatch.setattr(service.pool, "find", None)
        with TestClient(create_app(service), raise_server_exceptions=False) as client:
            refused(client.post("/translate", json={"q": "rot", **PAIR}), 500, "a bug in nmt serve")


def test_two_models_of_one_pair_are_refused(model: Path) -> None:
    with pytest.raises(UsageError, match="two models translate en to de"):
        with service_of(model, model):
            pass


FILE = 'msgid ""\nmsgstr ""\n\nmsgid "rot"\nmsgstr ""\n'


def random_request(draw: random.Random, keys: list[str], files: list[str]) -> dict[str, Any]:
    """Return a random request. `keys` are IDs of glossaries, `files` are paths of translated files."""
    texts = [
        "rot",
        "",
        "der Hund geht.",
        "<b>rot</b> &amp; <",
        "\ud83d",
        "\0",
        "\r\n\n",
        "x" * 6000,
        "\u200b\ufeff",
        "🙂",
    ]
    values: list[Any] = [*texts, None, 0, -1, 3, 1e308, True, [], {}, [[]], ["rot", 5], texts[:3], "en", "de", "auto"]
    names = [
        "q",
        "source",
        "target",
        "format",
        "alternatives",
        "api_key",
        "text",
        "target_lang",
        "tag_handling",
        "type",
    ]
    names += ["source_lang", "split_sentences", "ignore_tags", "preserve_formatting", "show_billed_characters", "file"]
    names += ["name", "entries", "entries_format", "glossary_id"]
    texts += ["rot,Baum,en,de\nund", '"', "\t", "[" * 3000, "<b>" * 1000, "csv", "0" * 36]
    fields = {name: draw.choice(values) for name in draw.sample(names, draw.randrange(6))}
    if draw.random() < 0.6:
        fields |= {"q": draw.choice(texts), **PAIR, "text": draw.choice(texts), "target_lang": "DE"}
        entries = draw.choice(["rot\tBaum", "und\tund|ist", "rot,Baum", *texts])
        fields |= {"source_lang": "EN", "name": "ours", "entries": entries}
    body = json.dumps(fields).encode()
    paths = ["/translate"] * 4 + ["/v2/translate"] * 3 + ["/detect", "/sentences", "/languages", "/v2/languages"]
    paths += ["/translate_file"] * 4 + ["/v2/glossaries"] * 6 + ["/v2/glossary-language-pairs", "/sentences"]
    paths += ["/health", "/frontend/settings", "/metrics", "/v2/usage", "/page/x", "/%00", "/"]
    paths += [f"/v2/glossaries/{key}{end}" for key in ("x", *keys[-2:]) for end in ("", "/entries")]
    paths += ["/download_file/x", *files[-2:]]
    path = draw.choice(paths)
    kind = draw.choice(["json", "json", "form", "multipart", "raw"])
    if path == "/translate_file" and draw.random() < 0.7:
        kind = "multipart"
    if kind == "form":
        body = b"&".join(f"{name}={value}".encode(errors="replace") for name, value in fields.items())
    if kind == "multipart":
        file = draw.random() < 0.7
        if file:
            fields.pop("file", None)
        parts = [f'--a\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
        if file:
            name = f"a.{draw.choice(['txt', 'html', 'MD', 'po', 'pdf', ''])}"
            start = f'--a\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
            parts.append(f"{start}{draw.choice([*texts, FILE])}\r\n")
        body = "".join([*parts, "--a--\r\n"]).encode(errors="replace")
    if draw.random() < 0.15:
        body = bytes(draw.choice([each, draw.randrange(256)]) for each in body)
    headers = {"json": JSON, "form": FORM, "multipart": {"Content-Type": "multipart/form-data; boundary=a"}, "raw": {}}
    method = draw.choice(["POST"] * 8 + ["GET", "GET", "PUT", "OPTIONS", "HEAD", "PATCH", "DELETE"])
    return {"method": method, "url": path, "content": body, "headers": headers[kind]}


def fuzz(client: TestClient, count: int) -> None:
    draw = random.Random(11)
    statuses, keys, files = Counter[int](), list[str](), list[str]()
    for _ in range(count):
        request = random_request(draw, keys, files)
        answer = client.request(**request)
        statuses[answer.status_code] += 1
        assert answer.status_code < 500, request
        if answer.status_code >= 400 and request["method"] != "HEAD" and answer.content != b"Disallowed CORS":
            [(name, text)] = answer.json().items()
            assert name == ("message" if request["url"].startswith("/v2/") else "error")
            assert "Traceback" not in text
        if answer.status_code in (200, 201) and request["method"] == "POST":
            content = answer.json() if request["url"] in ("/v2/glossaries", "/translate_file") else {}
            keys += [content[name] for name in content if name == "glossary_id"]
            files += [urlsplit(content[name]).path for name in content if name == "translatedFileUrl"]
    assert {200, 201, 400, 404} <= statuses.keys(), statuses
    assert keys
    assert files
    assert client.get("/health").json() == {"status": "ok"}
    assert client.post("/translate", json={"q": "rot", **PAIR}).status_code == 200


def test_random_requests_never_get_500(model: Path) -> None:
    with service_of(model, limits=Limits(5000, 50)) as service, TestClient(create_app(service)) as client:
        fuzz(client, 300)
        assert (service.pool.texts, service.pool.translators[0].load) == (0, (0, 0))


@pytest.mark.slow
def test_five_thousand_requests_leave_nothing_behind(model: Path) -> None:
    with service_of(model, limits=Limits(5000, 50)) as service, TestClient(create_app(service)) as client:
        fuzz(client, 500)
        client.post("/detect", json={"q": "rot"})  # loads py3langid
        before = resident()
        fuzz(client, 5000)
        assert resident() < 1.05 * before
        assert (service.pool.texts, service.pool.translators[0].load) == (0, (0, 0))
