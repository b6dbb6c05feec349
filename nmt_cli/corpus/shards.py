"""Prepare a corpus on several machines that share a directory (the command `nmt prepare --shard I/N`).

The result is the same, byte for byte, as on one machine. Each shard cleans and encodes every N-th part of the text, and
finds repeated pairs in every N-th bucket of hashes (see parts.py). Shard 1 also trains the tokenizer and joins the
parts. If a shard is killed, its finished parts are kept. Any shard may run again, even with another N.
"""

import functools
import itertools
import operator
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli import __version__
from nmt_cli.corpus import (
    cleaning,
    cleaning_report,
    near_duplicates,
    parts,
    prepare,
    stages,
    store,
    synthetic,
    tokenizer,
)
from nmt_cli.corpus import held_out as held_out_sets
from nmt_cli.corpus.held_out import HeldOut
from nmt_cli.corpus.parts import Cleaned, numbered
from nmt_cli.corpus.prepare import Preparation, PrepareOptions
from nmt_cli.corpus.raw_text import RawText
from nmt_cli.corpus.readers import Chunk
from nmt_cli.recipe import loading, schema
from nmt_cli.storage import artefact
from nmt_cli.system import console
from nmt_cli.system.errors import BusyError, OutputError, UsageError
from nmt_cli.system.shard import Shard

POLL_SECONDS = 5.0
WORK = {  # for each step, the words that messages use for its unfinished work
    "cleaned": "parts are not cleaned",
    "repeated": "buckets of hashes are not compared",
    "encoded": "parts are not encoded",
}
MAX_LISTED = 8  # maximum number of shards that a message lists


def prepare_shard(corpus: schema.Corpus, out: Path, options: PrepareOptions, shard: Shard) -> Path:
    """Do the work of one shard, and return `out`. The last step of shard 1 writes the corpus to `out`.

    Raises BusyError if the work of other shards is missing, unless `options.wait` is set. Raises OutputError if the
    shards have different settings or texts, and UsageError if `options.overwrite` is set.
    """
    if options.overwrite:
        raise UsageError(f"--overwrite cannot be combined with --shard. Remove {out} first")
    directory = artefact.beside(out, "", ".parts")
    work = directory / f"work-{shard.number}"
    preparation = _ShardPreparation(corpus, out, work, options)
    with artefact.os_errors(directory):
        artefact.restore(out)
        if directory.exists() and not artefact.was_locked(directory):
            raise OutputError(f"{directory} exists, but nmt did not create it. Move it elsewhere")
        artefact.make_directory(directory)
        (directory / artefact.LOCK).touch()  # marks the directory as created by nmt
        with artefact.locked(work, "this shard's work directory"), stages.Pool(options.processes) as pool:
            try:
                if not preparation.is_finished():
                    preparation.run_shard(shard, pool)
            except _CompletedError:
                preparation.is_finished()
            finally:
                artefact.remove_tree(work)
        if out.exists():
            console.say(f"{out} is prepared and complete")
            artefact.remove_tree(directory)
    return out


class _CompletedError(Exception):
    """Raised if another shard has committed the corpus."""


def _numbered_result(function: Callable[[Any], Any], job: tuple[int, Any]) -> tuple[int, Any]:
    return job[0], function(job[1])


