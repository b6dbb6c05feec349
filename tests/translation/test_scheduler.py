"""The scheduler: what is searched when, how threads share it, and what ends them. Searches are made up."""

import threading
import time
import weakref
from collections.abc import Callable
from itertools import count

import pytest

from nmt_cli.system.errors import UsageError
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
        self.error: type[BaseException] = ZeroDivisionError
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
                        raise self.error
                    yield held
                    held = []
            if any(map(self.wrong, held)):
                raise self.error
            yield held

        return run

    def submit(self, length: int) -> list[Segment]:
        """Submit a text of so many segments."""
        text = [Segment([place]) for place in range(length)]
        self.scheduler.submit(enumerate(text))
        return text

    def wait_for(self, what: Callable[[], bool]) -> None:
        with self.scheduler.changed:
            for _ in range(3000):
                if what():
                    return
                self.scheduler.changed.wait(0.01)
                self.scheduler.check()
        pytest.fail("it does not come")

    def wait_for_end(self) -> None:
        while not self.scheduler.ended:
            time.sleep(0.001)

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
    work, before = Work(), time.monotonic()
    long, short, other = work.submit(500), work.submit(1), work.submit(1)
    work.finish()
    assert work.taken == [long[0], *short, *other, *long[1:]]
    assert work.done == work.taken
    assert not any(segment.patient for segment in work.done), "none lets others go on, but with `later`"
    started = [before, *(segment.started for segment in work.taken), time.monotonic()]
    assert started == sorted(started)


@pytest.mark.parametrize(("room", "later", "expected"), [(1, None, [0, 66, 131, 196]), (2, 1, [0, 65, 130, 195])])
def test_a_long_text_does_not_wait_for_the_end_of_many_short_ones(
    room: int, later: int | None, expected: list[int]
) -> None:
    """While a short text is there at any time, the long one's segments come one after PATIENCE others, and after those
    that waited before them."""
    assert PATIENCE == 64

    def submit_one(_: Segment) -> None:
        if next(numbers) < 5 * PATIENCE:
            work.submit(1)

    numbers, work = count(), Work(room=room, done=submit_one, later=later)
    with work.scheduler.changed:  # so that nothing is taken before all are there
        long = work.submit(4)
        work.submit(1)
        work.submit(1)
    work.finish()
    assert [work.taken.index(segment) for segment in long] == expected


def test_a_long_text_leaves_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread holds so many segments that do not come first and no more, none of them beside one that does; none is
    lost."""
    monkeypatch.setattr(scheduler, "SHARED", 1e9)
    work = Work(threads=2, room=100, later=3)
    with work.scheduler.changed:  # before the second one comes the first may have more
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


def test_what_is_searched_of_a_long_text_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing of it waits any more."""
    monkeypatch.setattr(scheduler, "SHARED", 1e9)
    work = Work(room=100, later=2, done=lambda segment: segment.ids == [0] and work.gate.clear())
    work.gate.set()
    work.submit(10)
    work.wait_for(lambda: work.scheduler.searching == 9)
    assert work.scheduler.waiting == 0
    work.submit(6)
    work.places.clear()
    work.gate.set()
    work.wait_for(lambda: len(work.places) >= 3)  # the first one closes the gate behind it
    work.finish()
    assert work.places == [[0], [1], [1, 2], [3], [3, 4], [5]]


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


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_any_error_is_told_and_frees_what_the_search_held(error: type[BaseException]) -> None:
    """Before the segment is searched again, which may need that memory; an error that is kept holds none either."""
    memory, alive = list[weakref.ref[object]](), list[list[bool]]()

    def search(feed: Feed) -> Results:
        alive.append([each() is not None for each in memory])
        held = threading.Event()
        memory.append(weakref.ref(held))
        for _ in feed:
            raise error
        yield []

    done = list[Segment]()
    work = Scheduler([search], done.append)
    work.submit([(0, segment := Segment([5]))])
    with work.changed:
        assert work.changed.wait_for(lambda: done, 20)
    work.close()
    assert done == [segment]
    assert type(segment.error) is error
    assert alive == [[], [False]]
    assert [each() for each in memory] == [None, None]


def test_what_is_given_up_while_it_is_searched_is_not_searched_again() -> None:
    """Nor is anything after `close`, which ends a search after the step that it is in."""
    work = Work(room=2)
    text = work.submit(2)
    work.wait_for(lambda: len(work.taken) == 2)
    text[0].cancelled, work.wrong = True, lambda _: True
    work.finish_all()
    assert [type(segment.error) for segment in text] == [type(None), ZeroDivisionError]
    assert work.taken == [*text, text[1]]
    work.gate.clear()
    work.taken.clear()
    last = work.submit(2)
    work.wait_for(lambda: len(work.taken) == 2)
    (closing := threading.Thread(target=work.scheduler.close)).start()
    work.wait_for_end()
    work.gate.set()
    closing.join(60)
    assert work.taken == last
    assert [type(segment.error) for segment in last] == [UsageError, UsageError]


def test_close_waits_for_no_end_of_a_search() -> None:
    begun, steps = threading.Event(), list[int]()

    def search(feed: Feed) -> Results:
        segment = next(feed)
        assert segment
        while len(steps) < 9:
            begun.set()
            steps.extend([1] * work.ended)
            yield []
        yield [segment]

    done = list[Segment]()
    work = Scheduler([search], done.append)
    work.submit([(0, Segment([5]))])
    assert begun.wait(60)
    work.close()
    assert len(steps) <= 1
    assert isinstance(done[0].error, UsageError)


def test_close_tells_of_everything_that_has_no_result() -> None:
    work = Work(threads=2, room=3)
    text = work.submit(50)
    work.wait_for(lambda: len(work.taken) == 6)
    work.gate.set()
    work.scheduler.close()
    assert set(work.done) == set(text)
    assert len(work.done) == 50
    assert all(isinstance(segment.error, UsageError) for segment in text if segment not in work.taken)
