"""The import command: a Marian model of transformers as a model directory, to translate with and to fine-tune."""

import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli import artefact, recipe
from nmt_cli.console import say
from nmt_cli.corpus.tokenizer import LANGUAGE, UNK, Tokenizer, normalise, target_file
from nmt_cli.errors import DataError, DownloadError, MissingError, OutputError
from nmt_cli.interop import marian
from nmt_cli.interop.proof import LOCAL, Transformers, compare
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_into, save_model
from nmt_cli.translation.translator import Translator

WEIGHTS = "model.safetensors"
FILES = "config.json", WEIGHTS, "vocab.json", "source.spm", "target.spm"
OPTIONAL = "generation_config.json", "tokenizer_config.json", "target_vocab.json"
HUB_NAME = r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?"
LINES, TOKENS = 12, 4  # of random text, on which both models are compared
UNKNOWN, CONTROL, USER_DEFINED, UNUSED, UNIGRAM = 2, 3, 4, 5, 1  # types of SentencePiece's tokens, and of its models
SPECIAL = {"<pad>": CONTROL, "<unk>": UNKNOWN, "</s>": CONTROL}  # our first three tokens
ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}


def import_marian(source: Path | str, out: Path) -> Path:
    """Turn a Marian (or Pegasus-shaped) model of transformers into the model directory `out`, and return it.

    `source` is a directory, or OWNER/NAME or OWNER/NAME@REVISION of the hub.
    """
    if out.exists():
        raise OutputError(f"{out} exists already. Choose another --out")
    marian.library("transformers")
    directory, imported = Path(source), Path(source).resolve().name
    if not directory.exists():
        if not re.fullmatch(HUB_NAME, str(source)):
            raise MissingError(f"no directory {source}. A model of the hub is named OWNER/NAME")
        directory = _download(str(source))
        imported = f"{str(source).partition('@')[0]}@{directory.name}"
    config = _config(directory)
    numbers, tokenizers = _vocabularies(directory, config)
    ids = [[*side.values()] for side in numbers]
    try:
        peer = Transformers(directory, ids)
    except Exception as error:  # whatever they raise
        raise DataError(f"transformers cannot load {directory}: {str(error)[:150]}") from None
    if peer.missing:
        raise DataError(f"{directory / WEIGHTS} has no tensor {peer.missing[0]}")
    tensors = peer.model.state_dict()
    settings = _recipe(directory, config, tensors, numbers).model_copy(update={"name": imported})
    ours = marian.from_marian(tensors, settings.model, ids)
    model = Transformer(settings.model, len(ids[1]))
    load_into(model, ours, directory / WEIGHTS)
    peer.model.final_logits_bias[0, peer.pad] = marian.NO_LOGIT  # PAD has no logit in ours
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "tokenizer.model"
        for path, data in zip((file, target_file(file)), tokenizers, strict=False):
            path.write_bytes(data)
        proof = _prove(model.eval(), Tokenizer(file), settings, peer)
        weights = artefact.sha256(directory / WEIGHTS)
        manifest = {"imported": imported, "weights": weights, "proof": proof, "steps": []}
        save_model(out, ours, settings, file, manifest)
    say(f"{out} computes what {imported} does. {proof}")
    return out


def _download(asked: str) -> Path:
    """Return where the hub's client stores OWNER/NAME or OWNER/NAME@REVISION: a folder named by its commit."""
    import huggingface_hub

    name, _, revision = asked.partition("@")
    try:
        place = huggingface_hub.snapshot_download(name, revision=revision or None, allow_patterns=[*FILES, *OPTIONAL])
    except Exception as error:  # of any of the packages that take part
        what = str(error).strip().partition("\n")[0]
        raise DownloadError(f"no directory {asked} here, and it cannot be downloaded from the hub: {what}") from None
    say(f"{name} at commit {Path(place).name}")
    return Path(place)


def _prove(model: Transformer, tokenizer: Tokenizer, settings: recipe.Recipe, peer: Transformers) -> str:
    """Compare tokens, log-probabilities and translations on random text, and return what came of it."""
    codes, sides = list[str](), list[list[str]]()
    for side in (tokenizer, tokenizer.target):  # each of tokens without a character that its model does not know
        alone = side.decode([[i] for i in range(side.vocabulary_size)])
        codes = codes or [text for i, text in enumerate(alone) if side is tokenizer and side.language([i])]
        known = [i for i, ids in enumerate(side.encode(alone)) if ids and UNK not in ids and not side.language(ids)]
        draw = torch.randint(len(known), (LINES, TOKENS), generator=torch.Generator().manual_seed(1)).tolist()
        sides.append([normalise(line) for line in side.decode([[known[k] for k in row] for row in draw])])
    lines = [*sides[0], *(f"{code} {line}" for code, line in zip(codes, sides[0], strict=False))]
    if codes:
        peer.check_ids(tokenizer, codes, [])
    # A token that a .spm file has and vocab.json has not is unknown to theirs, and several shorter ones to ours.
    peer.check_ids(tokenizer, lines, sides[1], allowed=LINES // 2)
    try:
        translator = Translator.of(model, tokenizer, settings, torch.float32)
        return compare(translator, peer, dict(enumerate(lines)), exact=True)[0]
    except DataError as error:
        raise DataError(f"{settings.name} computes something else than our model with its weights: {error}") from None


def _config(source: Path) -> Any:
    """Return their configuration after checking that our model can compute theirs."""
    transformers = marian.library("transformers")
    if missing := [name for name in FILES if not (source / name).is_file()]:
        if (source / "model.bin").is_file():
            raise MissingError(f"{source} is a CTranslate2 model. Import the one of transformers that it was made from")
        advice = "A Marian model of transformers has them"
        if missing == [WEIGHTS]:
            advice = f"Save a pickle's weights by save_pretrained(), or name a revision with {WEIGHTS}: "
            advice += "OWNER/NAME@refs/pr/N"
        raise MissingError(f"{source} has no {', '.join(missing)}. {advice}")
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
        "a decoder that starts from a zero embedding": config.decoder_start_token_id == config.pad_token_id,
        **{f"one {name}": len({getattr(config, key) for key in keys}) == 1 for name, keys in marian.CONFIG.items()},
    }
    if lacking := [feature for feature, there in ours.items() if not there]:
        raise DataError(f"{source} cannot be imported: the model of nmt has {' and '.join(lacking)}, unlike this one")
    return config


