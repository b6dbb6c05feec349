"""Zip files: members that hold no text are copied as they are, and hostile files are refused."""

import io
import struct
import time
import tracemalloc
import zipfile

import pytest
from office_files import zipped

from nmt_cli.documents.archive import Archive
from nmt_cli.system.errors import DataError

LIMIT = 1 << 20
SIZES_FOLLOW = 8  # the flag of a member whose sizes follow its data


def infos(data: bytes) -> dict[str, tuple[object, ...]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {
            each.filename: (each.compress_type, each.date_time, each.external_attr, each.comment, archive.read(each))
            for each in archive.infolist()
        }


class Pipe(io.BytesIO):
    def tell(self) -> int:
        raise io.UnsupportedOperation


def streamed() -> bytes:
    """Return a zip file written to a pipe. The sizes of each member follow its data."""
    out = Pipe()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = b"a comment"
        with archive.open("a.xml", "w", force_zip64=True) as member:
            member.write(b"text " * 100)
        archive.writestr("b\u00e4r/", b"")
        info = zipfile.ZipInfo("b\u00e4r/c.png", (2001, 2, 3, 4, 5, 6))
        info.comment, info.external_attr = b"picture", 0o644 << 16
        archive.writestr(info, bytes(range(256)))
    return out.getvalue()


@pytest.mark.parametrize("data", [streamed(), zipped({"mimetype": "a/b", "a.xml": "text " * 100, "c.png": bytes(999)})])
def test_other_members_are_copied(data: bytes) -> None:
    archive = Archive(data, LIMIT)
    assert archive.replaced({}) == data
    out = archive.replaced({"a.xml": b"other text"})
    before, after = infos(data), infos(out)
    assert list(before) == list(after) == archive.names
    assert after.pop("a.xml")[-1] == b"other text"
    before.pop("a.xml")
    assert after == before
    with zipfile.ZipFile(io.BytesIO(out)) as one, zipfile.ZipFile(io.BytesIO(data)) as other:
        assert one.comment == other.comment
    assert Archive(out, LIMIT).replaced({"a.xml": b"text " * 100, "c.png": b""})


def test_sizes_no_longer_follow_the_data_of_members() -> None:
    flags = []
    for data in (streamed(), Archive(streamed(), LIMIT).replaced({"a.xml": b"other text"})):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            flags.append({info.flag_bits & SIZES_FOLLOW for info in archive.infolist()})
    assert flags == [{SIZES_FOLLOW}, {0}]


def test_the_first_member_stays_first_and_uncompressed() -> None:
    """Programs find the type of OpenDocument and EPUB files at byte 38."""
    data = zipped({"mimetype": "application/epub+zip", "a.xml": "text"})
    assert data[30:58] == b"mimetypeapplication/epub+zip"
    assert Archive(data, LIMIT).replaced({"a.xml": b"other"})[30:58] == data[30:58]


def patched(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new)


def overlapping() -> bytes:
    """Return a file whose 26 members share the same bytes."""
    one = zipped({"a": b"\0" * 100_000}, stored=("a",))
    begin = one.index(b"PK\1\2")
    entry = one[begin : one.index(b"PK\5\6")]
    entries = b"".join(entry[:-1] + bytes([97 + n % 26]) for n in range(26))
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 26, 26, len(entries), begin, 0)
    return one[:begin] + entries + end


def huge() -> bytes:
    """Return a file with a member that would unpack to 8 GB, according to its 64-bit size."""
    member = zipfile.ZipInfo("a")
    member.extra = struct.pack("<HHQ", 1, 8, 1 << 33)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(member, "text")
    begin = out.getvalue().index(b"PK\1\2") + 24
    return out.getvalue()[:begin] + b"\xff" * 4 + out.getvalue()[begin + 4 :]


GOOD = zipped({"a.xml": "text " * 100})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a zip file"),
        (b"PK\3\4", "not a zip file"),
        (GOOD[:-30], "not a zip file"),
        (bytes.fromhex("d0cf11e0a1b11ae1") + bytes(999), "password"),
        (zipped({"../a": "x"}), "leads outside"),
        (zipped({"a/../../b": "x"}), "leads outside"),
        (zipped({"/etc/passwd": "x"}), "leads outside"),
        (zipped({"a\\..\\b": "x"}), "leads outside"),
        (zipped({"C:x": "x"}), "leads outside"),
        (patched(zipped({"aa": "x", "ab": "y"}), b"ab", b"aa"), "two members"),
        (overlapping(), "overlap"),
        (huge(), "more than 4 GB"),
        (b"PK\1\2" * 20_001 + GOOD, "more than 20,000 members"),
    ],
)
def test_hostile_files_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Archive(data, LIMIT)


def flags(data: bytes, value: int) -> bytes:
    """Return a zip file of one member, with the flags of the member set to `value`."""
    for mark, offset in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        begin = data.index(mark) + offset
        data = data[:begin] + struct.pack("<H", value) + data[begin + 2 :]
    return data


def method(data: bytes, value: int) -> bytes:
    for mark, offset in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        begin = data.index(mark) + offset
        data = data[:begin] + struct.pack("<H", value) + data[begin + 2 :]
    return data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (flags(GOOD, 1), "password"),
        (method(GOOD, 12), "compressed in a way"),
        (method(GOOD, 0), "does not match its checksum"),
        (patched(GOOD, b"PK\3\4", b"PK\3\5"), "no header"),
        (GOOD[:35] + b"\xff" * 4 + GOOD[39:], "cannot be unpacked"),
        (GOOD[:37] + b"\xff" + GOOD[38:], "damaged"),
        (zipped({"a.xml": b"\0" * (LIMIT + 1)}), "unpacks to more than"),
    ],
)
def test_damaged_members_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Archive(data, LIMIT).read("a.xml")


def test_a_zip_bomb_takes_little_memory_and_time() -> None:
    data = zipped({"a.xml": b"\0" * (60 << 20)})
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(DataError, match="unpacks to more than"):
        Archive(data, LIMIT).read("a.xml")
    assert time.process_time() - started < 1
    assert tracemalloc.get_traced_memory()[1] < 4 * LIMIT
    tracemalloc.stop()


def test_the_limit_applies_to_all_members_together() -> None:
    archive = Archive(zipped({str(number): bytes(LIMIT // 2) for number in range(3)}), LIMIT)
    assert len(archive.read("0")) + len(archive.read("1")) == LIMIT
    with pytest.raises(DataError, match="unpacks to more than"):
        archive.read("2")
