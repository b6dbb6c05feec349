"""Test long texts, files and API keys on the page of `nmt serve` in a real browser."""

import asyncio
import json
import re
import threading
import time

import pytest
from chromium import pytestmark  # noqa: F401
from page_tab import (
    FILES,
    FIRST,
    FOCUSED,
    LIMIT,
    MESSAGE,
    SECOND,
    SENTENCE,
    SENTENCES,
    SHOWN,
    complaints,
    load_page,
    type_text,
)

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
from page_server import serving
from starlette.requests import Request
from starlette.responses import JSONResponse

from nmt_cli.serving.files import KINDS
from nmt_cli.serving.service import Limits, Service

pytest_plugins = "page_fixtures"


def long_text(sentences=120):
    """Return text for several parts, with distinct sentences."""
    return "".join(
        f"der Hund geht {number} mal. das Haus ist rot!{chr(10) * (number % 3)} " for number in range(sentences)
    )


def test_a_long_text_in_parts_has_the_same_translation_as_the_whole_text(tab, server):
    text = long_text()
    whole = server.best(text)
    server.asked.clear()
    tab.paste(text)
    tab.until(f"document.querySelectorAll('{SENTENCE}').length === {len(whole)}")
    assert tab.see(SENTENCES) == whole
    assert tab.see("document.getElementById('mirror').textContent") == f"{text}\u200b"
    asked = len(server.asked)
    assert 2 <= asked <= len(text) / 1500
    assert tab.see("document.getElementById('work').hidden")
    tab.press("Home")
    type_text(tab, "rot ")  # in the last part
    tab.until("document.getElementById('mirror').textContent.includes('rot ')")
    tab.see("(e => e.setSelectionRange(0, 0))(document.getElementById('text'))")
    type_text(tab, "rot ")
    edited = tab.see("document.getElementById('text').value")
    best = json.dumps(server.best(edited))
    tab.until(f"JSON.stringify({SENTENCES}) === JSON.stringify({best})")
    assert len(server.asked) <= asked + 5, "one per edit, at most two for neighbors, one from the test"


def test_an_edit_that_joins_two_parts_leaves_no_sentence_in_two_parts(tab):
    text = long_text()
    module = "import('/page/parts.js')"
    before = tab.see(f"{module}.then(each => each.partsOf({json.dumps(text)}, []))")
    first, *others = before
    assert len(others) >= 2
    edited = first.rstrip(" \n!") + ", " + "".join(others)
    parts = tab.see(f"{module}.then(each => each.partsOf({json.dumps(edited)}, {json.dumps(before)}))")
    assert "".join(parts) == edited
    assert all(re.search(r"[.!\n] ?$", part) for part in parts), parts
    assert parts[-1] == others[-1], "the parts after the next one stay"


def test_a_long_text_shows_its_progress_and_can_be_canceled_and_continued(tab, server):
    text = long_text()
    sentences = len(server.best(text))
    held = threading.Event()
    server.instead = hold_after(server.app, 1, held)
    tab.paste(text)
    bar = "document.getElementById('progress')"
    tab.until(f"{bar}.checkVisibility() && {bar}.value > 0")
    shown = tab.see(f"document.querySelectorAll('{SENTENCE}').length")
    assert 0 < shown < sentences, "finished sentences are shown"
    assert tab.see("document.getElementById('translation').ariaBusy") == "true"
    [node] = [
        node
        for node in tab.call("Accessibility.getFullAXTree")["nodes"]
        if node["role"]["value"] == "progressbar" and not node["ignored"]
    ]
    assert node["name"]["value"] == "Progress of the translation"
    percent = tab.see("document.getElementById('done').textContent")
    assert percent == f"{tab.see(f'Math.round(100 * {bar}.value)')}%"
    tab.see("document.getElementById('cancel').focus()")
    tab.press("Enter")
    assert tab.see("document.getElementById('done').textContent") == f"Stopped at {percent}"
    asked = len(server.asked)
    held.set()
    time.sleep(0.5)
    assert tab.see(f"document.querySelectorAll('{SENTENCE}').length") == shown
    assert len(server.asked) == asked, "the page sends no more requests"
    assert tab.see("[document.activeElement.id, document.activeElement.textContent]") == ["cancel", "Continue"]
    server.instead = None
    tab.press("Enter")
    tab.until(f"document.querySelectorAll('{SENTENCE}').length === {sentences}")
    tab.until("document.getElementById('work').hidden")
    assert tab.see(f"{FOCUSED}.id") == "copy", "the focus moves on when the button disappears"


