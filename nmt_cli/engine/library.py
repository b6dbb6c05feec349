"""The engine's library, which build.py made when nmt was installed: found, opened, and the level chosen.

A level is the instruction set that engine.c was compiled for; the library holds all levels of its processor. The CPU's
best is used, or what NMT_ENGINE names, which is how tests run the others: `off` is to have no engine.
"""

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt_cli.system.errors import UsageError, printable

PATH = Path(__file__).with_name("libengine.so")
LEVELS = "amx", "avx512", "avxvnni", "avx2", "base"
OFF = "off"

# The functions of engine.c without their level: the result's type (None: nothing) and those of the arguments.
Signatures = Mapping[str, tuple[Any, Sequence[Any]]]


class Library:
    """The functions of one level: `library.name(...)` calls `name_LEVEL`; other threads run meanwhile."""

    def __init__(self, shared: ctypes.CDLL, level: str, signatures: Signatures) -> None:
        self.level = level
        for name, (result, arguments) in signatures.items():
            function = shared[f"{name}_{level}"]
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def load(signatures: Signatures, path: Path = PATH) -> Library | None:
    """Return the engine, or None where there is none; UsageError if NMT_ENGINE names what this CPU cannot run."""
    shared, chosen = _choose(path)
    return Library(shared, chosen, signatures) if shared else None


def describe(path: Path = PATH) -> str:
    """Return the level that is used, or "none" and the reason."""
    shared, chosen = _choose(path)
    return chosen if shared else f"none: {chosen}"


def _choose(path: Path) -> tuple[ctypes.CDLL | None, str]:
    """Return the library and the level, or None and why there is no engine."""
    wanted = os.environ.get("NMT_ENGINE", "")
    if wanted not in ("", OFF, *LEVELS):
        raise UsageError(f"NMT_ENGINE={printable(wanted, 40)} is unknown. It may be {', '.join(LEVELS)} or {OFF}")
    if wanted == OFF:
        return None, f"NMT_ENGINE={OFF}"
    try:
        shared = ctypes.CDLL(str(path))
    except OSError as error:
        reason = f"it cannot be loaded: {error}" if path.exists() else "nmt was installed without it"
        if wanted:
            raise UsageError(f"NMT_ENGINE={wanted}: there is no engine, {reason}. Unset it or reinstall nmt") from None
        return None, reason
    compiled = _names(shared, "compiled")
    levels = [level for level in _names(shared, "runnable") if level in compiled]
    if wanted and wanted not in levels:
        raise UsageError(f"NMT_ENGINE={wanted} cannot run on this CPU. It has {', '.join(levels)}")
    return (shared, wanted or levels[0]) if levels else (None, "it is compiled for other CPUs")


def _names(shared: ctypes.CDLL, function: str) -> list[str]:
    ask = shared[function]
    ask.restype = ctypes.c_char_p
    return bytes(ask()).decode().split()
