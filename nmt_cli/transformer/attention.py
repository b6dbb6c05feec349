"""Scaled dot-product and multi-head attention (section 3.2 of the paper) over packed sentences.

Shapes: B sentences, S source length, T target length, N queries and M keys in a packed batch, H heads, K size per head,
D d_model. A packed tensor x_ND holds the real tokens of all sentences end to end and no pads. CUDA has a kernel for
that in 16 bits; elsewhere attention looks at padded grids, one for each block of neighbouring sentences of similar
length.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.transformer.hardware import Int8Linear

Int64s = npt.NDArray[np.int64]
torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN would build a plan for every new shape, and most shapes are new


def to_device(arrays: Sequence[npt.NDArray[Any]], device: torch.device | str) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return one buffer of 32-bit integers, which is copied to the device at once, and each array's part of it."""
    sizes = [len(array) for array in arrays]
    buffer = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=torch.device(device).type == "cuda")
    np.concatenate(arrays, out=buffer.numpy(), casting="same_kind")
    buffer = buffer.to(device, non_blocking=True)
    return buffer, buffer.split(sizes)


class Block:
    """The padded grid of some neighbouring sentences. Its tables are made on the device when they are first needed."""

    def __init__(self, lengths: Sequence[int], lengths_B: Tensor, positions_N: Tensor) -> None:
        self.lengths_B, self.positions_N = lengths_B, positions_N
        self.max_length = max(lengths)
        self.full = min(lengths) == self.max_length  # the grid has no pads
        self._indices: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def index(self, heads: int, stride: int) -> tuple[Tensor, Tensor]:
        """Return where row (token, head) lies in the grid of to_grid, and which row lies at each place there, where
        tokens are `stride` rows apart."""
        if (heads, stride) not in self._indices:
            sentences, tokens, device = len(self.lengths_B), len(self.positions_N), self.positions_N.device
            numbers_B, heads_H = torch.arange(sentences, device=device), torch.arange(heads, device=device)
            sentences_N1 = numbers_B.repeat_interleave(self.lengths_B, output_size=tokens)[:, None]
            index_NH = (sentences_N1 * heads + heads_H) * self.max_length + self.positions_N[:, None]
            rows_NH = torch.arange(0, tokens * stride, stride, device=device)[:, None] + heads_H
            rows_G = torch.zeros(sentences * heads * self.max_length, dtype=torch.int64, device=device)
            index_R = index_NH.flatten()
            self._indices[heads, stride] = index_R, rows_G.index_copy_(0, index_R, rows_NH.flatten())
        return self._indices[heads, stride]

    def bias(self, dtype: torch.dtype, *, causal: bool) -> Tensor | None:
        """Return what to add to scores so that no query sees a pad or, causal, what comes after it."""
        if causal:
            size = (self.max_length, self.max_length)
            return mask_bias(torch.ones(size, dtype=torch.bool, device=self.lengths_B.device).tril_(), dtype)
        return None if self.full else padding_bias(self.lengths_B, self.max_length, dtype)


class Layout:
    """Which tokens of a packed batch belong to which sentence, and which sentences form a block.

    `positions_N` are each token's place in its sentence; `lengths_B`; `offsets_B` the first token of each sentence,
    and N. All are on the device; on the host `integers` are the same, and `rows_N` each token's sentence. `bounds` are
    the first sentence of each block, and B; by default all sentences are one block.
    """

    def __init__(
        self, lengths: Sequence[int] | Int64s, device: torch.device | str = "cpu", bounds: Sequence[int] = ()
    ) -> None:
        counts = np.asarray(lengths)
        self.bounds, self.max_length = bounds or (0, len(counts)), int(counts.max())
        self.rows_N, offsets_B = np.repeat(np.arange(len(counts)), counts), np.append(0, counts.cumsum())
        self.places_N = np.arange(len(self.rows_N)) - offsets_B[self.rows_N]
        self.integers = self.places_N, counts, offsets_B
        self.hold(to_device(self.integers, device)[1])

    def hold(self, integers: Sequence[Tensor]) -> None:
        """Take what `integers` are on the device."""
        self.positions_N, self.lengths_B, self.offsets_B = integers
        _, counts, offsets = (array.tolist() for array in self.integers)
        self.blocks = [
            Block(counts[a:b], self.lengths_B[a:b], self.positions_N[offsets[a] : offsets[b]])
            for a, b in pairwise(self.bounds)
        ]


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
    """Each head of each token to its place in the grid."""

    @staticmethod
    def forward(ctx: Any, x_NHK: Tensor, index_R: Tensor, rows_G: Tensor) -> Tensor:
        ctx.save_for_backward(index_R)
        ctx.shape = x_NHK.shape
        size = x_NHK.shape[2]
        rows = (x_NHK.shape[0] - 1) * x_NHK.stride(0) // size + x_NHK.shape[1]
        return x_NHK.as_strided((rows, size), (size, 1)).index_select(0, rows_G)  # other parts may lie between them

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (index_R,) = ctx.saved_tensors
        return grads[0].index_select(0, index_R).view(ctx.shape), None, None


