"""Search with constraints is compared with brute force, and the engine with torch."""

import itertools
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
from searching import (
    DOUBLE,
    SHAPES,
    assert_same,
    by_engine,
    by_torch,
    engine_model,
    model_of,
    options,
    search_all,
    sources_of,
)

from nmt_cli.corpus.terms import Term
from nmt_cli.corpus.tokenizer import EOS, UNK
from nmt_cli.transformer.model import Transformer
from nmt_cli.translation import engine_backend
from nmt_cli.translation.constraints import START, Candidate, Constraints, constraints_of
from nmt_cli.translation.engine_backend import EngineSearch
from nmt_cli.translation.search import Slots, score_targets
from nmt_cli.translation.segments import Hypothesis, Segment

V = 77
Forms = list[list[list[int]]]


def has_terms(ids: list[int], terms: Forms, begins: bytes) -> bool:
    """Return whether the tokens have a form of each term, followed by a token that begins a word or by EOS."""
    closed = [*ids, EOS]

    def has(form: list[int]) -> bool:
        positions = range(len(ids) - len(form) + 1)
        return any(closed[i : i + len(form)] == form and begins[closed[i + len(form)]] for i in positions)

    return all(any(map(has, forms)) for forms in terms)


def random_terms(draw: random.Random, vocabulary: int = V) -> tuple[Forms, bytes]:
    """Return terms whose forms share tokens, and for each token, whether it begins a word."""
    begins = bytes([1, 0, 1, *(draw.random() < 0.6 for _ in range(vocabulary - 3))])
    few = [draw.randint(3, vocabulary - 1) for _ in range(3)]
    starts = [token for token in range(3, vocabulary) if begins[token]] or few

    def form() -> list[int]:
        rest = [draw.choice([*few, draw.randint(3, vocabulary - 1)]) for _ in range(draw.randint(0, 3))]
        return [draw.choice(starts), *rest]

    return [[form() for _ in range(draw.randint(1, 3))] for _ in range(draw.randint(1, 3))], begins


def searched(models: list[Transformer], segments: list[Segment], *, engine: bool) -> list[list[Hypothesis]]:
    search_all(by_engine([*map(engine_model, models)]) if engine else by_torch(models), segments)
    return [segment.hypotheses for segment in segments]


def test_states_know_the_terms_that_are_met() -> None:
    """For random sequences and forms, these are the terms that a plain search for each form finds."""
    draw, hits, some = random.Random(1), 0, 0
    for _ in range(1000):
        terms, begins = random_terms(draw, 6)
        constraints, state = Constraints(terms, begins), START
        ids = [draw.randint(3, 5) for _ in range(draw.randint(0, 9))]
        counts = [0]
        for token in ids:
            state = constraints.after(state, token)
            counts.append(constraints.progress(state))
        ends = [ids[i:] for i in range(len(ids))]
        begun = [
            state.met >> t & 1 or any(form[: len(end)] == end for end in ends for form in forms)
            for t, forms in enumerate(terms)
        ]
        assert constraints.begun(state) == all(begun)
        some += any(begun) and not all(begun)
        closed = constraints.after(state, EOS)
        met = closed.met == (1 << len(terms)) - 1
        assert met == has_terms(ids, terms, begins)
        assert max(counts) <= sum(constraints.sizes)
        assert not met or (counts[-1] == sum(constraints.sizes) and not constraints.wanted(closed))
        hits += met
    assert hits > 100
    assert some > 100


def test_banks_survive_in_turn() -> None:
    """The best of each bank come before the second best of any; EOS is chosen only once all terms are met."""
    constraints = Constraints([[[5, 6]]], bytes([1] * 9))
    begun, met = constraints.after(START, 5), constraints.after(constraints.after(START, 5), 6)
    states = [START, begun, met]
    candidates = [Candidate(-i / 10, 0, i) for i in (3, 4, 7, 8)]
    candidates += [Candidate(-5.0, 0, 5), Candidate(-6.0, 1, 6), Candidate(-0.1, 1, EOS), Candidate(-7.0, 2, EOS)]
    chosen = constraints.choose(candidates, states, 3)
    assert [(c.row, c.id) for c in chosen] == [(0, 3), (0, 5), (1, 6)], "EOS is second in its bank"
    chosen = constraints.choose(candidates, states, 4)
    assert [(c.row, c.id) for c in chosen] == [(2, EOS), (0, 3), (0, 4), (0, 5), (1, 6)]
    chosen = constraints.choose(candidates[:4] + candidates[6:], states, 4)
    assert [(c.row, c.id) for c in chosen] == [(2, EOS), (0, 3), (0, 4), (0, 7), (0, 8)]


