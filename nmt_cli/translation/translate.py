"""The translate command: lines in, the same number of lines out, in order."""

import itertools
import json
import math
import os
import re
import select
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from nmt_cli import artefact
from nmt_cli.console import Progress, say, warn
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.errors import BROKEN_PIPE, DataError, MissingError, OutputError, StorageError, UsageError
from nmt_cli.transformer.attention_scores import attention_scores
from nmt_cli.transformer.weights import save_tensors
from nmt_cli.translation.candidates import Sampling
from nmt_cli.translation.segments import ScoredTranslation
from nmt_cli.translation.translator import MAX_SAMPLES, Translation, Translator

MAX_LINE_BYTES = 1 << 20  # the rest of a longer line is read and dropped
READ_BYTES = 1 << 16
COUNTED_BYTES = 1 << 30  # a second's work
MAX_ATTENTION_BYTES = 1 << 30
_INVALID = re.compile("\ufffd+")


@dataclass(frozen=True)
class TranslateOptions:
    """What to translate and how; None stands for stdin, stdout, or what the model's recipe says.

    Attributes:
        models: several are an ensemble.
        precision: "auto", "fp32", "bf16" or "int8".
        format: "text" or "jsonl".
        n_best: hypotheses per line.
        split: whether long lines are cut at sentence ends, and failed translations tried again in halves.
        strict: whether input that is not UTF-8 is an error.
        prefix: a file with one forced prefix per line.
        score_pairs: a file with one translation per line, to be scored instead of translating.
        alignments: whether to add word alignments.
        attention: a safetensors file to write all attention weights to.
        sampling: draw instead of searching.
        workers: processes on the CPU; None for one per core.
    """

    input: Path | None = None
    output: Path | None = None
    models: tuple[Path, ...] = ()
    beam: int | None = None
    alpha: float | None = None
    extra_length: int | None = None
    precision: str = "auto"
    format: str = "text"
    n_best: int = 1
    split: bool | None = None
    strict: bool = False
    prefix: Path | None = None
    score_pairs: Path | None = None
    alignments: bool = False
    attention: Path | None = None
    sampling: Sampling | None = None
    workers: int | None = None


def choose_models(named: Sequence[Path]) -> tuple[Path, ...]:
    """Return the models to use: those named, else $NMT_MODEL, else the newest under runs/.

    The newest is the one whose manifest was written last: a model directory is committed once and never changed.

    Raises:
        MissingError: there is none.
    """
    if named:
        return tuple(named)
    if os.environ.get("NMT_MODEL"):
        chosen = Path(os.environ["NMT_MODEL"])
    else:
        manifests = sorted(Path("runs").glob("*/model/manifest.json"), key=lambda p: (p.stat().st_mtime_ns, str(p)))
        if not manifests:
            raise MissingError("no model: none under runs/ and no --model. Train one: nmt reproduce recipes/toy.yaml")
        chosen = manifests[-1].parent
    say(f"model: {chosen}")
    return (chosen,)


def _check(options: TranslateOptions) -> None:
    """Refuse options that contradict each other, before a model is loaded."""
    if options.format not in ("text", "jsonl"):
        raise UsageError(f"--format must be one of text, jsonl, not {options.format!r}")
    if options.beam is not None and options.n_best > options.beam and not options.sampling:
        raise UsageError(f"--n-best {options.n_best} needs --beam {options.n_best} or more, not {options.beam}")
    if options.sampling and options.n_best > MAX_SAMPLES:
        raise UsageError(
            f"--sample draws at most {MAX_SAMPLES:,} translations of a line, not --n-best {options.n_best:,}"
        )
    if options.score_pairs and (options.sampling or options.prefix or options.n_best > 1):
        raise UsageError("--score-pairs searches nothing: leave out --sample, --prefix and --n-best")
    if options.input is None and sys.stdin is None:
        raise MissingError("stdin is closed. Give a file: --input FILE")
    if options.output is None and sys.stdout is None:
        raise StorageError("stdout is closed. Give a file: --output FILE")
    for path in (options.input, options.prefix, options.score_pairs):
        if path and not path.exists():
            raise MissingError(f"no file {path}. Check the path")
    for path in (options.output, options.attention):
        if path and not path.parent.is_dir():
            raise OutputError(f"no directory {path.parent} to write {path.name} to. Make it first")


def translate(options: TranslateOptions) -> int:
    """Translate lines from a file or stdin to a file or stdout, and return the exit code."""
    if int(os.environ.get("RANK", "0")):
        return 0  # the first process of a launched job does the work, with processes of its own
    _check(options)
    with Translator(choose_models(options.models), precision=options.precision, workers=options.workers) as translator:
        source = os.open(options.input, os.O_RDONLY) if options.input else 0
        target, part = 1, None
        if options.output and options.output.exists() and not options.output.is_file():
            target = os.open(options.output, os.O_WRONLY)  # a pipe or a device: nothing to replace
        elif options.output:
            part = options.output.with_name(options.output.name + ".part")
            target = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        progress = Progress("translating", count_lines(source), "lines")
        try:
            with progress:
                run = score_lines if options.score_pairs else translate_lines
                run(translator, options, source, target, progress)
        except BrokenPipeError:
            return BROKEN_PIPE  # whoever read has gone, which is their right
        except BaseException:
            if part and progress.done:
                say(f"{part} holds the first {progress.done:,} lines")
            elif part:
                part.unlink(missing_ok=True)
            raise
    if part and options.output:
        os.fsync(target)
        part.replace(options.output)
        artefact.sync(options.output.parent)
    return 0


