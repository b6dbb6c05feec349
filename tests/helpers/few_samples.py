"""Fewer samples for confidence intervals and significance tests, for tests that ignore their figures."""

import contextlib
import functools
from collections.abc import Iterator

import pytest

from nmt_cli.scoring import significance


@contextlib.contextmanager
def few_samples() -> Iterator[None]:
    """Draw 50 samples instead of 1,000 and, for approximate randomization, 10,000."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(significance, "SAMPLES", 50)
        patch.setattr(significance, "PairedTest", functools.partial(significance.PairedTest, n_samples=50))
        yield
