"""Plural forms and headers of gettext catalogs."""

import re
import shutil
import time
from pathlib import Path

import pytest
from catalogs import FIELDS, GERMAN, TEMPLATE, filled, msgfmt
from fake_models import same

from nmt_cli.documents import plurals
from nmt_cli.documents.po import Catalog
from nmt_cli.system.errors import DataError


@pytest.mark.parametrize("number", ["0", "11", "3000000", "9" * 5000, "0000000000003"])
def test_more_plural_forms_than_any_language_has_are_refused(number: str) -> None:
    text = f'msgid ""\nmsgstr "Plural-Forms: nplurals={number}; plural=0;\\n"\n\nmsgid "a"\nmsgid_plural "b"\n'
    with pytest.raises(DataError, match=r"Plural-Forms must be from 1 to 10$") as error:
        Catalog(text + 'msgstr[0] ""\n', None, "de")
    assert len(str(error.value)) < 150


@pytest.mark.parametrize(
    "expression",
    [
        *("n" * 5000, "(" * 500 + "n" + ")" * 500, "!" * 900 + "n", "n" + "*n" * 490, "9" * 900, "n==" * 300 + "n"),
        *("n?" * 300 + "n" + ":n" * 300, "n/0", "n%(n-n)", "", "1?", "__import__('os')", "n if n else n", "n**n", "-n"),
        *("n<<9", "\uff12", "n==1 ? 0 : 2"),
    ],
)
def test_hostile_plural_expressions_are_harmless(expression: str) -> None:
    start = time.process_time()
    rule = plurals.parse(f"nplurals=2; plural={expression};")
    assert time.process_time() - start < 2
    assert rule is not None
    assert not rule.singular_only


FILES, ONE = ("%d file", "%d files"), ("One file", "%d files")


@pytest.mark.parametrize(
    ("language", "one", "number", "forms"),
    [
        ("de", ONE, 2, "10"),
        ("fr", ONE, 2, "00"),  # 0 takes the singular, too
        ("fr", FILES, 2, "10"),
        ("ru", ONE, 3, "000"),  # 21 takes the form of 1
        ("ru", FILES, 3, "100"),
        ("cs", ONE, 3, "100"),
        ("pl", ONE, 3, "100"),
        ("lv", ONE, 3, "000"),
        ("sl", ONE, 4, "0000"),
        ("ar", ONE, 6, "010000"),
        ("ga", ONE, 5, "10000"),
        ("ja", FILES, 1, "0"),
        ("zh-Hans", ONE, 1, "0"),
        ("deu_Latn", ONE, 2, "10"),
        ("pt_BR", ONE, 2, "00"),
        ("pt", ONE, 2, "10"),
        ("xx", ONE, 2, "10"),
    ],
)
def test_each_form_has_the_placeholders_that_its_numbers_need(
    tmp_path: Path, language: str, one: tuple[str, str], number: int, forms: str
) -> None:
    """The singular may spell out the number only if no other number takes that form."""
    field = '"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"\n' if language != "xx" else '"X: \\n"\n'
    message = f'#, c-format\nmsgid "{one[0]}"\nmsgid_plural "{one[1]}"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    written = filled(f"{FIELDS}{field}\n{message}", language, same)
    found = re.findall(r'^msgstr\[\d\] "(.*)"', written, re.MULTILINE)
    assert found == [one[0] if form == "1" else one[1] for form in forms]
    assert len(found) == number
    if language != "xx" and shutil.which("msgfmt"):
        assert msgfmt(written, tmp_path / "a.po") == ""


def test_every_rule_uses_all_its_forms() -> None:
    for count, expression, languages in plurals.RULES:
        rule = plurals.parse(f"nplurals={count}; plural={expression};")
        function = plurals.gettext.c2py(expression)
        seen = {function(number) for number in range(1001)}
        assert (rule and rule.count, seen) == (count, set(range(count))), languages
    named = " ".join(languages for *_, languages in plurals.RULES).split()
    assert len(named) == len(set(named))


# Forms of 0, 1, 2, 3, 5, 6, 11, 21, 22, 100, 101, 102, 111 from the examples of CLDR's table of plurals.
@pytest.mark.parametrize(
    ("languages", "forms"),
    [
        ("de en nl sv tr", "1011111111111"),
        ("fr hi pt_BR", "0011111111111"),
        ("ja zh ko", "0000000000000"),
        ("ru uk sr hr", "2011222012012"),
        ("pl", "2011222212212"),
        ("cs sk", "2011222222222"),
        ("lt", "2011112012012"),
        ("ro", "1011111222111"),
        ("sl", "3012333333013"),
        ("ar", "0123334445554"),
        ("is mk", "1011111011011"),
        ("cy", "0123545555555"),
        ("ga", "4012224444444"),
        ("mt", "2012223444443"),
    ],
)
def test_the_rules_of_languages(languages: str, forms: str) -> None:
    numbers = 0, 1, 2, 3, 5, 6, 11, 21, 22, 100, 101, 102, 111
    for language in languages.split():
        rule = plurals.gettext.c2py(plurals.field_of(language).partition("plural=")[2].strip(";"))
        assert "".join(str(rule(number)) for number in numbers) == forms, language


