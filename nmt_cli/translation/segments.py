"""Segments, the units of search, and their hypotheses."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nmt_cli.corpus.terms import Term
from nmt_cli.translation.constraints import Constraints
from nmt_cli.translation.options import SearchOptions


@dataclass(frozen=True)
class Hypothesis:
    """A translation of a segment, or of a whole line, which has text and subwords, too."""

    ids: list[int]  # without EOS
    log_probability: float  # of all tokens, EOS counted, in nats
    score: float  # log-probability over length penalty
    token_log_probabilities: list[float]  # EOS counted
    text: str = ""
    tokens: list[str] = field(default_factory=list)  # subwords; each segment ends with </s>
    source_positions: list[int] = field(default_factory=list)  # of a segment: the source token that each id translates


@dataclass(eq=False)
class Segment:
    """A sentence or another part of a line on its way through the queue and a backend."""

    ids: list[int]  # end with EOS
    options: SearchOptions  # resolved
    prefix: list[int] = field(default_factory=list)  # forced beginning of every hypothesis
    random_key: tuple[int, ...] = ()  # with the seed it fixes the samples: numbers of the line, segment and sample
    position: int = 0  # segments of the same text before it
    depth: int = 0  # how often it was halved
    max_tokens: int | None = None  # longest translation, EOS counted; None: by `options.extra_length`
    owner: Any = None  # the Pending that waits for it
    cancelled: bool = False
    background: bool = False  # lets the segments beside it run first
    started: float = 0.0  # monotonic time at which a worker first took it, or took the segment that it replaces
    terms: Sequence[Term] = ()  # glossary entries whose phrase is in the source
    constraints: Constraints | None = None  # what every hypothesis must contain
    unconstrained: "Segment | None" = None  # the segment that this one repeats with constraints
    hypotheses: list[Hypothesis] = field(default_factory=list)  # best first; none where the constraints allow none
    error: BaseException | None = None

    def source(self, eos: bool) -> list[int]:
        """Return the ids that the encoder reads: without the final EOS if the model reads none."""
        return self.ids if eos else self.ids[:-1] or self.ids

    def limit(self, longest: int) -> int:
        """Return the longest translation in tokens, EOS counted, of a model that takes `longest` at most."""
        return min(self.max_tokens or len(self.ids) + len(self.prefix) + self.options.extra_length, longest)

    def random(self) -> Any:
        """Return the generator of a sample's random numbers, one from [0, 1) for each position; None for a search."""
        import numpy as np

        sampling = self.options.sampling
        return np.random.default_rng([sampling.seed, *self.random_key]) if sampling else None


def length_penalty(length: Any, alpha: float) -> Any:
    """Return ((5 + length) / 6) ^ alpha, for a number or a tensor; EOS counts in the length."""
    return ((5 + length) / 6) ** alpha
