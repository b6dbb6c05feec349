"""The model directory: weights, recipe and tokenizer together, movable anywhere. It is opened without torch."""

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.engine import weights as weights_file
from nmt_cli.storage import artefact, stored
from nmt_cli.system.errors import DataError, MissingError

if TYPE_CHECKING:
    from nmt_cli.recipe import schema

KIND = "model"
MOST_NAMED = 8  # models in an error
WEIGHTS, RECIPE, TOKENIZER = "model.safetensors", "recipe.yaml", "tokenizer.model"
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class ModelDirectory:
    directory: Path
    recipe: Any  # a schema.Recipe, or the same attributes without its methods
    manifest: dict[str, Any]

    @property
    def tokenizer_file(self) -> Path:
        return self.directory / TOKENIZER

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.tokenizer_file)


def open_model(directory: Path) -> ModelDirectory:
    """Open and verify a model directory: MissingError where there is none, DataError where it is damaged."""
    if directory.is_file():
        raise DataError(f"{directory} is a file; a model is a directory that nmt train writes")
    if not artefact.present(directory):
        if artefact.present(directory / "model"):  # a run was named
            return open_model(directory / "model")
        raise MissingError(f"no model in {directory}. {other_models()}")
    if artefact.read_json(directory / artefact.MANIFEST).get("kind") == "checkpoint":
        advice = f"Make one of it: nmt average-checkpoints {directory.parent.parent}"
        raise DataError(f"{directory} is a checkpoint of training, not a model. {advice}")
    manifest = artefact.verify(directory, KIND)
    opened = ModelDirectory(directory, stored.load(directory / RECIPE), manifest)
    weights = directory / WEIGHTS
    check_sizes(tensor_shapes(weights), opened.recipe.model, opened.tokenizer, weights)
    return opened


def models_here() -> str:
    """Return a sentence that names the models under runs/ and models/; "" if there are none."""
    places = [*sorted(Path("runs").glob("*/model")), *sorted(Path("models").glob("*"))]
    here = [str(place).removesuffix("/model") for place in places if artefact.present(place)]
    more = f", and {len(here) - MOST_NAMED} more" if len(here) > MOST_NAMED else ""
    return f"Here: {', '.join(here[:MOST_NAMED])}{more}. " if here else ""


def other_models() -> str:
    """Return which models there are instead, and how to get one."""
    here = models_here()
    train = "" if here else ", or train one: nmt reproduce recipes/toy.yaml"
    return f"{here}From the hub: OWNER/NAME, such as Helsinki-NLP/opus-mt-en-de{train}"


def tensor_shapes(file: Path) -> Shapes:
    """Return the shape of each tensor of a safetensors file, from its header; DataError where one is not float32."""
    return weights_file.shapes(file)


def check_sizes(shapes: Shapes, settings: "schema.Model", tokenizer: Tokenizer, file: Path) -> None:
    """Compare weights with both vocabularies, and with their number by the recipe before memory is taken for those."""
    rows, width = [*shapes.get("embedding.weight", ()), 0, 0][:2]
    source = settings.source_vocabulary or rows
    if (source, rows) != (vocabulary := (tokenizer.vocabulary_size, tokenizer.target.vocabulary_size)):
        texts = " and ".join(f"{size:,}" for size in dict.fromkeys(vocabulary))
        raise DataError(f"{file} has embeddings of {rows:,} tokens, its tokenizer has {texts}: they are of two models")
    numbers = sum(math.prod(shape) for shape in shapes.values())
    if width != settings.d_model or numbers != parameter_count(settings, rows):
        what = f"{numbers:,} numbers, not {parameter_count(settings, rows):,}"
        raise DataError(f"{file} does not fit its recipe: it has {what}")


def parameter_count(settings: "schema.Model", vocabulary_size: int) -> int:
    """Return how many numbers are trained, by the closed form of sections 3.1-3.4."""
    d, h = settings.d_model, settings.num_heads
    attention = 2 * d * h * (settings.d_k + settings.d_v)
    if settings.attention_bias:
        attention += 2 * h * settings.d_k + h * settings.d_v + d
    feed_forward = 2 * d * settings.d_ff + settings.d_ff + d
    encoder_layers = settings.encoder_layers or settings.num_layers
    decoder_layers = settings.decoder_layers or settings.num_layers
    layers = encoder_layers * (attention + feed_forward + 2 * 2 * d)
    layers += decoder_layers * (2 * attention + feed_forward + 3 * 2 * d)
    final_norms = 4 * d * (settings.norm == "pre")
    positions = 2 * settings.max_length * d * (settings.positions == "learned")
    embeddings = vocabulary_size * (1 + (not settings.tied_output)) + settings.source_vocabulary
    return layers + final_norms + positions + embeddings * d + vocabulary_size * settings.output_bias
