"""Line breaks in cells, dialogs in cues, plural forms for 0 and segmented targets, as programs write them."""

import json
from html import escape

import pytest
from fake_models import capitals, same, texts_of_file, translated_file
from test_several_sheets import X, office

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.placement import Aligned

CUE = "1\n00:00:01,000 --> 00:00:03,000\n{}\n"


def workbook(string: str) -> bytes:
    kinds = {"xl/worksheets/a.xml": "spreadsheetml.worksheet", "xl/sharedStrings.xml": "spreadsheetml.sharedStrings"}
    cell = '<c r="A1" t="s"><v>0</v></c>'
    members = {
        "xl/sharedStrings.xml": f"<sst {X}><si>{string}</si></sst>",
        "xl/worksheets/a.xml": f"<worksheet {X}><sheetData><row>{cell}</row></sheetData></worksheet>",
    }
    return office(kinds, members)


@pytest.mark.parametrize(
    ("string", "texts"),
    [
        ("<t>a street 5\nDog town\n\nUSA</t>", ["a street 5", "Dog town", "USA"]),
        ("<t>one dog_x000D_\ntwo dogs</t>", ["one dog", "two dogs"]),
        ("<t>one&#10;two\tthree</t>", ["one", "two", "three"]),
        ("<r><t>one\ntwo </t></r><r><rPr><b/></rPr><t>three</t></r>", ["one", "two three"]),
        ("<t>one</t>", ["one"]),
    ],
)
def test_line_breaks_and_tabs_in_cells_stay(string: str, texts: list[str]) -> None:
    data = workbook(string)
    assert texts_of_file("xlsx", data) == texts
    assert translated_file("xlsx", data, same) == data


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("- ¿Qué pasa?", "- Nada."), ("-¡Hola!", "-Buenos días."), ("- [laughs]", "- Stop it."),
        ("- (sighs) Dog.", "- Stop."),
        ("- 20 dollars.", "- Too much."), ("- ...and.", "- Yes."), ("- $5 each.", "- OK."), ("– „Ja“", "– Nein."),
        ("— «Да»", "— Нет."), ("- ♪ La ♪", "- Stop."),
        (">> A dog.", ">> A cat."), ("&gt;&gt; A dog.", "&gt;&gt; A cat."), ("♪ a dog ♪", "♪ a cat ♪"),
    ],
)  # fmt: skip
def test_two_speakers_stay_on_two_lines(first: str, second: str) -> None:
    data = CUE.format(f"{first}\n{second}").encode()
    assert len(texts_of_file("srt", data)) == 2
    assert translated_file("srt", data, same) == data


@pytest.mark.parametrize("text", ["a well-\nknown dog", "5 - 3 is\n-2 dogs", "Tuesday\n-5 degrees"])
def test_a_hyphen_or_minus_begins_no_speech(text: str) -> None:
    assert len(texts_of_file("srt", CUE.format(text).encode())) == 1


def test_messages_for_zero_stay_in_languages_without_the_category() -> None:
    texts = {"item_zero": "No items", "item_one": "one item", "item_other": "{{count}} items"}
    out = json.loads(translated_file("json", json.dumps(texts).encode(), capitals, ReadOptions(language="de")))
    assert out == {"item_zero": "NO ITEMS", "item_one": "ONE ITEM", "item_other": "{{count}} ITEMS"}
    arb = {"@@locale": "en", "n": "{count, plural, zero{No dogs} one{a dog} two{both dogs} other{dogs}}"}
    out = json.loads(translated_file("arb", json.dumps(arb).encode(), capitals, ReadOptions(language="de")))
    assert out["n"] == "{count, plural, zero{NO DOGS} one{A DOG} other{DOGS}}"


