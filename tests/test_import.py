"""Importing Marian models: random ones built with transformers, our own exports, and what must be refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch

from nmt_cli import recipe
from nmt_cli.corpus import tokenizer as subwords
from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import DataError, MissingError, OutputError
from nmt_cli.interop import spm, write
from nmt_cli.interop.import_ import import_marian
from nmt_cli.training.train import TrainOptions, train
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import LoadedModel, load_model, load_tensors, save_model
from nmt_cli.translation.search import force

TEXT = [
    f"the {a} {b} sees a {c} dog und der {a}e {b} schläft"
    for a in ["old", "red", "big"]
    for b in ["cat", "man", "fox"]
    for c in ["shy", "sad", "wet"]
]


@pytest.fixture(scope="module")
def vocabulary_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spm") / "tokenizer.model"
    path.write_bytes(subwords.train(TEXT, 320))
    return path


def random_model(file: Path, out: Path, **knobs: object) -> LoadedModel:
    """Save a small model with random weights, biases and norms, and open it."""
    settings = {"num_layers": 2, "d_model": 32, "d_ff": 48, "num_heads": 4, "d_k": 8, "d_v": 8, "max_length": 128}
    resolved = recipe.from_plain({"name": "random", "model": {**settings, **knobs}}, "test")
    torch.manual_seed(3)
    model = Transformer(resolved.model, Tokenizer(file).vocabulary_size)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 1.0 if parameter.dim() == 1 else 0.0, 0.2)
    with torch.no_grad():
        model.embedding.weight[0] = 0
        if model.output_bias is not None:
            model.output_bias[0] = 0
    save_model(out, model.state_dict(), resolved, file, {})
    return load_model(out)


def marian(out: Path, pieces: list[str], source: bytes, target: bytes, **changes: object) -> "torch.nn.Module":
    """Save a random Marian model as transformers writes it."""
    import transformers

    size = len(pieces)
    facts = {
        "vocab_size": size, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "scale_embedding": True,
        "activation_function": "swish", "pad_token_id": size - 1, "decoder_start_token_id": size - 1, "eos_token_id": 0,
        "forced_eos_token_id": 0, "max_position_embeddings": 64,
    }  # fmt: skip
    torch.manual_seed(5)
    model = transformers.MarianMTModel(transformers.MarianConfig(**{**facts, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2)
        model.model.shared.weight[size - 1] = 0
        model.final_logits_bias.normal_()
    model.save_pretrained(out)
    (out / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (out / "source.spm").write_bytes(source)
    (out / "target.spm").write_bytes(target)
    (out / "tokenizer_config.json").write_text('{"source_lang": "en", "target_lang": "de"}')
    return model


def opus_pieces(*models: bytes) -> list[str]:
    """Return a vocabulary as OPUS-MT orders it: </s>, <unk>, pieces, <pad>."""
    known = dict.fromkeys(piece for model in models for piece in spm.pieces(model))
    rest = [piece for piece in known if piece not in ("<pad>", "<unk>", "</s>", "<s>")]
    return ["</s>", "<unk>", *sorted(rest), "<pad>"]


def unigram(lines: list[str], size: int) -> bytes:
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, hard_vocab_limit=False, minloglevel=2
    )
    return model.getvalue()


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("bias", [False, True])
def test_round_trip_gives_identical_weights(tmp_path: Path, vocabulary_file: Path, norm: str, bias: bool) -> None:
    knobs = {"norm": norm, "attention_bias": bias, "output_bias": bias, "activation": "gelu"}
    loaded = random_model(vocabulary_file, tmp_path / "model", **knobs)
    (tmp_path / "hf").mkdir()
    write.write_hf(loaded, tmp_path / "hf")
    again = load_model(import_marian(tmp_path / "hf", tmp_path / "again"))
    before, after = loaded.model.state_dict(), again.model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert again.recipe.model == recipe.from_plain({"model": {**recipe.to_plain(loaded.recipe.model)}}, "test").model
    assert again.tokenizer_file.read_bytes() == vocabulary_file.read_bytes()


def test_random_marian_agrees_with_transformers(tmp_path: Path) -> None:
    source = unigram(TEXT, 60)
    pieces = opus_pieces(source)
    theirs = marian(tmp_path / "hf", pieces, source, source)
    ours = load_model(import_marian(tmp_path / "hf", tmp_path / "model"))
    tokenizer = Tokenizer(ours.tokenizer_file)
    ids = tokenizer.encode(["the old cat sees a wet dog", "der fox schläft"])
    named = [tokenizer.pieces(line) for line in ids]
    src, tgt = ([pieces.index(piece) for piece in line] for line in named)
    pad = len(pieces) - 1
    logits = theirs(torch.tensor([[*src, 0]]), decoder_input_ids=torch.tensor([[pad, *tgt]])).logits[0]
    logits[:, pad] = -torch.inf
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor([[*tgt, 0]]).T).flatten().tolist()
    found = force(ours.model, torch.float32, [([*ids[0], EOS], [*ids[1], EOS])])[0]
    assert found == pytest.approx(expected, abs=1e-5)
    assert ours.recipe.model.activation == "swish"
    assert (ours.recipe.corpus.src, ours.recipe.corpus.tgt) == ("en", "de")


def test_two_unigram_models_over_one_vocabulary(tmp_path: Path) -> None:
    import sentencepiece

    source, target = (
        unigram([line.split(" und ")[0] for line in TEXT], 50),
        unigram([line.split(" und ")[1] for line in TEXT], 50),
    )
    pieces = opus_pieces(source, target)
    marian(tmp_path / "hf", pieces, source, target)
    ours = Tokenizer(load_model(import_marian(tmp_path / "hf", tmp_path / "model")).tokenizer_file)
    text = ["the old fox sees a shy dog", "a red man"]
    plain = sentencepiece.SentencePieceProcessor(model_proto=source)
    assert [ours.pieces(ids) for ids in ours.encode(text)] == plain.encode(text, out_type=str)
    german = sentencepiece.SentencePieceProcessor(model_proto=target).encode("der alte fox schläft", out_type=str)
    assert ours.vocabulary_size == len(pieces)
    names = ours.pieces(list(range(ours.vocabulary_size)))
    assert ours.decode([[names.index(piece) for piece in german]]) == ["der alte fox schläft"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"decoder_layers": 1}, "differ in layers"),
        ({"decoder_ffn_dim": 24}, "differ in d_ff"),
        ({"decoder_attention_heads": 2}, "differ in heads"),
        ({"scale_embedding": False}, "not scaled"),
        ({"activation_function": "tanh"}, "activation tanh"),
        ({"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}, "separate"),
        ({"decoder_start_token_id": 0}, "zero embedding"),
    ],
)
def test_what_cannot_be_represented_is_refused(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    source = unigram(TEXT, 60)
    marian(tmp_path / "hf", opus_pieces(source), source, source)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(DataError, match=reason):
        import_marian(tmp_path / "hf", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_other_weights_than_the_config_says_are_refused(tmp_path: Path) -> None:
    source = unigram(TEXT, 60)
    marian(tmp_path / "hf", opus_pieces(source), source, source)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**config, "encoder_layers": 3, "decoder_layers": 3}))
    with pytest.raises(DataError, match="no tensor"):
        import_marian(tmp_path / "hf", tmp_path / "model")


def test_files_that_are_missing_or_wrong(tmp_path: Path) -> None:
    source = unigram(TEXT, 60)
    pieces = opus_pieces(source)
    directory = tmp_path / "hf"
    marian(directory, pieces, source, source)
    (directory / "source.spm").write_bytes(source[: len(source) // 2])
    with pytest.raises(DataError, match=r"source\.spm"):
        import_marian(directory, tmp_path / "model")
    (directory / "source.spm").unlink()
    with pytest.raises(MissingError, match=r"source\.spm"):
        import_marian(directory, tmp_path / "model")
    (directory / "source.spm").write_bytes(source)
    (directory / "vocab.json").write_text(json.dumps({piece: i + 1 for i, piece in enumerate(pieces)}))
    with pytest.raises(DataError, match=r"vocab\.json"):
        import_marian(directory, tmp_path / "model")
    (directory / "vocab.json").write_text(
        json.dumps({piece: i for i, piece in enumerate([*pieces[:2], ">>de<<", *pieces[3:]])})
    )
    with pytest.raises(DataError, match=">>xx<<"):
        import_marian(directory, tmp_path / "model")
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(DataError, match="pickle"):
        import_marian(directory, tmp_path / "model")
    (tmp_path / "model").mkdir()
    with pytest.raises(OutputError, match="exists"):
        import_marian(directory, tmp_path / "model")


def test_fine_tuning_starts_from_an_imported_model(
    tmp_path: Path, numbers_text: Path, tiny_recipe: Callable[..., recipe.Recipe]
) -> None:
    source = unigram([line for side in ("en", "de") for line in (numbers_text / f"train.{side}").open()], 60)
    marian(tmp_path / "hf", opus_pieces(source), source, source)
    model = import_marian(tmp_path / "hf", tmp_path / "model")
    known = recipe.to_plain(load_model(model).recipe.model)
    settings = tiny_recipe(
        *(f"model.{knob}={value}" for knob, value in known.items()),
        f"corpus.tokenizer.file={model / 'tokenizer.model'}",
        f"training.init_from={model}",
        *("training.rate_factor=0", "training.steps=1", "averaging.last=1"),
    )
    corpus = prepare(settings.corpus, tmp_path / "data", PrepareOptions(workers=1))
    assert train(settings, TrainOptions(corpus, tmp_path / "run")) == 0
    tuned = load_tensors(tmp_path / "run/checkpoints/step-0000001/model.safetensors")
    before = load_model(model).model.state_dict()
    assert all(torch.equal(tuned[name], before[name]) for name in before)
