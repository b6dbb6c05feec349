"""Marked-up text and placeholders: what goes to the model, and where marks stand on what comes back."""

import random
import re
from collections import Counter

import html5lib
import pytest
from fake_models import backwards, same
from html5lib.constants import cdataElements, rcdataElements, voidElements
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli.corpus.tokenizer import normalise
from nmt_cli.documents import markup
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned, place
from nmt_cli.documents.segment import Builder, Parts, Segment, render, segments_of

PIECES = [
    *(
        "<b>",
        "</b>",
        "<i>",
        "</i>",
        '<a href="x?a=1&amp;b=2">',
        "</a>",
        "<u><em>",
        "</u>",
        "</em>",
        "</code>",
        "<code>",
    ),
    *(
        "<p>",
        "</p>",
        "<div class=x>",
        "</div>",
        "<br>",
        "<br/>",
        "<h1>",
        "</h1>",
        "<table><tr><td>",
        "</td></tr></table>",
    ),
    *(
        "<ul><li>",
        "</ul>",
        '<p translate="no">',
        "<select><option>one<option>two</select>",
        "<pre> a\n b</pre>",
        "</span>",
    ),
    *(
        '<img src=x alt="A dog">',
        "<span title='The cat'>",
        '<input placeholder="Your name">',
        '<x id="3"></x>',
        "<b",
        "</",
    ),
    *("<!-- note -->", "<!-->", "<![CDATA[x]]>", "<?php x ?>", "</ b>", "</>", "<a title=it's>", '<a ="x>', "<", '"'),
    *(
        "&amp;",
        "&eacute;",
        "&nbsp;",
        "&lt;b&gt;",
        "AT&T",
        "a < b",
        "&copy",
        "un<i>believ</i>able",
        "<code>x <b>y</b></code>",
    ),
    *(
        '<script>if (a<b) "x"</script>',
        "<style>p{}</style>",
        "<textarea>hi</textarea>",
        "<title>T &amp; t</title>",
        "<b ",
    ),
    "<svg><title>s</title></svg>",
]
WORDS = [
    "The",
    "dog",
    "sees",
    "a",
    "cat",
    ",",
    ".",
    "5",
    "Haus",
    "über",
    "naïve",
    "日本",
    "é",
    "I'm",
    "it.",
]  # é in two
TEXT_ATTRIBUTE = re.compile(r"(?:title|alt|placeholder)\s*=\s*(?:'[^']*'|\"[^\"]*\"|[^\s>]*)")


def document(seed: int) -> str:
    """Return nested, broken, entity-laden HTML."""
    draw = random.Random(seed)
    pieces = [draw.choice(PIECES if draw.random() < 0.5 else WORDS) for _ in range(draw.randint(1, 40))]
    return "".join(draw.choice([" ", "", "\n", " "]) + piece for piece in pieces)


def silent(_text: str) -> Aligned:
    return Aligned("", [])


def words_of(text: str, pairs: dict[str, str]) -> Aligned:
    """A model that says `pairs`: each word of the translation with the source's word that it comes from."""
    links, end = list[tuple[int, int]](), -1
    for target, source in pairs.items():
        end += len(target) + 1
        links.append((end, text.index(source)))
    return Aligned(" ".join(pairs), links)


def translated(parts: Parts, model=same) -> str:
    for segment in segments_of(parts):
        segment.result = place(segment, model(segment.text))
    return render(parts)


def line(text: str, protection: Protection) -> Parts:
    builder = Builder(protection=protection)
    builder.add_source(text)
    return builder.build()


def tags(text: str) -> Counter[str]:
    return Counter(TEXT_ATTRIBUTE.sub("", match[0]) for match in markup._TOKEN.finditer(text))


def content(text: str) -> str:
    """Return what a browser shows of a page, without its comments."""
    root = html5lib.parse(text, treebuilder="etree", namespaceHTMLElements=False)

    def walk(element):
        if isinstance(element.tag, str):
            yield element.text or ""
            for child in element:
                yield from walk(child)
        yield element.tail or ""

    return normalise("".join(walk(root)))


# ---- HTML


