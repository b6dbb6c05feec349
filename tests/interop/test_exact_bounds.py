"""Limits of foreign files at their exact values, every kind of error, and choices between files of one kind."""

import contextlib
import shutil
import struct
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from binary_marian import FIREFOX_INT8, FLOAT32, float_item, int8_item, write_items
from test_import_binary import BIG, MODEL, firefox_directory, lexicon, pack

from nmt_cli.interop import importing, marian_binary, marian_files, transformers_files, vocabulary_map
from nmt_cli.interop.argos_package import unpack
from nmt_cli.interop.importing import import_model
from nmt_cli.interop.marian_files import check_options, find_files, parse_yaml, read_marian, rename_tensors
from nmt_cli.interop.marian_lexicon import read_lexicon
from nmt_cli.interop.npz import read_arrays
from nmt_cli.interop.transformers_marian import EMBEDDINGS, from_transformers
from nmt_cli.interop.vocabulary import convert_tokenizers
from nmt_cli.recipe import loading
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError
from nmt_cli.translation.shortlist import FILE, Shortlist

DATA = Path(__file__).parents[1] / "data" / "marian"
ONE = np.ones(1, np.float32)


def reason(act: Any, *arguments: Any) -> str:
    """Return why `act` raises DataError, or "" if it does not."""
    with contextlib.suppress(DataError):
        act(*arguments)
        return ""
    try:
        act(*arguments)
    except DataError as error:
        return str(error).partition(": ")[2]
    raise AssertionError("refused only the first time")


def test_bounds_of_marian_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(items: Any) -> str:
        return reason(marian_binary.read_items, write_items(tmp_path / "m.bin", items))

    monkeypatch.setattr(marian_binary, "MAX_ITEMS", 2)
    three = {name: float_item(ONE) for name in "abc"}
    assert read(dict([*three.items()][:2])) == ""
    assert read(three) == "its header claims version 1 and 3 items"
    assert read({"a" * 999: (FLOAT32, (1,) * 4, bytes(4))}) == ""
    assert read({"a" * 1000: (FLOAT32, (1,), bytes(4))}) == "the name of an item would have 1,001 bytes"
    nameless = struct.pack("<2Q4Q", 1, 1, 0, FLOAT32, 0, 4) + struct.pack("<Q", 0) + bytes(4)
    (tmp_path / "n.bin").write_bytes(nameless)
    assert reason(marian_binary.read_items, tmp_path / "n.bin") == "the name of an item would have 0 bytes"
    for multiplier in (-1.0, float("inf")):
        item = (FIREFOX_INT8, (1, 1), b"\1" + struct.pack("<f", multiplier))
        assert read({"a": item}) == f"a has the invalid multiplier {multiplier}"
    for kind, name in ((0x202, "int16"), (0x408, "float64"), (0x4102, "intgemm16"), (0x10002, "intgemm16")):
        assert f"a has type {kind:#x} ({name});" in read({"a": (kind, (1,), bytes(8))})


def test_embeddings_of_each_side_and_cubes_are_not_transposed(tmp_path: Path) -> None:
    matrix = np.arange(-3, 3, dtype=np.float32).reshape(2, 3) * 127 / 3
    items = {f"{side}_Wemb": int8_item(matrix, transposed=False) for side in ("encoder", "decoder")}
    cube = (FIREFOX_INT8, (2, 3, 1), np.arange(6, dtype=np.int8).tobytes() + struct.pack("<f", 1))
    found, _ = marian_binary.read_items(write_items(tmp_path / "m.bin", {**items, "c": cube}))
    for side in ("encoder", "decoder"):
        np.testing.assert_allclose(found[f"{side}_Wemb"], matrix, atol=0.5)
    assert found["c"].tolist() == [[[0], [1], [2]], [[3], [4], [5]]]


@pytest.mark.parametrize(("int8", "suffix", "exact"), [(False, "", False), (True, "", True), (False, ".gz", True)])
def test_marian_gets_the_converted_weights_of_files_that_it_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, int8: bool, suffix: str, exact: bool
) -> None:
    """Of several shortlists, the first is used."""
    directory = firefox_directory(tmp_path / "firefox", int8=int8)
    for name, entries in (("lex.50.50.ende.s2t.bin", [7]), ("lex.90.90.ende.s2t.bin", [9])):
        (directory / name).write_bytes(lexicon([0, 0, 0, 1], entries))
    if suffix:
        pack(directory, suffix)
    asked = Mock(return_value=object())
    for adapter in (asked, None):
        monkeypatch.setattr(marian_files, "find_spec", lambda _, adapter=adapter: adapter is asked)
        monkeypatch.setattr(marian_files, "Marian", adapter)
        found = read_marian(directory)
        compared = "The 8-bit weights were converted to float32 for the comparison."
        assert found.note == (compared if int8 and adapter is asked else "")
        assert found.shortlist is not None
        assert 8 in found.shortlist.targets
        assert 10 not in [*found.shortlist.targets[:4]]
    [(file, vocabularies, norm, arrays)] = [call.args for call in asked.call_args_list]
    assert (file, len(vocabularies), norm) == (directory / f"{MODEL}{suffix}", 2, "post")
    assert (arrays is not None) == exact
    if arrays:
        names = [name for name in arrays if name.endswith("_QuantMultA")]
        assert names == []
        assert arrays["special:model.yml"].dtype == np.int8
        assert arrays["Wemb"].dtype == np.float32


