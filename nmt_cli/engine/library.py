"""Open the compiled engine and choose its level, the instruction set to use.

The library is compiled for one CPU architecture, and contains a copy of the code for each level (on macOS, only for
some levels). By default, nmt uses the fastest level that the CPU supports. The variable NMT_ENGINE can name another
level. With NMT_ENGINE=off, nmt does not use the engine.
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

# Maps the name of an engine function, without the suffix _LEVEL, to its result type (None for void) and argument types.
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
    """Return the engine, or None if it is off, absent, damaged or compiled for other CPUs.

    Raises UsageError if NMT_ENGINE names a level that is unknown or unavailable.
    """
    shared, level_or_reason = _open(path)
    return Library(shared, level_or_reason, signatures) if shared else None


def describe(path: Path = PATH) -> str:
    """Return the level that `load` would use. If it would return None, return "none: " and the reason.

    Raises UsageError like `load`.
    """
    shared, level_or_reason = _open(path)
    return level_or_reason if shared else f"none: {level_or_reason}"


def fastest_level(compiled: Sequence[str], runnable: Sequence[str]) -> str | None:
    """Return the level that NMT_ENGINE names. Raise UsageError if it is not both compiled and runnable.

    If NMT_ENGINE is not set, return the first level in `runnable` that is compiled, or None if there is none.
    `runnable` lists the fastest level first.
    """
    wanted = os.environ.get("NMT_ENGINE", "")
    levels = [level for level in runnable if level in compiled]
    if wanted and wanted not in levels:
        raise UsageError(f"NMT_ENGINE={wanted} is not available here. Available levels: {', '.join(levels) or 'none'}")
    return wanted or next(iter(levels), None)


def _open(path: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the loaded library and the level to use. If there is no usable library, return None and the reason."""
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
            raise UsageError(
                f"NMT_ENGINE={wanted} needs the engine, but {reason}. Unset NMT_ENGINE or reinstall nmt"
            ) from None
        return None, reason
    level = fastest_level(_levels(shared, "compiled"), _levels(shared, "runnable"))
    return (shared, level) if level else (None, "it is compiled for other CPUs")


def _levels(shared: ctypes.CDLL, name: str) -> list[str]:
    function = shared[name]
    function.restype = ctypes.c_char_p
    return bytes(function()).decode().split()
