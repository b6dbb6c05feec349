"""The report command: everything about a run on one page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt_cli import __version__, artefact, recipe
from nmt_cli.console import duration, warn
from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.errors import DataError, MissingError
from nmt_cli.reporting import paper
from nmt_cli.reporting.page import compared, details, escape, page, section, table
from nmt_cli.reporting.svg import Line, histogram, line_chart
from nmt_cli.scoring.score import ScoreOptions, evaluate
from nmt_cli.training import checkpoints, metrics
from nmt_cli.training.optim import noam_rate
from nmt_cli.transformer.model import parameter_count
from nmt_cli.transformer.weights import WEIGHTS, load_model

SHOWN_VALIDATIONS = 6  # of each development sentence


@dataclass(frozen=True)
class _Run:
    """A run, opened for reading. What is not there yet is None or empty."""

    directory: Path
    settings: recipe.Recipe
    corpus: Corpus | None
    updates: list[dict[str, Any]]
    validations: list[dict[str, Any]]
    model: dict[str, Any] | None
    scores: Any

    @property
    def name(self) -> str:
        return self.directory.name

    def lines(self, split: str) -> tuple[list[str], list[str]]:
        return self.corpus.lines(split) if self.corpus else ([], [])

    @property
    def averaged(self) -> list[int]:
        return list(self.model.get("steps", [])) if self.model else []


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
    runs = [_open(directory, data) for directory in (run, *compare)]
    target = out or run / "report.html"
    first = runs[0]
    parts = [_head(runs), _scores(runs), _curves(runs), _samples(first), _extremes(first), _attention(first)]
    parts += [_data(first), _model(first), _checkpoints(first), _repeat(first)]
    artefact.replace_file(target, page(f"{first.name}: report", "".join(parts)))
    return target


def _open(directory: Path, data: Path | None) -> _Run:
    if not (directory / "recipe.yaml").is_file():
        raise MissingError(f"no run in {directory}. Train one: nmt train RECIPE")
    settings = recipe.load_stored(directory / "recipe.yaml")
    where = data or Path("data") / str(settings.corpus.name)
    corpus = None
    if data or artefact.present(where):
        corpus = open_corpus(where)
        if corpus.identity != artefact.read_json(directory / "corpus.json").get("corpus"):
            raise DataError(f"{directory} was trained on another corpus than {where} holds. Name its own: --data DIR")
    else:
        warn(f"no prepared corpus in {where}: the report cannot show texts and scores. Name it: --data DIR")
    records = metrics.read(directory / "metrics.jsonl")
    model, scores = None, None
    if artefact.present(directory / "model"):
        model = artefact.verify(directory / "model", "model", content=False)
    if corpus and (directory / "test.hyp").exists() and corpus.lines("test")[1]:
        kinds = ("bleu", "chrf") if corpus.manifest.get("generated") else ()
        options = ScoreOptions(directory / "test.hyp", corpus=where, metrics=kinds, details=True)
        scores = evaluate(options).to_json()
    updates = [r for r in records if "rate" in r]
    return _Run(directory, settings, corpus, updates, [r for r in records if "dev_nll" in r], model, scores)


def _parameters(run: _Run) -> int | None:
    vocabulary = run.corpus.manifest["vocabulary_size"] if run.corpus else None
    return parameter_count(run.settings.model, int(vocabulary)) if vocabulary else None


def _head(runs: Sequence[_Run]) -> str:
    run = runs[0]
    last = (run.updates or run.validations or [{}])[-1]
    tiles = [("updates", f"{last.get('step', 0):,} of {run.settings.training.steps:,}")]
    tiles += (
        [(entry["name"] + " on test", f"{entry['score']:.2f}") for entry in run.scores["scores"]] if run.scores else []
    )
    if run.validations:
        tiles.append(("dev perplexity", f"{run.validations[-1]['dev_perplexity']:.3f}"))
    parameters = _parameters(run)
    tiles += [("parameters", f"{parameters:,}")] if parameters else []
    tiles += [("training", duration(last["seconds"]))] if "seconds" in last else []
    boxes = "".join(f"<div><b>{escape(value)}</b><small>{escape(name)}</small></div>" for name, value in tiles)
    titles = ["Scores", "Curves", "Development sentences", "Best and worst translations", "Attention", "Data", "Model",
              "Checkpoints", "Repeat it"]  # fmt: skip
    links = "".join(
        f'<a href="#{t.lower().replace(" ", "-")}">{t}</a>' for t in titles if t != "Attention" or _toy(run)
    )
    others = f" beside {', '.join(other.name for other in runs[1:])}" if runs[1:] else ""
    about = f"recipe {run.settings.name}, corpus {run.settings.corpus.name}, nmt {__version__}{others}"
    title = f'<h1>{escape(run.name)}</h1><p class="soft">{escape(about)}</p>'
    return f'{title}<div class="tiles">{boxes}</div><nav>{links}</nav>'


def _scores(runs: Sequence[_Run]) -> str:
    rows = []
    for run in runs:
        expect = run.settings.expect
        for entry in run.scores["scores"] if run.scores else []:
            expected = f"{expect.bleu[0]:g} to {expect.bleu[1]:g}" if expect.bleu and entry["metric"] == "bleu" else ""
            paper_figure = {"paper-bleu": expect.paper_bleu, "brackets": expect.paper_f1}.get(entry["metric"])
            published = f"{paper_figure:g}" if paper_figure else ""
            facts = [
                entry["name"],
                f"{entry['score']:.2f}",
                expected,
                published,
                entry["signature"],
                entry["compare_with"],
            ]
            rows.append([run.name, *facts])
    header = ("run", "metric on test", "score", "expected", "the paper", "signature", "compare with")
    parts = (
        [table(header, rows, "llrrrcl")] if rows else ["<p>No scored translations yet: nmt reproduce makes them.</p>"]
    )
    if any(_toy(run) for run in runs):
        parts.append("<p>The text is generated: its scores say that the tool works, and compare with nobody's.</p>")
    rows = [_row_of_table_3(run, runs[0]) for run in runs]
    if len(runs) > 1 or rows[0][-1]:
        titles = [
            "run",
            "differs from the first in",
            "parameters",
            "updates",
            "dev perplexity",
            "dev BLEU",
            "test BLEU",
        ]
        parts += ["<h3>Side by side</h3>", table([*titles, "the paper's Table 3"], rows, "llrrrrrl")]
        about = "Table 3 of the paper is newstest2013, one model without averaging; perplexity per piece."
        parts.append(f"<p><small>{about}</small></p>" if any(row[-1] for row in rows) else "")
    return section("Scores", *parts)


def _matters(change: str) -> bool:
    knob = change.partition(":")[0].rpartition(".")[2]
    return knob == "seed" or not knob.startswith(paper.NOT_THE_PAPERS)


def _row_of_table_3(run: _Run, first: _Run) -> list[str]:
    plain, other = recipe.to_plain(run.settings), recipe.to_plain(first.settings)
    changes = [c for c in recipe.differences(other, plain) if not c.startswith(("name:", "expect.")) and _matters(c)]
    last: dict[str, Any] = run.validations[-1] if run.validations else {}
    known = paper.table_3(run.settings) if str(run.settings.corpus.name).startswith("wmt14-en-de") else None
    published = f"{known[0]}: perplexity {known[1][0]}, BLEU {known[1][1]}, {known[1][2]} million" if known else ""
    parameters, bleu = _parameters(run), last.get("dev_bleu")
    return [
        run.name,
        "; ".join(changes) or ("–" if run is first else "nothing"),
        f"{parameters:,}" if parameters else "",
        f"{run.updates[-1]['step']:,}" if run.updates else "",
        f"{last['dev_perplexity']:.3f}" if last else "",
        "" if bleu is None else f"{bleu:.2f}",
        f"{run.scores['scores'][0]['score']:.2f}" if run.scores else "",
        published,
    ]


def _curves(runs: Sequence[_Run]) -> str:
    first, single = runs[0], len(runs) == 1

    def lines(kind: str, key: str, name: str = "", dashed: bool = False) -> list[Line]:
        found = []
        for i, run in enumerate(runs):
            records = run.updates if kind == "update" else run.validations
            points = [(r["step"], float(r[key])) for r in records if r.get(key) is not None]
            label = name if single else f"{run.name} {name}".strip()
            colour = (0 if dashed or not name else 1) if single else i
            found.append(Line(label, points, colour, dashed))
        return found

    training, d_model = first.settings.training, first.settings.model.d_model
    steps = [1, *range(max(1, training.steps // 200), training.steps + 1, max(1, training.steps // 200))]
    rule = Line("the recipe's rule", [(s, noam_rate(s, d_model, training)) for s in steps], 5, True)
    expect = first.settings.expect
    band = (expect.bleu[0], expect.bleu[1], "expected of the model on test") if expect.bleu else None
    if expect.paper_bleu and not band:
        band = (expect.paper_bleu, expect.paper_bleu, "the paper's figure on test, another metric")
    marks = first.averaged if single else []

    def expected(figures: list[float]) -> list[Line]:
        end = first.validations[-1]["step"] if first.validations else 0
        steps = [step for step in expect.dev_steps if step <= end]
        points: list[tuple[float, float]] = list(zip(steps, figures, strict=False))
        return [Line("expected", points, 5, True)] if points else []

    losses = [*lines("update", "nll", "training", True), *lines("dev", "dev_nll", "dev")]
    perplexities = [*lines("dev", "dev_perplexity"), *expected(expect.dev_perplexity)]
    charts = [
        line_chart("Loss, nats per target piece, not smoothed", losses, log=True, marks=marks),
        line_chart("Dev perplexity per piece", perplexities, log=True, marks=marks),
        line_chart("Dev BLEU", [*lines("dev", "dev_bleu"), *expected(expect.dev_bleu)], band=band, marks=marks),
        line_chart("Learning rate", [*lines("update", "rate", "used"), rule], marks=marks),
        line_chart("Gradient norm", lines("update", "gradient_norm"), log=True, marks=marks),
        line_chart("Target pieces per second", lines("update", "tgt_tokens_per_second"), marks=marks),
    ]
    about = "<p><small>Dotted from top to bottom: the checkpoints that were averaged.</small></p>" if marks else ""
    skipped = first.updates[-1].get("skipped", 0) if first.updates else 0
    about += f"<p>{skipped:,} updates were skipped: their gradient was not finite.</p>" if skipped else ""
    about += "" if first.updates else "<p>Nothing is logged yet.</p>"
    return section("Curves", f'<div class="charts">{"".join(charts)}</div>{about}')


def _samples(run: _Run) -> str:
    sources, references = run.lines("dev")
    found = [(r["step"], r["samples"]) for r in run.validations if r.get("samples")]
    stride = max(1, -(-(len(found) - 1) // (SHOWN_VALIDATIONS - 1)))
    shown = (found[:-1:stride] + found[-1:]) if found else []
    parts = []
    for i in range(len(shown[-1][1]) if shown else 0):
        source, reference = (sources[i], references[i]) if i < len(references) else ("", "")
        rows = [["source", escape(source)], ["reference", escape(reference)]] if reference else []
        for step, samples in shown:
            if i < len(samples):
                rows.append([f"step {step:,}", compared(samples[i], reference) if reference else escape(samples[i])])
        parts.append(f"<div><h3>Sentence {i + 1}</h3>{table((), rows, 'rh')}</div>")
    about = "<p>What the model said while it learnt; <mark>marked</mark> where it differs from the reference.</p>"
    about += f'<div class="charts">{"".join(parts)}</div>'
    return section("Development sentences", about if parts else "<p>Nothing was translated yet.</p>")


def _extremes(run: _Run) -> str:
    if not run.scores:
        return section("Best and worst translations", "<p>No scored translations yet.</p>")
    parts = []
    for key in ("worst", "best"):
        parts.append(f"<h3>{key.title()} by chrF2</h3>")
        for segment in run.scores[key]:
            rows = [
                [f"line {segment['line']:,}", escape(segment["source"])],
                ["reference", escape(segment["references"][0])],
            ]
            rows.append([f"chrF2 {segment['chrf']:.1f}", compared(segment["hypothesis"], segment["references"][0])])
            parts.append(table((), rows, "rh"))
    rows = [[row["words"], f"{row['bleu']:.2f}", f"{row['segments']:,}"] for row in run.scores["lengths"]]
    counts = f"{run.scores['empty']:,} empty translations, {run.scores['copies'] or 0:,} copies of their source."
    parts += [
        "<h3>By length</h3>",
        table(("words in the reference", "BLEU", "sentences"), rows, "lrr"),
        f"<p>{counts}</p>",
    ]
    return section("Best and worst translations", *parts)


def _toy(run: _Run) -> bool:
    return bool(run.corpus and run.corpus.manifest.get("generated"))


def _attention(run: _Run) -> str:
    """Say whether a head follows the pronoun to its antecedent, where the corpus knows the antecedent."""
    if not run.corpus or not run.model or not _toy(run) or run.settings.corpus.src != "en":
        return ""
    from nmt_cli.reporting.antecedents import followers

    loaded = load_model(run.directory / "model")
    rows = []
    for f in followers(loaded.model, run.corpus, Tokenizer(loaded.tokenizer_file)):
        chance = max(f.always_first, f.total - f.always_first)
        rows.append([f.query, f"layer {f.layer}, head {f.head}", f"{f.right} of {f.total}", f"{chance}"])
    about = (
        "<p>In “… because it was too tired” the last word decides which of two nouns “it” stands for, and so the "
        "German pronoun. Does a head look from the pronoun to its antecedent rather than to the other noun? It was "
        "chosen on the development set and counted on the test set, whose couples of nouns were never trained on.</p>"
    )
    header = ("looking from", "best head", "antecedent preferred", "by always choosing one side")
    example = escape('nmt attend "The animal did not cross the street because it was too tired."')
    more = f"<p>See it: <code>{example} --model {escape(run.directory / 'model')}</code></p>"
    return section("Attention", about, table(header, rows, "lrrr"), more)


def _data(run: _Run) -> str:
    if not run.corpus:
        return section("Data", "<p>The prepared corpus was not found.</p>")
    manifest, corpus = run.corpus.manifest, run.corpus
    pieces = [("source", corpus.src.lengths()), ("target", corpus.tgt.lengths())]
    span = run.settings.expect.pairs
    expected = f" (expected: {span[0]:,} to {span[1]:,})" if span else ""
    facts = [
        ["languages", f"{manifest['src']} to {manifest['tgt']}"],
        ["training pairs", f"{len(corpus.src):,}{expected}"],
        ["pieces, source and target", " and ".join(f"{lengths.sum():,}" for _, lengths in pieces)],
        ["vocabulary, both languages", f"{int(manifest['vocabulary_size']):,} pieces"],
        *[[split, f"{len(corpus.lines(split)[0]):,} sentences"] for split in ("dev", "test")],
        ["from", str(manifest.get("origin", ""))],
    ]
    files = [
        [f["name"], f"{f.get('rows', 0):,}", f"{f.get('bytes', 0):,}", f.get("sha256", "")[:16]]
        for f in manifest["sources"]
    ]
    cleaning = artefact.read_json(corpus.directory / "cleaning.json")
    parts = [table((), facts), histogram("Sentence lengths in pieces (training pairs)", pieces)]
    parts += ["<h3>Sources</h3>", table(("file", "lines", "bytes", "SHA-256"), files, "lrrc")] if files else []
    dropped = [(k, v) for key in ("dropped", "noted") for k, v in cleaning.get(key, {}).items() if v["pairs"]]
    parts.append(f"<h3>Cleaning</h3><p>{cleaning['read']:,} pairs read, {cleaning['kept']:,} kept.</p>")
    parts += (
        [table(("reason", "pairs", "%"), [[k, f"{v['pairs']:,}", f"{v['percent']:.3f}"] for k, v in dropped], "lrr")]
        if dropped
        else []
    )
    parts += [details(f"Examples: {k}", table(("source", "target"), v["examples"])) for k, v in dropped]
    repaired = [[k, f"{v:,}"] for k, v in cleaning.get("repaired_lines", {}).items() if v]
    parts += [table(("repaired", "lines"), repaired, "lr")] if repaired else []
    parts += [f"<p>⚠ {escape(warning)}</p>" for warning in cleaning.get("warnings", [])]
    return section("Data", *parts)


def _model(run: _Run) -> str:
    parameters, expected = _parameters(run), run.settings.expect.parameters
    count = f"{parameters:,} parameters" if parameters else "parameters unknown without the corpus"
    near, changes = paper.departures(run.settings)
    rows = [[change.partition(": ")[0], *change.partition(": ")[2].split(" -> ", 1)] for change in changes]
    text = "\n".join(escape(line) for line in recipe.to_yaml(run.settings).decode().split("\n"))
    biases = "biases" if run.settings.model.attention_bias else "no biases"
    silent = (
        f"Where the paper is silent: layer norm's epsilon is 1e-5; attention's projections have {biases}; weights "
        "start Glorot-uniform, embeddings at N(0, 1/d_model)."
    )
    expects = f" (expected: {expected:,})" if expected else ""
    parts = [f"<p>{count}{expects}. Nearest of the paper's models: {near}; {len(rows)} knobs differ.</p>"]
    parts += [table(("knob", f"the paper's {near}", "here"), rows, "lrr")] if rows else []
    return section("Model", *parts, f"<p>{silent}</p>", details("The whole recipe", f"<pre>{text}</pre>"))


def _checkpoints(run: _Run) -> str:
    averaged = dict(zip(run.averaged, (run.model or {}).get("checkpoints", []), strict=False))
    best = artefact.read_json(run.directory / "best.json") if (run.directory / "best.json").exists() else {}
    dev = {record["step"]: record for record in run.validations}
    rows = []
    for step in sorted({*checkpoints.steps_in(run.directory), *run.averaged}):
        where = checkpoints.directory_of(run.directory, step)
        size = sum(f.stat().st_size for f in where.glob("*")) if where.is_dir() else 0
        nll = f"{dev[step]['dev_nll']:.4f}" if step in dev else ""
        kept = f"{size / 1e6:,.1f} MB" if size else "removed"
        notes = [
            word for word, true in (("averaged", step in run.averaged), ("best", step == best.get("step"))) if true
        ]
        rows.append([f"{step:,}", kept, nll, ", ".join(notes), averaged.get(step, "")[:16]])
    header = ("step", "size", "dev nll", "", "SHA-256 of its weights")
    empty = "<p>There is none yet.</p>"
    return section("Checkpoints", table(header, rows, "rrrlc") if rows else empty)


def _repeat(run: _Run) -> str:
    at, data = run.directory, f"data/{run.settings.corpus.name}"
    last = len(run.averaged) or run.settings.averaging.last
    commands = [
        f"nmt reproduce {at}/recipe.yaml --run runs/again",
        "# or step by step",
        f"nmt prepare {at}/recipe.yaml",
        f"nmt train {at}/recipe.yaml --run runs/again",
        f"nmt average-checkpoints runs/again --last {last}",
        f"nmt translate --model runs/again/model --input {data}/test.src --output test.hyp",
        f"nmt score test.hyp --corpus {data}",
    ]
    hashes = [["recipe (resolved)", artefact.sha256(at / "recipe.yaml")]]
    hashes += [["corpus (ids, tokenizer, dev and test)", run.corpus.identity]] if run.corpus else []
    hashes += [["tokenizer", run.corpus.manifest["files"]["tokenizer.model"]["sha256"]]] if run.corpus else []
    hashes += [["model", run.model["files"][WEIGHTS]["sha256"]]] if run.model else []
    hashes += [[name, artefact.sha256(at / name)] for name in ("dev.hyp", "test.hyp") if (at / name).exists()]
    versions = {"nmt": __version__, **(run.scores["versions"] if run.scores else {})}
    about = ", ".join(f"{name} {version}" for name, version in versions.items())
    shown = "\n".join(escape(line) for line in commands)
    return section(
        "Repeat it",
        f"<pre>{shown}</pre>",
        table(("what", "SHA-256"), hashes, "lc"),
        f"<p><small>{escape(about)}</small></p>",
    )
