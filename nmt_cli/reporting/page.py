"""One self-contained HTML file: escaping, tables, and the page around them. Nothing in it asks for a network."""

import base64
import difflib
import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt_cli.errors import printable

LONGEST_TEXT = 2000


def escape(text: object) -> str:
    """Return text as HTML that shows it and runs nothing; controls and bidi marks are spelt out."""
    return html.escape(printable(text, LONGEST_TEXT))


def table(header: Sequence[str], rows: Sequence[Sequence[object]], kinds: str = "") -> str:
    """Return a table.

    Args:
        header: column titles; empty for none.
        rows: cells: text, escaped here; numbers stay on one line.
        kinds: one letter per column: l text (the default), r number, c code, h HTML that is escaped already.
    """
    kinds = kinds.ljust(max(map(len, [header, *rows]), default=0), "l")
    head = "".join(f'<th class="{kind}">{escape(cell)}</th>' for cell, kind in zip(header, kinds, strict=False))
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{k}" dir="auto">{_cell(c, k)}</td>' for c, k in zip(row, kinds, strict=False))
        + "</tr>"
        for row in rows
    )
    head = f"<thead><tr>{head}</tr></thead>" if header else ""
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


def _cell(cell: object, kind: str) -> str:
    if kind == "h":
        return str(cell)
    return f"<code>{escape(cell)}</code>" if kind == "c" else escape(cell)


def section(title: str, *parts: str) -> str:
    """Return a section of HTML parts under a heading that can be linked to."""
    name = "".join(c if c.isalnum() else "-" for c in title.lower())
    return f'<section id="{name}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def details(summary: str, content: str) -> str:
    """Return HTML that is folded away until asked for (and unfolded in print)."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def compared(text: str, reference: str) -> str:
    """Return a translation as HTML, the words that differ from its reference marked."""
    words, other = text.split(), reference.split()
    parts = []
    for kind, start, end, *_ in difflib.SequenceMatcher(None, words, other, autojunk=False).get_opcodes():
        if start < end:
            shown = escape(" ".join(words[start:end]))
            parts.append(shown if kind == "equal" else f"<mark>{shown}</mark>")
    return " ".join(parts) or "<em>(empty)</em>"


def page(title: str, body: str, script: str = "", data: Any = None) -> bytes:
    """Return a whole page.

    Its policy lets the browser load nothing and run nothing but `script`: text that got past the escaping could not
    run either.

    Args:
        title: plain text.
        body: HTML.
        script: plain JavaScript, run at the end.
        data: JSON for the script, in the element "data".
    """
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{script_hash}'"
    style = Path(__file__).with_name("style.css").read_text()
    held = json.dumps(data).replace("<", "\\u003c")  # the only character that could end the element
    scripts = f'<script type="application/json" id="data">{held}</script><script>{script}</script>' if script else ""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>{body}</main>{scripts}</body></html>\n"
    ).encode()
