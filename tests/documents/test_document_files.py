"""Whole files of HTML, Markdown and gettext, marked-up lines, and the alignment of a real model."""

import itertools
import os
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_models import backwards, same
from markdown_it import MarkdownIt
from test_documents import silent, translated
from tiny_model import content, make_model, memory_file

from nmt_cli import Translator, documents
from nmt_cli.documents import alignment, markdown
from nmt_cli.documents import translate as module
from nmt_cli.documents.alignment import translate_aligned
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import Aligned
from nmt_cli.documents.po import Catalogue
from nmt_cli.documents.po_syntax import read
from nmt_cli.documents.segment import render, segments_of
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.translate import TranslateOptions

ROOT = Path(__file__).parents[2]
MARKDOWN = """---
title: Not text
---
# A *small* dog

> [!NOTE]
> Be ***very*** careful  \r
> with `code` and\\
> \\_lines\\_ &amp; 2 * 3

- one [link](u "t") and [ref] and [ref][]
  two ![an *old* image](x.png) <http://x.y> <kbd>Ctrl</kbd>
- [ ] a task<br>here, see [^1]

| a | b \\| c |
|---|--------|
| **z** | `x|y` |

<p align="center">Some <b>text</b></p>

    code here

```sh
echo "not text"
```
Setext ~~old~~
===

[ref]: http://x
"""


def shape(text: str) -> Counter[str]:
    """Return what a Markdown text holds besides its words, without the line breaks in paragraphs."""
    found = Counter[str]()
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        found[f"{token.type} {token.tag} {token.content * (token.type in ('fence', 'code_block'))}"] += 1
        for child in token.children or []:
            own = f"{child.type} {child.attrs.get('href', child.attrs.get('src', ''))}"
            if child.type not in ("text", "softbreak"):
                found[own + child.content * (child.type in ("code_inline", "html_inline"))] += 1
    return found


@pytest.mark.parametrize("text", [MARKDOWN, (ROOT / "README.md").read_text(), (ROOT / "CHANGELOG.md").read_text()])
def test_markdown_keeps_its_code_links_and_tables(text: str) -> None:
    """With a model that repeats the source only line breaks in paragraphs change, with one that turns sentences around
    the structure stays, with one that says nothing every byte."""
    assert translated(markdown.parse(text, Protection()), silent) == text
    repeated = translated(markdown.parse(text, Protection()), same)
    named = text.replace("[ref] and [ref][]", "[ref][ref] and [ref][ref]")
    assert re.sub(r"[\s>]+", " ", repeated) == re.sub(r"[\s>]+", " ", named)
    assert shape(repeated) == shape(text)
    turned = shape(translated(markdown.parse(text, Protection()), backwards))
    assert not shape(text) - turned
    assert {each.split("_")[0] for each in turned - shape(text)} <= {"em", "strong", "s"}  # of words that came apart


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a **b**c ***d***, _e_ ~~f~~g ~h", "a bc d, e fg ~h"),
        ("---\nt: x\n...\nThe dog", "The dog"),
        ("---\nt: x\n--- \r\nThe dog\r\n---\n", "The dog"),
        ("<p>see %s</p>\n\n{a} dog", "see|dog"),
        ("- [X] a\n- [ ] b\n- [y] c\n> [!NOTE]\n> d\n\n[!Tip] e", "a|b|[y] c|d|[!Tip] e"),
        ("a\\*b &amp;&ouml; c", "a*b &ö c"),
        ("| a\\|b | **c** |\n|-|-|\n| c | a\\|b |", "a|b|c|c|a|b"),
        ("a|b\n-|-\na|\nb|a", "a|b|a|b|a"),
        ('![an *old* dog](x "t") and [![y](z) a](b)', "an old dog|y|and a"),
        ("a  \nb\\\nc<br>d<hr/>e", "a|b|c|d|e"),
        ("<http://x.y> <a@b.c> `c d` <b>e</b> <code>x *y* <i>z</i></code> ``f` `` <kbd>x", "e x"),
        ("<code>a</code> b <code>c</code> d", "b d"),
        ("x <!-- c --> y<wbr>z <img src=x alt='a dog'>", "a dog|x yz"),
        ("1) a\n10. b\n\n    c\n\n# d #\ne\n===\n***\n", "a|b|c|d|e"),
        ("> a\n> b\nc\n> - d\n>   e", "a b c|d e"),
        ("[a]: http://x 'y'\n\n[a], [b][a], [c] and [a][]", "a, b, [c] and a"),
    ],
)
def test_what_the_model_is_shown_of_markdown(text: str, shown: str) -> None:
    parts = markdown.parse(text, Protection())
    assert "|".join(segment.text for segment in segments_of(parts)) == shown
    assert render(parts) == text


