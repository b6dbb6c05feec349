"""Confidence intervals have few samples, unless a test checks their figures."""

from collections.abc import Iterator

import pytest
from few_samples import few_samples


@pytest.fixture
def all_samples() -> None:
    """For tests that check the figures of confidence intervals."""


@pytest.fixture(autouse=True)
def quick_intervals(request: pytest.FixtureRequest) -> Iterator[None]:
    if "all_samples" in request.fixturenames:
        yield
    else:
        with few_samples():
            yield
