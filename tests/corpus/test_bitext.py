"""Parallel text in various formats: each format gives the same pairs, and damaged files give clear errors."""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pytest
import texts

from nmt_cli.corpus import bitext, store
from nmt_cli.corpus.readers import Chunk
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, UsageError

PAIRS = [*texts.pairs(40), ("a < b & c", "ä \u201eb\u201c"), ("2\u2028x", "y")]
SPACED = [(" ".join(src.split()), " ".join(tgt.split())) for src, tgt in PAIRS]  # cells may lose line separators


def tsv() -> bytes:
    return "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS).encode()


def tmx(encoding: str = "UTF-8") -> bytes:
    unit = '<tu><tuv xml:lang="en-US"><seg>{}</seg></tuv><tuv xml:lang="DE"><seg>{}</seg></tuv></tu>'
    units = "".join(unit.format(escape(src), escape(tgt)) for src, tgt in PAIRS)
    head = f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE tmx SYSTEM "tmx14.dtd">'
    return f'{head}<tmx version="1.4"><header srclang="en"/><body>{units}</body></tmx>'.encode(encoding)


def xliff(version: str) -> bytes:
    old = version == "1.2"
    unit = "<trans-unit>{}</trans-unit>" if old else "<unit><segment>{}</segment></unit>"
    sides = "<source>{}</source><target>{}</target>"
    units = "".join(unit.format(sides.format(escape(src), escape(tgt))) for src, tgt in PAIRS)
    names = 'source-language="en" target-language="de-DE"' if old else ""
    root = "" if old else ' srcLang="en" trgLang="de"'
    return f'<xliff version="{version}"{root}><file {names}><body>{units}</body></file></xliff>'.encode()


def json_lines() -> bytes:
    return "".join(json.dumps({"translation": {"en": src, "de": tgt}}) + "\n" for src, tgt in PAIRS).encode()


def comma_separated() -> bytes:
    file = io.StringIO()
    csv.writer(file).writerows([("id", "German", "English"), *((i, tgt, src) for i, (src, tgt) in enumerate(PAIRS))])
    return file.getvalue().encode()


def parquet() -> bytes:
    import pyarrow
    from pyarrow import parquet

    file = io.BytesIO()
    table = {"translation": [{"en": src, "de": tgt} for src, tgt in PAIRS], "id": list(range(len(PAIRS)))}
    parquet.write_table(pyarrow.table(table), file, row_group_size=7)
    return file.getvalue()


def opus() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("README", "An archive")
        for code, side in (("de", 1), ("en", 0)):
            archive.writestr(f"Captions.de-en.{code}", "".join(f"{pair[side]}\n" for pair in PAIRS))
    return file.getvalue()


def zstd(data: bytes) -> bytes:
    import pyarrow

    return bytes(pyarrow.compress(data, codec="zstd", asbytes=True))


NESTED = {"columns": ["translation.en", "translation.de"]}
FORMATS: dict[str, tuple[Callable[[], bytes], dict[str, Any]]] = {
    "text.tsv": (tsv, {}),
    "text.tsv.gz": (lambda: gzip.compress(tsv()), {}),
    "text.tsv.bz2": (lambda: bz2.compress(tsv()), {}),
    "text.tsv.xz": (lambda: lzma.compress(tsv()), {}),
    "text.tsv.zst": (lambda: zstd(tsv()), {}),
    "bom.tsv": (lambda: b"\xef\xbb\xbf" + tsv(), {}),
    "text.csv": (comma_separated, {"columns": ["English", "German"]}),
    "numbers": (tsv, {"format": "tsv", "columns": ["1", "2"]}),
    "text.tmx": (tmx, {}),
    "utf16.TMX": (lambda: tmx("UTF-16"), {}),
    "text.xlf": (lambda: xliff("1.2"), {}),
    "text.xliff": (lambda: xliff("2.0"), {}),
    "text.jsonl": (json_lines, NESTED),
    "other.tsv": (json_lines, {**NESTED, "format": "jsonl"}),
    "text.parquet": (parquet, NESTED),
    "text.zip": (opus, {}),
}


def section(path: Path | None = None, entry: dict[str, Any] | None = None, **settings: Any) -> Any:
    entries = [{"files": [str(path)], **(entry or {})}] if path else []
    return texts.corpus({"name": "own", "src": "en", "tgt": "de", "sources": entries, **settings})


