"""Label-smoothed negative log-likelihood of labels, computed from hidden states.

Source: section 5.4 of the paper, "Attention Is All You Need".

Shapes: N tokens; C tokens of a block; R tokens of a block that go through one softmax call; D d_model; V vocabulary
size.
"""

from typing import Any

import torch
from torch import Tensor, nn

from nmt_cli.transformer.hardware import compiled
from nmt_cli.transformer.model import PAD, Batch, Transformer

BLOCK_BYTES, CUDA_BLOCK_BYTES = 64 << 20, 2 << 30  # size of the logits of one block
ROWS = 256  # on the CPU, a softmax takes this many rows at once, because they fit into the cache


class _SmoothedLoss(torch.autograd.Function):
    """Computes the loss and its gradient together, block by block.

    As a single block, the logits of one training step of the paper's models would take 3.7 GB. The uniform part of the
    smoothing lowers the gradient of every logit except PAD's by the same constant, so its contribution is subtracted
    from the matrix products, not from each row of logits.
    Tokens with the label PAD only fill up a batch. They add nothing to the loss or the gradients.
    """

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, smoothing: float) -> Any:
        weight, real_N = weight_VD.to(hidden_ND.dtype), labels_N != PAD
        hidden_ND = hidden_ND.masked_fill(~real_N[:, None], 0)
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        uniform = smoothing / (len(weight) - 1)
        size = max(1, (CUDA_BLOCK_BYTES if hidden_ND.is_cuda else BLOCK_BYTES) // weight[:, 0].nbytes)
        grads_ = compiled(fused_grads_, hidden_ND.device, _grads_)
        sums_D = weight_VD[1:].sum(0, dtype=wide)  # without PAD, whose id is 0
        grad_ND = torch.empty_like(hidden_ND)
        grad_VD = torch.zeros_like(weight_VD, dtype=wide)
        loss, nll = hidden_ND.new_zeros((), dtype=torch.float64), hidden_ND.new_zeros((), dtype=torch.float64)
        parts = (x_N.split(size) for x_N in (hidden_ND, labels_N, real_N, grad_ND))
        for h_CD, labels_C, real_C, grad_CD in zip(*parts, strict=True):
            logits_CV, labels_C1 = h_CD @ weight.t(), labels_C[:, None].long()
            logits_CV[:, 0] = -torch.inf
            if grads_ is not _grads_:
                torch._dynamo.mark_static(logits_CV, 1)  # the vocabulary size never changes, but the block size does
            log_probs_C1, log_z_C1 = grads_(logits_CV, labels_C1, smoothing, wide)  # logits_CV now holds gradients
            log_prob = log_probs_C1[:, 0].where(real_C, 0).sum(dtype=torch.float64)
            sum_log_probs_C = h_CD.to(wide) @ sums_D - (len(weight) - 1) * log_z_C1[:, 0]
            nll -= log_prob
            loss -= (1 - smoothing) * log_prob + uniform * sum_log_probs_C.where(real_C, 0).sum(dtype=torch.float64)
            if any(ctx.needs_input_grad):
                grads_CD = (logits_CV @ weight).sub_((uniform * sums_D).to(weight.dtype))
                grad_CD.copy_(grads_CD.masked_fill_(~real_C[:, None], 0))
                grad_VD += logits_CV.t() @ h_CD
        grad_VD[1:] -= uniform * hidden_ND.sum(0, dtype=wide)
        ctx.save_for_backward(grad_ND, grad_VD)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_ND, grad_VD = ctx.saved_tensors
        # With shape [1, 1], because torch would round a 0-dimensional tensor to bfloat16 before multiplying.
        scale_11 = grads[0].to(grad_VD.dtype).view(1, 1)
        return (grad_ND * scale_11).to(grad_ND.dtype), grad_VD.mul_(scale_11), None, None


def _grads_(logits_CV: Tensor, labels_C1: Tensor, smoothing: float, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Replace logits by their gradients, without the uniform part of the smoothing.

    Return, C x 1 each, the log-probability of the label, and log Z, the logsumexp of the logits.
    """
    log_zs, gold_C1 = [], logits_CV.gather(1, labels_C1).to(wide)
    for rows_RV in logits_CV.split(len(logits_CV) if logits_CV.is_cuda else ROWS):
        probs_RV = torch.softmax(rows_RV, -1)
        best_R1 = probs_RV.amax(-1, keepdim=True)  # exp(highest logit - log Z)
        log_zs.append(rows_RV.amax(-1, keepdim=True).to(wide) - best_R1.to(wide).log())
        rows_RV.copy_(probs_RV)
    log_z_C1 = torch.cat(log_zs)
    # The difference between the label's probability and 1 - smoothing may be tiny, so compute it from the logits in the
    # wide type, not from the rounded softmax.
    rows_C1 = torch.arange(len(logits_CV), device=logits_CV.device)[:, None]  # scatter_ would copy the whole matrix
    logits_CV[rows_C1, labels_C1] = ((gold_C1 - log_z_C1).exp() - (1 - smoothing)).to(logits_CV.dtype)
    return gold_C1 - log_z_C1, log_z_C1


def fused_grads_(logits_CV: Tensor, labels_C1: Tensor, smoothing: float, wide: torch.dtype) -> tuple[Tensor, Tensor]:
    """Do the same as `_grads_`, in a form that torch.compile turns into few passes over memory."""
    log_z_C1 = logits_CV.to(wide).logsumexp(1, keepdim=True)
    log_probs_CV = logits_CV.to(wide) - log_z_C1
    log_probs_C1 = log_probs_CV.gather(1, labels_C1)
    grads_CV, columns_V = log_probs_CV.exp(), torch.arange(logits_CV.shape[1], device=logits_CV.device)
    logits_CV.copy_(torch.where(columns_V == labels_C1, grads_CV - (1 - smoothing), grads_CV))
    return log_probs_C1, log_z_C1


def smoothed_loss(hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the label-smoothed loss and the plain negative log-likelihood, both in nats, summed over tokens.

    The target distribution is (1 - smoothing) on the label, plus smoothing spread evenly over the vocabulary without
    PAD (Szegedy et al. 2015, which the paper cites). The paper's released code spreads it over the other tokens
    only.
    """
    weight_VD = weight_VD if torch.is_grad_enabled() else weight_VD.detach()  # `needs_input_grad` ignores torch.no_grad
    loss, nll = _SmoothedLoss.apply(hidden_ND, weight_VD, labels_N, smoothing)  # type: ignore[no-untyped-call]
    return loss, nll


class LossModel(nn.Module):
    """The Transformer with its loss, in one module, because DDP needs a single forward pass from ids to loss."""

    def __init__(self, transformer: Transformer, smoothing: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.transformer, self.smoothing, self.dtype = transformer, smoothing, dtype

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        hidden_ND = self.transformer(batch, self.dtype)
        return smoothed_loss(*self.transformer.output_terms(hidden_ND), batch.tgt_out_N, self.smoothing)
