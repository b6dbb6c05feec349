"""The database in PostgreSQL: locks, a server that restarts, TLS, and addresses whose password is never shown.

`test_serve_database.py` has the tests of keys and glossaries that both kinds of database must pass.
"""

import contextlib
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PASSWORD, PostgresServer
from typer.testing import CliRunner

pytest.importorskip("starlette")
pytest.importorskip("pg8000")
from pg8000 import native
from serving import PAIR, service_of
from starlette.testclient import TestClient

from nmt_cli.commands.app import app as command_line
from nmt_cli.serving import database as database_module
from nmt_cli.serving.app import create_app
from nmt_cli.serving.database import MIGRATIONS, Database
from nmt_cli.serving.key_store import KeyStore
from nmt_cli.serving.postgres_connection import PostgresConnection, parse
from nmt_cli.system.errors import BusyError, DataError, OutputError, StorageError, UsageError

NEW = {"name": "ours", "source_lang": "EN", "target_lang": "DE", "entries": "rot\tBaum", "entries_format": "tsv"}


@pytest.fixture
def tls_url(postgres: PostgresServer) -> str:
    return postgres.new()


@pytest.fixture
def url(tls_url: str) -> str:
    return f"{tls_url}?sslmode=disable"  # each connection with TLS takes 50 ms of CPU


@contextlib.contextmanager
def client_of(model: Path, url: str) -> Any:
    with contextlib.closing(Database(url)) as database, service_of(model, database=database) as service:
        with TestClient(create_app(service)) as client:
            yield client


def test_the_server_survives_a_restart_of_the_database(model: Path, postgres: PostgresServer, tls_url: str) -> None:
    """While the database is down, requests that need it get 503. Other requests are answered."""
    with client_of(model, tls_url) as client:
        made = client.post("/v2/glossaries", json=NEW).json()
        postgres.stop()
        try:
            assert client.get("/v2/glossaries").status_code == 503
            assert client.post("/v2/glossaries", json=NEW).status_code == 503
            assert client.get("/health").status_code == 200
        finally:
            postgres.start()
        assert client.get("/v2/glossaries").json() == {"glossaries": [made]}
        assert client.post("/translate", json={"q": "rot", **PAIR}).status_code == 200
        postgres.stop()
        postgres.start()
        assert client.post("/v2/glossaries", json=NEW).status_code == 201, (
            "no request fails because an idle connection was lost"
        )


def test_a_transaction_whose_connection_is_lost_stores_nothing(postgres: PostgresServer, tls_url: str) -> None:
    database = Database(tls_url)
    KeyStore(database).add("a")
    with pytest.raises(StorageError, match="cannot be used"), database.transaction() as connection:  # noqa: PT012
        connection.execute("UPDATE keys SET name = ?", ("b",))
        postgres.stop()
        postgres.start()
        connection.execute("UPDATE keys SET created = ?", ("never",))
    assert [(key.name, key.created != "never") for key in KeyStore(database)] == [("a", True)]


def test_writers_wait_only_for_writers_of_the_same_part(url: str) -> None:
    database, other = Database(url), KeyStore(Database(url))
    impatient = Database(url)
    impatient.read("SET statement_timeout = '300ms'")
    keys = [other.find(other.add(name)) for name in "ab"]
    assert keys[0]
    assert keys[1]
    with database.transaction(part=keys[0].id):
        assert other.charge(keys[1], 5) is None
        with pytest.raises(BusyError, match="Try again"):
            KeyStore(impatient).charge(keys[0], 5)
        assert len(list(KeyStore(impatient))) == 2, "its transaction has ended"
    assert other.charge(keys[0], 7) is None
    assert [row[1:] for row in other.usage()] == [("a", 1, 7), ("b", 1, 5)]


def test_a_writer_gets_the_lock_that_another_releases(url: str) -> None:
    first, second = Database(url), Database(url)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with first.transaction() as connection:
            connection.execute("INSERT INTO glossaries VALUES (?, ?, ?)", ("1", "a", "now"))
            held.set()
            release.wait(20)

    with ThreadPoolExecutor(2) as threads:
        holding = threads.submit(hold)
        assert held.wait(20)
        waiting = threads.submit(KeyStore(second).add, "late")
        time.sleep(0.2)
        assert not waiting.done()
        release.set()
        holding.result()
        assert waiting.result()
    assert second.read("SELECT id FROM glossaries") == [("1",)]


def test_the_lock_of_a_machine_that_vanishes_is_freed(url: str) -> None:
    """The machine's connection stays open, but PostgreSQL ends the transaction."""
    vanished = Database(url)
    assert vanished.read("SHOW statement_timeout") == [("5s",)]
    assert vanished.read("SHOW idle_in_transaction_session_timeout") == [("10s",)]
    vanished.read("SET idle_in_transaction_session_timeout = '500ms'")
    with pytest.raises(StorageError), vanished.transaction() as connection:  # noqa: PT012
        connection.execute("INSERT INTO glossaries VALUES (?, ?, ?)", ("1", "a", "now"))
        assert KeyStore(Database(url)).add("b"), "the lock is freed within BUSY_SECONDS"
        connection.execute("INSERT INTO glossaries VALUES (?, ?, ?)", ("2", "a", "now"))
    assert vanished.read("SELECT id FROM glossaries") == []


