"""One CTranslate2 model rewritten in many forms: other versions, other names and attributes, and damage."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from binary_ctranslate2 import binary_bytes, written

from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.interop import ctranslate2_binary, ctranslate2_files
from nmt_cli.interop.ctranslate2_binary import read_binary
from nmt_cli.interop.ctranslate2_config import has_explicit_eos
from nmt_cli.interop.ctranslate2_files import read_ctranslate2
from nmt_cli.interop.ctranslate2_variables import check_features
from nmt_cli.interop.foreign import ForeignModel
from nmt_cli.interop.importing import import_model
from nmt_cli.interop.packages import import_package
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.transformer.model import sinusoids
from nmt_cli.transformer.weights import load_model

pytest.importorskip("ctranslate2")

from opennmt_models import D, argos_folder, opennmt_model
from random_marian import SOURCE, TEXT, train_unigram

Variables = dict[str, Any]
SIDES = "encoder", "decoder"
NO_ALIGNMENT: Variables = {"decoder/alignment_heads": None, "decoder/alignment_layer": None}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return opennmt_model(tmp_path_factory.mktemp("theirs") / "model")


@pytest.fixture
def rewritten(theirs: Path, tmp_path: Path) -> Callable[..., Path]:
    """A function that writes the model with changed variables and returns its directory; None removes a variable."""
    binary = read_binary(theirs / "model.bin")

    def rewrite(changes: Variables | None = None, **header: Any) -> Path:
        variables = {name: binary.values(name) for name in binary.variables} | (changes or {})
        variables = {name: value for name, value in variables.items() if value is not None}
        out = tmp_path / f"model-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(theirs, out)
        (out / "model.bin").write_bytes(binary_bytes(variables, **header))
        return out

    return rewrite


def same(first: ForeignModel, second: ForeignModel) -> bool:
    assert first.tensors.keys() == second.tensors.keys()
    return all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)


def number(value: float, kind: Any = np.int8) -> Any:
    return np.array(value, kind)


@pytest.mark.parametrize(("version", "revision"), [(2, 2), (3, 3), (4, 6), (5, 2), (6, 7)])
def test_models_of_old_revisions_are_read_like_the_new_one(
    theirs: Path, rewritten: Any, version: int, revision: int
) -> None:
    """Old models have one number of heads, one norm and one activation for both sides, and lack newer attributes."""
    expected, binary = read_ctranslate2(theirs), read_binary(theirs / "model.bin")
    changes: Variables = {name: None for name in binary.variables if not binary.variables[name].shape}
    changes |= {"num_heads": number(4), "pre_norm": number(1), "activation": number(0)}
    changes |= {"encoder/embeddings_0/weight": None}
    changes |= {"encoder/embeddings/weight": binary.values("encoder/embeddings_0/weight")}
    for module in ("encoder/embeddings", "decoder/embeddings"):
        changes[f"{module}/multiply_by_sqrt_depth"] = number(1)
    found = read_ctranslate2(rewritten(changes, version=version, revision=revision))
    assert same(found, expected)
    assert found.recipe.model == expected.recipe.model


def test_layers_that_share_weights_are_refused(theirs: Path, rewritten: Any) -> None:
    """Otherwise, a small file with aliases could have a hundred layers."""
    wide, binary = 2048, read_binary(theirs / "model.bin")
    sizes = {"linear_0/weight": (wide, D), "linear_0/bias": (wide,), "linear_1/weight": (D, wide)}
    layers = [f"{side}/layer_{i}/ffn/{name}" for side in SIDES for i in range(2) for name in sizes]
    changes = {name: np.ones(sizes[name.partition("/ffn/")[2]], np.float32) for name in layers}
    first = [name for name in binary.variables if name.startswith("encoder/layer_0/")]
    aliases = {name.replace("layer_0", f"layer_{i}"): name for i in range(2, 100) for name in first}
    assert len(read_ctranslate2(rewritten(changes)).tensors) > 40
    with pytest.raises(DataError, match="its layers share weights, which nmt does not support"):
        read_ctranslate2(rewritten(changes, aliases=aliases))


def test_revisions_and_architectures_that_are_read(rewritten: Any) -> None:
    """A side's missing attributes have the defaults of the architecture."""
    for revision, fits in ((1, False), (2, True), (7, True), (8, False)):
        directory = rewritten(revision=revision)
        if fits:
            assert read_ctranslate2(directory)
        else:
            with pytest.raises(DataError, match=f"it is TransformerSpec of revision {revision}, not a supported"):
                read_ctranslate2(directory)
    with pytest.raises(DataError, match="it is a model of OpenNMT-tf of revision 1, not"):
        read_ctranslate2(rewritten(version=1))
    gone = {f"{side}/{name}": None for side in SIDES for name in ("num_heads", "pre_norm", "activation")}
    for spec, heads in (("TransformerSpec", 8), ("TransformerBase", 8), ("TransformerBig", 16)):
        settings = read_ctranslate2(rewritten(gone, spec=spec)).recipe.model
        found = (settings.num_heads, settings.d_k, settings.norm, settings.activation)
        assert found == (heads, D // heads, "pre", "relu")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encoder/num_heads": number(2)}, "encoder and decoder must have the same integer num_heads"),
        ({"decoder/activation": number(2)}, "encoder and decoder must have the same integer activation"),
        ({f"{side}/num_heads": number(2.5, np.float32) for side in SIDES}, "must have the same integer num_heads"),
        *(
            (NO_ALIGNMENT | {f"{side}/num_heads": number(heads) for side in SIDES}, f"{heads} heads cannot share 16 ch")
            for heads in (0, -2, 3)
        ),
        *(
            ({f"{side}/activation": number(code) for side in SIDES}, f"does not support {name}$")
            for code, name in (
                (1, r"approximate gelu \(tanh\)"),
                (4, r"approximate gelu \(sigmoid\)"),
                (5, "tanh"),
                (6, "sigmoid"),
                (9, "the activation 9"),
            )
        ),
        ({"decoder/layer_norm/gamma": None}, "has no variable decoder/layer_norm/gamma"),
        ({"decoder/layer_norm/gamma": np.ones((D, 1), np.float32)}, r"layer_norm/gamma has the shape \(16, 1\)"),
        ({"encoder/layer_1/ffn/layer_norm/beta": None}, "has no variable encoder/layer_1/ffn/layer_norm/beta"),
        ({"encoder/layer_1/ffn/linear_1/weight": None}, "has no variable encoder/layer_1/ffn/linear_1/weight"),
        ({"decoder/layer_0/ffn/linear_0/bias": np.ones(5, np.float32)}, "linear_0/bias does not fit its weight"),
        ({"decoder/projection/bias": np.ones(99, np.float32)}, "decoder/projection/bias does not fit its weight"),
        ({"encoder/embeddings_0/weight": np.ones((0, D), np.float32)}, r"has the shape \(0, 16\)"),
        ({"encoder/position_encodings/encodings": None}, "has no variable encoder/position_encodings/encodings"),
        ({"decoder/position_encodings/encodings": np.ones((9, D + 1), np.float32)}, "do not have 16 channels"),
        ({"decoder/layer_norm/beta": np.full(D, np.inf, np.float32)}, "is damaged: decoder_norm.bias is not finite"),
        ({"decoder/layer_norm/beta": np.full(D, np.nan, np.float32)}, "is damaged: decoder_norm.bias is not finite"),
    ],
)
def test_variables_that_do_not_fit_are_named(rewritten: Any, changes: Variables, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_ctranslate2(rewritten(changes))


@pytest.mark.parametrize("side", [*SIDES])
def test_a_side_without_layers_is_refused(theirs: Path, rewritten: Any, side: str) -> None:
    layers = {name: None for name in read_binary(theirs / "model.bin").variables if name.startswith(f"{side}/layer_")}
    kept = {name: value for name, value in layers.items() if "layer_norm" not in name.split("/")[1]}
    with pytest.raises(DataError, match=r"model\.bin has no layers"):
        read_ctranslate2(rewritten(kept | NO_ALIGNMENT))


@pytest.mark.parametrize("error", [RuntimeError("a\nb"), IndexError("a\nb"), ValueError("a\nb")])
def test_an_error_during_the_conversion_is_one_line(
    theirs: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(ctranslate2_files, "convert", fail)
    with pytest.raises(DataError, match=r"model\.bin cannot be imported: its variables do not fit together \(a\\nb\)$"):
        read_ctranslate2(theirs)


def test_embeddings_are_scaled_by_any_number(theirs: Path, rewritten: Any) -> None:
    """Ours are multiplied by sqrt(d_model) = 4. scale_embeddings is a switch if it is an integer, else the factor."""
    plain = read_ctranslate2(theirs).tensors
    for values, source, target in (
        ((number(1), number(0)), 1, 0.25),
        ((number(0), number(1)), 0.25, 1),
        ((number(2, np.float32), number(8, np.float32)), 0.5, 2),
        ((number(4, np.float32), None), 1, 1),
    ):
        names = (f"{side}/scale_embeddings" for side in SIDES)
        found = read_ctranslate2(rewritten(dict(zip(names, values, strict=True))))
        assert bool(found.recipe.model.source_vocabulary) == (source != target)
        ours = found.tensors.get("own_embeddings.src.weight", found.tensors["embedding.weight"])
        assert torch.equal(ours[1:], plain["embedding.weight"][1:] * source)
        assert torch.equal(found.tensors["embedding.weight"][1:], plain["embedding.weight"][1:] * target)
        output = found.tensors.get("own_embeddings.output.weight", found.tensors["embedding.weight"])
        assert torch.equal(output[1:], plain["embedding.weight"][1:])


def test_biases_of_zeros_are_left_out(theirs: Path, rewritten: Any) -> None:
    """One bias that is not zero keeps all of them. The bias of our PAD does not count."""
    binary = read_binary(theirs / "model.bin")
    zeros: Variables = {
        name: np.zeros_like(binary.values(name))
        for name in binary.variables
        if name.endswith("/bias") and "attention" in name
    }
    assert not read_ctranslate2(rewritten(zeros)).recipe.model.attention_bias
    last = {"decoder/layer_1/attention/linear_2/bias": np.eye(1, D, 3, dtype=np.float32)[0]}
    found = read_ctranslate2(rewritten(zeros | last))
    assert found.recipe.model.attention_bias
    assert found.tensors["decoder.1.cross_attention.output.bias"].tolist() == last.popitem()[1].tolist()
    assert not found.tensors["encoder.0.self_attention.output.bias"].any()
    rows = binary.variables["decoder/projection/bias"].shape[0]
    for bias, kept in ((np.zeros(rows), False), (np.eye(1, rows, 7)[0], True), (None, False)):
        changes = {"decoder/projection/bias": None if bias is None else bias.astype(np.float32)}
        found = read_ctranslate2(rewritten(changes))
        assert found.recipe.model.output_bias == kept == ("output_bias" in found.tensors)


def test_positional_encodings_have_the_name_of_their_formula(rewritten: Any) -> None:
    """Both sides must have the same formula. The length is that of the shorter side, and at most 1,024 positions."""
    order = torch.cat([torch.arange(0, D, 2), torch.arange(1, D, 2)])
    names = [f"{side}/position_encodings/encodings" for side in SIDES]

    def positions(*sides: Any) -> tuple[str, int]:
        settings = read_ctranslate2(rewritten(dict(zip(names, sides, strict=True)))).recipe.model
        return settings.positions, settings.max_length

    ours, marian = (sinusoids(1030, D, kind).numpy() for kind in ("sinusoidal", "marian"))
    assert positions(ours, ours) == ("sinusoidal", 1024)
    assert positions(ours[:9], ours[:300]) == positions(ours[:300], ours[:9]) == ("sinusoidal", 9)
    assert positions(ours[:1024], ours[:1023]) == ("sinusoidal", 1023)
    assert positions(marian[:50], marian[:50]) == ("marian", 50)
    for each, kind in ((ours, "sinusoidal"), (marian, "marian")):
        assert positions(each[:9, order], each[:9, order]) == (kind, 9)
    assert positions(ours[:9], ours[:9, order]) == positions(ours[:9], marian[:9]) == ("learned", 9)
    assert positions(ours[:9] + 9e-5, ours[:9] - 9e-5) == ("sinusoidal", 9), "rounding may change them by this much"
    assert positions(ours[:9] + 2e-4, ours[:9]) == ("learned", 9)
    assert positions(None, None) == ("learned", 1024)
    directory = rewritten(dict(zip(names, (ours[:9], marian[:12]), strict=True)))
    tensors = read_ctranslate2(directory).tensors
    assert torch.equal(tensors["src_positions.weight"], torch.from_numpy(ours[:9]))
    assert torch.equal(tensors["tgt_positions.weight"], torch.from_numpy(marian[:9]))


def test_each_side_has_its_own_tokenizer_and_names(theirs: Path, tmp_path: Path) -> None:
    """The files have different pairs of names. Two vocabularies keep two matrices, even if these are equal."""
    spm = [SOURCE, train_unigram([text[::2] for text in TEXT], 40)]
    tokens = json.loads((theirs / "shared_vocabulary.json").read_text())
    directory = Path(shutil.copytree(theirs, tmp_path / "two"))
    (directory / "shared_vocabulary.json").unlink()
    swapped = [*tokens[:4], tokens[5], tokens[4], *tokens[6:]]
    for side, names in (("source", tokens), ("target", swapped)):
        (directory / f"{side}_vocabulary.json").write_text(json.dumps(names))
    found = read_ctranslate2(directory)
    assert found.recipe.model.source_vocabulary == len(tokens) + 1
    assert len(found.tokenizers) == 2
    assert len(read_ctranslate2(theirs).tokenizers) == 1
    (directory / "sentencepiece.model").unlink()
    with pytest.raises(MissingError, match=r"Copy the model's tokenizer there as sentencepiece\.model"):
        read_ctranslate2(directory)
    parse = import_package("sentencepiece.sentencepiece_model_pb2").ModelProto.FromString

    def usual(model: bytes) -> set[str]:
        return {piece.piece for piece in parse(model).pieces if piece.type == 1} & {*tokens}

    assert usual(spm[0]) != usual(spm[1])
    for pair, data in ((("source.spm", "target.spm"), spm), (("tokenizer.model", "tokenizer.target.model"), spm[::-1])):
        for name, each in zip(pair, data, strict=True):
            (directory / name).write_bytes(each)
        assert [*map(usual, read_ctranslate2(directory).tokenizers)] == [*map(usual, data)]


def test_the_decoder_starts_from_a_token_of_the_target_vocabulary(theirs: Path, tmp_path: Path) -> None:
    """The token may have another id there than in the source vocabulary."""
    directory = Path(shutil.copytree(theirs, tmp_path / "two"))
    tokens = json.loads((directory / "shared_vocabulary.json").read_text())
    (directory / "shared_vocabulary.json").unlink()
    swapped = [*tokens[:7], tokens[9], tokens[7], tokens[8], *tokens[10:]]
    for side, names in (("source", tokens), ("target", swapped)):
        (directory / f"{side}_vocabulary.json").write_text(json.dumps(names))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "decoder_start_token": tokens[8]}))
    weight = read_ctranslate2(directory).tensors["embedding.weight"]
    order = ["<pad>", "<unk>", "</s>", *(name for name in swapped if name not in ("<unk>", "</s>"))]
    assert [order[row] for row in range(1, len(order)) if torch.equal(weight[row], weight[0])] == [tokens[8]]


