"""Markdown: code, links and tables stay, text is escaped, and files that would take too long are refused."""

import re
from collections import Counter
from pathlib import Path

import pytest
from fake_models import backwards, capitals, same, silent, texts_of, translated
from markdown_it import MarkdownIt

from nmt_cli.documents import markdown
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.segment import render
from nmt_cli.system.errors import DataError

ROOT = Path(__file__).parents[2]
MARKDOWN = """---
title: Not text
---
# A *small* dog

> [!NOTE]
> Be ***very*** careful  \r
> with `code` and\\
> \\_lines\\_ &amp; 2 * 3

- one [link](u "t") and [ref] and [ref][]
  two ![an *old* image](x.png) <http://x.y> <kbd>Ctrl</kbd>
- [ ] a task<br>here, see [^1]

| a | b \\| c |
|---|--------|
| **z** | `x|y` |

<p align="center">Some <b>text</b></p>

    code here

```sh
echo "not text"
```
Setext ~~old~~
===

[ref]: http://x
"""


def shape(text: str) -> Counter[str]:
    """Count everything in a Markdown text but its words and the line breaks inside paragraphs."""
    found = Counter[str]()
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        found[f"{token.type} {token.tag} {token.content * (token.type in ('fence', 'code_block'))}"] += 1
        for child in token.children or []:
            own = f"{child.type} {child.attrs.get('href', child.attrs.get('src', ''))}"
            if child.type not in ("text", "softbreak"):
                found[own + child.content * (child.type in ("code_inline", "html_inline"))] += 1
    return found


@pytest.mark.parametrize("text", [MARKDOWN, (ROOT / "README.md").read_text(), (ROOT / "CHANGELOG.md").read_text()])
def test_code_links_and_tables_stay(text: str) -> None:
    """Check three models.

    An empty translation keeps every byte. A repeated source changes only line breaks inside paragraphs. Reversed
    sentences keep the structure.
    """
    before = shape(text)
    assert translated(markdown.parse(text, Protection()), silent) == text
    repeated = translated(markdown.parse(text, Protection()), same)
    named = text.replace("[ref] and [ref][]", "[ref][ref] and [ref][ref]")
    assert re.sub(r"[\s>]+", " ", repeated) == re.sub(r"[\s>]+", " ", named)
    assert shape(repeated) == before
    turned = shape(translated(markdown.parse(text, Protection()), backwards))
    assert not before - turned
    # Emphasis is repeated around separated words.
    assert {each.split("_")[0] for each in turned - before} <= {"em", "strong", "s"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a **b**c ***d***, _e_ ~~f~~g ~h", "a bc d, e fg ~h"),
        ("---\nt: x\n...\nThe dog", "The dog"),
        ("---\nt: x\n--- \r\nThe dog\r\n---\n", "The dog"),
        ("<p>see %s</p>\n\n{a} dog", "see|dog"),
        ("- [X] a\n- [ ] b\n- [y] c\n> [!NOTE]\n> d\n\n[!Tip] e", "a|b|[y] c|d|[!Tip] e"),
        ("a\\*b &amp;&ouml; c", "a*b &ö c"),
        ("| a\\|b | **c** |\n|-|-|\n| c | a\\|b |", "a|b|c|c|a|b"),
        ("a|b\n-|-\na|\nb|a", "a|b|a|b|a"),
        ("A dog\na|b\n-|-\nc|d", "A dog|a|b|c|d"),
        ("> A dog\n> sees\n> a|b\n> -|-\n> c|d", "A dog sees|a|b|c|d"),
        ('![an *old* dog](x "t") and [![y](z) a](b)', "an old dog|y|and a"),
        ("a  \nb\\\nc<br>d<hr/>e", "a|b|c|d|e"),
        ("<http://x.y> <a@b.c> `c d` <b>e</b> <code>x *y* <i>z</i></code> ``f` `` <kbd>x", "e x"),
        ("<code>a</code> b <code>c</code> d", "b d"),
        ("x <!-- c --> y<wbr>z <img src=x alt='a dog'>", "a dog|x yz"),
        ("1) a\n10. b\n\n    c\n\n# d #\ne\n===\n***\n", "a|b|c|d|e"),
        ("> a\n> b\nc\n> - d\n>   e", "a b c|d e"),
        ("[a]: http://x 'y'\n\n[a], [b][a], [c] and [a][]", "a, b, [c] and a"),
    ],
)
def test_texts_that_the_model_sees(text: str, shown: str) -> None:
    parts = markdown.parse(text, Protection())
    assert "|".join(texts_of(parts)) == shown
    assert render(parts) == text


