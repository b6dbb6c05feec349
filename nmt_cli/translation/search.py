"""Greedy and beam search, sampling, and the scores of given translations (section 6.1 of the paper).

Shapes: S slots (segments being searched), W hypotheses per slot, R = S x W rows, C candidates per slot or row,
T target positions, E hypotheses that have just ended, V vocabulary. A segment that is finished leaves its slot and the
next one enters, at its own first position: its translation depends on its own source alone, up to rounding.

Of a slot's 2W best continuations those among the best W that end with EOS are finished; the best W that do not end live
on. With W = 1 that is greedy search, and EOS ends it. A slot is done when no unfinished hypothesis can still beat its
n-th best finished one: log-probabilities only fall, and no length penalty is above that of the longest length. Scores
are log-probability / ((5 + length) / 6) ^ alpha with EOS counted in both (Wu et al. 2016, without coverage).
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
MAX_SOURCE_TOKENS = 1 << 16  # over all slots: bounds the memory of very long inputs

Models = Sequence[Transformer]  # as `for_inference` returns them
Segments = Iterator[Segment | None]  # None: there is none just now
Results = Iterator[tuple[int, list[Hypothesis]] | None]  # None: all are finished, and the next has not come yet


@dataclass(frozen=True)
class SearchSettings:
    beam: int = 4  # 1 with `sampling`: a line that is to have several samples gives several segments
    alpha: float = 0.6
    extra_length: int = 50
    best: int = 1  # hypotheses returned per segment, at most `beam`
    rows: int | None = None  # hypotheses computed at once
    sampling: Sampling | None = None


def rows_at_once(settings: SearchSettings, device: torch.device) -> int:
    return settings.rows or (1024 if device.type == "cuda" else 256)


class _Slots:
    """The state of all segments being searched, as tensors with one row per slot, and the models' caches."""

    def __init__(self, models: Models, dtype: torch.dtype, feed: Segments, settings: SearchSettings) -> None:
        width, device = settings.beam, models[0].embedding.weight.device
        self.decoders = [DecoderCache(model, dtype, width) for model in models]
        self.settings, self.device = settings, device
        self.longest = min(model.settings.max_length for model in models)
        self.most = max(1, rows_at_once(settings, device) // width)
        self.feed, self.ended = feed, False
        self.ready: list[tuple[Segment, int]] = []  # encoded, with the first row of each
        self.key_values: list[list[Tensor]] = []
        self.segments: list[Segment | None] = []
        self.position_S, self.limit_S = (torch.zeros(0, dtype=torch.int64, device=device) for _ in range(2))
        self.alive_SW = torch.zeros(0, width, dtype=torch.float64, device=device)
        self.last_SW = torch.zeros(0, width, dtype=torch.int64, device=device)
        # What decides the draw at each position.
        self.random_ST = torch.zeros(0, self.longest if settings.sampling else 0, dtype=torch.float64, device=device)
        # Token t of hypothesis w was computed in row ancestors[w, t]; its id and running sum are stored there.
        self.ancestors_SWT = torch.zeros(0, width, 1, dtype=torch.int64, device=device)
        self.tokens_STW = torch.zeros(0, 1, width, dtype=torch.int64, device=device)
        self.sums_STW = torch.zeros(0, 1, width, dtype=torch.float64, device=device)

    def used(self) -> list[int]:
        return [slot for slot, segment in enumerate(self.segments) if segment]

    def _encode(self) -> None:
        tokens = 0
        for segment in self.feed:
            if segment is None:
                break
            self.ready.append((segment, tokens))
            tokens += len(segment.ids)
            if tokens >= ENCODE_TOKENS:
                break
        else:
            self.ended = True
        if self.ready:
            lengths = [len(segment.ids) for segment, _ in self.ready]
            more = _fillers(lengths, self.longest)
            ids = [i for segment, _ in self.ready for i in segment.ids]
            src_N = torch.tensor(ids + [EOS] * sum(more), device=self.device)
            layout = Layout(lengths + more, self.device)
            self.key_values = [decoder.encode(src_N, layout) for decoder in self.decoders]

    def fill(self) -> None:
        while len(used := self.used()) < self.most:
            if not self.ready and not self.ended:
                self._encode()
            room = MAX_SOURCE_TOKENS - sum(len(segment.ids) for segment in self.segments if segment)
            sums = itertools.accumulate(len(segment.ids) for segment, _ in self.ready[: self.most - len(used)])
            count = sum(total <= room or not used for total in sums)
            if not count:
                break
            segments, starts = zip(*self.ready[:count], strict=True)
            self.ready = self.ready[count:]
            if len(used) + len(segments) > len(self.segments):
                self._resize(range(len(self.segments)), len(used) + len(segments))
            slots = [slot for slot, segment in enumerate(self.segments) if not segment][: len(segments)]
            for decoder, key_values in zip(self.decoders, self.key_values, strict=True):
                decoder.fill(slots, key_values, starts, [len(segment.ids) for segment in segments])
            limits = [len(segment.ids) + len(segment.prefix) + self.settings.extra_length for segment in segments]
            for slot, segment, limit in zip(slots, segments, limits, strict=True):
                self.segments[slot], segment.hypotheses = segment, []
                if self.settings.sampling:
                    key = np.array([self.settings.sampling.seed, segment.key], np.uint64)  # a list may become floats
                    numbers = np.random.Generator(np.random.Philox(key=key)).random(min(limit, self.longest))
                    self.random_ST[slot, : len(numbers)] = torch.from_numpy(numbers)
            self.position_S[slots], self.last_SW[slots] = 0, PAD
            self.limit_S[slots] = torch.tensor(limits, device=self.device).clamp_max(self.longest)
            self.alive_SW[slots] = -torch.inf
            self.alive_SW[slots, 0] = 0
            self.ancestors_SWT[slots] = -1
            self.ancestors_SWT[slots, :, 0] = torch.arange(self.settings.beam, device=self.device)

    def _resize(self, keep: Sequence[int], count: int) -> None:
        """Keep these slots, in this order, with room for `count`; in few sizes, as kernels are kept for each."""
        size = min(self.most, 1 << (count - 1).bit_length())
        if size == len(self.segments):
            return
        index, more = torch.tensor(keep, dtype=torch.int64, device=self.device), size - len(keep)
        self.segments = [self.segments[s] for s in keep] + [None] * more
        for name, old in list(vars(self).items()):
            if isinstance(old, Tensor):
                setattr(self, name, torch.cat([old[index], old.new_zeros(more, *old.shape[1:])]))
        for decoder in self.decoders:
            decoder.resize(keep, size)

    def step(self) -> None:
        used = self.used()
        self._resize(used, len(used))
        if len(used) < len(self.segments):  # empty slots step along, and must not run out of positions
            self.position_S[[slot for slot, segment in enumerate(self.segments) if not segment]] = 0
        scores_RV = average([decoder.step(self.last_SW, self.position_S) for decoder in self.decoders])
        sampling = self.settings.sampling
        draw = (sampling, self.random_ST.gather(1, self.position_S[:, None])) if sampling else None
        parents_SW = self._advance(*best_continuations(scores_RV, self.alive_SW, self._forced(), draw))
        for decoder in self.decoders:
            decoder.reorder(parents_SW)

    def _forced(self) -> tuple[list[int], list[int]]:
        """Return the rows whose next token is forced, and these tokens: prefixes, and EOS at the longest length."""
        tokens: dict[int, int] = {}
        if any(segment and segment.prefix for segment in self.segments):
            for slot, (segment, position) in enumerate(zip(self.segments, self.position_S.tolist(), strict=True)):
                if segment and position < len(segment.prefix):
                    tokens[slot] = segment.prefix[position]
        for slot in (self.position_S + 1 >= self.limit_S).nonzero().flatten().tolist():
            tokens[slot] = EOS
        width = self.settings.beam
        rows = [row for slot in tokens for row in range(slot * width, (slot + 1) * width)]
        return rows, [token for token in tokens.values() for _ in range(width)]

    def _advance(self, sums_SC: Tensor, parents_SC: Tensor, ids_SC: Tensor) -> Tensor:
        """Take what `best_continuations` returns; return the parents of those hypotheses that live on."""
        width = self.settings.beam
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
        every = torch.arange(len(self.segments), device=self.device)
        self.tokens_STW[every, self.position_S] = self.last_SW
        self.sums_STW[every, self.position_S] = self.alive_SW
        index = parents_SW[:, :, None].expand(-1, -1, self.ancestors_SWT.shape[2])
        self.ancestors_SWT = self.ancestors_SWT.gather(1, index)
        self.position_S += 1
        self.ancestors_SWT[every, :, self.position_S] = torch.arange(width, device=self.device)
        return parents_SW

    def _finish(self, ends_SW: Tensor, parents_SC: Tensor, sums_SC: Tensor) -> None:
        slots_E, candidates_E = ends_SW.nonzero(as_tuple=True)
        if not len(slots_E):
            return
        # Token t was chosen as row ancestors[t + 1] of the next position.
        rows_ET = self.ancestors_SWT[slots_E, parents_SC[slots_E, candidates_E], 1:].clamp_min(0)
        places_T = torch.arange(rows_ET.shape[1], device=self.device)
        ids_ET, sums_ET = (x[slots_E[:, None], places_T, rows_ET] for x in (self.tokens_STW, self.sums_STW))
        columns = (slots_E, self.position_S[slots_E], sums_SC[slots_E, candidates_E], ids_ET, sums_ET)
        for slot, position, total, ids_T, sums_T in zip(*(column.tolist() for column in columns), strict=True):
            if segment := self.segments[slot]:
                score = total / length_penalty(position + 1, self.settings.alpha)
                steps = [b - a for a, b in itertools.pairwise([0.0, *sums_T[:position], total])]
                segment.hypotheses.append(Hypothesis(ids_T[:position], total, score, steps))
                segment.hypotheses.sort(key=lambda h: -h.score)
                del segment.hypotheses[self.settings.best :]

    def pop_done(self) -> list[tuple[int, list[Hypothesis]]]:
        """Return the segments in which no unfinished hypothesis can win any more, and free their slots."""
        bounds_S = self.alive_SW[:, 0] / length_penalty(self.limit_S.double(), self.settings.alpha)
        bounds_S[self.position_S >= self.limit_S] = -math.inf
        results, slots = [], []
        for slot, (segment, bound) in enumerate(zip(self.segments, bounds_S.tolist(), strict=True)):
            best = segment.hypotheses if segment else []
            if segment and (bound == -math.inf or (len(best) == self.settings.best and best[-1].score >= bound)):
                results.append((segment.id, best))
                slots.append(slot)
                self.segments[slot] = None
        for decoder in self.decoders if slots else ():
            decoder.leave(slots)
        return results


def _coarse(count: int) -> int:
    step = max(8, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def _fillers(lengths: list[int], limit: int) -> list[int]:
    """Return lengths, at most `limit`, of sentences to encode beside these: batches then have few shapes, for each of
    which oneDNN keeps a compiled kernel. Without these memory grows for hours."""
    longest, count = min(_coarse(max(lengths)), limit), _coarse(len(lengths) + 1)
    while True:
        extra = count - len(lengths) - 1
        rest = _coarse(sum(lengths) + longest + extra) - sum(lengths) - longest
        if rest <= extra * longest:
            break
        count = _coarse(count + 1)
    whole, part = divmod(rest - extra, longest - 1) if longest > 1 else (0, 0)
    return [longest] * (1 + whole) + [part + 1] * (part > 0) + [1] * (extra - whole - (part > 0))


@torch.inference_mode()
def search(models: Models, dtype: torch.dtype, segments: Segments, settings: SearchSettings) -> Results:
    """Yield the id of each segment with its best hypotheses, best first, as segments finish.

    `segments` are read when there is room; neighbours should be alike.
    """
    slots = _Slots(models, dtype, segments, settings)
    while True:
        slots.fill()
        if slots.used():
            slots.step()
            yield from slots.pop_done()
        elif slots.ended:
            return
        else:
            yield None


def search_with_oom_retry(models: Models, dtype: torch.dtype, segments: Segments, settings: SearchSettings) -> Results:
    """Search; where memory does not suffice, start the unfinished segments again in smaller batches."""
    rows = rows_at_once(settings, models[0].embedding.weight.device)
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
def score_targets(models: Models, dtype: torch.dtype, pairs: Sequence[Sequence[Sequence[int]]]) -> list[list[float]]:
    """Return the log-probability of every target token, given its source and the target before it, both with EOS."""
    order = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][1]), len(pairs[i][0])))
    results: list[list[float]] = [[] for _ in pairs]
    while order:
        count = 1
        while count < len(order) and (count + 1) * max(map(len, pairs[order[count]])) <= SCORE_TOKENS:
            count += 1
        chosen, order = order[:count], order[count:]
        ids = [[np.asarray(pairs[i][side]) for i in chosen] for side in (0, 1)]
        src, tgt = ((np.concatenate(side), np.array(list(map(len, side)))) for side in ids)
        batch = pack(*src, *tgt, models[0].embedding.weight.device)
        gold = []
        for model in models:
            scores_NV = torch.log_softmax(average([model.logits(model(batch, dtype=dtype))]), -1)
            gold.append(scores_NV.gather(1, batch.tgt_out_N[:, None].long()).double())
        mean_N1 = torch.stack(gold).logsumexp(0) - math.log(len(models))
        for i, values_T1 in zip(chosen, mean_N1.split(tgt[1].tolist()), strict=True):
            results[i] = values_T1.flatten().tolist()
    return results
