"""Our weights and vocabulary as transformers stores them (Marian for post-norm, Pegasus for pre-norm), and back.

Their positional encodings are sines, then cosines; ours alternate. Permuting d_model turns one into the other exactly.
PAD is last in theirs: CTranslate2 drops the last row of a Marian model and starts from a zero embedding instead.
"""

import importlib
import itertools
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nmt_cli.corpus.tokenizer import EOS, LANGUAGE, PAD, UNK, Tokenizer, target_file
from nmt_cli.recipe import loading, schema
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.transformer.model import sinusoids
from nmt_cli.transformer.weights import LoadedModel, writing

SHARED, BIAS = "model.shared.weight", "final_logits_bias"
EMBEDDINGS = {
    **{"src": "model.encoder.embed_tokens.weight", "tgt": "model.decoder.embed_tokens.weight"},
    "output": "lm_head.weight",
}
POSITIONS = "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"
Ids = list[list[int]]  # their id of each of our tokens, of the source and of the target
NO_LOGIT = -1e9  # what transformers adds to a logit that must never win; ours is -inf
LONGEST = 512  # tokens of output: theirs has one limit for all sentences
CONFIG = {  # our settings by what theirs are called
    "d_model": ["d_model"],
    "d_ff": ["encoder_ffn_dim", "decoder_ffn_dim"],
    "num_heads": ["encoder_attention_heads", "decoder_attention_heads"],
    "dropout": ["dropout"],
    "max_length": ["max_position_embeddings"],
    "activation": ["activation_function"],
}
# Modules of a layer. Where theirs are several, ours holds them end to end along dimension 0.
ENCODER = {
    "self_attention.query_key_value": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "self_attention.output": ["self_attn.out_proj"],
    "residuals.0.norm": ["self_attn_layer_norm"],
    "feed_forward.inner": ["fc1"],
    "feed_forward.outer": ["fc2"],
    "residuals.1.norm": ["final_layer_norm"],
}
DECODER = {
    **ENCODER,
    "cross_attention.query": ["encoder_attn.q_proj"],
    "cross_attention.key_value": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
    "cross_attention.output": ["encoder_attn.out_proj"],
    "residuals.1.norm": ["encoder_attn_layer_norm"],
    "residuals.2.norm": ["final_layer_norm"],
}


def library(name: str) -> Any:
    """Import a module that the extra `export` installs; silence what transformers prints while it works."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f'this needs the package {error.name}. Install it: pip install "nmt-cli[export]"') from None
    if name == "transformers":
        module.logging.set_verbosity_error()
        module.logging.disable_progress_bar()
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
    return module


def described(values: dict[str, Any], where: object) -> schema.Recipe:
    """Return the recipe of another toolkit's model; DataError for sizes that no recipe may have."""
    try:
        return loading.from_plain(values, str(where))
    except UsageError as error:
        raise DataError(f"{error}. Such a model cannot be imported") from None


def _names(settings: schema.Model) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of each of our tensors and of theirs, but for the embedding and the output bias."""
    for stack, layer, depth in zip(("encoder", "decoder"), (ENCODER, DECODER), settings.depths, strict=True):
        places = itertools.product(range(depth), layer.items())
        modules = {f"{stack}.{i}.{ours}": (f"layers.{i}.", theirs) for i, (ours, theirs) in places}
        if settings.norm == "pre":
            modules[f"{stack}_norm"] = ("", ["layer_norm"])
        for ours, (prefix, theirs) in modules.items():
            for kind in ("weight", "bias"):
                yield f"{ours}.{kind}", [f"model.{stack}.{prefix}{name}.{kind}" for name in theirs]


def _reordered(name: str, tensor: Tensor, places: Tensor) -> Tensor:
    """Reorder d_model in our tensor: columns where its module reads the residual stream, else rows."""
    reads = name.rpartition(".")[0].endswith(("query", "key_value", "inner"))
    return tensor if reads and tensor.dim() == 1 else tensor.index_select(int(reads), places)


def sines_first(d_model: int) -> Tensor:
    """Return the places of our d_model in the order of theirs."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def _matrices(settings: schema.Model) -> dict[str, str]:
    """Return the names of our embedding matrices; a side without its own has that of "tgt"."""
    own = {"src": settings.source_vocabulary, "output": not settings.tied_output}
    return {"tgt": "embedding.weight", **{side: f"own_embeddings.{side}.weight" for side in own if own[side]}}


def to_marian(tensors: dict[str, Tensor], settings: schema.Model, ids: Ids) -> dict[str, Tensor]:
    """Return their weights, by their names, for ours; biases that ours does not have are zeros."""
    places, own = sines_first(settings.d_model), _matrices(settings)
    order = {side: torch.tensor(ids[side != "src"]).argsort() for side in EMBEDDINGS}
    bias = tensors.get("output_bias", torch.zeros(len(ids[1])))[order["tgt"]][None]
    bias[0, ids[1][PAD]] = NO_LOGIT
    result, shared = {BIAS: bias}, len(own) == 1
    for side in own if shared else {"src", *own}:
        matrix = tensors[own.get(side, own["tgt"])].index_select(1, places)
        result[SHARED if shared else EMBEDDINGS[side]] = matrix[order[side]]
    for ours, theirs in _names(settings):
        tensor = _reordered(ours, tensors.get(ours, torch.zeros(len(theirs) * settings.d_model)), places)
        result.update(zip(theirs, (part.clone() for part in tensor.chunk(len(theirs))), strict=True))
    return result


