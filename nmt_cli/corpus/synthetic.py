"""Synthetic text: real lines of one language, and a model's translations of them, as pairs to train on.

Real source text with a stronger model is distillation, real target text with a reverse model back-translation. Each
line is translated once: translations are kept in a cache by a hash of model, options and text, and go on after a kill
where they were. Pairs then pass through cleaning as all others do.
"""

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from nmt_cli.corpus import moses, readers
from nmt_cli.corpus.cleaning import (
    DUPLICATE,
    EMPTY,
    HELD_OUT,
    LONG_LINE,
    LOOPING,
    NOT_UTF8,
    OUTLYING,
    CleaningStats,
    repair,
)
from nmt_cli.recipe import loading, schema
from nmt_cli.storage import artefact
from nmt_cli.system.console import Progress, say
from nmt_cli.system.errors import DataError, MissingError

Pairs = list[tuple[str, str]]
FLUSH_LINES = 100  # translations that a kill may cost
LOOP = re.compile(r"(?:^| )(\S+(?: \S+){0,5}?)(?: \1){3}(?: |$)")  # up to six words, four times or more in a row
FEW_CHARACTERS = 10  # added to both lengths, whose ratio varies in short lines
MOST_DEVIATIONS, LEAST_SPREAD = 5.0, 0.1  # of the logarithm of that ratio from its median


def files_of(corpus: schema.Corpus) -> list[Path]:
    """Return the files that synthetic text depends on: those of real lines, and the manifests of the models."""
    lines = [Path(name) for entry in corpus.synthetic for name in entry.files]
    return [*lines, *(_model(entry) / artefact.MANIFEST for entry in corpus.synthetic)]


def token(tag: str) -> str:
    """Return the token of a tag as it stands before a source; it looks like one that says the target language."""
    return f">>{tag}<<"


def make(
    corpus: schema.Corpus, work: Path, cache: Path, held_out: Pairs, train: Callable[[], Iterable[readers.Chunk]]
) -> tuple[list[tuple[Path, Path]], CleaningStats]:
    """Return the files of source and target for each entry of corpus.synthetic, and the lines that were dropped.

    `train` yields the training pairs, from their beginning each time.
    """
    files, stats = list[tuple[Path, Path]](), CleaningStats()
    for number, entry in enumerate(corpus.synthetic):
        _check_languages(entry, corpus)
        real = work / f"real-{number}"
        _select(entry, corpus, held_out, train, real, stats)
        made = _translated(entry, real, cache)
        sides = work / f"synthetic-{number}.src", work / f"synthetic-{number}.tgt"
        _write(entry, real, made, sides, stats)
        files.append(sides)
    return files, stats


def _model(entry: schema.Synthetic) -> Path:
    """Return the model directory of an entry, which may name a run."""
    place = Path(str(entry.model))
    for directory in (place, place / "model"):
        if artefact.present(directory):
            return directory
    raise MissingError(f"no model in {place}, which corpus.synthetic names. Train it first, or name another")


def _check_languages(entry: schema.Synthetic, corpus: schema.Corpus) -> None:
    model = loading.load_stored(_model(entry) / "recipe.yaml").corpus
    wanted = (corpus.src, corpus.tgt) if entry.side == "src" else (corpus.tgt, corpus.src)
    if (model.src, model.tgt) not in (wanted, ("src", "tgt")):  # the latter: an imported model that does not say
        have, need = f"{model.src} to {model.tgt}", f"{wanted[0]} to {wanted[1]}"
        raise DataError(
            f"{entry.model} translates {have}; for corpus.synthetic with side {entry.side} it must be {need}"
        )


def _select(
    entry: schema.Synthetic, corpus: schema.Corpus, held_out: Pairs, train: Callable[[], Iterable[readers.Chunk]],
    to: Path, stats: CleaningStats,
) -> None:  # fmt: skip
    """Write the real lines that are translated: repaired, each once, and none of dev or test."""
    lines: Iterable[bytes | None]
    if entry.files:
        lines = itertools.chain.from_iterable(readers.lines(Path(name), {}) for name in entry.files)
        if corpus.moses:
            lines = map(moses.converter(getattr(corpus, entry.side)), lines)
    else:
        lines = itertools.chain.from_iterable(getattr(chunk, entry.side) for chunk in train())
    known = {repair(pair[entry.side == "tgt"], corpus.cleaning) for pair in held_out}
    seen = set[int]()
    with to.open("w", encoding="utf-8") as file:
        for raw in lines:
            if raw is None:
                _drop(stats, entry, LONG_LINE, "(too long)", "")
                continue
            try:
                line = repair(raw.decode(), corpus.cleaning)
            except UnicodeDecodeError:
                _drop(stats, entry, NOT_UTF8, raw[:200].decode(errors="backslashreplace"), "")
                continue
            if not line:
                _drop(stats, entry, EMPTY, "", "")
            elif line in known:
                _drop(stats, entry, HELD_OUT, line, "")
            elif hash(line) in seen:
                _drop(stats, entry, DUPLICATE, line, "")
            else:
                seen.add(hash(line))
                file.write(f"{line}\n")


