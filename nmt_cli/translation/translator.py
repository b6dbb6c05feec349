"""Lines to translations: read, cut into segments, searched in any order, joined, given back in order."""

import contextlib
import functools
import itertools
import math
import os
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt_cli import recipe
from nmt_cli.corpus.tokenizer import EOS, Tokenizer, files_of, normalise
from nmt_cli.errors import DataError, StorageError, UsageError
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.hardware import choose_device, choose_dtype, has_int8
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation import segments
from nmt_cli.translation.candidates import Sampling
from nmt_cli.translation.search import SearchSettings, score_targets, search_with_oom_retry
from nmt_cli.translation.segments import Hypothesis, Segment
from nmt_cli.translation.workers import POLL_SECONDS, Workers

CHUNK_CHARACTERS = 1 << 20  # read and sorted at once
SCORE_LINES = 1024  # pairs scored at once
MAX_WORKERS = 16
MAX_RETRIES = 3  # how often a source is halved

Lines = Iterable[str | None]  # None: the next one has not come yet


@dataclass(frozen=True)
class Translation:
    hypotheses: list[Hypothesis]  # as many as were asked for, best first; samples as they were drawn
    segments: list[tuple[list[int], list[int]]]  # source and best target ids of each segment, both closed by EOS

    @property
    def text(self) -> str:
        return self.hypotheses[0].text


