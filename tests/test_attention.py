"""Attention where a row sees nothing, and the way between packed tokens and the padded grid."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from nmt_cli.transformer.attention import (
    Layout,
    block_bounds,
    dot_product_attention,
    from_grid,
    mask_bias,
    to_grid,
)

lengths_of_sentences = st.lists(st.integers(1, 9), min_size=1, max_size=7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_that_may_attend_nowhere_stays_finite_and_leaves_the_others_alone(dtype: torch.dtype) -> None:
    generator, others = torch.Generator().manual_seed(0), [0, 2, 3]
    shapes = ((2, 3, 4, 6), (2, 3, 5, 6), (2, 3, 5, 7))  # d_k 6, d_v 7
    q, k, v = ((torch.randn(s, generator=generator) * 100).to(dtype).requires_grad_() for s in shapes)
    mask = torch.ones(2, 1, 4, 5, dtype=torch.bool)
    mask[0, :, 1] = False
    bias = mask_bias(mask, dtype)
    out = dot_product_attention(q, k, v, bias)
    out.float().sum().backward()
    assert out.isfinite().all()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
    # torch's own kernel, which CUDA uses, takes the same bias to the same end.
    for expected in (
        dot_product_attention(q, k, v, torch.zeros_like(bias)),
        nn.functional.scaled_dot_product_attention(q, k, v, bias),
    ):
        assert torch.allclose(out[1].float(), expected[1].float(), rtol=2e-2, atol=2e-2)
        assert torch.allclose(out[0, :, others].float(), expected[0, :, others].float(), rtol=2e-2, atol=2e-2)


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
    real = layout.mask_BT.double()
    x_NC = torch.randn(sum(lengths), 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: to_grid(x, layout, 2, 2) * real[:, None, :, None], x_NC)
    x_BHTK = torch.randn(len(lengths), 2, max(lengths), 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: from_grid(x, layout), x_BHTK)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=40))
@example([(1, 1), (1, 1), (2, 2)])  # exactly half full
def test_blocks_cover_all_sentences_and_are_as_long_as_they_stay_half_full(lengths: list[tuple[int, int]]) -> None:
    src, tgt = np.array(lengths).T

    def half_full(a: int, b: int) -> bool:
        s, t = src[a:b], tgt[a:b]
        places = (b - a) * (s.max() ** 2 + s.max() * t.max() + t.max() ** 2)
        return bool(places <= 2 * (s * s + s * t + t * t).sum())

    bounds = block_bounds(src, tgt)
    assert bounds[0] == 0
    assert bounds[-1] == len(lengths)
    assert bounds == sorted(set(bounds))
    for a, b in itertools.pairwise(bounds):
        assert half_full(a, b)
        assert b == len(lengths) or not half_full(a, b + 1)
