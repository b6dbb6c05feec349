"""The files that transformers and CTranslate2 load."""

import json
from pathlib import Path

import torch

from nmt_cli.corpus.tokenizer import EOS, PAD, UNK, Tokenizer
from nmt_cli.interop import hf
from nmt_cli.transformer.weights import LoadedModel

LONGEST = 512  # pieces of output: theirs has one limit for all sentences


def write_hf(loaded: LoadedModel, out: Path) -> None:
    """Write what transformers loads into an existing directory.

    Raises:
        DataError: Marian and Pegasus cannot compute this model.
    """
    transformers = hf.library("transformers")
    settings, size = loaded.recipe.model, loaded.model.vocabulary_size
    hf.check_representable(settings)
    name = "PegasusForConditionalGeneration" if settings.norm == "pre" else "MarianMTModel"
    with torch.device("meta"):
        theirs = getattr(transformers, name)(hf.config(settings, size))
    theirs.save_pretrained(out, state_dict=hf.to_hf(loaded.model.state_dict(), settings))
    pieces = Tokenizer(loaded.tokenizer_file).pieces(list(range(size)))
    vocabulary = dict(zip(pieces, hf.exported_order(size), strict=True))
    (out / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False, indent=0), "utf-8")
    for side in ("source", "target"):
        (out / f"{side}.spm").write_bytes(loaded.tokenizer_file.read_bytes())
    facts = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": loaded.recipe.corpus.src,
        "target_lang": loaded.recipe.corpus.tgt,
        "model_max_length": settings.max_length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "</s>" in a text is text
        "unk_token": pieces[UNK],
        "eos_token": pieces[EOS],
        "pad_token": pieces[PAD],
    }
    (out / "tokenizer_config.json").write_text(json.dumps(facts, indent=1), "utf-8")


def write_generation_config(loaded: LoadedModel, length_penalty: float, out: Path) -> None:
    """Write how transformers searches by default: the recipe's beam, and a length penalty like its own."""
    order = hf.exported_order(loaded.model.vocabulary_size)
    end, pad = order[EOS], order[PAD]
    hf.library("transformers").GenerationConfig(
        num_beams=loaded.recipe.decoding.beam,
        length_penalty=length_penalty,
        max_length=min(LONGEST, loaded.recipe.model.max_length),
        bad_words_ids=[[pad]],
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=end,
        forced_eos_token_id=end,
    ).save_pretrained(out)


def write_ctranslate2(directory: Path, out: Path, quantization: str) -> None:
    """Convert what `write_hf` wrote into an existing directory, with the tokenizer beside it."""
    hf.library("ctranslate2")
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(directory)).convert(str(out), quantization=quantization, force=True)
    (out / "tokenizer.model").write_bytes((directory / "source.spm").read_bytes())
