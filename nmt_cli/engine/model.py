"""Models as the engine computes them: float32 weights from a file or from memory, packed once, shared by threads."""

import ctypes
import mmap
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_void_p
from typing import Any, Protocol

from nmt_cli.engine import library
from nmt_cli.engine.weights import Tensor, release
from nmt_cli.system.errors import DataError, StorageError

ACTIVATIONS = {"relu": 1, "swish": 2, "gelu": 3}  # as engine.c numbers them


class Request(ctypes.Structure):
    """A sentence to be searched, as engine.c describes it."""

    _fields_ = (
        ("ids", POINTER(c_int32)),
        ("prefix", POINTER(c_int32)),
        ("uniform", POINTER(c_double)),
        *((name, c_int64) for name in ("length", "prefix_length", "limit", "width", "best")),
        *((name, c_int64) for name in ("align", "top_k", "patient")),
        *((name, c_double) for name in ("alpha", "temperature", "top_p")),
        *((name, POINTER(c_int32)) for name in ("tokens", "parents", "fails", "gains", "sizes")),
        ("begins", c_char_p),
        *((name, c_int64) for name in ("nodes", "terms")),
    )


_INTS = POINTER(c_int32)
SIGNATURES: library.Signatures = {
    "model_new": (c_void_p, [POINTER(c_int64), POINTER(c_void_p)]),
    "model_free": (None, [c_void_p]),
    "search_new": (c_void_p, [POINTER(c_void_p), c_int64, c_int64]),
    "search_free": (None, [c_void_p]),
    "enter": (c_int64, [c_void_p, POINTER(Request), _INTS, c_int64]),
    "run": (c_int64, [c_void_p, c_int64, _INTS]),
    "found": (c_int64, [c_void_p, c_int64]),
    "hypothesis": (c_int64, [c_void_p, c_int64, c_int64, _INTS, POINTER(c_double), _INTS, POINTER(c_double)]),
    "leave": (None, [c_void_p, c_int64]),
}


class Settings(Protocol):
    """What the engine reads of a recipe's section `model`."""

    num_layers: int
    encoder_layers: int | None
    decoder_layers: int | None
    d_model: int
    num_heads: int
    d_k: int
    d_v: int
    d_ff: int
    norm: Any
    activation: Any
    max_length: int
    positions: Any
    attention_bias: bool
    output_bias: bool
    tied_output: bool
    source_vocabulary: int


class Model:
    """A model's weights, packed for products in float32 or 8 bits; threads may share it.

    `keep` is what the addresses of `tensors` depend on; embeddings are read there as long as the model lives. DataError
    where a tensor is missing or has another shape than the settings say: nothing is read beyond its end.
    """

    def __init__(
        self, library: library.Library, settings: Settings, tensors: Mapping[str, Tensor], keep: object, *, int8: bool
    ) -> None:
        self.library, self.longest = library, settings.max_length
        self.vocabulary = tensors["embedding.weight"].shape[0] if "embedding.weight" in tensors else 0
        for name, shape in expected_shapes(settings, self.vocabulary).items():
            if name not in tensors or tensors[name].shape != shape:
                there = tensors[name].shape if name in tensors else "none"
                raise DataError(f"the weights do not fit their recipe: {name} has shape {there}, not {shape}")
        target = tensors["embedding.weight"]
        own = {side: tensors.get(f"own_embeddings.{side}.weight") for side in ("src", "output")}
        positions = (tensors.get(f"{side}_positions.weight") for side in ("src", "tgt"))
        addresses = [own["src"] or target, target, *positions]
        depths = _depths(settings)
        for side, depth in depths.items():
            for i in range(depth):
                for path in _LINEARS[side]:
                    addresses += [tensors.get(f"{side}.{i}.{path}.{kind}") for kind in ("weight", "bias")]
        addresses += [own["output"] or target, tensors.get("output_bias")]
        for side in depths:
            addresses += [tensors[f"{path}.{kind}"] for path in _norms(settings, side) for kind in ("weight", "bias")]
        sizes = [
            *depths.values(),
            settings.d_model,
            settings.num_heads,
            settings.d_k,
            settings.d_v,
            settings.d_ff,
            settings.norm == "pre",
            ACTIVATIONS[settings.activation],
            self.vocabulary,
            settings.max_length,
            int8,
            max(2, settings.d_model - 2) if settings.positions == "marian" else settings.d_model,
        ]
        pointers = (c_void_p * len(addresses))(*(tensor.address if tensor else None for tensor in addresses))
        self._keep = keep
        self.handle = library.model_new((c_int64 * len(sizes))(*sizes), pointers)
        if not self.handle:
            raise StorageError("there is too little memory for the model")
        if isinstance(keep, mmap.mmap):  # the others are copied
            release(keep, [tensor for tensor in addresses[:4] if tensor])

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self.library.model_free(handle)


_ENDS = "feed_forward.inner", "feed_forward.outer"
_SELF = "self_attention.query_key_value", "self_attention.output"
_CROSS = "cross_attention.query", "cross_attention.output", "cross_attention.key_value"
_LINEARS = {"encoder": (*_SELF, *_ENDS), "decoder": (*_SELF, *_CROSS, *_ENDS)}  # in the order that engine.c reads
_NORMS = {"encoder": 2, "decoder": 3}  # of a layer


def _depths(settings: Settings) -> dict[str, int]:
    of = {"encoder": settings.encoder_layers, "decoder": settings.decoder_layers}
    return {side: depth or settings.num_layers for side, depth in of.items()}


def _norms(settings: Settings, side: str) -> list[str]:
    norms = [f"{side}.{i}.residuals.{j}.norm" for i in range(_depths(settings)[side]) for j in range(_NORMS[side])]
    return [*norms, f"{side}_norm"] if settings.norm == "pre" else norms


def expected_shapes(settings: Settings, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a model with so many target tokens."""
    d, q, v = settings.d_model, settings.num_heads * settings.d_k, settings.num_heads * settings.d_v
    linears = {
        "self_attention.query_key_value": (2 * q + v, d),
        "self_attention.output": (d, v),
        "cross_attention.query": (q, d),
        "cross_attention.key_value": (q + v, d),
        "cross_attention.output": (d, v),
        "feed_forward.inner": (settings.d_ff, d),
        "feed_forward.outer": (d, settings.d_ff),
    }
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (vocabulary, d)}
    if settings.source_vocabulary:
        shapes["own_embeddings.src.weight"] = (settings.source_vocabulary, d)
    if not settings.tied_output:
        shapes["own_embeddings.output.weight"] = (vocabulary, d)
    if settings.output_bias:
        shapes["output_bias"] = (vocabulary,)
    if settings.positions == "learned":
        shapes |= {f"{side}_positions.weight": (settings.max_length, d) for side in ("src", "tgt")}
    for side, depth in _depths(settings).items():
        for i in range(depth):
            for path in _LINEARS[side]:
                shapes[f"{side}.{i}.{path}.weight"] = linears[path]
                if settings.attention_bias or path in _ENDS:
                    shapes[f"{side}.{i}.{path}.bias"] = linears[path][:1]
        shapes |= {f"{path}.{kind}": (d,) for path in _norms(settings, side) for kind in ("weight", "bias")}
    return shapes
