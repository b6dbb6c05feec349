"""Long text is cut into several segments, because placing each mark takes time that grows with the text."""

import re

import pytest
from fake_models import translated

from nmt_cli.documents import html
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.segment import render, segments_of


def words_linked(text: str) -> Aligned:
    """Repeat the source, with a link for each word."""
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    return Aligned(text, [(end, start) for start, end in spans])


@pytest.mark.parametrize(
    "text",
    [
        "A dog runs. " * 900,
        "a " * 5000,
        "x" * 9000,
        "\u6211\u4eec\u3002" * 3000,
        "<b>a</b> " * 900,
        "<b>a " * 900,
        "<b>" * 900 + "a" + "</b>" * 900,
        "a<wbr>" * 900,
        "A {dog} runs, %s. " * 400,
        "A &amp; dog. " * 600,
        "x" + "&amp;" * 1300,
        "xxx" + "&amp;a" * 1300,
    ],
)
def test_long_text_becomes_several_segments_and_stays_whole(text: str) -> None:
    parts = html.parse(text, Protection())
    assert render(parts) == text
    for segment in segments_of(parts):
        assert len(segment.text) <= 3000
        assert len(segment.standalone) + 2 * len(segment.elements) <= 50
    assert re.sub(r"\s", "", translated(parts, words_linked)) == re.sub(r"\s", "", text)


def test_long_text_is_cut_between_sentences() -> None:
    text = "A <b>dog</b> runs. " * 200
    segments = segments_of(html.parse(text))
    assert len(segments) > 2
    assert all(segment.text.startswith("A dog") and segment.text.endswith("runs.") for segment in segments)
    assert sum(len(segment.elements) for segment in segments) == 200


def test_long_text_is_not_cut_within_a_number_or_a_name() -> None:
    text = "A dog of 3.14 kg runs to nmt.example.org for 1.5 hours. " * 90
    segments = segments_of(html.parse(text))
    assert len(segments) > 2
    assert all(segment.text.startswith("A dog") and segment.text.endswith("hours.") for segment in segments)


ENDS = [".", "!", "?", "\u2026", '."', ".'", ".\u201d", "!\u2019", "?\u00bb", ".)", ".]", '.")']


@pytest.mark.parametrize(
    "sentence",
    [
        *(f"A <b>dog</b> runs{end} " for end in ENDS),
        *(f"\u6211<b>\u4eec</b>{end}" for end in ("\u3002", "\uff01", "\uff1f\u201d")),
    ],
)
def test_a_segment_with_many_marks_ends_with_its_sentence(sentence: str) -> None:
    """Each sentence has two marks, so the 25th mark of a segment is in its 13th sentence."""
    segments = segments_of(html.parse(sentence * 30))
    assert [len(segment.elements) for segment in segments] == [13, 13, 4]
    plain = re.sub("<[^>]*>", "", sentence)
    assert [segment.text for segment in segments] == [(plain * count).strip() for count in (13, 13, 4)]
