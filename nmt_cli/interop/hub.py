"""Models of the Hugging Face hub: what of a repository is downloaded, and its licence."""

import contextlib
import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt_cli.system.console import say
from nmt_cli.system.errors import DownloadError, UsageError, printable

NAME = r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?"  # OWNER/NAME or OWNER/NAME@REVISION
CONFIG = "config.json"
TEXT = "*.json", "*.spm", "README.md"
# Weights, the best form first: a repository often has several. The last is Marian's own, which has no config.json.
WEIGHTS = ["model*.safetensors"], ["pytorch_model*.bin"], ["*.npz", "*.yml"]


def directories(models: Sequence[Path]) -> tuple[Path, ...]:
    """Return the directories of the models named, else of that in $NMT_MODEL, else none; say which if not named.

    OWNER/NAME of the hub is imported, unless OWNER is a directory here, runs or models.
    """
    if not models and (chosen := os.environ.get("NMT_MODEL")):
        say(f"model: {chosen}")
        models = [Path(chosen)]
    return tuple(_local(model) for model in models)


def _local(model: Path) -> Path:
    named = re.fullmatch(NAME, str(model)) and model.parts[0] not in ("runs", "models")
    if model.parent.is_dir() or not named:
        return model
    from nmt_cli.interop.import_ import cached

    return cached(str(model))


def download(asked: str) -> Path:
    """Return where the hub's client stores OWNER/NAME or OWNER/NAME@REVISION: a folder named by its commit.

    Without network it is what an earlier call has stored. DownloadError if there is nothing.
    """
    import huggingface_hub

    name, _, revision = asked.partition("@")
    try:
        for form in WEIGHTS:
            wanted = [*TEXT, *form]
            place = Path(
                huggingface_hub.snapshot_download(
                    name, revision=revision or None, allow_patterns=wanted, ignore_patterns="*.optimizer.npz"
                )
            )
            if any(match for pattern in form for match in place.glob(pattern)):
                break
    except Exception as error:  # of any of the packages that take part
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        what = str(error).strip().partition("\n")[0]
        from nmt_cli.transformer.directory import models_here

        what = f"{what}. {models_here()}".rstrip()
        raise DownloadError(f"no directory {asked} here, and it cannot be downloaded from the hub: {what}") from None
    say(f"{name} at commit {place.name}, licence: {licence(place)}")
    return place


def licence(place: Path) -> str:
    """Return the licence that the card of a repository names."""
    from nmt_cli.recipe import yaml_file

    card, about = place / "README.md", dict[str, Any]()
    if card.is_file():
        with card.open("rb") as file:
            text = file.read(yaml_file.MOST_BYTES)
        if metadata := re.match(rb"\s*---[ \t]*\r?\n(.*?\n)---[ \t]*(\r?\n|\Z)", text, re.DOTALL):
            with contextlib.suppress(UsageError):
                about = yaml_file.mapping(metadata[1], card)
    return printable(about.get("license", "not named; see its page on the hub"))
