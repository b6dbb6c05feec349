"""Marks on a word, characters that nobody sees, text that is not to be translated, the language of a page."""

import re

import pytest
from fake_models import same
from test_documents import translated, words_of

from nmt_cli.documents import markdown, markup
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.segment import Builder, render, segments_of
from nmt_cli.documents.translate import read_document
from nmt_cli.serving.texts import TextFormat

WORDS = {"note": "Hinweis", "file": "Datei", "files": "Dateien", "the": "der", "see": "siehe", "and": "und"}


def german(text: str) -> Aligned:
    """A model with a lexicon, whose tokens are words, numbers and signs."""
    out, links = "", []
    for match in re.finditer(r"\s*([^\W\d]+|\d+|[^\w\s])", text):
        out += text[match.start() : match.start(1)] + WORDS.get(match[1], match[1])
        links.append((len(out), match.start(1)))
    return Aligned(out, links)


def shown(text: str) -> list[str]:
    parts = markup.parse(text, Protection())
    assert render(parts) == text
    return [segment.text for segment in segments_of(parts)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see the note<sup>1</sup> and", "siehe der Hinweis<sup>1</sup> und"),
        ("see the note<sup>*</sup> and", "siehe der Hinweis<sup>*</sup> und"),
        ("see.<sup>1</sup> and", "siehe.<sup>1</sup> und"),
        ("the <b>note</b><sup><a href='#f'>[1]</a></sup> and", "der <b>Hinweis</b><sup><a href='#f'>[1]</a></sup> und"),
        ("the note<a href='#f'>1</a> and", "der Hinweis<a href='#f'>1</a> und"),
        ("the note<b>1</b> and", "der Hinweis<b>1</b> und"),
        ("the note<img src=x> and", "der Hinweis<img src=x> und"),
        ("the note{x} and", "der Hinweis{x} und"),
        ("and H<sub>2</sub>O and", "und H<sub>2</sub>O und"),
        ("5 m<sup>2</sup>, see", "5 m<sup>2</sup>, siehe"),
        ("see note<sup>TM</sup> and", "siehe Hinweis<sup>TM</sup> und"),
        ("see the file<sub>n</sub>.", "siehe der Datei<sub>n</sub>."),
        ("the 1<sup>st</sup> file", "der 1<sup>st</sup> Datei"),
        ("see <var>the</var> and", "siehe <var>the</var> und"),
        # A part of a word, which the model has none for, stays at the word, also if another is nearer.
        ("the file<b>s</b> a and", "der <b>Dateien</b> a und"),
        ("the <b>f</b>iles and", "der <b>Dateien</b> und"),
    ],
)
def test_a_mark_on_a_word_stays_there(text: str, expected: str) -> None:
    assert translated(markup.parse(text, Protection()), german) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see the note<sup>1</sup> and", ["see the note and"]),
        ("see.<sup>1</sup> And", ["see. And"]),
        ("in 2019<sup>[1]</sup>", ["in 2019"]),
        ("1<sup>st</sup> dog, street<sup>b</sup> animal<sup>TM</sup>", ["1 dog, street animal"]),
        ("CO<sub>2</sub> H<sub>2</sub>O Ca(OH)<sub>2</sub> x<sup>2</sup>y", ["CO H O Ca(OH) x y"]),
        ("a re<sup>al</sup>ly 2<a>3</a> x<sup>word</sup>", ["a really 23 xword"]),
        ("a <sub>b</sub> <sup>1</sup>/<sub>2</sub> cup", ["a b 1/2 cup"]),
        ("see <var>the_x</var> now", ["see now"]),
        ("a <sup>1</sup> b<sup> 2</sup> c<sup></sup>", ["a 1 b 2 c"]),
        ("<p>a</p><sup>1</sup> b", ["a", "1 b"]),
    ],
)
def test_the_mark_of_a_note_is_not_shown(text: str, expected: list[str]) -> None:
    assert shown(text) == expected


def test_a_mark_stays_at_its_word_where_that_goes() -> None:
    def model(source: str) -> Aligned:
        return words_of(source, {"Jetzt": "now", "Hinweis": "note", "siehe": "see"})

    assert translated(markup.parse("see note<sup>1</sup> now"), model) == "Jetzt Hinweis<sup>1</sup> siehe"
    assert translated(markup.parse("see note<img> now"), model) == "Jetzt Hinweis<img> siehe"


