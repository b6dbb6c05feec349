"""Read Argos packages as models of CTranslate2."""

import tempfile
from dataclasses import replace
from pathlib import Path

from nmt_cli.corpus import moses_bpe
from nmt_cli.interop.argos_package import BPE, SENTENCEPIECE, WEIGHTS, argos_code, read_metadata, unpack
from nmt_cli.interop.ctranslate2_files import read_with
from nmt_cli.interop.foreign import ForeignModel
from nmt_cli.system.errors import DataError, MissingError

# The defaults in argostranslate/translate.py: beam 4, and scores divided by length ^ 0.2.
DECODING = {"beam": 4, "alpha": 0.2, "penalty_offset": 0}
MAX_CODES = 1 << 23  # maximum size of bpe.model in bytes; 100,000 merges take 2 MB
SENTENCE = 40  # tokens; split longer lines into sentences, because argostranslate splits every line


def read_argos(path: Path) -> ForeignModel:
    """Read a package file, or the directory that argostranslate installs. Write only to a temporary directory."""
    if path.is_dir():
        return _read_package(path)
    with tempfile.TemporaryDirectory() as temporary:
        unpack(path, Path(temporary))
        try:
            return replace(_read_package(Path(temporary)), weight_files=[path])
        except (DataError, MissingError) as error:  # name the package instead of the temporary directory
            raise type(error)(str(error).replace(temporary, str(path))) from None


def _read_package(directory: Path) -> ForeignModel:
    metadata = read_metadata(directory)
    if not (directory / WEIGHTS).is_file():
        raise MissingError(f"the package has no {WEIGHTS}")
    languages = [metadata["from_code"], metadata["to_code"]]
    corpus = {"name": None, "src": languages[0], "tgt": languages[1]}
    values = {"corpus": corpus, "decoding": DECODING | {"target_prefix": metadata["target_prefix"]}}
    with tempfile.TemporaryDirectory() as temporary:
        foreign = read_with(directory / "model", _tokenizers(directory, languages, Path(temporary)), values)
    return replace(foreign, seen_tokens=SENTENCE)


def _tokenizers(directory: Path, languages: list[str], temporary: Path) -> list[Path]:
    """Return the tokenizer files of source and target. If there is only bpe.model, convert it to `temporary`."""
    if (directory / SENTENCEPIECE).is_file():
        return [directory / SENTENCEPIECE] * 2
    if not (directory / BPE).is_file():
        raise MissingError(f"the package has no {SENTENCEPIECE} and no {BPE}")
    with (directory / BPE).open("rb") as stream:
        data = stream.read(MAX_CODES + 1)
    if len(data) > MAX_CODES:
        raise DataError(f"{directory / BPE} is too large: {MAX_CODES:,} bytes at most")
    try:
        codes = data.decode()
    except UnicodeDecodeError:
        raise DataError(f"{directory / BPE} is damaged: it is not UTF-8") from None
    moses_bpe.Codes(codes, directory / BPE)  # raises DataError if the codes are damaged
    files = [temporary / "source", temporary / "target"]
    for file, language in zip(files, languages, strict=True):
        file.write_bytes(moses_bpe.to_bytes(argos_code(language), codes, []))
    return files
