"""Read Argos packages: zip archives, or the directories that argostranslate installs.

A package contains one folder, which holds metadata.json, a tokenizer (sentencepiece.model or bpe.model) and a
CTranslate2 model in the subfolder `model`. See argostranslate/package.py in argos-translate. This module does not
import PyTorch, so that `nmt serve` can list packages without loading it.
"""

import errno
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt_cli.corpus.languages import ARGOS_CODES, base_of, folded, is_traditional
from nmt_cli.interop.formats import BINARY, METADATA
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, printable

SENTENCEPIECE, BPE = "sentencepiece.model", "bpe.model"
WEIGHTS = f"model/{BINARY}"
VOCABULARIES = [f"model/{side}_vocabulary.{end}" for side in ("shared", "source", "target") for end in ("json", "txt")]
# The files to read. Sentence splitters and other files are ignored.
MEMBERS = [METADATA, SENTENCEPIECE, BPE, WEIGHTS, "model/config.json", *VOCABULARIES]
MAX_EXPANSION = 4  # maximum ratio of the size of the unpacked weights to the size of the archive
MAX_MEMBERS = 10_000
MAX_TEXT = 100  # maximum length of from_code, to_code and target_prefix, in characters
ERRORS = (  # raised by zipfile for damaged archives
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    KeyError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


def unpack(package: Path, out: Path, wanted: Sequence[str] = MEMBERS) -> None:
    """Extract the wanted files that the package contains to `out`. Raise DataError if the package is not valid."""
    try:
        with zipfile.ZipFile(package) as archive:
            members = _members(archive, package.stat().st_size)
            for name, member in members.items():
                if name not in wanted:
                    continue
                (out / name).parent.mkdir(exist_ok=True)
                with archive.open(member) as stream, (out / name).open("xb") as file:
                    shutil.copyfileobj(stream, file)  # copies at most member.file_size bytes, which `_members` limits
    except ERRORS as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        raise DataError(f"{package} is damaged or not an Argos package: {printable(error, 150)}") from None


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Map names, relative to the package's folder, to the files to read. Raise ValueError if the archive is invalid."""
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if len(names) > MAX_MEMBERS or len({*names}) < len(names):
        raise ValueError("it has too many files, or two with the same name")
    for name in names:
        if name.startswith("/") or "\\" in name or ".." in name.split("/") or not name.isprintable():
            raise ValueError(f"it has a file with the unsafe name {name!r}")
    folders = [name.removesuffix(f"/{METADATA}") for name in names if name.endswith(f"/{METADATA}")]
    roots = [folder for folder in folders if "/" not in folder]
    if len(roots) != 1:
        raise ValueError(f"it must have exactly one top-level folder with {METADATA}, but has {len(roots)}")
    root = f"{roots[0]}/"
    members = {info.filename.removeprefix(root): info for info in infos if info.filename.startswith(root)}
    members = {name: members[name] for name in MEMBERS if name in members}
    for name, info in members.items():
        most = MAX_EXPANSION * size if name == WEIGHTS else artefact.MAX_JSON_BYTES
        if info.file_size > most:
            raise ValueError(f"{name} would have {info.file_size:,} bytes when unpacked, more than the limit")
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is encrypted, or compressed in an unusual way")
    return members


def read_metadata(directory: Path) -> dict[str, str]:
    """Return from_code, to_code and target_prefix from metadata.json, with the codes that LibreTranslate uses.

    Raise MissingError without metadata.json. Raise DataError if it is damaged, or if its type is not "translate".
    """
    file = directory / METADATA
    metadata = artefact.read_json(file)
    if metadata.get("type", "translate") != "translate":
        kind = printable(metadata["type"], 40)
        raise DataError(f"{file} describes a package of type {kind}, which does not translate")
    values = {name: metadata.get(name, default) for name, default in _DEFAULTS.items()}
    for name, value in values.items():
        if type(value) is not str or len(value) > MAX_TEXT or not value.isprintable():
            raise DataError(f"{file} is damaged: {name} must be text of at most {MAX_TEXT} printable characters")
    codes = {name: _libretranslate_code(values[name]) for name in ("from_code", "to_code")}
    return values | codes


def _libretranslate_code(code: str) -> str:
    """Convert an Argos language code to the code that LibreTranslate uses."""
    return "zh-Hans" if code == "zh" else ARGOS_CODES.get(code, code)


def argos_code(code: str) -> str:
    """Return Argos' code for a language. Only the codes for Chinese and Portuguese distinguish scripts or countries."""
    base = base_of(code)
    if base == "zh":
        return "zt" if is_traditional(code) else "zh"
    return "pb" if folded(code) == "pt-br" else base


_DEFAULTS: dict[str, Any] = {"from_code": None, "to_code": None, "target_prefix": ""}


def metadata_of(package: Path) -> dict[str, str]:
    """Return the language codes and the target prefix of a package file or of an installed directory."""
    if package.is_dir():
        return read_metadata(package)
    with tempfile.TemporaryDirectory() as temporary:
        unpack(package, Path(temporary), [METADATA])
        return read_metadata(Path(temporary))
