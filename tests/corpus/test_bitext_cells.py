"""Cells of tables: short rows, long cells, line ends, scores, and the line that an error names."""

import errno
import io
import zipfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from texts import bitext_rows, bitext_section

from nmt_cli.corpus import bitext, bitext_tables, opening, readers
from nmt_cli.recipe import loading
from nmt_cli.system.errors import DataError, MissingError, StorageError, UsageError

SCORED = {"columns": ["1", "2"], "score": "3"}


def test_rows_with_too_few_columns_have_an_empty_side(tmp_path: Path) -> None:
    """Also if only the score is missing."""
    for columns in ({"columns": ["1", "3"]}, {"columns": ["3", "1"]}, SCORED):
        found = bitext_rows(tmp_path / "a.tsv", b"a\tA\na\tA\t1\n", **columns)
        assert [row[:2] for row in found[:1]] == [(b"a\tA", b"")]
        assert found[1][1] != b""
        found = bitext_rows(tmp_path / "a.csv", b"a,A\na,A,1\n", **columns)
        assert [row[:2] for row in found[:1]] == [(b"a,A", b"")]
        assert found[1][1] != b""


def test_tables_may_have_windows_line_ends(tmp_path: Path) -> None:
    for name, between in (("a.tsv", b"\t"), ("a.csv", b",")):
        data = b"\r\n".join(between.join(row) for row in ((b"en", b"de"), (b"a", b"A"), (b"b", b"B"))) + b"\r\n"
        assert bitext_rows(tmp_path / name, data, columns=["en", "de"]) == [(b"a", b"A", None), (b"b", b"B", None)]
        rows = bitext_rows(tmp_path / name, data, columns=["1", "2"])
        assert rows[0] == (b"en", b"de", None), "numbered columns have no header"


def test_a_byte_order_mark_is_not_part_of_a_table(tmp_path: Path) -> None:
    row = b'{"en": "\xef\xbb\xbfa", "de": "A"}\n'
    for name, data in (
        ("a.tsv", b"en\tde\n\xef\xbb\xbfa\tA\n"),
        ("a.csv", b"en,de\n\xef\xbb\xbfa,A\n"),
        ("a.jsonl", row),
    ):
        for mark in (b"", b"\xef\xbb\xbf"):
            found = bitext_rows(tmp_path / name, mark + data, columns=["en", "de"])
            assert found == [("\ufeffa".encode(), b"A", None)], "a mark inside stays"


def test_scores_are_read_from_every_format(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table({"s": [0.5, 2], "de": ["A", "B"], "en": ["a", "b"]}), buffer)
    named = {"columns": ["en", "de"], "score": "s"}
    lines = b'{"en": "a", "de": "A", "s": 0.5}\n\n{"s": "2", "de": "B", "en": "b"}\n'
    expected = [(b"a", b"A", 0.5), (b"b", b"B", 2)]
    assert bitext_rows(tmp_path / "a.parquet", buffer.getvalue(), **named) == expected
    assert bitext_rows(tmp_path / "a.jsonl", lines, score="s") == expected
    assert bitext_rows(tmp_path / "a.tsv", b"a\tA\t0.5\r\nb\tB\t2\r\n", **SCORED) == expected
    assert bitext_rows(tmp_path / "a.csv", b" s,en ,de\n0.5,a,A\n2,b,B\n", **named) == expected


@pytest.mark.parametrize(
    ("name", "data", "line", "shown"),
    [
        ("a.tsv", b"a\tA\t1\nb\tB\tx\r\n", 2, "'x'"),
        ("a.csv", b'"a\nb",A,1\nc,C,\n', 3, "''"),
        ("a.jsonl", b'{"1": "a", "2": "A", "3": 1}\n\n{"1": "b", "2": "B", "3": null}\n', 3, "'None'"),
        ("a.jsonl", b'{"1": "a", "2": "A", "3": 1%s}' % (b"0" * 400), 1, f"'1{'0' * 39}'"),
    ],
)
def test_the_line_of_a_wrong_score_is_named(tmp_path: Path, name: str, data: bytes, line: int, shown: str) -> None:
    with pytest.raises(DataError, match=rf"{name}, line {line}: the score is {shown}, not a number"):
        bitext_rows(tmp_path / name, data, **SCORED)


