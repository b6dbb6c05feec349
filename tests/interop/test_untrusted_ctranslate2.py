"""Damaged models of CTranslate2 and Argos are refused with one line, and nothing is written."""

import random
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from nmt_cli.interop import ctranslate2_files
from nmt_cli.interop.argos_files import read_argos
from nmt_cli.interop.ctranslate2_binary import read_binary
from nmt_cli.interop.ctranslate2_files import read_ctranslate2
from nmt_cli.interop.importing import import_model
from nmt_cli.system.errors import DataError, MissingError

pytest.importorskip("ctranslate2")

from opennmt_models import argos_file, argos_folder, opennmt_model


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return opennmt_model(tmp_path_factory.mktemp("theirs") / "model", "int8")


def refuses(read, path: Path) -> bool:
    """Return whether a damaged model is refused in one line, instead of read. Other exceptions fail the test."""
    message = ""
    try:
        read(path)
    except (DataError, MissingError) as error:
        message = str(error)
    assert message.isprintable()
    assert len(message) < 600
    return bool(message)


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Cut a file, flip bits, remove or insert bytes, or write an extreme number."""
    changed = bytearray(data)
    start = draw.randrange(len(data))
    kind = draw.randrange(5)
    if kind == 0:
        del changed[start:]
    elif kind == 1:
        changed[start] ^= 1 << draw.randrange(8)
    elif kind == 2:
        del changed[start : start + draw.choice([1, 4, 100])]
    elif kind == 3:
        changed[start:start] = draw.randbytes(draw.choice([1, 4, 64]))
    else:
        number = draw.choice([1 << 40, (1 << 64) - 1, 0, 1 << 31, (1 << 32) - 1])
        changed[start : start + 4] = struct.pack("<Q", number)[:4]
    return bytes(changed)


def test_damaged_weights_are_refused_or_read(theirs: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(theirs, tmp_path / "model")
    data, draw = (theirs / "model.bin").read_bytes(), random.Random(1)
    refused = 0
    for _ in range(120):
        (directory / "model.bin").write_bytes(damaged(data, draw))
        refused += refuses(lambda path: read_binary(path) and read_ctranslate2(path.parent), directory / "model.bin")
    assert refused > 60  # in the other files, only weights have changed


def test_damaged_packages_are_refused_or_read(theirs: Path, tmp_path: Path) -> None:
    folder = argos_folder(theirs, tmp_path / "translate-en_de-1_0")
    data, draw = argos_file(folder, tmp_path / "whole.argosmodel").read_bytes(), random.Random(2)
    shutil.rmtree(folder)
    (tmp_path / "whole.argosmodel").unlink()
    refused = sum(
        refuses(read_argos, path)
        for _ in range(80)
        if (path := tmp_path / "x.argosmodel").write_bytes(damaged(data, draw)) >= 0
    )
    assert refused > 60
    assert [path.name for path in tmp_path.iterdir()] == ["x.argosmodel"]


def entry(name: bytes, shape: list[int], kind: int, size: int) -> bytes:
    text = struct.pack("<H", len(name) + 1) + name + b"\0"
    return text + struct.pack(f"<B{len(shape)}IBI", len(shape), *shape, kind, size)


START = struct.pack("<IH", 6, 16) + b"TransformerSpec\0" + struct.pack("<I", 7)
HEADERS = {
    "2^40 numbers": START + struct.pack("<I", 1) + entry(b"a", [1 << 20, 1 << 20], 1, 0),
    "a size that does not fit the shape": START + struct.pack("<I", 1) + entry(b"a", [2], 0, 4) + bytes(4),
    "4 GB of variables": START + struct.pack("<I", (1 << 32) - 1),
    "200 dimensions": START + struct.pack("<I", 1) + entry(b"a", [1] * 200, 0, 4) + bytes(4),
    "an unknown type": START + struct.pack("<I", 1) + entry(b"a", [], 77, 4) + bytes(4),
    "a name twice": START + struct.pack("<I", 2) + (entry(b"a", [], 1, 1) + b"\1") * 2 + bytes(4),
    "an alias of itself": START + struct.pack("<II", 0, 1) + b"\2\0a\0\2\0a\0",
    "control characters in a name": START + struct.pack("<I", 1) + entry(b"\x1b[2J", [], 1, 1) + bytes(5),
    "a name without an end": START + struct.pack("<IH", 1, 3) + b"abc",
    "version 9": struct.pack("<I", 9),
    "nothing": b"",
}


@pytest.mark.parametrize("data", HEADERS.values(), ids=HEADERS.keys())
def test_a_header_that_lies_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.bin").write_bytes(data)
    assert refuses(read_binary, tmp_path / "model.bin")


@pytest.mark.parametrize(
    ("name", "number"), [("decoder/alignment_layer", -112), ("decoder/alignment_heads", 999), ("decoder/num_heads", 5)]
)
def test_attributes_out_of_range_are_refused(theirs: Path, tmp_path: Path, name: str, number: int) -> None:
    """CTranslate2 would read beyond its arrays."""
    directory = shutil.copytree(theirs, tmp_path / "model")
    data, offset = (
        bytearray((theirs / "model.bin").read_bytes()),
        read_binary(theirs / "model.bin").variables[name].offset,
    )
    data[offset : offset + 2] = struct.pack("<h", number)
    (directory / "model.bin").write_bytes(data)
    assert refuses(read_ctranslate2, directory)


def test_weights_that_are_not_finite_are_refused(theirs: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(theirs, tmp_path / "model")
    binary = read_binary(directory / "model.bin")
    data = bytearray((theirs / "model.bin").read_bytes())
    for number in (float("nan"), float("inf"), 0.0):
        offset = binary.variables["encoder/layer_0/ffn/linear_0/weight_scale"].offset
        data[offset : offset + 4] = np.float32(number).tobytes()
        (directory / "model.bin").write_bytes(data)
        changed = number == float("inf")  # an infinite scale makes weights of zero, which are read
        assert refuses(read_ctranslate2, directory) != changed


def test_layers_that_share_their_weights_cannot_fill_the_memory(
    theirs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file could use one matrix in a thousand layers. These layers are tiny, so the test lowers the limit."""
    monkeypatch.setattr(ctranslate2_files, "MAX_EXPANSION", 1)
    assert not refuses(read_ctranslate2, theirs)
    directory = shutil.copytree(theirs, tmp_path / "model")
    binary = read_binary(directory / "model.bin")
    layer = [name for name in binary.variables if name.startswith("encoder/layer_0/") and "_scale" not in name]
    aliases = [(name.replace("layer_0", f"layer_{i}"), name) for i in range(2, 400) for name in layer]
    data = (theirs / "model.bin").read_bytes()
    end = data.rindex(b"decoder/projection/weight\0") - 6  # end of the variables; the number of aliases follows
    texts = b"".join(struct.pack("<H", len(text) + 1) + text.encode() + b"\0" for pair in aliases for text in pair)
    old = struct.unpack_from("<I", data, end)[0]
    (directory / "model.bin").write_bytes(data[:end] + struct.pack("<I", old + len(aliases)) + data[end + 4 :] + texts)
    with pytest.raises(DataError, match="share weights"):
        read_ctranslate2(directory)


