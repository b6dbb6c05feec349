"""Remove the functions that macOS lacks from this process and its children, and start processes by spawn.

Put this directory and the source tree on PYTHONPATH, and Python imports this module at every start. /proc is hidden
from all code except psutil, which does not need it on macOS.
"""

import ctypes
import os
import select
import sys
from typing import Any

GONE_FROM_OS = (
    "copy_file_range eventfd fdatasync memfd_create pidfd_open posix_fadvise posix_fallocate sched_getaffinity"
    " sched_setaffinity setresuid splice"
)
GONE_FROM_C = {"mallopt", "malloc_trim", "malloc_info", "prctl"}
_find = ctypes.CDLL.__getattr__


def _without(library: ctypes.CDLL, name: str) -> Any:
    if name in GONE_FROM_C:
        raise AttributeError(name)
    return _find(library, name)


def _hide_proc(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("open", "os.listdir", "os.scandir") or not isinstance(arguments[0], str):
        return
    if not (arguments[0] == "/proc" or arguments[0].startswith("/proc/")):
        return
    frame = sys._getframe(1)
    while frame:
        if str(frame.f_globals.get("__name__")).startswith("psutil"):
            return
        frame = frame.f_back
    raise FileNotFoundError(2, "No such file or directory", arguments[0])


for name in GONE_FROM_OS.split():
    if hasattr(os, name):
        delattr(os, name)
for name in ("epoll", "EPOLLIN"):
    if hasattr(select, name):
        delattr(select, name)
ctypes.CDLL.__getattr__ = _without  # type: ignore[method-assign]
sys.addaudithook(_hide_proc)

from nmt_cli.system import operating_system  # noqa: E402

operating_system.START_METHOD = "spawn"
