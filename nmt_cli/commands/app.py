"""The command line: parse, call one function, return its exit code. Nothing heavy is imported before it is needed."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.exceptions import TyperException

import nmt_cli
from nmt_cli import documents
from nmt_cli.commands import recipes as recipe_commands
from nmt_cli.commands import serve as serve_command
from nmt_cli.commands.options import (
    MARIAN,
    METRICS,
    Command,
    CommandName,
    CopyWordless,
    CorpusName,
    Data,
    DryRun,
    Group,
    Markup,
    Mirror,
    Models,
    Precision,
    Prefix,
    Protect,
    Quantization,
    Quiet,
    RecipeFile,
    RunArgument,
    RunDirectory,
    ScoreTerms,
    Set,
    TextFormat,
    Threads,
    Tokenizer,
    TranslateTerms,
    Workers,
    directory_option,
    file_option,
    gate_option,
    help_of,
    mistake,
    model_option,
    number_option,
    option,
    output_option,
    references_option,
    sampling_option,
    search_option,
)
from nmt_cli.interop.named_models import model_directories
from nmt_cli.storage import artefact
from nmt_cli.system import console
from nmt_cli.system.errors import MissingError, UsageError

app = typer.Typer(
    help="Train, evaluate and run the Transformer of “Attention Is All You Need”: raw text in, raw text out.",
    epilog="Start with: nmt reproduce recipes/toy.yaml",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(recipe_commands.app, name="recipes", invoke_without_command=True)
command = partial(app.command, cls=Command)


def run() -> int:
    try:
        return int(app(prog_name="nmt", standalone_mode=False) or 0)
    except TyperException as error:
        if (text := error.format_message()).startswith("Usage:"):  # nmt alone
            typer.echo(text, err=True)
            return UsageError.exit_code
        raise mistake(error) from None


def _build(kind: Any, parameters: dict[str, Any], *others: str) -> Any:
    """Make a dataclass from a command's parameters but for `others`; None leaves a field its default."""
    chosen = {name: value for name, value in parameters.items() if name not in others and value is not None}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in chosen.items()})


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, option("Print the version", "--version", "-v", "-V")] = False) -> None:
    if version:
        typer.echo(f"nmt {nmt_cli.__version__}")
        raise typer.Exit