def _vocabularies(source: Path, config: Any) -> tuple[list[dict[str, int]], list[bytes]]:
    """Return their id of each of our tokens, of the source and of the target, in our order, and our SentencePiece
    model, or two: of source text and of target text."""
    separate = bool(_tokenizer_config(source).get("separate_vocabs"))
    target = "target_vocab.json" if separate else "vocab.json"
    sizes = ("vocab.json", config.vocab_size), (target, getattr(config, "decoder_vocab_size", config.vocab_size))
    numbers = [_numbers(source / name, size, config) for name, size in sizes]
    src, tgt = source / "source.spm", source / "target.spm"
    files = [src] if not separate and src.read_bytes() == tgt.read_bytes() else [src, tgt]
    models = [_renumbered(file, [*side]) for file, side in zip(files, numbers, strict=False)]
    if not separate and len(models) == 2 and any(model.trainer_spec.model_type != UNIGRAM for model in models):
        raise DataError(f"{source} has two BPE models over one vocabulary. Two unigram models are supported")
    return numbers, [model.SerializeToString() for model in models]


def _numbers(file: Path, size: int, config: Any) -> dict[str, int]:
    """Return their id of each token, in our order."""
    if not file.is_file():
        raise MissingError(f"no file {file}, which tokenizer_config.json promises by separate_vocabs")
    ids, first = artefact.read_json(file), [*SPECIAL]
    special = [config.pad_token_id, ids.get("<unk>", -1), config.eos_token_id]
    numbers = {number for number in ids.values() if type(number) is int}
    if len(ids) != size or numbers != {*range(size)} or [ids.get(name) for name in first] != special:
        raise DataError(f"{file} does not number {size} tokens from 0, with {', '.join(first)} where config.json says")
    return {name: ids[name] for name in first + sorted(ids.keys() - {*first}, key=ids.__getitem__)}


def _tokenizer_config(source: Path) -> Any:
    file = source / "tokenizer_config.json"
    return artefact.read_json(file) if file.is_file() else {}


def _renumbered(file: Path, order: list[str]) -> Any:
    """Return a SentencePiece model with the tokens in this order; those it did not have can only be decoded, but for
    target-language tokens, which each word of their name becomes."""
    messages = marian.library("sentencepiece.sentencepiece_model_pb2")
    try:
        model = messages.ModelProto.FromString(file.read_bytes())
    except Exception:  # protobuf's DecodeError
        raise DataError(f"{file} is not a SentencePiece model") from None
    tokens = {token.piece: token for token in model.pieces}
    if [*tokens] == order:
        return model
    renumbered = [tokens.get(name) or model.SentencePiece(piece=name, type=UNUSED) for name in order]
    for name, token in zip(order, renumbered, strict=True):
        token.type = SPECIAL.get(name, UNUSED if token.type in SPECIAL.values() else token.type)
        if LANGUAGE.fullmatch(name):
            token.piece, token.type = f"\u2581{name}", USER_DEFINED  # as it stands at the beginning of a text
    model.pieces.extend(renumbered)  # copies them
    del model.pieces[: -len(order)]
    return model


def _recipe(source: Path, config: Any, tensors: dict[str, Tensor], numbers: list[dict[str, int]]) -> recipe.Recipe:
    size, languages = config.d_model // config.encoder_attention_heads, _tokenizer_config(source)
    src, tgt, output = (tensors[name] for name in marian.EMBEDDINGS.values())
    _pad, *others = numbers[1].values()
    biases = [tensor for name, tensor in tensors.items() if name.endswith("_proj.bias")]
    model = {
        **{name: getattr(config, theirs[0]) for name, theirs in marian.CONFIG.items()},
        **{"num_layers": config.encoder_layers, "d_k": size, "d_v": size},
        "norm": "pre" if config.model_type == "pegasus" else "post",
        "attention_bias": any(bool(bias.any()) for bias in biases),
        "output_bias": bool(tensors[marian.BIAS].flatten()[others].any()),
        "source_vocabulary": 0 if numbers[0] == numbers[1] and torch.equal(src, tgt) else len(src),
        "tied_output": torch.equal(tgt, output),
        "activation": ACTIVATIONS[config.activation_function],
    }
    if config.decoder_layers != config.encoder_layers:
        model |= {"encoder_layers": config.encoder_layers, "decoder_layers": config.decoder_layers}
    corpus = {"name": None, "src": languages.get("source_lang") or "src", "tgt": languages.get("target_lang") or "tgt"}
    return recipe.from_plain({"name": source.resolve().name, "corpus": corpus, "model": model}, str(source))