class Translator(contextlib.AbstractContextManager["Translator"]):
    """Translates lines of text with a model directory, or with an ensemble of several.

        with Translator("runs/toy/model") as translator:
            for translation in translator.translate(lines, beam=4):
                print(translation.text)

    It searches in one process per core (at most 16, or `workers`), or per GPU (in this process alone if CUDA has been
    used in it before, which a fork cannot share, or in a launched job). They start when there is more to search than
    one segment and end when the Translator is closed or garbage. Several models need one and the same tokenizer.
    `counts` says what happened to lines. While `idle`, every line that was read is translated: `lines` may wait for the
    next one.
    """

    _ranges: list[dict[str, float] | None]  # of the models' activations, where 8-bit arithmetic is used

    def __init__(
        self, models: Path | str | Sequence[Path | str], *, precision: str = "auto", workers: int | None = None
    ) -> None:
        places = [models] if isinstance(models, Path | str) else models
        first, *_ = loaded = [load_model(Path(place)) for place in places]
        tokenizers = [[file.read_bytes() for file in files_of(one.tokenizer_file)] for one in loaded]
        if any(other != tokenizers[0] for other in tokenizers):
            raise DataError("the models have different tokenizers: no ensemble of these")
        if precision not in ("auto", "fp32", "bf16", "int8"):
            raise UsageError(f"precision must be auto, fp32, bf16 or int8, not {precision!r}")
        self._set([one.model for one in loaded], Tokenizer(first.tokenizer_file), first.recipe, choose_device())
        # The 99.9th percentile of training source lengths, EOS counted. Older models have only the longest allowed.
        seen = [one.manifest["seen_tokens"] for one in loaded if "seen_tokens" in one.manifest]
        self.seen_tokens = min([self.filter_tokens, *seen])
        if precision == "int8" and not has_int8(self.device):
            raise UsageError("--precision int8 needs a CPU with VNNI. Leave it out, or set CUDA_VISIBLE_DEVICES=")
        if precision in ("auto", "int8") and has_int8(self.device):
            self._ranges = [one.manifest.get("activation_ranges") for one in loaded]
        if precision == "int8" and not all(self._ranges):
            without = next(str(one.directory) for one in loaded if not one.manifest.get("activation_ranges"))
            advice = "Leave it out, or, for a model of nmt train: nmt average-checkpoints RUN --data DIR"
            raise UsageError(f"{without} has no activation ranges, which --precision int8 needs. {advice}")
        self._precision = "auto" if precision == "int8" else precision
        if self.device.type == "cpu":
            self._devices = [self.device] * (workers or min(len(os.sched_getaffinity(0)), MAX_WORKERS))
        elif "LOCAL_RANK" not in os.environ:
            self._devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())][:workers]

    def _set(
        self, weights: list[Transformer], tokenizer: Tokenizer, settings: recipe.Recipe, device: torch.device
    ) -> None:
        self._ranges = [None] * len(weights)
        self._weights, self.tokenizer, self.recipe, self.device = weights, tokenizer, settings, device
        self.max_length = min(model.settings.max_length for model in weights)
        self.filter_tokens = min(settings.corpus.cleaning.max_tokens or self.max_length, self.max_length)
        self.counts: Counter[str] = Counter()
        self._devices, self._busy, self.idle = [device], False, True
        self._workers: Workers | None = None

    @classmethod
    def of(
        cls,
        model: Transformer,
        tokenizer: Tokenizer,
        settings: recipe.Recipe,
        dtype: torch.dtype,
        seen_tokens: float = math.inf,
    ) -> "Translator":
        """Return a Translator of a model in memory, without workers; it splits lines of more than `seen_tokens`."""
        translator = cls.__new__(cls)
        translator._set([model], tokenizer, settings, model.embedding.weight.device)
        translator.seen_tokens = int(min(translator.filter_tokens, seen_tokens))
        translator.dtype = dtype
        return translator

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        return choose_dtype(self._precision, self.device)

    @functools.cached_property
    def models(self) -> list[Transformer]:
        torch.get_device_module(self.device).set_device(self.device)  # graphs of steps are captured on the current one
        models = zip(self._weights, self._ranges, strict=True)
        return [for_inference(model.to(self.device), self.dtype, ranges) for model, ranges in models]

    def close(self) -> None:
        if self._workers:
            self._workers.close()
            self._workers = None

    def __exit__(self, *_: object) -> None:
        self.close()

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
    ) -> Iterator[Translation]:
        """Yield the translation of every line, in order, while lines are read; an empty one where there is no text.

        Where the next line is not there yet, let `lines` yield None: those before it are then translated meanwhile.
        `beam`, `alpha`, `extra_length` and `split` are those of a recipe; None takes the model's own.
        With `sampling`, `n_best` translations are drawn. `prefixes` say for each line how its translation must begin.
        """
        if self._busy:
            raise UsageError("this Translator is translating already. Take that to its end first, or use another")
        if beam is not None and n_best > beam and not sampling:
            raise UsageError(f"{n_best} hypotheses need a beam of {n_best} or more, not {beam}")
        given = {"beam": beam, "alpha": alpha, "extra_length": extra_length, "split": split}
        section = self.recipe.decoding.model_dump() | {name: v for name, v in given.items() if v is not None}
        chosen = recipe.from_plain({"decoding": section}, "this translation").decoding
        width, best = (1, 1) if sampling else (max(n_best, chosen.beam), n_best)
        settings = SearchSettings(width, chosen.alpha, chosen.extra_length, best, sampling=sampling)
        on_its_way = _Lines(self, lines, prefixes, chosen.split, n_best if sampling else 0)
        self._busy, complete = True, False
        try:
            if self._may_fork():
                self._workers = self._workers or Workers(self._devices, self._on)
                results = self._workers.search(on_its_way.segments(), settings)
            else:
                results = search_with_oom_retry(self.models, self.dtype, on_its_way.segments(), settings)
            for finished in itertools.chain(results, [[]]):
                for number, hypotheses in finished:
                    on_its_way.add_result(number, hypotheses)
                yield from on_its_way.finished(settings.alpha, n_best)
            if on_its_way.pending or not on_its_way.ended:
                raise StorageError("memory ran out while lines were read. Use less: --workers 1, or a lower --beam")
            complete = True
        finally:
            self._busy, self.idle = False, True
            if not complete:
                self.close()  # its processes are still searching

    def _may_fork(self) -> bool:
        """Return whether workers search: forks of a process that uses CUDA already cannot use it."""
        forked = self._workers is not None and self._workers.started
        on_cuda = self.device.type == "cuda" and torch.cuda.is_initialized()
        return len(self._devices) > 1 and (forked or not on_cuda)

    def _on(self, device: torch.device) -> tuple[list[Transformer], torch.dtype]:
        self.device = device
        return self.models, self.dtype

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
            for (_, tgt), values in zip(ids, score_targets(self.models, self.dtype, ids), strict=True):
                scored = Hypothesis(tgt[:-1], math.fsum(values), 0.0, values)
                yield segments.join(self.tokenizer, [scored], alpha)


@dataclass
class _Line:
    drafts: list[list[Segment]]  # its segments, once for each sample that is drawn
    open: int = 0  # segments without a result


