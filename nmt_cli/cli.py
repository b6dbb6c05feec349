"""The command line: parse, call one function, print. Nothing heavy is imported before a command needs it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nmt_cli import __version__

app = typer.Typer(
    name="nmt",
    help="Train, evaluate and run the Transformer of “Attention Is All You Need”: raw text in, raw text out.",
    epilog="Start with: nmt reproduce recipes/toy.yaml",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file, such as recipes/toy.yaml")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one knob of the recipe, e.g. training.steps=200"),
]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="The prepared corpus [default: data/<corpus>]")]
RunDirectory = Annotated[
    Path | None, typer.Option("--run-dir", "--run", metavar="DIR", help="The run [default: runs/<recipe>]")
]
Mirror = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Take a named corpus' files from here instead of the network")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes [default: one per core]")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no log lines")]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"nmt {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit")
    ] = False,
) -> None:
    """Root options."""


@app.command()
def prepare(
    corpus: Annotated[
        str | None,
        typer.Argument(
            metavar="[CORPUS]",
            help="toy-en-de, multi30k-en-de (-fr, -cs), wmt14-en-de, wmt14-en-fr or a reverse direction; "
            "hub:OWNER/NAME; or a recipe file. Default: toy-en-de, or your own text with --src and --tgt",
        ),
    ] = None,
    src: Annotated[
        list[str] | None, typer.Option(help="Your training text, source side (repeatable); with hub: its language")
    ] = None,
    tgt: Annotated[
        list[str] | None, typer.Option(help="Your training text, target side (repeatable); with hub: its language")
    ] = None,
    valid_src: Annotated[str | None, typer.Option(metavar="FILE", help="Development text, source side")] = None,
    valid_tgt: Annotated[str | None, typer.Option(metavar="FILE", help="Development text, target side")] = None,
    test_src: Annotated[str | None, typer.Option(metavar="FILE", help="Test text, source side")] = None,
    test_tgt: Annotated[str | None, typer.Option(metavar="FILE", help="Test text, target side")] = None,
    config: Annotated[str | None, typer.Option(help="Configuration of a hub data set, such as de-en")] = None,
    tokenizer: Annotated[Path | None, typer.Option(metavar="FILE", help="Reuse this SentencePiece model")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Take the first N training pairs only")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where [default: data/<corpus>]")] = None,
    mirror: Mirror = None,
    workers: Workers = None,
    set_: Set = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a corpus prepared otherwise")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse doubtful text instead of warning")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take and stop")] = False,
    quiet: Quiet = False,
) -> None:
    """Turn raw text into training ids.

    Download, clean, learn subwords, encode, and report what was dropped and why.
    """
    from nmt_cli import console
    from nmt_cli.corpus.choose import choose
    from nmt_cli.corpus.prepare import PrepareOptions
    from nmt_cli.corpus.prepare import prepare as run

    console.set_quiet(quiet)
    given = {
        "src": src, "tgt": tgt, "dev_src": valid_src, "dev_tgt": valid_tgt, "test_src": test_src, "test_tgt": test_tgt,
        "config": config, "limit": limit, "tokenizer": tokenizer,
    }  # fmt: skip
    settings = choose(corpus, given, out, set_ or [])
    target = out or corpus_directory(settings.name)
    run(settings, target, PrepareOptions(mirror, workers, overwrite, dry_run, strict))


@app.command()
def train(
    recipe: RecipeFile,
    set_: Set = None,
    data: Data = None,
    run: RunDirectory = None,
    tracker: Annotated[str | None, typer.Option(help="Also log to tensorboard, wandb, … through Accelerate")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take here, and stop")] = False,
    quiet: Quiet = False,
) -> None:
    """Train a recipe's model, or resume it.

    The same command again goes on where the run stopped. Several processes: accelerate launch -m nmt_cli train RECIPE
    """
    from nmt_cli import console
    from nmt_cli.recipe import load

    console.set_quiet(quiet)
    settings = load(recipe, set_ or [])
    data, run = data or corpus_directory(settings.corpus.name), run or Path("runs") / settings.name
    if dry_run:
        from nmt_cli.training.estimate import dry_run as estimate

        raise typer.Exit(estimate(settings, data))
    _need_corpus(data)
    from nmt_cli.training.train import TrainOptions
    from nmt_cli.training.train import train as go

    raise typer.Exit(go(settings, TrainOptions(data, run, tracker)))


@app.command()
def average_checkpoints(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, such as runs/base")],
    last: Annotated[int | None, typer.Option(min=1, help="How many [default: the recipe's]")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The model [default: RUN/model]")] = None,
) -> None:
    """Average a run's last checkpoints."""
    from nmt_cli.errors import MissingError

    if not run.is_dir():
        raise MissingError(f"no run in {run}. Train one: nmt train RECIPE")
    from nmt_cli.console import say
    from nmt_cli.training.average import average

    model, steps = average(run, last, out)
    say(f"{model} is the mean of {len(steps)} checkpoints, steps {steps[0]:,} to {steps[-1]:,}")


