"""An untrained model with a real tokenizer and arbitrary output, for tests of everything around the search."""

import os
import random
import tempfile
from pathlib import Path

import torch

from nmt_cli.corpus import tokenizer as spm
from nmt_cli.recipe import loading
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_model, save_model

WORDS = [
    "der", "die", "das", "und", "ist", "nicht", "ein", "mit", "auf", "Haus", "Hund", "Katze", "Baum", "geht", "rot"
]  # fmt: skip


def train_tokenizer(seed: int = 5, size: int = 340) -> bytes:
    """Return a tokenizer of `size` tokens, which depends on the seed."""
    draw = random.Random(seed)
    return spm.train(
        [" ".join(draw.choices(WORDS, k=8)) + draw.choice([" .", " ?", ",", "!"]) for _ in range(400)], size
    )


def make_model(parent: Path, *changes: str, seed: int = 1) -> Path:
    """Write a model directory into `parent`. `changes` are overrides of its recipe."""
    parent.mkdir(parents=True, exist_ok=True)
    (parent / "tokenizer.model").write_bytes(train_tokenizer())
    values = {
        "name": "tiny",
        "corpus": {"name": "own", "train_src": ["a"], "train_tgt": ["b"]},
        "model": {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "d_k": 8, "d_v": 8, "max_length": 128},
        "decoding": {"beam": 2, "extra_length": 6},
    }
    for change in changes:
        values = loading.merge(values, loading.override(change))
    settings = loading.from_plain(values, "the test's recipe")
    vocabulary = spm.Tokenizer(parent / "tokenizer.model").vocabulary_size
    torch.manual_seed(seed)
    model = Transformer(settings.model, vocabulary)
    with torch.no_grad():
        model.embedding.weight *= 3
        model.embedding.weight[2] *= 1.5  # so that some sentences end
    save_model(parent / "model", model.state_dict(), settings, parent / "tokenizer.model", {"steps": [seed]})
    return parent / "model"


def make_pairs_model(parent: Path, *pairs: str) -> Path:
    """Write a model trained on several language pairs, such as "en-de". Sources begin with tokens such as >>de<<."""
    sources = [dict(zip(("src", "tgt"), pair.split("-"), strict=True)) for pair in pairs]
    entries = [{"files": ["a", "b"], **each} for each in sources]
    base = {"name": "own", "train_src": [], "train_tgt": [], "src": "en", "tgt": "de"}
    recipe = {"name": "pairs", "corpus": {**base, "sources": entries}, "decoding": {"beam": 2, "extra_length": 6}}
    loaded = load_model(make_model(parent / "first"))
    recipe["model"] = loaded.recipe.model.model_dump()
    settings, state = loading.from_plain(recipe, "the test's recipe"), loaded.model.state_dict()
    tokens = [f">>{code}<<" for code in settings.corpus.target_tokens]
    lines = [f"{token} der Hund geht und die Katze ist rot" for token in tokens or [""]] * 50
    (parent / "tokenizer.model").write_bytes(spm.train(lines, 320, tags=tokens))
    state["embedding.weight"] = state["embedding.weight"][:320]
    save_model(parent / "model", state, settings, parent / "tokenizer.model", {"steps": [1]})
    return parent / "model"


def memory_file(data: bytes = b"") -> int:
    """Return the descriptor of a file without a name, positioned at its start."""
    with tempfile.TemporaryFile() as file:
        descriptor = os.dup(file.fileno())
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def content(descriptor: int) -> bytes:
    """Return the whole content of a file, and close it."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()
