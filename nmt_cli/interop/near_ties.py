"""Why two toolkits may translate a sentence differently with one model: which ways beam search goes at near-ties.

Two continuations whose scores are closer than the toolkits' rounding may be kept and dropped by one and dropped and
kept by the other. What follows may end far apart: the dropped one's best ending can be better by any number of nats.
So this search goes both ways at every near-tie, in float64, and names the translations that it finds.
"""

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.transformer.model import Transformer, pack

MAX_WAYS = 200  # near-ties make few; more are not followed
FLOAT32 = 2.0**-24  # rounding of one sum, as a fraction of it

Hypothesis = tuple[float, tuple[int, ...]]  # log-probability in nats, ids


@dataclass(frozen=True)
class NearTie:
    """Where a search may turn.

    Attributes:
        step: counted from 1; the end, where finished translations are compared, is one of its own.
        gap: nats between what is kept and what is dropped.
    """

    step: int
    gap: float


@dataclass(frozen=True)
class _Way:
    """A search so far: hypotheses, best first, and the widest near-tie that was decided otherwise."""

    alive: tuple[Hypothesis, ...]
    finished: tuple[Hypothesis, ...]
    turn: NearTie


def outcomes(
    model: Transformer, source: Sequence[int], beam: int, limit: int, rounding: float
) -> dict[tuple[int, ...], NearTie]:
    """Return the translations that beam search without length penalty may find, with the near-ties that lead there.

    Args:
        model: in float64.
        source: ids, closed by EOS.
        beam: width; 1 is greedy search.
        limit: longest translation, EOS counted.
        rounding: how far a toolkit's log-probability of some pieces may be from the exact one, in nats, without its
            float32 sums.

    Returns:
        translations without EOS. The exact one's near-tie has a gap of 0; the others' is the widest one that must be
        decided otherwise on the way, where several ways lead there on the easiest.
    """
    found: dict[tuple[int, ...], NearTie] = {}
    number = itertools.count(1)
    ways, count = [(0.0, 0, _Way(((0.0, ()),), (), NearTie(0, 0.0)))], 1
    while ways:
        way = heapq.heappop(ways)[2]  # the narrowest near-ties first
        step = len(way.alive[0][1]) + 1
        slack = _slack(rounding, step, way.alive[0][0])
        if step > 1 and way.finished and way.finished[0][0] >= way.alive[0][0] + slack:
            _end(way, step, slack, found)
            continue
        scores = _continuations(model, source, way, 2 * beam + 2, ends=step >= limit)
        choices = _choices(scores, beam, slack)[: 1 + MAX_WAYS - count]
        count += len(choices) - 1
        for ended, alive, gap in choices:
            turn = NearTie(step, gap) if gap > way.turn.gap else way.turn
            after = _Way(alive, tuple(sorted((*way.finished, *ended), reverse=True)), turn)
            if alive:
                heapq.heappush(ways, (turn.gap, next(number), after))
            else:
                _end(after, step, slack, found)
    return found


def _slack(rounding: float, step: int, total: float) -> float:
    """Return how far two candidates' scores may be apart and still be ordered otherwise."""
    return 2 * (rounding + step * FLOAT32 * abs(total))


def _end(way: _Way, step: int, slack: float, found: dict[tuple[int, ...], NearTie]) -> None:
    """Note the translations that may be taken for the best of those that ended."""
    for total, ids in way.finished:
        gap = way.finished[0][0] - total
        turn = NearTie(step, gap) if gap > way.turn.gap else way.turn
        if gap <= slack and (ids not in found or turn.gap < found[ids].gap):
            found[ids] = turn


@torch.inference_mode()
def _continuations(model: Transformer, source: Sequence[int], way: _Way, count: int, *, ends: bool) -> list[Hypothesis]:
    """Return the best continuations of the unfinished hypotheses, best first; at the limit, all of them with EOS."""
    rows, width = len(way.alive), len(way.alive[0][1]) + 1
    src = np.tile(np.asarray(source), rows)
    tgt = np.array([[*ids, EOS] for _, ids in way.alive]).ravel()
    device = model.embedding.weight.device
    batch = pack(src, np.full(rows, len(source)), tgt, np.full(rows, width), device)
    scores_RV = torch.log_softmax(model.logits(model(batch).view(rows, width, -1)[:, -1]), -1)
    scores_RV += torch.tensor([[total] for total, _ in way.alive], dtype=scores_RV.dtype, device=device)
    if ends:
        totals = scores_RV[:, EOS].tolist()
        return sorted(((s, (*ids, EOS)) for s, (_, ids) in zip(totals, way.alive, strict=True)), reverse=True)
    best, places = (x.tolist() for x in scores_RV.flatten().topk(min(count, scores_RV.numel())))
    size = scores_RV.shape[1]
    return [(s, (*way.alive[p // size][1], p % size)) for s, p in zip(best, places, strict=True) if s > -torch.inf]


def _choices(
    scores: list[Hypothesis], beam: int, slack: float
) -> list[tuple[tuple[Hypothesis, ...], tuple[Hypothesis, ...], float]]:
    """Return (those that end, those that live on, the gap) as search.py has it, then with each near-tie turned."""
    choices: dict[object, tuple[tuple[Hypothesis, ...], tuple[Hypothesis, ...], float]] = {}
    gaps = ((scores[i][0] - scores[j][0], i, j) for j in range(len(scores)) for i in range(j))
    for gap, i, j in [(0.0, 0, 0), *sorted(found for found in gaps if found[0] <= slack)]:
        order = scores.copy()
        order[i], order[j] = order[j], order[i]
        ends = tuple((total, ids[:-1]) for total, ids in order[:beam] if ids[-1] == EOS)
        alive = tuple(hypothesis for hypothesis in order if hypothesis[1][-1] != EOS)[:beam]
        if beam == 1 and ends:
            alive = ()
        taken = frozenset(ids for _, ids in ends), frozenset(ids for _, ids in alive)
        choices.setdefault(taken, (ends, tuple(sorted(alive, reverse=True)), gap))
    return list(choices.values())
