"""Write Marian's binary models, in float32 or in 8 bits as in Firefox's models."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

TEXT, FLOAT32, FIREFOX_INT8, MARIAN_INT8 = 0x101, 0x404, 0x4101, 0x10001
Item = tuple[int, tuple[int, ...], bytes]  # type, shape, data


def float_item(array: Any) -> Item:
    return FLOAT32, array.shape, np.ascontiguousarray(array, "<f4").tobytes()


def int8_item(array: Any, *, transposed: bool, kind: int = FIREFOX_INT8) -> Item:
    """Quantize a matrix with one multiplier, append the multiplier, and pad to a multiple of 256 bytes."""
    multiplier = np.float32(127 / max(1e-9, float(np.abs(array).max())))
    rounded = np.rint((array.T if transposed else array) * multiplier).clip(-127, 127).astype(np.int8)
    data = rounded.tobytes() + multiplier.tobytes()
    return kind, array.shape, data + b"\xa5" * (-len(data) % 256)  # Marian pads with uninitialized memory


def items_of(arrays: Mapping[str, Any], *, int8: bool = False, alphas: Mapping[str, float] | None = None) -> Any:
    """Return the arrays of a model.npz as items. With `int8`, matrices have 8 bits. `alphas` scale their inputs."""
    items = dict[str, Item]()
    for name, array in arrays.items():
        if name.startswith("special:"):
            items[name] = TEXT, array.shape, array.tobytes()
        elif int8 and array.ndim == 2 and min(array.shape) > 1:
            items[name] = int8_item(array, transposed=not name.endswith("Wemb"))
        else:
            items[name] = float_item(array)
    for name, alpha in (alphas or {}).items():
        items[f"{name}_QuantMultA"] = float_item(np.array([alpha], np.float32))
    return items


def write_items(path: Path, items: Mapping[str, Item]) -> Path:
    names = [name.encode() + b"\0" for name in items]
    parts = [struct.pack("<2Q", 1, len(items))]
    for name, (kind, shape, data) in zip(names, items.values(), strict=True):
        parts.append(struct.pack("<4Q", len(name), kind, len(shape), len(data)))
    parts += names
    parts += [struct.pack(f"<{len(shape)}i", *shape) for _, shape, _ in items.values()]
    padding = -(sum(map(len, parts)) + 8) % 256
    parts.append(struct.pack("<Q", padding) + bytes(padding))
    path.write_bytes(b"".join([*parts, *(data for *_, data in items.values())]))
    return path
