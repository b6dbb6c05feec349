"""Search options. The command line, the HTTP server, the Python API and the search all use SearchOptions."""

from dataclasses import dataclass, replace
from typing import Any

from nmt_cli.corpus.terms import Terms
from nmt_cli.system.errors import UsageError
from nmt_cli.transformer.config import checked_decoding

MAX_N_BEST = 1000


@dataclass(frozen=True)
class Sampling:
    """Options for sampling. Each token is drawn at random from the model's distribution."""

    temperature: float = 1.0  # divides the logits
    top_k: int = 0  # sample from this many of the most likely tokens; 0 for all
    top_p: float = 1.0  # sample from the fewest of the most likely tokens whose total probability reaches this
    seed: int = 1  # the same seed, text and line number give the same translation

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and self.top_k >= 0 and 0 <= self.top_p <= 1 and self.seed >= 0):
            raise UsageError(f"{self}: the temperature must be above 0, top_p from 0 to 1, top_k and seed 0 or more")


@dataclass(frozen=True)
class SearchOptions:
    """Options for translating a line. `resolved` replaces None with the model's default.

    Options with a default in the model are typed Any, so that code need not check for None. Their comments give the
    types that they have in resolved options.
    """

    beam: Any = None  # int: number of hypotheses kept per segment; 1 is greedy search
    alpha: Any = None  # float: exponent of the length penalty
    extra_length: Any = None  # int: a translation may be longer than its source by this many tokens
    split: Any = None  # bool: split long lines, and translate the halves of failed segments
    n_best: int = 1  # number of translations (samples, if `sampling` is set) per line
    sampling: Sampling | None = None
    alignments: bool = False  # find the source token that each target token translates
    terms: Terms | None = None  # glossary
    copy_wordless: Any = None  # bool: copy lines without letters
    case: Any = None  # "auto": convert upper case and title case to sentence case before translation; or "off"
    spelling: Any = None  # "auto": correct typos in the source if the model has counts of words; or "off"
    # The target language code, if the model has several target languages; "" for its default. Translator.resolved
    # replaces the code with the token to put before a source, such as ">>deu<< ". A line that begins with such a token
    # keeps its own.
    target: str = ""
    # Whether to use the model's shortlist. Translator.resolved replaces True with the Shortlist (None if the model has
    # none), and False with None.
    shortlist: Any = None
    penalty_offset: Any = None  # float: see `length_penalty`

    def resolved(self, decoding: Any) -> "SearchOptions":
        """Replace options that are None with the defaults in `decoding`, a section of a model's settings.

        For sampling, set the beam to 1. Otherwise, if the default beam is smaller than `n_best`, set it to `n_best`.
        Raises UsageError if values are out of range or contradict each other.
        """
        if self.beam is not None and self.n_best > self.beam and not self.sampling:
            raise UsageError(f"{self.n_best} hypotheses need a beam of {self.n_best} or more, not {self.beam}")
        if self.terms and self.sampling:
            raise UsageError("terms cannot be used with sampling. Remove one of the two")
        if not 1 <= self.n_best <= MAX_N_BEST:
            raise UsageError(f"n_best must be from 1 to {MAX_N_BEST:,}, not {self.n_best:,}")
        names = "beam", "alpha", "penalty_offset", "extra_length", "split", "copy_wordless", "case", "spelling"
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        values = vars(checked_decoding(vars(decoding) | given))
        chosen = {name: values[name] for name in names}
        chosen["beam"] = 1 if self.sampling else max(self.n_best, chosen["beam"])
        return replace(self, **chosen)

    def for_segments(self) -> "SearchOptions":
        """Return the options for the segments of a line: without the glossary, and with `n_best` = 1 for sampling."""
        if not (self.sampling or self.terms):
            return self
        return replace(self, n_best=1 if self.sampling else self.n_best, terms=None)


MODEL_DEFAULTS = SearchOptions()
