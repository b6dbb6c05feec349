"""The dry run of training. It estimates time, memory and disk space from a few real steps, and explains the speed.

The explanation is a roofline model. It measures the rate of matrix products and the memory bandwidth on this machine,
and derives a lower bound on the time of each part of a step.
"""

import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.benchmark import Timer, timer

from nmt_cli.corpus.store import Corpus, Lengths, Side, open_corpus
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.recipe import schema
from nmt_cli.storage import artefact
from nmt_cli.system.console import duration, say, table
from nmt_cli.training.accelerator import make_accelerator
from nmt_cli.training.checkpoints import disk_megabytes
from nmt_cli.training.collectives import max_over_processes
from nmt_cli.training.metrics_log import peak_memory_mb
from nmt_cli.training.processes import in_processes
from nmt_cli.training.torch_errors import to_user_error
from nmt_cli.training.trainer import Trainer, start_trainer
from nmt_cli.transformer.directory import parameter_count

FIRST_STEPS = 100  # warm-up steps if training uses CUDA graphs; they suffice to capture graphs for most batch sizes
MEASURED_SECONDS = 4.0
MEASURED_TOKENS = 2048  # per step and process on a CPU; larger steps do not increase tokens per second
TYPICAL_LENGTH = 27  # tokens of a WMT14 sentence
# Maps the name of each part of a step to its operations in matrix products, and to the bytes it reads and writes.
Parts = dict[str, tuple[float, float]]


def step_parts(model: schema.Model, vocabulary_size: int, src: Lengths, tgt: Lengths, itemsize: int = 2) -> Parts:
    """Return the minimum work of each part of a step for sentences of these lengths. `itemsize` is bytes per number.

    A weight takes 6 operations per token (2 forward, 4 backward). Causal attention counts as much as full attention.
    Bytes are counted as if each part were one kernel forward and one backward. Products with weights count as 0 bytes.
    Queries, keys, values and outputs are accessed 3 times, a residual and its norm 7 times (3 forward, 4 backward), an
    activation 5 times (2 forward, 3 backward), and a logit 3 times.
    """
    src, tgt = src.astype(np.float64), tgt.astype(np.float64)
    encoder_layers, decoder_layers = model.depths
    src_tokens, tgt_tokens, pair_width = src.sum(), tgt.sum(), model.num_heads * (model.d_k + model.d_v)
    feed_forward = encoder_layers * src_tokens + decoder_layers * tgt_tokens  # tokens times layers
    # `projected` is tokens times pairs of projections. A pair has one projection of size d_k and one of size d_v per
    # head. Self-attention has two pairs. In cross-attention, one pair (query, output) belongs to target tokens, and the
    # other (key, value) to source tokens.
    self_attention = model.decoder_cell == "attention"
    projected = 2 * encoder_layers * src_tokens + decoder_layers * ((1 + 2 * self_attention) * tgt_tokens + src_tokens)
    weight_uses = model.d_model * (projected * pair_width + 2 * feed_forward * model.d_ff)  # tokens times weights
    weight_uses += (not self_attention) * 2 * decoder_layers * model.d_model**2 * tgt_tokens
    scores = pair_width * (encoder_layers * src @ src + decoder_layers * (self_attention * tgt @ tgt + tgt @ src))
    residuals = model.d_model * (2 * encoder_layers * src_tokens + 3 * decoder_layers * tgt_tokens)
    return {
        "products of weights": (6 * (weight_uses + vocabulary_size * model.d_model * tgt_tokens), 0),
        "attention": (6 * scores, itemsize * 3 * projected * pair_width),
        "element-wise": (0, itemsize * (7 * residuals + 5 * feed_forward * model.d_ff)),
        "loss": (0, itemsize * 3 * vocabulary_size * tgt_tokens),
        "optimizer": (0, 4 * 8 * parameter_count(model, vocabulary_size)),  # 8 accesses: 7 by Adam, 1 by the norm
    }


