"""Training state on disk: one directory per step, committed by one rename, verified before it is trusted."""

import dataclasses
import re
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli.corpus import tokenizer
from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe import loading, schema
from nmt_cli.storage import artefact, manifests
from nmt_cli.system.console import warn
from nmt_cli.system.errors import DataError, DivergedError, NmtError, StorageError
from nmt_cli.transformer.directory import TOKENIZER, parameter_count
from nmt_cli.transformer.hardware import ToHost
from nmt_cli.transformer.weights import load_tensors, save_tensors

MAX_FAILED_SAVES = 3  # in a row
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
# Settings that may change between the parts of a run: they do not say what is learnt. Texts are compared by hash.
FREE_SETTINGS = re.compile(
    r"(training\.(steps|max_hours|log_every|validate_every|validate_bleu|checkpoint_every|keep_checkpoints"
    r"|patience|memory_tokens|micro_batches|cuda_graphs|processes)|corpus\.(((train|dev|test|mix|general)_)?(src|tgt)|tokenizer\.file)"
    r"|name|(averaging|decoding|expect)\.\w+): "
)


@dataclasses.dataclass
class State:
    """Where a run is, beside its weights and Adam's moments."""

    step: int = 0
    seconds: float = 0.0  # of training, interruptions left out
    skipped: int = 0  # steps whose gradient was not finite
    skipped_in_a_row: int = 0
    best_step: int = 0
    best_nll: float | None = None
    unvalidated: bool = False  # a signal ended the validation of this step
    not_better: int = 0  # validations since one that was better by metrics.MIN_IMPROVEMENT
    metrics_bytes: int = 0  # of metrics.jsonl at this step
    dtype: str = ""  # of the arithmetic so far


def directory_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:07}"


def steps_in(run: Path) -> list[int]:
    place = run / "checkpoints"
    for aside in place.glob(".old-step-*"):  # of a checkpoint that was being replaced
        artefact.restore(place / aside.name.removeprefix(".old-"))
    entries = place.glob("step-*")
    return sorted(int(e.name[5:]) for e in entries if e.name[5:].isdecimal() and e.is_dir())


def regular(steps: list[int], every: int) -> list[int]:
    """Return the steps to average: the multiples of `every` and the newest, not those of interruptions."""
    return [step for step in steps if step % every == 0 or step == steps[-1]]


