"""Jobs in an object store, here fsspec's store in memory."""

import errno
import gzip
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from shouting import begin, expected, work

from nmt_cli.sharding import inputs, job, proof
from nmt_cli.sharding.bucket import Bucket
from nmt_cli.system.errors import MissingError, OutputError, StorageError

TEXT = b"".join(b"line %d\n" % number for number in range(95))


@pytest.fixture
def files() -> Iterator[Any]:
    store = fsspec.filesystem("memory")
    store.pipe_file("/corpus/in/a.en", TEXT)
    store.pipe_file("/corpus/in/b/c.gz", gzip.compress(TEXT))
    yield store
    store.rm("/corpus", recursive=True)


def test_a_job_in_an_object_store(files: Any) -> None:
    some_job = begin("memory://corpus/out", "memory://corpus/in")
    assert work(some_job, "2/3").lines == 190
    assert work(begin("memory://corpus/out", "memory://corpus/in"), "1/1").lines == 0
    with pytest.raises(OutputError, match="another job"):
        begin("memory://corpus/out", "memory://corpus/in", model="small")
    assert not [*proof.problems(some_job)]
    proof.join(some_job, None)
    assert files.cat_file("/corpus/out/a.en") == expected(TEXT)
    assert gzip.decompress(files.cat_file("/corpus/out/b/c.gz")) == expected(TEXT)
    assert not [path for path in files.find("/corpus/out") if "claim" in path]
    (lines,) = files.glob("/corpus/out/units/000/0000003-*")
    files.pipe_file(lines, b"damage")
    assert [unit.number for unit, _ in proof.problems(some_job)] == [3]
    assert work(begin("memory://corpus/out", "memory://corpus/in")).lines == 10
    assert not [*proof.problems(some_job)]


def test_a_file_is_created_once(files: Any) -> None:
    store = Bucket("memory://corpus/new")
    assert store.create("x", b"1")
    assert not store.create("x", b"2")
    assert files.cat_file("/corpus/new/x") == b"1"
    store.remove("x")
    store.remove("x")
    assert not store.exists("x")


@pytest.mark.parametrize("word", ["memory://corpus/none", "memory://corpus/*.none", "memory://other"])
def test_a_missing_file_is_named(files: Any, word: str) -> None:
    with pytest.raises(MissingError, match="matches no file"):
        inputs.find([word])


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (LookupError("no credentials"), StorageError, r"memory://corpus/out \(LookupError: no credentials\)\. Check"),
        (FileNotFoundError("no such bucket"), StorageError, "FileNotFoundError: no such bucket"),
        (OSError(errno.EACCES, "Forbidden"), OSError, "Forbidden.*memory://corpus/out"),
    ],
)
def test_errors_of_a_store_name_its_url(
    files: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], message: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(type(files), "pipe_file", fail)
    with pytest.raises(kind, match=message):
        begin("memory://corpus/out", "memory://corpus/in")


def test_two_descriptions_written_at_once_are_found(files: Any) -> None:
    """A store that cannot prevent this keeps the last description. Sidecars of the other job's units name that job."""
    one = begin("memory://corpus/out", "memory://corpus/in")
    other = job.Job(one.store, one.files, begin("memory://corpus/2", "memory://corpus/in", model="small").description)
    work(other, "1/2")
    files.rm_file("/corpus/out/units/000/0000019.json")
    (first, reason), *_ = proof.problems(one)
    assert first.number == 0
    assert "another model or other options" in reason
    with pytest.raises(OutputError, match="another model or other options"):
        work(one)
