"""Handle signals during training, and list the reasons to stop. `train.reason_to_stop` decides which reason applies."""

import contextlib
import enum
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType

from nmt_cli.system.errors import INTERRUPTED, TERMINATED
from nmt_cli.system.signals import ECHO_SECONDS, after_imports

SIGNALS: dict[int, int] = {signal.SIGTERM: TERMINATED, signal.SIGINT: INTERRUPTED, signal.SIGUSR1: TERMINATED}


class StopReason(enum.Enum):
    """Why a run ends. After SIGNAL, the run is unfinished. Running the same command again resumes it."""

    ALL_STEPS = enum.auto()
    SIGNAL = enum.auto()
    MAX_HOURS = enum.auto()
    NO_IMPROVEMENT = enum.auto()


class Interrupted(BaseException):
    """Raised by a signal within `Stop.interruptible`."""


class Stop:
    """Handles signals during a `with` block. The first signal requests a stop after the current step.

    Further signals within ECHO_SECONDS of the first signal are ignored, because launchers forward signals that every
    process has already received. A later signal ends the process at once.
    """

    requested = False
    exit_code = TERMINATED
    _since = 0.0
    _interruptible = False

    def __enter__(self) -> "Stop":
        self._handlers = [signal.signal(number, self._handle) for number in SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(SIGNALS, self._handlers, strict=True):
            signal.signal(number, handler)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Raise Interrupted if a signal arrives during the block, or has arrived before it.

        The block must be safe to run again.
        """
        self._interruptible = True
        try:
            if self.requested:
                raise Interrupted
            yield
        finally:
            self._interruptible = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        code = SIGNALS[number]
        if not self.requested:
            self.requested, self.exit_code, self._since = True, code, time.monotonic()
            if self._interruptible:
                after_imports(frame, self._interrupt)
        elif time.monotonic() - self._since > ECHO_SECONDS:
            os._exit(code)

    def _interrupt(self) -> None:
        if self._interruptible:
            raise Interrupted
