"""The command `nmt prepare`: text in, a corpus of training ids out.

The text is read once: hashed, counted, cleaned and written to a work directory beside the target. There the tokenizer
is trained and the ids are made, and one rename makes it the corpus. A run that was killed is simply done again.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli import artefact, console, recipe
from nmt_cli.corpus import cleaning, sources, stages, store
from nmt_cli.corpus.cleaning import CleaningStats
from nmt_cli.corpus.readers import Chunk
from nmt_cli.corpus.tokenizer import Tokenizer, normalise
from nmt_cli.errors import DataError, OutputError, StorageError, from_os_error

# For --dry-run, measured by tests/benchmarks/prepare_speed.py on 2 cores of a Zen 4 machine, WMT news text.
PAIRS_PER_SECOND_PER_CORE = 6_000
SECONDS_FOR_TOKENIZER = 60
TRAINING_MEGABYTES, BASE_MEGABYTES, WORKER_MEGABYTES = 1300, 150, 100
DISK_PER_TEXT_BYTE = 1.7  # the cleaned text, the ids of it, and what duplicates are found by
Lines = tuple[list[str], list[str]]


@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare, as opposed to what: nothing here changes a byte of a finished corpus."""

    mirror: Path | None = None  # directory with the files of a named corpus, instead of the network
    workers: int | None = None  # processes; None: one for each core this process may use
    overwrite: bool = False
    dry_run: bool = False
    strict: bool = False  # refuse what else is a warning: lines that are not UTF-8, sides that look shifted or swapped

    @property
    def processes(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))


def prepare(corpus: recipe.Corpus, out: Path, options: PrepareOptions) -> Path:
    """Prepare `corpus` in the directory `out` and return it; a finished one is verified and returned at once.

    Raises:
        NmtError: with the exit code that fits; nothing half-written is left under the name `out`.
    """
    sources.family(corpus)
    if options.dry_run:
        _dry_run(corpus, out, options)
        return out
    work = artefact.beside(out, ".", ".preparing")
    try:
        artefact.restore(out)
        # A process killed between its last two steps leaves a whole corpus and its work directory, removed below.
        if out.exists() and not work.exists() and _finished(corpus, out, options):
            console.say(f"{out} is prepared already, and whole")
            return out
        with artefact.locked(work, "the corpus being prepared in"):
            try:
                if not out.exists() or not _finished(corpus, out, options):  # again: another process may have ended now
                    _prepare(corpus, out, work, options)
            finally:
                artefact.remove_tree(work)
    except OSError as error:
        error.filename = error.filename or str(out)
        raise from_os_error(error) from error
    return out


def _finished(corpus: recipe.Corpus, out: Path, options: PrepareOptions) -> bool:
    """Return whether `out` holds this very corpus; False if it may be replaced; OutputError if it is another."""
    if not (out / artefact.MANIFEST).is_file() or artefact.read_json(out / artefact.MANIFEST).get("kind") != store.KIND:
        raise OutputError(f"{out} exists and is not a prepared corpus. Choose another --out")
    if options.overwrite:
        return False
    try:
        manifest = store.open_corpus(out, content=True).manifest
    except DataError as error:
        raise DataError(f"{error}. Prepare it anew with --overwrite") from None
    differs = recipe.differences(manifest.get("recipe"), recipe.to_plain(corpus))
    hashes = {source["sha256"] for source in manifest["sources"]}
    if sources.family(corpus) == "own" or options.mirror:
        with tempfile.TemporaryDirectory() as scratch:
            files = sources.open_text(corpus, options.mirror, out.parent, Path(scratch)).files
        digests = {artefact.sha256(file): file.name for file in files}
        differs += [f"{name} is another file (hash {d[:12]})" for d, name in digests.items() if d not in hashes]
    if differs:
        what = "; ".join(differs)[:150]
        raise OutputError(f"{out} exists with other inputs ({what}). Pass --overwrite or another --out")
    return True


