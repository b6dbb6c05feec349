"""Drive Chromium through the DevTools protocol. Tests with a browser are skipped if Chromium is not installed."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time

import pytest

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
]
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed: apt-get install chromium"),
    pytest.mark.timeout(300),
]

KEYS = {
    **{"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35, "Home": 36},
    **{"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40},
}


class Tab:
    """One page. `events` has the events that the browser sent since the last `open`."""

    def __init__(self, commands, answers):
        self.commands, self.answers, self.buffer = commands, answers, b""
        self.numbers, self.session, self.events = itertools.count(1), {}, []
        page = self.call("Target.createTarget", url="about:blank")
        self.session = self.call("Target.attachToTarget", flatten=True, **page)

    def _receive(self):
        while b"\0" not in self.buffer:
            data = os.read(self.answers, 1 << 20)
            assert data, "the browser exited"
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, **parameters):
        number = next(self.numbers)
        command = {"id": number, "method": method, "params": parameters, **self.session}
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while (message := self._receive()).get("id") != number:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def see(self, expression):
        """Return the value of a JavaScript expression; a promise is awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression, seconds=30):
        """Wait until a JavaScript expression is true, and return its value."""
        end = time.monotonic() + seconds
        while not (value := self.see(expression)):
            assert time.monotonic() < end, f"never true: {expression}\n{self.see('document.body.innerText')}"
            time.sleep(0.02)
        return value

    def open(self, url):
        """Load a page and wait for its load event."""
        for domain in ("Network", "Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not self.sent("Page.loadEventFired"):
            self.events.append(self._receive())

    def hover(self, selector):
        """Move the pointer to the middle of an element, and return its coordinates."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.see(f"{element}.scrollIntoView({{block: 'center'}})")
        x, y, width, height = self.see(f"(r => [r.x, r.y, r.width, r.height])({element}.getBoundingClientRect())")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + width / 2, y=y + height / 2)
        return {"x": x + width / 2, "y": y + height / 2}

    def click(self, selector):
        point = self.hover(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **point)

    def sent(self, *methods):
        return [event["params"] for event in self.events if event["method"] in methods]

    def press(self, *keys):
        """Press keys by their names: "Tab", "Shift+Tab", "ArrowDown"."""
        for key in keys:
            shift, name = 8 * key.startswith("Shift+"), key.removeprefix("Shift+")
            text = {"Enter": "\r", " ": " "}.get(name, "")
            event = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name], "modifiers": shift, "text": text}
            self.call("Input.dispatchKeyEvent", type="keyDown", **event)
            self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def allow_clipboard(self):
        self.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])

    def paste(self, text):
        """Paste text into the focused element."""
        self.allow_clipboard()
        self.see(f"navigator.clipboard.writeText({json.dumps(text)})")
        key = {"key": "v", "code": "KeyV", "windowsVirtualKeyCode": 86, "modifiers": 2}
        self.call("Input.dispatchKeyEvent", type="keyDown", commands=["paste"], **key)
        self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def drop(self, *paths):
        """Drag files from the desktop onto the page, and drop them."""
        data = {"items": [], "files": list(map(str, paths)), "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=200, y=300, data=data)

    def save_in(self, directory):
        """Let the page save files in a directory."""
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(directory))

    def resize(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)


@contextlib.contextmanager
def browser(profile):
    """Start Chromium with an empty profile, and yield a tab."""
    (commands_read, commands), (answers, answers_write) = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [PROGRAM, *OPTIONS, f"--user-data-dir={profile}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
        close_fds=False,
        preexec_fn=lambda: [
            os.dup2(commands_read, 3),
            os.dup2(answers_write, 4),
        ],  # the browser's descriptors for the protocol
    )
    os.close(commands_read)
    os.close(answers_write)
    try:
        yield Tab(commands, answers)
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(profile, ignore_errors=True)
