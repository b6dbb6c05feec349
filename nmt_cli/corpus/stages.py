"""The three long stages of `prepare`: clean into a spool, train the tokenizer, encode.

Each works chunk by chunk, spread over processes, with results taken in order: the same bytes come out whatever the
number of workers, and memory does not grow with the corpus (but for one byte and, on disk, 16 bytes per pair).
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from nmt_cli import console, recipe
from nmt_cli.corpus import store, tokenizer
from nmt_cli.corpus.cleaning import DUPLICATE, NOT_UTF8, RATIO, TOO_LONG, Cleaned, Cleaner, Tally
from nmt_cli.corpus.readers import Chunk, Part, Reader
from nmt_cli.errors import DataError, NmtError, StorageError

Job = TypeVar("Job")
Result = TypeVar("Result")
SERIAL_JOBS = 8  # fewer are done before processes have started
KILLED = "a worker process was killed, perhaps for want of memory. Run the same command again, with fewer --workers"
STOPPING = {signal.SIGINT, signal.SIGTERM}
SAMPLE_PAIRS = 1_000_000  # that the tokenizer is trained on, drawn at random
HASHES_AT_ONCE = 2_000_000  # 32 MB, and three times as much while they are sorted


def _follow_parent(parent: int) -> None:
    """Leave interrupts to the parent, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold signals back, here and in processes started meanwhile: a start cut short prints Python's own traceback."""
    resource_tracker.ensure_running()  # else the first start starts it, which lets signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def spread(function: Callable[[Job], Result], jobs: Iterable[Job], workers: int) -> Generator[Result, None, None]:
    """Yield `function(job)` for every job, in order, computed by `workers` processes (1: by this one).

    Raises:
        StorageError: a worker was killed.
    """
    stream = iter(jobs)
    waiting: deque[Future[Result]] = deque()
    first = [job for _, job in zip(range(SERIAL_JOBS), stream, strict=False)]
    if workers == 1 or len(first) < SERIAL_JOBS:
        yield from map(function, first)
        yield from map(function, stream)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of threads it does not have
    pool = ProcessPoolExecutor(workers, context, _follow_parent, (os.getpid(),))
    try:
        for source in (first, stream):
            for job in source:
                with _uninterrupted():
                    waiting.append(pool.submit(function, job))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise StorageError(KILLED) from None
    finally:
        pool.shutdown(cancel_futures=True)


