"""Tables of syntax, tested entry by entry: Markdown, punctuation of subtitles, kinds of members, inline codes."""

import re

import pytest
from fake_models import capitals, same, texts_of, texts_of_file, translated, translated_file
from office_files import docx, member, paragraph, run
from test_message_details import XLIFF, written
from test_office_details import office
from test_subtitle_details import line, pieces

from nmt_cli.documents import markdown
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.kept import kept
from nmt_cli.documents.messages import is_code
from nmt_cli.documents.segment import plain_parts, segments_of
from nmt_cli.system.errors import UsageError

LINES = r"""
${toc}|[[toc]]|[toc]|[TOC]|[[_TOC_]]|@[TOC]|@import "x"|@import 'x'|!include x|<<< @/x {1}|--8<-- "x"|-8<- x|---8<---
(a.b:c-d)=|+++ {"a": 1}|{.x}|{#y}|{:.x}|{: .x}|{a=1}|{ .x }|{ #x }|{ a=1 }|{/* x */}|{a.b}|{a(b)}|\newpage
\vspace{1em}[x]|:::row:::|::row::|///|//// x|...|+++|%%%|???|!!!|@@@|;;;|,,,|:::::|{{ x }}|{{< x >}} {{< y >}}
{{% x %}}|{% x %}|{# x #}|<% x %>|{%- x -%} {{y}}
"""


@pytest.mark.parametrize("syntax", [each for row in LINES.strip().split("\n") for each in row.split("|")])
def test_a_line_of_syntax_is_copied(syntax: str) -> None:
    text = f"A dog\n{syntax}\nA cat\n"
    assert translated(markdown.parse(text), capitals) == f"A DOG\n{syntax}\nA CAT\n"


@pytest.mark.parametrize("syntax", ["* TOC\n{:toc}", "1. toc\n{: toc}", "- Toc\n{:toc .x}"])
def test_the_marker_of_a_table_of_contents_is_copied(syntax: str) -> None:
    assert texts_of(markdown.parse(f"{syntax}\n\nA cat")) == ["A cat"]


MODULES = """import 'x'|import "x";|import X from 'y'|import * as X from "y";|import { A, B } from 'x'
export const a = 5|export let a = [1]|export var a = 1|export default function A() {|export async function a() {
export class A {|export default class A {|export default {a: 1}|export default (a)|export default [a]|export default a.b
export default a.b(c)|export default a;|export { a }|export {a} from 'x'|export * from 'x'"""
PROSE = ["import the dog from here", "export default values here", "export it now", "importing 'x'", "exports = 5"]


@pytest.mark.parametrize(
    ("text", "copied"), [*((each, True) for each in re.split(r"[|\n]", MODULES)), *((each, False) for each in PROSE)]
)
def test_modules_are_copied_and_prose_is_not(text: str, copied: bool) -> None:
    assert texts_of(markdown.parse(f"{text}\n\nA cat")) == (["A cat"] if copied else [text, "A cat"])


@pytest.mark.parametrize("star", ["", "*"])
@pytest.mark.parametrize("name", ["equation", "align", "gather", "multline", "eqnarray", "displaymath"])
def test_environments_of_formulas_are_copied(name: str, star: str) -> None:
    text = f"A dog\n\\begin{{{name}{star}}}\nab *cd* ef\n\\end{{{name}{star}}}\nA cat"
    assert texts_of(markdown.parse(text)) == ["A dog", "A cat"]
    other = f"\\begin{{{name}{star}}}\nab\n\\end{{{name}x}}\nA cat"
    assert texts_of(markdown.parse(other)) != ["A cat"]


@pytest.mark.parametrize("label", ["", ".", " ,", ";", ":", " (eq:a)", " {#eq}", " ^eq-1", ". (1)"])
def test_labels_of_formulas_are_copied(label: str) -> None:
    assert texts_of(markdown.parse(f"$$\nab\n$${label}\nA cat")) == ["A cat"]
    assert texts_of(markdown.parse(f"$$\nab\n$${label} x\nA cat")) != ["A cat"]


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("{% comment %}", "{% endcomment %}"), ("{%- comment -%}", "{%- endcomment -%}"),
        ("{% highlight x %}", "{% endhighlight %}"), ("{%- highlight x -%}", "{%- endhighlight -%}"),
        ("{{<highlight x>}}", "{{</highlight>}}"), ("{{< highlight x >}}", "{{< /highlight >}}"),
    ],
)  # fmt: skip
def test_listings_are_copied(begin: str, end: str) -> None:
    assert texts_of(markdown.parse(f"{begin}\nab\n\ncd\n{end}\nA cat")) == ["A cat"]
    assert texts_of(markdown.parse(f"{begin}\nab\n\ncd\n\nA cat")) == []


