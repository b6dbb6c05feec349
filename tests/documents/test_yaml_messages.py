"""YAML: scalars keep their style where it suits the text. PyYAML reads the same data, except for the text."""

import pytest
import yaml
from fake_models import Model, backwards, capitals, filled, linked

from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.yaml_messages import read
from nmt_cli.system.errors import DataError


def translated(text: str, language: str = "", model: Model = capitals) -> str:
    return filled(read(text, ReadOptions(protect=model is capitals, language=language)), model)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: the dog # x\n", "a: THE DOG # x\n"),
        ("a: 'it''s'\n", "a: 'IT''S'\n"),
        ('a: "caf\\u00e9 \\"x\\""\n', 'a: "CAF\\u00c9 \\"X\\""\n'),
        ("a: |\n   one\n   two\n\nb: 5\n", "a: |\n   ONE\n   TWO\n\nb: 5\n"),
        ("a: >\n  one two\n  three\nb: x\n", "a: >\n  ONE TWO THREE\nb: X\n"),
        ("- {a: dog, b: [cat]}\n", "- {a: DOG, b: [CAT]}\n"),
        ("a: &x dog\nb: *x\nc: !!str cat\nd: !ruby/symbol x\n", "a: &x DOG\nb: *x\nc: !!str CAT\nd: !ruby/symbol x\n"),
        ("a: yes\nb: null\nc: 1.5\nd: 2024-01-01\n", "a: yes\nb: null\nc: 1.5\nd: 2024-01-01\n"),
        ("a: [:year, :month]\nb: :sym\n", "a: [:year, :month]\nb: :sym\n"),
        ("---\na: x\n---\nb: z\n", "---\na: X\n---\nb: Z\n"),
    ],
)
def test_styles(text: str, expected: str) -> None:
    assert translated(text) == expected


@pytest.mark.parametrize(
    "word", ["No", "a: b", "# x", "[x", "-", "yes", "5x # y", "x:", "'", '"', "@a", "*b", "{", "\u2028x"]
)
def test_a_translation_is_always_the_same_string(word: str) -> None:
    """Plain scalars get quotes where YAML would read the text as something else."""
    for text in ("a: dog\n", "a: [dog, cat]\n", "a: 'dog'\n", 'a: "dog"\n', "a: |\n  dog\n", "a: >-\n  dog\nb: 1\n"):
        written = translated(text, model=linked({f"{word}Q{word}": "dog"}) if "cat" not in text else backwards)
        value = yaml.safe_load(written)["a"]
        if "cat" not in text:
            assert "".join(value.split()) == "".join(f"{word}Q{word}".split())


def test_the_language_and_its_plurals() -> None:
    text = "en-US:\n  dogs:\n    one: one dog\n    other: '%{count} dogs'\n  x: {one: a, other: b}\n"
    data = yaml.safe_load(translated(text, "ru"))
    assert list(data) == ["ru"]
    assert data["ru"]["dogs"] == dict.fromkeys(["one", "few", "many", "other"], "%{count} DOGS")
    assert list(data["ru"]["x"]) == ["one", "few", "many", "other"]
    assert translated(text, "ja") == "ja:\n  dogs:\n    other: '%{count} DOGS'\n  x: {other: B}\n"
    assert translated("dog:\n  a: b\n", "de") == "dog:\n  a: B\n"
    assert translated("en: dog\nfr: cat\n", "de") == "en: DOG\nfr: CAT\n"


@pytest.mark.parametrize("text", ["", "dog", "a: [", "a: b: c", "\ta: b", "a: *x: y", "a: 'x", "%", "a: \x01"])
def test_other_files_are_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"^this is not a (valid )?YAML file of messages"):
        read(text, ReadOptions())
