"""The built-in default corpus `toy-en-de`: generated English with correct German translations.

The grammar that generated it is in the Git history of this file. The sentences test the strengths of the Transformer:
words that move far, endings that depend on distant words, and translations of "it". The German pronoun takes the gender
of one of two nouns, and only the last word of the sentence tells which noun is meant.
"""

import lzma
import re
from collections.abc import Sequence
from pathlib import Path

from nmt_cli.corpus.catalog import TOY_SIZE, Size
from nmt_cli.corpus.raw_text import RawText, Source, Split
from nmt_cli.corpus.readers import Chunk

SPLIT_SIZES = {"train": 20_000, "dev": 500, "test": 500}  # pairs of each split, in the order of the file


class ToySource(Source):
    generated = True
    origin = "generated"

    def local_files(self) -> list[Path]:
        return []

    def published_size(self) -> Size:
        return TOY_SIZE

    def open(self, downloads: Path, work: Path) -> RawText:
        text = RawText(self.origin, {})
        for split, pairs in read_splits().items():
            chunk = Chunk(pairs.tgt, pairs.src) if self.corpus.src == "de" else pairs
            text.splits[split] = Split(split, [chunk])
        return text


def read_splits() -> dict[str, Chunk]:
    """Return the English and German lines of each split. No English or German sentence occurs twice."""
    pairs = iter(lzma.decompress(Path(__file__).with_name("toy.tsv.xz").read_bytes()).split(b"\n"))
    splits: dict[str, Chunk] = {}
    for split, size in SPLIT_SIZES.items():
        lines = [next(pairs).split(b"\t") for _ in range(size)]
        splits[split] = Chunk([en for en, _ in lines], [de for _, de in lines])
    return splits


def pronoun_accuracy(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> tuple[int, int]:
    """Return how many hypotheses have the same pronoun after "weil" as their reference, and how many were compared.

    A sentence is compared only if its reference contains "weil", and its source ends with "because it is too X." or
    "because it was too X."
    """
    correct = total = 0
    for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True):
        expected, found = (re.search(r"\bweil (\w+)", german) for german in (reference, hypothesis))
        if expected and re.search(r" because it (is|was) too \w+\.$", source):
            correct += found is not None and found[1] == expected[1]
            total += 1
    return correct, total
