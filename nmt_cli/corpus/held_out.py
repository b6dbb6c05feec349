"""Held-out sets (dev, test, general): their pairs with languages, in memory and in the files of a corpus."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nmt_cli.corpus import tokenizer
from nmt_cli.corpus.readers import read_lines


class HeldOutPair(NamedTuple):
    """A pair of a held-out set with its languages. The source includes its first tokens (language and tag), if any."""

    src: str
    tgt: str
    src_language: str
    tgt_language: str


HeldOut = dict[str, list[HeldOutPair]]  # name of a set -> its pairs
# Runs of consecutive lines with the same languages, for each set: (source language, target language, number of lines).
Languages = dict[str, list[tuple[str, str, int]]]


def plain_pairs(held_out: HeldOut) -> list[tuple[str, str]]:
    """Return the pairs of all held-out sets without the first tokens of the sources."""
    return [(tokenizer.without_first_tokens(src), tgt) for pairs in held_out.values() for src, tgt, *_ in pairs]


def languages_of(held_out: HeldOut) -> Languages:
    """Return the languages of each held-out set, as runs of consecutive lines with the same languages."""
    runs = dict[str, list[tuple[str, str, int]]]()
    for split, pairs in held_out.items():
        groups = itertools.groupby(pairs, lambda pair: (pair.src_language, pair.tgt_language))
        runs[split] = [(*languages, sum(1 for _ in group)) for languages, group in groups]
    return runs


def write(directory: Path, held_out: HeldOut) -> None:
    for split, pairs in held_out.items():
        sides = [pair.src for pair in pairs], [pair.tgt for pair in pairs]
        for side, lines in zip(("src", "tgt"), sides, strict=True):
            (directory / f"{split}.{side}").write_bytes("".join(f"{line}\n" for line in lines).encode())


def read(directory: Path, languages: Mapping[str, Any]) -> HeldOut:
    """Read the sets that `write` wrote. `languages` is the result of `languages_of`."""
    held_out = HeldOut()
    for name, runs in languages.items():
        line_languages = [codes for *codes, count in runs for _ in range(count)]
        sides = [read_lines(directory / f"{name}.{side}") for side in ("src", "tgt")]
        held_out[name] = [HeldOutPair(src, tgt, *codes) for src, tgt, codes in zip(*sides, line_languages, strict=True)]
    return held_out
