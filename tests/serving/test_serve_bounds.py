"""Exact bounds, defaults and settings: fields, files, the database, models in directories, and the guide's limits."""

import asyncio
import contextlib
import dataclasses
import inspect
import json
import os
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from office_files import docx, paragraph, run

pytest.importorskip("starlette")
from serving import PAIR, client_of, service_of
from starlette.requests import Request
from starlette.testclient import TestClient
from test_serve_totals import Classifier
from texts import ROOT

import nmt_cli
from nmt_cli.commands.serve import serve as command
from nmt_cli.corpus.languages import near
from nmt_cli.documents.document import Outline
from nmt_cli.serving import (
    connections,
    database,
    deepl_documents,
    detect,
    fields,
    files,
    glossaries,
    key_store,
    openapi,
    sentences,
    server,
    service,
    suggestions,
    text_process,
    texts,
    work,
)
from nmt_cli.serving.app import create_app
from nmt_cli.serving.database import Database
from nmt_cli.serving.fields import Fields, Refusal
from nmt_cli.serving.key_store import KeyStore
from nmt_cli.serving.model_routes import ServedModel
from nmt_cli.serving.on_demand import Loader
from nmt_cli.serving.pool import BACKGROUND_SEGMENTS, COST_FACTOR, COST_PER_UNIT
from nmt_cli.serving.service import Limits
from nmt_cli.serving.texts import TextFormat, units_of
from nmt_cli.serving.work import Workers
from nmt_cli.system.errors import DataError, StorageError
from nmt_cli.translation.stored_models import Direction, StoredModel

GUIDE = (ROOT / "nmt_cli/serving/README.md").read_text()


def test_the_guide_states_the_limits() -> None:
    minutes, megabytes = 60, 1 << 20
    limits = Limits()
    assert (connections.HEADER_SECONDS, connections.WRITE_SECONDS, limits.body_seconds) == (30, 30, 30)
    assert (connections.WRITE_BYTES, connections.MAX_HEAD_BYTES, fields.SMALL_BODY) == (1 << 16,) * 3
    assert deepl_documents.KEEP_SECONDS == files.SECONDS == 30 * minutes
    assert 10 * minutes == deepl_documents.RUN_SECONDS
    assert deepl_documents.MAX_BYTES == files.MAX_BYTES == 64 * megabytes
    for row in (
        f"| characters in a request | `--char-limit`, {limits.characters:,} |",
        f"| texts in a request | `--batch-limit`, {limits.texts:,} |",
        f"(characters + {COST_PER_UNIT} per line or sentence) × translations of each | {COST_FACTOR} × `--char",
        f"| time from a request's first byte to its response | `--timeout`, {limits.seconds} seconds |",
        f"| connections | `--connections`, {connections.DEFAULT_CONNECTIONS} |",
        f"| URL, headers, chunk sizes and trailers | 64 KB, {connections.MAX_HEADERS} headers |",
        f"{service.BYTES_PER_CHARACTER} bytes per character + {service.BYTES_PER_TEXT} per text + 64 KB; "
        f"files: {files.MAX_FILE_BYTES // megabytes} MB |",
        f"| text in a compressed file | {texts.MAX_UNPACKED // megabytes} MB with its markup",
        f"| all bodies above 64 KB that are being read | {fields.MAX_BODY_MEMORY // megabytes} MB |",
        f"| {fields.MAX_JSON_VALUES:,}; {fields.MAX_FIELD_CHARACTERS:,} | 400 |",
        f"| sentences in a text for `/sentences` | {sentences.MAX_SENTENCES:,} |",
        f"| {glossaries.MAX_GLOSSARIES:,}; {glossaries.MAX_ENTRIES:,}; {glossaries.MAX_FORMS:,} |",
        f"| {deepl_documents.MAX_WAITING}; {deepl_documents.MAX_KEPT}, 64 MB, 30 minutes; 10 minutes |",
        f"| stored file translations | {files.MAX_FILES} files, 64 MB, 30 minutes |",
        f"`alternatives` (0 to {service.MAX_ALTERNATIVES})",
    ):
        assert row in GUIDE, row
    assert (32, 1, megabytes) == (connections.MAX_PIPELINED, connections.LINGER_SECONDS, connections.LINGER_BYTES)
    assert (connections.GRACE_SECONDS, connections.RETRY_SECONDS, connections.WARN_SECONDS) == (1, 1, 60)
    assert (deepl_documents.MAX_RUNNING, detect.MAX_CHARACTERS, detect.SURE) == (2, 2000, 90)
    assert (key_store.KEY_BYTES, key_store.PREFIX, service.KEY_SECONDS) == (32, "nmt_", 1)
    assert (glossaries.MAX_PARSED_FORMS, glossaries.MAX_NAME, BACKGROUND_SEGMENTS) == (10_000, 1000, 1)
    assert (256 * megabytes, 1024 * megabytes) == (suggestions.MAX_FILE_BYTES, text_process.MAX_MEMORY)
    assert (work.SHORT_TEXT, server.KEEP_ALIVE_SECONDS) == (1000, 30)


