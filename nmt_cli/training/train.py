"""The train command: the loop, readable from top to bottom."""

import contextlib
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt_cli import artefact, recipe
from nmt_cli.console import Progress, duration, say, warn
from nmt_cli.corpus.store import Corpus, Lengths, open_corpus
from nmt_cli.errors import DataError, DivergedError, NmtError, StorageError
from nmt_cli.training import batches, checkpoints
from nmt_cli.training.distributed import Stop, largest, make_accelerator, on_main, to_user_error
from nmt_cli.training.loss import LossModel
from nmt_cli.training.metrics import Metrics, Window
from nmt_cli.training.optim import adam, noam_rate
from nmt_cli.training.validation import DevSet, dev_set, off_the_curve, validate
from nmt_cli.transformer.hardware import choose_dtype, reuse_memory
from nmt_cli.transformer.model import Transformer
from nmt_cli.transformer.weights import load_into, load_model, save_model

MAX_SKIPPED_IN_A_ROW = 10
MAX_FAILED_SAVES = 3
DONE, STOPPED = "done", "a signal asked for it; the same command resumes"


@dataclass(frozen=True)
class TrainOptions:
    """The prepared corpus, the run's directory, and one of Accelerate's trackers, beside metrics.jsonl."""

    data: Path
    run: Path
    tracker: str | None = None


def train(settings: recipe.Recipe, options: TrainOptions) -> int:
    """Train a recipe's model to the end, resuming where an earlier process stopped, and return the exit code."""
    accelerator = make_accelerator(settings, options.run, options.tracker)
    with Stop() as stop, contextlib.ExitStack() as lock:

        def begin() -> dict[str, Any]:
            lock.enter_context(artefact.locked(options.run, "run"))
            return {"step": checkpoints.check_run(settings, options.data, options.run)}

        try:
            step = on_main(accelerator, begin)["step"]
            run = open_run(settings, open_corpus(options.data), accelerator, options.run, step)
            if options.tracker:
                accelerator.init_trackers(settings.name, _flat(settings))
            _announce(run)
            reason = _loop(run, stop)
            if reason != STOPPED:
                on_main(accelerator, lambda: _save_model(run))
            accelerator.end_training()
            return stop.exit_code if reason == STOPPED else 0
        except (RuntimeError, MemoryError) as error:
            raise to_user_error(error, settings) from error


def _loop(run: "Run", stop: Stop) -> str:
    """Train until there is a reason to stop, and return it."""
    training, state = run.settings.training, run.state
    began = time.monotonic() - state.seconds
    with (
        ThreadPoolExecutor(1) as pool,
        Progress("training", training.steps, "steps", every=None, done=state.step) as bar,
    ):
        window = Window()
        upcoming = pool.submit(run.step_batch, state.step)
        reason = _reason_to_stop(run, stop)
        while not reason:
            batch = upcoming.result()
            upcoming = pool.submit(run.step_batch, state.step + 1)  # while this one is computed
            nll, norm = run.take_step(state.step + 1, batch)
            state.step += 1
            last = state.step == training.steps
            _count_skipped(run, norm)
            window.add(nll, norm, batch)
            state.seconds = time.monotonic() - began
            if state.step % training.log_every == 0 or last:
                _log(run, window, bar)
                window = Window()
            bar.advance(1, run.progress_text)
            if run.dev and (state.step % training.validate_every == 0 or last):
                _validate(run, run.dev, bar)
            reason = _reason_to_stop(run, stop)
            if reason or state.step % training.checkpoint_every == 0 or state.best_step == state.step:
                state.seconds = time.monotonic() - began
                _save_checkpoint(run, is_last=bool(reason))
        upcoming.cancel()
        if reason != DONE and run.accelerator.is_main_process:
            bar.line(f"stopped after step {state.step:,}: {reason}")
    return reason


def _reason_to_stop(run: "Run", stop: Stop) -> str:
    """Return why training ends here, "" where it goes on; the same on every process."""
    training, state = run.settings.training, run.state
    if state.step >= training.steps:
        return DONE
    out_of_hours = training.max_hours is not None and state.seconds >= training.max_hours * 3600
    urgency = largest(run.accelerator, 2 if stop.signal else int(out_of_hours))
    if urgency:
        return STOPPED if urgency == 2 else f"{training.max_hours} hours are over"
    if training.patience is not None and state.not_better >= training.patience:
        return f"nothing better in {state.not_better} validations (best: step {state.best_step:,})"
    return ""


