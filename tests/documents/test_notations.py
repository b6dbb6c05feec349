"""The same file in another notation: quotes, prefixes, clocks, tags and spaces. The model sees the same text."""

import re

import pytest
from fake_models import capitals, filled, same, texts_of, texts_of_file, translated_file
from message_files import ANDROID, QT, RESX, STRINGSDICT, XLIFF, XLIFF_2
from office_files import docx, odf, ooxml, zipped
from test_epub import epub
from test_opendocument import BODY
from test_slides_and_sheets import RELATIONS, SHEETS, SLIDES, TABLE
from test_subtitle_details import line
from test_word_files import EVERYTHING

from nmt_cli.documents.archive import Archive
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS

TABLES = {"xl/tables/table1.xml": TABLE, "xl/worksheets/_rels/sheet1.xml.rels": RELATIONS}
FILES = {
    "docx": docx(EVERYTHING), "pptx": SLIDES, "xlsx": ooxml(SHEETS | TABLES), "odt": odf(BODY), "epub": epub(),
}  # fmt: skip


def changed(data: bytes, change: object) -> bytes:
    """Return a zip file with changed XML members."""
    archive = Archive(data, 1 << 20)
    members = {name: archive.read(name) for name in archive.names}
    is_xml = {name for name in members if name.endswith(("xml", "rels", "opf", "ncx", "html"))}
    return zipped({name: change(text.decode()) if name in is_xml else text for name, text in members.items()})  # type: ignore[operator]


def other_quotes(text: str) -> str:
    """Put the values of attributes in single quotes."""
    return re.sub(r"(<[^<>?!][^<>]*>)", lambda tag: re.sub(r'"([^"\']*)"', r"'\1'", tag[0]), text)


@pytest.mark.parametrize("kind", FILES)
def test_attributes_may_have_single_quotes(kind: str) -> None:
    data = changed(FILES[kind], other_quotes)
    assert texts_of_file(kind, data) == texts_of_file(kind, FILES[kind])
    translations = [translated_file(kind, each, capitals, ReadOptions(language="de")) for each in (FILES[kind], data)]
    assert changed(translations[0], other_quotes) == changed(translations[1], other_quotes)


def indented(text: str) -> str:
    """Put each element on its own line."""
    return re.sub(r"(<([\w:]+)[^<>]*>)\n(</\2>)", r"\1\3", text.replace("><", ">\n<"))


@pytest.mark.parametrize("kind", ["docx", "pptx", "xlsx"])
def test_files_may_be_indented(kind: str) -> None:
    data = changed(FILES[kind], indented)
    assert texts_of_file(kind, data) == texts_of_file(kind, FILES[kind])
    assert translated_file(kind, data, same) == data
    shown = re.compile(r"<([wac]|x)?:?t\b[^<>]*>([^<]*[^<\s][^<]*)<")
    before, after = (translated_file(kind, each, capitals) for each in (FILES[kind], data))
    for name in Archive(before, 1 << 20).names:
        found = [shown.findall(Archive(each, 1 << 20).read(name).decode()) for each in (before, after)]
        assert found[0] == found[1]


def test_workbooks_may_have_a_prefix() -> None:
    def prefixed(text: str) -> str:
        if "spreadsheetml/2006/main" not in text and "Relationship" not in text:
            return text
        text = text.replace("xmlns=", "xmlns:q=")
        return re.sub(r"<(/?)(?=[A-Za-z])", r"<\1q:", text)

    data = changed(FILES["xlsx"], prefixed)
    assert texts_of_file("xlsx", data) == texts_of_file("xlsx", FILES["xlsx"])
    out = changed(translated_file("xlsx", data, capitals), lambda text: text.replace("q:", "").replace(":q=", "="))
    assert out == translated_file("xlsx", FILES["xlsx"], capitals)


