"""Is an exported model the same? Token log-probabilities and translations of both toolkits, side by side."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.interop.peers import BATCH, CTranslate2, Pair, Transformers
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.lines import translate_ids
from nmt_cli.translation.search import SearchSettings, force

TOLERANCE = 1e-4  # nats per token, or this fraction where a token has less than one in e: float32 in another order
# Where two hypotheses are nearly as likely, rounding decides: about one line in 8,000. Another way of searching
# changes many lines. One line more is allowed, so that a comparison of few lines may meet such a tie.
MAX_DIFFERING = 0.02


@dataclass(frozen=True)
class Proof:
    """What the comparison of two toolkits says.

    Attributes:
        text: the numbers, in a sentence.
        refusal: why the other is not the same model, or None where it is.
        differing: table rows of the lines that differ: search and line, ours, theirs, how much likelier we find ours.
        ours: our beam search's translations, as ids.
        theirs: their beam search's translations, as ids.
    """

    text: str
    refusal: str | None
    differing: list[list[str]]
    ours: list[list[int]]
    theirs: list[list[int]]


def compare(
    model: Transformer,
    tokenizer: Tokenizer,
    peer: Transformers | CTranslate2,
    sources: dict[int, list[int]],
    beam: int,
    extra_length: int,
) -> Proof:
    """Translate `sources` (ids by line number) with both, greedily and by beam search, without length penalty.

    Theirs is another length penalty, and another limit of length: a line where either reaches ours is not compared.
    """
    mine, numbers, batch = for_inference(model, torch.float32), [*sources], [*sources.values()]
    largest, rows, same, reasons = 0.0, [], [], []
    for width in sorted({1, beam}):
        name, settings = f"beam-{width}" if width > 1 else "greedy", SearchSettings(width, 0.0, extra_length)
        ours = [best[0].ids for best in translate_ids([mine], torch.float32, batch, settings)]
        theirs = list(peer.translate(batch, width, extra_length))
        limits = [len(source) + extra_length - 1 for source in batch]
        ended = [i for i, limit in enumerate(limits) if max(len(ours[i]), len(theirs[i])) < limit]
        differing = [i for i in ended if ours[i] != theirs[i]]
        targets = [*enumerate(ours), *((i, theirs[i]) for i in differing)]
        pairs = [(batch[i], [*ids, EOS]) for i, ids in targets]
        scores = list(our_scores(mine, pairs))
        largest = max(largest, largest_difference(scores, peer.score(pairs)))
        for i, row in zip(differing, scores[len(batch) :], strict=True):
            likelier = sum(scores[i]) - sum(row)
            rows.append([f"{name} {numbers[i] + 1}", *tokenizer.decode([ours[i], theirs[i]]), f"{likelier:.1e}"])
        same.append(f"{name} output is the same for {len(ended) - len(differing)} of {len(ended)}")
        if len(differing) > 1 + MAX_DIFFERING * len(ended):
            reasons.append(f"more than {MAX_DIFFERING:.0%} of its {name} translations differ")
    if largest > TOLERANCE:
        reasons.insert(0, f"its log-probabilities differ by more than {TOLERANCE:g}")
    text = (
        f"On {len(batch)} sentences ({sum(len(ids) + 1 for ids in ours):,} tokens), without length penalty: the largest "
        f"difference of a token's log-probability is {largest:.1e}; {', '.join(same)} that end within the limit."
    )
    return Proof(text, " and ".join(reasons) or None, rows, ours, theirs)


def our_scores(model: Transformer, pairs: Sequence[Pair]) -> Iterator[list[float]]:
    """Yield the log-probabilities of every pair's target tokens; both sides are closed by EOS."""
    for start in range(0, len(pairs), BATCH):
        yield from force(model, torch.float32, pairs[start : start + BATCH])


def largest_difference(ours: Iterable[list[float]], theirs: Iterable[list[float]]) -> float:
    """Return the largest difference of a token's log-probability in nats, relative where it is below -1."""
    both = [pair for rows in zip(ours, theirs, strict=True) for pair in zip(*rows, strict=True)]
    return max(abs(p - q) / max(1.0, -p) for p, q in both)
