"""Read a model directory of Hugging Face transformers: a Marian model, or a Pegasus model with a Marian tokenizer."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli.interop import transformers_marian as marian
from nmt_cli.interop.adapters import OFFLINE, Transformers
from nmt_cli.interop.foreign import UNNAMED, ForeignModel, foreign_recipe, sizes_of
from nmt_cli.interop.packages import import_package
from nmt_cli.interop.vocabulary import ForeignIds, convert_tokenizers, in_our_order
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.transformer.directory import parameter_count
from nmt_cli.transformer.model import sinusoids

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"
REQUIRED = "config.json", "vocab.json", "source.spm", "target.spm"
JSON_FILES = (
    *("config.json", "vocab.json", "target_vocab.json", "tokenizer_config.json", "generation_config.json"),
    *("special_tokens_map.json", "added_tokens.json"),
)
ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}  # name in transformers -> ours


def read_transformers(directory: Path) -> ForeignModel:
    """Read a model directory of transformers. Raise DataError if the model has a feature that ours lacks."""
    files = weight_files(directory)
    config = _read_config(directory, sum(file.stat().st_size for file in files))
    tokenizer_config = _read_tokenizer_config(directory)
    separate = bool(tokenizer_config.get("separate_vocabs"))
    target = "target_vocab.json" if separate else "vocab.json"
    vocabularies = [
        read_vocabulary(directory / "vocab.json", config.vocab_size, config),
        read_vocabulary(directory / target, getattr(config, "decoder_vocab_size", config.vocab_size), config),
    ]
    tokenizers = convert_tokenizers([directory / "source.spm", directory / "target.spm"], vocabularies, separate)
    id_maps = [[*side.values()] for side in vocabularies]
    try:
        adapter = Transformers(directory, id_maps)
    except Exception as error:  # transformers raises errors of many kinds
        if type(error).__name__ == "UnpicklingError":
            what = f"{directory} has a pickle that is damaged or holds more than tensors"
            raise DataError(f"{what} ({str(error).partition('.')[0][:150]}). Nothing in it was executed") from None
        raise DataError(f"transformers cannot load {directory}: {str(error)[:150]}") from None
    if adapter.missing:
        raise DataError(f"{directory} has no tensor {adapter.missing[0]}")
    tensors = {name: tensor.clone() for name, tensor in adapter.model.state_dict().items()}
    adapter.model.final_logits_bias[0, adapter.pad] = marian.NO_LOGIT  # never produce PAD, as in our model
    named = {"src": tokenizer_config.get("source_lang"), "tgt": tokenizer_config.get("target_lang")}
    corpus = {"name": None, **{side: named[side] or UNNAMED[side] for side in UNNAMED}}
    settings = model_settings(config, tensors, vocabularies)
    recipe = foreign_recipe({"name": directory.resolve().name, "corpus": corpus, "model": settings}, directory)
    ours = marian.from_transformers(tensors, recipe.model, id_maps, adapter.start, directory)
    return ForeignModel(ours, recipe, tokenizers, files, adapter)


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files: safetensors if there are any, otherwise pickles. Both may consist of many files."""
    for name in (SAFETENSORS, PICKLE):
        if (directory / name).is_file():
            return [directory / name]
        if (index := directory / f"{name}.index.json").is_file():
            weight_map = artefact.read_json(index).get("weight_map")
            names: list[Any] = [*weight_map.values()] if isinstance(weight_map, dict) else [None]
            if not all(isinstance(each, str) and each.isprintable() for each in names):
                raise DataError(f"{index} is damaged: it has no weight_map with names of files")
            parts = [directory / Path(part).name for part in sorted({*names})]
            if missing := [part for part in parts if not part.is_file()]:
                raise MissingError(f"no file {missing[0]}, which {index.name} names")
            return parts
    raise MissingError(f"{directory} has no weights: no {SAFETENSORS}, no {PICKLE}, and no .npz or .bin file of Marian")


