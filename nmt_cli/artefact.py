"""Directories that describe themselves: staged, fsynced, hashed, committed by one rename, verified on load.

All changes the package makes to files it will trust later go through this module, so that a test can stop
the program at each of them in turn. A reader finds either the old artefact or the new one, never a mixture.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmt_cli import __version__
from nmt_cli.errors import BusyError, DataError, MissingError, OutputError, printable

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MAX_JSON_BYTES = 16 << 20
EXCHANGE_TRIES = 100


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON-like value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object strictly: bounded size, no duplicate keys, no NaN.

    Raises:
        MissingError: the file is not there.
        DataError: it is not such an object.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise ValueError("it is too large")
        value = json.loads(data, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
        if not isinstance(value, dict):
            raise ValueError("it is not a JSON object")
        return value
    except FileNotFoundError:
        raise MissingError(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {printable(error, 100)}") from None


def json_bytes(value: Any) -> bytes:
    """Return `value` as readable UTF-8 JSON with a final newline."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sync(path: Path) -> None:
    """Force a file's or directory's content to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(path: Path) -> None:
    """Create a directory and its parents, each entry forced to the disk.

    Raises:
        OutputError: a parent is no directory, or one in which nothing can be created.
    """
    if not path.is_dir():
        make_directory(path.parent)
        try:
            path.mkdir(exist_ok=True)
        except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:
            raise OutputError(f"cannot create {path}: {error.strerror}. Choose another place") from None
        sync(path.parent)


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and force it to the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _host() -> str:
    return re.sub(r"\W", "_", socket.gethostname())


def beside(path: Path, before: str, after: str = "") -> Path:
    """Return a name made from that of `path`, in the same directory; also of ".", which has no name to pathlib."""
    named = path if path.name else path.absolute()
    return named.parent / f"{before}{named.name}{after}"


def _temporary(path: Path) -> Path:
    """Return a new name beside `path` that tells whose it is: a directory may be shared by several hosts."""
    return beside(path, ".tmp-", f"-{_host()}-{os.getpid()}-{secrets.token_hex(4)}")


def replace_file(path: Path, data: bytes) -> None:
    """Give `path` new content in one step: a reader sees the old bytes or the new ones.

    Raises:
        OutputError: `path` is a directory.
    """
    if path.is_dir():
        raise OutputError(f"{path} is a directory. Name a file in it")
    temporary = _temporary(path)
    try:
        write_file(temporary, data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory so that no half of it keeps its name: rename first, then delete."""
    trash = _temporary(path)
    path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def _aside(path: Path) -> Path:
    return beside(path, ".old-")


def _exchange(new: Path, old: Path) -> None:
    """Put `new` in the place of `old` in one step, so that the name is never without a directory.

    Where the file system cannot (NFS), the old one steps aside for a moment; `restore` mends what is cut short there.
    """
    here, atomic = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    with contextlib.suppress(AttributeError):  # only Linux has it, and not on every file system
        if not ctypes.CDLL(None).renameat2(here, os.fsencode(new), here, os.fsencode(old), atomic):
            return
    for tries_left in reversed(range(EXCHANGE_TRIES)):
        try:
            restore(old)
            with contextlib.suppress(FileNotFoundError):
                old.rename(_aside(old))
            new.rename(old)
            return
        except OSError as error:  # the name is taken when a reader has put the old one back meanwhile
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not tries_left:
                raise
        finally:
            restore(old)


def restore(target: Path) -> None:
    """Put an artefact back that stepped aside for a new one which never came; remove it where the new one is there.

    Harmless while another process replaces the artefact: who comes late finds the name gone or taken.
    """
    aside = _aside(target)
    if not aside.is_dir():
        return
    if target.exists():
        with contextlib.suppress(FileNotFoundError):
            remove_tree(aside)
        return
    try:
        aside.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            raise
    sync(target.parent)


def present(directory: Path) -> bool:
    """Return whether there is an artefact, after putting back one whose replacement was cut short."""
    if not directory.exists():
        restore(directory)
    return (directory / MANIFEST).is_file()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def clear_temporaries(parent: Path) -> None:
    """Remove what processes of this host that are gone left half-written in `parent`."""
    for entry in parent.glob(f".tmp-*-{_host()}-*-*"):
        pid = entry.name.split("-")[-2]
        if pid.isdigit() and not _alive(int(pid)):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


