"""Headers, methods, log lines and counts that all routes share, and the settings that each request passes on."""

import asyncio
import json
import re
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from gate import Gate
from office_files import docx, paragraph, run

pytest.importorskip("starlette")
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from serving import LONG, PAIR, TEXTS, client_of, service_of
from starlette.requests import ClientDisconnect
from starlette.testclient import TestClient
from test_serve_documents import finished, upload

from nmt_cli.serving import deepl_documents, files, pool, sentences
from nmt_cli.serving import service as service_module
from nmt_cli.serving.app import create_app
from nmt_cli.serving.database import Database
from nmt_cli.serving.fields import Fields, Refusal
from nmt_cli.serving.key_store import KeyStore
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.origins import Access, access_for
from nmt_cli.serving.pool import Completion, ModelPool, while_connected
from nmt_cli.serving.service import Limits, Service
from nmt_cli.serving.texts import TextFormat, file_units
from nmt_cli.translation.options import SearchOptions

GERMAN = {"source_lang": "EN", "target_lang": "DE"}


def test_the_page_may_load_its_own_files_only(client: TestClient) -> None:
    for path in ("/", "/page/app.js", "/page/style.css"):
        policy = client.get(path).headers["Content-Security-Policy"]
        assert dict(each.split(" ", 1) for each in policy.split("; ")) == {
            "default-src": "'none'",
            **dict.fromkeys(("script-src", "style-src", "img-src", "connect-src"), "'self'"),
            **dict.fromkeys(("base-uri", "form-action", "frame-ancestors"), "'none'"),
            "require-trusted-types-for": "'script'",
        }


def test_metrics_have_the_type_that_prometheus_reads(client: TestClient) -> None:
    assert client.get("/metrics").headers["Content-Type"] == CONTENT_TYPE_LATEST


def test_a_refused_page_or_host_ends_its_connection(model: Path) -> None:
    """The request's body is not read. GET, HEAD and OPTIONS are allowed from any origin."""
    with client_of(model, access=access_for("127.0.0.1", [], [])) as client:
        client.base_url = "http://127.0.0.1:5000"
        for headers, status in (({"Host": "evil.example"}, 421), ({"Origin": "https://evil.example"}, 403)):
            for path, name in (("/translate", "error"), ("/v2/translate", "message"), ("/v3/glossaries", "message")):
                answer = client.post(path, json={}, headers=headers)
                assert (answer.status_code, list(answer.json())) == (status, [name])
                assert answer.headers["Connection"] == "close"
        for method in ("GET", "HEAD", "OPTIONS"):
            assert client.request(method, "/health", headers={"Origin": "https://evil.example"}).status_code != 403


def test_an_allowed_page_can_read_the_route(model: Path) -> None:
    origin = "https://one.example"
    with client_of(model, access=Access(origins=(origin,))) as client:
        answer = client.post("/translate", json={"q": "rot", **PAIR}, headers={"Origin": origin})
        assert answer.headers["X-NMT-Route"] == "en-de"
        assert answer.headers["Access-Control-Expose-Headers"] == "X-NMT-Route"