def test_emphasis_of_nothing_is_left_out() -> None:
    """Its signs would mean themselves; a link without text is one."""
    out = translated(markdown.parse("**a** *b* ~~c~~ [d](e)"), lambda _: Aligned("x", [(1, 0)]))
    assert out.split() == ["**x**", "[](e)"]


def test_references_by_their_text_keep_their_target() -> None:
    """Each is named apart, in full, also one that stands in a picture's text."""
    text = "see [a dog] and [The `x` *cat*][] or [b][c] ![d [e]](f)\n\n[a dog]: u\n[The `x` *cat*]: v\n[c]: w\n[e]: x\n"
    named = text.replace("[a dog] and", "[a dog][a dog] and").replace("cat*][] or", "cat*][The `x` *cat*] or")
    assert translated(markdown.parse(text), same) == named.replace("[e]](f)", "[e][e]](f)")


SAID = ["*a* _b_ `c` [d](e) <f> g|h", "# a", "###### a", "- a", "+ a", "1. a", "12) a", "> a", "---", "==="]


@pytest.mark.parametrize(
    "said", [*SAID, "~~a~~", "a &amp; b", "<http://x.y>", "![a](b)", "a \\* b\\", "#a -b 1.c", "-", "1)"]
)
def test_markdown_is_not_made_by_what_a_model_says(said: str) -> None:
    """Characters with a meaning are escaped, also at the beginning of a block."""
    text = "The dog\n\n- sees"
    out = translated(markdown.parse(text), lambda _: Aligned(said, []))
    assert shape(out) == shape(text), out
    inline = [token.children for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(out)]
    assert ["".join(child.content for child in each) for each in inline if each] == [said, said]


# ---- gettext

PO = r"""# A translator
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=n==1 ? 0 : n==2 ? 1 : 2;\n"

#. A note
#: a.py:1
#, python-format
msgctxt "menu"
msgid "Delete %(n)s files (now)?\n"
"  <b>Sure</b>?\n"
msgstr ""

#, fuzzy
msgid "old"
msgstr "alt"

msgid "done"
msgstr "fertig"

#, python-format
msgid "%d file"
msgid_plural "%d files"
msgstr[0] "eine Datei"
msgstr[1] ""
msgstr[2] ""

#~ msgid "gone"
#~ msgstr ""
"""


def test_messages_without_a_translation_get_one_that_is_fuzzy() -> None:
    catalogue = Catalogue(PO, Protection(strict=True))
    translated(catalogue.parts, backwards)
    written = catalogue.written()
    before, after = read(PO), read(written)
    assert [each.id.text for each in after] == [each.id.text for each in before]
    gone = [line for line in PO.split("\n") if line not in written.split("\n")]
    assert gone == ["#, python-format", 'msgstr "alt"', "#, python-format", 'msgstr[1] ""', 'msgstr[2] ""']
    header, first, old, done, files = after
    assert ["fuzzy" in each.flags for each in after] == [False, True, True, False, True]
    assert old.flags == ["fuzzy"]
    assert first.flags == ["python-format", "fuzzy"]
    assert header.forms[0].text == before[0].forms[0].text
    assert first.forms[0].text == "(now)? %(n)s files Delete\n  <b>Sure</b>?\n"
    assert (old.forms[0].text, done.forms[0].text) == ("old", "fertig")
    assert [form.text for form in files.forms] == ["eine Datei", "%d files", "%d files"], "a person wrote the first"
    again = Catalogue(PO.replace("#, fuzzy\n", "").replace('""\n\n#, f', '"x"\n\n#, f'), None)
    assert len(again.parts) < len(catalogue.parts)


