"""What a run takes, before it is started: sizes by formula, speed by a few real updates. Nothing is written."""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli import artefact, recipe
from nmt_cli.console import duration, say, table
from nmt_cli.corpus.store import Lengths, open_corpus
from nmt_cli.training.metrics import Window, peak_memory_mb
from nmt_cli.training.processes import largest
from nmt_cli.training.start import activation_bytes, disk_megabytes, memory_tokens, open_run
from nmt_cli.training.train import TrainOptions, accelerator_for, explained
from nmt_cli.training.update import Trainer
from nmt_cli.transformer.model import parameter_count

MEASURED_SECONDS = 10.0
TYPICAL_LENGTH = 27  # pieces of a WMT14 sentence; attention's share, which is all it decides, is about 1 %
UNKNOWN = "-"
PAPER_TOKENS, PAPER_VOCABULARY = 25_000, 37_000  # section 5.1
# Parameters (table 3), updates, seconds per update, and the whole run (section 5.2).
PAPER = (
    ("base", recipe.Model(), "65 M", 100_000, 0.4, "12 h"),
    ("big", recipe.Model(d_model=1024, d_ff=4096, num_heads=16), "213 M", 300_000, 1.0, "3.5 d"),
)


def flops(model: recipe.Model, vocabulary_size: int, src_lengths: Lengths, tgt_lengths: Lengths) -> float:
    """Return the floating-point operations of a forward and backward pass over sentence pairs, pads not counted.

    Matrix products only: 6 for each weight and token it meets (2 forward, 4 backward), where keys and values of
    cross-attention meet source tokens; and attention's two products, whose causal half is counted like the rest.
    """
    d, keys, values = model.d_model, model.num_heads * model.d_k, model.num_heads * model.d_v
    feed_forward, half_attention = 2 * d * model.d_ff, d * (keys + values)
    per_src = model.num_layers * (3 * half_attention + feed_forward)
    per_tgt = model.num_layers * (3 * half_attention + feed_forward) + vocabulary_size * d
    src, tgt = src_lengths.astype(np.float64), tgt_lengths.astype(np.float64)
    scores = model.num_layers * (keys + values) * (src @ src + tgt @ tgt + tgt @ src)
    return float(6 * (per_src * src.sum() + per_tgt * tgt.sum() + scores))


def measure(trainer: Trainer, first: int, seconds: float) -> tuple[Window, float]:
    """Do real updates, as `train` does them, from number `first` (0 is a run's first) until `seconds` are over.

    Returns:
        What was done, at least one update, and the seconds it took.
    """
    with ThreadPoolExecutor(1) as pool:
        upcoming = pool.submit(trainer.parts, first)
        upcoming.result()
        window, took = Window(), 0.0
        while not window.updates or not largest(trainer.accelerator, int(took >= seconds)):
            parts, *tokens = upcoming.result()
            step = first + window.updates + 1
            upcoming = pool.submit(trainer.parts, step)  # while this one is computed
            nll, norm = trainer.update(step, parts, tokens[1])
            window.add(nll, norm, (tokens[0], tokens[1]), parts)
            took = time.monotonic() - window.start
        upcoming.cancel()
    return window, took


def dry_run(settings: recipe.Recipe, data: Path) -> int:
    """Show what training a recipe on this machine takes, beside the paper's figures, and return the exit code.

    Without a prepared corpus only what the recipe tells is shown, and how to prepare it.

    Raises:
        NmtError: the recipe does not fit the corpus or this machine.
    """
    ready = artefact.present(data)
    accelerator = accelerator_for(settings, TrainOptions(data, Path()))
    corpus = open_corpus(data) if ready else None
    vocabulary = int(corpus.manifest["vocabulary_size"]) if corpus else settings.corpus.tokenizer.vocabulary_size
    parameters = parameter_count(settings.model, vocabulary)
    training = settings.training
    at_once = training.memory_tokens or memory_tokens(settings.model, accelerator.device)
    activations = activation_bytes(settings.model) * min(at_once, training.tokens_per_update)
    facts = {
        "device": f"{accelerator.num_processes} x {accelerator.device.type}",
        "parameters": f"{parameters:,}",
        "updates": f"{training.steps:,}",
        "TFLOP per update": f"{_typical(settings.model, vocabulary, training.tokens_per_update) / 1e12:.3g}",
        "source tokens per update": f"about {training.tokens_per_update:,}",
        "target tokens per update": f"about {training.tokens_per_update:,}",
        "weights, gradients, Adam": f"{16 * parameters / 1e6:,.0f} MB",
        "activations, about": f"{activations / 1e6:,.0f} MB",
        "disk for checkpoints": f"{disk_megabytes(training, parameters):,} MB",
    }
    if corpus:
        if accelerator.is_main_process:
            say(f"measuring updates on {data} for some seconds; nothing is kept")
        try:
            facts |= _measured(settings, data, accelerator, vocabulary)
        except (RuntimeError, MemoryError) as error:
            raise explained(error, settings) from error
    if accelerator.is_main_process:
        _show(settings, facts)
        if not corpus:
            say(f"no prepared corpus in {data}, so no speed. Run: nmt prepare {settings.corpus.name}")
    accelerator.end_training()
    return 0


