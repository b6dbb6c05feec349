"""Make synthetic training pairs. One side is real text, and the other side is a model's translation of it.

If a stronger model translates real source text, this is called distillation. If a reverse model translates real target
text, it is called back-translation. Later stages clean the synthetic pairs like all others.

Translations are kept in a cache, which has one directory for each combination of model, options and text. If nmt is
killed, the next run continues after the translations that are already in the cache. With `nmt prepare --shard`, several
machines share the work of translating.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

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
    different_repairs,
    repair,
)
from nmt_cli.corpus.filters import loops
from nmt_cli.recipe import loading, schema
from nmt_cli.recipe.cleaning import Cleaning
from nmt_cli.storage import artefact
from nmt_cli.system.console import Progress, say
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.system.shard import Shard

Pairs = list[tuple[str, str]]
# (model directory, lines, beam, sampling) -> translations in the same order.
Translate = Callable[[Path, Iterable[str], int, bool], Iterable[str]]
# Translates the file TEXT in a cache directory, one unit (a range of lines) at a time: (model directory, cache
# directory, beam, sampling, worker). `worker` selects a share of the units. Without a worker, translates all remaining
# units, joins the translations into the file TRANSLATIONS, and deletes TEXT and the units.
TranslateUnits = Callable[[Path, Path, int, bool, Shard | None], None]
TEXT, TRANSLATIONS = "text", "translations"  # names of files in a cache directory
FLUSH_LINES = 100  # at most this many translations are lost if nmt is killed
SMOOTHING = 10  # characters added to both lengths, because the ratio of short lengths varies widely
MAX_DEVIATIONS = 5.0  # maximum distance of a log length ratio from the median, as a multiple of the spread
MIN_SPREAD = 0.1  # lower bound on the spread of log length ratios


def files_of(corpus: schema.Corpus) -> list[Path]:
    """Return the files that determine the synthetic text: the files of real text and the manifests of the models."""
    real_files = [Path(name) for entry in corpus.synthetic for name in entry.files]
    return [*real_files, *(_model(entry) / artefact.MANIFEST for entry in corpus.synthetic)]


def token(tag: str) -> str:
    """Return the token that marks source lines with a tag or with a target language."""
    return f">>{tag}<<"


class Inputs(NamedTuple):
    """The inputs from which the synthetic text of a corpus is made."""

    corpus: schema.Corpus
    work: Path  # directory for temporary files
    cache: Path  # directory that contains the cache directories
    held_out: Pairs  # the sources lack language and tag tokens
    train: Callable[[], Iterable[readers.Chunk]]  # each call returns all real training pairs


class RealText(NamedTuple):
    """The real text of an entry of corpus.synthetic."""

    entry: schema.Synthetic
    lines_file: Path  # the selected lines
    target: str  # the target-language token that the model needs before each line, or ""
    directory: Path  # the cache directory of its translations


def real_texts(inputs: Inputs, stats: CleaningStats) -> Iterator[RealText]:
    """Select the lines to translate, and yield a RealText for each entry of corpus.synthetic.

    Count the dropped lines in `stats`.
    """
    for number, entry in enumerate(inputs.corpus.synthetic):
        target = target_token(entry, inputs.corpus.of(entry))
        lines_file = inputs.work / f"real-{number}"
        select_lines(entry, inputs, lines_file, stats)
        yield RealText(entry, lines_file, target, _cache_directory(entry, lines_file, inputs.cache, target))


def make(
    inputs: Inputs, translate: Translate | None, translate_units: TranslateUnits | None = None
) -> tuple[list[readers.FilePair], CleaningStats]:
    """Make the pairs of each entry of corpus.synthetic. Return their files, and counts of dropped lines and pairs.

    Raises ValueError if `translate` is None and the cache lacks some of the translations.
    """
    files, stats = list[readers.FilePair](), CleaningStats()
    for number, real in enumerate(real_texts(inputs, stats)):
        entry, directory = real.entry, real.directory
        if (directory / TEXT).is_file() and translate_units:
            with artefact.locked(directory, "the cache of translations"):
                translate_units(_model(entry), directory, entry.beam, entry.sampling, None)
        translations = _translated(real, translate)
        sides = inputs.work / f"synthetic-{number}.src", inputs.work / f"synthetic-{number}.tgt"
        language = inputs.corpus.of(entry).tgt if inputs.corpus.target_tokens else ""
        write_pairs(entry, real.lines_file, translations, sides, stats, language)
        files.append((str(sides[0]), str(sides[1])))
    return files, stats


def translate_share(inputs: Inputs, translate_units: TranslateUnits, worker: Shard) -> list[Path]:
    """Translate one worker's share of the lines of corpus.synthetic, and store the translations in the cache.

    Return, for each entry, the file that will contain all translations after `make` has joined them.
    """
    files = list[Path]()
    for real in real_texts(inputs, CleaningStats()):
        entry, directory = real.entry, real.directory
        files.append(directory / TRANSLATIONS)
        if files[-1].is_file():
            say(f"{directory} already contains the translations by {_model(entry)}")
            continue
        if not (directory / TEXT).is_file():
            artefact.make_directory(directory)
            part = artefact.temporary(directory / TEXT)
            with (
                real.lines_file.open(encoding="utf-8", newline="\n") as lines,
                part.open("x", encoding="utf-8") as text,
            ):
                text.writelines(f"{line}\n" for line in _with_target(real.target, lines))
            artefact.sync(part)
            part.replace(directory / TEXT)
        translate_units(_model(entry), directory, entry.beam, entry.sampling, worker)
    return files


def _model(entry: schema.Synthetic) -> Path:
    """Return the model directory of an entry. The entry may name a model directory or a run directory."""
    named = Path(str(entry.model))
    for directory in (named, named / "model"):
        if artefact.present(directory):
            return directory
    raise MissingError(f"no model in {named} for corpus.synthetic. Train it first, or set corpus.synthetic.model")


def target_token(entry: schema.Synthetic, corpus: schema.Corpus) -> str:
    """Return the target-language token that the model of an entry needs before each line, or "" if it needs none.

    Raise DataError if the model does not translate in the direction that the entry requires. `corpus` has the languages
    of the pairs.
    """
    model = loading.load_stored(_model(entry) / "recipe.yaml").corpus
    wanted = (corpus.src, corpus.tgt) if entry.side == "src" else (corpus.tgt, corpus.src)
    unknown = ("src", "tgt")  # the codes of an imported model whose languages are unknown
    if not {wanted, unknown} & {*model.pairs}:
        have, need = (", ".join(f"{src} to {tgt}" for src, tgt in some) for some in (model.pairs, [wanted]))
        raise DataError(f"{entry.model} translates {have}, but corpus.synthetic with side={entry.side} requires {need}")
    return token(wanted[1]) if model.target_tokens else ""


def select_lines(entry: schema.Synthetic, inputs: Inputs, output: Path, stats: CleaningStats) -> None:
    """Select the real lines to be translated, and write them to `output`: repaired, distinct, and not held out."""
    corpus = inputs.corpus
    lines: Iterable[tuple[bytes | None, Cleaning]]
    if entry.files:
        raw_lines: Iterable[bytes | None]
        raw_lines = itertools.chain.from_iterable(readers.raw_lines(Path(name), {}) for name in entry.files)
        if corpus.moses:
            raw_lines = map(moses.converter(getattr(corpus, entry.side)), raw_lines)
        lines = ((raw, corpus.cleaning) for raw in raw_lines)
    else:
        section = corpus.of(entry)
        sections = ((chunk, corpus.of_source(chunk.source)) for chunk in inputs.train())
        chunks = ((chunk, each.cleaning) for chunk, each in sections if _same_languages(each, section))
        lines = ((raw, settings) for chunk, settings in chunks for raw in getattr(chunk, entry.side))
    repairs = different_repairs(each.cleaning for each in [corpus, *corpus.trained])
    held_out_lines = {repair(pair[entry.side == "tgt"], settings) for pair in inputs.held_out for settings in repairs}
    seen = set[int]()
    with output.open("w", encoding="utf-8") as file:
        for raw, settings in lines:
            if raw is None:
                _drop(stats, entry, LONG_LINE, "(too long)", "")
                continue
            try:
                line = repair(raw.decode(), settings)
            except UnicodeDecodeError:
                _drop(stats, entry, NOT_UTF8, raw[:200].decode(errors="backslashreplace"), "")
                continue
            if not line:
                _drop(stats, entry, EMPTY, "", "")
            elif line in held_out_lines:
                _drop(stats, entry, HELD_OUT, line, "")
            elif hash(line) in seen:
                _drop(stats, entry, DUPLICATE, line, "")
            else:
                seen.add(hash(line))
                file.write(f"{line}\n")


def _same_languages(section: schema.Corpus, other: schema.Corpus) -> bool:
    return (section.src, section.tgt) == (other.src, other.tgt)


def _drop(stats: CleaningStats, entry: schema.Synthetic, reason: str, line: str, translation: str) -> None:
    stats.read += 1
    stats.drop(reason, *((line, translation) if entry.side == "src" else (translation, line)))


def _cache_directory(entry: schema.Synthetic, lines_file: Path, cache: Path, target: str) -> Path:
    """Return the cache directory for the translations of a file. The name is a hash of the model, options and text."""
    options = {"beam": entry.beam, "sampling": entry.sampling, "text": artefact.sha256(lines_file)}
    options |= {"target": target} if target else {}
    return cache / artefact.digest({**options, "model": artefact.sha256(_model(entry) / artefact.MANIFEST)})[:32]


def _with_target(target: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines without line feeds, each after the token `target` and a space, unless the token is ""."""
    return (f"{target} {line[:-1]}".lstrip() for line in lines)


