"""Pages in unusual shapes: notes after tags, regions that overlap, nested splits, and the ends of Markdown's blocks."""

import pytest
from fake_models import capitals, texts_of, translated

from nmt_cli.documents import html, markdown, markup, xml
from nmt_cli.documents.document import Outline
from nmt_cli.system.errors import DataError


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        # The nearest text decides whether this is a note. Tags between are ignored.
        ("<b>x</b> y.<sub>2</sub> z", ["x y.2 z"]),
        ("<b>x.</b><i>y</i><sub>2</sub> z", ["x.y z"]),
        ("x<sup>2</sup><b></b>y", ["x y"]),
        # Regions that overlap.
        ("<code><b translate=yes>x</code>y</b> z", ["y z"]),
        ("<p translate=no>a <b translate=yes>b <i>c</p>d</b> e", ["b c", "d"]),
        ("<p translate=no>a <b translate=yes>b</p> c <i translate=no>d</b> e</i> f", ["b", "c f"]),
    ],
)
def test_texts_of_pages(text: str, texts: list[str]) -> None:
    assert texts_of(html.parse(text)) == texts


def test_elements_of_xml_are_ignored_by_their_whole_name() -> None:
    text = "<x:a>b</x:a> <a>c</a> d"
    assert texts_of(xml.parse(text, None, ("a",))) == ["b d"]
    assert texts_of(xml.parse(text, None, ("x:a",))) == ["c d"]


def test_a_split_inside_several_elements_splits_all_of_them() -> None:
    text = "<a>x <b>y <c>z <p>w</p> v</c> u</b> t</a>"
    parts = xml.parse(text, outline=Outline(("p",)))
    assert texts_of(parts) == ["x", "y", "z", "w", "v", "u", "t"]
    assert translated(parts, capitals) == "<a>X <b>Y <c>Z <p>W</p> V</c> U</b> T</a>"


def test_the_number_of_tags_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markup, "_MOST_TAGS", 3)
    assert markup.xml_text(b"<a><b/></a>", "a.xml") == ("<a><b/></a>", "utf-8")
    with pytest.raises(DataError, match=r"^a\.xml has more than 3 tags\. Split the file"):
        markup.xml_text(b"<a><b/><b/></a>", "a.xml")


@pytest.mark.parametrize("text", ["a < b", "<!ENTITY x>", "\x01", "<a>"])
def test_long_names_of_members_are_cut_in_errors(text: str) -> None:
    if text == "<!ENTITY x>" or text == "\x01":
        with pytest.raises(DataError) as error:
            markup.xml_text(text.encode(), "x" * 500)
    else:
        with pytest.raises(DataError) as error:
            markup.Markup(text.encode(), "x" * 500, {})
    assert "x" * 60 in str(error.value)
    assert "x" * 61 not in str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Code in a cell, with the same text as the next cell.
        ("| `a` | a |\n|-|-|\n| x | y |", "| `a` | A |\n|-|-|\n| X | Y |"),
        # HTML within lists and quotes.
        ("- a\n\n  <p>dog</p>\n", "- A\n\n  <p>DOG</p>\n"),
        ("> <p>dog</p>\n", "> <p>DOG</p>\n"),
        # A heading that has only attributes.
        ("# {#id}\n\na", "# {#id}\n\nA"),
        # A formula keeps its own line.
        ("\\[a+b\\]\nA dog", "\\[a+b\\]\nA DOG"),
        # A region that is never closed ends at the next opening.
        ("{{< a\n{{< b\nc >}}\nA dog", "{{< A\n{{< b\nc >}}\nA DOG"),
        ("{{< a\n{{< b >}}\nA dog", "{{< a\n{{< b >}}\nA DOG"),
        # Admonitions need four spaces; one with an empty title needs no content.
        ("!!! note\n  A dog", "!!! NOTE A DOG"),
        ('!!! note ""\nA dog', '!!! note ""\nA DOG'),
        ("- - a\n\n    !!! n\n        b\n\n    c\n\n  d\n", "- - A\n\n    !!! n\n        B\n\n    C\n\n  D\n"),
        (
            "!!! a\n    - b\n\n      !!! c\n          d\n\n      e\n\n    f\n\ng\n",
            "!!! a\n    - B\n\n      !!! c\n          D\n\n      E\n\n    F\n\nG\n",
        ),
        ("- a\n\n  !!! note\n      b\n\n  c\n\n      code\n", "- A\n\n  !!! note\n      B\n\n  C\n\n      code\n"),
        ("> - a\n>\n>   !!! note\n>       b\n>\n>   c\n", "> - A\n>\n>   !!! note\n>       B\n>\n>   C\n"),
    ],
)
def test_edge_cases_of_markdown_dialects(text: str, expected: str) -> None:
    assert translated(markdown.parse(text), capitals) == expected
