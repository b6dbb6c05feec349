"""Watches processes that are not children of the tests."""

import contextlib
import time

import psutil


def ended(pid: int) -> bool:
    """Wait up to 10 seconds for a process that is not a child; return whether it ended. Zombies count as ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process, deadline = psutil.Process(pid), time.monotonic() + 10
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(0.02)
        return process.status() == psutil.STATUS_ZOMBIE
    return True
