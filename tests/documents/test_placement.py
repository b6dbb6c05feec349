"""Placement of marks: tags, images and placeholders move with their words."""

import re

import pytest
from fake_models import linked, translated

from nmt_cli.documents import html, markdown
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.segment import plain_parts

TIRED = {"Der": "The", "müde": "tired", "Hund": "dog", "wird": "is", "heute": "today", "angerufen": "called"}


@pytest.mark.parametrize(
    ("text", "pairs", "expected"),
    [
        # Elements follow their words, nest, and are repeated if their words are separated.
        ("The <b>tired <i>dog</i></b> is called today", TIRED, "Der <b>müde <i>Hund</i></b> wird heute angerufen"),
        ("Today is <i>called</i> <b>dog</b>", {"Hund": "dog", "gerufen": "called"}, "<b>Hund</b> <i>gerufen</i>"),
        (
            "<b>I call</b> him",
            {"Ich": "I", "rufe": "call", "ihn": "him", "an": "call"},
            "<b>Ich rufe</b> ihn <b>an</b>",
        ),
        (
            "<b id=1>I call</b> him",
            {"Ich": "I", "rufe": "call", "ihn": "him", "an": "call"},
            "<b id=1>Ich rufe ihn an</b>",
        ),
        # A tag with a long attribute is not repeated.
        (
            f"<b data-x={'x' * 500}>I call</b> him",
            {"Ich": "I", "rufe": "call", "ihn": "him", "an": "call"},
            f"<b data-x={'x' * 500}>Ich rufe ihn an</b>",
        ),
        (
            "<b id=1>call</b> him now",
            {"Rufe": "call", "ihn": "him", "jetzt": "now", "an": "call"},
            "<b id=1>Rufe</b> ihn jetzt an",
        ),
        # Punctuation belongs to equal punctuation of the source, and does not end a run of words.
        (
            "<b>dogs</b>, <i>cats</i>!",
            {"Katzen": "cats", ",": "dogs", "Hunde": "dogs", "!": "dogs"},
            "<i>Katzen</i> , <b>Hunde</b> !",
        ),
        (
            "<b data-id=0 ID=1>I call</b> him",
            {"Ich": "I", "rufe": "call", "ihn": "him", "an": "call"},
            "<b data-id=0 ID=1>Ich rufe ihn an</b>",
        ),
        ("<b>dog!</b> cats", {"!": "!", "Katzen": "cats", "Hund": "dog"}, "! Katzen <b>Hund</b>"),
        # An element without a linked word takes the nearest word; one without text follows its neighbors.
        ("a <b>very</b> old dog", {"ein": "a", "Hund": "dog"}, "<b>ein</b> Hund"),
        ("a dog <b>barks</b>.", {"Ein": "a", "Hund": "dog", ".": "."}, "Ein <b>Hund</b> ."),
        ("see <img src=x> dog", {"Hund": "dog", "sehen": "see"}, "<img src=x> Hund sehen"),
        ("see <a href=x><img src=x></a> dog", {"Hund": "dog", "sehen": "see"}, "<a href=x><img src=x></a> Hund sehen"),
        # Only white space in an element without text separates the words beside it.
        ("dog</i><x></x>is", {"dogis": "dogis"}, "dog</i><x></x>is"),
        ("<x></x></>dog", {"dog": "dog"}, "<x></x></>dog"),
        ("dog<b><!-- x --> </b>is", {"dog": "dog", "is": "is"}, "dog<b><!-- x --> </b>is"),
        ("dog<b> <code>x</code> </b>is", {"dog": "dog", "is": "is"}, "dog<b> <code>x</code> </b>is"),
        ("5<br><i> dog </i><br>", {"Hund": "dog"}, "5<br> <i>Hund</i> <br>"),
        # Unclosed markup stays at the end.
        ("a dog <!-- x", {"Hund": "dog", "ein": "a"}, "Hund ein <!-- x"),
        ("a dog <b translate=no>x</", {"Hund": "dog", "ein": "a"}, "Hund ein <b translate=no>x</"),
        # Tags without a partner keep their order.
        ("a</i> dog <b>is", {"ist": "is", "Hund": "dog", "ein": "a"}, "ist Hund ein</i> <b>"),
        ("<b>a <i>dog</b> is</i>", {"ein": "a", "Hund": "dog", "ist": "is"}, "<b>ein <i>Hund</b> ist</i>"),
        # Characters are spelled as in the source.
        (
            "dog&#39;s &amp; <b>caf&eacute;</b>",
            {"Hund's": "dog", "&": "&", "Café": "caf"},
            "Hund&#39;s &amp; <b>Caf&eacute;</b>",
        ),
        ("&eacute; x&#233;x", {"é": "é", "éx": "x"}, "&eacute; &eacute;x"),
        ("&#160;<b>dog</b>&#xA0;&nbsp;", {"Hund": "dog"}, "&#160;<b>Hund</b>&#xA0;&nbsp;"),
        ("dog", {"<b>": "dog", "&amp;": "dog"}, "&lt;b&gt; &amp;amp;"),
        ("<img alt='a dog'>", {"'Hund\"": "dog"}, "<img alt='&#x27;Hund\"'>"),
        ("<img alt=dog>", {"'Ein": "dog", '"Hund"': "dog"}, '<img alt="\'Ein &quot;Hund&quot;">'),
        # Words of a script without spaces, and a quotation mark in an attribute.
        ("a <b>dog</b> is", {"\u4e00": "a", "\u72d7": "dog", "\u662f": "is"}, "\u4e00 <b>\u72d7</b> \u662f"),
        ('<img alt="a dog">', {'"Hund"': "dog"}, '<img alt="&quot;Hund&quot;">'),
    ],
)
def test_marks_move_with_their_words(text: str, pairs: dict[str, str], expected: str) -> None:
    assert translated(html.parse(text), linked(pairs)) == expected


