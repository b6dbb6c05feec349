"""What can go wrong for a user, with exit codes of sysexits.h: 69, 74, 75 and 143 are worth an automatic retry."""

import errno

from nmt_cli import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

INTERRUPTED = 130  # SIGINT
BROKEN_PIPE = 141  # SIGPIPE
TERMINATED = 143  # SIGTERM, after saving

NOT_FINITE = "the model's scores are not finite. Its weights are damaged or training diverged"


class NmtError(Exception):  # what a user can act on: one line saying what, where, why and what to do
    exit_code = 1


class UsageError(NmtError):  # a wrong option, recipe key or value
    exit_code = 2


class DataError(NmtError):  # data or an artefact that is damaged, empty, or does not fit the rest
    exit_code = 65


class MissingError(NmtError):  # an input that is not there
    exit_code = 66


class DownloadError(NmtError):  # a download that failed; the same command again may succeed
    exit_code = 69


class DivergedError(NmtError):  # training or decoding met numbers that are not finite
    exit_code = 70


class OutputError(NmtError):  # an output that cannot be created: it exists, or the place is read-only
    exit_code = 73


class StorageError(NmtError):  # reading or writing failed: the disk is full, a quota is reached, a device broke
    exit_code = 74


class BusyError(NmtError):  # another process holds the directory; retry later
    exit_code = 75


def printable(text: object, limit: int = 300) -> str:
    """Return `text` on one line, control characters escaped, cut to `limit` characters."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def meant(name: str, known: "Iterable[str]") -> str:
    """Return a question after the nearest of the known names, also of an abbreviation (ct2); "" if none is near."""
    import difflib

    names, short = list(known), name.lower()
    near = [each for each in names if len(short) > 1 and each.lower().startswith(short)][:1]
    near = near or difflib.get_close_matches(name, names, 1) or difflib.get_close_matches(short, names, 1)
    near = near or sorted((each for each in names if len(short) > 1 and _within(short, each.lower())), key=len)
    return f"Did you mean {printable(near[0], 60)}?" if near else ""


def _within(short: str, name: str) -> bool:
    """Return whether a name has the characters of a shorter one, in order and from its first."""
    rest = iter(name)
    return name[:1] == short[:1] and all(character in rest for character in short)


def from_os_error(error: OSError) -> NmtError:
    """Translate an operating-system error into the error (and so the exit code) that fits it."""
    where = f" ({error.filename})" if error.filename else ""
    cause = error.strerror or str(error)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        return MissingError(f"cannot read{where}: {cause}. Check the path")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST):
        return OutputError(f"cannot create or open{where}: {cause}. Choose another place or change its permissions")
    return StorageError(f"cannot read or write{where}: {cause}. Free some space if it is full, and try again")


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error, of Python, of torch or of what it calls, is for want of memory."""
    texts = "allocate memory", "out of memory", "ALLOC_FAILED"
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's
    return named or any(text in str(error) for text in texts)
