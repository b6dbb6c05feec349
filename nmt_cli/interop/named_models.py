"""Resolve the models that a user names: directories, models of other toolkits, or OWNER/NAME on the hub."""

import os
from collections.abc import Sequence
from pathlib import Path

from nmt_cli.interop.formats import READ_DIRECTLY, content_key
from nmt_cli.interop.hub import HUB_NAME
from nmt_cli.storage import artefact
from nmt_cli.system.console import say


def model_directories(models: Sequence[Path]) -> tuple[Path, ...]:
    """Return the directories of the named models, else of $NMT_MODEL, which is then logged, else none.

    A model of CTranslate2, Argos or Firefox is imported into the cache, once for its content.
    OWNER/NAME is imported from the hub unless the directory OWNER exists, or OWNER is "runs" or "models".
    """
    if not models and (default := os.environ.get("NMT_MODEL")):
        say(f"model: {default}")
        models = [Path(default)]
    return tuple(_directory_of(model) for model in models)


def cache_directory() -> Path:
    """Return the directory of imported models, $XDG_CACHE_HOME/nmt/models."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nmt" / "models"


def _directory_of(model: Path) -> Path:
    if any(matches(model) for matches in READ_DIRECTLY):
        directory = cache_directory() / content_key(model)
        if not artefact.present(directory):
            from nmt_cli.interop.importing import import_cached  # imports torch

            import_cached(model, directory)
        return directory
    if model.parent.is_dir() or not HUB_NAME.fullmatch(str(model)) or model.parts[0] in ("runs", "models"):
        return model
    from nmt_cli.interop.importing import import_cached  # imports torch

    return import_cached(str(model))
