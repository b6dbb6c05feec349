"""Checks that every machine of a run has the same corpus and recipe."""

from pathlib import Path
from typing import Any

from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.recipe import loading, schema
from nmt_cli.recipe.section import LOCAL
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError


def decisive(settings: schema.Recipe) -> dict[str, Any]:
    """Return the settings that must be the same on all machines; paths may differ."""
    return schema.without(settings.model_dump(), LOCAL)


def open_same_corpus(
    settings: schema.Recipe, data: Path, identity: str, recipe: dict[str, Any], content: bool
) -> Corpus:
    """Open this machine's corpus. With `content`, check its files against their hashes first.

    `identity` and `recipe` are the corpus identity and the decisive settings of the main process. Raise DataError if
    those of this machine differ.
    """
    corpus = open_corpus(data, content=content)
    if corpus.identity != identity:
        raise DataError(f"{data} on {artefact.HOST} differs from the first machine's corpus. Copy it from there")
    if changes := loading.differences(recipe, decisive(settings)):
        problem = f"the recipe on {artefact.HOST} differs from the first machine's: {'; '.join(changes)}"
        raise DataError(f"{problem}. Use the same recipe and --set on all machines")
    return corpus