def test_the_command_and_the_server_have_the_same_defaults() -> None:
    of_command = {name: each.default for name, each in inspect.signature(command).parameters.items()}
    for each in dataclasses.fields(server.ServeOptions):
        if each.name in of_command and each.name != "models":
            assert each.default == (of_command[each.name] if of_command[each.name] is not None else each.default)
            assert (each.default in (None, ())) == (of_command[each.name] is None), each.name
    assert server.ServeOptions(()).stored == ()


def test_more_settings_are_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "keep").write_text("Hund\n")
    seen = dict[str, Any]()

    async def answer(sockets: Any) -> None:
        pass

    def listening(config: Any, own: Any, *_: Any) -> Any:
        seen.update(config=config, service=own)
        return SimpleNamespace(serve=answer)

    def model(path: Path, *_: Any) -> list[ServedModel]:
        return [ServedModel(Mock(), *path.name.split("-"))]

    monkeypatch.setattr(server, "load", model)
    monkeypatch.setattr(server, "set_malloc_options", lambda given: seen.update(malloc=given))
    monkeypatch.setattr(server, "_Server", listening)
    monkeypatch.setattr(server, "connection_limit", lambda wanted: seen.update(wanted=wanted) or 40)
    options = {
        "pivot": False,
        "database": tmp_path / "a.db",
        "suggestions": tmp_path / "s",
        "keep": tmp_path / "keep",
        "char_limit": 700,
        "protect": True,
    }
    models = Path("de-en"), Path("en-fr")
    assert server.serve(server.ServeOptions(models, port=0, **options)) == 0
    assert sys.getswitchinterval() == pytest.approx(0.001)
    assert seen["malloc"] == {-8: 2, -1: 1 << 17, -3: 1 << 17}
    own = seen["service"]
    assert (own.database.place, own.suggestions, own.keep, own.protect) == (
        tmp_path / "a.db",
        tmp_path / "s",
        ("Hund",),
        True,
    )
    assert own.pool.max_cost == 4 * 700
    assert own.pool.targets("de") == ["en"], "no pivoting"
    assert (seen["wanted"], seen["config"].limit_concurrency) == (None, 41)
    assert server.serve(server.ServeOptions(models, port=0, connections=7)) == 0
    assert (seen["wanted"], seen["service"].pool.targets("de")) == (7, ["en", "fr"])


def stored(path: str, *directions: tuple[str, str]) -> StoredModel:
    return StoredModel(Path(path), "nmt", tuple(Direction(*each) for each in directions), 0, 0, lambda: Path(path))


