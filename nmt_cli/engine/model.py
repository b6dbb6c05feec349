"""Models as the engine computes them: float32 weights from a file or from memory, packed once, shared by threads."""

import ctypes
import json
import mmap
from collections.abc import Mapping
from ctypes import POINTER, c_char, c_double, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from nmt_cli.engine import library
from nmt_cli.errors import DataError, StorageError

ACTIVATIONS = {"relu": 1, "swish": 2, "gelu": 3}  # as engine.c numbers them


class Request(ctypes.Structure):
    """A sentence to be searched, as engine.c describes it."""

    _fields_ = (
        ("ids", POINTER(c_int32)),
        ("prefix", POINTER(c_int32)),
        ("uniform", POINTER(c_double)),
        *((name, c_int64) for name in ("length", "prefix_length", "limit", "width", "best", "align", "top_k")),
        *((name, c_double) for name in ("alpha", "temperature", "top_p")),
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


class Tensor(NamedTuple):
    address: int  # of float32 numbers, row after row
    shape: tuple[int, ...]


class Settings(Protocol):
    """What the engine reads of a recipe's section `model`."""

    d_model: int
    num_heads: int
    d_k: int
    d_v: int
    d_ff: int
    norm: Any
    activation: Any
    max_length: int
    positions: Any


def map_weights(path: Path) -> tuple[dict[str, Tensor], mmap.mmap]:
    """Return the tensors of a safetensors file, which stays mapped into memory as long as the second value lives.

    DataError where the file is damaged or holds other numbers than float32. (The package safetensors returns arrays of
    NumPy, whose import takes longer than a translation.)
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        size = int.from_bytes(mapped[:8], "little")
        header = json.loads(mapped[8 : 8 + size])
        start, tensors = 8 + size, dict[str, Tensor]()
        base = ctypes.addressof(c_char.from_buffer(mapped)) + start
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            first, last = entry["data_offsets"]
            shape = tuple(entry["shape"])
            numbers = 1
            for length in shape:
                numbers *= length
            fits = first >= 0 and last == first + 4 * numbers and start + last <= len(mapped)
            if entry["dtype"] != "F32":
                raise DataError(f"{path} has weights of another type than F32: {name} is {entry['dtype']}")
            if not fits or min(shape, default=0) < 0:
                raise ValueError(f"the bytes of {name} are not there")
            tensors[name] = Tensor(base + first, shape)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is damaged or no safetensors file: {error}") from None
    return tensors, mapped


class Model:
    """A model's weights, packed for products in float32 or 8 bits; threads may share it.

    `keep` is what the addresses of `tensors` depend on; embeddings are read there as long as the model lives.
    """

    def __init__(
        self, library: library.Library, settings: Settings, tensors: Mapping[str, Tensor], keep: object, *, int8: bool
    ) -> None:
        self.library, self.longest = library, settings.max_length
        own = {side: tensors.get(f"own_embeddings.{side}.weight") for side in ("src", "output")}
        target = tensors["embedding.weight"]
        output = own["output"] or target
        self.vocabulary = output.shape[0]
        addresses = [
            own["src"] or target,
            target,
            tensors.get("src_positions.weight"),
            tensors.get("tgt_positions.weight"),
        ]
        depths = {side: _depth(tensors, side) for side in ("encoder", "decoder")}
        for side, depth in depths.items():
            for i in range(depth):
                for path in _LINEARS[side]:
                    addresses += [tensors.get(f"{side}.{i}.{path}.{kind}") for kind in ("weight", "bias")]
        addresses += [output, tensors.get("output_bias")]
        for side, depth in depths.items():
            norms = [f"{side}.{i}.residuals.{j}.norm" for i in range(depth) for j in range(_NORMS[side])]
            norms += [f"{side}_norm"] if settings.norm == "pre" else []
            addresses += [tensors[f"{path}.{kind}"] for path in norms for kind in ("weight", "bias")]
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
        if isinstance(keep, mmap.mmap):  # what was packed need not stay in memory; embeddings come back when read
            keep.madvise(mmap.MADV_DONTNEED)

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self.library.model_free(handle)


_ENDS = "feed_forward.inner", "feed_forward.outer"
_SELF = "self_attention.query_key_value", "self_attention.output"
_CROSS = "cross_attention.query", "cross_attention.output", "cross_attention.key_value"
_LINEARS = {"encoder": (*_SELF, *_ENDS), "decoder": (*_SELF, *_CROSS, *_ENDS)}  # in the order that engine.c reads
_NORMS = {"encoder": 2, "decoder": 3}  # of a layer


def _depth(tensors: Mapping[str, Tensor], side: str) -> int:
    return len({name.split(".")[1] for name in tensors if name.startswith(f"{side}.")})
