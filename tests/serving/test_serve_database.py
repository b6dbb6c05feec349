"""The database: it outlives restarts and kills, servers share it, and it stores no text of a request."""

import contextlib
import json
import random
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from tiny_model import make_model
from typer.testing import CliRunner

pytest.importorskip("starlette")
from serving import DAY, PAIR, server, service_of
from starlette.testclient import TestClient
from texts import ROOT

from nmt_cli.commands.app import app as command_line
from nmt_cli.serving import database as database_module
from nmt_cli.serving import service as service_module
from nmt_cli.serving import sqlite_connection
from nmt_cli.serving.app import create_app
from nmt_cli.serving.database import MIGRATIONS, Database, is_url
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.key_store import KeyStore
from nmt_cli.system.errors import BusyError, DataError, MissingError, OutputError, StorageError, UsageError

NEW = {"name": "ours", "source_lang": "EN", "target_lang": "DE", "entries": "rot\tBaum", "entries_format": "tsv"}
TEXT = {"text": ["rot und"], "source_lang": "EN", "target_lang": "DE"}


@contextlib.contextmanager
def client_of(model: Path, place: Path | str, **options: Any) -> Any:
    with contextlib.closing(Database(place)) as database, service_of(model, database=database, **options) as service:
        with TestClient(create_app(service)) as client:
            yield client


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "nmt.db"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_glossaries_outlive_the_server(model: Path, place: str) -> None:
    with client_of(model, place) as client:
        made = client.post("/v2/glossaries", json=NEW).json()
        dropped = client.post("/v2/glossaries", json=NEW).json()
        assert client.delete(f"/v2/glossaries/{dropped['glossary_id']}").status_code == 204
    with client_of(model, place) as client:
        assert client.get("/v2/glossaries").json() == {"glossaries": [made]}
        answer = client.post("/v2/translate", json={**TEXT, "glossary_id": made["glossary_id"]}).json()
        assert "Baum" in answer["translations"][0]["text"].split()


def test_a_key_is_needed_once_a_key_exists_and_revoked_keys_are_refused(
    model: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "KEY_SECONDS", 0)
    keys = KeyStore(Database(place))
    with client_of(model, place) as client:
        assert client.post("/translate", json={"q": "rot", **PAIR}).status_code == 200
        key = keys.add("weblate")
        assert client.post("/translate", json={"q": "rot", **PAIR}).status_code == 400
        assert client.post("/v2/translate", json=TEXT).status_code == 403
        for fields in ({"api_key": key}, {"apiKey": key}):
            assert client.post("/translate", json={"q": "rot", **PAIR, **fields}).status_code == 200
        assert (
            client.post("/v2/translate", json=TEXT, headers={"Authorization": f"DeepL-Auth-Key {key}"}).status_code
            == 200
        )
        assert client.get("/metrics", headers=bearer(key)).status_code == 200
        for wrong in ("nmt_x", key[:-1], key.lower()):
            assert client.get("/metrics", headers=bearer(wrong)).json() == {"error": "Invalid API key"}
        assert client.get("/frontend/settings").json()["keyRequired"] is True
        keys.revoke("weblate")
        assert client.get("/metrics", headers=bearer(key)).status_code == 403
        assert client.get("/metrics").status_code == 400, "a server whose keys are all revoked serves nobody"
    with client_of(model, place, keys=[b"of-a-file"]) as client:
        assert client.get("/metrics", headers=bearer("of-a-file")).status_code == 200


def test_a_revoked_key_is_refused_within_a_second(model: Path, place: str) -> None:
    """Requests with the same key share a search, so that they do not wait for one another."""
    keys = KeyStore(Database(place))
    key = keys.add("a")
    with client_of(model, place) as client:
        searched = []
        find = client.app.state.service.api_keys.find
        client.app.state.service.api_keys.find = lambda given: searched.append(given) or find(given)
        for _ in range(20):
            assert client.get("/metrics", headers=bearer(key)).status_code == 200
        assert len(searched) < 10
        keys.revoke("a")
        time.sleep(1.1)
        assert client.get("/metrics", headers=bearer(key)).status_code == 403