def test_stored_models_serve_the_pairs_that_no_other_model_serves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaders, loads = list[Any](), list[Any]()
    monkeypatch.setattr(server, "Loader", lambda *_, **own: loaders.append((_[0], own)) or Mock(add=lambda each: each))
    translator = Mock(spec=server.Translator)

    def load(*arguments: Any) -> list[ServedModel]:
        loads.append(arguments)
        return [ServedModel(translator, "en", "de"), ServedModel(translator, "en", "fr")]

    monkeypatch.setattr(server, "load", load)
    own = stored("a", ("en", "de"), ("en", "it")), stored("b", ("it", "en"), ("en", "it"))
    options = server.ServeOptions((Path("m"),), stored=own, idle=7, memory=3, precision="bf16", workers=2)
    models = server._models(options)
    pairs = [(each.translator, each.source, each.target) for each in models]
    assert pairs == [(translator, "en", "de"), (translator, "en", "fr"), (own[0], "en", "it"), (own[1], "it", "en")]
    assert capsys.readouterr().err.splitlines() == [
        "nmt: warning: a does not serve en-de, because another model does",
        "nmt: warning: b does not serve en-it, because another model does",
    ]
    [(load_stored, settings)] = loaders
    assert settings == {"idle": 7, "memory": 3_000_000}
    assert load_stored(own[1]) is translator
    assert loads == [(Path("m"), "bf16", 2), (Path("b"), "bf16", 2)]
    many = [ServedModel(translator, "en", f"l{number}") for number in range(11)]
    assert server._pairs(many) == "11 language pairs"
    assert server._pairs(many[:10]) == ", ".join(f"en-l{number}" for number in range(10))


def test_a_field_with_the_maximum_number_of_characters_is_accepted() -> None:
    for size, fits in ((10_000, True), (10_001, False)):
        for value in ("x" * size, ["x" * 6000, "x" * (size - 6000)]):
            body = json.dumps({"x" * 99: value}).encode()
            if fits:
                assert read(body, "application/json").has("x" * 99)
            else:
                with pytest.raises(Refusal, match=f"request: {'x' * 40} has more than 10,000 characters"):
                    read(body, "application/json")


def read(body: bytes, kind: str, count: int = 5) -> Fields:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "headers": [(b"content-type", kind.encode())], "query_string": b"a=1&b=2"}
    return asyncio.run(fields.read(Request(scope, receive), 1 << 22, count, fields.BodyMemory()))


def part(name: str, value: str, more: str = "") -> str:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'


@pytest.mark.parametrize("charset", ["utf-8", "UTF8", "us-ascii", "Utf-8"])
def test_forms_in_utf_8_are_read(charset: str) -> None:
    """A text may fill the body. A file in a text field is ignored. The fields of the query are read, too."""
    form = part("q", "x" * 1_500_000) + part("b", "3") + part("text", "rot", '; filename="a.txt"') + "--b--\r\n"
    found = read(form.encode(), f"multipart/form-data; boundary=b; charset={charset}")
    assert found.text("q") == "x" * 1_500_000
    assert (found.text("a"), found.text("b"), found.has("text")) == ("1", "3", False)
    repeated = read(b"q=1&q=2&q=3", "application/x-www-form-urlencoded")
    assert repeated.texts("q", 3) == (["1", "2", "3"], True)
    with pytest.raises(Refusal, match="3 texts exceed the limit of 2"):
        repeated.texts("q", 2)


def test_values_of_fields() -> None:
    own = Fields({"a": "9" * 5000, "b": "10", "c": "", "d": None, "e": "x", "f": ["x", 1], "g": 1, "h": " AB "})
    for name in "aeg":
        with pytest.raises(Refusal, match=f"{name} must be a whole number from 2 to 10"):
            own.integer(name, 2, 10)
    assert [own.integer(name, 2, 10) for name in ("b", "c", "d", "z")] == [10, 2, 2, 2]
    assert own.text("z", "d", "e") == "x"
    with pytest.raises(Refusal, match="missing z parameter"):
        own.text("z", "d")
    with pytest.raises(Refusal, match="f must be text"):
        own.texts("f", 2)
    assert own.choice("h", ("x", "ab")) == "ab"
    assert own.choice("c", ("x", "ab")) == own.choice("z", ("x", "ab")) == "x"
    with pytest.raises(Refusal, match=r"e must be ab or 0$"):
        own.choice("e", ("", "ab", "0"))
    with pytest.raises(Refusal, match="f must be a list of objects"):
        own.objects("f", 5)


