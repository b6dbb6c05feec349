"""Details of message files: the lines that errors name, the placeholders of each format, and how text is spelled."""

import re

import pytest
import yaml
from fake_models import Model, capitals, filled, linked, same, texts_of

from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.placement import Aligned
from nmt_cli.system.errors import DataError

AROUND = {
    "json": '{"a": "{}"}',
    "arb": '{"a": "{}"}',
    "yaml": 'a: "{}"\n',
    "android": '<resources><string name="a">{}</string></resources>',
    "strings": '"a" = "{}";',
    "stringsdict": "<plist><dict><key>NSStringLocalizedFormatKey</key><string>{}</string></dict></plist>",
    "properties": "a = {}\n",
    "resx": '<root><data name="a"><value>{}</value></data></root>',
    "qt": "<TS><message><source>{}</source></message></TS>",
    "laravel": "<?php return ['a' => '{}'];",
    "xliff": '<xliff version="1.2"><file><trans-unit><source>{}</source></trans-unit></file></xliff>',
}


def read(kind: str, text: str, language: str = "de") -> Document:
    return FORMATS[kind].read(text.encode() if FORMATS[kind].binary else text, ReadOptions(language=language))


def around(kind: str, text: str) -> str:
    before, _, after = AROUND[kind].rpartition("{}")
    return before + text + after


def written(kind: str, text: str, model: Model = capitals, language: str = "de") -> str:
    return filled(read(kind, text, language), model)


def answer(text: str) -> Model:
    return lambda source: linked({text: source[0]})(source)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("json", '{\n"a": "b",\n"c" "d"}', "valid JSON message catalog: line 3 has a syntax error"),
        ("json", '{\n"a": "b"}\n\nx\n', "line 4 has a syntax error"),
        ("json", "[\n1,\n}\n\n", "line 3 has a syntax error"),
        ("json", '{"a": "b"\n', "line 2 has a syntax error"),
        ("json", "[1]\n, [2]", "line 2 has a syntax error"),
        ("yaml", "a: b\nc: [d\ne: f\n", "YAML file of messages: line 3 has a syntax error \\("),
        ("yaml", "a: b\n\n\tc: d\n", "line 3 has a syntax error \\(found character '\\\\t'"),
        ("android", "<resources>\n<string>a\n</strin>\n</resources>", "line 3 has </strin> without a start tag"),
        ("android", "<resources>\n<string>a\n", "line 3 has <string> without an end tag"),
        ("android", "\n<!-- a -->\n", "line 3 has no <resources>"),
        ("android", "<resources>\n</resources>\n<a/>", "line 3 has an element other than <resources>"),
        ("android", "<resources/>\n<resources/>", "line 2 has an element other than <resources>"),
        ("android", "<resources/>\nx", "line 1 has text that is not XML"),
        ("android", "<resources>\n<a>\n<<</a></resources>", "line 2 has text that is not XML"),
        ("xliff", "<!-- a -->\n<xliff version='3.0'></xliff>", "line 2 has a version other than 1.2, 2.0 and 2.1"),
        ("xliff", "<xliff></xliff>", "line 1 has a version other than"),
        ("strings", '"a" = "b";\n\n"c" = d e;\n', 'line 3 has no "key" = "value"'),
        ("laravel", "<?php\nreturn [\n'a' => b()];", "valid PHP message catalog: line 3 has an expression"),
        ("laravel", "<?php\nreturn [\n'a' => ['b')];", "line 3 has an unmatched bracket"),
        ("laravel", "<?php return ;", "line 1 has an expression other than an array of strings"),
        ("laravel", "<?php\nreturn [];\necho 'a';", "line 2 has an expression other than an array of strings"),
        ("laravel", "\n<?php return [];", "line 1 has no “<\\?php return"),
    ],
)
def test_an_error_names_the_line_and_the_reason(kind: str, text: str, words: str) -> None:
    with pytest.raises(DataError) as error:
        read(kind, text)
    assert re.search(words, str(error.value)), str(error.value)
    assert "line" not in re.sub("line [0-9]+ has", "", str(error.value)), "the error names a single line"


# The text that a model sees of "a %s :b %1 {0} {0,9} $c %@ %n d".
SEEN = {
    "json": "a d",
    "yaml": "a d",
    "arb": "a %s :b %1 $c %@ %n d",
    "android": "a :b %1 $c %@ d",
    "strings": "a :b %1 $c d",
    "stringsdict": "a :b %1 $c d",
    "properties": "a %s :b %1 $c %@ %n d",
    "resx": "a %s :b %1 $c %@ %n d",
    "qt": "a %s :b $c %@ d",
    "laravel": "a %s %1 $c %@ %n d",
    "xliff": "a d",
}