@app.command()
def translate(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Lines to translate [default: stdin]")] = None,
    input: Annotated[
        Path | None, typer.Option("--input", "-i", metavar="FILE", help="Lines to translate [default: stdin]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Appears when complete [default: stdout]")
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Model directory; repeat it for an ensemble [default: $NMT_MODEL, else the newest under runs/]",
        ),
    ] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Hypotheses kept per sentence; 1 is greedy [default: the recipe's]")
    ] = None,
    alpha: Annotated[float | None, typer.Option(min=0, help="Length penalty [default: the recipe's]")] = None,
    extra_length: Annotated[
        int | None, typer.Option(min=1, help="Longest output: source plus this many pieces [default: the recipe's]")
    ] = None,
    precision: Annotated[str, typer.Option(help="fp32, bf16, int8, or auto: int8 on CPUs made for it")] = "auto",
    format: Annotated[str, typer.Option(help="text or jsonl (scores, pieces, n-best)")] = "text",
    n_best: Annotated[int, typer.Option(min=1, help="Hypotheses printed per line")] = 1,
    split: Annotated[str, typer.Option(help="auto: cut long lines at sentence ends and rejoin; off")] = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="Refuse input that is not UTF-8")] = False,
    prefix: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Each line's translation must begin like this file's")
    ] = None,
    score_pairs: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Score these given translations instead")
    ] = None,
    alignments: Annotated[bool, typer.Option("--alignments", help="Add word alignments")] = False,
    attention: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all attention weights (safetensors)")
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw translations instead of searching")] = False,
    temperature: Annotated[float | None, typer.Option(min=0.01, help="Of --sample [default: 1]")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="Of --sample: only the k likeliest pieces")] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Of --sample: only this much probability")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**64 - 1, help="Of --sample [default: 1]")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes on the CPU [default: one per core]")] = None,
    quiet: Quiet = False,
) -> None:
    """Translate lines of text.

    One line out for every line in, in order; stdout carries nothing else. It uses all cores or one GPU; several GPUs:
    accelerate launch -m nmt_cli translate
    """
    from nmt_cli import console
    from nmt_cli.errors import UsageError

    console.set_quiet(quiet)
    if split not in ("auto", "off"):
        raise UsageError(f"--split must be auto or off, not {split!r}")
    knobs = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    drawing: dict[str, Any] = {name: value for name, value in knobs.items() if value is not None}
    if drawing and not sample:
        raise UsageError(f"--{next(iter(drawing)).replace('_', '-')} is of --sample: add it, or leave both out")
    from nmt_cli.translation.candidates import Sampling
    from nmt_cli.translation.translate import TranslateOptions
    from nmt_cli.translation.translate import translate as go

    options = TranslateOptions(
        input=input or file,
        output=output,
        models=tuple(model or ()),
        beam=beam,
        alpha=alpha,
        extra_length=extra_length,
        precision=precision,
        format=format,
        n_best=n_best,
        split=None if split == "auto" else False,
        strict=strict,
        prefix=prefix,
        score_pairs=score_pairs,
        alignments=alignments,
        attention=attention,
        sampling=Sampling(**drawing) if sample else None,
        workers=workers,
    )
    raise typer.Exit(go(options))


