"""Make self-contained HTML pages from Jinja templates. A page loads no other files, and its text cannot run as code."""

import base64
import difflib
import functools
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from nmt_cli.system.console import duration
from nmt_cli.system.errors import printable

TEMPLATES = Path(__file__).with_name("templates")


def _visible(value: object) -> object:
    """Escape control characters and bidirectional marks, and keep at most 2,000 characters. Do not change markup."""
    return value if hasattr(value, "__html__") else printable(value, 2000)


def compared(text: str, reference: str) -> list[tuple[str, bool]]:
    """Split a translation into parts of one or more words. Return pairs (part, whether it matches the reference)."""
    words, other = text.split(), reference.split()
    steps = difflib.SequenceMatcher(None, words, other, autojunk=False).get_opcodes()
    return [(" ".join(words[start:end]), kind == "equal") for kind, start, end, *_ in steps if start < end]


@functools.cache
def _pages() -> Environment:
    """Return the templates. Each is compiled once."""
    loader = FileSystemLoader(TEMPLATES)
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_visible, trim_blocks=True)
    pages.filters |= {"compared": compared, "thousands": "{:,}".format, "duration": duration}
    pages.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return pages


def render(template: str, values: dict[str, Any], script: str | None = None) -> bytes:
    """Return a page in UTF-8. `template` and `script` are names of files in TEMPLATES.

    All `values` are escaped. The page's security policy forbids all other scripts, and all other files.
    """
    code = (TEMPLATES / script).read_text() if script else ""
    policy = f"script-src 'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
    page = {"style": (TEMPLATES / "style.css").read_text(), "script": code, "script_policy": policy}
    return _pages().get_template(template).render({**values, **page}).encode()
