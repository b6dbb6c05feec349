"""The import command: a Marian model of transformers as a model directory, to translate with and to fine-tune."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt_cli import artefact, recipe
from nmt_cli.console import say, warn
from nmt_cli.errors import DataError, MissingError, OutputError, printable
from nmt_cli.interop.export import need_packages

if TYPE_CHECKING:
    from torch import Tensor

    from nmt_cli.transformer.model import Transformer

WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}
CHECKED_PAIRS = 8


def import_marian(source: Path, out: Path) -> Path:
    """Turn a Marian (or Pegasus-shaped) directory of transformers into a model directory, and return it.

    Args:
        source: config.json, model.safetensors, vocab.json, source.spm and target.spm.
        out: the new model directory.

    Raises:
        UsageError: transformers is not installed.
        MissingError: a file is missing.
        DataError: our model cannot represent it; the message says why.
    """
    need_packages("transformers")
    if out.exists():
        raise OutputError(f"{out} exists already. Choose another --out")
    plain = artefact.read_json(source / "config.json")
    _need_files(source)
    import torch

    from nmt_cli.corpus import tokenizer
    from nmt_cli.interop import hf
    from nmt_cli.transformer.model import Transformer
    from nmt_cli.transformer.weights import load_into, load_tensors, save_model

    if plain.get("model_type") not in ("marian", "pegasus"):
        raise DataError(f"{source} is a {printable(plain.get('model_type'), 30)} model; only Marian can be imported")
    transformers = hf.library("transformers")
    kind = transformers.PegasusConfig if plain["model_type"] == "pegasus" else transformers.MarianConfig
    try:
        config = kind.from_dict(plain)
    except Exception as error:  # whatever their validation raises
        raise DataError(f"{source / 'config.json'} is damaged: {printable(error, 150)}") from None
    tensors = {name: tensor.float() for name, tensor in load_tensors(source / WEIGHTS).items()}
    shared = next((name for name in (hf.SHARED, *hf.COPIES) if name in tensors), None)
    if shared is None:
        raise DataError(f"{source / WEIGHTS} has no tensor {hf.SHARED}")
    tensors[hf.SHARED] = tensors[shared]
    reasons = _unrepresentable(config, tensors)
    if reasons:
        raise DataError(f"{source} cannot be imported: {'; '.join(reasons)}")
    order, model_file = _vocabulary(source, config)
    settings = _recipe(source, config, tensors, order)
    ours = hf.from_hf(tensors, settings.model, order)
    with torch.device("meta"):
        model = Transformer(settings.model, len(order))
    load_into(model, ours, source / WEIGHTS)
    difference = _check(model.eval(), source, order)
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "tokenizer.model"
        file.write_bytes(model_file)
        tokenizer.check(file)
        about = {"imported": source.name, "weights": artefact.sha256(source / WEIGHTS), "steps": []}
        save_model(out, ours, settings, file, about)
    say(f"{out} computes what {source} does (log-probabilities differ by {difference:.1e} at most)")
    return out


def _need_files(source: Path) -> None:
    if not (source / WEIGHTS).is_file() and (source / PICKLE).is_file():
        raise DataError(
            f"{source} has its weights in a pickle ({PICKLE}), which can run code when read. Load it with "
            "transformers where you trust it, and save_pretrained() it: that writes model.safetensors"
        )
    for name in (WEIGHTS, "vocab.json", "source.spm", "target.spm"):
        if not (source / name).is_file():
            raise MissingError(f"{source / name} is missing: a Marian directory has it")


def _unrepresentable(config: Any, tensors: dict[str, "Tensor"]) -> list[str]:
    """Return why our model cannot compute theirs."""
    from nmt_cli.interop import hf

    pad, embedding = config.pad_token_id, tensors[hf.SHARED]
    if (
        embedding.dim() != 2
        or len(embedding) != config.vocab_size
        or not 0 <= (-1 if pad is None else pad) < len(embedding)
    ):
        return ["its embedding does not have the rows that config.json names"]
    facts = {
        "its encoder and decoder differ in layers": config.encoder_layers != config.decoder_layers,
        "its encoder and decoder differ in d_ff": config.encoder_ffn_dim != config.decoder_ffn_dim,
        "its encoder and decoder differ in heads": config.encoder_attention_heads != config.decoder_attention_heads,
        "its source and target vocabularies are separate, ours is one": not getattr(
            config, "share_encoder_decoder_embeddings", True
        )
        or getattr(config, "decoder_vocab_size", config.vocab_size) != config.vocab_size,
        "its output matrix is not its embedding": not config.tie_word_embeddings,
        "its embeddings are not scaled by sqrt(d_model)": not config.scale_embedding,
        f"its activation {config.activation_function} is not one of ours": config.activation_function
        not in ACTIVATIONS,
        "its decoder does not start from a zero embedding": config.decoder_start_token_id != pad
        or bool(embedding[pad].any()),
    }
    return [reason for reason, holds in facts.items() if holds]


def _vocabulary(source: Path, config: Any) -> tuple[list[int], bytes]:
    """Return their id of each of our pieces, and our SentencePiece model.

    Raises:
        DataError: one SentencePiece model cannot cut text as theirs do.
    """
    from nmt_cli.interop import spm

    ids = artefact.read_json(source / "vocab.json")
    size = config.vocab_size
    if len(ids) != size or any(not isinstance(i, int) for i in ids.values()) or {*ids.values()} != {*range(size)}:
        raise DataError(f"{source / 'vocab.json'} does not number {size} pieces from 0")
    first = [spm.PAD_PIECE, spm.UNK_PIECE, spm.EOS_PIECE]
    wrong = [name for name in first if name not in ids]
    if wrong or (ids[first[0]], ids[first[2]]) != (config.pad_token_id, config.eos_token_id):
        raise DataError(f"{source / 'vocab.json'} does not hold {', '.join(first)} where config.json says")
    order = first + sorted((name for name in ids if name not in first), key=lambda name: int(ids[name]))
    if any(name.startswith(">>") and name.endswith("<<") for name in order):
        raise DataError(f"{source} chooses its target language by >>xx<< in the text, which ours cannot")
    src, tgt = ((source / f"{side}.spm").read_bytes() for side in ("source", "target"))
    try:
        model, known = spm.renumbered(src, order), spm.pieces(src)
        unigram = spm.is_unigram(src)
    except (ValueError, UnicodeDecodeError, KeyError) as error:
        raise DataError(f"{source / 'source.spm'} is not a SentencePiece model: {printable(error, 80)}") from None
    if src != tgt and not unigram:
        raise DataError(f"{source} cuts source and target by different BPE models; ours is one for both")
    if src != tgt:
        warn(
            f"{source} cuts target text by another model than source text. Translating is not affected; fine-tuning is"
        )
    lost = sum(1 for name, (_, kind) in known.items() if name not in ids and kind == spm.NORMAL)
    if lost:
        warn(f"{lost} pieces of source.spm have no number in vocab.json; words that need them are cut smaller")
    return [int(ids[name]) for name in order], model


def _recipe(source: Path, config: Any, tensors: dict[str, "Tensor"], order: list[int]) -> recipe.Recipe:
    """Return a recipe that names what is known of the model."""
    from nmt_cli.interop import hf

    facts = source / "tokenizer_config.json"
    languages = artefact.read_json(facts) if facts.is_file() else {}
    size = config.d_model // config.encoder_attention_heads
    biases = [tensor for name, tensor in tensors.items() if name.endswith("_proj.bias")]
    model = {
        "num_layers": config.encoder_layers,
        "d_model": config.d_model,
        "d_ff": config.encoder_ffn_dim,
        "num_heads": config.encoder_attention_heads,
        "d_k": size,
        "d_v": size,
        "dropout": config.dropout,
        "norm": "pre" if config.model_type == "pegasus" else "post",
        "max_length": config.max_position_embeddings,
        "attention_bias": any(bool(bias.any()) for bias in biases),
        "output_bias": bool(tensors[hf.BIAS].flatten()[order[1:]].any()) if hf.BIAS in tensors else False,
        "activation": ACTIVATIONS[config.activation_function],
    }
    corpus = {"name": None, "src": languages.get("source_lang") or "src", "tgt": languages.get("target_lang") or "tgt"}
    return recipe.from_plain({"name": source.resolve().name, "corpus": corpus, "model": model}, str(source))


def _check(model: "Transformer", source: Path, order: list[int]) -> float:
    """Return the largest difference of a log-probability from transformers', on sentences drawn at random.

    PAD is left out of their softmax: it is never said, and has no logit in ours.

    Raises:
        DataError: it is beyond rounding.
    """
    import torch

    from nmt_cli.corpus.tokenizer import EOS
    from nmt_cli.interop.hf import NO_LOGIT
    from nmt_cli.interop.peers import Transformers
    from nmt_cli.interop.proof import TOLERANCE, largest_difference
    from nmt_cli.translation.lines import force

    generator = torch.Generator().manual_seed(1)
    draw = torch.randint(3, len(order), (2, CHECKED_PAIRS, 12), generator=generator).tolist()
    pairs = [([*s[: 4 + i], EOS], [*t[: 11 - i], EOS]) for i, (s, t) in enumerate(zip(*draw, strict=True))]
    try:
        peer = Transformers(source, order)
    except Exception as error:  # whatever they raise
        raise DataError(f"transformers cannot load {source}: {printable(error, 150)}") from None
    peer.model.final_logits_bias[0, peer.pad] = NO_LOGIT
    largest = largest_difference(force(model, torch.float32, pairs), peer.force(pairs))
    if largest > TOLERANCE:
        raise DataError(f"{source} computes something else than our model with its weights ({largest:.1e} nats)")
    return largest
