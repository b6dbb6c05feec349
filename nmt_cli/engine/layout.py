"""The tensors of a model: their names and shapes follow from its sizes."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

Shape = tuple[int, ...]

_FEED_FORWARD = "feed_forward.inner", "feed_forward.outer"
_SELF_ATTENTION = "self_attention.query_key_value", "self_attention.output"
_CROSS_ATTENTION = "cross_attention.query", "cross_attention.output", "cross_attention.key_value"
# The matrices of a layer, in the order in which engine.c reads them.
MATRICES = {
    "encoder": (*_SELF_ATTENTION, *_FEED_FORWARD),
    "decoder": (*_SELF_ATTENTION, *_CROSS_ATTENTION, *_FEED_FORWARD),
}
NORMS_PER_LAYER = {"encoder": 2, "decoder": 3}


class Settings(Protocol):
    """The sizes and options of a Transformer, named as in a recipe's section `model`."""

    d_model: int
    num_heads: int
    d_k: int
    d_v: int
    d_ff: int
    norm: Any  # "post" or "pre"
    activation: Any  # "relu", "swish" or "gelu"
    max_length: int
    positions: Any  # "sinusoidal", "marian" or "learned"
    attention_bias: bool
    output_bias: bool
    tied_output: bool
    source_eos: bool
    source_vocabulary: int

    @property
    def depths(self) -> tuple[int, int]:
        """Layers of the encoder and of the decoder."""


def depths(settings: Settings) -> dict[str, int]:
    """Return the number of layers by side, "encoder" and "decoder"."""
    return dict(zip(MATRICES, settings.depths, strict=True))


def norms(settings: Settings, side: str) -> list[str]:
    """Return the names of the layer norms of a side, without ".weight" and ".bias"."""
    layers, per_layer = depths(settings)[side], NORMS_PER_LAYER[side]
    names = [f"{side}.{i}.residuals.{j}.norm" for i in range(layers) for j in range(per_layer)]
    return [*names, f"{side}_norm"] if settings.norm == "pre" else names


def tensor_shapes(settings: Settings, vocabulary_size: int) -> dict[str, Shape]:
    """Return the shape of each tensor by name. `vocabulary_size` counts the tokens of the target, PAD included."""
    d = settings.d_model
    queries, values = settings.num_heads * settings.d_k, settings.num_heads * settings.d_v
    matrices = {
        "self_attention.query_key_value": (2 * queries + values, d),
        "self_attention.output": (d, values),
        "cross_attention.query": (queries, d),
        "cross_attention.key_value": (queries + values, d),
        "cross_attention.output": (d, values),
        "feed_forward.inner": (settings.d_ff, d),
        "feed_forward.outer": (d, settings.d_ff),
    }
    shapes: dict[str, Shape] = {"embedding.weight": (vocabulary_size, d)}
    if settings.source_vocabulary:
        shapes["own_embeddings.src.weight"] = (settings.source_vocabulary, d)
    if not settings.tied_output:
        shapes["own_embeddings.output.weight"] = (vocabulary_size, d)
    if settings.output_bias:
        shapes["output_bias"] = (vocabulary_size,)
    if settings.positions == "learned":
        shapes |= {f"{side}_positions.weight": (settings.max_length, d) for side in ("src", "tgt")}
    for side, layers in depths(settings).items():
        for i in range(layers):
            for path in MATRICES[side]:
                shapes[f"{side}.{i}.{path}.weight"] = matrices[path]
                if settings.attention_bias or path in _FEED_FORWARD:
                    shapes[f"{side}.{i}.{path}.bias"] = matrices[path][:1]
        shapes |= {f"{name}.{kind}": (d,) for name in norms(settings, side) for kind in ("weight", "bias")}
    return shapes


def differences(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> Iterator[str]:
    """Yield a description of each tensor that is missing, superfluous or of another shape."""
    for name in {**expected, **found}:
        shape, wanted = found.get(name), expected.get(name)
        if shape != wanted:
            yield f"{name} has shape {shape or 'none'}, not {wanted or 'none'}"
