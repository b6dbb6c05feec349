"""The translate command: lines in, the same number of lines out, in order."""

import codecs
import itertools
import json
import math
import os
import re
import select
import shlex
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt_cli.corpus.readers import MAX_LINE_BYTES, check_plain
from nmt_cli.storage import artefact
from nmt_cli.system.console import Progress, counted, say, warn
from nmt_cli.system.errors import BROKEN_PIPE, DataError, MissingError, OutputError, StorageError, UsageError
from nmt_cli.transformer.directory import other_models, output_of
from nmt_cli.translation.pending import Copy, Translation
from nmt_cli.translation.segments import Hypothesis
from nmt_cli.translation.translator import NOT_YET, Translator

READ_BYTES = 1 << 16
FIELDS = ("text", "log_probability", "score", "tokens", "token_log_probabilities")  # of a hypothesis in jsonl


Run = Callable[[Translator, "TranslateOptions", int, int, Progress], None]  # from one file descriptor to another


@dataclass(frozen=True)
class TranslateOptions:
    """None stands for stdin, stdout, or what the model's recipe says."""

    input: Path | None = None
    output: Path | None = None
    models: tuple[Path, ...] = ()
    search: dict[str, Any] = field(default_factory=dict)  # options of Translator.translate: beam, n_best, sampling, ...
    precision: str = "auto"
    format: str = "text"  # or "jsonl"
    strict: bool = False  # refuse input that is not UTF-8
    prefix: Path | None = None  # a file with one forced prefix per line
    score_pairs: Path | None = None  # a file with one translation per line, to be scored instead of translating
    alignments: bool = False
    workers: int | None = None


def choose_models(named: Sequence[Path]) -> tuple[Path, ...]:
    """Return the models named, else the newest that translates under runs/, or raise MissingError."""
    if named:
        return tuple(named)
    models = [run / "model" for run in sorted(Path("runs").glob("*")) if artefact.present(run / "model")]
    models.sort(key=lambda model: str(artefact.read_json(model / artefact.MANIFEST).get("created", "")))
    while models and output_of(models[-1]) == "trees":
        models.pop()  # it parses
    if not models:
        raise MissingError(f"no model under runs/, and none is named. {other_models()}")
    say(f"model: {models[-1]}")
    return (models[-1],)


def translate(options: TranslateOptions, run: Run | None = None) -> int:
    """Translate as the options say; `run` does the work where the input is more than plain lines."""
    if int(os.environ.get("RANK", "0")):
        return 0  # the first process of a launched job does the work, with processes of its own
    _check(options)
    output = _output_file(options)
    models = choose_models(options.models)
    source = os.open(options.input, os.O_RDONLY) if options.input else 0
    translator = Translator(models, precision=options.precision, workers=options.workers)
    typed = source == 0 and os.isatty(source)
    if typed:
        say("reading lines from the terminal: one translation a line; Ctrl-D ends")
    target, part = 1, None
    if output and output.exists() and not output.is_file():  # a pipe or a device: nothing to replace
        target = os.open(output, os.O_WRONLY)
    elif output:
        artefact.make_directory(output.parent)
        part = output.with_name(output.name + ".part")
        part.unlink(missing_ok=True)  # of an earlier command, or a link that another user has placed there
        target = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    progress = Progress("translating", count_lines(source), "lines", every=math.inf if typed else 10)
    progress.plain |= typed  # a bar would stand where lines are typed
    try:
        with translator, progress:
            run = run or (score_lines if options.score_pairs else translate_lines)
            run(translator, options, source, target, progress)
    except BrokenPipeError:
        return BROKEN_PIPE  # the reader closed the pipe, as head does: no message
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
    """Refuse what contradicts itself, before a model is loaded."""
    search, given = options.search, (options.prefix, options.alignments)
    if options.score_pairs and any((*given, search.get("sampling"), search.get("terms"), search.get("n_best", 1) > 1)):
        others = "--sample, --prefix, --terms, --n-best and --alignments"
        raise UsageError(f"--score-pairs searches nothing: leave out {others}")
    if options.input and not options.input.exists():
        text = str(options.input)
        advice = "Check the path"
        if " " in text:
            advice = f"To translate text from the command line: echo {shlex.quote(text[:60])} | nmt translate"
        raise MissingError(f"no file {text[:60]!r}. {advice}")
    if options.input is None and sys.stdin is None:
        raise MissingError("stdin is closed. Give a file: --input FILE")
    if options.output is None and sys.stdout is None:
        raise StorageError("stdout is closed. Give a file: --output FILE")