def test_files_that_decoder_yml_names(tmp_path: Path) -> None:
    for name in ("m.npz", "v.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "decoder.yml").write_text("models: [[x], m.npz, {a: b}]\nvocabs: [v.yaml]\n")
    assert find_files(tmp_path) == (tmp_path / "m.npz", [tmp_path / "v.yaml"] * 2)
    (tmp_path / "decoder.yml").write_text("relative-paths: true\n")
    with pytest.raises(DataError, match=r"has 0 models \(\)"):
        find_files(tmp_path)
    (tmp_path / "v.yaml").write_text("</s>: 0\n<unk>: 1\na: 2\n")
    for side in ("source", "target"):
        shutil.copy(DATA / "post" / "vocab.spm", tmp_path / f"{side}.spm")
    (numbers, _), _ = marian_files.read_vocabularies(tmp_path, [tmp_path / "v.yaml"] * 2, [3, 3])
    assert list(numbers.items()) == [("<pad>", 3), ("<unk>", 1), ("</s>", 0), ("a", 2)]


def test_yaml_may_fill_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "models: [m.npz]\nvocabs: [v.spm]\n"
    for name, data in (("m.npz", ""), ("v.spm", ""), ("decoder.yml", text)):
        (tmp_path / name).write_text(data)
    for limit, fits in ((len(text), True), (len(text) - 1, False)):
        monkeypatch.setattr(marian_files, "MAX_YAML_BYTES", limit)
        for act, arguments in ((parse_yaml, (text.encode(), Path("x"))), (find_files, (tmp_path,))):
            found = f"more than {limit:,} bytes" if not fits else ""
            assert reason(act, *arguments) == found


OPTIONS = {"enc-depth": "0", "dec-depth": "0", "transformer-heads": "4", "transformer-dim-ffn": "64"}


def test_numbers_in_options_have_at_most_nine_digits(tmp_path: Path) -> None:
    check_options(OPTIONS | {"enc-depth": "9" * 9, "transformer-postprocess-emb": ""}, tmp_path)
    for number in ("9" * 10, "9" * 90):
        with pytest.raises(DataError, match=f"is damaged: its option enc-depth is {number[:40]}$"):
            check_options(OPTIONS | {"enc-depth": number}, tmp_path)
    check_options(OPTIONS | {"transformer-ffn-activation": "relu", "transformer-decoder-dim-ffn": "0"}, tmp_path)
    check_options(OPTIONS | {"transformer-decoder-ffn-depth": "0", "transformer-postprocess-emb": "d"}, tmp_path)


def test_marian_tensors_that_do_not_fit_are_named() -> None:
    tied = OPTIONS | {"tied-embeddings-all": "true"}
    right = {"Wemb": torch.ones(3, 2), "decoder_ff_logit_out_b": torch.ones(1, 3)}
    assert rename_tensors(right, tied, Path("m"))
    for changes, words in (
        ({"Wemb": torch.ones(6)}, "m cannot be imported: its tensor Wemb is not a matrix"),
        ({"b": torch.ones(1), "a": torch.ones(1)}, "has no equivalent of its tensor a$"),
    ):
        with pytest.raises(DataError, match=words):
            rename_tensors(right | changes, tied, Path("m"))
    with pytest.raises(DataError, match="m has no tensor decoder_ff_logit_out_b"):
        rename_tensors({"Wemb": right["Wemb"]}, tied, Path("m"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lexicon([0, 1], [5]) + b"\0", "damaged or not a Marian shortlist"),
        (lexicon([], []), "damaged or not a Marian shortlist"),
        (lexicon([0, 0], [])[:40], "damaged or not a Marian shortlist"),
        (lexicon([0, 0], [], frequent=251), "does not fit"),
        (lexicon([2, 0, 1], [5, 5]), "does not fit"),
        (lexicon([0, BIG], [5]), "does not fit"),
        (lexicon([0, 0], [], frequent=250), ""),
        (lexicon([0] * 251, []), ""),
        (lexicon([0], [5]), ""),
    ],
)
def test_bounds_of_a_marian_shortlist(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "lex.bin").write_bytes(data)
    ids = [250, 1, 0, *range(2, 250)]
    if words:
        with pytest.raises(DataError, match=words):
            read_lexicon(tmp_path / "lex.bin", [ids, ids])
    else:
        frequent = struct.unpack_from("<6Q", data)[2]
        found = read_lexicon(tmp_path / "lex.bin", [ids, ids])
        assert found.frequent.tolist() == sorted(ids.index(i) for i in range(frequent))
        assert found.targets.tolist() == [*range(1, 251)]


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), TokenError("x")])
def test_python_errors_in_the_header_of_an_array_are_reported_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    np.savez(tmp_path / "model.npz", a=ONE)
    monkeypatch.setattr(np.lib.format, "read_array_header_1_0", Mock(side_effect=error))
    with pytest.raises(DataError, match=r"model\.npz is damaged: a\.npy has no valid \.npy header"):
        read_arrays(tmp_path / "model.npz")


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_members_of_npz_files_are_converted_or_refused(tmp_path: Path, kind: int) -> None:
    """Other number types are converted. Other compression methods, encryption and damaged data are refused."""
    np.savez_compressed(tmp_path / "model.npz", a=np.arange(500, dtype=np.float32))
    good = (tmp_path / "model.npz").read_bytes()
    assert read_arrays(tmp_path / "model.npz")["a"].tolist() == [*range(500)]
    middle = len(good) // 2
    encrypted = bytearray(good)
    for sign, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        encrypted[good.index(sign) + at] |= 1
    for data in (good[:middle] + bytes(8) + good[middle + 8 :], bytes(encrypted)):
        (tmp_path / "model.npz").write_bytes(data)
        with pytest.raises(DataError, match=r"model\.npz is damaged: "):
            read_arrays(tmp_path / "model.npz")
    np.savez(
        tmp_path / "model.npz",
        a=np.arange(3, dtype=">i2"),
        b=np.ones(1, np.uint8),
        **{"special:x": np.ones(2, np.int8)},
    )
    found = read_arrays(tmp_path / "model.npz")
    assert [str(array.dtype) for array in found.values()] == ["float32", "float32", "int8"]
    assert found["a"].tolist() == [0, 1, 2]
    stored = (tmp_path / "model.npz").read_bytes()
    (tmp_path / "model.npz").write_bytes(stored.replace(b"\0\0\0\1\0\2", b"\0\0\0\1\0\3"))
    with pytest.raises(DataError, match=r"model\.npz is damaged: Bad CRC-32"):
        read_arrays(tmp_path / "model.npz")
    with zipfile.ZipFile(tmp_path / "other.npz", "w", kind) as archive:
        archive.writestr("a.npy", good)
    with pytest.raises(DataError, match=r"a\.npy is too large or compressed in an unusual way"):
        read_arrays(tmp_path / "other.npz")


