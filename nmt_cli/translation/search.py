"""Greedy and beam search, sampling, and the scores of given translations (section 6.1 of the paper).

Shapes: S slots (segments being searched), W hypotheses per slot, R = S x W rows, C candidates per slot or row,
T target positions, V vocabulary.

The batch stays full: a segment that is finished leaves its slot and the next one enters, at its own first position.
A segment's translation depends on its own source alone, up to the rounding of matrix products.

Which beam search: at every step the 2W best continuations of a slot are looked at. Those among the best W that end
with EOS are finished; the best W that do not end live on. With W = 1 that is greedy search, and EOS ends it. A slot
is done when no unfinished hypothesis can still beat its n-th best finished one, which is exact because a hypothesis'
log-probability only falls and its length penalty is at most the one at the longest length. Scores are
log-probability / ((5 + length) / 6) ^ alpha with EOS counted in both (Wu et al. 2016, without coverage).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nmt_cli.console import warn
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.errors import StorageError
from nmt_cli.transformer.attention import Layout
from nmt_cli.transformer.cache import DecoderCache
from nmt_cli.transformer.model import PAD, Transformer, pack
from nmt_cli.translation.candidates import Sampling, average, best_continuations
from nmt_cli.translation.segments import Hypothesis, Segment, length_penalty

ENCODE_TOKENS = 2048  # source tokens encoded at once, ahead of the slots they will fill
SCORE_TOKENS = 4096  # scored at once, on the longer side
CPU_ROWS, CUDA_ROWS = 256, 1024  # hypotheses computed at once
MAX_SOURCE_TOKENS = 1 << 16  # over all slots: bounds the memory of very long inputs


@dataclass(frozen=True)
class SearchSettings:
    """How to search: see recipe.Decoding. `best` hypotheses are returned per segment, at most `beam`.

    With `sampling`, `beam` is 1: a line that is to have several samples gives several segments.
    """

    beam: int = 4
    alpha: float = 0.6
    extra_length: int = 50
    best: int = 1
    rows: int | None = None
    sampling: Sampling | None = None


class _Slots:
    """The state of all segments being searched, as tensors with one row per slot."""

    def __init__(self, settings: SearchSettings, longest: int, device: torch.device) -> None:
        width = settings.beam
        self.settings, self.longest, self.device = settings, longest, device
        whole, real = {"dtype": torch.int64, "device": device}, {"dtype": torch.float64, "device": device}
        self.segments: list[Segment | None] = []
        self.finished: list[list[Hypothesis]] = []
        self.random: list[list[float]] = []  # decides what is drawn at each position
        self.position_S = torch.zeros(0, **whole)  # type: ignore[call-overload]
        self.limit_S = torch.zeros(0, **whole)  # type: ignore[call-overload]
        self.alive_SW = torch.zeros(0, width, **real)  # type: ignore[call-overload]
        self.last_SW = torch.zeros(0, width, **whole)  # type: ignore[call-overload]
        # Token t of hypothesis w was computed in row ancestors[w, t]; its id and running sum are stored there.
        self.ancestors_SWT = torch.zeros(0, width, 1, **whole)  # type: ignore[call-overload]
        self.tokens_STW = torch.zeros(0, 1, width, **whole)  # type: ignore[call-overload]
        self.sums_STW = torch.zeros(0, 1, width, **real)  # type: ignore[call-overload]

    def empty(self) -> list[int]:
        return [slot for slot, segment in enumerate(self.segments) if segment is None]

    def used(self) -> list[int]:
        return [slot for slot, segment in enumerate(self.segments) if segment is not None]

    def resize(self, keep: Sequence[int], slots: int) -> None:
        """Keep these slots, in this order, and add empty ones up to `slots`."""
        index, more = torch.tensor(keep, dtype=torch.int64, device=self.device), slots - len(keep)
        self.segments = [self.segments[s] for s in keep] + [None] * more
        self.finished = [self.finished[s] for s in keep] + [[] for _ in range(more)]
        self.random = [self.random[s] for s in keep] + [[] for _ in range(more)]
        for name in ("position_S", "limit_S", "alive_SW", "last_SW", "ancestors_SWT", "tokens_STW", "sums_STW"):
            old = getattr(self, name)
            setattr(self, name, torch.cat([old[index], old.new_zeros(more, *old.shape[1:])]))

    def start(self, slots: list[int], segments: list[Segment]) -> None:
        """Begin to search these segments in these slots."""
        limits = []
        for slot, segment in zip(slots, segments, strict=True):
            self.segments[slot], self.finished[slot] = segment, []
            limits.append(min(len(segment.ids) + len(segment.prefix) + self.settings.extra_length, self.longest))
            if self.settings.sampling:
                key = np.array([self.settings.sampling.seed, segment.key], np.uint64)  # a list may become floats
                generator = np.random.Generator(np.random.Philox(key=key))
                self.random[slot] = generator.random(limits[-1]).tolist()
        self.position_S[slots] = 0
        self.limit_S[slots] = torch.tensor(limits, device=self.device)
        self.alive_SW[slots] = -torch.inf
        self.alive_SW[slots, 0] = 0
        self.last_SW[slots] = PAD
        self.ancestors_SWT[slots] = -1
        self.ancestors_SWT[slots, :, 0] = torch.arange(self.settings.beam, device=self.device)

    def forced(self) -> tuple[list[int], list[int]]:
        """Return the rows whose next token is forced, and these tokens: prefixes, and EOS at the longest length."""
        rows: list[int] = []
        ids: list[int] = []
        width = self.settings.beam
        if any(segment and segment.prefix for segment in self.segments):
            for slot, (segment, position) in enumerate(zip(self.segments, self.position_S.tolist(), strict=True)):
                if segment and position < len(segment.prefix):
                    rows += range(slot * width, (slot + 1) * width)
                    ids += [segment.prefix[position]] * width
        for slot in (self.position_S + 1 >= self.limit_S).nonzero().flatten().tolist():
            rows += range(slot * width, (slot + 1) * width)
            ids += [EOS] * width
        return rows, ids

    def drawn(self) -> list[float]:
        """Return each slot's random number for its next token, where tokens are drawn."""
        if not self.settings.sampling:
            return []
        positions = self.position_S.tolist()
        return [numbers[p] if numbers else 0.0 for numbers, p in zip(self.random, positions, strict=True)]

    def advance(self, sums_SC: Tensor, parents_SC: Tensor, ids_SC: Tensor) -> Tensor:
        """Take one step, given each slot's best continuations, best first; return the parents of those that live on.

        Args:
            sums_SC: log-probabilities of the hypotheses continued so.
            parents_SC: which hypotheses are continued.
            ids_SC: with which tokens.
        """
        width, slots = self.settings.beam, len(self.segments)
        ends_SC = ids_SC == EOS
        self._finish(ends_SC[:, :width] & (sums_SC[:, :width] > -torch.inf), parents_SC, sums_SC)
        # With W = 1 the second best must not live on when the best has ended.
        alive_SC = sums_SC.masked_fill(ends_SC[:, :1] if width == 1 else ends_SC, -torch.inf)
        self.alive_SW, chosen_SW = alive_SC.topk(width, 1)
        parents_SW, self.last_SW = parents_SC.gather(1, chosen_SW), ids_SC.gather(1, chosen_SW)
        if int(self.position_S.max()) + 2 > (length := self.ancestors_SWT.shape[2]):
            self.ancestors_SWT = torch.nn.functional.pad(self.ancestors_SWT, (0, length), value=-1)
            self.tokens_STW = torch.nn.functional.pad(self.tokens_STW, (0, 0, 0, length))
            self.sums_STW = torch.nn.functional.pad(self.sums_STW, (0, 0, 0, length))
        every = torch.arange(slots, device=self.device)
        self.tokens_STW[every, self.position_S] = self.last_SW
        self.sums_STW[every, self.position_S] = self.alive_SW
        index = parents_SW[:, :, None].expand(-1, -1, self.ancestors_SWT.shape[2])
        self.ancestors_SWT = self.ancestors_SWT.gather(1, index)
        self.position_S += 1
        self.ancestors_SWT[every, :, self.position_S] = torch.arange(width, device=self.device)
        return parents_SW

    def _finish(self, ends_SW: Tensor, parents_SC: Tensor, sums_SC: Tensor) -> None:
        """Keep the hypotheses that have just ended and are among their slot's n best."""
        slots_E, candidates_E = ends_SW.nonzero(as_tuple=True)
        if not len(slots_E):
            return
        # Token t was chosen as row ancestors[t + 1] of the next position.
        rows_ET = self.ancestors_SWT[slots_E, parents_SC[slots_E, candidates_E], 1:].clamp_min(0)
        places_T = torch.arange(rows_ET.shape[1], device=self.device)
        ids_ET = self.tokens_STW[slots_E[:, None], places_T, rows_ET].tolist()
        sums_ET = self.sums_STW[slots_E[:, None], places_T, rows_ET].tolist()
        totals, positions = sums_SC[slots_E, candidates_E].tolist(), self.position_S[slots_E].tolist()
        for e, slot in enumerate(slots_E.tolist()):
            position, total, best = positions[e], totals[e], self.finished[slot]
            score = total / length_penalty(position + 1, self.settings.alpha)
            if self.segments[slot] is None or (len(best) == self.settings.best and score <= best[-1].score):
                continue
            steps = [b - a for a, b in itertools.pairwise([0.0, *sums_ET[e][:position], total])]
            best.append(Hypothesis(ids_ET[e][:position], total, score, steps))
            best.sort(key=lambda h: -h.score)
            del best[self.settings.best :]

    def done(self) -> list[int]:
        """Return the slots in which no unfinished hypothesis can win any more."""
        bounds = (self.alive_SW[:, 0] / length_penalty(self.limit_S.double(), self.settings.alpha)).tolist()
        over = (self.position_S >= self.limit_S).tolist()
        result = []
        for slot in self.used():
            best = self.finished[slot]
            won = len(best) == self.settings.best and best[-1].score >= bounds[slot]
            if won or over[slot] or bounds[slot] == -math.inf:
                result.append(slot)
        return result


