"""Marian's binary models: Firefox's layout, which test helpers write, and 8-bit files that pymarian wrote."""

import contextlib
import gzip
import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import binary_marian
import numpy as np
import pyarrow
import pytest
import torch
from binary_marian import FIREFOX_INT8, FLOAT32, MARIAN_INT8, TEXT, float_item, items_of, write_items
from reference import batch_of

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.interop import formats, marian_binary, marian_files
from nmt_cli.interop.importing import import_model
from nmt_cli.interop.marian_lexicon import read_lexicon
from nmt_cli.interop.named_models import model_directories
from nmt_cli.interop.packages import import_package
from nmt_cli.system.errors import DataError
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.segments import Segment
from nmt_cli.translation.translator import Translator

DATA = Path(__file__).parents[1] / "data" / "marian" / "ssru"
MODEL = "model.ende.intgemm.alphas.bin"


def arrays_of(directory: Path = DATA) -> dict[str, Any]:
    with np.load(directory / "model.npz") as archive:
        return dict(archive)


def firefox_directory(to: Path, int8: bool = True, separate: bool = False) -> Path:
    """Write the SSRU model of pymarian with the names that Firefox's files have."""
    to.mkdir()
    arrays = arrays_of()
    if separate:
        embedding = arrays.pop("Wemb")
        arrays |= {"encoder_Wemb": embedding, "decoder_Wemb": embedding}
        options = arrays["special:model.yml"].tobytes().rstrip(b"\0")
        options = options.replace(b"tied-embeddings-all: true", b"tied-embeddings-all: false")
        options = options.replace(b"tied-embeddings: false", b"tied-embeddings: true")
        arrays["special:model.yml"] = np.frombuffer(options + b"\0", np.int8)
    write_items(to / MODEL, items_of(arrays, int8=int8, alphas={"none": 20.0, "encoder_l1_self_Wq": 15.5}))
    for name in ("srcvocab.ende.spm", "trgvocab.ende.spm") if separate else ("vocab.ende.spm",):
        shutil.copy(DATA / "vocab.spm", to / name)
    return to


def test_a_firefox_directory_is_imported_with_its_languages(tmp_path: Path) -> None:
    """In float32, log-probabilities equal Marian's. In 8 bits, they are near these."""
    pairs = [(line["src"], line["tgt"]) for line in json.loads((DATA / "marian.json").read_text())]
    found = {}
    for name, options in (("float32", {"int8": False}), ("int8", {}), ("separate", {"int8": False, "separate": True})):
        model = import_model(firefox_directory(tmp_path / name, **options), tmp_path / f"{name}-model")
        with Translator(model, workers=1, precision="fp32") as translator:
            assert (translator.config.src, translator.config.tgt) == ("en", "de")
            assert translator.config.decoding.beam == 1
            assert translator.config.architecture.decoder_cell == "ssru"
            found[name] = [scored.log_probability for scored in translator.score(pairs)]
    expected = [sum(line["scores"]) for line in json.loads((DATA / "marian.json").read_text())]
    assert found["float32"] == pytest.approx(expected, rel=1e-4)
    assert found["separate"] == pytest.approx(expected, rel=1e-4)
    assert found["int8"] == pytest.approx(expected, rel=0.05)
    assert found["int8"] != pytest.approx(expected, rel=1e-5)


def test_8_bit_weights_are_within_half_a_step_of_the_weights_that_marian_rounded() -> None:
    arrays, (found, eight_bits) = arrays_of(), marian_binary.read_items(DATA / "model.intgemm8.bin")
    rounded = [name for name in arrays if "_W" in name and "_ln_" not in name]
    assert eight_bits
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        step = np.abs(array).max() / 127 if name in rounded else 0
        if not name.startswith("special:"):
            np.testing.assert_allclose(found[name], array, rtol=0, atol=0.51 * step)


@pytest.mark.parametrize("kind", [FIREFOX_INT8, MARIAN_INT8])
def test_matrices_are_transposed_and_embeddings_are_not(kind: int, tmp_path: Path) -> None:
    matrix = np.arange(-3, 3, dtype=np.float32).reshape(2, 3) * 127 / 3
    items = {
        "a_W": (kind, (2, 3), np.array([-127, 0, -85, 42, -42, 85], np.int8).tobytes() + struct.pack("<f", 1)),
        "Wemb": binary_marian.int8_item(matrix, transposed=False, kind=kind),
        "b": float_item(np.array([[1.5]], np.float32)),
        "special:model.yml": (TEXT, (2,), b"a\0" + bytes(6)),
    }
    found, eight_bits = marian_binary.read_items(write_items(tmp_path / "m.bin", items))
    assert eight_bits
    np.testing.assert_array_equal(found["a_W"], np.array([[-127, -85, -42], [0, 42, 85]], np.float32))
    np.testing.assert_allclose(found["Wemb"], matrix, atol=0.5)
    assert (found["b"].tolist(), found["special:model.yml"].tobytes()) == ([[1.5]], b"a\0")