def apart(function: Callable[..., bytes], *arguments: Any) -> bytes:
    """Return `function(*arguments)`, computed by a process of its own.

    What it took of memory goes back to the system, and signals get through while foreign code works for minutes.

    Raises:
        StorageError: the process was killed.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, os.getpid(), function, arguments))
    with _uninterrupted():
        process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        raise StorageError(KILLED) from None
    finally:
        process.kill()
        process.join()
    if isinstance(result, NmtError):
        raise result
    return bytes(result)


def _answer(sender: Any, parent: int, function: Callable[..., bytes], arguments: tuple[Any, ...]) -> None:
    _follow_parent(parent)
    try:
        sender.send(function(*arguments))
    except NmtError as error:
        sender.send(error)


def clean(directory: Path, reader: Reader, parts: list[Part], cleaner: Cleaner, workers: int, pairs: int) -> Tally:
    """Clean the training pairs into a spool in `directory`: text, chunk bounds, and which pairs are duplicates.

    Args:
        directory: empty.
        reader: how to read `parts`.
        parts: where the pairs are.
        cleaner: what to do to each chunk.
        workers: processes.
        pairs: how many to take.

    Raises:
        DataError: over 1 % of the lines are not UTF-8.
    """
    summary, shifted = Tally(), []
    votes = np.zeros((2, 2), np.int64)
    first_not_utf8 = None
    bounds = [(0, 0, 0)]
    with contextlib.ExitStack() as stack:
        src, tgt, hashes = (stack.enter_context((directory / n).open("xb")) for n in ("text.src", "text.tgt", "hashes"))
        progress = stack.enter_context(console.Progress("cleaning", pairs, "pairs"))
        jobs = _first(pairs, (chunk for part in parts for chunk in reader.chunks(part)))
        results = stack.enter_context(contextlib.closing(spread(cleaner, jobs, workers)))
        for done in results:
            bounds.append(_write(done, src, tgt, bounds[-1]))
            hashes.write(done.hashes)
            if done.first_not_utf8 is not None and first_not_utf8 is None:
                first_not_utf8 = summary.read + done.first_not_utf8 + 1
            if done.shifted:
                shifted.append(summary.read + 1)
            summary.add(done.tally)
            votes += done.swap_votes
            progress.advance(done.tally.read)
    np.array(bounds, "<i8").tofile(directory / "bounds")
    _find_duplicates(directory, cleaner.settings.drop_duplicates)
    (directory / "hashes").unlink()
    bad = summary.dropped[NOT_UTF8]
    if bad * 100 > summary.read:
        names = ", ".join(path.name for part in parts for path in part.files)[:100]
        raise DataError(
            f"{names}: {bad:,} of {summary.read:,} lines are not UTF-8, the first is line {first_not_utf8:,}. "
            "It looks like Latin-1 or binary: convert it to UTF-8"
        )
    if bad:
        summary.warnings.append(f"{bad:,} lines are not UTF-8, the first is line {first_not_utf8:,}")
    if shifted:
        summary.warnings.append(
            f"from about line {shifted[0]:,} the lines of one side look shifted: their lengths fit their neighbours' "
            f"translations better than their own ({len(shifted)} of {len(bounds) - 1} chunks)"
        )
    if (votes[:, 1] > 2 * votes[:, 0]).all() and votes.sum() >= 50:
        summary.warnings.append(f"the sides look swapped: {cleaner.src} text reads like {cleaner.tgt} and vice versa")
    return summary


def _first(pairs: int, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    for src, tgt in chunks:
        yield src[:pairs], tgt[:pairs]
        pairs -= len(src)
        if pairs <= 0:
            return


def _write(done: Cleaned, src: Any, tgt: Any, start: tuple[int, int, int]) -> tuple[int, int, int]:
    """Append the kept text of a chunk; return where it ends: pairs, source bytes, target bytes."""
    sizes = [
        file.write("".join(f"{line}\n" for line in lines).encode())
        for file, lines in ((src, done.src), (tgt, done.tgt))
    ]
    return start[0] + len(done.src), start[1] + sizes[0], start[2] + sizes[1]


def _find_duplicates(directory: Path, wanted: bool) -> None:
    """Write one byte for every pair: 1 if it repeats an earlier one. Exact, in passes over parts of the hashes."""
    if (directory / "hashes").stat().st_size == 0:
        (directory / "repeats").write_bytes(b"")
        return
    hashes = np.asarray(np.memmap(directory / "hashes", "<u8", mode="r")).reshape(-1, 2)
    repeats = np.zeros(len(hashes), np.uint8)
    passes = -(-len(hashes) // HASHES_AT_ONCE) if wanted else 0
    for number in range(passes):
        starts = range(0, len(hashes), HASHES_AT_ONCE)
        chosen = [s + np.flatnonzero(hashes[s : s + HASHES_AT_ONCE, 0] % np.uint64(passes) == number) for s in starts]
        places = np.concatenate(chosen)
        some = hashes[places]
        order = np.lexsort((some[:, 1], some[:, 0]))  # stable: the earliest of equals comes first
        some = some[order]
        same = (some[1:] == some[:-1]).all(1)
        repeats[places[order[1:][same]]] = 1
    repeats.tofile(directory / "repeats")


@dataclass(frozen=True)
class Spool:
    """Cleaned text on disk, opened."""

    directory: Path
    bounds: npt.NDArray[np.int64]
    repeats: npt.NDArray[np.uint8]

    def chunk(self, number: int) -> tuple[list[str], list[str], npt.NDArray[np.uint8]]:
        """Return the source and target lines of a chunk, and which of them are duplicates."""
        (first, *starts), (last, *ends) = self.bounds[number], self.bounds[number + 1]
        sides = []
        for name, start, end in zip(("text.src", "text.tgt"), starts, ends, strict=True):
            with (self.directory / name).open("rb") as file:
                file.seek(start)
                sides.append(file.read(end - start).decode().split("\n")[:-1])
        return sides[0], sides[1], self.repeats[first:last]


def open_spool(directory: Path) -> Spool:
    """Open what `clean` wrote."""
    bounds = np.fromfile(directory / "bounds", "<i8").reshape(-1, 3)
    if not bounds[-1, 0]:
        return Spool(directory, bounds, np.zeros(0, np.uint8))
    return Spool(directory, bounds, np.asarray(np.memmap(directory / "repeats", np.uint8, mode="r")))


def sample(spool: Spool, pairs: int, seed: int) -> Iterator[str]:
    """Yield both sides of about `pairs` pairs drawn at random without duplicates; of all if there are not more."""
    rng = np.random.default_rng(seed)
    share = pairs / max(1, int(np.count_nonzero(spool.repeats == 0)))
    for number in range(len(spool.bounds) - 1):
        src, tgt, repeats = spool.chunk(number)
        for i in np.flatnonzero((rng.random(len(src)) < share) & (repeats == 0)):
            yield src[i]
            yield tgt[i]


def train_tokenizer(spool: Path, settings: recipe.Tokenizer, seed: int) -> bytes:
    """Return the file of a tokenizer trained on a sample of the cleaned text."""
    return tokenizer.train(sample(open_spool(spool), SAMPLE_PAIRS, seed), settings.vocabulary_size)


@dataclass(frozen=True)
class Encoder:
    """Everything needed to encode a chunk of the spool, sent to the worker with its number."""

    spool: Path
    tokenizer: Path
    tokenizer_hash: str  # so that a worker never takes another model of the same path for this one
    settings: recipe.Cleaning

    def __call__(self, number: int) -> tuple[list[npt.NDArray[Any]], list[store.Lengths], Tally]:
        """Return ids and lengths (EOS counted) of both sides of the pairs that are kept, and why others are not."""
        src, tgt, repeats = open_spool(self.spool).chunk(number)
        model, tally = _tokenizer(self.tokenizer, self.tokenizer_hash), Tally()
        for i in np.flatnonzero(repeats):
            tally.drop(DUPLICATE, src[i], tgt[i])
        pieces = [model.encode_arrays(side) for side in (src, tgt)]
        lengths = np.array([[len(ids) for ids in side] for side in pieces], np.int64).reshape(2, -1)
        keep = repeats == 0
        long, short = lengths.max(0, initial=0), np.maximum(1, lengths.min(0, initial=1 << 62))
        for reason, limit, value in (
            (TOO_LONG, self.settings.max_tokens, long),
            (RATIO, self.settings.max_ratio, long / short),
        ):
            for i in np.flatnonzero(keep & (value > limit)) if limit is not None else ():
                tally.drop(reason, src[i], tgt[i])
                keep[i] = False
        kept = np.flatnonzero(keep)
        end = np.array([tokenizer.EOS], np.int32)
        kind = store.id_type(model.vocabulary_size)
        flat = [
            np.concatenate([part for i in kept for part in (side[i], end)] or [end[:0]]).astype(kind) for side in pieces
        ]
        return flat, [side[kept] + 1 for side in lengths], tally


@functools.lru_cache(1)
def _tokenizer(file: Path, _hash: str) -> tokenizer.Tokenizer:
    return tokenizer.Tokenizer(file)


def encode(stage: Path, encoder: Encoder, workers: int) -> tuple[int, list[int], Tally]:
    """Write the training ids into the corpus being staged; return the pairs, the pieces of each side, the drops."""
    tally, pairs, totals = Tally(), 0, [0, 0]
    spool = open_spool(encoder.spool)
    size = _tokenizer(encoder.tokenizer, encoder.tokenizer_hash).vocabulary_size
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(contextlib.closing(store.SideWriter(stage, n, size))) for n in ("src", "tgt")]
        progress = stack.enter_context(console.Progress("encoding", int(spool.bounds[-1, 0]), "pairs"))
        numbers = range(len(spool.bounds) - 1)
        for number, (ids, lengths, drops) in enumerate(
            stack.enter_context(contextlib.closing(spread(encoder, numbers, workers)))
        ):
            for i in (0, 1):
                writers[i].append(ids[i], lengths[i])
                totals[i] += len(ids[i])
            pairs += len(lengths[0])
            tally.add(drops)
            progress.advance(int(spool.bounds[number + 1, 0] - spool.bounds[number, 0]))
    return pairs, totals, tally
