"""The embedded default corpus, `toy-en-de`: generated English and correct German, by a grammar in this file's history.

It asks for what the Transformer is about: words that move far, endings that depend on words elsewhere, and the pronoun
"it", whose German gender hangs on which of two nouns the last word of the sentence fits.
"""

import lzma
import re
from collections.abc import Sequence
from pathlib import Path

from nmt_cli.corpus.readers import Chunk

SIZES = {"train": 20_000, "dev": 500, "test": 500}  # in the order of the file


def read_splits() -> dict[str, Chunk]:
    """Return the English and the German lines of every split; no sentence occurs twice on either side."""
    pairs = iter(lzma.decompress(Path(__file__).with_name("toy.tsv.xz").read_bytes()).split(b"\n"))
    splits: dict[str, Chunk] = {}
    for split, size in SIZES.items():
        lines = [next(pairs).split(b"\t") for _ in range(size)]
        splits[split] = Chunk([en for en, _ in lines], [de for _, de in lines])
    return splits


def pronoun_accuracy(sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> tuple[int, int]:
    """Return how many antecedent sentences (English to German) got their reference's pronoun, and of how many."""
    correct = total = 0
    for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True):
        asked, got = (re.search(r"\bweil (\w+)", german) for german in (reference, hypothesis))
        if asked and re.search(r" because it (is|was) too \w+\.$", source):
            correct, total = correct + (got is not None and got[1] == asked[1]), total + 1
    return correct, total
