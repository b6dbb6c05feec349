"""Files of safetensors, read without NumPy, whose import takes longer than a translation.

Weights are read into memory and not mapped: a file that is cut or overwritten later changes nothing, whereas a mapped
one would end the process by SIGBUS, or change its translations.
"""

import ctypes
import json
import math
import mmap
from collections.abc import Iterable
from ctypes import c_char
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from nmt_cli.system.errors import DataError, printable

MOST_HEADER_BYTES = 1 << 24
MOST_DIMENSIONS = 8
Places = dict[str, tuple[int, tuple[int, ...]]]  # by name: the first byte after the header, and the shape


class Tensor(NamedTuple):
    address: int  # of float32 numbers, row after row
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return 4 * math.prod(self.shape)


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor, from the header alone. DataError as of `read`."""
    with path.open("rb") as file:
        _, places = _header(file, path)
    return {name: shape for name, (_, shape) in places.items()}


def read(path: Path) -> tuple[dict[str, Tensor], mmap.mmap]:
    """Return the tensors, and the memory that holds them as long as it lives.

    DataError where the file is damaged or holds other numbers than float32.
    """
    with path.open("rb") as file:
        size, places = _header(file, path)
        memory = mmap.mmap(-1, max(size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # of shared memory none is released
        if file.readinto(memory) < size:
            raise DataError(f"{path} was cut while it was read")
    base = ctypes.addressof(c_char.from_buffer(memory))
    return {name: Tensor(base + first, shape) for name, (first, shape) in places.items()}, memory


def release(memory: mmap.mmap, kept: Iterable[Tensor]) -> None:
    """Give back the memory of all tensors of a file but these."""
    base = ctypes.addressof(c_char.from_buffer(memory))
    spans = sorted((tensor.address - base, tensor.address - base + tensor.bytes) for tensor in kept)
    end = 0
    for first, last in [*spans, (len(memory), len(memory))]:
        start = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        if (length := first // mmap.PAGESIZE * mmap.PAGESIZE - start) > 0:
            memory.madvise(mmap.MADV_DONTNEED, start, length)
        end = max(end, last)


def _header(file: BinaryIO, path: Path) -> tuple[int, Places]:
    """Read a header; return how many bytes follow it, and where in them the tensors lie."""
    try:
        size = int.from_bytes(file.read(8), "little")
        if size > MOST_HEADER_BYTES:
            raise ValueError(f"its header would have more than {MOST_HEADER_BYTES:,} bytes")
        header = json.loads(file.read(size), object_pairs_hook=_unique)
        left = file.seek(0, 2) - file.seek(8 + size)
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        spans = sorted((_place(name, entry), name) for name, entry in tensors.items())
        end, places = 0, Places()
        for (first, last, shape), name in spans:
            if tensors[name]["dtype"] != "F32":
                what = printable(f"{name} is {tensors[name]['dtype']}", 100)
                raise DataError(f"{path} has weights of another type than F32: {what}")
            if first != end or last != first + 4 * math.prod(shape) or last > left:
                raise ValueError(f"the bytes of {name} are not there")
            end, places[name] = last, (first, shape)
        if end != left:
            raise ValueError(f"{left - end:,} bytes belong to no tensor")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = printable(error, 200)
        raise DataError(f"{path} is damaged or no safetensors file: {what}") from None
    return left, places


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name occurs twice")
    return values


def _place(name: str, entry: Any) -> tuple[int, int, tuple[int, ...]]:
    """Return the offsets and the shape of a header's entry; ValueError where they are no sizes."""
    offsets, shape = entry["data_offsets"], entry["shape"]
    if len(offsets) != 2 or len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"the entry of {name} is no tensor's")
    if any(type(number) is not int or not 0 <= number < 1 << 62 for number in (*offsets, *shape)):
        raise ValueError(f"the bytes of {name} are not there")
    return *offsets, tuple(shape)
