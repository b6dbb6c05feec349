"""The command line: each command parses its options and calls one function.

Heavy modules are imported inside the commands, so that `nmt --help` starts fast.
"""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.exceptions import TyperException

import nmt_cli
from nmt_cli.commands import keys as key_commands
from nmt_cli.commands import models as models_command
from nmt_cli.commands import recipes as recipe_commands
from nmt_cli.commands import score as score_command
from nmt_cli.commands import serve as serve_command
from nmt_cli.commands import translate as translate_command
from nmt_cli.commands.help_pages import Command, Group, help_of
from nmt_cli.commands.options import (
    MARIAN,
    CommandName,
    CorpusName,
    Data,
    DryRun,
    Mirror,
    Quantization,
    Quiet,
    RecipeFile,
    RunArgument,
    RunDirectory,
    Set,
    Workers,
    directory_option,
    file_option,
    model_option,
    number_option,
    option,
    shard_option,
)
from nmt_cli.commands.usage_errors import usage_error
from nmt_cli.interop.formats import ARGOS
from nmt_cli.interop.named_models import model_directories
from nmt_cli.storage import artefact
from nmt_cli.system import console
from nmt_cli.system.errors import MissingError, UsageError

app = typer.Typer(
    help="Train, evaluate and run the Transformer of “Attention Is All You Need”, from raw text to translations.",
    epilog="Start with: nmt reproduce recipes/toy.yaml",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(recipe_commands.app, name="recipes", invoke_without_command=True)
app.add_typer(key_commands.app, name="keys", no_args_is_help=True)
command = partial(app.command, cls=Command)


def run() -> int:
    """Run the command in sys.argv and return its exit code."""
    try:
        return int(app(prog_name="nmt", standalone_mode=False) or 0)
    except TyperException as error:
        if (text := error.format_message()).startswith("Usage:"):  # `nmt` without arguments
            typer.echo(text, err=True)
            return UsageError.exit_code
        raise usage_error(error) from None


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, option("Print the version", "--version", "-v", "-V")] = False) -> None:
    if version:
        typer.echo(f"nmt {nmt_cli.__version__}")
        raise typer.Exit


@command()
def prepare(
    corpus: CorpusName = None,
    src: Annotated[
        list[str] | None,
        file_option("Training text, source side: file; or a column, key or language code in CORPUS; repeatable"),
    ] = None,
    tgt: Annotated[list[str] | None, file_option("Training text, target side; repeatable")] = None,
    dev_src: Annotated[str | None, file_option("Development text, source side", "--dev-src", "--valid-src")] = None,
    dev_tgt: Annotated[str | None, file_option("Development text, target side", "--dev-tgt", "--valid-tgt")] = None,
    test_src: Annotated[str | None, file_option("Test text, source side")] = None,
    test_tgt: Annotated[str | None, file_option("Test text, target side")] = None,
    config: Annotated[str | None, option("Configuration of a hub data set, such as de-en", kind="NAME")] = None,
    tokenizer: Annotated[Path | None, file_option("Existing SentencePiece model to use")] = None,
    limit: Annotated[int | None, number_option("Use only the first N training pairs", min=1)] = None,
    out: Annotated[Path | None, directory_option("Output directory", default="data/CORPUS")] = None,
    mirror: Mirror = None,
    workers: Workers = None,
    set_: Set = None,
    overwrite: Annotated[bool, option("Replace an existing corpus", "--overwrite")] = False,
    strict: Annotated[bool, option("Fail on suspicious text instead of warning", "--strict")] = False,
    stats: Annotated[bool, option("Show what each filter would drop, and write nothing", "--stats")] = False,
    dry_run: DryRun = False,
    shard: Annotated[
        str | None, shard_option("Do the work of worker I of N; give the same --out to all workers", kind="I/N|auto")
    ] = None,
    wait: Annotated[bool, shard_option("Wait for other shards instead of exiting", "--wait")] = False,
    quiet: Quiet = False,
) -> None:
    """Prepare a corpus: download, clean, learn subwords, encode."""
    from nmt_cli.commands import teacher
    from nmt_cli.corpus import prepare as command
    from nmt_cli.corpus.sources import choose
    from nmt_cli.system.shard import parse

    if wait and not shard:
        raise UsageError("--wait requires --shard")
    worker = parse(shard) if shard else None

    files = {"src": src, "tgt": tgt, "dev_src": dev_src, "dev_tgt": dev_tgt, "test_src": test_src, "test_tgt": test_tgt}
    given = {**files, "config": config, "tokenizer": tokenizer, "limit": limit}
    settings = choose(corpus, given, out, set_ or [])
    out = out or settings.directory
    options = command.PrepareOptions(
        mirror=mirror,
        workers=workers,
        overwrite=overwrite,
        dry_run=dry_run,
        wait=wait,
        strict=strict,
        translate=teacher.translate,
        translate_units=teacher.translate_units,
    )
    if stats:
        from nmt_cli.corpus.filter_stats import show

        show(settings, out, options)
    elif dry_run:
        command.prepare(settings, out, options)
    elif worker:
        from nmt_cli.corpus.shards import prepare_shard

        prepare_shard(_as_text(settings, out), out, options, worker)
    else:
        command.prepare(_as_text(settings, out), out, options)


