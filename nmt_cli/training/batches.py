"""Choose the sentences of each training step.

The choice depends only on the corpus, the recipe's training settings and the step number. Dropout depends only on the
random seed, the sentence and the step. So the number of processes and their memory do not change the result.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from nmt_cli.corpus.store import BLOCK, Corpus, Lengths
from nmt_cli.recipe import schema
from nmt_cli.system.errors import UsageError
from nmt_cli.system.resources import usable_memory
from nmt_cli.training.mixing import Mixing, Numbers
from nmt_cli.transformer.model import PAD, Batch, pack, token_seeds, without_eos

Costs = npt.NDArray[Any]  # the number of tokens of each pair, both sides together, in uint16 or int64
# A padded batch has a multiple of SENTENCES sentences and, on each side, a multiple of TOKENS tokens.
SENTENCES, TOKENS = 32, 256
MIN_PADDING = 16  # minimum number of PAD sentences in a padded batch; they share its PAD tokens evenly
LONGEST_PADDING = -(-(TOKENS + MIN_PADDING) // MIN_PADDING)  # upper limit on the length of a PAD sentence


@dataclass(frozen=True)
class StepBatch:
    """The share of a step that one process computes."""

    passes: list[Batch]  # each is computed in one forward and backward pass
    tgt_tokens: int  # target tokens in the whole step
    weight: float  # 1, or 0 if this process has no sentences and computes a pass only because DDP requires one
    copied: Any  # an event that occurs when the passes have been copied to the device

    def wait(self, stream: Any) -> None:
        """Make `stream` wait for the copies to the device. Keep their memory allocated until `stream` has used it."""
        self.copied.wait(stream)
        for batch in self.passes:
            if batch.buffer.is_cuda:
                batch.buffer.record_stream(stream)


def cut_evenly(blocks: Iterable[Costs], total: int, parts: int) -> list[int]:
    """Cut a sequence of costs, given in blocks, into parts with nearly equal sums.

    Return the `parts` + 1 bounds, which are indices. `total` is the sum of all costs. A part may be empty.
    """
    targets = total * np.arange(1, parts) / parts
    bounds = [0]
    start = before = 0  # number and sum of the costs in earlier blocks
    for block in blocks:
        sums = before + np.cumsum(block, dtype=np.int64)
        reached = targets[len(bounds) - 1 : np.searchsorted(targets, sums[-1], "right")]
        bounds += (start + 1 + np.searchsorted(sums, reached)).tolist()
        start += len(block)
        before = int(sums[-1])
    return [*bounds, start]


def without_empty_parts(bounds: list[int]) -> list[int]:
    """Move bounds, as little as necessary, so that no part is empty. There must be at least as many items as parts."""
    parts = np.arange(len(bounds))
    rising = np.maximum.accumulate(np.array(bounds) - parts) + parts
    return [int(bound) for bound in np.minimum(rising, bounds[-1] - parts[::-1])]


def count_steps(corpus: Corpus, tokens_per_step: int) -> int:
    """Return the number of steps per epoch. Ignore augmentation, so that all epochs have the same number."""
    tokens = int(corpus.src.offsets[-1] + corpus.tgt.offsets[-1])
    return max(1, min(corpus.fewest_lines, round(tokens / (2 * tokens_per_step))))


class BatchPlan:
    """Divides epochs into steps and steps into micro-batches.

    An epoch is a random permutation of the corpus, or a mix of its parts (see Mixing). It is cut into steps with nearly
    equal numbers of tokens, counted after augmentation. The sentences of a step are sorted by length and cut into
    micro-batches. Each step has at least one sentence, however small `tokens_per_step` is.
    """

    def __init__(self, corpus: Corpus, training: schema.Training, micro_batches: int, source_eos: bool = True) -> None:
        self.corpus, self.micro_batches, self.seed = corpus, micro_batches, training.seed
        self.source_eos = source_eos
        self.longest = self._longest(corpus)  # tokens of the longest sentence of either side
        self.steps_per_epoch = count_steps(corpus, training.tokens_per_step)
        self.mixing = Mixing(corpus, self.steps_per_epoch, training)
        self._last: tuple[int, Numbers, list[int]] = -1, np.empty(0, np.int64), [0]

    @property
    def src_lengths(self) -> Lengths:
        return self._lengths(self.corpus)[0]

    @property
    def tgt_lengths(self) -> Lengths:
        return self._lengths(self.corpus)[1]

    def _lengths(self, text: Corpus, sentences: Lengths | None = None) -> tuple[Lengths, Lengths]:
        src, tgt = text.src.lengths(sentences), text.tgt.lengths(sentences)
        return self._without_eos(src), tgt

    def _without_eos(self, src: Lengths) -> Lengths:
        return src if self.source_eos else src - (src > 1)

    def _length_blocks(self, text: Corpus) -> Iterator[tuple[Lengths, Lengths]]:
        for src, tgt in zip(text.src.length_blocks(), text.tgt.length_blocks(), strict=True):
            yield self._without_eos(src), tgt

    def _longest(self, text: Corpus) -> int:
        return max(int(max(src.max(), tgt.max())) for src, tgt in self._length_blocks(text))

    def _costs(self, text: Corpus) -> Costs:
        """Return the cost of each pair, as uint16 if all costs fit."""
        longest = self.longest if text is self.corpus else self._longest(text)
        costs: Costs = np.empty(len(text.src), np.uint16 if 2 * longest < 1 << 16 else np.int64)
        for number, (src, tgt) in enumerate(self._length_blocks(text)):
            costs[number * BLOCK : (number + 1) * BLOCK] = src + tgt
        return costs

    def _epoch(self, number: int) -> tuple[Numbers, list[int]]:
        """Return the order of the pairs in an epoch, and the bounds of its steps in this order.

        `_last` caches the latest result. It is set in a single assignment, because two threads may call this method at
        the same time for different epochs.
        """
        last, order, bounds = self._last
        if last != number:
            text = self.corpus.in_epoch(number)
            order = self.mixing.order(number)  # needs the most memory, so it precedes `_costs`
            costs = self._costs(text)
            if text is not self.corpus:
                order = order[costs[order] > 0]  # omit empty pairs: their text was joined to an earlier pair
            if len(order) < self.steps_per_epoch:
                advice = "Raise training.tokens_per_step, or give parts with shorter sentences more weight"
                raise UsageError(f"training.weights draws fewer sentences than there are steps in an epoch. {advice}")
            # Handle the pairs in blocks, because a copy of all costs in the order of the epoch would take much memory.
            blocks = [order[first : first + BLOCK] for first in range(0, len(order), BLOCK)]
            if self.mixing.is_weighted(number):
                total = sum(int(costs[block].sum(dtype=np.int64)) for block in blocks)
            else:
                total = int(costs.sum(dtype=np.int64))
            bounds = without_empty_parts(cut_evenly((costs[block] for block in blocks), total, self.steps_per_epoch))
            self._last = number, order, bounds
        return order, bounds

    def _text(self, index: int) -> Corpus:
        return self.corpus.in_epoch(self.mixing.locate(index)[0])

    def micro_batches_of(self, index: int) -> list[Lengths]:
        """Return the numbers of the pairs in each micro-batch of step `index` (from 0). A micro-batch may be empty."""
        epoch, step = self.mixing.locate(index)
        order, bounds = self._epoch(epoch)
        chosen = order[bounds[step] : bounds[step + 1]].astype(np.int64)
        src, tgt = self._lengths(self._text(index), chosen)
        by_length = np.lexsort((chosen, src + tgt, np.maximum(src, tgt)))
        chosen, costs = chosen[by_length], (src + tgt)[by_length]
        bounds = cut_evenly([costs], int(costs.sum()), self.micro_batches)
        return [chosen[a:b] for a, b in itertools.pairwise(bounds)]

    def tokens(self, sentences: Lengths, index: int) -> tuple[int, int]:
        """Return how many source and target tokens these sentences have in step `index`."""
        src, tgt = self._lengths(self._text(index), sentences)
        return int(src.sum()), int(tgt.sum())

    def longest_pairs(self, tokens: int, device: torch.device) -> Batch:
        """Return a batch of the longest pairs of the corpus, to test whether such a batch fits into memory.

        The longer sides of the pairs have at most `tokens` tokens in total, unless the batch is a single pair. The
        pairs are not augmented, because augmentation makes no sentence longer than the longest one in the corpus.
        """
        numbers, lengths = np.empty(0, np.int64), np.empty(0, np.int64)
        for number, sides in enumerate(self._length_blocks(self.corpus)):
            longer = np.maximum(*sides)
            long = np.flatnonzero(longer > (lengths[-1] if len(lengths) == tokens else 0))
            numbers = np.append(numbers, number * BLOCK + long)
            lengths = np.append(lengths, longer[long])
            longest = np.argsort(-lengths)[:tokens]
            numbers, lengths = numbers[longest], lengths[longest]
        count = max(1, np.searchsorted(lengths.cumsum(), tokens, "right"))
        return self._pack(self.corpus, numbers[:count], 0, device, padded=False)

    def batch(
        self, sentences: Lengths, index: int, device: torch.device | str = "cpu", *, padded: bool = False
    ) -> Batch:
        """Return these sentences as a batch for step `index`.

        If `padded` is true, add sentences of PAD, which the loss ignores, so that many batches have the same sizes.
        """
        return self._pack(self._text(index), sentences, index, device, padded=padded)

    def _pack(self, text: Corpus, sentences: Lengths, index: int, device: torch.device | str, *, padded: bool) -> Batch:
        sides = [text.src.gather(sentences), text.tgt.gather(sentences)]
        if not self.source_eos:
            sides[0] = without_eos(*sides[0])
        if padded:
            count = -(-(len(sentences) + MIN_PADDING) // SENTENCES) * SENTENCES
            sides = [_padded(ids, lengths, count) for ids, lengths in sides]
            sentences = np.append(sentences, np.zeros(count - len(sentences), sentences.dtype))
        seeds = [token_seeds((self.seed, index, i), sentences, lengths) for i, (_, lengths) in enumerate(sides)]
        return pack(*sides[0], *sides[1], device, *seeds)


def _padded(ids_N: Lengths, lengths: Lengths, count: int) -> tuple[Lengths, Lengths]:
    """Append sentences that consist of PAD. The result has `count` sentences and a multiple of TOKENS tokens."""
    added = count - len(lengths)
    pads = -(-(len(ids_N) + added) // TOKENS) * TOKENS - len(ids_N)
    added_lengths = pads // added + (np.arange(added) < pads % added)
    return np.append(ids_N, np.full(pads, PAD, ids_N.dtype)), np.append(lengths, added_lengths)


def group_micro_batches(costs: Sequence[int], rank: int, world: int, memory_tokens: int) -> list[list[int]]:
    """Return the indices of the micro-batches that process `rank` of `world` computes, in groups that fit into memory.

    `costs` holds the tokens of each micro-batch. A group has at most `memory_tokens` tokens, unless it is a single
    micro-batch. Empty micro-batches may be left out.
    """
    groups: list[list[int]] = []
    for index in range(rank, len(costs), world):
        if groups and sum(costs[i] for i in groups[-1]) + costs[index] <= memory_tokens:
            groups[-1].append(index)
        elif costs[index]:
            groups.append([index])
    return groups


def default_memory_tokens(model: schema.Model, device: torch.device) -> int:
    """Estimate how many tokens per side one pass can have in memory: at least 256 and, on a CPU, at most 8192.

    Use the total memory, not the free memory: a resumed run must form the same groups of micro-batches, so that it adds
    the gradients in the same order.
    """
    width = 14 * model.d_model + 2 * model.d_ff + 4 * model.num_heads * (model.d_k + model.d_v)
    bytes_per_token = 4 * width * sum(model.depths) + 16 * model.d_model  # activations of a token on each side
    if device.type == "cuda":
        return max(256, int(0.6 * torch.cuda.get_device_properties(device).total_memory / bytes_per_token))
    memory = 0.4 * usable_memory() / int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return max(256, min(8192, int(memory / bytes_per_token)))  # more tokens would not fit into the caches of a CPU
