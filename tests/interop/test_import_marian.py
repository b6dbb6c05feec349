"""Import model directories of Marian.

tests/data/marian has three models that pymarian 1.12.42 trained, with its scores of references (`score --word-scores`)
and greedy translations (`decode --beam-size 1`). "post" has 2 + 1 layers, relu and one vocabulary. "pre" has 1 + 2
layers, swish, an output matrix tied to the target embedding and two vocabularies. "ssru" has 1 + 2 layers, of which two
are recurrent. The text of "ssru" is generated, and `convert --gemm-type intgemm8` wrote its model.intgemm8.bin.
"""

import io
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.interop import marian_files
from nmt_cli.interop.adapters import Marian
from nmt_cli.interop.export import export
from nmt_cli.interop.importing import import_model
from nmt_cli.interop.transformers_marian import EMBEDDINGS, OUTPUT_BIAS
from nmt_cli.recipe import yaml_file
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.search import score_targets
from nmt_cli.translation.translator import Translator

pytest.importorskip("transformers")
DATA = Path(__file__).parents[1] / "data" / "marian"


@pytest.fixture(scope="module", params=["post", "pre", "ssru"])
def pair(request, tmp_path_factory):
    """A Marian directory and its import."""
    imported = import_model(DATA / request.param, tmp_path_factory.mktemp("imported") / "model")
    return DATA / request.param, load_model(imported)


def test_scores_equal_those_of_marian(pair):
    """They agree within 1e-4 per token: Marian prints five decimals. PyTorch and the engine are both tested."""
    directory, ours = pair
    tokenizer, lines = Tokenizer(ours.tokenizer_file), json.loads((directory / "marian.json").read_text())
    texts = [tuple(tokenizer.encode_pair(line["src"], line["tgt"])) for line in lines]
    translator = Translator.of(ours.model, tokenizer, ours.recipe, torch.float32)
    for each in (score_targets([ours.model], torch.float32, texts), translator.score_ids(texts)):
        for scores, line in zip(each, lines, strict=True):
            assert scores == pytest.approx(line["scores"], rel=1e-4, abs=1e-4)
    depths = {"post": (2, 1), "pre": (1, 2), "ssru": (1, 2)}[directory.name]
    assert (ours.recipe.model.depths, len(ours.model.encoder), len(ours.model.decoder)) == (depths, *depths)
    assert ours.recipe.model.norm == ("pre" if directory.name == "pre" else "post")
    assert ours.recipe.model.decoder_cell == ("ssru" if directory.name == "ssru" else "attention")


def test_greedy_translations_equal_those_of_marian(pair):
    """Pre-norm models are the exception, because Marian's decoder computes other results than its own scorer."""
    directory, ours = pair
    lines = json.loads((directory / "marian.json").read_text())
    translator = Translator.of(ours.model, Tokenizer(ours.tokenizer_file), ours.recipe, torch.float32)
    results = translator.translate([line["src"] for line in lines], beam=1, alpha=0.0, split=False)
    same = sum(result.text == line["greedy"] for result, line in zip(results, lines, strict=True))
    assert (same == len(lines)) == (directory.name != "pre"), same


def test_a_model_with_marian_positions_survives_export_and_import(pair, tmp_path):
    directory, ours = pair
    lines = [line["src"] for line in json.loads((directory / "marian.json").read_text())]
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
    assert ours.recipe.model.positions == "marian"
    if directory.name in ("pre", "ssru"):
        with pytest.raises(DataError, match=r"must share one embedding|have no ssru decoder"):
            export(ours.directory, "hf", tmp_path / "hf", None, tmp_path / "lines")
        return
    for target in ("hf", "ctranslate2"):
        assert export(ours.directory, target, tmp_path / target, None, tmp_path / "lines") == 0
    for target in ("hf", "ctranslate2"):
        back = load_model(import_model(tmp_path / target, tmp_path / f"{target}-back"))
        assert back.recipe.model.positions == "marian"
        tensors = back.model.state_dict()
        assert all(torch.equal(tensors[name], tensor) for name, tensor in ours.model.state_dict().items())


