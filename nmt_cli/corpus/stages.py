"""The three long stages of `nmt prepare`: clean the text, train the tokenizer, and encode the text.

The output does not depend on the number of workers. The stages need one byte of memory per pair, plus a constant. With
more than about 50 million pairs, finding repeated pairs needs three bytes per pair.
"""

import contextlib
import functools
import itertools
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from nmt_cli.corpus import near_duplicates, store, synthetic, tokenizer, words
from nmt_cli.corpus.cleaning import DUPLICATE, NEAR_DUPLICATE, RATIO, TOO_LONG, CleaningStats, clean_chunk
from nmt_cli.corpus.readers import CHUNK, Chunk
from nmt_cli.recipe import schema
from nmt_cli.system import console
from nmt_cli.system.child_processes import end_with_parent, signals_blocked
from nmt_cli.system.errors import NmtError, StorageError

Job = TypeVar("Job")
Result = TypeVar("Result")
Lengths = store.Lengths
Repeated = npt.NDArray[np.bool_]  # for each pair, whether it equals an earlier one
TextChunk = tuple[list[str], list[str], Repeated, int]  # source lines, target lines, repeated, number of the part
SERIAL_JOBS = 8  # with fewer jobs, starting worker processes takes longer than the jobs
STOPPING = {signal.SIGINT, signal.SIGTERM}  # signals that stop a preparation
SAMPLE_PAIRS = 1_000_000  # number of random pairs that the tokenizer is trained on
LONG_TRAINING = 100_000  # pairs; on fewer, training a tokenizer takes only seconds
HASHES_AT_ONCE = 2_000_000  # they take 32 MB of memory, or about 100 MB while they are sorted


def _serve(link: Any, parent: int) -> None:
    """Run the calls received from `link`, and send back results. Ignore signals. Exit when process `parent` exits."""
    end_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):  # schedulers send them to every process
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    with contextlib.suppress(EOFError, OSError):  # the pipe was closed
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
        raise StorageError("a worker process was killed, perhaps because memory ran out. Lower --workers") from None
    if failure:
        raise failure
    return result


