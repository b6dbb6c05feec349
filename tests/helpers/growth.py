"""Check that a function's time grows linearly with the length of its text."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from nmt_cli.system.errors import DataError


def seconds(run: Callable[[str], Any], text: str, times: int = 1) -> float:
    """Return the shortest CPU time of several runs. A run may raise DataError."""
    shortest = float("inf")
    for _ in range(times):
        start = time.process_time()
        with contextlib.suppress(DataError):
            run(text)
        shortest = min(shortest, time.process_time() - start)
    return shortest


def is_linear(run: Callable[[str], Any], unit: str, begin: str = "", end: str = "") -> bool:
    """Return whether a text of four times the length takes less than six times as long. If not, measure once more."""
    count = 3_000 // len(unit)
    texts = [begin + unit * size + end for size in (count, 4 * count)]
    for times in (1, 3):
        short, long = (seconds(run, text, times) for text in texts)
        if long < 6 * short + 0.02:
            return True
    return False
