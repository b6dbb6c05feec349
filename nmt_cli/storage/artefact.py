"""Read and write artefacts. An artefact is a directory with a manifest that lists the hash of every file.

An artefact is written to a temporary directory, which is then renamed. The artefact is therefore either complete or
absent, even if the process is killed. Readers check the files against the manifest.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nmt_cli import __version__
from nmt_cli.storage import manifests
from nmt_cli.system.errors import BusyError, DataError, MissingError, OutputError, from_os_error

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
LOCK = ".lock"
MAX_JSON_BYTES = 1 << 25  # enough for a vocabulary of a million tokens
HOST = os.uname().nodename  # several hosts may share a directory
# Matches the names .tmp-nmt-NAME-HOST-PID-RANDOM of this host's temporary files and directories. The group is PID.
TEMPORARY = re.compile(rf"\.tmp-nmt-.*-{re.escape(HOST)}-([1-9]\d{{0,6}})-[0-9a-f]{{16}}", re.DOTALL)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raise MissingError if there is no file, and DataError for other content."""
    if isinstance(value := _parse_json(path), dict):
        return value
    raise DataError(f"{path} is damaged: it is not a JSON object")


def read_json_list(path: Path) -> list[Any]:
    """Return the JSON list in a file. Raise MissingError if there is no file, and DataError for other content."""
    if isinstance(value := _parse_json(path), list):
        return value
    raise DataError(f"{path} is damaged: it is not a JSON list")


