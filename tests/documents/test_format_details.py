"""Formats by file name, options that exclude each other, and settings that commands pass to documents."""

import gc
import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from fake_models import capitals, filled, same, texts_of
from tiny_model import content, memory_file

from nmt_cli import documents
from nmt_cli.documents import alignment
from nmt_cli.documents import translate as module
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS, SUFFIXES, kind_of
from nmt_cli.documents.kept import Kept, kept
from nmt_cli.documents.placement import Aligned
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.translate import TranslateOptions

KINDS = {
    "html": ".html .htm", "md": ".md .markdown", "po": ".po .pot", "xliff": ".xlf .xliff", "json": ".json",
    "arb": ".arb", "yaml": ".yml .yaml", "android": ".xml", "strings": ".strings", "stringsdict": ".stringsdict",
    "properties": ".properties", "resx": ".resx .resw", "qt": ".ts", "laravel": ".php", "srt": ".srt", "vtt": ".vtt",
    "ass": ".ass .ssa", "docx": ".docx .docm .dotx", "pptx": ".pptx .pptm .ppsx .potx", "xlsx": ".xlsx .xlsm .xltx",
    "odt": ".odt .ott", "odp": ".odp .otp", "ods": ".ods .ots", "epub": ".epub",
}  # fmt: skip


def test_suffixes_of_all_formats() -> None:
    assert {suffix: kind for kind, names in KINDS.items() for suffix in names.split()} == SUFFIXES
    for suffix, kind in SUFFIXES.items():
        assert kind_of(Path(f"none{suffix.upper()}")) == kind
    assert FORMATS.keys() - KINDS.keys() == {"xml"}


def test_only_the_first_four_kilobytes_decide_the_format(tmp_path: Path) -> None:
    for name, marker, kind in (("a.XML", b"<resources", "android"), ("a.ts", b"<TS", "qt")):
        for before, found in ((0, kind), (4096 - len(marker), kind), (4097 - len(marker), None)):
            (tmp_path / name).write_bytes(b" " * before + marker + b">")
            assert kind_of(tmp_path / name) == found


@pytest.mark.parametrize("kind", [kind for kind, form in FORMATS.items() if not form.binary])
def test_text_formats_keep_a_byte_order_mark_and_name_the_bad_byte(kind: str) -> None:
    texts = {
        "po": 'msgid "a"\nmsgstr ""\n', "json": '["a b"]', "arb": '{"a": "b"}', "yaml": "a: b\n", "md": "a b",
        "xliff": '<xliff version="1.2"/>', "android": "<resources/>", "stringsdict": "<plist/>", "resx": "<root/>",
        "qt": "<TS/>", "laravel": "<?php return [];", "html": "<p>a", "xml": "<p>a</p>",
    }  # fmt: skip
    data = b"\xef\xbb\xbf" + texts[kind].encode()
    assert FORMATS[kind].read(data, ReadOptions()).to_bytes()[:3] == data[:3]
    assert not FORMATS[kind].read(data[3:], ReadOptions()).to_bytes().startswith(data[:3])
    advice = "msgconv -t UTF-8" if kind == "po" else "iconv"
    with pytest.raises(DataError, match=rf"^the input is not UTF-8: byte 1,001 is invalid\. .* with {advice}$"):
        FORMATS[kind].read(b" " * 1001 + b"\xff", ReadOptions())
    with pytest.raises(DataError, match="the input is not plain text, it looks like zip"):
        FORMATS[kind].read(b"PK\3\4" + bytes(99), ReadOptions())


