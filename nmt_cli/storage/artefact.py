"""Directories that describe themselves and are whole wherever the program stops: staged, hashed, renamed, verified."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nmt_cli import __version__
from nmt_cli.system.errors import BusyError, DataError, MissingError, OutputError

FORMAT_VERSION = 1
MANIFEST, LOCK = "manifest.json", ".lock"
MOST_JSON_BYTES = 1 << 25  # a vocabulary of a million tokens
HOST = os.uname().nodename  # a directory may be shared by several hosts
TEMPORARY = re.compile(
    rf"\.tmp-nmt-.*-{re.escape(HOST)}-([1-9]\d{{0,6}})-[0-9a-f]{{16}}", re.DOTALL
)  # with the process


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON-like value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, or raise a MissingError or a DataError."""
    if not path.exists():
        raise MissingError(f"{path} is missing")
    with path.open("rb") as file:
        data = file.read(MOST_JSON_BYTES + 1)
    if len(data) > MOST_JSON_BYTES:
        raise DataError(f"{path} is too large: JSON may have {MOST_JSON_BYTES:,} bytes at most")
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(value := json.loads(data), dict):
            return value
    raise DataError(f"{path} is damaged: it is not a JSON object")


def json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def free_megabytes(path: Path) -> int:
    return shutil.disk_usage(next(p for p in (path, *path.parents) if p.exists())).free // 1_000_000


def make_directory(path: Path) -> None:
    """Create a directory and its parents, each entry forced to the disk; OutputError where that is impossible."""
    try:
        for place in [place for place in (path, *path.parents) if not place.is_dir()][::-1]:
            place.mkdir(exist_ok=True)
            sync(place.parent)
    except (FileNotFoundError, FileExistsError, NotADirectoryError) as error:
        raise OutputError(f"cannot create {path}: {error.strerror}. Choose another place") from None


