"""Load and save models and safetensors files with torch."""

import contextlib
import datetime
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from nmt_cli.corpus import tokenizer, words
from nmt_cli.engine import layout
from nmt_cli.recipe import loading, schema
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, StorageError
from nmt_cli.transformer import config as model_config
from nmt_cli.transformer.config import MODEL_JSON, RECIPE
from nmt_cli.transformer.directory import KIND, TOKENIZER, WEIGHTS, ModelDirectory, open_model
from nmt_cli.transformer.model import Transformer


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert the error that safetensors raises on a full disk to a StorageError."""
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
    """Yield each name and tensor of a safetensors file, sorted by name. Read one tensor at a time.

    Raises DataError if the file is damaged or is not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise DataError(f"{path} is damaged or not a safetensors file: {error}") from None


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return copies of the tensors in a file, so that later changes to the file do not affect them."""
    return {name: tensor.clone() for name, tensor in read_tensors(path)}


def load_into(model: Transformer, tensors: dict[str, Tensor], source: Path) -> None:
    """Replace a model's weights with `tensors`. If they do not fit, raise the DataError of `check_shapes`."""
    check_shapes(tensors, model.settings, model.vocabulary_size, source)
    model.load_state_dict(tensors, assign=True)


def check_shapes(tensors: dict[str, Tensor], settings: schema.Model, vocabulary_size: int, source: Path) -> None:
    """Raise DataError if the tensors do not have the names and shapes that the settings require.

    The message names the file `source`, from which the tensors were read, and the first mismatch.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for difference in layout.differences(shapes, layout.tensor_shapes(settings, vocabulary_size)):
        raise DataError(f"{source} does not fit the model: {difference}")


class SkipInit(TorchFunctionMode):
    """Skip the initialization of weights that will be loaded.

    Creating the model on torch's meta device would also skip it, but would import torch's compiler, which is slow.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in (Tensor.normal_, Tensor.uniform_) or getattr(function, "__module__", "") == "torch.nn.init":
            return None
        return function(*args, **(kwargs or {}))


@dataclass(frozen=True)
class LoadedModel(ModelDirectory):
    recipe: schema.Recipe
    model: Transformer


def save_model(
    directory: Path,
    tensors: dict[str, Tensor],
    resolved: schema.Recipe,
    tokenizer_file: Path,
    entries: dict[str, Any],
) -> None:
    """Write a model directory, and replace any existing one. `entries` are added to its manifest.

    Raises DataError if a tensor is not finite.
    """
    tensors = {name: tensor.cpu() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise DataError(f"tensor {name} is not finite, so the model is not written to {directory}")
    config = model_config.from_recipe(resolved, len(tensors["embedding.weight"]), entries.get("seen_tokens"))
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    with artefact.staged(directory, KIND, {"created": created, **entries}, overwrite=True) as stage:
        save_tensors(stage / WEIGHTS, tensors)
        artefact.write_file(stage / MODEL_JSON, model_config.to_json(config))
        artefact.write_file(stage / RECIPE, loading.to_yaml(resolved))
        tokenizer.copy(tokenizer_file, stage / TOKENIZER)
        words.copy(tokenizer_file, stage / TOKENIZER)


def load_transformer(opened: ModelDirectory, settings: schema.Model | None = None) -> Transformer:
    """Return the network of an opened model directory, by default with the settings of its model.json."""
    with SkipInit():
        model = Transformer(settings or schema.Model(**vars(opened.config.architecture)), opened.config.vocabulary_size)
    load_into(model, load_tensors(opened.directory / WEIGHTS), opened.directory / WEIGHTS)
    return model.eval()


def load_model(directory: Path) -> LoadedModel:
    """Open and verify a model directory, and load its recipe and weights.

    Raises DataError if the recipe or the weights do not match model.json. For other errors, see `open_model`.
    """
    opened = open_model(directory)
    file = opened.directory / RECIPE
    recipe = loading.load_stored(file)
    expected = model_config.from_recipe(recipe, opened.config.vocabulary_size, opened.config.seen_tokens)
    if opened.config not in (expected, replace(expected, pairs=[])):  # models of nmt 1.0 do not store the pairs
        raise DataError(f"{file} does not match the {MODEL_JSON} beside it: one of them was edited. Undo the edit")
    return LoadedModel(opened.directory, opened.config, opened.manifest, recipe, load_transformer(opened, recipe.model))
