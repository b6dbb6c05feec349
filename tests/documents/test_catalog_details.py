"""Gettext catalogs: widths of lines, escapes, flags and header fields, exact to the last character."""

import pytest
from catalogs import FIELDS, GERMAN, TEMPLATE, filled
from fake_models import Model, capitals, same
from test_subtitles import cue

from nmt_cli.documents import plurals
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.po_header import locale_of


def target(text: str, model: Model = same) -> str:
    """Return the msgstr of a message with this text."""
    return filled(f'msgid "{text}"\nmsgstr ""\n', model=model).partition("msgstr ")[2]


def test_lines_have_at_most_79_columns() -> None:
    begin = len('msgstr ""')
    fits, longer = "a " * 34 + "b" * (79 - begin - 68), "a " * 34 + "b" * (80 - begin - 68)
    assert target(fits) == f'"{fits}"\n'
    assert target(longer) == f'""\n"{longer}"\n'
    words = "x" * 10 + " "
    for size, rows in ((11, 2), (12, 2)):
        text = words * 6 + "y" * size + " z" * 9
        lines = target(text).split("\n")[1:-1]
        assert len(lines) == rows
        assert lines[0].endswith('y "' if size == 11 else 'x "')
        assert max(map(len, lines)) <= 80, "a space may follow the last column"
    assert target("a\\n") == '"A\\n"\n'.replace("A", "a")
    assert target("a\\nb") == '""\n"a\\n"\n"b"\n'


def test_control_characters_are_escaped() -> None:
    model: Model = lambda _: Aligned('a\x01\x7f\x1b"\\b', [])  # noqa: E731
    assert target("dog", model) == '"a\\001\\177\\033\\"\\\\b"\n'
    assert target("a\\tb\\vc\\x41\\101\\q\\\\", capitals).startswith('"A')


@pytest.mark.parametrize(
    ("comments", "expected"),
    [
        ("#= fuzzy\n", "#= fuzzy\n"),
        ("#, fuzzy, c-format\n", "#, fuzzy, c-format\n"),
        ("#, c-format\n#, no-wrap\n", "#, c-format, fuzzy\n#, no-wrap\n"),
        ("#. note\n#: a.c\n", "#. note\n#: a.c\n#, fuzzy\n"),
        ('#| msgid "o"\n', '#, fuzzy\n#| msgid "o"\n'),
        ('# x\n#| msgctxt "o"\n#| msgid "o"\n', '# x\n#, fuzzy\n#| msgctxt "o"\n#| msgid "o"\n'),
    ],
)
@pytest.mark.parametrize("context", ["", 'msgctxt "c"\n'])
def test_the_fuzzy_flag_is_added_in_its_usual_position(comments: str, expected: str, context: str) -> None:
    text = f'{context}msgid "a"\nmsgstr ""\n'
    before = f'{GERMAN}\nmsgid "x"\nmsgstr "y"\n\n'
    assert filled(before + comments + text) == before + expected + text.replace('r ""', 'r "A"')


@pytest.mark.parametrize(
    ("comments", "expected"),
    [
        ("#, fuzzy\n", ""),
        ("# a\n#, fuzzy\n# b\n", "# a\n# b\n"),
        ("#, c-format, fuzzy\n", "#, c-format\n"),
        ("#, fuzzy, c-format\n", "#, c-format\n"),
        ("#, c-format\n", "#, c-format\n"),
    ],
)
def test_a_complete_header_is_not_fuzzy(comments: str, expected: str) -> None:
    header = FIELDS.replace("Language: xx", "Language: ")
    out = filled(f'{comments}{header}\nmsgid "a"\nmsgstr ""\n', "de")
    assert out.startswith(f'{expected}msgid ""\nmsgstr ""\n"Project')
    left = filled(f'{comments}{header.replace("a 1", "PACKAGE VERSION")}\nmsgid "a"\nmsgstr ""\n', "de")
    assert left.startswith(f'{comments}msgid ""')
    unchanged = filled(f'{comments}{FIELDS}\nmsgid "a"\nmsgstr ""\n', "de")
    assert unchanged.startswith(comments), "no header field was filled"


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("Language: LL", "Language: de"),
        ("Language: LANGUAGE", "Language: de"),
        ("Language:", "Language: de"),
        ("Language: \\t", "Language: \\t"),
        ("Language-Team: LL", "Language-Team: LL"),
        ("X-Language: ", "X-Language: "),
        ("Content-Transfer-Encoding: ENCODING", "Content-Transfer-Encoding: 8bit"),
        ("Content-Transfer-Encoding:", "Content-Transfer-Encoding: 8bit"),
        ("Content-Transfer-Encoding: 7bit", "Content-Transfer-Encoding: 7bit"),
        ("content-type: text/plain; charset=latin-1; x", "content-type: text/plain; charset=UTF-8; x"),
        ("Content-Type: text/plain; charset=Utf-8", "Content-Type: text/plain; charset=Utf-8"),
        ("Plural-Forms: nplurals=x", "Plural-Forms: nplurals=2; plural=(n != 1);"),
        ("Plural-Forms:", "Plural-Forms: nplurals=2; plural=(n != 1);"),
    ],
)
def test_fields_that_a_template_leaves_open(field: str, expected: str) -> None:
    text = 'msgid ""\nmsgstr "A: b\\n{}\\nC: d\\n"\n\nmsgid "a"\nmsgstr "{}"\n'
    out = filled(text.format(field, ""), "de")
    assert out == text.format(expected, "A").replace('msgid "a"', '#, fuzzy\nmsgid "a"')
    assert "Plural-Forms" not in filled(text.format("X: y", ""), "de"), "no message has plurals"


