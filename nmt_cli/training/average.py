"""The average-checkpoints command: the mean of the last checkpoints' weights (section 6.1)."""

from pathlib import Path

from torch import Tensor

from nmt_cli.errors import DataError, NmtError, OutputError
from nmt_cli.training import checkpoints
from nmt_cli.training.run import stored_recipe
from nmt_cli.transformer.weights import TOKENIZER, read_tensors, save_model


def mean_of(paths: list[Path]) -> dict[str, Tensor]:
    """Return the mean of weight files, of each of which one tensor is in memory at a time."""
    sums: dict[str, Tensor] = {}
    for path in sorted(paths):  # so that the order they are named in does not matter
        for name, tensor in read_tensors(path):
            sums[name] = sums[name].add_(tensor) if name in sums else tensor.double()
    return {name: sums.pop(name).div_(len(paths)).float() for name in list(sums)}


def average(run: Path, last: int | None, out: Path | None) -> tuple[Path, list[int]]:
    """Average a run's `last` checkpoints into `out`, by default `run/model`; return that directory and the steps."""
    if out is not None and out.exists() and out.resolve() != (run / "model").resolve():
        raise OutputError(f"{out} exists already. Choose another --out")
    settings = stored_recipe(run)
    last = last or settings.averaging.last
    while True:
        steps = checkpoints.regular(checkpoints.steps_in(run), settings.training.checkpoint_every)
        if len(steps) < last:
            raise DataError(f"{run} has {len(steps)} checkpoints ({', '.join(map(str, steps)) or 'none'}), not {last}")
        steps = steps[-last:]
        try:
            manifests = [checkpoints.check(run, step) for step in steps]
            tensors = mean_of([checkpoints.directory_of(run, step) / checkpoints.MODEL for step in steps])
            break
        except (NmtError, OSError):
            if all(checkpoints.directory_of(run, step).exists() for step in steps):
                raise  # else a run that goes on has removed one
    hashes = [manifest["files"][checkpoints.MODEL]["sha256"] for manifest in manifests]
    about = {key: value for key, value in manifests[-1].items() if key in ("corpus", "seen_tokens")}
    about |= {"steps": steps, "checkpoints": hashes}
    save_model(out or run / "model", tensors, settings, run / TOKENIZER, about)
    return out or run / "model", steps
