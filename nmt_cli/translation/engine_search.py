"""Search on a CPU by the engine: the same segments and results as search.py's, without torch."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from nmt_cli.engine.model import Model
from nmt_cli.engine.search import Found, Search, Sentence
from nmt_cli.system.errors import NOT_FINITE, DivergedError
from nmt_cli.translation.retry import retried
from nmt_cli.translation.segments import Feed, Hypothesis, Results, Segment

ROWS = 384  # hypotheses computed at once
ENCODE_TOKENS = 2048  # source tokens that enter before steps go on
MEMORY_TOKENS = 1 << 16  # source tokens in slots: bounds the memory of very long inputs
STEPS = 8  # between two looks for what is new


def search(models: Sequence[Model], segments: Feed) -> Results:
    """Yield the segments that are done, each searched by its own settings; an empty list where none is yet.

    `segments` are read when there is room; each is of an ensemble's one tokenizer.
    """
    return retried(lambda feed, rows: _search(models, feed, rows), segments, ROWS, 1)


def _search(models: Sequence[Model], segments: Feed, rows: int) -> Results:
    search = Search(models, rows)
    entered: dict[int, Segment] = {}  # by slot
    ahead, ended = list[Segment](), False  # `ahead`: one that has no room yet
    while not ended or entered or ahead:
        used = sum(segment.settings.beam for segment in entered.values())
        kept = sum(len(segment.ids) for segment in entered.values())
        batch, tokens = list[Segment](), 0
        # A few sentences alone are not worth reading the encoder's weights: wait until an eighth of the rows is free.
        while not ended and used <= rows * 7 // 8 and tokens < ENCODE_TOKENS:
            segment = ahead.pop() if ahead else next(segments, _END)
            if segment is None or segment is _END:
                ended = segment is _END
                break
            fits = used + segment.settings.beam <= rows and kept + len(segment.ids) <= MEMORY_TOKENS
            if not fits and used:
                ahead.append(segment)
                break
            batch.append(segment)
            used, kept, tokens = used + segment.settings.beam, kept + len(segment.ids), tokens + len(segment.ids)
        if batch:
            slots = search.enter([_sentence(segment, search.longest) for segment in batch])
            entered.update(zip(slots, batch, strict=True))
        try:
            finished = search.run(STEPS)
        except ArithmeticError:
            raise DivergedError(NOT_FINITE) from None
        for slot, found in finished:
            entered[slot].hypotheses = [_hypothesis(each) for each in found]
        done = [entered.pop(slot) for slot, _ in finished]
        for slot in [slot for slot, segment in entered.items() if segment.cancelled]:
            search.leave(slot)
            done.append(entered.pop(slot))
        yield done


_END = Segment([])


def _sentence(segment: Segment, longest: int) -> Sentence:
    settings, limit, patient = segment.settings, segment.limit(longest), segment.patient
    how = settings.beam, settings.best, settings.alpha, settings.align
    plain = Sentence(segment.ids, limit, segment.prefix, *how, patient=patient)
    if segment.constraints:
        return replace(plain, constraints=segment.constraints)
    if not (sampling := settings.sampling):
        return plain
    uniform = segment.draws().random(limit)
    return replace(plain, uniform=uniform, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)


def _hypothesis(found: Found) -> Hypothesis:
    steps = [found.sums[0], *(b - a for a, b in itertools.pairwise(found.sums))]
    return Hypothesis(found.ids, found.sums[-1], found.score, steps, looked=found.looked)
