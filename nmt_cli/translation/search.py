"""Greedy and beam search, sampling, and scoring of given translations, with torch.

The search follows section 6.1 of "Attention Is All You Need". GPUs use it, and tests compare it with engine.c, which
follows the same rules.

Shapes: S slots, W hypotheses per slot (the beam), R = S x W rows, C candidates per slot, T target positions, V
vocabulary. A slot holds one segment while the segment is searched. When a segment is done, the next waiting segment
takes its slot and starts at position 0, while the other slots continue. Except for rounding, the other slots do not
affect a segment's translation.

Each step finds the 2W best continuations in each slot. Any of the best W that end with EOS are finished. The best W
without EOS continue. With W = 1 this is greedy search, and the first EOS ends it.

The score of a finished hypothesis is its log-probability divided by the length penalty (Wu et al. 2016, without
coverage). The log-probability and the length include EOS. A slot is done when no unfinished hypothesis can beat the
n-th best finished one (n = `n_best`) within 1 + 10 alpha more tokens. More tokens can only lower a log-probability, and
the length penalty grows with the length. Therefore the score that an unfinished hypothesis can reach within this limit
is at most its current log-probability, divided by the penalty of the greatest length. Without the limit of 1 + 10 alpha
tokens, the search of 4,600 sentences took up to 1.5 times as many steps, depending on the text, and gave the same
translations.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.system.errors import NOT_FINITE, DivergedError
from nmt_cli.transformer.attention import Int64s, Layout, block_bounds
from nmt_cli.transformer.attention_scores import attention_scores
from nmt_cli.transformer.cache import DecoderCache, resized_array
from nmt_cli.transformer.hardware import Replayed
from nmt_cli.transformer.model import PAD, Batch, Transformer, pack, without_eos
from nmt_cli.translation.candidates import best_continuations, continuations_of_each, widened
from nmt_cli.translation.constraints import START, Candidate, State
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.queue import WorkerQueue
from nmt_cli.translation.retry import search_within_memory
from nmt_cli.translation.segments import Hypothesis, Segment, length_penalty

ENCODE_TOKENS = {"cpu": 2048, "cuda": 16384}  # source tokens encoded together; their segments may wait for slots
LOOKAHEAD = 10  # an unfinished hypothesis counts as able to win only within 1 + LOOKAHEAD * alpha more tokens
BATCH_TOKENS = 4096  # maximum pairs in a batch to score, times tokens on the longer side of its last pair
MAX_SOURCE_TOKENS = 1 << 16  # maximum source tokens in all slots together, to limit the memory

Float64s = npt.NDArray[np.float64]
Ids = Sequence[int]
Models = Sequence[Transformer]  # each prepared by `for_inference`


def rows_at_once(device: torch.device) -> int:
    return 1024 if device.type == "cuda" else 384


class Slots:
    """The segments that are being searched. All have the same options.

    The models' caches are on the device. All other state is on the host, in arrays with one row per slot. Each step
    copies one tensor to the host: the best continuations.
    """

    def __init__(
        self, models: Models, dtype: torch.dtype, options: SearchOptions, *, constrained: bool, rows: int
    ) -> None:
        width = options.beam
        self.options = options
        self.constrained = constrained
        self.device = models[0].embedding.weight.device
        self.cache = DecoderCache(models, dtype, width)
        self.replayed = Replayed(self.device, self.cache.storage)
        self.longest = min(model.settings.max_length for model in models)
        self.source_eos = models[0].settings.source_eos
        self.max_slots = max(1, rows // width)
        self.ready: list[tuple[Segment, int]] = []  # encoded segments, each with its first row in `key_values`
        self.key_values: list[Tensor] = []
        self.segments: list[Segment | None] = []
        self.generators: list[Any] = []  # for each slot, a random number generator, or None if nothing is sampled
        self.states: list[list[State]] = []  # for each slot, the constraint state of each hypothesis
        self.position_S = np.zeros(0, np.int64)
        self.limit_S = np.zeros(0, np.int64)
        vocabulary = cast(nn.Linear, models[0].output).out_features
        # True for each token that is not in the shortlist
        self.excluded_SV = np.zeros((0, vocabulary if options.shortlist else 0), bool)
        self.alive_SW = np.zeros((0, width))  # the log-probability of each unfinished hypothesis, or -inf
        self.last_SW = np.zeros((0, width), np.int64)
        self.tokens_SWT = np.zeros((0, width, 64), np.int32)  # the ids of each hypothesis
        self.sums_SWT = np.zeros((0, width, 64))  # the log-probability of each hypothesis up to each position

    def takes(self, segment: Segment) -> bool:
        return self.options == segment.options and self.constrained == (segment.constraints is not None)

    def used(self) -> list[int]:
        return [slot for slot, segment in enumerate(self.segments) if segment]

    def encode(self, segments: Sequence[Segment]) -> None:
        """Encode segments, and put them in `ready`, which must be empty."""
        sources = [segment.source(self.source_eos) for segment in segments]
        lengths = np.array(list(map(len, sources)))
        self.ready = list(zip(segments, (lengths.cumsum() - lengths).tolist(), strict=True))
        src_N = torch.tensor(list(itertools.chain.from_iterable(sources)), device=self.device)
        self.key_values = self.cache.encode(src_N, Layout(lengths, self.device, block_bounds(lengths, lengths)))

    def fill(self, queue: WorkerQueue) -> None:
        """Put encoded segments into free slots. When `ready` is empty, take segments from the queue and encode them."""
        while len(used := self.used()) < self.max_slots:
            if not self.ready and (taken := take(queue, self.device)):
                self.encode(taken)
            room = MAX_SOURCE_TOKENS - sum(len(segment.ids) for segment in self.segments if segment)
            sums = itertools.accumulate(len(segment.ids) for segment, _ in self.ready[: self.max_slots - len(used)])
            count = sum(total <= room for total in sums) or bool(self.ready and not used)
            if not count:
                break
            segments, starts = zip(*self.ready[:count], strict=True)
            self.ready = self.ready[count:]
            if len(used) + len(segments) > len(self.segments):
                self._resize(range(len(self.segments)), len(used) + len(segments))
            slots = [slot for slot, segment in enumerate(self.segments) if not segment][: len(segments)]
            lengths = [len(segment.source(self.source_eos)) for segment in segments]
            self.cache.fill(slots, self.key_values, starts, lengths)
            for slot, segment in zip(slots, segments, strict=True):
                self.segments[slot] = segment
                self.limit_S[slot] = segment.limit(self.longest)
                self.generators[slot] = segment.random()
                segment.hypotheses = []
                self.states[slot] = [START] * self.options.beam
                if self.options.shortlist:
                    self.excluded_SV[slot] = True
                    self.excluded_SV[slot, self.options.shortlist.tokens(segment)] = False
            self.position_S[slots] = 0
            self.last_SW[slots] = PAD
            self.alive_SW[slots] = [0.0] + [-math.inf] * (self.options.beam - 1)

    def _resize(self, keep: Sequence[int], count: int) -> None:
        """Keep the slots `keep`, in this order, and make room for `count` slots.

        The number of slots is always a power of 2 or the maximum, because torch has to select kernels again for each
        new number. If steps are captured as CUDA graphs, halving the number of slots is not worth a new capture.
        """
        size, room = min(self.max_slots, 1 << (count - 1).bit_length()), len(self.segments)
        if size == room or (self.cache.captured and room / 4 < size < room):
            return
        more = [None] * (size - len(keep))
        self.segments = [*(self.segments[s] for s in keep), *more]
        self.generators = [*(self.generators[s] for s in keep), *more]
        self.states = [*(self.states[s] for s in keep), *([] for _ in more)]
        for name, old in list(vars(self).items()):
            if isinstance(old, np.ndarray):
                setattr(self, name, resized_array(old, keep, size))
        self.cache.resize(keep, size)

    def step(self) -> None:
        """Advance all segments by one token. Raises DivergedError if scores are not finite."""
        used = self.used()
        self._resize(used, len(used))
        rows = self.last_SW.reshape(-1), self.position_S.repeat(self.options.beam), *self.cache.allocate_entries()
        forced_S = self._forced()
        if self.constrained:
            self.cache.reorder(self._step_constrained(forced_S, *rows))
            return
        uniform_S1 = np.array([[each.random() if each else 0.0] for each in self.generators])
        if not (self.cache.captured or forced_S.any()):
            forced_S = forced_S[:0]
        arguments = self.excluded_SV, self.alive_SW, forced_S, uniform_S1
        best_3SC = self.replayed(self._best, *arguments, *rows).cpu().numpy()
        if np.isnan(best_3SC).any():
            raise DivergedError(NOT_FINITE)
        self.cache.reorder(self._advance(best_3SC[0], *best_3SC[1:].astype(np.int64)))

    def _best(
        self, excluded_SV: Tensor, alive_SW: Tensor, forced_S: Tensor, uniform_S1: Tensor, *rows: Tensor
    ) -> Tensor:
        logits = self._shortlisted(self.cache.step(*rows), excluded_SV)
        return best_continuations(logits, alive_SW, forced_S, self.options.sampling, uniform_S1)

    def _best_of_each(self, excluded_SV: Tensor, alive_SW: Tensor, wanted_SWM: Tensor, *rows: Tensor) -> Tensor:
        return continuations_of_each(self._shortlisted(self.cache.step(*rows), excluded_SV), alive_SW, wanted_SWM)

    def _shortlisted(self, logits: list[Tensor], excluded_SV: Tensor) -> list[Tensor]:
        """Return the logits of each model, with -inf for tokens that are not in a slot's shortlist."""
        if not self.options.shortlist:
            return logits
        excluded_RV = excluded_SV.repeat_interleave(self.options.beam, 0)
        return [logits_RV.masked_fill(excluded_RV, -torch.inf) for logits_RV in logits]

    def _step_constrained(self, forced_S: Int64s, *rows: npt.NDArray[Any]) -> Int64s:
        """Advance with the continuations that the constraints choose. Return the parents of the new hypotheses."""
        arguments = self.excluded_SV, self.alive_SW, self._wanted(forced_S)
        best = self.replayed(self._best_of_each, *arguments, *rows).cpu().numpy()
        if np.isnan(best).any():
            raise DivergedError(NOT_FINITE)
        sums_SWC, ids_SWC = best[0], best[1].astype(np.int64)
        best_3SC = np.zeros((3, len(self.segments), 2 * self.options.beam))
        best_3SC[0] = -math.inf
        for slot, segment in enumerate(self.segments):
            if segment and segment.constraints:
                possible_WC = sums_SWC[slot] > -math.inf
                if forced_S[slot]:
                    possible_WC &= ids_SWC[slot] == forced_S[slot]
                pairs = list(zip(*possible_WC.nonzero(), strict=True))
                sums = {(row, int(ids_SWC[slot, row, c])): float(sums_SWC[slot, row, c]) for row, c in pairs}
                candidates = [Candidate(total, int(row), token) for (row, token), total in sums.items()]
                chosen = segment.constraints.choose(candidates, self.states[slot], self.options.beam)
                for index, candidate in enumerate(chosen):
                    best_3SC[:, slot, index] = candidate
        parents_SW = self._advance(best_3SC[0], *best_3SC[1:].astype(np.int64))
        for slot, segment in enumerate(self.segments):
            if segment and segment.constraints:
                continued = zip(parents_SW[slot].tolist(), self.last_SW[slot].tolist(), strict=True)
                before, after = self.states[slot], segment.constraints.after
                self.states[slot] = [after(before[parent], token) for parent, token in continued]
        return parents_SW

    def _wanted(self, forced_S: Int64s) -> Int64s:
        """Return the next tokens that advance the constraints of each hypothesis, S x W x M, padded with PAD."""
        wanted = dict[tuple[int, int], list[int]]()
        for slot, segment in enumerate(self.segments):
            if segment and segment.constraints:
                for row, state in enumerate(self.states[slot]):
                    next_ = segment.constraints.wanted(state)
                    wanted[slot, row] = [int(forced_S[slot])] if forced_S[slot] else next_
        most = max(1, *map(len, wanted.values()))
        wanted_SWM = np.full((len(self.segments), self.options.beam, 1 << (most - 1).bit_length()), PAD)
        for (slot, row), ids in wanted.items():
            wanted_SWM[slot, row, : len(ids)] = ids
        return wanted_SWM

    def _forced(self) -> Int64s:
        """Return the forced next token of each slot: EOS at the length limit, the next token of a prefix, or PAD."""
        forced_S = np.where((self.position_S + 1 >= self.limit_S) & (self.limit_S > 0), EOS, PAD)
        for slot, segment in enumerate(self.segments):
            if segment and self.position_S[slot] < len(segment.prefix) and not forced_S[slot]:
                forced_S[slot] = segment.prefix[self.position_S[slot]]
        return forced_S

    def _advance(self, sums_SC: Float64s, parents_SC: Int64s, ids_SC: Int64s) -> Int64s:
        """Advance with the best continuations. Return the parents of the new hypotheses."""
        width, every_S1 = self.options.beam, np.arange(len(self.segments))[:, None]
        ends_SC = ids_SC == EOS
        self._finish(ends_SC[:, :width] & (sums_SC[:, :width] > -math.inf), parents_SC, sums_SC)
        # With W = 1, the second best must not continue after the best has ended.
        alive_SC = np.where(ends_SC[:, :1] if width == 1 else ends_SC, -math.inf, sums_SC)
        chosen_SW = torch.from_numpy(alive_SC).topk(width, 1)[1].numpy()
        parents_SW: Int64s = parents_SC[every_S1, chosen_SW]
        self.alive_SW, self.last_SW = alive_SC[every_S1, chosen_SW], ids_SC[every_S1, chosen_SW]
        if self.position_S.max() >= (length := self.tokens_SWT.shape[2]):
            more = ((0, 0), (0, 0), (0, length))
            self.tokens_SWT, self.sums_SWT = np.pad(self.tokens_SWT, more), np.pad(self.sums_SWT, more)
        self.tokens_SWT, self.sums_SWT = self.tokens_SWT[every_S1, parents_SW], self.sums_SWT[every_S1, parents_SW]
        self.tokens_SWT[every_S1[:, 0], :, self.position_S] = self.last_SW
        self.sums_SWT[every_S1[:, 0], :, self.position_S] = self.alive_SW
        self.position_S += [segment is not None for segment in self.segments]
        return parents_SW

    def _finish(self, ends_SW: npt.NDArray[np.bool_], parents_SC: Int64s, sums_SC: Float64s) -> None:
        for slot, candidate in zip(*ends_SW.nonzero(), strict=True):
            if segment := self.segments[slot]:
                row, position = (slot, parents_SC[slot, candidate]), int(self.position_S[slot])
                total = float(sums_SC[slot, candidate])
                sums = [0.0, *self.sums_SWT[row][:position].tolist(), total]
                score = total / length_penalty(position + 1, self.options)
                steps = [b - a for a, b in itertools.pairwise(sums)]
                ids = self.tokens_SWT[row][:position].tolist()
                segment.hypotheses.append(Hypothesis(ids, total, score, steps))
                segment.hypotheses.sort(key=lambda h: -h.score)
                del segment.hypotheses[self.options.n_best :]

    def _best_unfinished(self) -> Float64s:
        """Return, for each slot, the log-probability of the best unfinished hypothesis, or -inf if there is none.

        If `n_best` hypotheses are finished, ignore unfinished ones with a term that is neither begun nor met.
        """
        best_S = self.alive_SW[:, 0].copy()
        for slot, segment in enumerate(self.segments):
            if segment and segment.constraints and len(segment.hypotheses) == self.options.n_best:
                begun = map(segment.constraints.begun, self.states[slot])
                ahead = [total for total, may in zip(self.alive_SW[slot], begun, strict=True) if may]
                best_S[slot] = max(ahead, default=-math.inf)
        return best_S

    def pop_done(self) -> list[Segment]:
        """Return segments that were cancelled or whose unfinished hypotheses can no longer win. Free their slots."""
        lengths_S = np.minimum(self.position_S + 1 + LOOKAHEAD * self.options.alpha, self.limit_S)
        bounds_S = self._best_unfinished() / length_penalty(lengths_S, self.options)
        bounds_S[self.position_S >= self.limit_S] = -math.inf
        results, slots = [], []
        for slot, (segment, bound) in enumerate(zip(self.segments, bounds_S.tolist(), strict=True)):
            best = segment.hypotheses if segment else []
            full = len(best) == self.options.n_best and best[-1].score >= bound
            if segment and (segment.cancelled or bound == -math.inf or full):
                results.append(segment)
                slots.append(slot)
                self.segments[slot] = self.generators[slot] = None
        if slots:
            self.position_S[slots] = 0
            self.cache.release(slots)
        return results