class _ShardPreparation(Preparation):
    """Runs the steps of one shard."""

    shard: Shard
    pool: stages.Pool

    @property
    def directory(self) -> Path:
        return self.work.parent

    def run_shard(self, shard: Shard, pool: stages.Pool) -> None:
        """Run all steps in order. Each step continues where an earlier run stopped."""
        self.shard = shard
        self.pool = pool
        self.make_directories()
        self._agree()
        text = self.open_text()
        held_out = self._held_out(text)
        self._clean(text, held_out)
        total = int(self._text_entries()["parts"])
        self._wait_for(lambda: self._unfinished("cleaned", total))
        cleaned, stats = self._cleaned()
        warnings = cleaning_report.warn(stats, text, prepare.part_names(self.corpus), self.options.strict)
        if not cleaned.pairs:
            stats.add(parts.stats_of(self._text_entries()["synthetic"]))
            cleaning_report.remaining_pairs(stats, text)  # raises DataError, because no pairs are left
        self._find_repeated(cleaned)
        self._wait_for(lambda: self._unfinished("repeated", cleaned.buckets))
        self._train_tokenizer(cleaned)
        self._wait_for(self._unfinished_tokenizer)
        self._encode(cleaned)
        if self.shard.number > 1:
            console.say(f"shard {self.shard} is finished. Shard 1 will join the parts into {self.out}")
            return
        self._wait_for(lambda: self._unfinished("encoded", cleaned.parts))
        self._join(text, held_out, cleaned, stats, warnings)

    def _is_mine(self, number: int) -> bool:
        return number % self.shard.workers == self.shard.number - 1

    def _missing(self, step: str, total: int) -> list[int]:
        present = parts.numbers_in(self.directory / step)
        return [number for number in range(total) if number not in present]

    def _unfinished(self, step: str, total: int) -> str:
        """Return a message about the unfinished work of a step and the shards to run, or "" if the step is finished."""
        missing = self._missing(step, total)
        shards = sorted({number % self.shard.workers + 1 for number in missing})
        listed = ", ".join(f"{number}/{self.shard.workers}" for number in shards[:MAX_LISTED])
        listed += " and others" if len(shards) > MAX_LISTED else ""
        return f"{len(missing)} of {total} {WORK[step]} yet. Run nmt prepare with --shard {listed}" if missing else ""

    def _unfinished_tokenizer(self) -> str:
        present = artefact.present(self.directory / "tokenizer")
        return "" if present else f"there is no tokenizer yet. Run nmt prepare with --shard 1/{self.shard.workers}"

    def _wait_for(self, unfinished: Callable[[], str]) -> None:
        """Wait for other shards to finish a step. `unfinished` returns a message, or "" if the step is finished.

        Do not wait, but raise _CompletedError, if another shard has committed the corpus. Otherwise, raise BusyError
        unless `options.wait` is set.
        """
        told = ""
        while reason := unfinished():
            if artefact.present(self.out):
                raise _CompletedError
            if not self.options.wait:
                raise BusyError(f"{reason}, then repeat this command, or pass --wait")
            if reason != told:
                console.say(f"waiting: {reason}")
                told = reason
            time.sleep(POLL_SECONDS)

    def _agree(self) -> None:
        """Store the settings and inputs. Raise OutputError if another shard has stored different ones."""
        synthetic_files = synthetic.files_of(self.corpus)
        reused = [*prepare.reused_tokenizer(self.corpus), *prepare.reused_words(self.corpus)]
        models = [*reused, *(file for file in synthetic_files if file.name == artefact.MANIFEST)]
        settings = {
            "settings": prepare.prepared_settings(self.corpus),
            "inputs": {str(file): file.stat().st_size for file in [*self.source.local_files(), *synthetic_files]},
            "models": {str(file): artefact.sha256(file) for file in models},
            "part_pairs": parts.PART_PAIRS,
            "version": __version__,
        }
        directory = self.directory / "job"
        if not artefact.present(directory):
            self.check_room()
            parts.keep(directory, {}, settings)
        if differences := loading.differences(parts.entries_of(directory), settings):
            found = f"{self.directory} has parts of another preparation ({'; '.join(differences)[:500]})"
            raise OutputError(f"{found}. Give all shards the same options, or remove the directory to start again")

    def _held_out(self, text: RawText) -> HeldOut:
        """Return the held-out pairs. The first shard that calls this method stores them for all shards."""
        directory = self.directory / "held-out"
        if not artefact.present(directory):
            held_out = self.hold_out(text)
            folder = self.work / "held-out"
            folder.mkdir()
            held_out_sets.write(folder, held_out)
            files = {file.name: file.read_bytes() for file in folder.iterdir()}
            parts.keep(directory, files, {"languages": held_out_sets.languages_of(held_out)})
        return held_out_sets.read(directory, parts.entries_of(directory, content=True)["languages"])

    def _text_entries(self) -> dict[str, Any]:
        return parts.entries_of(self.directory / "text")

    def _clean(self, text: RawText, held_out: HeldOut) -> None:
        """Clean those parts of this shard that are not cleaned yet. Store the number of parts."""
        present = parts.numbers_in(self.directory / "cleaned")
        all_read = artefact.present(self.directory / "text")
        if all_read and not any(map(self._is_mine, self._missing("cleaned", int(self._text_entries()["parts"])))):
            return
        self._translate(held_out)
        files, drops = self.make_synthetic(held_out)
        hashes = prepare.held_out_hashes(held_out, self.corpus)
        parts_read = [0]  # number of parts that have begun; a list, so that `jobs` can change it

        def jobs() -> Iterator[tuple[int, Chunk]]:
            pairs = parts.PART_PAIRS  # as if a part were full, so that the first chunk begins part 0
            for chunk in prepare.training_text(text, files, self.corpus):
                if pairs >= parts.PART_PAIRS:
                    parts_read[0] += 1
                    pairs = 0
                pairs += len(chunk.src)
                number = parts_read[0] - 1
                if self._is_mine(number) and number not in present:
                    yield number, chunk

        work = functools.partial(cleaning.clean_chunk, self.corpus, hashes)
        with console.Progress("cleaning", None, "pairs") as progress:
            for number, results in self._results(work, jobs()):
                stats = cleaning.CleaningStats()
                for *_, counts in results:
                    stats.add(counts)
                src, tgt, pair_hashes = (b"".join(result[i] for result in results) for i in range(3))
                entries = {"pairs": len(pair_hashes) // parts.HASH_BYTES, "stats": parts.plain(stats)}
                files_of_part = {"src": src, "tgt": tgt, **parts.sorted_hashes(pair_hashes)}
                parts.keep(numbered(self.directory / "cleaned", number), files_of_part, entries)
                progress.advance(stats.read)
        sha256 = {str(file): text.hashes[file] for file in text.files if file in text.hashes}
        entries = {"parts": parts_read[0], "sha256": sha256, "synthetic": parts.plain(drops)}
        if not artefact.present(self.directory / "text"):
            parts.keep(self.directory / "text", {}, entries)
        self._check_text(entries)

    def _translate(self, held_out: HeldOut) -> None:
        """Translate this shard's share of the text of corpus.synthetic.

        Shards other than 1 then wait until shard 1 has joined the translations of all shards, in `make_synthetic`.
        """
        files = self.translate_share(held_out, self.shard)

        def unfinished() -> str:
            if all(file.is_file() for file in files):
                return ""
            return f"the synthetic text is not joined yet. Run nmt prepare with --shard 1/{self.shard.workers}"

        if self.shard.number > 1:
            self._wait_for(unfinished)

    def _results(self, work: Callable[[Any], Any], jobs: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, list[Any]]]:
        """Run numbered jobs in the pool. Yield (number, results) for each series of jobs with the same number."""
        answers = self.pool.map(functools.partial(_numbered_result, work), jobs)
        for number, group in itertools.groupby(answers, key=operator.itemgetter(0)):
            yield number, [result for _, result in group]

    def _check_text(self, own: dict[str, Any]) -> None:
        """Raise OutputError if another shard has read different text. `own` has this shard's hashes and part count."""
        stored = self._text_entries()
        hashes = stored["sha256"]
        changed = [file for file, sha256 in own["sha256"].items() if hashes.get(file, sha256) != sha256]
        if changed or stored["parts"] != own["parts"]:
            found = f"{changed[0] if changed else 'the training text'} is not the same on another shard"
            raise OutputError(f"{found}. Remove {self.directory} and start all shards again")

    def _cleaned(self) -> tuple[Cleaned, cleaning.CleaningStats]:
        """Return the cleaned text of all parts, and the counts of dropped pairs."""
        stats, starts = cleaning.CleaningStats(), [0]
        for number in range(int(self._text_entries()["parts"])):
            entries = parts.entries_of(numbered(self.directory / "cleaned", number))
            stats.add(parts.stats_of(entries["stats"]))
            starts.append(starts[-1] + int(entries["pairs"]))
        ends = np.cumsum(prepare.part_sizes(stats, self.corpus))
        drops = tuple(section.cleaning.drop_duplicates for section in self.corpus.trained)
        return Cleaned(self.directory, tuple(starts), ends, drops), stats

    def _find_repeated(self, cleaned: Cleaned) -> None:
        for bucket in filter(self._is_mine, self._missing("repeated", cleaned.buckets)):
            positions = cleaned.find_repeated(bucket)
            parts.keep(numbered(self.directory / "repeated", bucket), {"positions": positions.tobytes()}, {})

    def _train_tokenizer(self, cleaned: Cleaned) -> None:
        """On shard 1, train the tokenizer or copy the reused one. Store it together with the held-out text."""
        if self.shard.number > 1 or artefact.present(self.directory / "tokenizer"):
            return
        held_out_files = (self.directory / "held-out").glob("*.???")  # dev.src and so on, but not manifest.json
        files = {file.name: file.read_bytes() for file in held_out_files}
        if reused := prepare.reused_tokenizer(self.corpus):
            tokenizer.copy(reused[0], self.work / "tokenizer.model")
            copies = tokenizer.files_of(self.work / "tokenizer.model")
            files |= {file.name: file.read_bytes() for file in copies}
        sample = functools.partial(cleaned.sample, self.corpus.seed)
        files |= stages.train_tokenizer(sample, cleaned.pairs, self.corpus, self.pool)
        parts.keep(self.directory / "tokenizer", files, {})

    def _encode(self, cleaned: Cleaned) -> None:
        """Encode those parts of this shard that are not encoded yet."""
        model, ends = self.directory / "tokenizer" / "tokenizer.model", cleaned.ends
        parts.entries_of(model.parent, content=True)
        vocabularies, _ = stages.load_afresh(model, self.corpus)
        mine = list(filter(self._is_mine, self._missing("encoded", cleaned.parts)))
        jobs = ((part, chunk) for part in mine for chunk in cleaned.chunks(part))
        work = functools.partial(stages.encode_chunk, model, self.corpus)
        with console.Progress("encoding", None, "pairs") as progress:
            for part, results in self._results(work, jobs):
                start = cleaned.starts[part]
                stats, pairs_by_part = cleaning.CleaningStats(), np.zeros(len(ends), np.int64)
                flags = np.zeros_like(results[0][-1])
                for _, _, remaining, drops, chunk_flags in results:
                    pairs_by_part += stages.pairs_of_parts(start + remaining, ends)
                    start += len(remaining) + drops.dropped.total()
                    stats.add(drops)
                    flags |= chunk_flags
                entries = {"left": pairs_by_part.tolist(), "stats": parts.plain(stats)}
                files = {**parts.encoded_files(results, vocabularies), "flags": flags.tobytes()}
                parts.keep(numbered(self.directory / "encoded", part), files, entries)
                progress.advance(start - cleaned.starts[part])
        for part in mine:
            if cleaned.starts[part] == cleaned.starts[part + 1]:  # cleaning dropped all pairs of this part
                parts.keep(numbered(self.directory / "encoded", part), {}, {})

    def _join(
        self, text: RawText, held_out: HeldOut, cleaned: Cleaned, stats: cleaning.CleaningStats,
        warnings: list[str],
    ) -> None:  # fmt: skip
        """Write the corpus from the encoded parts, and remove the directory of the parts."""
        directory = self.work / "corpus"
        for file in (self.directory / "tokenizer").iterdir():
            if file.name != artefact.MANIFEST:
                artefact.write_file(directory / file.name, file.read_bytes())
        vocabularies, flags = stages.load_afresh(directory / "tokenizer.model", self.corpus)
        pairs_by_part = np.zeros(len(self.corpus.parts), np.int64)
        writers = {name: store.SideWriter(directory, name, size) for name, size in vocabularies.items()}
        types = {name: store.id_type(size) for name, size in vocabularies.items()}
        with writers["src"], writers["tgt"]:
            for part in range(cleaned.parts):
                if cleaned.starts[part] == cleaned.starts[part + 1]:
                    continue
                folder = numbered(self.directory / "encoded", part)
                entries = parts.append_encoded(folder, writers, types)
                pairs_by_part += entries["left"]
                stats.add(parts.stats_of(entries["stats"]))
                flags |= np.frombuffer((folder / "flags").read_bytes(), np.uint8)
        stats.add(parts.stats_of(self._text_entries()["synthetic"]))
        near = near_duplicates.summary(directory, flags)
        tokens = {name: writer.tokens for name, writer in writers.items()}
        text.hashes.update({Path(file): sha256 for file, sha256 in self._text_entries()["sha256"].items()})
        self.commit(text, held_out, stats, warnings, pairs_by_part, tokens, near)
        artefact.remove_tree(self.directory)