def changed(to, options=None, tensors=None, name="post"):
    """Copy a directory, changing options of its model and adding tensors."""
    shutil.copytree(DATA / name, to)
    with np.load(to / "model.npz") as archive:
        arrays = dict(archive)
    text = arrays["special:model.yml"].tobytes().rstrip(b"\0").decode()
    for key, value in (options or {}).items():
        lines = [f"{key}: {value}" if line.startswith(f"{key}:") else line for line in text.split("\n")]
        assert any(line.startswith(f"{key}:") for line in lines), key
        text = "\n".join(lines)
    arrays["special:model.yml"] = np.frombuffer(text.encode() + b"\0", np.int8)
    np.savez(to / "model.npz", **arrays, **(tensors or {}))
    return to


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"type": "s2s"}, "type s2s"),
        ({"dec-depth": "2"}, "no tensor decoder_l2_self_Wq"),
        ({"dec-depth": "0"}, "no equivalent of its tensor decoder_l1_context_Wk"),
    ],
)
def test_unsupported_models_are_refused_by_name(tmp_path, options, reason):
    with pytest.raises(DataError, match=reason):
        import_model(changed(tmp_path / "marian", options), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_missing_and_damaged_files_are_named(tmp_path):
    directory = changed(tmp_path / "marian", tensors={"decoder_l1_rnn_W": np.zeros((2, 2), np.float32)})
    shutil.copy(directory / "model.npz", directory / "model.npz.optimizer.npz")  # written by training; not a model
    (directory / "decoder.yml").unlink()
    with pytest.raises(DataError, match="no equivalent of its tensor decoder_l1_rnn_W"):
        import_model(directory, tmp_path / "model")
    shutil.copy(DATA / "post" / "decoder.yml", directory)
    (directory / "vocab.spm").unlink()
    with pytest.raises(MissingError, match=r"no file .*vocab\.spm"):
        import_model(directory, tmp_path / "model")
    (directory / "decoder.yml").write_text("models: [a.npz, b.npz]\nvocabs: [vocab.spm, vocab.spm]\n")
    with pytest.raises(DataError, match=r"has 2 models \(a\.npz, b\.npz\)"):
        import_model(directory, tmp_path / "model")
    (directory / "decoder.yml").write_text("models: [model.npz]\nvocabs: [a.fsv, a.fsv]\n")
    (directory / "a.fsv").touch()
    shutil.copy(DATA / "post" / "model.npz", directory)
    with pytest.raises(DataError, match=r"a\.fsv cannot be imported: a vocabulary must be"):
        import_model(directory, tmp_path / "model")
    (directory / "model.npz").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(DataError, match=r"model\.npz is damaged"):
        import_model(directory, tmp_path / "model")
    np.savez(directory / "model.npz", a=np.zeros(1))
    with pytest.raises(DataError, match=r"has no special:model\.yml: it is not a model of Marian"):
        import_model(directory, tmp_path / "model")


def test_objects_in_an_archive_are_not_unpickled(tmp_path):
    directory = shutil.copytree(DATA / "post", tmp_path / "marian")
    np.savez(directory / "model.npz", a=np.array([io.StringIO], object), allow_pickle=True)
    with pytest.raises(DataError, match=r"model\.npz is damaged: a\.npy claims the shape \(1,\) and type object"):
        import_model(directory, tmp_path / "model")


def test_yml_vocabularies_need_sentencepiece_models(tmp_path):
    """In releases of OPUS-MT, vocab.yml numbers the tokens, and source.spm and target.spm split the text."""
    import sentencepiece

    directory = shutil.copytree(DATA / "post", tmp_path / "marian")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "vocab.spm"))
    names = processor.id_to_piece(list(range(len(processor))))
    text = "".join(f"{json.dumps(name, ensure_ascii=False)}: {i}\n" for i, name in enumerate(names))
    (directory / "opus.vocab.yml").write_text(text, "utf-8")
    (directory / "decoder.yml").write_text("models: [/elsewhere/model.npz]\nvocabs: [opus.vocab.yml, opus.vocab.yml]\n")
    with pytest.raises(MissingError, match=r"source\.spm\. With a \.yml vocabulary, this SentencePiece"):
        import_model(directory, tmp_path / "model")
    (directory / "opus.vocab.yml").write_text(text.replace(": 5\n", ": five\n"), "utf-8")
    with pytest.raises(DataError, match=r"opus\.vocab\.yml must be distinct and below"):
        import_model(directory, tmp_path / "model")
    (directory / "opus.vocab.yml").write_text(text, "utf-8")
    for side in ("source", "target"):
        shutil.copy(directory / "vocab.spm", directory / f"{side}.spm")
    ours, other = (
        load_model(import_model(each, tmp_path / f"{each.name}-model")) for each in (directory, DATA / "post")
    )
    assert ours.tokenizer_file.read_bytes() == other.tokenizer_file.read_bytes()
    tensors = other.model.state_dict()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in ours.model.state_dict().items())
    # The target vocabulary has other ids for the same pieces, so the model needs two tokenizers.
    swapped = text.replace(": 5\n", ": x\n").replace(": 6\n", ": 5\n").replace(": x\n", ": 6\n")
    (directory / "target.vocab.yml").write_text(swapped, "utf-8")
    (directory / "decoder.yml").write_text("models: [model.npz]\nvocabs: [opus.vocab.yml, target.vocab.yml]\n")
    source = Tokenizer(load_model(import_model(directory, tmp_path / "separate")).tokenizer_file)
    tokens = [side.tokens(list(range(source.vocabulary_size))) for side in (source, source.target)]
    first = tokens[0].index(names[5])
    assert tokens[0][first : first + 2] == tokens[1][first : first + 2][::-1] == names[5:7]


