"""ICU messages: each branch is a whole sentence, in the plural categories of the target language."""

import pytest
from fake_models import icu_written, linked, same
from growth import is_linear

from nmt_cli.documents import icu
from nmt_cli.documents.messages import text_parts


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        # The text around a choice moves into its branches.
        (
            "See {n, plural, =0 {none} one {# dog} other {# dogs}} in {place}!",
            "de",
            "{n, plural, =0 {SEE NONE IN {place}!} one {SEE # DOG IN {place}!} other {SEE # DOGS IN {place}!}}",
        ),
        (
            "{g, select, male {He} other {They}} saw {n,plural,one{a dog}other{# dogs}}",
            "de",
            "{g, select, male {{n,plural,one{HE SAW A DOG}other{HE SAW # DOGS}}} "
            "other {{n,plural,one{THEY SAW A DOG}other{THEY SAW # DOGS}}}}",
        ),
        # White space between the branches stays.
        ("{n, plural,\n  one {a dog}\n  other {dogs}\n}", "de", "{n, plural,\n  one {A DOG}\n  other {DOGS}\n}"),
        # Categories of the target language. A singular without the number does not suit 21 and 31.
        (
            "{n, plural, one {# dog} other {# dogs}}",
            "ru",
            "{n, plural, one {# DOG} few {# DOGS} many {# DOGS} other {# DOGS}}",
        ),
        (
            "{n, plural, one {a dog} other {# dogs}}",
            "ru",
            "{n, plural, one {# DOGS} few {# DOGS} many {# DOGS} other {# DOGS}}",
        ),
        ("{n, plural, =1 {a dog} one {a dog} other {# dogs}}", "ja", "{n, plural, =1 {A DOG} other {# DOGS}}"),
        ("{n, selectordinal, one {#st} two {#nd} few {#rd} other {#th}}", "de", "{n, selectordinal, other {#TH}}"),
        (
            "{n, selectordinal, other {number #}}",
            "en",
            "{n, selectordinal, one {NUMBER #} two {NUMBER #} few {NUMBER #} other {NUMBER #}}",
        ),
        ("{n, plural, one {dog} other {dogs}}", "unknown", "{n, plural, one {DOG} other {DOGS}}"),
        # The number sign keeps its meaning where text moves.
        (
            "{n, plural, other {# of {m, plural, other {# dogs}}}}",
            "ja",
            "{n, plural, other {{m, plural, other {{n, number} OF # DOGS}}}}",
        ),
        ("No. #5: {n, plural, other {# dogs}}", "ja", "{n, plural, other {NO. '#'5: # DOGS}}"),
        ("{n, plural, offset:1 =0 {no} other {a and # b}}", "ja", "{n, plural, offset:1 =0 {NO} other {A AND # B}}"),
        # Apostrophes and quoted text.
        ("{n, plural, other {it''s '{n}' and # dogs}}", "ja", "{n, plural, other {IT''S '{n}' AND # DOGS}}"),
        ("{n, plural, other {it's # dogs}}", "ja", "{n, plural, other {IT'S # DOGS}}"),
        ("{n, plural, other {<b>#</b> it''s}}", "ja", "{n, plural, other {<b>#</b> IT''S}}"),
        ("{n, plural, other {{x, date, short} and {y}}}", "ja", "{n, plural, other {{x, date, short} AND {y}}}"),
    ],
)  # fmt: skip
def test_choices(text: str, language: str, expected: str) -> None:
    assert icu_written(text, language) == expected


def test_no_apostrophe_of_a_translation_begins_quoted_text() -> None:
    model = linked({"Hans'": "dogs"})
    assert icu_written("{n, plural, other {# dogs}}", "ja", model) == "{n, plural, other {# Hans\u2019}}"
    assert icu_written("{n, plural, other {it''s # dogs}}", "ja", model) == "{n, plural, other {# Hans''}}"


def test_the_argument_follows_its_word() -> None:
    model = linked({"Hunde": "dogs", "sieht": "sees", "Anna": "Anna"})
    text = "{n, plural, other {Anna sees # dogs}}"
    assert icu_written(text, "ja", model) == "{n, plural, other {# Hunde sieht Anna}}"


@pytest.mark.parametrize("text", ["a {n, plural, one {x} other {it''s #}} b", "{n, plural, one {# a} other {# b}} {x}"])
def test_a_message_whose_text_stays_is_kept(text: str) -> None:
    assert icu_written(text, "de", same) == text


@pytest.mark.parametrize(
    "text",
    [
        "no choice {n}",
        "{n, plural, one {a}}",  # without "other"
        "{n, plural, one {a} other {b}",
        "{n, plural, other {b}}}",
        "{n, plural, one a other {b}}",
        "{n, plural, other {" * 30 + "}}" * 30,
        "{n, plural, other {b}} " * 20,
        "{n, plural, one {a} two {b} few {c} other {d}} " * 6,  # too many sentences
        "{n, plural, offset:1 other {# of {m, plural, other {# dogs}}}}",  # nothing can express the number minus 1
        "{n, plural, other {b}}" + "a" * 20_000,
    ],
)
def test_invalid_and_huge_texts_are_not_messages(text: str) -> None:
    assert icu.parse(text, text_parts, None, "de") is None


@pytest.mark.parametrize("unit", ["{", "{n, plural, ", "{n, plural, other {", "'", "''{", "{a,{", "<", "other {#} "])
def test_time_grows_with_the_length(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icu, "_LONGEST", 10**9)
    assert is_linear(lambda text: icu.parse(text, text_parts, None, "de"), unit, "{n, plural, ")
