"""HTML: the segments that a model sees, the elements that are copied, and broken documents."""

import random
import re
from collections import Counter

import html5lib
import pytest
from fake_models import backwards, same, silent, texts_of, translated
from html5lib.constants import cdataElements, rcdataElements, voidElements
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli.corpus.tokenizer import normalize
from nmt_cli.documents import html, markdown
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import plain_parts, render

PIECES = [
    "<b>", "</b>", "<i>", "</i>", '<a href="x?a=1&amp;b=2">', "</a>", "<u><em>", "</u>", "</em>", "</code>", "<code>",
    "<p>", "</p>", "<div class=x>", "</div>", "<br>", "<br/>", "<h1>", "</h1>", "<table><tr><td>",
    "</td></tr></table>", "<ul><li>", "</ul>", '<p translate="no">', "<select><option>one<option>two</select>",
    "<pre> a\n b</pre>", "</span>", '<img src=x alt="A dog">', "<span title='The cat'>",
    '<input placeholder="Your name">', '<x id="3"></x>', "<b", "</", "<!-- note -->", "<!-->", "<![CDATA[x]]>",
    "<?php x ?>", "</ b>", "</>", "<a title=it's>", '<a ="x>', "<", '"', "&amp;", "&eacute;", "&nbsp;", "&lt;b&gt;",
    "AT&T", "a < b", "&copy", "un<i>believ</i>able", "<code>x <b>y</b></code>", '<script>if (a<b) "x"</script>',
    "<style>p{}</style>", "<textarea>hi</textarea>", "<title>T &amp; t</title>", "<b ", "<svg><title>s</title></svg>",
]  # fmt: skip
WORDS = ["The", "dog", "sees", "a", "cat", ",", ".", "5", "Haus", "über", "naïve", "日本", "e\u0301", "I'm", "it."]
TEXT_ATTRIBUTE = re.compile(r"(?:title|alt|placeholder)\s*=\s*(?:'[^']*'|\"[^\"]*\"|[^\s>]*)")


def document(seed: int) -> str:
    """Return nested, broken HTML with entities."""
    draw = random.Random(seed)
    pieces = [draw.choice(PIECES if draw.random() < 0.5 else WORDS) for _ in range(draw.randint(1, 40))]
    return "".join(draw.choice([" ", "", "\n", " "]) + piece for piece in pieces)


def tags(text: str) -> Counter[str]:
    return Counter(TEXT_ATTRIBUTE.sub("", match[0]) for match in html.TOKEN.finditer(text))


def content(text: str) -> str:
    """Return the text of a page as a browser shows it."""
    root = html5lib.parse(text, treebuilder="etree", namespaceHTMLElements=False)

    def walk(element):
        if isinstance(element.tag, str):
            yield element.text or ""
            for child in element:
                yield from walk(child)
        yield element.tail or ""

    return normalize("".join(walk(root)))


def shown(text: str) -> list[str]:
    """Return the segments that a model sees. Check that the document stays as it is without translations."""
    parts = html.parse(text, Protection())
    assert render(parts) == text
    return texts_of(parts)


def test_nothing_is_lost_in_500_broken_documents() -> None:
    """Check three models.

    A model that repeats its input keeps the text that a browser shows, and all tags. A model that reverses sentences
    keeps all tags and letters, and repeats only pairs of tags. An empty translation leaves the document as it was.
    """
    for seed in range(500):
        text = document(seed)
        page, out = content(text), translated(html.parse(text))
        assert content(out) == page, text
        assert tags(out) == tags(text), text
        turned = translated(html.parse(text), backwards)
        extra = tags(turned) - tags(text)
        assert not tags(text) - tags(turned), text
        assert not {
            tag for tag in extra if "</" not in tag and not tag.startswith(("<b", "<i", "<a", "<u", "<e", "<s"))
        }
        letters = [Counter(re.sub(r"\s", "", each)) for each in (page, content(turned))]
        assert letters[0] == letters[1], text
        left = translated(html.parse(text), silent).replace('"', "")  # attributes may get quotes
        assert left == text.replace('"', ""), text


@given(
    st.lists(st.sampled_from([p for p in PIECES if not re.search("[a-zA-Z]", re.sub("<[^>]*>", "", p))]), max_size=20)
)
@settings(max_examples=100, deadline=None)
def test_a_document_without_text_stays_byte_for_byte(pieces: list[str]) -> None:
    text = " \n".join(piece for piece in pieces if not TEXT_ATTRIBUTE.search(piece) and not piece.startswith("&"))
    assert translated(html.parse(text), backwards) == text