@pytest.mark.parametrize(
    "output",
    [
        "\u4e00\u72d7\u662f",
        "\u3042\u30a2\u30f3",
        "\u0e01\u0e02\u0e04",
        "\u0e81\u0e82\u0e84",
        "\u1000\u1001\u1002",
        "\u1780\u1781\u1782",
        "\U00020000\U00020001\U00020002",
    ],
)
def test_tokens_are_words_in_scripts_without_spaces(output: str) -> None:
    """In other scripts, the tokens of a word follow its first token."""
    out = translated(html.parse("a <b>dog</b> is"), lambda _: Aligned(output, [(1, 0), (2, 2), (3, 6)]))
    assert out == f"{output[0]}<b>{output[1]}</b>{output[2]}"
    assert translated(html.parse("a <b>dog</b> is"), lambda _: Aligned("xyz", [(1, 2), (2, 0), (3, 6)])) == "<b>xyz</b>"


def test_white_space_between_words_is_one_space() -> None:
    """Forbidden additions of the model are replaced by a space, too."""
    out = translated(html.parse("a <b>dog</b>"), lambda _: Aligned("ein \t Hund", [(3, 0), (10, 2)]))
    assert out == "ein <b>Hund</b>"
    out = translated(plain_parts("a dog", Protection()), lambda _: Aligned("ein %s Hund", [(3, 0), (6, 2), (11, 2)]))
    assert out == "ein Hund"


def test_tags_without_a_word_do_not_separate_words() -> None:
    out = translated(html.parse("a <i>b <b>c</b></i> d"), lambda _: Aligned("d'autres", [(1, 0), (2, 2), (8, 6)]))
    assert out == "d<i>'<b></b></i>autres"


def test_an_opening_bracket_has_no_space_before_a_mark() -> None:
    for sign, space in [
        *((sign, "") for sign in "([{\u00a1\u00bf\u201e\u201c\u2018\u00ab"),
        *((sign, " ") for sign in "-.)\u00bb"),
    ]:
        out = translated(html.parse("see <img> dog"), lambda _, sign=sign: Aligned(f"{sign}Hund", [(1, 0), (5, 4)]))
        assert out == f"{sign}{space}<img> Hund"


WORDS = {"note": "Hinweis", "file": "Datei", "files": "Dateien", "the": "der", "see": "siehe", "and": "und"}


def german(text: str) -> Aligned:
    """Translate word by word. Tokens are words, numbers and punctuation."""
    out, links = "", []
    for match in re.finditer(r"\s*([^\W\d]+|\d+|[^\w\s])", text):
        out += text[match.start() : match.start(1)] + WORDS.get(match[1], match[1])
        links.append((len(out), match.start(1)))
    return Aligned(out, links)


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
        # A mark on a part of a word stays on the word, even if another word is nearer.
        ("the file<b>s</b> a and", "der <b>Dateien</b> a und"),
        ("the <b>f</b>iles and", "der <b>Dateien</b> und"),
    ],
)
def test_a_mark_on_a_word_stays_there(text: str, expected: str) -> None:
    assert translated(html.parse(text, Protection()), german) == expected


def test_a_mark_moves_with_its_word() -> None:
    model = linked({"Jetzt": "now", "Hinweis": "note", "siehe": "see"})
    assert translated(html.parse("see note<sup>1</sup> now"), model) == "Jetzt Hinweis<sup>1</sup> siehe"
    assert translated(html.parse("see note<img> now"), model) == "Jetzt Hinweis<img> siehe"


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
    ("text", "pairs", "expected"),
    [
        ("Deleted %d files.", {"Dateien": "files", "gelöscht": "Deleted", ".": "."}, "%d Dateien gelöscht ."),
        ("Deleted %(n)d files (now)", {"Jetzt": "now", "weg": "files"}, "(Jetzt) %(n)d weg"),
        ("file%(s)s gone", {"weg": "gone", "Datei": "file"}, "weg Datei%(s)s"),
        ("(dogs I) call", {"Hunde": "dogs", "rufe": "call", "ich": "I"}, "(Hunde rufe ich)"),
        ("%s has %s dogs", {"Hunde": "dogs", "hat": "has"}, "Hunde %s hat %s"),
        (
            "dogs %s cats <b>%s</b> files",
            {"Dateien": "files", "Katzen": "cats", "Hunde": "dogs"},
            "Dateien %s Katzen <b>%s</b> Hunde",
        ),
        ('"%s" (by %s) left', {"Fort": "left", "von": "by"}, 'Fort "%s" (von %s)'),
    ],
)
def test_placeholders_stay_beside_their_neighbors(text: str, pairs: dict[str, str], expected: str) -> None:
    assert translated(plain_parts(text, Protection(strict=True)), linked(pairs)) == expected
