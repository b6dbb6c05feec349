"""Download models from the Hugging Face hub. The command line imports this module, so import nothing large here."""

import contextlib
import errno
import re
from pathlib import Path
from typing import Any

from nmt_cli.system.console import say
from nmt_cli.system.errors import DownloadError, UsageError, printable

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")  # OWNER/NAME or OWNER/NAME@REVISION
TEXT_FILES = "*.json", "*.spm", "README.md"
# Weight files of safetensors, pickle and Marian. Many repositories offer several of these formats; prefer the first.
WEIGHT_FILES = ["model*.safetensors"], ["pytorch_model*.bin"], ["*.npz", "*.yml"]


def download(name: str) -> Path:
    """Download OWNER/NAME or OWNER/NAME@REVISION, and return the directory. Its name is the commit's hash.

    Without a network, return an earlier download. Raise DownloadError if there is none, or if the download fails.
    """
    import huggingface_hub

    from nmt_cli.transformer.directory import models_here  # imports NumPy and SentencePiece

    repository, _, revision = name.partition("@")
    try:
        for patterns in WEIGHT_FILES:
            directory = Path(
                huggingface_hub.snapshot_download(
                    repository,
                    revision=revision or None,
                    allow_patterns=[*TEXT_FILES, *patterns],
                    ignore_patterns="*.optimizer.npz",
                )
            )
            if any(match for pattern in patterns for match in directory.glob(pattern)):
                break
    except Exception as error:  # huggingface_hub and its dependencies raise errors of many kinds
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        reason = str(error).strip().partition("\n")[0]
        reason = f"{reason}. {models_here()}".rstrip()
        raise DownloadError(
            f"no directory {name} here, and the model cannot be downloaded from the hub: {reason}"
        ) from None
    say(f"{repository} at commit {directory.name}, license: {license_of(directory)}")
    return directory


def license_of(directory: Path) -> str:
    """Return the license that a repository's model card (README.md) names. If it names none, return a note."""
    from nmt_cli.recipe import yaml_file  # imports PyYAML

    card = directory / "README.md"
    metadata = dict[str, Any]()
    if card.is_file():
        with card.open("rb") as file:
            text = file.read(yaml_file.MAX_BYTES)
        # The front matter is YAML between two lines of ---.
        if front_matter := re.match(rb"\s*---[ \t]*\r?\n(.*?\n)---[ \t]*(\r?\n|\Z)", text, re.DOTALL):
            with contextlib.suppress(UsageError):
                metadata = yaml_file.parse_mapping(front_matter[1], card)
    return printable(metadata.get("license", "not named; see its page on the hub"))
