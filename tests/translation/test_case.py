"""Text in capitals or title case, or with words in capitals, is searched in sentence case and written in its own."""

import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from serving import client_of
from translators import one_by_one, records, run, translator_by

from nmt_cli import Sampling, Terms, Translator
from nmt_cli.corpus import tokenizer as spm
from nmt_cli.corpus.tokenizer import PAD
from nmt_cli.documents import html
from nmt_cli.documents.alignment import align, translate_aligned
from nmt_cli.documents.placement import place_marks
from nmt_cli.documents.segment import render, segments_of
from nmt_cli.translation.case import Caser, Part
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.pending import Translation
from nmt_cli.translation.segments import Hypothesis, Segment
from nmt_cli.translation.writer import alignment

SEARCHED = list[str]()  # the texts that a test's model has searched
ANSWERS = Path(__file__).parents[1] / "data" / "case.txt"


def answers() -> Iterator[tuple[str, str, list[str], str, bool]]:
    """Yield languages, the given text, the texts to search, the translation, and whether the model chooses the case."""
    for line in ANSWERS.read_text(encoding="utf-8").split("\n"):
        if line and not line.startswith("#"):
            languages, given, searched, written = line.split("\t")
            texts = given if searched == "=" else searched.removeprefix("? ")
            yield languages, given, texts.split(" | "), given if written == "=" else written, searched[0] == "?"


ALL_ANSWERS = list(answers())


def echoed(segment: Segment, translator: Translator) -> list[Hypothesis]:
    SEARCHED.append(translator.tokenizer.decode([segment.ids[:-1]])[0])
    head = len(translator.tokenizer.language(segment.ids))
    ids = segment.prefix + segment.ids[head:-1]
    steps = [-1.0] * (len(ids) + 1)
    positions = [*[head] * len(segment.prefix), *range(head, len(segment.ids) - 1)]
    return [Hypothesis(ids, sum(steps), -1.0, steps, source_positions=positions)] * segment.options.n_best


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer that knows the words of the answers."""
    texts = [text for _, _, searched, _, _ in ALL_ANSWERS for text in searched]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_model, "train_tokenizer", lambda: spm.train(texts * 20, 1600, tags=[">>deu<<"]))
        return tiny_model.make_model(tmp_path_factory.mktemp("case"))


@pytest.fixture(scope="module")
def echo(model: Path) -> Iterator[Translator]:
    with translator_by(model, one_by_one(lambda segment: echoed(segment, translator))) as translator:
        yield translator


def translated(translator: Translator, languages: str, text: str, **options: Any) -> Translation:
    translator.segmenter.caser = Caser(translator.tokenizer, *languages.split(">"))
    [translation] = translator.translate([text], **options)
    return translation


def searched(translation: Translation, translator: Translator) -> list[str]:
    return translator.tokenizer.decode([segment.ids[:-1] for segment in translation.segments])


def test_the_answers_written_by_hand(echo: Translator) -> None:
    wrong = []
    for languages, given, texts, written, asks in ALL_ANSWERS:
        SEARCHED.clear()
        found = translated(echo, languages, given)
        if ((searched(found, echo) or [given]), found.text, given in SEARCHED and given not in texts) != (
            texts, written, asks,
        ):  # fmt: skip
            wrong.append((given, searched(found, echo), found.text, SEARCHED[:]))
    assert wrong == []


def test_off_searches_and_writes_text_as_it_is(echo: Translator) -> None:
    for languages, given, _, _, _ in ALL_ANSWERS:
        found = translated(echo, languages, given, case="off")
        assert searched(found, echo) in ([given], [])
        assert found.case is None


def test_the_model_chooses_by_the_likelihood_of_a_token(model: Path) -> None:
    """A translation that loops is never chosen, however likely it is."""
    likely = {"Hot water": (-1.0, "water"), "HOT WATER": (-2.0, "HOT")}
    with translator_by(model, one_by_one(lambda segment: found(segment))) as translator:

        def found(segment: Segment) -> list[Hypothesis]:
            value, text = likely[translator.tokenizer.decode([segment.ids[:-1]])[0]]
            [ids] = translator.tokenizer.encode([text])
            return [Hypothesis(ids, value * (len(ids) + 1), value, [value] * (len(ids) + 1))]

        assert translated(translator, "en>de", "HOT WATER").text == "WATER"
        likely["HOT WATER"] = (-0.4, "HOT")
        chosen = translated(translator, "en>de", "HOT WATER")
        assert (chosen.text, chosen.case) == ("HOT", None)
        likely["HOT WATER"] = (-0.1, "HOT " * 20)
        assert translated(translator, "en>de", "HOT WATER").text == "WATER"
        likely["Hot water"] = (-3.0, "water " * 20)
        likely["HOT WATER"] = (-5.0, "HOT")
        assert translated(translator, "en>de", "HOT WATER").text == "HOT", "although a loop is likelier"
        likely.update({"The old dog": (-1.0, "water"), "The Old Dog": (-0.9, "HOT")})
        assert translated(translator, "en>de", "The Old Dog").text == "HOT", "a title need not be likelier by a margin"
        likely["Hot water"] = (-1.0, "water")
        del likely["HOT WATER"]  # it must not be searched
        for options in ({"prefixes": ["W"]}, {"sampling": Sampling()}):
            assert translated(translator, "en>de", "HOT WATER", **options).case == "upper"


def test_a_forced_prefix_stays_as_it_was_given(echo: Translator) -> None:
    line = "THE DOG RUNS THROUGH THE GRASS"
    for prefix, text in (("THE OLD", "THE OLD" + line), ("The old", "The old" + line), ("the oLD", "the oLD" + line)):
        found = translated(echo, "en>de", line, prefixes=[prefix])
        assert found.text.replace(" ", "") == text.replace(" ", "")
    [ids] = [segment.prefix for segment in translated(echo, "en>de", line, prefixes=["THE DOG"]).segments]
    assert echo.tokenizer.decode([ids]) == ["The dog"]
    street = "DER HUND LÄUFT ÜBER DIE STRASSE"  # searched as "Straße", which has a letter less
    assert translated(echo, "de>de", street, prefixes=["DIE STRASSE"]).text == f"DIE STRASSE {street}"
    title = translated(echo, "en>de", "The Old Woman Runs Home Now", prefixes=["THE DOG"])
    assert echo.tokenizer.decode([title.segments[0].prefix]) == ["THE DOG"], (
        "the text has another style than the prefix"
    )


def with_head(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let every translation begin with a token that is not in its text; return the token."""
    for owner in (translator, translator.segmenter, translator.assembler):
        monkeypatch.setattr(owner, "head", [PAD])
    return PAD


