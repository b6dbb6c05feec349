"""The translate command: lines in, the same number of lines out, in order."""

import math
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nmt_cli import artefact, recipe
from nmt_cli.console import Progress, say, set_quiet, warn
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.errors import BROKEN_PIPE, DataError, MissingError, OutputError, StorageError, UsageError
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.hardware import check_int8, choose_dtype, has_int8
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import LoadedModel, load_model
from nmt_cli.translation.candidates import Sampling
from nmt_cli.translation.lines import translate_lines
from nmt_cli.translation.output import Format, Output
from nmt_cli.translation.pipeline import SAMPLE_BITS, Cutting, Pipeline
from nmt_cli.translation.scores import score_pairs
from nmt_cli.translation.search import Hypothesis, SearchSettings
from nmt_cli.translation.stream import MAX_LINE_BYTES, LineReader, count_lines
from nmt_cli.translation.workers import forked, gathered, joined, parallel_search, serve, steady_search, telling

MAX_WORKERS = 16
MAX_SAMPLES = 1 << SAMPLE_BITS  # further ones would repeat the random numbers of the first


@dataclass(frozen=True)
class TranslateOptions:
    """What to translate and how; None stands for stdin, stdout, or what the model's recipe says.

    Attributes:
        models: several are an ensemble.
        precision: "auto", "fp32", "bf16" or "int8".
        format: "text" or "jsonl".
        n_best: hypotheses per line.
        split: whether lines longer than the model was trained on are split, and failed translations tried in halves.
        strict: whether input that is not UTF-8 is an error.
        prefix: a file with one forced prefix per line.
        score_pairs: a file with one translation per line, to be scored instead of translating.
        alignments: whether to add word alignments.
        attention: a safetensors file to write all attention weights to.
        sampling: draw instead of searching.
        workers: processes on the CPU; None for one per core.
    """

    input: Path | None = None
    output: Path | None = None
    models: tuple[Path, ...] = ()
    beam: int | None = None
    alpha: float | None = None
    extra_length: int | None = None
    precision: str = "auto"
    format: str = "text"
    n_best: int = 1
    split: bool = True
    strict: bool = False
    prefix: Path | None = None
    score_pairs: Path | None = None
    alignments: bool = False
    attention: Path | None = None
    sampling: Sampling | None = None
    workers: int | None = None


@dataclass(frozen=True)
class Engine:
    """Models ready to search with."""

    models: list[Transformer]
    dtype: torch.dtype
    tokenizer: Tokenizer
    loaded: LoadedModel
    settings: SearchSettings


def choose_models(named: Sequence[Path]) -> tuple[Path, ...]:
    """Return the models to use: those named, else $NMT_MODEL, else the newest under runs/.

    The newest is the one whose manifest was written last: a model directory is committed once and never changed.

    Raises:
        MissingError: there is none.
    """
    if named:
        return tuple(named)
    if os.environ.get("NMT_MODEL"):
        chosen = Path(os.environ["NMT_MODEL"])
    else:
        manifests = sorted(Path("runs").glob("*/model/manifest.json"), key=lambda p: (p.stat().st_mtime_ns, str(p)))
        if not manifests:
            raise MissingError("no model: none under runs/ and no --model. Train one: nmt reproduce recipes/toy.yaml")
        chosen = manifests[-1].parent
    say(f"model: {chosen}")
    return (chosen,)


