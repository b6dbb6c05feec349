"""Test the page of `nmt serve` in a real browser, with the real application and tiny models."""

import json
import threading
import time

import pytest
from chromium import pytestmark  # noqa: F401
from page_tab import (
    FIRST,
    FOCUSED,
    LIMIT,
    LIT,
    MESSAGE,
    SECOND,
    SENTENCE,
    SHOWN,
    TEXT,
    complaints,
    load_page,
    translate,
    type_text,
)

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
from page_server import backwards, serving
from starlette.requests import Request
from starlette.responses import JSONResponse

from nmt_cli.serving.pool import ModelPool
from nmt_cli.serving.service import Limits, Service

pytest_plugins = "page_fixtures"


def test_typing_shows_a_translation_and_contacts_no_other_host(tab, server):
    """The page shows the server's sentences, keeps blank lines and emoji, and logs no errors."""
    text = f"{FIRST} {SECOND}\n\n🐕 der Hund\n"
    best = server.best(text)
    type_text(tab, text)
    tab.until("document.querySelectorAll('.sentence').length === 3")
    assert tab.see(SHOWN) == f"{best[0]} {best[1]}\n\n{best[2]}"
    assert tab.see("document.getElementById('count').textContent") == f"{len(text)} of 30,000 characters"
    urls = {request["request"]["url"].removeprefix(server.url) for request in tab.sent("Network.requestWillBeSent")}
    assert urls - {"page/icon.svg"} == {
        *("", "page/style.css", *(f"page/{name}.js" for name in ("app", "files", "parts", "sentences", "server"))),
        *("languages", "frontend/settings", "sentences"),
    }
    assert complaints(tab) == []


def test_typing_without_a_pause_sends_one_request(tab, server):
    typing = "for (const each of {}) {{ text.value += each; text.dispatchEvent(new Event('input')); }}"
    tab.see(f"const text = document.getElementById('text'); {typing.format(json.dumps(FIRST))}")
    tab.until(f"{SHOWN} === {json.dumps(server.best(FIRST)[0])}")
    assert len(server.asked) == 2  # one from the page and one from the test


def test_an_older_answer_never_overwrites_a_newer_one(tab, server):
    server.held = held = threading.Event()
    type_text(tab, FIRST)
    while not server.asked:
        time.sleep(0.01)
    best = " ".join(server.best(TEXT))
    type_text(tab, f" {SECOND}")
    tab.until(f"{SHOWN} === {json.dumps(best)}")
    held.set()
    time.sleep(0.5)
    assert tab.see(SHOWN) == best
    assert [failed["canceled"] for failed in tab.sent("Network.loadingFailed")] == [True]


def test_a_click_lists_alternatives_and_the_chosen_one_stays(tab, server):
    server.instead = backwards
    translate(tab, server)
    tab.click(SENTENCE)
    expected = ["GEHT. HUND DER", *(f"GEHT. HUND DER{' AUCH' * rank}" for rank in (1, 2, 3))]
    assert tab.see("[...document.querySelectorAll('#menu li')].map(e => e.textContent)") == expected
    tab.click("#menu li:nth-child(3)")
    assert tab.see("document.getElementById('menu').hidden")
    assert tab.see(SHOWN) == "GEHT. HUND DER AUCH AUCH ROT! IST HAUS DAS"
    type_text(tab, " und rot")
    tab.until(f"{SHOWN} === 'GEHT. HUND DER AUCH AUCH ROT! IST HAUS DAS ROT UND'")
    tab.press("Home")
    type_text(tab, "rot! ")
    tab.until(f"{SHOWN} === 'ROT! GEHT. HUND DER AUCH AUCH ROT! IST HAUS DAS ROT UND'")
    tab.click("span:nth-child(2) > .sentence")
    assert tab.see("document.querySelector('#menu [aria-selected=true]').textContent") == expected[2]
    tab.click("h1")
    assert tab.see("document.getElementById('menu').hidden")


