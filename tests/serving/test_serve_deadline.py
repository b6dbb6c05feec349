"""A request ends at its deadline in every stage, and releases its resources."""

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


def in_time(work: Awaitable[Any], seconds: float) -> float:
    """Cancel work after `seconds`, and return the seconds from its start to its end."""

    async def ended() -> float:
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await work
        return time.monotonic() - begun

    return asyncio.run(ended())


async def processes() -> list[int]:
    """Return the IDs of the child processes, without those just killed."""
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


def test_a_process_gives_the_same_units_and_translations() -> None:
    form = TextFormat("html", ignored=("i",), language="de")
    found = [[Aligned("the dog runs.", [(3, 0), (7, 4), (12, 9)])] * 40]

    async def parse_and_write(workers: Workers) -> tuple[Any, Any, int]:
        units = await workers.in_process(form, [PAGE, "<p>rot"])
        written = await workers.in_process(form, [PAGE], [found])
        before = await processes()
        await workers.close()
        return units, written, len(before) - len(await processes())

    assert with_workers(parse_and_write) == (units_of(form, [PAGE, "<p>rot"]), assemble(form, [PAGE], [found]), 1)


def test_a_process_survives_a_malformed_text() -> None:
    async def refuse(workers: Workers) -> list[list[str]]:
        with pytest.raises(DataError, match="not a message catalog"):
            await workers.in_process(TextFormat("po"), ["/etc/hostname"])
        return await workers.in_process(TextFormat(), ["a"])  # type: ignore[no-any-return]

    assert with_workers(refuse) == [["a"]]


@pytest.mark.parametrize("seconds", [0, 0.05, 0.3])
def test_a_process_is_killed_with_its_request(seconds: float) -> None:
    """This holds at any time, even while the process starts."""
    text = "<b>der</b> Hund " * 400_000

    async def give_up(workers: Workers) -> list[int]:
        before = await processes()
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds):
                    await workers.in_process(TextFormat("html"), [text])
        await asyncio.sleep(0.3)
        assert await processes() == before
        return await workers.in_process(TextFormat("html"), ["<p>a"])  # type: ignore[no-any-return]

    assert with_workers(give_up) == [["a"]]


def test_a_killed_process_is_answered_with_try_again() -> None:
    async def kill(workers: Workers) -> list[list[str]]:
        before = await processes()
        await workers.in_process(TextFormat("html"), ["<p>a"])
        [new] = {*await processes()} - {*before}
        os.kill(new, signal.SIGTERM)  # a signal to the process group does not end it
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


def test_modules_in_the_working_directory_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "nmt_cli", "anyio", "ctypes"):
        (tmp_path / f"{name}.py").write_text("open('RAN', 'w')")
    monkeypatch.chdir(tmp_path)
    assert with_workers(lambda workers: workers.in_process(TextFormat("html"), ["<p>a"])) == [["a"]]
    assert not (tmp_path / "RAN").exists()


