"""Models as they are found: pickles, in parts, with other first tokens, by name with the network and without it."""

import functools
import json
import os
import shutil
from pathlib import Path

import hub_server
import huggingface_hub
import pytest
import safetensors.torch
import torch
from test_import import random_marian

from nmt_cli.corpus.tokenizer import EOS, PAD, Tokenizer
from nmt_cli.errors import DataError, DownloadError, MissingError
from nmt_cli.interop.export import export
from nmt_cli.interop.import_ import cached, import_marian
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.search import score_targets

pytest.importorskip("transformers")
LINES = "the old fox sees a shy dog\na red man\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model of transformers with an encoder deeper than its decoder, as safetensors."""
    directory = tmp_path_factory.mktemp("saved")
    random_marian(directory, encoder_layers=3, decoder_layers=1)
    return directory


@pytest.fixture(scope="module")
def imported(saved, tmp_path_factory):
    return load_model(import_marian(saved, tmp_path_factory.mktemp("imported") / "model"))


def pickled(saved: Path, to: Path, parts: int = 1) -> Path:
    """Copy a model, its weights as pickles, all tensors of a layer in the same part."""
    shutil.copytree(saved, to)
    (to / "model.safetensors").unlink()
    tensors = safetensors.torch.load_file(saved / "model.safetensors")
    files = (
        [f"pytorch_model-{i + 1:05}-of-{parts:05}.bin" for i in range(parts)] if parts > 1 else ["pytorch_model.bin"]
    )
    places = {name: files[i % parts] for i, name in enumerate(sorted(tensors))}
    for file in files:
        torch.save({name: tensors[name] for name in places if places[name] == file}, to / file)
    if parts > 1:
        index = {"metadata": {"total_size": 1}, "weight_map": places}
        (to / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return to


def same(a, b):
    tensors = a.model.state_dict()
    return all(torch.equal(tensors[name], tensor) for name, tensor in b.model.state_dict().items())


@pytest.mark.parametrize("parts", [1, 3])
def test_a_pickle_of_tensors_is_the_model_that_safetensors_are(tmp_path, saved, imported, parts):
    assert (imported.recipe.model.depths, len(imported.model.encoder), len(imported.model.decoder)) == ((3, 1), 3, 1)
    directory = pickled(saved, tmp_path / "hf", parts)
    loaded = load_model(import_marian(directory, tmp_path / "model"))
    assert same(loaded, imported)
    assert len(loaded.manifest["weights"]) == parts
    if parts > 1:
        (directory / "pytorch_model-00002-of-00003.bin").unlink()
        with pytest.raises(MissingError, match=r"no file .*-00002-of-00003\.bin, which .*index\.json names"):
            import_marian(directory, tmp_path / "other")


class Harm:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_pickle_that_would_execute_code_is_refused_and_nothing_is_executed(tmp_path, saved, parts):
    directory, marker = pickled(saved, tmp_path / "hf", parts), tmp_path / "executed"
    for file in directory.glob("*.bin"):
        torch.save(torch.load(file, weights_only=True) | {"harm": Harm(marker)}, file)
    with pytest.raises(DataError, match="nothing of it was executed"):
        import_marian(directory, tmp_path / "model")
    assert not marker.exists()
    assert not (tmp_path / "model").exists()
    torch.load(next(directory.glob("*.bin")), weights_only=False)
    assert marker.exists(), "it would have"


def test_a_damaged_pickle_is_refused(tmp_path, saved):
    directory = pickled(saved, tmp_path / "hf")
    data = (directory / "pytorch_model.bin").read_bytes()
    (directory / "pytorch_model.bin").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="hf"):
        import_marian(directory, tmp_path / "model")


