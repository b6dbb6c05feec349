"""Both pages in a real browser, from disk: nothing is fetched, nothing complains, and hovering changes the heads."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
from chromium import Tab, tab
from small_run import HOSTILE, make_run

from nmt_cli.reporting.attend import attend
from nmt_cli.reporting.report import report

pytestmark = [
    pytest.mark.skipif(chromium.PROGRAM is None, reason="there is no chromium: apt-get install chromium"),
    pytest.mark.timeout(300),
]
HEADS = "[...document.querySelectorAll('#heads small')].map(e => e.textContent)"
FRAMES = "[...document.querySelectorAll('#heads .here')].map(e => e.getAttribute('y'))"
SHADES = "[...document.querySelectorAll('#at i')].map(e => +e.style.opacity)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    place = tmp_path_factory.mktemp("browser")
    with tab(place) as opened:
        yield opened
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_run(tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def page(browser: Tab, run: tuple[Path, Path]) -> Path:
    """The page of attention, opened."""
    output = run[1].with_name("attention.html")
    attend(["test en 3, it is", *HOSTILE[:3]], run[0] / "model", output)
    browser.open(output)
    return output


def check_quiet(browser: Tab, page: Path) -> None:
    """Nothing was asked for or complained of, no text ran, and the page fits a screen and a telephone."""
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.complaints() == []
    assert browser.evaluate("window.hacked") is None
    for width in (1280, 400):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.call("Emulation.clearDeviceMetricsOverride")


def test_what_the_scale_does_and_where_attention_comes_from(browser, page):
    see = browser.evaluate
    rows = "[...document.querySelectorAll('#scale tr')].map(r => [...r.children].slice(2).map(e => +e.textContent))"
    figures = see(rows)
    assert len(figures) == 6  # three roles, with and without the division by sqrt(d_k)
    for divided, plain in zip(figures[::2], figures[1::2], strict=True):
        assert divided[0] < plain[0]  # without it the largest weight is larger,
        assert divided[1] > plain[1]  # the entropy smaller
        assert divided[2] > plain[2]  # and less of the gradient gets through
    assert see("document.querySelector('#from [aria-pressed=true]').textContent") == "it"
    named = "[...document.querySelectorAll('#{} text[text-anchor=end]')].map(e => e.textContent)"
    assert see(named.format("every")) == ["1.1", "1.2", "2.1", "2.2"]
    assert see(named.format("rollout")) == ["layer 2", "layer 1", "embeddings"]
    shades = (
        "[...document.querySelectorAll('#rollout .heat')].map(e => ['y', 'fill-opacity'].map(a => e.getAttribute(a)))"
    )
    sums: dict[str, float] = {}
    for y, share in see(shades):
        sums[y] = sums.get(y, 0) + float(share)
    assert list(sums.values()) == pytest.approx([1, 1, 1], abs=0.05)  # nothing is lost on the way down
    pixels = see("[...document.querySelector('canvas').getContext('2d').getImageData(0, 0, 1, 2).data]")
    assert pixels[:4] == [255, 255, 255, 255]  # sin 0 is 0, and sin 1 is positive: red
    assert pixels[4] > pixels[5]


def test_the_heads(browser, page):
    see = browser.evaluate
    browser.hover("#from button:nth-child(1)")
    first = [see(what) for what in (HEADS, FRAMES, SHADES)]
    assert len(first[0]) == 3  # two heads and their mean
    assert sum(first[2]) == pytest.approx(0.85, abs=0.01)  # a row sums to 1
    browser.hover("#from button:nth-child(4)")
    second = [see(what) for what in (HEADS, FRAMES, SHADES)]
    assert all(a != b for a, b in zip(first, second, strict=True))
    see("document.querySelector('#from button:nth-child(2)').focus()")
    focused = see(FRAMES)
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight")
    assert see(FRAMES) != focused
    see("document.querySelector('#heads button').click()")
    assert "mean of all heads" in see("document.getElementById('which').textContent")
    largest = max(see(SHADES))
    see("document.getElementById('raw').click()")
    assert max(see(SHADES)) > largest  # without the scale, attention is sharper
    check_quiet(browser, page)


def test_roles_and_sentences(browser, page):
    see = browser.evaluate
    choose = "(e => {{ e.value = '{1}'; e.dispatchEvent(new Event('change')); }})(document.getElementById('{0}'))"
    assert see("document.querySelectorAll('#map .never').length") == 0
    see(choose.format("role", "decoder"))
    size = see("document.querySelectorAll('#from button').length")
    assert see("document.querySelectorAll('#map .never').length") == size * (size - 1) // 2
    see(choose.format("role", "cross"))
    assert see("document.getElementById('at-title').textContent") == "looks at the source"
    see(choose.format("sentence", "1"))
    assert see("document.getElementById('source').textContent") == HOSTILE[0]
    see(choose.format("sentence", "3"))
    assert "\\u202e" in see("document.getElementById('source').textContent")
    see(choose.format("layer", "1"))
    assert "Layer 1 of 2" in see("document.getElementById('which').textContent")
    check_quiet(browser, page)


def test_the_report(browser, run):  # last, as it opens another page
    page = report(run[0], data=run[1])
    browser.open(page)
    assert browser.evaluate("document.querySelectorAll('svg polyline').length") >= 8
    assert "<script>window.hacked = 1</script>" in browser.evaluate("document.body.innerText")
    check_quiet(browser, page)