def test_a_process_keeps_a_lower_memory_limit() -> None:
    code = """
        import asyncio, resource
        from nmt_cli.serving.texts import TextFormat
        from nmt_cli.serving.work import Workers
        resource.setrlimit(resource.RLIMIT_AS, (900_000_000, 900_000_000))
        print(asyncio.run(Workers().in_process(TextFormat("html"), ["<p>a"])))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.stdout == "[['a']]\n", done.stderr


def test_a_cancelled_loop_stops_at_the_next_item() -> None:
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
    """Return the messages that an application with a deadline sends."""
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


def test_a_request_after_its_deadline_gets_504() -> None:
    async def slow(*_: Any) -> None:
        await asyncio.sleep(60)

    start, body = ask_through(slow, 0.1)
    assert start["status"] == 504
    text = "The request took longer than 0.1 seconds. Send less text per request, or try again later"
    assert json.loads(body["body"]) == {"error": text, "path": "/a"}


def test_a_response_that_has_begun_gets_no_504() -> None:
    async def stuck(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(60)

    assert [message.get("status") for message in ask_through(stuck, 0.1)] == [200]


def test_a_timeout_error_of_the_application_passes_through() -> None:
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
def test_a_budget_refuses_large_amounts_beside_others(held: int, amount: int, fits: bool) -> None:
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
def test_small_and_large_forms_are_read(count: int) -> None:
    """A large form is parsed in another thread."""
    form = "--b\r\nContent-Disposition: form-data; name=q\r\n\r\n" + "ä" * count + "\r\n--b--\r\n"
    assert read(form.encode(), "multipart/form-data; boundary=b").text("q") == "ä" * count
    assert read(b"q=" + b"%C3%A4" * count, "application/x-www-form-urlencoded").text("q") == "ä" * count


def test_concurrent_long_requests_are_refused_and_short_ones_pass(model: Path) -> None:
    with service_of(model, limits=Limits()) as service, TestClient(create_app(service)) as client:
        service.pool.costs.limit = 20_000
        sentences = "der Hund geht. " * 200
        with service.pool.costs.reserve(18_000):
            answer = client.post("/translate", json={"q": sentences, **PAIR})
            assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
            assert client.post("/translate", json={"q": "der Hund geht. " * 40, **PAIR}).status_code == 200
            alternatives = {"q": "der Hund geht. " * 40, "alternatives": 7, **PAIR}
            assert client.post("/translate", json=alternatives).status_code == 429
            few = {"q": "rot " * 60, "alternatives": 10, **PAIR}  # eleven times as many characters
            assert client.post("/translate", json=few).status_code == 429
            assert service.pool.costs.used == 18_000
        assert client.post("/translate", json={"q": sentences, **PAIR}).status_code == 200
        assert service.pool.costs.used == 0


@pytest.mark.parametrize(
    ("path", "text", "alternatives", "cost"),
    [
        ("translate", "rot" * 5, 0, 15 + 50),
        ("translate", "rot" * 5, 1, 2 * (15 + 50)),
        ("sentences", "rot" * 5, 2, 3 * (15 + 50)),
        ("translate", "rot\n" * 4, 0, 12 + 5 * 50),  # the last line is empty
        ("translate", "der Hund geht. " * 100, 0, 1500 + 100 * 50),  # more than the model's maximum length
        ("sentences", "rot! " * 6, 0, 24 + 6 * 50),
        ("sentences", "rot! " * 6, 3, 4 * (24 + 6 * 50)),
    ],
)
def test_the_cost_of_a_request_is_bounded(model: Path, path: str, text: str, alternatives: int, cost: int) -> None:
    """Characters plus 50 per line or sentence, times the number of translations."""
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
def test_unused_fields_are_bounded(model: Path, fields: dict[str, Any], words: str) -> None:
    with service_of(model, limits=Limits(100_000, 150)) as service, TestClient(create_app(service)) as client:
        answer = client.post("/translate", json={"q": '[{"a": "\\"[,"}]', **PAIR, **fields})
        assert answer.status_code == (400 if words else 200), answer.text
        assert words in answer.text


def test_a_disconnect_ends_parsing(model: Path) -> None:
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


def test_many_similar_terms_are_found_fast_in_long_texts() -> None:
    """Comparing each term with each position would take minutes."""
    terms = Terms([Term(f"the {number}", (f"das {number}", "nie " * 49)) for number in range(4900)])
    variants = ["".join(each.upper() if code >> bit & 1 else each for bit, each in enumerate("abcdefghijklm"))
                for code in range(4900)]  # fmt: skip
    cases = Terms([Term(variant, ("x",)) for variant in variants])
    text = "the " * WORDS + "the 17"

    def look() -> None:
        assert [term.source for term in terms.find(text)] == ["the 17"]
        assert {term.form_in("das " * WORDS + "x") for term in terms.terms} == {None}
        assert terms.terms[17].form_in("das " * WORDS + "17") == "das 17"
        assert cases.find("abcdefghijklM " * WORDS) == [cases.terms[4096]]

    assert seconds_of(look) < 10


def test_an_allowed_page_can_read_a_504(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(*_: Any) -> Any:
        await asyncio.sleep(60)

    monkeypatch.setattr(Service, "read", slow)
    origin = "https://a.example"
    with service_of(model, limits=Limits(seconds=0.1)) as service:
        with TestClient(create_app(service, Access(origins=(origin,)))) as client:
            answer = client.post("/translate", json={"q": "a"}, headers={"Origin": origin})
    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (504, origin)
