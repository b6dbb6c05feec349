"""Texts that are being translated, and their translations."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from nmt_cli.corpus.terms import Term
from nmt_cli.system.errors import UsageError
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.queue import SegmentQueue
from nmt_cli.translation.segments import Hypothesis, Segment


@dataclass(frozen=True)
class Copy:
    """A text without letters. Its translation is the text itself."""

    text: str
    skipped: int  # number of words before the text in the source: its target-language and tag tokens


@dataclass(frozen=True)
class Translation:
    hypotheses: list[Hypothesis]  # exactly `n_best`, best first, or with sampling in the order drawn; some may be equal
    drafts: list[list[Segment]]  # one list of the text's segments or, with sampling, one list for each sample
    terms: list[Term] = field(default_factory=list)  # glossary entries whose source phrase is in the text
    copy: Copy | None = None  # set for a text without letters, which has no segments
    hidden: int = 0  # number of target-language tokens that nmt added at the beginning of each source segment, 0 or 1
    head: int = 0  # number of tokens of the model's target prefix, with which each segment's translation begins
    corrections: dict[str, str] = field(default_factory=dict)  # words with typos in the source, and their corrections

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def segments(self) -> list[Segment]:
        return self.drafts[0]

    def at(self, rank: int) -> Hypothesis:
        """Return the hypothesis with this rank, or the last hypothesis if there are fewer."""
        return self.hypotheses[min(rank, len(self.hypotheses) - 1)]

    @property
    def case(self) -> str | None:
        """The style of the letter case (see Case), None if it was not converted, or "mixed" if the segments differ."""
        styles = {segment.case.style if segment.case else None for segment in self.segments}
        return "mixed" if len(styles) > 1 else next(iter(styles), None)

    @property
    def untranslated(self) -> bool:
        """Whether a part of the text could not be translated, and its source was used instead."""
        return any(segment.untranslated for segment in self.segments)

    def form_of(self, term: Term, text: str) -> str | None:
        """Return the form of `term` that occurs in `text`, which is the text of a hypothesis, or None if none occurs.

        If the letter case of the translation was converted, ignore the case of the form.
        """
        return (replace(term, any_case=True) if self.case else term).form_in(text)

    @property
    def missing_terms(self) -> list[Term]:
        """The terms that the best translation does not contain."""
        return [term for term in self.terms if self.form_of(term, self.text) is None]

    def found(self, rank: int) -> list[tuple[Segment, Hypothesis]]:
        """Return each segment with its hypothesis of this rank, or with its last hypothesis if it has fewer."""
        draft = self.drafts[rank] if len(self.drafts) > 1 else self.drafts[0]
        index = 0 if len(self.drafts) > 1 else rank
        return [(segment, segment.hypotheses[min(index, len(segment.hypotheses) - 1)]) for segment in draft]

    def parts(self, rank: int) -> list[tuple[list[int], Hypothesis]]:
        """Return the source ids and the hypothesis of each segment, without the `hidden` and `head` tokens."""
        return [(segment.ids[self.hidden :], self._shown(hypothesis)) for segment, hypothesis in self.found(rank)]

    def _shown(self, hypothesis: Hypothesis) -> Hypothesis:
        """Return a hypothesis without its `head` tokens. Its source positions do not count the `hidden` tokens."""
        positions = [max(position - self.hidden, 0) for position in hypothesis.source_positions[self.head :]]
        return replace(hypothesis, ids=hypothesis.ids[self.head :], source_positions=positions)


@dataclass(eq=False)
class Pending:
    """A text that is being translated. `result` waits for the translation, and `cancel` stops it."""

    queue: SegmentQueue
    options: SearchOptions  # resolved
    translator: object = None  # a Translator closes the queue when it is garbage-collected; this reference prevents it
    done: Callable[["Pending"], None] = lambda _: None  # called once, in any thread, when all segments are done
    line: str = ""  # the text
    drafts: list[list[Segment]] = field(default_factory=list)  # see Translation
    terms: list[Term] = field(default_factory=list)  # see Translation
    copy: Copy | None = None
    open: int = 0  # number of segments that are waiting or being searched
    finished: bool = False  # whether the text was translated, has failed or was cancelled, and no segment is open
    cancelled: bool = False
    error: BaseException | None = None
    hypotheses: list[Hypothesis] = field(default_factory=list)
    hidden: int = 0  # see Translation
    head: int = 0  # see Translation
    corrections: dict[str, str] = field(default_factory=dict)  # see Translation

    @property
    def wanted(self) -> bool:
        return not (self.cancelled or self.error)

    def cancel(self) -> None:
        self.cancelled = True
        self._cancel_segments()

    def fail(self, error: BaseException) -> None:
        """Set the error, unless there is an earlier one, and cancel the other segments."""
        self.error = self.error or error
        self._cancel_segments()

    def _cancel_segments(self) -> None:
        for segment in itertools.chain.from_iterable(self.drafts):
            segment.cancelled = True

    def result(self, timeout: float | None = None) -> Translation:
        """Wait for the translation and return it, or raise its error.

        Raises UsageError if the translation was cancelled or the queue was closed, and TimeoutError after `timeout`
        seconds.
        """
        if not self.queue.wait_for(lambda: self.cancelled or self.finished, timeout):
            raise TimeoutError(f"the translation is not finished after {timeout:g} seconds")
        if self.cancelled:
            raise UsageError("this translation was cancelled")
        return self.translation()

    def translation(self) -> Translation:
        """Return the translation of a finished text, or raise its error."""
        if self.error:
            raise self.error
        return Translation(
            self.hypotheses, self.drafts, self.terms, self.copy, self.hidden, self.head, self.corrections
        )
