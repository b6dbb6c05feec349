"""A request ends at its deadline, however it spends its time, and what it held is free again."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_model import make_model

pytest.importorskip("starlette")
from serving import PAIR, service_of
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from nmt_cli.corpus.terms import Term, Terms
from nmt_cli.documents.placement import Aligned
from nmt_cli.serving import fields, pool
from nmt_cli.serving.app import create_app
from nmt_cli.serving.deadline import Deadline
from nmt_cli.serving.fields import Fields, Refusal
from nmt_cli.serving.origins import Access
from nmt_cli.serving.pool import Budget
from nmt_cli.serving.service import Limits, Service
from nmt_cli.serving.texts import TextFormat, assemble, units_of
from nmt_cli.serving.work import Workers
from nmt_cli.system.errors import DataError

WORDS = 24_000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("serve"))


def in_time(work: Awaitable[Any], seconds: float) -> float:
    """Return after how many seconds work ends that is cancelled after `seconds`."""

    async def ended() -> float:
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await work
        return time.monotonic() - begun

    return asyncio.run(ended())


async def processes() -> list[int]:
    """Return the processes that this one has, when those that were killed are gone."""
    await asyncio.sleep(0.1)
    return [int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def with_workers(work: Callable[[Workers], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        workers = Workers()
        try:
            return await work(workers)
        finally:
            await workers.close()

    return asyncio.run(run())


PAGE = "<p>der <b>Hund</b> geht.</p>" * 40


def test_a_process_parses_and_writes_as_this_one_does() -> None:
    form = TextFormat("html", ignored=("i",), language="de")
    found = [[Aligned("the dog runs.", [(3, 0), (7, 4), (12, 9)])] * 40]

    async def parse_and_write(workers: Workers) -> tuple[Any, Any, int]:
        units = await workers.in_process(form, [PAGE, "<p>rot"])
        written = await workers.in_process(form, [PAGE], [found])
        before = await processes()
        await workers.close()
        return units, written, len(before) - len(await processes())

    assert with_workers(parse_and_write) == (units_of(form, [PAGE, "<p>rot"]), assemble(form, [PAGE], [found]), 1)


def test_what_is_not_of_its_kind_is_refused_by_a_process_that_lives_on() -> None:
    async def refuse(workers: Workers) -> list[list[str]]:
        with pytest.raises(DataError, match="no message catalogue"):
            await workers.in_process(TextFormat("po"), ["/etc/hostname"])
        return await workers.in_process(TextFormat(), ["a"])  # type: ignore[no-any-return]

    assert with_workers(refuse) == [["a"]]


@pytest.mark.parametrize("seconds", [0, 0.01, 0.1, 0.3, 0.6])
def test_a_process_ends_with_the_request_that_it_works_for(seconds: float) -> None:
    """Also while it starts. The pattern is one of a tree that had slow ones: a long text takes longer anyway."""
    text = "<b>der</b> Hund " * 400_000

    async def give_up(workers: Workers) -> list[int]:
        before = await processes()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds):
                    await workers.in_process(TextFormat("html"), [text])
        await asyncio.sleep(0.3)
        assert await processes() == before
        return await workers.in_process(TextFormat("html"), ["<p>a"])  # type: ignore[no-any-return]

    assert with_workers(give_up) == [["a"]]


def test_a_process_that_is_killed_is_an_answer_to_try_again() -> None:
    async def kill(workers: Workers) -> list[list[str]]:
        before = await processes()
        await workers.in_process(TextFormat("html"), ["<p>a"])
        [new] = {*await processes()} - {*before}
        os.kill(new, signal.SIGTERM)  # of the whole group: requests in hand are finished first
        os.kill(new, signal.SIGINT)
        assert await workers.in_process(TextFormat("html"), ["<p>a"]) == [["a"]]
        work = asyncio.ensure_future(workers.in_process(TextFormat("html"), ["<b>der</b> Hund " * 400_000]))
        await asyncio.sleep(0.3)
        os.kill(new, signal.SIGKILL)
        with pytest.raises(Refusal, match="try again later") as caught:
            await work
        assert caught.value.status == 503
        return await workers.in_process(TextFormat("html"), ["<p>b"])  # type: ignore[no-any-return]

    assert with_workers(kill) == [["b"]]


def test_code_in_the_working_directory_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "nmt_cli", "anyio", "ctypes"):
        (tmp_path / f"{name}.py").write_text("open('RAN', 'w')")
    monkeypatch.chdir(tmp_path)
    assert with_workers(lambda workers: workers.in_process(TextFormat("html"), ["<p>a"])) == [["a"]]
    assert not (tmp_path / "RAN").exists()


def test_a_process_heeds_a_limit_of_memory_that_is_lower_than_its_own() -> None:
    code = """
        import asyncio, resource
        from nmt_cli.serving.texts import TextFormat
        from nmt_cli.serving.work import Workers
        resource.setrlimit(resource.RLIMIT_AS, (900_000_000, 900_000_000))
        print(asyncio.run(Workers().in_process(TextFormat("html"), ["<p>a"])))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.stdout == "[['a']]\n", done.stderr


