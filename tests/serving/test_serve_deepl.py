"""DeepL's routes for texts, languages and usage."""

import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tiny_model import make_model

pytest.importorskip("starlette")
from serving import TEXTS, client_of, hypotheses
from starlette.testclient import TestClient

from nmt_cli import Translator
from nmt_cli.documents.document import Outline
from nmt_cli.serving.app import create_app
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.pool import ModelPool, ServedModel
from nmt_cli.serving.service import Service
from nmt_cli.serving.texts import TextFormat

MARKED = 'der <b>Hund</b> <x id="3"></x> geht'


@pytest.fixture(scope="module")
def best(model: Path) -> dict[str, str]:
    with Translator(model, precision="fp32", workers=1) as translator:
        texts = [*TEXTS, f"{TEXTS[0]} {TEXTS[1]}"]
        return dict(zip(texts, (one for [one] in hypotheses(translator, *texts)), strict=True))


def ask(client: TestClient, *texts: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"text": list(texts), "source_lang": "EN", "target_lang": "DE", **fields}
    answer = client.post("/v2/translate", json=body)
    assert answer.status_code == 200, answer.text
    assert list(answer.json()) == ["translations"]
    return list(answer.json()["translations"])


def test_deepl_json_and_forms_are_equivalent(client: TestClient, best: dict[str, str]) -> None:
    expected = [{"detected_source_language": "EN", "text": best[text]} for text in TEXTS]
    assert ask(client, *TEXTS) == expected
    form = {"text": TEXTS, "source_lang": "en", "target_lang": "DE", "formality": "prefer_more", "context": "x"}
    assert client.post("/v2/translate", data=form).json() == {"translations": expected}
    assert client.post("/v2/translate", json={**form, "text": TEXTS[0]}).json() == {"translations": expected[:1]}


def test_billed_characters_on_request(client: TestClient) -> None:
    for yes in (True, 1, "1", "true", "Yes", "ON"):
        found = [one["billed_characters"] for one in ask(client, *TEXTS, show_billed_characters=yes)]
        assert found == [*map(len, TEXTS)]
    for no in (False, 0, "0", "false", "no", "Off", "", None):
        assert all("billed_characters" not in one for one in ask(client, *TEXTS, show_billed_characters=no))


def test_deepl_detects_a_missing_source_language(client: TestClient) -> None:
    pytest.importorskip("py3langid")
    text = "The dog walks across the street and looks at the house."
    [found] = ask(client, text, source_lang=None)
    assert found == ask(client, text)[0]
    assert ask(client, "Das ist schon auf Deutsch gesagt worden.", source_lang=None) == [
        {"detected_source_language": "DE", "text": "Das ist schon auf Deutsch gesagt worden."}
    ]


def test_split_sentences_decides_about_line_ends(client: TestClient, best: dict[str, str]) -> None:
    text = f"{TEXTS[0]}\n{TEXTS[1]}"
    assert ask(client, text)[0]["text"] == f"{best[TEXTS[0]]}\n{best[TEXTS[1]]}"
    for way in ("0", "nonewlines"):
        assert ask(client, text, split_sentences=way)[0]["text"] == best[f"{TEXTS[0]} {TEXTS[1]}"]


def test_line_ends_split_xml_but_not_html(client: TestClient) -> None:
    """In plain text and XML, split_sentences is 1 by default; in HTML it is nonewlines. Weblate relies on this."""
    one, two = (ask(client, text, tag_handling="xml")[0]["text"] for text in TEXTS[:2])
    [whole] = ask(client, f"{TEXTS[0]} {TEXTS[1]}", tag_handling="xml")
    text = f"{TEXTS[0]}\n\n{TEXTS[1]}\n"
    for more in ({}, {"split_sentences": "1"}):
        assert ask(client, text, tag_handling="xml", **more)[0]["text"] == f"{one}\n\n{two}\n"
    for more in ({"tag_handling": "html"}, {"tag_handling": "xml", "split_sentences": "nonewlines"}):
        assert ask(client, text, **more)[0]["text"].split() == whole["text"].split()


