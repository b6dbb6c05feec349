"""Attention within the sentences of packed tensors, as Triton kernels for short sentences.

Flash attention cuts long sequences into tiles of 64 or 128 tokens, and most sentences fill less than half of a tile.
Here, one program computes one head of a sentence, in smaller tiles. No two programs write to the same memory, so the
gradients have the same bits in every run. Those of flash attention do not.

The algorithm is that of FlashAttention-2 (Dao 2023). It computes the softmax of a row tile by tile, and stores the
logarithm of its denominator. From this, the backward pass computes the probabilities again.

Shapes: N query tokens, M key tokens, B sentences, H heads, K size per head. In a tile of scores, the rows are queries,
and the columns are keys. GPUs compute powers of 2, so all scores are multiplied by log2(e).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# The fastest sizes at the lengths of WMT14 on an H200 (tests/benchmarks/README.md). BLOCK is the size of a tile, in
# tokens, and a warp is a group of 32 threads.
FORWARD = {"BLOCK": 64, "num_warps": 4, "num_stages": 1}
BACKWARD = {"BLOCK": 32, "num_warps": 4, "num_stages": 1}
OFFSETS = ["query_offsets", "key_offsets"]  # their alignment differs from batch to batch
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _place(query_offsets, key_offsets, H: tl.constexpr):
    """Return the head of this program, and the first token and the length of its sentence on both sides.

    The programs of the last sentences start first. Batches are sorted by length, so the longest sentences are last.
    Only PAD sentences, which are short, can follow them.
    """
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    sentence = program // H
    first_query, first_key = tl.load(query_offsets + sentence), tl.load(key_offsets + sentence)
    queries = tl.load(query_offsets + sentence + 1) - first_query
    keys = tl.load(key_offsets + sentence + 1) - first_key
    return program % H, first_query.to(tl.int64), queries, first_key.to(tl.int64), keys


@triton.jit
def _load(x, tokens, length, stride, K: tl.constexpr):
    """Load the vectors of a sentence's tokens. They are zero after the end of the sentence."""
    vectors = x + tokens[:, None] * stride + tl.arange(0, K)[None, :]
    return tl.load(vectors, mask=tokens[:, None] < length, other=0.0)


@triton.jit
def _store(x, tokens, length, stride, values, K: tl.constexpr):
    vectors = x + tokens[:, None] * stride + tl.arange(0, K)[None, :]
    tl.store(vectors, values.to(x.dtype.element_ty), mask=tokens[:, None] < length)


@triton.jit
def _scores(q_rows, k_rows, rows, columns, keys, scale, CAUSAL: tl.constexpr):
    """Return a tile of scores, with -inf after the last key and, if causal, after each query."""
    scores = tl.dot(q_rows, tl.trans(k_rows), input_precision="ieee") * (scale * LOG2_E)
    allowed = columns[None, :] < keys
    if CAUSAL:
        allowed = allowed & (columns[None, :] <= rows[:, None])
    return tl.where(allowed, scores, float("-inf"))


@triton.jit(do_not_specialize_on_alignment=OFFSETS)
def _forward(
    q, k, v, out, log_sums, query_offsets, key_offsets, q_stride, k_stride, v_stride, scale,
    H: tl.constexpr, K: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, first_query, queries, first_key, keys = _place(query_offsets, key_offsets, H)
    q += first_query * q_stride + head * K
    k += first_key * k_stride + head * K
    v += first_key * v_stride + head * K
    out += (first_query * H + head) * K
    log_sums += first_query * H + head
    for row in range(0, queries, BLOCK):
        rows = row + tl.arange(0, BLOCK)
        q_rows = _load(q, rows, queries, q_stride, K)
        highest = tl.full([BLOCK], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK], tl.float32)
        mean = tl.zeros([BLOCK, K], tl.float32)
        last = tl.minimum(keys, row + BLOCK) if CAUSAL else keys
        for column in range(0, last, BLOCK):
            columns = column + tl.arange(0, BLOCK)
            k_rows, v_rows = _load(k, columns, keys, k_stride, K), _load(v, columns, keys, v_stride, K)
            scores = _scores(q_rows, k_rows, rows, columns, keys, scale, CAUSAL)
            higher = tl.maximum(highest, tl.max(scores, 1))
            powers, factor = tl.exp2(scores - higher[:, None]), tl.exp2(highest - higher)
            mean = mean * factor[:, None] + tl.dot(powers.to(v_rows.dtype), v_rows, input_precision="ieee")
            total, highest = total * factor + tl.sum(powers, 1), higher
        _store(out, rows, queries, H * K, mean / total[:, None], K)
        tl.store(log_sums + rows * H, highest + tl.log2(total), mask=rows < queries)


