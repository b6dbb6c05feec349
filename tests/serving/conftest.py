"""The model that the tests of the server share."""

from pathlib import Path

import pytest
from tiny_model import make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("serving"))