def test_preserve_formatting_keeps_white_space(client: TestClient, best: dict[str, str]) -> None:
    text = f"  {TEXTS[0]}\t\n \n{TEXTS[1]} "
    kept = f"  {best[TEXTS[0]]}\t\n \n{best[TEXTS[1]]} "
    assert ask(client, text, preserve_formatting=True)[0]["text"] == kept
    assert ask(client, text, preserve_formatting="0")[0]["text"] == f"{best[TEXTS[0]]}\n\n{best[TEXTS[1]]}"


@pytest.mark.parametrize("kind", ["html", "xml"])
def test_tags_are_kept(client: TestClient, kind: str) -> None:
    [found] = ask(client, MARKED, tag_handling=kind)
    assert found["text"].count("<b>") == found["text"].count("</b>") >= 1
    assert found["text"].count('<x id="3"></x>') == 1


def test_ignored_tags_keep_their_content(client: TestClient) -> None:
    text = "der Hund <keep>rot und</keep> geht <Other>das Haus</Other>"
    for kind, names in (
        ("html", ["keep", "other"]),
        ("html", "Keep,OTHER"),
        ("xml", ["keep", "Other"]),
        ("xml", " keep , Other,,"),
    ):
        [found] = ask(client, text, tag_handling=kind, ignore_tags=names)
        assert "<keep>rot und</keep>" in found["text"]
        assert "<Other>das Haus</Other>" in found["text"]
    for names in ("Keep", None):  # XML is case-sensitive
        [found] = ask(client, text, tag_handling="xml", ignore_tags=names)
        assert "<keep>rot und</keep>" not in found["text"]


