"""The label-smoothed loss and its gradients, compared with torch's cross-entropy over the vocabulary without PAD."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from nmt_cli.training import loss as module
from nmt_cli.training.loss import fused_grads_, smoothed_loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 16, 17])
def test_value_and_gradients_equal_torchs_for_all_block_sizes(
    tokens: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = torch.Generator().manual_seed(tokens)
    hidden, weight = (torch.randn(n, 6, generator=draw, dtype=torch.float64) for n in (tokens, 11))
    labels = torch.randint(1, 11, (tokens,), generator=draw)
    weight[0] *= 1e3  # PAD gets no probability and no gradient
    inputs = (hidden.requires_grad_(), weight.requires_grad_())

    def torch_loss(smoothing: float) -> Tensor:
        logits = (hidden @ weight.T)[:, 1:]
        return F.cross_entropy(logits, labels - 1, label_smoothing=smoothing, reduction="sum")

    expected = torch.autograd.grad(torch_loss(smoothing) * 3, inputs)
    for rows_of_a_block, rows_of_a_softmax in ((99, 99), (8, 3), (8, 8), (1, 5), (0, 1)):
        monkeypatch.setattr(module, "BLOCK_BYTES", rows_of_a_block * 11 * 8)
        monkeypatch.setattr(module, "ROWS", rows_of_a_softmax)
        loss, nll = smoothed_loss(hidden, weight, labels, smoothing)
        assert loss.item() == pytest.approx(torch_loss(smoothing).item(), rel=1e-13)
        assert nll.item() == pytest.approx(torch_loss(0.0).item(), rel=1e-13)
        grads = torch.autograd.grad(loss * 3, inputs)
        assert all(torch.allclose(*pair, rtol=0, atol=1e-12) for pair in zip(grads, expected, strict=True))
        assert not grads[1][0].any()


@pytest.mark.parametrize("rows_of_a_block", [99, 2])
def test_padding_tokens_do_not_count(rows_of_a_block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", rows_of_a_block * 11 * 8)
    hidden, weight = (torch.randn(n, 6, dtype=torch.float64).requires_grad_() for n in (7, 11))
    labels, real = torch.tensor([4, 0, 7, 1, 0, 0, 10]), [0, 2, 3, 6]
    alone = hidden[real].detach().requires_grad_()
    expected = smoothed_loss(alone, weight, labels[real], 0.1)
    found = smoothed_loss(hidden, weight, labels, 0.1)
    assert torch.allclose(torch.stack(found), torch.stack(expected), rtol=1e-14)
    of_real, of_weight = torch.autograd.grad(expected[0], (alone, weight))
    of_hidden, of_all_weight = torch.autograd.grad(found[0], (hidden, weight))
    assert torch.allclose(of_all_weight, of_weight, rtol=1e-13, atol=1e-14)
    assert torch.allclose(of_hidden[real], of_real, rtol=1e-13, atol=1e-14)
    assert not of_hidden[labels == 0].any()


def test_a_scaled_loss_scales_gradients_in_float32() -> None:
    draw = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(9, 6, generator=draw).bfloat16(), torch.randn(11, 6, generator=draw)
    inputs = (hidden.requires_grad_(), weight.requires_grad_())
    whole, third = (
        torch.autograd.grad(smoothed_loss(*inputs, torch.arange(1, 10), 0.1)[0] * x, inputs) for x in (1.0, 1 / 3)
    )
    for one, scaled in zip(whole, third, strict=True):
        assert torch.equal(scaled, (one.float() * (1 / 3)).to(one.dtype))


def test_without_gradients_only_logits_are_computed() -> None:
    inputs, products = (torch.randn(9, 6), torch.randn(11, 6).requires_grad_(), torch.arange(1, 10), 0.1), []
    for mode in (torch.enable_grad(), torch.inference_mode()):
        with mode, FlopCounterMode(display=False) as counter:
            smoothed_loss(*inputs)
        products.append(counter.get_total_flops())
    assert products == [3 * 2 * 9 * 11 * 6, 2 * 9 * 11 * 6]


def test_large_logits_give_finite_losses() -> None:
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[5.0], [1.0], [-1.0]], requires_grad=True)
    loss, nll = smoothed_loss(hidden, weight, torch.tensor([2, 1]), 0.1)
    loss.backward()
    assert nll.item() == pytest.approx(4e4)
    assert hidden.grad.isfinite().all()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_compiled_form_rounds_once(dtype: torch.dtype) -> None:
    logits = (4 * torch.randn(50, 90, dtype=torch.float64)).to(dtype)
    logits[:, 0] = -torch.inf
    labels, wide = torch.randint(1, 90, (50, 1)), torch.promote_types(dtype, torch.float32)
    exact, tolerance = torch.log_softmax(logits.double(), 1), 8 * torch.finfo(wide).eps
    grads = exact.exp().scatter_add(1, labels, torch.full((50, 1), -0.9, dtype=torch.float64))
    log_probs, norms = fused_grads_(logits, labels, 0.1, wide)
    assert log_probs.dtype == norms.dtype == wide
    assert torch.allclose(log_probs.double(), exact.gather(1, labels), rtol=tolerance, atol=tolerance)
    assert torch.allclose(logits.double(), grads, rtol=torch.finfo(dtype).eps, atol=tolerance)