def test_the_keyboard_reaches_every_function(tab, server):
    """Move from the text to its translation and its sentences, choose an alternative, copy, and clear the text."""
    server.instead = backwards
    translate(tab, server)
    tab.press("Tab", "Tab")
    assert tab.see(f"{FOCUSED}.textContent") == "GEHT. HUND DER"
    tab.press("ArrowDown")
    assert tab.see(f"{FOCUSED}.textContent") == "ROT! IST HAUS DAS"
    tab.press("Enter")
    assert tab.see(f"[{FOCUSED}.role, {FOCUSED}.ariaSelected]") == ["option", "true"]
    tab.press("Escape")
    assert tab.see(f"{FOCUSED}.textContent") == "ROT! IST HAUS DAS"
    tab.press("Enter", "ArrowDown", " ")
    assert tab.see(f"{FOCUSED}.textContent") == "ROT! IST HAUS DAS AUCH"
    tab.press("Tab")
    assert tab.see(f"{FOCUSED}.id") == "copy"
    tab.allow_clipboard()
    tab.press("Enter")
    tab.until(f"{FOCUSED}.textContent === 'Copied'")
    assert tab.see("navigator.clipboard.readText()") == "GEHT. HUND DER ROT! IST HAUS DAS AUCH"
    tab.press("Shift+Tab", "Shift+Tab", "Enter")  # the clear button
    tab.until(f"{SHOWN} === ''")
    assert tab.see(f"{FOCUSED}.id") == "text"


def test_copying_works_without_the_clipboard_api(tab, server):
    """Browsers deny the clipboard API to pages without https, but they still run the copy command."""
    server.instead = backwards
    translate(tab, server, FIRST)
    tab.allow_clipboard()
    tab.see("navigator.clipboard.writeText = () => Promise.reject(new Error())")
    tab.click("#copy")
    tab.until("document.getElementById('copy').textContent === 'Copied'")
    assert tab.see("navigator.clipboard.readText()") == "GEHT. HUND DER"


def test_the_pointer_and_the_keyboard_highlight_aligned_words(tab, server):
    server.instead = backwards
    translate(tab, server)
    pairs = [("GEHT.", "geht."), ("HUND", "Hund"), ("DER", "der"), ("ROT!", "rot!")]
    for number, (target, source) in enumerate(pairs[:3], 1):
        tab.hover(f"{SENTENCE} .word:nth-of-type({number})")
        assert tab.see(LIT) == [source, target]
    tab.hover("#mirror .word:nth-of-type(1)")  # the mirror lies below the text field
    assert tab.see(LIT) == ["der", "DER"]
    tab.hover("h1")
    assert tab.see(LIT) == []
    tab.press("Tab", "Tab")
    for target, source in pairs:  # the last pair is in the next sentence
        assert tab.see(LIT) == [source, target]
        tab.press("ArrowRight")
    assert tab.see("document.getElementById('status').textContent") == "IST: ist"
    tab.see("document.getElementById('text').focus()")
    tab.press("Home", "ArrowRight")  # the caret is in the first word
    assert tab.see(LIT) == ["der", "DER"]
    type_text(tab, "x")
    assert tab.see(LIT) == []


def test_words_without_spaces_are_highlighted_separately(tab, server):
    """The browser splits Chinese into words. Offsets count characters, not UTF-16 code units."""

    async def chinese(scope, receive, send):
        await Request(scope, receive).json()
        hypotheses = [{"text": "🙂 the weather today", "alignment": [[0, 0], [2, 14], [4, 6], [5, 6]]}]
        sentence = {"before": "", "source": "🙂 今天天气。", "hypotheses": hypotheses}
        await JSONResponse({"sentences": [sentence], "after": ""})(scope, receive, send)

    server.instead = chinese
    type_text(tab, "🙂 今天天气。")
    tab.until(f"{SHOWN} === '🙂 the weather today'")
    words = "[...document.querySelectorAll('#mirror .word')].map(e => e.textContent)"
    assert tab.see(words) == ["🙂", "今天", "天气"]
    for number, lit in ((1, ["🙂", "🙂"]), (2, ["今天", "today"]), (3, ["天气", "weather"])):
        tab.hover(f"#mirror .word:nth-of-type({number})")
        assert tab.see(LIT) == lit
    tab.hover(f"{SENTENCE} .word:nth-of-type(3)")
    assert tab.see(LIT) == ["天气", "weather"]