def test_with_keys_in_the_database_a_page_needs_a_key_and_no_allowed_origin(model: Path, tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db")
    key = KeyStore(database).add("a")
    with client_of(
        model, access=access_for("127.0.0.1", [], []), database=database, limits=Limits(seconds=5)
    ) as client:
        client.base_url = "http://127.0.0.1:5000"
        settings = client.get("/frontend/settings").json()
        assert (settings["apiKeys"], settings["keyRequired"]) == (True, True)
        page = {"Origin": "https://evil.example"}
        assert client.post("/translate", json={"q": "rot", **PAIR, "api_key": key}, headers=page).status_code == 200
        assert client.post("/translate", json={"q": "rot", **PAIR}, headers=page).status_code == 400
        with database.transaction():  # as when a glossary is written; other requests do not wait for it
            headers = {"Authorization": f"Bearer {KeyStore(Database(tmp_path / 'b.db')).add('b')}"}
            assert client.get("/metrics", headers=headers).status_code == 403
            assert client.get("/metrics", headers={"Authorization": f"Bearer {key}"}).status_code == 200


METHODS = {
    "GET": "/languages /health /frontend/settings /spec /metrics / /v2/languages /v2/usage /v2/glossaries "
    "/v2/glossary-language-pairs /v3/glossaries",
    "POST": "/v2/languages /v2/usage",
    "HEAD": "/health /languages /",
}


@pytest.mark.parametrize(
    ("method", "path"), [(method, path) for method, paths in METHODS.items() for path in paths.split()]
)
def test_these_routes_answer_this_method(client: TestClient, method: str, path: str) -> None:
    assert client.request(method, path).status_code == 200


def test_the_log_cuts_a_method_and_has_the_status_of_a_cancelled_request(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(Service, "read", slow)

    async def ask(service: Service) -> None:
        app = create_app(service)
        sent = Mock()

        async def send(message: Any) -> None:
            sent(message)

        scope = {"type": "http", "path": "/translate", "headers": [], "query_string": b""}
        await app({**scope, "method": "G\x1b[2J" + "T" * 50}, Mock(), send)
        task = asyncio.ensure_future(app({**scope, "method": "POST"}, Mock(), send))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait({task})

    with service_of(model) as service:
        asyncio.run(ask(service))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(rf"G\x1b[2J{'T' * 11}… /translate 405 ")
    assert second.startswith("POST /translate 499 ")


def test_a_text_that_is_not_translated_is_counted_for_its_key(model: Path, tmp_path: Path) -> None:
    """Source and target are the same language."""
    database = Database(tmp_path / "a.db")
    keys = KeyStore(database)
    headers = {"Authorization": f"Bearer {keys.add('a')}"}
    pair = {"source": "en", "target": "en-GB"}
    sent: list[tuple[str, dict[str, Any]]] = [
        ("/translate", {"json": {"q": "rot", **pair}}),
        ("/sentences", {"json": {"q": "rot", **pair}}),
        ("/v2/translate", {"json": {"text": "rot", "source_lang": "en", "target_lang": "en"}}),
        ("/translate_file", {"data": pair, "files": {"file": ("a.txt", "rot")}}),
        ("/translate_file", {"data": pair, "files": {"file": ("a.docx", docx(paragraph(run("rot"))))}}),
    ]
    with client_of(model, database=database) as client:
        for number, (path, fields) in enumerate(sent, 1):
            assert client.post(path, headers=headers, **fields).status_code == 200
            assert keys.usage()[0][2:] == (number, 3 * number), path
        client.portal.call(client.app.state.service.pool.workers.close)


@pytest.mark.parametrize("path", ["/translate", "/v2/translate", "/sentences", "/translate_file"])
def test_a_disconnect_ends_the_search_of_each_route(model: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    gate = Gate(monkeypatch)
    gate.opened.set()
    if path == "/translate_file":
        part = b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
        srt = b"1\n00:00:01,000 --> 00:00:02,000\nrot und\n"
        fields = (b"source", b"", b"en"), (b"target", b"", b"de"), (b"file", b'; filename="a.srt"', srt)
        kind, body = b"multipart/form-data; boundary=b", b"".join(part % each for each in fields) + b"--b--\r\n"
    else:
        kind, body = b"application/json", json.dumps({"q": "rot", "text": "rot", **PAIR, **GERMAN}).encode()
    sent = list[Any]()

    async def ask(service: Service) -> None:
        messages = asyncio.Queue[dict[str, Any]]()
        await messages.put({"type": "http.request", "body": body, "more_body": False})
        scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"content-type", kind)]}

        async def send(message: Any) -> None:
            sent.append(message)

        asked = asyncio.ensure_future(create_app(service)({**scope, "query_string": b""}, messages.get, send))
        async with asyncio.timeout(30):
            while not gate.entered:
                await asyncio.sleep(0.01)
            await messages.put({"type": "http.disconnect"})
            await asked
        await service.pool.workers.close()

    with service_of(model) as service:
        gate.opened.clear()
        try:
            asyncio.run(ask(service))
            assert [each.get("status") for each in sent[:1]] == [499]
            assert (service.pool.texts, service.pool.costs.used) == (0, 0)
        finally:
            gate.opened.set()


def test_work_ends_before_the_disconnect_is_reported() -> None:
    ended = list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("work")

    async def gone() -> dict[str, str]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def ask() -> None:
        with pytest.raises(ClientDisconnect):
            await while_connected(Mock(receive=gone), work())
        assert ended == ["work"]

    asyncio.run(ask())


def test_a_text_may_finish_after_its_event_loop_is_closed() -> None:
    async def made() -> Completion:
        return Completion(1)

    asyncio.run(made()).count_down(Mock())


def test_a_text_submitted_after_its_request_ended_is_cancelled() -> None:
    """Another thread submits the text while the request is being cancelled."""
    cancelled = list[str]()

    def submit(position: int, unit: str, *_: object) -> Any:
        time.sleep(0.2)
        return SimpleNamespace(drafts=[[]], cancel=lambda: cancelled.append(unit))

    async def run() -> None:
        units = ["a" * 2000, "b"]
        with ModelPool([], Metrics(), queue=5) as pool:
            served: Any = SimpleNamespace(submit=submit)
            task = asyncio.ensure_future(pool.translate(served, units, SearchOptions()))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait({task})
            assert cancelled == []
            await asyncio.sleep(0.4)
            assert cancelled == units[:1]

    asyncio.run(run())


