"""Gettext catalogs: messages to fill, text that stays byte for byte, and hostile files. msgfmt must accept results."""

import builtins
import contextlib
import io
import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from catalogs import FIELDS, GERMAN, filled, msgfmt, needs_gettext
from fake_models import backwards, same, texts_of, translated
from growth import is_linear

from nmt_cli.documents import plurals
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.po import Catalog
from nmt_cli.documents.po_syntax import read_messages
from nmt_cli.system.errors import DataError


@contextlib.contextmanager
def nothing_opened() -> Iterator[None]:
    """Fail if a file is opened or examined."""
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


PO = r"""# A translator
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=n==1 ? 0 : n==2 ? 1 : 2;\n"

#. A note
#: a.py:1
#, python-format
msgctxt "menu"
msgid "Delete %(n)s files (now)?\n"
"  <b>Sure</b>?\n"
msgstr ""

#, fuzzy
msgid "old"
msgstr "alt"

msgid "done"
msgstr "fertig"

#, python-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "eine Datei"
msgstr[1] ""
msgstr[2] ""

#~ msgid "gone"
#~ msgstr ""
"""


def test_empty_messages_are_filled_and_marked_fuzzy() -> None:
    catalog = Catalog(PO, Protection(strict=True))
    translated(catalog.parts, backwards)
    written = catalog.write()
    before, after = read_messages(PO), read_messages(written)
    assert [each.id.text for each in after] == [each.id.text for each in before]
    gone = [line for line in PO.split("\n") if line not in written.split("\n")]
    assert gone == ["#, python-format", 'msgstr "alt"', "#, python-format", 'msgstr[1] ""', 'msgstr[2] ""']
    header, first, old, done, files = after
    assert ["fuzzy" in each.flags for each in after] == [False, True, True, False, True]
    assert old.flags == ["fuzzy"]
    assert first.flags == ["python-format", "fuzzy"]
    assert header.forms[0].text == before[0].forms[0].text
    assert first.forms[0].text == "(now)? %(n)s files Delete\n  <b>Sure</b>?\n"
    assert (old.forms[0].text, done.forms[0].text) == ("old", "fertig")
    assert [form.text for form in files.forms] == ["eine Datei", "%d files", "%d files"], (
        "a person wrote the first form"
    )
    again = Catalog(PO.replace("#, fuzzy\n", "").replace('""\n\n#, f', '"x"\n\n#, f'), None)
    assert len(again.parts) < len(catalog.parts)


def test_a_language_with_one_form_uses_the_plural() -> None:
    text = PO.replace("nplurals=3; plural=n==1 ? 0 : n==2 ? 1 : 2;", "nplurals=1; plural=0;")
    catalog = Catalog(text.replace("eine Datei", ""), None)
    translated(catalog.parts, same)
    (files,) = [each for each in read_messages(catalog.write()) if each.plural]
    assert [form.text for form in files.forms] == ["%d files"]


def test_messages_with_html_and_catalogs_without_a_plural_rule() -> None:
    both = Catalog('msgid "a &amp; b\\n<b>c</b>"\nmsgstr ""\n', None)
    assert texts_of(both.parts) == ["a & b", "c"], "a message is HTML as a whole, or not at all"
    long = "dog " * 40
    text = f'msgid "a <!-- b --> c\\n"\nmsgstr ""\n\nmsgid "{long}"\nmsgid_plural "d"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    catalog = Catalog(text, None)
    assert texts_of(catalog.parts) == ["a c", long.strip(), "d"]
    translated(catalog.parts, same)
    written = catalog.write()
    one, several = read_messages(written)
    assert one.forms[0].text == "a <!-- b --> c\n"
    assert [form.text for form in several.forms] == [long, "d"]
    assert 60 < max(len(line) for line in written.split("\n") if line.startswith('"')) <= 80
    forms = Catalog(f'msgid ""\nmsgstr "Plural-Forms: nplurals = 4; plural=0;\\n"\n\n{text}', None)
    translated(forms.parts, same)
    assert [form.text for form in read_messages(forms.write())[2].forms] == [long, "d", "d", "d"]


