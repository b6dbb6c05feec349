"""The report command: everything about a run on one page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nmt_cli import __version__, artefact, recipe
from nmt_cli.console import duration
from nmt_cli.corpus.toy import pronoun_accuracy
from nmt_cli.reporting import paper
from nmt_cli.reporting.charts import Chart, Line, line_chart
from nmt_cli.reporting.page import render
from nmt_cli.scoring.inputs import ScoreOptions
from nmt_cli.scoring.score import evaluate
from nmt_cli.training import checkpoints
from nmt_cli.training.optim import noam_rate
from nmt_cli.training.run import RunFiles, read_run
from nmt_cli.transformer.model import parameter_count
from nmt_cli.transformer.weights import WEIGHTS

SHOWN_VALIDATIONS = 6  # of each development sentence
Rows = list[list[str]]


@dataclass(frozen=True)
class _Run:
    """A run with its scores on the test set and its number of parameters, where they can be known."""

    files: RunFiles
    scores: Any
    parameters: int | None

    @property
    def name(self) -> str:
        return self.files.directory.name

    @property
    def generated(self) -> bool:
        return bool(self.files.corpus and self.files.corpus.manifest.get("generated"))

    @property
    def averaged(self) -> list[int]:
        return list(self.files.model.get("steps", [])) if self.files.model else []

    def lines(self, split: str) -> tuple[list[str], list[str]]:
        return self.files.corpus.lines(split) if self.files.corpus else ([], [])


def report(run: Path, compare: Sequence[Path] = (), out: Path | None = None, data: Path | None = None) -> Path:
    """Write a run's report as one HTML file, and return where it is.

    Args:
        run: such as runs/base.
        compare: more runs, laid beside it.
        out: the file; None for report.html in the run.
        data: the prepared corpus; None for data/<corpus>.

    Raises:
        MissingError: there is no such run.
        DataError: it, or the corpus, is damaged, or one does not belong to the other.
    """
    runs = [_open(read_run(directory, data)) for directory in (run, *compare)]
    first = runs[0]
    values = {
        "title": f"{first.name}: report",
        "run": first,
        "runs": runs,
        "version": __version__,
        "tiles": list(_tiles(first)),
        "scores": [row for run in runs for row in _scores(run)],
        "side_by_side": [_row_of_table_3(run, first) for run in runs],
        "pronouns": _pronouns(first),
        "charts": _charts(runs),
        "samples": _samples(first),
        "model": _model(first),
        "checkpoints": _checkpoints(first),
        **_data(first),
        **_repeat(first),
    }
    target = out or run / "report.html"
    artefact.replace_file(target, render("report.html", values))
    return target


def _open(files: RunFiles) -> _Run:
    corpus, scores = files.corpus, None
    hypotheses = files.translations("test")
    if corpus and hypotheses and corpus.lines("test")[1]:
        metrics = ("bleu", "chrf") if corpus.manifest.get("generated") else ()
        scores = evaluate(ScoreOptions(corpus=corpus.directory, metrics=metrics, details=True), hypotheses)
    vocabulary = int(corpus.manifest["vocabulary_size"]) if corpus else None
    return _Run(files, scores, parameter_count(files.settings.model, vocabulary) if vocabulary else None)


def _tiles(run: _Run) -> Iterator[tuple[str, str]]:
    files = run.files
    last = (files.steps or files.validations or [{}])[-1]
    yield "steps", f"{last.get('step', 0):,} of {files.settings.training.steps:,}"
    for score in run.scores["scores"] if run.scores else []:
        yield f"{score['name']} on test", f"{score['score']:.2f}"
    if files.validations:
        yield "dev perplexity", f"{files.validations[-1]['dev_perplexity']:.3f}"
    if run.parameters:
        yield "parameters", f"{run.parameters:,}"
    if "seconds" in last:
        yield "training", duration(last["seconds"])


def _scores(run: _Run) -> Iterator[list[str]]:
    expect = run.files.settings.expect
    for score in run.scores["scores"] if run.scores else []:
        metric = score["metric"]
        expected = f"{expect.bleu[0]:g} to {expect.bleu[1]:g}" if expect.bleu and metric == "bleu" else ""
        published = {"paper-bleu": expect.paper_bleu, "brackets": expect.paper_f1}.get(metric)
        figures = [f"{score['score']:.2f}", expected, f"{published:g}" if published else ""]
        yield [run.name, score["name"], *figures, score["signature"], score["compare_with"]]


def _row_of_table_3(run: _Run, first: _Run) -> list[str]:
    """Return what differs from the first run and the figures of the paper's Table 3, of this run and as published."""
    settings, last = run.files.settings, (run.files.validations or [{}])[-1]
    changes = recipe.differences(recipe.to_plain(first.files.settings), recipe.to_plain(settings))
    changes = [c for c in changes if not c.startswith(("name:", "expect.")) and paper.matters(c)]
    row = paper.table_3(settings) if str(settings.corpus.name).startswith("wmt14-en-de") else None
    published = f"{row[0]}: perplexity {row[1][0]}, BLEU {row[1][1]}, {row[1][2]} million" if row else ""
    bleu = last.get("dev_bleu")
    return [
        run.name,
        "; ".join(changes) or ("–" if run is first else "nothing"),
        f"{run.parameters:,}" if run.parameters else "",
        f"{run.files.steps[-1]['step']:,}" if run.files.steps else "",
        f"{last['dev_perplexity']:.3f}" if last else "",
        "" if bleu is None else f"{bleu:.2f}",
        f"{run.scores['scores'][0]['score']:.2f}" if run.scores else "",
        published,
    ]


