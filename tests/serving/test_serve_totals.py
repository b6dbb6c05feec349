"""Limits and figures of the server count several glossaries, models, texts and bodies together."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette")
from serving import PAIR, client_of, service_of
from starlette.requests import Request
from starlette.testclient import TestClient
from test_serve_limits import GET, answer, ended, listening
from tiny_model import make_model

from nmt_cli.serving import connections, detect, fields, glossaries, metrics, work
from nmt_cli.serving.app import create_app
from nmt_cli.serving.database import Database
from nmt_cli.serving.fields import Refusal
from nmt_cli.serving.glossaries import Glossaries, parse
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.origins import access_for
from nmt_cli.serving.pool import ModelPool, while_connected
from nmt_cli.serving.service import Limits
from nmt_cli.serving.texts import TextFormat
from nmt_cli.translation.options import SearchOptions


def test_translations_of_all_glossaries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glossaries, "MAX_FORMS", 6)
    kept, pair = Glossaries(Database()), ("en", "de")
    first = kept.add("first", {pair: parse("a\tx|y\nb\tz", "tsv")})
    kept.add("second", {pair: parse("a\tx|y|z", "tsv")})
    assert [each.term_count for glossary in kept.all() for each in glossary.dictionaries] == [2, 1]
    for _ in range(2):  # a refused glossary is not counted
        with pytest.raises(Refusal, match="would have 7 translations, more than 6") as caught:
            kept.add("third", {pair: parse("a\tx", "tsv")})
        assert caught.value.status == 456
    kept.remove(first.key)
    kept.add("third", {pair: parse("a\tx|y|z", "tsv")})
    assert [glossary.name for glossary in kept.all()] == ["second", "third"]


def test_the_most_recently_used_glossaries_stay_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two glossaries fit. The one that was used longest ago is removed and parsed again."""
    monkeypatch.setattr(glossaries, "MAX_PARSED_FORMS", 4)
    again = list[str]()

    def noted(entries: str, kind: str) -> Any:
        again.append(entries[0])
        return parse(entries, kind)

    async def run() -> None:
        kept, workers = Glossaries(Database()), work.Workers()
        monkeypatch.setattr(glossaries, "parse", noted)
        for name in "abcbabc":
            terms = await kept.terms(f"{name}\tx|y", workers)
            assert [term.source for term in terms.terms] == [name]

    asyncio.run(run())
    assert again == ["a", "b", "c", "a", "c"]


def test_queue_time_is_measured_per_line_and_search_time_per_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request's search begins with the first segment of any line; a line without segments is not counted."""
    monkeypatch.setattr(metrics, "monotonic", lambda: 30.0)
    lines: Iterator[list[Any]] = (
        [SimpleNamespace(started=at) for at in times] for times in ((14, 18), (), (12,), (25,))
    )
    texts: Any = [SimpleNamespace(drafts=[next(lines), next(lines)]), SimpleNamespace(drafts=[*lines])]
    measured = Metrics()
    measured.observe(texts, 10.0)
    measured.observe([], 10.0)
    page = measured.page().decode().split("\n")
    assert {"nmt_queue_seconds_count 3.0", "nmt_queue_seconds_sum 21.0"} <= {*page}  # 4 + 2 + 15 seconds
    assert {"nmt_search_seconds_count 1.0", "nmt_search_seconds_sum 18.0"} <= {*page}


def test_the_limit_on_the_memory_for_bodies_is_exact() -> None:
    memory = fields.BodyMemory()
    memory.add(fields.MAX_BODY_MEMORY - 1)
    memory.add(1)
    with pytest.raises(Refusal, match="Too many large requests"):
        memory.add(1)
    assert memory.bytes == fields.MAX_BODY_MEMORY


def test_one_core_runs_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "usable_cores", lambda: 1)

    async def run() -> Any:
        workers = work.Workers()
        try:
            async with asyncio.timeout(60):
                return await workers.in_process(TextFormat("html"), ["<p>rot</p><p>und</p>", "<b>der</b> Hund"])
        finally:
            await workers.close()

    assert asyncio.run(run()) == [["rot", "und"], ["der Hund"]]


def test_empty_lines_of_a_glossary_are_bounded_too() -> None:
    assert len(parse("a\tx\n" + "\n" * 19_998 + "b\ty", "tsv").terms) == 2
    with pytest.raises(Refusal, match="more than 20,000 lines"):
        parse("a\tx\n" + "\n" * 19_999 + "b\ty", "tsv")