def test_a_complete_catalog_stays_byte_for_byte() -> None:
    text = 'msgid   "a"\nmsgstr "b"\n\n\n#~ msgid "c"\n#~ msgstr ""\n'
    assert Catalog(text, None).write() == text
    with pytest.raises(DataError, match="not a message catalog"):
        Catalog("<html>", None)


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_path_as_the_text_is_not_opened(tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.po"
    secret.write_text('msgid "the secret"\nmsgstr ""\n')
    monkeypatch.chdir(tmp_path)
    for path in (str(secret), "secret.po"):
        with nothing_opened(), pytest.raises(DataError, match="not a message catalog: line 1"):
            Catalog(path + end, None)


@pytest.mark.parametrize("index", ["1", "3000000", "9" * 5000, "-1", "n"])
def test_a_plural_form_out_of_order_is_refused(index: str) -> None:
    with pytest.raises(DataError, match="not a message catalog: line 3 has ") as error:
        Catalog(f'msgid "a"\nmsgid_plural "b"\nmsgstr[{index}] "c"\n', None)
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
def test_a_file_that_is_not_a_catalog_is_refused_with_the_line(text: str, line: int) -> None:
    with pytest.raises(DataError, match=f"not a message catalog: line {line} has "):
        Catalog(text, None)


@pytest.mark.parametrize(
    "begin", ["", 'msgid "', 'msgid ""\nmsgstr "Plural-Forms: ', 'msgid ""\nmsgstr "Content-Type: ']
)
def test_the_time_of_a_catalog_grows_with_its_length(begin: str) -> None:
    end = '"\nmsgid "x"\nmsgstr ""\n' if "msgstr" in begin else '"\nmsgstr ""\n' if begin else ""
    several = ["# c\n", "#, a\n", "#~ msgid\n", 'msgid"a"msgstr""', '"', '"\\', "[0", "msgstr[", "\r", "\\\n"]
    inside = ["a\\n", '"\n"', "\\\\", '\\"', "nplurals", "plural =", "\\303\\244", "charset=", "; ", "Language:\\n"]
    for unit in inside if begin else several:
        assert is_linear(lambda text: filled(text, "de", same), unit, begin, end), unit


UNTOUCHED = [
    'msgid   "done"\n\n\n\tmsgstr "fertig"  \n',
    'msgid "a long message that is not wrapped, as some tools write it" msgstr "' + "lang " * 40 + '"\n',
    'msgid ""\n"wrapped "\n"early"\nmsgstr ""\n"früh "\n"getrennt"\n',
    '#~| msgid "older"\n#~ msgid "gone"\n#~ msgstr "weg"\n',
    '#, fuzzy\n#~ msgid "gone"\n#~ msgstr "weg"\n# of another\n#~msgid "g" msgstr "w"\n',
    '# c:\\dir\n#. "note"\n#: a.c:1 b.c:2\n#, c-format, no-wrap\n#| msgid "o"\nmsgctxt "x"\nmsgid "%d"\nmsgstr "%d"\n',
    'msgid "line\u2028and\u0085more\x0b\x0c\x1c\r."\nmsgstr "Zeile\u2028und\u0085mehr\x0b\x0c\x1c\r."\n',
    'msgid "\\303\\244\\x41\\a\\\\ \\"\\\n."\nmsgstr "\\344"\n'.replace("\\344", "ä"),
    'msgid "one"\nmsgid_plural "%d"\nmsgstr [ 0 ] "eins"\nmsgstr[01] "%d"\n', "#\n#~ \n#~ # a comment\n",
]  # fmt: skip


@pytest.mark.parametrize("new_line", ["\n", "\r\n"])
def test_everything_but_the_filled_messages_stays_byte_for_byte(new_line: str) -> None:
    header = GERMAN.replace("\n", new_line)
    blocks = [
        block.replace("\\\n.", "." if new_line == "\r\n" else "\\\n.").replace("\n", new_line) for block in UNTOUCHED
    ]
    text = header + new_line.join(blocks)
    assert filled(text) == text
    empty, new = f'msgid "the dog"{new_line}msgstr ""', f'#, fuzzy{new_line}msgid "the dog"{new_line}msgstr "THE DOG"'
    for index in range(len(blocks) + 1):
        several = [*blocks[:index], empty + new_line, *blocks[index:]]
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
def test_a_message_is_filled_in_place(before: str, after: str | None) -> None:
    after = before if after is None else after.removeprefix("\n") if before.endswith("\r") else after
    assert filled(before) == after


def test_empty_lines_of_a_message_are_kept() -> None:
    written = filled('msgid "\\na dog\\n\\nb\\n"\nmsgstr ""\n', model=same)
    assert written.split("msgstr ")[1].split("\n")[:-1] == ['""', '"\\n"', '"a dog\\n"', '"\\n"', '"b\\n"']


def test_lines_are_wrapped_at_spaces_and_never_inside_an_escape() -> None:
    text = 'say \\"no\\" to it, ' * 30 + "\\n" + "x" * 200 + " y\\n"
    written = filled(f'msgid "{text}"\nmsgstr ""\n', model=same)
    rows = written.split("msgstr ")[1].split("\n")[:-1]
    assert rows[0] == '""'
    assert "".join(row[1:-1] for row in rows) == text
    assert [len(row) <= 79 for row in rows].count(False) == 1, "only the long word exceeds the limit"
    assert all(re.fullmatch(r'"(?:[^"\\]|\\["n\\])*( |\\n|y)?"', row) for row in rows)


def random_catalog(seed: int) -> tuple[str, list[str]]:
    """Return a catalog, and its blocks that must stay unchanged."""
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
    rule = plurals.RULES[seed % len(plurals.RULES)]
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
    """Return everything that msgcat reads except translations and flags, and the translations."""
    path.write_bytes(text.encode())
    sorted_ = subprocess.run(["msgcat", "--no-wrap", path], capture_output=True, text=True, check=True).stdout
    messages = re.sub(r'^(msgstr(?:\[\d\])?) (?:".*"\n?)+|^#,.*\n', r"\1\n", sorted_, flags=re.MULTILINE)
    return [line for line in messages.split("\n") if line], re.findall(r"^msgstr.*", sorted_, re.MULTILINE)


@needs_gettext
@pytest.mark.parametrize("seed", range(15))
def test_msgfmt_accepts_any_filled_catalog(tmp_path: Path, seed: int) -> None:
    text, stay = random_catalog(seed)
    written = filled(text, "de", same)
    assert msgfmt(written, tmp_path / "b.po") == ""
    offset = 0
    for block in stay:
        offset = written.index(block, offset) + len(block)
    assert written.count("\r\n") in (0, written.count("\n"))
    (before, old), (after, new) = body(text, tmp_path / "a.po"), body(written, tmp_path / "b.po")
    assert after == before
    assert len(new) == len(old)
    assert not Catalog(re.sub(r"(?m)^#, fuzzy$|, fuzzy\b|\bfuzzy, ", "#", written), None).segments, "all are filled"


def test_no_catalog_opens_a_file() -> None:
    for seed in range(25):
        text, stay = random_catalog(seed)
        for each in (text, *stay, *re.findall(r'"([^"]*)"', text)):
            with nothing_opened(), contextlib.suppress(DataError):
                filled(each, each[:20], same)


def test_a_fuzzy_plural_message_is_translated_again() -> None:
    head = 'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=n != 1;\\n"\n\n'
    text = '#, fuzzy\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] "old"\nmsgstr[1] "olds"\n'
    assert filled(head + text, "de").endswith('msgstr[0] "A"\nmsgstr[1] "B"\n')