def _translated(real: RealText, translate: Translate | None) -> Path:
    """Return the path of a file with a translation of each line of `real`. Translate the lines that are not cached."""
    entry, directory = real.entry, real.directory
    model, total = _model(entry), sum(1 for _ in real.lines_file.open("rb"))
    whole, part = directory / TRANSLATIONS, directory / f"{TRANSLATIONS}.part"
    if whole.is_file():
        say(f"{directory} already contains {total:,} translations by {model}")
        return whole
    if translate is None:
        raise ValueError("corpus.synthetic requires PrepareOptions.translate")
    with artefact.locked(directory, "the cache of translations"):
        with open(part, "ab+", opener=artefact.open_no_symlink) as file:
            file.seek(0)
            data = file.read()
            file.truncate(data.rfind(b"\n") + 1)  # if nmt was killed, the last line may be incomplete
        done = data.count(b"\n")
        with real.lines_file.open(encoding="utf-8", newline="\n") as text, part.open("a", encoding="utf-8") as file:
            rest = _with_target(real.target, itertools.islice(text, done, None))
            with Progress(f"translating with {model}", total, "lines") as progress:
                progress.advance(done)
                translations = translate(model, rest, entry.beam, entry.sampling) if done < total else ()
                for number, line in enumerate(translations, 1):
                    file.write(f"{line}\n")
                    progress.advance(1)
                    if number % FLUSH_LINES == 0:
                        file.flush()
        artefact.sync(part)
        part.replace(whole)
    return whole