def test_marks_on_words_in_markdown() -> None:
    text = "see the note<sup>1</sup> and **file**<sup>2</sup> and [^1]"
    expected = "siehe der Hinweis<sup>1</sup> und **Datei**<sup>2</sup> und [^1]"
    assert translated(markdown.parse(text, Protection()), german) == expected
    text = "see the file<sub>b</sub>, H<sub>2</sub>O and <var>the</var>"
    assert (
        translated(markdown.parse(text, Protection()), german)
        == "siehe der Datei<sub>b</sub>, H<sub>2</sub>O und <var>the</var>"
    )
    text = 'see <span class="notranslate">the <i>note</i></span> and'
    assert translated(markdown.parse(text, Protection()), german) == text.replace("see", "siehe").replace("and", "und")


@pytest.mark.parametrize(
    "sign", ["\u00ad", "&shy;", "&#173;", "\u200b", "&ZeroWidthSpace;", "\u2060", "&NoBreak;", "\ufeff"]
)
def test_signs_within_a_word_that_nobody_sees_are_not_shown(sign: str) -> None:
    text = f"the hy{sign}phen{sign} is {sign}"
    assert shown(text) == ["the hyphen is"]
    assert translated(markup.parse(text), same).replace(sign, "").strip() == "the hyphen is"
    assert [segment.text for segment in segments_of(markdown.parse(text))] == ["the hyphen is"]
    assert shown(f"<p title='a{sign}b'>x") == ["ab", "x"]
    assert shown(f"5{sign}6") == []
    if not sign.startswith("&"):
        builder = Builder()
        builder.add_source(text)
        assert [segment.text for segment in segments_of(builder.build())] == ["the hyphen is"]


def test_signs_that_a_script_needs_are_shown() -> None:
    assert shown("می\u200cخواهم क्\u200dष") == ["می\u200cخواهم क्\u200dष"]
    assert shown("ភាសា\u200bខ្មែរ") == ["ភាសា ខ្មែរ"]  # it parts the words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see <b class=notranslate>x y</b> z", ["see z"]),
        ("<p class='a NoTranslate b'>x</p>z", ["z"]),
        ("<p class='a skiptranslate'>x</p>z", ["z"]),
        ("<p class='notranslated' id=notranslate>x</p>z", ["x", "z"]),
        ("<div translate=no>a<p translate=yes>b<i translate=no>c</i> d</p>e</div>f", ["b d", "f"]),
        ("a <span class=notranslate>b <i translate='yes'>c</i> d</span> e", ["a", "c", "e"]),
        ("<p translate=no>a<b translate>b</b><b translate=''>c</b>d</p>e", ["b", "c", "e"]),
        ("<p translate=no>a<b translate=yes>b<p>c", ["c"]),
        ("<code>a <b translate=yes>b</b></code> c", ["c"]),
        ("<p translate=no>a <code>b <i translate=yes>c</i></code></p> d", ["c", "d"]),
        ("<p translate=yes>a</p>", ["a"]),
    ],
)
def test_text_that_is_not_to_be_translated(text: str, expected: list[str]) -> None:
    assert shown(text) == expected
    assert translated(markup.parse(text), same).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<!DOCTYPE html>\n<html lang="en">', '<!DOCTYPE html>\n<html lang="de">'),
        ("<HTML class=x LANG=en-US xml:lang='en'>", "<HTML class=x LANG=de xml:lang='de'>"),
        ("<html><p lang=en>", "<html><p lang=en>"),
        ("<html lang>", "<html lang>"),
    ],
)
def test_a_page_is_in_the_target_language(text: str, expected: str) -> None:
    assert render(markup.parse(text, language="de")) == expected
    assert render(markup.parse(text)) == text
    assert render(read_document(text, "html", None, "de")[0]) == expected
    assert TextFormat("html", language="de").parse(text).units == []
    assert render(markup.parse(text, language="deu_Latn")) == expected.replace("de", "deu-Latn")
    assert render(markup.parse(text, language="x' onload='y")) == text