def test_a_language_of_one_form_has_the_plural_there() -> None:
    text = PO.replace("nplurals=3; plural=n==1 ? 0 : n==2 ? 1 : 2;", "nplurals=1; plural=0;")
    catalogue = Catalogue(text.replace("eine Datei", ""), None)
    translated(catalogue.parts, same)
    (files,) = [each for each in read(catalogue.written()) if each.plural]
    assert [form.text for form in files.forms] == ["%d files"]


def test_messages_with_comments_and_of_catalogues_that_do_not_say_their_forms() -> None:
    both = Catalogue('msgid "a &amp; b\\n<b>c</b>"\nmsgstr ""\n', None)
    assert [segment.text for segment in segments_of(both.parts)] == ["a & b", "c"], "all of a message is HTML, or none"
    long = "dog " * 40
    text = f'msgid "a <!-- b --> c\\n"\nmsgstr ""\n\nmsgid "{long}"\nmsgid_plural "d"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    catalogue = Catalogue(text, None)
    assert [segment.text for segment in segments_of(catalogue.parts)] == ["a c", long.strip(), "d"]
    translated(catalogue.parts, same)
    written = catalogue.written()
    one, several = read(written)
    assert one.forms[0].text == "a <!-- b --> c\n"
    assert [form.text for form in several.forms] == [long, "d"]
    assert 60 < max(len(line) for line in written.split("\n") if line.startswith('"')) <= 80
    forms = Catalogue(f'msgid ""\nmsgstr "Plural-Forms: nplurals = 4; plural=0;\\n"\n\n{text}', None)
    translated(forms.parts, same)
    assert [form.text for form in read(forms.written())[2].forms] == [long, "d", "d", "d"]


def test_a_catalogue_that_is_complete_comes_out_byte_for_byte() -> None:
    text = 'msgid   "a"\nmsgstr "b"\n\n\n#~ msgid "c"\n#~ msgstr ""\n'
    assert Catalogue(text, None).written() == text
    with pytest.raises(DataError, match="no message catalogue"):
        Catalogue("<html>", None)


# ---- the command


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Translator(make_model(tmp_path_factory.mktemp("tiny")), precision="fp32", workers=1) as one:
        yield one


def run(translator: Translator, data: bytes, kind: str, tags: str | None = None, protect: bool | None = None) -> bytes:
    source, target = memory_file(data), memory_file()
    with Progress("translating", None, "lines") as progress:
        module.runner(kind, tags, protect, [])(translator, TranslateOptions(), source, target, progress)
    os.close(source)
    return content(target)


def test_a_models_alignment_is_of_words_of_the_text(translator: Translator) -> None:
    """Also of text that the model sees in another spelling, or cut in two."""
    texts = ["der Hund", "die  Katze \u00a0 ist e\u0301in", "das Haus . " * 30, "", "\u2581 rot 日本"]
    results = list(translate_aligned(translator, [texts], SearchOptions()))
    assert [aligned.text for aligned in results] == [each.text for each in translator.translate(texts)]
    for text, aligned in zip(texts, results, strict=True):
        ends = [end for end, _ in aligned.links]
        assert ends == sorted(ends)
        assert all(end <= len(aligned.text) and text[origin].strip() for end, origin in aligned.links)
        assert not text or ends[-1] == len(aligned.text)


def test_tokens_are_linked_by_their_places_also_of_two_vocabularies_and_of_parts() -> None:
    source, target = {1: "der", 2: "Hund", 3: "rot"}, {1: "red", 2: "the", 3: "dog"}

    def decoding(words: dict[int, str]) -> Any:
        return lambda lists: [" ".join(words[each] for each in ids) for ids in lists]

    tokenizer = SimpleNamespace(decode=decoding(source), target=SimpleNamespace(decode=decoding(target)))
    parts = [([1, 2, 0], [3, 2], [1, 0]), ([3, 0], [1], [0])]
    hypotheses = [([ids, SimpleNamespace(ids=said, source_positions=looked)]) for ids, said, looked in parts]
    result: Any = SimpleNamespace(
        copy=None, parts=lambda _: hypotheses, hypotheses=[SimpleNamespace(text="dog the red")]
    )
    translator: Any = SimpleNamespace(tokenizer=tokenizer)
    aligned = alignment.aligned(translator, result, "der Hund rot", 5)
    assert aligned == Aligned("dog the red", [(3, 4), (7, 0), (11, 9)])


