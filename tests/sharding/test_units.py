"""Units depend on the text alone, hold whole lines, and are read in any order."""

import bz2
import gzip
import io
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest

from nmt_cli.corpus.readers import MAX_LINE_BYTES
from nmt_cli.sharding import inputs, units
from nmt_cli.sharding.units import Reader
from nmt_cli.system.errors import DataError

PACKED: dict[str, Callable[[bytes], bytes]] = {
    "t.txt": bytes, "t.gz": gzip.compress, "t.bz2": bz2.compress, "t.xz": lzma.compress
}  # fmt: skip
TEXT = b"".join(b"line %d\n" % number * (number % 3 + 1) for number in range(1000))


def naive(data: bytes, lines: int, max_bytes: int) -> list[tuple[int, int]]:
    """Return each unit's line count and size in bytes, found line by line."""
    found, size, count = [], 0, 0
    for line in io.BytesIO(data):
        size, count = size + len(line), count + 1
        if count == lines or size >= max_bytes:
            found.append((count, size))
            size = count = 0
    return [*found, (count, size)] if size else found


def test_units_end_after_lines_or_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(3)
    monkeypatch.setattr(units, "MAX_UNIT_BYTES", 60)
    for block in (1, 7, 64, 4096):
        monkeypatch.setattr(units, "BLOCK", block)
        for _ in range(60):
            data = b"".join(b"x" * draw.choice([0, 1, 5, 70]) + b"\n" for _ in range(draw.randrange(40)))
            data += b"y" * draw.choice([0, 3])
            for lines in (1, 4, 100):
                assert list(units.measure(io.BytesIO(data), lines)) == naive(data, lines, 60)


@pytest.mark.parametrize("name", PACKED)
def test_units_are_read_in_any_order(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(PACKED[name](TEXT))
    files = inputs.find([str(tmp_path / name)])
    found = units.numbered([units.count(files[0], 64)])
    assert [unit.first for unit in found] == list(range(1, 2000, 64))
    draw = random.Random(5)
    with Reader(files) as reader:
        assert b"".join(reader.read(unit).data for unit in found) == TEXT
        for unit in draw.sample(found, len(found)):
            content = reader.read(unit)
            assert content.data == b"".join(TEXT.splitlines(keepends=True)[unit.first - 1 : unit.last])


def test_zstandard_is_read(tmp_path: Path) -> None:
    with pyarrow.CompressedOutputStream(str(tmp_path / "t.zst"), "zstd") as stream:
        stream.write(TEXT)
    files = inputs.find([str(tmp_path / "t.zst")])
    with Reader(files) as reader:
        assert b"".join(reader.read(unit).data for unit in units.numbered([units.count(files[0], 64)])) == TEXT


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_long_line_is_cut_but_the_hash_covers_all_of_it(tmp_path: Path, scheme: str) -> None:
    """Lines are cut as `nmt translate` cuts them. Memory use does not grow with their length."""
    hashes = set()
    for end in (b"1", b"2"):
        long = b"x" * (units.MAX_UNIT_BYTES + 2 * MAX_LINE_BYTES) + end
        (tmp_path / "t.txt").write_bytes(b"a\n" + long + b"\nb\n")
        files = inputs.find([f"{scheme}{tmp_path}/t.txt"])
        found = units.numbered([units.count(files[0], 10)])
        assert [(unit.first, unit.lines) for unit in found] == [(1, 2), (3, 1)]
        with Reader(files) as reader:
            content = reader.read(found[0])
            assert content.data == b"a\n" + b"x" * (MAX_LINE_BYTES + 1) + b"\n"
            assert reader.read(found[1]).data == b"b\n"
        hashes.add(content.sha256)
    assert len(hashes) == 2


@pytest.mark.parametrize(
    "changed", [b"one\ntwo\n", b"one\ntwothree\nfour\n", b"", b"one two\nthree\nfour\n", b"one\n\nwo\nthree\nfour"]
)
def test_a_file_that_changed_is_refused(tmp_path: Path, changed: bytes) -> None:
    (tmp_path / "t").write_bytes(b"one\ntwo\nthree\nfour\n")
    files = inputs.find([str(tmp_path / "t")])
    found = units.numbered([units.count(files[0], 2)])
    (tmp_path / "t").write_bytes(changed)
    with Reader(files) as reader, pytest.raises(DataError, match="has changed since its lines were counted"):
        list(map(reader.read, found))
