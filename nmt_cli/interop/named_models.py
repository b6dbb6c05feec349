"""Resolve the models that a user names: directories, or OWNER/NAME on the Hugging Face hub."""

import os
from collections.abc import Sequence
from pathlib import Path

from nmt_cli.interop.hub import HUB_NAME
from nmt_cli.system.console import say


def model_directories(models: Sequence[Path]) -> tuple[Path, ...]:
    """Return the directories of the named models, else of $NMT_MODEL, which is then logged, else none.

    OWNER/NAME is imported from the hub unless the directory OWNER exists, or OWNER is "runs" or "models".
    """
    if not models and (default := os.environ.get("NMT_MODEL")):
        say(f"model: {default}")
        models = [Path(default)]
    return tuple(_directory_of(model) for model in models)


def _directory_of(model: Path) -> Path:
    if model.parent.is_dir() or not HUB_NAME.fullmatch(str(model)) or model.parts[0] in ("runs", "models"):
        return model
    from nmt_cli.interop.importing import import_cached  # imports torch

    return import_cached(str(model))
