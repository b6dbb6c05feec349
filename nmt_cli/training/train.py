"""The command `nmt train` and its training loop."""

import contextlib
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.recipe import loading, schema
from nmt_cli.recipe.section import LOCAL
from nmt_cli.storage import artefact
from nmt_cli.system.console import Progress, counted, duration, say, warn
from nmt_cli.system.errors import DataError, DivergedError, NmtError
from nmt_cli.training import checkpoints, epoch_texts
from nmt_cli.training.accelerator import make_accelerator
from nmt_cli.training.collectives import is_sync_step, max_over_processes, on_all, on_main
from nmt_cli.training.metrics_log import MIN_IMPROVEMENT, peak_memory_mb, worse_than_expected
from nmt_cli.training.optim import noam_rate
from nmt_cli.training.processes import in_processes
from nmt_cli.training.stopping import Interrupted, Stop, StopReason
from nmt_cli.training.torch_errors import to_user_error
from nmt_cli.training.trainer import Trainer, start_trainer
from nmt_cli.training.validation import DevSet, validate
from nmt_cli.transformer.hardware import ToHost
from nmt_cli.transformer.weights import save_model

# Maximum skipped steps in a row. In total, 1 % of the steps so far may be skipped, or this many if that is more.
MAX_SKIPPED = 10


def train(settings: schema.Recipe, data: Path, directory: Path, tracker: str | None = None) -> int:
    """Train the model of a recipe, or resume the run in `directory`. Return the exit code."""
    return in_processes(settings, partial(_train, settings, data, directory, tracker))


def _train(settings: schema.Recipe, data: Path, directory: Path, tracker: str | None) -> int:
    accelerator = make_accelerator(settings, directory, tracker)
    with Stop() as stop, contextlib.ExitStack() as lock:
        try:
            corpus, step = _open(accelerator, settings, data, directory, lock)
            settings = loading.with_languages(settings, corpus.manifest)
            corpus = epoch_texts.augmented(settings, corpus, accelerator, directory, step, lock)
            trainer = start_trainer(settings, corpus, accelerator, directory, step)
            if tracker:
                accelerator.init_trackers(settings.name, _flat(settings))
            if accelerator.is_main_process:
                _print_start(trainer)
            reason = _loop(trainer, stop)
            if reason is not StopReason.SIGNAL:
                on_main(accelerator, _save_model, trainer)
            del trainer
            accelerator.free_memory()  # free DDP before gloo; in the opposite order, the process could wait forever
            accelerator.end_training()
            return stop.exit_code if reason is StopReason.SIGNAL else 0
        except (RuntimeError, MemoryError) as error:
            raise to_user_error(error, settings) from error


def _open(
    accelerator: Any, settings: schema.Recipe, data: Path, directory: Path, lock: contextlib.ExitStack
) -> tuple[Corpus, int]:
    """Lock and open the run on the main process. Open the corpus on every process.

    Return the corpus and the step to resume from. Raise DataError if a machine's corpus or recipe differs
    from the first machine's.
    """
    opened = list[Corpus]()  # stays empty on all processes but the main one

    def open_run() -> dict[str, Any]:
        lock.enter_context(artefact.locked(directory, "run"))
        opened.append(open_corpus(data, content=True))
        step = checkpoints.open_run(settings, opened[0], directory)
        epoch_texts.remove_leftovers(directory)
        return {"step": step, "corpus": opened[0].identity, "recipe": decisive(settings)}

    def open_here() -> Corpus:
        if opened:
            return opened[0]
        first_here = accelerator.is_local_main_process  # only one process per machine checks the hashes
        corpus = open_corpus(data, content=first_here)
        if corpus.identity != run["corpus"]:
            raise DataError(f"{data} on {artefact.HOST} differs from that on the first machine. Copy it from there")
        if changes := loading.differences(run["recipe"], decisive(settings)):
            problem = f"the recipe on {artefact.HOST} differs from that on the first machine: {'; '.join(changes)}"
            raise DataError(f"{problem}. Use the same recipe and --set options on all machines")
        return corpus

    run = on_main(accelerator, open_run)
    return on_all(accelerator, open_here), run["step"]


