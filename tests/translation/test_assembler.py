"""Translations from the hypotheses of segments, and the repetition of failed segments."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_model import WORDS
from translators import one_at_a_time, one_by_one, records, run, translator_by

from nmt_cli import Terms, Translator
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.translation import assembler
from nmt_cli.translation.assembler import join
from nmt_cli.translation.options import Sampling
from nmt_cli.translation.segmenter import halves
from nmt_cli.translation.segments import Hypothesis, Segment


def test_a_split_line_is_rejoined_unchanged(echo: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo.segmenter, "seen_tokens", 8)
    for source, limit, count in (
        ("你好。我去北京！他来吗？！是", 99, 4),
        ("他说。“好。”我去。「はい。」と", 99, 5),
        ("一，二，三，四，五，六，七，八，九，十，", 16, 5),
        ("rot. 你好。 blau. 안녕! 네.", 99, 5),
        ("rot z. B. blau. am 3. rot J. R. R. Hund geht. rot", 99, 3),  # initials and abbreviations end no sentence
        ("das Haus geht. „die Katze!“ (steht sie?) “rot.” “und”", 99, 5),
    ):
        monkeypatch.setattr(echo.segmenter, "filter_tokens", limit)
        (translation,) = echo.translate([source], prefixes=["rot"])  # only the first segment has the prefix
        assert len(translation.segments) == count
        assert translation.text == f"rot {source}"


def test_a_looping_translation_is_repeated_in_halves(echo: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not repeated if its source loops, too. Only the first half has the forced prefix."""
    source = "der Hund geht, die Katze steht"
    (ids,) = echo.tokenizer.encode([source])
    for loops_too in (False, True):
        monkeypatch.setattr(assembler, "looping", lambda x, y=loops_too: len(x) > len(ids) and (y or x[-1] != EOS))
        echo.counts.clear()
        (translation,) = echo.translate([source], prefixes=["das Haus"])
        assert translation.text == f"das Haus {source}"
        expected = [[*ids, EOS]] if loops_too else halves(echo.tokenizer, [*ids, EOS])
        assert [segment.ids for segment in translation.segments] == expected
        assert echo.counts["retried"] == (not loops_too)


def test_an_empty_translation_is_halved_three_times(model: Path) -> None:
    """The line's score counts the EOS of every part. Samples are not repeated."""
    silent, line = translator_by(model, one_at_a_time(lambda _: [])), "der Hund geht auf das Haus " * 16
    for pieces, options in ((8, {}), (1, {"split": False}), (1, {"sampling": Sampling()})):
        silent.counts.clear()
        (translation,) = silent.translate([line], alpha=0.5, **options)
        (best,) = translation.hypotheses
        assert (len(translation.segments), silent.counts["retried"]) == (pieces, pieces - 1)
        assert (best.text, best.tokens, best.log_probability) == ("", ["</s>"] * pieces, -pieces)
        assert best.score == pytest.approx(-pieces / ((5 + pieces) / 6) ** 0.5 if pieces > 1 else -1)


def test_repeated_segments_do_not_wait_for_the_earlier_parts_of_a_text_again(model: Path) -> None:
    """The halves of a late part of a large text are searched while short texts arrive."""
    searched = list[int]()

    def find(segment: Segment) -> list[int]:
        searched.append(segment.depth)
        if len(searched) < 100:
            translator.submit("rot")
        return [] if segment.position and not segment.depth else [5]

    with translator_by(model, one_at_a_time(find)) as translator:
        translator.submit("der Hund sieht die Katze", position=50).result()
    assert searched[:5].count(1) == 2


