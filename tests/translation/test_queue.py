"""The queue of segments: their order, how workers share them, errors, and `close`. All searches are fakes."""

import math
import threading
import time
import weakref
from collections.abc import Callable
from itertools import count

import pytest
from searching import options

from nmt_cli.system.errors import UsageError
from nmt_cli.translation import queue as module
from nmt_cli.translation.constraints import Constraints
from nmt_cli.translation.queue import BACKGROUND_INTERVAL, Search, SegmentQueue, WorkerQueue
from nmt_cli.translation.segments import Segment

ONE = options(1)


class Work:
    """A queue with fake searches. Each finishes `room` segments at once when the gate is open."""

    def __init__(
        self,
        threads: int = 1,
        room: int = 1,
        done: Callable[[Segment], None] | None = None,
        background_limit: int | None = None,
    ) -> None:
        self.gate, self.taken, self.done = threading.Event(), list[Segment](), list[Segment]()
        self.fails: Callable[[Segment], bool] = lambda _: False  # a search that holds such a segment raises `error`
        self.error: type[BaseException] = ZeroDivisionError
        self.held = [0] * threads  # by each worker, when it last took a segment
        self.positions = list[list[int]]()  # of the segments that a worker held, whenever it took one
        searches = [self.search(number, room) for number in range(threads)]
        self.queue = SegmentQueue(searches, done or self.done.append, background_limit)

    def search(self, number: int, room: int) -> Search:
        def run(queue: WorkerQueue) -> None:
            held = list[Segment]()
            while True:
                taken = queue.take(math.inf, math.inf, 1)
                if not (held or taken):
                    return
                if taken:
                    self.taken += taken
                    held += taken
                    self.held[number] = len(held)
                    self.positions.append([each.position for each in held])
                if not taken or len(held) == room:
                    self.gate.wait(60)
                    if any(map(self.fails, held)):
                        raise self.error
                    queue.finish(held)
                    held.clear()

        return run

    def submit(self, length: int) -> list[Segment]:
        """Submit a text of `length` segments."""
        text = [Segment([5], ONE, position=position) for position in range(length)]
        self.queue.submit(text)
        return text

    def wait_for(self, condition: Callable[[], bool]) -> None:
        for _ in range(3000):  # the condition may change without a notification
            if self.queue.wait_for(condition, 0.01):
                return
        pytest.fail("the condition does not hold in time")

    def finish_all(self) -> None:
        """Open the gate and wait until all segments are done."""
        self.gate.set()
        self.wait_for(lambda: not self.queue.unfinished)

    def finish(self) -> None:
        self.finish_all()
        self.queue.close()


def running() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("search ")}


def test_a_short_text_does_not_wait_for_a_long_one() -> None:
    """It is searched right after the first segments of earlier texts. No segment is lost or searched twice."""
    work, before = Work(), time.monotonic()
    long, short, other = work.submit(500), work.submit(1), work.submit(1)
    work.finish()
    assert work.taken == [long[0], *short, *other, *long[1:]]
    assert work.done == work.taken
    assert not any(segment.background for segment in work.done), "without a limit, no segment lets others run first"
    started = [before, *(segment.started for segment in work.taken), time.monotonic()]
    assert started == sorted(started)


@pytest.mark.parametrize(("room", "limit", "expected"), [(1, None, [0, 66, 131, 196]), (2, 1, [0, 65, 130, 195])])
def test_a_long_text_does_not_wait_for_the_end_of_many_short_ones(
    room: int, limit: int | None, expected: list[int]
) -> None:
    """While short texts keep arriving, one of its segments is taken after BACKGROUND_INTERVAL others."""
    assert BACKGROUND_INTERVAL == 64

    def submit_one(_: Segment) -> None:
        if next(numbers) < 5 * BACKGROUND_INTERVAL:
            work.submit(1)

    numbers, work = count(), Work(room=room, done=submit_one, background_limit=limit)
    with work.queue.changed:  # so that nothing is taken before all texts are submitted
        long = work.submit(4)
        work.submit(1)
        work.submit(1)
    work.finish()
    assert [work.taken.index(segment) for segment in long] == expected


