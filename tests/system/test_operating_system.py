"""The CPU's features, the limit on memory, and signals that are held back."""

import resource
import signal
from pathlib import Path

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
def test_names_of_a_cpu_and_its_features(
    monkeypatch: pytest.MonkeyPatch, text: str, model: str | None, features: set[str]
) -> None:
    monkeypatch.setattr(operating_system, "_cpuinfo", lambda: text)
    monkeypatch.setattr("os.uname", lambda: type("", (), {"machine": "aarch64"}))
    assert operating_system.cpu_features() == features
    assert operating_system.cpu_model() == (model or "aarch64")


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


def test_signals_blocked_before_stay_blocked() -> None:
    """A signal sent meanwhile arrives at the end."""
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
