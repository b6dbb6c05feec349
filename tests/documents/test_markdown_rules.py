"""Markdown dialects: lines of syntax are copied, and the text in and between them is translated."""

import random
import re

import pytest
from fake_models import capitals, same, texts_of, translated
from growth import is_linear

from nmt_cli.documents import markdown
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.segment import render

FORMULAS = "\\begin{align*}\na &= b \\\\\n\\end{align*}"


def shown(text: str) -> str:
    """Return the segments that a model sees. Check that the document stays as it is without translations."""
    parts = markdown.parse(text, Protection())
    assert render(parts) == text
    return "|".join(texts_of(parts))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Front matter.
        ("+++\ntitle = 'x'\n\n[a]\nb = 1\n+++\nThe dog", "The dog"),
        ('{\n  "title": "x",\n  "a": {\n  }\n}\n\nThe dog', "The dog"),
        ("% Title\n  goes on\n% Author\n\nThe dog", "The dog"),
        ("The dog\n\n+++\ntitle\n+++\n", "The dog|title"),
        # Fenced blocks, with and without a title, nested, in lists and quotes.
        (":::note\nA dog\nsees\n:::\nA cat", "A dog sees|A cat"),
        (":::note A title\nA dog\n:::", "A title|A dog"),
        ("::: tip A *title* {open}\nA dog\n:::", "A title|A dog"),
        ("::: tip Press {key} twice {.x}\nA dog\n:::", "Press twice|A dog"),
        (":::note[A title]{.x}\nA dog\n:::", "A title|A dog"),
        ("::: {.callout-note title='x'}\nA dog\n:::\n", "A dog"),
        (":::: {.columns}\n::: left\nA dog\n:::\n::::", "A dog"),
        ("::: left :::::\nA dog\n::::::::::", "A dog"),
        (":::{note} A title\n:class: x\n:name: y\nA dog\n:::", "A title|A dog"),
        (":::{note}\n---\nclass: x\n---\nA dog\n:::", "A dog"),
        (":::{figure} a/b.png\nA dog\n:::", "A dog"),
        (":::{code-block} python\nx y\n\nz\n:::\nA dog", "A dog"),
        ('A dog\n:::image type="content" alt-text="x":::\nA cat', "A dog|A cat"),
        ("A dog\n:::row:::\nA cat\n::youtube[A film]{#id}\nb", "A dog|A cat|A film|b"),
        ("- A dog\n  :::tip\n  sees\n  :::\n- a cat\n:::\nb", "A dog|sees|a cat|b"),
        ("> A dog\n> :::\n> sees\n:::\nb", "A dog|sees|b"),
        ("```{note} A title\n:name: x\nA dog\n```\n```\ncode\n```\nb", "A title|A dog|b"),
        ("````{tip}\n```python\ncode\n```\nA dog\n````\nb", "A dog|b"),
        ("```{code-block} python\ncode\n```\nb", "b"),
        ("```{tip}\nA dog\n`````\nb\n```\ncode\n```\n", "A dog|b"),
        ("~~~~{tip}\nA dog\n~~~\ncode\n~~~\nb\n~~~~\nc", "A dog|b|c"),
        ("- ```{note}\n  A dog\n\n```\ncode\n```\n", "A dog"),
        ("/// note | A title\nA dog\n///\nb", "A title|A dog|b"),
        # Indented blocks below a header line.
        ('!!! note inline "A title"\n    A dog\n    sees\n\n    more\n\n        code\nb', "A title|A dog sees|more|b"),
        ("??? note\n    A dog\n???+ tip\n    A cat", "A dog|A cat"),
        ('=== "A tab"\n\n    A dog\n\n=== "Two"\n\n    A cat\n', "A tab|A dog|Two|A cat"),
        ('!!! a\n    !!! b "A title"\n        A dog\n    A cat\nb', "A title|A dog|A cat|b"),
        ('!!!note\n    A dog\n???+note "A title"\n    A cat\n???tip\n    b', "A dog|A title|A cat|b"),
        ("!!! Stop this\nnow", "!!! Stop this now"),
        ("!!!Stop this\nnow", "!!!Stop this now"),
        ("[^1]: A note\n    goes on\n\n    more of it\n[^long-name]: Word\nb", "A note goes on|more of it|Word b"),
        ("[^1]:\n    A note\n\n        code\n\nb", "A note|b"),
        ("A term\n: is defined\n: twice\n\nOther\n\n:   long\n    text\n\n    more\n\n        code\n", None),
        ("*[HTML]: A language\n*[CSS]: Style", "A language|Style"),
        ("| A verse\n| and another\n", "A verse|and another"),
        # Lines without text.
        ("A dog\n{% include 'x' %}\nA cat\n{{< a b=\"c\" >}} {{% d %}}\nb", "A dog|A cat|b"),
        ('A dog\n{{< figure\n  title="x"\n>}}\nA cat', "A dog|A cat"),
        ("{% highlight ruby %}\nx\n\ny\n{% endhighlight %}\nA dog", "A dog"),
        ("{{< highlight go >}}\nx\n\ny\n{{< /highlight >}}\nA dog", "A dog"),
        ("A dog\n[TOC]\nA cat\n[[_TOC_]]\n@[toc]\nb", "A dog|A cat|b"),
        ("* TOC\n{:toc}\n\nA dog\n{: .x #y}\nA cat", "A dog|A cat"),
        ('(target)=\n# A dog\n\n+++ {"a": 1}\n\nA cat\n+++\nb', "A dog|A cat|b"),
        ("A dog\n{/* x */}\nA cat\n{props.children}\nb", "A dog|A cat|b"),
        ("A dog\n--8<-- 'x.md'\nA cat\n<<< @/x.js\n!include x.md\nb", "A dog|A cat|b"),
        ("A dog\n\\newpage\nA cat\n\\vspace{1em}\nb", "A dog|A cat|b"),
        ("+---+---+\n| a | b |\n+===+===+\n| c | d |\n+---+---+\n\nA dog", "A dog"),
        ("+---+\n| a |\n+---+\n\n| A verse", "A verse"),
        ("import X from 'y'\nimport {\n  Z\n} from 'z'\n\nexport const a = {\n  b: 1\n}\n\nA dog", "A dog"),
        ("import the dog and\nexport it", "import the dog and export it"),
        ("export default values (all)", "export default values (all)"),
        # Attributes of headings, blocks and elements.
        ("# A dog {#dog .x}\n## A cat {#cat} ##\n### One {/* #one */}", "A dog|A cat|One"),
        ("- an item {{< a\nb >}} {% c\n d %} {{e}}", "an item"),
        ("A dog {a} {.x}\n\nA {dog}", None),
        ("# A dog { #dog }\n\n- A cat { .c }\n- two {  k=1 }", "A dog|A cat|two"),
        ("A dog\n{ .x }\n\nA cat\n{ #y .z }\nand\n{ k='1' }\nb\n{k=1}\nc", "A dog|A cat|and|b|c"),
        ('![A dog](a.png){ width="300" } [sees](#){ .b } :a-icon:{ .c } it', "A dog|sees it"),
        ("a | b { .x }\n-|-\nc { #y } | d", "a|b|c|d"),
        ("A { dog } and { # one }", "A { dog } and { # one }"),
        # Formulas, and prices.
        ("A $a+b$ dog $x_1$, $$c$$ and \\(d^2\\) or \\[e\\] sees", "A dog , and or sees"),
        ("It costs $5 and $10, or $20,000 and $30,000", "It costs $5 and $10, or $20,000 and $30,000"),
        ("A \\$5 and 6$ dog costs \\$7", "A $5 and 6$ dog costs $7"),
        ("\\[A dog\\] and \\(some cats\\)", "[A dog] and (some cats)"),
        ("A dog\n$$\na \\\\ b\n- c\n$$ (eq1)\nA cat", "A dog|A cat"),
        (f"\\[\nx *y* z\n\\]\nA dog\n{FORMULAS}\nA cat", "A dog|A cat"),
        ("$$ a\n\nA dog", "$$ a|A dog"),
        ("> $$\n> a *b*\n> $$\n> A dog", "A dog"),
        ("A $a\nb$ dog {ref}`some words` and {py:func}`x`", "A dog and"),
    ],
)
def test_lines_of_syntax_are_copied_and_their_text_is_translated(text: str, expected: str | None) -> None:
    if expected is not None:
        assert shown(text) == expected
        assert shown(text.replace("\n", "\r\n")) == expected
    else:
        shown(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A term\n: is so\n:   or so\n", "A TERM\n: IS SO\n:   OR SO\n"),
        ("see [a](b){.c} `d`{.e} *f g*{: .h} ![i](j){k=l}", "SEE [A](b){.c} `d`{.e} *F G*{: .h} ![I](j){k=l}"),
        (':::note note {.note}\nnote\n!!! note "note"\n', ':::note NOTE {.note}\nNOTE\n!!! note "NOTE"\n'),
        ("# a dog {#dog}\r\n", "# A DOG {#dog}\r\n"),
        ("a cost of $5 and $10$ $x$", "A COST OF $5 AND $10$ $x$"),
        ("[^1]: a *note*\n    [^1]: b\n", "[^1]: A *NOTE*\n    [^1]: B\n"),
        ("a\rb\n\nc *d*\n", "A B\n\nC *D*\n"),  # a lone carriage return
    ],
)
def test_translations_replace_the_text(text: str, expected: str) -> None:
    assert translated(markdown.parse(text, Protection()), capitals) == expected


