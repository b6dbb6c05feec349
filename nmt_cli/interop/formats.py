"""Recognize models of other toolkits by their files. Every command imports this module, so import nothing large."""

import hashlib
import re
from pathlib import Path

from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError

ARGOS = ".argosmodel"
PAIR = re.compile(r"\.([a-z]{2})([a-z]{2})\.")  # the languages in a file name of a Firefox model
METADATA, BINARY = "metadata.json", "model.bin"
MARIAN_MAGIC = (1).to_bytes(8, "little")  # the version number at the beginning of Marian's binary models
PACKED = (".gz", ".zst")  # suffixes of the compressed files in which Mozilla offers Firefox models
MAX_EXPANSION = 20  # maximum ratio of the unpacked to the packed size of a file; about 1.3 is usual for weights


def is_argos_package(path: Path) -> bool:
    """Return whether a path is an Argos package: a file, or a directory that argostranslate installed."""
    if path.suffix == ARGOS and path.is_file():
        return True
    return (path / METADATA).is_file() and has_ctranslate2_model(path / "model")


def has_ctranslate2_model(path: Path) -> bool:
    return (path / BINARY).is_file()


def files_like(directory: Path, pattern: str) -> list[Path]:
    """Return the files whose names match a pattern, sorted by name. After the pattern, a suffix in PACKED may follow.

    If a file exists both packed and unpacked, return only the unpacked one.
    """
    found = dict[str, Path]()
    for suffix in ("", *PACKED):
        for file in directory.glob(pattern + suffix):
            if file.is_file():
                found.setdefault(unpacked_name(file), file)
    return [found[name] for name in sorted(found)]


def unpacked_name(file: Path) -> str:
    return file.name.removesuffix(file.suffix) if file.suffix in PACKED else file.name


def read_unpacked(file: Path) -> bytes:
    """Return the content of a file, unpacked if necessary. Raise DataError if it is damaged or expands too much."""
    if file.suffix not in PACKED:
        return file.read_bytes()
    from nmt_cli.corpus.opening import opened  # imports lzma and other modules, which unpacked models do not need

    limit = MAX_EXPANSION * file.stat().st_size
    with opened(file, {}) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise DataError(f"{file} is damaged: it unpacks to more than {MAX_EXPANSION} times its size")
    return data


def is_marian_binary(file: Path) -> bool:
    """Return whether a file is a binary model of Marian.

    For packed files and for Firefox's names, such as model.ende.intgemm.alphas.bin, only the name is checked.
    """
    if file.suffix in PACKED or PAIR.search(file.name):
        return file.name.startswith("model.")
    with file.open("rb") as stream:
        return stream.read(len(MARIAN_MAGIC)) == MARIAN_MAGIC


def has_marian_binary(path: Path) -> bool:
    """Return whether a directory contains a binary model of Marian, such as a Firefox model."""
    return any(map(is_marian_binary, files_like(path, "*.bin")))


def firefox_pair(path: Path) -> tuple[str, str] | None:
    """Return (source, target) from the file name of the Firefox model in a directory, or None if there is none."""
    for file in files_like(path, "*.bin"):
        if (pair := PAIR.search(file.name)) and is_marian_binary(file):
            return pair[1], pair[2]
    return None


# Commands accept the path of a local model in one of these formats, and import the model into the cache.
READ_DIRECTLY = [is_argos_package, has_ctranslate2_model, has_marian_binary]


def content_key(path: Path) -> str:
    """Return a name for the cached import of a model. The name changes with the content of the model's files."""
    if path.is_file():
        files = {path.name: path}
    else:
        found = [*path.iterdir(), *(path / "model").glob("*")]
        files = {str(file.relative_to(path)): file for file in sorted(found) if file.is_file()}
    digest = hashlib.sha256()
    for name, file in files.items():
        digest.update(f"{name}\0{artefact.sha256(file)}\0".encode(errors="surrogateescape"))
    return f"local--{digest.hexdigest()[:32]}"