def test_a_long_text_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker holds at most `background_limit` background segments, and none beside the first segment of a text.

    No segment is lost.
    """
    monkeypatch.setattr(module, "BUSY_SECONDS", 1e9)
    work = Work(threads=2, room=100, background_limit=3)
    with work.queue.changed:  # both at once, because the first text alone may have more room
        long, other = work.submit(30), work.submit(30)
    work.wait_for(lambda: work.queue.searching >= 2)
    short = [segment for _ in range(20) for segment in work.submit(1)]
    work.finish()
    assert set(work.done) == {*long, *other, *short}
    assert len(work.done) == 80
    assert [0, 0] in work.positions
    assert not [held for held in work.positions if held[-1] and 0 in held]
    assert max(map(len, filter(all, work.positions))) == 3
    assert {segment for segment in work.done if not segment.background} == {long[0], other[0], *short}


def test_a_long_text_has_more_room_while_no_other_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_SECONDS", 0.05)
    work = Work(room=100, background_limit=2)
    work.submit(60)
    work.finish_all()
    assert max(map(len, work.positions)) == 2 * module.IDLE_FACTOR
    work.gate.clear()
    long, short = work.submit(60), work.submit(1)
    work.wait_for(lambda: work.queue.searching >= 1)
    work.positions.clear()
    time.sleep(0.1)
    work.finish()
    assert set(work.done) >= {*long, *short}
    assert max(map(len, work.positions)) == 2 * module.IDLE_FACTOR


def test_the_last_segments_of_a_long_text_make_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """This also holds once none of them waits any more."""
    monkeypatch.setattr(module, "BUSY_SECONDS", 1e9)
    work = Work(room=100, background_limit=2, done=lambda segment: segment.position == 0 and work.gate.clear())
    work.gate.set()
    work.submit(10)
    work.wait_for(lambda: work.queue.searching == 9)
    assert work.queue.waiting == 0
    work.submit(6)
    work.positions.clear()
    work.gate.set()
    work.wait_for(lambda: len(work.positions) >= 3)  # the first segment closes the gate when it is done
    work.finish()
    assert work.positions == [[0], [1], [1, 2], [3], [3, 4], [5]]


def test_workers_share_the_segments() -> None:
    """No worker takes more than its share, though each has room for all."""
    work = Work(threads=4, room=100)
    work.submit(40)
    work.wait_for(lambda: len(work.taken) == 40)
    assert work.held == [10] * 4
    work.finish()
    assert len(set(work.done)) == 40


def test_cancelled_segments_are_done_without_a_search() -> None:
    work = Work()
    first, text, last = work.submit(1), work.submit(100), work.submit(1)
    for segment in text:
        segment.cancelled = True
    work.finish()
    assert work.taken == [*first, *last]
    assert set(work.done) == {*first, *text, *last}


def test_a_waiting_thread_is_notified_of_cancelled_segments() -> None:
    """Later, nothing else may wake the thread, and its wait may have no time limit."""
    work = Work()
    with work.queue.changed:  # so that nothing is taken before this thread waits
        for segment in work.submit(3):
            segment.cancelled = True
        while work.queue.unfinished:
            assert work.queue.changed.wait(10)
    work.queue.close()


def test_close_ends_the_threads() -> None:
    before, work = running(), Work(threads=3)
    work.submit(50)
    work.wait_for(lambda: len(work.taken) == 3)
    assert len(running() - before) == 3
    work.gate.set()
    work.queue.close()
    work.queue.close()
    assert running() == before
    assert work.queue.waiting == 0
    with pytest.raises(UsageError, match="closed"):
        work.submit(1)


def test_a_worker_may_close_its_queue() -> None:
    """A function that is called with a result may do so. It cannot wait for threads that may wait for it."""
    before, work = running(), Work(threads=2, done=lambda _: work.queue.close())
    work.submit(2)
    work.wait_for(lambda: len(work.taken) == 2)
    threads = running() - before
    assert len(threads) == 2
    work.gate.set()
    for thread in threads:
        thread.join(60)
    assert not running() & threads


def test_only_a_segment_that_fails_again_when_searched_alone_gets_the_error() -> None:
    """Segments searched beside it have their results, and the worker continues."""
    work = Work(room=10)
    work.fails = lambda segment: segment.position == 3
    text = work.submit(10)
    work.finish_all()
    errors = [type(segment.error) for segment in text]
    assert errors == [type(None)] * 3 + [ZeroDivisionError] + [type(None)] * 6
    assert set(work.done) == set(text)
    assert len(work.done) == 10
    later = work.submit(2)
    work.finish()
    assert [segment.error for segment in later] == [None, None]


def test_a_search_that_always_fails_ends_no_thread() -> None:
    before, work = running(), Work(threads=2, room=5)
    work.fails = lambda _: True
    text = work.submit(20)
    text[7].cancelled = True
    work.finish_all()
    assert set(work.done) == set(text)
    assert {type(segment.error) for segment in text if segment is not text[7]} == {ZeroDivisionError}
    assert len(running() - before) == 2
    work.fails = lambda _: False
    last = work.submit(3)
    work.finish()
    assert all(segment in work.done and not segment.error for segment in last)
    assert running() == before


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_an_error_frees_the_memory_of_its_search(error: type[BaseException]) -> None:
    """The memory is free before the segment is searched again, which may need it, and while the error is kept."""
    memory, alive = list[weakref.ref[object]](), list[list[bool]]()

    def search(queue: WorkerQueue) -> None:
        alive.append([each() is not None for each in memory])
        held = threading.Event()
        memory.append(weakref.ref(held))
        if queue.take(1, 1, 1):
            raise error

    done = list[Segment]()
    queue = SegmentQueue([search], done.append)
    queue.submit([segment := Segment([5], ONE)])
    assert queue.wait_for(lambda: bool(done), 20)
    queue.close()
    assert done == [segment]
    assert type(segment.error) is error
    assert alive == [[], [False]]
    assert [each() for each in memory] == [None, None]


def test_a_segment_cancelled_during_a_search_is_not_searched_again() -> None:
    """After `close`, which ends a search after its current step, nothing is searched again."""
    work = Work(room=2)
    text = work.submit(2)
    work.wait_for(lambda: len(work.taken) == 2)
    text[0].cancelled, work.fails = True, lambda _: True
    work.finish_all()
    assert [type(segment.error) for segment in text] == [type(None), ZeroDivisionError]
    assert work.taken == [*text, text[1]]
    work.gate.clear()
    work.taken.clear()
    last = work.submit(2)
    work.wait_for(lambda: len(work.taken) == 2)
    (closing := threading.Thread(target=work.queue.close)).start()
    while not work.queue.closed:
        time.sleep(0.001)
    work.gate.set()
    closing.join(60)
    assert work.taken == last
    assert [type(segment.error) for segment in last] == [UsageError, UsageError]


def test_close_does_not_wait_for_the_end_of_a_search() -> None:
    begun, steps = threading.Event(), list[int]()

    def search(worker: WorkerQueue) -> None:
        taken = worker.take(1, 1, 1)
        while len(steps) < 9:
            begun.set()
            steps.extend([1] * queue.closed)
            worker.finish([])
        worker.finish(taken)

    done = list[Segment]()
    queue = SegmentQueue([search], done.append)
    queue.submit([Segment([5], ONE)])
    assert begun.wait(60)
    queue.close()
    assert len(steps) <= 1
    assert isinstance(done[0].error, UsageError)


def test_close_gives_every_unfinished_segment_an_error() -> None:
    work = Work(threads=2, room=3)
    text = work.submit(50)
    work.wait_for(lambda: len(work.taken) == 6)
    work.gate.set()
    work.queue.close()
    assert set(work.done) == set(text)
    assert len(work.done) == 50
    assert all(isinstance(segment.error, UsageError) for segment in text if segment not in work.taken)


def test_a_search_takes_the_segments_that_it_has_room_for() -> None:
    """It takes segments within `rows` and `tokens`, until `batch` tokens are reached.

    A search that holds no segment takes the next one in any case.
    """
    sizes = [(4, 9), (1, 3), (2, 3), (2, 3), (1, 3), (1, 30), (1, 1)]  # beams and tokens
    segments = [Segment([5] * tokens, options(beam)) for beam, tokens in sizes]
    taken = list[list[int]]()

    def search(queue: WorkerQueue) -> None:
        for room in ((3, 5, 9), (3, 5, 1), (4, 9, 99), (1, 2, 99), (9, 99, 99)):
            found = queue.take(*room)
            taken.append([segments.index(segment) for segment in found])
            if room != (3, 5, 1):
                queue.finish(found)
        queue.finish(segments[1:2])
        queue.take(1, 1, 1)

    done = list[Segment]()
    queue = SegmentQueue([search], done.append)
    queue.submit(segments)
    queue.wait_for(lambda: len(done) == len(segments), 60)
    queue.close()
    assert taken == [[0], [1], [2, 3], [], [4, 5, 6]]


def test_a_search_that_needs_equal_options_takes_all_segments_in_turn() -> None:
    """Every segment is searched once, in order, and only beside segments with the same options."""
    chosen = [options(beam) for beam in (1, 2, 2, 1, 3)] * 3
    segments, together = [Segment([5], each) for each in chosen], list[list[Segment]]()

    def search(queue: WorkerQueue) -> None:
        while taken := queue.take(math.inf, math.inf, 99, alike=True):
            together.append([*taken, *queue.take(math.inf, math.inf, 99, alike=True)])
            queue.finish(together[-1])

    done = list[Segment]()
    queue = SegmentQueue([search], done.append)
    queue.submit(segments)
    queue.wait_for(lambda: len(done) == len(segments), 60)
    queue.close()
    assert done == segments
    assert [len(each) for each in together] == [1, 2, 1, 1] * 3
    assert all(len({segment.options for segment in each}) == 1 for each in together)


def test_a_long_text_that_arrives_alone_has_all_the_room_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is kept for others only once another text arrives beside a long one."""
    monkeypatch.setattr(module, "BUSY_SECONDS", 1e9)
    work = Work(room=100, background_limit=2)
    work.submit(60)
    work.finish()
    assert max(map(len, work.positions)) == 2 * module.IDLE_FACTOR