def test_binary_models_are_recognized_by_their_first_bytes(tmp_path: Path) -> None:
    for name, data in (("lex.50.50.ende.s2t.bin", b"\xf5\x17\x34\x01"), ("model.bin", struct.pack("<IH", 6, 16))):
        (tmp_path / name).write_bytes(data + bytes(60))
        assert not marian_files.has_marian_model(tmp_path)
        assert not formats.has_marian_binary(tmp_path)
    write_items(tmp_path / MODEL, items_of({}))
    assert marian_files.has_marian_model(tmp_path)
    assert formats.has_marian_binary(tmp_path)


def test_a_marian_model_may_have_the_file_name_of_ctranslate2(tmp_path: Path) -> None:
    directory = firefox_directory(tmp_path / "firefox")
    (directory / MODEL).rename(directory / "model.bin")
    assert (import_model(directory, tmp_path / "model", "en", "de") / "model.safetensors").exists()


def zstd(data: bytes) -> bytes:
    stream = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(stream, "zstd") as packed:
        packed.write(data)
    return stream.getvalue().to_pybytes()


def pack(directory: Path, suffix: str) -> None:
    for file in [*directory.iterdir()]:
        data = file.read_bytes()
        Path(f"{file}{suffix}").write_bytes(gzip.compress(data) if suffix == ".gz" else zstd(data))
        file.unlink()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_packed_files_of_mozilla_need_no_unpacking(suffix: str, tmp_path: Path) -> None:
    plain = firefox_directory(tmp_path / "plain", int8=False, separate=True)
    (plain / "lex.50.50.ende.s2t.bin").write_bytes(lexicon([0, 0, 0, 1], [7]))
    packed = Path(shutil.copytree(plain, tmp_path / "packed"))
    pack(packed, suffix)
    assert formats.firefox_pair(packed) == ("en", "de")
    assert formats.has_marian_binary(packed)
    models = [import_model(directory, tmp_path / f"{directory.name}-model") for directory in (plain, packed)]
    for name in ("model.safetensors", "tokenizer.model", "shortlist.bin", "recipe.yaml"):
        first, second = ((model / name).read_bytes().replace(b"packed", b"plain") for model in models)
        assert first == second, name


def test_an_unpacked_file_is_preferred_to_its_packed_form(tmp_path: Path) -> None:
    directory = firefox_directory(tmp_path / "firefox")
    for file in [*directory.iterdir()]:
        Path(f"{file}.gz").write_bytes(b"damaged")
    import_model(directory, tmp_path / "model")


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("name", [MODEL, "vocab.ende.spm", "lex.50.50.ende.s2t.bin"])
def test_damaged_packed_files_are_refused(name: str, suffix: str, tmp_path: Path) -> None:
    """The file is cut, or is not packed, or unpacks to far more bytes than a model has."""
    directory = firefox_directory(tmp_path / "firefox")
    (directory / "lex.50.50.ende.s2t.bin").write_bytes(lexicon([0, 0, 0, 1], [7]))
    pack(directory, suffix)
    file = directory / f"{name}{suffix}"
    bomb = gzip.compress(bytes(1 << 22)) if suffix == ".gz" else zstd(bytes(1 << 22))
    for data in (file.read_bytes()[:-10], b"not packed", bomb):
        file.write_bytes(data)
        with pytest.raises(DataError, match=file.name):
            import_model(directory, tmp_path / "model")
        assert not (tmp_path / "model").exists()


def test_commands_accept_a_firefox_directory_as_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is imported once, into the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = firefox_directory(tmp_path / "firefox")
    (first,) = model_directories([directory])
    created = (first / "manifest.json").read_bytes()
    assert model_directories([directory]) == (first,)
    assert ((first / "manifest.json").read_bytes(), first.parent) == (created, tmp_path / "cache" / "nmt" / "models")
    with Translator(first, workers=1) as translator:
        assert next(translator.translate(["The dog sleeps."])).text


