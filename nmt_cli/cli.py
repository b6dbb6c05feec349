"""The command line: parse, call one function, return its exit code. Nothing heavy is imported before it is needed."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.exceptions import TyperException

import nmt_cli
from nmt_cli import artefact, console
from nmt_cli.errors import MissingError, OutputError, UsageError

app = typer.Typer(
    help="Train, evaluate and run the Transformer of “Attention Is All You Need”: raw text in, raw text out.",
    epilog="Start with: nmt reproduce recipes/toy.yaml",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
recipes = typer.Typer(help="List, show or copy the recipes that come with nmt.")
app.add_typer(recipes, name="recipes", invoke_without_command=True)


def run() -> int:
    try:
        return int(app(prog_name="nmt", standalone_mode=False) or 0)
    except TyperException as error:
        message = error.format_message().rstrip(".")
        if not message:  # nmt alone: the help is printed already
            return UsageError.exit_code
        end = "" if message.endswith("?") else "."  # "Did you mean ...?"
        context = getattr(error, "ctx", None)
        raise UsageError(f"{message}{end} See: {context.command_path if context else 'nmt'} --help") from None


def _option(
    text: str, *names: str, default: Any = True, panel: Any = None, kind: Any = None, min: Any = None, max: Any = None
) -> Any:
    """Declare an option; `default` is what its help shows where the default is chosen later."""
    return typer.Option(*names, help=text, show_default=default, rich_help_panel=panel, metavar=kind, min=min, max=max)


def _build(kind: Any, parameters: dict[str, Any], *others: str) -> Any:
    """Make a dataclass from a command's parameters but for `others`; None leaves a field its default."""
    chosen = {name: value for name, value in parameters.items() if name not in others and value is not None}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()})


_file, _directory, _number = (partial(_option, kind=kind) for kind in ("FILE", "DIR", "N"))
_search = partial(_number, panel="Search", default="the recipe's")
_sampling = partial(_number, panel="Sampling")
_output, _references, _gate = (partial(_option, panel=panel) for panel in ("Output", "References", "Gate"))
_model = partial(_directory, default="$NMT_MODEL, else the newest under runs/")

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file, such as recipes/toy.yaml")]
MARIAN = "A Marian model, of transformers (OPUS-MT) or its own files: a directory, or OWNER/NAME[@REVISION] of the hub"
RecipeName = Annotated[Path, typer.Argument(help="A name that nmt recipes lists, or a file")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run, such as runs/base")]
Set = Annotated[list[str] | None, _option("Change a setting: training.steps=200", "--set", kind="KEY=VALUE")]
Data = Annotated[Path | None, _directory("The prepared corpus", default="data/CORPUS")]
RunDirectory = Annotated[Path | None, _directory("The run", "--run-dir", "--run", default="runs/RECIPE")]
Mirror = Annotated[Path | None, _directory("Take a named corpus' files from here instead of the network")]
Workers = Annotated[int | None, _number("Processes", default="one per core", min=1)]
Quantization = Literal["float32", "bfloat16", "int8"]
Precision = Literal["auto", "fp32", "bf16", "int8"]
Tokenizer = Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "none"]
DryRun = Annotated[bool, _option("Say what it would take here, and stop", "--dry-run")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no log lines", callback=console.set_quiet)]

METRICS = "bleu, chrf, ter, comet, paper-bleu, paper-bleu-quotes, brackets; repeatable, the first gates"
CORPORA = (
    "toy-en-de, multi30k-en-de (-fr, -cs), wmt14-en-de, wmt14-en-fr or a reverse direction; hub:OWNER/NAME; or a "
    "recipe file. Default: toy-en-de, or your own text with --src and --tgt"
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, _option("Print the version", "--version")] = False) -> None:
    if version:
        typer.echo(f"nmt {nmt_cli.__version__}")
        raise typer.Exit