@pytest.mark.parametrize("kind", SEEN)
def test_each_format_has_its_own_placeholders(kind: str) -> None:
    text = around(kind, "a %s :b %1 {0} {0,9} $c %@ %n d")
    assert " ".join(texts_of(read(kind, text).parts)) == SEEN[kind]


@pytest.mark.parametrize(
    ("kind", "source", "model", "expected"),
    [
        ("json", "dog", answer("é/ü"), "é/ü"),  # a file without escapes gets none
        ("json", "é \\u00e9 a\\/b", answer("ü/x"), "ü\\/x"),
        ("json", "a \\u00e9", answer("ü"), "\\u00fc"),
        ("yaml", "dog", answer("é"), "é"),
        ("yaml", "\\u00e9", answer("ü"), "\\u00fc"),
        ("yaml", "é \\u00e9", answer("ü"), "ü"),
        (
            "android",
            'see <a href="x">it</a>',
            answer("d'eau"),
            '<a href="x">d\\\'eau</a>',
        ),  # quotes inside a tag do not belong to the text
        ("android", "dog", answer("?b@"), "\\?b@"),
        ("android", "a \\&quot;b\\&quot; it\\&#39;s", capitals, "A \\&quot;B\\&quot; IT\\&#39;S"),
        ("android", "a <xliff:g>b <b>c</b></xliff:g> <g>d</g>", capitals, "A <xliff:g>b <b>c</b></xliff:g> <g>D</g>"),
        ("android", 'dog \\"x\\"', answer("d'eau"), "d\\'eau"),
        ("android", "\\@a \\? b", capitals, "\\@A ? B"),
        ("android", "<g>a</g> <b translate='no'>b</b> c", capitals, "<g>A</g> <b translate='no'>b</b> C"),
        ("android", "@android:string/ok", capitals, "@android:string/ok"),
        ("android", "?attr/b", capitals, "?attr/b"),
        ("android", "a &lt;b&gt;c&lt;/b&gt;\\nd", capitals, "A &lt;b&gt;C&lt;/b&gt;\\nD"),
        ("strings", "a\\nb", capitals, "A\\nB"),
        ("strings", "a\nb", capitals, "A\nB"),
        ("strings", "a\\tb\\rc", capitals, "A\\tB\\rC"),
        ("strings", "a \\101\\12b \\U00E9 \\u00e8", capitals, "A A\\nB É È"),
        ("strings", "a \\U2019s", capitals, "A \\U2019S"),
        ("laravel", "see {0} x", capitals, "SEE {0} X"),
        ("laravel", "{0} one x|[1,*] some x", capitals, "{0} ONE X|[1,*] SOME X"),
        ("laravel", "a\\\\b \\'c", capitals, "A\\\\B \\'C"),
        ("properties", "\\ a b", capitals, "\\ A B"),
        ("properties", "a\\n\\\n    b", capitals, "A\\n\\\n    B"),
        ("properties", "a\\fb", capitals, "A B"),
        ("properties", "it''s {0}\\n\\\r\n\tb", capitals, "IT''S {0}\\n\\\r\n\tB"),
        ("properties", "it''s", capitals, "IT''S"),
        ("qt", "a &lt;b&gt;c&lt;/b&gt;", capitals, "a &lt;b&gt;c&lt;/b&gt;"),
        ("resx", "a\r\nb <i>c</i>", capitals, "A\r\nB <i>C</i>"),
        ("stringsdict", "%d &amp; a", capitals, "%d &amp; A"),
    ],
)
def test_translations_are_spelled_like_their_file(kind: str, source: str, model: Model, expected: str) -> None:
    out = written(kind, around(kind, source), model)
    if kind == "qt":
        assert f"<source>{source}</source>" in out
        assert "A &lt;b&gt;C&lt;/b&gt;</translation>" in out
    else:
        assert out == around(kind, expected)


def test_a_double_quoted_string_of_php_keeps_its_escapes() -> None:
    text = '<?php return ["a" => "dog"];'
    out = written("laravel", text, lambda source: linked({'$x"\\': source})(source))
    assert out == '<?php return ["a" => "\\$x\\"\\\\"];'
    source = "<?php return ARRAY ( \"a\" => \"b\\n\\r\\tc\\$\", 'd' => TRUE, 'e' => NULL, 'f' => 'a_b', ) ; # x\n?>\n"
    assert written("laravel", source) == source.replace("b\\n\\r\\tc", "B\\n\\r\\tC")