def test_limits_of_a_key(place: str) -> None:
    """Minutes and days are those of the clock. A refused request costs nothing."""
    database = Database(place)
    keys = KeyStore(database)
    found = keys.find(keys.add("a", per_minute=2, per_day=100))
    assert found
    assert keys.charge(found, 40, DAY) is None
    assert keys.charge(found, 40, DAY + 30) is None
    exceeded = keys.charge(found, 1, DAY + 45)
    assert exceeded
    assert (exceeded.text, exceeded.seconds) == ("The key's limit of 2 requests per minute is reached", 15)
    exceeded = keys.charge(found, 21, DAY + 60)
    assert exceeded
    assert (exceeded.text, exceeded.seconds) == (
        "The request would exceed the key's limit of 100 characters per day",
        86340,
    )
    assert keys.charge(found, 20, DAY + 60) is None
    assert keys.charge(found, 100, DAY + 86400) is None
    other = keys.find(keys.add("b"))
    assert other
    assert keys.charge(other, 10**9, DAY) is None
    keys.limit("a", None, None)
    assert keys.charge(found, 10**6, DAY) is None
    first, second = "2024-10-04", "2024-10-05"
    assert keys.usage() == [(second, "a", 1, 100), (first, "a", 4, 1_000_100), (first, "b", 1, 10**9)]


def test_limits_are_answered_in_each_dialect(model: Path, place: str) -> None:
    keys = KeyStore(Database(place))
    key = keys.add("a", per_day=10)
    with client_of(model, place) as client:
        headers = bearer(key)
        assert client.post("/translate", json={"q": "rot rot", **PAIR}, headers=headers).status_code == 200
        for route, fields, status, name in (
            ("/translate", {"q": "rot rot", **PAIR}, 429, "error"),
            ("/sentences", {"q": "rot rot", **PAIR}, 429, "error"),
            ("/detect", {"q": "rot rot"}, 429, "error"),
            ("/v2/translate", TEXT, 456, "message"),
        ):
            answer = client.post(route, json=fields, headers=headers)
            assert (answer.status_code, answer.json()) == (
                status, {name: "The request would exceed the key's limit of 10 characters per day"},
            )  # fmt: skip
            assert 0 < int(answer.headers["Retry-After"]) <= 86400
        usage = client.get("/v2/usage", headers=headers).json()
        assert usage == {"character_count": 7, "character_limit": 10}
        keys.limit("a", per_minute=1, per_day=None)
        answer = client.post("/v2/translate", json=TEXT, headers=headers)
        assert (answer.status_code, "1 requests per minute" in answer.json()["message"]) == (429, True)


@pytest.mark.parametrize("route", ["/translate", "/sentences", "/translate_file"])
def test_a_refused_request_costs_nothing(model: Path, place: str, route: str) -> None:
    key = KeyStore(Database(place)).add("a", per_day=100)

    def send(client: Any, target: str) -> int:
        fields = {"source": "en", "target": target}
        if route == "/translate_file":
            files = {"file": ("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\nrot und\n")}
            return int(client.post(route, data=fields, files=files, headers=bearer(key)).status_code)
        return int(client.post(route, json={"q": "rot und", **fields}, headers=bearer(key)).status_code)

    with client_of(model, place) as client:
        pool = client.app.state.service.pool
        assert send(client, "xx") == 400
        pool.texts = pool.queue
        assert send(client, "de") == 429
        pool.texts = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                pool.workers, "in_process", AsyncMock(side_effect=Refusal(503, "the process that reads failed"))
            )
            marked = {"q": "<b>rot</b> " * 200, "format": "html", **PAIR}
            assert client.post("/translate", json=marked, headers=bearer(key)).status_code == 503
        assert KeyStore(Database(place)).usage() == []
        assert send(client, "de") == 200
        assert KeyStore(Database(place)).usage()[0][2:] == (1, 7)


def test_several_servers_count_together(model: Path, place: str) -> None:
    key = KeyStore(Database(place)).add("a", per_minute=None, per_day=150)
    with client_of(model, place) as one, client_of(model, place) as two, ThreadPoolExecutor(8) as threads:
        body = {"q": "rot", **PAIR}
        asked = [
            threads.submit(client.post, "/translate", json=body, headers=bearer(key)) for client in (one, two) * 40
        ]
        statuses = [each.result().status_code for each in asked]
        assert (statuses.count(200), statuses.count(429)) == (50, 30)
        made = one.post("/v2/glossaries", json=NEW, headers=bearer(key)).json()
        assert two.get("/v2/glossaries", headers=bearer(key)).json() == {"glossaries": [made]}


