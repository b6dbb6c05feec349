"""8-bit products of each level compared with a plain torch version of the level's arithmetic."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import random_pairs
from searching import by_engine, by_torch, engine_model, model_of, options, search_all
from torch import Tensor
from torch.nn import functional

from nmt_cli.engine import library
from nmt_cli.system.errors import UsageError
from nmt_cli.translation.queue import Search
from nmt_cli.translation.segments import Segment

# Sizes by which `int8_linear` recognizes a layer: no two kinds have the same numbers of inputs and outputs.
SIZES: dict[str, Any] = {"d_model": 64, "d_ff": 128, "num_heads": 2, "d_k": 20, "d_v": 8}
QUERY_KEY_VALUE, KEY_VALUE = 96, 56  # outputs
PAIRS = random_pairs(2, 77, [(9, 7)] * 40)
SHAPES: list[dict[str, Any]] = [
    {"activation": "relu", "attention_bias": True},
    {"activation": "gelu", "norm": "pre", "decoder_cell": "ssru"},
]


def int8_linear(bits: int, *, relu: bool, half: bool) -> Callable[..., Tensor]:
    """Return torch's `linear` with 8-bit weights, scaled per output, and inputs of `bits` bits, scaled per token.

    Inputs after a ReLU are not negative, so they get twice as many steps. With `half`, keys and values are float16.
    """

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        unsigned = relu and weight.shape[1] == SIZES["d_ff"]
        steps = 2**bits - 1 if unsigned else 2 ** (bits - 1) - 1
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / steps
        weight_scale = weight.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
        rounded = torch.floor(x / scale + 0.5).clamp(max=steps)
        sums: Tensor = rounded @ torch.round(weight / weight_scale).T
        y: Tensor = sums * scale * weight_scale.T + (0 if bias is None else bias)
        first = {QUERY_KEY_VALUE: 40, KEY_VALUE: 0}.get(len(weight), len(weight))  # after the queries
        if half:
            y[..., first:] = y[..., first:].half().to(y.dtype)
        return y

    return linear


def log_probabilities(search: Search) -> Tensor:
    """Return the log-probability of each token of given translations."""
    segments = [Segment(list(src), options(1), list(tgt[:-1]), max_tokens=len(tgt)) for src, tgt in PAIRS]
    search_all(search, segments)
    return torch.tensor([segment.hypotheses[0].token_log_probabilities for segment in segments])


@pytest.mark.parametrize("level", library.LEVELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_8_bit_products_match_the_arithmetic_of_their_level(
    shape: dict[str, Any], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AVX2 rounds inputs to 7 bits, all other levels to 8 bits."""
    monkeypatch.setenv("NMT_ENGINE", level)
    try:
        library.describe()
    except UsageError:
        pytest.skip("this CPU does not have the level's instructions")
    model = model_of(1, vocabulary=77, **SIZES, **shape)
    found = log_probabilities(by_engine([engine_model(model, int8=True)]))
    errors = {}
    for bits in (7, 8):
        with monkeypatch.context() as patch:
            relu, half = shape["activation"] == "relu", level != "base"  # baseline x86-64 has no float16
            patch.setattr(functional, "linear", int8_linear(bits, relu=relu, half=half))
            errors[bits] = (found - log_probabilities(by_torch([model]))).abs().median().item()
    own = 7 if level == "avx2" else 8
    assert errors[own] < 1e-5  # the median, because one number near a rounding boundary changes its whole translation
    assert errors[15 - own] > 0.01