@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_nothing_is_lost_in_2000_broken_documents(first: int) -> None:
    """A model that repeats its input gives the text that a browser shows, and every tag once or, with its partner,
    several times; one that turns the sentences around gives the same tags and as many letters; one that says nothing
    gives the document."""
    for seed in range(first, first + 250):
        text = document(seed)
        out = translated(markup.parse(text))
        assert content(out) == content(text), text
        assert tags(out) == tags(text), text
        turned = translated(markup.parse(text), backwards)
        extra = tags(turned) - tags(text)
        assert not tags(text) - tags(turned), text
        assert not {
            tag for tag in extra if "</" not in tag and not tag.startswith(("<b", "<i", "<a", "<u", "<e", "<s"))
        }
        letters = [Counter(re.sub(r"\s", "", content(each))) for each in (text, turned)]
        assert letters[0] == letters[1], text
        left = translated(markup.parse(text), silent).replace('"', "")  # which an attribute's text may get
        assert left == text.replace('"', ""), text


@given(
    st.lists(st.sampled_from([p for p in PIECES if not re.search("[a-zA-Z]", re.sub("<[^>]*>", "", p))]), max_size=20)
)
@settings(max_examples=200, deadline=None)
def test_a_document_without_text_comes_out_byte_for_byte(pieces: list[str]) -> None:
    text = " \n".join(piece for piece in pieces if not TEXT_ATTRIBUTE.search(piece) and not piece.startswith("&"))
    assert translated(markup.parse(text), backwards) == text


@given(st.text(alphabet="ab <>/&;\"'=!-?x\n", max_size=60))
@settings(max_examples=500, deadline=None)
def test_any_characters_are_read_without_loss(text: str) -> None:
    assert render(markup.parse(text)) == text
    assert content(translated(markup.parse(text))) == content(text)


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
def test_what_the_model_is_shown(text: str, segments: list[str]) -> None:
    assert [segment.text for segment in segments_of(markup.parse(text))] == segments


# Elements of the standard that lie within lines; those without an end tag; those whose text is not language.
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


def test_elements_part_texts_and_are_copied_as_the_standard_has_them() -> None:
    """html5lib's lists have two elements that are not in the standard any more, and not the newest."""
    void = voidElements - {"command", "event-source"} | {"wbr"}
    assert void == markup.VOID
    raw = cdataElements | rcdataElements - {"noscript"} | {"plaintext"}
    assert raw == markup.RAW
    blocks, copied = BLOCKS.split(), COPIED.split()
    for name in [*PHRASES.split(), *blocks]:
        text = f"<p>a<{name}>" + ("" if name in void else f"b</{name.upper()}>") + "c"
        between = "" if name in {*copied, *void} else "b"
        after = "" if name == "plaintext" else "c"  # nothing ends it
        apart = name in {*copied, *void} - {"wbr"}
        shown = ["a", between, after] if name in blocks else [f"a{' ' if apart else ''}{between}{after}"]
        assert [segment.text for segment in segments_of(markup.parse(text))] == [each for each in shown if each], name


TIRED = {"Der": "The", "müde": "tired", "Hund": "dog", "wird": "is", "heute": "today", "angerufen": "called"}


