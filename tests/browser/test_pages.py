"""Both pages in a real browser, from disk: nothing is fetched, nothing complains, and hovering changes the heads."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
from chromium import Tab, tab
from small_run import HOSTILE, make_run

from nmt_cli.reporting.attend import AttendOptions, attend
from nmt_cli.reporting.report import report

pytestmark = [
    pytest.mark.skipif(chromium.PROGRAM is None, reason="there is no chromium: apt-get install chromium"),
    pytest.mark.timeout(300),
]
HEADS = "[...document.querySelectorAll('#heads small')].map(e => e.textContent)"
FRAMES = "[...document.querySelectorAll('#heads .here')].map(e => e.getAttribute('y'))"
SHADES = "[...document.querySelectorAll('#at i')].map(e => +e.style.opacity)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("pages")
    run, data = make_run(place)
    report(run, data=data)
    attend(["test en 3, it is", *HOSTILE[:3]], AttendOptions(run / "model", place / "attention.html", translation=None))
    return {"report": run / "report.html", "attend": place / "attention.html"}


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Tab]:
    with tab(tmp_path / "profile") as opened:
        yield opened
    shutil.rmtree(tmp_path / "profile", ignore_errors=True)


def check_quiet(browser: Tab, page: Path) -> None:
    assert browser.requests() == [page.resolve().as_uri()]
    assert browser.complaints() == []
    assert browser.evaluate("window.hacked") is None


def check_fits(browser: Tab) -> None:
    for width in (1280, 400):
        browser.size(width)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_the_report(browser, pages):
    browser.open(pages["report"])
    assert browser.evaluate("document.querySelectorAll('svg polyline').length") >= 8
    assert "<script>window.hacked = 1</script>" in browser.evaluate("document.body.innerText")
    check_fits(browser)
    check_quiet(browser, pages["report"])


def test_the_heads(browser, pages):
    browser.size(1280)
    browser.open(pages["attend"])
    browser.hover("#from button:nth-child(1)")
    first = browser.evaluate(HEADS), browser.evaluate(FRAMES), browser.evaluate(SHADES)
    assert len(first[0]) == 3  # two heads and their mean
    assert sum(first[2]) == pytest.approx(0.85, abs=0.01)  # a row sums to 1
    browser.hover("#from button:nth-child(4)")
    second = browser.evaluate(HEADS), browser.evaluate(FRAMES), browser.evaluate(SHADES)
    assert all(a != b for a, b in zip(first, second, strict=True))
    pressed = "document.querySelector('#from button:nth-child(4)').getAttribute('aria-pressed')"
    assert browser.evaluate(pressed) == "true"

    browser.evaluate("document.querySelector('#from button:nth-child(2)').focus()")
    focused = browser.evaluate(FRAMES)
    browser.press("ArrowRight")
    assert browser.evaluate(FRAMES) != focused

    browser.evaluate("document.querySelector('#heads button').click()")
    assert "mean of all heads" in browser.evaluate("document.getElementById('which').textContent")
    largest = max(browser.evaluate(SHADES))
    browser.evaluate("document.getElementById('raw').click()")
    assert max(browser.evaluate(SHADES)) > largest  # without the scale, attention is sharper
    check_fits(browser)
    check_quiet(browser, pages["attend"])


def test_what_the_scale_does_and_where_attention_comes_from(browser, pages):
    browser.open(pages["attend"])
    rows = "[...document.querySelectorAll('#scale tr')].map(r => [...r.children].slice(2).map(e => +e.textContent))"
    figures = browser.evaluate(rows)
    assert len(figures) == 6  # three roles, with and without the division by sqrt(d_k)
    for divided, plain in zip(figures[::2], figures[1::2], strict=True):
        assert divided[0] < plain[0]  # without it the largest weight is larger,
        assert divided[1] > plain[1]  # the entropy smaller
        assert divided[2] > plain[2]  # and less of the gradient gets through
    assert browser.evaluate("document.querySelector('#from [aria-pressed=true]').textContent") == "it"
    named = "[...document.querySelectorAll('#{} text[text-anchor=end]')].map(e => e.textContent)"
    assert browser.evaluate(named.format("every")) == ["1.1", "1.2", "2.1", "2.2"]
    assert browser.evaluate(named.format("rollout")) == ["layer 2", "layer 1", "embeddings"]
    shades = (
        "[...document.querySelectorAll('#rollout .heat')].map(e => ['y', 'fill-opacity'].map(a => e.getAttribute(a)))"
    )
    sums: dict[str, float] = {}
    for y, share in browser.evaluate(shades):
        sums[y] = sums.get(y, 0) + float(share)
    assert list(sums.values()) == pytest.approx([1, 1, 1], abs=0.05)  # nothing is lost on the way down
    pixel = "[...document.querySelector('canvas').getContext('2d').getImageData(0, {}, 1, 1).data]"
    assert browser.evaluate(pixel.format(0)) == [255, 255, 255, 255]  # sin 0 is 0, and sin 1 is positive: red
    red, green, *_ = browser.evaluate(pixel.format(1))
    assert red > green


def test_roles_and_sentences(browser, pages):
    browser.open(pages["attend"])
    choose = "(e => {{ e.value = '{1}'; e.dispatchEvent(new Event('change')); }})(document.getElementById('{0}'))"
    assert browser.evaluate("document.querySelectorAll('#map .never').length") == 0
    browser.evaluate(choose.format("role", "decoder"))
    size = browser.evaluate("document.querySelectorAll('#from button').length")
    assert browser.evaluate("document.querySelectorAll('#map .never').length") == size * (size - 1) // 2
    browser.evaluate(choose.format("role", "cross"))
    assert browser.evaluate("document.getElementById('at-title').textContent") == "looks at the source"
    browser.evaluate(choose.format("sentence", "1"))
    assert browser.evaluate("document.getElementById('source').textContent") == HOSTILE[0]
    browser.evaluate(choose.format("sentence", "3"))
    assert "\\u202e" in browser.evaluate("document.getElementById('source').textContent")
    browser.evaluate(choose.format("layer", "1"))
    assert "Layer 1 of 2" in browser.evaluate("document.getElementById('which').textContent")
    check_quiet(browser, pages["attend"])


def test_dark_on_the_screen_and_light_on_paper(browser, pages):
    browser.open(pages["attend"])
    colours = "['body', '.heads button'].map(e => getComputedStyle(document.querySelector(e)).backgroundColor)"
    seen = {}
    for media, scheme in (("screen", "light"), ("screen", "dark"), ("print", "dark")):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.call("Emulation.setEmulatedMedia", media=media, features=[feature])
        seen[media, scheme] = browser.evaluate(colours)
    assert seen["screen", "light"] == seen["print", "dark"]
    assert seen["screen", "dark"] != seen["screen", "light"]
