"""Proof that an exported model is the same: token log-probabilities, greedy and beam output beside ours."""

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.interop.near_ties import NearTie, outcomes
from nmt_cli.interop.peers import CTranslate2, Transformers
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.lines import translate_ids
from nmt_cli.translation.lines import force
from nmt_cli.translation.search import SearchSettings

TOLERANCE = 1e-4  # nats per token, or this fraction where a token has less than one in e: float32 in another order
BATCH = 32


@dataclass(frozen=True)
class Difference:
    """A line whose translations differ.

    Attributes:
        line: its place.
        ours: our translation's ids.
        theirs: their translation's ids.
        gap: by how many nats our model finds its own likelier.
        near_tie: where the two searches part, if both translations come of one search that rounding turns there;
            None where rounding does not explain them.
    """

    line: int
    ours: list[int]
    theirs: list[int]
    gap: float
    near_tie: NearTie | None


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
        return self.largest <= TOLERANCE and all(d.near_tie for d in found)


def _force(
    model: Transformer, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], dtype: torch.dtype = torch.float32
) -> list[list[float]]:
    parts = (pairs[start : start + BATCH] for start in range(0, len(pairs), BATCH))
    return [scores for part in parts for scores in force(model, dtype, part)]


def _rounding(exact: list[list[float]], *others: list[list[float]]) -> float:
    """Return the largest difference of a log-probability of first tokens of a sentence, in nats."""
    sums = ([list(itertools.accumulate(row)) for row in rows] for rows in (exact, *others))
    first, *rest = (list(itertools.chain.from_iterable(rows)) for rows in sums)
    return max(abs(p - q) for other in rest for p, q in zip(first, other, strict=True))


def compare(
    model: Transformer,
    peer: Transformers | CTranslate2,
    sources: Sequence[Sequence[int]],
    beam: int,
    extra_length: int,
    *,
    exactly: bool = True,
) -> Proof:
    """Translate with both and compare, without length penalty: theirs is another function.

    Args:
        model: ours.
        peer: the exported model in another toolkit.
        sources: ids, each closed by EOS.
        beam: width of the beam search.
        extra_length: see recipe.Decoding. A line where either reaches that limit is not compared: theirs has another.
        exactly: look for near-ties that explain the differences.
    """
    mine = for_inference(model, torch.float32)
    results: dict[str, tuple[list[list[int]], list[list[int]]]] = {}
    compared: dict[str, int] = {}
    differ: list[tuple[str, int]] = []
    for name, width in (("greedy", 1), ("beam", beam)):
        settings = SearchSettings(width, 0.0, extra_length)
        ours = [best[0].ids for best in translate_ids([mine], torch.float32, sources, settings)]
        theirs = peer.translate(sources, width, extra_length)
        results[name] = ours, theirs
        ended = [
            line
            for line, (source, a, b) in enumerate(zip(sources, ours, theirs, strict=True))
            if max(len(a), len(b)) + 1 < len(source) + extra_length
        ]
        compared[name] = len(ended)
        differ += [(name, line) for line in ended if ours[line] != theirs[line]]
    pairs = [(source, [*ids, EOS]) for source, ids in zip(sources, results["greedy"][0], strict=True)]
    tokens = sum(len(target) for _, target in pairs)
    pairs += [(sources[line], [*side[line], EOS]) for name, line in differ for side in results[name]]
    scores = [_force(mine, pairs), peer.force(pairs)]
    largest = largest_difference(*scores)
    differences: dict[str, list[Difference]] = {name: [] for name in results}
    exact, rounding = model, 0.0
    if exactly and differ and largest <= TOLERANCE:
        exact = copy.deepcopy(model).double()
        rounding = _rounding(_force(exact, pairs, torch.float64), *scores)
    sums = [sum(row) for row in scores[0][len(sources) :]]
    for (name, line), likelier in zip(differ, (a - b for a, b in zip(sums[::2], sums[1::2], strict=True)), strict=True):
        source, pair = sources[line], [side[line] for side in results[name]]
        tie = None
        if rounding:
            limit = min(len(source) + extra_length, model.settings.max_length)
            ways = outcomes(exact, source, beam if name == "beam" else 1, limit, rounding)
            turns = [ways.get(tuple(ids)) for ids in pair]
            tie = max((turn for turn in turns if turn), key=lambda t: t.gap) if all(turns) else None
        differences[name].append(Difference(line, pair[0], pair[1], likelier, tie))
    return Proof(tokens, largest, beam, *results["beam"], compared, differences)


def largest_difference(ours: list[list[float]], theirs: list[list[float]]) -> float:
    """Return the largest difference of a token's log-probability, as `Proof.largest` has it."""
    flat = [(p, q) for a, b in zip(ours, theirs, strict=True) for p, q in zip(a, b, strict=True)]
    return max(abs(p - q) / max(1.0, -p) for p, q in flat)
