"""The commands `nmt recipes`, `nmt recipes show` and `nmt recipes copy`."""

import shutil
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from nmt_cli.commands.options import Command, Group, RecipeName, Set, option
from nmt_cli.storage import artefact
from nmt_cli.system import console
from nmt_cli.system.errors import OutputError, printable

app = typer.Typer(help="List, show or copy the recipes that come with nmt.", cls=Group, rich_markup_mode=None)
command = partial(app.command, cls=Command)


@app.callback()
def list_recipes(context: typer.Context) -> None:
    from nmt_cli.recipe.files import listed

    recipes = [] if context.invoked_subcommand else list(listed())
    width = max((len(name) for name, _ in recipes), default=0) + 2
    columns = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else 1000
    for name, about in recipes:
        lines = textwrap.wrap(printable(about), max(columns - width, 20))  # none is wrapped in a file or pipe
        typer.echo(f"{name:{width}}" + f"\n{'':{width}}".join(lines))


@command()
def show(
    name: RecipeName,
    set_: Set = None,
    format: Annotated[Literal["yaml", "json"], option("json: the schema, with the recipe as example")] = "yaml",
) -> None:
    """Print a recipe with every setting and its meaning."""
    from nmt_cli.recipe.explain import explain, schema
    from nmt_cli.recipe.loading import load

    settings = load(name, set_ or [], start=False)
    if format == "yaml" and settings.training.init_from:
        typer.echo("# The model's sizes, the tokenizer and both languages become those of training.init_from.")
    typer.echo(schema(settings) if format == "json" else "\n".join(explain(settings)))


@command()
def copy(
    name: RecipeName,
    path: Annotated[Path | None, typer.Argument(help="The new file", show_default="./NAME.yaml")] = None,
) -> None:
    """Copy a recipe, to edit it."""
    from nmt_cli.recipe.files import find, to_copy

    source = find(name)
    path = path or Path(source.name)
    if path.exists():
        raise OutputError(f"{path} exists already. Name another file")
    artefact.replace_file(path, to_copy(source))
    console.say(f"wrote {path}")
