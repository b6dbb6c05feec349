"""Marian's own directories. tests/data/marian has two that pymarian 1.12.42 has trained, and what it makes of text:
`score --word-scores` of references, and `decode --beam-size 1`. "post" is 2 + 1 layers, relu, one vocabulary; "pre" is
1 + 2 layers, swish, an output matrix tied to the target embedding, two vocabularies."""

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
from nmt_cli.interop import npz
from nmt_cli.interop.export import export
from nmt_cli.interop.import_ import import_marian
from nmt_cli.interop.marian_peer import Marian
from nmt_cli.interop.vocabulary import in_our_order
from nmt_cli.recipe import yaml_file
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.transformer.weights import load_model
from nmt_cli.translation.search import score_targets
from nmt_cli.translation.translator import Translator

pytest.importorskip("transformers")
DATA = Path(__file__).parents[1] / "data" / "marian"


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
    with pytest.raises(DataError, match=r"model\.npz is damaged: a\.npy claims \(1,\) of object"):
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
    # The same pieces, numbered otherwise on the target side: two tokenizers of one SentencePiece model.
    swapped = text.replace(": 5\n", ": x\n").replace(": 6\n", ": 5\n").replace(": x\n", ": 6\n")
    (directory / "target.vocab.yml").write_text(swapped, "utf-8")
    (directory / "decoder.yml").write_text("models: [model.npz]\nvocabs: [opus.vocab.yml, target.vocab.yml]\n")
    source = Tokenizer(load_model(import_marian(directory, tmp_path / "separate")).tokenizer_file)
    tokens = [side.tokens(list(range(source.vocabulary_size))) for side in (source, source.target)]
    first = tokens[0].index(names[5])
    assert tokens[0][first : first + 2] == tokens[1][first : first + 2][::-1] == names[5:7]


def test_the_manifest_says_whether_marian_was_asked(pair):
    asked = "the largest difference of a token's log-probability" in pair[1].manifest["proof"]
    assert asked == (find_spec("_pymarian") is not None)
    assert pair[1].manifest["weights"] == {"model.npz": artefact.sha256(pair[0] / "model.npz")}


def test_the_files_of_a_directory_are_told_apart(tmp_path):
    """The model and its vocabularies, by decoder.yml or because there are no others."""

    def chosen(*names, decoder=None, name="decoder.yml"):
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        place.mkdir()
        for each in names:
            (place / each).touch()
        if decoder:
            (place / name).write_text(decoder)
        model, vocabularies = npz._files(place)
        assert {path.parent for path in (model, *vocabularies)} == {place}
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
        (["m.npz"], "which vocabulary"),
        (["m.npz", "a.spm", "b.spm", "c.spm"], "which vocabulary"),
    ):
        with pytest.raises(DataError, match=message):
            chosen(*names)
    with pytest.raises(MissingError, match=r"no file .*x\.yml"):
        chosen("m.npz", "y.yml", decoder=named)
    for text, message in (("models: [", "is not valid YAML"), ("- a", "must be a mapping")):
        with pytest.raises(DataError, match=message):
            chosen("m.npz", decoder=text)


def test_a_directory_of_transformers_is_not_one_of_marian(tmp_path):
    (tmp_path / "model.npz.optimizer.npz").touch()
    assert not npz.present(tmp_path)
    (tmp_path / "model.npz").touch()
    assert npz.present(tmp_path)
    (tmp_path / "config.json").touch()
    assert not npz.present(tmp_path)


