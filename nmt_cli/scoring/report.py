"""What `score` reports: text for people, markdown for a pull request, JSON for programs."""

import bisect
import json
import textwrap
from dataclasses import dataclass, field
from typing import Any

from nmt_cli import __version__
from nmt_cli.errors import printable
from nmt_cli.scoring.metrics import Comparison, Score, corpus_bleu

SHOWN = 3  # segments of each kind
LENGTHS = (10, 20, 30, 40, 50)  # upper ends of ranges of ten words of the reference
HEADINGS = {"worst": "Worst segments", "best": "Best segments"}
HEADINGS |= {"lost": "Most lost against the baseline", "gained": "Most gained over the baseline"}
COMPARISON = ("metric", "baseline", "this", "difference", "p (bootstrap)", "p (randomisation)")


@dataclass(frozen=True)
class Text:
    """The lines of an input, and the SHA-256 of its bytes."""

    name: str
    lines: list[str]
    sha256: str


@dataclass(frozen=True)
class Segment:
    """One line with its texts and sentence scores; `details` is what another metric says of it."""

    line: int
    hypothesis: str
    references: list[str]
    bleu: float
    chrf: float
    source: str | None = None
    baseline: str | None = None
    baseline_chrf: float | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def gain(self) -> float:
        return self.chrf - (self.baseline_chrf or 0)

    def heading(self) -> str:
        versus = "" if self.baseline_chrf is None else f", baseline {self.baseline_chrf:.1f}"
        return f"line {self.line:,}, chrF2 {self.chrf:.1f}{versus}"

    def texts(self) -> list[tuple[str, str]]:
        """Return the texts with their labels, in reading order."""
        rows = [("source", self.source), *(("reference", text) for text in self.references)]
        rows += [("hypothesis", self.hypothesis), ("baseline", self.baseline)]
        return [(label, text) for label, text in rows if text is not None]


def plain(value: Text | Score | Comparison | Segment) -> dict[str, Any]:
    """Return the fields for JSON: a count instead of all lines, details laid flat, nothing that is None."""
    values: dict[str, Any] = {}
    for key, item in vars(value).items():
        if key == "details":
            values |= item
        elif item is not None and key != "verbose":
            values[key] = len(item) if key == "lines" else item
    return values