def _pronouns(run: _Run) -> tuple[int, int] | None:
    """Count the pronouns of the generated test set that agree with the noun they stand for."""
    if not (run.generated and run.scores and run.files.settings.corpus.src == "en"):
        return None
    source, references = run.lines("test")
    return pronoun_accuracy(source, run.files.translations("test") or [], references)


def _charts(runs: Sequence[_Run]) -> list[Chart]:
    first, single = runs[0], len(runs) == 1
    settings, validations, expect = first.files.settings, first.files.validations, first.files.settings.expect
    marks = first.averaged if single else []

    def lines(key: str, name: str = "", dashed: bool = False) -> list[Line]:
        drawn = []
        for i, run in enumerate(runs):
            records = run.files.validations if key.startswith("dev_") else run.files.steps
            points = [(r["step"], float(r[key])) for r in records if r.get(key) is not None]
            label = name if single else f"{run.name} {name}".strip()
            drawn.append(Line(label, points, int(bool(name) and not dashed) if single else i, dashed))
        return drawn

    def expected(figures: list[float]) -> list[Line]:
        end = validations[-1]["step"] if validations else 0
        points = [(step, figure) for step, figure in zip(expect.dev_steps, figures, strict=False) if step <= end]
        return [Line("expected", points, 5, True)]

    def rate() -> Line:
        stride = max(1, settings.training.steps // 200)
        steps = [1, *range(stride, settings.training.steps + 1, stride)]
        points = [(step, noam_rate(step, settings.model.d_model, settings.training)) for step in steps]
        return Line("the recipe's", points, 5, True)

    band = (expect.bleu[0], expect.bleu[1], "expected of the model on test") if expect.bleu else None
    if expect.paper_bleu and not band:
        band = (expect.paper_bleu, expect.paper_bleu, "the paper's figure on test, another metric")
    losses = [*lines("nll", "training", True), *lines("dev_nll", "dev")]
    perplexities = [*lines("dev_perplexity"), *expected(expect.dev_perplexity)]
    bleus = [*lines("dev_bleu"), *expected(expect.dev_bleu)]
    charts = [
        line_chart("Loss, nats per target token, not smoothed", losses, log=True, marks=marks),
        line_chart("Dev perplexity per token", perplexities, log=True, marks=marks),
        line_chart("Dev BLEU", bleus, band=band, marks=marks) if any(line.points for line in bleus) else None,
        line_chart("Learning rate", [*lines("rate", "used"), rate()], marks=marks),
        line_chart("Gradient norm", lines("gradient_norm"), log=True, marks=marks),
        line_chart("Target tokens per second", lines("tgt_tokens_per_second"), marks=marks),
    ]
    return [chart for chart in charts if chart]


def _samples(run: _Run) -> list[dict[str, Any]]:
    """Return each development sentence with what was said of it at some of the validations."""
    sources, references = run.lines("dev")
    sampled = [(r["step"], r["samples"]) for r in run.files.validations if r.get("samples")]
    stride = max(1, -(-(len(sampled) - 1) // (SHOWN_VALIDATIONS - 1)))
    shown = sampled[:-1:stride] + sampled[-1:]
    return [
        {
            "source": sources[i] if i < len(sources) else None,
            "reference": references[i] if i < len(references) else None,
            "translations": [(step, samples[i]) for step, samples in shown if i < len(samples)],
        }
        for i in range(len(shown[-1][1]) if shown else 0)
    ]


def _data(run: _Run) -> dict[str, Any]:
    corpus, span = run.files.corpus, run.files.settings.expect.pairs
    if not corpus:
        return {"data": None}
    manifest, lengths = corpus.manifest, {"source": corpus.src.lengths(), "target": corpus.tgt.lengths()}
    longest = max(int(np.quantile(side, 0.995)) for side in lengths.values())
    counts = {name: np.bincount(side, minlength=longest + 1)[: longest + 1] for name, side in lengths.items()}
    lines = [
        Line(f"{name}, {lengths[name].mean():.1f} on average", [(x, float(y)) for x, y in enumerate(count)], i)
        for i, (name, count) in enumerate(counts.items())
    ]
    cleaning = artefact.read_json(corpus.directory / "cleaning.json")
    reasons = {**cleaning.get("dropped", {}), **cleaning.get("noted", {})}
    expected = f" (expected: {span[0]:,} to {span[1]:,})" if span else ""
    data = [
        ["languages", f"{manifest['src']} to {manifest['tgt']}"],
        ["training pairs", f"{len(corpus.src):,}{expected}"],
        ["tokens, source and target", " and ".join(f"{side.sum():,}" for side in lengths.values())],
        ["vocabulary, both languages", f"{int(manifest['vocabulary_size']):,} tokens"],
        *([split, f"{len(corpus.lines(split)[0]):,} sentences"] for split in ("dev", "test")),
        ["from", str(manifest.get("origin", ""))],
    ]
    return {
        "data": data,
        "sources": [
            [file["name"], f"{file.get('rows', 0):,}", f"{file.get('bytes', 0):,}", file.get("sha256", "")[:16]]
            for file in manifest["sources"]
        ],
        "lengths": line_chart("Training sentences by their length in tokens", lines, over_steps=False),
        "cleaning": cleaning,
        "dropped": {reason: entry for reason, entry in reasons.items() if entry["pairs"]},
        "repaired": [[what, f"{count:,}"] for what, count in cleaning.get("repaired_lines", {}).items() if count],
    }


def _model(run: _Run) -> dict[str, Any]:
    near, changes = paper.departures(run.files.settings)
    rows = [[change.partition(": ")[0], *change.partition(": ")[2].split(" -> ", 1)] for change in changes]
    return {"near": near, "departures": rows, "recipe": recipe.to_yaml(run.files.settings).decode().split("\n")}


def _checkpoints(run: _Run) -> Rows:
    directory = run.files.directory
    averaged = dict(zip(run.averaged, (run.files.model or {}).get("checkpoints", []), strict=False))
    best = artefact.read_json(directory / "best.json").get("step") if (directory / "best.json").exists() else None
    dev = {record["step"]: f"{record['dev_nll']:.4f}" for record in run.files.validations}
    rows = []
    for step in sorted({*checkpoints.steps_in(directory), *run.averaged}):
        where = checkpoints.directory_of(directory, step)
        size = sum(file.stat().st_size for file in where.glob("*")) / 1e6 if where.is_dir() else 0
        notes = "averaged" * (step in run.averaged), "best" * (step == best)
        row = [f"{step:,}", f"{size:,.1f} MB" if size else "removed", dev.get(step, ""), ", ".join(filter(None, notes))]
        rows.append([*row, averaged.get(step, "")[:16]])
    return rows


def _repeat(run: _Run) -> dict[str, Any]:
    files = run.files
    at, data = files.directory, files.corpus.directory if files.corpus else "DATA"
    hashes = {"recipe (resolved)": artefact.sha256(at / "recipe.yaml")}
    if files.corpus:
        hashes["corpus (ids, tokenizer, dev and test)"] = files.corpus.identity
        hashes["tokenizer"] = files.corpus.manifest["files"]["tokenizer.model"]["sha256"]
    if files.model:
        hashes["model"] = files.model["files"][WEIGHTS]["sha256"]
    hashes |= {name: artefact.sha256(at / name) for name in ("dev.hyp", "test.hyp") if (at / name).exists()}
    commands = [
        f"nmt reproduce {at}/recipe.yaml --run runs/again",
        "# or step by step",
        f"nmt prepare {at}/recipe.yaml",
        f"nmt train {at}/recipe.yaml --run runs/again",
        f"nmt average-checkpoints runs/again --last {len(run.averaged) or files.settings.averaging.last}",
        f"nmt translate --model runs/again/model --input {data}/test.src --output test.hyp",
        f"nmt score test.hyp --corpus {data}",
    ]
    return {"commands": commands, "hashes": list(hashes.items())}
