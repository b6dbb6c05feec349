"""Fields of zip members that a rewritten file keeps, and the limits of reading."""

import io
import struct
import zipfile

import pytest
from office_files import zipped

from nmt_cli.documents import archive as module
from nmt_cli.documents.archive import Archive
from nmt_cli.system.errors import DataError

LIMIT = 1 << 20
TIMES = struct.pack("<HHBI", 0x5455, 5, 1, 1_000_000_000)  # an extra field with a timestamp
ZIP64 = struct.pack("<HHQQ", 1, 16, 0, 0)


def member(name: str, **fields: object) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (1999, 12, 31, 23, 58, 58))
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def build(*members: tuple[zipfile.ZipInfo, bytes], comment: bytes = b"") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.comment = comment
        for info, content in members:
            archive.writestr(info, content)
    return out.getvalue()


def test_a_rewritten_file_keeps_every_field_of_every_member() -> None:
    one = member("a.xml", compress_type=zipfile.ZIP_DEFLATED, extra=TIMES, comment=b"c1", internal_attr=1)
    one.create_system, one.external_attr, one.create_version, one.extract_version = 3, 0o100755 << 16, 45, 21
    two = member("ü/b.bin", compress_type=zipfile.ZIP_STORED, extra=TIMES + b"\1\0", comment=b"c22", internal_attr=2)
    two.create_system, two.external_attr, two.create_version = 0, 0x20, 20
    data = build((one, b"text " * 9), (two, b"\0\1\2"), (member("c", create_system=3), b""), comment=b"of the file")
    out = Archive(data, LIMIT).replaced({"a.xml": b"other", "c": b"new"})
    names = "filename compress_type date_time comment extra create_system create_version extract_version internal_attr"
    kept = [*names.split(), "external_attr", "flag_bits"]
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(io.BytesIO(out)) as after:
        assert after.testzip() is None
        assert (after.comment, after.namelist()) == (b"of the file", ["a.xml", "ü/b.bin", "c"])
        assert [after.read(name) for name in after.namelist()] == [b"other", b"\0\1\2", b"new"]
        for old, new in zip(before.infolist(), after.infolist(), strict=True):
            assert [getattr(old, name) for name in kept] == [getattr(new, name) for name in kept]
    assert out.count(TIMES) == data.count(TIMES) == 4, "in the headers of members and in the directory"
    assert out.count(b"\1\0") >= 2
    assert Archive(out, LIMIT).replaced({"a.xml": b"text " * 9, "c": b""}) == data


def test_names_of_old_archives_stay() -> None:
    data = zipped({"aa": "x", "b": "y"}).replace(b"aa", b"\x84\x81")  # "äü" in the code page of DOS
    archive = Archive(data, LIMIT)
    assert archive.names == ["äü", "b"]
    assert archive.replaced({"b": b"z"}).count(b"\x84\x81") == 2


def test_sizes_of_64_bits_are_left_out() -> None:
    for extra, expected in (
        (ZIP64, b""),
        (TIMES + ZIP64, TIMES),
        (ZIP64 + TIMES, TIMES),
        (TIMES + b"\7", TIMES + b"\7"),
        (b"", b""),
    ):
        assert module._without_zip64(extra) == expected


def test_the_limits_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    data = zipped({"a": "x" * 10, "b": "y" * 5, "c": "z"}, stored=("b",))
    archive = Archive(data, 15)
    assert (archive.read("a"), archive.read("b")) == (b"x" * 10, b"y" * 5)
    with pytest.raises(DataError, match=r"unpacks to more than 15 bytes of text"):
        archive.read("c")
    for limit, name in ((9, "a"), (4, "b")):
        with pytest.raises(DataError, match=f"unpacks to more than {limit} bytes"):
            Archive(data, limit).read(name)
    with pytest.raises(DataError, match="the file is damaged: it has no d"):
        archive.read("d")
    monkeypatch.setattr(module, "_MOST_MEMBERS", 3)
    assert Archive(data, 15).names == ["a", "b", "c"]
    monkeypatch.setattr(module, "_MOST_MEMBERS", 2)
    with pytest.raises(DataError, match="more than 2 members"):
        Archive(data, 15)


@pytest.mark.parametrize("name", ["\\a", "a/..", "..", "../..", "a/../b", "a\\..", "D:\\x", "/"])
def test_names_that_lead_outside_are_refused(name: str) -> None:
    with pytest.raises(DataError, match="leads outside"):
        Archive(zipped({"b": "x", name: "x"}), LIMIT)


def test_usual_names_are_read() -> None:
    names = ["a..b", "..a/b", "a/b..", "a/.b", "ab:c", "a b"]
    assert Archive(zipped(dict.fromkeys(names, "x")), LIMIT).names == names


def test_a_member_that_ends_early_is_refused() -> None:
    data = zipped({"a": "x" * 99}, stored=("a",))
    begin = data.index(b"PK\1\2")
    sizes = data[begin + 20 : begin + 28]
    longer = data[: begin + 20] + struct.pack("<II", len(data) - 5, 99) + data[begin + 28 :]
    assert sizes == struct.pack("<II", 99, 99)
    with pytest.raises(DataError, match="ends early"):
        Archive(longer, LIMIT).read("a")
    with pytest.raises(DataError, match="does not match its checksum"):
        Archive(data.replace(b"xxx", b"yyy", 1), LIMIT).read("a")
