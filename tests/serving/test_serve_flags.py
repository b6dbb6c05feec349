"""The forms in which clients send flags, choices and languages; texts in unsupported languages."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tiny_model import make_model

pytest.importorskip("starlette")
from serving import PAIR, TEXTS, client_of, service_of
from starlette.testclient import TestClient

from nmt_cli.corpus.languages import is_same
from nmt_cli.serving.app import create_app
from nmt_cli.serving.detect import Detector

SPLIT = f"{TEXTS[0]}\n{TEXTS[1]}"
SPACED = f"  {TEXTS[0]} \n \n{TEXTS[1]}"
# The forms that clients send: deepl-python (str() of an enumeration or argument; booleans in JSON), deepl-node, -php,
# -java and -dotnet (forms with "1" and "0"), deepl-rs (booleans), curl (forms).
YES: list[Any] = [True, 1, "1", "true", "True", "TRUE", "on", "yes", " true "]
NO: list[Any] = [False, 0, "0", "false", "False", "off", "no", "none", "None", "null"]
ABSENT: list[Any] = [None, ""]
NEITHER: list[Any] = ["maybe", "2", 2, -1, 1.0, 0.5, [], ["1"], {}, "ja", "tru"]


def deepl(client: TestClient, text: str, **fields: Any) -> list[Any]:
    """Send JSON, and a form and a multipart form if they can hold the values; return all results."""
    body = {"text": text, "source_lang": "EN", "target_lang": "DE", **fields}
    answers = [client.post("/v2/translate", json=body)]
    if all(isinstance(value, str) for value in body.values()):
        answers.append(client.post("/v2/translate", data=body))
        answers.append(client.post("/v2/translate", files=[(name, (None, value)) for name, value in body.items()]))
    assert {answer.status_code for answer in answers} == {answers[0].status_code}
    return [answer.json()["translations"][0] if answer.status_code == 200 else answer.status_code for answer in answers]


def agree(found: list[Any], expected: Any) -> bool:
    return all(each == expected for each in found)


def test_deepl_flags_in_every_form(client: TestClient) -> None:
    """split_sentences, preserve_formatting and show_billed_characters."""
    [split, *_], [whole, *_] = deepl(client, SPLIT, split_sentences="1"), deepl(client, SPLIT, split_sentences="0")
    [trimmed, *_], [spaced, *_] = deepl(client, SPACED), deepl(client, SPACED, preserve_formatting="1")
    assert split != whole
    assert trimmed != spaced
    for value in YES:
        assert agree(deepl(client, SPLIT, split_sentences=value), split), value
        assert agree(deepl(client, SPACED, preserve_formatting=value), spaced), value
        assert all("billed_characters" in each for each in deepl(client, "", show_billed_characters=value)), value
    for value in NO:
        assert agree(deepl(client, SPLIT, split_sentences=value), whole), value
    for value in [*NO, *ABSENT]:
        assert agree(deepl(client, SPACED, preserve_formatting=value), trimmed), value
        assert all("billed_characters" not in each for each in deepl(client, "", show_billed_characters=value)), value
    for value in [*ABSENT, "default", "Default"]:
        assert agree(deepl(client, SPLIT, split_sentences=value), split), value
    for value in ("nonewlines", "NoNewlines"):
        assert agree(deepl(client, SPLIT, split_sentences=value), whole), value
    for value in NEITHER:
        for name in ("split_sentences", "preserve_formatting", "show_billed_characters"):
            assert agree(deepl(client, "", **{name: value}), 400), (name, value)


def test_ignored_deepl_flags_accept_any_form(client: TestClient) -> None:
    names = ("outline_detection", "enable_beta_languages", "formality", "context", "model_type")
    for value in [*YES, *NO, *ABSENT]:
        assert agree(deepl(client, "", **dict.fromkeys(names, value)), {"detected_source_language": "EN", "text": ""})


def test_choices_ignore_case(client: TestClient) -> None:
    marked = "<b>rot</b>"
    for value in ("html", "HTML", " Html "):
        answer = client.post("/translate", json={"q": marked, **PAIR, "format": value})
        assert "<b>" in answer.json()["translatedText"]
    for value in ("text", "Text", "", None):
        plain = client.post("/translate", json={"q": TEXTS[0], **PAIR, "format": value})
        assert plain.status_code == 200
    for value in ("target", "Target", "TARGET"):
        [listed] = client.get("/v2/languages", params={"type": value}).json()
        assert listed["language"] == "DE"
    for value in ("TSV", "tsv", "Csv"):
        entries = "rot,Baum" if value == "Csv" else "rot\tBaum"
        new = {"name": "n", "source_lang": "EN", "target_lang": "DE", "entries": entries, "entries_format": value}
        assert client.post("/v2/glossaries", json=new).json()["entry_count"] == 1


def test_alternatives_as_a_number_or_text(client: TestClient) -> None:
    for value, most in ((2, 2), ("2", 2), (0, 0), ("0", 0), ("", 0), (None, 0)):
        answer = client.post("/translate", json={"q": "rot", **PAIR, "alternatives": value}).json()
        assert len(answer.get("alternatives", [])) <= most
        assert ("alternatives" in answer) == bool(most)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("en", "en"),
        ("EN", "en"),
        ("en-GB", "EN-US"),
        ("eng_Latn", "en"),
        ("en_US", "en-us"),
        ("de", "DE-AT"),
        ("de", "de"),
    ],
)
def test_text_in_the_target_language_is_returned_unchanged(client: TestClient, source: str, target: str) -> None:
    """On all routes, with markup, files, lists and alternatives."""
    text = " <b>rot</b> &amp; %s\n\n der  Hund\u2028"
    pair = {"source": source, "target": target}
    assert client.post("/translate", json={"q": text, **pair}).json() == {"translatedText": text}
    answer = client.post("/translate", json={"q": [text, ""], **pair, "format": "html", "alternatives": 2}).json()
    assert answer == {"translatedText": [text, ""], "alternatives": [[], []]}
    for more in ({}, {"tag_handling": "html"}, {"tag_handling": "xml"}, {"split_sentences": False}):
        body = {"text": [text], "source_lang": source, "target_lang": target, **more}
        [found] = client.post("/v2/translate", json=body).json()["translations"]
        assert found == {"detected_source_language": source[:2].upper(), "text": text}
    answer = client.post("/sentences", json={"q": "rot. und", **pair}).json()
    assert [each["hypotheses"][0]["text"] for each in answer["sentences"]] == [
        each["source"] for each in answer["sentences"]
    ]
    sent = client.post("/translate_file", data=pair, files={"file": ("a.html", text)}).json()
    assert client.get(sent["translatedFileUrl"]).text == text


def test_unsupported_languages_are_refused_even_if_equal(client: TestClient) -> None:
    for code in ("fr", "xx", ""):
        assert client.post("/translate", json={"q": "rot", "source": code, "target": code}).status_code == 400
    for source, target in (("de", "en"), ("en-Latn", "en-Cyrl")):
        assert client.post("/translate", json={"q": "rot", "source": source, "target": target}).status_code == 400


def test_a_model_between_variants_of_a_language_translates(tmp_path: Path) -> None:
    with client_of(make_model(tmp_path, "corpus.src=pt-BR", "corpus.tgt=pt-PT")) as client:
        answers = [
            client.post("/translate", json={"q": TEXTS[0], "source": source, "target": target}).json()["translatedText"]
            for source, target in (("pt-BR", "pt-PT"), ("pt-PT", "pt-BR"), ("pt-BR", "pt-BR"))
        ]
        assert [answer == TEXTS[0] for answer in answers] == [False, True, True]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("en", "EN-US", True),
        ("eng_Latn", "en", True),
        ("en-Latn-GB", "en-Latn-US", True),
        ("zh-Hans", "zh-Hant", False),
        ("zh-Hans-CN", "zh", True),
        ("zt", "zh-Hans", False),
        ("pb", "pt", True),
        ("sr_Cyrl", "srp_Latn", False),
        ("en", "de", False),
        ("de", "deu", True),
    ],
)
def test_codes_of_the_same_language_and_script(one: str, other: str, same: bool) -> None:
    assert is_same(one, other) == is_same(other, one) == same


FOREIGN = {
    "French (fr)": "Un homme en chemise bleue est debout sur une échelle et nettoie une fenêtre.",
    "Spanish (es)": "Dos personas caminan por la calle y hablan de lo que han hecho hoy.",
    "Russian (ru)": "Мальчик прыгает в воду с высокого камня, а его друзья смотрят.",
    "Japanese (ja)": "今日はとても天気がいいので、公園へ行きましょう。",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_text_certainly_in_an_unsupported_language_is_refused_by_name(client: TestClient, name: str) -> None:
    pytest.importorskip("py3langid")
    text, code = FOREIGN[name], name[-3:-1]
    message = f"The text was detected as {name}, which is not supported. If that is wrong, set the source language"
    answer = client.post("/translate", json={"q": text, "source": "auto", "target": "de"})
    assert (answer.status_code, answer.json()) == (400, {"error": message})
    answer = client.post("/v2/translate", json={"text": [text], "target_lang": "DE"})
    assert (answer.status_code, answer.json()) == (400, {"message": message})
    answer = client.post("/sentences", json={"q": text, "source": "Auto", "target": "de"})
    assert (answer.status_code, answer.json()) == (400, {"error": message})
    [first, *others] = client.post("/detect", json={"q": text}).json()
    assert first["language"] == code
    assert first["confidence"] >= 90
    assert {each["language"] for each in others} == {"en", "de"}
    assert max(each["confidence"] for each in others) <= 10
    assert client.post("/translate", json={"q": text, **PAIR}).status_code == 200, "the request names its language"


@pytest.mark.parametrize("text", ["Bonjour", "Un chien", "Привет", "Kahvi", "OK", "Taxi 12"])
def test_ambiguous_short_text_is_translated_with_low_confidence(client: TestClient, text: str) -> None:
    pytest.importorskip("py3langid")
    answer = client.post("/translate", json={"q": text, "source": "auto", "target": "de"})
    assert answer.status_code == 200
    assert answer.json()["detectedLanguage"]["confidence"] < 50


def test_similar_languages_are_not_refused() -> None:
    """A Norwegian model accepts text detected as Danish, but not Swedish. Confidences in similar languages add up."""
    pytest.importorskip("py3langid")
    danish = "Regeringen meddelte, at den ikke længere ville betale for uddannelsen af de unge mennesker."
    swedish = "Pojken hoppar i vattnet från en hög sten medan hans vänner tittar på honom från stranden."
    norwegian, english = Detector(["no"], ["no", "en"]), Detector(["en"], ["en", "de"])
    assert norwegian.detect(danish)[0][0] == "no"
    assert english.detect(danish)[0][0] == "da"
    assert norwegian.detect(swedish)[0][0] == "sv"
    croatian = "Dječak skače u vodu s visoke stijene, a njegovi prijatelji ga gledaju s plaže."
    code, sure = english.detect(croatian)[0]
    assert code in ("hr", "bs", "sr")
    assert sure >= 90


def captions(language: str) -> list[str]:
    path = Path(os.environ["NMT_CORPORA"]) / "multi30k" / f"test_2016_flickr.{language}.gz"
    return gzip.decompress(path.read_bytes()).decode().splitlines()


@pytest.mark.skipif("NMT_CORPORA" not in os.environ, reason="NMT_CORPORA names no folder of real text")
@pytest.mark.parametrize("words", [None, 3, 5])
def test_no_caption_in_a_models_language_is_refused(words: int | None) -> None:
    """200 captions per language, whole and cut to their first words."""
    pytest.importorskip("py3langid")
    for ours in (("en", "de"), ("de", "en"), ("fr", "en")):
        detector = Detector(ours[:1], ours)
        lines = [" ".join(line.split()[:words]) for line in captions(ours[0])[::5]]
        found = [detector.detect(line)[0] for line in lines]
        assert [line for line, (code, _) in zip(lines, found, strict=True) if code not in ours] == []
        if words is None:
            assert sum(code == ours[0] for code, _ in found) >= 0.99 * len(lines)


@pytest.mark.skipif("NMT_CORPORA" not in os.environ, reason="NMT_CORPORA names no folder of real text")
def test_french_captions_are_not_detected_as_english() -> None:
    pytest.importorskip("py3langid")
    detector = Detector(["en"], ["en", "de"])
    found = [detector.detect(line)[0] for line in captions("fr")[::5]]
    assert sum(code == "fr" for code, _ in found) >= 0.9 * len(found)
    assert max(sure for code, sure in found if code != "fr") < 50


def test_json_fields_in_any_order(model: Path) -> None:
    """As Mastodon and Weblate send them, with unknown fields."""
    with service_of(model) as service, TestClient(create_app(service)) as client:
        for body in (
            {"q": ["rot"], "source": "en", "target": "de", "format": "html", "api_key": None},
            {"api_key": "", "target": "de", "source": "en", "q": "rot", "secret": "", "alternatives": 0},
        ):
            answer = client.post("/translate", content=json.dumps(body), headers={"Content-Type": "application/json"})
            assert answer.status_code == 200
