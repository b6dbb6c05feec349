"""The three long stages of `prepare`: clean, train the tokenizer, encode.

Each works chunk by chunk in several processes, and results are taken in order: the same bytes come out whatever the
number of workers. Memory does not grow with the corpus, but for one byte per pair.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
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
from nmt_cli.corpus.cleaning import DUPLICATE, RATIO, TOO_LONG, CleanedChunk, Cleaner, CleaningStats
from nmt_cli.corpus.readers import Chunk
from nmt_cli.errors import StorageError

Job = TypeVar("Job")
Result = TypeVar("Result")
TextChunk = tuple[bytes, bytes, npt.NDArray[np.uint8]]  # source lines, target lines, 1 where a pair is a duplicate
SERIAL_JOBS = 8  # fewer are done before processes have started
KILLED = "a worker process was killed, perhaps for want of memory. Run the same command again, with fewer --workers"
STOPPING = {signal.SIGINT, signal.SIGTERM}
SAMPLE_PAIRS = 1_000_000  # that the tokenizer is trained on, drawn at random
LONG_TRAINING = 100_000  # pairs; fewer take SentencePiece seconds
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


@contextlib.contextmanager
def _processes(workers: int) -> Iterator[Callable[..., Future[Any]]]:
    """Yield a function that submits a call to a pool of processes."""
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of threads it does not have
    pool = ProcessPoolExecutor(workers, context, _follow_parent, (os.getpid(),))

    def submit(*call: Any) -> Future[Any]:
        with _uninterrupted():
            return pool.submit(*call)

    try:
        yield submit
    except BrokenProcessPool:
        raise StorageError(KILLED) from None
    finally:
        pool.shutdown(cancel_futures=True)


def parallel_map(function: Callable[[Job], Result], jobs: Iterable[Job], workers: int) -> Iterator[Result]:
    """Yield `function(job)` for every job, in order, computed by `workers` processes (1: by this one).

    Raises:
        StorageError: a worker was killed.
    """
    stream = iter(jobs)
    first = [job for _, job in zip(range(SERIAL_JOBS), stream, strict=False)]
    if workers == 1 or len(first) < SERIAL_JOBS:
        yield from map(function, first)
        yield from map(function, stream)
        return
    waiting: deque[Future[Result]] = deque()
    with _processes(workers) as submit:
        for source in (first, stream):
            for job in source:
                waiting.append(submit(function, job))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def run_in_subprocess(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return `function(*arguments)`, computed by a process of its own.

    Its memory goes back to the system, and signals get through while foreign code works for minutes.

    Raises:
        StorageError: the process was killed.
    """
    others = multiprocessing.active_children()
    with _processes(1) as submit:
        try:
            result: Result = submit(function, *arguments).result()
            return result
        except BaseException:
            for process in set(multiprocessing.active_children()).difference(others):
                process.kill()  # shutting the pool down would wait for it
            raise


@dataclass(frozen=True)
class CleanedText:
    """Cleaned text on disk, as the files src, tgt and repeats of a directory.

    Attributes:
        sizes: pairs, bytes of source and bytes of target of every chunk.
    """

    directory: Path
    sizes: list[tuple[int, int, int]]

    @property
    def pairs(self) -> int:
        return sum(pairs for pairs, _, _ in self.sizes)

    def chunks(self) -> Iterator[TextChunk]:
        with contextlib.ExitStack() as stack:
            names = ("src", "tgt", "repeats")
            src, tgt, repeats = (stack.enter_context((self.directory / name).open("rb")) for name in names)
            for pairs, src_bytes, tgt_bytes in self.sizes:
                yield src.read(src_bytes), tgt.read(tgt_bytes), np.frombuffer(repeats.read(pairs), np.uint8)


def _lines(text: bytes) -> list[str]:
    return text.decode().split("\n")[:-1]


def clean(
    directory: Path, chunks: Iterable[Chunk], cleaner: Cleaner, workers: int, total: int | None
) -> tuple[CleanedText, CleaningStats]:
    """Clean the training pairs and write them to `directory`; `total` is for the progress line."""
    stats, text = CleaningStats(), CleanedText(directory, [])
    with contextlib.ExitStack() as stack:
        src, tgt, hashes = (stack.enter_context((directory / n).open("wb")) for n in ("src", "tgt", "hashes"))
        progress = stack.enter_context(console.Progress("cleaning", total, "pairs"))
        results: Iterator[CleanedChunk] = parallel_map(cleaner, chunks, workers)
        for done in stack.enter_context(contextlib.closing(results)):  # type: ignore[type-var]
            text.sizes.append((done.pairs, src.write(done.src), tgt.write(done.tgt)))
            hashes.write(done.hashes)
            stats.add(done.stats)
            progress.advance(done.stats.read)
    _find_duplicates(directory, cleaner.settings.drop_duplicates)
    return text, stats


