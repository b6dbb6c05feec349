"""Write Argos packages, which argostranslate installs and LibreTranslate serves."""

import json
import os
import zipfile
from pathlib import Path

from nmt_cli import __version__
from nmt_cli.corpus import moses_bpe
from nmt_cli.corpus.languages import name_of
from nmt_cli.corpus.tokenizer import target_file
from nmt_cli.interop.argos_package import BPE, SENTENCEPIECE, argos_code
from nmt_cli.interop.formats import METADATA
from nmt_cli.storage import artefact
from nmt_cli.system.errors import OutputError

VERSION = "1.0"  # version of every package that nmt writes
ARGOS_VERSION = "1.9"  # the oldest version of argostranslate that reads the package


def prepare_package(folder: Path, src: str, tgt: str, target_prefix: str) -> None:
    """Turn `folder`, which contains a CTranslate2 model in `model`, into an Argos package.

    Add metadata.json, and move the tokenizer from `model` to `folder`. argostranslate does not append EOS to sources,
    so configure CTranslate2 to append it.
    """
    model = folder / "model"
    tokenizer = model / "tokenizer.model"
    if moses_bpe.is_moses_file(tokenizer.read_bytes()):
        artefact.write_file(folder / BPE, moses_bpe.read_file(tokenizer)["codes"].encode())
        tokenizer.unlink()
        target_file(tokenizer).unlink()
    else:
        tokenizer.rename(folder / SENTENCEPIECE)
    config = artefact.read_json(model / "config.json") | {"add_source_eos": True}
    (model / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", "utf-8")
    metadata = {
        "package_version": VERSION,
        "argos_version": ARGOS_VERSION,
        "type": "translate",
        "from_code": argos_code(src),
        "from_name": name_of(src),
        "to_code": argos_code(tgt),
        "to_name": name_of(tgt),
        **({"target_prefix": target_prefix} if target_prefix else {}),
        "made_by": f"nmt-cli {__version__}",
    }
    artefact.write_file(folder / METADATA, artefact.json_bytes(metadata))


def write_archive(folder: Path, out: Path) -> None:
    """Write `folder` to the zip archive `out`, which appears only when complete. Raise OutputError if `out` exists."""
    temporary = artefact.beside(out, ".tmp-nmt-", f"-{os.getpid()}")
    try:
        with zipfile.ZipFile(temporary, "x", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(path for path in folder.rglob("*") if path.is_file()):
                archive.write(file, f"{folder.name}/{file.relative_to(folder).as_posix()}")
        artefact.sync(temporary)
        if out.exists():
            raise OutputError(f"another process has created {out}. Choose another --out")
        temporary.rename(out)
    finally:
        temporary.unlink(missing_ok=True)