RESERVED = "y Y n N yes No on OFF true False null NULL inf nan ~ -1 1.5 0x1 .5 = << 12:30 2024-01-01".split()  # noqa: SIM905


@pytest.mark.parametrize("word", [*RESERVED, " a", "a ", "a: b", "a:", "a #b", "a, b", "\x07a", "a\x7fb", "-", "a:b"])
def test_any_translation_remains_a_string_in_yaml(word: str) -> None:
    def model(source: str) -> str:
        return source

    for text in ("a: dog\n", "a: 'dog'\n", "a: |\n  dog\n", "a: >\n  dog\n", "[dog, x]\n", "{a: dog}\n", 'a: "dog"\n'):
        document = read("yaml", text, "")
        document.segments[0].result = [word]
        for segment in document.segments[1:]:
            segment.result = [model(segment.text)]
        out = document.write()
        value = yaml.safe_load(out)
        found = value[0] if isinstance(value, list) else value["a"]
        assert isinstance(found, str)
        assert found.rstrip("\n") == word.rstrip("\n"), out
        if word in ("y", "N", "on"):
            assert f'"{word}"' in out or f"'{word}'" in out or text[3] in "|>", (
                "other readers would read it as a boolean"
            )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: |\n  one\n\n  two\nb: x\n", "a: |\n  ONE\n\n  TWO\nb: X\n"),
        ("a: >\n  one\n\n\n  two\nb: x\n", 'a: "ONE\\n\\nTWO\\n"\nb: X\n'),
        ("a: |2\n   one\nb: x\n", 'a: " ONE\\n"\nb: X\n'),
        ("a: | # note\n  one\nb: x\n", 'a: "ONE\\n"\nb: X\n'),
        ("a: |\n  one\n   two\n", 'a: "ONE\\n TWO\\n"\n'),
        ("a: 'one\n\n  two'\n", 'a: "ONE\\nTWO"\n'),
        ("en: dog\n", "en: DOG\n"),
        ("&x en:\n  a: dog\n", "&x en:\n  a: DOG\n"),
        ("xx:\n  a: dog\n", "xx:\n  a: DOG\n"),
        ("en:\n  a: dog\n", "de:\n  a: DOG\n"),
        ("? - a\n: dog\n", "? - a\n: DOG\n"),
        ("a: ! '5'\nb: ! dog\n", "a: ! '5'\nb: ! DOG\n"),
        ("a: {one: dog,\n  other: dogs}\n", "a: {one: DOG,\n  other: DOGS}\n"),
        ("a: [[one two, x y], z]\n", "a: [[ONE TWO, X Y], Z]\n"),
        ("a: menu.file_open\nb: 'menu.file_open'\n", "a: menu.file_open\nb: 'menu.file_open'\n"),
    ],
)
def test_yaml_changes_nothing_but_the_text(text: str, expected: str) -> None:
    assert written("yaml", text) == expected


def test_a_message_without_tags_is_not_html() -> None:
    for kind in ("json", "arb", "strings"):
        assert texts_of(read(kind, around(kind, "a < 5 &lt; b <5")).parts) == ["a 5 &lt; b 5"], kind
    assert texts_of(read("laravel", around("laravel", "see a{0} x")).parts) == ["see a x"]
    assert texts_of(read("laravel", around("laravel", "see|{0} x")).parts) == ["see", "x"]
    assert "?" not in "".join(texts_of(read("laravel", '<?php return ["a" => "x \\u{d83d} y"];').parts))


def test_line_ends_and_comments_of_properties() -> None:
    text = "! a comment\r# b\ra = dog\r  \rb: cat\rc\rd=menu.file_open\r"
    assert written("properties", text) == text.replace("dog", "DOG").replace("cat", "CAT")
    assert written("properties", "a = it's {0}", same) == "a = it's {0}"
    with pytest.raises(DataError, match="NUL characters"):
        FORMATS["properties"].read(b"a = dog\n\0x", ReadOptions())


def test_strings_of_apple_in_an_old_encoding_and_with_comments() -> None:
    data = 'a /* x */ = /* "y" */ "dog ё";\n// end'.encode("cp1251")
    document = FORMATS["strings"].read(data, ReadOptions(source_language="ru"))
    assert filled(document, capitals) == 'a /* x */ = /* "y" */ "DOG Ё";\n// end'
    assert document.to_bytes() == 'a /* x */ = /* "y" */ "DOG Ё";\n// end'.encode("cp1251")


