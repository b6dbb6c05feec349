"""The train command: the loop, readable from top to bottom."""

import contextlib
import dataclasses
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.corpus.tokenizer import files_of
from nmt_cli.recipe import loading, schema
from nmt_cli.storage import artefact
from nmt_cli.system.console import Progress, counted, duration, say, warn
from nmt_cli.system.errors import DataError, DivergedError, NmtError
from nmt_cli.training import batches, checkpoints, distributed, graphs
from nmt_cli.training.distributed import (
    Interrupted,
    Stop,
    decisive,
    hand_over,
    is_sync_step,
    make_accelerator,
    max_over_processes,
    on_all,
    on_main,
    open_here,
)
from nmt_cli.training.loss import LossModel
from nmt_cli.training.metrics import MIN_IMPROVEMENT, Metrics, peak_memory_mb, worse_than_expected
from nmt_cli.training.optim import adam, noam_rate
from nmt_cli.training.validation import DevSet, validate
from nmt_cli.transformer.hardware import ToHost, choose_dtype, recorded, reuse_memory
from nmt_cli.transformer.model import Batch, Transformer
from nmt_cli.transformer.weights import load_into, load_model, save_model

MAX_SKIPPED = 10  # in a row
DONE, STOPPED = "done", "a signal asked for it; the same command resumes"


def train(settings: schema.Recipe, data: Path, directory: Path, tracker: str | None = None) -> int:
    """Train a recipe's model to the end, resuming where an earlier process stopped, and return the exit code."""
    return distributed.in_processes(settings, partial(_train, settings, data, directory, tracker))


def _train(settings: schema.Recipe, data: Path, directory: Path, tracker: str | None) -> int:
    accelerator = make_accelerator(settings, directory, tracker)
    with Stop() as stop, contextlib.ExitStack() as lock:

        def begin() -> dict[str, Any]:
            lock.enter_context(artefact.locked(directory, "run"))
            step = checkpoints.open_run(settings, data, directory)
            return {"step": step, "corpus": open_corpus(data).identity, "recipe": decisive(settings)}

        try:
            begun = on_main(accelerator, begin)
            corpus = on_all(accelerator, partial(open_here, accelerator, settings, data, begun))
            settings = loading.with_languages(settings, corpus.manifest)
            run = Run(settings, corpus, accelerator, directory, begun["step"])
            if tracker:
                sections = {name: each for name, each in settings.model_dump().items() if isinstance(each, dict)}
                values = {f"{name}.{key}": value for name, each in sections.items() for key, value in each.items()}
                plain = {key: value if isinstance(value, int | float) else str(value) for key, value in values.items()}
                accelerator.init_trackers(settings.name, plain)  # trackers want one level of numbers and text
            if accelerator.is_main_process:
                _announce(run)
            reason = _loop(run, stop)
            if reason != STOPPED:
                on_main(accelerator, _save_model, run)
            del run
            accelerator.free_memory()  # of DDP first: as the last owner of gloo it may wait for its threads forever
            accelerator.end_training()
            return stop.exit_code if reason == STOPPED else 0
        except (RuntimeError, MemoryError) as error:
            raise distributed.to_user_error(error, settings) from error


