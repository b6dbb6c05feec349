"""Hold out pairs of the user's text for the sets that are missing in the recipe (the setting `corpus.hold_out`).

Pairs whose sources or targets are equal after folding (without case and punctuation) form a group. A group is held out
as a whole or not at all, so a held-out pair shares neither its source nor its target with the training text or another
held-out set.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt_cli.corpus import cleaning, filters, moses, near_duplicates
from nmt_cli.corpus.held_out import HeldOutPair
from nmt_cli.corpus.raw_text import RawText
from nmt_cli.corpus.readers import Chunk, read_files
from nmt_cli.corpus.store import HELD_OUT
from nmt_cli.corpus.user_files import entry_chunks, general_files, held_out_files, split_chunks, train_files
from nmt_cli.recipe import schema
from nmt_cli.system.console import Progress, counted, say
from nmt_cli.system.errors import DataError

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Map = Callable[[Callable[[Chunk], Any], Iterable[Chunk]], Iterable[Any]]
SHARE = 20  # a held-out set has at most 1/20 of the pairs of the text it is taken from
# For each set: the text it is taken from (0 is the user's text, 1 the general text), and the phase (see `spread`).
FROM = {"dev": (0, 0.25), "test": (0, 0.75), "general": (1, 0.5)}
# Maximum number of pairs in a held-out group, or 1/20 of the set if that is more. Many similar pairs would make
# a poor test set.
LARGEST = 10


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def hash_chunk(corpus: schema.Corpus, chunk: Chunk) -> Hashes:
    """Return an array with three hashes for each pair: of the folded source, the folded target, and the unfolded pair.

    All three are 0 for a pair that `cleaning.read_pair` or `cleaning.unusable` rejects.
    """
    hashes = np.zeros((len(chunk.src), 3), np.uint64)
    section = corpus.of_source(chunk.source)
    for i in range(len(chunk.src)):
        src, tgt, reason = cleaning.read_pair(section, chunk, i)
        if reason:
            continue
        if filters.turns(src, tgt, section):
            src, tgt = tgt, src
        if not cleaning.unusable(src, tgt, section):
            # If nothing is left after folding, hash the line itself.
            folded = (" ".join(near_duplicates.fold(line)) or line for line in (src, tgt))
            hashes[i] = (*map(_hash, folded), _hash(f"{src}\n{tgt}"))
    return hashes


def groups(src: Hashes, tgt: Hashes) -> Ints:
    """Return, for each pair, the index of the first pair in its group.

    If A and B have equal sources, and B and C have equal targets, all three are in one group.
    """
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


def spread(group: Ints, sizes: Ints, wanted: int, phase: float, taken: npt.NDArray[np.bool_]) -> None:
    """Choose evenly spread groups that have at most `wanted` pairs in total. Mark them in `taken`.

    `group[i]` is the group of candidate i. `sizes` and `taken` are indexed by group. The candidates are divided
    into `wanted` intervals, and about one pair is taken from each. The first interval starts at `phase` (0 to 1) times
    the length of an interval.
    """
    count = 0
    starts = ((np.arange(wanted + 1) + phase) * len(group) / wanted).astype(int)
    for number, (start, end) in enumerate(itertools.pairwise(starts)):
        if count > number:
            continue  # a group of several pairs from an earlier interval makes up for this interval
        for candidate in group[start:end]:
            if not taken[candidate] and count + sizes[candidate] <= wanted:
                taken[candidate] = True
                count += sizes[candidate]
                break


def pairs_at(corpus: schema.Corpus, chunks: Iterable[Chunk], lines: Ints) -> Iterator[HeldOutPair]:
    """Yield the pairs with these line numbers (from 0, ascending). Remove byte order marks and carriage returns.

    Exchange swapped sides if the recipe asks for it. The sources begin with the target-language and tag tokens that the
    model needs.
    """
    start = 0
    for chunk in chunks:
        prefix, section = corpus.prefix(chunk.source), corpus.of_source(chunk.source)
        first, end = np.searchsorted(lines, (start, start + len(chunk.src)))
        for line in lines[first:end] - start:
            src, tgt = (str(side[line], "utf-8-sig").removesuffix("\r") for side in chunk[:2])
            if filters.turns(cleaning.repair(src, section.cleaning), cleaning.repair(tgt, section.cleaning), section):
                src, tgt = tgt, src
            yield HeldOutPair(prefix + src, tgt, section.src, section.tgt)
        start += len(chunk.src)


def held_out_pairs(
    corpus: schema.Corpus, map_chunks: Map, open_named: Callable[[], Mapping[int, RawText]] = dict
) -> dict[str, list[HeldOutPair]]:
    """Return the pairs to hold out for each set that is missing in the recipe, or {} if `corpus.hold_out` is 0.

    dev and test are taken from the user's text, general from the general text. Unusable pairs are ignored (see
    `hash_chunk`), and only the first of several equal pairs is held out. A text of fewer than SHARE pairs yields no
    set. `map_chunks` may use several processes. `open_named` opens the named corpora in corpus.sources, again for each
    reading. Takes about 100 bytes of memory per pair. Raises DataError if no pair of a text of SHARE pairs or more can
    be held out.
    """
    named = held_out_files(corpus)
    by_source = {entry.split for entry in corpus.sources}
    missing = [split for split in HELD_OUT if split not in named and split not in by_source]
    if not corpus.hold_out or not missing:
        return {}
    own, general = (list(dict.fromkeys(files)) for files in (train_files(corpus), general_files(corpus)))
    texts = [own, general, list(named.values())]  # text 2: the held-out sets that the recipe has

    def read(number: int) -> Iterator[Chunk]:
        chunks = read_files(texts[number], {}) if number else split_chunks(corpus, "train", own, {}, open_named())
        if number == 2:
            entries = [index for index, entry in enumerate(corpus.sources) if entry.split != "train"]
            opened = open_named() if entries else {}
            chunks = itertools.chain(chunks, *(entry_chunks(corpus, index, {}, opened) for index in entries))
        return moses.convert(chunks, corpus.src, corpus.tgt) if corpus.moses else chunks

    lines, sides = list[Ints](), list[Hashes]()  # for each text: line numbers and hashes of its distinct usable pairs
    with Progress("holding out", None, "pairs") as progress:
        for number in range(len(texts)):
            chunk_hashes = [np.zeros((0, 3), np.uint64)]
            for found in map_chunks(functools.partial(hash_chunk, corpus), read(number)):
                chunk_hashes.append(found)
                progress.advance(len(found))
            hashes = np.concatenate(chunk_hashes)
            distinct, first = np.unique(hashes[:, 2], return_index=True)
            lines.append(np.sort(first[distinct != 0]))
            sides.append(hashes[lines[-1], :2])
    src, tgt = np.concatenate(sides).T
    group, text_of = groups(src, tgt), np.repeat(range(len(texts)), [len(each) for each in lines])
    sizes, taken = np.bincount(group, minlength=len(group)), np.zeros(len(group), bool)
    held_out = dict[str, list[HeldOutPair]]()
    for split in missing:
        number, phase = FROM[split]
        wanted = min(corpus.hold_out, len(lines[number]) // SHARE)
        if not wanted:
            continue
        text_group = group[text_of == number]  # the group of each pair of this text
        pure = np.bincount(text_group, minlength=len(group)) == sizes  # whether all pairs of a group are in this text
        candidates = text_group[pure[text_group] & (sizes[text_group] <= max(LARGEST, wanted // SHARE))]
        before = taken.copy()
        spread(candidates, sizes, wanted, phase, taken)
        held_out[split] = list(pairs_at(corpus, read(number), lines[number][(taken & ~before)[text_group]]))
        sources = [entry.name for entry in corpus.sources if number == 0 and entry.split == "train"]
        listed = ", ".join([*itertools.chain(*texts[number]), *sources])
        if not held_out[split]:
            reason = "each shares its source or its target with too many other pairs, or with another text"
            raise DataError(f"no pair of {listed} can be held out for {split}, as {reason}. Add a {split} set")
        say(f"no {split} set is given, so nmt holds out {counted(len(held_out[split]), 'pair')} of {listed}")
    return held_out
