"""The name and features of the CPU, the memory limit, and blocked signals."""

import ctypes
import resource
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nmt_cli.system import operating_system
from nmt_cli.system.child_processes import signals_blocked


@pytest.mark.parametrize(
    ("text", "model", "features"),
    [
        ("processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2\nvmx flags\t: x\n", "A CPU", {"fpu", "avx2"}),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\nCPU part\t: 0xd40\n", None, {"fp", "asimd", "bf16"}),
        ("", None, set()),
    ],
)
def test_the_name_and_features_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch, text: str, model: str | None, features: set[str]
) -> None:
    monkeypatch.setattr(operating_system, "_cpuinfo", lambda: text)
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(machine="aarch64"))
    assert operating_system.cpu_features() == features
    assert operating_system.cpu_model() == (model or "aarch64")


class CLibrary(SimpleNamespace):
    """Stands in for the C library: a namespace of functions."""

    def __call__(self, name: None) -> "CLibrary":
        return self


def test_functions_of_the_c_library_are_called_where_they_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    called = list[tuple[int, ...]]()

    def function(*given: int) -> int:
        called.append(given)
        return results.pop()

    results = [0, -1, 0, 1, 1, 1]
    monkeypatch.setattr(ctypes, "CDLL", CLibrary(mallopt=function, malloc_trim=function, prctl=function))
    operating_system.set_malloc_options({-3: 65536, -1: 9})
    operating_system.trim_malloc()
    assert called == [(-3, 65536), (-1, 9), (0,)]
    assert [operating_system.kill_with_parent_thread() for _ in range(3)] == [True, False, True]
    assert called[3:] == [(1, signal.SIGKILL)] * 3
    monkeypatch.setattr(ctypes, "CDLL", CLibrary())  # as on macOS
    operating_system.set_malloc_options({1: 2})
    operating_system.trim_malloc()
    assert not operating_system.kill_with_parent_thread()


def test_a_mac_names_its_cpu_and_has_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    def sysctl(name: bytes, value: Any, size: Any, *rest: Any) -> int:
        assert (name, size._obj.value, rest[0], rest[1].value) == (b"machdep.cpu.brand_string", 200, None, 0)
        value.value = b"Apple M3"
        return results.pop()

    results = [-1, 0]
    monkeypatch.setattr(operating_system, "_cpuinfo", str)
    monkeypatch.setattr(ctypes, "CDLL", CLibrary(sysctlbyname=sysctl))
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(machine="arm64"))
    assert [operating_system.cpu_model() for _ in range(2)] == ["Apple M3", "arm64"]
    monkeypatch.delattr("os.sched_getaffinity")
    for count, cores in ((12, 12), (None, 1)):
        monkeypatch.setattr("os.cpu_count", lambda count=count: count)
        assert operating_system.allowed_cores() == cores


@pytest.mark.parametrize(
    ("macos", "hard", "limits"),
    [
        (False, resource.RLIM_INFINITY, [(500, resource.RLIM_INFINITY)]),
        (False, 499, [(499, 499)]),
        (False, 501, [(500, 501)]),
        (True, 501, []),
    ],
)
def test_memory_is_limited_within_the_hard_limit(
    monkeypatch: pytest.MonkeyPatch, macos: bool, hard: int, limits: list[tuple[int, int]]
) -> None:
    given = list[tuple[int, int]]()
    monkeypatch.setattr(operating_system, "MACOS", macos)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (7, hard) if kind == resource.RLIMIT_AS else None)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: given.append(pair))
    operating_system.limit_memory(500)
    assert given == limits


def test_resident_memory_is_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path: {"/proc/self/statm": "900 20 3 4 0 5 0\n"}[str(path)])
    assert operating_system.resident_bytes() == 20 * resource.getpagesize()


def test_signals_blocked_before_the_block_stay_blocked_after_it() -> None:
    """A signal that is sent inside the block arrives at its end."""
    received = list[int]()
    handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in (10, 12)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        with signals_blocked([signal.SIGUSR1, signal.SIGUSR2]):
            for number in handlers:
                signal.raise_signal(number)
            assert received == []
        assert received == [signal.SIGUSR1]
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before | {signal.SIGUSR2}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.mark.skipif(sys.platform != "linux", reason="macOS starts new interpreters")
def test_processes_are_forked_on_linux() -> None:
    """A script that calls nmt needs no main guard, and processes start quickly."""
    assert operating_system.START_METHOD == "fork"
