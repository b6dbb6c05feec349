"""Weights, archives and JSON from untrusted sources are refused if damaged, without taking much memory."""

import json
import resource
import struct
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_model import make_model

from nmt_cli.engine import safetensors_file
from nmt_cli.interop.npz import read_arrays
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError

DATA = Path(__file__).parents[1] / "data" / "marian"


HEADERS = {
    "a float in the shape": b'{"x":{"dtype":"F32","shape":[6.0],"data_offsets":[0,24]}}',
    "a float as offset": b'{"x":{"dtype":"F32","shape":[6],"data_offsets":[0.0,24]}}',
    "true as offset": b'{"x":{"dtype":"F32","shape":[6],"data_offsets":[false,24]}}',
    "nan as offset": b'{"x":{"dtype":"F32","shape":[6],"data_offsets":[NaN,24]}}',
    "text as shape": b'{"x":{"dtype":"F32","shape":"6","data_offsets":[0,24]}}',
    "huge sizes whose product is right": b'{"x":{"dtype":"F32","shape":[%d,0],"data_offsets":[0,0]}}' % (1 << 70),
    "many dimensions": b'{"x":{"dtype":"F32","shape":[6%s],"data_offsets":[0,24]}}' % (b",1" * 100_000),
    "digits": b'{"x":{"dtype":"F32","shape":[%s],"data_offsets":[0,24]}}' % (b"9" * 5000),
    "tensors that overlap": b'{"x":{"dtype":"F32","shape":[6],"data_offsets":[0,24]},'
    b'"y":{"dtype":"F32","shape":[3],"data_offsets":[8,20]}}',
    "a name twice": b'{"x":{"dtype":"F32","shape":[6],"data_offsets":[0,24]},'
    b'"x":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}}',
    "a gap": b'{"x":{"dtype":"F32","shape":[5],"data_offsets":[4,24]}}',
    "bytes of no tensor": b'{"x":{"dtype":"F32","shape":[5],"data_offsets":[0,20]}}',
    "a type that is a list": b'{"x":{"dtype":["F32"],"shape":[6],"data_offsets":[0,24]}}',
    "control characters in a name": b'{"\\u001b[2J":{"dtype":"F32","shape":[9],"data_offsets":[0,24]}}',
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
def test_a_header_of_weights_must_describe_the_bytes(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "w").write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))
    for act in (safetensors_file.read_tensors, safetensors_file.read_shapes):
        with pytest.raises(DataError) as caught:
            act(tmp_path / "w")
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 600


def test_a_header_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "w").open("wb") as file:
        file.write((1 << 32).to_bytes(8, "little"))
        file.truncate(1 << 33)  # sparse, so it takes no space
    with pytest.raises(DataError, match="header would have more than"):
        safetensors_file.read_shapes(tmp_path / "w")


def archive(
    place: Path, members: dict[str, bytes], claimed: dict[str, int] | None = None, compress: bool = False
) -> Path:
    """Write an .npz file that claims the sizes in `claimed` for its members."""
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(place / "model.npz", "w", kind) as file:
        for name, data in members.items():
            file.writestr(name, data)
    raw = bytearray((place / "model.npz").read_bytes())
    for name, size in (claimed or {}).items():
        entry = raw.index(b"PK\1\2")
        while raw[entry + 46 : entry + 46 + len(name)] != name.encode():
            entry = raw.index(b"PK\1\2", entry + 1)
        raw[entry + 24 : entry + 28] = struct.pack("<I", size)
    (place / "model.npz").write_bytes(raw)
    return place / "model.npz"


def array_file(shape: str, kind: str = "<f4", data: bytes = b"") -> bytes:
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + data


ARRAYS = {
    "8 GB": array_file("(2147483648,)"),
    "a negative size": array_file("(-1,)"),
    "a float": array_file("(2.0,)"),
    "a huge size": array_file(f"({10**30},)"),
    "objects": array_file("(1,)", "|O", b"cos\nsystem\n(S'touch pwned'\ntR."),
    "text": array_file("(1,)", "<U1", bytes(4)),
    "complex numbers": array_file("(1,)", "<c8", bytes(8)),
    "records": array_file("(1,)", "|V4", bytes(4)),
    "fewer bytes": array_file("(9,)", data=bytes(8)),
    "more bytes": array_file("(1,)", data=bytes(8)),
    "another header": b"\x93NUMPY\1\0" + (9000).to_bytes(2, "little") + b"-" * 9000,
    "an open header": b"\x93NUMPY\1\0" + (9000).to_bytes(2, "little") + b"(" * 9000,
    "a chain": b"\x93NUMPY\1\0" + (8001).to_bytes(2, "little") + b"x." * 4000 + b"x",
    "no array": b"nothing",
    "nothing": b"",
}


