"""Our weights and vocabulary as transformers keeps them (Marian for post-norm, Pegasus for pre-norm), and back.

Two things differ besides names. Theirs has the sines of the positional encoding in the first half of d_model and the
cosines in the second, ours alternates them: a permutation of d_model, applied to every weight that reads or writes
the residual stream, makes one out of the other exactly. And PAD, first in our vocabulary, is the last of theirs,
because CTranslate2 drops the last row of a Marian model and starts from a zero embedding instead.
"""

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from nmt_cli import recipe
from nmt_cli.corpus.tokenizer import EOS, PAD, UNK
from nmt_cli.errors import DataError

NO_LOGIT = -1e9  # what transformers adds to a logit that must never win; ours is -inf
COPIES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
SHARED, BIAS = "model.shared.weight", "final_logits_bias"


def library(name: str) -> Any:
    """Import transformers or ctranslate2; transformers learns to be quiet."""
    module = importlib.import_module(name)
    if name == "transformers":
        module.logging.set_verbosity_error()
        module.logging.disable_progress_bar()
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
    return module


def _modules(settings: recipe.Model) -> Iterator[tuple[str, list[str], int | None, int | None]]:
    """Yield (our module, their modules, d_model's dimension in the weight, d_model's in the bias).

    Where theirs are several, ours holds them end to end along dimension 0.
    """
    for stack, crosses in (("encoder", ()), ("decoder", (("cross_attention", "encoder_attn"),))):
        for i in range(settings.num_layers):
            ours, theirs = f"{stack}.{i}", f"model.{stack}.layers.{i}"
            norms = [f"{theirs}.self_attn_layer_norm", f"{theirs}.final_layer_norm"]
            attention = f"{theirs}.self_attn"
            yield f"{ours}.self_attention.query_key_value", [f"{attention}.{x}_proj" for x in "qkv"], 1, None
            yield f"{ours}.self_attention.output", [f"{attention}.out_proj"], 0, 0
            for own, name in crosses:
                attention = f"{theirs}.{name}"
                yield f"{ours}.{own}.query", [f"{attention}.q_proj"], 1, None
                yield f"{ours}.{own}.key_value", [f"{attention}.k_proj", f"{attention}.v_proj"], 1, None
                yield f"{ours}.{own}.output", [f"{attention}.out_proj"], 0, 0
                norms.insert(1, f"{attention}_layer_norm")
            yield f"{ours}.feed_forward.inner", [f"{theirs}.fc1"], 1, None
            yield f"{ours}.feed_forward.outer", [f"{theirs}.fc2"], 0, 0
            for k, norm in enumerate(norms):
                yield f"{ours}.residuals.{k}.norm", [norm], 0, 0
        if settings.norm == "pre":
            yield f"{stack}_norm", [f"model.{stack}.layer_norm"], 0, 0


def _parameters(settings: recipe.Model) -> Iterator[tuple[str, list[str], int | None]]:
    for ours, theirs, weight_dim, bias_dim in _modules(settings):
        yield f"{ours}.weight", [f"{name}.weight" for name in theirs], weight_dim
        yield f"{ours}.bias", [f"{name}.bias" for name in theirs], bias_dim


def sines_first(d_model: int) -> Tensor:
    """Return the places of our d_model in the order of theirs."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def check_representable(settings: recipe.Model) -> None:
    """Refuse a model that Marian and Pegasus cannot compute.

    Raises:
        DataError: saying why.
    """
    reasons = []
    if settings.positions != "sinusoidal":
        reasons.append("its positions are learned, theirs are sinusoids")
    if not settings.num_heads * settings.d_k == settings.num_heads * settings.d_v == settings.d_model:
        reasons.append("its heads x d_k or heads x d_v is not d_model, theirs always is")
    if reasons:
        raise DataError(f"this model cannot be exported: {'; '.join(reasons)}")


def to_hf(tensors: dict[str, Tensor], settings: recipe.Model) -> dict[str, Tensor]:
    """Return their weights, by their names, for ours; biases that ours has not are zeros."""
    places, width = sines_first(settings.d_model), settings.d_model
    embedding = tensors["embedding.weight"].roll(-1, 0).index_select(1, places)
    bias = tensors.get("output_bias", torch.zeros(len(embedding))).roll(-1, 0)[None]
    bias[0, -1] = NO_LOGIT
    result = {SHARED: embedding, BIAS: bias}
    for ours, theirs, dim in _parameters(settings):
        tensor = tensors.get(ours, torch.zeros(len(theirs) * width))
        tensor = tensor if dim is None else tensor.index_select(dim, places)
        result.update(zip(theirs, (part.clone() for part in tensor.chunk(len(theirs))), strict=True))
    return result


def from_hf(tensors: dict[str, Tensor], settings: recipe.Model, order: list[int]) -> dict[str, Tensor]:
    """Return our weights for theirs.

    Args:
        tensors: theirs, by their names.
        settings: of our model.
        order: their id of each of our pieces.

    Raises:
        DataError: one is missing.
    """
    places = sines_first(settings.d_model).argsort()
    embedding = tensors[SHARED].index_select(1, places)[order]
    embedding[PAD] = 0
    result = {"embedding.weight": embedding}
    if settings.output_bias:
        result["output_bias"] = tensors[BIAS].flatten()[order]
        result["output_bias"][PAD] = 0
    for ours, theirs, dim in _parameters(settings):
        attention_bias = ours.endswith(".bias") and "attention" in ours
        if attention_bias and not settings.attention_bias:
            continue
        missing = [name for name in theirs if name not in tensors]
        if missing:
            raise DataError(f"the weights have no tensor {missing[0]}")
        tensor = torch.cat([tensors[name] for name in theirs])
        result[ours] = tensor if dim is None else tensor.index_select(dim, places)
    return result


def exported_order(size: int) -> list[int]:
    """Return the id that each of our pieces has in an exported vocabulary."""
    return [(i - 1) % size for i in range(size)]


def config(settings: recipe.Model, vocabulary_size: int) -> Any:
    """Return their configuration of a model with these settings."""
    transformers = library("transformers")
    kind = transformers.PegasusConfig if settings.norm == "pre" else transformers.MarianConfig
    layers = {f"{s}_layers": settings.num_layers for s in ("encoder", "decoder")}
    widths = {f"{s}_ffn_dim": settings.d_ff for s in ("encoder", "decoder")}
    heads = {f"{s}_attention_heads": settings.num_heads for s in ("encoder", "decoder")}
    pad = vocabulary_size - 1
    return kind(
        **layers,
        **widths,
        **heads,
        vocab_size=vocabulary_size,
        d_model=settings.d_model,
        max_position_embeddings=settings.max_length,
        activation_function=settings.activation,
        dropout=settings.dropout,
        scale_embedding=True,
        static_position_embeddings=True,
        normalize_before=settings.norm == "pre",  # these two are read by CTranslate2
        normalize_embedding=False,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=EOS - 1,
        forced_eos_token_id=EOS - 1,
        unk_token_id=UNK - 1,
    )
