import bz2
import gzip
import hashlib
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt_cli.corpus.opening import opened


@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
@pytest.mark.parametrize("size", [0, 5, 200_001])
def test_the_hash_of_a_file_that_is_read_to_its_end_is_that_of_its_bytes(
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
