"""Our weights and vocabulary as transformers stores them (Marian for post-norm, Pegasus for pre-norm), and back.

Two things differ besides names. Theirs has the sines of the positional encoding in the first half of d_model and the
cosines in the second, ours alternates them: a permutation of d_model, applied to every weight that reads or writes
the residual stream, turns one into the other exactly. And PAD, first in our vocabulary, is last in theirs, because
CTranslate2 drops the last row of a Marian model and starts from a zero embedding instead.
"""

import importlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli import recipe
from nmt_cli.corpus.tokenizer import EOS, PAD, UNK, Tokenizer
from nmt_cli.errors import DataError, UsageError
from nmt_cli.transformer.weights import LoadedModel

NO_LOGIT = -1e9  # what transformers adds to a logit that must never win; ours is -inf
SHARED, BIAS = "model.shared.weight", "final_logits_bias"
LONGEST = 512  # tokens of output: theirs has one limit for all sentences
CONFIG = {  # our settings by what theirs are called
    "num_layers": ("encoder_layers", "decoder_layers"),
    "d_model": ("d_model",),
    "d_ff": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
    "dropout": ("dropout",),
    "max_length": ("max_position_embeddings",),
    "activation": ("activation_function",),
}


def library(name: str) -> Any:
    """Import transformers or ctranslate2, and silence what transformers prints while it works.

    Raises:
        UsageError: it is not installed.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        raise UsageError(f'this needs the package {name}. Install it: pip install "nmt-cli[export]"') from None
    if name == "transformers":
        module.logging.set_verbosity_error()
        module.logging.disable_progress_bar()
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
    return module


def _modules(settings: recipe.Model) -> Iterator[tuple[str, list[str], bool]]:
    """Yield our module, theirs, and whether it reads the residual stream (else it writes or normalises it).

    Where theirs are several, ours holds them end to end along dimension 0.
    """
    for stack in ("encoder", "decoder"):
        for i in range(settings.num_layers):
            ours, theirs = f"{stack}.{i}", f"model.{stack}.layers.{i}"
            norms = ["self_attn_layer_norm", "final_layer_norm"]
            yield f"{ours}.self_attention.query_key_value", [f"{theirs}.self_attn.{x}_proj" for x in "qkv"], True
            yield f"{ours}.self_attention.output", [f"{theirs}.self_attn.out_proj"], False
            if stack == "decoder":
                norms.insert(1, "encoder_attn_layer_norm")
                yield f"{ours}.cross_attention.query", [f"{theirs}.encoder_attn.q_proj"], True
                yield f"{ours}.cross_attention.key_value", [f"{theirs}.encoder_attn.{x}_proj" for x in "kv"], True
                yield f"{ours}.cross_attention.output", [f"{theirs}.encoder_attn.out_proj"], False
            yield f"{ours}.feed_forward.inner", [f"{theirs}.fc1"], True
            yield f"{ours}.feed_forward.outer", [f"{theirs}.fc2"], False
            for k, norm in enumerate(norms):
                yield f"{ours}.residuals.{k}.norm", [f"{theirs}.{norm}"], False
        if settings.norm == "pre":
            yield f"{stack}_norm", [f"model.{stack}.layer_norm"], False


def _parameters(settings: recipe.Model) -> Iterator[tuple[str, list[str], int | None]]:
    """Yield our tensor, theirs, and which dimension is d_model (None: none is)."""
    for ours, theirs, reads in _modules(settings):
        yield f"{ours}.weight", [f"{name}.weight" for name in theirs], 1 if reads else 0
        yield f"{ours}.bias", [f"{name}.bias" for name in theirs], None if reads else 0


def sines_first(d_model: int) -> Tensor:
    """Return the places of our d_model in the order of theirs."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def exported_ids(size: int) -> list[int]:
    """Return the id that each of our tokens has in an exported vocabulary."""
    return [(i - 1) % size for i in range(size)]


def to_marian(tensors: dict[str, Tensor], settings: recipe.Model) -> dict[str, Tensor]:
    """Return their weights, by their names, for ours; biases that ours does not have are zeros."""
    places = sines_first(settings.d_model)
    embedding = tensors["embedding.weight"].roll(-1, 0).index_select(1, places)
    bias = tensors.get("output_bias", torch.zeros(len(embedding))).roll(-1, 0)[None]
    bias[0, -1] = NO_LOGIT
    result = {SHARED: embedding, BIAS: bias}
    for ours, theirs, dim in _parameters(settings):
        tensor = tensors.get(ours, torch.zeros(len(theirs) * settings.d_model))
        tensor = tensor if dim is None else tensor.index_select(dim, places)
        result.update(zip(theirs, (part.clone() for part in tensor.chunk(len(theirs))), strict=True))
    return result


