"""Read model directories of transformers: pickles, weights in parts, unusual tokens and configurations."""

import functools
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch

from nmt_cli.corpus.tokenizer import EOS, PAD, Tokenizer
from nmt_cli.interop import transformers_files
from nmt_cli.interop import transformers_marian as marian
from nmt_cli.interop.export import export
from nmt_cli.interop.importing import import_model
from nmt_cli.recipe import loading
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.transformer.model import sinusoids
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.search import score_targets

pytest.importorskip("transformers")

from random_marian import random_marian

LINES = "the old fox sees a shy dog\na red man\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model in safetensors that has more encoder layers than decoder layers."""
    directory = tmp_path_factory.mktemp("saved")
    random_marian(directory, encoder_layers=3, decoder_layers=1)
    return directory


@pytest.fixture(scope="module")
def imported(saved, tmp_path_factory):
    return load_model(import_model(saved, tmp_path_factory.mktemp("imported") / "model"))


def pickled(saved: Path, to: Path, parts: int = 1) -> Path:
    """Copy a model with its weights as pickles, in one or several parts."""
    shutil.copytree(saved, to)
    (to / "model.safetensors").unlink()
    tensors = safetensors.torch.load_file(saved / "model.safetensors")
    files = (
        [f"pytorch_model-{i + 1:05}-of-{parts:05}.bin" for i in range(parts)] if parts > 1 else ["pytorch_model.bin"]
    )
    file_of = {name: files[i % parts] for i, name in enumerate(sorted(tensors))}
    for file in files:
        torch.save({name: tensors[name] for name in file_of if file_of[name] == file}, to / file)
    if parts > 1:
        index = {"metadata": {"total_size": 1}, "weight_map": file_of}
        (to / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return to


def same(a, b):
    tensors = a.model.state_dict()
    return all(torch.equal(tensors[name], tensor) for name, tensor in b.model.state_dict().items())


@pytest.mark.parametrize("parts", [1, 3])
def test_pickles_and_safetensors_give_the_same_model(tmp_path, saved, imported, parts):
    assert (imported.recipe.model.depths, len(imported.model.encoder), len(imported.model.decoder)) == ((3, 1), 3, 1)
    directory = pickled(saved, tmp_path / "hf", parts)
    loaded = load_model(import_model(directory, tmp_path / "model"))
    assert same(loaded, imported)
    assert len(loaded.manifest["weights"]) == parts
    if parts > 1:
        (directory / "pytorch_model-00002-of-00003.bin").unlink()
        with pytest.raises(MissingError, match=r"no file .*-00002-of-00003\.bin, which .*index\.json names"):
            import_model(directory, tmp_path / "other")


class Harm:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_pickle_that_would_execute_code_is_refused(tmp_path, saved, parts):
    directory, marker = pickled(saved, tmp_path / "hf", parts), tmp_path / "executed"
    for file in directory.glob("*.bin"):
        torch.save(torch.load(file, weights_only=True) | {"harm": Harm(marker)}, file)
    with pytest.raises(DataError, match="Nothing in it was executed"):
        import_model(directory, tmp_path / "model")
    assert not marker.exists()
    assert not (tmp_path / "model").exists()
    torch.load(next(directory.glob("*.bin")), weights_only=False)
    assert marker.exists(), "the pickle is not dangerous, so the test proves nothing"


def test_a_damaged_pickle_is_refused(tmp_path, saved):
    directory = pickled(saved, tmp_path / "hf")
    data = (directory / "pytorch_model.bin").read_bytes()
    (directory / "pytorch_model.bin").write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match="hf"):
        import_model(directory, tmp_path / "model")


def test_a_decoder_may_start_from_any_token(tmp_path, saved):
    """This decoder starts from </s>. Exports to transformers keep that start; CTranslate2 does not support it."""
    directory = shutil.copytree(saved, tmp_path / "hf")
    for name in ("config.json", "generation_config.json"):
        about = json.loads((directory / name).read_text())
        (directory / name).write_text(json.dumps(about | {"decoder_start_token_id": 0}))
    ours = load_model(import_model(directory, tmp_path / "model"))
    weights = ours.model.embedding.weight
    assert torch.equal(weights[PAD], weights[EOS])
    assert weights[PAD].any()
    (tmp_path / "lines").write_text(LINES)
    assert export(tmp_path / "model", "hf", tmp_path / "again", None, tmp_path / "lines") == 0
    assert same(load_model(import_model(tmp_path / "again", tmp_path / "back")), ours)
    with pytest.raises(DataError, match="CTranslate2 starts decoding with a zero embedding"):
        export(tmp_path / "model", "ctranslate2", tmp_path / "ct2", None, tmp_path / "lines")


def test_ids_without_a_token_are_kept(tmp_path, saved, imported):
    """vocab.json may lack tokens that have embeddings. The other tokens keep their scores."""
    directory = shutil.copytree(saved, tmp_path / "hf")
    before = Tokenizer(imported.tokenizer_file)
    pair = tuple(before.encode_pair("a red man", "der man"))
    tokens = json.loads((directory / "vocab.json").read_text())
    lost = next(name for name in sorted(tokens) if name.isalpha() and name not in before.tokens([*pair[0], *pair[1]]))
    del tokens[lost]
    (directory / "vocab.json").write_text(json.dumps(tokens))
    ours = load_model(import_model(directory, tmp_path / "model"))
    after = Tokenizer(ours.tokenizer_file)
    assert before.vocabulary_size == after.vocabulary_size
    assert after.encode_pair("a red man", "der man") == [*pair]
    scores = [list(score_targets([each.model], torch.float32, [pair])) for each in (imported, ours)]
    assert scores[0] == scores[1]
    tokens["one"] = tokens["two"] = tokens["</s>"] + 3
    (directory / "vocab.json").write_text(json.dumps(tokens))
    with pytest.raises(DataError, match="must be distinct and below"):
        import_model(directory, tmp_path / "other")


