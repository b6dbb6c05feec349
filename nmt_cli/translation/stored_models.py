"""Models on disk, described without loading them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nmt_cli.corpus.languages import match
from nmt_cli.corpus.tokenizer import LANGUAGE, Tokenizer
from nmt_cli.system.errors import UsageError
from nmt_cli.transformer.config import ModelConfig


class Direction(NamedTuple):
    """A language pair that a model translates."""

    source: str  # language codes
    target: str
    prefix: str = ""  # put before every source to select the target language; "" if the model needs none


@dataclass(frozen=True)
class StoredModel:
    path: Path
    kind: str  # "nmt", or another program's kind of model
    directions: tuple[Direction, ...]
    bytes: int  # total size of its files
    parameters: int
    open: Callable[[], Path]  # returns a model directory; converts another kind of model first


def directions_of(config: ModelConfig, tokenizer: Tokenizer | None) -> tuple[Direction, ...]:
    """Return the language pairs of a model. `tokenizer` may be None if the model has no tokens such as >>deu<<.

    A model that does not store its pairs has one pair for each target-language token, or a single pair if there is no
    such token. Tags such as >>bt<< are not languages.
    """
    tokens = [found[1] for piece in (tokenizer.vocabulary if tokenizer else ()) if (found := LANGUAGE.fullmatch(piece))]
    prefixes = {token[2:-2]: f"{token} " for token in tokens if token[2:-2] not in config.tags}
    pairs = config.pairs or [[config.src, target] for target in prefixes or [config.tgt]]
    return tuple(Direction(source, target, prefixes.get(target, "")) for source, target in pairs)


def direction_to(target: str, config: ModelConfig, directions: Sequence[Direction]) -> Direction:
    """Return one of a model's language pairs with this target language, preferably from the model's source language.

    If `target` is empty, return the model's default pair, which has a prefix only if the model stores its pairs. Raises
    UsageError if the model does not translate to `target`.
    """
    if not (target or config.pairs):
        return Direction(config.src, config.tgt)
    targets = list(dict.fromkeys(each.target for each in directions))
    code = match(target or config.tgt, targets) or ("" if target else targets[0])
    found = [each for each in directions if each.target == code]
    if not found:
        raise UsageError(f"the model does not translate to {target[:40]!r}, only to {', '.join(targets)}")
    return min(found, key=lambda each: each.source != config.src)
