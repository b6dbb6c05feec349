"""Stores for the results of many workers: directories, local or shared, and object stores (bucket.py).

Files appear in one step, by a rename or an upload. Only a file that `claim` writes may be incomplete at first. Stores
need neither locks nor clocks.
"""

import errno
import os
from pathlib import Path
from typing import IO, Protocol

from nmt_cli.sharding.bucket import Bucket, is_url
from nmt_cli.storage import artefact
from nmt_cli.system.errors import OutputError

NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}  # errors of file systems without hard links


class Store(Protocol):
    """Files under one directory. Names are relative to it, with slashes."""

    place: str  # for messages

    def names(self, folder: str) -> set[str]:
        """Return the names of the files in a folder, or an empty set if the folder does not exist."""

    def exists(self, name: str) -> bool: ...

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading. Raise FileNotFoundError if it does not exist."""

    def claim(self, name: str, data: bytes) -> bool:
        """Write a small file unless it exists, and return whether it was written. Readers may see it incomplete."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a small file in one step unless it exists, and return whether it was written."""

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file in one step, and replace any old one."""

    def part(self) -> Path:
        """Return a new local path for a file that `keep` will store."""

    def keep(self, part: Path, name: str) -> None:
        """Move a complete local file into the store in one step, and replace any old file."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""


class Directory:
    """A directory of a file system, which machines may share."""

    def __init__(self, path: Path, parts: str) -> None:
        """`parts` is the directory for temporary files, relative to `path`."""
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
            os.link(part, target)  # unlike a rename, this fails if the target exists
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
        target = Path(os.path.realpath(target))  # keep a symbolic link, and replace its target
        artefact.make_directory(target.parent)
        artefact.sync(part)
        part.replace(target)
        artefact.sync(target.parent)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove temporary files whose process on this machine no longer runs."""
        if self._parts.is_dir():
            artefact.remove_leftovers(self._parts)


def store_of(place: str, parts: str = "") -> Store:
    """Return the store at a path or a URL. A directory keeps temporary files in its subdirectory `parts`, if given."""
    return Bucket(place) if is_url(place) else Directory(Path(place), parts)
