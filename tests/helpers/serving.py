"""What the tests of `nmt serve` share: an application around a model that says any piece at all."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from nmt_cli import Translator
from nmt_cli.serving.app import ANY_HOST, create_app
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.origins import Access
from nmt_cli.serving.pool import ModelPool, load
from nmt_cli.serving.service import Limits, Service

TEXTS = ["der Hund geht.", "rot und", "die Katze ist nicht rot, das Haus"]
PAIR = {"source": "en", "target": "de"}


@contextlib.contextmanager
def service_of(*models: Path, queue: int = 1000, limits: Limits | None = None, **options: Any) -> Iterator[Service]:
    loaded = [one for model in models for one in load(model, "fp32", 2)]
    with ModelPool(loaded, Metrics(), queue=queue) as pool:
        yield Service(pool, pool.metrics, limits or Limits(5000, 50), **options)
        assert pool.texts == 0, "requests that ended are counted still"


@contextlib.contextmanager
def client_of(*models: Path, access: Access = ANY_HOST, **options: Any) -> Iterator[TestClient]:
    with service_of(*models, **options) as service:
        with TestClient(create_app(service, access), raise_server_exceptions=True) as client:
            yield client


def said(translator: Translator, *lines: str, **options: Any) -> list[list[str]]:
    """What `nmt translate` says for each line: its hypotheses, best first."""
    return [[each.text for each in line.hypotheses] for line in translator.translate(lines, **options)]


def resident(process: int | str = "self") -> int:
    """The pages of memory that a process has."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1])
