"""The command `nmt recipes` and its subcommands."""

import shutil
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from nmt_cli.commands.help_pages import Command, Group
from nmt_cli.commands.options import RecipeName, Set, option
from nmt_cli.storage import artefact
from nmt_cli.system import console
from nmt_cli.system.errors import OutputError, printable

app = typer.Typer(help="List, show or copy the recipes that come with nmt.", cls=Group, rich_markup_mode=None)
command = partial(app.command, cls=Command)


@app.callback()
def list_by_default(context: typer.Context) -> None:
    if not context.invoked_subcommand:
        list_recipes()


@command("list")
def list_recipes() -> None:
    """List the recipes. This is the default command."""
    from nmt_cli.recipe.files import listed

    recipes = list(listed())
    width = max(len(name) for name, _ in recipes) + 2
    # Do not wrap lines in files and pipes.
    columns = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else 1000
    for name, description in recipes:
        lines = textwrap.wrap(printable(description), max(columns - width, 20))
        typer.echo(f"{name:{width}}" + f"\n{'':{width}}".join(lines))


@command()
def show(
    name: RecipeName,
    set_: Set = None,
    format: Annotated[
        Literal["yaml", "json"],
        option("Output format; json prints the JSON schema of recipes, with this recipe as an example"),
    ] = "yaml",
) -> None:
    """Print a recipe with all settings and their meanings."""
    from nmt_cli.recipe.explain import explain, schema
    from nmt_cli.recipe.loading import load

    settings = load(name, set_ or [], start=False)
    if format == "yaml" and settings.training.init_from:
        typer.echo(
            "# Training takes model sizes, tokenizer and languages from the model in training.init_from, "
            "unless the recipe sets them."
        )
    typer.echo(schema(settings) if format == "json" else "\n".join(explain(settings)))


@command()
def copy(
    name: RecipeName,
    path: Annotated[Path | None, typer.Argument(help="New file", show_default="./NAME.yaml")] = None,
) -> None:
    """Copy a recipe to a new file that you can edit."""
    from nmt_cli.recipe.files import find, text_for_copy

    source = find(name)
    path = path or Path(source.name)
    if path.exists():
        raise OutputError(f"{path} already exists. Choose another file")
    artefact.replace_file(path, text_for_copy(source, path.parent))
    console.say(f"wrote {path}")
