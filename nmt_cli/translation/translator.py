"""Translate lines of text. A Translator owns the segmenter, the queue, the backend and the assembler."""

import contextlib
import functools
import itertools
import math
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nmt_cli.corpus.terms import Terms
from nmt_cli.corpus.tokenizer import Tokenizer, files_of
from nmt_cli.system.errors import DataError
from nmt_cli.system.resources import usable_cores
from nmt_cli.transformer.config import ModelConfig, from_recipe
from nmt_cli.transformer.directory import TOKENIZER, open_model
from nmt_cli.translation import backends
from nmt_cli.translation.assembler import Assembler, join
from nmt_cli.translation.case import Caser
from nmt_cli.translation.lines import chunks_of
from nmt_cli.translation.options import MODEL_DEFAULTS, Sampling, SearchOptions
from nmt_cli.translation.pending import Pending, Translation
from nmt_cli.translation.queue import Backend, SegmentQueue
from nmt_cli.translation.segmenter import Segmenter
from nmt_cli.translation.segments import Hypothesis, Segment
from nmt_cli.translation.shortlist import Shortlist, read_shortlist
from nmt_cli.translation.spelling import read_spelling
from nmt_cli.translation.stored_models import Direction, direction_to, directions_of

if TYPE_CHECKING:
    import torch

    from nmt_cli.recipe import schema
    from nmt_cli.transformer.model import Transformer

READ_AHEAD = 512  # minimum number of waiting segments per search thread; below it, a Stream reads more lines
SCORE_LINES = 1024  # pairs scored together

Ids = list[int]


