"""Near-ties: what rounding may turn in a search is found, and nothing else is taken for it."""

import random

import pytest
import torch
from reference import batch_of, random_model, tiny

from nmt_cli.corpus.tokenizer import EOS
from nmt_cli.interop import near_ties
from nmt_cli.interop.near_ties import NearTie, outcomes
from nmt_cli.transformer.cache import for_inference
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation.search import Hypothesis, SearchSettings, Source, search

DOUBLE, EXTRA = torch.float64, 4


def sources_of(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [[*torch.randint(3, 40, (2 + i % 5,), generator=generator).tolist(), EOS] for i in range(count)]


def model_of(seed: int) -> Transformer:
    model = random_model(tiny(), 40, seed).eval()
    with torch.no_grad():
        model.embedding.weight *= 0.3  # so that several pieces are likely
        model.embedding.weight[EOS] *= 3
    return model


def found(model: Transformer, sources: list[list[int]], beam: int) -> list[tuple[int, ...]]:
    how = SearchSettings(beam, 0.0, EXTRA)
    best: dict[int, list[Hypothesis]] = dict(
        search([for_inference(model, DOUBLE)], DOUBLE, iter([Source(ids) for ids in sources]), how)
    )
    return [tuple(best[i][0].ids) for i in range(len(sources))]


@pytest.mark.parametrize("beam", [1, 2, 4])
def test_without_rounding_there_is_one_outcome_and_it_is_the_searches(beam: int) -> None:
    for seed in range(2):
        model, sources = model_of(seed), sources_of(6)
        for source, ids in zip(sources, found(model, sources, beam), strict=True):
            ways = outcomes(model, source, beam, len(source) + EXTRA, 0.0)
            assert ways == {ids: NearTie(0, 0.0)}


def rounded_search(model: Transformer, source: list[int], beam: int, limit: int, rounding: float) -> tuple[int, ...]:
    """Return what a plain search finds where every sum is off by a number of its own, of at most `rounding`."""

    def off(ids: tuple[int, ...]) -> float:
        return rounding * random.Random(repr(ids)).uniform(-1, 1)

    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    for position in range(limit):
        batch = batch_of([(source, [*ids, EOS]) for _, ids in alive])
        with torch.no_grad():
            scores = torch.log_softmax(model.logits(model(batch)).view(len(alive), position + 1, -1)[:, -1], -1)
        every = [
            (total + p, (*ids, piece))
            for (total, ids), row in zip(alive, scores.tolist(), strict=True)
            for piece, p in enumerate(row)
            if piece and (position + 1 < limit or piece == EOS)
        ]
        every.sort(key=lambda c: -c[0] - off(c[1]))
        finished += [c for c in every[:beam] if c[1][-1] == EOS]
        alive = [c for c in every if c[1][-1] != EOS][:beam]
        if beam == 1 and finished:
            break
    return max(finished, key=lambda c: c[0] + off(c[1]))[1][:-1]


@pytest.mark.parametrize("beam", [1, 4])
def test_what_a_search_with_rounding_finds_is_among_the_outcomes(beam: int) -> None:
    rounding, turned = 0.01, 0
    for seed in range(2):
        model, sources = model_of(seed), sources_of(24)
        for source, exact in zip(sources, found(model, sources, beam), strict=True):
            limit = len(source) + EXTRA
            ids = rounded_search(model, source, beam, limit, rounding)
            if ids != exact:
                turned += 1
                ways = outcomes(model, source, beam, limit, rounding)
                assert ways[exact] == NearTie(0, 0.0)
                assert 0 < ways[ids].gap <= 2.001 * rounding
                assert 1 <= ways[ids].step <= limit
                assert ids not in outcomes(model, source, beam, limit, ways[ids].gap / 3), "that gap is needed"
    assert turned > 2, "nothing was tested"


def test_the_number_of_ways_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_ties, "MAX_WAYS", 20)
    model = model_of(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # every continuation is as good as every other
    ways = outcomes(model, [3, 4, EOS], 3, 7, 1.0)
    assert 1 < len(ways) <= 3 * 5 * 20
