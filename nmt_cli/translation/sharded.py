"""Translate many files with many workers: `nmt translate --shard`, `--check` and `--join`, and their Python API."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nmt_cli import __version__
from nmt_cli.sharding import inputs, job, proof
from nmt_cli.sharding.inputs import Input
from nmt_cli.sharding.worker import Worker
from nmt_cli.storage import artefact
from nmt_cli.system.console import Progress, counted, say
from nmt_cli.system.errors import UsageError
from nmt_cli.system.shard import Shard
from nmt_cli.transformer.config import MODEL_JSON, RECIPE
from nmt_cli.transformer.directory import open_model
from nmt_cli.translation import shortlist
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.translate import Run, TranslateOptions, choose_models, translate_lines
from nmt_cli.translation.translator import Translator
from nmt_cli.translation.writer import report

INCOMPLETE = 1  # exit code of --check


class ShardedTranslation:
    """Translates files in units, which are ranges of lines, and writes the units to the directory or URL `output`.

        files = inputs.find(["text/*.gz"])
        with ShardedTranslation(files, "out", TranslateOptions(models=(Path("runs/base/model"),))) as job:
            job.run(Shard(1, 8))  # one worker of eight
            job.translate(5)  # or a single unit, numbered from 0 to job.units - 1

    Any number of processes and machines may run the same translation at once, with the same arguments. For lines with
    markup, pass the function that translates them as `run`, and its options as `marks`. Raises UsageError for options
    that do not work with units. Raises OutputError if `output` holds units of another model, other options or other
    files.
    """

    def __init__(
        self,
        files: Sequence[Input],
        output: str,
        options: TranslateOptions,
        *,
        run: Run | None = None,
        marks: Mapping[str, Any] | None = None,
        unit_lines: int | None = None,
    ) -> None:
        _check(options, run)
        self._options = options
        self._run = run or translate_lines
        models = choose_models(options.models)
        self.translator = Translator(models, precision=options.precision, workers=options.workers)
        try:
            self._job = job.begin(output, files, self._identity(models, marks or {}), unit_lines)
        except BaseException:
            self.translator.close()
            raise

    def __enter__(self) -> "ShardedTranslation":
        return self

    def __exit__(self, *_: object) -> None:
        self.translator.close()

    def _identity(self, models: Sequence[Path], marks: Mapping[str, Any]) -> dict[str, Any]:
        """Return all values that determine the translation of a line."""
        options = self._options
        search = self.translator.resolved(options.search)
        values = {field.name: getattr(search, field.name) for field in dataclasses.fields(SearchOptions)}
        terms = [dataclasses.astuple(each) for each in search.terms.terms] if search.terms else None
        values["terms"] = artefact.digest(terms) if terms else None
        lists = [model / shortlist.FILE for model in models] if search.shortlist else []
        values["shortlist"] = [artefact.sha256(file) for file in lists if file.is_file()]
        values["sampling"] = dataclasses.asdict(search.sampling) if search.sampling else None
        return {
            "nmt": __version__,
            "model": [_model_digest(model) for model in models],
            "arithmetic": self.translator.backend.about.split(",")[0],
            "search": values,
            "format": options.format,
            "strict": options.strict,
            "marks": dict(marks),
        }

    @property
    def units(self) -> int:
        """The number of units. If no worker has counted the lines of the files yet, count them now."""
        return len(self._job.units)

    def run(self, shard: Shard) -> int:
        """Translate this worker's units, and then units of other workers.

        Return 0, or the exit code of the first unit that failed.
        """
        self._job.plan(shard.start(len(self._job.files)))
        worker = self._worker(shard)
        with Progress(f"translating as worker {shard}", None, "lines") as progress:
            worker.run(progress)
        report(self.translator.counts, self.translator.max_length)
        say(f"worker {shard} translated {counted(worker.lines, 'line')} of {self._total_lines:,}")
        if not worker.failures:
            return 0
        say(f"{counted(len(worker.failures), 'unit')} failed. The next run tries them again")
        return worker.failures[0][1].exit_code

    def translate(self, number: int) -> str:
        """Translate one unit, unless it is already translated. Return "", or the reason for its failure.

        Raises UsageError if there is no unit with this number.
        """
        if not 0 <= number < self.units:
            raise UsageError(f"there is no unit {number}. There are {self.units:,}, numbered from 0")
        failure = self._worker(Shard(1, 1)).do_unit(self._job.units[number])
        return failure.reason if failure else ""

    @property
    def _total_lines(self) -> int:
        return sum(unit.lines for unit in self._job.units)

    def _worker(self, shard: Shard) -> Worker:
        one_line = self._options.search.n_best == 1 or self._options.format == "jsonl"
        return Worker(self._job, shard, self._translate, one_line=one_line, stop=self.translator.close)

    def _translate(self, source: int, target: int, first: int, all_read: Callable[[], None]) -> None:
        progress = Progress("", None, "lines", every=math.inf)  # shows nothing: the worker shows its own progress
        options = replace(self._options, first_line=first, is_unit=True, all_read=all_read)
        self._run(self.translator, options, source, target, progress)


def _model_digest(model: Path) -> str:
    """Return a digest of the files that determine a translation. The recipe counts only if there is no model.json."""
    files = open_model(model).manifest["files"]
    return artefact.digest({name: file for name, file in files.items() if name != RECIPE or MODEL_JSON not in files})


def _check(options: TranslateOptions, run: Run | None) -> None:
    if options.prefix or options.score_pairs:
        raise UsageError(f"--shard does not support {'--prefix' if options.prefix else '--score-pairs'}. Remove one")
    if run and options.search.sampling:
        raise UsageError("--shard does not support --sample with markup or --protect. Leave out --shard or --sample")


def check(files: Sequence[str], output: str) -> int:
    """Print file, first line, last line and reason for each unit without a valid result.

    Return 0 if all units have a valid result, and INCOMPLETE otherwise.
    """
    checked = job.resume(output, inputs.find(files))
    number = 0
    for unit, reason in proof.problems(checked):
        number += 1
        print(checked.files[unit.file].name, unit.first, unit.last, reason, sep="\t")
    lines = counted(sum(unit.lines for unit in checked.units), "line")
    units = counted(len(checked.units), "unit")
    of_all = f"{lines} of {counted(len(checked.files), 'file')}"
    say(f"{number:,} of {units} missing or damaged (total: {of_all})" if number else f"complete: {units}, {of_all}")
    return INCOMPLETE if number else 0


def join(files: Sequence[str], output: str, target: str | None) -> int:
    """Write the translation of each file. Return 0.

    `target` is a directory (default: the directory of the units). If there is only one input, it may also be a file. If
    a unit has no valid result, write nothing and raise DataError.
    """
    for path in proof.join(job.resume(output, inputs.find(files)), target):
        say(path)
    return 0