def _drop(stats: CleaningStats, entry: schema.Synthetic, reason: str, real: str, made: str) -> None:
    stats.read += 1
    stats.drop(reason, *((real, made) if entry.side == "src" else (made, real)))


def _translated(entry: schema.Synthetic, real: Path, cache: Path) -> Path:
    """Return the file of translations of `real`, as many lines, from the cache or made now."""
    model, total = _model(entry), sum(1 for _ in real.open("rb"))
    options = {"beam": entry.beam, "sampling": entry.sampling, "text": artefact.sha256(real)}
    place = cache / artefact.digest({**options, "model": artefact.sha256(model / artefact.MANIFEST)})[:32]
    whole, part = place / "translations", place / "translations.part"
    if whole.is_file():
        say(f"{total:,} translations by {model} are in {place} already")
        return whole
    with artefact.locked(place, "the cache of translations"):
        with open(part, "ab+", opener=artefact.open_unlinked) as file:
            file.seek(0)
            data = file.read()
            file.truncate(data.rfind(b"\n") + 1)  # the last line may be cut
        done = data.count(b"\n")
        with real.open(encoding="utf-8", newline="\n") as text, part.open("a", encoding="utf-8") as file:
            rest = (line[:-1] for line in itertools.islice(text, done, None))
            with Progress(f"translating by {model}", total, "lines") as progress:
                progress.advance(done)
                for number, line in enumerate(_translations(model, rest, entry) if done < total else (), 1):
                    file.write(f"{line}\n")
                    progress.advance(1)
                    if number % FLUSH_LINES == 0:
                        file.flush()
        artefact.sync(part)
        part.replace(whole)
    return whole


def _translations(model: Path, lines: Iterator[str], entry: schema.Synthetic) -> Iterator[str]:
    import nmt_cli  # the package hands out what translates; only text that is synthetic needs it

    sampling = nmt_cli.Sampling() if entry.sampling else None
    with nmt_cli.Translator(model) as translator:
        for translation in translator.translate(lines, beam=entry.beam, sampling=sampling):
            yield translation.text


def _write(entry: schema.Synthetic, real: Path, made: Path, sides: tuple[Path, Path], stats: CleaningStats) -> None:
    """Write the pairs, without those whose translation is empty, loops, or is far longer or shorter than others are."""
    ratios = [_log_ratio(*pair) for pair in _pairs(real, made) if pair[1]]
    median = statistics.median(ratios) if ratios else 0.0
    deviations = [abs(ratio - median) for ratio in ratios]
    spread = max(LEAST_SPREAD, 1.4826 * statistics.median(deviations)) if ratios else LEAST_SPREAD
    tag = f"{token(entry.tag)} " if entry.tag else ""
    with sides[0].open("w", encoding="utf-8") as src, sides[1].open("w", encoding="utf-8") as tgt:
        for text, translation in _pairs(real, made):
            if not translation:
                _drop(stats, entry, EMPTY, text, translation)
            elif LOOP.search(translation) and not LOOP.search(text):
                _drop(stats, entry, LOOPING, text, translation)
            elif abs(_log_ratio(text, translation) - median) > MOST_DEVIATIONS * spread:
                _drop(stats, entry, OUTLYING, text, translation)
            else:
                source, target = (text, translation) if entry.side == "src" else (translation, text)
                src.write(f"{tag}{source}\n")
                tgt.write(f"{target}\n")


def _pairs(real: Path, made: Path) -> Iterator[tuple[str, str]]:
    with real.open(encoding="utf-8", newline="\n") as texts, made.open(encoding="utf-8", newline="\n") as translations:
        for text, translation in zip(texts, translations, strict=True):
            yield text[:-1], translation[:-1].strip()


def _log_ratio(text: str, translation: str) -> float:
    return math.log((len(translation) + FEW_CHARACTERS) / (len(text) + FEW_CHARACTERS))