def take(queue: WorkerQueue, device: torch.device) -> list[Segment]:
    """Return the next segments to encode, with the same options as the segments that are being searched, if any."""
    return queue.take(math.inf, math.inf, ENCODE_TOKENS[device.type], alike=True)


def search(models: Models, dtype: torch.dtype, queue: WorkerQueue) -> None:
    """Find translations of the segments of a queue with an ensemble.

    A segment whose options differ from those in the search waits until the search is done.
    """
    rows = rows_at_once(models[0].embedding.weight.device)
    search_within_memory(lambda queue, rows: search_with_rows(models, dtype, queue, rows), queue, rows)


@torch.inference_mode()
def search_with_rows(models: Models, dtype: torch.dtype, queue: WorkerQueue, rows: int) -> None:
    """Search with at most `rows` hypotheses at once. A segment with a wider beam is searched alone."""
    slots: Slots | None = None
    while segments := take(queue, models[0].embedding.weight.device):
        if not (slots and slots.takes(segments[0])):
            slots = None  # free the old caches before allocating new ones
            constrained = segments[0].constraints is not None
            slots = Slots(models, dtype, segments[0].options, constrained=constrained, rows=rows)
        slots.encode(segments)
        while slots.ready or slots.used():
            slots.fill(queue)
            slots.step()
            queue.finish([_aligned(segment, models[0], dtype) for segment in slots.pop_done()])