@app.command()
def prepare(
    corpus: Annotated[str | None, typer.Argument(help=CORPORA)] = None,
    src: Annotated[list[str] | None, _file("Your training text (repeatable); of hub data: key or column")] = None,
    tgt: Annotated[list[str] | None, _file("The same for the target side")] = None,
    dev_src: Annotated[str | None, _file("Development text, source side", "--dev-src", "--valid-src")] = None,
    dev_tgt: Annotated[str | None, _file("Development text, target side", "--dev-tgt", "--valid-tgt")] = None,
    test_src: Annotated[str | None, _file("Test text, source side")] = None,
    test_tgt: Annotated[str | None, _file("Test text, target side")] = None,
    config: Annotated[str | None, _option("Configuration of a hub data set, such as de-en", kind="NAME")] = None,
    tokenizer: Annotated[Path | None, _file("Reuse this SentencePiece model")] = None,
    limit: Annotated[int | None, _number("Take the first N training pairs only", min=1)] = None,
    out: Annotated[Path | None, _directory("Where to write", default="data/CORPUS")] = None,
    mirror: Mirror = None,
    workers: Workers = None,
    set_: Set = None,
    overwrite: Annotated[bool, _option("Overwrite an existing corpus", "--overwrite")] = False,
    strict: Annotated[bool, _option("Refuse doubtful text instead of warning", "--strict")] = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Turn raw text into training ids: download, clean, learn subwords, encode."""
    from nmt_cli.corpus import prepare as command
    from nmt_cli.corpus.sources import choose

    files = {"src": src, "tgt": tgt, "dev_src": dev_src, "dev_tgt": dev_tgt, "test_src": test_src, "test_tgt": test_tgt}
    what = {**files, "config": config, "tokenizer": tokenizer, "limit": limit}
    settings = choose(corpus, what, out, set_ or [])
    out, options = out or settings.directory, command.PrepareOptions(mirror, workers, overwrite, dry_run, strict)
    command.prepare(settings if dry_run else _as_text(settings, out), out, options)


@app.command()
def train(
    recipe: RecipeFile,
    set_: Set = None,
    data: Data = None,
    run: RunDirectory = None,
    tracker: Annotated[str | None, _option("Also log to tensorboard, wandb, … by Accelerate", kind="NAME")] = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> int:
    """Train a recipe's model, or resume it.

    The same command again goes on where the run stopped. Several GPUs: accelerate launch -m nmt_cli train RECIPE
    """
    from nmt_cli.recipe import load

    settings = load(recipe, set_ or [])
    data, run = data or settings.corpus.directory, run or Path("runs") / settings.name
    if dry_run:
        from nmt_cli.training.estimate import dry_run as estimate

        return estimate(settings, data)
    if not artefact.present(data):  # said before torch is imported
        text = recipe if settings.corpus.has_text else "--src FILE --tgt FILE"
        raise MissingError(f"no prepared corpus in {data}. Run: nmt prepare {text} --out {data}")
    from nmt_cli.training import train as command

    return command.train(settings, data, run, tracker)


@app.command()
def average_checkpoints(
    run: RunArgument,
    last: Annotated[int | None, _number("How many checkpoints", default="the recipe's", min=1)] = None,
    out: Annotated[Path | None, _directory("The model", default="RUN/model")] = None,
    data: Data = None,
) -> None:
    """Average a run's last checkpoints."""
    from nmt_cli.training.average import average

    average(run, last, out, data)


@app.command()
def translate(
    file: Annotated[Path | None, typer.Argument(help="Lines to translate", show_default="stdin")] = None,
    input: Annotated[Path | None, _file("Lines to translate", "--input", "-i", default="stdin")] = None,
    output: Annotated[Path | None, _file("Appears when complete", "--output", "-o", default="stdout")] = None,
    models: Annotated[list[Path] | None, _model("The model; repeat it for an ensemble", "--model")] = None,
    precision: Annotated[Precision, _option("Arithmetic; auto: int8 on CPUs made for it")] = "auto",
    workers: Annotated[int | None, _number("Processes", default="one per core up to 16, or per GPU", min=1)] = None,
    strict: Annotated[bool, _option("Refuse input that is not UTF-8", "--strict")] = False,
    quiet: Quiet = False,
    beam: Annotated[int | None, _search("Hypotheses kept per sentence; 1 is greedy", min=1)] = None,
    alpha: Annotated[float | None, _search("Length penalty", min=0, max=10)] = None,
    extra_length: Annotated[int | None, _search("Longest output: source plus N subwords", min=1)] = None,
    split: Annotated[Literal["auto", "off"], _search("Cutting long lines at sentence ends", kind=None)] = "auto",
    prefix: Annotated[
        Path | None, _file("How each line's translation must begin; its last word may go on", panel="Search")
    ] = None,
    score_pairs: Annotated[Path | None, _file("Score these given translations instead", panel="Search")] = None,
    sample: Annotated[bool, _sampling("Draw translations instead of searching", "--sample", kind=None)] = False,
    temperature: Annotated[float | None, _sampling("Below 1: fewer surprises", default="1", min=0.01)] = None,
    top_k: Annotated[int | None, _sampling("Only the N likeliest subwords", min=0)] = None,
    top_p: Annotated[float | None, _sampling("Only this much probability", min=0, max=1)] = None,
    seed: Annotated[int | None, _sampling("Of the draws", default="1", min=0, max=2**64 - 1)] = None,
    format: Annotated[Literal["text", "jsonl"], _output("jsonl: with scores, subwords and n-best")] = "text",
    n_best: Annotated[int, _output("Hypotheses printed per line", kind="N", min=1)] = 1,
    alignments: Annotated[bool, _output("Add word alignments of the best", "--alignments")] = False,
) -> int:
    """Translate lines of text.

    One line out for every line in, in order; stdout carries nothing else. It uses all cores or all GPUs by itself.
    """
    if file and input:
        raise UsageError("the lines to translate are named twice. Leave out --input")
    options = {**locals(), "input": input or file, "split": None if split == "auto" else False}
    draws = {name: options.pop(name) for name in ("temperature", "top_k", "top_p", "seed")}
    if not sample and (typed := [name for name, value in draws.items() if value is not None]):
        raise UsageError(f"--{typed[0].replace('_', '-')} requires --sample")
    if sample and beam is not None:
        raise UsageError("--sample draws and does not search: leave out --beam")
    from nmt_cli.translation import translate as command
    from nmt_cli.translation.segments import Sampling

    search = {name: options.pop(name) for name in ("beam", "alpha", "extra_length", "split", "n_best")}
    options["search"] = {**search, "sampling": _build(Sampling, draws) if sample else None}
    return command.translate(_build(command.TranslateOptions, options, "file", "sample", "quiet"))


@app.command()
def reproduce(
    recipe: RecipeFile,
    set_: Set = None,
    mirror: Mirror = None,
    data: Data = None,
    run: RunDirectory = None,
    workers: Workers = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> int:
    """Play a recipe from raw text to the score.

    Prepare, train, average, translate and score in order, skipping what is done; then write the report.
    """
    from nmt_cli.recipe import load

    settings = load(recipe, set_ or [])
    data, run = data or settings.corpus.directory, run or Path("runs") / settings.name
    from nmt_cli import reproduce as command
    from nmt_cli.corpus.prepare import PrepareOptions
    from nmt_cli.parsing import score as parsing
    from nmt_cli.scoring.score import evaluate

    score = parsing.evaluate if settings.corpus.format == "trees" else evaluate
    options = PrepareOptions(mirror, workers, dry_run=dry_run)
    text = settings.corpus if dry_run and not artefact.present(data) else _as_text(settings.corpus, data)
    code = command.reproduce(settings, text, data, run, options, score)
    if not code and not dry_run and os.environ.get("RANK", "0") == "0":
        report(run, data=[data])
    return code


@app.command()
def score(
    hypothesis: Annotated[Path | None, typer.Argument(help="Hypotheses, one a line; - for stdin")] = None,
    model: Annotated[Path | None, _directory("Translate the sources with this model first")] = None,
    metrics: Annotated[list[str] | None, _option(METRICS, "--metric", default="by language", kind="NAME")] = None,
    tokenize: Annotated[Tokenizer | None, _option("sacreBLEU's tokenizer", default="by language")] = None,
    lowercase: Annotated[bool, _option("Ignore case", "--lowercase")] = False,
    language: Annotated[str | None, _option("Of the hypotheses, such as de or zh", kind="CODE")] = None,
    comet_python: Annotated[Path | None, _file("A Python with unbabel-comet, for --metric comet")] = None,
    comet_model: Annotated[str, _option("Its model", kind="NAME")] = "Unbabel/wmt22-comet-da",
    intervals: Annotated[bool, _option("The 95 % interval of each score", "--intervals/--no-intervals")] = True,
    details: Annotated[bool, _option("Length buckets, best and worst segments", "--details")] = False,
    segments: Annotated[Path | None, _file("Write every segment's scores as JSON lines")] = None,
    format: Annotated[Literal["text", "json", "markdown"], _option("Of the report")] = "text",
    references: Annotated[list[Path] | None, _references("Repeatable", "--reference", "-r", kind="FILE")] = None,
    source: Annotated[Path | None, _references("Sources, to count copies and show them", kind="FILE")] = None,
    test_set: Annotated[str | None, _references("Of sacreBLEU, such as wmt14/full", "--test-set", "-t")] = None,
    language_pair: Annotated[str | None, _references("Its direction: en-de", "--language-pair", "-l")] = None,
    corpus: Annotated[Path | None, _references("Take them from a prepared corpus", kind="DIR")] = None,
    split: Annotated[Literal["dev", "test", "general"], _references("Which part of --corpus")] = "test",
    baseline: Annotated[Path | None, _gate("Other hypotheses, for significance", kind="FILE")] = None,
    fail_under: Annotated[float | None, _gate("Exit with 1 if the first metric is below N", kind="N")] = None,
    fail_if_worse: Annotated[bool, _gate("Exit with 1 if worse than --baseline, p < 0.05", "--fail-if-worse")] = False,
) -> int:
    """Score translations; gate a CI job."""
    from nmt_cli.parsing import score as parsing
    from nmt_cli.scoring import score as command

    options = _build(command.ScoreOptions, locals(), "model", "command", "parsing")
    evaluate = parsing.evaluate if parsing.wanted(options) else command.evaluate
    report = evaluate(options, partial(_translated, model) if model else None)
    return command.print_report(report, options.format)


@app.command()
def report(
    run: RunArgument,
    compare: Annotated[list[Path] | None, _option("Lay this run beside it (repeatable)", kind="RUN")] = None,
    out: Annotated[Path | None, _file("The page", default="RUN/report.html")] = None,
    data: Annotated[list[Path] | None, _directory("Its corpus, and those of --compare", default="data/CORPUS")] = None,
) -> None:
    """Write a run's report as one HTML page."""
    from nmt_cli.parsing.score import evaluate as score_trees
    from nmt_cli.reporting.report import report as go

    console.say(f"report: {go(run, compare or (), out, data or (), score_trees)}")


@app.command()
def doctor(
    run: RunArgument,
    hypothesis: Annotated[Path | None, _file("Translations of the test set", default="RUN/test.hyp")] = None,
    reference: Annotated[Path | None, _file("Their reference", default="the corpus's test set")] = None,
    data: Data = None,
    as_json: Annotated[bool, _option("Print JSON", "--json")] = False,
) -> None:
    """Say why a run's BLEU is low.

    Lists what went wrong, the most serious first, and what to do. The exit code is 0 whatever is listed.
    """
    from nmt_cli.reporting import doctor as command

    command.doctor(run, data, hypothesis, reference, as_json)


@app.command()
def attend(
    text: Annotated[list[str], typer.Argument(help="One or more source sentences")],
    model: Annotated[Path | None, _model("The model")] = None,
    translation: Annotated[str | None, _option("Shown instead of the model's own", kind="TEXT")] = None,
    output: Annotated[Path, _file("The page", "--output", "-o")] = Path("attention.html"),
    role: Annotated[Literal["encoder", "decoder", "cross"], _option("Shown first, and in the terminal")] = "encoder",
    layer: Annotated[int | None, _number("Layer shown first", default="the last", min=1)] = None,
    head: Annotated[int | None, _number("Head shown first", default="the sharpest", min=1)] = None,
) -> int:
    """Show where each head looks: all on a page, one in the terminal."""
    from nmt_cli.reporting.attend import attend as go

    return go(text, model, output, role, layer, head, translation)


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="A model directory, or a run such as runs/base")],
    to: Annotated[Literal["hf", "ctranslate2"], _option("hf is transformers")],
    out: Annotated[Path, _directory("The new directory")],
    quantization: Annotated[Quantization | None, _option("For ctranslate2", default="float32")] = None,
    lines: Annotated[Path | None, _file("Sentences to compare on", default="the corpus's dev set")] = None,
) -> int:
    """Hand a model to another toolkit, with proof.

    The export translates real sentences and is kept only if it says what the original says.
    """
    from nmt_cli.interop.export import export as go

    return go(model, to, out, quantization, lines)


