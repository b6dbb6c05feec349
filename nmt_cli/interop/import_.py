"""The import command: a Marian model of transformers as a model directory, to translate with and to fine-tune."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli import artefact, recipe
from nmt_cli.console import say, warn
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import DataError, MissingError, OutputError
from nmt_cli.interop import marian
from nmt_cli.interop.proof import LOCAL, TOLERANCE, Transformers, largest_difference
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_into, save_model
from nmt_cli.translation.search import score_targets

WEIGHTS = "model.safetensors"
UNKNOWN, CONTROL, UNUSED, UNIGRAM = 2, 3, 5, 1  # types of SentencePiece's tokens, and of its models
SPECIAL = {"<pad>": CONTROL, "<unk>": UNKNOWN, "</s>": CONTROL}  # our first three tokens
ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}


def import_marian(source: Path, out: Path) -> Path:
    """Turn a Marian (or Pegasus-shaped) directory of transformers into the model directory `out`, and return it."""
    if out.exists():
        raise OutputError(f"{out} exists already. Choose another --out")
    config = _config(source)
    ids, tokenizer = _vocabulary(source, config)
    try:
        peer = Transformers(source, ids)
    except Exception as error:  # whatever they raise
        raise DataError(f"transformers cannot load {source}: {str(error)[:150]}") from None
    if peer.missing:
        raise DataError(f"{source / WEIGHTS} has no tensor {peer.missing[0]}")
    tensors = peer.model.state_dict()
    settings = _recipe(source, config, tensors, ids)
    ours = marian.from_marian(tensors, settings.model, ids)
    model = Transformer(settings.model, len(ids))
    load_into(model, ours, source / WEIGHTS)
    draw = torch.randint(3, len(ids), (2, 8, 12), generator=torch.Generator().manual_seed(1)).tolist()
    pairs = [([*src[: 4 + i], EOS], [*tgt[: 11 - i], EOS]) for i, (src, tgt) in enumerate(zip(*draw, strict=True))]
    peer.model.final_logits_bias[0, peer.pad] = marian.NO_LOGIT  # PAD has no logit in ours
    difference = largest_difference(score_targets([model.eval()], torch.float32, pairs), peer.score(pairs))
    if difference > TOLERANCE:
        raise DataError(f"{source} computes something else than our model with its weights ({difference:.1e} nats)")
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "tokenizer.model"
        file.write_bytes(tokenizer)
        Tokenizer(file)  # refuses what it cannot read
        manifest = {"imported": source.name, "weights": artefact.sha256(source / WEIGHTS), "steps": []}
        save_model(out, ours, settings, file, manifest)
    say(f"{out} computes what {source} does (log-probabilities differ by {difference:.1e} at most)")
    return out


def _config(source: Path) -> Any:
    """Return their configuration after checking that our model can compute theirs."""
    transformers = marian.library("transformers")
    files = ("config.json", WEIGHTS, "vocab.json", "source.spm", "target.spm")
    if missing := [name for name in files if not (source / name).is_file()]:
        kind = "a CTranslate2 model" if (source / "model.bin").is_file() else f"without {', '.join(missing)}"
        advice = f"A Marian model of transformers has {', '.join(files)}; save a pickle's weights by save_pretrained()"
        raise MissingError(f"{source} is {kind}. {advice}")
    try:
        config = transformers.AutoConfig.from_pretrained(source, **LOCAL)
    except Exception as error:  # whatever they raise
        raise DataError(f"{source / 'config.json'} is damaged: {str(error)[:150]}") from None
    if config.model_type not in ("marian", "pegasus"):
        raise DataError(f"{source} is a {config.model_type} model; only Marian can be imported")
    size, activation = config.vocab_size, config.activation_function
    shared = getattr(config, "share_encoder_decoder_embeddings", True) and config.tie_word_embeddings
    ours = {
        "one embedding for source, target and output": shared and getattr(config, "decoder_vocab_size", size) == size,
        "embeddings scaled by sqrt(d_model)": config.scale_embedding,
        f"no activation {activation}": activation in ACTIVATIONS,
        "a decoder that starts from a zero embedding": config.decoder_start_token_id == config.pad_token_id,
        **{f"one {name}": len({getattr(config, key) for key in keys}) == 1 for name, keys in marian.CONFIG.items()},
    }
    if lacking := [feature for feature, there in ours.items() if not there]:
        raise DataError(f"{source} cannot be imported. Other than it, our model has {' and '.join(lacking)}")
    return config


def _vocabulary(source: Path, config: Any) -> tuple[list[int], bytes]:
    """Return their id of each of our tokens, and our SentencePiece model."""
    file, size, first = source / "vocab.json", config.vocab_size, [*SPECIAL]
    ids: dict[str, int] = artefact.read_json(file)
    special = [config.pad_token_id, ids.get("<unk>", -1), config.eos_token_id]
    numbers = {number for number in ids.values() if type(number) is int}
    if len(ids) != size or numbers != {*range(size)} or [ids.get(name) for name in first] != special:
        raise DataError(f"{file} does not number {size} tokens from 0, with {', '.join(first)} where config.json says")
    order = first + sorted(ids.keys() - {*first}, key=ids.__getitem__)
    if any(name.startswith(">>") and name.endswith("<<") for name in order):
        raise DataError(f"{source} chooses its target language by >>xx<< in the text, which ours cannot")
    src, tgt = ((source / f"{side}.spm").read_bytes() for side in ("source", "target"))
    messages = marian.library("sentencepiece.sentencepiece_model_pb2")
    try:
        model = messages.ModelProto.FromString(src)
    except Exception:  # protobuf's DecodeError
        raise DataError(f"{source / 'source.spm'} is not a SentencePiece model") from None
    if src != tgt:
        if model.trainer_spec.model_type != UNIGRAM:
            raise DataError(f"{source} splits source and target by different BPE models; ours is one for both")
        warn(f"{source} splits target text by another model than source text. Only fine-tuning is affected")
    tokens = {token.piece: token for token in model.pieces}
    if [*tokens] != order:  # tokens of the target only can be decoded, not found in a text
        renumbered = [tokens.get(name) or model.SentencePiece(piece=name, type=UNUSED) for name in order]
        for name, token in zip(order, renumbered, strict=True):
            token.type = SPECIAL.get(name, UNUSED if token.type in SPECIAL.values() else token.type)
        model.pieces.extend(renumbered)  # copies them
        del model.pieces[: -len(order)]
        src = model.SerializeToString()
    return [ids[name] for name in order], src


def _recipe(source: Path, config: Any, tensors: dict[str, Tensor], ids: list[int]) -> recipe.Recipe:
    file, size = source / "tokenizer_config.json", config.d_model // config.encoder_attention_heads
    languages = artefact.read_json(file) if file.is_file() else {}
    biases = [tensor for name, tensor in tensors.items() if name.endswith("_proj.bias")]
    model = {
        **{name: getattr(config, theirs[0]) for name, theirs in marian.CONFIG.items()},
        **{"d_k": size, "d_v": size},
        "norm": "pre" if config.model_type == "pegasus" else "post",
        "attention_bias": any(bool(bias.any()) for bias in biases),
        "output_bias": bool(tensors[marian.BIAS].flatten()[ids[1:]].any()),
        "activation": ACTIVATIONS[config.activation_function],
    }
    corpus = {"name": None, "src": languages.get("source_lang") or "src", "tgt": languages.get("target_lang") or "tgt"}
    return recipe.from_plain({"name": source.resolve().name, "corpus": corpus, "model": model}, str(source))