def test_constrained_and_other_segments_are_not_taken_together() -> None:
    """This holds for searches that need segments of one kind, even if the options are equal."""
    terms = Constraints([[[5]]], bytes(9))
    segments = [Segment([5], ONE, constraints=terms if i % 4 > 1 else None) for i in range(12)]
    together, done = list[list[int]](), list[Segment]()

    def search(queue: WorkerQueue) -> None:
        while taken := queue.take(math.inf, math.inf, 99, alike=True):
            together.append([segments.index(segment) for segment in taken])
            queue.finish(taken)

    queue = SegmentQueue([search], done.append)
    queue.submit(segments)
    assert queue.wait_for(lambda: len(done) == 12, 60)
    queue.close()
    assert all(len({number % 4 > 1 for number in each}) == 1 for each in together)
    assert max(map(len, together)) > 1


def test_after_an_error_every_segment_of_a_restarted_search_is_searched_alone() -> None:
    """This includes segments that it had not taken again. The narrowest beam decides how few rows suffice."""
    narrowest, alone = list[int](), list[int]()

    def search(queue: WorkerQueue) -> None:
        if queue.allowance == 7:
            alone.append(segments.index(queue.take(1, 1, 1)[0]))
            return
        queue.take(math.inf, math.inf, 3)
        queue.restart()
        narrowest.append(queue.narrowest_beam)
        queue.take(1, 1, 1)
        narrowest.append(queue.narrowest_beam)
        queue.allowance = 7
        raise ZeroDivisionError

    segments, done = [Segment([5], options(beam)) for beam in (4, 3, 2)], list[Segment]()
    queue = SegmentQueue([search], done.append)
    queue.submit(segments)
    assert queue.wait_for(lambda: len(done) == 3, 60)
    queue.close()
    assert (narrowest, alone) == ([2, 2], [0, 1, 2])


