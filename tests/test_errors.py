"""Exit codes a scheduler can act on, and errors on one line."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli import errors
from nmt_cli.errors import NmtError, free_megabytes, from_os_error, printable

CODES = {
    "NmtError": 1,
    "UsageError": 2,
    "DataError": 65,
    "MissingError": 66,
    "DownloadError": 69,
    "DivergedError": 70,
    "OutputError": 73,
    "StorageError": 74,
    "BusyError": 75,
}


def test_every_error_has_its_exit_code() -> None:
    found = {name: kind for name, kind in vars(errors).items() if name.endswith("Error")}
    assert {name: kind.exit_code for name, kind in found.items()} == CODES
    assert (errors.INTERRUPTED, errors.BROKEN_PIPE, errors.TERMINATED) == (130, 141, 143)
    assert all(issubclass(getattr(errors, name), NmtError) for name in CODES)


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOENT, 66),
        (errno.ENOTDIR, 66),
        (errno.EISDIR, 66),
        (errno.EACCES, 73),
        (errno.EPERM, 73),
        (errno.EROFS, 73),
        (errno.EEXIST, 73),
        (errno.ENOSPC, 74),
        (errno.EDQUOT, 74),
        (errno.EFBIG, 74),
        (errno.EIO, 74),
        (errno.EMFILE, 74),
    ],
)
def test_the_systems_errors_become_ours(number: int, code: int, tmp_path: Path) -> None:
    path = tmp_path / "some" / "file"
    error = from_os_error(OSError(number, os.strerror(number), str(path)))
    assert error.exit_code == code
    assert str(path) in str(error)
    assert os.strerror(number) in str(error)
    assert "\n" not in str(error)


def test_an_error_without_a_file_or_a_reason_is_still_a_sentence() -> None:
    for error in (OSError("something broke"), OSError(errno.ENOSPC, "No space left on device"), OSError()):
        message = str(from_os_error(error))
        assert message
        assert "None" not in message
    assert "something broke" in str(from_os_error(OSError("something broke")))


def test_a_full_disk_says_how_much_is_left(tmp_path: Path) -> None:
    error = from_os_error(OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "not" / "yet" / "there")))
    assert "MB free" in str(error)
    assert free_megabytes(tmp_path / "not" / "yet" / "there") == pytest.approx(free_megabytes(tmp_path), rel=0.1)


@given(st.text())
def test_printable_text_is_one_short_line_without_controls(text: str) -> None:
    line = printable(text, 50)
    assert len(line) <= 50
    assert line.isprintable()
    if text.isprintable() and len(text) <= 50:
        assert line == text


def test_what_is_escaped_and_cut() -> None:
    assert printable("a\nb\x1b[31mc\u2028d") == "a\\nb\\x1b[31mc\\u2028d"
    assert printable("Straße 東京") == "Straße 東京"
    assert printable("x" * 400, 10) == "x" * 9 + "…"
    assert len(printable("\x1b" * 400)) == 300
    assert printable(Path("a/b")) == "a/b"
    assert printable(b"\xff".decode(errors="surrogateescape")) == "\\udcff"
