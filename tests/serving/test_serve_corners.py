"""Cases in which two readings of a rule would differ: times, counts, roundings, races and calls of other modules."""

import asyncio
import contextlib
import io
import json
import math
import re
import signal
import sqlite3
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY, AsyncMock, Mock, call

import pytest
import uvicorn

pytest.importorskip("starlette")
from serving import DAY, PAIR, TEXTS, client_of, service_of
from starlette.testclient import TestClient
from test_serve_documents import HTML, finished, upload
from test_serve_steps import Step, stored, translated, words_of
from test_serve_totals import Classifier

from nmt_cli.documents.placement import Aligned
from nmt_cli.serving import (
    deepl,
    detect,
    glossaries,
    on_demand,
    server,
    sqlite_connection,
    text_process,
    work,
)
from nmt_cli.serving.app import create_app
from nmt_cli.serving.database import Database
from nmt_cli.serving.deepl_documents import Job, Jobs
from nmt_cli.serving.fields import Fields, Refusal
from nmt_cli.serving.glossaries import Glossaries, parse
from nmt_cli.serving.key_store import KeyStore
from nmt_cli.serving.model_routes import ServedModel, routes_of
from nmt_cli.serving.on_demand import Loader
from nmt_cli.serving.origins import access_for
from nmt_cli.serving.route_runner import _join
from nmt_cli.serving.service import _by_rank
from nmt_cli.serving.work import Workers
from nmt_cli.system.errors import BusyError, OutputError, StorageError, UsageError
from nmt_cli.translation.options import SearchOptions


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"status": "queued"}, {"seconds_remaining": 1}),
        ({"status": "translating", "characters": 7}, {"seconds_remaining": 1}),
        ({"status": "done", "characters": 7}, {"billed_characters": 7}),
        ({"status": "error", "error": "no", "characters": 7}, {"error_message": "no"}),
    ],
)
def test_the_status_of_a_document(values: dict[str, Any], shown: dict[str, Any]) -> None:
    job = Job("text", ".txt", ("en", "de"), b"x", **values)
    assert job.summary() == {"document_id": job.id, "status": values["status"], **shown}
    if job.waits:
        with pytest.raises(Refusal, match="is being translated") as caught:
            Jobs().take(job)
        assert (caught.value.status, caught.value.headers) == (503, {"Retry-After": "1"})


def test_a_document_in_the_target_language_is_returned_unchanged(client: TestClient) -> None:
    made = upload(client, source_lang="DE", target_lang="de-AT").json()
    assert finished(client, made)["billed_characters"] == len(HTML)
    key = {"document_key": made["document_key"]}
    assert client.post(f"/v2/document/{made['document_id']}/result", json=key).text == HTML
    answer = upload(client, source_lang="DE", target_lang="EN")
    assert answer.json() == {"message": "EN is not available as a target language from DE"}


@pytest.mark.parametrize(("path", "fields"), [("/translate_file", PAIR), ("/v2/document", {"target_lang": "DE"})])
def test_an_upload_without_a_required_part_is_refused(client: TestClient, path: str, fields: dict[str, str]) -> None:
    for left in ("", *fields, "file"):
        data = {key: value for key, value in fields.items() if key != left}
        answer = client.post(path, data=data, files=None if left == "file" else {"file": ("a.txt", "rot")})
        assert answer.status_code == (400 if left else 200), left


TEXT: dict[str, Any] = {"type": "string"}
FILE: dict[str, Any] = {"type": "string", "format": "binary"}
FIELDS = {  # * marks the fields that a request must have
    "post /translate": "q* source* target* format alternatives case spelling",
    "post /detect": "q*",
    "post /translate_file": "file* source* target*",
    "post /suggest": "q* s* source* target*",
    "post /sentences": "q* source* target* alternatives",
    "post /v2/translate": "text* source_lang target_lang* glossary_id tag_handling preserve_formatting",
    "get /v2/languages": "type",
    "post /v2/glossaries": "name* source_lang* target_lang* entries* entries_format",
    "post /v3/glossaries": "name* dictionaries*",
    "patch /v3/glossaries/{key}": "name dictionaries",
    "get /v3/glossaries/{key}/entries": "source_lang* target_lang*",
    "put /v3/glossaries/{key}/dictionaries": "source_lang* target_lang* entries* entries_format",
    "delete /v3/glossaries/{key}/dictionaries": "source_lang* target_lang*",
    "post /v2/document": "file* source_lang target_lang*",
    "post /v2/document/{id}": "document_key*",
    "post /v2/document/{id}/result": "document_key*",
}
KINDS: dict[str, dict[str, Any]] = {
    "file": FILE,
    "alternatives": {"type": "integer"},
    "preserve_formatting": {"type": "boolean"},
    "format": TEXT | {"enum": ["text", "html"]},
    "case": TEXT | {"enum": ["auto", "off"]},
    "spelling": TEXT | {"enum": ["auto", "off"]},
    "tag_handling": TEXT | {"enum": ["html", "xml"]},
    "entries_format": TEXT | {"enum": ["tsv", "csv"]},
    "type": TEXT | {"enum": ["source", "target"]},
}


