"""Plain float64 versions of torch's attention over packed sentences, `varlen_attn`, and its gradient."""

from typing import Any

import torch
from torch import Tensor


def probabilities(q: Tensor, k: Tensor, offsets_q: Tensor, offsets_k: Tensor, *rest: Any) -> Tensor:
    """Return H x N x M attention weights, with one mask over all tokens. The last of `rest` is the window."""
    rows, columns = (
        torch.searchsorted(offsets, torch.arange(len(x)), right=True) for offsets, x in ((offsets_q, q), (offsets_k, k))
    )
    allowed = rows[:, None] == columns
    if rest[-1] is not None and rest[-1][1] == 0:
        allowed &= torch.arange(len(q))[:, None] >= torch.arange(len(k))
    scores_HNM = torch.einsum("nhk,mhk->hnm", q.double(), k.double()) * q.shape[2] ** -0.5
    return scores_HNM.masked_fill(~allowed, -torch.inf).softmax(-1)


def varlen(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Compute torch's varlen_attn in float64."""
    out = torch.einsum("hnm,mhk->nhk", probabilities(q, k, *rest), v.double())
    return out.to(q.dtype).contiguous(), torch.zeros(q.shape[1], len(q)), torch.zeros(2, dtype=torch.uint64)


def varlen_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Compute the gradient of varlen_attn. `rest` begins with the output and its log Z."""
    grad, own_HNM, scale = grad.double(), probabilities(q, k, *rest[2:]), q.shape[2] ** -0.5
    of_own = torch.einsum("nhk,mhk->hnm", grad, v.double())
    of_scores = own_HNM * (of_own - (of_own * own_HNM).sum(-1, keepdim=True)) * scale
    of_q = torch.einsum("hnm,mhk->nhk", of_scores, k.double())
    of_k = torch.einsum("hnm,nhk->mhk", of_scores, q.double())
    of_v = torch.einsum("hnm,nhk->mhk", own_HNM, grad)
    return tuple(x.to(q.dtype).contiguous() for x in (of_q, of_k, of_v))


def plain_varlen_attn(q: Tensor, k: Tensor, v: Tensor, *rest: Any, window_size: tuple[int, int]) -> Tensor:
    """Compute `varlen_attn` as documented: a query sees its sentence's keys or, if causal, those up to its position."""
    cumulative, longest = rest[:2], rest[2:]
    assert all(x.dtype == torch.int32 and x.is_contiguous() for x in cumulative)
    assert all(size >= x.diff().max() for size, x in zip(longest, cumulative, strict=True))
    assert window_size == (-1, -1) or (window_size == (-1, 0) and torch.equal(*cumulative))
    return varlen(q, k, v, *rest, window_size)[0]