def _read_config(directory: Path, weight_bytes: int) -> Any:
    """Return the configuration. Raise DataError if our model lacks one of its features, or if its sizes are too large.

    Sizes are too large if the weight files have less than one byte per parameter. transformers would allocate the
    memory before it notices.
    """
    transformers = import_package("transformers")
    if missing := [name for name in REQUIRED if not (directory / name).is_file()]:
        raise MissingError(f"{directory} has no {', '.join(missing)}, which a Marian model of transformers needs")
    for name in JSON_FILES:
        if (directory / name).is_file():
            artefact.read_json(directory / name)  # refuse huge files; transformers has no limit
    try:
        config = transformers.AutoConfig.from_pretrained(directory, **OFFLINE)
    except Exception as error:  # transformers raises errors of many kinds
        raise DataError(f"{directory / 'config.json'} is damaged: {str(error)[:150]}") from None
    if config.model_type not in ("marian", "pegasus"):
        raise DataError(f"{directory} is a {config.model_type} model; only marian and pegasus models can be imported")
    activation = config.activation_function
    features = {
        "embeddings scaled by sqrt(d_model)": config.scale_embedding,
        f"an activation other than {activation}": activation in ACTIVATIONS,
        **{
            f"a single {name}": len({getattr(config, key) for key in keys}) == 1 for name, keys in marian.CONFIG.items()
        },
    }
    if lacking := [feature for feature, present in features.items() if not present]:
        raise DataError(f"{directory} cannot be imported: nmt requires {' and '.join(lacking)}")
    _check_sizes(directory, config, weight_bytes)
    return config


def _check_sizes(directory: Path, config: Any, weight_bytes: int) -> None:
    sizes = [config.vocab_size, getattr(config, "decoder_vocab_size", config.vocab_size)]
    heads = config.encoder_attention_heads
    if any(type(size) is not int for size in (*sizes, config.d_model, heads)) or min(*sizes, heads) < 1:
        raise DataError(f"{directory / 'config.json'} is damaged: its sizes must be whole numbers of 1 or more")
    settings = foreign_recipe({"model": _sizes(config)}, directory).model
    if parameter_count(settings, max(sizes)) > weight_bytes:  # a parameter takes at least one byte
        raise DataError(f"{directory / 'config.json'} describes a larger model than the weights hold")


def _sizes(config: Any) -> dict[str, Any]:
    """Return the settings that depend only on config.json."""
    layers = config.encoder_layers, config.decoder_layers
    sizes = {name: getattr(config, theirs[0]) for name, theirs in marian.CONFIG.items()}
    sizes |= sizes_of(config.d_model, config.encoder_attention_heads, layers)
    return {**sizes, "activation": ACTIVATIONS[config.activation_function]}


def read_vocabulary(file: Path, size: int, config: Any) -> ForeignIds:
    """Return the vocabulary in a file, in our order. Raise DataError if config.json has other ids for <pad> or </s>."""
    if not file.is_file():
        raise MissingError(f"no file {file}, which separate_vocabs in tokenizer_config.json requires")
    ids = in_our_order(artefact.read_json(file), size, file)
    if (ids["<pad>"], ids["</s>"]) != (config.pad_token_id, config.eos_token_id):
        raise DataError(f"{file} and config.json have different ids for <pad> or </s>")
    return ids


def _read_tokenizer_config(directory: Path) -> Any:
    file = directory / "tokenizer_config.json"
    return artefact.read_json(file) if file.is_file() else {}


def _positions(theirs: Tensor) -> str:
    """Return our name for the positional encodings: "marian" if they equal Marian's, or else "sinusoidal"."""
    length, d_model = theirs.shape
    ours = sinusoids(length, d_model, "marian")[:, marian.sines_first(d_model)]
    return "marian" if torch.allclose(theirs, ours, atol=1e-4) else "sinusoidal"


def model_settings(config: Any, tensors: dict[str, Tensor], vocabularies: list[ForeignIds]) -> dict[str, Any]:
    """Return our settings for a model. Leave out biases that are all zero, and share equal embedding matrices."""
    src, tgt, output = (tensors[name] for name in marian.EMBEDDINGS.values())
    _pad, *others = vocabularies[1].values()
    biases = [tensor for name, tensor in tensors.items() if name.endswith("_proj.bias")]
    return {
        **_sizes(config),
        "norm": "pre" if config.model_type == "pegasus" else "post",
        "attention_bias": any(bool(bias.any()) for bias in biases),
        "output_bias": bool(tensors[marian.OUTPUT_BIAS].flatten()[others].any()),
        "source_vocabulary": 0 if vocabularies[0] == vocabularies[1] and torch.equal(src, tgt) else len(src),
        "tied_output": torch.equal(tgt, output),
        "positions": _positions(tensors[marian.POSITIONS[0]]),
    }
