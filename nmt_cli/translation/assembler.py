"""Join the translations of segments into translations of texts. Search segments again if their translation fails."""

import itertools
import logging
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nmt_cli.corpus.tokenizer import EOS, WIDE, Tokenizer, normalize, writable
from nmt_cli.system.errors import NOT_FINITE, DivergedError
from nmt_cli.translation.case import UPPER, WORDS
from nmt_cli.translation.constraints import constraints_of
from nmt_cli.translation.pending import Pending
from nmt_cli.translation.segmenter import halves, looping, terms_of
from nmt_cli.translation.segments import Hypothesis, Segment, length_penalty

# If the translation of a segment fails, the segment is halved. If the translation of a half fails, this half is halved
# again. MAX_HALVINGS = 3 gives at most eight parts.
MAX_HALVINGS = 3
# A short source in capitals is translated both in capitals and in sentence case. The translation from capitals wins
# only if its log-probability per token is higher by more than CLEARLY nats. Models are often sure of
# nonsense that they make from capitals. With a small model trained on Multi30k, capitals gave the higher value for 31
# of 146 short phrases, but only for one of them by more than 0.6.
CLEARLY = 0.5
# A translation is too long if it has at least EXCESS * (source tokens) + MARGIN tokens after its forced prefix, and at
# least EXCESS * (source characters) + 2 * MARGIN characters.
EXCESS, MARGIN = 4, 10
# `join` first puts a line feed between segments. This expression matches a line feed between Chinese or Japanese
# characters, with the quotation marks around it, as in 好"\n"你.
_WIDE_JOINT = re.compile(rf"(?<=[{WIDE}])([\"'\u201d\u2019]*)\n([\"'\u201c\u2018]*)(?=[{WIDE}])")


def join(tokenizer: Tokenizer, parts: Sequence[Hypothesis], options: Any) -> Hypothesis:
    """Join one hypothesis from each segment of a line. Without segments, the result is empty.

    A space separates the texts, except between Chinese or Japanese characters. `options` is passed to
    `length_penalty`.
    """
    texts = tokenizer.target.decode([part.ids for part in parts])
    texts = [part.text or text for part, text in zip(parts, texts, strict=True)]
    texts = texts if len(texts) == 1 else list(filter(None, map(str.strip, texts)))
    text = _WIDE_JOINT.sub(r"\1\2", "\n".join(texts)).replace("\n", " ")
    values = [value for part in parts for value in part.token_log_probabilities]
    total = math.fsum(part.log_probability for part in parts)
    score = total / length_penalty(len(values), options)
    tokens = [token for part in parts for token in tokenizer.target.tokens([*part.ids, EOS])]
    return Hypothesis([i for part in parts for i in part.ids], total, score, values, text, tokens)


