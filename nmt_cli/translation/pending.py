"""Texts that are being translated, the options they came with, and how the results of their segments are joined."""

import itertools
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nmt_cli.corpus.terms import Term, Terms
from nmt_cli.corpus.tokenizer import Tokenizer, normalise
from nmt_cli.system.errors import UsageError
from nmt_cli.translation import segments
from nmt_cli.translation.constraints import constraints_of
from nmt_cli.translation.scheduler import Scheduler
from nmt_cli.translation.segments import Hypothesis, Sampling, SearchSettings, Segment

if TYPE_CHECKING:
    from nmt_cli.translation.translator import Translator

MAX_RETRIES = 3  # how often a source is halved


@dataclass(frozen=True)
class Options:
    """How a text is translated; None takes what the model's recipe says. `n_best` translations, drawn if `sampling`.
    They say the `terms` that the text has, if any hypothesis does."""

    beam: int | None = None
    alpha: float | None = None
    extra_length: int | None = None
    split: bool | None = None
    n_best: int = 1
    sampling: Sampling | None = None
    alignments: bool = False
    terms: Terms | None = None
    copy_wordless: bool | None = None


@dataclass(frozen=True)
class Copy:
    """The translation of a text without letters: the text itself."""

    text: str
    skipped: int  # words of the source before it: the token of a target language


@dataclass(frozen=True)
class Translation:
    hypotheses: list[Hypothesis]  # as many as were asked for, best first; samples as they were drawn
    drafts: list[list[Segment]]  # the segments of the text, once for each sample
    terms: list[Term] = field(default_factory=list)  # that the text has
    copy: Copy | None = None  # of a text without letters, which has no segments

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def segments(self) -> list[Segment]:
        return self.drafts[0]

    def at(self, rank: int) -> Hypothesis:
        """The translation of this rank, or the last."""
        return self.hypotheses[min(rank, len(self.hypotheses) - 1)]

    @property
    def unsaid(self) -> list[Term]:
        """The terms of the text that the best translation does not contain."""
        return [term for term in self.terms if term.said(self.text) is None]

    def parts(self, rank: int) -> list[tuple[list[int], Hypothesis]]:
        """Return, of each segment, the source ids and what of it is in the hypothesis of this rank."""
        draft, place = (self.drafts[rank], 0) if len(self.drafts) > 1 else (self.drafts[0], rank)
        return [(segment.ids, segment.hypotheses[min(place, len(segment.hypotheses) - 1)]) for segment in draft]


@dataclass(eq=False)
class Pending:
    """A text that is being translated. `result` waits for it, `cancel` gives it up."""

    translator: "Translator"
    settings: SearchSettings
    split: bool
    drafts: list[list[Segment]]  # its segments, once for each sample that is drawn
    done: Callable[["Pending"], None]  # called once, in a thread of the search, when no segment is open any more
    terms: Terms | None = None  # that its translation has to say, where it has them
    own_terms: list[Term] = field(default_factory=list)  # those that it has
    copy: Copy | None = None  # its translation, where nothing is searched
    open: int = 0  # segments that wait or are searched
    finished: bool = False  # its translation is there, or what went wrong
    cancelled: bool = False
    error: BaseException | None = None  # what went wrong instead
    hypotheses: list[Hypothesis] = field(default_factory=list)

    @property
    def wanted(self) -> bool:
        return not (self.cancelled or self.error)

    def cancel(self) -> None:
        self.cancelled = True
        self._cancel_segments()

    def fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._cancel_segments()

    def _cancel_segments(self) -> None:
        for segment in itertools.chain.from_iterable(self.drafts):
            segment.cancelled = True

    def result(self, timeout: float | None = None) -> Translation:
        """Return the translation, or raise what went wrong, UsageError if it was given up, or TimeoutError after
        `timeout` seconds."""
        if not self.translator.wait(lambda: self.cancelled or self.finished, timeout):
            raise TimeoutError("the translation takes longer")
        if self.cancelled:
            raise UsageError("this translation was given up")
        return self.translation()

    def translation(self) -> Translation:
        if self.error:
            raise self.error
        return Translation(self.hypotheses, self.drafts, self.own_terms, self.copy)


