"""Keys, usage and glossaries in the database: names, dates, sums and limits of several keys and glossaries."""

import contextlib
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
from serving import client_of, service_of
from starlette.testclient import TestClient
from tiny_model import make_model

from nmt_cli.serving import glossaries, key_store
from nmt_cli.serving.app import create_app
from nmt_cli.serving.database import Database
from nmt_cli.serving.fields import Fields, Refusal
from nmt_cli.serving.key_store import ApiKey, KeyStore
from nmt_cli.serving.service import Limits
from nmt_cli.serving.sqlite_connection import APPLICATION
from nmt_cli.system.errors import DataError, OutputError, UsageError


def added(keys: KeyStore, name: str, **limits: int) -> ApiKey:
    found = keys.find(keys.add(name, **limits))
    assert found
    return found


@pytest.mark.parametrize("pragma", ["user_version = 1", "application_id = 7"])
def test_an_empty_database_of_another_program_is_refused(tmp_path: Path, pragma: str) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute(f"PRAGMA {pragma}")
    with pytest.raises(DataError, match=r"other\.db belongs to another program"):
        Database(tmp_path / "other.db")
    (tmp_path / "empty.db").touch()
    assert Database(tmp_path / "empty.db").read("PRAGMA application_id") == [(APPLICATION,)]


