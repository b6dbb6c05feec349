"""Read .npz archives. A file may be untrusted, so its size limits how much memory reading it takes."""

import math
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt_cli.system.errors import DataError, printable

MAX_EXPANSION = 4  # maximum ratio of the size of the arrays to the size of the file; weights hardly compress
UNREADABLE = OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error  # raised by zipfile and NumPy
TEXT_PREFIX = "special:"  # part of the names of Marian's text arrays

Array = npt.NDArray[Any]


def read_arrays(file: Path) -> dict[str, Array]:
    """Return the arrays of an .npz file by name, in float32 except for text.

    Nothing is unpickled. Raises DataError if the file is damaged, or if its arrays are much larger than the file.
    """
    arrays = dict[str, Array]()
    bytes_left = MAX_EXPANSION * file.stat().st_size
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                bytes_left -= member.file_size
                if bytes_left < 0 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(f"{member.filename} is too large or compressed in an unusual way")
                with archive.open(member) as stream:
                    arrays[member.filename.removesuffix(".npy")] = _read_array(stream, member)
    except UNREADABLE as error:
        raise DataError(f"{file} is damaged: {printable(error, 150)}") from None
    return arrays


def _read_array(stream: Any, member: zipfile.ZipInfo) -> Array:
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"{member.filename} has version {version} of the format .npy, not 1.0")
    try:
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    except (MemoryError, RecursionError, TokenError):  # raised by Python's parser
        raise ValueError(f"{member.filename} has no valid .npy header") from None
    size = math.prod(shape) * dtype.itemsize
    if dtype.kind not in "iuf" or min(shape, default=0) < 0 or stream.tell() + size != member.file_size:
        raise ValueError(f"{member.filename} claims the shape {shape} and type {dtype} in {member.file_size:,} bytes")
    data = stream.read(size + 1)  # reading past the end makes zipfile verify the checksum
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran_order else "C")
    return array if TEXT_PREFIX in member.filename else array.astype(np.float32)
