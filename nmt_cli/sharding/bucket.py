"""Object stores through fsspec: s3://, gs://, hf:// and others."""

import contextlib
import errno
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from nmt_cli.storage import artefact
from nmt_cli.system.errors import MissingError, NmtError, StorageError, UsageError

URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
WITH_DIRECTORIES = {"file", "local", "sftp", "ssh", "hdfs", "webhdfs", "smb"}  # protocols with real directories


class Bucket:
    """A directory (key prefix) in an object store. Each file is uploaded as a whole."""

    def __init__(self, url: str) -> None:
        self.place = url.rstrip("/")
        self._files, path = file_system(url)
        self._root = path.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def names(self, folder: str) -> set[str]:
        with remote(self.place):
            self._files.invalidate_cache()
            try:
                return {path.rsplit("/", 1)[-1] for path in self._files.ls(self._path(folder), detail=False)}
            except FileNotFoundError:
                return set()

    def exists(self, name: str) -> bool:
        with remote(self.place):
            self._files.invalidate_cache()
            return bool(self._files.exists(self._path(name)))

    def open(self, name: str) -> IO[bytes]:
        with remote(self.place):
            try:
                stream: IO[bytes] = self._files.open(self._path(name), "rb")
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, "no such file", f"{self.place}/{name}") from None
            return stream

    def claim(self, name: str, data: bytes) -> bool:
        return self.create(name, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file unless it exists, and return whether it was written.

        If the store has no exclusive creation, two workers may both succeed.
        """
        if self.exists(name):
            return False
        with remote(self.place):
            self._make_directory(name)
            try:
                self._files.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
            except (NotImplementedError, TypeError, ValueError):
                self._files.pipe_file(self._path(name), data)
        return True

    def replace(self, name: str, data: bytes) -> None:
        with remote(self.place):
            self._make_directory(name)
            self._files.pipe_file(self._path(name), data)

    def part(self) -> Path:
        return artefact.temporary(Path(tempfile.gettempdir()) / "unit")

    def keep(self, part: Path, name: str) -> None:
        with remote(self.place):
            self._make_directory(name)
            self._files.put_file(str(part), self._path(name))
        part.unlink()

    def remove(self, name: str) -> None:
        with remote(self.place), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _make_directory(self, name: str) -> None:
        protocols = self._files.protocol
        if WITH_DIRECTORIES & {*([protocols] if isinstance(protocols, str) else protocols)}:
            self._files.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)


def is_url(text: str) -> bool:
    return URL.match(text) is not None


def file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it.

    Raise UsageError if the library for this protocol is not installed, and MissingError if fsspec rejects the URL.
    """
    import fsspec

    with remote(url):
        try:
            files, path = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise UsageError(f"{url}: {error}. For s3:// and gs://, run: pip install 'nmt-cli[cloud]'") from None
        except ValueError as error:
            raise MissingError(f"{url}: {error}") from None
        return files, path


@contextlib.contextmanager
def remote(place: str) -> Iterator[None]:
    """Convert errors of a store's library to StorageError.

    NmtErrors, NotImplementedErrors, and those OSErrors that have an errno are not converted. If such an OSError has no
    file name, its file name becomes `place`.
    """
    try:
        yield
    except (NmtError, NotImplementedError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = error.filename or place
            raise
        problem = f"cannot access {place} ({type(error).__name__}: {error})"
        raise StorageError(f"{problem}. Check the address and the network") from error
