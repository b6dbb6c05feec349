"""Find the directory of a model that a user names: our model, one of another toolkit, or OWNER/NAME on the hub."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt_cli.interop.formats import READ_DIRECTLY, content_key
from nmt_cli.interop.hub import HUB_NAME
from nmt_cli.storage import artefact
from nmt_cli.system.console import say
from nmt_cli.system.errors import DataError, NmtError

PACKAGE = Path(__file__).parents[2]  # the directory that contains the package nmt_cli


def model_directories(models: Sequence[Path]) -> tuple[Path, ...]:
    """Return the directories of the models. If there are none, use the model in $NMT_MODEL, if it is set, and print it.

    A model of Argos or CTranslate2, or a binary model of Marian, such as Firefox's, is imported into the cache. It is
    imported again only if its files change. OWNER/NAME is a local path if OWNER is "runs", "models" or an existing
    directory. Otherwise, it is imported from the hub.
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
        return imported(model)
    if model.parent.is_dir() or not HUB_NAME.fullmatch(str(model)) or model.parts[0] in ("runs", "models"):
        return model
    from nmt_cli.interop.importing import import_cached  # imports torch

    return import_cached(str(model))


def imported(model: Path) -> Path:
    """Return the cache directory of a local model of another toolkit. The first call imports the model.

    The import runs in a separate process, because PyTorch takes more memory than most models and never releases that
    memory.
    """
    directory = cache_directory() / content_key(model)
    if artefact.present(directory):
        return directory
    paths = [str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-P", "-m", "nmt_cli", "import", "--out", str(directory), "--", str(model)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, stderr=subprocess.PIPE, env=environment, check=False)  # noqa: S603  # our own command
    lines = done.stderr.decode(errors="replace").strip().split("\n")
    if done.returncode and not artefact.present(directory):  # if present, another process imported it
        kinds = {kind.exit_code: kind for kind in NmtError.__subclasses__()}
        failure = lines[-1].partition(": error: ")[2] or f"the import of {model} failed with code {done.returncode}"
        raise kinds.get(done.returncode, DataError)(failure)
    for line in lines:
        say(line)
    return directory
