"""The page of `nmt serve` in a real browser, in front of the real application and tiny models."""

import asyncio
import json
import threading
import time

import pytest
from chromium import browser, pytestmark  # noqa: F401
from tiny_model import make_model

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
from page_server import backwards, serving
from starlette.requests import Request
from starlette.responses import JSONResponse

from nmt_cli.serving.files import KINDS
from nmt_cli.serving.metrics import Metrics
from nmt_cli.serving.pool import Pool, load
from nmt_cli.serving.service import Limits, Service

LIMIT = 30_000
FIRST, SECOND = "der Hund geht.", "das Haus ist rot!"
TEXT = f"{FIRST} {SECOND}"
SHOWN = "document.getElementById('translation').innerText"
MESSAGE = "document.getElementById('message').textContent"
FOCUSED = "document.activeElement"
FILES = "[...document.querySelectorAll('#files li')].map(e => `${e.children[0].innerText}: ${e.children[1].innerText}`).join()"
LIT = "[...document.querySelectorAll('.lit')].map(e => e.textContent)"
SENTENCE = ".sentence"


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    there = make_model(tmp_path_factory.mktemp("there"))
    back = make_model(tmp_path_factory.mktemp("back"), "corpus.src=de", "corpus.tgt=en", seed=2)
    with Pool([*load(there, "fp32", 1), *load(back, "fp32", 1)], Metrics(), queue=1000, timeout=120) as pool:
        yield pool


@pytest.fixture
def server(pool):
    with serving(Service(pool, pool.metrics, Limits(LIMIT))) as server:
        yield server