@command()
def train(
    recipe: RecipeFile,
    set_: Set = None,
    data: Data = None,
    run: RunDirectory = None,
    tracker: Annotated[str | None, option("Also log to tensorboard, wandb or another tracker", kind="NAME")] = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> int:
    """Train a model from a recipe, or resume training.

    Run the same command again to continue where the run stopped.
    To train on several GPUs: accelerate launch -m nmt_cli train RECIPE
    """
    from nmt_cli.recipe.loading import load

    settings = load(recipe, set_ or [])
    data = data or settings.corpus.directory
    run = run or Path("runs") / settings.name
    if dry_run:
        from nmt_cli.training.estimate import dry_run as estimate

        return estimate(settings, data)
    if not artefact.present(data):  # fail before importing torch
        text = recipe if settings.corpus.has_text else "--src FILE --tgt FILE"
        raise MissingError(f"no prepared corpus in {data}. Run: nmt prepare {text} --out {data}")
    from nmt_cli.training import train as command

    return command.train(settings, data, run, tracker)


@command()
def average_checkpoints(
    run: RunArgument,
    last: Annotated[int | None, number_option("Number of checkpoints", default="the recipe's", min=1)] = None,
    out: Annotated[Path | None, directory_option("Output directory", default="RUN/model")] = None,
    data: Data = None,
) -> None:
    """Average the last checkpoints of a run into a model."""
    from nmt_cli.training.average import average

    average(run, last, out, data)


command()(translate_command.translate)
command()(serve_command.serve)
command()(models_command.models)


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
    """Run a recipe from raw text to the score.

    Prepares, trains, averages, translates, scores, and writes the report. Finished stages are skipped.
    """
    from nmt_cli.recipe.loading import load

    settings = load(recipe, set_ or [])
    data = data or settings.corpus.directory
    run = run or Path("runs") / settings.name
    from nmt_cli.commands import teacher
    from nmt_cli.corpus.prepare import PrepareOptions
    from nmt_cli.parsing import score as parsing
    from nmt_cli.reproduction.reproduce import reproduce as run_recipe
    from nmt_cli.scoring.score import evaluate

    score = parsing.evaluate if settings.corpus.format == "trees" else evaluate
    options = PrepareOptions(
        mirror=mirror,
        workers=workers,
        dry_run=dry_run,
        translate=teacher.translate,
        translate_units=teacher.translate_units,
    )
    text = settings.corpus if dry_run and not artefact.present(data) else _as_text(settings.corpus, data)
    code = run_recipe(settings, text, data, run, options, score)
    if not code and not dry_run and os.environ.get("RANK", "0") == "0":
        report(run, data=[data])
    return code


command()(score_command.score)


@command()
def report(
    run: RunArgument,
    compare: Annotated[list[Path] | None, option("Another run to compare with; repeatable", kind="RUN")] = None,
    out: Annotated[Path | None, file_option("Output page", default="RUN/report.html")] = None,
    data: Annotated[
        list[Path] | None, directory_option("Corpus of the runs; repeatable", default="data/CORPUS")
    ] = None,
) -> None:
    """Write a report of a run as a single HTML page."""
    from nmt_cli.parsing.score import evaluate as score_trees
    from nmt_cli.reporting.report import report as write_report

    page = write_report(run, compare or (), out, data or (), score_trees)
    console.say(f"report: {page}")


@command()
def doctor(
    run: RunArgument,
    hypothesis: Annotated[Path | None, file_option("Translations of the test set", default="RUN/test.hyp")] = None,
    reference: Annotated[Path | None, file_option("References", default="the corpus's test set")] = None,
    data: Data = None,
    as_json: Annotated[bool, option("Print JSON", "--json")] = False,
) -> None:
    """Find out why a run's BLEU is low.

    Lists problems, the most serious first, and how to fix them. The exit code is 0 even if there are problems.
    """
    from nmt_cli.reporting import doctor as command

    command.doctor(run, data, hypothesis, reference, as_json)


@command()
def attend(
    text: Annotated[list[str], typer.Argument(help="Source sentences")],
    model: Annotated[Path | None, model_option("Model directory, or OWNER/NAME on the hub")] = None,
    translation: Annotated[str | None, option("Translation to use instead of the model's", kind="TEXT")] = None,
    output: Annotated[Path, file_option("Output page", "--output", "-o")] = Path("attention.html"),
    role: Annotated[
        Literal["encoder", "decoder", "cross"], option("Attention to show in the terminal, and first on the page")
    ] = "encoder",
    layer: Annotated[int | None, number_option("Layer shown first", default="last", min=1)] = None,
    head: Annotated[int | None, number_option("Head shown first", default="most focused", min=1)] = None,
) -> int:
    """Show attention weights: all heads on an HTML page, one in the terminal."""
    from nmt_cli.reporting.attend import attend as write_page

    models = model_directories([model] if model else [])
    return write_page(
        text, models[0] if models else None, output, role=role, layer=layer, head=head, translation=translation
    )


@command()
def export(
    model: Annotated[Path, typer.Argument(help="Model directory, or run such as runs/base")],
    to: Annotated[Literal["hf", "ctranslate2", "argos"], option("Target toolkit; hf is transformers")],
    out: Annotated[Path, directory_option("Output directory; for argos a file NAME.argosmodel")],
    quantization: Annotated[
        Quantization | None,
        option("Weight type for ctranslate2 and argos", default="int8 for argos, float32 for ctranslate2"),
    ] = None,
    lines: Annotated[Path | None, file_option("Sentences to verify with", default="the corpus's dev set")] = None,
) -> int:
    """Export a model to another toolkit and verify it.

    Both models compute the probability of each token in translations of the same sentences. An export in float32 is
    kept only if these probabilities agree. With other weight types, they differ, and the differences are shown.
    """
    from nmt_cli.interop.export import export as export_model

    return export_model(model, to, out, quantization, lines)


@command("import")
def import_(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=MARIAN)],
    out: Annotated[Path | None, directory_option("Output directory", default="models/NAME")] = None,
    src: Annotated[str | None, option("Source language", kind="CODE", default="from the model's files")] = None,
    tgt: Annotated[str | None, option("Target language", kind="CODE", default="from the model's files")] = None,
) -> None:
    """Import a model of Argos, CTranslate2 or Marian, such as OPUS-MT, and verify it.

    Both models compute the probability of each token in translations of random sentences. The import is kept only if
    these probabilities agree. If the other toolkit is not installed, the import is not verified.
    """
    from nmt_cli.interop.importing import import_model

    path = Path(source)
    named = path if path.exists() else Path(source.partition("@")[0])  # OWNER/NAME@REVISION
    import_model(source, out or Path("models") / named.resolve().name.removesuffix(ARGOS), src, tgt)


