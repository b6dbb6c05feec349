"""The command `nmt prepare`: text in, a corpus of training ids out.

Find the text, check it, clean it into a spool, train the tokenizer, encode, commit. Each stage is an artefact of
its own in a hidden directory beside the target, so that the same command takes up where a killed one stopped.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli import __version__, artefact, console, recipe
from nmt_cli.corpus import cleaning, sources, stages, store
from nmt_cli.corpus import tokenizer as spm
from nmt_cli.corpus.readers import Reader
from nmt_cli.errors import (
    DataError,
    NmtError,
    OutputError,
    StorageError,
    from_os_error,
    printable,
)

# For --dry-run, measured by tests/benchmarks/prepare_speed.py on 2 cores of a Zen 4 machine, WMT news text.
PAIRS_PER_SECOND_PER_CORE = 6_000
SECONDS_FOR_TOKENIZER = 60
TRAINING_MEGABYTES, BASE_MEGABYTES, WORKER_MEGABYTES = 1300, 150, 100
LONG_TRAINING = 100_000  # pairs; fewer take SentencePiece seconds
DISK_PER_TEXT_BYTE = 1.7  # the cleaned text, the ids of it, and what duplicates are found by


@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare, as opposed to what: nothing here changes a byte of a finished corpus.

    Args:
        mirror: directory with the files of a named corpus, instead of the network.
        workers: processes; None: one for each core this process may use.
        overwrite: replace a corpus that was prepared otherwise.
        dry_run: only say what would be downloaded, written and needed.
        strict: refuse what else is a warning: lines that are not UTF-8, sides that look shifted or swapped.
        max_line_bytes: longer lines are dropped before they are in memory.
    """

    mirror: Path | None = None
    workers: int | None = None
    overwrite: bool = False
    dry_run: bool = False
    strict: bool = False
    max_line_bytes: int = 1 << 20


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
            if not out.exists() or not _finished(corpus, out, options):  # again: another process may have ended now
                _prepare(corpus, out, work, options)
            artefact.remove_tree(work)
    except OSError as error:
        error.filename = error.filename or str(out)
        raise from_os_error(error) from error
    return out


def _finished(corpus: recipe.Corpus, out: Path, options: PrepareOptions) -> bool:
    """Return whether `out` holds this very corpus; False if it may be replaced.

    Raises:
        OutputError: it holds something else.
        DataError: it is damaged.
    """
    if not (out / artefact.MANIFEST).is_file() or artefact.read_json(out / artefact.MANIFEST).get("kind") != store.KIND:
        raise OutputError(f"{out} exists and is not a prepared corpus. Choose another --out")
    if options.overwrite:
        return False
    try:
        manifest = store.open_corpus(out, content=True).manifest
    except DataError as error:
        raise DataError(f"{error}. Prepare it anew with --overwrite") from None
    differs = recipe.differences(manifest.get("recipe"), recipe.to_plain(corpus))
    kind = sources.family(corpus)
    if kind == "own" or (options.mirror and kind != "toy"):
        facts, _ = sources.inspect(sources.find(corpus, options.mirror, out.parent, out.parent))
        new = {fact["sha256"]: fact["name"] for split in facts.values() for fact in split}
        old = {fact["sha256"] for fact in manifest.get("sources", [])}
        differs += [f"{name} is another file (hash {digest[:12]})" for digest, name in new.items() if digest not in old]
    if differs:
        what = printable("; ".join(differs), 150)
        raise OutputError(f"{out} exists with other inputs ({what}). Pass --overwrite or another --out")
    return True


