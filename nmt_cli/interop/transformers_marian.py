"""Convert our tensors to those of transformers and back.

In transformers, a post-norm model is a Marian model, and a pre-norm model is a Pegasus model.

In the positional encodings of transformers, all sines precede all cosines. In ours, sines and cosines alternate. A
permutation of the d_model dimensions converts between both orders exactly. Exports put PAD last in a shared vocabulary,
because CTranslate2 replaces the last row of a Marian embedding with zeros and uses it as the first input of the
decoder.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nmt_cli.corpus.tokenizer import EOS, LANGUAGE, PAD, UNK, target_file
from nmt_cli.interop.packages import import_package
from nmt_cli.interop.vocabulary import UNKNOWN, IdMaps
from nmt_cli.recipe import schema
from nmt_cli.system.errors import DataError
from nmt_cli.transformer.model import sinusoids
from nmt_cli.transformer.weights import LoadedModel, writing

SHARED_EMBEDDING = "model.shared.weight"
OUTPUT_BIAS = "final_logits_bias"
EMBEDDINGS = {
    "src": "model.encoder.embed_tokens.weight",
    "tgt": "model.decoder.embed_tokens.weight",
    "output": "lm_head.weight",
}
POSITIONS = "model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"
NO_LOGIT = -1e9  # transformers' bias for tokens that are never produced, where we use -inf
MAX_OUTPUT = 512  # maximum output tokens; transformers has one limit for all sentences
CONFIG = {  # our settings -> their names in config.json
    "d_model": ["d_model"],
    "d_ff": ["encoder_ffn_dim", "decoder_ffn_dim"],
    "num_heads": ["encoder_attention_heads", "decoder_attention_heads"],
    "dropout": ["dropout"],
    "max_length": ["max_position_embeddings"],
    "activation": ["activation_function"],
}
# Our name of each module in a layer -> its names in transformers. Our tensor concatenates theirs along dimension 0.
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
RECURRENT_DECODER = {  # transformers has no recurrent decoder; rnn_value and rnn_forget are names that we chose
    **{ours: theirs for ours, theirs in DECODER.items() if not ours.startswith("self_attention")},
    "recurrence.value": ["rnn_value"],
    "recurrence.forget": ["rnn_forget"],
}


def _layer_tensors(settings: schema.Model) -> Iterator[tuple[str, list[str]]]:
    """For each of our tensors except embeddings and the output bias, yield its name and its names in transformers."""
    decoder = RECURRENT_DECODER if settings.decoder_cell == "ssru" else DECODER
    for stack, layer, depth in zip(("encoder", "decoder"), (ENCODER, decoder), settings.depths, strict=True):
        modules = {
            f"{stack}.{i}.{ours}": [f"layers.{i}.{name}" for name in theirs]
            for i, (ours, theirs) in itertools.product(range(depth), layer.items())
        }
        if settings.norm == "pre":
            modules[f"{stack}_norm"] = ["layer_norm"]
        for ours, theirs in modules.items():
            for kind in ("weight", "bias")[: 2 - ours.endswith("recurrence.value")]:  # recurrence.value has no bias
                yield f"{ours}.{kind}", [f"model.{stack}.{name}.{kind}" for name in theirs]


def permute_d_model(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    """Permute the d_model dimensions of one of our tensors.

    These are the columns of modules that read the residual stream, the rows of other modules, and both in an SSRU.
    """
    if "recurrence" in name:
        return tensor[order] if tensor.dim() == 1 else tensor[order][:, order]
    reads = name.rpartition(".")[0].endswith(("query", "key_value", "inner"))
    return tensor if reads and tensor.dim() == 1 else tensor.index_select(int(reads), order)


def sines_first(d_model: int) -> Tensor:
    """Return the permutation of d_model that converts our alternating encodings to sines followed by cosines."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def embedding_names(settings: schema.Model) -> dict[str, str]:
    """Return the names of our embedding matrices. "src" and "output" are left out if they share the matrix of "tgt"."""
    own = {"src": settings.source_vocabulary, "output": not settings.tied_output}
    return {"tgt": "embedding.weight", **{side: f"own_embeddings.{side}.weight" for side in own if own[side]}}


