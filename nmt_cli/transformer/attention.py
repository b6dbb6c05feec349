"""Scaled dot-product and multi-head attention (section 3.2 of the paper) over packed sentences.

Shapes: B sentences, S source length, T target length, N tokens in a packed batch, H heads, K size per head, D d_model.
A packed tensor x_ND holds the real tokens of all sentences end to end and no pads; only the attention core looks at
padded grids, one for each block of neighbouring sentences of similar length.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.transformer.hardware import Int8Linear, PackedLinear

Int64s = npt.NDArray[np.int64]
torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN would build a plan for every new shape, and most shapes are new


class Layout:
    """Which tokens of a packed batch belong to which sentence, and which sentences form a block.

    `bounds` are the first sentence of each block, and B; by default all sentences are one block. `blocks` are layouts
    of their own; of one block, this layout itself. `positions_N` are each token's place in its sentence; on the host
    `places_N` are the same, and `rows_N` its sentence.
    """

    def __init__(
        self, lengths: Sequence[int] | Int64s, device: torch.device | str = "cpu", bounds: Sequence[int] = ()
    ) -> None:
        counts = np.asarray(lengths)
        self.blocks = [self] if len(bounds) < 3 else [Layout(counts[a:b], device) for a, b in pairwise(bounds)]
        self.max_length = int(counts.max())
        self.full = int(counts.min()) == self.max_length  # the grid has no pads
        self.rows_N = np.repeat(np.arange(len(counts)), counts)
        self.places_N = np.arange(len(self.rows_N)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._indices: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.device = device
        self.lengths_B = torch.from_numpy(counts).to(device, non_blocking=True)
        self.positions_N = torch.from_numpy(self.places_N).to(device, non_blocking=True)

    def index(self, parts: int, heads: int) -> tuple[Tensor, Tensor]:
        """Return where row (token, part, head) lies in the grid of to_grid, and which row lies at each place there."""
        if (parts, heads) not in self._indices:
            sentences = len(self.lengths_B)
            place = np.arange(parts)[:, None] * sentences + self.rows_N[:, None, None]
            place = place * heads + np.arange(heads)
            index = (place * self.max_length + self.places_N[:, None, None]).reshape(-1)
            rows = np.zeros(parts * sentences * heads * self.max_length, np.int64)
            rows[index] = np.arange(len(index))
            index_R, rows_M = (torch.from_numpy(x).to(self.device, non_blocking=True) for x in (index, rows))
            self._indices[parts, heads] = (index_R, rows_M)
        return self._indices[parts, heads]


def block_bounds(src_lengths: Int64s, tgt_lengths: Int64s) -> list[int]:
    """Return the first pair of each block, and the number of pairs; a block's score grids are at least half full."""
    bounds, scores, src, tgt = [0], 0, 0, 0  # src and tgt are the longest of the block
    for i, (s, t) in enumerate(zip(src_lengths.tolist(), tgt_lengths.tolist(), strict=True)):
        src, tgt, scores = max(src, s), max(tgt, t), scores + s * s + s * t + t * t
        if (i + 1 - bounds[-1]) * (src * src + src * tgt + tgt * tgt) > 2 * scores:
            bounds.append(i)
            src, tgt, scores = s, t, s * s + s * t + t * t
    return [*bounds, len(src_lengths)]


class _ToGrid(torch.autograd.Function):
    """Rows to their places in the grid."""

    @staticmethod
    def forward(ctx: Any, x_RK: Tensor, index_R: Tensor, rows_M: Tensor) -> Tensor:
        ctx.save_for_backward(index_R)
        return x_RK.index_select(0, rows_M)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (index_R,) = ctx.saved_tensors
        return grads[0].index_select(0, index_R), None, None


class _FromGrid(torch.autograd.Function):
    """The rows of the grid that hold tokens; pads get no gradient."""

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, index_R: Tensor) -> Tensor:
        ctx.save_for_backward(index_R)
        ctx.size = len(x_MK)
        return x_MK.index_select(0, index_R)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (index_R,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.size, grads[0].shape[1]).index_copy_(0, index_R, grads[0]), None


def to_grid(x_NC: Tensor, layout: Layout, parts: int, heads: int) -> Tensor:
    """Return parts x B x H x T x K: packed rows on the padded grid. Pads hold some token's vector, not zeros: nobody
    may look at them, and they pass no gradient on."""
    index_R, rows_M = layout.index(parts, heads)
    grid: Tensor = _ToGrid.apply(x_NC.reshape(len(index_R), -1), index_R, rows_M)  # type: ignore[no-untyped-call]
    return grid.view(parts, len(layout.lengths_B), heads, layout.max_length, -1)


def from_grid(x_BHTK: Tensor, layout: Layout) -> Tensor:
    """Return N x HK: the real tokens of the padded grid, end to end, heads side by side."""
    index_R, _ = layout.index(1, x_BHTK.shape[1])
    gathered: Tensor = _FromGrid.apply(x_BHTK.reshape(-1, x_BHTK.shape[-1]), index_R)  # type: ignore[no-untyped-call]
    return gathered.view(len(layout.positions_N), -1)