def _world() -> int:
    """Return how many processes the job has that this one was launched in."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _check_launch(options: TranslateOptions) -> None:
    """Refuse what a launched job of several processes cannot do."""
    world = _world()
    if int(os.environ.get("LOCAL_WORLD_SIZE", world)) != world:
        raise UsageError("translate shares lines among the processes of one machine, and this job has more machines")
    if options.workers:
        raise UsageError(f"the job has {world} processes already: leave out --workers")
    if options.input is None and os.isatty(0):
        raise UsageError("a launched process cannot read the terminal. Give a file, --input FILE, or a pipe")


def _check(options: TranslateOptions) -> None:
    """Refuse options that contradict each other, before a model is loaded."""
    for name, value, choices in (
        ("--precision", options.precision, ("auto", "fp32", "bf16", "int8")),
        ("--format", options.format, ("text", "jsonl")),
    ):
        if value not in choices:
            raise UsageError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    if options.beam is not None and options.n_best > options.beam and not options.sampling:
        raise UsageError(f"--n-best {options.n_best} needs --beam {options.n_best} or more, not {options.beam}")
    if options.sampling and options.n_best > MAX_SAMPLES:
        raise UsageError(
            f"--sample draws at most {MAX_SAMPLES:,} translations of a line, not --n-best {options.n_best:,}"
        )
    if options.score_pairs and (options.sampling or options.prefix or options.n_best > 1):
        raise UsageError("--score-pairs searches nothing: leave out --sample, --prefix and --n-best")
    if options.input is None and sys.stdin is None:
        raise MissingError("stdin is closed. Give a file: --input FILE")
    if options.output is None and sys.stdout is None:
        raise StorageError("stdout is closed. Give a file: --output FILE")
    if _world() > 1 and not options.score_pairs:
        _check_launch(options)
    for path in (options.input, options.prefix, options.score_pairs):
        if path and not path.exists():
            raise MissingError(f"no file {path}. Check the path")
    for path in (options.output, options.attention):
        if path and not path.parent.is_dir():
            raise OutputError(f"no directory {path.parent} to write {path.name} to. Make it first")


def _device() -> torch.device:
    """Return the GPU of this process, else the CPU."""
    count = torch.cuda.device_count()
    if not count or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes"):
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % count)


def prepare_engine(options: TranslateOptions, device: torch.device | None = None) -> Engine:
    """Load the models and settle what is left open.

    Args:
        options: what to translate and how.
        device: that the search is for; None for this process's.

    Raises:
        DataError: the models of an ensemble have different tokenizers.
    """
    loaded = [load_model(path) for path in choose_models(options.models)]
    first = loaded[0]
    for other in loaded[1:]:
        if other.tokenizer_file.read_bytes() != first.tokenizer_file.read_bytes():
            raise DataError(f"{other.directory} and {first.directory} have different tokenizers: no ensemble of these")
    device = device or _device()
    if options.precision == "int8":
        check_int8(device)
    # "auto" is what is fastest and loses at most 0.1 BLEU: measured in tests/benchmarks/README.md.
    int8 = options.precision == "int8" or (options.precision == "auto" and has_int8(device))
    dtype = choose_dtype("auto" if int8 else options.precision, device)
    decoding = first.recipe.decoding
    beam = 1 if options.sampling else decoding.beam if options.beam is None else options.beam
    settings = SearchSettings(
        max(beam, 1 if options.sampling else options.n_best),
        decoding.alpha if options.alpha is None else options.alpha,
        decoding.extra_length if options.extra_length is None else options.extra_length,
        best=1 if options.sampling else options.n_best,
        sampling=options.sampling,
    )
    models = [for_inference(one.model, dtype, int8=int8) for one in loaded]
    return Engine(models, dtype, Tokenizer(first.tokenizer_file), first, settings)


def _devices(options: TranslateOptions) -> list[str]:
    """Return one entry for every process that searches: one GPU, or the CPU's cores."""
    device = _device()
    if device.type == "cuda":
        return [str(device)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ["cpu"] * (options.workers or min(cores, MAX_WORKERS))


def _serve(options: TranslateOptions) -> None:
    """Search on this process's device what the first process of the job sends."""
    set_quiet(True)  # the first process has said it
    with joined() as connection, telling(connection):
        engine = prepare_engine(options)
        serve(connection, engine.models, engine.dtype, engine.settings, str(_device()))


def translate(options: TranslateOptions) -> int:
    """Translate lines from a file or stdin to a file or stdout, and return the exit code.

    Under `accelerate launch` all processes search, each on its own device; the first one reads and writes.
    """
    world = 1 if options.score_pairs else _world()
    if int(os.environ.get("RANK", "0")):
        if world > 1:
            _serve(options)
        return 0
    _check(options)
    if world == 1:
        return _translate(prepare_engine(options), options, [])
    with gathered(world, lambda: _serve(options)) as connections:
        if _device().type == "cuda":  # this process computes attention weights at most
            return _translate(
                prepare_engine(replace(options, precision="fp32"), torch.device("cpu")), options, connections
            )
        return _translate(prepare_engine(options), options, connections)


def _translate(engine: Engine, options: TranslateOptions, processes: list[socket.socket]) -> int:
    source = os.open(options.input, os.O_RDONLY) if options.input else 0
    target, part = 1, None
    if options.output and options.output.exists() and not options.output.is_file():
        target = os.open(options.output, os.O_WRONLY)  # a pipe or a device: nothing to replace
    elif options.output:
        part = options.output.with_name(options.output.name + ".part")
        target = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    progress = Progress("translating", count_lines(source), "lines")
    try:
        with progress:
            if options.score_pairs:
                with options.score_pairs.open("rb") as targets:
                    files = (source, targets.fileno(), target)
                    _score(engine, files, options.format)
            else:
                _run(engine, options, source, target, progress, processes)
    except BrokenPipeError:
        return BROKEN_PIPE  # whoever read has gone, which is their right
    except BaseException:
        if part and progress.done:
            say(f"{part} holds the first {progress.done:,} lines")
        elif part:
            part.unlink(missing_ok=True)
        raise
    if part and options.output:
        os.fsync(target)
        part.replace(options.output)
        artefact.sync(options.output.parent)
    return 0


def _run(
    engine: Engine,
    options: TranslateOptions,
    source: int,
    target: int,
    progress: Progress,
    processes: Sequence[socket.socket] = (),
) -> None:
    corpus, start = engine.loaded.recipe.corpus, time.monotonic()
    split = options.split and corpus.tgt != recipe.TREES  # two trees are not the tree of both halves
    longest = min(model.settings.max_length for model in engine.models)
    limit = min(corpus.cleaning.max_tokens or longest, longest) if split else longest
    samples = options.n_best if options.sampling else 0
    form = Format(options.format, options.n_best, engine.settings.alpha, options.alignments, options.attention)
    output = Output(target, form, engine.tokenizer, engine.models[0], engine.dtype, progress)
    prefixes = LineReader(os.open(options.prefix, os.O_RDONLY)) if options.prefix else None
    reader = LineReader(source)
    cutting = Cutting(longest, limit, split, options.strict, samples)
    pipeline = Pipeline(reader, prefixes, engine.tokenizer, cutting, output)
    for number, hypotheses in _search(engine, pipeline, _devices(options), processes):
        pipeline.settle(number, hypotheses)
    output.close()
    counts, seconds = pipeline.counts, time.monotonic() - start
    if counts.invalid:
        first = f"the first is line {counts.first_invalid:,}"
        warn(f"{counts.invalid:,} lines are not UTF-8 ({first}): what is not was replaced")
    if reader.cut:
        warn(f"{reader.cut:,} lines were over {MAX_LINE_BYTES:,} bytes and were cut while they were read")
    if counts.cut:
        warn(f"{counts.cut:,} lines were too long for the model and were cut")
    if counts.prefixes_cut:
        warn(f"{counts.prefixes_cut:,} prefixes were longer than the model's {longest:,} pieces and were cut")
    if counts.split:
        say(f"{counts.split:,} lines over {limit} pieces were split at sentence ends and put together again")
    if counts.retried:
        say(f"{counts.retried:,} translations were empty or repeated themselves and were tried again in halves")
    say(f"{counts.lines:,} lines, {counts.pieces:,} pieces in {seconds:.1f} s, {counts.pieces / seconds:,.0f} pieces/s")


def _score(engine: Engine, files: tuple[int, int, int], kind: str) -> None:
    device = _device()
    models = [model.to(device) for model in engine.models]
    lines, total, pieces = score_pairs(models, engine.dtype, engine.tokenizer, files, engine.settings, kind)
    if pieces:
        say(f"{lines:,} pairs, {-total / pieces:.4f} nats per piece, perplexity {math.exp(-total / pieces):.3f}")


def _search(
    engine: Engine, pipeline: Pipeline, devices: list[str], processes: Sequence[socket.socket]
) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Search in these processes, else in processes of our own, else in this one."""
    if processes:
        yield from parallel_search(processes, pipeline.sources(), engine.settings, cuda=_device().type == "cuda")
    elif len(devices) > 1:
        with forked(engine.models, engine.dtype, engine.settings, devices) as processes:
            yield from parallel_search(processes, pipeline.sources(), engine.settings, cuda=False)
    else:
        models = [model.to(devices[0]) for model in engine.models]
        yield from steady_search(models, engine.dtype, pipeline.sources(), engine.settings)


def translate_all(model: Path, lines: list[str]) -> list[str]:
    """Return the translation of every line by a model with its recipe's search."""
    engine = prepare_engine(TranslateOptions(models=(model,)))
    device = _device()
    models = [model.to(device) for model in engine.models]
    return translate_lines(models, engine.dtype, engine.tokenizer, lines, engine.settings)
