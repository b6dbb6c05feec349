"""Limits of messages with choices and of labels, tested on both sides."""

from collections import Counter

import pytest
from fake_models import filled, icu_written, same, texts_of

from nmt_cli.documents import accelerators, icu
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.kept import Kept
from nmt_cli.documents.messages import is_code, text_parts


def is_message(text: str) -> bool:
    return icu.parse(text, text_parts, None, "ja") is not None


def test_choices_up_to_each_limit_are_messages() -> None:
    plural = "{n, plural, other {#}}"
    assert is_message("{n, plural, other {" * 6 + "dogs" + "}}" * 6)
    assert not is_message("{n, plural, other {" * 7 + "dogs" + "}}" * 7)
    assert is_message(plural * 12)
    assert not is_message(plural * 13)
    branches = " ".join(f"=%d {{{number}}}" % number for number in range(59))
    assert is_message(f"{{n, plural, {branches} other {{dogs}}}}")
    assert not is_message(f"{{n, plural, {branches} =59 {{x}} other {{dogs}}}}")
    assert is_message(plural + "a" * (10_000 - len(plural)))
    assert not is_message(plural + "a" * (10_001 - len(plural)))


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        # The first choice changes, the second does not.
        (
            "{n, plural, one {# a} other {# b}}{m, selectordinal, other {c}}",
            "ru",
            "{n, plural, one {{m, selectordinal, other {{n, number} ac}}} "
            "few {{m, selectordinal, other {{n, number} bc}}} many {{m, selectordinal, other {{n, number} bc}}} "
            "other {{m, selectordinal, other {{n, number} bc}}}}",
        ),
        ("{n, select, a {x} other {y}} {n, plural, other {z}}", "ja", None),
        ("{n, select, one {x} other {y}}", "ja", None),
        ("{n, plural, =0 {x} other {y}}", "ja", None),
        ("{n, plural, one {x} other {y}}", "", None),
        ("{n, plural, one {{m, select, other {# x}}} other {{m, select, other {# y}}}}", "de", None),
    ],
)
def test_a_choice_is_rewritten_only_if_its_categories_change(text: str, language: str, expected: str | None) -> None:
    assert icu_written(text, language, same).replace(" ", "") == (expected or text).replace(" ", "")


def test_one_changed_sentence_changes_the_message() -> None:
    text = "{n, plural, one {# dog} other {# 5}}"
    assert icu_written(text, "de") == "{n, plural, one {# DOG} other {# 5}}"
    # The singular is not used if it lacks the number or an argument of the other form.
    assert icu_written("{n, plural, one {{x} dog} other {{x} # dogs}}", "ru").count("DOGS") == 4
    assert icu_written("{n, plural, one {{x} # dog} other {{x} dogs}}", "ru").count("DOGS") == 3
    assert icu_written("{n, plural, one {dog} other {{x, select, other {dogs}}}}", "ru").count("DOGS") == 4
    assert icu_written("{n, selectordinal, one {a #} other {b #}}", "fr") == "{n, selectordinal, one {A #} other {B #}}"


def test_the_number_sign_outside_of_a_plural_is_text() -> None:
    assert icu_written("{g, select, other {# a}}", "ja") == "{g, select, other {# A}}"
    assert icu_written("# {n, plural, offset:1 other {a}}", "ja") == "{n, plural, offset:1 other {'#' A}}"
    assert icu_written("{n, plural, offset:1 other {a {g, select, other {b}}}}", "ja").startswith(
        "{n, plural, offset:1 "
    )


@pytest.mark.parametrize(
    ("label", "text", "expected"),
    [
        ("_Quit", "Schnell quer", "Schnell _quer"),
        ("E_xit", "開く", "開く(_X)"),
        ("_Open:", "開く:", "開く(_O):"),
        ("_Open", "開く。", "開く(_O)。"),
        ("_Open…", "開く…", "開く(_O)…"),
        ("_Open", "開く.... ", "開く.(_O)... "),
        ("_Open", "開く ", "開く(_O) "),
        ("_Ok", "Rock Oh", "Rock _Oh"),
        ("_Zoom", "5 <i>ab</i>", "5 <i>_ab</i>"),
    ],
)
def test_where_the_mark_of_a_label_is_put(label: str, text: str, expected: str) -> None:
    found = accelerators.find(label)
    assert found
    used = Counter[str]()
    assert accelerators.marked(text, found, used) == expected
    assert sum(used.values()) == 1
    assert used[expected[expected.index("_") + 1].lower()] == 1, "later labels must know that the letter is used"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("F5_key", False), ("Tom_b", True), ("TOM_B", False), ("5_a", False), ("_Save a file.", False),
        ("_Save a file..", True), ("Save__a", False), ("Save &&a", False), ("_A &eacute;", False),
        ("\\_A", False), ("_a", False), ("&_A", False), ("A _", False), ("_A or _B", False), ("A&B _C", False),
    ],
)  # fmt: skip
def test_labels_are_recognized(text: str, found: bool) -> None:
    assert bool(accelerators.find(text)) == found


def test_kept_phrases_beside_placeholders_and_html() -> None:
    def texts(source: str, *phrases: str, kind: str = "html", protect: bool = True) -> list[str]:
        options = ReadOptions(protect, kept=Kept(phrases))
        document = FORMATS[kind].read(source, options)
        shown = texts_of(document.parts)
        assert filled(document, same).count("%s") == (2 if kind == "po" else 1) * source.count("%s")
        return shown

    assert texts("a dog %s x", "dog %s") == ["a dog x"]
    assert texts("a dog %s x", "dog") == ["a x"]
    assert texts("see Tom's &amp; Co now", "Tom's & Co") == ["see now"]
    po = 'msgid "the (big) Fox %s"\nmsgstr ""\n'
    assert texts(po, "Fox", kind="po", protect=False) == ["the (big) %s"]
    assert texts(po, "Fox", kind="po") == ["the big"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("#FFF", True), ("#ff00aa80", True), ("#ffggff", False), ("#12", False), ("menu.File", False),
        ("my.class.Name", True), (":year", True), (": year", False), ("./a/b", True), ("../a.png", True),
        ("@scope/name.js", True), ("/", False), ("file_name", True), ("file name", False), (" file_name ", True),
        ("%H:%M", True), ("%H o", False), ("50%", False), ("a-1", True), ("a-b", False), ("File_name", False),
        ("menu.file open", False), ("fileName", False),
    ],
)  # fmt: skip
def test_values_that_are_not_text(text: str, code: bool) -> None:
    assert is_code(text) == code