def hold_after(app, count, held):
    """Answer `count` requests at once, and the others once `held` is set."""
    left = [None] * count

    async def answer(scope, receive, send):
        if left:
            left.pop()
        else:
            await asyncio.to_thread(held.wait, 60)
        await app(scope, receive, send)

    return answer


def test_all_parts_of_a_long_text_use_its_detected_language(tab, server):
    asked = []

    async def listen(scope, receive, send):
        body = await Request(scope, receive).body()
        asked.append(json.loads(body)["source"])
        messages = [{"type": "http.request", "body": body}]

        async def again():
            return messages.pop() if messages else await receive()

        await server.app(scope, again, send)

    server.instead = listen
    tab.see("(e => { e.value = 'auto'; e.dispatchEvent(new Event('change')); })(document.getElementById('from'))")
    english = [f"The house is red and the dog is not at home on day {number}. " for number in range(10, 90)]
    tab.paste("".join(english) + "der Hund geht. " * 100)
    tab.until(f"document.querySelectorAll('{SENTENCE}').length === 180")
    assert asked == ["auto", "en", "en"]


def test_a_dropped_file_is_translated_and_saved(tab, server, tmp_path):
    """The new file's name contains the language, and the markup stays."""
    page = "<p>der <b>Hund</b> geht.</p>\n<p>das Haus ist rot!</p>\n"
    (file := tmp_path / "the page.html").write_text(page)
    saved = tmp_path / "saved"
    tab.save_in(saved)
    tab.drop(file)
    tab.until(f"{FILES} === 'the page.html: was translated:'")
    assert tab.see("document.querySelector('#files a').text") == "the page.de.html"
    translated = wait_for(saved / "the page.de.html")
    assert translated == server.translated(page, format="html")
    assert "<b>" in translated
    tab.click("#files button:last-child")
    assert tab.see("document.querySelectorAll('#files li').length") == 0
    assert complaints(tab) == []


def wait_for(file):
    """Wait until the browser has saved a file, and return its text."""
    end = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < end, list(file.parent.glob("*"))
        time.sleep(0.02)
    return file.read_text()


