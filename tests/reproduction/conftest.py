"""Templates are compiled once for all tests of this folder."""

from collections.abc import Iterator

import pytest
from compiled_pages import compiled_pages


@pytest.fixture(scope="module", autouse=True)
def pages() -> Iterator[None]:
    with compiled_pages():
        yield