def test_a_search_that_fails_before_it_takes_a_segment_fails_every_segment() -> None:
    def search(_: WorkerQueue) -> None:
        raise ZeroDivisionError

    segments, done = [Segment([5], ONE) for _ in range(3)], list[Segment]()
    queue = SegmentQueue([search], done.append)
    for segment in segments:
        queue.submit([segment])
    assert queue.wait_for(lambda: len(done) == 3, 10)
    queue.close()
    assert [type(segment.error) for segment in segments] == [ZeroDivisionError] * 3


def test_a_background_segment_is_taken_as_soon_as_it_is_due() -> None:
    """Beside the first segment of a text, it is due when exactly 64 others have been taken."""
    found = list[list[int]]()

    def search(queue: WorkerQueue) -> None:
        held = queue.take(9, 9, 1)
        for _ in range(BACKGROUND_INTERVAL - 1):
            queue.finish(queue.take(9, 9, 1))
        found.append([segment.position for segment in queue.take(9, 9, 1)])
        raise ZeroDivisionError if held else KeyError

    done = list[Segment]()
    queue = SegmentQueue([search], done.append, background_limit=5)
    queue.submit(Segment([5], ONE, position=position) for position in [0, 1, *[0] * (BACKGROUND_INTERVAL - 1)])
    assert queue.wait_for(lambda: bool(found), 60)
    queue.close()
    assert found[0] == [1]


@pytest.mark.parametrize(
    ("room", "count"),
    [
        *(((99, 99, 1), 1), ((99, 99, 3), 1), ((99, 99, 4), 2), ((99, 99, 7), 3), ((10, 99, 99), 2)),
        *(((12, 99, 99), 3), ((99, 10, 99), 3), ((99, 12, 99), 4), ((1, 99, 99), 1), ((99, 1, 99), 1)),
    ],
)
def test_rows_tokens_and_the_batch_are_counted(room: tuple[int, int, int], count: int) -> None:
    """A row is a hypothesis, and tokens are source tokens. A batch is complete once it has that many tokens."""
    taken, done = list[int](), list[Segment]()

    def search(queue: WorkerQueue) -> None:
        while found := queue.take(*room):
            taken.append(len(found))
            queue.finish(found)

    queue = SegmentQueue([search], done.append)
    with queue.changed:
        queue.submit(Segment([5] * 3, options(4)) for _ in range(12))
    assert queue.wait_for(lambda: len(done) == 12, 60)
    queue.close()
    assert taken[1:-1] == [count] * len(taken[1:-1])
    assert max(taken) == count
