"""Lines to translations: cut into segments, searched in any order and company, joined, given back in order."""

import contextlib
import itertools
import math
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nmt_cli.corpus.terms import Terms
from nmt_cli.corpus.tokenizer import EOS, Tokenizer, files_of, has_letter, normalise, visible, writable
from nmt_cli.storage import stored
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.system.processors import usable_cores
from nmt_cli.transformer.directory import open_model
from nmt_cli.translation import backends, segments
from nmt_cli.translation.pending import Copy, Joiner, Options, Pending, Translation, terms_of
from nmt_cli.translation.scheduler import Scheduler
from nmt_cli.translation.segments import Hypothesis, Sampling, SearchSettings, Segment

if TYPE_CHECKING:
    import torch

    from nmt_cli.recipe import schema
    from nmt_cli.transformer.model import Transformer

CHUNK_CHARACTERS = 1 << 16  # read and sorted at once
READ_AHEAD = 512  # segments that wait for each thread before more lines are read
SCORE_LINES = 1024  # pairs scored at once
MOST_HYPOTHESES = 1000  # of a text
POLL_SECONDS = 0.002, 0.01  # between two looks for new lines; the second while others are searched

Ids = list[int]


class _NotYet:
    def __repr__(self) -> str:
        return "NOT_YET"


class How(NamedTuple):
    """What options come to, with a model."""

    settings: SearchSettings
    split: bool  # long lines
    samples: int  # to draw; 0 for a search
    terms: Terms | None
    copy: bool  # lines without letters


NO_OPTIONS = Options()
NOT_YET = _NotYet()  # in the place of a line: the next one has not come yet
Lines = Iterable[str | _NotYet]


