"""Open model directories (weights, tokenizer, model.json and recipe) without torch."""

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.engine import layout, safetensors_file
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.transformer import config as model_config
from nmt_cli.transformer.config import MODEL_JSON, RECIPE, ModelConfig

if TYPE_CHECKING:
    from nmt_cli.recipe import schema

KIND = "model"  # in the manifest of a model directory
MAX_NAMED = 8  # maximum number of models to list in an error message
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.model"


@dataclass(frozen=True)
class ModelDirectory:
    directory: Path
    config: ModelConfig
    manifest: dict[str, Any]

    @property
    def tokenizer_file(self) -> Path:
        return self.directory / TOKENIZER

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.tokenizer_file)


def open_model(directory: Path) -> ModelDirectory:
    """Open and verify a model directory. `directory` may also be a run directory, whose model is in model/.

    Raises MissingError if there is no model. Raises DataError if the model is damaged, or if `directory` is a
    checkpoint or a file.
    """
    if directory.is_file():
        raise DataError(f"{directory} is a file; a model is a directory, such as one that nmt train writes")
    if not artefact.present(directory):
        if artefact.present(directory / "model"):  # `directory` is a run
            return open_model(directory / "model")
        raise MissingError(f"no model in {directory}. {other_models()}")
    if artefact.read_json(directory / artefact.MANIFEST).get("kind") == "checkpoint":
        advice = f"Make a model from it: nmt average-checkpoints {directory.parent.parent}"
        raise DataError(f"{directory} is a training checkpoint, not a model. {advice}")
    manifest = artefact.verify(directory, KIND)
    shapes = safetensors_file.read_shapes(directory / WEIGHTS)
    if MODEL_JSON in manifest["files"]:
        config = model_config.read_model_json(directory / MODEL_JSON)
    else:
        recipe = _stored_recipe(directory)
        config = model_config.from_recipe(recipe, _rows(shapes), manifest.get("seen_tokens"))
    opened = ModelDirectory(directory, config, manifest)
    _check_shapes(shapes, opened)
    return opened


def output_of(directory: Path) -> str:
    """Return a model's output format, "text" or "trees", without verifying the directory."""
    if (directory / MODEL_JSON).is_file():
        return model_config.read_model_json(directory / MODEL_JSON).output
    return _stored_recipe(directory).corpus.format


def _stored_recipe(directory: Path) -> "schema.Recipe":
    from nmt_cli.recipe import loading  # imports pydantic

    return loading.load_stored(directory / RECIPE)


def models_here() -> str:
    """List the models under runs/ and models/ in a sentence with a space after it. Return "" if there are none."""
    directories = [*sorted(Path("runs").glob("*/model")), *sorted(Path("models").glob("*"))]
    here = [str(directory).removesuffix("/model") for directory in directories if artefact.present(directory)]
    more = f", and {len(here) - MAX_NAMED} more" if len(here) > MAX_NAMED else ""
    return f"Models here: {', '.join(here[:MAX_NAMED])}{more}. " if here else ""


def other_models() -> str:
    """Return advice for an error message: the models here, and how to get another one."""
    here = models_here()
    use, train = ("You can also use", "") if here else ("Use", ", or train one: nmt reproduce recipes/toy.yaml")
    return f"{here}{use} a model from the hub, such as Helsinki-NLP/opus-mt-en-de{train}"


def _rows(shapes: dict[str, layout.Shape]) -> int:
    """Return the number of rows of the target embedding matrix, or 0 if the matrix is missing."""
    return next(iter(shapes.get("embedding.weight", ())), 0)


def _check_shapes(shapes: dict[str, layout.Shape], opened: ModelDirectory) -> None:
    """Raise DataError if the shapes of the weights do not match the tokenizer or the settings."""
    file, tokenizer, architecture = opened.directory / WEIGHTS, opened.tokenizer, opened.config.architecture
    rows = _rows(shapes)
    embedded = architecture.source_vocabulary or rows, rows
    known = tokenizer.vocabulary_size, tokenizer.target.vocabulary_size
    if embedded != known:
        found = f"{file} has embeddings of {_joined(embedded)} tokens"
        raise DataError(f"{found}, but its tokenizer has {_joined(known)}: they do not match")
    for difference in layout.differences(shapes, layout.tensor_shapes(architecture, opened.config.vocabulary_size)):
        settings = MODEL_JSON if MODEL_JSON in opened.manifest["files"] else RECIPE
        raise DataError(f"{file} does not fit {settings}: {difference}")


def _joined(sizes: tuple[int, int]) -> str:
    return " and ".join(f"{size:,}" for size in dict.fromkeys(sizes))


def parameter_count(settings: layout.Settings, vocabulary_size: int) -> int:
    """Return the number of trained parameters. `vocabulary_size` is the number of target tokens."""
    return sum(map(math.prod, layout.tensor_shapes(settings, vocabulary_size).values()))
