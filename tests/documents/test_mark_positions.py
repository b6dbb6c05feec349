"""Positions of marks in unusual cases: copies of a word, unlinked punctuation, emptied elements, words cut in two."""

import pytest
from fake_models import Model, backwards, linked, same, texts_of, translated, translated_file

from nmt_cli.documents import alignment, html, markdown
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned


@pytest.mark.parametrize(
    ("text", "target", "links", "expected"),
    [
        # A word of several tokens is one word, even if one of its tokens is linked to a tagged word.
        ("the file<b>s</b>", "die Dateien", [(3, 0), (9, 4), (11, 8)], "die <b>Dateien</b>"),
        # A repeated word belongs to the occurrence that the model attended to.
        ("<b>a</b> cat sees a dog", "dog cat", [(3, 0), (7, 2)], "<b>dog</b> cat"),
        ("<b>dog</b> is not a dog", "dog ist dog", [(3, 16), (7, 4), (11, 0)], "dog ist <b>dog</b>"),
        # Punctuation that the source lacks belongs to the word that the model attended to.
        ("see <b>dog cat</b>", "x y – z", [(1, 0), (3, 4), (5, 4), (7, 8)], "x <b>y – z</b>"),
        ("<b>see</b> dog cat", "x – z", [(1, 0), (3, 4), (5, 8)], "<b>x</b> – z"),
        # Text that is linked to no word.
        ("dog <img> cat", "Hund !?Katze", [(4, 0), (7, 0), (12, 4)], "Hund !? <img> Katze"),
        ("see<img> <img>", "sehen !?", [(5, 0)], "sehen !?<img> <img>"),
        # Marks inside a word, and beside a word with a bracket.
        ("dog <img><wbr>, cat", "Hund, Katze", [(4, 0), (5, 3), (11, 5)], "Hund <img><wbr>, Katze"),
        ("dog<img><wbr>, cat", "Hund, Katze", [(4, 0), (5, 3), (11, 5)], "Hund<img><wbr>, Katze"),
        ("dog<!-- --><img>cat x", "Hund'katze x", [(4, 0), (5, 4), (10, 4), (12, 8)], "Hund<!-- --><img>'katze x"),
        ("dog<wbr>cat", "Hund Katze", [(4, 0), (10, 3)], "Hund<wbr> Katze"),
        ("dog (<img>", "Hund (", [(4, 0), (6, 4)], "Hund (<img>"),
        ("dog <img>", "Hund (", [(4, 0), (6, 0)], "Hund ( <img>"),
        # Marks that keep their order leave the element together.
        ("see<img>%d<i>.%s</i><i>%s", "see", [(3, 0)], "<i>see</i><img>%d %s<i>%s"),
        # A mark attached to a word follows it rather than the words on the other side.
        (",see<img> dog", "see Katzen !? dog", [(3, 5), (10, 0), (17, 5)], "see Katzen<img> !? dog"),
    ],
)
def test_links_decide_where_a_mark_is_put(text: str, target: str, links: list[tuple[int, int]], expected: str) -> None:
    assert translated(html.parse(text, Protection()), lambda _: Aligned(target, links)) == expected


DOGS = linked({"sehen": "see", "Katze": "cat", "Hund": "dog"})


