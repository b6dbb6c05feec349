"""The report command: everything about a run on one page."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli import __version__, artefact, recipe
from nmt_cli.corpus.store import Corpus
from nmt_cli.reporting import paper
from nmt_cli.reporting.charts import Line, line_chart
from nmt_cli.reporting.page import render
from nmt_cli.scoring.report import Report
from nmt_cli.scoring.score import ScoreOptions, evaluate
from nmt_cli.training import checkpoints
from nmt_cli.training.optim import noam_rate
from nmt_cli.training.run import RunFiles, read_run
from nmt_cli.transformer.model import parameter_count

Scorer = Callable[[ScoreOptions, list[str]], Report]


@dataclass(frozen=True)
class _Run:
    """A run with its scores on the test set and its number of parameters, where they can be known."""

    files: RunFiles
    name: str
    averaged: list[int]  # steps of the checkpoints
    scores: Report | None
    parameters: int | None
    changes: list[str]  # from the first run of the page
    table_3: paper.Row | None


def report(
    run: Path,
    compare: Sequence[Path] = (),
    out: Path | None = None,
    data: Path | None = None,
    score_trees: Scorer | None = None,
) -> Path:
    """Write a run's report, with the runs in `compare` beside it, as one HTML file, and return where it is."""
    opened = [read_run(directory, data) for directory in (run, *compare)]
    first, settings = opened[0], opened[0].settings
    runs = [_open(files, settings, score_trees) for files in opened]
    hashed = [run / name for name in ("recipe.yaml", "dev.hyp", "test.hyp") if (run / name).exists()]
    sampled = [(record["step"], record["samples"]) for record in first.validations if record.get("samples")]
    near, departures = paper.departures(settings)
    values = {
        "title": f"{run.name}: report",
        "run": runs[0],
        "runs": runs,
        "version": __version__,
        "charts": list(filter(None, _charts(runs))),
        "dev": first.corpus.lines("dev") if first.corpus else ([], []),
        "samples": sampled[: -1 : len(sampled) // 5 + 1] + sampled[-1:],  # some, the last among them
        "data": _data(first.corpus) if first.corpus else None,
        "near": near,
        "departures": [change.replace(": ", " -> ", 1).split(" -> ") for change in departures],
        "recipe": recipe.to_yaml(settings).decode().split("\n"),
        "checkpoints": list(_checkpoints(runs[0])),
        "hashes": {file.name: artefact.sha256(file) for file in hashed},
    }
    target = out or run / "report.html"
    artefact.replace_file(target, render("report.html", values))
    return target


def _open(files: RunFiles, first: recipe.Recipe, score_trees: Scorer | None) -> _Run:
    settings, corpus, scores, parameters = files.settings, files.corpus, None, None
    hypotheses = files.translations("test")
    score = score_trees if settings.corpus.format == "trees" else evaluate
    if corpus:
        if score and hypotheses and corpus.lines("test")[1]:
            metrics = ("bleu", "chrf") if corpus.manifest.get("generated") else ()
            scores = score(ScoreOptions(corpus=corpus.directory, metrics=metrics, details=True), hypotheses)
        parameters = parameter_count(settings.model, int(corpus.manifest["vocabulary_size"]))
    changes = recipe.differences(recipe.to_plain(first), recipe.to_plain(settings))
    changes = [change for change in changes if paper.matters(change) or ".seed:" in change]
    row = paper.table_3(settings) if str(settings.corpus.name).startswith("wmt14-en-de") else None
    averaged = list((files.model or {}).get("steps", []))
    return _Run(files, files.directory.name, averaged, scores, parameters, changes, row)


def _charts(runs: Sequence[_Run]) -> Iterator[dict[str, Any] | None]:
    first, single = runs[0].files, len(runs) == 1
    training, expect = first.settings.training, first.settings.expect

    def lines(key: str, name: str = "", colour: int = 0, dashed: bool = False) -> Iterator[Line]:
        for i, run in enumerate(runs):
            records = run.files.validations if key.startswith("dev_") else run.files.steps
            points = [(r["step"], float(r[key])) for r in records if r.get(key) is not None]
            label = name if single else f"{run.name} {name}"
            yield Line(label.strip(), points, colour if single else i, dashed)

    def expected(figures: list[float]) -> Line:
        end = first.validations[-1]["step"] if first.validations else 0
        points = zip(expect.dev_steps, figures, strict=False)
        return Line("expected", [(step, figure) for step, figure in points if step <= end], 5, True)

    stride = max(1, training.steps // 200)
    steps, d_model = [1, *range(stride, training.steps + 1, stride)], first.settings.model.d_model
    rates = [(step, noam_rate(step, d_model, training)) for step in steps]
    band = (expect.bleu[0], expect.bleu[1], "expected of the model on test") if expect.bleu else None
    marks = runs[0].averaged if single else ()
    losses = [*lines("nll", "training", 0, True), *lines("dev_nll", "dev", 1)]
    perplexities = [*lines("dev_perplexity"), expected(expect.dev_perplexity)]
    yield from (
        line_chart("Loss, nats per target token", losses, None, marks, True),
        line_chart("Dev perplexity per token", perplexities, None, marks, True),
        line_chart("Dev BLEU", [*lines("dev_bleu"), expected(expect.dev_bleu)], band, marks),
        line_chart("Learning rate", [*lines("rate", "used", 1), Line("the recipe's", rates, 5, True)], None, marks),
        line_chart("Gradient norm", [*lines("gradient_norm")], None, marks, True),
        line_chart("Target tokens per second", [*lines("tgt_tokens_per_second")], None, marks),
    )


def _data(corpus: Corpus) -> dict[str, Any]:
    lengths = {"source": corpus.src.lengths(), "target": corpus.tgt.lengths()}
    longest, lines = max(int(np.quantile(side, 0.995)) for side in lengths.values()), []
    for i, (name, side) in enumerate(lengths.items()):
        counts = enumerate(np.bincount(side, minlength=longest + 1)[: longest + 1].tolist())
        lines.append(Line(f"{name}, {side.mean():.1f} on average", [*counts], i))
    cleaning = artefact.read_json(corpus.directory / "cleaning.json")
    reasons = {**cleaning.get("dropped", {}), **cleaning.get("noted", {})}
    return {
        "tokens": {name: int(side.sum()) for name, side in lengths.items()},
        "lengths": line_chart("Training sentences by their length in tokens", lines),
        "cleaning": cleaning,
        "dropped": {reason: entry for reason, entry in reasons.items() if entry["pairs"]},
        "repaired": {what: count for what, count in cleaning.get("repaired_lines", {}).items() if count},
    }


def _checkpoints(run: _Run) -> Iterator[dict[str, Any]]:
    directory, model = run.files.directory, run.files.model or {}
    hashes = dict(zip(run.averaged, model.get("checkpoints", []), strict=False))
    losses = {record["step"]: record["dev_nll"] for record in run.files.validations}
    best = min((step for step in losses if losses[step] is not None), key=lambda step: losses[step], default=None)
    for step in sorted({*checkpoints.steps_in(directory), *run.averaged}):
        size = sum(file.stat().st_size for file in checkpoints.directory_of(directory, step).glob("*"))
        notes = [note for note, true in (("averaged", step in run.averaged), ("best", step == best)) if true]
        yield {"step": step, "bytes": size, "loss": losses.get(step), "notes": notes, "hash": hashes.get(step, "")}