def test_the_manifest_records_the_comparison_with_marian(pair):
    compared = "the largest difference of a token's log-probability" in pair[1].manifest["proof"]
    assert compared == (find_spec("_pymarian") is not None)
    assert pair[1].manifest["weights"] == {"model.npz": artefact.sha256(pair[0] / "model.npz")}


def test_the_model_and_its_vocabularies_are_found(tmp_path):
    """decoder.yml names them, or they are the only ones in the directory."""

    def chosen(*names, decoder=None, name="decoder.yml"):
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        for each in names:
            (directory / each).touch()
        if decoder:
            (directory / name).write_text(decoder)
        model, vocabularies = marian_files.find_files(directory)
        assert {path.parent for path in (model, *vocabularies)} == {directory}
        return " ".join(path.name for path in (model, *vocabularies))

    assert chosen("m.npz", "v.spm") == "m.npz v.spm v.spm"
    assert chosen("m.npz", "m.npz.optimizer.npz", "vocab.yml") == "m.npz vocab.yml vocab.yml"
    assert chosen("m.npz", "opus.vocab.yml", "source.spm", "target.spm") == "m.npz opus.vocab.yml opus.vocab.yml"
    assert sorted(chosen("m.npz", "source.spm", "target.spm").split()) == ["m.npz", "source.spm", "target.spm"]
    named = "models: [/a/m.npz]\nvocabs: [/b/y.yml, x.yml]\n"
    for name in ("decoder.yml", "model.npz.decoder.yml"):
        assert chosen("m.npz", "n.npz", "x.yml", "y.yml", decoder=named, name=name) == "m.npz y.yml x.yml"
    for names, message in (
        (["v.spm"], r"has 0 models \(\)"),
        (["m.npz", "n.npz"], r"has 2 models \(m.npz, n.npz\)"),
        (["m.npz"], "needs a source and a target vocabulary"),
        (["m.npz", "a.spm", "b.spm", "c.spm"], "needs a source and a target vocabulary"),
    ):
        with pytest.raises(DataError, match=message):
            chosen(*names)
    with pytest.raises(MissingError, match=r"no file .*x\.yml"):
        chosen("m.npz", "y.yml", decoder=named)
    for text, message in (("models: [", "is not valid YAML"), ("- a", "must be a mapping")):
        with pytest.raises(DataError, match=message):
            chosen("m.npz", decoder=text)


def test_decoder_yml_names_one_file_without_a_list(tmp_path):
    """As in Marian. A null or empty value is the same as none."""
    for name in ("m.npz", "v.spm"):
        (tmp_path / name).touch()
    decoder = tmp_path / "decoder.yml"
    decoder.write_text("models: /a/m.npz\nvocabs: v.spm\n")
    assert marian_files.find_files(tmp_path) == (tmp_path / "m.npz", [tmp_path / "v.spm"] * 2)
    for nothing in ("~", "", "null", "''", "[]", "[~, '']", "{a: b}"):
        decoder.write_text(f"models: {nothing}\nvocabs: v.spm\n")
        with pytest.raises(DataError, match=r"has 0 models \(\)\. Name one in decoder\.yml, under models"):
            marian_files.find_files(tmp_path)
        decoder.write_text(f"models: m.npz\nvocabs: {nothing}\n")
        with pytest.raises(DataError, match=r"a target vocabulary\. List both in decoder\.yml, under vocabs"):
            marian_files.find_files(tmp_path)


def test_directories_of_transformers_and_of_marian_are_told_apart(tmp_path):
    (tmp_path / "model.npz.optimizer.npz").touch()
    assert not marian_files.has_marian_model(tmp_path)
    (tmp_path / "model.npz").touch()
    assert marian_files.has_marian_model(tmp_path)
    (tmp_path / "config.json").touch()
    assert not marian_files.has_marian_model(tmp_path)