@app.command()
def reproduce(
    recipe: RecipeFile,
    set_: Set = None,
    mirror: Mirror = None,
    data: Data = None,
    run: RunDirectory = None,
    workers: Workers = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take here, and stop")] = False,
    quiet: Quiet = False,
) -> None:
    """Play a recipe from raw text to the score.

    Prepare, train, average, translate and score in order, skipping what is done.
    """
    from nmt_cli import console
    from nmt_cli.recipe import load

    console.set_quiet(quiet)
    settings = load(recipe, set_ or [])
    data, run = data or corpus_directory(settings.corpus.name), run or Path("runs") / settings.name
    from nmt_cli.reproduce import ReproduceOptions
    from nmt_cli.reproduce import reproduce as go

    raise typer.Exit(go(settings, ReproduceOptions(data, run, mirror, workers, dry_run)))


@app.command()
def score(
    hypothesis: Annotated[
        Path | None, typer.Argument(metavar="[HYP]", help="Hypotheses, one a line; - for stdin")
    ] = None,
    reference: Annotated[
        list[Path] | None, typer.Option("--reference", "-r", metavar="FILE", help="References (repeatable)")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sources, to count copies and show segments")
    ] = None,
    test_set: Annotated[
        str | None, typer.Option("--test-set", "-t", metavar="NAME", help="A sacreBLEU test set, such as wmt14/full")
    ] = None,
    language_pair: Annotated[
        str | None, typer.Option("--language-pair", "-l", metavar="SRC-TGT", help="Its direction, such as en-de")
    ] = None,
    corpus: Annotated[Path | None, typer.Option(metavar="DIR", help="Take references from a prepared corpus")] = None,
    split: Annotated[str, typer.Option(help="Which part of --corpus: dev or test")] = "test",
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Translate the sources with this model first")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="bleu, chrf, ter, paper-bleu, paper-bleu-quotes, brackets (repeatable; the first one gates) "
            "[default: bleu, chrf, and paper-bleu for German and French; brackets for trees]"
        ),
    ] = None,
    language: Annotated[str | None, typer.Option(help="Of the hypotheses, for paper-bleu")] = None,
    tokenize: Annotated[str, typer.Option(help="13a, intl, char, zh or none")] = "13a",
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Ignore case")] = False,
    baseline: Annotated[Path | None, typer.Option(metavar="FILE", help="Other hypotheses, for significance")] = None,
    fail_under: Annotated[
        float | None, typer.Option(metavar="SCORE", help="Exit with 1 if the first metric is below this score")
    ] = None,
    fail_if_worse: Annotated[
        bool,
        typer.Option(
            "--fail-if-worse", help="Exit with 1 if significantly worse than --baseline (paired bootstrap, p < 0.05)"
        ),
    ] = False,
    details: Annotated[bool, typer.Option("--details", help="Length buckets, best and worst segments")] = False,
    segments: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every segment's scores as JSON lines")
    ] = None,
    format: Annotated[str, typer.Option(help="text, json or markdown")] = "text",
) -> None:
    """Score translations; gate a CI job.

    sacreBLEU and chrF with their signatures, BLEU as the paper computed it, and F1 of the brackets of trees.
    """
    from nmt_cli.scoring.score import ScoreOptions
    from nmt_cli.scoring.score import score_command, source_lines

    options = ScoreOptions(
        hypothesis=hypothesis,
        references=tuple(reference or ()),
        source=source,
        test_set=test_set,
        language_pair=language_pair,
        corpus=corpus,
        split=split,
        language=language,
        metrics=tuple(metric or ()),
        tokenize=tokenize,
        lowercase=lowercase,
        baseline=baseline,
        fail_under=fail_under,
        fail_if_worse=fail_if_worse,
        details=details,
        segments=segments,
        format=format,
    )
    lines = None
    if model is not None:
        from nmt_cli.translation.translate import translate_all

        lines = translate_all(model, source_lines(options))
    raise typer.Exit(score_command(options, lines))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, such as runs/base")],
    compare: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="Lay this run beside it (repeatable)")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The page [default: RUN/report.html]")] = None,
    data: Data = None,
) -> None:
    """Write a run's report as one HTML page.

    Data, model, curves, samples and scores, in one file that asks for nothing from anywhere.
    """
    from nmt_cli.console import say
    from nmt_cli.reporting.report import report as go

    say(f"report: {go(run, compare or (), out, data)}")