class _Lines:
    def __init__(self, translator: Translator, lines: Lines, prefixes: Lines | None, split: bool, samples: int) -> None:
        self.translator, self.tokenizer, self.counts = translator, translator.tokenizer, translator.counts
        self.lines, self.prefixes = iter(lines), None if prefixes is None else iter(prefixes)
        self.split, self.samples = split, samples
        self.read, self.ended, self.ids = 0, False, itertools.count()
        self.pending: deque[_Line] = deque()  # read and not given back
        self.queue: deque[Segment] = deque()  # to be searched
        self.open: dict[int, tuple[_Line, Segment]] = {}  # without a result, by the segment's id

    def segments(self) -> Iterator[Segment | None]:
        """Yield what is to be searched; None where all that has come is being searched or finished already."""
        while self.pending or not self.ended:
            if not self.queue and not self.ended:
                self._read_chunk()
            yield self.queue.popleft() if self.queue else None

    def _read_chunk(self) -> None:
        """Queue the lines that are there, up to a chunk, long segments first: neighbours are then alike."""
        segments, size = list[Segment](), 0
        self.translator.idle = not self.pending
        for text in self.lines:
            if text is None:
                time.sleep(POLL_SECONDS if self.translator.idle else 0)
                break
            self.translator.idle = False
            segments += self._add(text)
            size += len(text) + 1
            if size >= CHUNK_CHARACTERS:
                break
        else:
            self.ended = True
        self.queue.extend(sorted(segments, key=lambda segment: -len(segment.ids)))

    def _add(self, text: str) -> list[Segment]:
        self.read += 1
        self.counts["lines"] += 1
        text, prefix = normalise(text), []
        if self.prefixes:
            forced = next(self.prefixes, None)
            if forced is None:
                raise DataError(f"there are fewer prefixes than lines: none for line {self.read:,}")
            prefix = self.tokenizer.target.encode([normalise(forced)])[0]
            self.counts["cut"] += len(prefix) >= self.translator.max_length
        ids = self.tokenizer.encode([text])[0]
        sources = [[*ids[: self.translator.max_length - 1], EOS]] if ids else []
        if self.split and len(ids) >= self.translator.seen_tokens:
            limits = self.translator.seen_tokens, self.translator.filter_tokens
            sources = segments.split_line(self.tokenizer, text, *limits)
            self.counts["split"] += len(sources) > 1
        self.counts["cut"] += not self.split and len(ids) >= self.translator.max_length
        line = _Line([[] for _ in range(max(1, self.samples))])
        self.pending.append(line)
        for place, source in enumerate(sources):
            for sample, draft in enumerate(line.drafts):
                draft.append(self._open(line, source, [] if place else prefix, (self.read, place, sample)))
        return [segment for samples in zip(*line.drafts, strict=True) for segment in samples]

    def _open(self, line: _Line, ids: list[int], prefix: list[int], key: tuple[int, ...], depth: int = 0) -> Segment:
        segment = Segment(next(self.ids), ids, prefix[: self.translator.max_length - 1], key, depth)
        self.open[segment.id] = line, segment
        line.open += 1
        return segment

    def add_result(self, number: int, hypotheses: list[Hypothesis]) -> None:
        """Take the result of a segment; where it is empty or repeats itself, queue the segment's halves."""
        line, segment = self.open.pop(number)
        segment.hypotheses = hypotheses
        line.open -= 1
        self.counts["tokens"] += sum(len(h.ids) for h in hypotheses)
        best = hypotheses[0].ids
        failed = not best or (segments.looping(best) and not segments.looping(segment.ids))
        if failed and self.split and not self.samples and segment.depth < MAX_RETRIES:
            halves = zip(segments.halves(self.tokenizer, segment.ids), (segment.prefix, []), strict=False)
            if opened := [self._open(line, *half, segment.key, segment.depth + 1) for half in halves]:
                place = line.drafts[0].index(segment)
                line.drafts[0][place : place + 1] = opened
                self.queue.extend(opened)
                self.counts["retried"] += 1

    def finished(self, alpha: float, n_best: int) -> Iterator[Translation]:
        """Yield the translations of the first lines, as far as all their segments have results."""
        while self.pending and not self.pending[0].open:
            line = self.pending.popleft()
            hypotheses = []
            for rank in range(n_best):
                draft, place = (line.drafts[rank], 0) if self.samples else (line.drafts[0], rank)
                parts = [segment.hypotheses[min(place, len(segment.hypotheses) - 1)] for segment in draft]
                hypotheses.append(segments.join(self.tokenizer, parts, alpha))
            yield Translation(hypotheses, [(one.ids, [*one.hypotheses[0].ids, EOS]) for one in line.drafts[0]])