def test_a_pad_token_of_marian_is_an_ordinary_token(tmp_path):
    """Our PAD is the row of zeros that the import adds."""
    (tmp_path / "vocab.yml").write_text("</s>: 0\n<unk>: 1\n<pad>: 2\na: 3\n")
    for side in ("source", "target"):
        shutil.copy(DATA / "post" / "vocab.spm", tmp_path / f"{side}.spm")
    (numbers, other), models = marian_files.read_vocabularies(tmp_path, [tmp_path / "vocab.yml"] * 2, [4, 4])
    assert list(numbers.items()) == [("<pad>", 4), ("<unk>", 1), ("</s>", 0), ("<pad> of Marian", 2), ("a", 3)]
    assert (other, len(models)) == (numbers, 1)


OPTIONS = {"enc-depth": "2", "dec-depth": "1", "transformer-heads": "4", "transformer-dim-ffn": "64"}


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, None),
        ({"enc-depth": "0", "dec-depth": "0", "transformer-heads": "1"}, None),
        ({"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}, None),
        ({"transformer-postprocess": "an"}, None),
        (
            {
                "transformer-decoder-ffn-depth": "2",
                "transformer-decoder-dim-ffn": "64",
                "input-types": ["sequence"] * 2,
            },
            None,
        ),
        (dict.fromkeys(marian_files.UNSUPPORTED, "false"), None),
        *(({key: "true"}, f"{key} true") for key in marian_files.UNSUPPORTED),
        *(({key: "x"}, f"{key} x") for key in marian_files.SUPPORTED),
        ({"transformer-decoder-autoreg": "average-attention"}, "transformer-decoder-autoreg average-attention"),
        ({"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", "layer-normalization": "false"}, None),
        ({"dec-cell": "gru"}, None),  # has no effect without rnn
        ({"transformer-decoder-autoreg": "rnn", "dec-cell": "gru"}, "dec-cell gru"),
        *(
            ({"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru", key: "true"}, f"{key} true")
            for key in ("layer-normalization", "transformer-rnn-projection")
        ),
        ({"transformer-ffn-activation": "gelu"}, "transformer-ffn-activation gelu"),
        ({"transformer-decoder-dim-ffn": "48"}, "transformer-decoder-dim-ffn 48"),
        ({"transformer-preprocess": "n"}, r"operations n / an /  \(before sublayers / after"),
        ({"enc-depth": "many"}, "damaged: its option enc-depth is many"),
        ({"transformer-dim-ffn": []}, r"damaged: its option transformer-dim-ffn is \[\]"),
        ({"transformer-postprocess": "dna"}, r"the operations  / na /  \(before"),
        ({"transformer-ffn-depth": "3"}, "transformer-ffn-depth 3"),
        ({"lemma-dim-emb": "8", "ulr": "true"}, "lemma-dim-emb 8, ulr true"),
        *(({key: "-1"}, f"damaged: its option {key} is -1") for key in OPTIONS),
        *(({key: None}, f"damaged: its option {key} is None") for key in OPTIONS),
        *(({key: "0"}, f"damaged: its option {key} is 0") for key in ("transformer-heads", "transformer-dim-ffn")),
    ],
)
def test_supported_and_unsupported_options(options, wrong):
    if wrong is None:
        marian_files.check_options(OPTIONS | options, Path("m.npz"))
    else:
        with pytest.raises(DataError, match=wrong):
            marian_files.check_options(OPTIONS | options, Path("m.npz"))


def test_tied_matrices():
    """Each matrix gets one more row, of zeros, from which Marian's decoder starts."""
    tensors = {name: torch.full((3, 2), float(i)) for i, name in enumerate(("Wemb", "encoder_Wemb", "decoder_Wemb"), 1)}
    tensors |= {"decoder_ff_logit_out_W": torch.full((2, 3), 4.0), "decoder_ff_logit_out_b": torch.full((1, 3), 5.0)}
    used = {"": [2, 3, 3], "-src": [1, 1, 4], "-all": [1, 1, 1], None: [2, 3, 4]}
    names = ["Wemb", "encoder_Wemb", "decoder_Wemb", "decoder_ff_logit_out_W"]
    for tied, numbers in used.items():
        given = {
            name: tensor for name, tensor in tensors.items() if name not in names or names.index(name) + 1 in numbers
        }
        options = {"enc-depth": "0", "dec-depth": "0", **({} if tied is None else {f"tied-embeddings{tied}": "true"})}
        result = marian_files.rename_tensors(given, options, Path("m.npz"))
        for name, number in zip(EMBEDDINGS.values(), numbers, strict=True):
            assert torch.equal(result.pop(name), torch.tensor([[number] * 2] * 3 + [[0.0] * 2]))
        assert torch.equal(result.pop(OUTPUT_BIAS), torch.tensor([[5.0, 5.0, 5.0, 0.0]]))
        assert result == {}


