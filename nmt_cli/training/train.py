"""The train command: the loop, readable from top to bottom."""

import contextlib
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate import tracking

from nmt_cli import artefact, recipe
from nmt_cli.console import Progress, duration, say, warn
from nmt_cli.errors import DivergedError, NmtError, StorageError, UsageError, printable
from nmt_cli.training import checkpoints
from nmt_cli.training.metrics import Metrics, Window
from nmt_cli.training.optim import noam_rate
from nmt_cli.training.processes import Stop, largest, on_main
from nmt_cli.training.start import Run, check_run, open_run
from nmt_cli.training.validation import off_the_curve, validate
from nmt_cli.transformer.weights import save_model

MAX_SKIPPED_IN_A_ROW = 10
MAX_FAILED_SAVES = 3
PATIENCE_SECONDS = 600  # for another process: it may be validating or saving
GO_ON, DONE, OUT_OF_HOURS, NO_BETTER, STOPPED = range(5)


@dataclass(frozen=True)
class TrainOptions:
    """Where a run reads and writes.

    Args:
        data: the prepared corpus.
        run: the run's directory.
        tracker: one of Accelerate's, beside metrics.jsonl.
    """

    data: Path
    run: Path
    tracker: str | None = None


def train(settings: recipe.Recipe, options: TrainOptions) -> int:
    """Train a recipe's model to the end, resuming where an earlier process stopped, and return the exit code.

    Raises:
        NmtError: see the exit codes in errors.py.
    """
    accelerator = accelerator_for(settings, options)
    with Stop() as stop, contextlib.ExitStack() as held:

        def begin() -> list[float]:
            held.enter_context(artefact.locked(options.run, "run"))
            return [check_run(settings, options.data, options.run)]

        try:
            (step,) = on_main(accelerator, begin, 1)
            run = open_run(settings, options.data, options.run, int(step), accelerator)
            if options.tracker:
                accelerator.init_trackers(settings.name, _flat(settings))
            _announce(run)
            reason = _loop(run, stop)
            if reason != STOPPED:
                on_main(accelerator, lambda: _finish(run))
            accelerator.end_training()
            return stop.exit_code if reason == STOPPED else 0
        except (RuntimeError, MemoryError) as error:
            raise explained(error, settings) from error


def accelerator_for(settings: recipe.Recipe, options: TrainOptions) -> Any:
    """Return Accelerate's idea of the processes, after refusing what would train another model than the recipe's."""
    if os.environ.get("MASTER_ADDR") and "WORLD_SIZE" not in os.environ:
        warn(
            "this is one process alone, though several were asked for: on CPUs accelerate launch starts only one. Use "
            "ACCELERATE_USE_CPU=true torchrun --standalone --nproc_per_node 2 -m nmt_cli train RECIPE"
        )
    usable = [str(tracker.value) for tracker in tracking.get_available_trackers()]
    if options.tracker and options.tracker not in usable:
        have = f"installed: {', '.join(usable) or 'none'}"
        raise UsageError(
            f"no tracker {options.tracker!r} here ({have}). pip install {options.tracker}, or leave it out"
        )
    patience = timedelta(seconds=float(os.environ.get("NMT_PATIENCE_SECONDS", PATIENCE_SECONDS)))
    accelerator = accelerate.Accelerator(
        mixed_precision="no",
        cpu=not torch.cuda.is_available(),  # not Apple's GPU: it has no float64 for the sums
        log_with=options.tracker,
        project_dir=options.run,
        kwargs_handlers=[
            accelerate.DistributedDataParallelKwargs(broadcast_buffers=False),
            accelerate.InitProcessGroupKwargs(timeout=patience),
        ],
    )
    accelerator.gradient_accumulation_steps = 1  # the launcher may have set it, and backward() divides by it
    kind = str(accelerator.distributed_type.value)
    if kind != "NO" and not kind.startswith("MULTI"):
        raise UsageError(f"{kind} is not supported: models of this size fit on every device. Launch with plain DDP")
    if accelerator.num_processes > settings.training.micro_batches:
        raise UsageError(
            f"{accelerator.num_processes} processes cannot share {settings.training.micro_batches} micro-batches. "
            "Raise training.micro_batches or launch fewer"
        )
    return accelerator


def _flat(settings: recipe.Recipe) -> dict[str, str | float]:
    """Return the recipe as trackers want it: one level, numbers and text only."""
    flat: dict[str, str | float] = {}
    for section, knobs in recipe.to_plain(settings).items():
        for knob, value in knobs.items() if isinstance(knobs, dict) else [("", knobs)]:
            flat[f"{section}.{knob}".rstrip(".")] = value if isinstance(value, int | float) else str(value)
    return flat


def explained(error: RuntimeError | MemoryError, settings: recipe.Recipe) -> BaseException:
    """Return what a failure of torch means to the user; the error itself where it is not known."""
    text = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
        return StorageError(
            "out of memory. Have fewer tokens computed at once: --set training.memory_tokens=N, now "
            f"{settings.training.memory_tokens or 'found from the memory'}; the run goes on where it was. A micro-batch"
            " is the least: a new run may have more and smaller ones (training.micro_batches)"
        )
    if isinstance(error, torch.distributed.DistError) or "gloo" in text:
        return StorageError(f"lost another process of this run: {printable(text, 150)}. The same command resumes")
    return error