def _parse_json(path: Path) -> Any:
    """Return the JSON value in a file, or None if the file is not JSON."""
    if not path.exists():
        raise MissingError(f"{path} is missing")
    with path.open("rb") as file:
        data = file.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise DataError(f"{path} is too large: the limit for JSON is {MAX_JSON_BYTES:,} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def json_bytes(value: Any) -> bytes:
    """Return a value as indented JSON. Raise ValueError for NaN and infinities."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sync(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def free_megabytes(path: Path) -> int:
    """Return the free disk space at a path, in megabytes. The path need not exist yet."""
    return shutil.disk_usage(next(p for p in (path, *path.parents) if p.exists())).free // 1_000_000


def make_directory(path: Path) -> None:
    """Create a directory and its parents, and sync them to disk. Raise OutputError if a file is in the way."""
    try:
        for directory in [each for each in (path, *path.parents) if not each.is_dir()][::-1]:
            directory.mkdir(exist_ok=True)
            sync(directory.parent)
    except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:
        raise OutputError(f"cannot create {path}: {error.strerror}. Choose another path") from None


def open_no_symlink(path: str, flags: int) -> int:
    """Open a file, but raise OSError if it is a symbolic link. For use as the `opener` of `open`.

    Use this function where an attacker could guess the name of the file and put a link there.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextlib.contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Convert OSErrors to NmtErrors. If an error has no file name, `path` becomes its file name."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise from_os_error(error) from error


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and sync it to disk."""
    with path.open("xb") as file:
        file.write(data)
    sync(path)


def beside(path: Path, before: str, after: str = "") -> Path:
    """Return a path in the same directory, with a prefix and a suffix added to the name."""
    path = path if path.name else path.absolute()  # Path(".").name is empty
    return path.with_name(f"{before}{path.name}{after}")


def temporary(path: Path) -> Path:
    return beside(path, ".tmp-nmt-", f"-{HOST}-{os.getpid()}-{os.urandom(8).hex()}")


def is_one_of(file: Path, others: Iterable[Path | None]) -> bool:
    """Return whether a file exists and is the same file as one of the others, even under another name."""
    return file.exists() and any(each and each.exists() and each.samefile(file) for each in others)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in one step, so that readers see either the old or the new content. Create missing directories."""
    if path.is_dir():
        raise OutputError(f"{path} is a directory. Choose a file in it")
    make_directory(path.parent)
    part = temporary(path)
    try:
        write_file(part, data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    sync(path.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory if it exists. If `path` is a symbolic link, remove only the link.

    The directory is renamed before its files are deleted, so there is never an incomplete directory at `path`.
    """
    if path.is_symlink():
        path.unlink()
        return
    trash = temporary(path)
    with contextlib.suppress(FileNotFoundError):
        path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def remove_leftovers(directory: Path) -> None:
    """Remove temporary files and directories of this host's processes that no longer run."""
    for entry in directory.iterdir():
        if not (ours := TEMPORARY.fullmatch(entry.name)):
            continue
        try:
            os.kill(int(ours[1]), 0)
        except ProcessLookupError:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        except PermissionError:
            continue  # another user's running process


def _resolved(target: Path) -> Path:
    """Return the target of a symbolic link, or else the path itself. New artefacts replace the target, not the link."""
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def _old_artefact(target: Path) -> Path | None:
    """Return the old artefact that was moved aside for a new one, if any."""
    aside = beside(target, ".old-")
    with contextlib.suppress(MissingError, DataError, OSError):
        if not aside.is_symlink() and {"format", "kind", "nmt", "files"} <= read_json(aside / MANIFEST).keys():
            return aside
    return None


def _check_aside(target: Path) -> None:
    aside = beside(target, ".old-")
    if target.exists() and aside.exists() and not _old_artefact(target):
        raise OutputError(f"{aside} exists, but nmt did not create it. Move it elsewhere")


def restore(target: Path) -> None:
    """Finish an interrupted replacement, if any.

    If the new artefact exists, remove the old one. Otherwise, move the old one back.
    """
    target = _resolved(target)
    aside = _old_artefact(target)
    if aside and target.exists():
        remove_tree(aside)
    elif aside:
        with contextlib.suppress(OSError):  # another process was faster
            aside.rename(target)


def _commit(stage: Path, target: Path, overwrite: bool) -> None:
    aside = beside(target, ".old-")
    while stage.exists():
        if target.exists() and not overwrite:
            raise OutputError(f"another process has created {target}. Choose another --out or pass --overwrite")
        _check_aside(target)
        try:
            if target.exists():  # move the old artefact aside until the new one has taken its place
                remove_tree(aside)
                target.rename(aside)
            stage.rename(target)
        except OSError as error:
            restore(target)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            # A reader has moved the old artefact back, so try again.
    sync(target.parent)
    if _old_artefact(target):
        remove_tree(aside)


@contextlib.contextmanager
def staged(
    target: Path, kind: str, entries: dict[str, Any], *, overwrite: bool = False, own_name: bool = False
) -> Iterator[Path]:
    """Yield a temporary directory for the caller to fill. At the end of the block, it becomes the artefact `target`.

    The manifest contains `entries`, which the caller may change during the block. Raise OutputError if the target
    exists, unless `overwrite` is true and the target has a manifest. If `own_name` is true, only nmt uses the name of
    the target, so `overwrite` also replaces a target without a manifest.
    """
    target = _resolved(target)
    restore(target)
    if target.exists() and not overwrite:
        raise OutputError(f"{target} exists already. Choose another --out or pass --overwrite")
    if target.exists() and not own_name and not (target / MANIFEST).is_file():
        raise OutputError(f"{target} exists, but nmt did not create it, so it is not replaced. Move it elsewhere")
    _check_aside(target)
    make_directory(target.parent)
    remove_leftovers(target.parent)
    stage = temporary(target)
    stage.mkdir()
    try:
        yield stage
        files = {}
        for path in sorted(p for p in stage.rglob("*") if p.is_file()):
            path.chmod(stage.stat().st_mode & 0o666)  # follow the umask; safetensors always writes 0600
            sync(path)
            files[path.relative_to(stage).as_posix()] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        manifest = {"format": FORMAT_VERSION, "kind": kind, "nmt": __version__, "files": files, **entries}
        write_file(stage / MANIFEST, json_bytes(manifest))
        sync(stage)
        _commit(stage, target, overwrite)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def present(directory: Path) -> bool:
    """Finish an interrupted replacement, if any. Then return whether the artefact exists."""
    restore(directory)
    return (directory / MANIFEST).is_file()


def verify(directory: Path, kind: str, *, content: bool = True) -> dict[str, Any]:
    """Check the manifest, the size of each file and, with `content`, the hash of each file. Return the manifest.

    Raise MissingError if there is no manifest, and DataError if a check fails.
    """
    restore(directory)
    manifest = read_json(directory / MANIFEST)
    stored = f"{manifest.get('kind')} of format {manifest.get('format')}"
    if stored != f"{kind} of format {FORMAT_VERSION}":
        raise DataError(f"{directory} holds a {stored}, not a {kind} of format {FORMAT_VERSION}")
    manifests.check(manifest, kind, directory / MANIFEST)
    for name, expected in manifest["files"].items():
        path = directory / name
        same = path.is_file() and path.stat().st_size == expected["bytes"]
        if not same or (content and sha256(path) != expected["sha256"]):
            raise DataError(f"{path} is damaged or missing")
    return manifest


def was_locked(directory: Path) -> bool:
    """Return whether `directory` is missing, is empty or has a lock file. If not, `locked` did not create it."""
    try:
        return (directory / LOCK).exists() or not any(directory.iterdir())
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False


@contextlib.contextmanager
def locked(directory: Path, name: str) -> Iterator[None]:
    """Lock a directory for this process during the block. If another process holds the lock, raise BusyError.

    The error message begins with `name`, which tells what the directory is for, and the path.
    """
    make_directory(directory)
    with open(directory / LOCK, "a+", opener=open_no_symlink) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            raise BusyError(f"{name} {directory} is in use by {file.read()}. Wait or choose another path") from None
        file.truncate(0)
        print(f"host {HOST}, process {os.getpid()}, since {time.strftime('%F %T')}", end="", file=file, flush=True)
        yield
