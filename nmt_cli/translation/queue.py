"""The queue of segments, which all texts and callers share. The search threads of a backend take segments from it."""

import heapq
import itertools
import math
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from nmt_cli.system.errors import UsageError
from nmt_cli.translation.segments import Segment

CLOSED = "this Translator is closed. Create a new one"
BACKGROUND_INTERVAL = 64  # number of segments taken, from any texts, before the next segment of a text is due
BUSY_SECONDS = 1.0  # if a text arrives while a long text is being translated, more texts are expected for this long
IDLE_FACTOR = 8  # the background limit is multiplied by this factor while no more texts are expected

Search = Callable[["WorkerQueue"], None]  # runs in its own thread until `take` returns an empty list
# Takes source and target ids of each pair; returns the log-probability of each target token.
ScoreTargets = Callable[[Sequence[Sequence[Sequence[int]]]], list[list[float]]]


@dataclass(frozen=True)
class Backend:
    """Computes translations, with the engine on a CPU or with torch."""

    searches: list[Search]  # one for each thread
    about: str  # a description of the arithmetic and the hardware
    score_targets: ScoreTargets | None = None  # scores given translations; if None, forced searches compute the scores
    close: Callable[[], object] = lambda: None


class Closed(Exception):
    """Ends the search of a thread whose queue is closed."""


