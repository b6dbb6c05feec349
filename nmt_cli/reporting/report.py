"""Implementation of `nmt report`: describe a run on one HTML page."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nmt_cli import __version__
from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe import loading, schema
from nmt_cli.reporting import paper
from nmt_cli.reporting.charts import Line, line_chart
from nmt_cli.reporting.page import render
from nmt_cli.scoring.score import ScoreOptions, Scorer, evaluate
from nmt_cli.storage import artefact
from nmt_cli.training.optim import noam_rate
from nmt_cli.training.run import RunFiles, read_run
from nmt_cli.transformer.directory import parameter_count


def report(
    run: Path,
    compare: Sequence[Path] = (),
    out: Path | None = None,
    data: Sequence[Path] = (),
    score_trees: Scorer | None = None,
) -> Path:
    """Write a report that compares a run with the runs in `compare`. Return the path of the HTML file.

    By default, `out` is report.html in the run. The corpus that a run was trained on is looked up in `data`, and then
    at its default path. Raise DataError if `data` is not empty and lacks the corpus of the first run. `score_trees`
    scores runs on trees. If it is None, these runs have no scores.
    """
    opened = [read_run(run, _own(run, data) or next(iter(data), None))]
    opened += [read_run(directory, _own(directory, data)) for directory in compare]
    first, settings = opened[0], opened[0].settings
    hashed = [run / name for name in ("recipe.yaml", "dev.hyp", "test.hyp") if (run / name).exists()]
    sampled = [(record["step"], record["samples"]) for record in first.validations if record.get("samples")]
    near, departures = paper.departures(settings)
    values = {
        "title": f"{run.resolve().name}: report",
        "runs": [_compared(files, settings, score_trees) for files in opened],
        "version": __version__,
        "charts": list(filter(None, _charts(opened))),
        "dev": first.corpus.lines("dev") if first.corpus else ([], []),
        "samples": sampled[: -1 : len(sampled) // 5 + 1] + sampled[-1:],  # at most six, including the last
        "cleaning": artefact.read_json(first.corpus.directory / "cleaning.json") if first.corpus else None,
        "near": near,
        "departures": [change.replace(": ", " -> ", 1).split(" -> ") for change in departures],
        "recipe": loading.to_yaml(settings).decode().split("\n"),
        "hashes": {file.name: artefact.sha256(file) for file in hashed},
    }
    target = out or run / "report.html"
    artefact.replace_file(target, render("report.html", values))
    return target


def _own(run: Path, data: Sequence[Path]) -> Path | None:
    """Return the corpus that a run was trained on, if `data` includes it."""
    if not (run / "corpus.json").is_file():
        return None
    trained_on = artefact.read_json(run / "corpus.json").get("corpus")
    return next((path for path in data if open_corpus(path).identity == trained_on), None)


def _compared(files: RunFiles, first: schema.Recipe, score_trees: Scorer | None) -> dict[str, Any]:
    """Return the values of a run for the page, such as scores, and the changes from the first run's recipe `first`."""
    settings = files.settings
    corpus = files.corpus
    hypotheses = files.translations("test")
    scores = None
    score = score_trees if settings.corpus.format == "trees" else evaluate
    if corpus and score and hypotheses and corpus.lines("test")[1]:
        metrics = ("bleu", "chrf") if corpus.manifest.get("generated") else ()
        scores = score(ScoreOptions(corpus=corpus.directory, metrics=metrics, details=True), hypotheses)
    changes = loading.differences(first.model_dump(), settings.model_dump())
    complete = settings.training.patience or (files.steps and files.steps[-1]["step"] >= settings.training.steps)
    return {
        "files": files,
        "name": files.directory.resolve().name,
        "averaged": (files.model or {}).get("steps", []),
        "scores": scores,
        "band": settings.expect.bleu if complete else [],  # do not compare an unfinished run with the expected range
        "parameters": parameter_count(settings.model, int(corpus.manifest["vocabulary_size"])) if corpus else None,
        "changes": [change for change in changes if paper.matters(change) or ".seed:" in change],
        "table_3": paper.table_3(settings) if str(settings.corpus.name).startswith("wmt14-en-de") else None,
    }


def _charts(runs: Sequence[RunFiles]) -> Iterator[dict[str, Any] | None]:
    first = runs[0]
    single = len(runs) == 1
    training = first.settings.training
    expect = first.settings.expect

    def lines(key: str, name: str = "", color: int = 0, dashed: bool = False) -> Iterator[Line]:
        for i, run in enumerate(runs):
            records = run.validations if key.startswith("dev_") else run.steps
            points = [(r["step"], float(r[key])) for r in records if r.get(key) is not None]
            label = name if single else f"{run.directory.name} {name}"
            yield Line(label.strip(), points, color if single else i, dashed)

    def expected(figures: list[float]) -> Line:
        end = first.validations[-1]["step"] if first.validations else 0
        points = zip(expect.dev_steps, figures, strict=False)
        return Line("expected", [(step, figure) for step, figure in points if step <= end], 5, True)

    stride = max(1, training.steps // 200)
    steps, d_model = [1, *range(stride, training.steps + 1, stride)], first.settings.model.d_model
    rates = [(step, noam_rate(step, d_model, training)) for step in steps]
    marks = (first.model or {}).get("steps", []) if single else []
    losses = [*lines("nll", "training", 0, True), *lines("dev_nll", "dev", 1)]
    perplexities = [*lines("dev_perplexity"), expected(expect.dev_perplexity)]
    yield from (
        line_chart("Loss, nats per target token", losses, marks, True),
        line_chart("Dev perplexity per token", perplexities, marks, True),
        line_chart("Dev BLEU", [*lines("dev_bleu"), expected(expect.dev_bleu)], marks),
        line_chart("Learning rate", [*lines("rate", "used", 1), Line("the recipe's", rates, 5, True)], marks),
        line_chart("Gradient norm", [*lines("gradient_norm")], marks, True),
        line_chart("Target tokens per second", [*lines("tgt_tokens_per_second")], marks),
    )
