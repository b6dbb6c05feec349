"""Read and write model.json, which holds all settings that translation needs from a stored model.

A model directory also holds the recipe, for fine-tuning and reports. Reading a recipe requires pydantic, and importing
pydantic takes longer than a translation. Therefore, translation reads the recipe only in directories of nmt 0.1, which
have no model.json.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from nmt_cli import __version__
from nmt_cli.recipe import limits
from nmt_cli.recipe.limits import Range
from nmt_cli.storage import artefact, records
from nmt_cli.system.errors import DataError

if TYPE_CHECKING:
    from nmt_cli.recipe import schema

FORMAT = 1
MODEL_JSON, RECIPE = "model.json", "recipe.yaml"


class _Text:
    requirement = "text"

    def allows(self, text: str) -> bool:
        return not re.search("[\0\ud800-\udfff]", text)


class _Pair:
    requirement = "two language codes"

    def allows(self, pair: list[str]) -> bool:
        return len(pair) == 2


Size = Annotated[int, Range(1)]
Text = Annotated[str, _Text()]
Pair = Annotated[list[Text], _Pair()]


@dataclass
class Architecture:
    """The sizes and options of the Transformer, named as in a recipe's section `model`."""

    encoder_layers: Annotated[int, limits.LAYERS]
    decoder_layers: Annotated[int, limits.LAYERS]
    d_model: Annotated[int, limits.WIDTH]
    d_ff: Annotated[int, limits.INNER_WIDTH]
    num_heads: Annotated[int, limits.HEADS]
    d_k: Annotated[int, limits.HEAD_SIZE]
    d_v: Annotated[int, limits.HEAD_SIZE]
    norm: Literal["post", "pre"]
    positions: Literal["sinusoidal", "marian", "learned"]
    max_length: Annotated[int, limits.LENGTH]
    attention_bias: bool
    output_bias: bool
    activation: Literal["relu", "swish", "gelu"]
    source_vocabulary: Annotated[int, Range(0)]
    tied_output: bool
    source_eos: bool = True  # whether the encoder reads the EOS of the source
    decoder_cell: Literal["attention", "ssru"] = "attention"  # missing in models of nmt 1.0 and older

    @property
    def depths(self) -> tuple[int, int]:
        """The numbers of layers of the encoder and of the decoder."""
        return self.encoder_layers, self.decoder_layers


@dataclass(frozen=True)
class Decoding:
    """The model's defaults for the search, named as in a recipe's section `decoding`."""

    beam: Annotated[int, limits.BEAM]
    alpha: Annotated[float, limits.ALPHA]
    extra_length: Annotated[int, limits.EXTRA_LENGTH]
    split: bool
    copy_wordless: bool
    case: Literal["auto", "off"] = "auto"  # missing in models of nmt 1.0 and older
    spelling: Literal["auto", "off"] = "auto"  # likewise
    penalty_offset: Annotated[float, limits.PENALTY_OFFSET] = 5  # likewise
    target_prefix: Text = ""  # token that begins every translation and is not shown


@dataclass(frozen=True)
class ModelConfig:
    """The settings that translation needs from a model, besides its tensors and tokenizer."""

    src: Text  # language code
    tgt: Text  # language code
    output: Literal["text", "trees"]  # "trees" if the model is a parser
    vocabulary_size: Size  # number of target tokens
    max_tokens: Size | None  # maximum length of lines in the training text, if limited
    seen_tokens: Size | None  # 99.9th percentile of source lengths in training, in tokens, including EOS, if known
    architecture: Architecture
    decoding: Decoding
    tags: list[Text] = field(default_factory=list)  # names of tokens that may precede a source but select no language
    # Source and target language of each pair in the training text, if there are several pairs or tokens that select
    # target languages. Missing in models of nmt 1.0.
    pairs: list[Pair] = field(default_factory=list)


def from_recipe(recipe: "schema.Recipe", vocabulary_size: int, seen_tokens: int | None = None) -> ModelConfig:
    """Return the config of a model trained by a recipe. `vocabulary_size` is the number of target tokens."""
    encoder_layers, decoder_layers = recipe.model.depths
    settings = {**vars(recipe.model), "encoder_layers": encoder_layers, "decoder_layers": decoder_layers}
    pairs = [[*pair] for pair in recipe.corpus.pairs]
    return ModelConfig(
        src=recipe.corpus.src,
        tgt=recipe.corpus.tgt,
        output=recipe.corpus.format,
        vocabulary_size=vocabulary_size,
        max_tokens=recipe.corpus.max_tokens,
        seen_tokens=seen_tokens,
        architecture=Architecture(**{each.name: settings[each.name] for each in fields(Architecture)}),
        decoding=Decoding(**vars(recipe.decoding)),
        tags=[tag for tag in recipe.corpus.tags if tag not in recipe.corpus.target_tokens],
        pairs=pairs if len(pairs) > 1 or recipe.corpus.target_tokens else [],
    )


def to_json(config: ModelConfig) -> bytes:
    return artefact.json_bytes({"format": FORMAT, **asdict(config)})


def read_model_json(path: Path) -> ModelConfig:
    """Read model.json. Raises DataError if a value is missing or wrong, or if a newer nmt wrote the file."""
    values = artefact.read_json(path)
    advice = f"The file was edited, or a newer nmt than {__version__} wrote it"
    if values.get("format") != FORMAT:
        raise DataError(f"{path} has format {str(values.get('format'))[:40]!r}, not {FORMAT}. {advice}")
    config = records.from_json(ModelConfig, values, path)
    if unknown := sorted(values["architecture"].keys() - vars(config.architecture).keys()):
        raise DataError(f"{path} has unknown model settings: {', '.join(unknown)[:200]!r}. {advice}")
    for contradiction in limits.contradictions(config.architecture):
        raise DataError(f"{path} is damaged: {contradiction}")
    return config


def checked_decoding(values: Mapping[str, Any]) -> Decoding:
    """Return the settings of a search. Raises UsageError for values out of range."""
    try:
        return records.build(Decoding, dict(values))
    except ValueError:  # slow, but pydantic also converts numbers of other types, and reports every wrong value
        from nmt_cli.recipe import loading

        return Decoding(**vars(loading.from_plain({"decoding": dict(values)}, "this translation").decoding))
