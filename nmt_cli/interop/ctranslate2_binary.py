"""Read CTranslate2's model.bin. A file may be untrusted, so its size limits the use of memory.

For the layout, see CTranslate2, src/models/model.cc (`Model::load`) and python/ctranslate2/specs/model_spec.py. All
integers are little-endian.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from nmt_cli.system.errors import DataError, printable

NEWEST = 6  # newest supported version of the format
TYPES = ["<f4", "<i1", "<i2", "<i4", "<f2", "bfloat16"]  # files store an index into this list
WIDTHS = [4, 1, 2, 4, 2, 2]  # bytes per number, for each of TYPES
MAX_RANK, MAX_NAME = 4, 512
MAX_VARIABLES = 100_000  # maximum number of variables, and of aliases; a model with 1,000 layers has fewer
INT16_SCALE = 1000.0  # scale of 16-bit weights in old files, which do not store the scale

Array = npt.NDArray[Any]


class Variable(NamedTuple):
    shape: tuple[int, ...]
    type: int  # index in TYPES
    offset: int  # position of the first byte in the file

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def is_integer(self) -> bool:
        return TYPES[self.type][1] == "i"


@dataclass(frozen=True)
class Binary:
    """The header of a model.bin, with the offsets of its variables."""

    path: Path
    version: int
    spec: str  # name of the architecture
    revision: int  # revision of the architecture
    variables: dict[str, Variable]  # aliases included

    def values(self, name: str) -> Array:
        """Return a variable in its stored type, except that bfloat16 becomes float32."""
        shape, kind, offset = self.variables[name]
        count = math.prod(shape)
        with self.path.open("rb") as file:
            file.seek(offset)
            data = file.read(count * WIDTHS[kind])
        if len(data) < count * WIDTHS[kind]:
            raise DataError(f"{self.path} was truncated while it was read")
        if TYPES[kind] == "bfloat16":
            array = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            array = np.frombuffer(data, TYPES[kind])
        return array.reshape(shape)

    def weights(self, name: str) -> Array:
        """Return a variable in float32. Divide 16-bit integers by one scale, and other integers by one per row."""
        array = self.values(name)
        if not self.variables[name].is_integer:
            return array.astype(np.float32)
        scale = self.scale(name)
        with np.errstate(all="ignore"):  # no warnings, because the importer refuses weights that are not finite
            return array.astype(np.float32) / scale.reshape(-1, *[1] * (array.ndim - 1))

    def scale(self, name: str) -> Array:
        """Return the scales of an integer variable. Each of its integers is a weight times a scale.

        If the file has no scale for 16-bit integers, return INT16_SCALE. Raise DataError if other integers have no
        scales, or if the scales do not fit the variable.
        """
        variable, scale = self.variables[name], self.variables.get(f"{name}_scale")
        if scale is None and TYPES[variable.type] == "<i2":
            return np.full(1, INT16_SCALE, np.float32)
        count = 1 if TYPES[variable.type] == "<i2" or not variable.shape else variable.shape[0]
        if scale is None or scale.is_integer or scale.elements != count:
            raise DataError(f"{self.path} is damaged: {printable(name, MAX_NAME)} has no scales that fit its integers")
        return self.values(f"{name}_scale").astype(np.float32).flatten()

    def number(self, name: str, default: float) -> float:
        """Return the numeric attribute with this name, or the default if there is none."""
        if (variable := self.variables.get(name)) is None:
            return default
        if variable.elements != 1:
            raise DataError(f"{self.path} is damaged: its attribute {printable(name, MAX_NAME)} is not a number")
        return float(self.values(name).reshape(()))

    def text(self, name: str, default: str) -> str:
        """Return the text attribute with this name, or the default if there is none."""
        variable = self.variables.get(name)
        if variable is None:
            return default
        if variable.elements > MAX_NAME or TYPES[variable.type] != "<i1":
            raise DataError(f"{self.path} is damaged: its attribute {printable(name, MAX_NAME)} is not text")
        return self.values(name).tobytes().decode("utf-8", "replace")


class _Reader:
    """Reads numbers and names. Raises ValueError if the file ends early or a value is invalid."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.size = size

    def numbers(self, code: str) -> tuple[int, ...]:
        form = f"<{code}"
        data = self.file.read(struct.calcsize(form))
        if len(data) < struct.calcsize(form):
            raise ValueError(f"it ends too early, at byte {self.size:,}")
        return struct.unpack(form, data)

    def number(self, code: str) -> int:
        return self.numbers(code)[0]

    def name(self) -> str:
        length = self.number("H")
        if not 1 <= length <= MAX_NAME:
            raise ValueError(f"a name has {length} bytes")
        *characters, end = self.numbers(f"{length}B")
        name = bytes(characters).decode()
        if end or not name.isprintable():
            raise ValueError(f"the name {name!r} is not valid")
        return name

    def count(self, what: str) -> int:
        count = self.number("I")
        if count > MAX_VARIABLES:
            raise ValueError(f"it would have {count:,} {what}, which is too many")
        return count


def read_binary(path: Path) -> Binary:
    """Return the header of a model.bin. Raise DataError if it is damaged, or if variables extend beyond the file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            return _read(_Reader(file, size), path)
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is damaged or not a model of CTranslate2: {printable(error, 200)}") from None


def _read(reader: _Reader, path: Path) -> Binary:
    version = reader.number("I")
    if not 1 <= version <= NEWEST:
        raise ValueError(f"its version is {version:,}, not 1 to {NEWEST}")
    spec, revision = "", 1
    if version >= 2:
        spec = reader.name()
        revision = reader.number("I")
    variables = dict[str, Variable]()
    for _ in range(reader.count("variables")):
        name = reader.name()
        if name in variables:
            raise ValueError(f"{name} occurs twice")
        variables[name] = _read_variable(reader, name, version)
    if version >= 3:
        for _ in range(reader.count("aliases")):
            alias, name = reader.name(), reader.name()
            if alias in variables or name not in variables:
                raise ValueError(f"{alias} cannot be an alias of {name}")
            variables[alias] = variables[name]
            if f"{name}_scale" in variables:
                variables.setdefault(f"{alias}_scale", variables[f"{name}_scale"])
    if reader.file.tell() != reader.size:
        raise ValueError(f"{reader.size - reader.file.tell():,} bytes belong to no variable")
    return Binary(path, version, spec, revision, variables)


def _read_variable(reader: _Reader, name: str, version: int) -> Variable:
    rank = reader.number("B")
    if rank > MAX_RANK:
        raise ValueError(f"{name} has {rank} dimensions")
    shape = reader.numbers(f"{rank}I")
    code = reader.number("B")
    size = reader.number("I")
    if version >= 4:
        if code >= len(TYPES):
            raise ValueError(f"{name} has the unknown type {code}")
    else:  # in older files, `code` is the number of bytes per element, and `size` is the number of elements
        if code not in (1, 2, 4):
            raise ValueError(f"{name} has numbers of {code} bytes")
        code = {4: 0, 1: 1, 2: 2}[code]
        size *= WIDTHS[code]
    offset = reader.file.tell()
    variable = Variable(shape, code, offset)
    if size != variable.elements * WIDTHS[code] or offset + size > reader.size:
        raise ValueError(f"the bytes of {name} are missing or do not fit its shape")
    reader.file.seek(offset + size)
    return variable
