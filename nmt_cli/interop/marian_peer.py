"""Marian itself (pip install pymarian), to compare an imported model with. All ids end with EOS."""

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.interop.vocabulary import UNNAMED, Numbers
from nmt_cli.system.errors import DataError

COMMAND = "import sys, _pymarian; sys.exit(_pymarian.main(sys.argv[1:]))"  # its command line, for python -c
PRE_NORM = "Marian's decoder normalises no keys and values with pre-norm, its training and scorer do: not compared."
OPTIONS = ("--cpu-threads", "1", "--quiet")


class Marian:
    """A model.npz; `numbers` are its ids of our tokens, of the source and of the target, in our order.

    It is given tokens, not text: its vocabularies are written as .yml, which it splits at spaces only.
    """

    beam = 1  # its beam becomes narrower with every hypothesis that ends

    def __init__(self, model: Path, numbers: list[Numbers], norm: str) -> None:
        self.differs = PRE_NORM if norm == "pre" else ""
        self.model, self.numbers, self.names = model.resolve(), numbers, [[*side] for side in numbers]
        self.ids = [{name: i for i, name in enumerate(side)} for side in self.names]

    @classmethod
    def where_installed(cls, model: Path, numbers: list[Numbers], norm: str) -> "Marian | None":
        return cls(model, numbers, norm) if find_spec("_pymarian") else None

    def check_ids(self, tokenizer: Tokenizer, lines: list[str], targets: list[str], allowed: int = 0) -> None:
        """Nothing to compare: Marian splits text by the same SentencePiece files."""

    def translate(self, sources: list[list[int]], beam: int, limit: int) -> Iterator[list[int]]:
        factor = math.ceil(limit / min(map(len, sources)))
        options = ("--beam-size", beam, "--normalize", 0, "--max-length-factor", factor, "--allow-unk")
        for line in self._run("decode", [sources], "--quiet-translation", *options):
            yield [*(self.ids[1][name] for name in line.split()), EOS]

    def score(self, pairs: list[tuple[list[int], list[int]]]) -> Iterator[list[float]]:
        sides = [[pair[side] for pair in pairs] for side in (0, 1)]
        for line in self._run("score", sides, "--word-scores"):
            yield [float(number) for number in line.rpartition("WordScores=")[2].split()]

    def _run(self, command: str, sides: Sequence[Iterable[list[int]]], *options: object) -> list[str]:
        """Return what a command of Marian prints for token ids of the source, and of the target if there are two."""
        with tempfile.TemporaryDirectory() as place:
            vocabularies = [Path(place) / f"{side}.yml" for side in ("source", "target")]
            texts = [Path(place) / side for side in ("source", "target")]
            for file, side in zip(vocabularies, self.numbers, strict=True):
                file.write_text(
                    json.dumps(
                        {name: i for name, i in side.items() if name != "<pad>" and not name.startswith(UNNAMED)}
                    ),
                    "utf-8",
                )
            for file, sentences, names in zip(texts, sides, self.names, strict=False):
                file.write_text("".join(f"{' '.join(names[i] for i in ids[:-1])}\n" for ids in sentences), "utf-8")
            inputs = ["--input", texts[0]] if len(sides) == 1 else ["--train-sets", *texts]
            model = ["--models" if command == "decode" else "--model", self.model]
            words = [command, *model, *inputs, "--vocabs", *vocabularies, *OPTIONS, *options]
            line = [sys.executable, "-c", COMMAND, *map(str, words)]
            done = subprocess.run(line, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            raise DataError(f"Marian cannot {command} with {self.model}: {(done.stderr or done.stdout)[-300:].strip()}")
        return done.stdout.removesuffix("\n").split("\n")