@pytest.mark.parametrize(
    ("text", "pairs", "expected"),
    [
        # Elements follow their words, nest, and are repeated where these stand apart.
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
        (
            "<b id=1>call</b> him now",
            {"Rufe": "call", "ihn": "him", "jetzt": "now", "an": "call"},
            "<b id=1>Rufe</b> ihn jetzt an",
        ),
        # Punctuation is its own twin's, and does not part words.
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
        # What no word comes from takes the nearest word; what has no text goes where its neighbours go.
        ("a <b>very</b> old dog", {"ein": "a", "Hund": "dog"}, "<b>ein</b> Hund"),
        ("a dog <b>barks</b>.", {"Ein": "a", "Hund": "dog", ".": "."}, "Ein <b>Hund</b> ."),
        ("see <img src=x> dog", {"Hund": "dog", "sehen": "see"}, "<img src=x> Hund sehen"),
        ("see <a href=x><img src=x></a> dog", {"Hund": "dog", "sehen": "see"}, "<a href=x><img src=x></a> Hund sehen"),
        # White space in an element without text parts the words beside it, and nothing else does.
        ("dog</i><x></x>is", {"dogis": "dogis"}, "dog</i><x></x>is"),
        ("<x></x></>dog", {"dog": "dog"}, "<x></x></>dog"),
        ("dog<b><!-- x --> </b>is", {"dog": "dog", "is": "is"}, "dog<b><!-- x --> </b>is"),
        ("dog<b> <code>x</code> </b>is", {"dog": "dog", "is": "is"}, "dog<b> <code>x</code> </b>is"),
        ("5<br><i> dog </i><br>", {"Hund": "dog"}, "5<br> <i>Hund</i> <br>"),
        # What has no end stays where it is.
        ("a dog <!-- x", {"Hund": "dog", "ein": "a"}, "Hund ein <!-- x"),
        ("a dog <b translate=no>x</", {"Hund": "dog", "ein": "a"}, "Hund ein <b translate=no>x</"),
        # Tags that do not belong together keep their order.
        ("a</i> dog <b>is", {"ist": "is", "Hund": "dog", "ein": "a"}, "ist Hund ein</i> <b>"),
        ("<b>a <i>dog</b> is</i>", {"ein": "a", "Hund": "dog", "ist": "is"}, "<b>ein <i>Hund</b> ist</i>"),
        # As the source spells it.
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
        # Words of Chinese are written without spaces; what opens stands beside what follows.
        ("a <b>dog</b> is", {"\u4e00": "a", "\u72d7": "dog", "\u662f": "is"}, "\u4e00 <b>\u72d7</b> \u662f"),
        ('<img alt="a dog">', {'"Hund"': "dog"}, '<img alt="&quot;Hund&quot;">'),
    ],
)
def test_marks_stand_where_their_words_went(text: str, pairs: dict[str, str], expected: str) -> None:
    def model(source: str) -> Aligned:
        return words_of(source, pairs)

    assert translated(markup.parse(text), model) == expected


