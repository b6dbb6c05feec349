"""Pass a model's float32 weights to the compiled engine, which packs them once for all threads."""

import ctypes
import mmap
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_void_p

from nmt_cli.engine import library
from nmt_cli.engine.layout import Settings, depths, differences, matrices, norms, tensor_shapes
from nmt_cli.engine.safetensors_file import Tensor, release
from nmt_cli.system.errors import DataError, StorageError

ACTIVATIONS = {"relu": 1, "swish": 2, "gelu": 3}  # numbers of the activation functions in engine.c
READ_IN_PLACE = 4  # engine.c reads the first four of `_in_order` in place, and copies the others


class Request(ctypes.Structure):
    """A sentence to translate. engine.c describes these fields."""

    _fields_ = (
        ("ids", POINTER(c_int32)),
        ("prefix", POINTER(c_int32)),
        ("uniform", POINTER(c_double)),
        *((name, c_int64) for name in ("length", "prefix_length", "limit", "width", "best")),
        *((name, c_int64) for name in ("align", "top_k", "background")),
        *((name, c_double) for name in ("alpha", "offset", "temperature", "top_p")),
        *((name, POINTER(c_int32)) for name in ("tokens", "parents", "fails", "gains", "sizes")),
        ("begins", c_char_p),
        *((name, c_int64) for name in ("nodes", "terms")),
        ("listed", POINTER(c_int32)),
        ("listed_count", c_int64),
    )


_INTS = POINTER(c_int32)
SIGNATURES: library.Signatures = {
    "model_new": (c_void_p, [POINTER(c_int64), POINTER(c_void_p)]),
    "model_free": (None, [c_void_p]),
    "team_new": (c_void_p, [c_int64]),
    "expect_search": (None, [c_void_p]),
    "team_close": (None, [c_void_p]),
    "help": (None, [c_void_p, c_int64]),
    "helped": (c_int64, [c_void_p]),
    "search_new": (c_void_p, [POINTER(c_void_p), c_int64, c_int64, c_void_p]),
    "search_free": (None, [c_void_p]),
    "enter": (c_int64, [c_void_p, POINTER(Request), _INTS, c_int64]),
    "run": (c_int64, [c_void_p, c_int64, _INTS]),
    "found": (c_int64, [c_void_p, c_int64]),
    "hypothesis": (c_int64, [c_void_p, c_int64, c_int64, _INTS, POINTER(c_double), _INTS, POINTER(c_double)]),
    "leave": (None, [c_void_p, c_int64]),
}


class Model:
    """A model's weights, packed for matrix products in float32 or 8 bits.

    The engine reads the embeddings directly from the memory of `tensors`, so the model keeps a reference to `owner`,
    which owns that memory. If `owner` is an mmap, the memory of all tensors except the embeddings and position tables
    is freed after packing. Raises DataError if a tensor is missing or its shape contradicts the settings, so that the
    engine never reads past the end of a tensor, and StorageError if memory runs out.
    """

    def __init__(
        self, library: library.Library, settings: Settings, tensors: Mapping[str, Tensor], owner: object, *, int8: bool
    ) -> None:
        self.library, self.longest = library, settings.max_length
        self.source_eos = settings.source_eos
        embedding = tensors.get("embedding.weight")
        self.vocabulary = embedding.shape[0] if embedding and embedding.shape else 0
        expected = tensor_shapes(settings, self.vocabulary)
        found = {name: tensors[name].shape for name in expected if name in tensors}
        for difference in differences(found, expected):
            raise DataError(f"the weights do not fit the model's settings: {difference}")
        sizes = [  # in the order of the first fields of Model in engine.c
            *settings.depths,
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
            settings.decoder_cell == "ssru",
        ]
        ordered = _in_order(settings, tensors)
        pointers = (c_void_p * len(ordered))(*(tensor.address if tensor else None for tensor in ordered))
        self._owner = owner
        self.handle = library.model_new((c_int64 * len(sizes))(*sizes), pointers)
        if not self.handle:
            raise StorageError("there is not enough memory for the model")
        if isinstance(owner, mmap.mmap):
            release(owner, [tensor for tensor in ordered[:READ_IN_PLACE] if tensor])

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self.library.model_free(handle)


def _in_order(settings: Settings, tensors: Mapping[str, Tensor]) -> list[Tensor | None]:
    """Return the tensors in the order that engine.c expects, with None for each missing tensor."""
    target = tensors["embedding.weight"]
    ordered = [
        tensors.get("own_embeddings.src.weight", target),
        target,
        tensors.get("src_positions.weight"),
        tensors.get("tgt_positions.weight"),
    ]
    for side, layers in depths(settings).items():
        for i in range(layers):
            for path in matrices(settings, side):
                ordered += [tensors.get(f"{side}.{i}.{path}.{kind}") for kind in ("weight", "bias")]
    ordered += [tensors.get("own_embeddings.output.weight", target), tensors.get("output_bias")]
    for side in depths(settings):
        ordered += [tensors[f"{name}.{kind}"] for name in norms(settings, side) for kind in ("weight", "bias")]
    return ordered
