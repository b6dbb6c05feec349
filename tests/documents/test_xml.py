"""XML: the segments that a model sees. Documents stay well-formed, no matter what a model returns."""

import random
import re
from xml.parsers import expat

import pytest
from fake_models import backwards, same, texts_of, translated
from growth import is_linear

from nmt_cli.documents import xml
from nmt_cli.documents.document import Outline
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.segment import render


def shown(text: str, ignored: tuple[str, ...] = (), outline: Outline | None = None) -> list[str]:
    """Return the segments that a model sees. Check that the document stays as it is without translations."""
    parts = xml.parse(text, Protection(), ignored, outline)
    assert render(parts) == text
    return texts_of(parts)


def test_each_segment_has_the_spelling_of_its_own_source() -> None:
    text = "<a>a dog&apos;s &#x62;</a><c>a dog's b</c>"
    assert translated(xml.parse(text, Protection()), same) == text


def check(text: str) -> None:
    """Raise ExpatError if a document is not well-formed."""
    parser = expat.ParserCreate()
    parser.UseForeignDTD(True)  # references to entities of another file are not errors
    parser.Parse(text, True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Element names have no meaning, but they are case-sensitive.
        ("See <title>the <code>dog</code></title> and <pre>a cat</pre><Br/>x", ["See the dog and a cat x"]),
        ("a <link>dog</link> <B>b</B> <b>c</b> <script>d</script>", ["a dog b c d"]),
        ("<kbd>a</kbd> <textarea>b <i>c</i></textarea> d", ["a b c d"]),
        # Where the parent has no text, each element is its own segment.
        ("<d>\n<m><t>A dog</t></m><c><p>Sees <b>a</b>.</p><p>b</p></c>\n</d>", ["A dog", "Sees a.", "b"]),
        ("<p>one</p><p>two</p>", ["one", "two"]),
        ("<p>one <q><r>two</r><r>three</r></q></p>", ["one twothree"]),
        # Markup that is not text.
        ("<?xml version='1.0'?>\n<!-- a --><!DOCTYPE d [<!ENTITY a 'b>]'><!-- ] ' -->\n]>\n<d>dog<?e f?></d>", ["dog"]),
        ("a<!-- b > c -->d <?php echo '>'; ?> e", ["ad e"]),
        ("<a b='c > d' e=\"f\">dog</a>", ["dog"]),
        ("<p alt='x' title='y'>dog</p>", ["dog"]),
        ("<d><p translate='no'>a</p><p>b <q its:translate=\"no\">c</q></p></d>", ["b"]),
        # References to characters are decoded, references to other entities copied.
        ("A &amp; b &lt;c&gt; &#100;&#x65; &quot;f&apos;", ["A & b <c> de \"f'"]),
        ("a &nbsp; b &long.name;c", ["a b c"]),
        ("a &#x110000; &#1114112; b", ["a &#x110000; &#1114112; b"]),
        ("&eacute;t&eacute; is &unknown; &#xFFFFFF; &#0; it", ["t is &#xFFFFFF; &#0; it"]),
        # CDATA sections.
        ("<p><![CDATA[a < b & c]]></p>", ["a < b & c"]),
        ("<p><![CDATA[<h1>A &amp; b</h1><pre>x</pre> c]]></p>", ["A & b", "c"]),
        ("<p>see <b>the <![CDATA[<dog]]></b> now</p>", ["see", "the", "<dog", "now"]),
        # Broken markup.
        ("Tom & Jerry <3 a < b", ["Tom & Jerry <3 a < b"]),
        ("a <b>c</d> <e f", ["a c <e f"]),
        ("a <!-- b", ["a"]),
        ("<![CDATA[a", ["a"]),
    ],
)
def test_texts_that_the_model_sees(text: str, expected: list[str]) -> None:
    assert shown(text) == expected


def test_an_outline_decides_where_segments_end() -> None:
    text = "<d><p>The firm said</p> <p>it had</p></d>"
    assert shown(text) == ["The firm said", "it had"]
    assert shown(text, outline=Outline(joining=("p",))) == ["The firm said it had"]
    assert shown(text, outline=Outline(detect=False)) == ["The firm said it had"]
    assert shown(text, outline=Outline(("p",), detect=False)) == ["The firm said", "it had"]
    assert shown("a <b>c <br/>d</b> e", outline=Outline(("br",))) == ["a", "c", "d", "e"]
    assert shown("a <x>b <y>c</y></x> <X>d</X>", ("x",)) == ["a d"]
    assert shown("<d><x>b</x><p>c</p></d>", ("x",)) == ["c"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a dog\nsees\r\n\r\n it\rnow.\n", ["a dog", "sees", "it", "now."]),
        ("a <b>dog\nsees</b> it", ["a", "dog", "sees", "it"]),
        ("<d>\n<p>a <b>dog</b></p>\n<p>sees</p>\n</d>\n", ["a dog", "sees"]),
        ('a <i\nid="1"/>dog <x>b\nc</x> sees <!-- d\ne --> it', ["a dog sees it"]),
        ("<d><x>\n</x>a\n<x>b</x></d>", ["a"]),
    ],
)
def test_line_ends_in_text_may_end_segments(text: str, expected: list[str]) -> None:
    assert shown(text, ("x",), Outline(lines=True)) == expected