@app.command()
def doctor(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, such as runs/base")],
    hypothesis: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Translations of the test set [default: RUN/test.hyp]")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Their reference [default: the corpus's test set]")
    ] = None,
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Say why a run's BLEU is low.

    Lists what departs from the paper or is broken, the most costly first, and what each usually costs. The exit code
    is 0 whatever is found, and another only if the run cannot be read.
    """
    from nmt_cli.reporting.doctor import doctor as go

    go(run, data, hypothesis, reference, as_json)


@app.command()
def attend(
    text: Annotated[list[str], typer.Argument(metavar="TEXT...", help="One or more source sentences")],
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The model [default: $NMT_MODEL, else the newest]")
    ] = None,
    translation: Annotated[str | None, typer.Option(help="Show this translation instead of the model's own")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page")] = Path("attention.html"),
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Also a picture; needs matplotlib")] = None,
    role: Annotated[str, typer.Option(help="encoder, decoder or cross: shown first, and in the terminal")] = "encoder",
    layer: Annotated[int | None, typer.Option(min=1, help="Layer shown first [default: the last]")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Head shown first [default: the sharpest]")] = None,
) -> None:
    """Show where each head looks.

    Writes a page with all heads of all layers for the text and its translation, and draws one head in the terminal.
    """
    from nmt_cli.reporting.attend import AttendOptions
    from nmt_cli.reporting.attend import attend as go

    options = AttendOptions(
        model=model, output=output, png=png, role=role, layer=layer, head=head, translation=translation
    )
    raise typer.Exit(go(text, options))


@app.command()
def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model directory, or a run such as runs/base")],
    to: Annotated[str, typer.Option(help="hf (transformers) or ctranslate2")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The new directory")],
    quantization: Annotated[str | None, typer.Option(help="For ctranslate2: float32, bfloat16 or int8")] = None,
    lines: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sentences to compare on [default: the corpus' dev]")
    ] = None,
) -> None:
    """Hand a model to another toolkit, with proof.

    The export translates real sentences and is kept only if it says what the original says.
    """
    from nmt_cli.interop.export import export as go

    raise typer.Exit(go(model, to, out, quantization, lines))


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="HF_DIR", help="A Marian model of transformers (OPUS-MT)")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The new model directory")],
) -> None:
    """Bring a Marian model of transformers here.

    The result runs in nmt translate and can be trained further (training.init_from).
    """
    from nmt_cli.interop.import_ import import_marian

    import_marian(source, out)


def corpus_directory(name: str | None) -> Path:
    """Return where the prepared corpus of this name lies."""
    return Path("data") / str(name).removeprefix("hub:").replace("/", "-")


def _need_corpus(data: Path) -> None:
    """Say that a corpus is missing before torch is imported."""
    from nmt_cli.errors import MissingError

    if not (data / "manifest.json").exists():
        raise MissingError(f"no prepared corpus in {data}. Run: nmt prepare {data.name}")
