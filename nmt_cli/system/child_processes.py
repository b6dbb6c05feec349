"""Child processes: start them without losing signals, and end them when their parent ends."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator

from nmt_cli.system.operating_system import kill_with_parent_thread

WATCH_SECONDS = 0.2  # between checks whether the parent has ended


@contextlib.contextmanager
def signals_blocked(numbers: Collection[int]) -> Iterator[None]:
    """Hold back signals during the block. A child process that starts in the block must unblock them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(parent: int, *, thread_lasts: bool = True) -> None:
    """Kill this process when its parent process (whose id is `parent`) ends for any reason, even SIGKILL.

    The Linux kernel can kill a process when the thread that started it ends. If that thread may end before the parent
    (`thread_lasts=False`), or on macOS, a new thread of this process watches the parent instead.
    """
    if not (thread_lasts and kill_with_parent_thread()):
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
        return
    if os.getppid() != parent:  # the parent ended before the call
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
