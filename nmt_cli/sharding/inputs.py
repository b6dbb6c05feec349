"""Find and open the input files of a job, plain or compressed, local or remote."""

import contextlib
import glob
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO

from nmt_cli.corpus.opening import COMPRESSIONS, decompressing
from nmt_cli.corpus.readers import check_plain
from nmt_cli.sharding.bucket import file_system, is_url, remote
from nmt_cli.system.errors import MissingError, UsageError, printable

REMOTE_BUFFER = 1 << 20  # bytes
WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class Input:
    """A file to translate. The output has the same `name`, which is a path relative to the output directory."""

    name: str
    place: str  # path or URL
    bytes: int  # size as stored, compressed or not

    @property
    def compressed(self) -> bool:
        return Path(self.name).suffix in COMPRESSIONS


def find(arguments: Sequence[str]) -> list[Input]:
    """Return the files that match the arguments (files, directories, patterns or URLs of these), sorted by name.

    A directory matches all files below it, except hidden ones. Raise MissingError if an argument matches no file, and
    UsageError if two files would have outputs of the same name or if a name is not UTF-8.
    """
    found = list[Input]()
    for word in arguments:
        found += _found_remotely(word) if is_url(word) else _local(word)
    found = sorted(dict.fromkeys(found), key=lambda each: each.name)
    for each in found:
        if any("\ud800" <= character <= "\udfff" for character in each.name):  # Python uses these for undecodable bytes
            raise UsageError(f"the file name {printable(each.name)} is not UTF-8. Rename the file")
    for one, other in pairwise(found):
        if one.name == other.name:
            both = f"{one.place} and {other.place}"
            raise UsageError(f"{both} would have the same output. Pass the directory that holds both, or run two jobs")
    return found


def _local(word: str) -> Iterator[Input]:
    path = Path(word)
    if path.is_file():
        yield Input(path.name, word, path.stat().st_size)
        return
    if path.is_dir():
        files, root = [str(each) for each in path.rglob("*")], path
    else:
        files = glob.glob(word, recursive=True) if WILDCARD.search(word) else []  # noqa: PTH207  # word may be absolute
        root = Path(_fixed(word))
    kept = [each for file in files if (each := Path(file)).is_file() and not _hidden(each.relative_to(root))]
    if not kept:
        raise MissingError(f"{word} matches no file. Check the path")
    for file in kept:
        yield Input(file.relative_to(root).as_posix(), str(file), file.stat().st_size)


def _found_remotely(word: str) -> list[Input]:
    with remote(word):
        return list(_remote(word))


def _remote(word: str) -> Iterator[Input]:
    files, path = file_system(word)
    scheme = word.split("://", 1)[0]
    if WILDCARD.search(path):
        entries, root = files.glob(path, detail=True), _fixed(path)
    elif files.isdir(path):
        entries, root = files.find(path, detail=True), path
    else:
        entries = {path: files.info(path)} if files.exists(path) else {}
        root = path.rpartition("/")[0]
    root = root.rstrip("/") + "/"
    kept = {file: info for file, info in entries.items() if info["type"] == "file"}
    kept = {file: info for file, info in kept.items() if not _hidden(Path(file.removeprefix(root)))}
    if not kept:
        raise MissingError(f"{word} matches no file. Check the address and the access rights")
    for file, info in kept.items():
        yield Input(file.removeprefix(root).lstrip("/"), f"{scheme}://{file}", int(info["size"]))


def _fixed(pattern: str) -> str:
    """Return the directory that contains all matches of a pattern, from the part before the first wildcard."""
    before = pattern[: found.start()] if (found := WILDCARD.search(pattern)) else pattern
    return before.rpartition("/")[0] or ("/" if before.startswith("/") else ".")


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


@contextlib.contextmanager
def opened(file: Input) -> Iterator[IO[bytes]]:
    """Open an input, and decompress it according to its suffix. Raise DataError if it is damaged or not plain text."""
    with remote(file.place), _raw(file.place) as raw, decompressing(raw, file.place) as stream:
        check_plain(stream.peek(4)[:4], file.place)
        yield stream


def _raw(place: str) -> io.BufferedReader:
    if not is_url(place):
        return Path(place).open("rb")  # the caller closes it
    files, path = file_system(place)
    return io.BufferedReader(files.open(path, "rb"), REMOTE_BUFFER)