def to_transformers(tensors: dict[str, Tensor], settings: schema.Model, id_maps: IdMaps) -> dict[str, Tensor]:
    """Return our weights as transformers stores them, with zeros for biases that our model does not have."""
    permutation = sines_first(settings.d_model)
    own = embedding_names(settings)
    rows = {side: torch.tensor(id_maps[side != "src"]).argsort() for side in EMBEDDINGS}
    bias = tensors.get("output_bias", torch.zeros(len(id_maps[1])))[rows["tgt"]][None]
    bias[0, id_maps[1][PAD]] = NO_LOGIT
    result = {OUTPUT_BIAS: bias}
    shared = len(own) == 1
    for side in own if shared else {"src", *own}:
        matrix = tensors[own.get(side, own["tgt"])].index_select(1, permutation)
        result[SHARED_EMBEDDING if shared else EMBEDDINGS[side]] = matrix[rows[side]]
    for ours, theirs in _layer_tensors(settings):
        tensor = tensors.get(ours, torch.zeros(len(theirs) * settings.d_model))
        parts = permute_d_model(ours, tensor, permutation).chunk(len(theirs))
        result.update(zip(theirs, (part.clone() for part in parts), strict=True))
    return result


def from_transformers(
    tensors: dict[str, Tensor], settings: schema.Model, id_maps: IdMaps, start: int, source: Path
) -> dict[str, Tensor]:
    """Convert weights of transformers to ours.

    Our decoder starts from PAD, so PAD gets the embedding of `start`, the id from which the foreign decoder starts.
    Raises DataError, with `source` in its message, if weights are missing or do not fit together.
    """
    try:
        return _from_transformers(tensors, settings, id_maps, start)
    except (RuntimeError, IndexError, KeyError) as error:  # raised by torch or for a missing tensor
        what = str(error).partition("\n")[0][:150]
        raise DataError(f"{source} cannot be imported: its tensors do not fit together ({what})") from None


def _from_transformers(
    tensors: dict[str, Tensor], settings: schema.Model, id_maps: IdMaps, start: int
) -> dict[str, Tensor]:
    permutation = sines_first(settings.d_model).argsort()
    result = {}
    for side, ours in embedding_names(settings).items():
        result[ours] = tensors[EMBEDDINGS[side]].index_select(1, permutation)[id_maps[side != "src"]]
    if settings.output_bias:
        result["output_bias"] = tensors[OUTPUT_BIAS].flatten()[id_maps[1]]
    for tensor in result.values():
        tensor[PAD] = 0
    result["embedding.weight"][PAD] = tensors[EMBEDDINGS["tgt"]][start][permutation]
    for ours, theirs in _layer_tensors(settings):
        if settings.attention_bias or "attention" not in ours or not ours.endswith(".bias"):
            result[ours] = permute_d_model(ours, torch.cat([tensors[name] for name in theirs]), permutation)
    return result


def write_transformers(loaded: LoadedModel, length_penalty: float, out: Path) -> IdMaps:
    """Write a directory that transformers loads, with the recipe's beam size and this length penalty as defaults.

    Returns the ids that our source and target tokens have in transformers. Raises DataError if neither Marian nor
    Pegasus can represent the model.
    """
    settings, tokenizer = loaded.recipe.model, loaded.tokenizer
    if settings.decoder_cell != "attention":
        raise DataError(f"cannot export: transformers and CTranslate2 have no {settings.decoder_cell} decoder")
    sides = [side.vocabulary for side in (tokenizer, tokenizer.target)]
    separate = sides[0] != sides[1]
    # PAD is last in a shared vocabulary. In separate vocabularies, it is first, because both sides need the same id.
    id_maps = [[i if separate else (i - 1) % len(tokens) for i in range(len(tokens))] for tokens in sides]
    widths = {settings.num_heads * settings.d_k, settings.num_heads * settings.d_v}
    if settings.positions == "learned" or widths != {settings.d_model}:
        raise DataError(
            "cannot export: Marian needs sinusoidal positions, and num_heads x d_k = num_heads x d_v = d_model"
        )
    if settings.norm == "pre" and len(embedding_names(settings)) > 1:
        raise DataError("cannot export: with pre-norm (Pegasus), source, target and output must share one embedding")
    transformers = import_package("transformers")
    with torch.device("meta"):
        theirs = transformers.AutoModelForSeq2SeqLM.from_config(_config(transformers, settings, id_maps))
    search = {"max_length": min(MAX_OUTPUT, settings.max_length), "bad_words_ids": [[id_maps[1][PAD]]]}
    if (beam := loaded.recipe.decoding.beam) > 1:
        search |= {"num_beams": beam, "length_penalty": length_penalty}
    theirs.generation_config.update(**search)
    tensors = to_transformers(loaded.model.state_dict(), settings, id_maps)
    with writing(out):
        theirs.save_pretrained(out, state_dict={**tensors})  # save_pretrained empties this copy
        # If the file has no positions, transformers computes those of "Attention Is All You Need".
        if settings.positions == "marian":
            positions = sinusoids(settings.max_length, settings.d_model, "marian")[:, sines_first(settings.d_model)]
            tensors |= {name: positions.clone() for name in POSITIONS}
            save_file(tensors, out / "model.safetensors", {"format": "pt"})
    _write_tokenizers(loaded, sides, id_maps, out)
    return id_maps