def _loop(run: "Run", stop: Stop) -> str:
    training, state = run.settings.training, run.state
    began, text = time.monotonic() - state.seconds, ""
    intervals = training.log_every, training.validate_every, training.checkpoint_every
    progress = Progress("training", training.steps, "steps", every=30, done=state.step)
    with run.batch_thread() as pool, run.writer.pool, progress as bar:
        window, window_began = list[tuple[Tensor, Tensor, int]](), time.monotonic()
        unread = list[tuple[int, ToHost]]()  # steps and their norms
        upcoming = pool.submit(run.step_batch, state.step)
        if run.dev and training.init_from and not state.step:
            window_began += _validate(run, run.dev, stop)  # the start is the best so far
        elif run.dev and state.unvalidated:  # a signal came then
            window_began += _validate(run, run.dev, stop)
            _save(run, state.unvalidated)
        reason = _reason_to_stop(run, stop)
        while not reason:
            batch = upcoming.result()
            state.step += 1
            upcoming = pool.submit(run.step_batch, state.step)  # while this one is computed
            nll, norm = run.take_step(state.step, batch)
            window.append((nll, norm, batch.tgt_tokens))
            unread.append((state.step, ToHost({"norm": norm})))
            last = state.step == training.steps
            to_log, to_validate, to_save = (state.step % every == 0 or last for every in intervals)
            _count_skipped(run, unread, 0 if to_log or to_validate or to_save else 1)
            state.seconds = time.monotonic() - began
            if to_log:
                text = _log(run, window, time.monotonic() - window_began, bar)
                window, window_began = [], time.monotonic()
            bar.advance(1, text)
            if run.dev and to_validate:
                window_began += _validate(run, run.dev, stop)  # tokens per second are those of training alone
            reason = _reason_to_stop(run, stop)
            if reason or to_save or state.best_step == state.step:
                _count_skipped(run, unread, 0)
                state.seconds = time.monotonic() - began
                _save(run, bool(reason))
        if reason != DONE and run.accelerator.is_main_process:
            say(f"stopped after step {state.step:,}: {reason}")
    return reason


def _save(run: "Run", is_last: bool) -> None:
    moments = checkpoints.optimizer_tensors(run.transformer, run.optimizer)
    on_main(run.accelerator, run.writer.begin, run.state, run.transformer.state_dict(), moments, is_last)


def _reason_to_stop(run: "Run", stop: Stop) -> str:
    training, state = run.settings.training, run.state
    if state.unvalidated:
        return STOPPED
    if state.step >= training.steps:
        return DONE
    out_of_hours = training.max_hours is not None and state.seconds >= training.max_hours * 3600
    urgency = 2 if stop.asked else int(out_of_hours)
    if is_sync_step(state.step, run.accelerator) and (urgency := max_over_processes(run.accelerator, urgency)):
        return STOPPED if urgency == 2 else f"{training.max_hours} hours are over"
    if training.patience is not None and state.not_better >= training.patience:
        return f"nothing much better in {state.not_better} validations (best: step {state.best_step:,})"
    return ""


