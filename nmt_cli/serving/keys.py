"""Read the file of API keys, one per line, and compare a key with them.

Empty lines and lines that begin with # are ignored.
"""

import hmac
import stat
from collections.abc import Sequence
from pathlib import Path

from nmt_cli.system.console import warn
from nmt_cli.system.errors import DataError

SHORT_KEY = 16  # characters; shorter keys can be guessed


def read_keys(path: Path) -> list[bytes]:
    """Return the keys. Raise DataError if an HTTP header cannot carry a key. The message does not show the key."""
    keys = list[bytes]()
    for number, line in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if not all(0x21 <= byte <= 0x7E for byte in key):
            raise DataError(
                f"{path}, line {number:,} is not a key: it must be printable ASCII without spaces. "
                "Write comments on lines of their own, beginning with #"
            )
        keys.append(key)
    if not keys:
        raise DataError(f"{path} has no key. Write one per line")
    if short := sum(len(key) < SHORT_KEY for key in keys):
        warn(f"{path}: {short} of {len(keys)} keys have fewer than {SHORT_KEY} characters and can be guessed")
    if path.stat().st_mode & stat.S_IROTH:
        warn(f"{path} can be read by every user of this machine. To prevent this: chmod o-r {path}")
    return keys


def is_accepted(key: bytes, accepted: Sequence[bytes]) -> bool:
    """Return whether a key is accepted. It is compared with every key, so the time reveals nothing about them."""
    equal = [hmac.compare_digest(key, each) for each in accepted]
    return any(equal)
