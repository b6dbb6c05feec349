"""Catalogues of gettext: what stays as it stands, plural forms, headers, and hostile files; msgfmt is the judge."""

import builtins
import contextlib
import io
import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_models import same
from test_documents import translated
from tiny_model import content, memory_file

from nmt_cli.documents import plurals
from nmt_cli.documents import translate as module
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.po import Catalogue
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import DataError
from nmt_cli.translation.translate import TranslateOptions

needs_gettext = pytest.mark.skipif(not shutil.which("msgfmt"), reason="gettext is not installed")
FIELDS = r"""msgid ""
msgstr ""
"Project-Id-Version: a 1\n"
"PO-Revision-Date: 2024-01-01 00:00+0000\n"
"Last-Translator: A <a@example.org>\n"
"Language-Team: B <b@example.org>\n"
"Language: xx\n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Content-Transfer-Encoding: 8bit\n"
"""
GERMAN = FIELDS + r'"Plural-Forms: nplurals=2; plural=n != 1;\n"' + "\n\n"


def shout(text: str) -> Aligned:
    """A model that says the source in capitals."""
    return Aligned(text.upper(), same(text).links)


def filled(text: str, language: str = "", model: Any = shout) -> str:
    catalogue = Catalogue(text, Protection(strict=True), language)
    translated(catalogue.parts, model)
    return catalogue.written()


