"""Gettext catalogs for tests, and the tools that fill and check them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fake_models import Model, capitals, translated

from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.po import Catalog

needs_gettext = pytest.mark.skipif(not shutil.which("msgfmt"), reason="gettext is not installed")


FIELDS = r"""msgid ""
msgstr ""
"Project-Id-Version: a 1\n"
"PO-Revision-Date: 2024-01-01 00:00+0000\n"
"Last-Translator: A <a@example.org>\n"
"Language-Team: B <b@example.org>\n"
"Language: xx\n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=UTF-8\n"
"Content-Transfer-Encoding: 8bit\n"
"""


GERMAN = FIELDS + r'"Plural-Forms: nplurals=2; plural=n != 1;\n"' + "\n\n"


TEMPLATE = r"""# A TITLE.
#
#, fuzzy
msgid ""
msgstr ""
"Project-Id-Version: a 1\n"
"Language: \n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=CHARSET\n"
"Content-Transfer-Encoding: ENCODING\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\n"

msgid "a"
msgid_plural "b"
msgstr[0] ""
msgstr[1] ""
"""


def filled(text: str, language: str = "", model: Model = capitals) -> str:
    catalog = Catalog(text, Protection(strict=True), language)
    translated(catalog.parts, model)
    return catalog.write()


def msgfmt(text: str, path: Path) -> str:
    """Return the errors of msgfmt, including those of fuzzy messages."""
    path.write_bytes(text.encode())
    done = subprocess.run(["msgfmt", "-c", "-f", "-o", os.devnull, path], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""
