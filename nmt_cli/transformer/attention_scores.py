"""The attention scores of all heads for one sentence pair. L layers, H heads, T queries, S keys, K size per head."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nmt_cli.transformer.attention import Attention, Layout, linear
from nmt_cli.transformer.model import Transformer, layers, pack


@torch.inference_mode()
def attention_scores(
    model: Transformer, src_ids: Sequence[int], tgt_ids: Sequence[int], dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Return q k^T / sqrt(d_k) of every head by role, L x H x T x S in float64 on the CPU; -inf where none may look.

    Rows of "decoder" and "cross" stand for the token that is about to be said; columns of "decoder" for those said
    before, the first of which is the start. EOS closes both sides.
    """
    roles: dict[nn.Module, str] = {layer.self_attention: "encoder" for layer in layers(model.encoder)}
    for layer in layers(model.decoder):
        roles |= {layer.self_attention: "decoder", layer.cross_attention: "cross"}
    scores: dict[str, list[Tensor]] = {}

    def record(attention: Any, inputs: tuple[Any, ...], rest: dict[str, Any]) -> None:
        own = _scores(attention, inputs[0], rest.get("memory"), roles[attention] == "decoder")
        scores.setdefault(roles[attention], []).append(own)

    hooks = [attention.register_forward_pre_hook(record, with_kwargs=True) for attention in roles]
    try:
        sides = [(np.asarray(ids, np.int64), np.array([len(ids)])) for ids in (src_ids, tgt_ids)]
        model(pack(*sides[0], *sides[1], model.embedding.weight.device), dtype=dtype)
    finally:
        for hook in hooks:
            hook.remove()
    return {role: torch.stack(layers).cpu() for role, layers in scores.items()}


def _scores(attention: Attention, x_TD: Tensor, memory: tuple[Tensor, Layout] | None, causal: bool) -> Tensor:
    heads, size = attention.num_heads, attention.num_heads * attention.d_k
    if memory:
        q_TC, k_SC = linear(x_TD, attention.query), linear(memory[0], attention.key_value)[:, :size]
    else:
        q_TC, k_SC = linear(x_TD, attention.query_key_value).split(size, -1)[:2]
    q_HTK, k_HSK = (x.double().unflatten(1, (heads, -1)).transpose(0, 1) for x in (q_TC, k_SC))
    scores_HTS: Tensor = q_HTK @ k_HSK.transpose(1, 2) / attention.d_k**0.5
    if causal:
        scores_HTS.masked_fill_(torch.ones_like(scores_HTS[0], dtype=torch.bool).triu_(1), -torch.inf)
    return scores_HTS
