"""Which sentences make update k: a pure function of (corpus, seed, k), whatever machine computes it.

An epoch is a random permutation of the corpus cut into updates of equal cost. An update's pairs are sorted by their
longer side and cut into the recipe's logical micro-batches of equal cost. Processes and memory only decide who computes
which micro-batches and how many at once; dropout masks belong to the micro-batch. So the same recipe trains the same
model on one process or many.
"""

import itertools
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from nmt_cli.corpus.store import Corpus, Lengths
from nmt_cli.transformer.model import Batch, Masks, pack

MASK_LEVELS = 1 << 16  # dropout probabilities are multiples of this fraction
# 1 in numpy's terms, which has no bf16: there its bits. Torch turns booleans to bf16 six times slower than this.
ONES: dict[torch.dtype, Any] = {
    torch.bfloat16: np.uint16(0x3F80),
    torch.float32: np.float32(1),
    torch.float64: np.float64(1),
}


def _cut(costs: Lengths, parts: int) -> list[int]:
    """Return parts + 1 bounds that cut a row of costs into parts of nearly equal sums."""
    sums = np.cumsum(costs)
    targets = sums[-1] * np.arange(1, parts) / parts
    return [0, *(np.searchsorted(sums, targets) + 1).clip(max=len(costs)).tolist(), len(costs)]


class Updates:
    """The updates of a run.

    Args:
        corpus: whose training pairs are dealt.
        tokens_per_step: source tokens and target tokens per update, of each, on average (EOS counted).
        micro_batches: parts of an update.
        seed: of the permutations.

    Attributes:
        per_epoch: updates per epoch, the same in each.
    """

    def __init__(self, corpus: Corpus, tokens_per_step: int, micro_batches: int, seed: int) -> None:
        self.corpus, self.micro_batches, self.seed = corpus, micro_batches, seed
        tokens = len(corpus.src.ids) + len(corpus.tgt.ids)
        self.per_epoch = max(1, min(len(corpus.src), round(tokens / (2 * tokens_per_step))))
        self._epoch, self._order, self._bounds = -1, np.empty(0, np.int64), [0]

    @cached_property
    def src_lengths(self) -> Lengths:
        """Length of every source sentence, EOS counted."""
        return self.corpus.src.lengths()

    @cached_property
    def tgt_lengths(self) -> Lengths:
        """Length of every target sentence, EOS counted."""
        return self.corpus.tgt.lengths()

    def _costs(self, sentences: Lengths) -> Lengths:
        costs: Lengths = self.src_lengths[sentences] + self.tgt_lengths[sentences]
        return costs

    def micro_batches_of(self, step: int) -> list[Lengths]:
        """Return the sentences of each micro-batch of update `step` (from 0); late ones may be empty."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._order = np.random.Generator(np.random.Philox([self.seed, epoch])).permutation(len(self.corpus.src))
            self._bounds = _cut(self._costs(self._order), self.per_epoch)
            self._epoch = epoch
        mine = self._order[self._bounds[place] : self._bounds[place + 1]]
        longer = np.maximum(self.src_lengths[mine], self.tgt_lengths[mine])
        mine = mine[np.lexsort((mine, self._costs(mine), longer))]
        if not len(mine):
            return [mine] * self.micro_batches
        bounds = _cut(self._costs(mine), self.micro_batches)
        return [mine[a:b] for a, b in itertools.pairwise(bounds)]

    def batch(self, sentences: Lengths, device: torch.device | str = "cpu") -> Batch:
        """Return these pairs, packed."""
        src_N, src_lengths = self.corpus.src.gather(sentences)
        tgt_N, tgt_lengths = self.corpus.tgt.gather(sentences)
        return pack(src_N, src_lengths, tgt_N, tgt_lengths, device)


def _mask(
    key: Sequence[int], shape: tuple[int, int, int], keep: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return zeros and ones of `shape` drawn from a stream named by `key`."""
    size = int(np.prod(shape))
    if device.type == "cpu":  # numpy draws them eight times faster than torch does here
        raw = np.random.SFC64(list(key)).random_raw((size + 3) // 4).view(np.uint16)[:size]
        return torch.from_numpy((raw < keep) * ONES[dtype]).view(dtype).view(shape)
    generator = torch.Generator(device)
    generator.manual_seed(int(np.random.SeedSequence(list(key)).generate_state(1, np.uint64)[0] >> 1))
    draws = torch.randint(MASK_LEVELS, shape, generator=generator, device=device, dtype=torch.int32)
    return (draws < keep).to(dtype)


def dropout_masks(
    keys: Sequence[Sequence[int]],
    tokens: Sequence[tuple[int, int]],
    places: tuple[int, int],
    d_model: int,
    probability: float,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Masks | None:
    """Return the dropout masks of several micro-batches that are computed as one.

    Args:
        keys: what names each micro-batch's stream: (seed, update, micro-batch).
        tokens: source and target tokens of each micro-batch.
        places: how many masks the encoder and the decoder need.
        d_model: width of a mask.
        probability: P_drop.
        dtype: of the masks.
        device: where they are drawn; the CPU and CUDA draw different ones.
    """
    if not probability:
        return None
    keep = round((1 - probability) * MASK_LEVELS)
    sides = []
    for side in (0, 1):
        parts = [
            _mask([*key, side], (places[side], count[side], d_model), keep, dtype, torch.device(device))
            for key, count in zip(keys, tokens, strict=True)
        ]
        sides.append(torch.cat(parts, 1) if len(parts) > 1 else parts[0])
    return Masks(*sides)
