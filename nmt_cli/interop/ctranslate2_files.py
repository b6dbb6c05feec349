"""Read a model directory of CTranslate2 with model.bin, config.json, vocabularies and SentencePiece models.

For the meaning of the variables, see CTranslate2, src/layers/transformer.cc.
"""

import contextlib
import math
import os
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt_cli.corpus.moses_bpe import is_moses_file
from nmt_cli.corpus.tokenizer import PAD
from nmt_cli.interop.adapters import CTranslate2
from nmt_cli.interop.ctranslate2_binary import Binary, read_binary
from nmt_cli.interop.ctranslate2_config import (
    UNSUPPORTED,
    Vocabularies,
    has_explicit_eos,
    output_bias,
    read_config,
    read_vocabularies,
    shape_of,
)
from nmt_cli.interop.ctranslate2_variables import SPECS, check_features, depth, modules, with_current_names
from nmt_cli.interop.foreign import ForeignModel, foreign_recipe, sizes_of
from nmt_cli.interop.formats import BINARY
from nmt_cli.interop.transformers_marian import embedding_names, permute_d_model, sines_first
from nmt_cli.interop.vocabulary import convert_tokenizers, hidden
from nmt_cli.interop.vocabulary_map import VMAP
from nmt_cli.recipe import schema
from nmt_cli.system.errors import DataError, MissingError, printable
from nmt_cli.transformer.directory import parameter_count
from nmt_cli.transformer.model import sinusoids
from nmt_cli.transformer.weights import check_shapes

OLDEST_REVISION, NEWEST_REVISION = 2, 7  # of CTranslate2's specification; revision 1 has OpenNMT-tf's names
ACTIVATIONS = {0: "relu", 2: "swish", 3: "gelu"}
UNSUPPORTED_ACTIVATIONS = {1: "approximate gelu (tanh)", 4: "approximate gelu (sigmoid)", 5: "tanh", 6: "sigmoid"}
MAX_LENGTH = 1024  # positions; CTranslate2 cuts off longer sources
MAX_EXPANSION = 3  # maximum parameters per byte of the file, because aliases in a small file could fill the memory
CLOSE = 1e-4  # positional encodings that differ by less count as equal
# File names of the SentencePiece models of source and target, in order of preference.
TOKENIZERS = [
    ("tokenizer.model", "tokenizer.target.model"),
    ("sentencepiece.model", "sentencepiece.model"),
    ("source.spm", "target.spm"),
]


def read_ctranslate2(directory: Path) -> ForeignModel:
    """Read a model directory of CTranslate2. Raise DataError if the model has a feature that ours lacks."""
    for names in TOKENIZERS:
        files = [directory / name for name in names if (directory / name).is_file()]
        if files:
            return read_with(directory, (files * 2)[:2], {})
    raise MissingError(
        f"{directory} has no SentencePiece model. Copy the model's tokenizer there as {TOKENIZERS[1][0]}"
    )


def read_with(directory: Path, files: list[Path], values: dict[str, Any]) -> ForeignModel:
    """Read a model. `files` are the tokenizers of source and target. `values` are added to the recipe."""
    binary = read_binary(directory / BINARY)
    if binary.spec not in SPECS or not OLDEST_REVISION <= binary.revision <= NEWEST_REVISION:
        what = printable(f"{binary.spec or 'a model of OpenNMT-tf'} of revision {binary.revision}", 80)
        raise DataError(f"{binary.path} cannot be imported: it is {what}, not a supported Transformer encoder-decoder")
    binary = with_current_names(binary)
    check_features(binary)
    config = read_config(directory, binary)
    vocabularies = read_vocabularies(directory, binary, config)
    settings, layout = model_settings(binary, vocabularies)
    explicit_eos = has_explicit_eos(binary, config)
    settings["source_eos"] = config["add_source_eos"] or explicit_eos
    recipe = foreign_recipe({"name": directory.resolve().name, **values, "model": settings}, directory)
    try:
        tensors = convert(binary, recipe.model, vocabularies, config["decoder_start_token"], layout)
    except (RuntimeError, IndexError, ValueError) as error:  # raised by torch and NumPy
        what = printable(error, 150)
        raise DataError(f"{binary.path} cannot be imported: its variables do not fit together ({what})") from None
    check_shapes(tensors, recipe.model, len(vocabularies.ids[1]), binary.path)
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise DataError(f"{binary.path} is damaged: {name} is not finite")
    separate = vocabularies.ids[0] != vocabularies.ids[1]
    tokenizers = convert_tokenizers(files, vocabularies.ids, separate)
    spm = [data for data in map(Path.read_bytes, files) if not is_moses_file(data)]
    prefix = recipe.decoding.target_prefix
    if prefix:
        tokenizers[-1] = hidden(tokenizers[-1], prefix)
    adapter = None
    if find_spec("ctranslate2"):
        with _without_vocabulary_map(directory) as loadable:
            adapter = CTranslate2(loadable, _names(vocabularies), spm, explicit_eos, "float32", prefix)
    return ForeignModel(tensors, recipe, tokenizers, [binary.path], adapter, rounding(binary))