@triton.jit
def _load_queries(q, out, grad, log_sums, rows, queries, q_stride, H: tl.constexpr, K: tl.constexpr):
    """Load queries, the gradients of their outputs, and two numbers for each query.

    `log_sum` is the stored logarithm. `mean_grad` is the mean gradient of the probabilities, weighted by them.
    """
    q_rows, grad_rows = _load(q, rows, queries, q_stride, K), _load(grad, rows, queries, H * K, K)
    log_sum = tl.load(log_sums + rows * H, mask=rows < queries, other=0.0)
    mean_grad = tl.sum(_load(out, rows, queries, H * K, K).to(tl.float32) * grad_rows.to(tl.float32), 1)
    return q_rows, grad_rows, log_sum, mean_grad


@triton.jit
def _gradients(
    q_rows, grad_rows, log_sum, mean_grad, k_rows, v_rows, rows, columns, keys, scale, CAUSAL: tl.constexpr
):  # fmt: skip
    """Return the probabilities of a tile, and the gradients of its scores."""
    probs = tl.exp2(_scores(q_rows, k_rows, rows, columns, keys, scale, CAUSAL) - log_sum[:, None])
    probs_grad = tl.dot(grad_rows, tl.trans(v_rows), input_precision="ieee")
    return probs, probs * (probs_grad - mean_grad[:, None]) * scale