def _aligned(segment: Segment, model: Transformer, dtype: torch.dtype) -> Segment:
    """Return a segment. If its options request alignments, first align each target token with a source token.

    For each pair of tokens, the evidence is the sum of the attention weights of all heads in all layers. Each weight is
    first multiplied by the sharpness of its head at that target token, exp(-entropy). The evidence is then divided by
    s ^ 0.75, where s is the sum of the source token's evidence over all target tokens. The source token with the most
    evidence is chosen. On generated text with known alignments, this method aligns 94 % of the words correctly. The
    mean attention of the second-to-last layer (Garg et al. 2019) aligns 72 %.
    """
    if segment.options.alignments:
        aligned = []
        for hypothesis in segment.hypotheses:
            scores_LHTS = attention_scores(model, segment.ids, [*hypothesis.ids, EOS], dtype)["cross"][:, :, :-1]
            weights_LHTS = torch.softmax(scores_LHTS, -1)
            sharpness_LHT = torch.exp(-torch.special.entr(weights_LHTS).sum(-1))
            evidence_TS = (weights_LHTS * sharpness_LHT[..., None]).sum((0, 1))
            evidence_TS /= evidence_TS.sum(0) ** 0.75
            positions = evidence_TS[:, : max(1, len(segment.ids) - 1)].argmax(1).tolist()
            aligned.append(replace(hypothesis, source_positions=positions))
        segment.hypotheses = aligned
    return segment