def test_the_recipe_follows_from_the_options():
    embeddings = {name: torch.zeros(6, 8) for name in EMBEDDINGS.values()}
    numbers = [dict.fromkeys("abc", 1)] * 2
    made = marian_files.recipe_of(
        embeddings, OPTIONS | {"transformer-dropout": "0.1", "transformer-ffn-activation": "relu"}, numbers
    )
    shape = made.model.model_dump()
    expected = {"num_layers": 2, "encoder_layers": 2, "decoder_layers": 1, "d_model": 8, "num_heads": 4, "d_k": 2}
    expected |= {"d_v": 2, "d_ff": 64, "dropout": 0.1, "norm": "post", "positions": "marian", "max_length": 512}
    expected |= {"attention_bias": True, "output_bias": True, "activation": "relu", "source_vocabulary": 0}
    assert shape == {**expected, "tied_output": True, "source_eos": True, "decoder_cell": "attention"}
    pre = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
    embeddings[EMBEDDINGS["output"]] = torch.ones(6, 8)
    other = marian_files.recipe_of(embeddings, OPTIONS | {**pre, "dec-depth": "2"}, [numbers[0], {"x": 1}]).model
    assert (other.norm, other.dropout, other.activation, other.tied_output) == ("pre", 0, "swish", False)
    assert (other.source_vocabulary, other.encoder_layers) == (6, None)
    embeddings[EMBEDDINGS["src"]] = torch.ones(6, 8)
    assert marian_files.recipe_of(embeddings, OPTIONS, numbers).model.source_vocabulary == 6


def test_marian_is_run_on_tokens(tmp_path, monkeypatch):
    """The adapter passes vocabularies and lines without </s>."""
    calls = []

    def run(words, **_):
        paths = {name: Path(words[words.index(name) + 1]) for name in ("--input", "--train-sets") if name in words}
        start = words.index("--vocabs") + 1
        files = [*paths.values(), *map(Path, words[start : start + 2])]
        calls.append(([word for word in words[3:] if not word.startswith("/")], [file.read_text() for file in files]))
        out = "b a\n\n" if "decode" in words else "x WordScores= -1.5 -2\ny WordScores= -3\n"
        return SimpleNamespace(returncode=0, stdout=out, stderr="")

    monkeypatch.setattr("nmt_cli.interop.adapters.subprocess.run", run)
    source = {"<pad>": 5, "<unk>": 1, "</s>": 0, "a": 3, "<unused 4>": 4}
    target = {"<pad>": 9, "<unk>": 1, "</s>": 0, "b": 7, "a": 8}
    adapter = Marian(tmp_path / "model.npz", [source, target], "post")
    assert list(adapter.translate([[3, 2], [3, 3, 3, 2]], 2, 7)) == [[3, 4, 2], [2]]
    assert list(adapter.score([([3, 2], [4, 2]), ([3, 3, 2], [2])])) == [[-1.5, -2.0], [-3.0]]
    vocabularies = [{"<unk>": 1, "</s>": 0, "a": 3}, {"<unk>": 1, "</s>": 0, "b": 7, "a": 8}]
    (decode, read), (scored, read_too) = calls
    quiet = ["--cpu-threads", "1", "--quiet"]
    options = ["--quiet-translation", "--beam-size", "2", "--normalize", "0", "--max-length-factor", "4", "--allow-unk"]
    assert decode == ["decode", "--models", "--input", "--vocabs", *quiet, *options]
    assert scored == ["score", "--model", "--train-sets", "--vocabs", *quiet, "--word-scores"]
    assert (read[0], [json.loads(text) for text in read[1:]]) == ("a\na a a\n", vocabularies)
    assert (read_too[0], [json.loads(text) for text in read_too[1:]]) == ("a\na a\n", vocabularies)
    assert (adapter.beam, adapter.difference) == (1, "")
    assert "but not in decoding" in Marian(tmp_path / "m", [source, target], "pre").difference
    failed = SimpleNamespace(returncode=1, stdout="out", stderr="no such model\n")
    monkeypatch.setattr("nmt_cli.interop.adapters.subprocess.run", lambda *_, **__: failed)
    with pytest.raises(DataError, match=r"Marian cannot score with .*model\.npz: no such model$"):
        list(adapter.score([([2], [2])]))


def test_a_vocabulary_may_have_more_entries_than_a_recipe_may_have_values() -> None:
    count = yaml_file.MAX_VALUES + 1
    text = "".join(f"w{number}: {number}\n" for number in range(count)).encode()
    assert len(marian_files.parse_yaml(text, Path("vocab.yml"))) == count