@pytest.mark.parametrize(
    ("text", "model", "expected"),
    [
        # Only marks that are ordered keep their order.
        ("dog <img> cat %s see %d", DOGS, "%s sehen <img> %d Katze Hund"),
        ("dog %s <img>cat %d see", DOGS, "sehen %s <img>Katze %d Hund"),
        ("a <b>%s<img></b> %d dog", backwards, "<b>%s<img></b> %d dog a"),
        ("<b>a %s</b> x %d b", backwards, "b x <b>a %s</b> %d"),
        ("<i>a <b>b %s</b></i> <i>%d c</i>", backwards, "<i>c</i> <i><b>b %s</b> a</i> %d"),
        ("<b>a</b> %s <i>%d b</i>", backwards, "%s <i>%d b</i> <b>a</b>"),
        # An emptied element follows its neighbors, not the other marks.
        ("<b></b>see %s dog", backwards, "%s dog <b></b>see"),
        ("see dog</i> <b></b>big cat", backwards, "cat <b></b>big dog</i> see"),
        # Two words on either side count more than the nearest.
        ("a <img> b c d", linked({"B": "b", "A": "a", "C": "c"}), "<img> B A C"),
        # An emptied element keeps the spaces at its ends.
        ("see <b><img></b>dog", same, "see <b><img></b>dog"),
        ("see<b><img></b> dog", backwards, "dog see<b><img></b>"),
        ("see <b><img> </b>dog cat", backwards, "cat <b><img> </b>dog see"),
        ("see <b><img></b>, dog", backwards, "dog <b><img></b>, see"),
        # A mark attached to a word stays on it, even if a mark stands beside its neighbor.
        (
            "see note<img> big now",
            linked({"Jetzt": "now", "große": "big", "Hinweis": "note", "siehe": "see"}),
            "Jetzt große Hinweis<img> siehe",
        ),
        ("see <img>dog now", linked({"Jetzt": "now", "Hund": "dog", "siehe": "see"}), "Jetzt <img>Hund siehe"),
    ],
)
def test_marks_keep_their_order_and_their_spaces(text: str, model: Model, expected: str) -> None:
    assert translated(html.parse(text, Protection()), model) == expected


@pytest.mark.parametrize(
    ("text", "model", "expected"),
    [
        ("a**`x`**b c", same, "a**`x`**b c"),
        ("see a**`x`** b", same, "see a**`x`** b"),
        ("see **`x`**dog now", backwards, "now **`x`**dog see"),
        ("see dog**`x`** now", backwards, "now dog**`x`** see"),
        ("see dog **`x`** now", backwards, "**`x`** now dog see"),
    ],
)
def test_emphasis_around_code(text: str, model: Model, expected: str) -> None:
    assert translated(markdown.parse(text), model) == expected


@pytest.mark.parametrize(
    ("text", "pairs", "expected"),
    [
        # Punctuation at an end of emphasis belongs to it only if the source has it there.
        ("*(dog) cat* x", {"(": "(", "Hund": "dog", ")": ")", "Katze": "cat", "y": "x"}, "*( Hund ) Katze* y"),
        ("*cat (dog)* x", {"Katze": "cat", "(": "(", "Hund": "dog", ")": ")", "y": "x"}, "*Katze ( Hund )* y"),
        ("*dog, cat* x", {"Hund": "dog", "y": "x", ",": ",", "Katze": "cat"}, "*Hund* y , *Katze*"),
    ],
)
def test_emphasis_with_punctuation(text: str, pairs: dict[str, str], expected: str) -> None:
    assert translated(markdown.parse(text), linked(pairs)) == expected


def test_attributes_of_every_element_are_translated() -> None:
    text = '<b title="one">a</b> <i title="two">b</i> <u title="three">c</u>'
    assert texts_of(html.parse(text)) == ["one", "two", "three", "a b c"]


def test_long_spellings_that_differ_have_a_common_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment, "_MOST_PAIRS", 0)
    assert alignment.offsets_in("ab?d ", "abcd e") == [0, 1, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("cue", "expected"),
    [
        ("dog <b>cat now</i>", "now <b>cat dog</i>"),
        ("<b>dog</i> now", "<b>now dog</i>"),
        ("dog <b>{\\x}cat</i>", "<b>{\\x}cat dog</i>"),
    ],
)
def test_tags_with_different_names_are_not_a_pair(cue: str, expected: str) -> None:
    data = "1\n00:00:01,000 --> 00:00:02,000\n{}\n"
    assert translated_file("srt", data.format(cue).encode(), backwards).decode() == data.format(expected)
