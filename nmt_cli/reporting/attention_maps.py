"""Every attention weight of a model for one pair of sentences, and what can be read off them.

Shapes: L layers, H heads, S source and T target pieces (queries x keys: S x S, T x T, T x S), D d_model.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt_cli.transformer.attention import Attention, linear
from nmt_cli.transformer.model import DecoderLayer, EncoderLayer, Transformer, pack

Floats = npt.NDArray[np.float64]
ROLES = ("encoder", "decoder", "cross")  # the three uses of section 3.2.3


def attention_scores(model: Transformer, src: Sequence[int], tgt: Sequence[int]) -> dict[str, Floats]:
    """Return q k^T / sqrt(d_k) of every head as L x H x queries x keys, by role; -inf where a query may not look.

    Rows of "decoder" and "cross" stand for the piece that is about to be said; columns of "decoder" for those read so
    far, the first of which is the start.

    Args:
        model: with the arithmetic of its weights.
        src: source ids, closed by EOS.
        tgt: target ids, closed by EOS.
    """
    found: dict[str, list[Tensor]] = {role: [] for role in ROLES}
    hooks = []
    for layers in (model.encoder, model.decoder):
        for layer in cast("list[EncoderLayer | DecoderLayer]", list(layers)):
            role = "encoder" if isinstance(layer, EncoderLayer) else "decoder"
            hooks.append(layer.self_attention.register_forward_pre_hook(partial(_keep, found[role], role == "decoder")))
            if isinstance(layer, DecoderLayer):
                hooks.append(layer.cross_attention.register_forward_pre_hook(partial(_keep, found["cross"], False)))
    sides = [(np.asarray(ids, np.int64), np.array([len(ids)])) for ids in (src, tgt)]
    try:
        with torch.inference_mode():
            model(pack(*sides[0], *sides[1], model.embedding.weight.device))
    finally:
        for hook in hooks:
            hook.remove()
    return {role: torch.stack(scores).cpu().numpy() for role, scores in found.items()}


def _keep(found: list[Tensor], causal: bool, attention: Attention, inputs: tuple[Any, ...]) -> None:
    """Compute the scores that one attention is about to compute, from the same inputs and weights."""
    x_ND, memory_ND = inputs[0], inputs[3][0] if len(inputs) > 3 else None
    size = attention.num_heads * attention.d_k
    if memory_ND is None:
        q_NC, k_NC = linear(x_ND, attention.query_key_value).double().split(size, -1)[:2]
    else:
        q_NC = linear(x_ND, attention.query).double()
        k_NC = linear(memory_ND, attention.key_value).double()[:, :size]
    q_HTK, k_HSK = (x.view(len(x), attention.num_heads, -1).transpose(0, 1) for x in (q_NC, k_NC))
    scores_HTS = q_HTK @ k_HSK.transpose(1, 2) / math.sqrt(attention.d_k)
    if causal:
        later = torch.ones(scores_HTS.shape[1:], dtype=torch.bool, device=x_ND.device).triu_(1)
        scores_HTS = scores_HTS.masked_fill(later, -math.inf)
    found.append(scores_HTS)


def softmax(scores: Floats, factor: float = 1.0) -> Floats:
    """Return softmax(factor x scores) over the last axis; exactly 0 where a score is -inf."""
    powers: Floats = np.exp(factor * (scores - scores.max(-1, keepdims=True)))
    weights: Floats = powers / powers.sum(-1, keepdims=True)
    return weights


def sharpness(weights: Floats) -> tuple[float, float, float]:
    """Return the means over all rows with a choice of: the largest weight, the entropy in bits, and 1 - sum of squares.

    The last is the trace of the softmax's Jacobian: what is left of a gradient that passes through it.
    """
    rows = weights.reshape(-1, weights.shape[-1])
    rows = rows[(rows > 0).sum(-1) > 1] if len(rows) > 1 else rows
    entropy = -(rows * np.log2(np.where(rows > 0, rows, 1))).sum(-1)
    return float(rows.max(-1).mean()), float(entropy.mean()), float((1 - (rows**2).sum(-1)).mean())


def flow(encoder_LHSS: Floats, start_S: Floats) -> Floats:
    """Return where a mix of encoder outputs comes from, (L + 1) x S: shares of the last layer's output, of the layer
    before, and so on down to the embeddings.

    A layer's output at a place is taken to be half what was there (the residual) and half what its heads, on average,
    bring there. Source: attention rollout, Abnar and Zuidema 2020.

    Args:
        encoder_LHSS: the encoder's weights.
        start_S: the shares of its outputs in the mix.
    """
    levels = [start_S]
    for weights_HSS in encoder_LHSS[::-1]:
        levels.append(0.5 * levels[-1] + 0.5 * levels[-1] @ weights_HSS.mean(0))
    return np.array(levels)