@app.command("import")
def import_(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=MARIAN)],
    out: Annotated[Path, _directory("The new model directory")],
) -> None:
    """Bring a Marian model here, from transformers or from its own files."""
    from nmt_cli.interop.import_ import import_marian

    import_marian(source, out)


@recipes.callback()
def list_recipes(context: typer.Context) -> None:
    from nmt_cli.recipe import listed

    for name, about in () if context.invoked_subcommand else listed():
        typer.echo(f"{name:16} {about}")


@recipes.command()
def show(
    name: RecipeName,
    set_: Set = None,
    format: Annotated[Literal["yaml", "json"], _option("json: the schema, with the recipe as example")] = "yaml",
) -> None:
    """Print a recipe with every setting and its meaning."""
    from nmt_cli.recipe import explain, load, schema

    settings = load(name, set_ or [], start=False)
    if format == "yaml" and settings.training.init_from:
        typer.echo("# The model's sizes, the tokenizer and both languages become those of training.init_from.")
    typer.echo(schema(settings) if format == "json" else "\n".join(explain(settings)))


@recipes.command()
def copy(
    name: RecipeName,
    path: Annotated[Path | None, typer.Argument(help="The new file", show_default="./NAME.yaml")] = None,
) -> None:
    """Copy a recipe, to edit it."""
    from nmt_cli.recipe import find, to_copy

    source = find(name)
    path = path or Path(source.name)
    if path.exists():
        raise OutputError(f"{path} exists already. Name another file")
    artefact.replace_file(path, to_copy(source))
    console.say(f"wrote {path}")


@app.command()
def env(as_json: Annotated[bool, _option("Print JSON", "--json")] = False) -> None:
    """Show versions, hardware and what would be chosen here."""
    from nmt_cli.reporting.env import env as go

    typer.echo(go(as_json))


def _translated(model: Path, lines: list[str]) -> list[str]:
    with nmt_cli.Translator(model) as translator:
        return [translation.text for translation in translator.translate(lines)]


def _as_text(corpus: Any, data: Path) -> Any:
    """Return the corpus section; that of trees as one of plain text files, which are written beside `data`."""
    from nmt_cli.parsing.trees import linearise

    return linearise(corpus, Path(f"{data}-text")) if corpus.format == "trees" else corpus
