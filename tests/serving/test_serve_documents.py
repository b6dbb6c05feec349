"""DeepL's documents, LibreTranslate's suggestions, and the description of all routes."""

import asyncio
import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
from serving import client_of, service_of
from starlette.requests import Request
from starlette.routing import Route
from starlette.testclient import TestClient

from nmt_cli.serving import deepl_documents, files, suggestions
from nmt_cli.serving.app import ROUTES, create_app
from nmt_cli.serving.deepl_documents import Job, Jobs
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.openapi import specification
from nmt_cli.serving.texts import TextFormat
from nmt_cli.serving.work import Workers

HTML = "<p>der <b>Hund</b> geht</p>"
PAIR = {"source_lang": "EN", "target_lang": "DE"}


def upload(client: TestClient, name: str = "a.html", text: str = HTML, **fields: str) -> Any:
    return client.post("/v2/document", data={**PAIR, **fields}, files={"file": (name, text.encode())})


def finished(client: TestClient, made: dict[str, str]) -> dict[str, Any]:
    until = time.monotonic() + 30
    while True:
        answer = client.post(f"/v2/document/{made['document_id']}", json={"document_key": made["document_key"]}).json()
        if answer["status"] not in ("queued", "translating"):
            return dict(answer)
        assert answer["seconds_remaining"] == 1
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_document_is_uploaded_translated_and_downloaded_once(client: TestClient) -> None:
    fields = {"q": HTML, "source": "en", "target": "de", "format": "html"}
    expected = client.post("/translate", json=fields).json()["translatedText"]
    made = upload(client).json()
    assert made.keys() == {"document_id", "document_key"}
    done = {"document_id": made["document_id"], "status": "done", "billed_characters": len(HTML)}
    assert finished(client, made) == done
    where = f"/v2/document/{made['document_id']}"
    for key in ("x", "", "é"):
        for path in (where, f"{where}/result"):
            answer = client.post(path, json={"document_key": key})
            assert (answer.status_code, list(answer.json())) == (404, ["message"])
    assert client.post(f"{where}/result").status_code == 400
    result = client.post(f"{where}/result", json={"document_key": made["document_key"]})
    assert result.text == expected
    assert result.headers["Content-Disposition"] == 'attachment; filename="translated.html"'
    assert client.post(f"{where}/result", json={"document_key": made["document_key"]}).status_code == 404


@pytest.mark.parametrize("suffix", [".html", ".md", ".po", ".txt"])
def test_formats_of_translate_file_are_documents(client: TestClient, suffix: str) -> None:
    text = 'msgid ""\nmsgstr ""\n\nmsgid "rot"\nmsgstr ""\n' if suffix == ".po" else "rot"
    made = upload(client, f"a{suffix}", text)
    assert made.status_code == 200
    assert finished(client, made.json())["status"] == "done"


def test_wrong_uploads_are_refused(client: TestClient) -> None:
    for name, fields, text in (
        ("a.exe", {}, "file format not supported"),
        ("a", {}, "file format not supported"),
        ("a.html", {"output_format": "pdf"}, "output_format must be the format of the file"),
        ("a.html", {"glossary_id": "x"}, "glossary_id is not supported"),
        ("a.html", {"target_lang": "fr"}, "fr is not supported"),
    ):
        answer = upload(client, name, **fields)
        assert answer.status_code == 400
        assert text in answer.json()["message"]
    assert client.post("/v2/document", data=PAIR).status_code == 400
    assert upload(client, "x", filename="a.md").status_code == 200


def test_the_error_of_a_document_is_its_status(client: TestClient) -> None:
    for text, error in (("\0", "NUL"), ("x" * 6000, "exceeds text limit")):
        made = upload(client, text=text).json()
        found = finished(client, made)
        assert found["status"] == "error"
        assert error in found["error_message"]
        where = f"/v2/document/{made['document_id']}/result"
        assert client.post(where, json={"document_key": made["document_key"]}).status_code == 404


