"""The translate command for files and for lines with markup."""

import itertools
import os
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from catalogs import TEMPLATE
from fake_models import same, texts_of
from tiny_model import content, make_model, memory_file

from nmt_cli import Translator, documents
from nmt_cli.documents import translate as module
from nmt_cli.documents.document import ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.placement import Aligned
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.stored_models import Direction
from nmt_cli.translation.translate import TranslateOptions


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Translator(make_model(tmp_path_factory.mktemp("tiny")), precision="fp32", workers=1) as one:
        yield one


def run(
    translator: Translator, data: bytes, kind: str, markup: str | None = None, protect: bool | None = None
) -> bytes:
    source, target = memory_file(data), memory_file()
    with Progress("translating", None, "lines") as progress:
        module.runner(kind, markup, protect, [], {})(translator, TranslateOptions(), source, target, progress)
    os.close(source)
    return content(target)


def test_one_line_out_for_every_line_with_markup(translator: Translator) -> None:
    lines = ["<b>der</b> Hund", "", "<br>", "5 <img>", "die <i>Katze</i><br>ist rot", "\ufffd", "<p>"]
    out = run(translator, "\n".join(lines).encode(), "text", "html").decode().split("\n")
    assert out.pop() == ""
    assert len(out) == len(lines)
    assert out[1:4] == lines[1:4]
    assert [re.findall("<[a-z]+>", line)[:1] for line in out] == [re.findall("<[a-z]+>", line)[:1] for line in lines]
    assert run(translator, b"der %s Hund\n%d\n", "text", protect=True).decode().count("%") == 2


def test_a_file_is_translated_as_a_whole(translator: Translator) -> None:
    page = "\ufeff<p translate=no>der Hund</p>\r\n<p>die <b>Katze</b>\n"
    out = run(translator, page.encode(), "html").decode()
    assert out.startswith("\ufeff<p translate=no>der Hund</p>\r\n<p>")
    assert out.endswith("\n")
    assert run(translator, b"# der Hund\n\n    code\n", "md").decode().endswith("\n\n    code\n")
    assert run(translator, "\ufeff# der Hund".encode(), "md").decode().startswith("\ufeff# ")
    assert b"#, fuzzy" in run(translator, TEMPLATE.encode(), "po")
    for data, words in ((b"\xff", "UTF-8"), ("<p>x".encode("utf-16"), "UTF-8"), (b"PK\3\4abc", "looks like")):
        with pytest.raises(DataError, match=words):
            run(translator, data, "html")


