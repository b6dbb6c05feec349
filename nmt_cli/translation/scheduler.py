"""Threads that search what is submitted, from any text and any caller, and say of each segment when it is done."""

import heapq
import itertools
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence

from nmt_cli.system.errors import UsageError
from nmt_cli.translation.segments import Feed, Results, Segment

Search = Callable[[Feed], Results]
CLOSED = "this Translator is closed. Make another"
PATIENCE = 64  # segments that are taken before the next one of a long text is due
SHARED = 1.0  # seconds after a text came beside a long one, while others like it are expected
AMPLE = 8  # how many times `later` a thread takes when none is


class Scheduler:
    """One thread for each of `searches`; `done`, which must not raise, is called in them with each segment that has its
    result or an error, one at a time.

    Of those that wait, the segments that come first in their texts are searched first, in the order in which they were
    submitted. One that comes second is due after PATIENCE others, one that comes third after twice as many, and so on,
    or as soon as no other waits. So a short text does not wait for the rest of a long one, nor a long one for the end
    of many short ones. With `later`, a thread takes at most so many at once that do not come first, AMPLE times as many
    where no other text came for a while; and beside one that comes first only those that are due: a step takes longer
    the more are in it.

    Where a search raises an error, each segment that it holds is searched again, alone, and has the error if it comes
    again. Those that `close` finds have a UsageError.
    """

    def __init__(self, searches: Sequence[Search], done: Callable[[Segment], None], later: int | None = None) -> None:
        self.changed = threading.Condition()  # held while `done` runs; told when segments are done
        self._searches, self._done, self._most_later = searches, done, later
        self._numbers = itertools.count()
        # The first segments of texts, and later ones: with the count of taken ones at which each is due.
        self._first, self._later = list[tuple[int, int, Segment]](), list[tuple[int, int, Segment]]()
        self._taken = 0
        self._shared_until = 0.0
        # What each thread searches; True for later segments.
        self._held: list[dict[Segment, bool]] = [{} for _ in searches]
        self._closed = False
        self._threads: list[threading.Thread] = []

    @property
    def waiting(self) -> int:
        return len(self._first) + len(self._later)

    @property
    def searching(self) -> int:
        return sum(map(len, self._held))

    @property
    def unfinished(self) -> int:
        return self.waiting + self.searching

    @property
    def ended(self) -> bool:
        return self._closed

    def submit(self, segments: Iterable[tuple[int, Segment]]) -> None:
        """Queue segments, each with its place in its text."""
        with self.changed:
            self.check()
            for place, segment in segments:
                if not place and self._has_later():
                    self._shared_until = time.monotonic() + SHARED
                due = self._taken + place * PATIENCE
                heapq.heappush(self._later if place else self._first, (due, next(self._numbers), segment))
            for number in range(len(self._threads), len(self._searches)):
                thread = threading.Thread(target=self._run, args=[number], name=f"search {number}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self.changed.notify_all()

    def check(self) -> None:
        """Raise UsageError after `close`."""
        if self._closed:
            raise UsageError(CLOSED)

    def close(self) -> None:
        """Give up what waits and end the threads, after the steps that they are in; wait for that, unless one of them
        calls this, which the others may wait for."""
        with self.changed:
            self._closed = True
            for queue in (self._first, self._later):
                while queue:
                    self._tell(heapq.heappop(queue)[-1], UsageError(CLOSED))
            self.changed.notify_all()
        if threading.current_thread() not in self._threads:
            for thread in self._threads:
                thread.join()

    def _run(self, number: int) -> None:
        held = self._held[number]
        while not self._closed:
            try:
                self._search(number, self._feed(number))
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)  # they hold the search's memory
                for segment in list(held):
                    self._search_alone(number, segment)
        with self.changed:
            for segment in list(held):
                del held[segment]
                self._tell(segment, UsageError(CLOSED))
            self.changed.notify_all()

    def _search_alone(self, number: int, segment: Segment) -> None:
        error: BaseException | None = None
        try:
            if not (segment.cancelled or self._closed):
                self._search(number, iter([segment]))
        except BaseException as again:
            traceback.clear_frames(again.__traceback__)
            error = again
        if (error or segment.cancelled) and segment in self._held[number]:
            with self.changed:
                del self._held[number][segment]
                self._tell(segment, error)
                self.changed.notify_all()

    def _search(self, number: int, feed: Feed) -> None:
        first = next(filter(None, feed), None)  # so that an error is always that of a segment
        if first is None:
            return
        for segments in self._searches[number](itertools.chain([first], feed)):
            if segments:
                with self.changed:
                    for segment in segments:
                        del self._held[number][segment]
                        self._tell(segment)
                    self.changed.notify_all()
            if self._closed:
                return

    def _tell(self, segment: Segment, error: BaseException | None = None) -> None:
        segment.error = error
        self._done(segment)

    def _feed(self, number: int) -> Iterator[Segment | None]:
        """Yield segments to a thread; None where it shall go on with those that it has. No thread takes more than its
        share while others could search the rest."""
        held = self._held[number]
        while True:
            with self.changed:
                while not (self._closed or held or self._open_to(number)):
                    self.changed.wait()
                if self._closed:
                    return
                segment = self._take(number)
            yield segment

    def _take(self, number: int) -> Segment | None:
        """Give a thread the next segment that is wanted still, if there is one; of others, which need no search,
        tell."""
        while queues := self._open_to(number):
            queue = min(queues)  # by what is due
            _, _, segment = heapq.heappop(queue)
            if not segment.cancelled:
                self._held[number][segment] = queue is self._later
                segment.patient = queue is self._later and self._most_later is not None
                self._taken += 1
                segment.started = segment.started or time.monotonic()
                return segment
            self._tell(segment)
            self.changed.notify_all()
        return None

    def _open_to(self, number: int) -> list[list[tuple[int, int, Segment]]]:
        """Return the queues, not empty, of which a thread may take a segment."""
        held, share = self._held[number], -(-self.unfinished // len(self._held))
        if len(held) >= share:
            return []
        queues = [self._first]
        if self._later and self._leaves_room(held):
            queues.append(self._later)
        return [queue for queue in queues if queue]

    def _leaves_room(self, held: dict[Segment, bool]) -> bool:
        """Whether the next later segment is no burden to those that a thread has, or is due."""
        if self._most_later is None:
            return True
        later, most = sum(held.values()), self._most_later
        if time.monotonic() > self._shared_until:
            most *= AMPLE
        due, _, _ = self._later[0]
        return later < most and (later == len(held) or due <= self._taken)

    def _has_later(self) -> bool:
        return bool(self._later) or any(any(held.values()) for held in self._held)