@given(st.text(alphabet="ab <>/&;\"'=!-?x\n", max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_characters_are_read_without_loss(text: str) -> None:
    assert render(html.parse(text)) == text
    assert content(translated(html.parse(text))) == content(text)


@pytest.mark.parametrize("text", ["A & dog &amp;lt;b&amp;gt;", "dogs & cats &amp;amp; c", "<b>a & &amp;eacute;</b>"])
def test_text_that_looks_like_an_entity_stays_text(text: str) -> None:
    """This holds even if the source has an ampersand that is not escaped."""
    assert content(translated(html.parse(text))) == content(text)


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("<p>A dog.</p><p>A <b>cat</b>.", ["A dog.", "A cat."]),
        ("one<br>two<li>three", ["one", "two", "three"]),
        ("un<b>believ</b>able so<wbr>me<!-- x -->thing", ["unbelievable something"]),
        ("a<img alt='A dog'>cat", ["A dog", "a cat"]),
        ("a<IMG SRC=x Alt='A dog' TITLE=fox>cat", ["A dog", "fox", "a cat"]),
        ("Press <kbd>Ctrl</kbd> or <code>a <b>b</b></code> now", ["Press or now"]),
        ("<pre>x y</pre><script>var a</script><style>b</style><textarea>c</textarea>", []),
        ("<div translate='no'>x <b>y</b></div>z<p translate=no>a<p>b", ["z", "b"]),
        ("<p translate=no>x <svg><title>y</title></svg> z<p>b", ["b"]),
        ("<div translate=no>x<div>y</div>z</div>b", ["b"]),
        (
            "<title>A &amp; B</title><a title=x placeholder='y z' href=q aria-label=\"w\">v</a>",
            ["A & B", "x", "y z", "w", "v"],
        ),
        ("5 &gt; 3 <hr> &nbsp; <b></b>", []),
        ("a<img src=x>cat<b>s</b>", ["a cats"]),
        ("a<img src=x><wbr>cat", ["a cat"]),
        ("<script>a</SCRIPT>b<TITLE>c</Title >d", ["b", "c", "d"]),
        ("x<p translate=yes>a<p TRANSLATE='NO'>b", ["x", "a"]),
        ("<a notitle=x data-alt=y title=''>v</a>", ["v"]),
    ],
)
def test_texts_that_the_model_sees(text: str, segments: list[str]) -> None:
    assert texts_of(html.parse(text)) == segments


# Elements of the HTML standard: inline elements, blocks, and elements whose text is not natural language.
PHRASES = """
a abbr area b base bdi bdo cite code data del dfn em embed i img input ins kbd label map mark math meter object output
param picture progress q ruby rp rt s samp script small span strong sub sup svg textarea time u var wbr
"""
BLOCKS = """
address article aside audio blockquote body br button caption center col colgroup datalist dd details dialog dir div dl
dt fieldset figcaption figure footer form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe legend li
link listing main menu meta nav noembed noframes noscript ol optgroup option p plaintext pre search section select slot
source style summary table tbody td template tfoot th thead title tr track ul video xmp
"""
COPIED = "code iframe kbd math noembed noframes object plaintext pre samp script style svg textarea var xmp"


def test_elements_of_the_standard_separate_texts_or_are_copied() -> None:
    """html5lib's list of void elements has two that the standard has dropped, and lacks wbr."""
    void = voidElements - {"command", "event-source"} | {"wbr"}
    assert void == html.VOID
    raw = cdataElements | rcdataElements - {"noscript"} | {"plaintext"}
    assert raw == html.RAW
    blocks, copied = BLOCKS.split(), COPIED.split()
    for name in [*PHRASES.split(), *blocks]:
        text = f"<p>a<{name}>" + ("" if name in void else f"b</{name.upper()}>") + "c"
        between = "" if name in {*copied, *void} else "b"
        after = "" if name == "plaintext" else "c"  # nothing ends plaintext
        apart = name in {*copied, *void} - {"wbr"}
        shown = ["a", between, after] if name in blocks else [f"a{' ' if apart else ''}{between}{after}"]
        assert texts_of(html.parse(text)) == [each for each in shown if each], name


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
def test_footnote_marks_powers_and_indices_are_hidden(text: str, expected: list[str]) -> None:
    assert shown(text) == expected


@pytest.mark.parametrize(
    "sign", ["\u00ad", "&shy;", "&#173;", "\u200b", "&ZeroWidthSpace;", "\u2060", "&NoBreak;", "\ufeff"]
)
def test_invisible_characters_inside_words_are_hidden(sign: str) -> None:
    text = f"the hy{sign}phen{sign} is {sign}"
    assert shown(text) == ["the hyphen is"]
    assert translated(html.parse(text), same).replace(sign, "").strip() == "the hyphen is"
    assert texts_of(markdown.parse(text)) == ["the hyphen is"]
    assert shown(f"<p title='a{sign}b'>x") == ["ab", "x"]
    assert shown(f"5{sign}6") == []
    if not sign.startswith("&"):
        assert texts_of(plain_parts(text)) == ["the hyphen is"]


def test_invisible_characters_that_a_script_needs_are_kept() -> None:
    assert shown("می\u200cخواهم क्\u200dष") == ["می\u200cخواهم क्\u200dष"]
    assert shown("ភាសា\u200bខ្មែរ") == ["ភាសា ខ្មែរ"]  # the zero-width space separates words


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
def test_translate_attributes_and_notranslate_classes(text: str, expected: list[str]) -> None:
    assert shown(text) == expected
    assert translated(html.parse(text), same).replace(" ", "") == text.replace(" ", "")


def test_no_text_moves_into_an_element_without_end_tag() -> None:
    """This holds beside elements that demand translation, too."""
    for other in ("<b>four</b>", '<b translate="yes">four</b>'):
        text = f'<p>one two <i translate="no">Foo</p><p>three {other}</p>'
        expected = f'<p>two one <i translate="no">Foo</p><p>{other} three</p>'
        assert translated(html.parse(text), backwards) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<!DOCTYPE html>\n<html lang="en">', '<!DOCTYPE html>\n<html lang="de">'),
        ("<HTML class=x LANG=en-US xml:lang='en'>", "<HTML class=x LANG=de xml:lang='de'>"),
        ("<html><p lang=en>", "<html><p lang=en>"),
        ("<html lang>", "<html lang>"),
    ],
)
def test_the_lang_attribute_names_the_target_language(text: str, expected: str) -> None:
    assert render(html.parse(text, language="de")) == expected
    assert render(html.parse(text)) == text
    assert FORMATS["html"].read(text, ReadOptions(language="de")).write() == expected
    assert render(html.parse(text, language="deu_Latn")) == expected.replace("de", "deu-Latn")
    assert render(html.parse(text, language="x' onload='y")) == text
