"""Proof that an exported model is the same: token log-probabilities, greedy and beam output beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.interop.peers import CTranslate2, Transformers
from nmt_cli.transformer.incremental import for_inference
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.lines import translate_ids
from nmt_cli.translation.search import SearchSettings, force

TOLERANCE = 1e-4  # nats per token, or this fraction where a token has less than one in e: float32 in another order
BATCH = 32


@dataclass(frozen=True)
class Difference:
    """A line whose translations differ.

    Attributes:
        line: its place.
        ours: our translation's ids.
        theirs: their translation's ids.
        gap: by how many nats our model prefers its own: at the first different token of greedy search, over the whole
            sentence for beam search.
    """

    line: int
    ours: list[int]
    theirs: list[int]
    gap: float


@dataclass
class Proof:
    """What the comparison found.

    Attributes:
        tokens: that were compared.
        largest: difference of a token's log-probability, in nats, relative where the log-probability is below -1.
        beam: width of the beam search.
        ours: our beam search's translations, as ids.
        theirs: their beam search's translations, as ids.
        compared: lines compared, by the name of the search.
        differences: of greedy and beam search's output, by the name of the search.
    """

    tokens: int
    largest: float
    beam: int
    ours: list[list[int]]
    theirs: list[list[int]]
    compared: dict[str, int]
    differences: dict[str, list[Difference]]

    @property
    def same(self) -> bool:
        """Whether nothing differs beyond rounding."""
        found = [d for differences in self.differences.values() for d in differences]
        return self.largest <= TOLERANCE and all(abs(d.gap) <= TOLERANCE * (len(d.ours) + 1) for d in found)


def _force(model: Transformer, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
    parts = (pairs[start : start + BATCH] for start in range(0, len(pairs), BATCH))
    return [scores for part in parts for scores in force(model, torch.float32, part)]


def _gap(model: Transformer, source: Sequence[int], ours: list[int], theirs: list[int], greedy: bool) -> float:
    a, b = _force(model, [(source, [*ours, EOS]), (source, [*theirs, EOS])])
    if not greedy:
        return sum(a) - sum(b)
    first = next((k for k, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y), min(len(ours), len(theirs)))
    return a[first] - b[first]


def compare(
    model: Transformer,
    peer: Transformers | CTranslate2,
    sources: Sequence[Sequence[int]],
    beam: int,
    extra_length: int,
) -> Proof:
    """Translate with both and compare, without length penalty: theirs is another function.

    Args:
        model: ours.
        peer: the exported model in another toolkit.
        sources: ids, each closed by EOS.
        beam: width of the beam search.
        extra_length: see recipe.Decoding. A line where either reaches that limit is not compared: theirs has another.
    """
    mine = for_inference(model, torch.float32)
    found: dict[str, list[Difference]] = {}
    compared: dict[str, int] = {}
    results: dict[str, tuple[list[list[int]], list[list[int]]]] = {}
    for name, width in (("greedy", 1), ("beam", beam)):
        settings = SearchSettings(width, 0.0, extra_length)
        ours = [best[0].ids for best in translate_ids([mine], torch.float32, sources, settings)]
        theirs = peer.translate(sources, width, extra_length)
        results[name], found[name], compared[name] = (ours, theirs), [], 0
        for line, (source, a, b) in enumerate(zip(sources, ours, theirs, strict=True)):
            ended = max(len(a), len(b)) + 1 < len(source) + extra_length
            compared[name] += ended
            if ended and a != b:
                found[name].append(Difference(line, a, b, _gap(mine, source, a, b, name == "greedy")))
    pairs = [(source, [*ids, EOS]) for source, ids in zip(sources, results["greedy"][0], strict=True)]
    tokens = sum(len(target) for _, target in pairs)
    largest = largest_difference(_force(mine, pairs), peer.force(pairs))
    return Proof(tokens, largest, beam, *results["beam"], compared, found)


def largest_difference(ours: list[list[float]], theirs: list[list[float]]) -> float:
    """Return the largest difference of a token's log-probability, as `Proof.largest` has it."""
    flat = [(p, q) for a, b in zip(ours, theirs, strict=True) for p, q in zip(a, b, strict=True)]
    return max(abs(p - q) / max(1.0, -p) for p, q in flat)
