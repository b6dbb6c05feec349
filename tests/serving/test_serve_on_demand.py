"""Models in directories: known from their descriptions, loaded at the first request, and unloaded."""

import asyncio
import json
import math
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tiny_model import make_model

pytest.importorskip("starlette")
from serving import TEXTS, ask, hypotheses, server
from starlette.testclient import TestClient
from texts import ROOT

from nmt_cli import Translator
from nmt_cli.interop.model_kinds import find_models
from nmt_cli.serving.app import create_app
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.model_routes import ServedModel
from nmt_cli.serving.on_demand import Loader, OnDemand
from nmt_cli.serving.pool import ModelPool, load
from nmt_cli.serving.service import Limits, Service
from nmt_cli.system.errors import DataError
from nmt_cli.translation.stored_models import StoredModel

PAIRS = [("en", "de"), ("de", "en"), ("en", "fr")]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three models: en-de, de-en and en-fr."""
    parent = tmp_path_factory.mktemp("models")
    for seed, (source, target) in enumerate(PAIRS, 1):
        make_model(parent / f"{seed}", f"corpus.src={source}", f"corpus.tgt={target}", seed=seed)
    return parent


class Lab:
    """An application that serves a directory. It records the loads of models, which wait for a gate."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.loads = list[str]()
        self.gate = threading.Event()
        self.gate.set()
        self.failing = set[str]()
        self.loader = Loader(self._load, **{"idle": math.inf, **options})
        stored = find_models(directory)
        self.by_pair = {each.directions[0][:2]: self.loader.add(each) for each in stored}
        models = [ServedModel(each, *each.model.directions[0]) for each in self.by_pair.values()]
        self.pool = ModelPool(models, Metrics(), queue=1000)
        self.app = create_app(Service(self.pool, self.pool.metrics, Limits(5000, 50, 60)))

    def _load(self, model: StoredModel) -> Translator:
        assert self.gate.wait(60)
        pair = "-".join(model.directions[0][:2])
        self.loads.append(pair)
        if pair in self.failing:
            raise DataError("the weights are damaged")
        translator = load(model.open(), "fp32", 1)[0].translator
        assert isinstance(translator, Translator)
        return translator

    @property
    def loaded(self) -> list[str]:
        return [f"{source}-{target}" for (source, target), each in self.by_pair.items() if each.translator]


def request(client: TestClient, source: str = "en", target: str = "de", text: str = TEXTS[0]) -> Any:
    return client.post("/translate", json={"q": text, "source": source, "target": target})


def wait_until(condition: Any) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def lab(directory: Path) -> Iterator[Lab]:
    lab = Lab(directory)
    with lab.pool:
        yield lab


def test_a_model_is_loaded_at_its_first_request_only(lab: Lab, directory: Path) -> None:
    with TestClient(lab.app) as client, Translator(directory / "1" / "model", precision="fp32") as alone:
        assert [each["code"] for each in client.get("/languages").json()] == ["en", "de", "fr"]
        assert lab.loads == []
        [[expected]] = hypotheses(alone, TEXTS[0])
        for _ in range(3):
            assert request(client).json() == {"translatedText": expected}
        assert (lab.loads, lab.loaded) == (["en-de"], ["en-de"])
        assert request(client, "de", "fr").headers["X-NMT-Route"] == "de-en-fr"
        assert lab.loaded == ["en-de", "de-en", "en-fr"]


def test_requests_wait_for_a_loading_model_and_others_do_not(lab: Lab) -> None:
    with TestClient(lab.app) as client, ThreadPoolExecutor(8) as threads:
        request(client, "de", "en")
        lab.gate.clear()
        waiting = [threads.submit(request, client) for _ in range(6)]
        wait_until(lambda: lab.by_pair["en", "de"].users == 6)
        assert request(client, "de", "en").status_code == 200
        assert client.get("/health").status_code == 200
        assert not any(each.done() for each in waiting)
        lab.gate.set()
        assert {each.result().status_code for each in waiting} == {200}
        assert lab.loads == ["de-en", "en-de"]