class Pool(contextlib.AbstractContextManager["Pool"]):
    """A pool of worker processes, started on first use and killed at the end of the `with` block.

    Each worker has its own pipe. With one pipe for all workers, as in concurrent.futures, the pool would hang if a
    worker were killed while writing a result. The pool has no locks, so a signal handler may interrupt it at any
    time, except while a process starts.
    """

    def __init__(self, workers: int) -> None:
        self.alone = multiprocessing.current_process().daemon  # daemon processes cannot start processes
        self.workers = workers
        self._processes = dict[Any, Any]()  # keyed by this process's end of the pipe

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
        for link, process in self._processes.items():
            process.join()
            link.close()

    def _start(self) -> None:
        """Start the missing workers. Meanwhile, block signals, because an interrupted start prints a traceback."""
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads of the parent hold
        resource_tracker.ensure_running()  # before signals are blocked, because this call unblocks them
        with signals_blocked(STOPPING):
            while len(self._processes) < self.workers:
                link, worker_end = context.Pipe()
                process = context.Process(target=_serve, args=(worker_end, os.getpid()), daemon=True)
                process.start()
                self._processes[link] = process
                worker_end.close()  # now only the worker has this end open, so `link` reports EOF when the worker ends

    def calls(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Yield `function(job)` for each job, in order. The workers get jobs in turn.

        An error in a job is raised in place of its result. An NmtError from the iterator `jobs` is raised after the
        results of all earlier jobs. A daemon process cannot have workers, so it calls the function itself.
        """
        if self.alone:
            yield from map(function, jobs)
            return
        self._start()
        links, busy = itertools.cycle(self._processes), deque[Any]()
        stream = iter(jobs)
        while True:
            try:
                job = next(stream)
            except StopIteration:
                break
            except NmtError:
                yield from map(_answer, busy)
                raise
            link = next(links)
            answers = [_answer(busy.popleft())] if len(busy) == self.workers else []
            with contextlib.suppress(OSError):  # the worker was killed: `_answer` raises the error
                link.send((function, job))
            busy.append(link)
            yield from answers
        yield from map(_answer, busy)

    def map(self, function: Callable[[Job], Result], jobs: Iterable[Job]) -> Iterator[Result]:
        """Do the same as `calls`, but without worker processes if there are few jobs or only one worker."""
        stream = iter(jobs)
        first = deque(itertools.islice(stream, SERIAL_JOBS))
        count = len(first)
        all_jobs = itertools.chain((first.popleft() for _ in range(count)), stream)  # frees each job once it is taken
        if self.workers == 1 or count < SERIAL_JOBS:
            return map(function, all_jobs)
        return self.calls(function, all_jobs)


def clean(
    directory: Path, chunks: Iterable[Chunk], corpus: schema.Corpus, held_out: frozenset[bytes], pool: Pool
) -> tuple[Repeated, CleaningStats]:
    """Clean the pairs and write them to the files `src` and `tgt` in `directory`, and their hashes to `hashes`.

    Return which of the written pairs to drop as duplicates, and counts of the pairs dropped so far. `held_out` contains
    the hashes of the held-out pairs.
    """
    stats, total = CleaningStats(), None if corpus.synthetic else corpus.limit or corpus.rows
    with contextlib.ExitStack() as stack, console.Progress("cleaning", total, "pairs") as progress:
        files = [stack.enter_context((directory / name).open("wb")) for name in ("src", "tgt", "hashes")]
        for *data, counts in pool.map(functools.partial(clean_chunk, corpus, held_out), chunks):
            for file, part in zip(files, data, strict=True):
                file.write(part)
            stats.add(counts)
            progress.advance(counts.read)
    drops = [section.cleaning.drop_duplicates for section in corpus.trained]
    repeated = find_repeated(directory / "hashes", any(drops))
    ends = np.cumsum([stats.kept[part] for part in range(len(drops))])
    for start, end, drop in zip([0, *ends], ends, drops, strict=False):
        repeated[start:end] &= drop
    return repeated, stats


def find_repeated(file: Path, wanted: bool) -> Repeated:
    """Return, for each 16-byte hash in `file`, whether it equals an earlier hash. If not `wanted`, all are False.

    To limit memory, each pass over the file compares only the hashes that have the same remainder modulo the number of
    passes.
    """
    size = file.stat().st_size // 16
    repeated, passes = np.zeros(size, bool), -(-size // HASHES_AT_ONCE) if wanted else 0
    for number in range(passes):
        hashes = np.memmap(file, "<u8", mode="r").reshape(-1, 2)
        masks = (hashes[i : i + CHUNK, 0] % np.uint64(passes) == number for i in range(0, size, CHUNK))
        indices = np.flatnonzero(np.concatenate(list(masks)))
        some = np.asarray(hashes[indices])
        order = np.lexsort(some.T)  # stable: equal hashes keep their order
        same = (some[order[1:]] == some[order[:-1]]).all(1)
        repeated[indices[order[1:][same]]] = True
    return repeated


def spans(start: int, end: int, ends: Lengths) -> Iterator[tuple[int, int, int]]:
    """Divide the positions from `start` to `end` in the cleaned text into chunks, each within one part of the corpus.

    `ends` are the end positions of the parts. Yield (start, end, part) for each chunk.
    """
    cuts = sorted({*range(start, end, CHUNK), *ends[(start < ends) & (ends < end)].tolist(), end})
    for first, last in itertools.pairwise(cuts):
        yield first, last, int(np.searchsorted(ends, first, "right"))


def _chunks(directory: Path, repeated: Repeated, ends: Lengths) -> Iterator[TextChunk]:
    with (directory / "src").open("rb") as src, (directory / "tgt").open("rb") as tgt:
        for start, end, part in spans(0, len(repeated), ends):
            sides = [[line[:-1].decode() for line in itertools.islice(side, end - start)] for side in (src, tgt)]
            yield sides[0], sides[1], repeated[start:end], part


def sample(directory: Path, repeated: Repeated, seed: int) -> Iterator[str]:
    """Yield both sides of about SAMPLE_PAIRS random distinct pairs, or of all distinct pairs if there are fewer.

    `directory` contains the cleaned text.
    """
    chunks = _chunks(directory, repeated, np.array([len(repeated)]))
    yield from sampled(chunks, int((~repeated).sum()), seed)


def sampled(chunks: Iterable[TextChunk], distinct: int, seed: int) -> Iterator[str]:
    """Yield the same lines as `sample`, given the chunks of the text and the number of distinct pairs in them."""
    rng = np.random.default_rng(seed)
    share = SAMPLE_PAIRS / max(1, distinct)
    for src, tgt, repeats, _ in chunks:
        for i in np.flatnonzero((rng.random(len(repeats)) < share) & ~repeats):
            yield from (src[i], tgt[i])


Sample = Callable[[], Iterable[str]]


def _train(corpus: schema.Corpus, collect: Callable[[Iterable[str]], Iterable[str]], lines: Sample) -> dict[str, bytes]:
    settings, files = corpus.tokenizer, dict[str, bytes]()
    if not settings.file:
        tags = list(map(synthetic.token, corpus.tags))
        model = tokenizer.train(collect(lines()), settings.vocabulary_size, corpus.languages, tags)
        files["tokenizer.model"] = model
    if settings.words:
        counts = words.count(itertools.islice(lines(), 0, None, 2), corpus.src)
        if settings.file and (file := words.beside(Path(settings.file))).is_file():
            counts |= words.read(file)
        files[words.FILE] = words.to_bytes(counts)
    return files


def train_tokenizer(lines: Sample, pairs: int, corpus: schema.Corpus, pool: Pool) -> dict[str, bytes]:
    """Train a tokenizer on a sample of the cleaned text, and count the words of the sample's source lines.

    Train nothing if the recipe names a tokenizer, and count words only if corpus.tokenizer.words is set. Return the
    contents of the new files by file name. Each call to `lines` yields the lines of the sample, alternately source
    and target. `pairs` is the number of pairs in the cleaned text.
    """
    # If a signal arrives while SentencePiece reads a Python iterator, SentencePiece raises an error of its own.
    # Therefore, long training runs in a worker, which ignores signals, and short training first collects a list.
    if pairs > LONG_TRAINING:
        return next(pool.calls(functools.partial(_train, corpus, iter), [lines]))
    return _train(corpus, list, lines)


# Each worker loads the tokenizer and the held-out text once.
load_tokenizer = functools.lru_cache(1)(tokenizer.Tokenizer)
load_held_out = functools.lru_cache(2)(near_duplicates.load)  # 2: with and without `unescape`


def encode_chunk(
    model: Path, corpus: schema.Corpus, chunk: TextChunk
) -> tuple[list[npt.NDArray[Any]], list[store.Lengths], store.Lengths, CleaningStats, near_duplicates.Flags]:
    """Encode the pairs of a chunk. Leave out pairs that are repeated, too long, or too different in length.

    If cleaning.drop_near_twins is set, also drop near-duplicates of held-out lines. Return the concatenated ids of each
    side; the sentence lengths of each side; the indices of the kept pairs; counts of the dropped pairs; and the flags
    of held-out lines with near-duplicates among the kept pairs. Ids and lengths include EOS.
    """
    src, tgt, repeats, part = chunk
    settings = corpus.trained[part].cleaning
    tokens = [load_tokenizer(model).encode_arrays(src), load_tokenizer(model).target.encode_arrays(tgt)]
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
    held_out = load_held_out(model.parent, settings.unescape, corpus.tgt)
    flags, near = held_out.look_up([src[i] for i in remaining], [tgt[i] for i in remaining])
    if settings.drop_near_twins:
        flags[:] = 0
        for i in remaining[near]:
            stats.drop(NEAR_DUPLICATE, src[i], tgt[i])
        remaining = remaining[~near]
    end = np.array([tokenizer.EOS], np.int32)
    flat = [np.concatenate([ids for i in remaining for ids in (side[i], end)] or [end[:0]]) for side in tokens]
    return flat, [side[remaining] + 1 for side in lengths], remaining, stats, flags


def load_afresh(model: Path, corpus: schema.Corpus) -> tuple[dict[str, int], near_duplicates.Flags]:
    """Load the tokenizer and the held-out text again, because the caches may hold older files with the same names.

    Return the vocabulary size of each side, and flags for all held-out lines. All flags are 0.
    """
    load_tokenizer.cache_clear()
    load_held_out.cache_clear()
    held_out = load_held_out(model.parent, corpus.cleaning.unescape, corpus.tgt)
    sizes = {"src": load_tokenizer(model).vocabulary_size, "tgt": load_tokenizer(model).target.vocabulary_size}
    return sizes, np.zeros(held_out.count, np.uint8)


def pairs_of_parts(positions: Lengths, ends: Lengths) -> Lengths:
    """Count the pairs at `positions` in each part of the corpus. `ends` are the end positions of the parts."""
    counts: Lengths = np.bincount(np.searchsorted(ends, positions, "right"), minlength=len(ends))
    return counts


def encode(
    text: Path, repeated: Repeated, part_sizes: Lengths, model: Path, corpus: schema.Corpus, pool: Pool
) -> tuple[dict[str, int], Lengths, CleaningStats, dict[str, dict[str, Any]]]:
    """Encode the cleaned text, and write the ids to the directory of `model`, which also holds the held-out text.

    `text` is the directory of the cleaned text, and `part_sizes` the number of pairs in each part of the corpus. Return
    the number of tokens on each side, the number of remaining pairs in each part, counts of the pairs dropped here, and
    a summary of near-duplicates for each held-out set.
    """
    vocabularies, flags = load_afresh(model, corpus)
    ends = np.cumsum(part_sizes)
    stats = CleaningStats()
    with contextlib.ExitStack() as stack, console.Progress("encoding", len(repeated), "pairs") as progress:
        each = [store.SideWriter(model.parent, name, size) for name, size in vocabularies.items()]
        writers = dict(zip(vocabularies, map(stack.enter_context, each), strict=True))
        work = functools.partial(encode_chunk, model, corpus)
        start, pairs_by_part = 0, np.zeros(len(part_sizes), np.int64)
        for ids, lengths, remaining, drops, chunk_flags in pool.map(work, _chunks(text, repeated, ends)):
            pairs_by_part += pairs_of_parts(start + remaining, ends)
            start += len(remaining) + drops.dropped.total()
            for writer, *sentences in zip(writers.values(), ids, lengths, strict=True):
                writer.append(*sentences)
            stats.add(drops)
            flags |= chunk_flags
            progress.advance(len(lengths[0]) + drops.dropped.total())
    tokens = {name: writer.tokens for name, writer in writers.items()}
    return tokens, pairs_by_part, stats, near_duplicates.summary(model.parent, flags)