def test_xml_options_decide_where_segments_end(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = TEXTS[:2]
    text = f"<doc><title>{one}</title>\n<code>{two}</code></doc>"
    [found] = ask(client, f"<p>{one}</p>\n<p>{two}</p>", tag_handling="html")
    pieces = re.split("</?p>", found["text"])
    assert ask(client, text, tag_handling="xml")[0]["text"] == (
        f"<doc><title>{pieces[1]}</title>{pieces[2]}<code>{pieces[3]}</code></doc>"
    )
    seen = list[TextFormat]()
    parse = TextFormat.parse
    monkeypatch.setattr(TextFormat, "parse", lambda each, *rest: seen.append(each) or parse(each, *rest))
    ask(client, text, tag_handling="xml", splitting_tags="a, b", non_splitting_tags=["c"], outline_detection="0")
    ask(client, text, tag_handling="xml")
    outlines = Outline(("a", "b"), ("c",), detect=False, lines=True), Outline(lines=True)
    assert list(dict.fromkeys((form.kind, form.outline) for form in seen)) == [("xml", each) for each in outlines]


def test_deepl_lists_languages(client: TestClient, model: Path, tmp_path: Path) -> None:
    assert client.get("/v2/languages").json() == [{"language": "EN", "name": "English"}]
    german = {"language": "DE", "name": "German", "supports_formality": False}
    assert client.get("/v2/languages", params={"type": "target"}).json() == [german]
    back = make_model(tmp_path, "corpus.src=de", "corpus.tgt=en")
    with client_of(model, back) as both:
        listed = both.get("/v2/languages", params={"type": "target"}).json()
        assert [each["language"] for each in listed] == ["DE", "EN-GB", "EN-US"]
        answer = both.post("/v2/translate", json={"text": ["rot"], "source_lang": "DE", "target_lang": "EN-US"})
        assert answer.status_code == 200


def test_deepl_languages_have_no_script_or_country_except_some_targets() -> None:
    pairs = [
        ("eng_Latn", "de"),
        ("de-AT", "eng_Latn"),
        ("pt-BR", "en"),
        ("en", "pt"),
        ("pt", "tlh"),
        ("de", "en-GB"),
        ("pt", "zh-Hant"),
        ("zh-Hant", "en"),
    ]
    models = [ServedModel(Mock(), *pair) for pair in pairs]
    pool = ModelPool(models, Metrics(), queue=1, pivot=False)
    with TestClient(create_app(Service(pool, pool.metrics))) as client:
        listed = client.get("/v2/languages").json()
        sources = [("EN", "English"), ("DE", "German"), ("PT", "Portuguese"), ("ZH", "Chinese")]
        assert [tuple(each.values()) for each in listed] == sources
        listed = client.post("/v2/languages", json={"type": "target"}).json()
        assert [(each["language"], each["name"], each["supports_formality"]) for each in listed] == [
            ("DE", "German", False),
            ("EN-GB", "English (British)", False),
            ("EN-US", "English (American)", False),
            ("PT-BR", "Portuguese (Brazilian)", False),
            ("PT-PT", "Portuguese (European)", False),
            ("TLH", "tlh", False),
            ("ZH-HANT", "Chinese (traditional)", False),
        ]
        listed = client.get("/v2/glossary-language-pairs").json()["supported_languages"]
        pairs = [("en", "de"), ("de", "en"), ("pt", "en"), ("en", "pt"), ("pt", "tlh"), ("pt", "zh"), ("zh", "en")]
        assert listed == [{"source_lang": source, "target_lang": target} for source, target in pairs]
        new = {"name": "n" * 1000, "source_lang": "eng", "target_lang": "DE", "entries_format": "csv", "entries": "a,b"}
        made = client.post("/v2/glossaries", json=new).json()
        assert (made["source_lang"], made["target_lang"], made["ready"]) == ("en", "de", True)


def test_detected_source_language_has_no_script_or_country(tmp_path: Path) -> None:
    with client_of(make_model(tmp_path, "corpus.src=eng_Latn")) as client:
        assert [one["detected_source_language"] for one in ask(client, "rot")] == ["EN"]


def test_usage_counts_characters(model: Path) -> None:
    with client_of(model) as client:
        ask(client, *TEXTS)
        assert client.post("/v2/translate", json={"text": "x" * 5001, "target_lang": "DE"}).status_code == 400
        usage = client.get("/v2/usage").json()
        assert usage["character_count"] == sum(map(len, TEXTS))
        assert usage["character_limit"] == 10**12


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"text": None}, 400, "missing text parameter"),
        ({"text": ["rot", 5]}, 400, "text must be text"),
        ({"target_lang": None}, 400, "missing target_lang"),
        ({"target_lang": "XX"}, 400, "XX is not supported"),
        ({"source_lang": "DE", "target_lang": "EN"}, 400, "EN is not available as a target language from DE"),
        ({"tag_handling": "sgml"}, 400, "tag_handling must be html or xml"),
        ({"split_sentences": "2"}, 400, "split_sentences must be 1 or 0 or nonewlines"),
        ({"preserve_formatting": "maybe"}, 400, "preserve_formatting must be true or false"),
        ({"glossary_id": "x"}, 404, "no such glossary"),
        ({"text": ["x" * 6000]}, 400, "exceeds text limit"),
        ({"text": ["x"] * 100_000}, 413, "exceed the limit"),
    ],
)
def test_deepl_errors_are_messages(client: TestClient, change: dict[str, Any], status: int, words: str) -> None:
    answer = client.post("/v2/translate", json={"text": ["rot"], "target_lang": "DE", "source_lang": "EN", **change})
    assert (answer.status_code, list(answer.json())) == (status, ["message"])
    assert words in answer.json()["message"]
    assert client.get("/v2/translate").status_code == 405
    refused = client.get("/v2/languages", params={"type": "x"})
    assert (refused.status_code, list(refused.json())) == (400, ["message"])


def test_deepl_keys_in_the_header(model: Path) -> None:
    with client_of(model, keys=[b"secret"]) as client:
        body = {"text": ["rot"], "target_lang": "DE", "source_lang": "EN"}
        answers = [
            client.post("/v2/translate", json=body, headers={"Authorization": f"DeepL-Auth-Key {key}"})
            for key in ("secret", "wrong")
        ]
        assert [answer.status_code for answer in answers] == [200, 403]
        assert client.post("/v2/translate", json=body).status_code == 403
        assert client.post("/v2/translate", data={**body, "auth_key": "secret"}).status_code == 200
        assert client.get("/v2/usage").status_code == 403