@pytest.mark.parametrize(
    "error",
    [OSError("x"), ValueError("x"), EOFError("x"), RuntimeError("x"), zipfile.BadZipFile("x"), zlib.error("x"),
     KeyError("x"), struct.error("x")],
)  # fmt: skip
def test_every_error_of_zipfile_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    file = tmp_path / "a.npz"
    file.touch()
    monkeypatch.setattr(zipfile, "ZipFile", Mock(side_effect=error))
    if not isinstance(error, KeyError | struct.error):
        with pytest.raises(DataError, match=r"a\.npz is damaged: x$"):
            read_arrays(file)
    with pytest.raises(DataError, match=r"a\.npz is damaged or not an Argos package: '?x'?$"):
        unpack(file, tmp_path)


def tokenizer(target: list[str] | None = None) -> Any:
    """Return a tokenizer of <pad>, <unk>, </s>, a, b, c."""
    names = ["<pad>", "<unk>", "</s>", "a", "b", "c"]
    side = SimpleNamespace(vocabulary_size=len(target or names), vocabulary=target or names)
    return SimpleNamespace(vocabulary_size=len(names), vocabulary=names, target=side)


@pytest.mark.parametrize(
    ("text", "frequent", "lists"),
    [
        ("a\tb\na b\tc <pad>\n\ta\n\tb\n<pad>\tc\n", [1, 2, 3, 4], [[4, 5]]),
        ("\tc\n", [1, 2, 5], []),
        ("a\tc b c", [1, 2], [[4, 5]]),
        ("\t\na\t a\xa0b  b\n", [1, 2], [[4]]),
    ],
)
def test_lines_of_a_vocabulary_map(tmp_path: Path, text: str, frequent: list[int], lists: list[list[int]]) -> None:
    """Lines with the same first token are joined, and so are the lines of the empty n-gram. No list contains PAD."""
    (tmp_path / "vmap.txt").write_text(text)
    found = vocabulary_map.read_vocabulary_map(tmp_path / "vmap.txt", tokenizer())
    assert found.frequent.tolist() == frequent
    flat = [token for each in lists for token in each]
    assert (found.targets.tolist(), found.ends.tolist()) == (flat, [0, 0, 0, *[len(flat)] * 3])


