"""The command `nmt prepare`: text in, a corpus of training ids out; one rename of a work directory commits it."""

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nmt_cli.corpus import cleaning, hold_out, moses, readers, sources, stages, store, synthetic, tokenizer, twins
from nmt_cli.corpus.readers import Chunk
from nmt_cli.recipe import loading, schema
from nmt_cli.storage import artefact
from nmt_cli.system import console
from nmt_cli.system.errors import DataError, OutputError, StorageError, from_os_error
from nmt_cli.system.processors import usable_cores

DISK_PER_TEXT_BYTE = 1.7  # the cleaned text, the ids of it, and what duplicates are found by
BYTES_PER_PAIR = 250  # of news text, both sides


@dataclass(frozen=True)
class PrepareOptions:
    """How to prepare, as opposed to what: nothing here changes a byte of a finished corpus."""

    mirror: Path | None = None  # directory with the files of a named corpus, instead of the network
    workers: int | None = None  # processes; None: one for each core this process may use
    overwrite: bool = False
    dry_run: bool = False
    strict: bool = False  # refuse what else is a warning: lines that are not UTF-8, sides that look shifted

    @property
    def processes(self) -> int:
        return self.workers or usable_cores()


def prepare(corpus: schema.Corpus, out: Path, options: PrepareOptions) -> Path:
    """Prepare `corpus` in `out` and return it; one that is finished is verified. An error leaves nothing half-done."""
    sources.family(corpus)
    if options.dry_run:
        _dry_run(corpus, out, options)
        return out
    work = artefact.beside(out, ".", ".preparing")
    try:
        artefact.restore(out)
        if work.exists() and not artefact.was_locked(work):
            raise OutputError(f"{work} is in the way, and nmt did not make it. Move it away")
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


def _finished(corpus: schema.Corpus, out: Path, options: PrepareOptions) -> bool:
    """Return whether `out` holds this very corpus; False if it may be replaced, else an error."""
    if not (out / artefact.MANIFEST).is_file() or artefact.read_json(out / artefact.MANIFEST).get("kind") != store.KIND:
        raise OutputError(f"{out} exists and is not a prepared corpus. Choose another --out")
    if options.overwrite:
        return False
    try:
        manifest = store.open_corpus(out, content=True).manifest
    except DataError as error:
        raise DataError(f"{error}. Prepare it anew with --overwrite") from None
    before = loading.merge(schema.Corpus().model_dump(), manifest.get("recipe", {}))  # new settings had no effect
    differs = loading.differences(before, corpus.model_dump())
    hashes = {source["sha256"] for source in manifest["sources"]}
    reused = tokenizer.files_of(Path(corpus.tokenizer.file)) if corpus.tokenizer.file else []
    files = sources.local_files(corpus, options.mirror) + reused + synthetic.files_of(corpus)
    differs += [f"{file.name} is another file" for file in files if artefact.sha256(file) not in hashes]
    if reused and len(reused) != len(tokenizer.files_of(out / "tokenizer.model")):
        differs.append(f"{reused[0]} has or had a model of its own for target text")
    if differs:
        what = f"{out} exists with other inputs ({'; '.join(differs)[:500]})"
        raise OutputError(f"{what}. Run nmt prepare with --overwrite, or choose another --out (reproduce: --data)")
    return True


def _make_room(corpus: schema.Corpus, out: Path, work: Path, mirror: Path | None) -> None:
    needed, free = _disk_megabytes(corpus, mirror) or 0, artefact.free_megabytes(out)
    if free < needed:
        raise StorageError(f"{out} needs about {needed:,} MB of disk, {free:,} MB are free. Choose another --out")
    for name in ("input", "cleaned", "corpus"):
        shutil.rmtree(work / name, ignore_errors=True)
        (work / name).mkdir()


