"""The average-checkpoints command: the mean of the last checkpoints' weights (section 6.1)."""

from pathlib import Path

import torch
from torch import Tensor

from nmt_cli import artefact, recipe
from nmt_cli.errors import DataError, MissingError, OutputError
from nmt_cli.training import checkpoints
from nmt_cli.transformer.weights import TOKENIZER, read_tensors, save_model


def mean_of(paths: list[Path]) -> dict[str, Tensor]:
    """Return the mean of weight files, of each of which one tensor is in memory at a time."""
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for path in sorted(paths):  # so that the order they are named in does not matter
        for name, tensor in read_tensors(path):
            if dtypes.setdefault(name, tensor.dtype) != tensor.dtype or sums.get(name, tensor).shape != tensor.shape:
                raise DataError(f"{path}: tensor {name} is not like that of the other checkpoints of the run")
            sums[name] = sums[name].add_(tensor) if name in sums else tensor.double()
    return {name: (sums.pop(name) / len(paths)).to(dtype) for name, dtype in dtypes.items()}


def average(run: Path, last: int | None, out: Path | None) -> tuple[Path, list[int]]:
    """Average a run's `last` checkpoints into `out`, by default `run/model`; return that directory and the steps."""
    if not (run / "recipe.yaml").exists():
        raise MissingError(f"no run in {run}. Train one: nmt train RECIPE")
    if out is not None and out.exists() and out.resolve() != (run / "model").resolve():
        raise OutputError(f"{out} exists already. Choose another --out")
    settings = recipe.load_stored(run / "recipe.yaml")
    last = last or settings.averaging.last
    steps = checkpoints.regular(checkpoints.steps_in(run), settings.training.checkpoint_every)
    if len(steps) < last:
        raise DataError(f"{run} has {len(steps)} checkpoints ({', '.join(map(str, steps)) or 'none'}), not {last}")
    steps = steps[-last:]
    hashes = [checkpoints.check(run, step)["files"][checkpoints.MODEL]["sha256"] for step in steps]
    tensors = mean_of([checkpoints.directory_of(run, step) / checkpoints.MODEL for step in steps])
    corpus = artefact.read_json(run / "corpus.json").get("corpus")
    manifest = {"steps": steps, "checkpoints": hashes, "corpus": corpus}
    save_model(out or run / "model", tensors, settings, run / TOKENIZER, manifest)
    return out or run / "model", steps