def test_each_side_has_as_many_tokens_as_embeddings(tmp_path: Path) -> None:
    """Marian may have more embeddings than its vocabulary has tokens."""
    directory = firefox_directory(tmp_path / "firefox", int8=False, separate=True)
    arrays, _ = marian_binary.read_items(directory / MODEL)
    for name, rows in (("decoder_Wemb", arrays["decoder_Wemb"][:6]), ("decoder_ff_logit_out_b", np.zeros((1, 6)))):
        axis = int(name.endswith("_b"))
        arrays[name] = np.concatenate([arrays[name], rows.astype(np.float32)], axis)
    write_items(directory / MODEL, items_of(arrays, int8=False))
    found = marian_files.read_marian(directory)
    count = len(arrays["encoder_Wemb"])
    assert found.recipe.model.source_vocabulary == count + 1
    assert len(found.tensors["embedding.weight"]) == len(found.tensors["output_bias"]) == count + 6 + 1
    assert [len(read_pieces(model)) for model in found.tokenizers] == [count + 1, count + 7]


def read_pieces(model: bytes) -> Any:
    return import_package("sentencepiece.sentencepiece_model_pb2").ModelProto.FromString(model).pieces


BIG = 1 << 40


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ({"a": (0x4801, (2, 2), bytes(16))}, r"a has type 0x4801 \(packed for one kind of CPU\)"),
        ({"a": (0x204, (2, 2), bytes(16))}, r"a has type 0x204 \(float16\)"),
        ({"a": (0x77, (2,), bytes(16))}, r"a has type 0x77 \(unknown\)"),
        ({"a": (FLOAT32, (2, 3), bytes(20))}, r"a claims the shape \(2, 3\) in 20 bytes"),
        ({"a": (FLOAT32, (-2, -3), bytes(24))}, r"a claims the shape \(-2, -3\) in 24 bytes"),
        ({"a": (FLOAT32, (2**31 - 1,) * 4, bytes(24))}, "a claims"),
        ({"a": (FIREFOX_INT8, (2, 3), bytes(9))}, r"a claims the shape \(2, 3\) in 9 bytes"),
        ({"a": (FIREFOX_INT8, (1, 1), bytes(5))}, "a has the invalid multiplier 0.0"),
        ({"a": (FIREFOX_INT8, (1, 1), b"\1" + struct.pack("<f", float("nan")))}, "a has the invalid multiplier nan"),
        ({"a": (TEXT, (4,), bytes(4))}, "a has type 0x101"),
        ({"a": (FLOAT32, (1,) * 5, bytes(4))}, "5 dimensions"),
        ({"a" * 2000: (FLOAT32, (1,), bytes(4))}, "2,001 bytes"),
    ],
)
def test_items_that_cannot_be_read_are_named(items: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words) as caught:
        marian_binary.read_items(write_items(tmp_path / "m.bin", items))
    assert str(tmp_path / "m.bin") in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is damaged"),
        (struct.pack("<2Q", 2, 0) + bytes(8), "version 2"),
        (struct.pack("<2Q", 1, BIG), "items"),
        (struct.pack("<2Q4Q", 1, 1, BIG, FLOAT32, 1, 4), "the name of an item"),
        (struct.pack("<2Q4Q", 1, 1, 2, FLOAT32, BIG, 4) + b"a\0", "dimensions"),
        (struct.pack("<2Q4Q", 1, 1, 2, FLOAT32, 1, BIG) + b"a\0" + bytes(12), "do not add up"),
        (struct.pack("<2Q4Q", 1, 1, 2, FLOAT32, 0, 4) + b"a\0" + struct.pack("<Q", BIG), "do not add up"),
        (struct.pack("<2Q4Q", 1, 1, 2, FLOAT32, 0, 4) + b"a\0" + bytes(8 + 4 + 1), "do not add up"),
        (struct.pack("<2Q4Q4Q", 1, 2, *(2, FLOAT32, 0, 4) * 2) + b"a\0a\0" + bytes(16), "occurs twice"),
    ],
)
def test_sizes_are_checked_before_memory_is_taken(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(data)
    with pytest.raises(DataError, match=words):
        marian_binary.read_items(tmp_path / "m.bin")


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return a file that is cut, or has flipped bits, a changed number in its headers, or a changed option."""
    kind = draw.randrange(4)
    if kind == 0:
        return data[: draw.randrange(len(data))]
    changed = bytearray(data)
    if kind == 1:
        for _ in range(draw.choice([1, 3, 50])):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    elif kind == 2:
        at = 8 * draw.randrange(300)
        changed[at : at + 8] = struct.pack("<Q", draw.choice([0, 1, 255, 1 << 31, BIG, (1 << 64) - 1]))
    else:  # the options
        at = data.rindex(b"bert-train")
        changed[at + draw.randrange(1300)] = draw.choice(b"0123456789\0:-[]{}\n\xff")
    return bytes(changed)


def test_damaged_models_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models with damage to a weight may be imported. Refused models leave no files."""
    monkeypatch.setattr("nmt_cli.interop.marian_files.find_spec", lambda _: None)  # without a comparison in Marian
    directory, draw, refused = firefox_directory(tmp_path / "firefox"), random.Random(4), 0
    data = (directory / MODEL).read_bytes()
    for number in range(70):
        (directory / MODEL).write_bytes(damaged(data, draw))
        out = tmp_path / str(number)
        with contextlib.suppress(DataError):
            import_model(directory, out)
            shutil.rmtree(out)
            continue
        refused += 1
    assert 30 < refused < 70
    assert sorted(path.name for path in tmp_path.iterdir()) == ["firefox"]


def test_an_imported_model_can_be_trained_further(tmp_path: Path) -> None:
    """Its recurrent layers have gradients, and a step lowers the loss."""
    loaded = load_model(import_model(firefox_directory(tmp_path / "firefox"), tmp_path / "model"))
    model = loaded.model.train()
    lines = json.loads((DATA / "marian.json").read_text())
    batch = batch_of([tuple(loaded.tokenizer.encode_pair(line["src"], line["tgt"])) for line in lines])
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(model.logits(model(batch)), batch.tgt_out_N.long())
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.decoder.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > losses[1] > losses[2]


def lexicon(offsets: list[int], entries: list[int], frequent: int = 3, magic: int = 0xF11A48D5013417F5) -> bytes:
    header = struct.pack("<6Q", magic, 0, frequent, 50, len(offsets), len(entries))
    return header + struct.pack(f"<{len(offsets)}Q{len(entries)}I", *offsets, *entries)


def test_the_shortlist_of_a_firefox_directory_is_imported(tmp_path: Path) -> None:
    """It gets our ids: </s> is 0 for Marian and 2 for us, <unk> is 1 for both. The last tokens may have no lists."""
    directory = firefox_directory(tmp_path / "firefox")
    offsets = [0, 0, 0, 2, *[5] * 244]
    (directory / "lex.50.50.ende.s2t.bin").write_bytes(lexicon(offsets, [7, 9, 10, 11, 0]))
    with Translator(import_model(directory, tmp_path / "model"), workers=1) as translator:
        options = translator.resolved(SearchOptions(shortlist=True))
        assert options.shortlist.tokens(Segment([EOS], options)) == [1, 2, 3]
        assert options.shortlist.tokens(Segment([3, EOS], options)) == [1, 2, 3, 8, 10]
        assert options.shortlist.tokens(Segment([4, EOS], options)) == [1, 2, 3, 4, 11, 12]
        line = json.loads((DATA / "marian.json").read_text())[0]["src"]
        assert [each.text for each in translator.translate([line], shortlist=True)]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is damaged or not a Marian shortlist"),
        (lexicon([0, 0], [], magic=1), "is damaged or not a Marian shortlist"),
        (lexicon([0, 1], [5])[:-1], "is damaged or not a Marian shortlist"),
        (struct.pack("<6Q", 0xF11A48D5013417F5, 0, 0, 0, BIG, BIG), "is damaged or not a Marian shortlist"),
        (struct.pack("<6Q", 0xF11A48D5013417F5, 0, 0, 0, 1 << 61, 0), "is damaged or not a Marian shortlist"),
        (lexicon([0, 2, 1], [5, 5]), "does not fit"),
        (lexicon([0, 3], [5, 5]), "does not fit"),
        (lexicon([0, 1], [250]), "does not fit"),
        (lexicon([0] * 252, []), "does not fit"),
        (lexicon([0, 0], [], frequent=BIG), "does not fit"),
    ],
)
def test_a_damaged_shortlist_is_refused(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "lex.bin").write_bytes(data)
    ids = [250, 1, 0, *range(2, 250)]
    with pytest.raises(DataError, match=words):
        read_lexicon(tmp_path / "lex.bin", [ids, ids])
