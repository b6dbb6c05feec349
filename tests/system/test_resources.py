"""Cores and memory within the limits of a container, for both versions of cgroups."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.system import resources
from nmt_cli.system.resources import usable_cores, usable_memory

Files = dict[str, str | bytes]
GB = 1 << 30
V1 = "9:name=systemd:/\n4:memory:/docker/ab\n1:cpu,cpuacct:/docker/ab\n0::/\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Files], tuple[int, int]]:
    """Return a function that counts cores and gigabytes on a machine with 16 cores, 64 GB and the given cgroup files.

    In `cpu.max`, the quota precedes its period of 100000 microseconds.
    """
    monkeypatch.setattr(resources, "ROOT", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 64 * GB // 4096, "SC_PAGE_SIZE": 4096}.get)

    def count(files: Files) -> tuple[int, int]:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return usable_cores(), usable_memory() // GB

    return count


CG = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "counted"),
    [
        ({}, (16, 64)),
        ({"proc/self/cgroup": "garbage"}, (16, 64)),
        ({"proc/self/cgroup": "0::/\n", f"{CG}/cpu.max": "max 100000\n", f"{CG}/memory.max": "max\n"}, (16, 64)),
        ({"proc/self/cgroup": "0::/\n", f"{CG}/cpu.max": "250000 100000\n", f"{CG}/memory.max": f"{4 * GB}\n"}, (2, 4)),
        ({"proc/self/cgroup": "0::/\n", f"{CG}/cpu.max": "50000 100000\n"}, (1, 64)),
        ({"proc/self/cgroup": "0::/\n", f"{CG}/cpu.max": "9900000 100000", f"{CG}/memory.max": f"{99 * GB}"}, (16, 64)),
        # the lowest limit of all parent groups applies
        ({"proc/self/cgroup": "0::/a/b\n", f"{CG}/a/b/cpu.max": "400000 100000", f"{CG}/a/cpu.max": "300000 100000",
          f"{CG}/a/b/memory.max": f"{2 * GB}", f"{CG}/a/memory.max": f"{3 * GB}"}, (3, 2)),
        # version 1, on the host and in a container where its own group is mounted as the root
        ({"proc/self/cgroup": V1, f"{CG}/cpu/docker/ab/cpu.cfs_quota_us": "300000\n",
          f"{CG}/cpu/docker/ab/cpu.cfs_period_us": "100000\n",
          f"{CG}/memory/docker/ab/memory.limit_in_bytes": f"{8 * GB}\n"}, (3, 8)),
        ({"proc/self/cgroup": V1, f"{CG}/cpu/cpu.cfs_quota_us": "200000", f"{CG}/cpu/cpu.cfs_period_us": "100000",
          f"{CG}/memory/memory.limit_in_bytes": f"{8 * GB}"}, (2, 8)),
        ({"proc/self/cgroup": V1, f"{CG}/cpu/cpu.cfs_quota_us": "-1", f"{CG}/cpu/cpu.cfs_period_us": "100000",
          f"{CG}/memory/memory.limit_in_bytes": "9223372036854771712"}, (16, 64)),
        # a colon in a group's name, and a controller whose name starts the same way
        ({"proc/self/cgroup": "0::/a.slice:cri:b\n", f"{CG}/a.slice:cri:b/cpu.max": "200000 100000"}, (2, 64)),
        ({"proc/self/cgroup": "3:cpuset,memory2:/x\n2:cpu:/y\n", f"{CG}/cpu/x/cpu.cfs_quota_us": "100000",
          f"{CG}/cpu/x/cpu.cfs_period_us": "100000", f"{CG}/memory/x/memory.limit_in_bytes": f"{GB}",
          f"{CG}/cpu/y/cpu.cfs_quota_us": "500000", f"{CG}/cpu/y/cpu.cfs_period_us": "100000"}, (5, 64)),
        # files above the mount belong to no group, and some values mean no limit
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cpu.max": "100000 100000", "sys/memory.max": f"{GB}"}, (16, 64)),
        ({"proc/self/cgroup": "0::/\n", f"{CG}/cpu.max": "0 100000\n", f"{CG}/memory.max": "0\n"}, (16, 64)),
        ({"proc/self/cgroup": "0::/\n", f"{CG}/cpu.max": "100000 0\n", f"{CG}/memory.max": "-1\n"}, (16, 64)),
        ({"proc/self/cgroup": "0::/\n", f"{CG}/cpu.max": "400000\n"}, (16, 64)),
        ({"proc/self/cgroup": "0::/\n", f"{CG}/cpu.max": b"\xff 1", f"{CG}/memory.max": b"\xff"}, (16, 64)),
    ],
)  # fmt: skip
def test_cores_and_memory_follow_the_limits_of_a_container(
    machine: Callable[[Files], tuple[int, int]], files: Files, counted: tuple[int, int]
) -> None:
    assert machine(files) == counted
    assert PrepareOptions().processes == counted[0]
    assert PrepareOptions(workers=5).processes == 5
