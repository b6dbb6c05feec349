"""A headless Chromium driven over its DevTools protocol, with nothing but the standard library."""

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
]


class Tab:
    """One page. Every event that it sends is kept in `events`."""

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers, self.buffer = commands, answers, b""
        self.events: list[dict[str, Any]] = []
        self.numbers, self.session = itertools.count(1), {}
        page = self.call("Target.createTarget", url="about:blank")
        self.session = self.call("Target.attachToTarget", flatten=True, **page)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            data = os.read(self.answers, 1 << 20)
            assert data, "the browser ended"
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give a command and return its result."""
        number = next(self.numbers)
        command = {"id": number, "method": method, "params": parameters, **self.session}
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while (message := self._receive()).get("id") != number:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(self, page: Path) -> None:
        """Load a file and wait until it has run."""
        for domain in ("Network", "Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def hover(self, selector: str) -> None:
        """Move the mouse over an element."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{place}.scrollIntoView({{block: 'center'}})")
        x, y, width, height = self.evaluate(f"(r => [r.x, r.y, r.width, r.height])({place}.getBoundingClientRect())")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + width / 2, y=y + height / 2)

    def requests(self) -> list[str]:
        """Return the addresses that were asked for, without what the page holds itself."""
        sent = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def complaints(self) -> list[Any]:
        """Return everything on the console, errors that nobody caught, and what the page's policy forbade."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event["method"] in kinds]


@contextmanager
def tab(profile: Path) -> Iterator[Tab]:
    """Start the browser with a fresh profile and yield its tab."""
    (commands_read, commands), (answers, answers_write) = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [str(PROGRAM), *OPTIONS, f"--user-data-dir={profile}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
        close_fds=False,
        preexec_fn=lambda: [os.dup2(commands_read, 3), os.dup2(answers_write, 4)],  # where the browser expects them
    )
    os.close(commands_read)
    os.close(answers_write)
    try:
        yield Tab(commands, answers)
    finally:
        process.terminate()
        process.wait(60)
        os.close(commands)
        os.close(answers)