def test_plurals_of_messages_in_every_format() -> None:
    """New categories are inserted before "other", in the file's notation."""
    assert written("json", '{"a": {"one": "x %d", "other": "y %d"}}', language="pl") == (
        '{"a": {"one": "X %d", "few": "Y %d","many": "Y %d","other": "Y %d"}}'
    )
    text = '{ "a_ordinal_one": "x", "a_ordinal_other": "y", "a_other": "z"}'
    assert written("json", text, language="en") == (
        '{ "a_ordinal_one": "X", "a_ordinal_two": "Y", "a_ordinal_few": "Y", "a_ordinal_other": "Y", '
        '"a_one": "Z", "a_other": "Z"}'
    )
    assert written("json", '{"é_one": "x", "é_other": "y"}', language="ja") == '{"é_other": "Y"}'
    assert (
        written("json", '{"a_one": "x", "a_other": "menu.open"}', language="ru")
        == '{"a_one": "X", "a_other": "menu.open"}'
    )
    android = '<resources><plurals name="a">\n <item quantity="other"><b>%d</b> dogs</item>\n</plurals></resources>'
    assert written("android", android, language="de") == android.replace("dogs", "DOGS").replace(
        "<item", '<item quantity="one"><b>%d</b> DOGS</item>\n <item'
    )
    apple = "<plist><dict><key> one </key><string>x</string><key>other</key>\n<string>y %d</string></dict></plist>"
    assert written("stringsdict", apple, language="ja") == (
        "<plist><dict><key>other</key>\n<string>Y %d</string></dict></plist>"
    )
    one = "<dict><key>other</key><string>z</string></dict>"
    both = "<dict><key>one</key><string>Z</string><key>other</key><string>Z</string></dict>"
    assert written("stringsdict", f"<plist>{one}{one}</plist>", language="de") == (f"<plist>{both}{both}</plist>")
    spelled = '{"a_one": "{{n}} \\u0064og", "a_other": "{{n}} \\u0064ogs"}'
    assert written("json", spelled, same, "pl") == spelled.replace(
        '"a_other', '"a_few": "{{n}} \\u0064ogs","a_many": "{{n}} \\u0064ogs","a_other'
    )


@pytest.mark.parametrize("name", ["source", "oldsource", "comment", "oldcomment", "extracomment", "translatorcomment"])
def test_a_translation_in_qt_follows_its_notes(name: str) -> None:
    notes = "<location/><source>a dog</source>" + ("" if name == "source" else f"<{name}>b</{name}>")
    text = f"<TS><message>{notes}<userdata/></message></TS>"
    new = '<translation type="unfinished">A DOG</translation>'
    assert written("qt", text, language="") == f"<TS><message>{notes}{new}<userdata/></message></TS>"


def test_forms_of_qt_in_a_language_without_a_rule() -> None:
    text = '<TS><message numerus="{}"><source>%n dogs</source></message></TS>'
    assert written("qt", text.format("yes"), language="tlh").count("<numerusform>%n DOGS<") == 2
    assert written("qt", text.format("no"), language="ru").count("numerusform") == 0
    variants = (
        "<TS><message><source>dog</source><translation><lengthvariant>{}</lengthvariant></translation></message></TS>"
    )
    assert "DOG" in written("qt", variants.format(""))
    assert "DOG" not in written("qt", variants.format("Hund"))
    assert 'language="tlh"' in written("qt", text.format("no"), language="tlh")
    assert "language=" not in written("qt", text.format("no"), language="")


XLIFF = '<xliff version="1.2"{}><file target-language="de"><trans-unit{}>{}</trans-unit></file></xliff>'


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('a <mrk translate="no">b</mrk> c', 'A <mrk translate="no">b</mrk> C'),
        ('a <mrk mtype="term">b</mrk> c', 'A <mrk mtype="term">B</mrk> C'),
        ('a <g translate="no">b</g> c', 'A <g translate="no">b</g> C'),
        (
            'a <bpt id="1" rid="9">x</bpt>b<ept id="2" rid="9">y</ept>',
            'A <bpt id="1" rid="9">x</bpt>B<ept id="2" rid="9">y</ept>',
        ),
        ('a <ph id="1">b <sub>c</sub></ph> d', 'A <ph id="1">b <sub>c</sub></ph> D'),
        ("a\n b", "A B"),
        ("a\n\n b", "A\n\n B"),
        ("it's <g>b</g>&#x2019;", "IT'S <g>B</g>&#x2019;"),
    ],
)
def test_inline_elements_of_xliff(source: str, expected: str) -> None:
    out = written("xliff", XLIFF.format("", "", f"<source>{source}</source>"))
    assert out.partition('mt-suggestion">')[2].partition("</target>")[0] == expected


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ('<bpt id="1" rid="9">x</bpt>', '<ept id="2" rid="9">y</ept>'),
        ('<bpt id="1"/>', '<ept id="1"/>'),
        ('<bx id="1" rid="3"/>', '<ex id="2" rid="3"/>'),
        ('<sc id="5"/>', '<ec id="6" startRef="5"/>'),
        ('<x id="START_A"/>', '<x id="CLOSE_A"/>'),
        ("<g>", "</g>"),
        ("<pc>", "</pc>"),
    ],
)
def test_codes_of_xliff_are_pairs(begin: str, end: str) -> None:
    """Both codes follow the words between them."""
    source = f"<source>dog <m/> {begin}cat{end}</source>"
    out = written("xliff", XLIFF.format("", "", source), linked({"Katze": "cat", "Hund": "dog"}))
    assert f"{begin}Katze{end} Hund" in out
    source = f"<source>{begin}big cat{end} now</source>"
    model = linked({"Katze": "cat", "jetzt": "now", "große": "big"})
    assert f">{begin}Katze jetzt große{end}</target>" in written("xliff", XLIFF.format("", "", source), model)