@pytest.mark.parametrize("head", ["!!! note", "!!! note inline end", "??? note", "???+ note", "===", "===!", "===+"])
def test_headers_of_indented_blocks(head: str) -> None:
    text = f'{head} "a title"\n    A dog\n\nA cat'
    assert texts_of(markdown.parse(text)) == ["a title", "A dog", "A cat"]
    assert translated(markdown.parse(text), same) == text


def joined(first: str, second: str) -> bool:
    cues = "1\n00:00:01,000 --> 00:00:02,000\n{}\n\n2\n00:00:02,000 --> 00:00:03,000\n{}\n"
    return len(texts_of_file("srt", cues.format(first, second).encode())) == 1


def test_every_stop_ends_a_sentence_even_before_a_quote() -> None:
    assert joined("I came", "and went")
    for stop in ".!?:;\u3002\uff01\uff1f\u266a\u266b":
        assert not joined(f"I came{stop}", "and went"), stop
        for closer in "\"'\u201d\u2019\u00bb)]":
            assert not joined(f"I came{stop}{closer}", "and went"), (stop, closer)
    for other in [",", "-", "\u2013", "\u2026", "*", "\u00ab"]:
        assert joined(f"I came{other}", "and went"), other
    for closer in "\"'\u201d\u2019\u00bb":
        assert joined(f"I came{closer}", "and went"), closer


@pytest.mark.parametrize("dash", [*"-\u2010\u2011\u2012\u2013\u2014\u2015", "--", "- "])
def test_every_dash_begins_a_speech(dash: str) -> None:
    text = f"1\n00:00:01,000 --> 00:00:02,000\n{dash}I came\n{dash}You went\n"
    assert texts_of_file("srt", text.encode()) == ["I came", "You went"]
    assert not joined("I came", f"{dash}you went")


@pytest.mark.parametrize("mark", [">>", ">> ", ">>>", "&gt;&gt;", "&gt;&gt; ", "&gt;&gt;&gt;"])
def test_every_mark_of_american_captions_begins_a_speech(mark: str) -> None:
    text = f"1\n00:00:01,000 --> 00:00:02,000\n{mark}I came\n{mark}You went\n"
    assert texts_of_file("srt", text.encode()) == ["I came", "You went"]
    assert not joined("I came", f"{mark}you went")


@pytest.mark.parametrize(
    "opening", ["a", "<i>", "{\\i1}", *"\"'([\u00a1\u00bf\u00ab\u2018\u201c\u201e\u201f\u2026\u266a\u266b", ".."]
)
def test_a_dash_without_a_space_begins_a_speech_before_each_opening(opening: str) -> None:
    text = f"1\n00:00:01,000 --> 00:00:02,000\n-{opening}I came\n-{opening}You went\n"
    assert len(texts_of_file("srt", text.encode())) == 2
    other = text.replace(f"-{opening}", "-5")
    assert len(texts_of_file("srt", other.encode())) == 1


@pytest.mark.parametrize("pause", ',;:.!?\u2026\u2013\u2014)"\u3001\u3002')
def test_every_pause_is_a_good_end_of_a_cue(pause: str) -> None:
    assert pieces(f"a b c{pause} d", [0, 2, 1, 3], ["p q", "r s"], [9, 9]) == [f"a b c{pause}", "d"]
    assert pieces(f"a{pause} b c d", [0, 2, 1, 3], ["p q", "r s"], [9, 9]) == [f"a{pause}", "b c d"]