@pytest.fixture(scope="module")
def browsed(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


@pytest.fixture
def tab(browsed, server):
    browsed.resize(1280)
    load_page(browsed, server)
    yield browsed
    assert browsed.sent("Runtime.exceptionThrown") == []


def load_page(tab, server):
    tab.open(server.url)
    tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
    tab.until("document.getElementById('from').value")


def type_text(tab, text):
    """Put text where the caret is, in the text's field."""
    tab.see("document.getElementById('text').focus()")
    tab.call("Input.insertText", text=text)


def translate(tab, server, text=TEXT):
    """Type a text, and wait for its translation, which is returned."""
    best = " ".join(server.best(text))
    type_text(tab, text)
    tab.until(f"{SHOWN} === {json.dumps(best)}")
    return best


def complaints(tab):
    return tab.sent("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")


def test_typing_shows_a_translation_and_asks_nobody_else(tab, server):
    """Each sentence is the server's, blank lines and emoji stay where they are, and nothing complains."""
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


def test_one_request_is_sent_for_what_is_typed_without_a_pause(tab, server):
    typing = "for (const each of {}) {{ text.value += each; text.dispatchEvent(new Event('input')); }}"
    tab.see(f"const text = document.getElementById('text'); {typing.format(json.dumps(FIRST))}")
    tab.until(f"{SHOWN} === {json.dumps(server.best(FIRST)[0])}")
    assert len(server.asked) == 2  # one of them is the test's


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


def test_a_click_lists_other_translations_and_the_chosen_one_stays(tab, server):
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


def test_all_of_it_is_done_by_keyboard(tab, server):
    """From the text to its translation, through sentences, to another translation, to the copy and back."""
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
    tab.press("Shift+Tab", "Shift+Tab", "Enter")  # the button that clears the text
    tab.until(f"{SHOWN} === ''")
    assert tab.see(f"{FOCUSED}.id") == "text"


def test_the_copy_works_where_the_clipboard_is_refused(tab, server):
    """Browsers give pages without https no clipboard, but they obey the command."""
    server.instead = backwards
    translate(tab, server, FIRST)
    tab.allow_clipboard()
    tab.see("navigator.clipboard.writeText = () => Promise.reject(new Error())")
    tab.click("#copy")
    tab.until("document.getElementById('copy').textContent === 'Copied'")
    assert tab.see("navigator.clipboard.readText()") == "GEHT. HUND DER"


def test_aligned_words_are_highlighted_by_pointer_and_by_keyboard(tab, server):
    server.instead = backwards
    translate(tab, server)
    pairs = [("GEHT.", "geht."), ("HUND", "Hund"), ("DER", "der"), ("ROT!", "rot!")]
    for place, (target, source) in enumerate(pairs[:3], 1):
        tab.hover(f"{SENTENCE} .word:nth-of-type({place})")
        assert tab.see(LIT) == [source, target]
    tab.hover("#mirror .word:nth-of-type(1)")  # it lies below the text's field
    assert tab.see(LIT) == ["der", "DER"]
    tab.hover("h1")
    assert tab.see(LIT) == []
    tab.press("Tab", "Tab")
    for target, source in pairs:  # on to the next sentence
        assert tab.see(LIT) == [source, target]
        tab.press("ArrowRight")
    assert tab.see("document.getElementById('status').textContent") == "IST: ist"
    tab.see("document.getElementById('text').focus()")
    tab.press("Home", "ArrowRight")  # the caret is in the first word
    assert tab.see(LIT) == ["der", "DER"]
    type_text(tab, "x")
    assert tab.see(LIT) == []


def test_words_without_spaces_between_are_highlighted_by_themselves(tab, server):
    """As the browser cuts Chinese into words; places are of characters, not of their halves in UTF-16."""

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
    for place, lit in ((1, ["🙂", "🙂"]), (2, ["今天", "today"]), (3, ["天气", "weather"])):
        tab.hover(f"#mirror .word:nth-of-type({place})")
        assert tab.see(LIT) == lit
    tab.hover(f"{SENTENCE} .word:nth-of-type(3)")
    assert tab.see(LIT) == ["天气", "weather"]


def test_a_server_that_is_gone_is_said_and_the_page_goes_on_when_it_is_back(tab, server):
    best = translate(tab, server, FIRST)
    server.stop()
    type_text(tab, f" {SECOND}")
    tab.until(MESSAGE)
    assert tab.see(MESSAGE) == "The server cannot be reached; this page keeps trying."
    assert tab.see(SHOWN) == best  # what is known stays
    server.start()
    tab.until(f"{SHOWN} === {json.dumps(' '.join(server.best(TEXT)))}")
    assert tab.see(MESSAGE) == ""


def test_a_server_that_is_gone_when_the_page_opens_is_found_later(tab, server):
    tab.call("Network.setBlockedURLs", urls=["*/languages"])
    tab.open(server.url)
    tab.until(MESSAGE)
    type_text(tab, FIRST)
    tab.call("Network.setBlockedURLs", urls=[])
    tab.until(f"{SHOWN} === {json.dumps(server.best(FIRST)[0])}")


def test_a_busy_server_is_asked_again(tab, server):
    server.instead = JSONResponse({"error": "Too many texts are waiting"}, 429, {"Retry-After": "1"})
    type_text(tab, FIRST)
    tab.until(MESSAGE)
    assert tab.see(MESSAGE) == "The server is busy; this page tries again in a moment."
    server.instead = None
    tab.until(f"{SHOWN} === {json.dumps(server.best(FIRST)[0])}")
    assert tab.see(MESSAGE) == ""


def test_other_errors_are_said_in_the_servers_words(tab, server):
    server.instead = JSONResponse({"error": "The translation took longer than 60 seconds"}, 504)
    type_text(tab, FIRST)
    tab.until(MESSAGE)
    assert tab.see(MESSAGE) == "The translation took longer than 60 seconds."


def test_text_over_the_limit_is_not_sent(tab, server):
    """Characters are counted as the server does: an emoji is one."""
    type_text(tab, "🐕" * (LIMIT + 1))
    tab.until(MESSAGE)
    assert tab.see(MESSAGE) == "This text has 30,001 characters; the server takes 30,000 at once."
    assert server.asked == []


def test_a_long_text_is_shown_whole(tab, server):
    """Of 20,000 characters nothing is cut off: neither of the text, whose field grows, nor of the translation."""
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


def long_text(sentences=120):
    """Return a text of several parts, of sentences that differ."""
    return "".join(
        f"der Hund geht {number} mal. das Haus ist rot!{chr(10) * (number % 3)} " for number in range(sentences)
    )


def test_a_long_text_is_translated_in_parts_as_it_would_be_whole(tab, server):
    text = long_text()
    whole = server.best(text)
    server.asked.clear()
    tab.paste(text)
    tab.until(f"document.querySelectorAll('{SENTENCE}').length === {len(whole)}")
    assert tab.see(f"[...document.querySelectorAll('{SENTENCE}')].map(e => e.textContent)") == whole
    assert tab.see("document.getElementById('mirror').textContent") == f"{text}\u200b"
    asked = len(server.asked)
    assert 2 <= asked <= len(text) / 1500
    assert tab.see("document.getElementById('work').hidden")
    tab.press("Home")
    type_text(tab, "rot ")  # within the last part
    tab.until(f"document.getElementById('mirror').textContent.includes('rot ')")
    tab.see("(e => e.setSelectionRange(0, 0))(document.getElementById('text'))")
    type_text(tab, "rot ")
    edited = tab.see("document.getElementById('text').value")
    best = json.dumps(server.best(edited))
    tab.until(
        f"JSON.stringify([...document.querySelectorAll('{SENTENCE}')].map(e => e.textContent)) === JSON.stringify({best})"
    )
    assert len(server.asked) <= asked + 5, "one for each edit, at most two for what is beside it, and the test's own"


def test_a_long_text_shows_its_progress_and_can_be_cancelled_and_continued(tab, server):
    text = long_text()
    sentences = len(server.best(text))
    held = threading.Event()
    server.instead = hold_after(server.app, 1, held)
    tab.paste(text)
    bar = "document.getElementById('progress')"
    tab.until(f"{bar}.checkVisibility() && {bar}.value > 0")
    shown = tab.see(f"document.querySelectorAll('{SENTENCE}').length")
    assert 0 < shown < sentences, "what is there is shown"
    assert tab.see("document.getElementById('translation').ariaBusy") == "true"
    [node] = [
        node
        for node in tab.call("Accessibility.getFullAXTree")["nodes"]
        if node["role"]["value"] == "progressbar" and not node["ignored"]
    ]
    assert node["name"]["value"] == "Progress of the translation"
    part = tab.see("document.getElementById('done').textContent")
    assert part == f"{tab.see(f'Math.round(100 * {bar}.value)')}%"
    tab.see("document.getElementById('cancel').focus()")
    tab.press("Enter")
    assert tab.see("document.getElementById('done').textContent") == f"Stopped at {part}"
    asked = len(server.asked)
    held.set()
    time.sleep(0.5)
    assert tab.see(f"document.querySelectorAll('{SENTENCE}').length") == shown
    assert len(server.asked) == asked, "nothing more is asked"
    assert tab.see("[document.activeElement.id, document.activeElement.textContent]") == ["cancel", "Continue"]
    server.instead = None
    tab.press("Enter")
    tab.until(f"document.querySelectorAll('{SENTENCE}').length === {sentences}")
    tab.until("document.getElementById('work').hidden")
    assert tab.see(f"{FOCUSED}.id") == "copy", "the focus is not lost with the button"


def hold_after(app, count, held):
    """Answer so many requests at once, and others when `held` is set."""
    left = [None] * count

    async def answer(scope, receive, send):
        if left:
            left.pop()
        else:
            await asyncio.to_thread(held.wait, 60)
        await app(scope, receive, send)

    return answer


def test_parts_of_a_long_text_are_in_the_language_that_was_found_in_it(tab, server):
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
    tab.paste("The house is red and the dog is not at home. " * 100 + "der Hund geht. " * 100)
    tab.until(f"document.querySelectorAll('{SENTENCE}').length === 200")
    assert asked == ["auto", "en", "en"]


def test_a_dropped_file_is_translated_and_saved(tab, server, tmp_path):
    """Its name has the language in it; its markup stays."""
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
    """Return the text of a file that the browser saves."""
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
    ("name", "content", "said"),
    [
        ("a.pdf", b"x", f"The server takes files of these kinds: {' '.join(sorted(KINDS))}."),
        ("a.txt", b"x" * (LIMIT + 1), "This text has 30,001 characters; the server takes 30,000 at once."),
        ("a.txt", b"x" * (4 * LIMIT + 1), "This text has 30,001 characters; the server takes 30,000 at once."),
        ("a.txt", b"\xff\xfe", "Invalid request: file is not text in UTF-8."),
    ],
)
def test_a_file_that_cannot_be_translated_is_refused(tab, server, tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    tab.drop(tmp_path / name)
    tab.until(f"{FILES} === {json.dumps(f'{name}: {said}')}")
    assert tab.see("document.getElementById('status').textContent") == f"{name}: {said}"
    assert len(server.asked) == (content == b"\xff\xfe"), "what the page can tell is not sent"


def test_a_file_waits_for_a_busy_server_can_be_cancelled_and_tried_again(tab, server, tmp_path):
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


def test_text_that_is_dropped_goes_into_its_field(tab, server):
    data = {"items": [{"mimeType": "text/plain", "data": FIRST}], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        tab.call("Input.dispatchDragEvent", type=kind, x=200, y=300, data=data)
    tab.until(f"document.getElementById('text').value === {json.dumps(FIRST)}")
    assert tab.see(FILES) == ""


def test_a_key_is_asked_for_where_the_server_wants_one(browsed, pool):
    """It is kept in the tab's session storage, and sent with each text."""
    with serving(Service(pool, pool.metrics, Limits(LIMIT), keys=[b"secret"])) as server:
        load_page(browsed, server)
        type_text(browsed, FIRST)
        browsed.until(f"{MESSAGE} === 'This server wants an API key.'")
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


def test_the_key_field_has_the_focus_when_a_key_is_asked_for(browsed, pool, tmp_path):
    """At the start, after a refusal, and for a file; who types on without a key is left alone."""
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
        browsed.until(f"{FILES} === 'a.txt: This server wants an API key.'")
        assert browsed.see(f"{FOCUSED}.id") == "key"
        for _ in range(2):
            browsed.call("Input.insertText", text="wrong")
            browsed.press("Enter")
            browsed.until(f"{MESSAGE} === 'The server does not accept this API key.' && {FOCUSED}.id === 'key'")
        browsed.call("Input.insertText", text="secret")  # in place of the wrong one, which is selected
        browsed.press("Enter")
        browsed.until(f"document.querySelectorAll('{SENTENCE}').length && {FOCUSED}.id === 'text'")
        browsed.save_in(tmp_path)
        browsed.click("#files button")
        browsed.until("document.querySelector('#files a').text === 'a.de.txt'")


@pytest.mark.parametrize("status", [400, 401])
def test_a_key_that_is_needed_later_is_asked_for(tab, server, status):
    """The server was started anew, with keys."""
    server.instead = JSONResponse({"error": "An API key is needed, as api_key or in the header Authorization"}, status)
    type_text(tab, FIRST)
    tab.until(f"{FOCUSED}.id === 'key'")
    assert tab.see(MESSAGE) == "This server wants an API key."


def test_languages_are_swapped_with_their_texts(tab, server):
    best = translate(tab, server, FIRST)
    tab.click("#swap")
    tab.until(f"{SHOWN} === {json.dumps(' '.join(server.best(best, source='de', target='en')))}")
    languages = tab.see("['from', 'to'].map(id => document.getElementById(id).selectedOptions[0].text)")
    assert languages == ["German", "English"]
    assert tab.see("document.getElementById('text').value") == best


def test_languages_are_not_swapped_where_no_model_translates_back(browsed, pool):
    one = Pool(pool.models[:1], pool.metrics, queue=1000, timeout=120)
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


def test_text_is_never_taken_for_markup_and_scripts_of_others_never_run(tab, server):
    """What the policy forbids is not done even if someone could write into the page."""
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
def test_it_fits_a_telephone_and_a_screen(tab, server, tmp_path, width, height, side_by_side):
    """The panes fill the window; there is nothing to scroll to the side, with a list open, a file and a long word."""
    tab.resize(width, height)
    boxes = "[...document.querySelectorAll('.pane')].map(e => e.getBoundingClientRect()).map(r => [r.x, r.y, r.right, r.bottom])"
    first, second = tab.see(boxes)
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


def test_right_to_left_text_is_shown_so(tab, server):
    type_text(tab, "שלום עולם")
    assert tab.see("getComputedStyle(document.getElementById('text')).direction") == "rtl"
    tab.see("document.getElementById('text').select()")
    translate(tab, server)
    directions = tab.see("['text', 'translation'].map(id => getComputedStyle(document.getElementById(id)).direction)")
    assert directions == ["ltr", "ltr"]


def test_controls_have_names_and_what_changes_is_announced(tab, server):
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
def test_text_stands_out_from_what_is_behind_it(tab, server, scheme):
    """WCAG's level AA: a contrast of 4.5 for text, of 3 for the edges of controls and the mark of the focus."""
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    backs = {"text": "back card hover lit", "soft": "back card", "bad": "card bad-back", "accent": "card hover"}
    pairs = [(front, back, 4.5) for front, names in backs.items() for back in names.split()]
    for front, back, least in [*pairs, ("edge", "card", 3), ("edge", "back", 3), ("accent", "back", 3)]:
        brighter, darker = sorted([luminance(tab, front), luminance(tab, back)], reverse=True)
        assert (brighter + 0.05) / (darker + 0.05) >= least, (front, back)
    tab.call("Emulation.setEmulatedMedia", features=[])


def luminance(tab, name):
    """Return the relative luminance of a colour of the style sheet."""
    tab.see(f"document.body.style.outlineColor = 'var(--{name})'")
    text = tab.see("getComputedStyle(document.body).outlineColor")
    shares = [int(part) / 255 for part in text.removeprefix("rgb(").rstrip(")").split(", ")]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
