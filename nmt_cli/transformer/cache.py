"""Decode one token per step, for many sentences at once. Each sentence may be at a different position.

Shapes: S slots (one sentence each), W hypotheses per slot, R = S x W rows, H heads, K size per head, E cache entries,
L source positions, G = S x W x H rows that a step adds to a cache.

A cache entry holds the keys and values of one token. When a hypothesis continues another hypothesis, no entries are
copied. Instead, `used_SWE` marks the entries that belong to each hypothesis. A new token is written to an entry that no
hypothesis of its slot uses. In models with an SSRU (recurrence.py), an entry holds a state instead, and a
hypothesis reads only its latest one. Keys, values and states are on the device. Everything else is on the host, so that
a step never waits for the device.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.transformer.attention import (
    MIN_WIDTH,
    Attention,
    Int64s,
    Layout,
    linear,
    mask_bias,
    padding_bias,
    softmax,
    token_positions,
)
from nmt_cli.transformer.model import PAD, Transformer, layer_norm, layers
from nmt_cli.transformer.recurrence import SSRU

BLOCK = 64  # the vocabulary is padded to a multiple of this number


def for_inference(model: Transformer, dtype: torch.dtype) -> Transformer:
    """Return a copy of a model, on the same device, that computes matrix products in `dtype`.

    The copy has an additional layer `output` that computes the logits. Its weights are the embedding matrix, padded
    with zeros to a multiple of BLOCK rows.
    """
    frozen = copy.deepcopy(model).eval().requires_grad_(False)
    weight_VD = frozen.embedding_of("output").weight
    more = -len(weight_VD) % BLOCK
    frozen.output = nn.Linear(weight_VD.shape[1], len(weight_VD) + more, bias=False, device="meta")
    frozen.output.weight = nn.Parameter(F.pad(weight_VD, (0, 0, 0, more)), requires_grad=False)
    if frozen.output_bias is not None:
        frozen.output.bias = nn.Parameter(F.pad(frozen.output_bias, (0, more)), requires_grad=False)
    for layer in frozen.modules():
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.LayerNorm) and layer.weight.is_cuda):
            layer.to(dtype)  # otherwise, `layer_norm` would cast in each call on CUDA
    return frozen


def resized_array(x: Int64s, keep: Sequence[int], size: int) -> Int64s:
    """Return the rows `keep` of `x`, padded with zeros to `size` rows."""
    return np.concatenate([x[list(keep)], np.zeros((size - len(keep), *x.shape[1:]), x.dtype)])


def _logits(x_RD: Tensor, output: nn.Linear) -> Tensor:
    if x_RD.dtype != torch.bfloat16 or not x_RD.is_cuda:
        return linear(x_RD, output)
    logits_RV = torch.mm(x_RD, output.weight.t(), out_dtype=torch.float32)
    return logits_RV if output.bias is None else logits_RV.add_(output.bias)


class DecoderCache:
    """Caches of keys and values for models from `for_inference`. A slot has `width` hypotheses; `resize` adds slots."""

    def __init__(self, models: Sequence[Transformer], dtype: torch.dtype, width: int) -> None:
        self.models, self.dtype, self.width, self.slots = models, dtype, width, 0
        self.device = models[0].embedding.weight.device
        self.captured = self.device.type == "cuda"  # whether steps are captured as CUDA graphs
        # The number of entries is a multiple of `round`, and at most `spare` times the number needed. Both are larger
        # on a GPU, so that the number of entries changes rarely: after each change, a step must be captured again.
        self.round, self.spare = (64, 2.0) if self.device.type == "cuda" else (8, 1.5)
        self.past = [self._past(model) for model in models for _ in model.decoder]
        self.memory = [self._empty(model) for model in models for _ in model.decoder]
        self.src_lengths_S = np.zeros(0, np.int64)
        self.used_SWE = np.zeros((0, width, self.round), bool)
        self.last_SW = np.zeros((0, width), np.int64)  # the entry of the last token of each hypothesis

    def _past(self, model: Transformer) -> list[Tensor]:
        if model.settings.decoder_cell == "attention":
            return self._empty(model)
        wide = torch.promote_types(self.dtype, torch.float32)
        return [torch.zeros(0, self.round, model.settings.d_model, dtype=wide, device=self.device)]

    def _empty(self, model: Transformer) -> list[Tensor]:
        heads, sizes = model.settings.num_heads, (model.settings.d_k, model.settings.d_v)
        return [torch.zeros(0, heads, self.round, size, dtype=self.dtype, device=self.device) for size in sizes]

    def _rounded(self, entries: int) -> int:
        return -(-max(entries, MIN_WIDTH) // self.round) * self.round

    def resize(self, keep: Sequence[int], slots: int) -> None:
        """Keep the slots `keep`, in this order, and add empty slots until their number is `slots`."""
        index, more = torch.tensor(keep, dtype=torch.int64, device=self.device), slots - len(keep)

        def resized(x: Tensor) -> Tensor:
            return torch.cat([x[index], x.new_zeros(more, *x.shape[1:])])

        self.past = [[resized(x) for x in cache] for cache in self.past]
        self.memory = [[resized(x) for x in pair] for pair in self.memory]
        self.src_lengths_S = resized_array(self.src_lengths_S, keep, slots)
        self.used_SWE = resized_array(self.used_SWE, keep, slots)
        self.last_SW = resized_array(self.last_SW, keep, slots)
        self.slots = slots

    def reorder(self, parents_SW: Int64s) -> None:
        """Make hypothesis w of slot s continue hypothesis `parents_SW[s, w]` of the same slot."""
        every_S1 = np.arange(self.slots)[:, None]
        self.used_SWE, self.last_SW = self.used_SWE[every_S1, parents_SW], self.last_SW[every_S1, parents_SW]

    def encode(self, src_N: Tensor, src: Layout) -> list[Tensor]:
        """Encode packed sentences. Return the cross-attention keys and values of each layer, N x H(d_k + d_v)."""
        encoded = []
        for model in self.models:
            memory_ND = model.encode(src_N, src, self.dtype)
            encoded += [linear(memory_ND, layer.cross_attention.key_value) for layer in layers(model.decoder)]
        return encoded

    def fill(self, slots: list[int], encoded: list[Tensor], starts: Sequence[int], lengths: Sequence[int]) -> None:
        """Put sentences into slots. `starts` and `lengths` give the rows of each sentence in the result of `encode`."""
        self.src_lengths_S[slots], self.used_SWE[slots] = lengths, False
        length, room = self._rounded(int(self.src_lengths_S.max())), self.memory[0][0].shape[2]
        if not length <= room <= 2 * length:
            room, pads = length, (0, 0, 0, length - room)  # a negative difference crops
            self.memory = [[F.pad(x, pads) for x in pair] for pair in self.memory]
        sentences_N, positions_N = token_positions(np.asarray(lengths))
        indices = np.asarray(starts)[sentences_N] + positions_N, np.asarray(slots)[sentences_N], positions_N
        from_N, slots_N, to_N = (torch.from_numpy(index_N).to(self.device) for index_N in indices)
        for pair, kv_NC in zip(self.memory, encoded, strict=True):
            parts = kv_NC[from_N].split([x.shape[1] * x.shape[3] for x in pair], 1)
            for x_SHLK, part_NC in zip(pair, parts, strict=True):
                x_SHLK[slots_N, :, to_N] = part_NC.unflatten(1, (x_SHLK.shape[1], -1))

    def release(self, slots: list[int]) -> None:
        self.src_lengths_S[slots] = 0
        self.last_SW[slots] = 0  # the old entries may no longer exist when the slots are filled again

    def allocate_entries(self) -> list[Int64s]:
        """Reserve an entry for the next token of each hypothesis. Return the last four arguments of `step`."""
        needed_SE = self.used_SWE.any(1) & (self.src_lengths_S > 0)[:, None]
        entries, last = needed_SE.shape[1], int(np.flatnonzero(needed_SE.any(0)).max(initial=-1)) + 1
        enough = self._rounded(max(last, int(needed_SE.sum(1).max()) + self.width))
        if not enough <= entries <= self.spare * enough:
            more = enough - entries  # if negative, F.pad returns a cropped copy; a view would be copied in each step
            self.past = [[F.pad(x, (0, 0, 0, more)) for x in cache] for cache in self.past]
            self.used_SWE = np.pad(self.used_SWE[:, :, :enough], ((0, 0), (0, 0), (0, max(0, more))))
            needed_SE = np.pad(needed_SE[:, :enough], ((0, 0), (0, max(0, more))))
        new_SW = np.argsort(needed_SE, axis=1, kind="stable")[:, : self.width]
        self.used_SWE[np.arange(self.slots)[:, None], np.arange(self.width), new_SW] = True
        before_SW, self.last_SW = self.last_SW, new_SW
        return [self.used_SWE, new_SW, before_SW, self.src_lengths_S]

    def storage(self) -> list[tuple[int, torch.Size]]:
        """Return the addresses and shapes of all keys, values and states on the device."""
        return [(x.data_ptr(), x.shape) for cache in (*self.past, *self.memory) for x in cache]

    def _attend(
        self, attention: Attention, k_v: list[Tensor], bias: Tensor, new_G: Tensor | None, x_RD: Tensor
    ) -> Tensor:
        """Return the output of attention, R x D. Keys and values are S x H x keys x K. `bias` is added to the scores.

        In self-attention, the keys and values of `x_RD` are first written to the rows `new_G` of the cache. In
        cross-attention, `new_G` is None.
        """
        heads = attention.num_heads
        if new_G is None:
            q_RC = linear(x_RD, attention.query)
        else:
            sizes = [heads * x.shape[3] for x in k_v]
            q_RC, *new = linear(x_RD, attention.query_key_value).split([sizes[0], *sizes], -1)
            for cache_SHEK, part_RC in zip(k_v, new, strict=True):
                # With one index per row, index_copy_ takes half the time.
                cache_SHEK.view(-1, cache_SHEK.shape[3]).index_copy_(0, new_G, part_RC.reshape(-1, cache_SHEK.shape[3]))
        k, v = (x.flatten(0, 1) for x in k_v)
        q_SHWK = q_RC.view(self.slots, self.width, heads, -1).transpose(1, 2)
        scores = torch.bmm(q_SHWK.reshape(self.slots * heads, self.width, -1), k.transpose(1, 2))
        scores = torch.add(bias, scores.view(self.slots, heads, self.width, -1), alpha=attention.d_k**-0.5)
        mixed_SHWK = torch.bmm(softmax(scores).flatten(0, 1), v)
        mixed_SWHK = mixed_SHWK.view(self.slots, heads, self.width, -1).transpose(1, 2)
        return linear(mixed_SWHK.reshape(self.slots * self.width, -1), attention.output)

    @staticmethod
    def _recur(
        recurrence: SSRU, states_SED: Tensor, first_R1: Tensor, before_R: Tensor, new_R: Tensor, x_RD: Tensor
    ) -> Tensor:
        """Return the output of an SSRU, R x D. Read states from the entries `before_R`, and write them to `new_R`.

        `first_R1` marks the hypotheses that have no token yet, and therefore no state to read.
        """
        rows_GD = states_SED.view(-1, states_SED.shape[2])
        h_RD, new_RD = recurrence.step(x_RD, rows_GD[before_R].masked_fill(first_R1, 0))
        rows_GD.index_copy_(0, new_R, new_RD)
        return h_RD

    def step(
        self,
        ids_R: Tensor,
        positions_R: Tensor,
        used_SWE: Tensor,
        new_SW: Tensor,
        before_SW: Tensor,
        lengths_S: Tensor,
    ) -> list[Tensor]:
        """Return the logits of each model for the next token of each hypothesis, R x V (V is a multiple of BLOCK).

        `ids_R` holds the last token of each hypothesis, or PAD at the beginning. The last four arguments are from
        `allocate_entries`. Repeating a step gives the same result, so steps can be captured as CUDA graphs.
        """
        past_bias = mask_bias(used_SWE[:, None], self.dtype)
        memory_bias = padding_bias(lengths_S, self.memory[0][0].shape[2], self.dtype)
        caches, logits = zip(self.past, self.memory, strict=True), []
        for model in self.models:
            heads = model.settings.num_heads
            first_SH = torch.arange(self.slots * heads, device=self.device).view(-1, 1, heads) * used_SWE.shape[2]
            new_G = (first_SH + new_SW[:, :, None]).flatten()
            slots_S1 = torch.arange(self.slots, device=self.device)[:, None] * used_SWE.shape[2]
            state = (positions_R == 0)[:, None], (slots_S1 + before_SW).flatten(), (slots_S1 + new_SW).flatten()
            x_RD = model.embed(ids_R, positions_R, "tgt").to(self.dtype)
            for layer, (past, memory) in zip(layers(model.decoder), caches, strict=False):
                attend_memory = partial(self._attend, layer.cross_attention, memory, memory_bias, None)
                if layer.recurrent:
                    first = partial(self._recur, layer.recurrence, past[0], *state)
                else:
                    first = partial(self._attend, layer.self_attention, past, past_bias, new_G)
                x_RD, _ = layer.forward(x_RD, [first, attend_memory])
            if model.settings.norm == "pre":
                x_RD = layer_norm(x_RD, model.decoder_norm)
            logits_RV = _logits(x_RD, cast(nn.Linear, model.output))
            logits_RV[:, PAD].fill_(-torch.inf)
            logits_RV[:, model.vocabulary_size :].fill_(-torch.inf)
            logits.append(logits_RV)
        return logits