class SegmentQueue:
    """Waiting segments, and one worker thread for each of `searches`.

    `done` is called with each segment that has hypotheses or an error, or was cancelled. The call is made in a worker's
    thread or in the thread that calls `close`, one call at a time. `done` must not raise.

    The first segment of each text is due at once. The second segment is due when BACKGROUND_INTERVAL more segments of
    any texts have been taken, the third after twice as many, and so on. Workers take the segment that is due earliest,
    even before it is due, and of several such segments the one that was submitted first. Therefore a short text does
    not wait for the end of a long text, and a long text does not wait for all short texts that arrive later.

    Segments that are not the first of their text are background segments. With `background_limit`, a worker holds at
    most that many background segments, or IDLE_FACTOR times as many while no more texts are expected. A worker that
    holds the first segment of a text takes background segments only when they are due, because each segment slows down
    the other segments of the same worker.
    """

    def __init__(
        self, searches: Sequence[Search], done: Callable[[Segment], None], background_limit: int | None = None
    ) -> None:
        self.changed = threading.Condition()  # held while `done` runs, notified when segments are done
        self.done = done
        self.background_limit = background_limit
        self.closed = False
        self._process = os.getpid()
        self._workers = [WorkerQueue(self, search) for search in searches]
        self._threads: list[threading.Thread] = []
        self._numbers = itertools.count()
        # Heaps of (due, number of submission, segment). A segment is due when `_taken`, the number of segments taken so
        # far, reaches `due`.
        self._first = list[tuple[int, int, Segment]]()
        self._background = list[tuple[int, int, Segment]]()
        self._taken = 0
        self._busy_until = 0.0

    @property
    def waiting(self) -> int:
        return len(self._first) + len(self._background)

    @property
    def searching(self) -> int:
        return sum(len(worker.held) for worker in self._workers)

    @property
    def unfinished(self) -> int:
        return self.waiting + self.searching

    def submit(self, segments: Iterable[Segment]) -> None:
        """Add segments. Raises UsageError after `close`."""
        with self.changed:
            self.check_open()
            for segment in segments:
                if not segment.position and self._has_background():
                    self._busy_until = time.monotonic() + BUSY_SECONDS
                due = self._taken + segment.position * BACKGROUND_INTERVAL
                heap = self._background if segment.position else self._first
                heapq.heappush(heap, (due, next(self._numbers), segment))
            for number, worker in enumerate(self._workers[len(self._threads) :], len(self._threads)):
                self._threads.append(threading.Thread(target=worker.run, name=f"search {number}", daemon=True))
                self._threads[-1].start()
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until a condition holds. Return False if it does not hold after `timeout` seconds.

        Raises UsageError if the queue is closed before the condition holds.
        """
        with self.changed:
            self.changed.wait_for(lambda: condition() or self.closed, timeout)
            if holds := condition():
                return holds
            self.check_open()
        return False

    def check_open(self) -> None:
        """Raise UsageError after `close`, and in a forked process."""
        if self.closed:
            raise UsageError(CLOSED)
        if self._process != os.getpid():  # a forked process has none of the threads
            raise UsageError("this Translator belongs to another process. Create one after the fork")

    def close(self) -> None:
        """Give every unfinished segment a UsageError, and end each worker after its current step.

        Wait for the workers to end, unless the caller is one of them.
        """
        with self.changed:
            self.closed = True
            for heap in (self._first, self._background):
                while heap:
                    segment = heapq.heappop(heap)[-1]
                    segment.error = UsageError(CLOSED)
                    self.done(segment)
            self.changed.notify_all()
        if threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join()

    def peek(self, held: dict[Segment, bool]) -> Segment | None:
        """Return the next segment, if any, for a worker that holds the segments `held`. The segment stays in the queue.

        Cancelled segments before it are removed and passed to `done`. A worker holds at most an equal share of all
        unfinished segments.
        """
        while len(held) < -(-self.unfinished // len(self._workers)):
            heaps = [self._first] if self._first else []
            if self._background and self._admits_background(held):
                heaps.append(self._background)
            if not heaps:
                break
            heap = min(heaps)  # the heap whose first segment is due earlier
            segment = heap[0][-1]
            if not segment.cancelled:
                return segment
            heapq.heappop(heap)
            self.done(segment)
            self.changed.notify_all()
        return None

    def pop(self, segment: Segment) -> None:
        """Remove a segment that `peek` has returned."""
        heapq.heappop(self._background if segment.position else self._first)
        segment.background = bool(segment.position) and self.background_limit is not None
        segment.started = segment.started or time.monotonic()
        self._taken += 1

    def _admits_background(self, held: dict[Segment, bool]) -> bool:
        """Return whether a worker that holds these segments may take the next background segment."""
        if self.background_limit is None:
            return True
        busy = time.monotonic() <= self._busy_until
        limit = self.background_limit * (1 if busy else IDLE_FACTOR)
        background = sum(held.values())
        due, _, _ = self._background[0]
        return background < limit and (background == len(held) or due <= self._taken)

    def _has_background(self) -> bool:
        return bool(self._background) or any(any(worker.held.values()) for worker in self._workers)


class WorkerQueue:
    """One worker's access to the queue. The worker's search calls `take` and `finish`.

    If a search raises an error, each segment that the worker holds is searched again, alone. If this second search also
    fails, its error becomes the error of the segment.
    """

    def __init__(self, queue: SegmentQueue, search: Search) -> None:
        self.held: dict[Segment, bool] = {}  # segments in the order taken; True for a background segment
        self.allowance = math.inf  # the number of segments that the search may still take from the queue
        self._queue = queue
        self._run_search = search
        self._inside: dict[Segment, None] = {}  # the held segments that the current search has taken
        self._again: deque[Segment] = deque()  # held segments that `take` returns again, before others
        self._alone = False

    @property
    def others_have_segments(self) -> bool:
        """Whether there are unfinished segments that this worker does not hold."""
        with self._queue.changed:
            return self._queue.unfinished > len(self.held)

    def take(self, rows: float, tokens: float, batch: float, *, alike: bool = False) -> list[Segment]:
        """Return the next segments that fit in `rows` hypotheses and `tokens` source tokens.

        Stop when they have `batch` source tokens or more. If the search has no segments, wait for one, and return it
        even if it does not fit, or return an empty list if the search must end. With `alike`, return only segments with
        the same options as those in the search. Raises Closed after the queue's `close`.
        """
        taken = list[Segment]()
        with self._queue.changed:
            while batch > 0 and (segment := self._peek()):
                if self._inside:
                    fits = segment.options.beam <= rows and len(segment.ids) <= tokens
                    if not fits or (alike and not _alike(segment, next(iter(self._inside)))):
                        break
                self._accept(segment)
                taken.append(segment)
                rows -= segment.options.beam
                tokens -= len(segment.ids)
                batch -= len(segment.ids)
            if taken:
                self._queue.changed.notify_all()  # a reader of lines may submit more segments
        return taken

    def _peek(self) -> Segment | None:
        """Return the next segment, if any. If the search has no segments, wait for one, unless the search must end."""
        while True:
            if self._queue.closed:
                raise Closed
            if self._again:
                return self._again[0]
            open_ = self.allowance > 0 and not self._alone
            if open_ and (segment := self._queue.peek(self.held)):
                return segment
            if self._inside or not open_:
                return None
            self._queue.changed.wait()

    def _accept(self, segment: Segment) -> None:
        if self._again:
            self._again.popleft()
        else:
            self._queue.pop(segment)
            self.held[segment] = bool(segment.position)
            self.allowance -= 1
        self._inside[segment] = None

    def finish(self, segments: Iterable[Segment]) -> None:
        """Pass segments that have hypotheses or an error, or were cancelled, to the queue's `done`.

        Raises Closed after the queue's `close`.
        """
        if done := list(segments):
            with self._queue.changed:
                for segment in done:
                    self._inside.pop(segment, None)
                    del self.held[segment]
                    self._queue.done(segment)
                self._queue.changed.notify_all()
        if self._queue.closed:
            raise Closed

    def restart(self) -> None:
        """Keep the unfinished segments of this search for the next one, in the order in which they were taken."""
        unfinished = {*self._inside, *self._again}
        self._inside.clear()
        self._again = deque(segment for segment in self.held if segment in unfinished)

    @property
    def narrowest_beam(self) -> int:
        return min((segment.options.beam for segment in (*self._inside, *self._again)), default=1)

    def run(self) -> None:
        """Search until the queue is closed. The worker's thread runs this method."""
        try:
            while True:
                self._search_next()
        except Closed:
            pass
        with self._queue.changed:
            for segment in list(self.held):
                del self.held[segment]
                segment.error = UsageError(CLOSED)
                self._queue.done(segment)
            self._queue.changed.notify_all()

    def _search_next(self) -> None:
        try:
            self._again.extend(self.take(math.inf, math.inf, 1))  # first, so that every error belongs to a held segment
            self._inside.clear()
            self._run_search(self)
        except Closed:
            raise
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # the frames would keep the memory of the search allocated
            for segment in list(self.held):
                self._search_alone(segment)
        self.allowance = math.inf
        self._inside.clear()
        self._again.clear()

    def _search_alone(self, segment: Segment) -> None:
        self._inside.clear()
        self._again = deque([segment])
        self._alone = True
        try:
            if not segment.cancelled:
                self._run_search(self)
        except Closed:
            raise
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)
            segment.error = error
        finally:
            self._alone = False
        if segment in self.held:
            self.finish([segment])


def _alike(one: Segment, other: Segment) -> bool:
    return one.options == other.options and (one.constraints is None) == (other.constraints is None)
