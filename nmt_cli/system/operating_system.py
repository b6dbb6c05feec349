"""Functions that differ between Linux and macOS. Other modules, except engine/build.py, do not check the system."""

import contextlib
import ctypes
import mmap
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

MACOS = sys.platform == "darwin"
START_METHOD: Literal["spawn", "fork"] = "spawn" if MACOS else "fork"  # macOS libraries may crash after a fork
LOOPBACK = "lo0" if MACOS else "lo"  # name of the loopback network interface
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def allowed_cores() -> int:
    """Return the number of cores that the CPU affinity allows. macOS has no affinity, so all cores count there."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def kill_with_parent_thread() -> bool:
    """Let the kernel kill this process when the thread that started it ends. Return False if the kernel cannot."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    return prctl is not None and prctl(PR_SET_PDEATHSIG, signal.SIGKILL) == 0


def cpu_model() -> str:
    """Return the name of the CPU, or its architecture if the name is unknown."""
    return _cpuinfo().partition("model name\t: ")[2].partition("\n")[0] or _brand() or os.uname().machine


def cpu_features() -> set[str]:
    """Return Linux's names for the CPU's features. On macOS, return an empty set."""
    lines = (line.partition(":") for line in _cpuinfo().split("\n"))
    return {word for name, _, words in lines if name.strip() in ("flags", "Features") for word in words.split()}


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def _brand() -> str:
    """Return the name of the CPU on macOS, or "" on other systems."""
    value = ctypes.create_string_buffer(200)
    size = ctypes.c_size_t(len(value))
    sysctl = getattr(ctypes.CDLL(None), "sysctlbyname", None)
    if sysctl and not sysctl(b"machdep.cpu.brand_string", value, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return value.value.decode(errors="replace")
    return ""


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        import psutil  # always installed, as a dependency of accelerate

        return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """Return the peak resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if MACOS else 1024)


def limit_memory(limit: int) -> None:
    """Make allocations fail once this process uses `limit` bytes of address space. Do nothing on macOS."""
    if MACOS:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def set_malloc_options(options: Mapping[int, int]) -> None:
    """Set options of glibc's mallopt(3), in the given order. Do nothing with other C libraries."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        for option, value in options.items():
            mallopt(option, value)


def trim_malloc() -> None:
    """Make glibc release freed memory to the system, by malloc_trim(3). Do nothing with other C libraries."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


@contextlib.contextmanager
def shared_file() -> Iterator[Path]:
    """Yield the path of a file that this process and its child processes can write and read during the block.

    On Linux, the file exists only in memory, so nothing remains even after SIGKILL.
    """
    if START_METHOD == "spawn":
        import tempfile  # here, because the import is slow and most commands do not need it

        with tempfile.TemporaryDirectory(prefix="nmt-") as directory:
            yield Path(directory, "shared")
        return
    descriptor = os.memfd_create("nmt")
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
