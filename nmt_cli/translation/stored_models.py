"""Models on disk, described without loading them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nmt_cli.corpus.tokenizer import LANGUAGE, Tokenizer
from nmt_cli.transformer.config import ModelConfig


class Direction(NamedTuple):
    """A language pair that a model translates."""

    source: str  # language codes
    target: str
    prefix: str = ""  # put before every source to select one of the model's target languages


@dataclass(frozen=True)
class StoredModel:
    """A model that may be loaded later."""

    path: Path
    kind: str
    directions: tuple[Direction, ...]
    bytes: int  # size of its files
    parameters: int
    open: Callable[[], Path]  # returns a model directory; converts another kind of model first


def directions_of(config: ModelConfig, tokenizer: Tokenizer) -> tuple[Direction, ...]:
    """Return the language pairs of a model: one for each target language token such as >>deu<<.

    A model without such tokens has one pair. Tags such as >>bt<< are not languages.
    """
    tokens = [found[1] for piece in tokenizer.vocabulary if (found := LANGUAGE.fullmatch(piece))]
    languages = [token for token in tokens if token[2:-2] not in config.tags]
    several = tuple(Direction(config.src, token[2:-2], f"{token} ") for token in languages)
    return several or (Direction(config.src, config.tgt),)
