"""The label-smoothed loss: a table worked out by hand, torch's own loss over the V - 1 real tokens, gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nmt_cli.training import loss as module
from nmt_cli.training.loss import fused_rows_, smoothed_loss

LN2 = math.log(2)


def one_distribution(labels: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden states and weights whose logits give tokens 1 to 4 the probabilities 1/2, 1/4, 1/8, 1/8."""
    logits = torch.tensor(
        [9.0, 0.5, 0.25, 0.125, 0.125], dtype=torch.float64
    ).log()  # PAD's is large and must not count
    return torch.ones(len(labels), 1, dtype=torch.float64), logits[:, None].clone(), torch.tensor(labels)


def random_case(
    tokens: int, dtype: torch.dtype = torch.float64, vocabulary: int = 11, width: int = 6
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(1, vocabulary, (tokens,), generator=generator)


def torchs(hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy((hidden @ weight.T)[:, 1:], labels - 1, label_smoothing=smoothing, reduction="sum")


# Smoothing 0.1 over 4 tokens gives each 0.025 and the label 0.9 more. In units of ln 2 the tokens cost 1, 2, 3, 3.
BY_HAND = {1: (1.0, 1.125), 2: (2.0, 2.025), 3: (3.0, 2.925), 4: (3.0, 2.925)}


@pytest.mark.parametrize("label", BY_HAND)
def test_the_table_worked_out_by_hand(label: int) -> None:
    loss, nll = smoothed_loss(*one_distribution([label]), 0.1)
    plain, smoothed = BY_HAND[label]
    assert nll.item() == pytest.approx(plain * LN2, rel=1e-12)
    assert loss.item() == pytest.approx(smoothed * LN2, rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("tokens", [1, 7])
def test_value_and_gradients_are_torchs_over_the_real_tokens(tokens: int, smoothing: float) -> None:
    hidden, weight, labels = random_case(tokens)
    loss, nll = smoothed_loss(hidden, weight, labels, smoothing)
    expected = torchs(hidden, weight, labels, smoothing)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert nll.item() == pytest.approx(torchs(hidden, weight, labels, 0.0).item(), rel=1e-12)
    actual_grads = torch.autograd.grad(loss * 3, (hidden, weight))
    expected_grads = torch.autograd.grad(expected * 3, (hidden, weight))
    for actual, wanted in zip(actual_grads, expected_grads, strict=True):
        assert torch.allclose(actual, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 16, 17])
def test_blocks_change_nothing(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, labels = random_case(tokens)
    whole, whole_nll = smoothed_loss(hidden, weight, labels, 0.1)
    whole_grads = torch.autograd.grad(whole, (hidden, weight))
    for rows_of_a_block, rows_of_a_softmax in ((8, 3), (8, 8), (1, 5), (0, 1)):
        monkeypatch.setattr(module, "BLOCK_BYTES", rows_of_a_block * 11 * 8)
        monkeypatch.setattr(module, "ROWS", rows_of_a_softmax)
        cut, cut_nll = smoothed_loss(hidden, weight, labels, 0.1)
        assert cut.item() == pytest.approx(whole.item(), rel=1e-13)
        assert cut_nll.item() == pytest.approx(whole_nll.item(), rel=1e-13)
        for a, b in zip(whole_grads, torch.autograd.grad(cut, (hidden, weight)), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_no_probability_and_no_gradient_goes_to_pad() -> None:
    hidden, weight, labels = random_case(6)
    loss, nll = smoothed_loss(hidden, weight, labels, 0.3)
    hidden_grad, weight_grad = torch.autograd.grad(loss, (hidden, weight))
    assert not weight_grad[0].any()
    assert weight_grad[1:].abs().sum(1).all()
    changed = weight.detach().clone()
    changed[0] = 1e6
    other, other_nll = smoothed_loss(hidden, changed, labels, 0.3)
    assert torch.equal(other, loss)
    assert torch.equal(other_nll, nll)
    assert torch.equal(torch.autograd.grad(other, hidden)[0], hidden_grad)


def test_large_scores_give_numbers() -> None:
    hidden = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    weight = torch.tensor([[5.0], [1.0], [-1.0]], requires_grad=True)
    loss, nll = smoothed_loss(hidden, weight, torch.tensor([2, 1]), 0.1)
    loss.backward()
    assert nll.item() == pytest.approx(4e4)
    assert hidden.grad.isfinite().all()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_form_for_compilers_rounds_once(dtype: torch.dtype) -> None:
    logits = (4 * torch.randn(50, 90, dtype=torch.float64)).to(dtype)
    logits[:, 0] = -torch.inf
    labels, wide = torch.randint(1, 90, (50, 1)), torch.promote_types(dtype, torch.float32)
    exact, close = torch.log_softmax(logits.double(), 1), 8 * torch.finfo(wide).eps
    grads = exact.exp().scatter_add(1, labels, torch.full((50, 1), -0.9, dtype=torch.float64))
    log_probs, norms = fused_rows_(logits, labels, 0.1, wide)
    assert log_probs.dtype == norms.dtype == wide
    assert torch.allclose(log_probs.double(), exact.gather(1, labels), rtol=close, atol=close)
    assert torch.allclose(logits.double(), grads, rtol=torch.finfo(dtype).eps, atol=close)
