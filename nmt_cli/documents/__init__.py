"""Translate text with markup or placeholders, and whole files.

Files are web pages, message catalogs, subtitles, office documents and e-books. Each format has a module, listed in
`formats.py`. The module divides a file into strings to copy and segments to translate (see `document.py` and
`segment.py`). A segment holds plain text for the model, and the marks that were taken out of that text: tags, images,
code and placeholders. `alignment.py` translates the text and links each token of the translation to the source.
`placement.py` decides where the marks go in the translation, and `layout.py` inserts them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nmt_cli.documents.formats import FORMATS, SUFFIXES, kind_of
from nmt_cli.system.errors import UsageError

# Suffixes of plain text files. Files whose suffix is a language code or a number, and files without a suffix, are also
# read as plain text. The suffixes of compressed files are here so that reading fails with an error that names the
# compression.
_PLAIN_SUFFIXES = """ txt text lines list src tgt trg source target ref refs reference hyp hyps out output mt sys tok
detok norm bpe sp spm lc tc lower true clean dedup raw sent snt seg train dev valid test part gz bz2 xz zst """
NO_READ_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_MKTEMP = re.compile(r"tmp\.[A-Za-z0-9]{10}")


def choose(
    kind: str | None,
    file: Path | None,
    markup: str | None,
    protect: bool | None,
    plain: Sequence[str],
    reading: Mapping[str, Any] = NO_READ_OPTIONS,
) -> Any:
    """Return a function that translates a document, or lines with markup, placeholders or kept words.

    Return None for plain lines. `kind` is "text", "jsonl" or a name in FORMATS. If it is None, the suffix of `file`
    decides. `markup` and `protect` are the values of --markup and --protect, or None. `plain` lists the given options
    that work only with plain lines. `reading` contains values for ReadOptions. Raise UsageError if the suffix is
    unknown or the options do not fit together.
    """
    by_suffix = kind_of(file) if file else None
    if by_suffix and kind in (None, "jsonl") and (markup or kind):
        option = "--markup" if markup else "--format jsonl"
        wrong = f"{option} is for lines of text, but {file} is a document ({by_suffix})"
        raise UsageError(f"{wrong}. Leave out {option}, or pass the lines on stdin")
    if not kind and file and not markup:
        kind = by_suffix
        if not kind and not _has_lines(file):
            known = ", ".join(SUFFIXES)
            wrong = f"nmt cannot read the format of {file}. It reads {known}, and lines of text"
            if shared := SUFFIXES.get(file.suffix.lower()):
                name, marker = FORMATS[shared].name, FORMATS[shared].marker.decode()
                wrong = f'{file} has a suffix of the format {name}, but no "{marker}" near its beginning'
            raise UsageError(f"{wrong}. Use --format text to translate it line by line")
    if not (markup or protect or reading.get("kept") or kind in FORMATS):
        return None
    from nmt_cli.documents.translate import runner

    return runner(kind or "text", markup, protect, plain, reading)


def check_lines(files: Iterable[Path], kind: str | None) -> None:
    """Raise UsageError if a file is a document or has an unknown format, because --shard divides lines only."""
    for file in files:
        found = kind or kind_of(file)
        if found in FORMATS or not (kind or _has_lines(file)):
            other = f"a document ({found})" if found else "of an unknown format"
            wrong = f"--shard translates lines, but {file} is {other}"
            raise UsageError(f"{wrong}. Leave out --shard, or use --format text")


def _has_lines(file: Path) -> bool:
    """Return whether a file is named like plain lines: a.txt, train.en, test.pt-BR, lines.01, README, tmp.aB3dE5fG7h.

    Return True, too, if `file` is missing or not a regular file, such as a pipe.
    """
    from nmt_cli.corpus.languages import NAMES, base_of

    suffix = file.suffix[1:]
    known = suffix.lower() in _PLAIN_SUFFIXES.split() or suffix.isdecimal() or base_of(suffix) in NAMES
    return not suffix or known or not file.is_file() or bool(_MKTEMP.fullmatch(file.name))