def test_files_are_chosen_by_keyboard(tab, server, tmp_path):
    (tmp_path / "a.txt").write_text(FIRST)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "NOTES.MD").write_text(f"# {SECOND}\n")
    tab.save_in(tmp_path / "saved")
    tab.call("Page.setInterceptFileChooserDialog", enabled=True)
    tab.see("document.getElementById('text').focus()")
    tab.press("Shift+Tab", "Shift+Tab", "Shift+Tab", "Shift+Tab")
    assert tab.see(f"{FOCUSED}.textContent") == "Translate a file"
    tab.press("Enter")
    while not (chosen := tab.sent("Page.fileChooserOpened")):
        tab.see("0")
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b" / "NOTES.MD")]
    tab.call("DOM.setFileInputFiles", files=files, backendNodeId=chosen[0]["backendNodeId"])
    tab.call("Page.setInterceptFileChooserDialog", enabled=False)
    assert wait_for(tmp_path / "saved" / "a.de.txt") == server.translated(FIRST)
    assert wait_for(tmp_path / "saved" / "NOTES.de.MD").startswith("# ")
    assert tab.see("document.getElementById('chooser').accept").split(",") == sorted(KINDS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pdf", b"x", f"The server accepts files of these kinds: {' '.join(sorted(KINDS))}."),
        ("a.txt", b"x" * (LIMIT + 1), "This text has 30,001 characters. The server accepts at most 30,000 at once."),
        (
            "a.txt",
            b"x" * (4 * LIMIT + 1),
            "This text has 30,001 characters. The server accepts at most 30,000 at once.",
        ),
        ("a.txt", b"\xff\xfe", "Invalid request: file is not text in UTF-8."),
    ],
)
def test_a_file_that_cannot_be_translated_is_refused(tab, server, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    tab.drop(tmp_path / name)
    tab.until(f"{FILES} === {json.dumps(f'{name}: {message}')}")
    assert tab.see("document.getElementById('status').textContent") == f"{name}: {message}"
    assert tab.see("[...document.querySelectorAll('#files button')].map(e => e.checkVisibility())") == [False, True]
    assert len(server.asked) == (content == b"\xff\xfe"), "the page checks the kind and size itself"


def test_a_file_waits_for_a_busy_server_and_can_be_canceled_and_retried(tab, server, tmp_path):
    (file := tmp_path / "a.txt").write_text(FIRST)
    tab.save_in(tmp_path / "saved")
    server.instead = JSONResponse({"error": "Too many texts are waiting"}, 429, {"Retry-After": "1"})
    tab.drop(file)
    tab.until(f"{FILES} === 'a.txt: The server is busy; this page tries again in a moment.'")
    tab.click("#files button:last-child")
    tab.until(f"{FILES} === 'a.txt: Cancelled.'")
    asked = len(server.asked)
    time.sleep(1.2)
    assert len(server.asked) == asked
    tab.click("#files button")
    tab.until(f"{FILES} === 'a.txt: The server is busy; this page tries again in a moment.'")
    server.instead = None
    assert wait_for(tmp_path / "saved" / "a.de.txt") == server.translated(FIRST)


def test_dropped_text_goes_into_the_text_field(tab, server):
    data = {"items": [{"mimeType": "text/plain", "data": FIRST}], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        tab.call("Input.dispatchDragEvent", type=kind, x=200, y=300, data=data)
    tab.until(f"document.getElementById('text').value === {json.dumps(FIRST)}")
    assert tab.see(FILES) == ""


def test_the_page_asks_for_an_api_key_if_the_server_needs_one(browsed, pool):
    """The page keeps the key in the tab's session storage and sends it with each text."""
    with serving(Service(pool, pool.metrics, Limits(LIMIT), keys=[b"secret"])) as server:
        load_page(browsed, server)
        type_text(browsed, FIRST)
        browsed.until(f"{MESSAGE} === 'This server needs an API key.'")
        browsed.see("document.getElementById('key').focus()")
        browsed.call("Input.insertText", text="wrong")
        browsed.press("Enter")
        browsed.until(f"{MESSAGE} === 'The server does not accept this API key.'")
        browsed.see("document.getElementById('key').select()")
        browsed.call("Input.insertText", text="secret")
        browsed.press("Enter")
        best = json.dumps(server.best(FIRST, api_key="secret")[0])
        browsed.until(f"{SHOWN} === {best}")
        load_page(browsed, server)
        type_text(browsed, FIRST)
        browsed.until(f"{SHOWN} === {best}")
        assert browsed.see("[localStorage.length, sessionStorage.getItem('key')]") == [0, "secret"]


def test_the_key_field_gets_the_focus_when_a_key_is_needed(browsed, pool, tmp_path):
    """It gets the focus on opening, after a refusal and for a file, but not while the user types without a key."""
    with serving(Service(pool, pool.metrics, Limits(LIMIT), keys=[b"secret"])) as server:
        browsed.open(server.url)
        browsed.see("sessionStorage.clear()")
        load_page(browsed, server)
        browsed.until(f"{FOCUSED}.id === 'key'")
        type_text(browsed, FIRST)
        time.sleep(0.5)
        assert browsed.see(f"{FOCUSED}.id") == "text"
        (file := tmp_path / "a.txt").write_text(FIRST)
        browsed.drop(file)
        browsed.until(f"{FILES} === 'a.txt: This server needs an API key.'")
        assert browsed.see(f"{FOCUSED}.id") == "key"
        for _ in range(2):
            browsed.call("Input.insertText", text="wrong")
            browsed.press("Enter")
            browsed.until(f"{MESSAGE} === 'The server does not accept this API key.' && {FOCUSED}.id === 'key'")
        browsed.call("Input.insertText", text="secret")  # replaces the wrong key, which is selected
        browsed.press("Enter")
        browsed.until(f"document.querySelectorAll('{SENTENCE}').length && {FOCUSED}.id === 'text'")
        browsed.save_in(tmp_path)
        browsed.click("#files button")
        browsed.until("document.querySelector('#files a').text === 'a.de.txt'")


@pytest.mark.parametrize("status", [400, 401])
def test_the_page_asks_for_an_api_key_when_the_server_starts_to_need_one(tab, server, status):
    """For example, the server was restarted with keys."""
    server.instead = JSONResponse({"error": "An API key is needed, as api_key or in the Authorization header"}, status)
    type_text(tab, FIRST)
    tab.until(f"{FOCUSED}.id === 'key'")
    assert tab.see(MESSAGE) == "This server needs an API key."
