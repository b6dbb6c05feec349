"""Recognize models of other toolkits by the names of their files. Imports nothing heavy: the command line needs it."""

import hashlib
from pathlib import Path

from nmt_cli.storage import artefact

ARGOS = ".argosmodel"
METADATA, BINARY = "metadata.json", "model.bin"


def is_argos_package(path: Path) -> bool:
    """Return whether a path is an Argos package: the file, or the directory that argostranslate installs."""
    if path.suffix == ARGOS and path.is_file():
        return True
    return (path / METADATA).is_file() and has_ctranslate2_model(path / "model")


def has_ctranslate2_model(path: Path) -> bool:
    return (path / BINARY).is_file()


# Formats of local files that commands read as they are, after an import into the cache.
READ_DIRECTLY = [is_argos_package, has_ctranslate2_model]


def content_key(path: Path) -> str:
    """Return a name for the cached import of a model, which changes with the content of its files."""
    if path.is_file():
        files = {path.name: path}
    else:
        found = [*path.iterdir(), *(path / "model").glob("*")]
        files = {str(file.relative_to(path)): file for file in sorted(found) if file.is_file()}
    digest = hashlib.sha256()
    for name, file in files.items():
        digest.update(f"{name}\0{artefact.sha256(file)}\0".encode(errors="surrogateescape"))
    return f"local--{digest.hexdigest()[:32]}"