@pytest.mark.parametrize("tag", "ibus")
def test_formats_of_ass_follow_their_words(tag: str) -> None:
    data = ("[Events]\n" + line(f"I {{\\{tag}1}}see{{\\{tag}0}} him")).encode()
    out = translated_file("ass", data, lambda text: capitals(text)).decode()
    assert f"I {{\\{tag}1}}SEE{{\\{tag}0}} HIM" in out
    assert texts_of_file("ass", data) == ["I see him"]
    inner = ("[Events]\n" + line(f"do{{\\{tag}1}}g{{\\{tag}0}}s")).encode()
    assert texts_of_file("ass", inner) == ["dogs"]


KINDS = """wordprocessingml.document.main wordprocessingml.template.main wordprocessingml.header
wordprocessingml.footer wordprocessingml.footnotes wordprocessingml.endnotes wordprocessingml.comments
presentationml.slide presentationml.notesSlide presentationml.slideLayout presentationml.slideMaster drawingml.chart
drawingml.diagramData drawing spreadsheetml.comments"""


@pytest.mark.parametrize("kind", KINDS.split())
def test_every_kind_of_member_with_text_is_translated(kind: str) -> None:
    inside = paragraph(run("A dog")) + "<a:p><a:r><a:t>A cat</a:t></a:r></a:p>"
    assert texts_of_file("docx", office(kind, inside)) == ["A dog", "A cat"]
    out = member(translated_file("docx", office(kind, inside), capitals), "a.xml")
    assert (">A DOG<" in out, ">A CAT<" in out) == (True, True)


@pytest.mark.parametrize("name", ["footnotes", "header1", "styles"])
def test_members_of_a_word_file_are_found(name: str) -> None:
    text = (
        f'<w:x xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">{paragraph(run("A dog"))}</w:x>'
    )
    data = docx(paragraph(run("A cat")), **{name: text})
    assert texts_of_file("docx", data) == ["A cat", *(["A dog"] if name != "styles" else [])]


NOTES = "description context comment developer_comment placeholders examples example meaning".split()  # noqa: SIM905


@pytest.mark.parametrize("key", ["message", "defaultMessage", "string"])
def test_notes_beside_a_message_of_json_stay(key: str) -> None:
    for note in NOTES:
        text = f'{{"a": {{"{key}": "dog", "{note}": "cat", "x": "y"}}, "{note}": "cat"}}'
        expected = text.replace('"dog"', '"DOG"').replace('"y"', '"Y"')
        expected = expected[: expected.rindex('"cat"')] + '"CAT"}'
        assert written("json", text) == expected


@pytest.mark.parametrize("name", ["x", "ph", "it", "cp", "sub", "sm", "em", "bin-source"])
def test_codes_of_xliff_are_copied(name: str) -> None:
    for source in (f'a <{name} id="1">b c</{name}> d', f'a <{name} id="1"/> d'):
        out = written("xliff", XLIFF.format("", "", f"<source>{source}</source>"))
        expected = source.replace("a <", "A <").replace("> d", "> D")
        assert f">{expected}</target>" in out
    document = FORMATS["xliff"].read(XLIFF.format("", "", f"<source>a<{name}/>b</source>"), ReadOptions())
    assert texts_of(document.parts) == ["a b"]


def test_the_lengths_of_segments() -> None:
    """From 1,000 characters on, a segment ends with a sentence. From 2,000 characters on, it ends at once."""
    for text, lengths in (
        ("A dog runs. " * 400, [1991, 1991, 815]),
        ("abcdefg " * 600, [2999, 1799]),
        ("x" * 5000, [2000, 2000, 1000]),
        ("\u6211\u4eec\u3002" * 1500, [1998, 1998, 504]),
    ):
        segments = segments_of(plain_parts(text))
        assert [len(segment.text) for segment in segments] == lengths
        if " " in text:
            words = {word for segment in segments for word in segment.text.split()}
            assert words <= set(text.split()), "no word is cut"


def test_date_patterns_are_code() -> None:
    for text, code in (
        ("%-d %^b", True),
        ("%_d. %b", True),
        ("%d of", False),
        ("%", False),
        ("%%", False),
        ("%H h", False),
    ):
        assert is_code(text) == code, text


def test_a_wrong_pattern_is_shown_shortened_and_without_escapes() -> None:
    with pytest.raises(UsageError) as error:
        kept(None, "(\x1b[31m" + "x" * 100)
    assert "“(\\x1b[31mxxx" in str(error.value)
    assert "x" * 41 not in str(error.value)
