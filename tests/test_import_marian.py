"""Marian's own directories. tests/data/marian has two that pymarian 1.12.42 has trained, and what it makes of text:
`score --word-scores` of references, and `decode --beam-size 1`. "post" is 2 + 1 layers, relu, one vocabulary; "pre" is
1 + 2 layers, swish, an output matrix tied to the target embedding, two vocabularies."""

import io
import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from nmt_cli import artefact
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.errors import DataError, MissingError
from nmt_cli.interop.export import export
from nmt_cli.interop.import_ import import_marian
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.search import score_targets
from nmt_cli.translation.translator import Translator

pytest.importorskip("transformers")
DATA = Path(__file__).parent / "data" / "marian"


@pytest.fixture(scope="module", params=["post", "pre"])
def pair(request, tmp_path_factory):
    """A directory of Marian's, and our model of it."""
    place = import_marian(DATA / request.param, tmp_path_factory.mktemp("imported") / "model")
    return DATA / request.param, load_model(place)


def test_scores_are_those_of_marians_scorer(pair):
    """Every token's log-probability within 1e-4; Marian prints five decimals."""
    directory, ours = pair
    tokenizer, lines = Tokenizer(ours.tokenizer_file), json.loads((directory / "marian.json").read_text())
    texts = [tuple(tokenizer.encode_pair(line["src"], line["tgt"])) for line in lines]
    translator = Translator.of(ours.model, tokenizer, ours.recipe, torch.float32)
    for each in (score_targets([ours.model], torch.float32, texts), translator.score_ids(texts)):  # torch, the engine
        for scores, line in zip(each, lines, strict=True):
            assert scores == pytest.approx(line["scores"], rel=1e-4, abs=1e-4)
    depths = {"post": (2, 1), "pre": (1, 2)}[directory.name]
    assert (ours.recipe.model.depths, len(ours.model.encoder), len(ours.model.decoder)) == (depths, *depths)
    assert ours.recipe.model.norm == directory.name


def test_greedy_translations_are_marians(pair):
    """Of the post-norm model: with pre-norm Marian's decoder computes something else than its training and scorer."""
    directory, ours = pair
    lines = json.loads((directory / "marian.json").read_text())
    translator = Translator.of(ours.model, Tokenizer(ours.tokenizer_file), ours.recipe, torch.float32)
    results = translator.translate([line["src"] for line in lines], beam=1, alpha=0.0, split=False)
    same = sum(result.text == line["greedy"] for result, line in zip(results, lines, strict=True))
    assert (same == len(lines)) == (directory.name == "post"), same


def test_a_model_with_marians_positions_is_exported_and_imported_again(pair, tmp_path):
    directory, ours = pair
    lines = [line["src"] for line in json.loads((directory / "marian.json").read_text())]
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
    assert ours.recipe.model.positions == "marian"
    if directory.name == "pre":
        with pytest.raises(DataError, match="must share one embedding"):
            export(ours.directory, "hf", tmp_path / "hf", None, tmp_path / "lines")
        return
    for target in ("hf", "ctranslate2"):  # or they raise
        assert export(ours.directory, target, tmp_path / target, None, tmp_path / "lines") == 0
    back = load_model(import_marian(tmp_path / "hf", tmp_path / "back"))
    assert back.recipe.model.positions == "marian"
    tensors = back.model.state_dict()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in ours.model.state_dict().items())


