"""Import Marian models of transformers: random models, our own exports, and models that must be refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors.torch
import sentencepiece
import torch
from small_run import page_data

from nmt_cli.corpus import tokenizer as subwords
from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.corpus.store import open_corpus
from nmt_cli.corpus.tokenizer import EOS, UNK, Tokenizer, files_of
from nmt_cli.interop import transformers_marian
from nmt_cli.interop.export import export
from nmt_cli.interop.importing import import_model, verify_import
from nmt_cli.recipe import loading
from nmt_cli.reporting.attend import attend
from nmt_cli.system.errors import DataError, MissingError, OutputError
from nmt_cli.training.train import train
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_model, load_tensors, save_model
from nmt_cli.translation.assembler import join
from nmt_cli.translation.search import score_targets
from nmt_cli.translation.segmenter import halves, split_line
from nmt_cli.translation.segments import Hypothesis
from nmt_cli.translation.translator import Translator
from nmt_cli.translation.writer import alignment

pytest.importorskip("transformers")

from random_marian import OWN_OUTPUT, OWN_SOURCE, SOURCE, TEXT, random_marian, randomize, train_unigram, vocabulary


def sides(loaded):
    source = Tokenizer(loaded.tokenizer_file)
    return source, source.target


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved")
    random_marian(directory)
    return directory


@pytest.mark.parametrize(("norm", "bias"), [("post", False), ("pre", True)])
def test_round_trip_gives_identical_weights(tmp_path, norm, bias):
    file = tmp_path / "tokenizer.model"
    sizes = {"num_layers": 3, "encoder_layers": 3, "decoder_layers": 1, "d_model": 32, "d_ff": 48, "num_heads": 4}
    file.write_bytes(subwords.train(TEXT, 320))
    changes = {"norm": norm, "attention_bias": bias, "output_bias": bias, "activation": "gelu", "dropout": 0.25}
    values = {**sizes, "d_k": 8, "d_v": 8, "max_length": 600, **changes}
    settings = loading.from_plain({"name": "random", "model": values}, "test")
    model = Transformer(settings.model, Tokenizer(file).vocabulary_size)
    randomize(model, model.embedding.weight[0], *([model.output_bias[0]] if model.output_bias is not None else []))
    save_model(tmp_path / "model", model.state_dict(), settings, file, {})
    (tmp_path / "hf").mkdir()
    transformers_marian.write_transformers(load_model(tmp_path / "model"), 0.5, tmp_path / "hf")
    search = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert (search["max_length"], search["length_penalty"], search["num_beams"]) == (512, 0.5, 4)
    again = load_model(import_model(tmp_path / "hf", tmp_path / "again"))
    before, after = model.state_dict(), again.model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert again.recipe.model == settings.model
    assert again.tokenizer_file.read_bytes() == file.read_bytes()


def test_random_marian_agrees_with_transformers(tmp_path):
    theirs = random_marian(tmp_path / "hf")
    ours = load_model(import_model(tmp_path / "hf", tmp_path / "model"))
    tokenizer, tokens = Tokenizer(ours.tokenizer_file), vocabulary(SOURCE)
    ids = tokenizer.encode(["the old ☃ sees a wet dog", "der fox schläft ☃"])
    src, tgt = ([tokens.index(token) for token in tokenizer.tokens(line)] for line in ids)
    pad = len(tokens) - 1
    logits = theirs(torch.tensor([[*src, 0]]), decoder_input_ids=torch.tensor([[pad, *tgt]])).logits[0]
    logits[:, pad] = -torch.inf
    expected = torch.log_softmax(logits, -1).gather(1, torch.tensor([[*tgt, 0]]).T).flatten().tolist()
    (scores,) = score_targets([ours.model], torch.float32, [([*ids[0], EOS], [*ids[1], EOS])])
    assert scores == pytest.approx(expected, abs=1e-5)
    assert ours.recipe.model.activation == "swish"
    assert (ours.recipe.corpus.src, ours.recipe.corpus.tgt) == ("en", "de")


def test_two_unigram_models_may_share_one_vocabulary(tmp_path):
    source, target = (train_unigram([line.split(" und ")[side] for line in TEXT], 50) for side in (0, 1))
    random_marian(tmp_path / "hf", source, target)
    ours = Tokenizer(load_model(import_model(tmp_path / "hf", tmp_path / "model")).tokenizer_file)
    text = ["the old fox sees a shy dog", "a red man"]
    plain = sentencepiece.SentencePieceProcessor(model_proto=source)
    assert [ours.tokens(ids) for ids in ours.encode(text)] == plain.encode(text, out_type=str)
    german = sentencepiece.SentencePieceProcessor(model_proto=target).encode("der alte fox schläft", out_type=str)
    assert ours.vocabulary_size == len(vocabulary(source, target))
    names = ours.tokens(list(range(ours.vocabulary_size)))
    ids = [names.index(token) for token in german]
    assert ours.decode([ids]) == ["der alte fox schläft"]
    assert ours.encode_pair(text[0], "der alte fox schläft") == [[*ours.encode(text)[0], EOS], [*ids, EOS]]
    assert ours.encode(["der alte fox schläft"]) != [ids]


def test_separate_vocabularies_name_each_sides_tokens(tmp_path):
    source, target = (
        train_unigram([line.split(" und ")[side] for line in TEXT], size) for side, size in ((0, 40), (1, 50))
    )
    random_marian(tmp_path / "hf", source, target, biased=False, separate=True, **OWN_SOURCE, **OWN_OUTPUT)
    src, tgt = sides(load_model(import_model(tmp_path / "hf", tmp_path / "model")))
    assert src.vocabulary_size != tgt.vocabulary_size
    text, answer = "the old fox sees a shy dog", "der alte fox schläft"
    with Translator(tmp_path / "model", workers=1, precision="fp32") as translator:
        source, (*ids, _) = src.encode_pair(text, answer)
        found = Hypothesis(ids, -1.0, -1.0, [-1.0], source_positions=[0] * len(ids))
        joined = join(src, [found], SimpleNamespace(alpha=0.6, penalty_offset=5))
        assert (joined.text, "".join(joined.tokens)) == (answer, "▁der▁alte▁fox▁schläft</s>")
        points = alignment(translator.tokenizer, [(source, found)]).split()
    assert {int(point.partition("-")[2]) for point in points} == {0, 1, 2, 3}
    attend([text], tmp_path / "model", tmp_path / "page.html", translation=answer)
    names = page_data((tmp_path / "page.html").read_text())["sentences"][0]["names"]["cross"]
    spelled = ["".join(each[:-1]).replace("·", "").replace("▁", "") for each in names]
    assert spelled == [line.replace(" ", "") for line in (answer, text)]


def test_a_language_tag_is_one_token_at_the_beginning(tmp_path):
    random_marian(tmp_path / "hf", tags=[">>deu<<", ">>swe<<"])
    place = import_model(tmp_path / "hf", tmp_path / "model")
    ours, line = Tokenizer(place / "tokenizer.model"), "the old fox sees a shy dog"
    (ids,) = ours.encode([f">>swe<< {line}"])
    assert ours.tokens(ids[:1]) == ["▁>>swe<<"]
    assert ids[1:] == ours.encode([line])[0]
    assert (ours.language(ids), ours.language(ids[1:])) == (ids[:1], [])
    parts = split_line(ours, f">>swe<< {line}. {line}.", 8, 9)
    assert len(parts) > 2
    assert all(part[0] == ids[0] and part.count(ids[0]) == 1 and len(part) <= 9 for part in parts)
    assert all(half[0] == ids[0] and half.count(ids[0]) == 1 for half in halves(ours, [*ids, EOS]))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scale_embedding": False}, "scaled by sqrt"),
        ({"activation_function": "tanh"}, "an activation other than tanh"),
        ({"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}, "has no tensor lm_head"),
        ({"decoder_vocab_size": 5}, r"vocab\.json must be distinct and below 5"),
        ({"encoder_layers": 3}, r"no tensor model\.encoder\.layers\.2"),
        ({"decoder_layers": 3}, r"no tensor model\.decoder\.layers\.2"),
        ({"model_type": "t5"}, "t5 model"),
        ({"d_model": "wide"}, r"config\.json is damaged"),
    ],
)
def test_unsupported_models_are_refused(tmp_path, saved, changes, reason):
    directory = shutil.copytree(saved, tmp_path / "hf")
    config = json.loads((saved / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(DataError, match=reason):
        import_model(directory, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_different_results_and_two_bpe_models_are_refused(tmp_path, saved, monkeypatch):
    random_marian(tmp_path / "hf", bpe := subwords.train(TEXT, 320), bpe.replace(b"fox", b"fex"))
    with pytest.raises(DataError, match="two BPE models for one vocabulary"):
        import_model(tmp_path / "hf", tmp_path / "model")
    monkeypatch.setattr(transformers_marian, "sines_first", torch.arange)
    with pytest.raises(DataError, match=r"the import of .* could not be verified"):
        import_model(saved, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_language_tag_that_is_split_differently_is_refused(tmp_path):
    random_marian(tmp_path / "hf", tags=[">>deu de<<", ">>swe<<"])
    with pytest.raises(DataError, match="splits 1 of 2 lines differently"):
        import_model(tmp_path / "hf", tmp_path / "model")


def test_missing_and_damaged_files_are_named(tmp_path, saved):
    directory, tokens = shutil.copytree(saved, tmp_path / "hf"), vocabulary(SOURCE)

    def refused(name, content, error, reason):
        before = (directory / name).read_bytes()
        (directory / name).unlink() if content is None else (directory / name).write_bytes(content)
        with pytest.raises(error, match=reason):
            import_model(directory, tmp_path / "model")
        (directory / name).write_bytes(before)

    def numbered(names, first=0):
        return json.dumps({name: i for i, name in enumerate(names, first)}).encode()

    refused("source.spm", SOURCE[: len(SOURCE) // 2], DataError, r"source\.spm")
    refused("source.spm", None, MissingError, r"source\.spm")
    refused("vocab.json", numbered(tokens, 1), DataError, r"vocab\.json")
    tensors = load_tensors(directory / "model.safetensors")
    del tensors["model.encoder.layers.0.fc1.bias"]
    refused("model.safetensors", safetensors.torch.save(tensors, {"format": "pt"}), DataError, "no tensor .*fc1.bias")
    refused("model.safetensors", None, MissingError, r"hf has no weights: no model\.safetensors, no pytorch_model\.bin")
    refused("vocab.json", None, MissingError, r"hf has no vocab\.json")
    (directory / "model.bin").touch()
    refused("model.safetensors", None, DataError, r"model\.bin is damaged or not a model of CTranslate2")
    with pytest.raises(MissingError, match=r"no file or directory \./nothing\. To import from the hub, pass OWNER"):
        import_model("./nothing", tmp_path / "model")
    (tmp_path / "model").mkdir()
    refused("vocab.json", b"", OutputError, "exists")


@pytest.mark.parametrize(
    ("two_tokenizers", "tags", "changes"),
    [
        (False, [">>deu<<", ">>swe<<"], {"activation_function": "gelu"}),
        (False, [], {"activation_function": "relu", "biased": False}),
        (True, [], OWN_SOURCE | OWN_OUTPUT),
        (False, [], OWN_OUTPUT),
        (True, [">>deu<<"], {**OWN_SOURCE, "separate": True}),
    ],
)
def test_an_imported_model_is_fine_tuned_and_exported_again(tmp_path, numbers_text, two_tokenizers, tags, changes):
    text = [(numbers_text / f"train.{side}").read_text().split("\n")[:50] for side in ("en", "de")]
    spm = [train_unigram(side, 40) for side in text] if two_tokenizers else [train_unigram(text[0] + text[1], 60)] * 2
    random_marian(tmp_path / "hf", *spm, tags, **changes)
    model = load_model(import_model(tmp_path / "hf", tmp_path / "model"))
    shape, sizes = model.recipe.model, [side.vocabulary_size for side in sides(model)]
    assert [shape.attention_bias, shape.output_bias] == [changes.get("biased", True)] * 2
    assert shape.activation == changes.get("activation_function", "swish")
    own = {"src": sizes[0]} if {*changes} & {*OWN_SOURCE, *OWN_OUTPUT} else {}  # OWN_OUTPUT unties the source, too
    own |= {"output": sizes[1]} if {*changes} & {*OWN_OUTPUT} else {}
    assert {name: len(matrix.weight) for name, matrix in model.model.own_embeddings.items()} == own
    assert shape.source_vocabulary == own.get("src", 0)
    assert (sizes[0] == sizes[1]) == (not changes.get("separate"))
    for side, tag, lines in (("src", "".join(f"{tag} " for tag in tags[:1]), text[0]), ("tgt", "", text[1])):
        (tmp_path / side).write_text("".join(f"{tag}{line}\n" for line in lines))
    steps = ["steps=3", "tokens_per_step=300", "validate_bleu=0", "precision=fp32", f"init_from={tmp_path}/model"]
    others = ["averaging.with_start=[]", "decoding.extra_length=10", "corpus.cleaning.check_script=no"]
    files = [f"corpus.train_{side}=[{tmp_path}/{side}]" for side in ("src", "tgt")]
    settings = loading.load(Path("finetune"), [*(f"training.{step}" for step in steps), *files, *others])
    corpus = open_corpus(prepare(settings.corpus, tmp_path / "data", PrepareOptions(workers=1)))
    ids = [side.gather(np.array([0]))[0].tolist() for side in (corpus.src, corpus.tgt)]
    theirs = [sentencepiece.SentencePieceProcessor(model_proto=each) for each in spm]
    pieces = [each.encode(lines[0], out_type=str) for each, lines in zip(theirs, text, strict=True)]
    expected = [[*(f"▁{tag}" for tag in tags[:1]), *pieces[0], "</s>"], [*pieces[1], "</s>"]]
    assert [own.tokens(side) for own, side in zip(sides(model), ids, strict=True)] == expected
    for file in files_of(tmp_path / "model" / "tokenizer.model"):
        content = file.read_bytes()
        file.write_bytes(content + b"\x00")
        with pytest.raises(OutputError, match=f"{file.name} is a different file"):
            prepare(settings.corpus, corpus.directory, PrepareOptions(workers=1))
        file.write_bytes(content)
    wrong = settings.model_copy(update={"model": shape.model_copy(update={"source_vocabulary": 7})})
    message = rf"has a source vocabulary of {sizes[0]} tokens: set model\.source_vocabulary={sizes[0]}"
    with pytest.raises(DataError, match=message):
        train(wrong, corpus.directory, tmp_path / "wrong")
    assert train(settings, corpus.directory, tmp_path / "run") == 0
    tuned = load_model(tmp_path / "run").model.state_dict()
    trained = [name for name, tensor in model.model.state_dict().items() if not torch.equal(tuned[name], tensor)]
    assert {name for name in tuned if "embed" in name} <= {*trained}
    few = tmp_path / "few"
    few.write_text("".join((tmp_path / "src").read_text().splitlines(keepends=True)[:12]))
    assert export(tmp_path / "run", "hf", tmp_path / "again", None, few) == 0
    if changes.get("separate"):
        with pytest.raises(DataError, match="CTranslate2 converts only Marian models with one vocabulary"):
            export(tmp_path / "run", "ctranslate2", tmp_path / "ct2", None, few)
    elif own:
        assert export(tmp_path / "run", "ctranslate2", tmp_path / "ct2", None, few) == 0
    back = load_model(import_model(tmp_path / "again", tmp_path / "back"))
    assert back.recipe.model == shape
    assert all(torch.equal(tensor, tuned[name]) for name, tensor in back.model.state_dict().items())
    assert Tokenizer(back.tokenizer_file).encode_pair(text[0][0], text[1][0]) == [ids[0][len(tags[:1]) :], ids[1]]


def test_imports_are_compared_on_random_known_tokens(tmp_path):
    """Each side gets twelve lines. The other tokenizer may split six lines differently."""
    (tmp_path / "tokenizer.model").write_bytes(subwords.train(TEXT, 320))
    tokenizer = Tokenizer(tmp_path / "tokenizer.model")
    adapter = Mock(check_tokenizer=Mock(side_effect=LookupError))
    with pytest.raises(LookupError):
        verify_import(None, tokenizer, None, adapter)
    (call,) = adapter.check_tokenizer.call_args_list
    _, lines, targets = call.args
    assert (call.args[0], call.kwargs, len(lines), lines) == (tokenizer, {"allowed": 6}, 12, targets)
    assert not any(UNK in ids for ids in tokenizer.encode(lines))
    assert len({*lines}) == 12
    assert verify_import(None, tokenizer, None, None).startswith(
        "The import was not verified, because the model's toolkit (pymarian"
    )
