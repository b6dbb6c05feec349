"""Pairs of the user's text held out for dev and test where none are named: `corpus.hold_out`.

Pairs are joined to groups by equal sources and by equal targets, folded as twins are. A group is held out whole or
stays in training whole, so no held-out line has its source or its target in training, or in another held-out set.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt_cli.corpus import cleaning, moses, sources, twins
from nmt_cli.corpus.readers import Chunk
from nmt_cli.recipe import schema
from nmt_cli.system.console import Progress, counted, say
from nmt_cli.system.errors import DataError

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Map = Callable[[Callable[[Chunk], Any], Iterable[Chunk]], Iterable[Any]]
SHARE = 20  # a set is at most this part of the text
FROM = {"dev": (0, 0.25), "test": (0, 0.75), "general": (1, 0.5)}  # the user's text or the general; where to begin
LARGEST = 10  # pairs of a group, or a twentieth of the set: more of one kind would say little


def _cleaned(raw: Sequence[bytes | None], corpus: schema.Corpus) -> tuple[str, str] | None:
    """Return a raw pair as cleaning repairs it, None where it is dropped."""
    try:
        src, tgt = (cleaning.repair(line.decode(), corpus.cleaning) for line in raw if line is not None)
    except ValueError:  # not UTF-8, or too long
        return None
    return None if cleaning.unusable(src, tgt, corpus) else (src, tgt)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def _hash_chunk(corpus: schema.Corpus, chunk: Chunk) -> Hashes:
    """Return (pairs, 3) hashes: of the folded source, of the folded target, and of the pair; 0 where it is dropped."""
    hashes = np.zeros((len(chunk.src), 3), np.uint64)
    for i, raw in enumerate(zip(chunk.src, chunk.tgt, strict=True)):
        if pair := _cleaned(raw, corpus):
            folded = (" ".join(twins.fold(line)) or line for line in pair)  # signs alone have no words to share
            hashes[i] = (*map(_hash, folded), _hash("\n".join(pair)))
    return hashes


def groups(src: Hashes, tgt: Hashes) -> Ints:
    """Return for each pair the first pair of its group; chains of equal sides join, however long."""
    sides = [np.unique(side, return_inverse=True)[1] for side in (src, tgt)]
    first = np.arange(len(src))
    while True:
        before = first
        for side in sides:
            least = np.full(len(src), len(src))
            np.minimum.at(least, side, first)
            first = least[side]
        first = first[first]
        if (first == before).all():
            return first


def _spread(group: Ints, sizes: Ints, wanted: int, phase: float, taken: npt.NDArray[np.bool_]) -> None:
    """Mark as taken, evenly spread over the pairs that may be drawn, groups of `wanted` pairs together at most.

    `group` is that of each pair; `sizes` and `taken` are by group. Two phases (0 to 1) begin at different pairs.
    """
    count, starts = 0, ((np.arange(wanted + 1) + phase) * len(group) / wanted).astype(int)
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        if count > number:
            continue  # a group of several pairs has had this place, too
        for candidate in group[start:end]:
            if not taken[candidate] and count + sizes[candidate] <= wanted:
                taken[candidate] = True
                count += sizes[candidate]
                break


def _pairs(chunks: Iterable[Chunk], lines: Ints) -> Iterator[tuple[str, str]]:
    """Yield the pairs of these lines as they stand: only a CR before LF and a leading BOM go."""
    start = 0
    for chunk in chunks:
        first, end = np.searchsorted(lines, (start, start + len(chunk.src)))
        for line in lines[first:end] - start:
            src, tgt = (str(side[line], "utf-8-sig").removesuffix("\r") for side in chunk[:2])
            yield src, tgt
        start += len(chunk.src)


def draw(corpus: schema.Corpus, map_chunks: Map) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs that `hold_out` takes for each set that is not named; `map_chunks` may use several processes.

    dev and test come from the user's text, general from the general text. Lines that cleaning drops count as not
    there, and of equal pairs only the first is held out. While this runs it takes some 100 bytes a pair.
    """
    own, mix = (
        list(dict.fromkeys(zip(src, tgt, strict=True)))
        for src, tgt in ((corpus.train_src, corpus.train_tgt), (corpus.mix_src, corpus.mix_tgt))
    )
    named = {split: (getattr(corpus, f"{split}_src"), getattr(corpus, f"{split}_tgt")) for split in sources.HELD_OUT}
    missing = [split for split, files in named.items() if not files[0]]
    if not corpus.hold_out or not missing:
        return {}
    texts = [own, mix, [files for files in named.values() if files[0]]]

    def read(text: int) -> Iterator[Chunk]:
        chunks = sources.read(texts[text], {})
        return moses.convert(chunks, corpus.src, corpus.tgt) if corpus.moses else chunks

    lines, found = list[Ints](), list[Hashes]()
    with Progress("holding out", None, "pairs") as progress:
        for text in range(len(texts)):
            parts = [np.zeros((0, 3), np.uint64)]
            for part in map_chunks(functools.partial(_hash_chunk, corpus), read(text)):
                parts.append(part)
                progress.advance(len(part))
            hashes = np.concatenate(parts)
            distinct, first = np.unique(hashes[:, 2], return_index=True)
            lines.append(np.sort(first[distinct != 0]))
            found.append(hashes[lines[-1], :2])
    src, tgt = np.concatenate(found).T
    group, origin = groups(src, tgt), np.repeat(range(len(texts)), [len(part) for part in lines])
    sizes, taken = np.bincount(group, minlength=len(group)), np.zeros(len(group), bool)
    drawn = dict[str, list[tuple[str, str]]]()
    for split in missing:
        text, phase = FROM[split]
        wanted = min(corpus.hold_out, len(lines[text]) // SHARE)
        if not wanted:
            continue
        here = group[origin == text]
        alone = np.bincount(here, minlength=len(group)) == sizes  # groups that have pairs of this text only
        listed, before = ", ".join(itertools.chain(*texts[text])), taken.copy()
        _spread(here[alone[here] & (sizes[here] <= max(LARGEST, wanted // SHARE))], sizes, wanted, phase, taken)
        drawn[split] = list(_pairs(read(text), lines[text][(taken & ~before)[here]]))
        if not drawn[split]:
            why = "each shares its source or its target with too many others, or with other text"
            raise DataError(f"{listed}: no pair can be held out for {split}: {why}. Name a {split} set")
        say(f"no {split} set is named: {counted(len(drawn[split]), 'pair')} of {listed} held out for it")
    return drawn
