"""DeepL's glossaries."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tiny_model import make_model

pytest.importorskip("starlette")
from serving import client_of, service_of
from starlette.testclient import TestClient

from nmt_cli.serving import glossaries
from nmt_cli.serving.app import create_app
from nmt_cli.serving.fields import Refusal

NEW = {"name": "ours", "source_lang": "EN", "target_lang": "de", "entries": "rot\tBaum", "entries_format": "tsv"}
TEXT = {"text": ["rot und"], "source_lang": "EN", "target_lang": "DE"}


@pytest.fixture
def client(model: Path) -> Iterator[TestClient]:
    with client_of(model) as client:
        yield client


def create(client: TestClient, **changes: Any) -> str:
    answer = client.post("/v2/glossaries", json={**NEW, **changes})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["glossary_id"])


def test_a_glossary_is_created_shown_used_and_deleted(client: TestClient) -> None:
    key = create(client)
    [listed] = client.get("/v2/glossaries").json()["glossaries"]
    shown = {"glossary_id": key, "name": "ours", "source_lang": "en", "target_lang": "de", "entry_count": 1}
    assert shown.items() <= listed.items()
    assert listed.keys() - shown.keys() == {"ready", "creation_time"}
    assert datetime.fromisoformat(listed["creation_time"]).utcoffset() == timedelta(0)
    assert client.get(f"/v2/glossaries/{key}").json() == listed
    plain = client.post("/v2/translate", json=TEXT).json()["translations"][0]["text"]
    assert "Baum" not in plain.split()
    for more in ({}, {"tag_handling": "html"}):
        answer = client.post("/v2/translate", json={**TEXT, **more, "glossary_id": key}).json()
        assert "Baum" in answer["translations"][0]["text"].split()
    assert client.delete(f"/v2/glossaries/{key}").status_code == 204
    for method, path in (("GET", ""), ("GET", "/entries"), ("DELETE", "")):
        answer = client.request(method, f"/v2/glossaries/{key}{path}")
        assert (answer.status_code, list(answer.json())) == (404, ["message"])
    assert client.post("/v2/translate", json=TEXT).json()["translations"][0]["text"] == plain


def test_a_glossary_is_parsed_again_after_others_were_used(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossaries, "MAX_PARSED_FORMS", 1)
    keys = [create(client, entries=entries) for entries in ("rot\tBaum|Haus\n#1\tHund", "rot\tKatze")]
    for key, forms in [*zip(keys, ({"Baum", "Haus"}, {"Katze"}), strict=True)] * 2:
        answer = client.post("/v2/translate", json={**TEXT, "glossary_id": key}).json()
        assert forms & {*answer["translations"][0]["text"].split()}


@pytest.mark.parametrize(
    ("kind", "entries", "tsv"),
    [
        ("tsv", "rot\tBaum|Haus\r\n\n#1\tHund\n", "rot\tBaum|Haus\n#1\tHund"),
        ("csv", '"rot, und",Baum\r\nHund,Haus,en,de\n', "rot, und\tBaum\nHund\tHaus"),
        ("csv", '\ufeff"rot\n  und ",Baum\r\n,\n', "rot und\tBaum"),
        ("tsv", "\ufeff rot   und\t Baum ", "rot und\tBaum"),
    ],
)
def test_entries_are_returned_as_tsv(client: TestClient, kind: str, entries: str, tsv: str) -> None:
    key = create(client, entries=entries, entries_format=kind)
    answer = client.get(f"/v2/glossaries/{key}/entries", headers={"Accept": "text/tab-separated-values"})
    assert answer.text == tsv
    assert answer.headers["Content-Type"].startswith("text/tab-separated-values")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": " "}, "name must have"),
        ({"name": "x" * 1001}, "name must have 1 to 1,000 characters"),
        ({"entries": None}, "missing entries"),
        ({"entries": ""}, "has no terms"),
        ({"entries": 5}, "entries must be text"),
        ({"entries": "rot"}, "line 1"),
        ({"entries": "rot\tBaum\tany"}, "line 1"),
        ({"entries": "rot\tBaum\n\nrot\tHaus"}, "line 3"),
        ({"entries": 'a,b\n"c', "entries_format": "csv"}, "line 2"),
        ({"entries": '"a\nb",c\nd', "entries_format": "csv"}, "line 3"),
        ({"entries": "a,b\nc,d,en", "entries_format": "csv"}, "line 2"),
        ({"entries": "a,b\nd,", "entries_format": "csv"}, "line 2"),
        ({"entries": "a\tb\ten\tde"}, "line 1"),
        ({"entries": "\n".join(f"a{n}\tb" for n in range(5001))}, "exceeds text limit"),
        ({"entries": "a\t" + "b" * 4999}, "entries (5,001) exceeds text limit (5,000)"),
        ({"entries_format": "xml"}, "entries_format must be"),
        ({"target_lang": "XX"}, "XX is not supported"),
    ],
)
def test_malformed_glossaries_are_refused_with_the_line(client: TestClient, change: dict[str, Any], words: str) -> None:
    answer = client.post("/v2/glossaries", json={**NEW, **change})
    assert (answer.status_code, list(answer.json())) == (400, ["message"])
    assert words in answer.json()["message"]
    assert client.get("/v2/glossaries").json() == {"glossaries": []}


def test_entries_up_to_the_limit_on_characters_are_accepted(client: TestClient) -> None:
    create(client, entries="a\t" + "b" * 4998)


def test_a_glossary_for_another_language_pair_is_refused(client: TestClient, model: Path, tmp_path: Path) -> None:
    key = create(client)
    message = client.post("/v2/translate", json={**TEXT, "glossary_id": key, "source_lang": ""}).json()
    assert message == {"message": "Invalid request: glossary_id needs source_lang"}
    for change in ({"source_lang": None}, {"target_lang": "EN"}, {"glossary_ids": [key]}, {"glossary_id": [key]}):
        answer = client.post("/v2/translate", json={**TEXT, "glossary_id": key, **change})
        assert (answer.status_code, list(answer.json())) == (400, ["message"]), change
    pairs = [("de", "en"), ("en", "fr"), ("fr", "de")]
    others = [make_model(tmp_path / src, f"corpus.src={src}", f"corpus.tgt={tgt}") for src, tgt in pairs]
    with client_of(model, *others) as several:
        key = create(several)
        for src, tgt in pairs:
            fields = {**TEXT, "source_lang": src, "target_lang": tgt, "glossary_id": key}
            assert "for en to de" in several.post("/v2/translate", json=fields).json()["message"]


def test_a_database_holds_as_many_glossaries_as_weblate_creates(model: Path) -> None:
    """Weblate deletes its oldest glossary when it has 999. A request for each would take seconds."""
    with service_of(model) as service, TestClient(create_app(service)) as client:
        for _ in range(999):
            service.glossaries.add("ours", {("en", "de"): glossaries.parse("rot\tBaum", "tsv")})
        create(client)
        assert client.post("/v2/glossaries", json=NEW).status_code == 456
        assert len(client.get("/v2/glossaries").json()["glossaries"]) == 1000


def test_number_and_size_of_glossaries_are_bounded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [f"a{number}\tb" for number in range(5001)]
    assert len(glossaries.parse("\n\n".join(entries[1:]), "tsv").terms) == 5000
    with pytest.raises(Refusal, match="more than 5,000 terms"):
        glossaries.parse("\n".join(entries), "tsv")
    monkeypatch.setattr(glossaries, "MAX_GLOSSARIES", 3)
    keys = [create(client) for _ in range(3)]
    assert client.post("/v2/glossaries", json=NEW).status_code == 456
    client.delete(f"/v2/glossaries/{keys[0]}")
    create(client)
