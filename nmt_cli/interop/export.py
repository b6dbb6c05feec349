"""The export command: a trained model where transformers and CTranslate2 can use it, with proof that it is the same."""

import statistics
import tempfile
from pathlib import Path

from nmt_cli import __version__, artefact, recipe
from nmt_cli.console import say
from nmt_cli.corpus.cleaning import normalise
from nmt_cli.corpus.store import open_corpus, read_lines
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import DataError, MissingError, OutputError, UsageError
from nmt_cli.interop import marian
from nmt_cli.interop.proof import CTranslate2, Transformers, compare
from nmt_cli.scoring.metrics import corpus_bleu, corpus_chrf
from nmt_cli.training.run import TRANSLATIONS, read_run
from nmt_cli.transformer.weights import LoadedModel, load_model

LIBRARIES = {"hf": "transformers", "ctranslate2": "ctranslate2"}
QUANTIZATIONS = (None, "float32", "bfloat16", "int8")
NUM_LINES = 100
LONGEST = 512  # tokens of output: theirs has one limit for all sentences


def export(model: Path, target: str, out: Path, quantization: str | None, lines: Path | None) -> int:
    """Write a model for another toolkit, prove it there, and return the exit code.

    Args:
        model: a model directory or a run.
        target: "hf" or "ctranslate2".
        out: the new directory.
        quantization: of CTranslate2's weights; None for float32.
        lines: source sentences to compare on, all of them; None for the first of the corpus's dev.

    Raises:
        UsageError: a wrong option, or a package is not installed.
        DataError: the other toolkit cannot compute the model, or computes something else.
    """
    if target not in LIBRARIES:
        raise UsageError(f"--to must be one of {', '.join(LIBRARIES)}, not {target}")
    if quantization not in QUANTIZATIONS:
        raise UsageError(f"--quantization must be float32, bfloat16 or int8, not {quantization}")
    if target == "hf" and quantization not in (None, "float32"):
        raise UsageError("--quantization requires --to ctranslate2; transformers quantises when it loads")
    for package in ("transformers", LIBRARIES[target]):
        marian.library(package)
    if out.exists():
        raise OutputError(f"{out} exists already. Choose another --out")
    loaded = load_model(model)
    with artefact.staged(out, "export", {"target": target, "quantization": quantization or "float32"}) as stage:
        text = _export(loaded, target, stage, out, quantization or "float32", lines)
    say(f"{text}\n{out} is ready; its README.md shows how to use it")
    return 0


def _export(
    loaded: LoadedModel, target: str, stage: Path, out: Path, quantization: str, lines: Path | None
) -> str:
    pass
