"""Run COMET (unbabel-comet 2.2) in a separate Python environment, because its requirements conflict with ours."""

import json
import math
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sacrebleu.metrics.base import Metric, Score, Signature

from nmt_cli.system.errors import DataError, MissingError, UsageError

DEFAULT_MODEL = "Unbabel/wmt22-comet-da"
INSTALL = "Run python -m venv comet && comet/bin/pip install unbabel-comet, and pass --comet-python comet/bin/python"


class Comet(Metric):
    """A sacreBLEU metric over COMET scores that are already computed. The corpus score is their mean times 100.

    `segments` maps the lines of each system to the scores of these lines.
    """

    _SIGNATURE_TYPE = Signature

    def __init__(self, segments: dict[tuple[str, ...], list[float]], model: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.segments = segments
        self.model = model
        self.num_refs = 1

    def _extract_corpus_statistics(self, hypotheses: Sequence[str], references: Any) -> list[list[float]]:
        return [[100 * score, 1.0] for score in self.segments[tuple(hypotheses)]]

    def _aggregate_and_compute(self, stats: Any) -> Score:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: Any) -> Score:
        return Score("COMET", float(stats[0] / stats[1]))

    def get_signature(self) -> Signature:
        signature = super().get_signature()
        signature.update("version", f"sacrebleu-{signature.info['version']}")  # sacreBLEU computes only the intervals
        signature.update("model", self.model)
        return signature

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[Any]:
        raise NotImplementedError  # COMET needs the source, which is not passed here


def run_comet(
    python: Path | None, model: str, systems: Sequence[list[str]], source: list[str] | None, references: list[list[str]]
) -> Comet:
    """Score the translations of all systems with COMET, in another process, and return the metric.

    `python` is a Python (with a name such as python3.11) that can run the module comet.cli.score, or a program that
    takes the options of this module. Raise UsageError if an input is missing, MissingError if `python` cannot be run,
    and DataError if COMET fails.
    """
    if python is None:
        raise UsageError(f"--metric comet needs --comet-python, a Python with unbabel-comet. {INSTALL}")
    if source is None or len(references) != 1:
        raise UsageError("--metric comet needs the sources (--source FILE, --corpus or --test-set) and one reference")
    if not python.is_file():
        raise MissingError(f"--comet-python {python} is not a file. {INSTALL}")
    module = ["-m", "comet.cli.score"] if re.fullmatch(r"python[\d.]*", python.name) else []
    command = [str(python.absolute()), *module]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("source", "reference", *(f"system{i}" for i in range(len(systems))))]
        for file, lines in zip(files, [source, references[0], *systems], strict=True):
            text = "".join(line.replace("\r", " ") + "\n" for line in lines)  # COMET would split a line at "\r"
            file.write_text(text, "utf-8")
        output = Path(folder, "scores.json")
        command += ["-s", str(files[0]), "-r", str(files[1]), "-t", *map(str, files[2:]), "--model", model]
        command += ["--quiet", "--only_system", "--to_json", str(output)]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S603
        except OSError as error:
            raise MissingError(f"cannot run {python} (--comet-python): {error.strerror}. {INSTALL}") from None
        if done.returncode or not output.is_file():
            message = (done.stderr.decode(errors="replace").strip().split("\n") or [""])[-1][:200]
            advice = INSTALL if "No module named" in message else "Run COMET by hand for details"
            raise DataError(f"COMET, run by {python}, failed with code {done.returncode}: {message}. {advice}")
        found = _read(output, [str(file) for file in files[2:]], len(source))
    return Comet({tuple(lines): scores for lines, scores in zip(systems, found, strict=True)}, model)


def _read(output: Path, systems: list[str], count: int) -> list[list[float]]:
    """Return the segment scores of every system from the file that COMET wrote."""
    try:
        data = json.loads(output.read_bytes())
        scores = [[float(row["COMET"]) for row in data[name]] for name in systems]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"COMET wrote unreadable scores ({error!r:.80}). Install unbabel-comet 2.2") from None
    if any(len(each) != count or not all(map(math.isfinite, each)) for each in scores):
        raise DataError(f"COMET did not score all {count:,} lines. Run COMET by hand for details")
    return scores
