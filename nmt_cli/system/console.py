"""Progress, tables and log lines. Everything but results goes to stderr."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from nmt_cli.system.errors import printable

MAX_CHARACTERS = 4000  # maximum characters of a log line
_quiet = False


def set_quiet(quiet: bool) -> None:
    """Turn off progress and log lines, but not warnings and errors."""
    global _quiet
    _quiet = quiet


def is_quiet() -> bool:
    return _quiet


def say(*lines: str) -> None:
    """Print log lines, unless quiet. Control characters are escaped."""
    if not _quiet and sys.stderr is not None:
        print("\n".join(printable(line, MAX_CHARACTERS) for line in lines), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning on one line, even if quiet."""
    if sys.stderr is not None:
        print(f"nmt: warning: {printable(text, 400)}", file=sys.stderr, flush=True)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 pair" or "1,200 pairs"."""
    return f"{count:,} {noun if count == 1 else noun + 's'}"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, is_result: bool = False) -> None:
    """Print a table to stderr, unless quiet. If it is a result, print it to stdout, even if quiet."""
    stream = sys.stdout if is_result else sys.stderr
    if (_quiet and not is_result) or stream is None:
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=any(columns))
    for i, column in enumerate(columns):
        grid.add_column(column, justify="right" if i else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(escape(printable(cell, 1000)) for cell in row))
    width = None if stream.isatty() else 200  # in a file, wrap only lines of more than 200 characters
    screen = Console(file=stream, highlight=False, width=width)
    screen.print(escape(printable(title)), style="bold")
    screen.print(grid)


def duration(seconds: float) -> str:
    """Format a length of time: 42 s, 3 min 05 s, 2 h 10 min, 3 d 4 h."""
    minutes, whole = divmod(max(0, round(seconds)), 60)
    if minutes < 60:
        return f"{minutes} min {whole:02} s" if minutes else f"{whole} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def is_live() -> bool:
    """Return whether to draw progress bars: on a terminal, unless quiet."""
    return not _quiet and sys.stderr is not None and sys.stderr.isatty()


class Progress:
    """Shows a progress bar on a terminal, or else a log line at most every `every` seconds. If quiet, shows nothing."""

    def __init__(self, title: str, total: int | None, unit: str, *, every: float = 10, done: int = 0) -> None:
        self.title, self.total, self.unit, self.every = title, total, unit, every
        self.done = self.first = done
        self.start = self.last = time.monotonic()
        self.plain = not is_live()
        self._live: Any = None

    def __enter__(self) -> "Progress":
        if not self.plain:
            from rich.console import Console
            from rich.markup import escape
            from rich.progress import Progress, TextColumn

            columns = *Progress.get_default_columns(), TextColumn("{task.fields[text]}", markup=False)
            # With redirect_stdout, Rich would print results on the terminal and leave a redirected file empty.
            self._live = Progress(*columns, console=Console(stderr=True), redirect_stdout=False, transient=True)
            self._live.add_task(escape(printable(self.title)), total=self.total, completed=self.done, text="")
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def advance(self, count: int = 1, text: str = "") -> None:
        """Add `count` units. Show `text` beside the bar, or at the end of a log line."""
        self.done += count
        now = time.monotonic()
        if self._live:
            beside = printable(f"{self.done:,} {self.unit} {text}")
            self._live.update(self._live.task_ids[0], completed=self.done, text=beside)
        elif now - self.last >= self.every:
            self.last = now
            rate = (self.done - self.first) / (now - self.start)
            speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
            left = f", {duration((self.total - self.done) / rate)} left" if self.total and rate else ""
            of = f" of {self.total:,}" if self.total else ""
            say(f"{self.title}: {self.done:,}{of} {self.unit}, {speed}/s{left}{', ' + text if text else ''}")
