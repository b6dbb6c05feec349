"""Every attention weight of a model for one pair of sentences, and what can be read off them.

Shapes: L layers, H heads, S source and T target pieces (queries x keys: S x S, T x T, T x S), D d_model.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nmt_cli.transformer.attention_scores import ROLES
from nmt_cli.transformer.attention_scores import attention_scores as attention_tensors
from nmt_cli.transformer.model import Transformer

Floats = npt.NDArray[np.float64]
__all__ = ["ROLES", "Floats", "attention_scores", "flow", "sharpness", "softmax"]


def attention_scores(model: Transformer, src: Sequence[int], tgt: Sequence[int]) -> dict[str, Floats]:
    """Return `transformer.attention_scores` of a pair as arrays."""
    return {role: scores.numpy() for role, scores in attention_tensors(model, src, tgt).items()}


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
