"""Models of several language pairs know which pairs they were trained to translate."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from serving import client_of, service_of
from tiny_model import make_model, make_pairs_model

from nmt_cli.interop.model_kinds import find_models
from nmt_cli.recipe import loading
from nmt_cli.serving import server
from nmt_cli.serving.language_routes import ServedModel, untrained
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError
from nmt_cli.transformer import config as model_config
from nmt_cli.transformer.directory import open_model
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.stored_models import directions_of

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
    assert pairs_of(sources=[ours, {**french, "split": "dev"}]) == [["en", "de"]], "a dev set trains nothing"
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
