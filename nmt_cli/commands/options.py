"""Options: their declaration, their layout in help, and the ones that several commands share."""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from nmt_cli.recipe import files as recipe_files
from nmt_cli.system import console
from nmt_cli.system.errors import UsageError, meant

NAMES = 24  # columns of help for names; a longer one has a line to itself
MOST = 1 << 32  # a bound above it is not worth a reader's time


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


def _bold(text: str) -> str:
    shown = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return typer.style(text, bold=True) if shown else text


def _range(low: float | None, high: float | None) -> str:
    high = None if high is None or high > MOST else high
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    return f"{low:g} or more" if low not in (None, 0, 1) else ""  # a lower bound of 0 or 1 is plain


def _default(parameter: Any, context: Any) -> str:
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.get_default(context, call=False) if parameter.show_default else None
    if isinstance(value, bool):
        return "on" if value else ""
    return "" if value is None or value == [] else str(value)


def _shown(parameter: Any, context: Any) -> tuple[str, str]:
    """Return the names of an option or an argument, and its description with choices, range and default."""
    kind = parameter.type
    choices, notes = getattr(kind, "choices", ()), list[str]()
    if isinstance(parameter, TyperArgument):
        names = _argument(parameter)
    else:
        long = [name for name in parameter.opts if name.startswith("--")]
        short = [name for name in parameter.opts if name not in long]
        if parameter.secondary_opts:
            long[0] = f"--[no-]{long[0][2:]}"
        names = ", ".join([*short, *long]) if short else f"    {', '.join(long)}"
        if not parameter.is_flag:
            names += f" {parameter.metavar or 'NAME'}"
    if choices:
        notes.append(", ".join(choices))
    elif hasattr(kind, "min") and (bounds := _range(kind.min, kind.max)):
        notes.append(bounds)
    if default := _default(parameter, context):
        notes.append(f"default: {default}")
    if isinstance(parameter, TyperOption) and parameter.required:
        notes.append("required")
    text = parameter.help or ""
    return names, f"{text} [{'; '.join(notes)}]" if notes else text


def _write_parameters(command: Any, context: Any, formatter: Any) -> None:
    panels = dict[str, list[tuple[str, str]]]()
    for parameter in command.get_params(context):
        title = "Arguments" if isinstance(parameter, TyperArgument) else "Options"
        if not parameter.hidden:
            panels.setdefault(parameter.rich_help_panel or title, []).append(_shown(parameter, context))
    lengths = [len(name) for panel in panels.values() for name, _ in panel]
    width = max(length for length in lengths if length <= NAMES)
    for title in sorted(panels, key=lambda title: title != "Arguments"):
        with formatter.section(_bold(title)):
            formatter.write_dl([(_bold(f"{name:{width}}"), text) for name, text in panels[title]], col_max=width)


def _encodable(text: str) -> str:
    """Return a text as the terminal can show it; Typer would write UTF-8 on one of ASCII."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


class Command(TyperCommand):
    """A command whose help has one line for most options: names narrow, descriptions wide."""

    def get_help(self, ctx: Any) -> str:
        return _encodable(super().get_help(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [self.options_metavar or "", *_usage(self, ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)


class Group(TyperGroup):
    """As Command, with the commands below it."""

    def get_help(self, ctx: Any) -> str:
        return _encodable(super().get_help(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)
        commands = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        shown = [each for each in commands if each and not each.hidden]
        with formatter.section(_bold("Commands")):
            formatter.write_dl([(_bold(each.name or ""), (each.help or "").partition("\n\n")[0]) for each in shown])


def _usage(command: Any, context: Any) -> Iterator[str]:
    for parameter in command.get_params(context):
        if isinstance(parameter, TyperArgument):
            name = _argument(parameter) + ("..." if parameter.nargs == -1 else "")
            yield name if parameter.required else f"[{name}]"


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def mistake(error: Any) -> UsageError:
    """Return Typer's message about a command line, with the nearest choice or the probable intention."""
    message = error.format_message().rstrip(".")
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context else "nmt"
    choices = list(getattr(getattr(getattr(error, "param", None), "type", None), "choices", ()))
    if choices and (typed := re.search(r"'([^']*)' is not one of", message)) and (question := meant(typed[1], choices)):
        message += f". {question}"
    if path == "nmt prepare" and (extra := re.match(r"Got unexpected extra argument.* \((.*)\)", message)):
        files = shlex.join([context.params.get("corpus") or "FILE"]), extra[1] if " " not in extra[1] else "FILE"
        message += f". To prepare your own text: nmt prepare --src {files[0]} --tgt {files[1]}"
    if path == "nmt translate" and message.startswith("Got unexpected extra argument"):
        message += ". To translate a text itself: echo TEXT | nmt translate"
    end = "" if message.endswith("?") else "."  # "Did you mean ...?"
    return UsageError(f"{message}{end} See: {path} --help")


