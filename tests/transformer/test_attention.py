"""Attention with fully masked rows, attention over packed tokens in both forms, and the blocks of a batch."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from varlen import plain_varlen_attn

from nmt_cli.transformer import attention
from nmt_cli.transformer.attention import (
    Layout,
    block_bounds,
    dot_product_attention,
    mask_bias,
    packed_attention,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_fully_masked_row_stays_finite_and_does_not_affect_the_others(dtype: torch.dtype) -> None:
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
    # torch's own kernel, which CUDA uses, gives the same result with the same bias.
    for expected in (
        dot_product_attention(q, k, v, torch.zeros_like(bias)),
        nn.functional.scaled_dot_product_attention(q, k, v, bias),
    ):
        assert torch.allclose(out[1].float(), expected[1].float(), rtol=2e-2, atol=2e-2)
        assert torch.allclose(out[0, :, others].float(), expected[0, :, others].float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("form", ["grids", "varlen"])
@pytest.mark.parametrize("d_v", [4, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_each_token_attends_to_its_own_sentence(
    form: str, d_v: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "has_kernel", lambda *_: form == "varlen")
    if form == "varlen":
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", plain_varlen_attn)
    lengths = np.array([[2, 3], [4, 1], [5, 5], [30, 20], [31, 40]])
    sides = [lengths[:, 1 if causal else 0], lengths[:, 1]]
    layouts = [Layout(x, bounds=[0, 3, 5]) for x in sides]
    q_NC, kv_MC = (torch.randn(sum(x), n, dtype=torch.float64) for x, n in zip(sides, (12, 12 + 3 * d_v), strict=True))
    q_NC.requires_grad_(), kv_MC.requires_grad_()
    k_MC, v_MC = kv_MC.split([12, 3 * d_v], 1)  # the heads of a joint projection
    q, k, v = (x.unflatten(1, (3, -1)) for x in (q_NC, k_MC, v_MC))
    cumulative = [torch.tensor([0, *x.cumsum()], dtype=torch.int32) for x in sides]
    expected = plain_varlen_attn(q, k, v, *cumulative, *map(max, sides), window_size=(-1, 0 if causal else -1))
    ours = packed_attention(q, k, v, *layouts, causal=causal)
    grad = torch.randn_like(ours)
    both = [[x, *torch.autograd.grad(x, (q_NC, kv_MC), grad)] for x in (ours, expected)]
    assert all(torch.allclose(*pair, rtol=0, atol=1e-12) for pair in zip(*both, strict=True))


@pytest.mark.parametrize(
    ("device", "dtype", "d_k", "d_v", "has"),
    [
        ("meta", torch.bfloat16, 64, 64, True),
        ("meta", torch.float16, 8, 8, True),
        ("meta", torch.bfloat16, 256, 256, True),
        ("meta", torch.bfloat16, 264, 264, False),
        ("meta", torch.bfloat16, 12, 12, False),
        ("meta", torch.bfloat16, 64, 32, False),
        ("meta", torch.bfloat16, 32, 64, False),
        ("meta", torch.float32, 64, 64, False),
        ("cpu", torch.bfloat16, 64, 64, False),
    ],
)
def test_flash_attention_is_used_where_its_kernel_supports_it(
    device: str, dtype: torch.dtype, d_k: int, d_v: int, has: bool
) -> None:
    assert attention.has_kernel(torch.empty(1, dtype=dtype, device=device), d_k, d_v) == has


@pytest.mark.parametrize(("length", "bound"), [(1, 128), (127, 128), (128, 128), (129, 256)])
def test_the_longest_length_is_rounded_up_to_a_tile(length: int, bound: int) -> None:
    """The kernel must not stop before the end of the longest sentence."""
    assert Layout([3, length, 1]).max_length == bound


def test_blocks_cover_all_sentences_and_are_as_long_as_possible_while_half_full() -> None:
    draw = np.random.default_rng(1)
    exactly_half_full = np.array([(1, 1), (1, 1), (2, 2)])
    for src, tgt in (x.T for x in (exactly_half_full, *(draw.integers(1, 60, (n, 2)) for n in range(1, 40)))):
        bounds = block_bounds(src, tgt)
        assert (bounds[0], bounds[-1]) == (0, len(src))
        for a, b in itertools.pairwise(bounds):
            for end in {b, min(b + 1, len(src))}:
                s, t = src[a:end], tgt[a:end]
                cells = (end - a) * (s.max() ** 2 + s.max() * t.max() + t.max() ** 2)
                assert a < end
                assert (cells <= 2 * (s * s + s * t + t * t).sum()) == (end == b), (
                    "the block is not half full, or one more sentence fits"
                )
