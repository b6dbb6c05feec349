"""HTML, XML and Markdown: exact bounds of notes and tags, references, roots, and marks beside words."""

import pytest
from fake_models import Model, backwards, capitals, filled, linked, same, silent, texts_of, translated

from nmt_cli.documents import html, markdown, xml
from nmt_cli.documents.document import Outline, ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.segment import plain_parts


@pytest.mark.parametrize(
    ("name", "before", "inner", "after", "found"),
    [
        ("sup", "x", "1" * 12, " ", True), ("sup", "x", "1" * 13, " ", False), ("sup", ".", "1", "x", True),
        ("sup", " ", "1", " ", False), ("sup", "", "1", " ", False), ("sup", "x", " 1", " ", False),
        ("sup", "x", "", " ", False), ("sup", "x", "<b></b>", " ", False), ("sup", "x", "abc", " ", True),
        ("sup", "x", "abc", "d", False), ("sup", ".", "abc", " ", False), ("sub", "x", "2", "O", True),
        ("sub", ")", "2", " ", True), ("sub", "]", "2", " ", True), ("sub", ".", "2", " ", False),
        ("sub", "x", "n", ".", True), ("a", "x", "1", " ", True), ("a", "3", "1", " ", False),
        ("a", "x", "*", " ", False),
        ("a", "x", "1", "y", False), ("a", ".", "1", " ", False), ("sup", "x", "&lt;1", " ", True),
    ],
)  # fmt: skip
def test_notes_are_short_and_attached_to_a_word(name: str, before: str, inner: str, after: str, found: bool) -> None:
    assert html.is_note(name, before, inner, after) == found


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("a&nbsp;<sup>1</sup> b", ["a 1 b"]),
        ("caf&eacute;<a href=x>1</a> b", ["café b"]),
        ("x<sup><b><i>1</i></b></sup> b", ["x1 b"]),
        ("x<sup><a>1</a></sup> b", ["x b"]),
        ("x<b>y</b><sup>1</sup><i>z</i> b", ["xy z b"]),
        ("x<sup>1<br></sup> b", ["x1", "b"]),
        ("a <!-- x --><wbr>b<img>c", ["a b c"]),
        ("a %<n>d b", ["a b"]),
        ("<P>a</P><LI>b<CODE>c</CODE>d", ["a", "b d"]),
        ("a <0>b</0> <1>c <2>d</2>", ["a b c d"]),
        ("<title>a <b>c</title>d", ["a <b>c", "d"]),
        ("<textarea>a</textarea><p translate=no>b<h1>c</h1>", ["c"]),
        ("<span translate=no>b <i>c</i>", []),
        ("a<svg><p>b</p></svg>c", ["a c"]),
        ("a <img translate=no alt='x'> b", ["a b"]),
        ("a dog </b", ["a dog"]),
        ("a dog <b", ["a dog"]),
        ("a dog </1", ["a dog"]),
    ],
)
def test_texts_of_html(text: str, texts: list[str]) -> None:
    parts = html.parse(text, Protection())
    assert texts_of(parts) == texts
    out = translated(parts, same).replace("&lt;", "<").replace("&nbsp;", "")
    assert out.replace(" ", "") == text.replace("&nbsp;", "").replace(" ", "")


def test_end_tags_without_a_start_tag() -> None:
    assert texts_of(html.parse("a </1> b <2> c")) == ["a b <2> c"], "a browser reads the first as a comment"
    for text in ("<b>a</b></b> c", "a</i></b> <b>c</b></b>", "<b><i>a</b></i></b> c"):
        assert translated(html.parse(text), same) == text
        assert translated(html.parse(text), backwards).count("</b>") == text.count("</b>")
    assert translated(html.parse("x</i> a <b>c"), backwards) == "c a x</i> <b>"


def test_ignored_elements_are_named_in_any_case() -> None:
    for ignored in (("B",), ("b",)):
        assert texts_of(html.parse("a <b>x</b> <B>y</B> c", None, ignored)) == ["a c"]


def test_empty_elements_of_xhtml() -> None:
    assert texts_of(html.parse("<p><script/>a<br/>b<i/>c<title/>d</p>", xml=True)) == ["a", "bc", "d"]
    assert texts_of(html.parse("<p><script/>a</p>")) == []