def test_the_database_has_no_text_and_no_key(model: Path, path: Path) -> None:
    key = KeyStore(Database(path)).add("a")
    with client_of(model, path) as client:
        for route, fields in (("/translate", {"q": "Geheimnis", **PAIR}), ("/detect", {"q": "Geheimnis"})):
            assert client.post(route, json=fields, headers=bearer(key)).status_code == 200
        assert path.stat().st_mode & 0o777 == 0o600
        stored = b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert len(stored) > 4096
        for secret in ("Geheimnis", key, key[4:]):
            assert secret.encode() not in stored


def test_requests_for_a_locked_database_get_503(
    model: Path, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_SECONDS", 0.05)
    with client_of(model, path) as client:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for _ in range(3):
                answer = client.post("/v2/glossaries", json=NEW)
                assert answer.status_code == 503
                assert answer.json() == {"message": "The server's database cannot be used: try again later"}
            assert client.post("/translate", json={"q": "rot", **PAIR}).status_code == 200
            assert capsys.readouterr().err.count("warning") == 1
        assert client.post("/v2/glossaries", json=NEW).status_code == 201


def test_the_server_answers_while_it_waits_for_the_database(model: Path, path: Path) -> None:
    with client_of(model, path) as client, ThreadPoolExecutor(1) as threads:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = threads.submit(client.post, "/v2/glossaries", json=NEW)
            time.sleep(0.2)
            begun = time.monotonic()
            assert client.get("/health").status_code == 200
            assert time.monotonic() - begun < 1
            assert not waiting.done()
            other.execute("COMMIT")
        assert waiting.result().status_code == 201


def test_requests_do_not_wait_for_the_glossaries_of_others(model: Path, place: str) -> None:
    key = KeyStore(Database(place)).add("a")
    gate = threading.Event()
    with client_of(model, place) as client:
        service = client.app.state.service
        waiting = [client.portal.start_task_soon(service.stored, gate.wait, 30) for _ in range(3)]
        assert client.post("/translate", json={"q": "rot", **PAIR}, headers=bearer(key)).status_code == 200
        assert not any(each.done() for each in waiting)
        gate.set()
        assert all(each.result() for each in waiting)


def test_terms_that_are_added_at_the_same_time_are_all_kept(model: Path, place: str) -> None:
    dictionary = {"source_lang": "en", "target_lang": "de", "entries_format": "tsv"}
    with client_of(model, place) as one, client_of(model, place) as two, ThreadPoolExecutor(8) as threads:
        first = {**dictionary, "entries": "der\tdie"}
        made = one.post("/v3/glossaries", json={"name": "a", "dictionaries": [first]}).json()
        bodies = [{"dictionaries": [{**dictionary, "entries": f"rot {number}\tBaum"}]} for number in range(20)]
        where = f"/v3/glossaries/{made['glossary_id']}"
        asked = [threads.submit((one, two)[number % 2].patch, where, json=body) for number, body in enumerate(bodies)]
        assert {each.result().status_code for each in asked} == {200}
        assert two.get(where).json()["dictionaries"][0]["entry_count"] == 21


def test_the_schema_is_upgraded_and_a_newer_one_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = KeyStore(Database(path))
    key = keys.add("a")
    monkeypatch.setattr(
        database_module, "MIGRATIONS", (*MIGRATIONS, "ALTER TABLE keys ADD COLUMN note TEXT; CREATE TABLE x (y)")
    )
    upgraded = Database(path)
    assert upgraded.read("PRAGMA user_version") == [(len(MIGRATIONS) + 1,)]
    assert KeyStore(upgraded).find(key)
    monkeypatch.undo()
    with pytest.raises(DataError, match="a newer nmt wrote"):
        Database(path)
    monkeypatch.setattr(database_module, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE a (b); CREATE TABLE a (b)"))
    broken = path.with_name("broken.db")
    with pytest.raises(StorageError, match="table a already exists"):
        Database(broken)
    monkeypatch.undo()
    assert Database(broken).read("SELECT count(*) FROM keys") == [(0,)], "an upgrade is done in full or not at all"


def test_files_of_other_programs_are_refused_and_left_alone(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"x" * 5000)
    with pytest.raises(DataError, match="not an SQLite database"):
        Database(path)
    assert path.read_bytes() == b"x" * 5000
    other = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE notes (text)")
    with pytest.raises(DataError, match="another program"):
        Database(other)
    for wrong in (tmp_path, tmp_path / "nowhere" / "x"):
        with pytest.raises(OutputError, match="cannot open the database"):
            Database(wrong)


def test_processes_may_create_a_database_at_the_same_time(place: str) -> None:
    script = (
        "import sys; from nmt_cli.serving.database import Database\n"
        "from nmt_cli.serving.key_store import KeyStore\n"
        "keys = KeyStore(Database(sys.argv[1]))\n"
        "for number in range(10): keys.add(f'{sys.argv[2]} {number}')"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, place, str(one)], cwd=ROOT) for one in range(4)]
    assert [each.wait(60) for each in running] == [0] * 4
    assert len(list(KeyStore(Database(place)))) == 40


