"""Text files: line ends, files that are not text, hashes and overlong lines."""

import gzip
import hashlib
from pathlib import Path

import pytest

from nmt_cli.corpus import readers
from nmt_cli.system.errors import DataError


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        ("a\r\n\x0b\x0c\x85b\u2028c\n\nd".encode(), ["a\r", "\x0b\x0c\x85b\u2028c", "", "d"]),
    ],
)
def test_lines_end_at_line_feeds_only(tmp_path: Path, data: bytes, lines: list[str]) -> None:
    (tmp_path / "text").write_bytes(data)
    (tmp_path / "text.gz").write_bytes(gzip.compress(data))
    assert readers.split_lines(data, "text") == readers.read_lines(tmp_path / "text") == lines
    for name in ("text", "text.gz"):
        hashes: dict[Path, str] = {}
        assert list(readers.raw_lines(tmp_path / name, hashes)) == [line.encode() for line in lines]
        assert hashes == {tmp_path / name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}
    assert readers.read_lines(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("data", "line"), [(b"\xff", "1"), (b"a\nb\n\xe9t\xe9\n\xff", "3"), (b"\n" * 1233 + b"\xc3", "1,234")]
)
def test_the_error_names_the_line_that_is_not_utf8(data: bytes, line: str) -> None:
    with pytest.raises(DataError, match=rf"^some/text, line {line} is not UTF-8\. Convert it, for example with iconv$"):
        readers.split_lines(data, "some/text")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (gzip.compress(b"a", mtime=0), "gzip"),
        (b"PK\x03\x04\x14\xff", "zip"),
        (b"BZh91AY\xff", "bzip2"),
        (b"\xfd7zXZ\x00", "xz"),
        (b"\x28\xb5\x2f\xfd\x04", "zstd"),
        (b"PAR1\x15\xff", "parquet"),
        (b"\xff\xfe\xfc\x00", "UTF-16 or UTF-32"),
        (b"\xfe\xff\x00\xfc", "UTF-16"),
        (b"\x00\x00\xfe\xff\x00\x00\x00\xfc", "UTF-32"),
    ],
)
def test_files_that_are_not_plain_text_are_recognized_by_their_first_bytes(
    tmp_path: Path, data: bytes, kind: str
) -> None:
    message = rf"is not plain text, it looks like {kind}\. Unpack it or convert it to UTF-8$"
    for check in (readers.check_plain, readers.split_lines):
        with pytest.raises(DataError, match=rf"^text {message}"):
            check(data, "text")
    (tmp_path / "text").write_bytes(data)
    (tmp_path / "text.gz").write_bytes(gzip.compress(data))
    for name in ("text", "text.gz"):
        with pytest.raises(DataError, match=rf"{name} {message}"):
            next(readers.raw_lines(tmp_path / name, {}))


@pytest.mark.parametrize(
    "name", ["a.tsv", "a.csv", "a.tmx", "a.xlf", "a.xliff", "a.jsonl", "a.parquet", "a.mrg", "a.xliff.gz", "a.mrg.xz"]
)
def test_files_that_are_not_plain_text_are_recognized_by_their_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"text\n")
    with pytest.raises(DataError, match=rf"{name} is not plain text in one language\. List it under corpus\.sources"):
        next(readers.raw_lines(tmp_path / name, {}))


def test_files_read_to_the_end_have_hashes(tmp_path: Path) -> None:
    data = b"".join(b"%d\n" % i for i in range(9001))
    paths = [tmp_path / "a", tmp_path / "b.gz"]
    for path in paths:
        path.write_bytes(gzip.compress(data) if path.suffix else data)
    hashes: dict[Path, str] = {}
    chunks = readers.read_pairs(str(paths[0]), str(paths[1]), 4, hashes)
    first = next(chunks)
    assert (hashes, first.repetition, first.src == first.tgt, len(first.src)) == ({}, 4, True, 4000)
    rest = list(chunks)
    assert [(len(chunk.tgt), chunk.repetition) for chunk in rest] == [(4000, 4), (1001, 4)]
    assert b"".join(line + b"\n" for chunk in (first, *rest) for line in chunk.src if line is not None) == data
    assert hashes == {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_over_the_limit_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 4)
    sizes = [4, 5, 0, 7, 8, 9, 12, 13, 1, 5]
    (tmp_path / "text").write_bytes(b"\n".join(b"x" * size for size in sizes) + end)
    found = [None if line is None else len(line) for line in readers.raw_lines(tmp_path / "text", {})]
    assert found == [4, None, 0, None, None, None, None, None, 1, None]