def test_columns_and_score_are_all_names_or_all_numbers(tmp_path: Path) -> None:
    for columns, score in ((["1", "2"], "score"), (["en", "de"], "3"), (["1", "2"], "0"), (["1", "00"], None)):
        with pytest.raises(UsageError, match=r"columns and score must all be names, or all be numbers from 1 on$"):
            bitext_rows(tmp_path / "a.csv", b"en,de,score\na,A,1\n", columns=columns, score=score)


def test_a_cell_becomes_one_line(tmp_path: Path) -> None:
    assert bitext_rows(tmp_path / "a.csv", b'"a\n b  c","A ""x"""\nd,D\n') == [
        (b"a b c", b'A "x"', None),
        (b"d", b"D", None),
    ]
    assert bitext_rows(tmp_path / "a.jsonl", b'{"en": "a\\n\\tb", "de": "A"}') == [(b"a b", b"A", None)]


def test_cells_that_are_not_utf8_are_left_to_cleaning(tmp_path: Path) -> None:
    for name, data in (("a.csv", b"a,\xffb\n"), ("a.jsonl", b'{"en": "a", "de": "\\ud800b"}'), ("a.tsv", b"a\t\xffb")):
        [(src, tgt, _)] = bitext_rows(tmp_path / name, data)
        assert src == b"a"
        with pytest.raises(UnicodeDecodeError):
            (tgt or b"").decode()
    import pyarrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table({"en": [b"a"], "de": [b"\xffb"]}), buffer)
    assert bitext_rows(tmp_path / "a.parquet", buffer.getvalue()) == [(b"a", b"\xed\xb3\xbfb", None)]


def test_a_long_cell_is_read_up_to_the_limit_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bitext_rows(tmp_path / "a.csv", b"%s,A\n" % (b"x" * 200_000))[0][0] == b"x" * 200_000
    for count, kept in ((5, True), (6, False), (15, False)):  # lines of 200 kB, in a cell of up to a megabyte
        text = b"\n".join([b"x" * 200_000] * count)
        [(src, tgt, _)] = bitext_rows(tmp_path / "a.csv", b'"%s",A\n' % text)
        assert (src, tgt) == (text.replace(b"\n", b" ") if kept else None, b"A")
    monkeypatch.setattr(bitext_tables, "MAX_LINE_BYTES", 5)
    for cell, kept in (("abcde", b"abcde"), ("ääa", "ääa".encode()), ("abcdef", None), ("äää", None)):
        assert bitext_rows(tmp_path / "a.csv", f"{cell},A\n".encode()) == [(kept, b"A", None)]
        assert bitext_rows(tmp_path / "a.jsonl", f'{{"de": "{cell}", "en": ""}}'.encode()) == [(b"", kept, None)]


def test_an_overlong_line_is_one_dropped_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 30)
    found = bitext_rows(tmp_path / "a.tsv", b"%s\tA\nb\tB\tx\n" % (b"x" * 40), columns=["1", "2"])
    assert found == [(None, None, None), (b"b", b"B", None)]
    with pytest.raises(DataError, match=r"line 2: the score is 'x'"):
        bitext_rows(tmp_path / "a.tsv", b"%s\tA\nb\tB\tx\n" % (b"x" * 40), **SCORED)
    line = b'{"en": "b", "de": "B"}'
    data = b'{"en": "%s", "de": "A"}\n%s\n' % (b"x" * 40, line)
    assert bitext_rows(tmp_path / "a.jsonl", data) == [(None, None, None), (b"b", b"B", None)]