def test_a_request_that_waits_for_a_model_ends_at_its_deadline(directory: Path) -> None:
    lab = Lab(directory)
    lab.app = create_app(Service(lab.pool, lab.pool.metrics, Limits(5000, 50, 0.2)))
    with lab.pool, TestClient(lab.app) as client:
        lab.gate.clear()
        assert request(client).status_code == 504
        assert (lab.pool.texts, lab.by_pair["en", "de"].users) == (0, 0)
        lab.gate.set()
        wait_until(lambda: lab.loaded == ["en-de"])  # loading continues for the next request


def test_a_damaged_model_is_named_in_the_log_and_others_are_served(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.failing.add("en-de")
    with TestClient(lab.app) as client:
        for _ in range(3):
            answer = request(client)
            error = "The model for en to de cannot be loaded. The server's log has the reason"
            assert (answer.status_code, answer.json()) == (500, {"error": error})
        assert lab.loads == ["en-de"], "a request soon after a failed load does not load it again"
        assert capsys.readouterr().err.count("cannot be loaded: the weights are damaged") == 1
        assert request(client, "de", "en").status_code == 200
        lab.failing.clear()
        monkeypatch.setattr("nmt_cli.serving.on_demand.RETRY_SECONDS", 0)
        assert request(client).status_code == 200


def test_the_least_recently_used_model_is_unloaded_first(directory: Path) -> None:
    lab = Lab(directory, memory=2, resident=lambda: len(lab.loaded))
    with lab.pool, TestClient(lab.app) as client:
        request(client, "en", "de")
        request(client, "de", "en")
        request(client, "en", "de")
        request(client, "en", "fr")
        wait_until(lambda: lab.loaded == ["en-de", "en-fr"])
        assert request(client, "de", "en").status_code == 200
        wait_until(lambda: lab.loaded == ["de-en", "en-fr"])


def test_a_model_in_use_is_never_unloaded(directory: Path) -> None:
    lab = Lab(directory, memory=0, resident=lambda: len(lab.loaded), idle=0.01)

    async def hold() -> None:
        model = lab.by_pair["en", "de"]
        async with model.held():
            async with lab.by_pair["de", "en"].held():
                await asyncio.sleep(0.1)
                assert lab.loaded == ["en-de", "de-en"]
            await asyncio.sleep(0.1)
            assert lab.loaded == ["en-de"]
            assert model.loaded_translator.submit("rot").result(10).text
        await asyncio.sleep(0.1)
        assert lab.loaded == []

    with lab.pool:
        asyncio.run(hold())


def test_an_idle_model_is_unloaded(directory: Path) -> None:
    lab = Lab(directory, idle=0.3)
    with lab.pool, TestClient(lab.app) as client:
        for _ in range(5):  # each request restarts the idle time
            request(client)
            time.sleep(0.1)
        assert lab.loads == ["en-de"]
        wait_until(lambda: lab.loaded == [])
        assert request(client).status_code == 200
        assert lab.loads == ["en-de", "en-de"]


def test_a_model_whose_request_ended_while_it_loaded_is_unloaded(directory: Path) -> None:
    lab = Lab(directory, idle=1)
    lab.app = create_app(Service(lab.pool, lab.pool.metrics, Limits(5000, 50, 0.2)))
    with lab.pool, TestClient(lab.app) as client:
        lab.gate.clear()
        assert request(client).status_code == 504
        lab.gate.set()
        wait_until(lambda: lab.loaded == ["en-de"])
        wait_until(lambda: not lab.loaded)


def test_a_model_is_not_idle_during_a_long_request(directory: Path) -> None:
    lab = Lab(directory, idle=0.1)
    model = lab.by_pair["en", "de"]

    async def hold_twice() -> None:
        async with model.held():
            pass
        async with model.held():
            await asyncio.sleep(0.3)
            assert lab.loaded == ["en-de"]

    with lab.pool:
        asyncio.run(hold_twice())


@pytest.mark.parametrize("turns", range(4))
def test_a_request_may_begin_at_any_turn_of_the_event_loop(turns: int, directory: Path) -> None:
    """This includes turns between the end of the idle time and the unloading."""
    lab = Lab(directory, idle=0)
    model = lab.by_pair["en", "de"]

    async def hold_twice() -> None:
        async with model.held():
            pass
        for _ in range(turns):
            await asyncio.sleep(0)
        async with model.held():
            held = model.loaded_translator
            await asyncio.sleep(0.05)
            assert model.translator is held
        while lab.loaded:
            await asyncio.sleep(0.01)

    with lab.pool:
        asyncio.run(asyncio.wait_for(hold_twice(), 60))


def test_random_requests_while_models_are_loaded_and_unloaded(directory: Path) -> None:
    """Only one model fits into memory, and every answer is right."""
    lab = Lab(directory, memory=1, resident=lambda: len(lab.loaded), idle=0.05)
    with lab.pool, TestClient(lab.app) as client, ThreadPoolExecutor(8) as threads:
        expected = {pair: request(client, *pair).json() for pair in PAIRS}
        asked = [
            (PAIRS[number * 7 % 3], threads.submit(request, client, *PAIRS[number * 7 % 3])) for number in range(21)
        ]
        for pair, answer in asked:
            assert answer.result().json() == expected[pair]


def test_unloaded_models_give_their_memory_back(tmp_path: Path) -> None:
    """Measure a new process. In this one, memory of other tests could hide 20 MB."""
    make_model(
        tmp_path / "a", "model.d_model=256", "model.d_ff=1024", "model.num_heads=4", "model.d_k=64", "model.d_v=64"
    )
    script = """
import asyncio, math, sys
from pathlib import Path
from nmt_cli.interop.model_kinds import find_models
from nmt_cli.serving.on_demand import Loader
from nmt_cli.system.operating_system import resident_bytes
from nmt_cli.serving.pool import load
loader = Loader(lambda model: load(model.open(), "fp32", 1)[0].translator, idle=math.inf)
model = loader.add(find_models(Path(sys.argv[1]))[0])
async def main():
    for _ in range(4):
        async with model.held():
            model.loaded_translator.submit("rot").result(30)
            print(resident_bytes())
        await model.unload()
        print(resident_bytes())
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded, freed, *_, last = map(int, done.stdout.split())
    assert loaded - freed > 10_000_000
    assert last < freed + 5_000_000


def test_a_closed_pool_closes_the_models_that_are_loaded() -> None:
    loader = Loader(Mock(), idle=math.inf)
    stored = StoredModel(Path("x"), "nmt", (), 0, 0, Path)
    loaded, other = loader.add(stored), OnDemand(stored, loader)
    loaded.translator = translator = Mock(load=(1, 2))
    assert (loaded.load, other.load) == ((1, 2), (0, 0))
    for each in (loaded, other):
        each.close()
    translator.close.assert_called_once_with()


def test_a_directory_is_served(directory: Path, tmp_path: Path) -> None:
    """Named models are loaded at the start. The server survives a damaged or vanished model in a directory."""
    models = shutil.copytree(directory, tmp_path / "models")
    (models / "notes.txt").write_text("x")
    shutil.copytree(directory / "1" / "model", models / "broken")
    (models / "broken" / "model.json").write_text("{}")
    named = str(directory / "1" / "model")
    with server(named, str(models), "--precision", "fp32") as (process, address):
        listed = json.load(urllib.request.urlopen(f"{address}/languages", timeout=60))
        assert [(each["code"], each["targets"]) for each in listed] == [
            ("en", ["de", "fr"]),
            ("de", ["en", "fr"]),
            ("fr", []),
        ]
        assert ask(address, TEXTS[0])
        shutil.rmtree(models / "3")
        body = json.dumps({"q": "rot", "source": "en", "target": "fr"}).encode()
        post = urllib.request.Request(f"{address}/translate", body, {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError, match="500"):
            urllib.request.urlopen(post, timeout=60)
        assert ask(address, TEXTS[0])
        process.terminate()
        assert process.wait(60) == 0
