"""Attention against equation 1 written out, and the way between packed tokens and the padded grid."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nmt_cli.transformer.attention import (
    Layout,
    block_bounds,
    dot_product_attention,
    from_grid,
    mask_bias,
    to_grid,
)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention with a mask B x T x S (True: may be attended), the same for all heads."""
    return dot_product_attention(q, k, v, mask_bias(None if mask is None else mask[:, None], q.dtype))


lengths_of_sentences = st.lists(st.integers(1, 9), min_size=1, max_size=7)


def by_loops(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Equation 1 for every sentence, head and query alone."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                allowed = [s for s in range(k.shape[2]) if mask is None or mask[b % len(mask), t % mask.shape[1], s]]
                scores = [float(q[b, h, t] @ k[b, h, s]) / math.sqrt(q.shape[3]) for s in allowed]
                weights = [math.exp(score - max(scores)) for score in scores]
                for s, weight in zip(allowed, weights, strict=True):
                    out[b, h, t] += weight / sum(weights) * v[b, h, s]
    return out


def random_qkv(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7))  # d_k 6, d_v 7
    return tuple((torch.randn(s, generator=generator) * scale).to(dtype) for s in shapes)  # type: ignore[return-value]


MASKS = {
    "none": None,
    "per query": torch.rand(2, 4, 5, generator=torch.Generator().manual_seed(1)) < 0.6,
    "one row for all queries": torch.tensor([[[True] * 5], [[True, True, False, False, False]]]),
    "causal, one for all sentences": torch.ones(1, 4, 5, dtype=torch.bool).tril(),
}
MASKS["per query"][..., 2] = True  # nobody is left without a key


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_attention_is_equation_1(mask: Tensor | None) -> None:
    q, k, v = random_qkv()
    expected = by_loops(q, k, v, mask)
    assert torch.allclose(attend(q, k, v, mask), expected, rtol=0, atol=1e-12)
    fused = nn.functional.scaled_dot_product_attention(q, k, v, None if mask is None else mask[:, None])
    assert torch.allclose(fused, expected, rtol=0, atol=1e-12), "torch's own kernel, which CUDA uses, is the same"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_that_may_attend_nowhere_stays_finite_and_leaves_the_others_alone(dtype: torch.dtype) -> None:
    q, k, v = (x.requires_grad_() for x in random_qkv(dtype, scale=100))
    mask = torch.ones(2, 4, 5, dtype=torch.bool)
    mask[0, 1] = False
    out = attend(q, k, v, mask)
    out.float().sum().backward()
    assert out.isfinite().all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
    whole = attend(q, k, v, None)
    assert torch.allclose(out[1].float(), whole[1].float(), rtol=2e-2, atol=2e-2)
    assert torch.allclose(out[0, :, [0, 2, 3]].float(), whole[0, :, [0, 2, 3]].float(), rtol=2e-2, atol=2e-2)


# --- packed tokens and the padded grid ------------------------------------------------------------------------------


@given(lengths_of_sentences, st.integers(1, 3), st.integers(1, 3))
def test_every_token_head_and_part_has_its_place_on_the_grid(lengths: list[int], parts: int, heads: int) -> None:
    layout, size = Layout(lengths), 2
    x_NC = torch.randn(sum(lengths), parts * heads * size)
    grid = to_grid(x_NC, layout, parts, heads)
    assert grid.shape == (parts, len(lengths), heads, max(lengths), size)
    split_NPHK = x_NC.view(-1, parts, heads, size)
    start = 0
    for b, n in enumerate(lengths):
        for part in range(parts):
            for head in range(heads):
                assert torch.equal(grid[part, b, head, :n], split_NPHK[start : start + n, part, head])
        start += n
    assert torch.equal(from_grid(grid[0], layout), split_NPHK[:, 0].flatten(1))


@settings(max_examples=10, deadline=None)
@given(lengths_of_sentences)
def test_gradients_pass_both_ways(lengths: list[int]) -> None:
    layout = Layout(lengths)
    # What pads hold is nobody's business, as long as nobody looks at them.
    real = torch.ones(len(lengths), max(lengths)) if layout.mask_BT is None else layout.mask_BT.double()
    x_NC = torch.randn(sum(lengths), 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: to_grid(x, layout, 2, 2) * real[:, None, :, None], x_NC)
    x_BHTK = torch.randn(len(lengths), 2, max(lengths), 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: from_grid(x, layout), x_BHTK)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=40))
def test_blocks_cover_all_sentences_and_are_at_least_half_full(lengths: list[tuple[int, int]]) -> None:
    src, tgt = np.array(lengths).T
    bounds = block_bounds(src, tgt)
    assert bounds[0] == 0
    assert bounds[-1] == len(lengths)
    assert bounds == sorted(set(bounds))
    for a, b in itertools.pairwise(bounds):
        s, t = src[a:b], tgt[a:b]
        places = (b - a) * (s.max() ** 2 + s.max() * t.max() + t.max() ** 2)
        assert places <= 2 * (s * s + s * t + t * t).sum()
