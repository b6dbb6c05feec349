"""One Translator and many threads: equal translations, errors, cancellation and `close`, with the engine on a CPU."""

import contextlib
import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import pytest
from gate import Gate
from tiny_model import WORDS

from nmt_cli import Translator
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.system.errors import DivergedError, UsageError
from nmt_cli.translation import assembler, backends, engine_backend
from nmt_cli.translation import lines as lines_module
from nmt_cli.translation.engine_backend import EngineSearch
from nmt_cli.translation.options import Sampling, SearchOptions
from nmt_cli.translation.pending import Pending
from nmt_cli.translation.queue import Backend, SegmentQueue
from nmt_cli.translation.segments import Segment

LONG = "der Hund geht. " * 200


def lines_of(number: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [
        " ".join(draw.choices(WORDS, k=draw.randint(1, 20))) + draw.choice(["", ".", ", rot"]) for _ in range(number)
    ]


def searching() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("search ")}


@contextlib.contextmanager
def load(threads: int) -> Iterator[None]:
    """Keep the cores busy in bursts while the block lasts."""
    over, draw = threading.Event(), random.Random(1)

    def work() -> None:
        while not over.is_set():
            sum(range(draw.randrange(50_000)))
            over.wait(draw.random() / 100)

    busy = [threading.Thread(target=work) for _ in range(threads)]
    for thread in busy:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in busy:
            thread.join()


def test_the_same_command_gives_the_same_translations(model: Path) -> None:
    """Two threads translate 150 lines in 8 bits, four times under load and beside other texts."""
    lines = [*lines_of(149), LONG[:300]]
    with Translator(model, precision="int8", workers=2) as two, load(3):
        expected = [each.hypotheses for each in two.translate(lines, n_best=2)]
        for i in range(4):
            other = [two.submit(line) for line in lines_of(i * 20, seed=i)]
            assert [each.hypotheses for each in two.translate(lines, n_best=2)] == expected
            assert all(pending.result().text is not None for pending in other)
    with Translator(model, precision="int8", workers=1) as one:
        assert [each.hypotheses for each in one.translate(lines, n_best=2)] == expected


def test_any_thread_may_translate_with_options_of_its_own(model: Path) -> None:
    """Twelve threads at once get the same translations as each gets alone, in order."""
    ways: list[dict[str, Any]] = [
        {"beam": 1},
        {"beam": 5, "n_best": 3},
        {"alpha": 1.5, "alignments": True},
        {"extra_length": 2, "split": False},
        {"n_best": 2, "sampling": Sampling(0.9, 8, seed=4)},
        {},
    ]
    tasks = [(lines_of(25, seed=i), ways[i % len(ways)]) for i in range(12)]
    expected = []
    for lines, way in tasks:
        with Translator(model, precision="fp32", workers=1) as alone:
            expected.append([each.hypotheses for each in alone.translate(lines, **way)])
    ready = threading.Barrier(len(tasks))
    with Translator(model, precision="fp32", workers=3) as shared, ThreadPoolExecutor(len(tasks)) as pool:

        def together(task: tuple[list[str], dict[str, Any]]) -> list[Any]:
            ready.wait(60)
            return [each.hypotheses for each in shared.translate(task[0], **task[1])]

        def one_by_one(task: tuple[list[str], dict[str, Any]]) -> list[Any]:
            ready.wait(60)
            pending = [shared.submit(line, SearchOptions(**task[1])) for line in task[0]]
            return [each.result().hypotheses for each in pending]

        assert list(pool.map(together, tasks)) == expected
        found = list(pool.map(one_by_one, tasks))
    for (_, way), ours, alone in zip(tasks, found, expected, strict=True):
        if "sampling" in way:  # samples depend on the line's number, here always 1
            assert ours[0] == alone[0]
        else:
            assert ours == alone


def test_done_is_called_with_each_finished_text(model: Path) -> None:
    told, all_told = list[Pending](), threading.Event()

    def tell(pending: Pending) -> None:
        assert pending.finished
        told.append(pending)
        if len(told) == 30:
            all_told.set()

    with Translator(model, workers=2) as translator:
        pending = [translator.submit(line, done=tell) for line in [*lines_of(28), "", LONG]]
        assert all_told.wait(60)
        assert set(told) == set(pending)
        assert all(each.result(0).text is not None for each in pending)
        begun = translator.submit("der Hund", prefix="rot und").result()
        assert begun.text.startswith("rot und")