class Translator(contextlib.AbstractContextManager["Translator"]):
    """Translates lines of text with the model in a directory, or with an ensemble of several models.

        with Translator("runs/toy/model") as translator:
            for translation in translator.translate(lines, beam=4):
                print(translation.text)

    A Translator searches on all GPUs, or on the first `workers` of them. If there are no GPUs, it searches in `workers`
    CPU threads (by default one per core, at most 16), which share the weights. The models of an ensemble must have the
    same tokenizer. Any number of threads may call a Translator at the same time. The same text, model and options
    always give the same translation, whatever other texts are in the batch. The search threads end when the Translator
    is closed or garbage-collected. `counts` holds statistics, such as how many lines were split or truncated. With
    `background_limit` (see SegmentQueue), short texts finish sooner than without it, and long texts later.

    Raises TypeError for lines that are not text, and UsageError for wrong options and after `close`. Raises DataError
    for damaged models, and MissingError for missing ones. A text fails without affecting others: with DivergedError if
    its scores are not finite, with StorageError if there is too little memory for it.
    """

    _directory: Path | None = None  # the model directory, or None for an ensemble and for a model in memory

    def __init__(
        self,
        models: Path | str | Sequence[Path | str],
        *,
        precision: str = "auto",
        workers: int | None = None,
        background_limit: int | None = None,
    ) -> None:
        directories = [models] if isinstance(models, Path | str) else models
        first, *_ = opened = [open_model(Path(directory)) for directory in directories]
        tokenizers = [[file.read_bytes() for file in files_of(one.tokenizer_file)] for one in opened]
        if any(other != tokenizers[0] for other in tokenizers):
            raise DataError("the models have different tokenizers: they cannot form an ensemble")
        if len({one.config.architecture.source_eos for one in opened}) > 1:
            raise DataError("only some of the models expect </s> after a source: they cannot form an ensemble")
        spelling = next(filter(None, (read_spelling(one.tokenizer_file) for one in opened)), None)
        backend = backends.choose(opened, precision, workers, usable_cores())
        longest = min(one.config.architecture.max_length for one in opened)
        # Lines above `seen_tokens` tokens are split. Older models store none, and use the limit of the corpus filter.
        seen = [one.config.seen_tokens for one in opened if one.config.seen_tokens]
        self._set(backend, first.tokenizer, first.config, longest, min(seen, default=math.inf), background_limit)
        self.segmenter.spelling = spelling
        self._directory = first.directory if len(opened) == 1 else None

    def _set(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        config: ModelConfig,
        longest: int,
        seen: float,
        background_limit: int | None = None,
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.config = config
        self.max_length = longest
        self.counts: Counter[str] = Counter()
        filtered = min(config.max_tokens or longest, longest)
        sizes = {"max_length": longest, "filter_tokens": filtered, "seen_tokens": int(min(filtered, seen))}
        self.head = tokenizer.target.prefix(config.decoding.target_prefix)
        caser = Caser(tokenizer, config.src, config.tgt, config.tags)
        self.segmenter = Segmenter(tokenizer, caser, **sizes, counts=self.counts, head=self.head)
        # The search threads must not refer to this Translator, because it would then never be garbage-collected.
        self.assembler = Assembler(tokenizer, self.counts, self.head)
        self.queue = SegmentQueue(backend.searches, self.assembler, background_limit)
        self._finalize = weakref.finalize(self, _close, self.queue, backend)

    @classmethod
    def of(
        cls,
        model: "Transformer",
        tokenizer: Tokenizer,
        recipe: "schema.Recipe",
        dtype: "torch.dtype",
        seen_tokens: float = math.inf,
    ) -> "Translator":
        """Return a Translator with one thread for a model in memory. If the C engine runs it, `dtype` is ignored."""
        from nmt_cli.translation.torch_backend import of_memory

        translator = cls.__new__(cls)
        config = from_recipe(recipe, model.vocabulary_size)
        translator._set(of_memory(model, dtype), tokenizer, config, model.settings.max_length, seen_tokens)
        return translator

    @property
    def load(self) -> tuple[int, int]:
        """The number of waiting segments, and the number of segments being searched."""
        return self.queue.waiting, self.queue.searching

    def close(self) -> None:
        self._finalize()

    def __exit__(self, *_: object) -> None:
        self.close()

    def translate(
        self,
        lines: Iterable[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        extra_length: int | None = None,
        split: bool | None = None,
        n_best: int = 1,
        sampling: Sampling | None = None,
        prefixes: Iterable[str] | None = None,
        alignments: bool = False,
        terms: Terms | None = None,
        copy_wordless: bool | None = None,
        case: Literal["auto", "off"] | None = None,
        spelling: Literal["auto", "off"] | None = None,
        target: str = "",
        shortlist: bool = False,
        penalty_offset: float | None = None,
    ) -> Iterator[Translation]:
        """Yield the translation of every line, in order, while reading more lines.

        The translation of a line without text is empty. `prefixes` gives the forced beginning of each line's
        translation. SearchOptions describes the other keyword arguments.
        """
        if isinstance(lines, str) or isinstance(prefixes, str):
            raise TypeError("lines and prefixes must be iterables of strings. For a single line, pass [line]")
        options = SearchOptions(
            beam=beam,
            alpha=alpha,
            extra_length=extra_length,
            split=split,
            n_best=n_best,
            sampling=sampling,
            alignments=alignments,
            terms=terms,
            copy_wordless=copy_wordless,
            case=case,
            spelling=spelling,
            target=target,
            shortlist=shortlist,
            penalty_offset=penalty_offset,
        )
        return Stream(self, self.resolved(options), prefixes).translate(iter(lines))

    def translate_chunks(
        self,
        chunks: Iterable[Sequence[str]],
        options: SearchOptions = MODEL_DEFAULTS,
        prefixes: Iterable[str] | None = None,
        *,
        first: int = 1,
    ) -> Iterator[list[Translation]]:
        """Yield the translations of all lines in `chunks`, in order. Each list holds the next finished translations.

        A separate thread reads the chunks. `first` is the number of the first line. Sampling depends on line numbers.
        """
        return Stream(self, self.resolved(options), prefixes, first).translate_ahead(chunks)

    def submit(
        self,
        text: str,
        options: SearchOptions = MODEL_DEFAULTS,
        *,
        prefix: str = "",
        done: Callable[[Pending], None] = lambda _: None,
        position: int = 0,
    ) -> Pending:
        """Start translating a text. Its translation will begin with `prefix`.

        `done` is called once, in any thread, when the text is translated or cancelled, or its translation fails. If the
        text is part of a larger text, `position` is the number of parts before this one. Later parts then wait
        longer in the queue, so that other texts are not held up.
        """
        pending = Pending(self.queue, self.resolved(options), self, done)
        segments = self.segmenter.cut(pending, text, prefix, position=position)
        self.queue.submit(segments)
        if not segments:
            self.assembler.finish(pending)
        return pending

    def resolved(self, options: SearchOptions) -> SearchOptions:
        """Replace each option that is None with the model's default. Raises UsageError for wrong options."""
        self.queue.check_open()
        resolved = options.resolved(self.config.decoding)
        if self.config.output == "trees":  # lines without letters are parsed, and labels stay in capitals
            resolved = replace(resolved, copy_wordless=False, case="off", spelling="off")
        target = self._token_of(resolved.target) if resolved.target or self.config.pairs else ""
        return replace(resolved, target=target, shortlist=self._shortlist if resolved.shortlist else None)

    def _token_of(self, target: str) -> str:
        """Return the token to put before a source (such as ">>deu<< "), or "". Raises UsageError for a wrong target."""
        if target and self.tokenizer.language(*self.tokenizer.encode([target])):
            return f"{target.strip()} "  # the target is already a token such as >>deu<<, not a language code
        return direction_to(target, self.config, self.directions).prefix

    def with_target(self, line: str) -> str:
        return self.segmenter.target_of(line, self.resolved(MODEL_DEFAULTS).target) + line

    @functools.cached_property
    def directions(self) -> tuple[Direction, ...]:
        return directions_of(self.config, self.tokenizer)

    @functools.cached_property
    def _shortlist(self) -> Shortlist | None:
        directory = self._directory
        return read_shortlist(directory, self.tokenizer, directory / TOKENIZER) if directory else None

    def score(self, pairs: Iterable[tuple[str, str]], *, alpha: float | None = None) -> Iterator[Hypothesis]:
        """Yield a scored Hypothesis for every (source, translation) pair, in order. Letter case is not converted."""
        options = SearchOptions(alpha=alpha).resolved(self.config.decoding)
        numbered = enumerate(pairs, 1)
        while chunk := list(itertools.islice(numbered, SCORE_LINES)):
            ids = []
            for number, (source, translation) in chunk:
                src, tgt = self.tokenizer.encode_pair(self.with_target(source), translation)
                ids.append([src, [*self.head, *tgt]])
                if max(map(len, ids[-1])) > self.max_length:
                    raise DataError(f"line {number:,} has more tokens than the model's limit of {self.max_length}")
            n = len(self.head)
            for (_, tgt), values in zip(ids, self.score_ids(ids), strict=True):
                yield join(self.tokenizer, [Hypothesis(tgt[n:-1], math.fsum(values[n:]), 0.0, values[n:])], options)

    def score_ids(self, pairs: Sequence[Sequence[Ids]]) -> list[list[float]]:
        """Return, for each pair, the log-probability of every target token, given the source and the tokens before it.

        Both sides of each pair must end with EOS. The C engine searches with the target, without EOS, as forced prefix.
        """
        self.queue.check_open()
        if self.backend.score_targets:
            return self.backend.score_targets(pairs)
        options = SearchOptions(beam=1).resolved(self.config.decoding).for_segments()
        forced = [Segment(src, options, tgt[:-1], max_tokens=len(tgt)) for src, tgt in pairs]
        self.queue.submit(forced)
        self.queue.wait_for(lambda: all(segment.hypotheses or segment.error for segment in forced))
        if error := next((segment.error for segment in forced if segment.error), None):
            raise error
        return [segment.hypotheses[0].token_log_probabilities for segment in forced]


class Stream:
    """Sends the lines of one call through a Translator, and yields their translations in the same order."""

    def __init__(
        self, translator: Translator, options: SearchOptions, prefixes: Iterable[str] | None, first: int = 1
    ) -> None:
        self._translator = translator
        self._queue = translator.queue
        self._options = options
        self._prefixes = itertools.repeat("") if prefixes is None else iter(prefixes)
        self._numbers = itertools.count(first)
        self._pending = deque[Pending]()
        self._ended = False
        self._error: BaseException | None = None
        self._in_segmenter = threading.Lock()

    def translate(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Yield the translations of lines. The calling thread reads the lines."""
        try:
            for chunk in chunks_of(lines):
                self._add(chunk)
                while not self._wants_lines:
                    self._queue.wait_for(lambda: self._next_is_finished or self._wants_lines)
                    if self._next_is_finished:
                        yield from self._next()
            while self._pending:
                yield from self._next()
        finally:
            self._cancel()

    def translate_ahead(self, chunks: Iterable[Sequence[str]]) -> Iterator[list[Translation]]:
        """Yield lists of finished translations, in order. A separate thread reads the chunks of lines."""
        threading.Thread(target=self._read, args=[chunks], name="reader", daemon=True).start()
        try:
            while True:
                self._queue.wait_for(lambda: self._ended or self._next_is_finished)
                if self._error:
                    raise self._error
                if not self._pending:
                    return
                yield self._next()
        finally:
            self._cancel()

    def _read(self, chunks: Iterable[Sequence[str]]) -> None:
        try:
            for chunk in chunks:
                self._queue.wait_for(lambda: self._ended or self._wants_lines)
                if self._ended:
                    return
                self._add(chunk)
        except BaseException as error:
            self._error = error
        with self._queue.changed:
            self._ended = True
            self._queue.changed.notify_all()

    @property
    def _next_is_finished(self) -> bool:
        return bool(self._pending) and self._pending[0].finished

    @property
    def _wants_lines(self) -> bool:
        """Whether the search threads need more segments, and the caller has taken every finished translation.

        The second condition limits the number of lines in memory if the caller is slower than the search.
        """
        enough = READ_AHEAD * len(self._translator.backend.searches)
        return self._queue.waiting < enough and not self._next_is_finished

    def _add(self, lines: Sequence[str]) -> None:
        """Queue the segments of a chunk of lines, long segments first, so that the search ends with short ones."""
        texts = list[Pending]()
        segments = list[Segment]()
        for line, number in zip(lines, self._numbers, strict=False):
            try:
                prefix = next(self._prefixes)
            except StopIteration:
                raise DataError(f"there are fewer prefixes than lines: line {number:,} has none") from None
            pending = Pending(self._queue, self._options, self._translator)
            with self._in_segmenter:
                if self._ended:
                    return
                segments += self._translator.segmenter.cut(pending, line, prefix, number=number)
            texts.append(pending)
            if not pending.open:
                self._translator.assembler.finish(pending)
        segments.sort(key=lambda segment: -len(segment.ids))
        with self._queue.changed:
            if not self._ended:
                self._pending.extend(texts)
                self._queue.submit(segments)

    def _next(self) -> list[Translation]:
        """Wait for the next translation. Return it and the following ones, up to the first unfinished or failed one."""
        translations = [self._pending[0].result()]
        with self._queue.changed:
            self._pending.popleft()
            while self._next_is_finished and not self._pending[0].error:
                translations.append(self._pending.popleft().translation())
            self._queue.changed.notify_all()  # the reader may add lines
        self._translator.counts["unsaid"] += sum(len(each.missing_terms) for each in translations)
        return translations

    def _cancel(self) -> None:
        with self._queue.changed:
            self._ended = True
            for pending in self._pending:
                pending.cancel()
            self._queue.changed.notify_all()
        # Wait until the reader has left SentencePiece. Python aborts if it exits while a thread is in C++ code.
        with self._in_segmenter:
            pass


def _close(queue: SegmentQueue, backend: Backend) -> None:
    queue.close()
    backend.close()