def test_the_schema_is_upgraded_and_others_are_refused(
    postgres: PostgresServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = KeyStore(Database(url)).add("a")
    monkeypatch.setattr(database_module, "MIGRATIONS", (*MIGRATIONS, "ALTER TABLE keys ADD COLUMN note TEXT"))
    upgraded = Database(url)
    assert upgraded.read("SELECT version FROM nmt_schema") == [(len(MIGRATIONS) + 1,)]
    assert KeyStore(upgraded).find(key)
    assert upgraded.read("SELECT note FROM keys") == [(None,)]
    monkeypatch.undo()
    with pytest.raises(DataError, match="a newer nmt wrote"):
        Database(url)
    other = postgres.new()
    postgres.execute("CREATE TABLE notes (text TEXT)", other.rpartition("/")[2])
    with pytest.raises(DataError, match="another program"):
        Database(f"{other}?sslmode=disable")
    broken = f"{postgres.new()}?sslmode=disable"
    monkeypatch.setattr(database_module, "MIGRATIONS", (*MIGRATIONS, "CREATE TABLE a (b INT); CREATE TABLE a (b INT)"))
    with pytest.raises(StorageError, match='"a" already exists'):
        Database(broken)
    monkeypatch.undo()
    assert Database(broken).read("SELECT count(*) FROM keys") == [(0,)], "an upgrade is done in full or not at all"


def test_ids_that_no_glossary_can_have(model: Path, url: str) -> None:
    with client_of(model, url) as client:
        for name in ("%00", "%EF%BF%BE", "x" * 3000, "%27%3B--"):
            for method in ("GET", "DELETE"):
                assert client.request(method, f"/v2/glossaries/{name}").status_code == 404, name


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("postgresql://u:secret@h:x/n", "malformed URL"),
        ("postgresql://u:secret@[h/n", "malformed URL"),
        ("postgresql://u:secret@h/n?sslmode", "malformed URL"),
        ("postgresql://:secret@h/n", "needs a user, a host and a database name"),
        ("postgresql://u:secret@/n", "needs a user, a host and a database name"),
        ("postgresql://u:secret@h/", "needs a user, a host and a database name"),
        ("postgresql:u:secret@h/n", "needs a user, a host and a database name"),
        ("postgresql://u:se#cret@h/n", "malformed URL"),
        ("postgresql://u:secret@h/n#1", "needs a user, a host and a database name"),
        ("postgresql://u:secret@h/n?connect_timeout=3", "unknown option 'connect_timeout'"),
        ("postgresql://u:secret@h/n?sslmode=allow", "must be one of disable, prefer"),
        ("postgresql://u:secret@h/n?sslmode=require&sslrootcert=/nowhere", "cannot read the certificate /nowhere "),
    ],
)
def test_wrong_urls_are_refused_without_their_password(wrong: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Database(wrong)
    assert "cret" not in str(caught.value)


def test_a_url_is_divided_into_its_parts() -> None:
    name, arguments = parse("postgres://u%40x:p%2Fw@db.example.org/a%20b?sslmode=disable")
    assert name == "a b at db.example.org:5432"
    assert (arguments["user"], arguments["password"], arguments["host"]) == ("u@x", "p/w", "db.example.org")
    assert (arguments["port"], arguments["database"], arguments["ssl_context"]) == (5432, "a b", False)
    name, arguments = parse("postgresql://u@[::1]:6000/n")
    assert (name, arguments["host"], arguments["password"]) == ("n at ::1:6000", "::1", None)
    assert arguments["ssl_context"] is None


def test_a_server_that_refuses_or_is_unreachable_is_named(postgres: PostgresServer, tls_url: str) -> None:
    wrong = tls_url.replace("p%40ss", "p%40st")
    away = tls_url.replace(f":{postgres.port}/", ":1/")
    for place, message in (
        (wrong, "password authentication failed"),
        (away, "Connection refused"),
        (f"{tls_url}x", "does not exist"),
    ):
        with pytest.raises(OutputError, match=message) as caught:
            Database(place)
        assert "127.0.0.1" in str(caught.value)
        assert PASSWORD not in str(caught.value)
        assert "p%40s" not in str(caught.value)


def test_tls(postgres: PostgresServer, tls_url: str, tmp_path: Path) -> None:
    certificate = postgres.certificate
    other = tmp_path / "other.crt"
    other.write_text("nothing")
    foreign = tmp_path / "foreign.crt"
    files = "-keyout", str(tmp_path / "foreign.key"), "-out", str(foreign)
    certify = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=foreign", *files]
    subprocess.run(certify, check=True, capture_output=True)
    used = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    for mode, encrypted in (
        ("disable", False),
        ("prefer", True),
        ("require", True),
        (f"verify-full&sslrootcert={certificate}", True),
        (f"verify-ca&sslrootcert={certificate}", True),
    ):
        assert Database(f"{tls_url}?sslmode={mode}").read(used) == [(encrypted,)], mode
    local = tls_url.replace("127.0.0.1", "localhost")  # a name that the certificate lacks
    for address in (
        f"{tls_url}?sslmode=verify-full",
        f"{tls_url}?sslmode=verify-ca",
        f"{local}?sslmode=verify-full&sslrootcert={certificate}",
        f"{tls_url}?sslmode=require&sslrootcert={foreign}",  # verifies, as in libpq
    ):
        with pytest.raises(OutputError, match="certificate verify failed"):
            Database(address)
    assert Database(f"{local}?sslmode=verify-ca&sslrootcert={certificate}").read(used) == [(True,)]
    with pytest.raises(UsageError, match="cannot read the certificate"):
        Database(f"{tls_url}?sslmode=verify-ca&sslrootcert={other}")


def test_a_transaction_waits_for_the_disk_if_it_must(url: str) -> None:
    """Numbers of parts are reduced modulo 2^31, because PostgreSQL's locks accept no larger numbers."""
    database = Database(url)
    for durable, part, level in ((True, 2**40 + 5, "on"), (False, 3, "off"), (True, 0, "on")):
        with database.transaction(durable=durable, part=part) as connection:
            assert connection.execute("SHOW synchronous_commit") == [(level,)]
            held = "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            assert connection.execute(held) == [(part % 2**31,)]


@pytest.mark.parametrize("code", ["57P01", "57P03", "08006", "25P03", "", "42P01", "40P01"])
def test_a_lost_connection_is_opened_again(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Outside of a transaction, the statement is then repeated. Errors of the statement itself are raised."""
    asked, error = list[str](), native.DatabaseError({"C": code, "M": "no"}) if code else native.InterfaceError("no")

    class Server:
        """A server that fails to run its first statement."""

        def __init__(self, **_: Any) -> None:
            asked.append("connect")

        def run(self, statement: str) -> list[Any]:
            asked.append(statement)
            if asked.count("SELECT 1") == 1 and statement == "SELECT 1":
                raise error
            return [[1]]

        def close(self) -> None:
            asked.append("close")

    monkeypatch.setattr(native, "Connection", Server)
    connection = PostgresConnection("postgresql://u@h/n")
    if code[:2] in ("57", "08", "25", ""):
        assert connection.execute("SELECT 1") == [(1,)]
        assert asked == ["connect", "SELECT 1", "close", "connect", "SELECT 1"]
    else:
        kind, advice = (BusyError, "Try again") if code == "40P01" else (StorageError, "Check the database server")
        message = rf"the database n at h:5432 cannot be used: no\. {advice}"
        with pytest.raises(kind, match=message), connection.errors():
            connection.execute("SELECT 1")
        assert asked == ["connect", "SELECT 1"]


@pytest.mark.parametrize("code", ["53300", "57P03", "55P03", "28P01"])
def test_a_server_without_a_free_connection_is_busy(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    def refuse(**_: Any) -> None:
        raise native.DatabaseError({"C": code, "M": "sorry."}) from ConnectionResetError("reset")

    monkeypatch.setattr(native, "Connection", refuse)
    with pytest.raises(OutputError if code == "28P01" else BusyError) as caught:
        PostgresConnection("postgresql://u@h/n")
    assert str(caught.value) == "cannot open the database n at h:5432: sorry: reset"


def test_after_a_rollback_a_lost_connection_is_opened_again(postgres: PostgresServer, tls_url: str) -> None:
    database = Database(tls_url)
    with pytest.raises(KeyError), database.transaction():
        raise KeyError
    postgres.stop()
    postgres.start()
    assert list(KeyStore(database)) == []


def test_commands_read_the_address_from_the_environment(url: str) -> None:
    def run(*words: str) -> Any:
        return CliRunner().invoke(command_line, ["keys", *words], env={"NMT_DATABASE": url})

    key = run("add", "weblate", "--per-minute", "60").stdout.strip()
    assert KeyStore(Database(url)).find(key)
    assert "weblate\t60 requests/minute" in run("list").stdout
    assert isinstance(run("add", "weblate").exception, OutputError)
    assert run("add", "most", "--per-day", str(2**63 - 1)).exit_code == 0
    found = KeyStore(Database(url)).find(key)
    assert found
    KeyStore(Database(url)).charge(found, 12, 20_000 * 24 * 3600.0)
    assert run("usage").stdout == "2024-10-04\tweblate\t1 requests\t12 characters\n"