def open_unlinked(path: str, flags: int) -> int:
    """Open a file whose name others can guess, as `opener` of `open`; OSError where it is a link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
    sync(path)


def beside(path: Path, before: str, after: str = "") -> Path:
    path = path if path.name else path.absolute()  # "." has no name to pathlib
    return path.with_name(f"{before}{path.name}{after}")


def _temporary(path: Path) -> Path:
    return beside(path, ".tmp-nmt-", f"-{HOST}-{os.getpid()}-{os.urandom(8).hex()}")


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file in one step, making its directory: a reader sees the old bytes or the new ones."""
    if path.is_dir():
        raise OutputError(f"{path} is a directory. Name a file in it")
    make_directory(path.parent)
    temporary = _temporary(path)
    try:
        write_file(temporary, data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def remove_tree(path: Path) -> None:
    """Remove a directory, if it is there, so that no half of it keeps its name: rename first, then delete. Of a link
    only itself is removed."""
    if path.is_symlink():
        path.unlink()
        return
    trash = _temporary(path)
    with contextlib.suppress(FileNotFoundError):
        path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def _clear(place: Path) -> None:
    """Remove what processes of this host that are gone left in a directory."""
    for entry in place.iterdir():
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
            continue  # alive, of another user


def _linked(target: Path) -> Path:
    """Return where an artefact lies: a link stays, and what it points to is replaced."""
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def _set_aside(target: Path) -> Path | None:
    """Return the artefact that stepped aside for a new one; None where there is none, or a directory of others."""
    aside = beside(target, ".old-")
    with contextlib.suppress(MissingError, DataError, OSError):
        if not aside.is_symlink() and {"format", "kind", "nmt", "files"} <= read_json(aside / MANIFEST).keys():
            return aside
    return None


def _check_aside(target: Path) -> None:
    aside = beside(target, ".old-")
    if target.exists() and aside.exists() and not _set_aside(target):
        raise OutputError(f"{aside} is in the way, and nmt did not make it. Move it away")


def restore(target: Path) -> None:
    """Put an artefact back that stepped aside for a new one which never came; remove it where the new one is there."""
    target = _linked(target)
    aside = _set_aside(target)
    if aside and target.exists():
        remove_tree(aside)
    elif aside:
        with contextlib.suppress(OSError):  # another process was faster
            aside.rename(target)


def _commit(stage: Path, target: Path, overwrite: bool) -> None:
    aside = beside(target, ".old-")
    while stage.exists():
        if target.exists() and not overwrite:
            raise OutputError(f"{target} was created by another process meanwhile")
        _check_aside(target)
        try:
            if target.exists():  # it steps aside until the new one is there
                remove_tree(aside)
                target.rename(aside)
            stage.rename(target)
        except OSError as error:
            restore(target)
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # a reader has put the old one back: again
                raise
    sync(target.parent)
    if _set_aside(target):
        remove_tree(aside)


@contextlib.contextmanager
def staged(
    target: Path, kind: str, entries: dict[str, Any], *, overwrite: bool = False, own_name: bool = False
) -> Iterator[Path]:
    """Yield a directory to fill; then commit it as `target`, with `entries` (as they are by then) in its manifest.

    OutputError where the target exists, unless `overwrite` is set and it has a manifest, or a name that only nmt gives.
    """
    target = _linked(target)
    restore(target)
    if target.exists() and not overwrite:
        raise OutputError(f"{target} exists already. Choose another --out or pass --overwrite")
    if target.exists() and not own_name and not (target / MANIFEST).is_file():
        raise OutputError(f"{target} is in the way: nmt did not make it, and does not replace it. Move it away")
    _check_aside(target)
    make_directory(target.parent)
    _clear(target.parent)
    stage = _temporary(target)
    stage.mkdir()
    try:
        yield stage
        files = {}
        for path in sorted(p for p in stage.rglob("*") if p.is_file()):
            path.chmod(stage.stat().st_mode & 0o666)  # as the umask says: safetensors writes 0600 whatever it is
            sync(path)
            files[path.relative_to(stage).as_posix()] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        manifest = {"format": FORMAT_VERSION, "kind": kind, "nmt": __version__, "files": files, **entries}
        write_file(stage / MANIFEST, json_bytes(manifest))
        sync(stage)
        _commit(stage, target, overwrite)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def present(directory: Path) -> bool:
    """Return whether there is an artefact, after putting back one whose replacement was cut short."""
    restore(directory)
    return (directory / MANIFEST).is_file()


def _plain_model(manifest: dict[str, Any]) -> bool:
    """Return whether a model's manifest is surely right, as manifests.py says, whose import takes longer than a
    translation; those that are not are for it to judge."""
    files, seen = manifest.get("files"), manifest.get("seen_tokens", 1)
    texts = [manifest.get(name, "") for name in ("created", "corpus", "imported")]
    steps = manifest.get("steps", [])
    return (
        isinstance(files, dict)
        and {"model.safetensors", "recipe.yaml", "tokenizer.model"} <= files.keys()
        and all(re.fullmatch(r"\w[\w.-]*", name) and isinstance(each, dict) for name, each in files.items())
        and all(_is_count(each.get("bytes")) for each in files.values())
        and all(re.fullmatch("[0-9a-f]{64}", str(each.get("sha256"))) for each in files.values())
        and all(isinstance(text, str) for text in texts)
        and isinstance(steps, list)
        and all(_is_count(step) for step in steps)
        and _is_count(seen)
        and seen > 0
    )


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def verify(directory: Path, kind: str, *, content: bool = True) -> dict[str, Any]:
    """Return the manifest of an artefact after checking it, and sizes and, with `content`, SHA-256 hashes of files."""
    restore(directory)
    manifest = read_json(directory / MANIFEST)
    stored = f"{manifest.get('kind')} of format {manifest.get('format')}"
    if stored != f"{kind} of format {FORMAT_VERSION}":
        raise DataError(f"{directory} holds a {stored}, not a {kind} of format {FORMAT_VERSION}")
    if not (kind == "model" and _plain_model(manifest)):
        from nmt_cli.storage import manifests  # and pydantic with it

        manifests.check(manifest, kind, directory / MANIFEST)
    for name, expected in manifest["files"].items():
        path = directory / name
        same = path.is_file() and path.stat().st_size == expected["bytes"]
        if not same or (content and sha256(path) != expected["sha256"]):
            raise DataError(f"{path} is damaged: it is missing or not the file that was written")
    return manifest


def was_locked(directory: Path) -> bool:
    """Return whether a directory may have been made by `locked`: it has a lock, is empty, or is gone by now."""
    try:
        return (directory / LOCK).exists() or not any(directory.iterdir())
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False


@contextlib.contextmanager
def locked(directory: Path, what: str) -> Iterator[None]:
    """Hold `directory` for this process alone, until it ends; else raise BusyError."""
    make_directory(directory)
    with open(directory / LOCK, "a+", opener=open_unlinked) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            raise BusyError(f"{what} {directory} is in use by {file.read()}. Wait or choose another place") from None
        file.truncate(0)
        print(f"host {HOST}, process {os.getpid()}, since {time.strftime('%F %T')}", end="", file=file, flush=True)
        yield