def test_refusals_name_the_time_to_wait() -> None:
    assert Refusal(503, "x", retry_after=7, close=True).headers == {"Retry-After": "7", "Connection": "close"}
    assert Refusal(400, "x").headers == {}


def test_files_fill_their_memory_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    shelf = files.FileStore()
    keys = [shelf.put("b.txt", bytes(500)) for _ in range(2)]
    assert [len(shelf.get(key)) for key in keys] == [500, 500]
    shelf.put("b.txt", b"x")
    with pytest.raises(Refusal, match="has expired"):
        shelf.get(keys[0])
    assert len(shelf.get(keys[1])) == 500
    shelf.put("b.txt", bytes(499))
    assert len(shelf.get(keys[1])) == 500, "removed files no longer count"


def test_a_file_needs_its_languages(model: Path) -> None:
    with client_of(model) as client:
        for name in PAIR:
            left = {key: value for key, value in PAIR.items() if key != name}
            answer = client.post("/translate_file", data=left, files={"file": ("a.txt", "rot")})
            assert (answer.status_code, answer.json()["error"]) == (400, f"Invalid request: missing {name} parameter")
        marked = client.post("/translate_file", data=PAIR, files={"file": ("A.TXT", b"\xef\xbb\xbf")})
        assert client.get(marked.json()["translatedFileUrl"]).content == b"\xef\xbb\xbf"


def test_a_glossary_keeps_its_other_dictionaries(model: Path) -> None:
    """Changes to one dictionary keep the others in their order. Only API version 3 shows a glossary without any."""
    pairs = [("en", "de"), ("de", "en"), ("fr", "en"), ("de", "fr")]
    models = [ServedModel(Mock(load=(0, 0)), *pair) for pair in pairs]
    pool = service.ModelPool(models, Mock(), queue=5)
    own = [
        {"source_lang": source, "target_lang": target, "entries": f"{source}\t{target}", "entries_format": "tsv"}
        for source, target in pairs
    ]
    with TestClient(create_app(service.Service(pool, Mock()))) as client:
        made = client.post("/v3/glossaries", json={"name": "z", "dictionaries": own[:3]}).json()
        where = f"/v3/glossaries/{made['glossary_id']}"
        second = client.post("/v3/glossaries", json={"name": "a", "dictionaries": own[:1]}).json()
        for shown in (client.get(where).json(), client.get("/v3/glossaries").json()["glossaries"][0]):
            assert [(each["source_lang"], each["target_lang"]) for each in shown["dictionaries"]] == pairs[:3]
        assert [each["name"] for each in client.get("/v3/glossaries").json()["glossaries"]] == ["z", "a"]
        more = [{**each, "entries": "x\ty|z\nw\tv"} for each in own[1:]]
        found = client.patch(where, json={"name": "b", "dictionaries": more}).json()
        assert [each["entry_count"] for each in found["dictionaries"]] == [1, 3, 3, 2]
        assert client.get(f"/v3/glossaries/{second['glossary_id']}").json() == second
        pair = {"source_lang": "de", "target_lang": "en"}
        assert client.get(f"{where}/entries", params=pair).json()["dictionaries"][0]["entries"] == (
            "de\ten\nx\ty|z\nw\tv"
        )
        client.delete(f"{where}/dictionaries", params=pair)
        assert [(each["source_lang"], each["target_lang"]) for each in client.get(where).json()["dictionaries"]] == [
            pairs[0],
            *pairs[2:],
        ]
        only = f"/v3/glossaries/{second['glossary_id']}"
        client.delete(f"{only}/dictionaries", params={"source_lang": "EN", "target_lang": "DE-AT"})
        assert client.get(only).json()["dictionaries"] == []
        assert client.get(only.replace("v3", "v2")).status_code == 404
        listed = client.get("/v3/glossaries").json()["glossaries"]
        assert [len(each["dictionaries"]) for each in listed] == [3, 0]
        assert client.get("/v2/glossaries").json() == {"glossaries": []}
        text = {"text": "x", "source_lang": "en", "target_lang": "de", "glossary_id": second["glossary_id"]}
        answer = client.post("/v2/translate", json=text).json()
        assert answer == {"message": "Invalid request: the glossary is for no languages yet"}
        answer = client.post("/v3/glossaries", json={"name": "c", "dictionaries": own[:1] * 51}).json()
        assert answer == {"message": "Invalid request: dictionaries has more than 50 objects"}
        assert client.post("/v3/glossaries", json={"name": "c", "dictionaries": own[:1] * 50}).status_code == 400
        for path in ("", "/entries", "/dictionaries"):
            method = "PATCH" if not path else "GET" if path == "/entries" else "DELETE"
            body = {"json": {"name": "x"}} if not path else {"params": pair}
            assert client.request(method, f"/v3/glossaries/none{path}", **body).status_code == 404


