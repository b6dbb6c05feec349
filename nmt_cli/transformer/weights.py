"""The weights of a model directory, for torch; and safetensors files in general."""

import contextlib
import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nmt_cli.recipe import loading, schema
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, StorageError
from nmt_cli.transformer.directory import KIND, RECIPE, TOKENIZER, WEIGHTS, ModelDirectory, open_model
from nmt_cli.transformer.model import Transformer


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what safetensors raises on a full disk into a StorageError."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise StorageError(f"cannot write {path}: {error}. Free some space and try again") from None


def save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    with writing(path):
        save_file({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}, path)


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a safetensors file in order of their names, one in memory at a time."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise DataError(f"{path} is damaged or no safetensors file: {error}") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors, copied from the file, which may be cut or overwritten later."""
    return {name: tensor.clone() for name, tensor in read_tensors(path)}


def load_into(model: Transformer, tensors: dict[str, Tensor], where: Path) -> None:
    """Give a model these tensors as its weights, or raise DataError naming the first one that does not fit."""
    own = model.state_dict()
    for name in [*own, *tensors]:
        shapes = [tuple(side[name].shape) if name in side else None for side in (tensors, own)]
        if shapes[0] != shapes[1]:
            raise DataError(f"{where} does not fit its recipe: {name} has shape {shapes[0]}, not {shapes[1]}")
    model.load_state_dict(tensors, assign=True)


class _SkipInit(TorchFunctionMode):
    """Skips the initialisation of weights that are loaded next. (The meta device would make torch import its whole
    compiler.)"""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in (Tensor.normal_, Tensor.uniform_) or getattr(function, "__module__", "") == "torch.nn.init":
            return None
        return function(*args, **(kwargs or {}))


def _model_of(tensors: dict[str, Tensor], resolved: schema.Recipe, where: Path) -> Transformer:
    with _SkipInit():
        model = Transformer(resolved.model, len(tensors["embedding.weight"]))
    load_into(model, tensors, where)
    return model


@dataclass(frozen=True)
class LoadedModel(ModelDirectory):
    model: Transformer


def save_model(
    directory: Path,
    tensors: dict[str, Tensor],
    resolved: schema.Recipe,
    tokenizer_file: Path,
    about: dict[str, Any],
) -> None:
    """Commit a model directory, replacing the one that is there; `about` goes into its manifest."""
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise DataError(f"tensor {name} is not finite; such a model is not written to {directory}")
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with artefact.staged(directory, KIND, {"created": created, **about}, overwrite=True) as stage:
        save_tensors(stage / WEIGHTS, tensors)
        artefact.write_file(stage / RECIPE, loading.to_yaml(resolved))
        artefact.write_file(stage / TOKENIZER, tokenizer_file.read_bytes())
        if (target := tokenizer_file.with_suffix(".target.model")).is_file():  # target text has one of its own
            artefact.write_file(stage / "tokenizer.target.model", target.read_bytes())


def load_model(directory: Path) -> LoadedModel:
    """Open and verify a model directory, as `open_model` does, and load its weights."""
    opened = open_model(directory)
    resolved = loading.load_stored(opened.directory / RECIPE)
    tensors = load_tensors(opened.directory / WEIGHTS)
    model = _model_of(tensors, resolved, opened.directory / WEIGHTS)
    return LoadedModel(opened.directory, resolved, opened.manifest, model.eval())