class Assembler:
    """Receives segments from the queue when their search is done.

    A translation has failed if it is empty, loops or is far too long. Then the two halves of the segment are searched
    instead. If the segment is too short to halve, or results from MAX_HALVINGS halvings, its source text replaces the
    translation. But an empty translation, or one with a forced prefix, is kept. Halving and replacing require the
    option `split`, and are not done for samples. If a translation lacks a glossary term, the segment is searched again
    with constraints. An error affects only the text in which it occurs.
    """

    def __init__(self, tokenizer: Tokenizer, counts: Counter[str], head: Sequence[int] = ()) -> None:
        """Every translation begins with the ids `head`."""
        self.tokenizer = tokenizer
        self.head = [*head]
        self.counts = counts

    def __call__(self, segment: Segment) -> None:
        """Receive a segment that is done. The caller holds the queue's lock."""
        pending: Pending | None = segment.owner
        segment.owner = None  # a search thread keeps its last segment in memory, but must not keep the whole text
        if pending is None:
            return
        pending.open -= 1
        if segment.error:
            pending.fail(segment.error)
        elif pending.wanted:
            try:
                self._inspect(segment, pending)
            except Exception as error:
                pending.fail(error)
        if not pending.open:
            self.finish(pending)

    def finish(self, pending: Pending) -> None:
        """Join the segments of a finished text, and call `pending.done`."""
        try:
            if pending.wanted:
                self._join(pending)
        except Exception as error:
            pending.fail(error)
        pending.finished = True
        try:
            pending.done(pending)
        except Exception:  # an error in the caller's function must not stop other texts
            logging.getLogger(__name__).exception("the `done` callback of a text raised an error")

    def _join(self, pending: Pending) -> None:
        whole, options = pending.translation(), pending.options
        self.counts["corrected"] += bool(whole.corrections)
        if whole.copy:
            whole.hypotheses.extend([Hypothesis([], 0.0, 0.0, [], whole.copy.text)] * options.n_best)
            return
        for rank in range(options.n_best):
            parts = [self._written(segment, hypothesis) for segment, hypothesis in whole.found(rank)]
            joined = join(self.tokenizer, parts, options)
            if whole.segments and all(segment.untranslated for segment in whole.segments):
                joined = replace(joined, text=self._copied(pending.line))
            whole.hypotheses.append(joined)

    def _copied(self, line: str) -> str:
        """Return a line without the language and tag tokens at its beginning."""
        [ids] = self.tokenizer.encode([normalize(line)])
        [head] = self.tokenizer.decode([self.tokenizer.language(ids)])
        return writable(line).removeprefix(head).lstrip()

    def _written(self, segment: Segment, hypothesis: Hypothesis) -> Hypothesis:
        """Return a hypothesis with its text in the letter case `segment.case`, or unchanged if that is None."""
        if not segment.case:
            return hypothesis
        text = hypothesis.text or self.tokenizer.target.decode([hypothesis.ids])[0]
        case = replace(segment.case, language=segment.case.source) if segment.untranslated else segment.case
        if case.style == WORDS:
            source = self.tokenizer.tokens(segment.ids[:-1])
            target = self.tokenizer.target.tokens(hypothesis.ids[len(self.head) :])
            positions = hypothesis.source_positions[len(self.head) :]
            return replace(hypothesis, text=case.emphasized(text, source, target, positions))
        written = case.written(text)
        if forced := segment.prefix[len(self.head) :]:
            [prefix] = self.tokenizer.target.decode([forced])
            written = case.prefix + written[len(case.written(prefix)) :]
        return replace(hypothesis, text=written)

    def _inspect(self, segment: Segment, pending: Pending) -> None:
        """Count the translated tokens. Accept the segment, search it again, or leave it untranslated.

        Raises DivergedError if a search without constraints has found no hypothesis.
        """
        self.counts["tokens"] += sum(len(h.ids) for h in segment.hypotheses)
        if segment.unconstrained:
            if not segment.hypotheses or not self._has_terms(segment):
                self._replace(segment, [segment.unconstrained], pending.drafts[0])
                if self._gives_up(segment.unconstrained, pending):
                    self._leave_untranslated(segment.unconstrained, pending.drafts[0])
            return
        if not segment.hypotheses:  # all logits are so low that the search considers no token possible
            raise DivergedError(NOT_FINITE)
        if segment.given:
            other = replace(
                segment, ids=segment.given, case=None, given=[], rival=segment, owner=pending, hypotheses=[]
            )
            self._search(segment, [other], pending)
            return
        if segment.rival:
            segment = self._choose(segment, segment.rival, pending)
        failed = self._failed(segment)
        may_repeat = pending.options.split and not pending.options.sampling
        if failed and may_repeat and segment.depth < MAX_HALVINGS and self._halve(segment, pending):
            return
        if not self._constrain(segment, pending) and self._gives_up(segment, pending):
            self._leave_untranslated(segment, pending.drafts[0])

    def _gives_up(self, segment: Segment, pending: Pending) -> bool:
        """Return whether a translation has failed and the source should replace it.

        The source does not replace an empty translation, or one with a forced prefix.
        """
        may_repeat = pending.options.split and not pending.options.sampling
        return bool(may_repeat and self._failed(segment) and self._best(segment) and segment.prefix == self.head)

    def _failed(self, segment: Segment) -> bool:
        """Return whether the best translation is empty, is far too long, or loops although the source does not loop."""
        best = self._best(segment)
        if not best or (looping(best) and not looping(segment.ids)):
            return True
        if len(best) + len(self.head) - len(segment.prefix) < EXCESS * len(segment.ids) + MARGIN:
            return False
        [source], [text] = self.tokenizer.decode([segment.ids[:-1]]), self.tokenizer.target.decode([best])
        return len(text) >= EXCESS * len(source) + 2 * MARGIN

    def _best(self, segment: Segment) -> list[int]:
        """Return the ids of the best translation, without `head`."""
        return segment.hypotheses[0].ids[len(self.head) :]

    def _leave_untranslated(self, segment: Segment, draft: list[Segment]) -> None:
        """Make the source the only hypothesis, and align its tokens in order.

        Untranslated neighbors that are parts of the same sentence or word are merged into this segment.
        """
        segment.untranslated = True
        self.counts["untranslated"] += 1
        first = len(self.tokenizer.language(segment.ids))
        index = draft.index(segment)
        for left, right in reversed(list(itertools.pairwise(draft[max(index - 1, 0) : index + 2]))):
            if self._belong_together(left, right):
                segment.ids = [*left.ids[:-1], *right.ids[first:]]
                draft.remove(left if right is segment else right)
                self.counts["untranslated"] -= 1
        source = segment.ids[first:-1]
        [text] = self.tokenizer.decode([source])
        ids = source if self.tokenizer.target is self.tokenizer else self.tokenizer.target.encode([text])[0]
        positions = [first + index * len(source) // len(ids) for index in range(len(ids))]
        ids = [*self.head, *ids]
        positions = [*[0] * len(self.head), *positions]
        segment.hypotheses = [Hypothesis(ids, 0.0, 0.0, [0.0] * (len(ids) + 1), text, source_positions=positions)]

    def _belong_together(self, left: Segment, right: Segment) -> bool:
        """Return whether two neighbors are untranslated parts of the same sentence or of the same word."""
        if not (left.untranslated and right.untranslated):
            return False
        start = self.tokenizer.tokens(right.ids)[len(self.tokenizer.language(right.ids))]
        return left.random_key == right.random_key or not start.startswith("\u2581")

    def _choose(self, segment: Segment, rival: Segment, pending: Pending) -> Segment:
        """Choose between `segment`, in its given case, and `rival`, in sentence case. Keep and return the winner.

        `segment` wins if its translation has the higher log-probability per token. For a text in capitals, the
        difference must be more than CLEARLY. A translation that has failed loses. If both have failed, `rival` wins.
        """
        segment.rival, rival.given = None, []
        log_probabilities = [each.hypotheses[0].token_log_probabilities for each in (segment, rival)]
        given, sentence_case = (math.fsum(values) / len(values) for values in log_probabilities)
        lead = CLEARLY if rival.case and rival.case.style == UPPER else 0.0
        if not self._failed(segment) and (given > sentence_case + lead or self._failed(rival)):
            pending.partial.corrections.clear()  # typos were corrected only in the rival
            return segment
        self._replace(segment, [rival], pending.drafts[0])
        return rival

    def _replace(self, segment: Segment, others: list[Segment], draft: list[Segment]) -> None:
        index = draft.index(segment)
        draft[index : index + 1] = others

    def _search(self, segment: Segment, others: list[Segment], pending: Pending) -> None:
        """Replace a segment with other segments, and submit these to the queue."""
        self._replace(segment, others, pending.drafts[0])  # first, so that Pending.cancel can cancel them
        _, offset, _ = segment.random_key
        for other in others:
            # A segment waits for those with lower positions in its text. The replaced segment has waited for earlier
            # parts of a larger text, so `other` must not wait for them again.
            other.position = offset
        pending.queue.submit(others)
        pending.open += len(others)

    def _has_terms(self, segment: Segment) -> bool:
        texts = self.tokenizer.target.decode([hypothesis.ids for hypothesis in segment.hypotheses])
        return all(term.form_in(text) is not None for term in segment.terms for text in texts)

    def _constrain(self, segment: Segment, pending: Pending) -> bool:
        """Search a segment again with constraints if a term is missing. Return whether it is searched again."""
        if not segment.terms or self._has_terms(segment):
            return False
        if constraints := constraints_of(segment.terms, self.tokenizer.target):
            options = replace(segment.options, beam=max(segment.options.beam, constraints.width))
            again = replace(
                segment,
                options=options,
                owner=pending,
                constraints=constraints,
                unconstrained=segment,
                hypotheses=[],
            )
            self._search(segment, [again], pending)
            self.counts["constrained"] += 1
        return bool(constraints)

    def _halve(self, segment: Segment, pending: Pending) -> bool:
        """Replace a segment with its two halves, and search them. Return False if the segment is too short."""
        parts = [
            replace(
                segment,
                ids=ids,
                prefix=prefix,
                depth=segment.depth + 1,
                owner=pending,
                terms=terms_of(ids, self.tokenizer, pending.options.terms),
                hypotheses=[],
            )
            for ids, prefix in zip(halves(self.tokenizer, segment.ids), (segment.prefix, self.head), strict=False)
        ]
        if parts:
            self._search(segment, parts, pending)
            self.counts["retried"] += 1
        return bool(parts)