def test_safetensors_and_the_parts_that_an_index_names_are_preferred(tmp_path):
    """Directories in the names of parts are ignored."""

    def files(**written):
        directory = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        directory.mkdir()
        for name, text in written.items():
            (directory / name.replace("__", ".")).write_text(text)
        return [path.relative_to(directory).as_posix() for path in transformers_files.weight_files(directory)]

    parts = json.dumps({"weight_map": {"a": "x/p2", "b": "p1", "c": "x/p2"}})
    one, two = "model__safetensors", "pytorch_model__bin"
    assert files(**{one: "", two: ""}) == ["model.safetensors"]
    assert files(**{two: ""}) == ["pytorch_model.bin"]
    for index in (f"{one}__index__json", f"{two}__index__json"):
        assert files(**{index: parts, "p1": "", "p2": ""}) == ["p1", "p2"]
        with pytest.raises(MissingError, match=r"no file .*p2, which .*\.index\.json names"):
            files(**{index: parts, "p1": ""})
    assert files(**{f"{one}__index__json": parts, two: "", "p1": "", "p2": ""}) == ["p1", "p2"]
    with pytest.raises(MissingError, match=r"no model\.safetensors, no pytorch_model\.bin, and no"):
        files(config__json="")


def test_special_tokens_must_match_the_configuration(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 1, "a": 2, "<pad>": 3}))
    read = functools.partial(transformers_files.read_vocabulary, tmp_path / "vocab.json", 4)
    assert list(read(SimpleNamespace(pad_token_id=3, eos_token_id=0))) == ["<pad>", "<unk>", "</s>", "a"]
    for pad, eos in ((2, 0), (3, 1), (0, 3)):
        with pytest.raises(DataError, match=r"vocab\.json and config\.json have different ids for <pad> or </s>"):
            read(SimpleNamespace(pad_token_id=pad, eos_token_id=eos))
    with pytest.raises(MissingError, match=r"target_vocab\.json, which separate_vocabs in tokenizer_config"):
        transformers_files.read_vocabulary(tmp_path / "target_vocab.json", 4, None)


def test_settings_follow_from_the_configuration_and_the_weights():
    """Biases of zeros and equal matrices are left out."""
    values = {"d_model": 8, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12, "encoder_attention_heads": 2, "dropout": 0.3}
    values |= {"decoder_attention_heads": 2, "max_position_embeddings": 16, "activation_function": "silu"}
    values |= {"encoder_layers": 3, "decoder_layers": 3, "model_type": "marian"}
    vocabularies = [{"<pad>": 3, "<unk>": 1, "</s>": 0, "a": 2}] * 2
    bias = torch.tensor([[0.0, 0, 0, marian.NO_LOGIT]])  # only PAD has a bias
    ours = sinusoids(16, 8, "sinusoidal")[:, marian.sines_first(8)]
    tensors = {**dict.fromkeys(marian.EMBEDDINGS.values(), torch.ones(4, 8)), marian.OUTPUT_BIAS: bias}
    tensors |= {marian.POSITIONS[0]: ours, "model.encoder.layers.0.self_attn.q_proj.bias": torch.zeros(8)}

    def settings(config=(), changed=(), other=None):
        configuration = SimpleNamespace(**{**values, **dict(config)})
        sides = [vocabularies[0], other or vocabularies[1]]
        made = transformers_files.model_settings(configuration, {**tensors, **dict(changed)}, sides)
        return loading.from_plain({"model": made}, "test").model.model_dump()

    plain = settings()
    expected = {
        "num_layers": 3,
        "encoder_layers": None,
        "decoder_layers": None,
        "d_model": 8,
        "d_ff": 12,
        "num_heads": 2,
    }
    expected |= {"d_k": 4, "d_v": 4, "dropout": 0.3, "norm": "post", "positions": "sinusoidal", "max_length": 16}
    expected |= {"attention_bias": False, "output_bias": False, "activation": "swish", "source_vocabulary": 0}
    assert plain == {**expected, "tied_output": True, "source_eos": True, "decoder_cell": "attention"}
    positions = sinusoids(16, 8, "marian")[:, marian.sines_first(8)]
    for config, changed, other, setting in (
        ({"model_type": "pegasus"}, {}, None, {"norm": "pre"}),
        ({"decoder_layers": 1}, {}, None, {"encoder_layers": 3, "decoder_layers": 1}),
        ({}, {"model.decoder.layers.2.encoder_attn.v_proj.bias": torch.ones(8)}, None, {"attention_bias": True}),
        ({}, {marian.OUTPUT_BIAS: bias + torch.tensor([0.0, 0, 1, 0])}, None, {"output_bias": True}),
        ({}, {marian.EMBEDDINGS["src"]: torch.zeros(4, 8)}, None, {"source_vocabulary": 4}),
        ({}, {}, {"<pad>": 3, "<unk>": 0, "</s>": 1, "a": 2}, {"source_vocabulary": 4}),
        ({}, {marian.EMBEDDINGS["output"]: torch.zeros(4, 8)}, None, {"tied_output": False}),
        ({}, {marian.POSITIONS[0]: positions}, None, {"positions": "marian"}),
        ({}, {marian.POSITIONS[0]: positions + 9e-5}, None, {"positions": "marian"}),
        ({}, {marian.POSITIONS[0]: positions + 2e-4}, None, {}),
        ({"activation_function": "gelu"}, {}, None, {"activation": "gelu"}),
    ):
        assert settings(config, changed, other) == {**plain, **setting}
