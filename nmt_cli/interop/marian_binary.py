"""Read Marian's binary models (.bin). A file may be untrusted, so its size limits how much memory reading it takes.

Layout, little-endian (marian-dev, src/common/binary.cpp):
- u64: version 1
- u64: number of items
- for each item, four u64: length of the name, type, number of dimensions, bytes of data
- all names, each terminated by NUL
- all shapes, as int32
- u64: number of padding bytes, followed by these bytes
- all data

Marian transposes 8-bit matrices, except embeddings: it stores the shape [inputs, outputs] as [outputs][inputs]. Each
8-bit matrix has a float32 multiplier, stored after the matrix: weight = byte / multiplier.
"""

import math
import struct
from pathlib import Path

import numpy as np

from nmt_cli.interop.formats import read_unpacked
from nmt_cli.interop.npz import TEXT_PREFIX, Array
from nmt_cli.system.errors import DataError, printable

MAX_ITEMS, MAX_NAME, MAX_DIMENSIONS = 10_000, 1000, 4
TEXT, FLOAT32 = 0x101, 0x404  # type numbers of items
# Type numbers of 8-bit items. The fork of Marian that makes Firefox's models uses the first number, and Marian itself
# uses the second one. The layout is the same.
INT8 = 0x4101, 0x10001
OTHER_TYPES = {0x202: "int16", 0x204: "float16", 0x408: "float64", 0x4102: "intgemm16", 0x10002: "intgemm16"}
EMBEDDING = "Wemb"  # suffix of the names of embedding matrices, which are not transposed


def read_items(file: Path) -> tuple[dict[str, Array], bool]:
    """Return the arrays of a binary model by name, and whether any of them are stored in 8 bits.

    Converts numbers to float32, and returns text as int8. Raises DataError if the file is damaged, or if the type of an
    item is not supported, such as float16 or an 8-bit layout for one kind of CPU.
    """
    data = read_unpacked(file)
    try:
        return _read(data)
    except (ValueError, struct.error) as error:
        raise DataError(f"{file} is damaged or not a model of Marian: {printable(error, 150)}") from None


def _read(data: bytes) -> tuple[dict[str, Array], bool]:
    version, count = struct.unpack_from("<2Q", data)
    if version != 1 or count > min(MAX_ITEMS, len(data) // 32):
        raise ValueError(f"its header claims version {version} and {count:,} items")
    headers = list(struct.iter_unpack("<4Q", data[16 : 16 + 32 * count]))
    at = 16 + 32 * count
    names = []
    for length, *_ in headers:
        if not 0 < length <= MAX_NAME:
            raise ValueError(f"the name of an item would have {length:,} bytes")
        names.append(data[at : at + length].rstrip(b"\0").decode())
        at += length
    shapes = []
    for _, _, dimensions, _ in headers:
        if dimensions > MAX_DIMENSIONS:
            raise ValueError(f"an item would have {dimensions:,} dimensions")
        shapes.append(struct.unpack_from(f"<{dimensions}i", data, at))
        at += 4 * dimensions
    at += 8 + struct.unpack_from("<Q", data, at)[0]
    if len({*names}) < len(names):
        raise ValueError("a name occurs twice")
    if at + sum(size for *_, size in headers) != len(data):
        raise ValueError(f"the sizes of its items do not add up to its {len(data):,} bytes")
    arrays = {}
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        arrays[name] = _array(name, kind, shape, data[at : at + size])
        at += size
    return arrays, any(kind in INT8 for _, kind, *_ in headers)


def _array(name: str, kind: int, shape: tuple[int, ...], data: bytes) -> Array:
    count = math.prod(shape)
    needed = count * (4 if kind == FLOAT32 else 1) + 4 * (kind in INT8)
    if min(shape, default=0) < 0 or needed > len(data):
        raise ValueError(f"{name} claims the shape {shape} in {len(data):,} bytes")
    if kind == TEXT and name.startswith(TEXT_PREFIX):
        return np.frombuffer(data, np.int8, count)
    if kind == FLOAT32:
        return np.frombuffer(data, "<f4", count).reshape(shape).astype(np.float32)
    if kind not in INT8:
        type_name = OTHER_TYPES.get(kind, "packed for one kind of CPU" if kind > 0xFFF else "unknown")
        raise ValueError(f"{name} has type {kind:#x} ({type_name}); only float32 and intgemm8 can be read")
    (multiplier,) = struct.unpack_from("<f", data, count)
    if not (math.isfinite(multiplier) and multiplier > 0):
        raise ValueError(f"{name} has the invalid multiplier {multiplier}")
    values = np.frombuffer(data, np.int8, count).astype(np.float32) / np.float32(multiplier)
    if name.endswith(EMBEDDING) or len(shape) != 2:
        return values.reshape(shape)
    return np.ascontiguousarray(values.reshape(shape[::-1]).T)
