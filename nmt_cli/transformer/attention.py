"""Scaled dot-product and multi-head attention (section 3.2 of "Attention Is All You Need") over packed sentences.

Shapes: B sentences, S source length, T target length, N query tokens and M key tokens in a batch, H heads, K size per
head, D d_model, R rows (one per token and head), G rows of all grids, including padding. A packed tensor x_ND is the
concatenation of all sentences, without padding. On a GPU, a kernel computes attention on packed tensors. Elsewhere,
consecutive sentences of similar length form a block, and attention runs on one padded grid per block.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nmt_cli.transformer import hardware

Device = torch.device | str
TILE = 128  # tokens; maximum lengths are rounded up to a multiple of this number, as in flash attention
MIN_WIDTH = 16  # minimum columns of a grid: on a CPU, a float32 softmax over fewer columns takes ten times as long
# Above this mean number of tokens, flash attention is faster (tests/benchmarks/gpu_attention.py). The maximum limits
# the time of a program of the Triton kernels, which computes a whole sentence.
SHORT_MEAN, SHORT_MAX = 128, 512
Int64s = npt.NDArray[np.int64]
torch.backends.cuda.enable_cudnn_sdp(False)  # cuDNN builds a plan for each shape, and most batches have a new shape


def to_device(arrays: Sequence[npt.NDArray[Any]], device: Device) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Copy arrays to the device in one buffer of 32-bit integers. Return the buffer and a view of it for each array."""
    sizes = [len(array) for array in arrays]
    buffer = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=torch.device(device).type == "cuda")
    np.concatenate(arrays, out=buffer.numpy(), casting="same_kind")
    buffer = buffer.to(device, non_blocking=True)
    return buffer, buffer.split(sizes)


def token_positions(lengths: Int64s) -> tuple[Int64s, Int64s]:
    """Return, for each token of a packed batch, the index of its sentence, and its position in the sentence."""
    sentences_N = np.repeat(np.arange(len(lengths)), lengths)
    return sentences_N, np.arange(len(sentences_N)) - (lengths.cumsum() - lengths)[sentences_N]


class Layout:
    """The positions of the sentences in a packed batch, and their division into blocks.

    The argument `bounds` holds the index of each block's first sentence, and B at the end (default: one block).
    Tensors on the device: `positions_N` (of each token in its sentence), `lengths_B`, `offsets_B` (index of each
    sentence's first token, and N at the end), and `widths_B` (of each sentence's grid). `integers` holds the same four
    arrays on the host. `blocks` holds the number of sentences and the grid width of each block. `full` holds for each
    block whether its grid has no padding. `max_length` is an upper bound on all lengths.
    """

    def __init__(self, lengths: Sequence[int] | Int64s, device: Device = "cpu", bounds: Sequence[int] = ()) -> None:
        counts, bounds = np.asarray(lengths), bounds or (0, len(lengths))
        sentences, widths = np.diff(bounds), np.maximum(np.maximum.reduceat(counts, bounds[:-1]), MIN_WIDTH)
        self.blocks = list(zip(sentences.tolist(), widths.tolist(), strict=True))
        self.full = (np.minimum.reduceat(counts, bounds[:-1]) == widths).tolist()
        self.max_length = -(-int(counts.max()) // TILE) * TILE
        self.integers = token_positions(counts)[1], counts, np.append(0, counts.cumsum()), np.repeat(widths, sentences)
        self._indices: dict[int, tuple[Tensor, Tensor]] = {}
        self.hold(to_device(self.integers, device)[1])

    def hold(self, integers: Sequence[Tensor]) -> None:
        """Set the four tensors on the device, which are copies of `integers`."""
        self.positions_N, self.lengths_B, self.offsets_B, self.widths_B = integers

    def index(self, heads: int) -> tuple[Tensor, Tensor]:
        """Return the grid index of each row (token, head), and the row at each grid index (0 at padding)."""
        if heads not in self._indices:  # computed on the device
            tokens, heads_H = len(self.positions_N), torch.arange(heads, device=self.lengths_B.device)
            starts_BH = (self.widths_B.cumsum(0) - self.widths_B)[:, None] * heads + self.widths_B[:, None] * heads_H
            starts_NH = starts_BH.repeat_interleave(self.lengths_B, 0, output_size=tokens)
            index_R = (starts_NH + self.positions_N[:, None]).flatten()
            rows_G = index_R.new_zeros(heads * sum(size * width for size, width in self.blocks))
            rows_G[index_R] = torch.arange(len(index_R), device=index_R.device)
            self._indices[heads] = index_R, rows_G
        return self._indices[heads]

    def biases(self, dtype: torch.dtype, *, causal: bool) -> list[Tensor | None]:
        """Return the bias of each block. If causal, it masks later tokens. Otherwise, it masks padding.

        The bias is None if it would mask padding in a block without padding.
        """
        if causal:
            ones = partial(torch.ones, dtype=torch.bool, device=self.lengths_B.device)
            return [mask_bias(ones(width, width).tril_(), dtype) for _, width in self.blocks]
        blocks = zip(self.lengths_B.split([size for size, _ in self.blocks]), self.blocks, self.full, strict=True)
        return [None if full else padding_bias(own_B, width, dtype) for own_B, (_, width), full in blocks]


def block_bounds(src_lengths: Int64s, tgt_lengths: Int64s) -> list[int]:
    """Divide a batch of sentence pairs into blocks. Return the index of each block's first pair, and B at the end.

    At most half of the scores computed for a block are padding, unless MIN_WIDTH widens its grids.
    """
    bounds, scores, src, tgt = [0], 0, 0, 0  # src and tgt: maximum lengths in the block
    for i, (s, t) in enumerate(zip(src_lengths.tolist(), tgt_lengths.tolist(), strict=True)):
        src, tgt, scores = max(src, s), max(tgt, t), scores + s * s + s * t + t * t
        if (i + 1 - bounds[-1]) * (src * src + src * tgt + tgt * tgt) > 2 * scores:
            bounds.append(i)
            src, tgt, scores = s, t, s * s + s * t + t * t
    return [*bounds, len(src_lengths)]


class _ToGrid(torch.autograd.Function):
    """Copy rows to the grids.

    Padding has no gradient, and each row occurs once on the grids, so the backward pass can gather the gradients. The
    gradient of index_select would be a scatter-add, which is slower.
    """

    @staticmethod
    def forward(ctx: Any, x_RK: Tensor, index_R: Tensor, rows_G: Tensor) -> Tensor:
        ctx.save_for_backward(index_R)
        return x_RK.index_select(0, rows_G)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].index_select(0, *ctx.saved_tensors), None, None


