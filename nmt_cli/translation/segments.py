"""Segments: what is searched by itself, and how. Long lines are cut into several, failed ones in two, results are
joined."""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nmt_cli.corpus.terms import Term, Terms
from nmt_cli.corpus.tokenizer import EOS, LANGUAGE, WIDE, Tokenizer, has_letter
from nmt_cli.system.errors import UsageError
from nmt_cli.translation.constraints import Constraints

_CLOSERS = "\"'\u201d\u2019\u00bb)\\]\u300d\u300f\uff09"
_BEFORE_SPACE = rf"[{_CLOSERS}\u201c\u00ab]*(?=\s)"  # in German these two close; without a space they may open
_WIDE_MARKS = "\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f"
_MARKS = ".,;:!?\u2013\u2014" + _WIDE_MARKS
# A full stop after a single character is taken for that of an initial or an abbreviation (z. B.).
_SENTENCE_END = re.compile(rf"(?:(?<!\b\w)\.|[!?\u2026]){_BEFORE_SPACE}|[\u3002\uff01\uff1f]+[{_CLOSERS}]*")
_CLAUSE_END = re.compile(rf"[,;:\u2013\u2014]{_BEFORE_SPACE}|[{_WIDE_MARKS}][{_CLOSERS}]*")
_WORD_END = re.compile(r"(?=\s)")
_WIDE_JOINT = re.compile(rf"(?<=[{WIDE}])([\"'\u201d\u2019]*)\n([\"'\u201c\u2018]*)(?=[{WIDE}])")
_LOOP = re.compile(r"(.)\1{11}|(..)\2{5}|(.{3,8})\3{3}", re.DOTALL)  # a character stands for a token
SMALLEST = 4  # tokens; a shorter source is not translated in halves


@dataclass(frozen=True)
class Sampling:
    """Draw each token from the model's probabilities instead of searching."""

    temperature: float = 1.0  # logits are divided by it
    top_k: int = 0  # draw from this many best tokens; 0 for all
    top_p: float = 1.0  # draw from the fewest best tokens that have this probability together
    seed: int = 1  # the same seed, text and line number give the same translation

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and self.top_k >= 0 and 0 <= self.top_p <= 1 and self.seed >= 0):
            raise UsageError(f"{self}: the temperature must be above 0, top_p from 0 to 1, top_k and seed 0 or more")


@dataclass(frozen=True)
class SearchSettings:
    beam: int = 4  # 1 with `sampling`: a line that is to have several samples gives several segments
    alpha: float = 0.6
    extra_length: int = 50
    best: int = 1  # hypotheses returned per segment, at most `beam`
    sampling: Sampling | None = None
    align: bool = False  # say which source token each target token translates
    constrained: bool = False  # segments have constraints


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a segment, or, with text and subwords, of a line: joined from its segments'."""

    ids: list[int]  # without EOS
    log_probability: float  # of all tokens, EOS counted, in nats
    score: float  # log-probability over length penalty
    token_log_probabilities: list[float]  # EOS counted
    text: str = ""
    tokens: list[str] = field(default_factory=list)  # subwords; each segment ends with </s>
    looked: list[int] = field(
        default_factory=list
    )  # with `align`: of a segment, the source tokens that its ids translate


@dataclass(eq=False)
class Segment:
    ids: list[int]  # closed by EOS
    settings: SearchSettings = SearchSettings()
    prefix: list[int] = field(default_factory=list)  # every translation must begin so; shorter than the model's longest
    key: tuple[int, ...] = ()  # decides, with the seed, what is sampled for it
    depth: int = 0  # how often it was halved
    most: int | None = None  # tokens that its translation may have, EOS counted; None: as the settings say
    owner: Any = None  # of whom submits it
    cancelled: bool = False  # nobody wants the result any more
    patient: bool = False  # it lets others go on that are searched beside it
    started: float = 0.0  # when a thread first took it, or what it is searched in place of, by the monotonic clock
    terms: Sequence[Term] = ()  # that its source has
    constraints: Constraints | None = None  # what every translation must say
    plain: "Segment | None" = None  # the same without constraints, searched before
    hypotheses: list[Hypothesis] = field(default_factory=list)  # the result, best first; none if constraints allow none
    error: BaseException | None = None  # why there is none

    def limit(self, longest: int) -> int:
        """Return the most tokens that its translation may have, EOS counted, by a model that can count so far."""
        return min(self.most or len(self.ids) + len(self.prefix) + self.settings.extra_length, longest)

    def draws(self) -> Any:
        """Return the generator of the numbers by which its tokens are drawn: one for each position, from [0, 1)."""
        import numpy as np

        sampling = self.settings.sampling
        return np.random.default_rng([sampling.seed, *self.key]) if sampling else None


Feed = Iterator[Segment | None]  # what is to be searched; None: there is none just now
Results = Iterator[list[Segment]]  # after some steps those that are done, with their hypotheses


