"""SentencePiece: one joint byte-pair model for both languages, trained, loaded, encoded and decoded here.

Text is normalised by `cleaning.normalise` before it comes here, so the model itself changes nothing. Bytes stand in
for characters the model has not seen: there are no unknown pieces.
"""

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nmt_cli.errors import DataError, MissingError, printable

PAD, UNK, EOS = 0, 1, 2
MAX_MODEL_BYTES = 16 << 20
# Every character that some reader takes for the end of a line, and the other controls.
_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def train(lines: Iterable[str], vocabulary_size: int) -> bytes:
    """Train a joint BPE model and return its file; the same lines give the same bytes on any number of cores.

    Raises:
        DataError: there is too little text for so many pieces.
    """
    import sentencepiece

    model = io.BytesIO()
    stopped: list[BaseException] = []  # SentencePiece turns what its iterator raises, signals too, into RuntimeError

    def watched() -> Iterator[str]:
        try:
            yield from lines
        except BaseException as error:
            stopped.append(error)
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=watched(),
            model_writer=model,
            vocab_size=vocabulary_size,
            model_type="bpe",
            byte_fallback=True,
            character_coverage=1.0,
            normalization_rule_name="identity",
            pad_id=PAD,
            unk_id=UNK,
            eos_id=EOS,
            bos_id=-1,
            num_threads=1,  # the number is stored in the model: another one gives another file
            max_sentence_length=65536,
            minloglevel=2,
        )
    except RuntimeError as error:
        if stopped:
            raise stopped[0] from None
        allowed = re.search(r"<= (\d+)", str(error))
        if allowed:
            fix = f"this text allows at most {allowed[1]}. Lower corpus.tokenizer.vocabulary_size"
        elif "required_chars" in str(error):
            fix = "it has more different characters and bytes than that. Raise corpus.tokenizer.vocabulary_size"
        elif "sentences_.empty" in str(error):
            fix = "there is no text"
        else:
            fix = printable(error, 120)
        raise DataError(f"cannot train a tokenizer of {vocabulary_size} pieces: {fix}") from None
    return model.getvalue()


class Tokenizer:
    """A trained model, loaded.

    Raises:
        MissingError: there is no such file.
        DataError: it is not a model of this package (PAD 0, UNK 1, EOS 2, no BOS).
    """

    def __init__(self, file: Path) -> None:
        import sentencepiece

        if not file.is_file():
            raise MissingError(f"no tokenizer {file}")
        data = file.read_bytes()
        if not 0 < len(data) <= MAX_MODEL_BYTES:
            raise DataError(f"{file} is not a SentencePiece model: it has {len(data)} bytes")
        try:
            self._model: Any = sentencepiece.SentencePieceProcessor(model_proto=data)
        except (RuntimeError, OSError) as error:
            raise DataError(f"{file} is not a SentencePiece model: {printable(error, 100)}") from None
        ids = (self._model.pad_id(), self._model.unk_id(), self._model.eos_id(), self._model.bos_id())
        if ids != (PAD, UNK, EOS, -1):
            raise DataError(
                f"{file} has pad, unk, eos, bos = {ids}; this package needs {(PAD, UNK, EOS, -1)}. "
                "Train one with nmt prepare"
            )
        self.vocabulary_size = int(self._model.get_piece_size())

    def encode(self, lines: list[str]) -> list[list[int]]:
        """Return the piece ids of every line, without EOS."""
        return [self._model.encode(line) for line in lines]  # a list's call starts threads: 2 ms beside our allocator

    def encode_arrays(self, lines: list[str]) -> list[Any]:
        """Return the piece ids of every line, without EOS, as int32 arrays."""
        return self._model.encode(lines, out_type="numpy", num_threads=1)  # type: ignore[no-any-return]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Return one line of text for every list of ids; pieces that spell a line break become spaces."""
        return [_BREAKS.sub(" ", self._model.decode(line)) for line in ids]

    def pieces(self, ids: list[int]) -> list[str]:
        """Return the pieces that `ids` stand for."""
        return [self._model.id_to_piece(i) for i in ids]


def check(file: Path) -> None:
    """Refuse a model from outside that is damaged, before it is loaded in this process.

    A damaged model can end the process that parses it, and no `except` helps: a child with limits tries first.

    Raises:
        MissingError: there is no such file.
        DataError: it is no model this package can use.
    """
    if not file.is_file():
        raise MissingError(f"no tokenizer {file}")
    child = subprocess.run(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-P", "-m", "nmt_cli.corpus.tokenizer", str(file.resolve())],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if child.returncode != 0:
        last = child.stderr.strip().rpartition("\n")[2]
        raise DataError(last if last.startswith(str(file.resolve())) else f"{file} is not a SentencePiece model")


def _try(file: Path) -> int:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
    try:
        Tokenizer(file).encode(["A first line ."])
    except DataError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(_try(Path(sys.argv[1])))