def decisive(settings: schema.Recipe) -> dict[str, Any]:
    """Return the settings that must be the same on all machines. Paths, for example, may differ."""
    return schema.without(settings.model_dump(), LOCAL)


def _flat(settings: schema.Recipe) -> dict[str, Any]:
    """Return the settings in the form that trackers accept: numbers and text, without nesting."""
    sections = {name: section for name, section in settings.model_dump().items() if isinstance(section, dict)}
    values = {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}
    return {key: value if isinstance(value, int | float) else str(value) for key, value in values.items()}


def _loop(trainer: Trainer, stop: Stop) -> StopReason:
    training, state = trainer.settings.training, trainer.state
    began, text = time.monotonic() - state.seconds, ""
    intervals = training.log_every, training.validate_every, training.checkpoint_every
    progress = Progress("training", training.steps, "steps", every=30, done=state.step)
    with trainer.batch_thread() as pool, trainer.writer.pool, progress as bar:
        window, window_began = list[tuple[Tensor, Tensor, int]](), time.monotonic()  # window: nll, norm, target tokens
        unread = list[tuple[int, ToHost]]()  # steps and their gradient norms, perhaps still on the device
        upcoming = pool.submit(trainer.step_batch, state.step)
        if trainer.dev and training.init_from and not state.step:
            window_began += _validate(trainer, trainer.dev, stop)  # the best checkpoint must beat this score
        elif trainer.dev and state.unvalidated:  # a signal interrupted the validation of this step
            window_began += _validate(trainer, trainer.dev, stop)
            _save(trainer, state.unvalidated)
        reason = reason_to_stop(trainer, stop)
        while reason is None:
            batch = upcoming.result()
            state.step += 1
            upcoming = pool.submit(trainer.step_batch, state.step)  # prepared while this step is computed
            nll, norm = trainer.take_step(state.step, batch)
            window.append((nll, norm, batch.tgt_tokens))
            unread.append((state.step, ToHost({"norm": norm})))
            last = state.step == training.steps
            to_log, to_validate, to_save = (state.step % every == 0 or last for every in intervals)
            count_skipped(trainer, unread, 0 if to_log or to_validate or to_save else 1)
            state.seconds = time.monotonic() - began
            if to_log:
                text = log_steps(trainer, window, time.monotonic() - window_began, bar)
                window, window_began = [], time.monotonic()
            bar.advance(1, text)
            if trainer.dev and to_validate:
                window_began += _validate(trainer, trainer.dev, stop)  # tokens per second exclude the validation
            reason = reason_to_stop(trainer, stop)
            if reason or to_save or state.best_step == state.step:
                count_skipped(trainer, unread, 0)
                state.seconds = time.monotonic() - began
                _save(trainer, is_last=reason is not None)
    if reason is not StopReason.ALL_STEPS and trainer.accelerator.is_main_process:
        say(f"stopped after step {state.step:,}: {_describe(reason, trainer)}")
    return reason


def _save(trainer: Trainer, is_last: bool) -> None:
    moments = checkpoints.optimizer_tensors(trainer.transformer, trainer.optimizer)
    weights = trainer.transformer.state_dict()
    on_main(trainer.accelerator, trainer.writer.begin, trainer.state, weights, moments, is_last)


def reason_to_stop(trainer: Trainer, stop: Stop) -> StopReason | None:
    training, state = trainer.settings.training, trainer.state
    if state.unvalidated:
        return StopReason.SIGNAL
    if state.step >= training.steps:
        return StopReason.ALL_STEPS
    if is_sync_step(state.step, trainer.accelerator):  # if a signal or the clock stops one process, all stop
        out_of_hours = training.max_hours is not None and state.seconds >= training.max_hours * 3600
        urgency = max_over_processes(trainer.accelerator, 2 if stop.requested else int(out_of_hours))
        if urgency:
            return StopReason.SIGNAL if urgency == 2 else StopReason.MAX_HOURS
    if training.patience is not None and state.not_better >= training.patience:
        return StopReason.NO_IMPROVEMENT
    return None


