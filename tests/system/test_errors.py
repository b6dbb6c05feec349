"""Exit codes that a scheduler can act on, and errors on one line."""

import errno
import os
from pathlib import Path

import pytest

from nmt_cli.system import errors
from nmt_cli.system.errors import NmtError, from_os_error, printable

CODES = {
    **{"NmtError": 1, "UsageError": 2, "DataError": 65, "MissingError": 66, "DownloadError": 69},
    **{"DivergedError": 70, "OutputError": 73, "StorageError": 74, "BusyError": 75},
}


def test_every_error_has_its_exit_code() -> None:
    kinds = {name: kind for name, kind in vars(errors).items() if name.endswith("Error")}
    assert {name: kind.exit_code for name, kind in kinds.items()} == CODES
    assert (errors.INTERRUPTED, errors.BROKEN_PIPE, errors.TERMINATED) == (130, 141, 143)
    assert all(issubclass(kind, NmtError) for kind in kinds.values())


@pytest.mark.parametrize(
    ("code", "numbers"),
    [
        (66, [errno.ENOENT, errno.ENOTDIR, errno.EISDIR]),
        (73, [errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST]),
        (74, [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE]),
    ],
)
def test_errors_of_the_operating_system_get_exit_codes(code: int, numbers: list[int], tmp_path: Path) -> None:
    path = tmp_path / "some" / "file"
    for number in numbers:
        error = from_os_error(OSError(number, os.strerror(number), str(path)))
        assert (error.exit_code, f"({path}): {os.strerror(number)}" in str(error)) == (code, True)


def test_an_error_without_file_or_reason_is_complete() -> None:
    assert "something broke" in str(from_os_error(OSError("something broke")))
    assert "None" not in str(from_os_error(OSError(errno.ENOSPC, "No space left on device")))


def test_printable_text_is_one_short_line() -> None:
    assert printable("a\nb\x1b[31mc\u2028d") == "a\\nb\\x1b[31mc\\u2028d"
    for text in ("Straße 東京", "x" * 50):
        assert printable(text, 50) == text
    assert printable("x" * 51, 50) == "x" * 49 + "…"


def test_errors_that_mean_out_of_memory() -> None:
    class OutOfMemoryError(RuntimeError):
        """Has the same name as torch's class."""

    no_memory = [MemoryError(), OutOfMemoryError("x"), RuntimeError("[enforce fail] can't allocate memory: you tried")]
    no_memory += [RuntimeError("CUDA error: out of memory"), RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling")]
    others = [RuntimeError("an illegal memory access was encountered"), ValueError("x"), OSError(12, "No room")]
    assert [errors.is_out_of_memory(error) for error in [*no_memory, *others]] == [True] * 5 + [False] * 3