@contextlib.contextmanager
def _without_vocabulary_map(directory: Path) -> Iterator[Path]:
    """Yield the model directory. If it contains a vocabulary map, yield a directory with links to the other files.

    CTranslate2 would load the map, and may crash if the map is damaged. The comparison of translations does not use it.
    """
    if not os.path.lexists(directory / VMAP):
        yield directory
        return
    with tempfile.TemporaryDirectory() as temporary:
        for file in directory.iterdir():
            if file.is_file() and file.name != VMAP:
                (Path(temporary) / file.name).symlink_to(file.resolve())
        yield Path(temporary)


def _names(vocabularies: Vocabularies) -> list[list[str]]:
    """Return CTranslate2's tokens in the order of our ids, with "" for tokens that CTranslate2 lacks."""
    sides = zip(vocabularies.tokens, vocabularies.id_maps, strict=True)
    return [[tokens[i] if i < len(tokens) else "" for i in ids] for tokens, ids in sides]


def _same(binary: Binary, name: str, default: int) -> int:
    """Return an attribute that must be the same whole number in encoder and decoder. Raise DataError otherwise."""
    values = {binary.number(f"{side}/{name}", default) for side in ("encoder", "decoder")}
    if len(values) > 1 or not float(value := min(values)).is_integer():
        raise DataError(f"{binary.path} cannot be imported: encoder and decoder must have the same integer {name}")
    return int(value)


def model_settings(binary: Binary, vocabularies: Vocabularies) -> tuple[dict[str, Any], str]:
    """Return the recipe's `model` section, and the layout of the positional encodings.

    The layout is "ours", in which sines and cosines alternate, or "sines first".
    """
    src_rows, d_model = shape_of(binary, "encoder/embeddings_0/weight", 2)
    tgt_rows, _ = shape_of(binary, "decoder/embeddings/weight", 2)
    heads = _same(binary, "num_heads", SPECS[binary.spec])
    code = _same(binary, "activation", 0)
    if code not in ACTIVATIONS:
        what = UNSUPPORTED_ACTIVATIONS.get(code, f"the activation {code}")
        raise DataError(f"{binary.path} cannot be imported: {UNSUPPORTED} {what}")
    if heads < 1 or d_model % heads:
        raise DataError(f"{binary.path} is damaged: {heads} heads cannot share {d_model} channels")
    layers = depth(binary, "encoder"), depth(binary, "decoder")
    if not all(layers):
        raise DataError(f"{binary.path} has no layers")
    pre = bool(_same(binary, "pre_norm", 1))
    if pre:
        for side in ("encoder", "decoder"):
            shape_of(binary, f"{side}/layer_norm/gamma", 1)  # raises DataError if there is no final norm
    positions, max_length, layout = _positions(binary, d_model)
    sizes = {
        **sizes_of(d_model, heads, layers),
        "d_ff": shape_of(binary, "encoder/layer_0/ffn/linear_0/weight", 2)[0],
        "norm": "pre" if pre else "post",
        "positions": positions,
        "max_length": max_length,
        "attention_bias": _has_bias(binary),
        "activation": ACTIVATIONS[code],
        "output_bias": _has_output_bias(binary, vocabularies.id_maps[1]),
    }
    parameters = parameter_count(foreign_recipe({"model": sizes}, binary.path).model, max(src_rows, tgt_rows))
    if parameters > MAX_EXPANSION * binary.path.stat().st_size:
        raise DataError(f"{binary.path} cannot be imported: its layers share weights, which nmt does not support")
    src, tgt, output = (_embedding(binary, side) for side in ("src", "tgt", "output"))
    shared = vocabularies.ids[0] == vocabularies.ids[1] and src.shape == tgt.shape and bool((src == tgt).all())
    tied = tgt.shape == output.shape and bool((tgt == output).all())
    sizes |= {"source_vocabulary": 0 if shared else len(vocabularies.ids[0]), "tied_output": tied}
    return sizes, layout