def test_keys_are_on_the_disk_at_once_and_usage_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request does not wait until usage is on the disk, but a new key is on the disk before it is shown."""
    database = Database(tmp_path / "a.db")
    seen = list[bool]()
    transaction = database.transaction

    def noted(*, durable: bool = True, **more: Any) -> Any:
        seen.append(durable)
        return transaction(durable=durable, **more)

    monkeypatch.setattr(database, "transaction", noted)
    keys = KeyStore(database)
    found = added(keys, "a")
    keys.charge(found, 1)
    keys.revoke("a")
    assert seen == [True, False, True]
    for durable, level in ((True, 2), (False, 1)):
        with transaction(durable=durable) as connection:
            assert connection.execute("PRAGMA synchronous") == [(level,)]


def test_names_of_keys() -> None:
    keys = KeyStore(Database())
    keys.add("  a \n b ")
    keys.add("x" * 100)
    assert [key.name for key in keys] == ["a b", "x" * 100]
    for name in ("", " ", "x" * 101, "a\u200bb"):
        with pytest.raises(UsageError, match="must have 1 to 100 printable characters"):
            keys.add(name)
    keys.revoke("a b")
    with pytest.raises(OutputError, match="a key named a b already exists"):
        keys.add("a b")


def test_a_key_that_is_revoked_again_keeps_its_date(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = KeyStore(Database())
    keys.add("a")
    keys.add("b", per_minute=3, per_day=9)
    for day in ("2026-01-02", "2026-03-04"):
        monkeypatch.setattr(key_store, "_now", lambda day=day: day)
        keys.revoke("a")
    keys.limit("a", 5, None)
    assert [(key.revoked, key.per_minute, key.per_day) for key in keys] == [("2026-01-02", 5, None), (None, 3, 9)]


def test_characters_of_today_are_those_of_one_key_and_one_day() -> None:
    keys = KeyStore(Database())
    first, second, third = (added(keys, name) for name in ("b", "a", "c"))
    now = time.time()
    for key, characters, when in ((first, 5, now - 86400), (first, 7, now), (first, 4, now), (second, 100, now)):
        assert keys.charge(key, characters, when) is None
    assert [keys.characters_today(key) for key in (first, second, third)] == [11, 100, 0]
    assert [row[1:] for row in keys.usage()] == [("a", 1, 100), ("b", 2, 11), ("b", 1, 5)]


def test_each_key_has_its_own_limits_and_they_start_again() -> None:
    keys = KeyStore(Database())
    first, second = (added(keys, name, per_minute=1, per_day=10) for name in "ab")
    day = 86400 * 20_000.0
    for key in (first, second):
        assert keys.charge(key, 10, day) is None
        exceeded = keys.charge(key, 0, day + 59)
        assert exceeded
        assert (exceeded.seconds, exceeded.of_day) == (1, False)
        exceeded = keys.charge(key, 1, day + 61)
        assert exceeded
        assert exceeded.of_day
        assert keys.charge(key, 0, day + 61) is None, "zero characters exceed no limit"
        assert keys.charge(key, 10, day + 86400) is None


DICTIONARY = {"source_lang": "en", "target_lang": "de", "entries_format": "tsv"}


def test_entries_of_all_dictionaries_of_a_request_are_added_up(model: Path) -> None:
    with service_of(model, limits=Limits(40, 50)) as service, TestClient(create_app(service)) as client:
        entries = "rot\t" + "x" * 26
        body = {"name": "a", "dictionaries": [{**DICTIONARY, "entries": entries}]}
        assert client.post("/v3/glossaries", json=body).status_code == 201
        body["dictionaries"] = [{**DICTIONARY, "entries": entries}] * 2
        answer = client.post("/v3/glossaries", json=body)
        assert answer.json() == {"message": "Invalid request: entries (60) exceeds text limit (40)"}


def test_a_request_has_a_limited_number_of_dictionaries() -> None:
    fields = Fields({"dictionaries": [{}, {}]})
    assert len(fields.objects("dictionaries", 2)) == 2
    with pytest.raises(Refusal, match="dictionaries has more than 1 objects"):
        fields.objects("dictionaries", 1)


def test_a_glossary_is_renamed_extended_and_replaced_in_parts(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    back = {"source_lang": "DE", "target_lang": "EN-us", "entries_format": "csv", "entries": "Hund,dog"}
    with client_of(model, make_model(tmp_path, "corpus.src=de", "corpus.tgt=en")) as client:
        first = {**DICTIONARY, "entries": "rot\tBaum\nund\tKatze"}
        made = client.post("/v3/glossaries", json={"name": "a", "dictionaries": [first]}).json()
        where = f"/v3/glossaries/{made['glossary_id']}"
        renamed = client.patch(where, json={"name": " b "}).json()
        assert renamed == {**made, "name": "b"}
        extended = client.patch(where, json={"dictionaries": [back]}).json()
        assert extended["name"] == "b"
        assert [tuple(each.values()) for each in extended["dictionaries"]] == [("en", "de", 2), ("de", "en", 1)]
        monkeypatch.setattr(glossaries, "MAX_ENTRIES", 3)
        more = {**DICTIONARY, "entries": "rot\tHaus\nein\tTag"}
        assert client.patch(where, json={"dictionaries": [more]}).json()["dictionaries"][0]["entry_count"] == 3
        answer = client.patch(where, json={"name": "c", "dictionaries": [{**DICTIONARY, "entries": "mit\tHaus"}]})
        assert answer.json() == {"message": "Invalid request: the dictionary would have more than 3 terms"}
        assert client.get(where).json()["name"] == "b"
        assert (
            client.delete(f"{where}/dictionaries", params={"source_lang": "de-AT", "target_lang": "en"}).status_code
            == 204
        )
        put = client.put(f"{where}/dictionaries", json={**back, "entries": "Hund,dog\nrot,red"}).json()
        assert put == {"source_lang": "de", "target_lang": "en", "entry_count": 2}
        assert [each["entry_count"] for each in client.get(where).json()["dictionaries"]] == [3, 2]
        assert client.put("/v3/glossaries/none/dictionaries", json=back).status_code == 404
        entries = client.get(f"{where}/entries", params={"source_lang": "DE", "target_lang": "EN-GB"}).json()
        assert entries["dictionaries"] == [
            {"source_lang": "de", "target_lang": "en", "entries": "Hund\tdog\nrot\tred", "entries_format": "tsv"}
        ]
        for name in ("", "  ", "x" * 1001):
            assert client.patch(where, json={"name": name}).status_code == 400


def test_usage_without_a_limit(model: Path, tmp_path: Path) -> None:
    """With a key, usage is that of the key today. Without a key, it is that of all texts since the server's start."""
    with contextlib.closing(Database(tmp_path / "a.db")) as database:
        keys = KeyStore(database)
        first, second = keys.add("a"), keys.add("b", per_day=50)
        headers: list[dict[str, Any]] = [{"Authorization": f"Bearer {key}"} for key in (first, second)]
        text = {"text": ["rot"], "source_lang": "EN", "target_lang": "DE"}
        with service_of(model, database=database) as service, TestClient(create_app(service)) as client:
            for number, header in enumerate(headers):
                for _ in range(number + 1):
                    assert client.post("/v2/translate", json=text, headers=header).status_code == 200
            usages = [client.get("/v2/usage", headers=header).json() for header in headers]
            assert usages == [
                {"character_count": 3, "character_limit": 10**12},
                {"character_count": 6, "character_limit": 50},
            ]
            assert service.characters == 9
