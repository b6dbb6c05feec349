"""Lines without letters are copied by the command, the Python API and the server; all others are searched."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from serving import PAIR, client_of
from tiny_model import content, make_model, memory_file

from nmt_cli import Sampling, Terms, Translator
from nmt_cli.corpus import tokenizer as spm
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import UsageError
from nmt_cli.transformer.directory import open_model
from nmt_cli.transformer.weights import load_model, save_model
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.pending import Copy, Translation
from nmt_cli.translation.segmenter import split_line
from nmt_cli.translation.stored_models import directions_of
from nmt_cli.translation.translate import TranslateOptions, translate_lines
from nmt_cli.translation.writer import formatted

WORDLESS = [
    "3.14",
    "12:30",
    "---",
    "€ 5",
    "😀 👍🏽",
    "٣٫١٤",
    "½ ⅔ Ⅳ",
    "№ 7 (+49) 30/12",
    "1\u00a0000 %",
    "\u0301",
    "->",
]
WITH_WORDS = ["der Hund 5", "3x", "三", "5 °C", "ª"]


def run(translator: Translator, lines: list[str], form: str = "text", **options: Any) -> list[str]:
    """Return the output lines of `nmt translate`."""
    source, target = memory_file("".join(f"{line}\n" for line in lines).encode()), memory_file()
    with Progress("translating", None, "lines") as progress:
        translate_lines(
            translator, TranslateOptions(format=form, search=SearchOptions(**options)), source, target, progress
        )
    return content(target).decode().split("\n")[:-1]


def test_a_line_is_copied_if_it_has_text_and_no_letter(translator: Translator) -> None:
    assert [line.text for line in translator.translate(WORDLESS)] == WORDLESS
    for lines, copied in ((WORDLESS, True), (WITH_WORDS, False), (["", " ", "\u200b"], False)):
        assert [line.copy is not None for line in translator.translate(lines)] == [copied] * len(lines)


def test_characters_that_break_lines_are_not_copied(translator: Translator) -> None:
    lines = ["\ufeff 1\t2\r", "3\u20284\x00", "\ud800 5", "  6  7 "]
    assert [line.text for line in translator.translate(lines)] == ["1\t2", "3 4", "5", "6  7"]


def test_other_translations_do_not_change(translator: Translator) -> None:
    alone = [line.text for line in translator.translate(WITH_WORDS)]
    mixed = [line.text for line in translator.translate([*WORDLESS, *WITH_WORDS])]
    assert mixed == [*WORDLESS, *alone]


def test_a_copy_has_n_best_hypotheses(translator: Translator) -> None:
    for options in ({"n_best": 2}, {"n_best": 2, "sampling": Sampling()}):
        [line] = translator.translate(["12:30"], **options)  # type: ignore[arg-type]
        assert [each.text for each in line.hypotheses] == ["12:30"] * 2
        assert all(each.score == each.log_probability == 0 for each in line.hypotheses)
        assert all(each.tokens == each.token_log_probabilities == each.ids == [] for each in line.hypotheses)


def test_the_command_counts_copies_and_marks_them(translator: Translator, capsys: pytest.CaptureFixture[str]) -> None:
    translator.counts.clear()
    lines = run(translator, ["3.14", "der Hund", "+ 5", "-"], "jsonl", alignments=True)
    first, second, third, _ = map(json.loads, lines)
    hypothesis = {"text": "3.14", "log_probability": 0.0, "score": 0.0, "tokens": [], "token_log_probabilities": []}
    assert first == {"line": 1, "copied": True, "hypotheses": [{**hypothesis, "alignment": "0-0"}]}
    assert "copied" not in second
    assert third["hypotheses"][0]["alignment"] == "0-0 1-1"
    assert "\n3 lines without letters copied\n4 lines, " in "\n" + capsys.readouterr().err
    assert run(translator, ["12 - 3"], n := "text", n_best=2) == ["0 ||| 12 - 3 ||| 0"] * 2, n
    translator.counts.clear()
    run(translator, ["12 - 3"])
    assert "1 line without letters copied\n" in capsys.readouterr().err


def test_a_forced_prefix_or_a_term_is_searched(translator: Translator, tmp_path: Path) -> None:
    [forced, free] = translator.translate(["3.14", "3.14"], prefixes=["der Hund", ""])
    assert forced.copy is None
    assert forced.text.startswith("der Hund")
    assert free.text == "3.14"
    file = tmp_path / "terms.tsv"
    file.write_text("24/7\tHund\n")
    [with_term, other] = translator.translate(["24/7", "24/8"], terms=Terms.read(file))
    assert with_term.copy is None
    assert other.text == "24/8"


def test_pairs_without_letters_are_scored(translator: Translator) -> None:
    [scored] = translator.score([("3.14", "3.14")])
    assert len(scored.tokens) > 1
    assert scored.log_probability < 0


def test_a_model_may_translate_digits(translator: Translator, tmp_path: Path) -> None:
    [found] = translator.translate(["3 4"], copy_wordless=False)
    assert found.copy is None
    assert found.segments
    for name, change in (("digits", "decoding.copy_wordless=false"), ("trees", "corpus.format=trees")):
        with Translator(make_model(tmp_path / name, change), precision="fp32", workers=1) as other:
            assert [line.copy for line in other.translate(["3 4", "."])] == [None, None], name


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that expects the token of the target language before each source."""
    folder = tmp_path_factory.mktemp("multilingual")
    lines = [f">>{code}<< der Hund geht und die Katze ist rot" for code in ("deu", "fra")] * 50
    (folder / "tokenizer.model").write_bytes(spm.train(lines, 320, tags=[">>deu<<", ">>fra<<"]))
    loaded = load_model(make_model(folder / "first", "corpus.tgt=mul"))
    settings, state = loaded.recipe, loaded.model.state_dict()
    state["embedding.weight"] = state["embedding.weight"][:320]
    save_model(folder / "model", state, settings, folder / "tokenizer.model", {"steps": [1]})
    return folder / "model"