def changed(to, options=None, tensors=None, name="post"):
    """Copy a directory, options of its model replaced, and tensors added."""
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
        ({"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}, "transformer-decoder-autoreg rnn"),
        ({"transformer-decoder-autoreg": "average-attention"}, "transformer-decoder-autoreg average-attention"),
        ({"transformer-ffn-activation": "gelu"}, "transformer-ffn-activation gelu"),
        ({"transformer-train-position-embeddings": "true"}, "transformer-train-position-embeddings true"),
        ({"transformer-decoder-dim-ffn": "48"}, "transformer-decoder-dim-ffn 48"),
        ({"transformer-attention-mask": "alibi"}, "transformer-attention-mask alibi"),
        ({"transformer-preprocess": "n"}, "operations n / an /  before, after and above"),
        ({"right-left": "true", "output-omit-bias": "true"}, "right-left true, output-omit-bias true"),
        ({"dec-depth": "2"}, "no tensor decoder_l2_self_Wq"),
        ({"dec-depth": "0"}, "nothing like its tensor decoder_l1_context_Wk"),
        ({"enc-depth": "many"}, "damaged: its option enc-depth is many"),
        ({"transformer-heads": "0"}, "damaged: its option transformer-heads is 0"),
        ({"transformer-dim-ffn": "[]"}, r"damaged: its option transformer-dim-ffn is \[\]"),
    ],
)
def test_other_shapes_are_refused_by_name(tmp_path, options, reason):
    with pytest.raises(DataError, match=reason):
        import_marian(changed(tmp_path / "marian", options), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_what_is_missing_or_damaged_is_named(tmp_path):
    directory = changed(tmp_path / "marian", tensors={"decoder_l1_rnn_W": np.zeros((2, 2), np.float32)})
    shutil.copy(directory / "model.npz", directory / "model.npz.optimizer.npz")  # as training leaves it, no model
    (directory / "decoder.yml").unlink()
    with pytest.raises(DataError, match="nothing like its tensor decoder_l1_rnn_W"):
        import_marian(directory, tmp_path / "model")
    shutil.copy(DATA / "post" / "decoder.yml", directory)
    (directory / "vocab.spm").unlink()
    with pytest.raises(MissingError, match=r"no file .*vocab\.spm"):
        import_marian(directory, tmp_path / "model")
    (directory / "decoder.yml").write_text("models: [a.npz, b.npz]\nvocabs: [vocab.spm, vocab.spm]\n")
    with pytest.raises(DataError, match=r"has 2 models \(a\.npz, b\.npz\)"):
        import_marian(directory, tmp_path / "model")
    (directory / "decoder.yml").write_text("models: [model.npz]\nvocabs: [a.fsv, a.fsv]\n")
    (directory / "a.fsv").touch()
    shutil.copy(DATA / "post" / "model.npz", directory)
    with pytest.raises(DataError, match=r"a\.fsv is a vocabulary that cannot be imported"):
        import_marian(directory, tmp_path / "model")
    (directory / "model.npz").write_bytes(b"PK\x03\x04 and nothing more")
    with pytest.raises(DataError, match=r"model\.npz is damaged"):
        import_marian(directory, tmp_path / "model")
    np.savez(directory / "model.npz", a=np.zeros(1))
    with pytest.raises(DataError, match=r"has no special:model\.yml: it is not a model of Marian"):
        import_marian(directory, tmp_path / "model")


def test_objects_in_an_archive_are_not_unpickled(tmp_path):
    directory = shutil.copytree(DATA / "post", tmp_path / "marian")
    np.savez(directory / "model.npz", a=np.array([io.StringIO], object), allow_pickle=True)
    with pytest.raises(DataError, match=r"model\.npz is damaged: Object arrays cannot be loaded"):
        import_marian(directory, tmp_path / "model")


def test_a_vocabulary_of_words_and_sentencepiece_files_beside_it(tmp_path):
    """As OPUS-MT's releases are: vocab.yml numbers the tokens, source.spm and target.spm split the text."""
    import sentencepiece

    directory = shutil.copytree(DATA / "post", tmp_path / "marian")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(directory / "vocab.spm"))
    names = processor.id_to_piece(list(range(len(processor))))
    text = "".join(f"{json.dumps(name, ensure_ascii=False)}: {i}\n" for i, name in enumerate(names))
    (directory / "opus.vocab.yml").write_text(text, "utf-8")
    (directory / "decoder.yml").write_text("models: [/elsewhere/model.npz]\nvocabs: [opus.vocab.yml, opus.vocab.yml]\n")
    with pytest.raises(MissingError, match=r"source\.spm: a \.yml vocabulary does not say how text is split"):
        import_marian(directory, tmp_path / "model")
    (directory / "opus.vocab.yml").write_text(text.replace(": 5\n", ": five\n"), "utf-8")
    with pytest.raises(DataError, match=r"opus\.vocab\.yml does not number its tokens below"):
        import_marian(directory, tmp_path / "model")
    (directory / "opus.vocab.yml").write_text(text, "utf-8")
    for side in ("source", "target"):
        shutil.copy(directory / "vocab.spm", directory / f"{side}.spm")
    ours, other = (
        load_model(import_marian(each, tmp_path / f"{each.name}-model")) for each in (directory, DATA / "post")
    )
    assert ours.tokenizer_file.read_bytes() == other.tokenizer_file.read_bytes()
    tensors = other.model.state_dict()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in ours.model.state_dict().items())


def test_the_manifest_says_whether_marian_was_asked(pair):
    asked = "the largest difference of a token's log-probability" in pair[1].manifest["proof"]
    assert asked == (find_spec("_pymarian") is not None)
    assert pair[1].manifest["weights"] == {"model.npz": artefact.sha256(pair[0] / "model.npz")}
