"""Functions that declare options, and options that are long or that several commands share."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nmt_cli.commands.completion import complete_corpus, complete_recipe
from nmt_cli.documents.formats import FORMATS
from nmt_cli.system import console


def option(
    text: str, *names: str, default: Any = True, panel: Any = None, kind: Any = None, min: Any = None, max: Any = None
) -> Any:
    """Declare an option. If `default` is text, the help page shows it in place of the default value.

    `panel` is the section of the help page, and `kind` is the placeholder for the value, such as FILE.
    """
    return typer.Option(*names, help=text, show_default=default, rich_help_panel=panel, metavar=kind, min=min, max=max)


file_option = partial(option, kind="FILE")
directory_option = partial(option, kind="DIR")
number_option = partial(option, kind="N")
search_option = partial(number_option, panel="Search", default="the recipe's")
sampling_option = partial(number_option, panel="Sampling")
output_option = partial(option, panel="Output")
shard_option = partial(option, panel="Many machines", kind="DIR")
references_option = partial(option, panel="References")
gate_option = partial(option, panel="CI gate")
model_option = partial(directory_option, default="$NMT_MODEL, else the newest under runs/")

Precision = Literal["auto", "fp32", "bf16", "int8"]
Quantization = Literal["float32", "bfloat16", "int8"]
Tokenizer = Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores200", "flores101", "spBLEU-1K", "none"]
DATABASE = "Database of glossaries, usage and API keys: an SQLite file or postgresql://USER:PASSWORD@HOST/NAME"
DATABASE_VARIABLE = "NMT_DATABASE"
PRECISION = "Numeric precision; auto picks int8 on CPUs with fast int8 instructions"

CORPORA = (
    "Recipe file, file with both languages such as memory.tmx, hub:OWNER/NAME, or named corpus: toy-en-de, "
    "multi30k-en-de, multi30k-en-fr, multi30k-en-cs, wmt14-en-de, wmt14-en-fr, or a reverse such as wmt14-de-en"
)
CorpusName = Annotated[
    str | None,
    typer.Argument(
        help=CORPORA, autocompletion=complete_corpus, show_default="toy-en-de, or the files of --src and --tgt"
    ),
]
RecipeFile = Annotated[
    Path,
    typer.Argument(
        metavar="RECIPE", help="Recipe file or name, such as recipes/toy.yaml", autocompletion=complete_recipe
    ),
]
RecipeName = Annotated[
    Path, typer.Argument(help="Recipe file, or a name listed by nmt recipes", autocompletion=complete_recipe)
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory, such as runs/base")]
CommandName = Annotated[
    list[str] | None, typer.Argument(metavar="COMMAND", help="Command name, such as translate or recipes show")
]

Set = Annotated[
    list[str] | None,
    option("Override a setting, such as training.steps=200; repeatable", "--set", kind="KEY=VALUE"),
]
Data = Annotated[Path | None, directory_option("Prepared corpus", default="data/CORPUS")]
RunDirectory = Annotated[Path | None, directory_option("Run directory", "--run-dir", "--run", default="runs/RECIPE")]
Mirror = Annotated[Path | None, directory_option("Read named corpora from this directory, not from the network")]
Workers = Annotated[int | None, number_option("Number of processes", default="one per core", min=1)]
DryRun = Annotated[bool, option("Estimate time and memory, then exit", "--dry-run")]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Hide progress and log messages", callback=console.set_quiet)
]

Models = Annotated[
    list[Path] | None,
    model_option(
        "Model directory (nmt, Firefox or CTranslate2), Argos package, or OWNER/NAME on the hub; repeat for an "
        "ensemble",
        "--model",
    ),
]
Threads = Annotated[
    int | None, number_option("Number of CPU threads, or maximum number of GPUs", default="one per core or GPU", min=1)
]
CopyWordless = Annotated[
    bool | None,
    search_option("Copy lines without letters, such as 3.14", "--copy-wordless/--no-copy-wordless", kind=None),
]
Case = Annotated[
    Literal["auto", "off"] | None,
    search_option("Translate upper case and title case as sentence case, then restore the case", kind="WHEN"),
]
Spelling = Annotated[
    Literal["auto", "off"] | None,
    search_option("Correct typos, if the model has word counts", kind="WHEN"),
]
Prefix = Annotated[
    Path | None,
    file_option("Forced beginnings of the translations, one per line; they may end within a word", panel="Search"),
]
TERMS = "Glossary file; lines are PHRASE<TAB>TRANSLATION|TRANSLATION; add <TAB>any to ignore case"
TranslateTerms = Annotated[Path | None, file_option(TERMS, "--terms", panel="Search")]
ScoreTerms = Annotated[
    Path | None, references_option("Glossary, to report the share of its terms that were used", "--terms", kind="FILE")
]
if TYPE_CHECKING:
    _Kind = str
else:
    _Kind = Literal["text", "jsonl", *FORMATS]  # type checkers cannot evaluate *FORMATS, so they see str
TextFormat = Annotated[
    _Kind | None,
    output_option(
        "text: lines; jsonl: lines with scores and subwords; others: whole documents",
        default="from the suffix; text for .txt, language codes such as .en, and no suffix",
        kind="KIND",
    ),
]
LineLength = Annotated[int, output_option("Maximum characters per subtitle line", kind="N", min=10)]
Markup = Annotated[Literal["html"] | None, output_option("Transfer tags inside lines to the translation", kind="KIND")]
Protect = Annotated[
    bool | None,
    output_option(
        "Keep variables, URLs and e-mail addresses unchanged", "--protect/--no-protect", default="on for documents"
    ),
]
Keep = Annotated[
    Path | None, file_option("Words and phrases to leave untranslated, one per line", "--keep", panel="Output")
]
ProtectPattern = Annotated[
    str | None, output_option("Keep matches of this regular expression unchanged", "--protect-pattern", kind="REGEX")
]

METRICS = (
    "bleu, chrf, chrf++, ter, comet, paper-bleu, paper-bleu-quotes or brackets; repeatable; --fail-under uses the first"
)
MARIAN = (
    "Argos package (FILE.argosmodel), CTranslate2 directory, or Marian model in the format of transformers (OPUS-MT) or"
    " Marian (Firefox): a path, or OWNER/NAME[@REVISION] on the hub"
)