DICTIONARY = "source_lang", "target_lang", "entries", "entries_format"


def test_every_field_is_described_with_its_kind(client: TestClient) -> None:
    found = dict[str, str]()
    for path, methods in client.get("/spec").json()["paths"].items():
        for method, operation in methods.items():
            parameters = [each for each in operation.get("parameters", ()) if each["in"] == "query"]
            fields = {each["name"]: each["schema"] for each in parameters}
            required = {each["name"] for each in parameters if each["required"]}
            for content in operation.get("requestBody", {}).get("content", {}).values():
                fields = content["schema"]["properties"]
                required = {*content["schema"].get("required", ())}
            if fields:
                found[f"{method} {path}"] = " ".join(name + "*" * (name in required) for name in fields)
            for name, schema in fields.items():
                if name == "dictionaries":
                    assert schema["items"]["properties"] == {each: KINDS.get(each, TEXT) for each in DICTIONARY}
                elif (path, name) in (("/translate", "q"), ("/detect", "q"), ("/v2/translate", "text")):
                    assert [each["type"] for each in schema["oneOf"]] == ["string", "array"]
                else:
                    assert schema == KINDS.get(name, TEXT), (path, name)
    assert found == FIELDS


def test_names_of_tags_have_no_white_space_and_are_not_empty() -> None:
    for value in (" a ,, b,", ["a", " b ", ",", ""]):
        assert deepl._names(Fields({"x": value}), "x", 9) == ("a", "b")
    assert deepl._names(Fields({}), "x", 9) == ()


def test_a_list_of_objects_holds_nothing_else() -> None:
    for wrong in ([{}, 1], [1, {}], {}, "x", None):
        with pytest.raises(Refusal, match="d must be a list of objects"):
            Fields({"d": wrong}).objects("d", 5)
    assert Fields({"d": []}).objects("d", 5) == []


def test_confidence_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities = {"nb": 0.9177, "de": 0.0566, "en": 0.0257}
    monkeypatch.setattr(detect, "load_classifier", lambda _: Classifier(probabilities))
    detector = detect.Detector(["en"], ["en", "de"])
    assert detector.detect("hund") == [("nb", 92), ("de", 6), ("en", 3)]


@pytest.mark.parametrize(
    ("change", "merged"),
    [
        (lambda kept, key: kept.remove_dictionary(key, "en", "de"), "b\ty"),
        (lambda kept, key: kept.replace(key, ("en", "de"), parse("c\tz", "tsv")), "c\tz\nb\ty"),
    ],
)
def test_a_dictionary_that_is_deleted_or_changed_during_a_merge_is_merged_again(change: Any, merged: str) -> None:
    kept, pair, meanwhile = Glossaries(Database()), ("en", "de"), [change]
    key = kept.add("a", {pair: parse("a\tx", "tsv")}).key

    class Slow(Workers):
        async def in_thread(self, function: Any, *arguments: Any, **options: Any) -> Any:
            result = await super().in_thread(function, *arguments, **options)
            while meanwhile and function is glossaries._merged:
                meanwhile.pop()(kept, key)
            return result

    asyncio.run(kept.extend(key, pair, parse("b\ty", "tsv"), Slow()))
    assert (kept.entries(key, *pair), meanwhile) == (merged, [])


