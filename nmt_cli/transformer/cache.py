"""The decoder one token at a time, for many sentences at once, each at its own position.

Shapes: S slots (a slot holds one sentence being searched), W hypotheses per slot, R = S x W rows, H heads, K size per
head, E cache entries, L source positions. Keys and values are not moved when a hypothesis continues another one:
`used_SWE` says whose past an entry is. Entries that no hypothesis needs are dropped when the cache is full.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from nmt_cli.transformer.attention import Attention, Layout, linear, mask_bias, padding_bias
from nmt_cli.transformer.hardware import Int8Linear
from nmt_cli.transformer.model import PAD, Transformer, layer_norm, layers

ROUND = 8  # caches hold a multiple of this many entries
STEPS = 6  # between two clearances of the cache, at least
MIN_INT8_OUTPUTS = 512  # smaller layers cost more to quantise inputs for than bytes gain
BLOCK = 64  # the vocabulary is rounded up to a multiple of this


def for_inference(model: Transformer, dtype: torch.dtype, *, int8: bool = False) -> Transformer:
    """Return a copy whose matrix products run in `dtype` or in bytes, with one more layer, `output`, for the logits:
    the embedding matrix, with rows of zeros up to a multiple of BLOCK."""
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    weight_VD = frozen.embedding.weight
    more = -len(weight_VD) % BLOCK
    frozen.output = nn.Linear(weight_VD.shape[1], len(weight_VD) + more, bias=False, device="meta")
    frozen.output.weight = nn.Parameter(nn.functional.pad(weight_VD, (0, 0, 0, more)), requires_grad=False)
    if frozen.output_bias is not None:
        frozen.output.bias = nn.Parameter(nn.functional.pad(frozen.output_bias, (0, more)), requires_grad=False)
    for parent in list(frozen.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear):
                to = torch.float32 if layer is frozen.output else dtype
                fits = int8 and layer.out_features >= MIN_INT8_OUTPUTS
                setattr(parent, name, Int8Linear(layer.weight, layer.bias, to) if fits else layer.to(dtype))
    return frozen


class DecoderCache:
    """Key/value caches of a model from `for_inference`, for slots of `width` hypotheses; none at first."""

    def __init__(self, model: Transformer, dtype: torch.dtype, width: int) -> None:
        self.model, self.dtype, self.width, self.slots = model, dtype, width, 0
        self.device = model.embedding.weight.device
        self.layers = layers(model.decoder)
        self.heads = model.settings.num_heads
        sizes, zeros = (model.settings.d_k, model.settings.d_v), partial(torch.zeros, device=self.device)
        self.past = [[zeros(0, self.heads, ROUND, size, dtype=dtype) for size in sizes] for _ in self.layers]
        self.memory = [[x.clone() for x in pair] for pair in self.past]
        self.src_lengths_S, self.filled_S = zeros(0, dtype=torch.int64), zeros(0, dtype=torch.int64)
        self.used_SWE = zeros(0, width, ROUND, dtype=torch.bool)

    def resize(self, keep: Sequence[int], slots: int) -> None:
        index = torch.tensor(keep, dtype=torch.int64, device=self.device)

        def resized(x: Tensor) -> Tensor:
            return torch.cat([x[index], x.new_zeros(slots - len(keep), *x.shape[1:])])

        self.past = [[resized(x) for x in pair] for pair in self.past]
        self.memory = [[resized(x) for x in pair] for pair in self.memory]
        for name in ("src_lengths_S", "used_SWE", "filled_S"):
            setattr(self, name, resized(getattr(self, name)))
        self.slots = slots

    def reorder(self, parents_SW: Tensor) -> None:
        self.used_SWE = self.used_SWE.gather(1, parents_SW[:, :, None].expand(-1, -1, self.used_SWE.shape[2]))

    def _clear(self) -> None:
        """Drop entries that no hypothesis needs. Caches stay contiguous: products of slices would be copied first."""
        needed_SE = self.used_SWE.any(1) & (self.src_lengths_S > 0)[:, None]
        counts_S = needed_SE.sum(1)
        most = int(counts_S.max())
        entries = -(-(most + STEPS * self.width) // ROUND) * ROUND
        order_SE = needed_SE.sort(dim=1, descending=True, stable=True)[1][:, :most]
        rows_SH = torch.arange(self.slots * self.heads, device=self.device).view(self.slots, self.heads, 1)
        from_M = (rows_SH * needed_SE.shape[1] + order_SE[:, None]).flatten()
        to_M = (rows_SH * entries + torch.arange(most, device=self.device)).flatten()

        def cleared(x: Tensor) -> Tensor:
            y = x.new_zeros(self.slots, self.heads, entries, x.shape[3])
            y.flatten(0, 2).index_copy_(0, to_M, x.flatten(0, 2).index_select(0, from_M))
            return y

        self.past = [[cleared(x) for x in pair] for pair in self.past]
        used_SWE = self.used_SWE.gather(2, order_SE[:, None].expand(-1, self.width, -1))
        self.used_SWE = torch.nn.functional.pad(used_SWE, (0, entries - most))
        self.filled_S = counts_S

    def encode(self, src_N: Tensor, src: Layout) -> list[Tensor]:
        """Return cross-attention's keys and values of each layer for packed source sentences, N x H(d_k + d_v)."""
        memory_ND = self.model.encode(src_N, src, self.dtype)
        return [linear(memory_ND, layer.cross_attention.key_value) for layer in self.layers]

    def fill(self, slots: Sequence[int], encoded: list[Tensor], starts: Sequence[int], lengths: Sequence[int]) -> None:
        """Put sentences into slots: rows start to start + length of what `encode` returned."""
        self.src_lengths_S[list(slots)] = torch.tensor(lengths, device=self.device)
        self.used_SWE[list(slots)] = False
        self.filled_S[list(slots)] = 0
        length, room = -(-int(self.src_lengths_S.max()) // ROUND) * ROUND, self.memory[0][0].shape[2]
        if not length <= room <= 2 * length:
            pads = (0, 0, 0, length - room)  # a negative one cuts
            self.memory = [[nn.functional.pad(x, pads) for x in pair] for pair in self.memory]
        new = Layout(lengths)
        from_N = torch.from_numpy(np.asarray(starts)[new.rows_N] + new.places_N).to(self.device)
        rows_NH = np.asarray(slots)[new.rows_N, None] * self.heads + np.arange(self.heads)
        places_NH = rows_NH * self.memory[0][0].shape[2] + new.places_N[:, None]
        to_M = torch.from_numpy(places_NH.reshape(-1)).to(self.device)
        for pair, kv_NC in zip(self.memory, encoded, strict=True):
            parts = kv_NC[from_N].split([self.heads * x.shape[3] for x in pair], 1)
            for x_SHLK, part_NC in zip(pair, parts, strict=True):
                x_SHLK.flatten(0, 2).index_copy_(0, to_M, part_NC.reshape(len(to_M), -1))

    def leave(self, slots: Sequence[int]) -> None:
        self.src_lengths_S[list(slots)] = 0

    def _attend(
        self, attention: Attention, k_v: list[Tensor], bias: Tensor, places_M: Tensor | None, x_RD: Tensor
    ) -> Tensor:
        """Return attention's output R x D; keys and values are S x H x keys x K, `bias` is added to the scores.

        In self-attention the keys and values of x_RD are put at `places_M` first.
        """
        if places_M is None:
            q_RC = linear(x_RD, attention.query)
        else:
            sizes = [self.heads * x.shape[3] for x in k_v]
            q_RC, *new = linear(x_RD, attention.query_key_value).split([sizes[0], *sizes], -1)
            for cache_SHEK, part_RC in zip(k_v, new, strict=True):
                part_SHWK = part_RC.view(self.slots, self.width, self.heads, -1).transpose(1, 2)
                cache_SHEK.flatten(0, 2).index_copy_(0, places_M, part_SHWK.flatten(0, 2))
        k, v = (x.flatten(0, 1) for x in k_v)
        q_SHWK = q_RC.view(self.slots, self.width, self.heads, -1).transpose(1, 2)
        scores = q_SHWK.reshape(self.slots * self.heads, self.width, -1) @ k.transpose(1, 2)
        scores = torch.add(bias, scores.view(self.slots, self.heads, self.width, -1), alpha=attention.d_k**-0.5)
        mixed_SHWK = torch.softmax(scores, -1).flatten(0, 1) @ v
        mixed_SWHK = mixed_SHWK.view(self.slots, self.heads, self.width, -1).transpose(1, 2)
        return linear(mixed_SWHK.reshape(self.slots * self.width, -1), attention.output)

    def step(self, ids_SW: Tensor, positions_S: Tensor) -> Tensor:
        """Return logits after each hypothesis' last token (PAD at the first position), R x V rounded up to BLOCK."""
        model, width = self.model, self.width
        if int(self.filled_S.max()) + width > self.used_SWE.shape[2]:
            self._clear()
        entries = self.used_SWE.shape[2]
        new_SW = self.filled_S[:, None] + torch.arange(width, device=self.device)
        self.used_SWE.scatter_(2, new_SW[:, :, None], True)
        self.filled_S += width
        past_bias = mask_bias(self.used_SWE[:, None], self.dtype)
        memory_bias = padding_bias(self.src_lengths_S, self.memory[0][0].shape[2], self.dtype)
        rows_SH = torch.arange(self.slots * self.heads, device=self.device).view(self.slots, self.heads)
        places_M = (rows_SH[:, :, None] * entries + new_SW[:, None]).flatten()
        x_RD = model.embed(ids_SW.flatten(), positions_S.repeat_interleave(self.width), "tgt").to(self.dtype)
        for layer, past, memory in zip(self.layers, self.past, self.memory, strict=True):
            attend = partial(self._attend, layer.self_attention, past, past_bias, places_M)
            attend_memory = partial(self._attend, layer.cross_attention, memory, memory_bias, None)
            x_RD, _ = layer.forward(x_RD, [attend, attend_memory])
        if model.settings.norm == "pre":
            x_RD = layer_norm(x_RD, model.decoder_norm)
        logits_RV = linear(x_RD, cast(nn.Linear, model.output))
        logits_RV[:, PAD] = -torch.inf
        logits_RV[:, model.vocabulary_size :] = -torch.inf
        return logits_RV
