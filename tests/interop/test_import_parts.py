"""Models in several files: their sizes are added up, each file has its hash, and errors name the right file."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from nmt_cli.interop.importing import import_model
from nmt_cli.interop.npz import read_arrays
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError

pytest.importorskip("transformers")

from random_marian import random_marian
from test_transformers_files import pickled
from test_untrusted_files import archive, array_file

MARIAN = Path(__file__).parents[1] / "data" / "marian" / "post"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved")
    random_marian(directory)
    return directory


def test_the_sizes_of_parts_are_added_up(tmp_path: Path, saved: Path) -> None:
    """No part alone has a byte per parameter. The manifest has the hash of each part."""
    directory = pickled(saved, tmp_path / "hf", 12)
    import_model(directory, tmp_path / "model")
    weights = artefact.read_json(tmp_path / "model" / "manifest.json")["weights"]
    assert weights == {file.name: artefact.sha256(file) for file in directory.glob("*.bin")}
    assert len({*weights.values()}) == 12


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "vocab.json", "target_vocab.json", "tokenizer_config.json", "generation_config.json"),
        *("special_tokens_map.json", "added_tokens.json"),
    ],
)
def test_every_json_file_is_limited_before_transformers_reads_it(tmp_path: Path, saved: Path, name: str) -> None:
    directory = shutil.copytree(saved, tmp_path / "hf")
    with (directory / name).open("wb") as file:
        file.truncate(artefact.MAX_JSON_BYTES + 1)
    with pytest.raises(DataError, match=rf"{name} is too large"):
        import_model(directory, tmp_path / "model")


def test_the_first_damaged_array_of_an_archive_is_named(tmp_path: Path) -> None:
    good = array_file("(2,)", data=bytes(8))
    for bad in (
        array_file("(9,)", data=bytes(8)),
        good.replace(b"NUMPY\1", b"NUMPY\2"),
        b"\x93NUMPY\1\0" + (9000).to_bytes(2, "little") + b"(" * 9000,
    ):
        with pytest.raises(DataError, match=r"model\.npz is damaged: b\.npy "):
            read_arrays(archive(tmp_path, {"a.npy": good, "b.npy": bad, "c.npy": bad}))
    with pytest.raises(DataError, match=r"model\.npz is damaged: b\.npy is too large"):
        read_arrays(archive(tmp_path, {"a.npy": good, "b.npy": good}, {"b.npy": 1 << 30}))


def test_arrays_are_read_in_both_orders(tmp_path: Path) -> None:
    """NumPy stores a transposed array by columns."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "model.npz", rows=array, columns=np.asfortranarray(array))
    for name, found in read_arrays(tmp_path / "model.npz").items():
        assert found.tolist() == array.tolist(), name


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((2, 1), " cannot be imported: its tensors do not fit together"),
        ((1, 2), "/model.npz does not fit the model: "),
    ],
)
def test_a_tensor_of_another_shape_is_refused(tmp_path: Path, shape: tuple[int, int], reason: str) -> None:
    directory = shutil.copytree(MARIAN, tmp_path / "marian")
    with np.load(directory / "model.npz") as arrays:
        changed = dict(arrays)
    changed["encoder_l1_self_Wq"] = np.tile(changed["encoder_l1_self_Wq"], shape)
    np.savez(directory / "model.npz", **changed)
    with pytest.raises(DataError, match=f"{directory}{reason}"):
        import_model(directory, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encoder_attention_heads": 0, "decoder_attention_heads": 0}, "its sizes must be whole numbers of 1 or more"),
        ({"vocab_size": 0}, "its sizes must be whole numbers of 1 or more"),
        ({"encoder_layers": 60}, "describes a larger model than the weights hold"),
        ({"decoder_vocab_size": 9000}, "describes a larger model than the weights hold"),
        ({"vocab_size": 9000}, "describes a larger model than the weights hold"),
    ],
)
def test_sizes_that_the_weights_do_not_have_are_refused(
    tmp_path: Path, saved: Path, changes: dict[str, int], reason: str
) -> None:
    directory = shutil.copytree(saved, tmp_path / "hf")
    config = artefact.read_json(directory / "config.json")
    (directory / "config.json").write_bytes(artefact.json_bytes({**config, **changes}))
    with pytest.raises(DataError, match=reason):
        import_model(directory, tmp_path / "model")