def test_a_target_prefix_is_hidden_on_the_target_side(theirs: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(theirs, tmp_path / "model"))
    tokens = json.loads((model / "shared_vocabulary.json").read_text())
    (model / "shared_vocabulary.json").unlink()
    for side, names in (("source", tokens), ("target", [*tokens[:4], tokens[5], tokens[4], *tokens[6:]])):
        (model / f"{side}_vocabulary.json").write_text(json.dumps(names))
    prefix = tokens[9]
    folder = argos_folder(model, tmp_path / "package", target_prefix=prefix)
    out = import_model(folder, tmp_path / "ours")
    source = Tokenizer(out / "tokenizer.model")
    for side, text in ((source, tokens[9].replace("\u2581", "")), (source.target, "")):
        assert side.decode([[side.tokens([*range(len(tokens) + 1)]).index(prefix)]]) == [text]
    decoding = load_model(out).config.decoding
    assert (decoding.beam, decoding.alpha, decoding.penalty_offset) == (4, 0.2, 0)


@pytest.mark.parametrize(
    ("starts_from_zero", "start", "adds", "explicit"),
    [
        (1, "</s>", False, True),
        (0, "</s>", False, False),
        (None, "</s>", False, False),
        (0, "<pad>", False, True),
        (None, "<pad>", False, True),
        (1, "<pad>", True, False),
    ],
)
def test_sources_of_transformers_models_end_with_eos(
    tmp_path: Path, starts_from_zero: int | None, start: str, adds: bool, explicit: bool
) -> None:
    variables = {} if starts_from_zero is None else {"decoder/start_from_zero_embedding": number(starts_from_zero)}
    binary = written(tmp_path / "model.bin", variables)
    assert has_explicit_eos(binary, {"decoder_start_token": start, "add_source_eos": adds}) == explicit


