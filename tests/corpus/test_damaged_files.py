"""Damaged files of text and of corpora are named in one line."""

import gzip
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from nmt_cli.corpus.readers import raw_lines
from nmt_cli.corpus.store import open_corpus
from nmt_cli.corpus.tokenizer import writable
from nmt_cli.storage import artefact
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


def resealed(data: Path, name: str, content: bytes) -> None:
    """Replace a file of a corpus, and its size and hash in the manifest."""
    (data / name).write_bytes(content)
    manifest = artefact.read_json(data / artefact.MANIFEST)
    manifest["files"][name] = {"bytes": len(content), "sha256": artefact.sha256(data / name)}
    (data / artefact.MANIFEST).write_bytes(artefact.json_bytes(manifest))


@pytest.mark.parametrize("side", ["src", "tgt"])
def test_ids_are_below_the_size_of_the_vocabulary(tmp_path: Path, numbers_corpus: Path, side: str) -> None:
    data = shutil.copytree(numbers_corpus, tmp_path / "data")
    size = open_corpus(data).manifest["vocabulary_size"]
    for last, valid in ((size - 1, True), (size, False)):
        ids = np.fromfile(data / f"train.{side}.ids", "<u2")
        ids[5] = last
        resealed(data, f"train.{side}.ids", ids.tobytes())
        open_corpus(data)
        with nullcontext() if valid else pytest.raises(DataError, match=rf"train\.{side}\.ids is damaged"):
            open_corpus(data, content=True)


@pytest.mark.parametrize("side", ["src", "tgt"])
@pytest.mark.parametrize(("place", "change"), [(0, 1), (-1, -1), (-1, 1)])
def test_offsets_cover_all_ids(tmp_path: Path, numbers_corpus: Path, side: str, place: int, change: int) -> None:
    data = shutil.copytree(numbers_corpus, tmp_path / "data")
    offsets = np.fromfile(data / f"train.{side}.offsets", "<i8")
    offsets[place] += change
    resealed(data, f"train.{side}.offsets", offsets.tobytes())
    with pytest.raises(DataError, match=rf"train\.{side}\.ids is damaged"):
        open_corpus(data)


def test_both_sides_have_equally_many_whole_sentences(tmp_path: Path, numbers_corpus: Path) -> None:
    data = shutil.copytree(numbers_corpus, tmp_path / "data")
    ids, offsets = (
        np.fromfile(data / f"train.tgt.{kind}", dtype) for kind, dtype in (("ids", "<u2"), ("offsets", "<i8"))
    )
    count = len(offsets) - 1
    resealed(data, "train.tgt.offsets", offsets[:-1].tobytes())
    resealed(data, "train.tgt.ids", ids[: offsets[-2]].tobytes())
    with pytest.raises(DataError, match=f"is damaged: {count:,} source and {count - 1:,} target sentences"):
        open_corpus(data)
    for kind, content in (("ids", b""), ("ids", b"abc"), ("offsets", bytes(12))):
        other = shutil.copytree(numbers_corpus, tmp_path / f"{kind}{len(content)}")
        resealed(other, f"train.src.{kind}", content)
        with pytest.raises(DataError, match=r"train\.src\.\* are damaged: one is empty or cut off"):
            open_corpus(other)