WRITER = """
import sys
from nmt_cli.corpus.terms import Terms
from nmt_cli.serving.database import Database
from nmt_cli.serving.glossaries import Glossaries
from nmt_cli.serving.key_store import KeyStore
database = Database(sys.argv[1])
keys, glossaries = KeyStore(database), Glossaries(database)
for number in range(10**6):
    name = f"{sys.argv[2]}-{number}"
    key = keys.add(name)
    print("key", name, key, flush=True)
    if number % 3 == 0:
        keys.revoke(name)
        print("revoked", name, key, flush=True)
    glossary = glossaries.add(name, {("en", "de"): Terms.parse([f"the {n}\\tdas {n}" for n in range(200)])})
    print("glossary", name, glossary.key, flush=True)
    if number > 20:
        break_ = glossaries.all()[0]
        glossaries.remove(break_.key)
        print("removed", name, break_.key, flush=True)
"""


def test_confirmed_changes_survive_sigkill(place: str) -> None:
    """tests/benchmarks/database_kills.py does this 200 times, with a server.

    A killed process may have revoked the key of its last line, or removed one glossary, without printing it.
    """
    draw = random.Random(3)
    confirmed, last_lines = list[list[str]](), list[list[str]]()
    for run in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, place, str(run)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout
        lines = [writer.stdout.readline() for _ in range(draw.randrange(5, 60))]
        time.sleep(0.02 * draw.random())
        writer.kill()
        output, _ = writer.communicate(timeout=60)
        whole = "".join(lines) + output[: output.rfind("\n") + 1]
        confirmed += [line.split() for line in whole.strip().split("\n")]
        last_lines.append(confirmed[-1])
        database = Database(place)
        if not is_url(place):
            assert database.read("PRAGMA integrity_check") == [("ok",)]
        keys = KeyStore(database)
        revoked = {key for what, _, key in confirmed if what == "revoked"}
        lost = {key for what, _, key in confirmed if what == "key" and not keys.find(key)} - revoked
        assert lost <= {key for what, _, key in last_lines if what == "key"}
        assert not any(map(keys.find, revoked))
        removed = {key for what, _, key in confirmed if what == "removed"}
        stored = {row[0] for row in database.read("SELECT glossary FROM dictionaries WHERE terms = 200")}
        added = {key for what, _, key in confirmed if what == "glossary"}
        assert len(added - removed - stored) <= sum(what == "glossary" for what, _, _ in last_lines)
        assert not removed & stored
        database.close()
    assert len(confirmed) > 20


def test_nmt_keys(path: Path) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(command_line, ["keys", *words, "--database", str(path)])

    assert isinstance(run("list").exception, MissingError)
    key = run("add", "weblate", "--per-minute", "60", "--per-day", "100000").stdout.strip()
    assert len(key) == 47
    assert KeyStore(Database(path)).find(key)
    assert isinstance(run("add", "weblate").exception, OutputError)
    assert isinstance(run("add", "\x1b[1m").exception, UsageError)
    assert isinstance(run("revoke", "x").exception, MissingError)
    assert "weblate\t60 requests/minute\t100,000 characters/day\tcreated " in run("list").stdout
    assert run("limit", "weblate", "--per-minute", "5").exit_code == 0
    assert "weblate\t5 requests/minute\t100,000 characters/day" in run("list").stdout
    found = KeyStore(Database(path)).find(key)
    assert found
    KeyStore(Database(path)).charge(found, 12, DAY)
    assert run("usage").stdout == "2024-10-04\tweblate\t1 requests\t12 characters\n"
    assert run("revoke", "weblate").exit_code == 0
    assert "\trevoked 20" in run("list").stdout
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite_connection, "BUSY_SECONDS", 0.05)
            assert isinstance(run("add", "late").exception, BusyError | OutputError)


def test_a_limit_that_is_not_given_stays(place: str) -> None:
    """If no limit is given, both are removed."""
    with contextlib.closing(Database(place)) as database:
        keys = KeyStore(database)
        keys.add("limited", per_minute=3, per_day=9)
        for given, limits in (((5, None), (5, 9)), ((None, 0), (5, 0)), ((None, None), (None, None))):
            key = keys.limit("limited", *given)
            assert (key.per_minute, key.per_day) == limits


