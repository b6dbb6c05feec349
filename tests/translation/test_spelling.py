"""Typos in the source are corrected with the words of the training text; all other words reach the model unchanged."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_model import WORDS, make_model
from translators import one_at_a_time, one_by_one, run, translator_by

from nmt_cli import Translator
from nmt_cli.corpus import words
from nmt_cli.corpus.terms import Term, Terms
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.documents.alignment import align
from nmt_cli.transformer.weights import load_model, save_model
from nmt_cli.translation.case import Case, Part
from nmt_cli.translation.segments import Hypothesis, Segment
from nmt_cli.translation.spelling import Spelling

COUNTS = Counter(
    {"the": 90, "dog": 40, "dot": 12, "runs": 20, "young": 10, "rare": 9, "day": 30, "it": 99, "don't": 10, "don": 10}
)


@pytest.fixture(scope="module")
def spelling() -> Spelling:
    return Spelling(COUNTS)


@pytest.fixture(scope="module")
def spelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Translator]:
    """A model with a file of words, which repeats its source."""
    directory = make_model(tmp_path_factory.mktemp("spelled"))
    (directory / "tokenizer.words").write_bytes(words.to_bytes(Counter({word.lower(): 50 for word in WORDS})))
    echo = one_at_a_time(lambda segment: [*segment.prefix, *segment.ids[:-1]])
    with translator_by(directory, echo) as translator:
        yield translator


@pytest.mark.parametrize(
    ("text", "corrected"),
    [
        ("teh dog", "the dog"),  # swapped
        ("yung youung yoing dag", "young young young dog"),  # left out, doubled, replaced; dog beats day
        ("tge dsy", "the day"),  # a neighboring key, which is likelier than dog, although dog is more frequent
        ("dfg", "dog"),
        ("dogg do", "dog do"),  # two letters are too few
        ("ths rnus", "the runs"),
        ("raer", "raer"),  # too rare to be a correction
        ("xoung yxxng", "young yxxng"),  # two letters away
        ("rare", "rare"),
        ("dont", "don't"),
        ('"teh (dgo) teh... teh?!', '"the (dog) the... the?!'),
        (">>fr<< teh", ">>fr<< the"),
        ("Teh TEH tEh Mrs. Yuong", "Teh TEH tEh Mrs. Yuong"),
        ("teh-dgo teh's teh/dgo teh5 5teh te\u0301h teh\u00b9", "teh-dgo teh's teh/dgo teh5 5teh te\u0301h teh\u00b9"),
        ("x@teh.de http://teh {teh} %teh teh_x a.teh --teh=dgo `teh` <teh>",) * 2,
        ("teh을 teh狗 тeh", "teh을 teh狗 тeh"),
        ("   ", "   "),
        ("", ""),
    ],
)
def test_words_one_letter_away_are_corrected(spelling: Spelling, text: str, corrected: str) -> None:
    assert spelling.corrected(text)[0] == corrected


def test_changes_are_returned(spelling: Spelling) -> None:
    changes = {"teh": "the", "yuong": "young"}
    assert spelling.corrected("teh teh dog, yuong") == ("the the dog, young", changes)
    assert spelling.corrected("the dog") == ("the dog", {})


def test_the_phrases_of_a_glossary_are_not_corrected(spelling: Spelling) -> None:
    terms = Terms([Term("teh dgo", ("x",)), Term("yuong", ("y",))])
    assert spelling.corrected("teh dgo yuong teh", terms) == ("teh dgo yuong the", {"teh": "the"})


def test_only_the_most_common_letters_are_tried() -> None:
    letters = [chr(0x430 + number) for number in range(70)]
    once = dict.fromkeys(letters, 10)
    twice = {f"{letter}x": 10 for letter in letters[6:]}
    spelling = Spelling(Counter(once | twice))
    assert set(spelling.alphabet) == {"x", *letters[6:69]}


def test_without_words_nothing_is_corrected() -> None:
    assert Spelling(Counter()).corrected("teh dog") == ("teh dog", {})


def test_a_model_with_words_corrects_and_one_without_does_not(spelled: Translator, echo: Translator) -> None:
    [found] = spelled.translate(["Dre Hudn ghet nicht"])
    assert (found.text, found.corrections) == ("Dre Hudn geht nicht", {"ghet": "geht"})
    texts = ["der hudn gehtt", "hnud"]
    assert [each.text for each in spelled.translate(texts)] == ["der hund geht", "hund"]
    assert [each.text for each in spelled.translate(texts, spelling="off")] == texts
    assert [each.text for each in echo.translate(texts)] == texts


def test_typos_in_capitals_are_corrected(spelled: Translator) -> None:
    [found] = spelled.translate(["DER HUDN GEHT NICHT"])
    assert (found.case, found.corrections) == ("upper", {"hudn": "hund"})
    assert found.text == "DER HUND GEHT NICHT"


def test_jsonl_lists_corrections(spelled: Translator) -> None:
    first, second = map(json.loads, run(spelled, b"der hudn\nder hund\n", format="jsonl").splitlines())
    assert first["spelling"] == {"hudn": "hund"}
    assert "spelling" not in second
    assert spelled.counts["corrected"] == 1


def test_pairs_are_scored_without_corrections(spelled: Translator) -> None:
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spelled, "score_ids", lambda ids: [seen.append(pair) or [0.0] * len(pair[1]) for pair in ids])
        list(spelled.score([("der hudn", "hudn")]))
    [[src, _]] = seen
    assert spelled.tokenizer.decode([src[:-1]]) == ["der hudn"]


def test_a_saved_model_keeps_the_words(tmp_path: Path) -> None:
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


def test_a_large_text_requires_more_frequent_words() -> None:
    counts = Counter({"the": 10_000_000, "young": 19, "younger": 20})
    spelling = Spelling(counts)
    assert sum(counts.values()) // 500_000 == 20
    assert spelling.corrected("yuong yuonger")[0] == "yuong younger"


def test_the_most_frequent_word_wins_and_then_the_last_of_the_alphabet() -> None:
    assert Spelling(Counter({"cat": 10, "cut": 10, "cot": 11})).corrected("ct")[0] == "ct"
    assert Spelling(Counter({"catt": 10, "cutt": 10})).corrected("ctt")[0] == "cutt"
    assert Spelling(Counter({"catt": 11, "cutt": 10})).corrected("ctt")[0] == "catt"


def test_a_typo_does_not_move_the_links_of_an_alignment(tmp_path: Path) -> None:
    """This also holds for a text so long that its characters are not compared."""

    def find(segment: Segment) -> list[Hypothesis]:
        ids = segment.ids[:-1]
        steps = [-1.0] * len(segment.ids)
        return [Hypothesis(ids, sum(steps), -1.0, steps, source_positions=range(len(ids)))]

    source = random.Random(1).choices(["hund", "katze", "baum"], k=500)
    typed = [*source[:3], source[3][:1] + source[3], *source[4:]]
    with translator_by(make_model(tmp_path, "model.max_length=4000"), one_by_one(find)) as translator:
        translator.segmenter.spelling = Spelling(Counter(dict.fromkeys(source, 50)))
        numbers = []  # of the words that the links lead to
        for lines in (source, typed):
            text = " ".join(lines)
            [found] = translator.translate([text], alignments=True, split=False)
            assert bool(found.corrections) == (lines is typed)
            numbers.append([text.count(" ", 0, origin) for _, origin in align(translator, found, text).links])
    assert numbers[0] == numbers[1]
    assert set(numbers[0]) == set(range(500))


def test_words_stay_in_capitals_after_a_correction(spelling: Spelling) -> None:
    case = Case("words", "en", "de", capitals=frozenset({"yuong", "Yuong", "it"}))
    part, changes = spelling.part(Part("it is yuong", case), None)
    assert part == Part("it is young", replace(case, capitals=frozenset({"young", "Yuong", "it"})))
    assert changes == {"yuong": "young"}
    assert spelling.part(Part("it is Yuong", case), None) == (Part("it is Yuong", case), {})


def test_trees_and_stored_settings_turn_corrections_off(tmp_path: Path) -> None:
    for number, change in enumerate(("corpus.format=trees", "decoding.spelling=off")):
        directory = make_model(tmp_path / str(number), change)
        (directory / "tokenizer.words").write_bytes(b"hund\t50\n")
        echo = one_at_a_time(lambda segment: [*segment.prefix, *segment.ids[:-1]])
        with translator_by(directory, echo) as translator:
            assert [each.text for each in translator.translate(["der hudn"])] == ["der hudn"]
    with translator_by(make_model(tmp_path / "3"), echo) as none, pytest.MonkeyPatch.context() as patch:
        patch.setattr(none.segmenter, "spelling", Spelling(Counter({"hund": 50})))
        assert [each.text for each in none.translate(["der hudn"])] == ["der hund"]


@pytest.mark.parametrize("given_wins", [True, False])
def test_if_the_given_case_wins_nothing_was_corrected(tmp_path: Path, given_wins: bool) -> None:
    """Only the text in sentence case is corrected."""

    def find(segment: Segment) -> list[Hypothesis]:
        given = "Hudn" in translator.tokenizer.decode([segment.ids])[0]
        steps = [-0.1 if given == given_wins else -1.0] * len(segment.ids)
        return [Hypothesis(segment.ids[:-1], sum(steps), -1.0, steps)]

    with translator_by(make_model(tmp_path), one_by_one(find)) as translator:
        translator.segmenter.spelling = Spelling(Counter({"hund": 50, "der": 50, "geht": 50}))
        [found] = translator.translate(["Der Hudn Geht"])
        assert (found.case, found.corrections) == ((None, {}) if given_wins else ("title", {"hudn": "hund"}))
        assert translator.counts["corrected"] == (not given_wins)