def mask_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    # A large number, not -inf: a row that may attend nowhere, and its gradient, stay finite.
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min / 2)


def padding_bias(lengths_B: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return B x 1 x 1 x size to add to scores so that no query sees a pad."""
    return mask_bias(torch.arange(size, device=lengths_B.device) < lengths_B[:, None], dtype)[:, None, None]


def score_biases(layout: Layout, dtype: torch.dtype, *, causal: bool) -> list[Tensor | None]:
    """Return for each block what to add to scores so that no query sees a pad or, causal, what comes after it."""
    if not causal:
        return [None if b.full else padding_bias(b.lengths_B, b.max_length, dtype) for b in layout.blocks]
    ones = partial(torch.ones, dtype=torch.bool, device=layout.device)
    return [mask_bias(ones(b.max_length, b.max_length).tril_(), dtype) for b in layout.blocks]


def dot_product_attention(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias: Tensor | None) -> Tensor:
    """Return softmax(q k^T / sqrt(d_k)) v of shape B, H, T, K (equation 1); `bias` is added to the scores."""
    scale = q_BHTK.shape[-1] ** -0.5
    if q_BHTK.is_cuda:  # on the CPU the fused kernel is eight times slower (tests/benchmarks/README.md)
        return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=bias, scale=scale)
    scores_BHTS = q_BHTK @ k_BHSK.transpose(-1, -2)
    scores_BHTS = scores_BHTS * scale if bias is None else torch.add(bias, scores_BHTS, alpha=scale)
    return torch.softmax(scores_BHTS, -1) @ v_BHSK


def linear(x: Tensor, layer: nn.Linear | Int8Linear | PackedLinear) -> Tensor:
    """Apply a layer in the arithmetic of `x`; its float32 weights are the master copy."""
    if isinstance(layer, Int8Linear | PackedLinear):
        return layer.forward(x)
    bias = layer.bias
    return F.linear(x, layer.weight.to(x.dtype), bias.to(x.dtype) if bias is not None else None)


class Attention(nn.Module):
    """Multi-head attention. W^Q, W^K, W^V of the paper are rows of `query` and `key_value`, or, in self-attention, of
    `query_key_value`: of all heads. The paper writes no biases; the released code of 2017 had them."""

    def __init__(self, d_model: int, num_heads: int, d_k: int, d_v: int, *, bias: bool, cross: bool) -> None:
        super().__init__()
        self.num_heads, self.d_k, self.d_v = num_heads, d_k, d_v
        query, key_value = num_heads * d_k, num_heads * (d_k + d_v)
        if cross:
            self.query = nn.Linear(d_model, query, bias=bias)
            self.key_value = nn.Linear(d_model, key_value, bias=bias)
        else:
            self.query_key_value = nn.Linear(d_model, query + key_value, bias=bias)
        self.output = nn.Linear(num_heads * d_v, d_model, bias=bias)

    def projections(self) -> list[Tensor]:
        """Return views of W^Q, W^K, W^V (each for all heads) and W^O, in this order."""
        h, d_k, d_v = self.num_heads, self.d_k, self.d_v
        if hasattr(self, "query"):
            k, v = self.key_value.weight.split([h * d_k, h * d_v])
            return [self.query.weight, k, v, self.output.weight]
        return [*self.query_key_value.weight.split([h * d_k, h * d_k, h * d_v]), self.output.weight]

    def forward(
        self, x_ND: Tensor, layout: Layout, biases: Sequence[Tensor | None], memory: tuple[Tensor, Layout] | None = None
    ) -> Tensor:
        """Return attention's output, N x D; keys and values come from `memory`, else x_ND. `biases` are of blocks."""
        if memory is None:
            grids = self._grids(linear(x_ND, self.query_key_value), layout, [self.d_k, self.d_k, self.d_v])
        else:
            queries = self._grids(linear(x_ND, self.query), layout, [self.d_k])
            keys_values = self._grids(linear(memory[0], self.key_value), memory[1], [self.d_k, self.d_v])
            grids = (q + k_v for q, k_v in zip(queries, keys_values, strict=True))
        blocks = zip(grids, biases, layout.blocks, strict=True)
        outputs = [from_grid(dot_product_attention(q, k, v, bias), block) for (q, k, v), bias, block in blocks]
        return linear(torch.cat(outputs) if len(outputs) > 1 else outputs[0], self.output)

    def _grids(self, x_NC: Tensor, layout: Layout, sizes: list[int]) -> Iterator[list[Tensor]]:
        """Yield the parts of a joint projection, of these sizes a head, on the padded grid of each block."""
        heads = self.num_heads
        for x, block in zip(x_NC.split([len(b.positions_N) for b in layout.blocks]), layout.blocks, strict=True):
            if len(set(sizes)) == 1:
                yield list(to_grid(x, block, len(sizes), heads).unbind())
            else:
                yield [to_grid(part, block, 1, heads)[0] for part in x.split([heads * size for size in sizes], -1)]
