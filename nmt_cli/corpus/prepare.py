"""Turn raw text into a prepared corpus (the command `nmt prepare`). A failure leaves no incomplete corpus."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli.corpus import (
    cleaning,
    cleaning_report,
    filters,
    hold_out,
    moses,
    near_duplicates,
    readers,
    size_estimate,
    sources,
    stages,
    store,
    synthetic,
    tokenizer,
    words,
)
from nmt_cli.corpus import held_out as held_out_sets
from nmt_cli.corpus.held_out import HeldOut, HeldOutPair
from nmt_cli.corpus.raw_text import RawText, checked_chunks, first_pairs
from nmt_cli.corpus.readers import Chunk
from nmt_cli.recipe import loading, schema
from nmt_cli.recipe.section import TRAINED
from nmt_cli.storage import artefact
from nmt_cli.system import console
from nmt_cli.system.errors import DataError, OutputError, StorageError
from nmt_cli.system.resources import usable_cores
from nmt_cli.system.shard import Shard


@dataclass(frozen=True)
class PrepareOptions:
    """Options of `nmt prepare`. The corpus depends only on its text and settings, not on these options."""

    mirror: Path | None = None  # directory with the files of a named corpus, to use instead of downloading them
    workers: int | None = None  # number of worker processes; None: one per core that this process may use
    overwrite: bool = False
    dry_run: bool = False
    wait: bool = False  # wait for other shards instead of raising a BusyError that names them
    strict: bool = False  # raise DataError instead of warning about a wrong encoding, or shifted or swapped sides
    translate: synthetic.Translate | None = None  # required for corpus.synthetic
    translate_units: synthetic.TranslateUnits | None = None  # required for several machines to share the translation

    @property
    def processes(self) -> int:
        return self.workers or usable_cores()


def prepare(corpus: schema.Corpus, out: Path, options: PrepareOptions) -> Path:
    """Prepare a corpus in the directory `out`, and return `out`. With `options.dry_run`, only show an estimate.

    If `out` already has this corpus, only verify it, unless `options.overwrite` is set. Raises OutputError or DataError
    if `out` must not be replaced, and BusyError if another process is preparing `out`.
    """
    work = artefact.beside(out, ".", ".preparing")
    preparation = Preparation(corpus, out, work, options)
    if options.dry_run:
        size_estimate.show(preparation.source, out, options.processes)
        return out
    with artefact.os_errors(out):
        artefact.restore(out)
        if work.exists() and not artefact.was_locked(work):
            raise OutputError(f"{work} exists, but nmt did not create it. Move it elsewhere")
        # If nmt was killed just after the commit, `out` is complete but `work` still exists. In that case, do not
        # return here, so that `work` is removed below.
        if not work.exists() and preparation.is_finished():
            console.say(f"{out} is already prepared and complete")
            return out
        with artefact.locked(work, "the work directory"):
            try:
                if not preparation.is_finished():  # check again, because another process may have finished
                    preparation.run()
            finally:
                artefact.remove_tree(work)
    return out


class Preparation:
    """Prepares a corpus in the directory `out`. Temporary files are in `work`."""

    def __init__(self, corpus: schema.Corpus, out: Path, work: Path, options: PrepareOptions) -> None:
        self.source = sources.source_of(corpus, options.mirror)
        filters.check(corpus)
        self.corpus = corpus
        self.out = out
        self.work = work
        self.options = options

    def is_finished(self) -> bool:
        """Return whether `out` already has exactly this corpus. False means that `out` may be created or replaced.

        Raises OutputError or DataError if `out` exists and must not be replaced.
        """
        corpus, out = self.corpus, self.out
        if not out.exists():
            return False
        manifest_file = out / artefact.MANIFEST
        if not manifest_file.is_file() or artefact.read_json(manifest_file).get("kind") != store.KIND:
            raise OutputError(f"{out} exists and is not a prepared corpus. Choose another --out")
        if self.options.overwrite:
            return False
        try:
            manifest = store.open_corpus(out, content=True).manifest
        except DataError as error:
            damage = str(error).removesuffix(". Prepare it again")
            raise DataError(f"{damage}. Prepare it again with --overwrite") from None
        # Older versions of nmt had fewer settings. A setting that is not stored had its default value.
        stored = loading.merge(prepared_settings(schema.Corpus()), manifest.get("recipe", {}))
        differences = loading.differences(stored, prepared_settings(corpus))
        # With names, to notice swapped files.
        prepared = {(file["name"], file["sha256"]) for file in manifest["sources"]}
        files = self.source.local_files() + self.chosen_files()
        changed = [file for file in files if (file.name, artefact.sha256(file)) not in prepared]
        differences += [f"{file.name} is a different file" for file in changed]
        reused = reused_tokenizer(corpus)
        if reused and len(reused) != len(tokenizer.files_of(out / "tokenizer.model")):
            differences.append(f"{reused[0]} gained or lost a separate target model")
        if differences:
            found = f"{out} was prepared from other inputs ({'; '.join(differences)[:500]})"
            advice = "Run nmt prepare with --overwrite, or choose another --out (for reproduce: --data)"
            raise OutputError(f"{found}. {advice}")
        return True

    def chosen_files(self) -> list[Path]:
        """Return the files that the corpus depends on besides its text: tokenizer, words, inputs of synthetic text."""
        return reused_tokenizer(self.corpus) + reused_words(self.corpus) + synthetic.files_of(self.corpus)

    def run(self) -> None:
        """Run all stages and commit the corpus."""
        corpus, directory = self.corpus, self.work / "corpus"
        cleaned, model = self.work / "cleaned", directory / "tokenizer.model"
        self.check_room()
        self.make_directories()
        text = self.open_text()
        held_out = self.hold_out(text)
        synthetic_files, synthetic_drops = self.make_synthetic(held_out)
        held_out_sets.write(directory, held_out)

        hashes = held_out_hashes(held_out, corpus)
        with stages.Pool(self.options.processes) as pool:
            train = training_text(text, synthetic_files, corpus)
            repeated, stats = stages.clean(cleaned, train, corpus, hashes, pool)
            warnings = cleaning_report.warn(stats, text, part_names(corpus), self.options.strict)
            pairs_by_part, tokens, near = np.zeros(0, np.int64), dict[str, int](), dict[str, dict[str, Any]]()
            if len(repeated):
                if reused := reused_tokenizer(corpus):
                    tokenizer.copy(reused[0], model)
                sample = partial(stages.sample, cleaned, repeated, corpus.seed)
                for name, content in stages.train_tokenizer(sample, len(repeated), corpus, pool).items():
                    artefact.write_file(directory / name, content)
                sizes = part_sizes(stats, corpus)
                tokens, pairs_by_part, drops, near = stages.encode(cleaned, repeated, sizes, model, corpus, pool)
                stats.add(drops)
        stats.add(synthetic_drops)
        self.commit(text, held_out, stats, warnings, pairs_by_part, tokens, near)

    def check_room(self) -> None:
        """Raise StorageError if the estimated size of the preparation exceeds the free disk space."""
        needed, free = size_estimate.disk_megabytes(self.source) or 0, artefact.free_megabytes(self.out)
        if free < needed:
            found = f"{self.out} needs about {needed:,} MB of disk, but {free:,} MB are free"
            raise StorageError(f"{found}. Free some space or choose another --out")

    def make_directories(self) -> None:
        for name in ("input", "cleaned", "corpus"):
            shutil.rmtree(self.work / name, ignore_errors=True)
            (self.work / name).mkdir()

    def open_text(self) -> RawText:
        """Open the text. The result's attribute `files` lists all local files that the corpus depends on."""
        corpus = self.corpus
        text = self.source.open(self.out.parent / "downloads", self.work / "input")
        if corpus.moses:
            for name, split in text.splits.items():
                text.splits[name] = replace(split, chunks=moses.convert(split.chunks, corpus.src, corpus.tgt))
        if reused := reused_tokenizer(corpus):
            tokenizer.Tokenizer(reused[0])  # fail now rather than later if these files cannot be used
            list(map(words.read, reused_words(corpus)))
        text.files.extend(self.chosen_files())
        return text

    def hold_out(self, text: RawText) -> HeldOut:
        """Return the pairs of each held-out set, from its own files or from the training text (corpus.hold_out)."""
        open_named = partial(self.source.open_named, self.out.parent / "downloads", self.work / "input")
        held_out = {split: held_out_set(text, split, self.corpus) for split in text.splits if split != "train"}
        with stages.Pool(self.options.processes) as pool:
            return held_out | hold_out.held_out_pairs(self.corpus, pool.map, open_named)

    def make_synthetic(self, held_out: HeldOut) -> tuple[list[readers.FilePair], cleaning.CleaningStats]:
        """Make the synthetic pairs. Return the files of each entry of corpus.synthetic, and counts of dropped lines."""
        return synthetic.make(self._synthetic_inputs(held_out), self.options.translate, self.options.translate_units)

    def translate_share(self, held_out: HeldOut, worker: Shard) -> list[Path]:
        """Translate one worker's share of the text of corpus.synthetic.

        Return the files that will contain all translations after `make_synthetic` has joined them. If
        `options.translate_units` is None, do nothing and return [].
        """
        if not self.options.translate_units:
            return []
        return synthetic.translate_share(self._synthetic_inputs(held_out), self.options.translate_units, worker)

    def _synthetic_inputs(self, held_out: HeldOut) -> synthetic.Inputs:
        return synthetic.Inputs(
            self.corpus,
            self.work / "input",
            self.out.parent / "synthetic",
            held_out_sets.plain_pairs(held_out),
            lambda: training_chunks(self.open_text(), self.corpus.limit),
        )

    def commit(
        self,
        text: RawText,
        held_out: HeldOut,
        stats: cleaning.CleaningStats,
        warnings: list[str],
        pairs_by_part: store.Lengths,
        tokens: dict[str, int],
        near: dict[str, dict[str, Any]],
    ) -> None:
        """Report the dropped pairs, and move the files of the corpus from `work` to `out`.

        `pairs_by_part` is the number of remaining pairs in each part of the corpus, `tokens` the number of tokens on
        each side, and `near` a summary of the near-duplicates of each held-out set. Raises DataError if no pairs
        remain.
        """
        directory, names = self.work / "corpus", part_names(self.corpus)
        pairs = cleaning_report.remaining_pairs(stats, text)
        for split, counts in near.items():
            console.say(near_duplicates.sentence(split, counts))
        dropped = cleaning_report.dropped(stats)
        report = {"read": stats.read, "kept": pairs, "warnings": warnings, **dropped, "twins": near}
        if len(names) > 1:
            report["parts"] = cleaning_report.parts(stats, names, pairs_by_part)
        artefact.write_file(directory / "cleaning.json", artefact.json_bytes(report))
        manifest = self._manifest(text, pairs, tokens)
        languages = held_out_sets.languages_of(held_out)
        if several := {split: runs for split, runs in languages.items() if len({run[:2] for run in runs}) > 1}:
            manifest["languages"] = several
        manifest["parts"] = [
            {"name": name, "pairs": int(count)} for name, count in zip(names, pairs_by_part, strict=True)
        ]
        with artefact.staged(self.out, store.KIND, manifest, overwrite=self.options.overwrite) as stage:
            for file in sorted(directory.iterdir()):
                file.rename(stage / file.name)
        console.say(f"{self.out}: {console.counted(pairs, 'training pair')}")

    def _manifest(self, text: RawText, pairs: int, tokens: dict[str, int]) -> dict[str, Any]:
        corpus, loaded = self.corpus, tokenizer.Tokenizer(self.work / "corpus" / "tokenizer.model")
        hashes = {file: text.hashes.get(file) or artefact.sha256(file) for file in dict.fromkeys(text.files)}
        files = [{"name": file.name, "bytes": file.stat().st_size, "sha256": hashes[file]} for file in hashes]
        return {
            "name": corpus.name,
            "src": corpus.src,
            "tgt": corpus.tgt,
            "generated": self.source.generated,
            "recipe": prepared_settings(corpus),
            "origin": text.origin,
            "sources": files,
            "pairs": pairs,
            "source_vocabulary_size": loaded.vocabulary_size,
            "vocabulary_size": loaded.target.vocabulary_size,
            "tokens": tokens,
        }