@command()
def prepare(
    corpus: CorpusName = None,
    src: Annotated[list[str] | None, file_option("Your training text (repeatable); of hub data: key or column")] = None,
    tgt: Annotated[list[str] | None, file_option("The same for the target side")] = None,
    dev_src: Annotated[str | None, file_option("Development text, source side", "--dev-src", "--valid-src")] = None,
    dev_tgt: Annotated[str | None, file_option("Development text, target side", "--dev-tgt", "--valid-tgt")] = None,
    test_src: Annotated[str | None, file_option("Test text, source side")] = None,
    test_tgt: Annotated[str | None, file_option("Test text, target side")] = None,
    config: Annotated[str | None, option("Configuration of a hub data set, such as de-en", kind="NAME")] = None,
    tokenizer: Annotated[Path | None, file_option("Reuse this SentencePiece model")] = None,
    limit: Annotated[int | None, number_option("Take the first N training pairs only", min=1)] = None,
    out: Annotated[Path | None, directory_option("Where to write", default="data/CORPUS")] = None,
    mirror: Mirror = None,
    workers: Workers = None,
    set_: Set = None,
    overwrite: Annotated[bool, option("Overwrite an existing corpus", "--overwrite")] = False,
    strict: Annotated[bool, option("Refuse doubtful text instead of warning", "--strict")] = False,
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


@command()
def train(
    recipe: RecipeFile,
    set_: Set = None,
    data: Data = None,
    run: RunDirectory = None,
    tracker: Annotated[str | None, option("Also log to tensorboard, wandb, … by Accelerate", kind="NAME")] = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> int:
    """Train a recipe's model, or resume it.

    The same command again goes on where the run stopped. Several GPUs: accelerate launch -m nmt_cli train RECIPE
    """
    from nmt_cli.recipe.loading import load

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


@command()
def average_checkpoints(
    run: RunArgument,
    last: Annotated[int | None, number_option("How many checkpoints", default="the recipe's", min=1)] = None,
    out: Annotated[Path | None, directory_option("The model", default="RUN/model")] = None,
    data: Data = None,
) -> None:
    """Average a run's last checkpoints."""
    from nmt_cli.training.average import average

    average(run, last, out, data)


@command()
def translate(
    file: Annotated[Path | None, typer.Argument(help="Lines to translate", show_default="stdin")] = None,
    input: Annotated[Path | None, file_option("Lines to translate", "--input", "-i", default="stdin")] = None,
    output: Annotated[Path | None, file_option("Output, when complete", "--output", "-o", default="stdout")] = None,
    models: Models = None,
    precision: Annotated[Precision, option("Arithmetic; auto: int8 on CPUs made for it")] = "auto",
    workers: Threads = None,
    strict: Annotated[bool, option("Refuse input that is not UTF-8", "--strict")] = False,
    quiet: Quiet = False,
    beam: Annotated[int | None, search_option("Hypotheses kept per sentence; 1 is greedy", min=1)] = None,
    alpha: Annotated[float | None, search_option("Length penalty", min=0, max=10)] = None,
    extra_length: Annotated[int | None, search_option("Longest output: source plus N subwords", min=1)] = None,
    split: Annotated[Literal["auto", "off"], search_option("Split long lines at sentence ends", kind="WHEN")] = "auto",
    copy_wordless: CopyWordless = None,
    prefix: Prefix = None,
    terms: TranslateTerms = None,
    score_pairs: Annotated[Path | None, file_option("Score these given translations instead", panel="Search")] = None,
    sample: Annotated[bool, sampling_option("Draw translations instead of searching", "--sample", kind=None)] = False,
    temperature: Annotated[float | None, sampling_option("Below 1: fewer surprises", default="1", min=0.01)] = None,
    top_k: Annotated[int | None, sampling_option("Number of likeliest subwords to draw from", min=0)] = None,
    top_p: Annotated[float | None, sampling_option("Share of the probability to draw from", min=0, max=1)] = None,
    seed: Annotated[int | None, sampling_option("Random seed", default="1", min=0, max=2**64 - 1)] = None,
    format: TextFormat = None,
    markup: Markup = None,
    protect: Protect = None,
    n_best: Annotated[int, output_option("Hypotheses printed per line", kind="N", min=1)] = 1,
    alignments: Annotated[bool, output_option("Add word alignments of the best", "--alignments")] = False,
) -> int:
    """Translate lines of text, or a file of HTML, Markdown or gettext.

    One line out for every line in, in order; stdout carries nothing else. It uses all cores or all GPUs by itself.
    """
    if file and input:
        raise UsageError("the lines to translate are named twice. Leave out --input")
    plain = {"alignments": alignments, "prefix": prefix, "score_pairs": score_pairs, "n_best": n_best > 1}
    run = documents.choose(format, input or file, markup, protect, [name for name, used in plain.items() if used])
    draws = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    if not sample and (typed := [name for name, value in draws.items() if value is not None]):
        raise UsageError(f"--{typed[0].replace('_', '-')} requires --sample")
    if sample and (beam is not None or terms):
        raise UsageError(f"--sample draws and does not search: leave out {'--terms' if terms else '--beam'}")
    from nmt_cli.corpus.terms import Terms
    from nmt_cli.translation import translate as command
    from nmt_cli.translation.segments import Sampling

    search: dict[str, Any] = {"beam": beam, "alpha": alpha, "extra_length": extra_length, "n_best": n_best}
    search["split"] = None if split == "auto" else False
    search["copy_wordless"] = copy_wordless
    search["sampling"] = _build(Sampling, draws) if sample else None
    search["terms"] = Terms.read(terms) if terms else None
    options = command.TranslateOptions(
        input=input or file, output=output, models=model_directories(models or []), search=search, precision=precision,
        format=format or "text", strict=strict, prefix=prefix, score_pairs=score_pairs, alignments=alignments,
        workers=workers,
    )  # fmt: skip
    return command.translate(options, run)


command()(serve_command.serve)


@command()
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
    from nmt_cli.recipe.loading import load

    settings = load(recipe, set_ or [])
    data, run = data or settings.corpus.directory, run or Path("runs") / settings.name
    from nmt_cli.commands import reproduce as command
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


@command()
def score(
    hypothesis: Annotated[Path | None, typer.Argument(help="Hypotheses, one a line; - for stdin")] = None,
    model: Annotated[Path | None, directory_option("Translate the sources with this model first")] = None,
    metrics: Annotated[list[str] | None, option(METRICS, "--metric", default="by language", kind="NAME")] = None,
    tokenize: Annotated[Tokenizer | None, option("sacreBLEU's tokenizer", default="by language")] = None,
    lowercase: Annotated[bool, option("Ignore case", "--lowercase")] = False,
    language: Annotated[str | None, option("Language of the hypotheses, such as de or zh", kind="CODE")] = None,
    comet_python: Annotated[Path | None, file_option("Python with unbabel-comet, for --metric comet")] = None,
    comet_model: Annotated[
        str, option("COMET model; Apache-2.0, which others may not be", kind="NAME")
    ] = "Unbabel/wmt22-comet-da",
    intervals: Annotated[bool, option("The 95 % interval of each score", "--intervals/--no-intervals")] = True,
    details: Annotated[bool, option("BLEU by length and near-twins; best, worst segments", "--details")] = False,
    segments: Annotated[Path | None, file_option("Write every segment's scores as JSON lines")] = None,
    format: Annotated[Literal["text", "json", "markdown"], option("Output format")] = "text",
    references: Annotated[list[Path] | None, references_option("Repeatable", "--reference", "-r", kind="FILE")] = None,
    source: Annotated[Path | None, references_option("Sources: shown, and for --terms and COMET", kind="FILE")] = None,
    test_set: Annotated[str | None, references_option("Of sacreBLEU, such as wmt14/full", "--test-set", "-t")] = None,
    language_pair: Annotated[str | None, references_option("Its direction: en-de", "--language-pair", "-l")] = None,
    corpus: Annotated[Path | None, references_option("Prepared corpus with the references", kind="DIR")] = None,
    terms: ScoreTerms = None,
    split: Annotated[Literal["dev", "test", "general"], references_option("Part of --corpus")] = "test",
    baseline: Annotated[Path | None, gate_option("Other hypotheses, for significance", kind="FILE")] = None,
    fail_under: Annotated[float | None, gate_option("Exit with 1 if the first metric is below N", kind="N")] = None,
    fail_if_worse: Annotated[bool, gate_option("Exit with 1 below --baseline, p < 0.05", "--fail-if-worse")] = False,
) -> int:
    """Score translations; gate a CI job."""
    from nmt_cli.parsing import score as parsing
    from nmt_cli.scoring import score as command

    options = _build(command.ScoreOptions, locals(), "model", "command", "parsing")
    evaluate = parsing.evaluate if parsing.wanted(options) else command.evaluate
    report = evaluate(options, partial(_translated, model) if model else None)
    return command.print_report(report, options.format)


@command()
def report(
    run: RunArgument,
    compare: Annotated[list[Path] | None, option("Lay this run beside it (repeatable)", kind="RUN")] = None,
    out: Annotated[Path | None, file_option("The page", default="RUN/report.html")] = None,
    data: Annotated[list[Path] | None, directory_option("Its corpus, and of --compare", default="data/CORPUS")] = None,
) -> None:
    """Write a run's report as one HTML page."""
    from nmt_cli.parsing.score import evaluate as score_trees
    from nmt_cli.reporting.report import report as go

    console.say(f"report: {go(run, compare or (), out, data or (), score_trees)}")


@command()
def doctor(
    run: RunArgument,
    hypothesis: Annotated[Path | None, file_option("Translations of the test set", default="RUN/test.hyp")] = None,
    reference: Annotated[Path | None, file_option("Their reference", default="the corpus's test set")] = None,
    data: Data = None,
    as_json: Annotated[bool, option("Print JSON", "--json")] = False,
) -> None:
    """Say why a run's BLEU is low.

    Lists what went wrong, the most serious first, and what to do. The exit code is 0 whatever is listed.
    """
    from nmt_cli.reporting import doctor as command

    command.doctor(run, data, hypothesis, reference, as_json)


@command()
def attend(
    text: Annotated[list[str], typer.Argument(help="One or more source sentences")],
    model: Annotated[Path | None, model_option("The model")] = None,
    translation: Annotated[str | None, option("Shown instead of the model's own", kind="TEXT")] = None,
    output: Annotated[Path, file_option("The page", "--output", "-o")] = Path("attention.html"),
    role: Annotated[Literal["encoder", "decoder", "cross"], option("Shown first, and in the terminal")] = "encoder",
    layer: Annotated[int | None, number_option("Layer shown first", default="the last", min=1)] = None,
    head: Annotated[int | None, number_option("Head shown first", default="the sharpest", min=1)] = None,
) -> int:
    """Show where each head looks: all on a page, one in the terminal."""
    from nmt_cli.reporting.attend import attend as go

    models = model_directories([model] if model else [])
    return go(text, models[0] if models else None, output, role, layer, head, translation)


@command()
def export(
    model: Annotated[Path, typer.Argument(help="A model directory, or a run such as runs/base")],
    to: Annotated[Literal["hf", "ctranslate2"], option("hf is transformers")],
    out: Annotated[Path, directory_option("The new directory")],
    quantization: Annotated[Quantization | None, option("For ctranslate2", default="float32")] = None,
    lines: Annotated[Path | None, file_option("Sentences to compare on", default="the corpus's dev set")] = None,
) -> int:
    """Hand a model to another toolkit, with proof.

    The export translates real sentences and is kept only if it says what the original says.
    """
    from nmt_cli.interop.export import export as go

    return go(model, to, out, quantization, lines)


@command("import")
def import_(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=MARIAN)],
    out: Annotated[Path | None, directory_option("The new model directory", default="models/NAME")] = None,
) -> None:
    """Bring a Marian model here, from transformers or from its own files."""
    from nmt_cli.interop.importing import import_model

    import_model(source, out or Path("models") / Path(source.partition("@")[0]).resolve().name)


@command("help")
def help_(context: typer.Context, names: CommandName = None) -> None:
    """Show the help of a command."""
    typer.echo(help_of(context.find_root(), names or []))


@command()
def env(as_json: Annotated[bool, option("Print JSON", "--json")] = False) -> None:
    """Show versions, hardware and what would be chosen here."""
    from nmt_cli.reporting.env import env as go

    typer.echo(go(as_json))


def _translated(model: Path, lines: list[str]) -> list[str]:
    with nmt_cli.Translator(model_directories([model])) as translator:
        return [translation.text for translation in translator.translate(lines)]


def _as_text(corpus: Any, data: Path) -> Any:
    """Return the corpus section; that of trees as one of plain text files, which are written beside `data`."""
    from nmt_cli.parsing.trees import linearise

    return linearise(corpus, Path(f"{data}-text")) if corpus.format == "trees" else corpus
