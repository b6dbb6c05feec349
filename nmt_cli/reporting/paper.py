"""The models of the paper's Table 3 and what it says of them on newstest2013; where a recipe departs from them."""

import re
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from nmt_cli import recipe
from nmt_cli.recipe import Recipe

# A line: row, perplexity, BLEU, millions of parameters (for a vocabulary of about 41,000), what differs from base.
TABLE_3 = Path(__file__).with_name("table_3.txt")
# Settings of which the paper does not speak: how a run is computed and shown, not what is learnt.
SILENT = re.compile("max_|log_|validate_|checkpoint_every|keep_|patience|memory_|micro_|seed|precision|split")


@dataclass(frozen=True)
class Row:
    """A model of Table 3; `figures`: perplexity, BLEU and million parameters, "-" where the paper leaves one out."""

    name: str
    figures: list[str]
    settings: Recipe

    def differences(self, settings: Recipe) -> list[str]:
        """Return `key: paper's -> recipe's` for every setting of which the paper speaks and that differs."""
        changes = recipe.differences(self.settings.model_dump(), settings.model_dump())
        return [change for change in changes if matters(change) and not change.startswith("corpus.")]


def matters(change: str) -> bool:
    """Return whether the paper speaks of the setting in this line of `recipe.differences`."""
    key = change.partition(":")[0]
    return not key.startswith(("name", "expect.")) and not SILENT.match(key.rpartition(".")[2])


def rows() -> list[Row]:
    """Return all models of Table 3, base first and big last."""
    models = []
    for line in TABLE_3.read_text().rstrip("\n").split("\n"):
        name, *figures, changes = line.split(" ", 4)
        values: dict[str, Any] = reduce(recipe.merge, map(recipe.override, changes.split()), {})
        models.append(Row(f"{name} {changes}".rstrip(), figures, recipe.from_plain(values, "Table 3")))
    return models


def table_3(settings: Recipe) -> Row | None:
    """Return the row that a recipe repeats, however it averages and decodes."""
    kinds = ("model.", "training.")
    return next((row for row in rows() if not any(c.startswith(kinds) for c in row.differences(settings))), None)


def departures(settings: Recipe) -> tuple[str, list[str]]:
    """Return which of base and big a recipe is nearest to, and every setting that differs from it."""
    differences = {row.name.split()[0]: row.differences(settings) for row in (rows()[0], rows()[-1])}
    return min(differences.items(), key=lambda pair: len(pair[1]))