def held_out_hashes(held_out: HeldOut, corpus: schema.Corpus) -> frozenset[bytes]:
    """Return the hashes of the held-out pairs, which the training text must not contain."""
    settings = (section.cleaning for section in corpus.trained)
    return cleaning.held_out_hashes(held_out_sets.plain_pairs(held_out), *settings)


def training_text(text: RawText, synthetic_files: list[readers.FilePair], corpus: schema.Corpus) -> Iterator[Chunk]:
    """Yield all pairs to clean: first the real pairs, if the recipe uses them, and then the synthetic pairs."""
    real = training_chunks(text, corpus.limit) if corpus.real_pairs else iter(())
    return with_parts(real, synthetic_files, corpus)


def prepared_settings(corpus: schema.Corpus) -> dict[str, Any]:
    """Return the settings of a corpus that can change the result of `prepare`."""
    settings = schema.without(corpus.model_dump(), TRAINED, "corpus.")
    newer = {"sources": ("filters", "cleaning", "corpus", "config"), "synthetic": ("src", "tgt")}
    for section, names in newer.items():
        for entry in settings[section]:
            entry.pop("augment", None)
            del entry["weight"]
            for name in names:
                if entry[name] is None:
                    del entry[name]  # so that corpora from older versions, which lack this setting, still match
    return settings


