"""Cut long lines into sentences, long sentences into parts, and failed segments into halves."""

import itertools
import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nmt_cli.corpus.terms import Term, Terms
from nmt_cli.corpus.tokenizer import (
    EOS,
    FIRST_TOKENS,
    Tokenizer,
    first_tokens,
    has_letter,
    normalize,
    visible,
    writable,
)
from nmt_cli.translation.case import UPPER, WORDS, Caser, Part, unusual
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.pending import Copy, Pending
from nmt_cli.translation.segments import Segment
from nmt_cli.translation.spelling import Spelling

_CLOSERS = "\"'\u201d\u2019\u00bb)\\]\u300d\u300f\uff09"
# In German, \u201c and \u00ab close a quotation. In other languages they open one, but then no space follows.
_BEFORE_SPACE = rf"[{_CLOSERS}\u201c\u00ab]*(?=\s)"
_WIDE_MARKS = "\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f"
_MARKS = ".,;:!?\u2013\u2014" + _WIDE_MARKS
# A full stop after a single letter belongs to an initial or an abbreviation (z. B.), and does not end a sentence.
_SENTENCE_END = re.compile(rf"(?:(?<!\b\w)\.|[!?\u2026]){_BEFORE_SPACE}|[\u3002\uff01\uff1f]+[{_CLOSERS}]*")
_CLAUSE_END = re.compile(rf"[,;:\u2013\u2014]{_BEFORE_SPACE}|[{_WIDE_MARKS}][{_CLOSERS}]*")
_WORD_END = re.compile(r"(?=\s)")
_LOOP = re.compile(r"(.)\1{11}|(..)\2{5}|(.{3,8})\3{3}", re.DOTALL)  # for a string with one character per token
SMALLEST = 4  # minimum tokens, not counting EOS, of a source that may be cut into halves