def test_two_parsed_dictionaries_may_be_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dictionary that is in use stays parsed, however large it is."""
    monkeypatch.setattr(glossaries, "MAX_PARSED_FORMS", 3)
    again = list[str]()
    monkeypatch.setattr(glossaries, "parse", lambda entries, kind: again.append(entries[0]) or parse(entries, kind))

    async def run() -> None:
        kept, workers = Glossaries(Database()), Workers()
        for name in "aabba":
            await kept.terms(f"{name}\tx|y", workers)
        for _ in range(2):
            await kept.terms("c\tv|w|x|y|z", workers)

    asyncio.run(run())
    assert again == ["a", "b", "a", "c"]


def test_the_time_until_a_limit_ends() -> None:
    keys = KeyStore(Database())
    found = keys.find(keys.add("a", per_minute=1, per_day=5))
    assert found
    assert keys.charge(found, 1, DAY) is None
    for hours, seconds, day, minute in ((0, 1, 86399, 59), (5, 62.9, 68338, 58), (23, 3599.5, 1, 1)):
        now = DAY + 3600 * hours + seconds
        exceeded = keys.charge(found, 6, now) if seconds > 60 else None
        assert exceeded is None or (exceeded.seconds, exceeded.of_day) == (day, True)
        keys.charge(found, 0, now)
        exceeded = keys.charge(found, 0, now)
        assert exceeded
        assert (exceeded.seconds, exceeded.of_day) == (minute, False)
    [key] = keys
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", key.created)


def names(*pairs: str) -> list[str]:
    return [route.name for route in routes_of([ServedModel(Mock(), *pair.split(">")) for pair in pairs], pivot=True)
            .values()]  # fmt: skip


def test_routes_join_any_models_but_not_variants_of_one_language() -> None:
    assert names("pt>en", "en>pt-BR") == ["pt-en", "en-pt_BR"]
    assert names("zh-Hans>en", "en>zh-Hant") == ["zh_Hans-en", "en-zh_Hant", "zh_Hans-en-zh_Hant"]
    found = names("a>b", "a>c", "b>d", "c>e", "d>f", "e>g")
    assert {"a-b-d-f", "a-c-e-g", "b-d-f", "c-e-g"} <= {*found}
    assert len(found) == 6 + 6


def test_a_loaded_model_makes_room_before_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "_free", lambda: None)
    loader = Loader(lambda _: Mock(), idle=math.inf, memory=0, resident=lambda: idle)
    idle, models = 0, [loader.add(stored(number)) for number in range(2)]

    async def run() -> None:
        nonlocal idle
        async with models[0].held():
            pass
        loader._resident = lambda: sum(bool(each.translator) for each in models) - 1
        async with models[1].held(), asyncio.timeout(10):
            while models[0].translator:
                await asyncio.sleep(0.01)
            assert models[1].translator

    asyncio.run(run())


def test_a_model_is_unloaded_when_its_last_use_is_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer that fires early waits only for the remaining time."""
    now, waits = 100.0, list[float]()
    monkeypatch.setattr(on_demand, "_free", lambda: None)
    monkeypatch.setattr(on_demand.time, "monotonic", lambda: now)
    loader = Loader(lambda _: Mock(), idle=10)
    model = loader.add(stored())

    async def run() -> None:
        nonlocal now
        loop = asyncio.get_running_loop()
        real = loop.call_later
        called = list[Any]()

        def later(delay: float, function: Any, *arguments: Any) -> Any:
            if function != loader._check_idle:
                return real(delay, function, *arguments)
            waits.append(delay)
            called.append(lambda: function(*arguments))
            return Mock()

        monkeypatch.setattr(loop, "call_later", later)
        async with model.held():
            pass
        now = 107
        async with model.held():
            pass
        now = 110
        called.pop()()
        now = 117
        called.pop()()
        assert waits == [10, 7]
        await asyncio.gather(*loader._tasks)
        assert model.translator is None

    asyncio.run(run())


def test_the_address_of_a_server_may_be_in_capitals() -> None:
    access = access_for("Server.LAN", [], [])
    assert access.has_host("server.lan:5000")
    assert access.has_host("SERVER.LAN")
    named = access_for("127.0.0.1", ["my_service-1"], ["http://my_service-1:65535"])
    assert named.has_host("my_service-1:65535")
    assert named.origins == ("http://my_service-1:65535",)
    for hosts, origins in ((["a", "b c"], []), ([], ["http://a", "null"])):
        with pytest.raises(UsageError, match=r"b c is not a host name|null is not an origin"):
            access_for("127.0.0.1", hosts, origins)


