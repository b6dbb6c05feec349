"""The translate command for text that has more than plain lines: marked-up lines, and whole files."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from nmt_cli.corpus.readers import check_plain
from nmt_cli.documents import markdown, markup
from nmt_cli.documents.alignment import translate_aligned
from nmt_cli.documents.placeholders import Protection
from nmt_cli.documents.placement import place
from nmt_cli.documents.po import Catalogue
from nmt_cli.documents.segment import Builder, Parts, Segment, render, segments_of
from nmt_cli.system.console import Progress, counted, say
from nmt_cli.system.errors import DataError, UsageError
from nmt_cli.translation.lines import chunks_of, read_chunks
from nmt_cli.translation.translate import Run, TranslateOptions
from nmt_cli.translation.translator import Translator
from nmt_cli.translation.writer import report, write_line

READ_BYTES = 1 << 20


def runner(kind: str, tags: str | None, protect: bool | None, plain: Sequence[str]) -> Run:
    """Return what translates a file of this kind, or lines of text, with `tags` or without.

    `plain` are the options in use that go with plain lines only.
    """
    wrong = [f"--{name.replace('_', '-')}" for name in plain]
    if kind == "jsonl":
        wrong.append("--format jsonl")
    if wrong:
        raise UsageError(f"{wrong[0]} is for plain lines: leave it out, or the markup and --protect")
    if kind == "text":
        return partial(translate_lines, html=bool(tags), protection=Protection() if protect else None)
    if tags:
        raise UsageError("--markup is for lines, --format html for a whole file. Leave one of them out")
    protection = None if protect is False else Protection(strict=kind == "po")
    return partial(translate_file, kind=kind, protection=protection)


def translate_file(
    translator: Translator,
    options: TranslateOptions,
    source: int,
    target: int,
    progress: Progress,
    *,
    kind: str,
    protection: Protection | None,
) -> None:
    """Translate a whole file, which is written when all of it is translated."""
    data = b"".join(iter(partial(os.read, source, READ_BYTES), b""))
    check_plain(data, "the input")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        tool = "msgconv -t UTF-8" if kind == "po" else "iconv"  # msgconv also names the charset in the header
        raise DataError(f"the input is not UTF-8, at byte {error.start:,}. Convert it, as with {tool}") from None
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    parts, writer = read_document(text.removeprefix(mark), kind, protection, translator.recipe.corpus.tgt)
    segments = segments_of(parts)
    progress.total, progress.unit = len(segments), "segments"
    try:
        texts = (segment.text for segment in segments)
        results = translate_aligned(translator, chunks_of(texts), options.search)
        for segment, aligned in zip(segments, results, strict=True):
            segment.result = place(segment, aligned)
            progress.advance()
    except BaseException:
        progress.done = 0  # nothing is written yet
        raise
    written = memoryview((mark + writer()).encode())
    while written:
        written = written[os.write(target, written) :]
    report(translator.counts, translator.max_length)
    say(counted(len(segments), "segment"))


def read_document(
    text: str, kind: str, protection: Protection | None, language: str = ""
) -> tuple[Parts, Callable[[], str]]:
    """Return the parts of a document, and what writes it when they are translated; `language` is the target's."""
    if kind == "po":
        catalogue = Catalogue(text, protection, language)
        return catalogue.parts, catalogue.written
    html = kind == "html"
    parts = markup.parse(text, protection, language=language) if html else markdown.parse(text, protection)
    return parts, partial(render, parts)


def translate_lines(
    translator: Translator,
    options: TranslateOptions,
    source: int,
    target: int,
    progress: Progress,
    *,
    html: bool,
    protection: Protection | None,
) -> None:
    """Translate lines, each with its own markup; one line out for every line in."""
    waiting = deque[tuple[Parts, list[Segment]]]()  # lines, each with its segments that are not translated yet

    def chunks() -> Iterator[list[str]]:
        for lines in read_chunks(source, translator.counts, strict=options.strict):
            texts = list[str]()
            for line in lines:
                parts = _parse_line(line, html, protection)
                segments = segments_of(parts)
                waiting.append((parts, segments))
                # A line without text has a blank translation, so that it comes in its turn.
                texts += [segment.text for segment in segments] or [""]
            yield texts

    for aligned in translate_aligned(translator, chunks(), options.search):
        parts, segments = waiting[0]
        if segments:
            segment = segments.pop(0)
            segment.result = place(segment, aligned)
        if not segments:
            write_line(target, render(parts))
            waiting.popleft()
            progress.advance()
    report(translator.counts, translator.max_length)


def _parse_line(line: str, html: bool, protection: Protection | None) -> Parts:
    if html:
        return markup.parse(line, protection)
    builder = Builder(protection=protection)
    builder.add_source(line)
    return builder.build()