class Translator(contextlib.AbstractContextManager["Translator"]):
    """Translates lines of text with a model directory, or with an ensemble of several.

        with Translator("runs/toy/model") as translator:
            for translation in translator.translate(lines, beam=4):
                print(translation.text)

    On a CPU it searches in one thread per core (at most 16, or `workers`), which share the weights; else on all GPUs.
    Several models need one and the same tokenizer. Any thread may translate, at the same time as others: a translation
    depends on its text, the model and the options alone. Threads end when the Translator is closed or garbage.
    `counts` says what happened to lines. While `idle`, the translation of every line that was read has been given back:
    `lines` may wait for the next one. With `later`, each thread searches few segments at once that are not the first of
    a text, so many while other texts come: a long text is done later, others are sooner.

    TypeError for what is not text, UsageError for wrong options and after `close`, DataError and MissingError for
    models that are damaged or not there. DivergedError, where a text's scores are not finite, and StorageError, where
    memory does not suffice for it, are of that text; others go on.
    """

    def __init__(
        self,
        models: Path | str | Sequence[Path | str],
        *,
        precision: str = "auto",
        workers: int | None = None,
        later: int | None = None,
    ) -> None:
        places = [models] if isinstance(models, Path | str) else models
        first, *_ = opened = [open_model(Path(place)) for place in places]
        tokenizers = [[file.read_bytes() for file in files_of(one.tokenizer_file)] for one in opened]
        if any(other != tokenizers[0] for other in tokenizers):
            raise DataError("the models have different tokenizers: no ensemble of these")
        backend = backends.choose(opened, precision, workers, usable_cores())
        longest = min(one.recipe.model.max_length for one in opened)
        # The 99.9th percentile of training source lengths, EOS counted. Older models have only the longest allowed.
        seen = [one.manifest["seen_tokens"] for one in opened if "seen_tokens" in one.manifest]
        self._set(backend, first.tokenizer, first.recipe, longest, min(seen, default=math.inf), later)

    def _set(
        self,
        backend: backends.Backend,
        tokenizer: Tokenizer,
        settings: "schema.Recipe",
        longest: int,
        seen: float,
        later: int | None = None,
    ) -> None:
        self.backend, self.tokenizer, self.recipe, self.max_length = backend, tokenizer, settings, longest
        self.filter_tokens = min(settings.corpus.cleaning.max_tokens or longest, longest)
        self.seen_tokens = int(min(self.filter_tokens, seen))
        self.counts: Counter[str] = Counter()
        self._calls = dict[int, deque[Pending]]()  # what each call of `translate` has read and not given back
        # Neither holds this Translator, which could not become garbage while its threads run.
        self._joiner = Joiner(tokenizer, self.counts)
        self._scheduler = self._joiner.scheduler = Scheduler(backend.searches, self._joiner, later)
        self._finalize = weakref.finalize(self, _close, self._scheduler, backend)

    @classmethod
    def of(
        cls,
        model: "Transformer",
        tokenizer: Tokenizer,
        settings: "schema.Recipe",
        dtype: "torch.dtype",
        seen_tokens: float = math.inf,
    ) -> "Translator":
        """Return a Translator of a model in memory, in one thread; it splits lines of more than `seen_tokens`. On a CPU
        it computes in float32, whatever `dtype` says."""
        from nmt_cli.translation.torch_backend import of_memory

        translator = cls.__new__(cls)
        longest = model.settings.max_length
        translator._set(of_memory(model, dtype), tokenizer, settings, longest, seen_tokens)
        return translator

    @property
    def idle(self) -> bool:
        return not any(list(self._calls.values()))

    @property
    def load(self) -> tuple[int, int]:
        """How many segments wait, and how many are searched."""
        return self._scheduler.waiting, self._scheduler.searching

    def close(self) -> None:
        self._finalize()

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, until: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until something is true of texts that are being translated; return whether it is. UsageError after
        `close`."""

        def over() -> bool:
            return until() or self._scheduler.ended

        with self._scheduler.changed:
            self._scheduler.changed.wait_for(over, timeout)
            if not (true := until()):
                self._scheduler.check()
        return true

    def submit(
        self,
        text: str,
        options: Options = NO_OPTIONS,
        *,
        prefix: str = "",
        done: Callable[[Pending], None] | None = None,
        place: int = 0,
    ) -> Pending:
        """Begin to translate a text, and return what waits for it. Its translation begins with `prefix`.

        `done` is called once, whatever happens, in another thread or in this one: then its result is there, or what
        went wrong. `place` says how many other parts of a larger text come before this one: those of others do not
        wait for all of them.
        """
        pending, waiting = self._pending(1, text, self._options(options), prefix, done)
        self._scheduler.submit((place + offset, segment) for offset, segment in waiting)
        if not waiting:
            self._joiner.finish(pending)
        return pending

    def translate(
        self,
        lines: Lines,
        *,
        beam: int | None = None,
        alpha: float | None = None,
        extra_length: int | None = None,
        split: bool | None = None,
        n_best: int = 1,
        sampling: Sampling | None = None,
        prefixes: Lines | None = None,
        alignments: bool = False,
        terms: Terms | None = None,
        copy_wordless: bool | None = None,
    ) -> Iterator[Translation]:
        """Yield the translation of every line, in order, while lines are read; an empty one where there is no text.

        Where the next line is not there yet, let `lines` yield NOT_YET: those before it are then translated meanwhile.
        `beam`, `alpha`, `extra_length`, `split` and `copy_wordless` are those of a recipe; None takes the model's own.
        With `sampling`, `n_best` translations are drawn. `prefixes` say for each line how its translation must begin,
        `terms` what it must say where the line has certain phrases.
        """
        if isinstance(lines, str):
            raise TypeError("translate takes an iterable of lines, not one text: [text]")
        if isinstance(prefixes, str):
            raise TypeError("prefixes must be an iterable of texts, one for each line")
        self._scheduler.check()
        options = Options(beam, alpha, extra_length, split, n_best, sampling, alignments, terms, copy_wordless)
        prefixes = itertools.repeat("") if prefixes is None else prefixes
        return self._translate(iter(lines), self._options(options), iter(prefixes))

    def _options(self, options: Options) -> How:
        if options.beam is not None and options.n_best > options.beam and not options.sampling:
            raise UsageError(f"{options.n_best} hypotheses need a beam of {options.n_best} or more, not {options.beam}")
        if options.terms and options.sampling:
            raise UsageError("terms are searched for, samples are drawn: leave out one of them")
        if not 1 <= options.n_best <= MOST_HYPOTHESES:
            raise UsageError(f"n_best must be from 1 to {MOST_HYPOTHESES:,}, not {options.n_best:,}")
        named = {name: getattr(options, name) for name in ("beam", "alpha", "extra_length", "split", "copy_wordless")}
        section = vars(self.recipe.decoding) | {name: v for name, v in named.items() if v is not None}
        chosen = stored.checked_decoding(section)
        width, best = (1, 1) if options.sampling else (max(options.n_best, chosen.beam), options.n_best)
        settings = SearchSettings(width, chosen.alpha, chosen.extra_length, best, options.sampling, options.alignments)
        copy = chosen.copy_wordless and self.recipe.corpus.format != "trees"  # a parse is a tree
        return How(settings, chosen.split, options.n_best if options.sampling else 0, options.terms, copy)

    def _translate(self, lines: Iterator[Any], how: How, prefixes: Iterator[Any]) -> Iterator[Translation]:
        pending, ended, numbers = deque[Pending](), False, itertools.count(1)
        enough = READ_AHEAD * len(self.backend.searches)
        self._calls[id(pending)] = pending
        try:
            while pending or not ended:
                while pending and pending[0].finished:
                    translation = pending.popleft().translation()
                    self.counts["unsaid"] += len(translation.unsaid)
                    yield translation
                if not ended and self._scheduler.waiting < enough:
                    ended = self._read_chunk(lines, how, prefixes, numbers, pending)
                if pending or not ended:
                    seconds = None if ended else POLL_SECONDS[bool(pending)]
                    self.wait(lambda: bool(pending) and pending[0].finished, seconds)
        finally:
            for text in pending:
                text.cancel()
            del self._calls[id(pending)]

    def _read_chunk(
        self,
        lines: Iterator[Any],
        how: How,
        prefixes: Iterator[Any],
        numbers: Iterator[int],
        pending: deque[Pending],
    ) -> bool:
        """Submit the lines that are there, up to a chunk, long segments first: what is left at the end is then short.
        Return whether there are no more."""
        waiting, size, ended = list[tuple[int, Segment]](), 0, True
        for text in lines:
            if text is NOT_YET:
                ended = False
                break
            number, prefix = next(numbers), next(prefixes, NOT_YET)
            if prefix is NOT_YET:
                raise DataError(f"there are fewer prefixes than lines: none for line {number:,}")
            one, segments_ = self._pending(number, text, how, prefix)
            if not segments_:
                self._joiner.finish(one)
            pending.append(one)
            waiting += segments_
            size += len(text) + 1
            if size >= CHUNK_CHARACTERS:
                ended = False
                break
        waiting.sort(key=lambda each: -len(each[1].ids))
        self._scheduler.submit(waiting)
        return ended

    def _pending(
        self,
        number: int,
        text: Any,
        how: How,
        prefix: Any,
        done: Callable[[Pending], None] | None = None,
    ) -> tuple[Pending, list[tuple[int, Segment]]]:
        """Return a text that is to be translated, and its segments, each with its place. Its number decides, beside its
        words, what is sampled for it."""
        for value in (text, prefix):
            if not isinstance(value, str):
                raise TypeError(f"a line must be text, not {type(value).__name__}")
        settings, split, samples, terms, _ = how
        line, text = text, normalise(visible(text))
        forced = self.tokenizer.target.encode([normalise(prefix)])[0] if prefix else []
        found = terms.find(text) if terms else []
        drafts: list[list[Segment]] = [[] for _ in range(max(1, samples))]
        if how.copy and not (forced or found) and (copy := self._copy(line, text)):
            return Pending(self, settings, False, drafts, done or _nothing, copy=copy), []
        ids = self.tokenizer.encode([text])[0]
        sources = [[*ids[: self.max_length - 1], EOS]] if ids else []
        if split and len(ids) >= self.seen_tokens:
            sources = segments.split_line(self.tokenizer, text, self.seen_tokens, self.filter_tokens, terms)
        with self._scheduler.changed:  # which other threads hold when they count
            self.counts["lines"] += 1
            self.counts["split"] += len(sources) > 1
            self.counts["cut"] += (len(forced) >= self.max_length) + (not split and len(ids) >= self.max_length)
        pending = Pending(self, settings, split and not samples, drafts, done or _nothing, terms, found)
        waiting = []
        for place, source in enumerate(sources):
            own = found if len(sources) == 1 else terms_of(source, self.tokenizer, terms)
            for sample, draft in enumerate(pending.drafts):
                begin = forced[: self.max_length - 1] if not place else []
                segment = Segment(source, settings, begin, (number, place, sample), owner=pending, terms=own)
                draft.append(segment)
                waiting.append((place, segment))
        pending.open = len(waiting)
        return pending, waiting

    def _copy(self, line: str, text: str) -> Copy | None:
        """Return the copy of a line, whose normalised text is `text`, if no letter follows its language token."""
        token = ""
        if text.startswith(">>"):
            token = "".join(self.tokenizer.tokens(self.tokenizer.language(self.tokenizer.encode([text])[0])))
        token = token.removeprefix("\u2581")
        body = text.removeprefix(token)
        if not text or has_letter(body):
            return None
        with self._scheduler.changed:
            self.counts["lines"] += 1
            self.counts["copied"] += bool(body.strip())
        return Copy(writable(line).removeprefix(token).lstrip(), bool(token))

    def score(self, pairs: Iterable[tuple[str, str]], *, alpha: float | None = None) -> Iterator[Hypothesis]:
        """Yield the scores of every (source, translation), in order."""
        alpha = self.recipe.decoding.alpha if alpha is None else alpha
        numbered = enumerate(pairs, 1)
        while chunk := list(itertools.islice(numbered, SCORE_LINES)):
            ids = []
            for number, pair in chunk:
                ids.append(self.tokenizer.encode_pair(*pair))
                if max(map(len, ids[-1])) > self.max_length:
                    raise DataError(f"line {number:,} has more than the model's {self.max_length} tokens: no score")
            for (_, tgt), values in zip(ids, self.score_ids(ids), strict=True):
                scored = Hypothesis(tgt[:-1], math.fsum(values), 0.0, values)
                yield segments.join(self.tokenizer, [scored], alpha)

    def score_ids(self, pairs: Sequence[Sequence[Ids]]) -> list[list[float]]:
        """Return the log-probability of every target token, given its source and the target before it, both with EOS.

        The engine searches with the whole target as prefix: nothing is left to choose then."""
        self._scheduler.check()
        if self.backend.score_targets:
            return self.backend.score_targets(pairs)
        settings = SearchSettings(beam=1)
        forced = [Segment(src, settings, tgt[:-1], most=len(tgt)) for src, tgt in pairs]
        self._scheduler.submit((0, segment) for segment in forced)
        self.wait(lambda: all(segment.hypotheses or segment.error for segment in forced))
        if error := next((segment.error for segment in forced if segment.error), None):
            raise error
        return [segment.hypotheses[0].token_log_probabilities for segment in forced]


def _nothing(_: Pending) -> None:
    pass


def _close(scheduler: Scheduler, backend: backends.Backend) -> None:
    scheduler.close()
    backend.close()
