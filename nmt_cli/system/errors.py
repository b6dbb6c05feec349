"""Errors for users, with exit codes as in sysexits.h. After exit code 69, 74, 75 or 143, a retry may succeed."""

import errno

from nmt_cli import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

INTERRUPTED = 130  # SIGINT
BROKEN_PIPE = 141  # SIGPIPE
TERMINATED = 143  # SIGTERM; training first saves a checkpoint, and also exits with this code after SIGUSR1

NOT_FINITE = "the model's scores are not finite. Its weights are damaged or training diverged"


class NmtError(Exception):
    """An error that a user can act on. Its message is one line: the problem, its place, and the remedy."""

    exit_code = 1


class UsageError(NmtError):
    """A wrong option, recipe key or value."""

    exit_code = 2


class DataError(NmtError):
    """Data that is damaged or empty, or does not match other data."""

    exit_code = 65


class MissingError(NmtError):
    """A missing input."""

    exit_code = 66


class DownloadError(NmtError):
    """A failed download. Repeating the command may succeed."""

    exit_code = 69


class DivergedError(NmtError):
    """Numbers in training or decoding that are not finite."""

    exit_code = 70


class OutputError(NmtError):
    """An output that cannot be created, for example because it exists or its directory is read-only."""

    exit_code = 73


class StorageError(NmtError):
    """A resource that ran out or failed: a full disk, too little memory, a broken device, a dead process."""

    exit_code = 74


class BusyError(NmtError):
    """A directory or port that another process uses. Retry later."""

    exit_code = 75


def printable(text: object, limit: int = 300) -> str:
    """Return `text` as one line of at most `limit` characters, with control characters escaped."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def meant(name: str, known: "Iterable[str]") -> str:
    """Return "Did you mean NAME?" with a known name that `name` resembles or abbreviates, or "" if there is none."""
    import difflib

    names = list(known)
    short = name.lower()
    near = [each for each in names if len(short) > 1 and each.lower().startswith(short)][:1]
    near = near or difflib.get_close_matches(name, names, 1) or difflib.get_close_matches(short, names, 1)
    near = near or sorted((each for each in names if len(short) > 1 and _abbreviates(short, each.lower())), key=len)
    return f"Did you mean {printable(near[0], 60)}?" if near else ""


def _abbreviates(short: str, name: str) -> bool:
    """Return whether `name` begins with the first character of `short`, and contains the others in order."""
    rest = iter(name)
    return name[:1] == short[:1] and all(character in rest for character in short)


def from_os_error(error: OSError) -> NmtError:
    """Convert an error of the operating system into an error with a remedy and an exit code."""
    where = f" ({error.filename})" if error.filename else ""
    cause = error.strerror or str(error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        return MissingError(f"cannot read{where}: {cause}. Check the path")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST):
        return OutputError(
            f"cannot create or open{where}: {cause}. Choose another path or change this one's permissions"
        )
    return StorageError(f"cannot read or write{where}: {cause}. If the disk is full, free some space. Then try again")


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of Python or torch means that memory ran out."""
    texts = "allocate memory", "out of memory", "ALLOC_FAILED"
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # of torch
    return named or any(text in str(error) for text in texts)