def test_values_that_stay_open_keep_the_header_fuzzy() -> None:
    out = filled(TEMPLATE, "tlh")
    assert '\n#, fuzzy\nmsgid ""\n' in out
    assert '"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"' in out
    assert '"Language: tlh\\n"' in out


@pytest.mark.parametrize(
    ("code", "locale"),
    [
        ("de", "de"), ("deu", "de"), ("deu_Latn", "de"), ("pt-BR", "pt_BR"), ("pt_BR", "pt_BR"), ("zh-Hans", "zh_Hans"),
        ("srp_Cyrl", "sr_Cyrl"), ("x-y-z", ""), ("", ""), ("de-DE-1996", ""), ("tlh", "tlh"),
    ],
)  # fmt: skip
def test_codes_of_languages_in_catalogs(code: str, locale: str) -> None:
    assert locale_of(code) == locale


def test_numbers_of_plural_forms() -> None:
    for count in (1, 10):
        rule = plurals.parse(f"nplurals={count}; plural=0;")
        assert rule == plurals.PluralForms(count, 0, False)
    assert plurals.parse("nplurals = 2 ; plural = n != 1 ;") == plurals.PluralForms(2, 0, True)
    assert plurals.parse("nplurals=2; plural=n > 1;") == plurals.PluralForms(2, 0, False)
    assert plurals.parse("nplurals=3; plural=n==1 ? 2 : 0;") == plurals.PluralForms(3, 2, True)
    assert plurals.parse("nplurals=2; plural=n==1000 ? 2 : 0;") == plurals.PluralForms(2, 0, False), (
        "there is no form 2"
    )
    assert plurals.parse("nplurals=2; plural=n==1001 ? 2 : n!=1;") == plurals.PluralForms(2, 0, True)
    for field in ("nplurals=2;", "nplurals=2", "nplurals=2; plural"):
        assert plurals.parse(field) == plurals.PluralForms(2, 0, False), "there is no expression"
    assert plurals.parse("plural=n != 1;") is None
    assert plurals.field_of("pt_BR") == "nplurals=2; plural=(n > 1);"
    assert plurals.field_of("pt_PT") == plurals.field_of("pt") == "nplurals=2; plural=(n != 1);"
    assert plurals.field_of("ja_JP") == "nplurals=1; plural=0;"
    assert plurals.field_of("tlh") == ""


def test_any_form_may_be_the_singular() -> None:
    head = 'msgid ""\nmsgstr "Plural-Forms: nplurals=3; plural=n==1 ? 2 : n==2 ? 1 : 0;\\n"\n\n'
    out = filled(head + 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n', "xx")
    assert out.endswith('msgstr[0] "B"\nmsgstr[1] "B"\nmsgstr[2] "A"\n')


def test_lines_of_subtitles_have_at_most_42_characters_by_default() -> None:
    for length, lines in ((42, 1), (43, 2)):
        document = FORMATS["srt"].read(cue(9, "a " * 10 + "b" * (length - 20)), ReadOptions())
        for segment in document.segments:
            segment.result = [segment.text.upper()]
        assert len(document.to_bytes().decode().strip().split("\n")) == 2 + lines
