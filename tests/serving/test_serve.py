"""LibreTranslate's routes and our own: every translation equals that of `nmt translate`."""

import asyncio
import random
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import tiny_model
from in_process import run_nmt
from office_files import body, docx, member, paragraph, run
from tiny_model import WORDS, make_model

pytest.importorskip("starlette")
from serving import PAIR, TEXTS, client_of, hypotheses, service_of
from starlette.testclient import TestClient

from nmt_cli import Translator
from nmt_cli.corpus import languages
from nmt_cli.corpus import tokenizer as spm
from nmt_cli.corpus.languages import match
from nmt_cli.documents.formats import SUFFIXES
from nmt_cli.documents.placement import Aligned
from nmt_cli.serving import app, detect, files, metrics
from nmt_cli.serving.app import create_app
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.pool import ModelPool, ServedModel
from nmt_cli.serving.service import SURE, Service
from nmt_cli.serving.texts import TextFormat, assemble, units_of
from nmt_cli.translation.pending import Translation
from nmt_cli.translation.segments import Hypothesis

HTML = '<p title="der Hund">der <b>Hund</b> geht &amp; die Katze</p>\n<code>rot und</code>\n'


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[Translator]:
    with Translator(model, precision="fp32", workers=1) as translator:
        yield translator


def ask(client: TestClient, **fields: Any) -> Any:
    answer = client.post("/translate", json={**PAIR, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_text_is_translated_line_by_line_like_the_command(client: TestClient, alone: Translator) -> None:
    [[hund], [rot]] = hypotheses(alone, *TEXTS[:2])
    assert ask(client, q=f"{TEXTS[0]}\n\r\n  {TEXTS[1]} \n") == {"translatedText": f"{hund}\n\r\n{rot}\n"}
    assert ask(client, q="") == {"translatedText": ""}
    assert ask(client, q=[]) == {"translatedText": []}
    assert ask(client, q=" \n ") == {"translatedText": "\n"}


def test_json_forms_and_query_strings_are_equivalent(client: TestClient, alone: Translator) -> None:
    expected = [best for [best] in hypotheses(alone, *TEXTS)]
    fields: dict[str, Any] = {"q": TEXTS, **PAIR}
    multipart = [("q", (None, text)) for text in TEXTS] + [(name, (None, code)) for name, code in PAIR.items()]
    asked: list[dict[str, Any]] = [{"json": fields}, {"data": fields}, {"params": fields}, {"files": multipart}]
    assert [client.post("/translate", **ask).json() for ask in asked] == [{"translatedText": expected}] * 4
    for kind in ("json", "data", "params"):
        answer = client.post("/translate", **{kind: {**fields, "q": TEXTS[0]}})
        assert answer.json() == {"translatedText": expected[0]}
    empty = {"params": {**fields, "q": TEXTS[0]}, "headers": {"Content-Type": "application/json"}}
    assert client.post("/translate", **empty).json() == {"translatedText": expected[0]}
    body = ' {"q": "rot", "source": "en", "target": "de"}'
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/problem+json", None):
        headers = {"Content-Type": kind} if kind else {}
        assert client.post("/translate", content=body, headers=headers).status_code == 200, kind
    both = {"params": {**fields, "q": "x"}, "data": {"q": TEXTS[0]}}  # the body overrides the query
    assert client.post("/translate", **both).json() == {"translatedText": expected[0]}


def test_alternatives_are_the_distinct_rest_of_the_n_best_list(client: TestClient, alone: Translator) -> None:
    lists = hypotheses(alone, *TEXTS, n_best=4)
    expected = [list(dict.fromkeys(each)) for each in lists]
    answer = ask(client, q=TEXTS, alternatives=3)
    assert answer["translatedText"] == [best for best, *_ in expected]
    assert answer["alternatives"] == [others for _, *others in expected]
    assert ask(client, q=TEXTS[0], alternatives="3")["alternatives"] == expected[0][1:]
    assert (
        ask(client, q=TEXTS[0], alternatives="")
        == ask(client, q=TEXTS[0], alternatives=None)
        == ask(client, q=TEXTS[0])
    )
    assert "alternatives" in ask(client, q=TEXTS[0], alternatives=10)
    whole = ask(client, q="\n".join(TEXTS[:2]), alternatives=3)
    assert whole["alternatives"] == [f"{one}\n{two}" for one, two in zip(lists[0][1:], lists[1][1:], strict=True)]


def command(model: Path, file: Path, data: str | bytes, *options: str) -> bytes:
    """Write a file, translate it with the command, and return the translation."""
    file.write_bytes(data.encode() if isinstance(data, str) else data)
    output = file.with_name(f"translated{file.suffix}")
    words = ["--model", model, "--precision", "fp32", "-q", *options]
    assert run_nmt("translate", file, "-o", output, *words)[0] == 0
    return output.read_bytes()


def test_a_line_with_fewer_hypotheses_repeats_its_last() -> None:
    lines = [Translation([Hypothesis([], 0, 0, [], text) for text in texts], []) for texts in ("abc", "xy")]
    assert ["".join(line.at(rank).text for line in lines) for rank in range(3)] == ["ax", "by", "cy"]


@pytest.mark.parametrize(
    ("text_format", "text", "units"),
    [
        (TextFormat(), "a %s\r\n\nb", ["a %s", "", "b"]),
        (TextFormat(), "a\rb\n\rc", ["a", "b", "", "c"]),
        (TextFormat(joined=True), "a\nb", ["a\nb"]),
        (TextFormat(protect=True), "a %s (b)\nc", ["a (b)", "c"]),
        (TextFormat(protect=True, joined=True), "a %s\nb", ["a b"]),
        (TextFormat(protect=False), "a %s", ["a %s"]),
        (TextFormat(keep=("cat",)), "a cat %s", ["a %s"]),
        (TextFormat("html", keep=("cat",)), "<p>a cat %s", ["a"]),
        (TextFormat("html"), "<p>a %s</p>b <i>c</i>", ["a", "b c"]),
        (TextFormat("html", False, ("I",)), "<p>a %s</p>b <i>c</i>", ["a %s", "b"]),
        (TextFormat("md"), "# a %s (b)\n\n*c*", ["a (b)", "c"]),
        (TextFormat("md", False), "# a %s", ["a %s"]),
        (TextFormat("po"), 'msgid "a %s (b)"\nmsgstr ""\n', ["a b"]),
        (TextFormat("po", False), 'msgid "a %s (b)"\nmsgstr ""\n', ["a %s (b)"]),
    ],
)
def test_each_format_has_its_units(text_format: TextFormat, text: str, units: list[str]) -> None:
    assert units_of(text_format, [text, text]) == [units, units]
    assert text_format.marked == (text_format.kind != "text" or bool(text_format.protect or text_format.keep))


def test_a_segment_with_an_empty_translation_keeps_its_source() -> None:
    ranks = [[Aligned(text, [(4, 0)])] for text in ("eins", "", "drei", "")]
    assert assemble(TextFormat("html"), ["<p>a <b>dog</b></p>"], [ranks]) == [
        ["<p><b>eins</b></p>", "<p>a <b>dog</b></p>", "<p><b>drei</b></p>"]
    ]


def test_html_is_translated_like_the_command(client: TestClient, model: Path, tmp_path: Path) -> None:
    expected = command(model, tmp_path / "a.html", HTML).decode()
    assert expected != HTML
    assert ask(client, q=[HTML, HTML], format="html") == {"translatedText": [expected] * 2}
    [[other]] = ask(client, q=[HTML], format="html", alternatives=1)["alternatives"]
    assert "<b>" in other
    assert other != expected


def test_protect_keeps_placeholders(model: Path, tmp_path: Path) -> None:
    text = "der Hund [X12X] geht nicht mit %s\n"
    with client_of(model, protect=True) as client:
        answer = ask(client, q=text)["translatedText"]
        sent = client.post("/translate_file", data=PAIR, files={"file": ("a.txt", text)}).json()
        assert client.get(sent["translatedFileUrl"]).text == answer
        [translation] = client.post(
            "/v2/translate", json={"text": [text], "source_lang": "EN", "target_lang": "DE"}
        ).json()["translations"]
        assert translation["text"] == answer
    assert answer == command(model, tmp_path / "a.txt", text, "--protect").decode()
    assert "[X12X]" in answer
    assert "%s" in answer


def test_languages_health_and_settings(client: TestClient) -> None:
    assert client.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/frontend/settings").json() == {
        "apiKeys": False,
        "charLimit": 5000,
        "filesTranslation": True,
        "frontendTimeout": 500,
        "keyRequired": False,
        "language": {"source": {"code": "en", "name": "English"}, "target": {"code": "de", "name": "German"}},
        "suggestions": False,
        "supportedFilesFormat": sorted([*SUFFIXES, ".txt"]),
    }


@pytest.mark.parametrize("codes", ["de deu German", "zh zho Chinese", "no nor Norwegian", "he heb Hebrew"])
def test_languages_are_known_by_both_codes(codes: str) -> None:
    two, three, name = codes.split()
    assert {languages.name_of(each) for each in (two, three, f"{three}_Latn", f"{two.upper()}-XX")} == {name}
    assert (languages.name_of("xx-YY"), languages.base_of("xxx_YY")) == ("xx-YY", "xxx")


@pytest.mark.parametrize("code", ["en", "EN", "en-US", "en_GB", "eng", "eng_Latn"])
def test_language_codes_of_other_tools_are_accepted(client: TestClient, code: str) -> None:
    assert ask(client, q="rot", source=code, target="de-AT") == ask(client, q="rot")


@pytest.mark.parametrize(
    ("code", "meant"),
    [("pt-BR", "pt_BR"), ("PT-pt", "pt-PT"), ("pt", "pt-PT"), ("por", "pt-PT"), ("pt-AO", "pt-PT"), ("gl", None)],
)
def test_a_code_matches_itself_before_another_of_its_language(code: str, meant: str | None) -> None:
    assert match(code, ["de", "pt-PT", "pt_BR"]) == meant
    assert match("pt-BR", ["ptx", "por_Latn"]) == "por_Latn"


@pytest.mark.parametrize(
    ("code", "meant"),
    [("pb", "pt-BR"), ("pt", "pt"), ("zt", "zh-Hant"), ("ZH_hant", "zh-Hant"), ("zh-TW", "zh-Hant"), ("zh", "zh-Hans")],
)
def test_codes_of_libretranslate_and_scripts_of_chinese(code: str, meant: str) -> None:
    assert match(code, ["zh-Hant", "pt", "zh-Hans", "pt-BR"]) == meant
    assert match("zh", ["de", "zh-Hant"]) == "zh-Hant"
    assert languages.name_of("pb") == "Portuguese (Brazil)"
    assert languages.base_of("pb") == "pb"  # pb is not replaced, as a suffix of file names it may mean something else
    assert {languages.name_of(each) for each in ("zt", "zh-Hans", "zh")} == {
        "Chinese (traditional)",
        "Chinese (simplified)",
        "Chinese",
    }


def test_auto_detects_the_source_language(client: TestClient, alone: Translator) -> None:
    pytest.importorskip("py3langid")
    english = "The dog walks across the street and looks at the house."
    answer = ask(client, q=[english, "The cat"], source="auto")
    assert answer["translatedText"] == [best for [best] in hypotheses(alone, english, "The cat")]
    [found, _] = answer["detectedLanguage"]
    assert found["language"] == "en"
    assert type(found["confidence"]) is int
    assert 50 < found["confidence"] <= 100
    assert ask(client, q=[english], source="auto")["detectedLanguage"] == [found]
    german = "Der Hund läuft über die Straße und sieht das Haus an."
    answer = ask(client, q=german, source="auto")
    assert (answer["translatedText"], answer["detectedLanguage"]["language"]) == (german, "de")
    [first, second] = client.post("/detect", data={"q": german}).json()
    assert (first["language"], second["language"]) == ("de", "en")
    assert first["confidence"] > second["confidence"]


def test_detection_does_not_block_other_requests(model: Path) -> None:
    """The first detection loads py3langid, which takes a second."""
    began, healthy = threading.Event(), threading.Event()

    def slow(_: str) -> list[tuple[str, int]]:
        began.set()
        return [("de", 100 if healthy.wait(30) else 0)]

    with service_of(model) as service, TestClient(create_app(service)) as client, ThreadPoolExecutor(1) as other:
        service.detector.detect = slow
        detected = other.submit(client.post, "/detect", data={"q": "der Hund"})
        assert began.wait(30)
        assert client.get("/health").status_code == 200
        healthy.set()
        assert detected.result().json() == [{"confidence": 100, "language": "de"}]


def test_detection_without_letters_or_with_unknown_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a language has two codes, the first one is used. Of a long text, only the beginning is used."""
    pytest.importorskip("py3langid")
    detector = detect.Detector(["en-GB"], ["en-GB", "en-US", "de"])
    english = "The dog walks across the street and looks at the house."
    assert detector.detect(english) == [("en-GB", 100), ("de", 0)]
    assert detector.detect("12 + 3.") == [("en-GB", 0)]
    assert detect.Detector(["xx"], ["xx", "en"]).detect(english) == [("xx", 0)]
    assert detect.Detector(["xx", "en"], ["xx", "en", "de"]).detect(english)[0] == ("en", 100)
    german = " Der Hund läuft über die Straße und sieht das Haus an."
    assert detector.detect(english * 40 + german * 100)[0][0] == "en-GB"


def test_detection_equals_that_of_py3langid() -> None:
    """`load_classifier` stores py3langid's model in another form."""
    langid = pytest.importorskip("py3langid.langid")
    original = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    original.set_languages(["en", "de", "fr", "ja", "ru"])
    compact = detect.load_classifier(["en", "de", "fr", "ja", "ru"])
    english = "The dog walks across the street."
    for text in (english, english.upper() * 9, "der Hund", "Le chien", "犬は道を渡る。", "Собака", "a\u0301 \ud7ff %"):
        assert compact.rank(text) == original.rank(text)


def test_auto_chooses_the_likeliest_language_with_a_model_for_the_target() -> None:
    models = [ServedModel(Mock(), *pair) for pair in (("en", "de"), ("fr", "es"), ("pt", "de"))]
    service = Service(ModelPool(models, Metrics(), queue=1), Metrics())
    service.detector.detect = Mock(return_value=[("fr", 40), ("de", 35), ("en", 15), ("pt", 10)])
    found = [asyncio.run(service.source_language(["x"], "auto", target)) for target in ("de-AT", "es", "xx")]
    assert found == [("en", 15), ("fr", 40), ("fr", 40)]


def test_detection_uses_all_texts_of_a_request(model: Path) -> None:
    with service_of(model) as service, TestClient(create_app(service)) as client:
        service.detector.detect = Mock(return_value=[("fr", 80), ("es", 20)])
        answer = client.post("/translate", json={"q": ["a", "b"], "source": "auto", "target": "de"})
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("The text was detected as French (fr), which is not supported")
        found = [{"language": "fr", "confidence": 80}, {"language": "es", "confidence": 20}]
        assert client.post("/detect", json={"q": ["a", "b"]}).json() == found
        assert [call.args for call in service.detector.detect.call_args_list] == [("a\nb",)] * 2


def test_without_py3langid_auto_is_the_first_source_language(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    assert detect.Detector(["en"], ["en", "de"]).detect("Der Hund geht.") == [("en", 0)]
    with client_of(model) as without:
        answer = ask(without, q="Der Hund", source="auto")
        assert answer == {**ask(client, q="Der Hund"), "detectedLanguage": {"confidence": 0, "language": "en"}}
        answer = without.post("/sentences", json={"q": "Der Hund", "source": "auto", "target": "de"}).json()
        assert answer["detectedLanguage"] == {"confidence": 0, "language": "en"}
        assert "detectedLanguage" not in without.post("/sentences", json={"q": "Der Hund", **PAIR}).json()


def test_each_language_pair_uses_its_model(model: Path, tmp_path: Path, client: TestClient) -> None:
    back = make_model(tmp_path, "corpus.src=de", "corpus.tgt=en", seed=2)
    with Translator(back, precision="fp32") as translator, client_of(model, back) as both:
        assert both.get("/languages").json()[1] == {"code": "de", "name": "German", "targets": ["en"]}
        assert ask(both, q=TEXTS[0]) == ask(client, q=TEXTS[0])
        [[expected]] = hypotheses(translator, TEXTS[0])
        assert ask(both, q=TEXTS[0], source="de", target="en") == {"translatedText": expected}


@pytest.mark.parametrize("target", ["pt", "PT-pt", "pt_BR", "pt-AO"])
def test_a_target_code_matches_within_the_models_of_the_source(target: str) -> None:
    to_brazil, from_portugal = (ServedModel(Mock(), *pair) for pair in (("en", "pt-BR"), ("pt-PT", "en")))
    pool = ModelPool([from_portugal, to_brazil], Mock(), queue=1)
    assert pool.find("en-US", target).steps == (to_brazil,)
    assert pool.find(target, "en").steps == (from_portugal,)
    with pytest.raises(Refusal, match="pt is not available as a target language from pt-BR"):
        pool.find("pt-BR", "pt")


def test_a_model_with_several_target_languages_serves_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token at the beginning of the source selects the language. Offsets in the source do not include this token."""
    lines = [f">>{code}<< der Hund geht und die Katze ist rot" for code in ("deu", "fra")] * 50
    data = spm.train(lines, 320, tags=[">>deu<<", ">>fra<<"])
    monkeypatch.setattr(tiny_model, "train_tokenizer", lambda: data)
    many = make_model(tmp_path, "corpus.tgt=mul")
    with Translator(many, precision="fp32") as translator, client_of(many) as client:
        [source, *_] = client.get("/languages").json()
        assert source == {"code": "en", "name": "English", "targets": ["deu", "fra"]}
        for target, token in (("de", ">>deu<<"), ("fra", ">>fra<<"), ("fr-CA", ">>fra<<")):
            [[expected]] = hypotheses(translator, f"{token} {TEXTS[0]}")
            assert ask(client, q=TEXTS[0], target=target) == {"translatedText": expected}
        answer = client.post("/sentences", json={"q": TEXTS[0], "source": "en", "target": "fr"}).json()
        [hypothesis] = answer["sentences"][0]["hypotheses"]
        assert all(0 <= source < len(TEXTS[0]) for source, _ in hypothesis["alignment"])
        tagged = ask(client, q="der <b>Hund</b> geht.", target="fr", format="html")["translatedText"]
        assert tagged.count("<b>") == tagged.count("</b>") >= 1


def test_sentences_have_alternatives_and_aligned_words(client: TestClient, alone: Translator) -> None:
    text = "  der Hund geht. rot und\n\ndas Haus! "
    answer = client.post("/sentences", json={"q": text, **PAIR, "alternatives": 2}).json()
    found = answer["sentences"]
    assert "".join(each["before"] + each["source"] for each in found) + answer["after"] == text
    assert [each["source"] for each in found] == ["der Hund geht.", "rot und", "das Haus!"]
    texts = [[each["text"] for each in sentence["hypotheses"]] for sentence in found]
    assert texts == hypotheses(alone, "der Hund geht.", "rot und", "das Haus!", n_best=3)
    for sentence in found:
        for hypothesis in sentence["hypotheses"]:
            pairs = hypothesis["alignment"]
            assert all(sentence["source"][src].strip() and hypothesis["text"][tgt].strip() for src, tgt in pairs)
            starts = {match.start() for match in re.finditer(r"\S+", hypothesis["text"])}
            assert starts <= {tgt for _, tgt in pairs}, "each word begins with a piece"


@pytest.mark.parametrize("options", [{"keep": ("Hund",)}, {"protect": True}])
def test_sentences_keep_what_other_routes_keep(model: Path, options: dict[str, Any]) -> None:
    kept = "Hund" if "keep" in options else "%s"
    with client_of(model, **options) as client:
        answer = client.post("/sentences", json={"q": f"rot und. der {kept} geht.", **PAIR, "alternatives": 1}).json()
        aligned, hidden = ([each["text"] for each in one["hypotheses"]] for one in answer["sentences"])
        expected = ask(client, q=f"der {kept} geht.", alternatives=1)
        assert hidden == [expected["translatedText"], *expected["alternatives"]]
        assert all(kept in text for text in hidden)
        assert len(aligned) == 2
        assert answer["sentences"][0]["hypotheses"][0]["alignment"]


def test_a_word_file_is_translated_as_by_the_command(client: TestClient, model: Path, tmp_path: Path) -> None:
    """The character limit applies to the file's text, not to the size of the file."""
    picture = bytes(range(256)) * 400
    data = docx(paragraph(run("rot "), run("und", "<w:b/>")) + paragraph(run("die Katze ist rot")), picture=picture)
    expected = command(model, tmp_path / "a.docx", data)
    answer = client.post("/translate_file", data=PAIR, files={"file": ("a.DOCX", data)})
    assert answer.status_code == 200, answer.text
    fetched = client.get(answer.json()["translatedFileUrl"]).content
    assert fetched == expected
    assert body(fetched) != body(data)
    assert member(fetched, "word/picture.xml", "latin-1") == picture.decode("latin-1")
    long = docx(paragraph(run("der Hund geht. " * 400)))
    refused = client.post("/translate_file", data=PAIR, files={"file": ("a.docx", long)})
    assert (refused.status_code, "exceeds text limit" in refused.text) == (400, True)
    damaged = client.post("/translate_file", data=PAIR, files={"file": ("a.docx", data[:-50])})
    assert (damaged.status_code, "is not a zip file, or is damaged" in damaged.text) == (400, True)


@pytest.mark.parametrize("name", ["a.txt", "a.html", "a.MD", "a.po"])
def test_files_are_translated_like_the_command(client: TestClient, model: Path, tmp_path: Path, name: str) -> None:
    po = (
        '\ufeffmsgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "der Hund (rot)"\nmsgstr ""\n'
    )
    text = {"a.txt": "der Hund\n\nrot und\n", "a.html": HTML, "a.MD": "# der Hund\n\n*rot* und\n", "a.po": po}[name]
    expected = command(model, tmp_path / name, text).decode()
    answer = client.post("/translate_file", data=PAIR, files={"file": (name, text.encode())})
    assert answer.status_code == 200, answer.text
    fetched = client.get(answer.json()["translatedFileUrl"])
    assert fetched.content.decode() == expected
    suffix = Path(name).suffix.lower()
    assert fetched.headers["Content-Disposition"] == f'attachment; filename="translated{suffix}"'
    assert fetched.headers["Content-Type"] == "application/octet-stream"
    assert expected != text


def test_a_server_error_is_counted_as_500(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Service, "source_language", fail)
    with service_of(model) as service, TestClient(create_app(service), raise_server_exceptions=False) as client:
        answer = client.post("/translate", json={"q": "rot", **PAIR})
        assert (answer.status_code, list(answer.json())) == (500, ["error"])
        assert 'nmt_requests_total{code="500",route="/translate"} 1.0' in client.get("/metrics").text


def test_file_translations_expire_after_half_an_hour_or_a_hundred_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [7.0]
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: now[0]))
    shelf = files.FileStore()
    old = shelf.put("a.txt", b"a")
    now[0] += 1799
    assert shelf.get(old) == b"a"
    now[0] += 1
    with pytest.raises(Refusal, match="has expired"):
        shelf.get(old)
    first, *rest = [shelf.put("b.txt", bytes([number])) for number in range(101)]
    with pytest.raises(Refusal, match="has expired"):
        shelf.get(first)
    assert [shelf.get(key) for key in rest] == [bytes([number]) for number in range(1, 101)]