def _prepare(corpus: schema.Corpus, out: Path, work: Path, options: PrepareOptions) -> None:
    """Clean, train the tokenizer, encode, and commit the corpus with its report."""
    _make_room(corpus, out, work, options.mirror)
    directory, model = work / "corpus", work / "corpus" / "tokenizer.model"
    text = sources.open_text(corpus, options.mirror, out.parent / "downloads", work / "input")
    _convert(text, corpus)
    reused = Path(corpus.tokenizer.file) if corpus.tokenizer.file else None
    if reused:
        tokenizer.Tokenizer(reused)
        text.files.extend(tokenizer.files_of(reused))
    held_out = {split: _held_out(text, split) for split in text.splits if split != "train"}
    with stages.Pool(options.processes) as pool:
        held_out |= hold_out.draw(corpus, pool.map)
    held_out_pairs = [pair for pairs in held_out.values() for pair in pairs]
    hashes = cleaning.held_out_hashes(held_out_pairs, corpus.cleaning)
    text.files.extend(synthetic.files_of(corpus))

    def train_again() -> Iterator[Chunk]:
        again = sources.open_text(corpus, options.mirror, out.parent / "downloads", work / "input")
        _convert(again, corpus)
        return _chunks(again, "train", corpus.limit)

    made, synthetic_drops = synthetic.make(
        corpus, work / "input", out.parent / "synthetic", held_out_pairs, train_again
    )

    for split, sentences in held_out.items():
        for side, lines in zip(("src", "tgt"), zip(*sentences, strict=True), strict=True):
            (directory / f"{split}.{side}").write_bytes("".join(f"{line}\n" for line in lines).encode())
    with stages.Pool(options.processes) as pool:
        real = _chunks(text, "train", corpus.limit) if corpus.real_pairs else iter(())
        others = (readers.read_pairs(str(src), str(tgt), 0, {}) for src, tgt in made)
        train = itertools.chain(real, *others)
        repeated, stats = stages.clean(work / "cleaned", train, corpus, hashes, pool)
        warnings = stats.warnings()
        if stats.dropped[cleaning.NOT_UTF8] * 100 > stats.read:
            name = text.splits["train"].name[:150]
            raise DataError(f"{name}: {warnings[0]} of {stats.read:,}. Is it Latin-1 or binary? Convert it to UTF-8")
        if options.strict and warnings:
            raise DataError(f"{warnings[0]}. Without --strict this is a warning")
        for warning in warnings:
            console.warn(warning)
        if len(repeated):
            if reused:
                tokenizer.copy(reused, model)
            else:
                artefact.write_file(model, stages.train_tokenizer(work / "cleaned", repeated, corpus, pool))
            tokens, drops, found = stages.encode(work / "cleaned", repeated, model, corpus, pool)
            stats.add(drops)
    stats.add(synthetic_drops)
    pairs = stats.read - stats.dropped.total()
    if not pairs:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in stats.dropped.most_common(4))
        reasons = reasons or f"{text.splits['train'].name} is empty"
        raise DataError(f"no usable pairs: {stats.read:,} read; {reasons}")

    for split, counts in found.items():
        console.say(twins.sentence(split, counts))
    report = {"read": stats.read, "kept": pairs, "warnings": warnings, "dropped": _report(stats), "twins": found}
    artefact.write_file(directory / "cleaning.json", artefact.json_bytes(report))
    manifest = {
        "name": corpus.name,
        "src": corpus.src,
        "tgt": corpus.tgt,
        "generated": sources.family(corpus) == "toy",
        "recipe": corpus.model_dump(),
        "origin": text.origin,
        "sources": [
            {"name": file.name, "bytes": file.stat().st_size, "sha256": text.hashes.get(file) or artefact.sha256(file)}
            for file in dict.fromkeys(text.files)
        ],
        "pairs": pairs,
        **_vocabulary_sizes(model),
        "tokens": tokens,
    }
    with artefact.staged(out, store.KIND, manifest, overwrite=options.overwrite) as stage:
        for file in sorted(directory.iterdir()):
            file.rename(stage / file.name)
    console.say(f"{out}: {console.counted(pairs, 'training pair')}")


def _vocabulary_sizes(model: Path) -> dict[str, int]:
    both = tokenizer.Tokenizer(model)
    return {"source_vocabulary_size": both.vocabulary_size, "vocabulary_size": both.target.vocabulary_size}


def _convert(text: sources.Text, corpus: schema.Corpus) -> None:
    for name, whole in text.splits.items() if corpus.moses else ():
        text.splits[name] = replace(whole, chunks=moses.convert(whole.chunks, corpus.src, corpus.tgt))