def dry_run(settings: schema.Recipe, data: Path) -> int:
    """Print an estimate of training on this machine. Return 0. Without a prepared corpus, use random sentences."""
    with tempfile.TemporaryDirectory() as directory:
        return in_processes(settings, partial(print_estimate, settings, data, Path(directory)))


def print_estimate(settings: schema.Recipe, data: Path, directory: Path) -> int:
    training, prepared = settings.training, artefact.present(data)
    accelerator = make_accelerator(settings, directory)
    if accelerator.is_main_process:
        say(f"measuring on {accelerator.device.type} takes about 15 s (on CUDA, compiling takes another minute)")
    corpus = open_corpus(data) if prepared else random_corpus(settings, directory)
    changes: dict[str, object] = {} if prepared else {"init_from": None}
    if accelerator.device.type == "cpu":
        changes["tokens_per_step"] = min(training.tokens_per_step, MEASURED_TOKENS * accelerator.num_processes)
    measured = settings.model_copy(update={"training": training.model_copy(update=changes)})
    try:
        trainer = start_trainer(measured, corpus, accelerator, directory, 0)
        tokens_per_second, step_seconds = measure(trainer)
        memory = peak_memory_mb()  # before roofline_rows allocates more
        bounds = roofline_rows(trainer, step_seconds)
    except (RuntimeError, MemoryError) as error:
        raise to_user_error(error, settings) from error
    src, tgt = trainer.plan.src_lengths, trainer.plan.tgt_lengths
    vocabulary = trainer.transformer.vocabulary_size
    tokens = training.tokens_per_step * 2 * tgt.sum() / (src.sum() + tgt.sum())
    parameters = parameter_count(settings.model, vocabulary)
    seconds = tokens / tokens_per_second
    device = f"{accelerator.num_processes} x {accelerator.device.type}, {str(trainer.dtype).removeprefix('torch.')}"
    operations = sum(work for work, _ in step_parts(settings.model, vocabulary, src, tgt).values()) / tgt.sum()
    augmentation = ", corpus.augment" if settings.is_augmented else ""
    most = float("inf") if training.max_hours is None else training.max_hours * 3600
    rows = [  # "Attention Is All You Need", Table 3, sections 5.1 and 5.2; Table 2 for FLOPs
        ("device", device, "8 x P100", "8 x P100"),
        ("parameters", f"{parameters:,}", "65 M", "213 M"),
        ("steps", f"{training.steps:,}", "100,000", "300,000"),
        ("target tokens per step", f"{tokens:,.0f}", "about 25,000", "about 25,000"),
        ("total FLOPs", f"{operations * tokens * training.steps:.1e}", "3.3e18", "2.3e19"),
        ("seconds per step", f"{seconds:.3g}", "0.4", "1.0"),
        *((name, text, "-", "-") for name, text in bounds),
        ("target tokens/s", f"{tokens_per_second:,.0f}", "62,500", "25,000"),
        ("training time", duration(min(training.steps * seconds, most)), "12 h", "3.5 d"),
        ("time excludes", f"validation, checkpoints{augmentation}", "-", "-"),
        ("peak memory per process", f"{memory:,} MB", "-", "-"),
        ("disk for checkpoints", f"{disk_megabytes(training, parameters):,} MB", "-", "-"),
    ]
    if accelerator.is_main_process:
        text = str(data) if prepared else f"random sentences, since {data} is not prepared"
        table(
            f"{settings.name}: training estimate, measured on {text}", ["", "here", "paper, base", "paper, big"], rows
        )
    del trainer
    accelerator.free_memory()  # free DDP before `end_training` ends gloo, or else the process could wait forever
    accelerator.end_training()
    return 0


def measure(trainer: Trainer) -> tuple[float, float]:
    """Take real steps. Return target tokens per second and seconds per step, without the warm-up steps."""
    first = FIRST_STEPS if trainer.graphs else 1
    for step in range(1, first + 1):
        trainer.take_step(step, trainer.step_batch(step - 1))
    tokens, step = 0, first
    with trainer.batch_thread() as pool:
        upcoming, began = pool.submit(trainer.step_batch, step), timer()
        over = False
        while not max_over_processes(trainer.accelerator, int(over)):
            batch = upcoming.result()
            step += 1
            upcoming = pool.submit(trainer.step_batch, step)
            trainer.take_step(step, batch)
            tokens += batch.tgt_tokens
            over = time.perf_counter() - began >= MEASURED_SECONDS
        seconds = timer() - began  # this timer waits for the device
    return tokens / seconds, seconds / (step - first)


