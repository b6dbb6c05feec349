"""Read API keys from a file, one per line, and check the key of a request.

Empty lines and lines that begin with # are ignored.
"""

import hmac
import stat
from collections.abc import Sequence
from pathlib import Path

from nmt_cli.system.console import warn
from nmt_cli.system.errors import DataError

SHORT_KEY = 16  # characters; shorter keys can be guessed, so they cause a warning


def read_keys(path: Path) -> list[bytes]:
    """Return the keys in a file. Raise DataError if it has no key, or a key that an HTTP header cannot carry.

    Error messages and warnings never contain a key.
    """
    keys = list[bytes]()
    for number, line in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if not all(0x21 <= byte <= 0x7E for byte in key):
            raise DataError(
                f"{path}, line {number:,} is not a key: it must be printable ASCII without spaces. "
                "A comment needs a line of its own that begins with #"
            )
        keys.append(key)
    if not keys:
        raise DataError(f"{path} has no key. Write one key per line")
    if short := sum(len(key) < SHORT_KEY for key in keys):
        warn(f"{path}: {short} of {len(keys)} keys have fewer than {SHORT_KEY} characters and can be guessed")
    if path.stat().st_mode & stat.S_IROTH:
        warn(f"{path} can be read by every user of this machine. To prevent this: chmod o-r {path}")
    return keys


def is_accepted(key: bytes, accepted: Sequence[bytes]) -> bool:
    """Return whether `key` is accepted. Compare all bytes of all keys, so that the response time reveals no key."""
    equal = [hmac.compare_digest(key, each) for each in accepted]
    return any(equal)