def _output_file(options: TranslateOptions) -> Path | None:
    """Return the file to write, or None for stdout; OutputError where it cannot be one."""
    output = options.output
    if output is None or output == Path("/dev/stdout"):
        return None
    if output.is_dir():
        raise OutputError(f"{output} is a directory. Name a file in it")
    if output.exists() and not output.is_file():
        return output
    if options.input and output.exists() and output.samefile(options.input):
        raise OutputError(f"{output} is the input. Name another file")
    return Path(os.path.realpath(output))  # a link stays, what it points to is replaced


def count_lines(descriptor: int) -> int | None:
    """Return how many lines are left to read; None where that cannot be known soon."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > 1 << 30:
        return None
    place, count, end = os.lseek(descriptor, 0, os.SEEK_CUR), 0, b"\n"
    while block := os.pread(descriptor, MAX_LINE_BYTES, place):
        place, count, end = place + len(block), count + block.count(b"\n"), block[-1:]
    return count + (end != b"\n")


def read_lines(
    descriptor: int,
    counts: Counter[str],
    name: str = "line",
    *,
    strict: bool = False,
    wait: Callable[[], bool] = lambda: True,
) -> Iterator[Any]:
    """Yield the lines of a file, pipe or terminal, as they come: never read far ahead, never held when huge.

    One that is not UTF-8 is an error if `strict`, else U+FFFD stands for each run of wrong bytes. Where `wait` says not
    to wait for a line that has not come yet, it is NOT_YET.
    """
    number, line, block = 0, b"", b"more"
    while block:
        if not wait() and not select.select([descriptor], [], [], 0)[0]:
            yield NOT_YET
            continue
        block = os.read(descriptor, READ_BYTES)
        if not block and line:
            *ends, rest = b"", b""  # the end of a last line that has no line feed
        else:
            *ends, rest = block.split(b"\n")
        for end in ends:
            number, whole, line = number + 1, line + end, b""
            counts["huge"] += len(whole) > MAX_LINE_BYTES
            try:
                text = _decode(whole, "strict")
            except UnicodeDecodeError:
                if number == 1:
                    check_plain(whole, "the input")
                if strict:
                    raise DataError(f"{name} {number} is not UTF-8. Convert it, or leave out --strict") from None
                counts["invalid"] += 1
                counts["first invalid"] = counts["first invalid"] or number
                text = re.sub("\ufffd+", "\ufffd", _decode(whole, "replace"))
            yield text
        line = (line + rest)[: MAX_LINE_BYTES + 1]  # the rest of a longer line is read and dropped


def _decode(line: bytes, errors: str) -> str:
    """Return the text of a line, cut after a whole character where it is too long."""
    return codecs.utf_8_decode(line[:MAX_LINE_BYTES], errors, len(line) <= MAX_LINE_BYTES)[0]


def write_line(descriptor: int, line: str) -> None:
    """Write a line at once, so that what is stopped between two writes has written whole lines."""
    view = memoryview(line.encode() + b"\n")
    while view:
        view = view[os.write(descriptor, view) :]


def translate_lines(
    translator: Translator, options: TranslateOptions, source: int, target: int, progress: Progress
) -> None:
    start, counts = time.monotonic(), translator.counts
    lines = read_lines(source, counts, strict=options.strict, wait=lambda: translator.idle)
    prefixes = None
    if options.prefix:
        prefixes = read_lines(os.open(options.prefix, os.O_RDONLY), counts, "prefix", strict=options.strict)
    search = {**options.search, "alignments": options.alignments}
    for number, translation in enumerate(translator.translate(lines, prefixes=prefixes, **search), 1):
        alignments = None
        if options.alignments:
            ranks = range(len(translation.hypotheses))
            alignments = [_copied(translation.copy) or alignment(translator, translation.parts(rank)) for rank in ranks]
        for line in _formatted(translation, number, alignments, options.format):
            write_line(target, line)
        progress.advance()
    if prefixes and next(prefixes, None) is not None:
        raise DataError(f"there are more prefixes than lines, which are {counts['lines']:,}")
    report(counts, translator.max_length)
    tokens, seconds = counts["tokens"], time.monotonic() - start
    say(f"{counted(counts['lines'], 'line')}, {tokens:,} tokens in {seconds:.1f} s, {tokens / seconds:,.0f} tokens/s")


def report(counts: Counter[str], max_length: int) -> None:
    for tell, name, text in (
        (warn, "invalid", f"lines are not UTF-8 (first: line {counts['first invalid']:,}): what is not was replaced"),
        (warn, "huge", f"lines were over {MAX_LINE_BYTES:,} bytes and were cut while they were read"),
        (warn, "cut", f"lines or prefixes were longer than the model's {max_length:,} tokens and were cut"),
        (warn, "unsaid", "terms are not in their line's translation: none was found that says them"),
        (say, "constrained", "segments did not say their terms and were searched again, with constraints"),
        (say, "split", "lines longer than those of training were split at sentence ends and rejoined"),
        (say, "retried", "translations were empty or repeated themselves and were tried again in halves"),
    ):
        if counts[name]:
            tell(f"{counts[name]:,} {text}")
    if counts["copied"]:
        say(f"{counted(counts['copied'], 'line')} without letters copied")


def _formatted(translation: Translation, number: int, alignments: list[str] | None, form: str) -> Iterator[str]:
    """Yield the lines that stand for a translation; `alignments` are of its hypotheses."""
    hypotheses = translation.hypotheses
    if form == "jsonl":
        records = [{name: getattr(hypothesis, name) for name in FIELDS} for hypothesis in hypotheses]
        for record, words in zip(records, alignments or (), strict=False):
            record["alignment"] = words
        for record, hypothesis in zip(records, hypotheses, strict=True):
            if translation.terms:
                record["terms"] = {term.source: term.form_in(hypothesis.text) for term in translation.terms}
        copied = {"copied": True} if translation.copy else {}
        yield json.dumps({"line": number, **copied, "hypotheses": records}, ensure_ascii=False)
        return
    for rank, hypothesis in enumerate(hypotheses):
        fields = [hypothesis.text]
        if len(hypotheses) > 1:
            fields = [f"{number - 1}", hypothesis.text, f"{hypothesis.score:.6g}"]
        if alignments:
            fields.append(alignments[rank])
        yield " ||| ".join(fields)


def _copied(copy: Copy | None) -> str:
    """Return the pairs of words of a copy, each with itself."""
    return " ".join(f"{copy.skipped + word}-{word}" for word in range(len(copy.text.split()))) if copy else ""


def alignment(translator: Translator, parts: Sequence[tuple[list[int], Hypothesis]]) -> str:
    """Return pairs of words, source-target: of each target token and the source token that it translates. `parts` are
    the source ids and the hypothesis of each segment."""
    pairs: set[tuple[int, int]] = set()
    words = [0, 0]  # on the sides of the segments so far
    for source, hypothesis in parts:
        sides = (translator.tokenizer, source[:-1]), (translator.tokenizer.target, hypothesis.ids)
        numbers: list[list[int]] = []  # of the word of each token
        for side, (tokenizer, ids) in enumerate(sides):
            skip = 0 if side or not words[0] else len(tokenizer.language(ids))  # the line's word 0, repeated
            starts = [token.startswith("\u2581") for token in tokenizer.tokens(ids[skip:])]
            own = [words[side] + n for n in itertools.accumulate([0, *starts[1:]])] if starts else []
            numbers.append([0] * skip + own)
            words[side] += len(set(own))
        pairs |= {(numbers[0][origin], numbers[1][token]) for token, origin in enumerate(hypothesis.looked)}
    return " ".join(f"{src}-{tgt}" for src, tgt in sorted(pairs))


def score_lines(
    translator: Translator, options: TranslateOptions, source: int, target: int, progress: Progress
) -> None:
    total, tokens, counts = 0.0, 0, translator.counts
    given = os.open(options.score_pairs or "", os.O_RDONLY)
    kinds = (source, "line"), (given, "translation")
    sides = [read_lines(file, counts, name, strict=options.strict) for file, name in kinds]

    def pairs() -> Iterator[tuple[str, str]]:
        for done, (line, given) in enumerate(itertools.zip_longest(*sides)):
            if line is None or given is None:
                raise DataError(f"the input or the file of --score-pairs ends after line {done:,}, the other goes on")
            yield line, given

    for number, scored in enumerate(translator.score(pairs(), alpha=options.search.get("alpha")), 1):
        record = {"line": number, **{name: getattr(scored, name) for name in FIELDS[1:]}}
        jsonl = options.format == "jsonl"
        write_line(target, json.dumps(record, ensure_ascii=False) if jsonl else f"{scored.score:.6f}")
        total, tokens = total + scored.log_probability, tokens + len(scored.tokens)
        progress.advance()
    report(counts, translator.max_length)
    if tokens:
        say(f"{number:,} pairs, {-total / tokens:.4f} nats per token, perplexity {math.exp(-total / tokens):.3f}")
