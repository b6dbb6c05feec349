"""Routes through other languages: their choice, and the texts, tags, terms and options that they pass on."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from tiny_model import make_model

pytest.importorskip("starlette")
from serving import TEXTS, client_of, hypotheses, service_of
from starlette.testclient import TestClient

from nmt_cli import Translator
from nmt_cli.corpus.terms import Term, Terms
from nmt_cli.documents.placement import Aligned
from nmt_cli.serving import route_runner
from nmt_cli.serving.app import create_app
from nmt_cli.serving.model_routes import ServedModel, routes_of
from nmt_cli.serving.route_runner import _compose, _join, _terms_of
from nmt_cli.translation.options import SearchOptions

HTML = "<p>der <b>Hund</b> geht %s. Die <i>Katze</i> nicht.</p>"


def names(*pairs: str, pivoting: bool = True) -> list[str]:
    models = [ServedModel(Mock(), *pair.split(">")) for pair in pairs]
    return [route.name for route in routes_of(models, pivot=pivoting).values()]


def test_the_shortest_route_is_chosen_and_english_among_equal_ones() -> None:
    assert names("de>es", "es>fr", "de>en", "en>fr") == ["de-es", "es-fr", "de-en", "en-fr", "de-en-fr"]
    assert "de-es-fr" in names("de>es", "es>fr", "de>en", "en>it", "it>fr")
    assert names("a>b", "b>c", "c>d", "d>e")[4:] == [
        "a-b-c",
        "a-b-c-d",
        "b-c-d",
        "b-c-d-e",
        "c-d-e",
    ]  # 3 models at most
    assert names("de>en", "en>de", "en>fr", "fr>en") == ["de-en", "en-de", "en-fr", "fr-en", "de-en-fr", "fr-en-de"]
    assert names("de>pt-BR", "pt>en") == ["de-pt_BR", "pt-en", "de-pt_BR-en"]
    assert names("de>zh-Hans", "zh-Hant>en") == ["de-zh_Hans", "zh_Hant-en"]
    assert names("de>en", "en>fr", pivoting=False) == ["de-en", "en-fr"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """de to en, and en to fr."""
    parent = tmp_path_factory.mktemp("routes")
    return [
        make_model(
            parent / f"{source}-{target}",
            f"corpus.src={source}",
            f"corpus.tgt={target}",
            "decoding.split=false",
            seed=seed,
        )
        for seed, (source, target) in ((5, ("de", "en")), (7, ("en", "fr")))  # with seed 5, translations have letters
    ]


@pytest.fixture(scope="module")
def client(models: list[Path]) -> Iterator[TestClient]:
    with client_of(*models) as client:
        yield client
        client.portal.call(client.app.state.service.pool.workers.close)


@pytest.fixture(scope="module")
def both(models: list[Path]) -> Iterator[list[Translator]]:
    with Translator(models[0], precision="fp32") as first, Translator(models[1], precision="fp32") as second:
        yield [first, second]


def test_a_pair_without_a_model_is_translated_through_english(client: TestClient, both: list[Translator]) -> None:
    assert client.get("/languages").json()[0] == {"code": "de", "name": "German", "targets": ["en", "fr"]}
    english = [best for [best] in hypotheses(both[0], *TEXTS)]
    expected = hypotheses(both[1], *english, n_best=3)
    answer = client.post("/translate", json={"q": TEXTS, "source": "de", "target": "fr", "alternatives": 2})
    assert answer.headers["X-NMT-Route"] == "de-en-fr"
    assert answer.json()["translatedText"] == [best for best, *_ in expected]
    assert answer.json()["alternatives"] == [list(dict.fromkeys(each))[1:] for each in expected]
    direct = client.post("/translate", json={"q": TEXTS, "source": "de", "target": "en"})
    assert (direct.headers["X-NMT-Route"], direct.json()["translatedText"]) == ("de-en", english)
    assert "X-NMT-Route" not in client.get("/health").headers


def test_sentences_pass_one_by_one_and_line_ends_stay(client: TestClient, both: list[Translator]) -> None:
    parts = ["der Hund geht.", "die Katze nicht.", "rot und"]
    english = [best for [best] in hypotheses(both[0], *parts)]
    first, second, third = (best for [best] in hypotheses(both[1], *english))
    text = f"  {parts[0]} {parts[1]}\r\n\n{parts[2]} "
    answer = client.post("/translate", json={"q": text, "source": "de", "target": "fr"}).json()
    assert answer == {"translatedText": f"{' '.join(filter(None, (first, second)))}\r\n\n{third}"}


def test_tags_and_placeholders_survive_both_steps(client: TestClient) -> None:
    for fields in ({"q": HTML}, {"q": [HTML] * 40, "alternatives": 1}):  # in a thread, and in a process
        answer = client.post("/translate", json={"source": "de", "target": "fr", "format": "html", **fields}).json()
        for text in [answer["translatedText"]] if isinstance(fields["q"], str) else answer["translatedText"]:
            assert [text.count(tag) > 0 for tag in ("<p>", "<b>", "</b>", "<i>", "</i>", "%s")] == [True] * 6


def test_links_are_composed() -> None:
    """die Katze schläft -> the cat sleeps -> le chat dort"""
    first = Aligned("the cat sleeps", [(3, 0), (7, 4), (14, 10)])
    second = [Aligned("le chat dort", [(2, 0), (7, 4), (12, 8)]), Aligned("dort le", [(4, 8), (7, 0)])]
    assert [each.links for each in _compose(first, second)] == [
        [(2, 0), (7, 4), (12, 10)],
        [(4, 10), (7, 0)],
    ]
    assert _compose(Aligned("", []), [Aligned("x", [(1, 5)])]) == [Aligned("x", [(1, 0)])]
    joined = _join([(2, 8), (9, 12)], [[Aligned("ab", [(2, 1)])], [Aligned("c", [(1, 2)]), Aligned("d", [])]])
    assert joined == [Aligned("ab c", [(2, 3), (4, 11)]), Aligned("ab d", [(2, 3)])]
    assert [each.text for each in _join([(0, 1), (1, 2)], [[Aligned("犬", [])], [Aligned("猫", [])]])] == ["犬猫"]


def test_the_page_shows_words_aligned_over_both_steps(client: TestClient) -> None:
    text = "der Hund geht. die Katze ist rot"
    answer = client.post("/sentences", json={"q": text, "source": "de", "target": "fr", "alternatives": 1})
    assert answer.headers["X-NMT-Route"] == "de-en-fr"
    items = answer.json()["sentences"]
    assert [item["source"] for item in items] == ["der Hund geht.", "die Katze ist rot"]
    starts = {0, 4, 9, 10, 13, 14}
    for item in items:
        assert len(item["hypotheses"]) == 2
        for one in item["hypotheses"]:
            assert {origin for origin, _ in one["alignment"]} <= starts | {len("die Katze "), len("der Hund geht")}


def test_a_glossary_applies_to_the_last_step(client: TestClient) -> None:
    entries = {"name": "x", "source_lang": "de", "target_lang": "fr", "entries_format": "csv", "entries": "Hund,Baum"}
    key = client.post("/v2/glossaries", json=entries).json()["glossary_id"]
    fields = {"text": ["der Hund geht. das Haus", "das Haus"], "source_lang": "DE", "target_lang": "FR"}
    with_terms, without = client.post("/v2/translate", json={**fields, "glossary_id": key}).json()["translations"]
    assert "Baum" in with_terms["text"].split()
    assert [without] == client.post("/v2/translate", json={**fields, "text": ["das Haus"]}).json()["translations"]
    assert {"source_lang": "de", "target_lang": "fr"} in client.get("/v2/glossary-language-pairs").json()[
        "supported_languages"
    ]


def test_without_pivoting_the_pair_is_refused(models: list[Path]) -> None:
    with service_of(*models, pivot=False) as service, TestClient(create_app(service)) as client:
        assert client.get("/languages").json()[0]["targets"] == ["en"]
        answer = client.post("/translate", json={"q": "rot", "source": "de", "target": "fr"})
        assert answer.json() == {"error": "fr is not available as a target language from de"}


def test_both_steps_are_counted_and_limited(models: list[Path]) -> None:
    with service_of(*models) as service, TestClient(create_app(service)) as client:
        client.post("/translate", json={"q": "rot", "source": "de", "target": "fr"})
        page = client.get("/metrics").text
        assert "nmt_search_seconds_count 2.0" in page
        assert "nmt_texts_total 1.0" in page
        refused = client.post(
            "/translate", json={"q": "aa. " * 1200, "source": "de", "target": "fr", "alternatives": 10}
        )
        assert refused.status_code == 400
        assert service.pool.costs.used == 0


def test_terms_in_capitals_are_found_in_sentence_case() -> None:
    dog = Term("Hund", ("chien",), any_case=True)
    model = ServedModel(Mock(), "en", "fr", ">>fr<< ")
    found = _terms_of(Terms([dog]), ["DER HUND", "die Katze"], ["THE DOG", "the cat"], model)
    assert [found.find(text) for text in (">>fr<< The dog", ">>fr<< the cat", "x")] == [[dog], [], []]
    turkish = _terms_of(Terms([dog]), ["DER HUND"], ["KÖPEK I\u015eIK"], ServedModel(Mock(), "tr", "fr"))
    assert turkish.find("Köpek ışık") == [dog]


def test_only_the_first_model_corrects_typos(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str | None]()

    async def step(_: object, model: ServedModel, units: list[str], options: SearchOptions) -> list[list[Aligned]]:
        seen.append(options.spelling)
        return [[Aligned(unit, [])] for unit in units]

    monkeypatch.setattr(route_runner, "_step", step)
    for asked in (None, "auto", "off"):
        more = {"spelling": asked} if asked else {}
        client.post("/translate", json={"q": "der Hund", "source": "de", "target": "fr", **more}).raise_for_status()
    assert seen == [None, "off", "auto", "off", "off", "off"]
    entries = {"name": "y", "source_lang": "de", "target_lang": "fr", "entries_format": "csv", "entries": "Hudn,Baum"}
    key = client.post("/v2/glossaries", json=entries).json()["glossary_id"]
    fields = {"text": ["der Hudn"], "source_lang": "DE", "target_lang": "FR", "glossary_id": key}
    client.post("/v2/translate", json=fields).raise_for_status()
    assert seen[6:] == ["off", "off"]  # a correction could change the phrase of a term
    answer = client.post("/translate", json={"q": "x", "source": "de", "target": "fr", "spelling": "x"})
    assert answer.json() == {"error": "Invalid request: spelling must be auto or off"}


def test_lines_that_a_request_joins_pass_as_one_sentence(client: TestClient, both: list[Translator]) -> None:
    """DeepL's split_sentences=nonewlines works on a route, too."""
    text = "der Hund\ngeht und\nist rot"
    [[english]] = hypotheses(both[0], text.replace("\n", " "))
    [[french]] = hypotheses(both[1], english)
    fields = {"text": [text], "source_lang": "DE", "target_lang": "FR", "split_sentences": "nonewlines"}
    assert client.post("/v2/translate", json=fields).json()["translations"][0]["text"] == french


def test_terms_of_a_sentence_in_capitals_are_found_on_a_route() -> None:
    terms = Terms([Term("der Hund", ("chien",)), Term("Katze", ("chat",))])
    model = ServedModel(Mock(), "en", "fr")
    found = _terms_of(terms, ["DER HUND GEHT NICHT", "katze"], ["THE DOG", "a cat"], model)
    assert [term.source for term in found.find("the dog")] == ["der Hund"]
    assert found.find("a cat") == []