def test_segments_are_joined_with_one_space_or_none() -> None:
    for texts, joined in (
        (["a ", "", " b"], "a b"),
        ([" a "], " a "),
        (["", ""], ""),
        (["你。", "好"], "你。好"),
        (["你。", "b", "好"], "你。 b 好"),
        (["他说。”", "“好"], "他说。”“好"),
        (["あ", "カ", "ㇰ", "㐀", "豈", "！", "ｱ", "𠀀"], "あカㇰ㐀豈！ｱ𠀀"),
        ([], ""),
    ):
        tokenizer = SimpleNamespace(decode=lambda _, texts=texts: texts, tokens=lambda ids: [str(i) for i in ids])
        parts = [Hypothesis([5 + i], -1.5, 9.0, [-0.5, -1.0]) for i in range(len(texts))]
        whole = join(SimpleNamespace(target=tokenizer), parts, SimpleNamespace(alpha=2.0, penalty_offset=5))
        count = len(texts)
        assert whole.text == joined
        assert whole.ids == [5 + i for i in range(count)]
        assert whole.tokens == [token for i in range(count) for token in (str(5 + i), str(EOS))]
        assert (whole.log_probability, whole.token_log_probabilities) == (-1.5 * count, [-0.5, -1.0] * count)
        assert whole.score == pytest.approx(-1.5 * count / ((5 + 2 * count) / 6) ** 2)


def test_a_constrained_search_without_the_terms_is_discarded(model: Path) -> None:
    """The hypotheses of the first search remain; the best of them decides which terms are missing."""
    seen, words = list[Segment](), ["Katze", "Haus"]

    def find(segment: Segment) -> list[Hypothesis]:
        seen.append(segment)
        found = translator.tokenizer.encode(words if not segment.constraints else ["rot"])
        return [Hypothesis(ids, -1.0, -1.0, [-1.0] * (len(ids) + 1)) for ids in found]

    terms = Terms.parse(["Hund\tKatze"])
    with translator_by(model, one_by_one(find)) as translator:
        size = {word: len(translator.tokenizer.encode([word])[0]) for word in ("Katze", "Haus", "rot")}
        for best, beam, width in (("Katze", 3, 8), ("Haus", 20, 20)):
            seen.clear()
            translator.counts.clear()
            words.sort(key=lambda word, best=best: word != best)
            (translation,) = translator.translate(["der Hund"], terms=terms, n_best=2, beam=beam)
            assert [h.text for h in translation.hypotheses] == words
            assert translation.text == best
            first, second = seen
            assert (first.options.beam, first.options.n_best, first.constraints) == (beam, 2, None)
            assert second.options == replace(first.options, beam=width)
            assert second.ids == first.ids
            expected = {"lines": 1, "constrained": 1, "tokens": sum(size.values()), "unsaid": int(best == "Haus")}
            assert {name: count for name, count in translator.counts.items() if count} == {
                name: count for name, count in expected.items() if count
            }


def test_a_segment_with_few_hypotheses_repeats_its_last(model: Path) -> None:
    """A line therefore has as many hypotheses as its segment with the most."""

    def find(segment: Segment) -> list[Hypothesis]:
        count = 1 if segment.position else 3
        return [Hypothesis([*segment.ids[:-1]][: 9 - i], -i - 1.0, 0, [-i - 1.0]) for i in range(count)]

    with translator_by(model, one_by_one(find)) as translator:
        line = "der Hund geht auf. die Katze ist rot."
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(translator.segmenter, "seen_tokens", 8)
            (translation,) = translator.translate([line], n_best=3)
    assert len(translation.segments) == 2
    assert [h.log_probability for h in translation.hypotheses] == [-2.0, -3.0, -4.0]
    assert [h.text.endswith("die Katze ist rot.") for h in translation.hypotheses] == [True] * 3