@pytest.mark.parametrize(
    ("text", "output", "expected"),
    [
        ("<b>x</b>", "a < b & c > d ]]> \"e'", "<b>a &lt; b &amp; c &gt; d ]]&gt; \"e'</b>"),
        ("<b>&#38; &quot; &#x3E;</b> x", '" & >', "<b>&quot; &#38; &#x3E;</b>"),
        ("<b><![CDATA[x]]></b>", "a ]]> < &amp;", "<b><![CDATA[a ]]]]><![CDATA[> < &amp;]]></b>"),
        ("<b><![CDATA[<i>x</i>]]></b>", "]]>", "<b><![CDATA[<i>]]&gt;</i>]]></b>"),
        ("<b>c > d</b>", "]]> e > f", "<b>]]&gt; e > f</b>"),
        ("<b>x</b>", "\x01a\ufffe\x1f", "<b>a</b>"),
        ("AT&T", "& &lt;", "&amp; &amp;lt;"),
        ("AT&T", "& <", "& &lt;"),
    ],
)
def test_text_is_written_as_xml(text: str, output: str, expected: str) -> None:
    def model(source: str) -> Aligned:
        return Aligned(output, [(end, 0) for end in (match.end() for match in re.finditer(r"\s*\S", output))])

    assert re.sub(r"\s", "", translated(xml.parse(text), model)) == re.sub(r"\s", "", expected)


def test_addresses_keep_the_entities_in_them() -> None:
    """A placeholder must not end inside an entity: the halves would not be well-formed."""
    text = "see http://x.y/?a=1&amp; and www.x.org/&#38;, dog"
    assert shown(text) == ["see and , dog"]
    assert "x.org/&#38;" in translated(xml.parse(text, Protection()), backwards)


WORDS = [
    "The", "dog", "sees", "a", "cat.", "5", "&amp;", "&lt;", "&#233;", "&own;", "über", "日本", "]]", "http://x.y/&amp;",
    ",",
]  # fmt: skip
NAMES = ["b", "title", "code", "p", "P", "br", "x:y", "pre", "script", "ü", "a.b-c"]


ATTRIBUTES = ["", "", " id='1'", ' a="x > y" b=\'"\'', " translate='no'", "\nxml:lang='en'"]
SILENT = ["<!-- a > b -->", "<?pi x > y?>", "<![CDATA[a < b]]>", "<![CDATA[<b>c</b> &amp; d]]>", "<![CDATA[]]>", "\n"]


def element(draw: random.Random, depth: int) -> str:
    """Return a random element."""
    name = draw.choice(NAMES)
    tag = name + draw.choice(ATTRIBUTES)
    if depth == 0 or draw.random() < 0.15:
        return f"<{tag}/>"
    inner = [content(draw, depth - 1) for _ in range(draw.randint(0, 6))]
    return f"<{tag}>{draw.choice(['', ' ']).join(inner)}</{name} >"


def content(draw: random.Random, depth: int) -> str:
    kind = draw.random()
    if kind < 0.5:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))
    return element(draw, depth) if kind < 0.85 else draw.choice(SILENT)


def document(seed: int) -> str:
    draw = random.Random(seed)
    head = draw.choice(["", "<?xml version='1.0'?>\n", "<!DOCTYPE d [<!ENTITY own 'x'>]>", "<!-- a -->\n"])
    return f"{head}{element(draw, 4)}\n"


def noise(text: str) -> Aligned:
    """Return random words and markup with random links."""
    draw = random.Random(text)
    words = draw.choices(
        [*text.split(), "<b>", "&amp;", "]]>", "</p>", "<![CDATA[", "&own;", "-->", "\x02"], k=draw.randint(0, 8)
    )
    out = " ".join(words)
    return Aligned(out, [(match.end(), draw.randrange(len(text))) for match in re.finditer(r"\s*\S+", out)])


def test_documents_stay_well_formed_and_keep_all_tags() -> None:
    outlines = [Outline(), Outline(detect=False), Outline(("p", "br"), ("title",)), Outline(("code",), (), False)]
    outlines += [Outline(lines=True), Outline(detect=False, lines=True)]
    for seed in range(600):
        text, outline = document(seed), outlines[seed % len(outlines)]
        check(text)
        for model in (same, backwards, noise):
            out = translated(xml.parse(text, Protection(), ("pre",), outline), model)
            try:
                check(out)
            except expat.ExpatError as error:
                pytest.fail(f"{error}\n{text}\n{out}")
            tags = re.compile(r"<[^<>!?\"']*(?:\"[^\"]*\"[^<>\"']*|'[^']*'[^<>\"']*)*>|<!--.*?-->|<\?.*?\?>")
            cdata = re.compile(r"<!\[CDATA\[.*?\]\]>")
            assert sorted(tags.findall(cdata.sub("", out))) == sorted(tags.findall(cdata.sub("", text))), text


def test_repeated_text_changes_only_in_white_space() -> None:
    """The model repeats its source."""
    for seed in range(300):
        text = document(seed)
        for outline in (Outline(), Outline(detect=False), Outline(lines=True)):
            out = translated(xml.parse(text, None, (), outline), same)
            assert re.sub(r"\s", "", out) == re.sub(r"\s", "", text), text


PUMPS = [
    "<", "<!--", "<?", "<![CDATA[", '<a b="', "<a b='", "</a", "<a>", "</a>", "<a/>", "&", "&#", "&a", "<!DOCTYPE [",
    "<a\n/",
]  # fmt: skip
PUMPS += [
    '<!DOCTYPE "', "<!DOCTYPE d [<!--", "<!DOCTYPE d [<?", "]]>", "<a>x<b>", "<a></b>", "&amp", "http://a&amp;", " ",
    "<a ",
]  # fmt: skip


@pytest.mark.parametrize("unit", PUMPS)
def test_time_grows_with_the_length(unit: str) -> None:
    assert is_linear(xml.parse, unit)