def test_texts_with_empty_lines_have_alternatives(client: TestClient) -> None:
    """A line with fewer translations repeats its last one."""
    lines = TEXTS[:2]
    each = [client.post("/translate", json={"q": line, **PAIR, "alternatives": 3}).json() for line in lines]
    ranks = [[one["translatedText"], *one["alternatives"]] for one in each]
    padded = [[texts[min(rank, len(texts) - 1)] for texts in ranks] for rank in range(4)]
    expected = list(dict.fromkeys(f"\n{one}\n\n{two}" for one, two in padded))
    found = client.post("/translate", json={"q": f"\n{lines[0]}\n\n{lines[1]}", **PAIR, "alternatives": 3}).json()
    assert [found["translatedText"], *found["alternatives"]] == expected
    sentences = [[Aligned(each, []) for each in letters] for letters in ("ab", "cde")]
    joined = [each.text for each in _join([(0, 1), (2, 3)], sentences)]
    assert joined == ["a c", "b d", "b e"]
    units = [[Aligned(each, []) for each in letters] for letters in ("ab", "c", "def")]
    by_rank = _by_rank([["x"], [], ["y", "z"]], units, 3)
    assert [["".join(each.text for each in rank) for rank in text] for text in by_rank] == [
        ["a", "b", "b"],
        [""],
        ["cd", "ce", "cf"],
    ]


def test_words_of_one_sentence_are_aligned_across_two_models() -> None:
    route = [Step("de", "en"), Step("en", "fr")]
    [ranks] = translated(route, ["aa bbb"], SearchOptions(n_best=1, alignments=True))
    [word_pairs] = [words_of(each.text, each.links, "aa bbb") for each in ranks]
    assert word_pairs == [(word, word) for word in ranks[0].text.split(" ")]
    assert route[1].asked[0][0] == "bbb aa"


def test_a_database_that_stays_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds when the database is opened, and later."""
    monkeypatch.setattr(sqlite_connection, "BUSY_SECONDS", 0.05)
    path = tmp_path / "a.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        begun = time.monotonic()
        with pytest.raises(OutputError, match=rf"cannot open the database {path}: database is locked"):
            Database(path)
        assert time.monotonic() - begun < 5
        other.execute("ROLLBACK")
        database = Database(path)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BusyError, match=rf"the database {path} cannot be used: database is locked\. Try again$"):
            KeyStore(database).add("a")
    with pytest.raises(StorageError, match=rf"{path} cannot be used: no such table: x\. If the disk is full, free"):
        database.read("SELECT 1 FROM x")


def test_a_process_for_texts_answers_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has low priority, ignores signals, ends with the server, and refuses text that exceeds its limited memory."""
    seen, output = Mock(), io.StringIO()
    form = {"kind": "text", "outline": {"splitting": [], "joining": [], "detect": True}}
    calls = [{"format": form, "texts": texts, "results": None} for texts in (["a\nb"], ["c"])]
    lines = [json.dumps(each).encode() + b"\n" for each in calls]
    monkeypatch.setattr(text_process.os, "nice", seen.nice)
    monkeypatch.setattr(text_process.os, "getppid", lambda: 77)
    monkeypatch.setattr(text_process.signal, "signal", seen.signal)
    monkeypatch.setattr(text_process, "end_with_parent", seen.end_with_parent)
    monkeypatch.setattr(text_process, "limit_memory", seen.limit_memory)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=lines))
    monkeypatch.setattr(sys, "stdout", output)
    text_process.main()
    ignored = [call.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)]
    assert seen.mock_calls == [call.nice(5), *ignored, call.end_with_parent(77), call.limit_memory(1 << 30)]
    assert [json.loads(line) for line in output.getvalue().splitlines()] == [
        {"result": [["a", "b"]]},
        {"result": [["c"]]},
    ]
    monkeypatch.setattr(text_process, "units_of", Mock(side_effect=MemoryError))
    assert text_process._answer(calls[0]) == {"refusal": "the input needs too much memory. Split it into smaller parts"}


