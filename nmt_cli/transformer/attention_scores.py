"""The attention scores of all heads for one sentence pair.

Shapes: L layers, H heads, T queries, S keys, K size per head.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nmt_cli.transformer.model import Transformer, layers, pack, without_eos


@torch.inference_mode()
def attention_scores(
    model: Transformer, src_ids: Sequence[int], tgt_ids: Sequence[int], dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Map each role of attention to its scores q k^T / sqrt(d_k), L x H x T x S in float64 on the CPU.

    Masked scores are -inf. The roles are "encoder", "cross" and, unless the decoder is an SSRU, "decoder". The rows of
    "decoder" and "cross" are the tokens to predict. The columns of "decoder" are the start symbol and the earlier
    tokens. `src_ids` and `tgt_ids` must end with EOS.
    """
    roles: dict[nn.Module, str] = {layer.self_attention: "encoder" for layer in layers(model.encoder)}
    for layer in layers(model.decoder):
        roles |= {} if layer.recurrent else {layer.self_attention: "decoder"}
        roles[layer.cross_attention] = "cross"
    scores: dict[str, list[Tensor]] = {}

    def record(attention: Any, inputs: tuple[Any, ...], rest: dict[str, Any]) -> None:
        q_THK, k_SHK, _ = (x.double() for x in attention.heads(inputs[0], (rest.get("memory") or [None])[0]))
        scores_HTS = torch.einsum("thk,shk->hts", q_THK, k_SHK) / attention.d_k**0.5
        if roles[attention] == "decoder":
            scores_HTS.masked_fill_(torch.ones_like(scores_HTS[0], dtype=torch.bool).triu_(1), -torch.inf)
        scores.setdefault(roles[attention], []).append(scores_HTS)

    hooks = [attention.register_forward_pre_hook(record, with_kwargs=True) for attention in roles]
    try:
        sides = [(np.asarray(ids, np.int64), np.array([len(ids)])) for ids in (src_ids, tgt_ids)]
        if not model.settings.source_eos:
            sides[0] = without_eos(*sides[0])
        model(pack(*sides[0], *sides[1], model.embedding.weight.device), dtype=dtype)
    finally:
        for hook in hooks:
            hook.remove()
    return {role: torch.stack(of_layers).cpu() for role, of_layers in scores.items()}