@dataclass
class Run:
    """A run in training: its data, its model, and where they are computed."""

    settings: recipe.Recipe
    directory: Path
    corpus: Corpus
    accelerator: Any  # Accelerate's, which knows the device and the other processes
    plan: batches.BatchPlan
    transformer: Transformer  # the bare model
    model: Any  # the same one with its loss, wrapped by Accelerate
    optimizer: Any
    dtype: torch.dtype  # of the arithmetic; weights and Adam's state are float32
    memory_tokens: int  # of one side, computed at once
    state: checkpoints.State
    dev: DevSet | None
    metrics: Metrics | None  # on the main process only
    progress_text: str = ""
    failed_saves: int = 0  # in a row
    warned: bool = False  # that a validation is off the expected curve; once is enough

    def step_batch(self, index: int) -> batches.StepBatch:
        """Return this process' share of a step (from 0)."""
        micro_batches = self.plan.micro_batches_of(index)
        tokens = [self.plan.tokens(sentences) for sentences in micro_batches]
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        costs = [max(sides) for sides in tokens]
        groups = [
            self._group(index, {i: micro_batches[i] for i in group})
            for group in batches.group_micro_batches(costs, rank, world, self.memory_tokens)
        ]
        if not groups and any(costs):  # fewer micro-batches than processes
            groups = [self._group(index, {0: micro_batches[int(np.argmax(costs))]}, weight=0.0)]
        return batches.StepBatch(groups, sum(src for src, _ in tokens), sum(tgt for _, tgt in tokens))

    def _group(self, index: int, micro_batches: dict[int, Lengths], weight: float = 1.0) -> batches.MicroBatchGroup:
        device, model = self.accelerator.device, self.settings.model
        batch = self.plan.batch(np.concatenate(list(micro_batches.values())), device)
        keys = [(self.settings.training.seed, index, i) for i in micro_batches]
        tokens = [self.plan.tokens(sentences) for sentences in micro_batches.values()]
        places = self.transformer.dropout_places()
        masks = batches.dropout_masks(keys, tokens, places, model.d_model, model.dropout, self.dtype, device)
        return batches.MicroBatchGroup(batch, masks, weight)

    def take_step(self, step: int, batch: batches.StepBatch) -> tuple[Tensor, Tensor]:
        """Do `step` (from 1): gradient, learning rate, Adam. Return this process' summed nll and the gradient's norm.

        The loss is summed and divided once by the target tokens of the whole step. DDP averages gradients over
        processes, so the sum is multiplied by their number first. A gradient that is not finite changes nothing.
        """
        accelerator = self.accelerator
        nll = torch.zeros((), dtype=torch.float64, device=accelerator.device)
        for group in batch.groups:
            with contextlib.nullcontext() if group is batch.groups[-1] else accelerator.no_sync(self.model):
                loss, group_nll = self.model(group.batch, group.masks)
                accelerator.backward(loss * (group.weight * accelerator.num_processes / batch.tgt_tokens))
            nll += group_nll.detach() * group.weight
        norm: Tensor = accelerator.clip_grad_norm_(self.model.parameters(), float("inf"))
        if bool(torch.isfinite(norm)):
            for parameters in self.optimizer.param_groups:
                parameters["lr"] = noam_rate(step, self.settings.model.d_model, self.settings.training)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return nll, norm

    def check_memory(self) -> None:
        """Compute the gradient of the longest sentences and forget it: too little memory shows now, not on day two."""
        longer = self.plan.longer_lengths
        share = 1.1 * self.settings.training.tokens_per_step
        most = max(self.memory_tokens, share / self.plan.micro_batches)
        size = max(1, int(min(most, share / self.accelerator.num_processes)))
        order = np.argpartition(-longer, min(size, len(longer)) - 1)[:size]
        chosen = order[np.argsort(-longer[order])]
        chosen = chosen[: max(1, np.searchsorted(longer[chosen].cumsum(), size, "right"))]
        group = self._group(0, {0: chosen})
        numbers = 0 if self.optimizer.state else sum(p.numel() for p in self.transformer.parameters())
        moments = torch.empty(2 * numbers, device=self.accelerator.device)  # Adam makes them in its first step
        with self.accelerator.no_sync(self.model):
            self.accelerator.backward(0 * self.model(group.batch, group.masks)[0])
        del moments
        self.optimizer.zero_grad(set_to_none=True)