@pytest.mark.parametrize(("size", "count"), [(500, 2), (501, 1)])
def test_long_tags_are_not_repeated(size: int, count: int) -> None:
    pairs = {"Ich": "I", "rufe": "call", "ihn": "him", "an": "call"}
    begin = "<b x="
    for tag in (f"{begin}{'x' * (size - len(begin) - 1)}>", f'<b x={"x" * 240} title="5" y={"y" * (size - 259)}>'):
        assert len(tag) == size
        assert translated(html.parse(f"{tag}I call</b> him"), linked(pairs)).count("</b>") == count
    tag = f'<b title="see" x={"x" * 300} alt="see" y={"y" * 300}>'
    assert (
        translated(
            html.parse(f"{tag}I call</b> him"), lambda text: linked(pairs)(text) if " " in text else same(text)
        ).count("</b>")
        == 1
    )


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("<b>&#128512; x &#128512;</b>", ["😀 x 😀"]),
        ("<b>&#x1F600; x</b>", ["😀 x"]),
        ("<b>caf&own;s x</b>", ["cafs x"]),
        ("<a>x<!-- -->y <?p?>z</a>", ["xy z"]),
        ("<a>x <b/>y</a>", ["x y"]),
        ("<a>x<b/>y</a>", ["x y"]),
        ("<a translate = 'no'>x</a><b notranslate='no'>y</b>", ["y"]),
        ("<r><a>x</a><b/><a>y</a></r>", ["x", "y"]),
        ("<r> <a>x</a> <![CDATA[ ]]> <a>y</a></r>", ["x", "y"]),
        ("<r><![CDATA[z]]><a>x</a><a>y</a></r>", ["z", "xy"]),
    ],
)
def test_texts_of_xml(text: str, texts: list[str]) -> None:
    parts = xml.parse(text, Protection())
    assert texts_of(parts) == texts
    assert translated(parts, same).replace(" ", "") == text.replace(" ", "")


def test_all_text_stays_inside_the_root() -> None:
    """So do words of the translation that are linked to no word of the source."""
    for outline in (Outline(), Outline(detect=False), Outline(joining=("a",))):
        parts = xml.parse("<?xml version='1.0'?>\n<a>x y</a>\n", outline=outline)
        assert translated(parts, lambda _: Aligned("p q", [(1, 0)])) == "<?xml version='1.0'?>\n<a>p q</a>\n"
    head = "<?xml version='1.0'?>\n<!DOCTYPE a>"
    assert translated(xml.parse(f"{head}dog <b>cat</b>"), backwards) == f"{head}<b>cat</b> dog"
    assert translated(xml.parse("<a>x <b>y <c>z</c> <p>w</p></b></a>", outline=Outline(("p",))), capitals) == (
        "<a>X <b>Y <c>Z</c> <p>W</p></b></a>"
    )
    assert translated(xml.parse("<![CDATA[a dog"), capitals) == "<![CDATA[A DOG"


def test_references_are_spelled_as_the_source_spells_them_first() -> None:
    assert translated(xml.parse("<b>a &#38; &amp; &gt; > '\"</b>"), same) == "<b>a &#38; &#38; &gt; &gt; '\"</b>"
    assert translated(html.parse("<b>a &#38; &amp; &gt; > '\"</b>"), same) == "<b>a &#38; &#38; &gt; &gt; '\"</b>"


DOGS = linked({"Hund": "dog", "Katze": "cat"})
CATS = linked({"Katze": "cat", "Hund": "dog"})
COMMA = linked({"Hund": "dog", ",": ",", "Katze": "cat"})


@pytest.mark.parametrize(
    ("text", "model", "expected"),
    [
        ("a<!-- -->b", same, "a<!-- -->b"),
        ("(a<img>) b", same, "(a<img>) b"),
        ("<img>a b<img>", backwards, "b <img> <img> a"),
        ("<b></b>a b", backwards, "b <b></b>a"),
        ("a <b><i>b</i></b> c", backwards, "c <b><i>b</i></b> a"),
        ("x <b>a</b></i> <i>b", backwards, "b <b>a</b></i> <i>x"),
        ("dog<img>, cat", COMMA, "Hund<img> , Katze"),
        ("dog <img>, cat", COMMA, "Hund <img>, Katze"),
        ("dog,<img>cat", CATS, "<img>Katze Hund"),
        ("dog,<img>cat", DOGS, "Hund <img>Katze"),
        ("dog<img>cat", DOGS, "Hund<img>Katze"),
        ("dog<img> cat", CATS, "Katze Hund<img>"),
        ("dog <img>cat", CATS, "<img>Katze Hund"),
        ("see \u00a1<img>dog", linked({"\u00a1": "\u00a1", "Hund": "dog"}), "\u00a1<img> Hund"),
        ("<b>a</b><img><i>b</i>", backwards, "<img><i>b</i> <b>a</b>"),
        ("<b>a <img></b>b", backwards, "b <b><img>a</b>"),
        ("a <b>b c</b> d<b id=1>e</b>", backwards, "d<b id=1>e</b> <b>c b</b> a"),
        ("<i>a</i> b <code>c</code>d <b>e</b>", backwards, "<b>e</b> <code>c</code>d b <i>a</i>"),
        ("a<img>'b", lambda _: Aligned("x'y", [(1, 0), (2, 1), (3, 2)]), "x<img>'y"),
        ("a <img>b c", lambda _: Aligned("x - y", [(1, 0), (5, 2)]), "x <img>- y"),
        ("one <b>two</b> three", lambda _: Aligned("x... y  z", [(1, 0), (6, 4), (9, 8)]), "x<b>... y</b> z"),
        ("<b>a, b</b>; <i>c</i>.", same, "<b>a, b</b>; <i>c</i>."),
        ("<p>a <br> b</p>", same, "<p>a <br> b</p>"),
        ("dog <img> (cat", lambda _: Aligned("Hund(Katze", [(4, 0), (5, 4), (10, 5)]), "Hund <img> (Katze"),
        ("<b>dog<img src=1></b><img src=2> cat", same, "<b>dog<img src=1></b><img src=2> cat"),
        ("dog <img src=1><b><img src=2>cat</b>", same, "dog <img src=1><b><img src=2>cat</b>"),
        ("<i>a<img></i> <b><img>c</b>", backwards, "<b><img>c</b> <i>a<img></i>"),
    ],
)
def test_spaces_beside_marks(text: str, model: Model, expected: str) -> None:
    assert translated(html.parse(text), model) == expected


