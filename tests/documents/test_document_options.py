"""Defaults, empty files, and options that reach the document of every format."""

import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_models import capitals, filled
from office_files import docx, paragraph, run, zipped
from test_subtitle_details import FILES, LONG, line, pieces
from tiny_model import content, memory_file

from nmt_cli.documents import translate
from nmt_cli.documents.document import Outline, ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.kept import Kept, kept
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import DataError
from nmt_cli.translation.translate import TranslateOptions


def test_the_defaults_of_reading() -> None:
    assert ReadOptions() == ReadOptions(
        protect=True, language="", ignored=(), outline=Outline((), (), True), source_language="", line_length=42,
        max_unpacked=256 << 20, kept=None,
    )  # fmt: skip
    assert ReadOptions(protect=False).protection() is None
    assert ReadOptions(protect=False).protection(strict=True, flags=["c-format"]) is None


def written(
    monkeypatch: pytest.MonkeyPatch, kind: str, data: bytes, protect: bool | None = None, **reading: Any
) -> str:
    """Translate a file with the command's function."""
    config = SimpleNamespace(src="en", tgt="de", pairs=())
    translator: Any = SimpleNamespace(counts=Counter[str](), max_length=9, config=config, directions=())
    monkeypatch.setattr(translate, "translate_aligned", lambda _, chunks, __: map(capitals, itertools.chain(*chunks)))
    target = memory_file()
    with Progress("translating", None, "lines") as progress:
        command = translate.runner(kind, None, protect, [], reading)
        command(translator, TranslateOptions(), memory_file(data), target, progress)
    return content(target).decode()


def test_options_of_the_command_reach_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    data = FILES["srt"].format(LONG, "x").encode()
    for length in (20, 30):
        lines = written(monkeypatch, "srt", data, line_length=length).split("\n")
        assert length - 10 < max(len(each) for each in lines if "-->" not in each) <= length
    kept = Kept(("dog",))
    assert written(monkeypatch, "html", b"<p>a dog %s sees", kept=kept) == "<p>A dog %s SEES"
    assert written(monkeypatch, "html", b"<p>a dog %s sees", protect=False, kept=kept) == "<p>A dog %S SEES"
    assert written(monkeypatch, "html", b"<p>a %s <x>b</x> c", ignored=("x",)) == "<p>A %s <x>b</x> C"
    assert written(monkeypatch, "xml", b"<a>b <c>d</c></a>", ignored=("c",)) == "<a>B <c>d</c></a>"
    apart = written(monkeypatch, "xml", b"<a><b>x</b> <b>y</b></a>", outline=Outline(joining=("b",)))
    assert apart == "<a><b>X</b> <b>Y</b></a>"
    with pytest.raises(DataError, match="unpacks to more than 9 bytes of text"):
        written(monkeypatch, "docx", docx(paragraph(run("a dog"))), max_unpacked=9)


TEXTS = {"html": b"<p>a dog %s", "md": b"a dog %s", "json": b'["a dog %s"]', "po": b'msgid "a dog %s"\nmsgstr ""\n'}
TEXTS |= {"android": b"<resources><string name='a'>a dog %s</string></resources>", "yaml": b"a: a dog %s\n"}
TEXTS |= {"strings": b'"a" = "a dog %@";', "laravel": b"<?php return ['a dog :s'];", "properties": b"a = a dog {0}"}
TEXTS |= {"srt": FILES["srt"].format("a dog %s", "x").encode(), "vtt": FILES["vtt"].format("a dog %s", "x").encode()}
TEXTS |= {"ass": b"[Events]\n" + line("a dog %s").encode(), "docx": docx(paragraph(run("a dog %s")))}
TEXTS |= {"xml": b"<a>a dog %s</a>", "resx": b'<root><data name="a"><value>a dog {0}</value></data></root>'}


@pytest.mark.parametrize("kind", TEXTS)
def test_phrases_and_placeholders_are_kept_in_every_format(kind: str) -> None:
    def seen(**options: Any) -> str:
        document = FORMATS[kind].read(TEXTS[kind], ReadOptions(**options))
        return document.segments[0].text

    mark = next(each for each in ("%s", "%@", ":s", "{0}") if each.encode() in TEXTS[kind] or kind == "docx")
    assert seen() == "a dog"
    assert seen(protect=False) == f"a dog {mark}"
    assert seen(kept=Kept(("dog",))) == "a"
    assert seen(kept=Kept(pattern="d.g")) == "a"
    assert seen(protect=False, kept=Kept(("dog",))) == f"a {mark}"
    assert seen(protect=False, kept=Kept(pattern="d.g")) == f"a {mark}"


