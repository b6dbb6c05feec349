"""Random Marian models in the file format of transformers."""

import io
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers

WORDS = itertools.product(["old", "red", "big"], ["cat", "man", "fox"], ["shy", "sad", "wet"])
TEXT = [f"the {a} {b} sees a {c} dog und der {a}e {b} schläft" for a, b, c in WORDS]
# Options of transformers that give a side an embedding matrix of its own.
OWN_SOURCE, OWN_OUTPUT = {"share_encoder_decoder_embeddings": False}, {"tie_word_embeddings": False}


def train_unigram(lines: Iterable[str], size: int) -> bytes:
    """Train a SentencePiece unigram model."""
    model, options = io.BytesIO(), {"vocab_size": size, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **options)
    return model.getvalue()


SOURCE = train_unigram(TEXT, 60)


def vocabulary(*models: bytes, tags: Sequence[str] = (), pad_first: bool = False) -> list[str]:
    """Return a vocabulary in the order of OPUS-MT: </s>, <unk>, tokens, <pad>; or with <pad> before the tokens."""
    tokens = set(tags)
    for model in models:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        tokens |= set(processor.id_to_piece(list(range(len(processor)))))
    names = sorted(tokens - {"<pad>", "<unk>", "</s>", "<s>"})
    return ["</s>", "<unk>", *(["<pad>", *names] if pad_first else [*names, "<pad>"])]


@torch.no_grad()
def randomize(model: torch.nn.Module, *zeros: torch.Tensor) -> None:
    """Set weights to random values, except positional encodings; then set some tensors to zero."""
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2)
    for tensor in zeros:
        tensor.zero_()


def random_marian(
    out: Path,
    source: bytes = SOURCE,
    target: bytes = SOURCE,
    tags: Sequence[str] = (),
    biased: bool = True,
    separate: bool = False,
    **changes: Any,
) -> Any:
    """Save a random Marian model as transformers writes it, and return it. `changes` are made to config.json."""
    sides = [vocabulary(source, target, tags=tags)] * 2
    if separate:
        sides = [vocabulary(source, tags=tags, pad_first=True), vocabulary(target, pad_first=True)]
    pad = sides[0].index("<pad>")
    values = {
        "vocab_size": len(sides[0]), "decoder_vocab_size": len(sides[1]), "d_model": 32, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "scale_embedding": True, "activation_function": "swish", "pad_token_id": pad,
        "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": 0, "max_position_embeddings": 64,
        **changes,
    }  # fmt: skip
    model = transformers.MarianMTModel(transformers.MarianConfig(**values)).eval()
    biases = [] if biased else [tensor for name, tensor in model.named_parameters() if name.endswith("_proj.bias")]
    pads = [stack.embed_tokens.weight[pad] for stack in (model.model.encoder, model.model.decoder)]
    randomize(model, *pads, model.model.encoder.layers[0].self_attn.q_proj.bias, *biases)
    model.final_logits_bias.normal_().mul_(biased)
    model.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    legacy = {"num_beams": 4, "max_length": 512, "bad_words_ids": [[pad]], "extra_pos_embeddings": len(sides[0])}
    (out / "config.json").write_text(json.dumps({**config, **legacy}))  # as in OPUS-MT's files
    for name, side in zip(["vocab.json", "target_vocab.json"][: 1 + separate], sides, strict=False):
        (out / name).write_text(json.dumps({token: i for i, token in enumerate(side)}))
    (out / "source.spm").write_bytes(source)
    (out / "target.spm").write_bytes(target)
    languages = {"source_lang": "en", "target_lang": "de", "separate_vocabs": separate}
    (out / "tokenizer_config.json").write_text(json.dumps(languages))
    return model