def test_a_source_is_kept_where_every_search_fails(model: Path) -> None:
    """Loops and hallucinations are searched again in halves. Where a half fails, too, its source is kept."""
    [trouble, *_] = Tokenizer(model / "tokenizer.model").encode(["rot"])[0]
    for bad in ([5] * 30, list(range(5, 335))):
        fails = one_at_a_time(lambda s, bad=bad: bad if trouble in s.ids or len(s.ids) > 9 else [7, 8])
        with translator_by(model, fails) as translator:
            line = "der Hund geht auf das Haus und die Katze ist rot"
            [found] = translator.translate([line], alignments=True)
            assert found.untranslated
            assert 1 < len(found.segments) == 1 + translator.counts["retried"]
            texts = translator.tokenizer.decode([segment.ids[:-1] for segment in found.segments])
            for segment, source in zip(found.segments, texts, strict=True):
                assert segment.untranslated == (trouble in segment.ids)
                assert source in found.text or not segment.untranslated
            assert translator.counts["untranslated"] == sum(segment.untranslated for segment in found.segments)
            for options in ({"split": False}, {"sampling": Sampling()}, {"prefixes": ["der"], "split": False}):
                [as_found] = translator.translate([line], **options)
                assert not as_found.untranslated


@pytest.mark.parametrize("limit", [8, 99])
def test_halves_of_a_word_that_stay_untranslated_are_one_word(
    model: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The same holds for pieces of a word that is too long for the model. The sentence before it is translated."""
    word = "qxvzjwqxvzjwyq"
    tokenizer = Tokenizer(model / "tokenizer.model")
    [good], [hund] = tokenizer.encode(["der Hund geht."]), tokenizer.encode(["Hund"])
    fails = one_at_a_time(lambda s: [*hund] if s.ids[:-1] == good else [5] * 60)
    with translator_by(model, fails) as translator:
        monkeypatch.setattr(translator.segmenter, "seen_tokens", 4)
        monkeypatch.setattr(translator.segmenter, "filter_tokens", limit)
        [found] = translator.translate([f"der Hund geht. {word}"], alignments=True)
        assert (found.text, len(found.segments)) == (f"Hund {word}", 2)
        assert found.segments[1].ids == [*tokenizer.encode([word])[0], EOS]
        assert found.segments[1].hypotheses[0].source_positions == [*range(len(found.segments[1].ids) - 1)]
        assert translator.counts["untranslated"] == 1
        assert translator.counts["retried"] > 0


def test_untranslated_parts_on_both_sides_of_a_translated_part_are_not_joined(model: Path) -> None:
    tokenizer = Tokenizer(model / "tokenizer.model")
    [rot], [first], [last] = tokenizer.encode(["rot"]), tokenizer.encode(["Katze"]), tokenizer.encode(["nicht"])
    fails = one_at_a_time(lambda s: [5] * 60 if first[0] in s.ids or last[0] in s.ids else rot)
    with translator_by(model, fails) as translator:
        [found] = translator.translate(["Katze Katze Katze der Hund geht mit auf nicht nicht nicht nicht"])
    last_words = "mit auf nicht nicht nicht nicht"
    parts = [(*tokenizer.decode([segment.ids[:-1]]), segment.untranslated) for segment in found.segments]
    assert parts == [("Katze Katze Katze", True), ("der Hund geht", False), (last_words, True)]
    assert found.text == f"Katze Katze Katze rot {last_words}"


def test_an_untranslated_text_is_returned_as_it_was_given(model: Path) -> None:
    """It keeps its spaces, letter case, typos and rare characters, but no white space or byte order mark around it."""
    with translator_by(model, one_at_a_time(lambda _: [5] * 99)) as translator:
        lines = [
            "der  Hund\u00a0geht",
            "DER HuND geht Nicht.  Die Katze \U00010330",
            "qxvzjw\u00adqxvzjwyq",
            "你好 世界 东京 大阪",
        ]
        assert [line.text for line in translator.translate(lines, n_best=2)] == lines
        assert [line.hypotheses[1].text for line in translator.translate(lines, n_best=2)] == lines
        assert next(translator.translate(["  \ufeffder Hund\r"])).text == "der Hund"


def test_a_loop_is_not_accepted_even_if_it_has_the_terms(model: Path) -> None:
    [word] = Tokenizer(model / "tokenizer.model").encode(["rot"])
    with translator_by(model, one_at_a_time(lambda _: word * 30)) as translator:
        [found] = translator.translate(["der Hund"], terms=Terms.parse(["Hund\trot"]))
    assert (found.text, found.untranslated) == ("der Hund", True)


def test_a_translation_may_be_long(model: Path) -> None:
    """A short source has a margin, and tokens for single bytes do not count as text."""
    for found in (list(range(5, 22)), [3] * 5):
        with translator_by(model, one_at_a_time(lambda _, found=found: found)) as translator:
            assert not next(iter(translator.translate(["rot"]))).untranslated


def test_the_command_counts_and_marks_untranslated_lines(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with translator_by(model, one_at_a_time(lambda _: [5] * 30)) as translator:
        line, wordless = records(run(translator, b"rot\n3\n", format="jsonl"))
        assert (line["untranslated"], line["hypotheses"][0]["text"]) == (True, "rot")
        assert "untranslated" not in wordless
    assert "1 sentence or part of it was left untranslated" in capsys.readouterr().err


def test_an_error_while_a_segment_is_inspected_fails_only_its_text(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(ids: list[int]) -> bool:
        if len(ids) == 3:
            raise KeyError("ids")
        return False

    monkeypatch.setattr(assembler, "looping", failing)
    with translator_by(model, one_at_a_time(lambda s: [5] * len(s.ids[:-1]))) as translator:
        size = {len(translator.tokenizer.encode([line])[0]): line for line in ("rot", "rot rot", "rot rot rot")}
        wrong, right = translator.submit(size[3]), translator.submit(size[1])
        with pytest.raises(KeyError, match="ids"):
            wrong.result(20)
        assert len(right.result(20).hypotheses[0].ids) == 1


def test_a_loop_stays_untranslated_if_the_search_with_terms_fails_too(model: Path) -> None:
    [word] = Tokenizer(model / "tokenizer.model").encode(["rot"])
    with translator_by(model, one_at_a_time(lambda s: [5] if s.constraints else word * 30)) as translator:
        [found] = translator.translate(["der Hund"], terms=Terms.parse(["Hund\tKatze"]))
        assert (found.text, found.untranslated, translator.counts["untranslated"]) == ("der Hund", True, 1)


def test_the_tokens_of_a_forced_prefix_do_not_make_a_translation_too_long(echo: Translator) -> None:
    prefix = " ".join(WORDS[i * 7 % 15] + " " + WORDS[i * 4 % 15] for i in range(30))
    [found] = echo.translate(["der Hund geht auf"], prefixes=[prefix], extra_length=500)
    assert found.text == f"{prefix} der Hund geht auf"
    assert (len(found.segments), echo.counts["retried"]) == (1, 0)


def test_a_translation_is_too_long_by_its_characters(model: Path) -> None:
    """It has failed if it has 4 times the characters of its source plus 20, and 4 times its tokens plus 10."""
    tokenizer = Tokenizer(model / "tokenizer.model")
    pieces = tokenizer.tokens(list(range(tokenizer.vocabulary_size)))
    letters = [i for i, piece in enumerate(pieces) if len(piece) == 1 and piece.isalpha()]
    draw = [letters[i * i % 31 % len(letters)] for i in range(64)]
    for count, failed in ((31, False), (32, True)):
        assert len(tokenizer.decode([draw[:count]])[0]) == count
        with translator_by(model, one_at_a_time(lambda _, count=count: draw[:count])) as translator:
            [found] = translator.translate(["rot"])
        assert found.untranslated == failed


def test_a_half_must_have_only_its_own_terms(model: Path) -> None:
    """Its translation need not have the terms whose phrases are in the other half."""
    [word] = Tokenizer(model / "tokenizer.model").encode(["Baum"])
    with translator_by(model, one_at_a_time(lambda s: [5] * 40 if not s.depth else s.ids[:-1] + word)) as translator:
        line = "der Hund geht und die Katze ist nicht rot"
        [found] = translator.translate([line], terms=Terms.parse(["Hund\tBaum", "rot\trot"]))
        assert [[term.source for term in segment.terms] for segment in found.segments] == [["Hund"], ["rot"]]
        assert (translator.counts["retried"], translator.counts["constrained"]) == (1, 0)