@pytest.mark.parametrize(
    ("kind", "markup", "file", "words"),
    [
        (None, "html", "a.po", r"^--markup is for lines of text, but a\.po is a document \(po\)\. Leave out --markup,"),
        ("jsonl", None, "a.po", r"^--format jsonl is for lines of text, but a\.po is a document \(po\)"),
        ("jsonl", "html", "a.docx", r"^--markup is for lines of text, but a\.docx is a document \(docx\)"),
        ("po", "html", "a.po", "^--markup is for lines of text, and this --format is for a whole file"),
        ("html", "html", "a.txt", "^--markup is for lines of text, and this --format is for a whole file"),
        ("jsonl", "html", None, "^--format jsonl works on plain lines only"),
        ("jsonl", "html", "a.txt", "^--format jsonl works on plain lines only"),
    ],
)
def test_options_that_exclude_each_other(kind: str | None, markup: str | None, file: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        documents.choose(kind, Path(file) if file else None, markup, None, [])


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("a.TXT", True), ("a.en_US", True), ("a.deu", True), ("a.01", True), ("a.٣", True), ("a", True),
        ("a.xyz", False),
        ("a.pdf", False), ("tmp.AbC1234xyz", True), ("tmp.AbC1234xy", False), ("a.zst", True), ("a.gz", True),
        ("a.doc", False), (".hidden", True), ("a.XML", False), ("a.ts", False),
    ],
)  # fmt: skip
def test_names_of_files_with_lines(tmp_path: Path, name: str, fits: bool) -> None:
    (tmp_path / name).write_text("a\n")
    assert documents.choose(None, tmp_path / f"none-{name}", None, None, []) is None or name in ("a.XML", "a.ts")
    if fits:
        assert documents.choose(None, tmp_path / name, None, None, []) is None
        documents.check_lines([tmp_path / name], None)
        return
    with pytest.raises(UsageError) as error:
        documents.choose(None, tmp_path / name, None, None, [])
    assert "Use --format text to translate it line by line" in str(error.value)
    if name == "a.XML":
        assert 'has a suffix of the format android, but no "<resources" near its beginning' in str(error.value)
    with pytest.raises(UsageError, match=r"is of an unknown format\. Leave out --shard, or use --format text"):
        documents.check_lines([tmp_path / "none.txt", tmp_path / name], None)
    documents.check_lines([tmp_path / name], "text")
    assert documents.choose("text", tmp_path / name, None, None, []) is None
    assert documents.choose(None, tmp_path / name, "html", None, []).keywords["is_html"]


def test_shards_of_documents_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^--shard translates lines, but a\.po is a document \(po\)"):
        documents.check_lines([Path("a.txt"), Path("a.po")], None)
    with pytest.raises(UsageError, match=r"but a\.txt is a document \(html\)"):
        documents.check_lines([Path("a.txt")], "html")
    with pytest.raises(UsageError, match=r"but a\.po is a document \(html\)"):
        documents.check_lines([Path("a.po")], "html")
    documents.check_lines([Path("a.po")], "text")


def test_kept_words_need_no_other_option() -> None:
    reading = {"kept": Kept(("dog",))}
    run = documents.choose(None, Path("a.txt"), None, None, [], reading)
    protection = run.keywords["protection"]
    assert [piece.source for piece in protection.pieces("a dog %s") if piece.kind != "text"] == ["dog"]
    assert not run.keywords["is_html"]
    run = documents.choose(None, Path("a.txt"), None, True, [], reading)
    assert len([piece for piece in run.keywords["protection"].pieces("a dog %s") if piece.kind != "text"]) == 2
    assert documents.choose(None, Path("a.po"), None, False, [], reading).keywords["reading"] == ReadOptions(
        protect=False, kept=Kept(("dog",))
    )


def test_options_for_plain_lines_are_named_as_on_the_command_line() -> None:
    for plain, option in ((["n_best"], "--n-best"), (["prefix", "n_best"], "--prefix"), (["a_b_c"], "--a-b-c")):
        with pytest.raises(UsageError, match=f"^{option} works on plain lines only"):
            documents.choose("html", None, None, None, plain)