def test_a_pad_of_marians_own_is_a_token_like_others(tmp_path):
    """Ours is the row that was added for it."""
    (tmp_path / "vocab.yml").write_text("</s>: 0\n<unk>: 1\n<pad>: 2\na: 3\n")
    for side in ("source", "target"):
        shutil.copy(DATA / "post" / "vocab.spm", tmp_path / f"{side}.spm")
    (numbers, other), models = npz._vocabularies(tmp_path, [tmp_path / "vocab.yml"] * 2, [4, 4])
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
        (dict.fromkeys(npz.UNKNOWN, "false"), None),
        *(({key: "true"}, f"{key} true") for key in npz.UNKNOWN),
        *(({key: "x"}, f"{key} x") for key in npz.COMPUTED),
        ({"transformer-postprocess": "dna"}, "the operations  / na /  before"),
        ({"transformer-ffn-depth": "3"}, "transformer-ffn-depth 3"),
        ({"lemma-dim-emb": "8", "ulr": "true"}, "lemma-dim-emb 8, ulr true"),
        *(({key: "-1"}, f"damaged: its option {key} is -1") for key in OPTIONS),
        *(({key: None}, f"damaged: its option {key} is None") for key in OPTIONS),
        *(({key: "0"}, f"damaged: its option {key} is 0") for key in ("transformer-heads", "transformer-dim-ffn")),
    ],
)
def test_options_that_ours_computes(options, wrong):
    if wrong is None:
        npz._check(OPTIONS | options, Path("m.npz"))
    else:
        with pytest.raises(DataError, match=wrong):
            npz._check(OPTIONS | options, Path("m.npz"))


def test_which_matrices_of_marian_are_one():
    """By its options of tying; with a row of zeros more, from which its decoder starts."""
    tensors = {name: torch.full((3, 2), float(i)) for i, name in enumerate(("Wemb", "encoder_Wemb", "decoder_Wemb"), 1)}
    tensors |= {"decoder_ff_logit_out_W": torch.full((2, 3), 4.0), "decoder_ff_logit_out_b": torch.full((1, 3), 5.0)}
    used = {"": [2, 3, 3], "-src": [1, 1, 4], "-all": [1, 1, 1], None: [2, 3, 4]}
    names = ["Wemb", "encoder_Wemb", "decoder_Wemb", "decoder_ff_logit_out_W"]
    for tied, numbers in used.items():
        given = {
            name: tensor for name, tensor in tensors.items() if name not in names or names.index(name) + 1 in numbers
        }
        options = {"enc-depth": "0", "dec-depth": "0", **({} if tied is None else {f"tied-embeddings{tied}": "true"})}
        result = npz._as_transformers(given, options, Path("m.npz"))
        for name, number in zip(npz.EMBEDDINGS.values(), numbers, strict=True):
            assert torch.equal(result.pop(name), torch.tensor([[number] * 2] * 3 + [[0.0] * 2]))
        assert torch.equal(result.pop(npz.BIAS), torch.tensor([[5.0, 5.0, 5.0, 0.0]]))
        assert result == {}


def test_a_recipe_holds_what_the_options_say():
    embeddings = {name: torch.zeros(6, 8) for name in npz.EMBEDDINGS.values()}
    numbers = [dict.fromkeys("abc", 1)] * 2
    made = npz._recipe(
        embeddings, OPTIONS | {"transformer-dropout": "0.1", "transformer-ffn-activation": "relu"}, numbers
    )
    shape = made.model.model_dump()
    expected = {"num_layers": 2, "encoder_layers": 2, "decoder_layers": 1, "d_model": 8, "num_heads": 4, "d_k": 2}
    expected |= {"d_v": 2, "d_ff": 64, "dropout": 0.1, "norm": "post", "positions": "marian", "max_length": 512}
    expected |= {"attention_bias": True, "output_bias": True, "activation": "relu", "source_vocabulary": 0}
    assert shape == {**expected, "tied_output": True}
    pre = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
    embeddings[npz.EMBEDDINGS["output"]] = torch.ones(6, 8)
    other = npz._recipe(embeddings, OPTIONS | {**pre, "dec-depth": "2"}, [numbers[0], {"x": 1}]).model
    assert (other.norm, other.dropout, other.activation, other.tied_output) == ("pre", 0, "swish", False)
    assert (other.source_vocabulary, other.encoder_layers) == (6, None)
    embeddings[npz.EMBEDDINGS["src"]] = torch.ones(6, 8)
    assert npz._recipe(embeddings, OPTIONS, numbers).model.source_vocabulary == 6


