"""The three long stages of `prepare`: clean, train the tokenizer, encode.

The same bytes come out whatever the number of workers. Memory grows with the corpus by one byte per pair.
"""

import contextlib
import ctypes
import functools
import itertools
import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from nmt_cli.corpus import store, synthetic, tokenizer, twins
from nmt_cli.corpus.cleaning import DUPLICATE, NEAR_TWIN, RATIO, TOO_LONG, CleaningStats, clean_chunk
from nmt_cli.corpus.readers import CHUNK, Chunk
from nmt_cli.recipe import schema
from nmt_cli.system import console
from nmt_cli.system.errors import StorageError

Job = TypeVar("Job")
Result = TypeVar("Result")
Repeated = npt.NDArray[np.bool_]  # for every pair whether an earlier one equals it
TextChunk = tuple[list[str], list[str], Repeated]
SERIAL_JOBS = 8  # fewer are done before processes have started
STOPPING = {signal.SIGINT, signal.SIGTERM}
SAMPLE_PAIRS = 1_000_000  # that the tokenizer is trained on, drawn at random
LONG_TRAINING = 100_000  # pairs; fewer take SentencePiece seconds
HASHES_AT_ONCE = 2_000_000  # 32 MB, and three times as much while they are sorted


def _serve(link: Any) -> None:
    """Answer calls that come through `link`. Leave interrupts to the parent, and end with it even if it is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of linux/prctl.h
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    with contextlib.suppress(EOFError, OSError):  # of the pipe
        while True:
            function, job = link.recv()
            result = failure = None
            try:
                result = function(job)
            except Exception as error:
                error.add_note(traceback.format_exc()[-2000:])
                failure = error
            link.send((result, failure))


def _answer(link: Any) -> Any:
    try:
        result, failure = link.recv()
    except (EOFError, OSError):
        raise StorageError("a worker process was killed, perhaps for want of memory. Lower --workers") from None
    if failure:
        raise failure
    return result


class Pool(contextlib.AbstractContextManager["Pool"]):
    """Worker processes, started when they are first needed and killed when the block is left.

    Each has its own pipe. (concurrent.futures has one for all, and hangs where a killed worker has written half an
    answer.) No lock is held, so a signal may interrupt anything but the start of a process.
    """

    def __init__(self, workers: int) -> None:
        self.alone = multiprocessing.current_process().daemon  # which may have no processes of its own
        self.workers, self._processes = workers, dict[Any, Any]()  # by the parent's end of the pipe

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for link, process in self._processes.items():
            process.join()
            link.close()

    def _start(self) -> None:
        """Start what is missing. Signals wait meanwhile: a start cut short prints Python's own traceback."""
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of threads it does not have
        resource_tracker.ensure_running()  # else the first start starts it, which lets signals through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            while len(self._processes) < self.workers:
                link, its_end = context.Pipe()
                process = context.Process(target=_serve, args=(its_end,), daemon=True)
                process.start()
                self._processes[link] = process
                its_end.close()  # the last copy here: the worker's death ends the stream
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def calls(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield `function(job)` for every job, in order; the workers take turns. In a daemon it works alone."""
        if self.alone:
            yield from map(function, jobs)
            return
        self._start()
        links, busy = itertools.cycle(self._processes), deque[Any]()
        for job in jobs:
            link = next(links)
            answers = [_answer(busy.popleft())] if len(busy) == self.workers else []
            with contextlib.suppress(OSError):  # of a killed worker: `_answer` says so
                link.send((function, job))
            busy.append(link)
            yield from answers
        yield from map(_answer, busy)

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Do the same, but in this process if the jobs are few or the workers one."""
        stream = iter(jobs)
        first = list(itertools.islice(stream, SERIAL_JOBS))
        if self.workers == 1 or len(first) < SERIAL_JOBS:
            return map(function, itertools.chain(first, stream))
        return self.calls(function, itertools.chain(first, stream))


def clean(
    directory: Path, chunks: Iterable[Chunk], corpus: schema.Corpus, held_out: frozenset[bytes], pool: Pool
) -> tuple[Repeated, CleaningStats]:
    """Write the cleaned pairs as the files src and tgt of `directory`; return which are repeated and what was done."""
    stats, total = CleaningStats(), None if corpus.synthetic else corpus.limit or corpus.rows
    with contextlib.ExitStack() as stack, console.Progress("cleaning", total, "pairs") as progress:
        files = [stack.enter_context((directory / name).open("wb")) for name in ("src", "tgt", "hashes")]
        for *data, counts in pool.map(functools.partial(clean_chunk, corpus, held_out), chunks):
            for file, part in zip(files, data, strict=True):
                file.write(part)
            stats.add(counts)
            progress.advance(counts.read)
    return _find_repeated(directory / "hashes", corpus.cleaning.drop_duplicates), stats


def _find_repeated(file: Path, wanted: bool) -> Repeated:
    """Compare the hashes of all pairs, exactly, in passes over parts of them."""
    size = file.stat().st_size // 16
    repeated, passes = np.zeros(size, bool), -(-size // HASHES_AT_ONCE) if wanted else 0
    for number in range(passes):
        hashes = np.memmap(file, "<u8", mode="r").reshape(-1, 2)
        parts = (hashes[i : i + CHUNK, 0] % np.uint64(passes) == number for i in range(0, size, CHUNK))
        places = np.flatnonzero(np.concatenate(list(parts)))
        some = np.asarray(hashes[places])
        order = np.lexsort(some.T)  # stable: the earliest of equals comes first
        same = (some[order[1:]] == some[order[:-1]]).all(1)
        repeated[places[order[1:][same]]] = True
    return repeated


def _chunks(directory: Path, repeated: Repeated) -> Iterator[TextChunk]:
    with (directory / "src").open("rb") as src, (directory / "tgt").open("rb") as tgt:
        for start in range(0, len(repeated), CHUNK):
            sides = [[line[:-1].decode() for line in itertools.islice(side, CHUNK)] for side in (src, tgt)]
            yield sides[0], sides[1], repeated[start : start + CHUNK]


def _sample(directory: Path, repeated: Repeated, seed: int) -> Iterator[str]:
    """Yield both sides of about SAMPLE_PAIRS pairs drawn at random without repeated ones; of all if there are fewer."""
    rng = np.random.default_rng(seed)
    share = SAMPLE_PAIRS / max(1, int((~repeated).sum()))
    for src, tgt, repeats in _chunks(directory, repeated):
        for i in np.flatnonzero((rng.random(len(repeats)) < share) & ~repeats):
            yield from (src[i], tgt[i])


def _train(directory: Path, repeated: Repeated, corpus: schema.Corpus, collect: Callable[..., Any] = iter) -> bytes:
    lines = collect(_sample(directory, repeated, corpus.seed))
    tags = [synthetic.token(entry.tag) for entry in corpus.synthetic if entry.tag]
    return tokenizer.train(lines, corpus.tokenizer.vocabulary_size, (corpus.src, corpus.tgt), tags)


def train_tokenizer(directory: Path, repeated: Repeated, corpus: schema.Corpus, pool: Pool) -> bytes:
    # SentencePiece turns signals that find Python code into errors: a long training is a worker's, a short gets a list.
    if len(repeated) > LONG_TRAINING:
        return next(pool.calls(functools.partial(_train, directory, repeated), [corpus]))
    return _train(directory, repeated, corpus, list)


_load = functools.lru_cache(1)(tokenizer.Tokenizer)
_held_out = functools.lru_cache(1)(twins.load)


def _encode_chunk(
    model: Path, corpus: schema.Corpus, chunk: TextChunk
) -> tuple[list[npt.NDArray[Any]], list[store.Lengths], CleaningStats, twins.Flags]:
    """Return ids and lengths (EOS counted) of both sides of what remains, the drops, and held-out lines' twins."""
    settings, (src, tgt, repeats) = corpus.cleaning, chunk
    tokens = [_load(model).encode_arrays(src), _load(model).target.encode_arrays(tgt)]
    stats = CleaningStats()
    lengths = np.array([[len(ids) for ids in side] for side in tokens], np.int64)
    longer, shorter = lengths.max(0), np.maximum(1, lengths.min(0))
    keep = np.ones(len(repeats), bool)
    too_long = longer > (settings.max_tokens or np.inf)
    uneven = longer / shorter > (settings.max_ratio or np.inf)
    for reason, wrong in ((DUPLICATE, repeats), (TOO_LONG, too_long), (RATIO, uneven)):
        for i in np.flatnonzero(keep & wrong):
            stats.drop(reason, src[i], tgt[i])
        keep &= ~wrong
    remaining = np.flatnonzero(keep)
    held_out = _held_out(model.parent, settings.unescape, corpus.tgt)
    flags, near = held_out.look_up([src[i] for i in remaining], [tgt[i] for i in remaining])
    if settings.drop_near_twins:
        flags[:] = 0
        for i in remaining[near]:
            stats.drop(NEAR_TWIN, src[i], tgt[i])
        remaining = remaining[~near]
    end = np.array([tokenizer.EOS], np.int32)
    flat = [np.concatenate([ids for i in remaining for ids in (side[i], end)] or [end[:0]]) for side in tokens]
    return flat, [side[remaining] + 1 for side in lengths], stats, flags


def encode(
    text: Path, repeated: Repeated, model: Path, corpus: schema.Corpus, pool: Pool
) -> tuple[dict[str, int], CleaningStats, dict[str, dict[str, Any]]]:
    """Write the training ids of the cleaned text beside the tokenizer and the held-out text.

    Return the tokens of each side, the drops, and the twins that held-out lines have in the training text.
    """
    _load.cache_clear()  # another model may have had this name
    _held_out.cache_clear()
    flags = np.zeros(_held_out(model.parent, corpus.cleaning.unescape, corpus.tgt).count, np.uint8)
    stats, sides = CleaningStats(), {"src": _load(model), "tgt": _load(model).target}
    with contextlib.ExitStack() as stack, console.Progress("encoding", len(repeated), "pairs") as progress:
        each = [store.SideWriter(model.parent, name, side.vocabulary_size) for name, side in sides.items()]
        writers = dict(zip(sides, map(stack.enter_context, each), strict=True))
        work = functools.partial(_encode_chunk, model, corpus)
        for ids, lengths, drops, found in pool.map(work, _chunks(text, repeated)):
            for writer, *sentences in zip(writers.values(), ids, lengths, strict=True):
                writer.append(*sentences)
            stats.add(drops)
            flags |= found
            progress.advance(len(lengths[0]) + drops.dropped.total())
    return {name: writer.tokens for name, writer in writers.items()}, stats, twins.summary(model.parent, flags)