def test_empty_emphasis_is_dropped() -> None:
    """Its delimiters would become text. A link without text remains a link."""
    out = translated(markdown.parse("**a** *b* ~~c~~ [d](e)"), lambda _: Aligned("x", [(1, 0)]))
    assert out.split() == ["**x**", "[](e)"]


def test_reference_links_keep_their_target() -> None:
    """The label is written out where the text served as the label, also inside an image's text."""
    text = "see [a dog] and [The `x` *cat*][] or [b][c] ![d [e]](f)\n\n[a dog]: u\n[The `x` *cat*]: v\n[c]: w\n[e]: x\n"
    named = text.replace("[a dog] and", "[a dog][a dog] and").replace("cat*][] or", "cat*][The `x` *cat*] or")
    assert translated(markdown.parse(text), same) == named.replace("[e]](f)", "[e][e]](f)")


OUTPUTS = ["*a* _b_ `c` [d](e) <f> g|h", "# a", "###### a", "- a", "+ a", "1. a", "12) a", "> a", "---", "==="]


@pytest.mark.parametrize(
    "output", [*OUTPUTS, "~~a~~", "a &amp; b", "<http://x.y>", "![a](b)", "a \\* b\\", "#a -b 1.c", "-", "1)"]
)
def test_the_output_of_a_model_is_escaped(output: str) -> None:
    """Special characters are escaped, also at the beginning of a block."""
    text = "The dog\n\n- sees"
    out = translated(markdown.parse(text), lambda _: Aligned(output, []))
    assert shape(out) == shape(text), out
    inline = [token.children for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(out)]
    assert ["".join(child.content for child in each) for each in inline if each] == [output, output]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a &lt; b < c", "A &lt; B &lt; C"),
        ("a < b &lt; c", "A < B < C"),
        ("a \\* b * c", "A \\* B \\* C"),
        ("a &#38; b & c &amp; d", "A &#38; B &#38; C &#38; D"),
        ("a &gt; b\n\nc > d &gt; e", "A &gt; B\n\nC > D > E"),  # each segment has its own spelling
    ],
)
def test_a_special_character_is_written_as_it_first_appears_in_its_segment(text: str, expected: str) -> None:
    assert translated(markdown.parse(text, Protection()), capitals) == expected


@pytest.mark.parametrize("unit", ["[", "![", "[a][", "[*", "[<b>", "[a\n"])
def test_many_open_brackets_are_refused(unit: str) -> None:
    """The parser would search the rest of the text for the partner of each bracket, which would take minutes."""
    with pytest.raises(DataError, match="too many brackets"):
        markdown.parse(unit * 10_000)


def test_steps_count_missing_cells_and_the_length_of_link_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing cell counts as 30 steps. A bracket counts as many steps as there are characters up to its partner."""
    monkeypatch.setattr(markdown, "STEPS", 0)
    for text, steps in (
        ("|a|b|c|\n|-|-|-|\n|d|e|f|\n", 0),
        ("a|b\n-|-\nc|d\ne|f\n", 0),
        (f"{'|a' * 20}|\n{'|-' * 20}|\n|\n|b|\n", 30 * 11),  # 60 cells minus 45 bars, 3 line ends, and 1
        ("[a](b) c", 4),
    ):
        monkeypatch.setattr(markdown, "FREE_STEPS", steps)
        markdown.parse(text)
        monkeypatch.setattr(markdown, "FREE_STEPS", steps - 1)
        with pytest.raises(DataError):
            markdown.parse(text)


def test_tables_of_nearly_empty_rows_are_refused() -> None:
    """markdown-it fills every row to the width of the table's head: 60,000 cells from 1,800 characters."""
    with pytest.raises(DataError, match="rows with too few cells"):
        markdown.parse(f"{'|a' * 90}|\n{'|-' * 90}|\n" + "|\n" * 700)


@pytest.mark.parametrize(
    "text",
    [
        "- [one](u) and [two][ref], [ ] [x] [^1]\n" * 500,
        "Intervals [0, 1) and [a, b[ of *numbers*.\n\n" * 500,
        f"{'|a' * 20}|\n{'|-' * 20}|\n" + f"{'|b' * 20}|\n" * 300,
        "[![badge](a)](b)\n" * 300,
        "a|b\n-|-\nc|d\n\n" * 500,
    ],
)
def test_usual_markdown_is_not_refused(text: str) -> None:
    assert render(markdown.parse(text)) == text
