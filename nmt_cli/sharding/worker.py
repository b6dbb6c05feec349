"""A worker of a job. It first translates its own share of the units, and then units of other workers.

The worker translates the units of its share in order. Then it repeatedly takes the second half of the longest run of
units that no worker has begun, so that two workers rarely translate the same unit. Finally, it translates the units
that other workers have begun and not finished, because these workers may have been killed.
"""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from nmt_cli.sharding.job import Failure, Job, summary
from nmt_cli.sharding.proof import damage_of
from nmt_cli.sharding.units import Content, Reader, Unit
from nmt_cli.system.console import Progress, warn
from nmt_cli.system.errors import DataError, NmtError
from nmt_cli.system.shard import Shard

# Translates lines. Arguments: the file descriptors of the source and the target, the number of the first line, and a
# function that it calls when it has read all lines.
Translate = Callable[[int, int, int, Callable[[], None]], None]
LANES = 2  # units translated at the same time: while one is finishing, another keeps the search threads busy
STOP_SECONDS = 10  # how long an interrupted unit may take to stop


class Worker:
    """Translates the units of a job that have no result yet. `stop` interrupts running translations."""

    def __init__(self, job: Job, shard: Shard, translate: Translate, *, one_line: bool, stop: Callable[[], object]):
        """If `one_line` is true, each input line must have exactly one output line."""
        self._job = job
        self._shard = shard
        self._translate = translate
        self._one_line = one_line
        self._stop = stop
        self._stopping = False
        self._tried = set[int]()  # units that this worker has tried to claim
        self._own = set[int]()  # units that this worker has translated or is translating
        self._reader = Reader(job.files)
        self._order = self._in_order()
        self._turn = threading.Lock()  # a lane holds it while taking a unit and reading its lines
        # A translated unit, with its failure if any; None at the end of a lane; or an error
        self._events = queue.SimpleQueue[tuple[Unit, Failure | None] | BaseException | None]()
        self.failures = list[tuple[Unit, Failure]]()
        self.lines = 0

    def run(self, progress: Progress) -> None:
        """Translate units until each has a result or has failed. Raise errors of the input, disk and store.

        The failures of this worker are added to `failures`.
        """
        lanes = [threading.Thread(target=self._lane, daemon=True, name=f"unit {lane}") for lane in range(LANES)]
        try:
            for lane in lanes:
                lane.start()
            open_lanes = LANES
            while open_lanes:
                event = self._events.get()
                if isinstance(event, BaseException):
                    raise event
                if event is None:
                    open_lanes -= 1
                    continue
                unit, failure = event
                self.lines += 0 if failure else unit.lines
                progress.advance(unit.lines)
                if failure:
                    self.failures.append((unit, failure))
                    warn(f"{self._job.lines_of(unit)} failed: {failure.reason}")
        except BaseException:
            self._stopping = True
            self._stop()
            for lane in lanes:
                if lane.ident:
                    lane.join(STOP_SECONDS)
            raise
        finally:
            if not any(lane.is_alive() for lane in lanes):
                self._reader.__exit__()

    def do_unit(self, unit: Unit) -> Failure | None:
        """Translate a unit unless it has a result. Return its failure, if any."""
        if self._job.is_done(unit):
            return None
        with self._reader:
            return self._do(unit, self._reader.read(unit), lambda: None)

    def _lane(self) -> None:
        try:
            while self._do_next():
                pass
            self._events.put(None)
        except BaseException as error:  # `run` raises it
            self._events.put(error)

    def _do_next(self) -> bool:
        """Translate the next unit. Return False if there is none. When its lines are read, let another lane begin."""
        once = threading.Lock()

        def end_turn() -> None:
            if once.acquire(blocking=False):
                self._turn.release()

        self._turn.acquire()
        try:
            unit = None if self._stopping else next(self._order, None)
            if unit:
                self._events.put((unit, self._do(unit, self._reader.read(unit), end_turn)))
        finally:
            end_turn()
        return unit is not None

    def _in_order(self) -> Iterator[Unit]:
        """Yield the units to translate. Choose each unit only when the worker is ready for it."""
        units, total = self._job.units, len(self._job.units)
        done = self._job.states().done
        for unit in units[self._shard.start(total) : self._shard.end(total)]:
            if not (unit.number in done and self._is_intact(unit)) and self._claim(unit):
                yield unit
        while run := self._longest_run():
            for unit in run[len(run) // 2 :]:
                if not self._claim(unit):
                    break
                yield unit
        states = self._job.states()
        left = [unit for unit in units if unit.number not in states.done | states.failed | self._own]
        first = self._shard.start(len(left))  # so that workers begin at different units
        for unit in left[first:] + left[:first]:
            if not self._job.is_done(unit):
                self._own.add(unit.number)
                yield unit

    def _longest_run(self) -> Sequence[Unit]:
        """Return the longest run of units that no worker has begun."""
        states = self._job.states()
        begun = states.done | states.failed | states.claimed | self._tried
        longest, start, total = range(0), 0, len(self._job.units)
        for number in range(total + 1):
            if number == total or number in begun:
                longest = max(longest, range(start, number), key=len)
                start = number + 1
        return self._job.units[longest.start : longest.stop]

    def _claim(self, unit: Unit) -> bool:
        self._tried.add(unit.number)
        if self._job.is_done(unit) or not self._job.claim(unit):
            return False
        self._own.add(unit.number)
        return True

    def _is_intact(self, unit: Unit) -> bool:
        """Return whether a finished unit has a valid result. If not, print a warning and remove its sidecar."""
        try:
            sidecar = self._job.sidecar(unit)
            damage = damage_of(self._job, unit, sidecar) if sidecar else "its sidecar is missing"
            if sidecar and not damage and self._reader.read(unit).sha256 != sidecar.input_sha256:
                damage = "the input has changed"
        except DataError as error:
            damage = str(error)
        if damage:
            warn(f"{self._job.lines_of(unit)}: {damage}. These lines are translated again")
            self._job.forget(unit)
        return not damage

    def _do(self, unit: Unit, content: Content, all_read: Callable[[], None]) -> Failure | None:
        """Translate a unit and store its result. If the translation fails, store and return the failure."""
        part = self._job.store.part()
        try:
            try:
                self._write(content.data, part, unit, all_read)
            except NmtError as error:
                if self._stopping:
                    raise
                failure = Failure(str(error), error.exit_code)
                self._job.fail(unit, failure)
                return failure
            if not self._job.is_done(unit):  # otherwise, another worker was faster
                self._job.finish(unit, part, content.sha256)
        except BaseException:
            self._job.release(unit)
            raise
        finally:
            part.unlink(missing_ok=True)
        return None

    def _write(self, data: bytes, part: Path, unit: Unit, all_read: Callable[[], None]) -> None:
        """Translate lines to a local file. Raise DataError if the number of translations is wrong."""
        target = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(os.memfd_create("unit"), "wb", buffering=0) as source:
                view = memoryview(data)
                while view:
                    view = view[source.write(view) :]
                source.seek(0)
                self._translate(source.fileno(), target, unit.first, all_read)
        except OSError as error:
            error.filename = error.filename or str(part)
            raise
        finally:
            os.close(target)
        if self._one_line and (found := summary(part)[2]) != unit.lines:
            raise DataError(f"{unit.lines:,} lines have {found:,} translations")
