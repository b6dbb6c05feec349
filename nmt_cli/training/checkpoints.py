"""Training state on disk: one directory per step, committed by one rename, verified before it is trusted.

A checkpoint holds everything of its step: `model.safetensors`, `optimizer.safetensors` and `state.json`. There is no
pickle, no pointer to the latest one (it is the highest step that verifies), and no random state: dropout and data
order are functions of the seed and the update.
"""

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt_cli import artefact
from nmt_cli.console import warn
from nmt_cli.errors import DataError, DivergedError, NmtError
from nmt_cli.transformer.weights import load_tensors, save_tensors

KIND = "checkpoint"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_NAME = re.compile(r"step-(\d{7,})")


@dataclass
class State:
    """Where a run is, beside its weights and Adam's moments.

    Attributes:
        step: updates done.
        seconds: of training, all parts of the run together.
        skipped: updates whose gradient was not finite.
        skipped_in_a_row: the last of them.
        dev_nll: of the last validation; None before the first.
        dev_bleu: likewise; None where the recipe asks for none.
        best_step: with the best validation; 0 before the first.
        best_nll: there.
        best_bleu: there.
        not_better: validations since then.
        metrics_bytes: of metrics.jsonl that belong to the run so far.
    """

    step: int = 0
    seconds: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0
    dev_nll: float | None = None
    dev_bleu: float | None = None
    best_step: int = 0
    best_nll: float | None = None
    best_bleu: float | None = None
    not_better: int = 0
    metrics_bytes: int = 0


def read_state(run: Path, step: int) -> State:
    """Return the state of a checkpoint.

    Raises:
        DataError: it is not the state of this step.
    """
    path = directory_of(run, step) / STATE
    values = artefact.read_json(path)
    known = {f.name for f in dataclasses.fields(State)}
    numbers = all(isinstance(v, int | float | None) and not isinstance(v, bool) for v in values.values())
    if set(values) != known or not numbers or values["step"] != step:
        raise DataError(f"{path} is not the state of step {step}")
    return State(**values)


def directory_of(run: Path, step: int) -> Path:
    """Return where the checkpoint of a step lies."""
    return run / "checkpoints" / f"step-{step:07}"


def steps_in(run: Path) -> list[int]:
    """Return the steps that have a checkpoint directory, lowest first; foreign entries are ignored."""
    entries = (run / "checkpoints").glob("step-*")
    return sorted(int(m[1]) for e in entries if (m := _NAME.fullmatch(e.name)) and e.is_dir() and not e.is_symlink())


def regular(steps: list[int], every: int) -> list[int]:
    """Return the steps that averaging takes from: every `every` updates, and the newest one.

    What an interruption or a best validation left between them is not the recipe's, and would change the average.
    """
    return [step for step in steps if step % every == 0 or step == steps[-1]]


def optimizer_tensors(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return Adam's state as tensors named after the parameters; {} before its first step."""
    return {
        f"{name}.{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def restore_optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give Adam back its state.

    Raises:
        DataError: a tensor is missing or does not fit.
    """
    for name, parameter in model.named_parameters() if tensors else ():
        state = {key: tensors.get(f"{name}.{key}") for key in ("step", "exp_avg", "exp_avg_sq")}
        if any(t is None or (key != "step" and t.shape != parameter.shape) for key, t in state.items()):
            raise DataError(f"the optimiser's state of {name} is missing from the checkpoint or does not fit")
        optimizer.state[parameter] = {key: t.to(parameter.device) for key, t in state.items() if t is not None}


def save(
    run: Path, state: State, model: dict[str, Tensor], optimizer: dict[str, Tensor], about: dict[str, Any]
) -> None:
    """Commit the checkpoint of a step. One that is there already was found damaged, or training would be past it.

    Raises:
        DivergedError: a weight is not finite; such a state is never written.
        OSError: it cannot be written; older checkpoints are untouched.
    """
    for name, tensor in model.items():
        if not torch.isfinite(tensor).all():
            raise DivergedError(f"weight {name} is not finite at step {state.step}; the last good checkpoint is kept")
    target = directory_of(run, state.step)
    with artefact.staged(target, KIND, {"step": state.step, **about}, overwrite=True) as stage:
        save_tensors(stage / MODEL, model)
        save_tensors(stage / OPTIMIZER, optimizer)
        artefact.write_file(stage / STATE, artefact.json_bytes(dataclasses.asdict(state)))


def prune(run: Path, state: State, every: int, keep: int) -> None:
    """Remove all but the newest `keep` regular checkpoints, the newest two, the best, and the one just written."""
    steps = steps_in(run)
    kept = {*regular(steps, every)[-keep:], *steps[-2:], state.best_step, state.step}
    for step in steps:
        try:
            if step not in kept:
                artefact.remove_tree(directory_of(run, step))
        except OSError as error:
            warn(f"cannot remove old checkpoint {directory_of(run, step)}: {error.strerror}")


def check(run: Path, step: int) -> dict[str, Any]:
    """Return the manifest of a checkpoint after comparing every byte of it with its hashes.

    Raises:
        NmtError: it is damaged, or another step's.
    """
    path = directory_of(run, step)
    manifest = artefact.verify(path, KIND)
    if set(manifest["files"]) != {MODEL, OPTIMIZER, STATE} or manifest.get("step") != step:
        raise DataError(f"{path / artefact.MANIFEST} is not that of step {step}")
    return manifest


def newest(run: Path, corpus: str) -> int:
    """Return the step of the newest checkpoint that verifies; 0 where there is none at all.

    Args:
        run: the run's directory.
        corpus: the identity of the corpus it must have been trained on.

    Raises:
        DataError: there are checkpoints and all are damaged. Training never starts afresh over them.
    """
    steps = steps_in(run)
    for step in reversed(steps):
        try:
            if check(run, step).get("corpus") != corpus:
                raise DataError("it was trained on another corpus")
            read_state(run, step)
            return step
        except (NmtError, OSError) as error:
            warn(f"checkpoint {directory_of(run, step).name} is not usable ({error}); trying the one before it")
    if steps:
        raise DataError(f"all {len(steps)} checkpoints of {run} are damaged. Move the directory away to start afresh")
    return 0


def load(run: Path, step: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the model's and the optimiser's tensors of a verified checkpoint."""
    path = directory_of(run, step)
    return load_tensors(path / MODEL), load_tensors(path / OPTIMIZER)
