"""The processes of a run: what one decides for all, and how all stop at the same update."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch

from nmt_cli.errors import INTERRUPTED, TERMINATED, NmtError, from_os_error

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ECHO_SECONDS = 1.0  # launchers forward a signal that a terminal or a scheduler has sent to every process already


class Stop:
    """While entered, a signal is a request to finish the update; a second one, a second later, exits at once."""

    def __init__(self) -> None:
        self.signal, self._since = 0, 0.0

    def __enter__(self) -> "Stop":
        self._before = [signal.signal(number, self._handle) for number in SIGNALS]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if not self.signal:
            self.signal, self._since = number, time.monotonic()
        elif time.monotonic() - self._since > ECHO_SECONDS:
            os._exit(INTERRUPTED if number == signal.SIGINT else TERMINATED)

    @property
    def exit_code(self) -> int:
        """Return what the process exits with after the signal."""
        return INTERRUPTED if self.signal == signal.SIGINT else TERMINATED


def largest(accelerator: Any, value: int) -> int:
    """Return the largest of all processes' values."""
    if accelerator.num_processes == 1:
        return value
    return int(accelerator.gather(torch.tensor([value], device=accelerator.device)).max())


def on_main(accelerator: Any, work: Callable[[], Sequence[float]], count: int = 0) -> list[float]:
    """Do `work` on the main process and return its `count` numbers on all; where it fails, all exit with its code.

    The others wait meanwhile. They say nothing: the main process tells the user.
    """
    answer, failure = [0.0] * count, None
    if accelerator.is_main_process:
        try:
            answer = list(work())
        except NmtError as error:
            failure = error
        except OSError as error:
            failure = from_os_error(error)
    if accelerator.num_processes > 1:
        mine = torch.tensor([failure.exit_code if failure else 0, *answer], dtype=torch.float64)
        code, *answer = accelerator.reduce(mine.to(accelerator.device), "sum").tolist()
        if code and failure is None:
            raise SystemExit(int(code))
    if failure:
        raise failure
    return answer