def write_pairs(
    entry: schema.Synthetic, lines_file: Path, translations: Path, sides: tuple[Path, Path], stats: CleaningStats,
    language: str = "",
) -> None:  # fmt: skip
    """Write the pairs to the two files of `sides`. Drop empty, looping and unusually long or short translations.

    Each source begins with the tokens of the target language `language` and of the entry's tag, if they are set.
    """
    ratios = [_log_ratio(*pair) for pair in _pairs(lines_file, translations) if pair[1]]
    median = statistics.median(ratios) if ratios else 0.0
    deviations = [abs(ratio - median) for ratio in ratios]
    # For a normal distribution, the standard deviation is 1.4826 times the median absolute deviation.
    spread = max(MIN_SPREAD, 1.4826 * statistics.median(deviations)) if ratios else MIN_SPREAD
    tokens = "".join(f"{token(name)} " for name in (language, entry.tag) if name)
    with sides[0].open("w", encoding="utf-8") as src, sides[1].open("w", encoding="utf-8") as tgt:
        for text, translation in _pairs(lines_file, translations):
            if not translation:
                _drop(stats, entry, EMPTY, text, translation)
            elif loops(translation) and not loops(text):
                _drop(stats, entry, LOOPING, text, translation)
            elif abs(_log_ratio(text, translation) - median) > MAX_DEVIATIONS * spread:
                _drop(stats, entry, OUTLYING, text, translation)
            else:
                source, target = (text, translation) if entry.side == "src" else (translation, text)
                src.write(f"{tokens}{source}\n")
                tgt.write(f"{target}\n")


def _pairs(lines_file: Path, translations: Path) -> Iterator[tuple[str, str]]:
    with (
        lines_file.open(encoding="utf-8", newline="\n") as lines,
        translations.open(encoding="utf-8", newline="\n") as others,
    ):
        for text, translation in zip(lines, others, strict=True):
            yield text[:-1], translation[:-1].strip()


def _log_ratio(text: str, translation: str) -> float:
    return math.log((len(translation) + SMOOTHING) / (len(text) + SMOOTHING))
