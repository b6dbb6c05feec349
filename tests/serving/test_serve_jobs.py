"""Documents in a queue, suggestions in a file, and required fields of the described routes."""

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
from serving import client_of, service_of
from starlette.requests import Request
from starlette.testclient import TestClient
from test_serve_documents import HTML, PAIR, finished, upload

from nmt_cli.serving import deepl_documents, files, openapi, suggestions
from nmt_cli.serving.app import create_app
from nmt_cli.serving.database import Database
from nmt_cli.serving.deepl_documents import Job, Jobs
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.key_store import KeyStore


def status(client: TestClient, made: dict[str, str]) -> str:
    answer = client.get(f"/v2/document/{made['document_id']}", params={"document_key": made["document_key"]})
    assert answer.status_code in (200, 404)
    return str(answer.json().get("status", 404))


def test_documents_are_translated_one_after_the_other(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting documents are kept, however old. Finished documents make room, oldest first."""
    gate, translated = threading.Event(), files.translated

    async def slow(request: Request, *arguments: Any) -> bytes:
        await request.app.state.service.pool.workers.in_thread(gate.wait, 30)
        return await translated(request, *arguments)

    monkeypatch.setattr(files, "translated", slow)
    monkeypatch.setattr(deepl_documents, "MAX_RUNNING", 1)
    monkeypatch.setattr(deepl_documents, "MAX_KEPT", 3)
    with client_of(model) as client:
        made = [upload(client, f"{i}.txt", f"rot {i}").json() for i in range(3)]
        until = time.monotonic() + 30
        while status(client, made[0]) != "translating" and time.monotonic() < until:
            time.sleep(0.01)
        assert [status(client, each) for each in made] == ["translating", "queued", "queued"]
        gate.set()
        assert [finished(client, each)["status"] for each in made] == ["done"] * 3
        made += [upload(client, "3.txt", "rot").json()]
        assert len(client.app.state.jobs._jobs) == 3
        finished(client, made[3])
        assert [status(client, each) for each in made] == ["404", "done", "done", "done"]


def test_documents_expire_half_an_hour_after_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10_000.0
    monkeypatch.setattr(deepl_documents.time, "monotonic", lambda: now)
    jobs, pair = Jobs(), ("en", "de")
    old = Job("text", ".txt", pair, b"x", status="done", ended=now - 1801)
    kept = Job("text", ".txt", pair, b"x", status="error", ended=now - 1799)
    waiting = Job("text", ".txt", pair, b"x")
    jobs._jobs = {each.id: each for each in (old, kept, waiting)}
    assert [jobs.find(each.id, each.key) for each in (kept, waiting)] == [kept, waiting]
    with pytest.raises(Refusal, match="no such document, or it has expired"):
        jobs.find(old.id, old.key)
    assert len(jobs._jobs) == 2
    with pytest.raises(Refusal, match="no such document"):
        jobs.find(kept.id, waiting.key)


def test_the_limit_on_the_size_of_all_documents_is_exact(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(*_: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(deepl_documents, "MAX_BYTES", 10)
    with client_of(model) as client, monkeypatch.context() as patch:
        patch.setattr(files, "translated", endless)
        answers = [upload(client, "a.txt", "x" * size) for size in (11, 6, 5, 4, 1)]
        assert [answer.status_code for answer in answers] == [429, 200, 429, 200, 429]
        assert answers[0].headers["Retry-After"] == "1"


def test_a_document_that_fails_frees_its_place(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_: Any) -> bytes:
        raise KeyError

    with client_of(model) as client:
        with monkeypatch.context() as patch:
            patch.setattr(files, "translated", failing)
            found = finished(client, made := upload(client).json())
        assert found == {
            "document_id": made["document_id"],
            "status": "error",
            "error_message": "The server failed: this is a bug in nmt serve",
        }
        jobs = client.app.state.jobs  # type: ignore[attr-defined]
        assert [job.data for job in jobs._jobs.values()] == [b""]
        assert finished(client, upload(client).json())["status"] == "done"


def test_a_document_is_counted_for_its_key(model: Path, tmp_path: Path) -> None:
    database = Database(tmp_path / "a.db")
    keys = KeyStore(database)
    headers = {"Authorization": f"DeepL-Auth-Key {keys.add('a', per_day=30)}"}
    with service_of(model, database=database) as service, TestClient(create_app(service)) as client:
        file = {"file": ("a.html", HTML)}
        assert client.post("/v2/document", data=PAIR, files=file).status_code == 403
        made = [client.post("/v2/document", data=PAIR, files=file, headers=headers).json() for _ in range(2)]
        answers = list[dict[str, Any]]()
        for each in made:
            where = f"/v2/document/{each['document_id']}"
            assert client.post(where, json={"document_key": each["document_key"]}).status_code == 403
            answer = {"status": "queued"}
            while answer["status"] in ("queued", "translating"):
                answer = client.post(where, json={"document_key": each["document_key"]}, headers=headers).json()
            answers.append(answer)
        assert [answer["status"] for answer in answers] == ["done", "error"]
        assert answers[1]["error_message"] == "The request would exceed the key's limit of 30 characters per day"
        assert keys.usage()[0][1:] == ("a", 1, len(HTML))
    database.close()


def test_fields_of_an_upload(client: TestClient) -> None:
    made = upload(client, "A.HTML", output_format="HTML").json()
    assert finished(client, made)["billed_characters"] == len(HTML)
    same = upload(client, "a.txt", "rot und", target_lang="en").json()
    finished(client, same)
    answer = client.get(f"/v2/document/{same['document_id']}/result", params={"document_key": same["document_key"]})
    assert answer.text == "rot und", "the languages are the same"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="translated.txt"'
    for fields in ({"glossary_ids": "x"}, {"output_format": "html2"}, {"source_lang": "fr"}):
        assert upload(client, **fields).status_code == 400
    assert upload(client, "a.exe", filename="a.md").status_code == 200, "the filename field names the document"
    assert upload(client, "a.md", filename="a.exe").status_code == 400


SUGGESTION = {"q": "rot", "s": "Baum", "source": "en", "target": "de"}


def test_suggestions_are_appended_until_the_file_is_full(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "suggestions"
    line = len(json.dumps(SUGGESTION)) + 1
    monkeypatch.setattr(suggestions, "MAX_FILE_BYTES", 2 * line)
    with service_of(model, suggestions=path, keys=[b"key"]) as service, TestClient(create_app(service)) as client:
        assert client.post("/suggest", json=SUGGESTION).status_code == 400
        fields = {**SUGGESTION, "api_key": "key"}
        for text in ("rot", "und"):
            assert client.post("/suggest", json={**fields, "q": text}).status_code == 200
        answer = client.post("/suggest", json=fields)
        assert (answer.status_code, answer.json()) == (503, {"error": "The server accepts no more suggestions"})
        assert [json.loads(each)["q"] for each in path.read_text().splitlines()] == ["rot", "und"]
        assert service.characters == 3 * 7
        answer = client.post("/suggest", json={**fields, "q": "x" * 3000, "s": "y" * 2001})
        assert "request (5,001) exceeds text limit (5,000)" in answer.json()["error"]
        path.unlink()
        path.mkdir()
        answer = client.post("/suggest", json=fields)
        assert (answer.status_code, answer.json()) == (503, {"error": "The server cannot store suggestions"})


VALUES = {
    "q": "rot", "s": "Baum", "source": "en", "target": "de", "text": ["rot"], "source_lang": "EN", "target_lang": "DE",
    "name": "ours", "entries": "rot\tBaum", "dictionaries": [{**PAIR, "entries": "rot\tBaum"}], "format": "text",
    "alternatives": 1, "case": "off", "entries_format": "tsv", "preserve_formatting": True, "tag_handling": "xml",
}  # fmt: skip


@pytest.mark.parametrize(
    "path", ["/translate", "/detect", "/suggest", "/sentences", "/v2/translate", "/v2/glossaries", "/v3/glossaries"]
)
def test_the_server_needs_exactly_the_required_fields(model: Path, tmp_path: Path, path: str) -> None:
    described = openapi.specification()["paths"][path]["post"]
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    with service_of(model, suggestions=tmp_path / "x") as service, TestClient(create_app(service)) as client:
        service.detector.detect = lambda _: [("en", 100)]  # type: ignore[method-assign]
        values = {name: VALUES[name] for name in schema["properties"] if name in VALUES}
        assert client.post(path, json=values).status_code in (200, 201)
        assert client.post(path, json={name: values[name] for name in schema["required"]}).status_code in (200, 201)
        for name in schema["required"]:
            answer = client.post(path, json={key: value for key, value in values.items() if key != name})
            assert (answer.status_code, name in answer.text) == (400, True)
            [error] = described["responses"]["default"]["content"]["application/json"]["schema"]["required"]
            assert list(answer.json()) == [error]


def test_parameters_and_bodies_are_described_where_requests_have_them() -> None:
    paths = openapi.specification()["paths"]
    entries = paths["/v3/glossaries/{key}/entries"]["get"]["parameters"]
    assert [(each["name"], each["in"], each["required"]) for each in entries] == [
        ("key", "path", True), ("source_lang", "query", True), ("target_lang", "query", True),
    ]  # fmt: skip
    assert paths["/v2/languages"]["get"]["parameters"][0]["required"] is False
    for path, kinds in (
        ("/v2/document", ["multipart/form-data"]),
        ("/translate_file", ["multipart/form-data"]),
        ("/translate", ["application/json", "application/x-www-form-urlencoded"]),
    ):
        assert list(paths[path]["post"]["requestBody"]["content"]) == kinds
    assert "requestBody" not in paths["/health"]["get"]
    assert "required" not in str(paths["/v3/glossaries/{key}"]["patch"]["requestBody"]["content"])


def test_a_suggestion_that_fits_only_in_part_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, where a write may store only its beginning."""
    path, write = tmp_path / "suggestions.jsonl", os.write
    suggestions.append(path, b"first\n")
    with monkeypatch.context() as patch:
        patch.setattr(suggestions.os, "write", lambda file, line: write(file, line[:4]))
        with pytest.raises(Refusal) as refused:
            suggestions.append(path, b"second\n")
    assert refused.value.status == 503
    suggestions.append(path, b"third\n")
    assert path.read_bytes() == b"first\nthird\n"
