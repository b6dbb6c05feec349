"""Write and read checkpoints. Each is a directory, which is verified before training resumes from it."""

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli.corpus import tokenizer, words
from nmt_cli.corpus.store import Corpus
from nmt_cli.recipe import loading, schema
from nmt_cli.recipe.section import MAY_CHANGE
from nmt_cli.storage import artefact, records
from nmt_cli.system.console import warn
from nmt_cli.system.errors import DataError, DivergedError, NmtError, StorageError
from nmt_cli.transformer.directory import TOKENIZER, parameter_count
from nmt_cli.transformer.hardware import ToHost
from nmt_cli.transformer.weights import load_tensors, save_tensors

MAX_FAILED_SAVES = 3  # training stops when this many checkpoints in a row cannot be written
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


@dataclasses.dataclass
class State:
    """The progress of a run. A checkpoint contains this state, the weights and Adam's moments."""

    step: int = 0
    seconds: float = 0.0  # time spent in training; the time between runs of the command does not count
    skipped: int = 0  # number of steps without an update, because the gradient was not finite
    skipped_in_a_row: int = 0
    best_step: int = 0
    best_nll: float | None = None
    unvalidated: bool = False  # a signal interrupted the validation of this step
    # For training.patience: the dev loss after the last improvement by more than metrics_log.MIN_IMPROVEMENT, and the
    # number of validations since then.
    improved_nll: float | None = None
    not_better: int = 0
    metrics_bytes: int = 0  # size of metrics.jsonl at this step
    dtype: str = ""  # of the latest computations; "" before the first


def directory_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:07}"


def steps_in(run: Path) -> list[int]:
    """Return the steps that have a checkpoint, in order. First finish interrupted replacements of checkpoints."""
    directory = run / "checkpoints"
    for old in directory.glob(".old-step-*"):
        artefact.restore(directory / old.name.removeprefix(".old-"))
    entries = directory.glob("step-*")
    return sorted(int(e.name[5:]) for e in entries if e.name[5:].isdecimal() and e.is_dir())


def regular(steps: list[int], every: int) -> list[int]:
    """Return the newest step and all multiples of `every`.

    Other checkpoints were saved because training stopped, or because the model was the best so far.
    """
    return [step for step in steps if step % every == 0 or step == steps[-1]]


def save(run: Path, state: State, model: dict[str, Tensor], moments: dict[str, Tensor], fields: dict[str, Any]) -> None:
    """Write the checkpoint of a step, with `fields` in its manifest. Replace an earlier checkpoint of this step.

    Raise DivergedError if a weight is not finite.
    """
    for name, tensor in model.items():
        if not torch.isfinite(tensor).all():
            raise DivergedError(f"weight {name} is not finite at step {state.step}; the last good checkpoint is kept")
    manifest = {"step": state.step, **fields}
    target = directory_of(run, state.step)
    with artefact.staged(target, "checkpoint", manifest, overwrite=True, own_name=True) as stage:
        save_tensors(stage / MODEL, model)
        save_tensors(stage / OPTIMIZER, moments)
        artefact.write_file(stage / STATE, artefact.json_bytes(dataclasses.asdict(state)))


def prune(run: Path, state: State, every: int, keep: int) -> None:
    """Remove old checkpoints. If one cannot be removed, print a warning.

    Keep the newest `keep` regular checkpoints, the newest two of any kind, the best one, and the one just written.
    """
    steps = steps_in(run)
    for step in sorted(set(steps) - {*regular(steps, every)[-keep:], *steps[-2:], state.best_step, state.step}):
        try:
            artefact.remove_tree(directory_of(run, step))
        except OSError as error:
            warn(f"cannot remove the old checkpoint of step {step}: {error.strerror}")


class Writer:
    """Writes checkpoints one at a time, in a thread, while training continues."""

    def __init__(self, run: Path, training: schema.Training, metrics: Any, fields: dict[str, Any]) -> None:
        self.run, self.training, self.metrics, self.fields = run, training, metrics, fields
        self.failed = 0
        self.pool = ThreadPoolExecutor(1)
        self._newest = Future[None]()
        self._newest.set_result(None)

    def begin(self, state: State, model: dict[str, Tensor], moments: dict[str, Tensor], is_last: bool) -> None:
        """Copy the tensors of a checkpoint and start to write it. If `is_last` is true, wait until it is written.

        First wait until the previous checkpoint is written, and raise its error, if any.
        """
        self.wait()
        state = dataclasses.replace(state, metrics_bytes=self.metrics.size)
        self._newest = self.pool.submit(self._write, state, ToHost(model), ToHost(moments), is_last)
        if is_last:
            self.wait()

    def wait(self) -> None:
        """Wait until the current checkpoint is written. Raise the error of `_write`, if any."""
        self._newest.result()

    def _write(self, state: State, model: ToHost, moments: ToHost, is_last: bool) -> None:
        """Write a checkpoint and remove old ones.

        If the checkpoint cannot be written, print a warning. But raise the error if this is the last checkpoint or the
        MAX_FAILED_SAVES-th failure in a row. If a weight is not finite, always raise DivergedError.
        """
        try:
            self.metrics.commit()
            save(self.run, state, model.get(), moments.get(), self.fields)
        except (OSError, StorageError) as error:
            self.failed += 1
            if is_last or self.failed >= MAX_FAILED_SAVES:
                raise
            warn(f"cannot write the checkpoint of step {state.step:,}: {error}. Training continues")
        else:
            self.failed = 0
            prune(self.run, state, self.training.checkpoint_every, self.training.keep_checkpoints)


