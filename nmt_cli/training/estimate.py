"""What a run takes, before it is started: sizes by formula, speed by a few real updates. Nothing is written."""

import dataclasses
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli import artefact, recipe
from nmt_cli.console import duration, say, table
from nmt_cli.corpus.store import Corpus, Lengths, Side, open_corpus
from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.training.batches import Updates
from nmt_cli.training.metrics import Window, peak_memory_mb
from nmt_cli.training.processes import largest
from nmt_cli.training.start import activation_bytes, disk_megabytes, make_trainer, memory_tokens, open_run
from nmt_cli.training.train import TrainOptions, accelerator_for, explained
from nmt_cli.training.update import Trainer
from nmt_cli.transformer.model import Transformer, parameter_count

MEASURED_SECONDS = 10.0
MEASURED_TOKENS = 2048  # of an update on the CPU: its speed no longer depends on more, and a whole one may take minutes
TYPICAL_LENGTH = 27  # pieces of a WMT14 sentence; attention's share, which is all it decides, is about 1 %
UNKNOWN = "-"
PAPER_TOKENS, PAPER_VOCABULARY = 25_000, 37_000  # section 5.1
# Parameters (table 3), updates, seconds per update, the whole run (section 5.2), and its FLOPs as table 2 counts them:
# the time x 8 GPUs x 9.5 TFLOP/s, whatever share of that was used.
PAPER = (
    ("base", recipe.Model(), "65 M", 100_000, 0.4, "12 h", "3.3e18"),
    ("big", recipe.Model(d_model=1024, d_ff=4096, num_heads=16), "213 M", 300_000, 1.0, "3.5 d", "2.3e19"),
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

    Without a prepared corpus speed is measured on random sentences of the usual length.

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
    activations = activation_bytes(settings.model) * min(at_once, training.tokens_per_step)
    work = _typical(settings.model, vocabulary, training.tokens_per_step)
    facts = {
        "device": f"{accelerator.num_processes} x {accelerator.device.type}",
        "parameters": f"{parameters:,}",
        "updates": f"{training.steps:,}",
        "TFLOP per update": f"{work / 1e12:.3g}",
        "FLOPs in all": _short(work * training.steps),
        "FLOPs as the paper counts": UNKNOWN,
        "source tokens per update": f"about {training.tokens_per_step:,}",
        "target tokens per update": f"about {training.tokens_per_step:,}",
        "weights, gradients, Adam": f"{16 * parameters / 1e6:,.0f} MB",
        "activations, about": f"{activations / 1e6:,.0f} MB",
        "disk for checkpoints": f"{disk_megabytes(training, parameters):,} MB",
    }
    if accelerator.is_main_process:
        text = str(data) if corpus else f"random sentences of about {TYPICAL_LENGTH} pieces, as {data} is not prepared"
        say(f"measuring updates on {text}, for some seconds; nothing is kept")
    try:
        facts |= _measured(settings, data, corpus, accelerator, vocabulary)
    except (RuntimeError, MemoryError) as error:
        raise explained(error, settings) from error
    if accelerator.is_main_process:
        _show(settings, facts)
    accelerator.end_training()
    return 0


def _typical(model: recipe.Model, vocabulary: int, tokens: int) -> float:
    lengths = np.full(1, TYPICAL_LENGTH)
    return flops(model, vocabulary, lengths, lengths) * tokens / TYPICAL_LENGTH


def _short(number: float) -> str:
    """Return a large number as the paper writes them: 3.3e18."""
    return f"{number:.1e}".replace("e+", "e")


def _random_corpus(settings: recipe.Recipe, vocabulary: int) -> Corpus:
    """Return pairs of random pieces, some updates of them, of lengths as they are in news text."""
    draw = np.random.default_rng(settings.training.seed)
    pairs = max(64, 4 * settings.training.tokens_per_step // TYPICAL_LENGTH)
    longest = min(settings.model.max_length, settings.corpus.cleaning.max_tokens or settings.model.max_length)
    means = draw.gamma(4.0, TYPICAL_LENGTH / 4, pairs)  # one for both sides: a translation is about as long
    sides = []
    for _ in range(2):
        lengths = np.clip(means * draw.uniform(0.8, 1.2, pairs), 2, longest).astype(np.int64)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        ids = draw.integers(EOS + 1, vocabulary, offsets[-1]).astype(np.uint32)
        ids[offsets[1:] - 1] = EOS
        sides.append(Side(ids, offsets))
    return Corpus(Path(), {}, *sides)


def _measured(
    settings: recipe.Recipe, data: Path, corpus: Corpus | None, accelerator: Any, vocabulary: int
) -> dict[str, str]:
    """Return what real updates say; they happen in a run that is thrown away, and on the CPU they are small ones."""
    training, tokens = settings.training, settings.training.tokens_per_step
    small = settings
    if accelerator.device.type == "cpu" and tokens > MEASURED_TOKENS:
        parts = max(accelerator.num_processes, round(training.micro_batches * MEASURED_TOKENS / tokens))
        some = training.model_copy(update={"tokens_per_step": MEASURED_TOKENS, "micro_batches": parts})
        small = settings.model_copy(update={"training": some})
    with tempfile.TemporaryDirectory() as directory:
        if corpus:
            run = open_run(small, data, Path(directory), 0, accelerator)
            trainer = run.trainer
            if run.metrics is not None:
                run.metrics.close()
        else:
            pairs = _random_corpus(settings, vocabulary)
            updates = Updates(pairs, small.training.tokens_per_step, small.training.micro_batches, training.seed)
            trainer = make_trainer(small, updates, accelerator, Transformer(settings.model, vocabulary), {})
        _, first = measure(trainer, 0, 0.0)
        window, took = measure(trainer, 1, MEASURED_SECONDS)
    whole = Updates(trainer.updates.corpus, tokens, training.micro_batches, training.seed)
    per_update = flops(settings.model, vocabulary, whole.src_lengths, whole.tgt_lengths) / whole.per_epoch
    means = [side.sum() / whole.per_epoch for side in (whole.src_lengths, whole.tgt_lengths)]
    seconds = took / window.tgt_tokens * means[1]
    steps: float = training.steps
    facts = {"arithmetic": str(trainer.dtype).removeprefix("torch."), "TFLOP per update": f"{per_update / 1e12:.3g}"}
    if corpus:
        facts |= {
            "source tokens per update": f"{means[0]:,.0f}",
            "target tokens per update": f"{means[1]:,.0f}",
            "updates per epoch": f"{whole.per_epoch:,}",
            "pads in attention": f"{window.padded / window.places:.1%}",
        }
    if small is settings:
        facts |= {
            "micro-batches": f"{training.micro_batches}, computed in {len(trainer.parts(0)[0])}",
            "memory, measured peak": f"{peak_memory_mb():,} MB",
            "first update": f"{first:.2f} s",
        }
    left = min(steps * seconds, (training.max_hours or float("inf")) * 3600)
    return facts | {
        "FLOPs in all": _short(per_update * steps),
        "seconds per update": f"{seconds:.3g}",
        "target tokens/s": f"{window.tgt_tokens / took:,.0f}",
        "TFLOP/s": f"{per_update / seconds / 1e12:.3g}",
        "time to the end": duration(left),
    }


def _show(settings: recipe.Recipe, facts: dict[str, str]) -> None:
    columns = [facts]
    for _, model, parameters, updates, seconds, whole, counted in PAPER:
        work = _typical(model, PAPER_VOCABULARY, PAPER_TOKENS) / 1e12
        tokens = f"about {PAPER_TOKENS:,}"
        paper = {"device": "8 x P100", "parameters": parameters, "updates": f"{updates:,}"}
        paper |= {"TFLOP per update": f"{work:.3g}", "seconds per update": str(seconds), "time to the end": whole}
        paper |= {"source tokens per update": tokens, "target tokens per update": tokens}
        paper |= {"FLOPs in all": _short(work * updates * 1e12), "FLOPs as the paper counts": counted}
        paper |= {"target tokens/s": f"{PAPER_TOKENS / seconds:,.0f}", "TFLOP/s": f"{work / seconds:.3g}"}
        columns.append(paper)
    titles = ["", "here", *(f"paper, {name}" for name, *_ in PAPER)]
    table(
        f"{settings.name}: what it takes (validation and checkpoints come on top of the time)",
        titles,
        [[name, *(column.get(name, UNKNOWN) for column in columns)] for name in facts],
    )
