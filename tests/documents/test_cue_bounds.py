"""Subtitles and other files in unusual shapes: marks and their order, short cues, long cues, drawings, and names."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_models import backwards, capitals, filled, linked, texts_of_file, translated_file
from test_subtitle_details import TAGS, line, pieces
from test_subtitles import cue, shown
from tiny_model import content, memory_file

from nmt_cli import documents
from nmt_cli.documents import translate
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.encodings import decoded
from nmt_cli.documents.formats import FORMATS, SUFFIXES
from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.subtitle_layout import broken_into_lines, divided
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.translate import TranslateOptions


def test_marks_of_a_cue_keep_their_order_and_do_not_divide_words() -> None:
    data = cue(9, "see {\\k1}dog {\\k2}and {\\k3}cat")
    assert re.findall(r"\{\\k(\d)\}", translated_file("srt", data, backwards).decode()) == ["1", "2", "3"]
    assert texts_of_file("srt", cue(9, "a do{\\k1}g sees")) == ["a dog sees"]
    assert texts_of_file("vtt", b"WEBVTT\n\n00:01.000 --> 00:03.000\na do<00:01.500>g sees\n") == ["a dog sees"]


def test_the_duration_of_each_cue_is_its_own() -> None:
    """The second of three cues is too short for a word of 60 letters, so the word moves to the third."""
    times = "00:00:01,000 --> 00:00:09,000", "00:00:09,000 --> 00:00:09,100", "00:00:09,100 --> 00:00:19,000"
    data = "".join(f"{n}\n{time}\n{text}\n\n" for n, (time, text) in enumerate(zip(times, "abc", strict=True), 1))
    long = "x" * 60

    def model(text: str) -> Aligned:
        assert text == "a b c"
        target = f"eins zwei {long} vier"
        return Aligned(target, [(4, 0), (9, 2), (70, 2), (75, 4)])

    assert shown(translated_file("srt", data.encode(), model, ReadOptions(line_length=99))) == [
        "eins", "zwei", f"{long} vier",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [40, 299, 300])
def test_a_cue_may_have_many_words(count: int) -> None:
    texts = ["a " * (count - 1) + "a", "b"]
    target = " ".join(["x"] * count + ["y"])
    assert pieces(target, [*range(count + 1)], texts, [9999, 9], 9999) == ["x " * (count - 1) + "x", "y"]


def test_text_after_the_last_link_stays_in_the_last_cue() -> None:
    target = Aligned("eins zwei !? ", [(4, 0), (9, 2)])
    assert [each.text for each in divided(target, ["a", "b"], [9, 9], 42)] == ["eins", "zwei !?"]


def test_links_are_relative_to_their_cue_even_without_spaces() -> None:
    one, two = divided(Aligned("\u6211\u4eec", [(1, 0), (2, 2)]), ["a", "b"], [9, 9], 42)
    assert (one, two) == (Aligned("\u6211", [(1, 0)]), Aligned("\u4eec", [(1, 0)]))


def test_a_space_that_begins_a_line_has_no_width() -> None:
    assert broken_into_lines(" aaa bbb", TAGS, 7) == ["aaa bbb"]
    assert broken_into_lines(" aaa bbb", TAGS, 6) == ["aaa", "bbb"]


def test_a_drawing_may_follow_other_marks() -> None:
    for text in ("{\\i1}{\\p1}m 0 0 l 1 1", "{\\p1}m 0 0{\\i1}", "a {\\p2}m 0 0{\\p0}"):
        data = ("[Events]\n" + line(text)).encode()
        assert texts_of_file("ass", data) == []
        assert translated_file("ass", data, capitals) == data


def test_half_of_the_characters_are_not_enough_for_utf16() -> None:
    """Most of the characters at the beginning must be below U+0100."""
    for encoding in ("utf-16-le", "utf-16-be"):
        assert decoded("abЖ".encode(encoding))[0] == "abЖ"
        with pytest.raises(DataError, match="NUL characters"):
            decoded("aЖ".encode(encoding))


def test_only_a_leading_byte_order_mark_is_treated_as_one() -> None:
    for kind, text in (
        ("json", '["a\ufeffb c"]'),
        ("md", "a \ufeffdog"),
        ("html", "<p>a\ufeff dog"),
        ("po", "# \ufeff\n"),
    ):
        for mark in ("", "\ufeff"):
            data = (mark + text).encode()
            document = FORMATS[kind].read(data, ReadOptions())
            assert document.to_bytes() == data


ENDINGS = """txt text lines list src tgt trg source target ref refs reference hyp hyps out output mt sys tok detok norm
bpe sp spm lc tc lower true clean dedup raw sent snt seg train dev valid test part gz bz2 xz zst"""


@pytest.mark.parametrize("suffix", ENDINGS.split())
def test_suffixes_of_plain_lines(tmp_path: Path, suffix: str) -> None:
    for name in (f"a.{suffix}", f"a.{suffix.upper()}"):
        (tmp_path / name).write_text("a\n")
        assert documents.choose(None, tmp_path / name, None, None, []) is None


def test_the_error_for_an_unknown_suffix_lists_the_known_ones(tmp_path: Path) -> None:
    for name in ("a.pdf", "tmp.AbCdEfGhIj.pdf", "tmp.AbCdEfGhIjK"):
        (tmp_path / name).write_text("a\n")
        with pytest.raises(UsageError) as error:
            documents.choose(None, tmp_path / name, None, None, [])
        assert f"It reads {', '.join(SUFFIXES)}, and lines of text." in str(error.value)
    (tmp_path / "tmp.AbCdEfGhIj").write_text("a\n")
    assert documents.choose(None, tmp_path / "tmp.AbCdEfGhIj", None, None, []) is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, DataError, MemoryError])
def test_an_interrupted_file_counts_nothing(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    """Nothing of it is written."""

    def search(_: Any, chunks: Any, __: SearchOptions) -> Iterator[Aligned]:
        yield capitals(next(iter(chunks))[0])
        raise error

    config = SimpleNamespace(src="en", tgt="de", pairs=())
    translator: Any = SimpleNamespace(counts=Counter[str](), max_length=9, config=config, directions=())
    monkeypatch.setattr(translate, "translate_aligned", search)
    target, run = memory_file(), translate.runner("html", None, None, [], {})
    with Progress("translating", None, "lines") as progress, pytest.raises(error):
        run(translator, TranslateOptions(), memory_file(b"<p>dog<p>cat"), target, progress)
    assert (progress.done, content(target)) == (0, b"")


XLIFF_2 = '<xliff version="2.0" srcLang="en" trgLang="de"><file><unit>{}</unit></file></xliff>'


@pytest.mark.parametrize("target", ["", "<target/>", "<target></target>", "<target> </target>"])
def test_a_segment_with_an_empty_target_gets_its_state(target: str) -> None:
    text = XLIFF_2.format(f'<segment state="initial"><source>a</source>{target}</segment>')
    document = FORMATS["xliff"].read(text, ReadOptions(language="de"))
    expected = '<segment state="translated"><source>a</source><target>A</target></segment>'
    assert filled(document, capitals) == XLIFF_2.format(expected)


@pytest.mark.parametrize(
    ("state", "target", "done"), [("initial", "a", False), ("initial", "b", True), ("final", "a", True)]
)
def test_a_copied_target_in_the_initial_state_is_translated(state: str, target: str, done: bool) -> None:
    text = XLIFF_2.format(f'<segment state="{state}"><source>a</source><target>{target}</target></segment>')
    document = FORMATS["xliff"].read(text, ReadOptions(language="de"))
    assert (filled(document, capitals) == text) == done


def test_escaped_tags_beside_elements_are_text() -> None:
    text = '<resources><string name="a">a <b>x</b> &lt;i&gt;y&lt;/i&gt; z</string></resources>'
    document = FORMATS["android"].read(text, ReadOptions())
    written = filled(document, linked({"Z": "z", "X": "x"}))
    assert written.count("<b>") == written.count("</b>") == 1
    assert "<i>" not in written
