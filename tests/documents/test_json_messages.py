"""JSON: only text changes, and it keeps the file's spelling. Plurals get the target language's keys."""

import json

import pytest
from fake_models import capitals, filled, linked, texts_of

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.json_messages import read
from nmt_cli.system.errors import DataError


def translated(text: str, language: str = "de", kind: str = "json") -> str:
    return filled(FORMATS[kind].read(text, ReadOptions(language=language)), capitals)


def test_the_spelling_is_that_of_the_file() -> None:
    assert translated('{"a": "caf\\u00e9", "b":"x\\/y z"}') == '{"a": "CAF\\u00c9", "b":"X\\/Y Z"}'
    assert translated('{"a": "café \\"x\\""}') == '{"a": "CAFÉ \\"X\\""}'
    assert translated('["a b",\n\n  {"k" : "c"} ]\n') == '["A B",\n\n  {"k" : "C"} ]\n'
    assert translated('{"a": [], "b": [{}, [ ], "c"]}') == '{"a": [], "b": [{}, [ ], "C"]}'


def test_plural_keys() -> None:
    text = '{\n  "dog_one": "{{count}} dog",\n  "dog_other": "{{count}} dogs",\n  '
    text += '"cat": {"one": "a cat", "other": "%d cats"}\n}'
    russian = json.loads(translated(text, "ru"))
    assert list(russian) == ["dog_one", "dog_few", "dog_many", "dog_other", "cat"]
    assert russian["dog_one"] == "{{count}} DOG"
    assert russian["dog_few"] == russian["dog_other"] == "{{count}} DOGS"
    assert russian["cat"] == dict.fromkeys(["one", "few", "many", "other"], "%d CATS"), "21 is not “a cat”"
    assert json.loads(translated(text, "ja")) == {"dog_other": "{{count}} DOGS", "cat": {"other": "%d CATS"}}
    assert '",\n  "dog_few": "' in translated(text, "ru")
    apart = '{"dog_one": "a", "x": "y", "dog_other": "b"}'
    assert json.loads(translated(apart, "ja")) == {"dog_one": "A", "x": "Y", "dog_other": "B"}


def test_keys_with_escapes_are_not_plurals() -> None:
    for key in ("\\u0061", "a\\/b", 'x\\"y', "\\ud83d\\ude00"):
        text = f'{{"{key}_one": "dog", "{key}_other": "dogs"}}'
        assert translated(text, "ru") == text.replace("dog", "DOG").replace("DOGs", "DOGS")
    assert list(json.loads(translated('{"ö_one": "a", "ö_other": "b"}', "ru"))) == [
        "ö_one",
        "ö_few",
        "ö_many",
        "ö_other",
    ]


def test_notes_for_translators_stay() -> None:
    chrome = '{"a": {"message": "hi $NAME$", "description": "note", "placeholders": {"name": {"content": "x y"}}}}'
    assert translated(chrome) == chrome.replace("hi ", "HI ")
    formatjs = '{"x1": {"defaultMessage": "{n, plural, one {a dog} other {# dogs}}", "description": "note"}}'
    assert json.loads(translated(formatjs))["x1"]["description"] == "note"
    bundle = '{"@@locale": "en_US", "a": "dog", "@a": {"description": "note"}}'
    assert translated(bundle, "pt-BR", "arb") == '{"@@locale": "pt_BR", "a": "DOG", "@a": {"description": "note"}}'


def test_placeholders_follow_their_words() -> None:
    document = read('{"a": "Hi {name}, see %s now"}', ReadOptions())
    model = linked({"jetzt": "now", "sehen": "see"})
    assert texts_of(document.parts) == ["Hi , see now"]
    assert json.loads(filled(document, model))["a"].count("%s") == 1


@pytest.mark.parametrize(
    "text",
    [
        " 5",
        ' "a"',
        " {",
        ' {"a" "b"}',
        ' {"a": "b",}',
        " [1 2]",
        ' {"a": "b"} x',
        " {'a': 1}",
        ' ["\n"]',
        " [1,]",
        " [}",
        ' {"a": nul}',
        ' ["\\x"]',
        " [01]",
        " {]",
        '\n    {"a"}',
        " {1: 2}",
    ],
)
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"^this is not a valid JSON message catalog: line "):
        read(text, ReadOptions())