@contextlib.contextmanager
def staged(target: Path, kind: str, about: dict[str, Any], *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty directory to fill; on leaving, describe it and commit it as `target` by one rename.

    Args:
        target: the artefact's final directory.
        kind: what it is ("corpus", "checkpoint", "model"); a loader asks for it by this name.
        about: JSON-like facts to keep in the manifest. May be filled until the block ends.
        overwrite: whether an existing artefact is replaced.

    Raises:
        OutputError: `target` exists and `overwrite` is false.
    """
    restore(target)
    if target.exists() and not overwrite:
        raise OutputError(f"{target} exists already. Choose another --out or pass --overwrite")
    make_directory(target.parent)
    clear_temporaries(target.parent)
    stage = _temporary(target)
    stage.mkdir()
    try:
        yield stage
        _describe(stage, kind, about)
        if not target.exists():
            stage.rename(target)
        elif overwrite:
            _exchange(stage, target)
        else:
            raise OutputError(f"{target} was created by another process meanwhile")
        sync(target.parent)
    finally:
        shutil.rmtree(stage, ignore_errors=True)  # half-written, or what was replaced


def open_to_others(path: Path) -> None:
    """Give a file the mode that a new one has: safetensors writes 0600 whatever the umask."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def _describe(stage: Path, kind: str, about: dict[str, Any]) -> None:
    """Force every file to the disk and write the manifest that lists them."""
    files = {}
    for path in sorted(p for p in stage.rglob("*") if p.is_file()):
        open_to_others(path)
        sync(path)
        files[path.relative_to(stage).as_posix()] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    manifest = {"format": FORMAT_VERSION, "kind": kind, "nmt": __version__, "files": files, **about}
    write_file(stage / MANIFEST, json_bytes(manifest))
    sync(stage)


def verify(directory: Path, kind: str, *, content: bool = True) -> dict[str, Any]:
    """Return the manifest of an artefact after checking that it is whole.

    Args:
        directory: the artefact.
        kind: what it must be.
        content: also compare SHA-256 hashes, not only sizes.

    Raises:
        MissingError: there is no artefact.
        DataError: a file is missing or altered, or the artefact is of another kind or a newer format.
    """
    if not present(directory) and not directory.is_dir():
        raise MissingError(f"{directory} is not there")
    manifest = read_json(directory / MANIFEST)
    if manifest.get("format") != FORMAT_VERSION:
        version = printable(manifest.get("format"), 20)
        raise DataError(f"{directory} has format {version}, this is nmt {__version__} (format {FORMAT_VERSION})")
    if manifest.get("kind") != kind:
        raise DataError(f"{directory} holds a {printable(manifest.get('kind'), 30)}, not a {kind}")
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(isinstance(facts, dict) for facts in files.values()):
        raise DataError(f"{directory / MANIFEST} is damaged: it lists no files")
    for name, facts in files.items():
        path = directory / name
        inside = [path, *path.parents][: len(Path(name).parts)]  # a folder may be a link, too
        if ".." in Path(name).parts or Path(name).is_absolute() or any(p.is_symlink() for p in inside):
            raise DataError(f"{directory} names a file outside itself: {printable(name, 80)}")
        if not path.is_file():
            raise DataError(f"{path} is missing: the {kind} is damaged")
        if path.stat().st_size != facts.get("bytes") or (content and sha256(path) != facts.get("sha256")):
            raise DataError(f"{path} is damaged: it is not the file that was written")
    return manifest


@contextlib.contextmanager
def locked(directory: Path, what: str) -> Iterator[None]:
    """Hold `directory` for this process alone; the lock dies with the process.

    Raises:
        BusyError: another process holds it.
    """
    make_directory(directory)
    with (directory / ".lock").open("a+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise  # a file system without locks is not a busy one
            file.seek(0)
            holder = printable(file.read(200).strip()) or "another process"
            raise BusyError(f"{what} {directory} is in use by {holder}. Wait for it or choose another place") from None
        file.truncate(0)
        file.write(f"host {socket.gethostname()}, process {os.getpid()}, since {time.strftime('%F %T')}")
        file.flush()
        yield
