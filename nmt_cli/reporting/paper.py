"""Compare a recipe with the package's recipes for the models of "Attention Is All You Need"."""

from nmt_cli.recipe import files, loading
from nmt_cli.recipe.schema import Recipe
from nmt_cli.recipe.section import UNPUBLISHED


def matters(change: str) -> bool:
    """Return whether the paper reports a setting. `change` is a line that `loading.differences` returned for it."""
    return not loading.has_policy(change, UNPUBLISHED)


def _published(name: str) -> Recipe:
    return loading.load(files.HOME / "recipes" / f"{name}.yaml")


def _differences(published: Recipe, settings: Recipe) -> list[str]:
    """Return `key: paper's value -> recipe's value` for each setting that differs.

    Leave out the settings that the paper does not report, and those of the corpus.
    """
    changes = loading.differences(published.model_dump(), settings.model_dump())
    return [change for change in changes if matters(change) and not change.startswith("corpus.")]


def table_3(settings: Recipe) -> Recipe | None:
    """Return the first recipe of Table 3 whose model and training settings are equal to those in `settings`, or None.

    Settings that the paper does not report may differ.
    """
    rows = (_published(name) for name, _ in files.listed() if name.startswith("table3/"))
    kinds = "model.", "training."
    return next((row for row in rows if not any(c.startswith(kinds) for c in _differences(row, settings))), None)


def departures(settings: Recipe) -> tuple[str, list[str]]:
    """Compare `settings` with the paper's models "base" and "big".

    Return the name of the closer model, and the differences of `settings` from it.
    """
    differences = {name: _differences(_published(name), settings) for name in ("base", "big")}
    return min(differences.items(), key=lambda pair: len(pair[1]))