def _announce(run: Run) -> None:
    if not run.accelerator.is_main_process:
        return
    trainer, training = run.trainer, run.settings.training
    parameters = sum(p.numel() for p in trainer.transformer.parameters())
    arithmetic = str(trainer.dtype).removeprefix("torch.")
    step, steps = run.state.step, training.steps
    start = "finished with" if step >= steps else "resuming after" if step else "starting at"
    say(
        f"{run.directory}: {start} update {step:,} of {steps:,}; {parameters:,} parameters; "
        f"{len(run.corpus.src):,} pairs, {trainer.updates.per_epoch:,} updates an epoch; "
        f"{run.accelerator.num_processes} process(es) on {run.accelerator.device}, {arithmetic}"
    )
    expected = run.settings.expect.parameters
    if expected and expected != parameters:
        warn(f"the recipe expects {expected:,} parameters, this model has {parameters:,}")
    span, pairs = run.settings.expect.pairs, len(run.corpus.src)
    if span and not span[0] <= pairs <= span[1]:
        warn(
            f"the recipe expects {span[0]:,} to {span[1]:,} training pairs, {run.corpus.directory} has {pairs:,}: "
            "it is an excerpt, or was cleaned otherwise, and results will differ"
        )
    if not run.dev.sources:
        warn(f"{run.corpus.directory} has no development set: nothing will be validated")


def _loop(run: Run, stop: Stop) -> int:
    """Train until the recipe's end or another reason to stop, and return it."""
    training, trainer, state = run.settings.training, run.trainer, run.state
    before = time.monotonic() - state.seconds
    with (
        ThreadPoolExecutor(1) as pool,
        Progress("training", training.steps, "updates", every=None, done=state.step) as bar,
    ):
        window = Window()
        upcoming = pool.submit(trainer.parts, state.step)
        reason = _reason_to_stop(run, stop)
        while reason == GO_ON:
            parts, *tokens = upcoming.result()
            upcoming = pool.submit(trainer.parts, state.step + 1)  # while this one is computed
            nll, norm = trainer.update(state.step + 1, parts, tokens[1])
            state.step += 1
            last = state.step == training.steps
            _guard(run, norm)
            window.add(nll, norm, (tokens[0], tokens[1]), parts)
            state.seconds = time.monotonic() - before
            if state.step % training.log_every == 0 or last:
                _log(run, window, bar)
                window = Window()
            bar.advance(1, run.shown)
            if state.step % training.validate_every == 0 or last:
                _validate(run, bar)
            reason = _reason_to_stop(run, stop)
            if reason or state.step % training.checkpoint_every == 0 or state.best_step == state.step:
                state.seconds = time.monotonic() - before
                _save(run, bool(reason))
        upcoming.cancel()
        _say_why(run, reason, bar)
    return reason