def test_public_addresses_need_a_stored_key(model: Path, path: Path) -> None:
    key = KeyStore(Database(path)).add("a")
    with server(str(model), "--host", "0.0.0.0", "--database", str(path)) as (_, address):
        address = address.replace("0.0.0.0", "127.0.0.1")
        body = json.dumps({"q": "rot", **PAIR}).encode()
        for headers, status in (({}, 400), (bearer("x"), 403)):
            post = urllib.request.Request(f"{address}/translate", body, {"Content-Type": "application/json", **headers})
            with pytest.raises(urllib.error.HTTPError, match=str(status)):
                urllib.request.urlopen(post, timeout=60)
        post = urllib.request.Request(f"{address}/translate", body, {"Content-Type": "application/json", **bearer(key)})
        assert urllib.request.urlopen(post, timeout=60).status == 200


def test_glossaries_of_version_3_have_a_dictionary_for_each_pair(tmp_path: Path, model: Path) -> None:
    back = make_model(tmp_path, "corpus.src=de", "corpus.tgt=en", seed=2)
    with service_of(model, back) as service, TestClient(create_app(service)) as client:
        there = {"source_lang": "en", "target_lang": "DE", "entries": "rot\tBaum\nund\tKatze", "entries_format": "tsv"}
        back_again = {"source_lang": "de", "target_lang": "en", "entries": "rot,Hund", "entries_format": "csv"}
        answer = client.post("/v3/glossaries", json={"name": "a", "dictionaries": [there, back_again]})
        assert answer.status_code == 201
        made = answer.json()
        assert [each["entry_count"] for each in made["dictionaries"]] == [2, 1]
        path = f"/v3/glossaries/{made['glossary_id']}"
        assert client.get(path).json() == made
        assert client.get("/v3/glossaries").json() == {"glossaries": [made]}
        assert client.get("/v2/glossaries").json() == {"glossaries": []}
        assert client.get(path.replace("v3", "v2")).status_code == 404
        for pair, form in (
            ({"source_lang": "EN", "target_lang": "DE"}, "Baum"),
            ({"source_lang": "DE", "target_lang": "EN"}, "Hund"),
        ):
            fields = {"text": ["rot"], **pair, "glossary_id": made["glossary_id"]}
            assert form in client.post("/v2/translate", json=fields).json()["translations"][0]["text"].split()
        more = {**there, "entries": "rot\tHaus\ndas\tdie"}
        changed = client.patch(path, json={"name": "b", "dictionaries": [more]}).json()
        assert (changed["name"], changed["dictionaries"][0]["entry_count"]) == ("b", 3)
        query = {"source_lang": "EN", "target_lang": "de"}
        [entries] = client.get(f"{path}/entries", params=query).json()["dictionaries"]
        assert {*entries["entries"].split("\n")} == {"rot\tHaus", "und\tKatze", "das\tdie"}
        replaced = client.put(f"{path}/dictionaries", json={**there, "entries": "rot\tTag"}).json()
        assert replaced == {"source_lang": "en", "target_lang": "de", "entry_count": 1}
        assert client.delete(f"{path}/dictionaries", params=query).status_code == 204
        assert client.delete(f"{path}/dictionaries", params=query).status_code == 404
        assert len(client.get("/v2/glossaries").json()["glossaries"]) == 1
        wrong = [
            ({"name": "x", "dictionaries": value}, 400)
            for value in (None, "x", [1], [{}], [there, there], [there] * 51)
        ]
        for fields, status in wrong:
            answer = client.post("/v3/glossaries", json=fields)
            assert (answer.status_code, list(answer.json())) == (status, ["message"]), fields
        for method, where in (("GET", ""), ("DELETE", ""), ("PATCH", "")):
            assert client.request(method, f"/v3/glossaries/none{where}", json={"name": "x"}).status_code == 404
        assert client.delete(path).status_code == 204
        assert client.get("/v3/glossaries").json() == {"glossaries": []}


def test_a_limit_that_sqlite_cannot_store_is_refused(tmp_path: Path) -> None:
    words = ["keys", "add", "a", "--database", str(tmp_path / "a.db"), "--per-day"]
    assert CliRunner().invoke(command_line, [*words, str(2**63)]).exit_code == 2
    assert CliRunner().invoke(command_line, [*words, str(2**63 - 1)]).exit_code == 0