@command()
def shortlist(
    model: Annotated[Path, typer.Argument(help="Model directory, or run such as runs/base")],
    src: Annotated[Path | None, file_option("Parallel text, source side")] = None,
    tgt: Annotated[Path | None, file_option("Parallel text, target side")] = None,
    vmap: Annotated[Path | None, file_option("CTranslate2 vocabulary map, instead of parallel text")] = None,
    best: Annotated[int, number_option("Number of target subwords per source subword", min=1)] = 100,
    frequent: Annotated[int, number_option("Number of frequent target subwords allowed in every line", min=0)] = 500,
    quiet: Quiet = False,
) -> int:
    """Learn which target words a line may need, for faster search.

    The shortlist is stored in the model directory. nmt translate --shortlist auto uses it.
    """
    if vmap and not (src or tgt):
        from nmt_cli.interop.vocabulary_map import import_vocabulary_map

        return import_vocabulary_map(model, vmap)
    if vmap or not (src and tgt):
        raise UsageError("pass either --src and --tgt, or --vmap")
    from nmt_cli.training.shortlist import learn_shortlist

    return learn_shortlist(model, src, tgt, best, frequent)


@command("help")
def help_(context: typer.Context, names: CommandName = None) -> None:
    """Show the help of a command."""
    typer.echo(help_of(context.find_root(), names or []))


@command()
def env(as_json: Annotated[bool, option("Print JSON", "--json")] = False) -> None:
    """Show versions, hardware and the defaults chosen for this machine."""
    from nmt_cli.reporting.env import env as describe

    typer.echo(describe(as_json))


def _as_text(corpus: Any, data: Path) -> Any:
    """Return a recipe's corpus section. If its files are trees, convert them to text files in `{data}-text`."""
    from nmt_cli.parsing.trees import linearize

    return linearize(corpus, Path(f"{data}-text")) if corpus.format == "trees" else corpus