@dataclass
class Report:
    """The inputs of a scoring and its results, unrounded."""

    hypotheses: Text
    references: list[Text]
    source: Text | None
    baseline: Text | None
    language: str | None
    test_set: str | None = None
    scores: list[Score] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    gated: bool = False
    failures: list[str] = field(default_factory=list)  # why the gate fails
    segments: list[Segment] = field(default_factory=list)  # empty unless something asks for them
    details: bool = False  # whether to report lengths and extremes

    @property
    def empty(self) -> int:
        return sum(not line.strip() for line in self.hypotheses.lines)

    @property
    def copies(self) -> int | None:
        """How many hypotheses are their source; None where there is no source."""
        pairs = zip(self.hypotheses.lines, self.source.lines, strict=True) if self.source else []
        return sum(bool(line) and line == source for line, source in pairs) if self.source else None

    def changes(self) -> tuple[int, int]:
        """Return how many segments are better and worse than the baseline's, by chrF2."""
        return sum(segment.gain > 0 for segment in self.segments), sum(segment.gain < 0 for segment in self.segments)

    def extremes(self) -> dict[str, list[Segment]]:
        """Return the worst and best segments by chrF2, and those that differ most from the baseline's."""
        ranked = sorted(self.segments, key=lambda segment: segment.chrf)
        groups = {"worst": ranked[:SHOWN], "best": ranked[::-1][:SHOWN]}
        if self.baseline:
            ranked = sorted(self.segments, key=lambda segment: segment.gain)
            groups |= {"lost": ranked[:SHOWN], "gained": ranked[::-1][:SHOWN]}
        return groups if self.details else {}

    def lengths(self) -> list[dict[str, Any]]:
        """Return the BLEU of each range of reference lengths that occurs."""
        ranges: dict[int, list[Segment]] = {}
        for segment in self.segments:
            ranges.setdefault(bisect.bisect_left(LENGTHS, len(segment.references[0].split())), []).append(segment)
        names, rows = [*(f"{high - 9} to {high}" for high in LENGTHS), f"over {LENGTHS[-1]}"], []
        for place, inside in sorted(ranges.items()):
            references = [list(lines) for lines in zip(*(segment.references for segment in inside), strict=True)]
            bleu, _ = corpus_bleu([segment.hypothesis for segment in inside], *references)
            rows.append({"words": names[place], "segments": len(inside), "bleu": bleu})
        return rows

    def json(self) -> str:
        import sacrebleu

        names = ["scores", "comparisons", "empty", "copies", "language", "test_set", "hypotheses", "references"]
        names += ["source", "baseline", "warnings", "gated", "failures"]
        values = {name: getattr(self, name) for name in names}
        values["versions"] = {"nmt": __version__, "sacrebleu": sacrebleu.__version__}
        values |= dict(zip(("wins", "losses"), self.changes(), strict=True)) if self.baseline else {}
        values |= {"lengths": self.lengths(), **self.extremes()} if self.details else {}
        return json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False, default=plain)

    def _counts(self) -> str:
        """Return what was scored, and what is odd about it."""
        count, against = len(self.hypotheses.lines), ", ".join(text.name for text in self.references)
        copies = "" if self.copies is None else f", {self.copies:,} copied from the source"
        lines = f"{count:,} line{'s' * (count != 1)}, {self.empty:,} empty{copies}"
        return f"{self.hypotheses.name} against {against}: {lines}"

    def _comparison(self) -> tuple[list[list[str]], str]:
        """Return the rows of the comparison with the baseline, and what to know about them."""
        rows = []
        for c in self.comparisons:
            scores = [f"{c.baseline:.2f} ± {c.baseline_ci:.2f}", f"{c.score:.2f} ± {c.score_ci:.2f}"]
            rows.append([c.name, *scores, f"{c.difference:+.2f}", f"{c.p_bs:.4f}", f"{c.p_ar:.4f}"])
        wins, losses = self.changes()
        equal = len(self.segments) - wins - losses
        note = f"Segments by chrF2: {wins:,} better, {losses:,} worse, {equal:,} equal."
        return rows, f"{note} ±: 95 % interval, 1,000 bootstrap samples; randomisation: 10,000 trials."

    def text(self) -> str:
        lines = [self._counts(), ""]
        width = 2 + max(len(score.name) for score in self.scores)
        for score in self.scores:
            lines.append(f"{score.name:<{width}}{score.score:<7.2f}{score.verbose}".rstrip())
            notes = [score.signature, *textwrap.wrap(f"compare with {score.compare_with}", 100)]
            lines += [" " * width + note for note in notes]
        if self.baseline:
            rows, note = self._comparison()
            widths = [max(map(len, column)) for column in zip(COMPARISON, *rows, strict=True)]
            lines += ["", f"Against {self.baseline.name}"]
            for first, *cells in (COMPARISON, *rows):
                right = [f"{cell:>{size}}" for cell, size in zip(cells, widths[1:], strict=True)]
                lines.append("  ".join([f"{first:<{widths[0]}}", *right]))
            lines.append(note)
        if self.details:
            lines += ["", "BLEU by words in the reference"]
            lines += [f"  {row['words']:<10}{row['bleu']:6.2f}  {row['segments']:,} segments" for row in self.lengths()]
        for name, group in self.extremes().items():
            for i, segment in enumerate(group):
                lines += ["", *([] if i else [HEADINGS[name]]), f"  {segment.heading()}"]
                lines += [f"    {label:<12}{text[:1000]}" for label, text in segment.texts()]
        if self.gated:
            lines += ["", *([f"gate failed: {failure}" for failure in self.failures] or ["gate passed"])]
        return "\n".join(printable(line, 2000) for line in lines)

    def markdown(self) -> str:
        """Return GitHub's markdown, for a job summary or a comment."""
        verdict = "" if not self.gated else " ❌" if self.failures else " ✅"
        lines = [f"### {self.scores[0].name} {self.scores[0].score:.2f}{verdict}"]
        lines += [f"\n**Gate failed:** {_cell(failure)}" for failure in self.failures]
        lines += [f"\n**Warning:** {_cell(warning)}" for warning in self.warnings]
        lines += ["", _cell(self._counts()), "", "| metric | score | counts and signature | compare with |"]
        lines.append("|:--|--:|:--|:--|")
        for score in self.scores:
            signature = "`" + score.signature.replace("|", "\\|") + "`"
            counts = f"{score.verbose}<br>" if score.verbose else ""
            note = _cell(score.compare_with)
            lines.append(f"| {score.name} | **{score.score:.2f}** | {counts}{signature} | {note} |")
        if self.baseline:
            rows, note = self._comparison()
            lines += ["", f"**Against {_cell(self.baseline.name)}**", *_table(COMPARISON, rows), "", note]
        if self.details:
            rows = [[row["words"], f"{row['bleu']:.2f}", f"{row['segments']:,}"] for row in self.lengths()]
            lines += _table(("words in the reference", "BLEU", "segments"), rows)
        for name, group in self.extremes().items():
            lines += ["", f"<details><summary>{HEADINGS[name]}</summary>", ""]
            for segment in group:
                texts = [f"| {label} | {_cell(text)} |" for label, text in segment.texts()]
                lines += ["", f"| {segment.heading()} | |", "|:--|:--|", *texts]
            lines += ["", "</details>"]
        return "\n".join(lines)


def _cell(value: str) -> str:
    """Return text that cannot break out of a cell of a markdown table."""
    escaped = printable(value, 1000).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{mark}" if mark in "|`*_[]~#@" else mark for mark in escaped)


def _table(header: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """Return a markdown table: the first column is text, the others are aligned right."""
    rule = "|".join([":--", *["--:"] * (len(header) - 1)])
    return ["", f"| {' | '.join(header)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
