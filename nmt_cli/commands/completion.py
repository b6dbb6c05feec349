"""Shell completion of the names of recipes and corpora."""

import os
from pathlib import Path

from nmt_cli.recipe import files as recipe_files


def complete_recipe(incomplete: str) -> list[str]:
    """Return recipes of the package, and paths of recipe files and folders, that start with `incomplete`."""
    folder, typed = os.path.split(incomplete)
    own = [name for name, _ in recipe_files.listed() if name.startswith(incomplete)]
    return own + [os.path.join(folder, name) for name in _recipe_files(folder or ".", typed)]  # noqa: PTH118


def complete_corpus(incomplete: str) -> list[str]:
    """Return the named corpora, and the recipes, because a recipe also names a corpus."""
    from nmt_cli.recipe.named import NAMED_CORPORA

    return [name for name in NAMED_CORPORA if name.startswith(incomplete)] + complete_recipe(incomplete)


def _recipe_files(folder: str, typed: str) -> list[str]:
    try:
        paths = sorted(path for path in Path(folder).iterdir() if path.name.startswith(typed))
    except OSError:
        return []
    return [f"{path.name}/" if path.is_dir() else path.name for path in paths if _may_be_recipe(path)]


def _may_be_recipe(path: Path) -> bool:
    return path.is_dir() or path.suffix in (".yaml", ".yml")
