"""Glossaries: parsing, matches in texts, and translations that contain the accepted forms."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import texts
from in_process import run_nmt
from tiny_model import WORDS, content, make_model, memory_file

from nmt_cli import Sampling, Terms, Translator
from nmt_cli.corpus.terms import Term
from nmt_cli.corpus.tokenizer import EOS, UNK, Tokenizer
from nmt_cli.documents.translate import runner
from nmt_cli.scoring import score
from nmt_cli.scoring.score import ScoreOptions
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.translation import assembler, constraints
from nmt_cli.translation.constraints import Constraints, constraints_of
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.segments import Segment
from nmt_cli.translation.translate import TranslateOptions, translate_lines

TERMS = Terms.parse(["der Hund\tHaus und Baum|rot", "Hund\tKatze|Baum", "ist\tHaus", "geht\tnicht"])
LINES = [f"{a} {b}, {c} {a}" for a in WORDS[:4] for b in WORDS[8:12] for c in WORDS[12:]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"), "decoding.extra_length=12")


@pytest.fixture(scope="module")
def translator(model: Path) -> Iterator[Translator]:
    with Translator(model, precision="fp32", workers=1) as one:
        yield one


# ---- glossary files


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fire truck", ["fire truck"]),
        ("a truck, Fire truck", ["truck"]),
        ("fire  trucks", ["fire"]),
        ("firetruck", []),
        ("truck-fire truck fire", ["truck", "fire truck", "fire"]),
        ("The NATO's nato", ["nato"]),
        ("日本人は日", ["日本"]),
        ("デジタルカメラ", ["カメラ"]),
        ("C++ C +", ["C++"]),
        ("a fire truck driver, truck driver", ["fire truck", "truck driver"]),
        ("truck driver license plate", ["truck driver license"]),
        ("", []),
    ],
)
def test_whole_words_match_and_the_longest_phrase_wins(text: str, found: list[str]) -> None:
    lines = [
        "# fire\tno",
        "",
        "fire\tFeuer",
        "fire truck\tx",
        "truck\ty|z",
        "nato\tOTAN\tany",
        "日本\tJapan",
        "カメラ\tcamera",
        "C++\tC++",
        "truck driver\tx",
        "driver license plate\tx",
        "truck driver license\tx",
    ]
    assert [term.source for term in Terms.parse(lines).find(text)] == found


def test_matches_have_their_offsets_in_the_text() -> None:
    """The longest phrase is the one with the most words, not characters."""
    lines = ["a b c\tx", "a bbbbbbbbbb\tx", "Straße\tStreet|Road|Street\tany", "B\tx", "b c\tx\tany", "日本\tx"]
    terms = Terms.parse(lines)
    text = "a b c, a bbbbbbbbbb STRASSE straße B C b 日本 a b"
    found = [(term.source, text[start:end]) for term, start, end in terms.spans(text)]
    assert found == [
        ("a b c", "a b c"),
        ("a bbbbbbbbbb", "a bbbbbbbbbb"),
        ("Straße", "STRASSE"),
        ("Straße", "straße"),
        ("b c", "B C"),
        ("日本", "日本"),
    ]
    assert [term.source for term in terms.find(text)] == ["a b c", "a bbbbbbbbbb", "Straße", "b c", "日本"]
    spaced = Terms.parse(["C + + is\tx", "C++is.\ty"])  # five words, but fewer characters than the four of the other
    assert [term.source for term in spaced.find("C++is.")] == ["C++is."]
    assert [(term.forms, term.any_case, term.line) for term in terms.terms[2:4]] == [
        (("Street", "Road"), True, 3),
        (("x",), False, 4),
    ]


def test_glossaries_may_have_a_bom_comments_spaces_and_fifty_words(tmp_path: Path) -> None:
    phrase, form = "a " * 49 + "a", "b " * 49 + "b"
    (tmp_path / "terms").write_text(
        f"\ufeff\r\n#x\n \t\n{phrase}\t{form}\t\r\n\ufeff C \t d |e\xa0f\t any\t\n", newline=""
    )
    assert Terms.read(tmp_path / "terms").terms == [Term(phrase, (form,), False, 4), Term("C", ("d", "e f"), True, 5)]
    assert Terms.parse(["\ufeff", " \ufeff\r", "a\tb"]).terms == [Term("a", ("b",), False, 3)]
    (tmp_path / "terms").write_bytes(b"a\tb\nc\t\xff\n")
    with pytest.raises(DataError, match=r"terms, line 2 is not UTF-8"):
        Terms.read(tmp_path / "terms")
    (tmp_path / "terms").write_text("# x\na\n")
    with pytest.raises(DataError, match=r"terms, line 2 is not a term\. Write a phrase, a tab, forms"):
        Terms.read(tmp_path / "terms")


def test_a_form_matches_whole_words() -> None:
    one, any_case = Terms.parse(["a\trot|rote Katze", "b\trote Katze\tany"]).terms
    assert one.form_in("die rote Katze.") == "rote Katze"
    assert one.form_in("rot, rote Katze") == "rot"
    assert one.form_in("rote Katzen, Rot, abendrot, rot1") is None
    assert any_case.form_in("Rote katze") == "rote Katze"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a"], "line 1 is not a term"),
        (["# x", "a\t"], "line 2 is not a term"),
        (["a\tb||c"], "line 1 is not a term"),
        (["\tb"], "line 1 is not a term"),
        (["a\tb\tsome"], "line 1 is not a term"),
        (["a " * 51 + "\tb"], "line 1 has a phrase of more than 50 words"),
        (["a\tx|" + "b " * 51], "line 1 has a phrase of more than 50 words"),
        (["a\tb\tany\tany"], "line 1 is not a term"),
        (["a\tb\tANY"], "line 1 is not a term"),
        (["# x"] * 1233 + ["a"], "FILE, line 1,234 is not a term"),
        (["a\tx\tany", "A\tb"], "line 2: “A” repeats line 1"),
        (["x\ty", "a\tb", "a\tc"], "line 3: “a” repeats line 2"),
        (["A\tb", "a\tc\tany"], "line 2: “a” repeats line 1"),
        (["b C\tx", "a b\tx", "B c\tx\tany"], "line 3: “B c” repeats line 1"),
        (["# nothing"], "has no terms"),
    ],
)
def test_an_invalid_glossary_is_refused_with_the_line_number(lines: list[str], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        Terms.parse(lines, "FILE")


def test_phrases_that_differ_in_case_or_overlap_are_separate_terms() -> None:
    lines = ["Polish\tpolnisch", "polish\tpolieren", "a b\tx", "b\ty", "a b d\tz", "B c\tw"]
    assert len(Terms.parse(lines).terms) == 6


def test_tokens_that_start_or_continue_a_word_are_known(model: Path) -> None:
    tokenizer = Tokenizer(model / "tokenizer.model")
    kinds = dict(zip(tokenizer.tokens(list(range(tokenizer.vocabulary_size))), tokenizer.begins, strict=True))
    assert [kinds[token] for token in ("▁rot", "▁", ".", "?", "</s>")] == [1] * 5
    assert [kinds[token] for token in ("u", "<0x41>", "<unk>")] == [0] * 3


def test_forms_with_unknown_tokens_are_no_constraints(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, terms = Tokenizer(model / "tokenizer.model"), Terms.parse(["a\trot|nie", "b\tnie", "c\tder Hund"]).terms
    encode = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda lines: [[UNK]] if lines == ["nie"] else encode(lines))
    found = constraints_of(terms, tokenizer)
    assert found is not None
    assert found.sizes == [len(encode([form])[0]) for form in ("rot", "der Hund")]
    assert constraints_of(terms[1:2], tokenizer) is None
    monkeypatch.setattr(constraints, "MAX_TOKENS", sum(found.sizes) - 1)
    fewer = constraints_of(terms, tokenizer)
    assert fewer is not None
    assert fewer.sizes == found.sizes[:1], "the limit applies to all constraints together"
    monkeypatch.setattr(constraints, "MAX_TOKENS", 1)
    assert constraints_of([terms[2]], tokenizer) is None


def test_there_are_at_most_64_constraints(model: Path) -> None:
    tokenizer = Tokenizer(model / "tokenizer.model")
    terms = Terms.parse([f"t{i}\trot" for i in range(70)]).terms
    for count, known in ((63, 63), (64, 64), (70, 64)):
        found = constraints_of(terms[:count], tokenizer)
        assert found is not None
        assert len(found.sizes) == known


def test_a_form_in_chinese_or_kana_has_no_leading_space() -> None:
    spelled = {"日本": ["▁", "日", "本"], "日": ["▁日"], "rot": ["▁", "rot"], "かな": ["▁", "かな"], "ко": ["▁", "ко"]}
    names = [*dict.fromkeys(token for tokens in spelled.values() for token in tokens)]
    tokenizer = SimpleNamespace(
        encode=lambda texts: [[names.index(token) + 3 for token in spelled[text]] for text in texts],
        tokens=lambda ids: [names[i - 3] for i in ids],
        begins=bytes([1] * 20),
    )
    for form, tokens in {**spelled, "日本": ["日", "本"], "かな": ["かな"]}.items():
        found = constraints_of(Terms.parse([f"a\t{form}"]).terms, tokenizer)
        assert found is not None
        assert [names[token - 3] for token in found.tokens[1:]] == tokens


@pytest.mark.parametrize(
    ("sizes", "width"),
    [([1], 8), ([3, 4], 8), ([8], 12), ([11], 12), ([12], 16), ([60], 64), ([5, 70], 64), ([1] * 9, 12)],
)
def test_the_beam_has_room_for_each_token_of_the_terms(sizes: list[int], width: int) -> None:
    """One hypothesis per token of the longest forms, plus one without any: a multiple of 4, from 8 to 64."""
    terms = [[[*range(10 * i, 10 * i + size)], [5]] for i, size in enumerate(sizes)]
    assert Constraints(terms, b"").width == width
    assert Constraints([forms[::-1] for forms in terms], b"").width == width


# ---- translation


def has_all_terms(text: str, source: str) -> bool:
    return all(term.form_in(text) for term in TERMS.find(source))


@pytest.mark.parametrize("more", [{}, {"beam": 1}, {"beam": 9, "n_best": 3}, {"alignments": True}])
def test_every_translation_has_its_terms_and_other_lines_do_not_change(
    translator: Translator, more: dict[str, Any]
) -> None:
    translator.counts.clear()
    plain, with_terms = (list(translator.translate(LINES, terms=terms, split=False, **more)) for terms in (None, TERMS))
    changed = 0
    for line, before, after in zip(LINES, plain, with_terms, strict=True):
        assert all(has_all_terms(hypothesis.text, line) for hypothesis in after.hypotheses)
        assert after.terms == TERMS.find(line)
        if all(has_all_terms(hypothesis.text, line) for hypothesis in before.hypotheses):
            assert after.hypotheses == before.hypotheses
        else:
            changed += 1
            assert len(after.hypotheses) == more.get("n_best", 1)
            looked = [(len(part.source_positions), len(part.ids)) for _, part in after.parts(0)]
            assert not more.get("alignments") or all(a == b for a, b in looked)
    assert changed == translator.counts["constrained"] > len(LINES) / 4
    assert translator.counts["unsaid"] == 0


def test_torch_gives_the_same_translations(
    model: Path, monkeypatch: pytest.MonkeyPatch, translator: Translator
) -> None:
    monkeypatch.setenv("NMT_ENGINE", "off")
    with Translator(model) as by_torch:
        assert "torch" in by_torch.backend.about
        found = [result.text for result in by_torch.translate(LINES, terms=TERMS)]
    assert found == [result.text for result in translator.translate(LINES, terms=TERMS)]


def test_texts_in_one_batch_keep_their_own_glossaries(translator: Translator) -> None:
    lists = [Terms.parse([f"Hund\t{word}"]) for word in ("Katze", "rot", "Haus")]
    waiting = [translator.submit("der Hund ist nicht", SearchOptions(terms=terms)) for terms in (*lists, None)]
    results = [each.result(60) for each in waiting]
    for result, terms in zip(results, lists, strict=False):
        assert terms.terms[0].form_in(result.text)
    assert results[3].text == next(iter(translator.translate(["der Hund ist nicht"]))).text


def test_segments_have_the_terms_of_their_own_text(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for parts of a long line that is cut at sentence ends, and for halves of a segment that failed."""
    monkeypatch.setattr(translator.segmenter, "seen_tokens", 12)
    monkeypatch.setattr(assembler, "MAX_HALVINGS", 0)
    line = "der Hund und das Haus . ist rot und geht nicht . die Katze mit dem Baum ."
    (result,) = translator.translate([line], terms=TERMS)
    assert [[term.source for term in segment.terms] for segment in result.segments] == [
        ["der Hund"],
        ["ist", "geht"],
        [],
    ]
    assert has_all_terms(result.text, line)
    again = [segment for segment in result.segments if segment.unconstrained]
    assert again
    assert all(segment.unconstrained and segment.started == segment.unconstrained.started for segment in again)
    across = Terms.parse(["das Haus . ist\trot"])
    (result,) = translator.translate([line], terms=across)
    assert [[term.source for term in segment.terms] for segment in result.segments] == [["das Haus . ist"], []]
    assert across.terms[0].form_in(result.text)
    monkeypatch.setattr(translator.segmenter, "filter_tokens", 8)  # cut between words, too
    for words in range(9):
        (result,) = translator.translate(["rot " * words + "Baum Baum " * 8], terms=Terms.parse(["rot Baum\tHund"]))
        assert len(result.segments) > 1
        assert sum(bool(segment.terms) for segment in result.segments) == (words > 0)
    monkeypatch.undo()
    monkeypatch.setattr(translator.segmenter, "seen_tokens", 1000)
    monkeypatch.setattr(assembler, "MAX_HALVINGS", 1)
    monkeypatch.setattr(assembler, "looping", lambda ids: ids[-1] != EOS)  # every translation fails once
    (result,) = translator.translate([line := "das Haus und der Hund, die Katze ist rot"], terms=TERMS)
    assert [[term.source for term in segment.terms] for segment in result.segments] == [["der Hund"], ["ist"]]
    assert has_all_terms(result.text, line)