@pytest.mark.parametrize("protection", [None, Protection()])
def test_references_to_footnotes_are_copied(protection: Protection | None) -> None:
    text = "a dog[^1] sees[^long-note] it [^a b]"
    parts = markdown.parse(text, protection)
    assert texts_of(parts) == ["a dog sees it [^a b]"]
    assert translated(parts, capitals) == "A DOG[^1] SEES[^long-note] IT [^A B]"


BLOCKS = [
    ":::note", ":::", "::: {.x}", ":::{tip} a title", "::::", "/// tip | a title", "///", "+++", "[TOC]", "{% a %}",
    '!!! note "a title"', "    some text", "??? tip", '=== "tab"', "[^1]: a note", ": a definition", "*[ab]: c d",
    "```{note} a title", "```", "```sh\nx y\n```", "$$\na*b*\n$$", "\\[\nx\n\\]", FORMULAS, "{{< a\nb >}}", "{: .x}",
    "# a *b* {#c}", "a $x_1$ [b](c){.d} `e`{.f}", "| a verse", "- an item", "> a quote", "> :::", "  :::", "\\newpage",
    "import a from 'b'", "{props.a}", "(a)=", "---", ":class: x", "~~~", "a|b\n-|-\nc|d", "1. one", "\tx", "...", "$$",
    "{% highlight a %}", "{% endhighlight %}", ":::{code} x", "+--+--+\n|a |b |", "<b>a</b>", "<p>", "text $5 and $6",
]  # fmt: skip
ENDS = ["\n", "\n", "\n", "\n\n", "\r\n"]


