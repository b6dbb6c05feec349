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


def directions_of(config: ModelConfig, tokenizer: Tokenizer | None) -> tuple[Direction, ...]:
    """Return the language pairs of a model. `tokenizer` may be None if it has no tokens such as >>deu<<.

    Models that do not store their pairs have one for each target language token, or a single pair if there are no such
    tokens. Tags such as >>bt<< are not languages.
    """
    tokens = [found[1] for piece in (tokenizer.vocabulary if tokenizer else ()) if (found := LANGUAGE.fullmatch(piece))]
    prefixes = {token[2:-2]: f"{token} " for token in tokens if token[2:-2] not in config.tags}
    pairs = config.pairs or [[config.src, target] for target in prefixes or [config.tgt]]
    return tuple(Direction(source, target, prefixes.get(target, "")) for source, target in pairs)