@pytest.mark.parametrize("size", [1, 2000])
def test_units_are_submitted_with_their_positions(size: int) -> None:
    """Short units are submitted in the event loop, long ones in a thread. Positions order units of several texts."""
    given = list[tuple[int, str]]()

    def submit(position: int, unit: str, _options: object, done: Any) -> Any:
        given.append((position, unit))
        done(None)
        return SimpleNamespace(drafts=[[]], translation=lambda: unit)

    async def run() -> None:
        with ModelPool([], Metrics(), queue=5) as pool:
            served: Any = SimpleNamespace(submit=submit)
            assert await pool.translate(served, units, SearchOptions()) == units

    units = [letter * size for letter in "abc"]
    asyncio.run(run())
    assert given == list(enumerate(units))


def test_ids_have_the_form_of_deepl(client: TestClient) -> None:
    made = upload(client).json()
    finished(client, made)
    assert re.fullmatch("[0-9A-F]{32}", made["document_id"])
    assert re.fullmatch("[0-9A-F]{64}", made["document_key"])
    glossary = {"name": "a", **GERMAN, "entries": "a\tb", "entries_format": "tsv"}
    key = client.post("/v2/glossaries", json=glossary).json()["glossary_id"]
    assert str(uuid.UUID(key, version=4)) == key


def test_long_texts_are_measured_too(client: TestClient) -> None:
    def count() -> float:
        page = client.get("/metrics").text
        return float(next(line.split()[1] for line in page.split("\n") if line.startswith("nmt_search_seconds_count")))

    before = count()
    assert client.post("/translate", json={"q": LONG, **PAIR}).status_code == 200
    assert count() == before + 1


def test_the_case_option_of_a_request_reaches_the_search(client: TestClient) -> None:
    text = TEXTS[2].upper()
    seen = {case: client.post("/translate", json={"q": text, **PAIR, "case": case}).json() for case in ("auto", "off")}
    assert seen["auto"] != seen["off"]
    answer = client.post("/translate", json={"q": text, **PAIR, "case": "x"})
    assert answer.json() == {"error": "Invalid request: case must be auto or off"}


def test_the_limit_on_sentences_is_exact(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "MAX_SENTENCES", 2)
    assert client.post("/sentences", json={"q": "rot. und.", **PAIR}).status_code == 200
    answer = client.post("/sentences", json={"q": "rot. und. das.", **PAIR})
    assert answer.json() == {"error": "Invalid request: its 3 sentences exceed the limit of 2"}
    [one] = client.post("/sentences", json={"q": TEXTS[2], **PAIR}).json()["sentences"]
    assert one["hypotheses"][0]["alignment"] == sorted(one["hypotheses"][0]["alignment"])


FILE_LANGUAGES = [
    ("a.html", '<html lang="en"><p>rot</p></html>', 'lang="de"'),
    ("a.arb", '{"@@locale": "en", "a": "rot"}', '"@@locale": "de"'),
]


@pytest.mark.parametrize(("name", "text", "words"), FILE_LANGUAGES)
@pytest.mark.parametrize("target", ["de", "DE"])
def test_a_translation_names_the_language_of_the_model(
    client: TestClient, name: str, text: str, words: str, target: str
) -> None:
    sent = client.post("/translate_file", data={"source": "en", "target": target}, files={"file": (name, text)})
    assert words in client.get(sent.json()["translatedFileUrl"]).text
    if name == "a.html":
        fields = {"q": text, "source": "en", "target": target, "format": "html"}
        assert words in client.post("/translate", json=fields).json()["translatedText"]