def test_documents_are_limited_in_number_and_size(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    translated = files.translated

    async def slow(request: Request, *arguments: Any) -> bytes:
        await request.app.state.service.pool.workers.in_thread(gate.wait, 30)
        return await translated(request, *arguments)

    monkeypatch.setattr(files, "translated", slow)
    monkeypatch.setattr(deepl_documents, "MAX_WAITING", 3)
    with client_of(model) as client:
        made = [upload(client) for _ in range(4)]
        assert [each.status_code for each in made] == [200, 200, 200, 429]
        where = f"/v2/document/{made[0].json()['document_id']}/result"
        assert client.post(where, json={"document_key": made[0].json()["document_key"]}).status_code == 503
        gate.set()
        assert {finished(client, each.json())["status"] for each in made[:3]} == {"done"}
        monkeypatch.setattr(deepl_documents, "MAX_BYTES", len(HTML) + 5)
        assert upload(client).status_code == 200, "older translations make room"
        assert upload(client, text=HTML * 2).status_code == 429


def test_a_document_waits_for_room_and_counts_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepl_documents, "BUSY_SECONDS", 0.02)
    with client_of(model) as client:
        service = client.app.state.service  # type: ignore[attr-defined]
        service.pool.texts = service.pool.queue
        made = upload(client).json()
        where = f"/v2/document/{made['document_id']}"
        for _ in range(5):
            time.sleep(0.05)
            assert client.post(where, json={"document_key": made["document_key"]}).json()["status"] == "translating"
        service.pool.texts = 0
        assert finished(client, made)["status"] == "done"
        assert service.characters == len(HTML)


def test_texts_do_not_wait_for_files() -> None:
    async def run() -> None:
        workers = Workers()
        async with contextlib.AsyncExitStack() as stack:
            while not workers._file_processes.locked():
                await stack.enter_async_context(workers._file_processes)
            async with asyncio.timeout(30):
                assert await workers.in_process(TextFormat("html"), ["<p>rot"]) == [["rot"]]
        await workers.close()

    asyncio.run(run())


def test_old_documents_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs()
    job = Job("text", ".txt", ("en", "de"), b"x", status="done", ended=time.monotonic())
    jobs._jobs[job.id] = job
    assert jobs.find(job.id, job.key) is job
    monkeypatch.setattr(deepl_documents, "KEEP_SECONDS", -1)
    with pytest.raises(Refusal, match="no such document"):
        jobs.find(job.id, job.key)


def test_only_the_oldest_translation_makes_room(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of(model) as client:
        fields = {"q": HTML, "source": "en", "target": "de", "format": "html"}
        size = len(client.post("/translate", json=fields).json()["translatedText"].encode())
        made = list[dict[str, str]]()
        for _ in range(2):
            made.append(upload(client).json())
            finished(client, made[-1])
        monkeypatch.setattr(deepl_documents, "MAX_BYTES", 2 * size + len(HTML) - 1)
        assert upload(client).status_code == 200
        keys = [(each["document_id"], {"document_key": each["document_key"]}) for each in made]
        codes = [client.post(f"/v2/document/{id}/result", json=key).status_code for id, key in keys]
        assert codes == [404, 200]


def test_a_document_that_takes_too_long_ends(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(*_: Any) -> bytes:
        await asyncio.sleep(60)
        return b""

    monkeypatch.setattr(deepl_documents, "RUN_SECONDS", 0.1)
    with client_of(model) as client, monkeypatch.context() as patch:
        patch.setattr(files, "translated", endless)
        assert "took longer than 0.1 seconds" in finished(client, upload(client).json())["error_message"]


def test_suggestions_are_refused_unless_there_is_a_file(model: Path, tmp_path: Path, monkeypatch: Any) -> None:
    fields = {"q": "rot", "s": "Baum\n", "source": "en", "target": "de"}
    with client_of(model) as client:
        answer = client.post("/suggest", json=fields)
        assert (answer.status_code, answer.json()) == (403, {"error": "Suggestions are disabled on this server."})
        assert client.get("/frontend/settings").json()["suggestions"] is False
    path = tmp_path / "suggestions.jsonl"
    with service_of(model, suggestions=path) as service, TestClient(create_app(service)) as client:
        assert client.get("/frontend/settings").json()["suggestions"] is True
        assert client.post("/suggest", data=fields).json() == {"success": True}
        for source in ("en", "auto"):
            assert client.post("/suggest", json={**fields, "source": source, "target": "xx"}).status_code == 400
        detected = {**fields, "source": "auto"}
        assert client.post("/suggest", json=detected).json() == {"success": True}
        assert [json.loads(line) for line in path.read_text().split("\n") if line] == [fields, detected]
        assert path.stat().st_mode & 0o777 == 0o600
        monkeypatch.setattr(suggestions, "MAX_FILE_BYTES", 100)
        assert client.post("/suggest", json=fields).status_code == 503


def test_the_description_has_every_route(client: TestClient) -> None:
    described = client.get("/spec").json()
    assert described == specification()
    paths = {route.path for route in ROUTES if isinstance(route, Route)}
    assert described["paths"].keys() == paths - {"/"}
    for path, methods in described["paths"].items():
        served = {
            each.lower()
            for route in ROUTES
            if isinstance(route, Route) and route.path == path
            for each in route.methods or ()
        }
        assert methods.keys() <= served, path


def test_a_validator_accepts_the_description() -> None:
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(specification())