def test_tokens_that_are_bytes_of_a_character_begin_where_it_begins() -> None:
    """Some of its bytes decode to a sign each, all of them to one."""

    def decode(lists: list[list[int]]) -> list[str]:
        return ["a" * ids.count(0) + ("😀" if len(ids) >= 5 else "\ufffd" * ids.count(1)) for ids in lists]

    tokenizer = SimpleNamespace(decode=decode)
    tokenizer.target = tokenizer
    ids = [0, 1, 1, 1, 1]
    parts = [([*ids, 2], SimpleNamespace(ids=ids, source_positions=[4, 3, 2, 1, 0]))]
    result: Any = SimpleNamespace(parts=lambda _: parts, hypotheses=[SimpleNamespace(text="a😀")], copy=None)
    translator: Any = SimpleNamespace(tokenizer=tokenizer)
    links = alignment.aligned(translator, result, "a😀", 0).links
    assert links == [(1, 1), (2, 1), (2, 1), (2, 1), (2, 0)]


def test_lines_with_markup_come_out_as_many_and_in_order(translator: Translator) -> None:
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
    assert b"#, fuzzy" in run(translator, PO.encode(), "po")
    for data, words in ((b"\xff", "UTF-8"), ("<p>x".encode("utf-16"), "UTF-8"), (b"PK\3\4abc", "looks like")):
        with pytest.raises(DataError, match=words):
            run(translator, data, "html")