@pytest.mark.parametrize(
    "said",
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
def test_where_words_are_written_without_spaces_each_token_is_one(said: str) -> None:
    """Chinese, Japanese, Thai, Lao, Burmese, Khmer; elsewhere the tokens of a word follow its first."""
    out = translated(markup.parse("a <b>dog</b> is"), lambda _: Aligned(said, [(1, 0), (2, 2), (3, 6)]))
    assert out == f"{said[0]}<b>{said[1]}</b>{said[2]}"
    assert (
        translated(markup.parse("a <b>dog</b> is"), lambda _: Aligned("xyz", [(1, 2), (2, 0), (3, 6)])) == "<b>xyz</b>"
    )


def test_white_space_between_words_is_one_space() -> None:
    """Also where the model said what must not be said."""
    out = translated(markup.parse("a <b>dog</b>"), lambda _: Aligned("ein \t Hund", [(3, 0), (10, 2)]))
    assert out == "ein <b>Hund</b>"
    out = translated(line("a dog", Protection()), lambda _: Aligned("ein %s Hund", [(3, 0), (6, 2), (11, 2)]))
    assert out == "ein Hund"


def test_tags_that_got_no_word_part_none() -> None:
    out = translated(markup.parse("a <i>b <b>c</b></i> d"), lambda _: Aligned("d'autres", [(1, 0), (2, 2), (8, 6)]))
    assert out == "d<i>'<b></b></i>autres"


def test_what_opens_stands_right_before_what_comes_between() -> None:
    for sign, space in [
        *((sign, "") for sign in "([{\u00a1\u00bf\u201e\u201c\u2018\u00ab"),
        *((sign, " ") for sign in "-.)\u00bb"),
    ]:
        out = translated(markup.parse("see <img> dog"), lambda _, sign=sign: Aligned(f"{sign}Hund", [(1, 0), (5, 4)]))
        assert out == f"{sign}{space}<img> Hund"


# ---- placeholders

PLACEHOLDER = Protection().forbidden
STRINGS = [
    "Deleted %s files by %(user)s.", '"%s" not found (see %s)', "%d%% of %1$s", "{} and {0:>5} and {name!r}", "%%",
    "{count, plural, one {# file} other {# files}} here", "{{ user.name }} and {% if x %}y{% endif %}",
    "${HOME} or %{x}",
    "go to https://x.org/a?b=c. Now", "mail a.b@c.de, please", "the [X12X] of [X13X]", 'a <x id="3"></x> b <x id="4"/>',
    "Step %-5.2lf of %*d and %@", "name%(plural)s", "see [^1]",
]  # fmt: skip


@given(
    st.lists(st.sampled_from([*STRINGS, "The dog", "(or a cat)", "50 % off"]), min_size=1, max_size=4), st.booleans()
)
@settings(max_examples=200, deadline=None)
def test_placeholders_come_once_each_and_are_not_shown(texts: list[str], strict: bool) -> None:
    """Whatever the model says, also other placeholders; those that stand for the next argument keep their order."""
    text, protection = " ".join(texts), Protection(strict=strict)
    expected = [match[0] for match in PLACEHOLDER.finditer(text)]
    assert not any(PLACEHOLDER.search(segment.text) for segment in segments_of(line(text, protection)))
    noise = "Der %s Hund {x} (http://a.b) ["
    for model in (same, backwards, lambda source: words_of(source, dict.fromkeys(noise.split(), source[0]))):
        out = translated(line(text, protection), model)
        assert sorted(match[0] for match in PLACEHOLDER.finditer(out)) == sorted(expected)
        plain = [each for each in expected if each in ("%s", "{}", "{% if x %}", "{% endif %}")]
        assert [each for each in (m[0] for m in PLACEHOLDER.finditer(out)) if each in plain] == plain
        if strict:
            assert all(out.count(bracket) == text.count(bracket) for bracket in "()[]{}<>")


@pytest.mark.parametrize(
    ("text", "pairs", "expected"),
    [
        ("Deleted %d files.", {"Dateien": "files", "gelöscht": "Deleted", ".": "."}, "%d Dateien gelöscht ."),
        ("Deleted %(n)d files (now)", {"Jetzt": "now", "weg": "files"}, "(Jetzt) %(n)d weg"),
        ("file%(s)s gone", {"weg": "gone", "Datei": "file"}, "weg Datei%(s)s"),
        ("(dogs I) call", {"Hunde": "dogs", "rufe": "call", "ich": "I"}, "(Hunde rufe ich)"),
        ("%s has %s dogs", {"Hunde": "dogs", "hat": "has"}, "Hunde %s hat %s"),
        ('"%s" (by %s) left', {"Fort": "left", "von": "by"}, 'Fort "%s" (von %s)'),
    ],
)
def test_placeholders_stand_beside_their_neighbours(text: str, pairs: dict[str, str], expected: str) -> None:
    assert translated(line(text, Protection(strict=True)), lambda source: words_of(source, pairs)) == expected


@pytest.mark.parametrize("text", ["%s{name}", "{name}/%s", "%s:{name}", "%s{name}-{name}", "({name}%s)"])
def test_placeholders_side_by_side_are_one_that_keeps_its_place_if_any_must(text: str) -> None:
    assert list(Protection().pieces(f"a {text} b")) == [("a ", "text", ""), (text, "ordered", ""), (" b", "text", "")]


PRINTF = [*(f"%{letter}" for letter in "diouxXeEfFgGaAcCrsSp@"), *(f"%{size}d" for size in ("hh", "ll", *"hlqjzt"))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        *((f"a{each}b", each) for each in [*PRINTF, "%Lf", "%-+0#'5.2f", "%*d", "%.*f", "%7.12s"]),  # of C
        ("%% %1$s %2$-5.3lf %(name)s %(a.b)03d %12% %1y %3", "%% %1$s %2$-5.3lf %(name)s %(a.b)03d %12% %1 %3"),
        ("{} {0} {name} {a.b[0-1]!r:>5} {:>5} {!s} { x }", "{} {0} {name} {a.b[0-1]!r:>5} {:>5} {!s}"),
        ("{% if x\n %}a{%endif%} <% x %>", "{% if x\n %} {%endif%} <% x %>"),
        ("{{x}}, {{ a.b }} {{{x}}} {{a}b}}", "{{x}} {{ a.b }} {{{x}}} {{a}b}}"),
        ("%{x} ${HOME} #{x} $(file.name) $(a b)", "%{x} ${HOME} #{x} $(file.name)"),
        ("{ n , plural , one {# {x {y}}} other {}}a{n, date}", "{ n , plural , one {# {x {y}}} other {}} {n, date}"),
        ('[X12X] <x id="3"></x> <p x/> <br/> <b></i> <b>', '[X12X] <x id="3"></x> <p x/> <br/>'),
        ("see [^1] or [^note-2]: [^a b]", "[^1] [^note-2]:"),
        ("http://x.y/z?a=b#d. (https://x.org/a)! www.x.y;", "http://x.y/z?a=b#d https://x.org/a www.x.y"),
        ("<ftp://x.y>, file://x", "ftp://x.y"),
        ("a.b+c-d@e-f.co.uk. a_b@c.de, a@b", "a.b+c-d@e-f.co.uk a_b@c.de"),
    ],
)
def test_what_stands_for_something_else_is_a_placeholder(text: str, found: str) -> None:
    assert " ".join(match[0] for match in PLACEHOLDER.finditer(text)) == found


