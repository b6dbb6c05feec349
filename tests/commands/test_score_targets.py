"""`nmt score --model` with a model that has several target languages."""

import json
from pathlib import Path

import pytest
import texts
from command_line import Nmt
from tiny_model import make_model, make_pairs_model

from nmt_cli import Translator


@pytest.fixture
def several(tmp_path: Path) -> Path:
    """A model from EN to DE and FR. Its translations are the references test.de and test.fr."""
    model = make_pairs_model(tmp_path / "m", "en-de", "en-fr")
    (tmp_path / "test.en").write_text("der Hund geht\ndie Katze ist rot und das Haus\n")
    with Translator(model, workers=1) as translator:
        for code in ("de", "fr"):
            lines = translator.translate((tmp_path / "test.en").read_text().splitlines(), target=code)
            (tmp_path / f"test.{code}").write_text("".join(f"{line.text}\n" for line in lines))
    assert (tmp_path / "test.de").read_bytes() != (tmp_path / "test.fr").read_bytes()
    return model


def score(nmt: Nmt, *words: str) -> float:
    code, out, err = nmt("score", *words, "--metric", "chrf", "--format", "json", "--no-intervals")
    assert code == 0, err
    return float(json.loads(out)["scores"][0]["score"])


@pytest.mark.parametrize("choice", ["--to fr", "--language fra", "--language-pair en-fr", "--to fr --robust"])
def test_the_language_of_the_references_is_the_target(nmt: Nmt, several: Path, choice: str) -> None:
    words = ["--model", str(several), "--source", "test.en"]
    assert score(nmt, *words, "--reference", "test.fr", *choice.split()) == 100
    assert score(nmt, *words, "--reference", "test.de", *choice.split()) < 100
    assert score(nmt, *words, "--reference", "test.de") == 100, "by default, the language of the model"


def test_a_language_that_the_model_lacks_is_refused(nmt: Nmt, several: Path) -> None:
    words = ["score", "--source", "test.en", "--reference", "test.fr", "--to", "es", "--model"]
    code, _, err = nmt(*words, str(several))
    assert (code, "the model does not translate to 'es', only to de, fr" in err) == (2, True)
    single = make_model(several.parent.parent / "single")
    assert nmt(*words, str(single))[0] == 0, "with one target language, there is nothing to choose"


def test_the_lines_of_a_corpus_are_in_its_language(nmt: Nmt, several: Path, tmp_path: Path) -> None:
    """Lines that begin with a language token keep it."""
    some = texts.pairs(60)
    for name, pairs in (("train", some[6:]), ("test", some[:6])):
        (tmp_path / f"{name}.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    test = {"files": [str(tmp_path / "test.tsv")], "split": "test"}
    train = {"files": [str(tmp_path / "train.tsv")]}
    for language, sources in (("fr", [test, train]), ("it", [{**test, "tgt": "fr"}, {**train, "tgt": "de"}])):
        corpus = {
            "name": "own",
            "src": "en",
            "tgt": language,
            "sources": sources,
            "tokenizer": {"vocabulary_size": 300},
        }
        data = texts.run(texts.corpus(corpus), tmp_path / f"data-{language}")
        with Translator(several, workers=1) as translator:
            lines = [line.text for line in translator.translate([src for src, _ in some[:6]], target="fr")]
        (tmp_path / "hyp").write_text("".join(f"{line}\n" for line in lines))
        given = ["--corpus", str(data)]
        assert score(nmt, *given, "--model", str(several)) == score(nmt, "hyp", *given)
