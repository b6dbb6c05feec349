"""Greedy and beam search, sampling, and the scores of given translations (section 6.1 of the paper).

Shapes: S slots (sentences being searched), W hypotheses per slot, R = S x W rows, C candidates per slot or row,
T target positions, V vocabulary.

The batch stays full: a sentence that is finished leaves its slot and the next one enters, at its own first position.
A sentence's translation depends on its own source alone, up to the rounding of matrix products.

Which beam search: at every step the 2W best continuations of a slot are looked at. Those among the best W that end
with EOS are finished; the best W that do not end live on. With W = 1 that is greedy search, and EOS ends it. A slot
is done when no unfinished hypothesis can still beat its n-th best finished one, which is exact because a hypothesis'
log-probability only falls and its length penalty is at most the one at the longest length. Scores are
log-probability / ((5 + length) / 6) ^ alpha with EOS counted in both (Wu et al. 2016, without coverage).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.transformer.attention import Layout
from nmt_cli.transformer.cache import Incremental
from nmt_cli.transformer.model import PAD, Transformer, pack
from nmt_cli.translation.candidates import Sampling, average, best_continuations

ENCODE_TOKENS = 2048  # source tokens encoded at once, ahead of the slots they will fill
CPU_ROWS, CUDA_ROWS = 256, 1024  # hypotheses computed at once
MAX_SOURCE_TOKENS = 1 << 16  # over all slots: bounds the memory of very long inputs


@dataclass(frozen=True)
class Source:
    """A sentence to translate.

    Attributes:
        ids: its pieces, closed by EOS.
        prefix: pieces that every translation must begin with; fewer than the model's max_length.
        key: a number that, with the seed, decides what is sampled for this sentence.
    """

    ids: Sequence[int]
    prefix: Sequence[int] = ()
    key: int = 0


@dataclass(frozen=True)
class Hypothesis:
    """One translation.

    Attributes:
        ids: pieces, without EOS.
        log_probability: of the pieces and EOS, in nats.
        score: log-probability over length penalty.
        token_log_probabilities: of each piece and of EOS.
    """

    ids: list[int]
    log_probability: float
    score: float
    token_log_probabilities: list[float]


@dataclass(frozen=True)
class SearchSettings:
    """How to search: see recipe.Decoding. `best` hypotheses are returned per sentence, at most `beam`.

    With `sampling`, `beam` is 1: a sentence that is to have several samples is given several times.
    """

    beam: int = 4
    alpha: float = 0.6
    extra_length: int = 50
    best: int = 1
    rows: int | None = None
    sampling: Sampling | None = None


def length_penalty(length: Tensor | float, alpha: float) -> Tensor | float:
    """Return ((5 + length) / 6) ^ alpha, EOS counted in the length: 1 at length 1."""
    return ((5 + length) / 6) ** alpha


class _Slots:
    """The state of all sentences being searched, as tensors with one row per slot."""

    def __init__(self, settings: SearchSettings, longest: int, device: torch.device) -> None:
        width = settings.beam
        self.settings, self.longest, self.device = settings, longest, device
        whole, real = {"dtype": torch.int64, "device": device}, {"dtype": torch.float64, "device": device}
        self.sentence: list[int] = []  # which sentence, -1 for none
        self.finished: list[list[Hypothesis]] = []
        self.position_S = torch.zeros(0, **whole)  # type: ignore[call-overload]
        self.limit_S = torch.zeros(0, **whole)  # type: ignore[call-overload]
        self.alive_SW = torch.zeros(0, width, **real)  # type: ignore[call-overload]
        self.last_SW = torch.zeros(0, width, **whole)  # type: ignore[call-overload]
        # Token t of hypothesis w was computed in row ancestors[w, t]; its id and running sum are stored there.
        self.ancestors_SWT = torch.zeros(0, width, 1, **whole)  # type: ignore[call-overload]
        self.tokens_STW = torch.zeros(0, 1, width, **whole)  # type: ignore[call-overload]
        self.sums_STW = torch.zeros(0, 1, width, **real)  # type: ignore[call-overload]
        # By sentence: forced first pieces, and the random numbers that decide the drawn ones.
        self.prefix: dict[int, Sequence[int]] = {}
        self.random: dict[int, list[float]] = {}

    def resize(self, keep: Sequence[int], slots: int) -> None:
        """Keep these slots, in this order, and add empty ones up to `slots`."""
        index, more = torch.tensor(keep, dtype=torch.int64, device=self.device), slots - len(keep)
        self.sentence = [self.sentence[s] for s in keep] + [-1] * more
        self.finished = [self.finished[s] for s in keep] + [[] for _ in range(more)]
        for name in ("position_S", "limit_S", "alive_SW", "last_SW", "ancestors_SWT", "tokens_STW", "sums_STW"):
            old = getattr(self, name)
            setattr(self, name, torch.cat([old[index], old.new_zeros(more, *old.shape[1:])]))

    def start(self, slots: list[int], sentences: list[tuple[int, Source]]) -> None:
        """Begin sentences, given by number, in these slots."""
        limits = []
        for slot, (number, source) in zip(slots, sentences, strict=True):
            self.sentence[slot], self.finished[slot] = number, []
            limits.append(min(len(source.ids) + len(source.prefix) + self.settings.extra_length, self.longest))
            if source.prefix:
                self.prefix[number] = source.prefix
            if self.settings.sampling:
                key = np.array([self.settings.sampling.seed, source.key], np.uint64)  # a list may become floats
                generator = np.random.Generator(np.random.Philox(key=key))
                self.random[number] = generator.random(limits[-1]).tolist()
        self.position_S[slots] = 0
        self.limit_S[slots] = torch.tensor(limits, device=self.device)
        self.alive_SW[slots] = -torch.inf
        self.alive_SW[slots, 0] = 0
        self.last_SW[slots] = PAD
        self.ancestors_SWT[slots] = -1
        self.ancestors_SWT[slots, :, 0] = torch.arange(self.settings.beam, device=self.device)

    def forced(self) -> tuple[list[int], list[int]]:
        """Return the rows whose next piece is given, and these pieces: of prefixes, and EOS at the longest length."""
        rows: list[int] = []
        ids: list[int] = []
        width = self.settings.beam
        ends = (self.position_S + 1 >= self.limit_S).nonzero().flatten().tolist()
        if self.prefix:
            for slot, (sentence, position) in enumerate(zip(self.sentence, self.position_S.tolist(), strict=True)):
                prefix = self.prefix.get(sentence, ())
                if position < len(prefix):
                    rows += range(slot * width, (slot + 1) * width)
                    ids += [prefix[position]] * width
        for slot in ends:
            rows += range(slot * width, (slot + 1) * width)
            ids += [EOS] * width
        return rows, ids

    def drawn(self) -> list[float]:
        """Return each slot's random number for its next piece, where pieces are drawn."""
        if not self.settings.sampling:
            return []
        positions = self.position_S.tolist()
        return [self.random[s][p] if s in self.random else 0.0 for s, p in zip(self.sentence, positions, strict=True)]

    def _grow(self) -> None:
        """Make room for one more position than the furthest slot has reached."""
        if int(self.position_S.max()) + 2 > self.ancestors_SWT.shape[2]:
            more = self.ancestors_SWT.shape[2]
            self.ancestors_SWT = torch.nn.functional.pad(self.ancestors_SWT, (0, more), value=-1)
            self.tokens_STW = torch.nn.functional.pad(self.tokens_STW, (0, 0, 0, more))
            self.sums_STW = torch.nn.functional.pad(self.sums_STW, (0, 0, 0, more))

    def advance(self, sums_SC: Tensor, parents_SC: Tensor, ids_SC: Tensor) -> Tensor:
        """Take one step, given each slot's best continuations, best first; return the parents of those that live on.

        Args:
            sums_SC: log-probabilities of the hypotheses continued so.
            parents_SC: which hypotheses are continued.
            ids_SC: with which pieces.
        """
        width, slots = self.settings.beam, len(self.sentence)
        ends_SC = ids_SC == EOS
        self._finish(ends_SC[:, :width] & (sums_SC[:, :width] > -torch.inf), parents_SC, sums_SC)
        # With W = 1 the second best must not live on when the best has ended.
        alive_SC = sums_SC.masked_fill(ends_SC[:, :1] if width == 1 else ends_SC, -torch.inf)
        self.alive_SW, chosen_SW = alive_SC.topk(width, 1)
        parents_SW, self.last_SW = parents_SC.gather(1, chosen_SW), ids_SC.gather(1, chosen_SW)
        self._grow()
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
            position, total, kept = positions[e], totals[e], self.finished[slot]
            score = total / float(length_penalty(position + 1, self.settings.alpha))
            if self.sentence[slot] < 0 or (len(kept) == self.settings.best and score <= kept[-1].score):
                continue
            steps = [b - a for a, b in itertools.pairwise([0.0, *sums_ET[e][:position], total])]
            kept.append(Hypothesis(ids_ET[e][:position], total, score, steps))
            kept.sort(key=lambda h: -h.score)
            del kept[self.settings.best :]

    def done(self) -> list[int]:
        """Return the slots in which no unfinished hypothesis can win any more."""
        bounds = (self.alive_SW[:, 0] / length_penalty(self.limit_S.double(), self.settings.alpha)).tolist()
        over = (self.position_S >= self.limit_S).tolist()
        result = []
        for slot, kept in enumerate(self.finished):
            settled = len(kept) == self.settings.best and kept[-1].score >= bounds[slot]
            if self.sentence[slot] >= 0 and (settled or over[slot] or bounds[slot] == -math.inf):
                result.append(slot)
        return result

    def leave(self, slot: int) -> tuple[int, list[Hypothesis]]:
        """Return a finished sentence's number and hypotheses, and free its slot."""
        number, self.sentence[slot] = self.sentence[slot], -1
        self.prefix.pop(number, None)
        self.random.pop(number, None)
        self.position_S[slot] = 0
        return number, self.finished[slot]


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
    """Encodes sentences ahead, in their order, and hands them out."""

    def __init__(self, sources: Iterator[Source | None], decoders: list[Incremental], longest: int) -> None:
        self.sources, self.decoders, self.longest = sources, decoders, longest
        self.read, self.ended = 0, False
        self.ready: list[tuple[int, Source]] = []  # first one next
        self.start = 0  # of the first one, in what was encoded
        self.key_values: list[list[Tensor]] = []

    def _encode(self) -> None:
        tokens = 0
        while tokens < ENCODE_TOKENS:
            try:
                source = next(self.sources)
            except StopIteration:
                self.ended = True
                break
            if source is None:
                break
            self.ready.append((self.read, source))
            self.read, tokens = self.read + 1, tokens + len(source.ids)
        if self.ready:
            device = self.decoders[0].device
            lengths = [len(source.ids) for _, source in self.ready]
            more = _fillers(lengths, self.longest)
            ids = [i for _, source in self.ready for i in source.ids]
            src_N = torch.tensor(ids + [EOS] * sum(more), device=device)
            layout = Layout(lengths + more, device)
            self.key_values = [decoder.encode(src_N, layout) for decoder in self.decoders]
            self.start = 0

    def take(self, count: int, tokens: int) -> tuple[list[tuple[int, Source]], list[int]]:
        """Return the next sentences and their first encoded rows: at most so many, of at most so many tokens.

        There may be none, for now or for good (`ended`).
        """
        if not self.ready and not self.ended:
            self._encode()
        taken, starts = 0, []
        while taken < min(count, len(self.ready)):
            length = len(self.ready[taken][1].ids)
            if length > tokens:
                break
            starts.append(self.start)
            self.start, tokens, taken = self.start + length, tokens - length, taken + 1
        sentences, self.ready = self.ready[:taken], self.ready[taken:]
        return sentences, starts