def _describe(reason: StopReason, trainer: Trainer) -> str:
    if reason is StopReason.SIGNAL:
        return "a signal was received; run the same command again to resume"
    if reason is StopReason.MAX_HOURS:
        return f"the limit of {trainer.settings.training.max_hours} hours is reached"
    state = trainer.state
    return f"no clear improvement in {state.not_better} validations (best: step {state.best_step:,})"


def _print_start(trainer: Trainer) -> None:
    """Print the first step and the size of a run. Print warnings about its size, dtype and development set."""
    pairs = len(trainer.corpus.src)
    parameters = sum(p.numel() for p in trainer.transformer.parameters())
    step, steps, expect = trainer.state.step, trainer.settings.training.steps, trainer.settings.expect
    start = "resuming after" if step else "starting at"
    if step >= steps:
        start = "finished with"
    dtype = str(trainer.dtype).removeprefix("torch.")
    device = f"{trainer.accelerator.num_processes} x {trainer.accelerator.device.type}, {dtype}"
    epoch = f"{pairs:,} pairs, {trainer.plan.steps_per_epoch:,} steps per epoch"
    say(f"{trainer.directory}: {start} step {step:,} of {steps:,}; {parameters:,} parameters; {epoch}; {device}")
    if trainer.state.dtype not in ("", dtype):
        reason = "training.precision=auto depends on the hardware, and the two dtypes round differently"
        warn(f"this run has computed in {trainer.state.dtype} so far and continues in {dtype}: {reason}")
    trainer.state.dtype = dtype
    if expect.parameters and expect.parameters != parameters:
        warn(f"the recipe expects {expect.parameters:,} parameters, but this model has {parameters:,}")
    if expect.pairs and not expect.pairs[0] <= pairs <= expect.pairs[1]:
        expected = "{:,} to {:,}".format(*expect.pairs)
        warn(f"the recipe expects {expected} training pairs, but this corpus has {pairs:,}")
    if not trainer.dev:
        warn(f"{trainer.corpus.directory} has no development set: nothing will be validated")
    elif missing := len(trainer.dev.lines) - len(trainer.dev.pairs):
        warn(f"dev perplexity leaves out {counted(missing, 'pair')} longer than model.max_length")