def test_terms_of_two_lists_are_merged_by_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossaries, "MAX_ENTRIES", 3)
    kept, pair = glossaries.Glossaries(Database()), ("en", "de")

    async def extend(key: str, entries: str) -> str:
        await kept.extend(key, pair, glossaries.parse(entries, "tsv"), Workers())
        return kept.entries(key, *pair)

    key = kept.add("a", {pair: glossaries.parse("the dog!\tx\nb\ty", "tsv")}).key
    assert asyncio.run(extend(key, "the dog !\tz\nc\tw|v")) == "the dog !\tz\nb\ty\nc\tw|v"
    with pytest.raises(Refusal, match="would have more than 3 terms"):
        asyncio.run(extend(key, "d\tx"))
    [[terms, forms]] = kept._database.read("SELECT terms, forms FROM dictionaries")
    assert (terms, forms) == (3, 4)
    with pytest.raises(Refusal, match="no such glossary"):
        asyncio.run(extend("none", "d\tx"))


@pytest.mark.parametrize(
    ("kind", "entries", "line"),
    [("csv", '"a\nb\nc",x\nd,y\ne', 5), ("csv", 'a,"x"y', 1), ("csv", "a,x,en", 1), ("tsv", "a\tx\n \t \nb\ty\nc", 4)],
)
def test_the_line_of_a_malformed_term_is_named(kind: str, entries: str, line: int) -> None:
    with pytest.raises(Refusal, match=f"entries, line {line} is no"):
        glossaries.parse(entries, kind)
    assert len(glossaries.parse("a\tx\n \t \nb\ty", "tsv").terms) == 2, "a line of white space is no term"