def test_a_file_is_read_and_written_in_pieces(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "<p>der Hund</p>\n<p>Süd \u65e5</p><p>5</p>\n".encode()
    whole = run(translator, page, "html")
    assert capsys.readouterr().err.split("\n")[-2:] == ["2 segments", ""]
    real, reported = os.write, list[Any]()
    source, target = memory_file(page), memory_file()
    monkeypatch.setattr(module, "READ_BYTES", 3)
    monkeypatch.setattr(module, "report", lambda *arguments: reported.append(arguments))
    monkeypatch.setattr(module.os, "write", lambda descriptor, data: real(descriptor, data[:5]))
    with Progress("translating", None, "lines") as progress:
        module.runner("html", None, None, [], {})(translator, TranslateOptions(), source, target, progress)
    assert content(target) == whole
    monkeypatch.setattr(module.os, "write", real)
    assert run(translator, b"<p>der\n", "text", "html").startswith(b"<p>")
    assert reported == [(translator.counts, 128)] * 2


def translator_to(language: str) -> Any:
    config = SimpleNamespace(src="en", tgt=language, pairs=[])
    directions = (Direction("en", language),)
    return SimpleNamespace(counts=Counter[str](), max_length=9, config=config, directions=directions)


@pytest.mark.parametrize(("kind", "markup", "unit"), [("html", None, "segments"), ("text", "html", "lines")])
def test_search_options_are_passed_on_and_progress_is_counted(
    monkeypatch: pytest.MonkeyPatch, kind: str, markup: str | None, unit: str
) -> None:
    """If a document fails, nothing of it is written or counted as done. Lines before a failure are."""
    given, fail = list[Any](), False

    def search(_: Any, chunks: Any, options: SearchOptions) -> Any:
        given.append(options)
        for text in itertools.chain.from_iterable(chunks):
            yield same(text)
            if fail:
                raise DataError("no")

    translator = translator_to("de")
    monkeypatch.setattr(module, "translate_aligned", search)
    data, options = b"<p>der\n<p>Hund<p>5\n", TranslateOptions(search=SearchOptions(beam=3), strict=True)
    with Progress("translating", None, "lines") as progress:
        target = memory_file()
        module.runner(kind, markup, None, [], {})(translator, options, memory_file(data), target, progress)
        assert content(target) == data
        assert (progress.unit, progress.done) == (unit, 2)
        assert progress.total == (2 if kind == "html" else None)
    fail = True
    target = memory_file()
    with Progress("translating", None, "lines") as progress, pytest.raises(DataError):
        module.runner(kind, markup, None, [], {})(translator, options, memory_file(data), target, progress)
    assert (content(target), progress.done) == ((b"", 0) if kind == "html" else (b"<p>der\n", 1))
    with Progress("translating", None, "lines") as progress, pytest.raises(DataError, match="UTF-8"):
        module.runner(kind, markup, None, [], {})(translator, options, memory_file(b"\xff\n"), memory_file(), progress)
    assert given == [SearchOptions(beam=3)] * len(given)


def test_a_catalog_gets_the_target_language(monkeypatch: pytest.MonkeyPatch) -> None:
    translator = translator_to("ru")
    monkeypatch.setattr(module, "translate_aligned", lambda _, chunks, __: map(same, itertools.chain(*chunks)))
    source, target = memory_file(TEMPLATE.encode()), memory_file()
    with Progress("translating", None, "lines") as progress:
        module.runner("po", None, None, [], {})(translator, TranslateOptions(), source, target, progress)
        assert b'"Language: ru\\n"' in content(target)
        latin = TEMPLATE.replace("a 1", "ä 1").encode("iso-8859-1")
        with pytest.raises(DataError, match=r"not UTF-8: byte 62.*msgconv -t UTF-8"):
            module.runner("po", None, None, [], {})(
                translator, TranslateOptions(), memory_file(latin), target, progress
            )


def test_the_suffix_decides_the_format() -> None:
    """An option may name another format. Plain lines need no format."""

    def kind(
        file: str | None = None, *, form: str | None = None, markup: Any = None, protect: Any = None, plain: Any = ()
    ) -> Any:
        run = documents.choose(form, file and Path(file), markup, protect, plain, {})
        if run and "kind" in run.keywords:
            return run.keywords["kind"], run.keywords["reading"].protect
        return run and ("lines", run.keywords["protection"] is not None)

    assert kind("a.txt") is kind("a.html", form="text") is kind(form="jsonl") is kind(plain=["prefix"]) is None
    assert kind("a.HTML") == kind("a.htm") == kind(form="html") == ("html", True)
    assert kind("a.md", protect=False) == kind("a.markdown", protect=False) == ("md", False)
    assert kind("a.pot") == kind("a.po", protect=True) == ("po", True)
    assert kind("a.txt", markup="html") == kind("a.html", form="text", markup="html") == ("lines", False)
    assert kind("a.arb") == ("arb", True)
    assert kind(protect=True) == ("lines", True)
    for message, wrong in (
        ("--n-best works on plain lines only", {"plain": ["n_best"]}),
        ("--format jsonl works on plain lines only", {"form": "jsonl"}),
        ("--markup is for lines", {"form": "po"}),
        ("--alignments works on plain lines only", {"plain": ["alignments", "prefix"]}),
    ):
        with pytest.raises(UsageError, match=f"^{message}"):
            kind(markup="html", **wrong)
    for option, options in (("--markup", {"markup": "html"}), ("--format jsonl", {"form": "jsonl"})):
        for file in ("a.po", "a.HTML", "a.md"):
            with pytest.raises(UsageError, match=f"^{option} is for lines of text, but {file} is a .*on stdin$"):
                kind(file, **options)


def test_the_beginning_of_a_file_decides_if_formats_share_a_suffix(tmp_path: Path) -> None:
    for name, text, form in (("a.ts", "<!DOCTYPE TS><TS/>", "qt"), ("a.xml", "<resources/>", "android")):
        (tmp_path / name).write_text(text)
        run = documents.choose(None, tmp_path / name, None, None, [], {})
        assert run.keywords["kind"] == form
        (tmp_path / name).write_text("export const a = 5;")
        with pytest.raises(UsageError, match=f"has a suffix of the format {form}, .*--format text"):
            documents.choose(None, tmp_path / name, None, None, [], {})


@pytest.mark.parametrize(("kind", "text"), [("html", "see (the) dog"), ("md", "see (the) dog"), ("po", "see the dog")])
def test_only_program_strings_protect_brackets(kind: str, text: str) -> None:
    source = "see (the) dog %s"
    source = f'msgid "{source}"\nmsgstr ""\n' if kind == "po" else source
    assert texts_of(FORMATS[kind].read(source, ReadOptions()).parts) == [text]
    assert texts_of(FORMATS[kind].read(source, ReadOptions(protect=False)).parts) == ["see (the) dog %s"]


def test_the_server_passes_the_target_language() -> None:
    texts = pytest.importorskip("nmt_cli.serving.texts")
    form = texts.TextFormat("po", language="ru")
    [[written]] = texts.assemble(form, [TEMPLATE], [[[Aligned("x", [(1, 0)])] * len(form.parse(TEMPLATE).units)]])
    assert '"Language: ru\\n"' in written
    [[written]] = texts.assemble(texts.TextFormat("html", language="de"), ['<html lang="en">'], [[[]]])
    assert written == '<html lang="de">'


def test_the_language_of_a_file_is_the_chosen_target(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    directions = [Direction("en", code, f">>{code}<< ") for code in ("de", "fr")]
    monkeypatch.setattr(translator, "directions", directions)
    page = b'<html lang="en"><p>der Hund</p></html>'
    for target, language in (("fr", b"fr"), ("", translator.config.tgt.encode())):
        source, out = memory_file(page), memory_file()
        options = TranslateOptions(search=SearchOptions(target=target))
        with Progress("translating", None, "lines") as progress:
            module.runner("html", None, None, [], {})(translator, options, source, out, progress)
        os.close(source)
        assert content(out).startswith(b'<html lang="' + language + b'">')


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("po", 'msgid ""\nmsgstr "Language: {}\\n"\n\nmsgid "der Hund"\nmsgstr ""\n'),
        ("qt", '<TS language="{}"><context><message><source>der Hund</source></message></context></TS>'),
        ("xliff", '<xliff version="1.2"><file source-language="en" target-language="{}"><body></body></file></xliff>'),
        ("xliff", '<xliff version="2.0" srcLang="en" trgLang="{}"></xliff>'),
    ],
)
def test_a_catalog_of_another_language_gives_a_warning(
    translator: Translator, capsys: pytest.CaptureFixture[str], kind: str, text: str
) -> None:
    for language in ("fr", "de", "de-AT", "", "LL", "C"):
        run(translator, text.format(language.replace("-", "_" if kind != "xliff" else "-")).encode(), kind)
        warned = "warning: the file is for fr, and this translation is in de. Check --model" in capsys.readouterr().err
        assert warned == (language == "fr"), language