def _config(transformers: Any, settings: schema.Model, id_maps: IdMaps) -> Any:
    ids = id_maps[1]
    values = {theirs: getattr(settings, ours) for ours, names in CONFIG.items() for theirs in names}
    values |= dict(zip(("encoder_layers", "decoder_layers"), settings.depths, strict=True))
    values |= dict.fromkeys(("pad_token_id", "decoder_start_token_id"), ids[PAD])
    values |= dict.fromkeys(("eos_token_id", "forced_eos_token_id"), ids[EOS])
    values |= {
        "vocab_size": len(id_maps[0]),
        "unk_token_id": ids[UNK],
        "scale_embedding": True,
        "static_position_embeddings": True,
        "normalize_before": settings.norm == "pre",  # CTranslate2 reads this and normalize_embedding
        "normalize_embedding": False,
    }
    if settings.norm == "pre":
        return transformers.PegasusConfig(**values)
    return transformers.MarianConfig(
        **values,
        decoder_vocab_size=len(ids),
        share_encoder_decoder_embeddings=len(embedding_names(settings)) == 1,
        tie_word_embeddings=settings.tied_output,
    )


def _write_tokenizers(loaded: LoadedModel, sides: list[list[str]], id_maps: IdMaps, out: Path) -> None:
    tokenizer = loaded.tokenizer
    separate = sides[0] != sides[1]
    names = ("vocab.json", "target_vocab.json")[: 1 + separate]
    for name, tokens, ids in zip(names, sides, id_maps, strict=False):
        vocabulary = dict(zip((LANGUAGE.sub(r"\1", token) for token in tokens), ids, strict=True))
        (out / name).write_text(json.dumps(vocabulary, ensure_ascii=False, indent=0), "utf-8")
    target = loaded.tokenizer_file if tokenizer.target is tokenizer else target_file(loaded.tokenizer_file)
    for side, file in (("source", loaded.tokenizer_file), ("target", target)):
        (out / f"{side}.spm").write_bytes(_unused_sentencepiece() if tokenizer.moses else file.read_bytes())
    config = {
        "tokenizer_class": "MarianTokenizer",
        "clean_up_tokenization_spaces": False,
        "source_lang": loaded.recipe.corpus.src,
        "target_lang": loaded.recipe.corpus.tgt,
        "model_max_length": loaded.recipe.model.max_length,
        "unk_token": sides[0][UNK],
        "eos_token": sides[0][EOS],
        "pad_token": sides[0][PAD],
        "separate_vocabs": separate,
        "split_special_tokens": True,  # a literal "</s>" in text is not EOS
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1), "utf-8")


def _unused_sentencepiece() -> bytes:
    """Return a SentencePiece model of two tokens. CTranslate2's converter loads such a file but never uses it."""
    model = import_package("sentencepiece.sentencepiece_model_pb2").ModelProto()
    model.pieces.add(piece="<unk>", type=UNKNOWN)
    model.pieces.add(piece="\u2581")
    return model.SerializeToString()  # type: ignore[no-any-return]
