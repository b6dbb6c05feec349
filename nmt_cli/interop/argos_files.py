"""Read Argos packages: a zip archive, or the directory that argostranslate installs.

A package has one folder with metadata.json, sentencepiece.model and the directory `model` of CTranslate2. See
argos-translate, argostranslate/package.py and translate.py.
"""

import errno
import shutil
import struct
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from nmt_cli.interop.ctranslate2_files import read_with
from nmt_cli.interop.foreign import ForeignModel
from nmt_cli.interop.formats import BINARY, METADATA
from nmt_cli.interop.npz import UNREADABLE
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError, printable

SENTENCEPIECE, BPE = "sentencepiece.model", "bpe.model"
WEIGHTS = f"model/{BINARY}"
VOCABULARIES = [f"model/{side}_vocabulary.{end}" for side in ("shared", "source", "target") for end in ("json", "txt")]
# The files that are read. Others, such as those that split sentences, are left out.
MEMBERS = [METADATA, SENTENCEPIECE, BPE, WEIGHTS, "model/config.json", *VOCABULARIES]
MAX_EXPANSION = 4  # size of the weights relative to the archive
MAX_MEMBERS = 10_000
MAX_TEXT = 100  # characters of a language code or a token in metadata.json
ERRORS = (*UNREADABLE, NotImplementedError, struct.error, UnicodeError, KeyError)  # raised by zipfile
# argostranslate searches with beam 4 and divides by length ^ 0.2. Ours divides by ((5 + length) / 6) ^ alpha, which has
# the same slope at 25 tokens.
DECODING = {"beam": 4, "alpha": 0.24}
SENTENCE = 40  # tokens; argostranslate translates each sentence alone, so longer lines are split into sentences


def read_argos(path: Path) -> ForeignModel:
    """Read a package, a file or an installed directory. Nothing is written outside a temporary directory."""
    if path.is_dir():
        return _read_package(path)
    with tempfile.TemporaryDirectory() as temporary:
        unpack(path, Path(temporary))
        return replace(_read_package(Path(temporary)), weight_files=[path])


def unpack(package: Path, out: Path) -> None:
    """Write the files of a package that are read, under their own names. DataError if the archive is damaged."""
    try:
        with zipfile.ZipFile(package) as archive:
            members = _members(archive, package.stat().st_size)
            for name, member in members.items():
                (out / name).parent.mkdir(exist_ok=True)
                with archive.open(member) as stream, (out / name).open("xb") as file:
                    shutil.copyfileobj(stream, file)  # at most member.file_size bytes
    except ERRORS as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        raise DataError(f"{package} is damaged or not an Argos package: {printable(error, 150)}") from None


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the members that are read, by their name in the package's folder; ValueError for those of no package."""
    infos = archive.infolist()
    names = [info.filename for info in infos]
    if len(names) > MAX_MEMBERS or len({*names}) < len(names):
        raise ValueError("it has too many files, or two of one name")
    for name in names:
        if name.startswith("/") or "\\" in name or ".." in name.split("/") or not name.isprintable():
            raise ValueError(f"it has a file with the name {name!r}")
    folders = [name.removesuffix(f"/{METADATA}") for name in names if name.endswith(f"/{METADATA}")]
    roots = [folder for folder in folders if "/" not in folder]
    if len(roots) != 1:
        raise ValueError(f"it has {len(roots)} folders with {METADATA}, not one")
    members = {info.filename.removeprefix(f"{roots[0]}/"): info for info in infos}
    members = {name: members[name] for name in MEMBERS if name in members}
    for name, info in members.items():
        most = MAX_EXPANSION * size if name == WEIGHTS else artefact.MAX_JSON_BYTES
        if info.file_size > most:
            raise ValueError(f"{name} would have {info.file_size:,} bytes")
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is encrypted or compressed in an unusual way")
    return members


def read_metadata(directory: Path) -> dict[str, str]:
    """Return the language codes and the target prefix in metadata.json."""
    file = directory / METADATA
    metadata = artefact.read_json(file)
    if metadata.get("type", "translate") != "translate":
        kind = printable(metadata["type"], 40)
        raise DataError(f"{file} describes a package of type {kind}, which does not translate")
    values = {name: metadata.get(name, default) for name, default in _DEFAULTS.items()}
    for name, value in values.items():
        if type(value) is not str or len(value) > MAX_TEXT or not value.isprintable():
            raise DataError(f"{file} is damaged: {name} must be a text of at most {MAX_TEXT} characters")
    return values


_DEFAULTS: dict[str, Any] = {"from_code": None, "to_code": None, "target_prefix": ""}


def _read_package(directory: Path) -> ForeignModel:
    metadata = read_metadata(directory)
    if not (directory / SENTENCEPIECE).is_file():
        if (directory / BPE).is_file():
            raise DataError(f"{directory / BPE} cannot be imported: packages with {SENTENCEPIECE} can")
        raise MissingError(f"the package has no {SENTENCEPIECE}")
    if not (directory / WEIGHTS).is_file():
        raise MissingError(f"the package has no {WEIGHTS}")
    corpus = {"name": None, "src": metadata["from_code"], "tgt": metadata["to_code"]}
    values = {"corpus": corpus, "decoding": DECODING | {"target_prefix": metadata["target_prefix"]}}
    foreign = read_with(directory / "model", [directory / SENTENCEPIECE] * 2, values)
    return replace(foreign, seen_tokens=SENTENCE)
