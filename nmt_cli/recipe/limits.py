"""Limits on the sizes of a model together, for every reader of a recipe."""

from collections.abc import Iterator
from typing import Any

MOST_POSITIONS = 1 << 26  # numbers of positional encodings: 256 MB


def contradictions(model: Any) -> Iterator[str]:
    """Yield complaints about settings of a recipe's section `model` that are valid alone and wrong together."""
    if model.positions != "learned" and model.d_model % 2:
        yield "model.d_model must be even for sinusoidal positions"
    if model.max_length * model.d_model > MOST_POSITIONS:
        yield f"model.max_length x d_model may be {MOST_POSITIONS:,} at most: positions would fill the memory"
