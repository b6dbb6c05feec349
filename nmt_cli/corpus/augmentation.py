"""Augment the training text of each epoch: change and join pairs, and split subwords.

The result depends only on the corpus, the settings, the seed, the epoch and the block of pairs. The corpus holds token
ids, so a changed pair is decoded and encoded again. A pair with an unknown token cannot be decoded, so its text is not
changed. Changes that would make a line longer than the longest line of the corpus are not made.
"""

import functools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt_cli.corpus import damage, letter_case
from nmt_cli.corpus.store import Corpus, Lengths, open_corpus
from nmt_cli.corpus.tokenizer import EOS, LANGUAGE, UNK, WIDE, Tokenizer, normalize
from nmt_cli.recipe.text_source import Augment
from nmt_cli.system.errors import DataError

Ids = npt.NDArray[Any]
BLOCK = 2048  # consecutive pairs that are augmented together; another value would change the augmented text
MOST_JOINED = 3  # maximum number of pairs joined into one
_ATOM = re.compile(rf"<0x..>|<unk>|<pad>|</?s>|{LANGUAGE.pattern}")  # tokens that are never split
_WIDE_JOINT = re.compile(f"[{WIDE}]\n[{WIDE}]")


@dataclass(frozen=True)
class Augmentation:
    """Everything that determines the augmented text, except the epoch and the block."""

    directory: Path  # directory of the corpus
    identity: str  # Corpus.identity, to notice another corpus in `directory`
    settings: Augment
    languages: tuple[str, str]
    seed: int
    targets: tuple[str, ...] = ()  # target languages of the corpus, if there are several
    # (position after the last pair, settings) of each part of the corpus. Replaces `settings` if not empty.
    parts: tuple[tuple[int, Augment], ...] = ()

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int, int, Augment]]:
        """Split the pairs [first, last) at the ends of parts. Yield (part number, start, end, settings) of each run."""
        for part, (end, settings) in enumerate(self.parts or [(last, self.settings)]):
            if first < min(end, last):
                yield part, first, min(end, last), settings
                first = end


def augment_block(augmentation: Augmentation, job: tuple[int, int]) -> list[tuple[Ids, Lengths]]:
    """Return the augmented text of a block. `job` is (epoch, block number).

    The result is [source, target], and each side is (concatenated ids of all lines, length of each line). A pair that
    was joined to an earlier pair has length 0. Raises DataError if the corpus has changed since training began.
    """
    return _augmenter(augmentation.directory, augmentation.identity).block(augmentation, *job)


@functools.lru_cache(1)
def _augmenter(directory: Path, identity: str) -> "_Augmenter":
    corpus = open_corpus(directory)
    if corpus.identity != identity:
        raise DataError(f"{directory} has changed during training. Restore the original corpus")
    return _Augmenter(corpus)


class _Augmenter:
    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        tokenizer = Tokenizer(corpus.tokenizer_file)
        self.tokenizers = [tokenizer, tokenizer.target]
        self.longest = int(max(side.lengths().max() for side in (corpus.src, corpus.tgt)))

    @functools.cached_property
    def split_tables(self) -> list[Ids]:
        return [split_table(tokenizer) for tokenizer in self.tokenizers]

    def block(self, augmentation: Augmentation, epoch: int, number: int) -> list[tuple[Ids, Lengths]]:
        first = number * BLOCK
        last = min(first + BLOCK, len(self.corpus.src))
        lines = [[side.ids[side.offsets[i] : side.offsets[i + 1]] for i in range(first, last)]
                 for side in (self.corpus.src, self.corpus.tgt)]  # fmt: skip
        for part, start, end, settings in augmentation.runs(first, last):
            if not settings.is_active:
                continue
            # Each part has its own random generator, so that its text does not depend on the settings of other parts.
            key = [augmentation.seed, epoch, number, *([part] if start > first else [])]
            run = [side[start - first : end - first] for side in lines]
            draw = random.Random(" ".join(map(str, key)))  # noqa: S311  # not for security
            self._change(run, settings, augmentation, draw)
            if settings.bpe_dropout:
                self._split(run, settings.bpe_dropout, np.random.Generator(np.random.Philox(key)))
            for side, changed_lines in zip(lines, run, strict=True):
                side[start - first : end - first] = changed_lines
        return [(np.concatenate(side), np.array(list(map(len, side)))) for side in lines]

    def _change(
        self, lines: list[list[Ids]], settings: Augment, augmentation: Augmentation, draw: random.Random
    ) -> None:
        """Change and join random pairs in place. A pair that is joined to an earlier pair becomes empty."""
        groups, texts = list[range](), list[list[str]]()
        heads = list[list[int]]()
        first, end = 0, len(lines[0])
        while first < end:
            count = draw.randint(2, MOST_JOINED) if draw.random() < settings.joined else 1
            group = range(first, min(first + count, end))
            kinds = [draw.random() < probability for probability in
                     (settings.noise, settings.typos, settings.no_stop, settings.upper, settings.title)]  # fmt: skip
            if (len(group) > 1 or any(kinds)) and (decoded := self._decode(lines, group)):
                head, src, tgt = decoded
                groups.append(group)
                heads.append(head)
                languages = augmentation.languages[0], self._target(head, augmentation)
                texts.append([normalize(side) for side in changed(src, tgt, kinds, languages, draw)])
            first = group.stop
        encoded = [tokenizer.encode_arrays([pair[i] for pair in texts]) for i, tokenizer in enumerate(self.tokenizers)]
        for group, head, src, tgt in zip(groups, heads, *encoded, strict=True):
            pair = [np.array([*head, *src, EOS]), np.append(tgt, EOS)]
            if max(map(len, pair)) <= self.longest:
                for side, ids in zip(lines, pair, strict=True):
                    side[group.start : group.stop] = [ids, *[ids[:0]] * (len(group) - 1)]

    def _decode(self, lines: list[list[Ids]], group: range) -> tuple[list[int], str, str] | None:
        """Decode and join a group of pairs. Return (first tokens, source text, target text).

        The first tokens are the ids of target-language and tag tokens, such as >>deu<<. Return None if the sources have
        different first tokens, or if a pair contains an unknown token.
        """
        src, tgt = ([side[i][:-1].tolist() for i in group] for side in lines)
        heads = [self.tokenizers[0].language(ids) for ids in src]
        if any(UNK in ids for ids in (*src, *tgt)) or any(head != heads[0] for head in heads):
            return None
        src = [ids[len(heads[0]) :] for ids in src]
        return heads[0], joined(self.tokenizers[0].decode(src)), joined(self.tokenizers[1].decode(tgt))

    def _target(self, head: list[int], augmentation: Augmentation) -> str:
        """Return the target language that the first token in `head` names, or else that of the recipe."""
        codes = [token.strip("\u2581<>") for token in self.tokenizers[0].tokens(head[:1])]
        return codes[0] if codes and codes[0] in augmentation.targets else augmentation.languages[1]

    def _split(self, lines: list[list[Ids]], probability: float, rng: np.random.Generator) -> None:
        """Split random subwords on both sides, in place. Leave pairs unchanged that would become too long."""
        pairs = [split_lines(side, table, probability, rng)
                 for side, table in zip(lines, self.split_tables, strict=True)]  # fmt: skip
        for i, (src, tgt) in enumerate(zip(*pairs, strict=True)):
            if max(len(src), len(tgt)) <= self.longest:
                lines[0][i], lines[1][i] = src, tgt


