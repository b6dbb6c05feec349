"""All formats of messages: unchanged bytes, damaged and hostile files."""

import random
from pathlib import Path

import pytest
from fake_models import backwards, capitals, filled, same, silent
from growth import is_linear
from message_files import SAMPLES

from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.messages import is_code
from nmt_cli.system.errors import DataError

ROOTS = {
    "android": "<resources>",
    "xliff": "<xliff>",
    "xliff-2": "<xliff>",
    "stringsdict": "<plist>",
    "resx": "<root>",
    "qt": "<TS>",
}
BODIES = {  # the text before and after the messages
    "json": ("{", "\n}"),
    "arb": ("{", "\n}"),
    "yaml": ("en:\n", ""),
    "android": ('schemas.android.com/tools">', "</resources>"),
    "xliff": ("<body>", "</body>"),
    "xliff-2": ('<file id="f">', "</file>"),
    "stringsdict": ("<dict>", "</dict>"),
    "resx": ("</resheader>", "</root>"),
    "qt": ("</name>", "</context>"),
    "laravel": ("return [", "];"),
}
# Formats in which the translation replaces the source text.
IN_PLACE = [name for name in SAMPLES if name not in ("xliff", "xliff-2", "qt")]
# For each sample: segments that a model sees, and words that it does not see.
SEEN = {
    "json": (["Hello é world", 'a/b and "c" \\ d', "One dog", "You have no file in", "items", "Quit"], "For menu"),
    "arb": (["Hello", "no dogs of his", "one dog of theirs"], "greeting Ann en"),
    "yaml": (["Hello", "it's me", "First line", "some folded text here", "the anchor"], "%Y year 2024"),
    "android": (["Don't stop", "the cat's", "A big dog", "dark blue"], "My string 5"),
    "xliff": (["Hello big world. It & bold", "Two dogs", "See the page", "one", "A dog.", "B cat."], "Kept fertig"),
    "xliff-2": (["Hi there my dog"], "no b"),
    "strings": (['Hello "big" world', "one", "two \\ three", "first"], "comment title"),
    "stringsdict": (["here", "one & only dog", "dogs", "short text"], "NSStringPluralRuleType d wide"),
    "properties": (["Hello world", "dogs aren't here", "café is open", "first line goes on", "Quit"], "comment title"),
    "resx": (["Hello big world", "second line"], "Fabrikam 75 button translators text/microsoft-resx"),
    "qt": (["Open now", "dog(s)", "without one"], "menu fertig draft gone n"),
    "laravel": (["Hello and it's open", 'a "big" dog', "second$text", "Some dogs"], "comment title number"),
}


def read(name: str, text: str, language: str = "de") -> Document:
    form = FORMATS[name.removesuffix("-2")]
    return form.read(text.encode() if form.binary else text, ReadOptions(language=language))


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("model", [same, silent])
def test_a_file_is_unchanged_byte_for_byte_if_translations_are_equal_or_empty(name: str, model: object) -> None:
    for text in (SAMPLES[name], SAMPLES[name].replace("\n", "\r\n")):
        document = read(name, text, language="")
        assert document.segments
        assert filled(document, same if model is same else silent) == text


@pytest.mark.parametrize("name", SAMPLES)
def test_the_model_sees_the_text_and_nothing_else(name: str) -> None:
    texts = [segment.text for segment in read(name, SAMPLES[name]).segments]
    wanted, hidden = SEEN[name]
    assert set(wanted) <= set(texts)
    words = " ".join(texts).split()
    assert not set(hidden.split()) & set(words)
    assert not any(character in "{}%<>" for text in texts for character in text)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_translated_file_can_be_read_again(name: str) -> None:
    """In place, it has as many distinct segments as before. In other formats, nothing is left to translate."""
    for model in (capitals, backwards):
        before = read(name, SAMPLES[name])
        after = read(name, filled(before, model))
        if name in IN_PLACE:
            assert len({each.text for each in after.segments}) == len({each.text for each in before.segments})
        else:
            assert after.segments == []


@pytest.mark.parametrize("name", SAMPLES)
def test_damaged_files_are_read_or_refused(name: str) -> None:
    """Remove, repeat or replace parts of a file. If it can still be read, empty translations leave it unchanged."""
    rng, sample, refusals = random.Random(7), SAMPLES[name], list[str]()
    marks = ["{", "}", '"', "<", ">", "&", "'", "\\", "\0", "\n", "\ud7ff", "]]>", "<!--", "- ", ": ", "{n, plural, "]
    for _ in range(100):
        text = sample
        for _ in range(rng.randint(1, 4)):
            start, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
            end = min(end, start + 200)
            text = text[:start] + rng.choice(["", rng.choice(marks), text[start:end] * 2]) + text[end:]
        try:
            document = read(name, text, language=rng.choice(["", "de", "ru", "ja"]))
        except DataError as error:
            refusals.append(str(error))
            continue
        filled(document, backwards)
        if name in IN_PLACE:
            assert filled(read(name, text, language=""), silent) == text
    assert refusals or name == "properties"
    assert not [wrong for wrong in refusals if len(wrong) > 300 or "\n" in wrong]


@pytest.mark.parametrize("name", SAMPLES)
def test_reading_hostile_files_opens_no_other_file_and_does_not_overflow_the_stack(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the hidden text")
    unit = {"json": '{"a":', "arb": '{"a":', "yaml": "- ", "laravel": "<?php return ["}.get(name, ROOTS.get(name, "{"))
    for text in (str(secret), "", "\0", "[" * 10_000, "{" * 10_000, unit * 10_000, f"<?php return {'[' * 10_000}"):
        try:
            written = filled(read(name, text, language=""))
        except DataError as error:
            written = str(error)
            refused = True
        else:
            refused = written == text
        assert refused
        assert "hidden" not in written
        assert written == text or len(written) < 300


@pytest.mark.parametrize("name", ROOTS)
def test_no_entity_is_expanded(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the hidden text")
    entity = f'<?xml version="1.0"?><!DOCTYPE r [<!ENTITY a SYSTEM "file://{secret}"><!ENTITY b "{"&a;" * 9}">]>'
    whole = SAMPLES[name][SAMPLES[name].index(ROOTS[name][:-1]) :].replace("<![CDATA[", "<!--").replace("]]>", "-->")
    text = entity + whole.replace("dog", "&a;&b; dog")
    written = filled(read(name, text, language=""))
    assert "hidden" not in written
    assert written.count("&a;") >= text.count("&a;")


@pytest.mark.parametrize("name", SAMPLES)
def test_time_grows_linearly_with_the_length_of_the_file(name: str) -> None:
    """The file's body is repeated."""
    sample = SAMPLES[name]
    begin, end = BODIES.get(name, ("", ""))
    start = sample.index(begin) + len(begin)
    stop = sample.rindex(end) if end else len(sample)
    body = sample[start:stop].replace("&a ", "").replace("*a", "b") + ("," if name in ("json", "arb") else "")
    after = '"z": "z"' + sample[stop:] if name in ("json", "arb") else sample[stop:]
    assert is_linear(lambda text: filled(read(name, text), silent), body, sample[:start], after)


def test_identifiers_and_paths_are_not_text() -> None:
    code = ["menu.file_open", "/usr/bin", "#ff0000", "file_name", "btn-2x", "%Y-%m-%d", ":year", "images/a/b.png"]
    text = ["and/or", "Sign-in", "km/h", "Save.", "e.g.", "well-known", "%d files", "he/she/they", "Open", "Node.js"]
    assert [is_code(each) for each in (*code, *text)] == [True] * len(code) + [False] * len(text)