def count_lines(descriptor: int) -> int | None:
    """Return how many lines are left to read; None where that cannot be known, or not soon."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > COUNTED_BYTES:
        return None
    place, count, end = os.lseek(descriptor, 0, os.SEEK_CUR), 0, b"\n"
    while block := os.pread(descriptor, MAX_LINE_BYTES, place):
        place, count, end = place + len(block), count + block.count(b"\n"), block[-1:]
    return count + (end != b"\n")


class LineReader:
    """Lines of a file, pipe or terminal, as they come: never read far ahead, never held when huge.

    Args:
        descriptor: to read from. Lines end at line feeds only.
        strict: whether bytes that are not UTF-8 are an error; else U+FFFD stands for a run of them.
        wait: returns whether to wait for a line that has not come yet; else None is what comes.

    Attributes:
        cut: how many lines were longer than MAX_LINE_BYTES.
        invalid: the numbers of lines that are not UTF-8: how many, and the first.
    """

    def __init__(self, descriptor: int, *, strict: bool = False, wait: Callable[[], bool] = lambda: True) -> None:
        self.descriptor, self.strict, self.wait = descriptor, strict, wait
        self.cut, self.invalid = 0, (0, 0)

    def __iter__(self) -> Iterator[str | None]:
        number, line = 0, b""
        while True:
            if not self.wait() and not select.select([self.descriptor], [], [], 0)[0]:
                yield None
                continue
            block = os.read(self.descriptor, READ_BYTES)
            *lines, rest = block.split(b"\n")
            for part in lines:
                number += 1
                yield self._text(line + part, number)
                line = b""
            line = (line + rest)[: MAX_LINE_BYTES + 1]
            if not block:
                if line:  # without a line feed
                    yield self._text(line, number + 1)
                return

    def _text(self, line: bytes, number: int) -> str:
        if len(line) > MAX_LINE_BYTES:
            line = line[:MAX_LINE_BYTES]
            self.cut += 1
        try:
            return line.decode()
        except UnicodeDecodeError:
            if self.strict:
                raise DataError(f"line {number} is not UTF-8. Convert the input, or leave out --strict") from None
        count, first = self.invalid
        self.invalid = count + 1, first or number
        return _INVALID.sub("\ufffd", line.decode(errors="replace"))


def write_line(descriptor: int, line: str) -> None:
    """Write a line at once, so that what is stopped between two writes has written whole lines."""
    view = memoryview(line.encode() + b"\n")
    while view:
        view = view[os.write(descriptor, view) :]


def translate_lines(
    translator: Translator, options: TranslateOptions, source: int, target: int, progress: Progress
) -> None:
    """Translate what comes from one descriptor to another, and say what happened."""
    start = time.monotonic()
    reader = LineReader(source, strict=options.strict, wait=lambda: translator.idle)
    prefixes = LineReader(os.open(options.prefix, os.O_RDONLY)) if options.prefix else None
    attention = AttentionFile()
    translations = translator.translate(
        reader,
        beam=options.beam,
        alpha=options.alpha,
        extra_length=options.extra_length,
        n_best=options.n_best,
        split=options.split,
        sampling=options.sampling,
        prefixes=prefixes,
    )
    for number, translation in enumerate(translations, 1):
        alignment = None
        if options.alignments or options.attention:
            pairs = align(translator, translation, number, attention if options.attention else None)
            alignment = " ".join(f"{a}-{b}" for a, b in pairs) if options.alignments else None
        for line in formatted(translation, number, alignment, options.format):
            write_line(target, line)
        progress.advance()
    if options.attention:
        save_tensors(options.attention, attention.tensors)
    _summarise(translator, reader, time.monotonic() - start)


def _summarise(translator: Translator, reader: LineReader, seconds: float) -> None:
    counts, longest = translator.counts, translator.max_length
    if reader.invalid[0]:
        count, first = reader.invalid
        warn(f"{count:,} lines are not UTF-8 (the first is line {first:,}): what is not was replaced")
    if reader.cut:
        warn(f"{reader.cut:,} lines were over {MAX_LINE_BYTES:,} bytes and were cut while they were read")
    if counts.cut:
        warn(f"{counts.cut:,} lines were too long for the model and were cut")
    if counts.prefixes_cut:
        warn(f"{counts.prefixes_cut:,} prefixes were longer than the model's {longest:,} tokens and were cut")
    if counts.split:
        say(f"{counts.split:,} lines longer than those of training were split at sentence ends and rejoined")
    if counts.retried:
        say(f"{counts.retried:,} translations were empty or repeated themselves and were tried again in halves")
    say(f"{counts.lines:,} lines, {counts.tokens:,} tokens in {seconds:.1f} s, {counts.tokens / seconds:,.0f} tokens/s")


def formatted(translation: Translation, number: int, alignment: str | None, form: str) -> Iterator[str]:
    """Yield what is written for a line: its translation, its n-best list, or a JSON object."""
    hypotheses = translation.hypotheses
    if form == "jsonl":
        records = [_record(hypothesis) for hypothesis in hypotheses]
        if alignment is not None:
            records[0]["alignment"] = alignment
        yield json.dumps({"line": number, "hypotheses": records}, ensure_ascii=False)
        return
    for rank, hypothesis in enumerate(hypotheses):
        text = hypothesis.text if rank or alignment is None else f"{hypothesis.text} ||| {alignment}"
        yield text if len(hypotheses) == 1 else f"{number - 1} ||| {text} ||| {hypothesis.score:.6g}"


def _record(hypothesis: ScoredTranslation) -> dict[str, Any]:
    names = ("text", "log_probability", "score", "tokens", "token_log_probabilities")
    return {name: getattr(hypothesis, name) for name in names}


class AttentionFile:
    """The attention weights of all lines, by name, until they are written."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._bytes = 0

    def add(self, name: str, tensors: dict[str, Tensor]) -> None:
        for kind, tensor in tensors.items():
            self.tensors[f"{name}.{kind}"] = tensor
            self._bytes += tensor.numel() * tensor.element_size()
        if self._bytes > MAX_ATTENTION_BYTES:
            raise UsageError("--attention: the weights of so many lines take over 1 GB. Give fewer lines")