def test_keys_are_listed_in_the_order_of_their_creation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Days begin at midnight UTC, in every time zone. A limit of 0 allows nothing."""
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    time.tzset()
    try:
        keys = KeyStore(Database())
        first = keys.find(keys.add("b", per_day=0))
        second = keys.find(keys.add("a", per_minute=0))
        assert first
        assert second
        assert [key.name for key in keys] == ["b", "a"]
        assert keys.charge(first, 0, 86400 * 20_000 - 1) is None
        day, minute = keys.charge(first, 1, 86400.0 * 20_000), keys.charge(second, 1, 86400.0 * 20_000)
        assert day
        assert minute
        assert (day.seconds, minute.seconds) == (86400, 60)
        assert keys.usage() == [("2024-10-03", "b", 1, 0)]
        assert all(key.created.endswith("+00:00") for key in keys)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_usage_shows_a_limit_of_zero_characters(model: Path, tmp_path: Path) -> None:
    own = Database(tmp_path / "a.db")
    headers = {"Authorization": f"Bearer {KeyStore(own).add('a', per_day=0)}"}
    with client_of(model, database=own) as client:
        for method in ("GET", "POST"):
            assert client.request(method, "/v2/usage", headers=headers).json() == {
                "character_count": 0,
                "character_limit": 0,
            }


def test_threads_share_a_connection_and_another_connection_is_independent(tmp_path: Path) -> None:
    own = Database(tmp_path / "a.db")
    keys = KeyStore(own)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(keys.add, map(str, range(40))))
        assert len(list(keys)) == 40
        another = KeyStore(own.another())
        with own.transaction() as connection:
            connection.execute("DELETE FROM keys")
            assert threads.submit(lambda: len(list(another))).result(10) == 40
            waiting = threads.submit(lambda: len(list(keys)))
            time.sleep(0.05)
            assert not waiting.done()
        assert waiting.result(10) == 0
    memory = Database()
    assert memory.another() is memory
    assert own.read("PRAGMA journal_mode") == [("wal",)]
    with own.transaction() as connection:
        assert connection.execute("PRAGMA synchronous") == [(2,)]


def test_an_interrupted_transaction_is_undone(tmp_path: Path) -> None:
    own = Database(tmp_path / "a.db")
    for error in (KeyboardInterrupt, asyncio.CancelledError, ValueError):
        with pytest.raises(error), own.transaction() as connection:  # noqa: PT012
            connection.execute("INSERT INTO glossaries VALUES (?, ?, ?)", ("1", "a", "now"))
            raise error
    assert own.read("SELECT count(*) FROM glossaries") == [(0,)]
    KeyStore(own).add("a")


def test_paths_and_urls_of_databases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [database.is_url(each) for each in ("postgresql://a", "postgres://a", Path("postgres"), "a.db")] == [
        True,
        True,
        False,
        False,
    ]
    monkeypatch.chdir(tmp_path)
    KeyStore(Database(":memory:")).add("a")
    assert (tmp_path / ":memory:").stat().st_size, "a file of this name"


def test_a_request_waits_for_the_database_until_its_deadline_at_most(model: Path, tmp_path: Path) -> None:
    """A request that waits too long for the database gets 504; if the database fails later, requests get 503."""
    own = Database(tmp_path / "a.db")
    new = {"name": "a", "source_lang": "EN", "target_lang": "DE", "entries": "a\tb", "entries_format": "tsv"}
    with client_of(model, database=own, limits=Limits(seconds=0.3)) as client:
        with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            begun = time.monotonic()
            assert client.post("/v2/glossaries", json=new).status_code == 504
            assert time.monotonic() - begun < 2
            other.execute("COMMIT")
    with service_of(model, database=own) as served, TestClient(create_app(served)) as client:
        served.glossaries.all = Mock(side_effect=StorageError("disk is full"))  # type: ignore[method-assign]
        answer = client.get("/v2/glossaries")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


def test_suggestions_are_stored_unescaped_and_their_file_is_closed(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "s"
    own = {"q": "über", "s": "犬", "source": "en", "target": "de"}
    with client_of(model, suggestions=path) as client:
        client.post("/suggest", json=own)
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            client.post("/suggest", json=own)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert path.read_text().splitlines() == [json.dumps(own, ensure_ascii=False)] * 4


def test_a_process_has_low_priority_and_bounded_memory() -> None:
    """It uses the text format of the request. If it dies while idle, a new process takes its place."""

    async def run_all() -> None:
        workers = Workers()
        form = TextFormat("xml", outline=Outline(("b",), ("p",), detect=False), keep=("cat",), protect=False)
        marked = ["<p>a <b>c</b> cat %s</p><p>e</p>"]
        assert await workers.in_process(form, marked) == units_of(form, marked)
        assert units_of(form, marked) != units_of(TextFormat("xml"), marked)
        [(_, process)] = workers._idle
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        assert int(stat[16]) == min(os.nice(0) + 5, 19)
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        [line] = [line for line in limits.splitlines() if line.startswith("Max address space")]
        assert line.split()[3] == str(1 << 30)
        process.kill()
        await process.wait()
        assert await workers.in_process(TextFormat(), ["a"]) == [["a"]]
        await workers.close()

    asyncio.run(run_all())


def test_a_compressed_file_is_unpacked_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = docx(paragraph(run("rot " * 500)))
    assert TextFormat("docx").document(data)
    monkeypatch.setattr(texts, "MAX_UNPACKED", 1000)
    with pytest.raises(DataError):
        TextFormat("docx").document(data)


def test_a_language_without_a_model_is_detected_from_ninety_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classifier gets the first 2,000 characters. It knows the models' languages and languages unlike them."""
    loads = list[Any]()

    class Noted(Classifier):
        def rank(self, text: str) -> list[tuple[str, float]]:
            assert len(text) == 2000
            return super().rank(text)

    sure = 0.9

    def load(languages: Any) -> Any:
        loads.append({*languages})
        time.sleep(0.05)
        return Noted({"fr": sure, "de": 1 - sure, "no": 0.0})

    monkeypatch.setattr(detect, "load_classifier", load)
    detector = detect.Detector(["no"], ["no", "de"])
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(detector.detect, ["x" * 3000] * 2))
    assert found == [[("fr", 90), ("de", 10), ("no", 0)]] * 2
    [asked] = loads
    assert {"no", "de", "fr", "sv"} <= asked
    assert asked & near("no") == {"no"}
    sure = 0.89
    assert detect.Detector(["no"], ["no", "de"]).detect("x" * 2000) == [("de", 11), ("no", 0)]


