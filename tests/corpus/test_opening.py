"""Compressed files: hashes, disk errors, and the same bytes for the same data."""

import bz2
import errno
import gzip
import hashlib
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt_cli.corpus import opening
from nmt_cli.corpus.opening import COMPRESSIONS, compressing, opened
from nmt_cli.system.errors import DataError


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
@pytest.mark.parametrize("size", [0, 5, 200_001])
def test_reading_a_file_to_its_end_stores_the_hash_of_its_bytes(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes], size: int
) -> None:
    content = random.Random(1).randbytes(size)
    path = tmp_path / f"text{suffix}"
    path.write_bytes(pack(content))
    hashes: dict[Path, str] = {}
    with opened(path, hashes) as file:
        assert file.read(3) == content[:3]
    if size == 200_001 and not suffix:
        assert not hashes, "only a part was read"
    for piece in (-1, 4096):
        with opened(path, hashes) as file:
            assert b"".join(iter(lambda size=piece: file.read(size), b"")) == content
        assert hashes.pop(path) == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("suffix", ["", *COMPRESSIONS])
def test_the_same_data_are_compressed_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    made, path = list[bytes](), tmp_path / f"text{suffix}"
    for now in (1e9, 2e9):
        monkeypatch.setattr("time.time", lambda now=now: now)
        with path.open("wb") as raw, compressing(raw, path.name) as file:
            file.write(b"some text\n" * 100)
        made.append(path.read_bytes())
    assert made[0] == made[1]
    with opened(path, {}) as packed:
        assert packed.read() == b"some text\n" * 100


@pytest.mark.parametrize("suffix", ["", *COMPRESSIONS])
def test_a_disk_error_is_not_reported_as_a_corrupt_file(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"text{suffix}").write_bytes(b"")
    with pytest.raises(OSError, match="Input/output error"), opened(tmp_path / f"text{suffix}", {}):
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_garbage_after_a_stream_is_refused(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random.Random(1).randbytes(200_000)
    path = tmp_path / f"a{suffix}"

    def content(packed: bytes) -> bytes:
        path.write_bytes(packed)
        with opened(path, {}) as file:
            return file.read()

    for block in (1 << 16, 97):
        monkeypatch.setattr(opening, "BLOCK_BYTES", block)
        assert content(compress(data) + compress(b"") + compress(b"more") + b"\0" * 1000) == data + b"more"
        for wrong in (compress(data) + b"garbage" * 8, compress(data)[:-9], b"", b"garbage" * 8):
            if wrong or suffix != ".gz":  # GzipFile accepts an empty file as empty text
                with pytest.raises(DataError, match=rf"a\{suffix} is truncated or corrupt: "):
                    content(wrong)
