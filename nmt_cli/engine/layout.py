"""Names and shapes of a model's tensors, which follow from its settings."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

Shape = tuple[int, ...]

_FEED_FORWARD = "feed_forward.inner", "feed_forward.outer"
_SELF_ATTENTION = "self_attention.query_key_value", "self_attention.output"
_CROSS_ATTENTION = "cross_attention.query", "cross_attention.output", "cross_attention.key_value"
_RECURRENCE = "recurrence.value", "recurrence.forget"
NORMS_PER_LAYER = {"encoder": 2, "decoder": 3}


class Settings(Protocol):
    """The sizes and options of a Transformer, named as in `schema.Model`, a recipe's section `model`."""

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
    decoder_cell: Any  # "attention" or "ssru"

    @property
    def depths(self) -> tuple[int, int]:
        """The numbers of encoder layers and decoder layers."""


def depths(settings: Settings) -> dict[str, int]:
    """Map "encoder" and "decoder", the two sides of a model, to their numbers of layers."""
    return dict(zip(NORMS_PER_LAYER, settings.depths, strict=True))


def matrices(settings: Settings, side: str) -> tuple[str, ...]:
    """Return the names of the matrices in a layer of `side`, without ".weight", in the order that engine.c expects."""
    if side == "encoder":
        return *_SELF_ATTENTION, *_FEED_FORWARD
    first = _RECURRENCE if settings.decoder_cell == "ssru" else _SELF_ATTENTION
    return *first, *_CROSS_ATTENTION, *_FEED_FORWARD


def _has_bias(settings: Settings, path: str) -> bool:
    return path.endswith(("inner", "outer", "forget")) or (settings.attention_bias and "attention" in path)


def norms(settings: Settings, side: str) -> list[str]:
    """Return the names of a side's layer norms, without ".weight" or ".bias". With pre-norm, the final norm is last."""
    layers, per_layer = depths(settings)[side], NORMS_PER_LAYER[side]
    names = [f"{side}.{i}.residuals.{j}.norm" for i in range(layers) for j in range(per_layer)]
    return [*names, f"{side}_norm"] if settings.norm == "pre" else names


def tensor_shapes(settings: Settings, vocabulary_size: int) -> dict[str, Shape]:
    """Map the name of each tensor to its shape.

    `vocabulary_size` is the size of the target vocabulary, including PAD. If `settings.source_vocabulary` is 0, source
    and target share this vocabulary.
    """
    d = settings.d_model
    queries, values = settings.num_heads * settings.d_k, settings.num_heads * settings.d_v
    shape_of = {
        "recurrence.value": (d, d),
        "recurrence.forget": (d, d),
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
            for path in matrices(settings, side):
                shapes[f"{side}.{i}.{path}.weight"] = shape_of[path]
                if _has_bias(settings, path):
                    shapes[f"{side}.{i}.{path}.bias"] = shape_of[path][:1]
        shapes |= {f"{name}.{kind}": (d,) for name in norms(settings, side) for kind in ("weight", "bias")}
    return shapes


def differences(found: Mapping[str, Shape], expected: Mapping[str, Shape]) -> Iterator[str]:
    """Yield a description of each tensor that is missing, is unexpected or has the wrong shape."""
    for name in {**expected, **found}:
        shape, wanted = found.get(name), expected.get(name)
        if shape is None:
            yield f"{name} is missing"
        elif wanted is None:
            yield f"{name} is unexpected"
        elif shape != wanted:
            yield f"{name} has shape {shape}, not {wanted}"
