"""Lines from files and pipes: pairing, sizes, encodings, and answers before the next line arrives."""

import os
import random
import re
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from tiny_model import content, memory_file
from translators import one_at_a_time, run, translator_by

from nmt_cli import Translator
from nmt_cli.corpus.readers import MAX_LINE_BYTES
from nmt_cli.system.console import Progress
from nmt_cli.system.errors import DataError, DivergedError
from nmt_cli.translation import lines as lines_module
from nmt_cli.translation import translator as module
from nmt_cli.translation.lines import count_lines, read_lines
from nmt_cli.translation.queue import WorkerQueue
from nmt_cli.translation.segments import Hypothesis, Segment
from nmt_cli.translation.translate import TranslateOptions, translate_lines

FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


HOSTILE = [
    b"", b" ", b"\r", b"a\r\nb\r", b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"\xe2\x80\xa8", b"\xe2\x80\xa9x",
    b"\x0b\x0c\x1c\x1d\x1e\x85", b"\xc2\x85", b"\xef\xbb\xbfBOM", b"</s>", b"<s> <pad> <unk> <0x0A>", b"x" * 900,
    "\u202e\u2066abc".encode(), ("a" + "\u0301" * 500).encode(), "\u2581\u2047".encode(), b"\x1b[2J\x1b]0;title\x07",
    "\U000e0041\ue000\ufdd0".encode(), b"\x00", b"der Hund " * 60, *(random.Random(1).randbytes(40) for _ in range(40)),
]  # fmt: skip


@pytest.mark.parametrize("final", [b"", b"\n"])
def test_one_line_out_for_every_line_in(translator: Translator, final: bytes) -> None:
    """For any bytes the output has as many line feeds as the input has lines, and no other line breaks."""
    data = b"\n".join(HOSTILE) + b" rot" + final
    out = run(translator, data).decode()
    assert out.count("\n") == data.count(b"\n") + (not final)
    assert out.endswith("\n")
    assert not FORBIDDEN.search(out.replace("\n", ""))