def test_a_line_is_returned_after_its_segments_are_joined(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, join = lines_of(4), assembler.join
    with Translator(model, workers=1) as translator:
        expected = [each.text for each in translator.translate(lines)]

        def join_late(*arguments: Any) -> Any:
            time.sleep(0.05)
            return join(*arguments)

        monkeypatch.setattr(assembler, "join", join_late)
        assert [each.text for each in translator.translate(lines)] == expected


@pytest.mark.parametrize("number", [0, 1001])
def test_n_best_is_limited(model: Path, number: int) -> None:
    with Translator(model) as translator:
        for options in (SearchOptions(n_best=number), SearchOptions(n_best=number, sampling=Sampling())):
            with pytest.raises(UsageError, match=f"n_best must be from 1 to 1,000, not {number:,}"):
                translator.submit("rot", options)


def test_a_short_text_is_finished_before_an_earlier_long_one(model: Path) -> None:
    told: list[str] = []
    with Translator(model, workers=1) as translator:
        long = translator.submit(LONG * 5, done=lambda _: told.append("long"))
        short = translator.submit("rot", done=lambda _: told.append("short"))
        assert len(long.result().segments) > 400
        assert short.finished
    assert told == ["short", "long"]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def test_a_result_may_be_awaited_with_a_timeout(model: Path, gate: Gate) -> None:
    with Translator(model, workers=1) as translator:
        pending = translator.submit("der Hund")
        with pytest.raises(TimeoutError):
            pending.result(0.01)
        gate.opened.set()
        assert pending.result(60).text is not None
        expected = pending.result(0)
    assert pending.result(0) == expected, "also after the Translator is closed"


def test_the_load_counts_waiting_and_searched_segments(model: Path, gate: Gate) -> None:
    with Translator(model, workers=1) as translator:
        assert translator.load == (0, 0)
        pending = [translator.submit("der Hund")]
        while not gate.entered:
            time.sleep(0.001)
        pending += [translator.submit("rot") for _ in range(3)]
        load = translator.load
        gate.opened.set()
        assert load == (3, 1)
        assert all(each.result(60).text is not None for each in pending)


def test_segments_are_queued_by_their_positions_in_the_larger_text(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Halves of a failed segment inherit its position and its start."""
    with Translator(model, workers=1, background_limit=3) as translator:
        assert translator.queue.background_limit == 3
        translator.segmenter.seen_tokens = 6
        text = "der Hund geht. die Katze ist rot. das Haus."
        assert [segment.position for segment in translator.submit(text, position=2).result().segments] == [2, 3, 4]
        assert [segment.position for segment in next(translator.translate([text])).segments] == [0, 1, 2]
        monkeypatch.setattr(assembler, "MAX_HALVINGS", 1)
        monkeypatch.setattr(assembler, "looping", lambda ids: ids[-1] != EOS)  # all fail once
        monkeypatch.setattr(assembler.Assembler, "_belong_together", lambda *_: False)  # keep the halves apart
        halves = translator.submit(text).result().segments
        assert [(segment.position, segment.depth) for segment in halves] == [(0, 1), (0, 1), (1, 1), (1, 1), (2, 0)]
        starts = [segment.started for segment in halves]
        assert starts[0] == starts[1] < starts[2] == starts[3]


def test_an_error_while_joining_belongs_to_its_text(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first error is raised. Other texts have their translations."""
    join = assembler.join

    def failing(tokenizer: Any, parts: Any, options: Any) -> Any:
        if options.alpha == 1:
            raise KeyError("alpha")
        return join(tokenizer, parts, options)

    monkeypatch.setattr(assembler, "join", failing)
    with Translator(model, workers=1) as translator:
        wrong, right = (translator.submit("der Hund", SearchOptions(alpha=alpha)) for alpha in (1, 2))
        with pytest.raises(KeyError, match="alpha"):
            wrong.result(60)
        assert right.result(60).text is not None
        wrong.fail(ValueError())
        with pytest.raises(KeyError, match="alpha"):
            wrong.translation()


def test_the_backend_is_closed_with_its_translator(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, queues = list[bool](), list[SegmentQueue]()
    backend = Backend([lambda _: None], "a test's", close=lambda: closed.append(queues[-1].closed))
    monkeypatch.setattr(backends, "choose", lambda *_: backend)
    with Translator(model) as translator:
        queues.append(translator.queue)
        assert not closed
    translator.close()
    assert closed == [True], "it closes after its queue, whose searches may still use it"
    translator = Translator(model)
    queues.append(translator.queue)
    del translator
    gc.collect()
    assert closed == [True, True]


def test_a_cancelled_text_is_not_searched(model: Path, gate: Gate) -> None:
    with Translator(model, workers=1) as translator:
        first = translator.submit("der Hund")
        long, last = translator.submit(LONG * 6), translator.submit("rot")
        long.cancel()
        with pytest.raises(UsageError, match="cancelled"):
            long.result()
        gate.opened.set()
        assert first.result().text is not None
        assert last.result().text is not None
        translator.queue.wait_for(lambda: not translator.queue.unfinished, 60)
        assert len(gate.entered) < len(long.drafts[0]) / 2
        results = translator.translate(lines_of(3000))
        next(results)
        before = len(gate.entered)
        results.close()  # before the call has returned all its translations
        translator.queue.wait_for(lambda: not translator.queue.unfinished, 60)
        assert len(gate.entered) - before < 1000


def test_close_raises_one_error_in_all_waiting_calls(model: Path, gate: Gate) -> None:
    """Later calls raise it, too."""
    before, errors, silent = searching(), list[Exception](), threading.Event()
    translator = Translator(model, workers=2)
    assert searching() == before, "the first text starts the threads"

    def wait(work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except UsageError as error:
                errors.append(error)

        (thread := threading.Thread(target=run)).start()
        return thread

    pending = translator.submit("der Hund")
    waiting = [
        wait(pending.result),
        wait(lambda: list(translator.translate(lines_of(50)))),
        wait(lambda: list(translator.translate_chunks([[]] for _ in range(1) if silent.wait(60)))),
        wait(lambda: list(translator.score([("der Hund", "rot")]))),
    ]
    while translator.queue.unfinished < 52:
        threading.Event().wait(0.01)
    assert len(searching() - before) == 2
    gate.opened.set()
    translator.close()
    translator.close()
    assert searching() == before
    for thread in waiting:
        thread.join(60)
    silent.set()
    uses: list[Callable[[], object]] = [
        lambda: translator.translate(["rot"]),
        lambda: translator.submit("rot"),
        lambda: translator.submit(""),
        lambda: list(translator.score([("rot", "rot")])),
    ]
    for use in uses:
        with pytest.raises(UsageError, match="closed"):
            use()
    assert 2 <= len(errors) <= 4, "some may have been translated before"
    assert all("closed" in str(error) for error in errors)


def test_an_error_of_all_searches_reaches_all_callers_and_the_next_text_is_translated(model: Path, gate: Gate) -> None:
    seen = list[Exception]()
    translator = Translator(model, workers=2)

    def translate(i: int) -> None:
        with pytest.raises(DivergedError, match="not finite") as caught:
            list(translator.translate(lines_of(20, i)) if i % 2 else [translator.submit("rot").result()])
        seen.append(caught.value)

    callers = [threading.Thread(target=translate, args=[i]) for i in range(6)]
    for thread in callers:
        thread.start()
    while translator.queue.unfinished < 63:
        threading.Event().wait(0.01)
    gate.error = DivergedError("scores are not finite")
    gate.opened.set()
    for thread in callers:
        thread.join(60)
    assert len(seen) == 6
    gate.error = None
    with translator:
        assert translator.submit("rot").result().text is not None


def test_the_rest_of_a_failed_text_is_not_searched(model: Path, gate: Gate) -> None:
    gate.error = DivergedError("scores are not finite")
    gate.opened.set()
    with Translator(model, workers=1) as translator:
        pending = translator.submit(LONG * 5)
        with pytest.raises(DivergedError):
            pending.result()
        assert len(gate.entered) < len(pending.drafts[0]) / 2


def test_a_text_that_fails_does_not_harm_others(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts searched beside it have the same translations as alone, and `done` is called once for each."""
    texts = lines_of(30, seed=3)
    with Translator(model, precision="fp32", workers=1) as alone:
        expected = [each.hypotheses for each in alone.translate(texts)]
        poison = alone.tokenizer.encode(["Katze Katze Katze"])[0]

    class Poisoned(EngineSearch):
        def run(self, steps: int) -> list[Segment]:
            if any(segment.ids[:-1] == poison for segment in self.segments.values()):
                raise DivergedError("not finite")
            return super().run(steps)

    monkeypatch.setattr(engine_backend, "EngineSearch", Poisoned)
    told = list[Pending]()
    with Translator(model, precision="fp32", workers=2) as translator:
        pending = [translator.submit(line, done=told.append) for line in [*texts[:9], "Katze Katze Katze", *texts[9:]]]
        with pytest.raises(DivergedError):
            pending.pop(9).result()
        assert [each.result().hypotheses for each in pending] == expected
        assert list(translator.translate(["", "rot"]))
    assert len(told) == len(set(told)) == 31


def test_done_is_called_once_whatever_happens(model: Path, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    """This includes cancelled, empty and closed texts, although `done` raises an error each time."""
    told = list[Pending]()

    def tell(pending: Pending) -> None:
        told.append(pending)
        raise ZeroDivisionError

    translator = Translator(model, workers=1)
    given_up = translator.submit(LONG, done=tell)
    empty = translator.submit("", done=tell)
    first = translator.submit("rot", done=tell)
    given_up.cancel()
    gate.opened.set()
    assert first.result().text is not None
    assert empty.result().text == ""
    gate.opened.clear()
    late = [translator.submit(LONG, done=tell) for _ in range(3)]
    closing = threading.Thread(target=translator.close)
    closing.start()
    gate.opened.set()
    closing.join(60)
    assert sorted(map(id, told)) == sorted(map(id, [given_up, empty, first, *late]))
    assert len(caplog.records) == 6
    for pending in late:
        with pytest.raises(UsageError, match="closed"):
            pending.result()


def test_counts_are_right_with_many_threads(model: Path) -> None:
    with Translator(model, workers=2) as translator, ThreadPoolExecutor(8) as pool:
        texts = [line for i in range(8) for line in lines_of(50, seed=i)]
        results = list(pool.map(lambda text: translator.submit(text).result(), texts))
        assert translator.counts["lines"] == 400
        tokens = sum(len(each.ids) for result in results for part in result.segments for each in part.hypotheses)
        assert translator.counts["tokens"] >= tokens


def test_the_threads_of_a_translator_end_once_nothing_refers_to_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds with an unfinished iterator and an unfinished text."""
    monkeypatch.setattr(lines_module, "CHUNK_CHARACTERS", 10_000)
    before = searching()

    def begin() -> weakref.ref[Translator]:
        translator = Translator(model, workers=2)
        assert len(list(islice(translator.translate(f"der Hund {i}" for i in count()), 3))) == 3
        translator.submit(LONG)
        assert len(searching() - before) == 2
        return weakref.ref(translator)

    forgotten = begin()
    for _ in range(600):
        gc.collect()
        if forgotten() is None and searching() == before:
            break
        threading.Event().wait(0.05)
    assert forgotten() is None
    assert searching() == before


def test_a_line_that_is_not_text_is_a_type_error(model: Path) -> None:
    """Other calls continue."""
    with Translator(model, workers=1) as translator:
        pending = translator.submit("der Hund")
        for wrong in ([None], [1], [b"rot"], ["rot", ["blau"]]):
            with pytest.raises(TypeError, match="must be text"):
                list(translator.translate(wrong))
            with pytest.raises(TypeError, match="must be text"):
                translator.submit(wrong[-1])
            with pytest.raises(TypeError, match="must be text"):
                list(translator.translate(["rot"] * 2, prefixes=["", wrong[-1]]))
        for one_text in ({"lines": "rot"}, {"lines": ["rot"], "prefixes": "rot"}, {"lines": b"rot"}, {"lines": None}):
            with pytest.raises(TypeError):
                list(translator.translate(**one_text))
        assert pending.result().text == next(translator.translate(["der Hund"])).text


@pytest.mark.parametrize("line", ["12", "rot"])
def test_lines_are_read_no_faster_than_translations_are_taken(echo: Translator, line: str) -> None:
    """This holds with and without a search. Otherwise, with a slow reader, a long file would fill the memory."""
    all_read = threading.Event()

    def chunks() -> Iterator[list[str]]:
        yield from ([line] for _ in range(1000))
        all_read.set()

    translations = chain.from_iterable(echo.translate_chunks(chunks()))
    next(translations)
    assert not all_read.wait(0.2)
    assert [one.text for one in translations] == [line] * 999
    assert all_read.is_set()


def test_no_line_is_cut_after_the_end_of_a_call(echo: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python aborts the process, at Ctrl-C for example, if it ends while another thread is in SentencePiece."""
    cut, inside, several = echo.segmenter.cut, list[int](), threading.Event()
    calls = count()

    def slow_cut(*arguments: Any, **options: Any) -> list[Segment]:
        inside.append(number := next(calls))
        if number > 3:
            several.set()
        time.sleep(0.02)
        segments = cut(*arguments, **options)
        inside.remove(number)
        return segments

    monkeypatch.setattr(echo.segmenter, "cut", slow_cut)
    translations = echo.translate_chunks([["rot"], ["rot"] * 100])
    next(translations)
    assert several.wait(60)
    translations.close()
    assert not inside
    first = next(calls)
    time.sleep(0.1)
    assert next(calls) == first + 1
