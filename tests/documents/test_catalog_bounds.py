"""Catalogs, labels and choices in unusual shapes: more plural forms, line ends, escapes and misplaced fields."""

import re
from collections import Counter

import pytest
from catalogs import FIELDS, GERMAN, filled
from fake_models import capitals, icu_written
from fake_models import filled as message_filled

from nmt_cli.documents import accelerators
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.po_syntax import read_messages
from nmt_cli.system.errors import DataError


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_plural_with_all_its_forms_counts_as_translated(count: int) -> None:
    """So does one with more forms than the language has."""
    forms = "".join(f'msgstr[{number}] "x{number}"\n' for number in range(count))
    text = f'{GERMAN}msgid "a"\nmsgid_plural "b"\n{forms}'
    assert filled(text) == text


def test_the_first_line_of_a_catalog_decides_its_line_ends() -> None:
    text = 'msgid "a"\nmsgstr ""\n\r\nmsgid "c"\r\nmsgstr "d"\r\n'
    assert filled(text) == text.replace('msgid "a"\nmsgstr ""', '#, fuzzy\nmsgid "a"\nmsgstr "A"')
    text = 'msgid "a"\r\nmsgstr ""\nmsgid "c"\nmsgstr "d"\n'
    assert filled(text) == text.replace('msgid "a"\r\nmsgstr ""', '#, fuzzy\r\nmsgid "a"\r\nmsgstr "A"')


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('msgid "a"\nmsgstr "b"\nmsgctxt "c"\n', 4, "a message without msgstr"),
        ('msgid "a"\nmsgstr "b"\nmsgid_plural "c"\n', 3, "msgid_plural out of place"),
        ('msgid "a"\nmsgid_plural "c"\nmsgid_plural "d"\nmsgstr[0] ""', 3, "msgid_plural out of place"),
        ('msgctxt "a"\nmsgctxt "b"\nmsgid ""\nmsgstr ""', 2, "msgctxt out of place"),
        ('msgctxt "a"\n# c\nmsgid "b"\nmsgstr ""', 2, "a comment within a message"),
        ('msgctxt "a"\nmsgid "b"\nmsgctxt "c"\nmsgstr ""', 3, "msgctxt out of place"),
        ('msgid "a"\ndomain "b"\nmsgstr ""', 2, "domain out of place"),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr[1] ""\nmsgstr[0] ""', 3, "msgstr\\[1\\] out of place"),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\nmsgstr[0] ""', 4, "msgstr\\[0\\] out of place"),
    ],
)
def test_fields_out_of_place_are_refused(text: str, line: int, what: str) -> None:
    with pytest.raises(DataError, match=f"^this is not a message catalog: line {line} has {what}"):
        read_messages(text)


def test_an_escape_is_one_byte_or_stays() -> None:
    """As in msgfmt, only the last eight bits of a number count, and an unknown escape keeps its backslash."""
    text = r'msgid "\501\x0041\x141\q\?\%\e\7\a"' + '\nmsgstr ""\n'
    assert read_messages(text)[0].id.text == "AAA\\q\\?\\%\\e\7\7"


def test_the_first_letter_of_a_label_is_an_initial() -> None:
    label = accelerators.find("_Ab")
    assert label
    assert accelerators.marked("Alles Ada", label, Counter()) == "_Alles Ada"
    assert accelerators.marked("Ende aa", label, Counter()) == "Ende _aa"


def test_new_branches_have_the_layout_of_the_last_one() -> None:
    assert icu_written("{n, plural,\n  one {# dog}\n  other {# dogs}\n}", "ru") == (
        "{n, plural,\n  one {# DOG}\n  few {# DOGS}\n  many {# DOGS}\n  other {# DOGS}\n}"
    )
    assert icu_written("{n,plural,one{# dog}other{# dogs}}", "ru") == (
        "{n,plural,one{# DOG}few{# DOGS}many{# DOGS}other{# DOGS}}"
    )
    assert icu_written("{n, plural, one {{ x } # dog} other {{x} # dogs}}", "ru").count("# DOGS") == 3


def test_the_number_sign_of_a_plural_moves_into_a_select() -> None:
    text = "{n, plural, other {# a {g, select, other {b}}}}"
    assert icu_written(text, "ja") == "{n, plural, other {{g, select, other {{n, number} A B}}}}"
    text = "{g, select, other {# a {h, select, other {b}}}}"
    assert icu_written(text, "ja") == "{g, select, other {{h, select, other {# A B}}}}"


def test_comments_of_a_header_that_mention_fuzzy_stay() -> None:
    header = FIELDS.replace("Language: xx", "Language: ")
    out = filled(f'# fuzzy, is it\n#. fuzzy\n#, fuzzy\n{header}\nmsgid "a"\nmsgstr ""\n', "de")
    assert out.startswith('# fuzzy, is it\n#. fuzzy\nmsgid ""\nmsgstr ""\n')


def test_the_quantity_of_an_item_may_follow_other_attributes() -> None:
    item = '<item tools:x="{}" quantity="{}">%d dog</item>'
    text = f'<resources><plurals name="a">{item.format("one", "one")}{item.format("y", "other")}</plurals></resources>'
    document = FORMATS["android"].read(text, ReadOptions(language="ru"))
    written = message_filled(document, capitals)
    assert re.findall('tools:x="(.*?)" quantity="(.*?)"', written) == [
        ("one", "one"), ("y", "few"), ("y", "many"), ("y", "other"),
    ]  # fmt: skip