@pytest.mark.parametrize("data", ARRAYS.values(), ids=ARRAYS.keys())
def test_a_damaged_array_in_an_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    file = archive(tmp_path, {"x.npy": data})
    with pytest.raises(DataError, match=r"model\.npz is damaged") as caught:
        read_arrays(file)
    assert str(caught.value).isprintable()
    assert not Path("pwned").exists()


def test_an_archive_of_gigabytes_is_refused(tmp_path: Path) -> None:
    whole = array_file("(6,)", data=bytes(24))
    for file in (
        archive(tmp_path, {"x.npy": array_file("(1073741800,)")}, {"x.npy": 0xFFFFFFF0}),
        archive(tmp_path, {"x.npy": whole}, {"x.npy": 0xFFFFFFF0}),
    ):
        with pytest.raises(DataError, match="is too large or compressed in an unusual way"):
            read_arrays(file)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bomb = archive(tmp_path, {"x.npy": array_file("(25000000,)", data=bytes(100_000_000))}, compress=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="is too large or compressed in an unusual way"):
        read_arrays(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss <= max(peak, before) + 50_000
    zeros = {f"{i}.npy": array_file("(250000,)", data=bytes(1_000_000)) for i in range(4)}
    weights = np.random.default_rng(1).bytes(1_000_000)
    several = archive(tmp_path, {"w.npy": array_file("(250000,)", data=weights), **zeros}, compress=True)
    with pytest.raises(DataError, match="is too large or compressed in an unusual way"):  # its members together
        read_arrays(several)
    assert [*read_arrays(archive(tmp_path, {"../x.npy": whole, "/y.npy": whole}))] == [
        "../x",
        "/y",
    ]  # names of tensors, not paths
    real = read_arrays(DATA / "post" / "model.npz")
    with np.load(DATA / "post" / "model.npz") as expected:
        assert {name: array.tolist() for name, array in expected.items()} == {n: a.tolist() for n, a in real.items()}


def test_json_beyond_the_limits_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for text in (
        '{"a":' * 200_000,
        '{"a":' + "9" * 5000 + "}",
        "[]",
        '{"a": 1',
        "\ud800".encode("utf-8", "surrogatepass"),
    ):
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(DataError, match=r"config\.json is damaged"):
            artefact.read_json(file)
    with file.open("wb") as large:
        large.truncate(artefact.MAX_JSON_BYTES + 1)
    with pytest.raises(DataError, match="too large"):
        artefact.read_json(file)


def test_truncating_or_overwriting_weights_in_use_changes_nothing(tmp_path: Path) -> None:
    """If the file were mapped, truncation would end the process by SIGBUS, and zeros would change translations."""
    place = make_model(tmp_path / "tiny", "model.d_model=64", "model.max_length=64")
    code = f"""
        import os
        from pathlib import Path
        from nmt_cli import Translator
        file = Path({str(place / "model.safetensors")!r})
        with Translator({str(place)!r}, workers=1, precision="fp32") as translator:
            before = [each.text for each in translator.translate(["der Hund ist rot"] * 2 + ["die Katze"])]
            size = file.stat().st_size
            os.truncate(file, 0)
            cut = [each.text for each in translator.translate(["der Hund ist rot"] * 2 + ["die Katze"])]
            os.truncate(file, size)  # zeros
            zeros = [each.text for each in translator.translate(["der Hund ist rot"] * 2 + ["die Katze"])]
        print(before == cut == zeros, any(before))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr


def test_only_embeddings_stay_in_memory_once_weights_are_packed(tmp_path: Path) -> None:
    names = {"a": 3 * 4096, "embedding": 2 * 4096, "z": 5 * 4096}
    header, start = dict[str, Any](), 0
    for name, numbers in names.items():
        header[name] = {"dtype": "F32", "shape": [numbers], "data_offsets": [start, start + 4 * numbers]}
        start += 4 * numbers
    text = json.dumps(header).encode()
    (tmp_path / "w").write_bytes(len(text).to_bytes(8, "little") + text + b"\1" * start)
    tensors, memory = safetensors_file.read_tensors(tmp_path / "w")
    safetensors_file.release(memory, [tensors["embedding"], tensors["embedding"]])
    first, last = 12 * 4096, 20 * 4096
    assert memory[first:last] == b"\1" * (last - first)
    assert memory[:first].count(1) + memory[last:].count(1) == 0
