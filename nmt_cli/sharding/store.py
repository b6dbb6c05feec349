"""Directories for the results of many workers: local or shared ones, and object stores through fsspec.

A file appears by one rename, or by one upload. Nothing is locked, and no clock is read.
"""

import errno
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import IO, Any, Protocol

from nmt_cli.storage import artefact
from nmt_cli.system.errors import MissingError, OutputError, UsageError

NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}  # of file systems without hard links
URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class Store(Protocol):
    """Files under one directory. Names are relative to it, with slashes."""

    place: str  # for messages

    def names(self, folder: str) -> set[str]:
        """Return the names of the files in a folder, none if there is no such folder."""

    def exists(self, name: str) -> bool: ...

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading; FileNotFoundError if there is none."""

    def claim(self, name: str, data: bytes) -> bool:
        """Write a small file unless it exists, and return whether it was written. Readers may see half of it."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file in one step unless it exists, and return whether it was written."""

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file in one step."""

    def part(self) -> Path:
        """Return a new local path to write a file for `keep`."""

    def keep(self, part: Path, name: str) -> None:
        """Give a complete local file its name in the store, in one step, and remove the local one."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""


class Directory:
    """A directory of a file system, perhaps shared by machines."""

    def __init__(self, path: Path, parts: str) -> None:
        """`parts` is the directory for temporary files, below this one."""
        self.path = path
        self.place = str(path)
        self._parts = path / parts

    def names(self, folder: str) -> set[str]:
        try:
            return set(os.listdir(self.path / folder))  # noqa: PTH208  # names, not paths, of thousands of files
        except FileNotFoundError:
            return set()

    def exists(self, name: str) -> bool:
        return (self.path / name).exists()

    def open(self, name: str) -> IO[bytes]:
        return (self.path / name).open("rb")

    def claim(self, name: str, data: bytes) -> bool:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        return True

    def create(self, name: str, data: bytes) -> bool:
        target = self.path / name
        artefact.make_directory(target.parent)
        part = self.part()
        try:
            artefact.write_file(part, data)
            os.link(part, target)  # unlike a rename, it fails if the target exists
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            if target.exists():
                return False
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        return True

    def replace(self, name: str, data: bytes) -> None:
        part = self.part()
        try:
            artefact.write_file(part, data)
            self.keep(part, name)
        finally:
            part.unlink(missing_ok=True)

    def part(self) -> Path:
        artefact.make_directory(self._parts)
        return artefact.temporary(self._parts / "part")

    def keep(self, part: Path, name: str) -> None:
        target = self.path / name
        if target.is_dir():
            raise OutputError(f"{target} is a directory. Choose another output")
        artefact.make_directory(target.parent)
        artefact.sync(part)
        part.replace(target)
        artefact.sync(target.parent)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove temporary files of ended processes of this machine."""
        if self._parts.is_dir():
            artefact.remove_leftovers(self._parts)


class Bucket:
    """A directory of an object store. Its files are uploaded whole."""

    def __init__(self, url: str) -> None:
        self.place = url.rstrip("/")
        self._files, path = file_system(url)
        self._root = path.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def names(self, folder: str) -> set[str]:
        self._files.invalidate_cache()
        try:
            return {path.rsplit("/", 1)[-1] for path in self._files.ls(self._path(folder), detail=False)}
        except FileNotFoundError:
            return set()

    def exists(self, name: str) -> bool:
        self._files.invalidate_cache()
        return bool(self._files.exists(self._path(name)))

    def open(self, name: str) -> IO[bytes]:
        stream: IO[bytes] = self._files.open(self._path(name), "rb")
        return stream

    def claim(self, name: str, data: bytes) -> bool:
        return self.create(name, data)

    def create(self, name: str, data: bytes) -> bool:
        """Not every object store can refuse to replace a file: two workers may both succeed."""
        if self.exists(name):
            return False
        self.replace(name, data)
        return True

    def replace(self, name: str, data: bytes) -> None:
        self._files.makedirs(self._path(name).rsplit("/", 1)[0], exist_ok=True)
        self._files.pipe_file(self._path(name), data)

    def part(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="nmt-")) / "unit"

    def keep(self, part: Path, name: str) -> None:
        self._files.makedirs(self._path(name).rsplit("/", 1)[0], exist_ok=True)
        self._files.put_file(str(part), self._path(name))
        shutil.rmtree(part.parent)

    def remove(self, name: str) -> None:
        try:
            self._files.rm_file(self._path(name))
        except FileNotFoundError:
            return


def is_url(text: str) -> bool:
    return URL.match(text) is not None


def store_of(place: str, parts: str = "") -> Directory | Bucket:
    """Return the store at a path or a URL. A local one keeps its temporary files in the directory `parts`."""
    return Bucket(place) if is_url(place) else Directory(Path(place), parts)


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of fsspec for a URL, and the path in it; UsageError if its library is not installed."""
    import fsspec

    try:
        files, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UsageError(f"{url}: {error}. Or: pip install 'nmt-cli[cloud]'") from None
    except ValueError as error:
        raise MissingError(f"{url}: {error}") from None
    return files, path
