"""Handle SIGINT and SIGTERM from the start of a command: end it with exit code 130 or 143 and one line on stderr.

Training replaces these handlers with its own (training/stopping.py), which finish the current step first.

Signals are not handled until this module is loaded, so it imports nothing slow.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from nmt_cli.system.errors import INTERRUPTED, TERMINATED

CODES: dict[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
ECHO_SECONDS = 1.0  # a second signal this soon is ignored: launchers forward signals that all processes have received
RETRY_SECONDS = 0.02  # between checks whether an import has ended
STARTING = "nmt_cli.commands.", "nmt_cli.__main__", __name__  # modules that run before a command's own work
_received, _since = 0, 0.0  # the first signal and its time


def install() -> None:
    """Handle both signals. A signal that is ignored from the start, as in background jobs, stays ignored."""
    global _received
    _received = 0
    for number in CODES:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _handle)


def received() -> int:
    """Return the exit code for the first signal received, or 0 if there was none."""
    return CODES.get(_received, 0)


def message(code: int) -> str:
    """Return the line that explains exit code 130 or 143."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    name = next(signal.Signals(number).name for number, meaning in CODES.items() if meaning == code)
    return f"{f'nmt {command}'.rstrip()}: stopped by {name}"


def leave(code: int) -> None:
    """Print the line that explains the exit code, and end the process at once."""
    try:
        os.write(2, f"{message(code)}\n".encode(errors="backslashreplace"))
    finally:  # stderr may be closed
        os._exit(code)


def _handle(number: int, frame: FrameType | None) -> None:
    """End the command with an exception, so that it removes temporary files. On a later signal, end it at once."""
    global _received, _since
    if not _received:
        _received, _since = number, time.monotonic()
        _raise_when_possible(number, frame)
    elif time.monotonic() - _since > ECHO_SECONDS:
        leave(CODES[number])


def _raise_when_possible(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt or SystemExit. During an import before the command's own work, exit at once instead."""
    importing, working = _state(frame)
    if importing and not working:
        leave(CODES[number])
    after_imports(frame, lambda: _raise(number))


def _raise(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(CODES[number])


def after_imports(frame: FrameType | None, raise_error: Callable[[], None]) -> None:
    """Call `raise_error` in a signal handler. During an import, call it later, when the import has ended.

    An import could swallow the exception and leave a half-initialized module. `frame` is the interrupted frame.
    """
    if _state(frame)[0]:
        signal.signal(signal.SIGALRM, lambda _, interrupted: after_imports(interrupted, raise_error))
        signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
    else:
        raise_error()


def _state(frame: FrameType | None) -> tuple[bool, bool]:
    """Return whether an import is running, and whether the command's own work has begun."""
    importing = working = False
    while frame:
        module, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        importing |= frame.f_code.co_filename.startswith("<frozen importlib")
        own_work = module.startswith("nmt_cli.") and not module.startswith(STARTING)
        working |= own_work and function != "<module>"
        frame = frame.f_back
    return importing, working