def part_sizes(stats: cleaning.CleaningStats, corpus: schema.Corpus) -> store.Lengths:
    """Return the number of cleaned pairs in each part of the corpus."""
    return np.array([stats.kept[part] for part in range(len(corpus.parts))])


def part_names(corpus: schema.Corpus) -> list[str]:
    """Return the names of the parts of the training text, in order. Each part can have its own weight in training."""
    own = [*corpus.train_src, *corpus.mix_src] if corpus.train_src else [str(corpus.name)]
    return [entry.name if entry else ", ".join(own) for entry in corpus.parts]


def with_parts(
    real: Iterable[Chunk], synthetic_files: list[readers.FilePair], corpus: schema.Corpus
) -> Iterator[Chunk]:
    """Yield the chunks of the real text and then of the synthetic files, each with the number of its part."""
    trained = [index for index, entry in enumerate(corpus.sources) if entry.split == "train"]
    # The part number of the first training entry of corpus.sources.
    first = int(bool(corpus.train_src or not corpus.sources))
    for chunk in real:
        yield chunk if chunk.source is None else chunk._replace(part=first + trained.index(chunk.source))
    real_parts = len(corpus.parts) - len(corpus.synthetic)
    for number, (files, entry) in enumerate(zip(synthetic_files, corpus.synthetic, strict=False), real_parts):
        section = corpus.of(entry)
        for chunk in readers.read_files([files], {}):
            yield chunk._replace(part=number, languages=(section.src, section.tgt))


