"""Find or sample the best continuations of all hypotheses in one step of the search, from their logits.

Shapes: S slots, W hypotheses per slot, R = S x W rows, C candidates per slot, B blocks of the vocabulary V.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nmt_cli.transformer.cache import BLOCK
from nmt_cli.translation.options import Sampling

CACHED_ROWS = 32  # rows normalized together on a CPU; few enough for its cache to hold the intermediate results


def widened(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _normalize(scores_RV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest score of each block, R x B, and log Z of each row, R x 1, in float32 or float64."""
    scores_RV = widened(scores_RV)
    largest_RB = scores_RV.unflatten(1, (-1, BLOCK)).amax(-1)
    # For the largest score x, log Z = x - log softmax(x). In torch, softmax is twice as fast as logsumexp.
    highest_R1 = torch.softmax(scores_RV, -1).amax(-1, keepdim=True)
    return largest_RB, largest_RB.amax(-1, keepdim=True) - highest_R1.log()


def best_continuations(
    logits: list[Tensor], alive_SW: Tensor, forced_S: Tensor, sampling: Sampling | None, uniform_R1: Tensor
) -> Tensor:
    """Return the 2W best continuations of each slot, best first, 3 x S x C (C = 2W).

    The three values of a continuation, in float64, are its sum of log-probabilities, the index of the hypothesis that
    it continues, and its token id. If scores are not finite, sums are NaN. `logits` holds one R x V tensor per model,
    and `alive_SW` the sum of each hypothesis so far. `forced_S` holds the forced next token of each slot, or PAD for
    none. If no slot has one, `forced_S` may have length 0. With `sampling`, each slot has one continuation (W = C = 1),
    which a random number from 0 to 1 in `uniform_R1` selects.
    """
    scores_RV, largest_RB, base_R1 = _scored(logits, alive_SW)
    if sampling:
        best_R1, ids_R1 = _draw(scores_RV, sampling, uniform_R1)
        best = [base_R1 + best_R1, torch.zeros_like(ids_R1), ids_R1]
    else:
        best = [*_top(scores_RV, largest_RB, base_R1, width := alive_SW.shape[1], 2 * width)]
    if not len(forced_S):
        return torch.stack([x.double() for x in best])
    forced_SW = forced_S[:, None].expand_as(alive_SW)
    sums_SW = (scores_RV.gather(1, forced_SW.reshape(-1, 1)) + base_R1).view_as(alive_SW)
    sums_SW, order_SW = sums_SW.sort(dim=1, descending=True, stable=True)
    more = 0, best[0].shape[1] - alive_SW.shape[1]
    forced = F.pad(sums_SW, more, value=-torch.inf), F.pad(order_SW, more), forced_S[:, None]
    return torch.stack([torch.where(forced_S[:, None] != 0, *two).double() for two in zip(forced, best, strict=True)])


def continuations_of_each(logits: list[Tensor], alive_SW: Tensor, wanted_SWM: Tensor) -> Tensor:
    """Return the W best tokens and the M wanted tokens of each hypothesis, 2 x S x W x (W + M).

    The two values of a token, in float64, are the hypothesis's sum of log-probabilities with this token, and the
    token's id. If there are too few tokens, the list is filled up with PAD, whose sum is -inf.
    """
    scores_RV, largest_RB, base_R1 = _scored(logits, alive_SW)
    best_RC, _, ids_RC = _top(scores_RV, largest_RB, base_R1, 1, min(alive_SW.shape[1], scores_RV.shape[1]))
    wanted_RM = wanted_SWM.flatten(0, 1)
    sums_RC = torch.cat([best_RC, scores_RV.gather(1, wanted_RM) + base_R1], 1)
    both = torch.stack([sums_RC.double(), torch.cat([ids_RC, wanted_RM], 1).double()])
    return both.view(2, *alive_SW.shape, -1)


def _scored(logits: list[Tensor], alive_SW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, R x V, the largest score of each block, R x B, and the base of each row, R x 1.

    The base of a row plus the score of a token is the hypothesis's sum of log-probabilities with this token.
    """
    scores_RV = logits[0]
    if len(logits) > 1:  # average the probabilities of the models
        scores_RV = torch.stack([torch.log_softmax(widened(x), -1) for x in logits]).logsumexp(0)
    parts = scores_RV.split(len(scores_RV) if scores_RV.is_cuda else CACHED_ROWS)
    largest_RB, log_z_R1 = map(torch.cat, zip(*map(_normalize, parts), strict=True))
    return scores_RV, largest_RB, alive_SW.view(-1, 1) - log_z_R1


def _top(
    scores_RV: Tensor, largest_RB: Tensor, base_R1: Tensor, width: int, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `most` best sums of each slot, the indices of their hypotheses, and their token ids, each S x C.

    Each slot has `width` rows. A sum is a score plus the base of its row. This function first finds the `most` blocks
    with the largest sums, and then searches only these blocks. On a CPU, this is five times as fast as topk over the
    vocabulary.
    """
    blocks = largest_RB.shape[1]
    count = min(most, width * blocks)
    chosen_SC = (largest_RB + base_R1).view(-1, width * blocks).topk(count, 1, sorted=False)[1]
    slots_S1 = torch.arange(len(chosen_SC), device=chosen_SC.device)[:, None]
    scores_SCB = scores_RV.view(-1, BLOCK)[chosen_SC + slots_S1 * (width * blocks)]
    parents_SC = chosen_SC // blocks
    sums_SC = (scores_SCB + base_R1.view(-1, width).gather(1, parents_SC)[:, :, None]).flatten(1)
    sums_SC, indices_SC = sums_SC.topk(most, 1)
    block_SC = indices_SC // BLOCK
    ids_SC = chosen_SC.gather(1, block_SC) % blocks * BLOCK + indices_SC % BLOCK
    # A missing continuation has an arbitrary id, which may be outside the vocabulary. Replace it with PAD.
    return sums_SC, parents_SC.gather(1, block_SC), ids_SC.masked_fill_(sums_SC == -torch.inf, 0)


def _draw(scores_RV: Tensor, sampling: Sampling, uniform_R1: Tensor) -> tuple[Tensor, Tensor]:
    """Return the score and the id of one sampled token for each row, R x 1."""
    best_RC, ids_RC = scores_RV.topk(min(sampling.top_k or scores_RV.shape[1], scores_RV.shape[1]), -1)
    cumulative_RC = torch.softmax(best_RC.double() / sampling.temperature, -1).cumsum(-1)
    # Keep the fewest of the most likely tokens whose total probability reaches top_p.
    last_R1 = (cumulative_RC < sampling.top_p).sum(-1, keepdim=True).clamp_max(cumulative_RC.shape[1] - 1)
    point_R1 = uniform_R1 * cumulative_RC.gather(1, last_R1)
    drawn_R1 = torch.minimum((cumulative_RC <= point_R1).sum(-1, keepdim=True), last_R1)
    return best_RC.gather(1, drawn_R1), ids_RC.gather(1, drawn_R1)