def from_marian(tensors: dict[str, Tensor], settings: recipe.Model, ids: list[int]) -> dict[str, Tensor]:
    """Return our weights for theirs.

    Args:
        tensors: theirs, by their names.
        settings: of our model.
        ids: their id of each of our tokens.

    Raises:
        DataError: one is missing.
    """
    places = sines_first(settings.d_model).argsort()
    embedding = tensors[SHARED].index_select(1, places)[ids]
    embedding[PAD] = 0
    result = {"embedding.weight": embedding}
    if settings.output_bias:
        result["output_bias"] = tensors[BIAS].flatten()[ids]
        result["output_bias"][PAD] = 0
    for ours, theirs, dim in _parameters(settings):
        if ours.endswith(".bias") and "attention" in ours and not settings.attention_bias:
            continue
        for name in theirs:
            if name not in tensors:
                raise DataError(f"the weights have no tensor {name}")
        tensor = torch.cat([tensors[name] for name in theirs])
        result[ours] = tensor if dim is None else tensor.index_select(dim, places)
    return result


def _config(transformers: Any, settings: recipe.Model, size: int) -> Any:
    kind = transformers.PegasusConfig if settings.norm == "pre" else transformers.MarianConfig
    return kind(
        **{name: getattr(settings, ours) for ours, names in CONFIG.items() for name in names},
        vocab_size=size,
        scale_embedding=True,
        static_position_embeddings=True,
        normalize_before=settings.norm == "pre",  # these two are read by CTranslate2
        normalize_embedding=False,
        pad_token_id=size - 1,
        decoder_start_token_id=size - 1,
        eos_token_id=EOS - 1,
        forced_eos_token_id=EOS - 1,
        unk_token_id=UNK - 1,
    )


def write_marian(loaded: LoadedModel, out: Path) -> None:
    """Write what transformers loads into an existing directory.

    Raises:
        DataError: Marian and Pegasus cannot compute this model.
    """
    settings, size = loaded.recipe.model, loaded.model.vocabulary_size
    if settings.positions != "sinusoidal":
        raise DataError("this model cannot be exported: its positions are learned, theirs are sinusoids")
    if not settings.num_heads * settings.d_k == settings.num_heads * settings.d_v == settings.d_model:
        raise DataError(
            "this model cannot be exported: its heads x d_k or heads x d_v is not d_model, theirs always is"
        )
    transformers = library("transformers")
    kind = transformers.PegasusForConditionalGeneration if settings.norm == "pre" else transformers.MarianMTModel
    with torch.device("meta"):
        theirs = kind(_config(transformers, settings, size))
    theirs.save_pretrained(out, state_dict=to_marian(loaded.model.state_dict(), settings))
    tokens = Tokenizer(loaded.tokenizer_file).pieces(list(range(size)))
    vocabulary = dict(zip(tokens, exported_ids(size), strict=True))
    (out / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False, indent=0), "utf-8")
    for side in ("source", "target"):
        (out / f"{side}.spm").write_bytes(loaded.tokenizer_file.read_bytes())
    tokenizer_config = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": loaded.recipe.corpus.src,
        "target_lang": loaded.recipe.corpus.tgt,
        "model_max_length": settings.max_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "</s>" in a text is text
        "unk_token": tokens[UNK],
        "eos_token": tokens[EOS],
        "pad_token": tokens[PAD],
    }
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=1), "utf-8")


def write_generation_config(loaded: LoadedModel, length_penalty: float, out: Path) -> None:
    """Write how transformers searches by default: the recipe's beam, and a length penalty close to ours."""
    pad = loaded.model.vocabulary_size - 1
    library("transformers").GenerationConfig(
        num_beams=loaded.recipe.decoding.beam,
        length_penalty=length_penalty,
        max_length=min(LONGEST, loaded.recipe.model.max_length),
        bad_words_ids=[[pad]],
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=EOS - 1,
        forced_eos_token_id=EOS - 1,
    ).save_pretrained(out)


def write_ctranslate2(directory: Path, out: Path, quantization: str) -> None:
    """Convert what `write_marian` wrote into an existing directory, with the tokenizer beside it."""
    converters = importlib.import_module("ctranslate2.converters")
    converters.TransformersConverter(str(directory)).convert(str(out), quantization=quantization, force=True)
    (out / "tokenizer.model").write_bytes((directory / "source.spm").read_bytes())