@pytest.mark.parametrize(
    ("target", "done"),
    [
        ('<mrk mtype="seg" mid="1"/>', False), ('<mrk mtype="seg" mid="1"></mrk> <g id="1"></g>', False), ("", False),
        ('<mrk mtype="seg" mid="1">der Hund</mrk>', True), ("der Hund", True),
    ],
)  # fmt: skip
def test_a_target_with_only_empty_markup_is_replaced(target: str, done: bool) -> None:
    unit = f'<trans-unit id="1"><source>a dog</source><target>{target}</target></trans-unit>'
    head = '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">'
    file = f'{head}<file original="a" source-language="en" datatype="x"><body>{unit}</body></file></xliff>'
    assert texts_of_file("xliff", file.encode()) == ([] if done else ["a dog"])


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("html", '<meta charset="iso-8859-1"><p>dog', '<meta charset="UTF-8"><p>HÜND'),
        ("html", "<meta content='x; charset=windows-1252'><p>dog", "<meta content='x; charset=UTF-8'><p>HÜND"),
        ("html", '<meta charset="utf-8"><p>dog', '<meta charset="utf-8"><p>HÜND'),
        (
            "xml",
            '<?xml version="1.0" encoding="us-ascii"?><a>dog</a>',
            '<?xml version="1.0" encoding="UTF-8"?><a>HÜND</a>',
        ),
        ("md", '<meta charset="iso-8859-1">\n\ndog\n', '<meta charset="iso-8859-1">\n\nHÜND\n'),
    ],
)
def test_a_declared_encoding_matches_the_output(kind: str, before: str, after: str) -> None:
    """An unchanged file keeps its declaration."""
    data = before.encode()
    assert translated_file(kind, data, lambda text: Aligned(text.replace("dog", "HÜND"), [])).decode() == after
    assert translated_file(kind, data, same) == data


TS = '<TS language="de" version="2.1"><context><message><source>{}</source></message></context></TS>'
MENU = "&Open a dog...\tCtrl+O"


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("po", 'msgid "&Open a dog...\\tCtrl+O"\nmsgstr ""\n'), ("json", json.dumps({"a": MENU})),
        ("properties", "a=&Open a dog...\\tCtrl+O\n"), ("strings", '"a" = "&Open a dog...\\tCtrl+O";\n'),
        ("qt", TS.format(MENU.replace("&", "&amp;"))), ("yaml", 'a: "&Open a dog...\\tCtrl+O"\n'),
    ],
)  # fmt: skip
def test_a_tab_divides_a_message_and_a_shortcut_stays(kind: str, data: str) -> None:
    assert texts_of_file(kind, data.encode()) == ["Open a dog..."]
    out = translated_file(kind, data.encode(), capitals).decode()
    assert "OPEN A DOG...\tCtrl+O" in out.replace("\\t", "\t").replace("&amp;", "").replace("&", "")


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("Name:\tThe value", ["Name:", "The value"]), ("a dog\tShift+Alt+F12", ["a dog"]), ("a dog\tF5", ["a dog"]),
        ("a dog\tCtrl+Page Up", ["a dog", "Ctrl+Page Up"]), ("a dog\tCtrl++\n\tb", ["a dog", "b"]),
        ("\ta <b>dog</b>\tcat", ["a dog", "cat"]),
    ],
)  # fmt: skip
def test_text_after_a_tab_is_translated_unless_it_is_a_shortcut(text: str, texts: list[str]) -> None:
    data = json.dumps({"a": text}).encode()
    assert texts_of_file("json", data) == texts
    assert translated_file("json", data, same) == data


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("&larr; A man with a dog &rarr;", ["\u2190 A man with a dog \u2192"]),
        ("A man&nbsp;and a dog &copy; 2024", ["A man and a dog \u00a9 2024"]),
        ("A dog &amp; a cat&hellip;", ["A dog & a cat\u2026"]), ("Fish &#38; chips", ["Fish & chips"]),
        ("a &other; b", ["a &other; b"]), ("Fish & chips; AT&T;", ["Fish & chips; AT&T;"]),
    ],
)  # fmt: skip
def test_character_references_in_messages_are_decoded(text: str, texts: list[str]) -> None:
    for kind, data in {
        "json": json.dumps({"a": text}),
        "po": f'msgid "{text}"\nmsgstr ""\n',
        "resx": f'<root><data name="a"><value>{escape(text)}</value></data></root>',
    }.items():
        assert texts_of_file(kind, data.encode()) == texts, kind
        out = translated_file(kind, data.encode(), same).decode()
        data = data.replace("&amp;nbsp;", " ")  # XML text is written anew, with a plain space
        assert out == data.replace('msgstr ""', f'msgstr "{text}"').replace('msgid "', '#, fuzzy\nmsgid "'), kind