def _prepare(corpus: recipe.Corpus, out: Path, work: Path, options: PrepareOptions) -> None:
    workers = options.workers or len(os.sched_getaffinity(0))
    text = work / "text"
    shutil.rmtree(text, ignore_errors=True)
    text.mkdir()
    found = sources.find(corpus, options.mirror, out.parent / "downloads", text)
    facts, rows = sources.inspect(found)
    pairs = min(corpus.limit or rows["train"], rows["train"])
    _check_space(out, sum(fact["text_bytes"] for fact in facts["train"]) * pairs // rows["train"])
    if corpus.tokenizer.file is not None:
        model = Path(corpus.tokenizer.file)
        spm.check(model)
        facts["tokenizer"] = [{"name": model.name, "bytes": model.stat().st_size, "sha256": artefact.sha256(model)}]
    reader = Reader(corpus.src, corpus.tgt, options.max_line_bytes)
    held_out = {split: reader.text(found.parts[split]) for split in ("dev", "test") if found.parts[split]}
    inputs = artefact.digest([recipe.to_plain(corpus), facts, options.max_line_bytes, options.strict, __version__])

    about = _done(work / "clean", "cleaned text", inputs)
    if about is None:
        about = {"inputs": inputs}
        with artefact.staged(work / "clean", "cleaned text", about) as stage:
            seen = cleaning.held_out(list(held_out.values()), corpus.cleaning)
            cleaner = cleaning.Cleaner(corpus.src, corpus.tgt, corpus.cleaning, seen)
            with _timed("cleaned", pairs):
                summary = stages.clean(stage, reader, found.parts["train"], cleaner, workers, pairs)
            sources.check_unchanged(found, facts)
            if options.strict and summary.warnings:
                raise DataError(f"{summary.warnings[0]}. Without --strict this is a warning")
            about["summary"] = vars(summary)
    summary = cleaning.Tally()
    summary.add(cleaning.Tally(**about["summary"]))
    for warning in summary.warnings:
        console.warn(warning)
    if not _done(work / "tokenizer", "tokenizer", inputs):
        with artefact.staged(work / "tokenizer", "tokenizer", {"inputs": inputs}) as stage:
            _make_tokenizer(corpus, stages.open_spool(work / "clean"), summary, stage / "tokenizer.model")
    _commit(corpus, out, work, options, found.origin, facts, held_out, summary)


def _done(stage: Path, kind: str, inputs: str) -> dict[str, Any] | None:
    """Return the manifest of a stage that an earlier run finished with the same inputs; remove any other."""
    if not stage.exists():
        return None
    try:
        manifest = artefact.verify(stage, kind)
    except NmtError:
        manifest = {}
    if manifest.get("inputs") == inputs:
        console.say(f"{kind}: done by an earlier run")
        return manifest
    artefact.remove_tree(stage)
    return None


@contextlib.contextmanager
def _timed(what: str, pairs: int) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds = time.monotonic() - start
    console.say(f"{what} {pairs:,} pairs in {console.duration(seconds)} ({pairs / max(seconds, 1e-9):,.0f} pairs/s)")


def _make_tokenizer(corpus: recipe.Corpus, spool: stages.Spool, summary: cleaning.Tally, target: Path) -> None:
    """Copy the tokenizer that the recipe names, or train one."""
    if not spool.bounds[-1, 0]:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in summary.dropped.most_common(4))
        raise DataError(f"no usable pairs: {summary.read:,} read; {reasons}")
    if corpus.tokenizer.file is not None:
        artefact.write_file(target, Path(corpus.tokenizer.file).read_bytes())
        return
    pairs = min(stages.SAMPLE_PAIRS, int(spool.bounds[-1, 0]))
    with _timed("trained the tokenizer on about", pairs):
        arguments = (spool.directory, corpus.tokenizer, corpus.seed)
        train = stages.train_tokenizer
        artefact.write_file(target, stages.apart(train, *arguments) if pairs > LONG_TRAINING else train(*arguments))


def _commit(
    corpus: recipe.Corpus,
    out: Path,
    work: Path,
    options: PrepareOptions,
    origin: str,
    facts: dict[str, list[dict[str, Any]]],
    held_out: dict[str, tuple[list[str], list[str]]],
    summary: cleaning.Tally,
) -> None:
    """Encode the cleaned text and commit the corpus with its report."""
    model = work / "tokenizer" / "tokenizer.model"
    about: dict[str, Any] = {
        "name": corpus.name,
        "src": corpus.src,
        "tgt": corpus.tgt,
        "generated": sources.family(corpus) == "toy",
        "recipe": recipe.to_plain(corpus),
        "origin": origin,
        "sources": [fact for split in facts.values() for fact in split],
    }
    with artefact.staged(out, store.KIND, about, overwrite=options.overwrite) as stage:
        artefact.write_file(stage / "tokenizer.model", model.read_bytes())
        tokenizer = spm.Tokenizer(model)
        encoder = stages.Encoder(work / "clean", model, artefact.sha256(model), corpus.cleaning)
        workers = options.workers or len(os.sched_getaffinity(0))
        with _timed("encoded", int(stages.open_spool(work / "clean").bounds[-1, 0])):
            pairs, pieces, drops = stages.encode(stage, encoder, workers)
        summary.add(drops)
        if not pairs:
            raise DataError(f"no usable pairs: all of {summary.read:,} were dropped: {dict(summary.dropped)}")
        for split, sides in held_out.items():
            for side, lines in zip(("src", "tgt"), sides, strict=True):
                store.write_lines(stage / f"{split}.{side}", lines)
        report = _report(corpus, tokenizer, held_out, summary, pairs)
        artefact.write_file(stage / "cleaning.json", artefact.json_bytes(report))
        about["pairs"], about["vocabulary_size"] = pairs, tokenizer.vocabulary_size
        about["pieces"] = dict(zip(("src", "tgt"), pieces, strict=True))
        about["counts"] = {key: report[key] for key in ("read", "kept")} | {
            reason: facts["pairs"] for reason, facts in report["dropped"].items()
        }
    _show(report, out)