def count_skipped(trainer: Trainer, unread: list[tuple[int, ToHost]], keep: int) -> None:
    """Read and remove all norms but the last `keep`. Count the steps whose gradient was not finite.

    Such steps changed no weight. After too many of them, call `give_up`. If `keep` is 0, wait for the device, which may
    still be computing the last norm.
    """
    state = trainer.state
    while len(unread) > keep:
        step, norm = unread.pop(0)
        if norm.get()["norm"].isfinite():
            state.skipped_in_a_row = 0
            continue
        state.skipped += 1
        state.skipped_in_a_row += 1
        if trainer.accelerator.is_main_process:
            warn(f"step {step}: the gradient is not finite; the step was skipped")
        if state.skipped_in_a_row > MAX_SKIPPED or state.skipped > max(MAX_SKIPPED, step // 100):
            on_main(trainer.accelerator, give_up, trainer, step)


def give_up(trainer: Trainer, step: int) -> None:
    """Write the sentences of a step to crash.json, and raise DivergedError."""
    crash = trainer.directory / "crash.json"
    record = {"step": step, "sentences": [m.tolist() for m in trainer.plan.micro_batches_of(step - 1)]}
    artefact.replace_file(crash, artefact.json_bytes(record))
    skipped = f"{trainer.state.skipped} steps had no finite gradient; the last was step {step}"
    has_checkpoint = checkpoints.steps_in(trainer.directory)
    kept = " in another --run; the last good checkpoint is kept" if has_checkpoint else ""
    advice = f"Lower training.rate_factor or set training.precision=fp32{kept}"
    raise DivergedError(f"{skipped} (its sentences are in {crash}). {advice}")


def log_steps(trainer: Trainer, window: list[tuple[Tensor, Tensor, int]], seconds: float, bar: Progress) -> str:
    """Write the metrics of the steps since the last record. Return a summary for the progress line.

    Only the main process writes. The others return "".
    """
    settings, state, device = trainer.settings, trainer.state, trainer.accelerator.device
    nll, norm, tgt_tokens = zip(*window, strict=True)
    own = torch.tensor(sum(torch.stack(nll).tolist()), dtype=torch.float64, device=device)
    total = float(trainer.accelerator.reduce(own, "sum"))
    if not trainer.metrics:
        return ""
    record = {
        "step": state.step,
        "epoch": round(state.step / trainer.plan.steps_per_epoch, 4),
        "rate": noam_rate(state.step, settings.model.d_model, settings.training),
        "nll": total / max(1, sum(tgt_tokens)),
        "gradient_norm": float(norm[-1]),
        "tgt_tokens_per_step": sum(tgt_tokens) / len(window),
        "tgt_tokens_per_second": sum(tgt_tokens) / seconds,
        "peak_memory_mb": peak_memory_mb(),
    }
    trainer.metrics.write({**record, "seconds": state.seconds, "skipped": state.skipped})
    trainer.accelerator.log(record, step=state.step)
    text = f"nll {record['nll']:.3f}  {record['tgt_tokens_per_second']:,.0f} tok/s"
    if bar.plain:
        left = duration((settings.training.steps - state.step) * seconds / len(window))
        most = "at most " if settings.training.patience else ""
        say(f"step {state.step:,}/{settings.training.steps:,}  {text}  {most}{left} left")
        bar.last = time.monotonic()
    return text


def _validate(trainer: Trainer, dev: DevSet, stop: Stop) -> float:
    """Score the development set and update the best step. Return the seconds that this took.

    Each process scores a share. A signal to any process interrupts the validation on all of them. When the run resumes,
    it repeats the validation.
    """
    state, start, accelerator = trainer.state, time.monotonic(), trainer.accelerator
    rank, world = accelerator.process_index, accelerator.num_processes
    try:
        scores = validate(trainer.transformer, trainer.dtype, dev, trainer.settings, rank, world, stop)
    except Interrupted:
        state.unvalidated = True
        return time.monotonic() - start
    state.unvalidated = False
    on_main(accelerator, _report, trainer, scores, time.monotonic() - start)
    nll = scores["dev_nll"]
    before = state.best_nll if state.improved_nll is None else state.improved_nll  # older checkpoints lack improved_nll
    state.not_better += 1
    if before is None or nll < before * (1 - MIN_IMPROVEMENT):
        state.improved_nll, state.not_better = nll, 0
    if state.best_nll is None or nll < state.best_nll:
        state.best_step, state.best_nll = state.step, nll
    return time.monotonic() - start


def _report(trainer: Trainer, scores: dict[str, Any], seconds: float) -> None:
    step = trainer.state.step
    trainer.metrics.write({"step": step, **scores, "seconds": trainer.state.seconds})
    numbers = {name: score for name, score in scores.items() if isinstance(score, float)}
    trainer.accelerator.log(numbers, step=step)
    text = "  ".join(f"{name.replace('_', ' ').replace('bleu', 'BLEU')} {score:.3f}" for name, score in numbers.items())
    say(f"step {step:,}  {text}  ({duration(seconds)})")
    if not trainer.warned and (worse := worse_than_expected(trainer.settings.expect, step, scores)):
        trainer.warned = True
        warn(f"step {step:,}: {worse}. Find the cause with nmt doctor {trainer.directory}")


def _save_model(trainer: Trainer) -> None:
    """Write the last weights as the model of the run, unless the run already has an up-to-date model.

    A model is up to date if it was made from the same corpus and its last checkpoint is that of this step or, if
    averaging.best is set, the best one.
    """
    directory, step = trainer.directory / "model", trainer.state.step
    final_steps = [step, *([trainer.state.best_step] if trainer.settings.averaging.best else [])]
    with contextlib.suppress(NmtError, IndexError):
        present = artefact.verify(directory, "model")
        if present["steps"][-1] in final_steps and present.get("corpus") == trainer.corpus.identity:
            return
    manifest = {"steps": [step], **trainer.manifest}
    weights = trainer.transformer.state_dict()
    save_model(directory, weights, trainer.settings, trainer.corpus.tokenizer_file, manifest)
    say(f"{directory} contains the last weights. Next, run nmt average-checkpoints {trainer.directory}")
