"""Segments and their hypotheses. A segment is the text that one search translates, usually a sentence."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nmt_cli.corpus.terms import Term
from nmt_cli.translation.case import Case
from nmt_cli.translation.constraints import Constraints
from nmt_cli.translation.options import SearchOptions


@dataclass(frozen=True)
class Hypothesis:
    """A translation of a segment or of a whole line. For a line, `text` and `tokens` are always set."""

    ids: list[int]  # token ids, without EOS
    log_probability: float  # log-probability of all tokens, including EOS, in nats
    score: float  # log-probability divided by the length penalty
    token_log_probabilities: list[float]  # of each token, including EOS, in nats
    text: str = ""  # for a segment, set only if it differs from the decoded ids
    tokens: list[str] = field(default_factory=list)  # subwords; each segment ends with </s>
    source_positions: list[int] = field(default_factory=list)  # for a segment, the source index of each id


@dataclass(eq=False)
class Segment:
    """A sentence or another part of a line, which the queue passes to a backend."""

    ids: list[int]  # source ids, including EOS
    options: SearchOptions  # from SearchOptions.resolved: the model's defaults are filled in
    prefix: list[int] = field(default_factory=list)  # forced beginning of every hypothesis
    random_key: tuple[int, ...] = ()  # line number, segment index and sample index; part of the random seed
    position: int = 0  # number of segments before this one in the text
    depth: int = 0  # number of times that the original segment was halved to make this one
    max_tokens: int | None = None  # maximum tokens of the translation, including EOS; see `limit`
    owner: Any = None  # the text (a Pending) that this segment belongs to
    cancelled: bool = False
    background: bool = False  # whether other segments in the same thread's search have priority
    started: float = 0.0  # monotonic time at which a worker first took this segment or the one that it replaces
    terms: Sequence[Term] = ()  # glossary entries whose phrase is in the source
    constraints: Constraints | None = None  # terms that every hypothesis must contain
    # With constraints: the same segment, already translated without constraints, in case this search fails
    unconstrained: "Segment | None" = None
    case: Case | None = None  # the letter case of the translation, or None to keep the case that the model gives it
    # Ids of the source in its given letter case, including EOS. They are searched after `ids`, and the better
    # translation wins. If empty, only `ids` are searched.
    given: list[int] = field(default_factory=list)
    rival: "Segment | None" = None  # the same segment, already translated in sentence case; the better translation wins
    untranslated: bool = False  # whether no usable translation was found, so that the only hypothesis is the source
    hypotheses: list[Hypothesis] = field(default_factory=list)  # best first; empty if the search finds none
    error: BaseException | None = None

    def source(self, eos: bool) -> list[int]:
        """Return the ids that the encoder reads. If `eos` is false, omit the final EOS, unless it is the only id."""
        return self.ids if eos else self.ids[:-1] or self.ids

    def limit(self, longest: int) -> int:
        """Return the maximum number of tokens of the translation, including EOS. `longest` is the model's limit."""
        return min(self.max_tokens or len(self.ids) + len(self.prefix) + self.options.extra_length, longest)

    def random(self) -> Any:
        """Return a random number generator, or None without sampling. Each token takes one number from it."""
        import numpy as np

        sampling = self.options.sampling
        return np.random.default_rng([sampling.seed, *self.random_key]) if sampling else None


def length_penalty(length: Any, options: Any) -> Any:
    """Return ((offset + length) / (offset + 1)) ^ alpha, for a number or an array. The length includes EOS.

    An offset of 5 gives the penalty of Wu et al. (2016), and 0 gives that of CTranslate2, Marian and transformers.
    `options` has the attributes `alpha` and `penalty_offset`.
    """
    return ((options.penalty_offset + length) / (options.penalty_offset + 1)) ** options.alpha