def save(run: Path, state: State, model: dict[str, Tensor], moments: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Commit the checkpoint of a step, replacing a damaged one; DivergedError where a weight is not finite."""
    for name, tensor in model.items():
        if not torch.isfinite(tensor).all():
            raise DivergedError(f"weight {name} is not finite at step {state.step}; the last good checkpoint is kept")
    manifest = {"step": state.step, **about}
    target = directory_of(run, state.step)
    with artefact.staged(target, "checkpoint", manifest, overwrite=True, own_name=True) as stage:
        save_tensors(stage / MODEL, model)
        save_tensors(stage / OPTIMIZER, moments)
        artefact.write_file(stage / STATE, artefact.json_bytes(dataclasses.asdict(state)))


def prune(run: Path, state: State, every: int, keep: int) -> None:
    """Remove all but the newest `keep` regular checkpoints, the newest two, the best, and the one just written."""
    steps = steps_in(run)
    for step in sorted(set(steps) - {*regular(steps, every)[-keep:], *steps[-2:], state.best_step, state.step}):
        try:
            artefact.remove_tree(directory_of(run, step))
        except OSError as error:
            warn(f"cannot remove the old checkpoint of step {step}: {error.strerror}")


class Writer:
    """Writes the checkpoints of a run in a thread, one at a time, while training goes on."""

    def __init__(self, run: Path, training: schema.Training, metrics: Any, about: dict[str, Any]) -> None:
        self.run, self.training, self.metrics, self.about = run, training, metrics, about
        self.failed, self.pool, self._newest = 0, ThreadPoolExecutor(1), Future[None]()
        self._newest.set_result(None)

    def begin(self, state: State, model: dict[str, Tensor], moments: dict[str, Tensor], is_last: bool) -> None:
        """Wait for the checkpoint before, raising what ended it, copy all of this one and begin to write it."""
        self._newest.result()
        state = dataclasses.replace(state, metrics_bytes=self.metrics.size)
        self._newest = self.pool.submit(self._write, state, ToHost(model), ToHost(moments), is_last)
        if is_last:
            self._newest.result()

    def _write(self, state: State, model: ToHost, moments: ToHost, is_last: bool) -> None:
        """Commit a checkpoint, then remove those no longer needed. A full disk ends a run only at its third failure."""
        try:
            self.metrics.commit()
            save(self.run, state, model.get(), moments.get(), self.about)
        except (OSError, StorageError) as error:
            self.failed += 1
            if is_last or self.failed >= MAX_FAILED_SAVES:
                raise
            warn(f"NO CHECKPOINT of step {state.step:,}: {error}. Training goes on")
        else:
            self.failed = 0
            prune(self.run, state, self.training.checkpoint_every, self.training.keep_checkpoints)


def check(run: Path, step: int) -> dict[str, Any]:
    """Return the manifest of a checkpoint after comparing every byte of it with its hashes."""
    return artefact.verify(directory_of(run, step), "checkpoint")


def newest(run: Path, corpus: str) -> int:
    """Return the step of the newest checkpoint that verifies and is of this corpus; 0 where there is none at all."""
    steps = steps_in(run)
    for step in reversed(steps):
        try:
            manifest = check(run, step)
            if (manifest["step"], manifest.get("corpus"), read_state(run, step).step) != (step, corpus, step):
                raise DataError("it is of another step or corpus")
            return step
        except (NmtError, OSError) as error:
            warn(f"checkpoint {directory_of(run, step).name} is not usable ({error}); trying the one before it")
    if steps:  # never start afresh over them
        raise DataError(f"all {len(steps)} checkpoints of {run} are damaged. Move the directory away to start afresh")
    return 0


def read_state(run: Path, step: int) -> State:
    """Return the state of a checkpoint; what another version of nmt wrote beside it is ignored."""
    file = directory_of(run, step) / STATE
    return manifests.built(State, artefact.read_json(file), file)


def load(run: Path, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return load_tensors(directory_of(run, step) / MODEL), load_tensors(directory_of(run, step) / OPTIMIZER)


def optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return Adam's state as tensors named after the parameters; {} before its first step."""
    parameters = model.named_parameters()
    return {f"{name}.{key}": value for name, each in parameters for key, value in optimizer.state[each].items()}


def blank_moments(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return tensors of the shapes that `optimizer_tensors` gives after a step."""
    blank = dict[str, Tensor]()
    for name, each in model.named_parameters():
        sizes = {"step": [], "exp_avg": each.shape, "exp_avg_sq": each.shape}
        blank |= {f"{name}.{key}": torch.zeros(size) for key, size in sizes.items()}
    return blank


def check_moments(model: torch.nn.Module, moments: dict[str, Tensor]) -> None:
    """Raise a DataError where a tensor of Adam's state is missing or has another shape than its parameter."""
    for name, blank in blank_moments(model).items() if moments else ():
        moment = moments.get(name)
        if moment is None or moment.shape != blank.shape:
            raise DataError(f"{OPTIMIZER} does not fit {MODEL}: {name}. Remove this checkpoint")


def restore_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    for name, each in model.named_parameters() if moments else ():
        keys = ("step", "exp_avg", "exp_avg_sq")
        optimizer.state[each] = {key: moments[f"{name}.{key}"].to(each.device) for key in keys}


def disk_megabytes(training: schema.Training, parameters: int, present: int = 0) -> int:
    """Return the disk space a run still needs when `present` checkpoints are there already."""
    # Those kept, the best, the newest, and the one being written; a third of one is the model at the end.
    return round(max(1.4, training.keep_checkpoints + 3.4 - present) * 12 * parameters / 1e6)


def open_run(settings: schema.Recipe, data: Path, run: Path) -> int:
    """Compare a run with its recipe and corpus, or create it; return the step of its newest good checkpoint, else 0."""
    corpus, stored = open_corpus(data, content=True), run / "recipe.yaml"
    if artefact.present(run):
        raise DataError(f"{run} is a model or a corpus, not a run. Name another --run")
    settings = loading.with_languages(settings, corpus.manifest)
    source, size = (int(corpus.manifest[f"{side}vocabulary_size"]) for side in ("source_", ""))
    if (settings.model.source_vocabulary or size) != source:
        raise DataError(f"{corpus.directory} has {source} source tokens: set model.source_vocabulary={source}")
    if steps_in(run) or (run / "model").exists():  # else nothing was learnt, and everything may still change
        if not stored.exists():
            raise DataError(f"{stored} is missing beside a model or checkpoints. Put it back, or use another --run")
        changes = loading.differences(loading.load_stored(stored).model_dump(), settings.model_dump())
        fixed = [line for line in changes if not FREE_SETTINGS.match(line)]
        if artefact.read_json(run / "corpus.json").get("corpus") != corpus.identity:
            fixed.append(f"{corpus.directory} has other data or another tokenizer")
        if fixed:
            raise DataError(f"{run} was begun differently: {'; '.join(fixed)}. Put it back, or use another --run")
    else:
        tokenizer.target_file(run / TOKENIZER).unlink(missing_ok=True)
        tokenizer.copy(corpus.tokenizer_file, run / TOKENIZER)
        artefact.replace_file(run / "corpus.json", artefact.json_bytes({"corpus": corpus.identity}))
    artefact.replace_file(stored, loading.to_yaml(settings))  # last: it makes the directory a run
    parameters = parameter_count(settings.model, size)
    need, free = disk_megabytes(settings.training, parameters, len(steps_in(run))), artefact.free_megabytes(run)
    if free < need:
        raise StorageError(f"{run} needs {need} MB for checkpoints and has {free} MB free. Free some space")
    return newest(run, corpus.identity)
