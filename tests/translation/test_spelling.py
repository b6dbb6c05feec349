"""Typos in the source are corrected with the words of the training text; all other words reach the model unchanged."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_model import WORDS, make_model
from translators import one_at_a_time, run, translator_by

from nmt_cli import Translator
from nmt_cli.corpus import words
from nmt_cli.corpus.terms import Term, Terms
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.transformer.weights import load_model, save_model
from nmt_cli.translation.spelling import Spelling

COUNTS = Counter(
    {"the": 90, "dog": 40, "dot": 12, "runs": 20, "young": 10, "rare": 9, "day": 30, "she": 15, "it": 99, "don": 10}
)


@pytest.fixture(scope="module")
def spelling() -> Spelling:
    return Spelling(COUNTS, "en")


@pytest.fixture(scope="module")
def spelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Translator]:
    """A model with words, which repeats its source."""
    directory = make_model(tmp_path_factory.mktemp("spelled"))
    (directory / "tokenizer.words").write_bytes(words.to_bytes(Counter({word.lower(): 50 for word in WORDS})))
    echo = one_at_a_time(lambda segment: [*segment.prefix, *segment.ids[:-1]])
    with translator_by(directory, echo) as translator:
        yield translator


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("teh dog", "the dog"),  # swapped
        ("yung youung yoing dag", "young young young dog"),  # dropped, doubled, replaced; dog beats day
        ("dogg do", "dog do"),  # two letters are too few
        ("ths rnus", "the runs"),
        ("raer", "raer"),  # too rare to be a correction
        ("tge dsy", "the day"),  # a neighboring key
        ("dfg", "dog"),
        ("xoung yxxng", "young yxxng"),  # two letters away
        ("rare", "rare"),
        ("Teh dog. Yuong", "The dog. Young"),
        ('"Teh (Teh', '"The (Teh'),  # only the first word of a sentence may have a capital
        ("the Yuong", "the Yuong"),
        ("runs: Yuong? Yuong! Yuong\u2026 Yuong", "runs: Yuong? Young! Young\u2026 Young"),
        (">>fr<< Teh teh", ">>fr<< The the"),
        ("TEH tEh", "TEH tEh"),
        ("teh-dgo teh's don't", "the-dog the's don't"),
        ("x@teh.de teh/dgo http://teh {teh} %teh teh_x a.teh", "x@teh.de the/dog http://teh {teh} %teh teh_x a.teh"),
        ("teh5 5teh", "the5 5the"),
        ("   ", "   "),
        ("", ""),
    ],
)
def test_words_one_letter_away_are_corrected(spelling: Spelling, text: str, corrected: str) -> None:
    assert spelling.corrected(text)[0] == corrected


def test_changes_are_told(spelling: Spelling) -> None:
    changes = {"Teh": "The", "teh": "the", "yuong": "young"}
    assert spelling.corrected("Teh teh dog, yuong") == ("The the dog, young", changes)
    assert spelling.corrected("the dog") == ("the dog", {})


def test_the_phrases_of_a_glossary_stay(spelling: Spelling) -> None:
    terms = Terms([Term("teh dgo", ("x",)), Term("yuong", ("y",))])
    assert spelling.corrected("teh dgo yuong teh", terms) == ("teh dgo yuong the", {"teh": "the"})


def test_rules_of_the_language() -> None:
    turkish = Spelling(Counter({"ılık": 20, "iyi": 20}), "tr")
    assert turkish.corrected("Ilkı. İyii")[0] == "Ilık. İyi"
    assert Spelling(Counter({"straße": 20}), "de").corrected("straßse")[0] == "straße"


def test_only_the_most_common_letters_are_tried() -> None:
    letters = [chr(0x430 + number) for number in range(70)]
    once = dict.fromkeys(letters, 10)
    twice = {f"{letter}x": 10 for letter in letters[6:]}
    spelling = Spelling(Counter(once | twice), "ru")
    assert set(spelling.alphabet) == {"x", *letters[6:69]}


def test_no_words_and_no_letters() -> None:
    assert Spelling(Counter(), "en").corrected("teh dog") == ("teh dog", {})


def test_a_model_with_words_corrects_and_one_without_does_not(spelled: Translator, echo: Translator) -> None:
    [found] = spelled.translate(["Dre Hudn ghet nicht"])
    assert (found.text, found.corrections) == ("Der Hudn geht nicht", {"Dre": "Der", "ghet": "geht"})
    texts = ["der hudn gehtt", "hnud"]
    assert [each.text for each in spelled.translate(texts)] == ["der hund geht", "hund"]
    assert [each.text for each in spelled.translate(texts, spelling="off")] == texts
    assert [each.text for each in echo.translate(texts)] == texts


def test_capitals_with_typos(spelled: Translator) -> None:
    [found] = spelled.translate(["DER HUDN GEHT NICHT"])
    assert (found.case, found.corrections) == ("upper", {"hudn": "hund"})
    assert found.text == "DER HUND GEHT NICHT"


def test_jsonl_and_the_log_tell_corrections(spelled: Translator) -> None:
    first, second = map(json.loads, run(spelled, b"der hudn\nder hund\n", format="jsonl").splitlines())
    assert first["spelling"] == {"hudn": "hund"}
    assert "spelling" not in second
    assert spelled.counts["corrected"] == 1


def test_pairs_are_scored_as_they_are(spelled: Translator) -> None:
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spelled, "score_ids", lambda ids: [seen.append(pair) or [0.0] * len(pair[1]) for pair in ids])
        list(spelled.score([("der hudn", "hudn")]))
    [[src, _]] = seen
    assert spelled.tokenizer.decode([src[:-1]]) == ["der hudn"]


def test_models_keep_the_words(tmp_path: Path) -> None:
    directory = make_model(tmp_path / "a")
    (tmp_path / "a/tokenizer.words").write_bytes(b"hund\t12\n")
    loaded = load_model(directory)
    save_model(tmp_path / "b", loaded.model.state_dict(), loaded.recipe, tmp_path / "a/tokenizer.model", {})
    assert (tmp_path / "b/tokenizer.words").read_bytes() == b"hund\t12\n"
    assert "tokenizer.words" in load_model(tmp_path / "b").manifest["files"]
    with Translator(tmp_path / "b") as translator:
        assert translator.segmenter.spelling is not None
        assert translator.segmenter.spelling.counts == {"hund": 12}
    assert Tokenizer(tmp_path / "b/tokenizer.model").vocabulary_size == loaded.config.vocabulary_size
