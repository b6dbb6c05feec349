"""The file of API keys: one a line; lines that begin with # and empty ones are skipped."""

import stat
from pathlib import Path

from nmt_cli.system.console import warn
from nmt_cli.system.errors import DataError

SHORT = 16  # characters below which a key can be guessed


def read_keys(path: Path) -> list[bytes]:
    """Return the keys; DataError, without the key, for a line that cannot be sent in a header."""
    keys = list[bytes]()
    for number, line in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if not all(0x21 <= byte <= 0x7E for byte in key):
            raise DataError(
                f"{path}, line {number:,} is no key: it must be printable ASCII without spaces. "
                "Comments begin with # and have lines of their own"
            )
        keys.append(key)
    if not keys:
        raise DataError(f"{path} has no key. Write one a line")
    if short := sum(len(key) < SHORT for key in keys):
        warn(f"{path}: {short} of {len(keys)} keys have fewer than {SHORT} characters: they can be guessed")
    if path.stat().st_mode & stat.S_IROTH:
        warn(f"{path} can be read by every user of this machine. Change that: chmod o-r {path}")
    return keys