def join(tokenizer: Tokenizer, pending: Pending) -> None:
    """Make the translations of a text from its segments, all of which have results, or from its copy."""
    whole, count = pending.translation(), max(pending.settings.best, len(pending.drafts))
    if pending.copy:
        pending.hypotheses += [Hypothesis([], 0.0, 0.0, [], pending.copy.text)] * count
        return
    for rank in range(count):
        parts = [hypothesis for _, hypothesis in whole.parts(rank)]
        pending.hypotheses.append(segments.join(tokenizer, parts, pending.settings.alpha))


class Joiner:
    """Takes the results of segments, which are searched again where they failed, in halves, or where they do not say
    their terms, with constraints; and finishes the texts that have them all. An error ends the text that it belongs to,
    and no other."""

    scheduler: Scheduler

    def __init__(self, tokenizer: Tokenizer, counts: Counter[str]) -> None:
        self.tokenizer, self.counts = tokenizer, counts

    def __call__(self, segment: Segment) -> None:
        pending: Pending | None = segment.owner
        segment.owner = None  # threads remember a segment until they get another one, but must not keep the Translator
        if pending is None:
            return
        pending.open -= 1
        if segment.error:
            pending.fail(segment.error)
        elif pending.wanted:
            try:
                self._look_at(segment, pending)
            except Exception as error:
                pending.fail(error)
        if not pending.open:
            self.finish(pending)

    def finish(self, pending: Pending) -> None:
        """Join a text's segments, none of which is open, and tell whoever submitted it."""
        try:
            if pending.wanted:
                join(self.tokenizer, pending)
        except Exception as error:
            pending.fail(error)
        pending.finished = True
        try:
            pending.done(pending)
        except Exception:  # the caller's own, which must not end what others wait for
            logging.getLogger(__name__).exception("the function that was to be told of a translation failed")

    def _look_at(self, segment: Segment, pending: Pending) -> None:
        """Count what was found; search again what is empty, a loop, or without its terms."""
        self.counts["tokens"] += sum(len(h.ids) for h in segment.hypotheses)
        if segment.plain:
            if not segment.hypotheses or not self._says_terms(segment):
                self._replace(segment, [segment.plain], pending)
            return
        best = segment.hypotheses[0].ids
        failed = not best or (segments.looping(best) and not segments.looping(segment.ids))
        if not (failed and pending.split and segment.depth < MAX_RETRIES and self._halve(segment, pending)):
            self._constrain(segment, pending)

    def _replace(self, segment: Segment, others: list[Segment], pending: Pending) -> None:
        draft = pending.drafts[0]
        index = draft.index(segment)
        draft[index : index + 1] = others

    def _search(self, segment: Segment, others: list[Segment], pending: Pending) -> None:
        """Search others in the place of a segment."""
        self._replace(segment, others, pending)  # first, so that whoever cancels the text reaches them
        self.scheduler.submit((segment.key[1], each) for each in others)
        pending.open += len(others)

    def _says_terms(self, segment: Segment) -> bool:
        texts = self.tokenizer.target.decode([hypothesis.ids for hypothesis in segment.hypotheses])
        return all(term.said(text) is not None for term in segment.terms for text in texts)

    def _constrain(self, segment: Segment, pending: Pending) -> None:
        if not segment.terms or self._says_terms(segment):
            return
        if constraints := constraints_of(segment.terms, self.tokenizer.target):
            settings = segment.settings
            settings = replace(settings, beam=max(settings.beam, constraints.width), constrained=True)
            again = replace(segment, settings=settings, owner=pending, constraints=constraints, plain=segment)
            again.hypotheses = []
            self._search(segment, [again], pending)
            self.counts["constrained"] += 1

    def _halve(self, segment: Segment, pending: Pending) -> bool:
        """Search the halves of a segment in its place, if it has any."""
        halves = zip(segments.halves(self.tokenizer, segment.ids), (segment.prefix, []), strict=False)
        parts = [
            Segment(ids, segment.settings, prefix, segment.key, segment.depth + 1, owner=pending)
            for ids, prefix in halves
        ]
        for part in parts:
            part.started = segment.started
            part.terms = terms_of(part.ids, self.tokenizer, pending.terms)
        if parts:
            self._search(segment, parts, pending)
            self.counts["retried"] += 1
        return bool(parts)


def terms_of(source: list[int], tokenizer: Tokenizer, terms: Terms | None) -> list[Term]:
    """Return the terms that a segment has, given its ids."""
    return terms.find(normalise(tokenizer.decode([source[:-1]])[0])) if terms else []