@torch.inference_mode()
def search(
    models: Sequence[Transformer], dtype: torch.dtype, sources: Iterator[Source | None], settings: SearchSettings
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield (number of the sentence, its best hypotheses, best first) as sentences finish.

    Args:
        models: one model, or an ensemble with one vocabulary; as `for_inference` returns them.
        dtype: arithmetic.
        sources: read when there is room; None says that there is none just now. Neighbours should be of one length.
        settings: of the search.

    Raises:
        DivergedError: the model's numbers are not finite.
    """
    device = models[0].embedding.weight.device
    most = max(1, (settings.rows or (CUDA_ROWS if device.type == "cuda" else CPU_ROWS)) // settings.beam)
    decoders = [Incremental(model, dtype, settings.beam) for model in models]
    longest = min(model.settings.max_length for model in models)
    feed, slots = _Feed(sources, decoders, longest), _Slots(settings, longest, device)
    lengths: dict[int, int] = {}  # source tokens of each occupied slot
    while True:
        while len(lengths) < most:
            room = MAX_SOURCE_TOKENS - sum(lengths.values()) if lengths else 1 << 60
            sentences, starts = feed.take(most - len(lengths), room)
            if not sentences:
                break
            free = [s for s in range(len(slots.sentence)) if slots.sentence[s] < 0]
            if len(sentences) > len(free):
                count = _rounded(len(lengths) + len(sentences), most)
                _resize(slots, decoders, list(range(len(slots.sentence))), count)
                free = [s for s in range(len(slots.sentence)) if slots.sentence[s] < 0]
            free, counts = free[: len(sentences)], [len(source.ids) for _, source in sentences]
            for decoder, key_values in zip(decoders, feed.key_values, strict=True):
                decoder.fill(free, key_values, starts, counts)
            slots.start(free, sentences)
            lengths.update(zip(free, counts, strict=True))
        if not lengths:
            if feed.ended:
                return
            continue
        if (count := _rounded(len(lengths), most)) < len(slots.sentence):
            used = sorted(lengths)
            _resize(slots, decoders, used, count)
            lengths = {slot: lengths[old] for slot, old in enumerate(used)}
        if len(lengths) < len(slots.sentence):  # empty slots step along, and must not run out of positions
            slots.position_S[[s for s, number in enumerate(slots.sentence) if number < 0]] = 0
        logits = [decoder.step(slots.last_SW, slots.position_S) for decoder in decoders]
        found = best_continuations(average(logits), slots.alive_SW, slots.forced(), settings.sampling, slots.drawn())
        parents_SW = slots.advance(*found)
        for decoder in decoders:
            decoder.reorder(parents_SW)
        done = slots.done()
        for decoder in decoders if done else ():
            decoder.leave(done)
        for slot in done:
            del lengths[slot]
            yield slots.leave(slot)


def _rounded(count: int, most: int) -> int:
    """Return how many slots to have for so many sentences: few different numbers, as kernels are kept for each."""
    return min(most, 1 << (count - 1).bit_length())


def _resize(slots: _Slots, decoders: list[Incremental], keep: list[int], count: int) -> None:
    slots.resize(keep, count)
    for decoder in decoders:
        decoder.resize(keep, count)


@torch.inference_mode()
def force(
    model: Transformer, dtype: torch.dtype, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
) -> list[list[float]]:
    """Return the log-probability of every target token, given its source and the target before it.

    Args:
        model: as `for_inference` returns it.
        dtype: arithmetic.
        pairs: source and target ids, both closed by EOS. Computed as one batch.
    """
    device = model.embedding.weight.device
    sides = [(np.concatenate([np.asarray(p[i]) for p in pairs]), np.array([len(p[i]) for p in pairs])) for i in (0, 1)]
    batch = pack(*sides[0], *sides[1], device)
    logits_NV = model.logits(model(batch, dtype=dtype))
    wide = torch.promote_types(logits_NV.dtype, torch.float32)
    gold_N1 = torch.log_softmax(logits_NV.to(wide), -1).gather(1, batch.tgt_out_N[:, None])
    return [part.flatten().tolist() for part in gold_N1.split(batch.tgt.lengths_B.tolist())]