@pytest.mark.parametrize(
    ("text", "pairs", "expected"),
    [
        # A link is written once, but emphasis is repeated. Emphasis beside punctuation would have no effect.
        ("[I call](u) him", {"Ich": "I", "ihn": "him", "rufe": "call"}, "[Ich ihn rufe](u)"),
        ("*I call* him", {"Ich": "I", "ihn": "him", "rufe": "call"}, "*Ich* ihn *rufe*"),
        ("*a, dog* x", {",": ",", "Hund": "dog", "y": "x"}, ", *Hund* y"),
        ("![a [b](c) d](e) x", {"x": "x"}, None),
        ("- [X] a dog", {"Hund": "dog"}, "- [X] Hund"),
        ("> [!note]\n> a dog", {"Hund": "dog"}, "> [!note]\n> Hund"),
        ("a {% if x %} dog {% end %}", {"Hund": "dog", "ein": "a"}, None),
        ("| a | b\\|c |\n|-|-|\n| b\\|c | a |", {"b|c": "b|c", "x": "c"}, None),
    ],
)
def test_marks_of_markdown(text: str, pairs: dict[str, str], expected: str | None) -> None:
    parts = markdown.parse(text, Protection())
    if expected is None:
        assert translated(parts, same) == text
    else:
        assert translated(parts, linked(pairs)) == expected


TEXT = """admonition attention card caution danger deprecated details dropdown epigraph error grid grid-item
grid-item-card hint important margin note pull-quote seealso sidebar tab-item tab-set tip topic versionadded
versionchanged warning"""
CODE = """code code-block code-cell csv-table eval-rst include list-table literalinclude math mermaid raw sourcecode
toctree"""


@pytest.mark.parametrize("name", [*TEXT.split(), *CODE.split()])
def test_directives_with_text_and_with_code(name: str) -> None:
    is_text = name in TEXT.split()
    for text in (f"```{{{name}}}\nA dog\n```\nb", f":::{{{name}}}\nA dog\n:::\nb", f"~~~{{{name}}}\nA dog\n~~~\nb"):
        assert texts_of(markdown.parse(text)) == (["A dog", "b"] if is_text else ["b"])


def test_each_character_allows_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "FREE_STEPS", 0)
    assert len(texts_of(markdown.parse("[a](b) c\n\n" * 700))) == 700


def test_statements_of_markdown_keep_their_order() -> None:
    out = translated(markdown.parse("a {% if\nx %} dog {% end\n%} b"), backwards)
    assert out.index("{% if\nx %}") < out.index("{% end\n%}")


def test_lines_that_would_begin_another_block_are_escaped() -> None:
    for output, expected in (
        ("+ a", "\\+ a"), ("- a", "\\- a"), ("1) a", "1\\) a"), ("12. a", "12\\. a"), ("# a", "\\# a"),
        ("## a", "#\\# a"),
        ("> a", "\\> a"), ("--", "-\\-"), ("=", "\\="), ("-a", "-a"), ("#a", "#a"), ("1.5", "1.5"),
        ("####### a", "####### a"),
    ):  # fmt: skip
        assert translated(markdown.parse("dog"), lambda _, output=output: Aligned(output, [])) == expected


