"""Documents with several elements, marks, fences and roots: each keeps its own place and its own state."""

import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_models import capitals, linked, same, texts_of, translated
from tiny_model import content, memory_file

from nmt_cli import documents
from nmt_cli.documents import alignment, html, markdown, xml
from nmt_cli.documents import translate as module
from nmt_cli.documents.document import Outline, ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import UsageError
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.translate import TranslateOptions


@pytest.mark.parametrize(
    ("text", "pairs", "expected"),
    [
        # An image at the end of an element stays inside it.
        ("<b>a dog<img></b> is", {"ein": "a", "Hund": "dog", "ist": "is"}, "<b>ein Hund<img></b> ist"),
        # Two images change places with their words.
        (
            "see <img src=1> dog and <img src=2> cat",
            {"Katze": "cat", "und": "and", "Hund": "dog", "sehen": "see"},
            "<img src=2> Katze und <img src=1> Hund sehen",
        ),
        # The first of two runs holds punctuation, the second does not.
        (
            "<b>dogs, cats call</b> him",
            {"Hunde": "dogs", ",": ",", "Katzen": "cats", "ihn": "him", "rufen": "call"},
            "<b>Hunde , Katzen</b> ihn <b>rufen</b>",
        ),
        # The third word joins the second run.
        (
            "<b>I call now</b> him",
            {"Ich": "I", "ihn": "him", "rufe": "call", "jetzt": "now"},
            "<b>Ich</b> ihn <b>rufe jetzt</b>",
        ),
        # An image between the words of an element stays in one of its two runs.
        ("<b>I <img>call</b> him", {"Ich": "I", "ihn": "him", "rufe": "call"}, "<b>Ich</b> ihn <b><img>rufe</b>"),
        # Elements around several words are written once.
        ("<b><i>a dog</i> is</b>", {"ein": "a", "Hund": "dog", "ist": "is"}, "<b><i>ein Hund</i> ist</b>"),
    ],
)
def test_each_mark_has_its_own_place(text: str, pairs: dict[str, str], expected: str) -> None:
    assert translated(html.parse(text), linked(pairs)) == expected


@pytest.mark.parametrize(
    "text", ["a, <b>b, c</b>, d, <i>e, f</i>", "files fi<b>le</b>s files", "a <b>a</b> a <b>a</b> a"]
)
def test_repeated_words_and_commas_keep_their_marks(text: str) -> None:
    assert translated(html.parse(text), same) == text


def test_text_after_the_last_link_stays_before_a_mark() -> None:
    out = translated(html.parse("a dog<img>"), lambda _: Aligned("ein Hund !?", [(3, 0), (8, 2)]))
    assert out == "ein Hund !?<img>"


def test_a_percent_sign_before_a_tag_in_capitals_is_not_a_placeholder() -> None:
    for text in ("5%<B>dogs</B>", "5%<b>dogs</b>", "5%<BR>dogs"):
        assert " ".join(texts_of(html.parse(text, Protection()))).endswith("dogs")


def test_a_name_with_a_digit_is_a_tag() -> None:
    assert html.has_tags("<h1>a", None)
    assert not html.has_tags("a <1>b</1>", None)


def test_xml_with_two_roots_is_one_segment_without_detection() -> None:
    undetected = Outline(detect=False)
    assert texts_of(xml.parse("<a>x y</a> <a>z</a>", outline=undetected)) == ["x y z"]
    assert texts_of(xml.parse("<a>x y</a> <a>z</a>")) == ["x y", "z"]


def test_xml_elements_that_overlap_keep_their_tags() -> None:
    text = "<r><a><b>x</a></b>y</r>"
    assert translated(xml.parse(text), same) == text


def test_attributes_may_follow_every_kind_of_markdown_element() -> None:
    text = "~~a~~{.x} dog and **b**{.y} *c*{.z} `d`{.w} [e](f){.v} ![g](h){.u}"
    expected = "~~A~~{.x} DOG AND **B**{.y} *C*{.z} `d`{.w} [E](f){.v} ![G](h){.u}"
    assert translated(markdown.parse(text), capitals) == expected


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("````{note}\nA dog\n\n```{tip}\nA cat\n```\n````\nend\n", ["A dog", "A cat", "end"]),
        # The inner fence is still open when its list item ends. The next fence begins code.
        ("````{note}\n- ```{tip}\n  A dog\n\n```\ncode\n```\n````\nend\n", ["A dog", "end"]),
        ("````{note}\nA dog\n````\n\n```{tip}\nA cat\n```\nend\n", ["A dog", "A cat", "end"]),
    ],
)
def test_two_fences_of_directives(text: str, seen: list[str]) -> None:
    parts = markdown.parse(text)
    assert texts_of(parts) == seen
    assert translated(parts, same) == text


@pytest.mark.parametrize("indent", ["", "  ", "\t"])
def test_the_flag_of_an_indented_message_has_its_own_line(indent: str) -> None:
    text = f'msgid ""\nmsgstr ""\n\n{indent}msgid "a b"\n{indent}msgstr ""\n\nmsgid "c d"\nmsgstr ""\n'
    catalog = FORMATS["po"].read(text, ReadOptions())
    for segment in catalog.segments:
        segment.result = [segment.text]
    assert catalog.write() == (
        f'msgid ""\nmsgstr ""\n\n#, fuzzy\n{indent}msgid "a b"\n{indent}msgstr "a b"\n\n'
        '#, fuzzy\nmsgid "c d"\nmsgstr "c d"\n'
    )


@pytest.mark.parametrize(
    ("text", "copied", "links"),
    [
        (" 3.14 5", "3.14 5", [(1, 1), (2, 2), (3, 3), (4, 4), (6, 6)]),
        ("3", "3.14", [(1, 0), (2, 0), (3, 0), (4, 0)]),  # the copied spelling is longer
    ],
)
def test_copied_text_is_linked_to_itself(text: str, copied: str, links: list[tuple[int, int]]) -> None:
    result: Any = SimpleNamespace(copy=SimpleNamespace(text=copied), hypotheses=[None])
    translator: Any = None
    assert alignment.align(translator, result, text) == Aligned(copied, links)


def test_lines_without_markup_are_not_html(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(_: Any, chunks: Any, options: SearchOptions) -> Any:
        return map(same, itertools.chain.from_iterable(chunks))

    translator: Any = SimpleNamespace(counts=Counter[str](), max_length=9)
    monkeypatch.setattr(module, "translate_aligned", search)
    data = b"a &amp; %s < b & c\n<i>x\n"
    target = memory_file()
    with Progress("translating", None, "lines") as progress:
        module.runner("text", None, True, [], {})(translator, TranslateOptions(), memory_file(data), target, progress)
    assert content(target) == data


@pytest.mark.parametrize("name", ["a.txt", "a.LC", "a.tok", "train.en", "test.pt-BR", "lines.01", "README", "a.src"])
def test_files_of_plain_lines_need_no_option(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a\n")
    assert documents.choose(None, tmp_path / name, None, None, []) is None
    (tmp_path / "a.pdf").write_text("a\n")
    with pytest.raises(UsageError, match=r"nmt cannot read the format of \S*a\.pdf"):
        documents.choose(None, tmp_path / "a.pdf", None, None, [])


@pytest.mark.parametrize(
    ("name", "inner", "found"),
    [("sup", "1234", True), ("sup", "12a", True), ("sup", "12ab", False), ("a", "[12]", True), ("a", "1a", False)],
)
def test_a_note_with_a_letter_is_shorter(name: str, inner: str, found: bool) -> None:
    assert html.is_note(name, "word", inner, " ") == found
