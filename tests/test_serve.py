"""nmt serve as its clients see it: LibreTranslate's contract, our own routes, limits and bad input."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_model import make_model

pytest.importorskip("starlette")
from starlette.testclient import TestClient

from nmt_cli import Translator
from nmt_cli.serving.app import create_app
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.pool import Pool, load
from nmt_cli.serving.service import Limits, Service

TEXTS = ["der Hund geht.", "rot und", "die Katze ist nicht rot, das Haus"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def pool(model: Path) -> Iterator[Pool]:
    with Pool(load(model, "fp32", 2), Metrics(), queue=100, timeout=60) as pool:
        yield pool


@pytest.fixture(scope="module")
def client(pool: Pool) -> Iterator[TestClient]:
    service = Service(pool, pool.metrics, Limits(5000, 50))
    with TestClient(create_app(service)) as client:
        yield client


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[Translator]:
    with Translator(model, precision="fp32", workers=1) as translator:
        yield translator


def said(translator: Translator, *lines: str, **options: Any) -> list[list[str]]:
    return [[each.text for each in line.hypotheses] for line in translator.translate(lines, **options)]


def test_a_text_is_translated_as_the_command_does_it_line_by_line(client: TestClient, alone: Translator) -> None:
    [[hund], [rot]] = said(alone, *TEXTS[:2])
    answer = client.post("/translate", json={"q": f"{TEXTS[0]}\n\r\n{TEXTS[1]}\n", "source": "en", "target": "de"})
    assert (answer.status_code, answer.json()) == (200, {"translatedText": f"{hund}\n\r\n{rot}\n"})


def test_json_forms_and_query_strings_say_the_same(client: TestClient, alone: Translator) -> None:
    expected = [best for [best] in said(alone, *TEXTS)]
    fields: dict[str, Any] = {"q": TEXTS, "source": "en", "target": "de"}
    multipart = [("q", (None, text)) for text in TEXTS] + [("source", (None, "en")), ("target", (None, "de"))]
    asked = [{"json": fields}, {"data": fields}, {"params": fields}, {"files": multipart}]
    assert [client.post("/translate", **ask).json() for ask in asked] == [{"translatedText": expected}] * 4
    asked[:3] = [{kind: {**fields, "q": TEXTS[0]}} for kind in ("json", "data", "params")]
    for ask in asked[:3]:
        assert client.post("/translate", **ask).json() == {"translatedText": expected[0]}


def test_languages_health_and_settings(client: TestClient) -> None:
    assert client.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/frontend/settings").json()["charLimit"] == 5000


def test_sentences_come_with_alternatives_and_aligned_words(client: TestClient, alone: Translator) -> None:
    text = "  der Hund geht. rot und\n\ndas Haus! "
    answer = client.post("/sentences", json={"q": text, "source": "en", "target": "de", "alternatives": 2}).json()
    found = answer["sentences"]
    assert "".join(each["before"] + each["source"] for each in found) + answer["after"] == text
    assert [each["source"] for each in found] == ["der Hund geht.", "rot und", "das Haus!"]
    texts = [[each["text"] for each in sentence["hypotheses"]] for sentence in found]
    assert texts == said(alone, "der Hund geht.", "rot und", "das Haus!", n_best=3)
    for sentence in found:
        for hypothesis in sentence["hypotheses"]:
            words = len(sentence["source"].split()), len(hypothesis["text"].split())
            assert all(0 <= src < words[0] and 0 <= tgt < words[1] for src, tgt in hypothesis["alignment"])