def test_attributes_without_effect_are_accepted(tmp_path: Path) -> None:
    for name in (
        *("alibi_use_positive_positions", "scale_alibi", "unk_token", "bos_token", "eos_token"),
        *("with_source_bos", "with_source_eos", "with_target_bos", "user_decoder_start_tokens"),
    ):
        check_features(written(tmp_path / "model.bin", {name: number(1), f"decoder/{name}": number(1)}))


def test_exact_bounds_of_the_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(variables: Variables, aliases: dict[str, str] | None = None) -> str:
        try:
            written(tmp_path / "model.bin", variables, aliases)
        except DataError as error:
            return str(error).partition(": ")[2]
        return ""

    one = number(1)
    assert not refuses({"a" * 511: np.ones((1,) * 4, np.int8)})
    assert refuses({"a" * 512: one}) == "a name has 513 bytes"
    assert not refuses({f"v{i}": one for i in range(1001)})
    monkeypatch.setattr(ctranslate2_binary, "MAX_VARIABLES", 2)
    assert not refuses({"a": one, "b": one}, {"c": "a", "d": "a"})
    assert refuses({"a": one, "b": one, "c": one}) == "it would have 3 variables, which is too many"
    assert refuses({"a": one}, dict.fromkeys("bcd", "a")) == "it would have 3 aliases, which is too many"
    data = binary_bytes({"a": one})
    for kind in (5, 6):
        changed = data.replace(b"a\0\0\1\1", bytes([97, 0, 0, kind, 1]))
        (tmp_path / "model.bin").write_bytes(changed)
        with pytest.raises(DataError, match="the bytes of a are missing" if kind == 5 else "has the unknown type 6"):
            read_binary(tmp_path / "model.bin")
    data = data.replace(b"a\0", b"ab")
    (tmp_path / "model.bin").write_bytes(data)
    with pytest.raises(DataError, match="the name 'a' is not valid"):
        read_binary(tmp_path / "model.bin")
    binary = written(tmp_path / "model.bin", {"none": np.ones(0, np.int8), "bad": np.array([-1, 65], np.int8)})
    with pytest.raises(DataError, match="its attribute none is not a number"):
        binary.number("none", 1)
    assert binary.text("bad", "") == "\ufffdA"
    assert written(tmp_path / "model.bin", {"t": "x" * 512}).text("t", "") == "x" * 512