def _coarse(count: int) -> int:
    """Return the next multiple of 8, or of about an eighth of `count`."""
    step = max(8, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def _fillers(lengths: list[int], limit: int) -> list[int]:
    """Return lengths, at most `limit`, of sentences to encode beside these: so batches come in few different shapes.

    oneDNN keeps a compiled kernel for every shape it has seen: without these memory grows for hours.
    """
    longest, count = min(_coarse(max(lengths)), limit), _coarse(len(lengths) + 1)
    while True:
        extra = count - len(lengths) - 1
        rest = _coarse(sum(lengths) + longest + extra) - sum(lengths) - longest
        if rest <= extra * longest:
            break
        count = _coarse(count + 1)
    whole, part = divmod(rest - extra, longest - 1) if longest > 1 else (0, 0)
    ones = extra - whole - (part > 0)
    return [longest] * (1 + whole) + [part + 1] * (part > 0) + [1] * ones


class _Feed:
    """Encodes segments ahead, in their order, and hands them out."""

    def __init__(self, segments: Iterator[Segment | None], decoders: list[DecoderCache], longest: int) -> None:
        self.segments, self.decoders, self.longest = segments, decoders, longest
        self.ended = False
        self.ready: list[Segment] = []
        self.start = 0  # of the first one that is ready, in what was encoded
        self.key_values: list[list[Tensor]] = []

    def _encode(self) -> None:
        tokens = 0
        while tokens < ENCODE_TOKENS:
            try:
                segment = next(self.segments)
            except StopIteration:
                self.ended = True
                break
            if segment is None:
                break
            self.ready.append(segment)
            tokens += len(segment.ids)
        if self.ready:
            device = self.decoders[0].device
            lengths = [len(segment.ids) for segment in self.ready]
            more = _fillers(lengths, self.longest)
            ids = [i for segment in self.ready for i in segment.ids]
            src_N = torch.tensor(ids + [EOS] * sum(more), device=device)
            layout = Layout(lengths + more, device)
            self.key_values = [decoder.encode(src_N, layout) for decoder in self.decoders]
            self.start = 0

    def take(self, count: int, tokens: int) -> tuple[list[Segment], list[int]]:
        """Return the next segments and their first encoded rows: at most so many, of at most so many tokens.

        There may be none, for now or for good (`ended`).
        """
        if not self.ready and not self.ended:
            self._encode()
        starts: list[int] = []
        for segment in self.ready[:count]:
            if len(segment.ids) > tokens:
                break
            starts.append(self.start)
            self.start, tokens = self.start + len(segment.ids), tokens - len(segment.ids)
        segments, self.ready = self.ready[: len(starts)], self.ready[len(starts) :]
        return segments, starts


@torch.inference_mode()
def search(
    models: Sequence[Transformer], dtype: torch.dtype, segments: Iterator[Segment | None], settings: SearchSettings
) -> Iterator[tuple[int, list[Hypothesis]] | None]:
    """Yield (id of the segment, its best hypotheses, best first) as segments finish; None where all are finished
    and the next one has not come yet.

    Args:
        models: one model, or an ensemble with one vocabulary; as `for_inference` returns them.
        dtype: arithmetic.
        segments: read when there is room; None says that there is none just now. Neighbours should be of one length.
        settings: of the search.

    Raises:
        DivergedError: the model's numbers are not finite.
    """
    device = models[0].embedding.weight.device
    most = max(1, _rows(models, settings) // settings.beam)
    decoders = [DecoderCache(model, dtype, settings.beam) for model in models]
    longest = min(model.settings.max_length for model in models)
    feed, slots = _Feed(segments, decoders, longest), _Slots(settings, longest, device)
    while True:
        _fill(feed, slots, decoders, most)
        used = slots.used()
        if not used:
            if feed.ended:
                return
            yield None
            continue
        if (count := _rounded(len(used), most)) < len(slots.segments):
            _resize(slots, decoders, used, count)
        if empty := slots.empty():  # empty slots step along, and must not run out of positions
            slots.position_S[empty] = 0
        logits = [decoder.step(slots.last_SW, slots.position_S) for decoder in decoders]
        best = best_continuations(average(logits), slots.alive_SW, slots.forced(), settings.sampling, slots.drawn())
        parents_SW = slots.advance(*best)
        for decoder in decoders:
            decoder.reorder(parents_SW)
        done = slots.done()
        for decoder in decoders if done else ():
            decoder.leave(done)
        results = []
        for slot in done:
            results.append((slots.segments[slot].id, slots.finished[slot]))  # type: ignore[union-attr]
            slots.segments[slot] = None
        yield from results


def _fill(feed: _Feed, slots: _Slots, decoders: list[DecoderCache], most: int) -> None:
    """Put the next segments into slots until there is no room or none is there."""
    while len(used := slots.used()) < most:
        room = MAX_SOURCE_TOKENS - sum(len(segment.ids) for segment in slots.segments if segment) if used else 1 << 60
        segments, starts = feed.take(most - len(used), room)
        if not segments:
            break
        if len(segments) > len(slots.empty()):
            _resize(slots, decoders, range(len(slots.segments)), _rounded(len(used) + len(segments), most))
        empty = slots.empty()[: len(segments)]
        for decoder, key_values in zip(decoders, feed.key_values, strict=True):
            decoder.fill(empty, key_values, starts, [len(segment.ids) for segment in segments])
        slots.start(empty, segments)


def _rows(models: Sequence[Transformer], settings: SearchSettings) -> int:
    return settings.rows or (CUDA_ROWS if models[0].embedding.weight.is_cuda else CPU_ROWS)


def _rounded(count: int, most: int) -> int:
    """Return how many slots to have for so many segments: few different numbers, as kernels are kept for each."""
    return min(most, 1 << (count - 1).bit_length())


def _resize(slots: _Slots, decoders: list[DecoderCache], keep: Sequence[int], count: int) -> None:
    slots.resize(keep, count)
    for decoder in decoders:
        decoder.resize(keep, count)


def search_with_oom_retry(
    models: Sequence[Transformer], dtype: torch.dtype, segments: Iterator[Segment | None], settings: SearchSettings
) -> Iterator[tuple[int, list[Hypothesis]] | None]:
    """Do what `search` does; where memory does not suffice, start the unfinished segments again in smaller batches.

    Raises:
        StorageError: there is too little memory for one segment.
    """
    rows = _rows(models, settings)
    unfinished: dict[int, Segment] = {}

    def feed() -> Iterator[Segment | None]:
        yield from list(unfinished.values())
        for segment in segments:
            if segment is not None:
                unfinished[segment.id] = segment
            yield segment

    while True:
        try:
            for result in search(models, dtype, feed(), replace(settings, rows=rows)):
                if result:
                    del unfinished[result[0]]
                yield result
            return
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(error):
                raise
        rows //= 2
        if rows < settings.beam:
            raise StorageError("there is too little memory to translate one sentence. Lower --beam")
        warn(f"out of memory: going on with {rows} hypotheses at once")


@torch.inference_mode()
def score_targets(
    models: Sequence[Transformer], dtype: torch.dtype, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[list[float]]:
    """Return the log-probability of every target token, given its source and the target before it.

    Pairs of similar length are computed together, within SCORE_TOKENS.

    Args:
        models: as `for_inference` returns them; their probabilities are averaged.
        dtype: arithmetic.
        pairs: source and target ids, both closed by EOS.
    """
    device = models[0].embedding.weight.device
    order = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][1]), len(pairs[i][0])))
    results: list[list[float]] = [[] for _ in pairs]
    while order:
        count = 1
        while count < len(order) and (count + 1) * max(map(len, pairs[order[count]])) <= SCORE_TOKENS:
            count += 1
        chosen, order = order[:count], order[count:]
        sides = [[np.asarray(pairs[i][side]) for i in chosen] for side in (0, 1)]
        src, tgt = ((np.concatenate(side), np.array([len(ids) for ids in side])) for side in sides)
        batch = pack(*src, *tgt, device)
        values_MN = []
        for model in models:
            logits_NV = model.logits(model(batch, dtype=dtype))
            wide = torch.promote_types(logits_NV.dtype, torch.float32)
            values_MN.append(
                torch.log_softmax(logits_NV.to(wide), -1).gather(1, batch.tgt_out_N[:, None])[:, 0].double()
            )
        mean_N = torch.stack(values_MN).logsumexp(0) - math.log(len(models))
        for i, values in zip(chosen, mean_N.split(batch.tgt.lengths_B.tolist()), strict=True):
            results[i] = values.tolist()
    return results