def test_file_translations_fill_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest file is always kept, and older ones as long as there is room."""
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    shelf = files.FileStore()
    large = shelf.put("a.txt", bytes(1001))
    assert shelf.get(large) == bytes(1001)
    small = [shelf.put("b.txt", bytes(400)) for _ in range(3)]
    for key in (large, small[0]):
        with pytest.raises(Refusal, match="has expired"):
            shelf.get(key)
    assert [shelf.get(key) for key in small[1:]] == [bytes(400)] * 2


def test_metrics_count_requests_and_texts(model: Path) -> None:
    with client_of(model) as client:
        ask(client, q=TEXTS)
        client.post("/translate", json={})
        client.get("/nowhere/at/all")
        page = client.get("/metrics").text
    for line in (
        'nmt_requests_total{code="200",route="/translate"} 1.0',
        'nmt_requests_total{code="400",route="/translate"} 1.0',
        'nmt_requests_total{code="404",route="(other)"} 1.0',
        "nmt_texts_total 3.0",
        f"nmt_characters_total {float(sum(map(len, TEXTS)))}",
        "nmt_queue_seconds_count 3.0",
        "nmt_search_seconds_count 1.0",
        "nmt_slots_in_use 0.0",
    ):
        assert line in page.split("\n")
    assert "process_resident_memory_bytes" in page


def test_waiting_time_is_never_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "monotonic", lambda: 10.0)
    own = Metrics()
    own.observe([SimpleNamespace(drafts=[[SimpleNamespace(started=5.0), SimpleNamespace(started=6.0)]])], 5.5)
    page = own.page().decode().split("\n")
    assert {"nmt_queue_seconds_sum 0.0", "nmt_queue_seconds_count 1.0", "nmt_search_seconds_sum 5.0"} <= {*page}
    assert [line.split('"')[1] for line in page if line.startswith("nmt_search_seconds_bucket")] == [
        *("0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5"),
        *("1.0", "2.5", "5.0", "10.0", "30.0", "60.0", "+Inf"),
    ]


def test_a_pool_closes_each_translator_once() -> None:
    one, other = Mock(load=(3, 5)), Mock(load=(10, 20))
    models = [ServedModel(one, "en", "de"), ServedModel(one, "en", "fr"), ServedModel(other, "de", "en")]
    with ModelPool(models, Metrics(), queue=1) as pool:
        page = pool.metrics.page().decode().split("\n")
        assert {"nmt_segments_waiting 13.0", "nmt_slots_in_use 25.0"} <= {*page}
        assert (pool.sources, pool.languages, pool.targets("en")) == (["en", "de"], ["en", "de", "fr"], ["de", "fr"])
        assert not one.close.called
    for each in (one, other):
        each.close.assert_called_once_with()


def test_the_log_contains_no_text_of_requests(client: TestClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.post("/translate", params={"q": "Geheimnis", **PAIR})
    client.get("/Geheimnis")
    client.post("/translate", json={"q": "Geheimnis", "source": "Geheimnis", "target": "de"})
    lines = capsys.readouterr().err.strip().split("\n")
    assert len(lines) == 3
    assert lines[0].startswith("POST /translate 200 1 text 9 characters ")
    assert not any("Geheimnis" in line for line in lines)


def test_the_log_has_sizes_and_time_of_a_request(
    client: TestClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "time", SimpleNamespace(monotonic=count(0, 0.0125).__next__))
    client.post("/translate", json={"q": TEXTS, **PAIR})
    client.get("/health")
    client.get("/x")
    assert capsys.readouterr().err == (
        f"POST /translate 200 3 texts {sum(map(len, TEXTS))} characters 12.5 ms\n"
        "GET /health 200 12.5 ms\nGET (other) 404 12.5 ms\n"
    )


def test_thirty_two_concurrent_clients_get_the_same_answers_as_alone(client: TestClient, alone: Translator) -> None:
    """100 texts of all lengths in random order with mixed options."""
    draw = random.Random(5)
    tasks = list[dict[str, Any]]()
    for number in range(100):
        words = draw.choices(WORDS, k=draw.choice([1, 3, 8, 20, 60]))
        kinds: list[dict[str, Any]] = [{}, {"alternatives": 2}, {"alternatives": 7}, {"format": "html"}]
        tasks.append({"q": f"{' '.join(words)} {number}.", **draw.choice(kinds)})
    expected = []
    for task in tasks:
        if "format" in task:
            expected.append([ask(client, **task)["translatedText"]])
        else:
            [best] = hypotheses(alone, task["q"], n_best=1 + task.get("alternatives", 0))
            expected.append(list(dict.fromkeys(best)))
    order = draw.sample(range(len(tasks)), len(tasks))
    with ThreadPoolExecutor(32) as threads:
        answers = dict(zip(order, threads.map(lambda i: ask(client, **tasks[i]), order), strict=True))
    for number, best in enumerate(expected):
        assert answers[number]["translatedText"] == best[0]
        assert answers[number].get("alternatives", []) == best[1:]


def test_the_page_loads_nothing_from_other_hosts(client: TestClient) -> None:
    for path in ("/", "/page/app.js"):
        headers = client.get(path).headers
        names = "Cache-Control", "X-Content-Type-Options", "Referrer-Policy"
        assert [headers[name] for name in names] == ["no-cache", "nosniff", "no-referrer"]
    policy = client.get("/").headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert client.get("/page/app.js").headers["Content-Security-Policy"] == policy


def test_text_detected_in_the_target_language_is_returned_unchanged(client: TestClient) -> None:
    text = "Das ist nicht der Hund, und er geht auch nicht nach Hause."
    answer = client.post("/sentences", json={"q": text, "source": "auto", "target": "de-AT"}).json()
    assert [each["hypotheses"] for each in answer["sentences"]] == [[{"text": text, "alignment": []}]]
    assert answer["detectedLanguage"]["language"] == "de"


@pytest.mark.parametrize(("sure", "stays"), [(SURE, True), (SURE - 1, False)])
def test_only_a_certain_detection_skips_translation(model: Path, sure: int, stays: bool) -> None:
    with service_of(model) as service, TestClient(create_app(service)) as client:
        service.detector.detect = lambda _: [("de", sure), ("en", 100 - sure)]
        answer = ask(client, q="rot", source="auto", target="de-AT")
        code, confidence = ("de", sure) if stays else ("en", 100 - sure)
        assert answer["detectedLanguage"] == {"language": code, "confidence": confidence}
        assert (answer["translatedText"] == "rot") == stays