def translate(kind: str, data: bytes, options: TranslateOptions, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    config = SimpleNamespace(src="ru", tgt="de", pairs=())
    translator: Any = SimpleNamespace(counts=Counter[str](), max_length=9, config=config, directions=())
    monkeypatch.setattr(module, "translate_aligned", lambda _, chunks, __: map(capitals, itertools.chain(*chunks)))
    target = memory_file()
    with Progress("translating", None, "lines") as progress:
        run = module.runner(kind, more.get("markup"), None, [], {})
        run(translator, options, memory_file(data), target, progress)
        return content(target), progress


def test_the_languages_of_the_model_reach_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    cue = "1\n00:00:01,000 --> 00:00:02,000\nЖук\n"
    out, progress = translate("srt", cue.encode("cp1251"), TranslateOptions(), monkeypatch)
    assert out.decode("cp1251") == cue.upper()
    assert (progress.unit, progress.total, progress.done) == ("segments", 1, 1)
    out, _ = translate("html", b'<html lang="ru"><p>a', TranslateOptions(), monkeypatch)
    assert out == b'<html lang="de"><p>A'


def test_lines_are_counted_from_the_first_line_of_a_unit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = list[Any]()
    monkeypatch.setattr(module, "report", lambda *arguments: reports.append(arguments))
    data = b"a\n\n<p></p>\nb <br> c\n\xff\n"
    with pytest.raises(DataError, match="line 14 "):
        translate("text", data, TranslateOptions(strict=True, first_line=10), monkeypatch, markup="html")
    all_read = Mock()
    options = TranslateOptions(is_unit=True, all_read=all_read)
    out, progress = translate("text", data, options, monkeypatch, markup="html")
    all_read.assert_called_once_with()
    assert out == "A\n\n<p></p>\nB <br> C\n\ufffd\n".encode()
    assert (progress.done, reports) == (5, [])
    translate("text", data, TranslateOptions(), monkeypatch, markup="html")
    assert len(reports) == 1
    capsys.readouterr()


def test_garbage_collection_resumes_after_a_damaged_file(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b'{"a": "b"}', b"{"):
        try:
            translate("json", data, TranslateOptions(), monkeypatch)
        except DataError:
            assert data == b"{"
        assert gc.isenabled()


def test_the_hypothesis_of_a_rank_is_linked_to_its_own_tokens() -> None:
    words = {1: "a", 2: "b", 3: "c"}

    def decode(lists: list[list[int]]) -> list[str]:
        return [" ".join(words[each] for each in ids) for ids in lists]

    tokenizer = SimpleNamespace(decode=decode, tokens=lambda ids: [f"\u2581{words[each]}" for each in ids])
    tokenizer.target = tokenizer
    outputs = [([3, 1], [1, 0]), ([2], [0])]

    def parts(rank: int) -> list[Any]:
        ids, positions = outputs[rank]
        return [([1, 2, 0], SimpleNamespace(ids=ids, source_positions=positions))]

    texts = [SimpleNamespace(text="C A"), SimpleNamespace(text="B")]
    result: Any = SimpleNamespace(copy=None, case=True, corrections={}, parts=parts, hypotheses=texts)
    translator: Any = SimpleNamespace(tokenizer=tokenizer)
    for rank, expected in (
        (0, Aligned("C A", [(1, 2), (3, 0)])),
        (1, Aligned("B", [(1, 0)])),
        (7, Aligned("B", [(1, 0)])),
    ):
        assert alignment.align(translator, result, "A B", rank) == expected


def test_offsets_between_spellings_of_different_lengths() -> None:
    assert alignment.offsets_in("ab ", "ab") == [0, 1, 2, 3]
    assert alignment.offsets_in("xxab ", "ab") == [0, 0, 0, 1, 2, 2]
    assert alignment.offsets_in("ab cd ", "ab  cd") == [0, 1, 2, 4, 5, 6, 6]
    assert alignment.offsets_in("", "") == [0]


def test_alignments_are_requested_along_with_the_other_options() -> None:
    given = list[SearchOptions]()

    def search(chunks: Any, options: SearchOptions) -> Any:
        given.append(options)
        for text in itertools.chain(*chunks):
            yield [SimpleNamespace(copy=SimpleNamespace(text=text.strip()), hypotheses=[None])]

    translator: Any = SimpleNamespace(translate_chunks=search)
    found = list(alignment.translate_aligned(translator, [["5", " 6 7"], ["8"]], SearchOptions(beam=3, n_best=2)))
    assert [each.text for each in found] == ["5", "6 7", "8"]
    assert found[1].links == [(1, 1), (3, 3)]
    assert given == [SearchOptions(beam=3, n_best=2, alignments=True)]


def test_files_of_words_and_their_errors(tmp_path: Path) -> None:
    (tmp_path / "keep").write_bytes(b"\xef\xbb\xbfone\t\r\n  two three \n\n\xef\xbb\xbf\nlast")
    assert kept(tmp_path / "keep", None) == Kept(("one", "two three", "last"))
    assert kept(None, "x") == Kept((), "x")
    with pytest.raises(UsageError, match=r"^--protect-pattern “\(” is not a regular expression: "):
        kept(tmp_path / "keep", "(")
    for text in ("a catdog b", "a dogcat b", "a cat-dog b"):
        document = FORMATS["html"].read(text, ReadOptions(kept=Kept(("dog",))))
        assert texts_of(document.parts) == (["a cat- b"] if "-" in text else [text])
        assert filled(document, same) == text