def to_grids(x_NHK: Tensor, layout: Layout) -> list[Tensor]:
    """Copy packed tokens to padded grids. Return one grid per block, B x H x T x K.

    Padding is not zero but a copy of a token's vector, so attention must mask it. Padding gets no gradient.
    """
    _, heads, size = x_NHK.shape
    rows_GK: Tensor = _ToGrid.apply(x_NHK.reshape(-1, size), *layout.index(heads))  # type: ignore[no-untyped-call]
    grids = rows_GK.split([sentences * heads * width for sentences, width in layout.blocks])
    return [grid.view(b, heads, t, size) for grid, (b, t) in zip(grids, layout.blocks, strict=True)]


def from_grids(grids: Sequence[Tensor], layout: Layout) -> Tensor:
    """Copy the tokens of padded grids to a packed tensor, N x H x K. Padding gets no gradient."""
    _, heads, _, size = grids[0].shape
    rows_GK = torch.cat([grid.reshape(-1, size) for grid in grids])
    return F.embedding(layout.index(heads)[0], rows_GK).view(-1, heads, size)


def mask_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    # A large negative number, not -inf, so that a fully masked row and its gradient stay finite.
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min / 2)


def padding_bias(lengths_B: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return a bias, B x 1 x 1 x size. Adding it to the scores masks padding."""
    return mask_bias(torch.arange(size, device=lengths_B.device) < lengths_B[:, None], dtype)[:, None, None]


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last dimension. On a CPU, use float32, which is up to three times as fast as bf16."""
    wide = None if scores.is_cuda else torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, -1, dtype=wide).to(scores.dtype)


def dot_product_attention(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias: Tensor | None) -> Tensor:
    """Return softmax(q k^T / sqrt(d_k) + bias) v (equation 1), B x H x T x K."""
    scale = q_BHTK.shape[-1] ** -0.5
    if q_BHTK.is_cuda:  # on a CPU, the fused kernel is eight times slower (tests/benchmarks/README.md)
        return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=bias, scale=scale)
    scores_BHTS = q_BHTK @ k_BHSK.transpose(-1, -2)
    scores_BHTS = scores_BHTS * scale if bias is None else torch.add(bias, scores_BHTS, alpha=scale)
    return softmax(scores_BHTS) @ v_BHSK


def has_kernel(x: Tensor, d_k: int, d_v: int) -> bool:
    """Return whether variable-length flash attention supports these sizes and the dtype and device of `x`."""
    return x.device.type != "cpu" and x.dtype.itemsize == 2 and d_k == d_v <= 256 and d_k % 8 == 0