class Segmenter:
    """Cuts lines into segments for one model. `counts` counts lines, and those split, cut or copied."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        caser: Caser,
        *,
        max_length: int,
        filter_tokens: int,
        seen_tokens: int,
        counts: Counter[str],
        head: Sequence[int] = (),
    ) -> None:
        """The model accepts up to `max_length` tokens. Its training corpus has lines of up to `filter_tokens` tokens.

        Lines of more than `seen_tokens` tokens are split. All three numbers include EOS. Every translation begins with
        the ids `head`.
        """
        self.tokenizer = tokenizer
        self.caser = caser
        self.max_length = max_length
        self.filter_tokens = filter_tokens
        self.seen_tokens = seen_tokens
        self.counts = counts
        self.head = [*head]
        self.spelling: Spelling | None = None
        self._counting = threading.Lock()

    def cut(self, pending: Pending, line: Any, prefix: Any, *, number: int = 1, position: int = 0) -> list[Segment]:
        """Cut a line into segments, add them to `pending`, and return them. A line that is copied or empty has none.

        Random samples depend on the `number` of the line. If the line is part of a larger text, `position` is the
        number of parts before it. Raises TypeError if the line or the prefix is not text.
        """
        for value in (line, prefix):
            if not isinstance(value, str):
                raise TypeError(f"a line must be text, not {type(value).__name__}")
        options = pending.options
        target = self.target_of(line, options.target)
        text = normalize(visible(target + line))
        parts = [self._corrected(part, pending) for part in self._parts(text, normalize(prefix), options)]
        forced = self._forced(normalize(prefix), parts[0]) if prefix else []
        pending.terms = options.terms.find(" ".join(part.text for part in parts)) if options.terms else []
        pending.line = line
        pending.hidden, pending.head = int(bool(target)), len(self.head)
        pending.drafts = [[] for _ in range(options.n_best if options.sampling else 1)]
        if options.copy_wordless and not (forced or pending.terms):
            pending.copy = self._copy(line, text, skipped=not target)
        sources = [] if pending.copy else self._sources(pending, parts, forced)
        segments, segment_options = [], options.for_segments()
        for offset, (source, part) in enumerate(sources):
            terms = pending.terms if len(sources) == 1 else terms_of(source, self.tokenizer, options.terms)
            aligned = part.case is not None and part.case.style == WORDS
            given = self._given(part, source) if part.given and len(sources) == 1 else []
            for sample, draft in enumerate(pending.drafts):
                segment = Segment(
                    source,
                    replace(segment_options, alignments=True) if aligned else segment_options,
                    prefix=[*self.head, *([] if offset else forced)][: self.max_length - 1],
                    random_key=(number, offset, sample),
                    position=position + offset,
                    owner=pending,
                    terms=terms,
                    case=part.case,
                    given=given,
                )
                draft.append(segment)
                segments.append(segment)
        pending.open = len(segments)
        with self._counting:
            self.counts["lines"] += 1
            self.counts["copied"] += bool(pending.copy and pending.copy.text.strip())
        return segments

    def target_of(self, line: str, target: str) -> str:
        """Return `target`, such as ">>deu<< ", or "" if the line itself begins with a language token."""
        head = FIRST_TOKENS.match(normalize(visible(line))) if target and ">>" in line else None
        if not head:
            return target
        tokens = self.tokenizer.tokens(self.tokenizer.language(*self.tokenizer.encode([head[0]])))
        names = [token.removeprefix("\u2581")[2:-2] for token in tokens]
        return target if all(name in self.caser.tags for name in names) else ""

    def _parts(self, text: str, prefix: str, options: SearchOptions) -> list[Part]:
        """Divide a normalized text into parts. Unless `case` is off, convert unusual letter case to sentence case."""
        if options.case == "off" or not unusual(text):
            return [Part(text)]
        may_ask = not (options.sampling or prefix)
        first, *others = self.caser.parts(text, sentences_of(text), options.terms, may_ask=may_ask)
        if first.case:
            first = replace(first, case=replace(first.case, prefix=prefix))
        return [first, *others]

    def _corrected(self, part: Part, pending: Pending) -> Part:
        """Correct typos, unless `spelling` is off or the model has no counts of words."""
        if self.spelling is None or pending.options.spelling == "off":
            return part
        part, corrections = self.spelling.part(part, pending.options.terms)
        pending.corrections |= corrections
        return part

    def _forced(self, prefix: str, part: Part) -> list[int]:
        """Return the ids of a forced prefix. If the source is in capitals, convert the prefix to sentence case."""
        text = self.caser.prefix(prefix) if part.case and part.case.style == UPPER else prefix
        return self.tokenizer.target.encode([text])[0]

    def _given(self, part: Part, source: list[int]) -> list[int]:
        """Return the ids, including EOS, of a part before its conversion, or [] if the ids are equal to `source`."""
        [ids] = self.tokenizer.encode([part.given])
        given = [*ids[: self.max_length - 1], EOS]
        return [] if given == source else given

    def _sources(self, pending: Pending, parts: Sequence[Part], forced: Sequence[int]) -> list[tuple[list[int], Part]]:
        """Return, for each segment of a text, its ids, including EOS, and the part to which it belongs."""
        split, room = pending.options.split, self.max_length
        found, was_split, was_cut = list[tuple[list[int], Part]](), False, False
        for part in parts:
            [ids] = self.tokenizer.encode([part.text])
            sources = [[*ids[: room - 1], EOS]] if ids else []
            if split and len(ids) >= self.seen_tokens:
                terms = pending.options.terms
                sources = split_line(self.tokenizer, part.text, self.seen_tokens, self.filter_tokens, terms)
            found += [(source, part) for source in sources]
            was_split |= len(sources) > 1
            was_cut |= not split and len(ids) >= room
        with self._counting:
            self.counts["split"] += was_split
            self.counts["cut"] += (len(forced) >= room) + was_cut
        return found

    def _copy(self, line: str, text: str, *, skipped: bool) -> Copy | None:
        """Return a copy of a line without letters, or None for an empty line and a line with letters.

        The language and tag tokens at the beginning are not copied. `text` is the normalized line. If `skipped` is
        false, it begins with a token that nmt added. If true, the Copy counts the line's own tokens as skipped words.
        """
        head = ""
        if text.startswith(">>"):
            [head] = self.tokenizer.decode([self.tokenizer.language(self.tokenizer.encode([text])[0])])
        if not text or has_letter(text.removeprefix(head)):
            return None
        return Copy(writable(line).removeprefix(head).lstrip(), len(head.split()) if skipped else 0)


def terms_of(source: list[int], tokenizer: Tokenizer, terms: Terms | None) -> list[Term]:
    """Return the glossary entries whose phrase occurs in a source. `source` holds its ids, including EOS."""
    return terms.find(normalize(tokenizer.decode([source[:-1]])[0])) if terms else []


def split_line(tokenizer: Tokenizer, line: str, seen: int, limit: int, terms: Terms | None = None) -> list[list[int]]:
    """Split a normalized line, and return the ids of each part, including EOS.

    A line of more than `seen` tokens, including EOS, is cut between sentences. A sentence of more than `limit` tokens
    is cut between clauses, then, if necessary, between words, and as a last resort within words. Only a cut within a
    word may divide the phrase of a glossary term.
    """
    parts = [line]
    head = tokenizer.language(tokenizer.encode(parts)[0])  # language and tag tokens, with which every part must begin
    limit -= len(head)
    for ends, most, room in ((_SENTENCE_END, seen, 0), (_CLAUSE_END, limit, limit), (_WORD_END, limit, limit)):
        sized = zip(parts, map(len, tokenizer.encode(parts)), strict=True)
        cut = [_cut(tokenizer, part, ends, room, terms) if size >= most else [part] for part, size in sized]
        parts = list(itertools.chain.from_iterable(cut))
    sources = [ids[i : i + limit - 1] for ids in tokenizer.encode(parts) for i in range(0, len(ids), limit - 1)]
    return [[*(head if ids[: len(head)] != head else []), *ids, EOS] for ids in sources if ids != head]


def sentences_of(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each sentence in a text, without surrounding white space.

    A line feed also ends a sentence.
    """
    found, begin = list[tuple[int, int]](), 0
    ends = {match.end() for match in _SENTENCE_END.finditer(text)}
    ends |= {index for index, character in enumerate(text) if character == "\n"}
    for end in sorted({*ends, len(text)}):
        part = text[begin:end]
        if part.strip():
            found.append((begin + len(part) - len(part.lstrip()), begin + len(part.rstrip())))
        begin = end
    return found


