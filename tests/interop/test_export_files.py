"""The files of exports, the texts on which they are compared, and the configurations of transformers."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import ANY, Mock, call

import numpy as np
import pytest
import torch
from binary_ctranslate2 import binary_bytes
from safetensors import safe_open

pytest.importorskip("transformers")
pytest.importorskip("ctranslate2")

from random_marian import random_marian
from reference import tiny
from tiny_model import make_model

from nmt_cli.corpus.tokenizer import PAD
from nmt_cli.interop import export as export_module
from nmt_cli.interop import vocabulary_map
from nmt_cli.interop.ctranslate2_binary import read_binary
from nmt_cli.interop.ctranslate2_files import read_ctranslate2
from nmt_cli.interop.export import comparison_lines, export
from nmt_cli.interop.importing import import_model
from nmt_cli.interop.transformers_files import read_transformers
from nmt_cli.interop.transformers_marian import NO_LOGIT, to_transformers, write_transformers
from nmt_cli.recipe import loading
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.transformer.model import Transformer, sinusoids
from nmt_cli.transformer.weights import load_model, save_model
from nmt_cli.translation.shortlist import Shortlist


@pytest.fixture
def toolkits(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for the other toolkits, the comparison with them and the scoring. It records their calls."""
    found = Mock()

    def convert(out: str, quantization: str, force: bool) -> None:
        (Path(out) / "config.json").write_text("{}")
        (Path(out) / "shared_vocabulary.json").write_text("[]")
        (Path(out) / "model.bin").write_bytes(quantization.encode())

    found.converter.return_value.convert.side_effect = convert
    found.compare.return_value = ("proof", [[9, 2]] * 2, [[9, 3, 2]] * 2)
    found.bleu.side_effect = [(90.0, ""), (80.0, "")]
    found.write.return_value = [[0], [1]]
    found.ctranslate2.return_value.names = [["a"], ["b"]]
    monkeypatch.setattr("ctranslate2.converters.TransformersConverter", found.converter)
    for name, stand_in in (
        ("CTranslate2", found.ctranslate2), ("Transformers", found.transformers), ("compare", found.compare),
        ("corpus_bleu", found.bleu), ("write_transformers", found.write), ("import_package", found.imports),
    ):  # fmt: skip
        monkeypatch.setattr(export_module, name, stand_in)
    return found


def test_a_package_has_int8_weights_language_codes_and_the_prefix(tmp_path: Path, toolkits: Any) -> None:
    """Its parent directories are created. The card shows the first compared line, with single for double quotes."""
    changes = "corpus.src=pt-BR", "corpus.tgt=zh-TW", "corpus.moses=yes", "decoding.target_prefix=▁Haus"
    model, out = make_model(tmp_path / "m", *changes), tmp_path / "new" / "deep" / "x.argosmodel"
    (tmp_path / "lines").write_text('\nsay "der Hund"\nrot\n')
    assert export(model, "argos", out, None, tmp_path / "lines") == 0
    assert toolkits.imports.call_args_list == [call("transformers"), call("ctranslate2")]
    with zipfile.ZipFile(out) as archive:
        inner = ["model/config.json", "model/model.bin", "model/shared_vocabulary.json"]
        names = ["README.md", "metadata.json", *inner, "recipe.yaml"]
        assert archive.namelist() == [f"translate-pb_zt-1_0/{name}" for name in [*names, "sentencepiece.model"]]
        files = {name: archive.read(f"translate-pb_zt-1_0/{name}").decode() for name in names}
    metadata = json.loads(files["metadata.json"])
    assert [metadata[name] for name in ("from_code", "to_code", "target_prefix")] == ["pb", "zt", "▁Haus"]
    assert files["model/model.bin"] == "int8"
    assert "say 'der Hund'" in files["README.md"]
    assert f'"{out.as_posix()}"' in files["README.md"]
    assert '"pb", "zt")' in files["README.md"]
    assert "proof BLEU against the float32 output changes from 90.00 to 80.00 (-10.00)." in files["README.md"]
    spm = (model / "tokenizer.model").read_bytes()
    assert toolkits.ctranslate2.call_args == call(ANY, [["a"], ["b"]], [spm] * 2, ends_source=False, prefix="▁Haus")
    assert toolkits.compare.call_args.args[2:] == ({1: 'say "der Hund"', 2: "rot"},)
    assert toolkits.compare.call_args.kwargs == {"exact": False}
    before, after = (load_model(model).tokenizer.decode([ids] * 2) for ids in ([9], [9, 3]))
    how = {"language": "zh-TW", "tokenized": True}
    assert toolkits.bleu.call_args_list == [call(before, before, **how), call(after, before, **how)]
    assert sorted(path.name for path in out.parent.iterdir()) == ["x.argosmodel"]


