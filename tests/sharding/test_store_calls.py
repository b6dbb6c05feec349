"""The calls that a store makes to the library of an object store, and its errors."""

import errno
import io
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from nmt_cli.sharding import bucket, inputs
from nmt_cli.sharding.bucket import Bucket, is_url, remote
from nmt_cli.sharding.inputs import Input
from nmt_cli.sharding.store import Directory, store_of
from nmt_cli.system.errors import MissingError, StorageError, UsageError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s3://a", True),
        ("S3://a", True),
        ("gs+x.y-1://a/b", True),
        ("1s://a", False),
        ("/s3://a", False),
        ("s3:/a", False),
    ],
)
def test_urls_are_distinguished_from_paths(text: str, found: bool) -> None:
    assert is_url(text) == found
    if not found:
        assert isinstance(store_of(text, "p"), Directory)


class Files:
    """A bucket on a mocked fsspec file system, which records its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, protocol: Any = "s3") -> None:
        self.mock = Mock(protocol=protocol)
        monkeypatch.setattr(bucket, "file_system", lambda _: (self.mock, "bucket/out/"))
        self.store = Bucket("s3://bucket/out/")


def test_listings_of_an_object_store_are_never_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(monkeypatch)
    files.mock.ls.return_value = ["bucket/out/units/a", "bucket/out/units/b/"]
    files.mock.exists.return_value = True
    assert files.store.names("units") == {"a", ""}
    assert files.store.exists("x")
    calls = [each for each in files.mock.mock_calls if not each[0].startswith("exists().")]
    assert calls == [
        call.invalidate_cache(), call.ls("bucket/out/units", detail=False),
        call.invalidate_cache(), call.exists("bucket/out/x"),
    ]  # fmt: skip
    files.mock.ls.side_effect = files.mock.open.side_effect = FileNotFoundError()
    assert files.store.names("none") == set()
    with pytest.raises(FileNotFoundError) as caught:
        files.store.open("x")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, "s3://bucket/out/x")


@pytest.mark.parametrize("error", [None, NotImplementedError(), TypeError(), ValueError(), FileExistsError()])
def test_a_claim_is_written_even_if_the_store_cannot_create_exclusively(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    files = Files(monkeypatch)
    files.mock.exists.return_value = False
    files.mock.pipe_file.side_effect = [error, None]
    assert files.store.claim("x", b"1") == (not isinstance(error, FileExistsError))
    first, *more = files.mock.pipe_file.call_args_list
    assert first == call("bucket/out/x", b"1", mode="create")
    again = error is not None and not isinstance(error, FileExistsError)
    assert more == ([call("bucket/out/x", b"1")] if again else [])
    files.mock.exists.return_value = True
    assert not files.store.create("x", b"2")
    assert len(files.mock.pipe_file.call_args_list) == 1 + again


@pytest.mark.parametrize(
    ("protocol", "made"),
    [
        ("file", True),
        (("file", "local"), True),
        (("sftp", "ssh"), True),
        ("smb", True),
        ("s3", False),
        (("gs", "gcs"), False),
    ],
)
def test_directories_are_created_only_in_stores_that_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: Any, made: bool
) -> None:
    files = Files(monkeypatch, protocol)
    files.mock.exists.return_value = False
    part = files.store.part()
    assert part.parent == Path(tempfile.gettempdir())
    for act in (
        lambda: files.store.create("a/x", b"1"),
        lambda: files.store.replace("a/x", b"1"),
        lambda: files.store.keep(part, "a/x"),
    ):
        part.touch()
        files.mock.makedirs.reset_mock()
        act()
        expected_calls = [call("bucket/out/a", exist_ok=True)] if made else []
        assert files.mock.makedirs.call_args_list == expected_calls
    assert not part.exists()
    assert files.mock.put_file.call_args == call(str(part), "bucket/out/a/x")
    files.mock.rm_file.side_effect = FileNotFoundError()
    files.store.remove("a/x")
    assert files.mock.rm_file.call_args == call("bucket/out/a/x")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (UsageError("mine"), UsageError, "^mine$"),
        (NotImplementedError("none"), NotImplementedError, "^none$"),
        (OSError(errno.EACCES, "no", "file"), PermissionError, r"no: 'file'$"),
        (OSError(errno.EACCES, "no"), PermissionError, r"no: 'here'$"),
        (OSError("plain"), StorageError, r"^cannot access here \(OSError: plain\)\. Check the address"),
        (ValueError("bad"), StorageError, r"^cannot access here \(ValueError: bad\)\. Check the address"),
    ],
)
def test_errors_of_remote_stores(error: Exception, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message), remote("here"):
        raise error


def test_errors_while_reading_an_input_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, _: Any) -> int:
            raise LookupError("lost")

    files = Mock()
    files.open.return_value = Lost()
    monkeypatch.setattr(inputs, "file_system", lambda _: (files, "bucket/a"))
    with pytest.raises(StorageError, match=r"^cannot access s3://bucket/a \(LookupError: lost\)\. Check the address"):
        with inputs.opened(Input("a", "s3://bucket/a", 5)) as stream:
            stream.read()
    assert files.open.call_args == call("bucket/a", "rb")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            ImportError("Install s3fs"),
            UsageError,
            r"^s3://a: Install s3fs\. For s3:// and gs://, run: pip install 'nmt-cli\[cloud\]'$",
        ),
        (ValueError("unknown"), MissingError, "^s3://a: unknown$"),
        (RuntimeError("odd"), StorageError, r"^cannot access s3://a \(RuntimeError: odd\)"),
    ],
)
def test_errors_of_addresses(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], message: str
) -> None:
    monkeypatch.setattr("fsspec.core.url_to_fs", Mock(side_effect=error))
    with pytest.raises(kind, match=message):
        bucket.file_system("s3://a")