def _uses_short_kernels(q_NHK: Tensor, k_MHK: Tensor, queries: Layout, keys: Layout) -> bool:
    """Return whether to use the kernels for short sentences. Only training uses them, because compiling takes time."""
    mean = (len(q_NHK) + len(k_MHK)) / (2 * (len(queries.offsets_B) - 1))
    short = mean <= SHORT_MEAN and max(queries.max_length, keys.max_length) <= SHORT_MAX
    if not short or q_NHK.shape[2] not in (16, 32, 64, 128) or not torch.is_grad_enabled():
        return False
    return torch.compiler.is_compiling() or hardware.can_compile(q_NHK.device)


def packed_attention(
    q_NHK: Tensor, k_MHK: Tensor, v_MHK: Tensor, queries: Layout, keys: Layout, *, causal: bool
) -> Tensor:
    """Return the output of attention within each sentence, N x H x K. If causal, tokens do not attend to later ones."""
    if has_kernel(q_NHK, q_NHK.shape[2], v_MHK.shape[2]):
        offsets = queries.offsets_B, keys.offsets_B
        if _uses_short_kernels(q_NHK, k_MHK, queries, keys):
            from nmt_cli.transformer.sentence_attention import sentence_attention  # needs Triton

            out_NHK: Tensor = sentence_attention(q_NHK, k_MHK, v_MHK, *offsets, causal)[0]
            return out_NHK
        from torch.nn.attention.varlen import varlen_attn  # takes 4 s: it imports torch's compiler

        sizes, window = (queries.max_length, keys.max_length), (-1, 0 if causal else -1)
        return varlen_attn(q_NHK, k_MHK, v_MHK, *offsets, *sizes, window_size=window)  # type: ignore[return-value]
    sides = (q_NHK, queries), (k_MHK, keys), (v_MHK, keys)
    blocks = zip(*(to_grids(*side) for side in sides), keys.biases(q_NHK.dtype, causal=causal), strict=True)
    return from_grids([dot_product_attention(*block) for block in blocks], queries)


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """Apply a layer in the dtype of `x`. Weights of another dtype are cast for this call only."""
    bias = layer.bias
    return F.linear(x, layer.weight.to(x.dtype), bias.to(x.dtype) if bias is not None else None)


class Attention(nn.Module):
    """Multi-head attention.

    `query_key_value` (in cross-attention, `query` and `key_value`) stacks the matrices W^Q, W^K and W^V of all heads.
    The paper has no biases, but the code that its authors released in 2017 has them.
    """

    def __init__(self, d_model: int, num_heads: int, d_k: int, d_v: int, *, bias: bool, cross: bool) -> None:
        super().__init__()
        self.num_heads, self.d_k, self.d_v = num_heads, d_k, d_v
        self.sizes = [num_heads * size for size in (d_k, d_k, d_v)]
        if cross:
            self.query = nn.Linear(d_model, self.sizes[0], bias=bias)
            self.key_value = nn.Linear(d_model, sum(self.sizes[1:]), bias=bias)
        else:
            self.query_key_value = nn.Linear(d_model, sum(self.sizes), bias=bias)
        self.output = nn.Linear(num_heads * d_v, d_model, bias=bias)

    def projections(self) -> list[Tensor]:
        """Return views of W^Q, W^K, W^V (each for all heads) and W^O."""
        if hasattr(self, "query"):
            return [self.query.weight, *self.key_value.weight.split(self.sizes[1:]), self.output.weight]
        return [*self.query_key_value.weight.split(self.sizes), self.output.weight]

    def heads(self, x_ND: Tensor, memory_MD: Tensor | None = None) -> list[Tensor]:
        """Return queries from `x_ND`, N x H x K, and keys and values from `memory_MD` (default: `x_ND`), M x H x K."""
        if memory_MD is None:
            parts = linear(x_ND, self.query_key_value).split(self.sizes, -1)
        else:
            parts = linear(x_ND, self.query), *linear(memory_MD, self.key_value).split(self.sizes[1:], -1)
        return [part.unflatten(-1, (self.num_heads, -1)) for part in parts]

    def forward(
        self, x_ND: Tensor, layout: Layout, memory: tuple[Tensor, Layout] | None = None, *, causal: bool = False
    ) -> Tensor:
        """Return the output of attention, N x D. Keys and values come from `memory` (default: `x_ND`)."""
        memory_MD, keys = memory or (None, layout)
        q_NHK, k_MHK, v_MHK = self.heads(x_ND, memory_MD)
        return linear(packed_attention(q_NHK, k_MHK, v_MHK, layout, keys, causal=causal).flatten(1), self.output)