def test_marian_is_asked_by_tokens(tmp_path, monkeypatch):
    """Its command line, and the files that it is given: vocabularies, and lines without </s>."""
    calls = []

    def run(words, **_):
        paths = {name: Path(words[words.index(name) + 1]) for name in ("--input", "--train-sets") if name in words}
        start = words.index("--vocabs") + 1
        files = [*paths.values(), *map(Path, words[start : start + 2])]
        calls.append(([word for word in words[3:] if not word.startswith("/")], [file.read_text() for file in files]))
        out = "b a\n\n" if "decode" in words else "x WordScores= -1.5 -2\ny WordScores= -3\n"
        return SimpleNamespace(returncode=0, stdout=out, stderr="")

    monkeypatch.setattr("nmt_cli.interop.marian_peer.subprocess.run", run)
    source = {"<pad>": 5, "<unk>": 1, "</s>": 0, "a": 3, "<unused 4>": 4}
    target = {"<pad>": 9, "<unk>": 1, "</s>": 0, "b": 7, "a": 8}
    peer = Marian(tmp_path / "model.npz", [source, target], "post")
    assert list(peer.translate([[3, 2], [3, 3, 3, 2]], 2, 7)) == [[3, 4, 2], [2]]
    assert list(peer.score([([3, 2], [4, 2]), ([3, 3, 2], [2])])) == [[-1.5, -2.0], [-3.0]]
    vocabularies = [{"<unk>": 1, "</s>": 0, "a": 3}, {"<unk>": 1, "</s>": 0, "b": 7, "a": 8}]
    (decode, read), (scored, read_too) = calls
    quiet = ["--cpu-threads", "1", "--quiet"]
    options = ["--quiet-translation", "--beam-size", "2", "--normalize", "0", "--max-length-factor", "4", "--allow-unk"]
    assert decode == ["decode", "--models", "--input", "--vocabs", *quiet, *options]
    assert scored == ["score", "--model", "--train-sets", "--vocabs", *quiet, "--word-scores"]
    assert (read[0], [json.loads(text) for text in read[1:]]) == ("a\na a a\n", vocabularies)
    assert (read_too[0], [json.loads(text) for text in read_too[1:]]) == ("a\na a\n", vocabularies)
    assert (peer.beam, peer.differs, Marian(tmp_path / "m", [source, target], "pre").differs[:16]) == (
        *(1, "", "Marian's decoder"),
    )
    failed = SimpleNamespace(returncode=1, stdout="out", stderr="no such model\n")
    monkeypatch.setattr("nmt_cli.interop.marian_peer.subprocess.run", lambda *_, **__: failed)
    with pytest.raises(DataError, match=r"Marian cannot score with .*model\.npz: no such model$"):
        list(peer.score([([2], [2])]))


def test_tokens_in_our_order():
    """Ours first, then theirs by number; a number without a token gets a name."""
    theirs = {"z": 4, "</s>": 0, "<unk>": 1, "b": 3, "<pad>": 6}
    ours = in_our_order(theirs, 8, Path("v"))
    expected = {"<pad>": 6, "<unk>": 1, "</s>": 0, "<unused 2>": 2, "b": 3, "z": 4, "<unused 5>": 5, "<unused 7>": 7}
    assert list(ours.items()) == list(expected.items())
    for wrong in ({"b": 4}, {"b": 8}, {"b": -1}, {"b": "3"}, {"b": True}, {"b": 3.0}):
        with pytest.raises(DataError, match="v does not number its tokens below 8, each by a number of its own"):
            in_our_order(theirs | wrong, 8, Path("v"))
    for name in ("<pad>", "</s>", "<unk>"):
        with pytest.raises(DataError, match=f"v has no token {name}"):
            in_our_order({token: i for token, i in theirs.items() if token != name}, 8, Path("v"))


def test_a_vocabulary_may_have_more_entries_than_a_recipe_has_values() -> None:
    count = yaml_file.MOST_VALUES + 1
    text = "".join(f"w{number}: {number}\n" for number in range(count)).encode()
    assert len(npz._yaml(text, Path("vocab.yml"))) == count