def test_a_full_width_search_finds_all_sequences_with_the_terms() -> None:
    """They are ranked by score. Where no sequence has the terms, there is no hypothesis."""
    length = 4
    sequences = [list(s) for n in range(length) for s in itertools.product([1, 3, 4], repeat=n)]
    for seed in (*range(19), 59):
        draw = random.Random(seed)
        begins = bytes([1, 0, 1, draw.random() < 0.7, draw.random() < 0.7])
        terms = [
            [[draw.randint(3, 4) for _ in range(draw.randint(1, 2))] for _ in range(2)] for _ in range(1 + seed % 2)
        ]
        model, source = model_of(seed, vocabulary=5, num_layers=1), sources_of(1, seed, vocabulary=5, longest=3)[0]
        settings = options(beam=128, extra_length=length - len(source), n_best=100)
        forced = score_targets([model], DOUBLE, [(source, [*s, EOS]) for s in sequences])
        scores = [math.fsum(values) / ((5 + len(values)) / 6) ** settings.alpha for values in forced]
        ranked = sorted(zip(scores, sequences, strict=True), reverse=True)
        wanted = [(score, s) for score, s in ranked if has_terms(s, terms, begins)]
        for engine, tolerance in ((False, 1e-10), (True, 1e-4)):
            segment = Segment(source, settings, constraints=Constraints(terms, begins))
            (hypotheses,) = searched([model], [segment], engine=engine)
            assert [h.ids for h in hypotheses] == [s for _, s in wanted]
            assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in wanted], abs=tolerance)
    assert not wanted, "no sequence has the terms of the last seed"


@pytest.mark.parametrize("shape", SHAPES[:4])
@pytest.mark.parametrize(("members", "best", "extra"), [(1, 1, 14), (2, 3, 14), (2, 1, 1)])
def test_the_engine_and_torch_find_the_same_hypotheses(
    shape: dict[str, object], members: int, best: int, extra: int
) -> None:
    """Every hypothesis has the terms, also with prefixes, ensembles and alignments. Some terms have no room."""
    draw, none = random.Random(members), 0
    models = [model_of(seed, eos=1.5, vocabulary=V, **shape) for seed in range(members)]
    settings = options(beam=16, extra_length=extra, n_best=best, alignments=True)
    count = 6 if extra > 1 else 12
    cases = [(source, *random_terms(draw)) for source in sources_of(count, 4, vocabulary=39, longest=20)]
    found = []
    for engine in (True, False):
        segments = [
            Segment(source, settings, [5, 6, 7][: i % 4], (i,), constraints=Constraints(terms, begins))
            for i, (source, terms, begins) in enumerate(cases)
        ]
        found.append(searched(models, segments, engine=engine))
    assert_same(*found)
    ours, theirs = ([[(h.ids, h.source_positions) for h in each] for each in results] for results in found)
    assert ours == theirs
    for hypotheses, (_, terms, begins) in zip(found[0], cases, strict=True):
        assert all(has_terms(h.ids, terms, begins) for h in hypotheses)
        none += not hypotheses
    assert none == 0 if extra > 1 else none > 0


def test_a_slot_forgets_the_terms_of_the_sentence_before() -> None:
    """Sentences that use one slot one after the other have the same hypotheses as in slots of their own."""
    draw, model, settings = random.Random(5), model_of(2, eos=1.5, vocabulary=V), options(8, extra_length=6)
    cases = [(source, Constraints(*random_terms(draw))) for source in sources_of(4, 5, vocabulary=V)]
    found = []
    for rows in (8, 384):
        segments = [Segment(source, settings, constraints=constraints) for source, constraints in cases]
        search_all(by_torch([model], rows=rows), segments)
        found.append([[h.ids for h in segment.hypotheses] for segment in segments])
    assert found[0] == found[1]
    assert all(found[0])