def test_the_token_of_a_target_language_does_not_count_as_a_letter_and_is_not_copied(multilingual: Path) -> None:
    with Translator(multilingual, precision="fp32", workers=1) as translator:
        lines = [">>deu<< 3.14", ">>deu<<3.14", ">>deu<< der Hund", ">>xyz<< 3.14", "3.14", ">>5", ">>fra<<"]
        found = list(translator.translate(lines))
        assert [line.copy is not None for line in found] == [True, True, False, False, True, True, True]
        assert [found[i].text for i in (0, 1, 4, 5, 6)] == ["3.14", "3.14", "3.14", ">>5", ""]
        assert translator.counts["copied"] == 4, "a token alone has nothing to copy"
        rows = map(json.loads, run(translator, [">>deu<< 3 4", "3 4"], "jsonl", alignments=True))
        assert [row["hypotheses"][0]["alignment"] for row in rows] == ["1-0 2-1", "0-0 1-1"]


def test_the_target_language_is_an_option(multilingual: Path) -> None:
    with Translator(multilingual, precision="fp32", workers=1) as translator:
        lines = ["der Hund geht", "3 4", "die Katze ist rot und der Hund geht " * 9]
        typed = list(translator.translate([f">>fra<< {line}" for line in lines], alignments=True))
        asked = list(translator.translate(lines, target="fr", alignments=True))
        assert [line.text for line in asked] == [line.text for line in typed]
        assert [line.text for line in translator.translate(lines, target="deu")] != [line.text for line in typed]
        assert [line.text for line in translator.translate(lines, target=">>fra<<")] == [line.text for line in typed]
        with pytest.raises(UsageError, match=r"^the model does not translate to '>>spa<<', only to deu, fra$"):
            list(translator.translate(lines, target=">>spa<<"))
        words = [[pair.split("-") for pair in alignment_of(line, translator).split()] for line in (typed[0], asked[0])]
        moved = {(str(max(int(src) - 1, 0)), tgt) for src, tgt in words[0]}
        assert set(map(tuple, words[1])) == moved, "the token does not count as a word"
        assert (asked[1].copy, alignment_of(asked[1], translator)) == (Copy("3 4", 0), "0-0 1-1")
        with pytest.raises(UsageError, match=r"^the model does not translate to 'es', only to deu, fra$"):
            list(translator.translate(lines, target="es"))


def alignment_of(translation: Translation, translator: Translator) -> str:
    [row] = formatted(translation, 1, translator.tokenizer, "jsonl")
    return str(json.loads(row)["hypotheses"][0]["alignment"])


def test_the_server_copies_too(model: Path, multilingual: Path) -> None:
    for folder, target in ((model, "de"), (multilingual, "fr")):
        with client_of(folder) as client:
            pair = {**PAIR, "target": target}
            answer = client.post("/translate", json={"q": ["3.14\n\n12:30", "  --- "], **pair})
            assert answer.json()["translatedText"] == ["3.14\n\n12:30", "---"]
            answer = client.post("/translate", json={"q": "<p><b>5</b> + <i>6</i> = 11</p>", "format": "html", **pair})
            assert answer.json()["translatedText"] == "<p><b>5</b> + <i>6</i> = 11</p>"
            [shown] = client.post("/sentences", json={"q": " 12 € ", "alternatives": 1, **pair}).json()["sentences"]
            assert shown["source"] == "12 €"
            assert shown["hypotheses"] == [{"text": "12 €", "alignment": [[0, 0], [1, 1], [3, 3]]}] * 2


def test_a_sentence_without_letters_is_searched_with_its_neighbor(model: Path) -> None:
    """Every part of a long line has a letter."""
    tokenizer = spm.Tokenizer(model / "tokenizer.model")
    line = "12. der Hund geht! 3.14? die Katze ist rot. 17! 18! das Haus. 5!"
    parts = [tokenizer.decode([ids[:-1]])[0] for ids in split_line(tokenizer, line, 5, 100)]
    assert parts == ["12. der Hund geht! 3.14?", "die Katze ist rot. 17! 18!", "das Haus. 5!"]
    assert all(map(spm.has_letter, parts))


def test_the_directions_of_a_model_are_its_target_languages(multilingual: Path) -> None:
    """Each has the text that selects it. Tags are not languages, and a model without languages has one pair."""
    opened = open_model(multilingual)
    found = directions_of(opened.config, opened.tokenizer)
    assert found == ((opened.config.src, "deu", ">>deu<< "), (opened.config.src, "fra", ">>fra<< "))
    tagged = replace(opened.config, tags=["fra"])
    assert directions_of(tagged, opened.tokenizer) == found[:1]
    plain = replace(opened.config, tags=["fra", "deu"], tgt="it")
    assert directions_of(plain, opened.tokenizer) == ((opened.config.src, "it", ""),)
