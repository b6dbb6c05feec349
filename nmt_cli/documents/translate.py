"""Translate documents, and lines with markup or placeholders, for `nmt translate`."""

import gc
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from nmt_cli.corpus.languages import NAMES, base_of, match, shortest
from nmt_cli.documents import html
from nmt_cli.documents.alignment import translate_aligned
from nmt_cli.documents.document import Document, ReadOptions
from nmt_cli.documents.formats import FORMATS
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import place_marks
from nmt_cli.documents.segment import MarkedSegment, plain_parts
from nmt_cli.system.console import Progress, counted, say, warn
from nmt_cli.system.errors import UsageError
from nmt_cli.translation.lines import chunks_of, read_chunks
from nmt_cli.translation.stored_models import direction_to
from nmt_cli.translation.translate import Run, TranslateOptions
from nmt_cli.translation.translator import Translator
from nmt_cli.translation.writer import report, write_lines

READ_BYTES = 1 << 20


def runner(
    kind: str, markup: str | None, protect: bool | None, plain: Sequence[str], reading: Mapping[str, Any]
) -> Run:
    """Return a function that translates a file of format `kind`, or lines if `kind` is "text".

    `plain` lists the given options that work on plain lines only. `reading` contains values for ReadOptions. Raise
    UsageError if `plain` is not empty, if `kind` is "jsonl", or if `markup` is set for a file.
    """
    wrong = [f"--{name.replace('_', '-')}" for name in plain]
    if kind == "jsonl":
        wrong.append("--format jsonl")
    if wrong:
        raise UsageError(f"{wrong[0]} works on plain lines only, not with a document, --markup or --protect")
    if kind == "text":
        protection = ReadOptions(protect=bool(protect), **reading).protection()
        return partial(translate_lines, is_html=bool(markup), protection=protection)
    if markup:
        raise UsageError("--markup is for lines of text, and this --format is for a whole file. Remove one of the two")
    return partial(translate_file, kind=kind, reading=ReadOptions(protect=protect is not False, **reading))


def translate_file(
    translator: Translator,
    options: TranslateOptions,
    source: int,
    target: int,
    progress: Progress,
    *,
    kind: str,
    reading: ReadOptions,
) -> None:
    """Translate a whole file in one of FORMATS, from one file descriptor to another.

    Write nothing until all of it is translated.
    """
    data = b"".join(iter(partial(os.read, source, READ_BYTES), b""))
    gc.disable()  # garbage collection would visit all objects of a large document again and again
    try:
        code = options.search.target.strip("<> ")  # the option may be a token such as >>deu<<
        pair = direction_to(code, translator.config, translator.directions)
        language = shortest(code or pair.target)
        document = FORMATS[kind].read(data, replace(reading, language=language, source_language=pair.source))
    finally:
        gc.freeze()
        gc.enable()
    if {base_of(document.target), base_of(language)} <= NAMES.keys() and not match(document.target, [language]):
        warn(f"the file is for {document.target}, and this translation is in {language}. Check --model and --to")
    progress.total, progress.unit = len(document.segments), "segments"
    texts = (segment.text for segment in document.segments)
    try:
        results = translate_aligned(translator, chunks_of(texts), options.search)
        for segment, aligned in zip(document.segments, results, strict=True):
            segment.result = place_marks(segment, aligned)
            progress.advance()
    except BaseException:
        progress.done = 0  # nothing is written yet
        raise
    written = memoryview(document.to_bytes())
    while written:
        written = written[os.write(target, written) :]
    report(translator.counts, translator.max_length)
    say(counted(len(document.segments), "segment"))


def translate_lines(
    translator: Translator,
    options: TranslateOptions,
    source: int,
    target: int,
    progress: Progress,
    *,
    is_html: bool,
    protection: Protection | None,
) -> None:
    """Translate lines with markup or placeholders from one file descriptor to another."""
    waiting = deque[tuple[Document, deque[MarkedSegment]]]()  # lines, each with its untranslated segments

    def chunks() -> Iterator[list[str]]:
        counts, first = translator.counts, options.first_line
        for lines in read_chunks(source, counts, strict=options.strict, first=first, all_read=options.all_read):
            texts = list[str]()
            for line in lines:
                document = Document(html.parse(line, protection) if is_html else plain_parts(line, protection))
                waiting.append((document, deque(document.segments)))
                # An empty text stands for a line without segments, so that the line is written in its turn.
                texts += [segment.text for segment in document.segments] or [""]
            yield texts

    for aligned in translate_aligned(translator, chunks(), options.search):
        document, segments = waiting[0]
        if segments:
            segment = segments.popleft()
            segment.result = place_marks(segment, aligned)
        if not segments:
            write_lines(target, [document.write()])
            waiting.popleft()
            progress.advance()
    if not options.is_unit:
        report(translator.counts, translator.max_length)