def _prepare(corpus: recipe.Corpus, out: Path, work: Path, options: PrepareOptions) -> None:
    """Clean, train the tokenizer, encode, and commit the corpus with its report."""
    for name in ("input", "cleaned", "corpus"):
        shutil.rmtree(work / name, ignore_errors=True)
        (work / name).mkdir()
    directory, model = work / "corpus", work / "corpus" / "tokenizer.model"
    text = sources.open_text(corpus, options.mirror, out.parent / "downloads", work / "input")
    _check_space(out, text.bytes or 0, corpus.limit)
    if corpus.tokenizer.file is not None:
        text.files.append(Path(corpus.tokenizer.file))
        Tokenizer(Path(corpus.tokenizer.file))
    held_out = {split: _held_out(text, split) for split in text.splits if split != "train"}
    seen = cleaning.held_out(list(held_out.values()), corpus.cleaning)

    start = time.monotonic()
    cleaner = cleaning.Cleaner(corpus.src, corpus.tgt, corpus.cleaning, seen)
    total = corpus.limit or text.rows.get("train")
    train = _pairs(text, "train", corpus.limit)
    cleaned, stats = stages.clean(work / "cleaned", train, cleaner, options.processes, total)
    _say_speed("cleaned", stats.read, start)
    warnings = _warnings(corpus, text.splits["train"].name, stats, options.strict)

    start = time.monotonic()
    if not cleaned.pairs:
        raise DataError(f"no usable pairs: {stats.read:,} read; {_reasons(stats)}")
    if corpus.tokenizer.file is not None:
        artefact.write_file(model, Path(corpus.tokenizer.file).read_bytes())
    else:
        artefact.write_file(model, stages.train_tokenizer(cleaned, corpus.tokenizer, corpus.seed))
        _say_speed("trained the tokenizer on about", min(stages.SAMPLE_PAIRS, cleaned.pairs), start)

    start = time.monotonic()
    encoder = stages.Encoder(model, artefact.sha256(model), corpus.cleaning)
    tokens, dropped = stages.encode(directory, cleaned, encoder, options.processes)
    stats.add(dropped)
    _say_speed("encoded", cleaned.pairs, start)
    pairs = cleaned.pairs - dropped.dropped.total()
    if not pairs:
        raise DataError(f"no usable pairs: all of {stats.read:,} were dropped; {_reasons(stats)}")

    for split, sides in held_out.items():
        for side, lines in zip(("src", "tgt"), sides, strict=True):
            (directory / f"{split}.{side}").write_bytes("".join(f"{line}\n" for line in lines).encode())
    report = _report(Tokenizer(model), held_out, stats, pairs, warnings)
    artefact.write_file(directory / "cleaning.json", artefact.json_bytes(report))
    manifest = _manifest(corpus, text, report) | {
        "vocabulary_size": Tokenizer(model).vocabulary_size,
        "tokens": dict(zip(("src", "tgt"), tokens, strict=True)),
    }
    with artefact.staged(out, store.KIND, manifest, overwrite=options.overwrite) as stage:
        for file in sorted(directory.iterdir()):
            file.rename(stage / file.name)
    _show(report, out)


def _manifest(corpus: recipe.Corpus, text: sources.Text, report: dict[str, Any]) -> dict[str, Any]:
    """Return what the corpus says of its origin and counts."""
    names = {source["name"] for source in text.sources}
    for file in text.files:  # what was not read here: a tokenizer, a mirror's parquet files
        if file.name not in names:
            size, digest = file.stat().st_size, artefact.sha256(file)
            text.sources.append({"name": file.name, "bytes": size, "sha256": digest})
    dropped = {reason: counts["pairs"] for reason, counts in report["dropped"].items()}
    return {
        "name": corpus.name,
        "src": corpus.src,
        "tgt": corpus.tgt,
        "generated": sources.family(corpus) == "toy",
        "recipe": recipe.to_plain(corpus),
        "origin": text.origin,
        "sources": text.sources,
        "pairs": report["kept"],
        "counts": {"read": report["read"], "kept": report["kept"]} | dropped,
    }


def _pairs(text: sources.Text, split: str, limit: int | None = None) -> Iterator[Chunk]:
    """Yield the first `limit` pairs of a split, and check at its end how many it has."""
    rows = 0
    for src, tgt in text.splits[split].chunks():
        left = len(src) if limit is None else max(0, limit - rows)
        if left:
            yield src[:left], tgt[:left]
        rows += len(src)
    expected = text.rows.get(split)
    if expected not in (None, rows):
        message = f"{split} has {rows:,} pairs, {expected:,} are expected ({text.origin})"
        if text.advice is not None:
            accept = f", or accept it with corpus.rows={rows}" if split == "train" else ""
            raise DataError(f"{message}. {text.advice}{accept}")
        console.warn(f"{message}: this is an excerpt or another edition, and results will differ")


def _held_out(text: sources.Text, split: str) -> Lines:
    """Return a development or test set as it stands: only a CR before LF and a leading BOM go.

    Raises:
        DataError: a line is not UTF-8 or too long; here nothing may be dropped.
    """
    sides: Lines = ([], [])
    for chunk in _pairs(text, split):
        for side, lines in zip(sides, chunk, strict=True):
            for line in lines:
                try:
                    if line is None:
                        raise ValueError("it is too long")
                    decoded = line.decode("utf-8" if side else "utf-8-sig")
                except ValueError as error:
                    name = text.splits[split].name
                    raise DataError(f"{name}: line {len(side) + 1:,} cannot be read: {str(error)[:80]}") from None
                side.append(decoded.removesuffix("\r").replace("\n", " "))
    return sides


def _warnings(corpus: recipe.Corpus, name: str, stats: CleaningStats, strict: bool) -> list[str]:
    """Print and return what looks wrong with the training text.

    Raises:
        DataError: over 1 % of the lines are not UTF-8; or anything looks wrong, if `strict`.
    """
    warnings = stats.warnings(corpus.src, corpus.tgt)
    if stats.dropped[cleaning.NOT_UTF8] * 100 > stats.read:
        raise DataError(f"{name[:150]}: {warnings[0]} of {stats.read:,}. Is it Latin-1 or binary? Convert it to UTF-8")
    if strict and warnings:
        raise DataError(f"{warnings[0]}. Without --strict this is a warning")
    for warning in warnings:
        console.warn(warning)
    return warnings