def check(run: Path, step: int) -> dict[str, Any]:
    """Check every file of a checkpoint against its hash in the manifest. Return the manifest."""
    return artefact.verify(directory_of(run, step), "checkpoint")


def newest(run: Path, corpus: str) -> int:
    """Return the step of the newest usable checkpoint, or 0 if the run has no checkpoints.

    A usable checkpoint is undamaged and belongs to the corpus with the identity `corpus`. Raise DataError if there are
    only unusable ones.
    """
    steps = steps_in(run)
    for step in reversed(steps):
        try:
            manifest = check(run, step)
            if (manifest["step"], manifest.get("corpus"), read_state(run, step).step) != (step, corpus, step):
                raise DataError("it belongs to another step or corpus")
            return step
        except (NmtError, OSError) as error:
            warn(f"checkpoint {directory_of(run, step).name} is not usable ({error}); trying the previous one")
    if steps:  # starting from step 0 would overwrite the checkpoints
        raise DataError(f"all {len(steps)} checkpoints of {run} are unusable. To start again, move the directory away")
    return 0


def read_state(run: Path, step: int) -> State:
    """Return the state of a checkpoint. Ignore unknown fields, because another version of nmt may have written them."""
    file = directory_of(run, step) / STATE
    return records.from_json(State, artefact.read_json(file), file)


def load(run: Path, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights and Adam's state of a checkpoint."""
    return load_tensors(directory_of(run, step) / MODEL), load_tensors(directory_of(run, step) / OPTIMIZER)


def optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return Adam's state as tensors with names such as "output_bias.exp_avg". Before the first step, return {}."""
    parameters = model.named_parameters()
    return {f"{name}.{key}": value for name, each in parameters for key, value in optimizer.state[each].items()}


def blank_moments(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return zeros with the names and shapes that `optimizer_tensors` has after the first step."""
    blank = dict[str, Tensor]()
    for name, each in model.named_parameters():
        sizes = {"step": [], "exp_avg": each.shape, "exp_avg_sq": each.shape}
        blank |= {f"{name}.{key}": torch.zeros(size) for key, size in sizes.items()}
    return blank


def check_moments(model: torch.nn.Module, moments: dict[str, Tensor]) -> None:
    """Raise DataError if a tensor of Adam's state is missing or has the wrong shape. Accept {}, the initial state."""
    for name, blank in blank_moments(model).items() if moments else ():
        moment = moments.get(name)
        if moment is None or moment.shape != blank.shape:
            raise DataError(f"{OPTIMIZER} does not fit {MODEL}: {name}. Remove this checkpoint")


def restore_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    for name, each in model.named_parameters() if moments else ():
        keys = ("step", "exp_avg", "exp_avg_sq")
        optimizer.state[each] = {key: moments[f"{name}.{key}"].to(each.device) for key in keys}


def disk_megabytes(training: schema.Training, parameters: int, present: int = 0) -> int:
    """Return the disk space, in megabytes, that a run with `present` checkpoints still needs."""
    # A checkpoint takes 12 bytes per parameter. Besides `keep_checkpoints` regular ones, there may be three: the best,
    # the newest and the one being written. The averaged model takes a third of a checkpoint, here rounded up to 0.4.
    return round(max(1.4, training.keep_checkpoints + 3.4 - present) * 12 * parameters / 1e6)


def open_run(settings: schema.Recipe, corpus: Corpus, run: Path) -> int:
    """Create a run directory, or check that it belongs to this recipe and corpus.

    Return the step of its newest usable checkpoint, or 0 if it has no checkpoints. Raise DataError if the directory
    belongs to something else, and StorageError if the disk has too little free space.
    """
    stored = run / "recipe.yaml"
    if artefact.present(run):
        raise DataError(f"{run} is a model or a corpus, not a run. Pass another --run")
    settings = loading.with_languages(settings, corpus.manifest)
    source, size = (int(corpus.manifest[f"{side}vocabulary_size"]) for side in ("source_", ""))
    if (settings.model.source_vocabulary or size) != source:
        found = f"{corpus.directory} has a source vocabulary of {source} tokens"
        raise DataError(f"{found}: set model.source_vocabulary={source}")
    if steps_in(run) or (run / "model").exists():  # before the first checkpoint, every setting may change
        if not stored.exists():
            raise DataError(
                f"{stored} is missing, but its run has a model or checkpoints. Restore it, or pass another --run"
            )
        changes = loading.differences(loading.load_stored(stored).model_dump(), settings.model_dump())
        fixed = [line for line in changes if not loading.has_policy(line, MAY_CHANGE)]
        if artefact.read_json(run / "corpus.json").get("corpus") != corpus.identity:
            fixed.append(f"{corpus.directory} has other data or another tokenizer")
        if fixed:
            raise DataError(
                f"{run} was started with other settings: {'; '.join(fixed)}. Restore them, or pass another --run"
            )
    else:
        tokenizer.target_file(run / TOKENIZER).unlink(missing_ok=True)
        tokenizer.copy(corpus.tokenizer_file, run / TOKENIZER)
        artefact.replace_file(run / "corpus.json", artefact.json_bytes({"corpus": corpus.identity}))
    words.copy(corpus.tokenizer_file, run / TOKENIZER)  # word counts, even into a run that was started without them
    artefact.replace_file(stored, loading.to_yaml(settings))  # written last: this file makes the directory a run
    need = disk_megabytes(settings.training, parameter_count(settings.model, size), len(steps_in(run)))
    free = artefact.free_megabytes(run)
    if free < need:
        raise StorageError(f"{run} needs {need} MB for checkpoints and has {free} MB free. Free some space")
    return newest(run, corpus.identity)