def _guard(run: Run, norm: torch.Tensor) -> None:
    """Count updates whose gradient was not finite (they changed nothing) and stop when there are too many."""
    state = run.state
    if bool(torch.isfinite(norm)):
        state.skipped_in_a_row = 0
        return
    state.skipped += 1
    state.skipped_in_a_row += 1
    if run.accelerator.is_main_process:
        warn(f"update {state.step}: the gradient is not finite; the update was skipped")
    if state.skipped_in_a_row <= MAX_SKIPPED_IN_A_ROW and state.skipped <= max(10, state.step // 100):
        return

    def give_up() -> list[float]:
        crash = run.directory / "crash.json"
        sentences = [m.tolist() for m in run.trainer.updates.micro_batches_of(state.step - 1)]
        artefact.replace_file(crash, artefact.json_bytes({"step": state.step, "sentences": sentences}))
        raise DivergedError(
            f"{state.skipped} updates had no finite gradient, the last at step {state.step} (its sentences: {crash}). "
            "The last good checkpoint is kept. Lower training.rate_factor or use fp32"
        )

    on_main(run.accelerator, give_up)


def _log(run: Run, window: Window, bar: Progress) -> None:
    """Write one line of metrics: means since the last one."""
    training, state = run.settings.training, run.state
    nll = float(run.accelerator.reduce(torch.as_tensor(window.nll), "sum"))
    if run.metrics is None:
        return
    facts = window.summary(nll)
    rate = noam_rate(state.step, run.settings.model.d_model, training)
    epoch = round(state.step / run.trainer.updates.per_epoch, 4)
    record = {"step": state.step, "epoch": epoch, "rate": rate, **facts}
    run.metrics.write({**record, "seconds": state.seconds, "skipped": state.skipped})
    run.accelerator.log(record, step=state.step)
    bleu = f"  dev BLEU {state.dev_bleu:.1f}" if state.dev_bleu is not None else ""
    run.shown = f"nll {facts['nll']:.3f}{bleu}  {facts['tgt_tokens_per_second']:,.0f} tok/s"
    if bar.plain:
        left = (training.steps - state.step) * (time.monotonic() - window.start) / window.updates
        say(f"step {state.step:,}/{training.steps:,}  {run.shown}  {duration(left)} left")


def _validate(run: Run, bar: Progress) -> None:
    """Measure the development set on the main process; all remember the best step."""
    if not run.dev.sources:
        return
    state, trainer = run.state, run.trainer

    def measure() -> list[float]:
        start = time.monotonic()
        result = validate(trainer.transformer, trainer.dtype, run.tokenizer, run.dev, run.settings)
        perplexity = math.exp(min(result.nll, 700))
        record = {"step": state.step, "dev_nll": result.nll, "dev_perplexity": perplexity, "dev_bleu": result.bleu}
        assert isinstance(run.metrics, Metrics)
        run.metrics.write({**record, "seconds": state.seconds, "samples": result.samples})
        run.accelerator.log({k: v for k, v in record.items() if k != "step" and v is not None}, step=state.step)
        bleu = "" if result.bleu is None else f"  BLEU {result.bleu:.2f}"
        took = duration(time.monotonic() - start)
        bar.line(f"step {state.step:,}  dev nll {result.nll:.3f}  perplexity {perplexity:.2f}{bleu}  ({took})")
        off = None if run.warned else off_the_curve(run.settings.expect, state.step, result)
        if off:
            run.warned = True
            warn(f"update {state.step:,} is off the curve: {off}. nmt doctor {run.directory} says why")
        return [result.nll, math.nan if result.bleu is None else result.bleu]

    nll, bleu = on_main(run.accelerator, measure, 2)
    state.dev_nll, state.dev_bleu = nll, None if math.isnan(bleu) else bleu
    better = state.best_nll is None or nll < state.best_nll
    state.not_better = 0 if better else state.not_better + 1
    if better:
        state.best_step, state.best_nll, state.best_bleu = state.step, state.dev_nll, state.dev_bleu


def _reason_to_stop(run: Run, stop: Stop) -> int:
    """Return why training ends here, 0 where it goes on; the same on every process."""
    training, state = run.settings.training, run.state
    reason = GO_ON
    if state.step >= training.steps:
        reason = DONE
    elif training.max_hours is not None and state.seconds >= training.max_hours * 3600:
        reason = OUT_OF_HOURS
    elif training.patience is not None and state.not_better >= training.patience:
        reason = NO_BETTER
    return largest(run.accelerator, STOPPED if stop.signal and reason != DONE else reason)


def _say_why(run: Run, reason: int, bar: Progress) -> None:
    training, state = run.settings.training, run.state
    text = {
        OUT_OF_HOURS: f"{training.max_hours} hours are over",
        NO_BETTER: f"nothing better in {state.not_better} validations (best: step {state.best_step:,})",
        STOPPED: "a signal asked for it; the same command resumes",
    }
    if reason in text and run.accelerator.is_main_process:
        bar.line(f"stopped after update {state.step:,}: {text[reason]}")


def _save(run: Run, last: bool) -> None:
    """Commit a checkpoint, then remove those no longer needed. A full disk ends a run only at its third failure."""
    training, state, trainer = run.settings.training, run.state, run.trainer

    def commit() -> list[float]:
        assert isinstance(run.metrics, Metrics)
        try:
            state.metrics_bytes = run.metrics.commit()
            moments = checkpoints.optimizer_tensors(trainer.transformer, trainer.optimizer)
            about = {"corpus": run.corpus.identity}
            checkpoints.save(run.directory, state, trainer.transformer.state_dict(), moments, about)
            best = {"step": state.best_step, "dev_nll": state.best_nll, "dev_bleu": state.best_bleu}
            if state.best_step == state.step:
                artefact.replace_file(run.directory / "best.json", artefact.json_bytes(best))
        except (OSError, StorageError) as error:
            run.failed_saves += 1
            if last or run.failed_saves >= MAX_FAILED_SAVES:
                raise
            free = artefact.free_megabytes(run.directory)
            warn(f"NO CHECKPOINT of update {state.step:,}: {error}; {free} MB are free. Training goes on")
            return []
        run.failed_saves = 0
        checkpoints.prune(run.directory, state, training.checkpoint_every, training.keep_checkpoints)
        return []

    on_main(run.accelerator, commit)


def _finish(run: Run) -> list[float]:
    """Commit the last weights as a model, unless the run's model is of this step already."""
    directory, steps = run.directory / "model", [run.state.step]
    with contextlib.suppress(NmtError):
        manifest = artefact.verify(directory, "model")
        if manifest.get("corpus") == run.corpus.identity and list(manifest.get("steps", []))[-1:] == steps:
            return []
    about = {"steps": steps, "corpus": run.corpus.identity}
    weights = run.trainer.transformer.state_dict()
    save_model(directory, weights, run.settings, run.corpus.tokenizer_file, about)
    say(f"{directory} holds the last weights. Next: nmt average-checkpoints {run.directory}")
    return []
