"""The Triton kernels for short sentences, interpreted on the CPU (see conftest.py). The tests in gpu/ compile them."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from nmt_cli.transformer import attention

triton = pytest.importorskip("triton", minversion="3.7", reason="Triton 3.6 cannot interpret kernels with numpy 2.4")
if torch.cuda.is_available():
    pytest.skip("the kernels are compiled here", allow_module_level=True)
from nmt_cli.transformer import sentence_attention as kernels  # noqa: E402

LENGTHS = [1, 16, 37]  # in tiles of 16 tokens
OTHERS = [18, 33, 5]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for sizes in (kernels.FORWARD, kernels.BACKWARD):
        monkeypatch.setitem(sizes, "BLOCK", 16)


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor(np.append(0, np.cumsum(lengths)), dtype=torch.int32)


def equation_1(q: Tensor, k: Tensor, v: Tensor, queries: list[int], keys: list[int], causal: bool) -> Tensor:
    """Return equation 1 of the paper for each sentence."""
    outputs = []
    for q_THK, k_SHK, v_SHK in zip(q.split(queries), k.split(keys), v.split(keys), strict=True):
        scores_HTS = torch.einsum("thk,shk->hts", q_THK, k_SHK) / q.shape[2] ** 0.5
        if causal:
            scores_HTS = scores_HTS.masked_fill(~torch.ones(scores_HTS.shape[1:], dtype=torch.bool).tril(), -torch.inf)
        outputs.append(torch.einsum("hts,shk->thk", scores_HTS.softmax(-1), v_SHK))
    return torch.cat(outputs)


@pytest.mark.parametrize(("heads", "size"), [(2, 16), (1, 64)])
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_and_its_gradient_are_exact(heads: int, size: int, causal: bool) -> None:
    """Queries, keys and values are views of one tensor, as in the model."""
    packed = torch.randn(sum(LENGTHS), 3 * heads * size, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(sum(LENGTHS), heads, size, dtype=torch.float64)
    results = []
    for dtype in (torch.float64, torch.float32):
        parts = [part.unflatten(1, (heads, size)) for part in packed.to(dtype).chunk(3, 1)]
        if dtype == torch.float64:
            out = equation_1(*parts, LENGTHS, LENGTHS, causal)
        else:
            out = kernels.sentence_attention(*parts, offsets_of(LENGTHS), offsets_of(LENGTHS), causal)[0]
        results.append([out, *torch.autograd.grad(out, packed, grad.to(dtype))])
    for exact, ours in zip(*results, strict=True):
        assert (ours.double() - exact).norm() < 1e-6 * exact.norm()


def test_cross_attention_and_its_gradients_are_exact() -> None:
    """The gradient of the output is a transposed view, whose vectors are not contiguous."""
    exact = [torch.randn(n, 2, 16, dtype=torch.float64) for n in (sum(LENGTHS), sum(OTHERS), sum(OTHERS))]
    grad = torch.randn(16, 2, sum(LENGTHS), dtype=torch.float64).permute(2, 1, 0)
    results = []
    for dtype in (torch.float64, torch.float32):
        inputs = [x.to(dtype).requires_grad_() for x in exact]
        if dtype == torch.float64:
            out = equation_1(*inputs, LENGTHS, OTHERS, False)
        else:
            out = kernels.sentence_attention(*inputs, offsets_of(LENGTHS), offsets_of(OTHERS), False)[0]
        results.append([out, *torch.autograd.grad(out, inputs, grad.to(dtype))])
    for wanted, ours in zip(*results, strict=True):
        assert (ours.double() - wanted).norm() < 1e-6 * wanted.norm()


def test_large_scores_do_not_overflow() -> None:
    """Powers of scores up to 10,000 would overflow without subtracting the maximum, which rises from tile to tile."""
    q, v = torch.full((40, 1, 16), 100.0), torch.randn(40, 1, 16)
    k = torch.linspace(-25, 25, 40)[:, None, None].expand(40, 1, 16).contiguous()
    parts = [x.requires_grad_() for x in (q, k, v)]
    out = kernels.sentence_attention(*parts, offsets_of([40]), offsets_of([40]), False)[0]
    grads = torch.autograd.grad(out.sum(), parts)
    assert torch.allclose(out, v[-1].expand_as(out), atol=1e-6)  # the last key has the highest score by far
    assert all(bool(grad.isfinite().all()) for grad in grads)


@pytest.mark.parametrize(
    ("queries", "keys", "short"),
    [
        ([128, 128], [128, 128], True),
        ([128, 128], [128, 129], False),  # the mean
        ([512, 1, 1, 1], [1, 1, 1, 1], True),
        ([513, 1, 1, 1, 1], [1, 1, 1, 1, 1], False),  # the maximum
        ([1, 1, 1, 1, 1], [513, 1, 1, 1, 1], False),
    ],
)
def test_only_training_on_short_sentences_uses_the_kernels(
    queries: list[int], keys: list[int], short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else uses flash attention, which also supports other sizes per head, and needs no compilation."""
    calls = []
    monkeypatch.setattr(attention, "has_kernel", lambda *_: True)
    monkeypatch.setattr(attention.hardware, "can_compile", lambda _: works)
    monkeypatch.setattr(kernels, "sentence_attention", lambda q, *_: calls.append("short") or [q])
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda q, *_, **__: calls.append("flash") or q)
    layouts = attention.Layout(queries), attention.Layout(keys)
    for size, gradients, works in itertools.product((16, 24, 64, 128, 256), (False, True), (False, True)):
        parts = [torch.zeros(sum(lengths), 1, size) for lengths in (queries, keys, keys)]
        with torch.set_grad_enabled(gradients):
            attention.packed_attention(*parts, *layouts, causal=False)
        expected = short and gradients and works and size in (16, 64, 128)
        assert calls.pop() == ("short" if expected else "flash")