def open_run(settings: recipe.Recipe, corpus: Corpus, accelerator: Any, directory: Path, step: int) -> Run:
    """Build the model, restore the checkpoint of `step` (0: none), and try the largest batch."""
    training, device = settings.training, accelerator.device
    dev = dev_set(corpus, settings)
    if training.patience and not dev:
        raise DataError(f"training.patience needs a development set, {corpus.directory} has none. Set it to null")
    plan = batches.BatchPlan(corpus, training.tokens_per_step, training.micro_batches, training.seed)
    longest = int(plan.longer_lengths.max())
    if longest > settings.model.max_length:
        raise DataError(
            f"{corpus.directory} has a sentence of {longest} tokens, the model takes {settings.model.max_length}. "
            "Raise model.max_length, or lower corpus.cleaning.max_tokens and prepare again"
        )
    reuse_memory()
    torch.manual_seed(training.seed)
    transformer = Transformer(settings.model, int(corpus.manifest["vocabulary_size"]))
    state, moments = checkpoints.State(), dict[str, Tensor]()
    if step:
        state = checkpoints.read_state(directory, step)
        weights, moments = checkpoints.load(directory, step)
        load_into(transformer, weights, checkpoints.directory_of(directory, step))
    elif training.init_from:
        start = load_model(Path(training.init_from))
        if artefact.sha256(start.tokenizer_file) != artefact.sha256(corpus.tokenizer_file):
            advice = f"Prepare the corpus with --tokenizer {start.tokenizer_file}"
            raise DataError(f"{start.directory} has another tokenizer than {corpus.directory}. {advice}")
        load_into(transformer, start.model.state_dict(), start.directory)
    dtype = choose_dtype(training.precision, device)
    transformer.to(device)
    model, optimizer = LossModel(transformer, training.label_smoothing, dtype), adam(transformer, training)
    checkpoints.restore_optimizer(transformer, optimizer, moments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # DDP's new word for broadcast_buffers is too new for us
        model, optimizer = accelerator.prepare(model, optimizer)
    tokens = training.memory_tokens or batches.default_memory_tokens(settings.model, device)
    metrics = Metrics(directory / "metrics.jsonl", state.metrics_bytes) if accelerator.is_main_process else None
    run = Run(
        settings,
        directory,
        corpus,
        accelerator,
        plan,
        transformer,
        model,
        optimizer,
        dtype,
        tokens,
        state,
        dev,
        metrics,
    )
    run.check_memory()
    return run


def _flat(settings: recipe.Recipe) -> dict[str, str | float]:
    """Return the recipe as trackers want it: one level, numbers and text only."""
    sections = {name: values for name, values in recipe.to_plain(settings).items() if isinstance(values, dict)}
    flat = {f"{name}.{key}": value for name, values in sections.items() for key, value in values.items()}
    return {key: value if isinstance(value, int | float) else str(value) for key, value in flat.items()}


def _announce(run: Run) -> None:
    if not run.accelerator.is_main_process:
        return
    pairs, parameters = len(run.corpus.src), sum(p.numel() for p in run.transformer.parameters())
    step, steps, expect = run.state.step, run.settings.training.steps, run.settings.expect
    start = "finished with" if step >= steps else "resuming after" if step else "starting at"
    say(
        f"{run.directory}: {start} step {step:,} of {steps:,}; {parameters:,} parameters; "
        f"{pairs:,} pairs, {run.plan.steps_per_epoch:,} steps an epoch; {run.accelerator.num_processes} process(es) "
        f"on {run.accelerator.device}, {str(run.dtype).removeprefix('torch.')}"
    )
    if expect.parameters and expect.parameters != parameters:
        warn(f"the recipe expects {expect.parameters:,} parameters, this model has {parameters:,}")
    if expect.pairs and not expect.pairs[0] <= pairs <= expect.pairs[1]:
        span = "{:,} to {:,} training pairs".format(*expect.pairs)
        warn(f"the recipe expects {span}, {run.corpus.directory} has {pairs:,}: results will differ")
    if not run.dev:
        warn(f"{run.corpus.directory} has no development set: nothing will be validated")


def _count_skipped(run: Run, norm: Tensor) -> None:
    """Count steps whose gradient was not finite (they changed nothing) and give up when there are too many."""
    state = run.state
    if bool(torch.isfinite(norm)):
        state.skipped_in_a_row = 0
        return
    state.skipped += 1
    state.skipped_in_a_row += 1
    if run.accelerator.is_main_process:
        warn(f"step {state.step}: the gradient is not finite; the step was skipped")
    if state.skipped_in_a_row <= MAX_SKIPPED_IN_A_ROW and state.skipped <= max(10, state.step // 100):
        return

    def give_up() -> None:
        crash = run.directory / "crash.json"
        sentences = [m.tolist() for m in run.plan.micro_batches_of(state.step - 1)]
        artefact.replace_file(crash, artefact.json_bytes({"step": state.step, "sentences": sentences}))
        raise DivergedError(
            f"{state.skipped} steps had no finite gradient, the last was step {state.step} (its sentences: {crash}). "
            "The last good checkpoint is kept. Lower training.rate_factor or use fp32"
        )

    on_main(run.accelerator, give_up)


def _log(run: Run, window: Window, bar: Progress) -> None:
    settings, state = run.settings, run.state
    nll = float(run.accelerator.reduce(torch.as_tensor(window.nll), "sum"))
    if run.metrics is None:
        return
    summary = window.summary(nll)
    rate = noam_rate(state.step, settings.model.d_model, settings.training)
    record = {"step": state.step, "epoch": round(state.step / run.plan.steps_per_epoch, 4), "rate": rate, **summary}
    run.metrics.write({**record, "seconds": state.seconds, "skipped": state.skipped})
    run.accelerator.log(record, step=state.step)
    bleu = f"  dev BLEU {state.dev_bleu:.1f}" if state.dev_bleu is not None else ""
    run.progress_text = f"nll {summary['nll']:.3f}{bleu}  {summary['tgt_tokens_per_second']:,.0f} tok/s"
    if bar.plain:
        left = (settings.training.steps - state.step) * (time.monotonic() - window.start) / window.steps
        say(f"step {state.step:,}/{settings.training.steps:,}  {run.progress_text}  {duration(left)} left")


def _validate(run: Run, dev: DevSet, bar: Progress) -> None:
    """Measure the development set on the main process; all remember the best step."""
    state = run.state

    def measure() -> dict[str, Any]:
        assert run.metrics
        start = time.monotonic()
        result = validate(run.transformer, run.dtype, dev, run.settings)
        scores = {"dev_nll": result.nll, "dev_perplexity": result.perplexity, "dev_bleu": result.bleu}
        run.metrics.write({"step": state.step, **scores, "seconds": state.seconds, "samples": result.samples})
        run.accelerator.log({name: score for name, score in scores.items() if score is not None}, step=state.step)
        bleu = "" if result.bleu is None else f"  BLEU {result.bleu:.2f}"
        took = duration(time.monotonic() - start)
        bar.line(f"step {state.step:,}  dev nll {result.nll:.3f}  perplexity {result.perplexity:.2f}{bleu}  ({took})")
        worse = off_the_curve(run.settings.expect, state.step, result)
        if worse and not run.warned:
            run.warned = True
            warn(f"step {state.step:,} is off the curve: {worse}. nmt doctor {run.directory} says why")
        return scores

    scores = on_main(run.accelerator, measure)
    state.dev_nll, state.dev_bleu = scores["dev_nll"], scores["dev_bleu"]
    state.not_better += 1
    if state.best_nll is None or scores["dev_nll"] < state.best_nll:
        state.not_better = 0
        state.best_step, state.best_nll, state.best_bleu = state.step, state.dev_nll, state.dev_bleu


def _save_checkpoint(run: Run, *, is_last: bool) -> None:
    """Commit a checkpoint, then remove those no longer needed. A full disk ends a run only at its third failure."""
    training, state = run.settings.training, run.state

    def commit() -> None:
        assert run.metrics
        try:
            state.metrics_bytes = run.metrics.commit()
            weights = run.transformer.state_dict()
            moments = checkpoints.optimizer_tensors(run.transformer, run.optimizer)
            checkpoints.save(run.directory, state, weights, moments, {"corpus": run.corpus.identity})
            if state.best_step == state.step:
                best = {"step": state.best_step, "dev_nll": state.best_nll, "dev_bleu": state.best_bleu}
                artefact.replace_file(run.directory / "best.json", artefact.json_bytes(best))
        except (OSError, StorageError) as error:
            run.failed_saves += 1
            if is_last or run.failed_saves >= MAX_FAILED_SAVES:
                raise
            free = artefact.free_megabytes(run.directory)
            warn(f"NO CHECKPOINT of step {state.step:,}: {error}; {free} MB are free. Training goes on")
            return
        run.failed_saves = 0
        checkpoints.prune(run.directory, state, training.checkpoint_every, training.keep_checkpoints)

    on_main(run.accelerator, commit)


def _save_model(run: Run) -> None:
    """Commit the last weights as a model, unless the run's model is of this step already."""
    directory, steps, corpus = run.directory / "model", [run.state.step], run.corpus.identity
    with contextlib.suppress(NmtError):
        manifest = artefact.verify(directory, "model")
        if manifest.get("corpus") == corpus and list(manifest.get("steps", []))[-1:] == steps:
            return
    weights, tokenizer = run.transformer.state_dict(), run.corpus.tokenizer_file
    save_model(directory, weights, run.settings, tokenizer, {"steps": steps, "corpus": corpus})
    say(f"{directory} holds the last weights. Next: nmt average-checkpoints {run.directory}")