def test_a_loop_in_a_thread_stops_at_the_next_item() -> None:
    seen = list[int]()

    def look(item: int) -> None:
        seen.append(item)
        time.sleep(0.01)

    assert in_time(Workers().map_in_thread(look, range(10_000)), 0.1) < 10
    time.sleep(0.1)
    count = len(seen)
    time.sleep(0.1)
    assert 0 < count == len(seen) < 10_000
    assert asyncio.run(Workers().map_in_thread(pow, [2, 3], [3, 2])) == [8, 9]


def ask_through(app: Callable[..., Awaitable[None]], seconds: float) -> list[dict[str, Any]]:
    """Return the messages of an application behind a deadline."""
    sent = list[dict[str, Any]]()

    def refuse(request: Request, status: int, text: str) -> JSONResponse:
        return JSONResponse({"error": text, "path": request.url.path}, status)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    scope = {"type": "http", "path": "/a", "headers": [], "query_string": b"", "server": ("a", 1), "scheme": "http"}
    asyncio.run(Deadline(app, seconds, refuse)(scope, receive, send))
    return sent


def test_a_request_beyond_its_deadline_is_answered_with_504() -> None:
    async def slow(*_: Any) -> None:
        await asyncio.sleep(60)

    start, body = ask_through(slow, 0.1)
    assert start["status"] == 504
    text = "The request took longer than 0.1 seconds. Send less text at once, or try again later"
    assert json.loads(body["body"]) == {"error": text, "path": "/a"}


def test_an_answer_that_has_begun_is_not_answered_again() -> None:
    async def stuck(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(60)

    assert [message.get("status") for message in ask_through(stuck, 0.1)] == [200]


def test_a_timeout_of_the_application_itself_is_no_deadline() -> None:
    async def failing(*_: Any) -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        ask_through(failing, 60)


@pytest.mark.parametrize("stage", ["submit", "aligned"])
def test_the_deadline_covers_the_work_before_and_after_the_search(
    model: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    real = getattr(pool.ServedModel, stage)

    def slow(*arguments: Any) -> Any:
        time.sleep(0.02)
        return real(*arguments)

    monkeypatch.setattr(pool.ServedModel, stage, slow)
    text = "<p>der Hund</p>" * 150
    with service_of(model, limits=Limits(seconds=1)) as service, TestClient(create_app(service)) as client:
        answer = client.post("/translate", json={"q": text, "format": "html", **PAIR})
        assert (answer.status_code, "longer than 1 seconds" in answer.json()["error"]) == (504, True)
        held = service.pool.texts, service.pool.costs.used, service.body_memory.bytes
        assert held == (0, 0, 0)
        monkeypatch.setattr(pool.ServedModel, stage, real)
        assert client.post("/translate", json={"q": "rot", **PAIR}).status_code == 200


@pytest.mark.parametrize(
    ("held", "amount", "fits"), [(0, 500, True), (1, 99, True), (60, 40, True), (61, 40, False), (1000, 10, True)]
)
def test_a_budget_refuses_what_would_exceed_it_beside_others(held: int, amount: int, fits: bool) -> None:
    budget = Budget(100, 10)
    with budget.reserve(held):
        before = budget.used
        if fits:
            with budget.reserve(amount):
                assert budget.used == before + (amount if amount > 10 else 0)
        else:
            with pytest.raises(Refusal, match="Too much text") as caught, budget.reserve(amount):
                pass
            assert (caught.value.status, caught.value.headers) == (429, {"Retry-After": "1"})
        assert budget.used == before == (held if held > 10 else 0)
    assert budget.used == 0


def read(body: bytes, kind: str) -> Fields:
    chunks = [body[:40], body[40:]]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    scope = {"type": "http", "headers": [(b"content-type", kind.encode())], "query_string": b""}
    found = asyncio.run(fields.read(Request(scope, receive), 1 << 20, 5, fields.BodyMemory()))
    assert not chunks
    return found


@pytest.mark.parametrize("count", [40, 40_000])
def test_a_form_is_read_whatever_its_size(count: int) -> None:
    """A large one takes another thread."""
    form = "--b\r\nContent-Disposition: form-data; name=q\r\n\r\n" + "ä" * count + "\r\n--b--\r\n"
    assert read(form.encode(), "multipart/form-data; boundary=b").text("q") == "ä" * count
    assert read(b"q=" + b"%C3%A4" * count, "application/x-www-form-urlencoded").text("q") == "ä" * count


def test_long_requests_beside_each_other_are_refused_and_short_ones_pass(model: Path) -> None:
    with service_of(model, limits=Limits()) as service, TestClient(create_app(service)) as client:
        service.pool.costs.limit = 20_000
        sentences = "der Hund geht. " * 200
        with service.pool.costs.reserve(18_000):
            answer = client.post("/translate", json={"q": sentences, **PAIR})
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
            assert client.post("/translate", json={"q": "der Hund geht. " * 40, **PAIR}).status_code == 200
            alternatives = {"q": "der Hund geht. " * 40, "alternatives": 7, **PAIR}
            assert client.post("/translate", json=alternatives).status_code == 429
            assert service.pool.costs.used == 18_000
        assert client.post("/translate", json={"q": sentences, **PAIR}).status_code == 200
        assert service.pool.costs.used == 0


@pytest.mark.parametrize(
    ("path", "text", "alternatives", "cost"),
    [
        ("translate", "rot" * 5, 0, 15 + 50),
        ("translate", "rot" * 5, 1, 2 * (15 + 50)),
        ("sentences", "rot" * 5, 2, 3 * (15 + 50)),
        ("translate", "rot\n" * 4, 0, 12 + 5 * 50),  # an empty line after them
        ("translate", "der Hund geht. " * 100, 0, 1500 + 100 * 50),  # more than the model takes at once
        ("sentences", "rot! " * 6, 0, 24 + 6 * 50),
        ("sentences", "rot! " * 6, 3, 4 * (24 + 6 * 50)),
    ],
)
def test_the_cost_of_a_request_is_bounded(model: Path, path: str, text: str, alternatives: int, cost: int) -> None:
    """Characters, 50 for each line or sentence, and as much again for each alternative."""
    fields = {"q": text, "alternatives": alternatives, **PAIR}
    with service_of(model, limits=Limits()) as service, TestClient(create_app(service)) as client:
        service.pool.max_cost = cost
        assert client.post(f"/{path}", json=fields).status_code == 200
        service.pool.max_cost = cost - 1
        answer = client.post(f"/{path}", json=fields)
        assert (answer.status_code, "too many" in answer.json()["error"]) == (400, True)
        assert service.pool.costs.used == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"x": [[[]] * 300] * 300}, "more than 20,000 values"),
        ({"x": list(range(20_001))}, "more than 20,000 values"),
        ({"x": [{str(number): 1} for number in range(20_001)]}, "more than 20,000 values"),
        ({"x": "a" * 10_001}, "x has more than 10,000 characters"),
        ({"ignore_tags": ["a" * 100] * 101}, "ignore_tags has more than 10,000 characters"),
        ({"context": "a" * 200_000, "format": "html", "x": "[,{" * 3000}, ""),
    ],
)
def test_fields_that_no_route_reads_take_little_memory(model: Path, fields: dict[str, Any], words: str) -> None:
    with service_of(model, limits=Limits(100_000, 150)) as service, TestClient(create_app(service)) as client:
        answer = client.post("/translate", json={"q": '[{"a": "\\"[,"}]', **PAIR, **fields})
        assert answer.status_code == (400 if words else 200), answer.text
        assert words in answer.text