def test_references_are_tokenized_and_scored(tmp_path: Path, toolkits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """MarianTokenizer is checked on sources and on normalized targets. BLEU gets the references of compared lines."""
    model = make_model(tmp_path / "m")
    texts = ["", "der Hund", "rot"], ["no", "a\u00a0b", "c"]
    monkeypatch.setattr(export_module, "comparison_lines", lambda *_: texts)
    assert export(model, "hf", tmp_path / "hf", None, None) == 0
    adapter = toolkits.transformers.return_value
    assert adapter.check_tokenizer.call_args == call(ANY, ["der Hund", "rot"], ["no", "a b", "c"])
    assert toolkits.compare.call_args.kwargs == {"exact": True}
    manifest = artefact.verify(tmp_path / "hf", "export")
    assert (manifest["target"], manifest["quantization"], manifest["proof"]) == ("hf", "float32", "proof")
    assert export(model, "ctranslate2", tmp_path / "ct2", "int16", None) == 0
    assert [each.args[1] for each in toolkits.bleu.call_args_list] == [["a\u00a0b", "c"]] * 2
    manifest = artefact.verify(tmp_path / "ct2", "export")
    assert (manifest["target"], manifest["quantization"]) == ("ctranslate2", "int16")
    assert manifest["proof"] == "proof BLEU changes from 90.00 to 80.00 (-10.00)."
    assert (tmp_path / "ct2" / "tokenizer.model").read_bytes() == (model / "tokenizer.model").read_bytes()
    monkeypatch.setattr(export_module, "comparison_lines", lambda *_: ([""], []))
    with pytest.raises(DataError, match=r"^the dev text has no line of 1 to 121 tokens to verify the export with$"):
        export(model, "hf", tmp_path / "new", None, None)


def test_the_length_penalty_fits_the_median_length(
    tmp_path: Path, toolkits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, texts = make_model(tmp_path / "m"), ["rot", "der Hund", "die Katze und der Hund " * 5]
    monkeypatch.setattr(export_module, "comparison_lines", lambda *_: (texts, []))
    assert export(model, "hf", tmp_path / "hf", None, None) == 0
    lengths = sorted(map(len, load_model(model).tokenizer.encode(texts)))
    penalties = [round(0.6 * length / (5 + length), 2) for length in (lengths[1], round(sum(lengths) / 3))]
    assert toolkits.write.call_args.args[1] == penalties[0] != penalties[1]
    card = " ".join((tmp_path / "hf" / "README.md").read_text().split())
    assert f"by length ^ {penalties[0]}. The effect is the same at {lengths[1]} tokens" in card
    assert "have one limit for all sentences, here 128." in card


def test_the_dev_text_lies_beside_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found from any working directory, and through a link to the model. An imported model has no dev text."""
    (tmp_path / "work" / "data" / "own").mkdir(parents=True)
    (tmp_path / "work" / "data" / "own" / "manifest.json").touch()
    model = tmp_path / "work" / "runs" / "mine" / "model"
    model.mkdir(parents=True)
    (tmp_path / "link").symlink_to(model)
    opened = Mock()
    opened.return_value.lines.return_value = (["a"], ["b"])
    monkeypatch.setattr(export_module, "open_corpus", opened)
    settings = loading.from_plain({"name": "mine", "corpus": {"name": "own"}}, "test")
    monkeypatch.chdir(model.parent)
    assert comparison_lines(settings, None, Path("model")) == (["a"], ["b"])
    assert comparison_lines(settings, None, tmp_path / "link") == (["a"], ["b"])
    assert opened.return_value.lines.call_args_list == [call("dev")] * 2
    imported = loading.from_plain({"corpus": {"name": None, "src": "a", "tgt": "b"}}, "test")
    with pytest.raises(MissingError, match=r"^the export is verified with real sentences\. Pass --lines FILE$"):
        comparison_lines(imported, None, model)


def test_pad_of_the_target_vocabulary_is_never_produced() -> None:
    settings = tiny(source_vocabulary=5, d_v=4)
    tensors = Transformer(settings, 7).state_dict()
    written = to_transformers(tensors, settings, [[4, 0, 1, 2, 3], [6, 0, 1, 2, 3, 4, 5]])
    assert written["final_logits_bias"].tolist() == [[0] * 6 + [NO_LOGIT]]


@pytest.mark.parametrize(("norm", "kind"), [("post", "marian"), ("pre", "pegasus")])
def test_the_configuration_that_transformers_reads(tmp_path: Path, norm: str, kind: str) -> None:
    changes = f"model.norm={norm}", "model.decoder_layers=1", "model.encoder_layers=2", "decoding.beam=1"
    loaded = load_model(make_model(tmp_path / "m", *changes, "corpus.src=fi", "corpus.tgt=zh"))
    maps = write_transformers(loaded, 0.3, tmp_path)
    size = loaded.tokenizer.vocabulary_size
    pad = size - 1
    assert maps == [[pad, *range(pad)]] * 2
    config = artefact.read_json(tmp_path / "config.json")
    expected = {
        "model_type": kind, "d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_layers": 2,
        "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": size,
        "max_position_embeddings": 128, "activation_function": "relu", "pad_token_id": pad, "eos_token_id": 1,
        "decoder_start_token_id": pad, "unk_token_id": 0, "scale_embedding": True,
        "static_position_embeddings": True, "normalize_before": norm == "pre", "normalize_embedding": False,
        "dropout": loaded.recipe.model.dropout,
        **({"decoder_vocab_size": size, "share_encoder_decoder_embeddings": True} if kind == "marian" else {}),
    }  # fmt: skip
    assert config == {**config, **expected}
    search = artefact.read_json(tmp_path / "generation_config.json")
    assert search == {**search, "max_length": 128, "bad_words_ids": [[pad]], "forced_eos_token_id": 1}
    assert not {"num_beams", "length_penalty"} & search.keys()
    assert artefact.read_json(tmp_path / "tokenizer_config.json") == {
        "tokenizer_class": "MarianTokenizer", "clean_up_tokenization_spaces": False, "source_lang": "fi",
        "target_lang": "zh", "model_max_length": 128, "unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>",
        "separate_vocabs": False, "split_special_tokens": True,
    }  # fmt: skip
    names = ["config.json", "generation_config.json", "m", "model.safetensors", "source.spm", "target.spm"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "tokenizer_config.json", "vocab.json"]


def test_a_pre_norm_model_with_biases_survives_ctranslate2(tmp_path: Path) -> None:
    """The import recognizes our PAD: the decoder starts from it, and the exported bias excludes it. Our bias is 0."""
    changes = "model.norm=pre", "model.output_bias=yes", "model.attention_bias=yes"
    loaded = load_model(make_model(tmp_path / "m", *changes))
    state = loaded.model.state_dict()
    for name, tensor in state.items():
        if name.endswith("bias"):
            tensor.normal_(0, 0.1)
    state["output_bias"][PAD] = 0
    save_model(tmp_path / "model", state, loaded.recipe, loaded.tokenizer_file, {})
    (tmp_path / "lines").write_text("der Hund\ndie Katze ist rot\n")
    assert export(tmp_path / "model", "ctranslate2", tmp_path / "ct2", None, tmp_path / "lines") == 0
    back = load_model(import_model(tmp_path / "ct2", tmp_path / "back"))
    assert (back.recipe.model.norm, back.recipe.model.output_bias) == ("pre", True)
    assert all(torch.equal(state[name], tensor) for name, tensor in back.model.state_dict().items())
    assert len(back.model.state_dict()) == len(state)
    binary = read_binary(tmp_path / "ct2" / "model.bin")
    variables = {name: binary.values(name) for name in binary.variables}
    bias = variables["decoder/projection/bias"]
    variables["decoder/projection/bias"] = np.where(bias < -1e8, bias, 0)
    (tmp_path / "ct2" / "model.bin").write_bytes(binary_bytes(variables))
    assert not read_ctranslate2(tmp_path / "ct2").recipe.model.output_bias


def test_marian_positions_are_in_the_file(tmp_path: Path) -> None:
    """transformers would compute other positions. Its versions before 5 need the metadata "format"."""
    loaded = load_model(make_model(tmp_path / "m", "model.positions=marian"))
    write_transformers(loaded, 0.3, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert float(file.get_tensor("final_logits_bias")[0, -1]) == -1e9, "PAD is never produced"
        for side in ("encoder", "decoder"):
            found = file.get_tensor(f"model.{side}.embed_positions.weight")
            assert torch.equal(found, sinusoids(128, 16, "marian")[:, [*range(0, 16, 2), *range(1, 16, 2)]])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved")
    random_marian(directory)
    return directory


def changed(saved: Path, to: Path, **config: Any) -> Path:
    shutil.copytree(saved, to)
    values = artefact.read_json(to / "config.json")
    (to / "config.json").write_text(json.dumps(values | config))
    return to


def test_languages_and_special_tokens_of_transformers_models(saved: Path, tmp_path: Path) -> None:
    """A model that names no languages is imported as src and tgt. Our PAD has no bias and starts translations."""
    directory = changed(saved, tmp_path / "hf")
    for text, languages in (
        ('{"source_lang": null}', ("src", "tgt")),
        ('{"source_lang": "fi", "target_lang": ""}', ("fi", "tgt")),
        ('{"target_lang": "sv"}', ("src", "sv")),
        (None, ("src", "tgt")),
    ):
        (directory / "tokenizer_config.json").write_text(text or "")
        if text is None:
            (directory / "tokenizer_config.json").unlink()
        found = read_transformers(directory)
        assert (found.recipe.corpus.src, found.recipe.corpus.tgt, found.recipe.name) == (*languages, "hf")
        assert float(found.tensors["output_bias"][PAD]) == 0
        assert found.adapter.model.final_logits_bias[0, -1] == NO_LOGIT, "their model does not produce PAD either"
        assert not found.tensors["embedding.weight"][PAD].any()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"encoder_ffn_dim": 96}, "nmt requires a single d_ff$"),
        ({"decoder_attention_heads": 2}, "nmt requires a single num_heads$"),
        (
            {"scale_embedding": False, "activation_function": "gelu_new", "decoder_ffn_dim": 96},
            r"embeddings scaled by sqrt\(d_model\) and an activation other than gelu_new and a single d_ff$",
        ),
        ({"d_model": 32.0}, "its sizes must be whole numbers, from 1|is damaged"),
        ({"vocab_size": True}, "its sizes must be whole numbers, from 1|is damaged"),
        ({"model_type": "bart"}, "is a bart model; only marian and pegasus models can be imported"),
        ({"model_type": "mbart"}, "is a mbart model; only marian and pegasus models can be imported"),
    ],
)
def test_configurations_that_do_not_fit_are_named(
    saved: Path, tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        read_transformers(changed(saved, tmp_path / "hf", **config))


def test_all_missing_files_are_named(saved: Path, tmp_path: Path) -> None:
    directory = changed(saved, tmp_path / "hf")
    for name in ("vocab.json", "source.spm", "target.spm"):
        (directory / name).unlink()
    with pytest.raises(MissingError, match=r"hf has no vocab\.json, source\.spm, target\.spm, which a Marian model of"):
        import_model(directory, tmp_path / "out")


def test_the_tokens_of_an_imported_vocabulary_map_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(tmp_path)
    (tmp_path / "vmap.txt").touch()
    monkeypatch.setattr(vocabulary_map, "read_vocabulary_map", lambda *_: Shortlist([*range(1500)], [2], [7, 8]))
    assert vocabulary_map.import_vocabulary_map(model, tmp_path / "vmap.txt") == 0
    assert capsys.readouterr().err.strip().endswith("shortlist.bin: 1,500 frequent tokens, 2 listed tokens")