def test_a_file_is_read_and_written_whole_in_whatever_pieces(
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
        module.runner("html", None, None, [])(translator, TranslateOptions(), source, target, progress)
    assert content(target) == whole
    monkeypatch.setattr(module.os, "write", real)
    assert run(translator, b"<p>der\n", "text", "html").startswith(b"<p>")
    assert reported == [(translator.counts, 128)] * 2


@pytest.mark.parametrize(("kind", "tags", "unit"), [("html", None, "segments"), ("text", "html", "lines")])
def test_options_of_the_search_arrive_and_progress_is_counted(
    monkeypatch: pytest.MonkeyPatch, kind: str, tags: str | None, unit: str
) -> None:
    """A file that fails has nothing done: none of it is written."""
    given, fail = list[Any](), False

    def search(_: Any, chunks: Any, options: SearchOptions) -> Any:
        given.append(options)
        for text in itertools.chain.from_iterable(chunks):
            yield same(text)
            if fail:
                raise DataError("no")

    recipe = SimpleNamespace(corpus=SimpleNamespace(tgt="de"))
    translator: Any = SimpleNamespace(counts=Counter[str](), max_length=9, recipe=recipe)
    monkeypatch.setattr(module, "translate_aligned", search)
    data, options = b"<p>der\n<p>Hund<p>5\n", TranslateOptions(search=SearchOptions(beam=3), strict=True)
    with Progress("translating", None, "lines") as progress:
        target = memory_file()
        module.runner(kind, tags, None, [])(translator, options, memory_file(data), target, progress)
        assert content(target) == data
        assert (progress.unit, progress.done) == (unit, 2)
        assert progress.total == (2 if kind == "html" else None)
    fail = True
    target = memory_file()
    with Progress("translating", None, "lines") as progress, pytest.raises(DataError):
        module.runner(kind, tags, None, [])(translator, options, memory_file(data), target, progress)
    assert (content(target), progress.done) == ((b"", 0) if kind == "html" else (b"<p>der\n", 1))
    with Progress("translating", None, "lines") as progress, pytest.raises(DataError, match="UTF-8"):
        module.runner(kind, tags, None, [])(translator, options, memory_file(b"\xff\n"), memory_file(), progress)
    assert given == [SearchOptions(beam=3)] * len(given)


def test_the_suffix_says_what_a_file_is() -> None:
    """Unless the format is named; plain lines need nothing of the formats."""

    def kind(
        file: str | None = None, *, form: str | None = None, tags: Any = None, protect: Any = None, plain: Any = ()
    ) -> Any:
        run = documents.choose(form, file and Path(file), tags, protect, plain)
        return run and (run.keywords.get("kind", "lines"), run.keywords["protection"] is not None)

    assert kind("a.txt") is kind("a.html", form="text") is kind(form="jsonl") is kind(plain=["prefix"]) is None
    assert kind("a.HTML") == kind("a.htm") == kind(form="html") == ("html", True)
    assert kind("a.md", protect=False) == kind("a.markdown", protect=False) == ("md", False)
    assert kind("a.pot") == kind("a.po", protect=True) == ("po", True)
    brackets = [module.runner(form, None, True, []).keywords["protection"].brackets for form in ("po", "md", "text")]
    assert brackets == [True, False, False], "as many in a message as before"
    assert kind("a.txt", tags="html") == kind("a.html", form="text", tags="html") == ("lines", False)
    assert kind(protect=True) == ("lines", True)
    for option, wrong in (
        ("--n-best", {"plain": ["n_best"]}),
        ("--format jsonl", {"form": "jsonl"}),
        ("--markup", {"form": "po"}),
        ("--alignments", {"plain": ["alignments", "prefix"]}),
    ):
        with pytest.raises(UsageError, match=f"^{option} is for"):
            kind(tags="html", **wrong)
    for option, how in (("--markup", {"tags": "html"}), ("--format jsonl", {"form": "jsonl"})):
        for file in ("a.po", "a.HTML", "a.md"):
            with pytest.raises(UsageError, match=f"^{option} is for lines of text, and {file} is a .*on stdin$"):
                kind(file, **how)


@pytest.mark.parametrize("unit", ["[", "![", "[a][", "[*", "[<b>", "[a\n"])
def test_markdown_whose_brackets_are_not_closed_is_refused(unit: str) -> None:
    """Each would look for its partner to the end: minutes for a text of this length."""
    with pytest.raises(DataError, match="too many open brackets"):
        markdown.parse(unit * 30_000)


def test_cells_that_are_there_and_brackets_that_close_are_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell that a row lacks is 30 of them, each bracket as many as there are characters up to its partner."""
    monkeypatch.setattr(markdown, "_STEPS", 0)
    for text, steps in (
        ("|a|b|c|\n|-|-|-|\n|d|e|f|\n", 0),
        ("a|b\n-|-\nc|d\ne|f\n", 0),
        (f"{'|a' * 20}|\n{'|-' * 20}|\n|\n|b|\n", 30 * 11),  # 60 cells less 45 bars, 3 ends of lines, and 1
        ("[a](b) c", 4),
    ):
        monkeypatch.setattr(markdown, "_FREE_STEPS", steps)
        markdown.parse(text)
        monkeypatch.setattr(markdown, "_FREE_STEPS", steps - 1)
        with pytest.raises(DataError):
            markdown.parse(text)


def test_tables_that_are_mostly_empty_are_refused() -> None:
    """Every row is filled up to the width of the head: 60,000 cells from 1,800 characters."""
    with pytest.raises(DataError, match="rows far shorter"):
        markdown.parse((f"{'|a' * 90}|\n{'|-' * 90}|\n" + "|\n" * 700 + "\n") * 50)


@pytest.mark.parametrize(
    "text",
    [
        "- [one](u) and [two][ref], [ ] [x] [^1]\n" * 500,
        "Intervals [0, 1) and [a, b[ of *numbers*.\n\n" * 500,
        f"{'|a' * 20}|\n{'|-' * 20}|\n" + f"{'|b' * 20}|\n" * 300,
        "[![badge](a)](b)\n" * 300,
        "a|b\n-|-\nc|d\n\n" * 500,
    ],
)
def test_markdown_as_people_write_it_is_not_refused(text: str) -> None:
    assert documents.segment.render(markdown.parse(text)) == text


def test_spellings_are_compared_by_characters_as_long_as_that_takes_no_time() -> None:
    text = "abcdefghij " * 45 + "Straße ab"
    own = "abcdefghij " * 45 + "Strasse ab "
    assert alignment._places(own, text) == [*range(499), 499, 499, *range(500, 505), 504]


@pytest.mark.parametrize("text", ["a" * 20_000 + "\u2603", "\u2603 " + "a b " * 5000, "\u2603 " + "der Hund " * 2000])
def test_spellings_of_long_texts_are_compared_in_bounded_time(text: str) -> None:
    """Character by character it would take a time that grows with the square of the length, or more."""
    own = f"{text.replace(chr(0x2603), ' ? ')} "
    places = alignment._places(own, text)
    assert len(places) == len(own) + 1
    assert places == sorted(places)
    assert places[-1] <= len(text)