def _chunks(text: sources.Text, split: str, limit: int | None = None) -> Iterator[Chunk]:
    """Yield the first `limit` pairs of a split, or all after which their number is checked."""
    rows, expected = 0, text.splits[split].rows
    for chunk in text.splits[split].chunks:
        if limit and rows + len(chunk.src) >= limit:
            yield Chunk(chunk.src[: limit - rows], chunk.tgt[: limit - rows], chunk.repetition)
            return
        yield chunk
        rows += len(chunk.src)
    if expected not in (None, rows):
        message = f"{split} has {rows:,} pairs, {expected:,} are expected ({text.origin})"
        if text.advice is not None:
            accept = f", or accept it with corpus.rows={rows}" if split == "train" else ""
            raise DataError(f"{message}. {text.advice}{accept}")
        console.warn(f"{message}: this is an excerpt or another edition, and results will differ")


def _held_out(text: sources.Text, split: str) -> list[tuple[str, str]]:
    """Return a named development or test set as it stands: only a CR before LF and a leading BOM go, and no line."""
    pairs, source = list[tuple[str, str]](), text.splits[split]
    for raw in (raw for chunk in _chunks(text, split) for raw in zip(chunk.src, chunk.tgt, strict=True)):
        try:
            lines = [str(line, "utf-8" if pairs else "utf-8-sig") for line in raw if line is not None]
            src, tgt = (line.removesuffix("\r").replace("\n", " ") for line in lines)
        except ValueError:
            number = len(pairs) + 1
            raise DataError(f"{source.name}: line {number:,} is not UTF-8, or too long. Correct it") from None
        pairs.append((src, tgt))
    if not pairs:
        raise DataError(f"{source.name} is empty")
    return pairs


def _report(stats: cleaning.CleaningStats) -> dict[str, dict[str, Any]]:
    reasons, rows = {}, []
    for reason in cleaning.DROPPED:
        count, examples = stats.dropped[reason], stats.examples.get(reason, [])
        percent = count * (100 / stats.read)
        reasons[reason] = {"pairs": count, "percent": round(percent, 3), "examples": examples}
        if count:
            rows.append((reason, f"{count:,}", f"{percent:.2f} %", " | ".join(examples[0])[:70]))
    if rows:
        console.table(f"cleaning: {stats.read:,} pairs read", ("what", "count", "share", "example"), rows)
    return reasons


def _disk_megabytes(corpus: schema.Corpus, mirror: Path | None) -> int | None:
    size = sources.estimate(corpus, mirror)[1]
    return size and int(DISK_PER_TEXT_BYTE * min(size, (corpus.limit or size) * BYTES_PER_PAIR) / 1e6) + 1


def _dry_run(corpus: schema.Corpus, out: Path, options: PrepareOptions) -> None:
    download, size, pairs = sources.estimate(corpus, options.mirror)
    counted = sources.count_pairs(corpus, options.mirror)
    pairs = counted or pairs or (size and size // BYTES_PER_PAIR) or corpus.limit
    pairs = pairs and min(pairs, corpus.limit or pairs)
    # Measured by tests/benchmarks/prepare_speed.py on 2 cores of a Zen 4 machine, WMT news text.
    seconds = pairs and pairs / (4000 * options.processes) + 60 * min(1.0, pairs / 1e6)  # the last for the tokenizer
    memory = max(1300, 150 + 100 * options.processes)  # training the tokenizer; the workers

    def show(count: float | None, unit: str = " MB") -> str:
        return "unknown" if count is None else f"{count:,.0f}{unit}"

    rows = [
        ("from", sources.origin(corpus, options.mirror)),
        ("download", show(download and download / 1e6)),
        ("training pairs" if counted else "training pairs, about", show(pairs, "")),
        (f"disk while preparing, in {out.parent}", show(_disk_megabytes(corpus, options.mirror))),
        ("free there", show(artefact.free_megabytes(out))),
        (f"memory, {options.processes} workers", show(memory)),
        ("time beside the download, about", console.duration(seconds) if seconds else "unknown"),
    ]
    if sources.family(corpus) == "hub" and not (options.mirror or corpus.limit):
        rows.insert(2, ("Arrow files beside it in the hub's cache", show(size and size / 1e6)))
    console.table(f"nmt prepare {corpus.name} would need", ("", ""), rows)
