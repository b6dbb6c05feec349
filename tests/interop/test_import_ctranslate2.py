"""Import model directories of CTranslate2."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from nmt_cli.commands.app import app
from nmt_cli.interop.ctranslate2_binary import read_binary
from nmt_cli.interop.importing import import_model
from nmt_cli.system.errors import DataError, MissingError, UsageError
from nmt_cli.transformer.weights import load_model, load_tensors

pytest.importorskip("ctranslate2")

from opennmt_models import D, opennmt_model

# `import_model` raises DataError unless scores and translations equal those of CTranslate2 in float32.
MODELS = {
    "as OpenNMT-py": {},
    "int8": {"quantization": "int8"},
    "int16": {"quantization": "int16"},
    "float16": {"quantization": "float16"},
    "bfloat16": {"quantization": "bfloat16"},
    "post-norm, swish": {"pre_norm": False, "activation": "SWISH"},
    "gelu, two vocabularies": {"activation": "GELU", "shared": False, "quantization": "int8"},
    "one vocabulary, two matrices": {"alike": False},
    "positions of CTranslate2": {"positions": "computed"},
    "learned positions": {"positions": "learned", "layers": (3, 1)},
    "EOS, no biases": {"source_eos": True, "bias": False},
    "embeddings not scaled": {"scaled": False, "quantization": "int8"},
}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_an_import_computes_the_same_as_ctranslate2(tmp_path, options):
    imported = load_model(import_model(opennmt_model(tmp_path / "theirs", **options), tmp_path / "ours"))
    settings = imported.recipe.model
    assert "the largest difference of a token's log-probability is" in imported.manifest["proof"]
    assert settings.norm == ("pre" if options.get("pre_norm", True) else "post")
    assert settings.source_eos == options.get("source_eos", False)
    assert settings.attention_bias == options.get("bias", True)
    assert settings.depths == options.get("layers", (2, 2))
    assert bool(settings.source_vocabulary) != (options.get("shared", True) and options.get("alike", True))
    assert settings.tied_output == options.get("scaled", True)
    rounded = options.get("quantization") in ("float16", "bfloat16")  # the encodings, too, so they fit no formula
    assert (settings.positions == "learned") == (rounded or "positions" in options)


def test_languages_that_the_files_do_not_name_are_options_of_the_import(tmp_path, monkeypatch):
    """Without these options, the languages are src and tgt, and the log tells how to set them."""
    monkeypatch.chdir(tmp_path)
    opennmt_model(tmp_path / "model")
    for options, languages in (
        ([], ("src", "tgt")),
        (["--tgt", "pt-BR"], ("src", "pt-BR")),
        (["--src", "en"], ("en", "tgt")),
    ):
        out = "-".join(languages)
        result = CliRunner().invoke(app, ["import", "model", "--out", out, *options])
        config = load_model(Path(out)).config
        assert (config.src, config.tgt) == languages
        missing = " ".join(f"--{side} CODE" for side in ("src", "tgt") if side in languages)
        assert f"To set them, remove {out} and run nmt import again with {missing}\n" in result.stderr
    for code in ("english", "d/e"):
        with pytest.raises(UsageError, match=f"^'{code}' is not a language code, such as de, zh or pt-BR$"):
            import_model("model", Path("other"), tgt=code)


def test_eight_bit_weights_keep_their_integers(tmp_path):
    """The engine quantizes each row by its largest magnitude."""
    theirs = opennmt_model(tmp_path / "theirs", "int8")
    imported = import_model(theirs, tmp_path / "ours")
    ours, binary = load_tensors(imported / "model.safetensors"), read_binary(theirs / "model.bin")
    names = {"self_attention.query_key_value": "self_attention/linear_0", "feed_forward.outer": "ffn/linear_1"}
    for name, variable in names.items():
        weight = ours[f"encoder.1.{name}.weight"]
        integers = (weight / (weight.abs().amax(1, keepdim=True) / 127)).round().to(torch.int8)
        assert np.array_equal(integers.numpy(), binary.values(f"encoder/layer_1/{variable}/weight"))
    assert load_model(imported).manifest["proof"].endswith("the engine uses the integers of the file unchanged.")


def test_unsupported_features_are_refused_by_name(tmp_path):
    theirs = opennmt_model(tmp_path / "tanh", activation="GELUTanh")
    with pytest.raises(DataError, match=r"model\.bin cannot be imported: .* not support approximate gelu \(tanh\)$"):
        import_model(theirs, tmp_path / "ours")
    with pytest.raises(DataError, match="has no variable encoder/layer_norm/gamma"):
        import_model(opennmt_model(tmp_path / "bare", no_final_norm=True), tmp_path / "ours")
    theirs = opennmt_model(tmp_path / "theirs")
    data, config = (theirs / "model.bin").read_bytes(), json.loads((theirs / "config.json").read_text())
    for old, new, reason in [
        (b"encoder/scale_embeddings", b"encoder/rotary_dimension", "rotary positions"),
        (b"encoder/scale_embeddings", b"encoder/sliding_window_x", "sliding-window attention"),
        (b"TransformerSpec", b"TransformerDecS", "TransformerDecS of revision 7"),
    ]:
        (theirs / "model.bin").write_bytes(data.replace(old, new))
        with pytest.raises(DataError, match=reason):
            import_model(theirs, tmp_path / "ours")
    (theirs / "model.bin").write_bytes(data)
    for key, value, reason in [
        ("layer_norm_epsilon", 1e-6, "the layer norm epsilon 1e-06"),
        ("add_source_bos", True, "add_source_bos"),
        ("decoder_start_token", None, "decoder_start_token"),
        ("decoder_start_token", "nowhere", "starts from nowhere"),
        ("unk_token", 3, "unk_token must be a str"),
    ]:
        (theirs / "config.json").write_text(json.dumps({**config, key: value}))
        with pytest.raises(DataError, match=reason):
            import_model(theirs, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_missing_files_are_named(tmp_path):
    theirs = opennmt_model(tmp_path / "theirs")
    for name, reason in [
        ("sentencepiece.model", "no SentencePiece model. Copy the model's tokenizer there as sentencepiece.model"),
        ("shared_vocabulary.json", r"needs shared_vocabulary\.json"),
        ("config.json", r"config\.json is missing"),
    ]:
        copy = shutil.copytree(theirs, tmp_path / f"without {name}")
        (copy / name).unlink()
        with pytest.raises(MissingError, match=reason):
            import_model(copy, tmp_path / "ours")


def as_version_5(directory):
    """Rewrite a model as an older CTranslate2 wrote it: text vocabularies, and the configuration as variables."""
    tokens = json.loads((directory / "shared_vocabulary.json").read_text())
    (directory / "shared_vocabulary.txt").write_text("".join(f"{token}\n" for token in tokens))
    (directory / "shared_vocabulary.json").unlink()
    (directory / "config.json").unlink()
    file = directory / "model.bin"
    file.write_bytes(b"\5" + file.read_bytes()[1:])


def test_an_older_version_of_the_format_gives_the_same_model(tmp_path):
    theirs = opennmt_model(tmp_path / "theirs", "int8")
    new = import_model(theirs, tmp_path / "new")
    as_version_5(theirs)
    old = import_model(theirs, tmp_path / "old")
    assert (old / "model.safetensors").read_bytes() == (new / "model.safetensors").read_bytes()
    assert load_tensors(old / "model.safetensors")["embedding.weight"].shape[1] == D