def test_a_forced_prefix_is_only_at_the_beginning(echo: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """This also holds for texts of several segments, and for models that begin translations with a certain token."""
    with_head(echo, monkeypatch)
    monkeypatch.setattr(echo.segmenter, "seen_tokens", 8)
    line = "THE DOG RUNS. THE OLD DOG RUNS THROUGH THE GRASS."
    found = translated(echo, "en>de", line, prefixes=["The OLD"])
    assert len(found.segments) > 1
    assert found.text.replace(" ", "") == f"The OLD{line}".replace(" ", "")


@pytest.mark.parametrize("head", [False, True])
def test_a_word_stays_in_capitals_in_every_kind_of_model(
    echo: Translator, monkeypatch: pytest.MonkeyPatch, head: bool
) -> None:
    """A token for the target language shifts source positions by one. A model's first token shifts target positions."""
    text = "I am COMPLETELY sure."
    plain = translated(echo, "en>de", text, alignments=True)
    assert (plain.text, plain.case) == (text, "words")
    if head:
        with_head(echo, monkeypatch)
    for target in ("", "deu"):
        found = translated(echo, "en>de", text, target=target, alignments=True)
        assert found.text == plain.text
        assert alignment(echo.tokenizer, found.parts(0)) == alignment(echo.tokenizer, plain.parts(0))


def test_a_tag_does_not_select_the_rules_of_case(echo: Translator) -> None:
    caser = Caser(echo.tokenizer, "en", "tr", ["tm"])
    for head, language in ((">>tm<< ", "tr"), (">>deu<< ", "deu"), (">>deu<< >>tm<< ", "deu")):
        text = f"{head}THE OLD DOG RUNS. The dog runs."
        first, second = caser.parts(text, [(0, len(head) + 17), (len(head) + 18, len(text))])
        assert first.case
        assert (first.case.language, first.text) == (language, f"{head}The old dog runs.")
        assert second.text == f"{head}The dog runs."


def test_terms_are_found_in_text_of_any_case(echo: Translator) -> None:
    """A phrase in the glossary's case keeps this case, and so do its forms. Others are compared without case."""
    terms = Terms.parse(["dog\tdog", "OLD\told", "iPhone\tiPhone", "water\tHund"])
    found = translated(echo, "en>de", "THE OLD DOG AND THE iPhone", terms=terms)
    assert searched(found, echo) == ["The OLD dog and the iPhone"]
    assert [term.source for term in found.terms] == ["OLD", "dog", "iPhone"]
    assert [found.form_of(term, found.text) for term in found.terms] == ["old", "dog", "iPhone"]
    assert found.missing_terms == []


def test_alignments_and_offsets_are_those_of_the_given_text(echo: Translator) -> None:
    for text, languages in (("DER HUND LÄUFT ÜBER DIE STRASSE", "de>de"), ("THE DOG RUNS THROUGH THE GRASS", "en>de")):
        found = translated(echo, languages, text, alignments=True)
        aligned = align(echo, found, text)
        assert aligned.text == text
        words = [(text[origin:].split()[0], aligned.text[:end].split()[-1]) for end, origin in aligned.links]
        assert all(source == target or target.startswith("STRA") for source, target in words)


def test_every_hypothesis_and_every_sample_is_written_in_the_case_of_the_source(echo: Translator) -> None:
    line = "THE DOG RUNS THROUGH THE GRASS"
    for options in ({"n_best": 3}, {"n_best": 2, "sampling": Sampling()}):
        assert {each.text for each in translated(echo, "en>de", line, **options).hypotheses} == {line}
    assert translated(echo, "en>de", "Hot Water", sampling=Sampling()).case is None  # samples are not compared


def test_jsonl_names_the_case(echo: Translator) -> None:
    echo.segmenter.caser = Caser(echo.tokenizer, "en", "de")
    lines = {
        "THE DOG RUNS HOME": "upper",
        "The Dog Runs Home Now": "title",
        "I am COMPLETELY sure.": "words",
        "THE TRAIN IS LATE. The dog runs.": "mixed",
        "The dog runs.": None,
    }
    found = records(run(echo, "\n".join(lines).encode(), format="jsonl"))
    assert [line.get("case") for line in found] == list(lines.values())
    assert [line["hypotheses"][0]["text"] for line in found] == list(lines)
    assert found[0]["hypotheses"][0]["tokens"][0] == "\u2581The"


def test_documents_keep_tags_in_capitals(echo: Translator) -> None:
    echo.segmenter.caser = Caser(echo.tokenizer, "en", "de")
    source = "<h1>THE <b>OLD WOMAN</b> LAUGHS</h1><p>The Dog <i>Runs</i> Through The Grass</p>"
    part = html.parse(source, None)
    segments = segments_of(part)
    results = translate_aligned(echo, [[segment.text for segment in segments]], SearchOptions())
    for segment, result in zip(segments, results, strict=True):
        segment.result = place_marks(segment, result)
    assert render(part) == source


def test_a_request_may_leave_the_case_as_it_is(model: Path, echo: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    with client_of(model) as client:
        [served] = client.app.state.service.pool.models  # type: ignore[attr-defined]
        monkeypatch.setattr(
            served.translator.segmenter, "caser", seen := CountingCaser(served.translator.tokenizer, "en", "de")
        )
        for fields, count in (({}, 1), ({"case": "off"}, 1), ({"case": "auto"}, 2)):
            request = {"q": "THE DOG RUNS HOME", "source": "en", "target": "de", **fields}
            assert client.post("/translate", json=request).status_code == 200
            assert seen.count == count
        wrong = client.post("/translate", json={"q": "a", "source": "en", "target": "de", "case": "title"})
        assert wrong.status_code == 400


class CountingCaser(Caser):
    """Counts its calls."""

    count = 0

    def parts(self, *arguments: Any, **options: Any) -> list[Part]:
        self.count += 1
        return super().parts(*arguments, **options)


def test_a_parser_reads_capitals_as_they_are(tmp_path: Path) -> None:
    with Translator(tiny_model.make_model(tmp_path, "corpus.format=trees"), workers=1) as translator:
        assert translator.resolved(SearchOptions()).case == "off"
        assert translator.resolved(SearchOptions(case="auto")).case == "off"


def random_line(draw: random.Random) -> str:
    """Return a random line in any case, with words of the given texts, other text and signs."""
    words = [word for _, given, _, _, _ in draw.sample(ALL_ANSWERS, 3) for word in given.split()]
    words += draw.choices(["{NAME}", "%s", "ß", "ŉ", "ǆ", "İ", "ı", "ͅ", "ﬁ", "😀", "x" * 30, "A.", "'", "-", "ΐ"], k=2)
    words = draw.sample(words, draw.randint(1, len(words)))
    change = draw.choice([str.upper, str.title, str.lower, str.swapcase, str])
    return "".join(word + draw.choice([" ", " ", " ", "  ", ". ", "! ", "", "\u00a0"]) for word in map(change, words))


def test_no_line_loses_or_gains_a_letter(echo: Translator) -> None:
    """Whatever the case of a line, its translation by a model that returns its input has the same letters."""
    draw = random.Random(7)
    lines = [random_line(draw) for _ in range(300)]
    for languages in ("en>de", "tr>tr", "el>el", "nl>en", "de>de"):
        echo.segmenter.caser = Caser(echo.tokenizer, *languages.split(">"))
        found = list(echo.translate(lines))
        assert len(found) == len(lines)
        for line, translation in zip(lines, found, strict=True):
            assert folded(translation.text) == folded(line), line


def folded(text: str) -> str:
    """Return the letters and signs of a text without case, accents, spaces and the dot of i."""
    small = unicodedata.normalize("NFKD", text.lower().replace("ı", "i")).casefold()
    letters = "".join(c for c in small if not unicodedata.combining(c) and not c.isspace())
    return letters.replace(">>deu<<", "")


def test_parts_of_different_case_do_not_count_as_a_split_line(echo: Translator) -> None:
    echo.counts.clear()
    found = translated(echo, "en>de", "THE DOG RUNS HOME. The old woman laughs.")
    assert (len(found.segments), echo.counts["split"], echo.counts["cut"]) == (2, 0, 0)


def test_a_split_text_is_not_searched_in_two_cases(echo: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only whole texts are compared. A text in its given case is cut at the model's greatest length, too."""
    monkeypatch.setattr(echo.segmenter, "seen_tokens", 3)
    SEARCHED.clear()
    assert translated(echo, "en>de", "HOT! WATER!").text == "HOT! WATER!"
    assert SEARCHED == ["Hot!", "Water!"]
    monkeypatch.undo()
    long = f"HOT {'X7' * 90}"
    [ids] = echo.tokenizer.encode([long])
    assert len(ids) > echo.max_length
    seen = list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(echo.assembler, "_choose", lambda own, rival, _: seen.append(len(own.ids)) or rival)
        translated(echo, "en>de", long, split=False)
    assert seen == [echo.max_length]


@pytest.mark.parametrize("head", [False, True])
def test_an_untranslated_source_is_aligned_with_itself(
    model: Path, monkeypatch: pytest.MonkeyPatch, head: bool
) -> None:
    """It loses its language token, and its letter case follows the rules of its own language."""
    with translator_by(model, one_by_one(lambda segment: looped(segment))) as translator:

        def looped(segment: Segment) -> list[Hypothesis]:
            [word] = translator.tokenizer.encode(["dog"])
            ids = [*segment.prefix, *word * 40]
            return [Hypothesis(ids, -1.0, -1.0, [-1.0] * (len(ids) + 1), source_positions=[0] * len(ids))]

        if head:
            with_head(translator, monkeypatch)
        for languages in ("en>de", "en>tr"):
            for line in (">>deu<< the dog", "THE TRAIN IS LATE IN PARIS"):
                found = translated(translator, languages, line, alignments=True)
                text = line.removeprefix(">>deu<< ")
                assert (found.untranslated, found.text) == (True, text)
                [best] = found.hypotheses
                assert len(best.tokens) == len(best.token_log_probabilities)
                first = int(text != line)
                words = range(len(text.split()))
                assert alignment(translator.tokenizer, found.parts(0)) == " ".join(f"{first + i}-{i}" for i in words)
