"""The attention weights of all heads and layers for one sentence pair, for alignments and pictures.

Shapes: L layers, H heads, T target length, S source length, K size per head.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from nmt_cli.transformer.attention import Attention, linear
from nmt_cli.transformer.model import DecoderLayer, EncoderLayer, Transformer, pack


def _weights(module: Attention, arguments: tuple[Any, ...]) -> Tensor:
    """Return softmax(q k^T / sqrt(d_k)), H x T x S, for what the module was called with."""
    x_TD, _, (bias,), *memory = arguments
    heads, size = module.num_heads, module.num_heads * module.d_k
    if memory:
        q_TC, k_SC = linear(x_TD, module.query), linear(memory[0][0], module.key_value)[:, :size]
        bias = None
    else:
        q_TC, k_SC = linear(x_TD, module.query_key_value)[:, : 2 * size].split(size, -1)
    q_HTK, k_HSK = (x.unflatten(1, (heads, -1)).transpose(0, 1).float() for x in (q_TC, k_SC))
    scores_HTS = q_HTK @ k_HSK.transpose(1, 2) * module.d_k**-0.5
    return torch.softmax(scores_HTS if bias is None else scores_HTS + bias.float(), -1)


@torch.inference_mode()
def attention_weights(
    model: Transformer, dtype: torch.dtype, source: list[int], target: list[int]
) -> dict[str, Tensor]:
    """Return "encoder" L x H x S x S, "decoder" L x H x T x T and "cross" L x H x T x S.

    Row t of the decoder's is the step that says target piece t, and column t what was said before it: the first
    column is the start.

    Args:
        model: as it is or as `for_inference` returns it.
        dtype: arithmetic.
        source: ids, closed by EOS.
        target: ids, closed by EOS.
    """
    found: dict[str, list[Tensor]] = {"encoder": [], "decoder": [], "cross": []}

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda module, arguments: found[name].append(_weights(cast(Attention, module), arguments))

    parts = [("encoder", layer.self_attention) for layer in cast("list[EncoderLayer]", list(model.encoder))]
    for layer in cast("list[DecoderLayer]", list(model.decoder)):
        parts += [("decoder", layer.self_attention), ("cross", layer.cross_attention)]
    hooks = [module.register_forward_pre_hook(keep(name)) for name, module in parts]
    try:
        sides = [(np.asarray(ids, dtype=np.int64), np.array([len(ids)])) for ids in (source, target)]
        model(pack(*sides[0], *sides[1], model.embedding.weight.device), dtype=dtype)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.stack(layers).cpu() for name, layers in found.items()}
