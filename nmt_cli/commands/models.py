"""The command `nmt models`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmt_cli.commands.options import option
from nmt_cli.system.errors import printable

if TYPE_CHECKING:
    from nmt_cli.translation.stored_models import StoredModel


def models(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(help="Models, or directories of models", show_default="runs/ and models/"),
    ] = None,
    as_json: Annotated[bool, option("Print JSON", "--json")] = False,
) -> None:
    """List models: language pair, kind, parameters, size on disk, path.

    A multilingual model has one line per language pair. The weights are not read.
    """
    from nmt_cli.interop.model_kinds import list_models

    found = list_models(directories or [path for path in (Path("runs"), Path("models")) if path.is_dir()])
    if as_json:
        typer.echo(json.dumps([_record(model) for model in found], indent=1))
        return
    lines = [(f"{source}-{target}", model) for model in found for source, target, _ in model.directions]
    width = max(len(pair) for pair, _ in lines)
    for pair, model in lines:
        parameters = f"{model.parameters / 1e6:7.1f} M parameters" if model.parameters else " " * 20
        sizes = f"{parameters} {model.bytes / 1e6:8.1f} MB"
        typer.echo(f"{pair:{width}}  {model.kind:7}  {sizes}  {printable(model.path)}")


def _record(model: "StoredModel") -> dict[str, object]:
    return {
        "path": str(model.path),
        "kind": model.kind,
        "pairs": [[source, target] for source, target, _ in model.directions],
        "parameters": model.parameters or None,
        "bytes": model.bytes,
    }
