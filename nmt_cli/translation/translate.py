"""The translate command, which reads lines and writes a translation of each, in the same order."""

import itertools
import json
import math
import os
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nmt_cli.storage import artefact
from nmt_cli.system.console import Progress, counted, say
from nmt_cli.system.errors import BROKEN_PIPE, DataError, MissingError, OutputError, StorageError, UsageError
from nmt_cli.transformer.directory import other_models, output_of
from nmt_cli.translation.lines import count_lines, read_chunks, read_lines
from nmt_cli.translation.options import MODEL_DEFAULTS, SearchOptions
from nmt_cli.translation.translator import Translator
from nmt_cli.translation.writer import FIELDS, formatted, report, write_lines

# Reads the input from the first file descriptor, and writes translations or scores to the second.
Run = Callable[[Translator, "TranslateOptions", int, int, Progress], None]


@dataclass(frozen=True)
class TranslateOptions:
    """Options of the translate command. The default input is stdin, and the default output is stdout."""

    input: Path | None = None
    output: Path | None = None
    models: tuple[Path, ...] = ()
    search: SearchOptions = MODEL_DEFAULTS
    precision: str = "auto"
    format: str = "text"  # or "jsonl"
    strict: bool = False  # refuse input that is not UTF-8
    prefix: Path | None = None  # a file with the beginning of each translation
    score_pairs: Path | None = None  # a file of translations to score, one per line, instead of translating
    workers: int | None = None
    also_read: tuple[Path, ...] = ()  # other files that the command reads, such as a glossary
    first_line: int = 1  # number of the first line; used in messages, numbered output and random seeds
    is_unit: bool = False  # the input is a unit (one part) of a sharded job; print no report on it
    all_read: Callable[[], None] = lambda: None  # called when all lines of the input are read and queued


def choose_models(named: Sequence[Path]) -> tuple[Path, ...]:
    """Return the named models, or else the newest translation model in runs/. Raise MissingError if there is none."""
    if named:
        return tuple(named)
    models = [run / "model" for run in sorted(Path("runs").glob("*")) if artefact.present(run / "model")]
    models.sort(key=lambda model: str(artefact.read_json(model / artefact.MANIFEST).get("created", "")))
    while models and output_of(models[-1]) == "trees":
        models.pop()  # a parser, not a translation model
    if not models:
        raise MissingError(f"no model was given, and there is none under runs/. {other_models()}")
    say(f"model: {models[-1]}")
    return (models[-1],)


def translate(options: TranslateOptions, run: Run | None = None) -> int:
    """Run the command, and return its exit code. For input other than plain lines, pass a `run` that reads it."""
    rank = os.environ.get("RANK", "")
    if rank.isdecimal() and int(rank):
        return 0  # under a launcher such as torchrun, only the first process translates
    _check(options)
    output = _output_file(options)
    models = choose_models(options.models)
    source = os.open(options.input, os.O_RDONLY) if options.input else 0
    translator = Translator(models, precision=options.precision, workers=options.workers)
    typed = source == 0 and os.isatty(source)
    if typed:
        say("type lines to translate. Each line is translated separately. Press Ctrl-D to end")
    target, part = 1, None
    if output and output.exists() and not output.is_file():  # a pipe or a device: nothing to replace
        target = os.open(output, os.O_WRONLY)
    elif output:
        artefact.make_directory(output.parent)
        part = output.with_name(output.name + ".part")
        part.unlink(missing_ok=True)  # left by an earlier command, or a link placed there by another user
        target = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if output.exists():
            os.fchmod(target, stat.S_IMODE(output.stat().st_mode))
    progress = Progress("translating", count_lines(source), "lines", every=math.inf if typed else 10)
    progress.plain |= typed  # a progress bar would be drawn where the user types
    try:
        with translator, progress:
            run = run or (score_lines if options.score_pairs else translate_lines)
            run(translator, options, source, target, progress)
    except BrokenPipeError:
        return BROKEN_PIPE  # without a message: the reader has closed the pipe, as `head` does
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(part or output or "standard output")
        if part and progress.done:
            say(f"{part} holds the first {progress.done:,} lines")
        elif part:
            part.unlink(missing_ok=True)
        raise
    if part and output:
        os.fsync(target)
        if not os.path.samestat(os.fstat(target), os.lstat(part)):
            raise OutputError(f"another process has replaced {part}. Choose another --output")
        part.replace(output)
        artefact.sync(output.parent)
    return 0