def test_the_description_has_its_version_and_parameters() -> None:
    described = openapi.specification()
    assert (described["info"]["version"], described["openapi"]) == (nmt_cli.__version__, "3.0.3")
    assert described["security"] == [{}, {"bearer": []}, {"deepl": []}]
    schemes = described["components"]["securitySchemes"]
    assert schemes == {
        "bearer": {"type": "http", "scheme": "bearer"},
        "deepl": {"type": "apiKey", "in": "header", "name": "Authorization"},
    }
    removal = described["paths"]["/v3/glossaries/{key}/dictionaries"]["delete"]
    assert "requestBody" not in removal
    assert [(each["name"], each["in"], each["required"]) for each in removal["parameters"]] == [
        ("key", "path", True),
        ("source_lang", "query", True),
        ("target_lang", "query", True),
    ]
    text = described["paths"]["/translate"]["post"]["requestBody"]
    properties = text["content"]["application/json"]["schema"]["properties"]
    assert text["required"] is True
    assert {name: each["enum"] for name, each in properties.items() if "enum" in each} == {
        "format": ["text", "html"],
        "case": ["auto", "off"],
        "spelling": ["auto", "off"],
    }
    for path, name in (("/translate", "error"), ("/v2/translate", "message"), ("/v3/glossaries", "message")):
        error = described["paths"][path]["post"]["responses"]["default"]["content"]["application/json"]["schema"]
        assert (list(error["properties"]), error["required"]) == ([name], [name])


def test_a_model_that_was_unloaded_once_is_unloaded_again() -> None:
    loader = Loader(lambda _: Mock(), idle=0.05)
    model = loader.add(stored("m", ("en", "de")))

    async def hold() -> None:
        for _ in range(3):
            async with model.held():
                await asyncio.sleep(0.1)
            async with asyncio.timeout(10):
                while model.translator:
                    await asyncio.sleep(0.01)

    asyncio.run(hold())


def test_a_route_through_a_variant_of_english_is_preferred() -> None:
    pairs = [("de", "es"), ("es", "fr"), ("de", "en-GB"), ("en", "fr")]
    pool = service.ModelPool([ServedModel(Mock(), *pair) for pair in pairs], Mock(), queue=1)
    assert pool.find("de", "fr").name == "de-en_GB-fr"
