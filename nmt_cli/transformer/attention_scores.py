"""The attention scores of all heads for one sentence pair, for alignments and pictures.

Shapes: L layers, H heads, T queries, S keys, K size per head.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from nmt_cli.transformer.attention import Attention, linear
from nmt_cli.transformer.model import DecoderLayer, EncoderLayer, Transformer, pack

ROLES = ("encoder", "decoder", "cross")  # the three uses of section 3.2.3


@torch.inference_mode()
def attention_scores(
    model: Transformer, src_ids: Sequence[int], tgt_ids: Sequence[int], dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Return q k^T / sqrt(d_k) of every head by role, L x H x queries x keys in float64 on the CPU.

    -inf where a query may not look, so that a softmax over the last axis gives the weights. Rows of "decoder" and
    "cross" stand for the token that is about to be said; columns of "decoder" for those said before, the first of
    which is the start.

    Args:
        model: as it was loaded or as `for_inference` returns it.
        src_ids: closed by EOS.
        tgt_ids: closed by EOS.
        dtype: arithmetic; default: that of the weights.
    """
    scores: dict[str, list[Tensor]] = {role: [] for role in ROLES}

    def record(role: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda module, inputs: scores[role].append(_scores(cast(Attention, module), inputs, role == "decoder"))

    modules = [("encoder", layer.self_attention) for layer in cast("list[EncoderLayer]", list(model.encoder))]
    for layer in cast("list[DecoderLayer]", list(model.decoder)):
        modules += [("decoder", layer.self_attention), ("cross", layer.cross_attention)]
    hooks = [module.register_forward_pre_hook(record(role)) for role, module in modules]
    try:
        sides = [(np.asarray(ids, np.int64), np.array([len(ids)])) for ids in (src_ids, tgt_ids)]
        model(pack(*sides[0], *sides[1], model.embedding.weight.device), dtype=dtype)
    finally:
        for hook in hooks:
            hook.remove()
    return {role: torch.stack(layers).cpu() for role, layers in scores.items()}


def _scores(attention: Attention, inputs: tuple[Any, ...], causal: bool) -> Tensor:
    """Return the scores H x T x S that an attention computes from these inputs of its `forward`."""
    x_TD, _, _, *memory = inputs
    heads, size = attention.num_heads, attention.num_heads * attention.d_k
    if memory:
        q_TC, k_SC = linear(x_TD, attention.query), linear(memory[0][0], attention.key_value)[:, :size]
    else:
        q_TC, k_SC = linear(x_TD, attention.query_key_value).split(size, -1)[:2]
    q_HTK, k_HSK = (x.double().unflatten(1, (heads, -1)).transpose(0, 1) for x in (q_TC, k_SC))
    scores_HTS: Tensor = q_HTK @ k_HSK.transpose(1, 2) / attention.d_k**0.5
    if causal:
        scores_HTS.masked_fill_(torch.ones_like(scores_HTS[0], dtype=torch.bool).triu_(1), -torch.inf)
    return scores_HTS
