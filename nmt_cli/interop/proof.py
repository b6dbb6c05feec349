"""Is an exported model the same? Token log-probabilities and translations of both, side by side."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.interop.peers import BATCH, Pair, Peer
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.lines import translate_ids
from nmt_cli.translation.search import SearchSettings, force

TOLERANCE = 1e-4  # nats per token, or this fraction where a token has less than one in e: float32 in another order
# Rounding turns about one line in 8,000, where two hypotheses are nearly as likely; another search turns many. The one
# line more lets a comparison of few lines meet such a tie.
MAX_DIFFERING = 0.02


@dataclass(frozen=True)
class Proof:
    """What the comparison of two toolkits says.

    Attributes:
        tokens: whose log-probabilities were compared.
        largest: difference of a token's log-probability, in nats, relative where the log-probability is below -1.
        ours: our beam search's translations, as ids.
        theirs: their beam search's translations, as ids.
        compared: the number of lines that ended within the limit, by the name of the search.
        differing: search, line, our ids, their ids, and by how many nats our model finds ours likelier.
    """

    tokens: int
    largest: float
    ours: list[list[int]]
    theirs: list[list[int]]
    compared: dict[str, int]
    differing: list[tuple[str, int, list[int], list[int], float]]

    def differences(self, search: str) -> int:
        return sum(row[0] == search for row in self.differing)

    def refusal(self) -> str | None:
        """Return why a model that is not quantised is not the same, or None where it is."""
        if self.largest > TOLERANCE:
            return f"its log-probabilities differ by more than {TOLERANCE:g}"
        if any(self.differences(name) > 1 + MAX_DIFFERING * count for name, count in self.compared.items()):
            return f"more than {MAX_DIFFERING:.0%} of its translations differ"
        return None

    def __str__(self) -> str:
        same = [
            f"{name} output is the same for {count - self.differences(name)} of {count}"
            for name, count in self.compared.items()
        ]
        return (
            f"On {len(self.ours)} sentences ({self.tokens:,} tokens), without length penalty: the largest difference "
            f"of a token's log-probability is {self.largest:.1e}; {', '.join(same)} that end within the limit."
        )


def our_scores(model: Transformer, pairs: Sequence[Pair]) -> Iterator[list[float]]:
    """Yield the log-probabilities of every pair's target tokens; both sides are closed by EOS."""
    for start in range(0, len(pairs), BATCH):
        yield from force(model, torch.float32, pairs[start : start + BATCH])


def largest_difference(ours: Iterable[list[float]], theirs: Iterable[list[float]]) -> float:
    """Return the largest difference of a token's log-probability, as `Proof.largest` has it."""
    both = [pair for rows in zip(ours, theirs, strict=True) for pair in zip(*rows, strict=True)]
    return max(abs(p - q) / max(1.0, -p) for p, q in both)


def compare(model: Transformer, peer: Peer, sources: Sequence[Sequence[int]], beam: int, extra_length: int) -> Proof:
    """Translate with both and compare, without length penalty: theirs is another function.

    Args:
        model: ours.
        peer: the exported model in another toolkit.
        sources: ids, each closed by EOS.
        beam: width of the beam search; greedy search is compared, too.
        extra_length: see recipe.Decoding. A line where either reaches that limit is not compared: theirs has another.
    """
    mine = for_inference(model, torch.float32)
    ours: list[list[int]] = []
    theirs: list[list[int]] = []
    compared: dict[str, int] = {}
    differing: list[tuple[str, int, list[int], list[int]]] = []
    for width in sorted({1, beam}):
        name, settings = f"beam-{width}" if width > 1 else "greedy", SearchSettings(width, 0.0, extra_length)
        ours = [best[0].ids for best in translate_ids([mine], torch.float32, sources, settings)]
        theirs = list(peer.translate(sources, width, extra_length))
        limits = [len(source) + extra_length for source in sources]
        ended = [i for i, limit in enumerate(limits) if max(len(ours[i]), len(theirs[i])) + 1 < limit]
        compared[name] = len(ended)
        differing += [(name, i, ours[i], theirs[i]) for i in ended if ours[i] != theirs[i]]
    scored = [*enumerate(ours), *((i, ids) for _, i, *both in differing for ids in both)]
    pairs = [(sources[i], [*ids, EOS]) for i, ids in scored]
    scores = list(our_scores(mine, pairs))
    sums = [sum(row) for row in scores[len(sources) :]]
    rows = [(*row, a - b) for row, a, b in zip(differing, sums[::2], sums[1::2], strict=True)]
    tokens = sum(len(ids) + 1 for ids in ours)
    return Proof(tokens, largest_difference(scores, peer.score(pairs)), ours, theirs, compared, rows)