@pytest.mark.parametrize("name", ["../../escaped", "/escaped", "a\\..\\escaped", "x/../../escaped", "\x1b[2J"])
def test_a_member_outside_the_package_is_refused(theirs: Path, tmp_path: Path, name: str) -> None:
    folder = argos_folder(theirs, tmp_path / "inner" / "translate-en_de-1_0")
    file = argos_file(folder, tmp_path / "inner" / "x.argosmodel", **{name: b"escaped"})
    with pytest.raises(DataError, match="a file with the unsafe name"):
        import_model(file, tmp_path / "inner" / "out")
    assert not list(tmp_path.rglob("*escaped*"))


def test_zip_bombs_are_refused_or_left_unread(theirs: Path, tmp_path: Path) -> None:
    folder = argos_folder(theirs, tmp_path / "translate-en_de-1_0")
    unread = argos_file(folder, tmp_path / "x.argosmodel", **{"translate-en_de-1_0/stanza/bomb": bytes(20_000_000)})
    assert not refuses(read_argos, unread)
    (folder / "model" / "source_vocabulary.json").write_bytes(b"[" * 35_000_000)
    assert refuses(read_argos, argos_file(folder, tmp_path / "y.argosmodel"))
    with zipfile.ZipFile(tmp_path / "z.argosmodel", "w") as archive:
        for i in range(20_000):
            archive.writestr(f"translate-en_de-1_0/{i}", b"")
    assert refuses(read_argos, tmp_path / "z.argosmodel")