def _check(options: TranslateOptions) -> None:
    """Raise an error for contradictory options and missing files, before a model is loaded."""
    search = options.search
    other = options.prefix or search.alignments or search.sampling or search.terms or search.n_best > 1
    if options.score_pairs and (other or search.target or search.shortlist):
        others = "--sample, --prefix, --terms, --n-best, --alignments, --to or --shortlist"
        raise UsageError(f"--score-pairs cannot be used with {others}")
    for file in (options.input, options.prefix, options.score_pairs):
        if file and file.is_dir():
            raise UsageError(f"{file} is a directory. Name a file in it")
    if options.input and not options.input.exists():
        text = str(options.input)
        advice = "Check the path"
        if " " in text:
            advice = f"To translate text from the command line: echo {shlex.quote(text[:60])} | nmt translate"
        raise MissingError(f"no file {text[:60]!r}. {advice}")
    if options.input is None and sys.stdin is None:
        raise MissingError("stdin is closed. Pass --input FILE")
    if options.output is None and sys.stdout is None:
        raise StorageError("stdout is closed. Pass --output FILE")


def _output_file(options: TranslateOptions) -> Path | None:
    """Return the file to write, or None for stdout.

    Raise OutputError if the output is a directory, or a file that the command reads.
    """
    output = options.output
    if output is None or output == Path("/dev/stdout"):
        return None
    if output.is_dir():
        raise OutputError(f"{output} is a directory. Add a file name")
    if output.exists() and not output.is_file():
        return output
    is_stdin = options.input is None and output.exists() and os.path.samestat(output.stat(), os.fstat(0))
    if is_stdin or artefact.is_one_of(output, (options.input, options.prefix, options.score_pairs, *options.also_read)):
        raise OutputError(f"{output} is also the input. Choose another --output")
    return Path(os.path.realpath(output))  # the target of a symbolic link is replaced, not the link


def translate_lines(
    translator: Translator, options: TranslateOptions, source: int, target: int, progress: Progress
) -> None:
    """Read lines from the file descriptor `source`, and write their translations to `target`."""
    start = time.monotonic()
    counts = translator.counts
    prefixes = None
    if options.prefix:
        prefixes = read_lines(os.open(options.prefix, os.O_RDONLY), counts, "prefix", strict=options.strict)
    first = options.first_line
    chunks = read_chunks(source, counts, strict=options.strict, first=first, all_read=options.all_read)
    tokenizer = translator.tokenizer if options.search.alignments else None
    numbers = itertools.count(first)
    for translations in translator.translate_chunks(chunks, options.search, prefixes, first=first):
        lines = [formatted(each, next(numbers), tokenizer, options.format) for each in translations]
        write_lines(target, itertools.chain.from_iterable(lines))
        progress.advance(len(translations))
    if prefixes and next(prefixes, None) is not None:
        raise DataError(f"there are more prefixes than lines ({counts['lines']:,})")
    if options.is_unit:
        return
    report(counts, translator.max_length)
    tokens, seconds = counts["tokens"], time.monotonic() - start
    say(f"{counted(counts['lines'], 'line')}, {tokens:,} tokens in {seconds:.1f} s, {tokens / seconds:,.0f} tokens/s")


def score_lines(
    translator: Translator, options: TranslateOptions, source: int, target: int, progress: Progress
) -> None:
    """Read lines from the file descriptor `source`, and their translations from the file `options.score_pairs`.

    Write the scores to the file descriptor `target`. Raises DataError if one input has more lines than the other.
    """
    total, tokens, counts = 0.0, 0, translator.counts
    translations = os.open(options.score_pairs or "", os.O_RDONLY)
    kinds = (source, "line"), (translations, "translation")
    sides = [read_lines(file, counts, name, strict=options.strict) for file, name in kinds]

    def pairs() -> Iterator[tuple[str, str]]:
        for done, (line, given) in enumerate(itertools.zip_longest(*sides)):
            if line is None or given is None:
                raise DataError(f"the input and --score-pairs differ in length: one of them ends after line {done:,}")
            yield line, given

    for number, scored in enumerate(translator.score(pairs(), alpha=options.search.alpha), 1):
        record = {"line": number, **{name: getattr(scored, name) for name in FIELDS[1:]}}
        jsonl = options.format == "jsonl"
        write_lines(target, [json.dumps(record, ensure_ascii=False) if jsonl else f"{scored.score:.6f}"])
        total, tokens = total + scored.log_probability, tokens + len(scored.tokens)
        progress.advance()
    report(counts, translator.max_length)
    if tokens:
        say(f"{number:,} pairs, {-total / tokens:.4f} nats per token, perplexity {math.exp(-total / tokens):.3f}")