@pytest.mark.parametrize("status", [400, 500, 503])
def test_a_refused_document_is_not_tried_again(model: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """The server tries a document again only if there was no room for it yet."""

    async def refuse(*_: Any) -> bytes:
        raise Refusal(status, "no")

    monkeypatch.setattr(deepl_documents, "BUSY_SECONDS", 60)
    with client_of(model) as client, monkeypatch.context() as patch:
        patch.setattr(files, "translated", refuse)
        assert finished(client, upload(client).json())["error_message"] == "no"


def test_the_time_limit_of_a_document_begins_with_its_translation(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(*_: Any) -> bytes:
        _[0].state.characters = 3
        await asyncio.sleep(0.3)
        return b"x"

    monkeypatch.setattr(deepl_documents, "RUN_SECONDS", 0.5)
    monkeypatch.setattr(deepl_documents, "MAX_RUNNING", 1)
    with client_of(model) as client, monkeypatch.context() as patch:
        patch.setattr(files, "translated", slow)
        made = [upload(client, source_lang="", output_format="").json() for _ in range(3)]
        assert [finished(client, each)["status"] for each in made] == ["done"] * 3


def test_a_bug_in_a_document_is_logged(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(*_: Any) -> bytes:
        raise ZeroDivisionError

    with client_of(model) as client, monkeypatch.context() as patch:
        patch.setattr(files, "translated", failing)
        finished(client, upload(client).json())
        until = time.monotonic() + 10
        while "ZeroDivisionError" not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)
    assert "ZeroDivisionError" in caplog.text


def test_searches_for_keys_are_bounded_and_shared(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled request does not end the search of another request with the same key."""
    monkeypatch.setattr(service_module, "MAX_SEARCHES", 2)
    database = Database(tmp_path / "a.db")
    found = KeyStore(database)
    key = found.add("a")

    def request(key: str) -> Any:
        return SimpleNamespace(headers={"Authorization": f"Bearer {key}"}, state=SimpleNamespace())

    async def identify(service: Service) -> None:
        for number in range(5):
            await service.identify(request(f"{number}"), Fields({}))
            assert len(service._searches) <= 2
        real = service.api_keys.find
        service.api_keys.find = lambda given: (time.sleep(0.1), real(given))[1]  # type: ignore[method-assign]
        first, second = request(key), request(key)
        tasks = [asyncio.ensure_future(service.identify(each, Fields({}))) for each in (first, second)]
        await asyncio.sleep(0.02)
        tasks[0].cancel()
        await tasks[1]
        assert second.state.key.name == "a"

    with service_of(model, database=database) as service:
        asyncio.run(identify(service))


def test_loading_passes_its_settings_on_and_warms_each_search(monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = list[str]()
    translator = Mock(backend=SimpleNamespace(searches=[1, 2, 3]), submit=lambda text: submitted.append(text) or Mock())
    made = Mock(return_value=translator)
    monkeypatch.setattr(pool, "Translator", made)
    monkeypatch.setattr(pool, "directions_of", lambda *_: [("en", "de", ">>de<< "), ("en", "fr", ">>fr<< ")])
    for gpu, background in ((False, 1), (True, None)):
        monkeypatch.setattr(pool, "may_have_gpu", lambda gpu=gpu: gpu)
        submitted.clear()
        models = pool.load(Path("m"), "bf16", 3)
        made.assert_called_with(Path("m"), precision="bf16", workers=3, background_limit=background)
        assert submitted == [">>de<< Hello."] * 3
        assert [(each.source, each.target, each.prefix) for each in models] == [
            ("en", "de", ">>de<< "), ("en", "fr", ">>fr<< ")
        ]  # fmt: skip


@pytest.mark.parametrize(("source", "known"), [("EN", "EN"), ("Auto", "")])
def test_a_file_is_read_in_its_languages(model: Path, monkeypatch: pytest.MonkeyPatch, source: str, known: str) -> None:
    """The file is read, and its translation written, with the same languages, kept words and placeholders."""
    with client_of(model, keep=("Hund",), protect=True) as client:
        own = client.app.state.service  # type: ignore[attr-defined]
        own.detector.detect = lambda _: [("en", 99)]
        seen, workers = list[TextFormat](), own.pool.workers
        for name in ("file_units", "assemble_file"):
            real = getattr(workers, name)
            noted = lambda form, *rest, real=real: seen.append(form) or real(form, *rest)  # noqa: E731
            monkeypatch.setattr(workers, name, noted)
        srt = "1\n00:00:01,000 --> 00:00:02,000\nder Hund %s\n"
        pair = {"source": source, "target": "DE"}
        sent = client.post("/translate_file", data=pair, files={"file": ("a.srt", srt)})
        text = client.get(sent.json()["translatedFileUrl"]).text
        assert "Hund" in text
        assert "%s" in text
        assert seen == [TextFormat("srt", True, language="de", source_language=known, keep=("Hund",))] * 2
        client.portal.call(workers.close)
    russian = "1\n00:00:01,000 --> 00:00:02,000\nСобака\n".encode("cp1251")
    assert file_units(TextFormat("srt", source_language="ru"), russian) == ["Собака"]


def test_files_may_be_larger_than_texts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(characters=100, texts=2)
    with client_of(model, limits=limits) as client:
        text = "rot" + " " * 90
        assert client.post("/translate", json={"q": text, **PAIR}).status_code == 200
        for size, status in ((limits.bytes + 100, 200), (files.MAX_FILE_BYTES + 1, 413)):
            more = {"context": "x" * size}  # takes room, as a picture would
            file = {"file": ("a.txt", text)}
            assert client.post("/translate_file", data={**PAIR, **more}, files=file).status_code == status
            assert client.post("/v2/document", data={**GERMAN, **more}, files=file).status_code == status
        monkeypatch.setattr(files, "MAX_FILE_BYTES", 1)
        sent = client.post("/translate_file", data=PAIR, files={"file": ("a.txt", text)})
        assert sent.status_code == 200
