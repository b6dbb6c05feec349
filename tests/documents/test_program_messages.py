"""Android, Apple, Java, .NET, Qt and Laravel: escapes, encodings and plurals."""

import re

import pytest
from fake_models import Model, capitals, filled, linked, same
from message_files import ANDROID, QT, STRINGSDICT

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.system.errors import DataError


def translated(kind: str, text: str | bytes, language: str = "de", model: Model = capitals) -> bytes:
    document = FORMATS[kind].read(text.encode() if isinstance(text, str) else text, ReadOptions(language=language))
    filled(document, model)
    return document.to_bytes()


def answer(text: str) -> Model:
    return lambda source: linked({text: source[0]})(source)


@pytest.mark.parametrize(
    ("kind", "text", "model", "expected"),
    [
        # Android: apostrophes, quotes, @ and ? at the beginning, line ends, tags as text.
        ("android", "Don\\'t", answer("d'eau"), "d\\'eau"),
        ("android", "dog", answer('@a "b" \\'), '\\@a \\"b\\" \\\\'),
        ("android", '"it\'s"', answer("d'eau"), '"d\'eau"'),
        ("android", '"it\'s"', answer('l\'"eau"'), '"l\'\\"eau\\""'),
        ("android", "a\\nb &lt;b&gt;c&lt;/b&gt;", capitals, "A\\nB &lt;b&gt;C&lt;/b&gt;"),
        ("android", "%1$s of <xliff:g id='x'>%2$s</xliff:g>", capitals, "%1$s OF <xliff:g id='x'>%2$s</xliff:g>"),
        ("strings", 'a \\"b\\" caf\\U00e9', capitals, 'A \\"B\\" CAFÉ'),
        ("strings", "dog", answer('a "b" \\'), 'a \\"b\\" \\\\'),
        ("android", "caf\\u00e9 \\uD83D\\uDE00 x", capitals, "CAFÉ \U0001f600 X"),
        ("strings", "caf\\U00e9 \\Ud83d\\Ude00 x", capitals, "CAFÉ \U0001f600 X"),
        ("yaml", "caf\\u00e9 \\ud83d\\ude00 x", capitals, "CAF\\u00c9 \\ud83d\\ude00 X"),
        ("json", "a \\ud83d b {{n\\ud83d}}", capitals, "A ? B {{n?}}"),
        ("properties", "it''s {0} o''clock", capitals, "IT''S {0} O''CLOCK"),
        ("properties", "{0} dogs", answer("d'eau"), "{0} d''eau"),
        ("properties", "it's", answer("d'eau"), "d'eau"),
        ("properties", "caf\\u00e9 \\uD83D\\uDE00 x", capitals, "CAF\\u00c9 \\ud83d\\ude00 X"),
        ("properties", "dog", answer("Süd \U0001f600\\"), "S\\u00fcd \\ud83d\\ude00\\\\"),
        ("laravel", "it\\'s :name", capitals, "IT\\'S :name"),
        ("laravel", "dog", answer("a'b\\"), "a\\'b\\\\"),
        ("laravel", "one dog|:count dogs", capitals, "ONE DOG|:count DOGS"),
        ("resx", "a &amp; {0}", capitals, "A &amp; {0}"),
    ],
)
def test_escapes(kind: str, text: str, model: Model, expected: str) -> None:
    around = {
        "android": '<resources><string name="a">{}</string></resources>',
        "strings": '"a" = "{}";',
        "yaml": 'a: "{}"\n',
        "json": '["{}"]',
        "properties": "a = {}\n",
        "laravel": "<?php return ['a' => '{}'];",
        "resx": '<root><data name="a"><value>{}</value></data></root>',
    }[kind]
    before, after = around.split("{}", 1)
    assert translated(kind, before + text + after, model=model).decode() == before + expected + after


def test_encodings() -> None:
    assert translated("strings", "a = Redo;") == b'a = "REDO";'
    text = '"a" = "café";\n'
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        assert translated("strings", text.encode(encoding)).decode(encoding) == '"a" = "CAFÉ";\n'
        assert translated("strings", text.encode(encoding), model=same) == text.encode(encoding)
    latin = "a = café\n".encode("latin-1")
    assert translated("properties", latin, model=same) == latin
    assert translated("properties", latin) == b"a = CAF\\u00c9\n"
    assert translated("properties", "a = café\n").decode() == "a = CAFÉ\n"
    with pytest.raises(DataError, match="NUL"):
        translated("properties", b"a = \0")


def test_plurals_of_the_target_language() -> None:
    android = translated("android", ANDROID, "ru").decode()
    assert re.findall(r'quantity="(\w+)">(.*?)<', android) == [(name, "%d DOGS") for name in RUSSIAN]
    assert '</item>\n        <item quantity="few">' in android
    assert re.findall(r'quantity="(\w+)"', translated("android", ANDROID, "ja").decode()) == ["other"]
    apple = translated("stringsdict", STRINGSDICT, "ru").decode()
    assert re.findall(r"<key>(one|two|few|many|other)</key>\s*<string>(.*?)<", apple) == [
        (n, "%d DOGS") for n in RUSSIAN
    ]
    for language, count in (("de", 2), ("ru", 3), ("ja", 1)):
        qt = translated("qt", QT, language).decode()
        assert qt.count("<numerusform>%n DOG(S)</numerusform>") == count
        assert f'language="{language}"' in qt


RUSSIAN = ["one", "few", "many", "other"]


def test_qt_keeps_existing_translations() -> None:
    written = translated("qt", QT).decode()
    assert "<translation>fertig</translation>" in written
    assert '<translation type="unfinished">Entwurf</translation>' in written
    assert '<translation type="vanished"></translation>' in written
    assert '<translation type="unfinished">&amp;OPEN %1 <byte value="x9"/>NOW</translation>' in written
    assert translated("qt", written) == written.encode()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("laravel", "<?php echo 'a';"),
        ("laravel", "<?php return ['a' => $x];"),
        ("laravel", "<?php return ['a' => \"b $x\"];"),
        ("laravel", "<?php return ['a' => 'b' . 'c'];"),
        ("laravel", "<?php return ['a' => trans('b')];"),
        ("laravel", "<?php return ['a'); "),
        ("laravel", "<?php return 'a';"),
        ("strings", '"a" = "b"'),
        ("strings", "<plist></plist>"),
        ("qt", "export const a = 5;"),
        ("android", "<manifest/>"),
        ("resx", "<root>"),
        ("stringsdict", "<plist><dict></plist>"),
    ],
)
def test_other_files_are_refused(kind: str, text: str) -> None:
    with pytest.raises(DataError, match=r"^this is not a valid .*: line 1 has "):
        translated(kind, text)
