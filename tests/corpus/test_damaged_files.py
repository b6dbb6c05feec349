"""Damaged files of text and of corpora are named in one line."""

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

from nmt_cli.corpus.readers import raw_lines
from nmt_cli.corpus.store import open_corpus
from nmt_cli.corpus.tokenizer import writable
from nmt_cli.system.errors import DataError

PACKED = gzip.compress(b"ein Hund\n" * 100, mtime=0)


@pytest.mark.parametrize(
    "data",
    [PACKED[:-9], PACKED[:-8] + bytes(8), PACKED[:12] + b"\xff" * 8 + PACKED[20:], b"plain text\n"],
    ids=["truncated", "another checksum", "damaged", "plain"],
)
def test_a_damaged_gz_file_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.gz is truncated or corrupt: .*\. Copy it again"):
        list(raw_lines(tmp_path / "a.gz", {}))


@pytest.mark.parametrize("side", ["src", "tgt"])
@pytest.mark.parametrize("sentence", [0, 3, -1])
def test_a_corpus_has_no_empty_sentences(tmp_path: Path, numbers_corpus: Path, side: str, sentence: int) -> None:
    data = shutil.copytree(numbers_corpus, tmp_path / "data")
    file = data / f"train.{side}.offsets"
    offsets = np.fromfile(file, "<i8")
    lengths = np.diff(offsets)
    lengths[sentence - 1] += lengths[sentence]
    lengths[sentence] = 0
    np.concatenate([[0], np.cumsum(lengths)]).astype("<i8").tofile(file)
    with pytest.raises(DataError, match=rf"train\.{side}\.ids is damaged"):
        open_corpus(data)


def test_a_written_line_is_stripped() -> None:
    assert writable(" \x00a\x1f b\t c  d \x85") == "a  b\t c  d"
