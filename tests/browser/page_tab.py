"""JavaScript expressions and actions for tests of the page."""

import json

LIMIT = 30_000
FIRST, SECOND = "der Hund geht.", "das Haus ist rot!"
TEXT = f"{FIRST} {SECOND}"
SHOWN = "document.getElementById('translation').innerText"
MESSAGE = "document.getElementById('message').textContent"
FOCUSED = "document.activeElement"
LIT = "[...document.querySelectorAll('.lit')].map(e => e.textContent)"
SENTENCE = ".sentence"
SENTENCES = f"[...document.querySelectorAll('{SENTENCE}')].map(e => e.textContent)"
ROWS = "[...document.querySelectorAll('#files li')]"
FILES = f"{ROWS}.map(e => [...e.children].slice(0, 2).map(e => e.innerText).join(': ')).join()"


def load_page(tab, server):
    tab.open(server.url)
    tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
    tab.until("document.getElementById('from').value")


def type_text(tab, text):
    """Insert text at the caret of the text field."""
    tab.see("document.getElementById('text').focus()")
    tab.call("Input.insertText", text=text)


def translate(tab, server, text=TEXT):
    """Type text, wait for its translation, and return the translation."""
    best = " ".join(server.best(text))
    type_text(tab, text)
    tab.until(f"{SHOWN} === {json.dumps(best)}")
    return best


def complaints(tab):
    return tab.sent("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
