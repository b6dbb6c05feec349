"""The model directory: weights, recipe and tokenizer together, movable anywhere. It is opened without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli import artefact, stored
from nmt_cli.errors import DataError, MissingError

KIND = "model"
WEIGHTS, RECIPE, TOKENIZER = "model.safetensors", "recipe.yaml", "tokenizer.model"


@dataclass(frozen=True)
class ModelDirectory:
    directory: Path
    recipe: Any  # a recipe.Recipe, or the same attributes without its methods
    manifest: dict[str, Any]

    @property
    def tokenizer_file(self) -> Path:
        return self.directory / TOKENIZER


def open_model(directory: Path) -> ModelDirectory:
    """Open and verify a model directory: MissingError where there is none, DataError where it is damaged."""
    if directory.is_file():
        raise DataError(f"{directory} is a file; a model is a directory that nmt train writes")
    if not artefact.present(directory):
        if artefact.present(directory / "model"):  # a run was named
            return open_model(directory / "model")
        raise MissingError(f"no model in {directory}. Train one: nmt reproduce recipes/toy.yaml")
    if artefact.read_json(directory / artefact.MANIFEST).get("kind") == "checkpoint":
        advice = f"Make one of it: nmt average-checkpoints {directory.parent.parent}"
        raise DataError(f"{directory} is a checkpoint of training, not a model. {advice}")
    manifest = artefact.verify(directory, KIND)
    return ModelDirectory(directory, stored.load(directory / RECIPE), manifest)
