"""Text as people have it: with markup, with placeholders, in files.

A document is a list of parts: strings, which are copied as they stand, and segments, whose text is translated. A format
(`markup.py` for HTML, `xml.py`, `markdown.py`, `po.py`) finds the segments and joins the parts again, so that what it
does not understand comes out byte for byte. A segment (`segment.py`) is the plain text that a model sees, and the marks
that stood in it: elements around a stretch of text, and points, which the model never sees: images, comments,
placeholders, code. `placement.py` puts the marks on the translation, guided by the alignment, each once. The model is
behind one function, `alignment.py`: texts in, translations with the origin of each of their tokens out.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt_cli.system.errors import UsageError

SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".markdown": "md", ".po": "po", ".pot": "po"}
# Suffixes of plain lines beside codes of languages, numbers and none. Packed ones are refused when they are read.
_PLAIN = """ txt text lines list src tgt trg source target ref refs reference hyp hyps out output mt sys tok detok norm
bpe sp spm lc tc lower true clean dedup raw sent snt seg train dev valid test part gz bz2 xz zst """
_TEMPORARY = re.compile(r"tmp\.[A-Za-z0-9]{10}")  # a name that mktemp makes


def choose(kind: str | None, file: Path | None, tags: str | None, protect: bool | None, plain: Sequence[str]) -> Any:
    """Return what translates text with markup or placeholders; None for plain lines.

    Without `kind` the suffix of `file` decides; UsageError where it is of neither a format that we read nor of plain
    lines, or of a document while an option for lines is in use. `plain` are the options in use that go with plain lines
    only.
    """
    document = SUFFIXES.get(file.suffix.lower()) if file else None
    if document and kind in (None, "jsonl") and (tags or kind):
        option = "--markup" if tags else "--format jsonl"
        wrong = f"{option} is for lines of text, and {file} is a document ({document})"
        raise UsageError(f"{wrong}. Leave out {option}, or give its lines on stdin")
    if not kind and file and not tags:
        kind = document
        if not kind and not _has_lines(file):
            known = ", ".join(SUFFIXES)
            other = f"{file} is of a format that nmt cannot read: it reads {known}, and lines of text"
            raise UsageError(f"{other}. To translate it line by line: --format text")
    if not (tags or protect or kind in SUFFIXES.values()):
        return None
    from nmt_cli.documents.translate import runner

    return runner(kind or "text", tags, protect, plain)


def _has_lines(file: Path) -> bool:
    """Return whether the name of a file is one of plain lines: none.txt, train.en, test.pt-BR, lines.01, none."""
    from nmt_cli.corpus.languages import NAMES, base_of

    suffix = file.suffix[1:]
    known = suffix.lower() in _PLAIN.split() or suffix.isdecimal() or base_of(suffix) in NAMES
    return not suffix or known or not file.is_file() or bool(_TEMPORARY.fullmatch(file.name))