def pair_batches(
    pairs: Sequence[Sequence[Ids]], device: torch.device, source_eos: bool = True
) -> Iterator[tuple[list[int], Batch]]:
    """Yield batches of pairs, short targets first. Each item holds the indices of the batch's pairs, and the Batch.

    Both sides of each pair must end with EOS. If `source_eos` is false, the batches omit the EOS of the sources.
    """
    order = sorted(range(len(pairs)), key=lambda i: (len(pairs[i][1]), len(pairs[i][0])))
    while order:
        count = 1
        while count < len(order) and (count + 1) * max(map(len, pairs[order[count]])) <= BATCH_TOKENS:
            count += 1
        chosen, order = order[:count], order[count:]
        ids = [[np.asarray(pairs[i][side]) for i in chosen] for side in (0, 1)]
        src, tgt = ((np.concatenate(side), np.array(list(map(len, side)))) for side in ids)
        if not source_eos:
            src = without_eos(*src)
        yield chosen, pack(*src, *tgt, device)


@torch.inference_mode()
def score_targets(models: Models, dtype: torch.dtype, pairs: Sequence[Sequence[Ids]]) -> list[list[float]]:
    """Return, for each pair, the log-probability of every target token given the source and the earlier target tokens.

    Both sides of each pair must end with EOS. Raises DivergedError if a log-probability is not finite.
    """
    results: list[list[float]] = [[] for _ in pairs]
    first = models[0]
    for chosen, batch in pair_batches(pairs, first.embedding.weight.device, first.settings.source_eos):
        gold = []
        for model in models:
            scores_NV = torch.log_softmax(model.logits(widened(model(batch, dtype=dtype))), -1)
            gold.append(scores_NV.gather(1, batch.tgt_out_N[:, None].long()).double())
        mean_N1 = (torch.stack(gold).logsumexp(0) - math.log(len(models))).cpu()  # one copy to the host for all tokens
        if not mean_N1.isfinite().all():
            raise DivergedError(NOT_FINITE)
        _, lengths_B, *_ = batch.tgt.integers
        for i, values_T1 in zip(chosen, mean_N1.split(lengths_B.tolist()), strict=True):
            results[i] = values_T1.flatten().tolist()
    return results
