"""Learn from parallel text which target tokens translate each source token (the command `nmt shortlist`).

IBM Model 1 (Brown et al. 1993) assumes that every target token translates one token of the source sentence, or none.
At first, all source tokens of a sentence are equally likely. Each round of expectation maximization counts the
translations, weighted by the probabilities of the previous round.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt_cli.corpus.readers import CHUNK, read_pairs
from nmt_cli.corpus.tokenizer import EOS, PAD, Tokenizer, normalize
from nmt_cli.storage import artefact
from nmt_cli.system.console import counted, say
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.transformer.directory import open_model
from nmt_cli.translation.shortlist import FILE, Shortlist

ROUNDS = 5
# A link consists of a source token (or NONE) and a target token of the same pair of lines.
MAX_LINKS = 25_000_000  # this many links take 0.8 GB
MOST_TOKENS = 1000  # pairs with a longer line are left out
NONE = PAD  # the source token of target tokens that translate none
Ids = npt.NDArray[np.int32]


def learn_shortlist(model: Path, src: Path, tgt: Path, best: int, frequent: int) -> int:
    """Store a shortlist from parallel text in a model directory. Return 0. For `best` and `frequent`, see `learn`."""
    opened = open_model(model)
    for file in (src, tgt):
        if not file.is_file():
            raise MissingError(f"{file} is not a file. Check the path")
    pairs, count = encoded_pairs(src, tgt, opened.tokenizer)
    used = within_links(pairs)
    if not used:
        raise DataError(f"{src} and {tgt} have no pair of lines with text")
    shortlist = learn(used, opened.tokenizer, best, frequent)
    artefact.replace_file(opened.directory / FILE, shortlist.to_bytes(opened.tokenizer_file))
    some = f", of {count:,}" if len(used) < count else ""
    say(
        f"{opened.directory / FILE}: {counted(len(used), 'pair')}{some}; {len(shortlist.frequent):,} frequent tokens, "
        f"{len(shortlist.targets):,} listed ones. Use it with nmt translate --shortlist auto"
    )
    return 0


def encoded_pairs(src: Path, tgt: Path, tokenizer: Tokenizer) -> tuple[list[tuple[Ids, Ids]], int]:
    """Return encoded pairs of lines, and the number of pairs in the files.

    Pairs with an empty or overlong line are left out of both. If the others have more than 2 x MAX_LINKS links, return
    only evenly spaced pairs, to save memory, but the number of all. Raise DataError for a line that is not UTF-8.
    """
    kept, links, step, count = list[tuple[Ids, Ids]](), 0, 1, 0
    for number, chunk in enumerate(read_pairs(str(src), str(tgt), 0, {})):
        texts = [_texts(side, file, number * CHUNK) for side, file in ((chunk.src, src), (chunk.tgt, tgt))]
        encoded = tokenizer.encode_arrays(texts[0]), tokenizer.target.encode_arrays(texts[1])
        for pair in zip(*encoded, strict=True):
            if not all(0 < len(side) <= MOST_TOKENS for side in pair):
                continue
            if count % step == 0:
                kept.append(pair)
                links += _links(pair)
            count += 1
            if links > 2 * MAX_LINKS:
                kept, step = kept[::2], 2 * step
                links = sum(map(_links, kept))
    return kept, count


def _texts(lines: Sequence[bytes | None], file: Path, before: int) -> list[str]:
    """Return the text of each line, or "" for None (an overlong line). `before` lines of the file precede them."""
    texts = []
    for number, line in enumerate(lines, before + 1):
        try:
            texts.append(normalize((line or b"").decode()))
        except UnicodeDecodeError:
            raise DataError(f"{file}, line {number:,} is not UTF-8. Convert it, for example with iconv") from None
    return texts


def _links(pair: tuple[Ids, Ids]) -> int:
    return (len(pair[0]) + 1) * len(pair[1])


def within_links(pairs: Sequence[tuple[Ids, Ids]]) -> list[tuple[Ids, Ids]]:
    """Return all pairs or, if they have more than MAX_LINKS links, every n-th pair."""
    links = sum(map(_links, pairs))
    return list(pairs[:: max(1, -(-links // MAX_LINKS))])


def learn(pairs: Sequence[tuple[Ids, Ids]], tokenizer: Tokenizer, best: int, frequent: int) -> Shortlist:
    """Return a shortlist: the `frequent` most frequent target tokens, and up to `best` translations per source token.

    If both sides share a vocabulary, each source token is also a translation of itself, because names and numbers are
    often copied.
    """
    sources, targets, probabilities = _model_1(pairs, tokenizer.target.vocabulary_size)
    counts = np.bincount(np.concatenate([tgt for _, tgt in pairs]), minlength=tokenizer.target.vocabulary_size)
    often = [i for i in np.argsort(-counts, kind="stable")[:frequent].tolist() if counts[i]]
    order = np.lexsort((targets, -probabilities, sources))
    order = order[(sources[order] != NONE) & (targets[order] != PAD)]
    first = np.searchsorted(sources[order], sources[order])  # index of the first translation of the same source
    order = order[np.arange(len(order)) - first < best]
    listed: list[list[int]] = [[] for _ in range(tokenizer.vocabulary_size)]
    for source, target in zip(sources[order].tolist(), targets[order].tolist(), strict=True):
        listed[source].append(target)
    if tokenizer.target is tokenizer:
        for source in range(1, len(listed)):
            listed[source] = list(dict.fromkeys([source, *listed[source]]))
    flat = [target for each in listed for target in each]
    return Shortlist(sorted({*often, EOS}), np.cumsum([len(each) for each in listed]).tolist(), flat)


def _model_1(pairs: Sequence[tuple[Ids, Ids]], vocabulary: int) -> tuple[Any, Any, Any]:
    """Return three arrays, with one element per distinct link: source token, target token, translation probability."""
    keys_L = []  # L: all links of all pairs
    for src, tgt in pairs:
        with_none = np.append(src, np.int32(NONE)).astype(np.int64)
        keys_L.append((with_none[None, :] * vocabulary + tgt[:, None]).ravel())
    lengths = np.concatenate([np.full(len(tgt), len(src) + 1) for src, tgt in pairs])
    word_L = np.repeat(np.arange(len(lengths)), lengths)  # the target token of each link
    keys, key_L = np.unique(np.concatenate(keys_L), return_inverse=True)
    sources, targets = keys // vocabulary, keys % vocabulary
    probabilities = np.ones(len(keys))
    for _ in range(ROUNDS):
        share_L = probabilities[key_L]
        share_L /= np.bincount(word_L, share_L)[word_L]
        count = np.bincount(key_L, share_L, len(keys))
        probabilities = count / np.bincount(sources, count)[sources]
    return sources, targets, probabilities