def msgfmt(text: str, path: Path) -> str:
    """Return the errors of msgfmt, fuzzy messages included."""
    path.write_bytes(text.encode())
    done = subprocess.run(["msgfmt", "-c", "-f", "-o", os.devnull, path], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


@contextlib.contextmanager
def nothing_opened() -> Iterator[None]:
    """Notice if a file is opened or looked at."""
    seen = list[Any]()

    def refuse(*arguments: Any, **_options: Any) -> Any:
        seen.append(arguments)
        raise FileNotFoundError

    with pytest.MonkeyPatch.context() as patch:
        for where, name in (
            (builtins, "open"),
            (io, "open"),
            (os, "open"),
            (os, "stat"),
            (os, "lstat"),
            (os, "listdir"),
        ):
            patch.setattr(where, name, refuse)
        yield
    assert not seen


# ---- files that mean harm


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_text_that_is_a_path_is_not_opened(tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.po"
    secret.write_text('msgid "the secret"\nmsgstr ""\n')
    monkeypatch.chdir(tmp_path)
    for path in (str(secret), "secret.po"):
        with nothing_opened(), pytest.raises(DataError, match="no message catalogue: line 1"):
            Catalogue(path + end, None)


@pytest.mark.parametrize("number", ["0", "11", "3000000", "9" * 5000, "0000000000003"])
def test_more_plural_forms_than_any_language_has_are_refused(number: str) -> None:
    text = f'msgid ""\nmsgstr "Plural-Forms: nplurals={number}; plural=0;\\n"\n\nmsgid "a"\nmsgid_plural "b"\n'
    with pytest.raises(DataError, match="Plural-Forms from 1 to 10 forms") as error:
        Catalogue(text + 'msgstr[0] ""\n', None, "de")
    assert len(str(error.value)) < 150


@pytest.mark.parametrize("index", ["1", "3000000", "9" * 5000, "-1", "n"])
def test_a_form_out_of_its_turn_is_refused(index: str) -> None:
    with pytest.raises(DataError, match="no message catalogue: line 3 has ") as error:
        Catalogue(f'msgid "a"\nmsgid_plural "b"\nmsgstr[{index}] "c"\n', None)
    assert len(str(error.value)) < 150


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("<html>", 1),
        ('msgid "a"\nmsgid "b"\nmsgstr ""', 2),
        ('msgid "a"\n# c\nmsgstr ""', 2),
        ('msgid "a"\n\n#~ msgstr ""', 3),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n# c\nmsgstr[1] ""', 5),
        ('msgid "a"\nmsgstr\n', 2),
        ('msgid "a"\nmsgstr ""\nmsgstr ""', 3),
        ('msgid "a"\nmsgid_plural "b"\nmsgstr ""', 3),
        ('msgid "a"\nmsgstr[0] ""', 2),
        ('msgid "a"\n\n', 3),
        ('msgctxt "a"\nmsgstr ""', 2),
        ('\n"a"\nmsgid "a"\nmsgstr ""', 2),
        ('msgid "a\nb"\nmsgstr ""', 1),
        ('msgid "a"\nmsgstr ""\n# c\n"d"\n', 4),
        ('msgid "a"\u2028msgstr ""', 1),
        ('msgid_plural "a"\nmsgstr ""', 1),
        ('msgid "\\303"\nmsgstr ""', 1),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(DataError, match=f"no message catalogue: line {line} has "):
        Catalogue(text, None)


@pytest.mark.parametrize(
    "expression",
    [
        *("n" * 5000, "(" * 500 + "n" + ")" * 500, "!" * 900 + "n", "n" + "*n" * 490, "9" * 900, "n==" * 300 + "n"),
        *("n?" * 300 + "n" + ":n" * 300, "n/0", "n%(n-n)", "", "1?", "__import__('os')", "n if n else n", "n**n", "-n"),
        *("n<<9", "\uff12", "n==1 ? 0 : 2"),
    ],
)
def test_a_plural_expression_that_means_harm_does_none(expression: str) -> None:
    begin = time.process_time()
    rule = plurals.parse(f"nplurals=2; plural={expression};")
    assert time.process_time() - begin < 2
    assert rule is not None
    assert not rule.alone


@pytest.mark.parametrize(
    "begin", ["", 'msgid "', 'msgid ""\nmsgstr "Plural-Forms: ', 'msgid ""\nmsgstr "Content-Type: ']
)
def test_the_time_of_a_catalogue_grows_with_its_length(begin: str) -> None:
    def seconds(text: str) -> float:
        start = time.process_time()
        with contextlib.suppress(DataError):
            filled(text, "de", same)
        return time.process_time() - start

    end = '"\nmsgid "x"\nmsgstr ""\n' if "msgstr" in begin else '"\nmsgstr ""\n' if begin else ""
    several = ["# c\n", "#, a\n", "#~ msgid\n", 'msgid"a"msgstr""', '"', '"\\', "[0", "msgstr[", "\r", "\\\n"]
    inside = ["a\\n", '"\n"', "\\\\", '\\"', "nplurals", "plural =", "\\303\\244", "charset=", "; ", "Language:\\n"]
    for unit in inside if begin else several:
        short = seconds(begin + unit * (8_000 // len(unit)) + end)
        assert seconds(begin + unit * (32_000 // len(unit)) + end) < max(0.5, 8 * short), unit


# ---- what stays


UNTOUCHED = [
    'msgid   "done"\n\n\n\tmsgstr "fertig"  \n',
    'msgid "a long message that is not wrapped, as some tools write it" msgstr "' + "lang " * 40 + '"\n',
    'msgid ""\n"wrapped "\n"early"\nmsgstr ""\n"früh "\n"getrennt"\n',
    '#~| msgid "older"\n#~ msgid "gone"\n#~ msgstr "weg"\n',
    '#, fuzzy\n#~ msgid "gone"\n#~ msgstr "weg"\n# of another\n#~msgid "g" msgstr "w"\n',
    '# c:\\dir\n#. "note"\n#: a.c:1 b.c:2\n#, c-format, no-wrap\n#| msgid "o"\nmsgctxt "x"\nmsgid "%d"\nmsgstr "%d"\n',
    'msgid "line\u2028and\u0085more\x0b\x0c\x1c\r."\nmsgstr "Zeile\u2028und\u0085mehr\x0b\x0c\x1c\r."\n',
    'msgid "\\303\\244\\x41\\a\\\\ \\"\\\n."\nmsgstr "\\344"\n'.replace("\\344", "ä"),
    'msgid "one"\nmsgid_plural "%d"\nmsgstr [ 0 ] "eins"\nmsgstr[01] "%d"\n',
    "#\n#~ \n#~ # a comment\n",
]


@pytest.mark.parametrize("new_line", ["\n", "\r\n"])
def test_all_but_the_messages_to_fill_comes_out_byte_for_byte(new_line: str) -> None:
    header = GERMAN.replace("\n", new_line)
    blocks = [
        block.replace("\\\n.", "." if new_line == "\r\n" else "\\\n.").replace("\n", new_line) for block in UNTOUCHED
    ]
    text = header + new_line.join(blocks)
    assert filled(text) == text
    empty, new = f'msgid "the dog"{new_line}msgstr ""', f'#, fuzzy{new_line}msgid "the dog"{new_line}msgstr "THE DOG"'
    for place in range(len(blocks) + 1):
        several = [*blocks[:place], empty + new_line, *blocks[place:]]
        assert filled(header + new_line.join(several)) == (header + new_line.join(several)).replace(empty, new)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('msgid "a"\nmsgstr ""', '#, fuzzy\nmsgid "a"\nmsgstr "A"'),
        (
            'msgid "a" msgstr ""msgid"b"\n\tmsgstr ""',
            '#, fuzzy\nmsgid "a" msgstr "A"\n#, fuzzy\nmsgid"b"\n\tmsgstr "B"',
        ),
        ('  # c\n  msgid "a"\n  msgstr ""\n', '  # c\n#, fuzzy\n  msgid "a"\n  msgstr "A"\n'),
        ('#, fuzzy\n#| msgid "o"\nmsgid "a"\nmsgstr "x"\n', '#, fuzzy\n#| msgid "o"\nmsgid "a"\nmsgstr "A"\n'),
        ('#| msgid "o"\n#| "p"\nmsgid "a"\nmsgstr ""\n', '#, fuzzy\n#| msgid "o"\n#| "p"\nmsgid "a"\nmsgstr "A"\n'),
        ('#,c-format\r\n#: f\r\nmsgid "a"\r\nmsgstr ""', '#,c-format, fuzzy\r\n#: f\r\nmsgid "a"\r\nmsgstr "A"'),
        ('#,\nmsgid "a"\nmsgstr ""', '#, fuzzy\nmsgid "a"\nmsgstr "A"'),
        ('#, unfuzzy\nmsgid "a"\nmsgstr ""', '#, unfuzzy, fuzzy\nmsgid "a"\nmsgstr "A"'),
        ('#, fuzzy\n#~ msgid "o"\n#~ msgstr "p"\nmsgid "a"\nmsgstr "b"\n', None),
        ('msgctxt "a"\nmsgid ""\nmsgstr ""\n', None),
        ('domain "a"\nmsgid "a"\nmsgstr ""\n', 'domain "a"\n#, fuzzy\nmsgid "a"\nmsgstr "A"\n'),
        ('msgid "a\u2028\u0085\x0b\x0cb"\nmsgstr ""', '#, fuzzy\nmsgid "a\u2028\u0085\x0b\x0cb"\nmsgstr "A B"'),
        (
            'msgid ""\n"\\303\\244 \\x62\\\n "\n"\\"c\\"\\\\\\n"\n"\\td"\nmsgstr ""\n',
            '#, fuzzy\nmsgid ""\n"\\303\\244 \\x62\\\n "\n"\\"c\\"\\\\\\n"\n"\\td"\nmsgstr ""\n'
            '"Ä B \\"C\\"\\\\\\n"\n"\\tD"\n',
        ),
        ('msgid "a"\rmsgstr ""\r', '\n#, fuzzy\nmsgid "a"\rmsgstr "A"\r'),
    ],
)
def test_a_message_is_filled_where_it_stands(before: str, after: str | None) -> None:
    after = before if after is None else after.removeprefix("\n") if before.endswith("\r") else after
    assert filled(before) == after


def test_lines_are_wrapped_at_spaces_and_never_within_an_escape() -> None:
    text = 'say \\"no\\" to it, ' * 30 + "\\n" + "x" * 200 + " y\\n"
    written = filled(f'msgid "{text}"\nmsgstr ""\n', model=same)
    rows = written.split("msgstr ")[1].split("\n")[:-1]
    assert rows[0] == '""'
    assert "".join(row[1:-1] for row in rows) == text
    assert [len(row) <= 79 for row in rows].count(False) == 1, "a word that is longer"
    assert all(re.fullmatch(r'"(?:[^"\\]|\\["n\\])*( |\\n|y)?"', row) for row in rows)


# ---- plural forms

FILES, ONE = ("%d file", "%d files"), ("One file", "%d files")


@pytest.mark.parametrize(
    ("language", "one", "number", "forms"),
    [
        ("de", ONE, 2, "10"),
        ("fr", ONE, 2, "00"),  # none is one, too
        ("fr", FILES, 2, "10"),
        ("ru", ONE, 3, "000"),  # 21 is as 1
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
    """A form of the number one alone may spell it."""
    field = '"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"\n' if language != "xx" else '"X: \\n"\n'
    message = f'#, c-format\nmsgid "{one[0]}"\nmsgid_plural "{one[1]}"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    written = filled(f"{FIELDS}{field}\n{message}", language, same)
    found = re.findall(r'^msgstr\[\d\] "(.*)"', written, re.MULTILINE)
    assert found == [one[0] if form == "1" else one[1] for form in forms]
    assert len(found) == number
    if language != "xx" and shutil.which("msgfmt"):
        assert msgfmt(written, tmp_path / "a.po") == ""


def test_every_rule_has_each_of_its_forms() -> None:
    for count, expression, languages in plurals._RULES:
        rule = plurals.parse(f"nplurals={count}; plural={expression};")
        function = plurals.gettext.c2py(expression)
        seen = {function(number) for number in range(1001)}
        assert (rule and rule.count, seen) == (count, set(range(count))), languages
    assert len(plurals._BY_LANGUAGE) == sum(len(languages.split()) for *_, languages in plurals._RULES)


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


def test_a_form_that_somebody_wrote_stays() -> None:
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
    assert filled(alone) == alone, "the number of forms is not known"


# ---- the header

TEMPLATE = r"""# A TITLE.
#
#, fuzzy
msgid ""
msgstr ""
"Project-Id-Version: a 1\n"
"Language: \n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=CHARSET\n"
"Content-Transfer-Encoding: ENCODING\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\n"

msgid "a"
msgid_plural "b"
msgstr[0] ""
msgstr[1] ""
"""


@pytest.mark.parametrize("new_line", ["\n", "\r\n"])
def test_what_a_template_leaves_open_is_filled(new_line: str) -> None:
    expected = TEMPLATE.replace("#, fuzzy\n", "").replace("Language: ", "Language: fr").replace("CHARSET", "UTF-8")
    expected = expected.replace("ENCODING", "8bit").replace("=INTEGER; plural=EXPRESSION", "=2; plural=(n > 1)")
    expected = (
        expected.replace('msgid "a"', '#, fuzzy\nmsgid "a"').replace('] ""', '] "B"').replace('[0] "B"', '[0] "A"')
    )
    assert filled(TEMPLATE.replace("\n", new_line), "fr") == expected.replace("\n", new_line)
    assert '\n#, fuzzy\nmsgid ""\n' in filled(TEMPLATE.replace("a 1", "PACKAGE VERSION"), "fr"), "more is left to do"
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


def test_a_catalogue_that_is_complete_keeps_its_header() -> None:
    text = TEMPLATE.replace('] ""', '] "x"')
    assert filled(text, "fr") == text


def test_the_target_language_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = SimpleNamespace(corpus=SimpleNamespace(tgt="ru"))
    translator: Any = SimpleNamespace(counts=Counter[str](), max_length=9, recipe=recipe)
    monkeypatch.setattr(module, "translate_aligned", lambda _, chunks, __: map(same, chain.from_iterable(chunks)))
    source, target = memory_file(TEMPLATE.encode()), memory_file()
    with Progress("translating", None, "lines") as progress:
        module.runner("po", None, None, [])(translator, TranslateOptions(), source, target, progress)
        assert b'"Language: ru\\n"' in content(target)
        latin = TEMPLATE.replace("a 1", "ä 1").encode("iso-8859-1")
        with pytest.raises(DataError, match=r"not UTF-8, at byte 62.*msgconv -t UTF-8"):
            module.runner("po", None, None, [])(translator, TranslateOptions(), memory_file(latin), target, progress)


def test_the_server_fills_the_header_for_its_target_language() -> None:
    texts = pytest.importorskip("nmt_cli.serving.texts")
    form = texts.Form("po", language="ru")
    [[written]] = texts.write(form, [TEMPLATE], [[[Aligned("x", [(1, 0)])] * len(form.read(TEMPLATE).units)]])
    assert '"Language: ru\\n"' in written


# ---- any catalogue


def random_catalogue(seed: int) -> tuple[str, list[str]]:
    """Return a catalogue, and the texts in it that must stay."""
    rng = random.Random(seed)
    words = [
        "the",
        "file",
        "%d",
        "%s",
        "(now)",
        "<b>all</b>",
        "\\n",
        "/etc/hostname",
        "{name}",
        '\\"no\\"',
        "\\t",
        "ä",
        ".",
    ]
    rule = plurals._RULES[seed % len(plurals._RULES)]
    counted = 0

    def text(extra: str = "") -> str:
        nonlocal counted
        counted += 1
        return f"text {counted} " + extra + " ".join(rng.choices(words, k=rng.choice([1, 3, 8, 30])))

    def strings(text: str) -> str:
        if rng.random() < 0.5:
            return f'"{text}"'
        parts = re.findall(r"(?:\\.|[^\\]){1,30}", text)
        return rng.choice(["\n", " ", "\n\n  ", "\n"]).join(f'"{part}"' for part in ["", *parts])

    def message(kind: str) -> str:
        one = text()
        lines = rng.sample(["# a note", "#. of a program", "#: a.c:1"], rng.randrange(3))
        flags = ["fuzzy"] if kind == "fuzzy" else []
        flags += ["c-format"] if "{" not in one and rng.random() < 0.5 else []
        lines += [f"#, {', '.join(flags)}"] if flags else []
        lines += ['#| msgid "before"'] if rng.random() < 0.2 else []
        lines += [f'msgctxt "{counted}"'] if rng.random() < 0.2 else []
        lines.append(f"msgid{rng.choice([' ', '', '   '])}{strings(one)}")
        written = strings(one) if kind in ("done", "fuzzy") else '""'
        if rng.random() < 0.4:
            lines.append(f"msgid_plural {strings(one)}")
            kept = rng.randrange(rule[0]) if kind == "partial" else -1
            lines += [f"msgstr[{form}] {strings(one) if form == kept else written}" for form in range(rule[0])]
        else:
            lines.append(f"msgstr {written}")
        if kind == "obsolete":
            lines = [f"#~{line[1:]}" if line.startswith("#|") else line for line in lines]
            lines = [line if line.startswith("#") else "#~ " + line.replace("\n", "\n#~ ") for line in lines]
        return "\n".join(lines) + "\n"

    kinds = ["done", "empty", "fuzzy", "partial", "obsolete"]
    blocks = [(kind, message(kind)) for kind in rng.choices(kinds, k=rng.randrange(12))]
    header = FIELDS + f'"Plural-Forms: nplurals={rule[0]}; plural={rule[1]};\\n"\n'
    new_line = rng.choice(["\n", "\n", "\r\n"])
    gap = rng.choice(["", "\n", "\n\n\n"])
    whole = gap.join([header, *(block for _, block in blocks)]).replace("\n", new_line)
    stay = [block.replace("\n", new_line) for kind, block in blocks if kind in ("done", "obsolete")]
    return whole, stay


def body(text: str, path: Path) -> tuple[list[str], list[str]]:
    """Return all that msgcat reads but translations and flags, and the translations."""
    path.write_bytes(text.encode())
    sorted_ = subprocess.run(["msgcat", "--no-wrap", path], capture_output=True, text=True, check=True).stdout
    messages = re.sub(r'^(msgstr(?:\[\d\])?) (?:".*"\n?)+|^#,.*\n', r"\1\n", sorted_, flags=re.MULTILINE)
    return [line for line in messages.split("\n") if line], re.findall(r"^msgstr.*", sorted_, re.MULTILINE)


@needs_gettext
@pytest.mark.parametrize("seed", range(40))
def test_msgfmt_takes_any_catalogue_once_it_is_filled(tmp_path: Path, seed: int) -> None:
    text, stay = random_catalogue(seed)
    written = filled(text, "de", same)
    assert msgfmt(written, tmp_path / "b.po") == ""
    place = 0
    for block in stay:
        place = written.index(block, place) + len(block)
    assert written.count("\r\n") in (0, written.count("\n"))
    (before, old), (after, new) = body(text, tmp_path / "a.po"), body(written, tmp_path / "b.po")
    assert after == before
    assert len(new) == len(old)
    assert not Catalogue(re.sub(r"(?m)^#, fuzzy$|, fuzzy\b|\bfuzzy, ", "#", written), None)._open, "all are filled"


def test_no_catalogue_opens_a_file() -> None:
    for seed in range(100):
        text, stay = random_catalogue(seed)
        for each in (text, *stay, *re.findall(r'"([^"]*)"', text)):
            with nothing_opened(), contextlib.suppress(DataError):
                filled(each, each[:20], same)


def test_a_fuzzy_plural_message_is_translated_anew() -> None:
    head = 'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=n != 1;\\n"\n\n'
    text = '#, fuzzy\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] "old"\nmsgstr[1] "olds"\n'
    assert filled(head + text, "de").endswith('msgstr[0] "A"\nmsgstr[1] "B"\n')