def length_penalty(length: Any, alpha: float) -> Any:
    """Return ((5 + length) / 6) ^ alpha, of a number or a tensor; EOS counts in the length."""
    return ((5 + length) / 6) ** alpha


def join(tokenizer: Tokenizer, parts: Sequence[Hypothesis], alpha: float) -> Hypothesis:
    """Return a line's translation from its segments', with a space between two unless both are Chinese or Japanese
    there; an empty one for a line without any."""
    texts = tokenizer.target.decode([part.ids for part in parts])
    texts = texts if len(texts) == 1 else list(filter(None, map(str.strip, texts)))
    text = _WIDE_JOINT.sub(r"\1\2", "\n".join(texts)).replace("\n", " ")
    values = [value for part in parts for value in part.token_log_probabilities]
    total = math.fsum(part.log_probability for part in parts)
    score = total / length_penalty(len(values), alpha)
    tokens = [token for part in parts for token in tokenizer.target.tokens([*part.ids, EOS])]
    return Hypothesis([i for part in parts for i in part.ids], total, score, values, text, tokens)


def split_line(tokenizer: Tokenizer, line: str, seen: int, limit: int, terms: Terms | None = None) -> list[list[int]]:
    """Return a normalised line as sources: cut at its sentence ends if it has more than `seen` tokens, EOS counted; a
    sentence of more than `limit` also where clauses end, else between words, but not in a term's phrase, else
    anywhere."""
    parts = [line]
    head = tokenizer.language(tokenizer.encode(parts)[0])  # every source begins with it
    limit -= len(head)
    for ends, most, room in ((_SENTENCE_END, seen, 0), (_CLAUSE_END, limit, limit), (_WORD_END, limit, limit)):
        sized = zip(parts, map(len, tokenizer.encode(parts)), strict=True)
        cut = [_cut(tokenizer, part, ends, room, terms) if size >= most else [part] for part, size in sized]
        parts = list(itertools.chain.from_iterable(cut))
    sources = [ids[i : i + limit - 1] for ids in tokenizer.encode(parts) for i in range(0, len(ids), limit - 1)]
    return [[*(head if ids[:1] != head else []), *ids, EOS] for ids in sources if ids != head]


def sentences_of(text: str) -> list[tuple[int, int]]:
    """Return where the sentences of a text begin and end: each in one line, without the white space around it."""
    found, begin = list[tuple[int, int]](), 0
    ends = {match.end() for match in _SENTENCE_END.finditer(text)} | {
        at for at, each in enumerate(text) if each == "\n"
    }
    for end in sorted({*ends, len(text)}):
        part = text[begin:end]
        if part.strip():
            found.append((begin + len(part) - len(part.lstrip()), begin + len(part.rstrip())))
        begin = end
    return found


def _cut(tokenizer: Tokenizer, text: str, ends: re.Pattern[str], room: int, terms: Terms | None) -> list[str]:
    """Cut a text where the pattern ends, but not in a term's phrase, nor between neighbours that have fewer than `room`
    tokens together. Without `room`, a sentence without letters stays with the one before it, or after it."""
    places = [0, *(match.end() for match in ends.finditer(text)), len(text)]
    within = {place for _, start, end in (terms.spans(text) if terms else ()) for place in range(start + 1, end)}
    places = [place for place in places if place not in within]
    parts = [text[a:b] for a, b in itertools.pairwise(places)]
    packed, size = [""], 0
    for part, ids in zip(parts, tokenizer.encode(list(map(str.strip, parts))), strict=True):
        size += len(ids)
        alone = room or (has_letter(part) and has_letter(packed[-1]))
        if size < room or not alone:
            packed[-1] += part
        else:
            packed.append(part)
            size = len(ids)
    return list(filter(None, map(str.strip, packed)))


def looping(sequence: Sequence[int]) -> bool:
    """Return whether some stretch of up to 8 tokens comes at least four times in a row, over at least 12 tokens."""
    if len(sequence) - len(set(sequence)) < 9:  # 3 tokens four times have 9 repeats, others more: most lines end here
        return False
    return _LOOP.search("".join(map(chr, sequence))) is not None


def halves(tokenizer: Tokenizer, ids: list[int]) -> list[list[int]]:
    """Return a source in two, at a clause's end near the middle if there is one, else between words; [] if too short.
    EOS closes the source and its halves."""
    tokens = tokenizer.tokens(ids[:-1])
    if len(tokens) < SMALLEST:
        return []
    middle = len(tokens) / 2
    head = ids[:1] if LANGUAGE.fullmatch(tokens[0]) else []
    places = range(1 + len(head), len(tokens))
    starts = [i for i in places if tokens[i][0] == "\u2581" or tokens[i - 1][-1] in _WIDE_MARKS]
    clauses = [i for i in starts if tokens[i - 1][-1] in _MARKS and abs(i - middle) <= middle / 2]
    place = min(clauses or starts or [round(middle)], key=lambda i: abs(i - middle))
    return [[*ids[:place], EOS], head + ids[place:]]