def help_of(root: Any, names: Sequence[str]) -> str:
    """Return the help of a command, given by its name and perhaps one below it."""
    context = root
    for name in names:
        if not isinstance(context.command, TyperGroup):
            raise UsageError(f"{context.command_path} has no command {name[:40]!r}. See: {context.command_path} --help")
        command: Any = context.command.resolve_command(context, [name])[1]
        context = typer.Context(command, info_name=name, parent=context)
    return str(context.get_help())


def _recipes(incomplete: str) -> list[str]:
    """Return the package's recipes and the files that complete the typed text."""
    folder, typed = os.path.split(incomplete)
    files = [(place, os.path.join(folder, place.name)) for place in _entries(folder or ".", typed)]  # noqa: PTH118
    own = [name for name, _ in recipe_files.listed() if name.startswith(incomplete)]
    return own + [f"{name}/" if place.is_dir() else name for place, name in files if _may_be_recipe(place)]


def _corpora(incomplete: str) -> list[str]:
    from nmt_cli.recipe.named import NAMED_CORPORA

    return [name for name in NAMED_CORPORA if name.startswith(incomplete)] + _recipes(incomplete)


def _entries(folder: str, typed: str) -> list[Path]:
    try:
        return sorted(place for place in Path(folder).iterdir() if place.name.startswith(typed))
    except OSError:
        return []


def _may_be_recipe(place: Path) -> bool:
    return place.is_dir() or place.suffix in (".yaml", ".yml")


RecipeFile = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="A recipe file, such as recipes/toy.yaml", autocompletion=_recipes)
]
MARIAN = "A Marian model, of transformers (OPUS-MT) or its own files: a directory, or OWNER/NAME[@REVISION] of the hub"
RecipeName = Annotated[Path, typer.Argument(help="A name that nmt recipes lists, or a file", autocompletion=_recipes)]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run, such as runs/base")]
Set = Annotated[list[str] | None, option("Change a setting: training.steps=200", "--set", kind="KEY=VALUE")]
Data = Annotated[Path | None, directory_option("The prepared corpus", default="data/CORPUS")]
RunDirectory = Annotated[Path | None, directory_option("The run", "--run-dir", "--run", default="runs/RECIPE")]
Mirror = Annotated[Path | None, directory_option("Take a named corpus' files from here instead of the network")]
Workers = Annotated[int | None, number_option("Processes", default="one per core", min=1)]
Quantization = Literal["float32", "bfloat16", "int8"]
Precision = Literal["auto", "fp32", "bf16", "int8"]
Tokenizer = Literal["13a", "intl", "char", "zh", "ja-mecab", "ko-mecab", "flores200", "flores101", "spBLEU-1K", "none"]
DryRun = Annotated[bool, option("Estimate time and memory here, and stop", "--dry-run")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no log lines", callback=console.set_quiet)]

TextFormat = Annotated[
    Literal["text", "jsonl", "html", "md", "po"] | None,
    output_option(
        "jsonl: lines with scores and subwords; html, md, po: a whole file",
        default="by the suffix; text for none, .txt, .en and other languages",
        kind="KIND",
    ),
]
Markup = Annotated[
    Literal["html"] | None, output_option("Tags within lines, to be put on their translations", kind="KIND")
]
Protect = Annotated[
    bool | None,
    output_option("Keep variables, URLs and such from the model", "--protect/--no-protect", default="on for files"),
]
TERMS = "Glossary: phrase, tab, form|form per line; a tab and “any” ignores case"
TranslateTerms = Annotated[Path | None, file_option(TERMS, "--terms", panel="Search")]
ScoreTerms = Annotated[Path | None, references_option("Report how many of these terms are met", "--terms", kind="FILE")]
CopyWordless = Annotated[
    bool | None,
    search_option("Copy lines without letters, such as 3.14", "--copy-wordless/--no-copy-wordless", kind=None),
]
Prefix = Annotated[
    Path | None, file_option("Beginning of each line's translation; its last word may go on", panel="Search")
]
Threads = Annotated[int | None, number_option("Threads; on GPUs processes", default="one per core, or GPU", min=1)]
Models = Annotated[list[Path] | None, model_option("The model, or OWNER/NAME of the hub; repeat: ensemble", "--model")]

METRICS = "bleu, chrf, chrf++, ter, comet, paper-bleu, paper-bleu-quotes, brackets; repeatable, the first gates"
CORPORA = (
    "toy-en-de, multi30k-en-de (-fr, -cs), wmt14-en-de, wmt14-en-fr or a reverse direction; hub:OWNER/NAME; or a "
    "recipe file. Default: toy-en-de, or your own text with --src and --tgt"
)
CorpusName = Annotated[str | None, typer.Argument(help=CORPORA, autocompletion=_corpora)]
CommandName = Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="Such as translate, or recipes show")]