def test_the_page_reports_an_unreachable_server_and_recovers(tab, server):
    best = translate(tab, server, FIRST)
    server.stop()
    type_text(tab, f" {SECOND}")
    tab.until(MESSAGE)
    assert tab.see(MESSAGE) == "The server cannot be reached; this page keeps trying."
    assert tab.see(SHOWN) == best  # the old translation stays
    server.start()
    tab.until(f"{SHOWN} === {json.dumps(' '.join(server.best(TEXT)))}")
    assert tab.see(MESSAGE) == ""


def test_the_page_finds_a_server_that_was_unreachable_on_opening(tab, server):
    tab.call("Network.setBlockedURLs", urls=["*/languages"])
    tab.open(server.url)
    tab.until(MESSAGE)
    type_text(tab, FIRST)
    tab.call("Network.setBlockedURLs", urls=[])
    tab.until(f"{SHOWN} === {json.dumps(server.best(FIRST)[0])}")


def test_a_request_to_a_busy_server_is_repeated(tab, server):
    server.instead = JSONResponse({"error": "Too many texts are waiting"}, 429, {"Retry-After": "1"})
    type_text(tab, FIRST)
    tab.until(MESSAGE)
    assert tab.see(MESSAGE) == "The server is busy; this page tries again in a moment."
    server.instead = None
    tab.until(f"{SHOWN} === {json.dumps(server.best(FIRST)[0])}")
    assert tab.see(MESSAGE) == ""


def test_other_errors_appear_in_the_servers_words(tab, server):
    server.instead = JSONResponse({"error": "The translation took longer than 60 seconds"}, 504)
    type_text(tab, FIRST)
    tab.until(MESSAGE)
    assert tab.see(MESSAGE) == "The translation took longer than 60 seconds."


def test_text_over_the_limit_is_not_sent(tab, server):
    """The page counts characters like the server: an emoji is one."""
    type_text(tab, "🐕" * (LIMIT + 1))
    tab.until(MESSAGE)
    assert tab.see(MESSAGE) == "This text has 30,001 characters. The server accepts at most 30,000 at once."
    assert server.asked == []


def test_a_long_text_is_shown_whole(tab, server):
    """The text field grows with 20,000 characters, and the translation is complete."""
    server.instead = backwards
    text = (f"{TEXT}\n\n" * 700)[:20_000].strip()
    sentences = len(server.best(text))
    server.held = held = threading.Event()
    tab.paste(text)
    hidden = "(e => e.scrollHeight - e.clientHeight)(document.getElementById('text'))"
    assert tab.see(hidden) <= 0
    held.set()
    tab.until(f"document.querySelectorAll('.sentence').length === {sentences}")
    assert tab.see(hidden) <= 0
    assert tab.see("document.getElementById('mirror').textContent") == f"{text}\u200b"
    assert complaints(tab) == []


def test_swapping_languages_swaps_the_texts(tab, server):
    best = translate(tab, server, FIRST)
    tab.click("#swap")
    tab.until(f"{SHOWN} === {json.dumps(' '.join(server.best(best, source='de', target='en')))}")
    languages = tab.see("['from', 'to'].map(id => document.getElementById(id).selectedOptions[0].text)")
    assert languages == ["German", "English"]
    assert tab.see("document.getElementById('text').value") == best


def test_languages_cannot_be_swapped_without_a_model_for_the_way_back(browsed, pool):
    one = ModelPool(pool.models[:1], pool.metrics, queue=1000)
    with serving(Service(one, pool.metrics, Limits(LIMIT))) as server:
        load_page(browsed, server)
        assert browsed.see("(e => [e.checkVisibility(), e.disabled, e.title])(document.getElementById('swap'))") == [
            *(True, True, "No model translates back")
        ]
        browsed.click("#swap")
        assert browsed.see("document.getElementById('from').value") == "en"


def test_the_detected_language_is_shown(tab, server):
    tab.see("(e => { e.value = 'auto'; e.dispatchEvent(new Event('change')); })(document.getElementById('from'))")
    assert tab.see("document.getElementById('swap').disabled")
    type_text(tab, "The house is red and the dog is not at home.")
    tab.until("document.querySelectorAll('.sentence').length")
    assert tab.see("document.getElementById('from').selectedOptions[0].text") == "English (detected)"
    assert not tab.see("document.getElementById('swap').disabled")


