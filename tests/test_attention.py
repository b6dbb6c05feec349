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
    from_grids,
    mask_bias,
    to_grids,
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
def test_every_token_and_head_has_its_place_on_the_grid(lengths: list[int], parts: int, heads: int) -> None:
    layout, size = Layout(lengths), 2
    x_NC = torch.randn(sum(lengths), parts * heads * size, dtype=torch.float64, requires_grad=True)
    for x_NHK in x_NC.view(-1, parts, heads, size).unbind(1):
        (grid,) = to_grids(x_NHK, layout)
        assert grid.shape == (len(lengths), heads, max(lengths), size)
        for b, tokens_THK in enumerate(x_NHK.split(lengths)):
            assert torch.equal(grid[b, :, : lengths[b]], tokens_THK.transpose(0, 1))
        assert torch.equal(from_grids([grid], layout), x_NHK)
    # What pads hold is nobody's business, as long as nobody looks at them.
    real = torch.tensor([[float(i < n) for i in range(max(lengths))] for n in lengths])[:, None, :, None]
    part = (slice(None), parts - 1)
    assert torch.autograd.gradcheck(lambda x: to_grids(x.view(-1, parts, heads, size)[part], layout)[0] * real, x_NC)
    assert torch.autograd.gradcheck(lambda x: from_grids([x], layout), grid.detach().requires_grad_())


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
