"""What a run takes, before it is started: sizes by formula, speed by a few real steps. Nothing is kept."""

import tempfile
import time
from pathlib import Path

import numpy as np

from nmt_cli import artefact, recipe
from nmt_cli.console import duration, table
from nmt_cli.corpus.store import Corpus, Lengths, Side, open_corpus
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.training.checkpoints import disk_megabytes
from nmt_cli.training.distributed import largest, make_accelerator, to_user_error
from nmt_cli.training.metrics import peak_memory_mb
from nmt_cli.training.train import Run
from nmt_cli.transformer.model import parameter_count

MEASURED_SECONDS, MEASURED_TOKENS = 10.0, 2048  # of a step on the CPU: more tokens make it no faster
TYPICAL_LENGTH = 27  # tokens of a WMT14 sentence


def flops(model: recipe.Model, vocabulary_size: int, src_lengths: Lengths, tgt_lengths: Lengths) -> float:
    """Return the floating-point operations of the matrix products of a forward and backward pass, pads not counted.

    6 for each weight and token it meets (2 forward, 4 backward), and attention's two products, not halved where causal.
    """
    heads = model.num_heads * (model.d_k + model.d_v)
    per_token = model.num_layers * model.d_model * (3 * heads + 2 * model.d_ff)
    src, tgt = src_lengths.astype(np.float64), tgt_lengths.astype(np.float64)
    weights = per_token * src.sum() + (per_token + vocabulary_size * model.d_model) * tgt.sum()
    return float(6 * (weights + model.num_layers * heads * (src @ src + tgt @ tgt + tgt @ src)))


def dry_run(settings: recipe.Recipe, data: Path) -> int:
    """Show what training takes on this machine, with random sentences where no corpus is prepared; return 0."""
    training, prepared = settings.training, artefact.present(data)
    with tempfile.TemporaryDirectory() as directory:
        accelerator = make_accelerator(settings, Path(directory))
        corpus = open_corpus(data) if prepared else _random_corpus(settings, Path(directory))
        changes: dict[str, object] = {} if prepared else {"init_from": None}
        if accelerator.device.type == "cpu":
            changes["tokens_per_step"] = min(training.tokens_per_step, MEASURED_TOKENS)
        measured = settings.model_copy(update={"training": training.model_copy(update=changes)})
        try:
            run = Run(measured, corpus, accelerator, Path(directory), 0)
            tokens_per_second = _measure(run)
        except (RuntimeError, MemoryError) as error:
            raise to_user_error(error, settings) from error
    src, tgt, vocabulary = run.plan.src_lengths, run.plan.tgt_lengths, run.transformer.vocabulary_size
    tokens = training.tokens_per_step * 2 * tgt.sum() / (src.sum() + tgt.sum())
    parameters, seconds = parameter_count(settings.model, vocabulary), tokens / tokens_per_second
    device = f"{accelerator.num_processes} x {accelerator.device.type}, {str(run.dtype).removeprefix('torch.')}"
    operations = flops(settings.model, vocabulary, src, tgt) / tgt.sum() * tokens * training.steps
    time_to_the_end = duration(min(training.steps * seconds, (training.max_hours or float("inf")) * 3600))
    rows = [  # the paper's are of Table 3, sections 5.1 and 5.2, and Table 2 for FLOPs
        ("device", device, "8 x P100", "8 x P100"),
        ("parameters", f"{parameters:,}", "65 M", "213 M"),
        ("steps", f"{training.steps:,}", "100,000", "300,000"),
        ("target tokens per step", f"{tokens:,.0f}", "about 25,000", "about 25,000"),
        ("FLOPs in all", f"{operations:.1e}", "3.3e18", "2.3e19"),
        ("seconds per step", f"{seconds:.3g}", "0.4", "1.0"),
        ("target tokens/s", f"{tokens_per_second:,.0f}", "62,500", "25,000"),
        ("time to the end", time_to_the_end, "12 h", "3.5 d"),
        ("memory, measured peak", f"{peak_memory_mb():,} MB", "-", "-"),
        ("disk for checkpoints", f"{disk_megabytes(training, parameters):,} MB", "-", "-"),
    ]
    if accelerator.is_main_process:
        text = str(data) if prepared else f"random sentences, as {data} is not prepared"
        title = f"{settings.name}: what it takes, measured on {text}; without the time for validation and checkpoints"
        table(title, ["", "here", "paper, base", "paper, big"], rows)
    del run
    accelerator.free_memory()  # as in train
    accelerator.end_training()
    return 0


def _measure(run: Run) -> float:
    """Return target tokens per second, over real steps after a first one."""
    run.take_step(1, run.step_batch(0))
    began, tokens, step = time.monotonic(), 0, 1
    while not largest(run.accelerator, int(tokens > 0 and time.monotonic() - began >= MEASURED_SECONDS)):
        batch = run.step_batch(step)
        run.take_step(step + 1, batch)
        tokens, step = tokens + batch.tgt_tokens, step + 1
    return tokens / (time.monotonic() - began)


def _random_corpus(settings: recipe.Recipe, directory: Path) -> Corpus:
    vocabulary = settings.corpus.tokenizer.vocabulary_size
    length = min(TYPICAL_LENGTH, settings.model.max_length)
    pairs = max(64, 4 * settings.training.tokens_per_step // length)
    ids = np.random.default_rng(1).integers(EOS + 1, vocabulary, pairs * length).astype(np.uint32)
    ids[length - 1 :: length] = EOS
    side = Side(ids, np.arange(0, len(ids) + 1, length))
    return Corpus(directory, {"vocabulary_size": vocabulary, "files": {}}, side, side)