def _reasons(stats: CleaningStats) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in stats.dropped.most_common(4))


def _say_speed(what: str, pairs: int, start: float) -> None:
    seconds = time.monotonic() - start
    console.say(f"{what} {pairs:,} pairs in {console.duration(seconds)} ({pairs / max(seconds, 1e-9):,.0f} pairs/s)")


def _report(
    tokenizer: Tokenizer, held_out: dict[str, Lines], stats: CleaningStats, pairs: int, warnings: list[str]
) -> dict[str, Any]:
    """Return the cleaning report: counts, percentages and examples, and what the tokenizer cannot reproduce."""
    references = {}
    for split, (_, lines) in held_out.items():
        clean = [normalise(line) for line in lines]
        again = tokenizer.decode(tokenizer.encode(clean))
        wrong = [line for line, copy in zip(lines, again, strict=True) if line != copy]
        references[split] = {"lines": len(lines), "not_reproduced": len(wrong), "examples": wrong[: cleaning.EXAMPLES]}
    reasons = {
        reason: {
            "pairs": stats.dropped[reason],
            "percent": round(stats.dropped[reason] * (100 / stats.read), 3),
            "examples": stats.examples.get(reason, []),
        }
        for reason in (*cleaning.DROPPED, cleaning.SOURCE_HELD_OUT)
    }
    return {
        "read": stats.read,
        "kept": pairs,
        "noted": {cleaning.SOURCE_HELD_OUT: reasons.pop(cleaning.SOURCE_HELD_OUT)},
        "dropped": reasons,
        "repaired_lines": dict(sorted(stats.repaired.items())),
        "warnings": warnings,
        "unicode": "NFC",
        "references": references,
    }


def _show(report: dict[str, Any], out: Path) -> None:
    """Print the report as a table, and one line on what was made."""
    rows = []
    for reason, counts in (report["dropped"] | report["noted"]).items():
        if counts["pairs"]:
            example = " | ".join(counts["examples"][0])[:70]
            rows.append((reason, f"{counts['pairs']:,}", f"{counts['percent']:.2f} %", example))
    rows += [(f"repaired: {kind}", f"{count:,} lines", "", "") for kind, count in report["repaired_lines"].items()]
    for split, counts in report["references"].items():
        count = f"{counts['not_reproduced']:,} lines"
        rows.append((f"{split} lines not reproduced", count, f"of {counts['lines']:,}", ""))
    console.table(f"cleaning: {report['read']:,} pairs read", ("what", "count", "share", "example"), rows)
    console.say(f"{out}: {report['kept']:,} training pairs")


def _check_space(out: Path, text_bytes: int, limit: int | None) -> None:
    text_bytes = min(text_bytes, (limit or text_bytes) * sources.BYTES_PER_PAIR)
    needed, free = int(DISK_PER_TEXT_BYTE * text_bytes / 1e6) + 1, artefact.free_megabytes(out)
    if free < needed:
        raise StorageError(f"{out} needs about {needed:,} MB of disk, {free:,} MB are free. Choose another --out")


def _dry_run(corpus: recipe.Corpus, out: Path, options: PrepareOptions) -> None:
    """Print what preparing would download, write and need."""
    text = sources.estimate(corpus, options.mirror)
    size, pairs = text.bytes, text.rows.get("train") or corpus.limit
    if size and not pairs:
        pairs = size // sources.BYTES_PER_PAIR
    if pairs and corpus.limit:
        size, pairs = size and size * min(corpus.limit, pairs) // pairs, min(corpus.limit, pairs)
    seconds = (pairs or 0) / (PAIRS_PER_SECOND_PER_CORE * options.processes)
    seconds += min(1.0, (pairs or 0) / 1e6) * SECONDS_FOR_TOKENIZER
    arrow = sources.family(corpus) == "hub" and text.download and not corpus.limit
    memory = max(TRAINING_MEGABYTES, BASE_MEGABYTES + options.processes * WORKER_MEGABYTES)

    def megabytes(count: float | None) -> str:
        return "unknown" if count is None else f"{count / 1e6:,.0f} MB" if count else "nothing"

    rows = [
        ("download", megabytes(text.download)),
        ("from", text.origin),
        *([("Arrow files beside it in the hub's cache", megabytes(text.bytes))] if arrow else []),
        ("training pairs, about", "unknown" if pairs is None else f"{pairs:,}"),
        (f"disk while preparing, in {out.parent}", megabytes(size and DISK_PER_TEXT_BYTE * size)),
        ("free there", f"{artefact.free_megabytes(out):,} MB"),
        (f"memory, {options.processes} workers", f"{memory:,} MB"),
        ("time beside the download, about", "unknown" if pairs is None else console.duration(seconds)),
    ]
    console.table(f"nmt prepare {corpus.name} would need", ("", ""), rows)