MESSAGES = {
    "android": ANDROID, "xliff": XLIFF, "xliff-2": XLIFF_2, "qt": QT, "resx": RESX, "stringsdict": STRINGSDICT,
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("space", ["", " ", "\n  "])
def test_attributes_of_messages_in_every_notation(name: str, space: str) -> None:
    def texts(text: str) -> list[str]:
        return texts_of(FORMATS[name.removesuffix("-2")].read(text, ReadOptions(language="de")).parts)

    head, _, rest = MESSAGES[name].rpartition("?>")
    text = f"{head}?>{other_quotes(rest)}" if head else other_quotes(rest)
    if space:
        tags = re.compile(r"<[a-z][^<>!?]*>")
        text = tags.sub(lambda tag: re.sub(r"(?<=\w)=(?=['\"])", f"{space}={space}", tag[0]), text)
    assert texts(text) == texts(MESSAGES[name])


@pytest.mark.parametrize("clock", ["0:00:01.00", "0:00:01:00", "00:00:01.5", " 0:00:01.00 ", "1000:00:00.0000"])
def test_clocks_of_ass(clock: str) -> None:
    """A cue that does not begin near the end of the first one begins a new sentence."""
    first = line("I came").replace("0:00:02.00", clock)
    second = line("and went").replace("0:00:01.00", clock)
    assert texts_of_file("ass", f"[Events]\n{first}{second}".encode()) == ["I came and went"]
    later = line("and went").replace("0:00:01.00", "0:00:09.00").replace("0:00:02.00", "0:00:10.00")
    assert len(texts_of_file("ass", f"[Events]\n{first}{later}".encode())) == 2


@pytest.mark.parametrize("key", ["en", "en-US", "en_US", "zh-Hans-CN", "sr_Latn_RS", "deu"])
def test_root_keys_of_yaml_that_are_languages(key: str) -> None:
    document = FORMATS["yaml"].read(f"{key}:\n  a: dog\n", ReadOptions(language="pt-BR"))
    expected = "pt_BR" if "_" in key else "pt-BR"
    assert filled(document, capitals) == f"{expected}:\n  a: DOG\n"


@pytest.mark.parametrize("value", ["&x dog", "!!str dog", "&x !!str dog", "!!str &x dog", "! dog", '!!str "dog"'])
def test_values_of_yaml_with_properties(value: str) -> None:
    text = f"a: {value}\nb:\n  - {value.replace('&x', '&y')}\n"
    document = FORMATS["yaml"].read(text, ReadOptions())
    assert filled(document, capitals) == text.replace("dog", "DOG")


@pytest.mark.parametrize(
    "text",
    [
        "a=dog", "a:dog", "a dog", "a\tdog", "a = dog", "a : dog", "a\f=\fdog", "\\a\\=\\:\\ b = dog", "  a=dog",
        "a=\\\n  dog", "a==dog", "a = : dog",
    ],
)  # fmt: skip
def test_separators_of_properties(text: str) -> None:
    document = FORMATS["properties"].read(text, ReadOptions())
    assert filled(document, capitals).replace("\\\n  ", "") == text.replace("dog", "DOG").replace("\\\n  ", "")


@pytest.mark.parametrize(
    "text",
    [
        '"a" = "dog";', 'a="dog";', '"a"="dog" ;', '/* x */ "a" /* y */ = "dog";', 'a.b-c:d/e$ = "dog";',
        '"a\\"b" = "dog"; // x', '//\n"a" = "dog";\n//\n// x\n//',
    ],
)  # fmt: skip
def test_pairs_of_apple(text: str) -> None:
    document = FORMATS["strings"].read(text.encode(), ReadOptions())
    assert filled(document, capitals) == text.replace("dog", "DOG")


@pytest.mark.parametrize(
    "text",
    [
        "<?php return ['a' => 'dog'];", "<?php\nreturn array ( 'a'=>\"dog\" );", "<?php return ['dog'];",
        "<?php // x\n# y\n/* z */ return['a'=>['b'=>'dog',],]; ?>\n",
        "<?php return ['a' => -5, 'b' => 1.5, 'c' => 'dog', 'd' => null];",
    ],
)  # fmt: skip
def test_arrays_of_php(text: str) -> None:
    document = FORMATS["laravel"].read(text, ReadOptions())
    assert filled(document, capitals) == text.replace("dog", "DOG")