def test_hypotheses_without_the_terms_do_not_prolong_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """If they did, two searches would take 16 and 18 steps instead of 15 and 13."""
    model, step, run, taken = model_of(2, eos=6, vocabulary=V), Slots.step, EngineSearch.run, list[int]()
    monkeypatch.setattr(Slots, "step", lambda slots: taken.append(1) or step(slots))
    monkeypatch.setattr(EngineSearch, "run", lambda search, steps: taken.extend(search.segments) or run(search, steps))
    monkeypatch.setattr(engine_backend, "STEPS", 1)
    draw, steps = random.Random(4), list[list[int]]()
    cases = [(source, *random_terms(draw)) for source in sources_of(6, 6, vocabulary=V, longest=5)]
    for source, terms, begins in cases:
        steps.append([])
        for engine in (True, False):
            taken.clear()
            segment = Segment(source, options(8, 0.0, 20), constraints=Constraints(terms, begins))
            searched([model], [segment], engine=engine)
            steps[-1].append(len(taken))
    assert steps == [[count] * 2 for count in (15, 22, 22, 24, 13, 22)]


def test_constrained_and_other_sentences_share_a_search() -> None:
    """Each has the same bits as alone."""
    draw, model = random.Random(3), model_of(3, eos=1.5, vocabulary=V, max_length=64)
    plain, settings = options(), options(beam=12)
    segments = []
    for i, source in enumerate(sources_of(40, 3, vocabulary=V, longest=30)):
        constraints = Constraints(*random_terms(draw)) if i % 2 else None
        segments.append(Segment(source, settings if i % 2 else plain, constraints=constraints))
    together = searched([model], segments, engine=True)
    for segment, expected in zip(segments, together, strict=True):
        assert searched([model], [segment], engine=True) == [expected]


@pytest.mark.parametrize(
    ("sizes", "width"), [([1], 8), ([7], 8), ([3, 5], 12), ([11], 12), ([12], 16), ([63], 64), ([70], 64)]
)
def test_a_beam_has_room_for_every_bank(sizes: list[int], width: int) -> None:
    """There is a bank for each number of tokens from 0 on. The beam is the next multiple of four, from 8 to 64."""
    assert Constraints([[[5] * size] for size in sizes], bytes(9)).width == width


def spelled(*forms: list[int], any_case: bool = False) -> Term:
    return Term("x", tuple(" ".join(map(str, ids)) for ids in forms), any_case)


def test_terms_are_spelled_within_bounds() -> None:
    """At most 64 terms are used, with 1,024 tokens in all their forms together. Forms with unknown tokens and terms
    without forms are left out.
    """
    tokenizer: Any = SimpleNamespace(
        encode=lambda texts: [[int(each) for each in text.split()] for text in texts],
        tokens=lambda ids: ["\u2581" if i == 4 else str(i) for i in ids],
        begins=bytes(2000),
    )

    def sizes(*terms: Term) -> list[int] | None:
        found = constraints_of(terms, tokenizer)
        return found and found.sizes

    assert sizes(*[spelled([5])] * 64) == [1] * 64
    assert sizes(*[spelled([5, 6])] * 63, spelled([5]), spelled([5, 6])) == [2] * 63 + [1]
    assert sizes(spelled([5, UNK, 6], [7, 8])) == [2]
    assert sizes(spelled([5, UNK]), spelled([]), spelled([6, 7])) == [2]
    assert sizes(spelled([5, UNK])) is None
    assert sizes() is None
    half, more = [*range(5, 517)], [*range(600, 1112)]
    assert sizes(spelled(half), spelled(more)) == [512, 512]
    assert sizes(spelled(half), spelled([*more, 7]), spelled([5])) == [512, 1]
    assert sizes(spelled(half, more, [5]), spelled([5])) == [512]


def test_a_form_with_a_wide_character_first_has_no_space_before_it() -> None:
    tokenizer: Any = SimpleNamespace(
        encode=lambda texts: [[4, 9] for _ in texts],
        tokens=lambda ids: ["\u2581" if i == 4 else str(i) for i in ids],
        begins=bytes(99),
    )
    for form, tokens in (("\u732b", [0, 9]), ("\u30cd\u30b3", [0, 9]), ("5", [0, 4, 9]), ("(\u732b", [0, 4, 9])):
        found = constraints_of([Term("x", (form,))], tokenizer)
        assert found
        assert found.tokens == tokens


def test_the_longest_way_through_shared_tokens_counts() -> None:
    """The order of a term's forms does not matter."""
    for forms in ([[5, 6, 7], [5, 8]], [[5, 8], [5, 6, 7]]):
        constraints = Constraints([forms], bytes([1] * 9))
        state, found = START, []
        for token in (5, 6, 7):
            state = constraints.after(state, token)
            found.append(constraints.progress(state))
        assert found == [2, 2, 3]  # after 5, one more token, 8, would meet the term