def read(path: Path, data: bytes, **entry: Any) -> list[tuple[bytes | None, bytes | None]]:
    path.write_bytes(data)
    chunks: list[Chunk] = list(bitext.read_source(section(path, entry), 0, {}))
    return [pair for chunk in chunks for pair in zip(chunk.src, chunk.tgt, strict=True)]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_pairs(tmp_path: Path, name: str) -> None:
    make, entry = FORMATS[name]
    (tmp_path / name).write_bytes(make())
    hashes: dict[Path, str] = {}
    chunks = list(bitext.read_source(section(tmp_path / name, entry), 0, hashes))
    pairs = [pair for chunk in chunks for pair in zip(chunk.src, chunk.tgt, strict=True)]
    assert [tuple(" ".join((side or b"").decode().split()) for side in pair) for pair in pairs] == SPACED
    assert hashes == {tmp_path / name: artefact.sha256(tmp_path / name)}


@pytest.mark.parametrize(
    "name", [name for name in FORMATS if not name.endswith(("csv", "text.tsv", "bom.tsv", "numbers"))]
)
def test_a_truncated_file_gives_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    make, entry = FORMATS[name]
    data = make()
    with pytest.raises(DataError, match=rf"{name}"):
        read(tmp_path / name, data[: len(data) // 2 - 1], **entry)


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return a file with a part deleted, moved, repeated, replaced by random bytes or zeros, or encoded differently."""
    low, high = sorted(draw.sample(range(len(data)), 2))
    middle = (low + high) // 2
    part = data[low:high]
    return draw.choice(
        [
            data[:low] + data[high:],
            data[:low] + data[middle:high] + data[low:middle] + data[high:],
            data[:high] + data[low:],
            data[:low] + draw.randbytes(len(part)) + data[high:],
            data[:low] + bytes(len(part)) + data[high:],
            data[:low] + part.decode(errors="ignore").encode("utf-16") + data[high:],
            data[:low] + b"\xff" + data[low + 1 :],
            data[:low] + b"<tu>" * 10_000 + data[low:],
        ]
    )


@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_of_any_format_gives_a_one_line_error_or_other_pairs(tmp_path: Path, name: str) -> None:
    make, entry = FORMATS[name]
    data, draw, errors = make(), random.Random(name), list[str]()
    for _ in range(60):
        try:
            read(tmp_path / name, damaged(data, draw), **entry)
        except DataError as error:
            errors.append(str(error))
    assert all(str(tmp_path / name) in error and "\n" not in error and len(error) < 400 for error in errors)
    assert errors or name in ("text.tsv", "bom.tsv", "numbers")


def test_inline_codes_of_tmx_are_dropped_and_other_languages_ignored(tmp_path: Path) -> None:
    unit = """<tu><note>n</note><tuv xml:lang="fr"><seg>Non</seg></tuv>
      <tuv xml:lang="en"><seg>A <bpt i="1">&lt;b><sub>no</sub></bpt><hi>big</hi><ept i="1">&lt;/b></ept>
      dog<ph x="2">{1}</ph>.</seg></tuv>
      <tuv lang="de_AT"><seg>Ein Hund</seg></tuv><tuv xml:lang="de"><seg>Zweiter</seg></tuv></tu>
      <tu><tuv xml:lang="en"><seg>alone</seg></tuv></tu>"""
    data = f"<tmx><body>{unit}</body></tmx>".encode()
    assert read(tmp_path / "a.tmx", data) == [(b"A big dog.", b"Ein Hund")]
    assert read(tmp_path / "a.tmx", data, tgt="de-DE") == []
    assert read(tmp_path / "a.tmx", data, src="fr", tgt="de-AT") == [(b"Non", b"Ein Hund")]


def test_only_finished_segments_of_xliff_are_read_on_request(tmp_path: Path) -> None:
    units = """<trans-unit approved="yes"><source>a</source><target>A</target></trans-unit>
      <trans-unit><source>b <g id="1">c</g><x id="2"/><ph>code</ph></source><seg-source>no</seg-source>
        <target state="new">B</target><alt-trans><source>no</source><target>no</target></alt-trans></trans-unit>
      <trans-unit><source>c</source></trans-unit>
      <trans-unit><source>d</source><target state="final">D</target></trans-unit>"""
    names = '<file source-language="en" target-language="{}"><body>{}</body></file>'
    data = f"<xliff>{names.format('de', units)}{names.format('fr', units)}</xliff>".encode()
    assert read(tmp_path / "a.xlf", data) == [(b"a", b"A"), (b"b c", b"B"), (b"d", b"D")]
    assert read(tmp_path / "a.xlf", data, finished=True) == [(b"a", b"A"), (b"d", b"D")]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tmx", b"<tmx>\n<!-- -->\n<tu></tmx>", r"line 3: not well-formed XML: mismatched tag"),
        ("a.tmx", b"<html></html>", r"line 1: the first element is 'html', so this is not TMX"),
        ("a.tmx", b"", r"line 1: not well-formed XML: no element found"),
        ("a.tmx", b'<!DOCTYPE tmx [<!ENTITY a "b">]><tmx>&a;</tmx>', r"file declares the entity 'a'"),
        ("a.tmx", b'<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/hosts">]><tmx/>', r"file declares the entity 'a'"),
        ("a.xlf", b"<xliff>" + b"<g>" * 101, r"elements are nested more than 100 levels deep"),
        ("a.xlf", b'<?xml version="1.0" encoding="none"?><xliff/>', r"not well-formed XML: unknown encoding"),
        ("a.jsonl", b'{"en": "a", "de": "b"}\n{"en": "a"}\n', r"line 2: no member 'de'\. Correct the line"),
        ("a.jsonl", b'{"en": 1, "de": "b"}\n', r"line 1: en is '1', not text"),
        ("a.jsonl", b"[" * 100_000, r"line 1: not JSON"),
        ("a.csv", b'"a",b\n"c', r"line 2: unexpected end of data"),
        ("a.parquet", b"PAR1", r"cannot be read as parquet"),
        ("a.zip", b"PK\3\4", r"is truncated or corrupt"),
    ],
)
def test_a_damaged_file_gives_an_error_with_its_line(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / name, data)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_error_of_a_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """A worker finds the wrong score in line 3; this process finds that the file ends too early."""
    monkeypatch.setattr(bitext, "CHUNK", 400)
    draw = random.Random(1)
    rows = [f"{draw.random()} a\t{draw.random()} b\t{'high' if i == 3 else 0.5}" for i in range(1, 6000)]
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress("\n".join(rows).encode(), mtime=0)[:-100])
    for entry, message in (({"score": 3}, "line 3: the score is 'high'"), ({}, "truncated or corrupt")):
        with pytest.raises(DataError, match=message):
            texts.run(section(path, {"columns": [1, 2], **entry}), tmp_path / "data", workers=workers)


def test_sides_of_an_archive_must_have_equally_many_lines(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x.en", "a\nb\n")
        archive.writestr("x.de", "a\n")
    with pytest.raises(DataError, match=r"a\.zip: one side ends before line 2 of the other"):
        read(tmp_path / "a.zip", (tmp_path / "a.zip").read_bytes())
    with pytest.raises(DataError, match=r"has no members NAME\.fr and NAME\.de\. Check the languages"):
        read(tmp_path / "a.zip", (tmp_path / "a.zip").read_bytes(), src="fr")


def test_columns_are_named_or_numbered(tmp_path: Path) -> None:
    rows = b"de\tscore\ten\nA\t0.5\ta\nB\t0.7\tb\n"
    assert read(tmp_path / "a.tsv", rows, columns=["en", "de"]) == [(b"a", b"A"), (b"b", b"B")]
    assert read(tmp_path / "a.tsv", rows, columns=["3", "1"])[1:] == [(b"a", b"A"), (b"b", b"B")]
    with pytest.raises(DataError, match=r"a\.tsv has no column 'fr', only de, score, en\. Set columns to"):
        read(tmp_path / "a.tsv", rows, columns=["en", "fr"])
    with pytest.raises(UsageError, match=r"columns must list two columns, source and target, not en$"):
        read(tmp_path / "a.tsv", rows, columns=["en"])
    for columns in (["en", "2"], ["0", "1"]):
        with pytest.raises(UsageError, match=r"columns and score must all be names, or all be numbers from 1 on$"):
            read(tmp_path / "a.tsv", rows, columns=columns)
    with pytest.raises(DataError, match=r"a\.tsv, line 2: the score is 'A', not a number"):
        read(tmp_path / "a.tsv", rows, columns=["en", "de"], score="de")


def test_plain_text_needs_two_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"plain text needs two files, source and target, not .*one\.txt$"):
        read(tmp_path / "one.txt", b"a\n")


def test_cells_of_tables_are_text(tmp_path: Path) -> None:
    """Parquet files may store text as bytes. Null is an empty side; numbers and lists are errors."""
    import pyarrow
    from pyarrow import parquet as files

    def table(*columns: list[Any]) -> bytes:
        buffer = io.BytesIO()
        files.write_table(pyarrow.table(dict(zip(("en", "de", "score"), columns, strict=False))), buffer)
        return buffer.getvalue()

    assert read(tmp_path / "a.parquet", table(["a\xe4".encode(), b"b"], ["A\xc4", None])) == [
        ("a\xe4".encode(), "A\xc4".encode()),
        (b"b", b""),
    ]
    assert read(tmp_path / "a.jsonl", b'{"en": "a", "de": null}') == [(b"a", b"")]
    with pytest.raises(DataError, match=r"a\.parquet, line 2: en is .*, not text"):
        read(tmp_path / "a.parquet", table([None, ["b"]], ["A", "B"]))
    many = 5000  # more than a batch
    with pytest.raises(DataError, match=r"a\.parquet, line 5,000: the score is '-', not a number"):
        read(tmp_path / "a.parquet", table(["a"] * many, ["b"] * many, [*["1"] * (many - 1), "-"]), score="score")


def test_settings_that_a_format_does_not_have_are_refused(tmp_path: Path) -> None:
    for name, data, entry, message in (
        ("a.tmx", tmx(), {"score": "x"}, "tmx has no columns"),
        ("a.zip", opus(), {"columns": ["a", "b"]}, "opus has no columns"),
        ("a.tsv", tsv(), {"finished": True}, "finished is only for XLIFF, and .*a.tsv is tsv"),
    ):
        with pytest.raises(UsageError, match=message):
            read(tmp_path / name, data, **entry)


def test_a_huge_unit_takes_bounded_memory(tmp_path: Path) -> None:
    long = b"x" * (20 << 20)
    data = b'<tmx><tu><tuv xml:lang="en"><seg>%s</seg></tuv><tuv xml:lang="de"><seg>y</seg></tuv></tu></tmx>' % long
    (tmp_path / "a.tmx").write_bytes(data)
    tracemalloc.start()
    try:
        chunks = list(bitext.read_source(section(tmp_path / "a.tmx"), 0, {}))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert [(list(chunk.src), list(chunk.tgt)) for chunk in chunks] == [([None], [b"y"])]


def test_many_long_rows_in_few_bytes_take_bounded_memory(tmp_path: Path) -> None:
    """With a Parquet dictionary or with compression, a few bytes hold many long lines."""
    import pyarrow
    from pyarrow import parquet as files

    rows, line = 60, "x" * ((1 << 20) - 10)
    files.write_table(pyarrow.table({"en": pyarrow.array([line] * rows), "de": ["y"] * rows}), tmp_path / "a.parquet")
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(f"{line}\ty\n".encode() * rows, 1))
    for name in ("a.parquet", "a.tsv.gz"):
        assert (tmp_path / name).stat().st_size < 3 << 20
        sizes = [len(chunk.src) for chunk in bitext.read_source(section(tmp_path / name), 0, {})]
        assert sum(sizes) == rows
        assert max(sizes) < 20


def decoded(out: Path) -> list[tuple[str, str]]:
    corpus = store.open_corpus(out, content=True)
    tokenizer = Tokenizer(corpus.tokenizer_file)
    sides = [
        [side.gather(np.array([i]))[0][:-1].tolist() for i in range(len(side))] for side in (corpus.src, corpus.tgt)
    ]
    return list(zip(*(tokenizer.decode(side) for side in sides), strict=True))


def test_sources_are_one_corpus_with_counted_drops(tmp_path: Path) -> None:
    some = texts.pairs(300)
    own = texts.own(tmp_path / "in", some[:200], tokenizer={"vocabulary_size": 400})
    rows = "".join(f"{src}\t{tgt}\t{i / 100}\n" for i, (src, tgt) in enumerate(some[200:]))
    (tmp_path / "crawl.tsv").write_text(rows + "one column\n")
    entry = {"files": [str(tmp_path / "crawl.tsv")], "score": "3", "min_score": 0.5, "tag": "crawl"}
    out = texts.run(own.model_copy(update={"sources": section(None, sources=[entry]).sources}), tmp_path / "data" / "x")
    assert decoded(out) == [*some[:200], *((f">>crawl<< {src}", tgt) for src, tgt in some[250:])]
    assert [part["pairs"] for part in store.open_corpus(out).manifest["parts"]] == [200, 50]
    dropped = artefact.read_json(out / "cleaning.json")["dropped"]
    assert (dropped["score below the minimum"]["pairs"], dropped["score below the minimum"]["examples"][0]) == (
        51,
        list(some[200]),
    )
    tokenizer = Tokenizer(out / "tokenizer.model")
    assert tokenizer.tokens(tokenizer.encode([">>crawl<< x"])[0])[0] == "\u2581>>crawl<<"


def test_several_target_languages_begin_with_their_tokens(tmp_path: Path) -> None:
    some = texts.pairs(260)
    (tmp_path / "de.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in some[:120]))
    (tmp_path / "fr.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in some[100:240]))
    (tmp_path / "dev.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in some[240:]))
    sources = [
        {"files": [str(tmp_path / "de.tsv")]},
        {"files": [str(tmp_path / "fr.tsv")], "tgt": "fr"},
        {"files": [str(tmp_path / "dev.tsv")], "tgt": "fr", "split": "dev"},
    ]
    corpus = section(None, sources=sources, tokenizer={"vocabulary_size": 400})
    out = texts.run(corpus, tmp_path / "data" / "x")
    assert decoded(out) == [(f">>de<< {s}", t) for s, t in some[:120]] + [(f">>fr<< {s}", t) for s, t in some[100:240]]
    assert store.open_corpus(out).lines("dev") == tuple(
        map(list, zip(*((f">>fr<< {src}", tgt) for src, tgt in some[240:]), strict=True))
    )


def test_pairs_are_held_out_of_sources(tmp_path: Path) -> None:
    some = texts.pairs(300)
    (tmp_path / "a.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in some))
    corpus = section(tmp_path / "a.tsv", hold_out=10, tokenizer={"vocabulary_size": 400})
    out = texts.run(corpus, tmp_path / "data" / "x")
    held = [pair for split in ("dev", "test") for pair in zip(*store.open_corpus(out).lines(split), strict=True)]
    assert len(held) == 20
    assert sorted(held + decoded(out)) == sorted(some)


def test_pairs_with_a_low_score_are_neither_held_out_nor_in_dev(tmp_path: Path) -> None:
    some = texts.pairs(300)
    for name, lines in (("a", some[:200]), ("b", some[200:])):
        rows = "".join(f"{src}\t{tgt}\t{i % 2}\n" for i, (src, tgt) in enumerate(lines))
        (tmp_path / f"{name}.tsv").write_text(rows)
    scores = {"score": "3", "min_score": 0.5}
    sources = [{"files": [str(tmp_path / "a.tsv")], **scores}, {"files": [str(tmp_path / "b.tsv")], **scores}]
    sources[1]["split"] = "dev"
    corpus = section(None, sources=sources, hold_out=10, tokenizer={"vocabulary_size": 400})
    opened = store.open_corpus(out := texts.run(corpus, tmp_path / "data" / "x"))
    held = [*zip(*opened.lines("test"), strict=True)]
    assert [*zip(*opened.lines("dev"), strict=True)] == some[201::2]
    assert held
    assert sorted(held + decoded(out)) == sorted(some[1:200:2])


def test_a_tag_does_not_hide_a_pair_of_dev(tmp_path: Path) -> None:
    some = texts.pairs(300)
    (tmp_path / "memory.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in some))
    (tmp_path / "dev.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in some[280:]))
    sources = [
        {"files": [str(tmp_path / "memory.tsv")], "tag": "tm"},
        {"files": [str(tmp_path / "dev.tsv")], "split": "dev"},
    ]
    out = texts.run(section(None, sources=sources, tokenizer={"vocabulary_size": 400}), tmp_path / "data" / "x")
    assert decoded(out) == [(f">>tm<< {src}", tgt) for src, tgt in some[:280]]


def test_settings_that_contradict_sources_are_refused() -> None:
    entry = {"files": ["a.tsv"]}
    with pytest.raises(UsageError, match=r"has neither files nor corpus"):
        section(None, sources=[entry, {"format": "tmx"}])
    with pytest.raises(UsageError, match=r"min_score requires score"):
        section(None, sources=[{**entry, "min_score": 0.5}])
    with pytest.raises(UsageError, match=r"cannot be combined with corpus\.mix_src, corpus\.moses"):
        section(None, sources=[entry], moses=True)
    with pytest.raises(UsageError, match=r"no entry with split=train"):
        section(None, sources=[{**entry, "split": "dev"}])