@pytest.mark.parametrize("mark", [*"()[]{}<>", "<0>", "</1>", "{x}", "%s"])
def test_a_translation_adds_no_bracket_and_no_placeholder(mark: str) -> None:
    model = linked({mark: "file", "weg": "gone"})
    assert translated(plain_parts("file gone", Protection(strict=True)), model) == "weg"
    bracket = len(mark) == 1
    assert translated(plain_parts("file gone", Protection()), model) == (f"{mark} weg" if bracket else "weg")


def test_tags_of_xml_are_never_repeated() -> None:
    """A second element with the same attributes could be wrong."""
    pairs = {"Ich": "I", "ihn": "him", "rufe": "call"}
    assert translated(xml.parse("<b>I call</b> him"), linked(pairs)) == "<b>Ich ihn rufe</b>"
    assert translated(html.parse("<b>I call</b> him"), linked(pairs)) == "<b>Ich</b> ihn <b>rufe</b>"
    text = '<resources><string name="a"><b>I call</b> him</string></resources>'
    for protect in (True, False):
        document = FORMATS["android"].read(text, ReadOptions(protect=protect))
        assert filled(document, linked(pairs)) == text.replace("I call</b> him", "Ich ihn rufe</b>")


def test_white_space_around_a_translation_is_dropped() -> None:
    for text, expected in (("<b>dog</b>", "<b>Hund</b>"), ("dog", "Hund"), (" <i>dog</i>\n", " <i>Hund</i>\n")):
        assert translated(html.parse(text), lambda _: Aligned("  Hund ", [(6, 0)])) == expected


def test_only_tags_with_a_partner_are_hidden() -> None:
    for text in ("the </x> dog", "the <x> dog", "<x> <y> </z>a"):
        assert texts_of(plain_parts(text, Protection())) == [text]
    assert texts_of(plain_parts("the <x> dog </x> b", Protection())) == ["the dog b"]
    pieces = list(Protection().pieces("the <x a=%s> dog"))
    assert [piece.source for piece in pieces if piece.kind != "text"] == ["%s"]


def test_punctuation_after_a_placeholder_is_text() -> None:
    for text, seen in (
        ("see {x}; now", "see ; now"),
        ("see http://x.y; now", "see ; now"),
        ("see %s&amp; now", "see &amp; now"),
    ):
        assert texts_of(plain_parts(text, Protection())) == [seen]


@pytest.mark.parametrize("sign", ["\u00ad", "&shy;", " ", "&nbsp;", "5"])
def test_text_without_letters_stays_where_it_is(sign: str) -> None:
    for text in (f"<b>{sign}</b>", f"x<b>{sign}</b>y", f"{sign}<i>x</i>{sign}", f"<p>{sign}<p>x</p>{sign}"):
        assert translated(html.parse(text), silent) == text


def test_syntax_of_markdown_and_text_that_resembles_it() -> None:
    for text, seen in (
        ("\\[A dog\\]\nb", ["[A dog] b"]),
        ("\\[a+b\\]\nb", ["b"]),
        ("a \\(speed = 5\\) b \\(xy\\) c \\(two dogs\\)", ["a b c (two dogs)"]),
        ("> a\n:::\nb", ["a", "b"]),
        ("- a\n{.x}\nb", ["a", "b"]),
        ("```{note}\nA dog\n``` py\ncode\n```\n```\nend\n", ["A dog", "end"]),
        ("# A *dog* {#x y='*a* `b`'}\n", ["A dog"]),
        ("$$\na\n$$ and text\n", ["and text"]),
        ("$$\na\n$$ {#eq}\nand text\n", ["and text"]),
        ("```{note} a `b`\nA dog\n", ["```{note} a A dog"]),
        ("> import a from 'b'\n", ["import a from 'b'"]),
        ("A dog\n+--+\nb", ["A dog +--+ b"]),
        ("a {{ b }} c {% d %}", ["a {{ b }} c {% d %}"]),
        (":::{ code-block } python\nx y\n:::\nend", ["end"]),
    ):
        assert texts_of(markdown.parse(text)) == seen


def test_forbidden_additions_are_removed_without_the_words_beside_them() -> None:
    """A placeholder that the source has once may occur once in the translation."""
    protection = Protection()
    output = Aligned("a %s b {x} c", [(1, 0), (4, 0), (6, 0), (10, 0), (12, 2)])
    assert translated(plain_parts("see x", protection), lambda _: output) == "a b c"
    assert translated(plain_parts("see 5%s x", Protection(flags=["java-format"])), lambda _: output) == "a %s b c"
    output = Aligned("ein %s {x} Hund", [(3, 0), (6, 0), (10, 0), (15, 2)])
    assert translated(html.parse("a <b>dog</b>", protection), lambda _: output) == "ein <b>Hund</b>"
    assert translated(plain_parts("see x", protection), lambda _: Aligned(" %s ", [(4, 0)])) == "see x"