EMPTY = {"html", "md", "po", "xml", "strings", "properties", "srt"}


@pytest.mark.parametrize("data", [b"", b"\n", b" \r\n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("kind", FORMATS)
def test_empty_files(kind: str, data: bytes) -> None:
    """A format that requires a root element or a header refuses them. The others return them unchanged."""
    if kind in EMPTY:
        document = FORMATS[kind].read(data, ReadOptions(language="de"))
        assert (document.segments, document.to_bytes()) == ([], data)
        return
    with pytest.raises(DataError) as error:
        FORMATS[kind].read(data, ReadOptions())
    assert len(str(error.value)) < 120


@pytest.mark.parametrize("kind", ["docx", "odt", "epub"])
def test_zip_files_of_another_kind_are_refused(kind: str) -> None:
    for members in ({"a": "b"}, {"mimetype": "a"}, {"content": "<a/>"}):
        with pytest.raises(DataError, match=r"the file has no .*, so it is not an? "):
            FORMATS[kind].read(zipped(members), ReadOptions())


@pytest.mark.parametrize(("seconds", "length"), [(1, 99), (9, 10)])
def test_too_much_text_moves_a_word_to_the_next_cue(seconds: float, length: int) -> None:
    """The limits are 17 characters per second and two lines. A word moves if the excess costs as much as the move."""
    for size, expected in ((21, True), (22, False), (40, False)):
        words = f"{'a' * 10} {'b' * (size - 11)}"
        found = pieces(f"{words} c", [0, 0, 1], ["x", "y"], [seconds, 9], length)
        assert found == ([words, "c"] if expected else ["a" * 10, f"{words[11:]} c"]), size


def test_a_document_is_written_as_it_is_until_it_is_translated() -> None:
    for kind, data in TEXTS.items():
        if kind not in ("po", "docx"):
            document = FORMATS[kind].read(data, ReadOptions())
            assert document.to_bytes() == data
            assert "DOG" in filled(document, capitals)


def test_a_file_of_phrases_that_is_no_text_is_named(tmp_path: Path) -> None:
    for data, words in (
        (b"a\nb\n\xff\n", ", line 3 is not UTF-8"),
        (b"PK\3\4\xff", " is not plain text, it looks like zip"),
    ):
        (tmp_path / "keep").write_bytes(data)
        with pytest.raises(DataError) as error:
            kept(tmp_path / "keep", None)
        assert str(error.value).startswith(f"{tmp_path / 'keep'}{words}")


LONG_NAME = "y" * 500


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("android", f"<resources></{LONG_NAME}></resources>"), ("android", f"<resources><{LONG_NAME}>"),
        ("android", f"<{LONG_NAME}/>"), ("xliff", f"<xliff version='{LONG_NAME}'/>"), ("json", f'{{"a" {LONG_NAME}}}'),
        ("yaml", f"a: [{LONG_NAME}"), ("yaml", f"%{LONG_NAME}\na: b"), ("yaml", f"a: @{LONG_NAME}"),
        ("laravel", f"<?php return [{LONG_NAME}];"), ("strings", f'"a" = {LONG_NAME}'), ("po", f"{LONG_NAME} \x1b[31m"),
        ("po", f'msgid "a"\n\x1b{LONG_NAME}'), ("srt", LONG_NAME), ("vtt", LONG_NAME), ("ass", LONG_NAME),
        ("docx", LONG_NAME),
    ],
)  # fmt: skip
def test_an_error_is_one_short_line_without_escapes(kind: str, text: str) -> None:
    with pytest.raises(DataError) as error:
        FORMATS[kind].read(text.encode(), ReadOptions())
    assert len(str(error.value)) < 250
    assert not {"\x1b", "\n"} & set(str(error.value))


def test_errors_of_office_files_cut_long_names_of_elements() -> None:
    for text in (f"<{LONG_NAME}>", f"</{LONG_NAME}>", f"<a></{LONG_NAME}>"):
        with pytest.raises(DataError) as error:
            FORMATS["docx"].read(docx(text), ReadOptions())
        assert "y" * 41 not in str(error.value)
