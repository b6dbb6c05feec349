"""A headless Chromium driven over its DevTools protocol, with nothing but the standard library."""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0"),
]
PATIENCE_SECONDS = 60


class Tab:
    """One page. Every event that it sends is kept in `events`."""

    def __init__(self, address: str) -> None:
        host, _, path = address.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self.socket = socket.create_connection((name, int(port)), PATIENCE_SECONDS)
        self.file = self.socket.makefile("rb")
        self.events: list[dict[str, Any]] = []
        self.last = 0
        headers = f"Host: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(f"GET /{path} HTTP/1.1\r\n{headers}Sec-WebSocket-Key: {key}\r\n\r\n".encode())
        while self.file.readline() != b"\r\n":
            pass

    def _receive(self) -> dict[str, Any]:
        parts = []
        while True:
            first, second = self.file.read(2)
            length = second & 127
            if length > 125:
                length = int.from_bytes(self.file.read(2 if length == 126 else 8), "big")
            parts.append(self.file.read(length))
            if first & 0x80:
                return json.loads(b"".join(parts))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give a command and return its result."""
        self.last += 1
        text = json.dumps({"id": self.last, "method": method, "params": parameters}).encode()
        # A masked text frame with its length in two bytes; the mask is zeros.
        self.socket.sendall(b"\x81\xfe" + struct.pack(">H", len(text)) + bytes(4) + text)
        while True:
            message = self._receive()
            if message.get("id") == self.last:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

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
    process = subprocess.Popen(
        [str(PROGRAM), *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
    try:
        port, end, pages = profile / "DevToolsActivePort", time.monotonic() + PATIENCE_SECONDS, []
        while not pages:  # the port may be open before there is a tab
            assert process.poll() is None, "the browser ended at once"
            assert time.monotonic() < end, "the browser does not answer"
            time.sleep(0.05)
            if port.exists() and "\n" in port.read_text():
                with urllib.request.urlopen(f"http://127.0.0.1:{port.read_text().split()[0]}/json/list") as answer:
                    pages = [page for page in json.load(answer) if page["type"] == "page"]
        yield Tab(pages[0]["webSocketDebuggerUrl"])
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