def joined(lines: Sequence[str]) -> str:
    """Join lines with spaces, but without a space between two Chinese or Japanese characters."""
    text = "\n".join(lines)
    return _WIDE_JOINT.sub(lambda joint: joint[0].replace("\n", ""), text).replace("\n", " ")


def changed(
    src: str, tgt: str, kinds: Sequence[bool], languages: tuple[str, str], draw: random.Random
) -> tuple[str, str]:
    """Return a changed pair. `kinds` are flags, in this order: noise, typos, no final stop, upper case, title case."""
    noise, typos, no_stop, upper, title = kinds
    if no_stop and damage.ends_with_stop(src) and damage.ends_with_stop(tgt):
        src, tgt = damage.without_stop(src), damage.without_stop(tgt)
    if typos:
        src = damage.with_typos(src, draw, least=1)
    change = letter_case.title if title else None
    if upper:
        change = letter_case.upper
    if change:
        src, tgt = change(src, languages[0]), change(tgt, languages[1])
    return damage.with_noise(src, tgt, draw) if noise else (src, tgt)


def split_table(tokenizer: Tokenizer) -> Ids:
    """Return, for each token, the ids of the two tokens from which it was merged, or (-1, -1) if it cannot be split.

    The shape is (vocabulary size, 2). Raises DataError for a Moses tokenizer, which has no scores.
    """
    tokens = tokenizer.vocabulary
    scores = {token: tokenizer.score(i) for i, token in enumerate(tokens) if not _ATOM.search(token)}
    ids = {token: i for i, token in enumerate(tokens)}
    table = np.full((len(tokens), 2), -1, np.int32)
    for token in scores:
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        known = [pair for pair in halves if pair[0] in scores and pair[1] in scores]
        if known:  # earlier merges have higher scores, so this is the pair that BPE could merge first
            left, right = max(known, key=lambda pair: min(scores[pair[0]], scores[pair[1]]))
            table[ids[token]] = ids[left], ids[right]
    return table


def split_lines(lines: Sequence[Ids], table: Ids, probability: float, rng: np.random.Generator) -> list[Ids]:
    """Split each token into two, as in `table`, with the given probability. Split the new tokens in the same way."""
    ids = np.concatenate(lines)
    line_of = np.repeat(np.arange(len(lines)), list(map(len, lines)))
    may_split = np.ones(len(ids), bool)
    while may_split.any():
        split = may_split & (table[ids, 0] >= 0) & (rng.random(len(ids)) < probability)
        counts = 1 + split  # tokens in place of each token
        first = np.cumsum(counts) - counts
        old, ids = ids, np.repeat(ids, counts)
        ids[first[split]] = table[old[split], 0]
        ids[first[split] + 1] = table[old[split], 1]
        line_of, may_split = np.repeat(line_of, counts), np.repeat(split, counts)
    return np.split(ids, np.cumsum(np.bincount(line_of, minlength=len(lines)))[:-1])