def reused_tokenizer(corpus: schema.Corpus) -> list[Path]:
    """Return the files of the tokenizer that the recipe names, or []."""
    return tokenizer.files_of(Path(corpus.tokenizer.file)) if corpus.tokenizer.file else []


def reused_words(corpus: schema.Corpus) -> list[Path]:
    """Return [file] with the word counts of the reused tokenizer, or [] if that file is missing or not used."""
    file = words.beside(Path(corpus.tokenizer.file)) if corpus.tokenizer.file and corpus.tokenizer.words else None
    return [file] if file and file.is_file() else []


def held_out_set(text: RawText, split: str, corpus: schema.Corpus) -> list[HeldOutPair]:
    """Return the pairs of a held-out set from its own files.

    The pairs are not cleaned, but a BOM at the start and CRs at line ends are removed, and line feeds within a side, as
    in parquet files, become spaces. Raises DataError if a line is too long or not UTF-8, or if the set is empty.
    """
    pairs, source = list[HeldOutPair](), text.splits[split]
    raw_pairs = (
        (*raw, corpus.of_source(chunk.source))
        for chunk in checked_chunks(text, split)
        for raw in zip(chunk.src, chunk.tgt, strict=True)
    )
    for *raw, section in raw_pairs:
        try:
            lines = [str(line, "utf-8" if pairs else "utf-8-sig") for line in raw if line is not None]
            src, tgt = (line.removesuffix("\r").replace("\n", " ") for line in lines)
        except ValueError:
            number = len(pairs) + 1
            raise DataError(f"{source.name}: line {number:,} is not UTF-8, or too long. Correct it") from None
        pairs.append(HeldOutPair(src, tgt, section.src, section.tgt))
    if not pairs:
        raise DataError(f"{source.name} is empty. Choose a file that has text")
    return pairs


def training_chunks(text: RawText, limit: int | None) -> Iterator[Chunk]:
    """Return an iterator over the first `limit` training pairs, or over all if `limit` is None.

    At the end of the text, the iterator checks the number of pairs.
    """
    chunks = checked_chunks(text, "train")
    return first_pairs(chunks, limit) if limit else chunks