def test_a_vocabulary_map_may_have_two_vocabularies_and_fill_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vmap.txt"
    file.write_text("a\tx b\n")
    found = vocabulary_map.read_vocabulary_map(file, tokenizer(["<pad>", "<unk>", "</s>", "y", "x"]))
    assert (found.targets.tolist(), found.ends.tolist()) == ([4], [0, 0, 0, 1, 1, 1])
    monkeypatch.setattr(vocabulary_map, "MAX_BYTES", 6)
    assert vocabulary_map.read_vocabulary_map(file, tokenizer())
    file.write_text("a\tx b\n\n")
    with pytest.raises(DataError, match=r"vmap\.txt is too large for a vocabulary map: 6 bytes at most"):
        vocabulary_map.read_vocabulary_map(file, tokenizer())
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"vmap\.txt, line 2 has no tab"):
        vocabulary_map.read_vocabulary_map(file, tokenizer())


@pytest.mark.parametrize("own", [True, False])
def test_a_vocabulary_map_beside_a_model_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shortlist in the model's own format is preferred. Advice appears only if both languages are unknown."""
    directory = firefox_directory(tmp_path / "firefox", int8=False)
    if own:
        (directory / "lex.50.50.ende.s2t.bin").write_bytes(lexicon([0, 0, 0, 1], [7]))
    (directory / "vmap.txt").write_text("\t▁the\n")
    read = Mock(return_value=Shortlist([1, 2, 7], [0] * 3, []))
    monkeypatch.setattr(importing, "read_vocabulary_map", read)
    monkeypatch.chdir(directory)
    out = import_model(".", tmp_path / "model", tgt="fr") if own else import_model("../firefox", tmp_path / "model")
    assert (out / FILE).is_file()
    assert read.call_count == (not own)
    manifest = artefact.read_json(out / "manifest.json")
    assert (manifest["imported"], manifest["steps"]) == ("firefox", [])
    recipe = loading.load_stored(out / "recipe.yaml")
    assert (recipe.name, recipe.corpus.src, recipe.corpus.tgt) == ("firefox", "en", "fr" if own else "de")
    assert "do not name its languages" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "index", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 5}}', '{"weight_map": {"a": "x\\u001b"}}']
)
def test_a_damaged_index_of_parts_is_named(tmp_path: Path, index: str) -> None:
    (tmp_path / "pytorch_model.bin.index.json").write_text(index)
    with pytest.raises(DataError, match=r"pytorch_model\.bin\.index\.json is damaged: it "):
        transformers_files.weight_files(tmp_path)


def test_errors_in_tensors_of_transformers_are_one_line(tmp_path: Path) -> None:
    """The errors are missing tensors, tensors of another shape, and an id beyond the vocabulary."""
    settings = loading.from_plain({"model": {"num_layers": 1, "d_model": 4, "num_heads": 1, "d_k": 4, "d_v": 4}}, "t")
    right = dict.fromkeys(EMBEDDINGS.values(), torch.ones(3, 4))
    for tensors, ids in (
        (right, [2, 1, 0]),
        (dict.fromkeys(EMBEDDINGS.values(), torch.ones(3, 3)), [2, 1, 0]),
        (right, [2, 1, 9]),
    ):
        with pytest.raises(DataError, match=r"/x cannot be imported: its tensors do not fit together \(") as caught:
            from_transformers(tensors, settings.model, [ids, ids], 2, Path("/x"))
        assert "\n" not in str(caught.value)


def test_a_bpe_model_is_refused_if_sides_with_one_vocabulary_have_two_models(tmp_path: Path) -> None:
    """With two vocabularies, each side keeps its own model."""
    from random_marian import SOURCE, TEXT, vocabulary

    from nmt_cli.corpus import tokenizer as subwords

    (tmp_path / "a.spm").write_bytes(SOURCE)
    (tmp_path / "b.spm").write_bytes(subwords.train(TEXT, 320))
    sides = [dict.fromkeys(["<pad>", *vocabulary(SOURCE)[1::-1], *vocabulary(SOURCE)[2:-1]], 0)] * 2
    files = [tmp_path / "a.spm", tmp_path / "b.spm"]
    for order in (files, files[::-1]):
        with pytest.raises(DataError, match="two BPE models for one vocabulary"):
            convert_tokenizers(order, sides, separate=False)
    assert len(convert_tokenizers(files, sides, separate=True)) == 2
