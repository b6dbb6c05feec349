"""A Marian (or Pegasus-shaped) model of transformers: whether ours computes it, and its weights and vocabularies."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli.interop import marian
from nmt_cli.interop.marian import Foreign, described
from nmt_cli.interop.proof import LOCAL, Transformers
from nmt_cli.interop.vocabulary import Numbers, in_our_order, tokenizers
from nmt_cli.recipe import schema
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.transformer.directory import parameter_count
from nmt_cli.transformer.model import sinusoids

WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
FILES = "config.json", "vocab.json", "source.spm", "target.spm"
JSON = (
    *("config.json", "vocab.json", "target_vocab.json", "tokenizer_config.json", "generation_config.json"),
    *("special_tokens_map.json", "added_tokens.json"),
)
ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}


def read(directory: Path) -> Foreign:
    """Read a directory that transformers has written, or raise DataError that says what ours cannot compute."""
    files = _weights(directory)
    config = _config(directory, sum(file.stat().st_size for file in files))
    separate = bool(_tokenizer_config(directory).get("separate_vocabs"))
    target = "target_vocab.json" if separate else "vocab.json"
    sizes = ("vocab.json", config.vocab_size), (target, getattr(config, "decoder_vocab_size", config.vocab_size))
    numbers = [_numbers(directory / name, size, config) for name, size in sizes]
    models = tokenizers([directory / f"{side}.spm" for side in ("source", "target")], numbers, separate)
    ids = [[*side.values()] for side in numbers]
    try:
        peer = Transformers(directory, ids)
    except Exception as error:  # whatever they raise
        if type(error).__name__ == "UnpicklingError":
            what = f"{directory} has a pickle that is damaged or holds more than tensors"
            raise DataError(f"{what}; nothing of it was executed: {str(error).partition('.')[0][:150]}") from None
        raise DataError(f"transformers cannot load {directory}: {str(error)[:150]}") from None
    if peer.missing:
        raise DataError(f"{directory} has no tensor {peer.missing[0]}")
    tensors = {name: tensor.clone() for name, tensor in peer.model.state_dict().items()}
    peer.model.final_logits_bias[0, peer.pad] = marian.NO_LOGIT  # PAD has no logit in ours
    settings = _recipe(directory, config, tensors, numbers)
    return Foreign(tensors, settings, ids, peer.start, models, files, peer)


def _weights(source: Path) -> list[Path]:
    """Return the files of the weights: safetensors, else a pickle; each may be in several parts."""
    for name in (WEIGHTS, PICKLE):
        if (source / name).is_file():
            return [source / name]
        if (index := source / f"{name}.index.json").is_file():
            placed = artefact.read_json(index).get("weight_map")
            names: list[Any] = [*placed.values()] if isinstance(placed, dict) else [None]
            if not all(isinstance(each, str) and each.isprintable() for each in names):
                raise DataError(f"{index} is damaged: it has no weight_map of names of files")
            parts = [source / Path(part).name for part in sorted({*names})]
            if missing := [part for part in parts if not part.is_file()]:
                raise MissingError(f"no file {missing[0]}, which {index.name} names")
            return parts
    if (source / "model.bin").is_file():
        raise MissingError(f"{source} is a CTranslate2 model. Import the one of transformers that it was made from")
    raise MissingError(f"{source} has no weights: no {WEIGHTS}, no {PICKLE}, nor Marian's *.npz")


def _config(source: Path, weights: int) -> Any:
    """Return their configuration after checking that our model can compute theirs, and that so many bytes of weights
    can be of such a model: transformers takes the memory that it asks for."""
    transformers = marian.library("transformers")
    if missing := [name for name in FILES if not (source / name).is_file()]:
        raise MissingError(f"{source} has no {', '.join(missing)}. A Marian model of transformers has them")
    for name in JSON:
        if (source / name).is_file():
            artefact.read_json(source / name)  # transformers reads them without a limit
    try:
        config = transformers.AutoConfig.from_pretrained(source, **LOCAL)
    except Exception as error:  # whatever they raise
        raise DataError(f"{source / 'config.json'} is damaged: {str(error)[:150]}") from None
    if config.model_type not in ("marian", "pegasus"):
        raise DataError(f"{source} is a {config.model_type} model; only Marian can be imported")
    activation = config.activation_function
    ours = {
        "embeddings scaled by sqrt(d_model)": config.scale_embedding,
        f"no activation {activation}": activation in ACTIVATIONS,
        **{f"one {name}": len({getattr(config, key) for key in keys}) == 1 for name, keys in marian.CONFIG.items()},
    }
    if lacking := [feature for feature, there in ours.items() if not there]:
        raise DataError(f"{source} cannot be imported: the model of nmt has {' and '.join(lacking)}, unlike this one")
    _check_sizes(source, config, weights)
    return config


def _check_sizes(source: Path, config: Any, weights: int) -> None:
    sizes = [config.vocab_size, getattr(config, "decoder_vocab_size", config.vocab_size)]
    heads = config.encoder_attention_heads
    if any(type(size) is not int for size in (*sizes, config.d_model, heads)) or min(*sizes, heads) < 1:
        raise DataError(f"{source / 'config.json'} is damaged: its sizes must be whole numbers, from 1")
    settings = described({"model": _sizes(config)}, source).model
    if parameter_count(settings, max(sizes)) > weights:  # of at least one byte each
        raise DataError(f"{source / 'config.json'} describes a larger model than there are weights")


def _sizes(config: Any) -> dict[str, Any]:
    """Return our settings for the sizes of theirs."""
    size = config.d_model // config.encoder_attention_heads
    depths = {"num_layers": config.encoder_layers}
    if config.decoder_layers != config.encoder_layers:
        depths |= {"encoder_layers": config.encoder_layers, "decoder_layers": config.decoder_layers}
    return {name: getattr(config, theirs[0]) for name, theirs in marian.CONFIG.items()} | {
        "activation": ACTIVATIONS[config.activation_function],
        "d_k": size,
        "d_v": size,
        **depths,
    }


def _numbers(file: Path, size: int, config: Any) -> Numbers:
    if not file.is_file():
        raise MissingError(f"no file {file}, which tokenizer_config.json promises by separate_vocabs")
    numbers = in_our_order(artefact.read_json(file), size, file)
    if (numbers["<pad>"], numbers["</s>"]) != (config.pad_token_id, config.eos_token_id):
        raise DataError(f"{file} does not have <pad> and </s> where config.json says")
    return numbers


def _tokenizer_config(source: Path) -> Any:
    file = source / "tokenizer_config.json"
    return artefact.read_json(file) if file.is_file() else {}


def _positions(theirs: Tensor) -> str:
    """Return which of our positions a model has: a file may hold Marian's own, which transformers does not compute."""
    length, d_model = theirs.shape
    ours = sinusoids(length, d_model, "marian")[:, marian.sines_first(d_model)]
    return "marian" if torch.allclose(theirs, ours, atol=1e-4) else "sinusoidal"


def _recipe(source: Path, config: Any, tensors: dict[str, Tensor], numbers: list[Numbers]) -> schema.Recipe:
    languages = _tokenizer_config(source)
    src, tgt, output = (tensors[name] for name in marian.EMBEDDINGS.values())
    _pad, *others = numbers[1].values()
    biases = [tensor for name, tensor in tensors.items() if name.endswith("_proj.bias")]
    model = {
        **_sizes(config),
        "norm": "pre" if config.model_type == "pegasus" else "post",
        "attention_bias": any(bool(bias.any()) for bias in biases),
        "output_bias": bool(tensors[marian.BIAS].flatten()[others].any()),
        "source_vocabulary": 0 if numbers[0] == numbers[1] and torch.equal(src, tgt) else len(src),
        "tied_output": torch.equal(tgt, output),
        "positions": _positions(tensors[marian.POSITIONS[0]]),
    }
    corpus = {"name": None, "src": languages.get("source_lang") or "src", "tgt": languages.get("target_lang") or "tgt"}
    return described({"name": source.resolve().name, "corpus": corpus, "model": model}, source)
