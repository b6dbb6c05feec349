"""What the commands' options have in common: how they are declared, and those that several commands take."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nmt_cli import console


def option(
    text: str, *names: str, default: Any = True, panel: Any = None, kind: Any = None, min: Any = None, max: Any = None
) -> Any:
    """Declare an option; `default` is what its help shows where the default is chosen later."""
    return typer.Option(*names, help=text, show_default=default, rich_help_panel=panel, metavar=kind, min=min, max=max)


file_option, directory_option, number_option = (partial(option, kind=kind) for kind in ("FILE", "DIR", "N"))
search_option = partial(number_option, panel="Search", default="the recipe's")
sampling_option = partial(number_option, panel="Sampling")
output_option, references_option, gate_option = (
    partial(option, panel=panel) for panel in ("Output", "References", "Gate")
)
model_option = partial(directory_option, default="$NMT_MODEL, else the newest under runs/")

RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file, such as recipes/toy.yaml")]
MARIAN = "A Marian model, of transformers (OPUS-MT) or its own files: a directory, or OWNER/NAME[@REVISION] of the hub"
RecipeName = Annotated[Path, typer.Argument(help="A name that nmt recipes lists, or a file")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run, such as runs/base")]
Set = Annotated[list[str] | None, option("Change a setting: training.steps=200", "--set", kind="KEY=VALUE")]
Data = Annotated[Path | None, directory_option("The prepared corpus", default="data/CORPUS")]
RunDirectory = Annotated[Path | None, directory_option("The run", "--run-dir", "--run", default="runs/RECIPE")]
Mirror = Annotated[Path | None, directory_option("Take a named corpus' files from here instead of the network")]
Workers = Annotated[int | None, number_option("Processes", default="one per core", min=1)]
Quantization = Literal["float32", "bfloat16", "int8"]
Precision = Literal["auto", "fp32", "bf16", "int8"]
Tokenizer = Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores200", "flores101", "spBLEU-1K", "none"]
DryRun = Annotated[bool, option("Say what it would take here, and stop", "--dry-run")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no log lines", callback=console.set_quiet)]

TextFormat = Annotated[
    Literal["text", "jsonl", "html", "md", "po"] | None,
    output_option(
        "jsonl: with scores, subwords and n-best; html, md, po: a whole file", default="by the file's suffix, else text"
    ),
]
Markup = Annotated[Literal["html"] | None, output_option("Each line has tags, to be put on its translation")]
Protect = Annotated[
    bool | None,
    output_option("Keep variables, URLs and such from the model", "--protect/--no-protect", default="on for files"),
]
TERMS = "What to say: lines of phrase, tab, form|form, and a tab and “any” if case is no matter"
TranslateTerms = Annotated[Path | None, file_option(TERMS, "--terms", panel="Search")]
ScoreTerms = Annotated[Path | None, references_option("Report how many of these terms are met", "--terms", kind="FILE")]
CopyWordless = Annotated[
    bool | None,
    search_option("Copy lines without letters, such as 3.14", "--copy-wordless/--no-copy-wordless", kind=None),
]
Prefix = Annotated[
    Path | None, file_option("How each line's translation must begin; its last word may go on", panel="Search")
]
Threads = Annotated[int | None, number_option("Threads; on GPUs processes", default="one per core, or GPU", min=1)]
Models = Annotated[list[Path] | None, model_option("The model, or OWNER/NAME of the hub; repeat: ensemble", "--model")]

METRICS = "bleu, chrf, chrf++, ter, comet, paper-bleu, paper-bleu-quotes, brackets; repeatable, the first gates"
CORPORA = (
    "toy-en-de, multi30k-en-de (-fr, -cs), wmt14-en-de, wmt14-en-fr or a reverse direction; hub:OWNER/NAME; or a "
    "recipe file. Default: toy-en-de, or your own text with --src and --tgt"
)