def _find_duplicates(directory: Path, wanted: bool) -> None:
    """Write one byte for every pair: 1 if it repeats an earlier one. Exact, in passes over parts of the hashes."""
    size = (directory / "hashes").stat().st_size // 16
    repeats = np.zeros(size, np.uint8)
    if size and wanted:
        hashes = np.asarray(np.memmap(directory / "hashes", "<u8", mode="r")).reshape(-1, 2)
        passes = -(-size // HASHES_AT_ONCE)
        for number in range(passes):
            starts = range(0, size, HASHES_AT_ONCE)
            chosen = [
                s + np.flatnonzero(hashes[s : s + HASHES_AT_ONCE, 0] % np.uint64(passes) == number) for s in starts
            ]
            places = np.concatenate(chosen)
            some = hashes[places]
            order = np.lexsort((some[:, 1], some[:, 0]))  # stable: the earliest of equals comes first
            same = (some[order[1:]] == some[order[:-1]]).all(1)
            repeats[places[order[1:][same]]] = 1
    repeats.tofile(directory / "repeats")
    (directory / "hashes").unlink()


def sample(text: CleanedText, pairs: int, seed: int) -> Iterator[str]:
    """Yield both sides of about `pairs` pairs drawn at random without duplicates; of all if there are not more."""
    rng = np.random.default_rng(seed)
    repeated = int(np.fromfile(text.directory / "repeats", np.uint8).sum())
    share = pairs / max(1, text.pairs - repeated)
    for src, tgt, repeats in text.chunks():
        src_lines, tgt_lines = _lines(src), _lines(tgt)
        for i in np.flatnonzero((rng.random(len(repeats)) < share) & (repeats == 0)):
            yield src_lines[i]
            yield tgt_lines[i]


def _train(text: CleanedText, settings: recipe.Tokenizer, seed: int) -> bytes:
    return tokenizer.train(sample(text, SAMPLE_PAIRS, seed), settings.vocabulary_size)


def train_tokenizer(text: CleanedText, settings: recipe.Tokenizer, seed: int) -> bytes:
    """Return the file of a tokenizer trained on a sample of the cleaned text."""
    arguments = (text, settings, seed)
    return run_in_subprocess(_train, *arguments) if text.pairs > LONG_TRAINING else _train(*arguments)


@functools.lru_cache(1)
def _tokenizer(file: Path, _sha256: str) -> tokenizer.Tokenizer:
    return tokenizer.Tokenizer(file)


@dataclass(frozen=True)
class Encoder:
    """Everything needed to encode a chunk of cleaned text, sent to the worker with it."""

    tokenizer: Path
    sha256: str  # so that a worker never takes another model of the same path for this one
    settings: recipe.Cleaning

    def __call__(self, chunk: TextChunk) -> tuple[list[npt.NDArray[Any]], list[store.Lengths], CleaningStats]:
        """Return ids and lengths (EOS counted) of both sides of the remaining pairs, and why the others are dropped."""
        src, tgt, repeats = _lines(chunk[0]), _lines(chunk[1]), chunk[2]
        model, stats = _tokenizer(self.tokenizer, self.sha256), CleaningStats()
        for i in np.flatnonzero(repeats):
            stats.drop(DUPLICATE, src[i], tgt[i])
        tokens = [model.encode_arrays(side) for side in (src, tgt)]
        lengths = np.array([[len(ids) for ids in side] for side in tokens], np.int64).reshape(2, -1)
        keep = repeats == 0
        longer, shorter = lengths.max(0, initial=0), np.maximum(1, lengths.min(0, initial=1 << 62))
        for reason, limit, value in (
            (TOO_LONG, self.settings.max_tokens, longer),
            (RATIO, self.settings.max_ratio, longer / shorter),
        ):
            for i in np.flatnonzero(keep & (value > limit)) if limit is not None else ():
                stats.drop(reason, src[i], tgt[i])
                keep[i] = False
        remaining, end = np.flatnonzero(keep), np.array([tokenizer.EOS], np.int32)
        kind = store.id_type(model.vocabulary_size)
        flat = [np.concatenate([ids for i in remaining for ids in (side[i], end)] or [end[:0]]) for side in tokens]
        return [side.astype(kind) for side in flat], [side[remaining] + 1 for side in lengths], stats


def encode(directory: Path, text: CleanedText, encoder: Encoder, workers: int) -> tuple[list[int], CleaningStats]:
    """Write the training ids into `directory`; return the tokens of each side and what was dropped."""
    stats, totals = CleaningStats(), [0, 0]
    size = _tokenizer(encoder.tokenizer, encoder.sha256).vocabulary_size
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(contextlib.closing(store.SideWriter(directory, n, size))) for n in ("src", "tgt")
        ]
        progress = stack.enter_context(console.Progress("encoding", text.pairs, "pairs"))
        results = parallel_map(encoder, text.chunks(), workers)
        for number, (ids, lengths, drops) in enumerate(stack.enter_context(contextlib.closing(results))):  # type: ignore[type-var]
            for i, writer in enumerate(writers):
                writer.append(ids[i], lengths[i])
                totals[i] += len(ids[i])
            stats.add(drops)
            progress.advance(text.sizes[number][0])
    return totals, stats
