"""Read the configuration and the vocabularies from a CTranslate2 model directory."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli.corpus.tokenizer import PAD
from nmt_cli.interop.ctranslate2_binary import Array, Binary
from nmt_cli.interop.transformers_marian import NO_LOGIT
from nmt_cli.interop.vocabulary import SPECIAL, ForeignIds, IdMaps, in_our_order
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError, printable
from nmt_cli.transformer.model import LAYER_NORM_EPSILON

CONFIG = "config.json"
UNSUPPORTED = "nmt does not support"
SURROGATE = re.compile("[\ud800-\udfff]")
SPECIALS = [*SPECIAL]  # <pad>, <unk>, </s>


@dataclass(frozen=True)
class Vocabularies:
    """The vocabularies of source and target, in this order."""

    tokens: list[list[str]]  # CTranslate2's tokens, in the order of its ids
    ids: list[ForeignIds]  # CTranslate2's id of each token, in the order of our ids

    @property
    def id_maps(self) -> IdMaps:
        return [[*side.values()] for side in self.ids]


def shape_of(binary: Binary, name: str, rank: int) -> tuple[int, ...]:
    if (variable := binary.variables.get(name)) is None:
        raise DataError(f"{binary.path} has no variable {name}")
    if len(variable.shape) != rank or not all(variable.shape):
        raise DataError(f"{binary.path} is damaged: {name} has the shape {variable.shape}")
    return variable.shape


def has_explicit_eos(binary: Binary, config: dict[str, Any]) -> bool:
    """Return whether callers of CTranslate2 must append EOS to each source, as Hugging Face's tokenizers do."""
    marian = bool(binary.number("decoder/start_from_zero_embedding", 0))
    pegasus = config["decoder_start_token"] == SPECIALS[PAD]
    return not config["add_source_eos"] and (marian or pegasus)


def read_config(directory: Path, binary: Binary) -> dict[str, Any]:
    """Return the model's configuration from config.json or, if an older model has no such file, from model.bin."""
    if binary.version >= 6 or (directory / CONFIG).is_file():
        config = artefact.read_json(directory / CONFIG)
    else:
        start = binary.text("bos_token", "<s>") if binary.number("with_target_bos", 1) else None
        config = {
            **{f"{name}_token": binary.text(f"{name}_token", "") for name in ("unk", "bos", "eos")},
            "add_source_bos": bool(binary.number("with_source_bos", 0)),
            "add_source_eos": bool(binary.number("with_source_eos", 0)),
            "decoder_start_token": start or binary.text("eos_token", "</s>"),
        }
        if binary.number("user_decoder_start_tokens", 0):
            config["decoder_start_token"] = None
    defaults = {"unk_token": "<unk>", "eos_token": "</s>", "add_source_bos": False, "add_source_eos": False}
    config = defaults | {name: value for name, value in config.items() if value is not None and value != ""}
    _check(config, directory / CONFIG)
    return config


def _check(config: dict[str, Any], path: Path) -> None:
    """Raise DataError if a value has a wrong type or requires a feature that our model lacks."""
    epsilon = config.get("layer_norm_epsilon", LAYER_NORM_EPSILON)
    wrong = {
        f"the layer norm epsilon {epsilon!r}": epsilon != LAYER_NORM_EPSILON,
        "a BOS token before the source (add_source_bos)": config["add_source_bos"] is not False,
        "a decoder without a start token (decoder_start_token)": type(config.get("decoder_start_token")) is not str,
        "multi-query attention": bool(config.get("multi_query_attention")),
        "this kind of quantization (quantization_type)": config.get("quantization_type", 0) != 0,
    }
    if lacking := [feature for feature, present in wrong.items() if present]:
        raise DataError(f"{path} cannot be imported: {UNSUPPORTED} {printable(lacking[0], 100)}")
    types = {"unk_token": str, "eos_token": str, "add_source_eos": bool}
    if wrong_type := [name for name, kind in types.items() if type(config[name]) is not kind]:
        raise DataError(f"{path} is damaged: {wrong_type[0]} must be a {types[wrong_type[0]].__name__}")


def _read_tokens(directory: Path, side: str) -> list[str]:
    """Return the tokens of a vocabulary in the order of their ids, or [] if the vocabulary has no file."""
    file = directory / f"{side}_vocabulary.json"
    if file.is_file():
        tokens = artefact.read_json_list(file)
    elif (file := directory / f"{side}_vocabulary.txt").is_file():
        with file.open("rb") as stream:
            data = stream.read(artefact.MAX_JSON_BYTES + 1)
        if len(data) > artefact.MAX_JSON_BYTES:
            raise DataError(f"{file} is too large: the limit is {artefact.MAX_JSON_BYTES:,} bytes")
        tokens = [*data.decode("utf-8", "replace").removesuffix("\n").split("\n")]
        if all(token.endswith("\r") for token in tokens):
            tokens = [token.removesuffix("\r") for token in tokens]
    else:
        return []
    if not all(isinstance(token, str) and not SURROGATE.search(token) for token in tokens):
        raise DataError(f"{file} is damaged: a token is not text")
    if len({*tokens}) < len(tokens):
        raise DataError(f"{file} is damaged: a token occurs twice")
    return tokens


def read_vocabularies(directory: Path, binary: Binary, config: dict[str, Any]) -> Vocabularies:
    """Return both vocabularies.

    Use <pad> as our PAD if both vocabularies contain it, and if the decoder starts with it but never produces it.
    Otherwise, rename any <pad>, and add our PAD to each vocabulary. The id of the added PAD is the number of rows of
    the embedding matrix.
    """
    tokens = [_read_tokens(directory, "shared")] * 2
    if not tokens[0]:
        tokens = [_read_tokens(directory, side) for side in ("source", "target")]
    if not all(tokens):
        files = "both source_vocabulary.json and target_vocabulary.json"
        raise MissingError(f"{directory} needs shared_vocabulary.json, or {files}")
    pad = SPECIALS[PAD]
    has_pad = config["decoder_start_token"] == pad and all(pad in side for side in tokens)
    has_pad = has_pad and is_never_produced(binary, tokens[1].index(pad))
    renamed = {config["unk_token"]: "<unk>", config["eos_token"]: "</s>", **({pad: pad} if has_pad else {})}
    sides = []
    for side, module in zip(tokens, ("encoder/embeddings_0", "decoder/embeddings"), strict=True):
        rows = shape_of(binary, f"{module}/weight", 2)[0]
        names = [renamed.get(name, f"{name} of CTranslate2" if name in SPECIAL else name) for name in side]
        ids = {name: number for number, name in enumerate(names)}
        ids |= {} if has_pad else {pad: rows}
        sides.append(in_our_order(ids, rows + (not has_pad), directory / "the vocabulary"))
    return Vocabularies(tokens, sides)


def output_bias(binary: Binary) -> Array:
    """Return an array with the output bias of each target token. It may lack the last tokens, or be empty."""
    name = "decoder/projection/bias"
    return binary.weights(name).flatten() if name in binary.variables else np.zeros(0, np.float32)


def is_never_produced(binary: Binary, number: int) -> bool:
    """Return whether the output bias keeps the target token with this id out of all translations."""
    bias = output_bias(binary)
    return bool(number < len(bias) and bias[number] <= NO_LOGIT / 2)
