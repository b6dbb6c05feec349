"""Read Argos packages, with the defaults of argostranslate (argostranslate/translate.py)."""

import tempfile
from dataclasses import replace
from pathlib import Path

from nmt_cli.interop.argos_package import BPE, SENTENCEPIECE, WEIGHTS, read_metadata, unpack
from nmt_cli.interop.ctranslate2_files import read_with
from nmt_cli.interop.foreign import ForeignModel
from nmt_cli.system.errors import DataError, MissingError

# argostranslate searches with beam 4 and divides by length ^ 0.2. We divide by ((5 + length) / 6) ^ alpha. With this
# alpha, both penalties have the same slope at 25 tokens.
DECODING = {"beam": 4, "alpha": 0.24}
SENTENCE = 40  # tokens; argostranslate translates each sentence alone, so longer lines are split into sentences


def read_argos(path: Path) -> ForeignModel:
    """Read a package from its file or its installed directory. Writes only to a temporary directory."""
    if path.is_dir():
        return _read_package(path)
    with tempfile.TemporaryDirectory() as temporary:
        unpack(path, Path(temporary))
        return replace(_read_package(Path(temporary)), weight_files=[path])


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