def test_prefixes_and_terms_can_be_combined(translator: Translator) -> None:
    prefixes = ["die Katze", "", "rot und"] * (len(LINES) // 3)
    for line, prefix, result in zip(
        LINES, prefixes, translator.translate(LINES, terms=TERMS, prefixes=prefixes), strict=True
    ):
        assert result.text.startswith(prefix)
        assert has_all_terms(result.text, line)


def test_a_term_that_does_not_fit_leaves_the_plain_translation_and_is_counted(
    translator: Translator, capsys: pytest.CaptureFixture[str]
) -> None:
    long = Terms.parse(["Hund\t" + "Haus und Baum " * 16])
    lines = ["der Hund", "die Katze"]
    plain = [result.hypotheses for result in translator.translate(lines)]
    translator.counts.clear()
    results = list(translator.translate(lines, terms=long))
    assert [result.hypotheses for result in results] == plain
    assert (translator.counts["unsaid"], translator.counts["constrained"]) == (1, 1)
    with pytest.raises(UsageError, match="Remove one of the two"):
        translator.submit("der Hund", SearchOptions(terms=long, sampling=Sampling()))
    output = command(translator, "der Hund\ndie Katze\n", terms=long)
    assert [json.loads(line)["hypotheses"][0].get("terms") for line in output.split("\n")[:-1]] == [
        {"Hund": None},
        None,
    ]
    assert "1 term is missing from translations" in capsys.readouterr().err


def test_cancelling_a_text_ends_its_second_search(model: Path) -> None:
    with Translator(model, precision="fp32", workers=1) as one:
        submit, taken = one.queue.submit, list[Segment]()

        def cancelling(segments: Any) -> None:
            those = list(segments)
            for segment in those:
                if segment.constraints:
                    segment.owner.cancel()
                    taken.append(segment)
            submit(those)

        one.queue.submit = cancelling  # type: ignore[method-assign]
        waiting = one.submit("der Hund", SearchOptions(terms=Terms.parse(["der\tHaus Haus Haus"])))
        with pytest.raises(UsageError, match="cancelled"):
            waiting.result(60)
        assert [segment.cancelled for segment in taken] == [True]


# ---- commands


def command(
    translator: Translator, text: str, run: Callable[..., None] = translate_lines, form: str = "jsonl", **search: Any
) -> str:
    source, target = memory_file(text.encode()), memory_file()
    translator.counts.clear()
    with Progress("translating", None, "lines") as progress:
        run(translator, TranslateOptions(search=SearchOptions(**search), format=form), source, target, progress)
    os.close(source)
    return content(target).decode()


def test_jsonl_lists_the_forms_found(translator: Translator) -> None:
    output = command(translator, "\n".join(LINES) + "\n", terms=TERMS, n_best=2, split=False)
    for line, record in zip(LINES, map(json.loads, output.split("\n")[:-1]), strict=True):
        for hypothesis in record["hypotheses"]:
            expected = {term.source: term.form_in(hypothesis["text"]) for term in TERMS.find(line)}
            assert hypothesis.get("terms", {}) == expected
            assert None not in expected.values()


def test_terms_and_markup_can_be_combined(translator: Translator) -> None:
    """A phrase may contain tags, and tags stay balanced."""
    lines = [f"<b>{line.replace(' ', ' <i>', 1)}</i></b>" for line in LINES]
    output = command(
        translator, "\n".join(lines) + "\n", runner("text", "html", None, [], {}), terms=TERMS, split=False
    )
    for line, marked in zip(LINES, output.split("\n")[:-1], strict=True):
        assert has_all_terms(re.sub("<[^>]*>", "", marked), line)
        assert all(marked.count(f"<{tag}>") == marked.count(f"</{tag}>") > 0 for tag in "bi")
    page = command(translator, "<p>der <b>Hund</b></p>", runner("html", None, None, [], {}), terms=TERMS, split=False)
    assert has_all_terms(re.sub("<[^>]*>", "", page), "der Hund")


def test_the_command_reads_a_glossary_file(model: Path, tmp_path: Path) -> None:
    (tmp_path / "terms.tsv").write_text("# words\nHund\tKatze|Haus\tany\n")
    (tmp_path / "bad.tsv").write_text("Hund\tKatze\nHund\tHaus\n")
    (tmp_path / "in").write_text("der hund\n")
    start = ["translate", tmp_path / "in", "--model", model]
    done = texts.python("-m", "nmt_cli", *start, "--terms", tmp_path / "terms.tsv")
    assert re.search(r"\b(Katze|Haus)\b", done.stdout, re.IGNORECASE)
    for more, code, message in (
        (["--terms", tmp_path / "bad.tsv"], 65, "line 2: “Hund” repeats line 1"),
        (["--terms", tmp_path / "absent"], 66, "absent"),
        (["--terms", tmp_path / "terms.tsv", "--sample"], 2, "Leave out --terms"),
        (["--terms", tmp_path / "terms.tsv", "--score-pairs", tmp_path / "in"], 2, "cannot be used with --sample"),
    ):
        found, out, err = run_nmt(*start, *more)
        assert (found, out, err.count("\n")) == (code, "", 1), err
        assert message in err


def test_the_share_of_terms_in_the_hypotheses_is_scored(tmp_path: Path) -> None:
    """A term counts once per line, only whole words match, and the Unicode form does not matter."""
    source = texts.write(tmp_path / "src", ["a dog, a dog", "dogs", "a cat", "a dog and a cat"])
    reference = texts.write(tmp_path / "ref", ["ein Hund", "Hunde", "eine Katze", "ein Hund und eine Katze"])
    terms = texts.write(tmp_path / "terms", ["dog\tHund|Köter", "cat\tKatze"])
    options = ScoreOptions(references=(reference,), source=source, terms=terms, intervals=False)
    report = score.evaluate(options, ["ein Ko\u0308ter", "Hund", "ein Kater", "Hunde und Katze"])
    assert "terms used: 50.0% (2 of 4, in 3 lines)" in report.text()
    assert "terms used: 50.0% (2 of 4, in 3 lines)" in report.markdown()
    assert json.loads(report.json())["terms"] == {"terms": 4, "met": 2, "with_terms": 3}
    with pytest.raises(UsageError, match="--source FILE"):
        score.evaluate(ScoreOptions(references=(reference,), terms=terms), ["x"])
