"""Models of several language pairs know which pairs they were trained to translate."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from serving import client_of, service_of
from tiny_model import content, make_model, make_pairs_model, memory_file

from nmt_cli import Translator
from nmt_cli.documents import translate as documents
from nmt_cli.interop.model_kinds import find_models
from nmt_cli.recipe import loading
from nmt_cli.serving import server
from nmt_cli.serving.model_routes import ServedModel, untrained
from nmt_cli.storage import artefact
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.transformer import config as model_config
from nmt_cli.transformer.directory import open_model
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.pending import Translation
from nmt_cli.translation.stored_models import Direction, direction_to, directions_of
from nmt_cli.translation.translate import TranslateOptions
from nmt_cli.translation.writer import formatted

PAIRS = "en-de", "de-en", "en-fr", "fr-en"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pairs_model(tmp_path_factory.mktemp("several"), *PAIRS)


def corpus_of(**changes: Any) -> Any:
    return loading.from_plain({"name": "x", "corpus": {"name": "own", "src": "en", "tgt": "de", **changes}}, "test")


def pairs_of(**changes: Any) -> list[list[str]]:
    return model_config.from_recipe(corpus_of(**changes), 340).pairs


def test_the_pairs_of_a_model_are_those_of_its_training_text() -> None:
    ours, french = {"files": ["a.tsv"]}, {"files": ["b.tsv"], "tgt": "fr"}
    assert pairs_of(sources=[ours, french, {"files": ["c.tsv"]}]) == [["en", "de"], ["en", "fr"]]
    assert pairs_of(sources=[ours, {**french, "split": "dev"}]) == [["en", "de"]], "a dev set is not training text"
    assert pairs_of(sources=[ours, {"files": ["b.tsv"], "src": "nl"}]) == [["en", "de"], ["nl", "de"]]
    synthetic = {"files": ["x"], "model": "m", "src": "fr", "tgt": "en"}
    assert pairs_of(sources=[ours], synthetic=[synthetic]) == [["en", "de"], ["fr", "en"]]
    assert pairs_of(sources=[ours]) == pairs_of() == []


def test_a_model_translates_the_pairs_of_its_training_text(several: Path, tmp_path: Path) -> None:
    opened = open_model(several)
    found = directions_of(opened.config, opened.tokenizer)
    assert found == (
        ("en", "de", ">>de<< "), ("de", "en", ">>en<< "), ("en", "fr", ">>fr<< "), ("fr", "en", ">>en<< ")
    )  # fmt: skip
    [stored] = [each for each in find_models(several.parent) if each.path.name == "model"]
    assert stored.directions == found
    to_english = make_pairs_model(tmp_path, "de-en", "fr-en")
    assert open_model(to_english).config.pairs == [["de", "en"], ["fr", "en"]]
    [_, stored] = sorted(find_models(tmp_path), key=lambda each: each.path.name)
    assert stored.directions == (("de", "en", ""), ("fr", "en", "")), "one target language needs no token"


def test_a_model_json_without_pairs_is_read_as_before(several: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    values = artefact.read_json(several / "model.json")
    assert values.pop("pairs") == [pair.split("-") for pair in PAIRS]
    rewrite(several, old, values)
    loaded = load_model(old)
    found = directions_of(loaded.config, loaded.tokenizer)
    assert found == (("en", "de", ">>de<< "), ("en", "en", ">>en<< "), ("en", "fr", ">>fr<< "))
    rewrite(several, tmp_path / "edited", {**values, "pairs": [["en", "it"]]})
    with pytest.raises(DataError, match="one of them was edited"):
        load_model(tmp_path / "edited")
    rewrite(several, tmp_path / "damaged", {**values, "pairs": [["en"]]})
    with pytest.raises(DataError, match=r"pairs\.0 must be two language codes, not \"\['en'\]\""):
        open_model(tmp_path / "damaged")


def rewrite(model: Path, to: Path, values: dict[str, Any]) -> None:
    """Copy a model, and replace its model.json."""
    manifest = artefact.read_json(model / artefact.MANIFEST)
    with artefact.staged(to, "model", {"created": manifest["created"]}) as stage:
        for name in manifest["files"]:
            artefact.write_file(stage / name, (model / name).read_bytes())
        (stage / "model.json").write_text(json.dumps(values))


def test_the_server_offers_the_trained_pairs(several: Path) -> None:
    with client_of(several) as client:
        languages = {each["code"]: each["targets"] for each in client.get("/languages").json()}
        assert {code: sorted({*targets} - {code}) for code, targets in languages.items()} == {
            "en": ["de", "fr"], "de": ["en", "fr"], "fr": ["de", "en"]
        }  # fmt: skip
        for source, target, route in (("de", "en", "de-en"), ("fr", "en", "fr-en"), ("de", "fr", "de-en-fr")):
            answer = client.post("/translate", json={"q": "der Hund geht", "source": source, "target": target})
            assert (answer.status_code, answer.headers["X-NMT-Route"]) == (200, route)
        answer = client.post("/translate", json={"q": "Der Hund geht nicht mit.", "source": "auto", "target": "en"})
        assert answer.json()["detectedLanguage"]["language"] == "de"
    with service_of(several, pivot=False) as service:
        assert service.pool.targets("de") == ["en"]


def test_pairs_without_training_text_are_offered_only_if_asked_for(several: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path, "corpus.src=fr", "corpus.tgt=de")
    options = {"models": (several, other), "precision": "fp32", "workers": 1}
    for zero_shot, expected in ((False, []), (True, ["de-fr"])):
        models = server._models(server.ServeOptions(**options, zero_shot=zero_shot))
        names = [f"{each.source}-{each.target}" for each in models]
        assert names == [*PAIRS, "fr-de", *expected], "a model that was trained for fr-de has priority"
        for each in {id(each.translator): each.translator for each in models}.values():
            each.close()
    assert models[-1].prefix == ">>fr<< "
    one, two = Mock(), Mock()
    plain = [ServedModel(one, "en", "de"), ServedModel(one, "nl", "de"), ServedModel(two, "fr", "en")]
    assert untrained(plain) == []


def test_without_a_choice_the_language_of_the_model_is_the_target(several: Path, tmp_path: Path) -> None:
    """A line, a pair to score and a file get the token of that language unless they begin with a language token."""
    lines = ["der Hund geht", "3 4", "die Katze ist rot und der Hund geht " * 9]
    with Translator(several, precision="fp32", workers=1) as translator:
        chosen, plain = (list(translator.translate(lines, target=code, alignments=True)) for code in ("de", ""))
        assert [shown(one, translator) for one in plain] == [shown(one, translator) for one in chosen]
        for code in ("", "de"):
            [own] = translator.translate([">>fr<< der Hund geht"], target=code)
            assert translator.tokenizer.tokens(own.segments[0].ids)[:2] == ["\u2581>>fr<<", "\u2581der"]
        [first, second] = translator.score([(line, "rot") for line in ("der Hund", ">>de<< der Hund")])
        assert first == second
        assert next(translator.score([(">>fr<< der Hund", "rot")])) != first
    source, target = memory_file(b"<p>der Hund</p>"), memory_file()
    with Translator(several, precision="fp32", workers=1) as translator, Progress("translating", None, "") as progress:
        documents.runner("html", None, None, [], {})(translator, TranslateOptions(), source, target, progress)
        [one] = translator.translate(["der Hund"], target="de")
    assert content(target).decode() == f"<p>{one.text.strip()}</p>"


def shown(one: Translation, translator: Translator) -> Any:
    [row] = formatted(one, 1, translator.tokenizer, "jsonl")
    return json.loads(row)


def test_a_tag_before_a_line_selects_no_language(several: Path, tmp_path: Path) -> None:
    values = {**artefact.read_json(several / "model.json"), "tags": ["fr"], "pairs": [["en", "de"], ["de", "en"]]}
    rewrite(several, tmp_path / "tagged", values)
    with Translator(tmp_path / "tagged", precision="fp32", workers=1) as translator:
        [tagged, other] = translator.translate([">>fr<< der Hund", ">>en<< der Hund"])
        assert [translator.tokenizer.tokens(one.segments[0].ids)[:2] for one in (tagged, other)] == [
            ["\u2581>>de<<", "\u2581>>fr<<"], ["\u2581>>en<<", "\u2581der"]
        ]  # fmt: skip


def test_a_model_that_does_not_store_its_pairs_gets_no_token(several: Path, tmp_path: Path) -> None:
    values = artefact.read_json(several / "model.json")
    del values["pairs"]
    rewrite(several, tmp_path / "old", values)
    with Translator(tmp_path / "old", precision="fp32", workers=1) as translator:
        [plain] = translator.translate(["der Hund"])
        assert translator.tokenizer.tokens(plain.segments[0].ids)[0] == "\u2581der"


def test_the_pair_to_a_language() -> None:
    pairs = [["de", "fr"], ["de", "en"], ["en", "fra"]]
    config = replace(model_config.from_recipe(corpus_of(), 340), pairs=pairs)
    directions = [Direction(source, target, f">>{target}<< ") for source, target in pairs]
    assert direction_to("", config, directions) == directions[0], "the model has no text in its own target language"
    assert direction_to("", replace(config, tgt="fra"), directions) == directions[2]
    assert direction_to("en", config, directions) == directions[1]
    both = [*directions, Direction("en", "en")]
    assert direction_to("en", config, both) == both[3], "the model's own source language has priority"
    with pytest.raises(UsageError, match=r"^the model does not translate to 'es', only to fr, en, fra$"):
        direction_to("es", config, directions)
    assert direction_to("", replace(config, pairs=[]), directions) == ("en", "de", "")
