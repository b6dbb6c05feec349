"""Write model.bin as CTranslate2 lays it out, in every version of the format."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli.interop.ctranslate2_binary import Binary, read_binary

TYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4, "uint16": 5}  # uint16: bfloat16


def name_bytes(name: str) -> bytes:
    return struct.pack("<H", len(name.encode()) + 1) + name.encode() + b"\0"


def binary_bytes(
    variables: Mapping[str, Any],
    aliases: Mapping[str, str] | None = None,
    version: int = 6,
    revision: int = 7,
    spec: str = "TransformerSpec",
) -> bytes:
    """Return a file with these arrays. Versions before 4 store the size and count of the numbers, not their type."""
    data = struct.pack("<I", version)
    if version >= 2:
        data += name_bytes(spec) + struct.pack("<I", revision)
    data += struct.pack("<I", len(variables))
    for name, value in variables.items():
        array = np.frombuffer(value.encode(), np.int8) if isinstance(value, str) else np.asarray(value)
        kind, size = (TYPES[array.dtype.name], array.nbytes) if version >= 4 else (array.dtype.itemsize, array.size)
        data += name_bytes(name) + struct.pack(f"<B{array.ndim}IBI", array.ndim, *array.shape, kind, size)
        data += array.tobytes()
    if version >= 3:
        data += struct.pack("<I", len(aliases or {}))
        data += b"".join(name_bytes(alias) + name_bytes(name) for alias, name in (aliases or {}).items())
    return data


def written(path: Path, variables: Mapping[str, Any], aliases: Mapping[str, str] | None = None, **more: Any) -> Binary:
    path.write_bytes(binary_bytes(variables, aliases, **more))
    return read_binary(path)
