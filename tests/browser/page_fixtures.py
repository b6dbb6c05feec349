"""Fixtures: the real application with tiny models, and a browser tab that shows its page."""

import pytest
from chromium import browser
from page_tab import LIMIT, load_page
from tiny_model import make_model


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    for module in ("starlette", "uvicorn"):
        pytest.importorskip(module)
    from nmt_cli.serving.metrics import Metrics
    from nmt_cli.serving.pool import ModelPool, load

    there = make_model(tmp_path_factory.mktemp("there"))
    back = make_model(tmp_path_factory.mktemp("back"), "corpus.src=de", "corpus.tgt=en", seed=2)
    with ModelPool([*load(there, "fp32", 1), *load(back, "fp32", 1)], Metrics(), queue=1000) as pool:
        yield pool


@pytest.fixture
def server(pool):
    from page_server import serving

    from nmt_cli.serving.service import Limits, Service

    with serving(Service(pool, pool.metrics, Limits(LIMIT, seconds=120))) as server:
        yield server


@pytest.fixture(scope="module")
def browsed(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture
def tab(browsed, server):
    browsed.resize(1280)
    load_page(browsed, server)
    yield browsed
    assert browsed.sent("Runtime.exceptionThrown") == []