def test_elements_around_a_unit_of_xliff_affect_it() -> None:
    source = "<source>a\nb</source>"
    assert "A\nB</target>" in written("xliff", XLIFF.format(' xml:space="preserve"', "", source))
    assert "A B</target>" in written("xliff", XLIFF.format(' xml:space="preserve"', ' xml:space="default"', source))
    parts = '<source>a. b.</source><seg-source><mrk mtype="seg">a.</mrk> <mrk mtype="seg">b.</mrk></seg-source>'
    out = written("xliff", XLIFF.format("", "", parts))
    assert re.search(
        r'</seg-source><target [^>]*><mrk mtype="seg">A.</mrk> <mrk mtype="seg">B.</mrk></target></trans', out
    )
    protected = parts.replace('<mrk mtype="seg">b.', '<mrk mtype="seg" translate="no">b.')
    assert '<mrk mtype="seg">A.</mrk> <mrk mtype="seg" translate="no">b.</mrk></target>' in written(
        "xliff", XLIFF.format("", "", protected)
    )
    out = written("xliff", XLIFF.format("", "", '<source>a</source>\n <target  state="new" x="1" />'))
    assert (
        '</source>\n <target  state="needs-review-translation" x="1" state-qualifier="mt-suggestion">A</target></'
        in out
    )
    version_2 = '<xliff version="2.0" srcLang="en" trgLang="de"><file><unit><segment>{}</segment></unit></file></xliff>'
    out = written("xliff", version_2.format("<source>a</source>"))
    assert out == version_2.format("<source>a</source><target>A</target>").replace(
        "<segment>", '<segment state="translated">'
    )
    done = version_2.format('<source>a</source><target state="x">b</target>')
    assert written("xliff", done) == done
    for empty in ("<source/>", "<source></source>", "<source> \n</source>", "<note>a</note>", ""):
        assert written("xliff", XLIFF.format("", "", empty)) == XLIFF.format("", "", empty)
    bare = '<xliff version="2.1" srcLang="en"><file/></xliff>'
    for language, code in (("deu_Latn", "de"), ("pt_BR", "pt-BR"), ("x-klingon", "x-klingon")):
        assert f'trgLang="{code}"' in written("xliff", bare, language=language)
    assert written("xliff", bare, language="") == bare


def with_stop(text: str) -> Aligned:
    """Return the source with a full stop, so that the file must be written anew."""
    return Aligned(f"{text}.", [*same(text).links, (len(text) + 1, max(len(text) - 1, 0))])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("android", r"It\u0027s here{}"),
        ("android", r"a \u0022b\u0022 c{}"),
        ("android", r"a \u005c b \'c\' \"d\"{}"),
        ("android", r'"it\u0027s \u0022a{}"'),
        ("android", '"it\'s \\\\u0041{}"'),
        ("android", r"\u0040a{}"),
        ("android", r"\@a{}"),
        ("strings", r"a \U005c b \U005cc\" d{}"),
        ("strings", r"a \U0022b\U0022 c{}"),
        ("strings", "C:\\\\new{}\nhere{}"),
        ("properties", "first{}\\n\\\n   C:\\\\new{}"),
    ],
)
def test_a_translation_escapes_each_character_once(kind: str, value: str) -> None:
    """It uses the escapes that the source uses, and no escape damages another one."""
    source, expected = (around(kind, value.replace("{}", stop)) for stop in ("", "."))
    assert written(kind, source, with_stop) == expected
