"""The cores and the memory that this process may use, given its CPU affinity and the limits of its container.

Containers set limits through cgroups, version 1 or 2 (man 7 cgroups). The limits of parent groups apply too. macOS has
no such limits.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from nmt_cli.system.operating_system import allowed_cores

ROOT = Path("/")


def usable_cores() -> int:
    """Return the number of usable cores. A fractional quota is rounded down, but to at least one core."""
    cores = allowed_cores()
    for group in _groups("cpu"):
        v1 = [*_numbers(group / "cpu.cfs_quota_us"), *_numbers(group / "cpu.cfs_period_us")]
        for limit in (_numbers(group / "cpu.max"), v1):
            if len(limit) == 2 and min(limit) > 0:  # -1 and "max" mean no limit
                cores = min(cores, max(1, limit[0] // limit[1]))
    return cores


def usable_memory() -> int:
    """Return the memory in bytes that the processes of this container, or of this machine, may use together."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    files = (group / name for group in _groups("memory") for name in ("memory.max", "memory.limit_in_bytes"))
    return min([memory, *(limit for file in files for limit in _numbers(file) if limit > 0)])


def _groups(controller: str) -> Iterator[Path]:
    """Yield the directories of this process's cgroups and of their parents, for one controller."""
    try:
        lines = (ROOT / "proc/self/cgroup").read_text().split("\n")
    except OSError:
        return
    for controllers, path in (line.split(":", 2)[1:] for line in lines if line.count(":") >= 2):
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 has one tree for all controllers. Its line has no controllers: 0::/path.
        mount = ROOT / "sys/fs/cgroup" / (controller if controllers else "")
        group = mount / path.lstrip("/")
        yield from (each for each in (group, *group.parents) if each.is_relative_to(mount))


def _numbers(file: Path) -> list[int]:
    """Return the numbers in a small file, or [] if it cannot be read."""
    try:
        words = file.read_text().split()
    except (OSError, UnicodeDecodeError):
        return []
    return [int(word) for word in words if word.removeprefix("-").isdecimal()]