def test_invalid_bytes_are_reported_or_refused(translator: Translator, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(translator, b"rot\n\xff\xfe\xfa\nblau\n\xc0\n").count(b"\n") == 4
    assert "2 lines are not UTF-8 (first: line 2)" in capsys.readouterr().err
    for data, number in ((b"rot\n\xff\n", 2), (b"f\xfcr\n", 1)):
        with pytest.raises(DataError, match=f"line {number} is not UTF-8"):
            run(translator, data, strict=True)


def test_counting_the_lines_of_a_file_does_not_move_its_offset() -> None:
    for data, count in ((b"", 0), (b"a\n", 1), (b"a\n\nb", 3), (b"x\n" * (1 << 20), 1 << 20)):
        descriptor = memory_file(b"before\n" + data)
        os.lseek(descriptor, len(b"before\n"), os.SEEK_SET)
        assert count_lines(descriptor) == count
        assert os.read(descriptor, len(data) + 1) == data
        os.close(descriptor)
    out, into = os.pipe()
    assert count_lines(out) is None
    os.close(out)
    os.close(into)


def test_a_huge_line_is_never_in_memory_as_a_whole() -> None:
    sizes, counts = [1, 50 * MAX_LINE_BYTES, 1, MAX_LINE_BYTES, MAX_LINE_BYTES + 1], Counter[str]()
    lines = read_lines(memory_file(b"\n".join(b"x" * size for size in sizes)), counts)
    tracemalloc.start()
    assert [len(line or "") for line in lines] == [min(size, MAX_LINE_BYTES) for size in sizes]
    assert tracemalloc.get_traced_memory()[1] < 10 * MAX_LINE_BYTES
    tracemalloc.stop()
    assert counts["huge"] == 2
    (cut,) = read_lines(memory_file(b"x" + "\u00e9".encode() * MAX_LINE_BYTES), counts, strict=True)
    assert cut == "x" + "\u00e9" * (MAX_LINE_BYTES // 2 - 1), "cut after a whole character"


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize("data", [b"", b"a\n\nf\xc3\xbcr\xff\xfe \xf0\x9f\x98\x80 \xc3\nb", b"\n\xe2\x82\n\n"])
def test_lines_are_the_same_however_they_arrive(data: bytes, size: int) -> None:
    out, into = os.pipe()
    lines = list[str]()
    reader = threading.Thread(target=lambda: lines.extend(read_lines(out, Counter())))
    reader.start()
    for start in range(0, len(data), size):
        os.write(into, data[start : start + size])
        time.sleep(0.001)
    os.close(into)
    reader.join(60)
    os.close(out)
    expected = data.removesuffix(b"\n").split(b"\n") if data else []
    assert lines == [re.sub("\ufffd+", "\ufffd", x.decode(errors="replace")) for x in expected]


def test_a_line_is_answered_before_the_next_one_is_sent(translator: Translator) -> None:
    """A hundred times, a process writes one line and waits for its translation."""
    (to_us, from_them), (to_them, from_us) = os.pipe(), os.pipe()

    def serve() -> None:
        with Progress("translating", None, "lines") as progress:
            translate_lines(translator, TranslateOptions(), to_us, from_us, progress)
        os.close(from_us)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with os.fdopen(to_them, "rb") as answers:
        for i in range(100):
            os.write(from_them, b"\n" if i % 10 == 3 else b"der Hund %d\n" % i)
            assert answers.readline().endswith(b"\n")
        os.close(from_them)
        assert answers.read() == b""
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("first", ["der Hund", "der Hund geht. die Katze ist rot. das Haus steht."])
def test_lines_are_not_read_far_ahead(model: Path, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """This also holds if the first line has several segments, which do not wait for the lines after it."""
    monkeypatch.setattr(lines_module, "CHUNK_CHARACTERS", 100)
    monkeypatch.setattr(module, "READ_AHEAD", 40)
    read, enough = list[int](), threading.Event()

    def endless() -> Iterator[str]:
        for i in range(5_000):
            read.append(i)
            yield f"rot {i}" if i else first
        enough.set()

    def echoed_slowly(segment: Segment) -> list[int]:
        while slow.queue.waiting < 20 and not enough.wait(0.001):
            pass
        return segment.ids[:-1]

    slow = translator_by(model, one_at_a_time(echoed_slowly))
    monkeypatch.setattr(slow.segmenter, "seen_tokens", 8)
    results = slow.translate(endless())
    assert [next(results).text for _ in range(3)] == [first, "rot 1", "rot 2"]
    assert len(read) <= 300
    enough.set()
    results.close()
    slow.close()
    assert slow.counts["split"] == (first != "der Hund")


def test_lines_that_have_arrived_are_translated_while_others_are_awaited(echo: Translator) -> None:
    """The iterator of lines may itself wait for translations, while the thread that translates sleeps."""
    given, answered = list[str](), threading.Semaphore(0)

    def chunks() -> Iterator[list[str]]:
        for i in range(20):
            yield [f"der Hund {j}" for j in range(3 * i, 3 * i + 3)]
            for _ in range(3):
                assert answered.acquire(timeout=60)
            assert len(given) == 3 * i + 3

    for translation in chain.from_iterable(echo.translate_chunks(chunks())):
        given.append(translation.text)
        answered.release()
    assert given == [f"der Hund {i}" for i in range(60)]


def test_lines_before_one_that_fails_are_written(model: Path) -> None:
    """This holds even if all lines end in the same step of the search."""

    def search(queue: WorkerQueue) -> None:
        while taken := queue.take(10, 100, 100):
            for segment in taken:
                segment.hypotheses = [Hypothesis(segment.ids[:-1], -1.0, -1.0, [-1.0] * len(segment.ids))]
            if len(taken) > 1:
                taken[1].error = DivergedError("the model's scores are not finite")
            queue.finish(taken)

    source, target = memory_file(b"rot\nrot\nrot\n"), memory_file()
    with translator_by(model, search) as translator, pytest.raises(DivergedError):
        translate_lines(translator, TranslateOptions(), source, target, Progress("translating", None, "lines"))
    assert content(target) == b"rot\n"


def test_chunks_are_bounded_by_lines_too() -> None:
    """A line feed counts as a character, so many empty lines do not become one chunk."""
    for chunks in (
        lines_module.chunks_of([""] * 150_000),
        lines_module.read_chunks(memory_file(b"\n" * 150_000), Counter()),
    ):
        assert [len(chunk) for chunk in chunks] == [1 << 16, 1 << 16, 150_000 - (1 << 17)]