def _report(
    corpus: recipe.Corpus,
    tokenizer: spm.Tokenizer,
    held_out: dict[str, tuple[list[str], list[str]]],
    summary: cleaning.Tally,
    pairs: int,
) -> dict[str, Any]:
    """Return the cleaning report: counts, percentages and examples, and what the tokenizer cannot reproduce."""
    percent = 100 / summary.read
    references = {}
    for split, (_, lines) in held_out.items():
        clean = [cleaning.normalise(line) for line in lines]
        again = tokenizer.decode(tokenizer.encode(clean))
        wrong = [line for line, copy in zip(lines, again, strict=True) if line != copy]
        references[split] = {"lines": len(lines), "not_reproduced": len(wrong), "examples": wrong[: cleaning.EXAMPLES]}
    reasons = {
        reason: {
            "pairs": summary.dropped[reason],
            "percent": round(summary.dropped[reason] * percent, 3),
            "examples": summary.examples.get(reason, []),
        }
        for reason in (*cleaning.DROPPED, cleaning.SOURCE_HELD_OUT)
    }
    return {
        "read": summary.read,
        "kept": pairs,
        "noted": {cleaning.SOURCE_HELD_OUT: reasons.pop(cleaning.SOURCE_HELD_OUT)},
        "dropped": reasons,
        "repaired_lines": dict(sorted(summary.repaired.items())),
        "warnings": summary.warnings,
        "unicode": "NFC",
        "references": references,
    }


def _show(report: dict[str, Any], out: Path) -> None:
    """Print the report as a table, and one line on what was made."""
    rows = [
        (reason, f"{facts['pairs']:,}", f"{facts['percent']:.2f} %", " | ".join((facts["examples"] or [("",)])[0])[:70])
        for reason, facts in (report["dropped"] | report["noted"]).items()
        if facts["pairs"]
    ]
    rows += [(f"repaired: {kind}", f"{count:,} lines", "", "") for kind, count in report["repaired_lines"].items()]
    for split, facts in report["references"].items():
        count = f"{facts['not_reproduced']:,} lines"
        rows.append((f"{split} lines not reproduced", count, f"of {facts['lines']:,}", ""))
    console.table(f"cleaning: {report['read']:,} pairs read", ("what", "count", "share", "example"), rows)
    console.say(f"{out}: {report['kept']:,} training pairs")


def _check_space(out: Path, text_bytes: int) -> None:
    needed, free = int(DISK_PER_TEXT_BYTE * text_bytes / 1e6) + 1, artefact.free_megabytes(out)
    if free < needed:
        raise StorageError(f"{out} needs about {needed:,} MB of disk, {free:,} MB are free. Choose another --out")


def _dry_run(corpus: recipe.Corpus, out: Path, options: PrepareOptions) -> None:
    """Print what preparing would download, write and need."""
    workers = options.workers or len(os.sched_getaffinity(0))
    expected = sources.estimate(corpus, options.mirror)
    download, text, pairs = expected.download, expected.text, expected.pairs
    if pairs and corpus.limit:
        text = text and text * min(corpus.limit, pairs) // pairs
        pairs = min(corpus.limit, pairs)
    count = pairs or 0
    seconds = count / (PAIRS_PER_SECOND_PER_CORE * workers) + min(1.0, count / 1e6) * SECONDS_FOR_TOKENIZER
    unknown = "unknown"
    facts = [
        ("download", unknown if download is None else f"{download / 1e6:,.0f} MB" if download else "nothing"),
        ("from", expected.origin),
        ("training pairs, about", unknown if pairs is None else f"{pairs:,}"),
        (
            f"disk while preparing, in {out.parent}",
            unknown if text is None else f"{DISK_PER_TEXT_BYTE * text / 1e6:,.0f} MB",
        ),
        ("free there", f"{artefact.free_megabytes(out):,} MB"),
        (f"memory, {workers} workers", f"{max(TRAINING_MEGABYTES, BASE_MEGABYTES + workers * WORKER_MEGABYTES):,} MB"),
        ("time beside the download, about", unknown if pairs is None else console.duration(seconds)),
    ]
    console.table(f"nmt prepare {corpus.name} would need", ("", ""), facts)
