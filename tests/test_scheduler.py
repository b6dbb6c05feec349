"""The scheduler: what is searched when, how threads share it, and what ends them. Searches are made up."""

import threading
import time
from collections.abc import Callable
from itertools import count

import pytest

from nmt_cli.errors import UsageError
from nmt_cli.translation import scheduler
from nmt_cli.translation.scheduler import PATIENCE, Scheduler, Search
from nmt_cli.translation.segments import Feed, Results, Segment


class Work:
    """A scheduler of made-up searches, each of which takes `room` segments at once, when the gate is open, in which
    order they were taken and which are done."""

    def __init__(
        self,
        threads: int = 1,
        room: int = 1,
        done: Callable[[Segment], None] | None = None,
        later: int | None = None,
    ) -> None:
        self.gate, self.taken, self.done = threading.Event(), list[Segment](), list[Segment]()
        self.wrong: Callable[[Segment], bool] = lambda _: False  # a search with one of these raises an error
        self.held = [0] * threads  # by each thread
        self.places = list[list[int]]()  # of those that a thread held, when it took one
        searches = [self.search(number, room) for number in range(threads)]
        self.scheduler = Scheduler(searches, done or self.done.append, later)

    def search(self, number: int, room: int) -> Search:
        def run(feed: Feed) -> Results:
            held: list[Segment] = []
            for segment in feed:
                if segment is not None:
                    self.taken.append(segment)
                    held.append(segment)
                    self.held[number] = len(held)
                    self.places.append([each.ids[0] for each in held])
                if held and (segment is None or len(held) == room):
                    self.gate.wait(60)
                    if any(map(self.wrong, held)):
                        raise ZeroDivisionError
                    yield held
                    held = []
            if any(map(self.wrong, held)):
                raise ZeroDivisionError
            yield held

        return run

    def submit(self, length: int) -> list[Segment]:
        """Submit a text of so many segments."""
        text = [Segment([place]) for place in range(length)]
        self.scheduler.submit(enumerate(text))
        return text

    def wait_for(self, what: Callable[[], bool]) -> None:
        with self.scheduler.changed:
            while not what():
                self.scheduler.changed.wait(0.01)
                self.scheduler.check()

    def finish_all(self) -> None:
        """Open the gate and wait until all is done."""
        self.gate.set()
        self.wait_for(lambda: not self.scheduler.unfinished)

    def finish(self) -> None:
        self.finish_all()
        self.scheduler.close()


def running() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("search ")}


def test_a_short_text_does_not_wait_for_a_long_one() -> None:
    """It is next after those that came before it, whatever is left of the long one; nothing is lost or done twice."""
    work = Work()
    long, short, other = work.submit(500), work.submit(1), work.submit(1)
    work.finish()
    assert work.taken == [long[0], *short, *other, *long[1:]]
    assert work.done == work.taken


@pytest.mark.parametrize(("room", "later"), [(1, None), (2, 1)])
def test_a_long_text_does_not_wait_for_the_end_of_many_short_ones(room: int, later: int | None) -> None:
    """While a short text is there at any time, the long one's segments come one after PATIENCE others."""

    def submit_one(_: Segment) -> None:
        if next(numbers) < 5 * PATIENCE:
            work.submit(1)

    numbers, work = count(), Work(room=room, done=submit_one, later=later)
    long = work.submit(4)
    work.submit(1)
    work.submit(1)
    work.finish()
    places = [work.taken.index(segment) for segment in long]
    assert places[0] == 0
    assert all(0 <= places[i] - i * PATIENCE < 5 for i in range(4)), places