def roofline_rows(trainer: Trainer, seconds: float) -> list[tuple[str, str]]:
    """Return table rows with the minimum time of each part of a step, as a share of `seconds`.

    `seconds` is the measured time of a step. The last row gives the share of the rest of the step. The first row names
    the largest share. The second row gives the sum of the shares of all parts, without the rest.
    """
    model, plan = trainer.transformer, trainer.plan
    product_seconds, weight_count = 0.0, 0
    tokens = min(trainer.memory_tokens, trainer.settings.training.tokens_per_step)
    place = {"dtype": trainer.dtype, "device": trainer.accelerator.device}
    draw = partial(torch.randn, **place)
    for (outputs, inputs), count in Counter(p.shape for p in model.parameters() if p.dim() == 2).items():
        tensors = {"x": draw(tokens, inputs), "y": draw(tokens, outputs), "w": draw(outputs, inputs)}
        product_seconds += count * seconds_of("x @ w.t(); y @ w; y.t() @ x", tensors)  # forward and backward
        weight_count += count * outputs * inputs
    x, y = torch.ones(1 << 26, **place), torch.ones(1 << 26, **place)  # too large for the caches
    rate = 6 * tokens * weight_count / product_seconds
    bandwidth = 2 * x.nbytes / seconds_of("x.copy_(y)", {"x": x, "y": y})
    sentences = np.concatenate(plan.micro_batches_of(1))[:: trainer.accelerator.num_processes]
    lengths = plan.src_lengths[sentences], plan.tgt_lengths[sentences]
    parts = step_parts(model.settings, model.vocabulary_size, *lengths, trainer.dtype.itemsize)
    shares = {name: max(work / rate, size / bandwidth) / seconds for name, (work, size) in parts.items()}
    # Model FLOPs utilization (MFU) is relative to the measured rate, not to the peak rate of the hardware.
    mfu = sum(work for work, _ in parts.values()) / rate / seconds
    least = sum(shares.values())
    shares["launches, waits, slow kernels"] = max(0.0, 1 - least)  # the rest of the step
    floor = f"{least:.0%}, at {rate / 1e9:,.0f} GFLOP/s and {bandwidth / 1e9:,.0f} GB/s"
    rows = [("bound by", f"{max(shares, key=shares.__getitem__)}; MFU {mfu:.0%}"), ("explained by roofline", floor)]
    return [(f"  {name}", text) for name, text in [*rows, *((name, f"{x:.0%}") for name, x in shares.items())]]


def seconds_of(statement: str, tensors: dict[str, Tensor]) -> float:
    measurement = Timer(statement, globals=tensors, num_threads=torch.get_num_threads())
    return min(measurement.blocked_autorange(min_run_time=MEASURED_SECONDS / 20).times)


def random_corpus(settings: schema.Recipe, directory: Path) -> Corpus:
    tokenizer = settings.corpus.tokenizer
    size = tokenizer.vocabulary_size
    vocabulary = Tokenizer(Path(tokenizer.file)).target.vocabulary_size if tokenizer.file else size
    length = min(TYPICAL_LENGTH, settings.model.max_length)
    pairs = max(64, 4 * settings.training.tokens_per_step // length)
    smaller = min(vocabulary, settings.model.source_vocabulary or vocabulary)  # ids below this are valid on both sides
    ids = np.random.default_rng(1).integers(EOS + 1, smaller, pairs * length).astype(np.uint32)
    ids[length - 1 :: length] = EOS
    side = Side(ids, np.arange(0, len(ids) + 1, length))
    return Corpus(directory, {"vocabulary_size": vocabulary, "files": {}}, side, side)
