"""From lines to translated lines: read, cut, searched in any order, put together, written in order."""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from nmt_cli.corpus.cleaning import normalise
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import DataError
from nmt_cli.translation.output import Line, Output, Part
from nmt_cli.translation.search import Hypothesis, Source
from nmt_cli.translation.segments import halves, looping, split
from nmt_cli.translation.stream import LineReader

MAX_RETRIES = 3  # how often a source is halved
SAMPLE_BITS, PLACE_BITS = 12, 20  # of a source's key: as many samples of a source, and sources in a line
_INVALID = re.compile("\ufffd+")


@dataclass
class Counts:
    """What happened on the way, for the closing message."""

    lines: int = 0
    pieces: int = 0
    invalid: int = 0
    first_invalid: int = 0
    split: int = 0
    cut: int = 0
    prefixes_cut: int = 0
    retried: int = 0


@dataclass(frozen=True)
class Cutting:
    """How lines become sources.

    Attributes:
        longest: most pieces the model can count, of a source or a translation, with EOS.
        limit: longest source the model was trained on, in pieces with EOS.
        split: whether longer lines are split, and failed translations tried again in halves; else lines are cut.
        strict: whether bytes that are not UTF-8 are an error.
        samples: translations drawn of each source; 0 for search.
    """

    longest: int
    limit: int
    split: bool
    strict: bool
    samples: int = 0


class Pipeline:
    """Lines in, finished lines out in order; what is between is bounded by one chunk and the slots of the search.

    Args:
        reader: of the input.
        prefixes: of a file with one forced prefix per line; None for none.
        tokenizer: of the model.
        cutting: how lines become sources.
        output: is given each stretch of lines that is complete, in order.
    """

    def __init__(
        self,
        reader: LineReader,
        prefixes: LineReader | None,
        tokenizer: Tokenizer,
        cutting: Cutting,
        output: Output,
    ) -> None:
        self.reader, self.prefixes, self.tokenizer, self.cutting = reader, prefixes, tokenizer, cutting
        self.output, self.counts = output, Counts()
        self._pending: deque[Line] = deque()  # read and not given out
        self._queue: deque[tuple[Line, Part, int]] = deque()  # to be searched, with the number of the sample
        self._running: dict[int, tuple[Line, Part]] = {}
        self._started = 0
        self._prefix_lines: deque[bytes] = deque()

    def sources(self) -> Iterator[Source | None]:
        """Yield what is to be searched; None where all that has come is being searched already."""
        while True:
            while self._queue:
                line, part, sample = self._queue.popleft()
                self._running[self._started] = (line, part)
                self._started += 1
                place = part.place & (1 << PLACE_BITS) - 1
                key = (line.number << PLACE_BITS | place) << SAMPLE_BITS | sample
                yield Source(part.ids, part.prefix, key)
            if self.reader.ended:
                if not self._pending:
                    return
                yield None
                continue
            lines = self.reader.take(wait=not self._pending)
            if lines:
                self._admit(lines)
                self._give_out()
            elif self._pending:
                yield None

    def settle(self, number: int, hypotheses: list[Hypothesis]) -> None:
        """Take the result of the source with this number, in the order of `sources`."""
        line, part = self._running.pop(number)
        part.hypotheses += hypotheses
        line.open -= 1
        failed = not hypotheses[0].ids or (looping(hypotheses[0].ids) and not looping(part.ids))
        if failed and self.cutting.split and not self.cutting.samples and part.depth < MAX_RETRIES:
            sides = halves(self.tokenizer, part.ids)
            part.halves = [
                Part(ids, part.prefix if i == 0 else [], part.place, part.depth + 1) for i, ids in enumerate(sides)
            ]
            self.counts.retried += bool(sides)
            for half in part.halves:
                self._enqueue(line, half)
        self.counts.pieces += sum(len(h.ids) for h in hypotheses)
        self._give_out()

    def _enqueue(self, line: Line, part: Part) -> None:
        for sample in range(max(1, self.cutting.samples)):
            line.open += 1
            self._queue.append((line, part, sample))

    def _give_out(self) -> None:
        done = []
        while self._pending and not self._pending[0].open:
            done.append(self._pending.popleft())
        if done:
            self.output.write(done)

    def _admit(self, raw: list[bytes]) -> None:
        """Make lines of bytes, and sources of lines: long ones first, so that neighbours in a batch are alike."""
        prefixes = self._prefixes_of(len(raw))
        texts = [normalise(self._decoded(line, self.counts.lines + i + 1)) for i, line in enumerate(raw)]
        parts = [[Part(ids)] if ids else [] for ids in self._encoded(texts)]
        for i, text in enumerate(texts):
            if parts[i] and len(parts[i][0].ids) > self.cutting.limit:
                if self.cutting.split:
                    parts[i] = [
                        Part(ids, [], j) for j, ids in enumerate(split(self.tokenizer, text, self.cutting.limit))
                    ]
                    self.counts.split += 1
                else:
                    parts[i][0].ids[self.cutting.limit - 1 : -1] = []
                    self.counts.cut += 1
        lines = [Line(self.counts.lines + i + 1, text, parts[i]) for i, text in enumerate(texts)]
        self.counts.lines += len(lines)
        for line, prefix in zip(lines, prefixes, strict=True):
            if prefix and line.parts:
                line.parts[0].prefix = prefix[: self.cutting.longest - 1]
                self.counts.prefixes_cut += len(prefix) >= self.cutting.longest
        self._pending.extend(lines)
        order = sorted(((line, part) for line in lines for part in line.parts), key=lambda pair: -len(pair[1].ids))
        for line, part in order:
            self._enqueue(line, part)

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        return [[*ids, EOS] if ids else [] for ids in self.tokenizer.encode(texts)]

    def _decoded(self, line: bytes, number: int) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError:
            if self.cutting.strict:
                raise DataError(f"line {number} is not UTF-8. Convert the input, or leave out --strict") from None
        self.counts.invalid += 1
        self.counts.first_invalid = self.counts.first_invalid or number
        # A run of bytes that mean nothing is one thing that is not known, not many.
        return _INVALID.sub("\ufffd", line.decode(errors="replace"))

    def _prefixes_of(self, count: int) -> list[list[int]]:
        if self.prefixes is None:
            return [[]] * count
        while len(self._prefix_lines) < count and not self.prefixes.ended:
            self._prefix_lines.extend(self.prefixes.take(wait=True))
        if len(self._prefix_lines) < count:
            raise DataError(
                f"the prefix file has fewer lines than the input: it ends before line {self.counts.lines + count}"
            )
        texts = [self._prefix_lines.popleft().decode(errors="replace") for _ in range(count)]
        return self.tokenizer.encode([normalise(text) for text in texts])
