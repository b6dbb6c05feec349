"""Limits on the settings that translation reads.

This module must not import pydantic, because the import takes longer than a translation. loading.py checks the
combinations of settings that `contradictions` does not.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple


class Range(NamedTuple):
    """A range of allowed values, with its bounds included."""

    low: float
    high: float = float("inf")

    @property
    def requirement(self) -> str:
        return f"at least {self.low:,}" if self.high == float("inf") else f"from {self.low:,} to {self.high:,}"

    def allows(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)


LAYERS = Range(1, 1000)
WIDTH = Range(2, 65536)
INNER_WIDTH = Range(1, 1 << 20)
HEADS = Range(1, 1024)
HEAD_SIZE = Range(1, 65536)
LENGTH = Range(8, 1 << 20)
BEAM = Range(1, 1000)
ALPHA = Range(0, 10)
PENALTY_OFFSET = Range(0, 1000)
EXTRA_LENGTH = Range(1, 100_000)
MAX_POSITION_NUMBERS = 1 << 26  # in float32, positional encodings of this size take 256 MB


def contradictions(model: Any) -> Iterator[str]:
    """Yield an error message for each invalid combination of model settings that are valid by themselves."""
    if model.positions != "learned" and model.d_model % 2:
        yield "model.d_model must be even for sinusoidal positions"
    if model.max_length * model.d_model > MAX_POSITION_NUMBERS:
        yield f"model.max_length x model.d_model must be at most {MAX_POSITION_NUMBERS:,} to limit memory for positions"
