"""A headless Chromium driven over its DevTools protocol, with nothing but the standard library."""

import base64
import http.client
import json
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--remote-debugging-port=0",
]  # fmt: skip
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
        key = base64.b64encode(os.urandom(16)).decode()
        headers = f"Host: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
        self.socket.sendall(f"GET /{path} HTTP/1.1\r\n{headers}Sec-WebSocket-Version: 13\r\n\r\n".encode())
        assert b"101" in self.file.readline()
        while self.file.readline() != b"\r\n":
            pass

    def _send(self, text: bytes) -> None:
        mask = os.urandom(4)
        length = bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + struct.pack(">H", len(text))
        assert len(text) < 65536
        self.socket.sendall(b"\x81" + length + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(text)))

    def _receive(self) -> dict[str, Any]:
        parts = []
        while True:
            first, second = self.file.read(2)
            length = second & 127
            if length > 125:
                size = 2 if length == 126 else 8
                length = int.from_bytes(self.file.read(size), "big")
            data = self.file.read(length)
            if first & 15 in (0, 1):  # text, or more of it; pings are left unanswered
                parts.append(data)
                if first & 0x80:
                    return json.loads(b"".join(parts))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give a command and return its result."""
        self.last += 1
        self._send(json.dumps({"id": self.last, "method": method, "params": parameters}).encode())
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
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def size(self, width: int, height: int = 900) -> None:
        """Give the window a size in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def hover(self, selector: str) -> None:
        """Move the mouse over an element."""
        place = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        x, y, width, height = self.evaluate(f"(r => [r.x, r.y, r.width, r.height])({place})")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + width / 2, y=y + height / 2)

    def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path: Path) -> None:
        """Take a picture of the whole page."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

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
    assert PROGRAM is not None
    process = subprocess.Popen(
        [PROGRAM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
    try:
        port, end = profile / "DevToolsActivePort", time.monotonic() + PATIENCE_SECONDS
        while not (port.exists() and port.read_text().count("\n")):
            assert process.poll() is None, "the browser ended at once"
            assert time.monotonic() < end, "the browser does not answer"
            time.sleep(0.05)
        pages: list[dict[str, str]] = []
        while not pages:  # the port may be open before there is a tab
            assert time.monotonic() < end, "the browser has no tab"
            connection = http.client.HTTPConnection(
                "127.0.0.1", int(port.read_text().split()[0]), timeout=PATIENCE_SECONDS
            )
            connection.request("GET", "/json/list")
            pages = [page for page in json.loads(connection.getresponse().read()) if page["type"] == "page"]
            connection.close()
        yield Tab(pages[0]["webSocketDebuggerUrl"])
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
