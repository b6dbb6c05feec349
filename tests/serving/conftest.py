"""The model, the client and the databases of both kinds that the tests of the server share."""

import functools
import importlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer, programs, running
from tiny_model import make_model

from nmt_cli.serving import detect


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("serving"))


@pytest.fixture(scope="session", autouse=True)
def shared_classifiers() -> Iterator[None]:
    """Load py3langid's model once for each set of languages. It takes half a second."""
    load = functools.cache(detect.load_classifier)

    def shared(languages: Collection[str]) -> Any:
        importlib.import_module("py3langid.langid")  # some tests hide this module
        return load(frozenset(languages))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detect, "load_classifier", shared)
        yield


@pytest.fixture(scope="module")
def client(model: Path) -> Iterator[Any]:
    """A client of a server with this model. The import is here because Starlette is optional."""
    from serving import client_of

    with client_of(model) as client:
        yield client


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server. Tests that need it are skipped where its programs or pg8000 are not installed."""
    pytest.importorskip("pg8000")
    if not programs():
        pytest.skip("PostgreSQL is not installed")
    with running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path or URL of a new database, one of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "nmt.db")
    url = str(request.getfixturevalue("postgres").new())
    return f"{url}?sslmode=disable"  # each connection with TLS takes 50 ms of CPU