def test_a_decoder_may_start_from_any_token(tmp_path, saved):
    """</s>, as other toolkits have it: the same scores, training keeps it, exports to transformers have it."""
    directory = shutil.copytree(saved, tmp_path / "hf")
    for name in ("config.json", "generation_config.json"):
        about = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps(about | {"decoder_start_token_id": 0}))
    ours = load_model(import_marian(directory, tmp_path / "model"))
    weights = ours.model.embedding.weight
    assert torch.equal(weights[PAD], weights[EOS])
    assert weights[PAD].any()
    (tmp_path / "lines").write_text(LINES)
    assert export(tmp_path / "model", "hf", tmp_path / "again", None, tmp_path / "lines") == 0
    assert same(load_model(import_marian(tmp_path / "again", tmp_path / "back")), ours)
    with pytest.raises(DataError, match="CTranslate2 decodes from a zero embedding"):
        export(tmp_path / "model", "ctranslate2", tmp_path / "ct2", None, tmp_path / "lines")


def test_numbers_without_a_token_are_kept(tmp_path, saved, imported):
    """A vocab.json that lacks some tokens of the matrix is imported; the tokens it has keep their scores."""
    directory = shutil.copytree(saved, tmp_path / "hf")
    before = Tokenizer(imported.tokenizer_file)
    pair = tuple(before.encode_pair("a red man", "der man"))
    tokens = json.loads((directory / "vocab.json").read_text())
    lost = next(name for name in sorted(tokens) if name.isalpha() and name not in before.tokens([*pair[0], *pair[1]]))
    del tokens[lost]
    (directory / "vocab.json").write_text(json.dumps(tokens))
    ours = load_model(import_marian(directory, tmp_path / "model"))
    after = Tokenizer(ours.tokenizer_file)
    assert before.vocabulary_size == after.vocabulary_size
    assert after.encode_pair("a red man", "der man") == [*pair]
    scores = [list(score_targets([each.model], torch.float32, [pair])) for each in (imported, ours)]
    assert scores[0] == scores[1]
    tokens["one"] = tokens["two"] = tokens["</s>"] + 3
    (directory / "vocab.json").write_text(json.dumps(tokens))
    with pytest.raises(DataError, match="each by a number of its own"):
        import_marian(directory, tmp_path / "other")


def test_a_name_is_downloaded_once_and_then_needs_no_network(tmp_path, saved, imported, monkeypatch, capsys):
    """As OPUS-MT's are: a pickle and no safetensors; import and the cache of translate, with the net and without."""
    directory, client = pickled(saved, tmp_path / "hf"), huggingface_hub.snapshot_download
    (directory / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# A model\n")
    (directory / "tf_model.h5").write_bytes(b"not needed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with hub_server.serving("owner/opus", directory) as hub:
        here = functools.partial(client, endpoint=hub.url, cache_dir=tmp_path / "cache")
        monkeypatch.setattr("huggingface_hub.snapshot_download", here)
        assert same(load_model(import_marian("owner/opus", tmp_path / "model")), imported)
        assert not [path for path in hub.requests if "tf_model" in path]
    huggingface_hub.close_session()  # a connection that is open would still be answered
    capsys.readouterr()
    assert same(load_model(import_marian("owner/opus", tmp_path / "again")), imported)
    place = cached("owner/opus")
    assert capsys.readouterr().err.count("licence: cc-by-4.0") == 2
    assert same(load_model(place), imported)
    shutil.rmtree(tmp_path / "cache")
    assert cached("owner/opus") == place
    assert capsys.readouterr().err == "", "said once"
    with pytest.raises(DownloadError, match="no directory owner/opus here"):
        import_marian("owner/opus", tmp_path / "third")


def test_weights_in_two_forms_are_downloaded_in_the_safe_one(tmp_path, saved, monkeypatch):
    directory, client = pickled(saved, tmp_path / "hf"), huggingface_hub.snapshot_download
    shutil.copy(saved / "model.safetensors", directory)
    with hub_server.serving("owner/opus", directory) as hub:
        here = functools.partial(client, endpoint=hub.url, cache_dir=tmp_path / "cache")
        monkeypatch.setattr("huggingface_hub.snapshot_download", here)
        assert import_marian("owner/opus", tmp_path / "model")
        assert not [path for path in hub.requests if path.startswith("GET") and path.endswith(".bin")]
