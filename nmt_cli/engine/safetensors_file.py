"""Read safetensors files without NumPy, because importing NumPy takes longer than a translation.

Weights are read into memory, not mapped: if a mapped file is truncated or overwritten later, the process dies of SIGBUS
or its translations change.
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

MAX_HEADER_BYTES = 1 << 24
MAX_DIMENSIONS = 8
Entries = dict[str, tuple[int, tuple[int, ...]]]  # maps a tensor's name to its offset after the header and its shape


class Tensor(NamedTuple):
    address: int  # of row-major float32 numbers
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return 4 * math.prod(self.shape)


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor. Reads only the header. Raises DataError like `read_tensors`."""
    with path.open("rb") as file:
        _, entries = _header(file, path)
    return {name: shape for name, (_, shape) in entries.items()}


def read_tensors(path: Path) -> tuple[dict[str, Tensor], mmap.mmap]:
    """Return the tensors and the memory that holds them. Keep a reference to this memory while you use the tensors.

    Raises DataError if the file is damaged or contains numbers other than float32.
    """
    with path.open("rb") as file:
        data_bytes, entries = _header(file, path)
        # Private, because `release` cannot free shared memory.
        memory = mmap.mmap(-1, max(data_bytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if file.readinto(memory) < data_bytes:
            raise DataError(f"{path} was truncated while it was read")
    base = ctypes.addressof(c_char.from_buffer(memory))
    return {name: Tensor(base + first, shape) for name, (first, shape) in entries.items()}, memory


def release(memory: mmap.mmap, kept: Iterable[Tensor]) -> None:
    """Free the pages of `memory` that hold no tensor in `kept`. The other tensors must not be read afterwards."""
    base = ctypes.addressof(c_char.from_buffer(memory))
    spans = sorted((tensor.address - base, tensor.address - base + tensor.bytes) for tensor in kept)
    end = 0
    for first, last in [*spans, (len(memory), len(memory))]:
        start = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        if (length := first // mmap.PAGESIZE * mmap.PAGESIZE - start) > 0:
            memory.madvise(mmap.MADV_DONTNEED, start, length)
        end = max(end, last)


def _header(file: BinaryIO, path: Path) -> tuple[int, Entries]:
    """Read a header. Return the number of bytes after it, and each tensor's offset in these bytes and its shape."""
    try:
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > MAX_HEADER_BYTES:
            raise ValueError(f"its header would have more than {MAX_HEADER_BYTES:,} bytes")
        header = json.loads(file.read(header_bytes), object_pairs_hook=_unique)
        data_bytes = file.seek(0, 2) - file.seek(8 + header_bytes)
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        spans = sorted((_span(name, entry), name) for name, entry in tensors.items())
        end, entries = 0, Entries()
        for (first, last, shape), name in spans:
            if tensors[name]["dtype"] != "F32":
                what = printable(f"{name} is {tensors[name]['dtype']}", 100)
                raise DataError(f"{path} has weights that are not F32: {what}")
            if first != end or last != first + 4 * math.prod(shape) or last > data_bytes:
                raise ValueError(f"the offsets or the shape of {name} are wrong")
            end, entries[name] = last, (first, shape)
        if end != data_bytes:
            raise ValueError(f"{data_bytes - end:,} bytes belong to no tensor")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = printable(error, 200)
        raise DataError(f"{path} is damaged or not a safetensors file: {what}") from None
    return data_bytes, entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a name occurs twice")
    return values


def _span(name: str, entry: Any) -> tuple[int, int, tuple[int, ...]]:
    """Return the start, the end and the shape in a header's entry. Raises ValueError if they are not valid sizes."""
    offsets, shape = entry["data_offsets"], entry["shape"]
    if len(offsets) != 2 or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"the entry of {name} does not describe a tensor")
    if any(type(number) is not int or not 0 <= number < 1 << 62 for number in (*offsets, *shape)):
        raise ValueError(f"the offsets or the shape of {name} are wrong")
    return *offsets, tuple(shape)