def _has_output_bias(binary: Binary, ids: list[int]) -> bool:
    """Return whether a token other than PAD has a nonzero bias."""
    bias = output_bias(binary)
    return bool(bias[[i for i in ids[1:] if i < len(bias)]].any())


def _has_bias(binary: Binary) -> bool:
    names = [theirs for ours, theirs in modules(binary) if ours.endswith(".bias") and "attention" in ours]
    return any(bool(binary.weights(name).any()) for name in names if name in binary.variables)


def _positions(binary: Binary, d_model: int) -> tuple[str, int, str]:
    """Return our name for the positional encodings, the number of positions, and the layout, as in `model_settings`.

    Encodings that are missing or differ from ours are imported as learned encodings.
    """
    names = [f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")]
    if not any(name in binary.variables for name in names):
        return "learned", MAX_LENGTH, "ours"
    rows = min(shape_of(binary, name, 2)[0] for name in names)
    if any(shape_of(binary, name, 2)[1] != d_model for name in names):
        raise DataError(f"{binary.path} is damaged: its position encodings do not have {d_model} channels")
    length = min(rows, MAX_LENGTH)
    theirs = [torch.from_numpy(binary.weights(name)[:length]) for name in names]
    if not d_model % 2:
        for kind in ("sinusoidal", "marian"):
            encodings = sinusoids(length, d_model, kind)
            if all(torch.allclose(each, encodings, atol=CLOSE) for each in theirs):
                return kind, length, "ours"
            if all(torch.allclose(each, encodings[:, sines_first(d_model)], atol=CLOSE) for each in theirs):
                return kind, length, "sines first"
    return "learned", length, "ours"


def _encodings(binary: Binary, side: str, length: int, d_model: int) -> Tensor:
    """Return the stored positional encodings or, if there are none, CTranslate2's sinusoids from position 1."""
    name = f"{side}/position_encodings/encodings"
    if name in binary.variables:
        return torch.from_numpy(binary.weights(name)[:length])
    return sinusoids(length + 1, d_model, "marian")[1:, sines_first(d_model)]


def _embedding(binary: Binary, side: str) -> Any:
    """Return the matrix of `side`, "src", "tgt" or "output", in float32.

    Our model multiplies embeddings by sqrt(d_model). If CTranslate2 uses another factor, rescale the embeddings.
    """
    module = {"src": "encoder/embeddings_0", "tgt": "decoder/embeddings", "output": "decoder/projection"}[side]
    shape_of(binary, f"{module}/weight", 2)
    matrix = binary.weights(f"{module}/weight")
    if side == "output":
        return matrix
    root = math.sqrt(matrix.shape[1])
    name = f"{'encoder' if side == 'src' else 'decoder'}/scale_embeddings"
    scale = root
    if name in binary.variables and binary.variables[name].is_integer:
        scale = root if binary.number(name, 1) else 1.0
    elif name in binary.variables:
        scale = binary.number(name, root)
    return matrix if math.isclose(scale, root, rel_tol=1e-6) else matrix * np.float32(scale / root)


def convert(
    binary: Binary, settings: schema.Model, vocabularies: Vocabularies, start: str, layout: str
) -> dict[str, Tensor]:
    """Convert the variables to our tensors. `layout` is from `model_settings`.

    The first input of our decoder is PAD. Therefore, PAD gets the embedding of the token `start`. It gets zeros if
    CTranslate2's decoder starts from a zero embedding.
    """
    result = _embeddings(binary, settings, vocabularies, start)
    if settings.output_bias:
        bias = torch.from_numpy(binary.weights("decoder/projection/bias"))
        result["output_bias"] = torch.cat([bias, bias.new_zeros(1)])[vocabularies.id_maps[1]]
        result["output_bias"][PAD] = 0
    if "decoder/projection/bias" in binary.variables:
        _check_bias(binary, "decoder/projection/bias")
    for ours, theirs in modules(binary):
        if ours.endswith(".weight_scale"):
            continue
        if theirs.endswith("/bias") and theirs in binary.variables:
            _check_bias(binary, theirs)
        if ours.endswith(".bias") and _left_out(ours, settings):
            continue
        if theirs in binary.variables:
            result[ours] = torch.from_numpy(binary.weights(theirs))
        elif ours.endswith(".bias") and not ours.endswith("norm.bias"):
            result[ours] = torch.zeros(shape_of(binary, theirs.replace("/bias", "/weight"), 2)[0])
        else:
            raise DataError(f"{binary.path} has no variable {theirs}")
    if layout == "sines first":
        order = sines_first(settings.d_model).argsort()
        result = {name: _reordered(name, tensor, order) for name, tensor in result.items()}
    if settings.positions == "learned":
        for side, name in (("encoder", "src"), ("decoder", "tgt")):
            encodings = _encodings(binary, side, settings.max_length, settings.d_model)
            result[f"{name}_positions.weight"] = encodings.clone()
    return result


def _embeddings(binary: Binary, settings: schema.Model, vocabularies: Vocabularies, start: str) -> dict[str, Tensor]:
    result = {}
    zero_start = bool(binary.number("decoder/start_from_zero_embedding", 0))
    for side, name in embedding_names(settings).items():
        matrix = torch.from_numpy(_embedding(binary, side))
        extended = torch.cat([matrix, matrix.new_zeros(1, matrix.shape[1])])
        result[name] = extended[vocabularies.id_maps[side != "src"]]
        result[name][PAD] = 0
        if side == "tgt" and not zero_start:
            if start not in vocabularies.tokens[1]:
                raise DataError(f"{binary.path} starts from {printable(start, 40)}, which its vocabulary lacks")
            result[name][PAD] = matrix[vocabularies.tokens[1].index(start)]
    return result


def _check_bias(binary: Binary, name: str) -> None:
    """Raise DataError if a bias and its weight differ in their number of rows. CTranslate2 does not check this."""
    if shape_of(binary, name, 1) != shape_of(binary, name.replace("/bias", "/weight"), 2)[:1]:
        raise DataError(f"{binary.path} is damaged: {name} does not fit its weight")


def _left_out(bias: str, settings: schema.Model) -> bool:
    return "attention" in bias and not settings.attention_bias


def _reordered(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    if "embedding" in name:
        return tensor.index_select(1, order)
    return tensor if name == "output_bias" else permute_d_model(name, tensor, order)


def rounding(binary: Binary) -> str:
    """Return a sentence about the rounding of 8-bit weights. Return "" if there are no 8-bit weights.

    The engine and CTranslate2 both scale the largest magnitude of each row to 127. Therefore, the engine usually gets
    the integers of the file. The sentence counts the rows that the file scales differently.
    """
    matrices = {variable.offset: name for name, variable in binary.variables.items() if variable.type == 1}
    rows = other = 0
    for name in matrices.values():
        if len(binary.variables[name].shape) == 2:
            largest = np.abs(binary.values(name).astype(np.int16)).max(1)
            rows += len(largest)
            other += int(((largest != 127) & (largest != 0)).sum())
    if not rows:
        return ""
    if not other:
        return "In int8, the engine uses the integers of the file unchanged."
    return f"In int8, the engine requantizes {other:,} of the {rows:,} rows of weights."
