"""Text as people have it: with markup, with placeholders, in files.

A document is a list of parts: strings, which are copied as they stand, and segments, whose text is translated. A format
(`markup.py` for HTML, `xml.py`, `markdown.py`, `po.py`) finds the segments and joins the parts again, so that what it
does not understand comes out byte for byte. A segment (`segment.py`) is the plain text that a model sees, and the marks
that stood in it: elements around a stretch of text, and points, which the model never sees: images, comments,
placeholders, code. `placement.py` puts the marks on the translation, guided by the alignment, each once. The model is
behind one function, `alignment.py`: texts in, translations with the origin of each of their tokens out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".po": "po", ".pot": "po"}


def choose(kind: str | None, file: Path | None, tags: str | None, protect: bool | None, plain: Sequence[str]) -> Any:
    """Return what translates text with markup or placeholders; None for plain lines.

    `kind` is None where the suffix of `file` says it; `plain` are the options in use that go with plain lines only.
    """
    if not kind and file and not tags:
        kind = SUFFIXES.get(file.suffix.lower())
    if not (tags or protect or kind in SUFFIXES.values()):
        return None
    from nmt_cli.documents.translate import runner

    return runner(kind or "text", tags, protect, plain)