def test_a_long_text_leaves_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread holds so many segments that do not come first and no more, none of them beside one that does; none is
    lost."""
    monkeypatch.setattr(scheduler, "SHARED", 1e9)
    work = Work(threads=2, room=100, later=3)
    long, other = work.submit(30), work.submit(30)
    work.wait_for(lambda: work.scheduler.searching >= 2)
    short = [segment for _ in range(20) for segment in work.submit(1)]
    work.finish()
    assert set(work.done) == {*long, *other, *short}
    assert len(work.done) == 80
    assert [0, 0] in work.places
    assert not [places for places in work.places if places[-1] and 0 in places]
    assert max(map(len, filter(all, work.places))) == 3
    assert {segment for segment in work.done if not segment.patient} == {long[0], other[0], *short}


def test_a_long_text_has_more_room_while_no_other_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SHARED", 0.05)
    work = Work(room=100, later=2)
    work.submit(60)
    work.finish_all()
    assert max(map(len, work.places)) == 2 * scheduler.AMPLE
    work.gate.clear()
    long, short = work.submit(60), work.submit(1)
    work.wait_for(lambda: work.scheduler.searching >= 1)
    work.places.clear()
    time.sleep(0.1)
    work.finish()
    assert set(work.done) >= {*long, *short}
    assert max(map(len, work.places)) == 2 * scheduler.AMPLE


def test_threads_share_what_there_is() -> None:
    """No thread takes more than its part, though each has room for all."""
    work = Work(threads=4, room=100)
    work.submit(40)
    work.wait_for(lambda: len(work.taken) == 40)
    assert work.held == [10] * 4
    work.finish()
    assert len(set(work.done)) == 40


def test_what_nobody_wants_any_more_is_not_searched() -> None:
    work = Work()
    first, text, last = work.submit(1), work.submit(100), work.submit(1)
    for segment in text:
        segment.cancelled = True
    work.finish()
    assert work.taken == [*first, *last]
    assert set(work.done) == {*first, *text, *last}, "yet it is told that they are not in the queue any more"


def test_whoever_waits_is_told_of_what_needs_no_search() -> None:
    """Nothing else may happen after it, and a wait has no limit."""
    work = Work()
    with work.scheduler.changed:  # so that nothing is taken before this waits
        for segment in work.submit(3):
            segment.cancelled = True
        while work.scheduler.unfinished:
            assert work.scheduler.changed.wait(10)
    work.scheduler.close()


def test_after_close_threads_have_ended_and_nothing_more_is_taken() -> None:
    before, work = running(), Work(threads=3)
    work.submit(50)
    work.wait_for(lambda: len(work.taken) == 3)
    assert len(running() - before) == 3
    work.gate.set()
    work.scheduler.close()
    work.scheduler.close()
    assert running() == before
    assert work.scheduler.waiting == 0
    with pytest.raises(UsageError, match="closed"):
        work.submit(1)


def test_a_thread_of_the_search_may_close() -> None:
    """As the function does that is told of a result: it cannot wait for threads that may wait for it."""
    before, work = running(), Work(threads=2, done=lambda _: work.scheduler.close())
    work.submit(2)
    work.wait_for(lambda: len(work.taken) == 2)
    threads = running() - before
    assert len(threads) == 2
    work.gate.set()
    for thread in threads:
        thread.join(60)
    assert not running() & threads


def test_an_error_is_that_of_the_segment_which_has_it_again_alone() -> None:
    """Of those that were searched beside it, each has its result; the thread goes on."""
    work = Work(room=10)
    work.wrong = lambda segment: segment.ids == [3]
    text = work.submit(10)
    work.finish_all()
    errors = [type(segment.error) for segment in text]
    assert errors == [type(None)] * 3 + [ZeroDivisionError] + [type(None)] * 6
    assert set(work.done) == set(text)
    assert len(work.done) == 10
    later = work.submit(2)
    work.finish()
    assert [segment.error for segment in later] == [None, None]


def test_a_search_that_fails_always_fails_every_segment_and_ends_no_thread() -> None:
    before, work = running(), Work(threads=2, room=5)
    work.wrong = lambda _: True
    text = work.submit(20)
    text[7].cancelled = True
    work.finish_all()
    assert set(work.done) == set(text)
    assert {type(segment.error) for segment in text if segment is not text[7]} == {ZeroDivisionError}
    assert len(running() - before) == 2
    work.wrong = lambda _: False
    last = work.submit(3)
    work.finish()
    assert all(segment in work.done and not segment.error for segment in last)
    assert running() == before


def test_close_tells_of_everything_that_has_no_result() -> None:
    work = Work(threads=2, room=3)
    text = work.submit(50)
    work.wait_for(lambda: len(work.taken) == 6)
    work.gate.set()
    work.scheduler.close()
    assert set(work.done) == set(text)
    assert len(work.done) == 50
    assert all(isinstance(segment.error, UsageError) for segment in text if segment not in work.taken)
