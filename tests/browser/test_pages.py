"""Test the attention page and the report in a real browser: no requests, no errors, and hovering shows other heads."""

import pytest
from chromium import browser, pytestmark  # noqa: F401
from small_run import HOSTILE, make_run

from nmt_cli.reporting.attend import attend
from nmt_cli.reporting.report import report


def check_quiet(tab, page):
    """Check that the page made no request, logged nothing, ran no injected script, and fits a desktop and a phone."""
    urls = [request["request"]["url"] for request in tab.sent("Network.requestWillBeSent")]
    assert [url for url in urls if not url.startswith("data:")] == [page.resolve().as_uri()]
    assert tab.sent("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded") == []
    assert tab.see("window.hacked") is None
    for width, height in ((1280, 800), (390, 844)):
        tab.resize(width, height)
        assert tab.see("document.documentElement.scrollWidth") <= width
    tab.call("Emulation.clearDeviceMetricsOverride")


def cut_off(tab, section):
    """Return the beginnings of those tables in a section that are cut off on a phone."""
    tab.resize(390, 844)
    wide = f"[...document.querySelectorAll('{section} .wide')].filter(e => e.scrollWidth > e.clientWidth)"
    found = tab.see(f"{wide}.map(e => e.innerText.slice(0, 20))")
    tab.call("Emulation.clearDeviceMetricsOverride")
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


def test_attention(tab, run):
    page = run[1].with_name("attention.html")
    attend(["test en 3, it is", *HOSTILE[:3]], run[0] / "model", page)
    tab.open(page.resolve().as_uri())
    rows = "[...document.querySelectorAll('#scale tr')].map(r => [...r.children].slice(2).map(e => +e.textContent))"
    figures = tab.see(rows)
    assert len(figures) == 6  # three roles, with and without the division by sqrt(d_k)
    for divided, plain in zip(figures[::2], figures[1::2], strict=True):
        assert divided[0] < plain[0]  # without the division, the largest weight is larger,
        assert divided[1] > plain[1]  # the entropy is smaller,
        assert divided[2] > plain[2]  # and less gradient passes through
    shares = "[...document.querySelectorAll('#rollout .heat')].map(e => +e.getAttribute('fill-opacity'))"
    assert sum(tab.see(shares)) == pytest.approx(3, abs=0.1)  # two layers and embeddings, each summing to 1
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
    check_quiet(tab, page)
    assert cut_off(tab, "") == []


def test_the_report(tab, run):
    page = report(run[0], data=[run[1]])
    tab.open(page.resolve().as_uri())
    assert tab.see("document.querySelectorAll('svg polyline').length") >= 8
    assert "<script>window.hacked = 1</script>" in tab.see("document.body.innerText")
    check_quiet(tab, page)
    tab.see("document.querySelectorAll('details').forEach(e => e.open = true)")
    for section in ("#scores", "#data", "#model"):
        assert cut_off(tab, section) == [], section
    tab.see("document.querySelectorAll('details').forEach(e => e.open = false)")
    assert not tab.see("document.querySelector('#scores code').checkVisibility({contentVisibilityAuto: true})")
