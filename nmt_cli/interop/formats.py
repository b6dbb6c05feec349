"""Recognize models of other toolkits by the names of their files. Imports nothing heavy: the command line needs it."""

import hashlib
import re
from pathlib import Path

from nmt_cli.storage import artefact

ARGOS = ".argosmodel"
PAIR = re.compile(r"\.([a-z]{2})([a-z]{2})\.")  # languages in the names of Firefox's files
METADATA, BINARY = "metadata.json", "model.bin"
MARIAN_MAGIC = (1).to_bytes(8, "little")  # the version of Marian's binary models


def is_argos_package(path: Path) -> bool:
    """Return whether a path is an Argos package: the file, or the directory that argostranslate installs."""
    if path.suffix == ARGOS and path.is_file():
        return True
    return (path / METADATA).is_file() and has_ctranslate2_model(path / "model")


def has_ctranslate2_model(path: Path) -> bool:
    return (path / BINARY).is_file()


def is_marian_binary(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(len(MARIAN_MAGIC)) == MARIAN_MAGIC


def has_marian_binary(path: Path) -> bool:
    """Return whether a directory has a binary model of Marian, as Firefox's models are."""
    return any(is_marian_binary(file) for file in sorted(path.glob("*.bin")) if file.is_file())


def firefox_pair(path: Path) -> tuple[str, str] | None:
    """Return the two languages in the name of a binary model of Marian in a directory, or None."""
    for file in sorted(path.glob("*.bin")):
        if (pair := PAIR.search(file.name)) and file.is_file() and is_marian_binary(file):
            return pair[1], pair[2]
    return None


# Formats of local files that commands read as they are, after an import into the cache.
READ_DIRECTLY = [is_argos_package, has_ctranslate2_model, has_marian_binary]


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