def test_a_process_inherits_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It imports this package first, and then modules from the user's PYTHONPATH."""
    started = AsyncMock()
    monkeypatch.setattr(work.asyncio, "create_subprocess_exec", started)
    monkeypatch.setenv("SOME_VARIABLE", "x")
    for given, paths in (("/a:/b", f"{work.IMPORT_ROOT}:/a:/b"), ("", str(work.IMPORT_ROOT))):
        monkeypatch.setenv("PYTHONPATH", given)
        asyncio.run(work._start())
        arguments, options = started.call_args
        assert arguments == (sys.executable, "-P", "-m", "nmt_cli.serving.text_process")
        assert (options["env"]["PYTHONPATH"], options["env"]["SOME_VARIABLE"]) == (paths, "x")
        assert options["limit"] == 1 << 28


def test_closing_ends_all_work_and_all_processes() -> None:
    ended = list[str]()

    async def forever(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(name)

    async def run() -> None:
        workers = Workers()
        for name in "ab":
            workers.start(forever(name))
        await asyncio.sleep(0)
        processes: Any = [Mock(returncode=code, wait=AsyncMock()) for code in (None, 0, None, None)]
        workers._idle = [(asyncio.get_running_loop(), each) for each in processes]
        async with asyncio.timeout(10):
            await workers.close()
        assert [each.kill.call_count for each in processes] == [1, 0, 1, 1]
        assert [each.wait.call_count for each in processes] == [1, 0, 1, 1]

    asyncio.run(run())
    assert sorted(ended) == ["a", "b"]


@pytest.mark.parametrize("limit", [1, 512, 5000])
def test_a_server_accepts_as_many_connections_as_it_is_given(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    listeners, port = Mock(), Mock()
    monkeypatch.setattr(uvicorn.Server, "startup", AsyncMock())
    monkeypatch.setattr(server, "Listener", listeners)
    one = server._Server(uvicorn.Config("-"), Mock(), "ready", port, limit)
    asyncio.run(one.startup())
    listeners.assert_called_once_with(port, limit, ANY)


def test_a_server_stops_in_this_order(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Mock(close=AsyncMock(), shutdown=AsyncMock(), sleep=AsyncMock())
    monkeypatch.setattr(uvicorn.Server, "shutdown", steps.shutdown)
    monkeypatch.setattr(server.asyncio, "sleep", steps.sleep)
    service: Any = SimpleNamespace(pool=SimpleNamespace(workers=SimpleNamespace(close=steps.close)))
    one = server._Server(uvicorn.Config("-"), service, "ready", Mock(), 1)
    one._listener = Mock(close=steps.stop_listening)
    asyncio.run(one.shutdown([]))
    assert steps.mock_calls == [call.stop_listening(), call.sleep(0.1), call.shutdown([]), call.close()]


def test_sentences_by_default(model: Path) -> None:
    """Each has one translation, with aligned words even if placeholders are not protected. Empty text has none."""
    with client_of(model, protect=False) as client:
        found = client.post("/sentences", json={"q": "rot. %s und", **PAIR}).json()["sentences"]
        assert [(each["source"], len(each["hypotheses"])) for each in found] == [("rot.", 1), ("%s und", 1)]
        assert all(each["hypotheses"][0]["alignment"] for each in found)
        for text in ("", " \n"):
            answer = client.post("/sentences", json={"q": text, **PAIR})
            assert (answer.status_code, answer.json()) == (200, {"sentences": [], "after": text})
    with client_of(model, keys=[b"one"]) as client:
        message = "An API key is needed, as api_key or in the Authorization header"
        assert client.post("/sentences", json={"q": "rot", **PAIR}).json() == {"error": message}


def test_refused_requests_are_logged_and_counted(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This includes requests with a foreign host or origin. The log has text counts of accepted requests."""
    with service_of(model) as service, TestClient(create_app(service, access_for("127.0.0.1", [], []))) as client:
        client.base_url = "http://127.0.0.1:5000"
        client.get("/health", headers={"Host": "evil.example"})
        client.post("/sentences", json={"q": "rot und", **PAIR}, headers={"Origin": "https://evil.example"})
        client.post("/sentences", json={"q": "rot und", **PAIR})
        page = client.get("/metrics").text
    lines = [line.rpartition(" ms")[0].rpartition(" ")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "GET /health 421",
        "POST /sentences 403",
        "POST /sentences 200 1 text 7 characters",
        "GET /metrics 200",
    ]
    for code, route in (("421", "/health"), ("403", "/sentences"), ("200", "/sentences")):
        assert f'nmt_requests_total{{code="{code}",route="{route}"}} 1.0' in page
