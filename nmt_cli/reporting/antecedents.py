"""Does a head follow the pronoun to its antecedent? Measured on the generated language, where the answer is known.

In "The dog did not cross the street because it was too wide." the last word tells which noun phrase "it" stands for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nmt_cli.corpus.store import Corpus
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.corpus.toy import LEXICON, MOODS
from nmt_cli.reporting.attention_maps import Floats, attention_scores, softmax
from nmt_cli.transformer.model import Transformer

QUERIES = {
    "it": ("encoder", "encoder self-attention, at “it”"),
    "pronoun": ("cross", "cross-attention, where er, sie or es is about to be said"),
    "own": ("decoder", "decoder self-attention, at the same place, to the German nouns said before"),
}


@dataclass(frozen=True)
class Follower:
    """The head that follows best from one place: chosen on the development set, counted on the test set.

    Attributes:
        query: what it looks from, in words.
        layer: from 1.
        head: from 1.
        right: sentences in which the antecedent, with its article and adjective, gets more weight than the other noun.
        total: sentences.
        always_first: sentences whose antecedent comes first: what a head that always looks there gets right.
    """

    query: str
    layer: int
    head: int
    right: int
    total: int
    always_first: int


@dataclass(frozen=True)
class _Case:
    """A sentence pair: ids of both sides; by query its place and the pieces of the antecedent and of the other noun."""

    src: list[int]
    tgt: list[int]
    first: bool
    places: dict[str, tuple[int, list[int], list[int]]]


def word_spans(pieces: Sequence[str]) -> list[list[int]]:
    """Return the places of each word's pieces; a word begins with ▁."""
    spans: list[list[int]] = []
    for place, piece in enumerate(pieces):
        if piece.startswith("▁") or not spans:
            spans.append([])
        spans[-1].append(place)
    return spans


def _places(spans: Sequence[Sequence[int]]) -> list[int]:
    return [place for span in spans for place in span]


def _cases(corpus: Corpus, split: str, tokenizer: Tokenizer) -> Iterator[_Case]:
    for src, tgt in zip(*corpus.lines(split), strict=True):
        words, german = src.split(), tgt.split()
        if "because it " not in src or words[-2] != "too" or "weil" not in german:
            continue
        ids = tokenizer.encode([src, tgt])
        spans, tgt_spans = (word_spans(tokenizer.pieces(side)) for side in ids)
        because, weil = words.index("because"), german.index("weil")
        nouns = [i for i, word in enumerate(german[:weil]) if i and word[0].isupper()]
        first = words[-1].rstrip(".") in MOODS
        animal_end = 2 + (words[1] in LEXICON["animals"][0])
        english = [_places(spans[:animal_end]), _places(spans[because - 2 : because])]
        # The decoder reads its own pieces one place later than it says them.
        german_phrases = tgt_spans[: nouns[0] + 1], tgt_spans[nouns[1] - 1 : nouns[1] + 1]
        said = [[place + 1 for place in _places(spans)] for spans in german_phrases]
        right, wrong = (0, 1) if first else (1, 0)
        it, pronoun = spans[because + 1][0], tgt_spans[weil + 1][0]
        places = {
            "it": (it, english[right], english[wrong]),
            "pronoun": (pronoun, english[right], english[wrong]),
            "own": (pronoun, said[right], said[wrong]),
        }
        yield _Case([*ids[0], EOS], [*ids[1], EOS], first, places)


def _hits(model: Transformer, cases: Sequence[_Case]) -> dict[str, Floats]:
    """Return for each query how many sentences each layer's heads get right, L x H."""
    hits: dict[str, Floats] = {}
    for case in cases:
        weights = {role: softmax(scores) for role, scores in attention_scores(model, case.src, case.tgt).items()}
        for query, (role, _) in QUERIES.items():
            place, right, wrong = case.places[query]
            row_LHS = weights[role][:, :, place]
            hit = row_LHS[..., right].sum(-1) > row_LHS[..., wrong].sum(-1)
            hits[query] = hits.get(query, np.zeros(hit.shape)) + hit
    return hits


def followers(model: Transformer, corpus: Corpus, tokenizer: Tokenizer) -> list[Follower]:
    """Return the best head of each query; [] for a corpus without such sentences."""
    dev, test = (list(_cases(corpus, split, tokenizer)) for split in ("dev", "test"))
    if not dev or not test:
        return []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a sentence at a time is too little work to share: threads would only wait for each other
    chosen, hits = _hits(model, dev), _hits(model, test)
    torch.set_num_threads(threads)
    found, first = [], sum(case.first for case in test)
    for query, counts in hits.items():
        layer, head = (int(i) for i in np.unravel_index(int(chosen[query].argmax()), counts.shape))
        found.append(Follower(QUERIES[query][1], layer + 1, head + 1, int(counts[layer, head]), len(test), first))
    return found