def test_text_is_never_markup_and_injected_scripts_never_run(tab, server):
    """The content security policy blocks scripts, styles and requests even if an attacker can change the page."""
    text = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    type_text(tab, text)
    tab.until("document.querySelectorAll('.sentence').length")
    assert text in tab.see("document.getElementById('mirror').textContent")
    tab.see("window.refused = []; addEventListener('securitypolicyviolation', e => refused.push(e.effectiveDirective))")
    tab.see("try { document.body.setAttribute('onclick', 'window.hacked = 1') } catch {} document.body.click()")
    tab.see("document.body.setAttribute('style', 'color: red')")
    tab.see("new Image().src = 'http://127.0.0.1:9/'; fetch('http://127.0.0.1:9/').catch(() => 0)")
    tab.until("refused.length >= 4")
    assert sorted(tab.see("refused")) == ["connect-src", "img-src", "require-trusted-types-for", "style-src-attr"]
    assert tab.see("window.hacked") is None


@pytest.mark.parametrize(
    ("width", "height", "side_by_side"), [(390, 844, False), (1280, 800, True), (1920, 1080, True)]
)
def test_the_page_fits_a_phone_and_a_screen(tab, server, tmp_path, width, height, side_by_side):
    """The panes fill the window. An open menu, a file and a long word cause no horizontal scrolling."""
    tab.resize(width, height)
    boxes = "[...document.querySelectorAll('.pane')].map(e => e.getBoundingClientRect())"
    first, second = tab.see(f"{boxes}.map(r => [r.x, r.y, r.right, r.bottom])")
    assert (first[1] == second[1]) == side_by_side
    assert first[0] <= 16
    assert second[2] >= width - 16
    assert height - 20 <= second[3] <= height
    assert tab.see("document.documentElement.scrollHeight") <= height
    (file := tmp_path / f"{'long' * 40}.pdf").write_text("")
    tab.drop(file)
    long = f"{'Haus' * 60} {TEXT}"
    type_text(tab, long)
    tab.until("document.querySelectorAll('.sentence').length")
    tab.click(SENTENCE)
    assert tab.see("document.documentElement.scrollWidth") == width


def test_right_to_left_text_is_shown_from_right_to_left(tab, server):
    type_text(tab, "שלום עולם")
    assert tab.see("getComputedStyle(document.getElementById('text')).direction") == "rtl"
    tab.see("document.getElementById('text').select()")
    translate(tab, server)
    directions = tab.see("['text', 'translation'].map(id => getComputedStyle(document.getElementById(id)).direction)")
    assert directions == ["ltr", "ltr"]


def test_controls_have_names_and_changes_are_announced(tab, server):
    translate(tab, server)
    tab.click(SENTENCE)
    nodes = [node for node in tab.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    named = {"textbox", "combobox", "button", "listbox", "option", "group", "region"}
    controls = [node for node in nodes if node["role"]["value"] in named]
    assert {node["role"]["value"] for node in controls} == named
    assert [node for node in controls if not node["name"]["value"]] == []
    assert tab.see("document.getElementById('translation').ariaLive") == "polite"
    assert tab.see("document.getElementById('message').role") == "alert"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrasts_with_its_background(tab, server, scheme):
    """WCAG level AA requires a contrast of 4.5 for text, and of 3 for the edges of controls and the focus ring."""
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    backgrounds = {"text": "back card hover lit", "soft": "back card", "bad": "card bad-back", "accent": "card hover"}
    pairs = [(front, back, 4.5) for front, names in backgrounds.items() for back in names.split()]
    for front, back, least in [*pairs, ("edge", "card", 3), ("edge", "back", 3), ("accent", "back", 3)]:
        brighter, darker = sorted([luminance(tab, front), luminance(tab, back)], reverse=True)
        assert (brighter + 0.05) / (darker + 0.05) >= least, (front, back)
    tab.call("Emulation.setEmulatedMedia", features=[])


def luminance(tab, name):
    """Return the relative luminance of a color in the style sheet."""
    tab.see(f"document.body.style.outlineColor = 'var(--{name})'")
    text = tab.see("getComputedStyle(document.body).outlineColor")
    shares = [int(part) / 255 for part in text.removeprefix("rgb(").rstrip(")").split(", ")]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