def align(
    translator: Translator, translation: Translation, number: int, attention: AttentionFile | None
) -> list[tuple[int, int]]:
    """Return (source word, target word) pairs of a line's best translation, and keep its attention where wanted.

    Each target token belongs to the source token that the heads of the last layer but one look at most, on average.
    Source: Garg et al. 2019.
    """
    pairs: set[tuple[int, int]] = set()
    src_words = tgt_words = 0
    for place, (source, target) in enumerate(translation.segments):
        scores = attention_scores(translator.models[0], source, target, translator.dtype)
        weights = {role: torch.softmax(tensor, -1).float() for role, tensor in scores.items()}
        if attention:
            ids = {"source": torch.tensor(source), "target": torch.tensor(target[:-1])}
            attention.add(f"{number}.{place}", {**weights, **ids})
        cross_TS = weights["cross"][max(0, len(weights["cross"]) - 2)].mean(0)[:-1, :-1]
        src, tgt = (word_numbers(translator.tokenizer, ids[:-1]) for ids in (source, target))
        for token, origin in enumerate(cross_TS.argmax(1).tolist() if src and tgt else []):
            pairs.add((src_words + src[origin], tgt_words + tgt[token]))
        src_words += src[-1] + 1 if src else 0
        tgt_words += tgt[-1] + 1 if tgt else 0
    return sorted(pairs)


def word_numbers(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """Return the number of the word that each token belongs to."""
    numbers: list[int] = []
    for token in tokenizer.tokens(ids):
        numbers.append((numbers[-1] + token.startswith("\u2581")) if numbers else 0)
    return numbers


def score_lines(
    translator: Translator, options: TranslateOptions, source: int, target: int, progress: Progress
) -> None:
    """Write the score of every pair of a source line and a line of --score-pairs.

    Raises:
        DataError: the files have different numbers of lines, or a pair is too long for the model.
    """
    total, tokens = 0.0, 0
    targets = os.open(cast(Path, options.score_pairs), os.O_RDONLY)
    pairs = _pairs(LineReader(source), LineReader(targets))
    for number, scored in enumerate(translator.score(pairs, alpha=options.alpha), 1):
        if options.format == "jsonl":
            record = {"line": number, **_record(scored)}
            del record["text"]
            write_line(target, json.dumps(record, ensure_ascii=False))
        else:
            write_line(target, f"{scored.score:.6f}")
        total, tokens = total + scored.log_probability, tokens + len(scored.tokens)
    if tokens:
        say(f"{number:,} pairs, {-total / tokens:.4f} nats per token, perplexity {math.exp(-total / tokens):.3f}")


def _pairs(sources: Iterable[str | None], targets: Iterable[str | None]) -> Iterator[tuple[str, str]]:
    for done, (source, target) in enumerate(itertools.zip_longest(sources, targets)):
        if source is None or target is None:
            shorter = "the input" if source is None else "the file of --score-pairs"
            raise DataError(f"{shorter} ends after line {done:,} and the other side goes on: they are not pairs")
        yield source, target


def translate_all(model: Path, lines: list[str]) -> list[str]:
    """Return the translation of every line by a model with its recipe's search."""
    with Translator(model) as translator:
        return [translation.text for translation in translator.translate(lines)]
