"""The average-checkpoints command: the mean of the last checkpoints' weights (section 6.1)."""

from pathlib import Path

import torch
from torch import Tensor

from nmt_cli import artefact, recipe
from nmt_cli.errors import DataError, MissingError, OutputError
from nmt_cli.training import checkpoints
from nmt_cli.transformer.weights import TOKENIZER, read_tensors, save_model


def mean_of(paths: list[Path]) -> dict[str, Tensor]:
    """Return the mean of several weight files. The float64 sums, as large as two models, are all that is in memory.

    Raises:
        DataError: they do not have the same tensors, or one is not finite.
    """
    sums: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for path in sorted(paths):  # so that the order they are named in does not matter
        names = set()
        for name, tensor in read_tensors(path):
            if not torch.isfinite(tensor).all():
                raise DataError(f"{path}: tensor {name} is not finite")
            total = sums.get(name)
            if total is None and path == min(paths):
                sums[name], kinds[name] = tensor.double(), tensor.dtype
            elif total is None or (total.shape, kinds[name]) != (tensor.shape, tensor.dtype):
                raise DataError(f"{path}: tensor {name} is not like that of {min(paths)}. They are of different runs")
            else:
                total += tensor
            names.add(name)
        if names != set(sums):
            raise DataError(f"{path}: tensor {min(set(sums) - names)} is missing. They are of different runs")
    return {name: (sums.pop(name) / len(paths)).to(kind) for name, kind in kinds.items()}


def average(run: Path, last: int | None, out: Path | None) -> tuple[Path, list[int]]:
    """Average a run's newest checkpoints into a model directory; return it and the steps averaged.

    Args:
        run: the run's directory.
        last: how many; None for the recipe's.
        out: the model directory, which must not exist; None for `run/model`, which is replaced.

    Raises:
        DataError: there are fewer checkpoints than asked for, or one is damaged.
        MissingError: there is no run.
        OutputError: the output exists.
    """
    if not (run / "recipe.yaml").exists():
        raise MissingError(f"no run in {run}. Train one: nmt train RECIPE")
    target = out or run / "model"
    if out is not None and out.exists() and out.resolve() != (run / "model").resolve():
        raise OutputError(f"{out} exists already. Choose another --out")
    settings = recipe.load_stored(run / "recipe.yaml")
    last = last or settings.averaging.last
    steps = checkpoints.regular(checkpoints.steps_in(run), settings.training.checkpoint_every)
    if len(steps) < last:
        raise DataError(f"{run} has {len(steps)} checkpoints ({', '.join(map(str, steps)) or 'none'}), not {last}")
    chosen = steps[-last:]
    hashes = [checkpoints.check(run, step)["files"][checkpoints.MODEL]["sha256"] for step in chosen]
    tensors = mean_of([checkpoints.directory_of(run, step) / checkpoints.MODEL for step in chosen])
    about = {"steps": chosen, "checkpoints": hashes, "corpus": artefact.read_json(run / "corpus.json").get("corpus")}
    save_model(target, tensors, settings, run / TOKENIZER, about)
    return target, chosen
