"""SIGINT and SIGTERM from a command's first instruction on: it ends with 130 or 143 and one line.

Imported before anything is handled, so it imports nothing that takes time itself.
"""

import os
import signal
import sys
import time
from types import FrameType

from nmt_cli.system.errors import INTERRUPTED, TERMINATED

CODES: dict[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
ECHO_SECONDS = 1.0  # launchers forward a signal that a terminal or a scheduler has sent to every process already
RETRY_SECONDS = 0.02
_received, _since = 0, 0.0  # the first signal, and when it came


def install() -> None:
    """Handle both signals, but for one that the process was started to ignore, as by nohup or in the background."""
    global _received
    _received = 0
    for number in CODES:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _handle)


def received() -> int:
    """Return the exit code for the signal that came, else 0."""
    return CODES.get(_received, 0)


def message(code: int) -> str:
    """Return the line that says why a command ended with 130 or 143."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    name = next(signal.Signals(number).name for number, meaning in CODES.items() if meaning == code)
    return f"{f'nmt {command}'.rstrip()}: stopped by {name}"


def leave(code: int) -> None:
    """End the process at once."""
    try:
        os.write(2, f"{message(code)}\n".encode(errors="backslashreplace"))
    finally:  # stderr may be closed
        os._exit(code)


def _handle(number: int, frame: FrameType | None) -> None:
    """End the command by an exception, so that it removes what is temporary; at a second signal, at once."""
    global _received, _since
    if not _received:
        _received, _since = number, time.monotonic()
        _raise_when_possible(number, frame)
    elif time.monotonic() - _since > ECHO_SECONDS:
        leave(CODES[number])


def _raise_when_possible(number: int, frame: FrameType | None) -> None:
    """An exception within an import may be swallowed there, and leave half a module: before a command's own work the
    process ends instead, later it waits for the import's end."""
    importing, working = _state(frame)
    if importing and not working:
        leave(CODES[number])
    if importing:
        signal.signal(signal.SIGALRM, lambda _, later: _raise_when_possible(number, later))
        signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        sys.exit(CODES[number])


def _state(frame: FrameType | None) -> tuple[bool, bool]:
    """Return whether something is being imported, and whether a function of a stage (not of the command line) runs."""
    importing = working = False
    while frame:
        module, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        importing |= frame.f_code.co_filename.startswith("<frozen importlib")
        command_line = module.startswith(("nmt_cli.commands.", "nmt_cli.__main__", __name__))
        stage = module.startswith("nmt_cli.") and not command_line
        working |= stage and function != "<module>"
        frame = frame.f_back
    return importing, working
