"""Attention where a row sees nothing, and the way between packed tokens and the padded grid."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from nmt_cli.transformer.attention import (
    Layout,
    block_bounds,
    dot_product_attention,
    from_grid,
    mask_bias,
    to_grid,
)


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


def test_cudnn_makes_no_plan_for_every_shape() -> None:
    assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize(("parts", "heads"), [(1, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize("lengths", [[1], [4, 4], [3, 1, 5, 2]])
def test_every_token_head_and_part_has_its_place_on_the_grid(lengths: list[int], parts: int, heads: int) -> None:
    layout, size = Layout(lengths), 2
    x_NC = torch.randn(sum(lengths), parts * heads * size, dtype=torch.float64, requires_grad=True)
    grid = to_grid(x_NC, layout, parts, heads)
    assert grid.shape == (parts, len(lengths), heads, max(lengths), size)
    for b, tokens_TC in enumerate(x_NC.split(lengths)):
        expected_PHTK = tokens_TC.view(-1, parts, heads, size).permute(1, 2, 0, 3)
        assert torch.equal(grid[:, b, :, : lengths[b]], expected_PHTK)
    assert torch.equal(from_grid(grid[0], layout), x_NC[:, : heads * size])
    # What pads hold is nobody's business, as long as nobody looks at them.
    real = torch.tensor([[float(i < n) for i in range(max(lengths))] for n in lengths])[:, None, :, None]
    assert torch.autograd.gradcheck(lambda x: to_grid(x, layout, parts, heads) * real, x_NC)
    assert torch.autograd.gradcheck(lambda x: from_grid(x, layout), grid[0].detach().requires_grad_())


def test_blocks_cover_all_sentences_and_are_as_long_as_they_stay_half_full() -> None:
    draw = np.random.default_rng(1)
    exactly_half_full = np.array([(1, 1), (1, 1), (2, 2)])
    for src, tgt in (x.T for x in (exactly_half_full, *(draw.integers(1, 60, (n, 2)) for n in range(1, 40)))):
        bounds = block_bounds(src, tgt)
        assert (bounds[0], bounds[-1]) == (0, len(src))
        for a, b in itertools.pairwise(bounds):
            for end in {b, min(b + 1, len(src))}:
                s, t = src[a:end], tgt[a:end]
                places = (end - a) * (s.max() ** 2 + s.max() * t.max() + t.max() ** 2)
                assert a < end
                assert (places <= 2 * (s * s + s * t + t * t).sum()) == (end == b), "half full, and not with one more"
