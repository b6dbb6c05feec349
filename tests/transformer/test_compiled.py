"""Layers, gradients and loss compiled for packed tokens, as on GPUs, but by Inductor's C++ backend."""

import copy

import numpy as np
import pytest
import torch
import torch.fx.experimental._config
from reference import batch_of, random_model, random_pairs, tiny
from varlen import varlen, varlen_backward

from nmt_cli.training import loss as loss_module
from nmt_cli.training.loss import LossModel
from nmt_cli.transformer import attention
from nmt_cli.transformer import model as modelling


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kernels", ["ours", "flash attention"])
@pytest.mark.parametrize(
    "changes", [{"output_bias": True}, {"norm": "pre", "positions": "learned", "activation": "gelu"}]
)
def test_compiled_layers_are_exact(changes: dict[str, object], kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss and all gradients, with dropout, equal those in float64 to 1e-5. One compilation serves both batches."""
    calls = []
    if kernels == "ours":
        pytest.importorskip("triton", minversion="3.7", reason="older versions cannot interpret kernels with numpy 2.4")
        from nmt_cli.transformer import sentence_attention

        settings = sentence_attention._settings
        monkeypatch.setattr(sentence_attention, "_settings", lambda *each: calls.append(1) or settings(*each))
    else:
        monkeypatch.setattr(attention, "SHORT_MAX", 0)
    from torch.nn.attention.varlen import _varlen_attn, _varlen_attn_backward  # takes seconds

    model = random_model(tiny(d_model=64, d_ff=96, d_k=16, d_v=16, dropout=0.2, **changes), 100)
    ours = LossModel(copy.deepcopy(model).float(), 0.1, torch.float32)
    exact = LossModel(model, 0.1, torch.float64)
    batches = [
        batch_of(random_pairs(2, 100, lengths), "cpu", (1,), np.arange(len(lengths)))
        for lengths in ([(1, 1), (9, 12), (30, 25), (30, 30), (5, 2)], [(7, 3), (20, 31)])
    ]

    def computed(own: LossModel) -> list[list[torch.Tensor]]:
        losses = [own(batch) for batch in batches]
        return [[*pair, *torch.autograd.grad(pair[0], [*own.parameters()])] for pair in losses]

    expected = computed(exact)
    _varlen_attn.register_kernel("cpu")(varlen)
    _varlen_attn_backward.register_kernel("cpu")(varlen_backward)
    compiled = []

    def compile_(function: object, *rest: object) -> object:
        compiled.append(torch.compile(function, dynamic=True, fullgraph=True))
        return compiled[-1]

    torch._dynamo.reset()
    for module in (attention, modelling):
        monkeypatch.setattr(module, "has_kernel", lambda *rest: True)
    for module in (modelling, loss_module):
        monkeypatch.setattr(module, "compiled", compile_)
    with torch.fx.experimental._config.patch(use_duck_shape=False), torch._dynamo.config.patch(specialize_float=True):
        results = computed(ours)
    for found, wanted in zip(results, expected, strict=True):
        for a, b in zip(found, wanted, strict=True):
            assert (a.double() - b).norm() < 1e-5 * b.norm()
    assert len(compiled) > 4
    assert bool(calls) == (kernels == "ours")