@pytest.mark.parametrize(
    "pair",
    [
        "()",
        "[]",
        "{}",
        "<>",
        '""',
        "''",
        "``",
        "\u201c\u201d",
        "\u201e\u201c",
        "\u2018\u2019",
        "\u201a\u2018",
        "\u00ab\u00bb",
    ],
)
def test_quotes_and_brackets_belong_to_the_placeholder_that_they_are_around(pair: str) -> None:
    left, right = pair
    texts = f"a {left}%s{right} b", f"a {left}{left}%s{right}{right} b", f"%s{right} a {left}"
    found = [[each.source for each in Protection().pieces(text) if each.kind != "text"] for text in texts]
    assert found == [[f"{left}%s{right}"], [f"{left}{left}%s{right}{right}"], ["%s"]]


def test_placeholders_in_attributes_are_not_shown_either() -> None:
    parts = markup.parse('<p title="see %s">a {b}<img alt=%d>', Protection())
    assert [segment.text for segment in segments_of(parts)] == ["see", "a"]


def test_numbers_and_words_are_no_placeholders() -> None:
    text = "In 1984, 50 % of 3.5 dogs and 12% cats were {not here} at 5:30; a@b, 100%."
    assert not PLACEHOLDER.search(text)


def words_linked(segment: Segment) -> Aligned:
    """The segment's own text as its translation, word by word."""
    spans = [match.span() for match in re.finditer(r"\S+", segment.text)]
    return Aligned(segment.text, [(end, start) for start, end in spans])


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
def test_a_long_text_is_several_segments_and_stays_whole(text: str) -> None:
    """Placing marks takes a time that grows with their product with the words: both are bounded for a segment."""
    parts = markup.parse(text, Protection())
    assert render(parts) == text
    segments = segments_of(parts)
    for segment in segments:
        assert len(segment.text) <= 3000
        assert len(segment.points) + 2 * len(segment.elements) <= 50
        segment.result = place(segment, words_linked(segment))
    assert re.sub(r"\s", "", render(parts)) == re.sub(r"\s", "", text)


def test_a_long_text_is_cut_between_sentences() -> None:
    text = "A <b>dog</b> runs. " * 200
    segments = segments_of(markup.parse(text))
    assert len(segments) > 2
    assert all(segment.text.startswith("A dog") and segment.text.endswith("runs.") for segment in segments)
    assert sum(len(segment.elements) for segment in segments) == 200


ENDS = [".", "!", "?", "\u2026", '."', ".'", ".\u201d", "!\u2019", "?\u00bb", ".)", ".]", '.")']


@pytest.mark.parametrize(
    "sentence",
    [
        *(f"A <b>dog</b> runs{end} " for end in ENDS),
        *(f"\u6211<b>\u4eec</b>{end}" for end in ("\u3002", "\uff01", "\uff1f\u201d")),
    ],
)
def test_a_segment_with_many_marks_ends_with_its_sentence(sentence: str) -> None:
    """With the one in which it has 25 of them: the 13th of 30 sentences, and the 26th."""
    segments = segments_of(markup.parse(sentence * 30))
    assert [len(segment.elements) for segment in segments] == [13, 13, 4]
    said = re.sub("<[^>]*>", "", sentence)
    assert [segment.text for segment in segments] == [(said * count).strip() for count in (13, 13, 4)]