def test_a_client_that_goes_away_while_its_text_is_parsed_ends_that_work(model: Path) -> None:
    text = json.dumps({"q": "<b>der</b> Hund " * 6000, "format": "html", **PAIR}).encode()
    sent = [{"type": "http.request", "body": text}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return sent.pop(0)

    async def send(message: Any) -> None:
        assert message.get("status", 499) == 499

    async def ask(service: Service) -> None:
        before = await processes()
        headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": "/translate", "headers": headers, "query_string": b""}
        begun = time.monotonic()
        await create_app(service)(scope, receive, send)
        assert time.monotonic() - begun < 5
        assert await processes() == before
        assert (service.pool.texts, service.pool.costs.used) == (0, 0)

    with service_of(model, limits=Limits()) as service:
        asyncio.run(ask(service))


def seconds_of(work: Callable[[], Any]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def test_many_terms_that_begin_alike_are_found_in_long_texts_at_once() -> None:
    """By comparing each with every place these would take minutes."""
    terms = Terms([Term(f"the {number}", (f"das {number}", "nie " * 49)) for number in range(4900)])
    variants = ["".join(each.upper() if code >> bit & 1 else each for bit, each in enumerate("abcdefghijklm"))
                for code in range(4900)]  # fmt: skip
    cases = Terms([Term(variant, ("x",)) for variant in variants])
    text = "the " * WORDS + "the 17"

    def look() -> None:
        assert [term.source for term in terms.find(text)] == ["the 17"]
        assert {term.said("das " * WORDS + "x") for term in terms.terms} == {None}
        assert terms.terms[17].said("das " * WORDS + "17") == "das 17"
        assert cases.find("abcdefghijklM " * WORDS) == [cases.terms[4096]]

    assert seconds_of(look) < 10


def test_a_page_of_another_site_can_read_that_its_request_took_too_long(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(Service, "read", slow)
    origin = "https://a.example"
    with service_of(model, limits=Limits(seconds=0.1)) as service:
        with TestClient(create_app(service, Access(origins=(origin,)))) as client:
            answer = client.post("/translate", json={"q": "a"}, headers={"Origin": origin})
    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (504, origin)
