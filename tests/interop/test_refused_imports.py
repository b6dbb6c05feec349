"""Imports of damaged models end with one line on stderr, and leave no files."""

import json
import math
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import binary_marian
import numpy as np
import pytest
from in_process import run_nmt

from nmt_cli.interop import formats
from nmt_cli.interop.ctranslate2_binary import read_binary
from nmt_cli.interop.packages import import_package
from nmt_cli.interop.verification import differences_of

pytest.importorskip("ctranslate2")

from binary_ctranslate2 import written
from opennmt_models import argos_file, argos_folder, opennmt_model

DATA = Path(__file__).parents[1] / "data" / "marian" / "ssru"
FIREFOX = "model.ende.intgemm.alphas.bin"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return opennmt_model(tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    """A CTranslate2 model directory that a test may damage."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


@pytest.fixture
def firefox(tmp_path: Path) -> Path:
    """A Firefox model directory that a test may damage."""
    directory = tmp_path / "firefox"
    directory.mkdir()
    with np.load(DATA / "model.npz") as arrays:
        items = binary_marian.items_of(dict(arrays), int8=True)
    binary_marian.write_items(directory / FIREFOX, items)
    shutil.copy(DATA / "vocab.spm", directory / "vocab.ende.spm")
    return directory


def refusal(directory: Path, command: str = "import", code: int = 65) -> str:
    """Import or use a damaged model, and return the line on stderr."""
    out = directory.parent / "out"
    words = ["--out", out] if command == "import" else ["--input", "/dev/null", "--model"]
    found, stdout, stderr = run_nmt(command, *words, directory)
    assert (found, stdout, stderr.count("\n")) == (code, "", 1), stderr
    assert stderr.startswith(f"nmt {command}: error: ")
    assert not out.exists()
    assert not list(directory.parent.glob(".tmp-nmt-*"))
    return stderr


def change_pieces(file: Path, change: Callable[[Any], object]) -> None:
    """Change the tokens of a SentencePiece model."""
    model = import_package("sentencepiece.sentencepiece_model_pb2").ModelProto.FromString(file.read_bytes())
    change(model.pieces)
    file.write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda pieces: pieces.add().CopyFrom(pieces[9]), "is already defined"),
        (lambda pieces: setattr(pieces[0], "type", 1), "unk is not defined"),
        (lambda pieces: setattr(pieces[9], "piece", ""), "piece must not be empty"),
    ],
)
def test_a_tokenizer_that_sentencepiece_cannot_read_is_refused(model: Path, change: Any, reason: str) -> None:
    """Our own tokenizer takes its tokens from the vocabulary, so it would be readable although the file is not."""
    change_pieces(model / "sentencepiece.model", change)
    assert reason in refusal(model)


def test_a_refusal_names_the_model_instead_of_temporary_files(model: Path, tmp_path: Path) -> None:
    spm = import_package("sentencepiece.sentencepiece_model_pb2").ModelProto.FromString(
        (model / "sentencepiece.model").read_bytes()
    )
    spm.normalizer_spec.precompiled_charsmap = b"\xff\xff\xff\xffdamaged"
    (model / "sentencepiece.model").write_bytes(spm.SerializeToString())
    assert f"{model}: tokenizer.model is not a SentencePiece model" in refusal(model)
    (model / "config.json").write_text("[]")
    package = argos_file(argos_folder(model, tmp_path / "package"), tmp_path / "en_de.argosmodel")
    assert f"error: {package}/model/config.json is damaged" in refusal(package)


def test_a_token_must_be_utf_8(model: Path, firefox: Path) -> None:
    for file in (model / "sentencepiece.model", firefox / "vocab.ende.spm"):
        file.write_bytes(file.read_bytes().replace("\u2581".encode(), b"\xff\xfe\xfd", 1))
        assert f"{file} is damaged: a token is not UTF-8" in refusal(file.parent)


@pytest.mark.parametrize("text", [b"", b"no tab\n", b"\xff\xfe\t\n", b"nothing\tnothing\n"])
def test_a_damaged_vocabulary_map_leaves_no_model(model: Path, text: bytes) -> None:
    """CTranslate2 never gets the map, because an empty map would crash it."""
    (model / "vmap.txt").write_bytes(text)
    assert "vmap.txt" in refusal(model)


@pytest.mark.parametrize("number", [math.nan, -math.inf, math.inf, -1.0])
def test_an_impossible_number_of_heads_is_refused(model: Path, number: float) -> None:
    binary = read_binary(model / "model.bin")
    variables = {name: binary.values(name) for name in binary.variables}
    written(model / "model.bin", variables | {"decoder/num_heads": np.float32(number)})
    refusal(model)


def test_weights_that_overflow_are_refused(model: Path) -> None:
    """The weights are finite, but the log-probabilities are not."""
    binary = read_binary(model / "model.bin")
    variables = {name: binary.values(name) for name in binary.variables}
    for name in ("encoder/layer_norm/gamma", "encoder/layer_norm/beta"):
        variables[name] = np.full_like(variables[name], 3e38)
    written(model / "model.bin", variables)
    assert "not finite" in refusal(model)


def test_biases_that_exclude_every_token_are_refused(model: Path) -> None:
    """The biases are finite, but the search finds no translation at all."""
    binary = read_binary(model / "model.bin")
    variables = {name: binary.values(name) for name in binary.variables}
    variables["decoder/projection/bias"] = np.full_like(variables["decoder/projection/bias"], -1e10)
    written(model / "model.bin", variables)
    assert "the model's scores are not finite" in refusal(model)


def test_a_token_of_ten_million_characters_is_refused(model: Path) -> None:
    """A tokenizer would take minutes for it."""
    file = model / "shared_vocabulary.json"
    tokens = json.loads(file.read_text())
    tokens[-1] = "x" * 10**7
    file.write_text(json.dumps(tokens))
    assert "a token of 10,000,000 characters" in refusal(model)


def test_a_difference_that_is_not_a_number_is_the_largest() -> None:
    for ours in ([math.nan, -1.0], [-1.0, math.nan]):
        assert math.isnan(differences_of([ours], [[-1.0, -1.0]])[0])


@pytest.mark.filterwarnings("error")
def test_a_multiplier_near_zero_gives_no_warning(firefox: Path) -> None:
    """The weights overflow and are refused."""
    file = firefox / FIREFOX
    data = bytearray(file.read_bytes())
    with np.load(DATA / "model.npz") as arrays:
        matrix = binary_marian.int8_item(arrays["decoder_l2_context_Wv"], transposed=True)[2]
    at = data.index(matrix) + 16 * 16
    data[at : at + 4] = struct.pack("<f", 1e-38)
    file.write_bytes(data)
    assert "is not finite" in refusal(firefox)


@pytest.mark.usefixtures("imports_here")
@pytest.mark.parametrize("head", [b"", bytes(8), b"\2" + bytes(40)])
def test_a_firefox_model_is_recognized_by_its_name(
    firefox: Path, head: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its first bytes are damaged, the error therefore calls it damaged instead of missing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = firefox / FIREFOX
    file.write_bytes(head and head + file.read_bytes()[len(head) :])
    assert formats.firefox_pair(firefox) == ("en", "de")
    for command in ("import", "translate"):
        assert f"{file} is damaged or not a model of Marian" in refusal(firefox, command)


def test_undamaged_models_are_imported(model: Path, firefox: Path, tmp_path: Path) -> None:
    for directory in (model, firefox):
        code, _, stderr = run_nmt("import", "--out", tmp_path / f"{directory.name}-out", directory)
        assert code == 0, stderr
