"""A tiny model for the tests of translation, opened once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_model import make_model
from translators import one_at_a_time, translator_by

from nmt_cli import Translator


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def translator(model: Path) -> Iterator[Translator]:
    with Translator(model, precision="fp32", workers=1) as one:
        yield one


@pytest.fixture
def echo(model: Path) -> Iterator[Translator]:
    """A Translator that returns the source, with a log-probability of -1 for each token."""
    with translator_by(model, one_at_a_time(lambda segment: [*segment.prefix, *segment.ids[:-1]])) as one:
        yield one