def test_plural_forms_written_by_a_person_stay() -> None:
    text = GERMAN + 'msgid "a"\nmsgid_plural "b"\nmsgstr[0]   "eins"\nmsgstr[1] ""\n'
    assert filled(text) == text.replace('msgid "a"', '#, fuzzy\nmsgid "a"').replace('[1] ""', '[1] "B"')
    text = (
        GERMAN.replace("nplurals=2", "nplurals=3") + 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] "eins"\nmsgstr[1] "zwei"\n'
    )
    assert filled(text) == text.replace('msgid "a"', '#, fuzzy\nmsgid "a"').replace('"zwei"', '"zwei"\nmsgstr[2] "B"')
    text = (
        GERMAN.replace("nplurals=2", "nplurals=1")
        + 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\nmsgstr[1] ""\nmsgstr[2] "x"\n'
    )
    assert re.findall(r"msgstr\[.*", filled(text)) == ['msgstr[0] "B"', 'msgstr[1] "B"', 'msgstr[2] "x"']
    alone = 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] "x"\n'
    assert filled(alone) == alone, "the number of forms is unknown"


@pytest.mark.parametrize("new_line", ["\n", "\r\n"])
def test_open_fields_of_a_template_are_filled(new_line: str) -> None:
    expected = TEMPLATE.replace("#, fuzzy\n", "").replace("Language: ", "Language: fr").replace("CHARSET", "UTF-8")
    expected = expected.replace("ENCODING", "8bit").replace("=INTEGER; plural=EXPRESSION", "=2; plural=(n > 1)")
    expected = (
        expected.replace('msgid "a"', '#, fuzzy\nmsgid "a"').replace('] ""', '] "B"').replace('[0] "B"', '[0] "A"')
    )
    assert filled(TEMPLATE.replace("\n", new_line), "fr") == expected.replace("\n", new_line)
    assert '\n#, fuzzy\nmsgid ""\n' in filled(TEMPLATE.replace("a 1", "PACKAGE VERSION"), "fr"), (
        "a value of the template remains"
    )
    assert '"Language: \\n"' in filled(TEMPLATE, "no code of a language")
    assert "INTEGER" in filled(TEMPLATE, "xx")
    assert '"Language: pt_BR\\n"' in filled(TEMPLATE, "pt-BR")
    assert '"Language: de\\n"' in filled(TEMPLATE, "deu_Latn")


@pytest.mark.parametrize(
    ("field", "written"),
    [
        ('"Language: en\\n"', '"Language: en\\n"'),
        ('"Language:\\n"', '"Language: ru\\n"'),
        ('"Content-Type: text/plain; charset=ISO-8859-1\\n"', '"Content-Type: text/plain; charset=UTF-8\\n"'),
        ('"Content-Type: text/plain; charset=utf-8\\n"', '"Content-Type: text/plain; charset=utf-8\\n"'),
        (
            '"Content-Type: text/plain;"\n" char"\n"set=CHA"\n"RSET\\nX: \\n"',
            '"Content-Type: text/plain;"\n" char"\n"set=UTF-8\\nX: \\n"',
        ),
        ('"Plural-Forms: nplurals=2; plural=0;\\n"', '"Plural-Forms: nplurals=2; plural=0;\\n"'),
        ('"Plural-Forms: nplurals=INTEGER; "\n"plural=EXPRESSION;\\n" "X: y\\n"', '"Plural-Forms: RULE\\n" "X: y\\n"'),
        ('"Plural-Forms: \\nLanguage: \\n"', '"Plural-Forms: RULE\\nLanguage: ru\\n"'),
        ('"X: y\\n"', '"X: y\\n"\n"Plural-Forms: RULE\\n"'),
        ('"X: y"', '"X: y"\n"\\nPlural-Forms: RULE\\n"'),
        ('""', '""'),
    ],
)
def test_fields_of_a_header(field: str, written: str) -> None:
    rule = plurals.field_of("ru")
    several = "Plural-Forms" in field + written
    message = 'msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n' if several else 'msgid "a"\nmsgstr ""\n'
    found = filled(f'msgid ""\nmsgstr {field}\n\n{message}', "ru")
    assert found.split("\n\n")[0] == f'msgid ""\nmsgstr {written.replace("RULE", rule)}'
    if several:
        assert len(re.findall(r"^msgstr\[", found, re.MULTILINE)) == (2 if "plural=0" in field else 3)


@pytest.mark.parametrize("header", ["", GERMAN])
def test_a_message_with_a_context_is_not_the_header(header: str) -> None:
    text = (
        'msgctxt "a"\nmsgid ""\nmsgstr "Language: \\nPlural-Forms: nplurals=1; plural=0;\\n"\n\n'
        f'{header}#, fuzzy\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    )
    assert filled(text, "de") == text.replace('[0] ""', '[0] "A"').replace('[1] ""', '[1] "B"')


def test_a_complete_catalog_keeps_its_header() -> None:
    text = TEMPLATE.replace('] ""', '] "x"')
    assert filled(text, "fr") == text
