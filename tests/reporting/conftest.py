"""Templates are compiled once for all tests of this folder, and confidence intervals have few samples."""

from collections.abc import Iterator

import pytest
from compiled_pages import compiled_pages
from few_samples import few_samples


@pytest.fixture(scope="module", autouse=True)
def pages() -> Iterator[None]:
    with compiled_pages():
        yield


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