def _typical(model: recipe.Model, vocabulary: int, tokens: int) -> float:
    lengths = np.full(1, TYPICAL_LENGTH)
    return flops(model, vocabulary, lengths, lengths) * tokens / TYPICAL_LENGTH


def _measured(settings: recipe.Recipe, data: Path, accelerator: Any, vocabulary: int) -> dict[str, str]:
    """Return what real updates on the corpus say; they happen in a run that is thrown away."""
    training = settings.training
    with tempfile.TemporaryDirectory() as directory:
        run = open_run(settings, data, Path(directory), 0, accelerator)
        trainer, updates = run.trainer, run.trainer.updates
        passes = len(trainer.parts(0)[0])
        _, first = measure(trainer, 0, 0.0)
        window, took = measure(trainer, 1, MEASURED_SECONDS)
        if run.metrics is not None:
            run.metrics.close()
    per_update = flops(settings.model, vocabulary, updates.src_lengths, updates.tgt_lengths) / updates.per_epoch
    seconds = took / window.updates
    steps = min(training.steps, (training.max_epochs or float("inf")) * updates.per_epoch)
    left = min(steps * seconds, (training.max_hours or float("inf")) * 3600)
    means = [side.sum() / updates.per_epoch for side in (updates.src_lengths, updates.tgt_lengths)]
    return {
        "arithmetic": str(trainer.dtype).removeprefix("torch."),
        "TFLOP per update": f"{per_update / 1e12:.3g}",
        "source tokens per update": f"{means[0]:,.0f}",
        "target tokens per update": f"{means[1]:,.0f}",
        "updates per epoch": f"{updates.per_epoch:,}",
        "micro-batches": f"{training.micro_batches}, computed in {passes}",
        "pads in attention": f"{window.padded / window.places:.1%}",
        "memory, measured peak": f"{peak_memory_mb():,} MB",
        "first update": f"{first:.2f} s",
        "seconds per update": f"{seconds:.3g}",
        "target tokens/s": f"{window.tgt_tokens / took:,.0f}",
        "TFLOP/s": f"{per_update / seconds / 1e12:.3g}",
        "time to the end": duration(left),
    }


def _show(settings: recipe.Recipe, facts: dict[str, str]) -> None:
    columns = [facts]
    for _, model, parameters, updates, seconds, whole in PAPER:
        work = _typical(model, PAPER_VOCABULARY, PAPER_TOKENS) / 1e12
        tokens = f"about {PAPER_TOKENS:,}"
        paper = {"device": "8 x P100", "parameters": parameters, "updates": f"{updates:,}"}
        paper |= {"TFLOP per update": f"{work:.3g}", "seconds per update": str(seconds), "time to the end": whole}
        paper |= {"source tokens per update": tokens, "target tokens per update": tokens}
        paper |= {"target tokens/s": f"{PAPER_TOKENS / seconds:,.0f}", "TFLOP/s": f"{work / seconds:.3g}"}
        columns.append(paper)
    names = list(dict.fromkeys([*facts, "seconds per update", "target tokens/s", "TFLOP/s", "time to the end"]))
    titles = ["", "here", *(f"paper, {name}" for name, *_ in PAPER)]
    table(
        f"{settings.name}: what it takes (validation and checkpoints come on top of the time)",
        titles,
        [[name, *(column.get(name, UNKNOWN) for column in columns)] for name in names],
    )