@dataclass(frozen=True)
class Foreign:
    """A model of another toolkit, its tensors by transformers' names; `start` is the token that it decodes from."""

    tensors: dict[str, Tensor]
    settings: schema.Recipe
    ids: Ids
    start: int
    tokenizers: list[bytes]  # ours, of source and target text, or one of both
    files: list[Path]  # of the weights
    peer: Any  # what computes it, to compare with; None: nothing here does


def from_marian(tensors: dict[str, Tensor], settings: schema.Model, ids: Ids, start: int) -> dict[str, Tensor]:
    """Return our weights for theirs; PAD, with which our decoder starts, has the embedding of their token `start`."""
    places, result = sines_first(settings.d_model).argsort(), {}
    for side, ours in _matrices(settings).items():
        result[ours] = tensors[EMBEDDINGS[side]].index_select(1, places)[ids[side != "src"]]
    if settings.output_bias:
        result["output_bias"] = tensors[BIAS].flatten()[ids[1]]
    for tensor in result.values():
        tensor[PAD] = 0
    result["embedding.weight"][PAD] = tensors[EMBEDDINGS["tgt"]][start][places]
    for ours, theirs in _names(settings):
        if settings.attention_bias or "attention" not in ours or not ours.endswith(".bias"):
            result[ours] = _reordered(ours, torch.cat([tensors[name] for name in theirs]), places)
    return result


def write_marian(loaded: LoadedModel, length_penalty: float, out: Path) -> Ids:
    """Write what transformers loads, and by default searches with the recipe's beam and this penalty, into a directory.

    DataError if Marian and Pegasus cannot compute this model.
    """
    settings, corpus, tokenizer = loaded.recipe.model, loaded.recipe.corpus, Tokenizer(loaded.tokenizer_file)
    sides = [side.tokens([*range(side.vocabulary_size)]) for side in (tokenizer, tokenizer.target)]
    separate = sides[0] != sides[1]
    # Of separate vocabularies PAD is first: it must have the same number in both.
    numbers = [[i if separate else (i - 1) % len(tokens) for i in range(len(tokens))] for tokens in sides]
    widths = {settings.num_heads * settings.d_k, settings.num_heads * settings.d_v}
    if settings.positions == "learned" or widths != {settings.d_model}:
        raise DataError("cannot export: Marian has sinusoidal positions, and num_heads x d_k and x d_v are d_model")
    transformers, pre, ids = library("transformers"), settings.norm == "pre", numbers[1]
    shared = len(_matrices(settings)) == 1
    if pre and not shared:
        raise DataError("cannot export: with pre-norm (Pegasus) source, target and output must share one embedding")
    layout = {"share_encoder_decoder_embeddings": shared, "tie_word_embeddings": settings.tied_output}
    config = (transformers.PegasusConfig if pre else transformers.MarianConfig)(
        **{name: getattr(settings, ours) for ours, names in CONFIG.items() for name in names},
        **dict(zip(("encoder_layers", "decoder_layers"), settings.depths, strict=True)),
        **dict.fromkeys(("pad_token_id", "decoder_start_token_id"), ids[PAD]),
        **dict.fromkeys(("eos_token_id", "forced_eos_token_id"), ids[EOS]),
        **{"vocab_size": len(sides[0]), "unk_token_id": ids[UNK]},
        **({} if pre else {"decoder_vocab_size": len(ids), **layout}),
        scale_embedding=True,
        static_position_embeddings=True,
        normalize_before=pre,  # these two are read by CTranslate2
        normalize_embedding=False,
    )
    with torch.device("meta"):
        theirs = transformers.AutoModelForSeq2SeqLM.from_config(config)
    search = {"max_length": min(LONGEST, settings.max_length), "bad_words_ids": [[ids[PAD]]]}
    if (beam := loaded.recipe.decoding.beam) > 1:
        search |= {"num_beams": beam, "length_penalty": length_penalty}
    theirs.generation_config.update(**search)
    tensors = to_marian(loaded.model.state_dict(), settings, numbers)
    with writing(out):
        theirs.save_pretrained(out, state_dict={**tensors})  # which it empties
        if settings.positions == "marian":  # transformers computes those of the paper unless the file has others
            positions = sinusoids(settings.max_length, settings.d_model, "marian")[:, sines_first(settings.d_model)]
            tensors |= {name: positions.clone() for name in POSITIONS}
            save_file(tensors, out / "model.safetensors", {"format": "pt"})
    for name, tokens, each in zip(("vocab.json", "target_vocab.json")[: 1 + separate], sides, numbers, strict=False):
        vocabulary = dict(zip((LANGUAGE.sub(r"\1", token) for token in tokens), each, strict=True))
        (out / name).write_text(json.dumps(vocabulary, ensure_ascii=False, indent=0), "utf-8")
    target = loaded.tokenizer_file if tokenizer.target is tokenizer else target_file(loaded.tokenizer_file)
    for side, file in (("source", loaded.tokenizer_file), ("target", target)):
        (out / f"{side}.spm").write_bytes(file.read_bytes())
    tokenizer_config = {
        **{"tokenizer_class": "MarianTokenizer", "clean_up_tokenization_spaces": False},
        **{"source_lang": corpus.src, "target_lang": corpus.tgt, "model_max_length": settings.max_length},
        **{name: sides[0][i] for name, i in (("unk_token", UNK), ("eos_token", EOS), ("pad_token", PAD))},
        "separate_vocabs": separate,
        "split_special_tokens": True,  # "</s>" in a text is text
    }
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=1), "utf-8")
    return numbers