class _FromGrid(torch.autograd.Function):
    """The rows of the grid that hold tokens; pads get no gradient."""

    @staticmethod
    def forward(ctx: Any, x_GK: Tensor, index_R: Tensor) -> Tensor:
        ctx.save_for_backward(index_R)
        ctx.size = len(x_GK)
        return x_GK.index_select(0, index_R)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (index_R,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.size, grads[0].shape[1]).index_copy_(0, index_R, grads[0]), None


def to_grid(x_NHK: Tensor, block: Block) -> Tensor:
    """Return B x H x T x K: packed tokens on the padded grid. Pads hold some token's vector, not zeros: nobody may
    look at them, and they pass no gradient on."""
    _, heads, size = x_NHK.shape
    if x_NHK.stride()[1:] != (size, 1) or x_NHK.stride(0) % size:
        x_NHK = x_NHK.contiguous()
    indices = block.index(heads, x_NHK.stride(0) // size)
    grid: Tensor = _ToGrid.apply(x_NHK, *indices)  # type: ignore[no-untyped-call]
    return grid.view(len(block.lengths_B), heads, block.max_length, size)


def from_grid(x_BHTK: Tensor, block: Block) -> Tensor:
    """Return N x H x K: the real tokens of the padded grid, end to end."""
    heads, size = x_BHTK.shape[1], x_BHTK.shape[3]
    index_R, _ = block.index(heads, heads)
    gathered: Tensor = _FromGrid.apply(x_BHTK.reshape(-1, size), index_R)  # type: ignore[no-untyped-call]
    return gathered.view(-1, heads, size)


def mask_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    # A large number, not -inf: a row that may attend nowhere, and its gradient, stay finite.
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min / 2)


def padding_bias(lengths_B: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return B x 1 x 1 x size to add to scores so that no query sees a pad."""
    return mask_bias(torch.arange(size, device=lengths_B.device) < lengths_B[:, None], dtype)[:, None, None]


def dot_product_attention(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias: Tensor | None) -> Tensor:
    """Return softmax(q k^T / sqrt(d_k)) v of shape B, H, T, K (equation 1); `bias` is added to the scores."""
    scale = q_BHTK.shape[-1] ** -0.5
    if q_BHTK.is_cuda:  # on the CPU the fused kernel is eight times slower (tests/benchmarks/README.md)
        return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=bias, scale=scale)
    scores_BHTS = q_BHTK @ k_BHSK.transpose(-1, -2)
    scores_BHTS = scores_BHTS * scale if bias is None else torch.add(bias, scores_BHTS, alpha=scale)
    return torch.softmax(scores_BHTS, -1) @ v_BHSK


def has_kernel(x: Tensor, d_k: int, d_v: int) -> bool:
    """Return whether variable-length flash attention takes such heads in the arithmetic of `x` where `x` lies."""
    return x.device.type != "cpu" and x.dtype.itemsize == 2 and d_k == d_v <= 256 and d_k % 8 == 0


def packed_attention(
    q_NHK: Tensor, k_MHK: Tensor, v_MHK: Tensor, queries: Layout, keys: Layout, *, causal: bool
) -> Tensor:
    """Return N x H x K: what each token finds in its own sentence, or, causal, up to itself."""
    if has_kernel(q_NHK, q_NHK.shape[2], v_MHK.shape[2]):
        from torch.nn.attention.varlen import varlen_attn  # takes 4 s: torch's whole compiler

        sizes, window = (queries.max_length, keys.max_length), (-1, 0 if causal else -1)
        offsets = queries.offsets_B, keys.offsets_B
        return varlen_attn(q_NHK, k_MHK, v_MHK, *offsets, *sizes, window_size=window)  # type: ignore[return-value]
    sides = (q_NHK, queries), (k_MHK, keys), (v_MHK, keys)
    parts = [x.split([len(block.positions_N) for block in layout.blocks]) for x, layout in sides]
    outputs = []
    for query, key, *q_k_v in zip(queries.blocks, keys.blocks, *parts, strict=True):
        grids = [to_grid(x, block) for x, block in zip(q_k_v, (query, key, key), strict=True)]
        outputs.append(from_grid(dot_product_attention(*grids, key.bias(q_NHK.dtype, causal=causal)), query))
    return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def linear(x: Tensor, layer: nn.Linear | Int8Linear) -> Tensor:
    """Apply a layer in the arithmetic of `x`; its float32 weights are the master copy."""
    if isinstance(layer, Int8Linear):
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
        self, x_ND: Tensor, layout: Layout, memory: tuple[Tensor, Layout] | None = None, *, causal: bool = False
    ) -> Tensor:
        """Return attention's output, N x D; keys and values come from `memory`, else x_ND."""
        if memory is None:
            keys, parts = layout, self._heads(linear(x_ND, self.query_key_value), self.d_k, self.d_k, self.d_v)
        else:
            query, keys = self._heads(linear(x_ND, self.query), self.d_k), memory[1]
            parts = query + self._heads(linear(memory[0], self.key_value), self.d_k, self.d_v)
        return linear(packed_attention(*parts, layout, keys, causal=causal).flatten(1), self.output)

    def _heads(self, x_NC: Tensor, *sizes: int) -> list[Tensor]:
        """Return the parts of a joint projection, each N x H x K, of these sizes K."""
        parts = x_NC.split([self.num_heads * size for size in sizes], -1)
        return [part.unflatten(-1, (self.num_heads, -1)) for part in parts]