def test_members_are_found_by_name_or_path(tmp_path: Path) -> None:
    columns = {"columns": ["a.b", "c.d.e"]}
    line = b'{"a.b": "name", "a": {"b": "path"}, "c": {"d": {"e": "deep"}}}'
    assert bitext_rows(tmp_path / "a.jsonl", line, **columns) == [(b"name", b"deep", None)]
    for data in (b'["a"]', b'{"a.b": "x", "c": {"d": "e"}}', b'{"a.b": "x", "c": 1}'):
        with pytest.raises(DataError, match=r"line 1: no member "):
            bitext_rows(tmp_path / "a.jsonl", data, **columns)


def archive(**members: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, text in members.items():
            file.writestr(name.replace("_", "."), text)
    return buffer.getvalue()


def test_an_archive_is_read_from_the_first_members_of_both_languages(tmp_path: Path) -> None:
    data = archive(alone_en="no\n", README="no", de="no\n", x_de="A\nB\n", x_en="a\nb\n", y_en="no\n", y_de="no\n")
    assert bitext_rows(tmp_path / "a.zip", data) == [(b"a", b"A", None), (b"b", b"B", None)]
    with pytest.raises(DataError, match=r"a\.zip: one side ends before line 3 of the other"):
        bitext_rows(tmp_path / "a.zip", archive(x_en="a\nb\n", x_de="A\nB\nC\n"))


@pytest.mark.parametrize("name", ["a.parquet", "a.zip", "a.tsv"])
def test_missing_files_and_files_compressed_twice_are_refused(tmp_path: Path, name: str) -> None:
    def read(path: Path) -> None:
        list(bitext.read_source(bitext_section({"files": [str(path)]}), 0, {}))

    with pytest.raises(MissingError, match=rf"{name} does not exist\. Check the path"):
        read(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(MissingError, match=rf"{name} is not a file\. Check the path"):
        read(tmp_path / name)
    if name != "a.tsv":
        for suffix in opening.COMPRESSIONS:
            (tmp_path / f"{name}{suffix}").write_bytes(b"")
            with pytest.raises(UsageError, match=rf"\{suffix} is a compressed (parquet|opus) file, which"):
                read(tmp_path / f"{name}{suffix}")


def test_a_csv_error_names_the_line_with_the_quotation_mark(tmp_path: Path) -> None:
    for data, line in (
        (b'a,A\n"b\nb",B\n"c\nc', "lines 4 to 5"),
        (b'a,A\n"b\nb",B\n"c', "line 4"),
        (b'"c\n\n\n', "lines 1 to 3"),
    ):
        with pytest.raises(DataError, match=rf"a\.csv, {line}: unexpected end of data\. Is a quotation mark"):
            bitext_rows(tmp_path / "a.csv", data)


def test_few_long_rows_of_parquet_are_read_at_once(tmp_path: Path) -> None:
    """A dictionary stores a cell of 10 MB once, but each row that is read takes 10 MB of memory."""
    import pyarrow
    from pyarrow import parquet

    line, short = "x" * 10_000_000, "y" * bitext_tables.MAX_LINE_BYTES
    rows = [{"en": line, "de": None}] * 20 + [{"en": short, "de": short + "y"}, {"en": "a", "de": "b"}]
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table({"translation": pyarrow.array(rows)}), buffer)
    before = pyarrow.total_allocated_bytes()
    peaks = []
    path = tmp_path / "a.parquet"
    path.write_bytes(buffer.getvalue())
    columns = bitext_tables.Columns("translation.en", "translation.de")
    for *_, sides in bitext_tables.read_parquet(path, columns).pieces:
        peaks.append(pyarrow.total_allocated_bytes() - before)
        assert sum(len(cell or "") for side in sides for cell in side if cell is not ...) < 2**21
    assert max(peaks) < 150_000_000
    found = bitext_rows(path, buffer.getvalue(), columns=["translation.en", "translation.de"])
    assert found == [(None, b"", None)] * 20 + [(short.encode(), None, None), (b"a", b"b", None)]


def test_too_little_memory_is_not_reported_as_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow

    fail = Mock(side_effect=pyarrow.ArrowMemoryError("malloc of size 99 failed"))
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", fail)
    with pytest.raises(StorageError, match=r"^there is too little memory to read \S+/a\.parquet\. "):
        bitext_rows(tmp_path / "a.parquet", b"data")


def test_messages_have_no_advice_for_programmers(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1: new-line character seen in unquoted field\. Is a quotation mark"):
        bitext_rows(tmp_path / "a.csv", b"a\rb,A\n")
    with pytest.raises(DataError, match=r"a\.parquet cannot be read as parquet: [^.]+\. Check the file and its c"):
        bitext_rows(tmp_path / "a.parquet", b"not parquet at all")


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
def test_a_table_in_utf16_is_named_as_such(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"/{name} is not plain text, it looks like UTF-16 or UTF-32\. "):
        bitext_rows(tmp_path / name, "a\tA\n".encode("utf-16"))


@pytest.mark.parametrize("name", ["a.parquet", "a.zip"])
def test_a_disk_error_is_not_reported_as_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("pyarrow.parquet.ParquetFile", fail)
    monkeypatch.setattr("zipfile.ZipFile", fail)
    with pytest.raises(OSError, match="Input/output error"):
        bitext_rows(tmp_path / name, b"data")


def test_an_archive_with_a_wrong_offset_is_corrupt(tmp_path: Path) -> None:
    """The last 22 bytes hold the offset of the central directory. A wrong one makes zipfile seek before the file."""
    data = bytearray(archive(x_en="a\n", x_de="A\n"))
    offset = int.from_bytes(data[-6:-2], "little")
    data[-6:-2] = (offset + 1000).to_bytes(4, "little")
    with pytest.raises(DataError, match=r"a\.zip is truncated or corrupt: .*\. Download it again"):
        bitext_rows(tmp_path / "a.zip", bytes(data))


@pytest.mark.parametrize(("suffix", "separator"), [("csv", ","), ("tsv", "\t")])
@pytest.mark.parametrize(
    ("header", "rows", "pairs"),
    [
        ("id,EN,de", ["0,a dog,ein Hund", "1,b,c"], [("a dog", "ein Hund"), ("b", "c")]),
        ("de, en ", ["ein Hund,a dog"], [("a dog", "ein Hund")]),
        ("english,german", ["a dog,ein Hund"], [("english", "german"), ("a dog", "ein Hund")]),
        ("en,en,de", ["a dog,ein Hund,x"], [("en", "en"), ("a dog", "ein Hund")]),
        ("en", ["a,b"], [("en", ""), ("a", "b")]),
        ("", ["a,b"], [("", ""), ("a", "b")]),
    ],
)
def test_a_header_with_both_language_codes_names_the_columns(
    tmp_path: Path, suffix: str, separator: str, header: str, rows: list[str], pairs: list[tuple[str, str]]
) -> None:
    lines = "".join(f"{line}\n" for line in [header, *rows]).replace(",", separator)
    (tmp_path / f"a.{suffix}").write_text(lines)
    entry = {"files": [str(tmp_path / f"a.{suffix}")]}
    corpus = loading.from_plain({"corpus": {"name": "o", "src": "en", "tgt": "de", "sources": [entry]}}, "test").corpus
    found = [pair for chunk in bitext.read_source(corpus, 0, {}) for pair in zip(chunk.src, chunk.tgt, strict=True)]
    decoded = [tuple((side or b"").decode() for side in pair) for pair in found]
    assert decoded == pairs


def test_with_chosen_columns_the_first_line_is_not_a_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("de,en\nein Hund,a dog\n")
    entry = {"files": [str(tmp_path / "a.csv")], "columns": ["1", "2"]}
    corpus = loading.from_plain({"corpus": {"name": "o", "src": "en", "tgt": "de", "sources": [entry]}}, "test").corpus
    [chunk] = bitext.read_source(corpus, 0, {})
    assert chunk.src[0] == b"de"
    (tmp_path / "a.csv").write_text("")
    entry.pop("columns")
    corpus = loading.from_plain({"corpus": {"name": "o", "src": "en", "tgt": "de", "sources": [entry]}}, "test").corpus
    assert list(bitext.read_source(corpus, 0, {})) == []