class Run:
    def __init__(self, settings: schema.Recipe, corpus: Corpus, accelerator: Any, directory: Path, step: int) -> None:
        """Build the model, restore the checkpoint of `step` (0: none), and try the largest batch.

        Only the main process reads the checkpoint, or the model to start from; the others get what it has read.
        """
        training, device = settings.training, accelerator.device
        self.settings, self.corpus, self.accelerator, self.directory = settings, corpus, accelerator, directory
        self.warned = False  # one warning of a bad curve is enough
        self.dev = DevSet(corpus, settings) if corpus.lines("dev")[0] else None
        parts = max(training.micro_batches, accelerator.num_processes)
        self.plan = batches.BatchPlan(corpus, training.tokens_per_step, parts, training.seed)
        longest = int(self.plan.longer_lengths.max())
        if longest > settings.model.max_length:
            advice = "Raise model.max_length, or lower corpus.cleaning.max_tokens and prepare again"
            raise DataError(f"{corpus.directory} has a sentence of {longest} tokens, too long for the model. {advice}")
        reuse_memory()
        torch.manual_seed(training.seed)
        self.transformer = Transformer(settings.model, int(corpus.manifest["vocabulary_size"]))
        self.state, moments = checkpoints.State(), dict[str, Tensor]()
        if begun := bool(step or training.init_from):
            read = on_main(accelerator, self._read_start, step, moments)
            self.state = checkpoints.State(**read["state"])
            if read["has_moments"] and not moments:
                moments = checkpoints.blank_moments(self.transformer)
        self.transformer.to(device)
        self.dtype = choose_dtype(training.precision, device)  # of the arithmetic; weights and moments are float32
        self.optimizer: Any = adam(self.transformer, training)
        checkpoints.restore_optimizer(self.transformer, self.optimizer, moments)
        if begun:
            moments = checkpoints.optimizer_tensors(self.transformer, self.optimizer)
            hand_over(accelerator, [*self.transformer.state_dict().values(), *moments.values()])
        model = LossModel(self.transformer, training.label_smoothing, self.dtype)
        with warnings.catch_warnings(action="ignore", category=FutureWarning):  # of DDP's broadcast_buffers
            self.model = accelerator.prepare(model)
        self.memory_tokens = training.memory_tokens or batches.default_memory_tokens(settings.model, device)
        self.streams = torch.get_device_module(device)
        self.copies = self.streams.Stream()  # of batches, to the device
        self.about = {"corpus": corpus.identity, "seen_tokens": corpus.seen_tokens}  # for the manifests
        log = directory / "metrics.jsonl"
        self.metrics: Any = Metrics(log, self.state.metrics_bytes) if accelerator.is_main_process else None
        self.writer = checkpoints.Writer(directory, training, self.metrics, self.about)
        self.check_memory()
        self.pads = graphs.takes_pads(settings, self.dtype, accelerator)
        self.graphs = graphs.StepGraphs(device) if self.pads and graphs.fits_twice(device) else None

    def _read_start(self, step: int, moments: dict[str, Tensor]) -> dict[str, Any]:
        """Load the checkpoint of `step`, or the model to start from; return what the other processes must know."""
        state = checkpoints.State()
        if step:
            state = checkpoints.read_state(self.directory, step)
            weights, stored = checkpoints.load(self.directory, step)
            load_into(self.transformer, weights, checkpoints.directory_of(self.directory, step))
            checkpoints.check_moments(self.transformer, stored)
            moments.update(stored)
        else:
            start = load_model(Path(str(self.settings.training.init_from)))
            theirs, ours = (map(artefact.sha256, files_of(one.tokenizer_file)) for one in (start, self.corpus))
            if [*theirs] != [*ours]:
                advice = f"Prepare the corpus with --tokenizer {start.tokenizer_file}"
                raise DataError(f"{start.directory} has another tokenizer than {self.corpus.directory}. {advice}")
            load_into(self.transformer, start.model.state_dict(), start.directory)
        return {"state": dataclasses.asdict(state), "has_moments": bool(moments)}

    def batch_thread(self) -> ThreadPoolExecutor:
        """Return an executor of one thread for `step_batch`, on this process' own device."""
        return ThreadPoolExecutor(1, initializer=self.streams.set_device, initargs=(self.streams.current_device(),))

    def step_batch(self, index: int) -> batches.StepBatch:
        micro_batches = self.plan.micro_batches_of(index)
        tokens = [self.plan.tokens(sentences) for sentences in micro_batches]
        costs, weight = [max(sides) for sides in tokens], 1.0
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        groups = batches.group_micro_batches(costs, rank, world, self.memory_tokens)
        if not groups and any(costs):  # fewer micro-batches than processes, and DDP waits for each of them
            groups, weight = [[int(np.argmax(costs))]], 0.0
        sentences = [np.concatenate([micro_batches[i] for i in group]) for group in groups]
        with self.streams.stream(self.copies):  # another than that of the step before, which goes on
            padded = self.pads and len(sentences) == 1
            passes = [self.plan.batch(each, index, self.accelerator.device, padded=padded) for each in sentences]
            copied = recorded(self.accelerator.device)
        return batches.StepBatch(passes, sum(tgt for _, tgt in tokens), weight, copied)

    def take_step(self, step: int, batch: batches.StepBatch) -> tuple[Tensor, Tensor]:
        """Do `step` (from 1), or nothing where a gradient is not finite; return this process' nll and the norm."""
        training = self.settings.training
        batch.wait(self.streams.current_stream())
        rate = noam_rate(step, self.settings.model.d_model, training)
        scale = batch.weight * self.accelerator.num_processes / batch.tgt_tokens
        if self.graphs and len(batch.passes) == 1:
            return self.graphs(self.compute, batch.passes[0], rate, scale)
        nll, norm = self.compute(batch.passes, rate, scale)
        return nll * batch.weight, norm

    def compute(self, passes: list[Batch], rate: float | Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """Compute the gradient of the passes' loss times `scale`, and change the weights; return nll and norm."""
        total = torch.zeros((), dtype=torch.float64, device=self.accelerator.device)
        try:
            for i, pairs in enumerate(passes, 1):
                with contextlib.nullcontext() if i == len(passes) else self.accelerator.no_sync(self.model):
                    loss, nll = self.model(pairs)  # sums; DDP averages gradients over processes
                    self.accelerator.backward(loss * scale)
                total += nll.detach()
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
            self.optimizer.param_groups[0].update(lr=rate, capturable=isinstance(rate, Tensor))
            self.optimizer.found_inf = norm.isfinite().logical_not().float()  # 1: Adam changes nothing
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        return total, norm

    def check_memory(self) -> None:
        """Compute the gradient of the longest sentences and forget it: too little memory shows now, not on day two."""
        longer, share = self.plan.longer_lengths, 1.1 * self.settings.training.tokens_per_step
        most = max(self.memory_tokens, share / self.plan.micro_batches)
        tokens = max(1, int(min(most, share / self.accelerator.num_processes)))
        longest = np.argsort(-longer)[:tokens]
        count = max(1, np.searchsorted(longer[longest].cumsum(), tokens, "right"))
        pairs = self.plan.batch(longest[:count], 0, self.accelerator.device)
        numbers = 0 if self.optimizer.state else sum(p.numel() for p in self.transformer.parameters())
        _moments = torch.empty(2 * numbers, device=self.accelerator.device)  # Adam makes them in its first step
        self.accelerator.backward(0 * self.model(pairs)[0])  # DDP puts its buckets in the order they are to have, too
        self.optimizer.zero_grad(set_to_none=True)


def _announce(run: Run) -> None:
    pairs, parameters = len(run.corpus.src), sum(p.numel() for p in run.transformer.parameters())
    step, steps, expect = run.state.step, run.settings.training.steps, run.settings.expect
    start = "resuming after" if step else "starting at"
    if step >= steps:
        start = "finished with"
    dtype = str(run.dtype).removeprefix("torch.")
    device = f"{run.accelerator.num_processes} x {run.accelerator.device.type}, {dtype}"
    epoch = f"{pairs:,} pairs, {run.plan.steps_per_epoch:,} steps an epoch"
    say(f"{run.directory}: {start} step {step:,} of {steps:,}; {parameters:,} parameters; {epoch}; {device}")
    if run.state.dtype not in ("", dtype):
        why = "training.precision=auto follows the hardware, and the two round differently"
        warn(f"this run was computed in {run.state.dtype} so far and goes on in {dtype}: {why}")
    run.state.dtype = dtype
    if expect.parameters and expect.parameters != parameters:
        warn(f"the recipe expects {expect.parameters:,} parameters, this model has {parameters:,}")
    if expect.pairs and not expect.pairs[0] <= pairs <= expect.pairs[1]:
        warn("the recipe expects {:,} to {:,} training pairs, ".format(*expect.pairs) + f"this corpus has {pairs:,}")
    if not run.dev:
        warn(f"{run.corpus.directory} has no development set: nothing will be validated")
    elif missing := len(run.dev.lines) - len(run.dev.pairs):
        warn(f"dev perplexity leaves out {counted(missing, 'pair')} longer than model.max_length")


def _count_skipped(run: Run, unread: list[tuple[int, ToHost]], late: int) -> None:
    """Read all but the last `late` norms. Count those not finite (their steps changed nothing); give up at too many."""
    state = run.state
    while len(unread) > late:
        step, norm = unread.pop(0)
        if norm.get()["norm"].isfinite():
            state.skipped_in_a_row = 0
            continue
        state.skipped += 1
        state.skipped_in_a_row += 1
        if run.accelerator.is_main_process:
            warn(f"step {step}: the gradient is not finite; the step was skipped")
        if state.skipped_in_a_row > MAX_SKIPPED or state.skipped > max(MAX_SKIPPED, step // 100):
            on_main(run.accelerator, _give_up, run, step)


def _give_up(run: Run, step: int) -> None:
    crash = run.directory / "crash.json"
    record = {"step": step, "sentences": [m.tolist() for m in run.plan.micro_batches_of(step - 1)]}
    artefact.replace_file(crash, artefact.json_bytes(record))
    what = f"{run.state.skipped} steps had no finite gradient, the last was step {step} (its sentences: {crash})"
    kept = " in another --run; the last good checkpoint is kept" if checkpoints.steps_in(run.directory) else ""
    raise DivergedError(f"{what}. Lower training.rate_factor or use training.precision=fp32{kept}")


def _log(run: Run, window: list[tuple[Tensor, Tensor, int]], seconds: float, bar: Progress) -> str:
    """Write metrics of the steps since the last line, and return what progress shows of them."""
    settings, state, device = run.settings, run.state, run.accelerator.device
    nll, norm, tgt_tokens = zip(*window, strict=True)
    total = sum(torch.stack(nll).tolist())  # of this process
    total = float(run.accelerator.reduce(torch.tensor(total, dtype=torch.float64, device=device), "sum"))
    if not run.metrics:
        return ""
    record = {
        "step": state.step,
        "epoch": round(state.step / run.plan.steps_per_epoch, 4),
        "rate": noam_rate(state.step, settings.model.d_model, settings.training),
        "nll": total / max(1, sum(tgt_tokens)),
        "gradient_norm": float(norm[-1]),
        "tgt_tokens_per_step": sum(tgt_tokens) / len(window),
        "tgt_tokens_per_second": sum(tgt_tokens) / seconds,
        "peak_memory_mb": peak_memory_mb(),
    }
    run.metrics.write({**record, "seconds": state.seconds, "skipped": state.skipped})
    run.accelerator.log(record, step=state.step)
    text = f"nll {record['nll']:.3f}  {record['tgt_tokens_per_second']:,.0f} tok/s"
    if bar.plain:
        left = duration((settings.training.steps - state.step) * seconds / len(window))
        most = "at most " if settings.training.patience else ""
        say(f"step {state.step:,}/{settings.training.steps:,}  {text}  {most}{left} left")
        bar.last = time.monotonic()
    return text


def _validate(run: Run, dev: DevSet, stop: Stop) -> float:
    """Measure the development set, each process a share of it; all remember the best step. Return the seconds.

    A signal ends it early, for all: it is made again when the run is resumed.
    """
    state, start, accelerator = run.state, time.monotonic(), run.accelerator
    place = accelerator.process_index, accelerator.num_processes
    try:
        record = validate(run.transformer, run.dtype, dev, run.settings, *place, stop)
    except Interrupted:
        state.unvalidated = True
        return time.monotonic() - start
    state.unvalidated = False
    on_main(accelerator, _report, run, record, time.monotonic() - start)
    nll = record["dev_nll"]
    state.not_better += 1
    if state.best_nll is None or nll < state.best_nll * (1 - MIN_IMPROVEMENT):
        state.not_better = 0
    if state.best_nll is None or nll < state.best_nll:
        state.best_step, state.best_nll = state.step, nll
    return time.monotonic() - start


def _report(run: Run, record: dict[str, Any], seconds: float) -> None:
    step = run.state.step
    run.metrics.write({"step": step, **record, "seconds": run.state.seconds})
    scores = {name: score for name, score in record.items() if isinstance(score, float)}
    run.accelerator.log(scores, step=step)
    text = "  ".join(f"{name.replace('_', ' ').replace('bleu', 'BLEU')} {score:.3f}" for name, score in scores.items())
    say(f"step {step:,}  {text}  ({duration(seconds)})")
    if not run.warned and (worse := worse_than_expected(run.settings.expect, step, record)):
        run.warned = True
        warn(f"step {step:,}: {worse}. nmt doctor {run.directory} may say why")


def _save_model(run: Run) -> None:
    directory, steps = run.directory / "model", [run.state.step]
    made_of = [run.state.step, *([run.state.best_step] if run.settings.averaging.best else [])]
    with contextlib.suppress(NmtError, IndexError):
        present = artefact.verify(directory, "model")
        if present["steps"][-1] in made_of and present.get("corpus") == run.corpus.identity:
            return  # the model of an earlier end of this run, averaged perhaps
    about = {"steps": steps, **run.about}
    save_model(directory, run.transformer.state_dict(), run.settings, run.corpus.tokenizer_file, about)
    say(f"{directory} holds the last weights. Next: nmt average-checkpoints {run.directory}")
