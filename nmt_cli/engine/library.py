"""Open the compiled engine and choose its level, the instruction set to use.

The library contains all levels for its kind of processor. The fastest level that the CPU supports is used, unless
NMT_ENGINE names another level, or `off` for no engine.
"""

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt_cli.system.errors import UsageError, printable

PATH = Path(__file__).with_name("libengine.so")
LEVELS = "amx", "avx512", "avxvnni", "avx2", "i8mm", "dotprod", "base"
OFF = "off"

# Result type (None for void) and argument types of functions in engine.c, by their names without the level.
Signatures = Mapping[str, tuple[Any, Sequence[Any]]]


class Library:
    """The functions of one level: `library.name(...)` calls `name_LEVEL` without holding the GIL."""

    def __init__(self, shared: ctypes.CDLL, level: str, signatures: Signatures) -> None:
        self.level = level
        for name, (result, arguments) in signatures.items():
            function = shared[f"{name}_{level}"]
            function.restype = result
            function.argtypes = arguments
            setattr(self, name, function)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def load(signatures: Signatures, path: Path = PATH) -> Library | None:
    """Return the engine, or None if it is off, absent or damaged.

    Raises UsageError if NMT_ENGINE names a level that is unknown or unavailable.
    """
    shared, chosen = _open(path)
    return Library(shared, chosen, signatures) if shared else None


def describe(path: Path = PATH) -> str:
    """Return the level in use, or "none: " and the reason."""
    shared, chosen = _open(path)
    return chosen if shared else f"none: {chosen}"


def fastest_level(compiled: Sequence[str], runnable: Sequence[str]) -> str | None:
    """Return the level that NMT_ENGINE names, or else the fastest one that is compiled and runnable, if any.

    `runnable` lists the fastest level first. Raises UsageError if the named level is not available.
    """
    wanted = os.environ.get("NMT_ENGINE", "")
    levels = [level for level in runnable if level in compiled]
    if wanted and wanted not in levels:
        raise UsageError(f"NMT_ENGINE={wanted} is not available. This engine and CPU support {', '.join(levels)}")
    return wanted or next(iter(levels), None)


def _open(path: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the library and its level, or None and the reason."""
    wanted = os.environ.get("NMT_ENGINE", "")
    if wanted not in ("", OFF, *LEVELS):
        raise UsageError(f"NMT_ENGINE must be {', '.join(LEVELS)} or {OFF}, not {printable(wanted, 40)}")
    if wanted == OFF:
        return None, f"NMT_ENGINE={OFF}"
    try:
        shared = ctypes.CDLL(str(path))
    except OSError as error:
        reason = f"it cannot be loaded: {error}" if path.exists() else "nmt was installed without it"
        if wanted:
            raise UsageError(f"NMT_ENGINE={wanted} needs the engine, but {reason}. Unset it or reinstall nmt") from None
        return None, reason
    level = fastest_level(_names(shared, "compiled"), _names(shared, "runnable"))
    return (shared, level) if level else (None, "it is compiled for other CPUs")


def _names(shared: ctypes.CDLL, function: str) -> list[str]:
    ask = shared[function]
    ask.restype = ctypes.c_char_p
    return bytes(ask()).decode().split()