@pytest.mark.parametrize(("address", "named"), [("192.0.2.1", True), ("127.0.0.1", False), ("localhost", False)])
def test_other_machines_may_use_the_name_of_this_one(
    monkeypatch: pytest.MonkeyPatch, address: str, named: bool
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Box")
    access = access_for(address, ["example.org", "Other.Example."], [])
    assert access.has_host("box:5000") == named
    assert access.has_host(address)
    assert access.has_host("example.org")
    assert access.has_host("other.example")


@pytest.mark.parametrize(("count", "fits"), [(6600, True), (7000, False)])
def test_lists_objects_and_values_of_a_body_are_added_up(model: Path, count: int, fits: bool) -> None:
    with service_of(model, limits=Limits(100_000, 150)) as service, TestClient(create_app(service)) as client:
        answer = client.post("/translate", json={"q": "", **PAIR, "x": [[{}]] * count})
        assert answer.status_code == (200 if fits else 400), answer.text
        assert ("more than 20,000 values" in answer.text) == (not fits)


def test_the_connection_that_waits_longest_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.05)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(send, b"here")

    async def test(place: tuple[str, int], listener: Any) -> None:
        opened = []
        for _ in range(3):
            opened.append(await asyncio.open_connection(*place))
            await asyncio.sleep(0.02)
        opened[0][1].write(GET + b"\r\n")  # the second has now waited longest
        await opened[0][0].readuntil(b"here")
        await asyncio.sleep(0.1)
        another = await asyncio.open_connection(*place)
        another[1].write(GET + b"\r\n")
        await another[0].readuntil(b"here")
        assert await ended(opened[1][0]) == b""
        for reader, writer in (opened[0], opened[2]):
            writer.write(GET + b"\r\n")
            await reader.readuntil(b"here")

    listening(app, 3, test)


def test_deepl_and_files_cost_one_translation(model: Path) -> None:
    """The cost is 15 for the characters and 50 for the line."""
    with service_of(model, limits=Limits()) as service, TestClient(create_app(service)) as client:
        for cost, status in ((15 + 50, 200), (15 + 49, 400)):
            service.pool.max_cost = cost
            deepl = {"text": ["rot" * 5], "source_lang": "EN", "target_lang": "DE"}
            assert client.post("/v2/translate", json=deepl).status_code == status
            file = {"file": ("a.txt", "rot" * 5)}
            assert client.post("/translate_file", data=PAIR, files=file).status_code == status


def test_the_first_model_is_the_pages_default(model: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path, "corpus.src=fr", "corpus.tgt=it")
    with service_of(model, other) as service, TestClient(create_app(service)) as client:
        sides = client.get("/frontend/settings").json()["language"]
        assert {side: language["code"] for side, language in sides.items()} == {"source": "en", "target": "de"}


def test_no_task_outlives_its_request() -> None:
    async def receive() -> Any:
        await asyncio.Event().wait()

    async def run(fails: bool) -> None:
        async def work() -> int:
            await asyncio.sleep(0)
            if fails:
                raise KeyError
            return 1

        with pytest.raises(KeyError) if fails else contextlib.nullcontext():
            assert await while_connected(Request({"type": "http"}, receive), work()) == 1
        await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    for fails in (False, True):
        asyncio.run(run(fails))


@pytest.mark.parametrize("fails", [False, True])
def test_every_text_of_a_request_that_ends_early_is_cancelled(fails: bool) -> None:
    """The request is cancelled, or its last text cannot be submitted."""
    submitted, cancelled = list[str](), list[str]()

    def submit(position: int, unit: str, *_: object) -> Any:
        if fails and unit == "c":
            raise KeyError(unit)
        submitted.append(unit)
        return SimpleNamespace(drafts=[[]], cancel=lambda: cancelled.append(unit))

    async def run() -> None:
        served: Any = SimpleNamespace(submit=submit)
        with ModelPool([], Metrics(), queue=5) as pool:
            task = asyncio.ensure_future(pool.translate(served, ["a", "b", "c"], SearchOptions()))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(KeyError if fails else asyncio.CancelledError):
                await task
            assert pool.costs.used == 0

    asyncio.run(run())
    assert cancelled == submitted == ["a", "b", "c"][: 2 if fails else 3]


class Classifier:
    """A language classifier with fixed probabilities."""

    def __init__(self, probabilities: dict[str, float]) -> None:
        self.probabilities = probabilities
        self.labels = [*probabilities]

    def set_languages(self, codes: Any) -> None:
        self.labels = [*codes]

    def rank(self, _text: str) -> list[tuple[str, float]]:
        return sorted(((code, self.probabilities[code]) for code in self.labels), key=lambda pair: -pair[1])


@pytest.mark.parametrize(
    ("probabilities", "found"),
    [
        ({"nb": 0.5, "da": 0.45, "de": 0.03, "en": 0.02}, [("nb", 95), ("de", 3), ("en", 2)]),
        ({"nb": 0.5, "fr": 0.45, "de": 0.03, "en": 0.02}, [("de", 3), ("en", 2)]),
        ({"de": 0.95, "nb": 0.05, "en": 0.0}, [("de", 95), ("en", 0)]),
    ],
)
def test_languages_that_are_easily_mistaken_count_together(
    monkeypatch: pytest.MonkeyPatch, probabilities: dict[str, float], found: list[tuple[str, int]]
) -> None:
    monkeypatch.setattr(detect, "load_classifier", lambda _: Classifier(probabilities))
    assert detect.Detector(["en"], ["en", "de"]).detect("hund") == found


def test_a_body_of_escapes_does_not_hold_the_event_loop(model: Path) -> None:
    with client_of(model) as client:
        begun = time.process_time()
        answer = client.post("/translate", content=b'"\\' * 30_000, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert time.process_time() - begun < 2