def _cut(tokenizer: Tokenizer, text: str, ends: re.Pattern[str], room: int, terms: Terms | None) -> list[str]:
    """Cut a text at the end of each match of `ends`, but not within the phrase of a term.

    Neighboring parts stay together while they have fewer than `room` tokens in total. If `room` is 0, neighboring parts
    stay together only if one of them has no letters.
    """
    cuts = [0, *(match.end() for match in ends.finditer(text)), len(text)]
    within = {index for _, start, end in (terms.spans(text) if terms else ()) for index in range(start + 1, end)}
    parts = [text[a:b] for a, b in itertools.pairwise(index for index in cuts if index not in within)]
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


def looping(ids: Sequence[int]) -> bool:
    """Return whether a sequence of 1 to 8 tokens occurs at least four times in a row, over at least 12 tokens."""
    if len(ids) - len(set(ids)) < 9:  # a quick test that excludes most lines: in a loop, at least 9 tokens are repeats
        return False
    return _LOOP.search("".join(map(chr, ids))) is not None


def halves(tokenizer: Tokenizer, ids: list[int]) -> list[list[int]]:
    """Cut a source into two halves, each of which ends with EOS. Return [] if the source is too short.

    Cut at the end of a clause near the middle if possible, or else between words, or else within a word. Both halves
    begin with the language and tag tokens of the source.
    """
    tokens = tokenizer.tokens(ids[:-1])
    if len(tokens) < SMALLEST:
        return []
    middle = len(tokens) / 2
    head = ids[: first_tokens(tokens)]
    inner = range(1 + len(head), len(tokens))
    starts = [i for i in inner if tokens[i][0] == "\u2581" or tokens[i - 1][-1] in _WIDE_MARKS]
    clauses = [i for i in starts if tokens[i - 1][-1] in _MARKS and abs(i - middle) <= middle / 2]
    cut = min(clauses or starts or [max(round(middle), inner.start)], key=lambda i: abs(i - middle))
    return [[*ids[:cut], EOS], head + ids[cut:]]