def test_random_documents_of_all_blocks_change_only_in_white_space() -> None:
    """The model repeats its source. Lines of a paragraph are joined, so white space and `>` are not compared."""
    for seed in range(700):
        draw = random.Random(seed)
        text = "".join(draw.choice(BLOCKS) + draw.choice(ENDS) for _ in range(draw.randint(1, 15)))
        parts = markdown.parse(text, Protection())
        assert render(parts) == text
        assert re.sub(r"[\s>]+", "", translated(parts, same)) == re.sub(r"[\s>]+", "", text), text


def test_random_blocks_with_blank_lines_between_stay_byte_for_byte() -> None:
    for seed in range(300):
        draw = random.Random(seed)
        text = "".join(f"{draw.choice(BLOCKS)}\n\n" for _ in range(draw.randint(1, 15)))
        assert translated(markdown.parse(text, Protection()), same) == text, text


PUMPS = [
    "$", "$$", "$a ", "$$a\n", "\\(a", "\\[a\n", "\\[\n", "\\begin{align}\n", "{{<\n", "{{< a", "{%\n", "{% a", "{#",
    ":::\n", ":::{code}\n", ":::{note}\n", "```{note}\n", "``` {note}\n\n", "!!! a\n", "!!! a\n    b\n", ": a\n",
    "[^1]: a\n", "[^1]:\n", "[^", "*[a", "*[a]: b\n", "| a\n", "+-+\n", "+-", "export a", "export default ", "(a",
    "{.a", "import {\n", "import a\n", "import a from\n\n", "+++\n", "---\n", '{\n"\n', "% a\n", "{ref}`", "{a:",
    "\\a{", "\\a[b]", "a {.b}", "a { .b", "{ ", "{ a", "a:{ .b", "!!!a\n", "???a b", "[a](b){c", " {", "{=",
    "{% highlight %}\n", "{{< highlight >}}\n", ":a: b\n", ":::{note}\n---\n", "$\\",
]  # fmt: skip


@pytest.mark.parametrize("unit", PUMPS)
def test_time_grows_with_the_length(unit: str) -> None:
    assert is_linear(markdown.parse, unit)


@pytest.mark.parametrize("attributes", ["{.a #b}", "{#id}", "{ .a }"])
def test_attributes_after_code_never_reach_the_model(attributes: str) -> None:
    assert shown(f"Use `x`{attributes} now") == "Use now"