def test_an_alias_may_have_a_scale_of_its_own(tmp_path: Path) -> None:
    scales = {"s": np.array([4], np.float32), "b_scale": np.array([2], np.float32)}
    binary = written(tmp_path / "model.bin", {"b": np.array([[8]], np.int8), **scales}, {"a_scale": "s", "a": "b"})
    assert (binary.weights("a").tolist(), binary.weights("b").tolist()) == ([[2]], [[4]])
    scalar = written(tmp_path / "model.bin", {"c": number(6), "c_scale": number(3, np.float32)})
    assert scalar.weights("c").tolist() == [2]


def test_a_text_vocabulary_may_fill_its_limit(theirs: Path, rewritten: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only line feeds end its tokens."""
    directory = rewritten()
    tokens = json.loads((directory / "shared_vocabulary.json").read_text())
    tokens[8] = "a\u2028b\x0b"
    (directory / "shared_vocabulary.json").unlink()
    data = "".join(f"{token}\n" for token in tokens).encode()
    (directory / "shared_vocabulary.txt").write_bytes(data)
    read_json = artefact.read_json
    config = read_json(directory / "config.json")
    monkeypatch.setattr(artefact, "read_json", lambda _: config)
    monkeypatch.setattr(artefact, "MAX_JSON_BYTES", len(data))
    found = read_ctranslate2(directory)
    assert len(found.tensors["embedding.weight"]) == len(tokens) + 1
    monkeypatch.setattr(artefact, "MAX_JSON_BYTES", len(data) - 1)
    with pytest.raises(DataError, match=r"shared_vocabulary\.txt is too large"):
        read_ctranslate2(directory)
