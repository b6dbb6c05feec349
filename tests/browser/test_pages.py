"""Both pages in a real browser, from disk: nothing is fetched, nothing complains, and hovering changes the heads."""

import itertools
import json
import os
import shutil
import subprocess

import pytest
from small_run import HOSTILE, make_run

from nmt_cli.reporting.attend import attend
from nmt_cli.reporting.report import report

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"),
]
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="there is no chromium: apt-get install chromium"),
    pytest.mark.timeout(300),
]


class Tab:
    """One page, driven over the DevTools protocol. Every event that it sends is kept in `events`."""

    def __init__(self, commands, answers):
        self.commands, self.answers, self.buffer = commands, answers, b""
        self.numbers, self.session, self.events = itertools.count(1), {}, []
        page = self.call("Target.createTarget", url="about:blank")
        self.session = self.call("Target.attachToTarget", flatten=True, **page)

    def _receive(self):
        while b"\0" not in self.buffer:
            data = os.read(self.answers, 1 << 20)
            assert data, "the browser ended"
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
        """Return the value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(self, page):
        """Load a file and wait until it has run."""
        for domain in ("Network", "Runtime", "Log", "Page"):
            self.call(f"{domain}.enable")
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self.sent("Page.loadEventFired"):
            self.events.append(self._receive())

    def hover(self, selector):
        place = f"document.querySelector({json.dumps(selector)})"
        self.see(f"{place}.scrollIntoView({{block: 'center'}})")
        x, y, width, height = self.see(f"(r => [r.x, r.y, r.width, r.height])({place}.getBoundingClientRect())")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + width / 2, y=y + height / 2)

    def sent(self, *methods):
        return [event["params"] for event in self.events if event["method"] in methods]

    def check_quiet(self, page):
        """Nothing was asked for or complained of, no text ran, and the page fits a screen and a telephone."""
        urls = [request["request"]["url"] for request in self.sent("Network.requestWillBeSent")]
        assert [url for url in urls if not url.startswith("data:")] == [page.resolve().as_uri()]
        assert self.sent("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded") == []
        assert self.see("window.hacked") is None
        for width in (1280, 400):
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            self.call("Emulation.setDeviceMetricsOverride", **size)
            assert self.see("document.documentElement.scrollWidth") <= width
        self.call("Emulation.clearDeviceMetricsOverride")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    profile = tmp_path_factory.mktemp("browser")
    (commands_read, commands), (answers, answers_write) = os.pipe(), os.pipe()
    process = subprocess.Popen(
        [PROGRAM, *OPTIONS, f"--user-data-dir={profile}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
        close_fds=False,
        preexec_fn=lambda: [os.dup2(commands_read, 3), os.dup2(answers_write, 4)],  # where the browser expects them
    )
    os.close(commands_read)
    os.close(answers_write)
    yield Tab(commands, answers)
    process.terminate()
    process.wait(60)
    shutil.rmtree(profile, ignore_errors=True)


def test_attention(tab, run):
    page = run[1].with_name("attention.html")
    attend(["test en 3, it is", *HOSTILE[:3]], run[0] / "model", page)
    tab.open(page)
    rows = "[...document.querySelectorAll('#scale tr')].map(r => [...r.children].slice(2).map(e => +e.textContent))"
    figures = tab.see(rows)
    assert len(figures) == 6  # three roles, with and without the division by sqrt(d_k)
    for divided, plain in zip(figures[::2], figures[1::2], strict=True):
        assert divided[0] < plain[0]  # without it the largest weight is larger,
        assert divided[1] > plain[1]  # the entropy smaller
        assert divided[2] > plain[2]  # and less of the gradient gets through
    shares = "[...document.querySelectorAll('#rollout .heat')].map(e => +e.getAttribute('fill-opacity'))"
    assert sum(tab.see(shares)) == pytest.approx(3, abs=0.1)  # two layers and embeddings: nothing is lost on the way
    heads = "[...document.querySelectorAll('#heads small')].map(e => e.textContent)"
    frames = "[...document.querySelectorAll('#heads .here')].map(e => e.getAttribute('y'))"
    shades = "[...document.querySelectorAll('#at i')].map(e => +e.style.opacity)"
    tab.hover("#from button:nth-child(1)")
    first = [tab.see(what) for what in (heads, frames, shades)]
    assert len(first[0]) == 3  # two heads and their mean
    tab.hover("#from button:nth-child(4)")
    second = [tab.see(what) for what in (heads, frames, shades)]
    assert all(a != b for a, b in zip(first, second, strict=True))
    tab.see("document.getElementById('raw').click()")
    assert max(tab.see(shades)) > max(second[2])  # without the scale, attention is sharper
    choose = "(e => {{ e.value = '{1}'; e.dispatchEvent(new Event('change')); }})(document.getElementById('{0}'))"
    tab.see(choose.format("role", "decoder"))
    size = tab.see("document.querySelectorAll('#from button').length")
    assert tab.see("document.querySelectorAll('#map .never').length") == size * (size - 1) // 2
    tab.see(choose.format("sentence", "1"))
    assert tab.see("document.getElementById('source').textContent") == HOSTILE[0]
    tab.check_quiet(page)


def test_the_report(tab, run):
    page = report(run[0], data=[run[1]])
    tab.open(page)
    assert tab.see("document.querySelectorAll('svg polyline').length") >= 8
    assert "<script>window.hacked = 1</script>" in tab.see("document.body.innerText")
    tab.check_quiet(page)
