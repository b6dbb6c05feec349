"""Threads that search what is submitted, from any text and any caller, and say of each segment when it is done."""

import heapq
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from nmt_cli.errors import UsageError
from nmt_cli.translation.segments import Feed, Results, Segment

Search = Callable[[Feed], Results]
PATIENCE = 64  # segments that are taken before the next one of a long text is due


class Scheduler:
    """One thread for each of `searches`; `done` is called in them with each segment that has its result, one at a time.

    Of those that wait, the segments that come first in their texts are searched first, in the order in which they were
    submitted. One that comes second is due after PATIENCE others, one that comes third after twice as many, and so on,
    or as soon as no other waits. So a short text does not wait for the rest of a long one, nor a long one for the end
    of many short ones.
    """

    def __init__(self, searches: Sequence[Search], done: Callable[[Segment], None]) -> None:
        self.changed = threading.Condition()  # held while `done` runs; told when segments are done
        self.error: BaseException | None = None  # what ended the threads
        self._searches, self._done = searches, done
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, Segment]] = []  # with the count of taken ones at which each is due
        self._taken = 0
        self._open = [0] * len(searches)  # segments that each thread has
        self._closed = False
        self._threads: list[threading.Thread] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + sum(self._open)

    @property
    def ended(self) -> bool:
        return self._closed

    def submit(self, segments: Iterable[tuple[int, Segment]]) -> None:
        """Queue segments, each with its place in its text."""
        with self.changed:
            self.check()
            for place, segment in segments:
                due = self._taken + place * PATIENCE
                heapq.heappush(self._waiting, (due, next(self._numbers), segment))
            for number in range(len(self._threads), len(self._searches)):
                thread = threading.Thread(target=self._run, args=[number], name=f"search {number}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self.changed.notify_all()

    def check(self) -> None:
        """Raise what ended the threads, or UsageError after `close`."""
        if self.error:
            raise self.error
        if self._closed:
            raise UsageError("this Translator is closed. Make another")

    def close(self) -> None:
        """Forget what waits and end the threads, after the steps that they are in; wait for that, unless one of them
        calls this, which the others may wait for."""
        with self.changed:
            self._closed = True
            self._waiting.clear()
            self.changed.notify_all()
        if threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join()

    def _run(self, number: int) -> None:
        try:
            for segments in self._searches[number](self._feed(number)):
                if segments:
                    with self.changed:
                        self._open[number] -= len(segments)
                        for segment in segments:
                            self._done(segment)
                        self.changed.notify_all()
                if self._closed:
                    return
        except BaseException as error:
            with self.changed:
                self.error = self.error or error
                self._closed = True
                self._waiting.clear()
                self.changed.notify_all()

    def _feed(self, number: int) -> Iterator[Segment | None]:
        """Yield segments to a thread; None where it shall go on with those that it has. No thread takes more than its
        share while others could search the rest."""
        while True:
            with self.changed:
                while not (self._closed or self._open[number] or self._may_take(number)):
                    self.changed.wait()
                if self._closed:
                    return
                segment = self._take() if self._may_take(number) else None
                self._open[number] += segment is not None
            yield segment

    def _take(self) -> Segment | None:
        """Return the next segment that is wanted still, if there is one; of others, which need no search, tell."""
        while self._waiting:
            _, _, segment = heapq.heappop(self._waiting)
            if not segment.cancelled:
                self._taken += 1
                return segment
            self._done(segment)
            self.changed.notify_all()
        return None

    def _may_take(self, number: int) -> bool:
        share = -(-self.unfinished // len(self._open))
        return bool(self._waiting) and self._open[number] < share