@triton.jit(do_not_specialize_on_alignment=OFFSETS)
def _backward(
    q, k, v, out, log_sums, grad, q_grad, k_grad, v_grad, query_offsets, key_offsets, q_stride, k_stride, v_stride,
    scale, H: tl.constexpr, K: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the queries (if program_id(1) is 0), or those of the keys and values (if it is 1)."""
    head, first_query, queries, first_key, keys = _place(query_offsets, key_offsets, H)
    q += first_query * q_stride + head * K
    k += first_key * k_stride + head * K
    v += first_key * v_stride + head * K
    out += (first_query * H + head) * K
    grad += (first_query * H + head) * K
    q_grad += (first_query * H + head) * K
    k_grad += (first_key * H + head) * K
    v_grad += (first_key * H + head) * K
    log_sums += first_query * H + head
    if tl.program_id(1) == 0:
        for row in range(0, queries, BLOCK):
            rows = row + tl.arange(0, BLOCK)
            q_rows, grad_rows, log_sum, mean_grad = _load_queries(q, out, grad, log_sums, rows, queries, q_stride, H, K)
            q_sums = tl.zeros([BLOCK, K], tl.float32)
            last = tl.minimum(keys, row + BLOCK) if CAUSAL else keys
            for column in range(0, last, BLOCK):
                columns = column + tl.arange(0, BLOCK)
                k_rows, v_rows = _load(k, columns, keys, k_stride, K), _load(v, columns, keys, v_stride, K)
                _, scores_grad = _gradients(
                    q_rows, grad_rows, log_sum, mean_grad, k_rows, v_rows, rows, columns, keys, scale, CAUSAL
                )
                q_sums += tl.dot(scores_grad.to(k_rows.dtype), k_rows, input_precision="ieee")
            _store(q_grad, rows, queries, H * K, q_sums, K)
    else:
        for column in range(0, keys, BLOCK):
            columns = column + tl.arange(0, BLOCK)
            k_rows, v_rows = _load(k, columns, keys, k_stride, K), _load(v, columns, keys, v_stride, K)
            k_sums, v_sums = tl.zeros([BLOCK, K], tl.float32), tl.zeros([BLOCK, K], tl.float32)
            for row in range(column if CAUSAL else 0, queries, BLOCK):
                rows = row + tl.arange(0, BLOCK)
                q_rows, grad_rows, log_sum, mean_grad = _load_queries(
                    q, out, grad, log_sums, rows, queries, q_stride, H, K
                )
                probs, scores_grad = _gradients(
                    q_rows, grad_rows, log_sum, mean_grad, k_rows, v_rows, rows, columns, keys, scale, CAUSAL
                )
                v_sums += tl.dot(tl.trans(probs.to(v_rows.dtype)), grad_rows, input_precision="ieee")
                k_sums += tl.dot(tl.trans(scores_grad.to(q_rows.dtype)), q_rows, input_precision="ieee")
            _store(k_grad, columns, keys, H * K, k_sums, K)
            _store(v_grad, columns, keys, H * K, v_sums, K)


def _settings(q_NHK: Tensor, k_MHK: Tensor, v_MHK: Tensor, causal: bool) -> dict[str, Any]:
    """Return the arguments of both kernels that are not tensors."""
    _, heads, size = q_NHK.shape
    strides = {"q_stride": q_NHK.stride(0), "k_stride": k_MHK.stride(0), "v_stride": v_MHK.stride(0)}
    return {**strides, "scale": size**-0.5, "H": heads, "K": size, "CAUSAL": causal}


@torch.library.custom_op("nmt_cli::sentence_attention", mutates_args=())
def sentence_attention(
    q_NHK: Tensor, k_MHK: Tensor, v_MHK: Tensor, query_offsets: Tensor, key_offsets: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return the output of attention, N x H x K, and the binary logarithms of the softmax's denominators, N x H.

    The offsets are B + 1 32-bit integers: the index of each sentence's first token, and the number of tokens. Each
    sentence has at least one token on both sides. K is a power of 2, and at least 16. A token's heads are contiguous.
    """
    out_NHK = torch.empty_like(q_NHK, memory_format=torch.contiguous_format)
    log_sums_NH = torch.empty(q_NHK.shape[:2], dtype=torch.float32, device=q_NHK.device)
    tensors = q_NHK, k_MHK, v_MHK, out_NHK, log_sums_NH, query_offsets, key_offsets
    programs = ((len(query_offsets) - 1) * q_NHK.shape[1],)
    _forward[programs](*tensors, **_settings(q_NHK, k_MHK, v_MHK, causal), **FORWARD)
    return out_NHK, log_sums_NH


@torch.library.custom_op("nmt_cli::sentence_attention_backward", mutates_args=())
def sentence_attention_backward(
    q_NHK: Tensor, k_MHK: Tensor, v_MHK: Tensor, out_NHK: Tensor, log_sums_NH: Tensor, grad_NHK: Tensor,
    query_offsets: Tensor, key_offsets: Tensor, causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of queries, keys and values. `grad_NHK` is the gradient of `out_NHK`."""
    grads = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q_NHK, k_MHK, v_MHK)]
    tensors = q_NHK, k_MHK, v_MHK, out_NHK, log_sums_NH, grad_NHK.contiguous(), *grads, query_offsets, key_offsets
    programs = ((len(query_offsets) - 1) * q_NHK.shape[1], 2)
    _backward[programs](*tensors, **_settings(q_NHK, k_MHK, v_MHK, causal), **BACKWARD)
    return grads[0], grads[1], grads[2]


@sentence_attention.register_fake
def _(q_NHK: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return q_NHK.new_empty(q_NHK.shape), q_NHK.new_empty(q_NHK.shape[:2], dtype=torch.float32)


@sentence_attention_backward.register_fake
def _(q_NHK: Tensor, k_MHK: Tensor, v_MHK: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q_NHK.new_empty(q_NHK.shape), k_MHK.new_empty(k_MHK.shape), v_MHK.new_empty(v_MHK.shape)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    q_NHK, k_MHK, v_MHK, query_offsets, key_offsets, ctx.causal = inputs
    ctx.save_for_backward(q_NHK, k_MHK, v_MHK, *output, query_offsets, key_offsets)
    ctx.mark_non_differentiable(output[1])


def _autograd(ctx: Any, grad_NHK: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    *forward, query_offsets, key_offsets = ctx.saved_tensors
    grads = sentence_attention_backward(*forward, grad_NHK, query_offsets, key_offsets, ctx.causal)
    return *grads, None, None, None


sentence_attention.register_autograd(_autograd, setup_context=_setup_context)
