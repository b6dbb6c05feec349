"""The report of `nmt score`, as text, Markdown or JSON."""

import json
import textwrap
from dataclasses import dataclass, field
from typing import Any

import sacrebleu

from nmt_cli import __version__
from nmt_cli.scoring import robustness
from nmt_cli.scoring.metrics import Score, score_lines
from nmt_cli.system.console import counted
from nmt_cli.system.errors import printable

HEADINGS = {"worst": "Worst segments", "best": "Best segments"}
HEADINGS |= {"lost": "Largest losses against the baseline", "gained": "Largest gains over the baseline"}
JSON_NAMES = {"near_duplicates": "twins", "tokenized": "tokenised"}  # field -> its name in JSON, if they differ
_MARKDOWN = str.maketrans({"&": "&amp;", "<": "&lt;"} | {mark: f"\\{mark}" for mark in "\\|`*_[]~#@"})

_Table = tuple[str, list[list[str]], list[str]]  # title, rows (header first), and the lines of the note below them


@dataclass(frozen=True)
class InputText:
    """The lines of a file or of standard input."""

    name: str
    lines: list[str]
    sha256: str  # the hash of the bytes


@dataclass(frozen=True)
class ScoredSegment:
    """A line with its scores. The fields keep their names in the output of `nmt score --segments`."""

    line: int  # from 1
    hypothesis: str
    references: list[str]
    bleu: float
    chrf: float
    source: str | None
    baseline: str | None
    baseline_chrf: float | None
    details: dict[str, Any]  # COMET's score, or counts of the brackets of parse trees

    @property
    def gain(self) -> float:
        """The chrF2 of the hypothesis, minus that of the baseline if there is one."""
        return self.chrf - (self.baseline_chrf or 0)

    def heading(self) -> str:
        versus = "" if self.baseline_chrf is None else f", baseline {self.baseline_chrf:.1f}"
        return f"line {self.line:,}, chrF2 {self.chrf:.1f}{versus}"

    def texts(self) -> list[tuple[str, str]]:
        rows = [("source", self.source), *(("reference", text) for text in self.references)]
        rows += [("hypothesis", self.hypothesis), ("baseline", self.baseline)]
        return [(label, text) for label, text in rows if text is not None]


@dataclass(frozen=True)
class NearDuplicates:
    """The lines of a test set that have near-duplicates in the training text."""

    sentence: str  # the counts as a message
    counts: dict[str, Any]  # the entry of the test set in cleaning.json, which `nmt prepare` writes


@dataclass(frozen=True)
class TermCounts:
    """The numbers of glossary terms in the source and in the hypotheses. A term counts once per line."""

    terms: int
    met: int  # terms with an accepted form in the hypothesis
    with_terms: int  # source lines with a term

    @property
    def sentence(self) -> str:
        share = f"{self.met / self.terms:.1%}" if self.terms else "none"
        return f"terms used: {share} ({self.met:,} of {self.terms:,}, in {counted(self.with_terms, 'line')})"


@dataclass(frozen=True)
class PairScores:
    """The scores of the lines in one language pair, such as en-de."""

    pair: str
    lines: int
    scores: list[Score]


def json_fields(value: InputText | Score | ScoredSegment | TermCounts | PairScores) -> dict[str, Any]:
    """Return the fields for JSON. Leave out `verbose` and fields that are None.

    Replace the list `lines` with its length, and merge the entries of `details` into the fields.
    """
    values: dict[str, Any] = {}
    for key, item in vars(value).items():
        if key == "details":
            values |= item
        elif item is not None and key != "verbose":
            values[key] = len(item) if key == "lines" and isinstance(item, list) else item
    return values


@dataclass(kw_only=True)
class Report:
    """Everything that `nmt score` prints. Its JSON output has the fields in this order."""

    scores: list[Score] = field(default_factory=list)
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    robust: list[dict[str, Any]] = field(default_factory=list)  # scores after damage to the source, such as typos
    pairs: list[PairScores] = field(default_factory=list)  # filled only if the corpus has several language pairs
    empty: int = 0
    copies: int | None = None  # number of hypotheses that are equal to their source, or None without a source
    language: str | None
    test_set: str | None
    tokenize: str  # sacreBLEU's tokenizer for BLEU
    lowercase: bool
    hypotheses: InputText
    references: list[InputText]
    source: InputText | None
    baseline: InputText | None
    near_duplicates: NearDuplicates | None = None
    terms: TermCounts | None = None
    tokenized: bool = False  # whether the prepared corpus is tokenized; BLEU then counts its tokens
    warnings: list[str] = field(default_factory=list)
    gated: bool  # whether there are checks: --fail-under, --fail-if-worse
    failures: list[str] = field(default_factory=list)  # a message for each check that failed
    details: bool  # whether to report BLEU by length, and the best and worst segments
    intervals: bool
    segments: list[ScoredSegment] = field(default_factory=list)  # filled only if an option needs them

    def wins_and_losses(self) -> tuple[int, int]:
        """Return the number of segments with a higher chrF2 than the baseline, and the number with a lower chrF2."""
        return sum(segment.gain > 0 for segment in self.segments), sum(segment.gain < 0 for segment in self.segments)

    def extremes(self) -> dict[str, list[ScoredSegment]]:
        """Return groups of up to three segments: worst, best, and largest losses and gains against the baseline.

        All are ranked by chrF2. Leave out empty groups. Without --details, return {}.
        """
        ranked = sorted(self.segments, key=lambda segment: segment.chrf)
        groups = {"worst": ranked[:3], "best": ranked[::-1][:3]}
        if self.baseline:
            ranked = sorted(self.segments, key=lambda segment: segment.gain)
            groups["lost"] = [segment for segment in ranked[:3] if segment.gain < 0]
            groups["gained"] = [segment for segment in ranked[::-1][:3] if segment.gain > 0]
        return {name: group for name, group in groups.items() if group} if self.details else {}

    def _bleu(self, segments: list[ScoredSegment], intervals: bool = False) -> Score:
        hypotheses = [segment.hypothesis for segment in segments]
        references = [list(lines) for lines in zip(*(segment.references for segment in segments), strict=True)]
        score, _ = score_lines(
            "bleu", hypotheses, references, tokenize=self.tokenize, lowercase=self.lowercase, intervals=intervals
        )
        return score

    @property
    def unit(self) -> str:
        """The unit of lengths: words, or characters in languages without spaces between words."""
        return "characters" if self.tokenize in ("zh", "char", "ja-mecab") else "words"

    def _length(self, line: str) -> int:
        words = line.split()
        return max(1, len("".join(words) if self.unit == "characters" else words))

    def lengths(self) -> list[dict[str, Any]]:
        """Return BLEU for each range of the first reference's length: 1 to 10 words (or characters), 11 to 20, etc."""
        rows = []
        for first, last in ((1, 10), (11, 20), (21, 30), (31, 40), (41, 50), (51, 10**9)):
            if inside := [s for s in self.segments if first <= self._length(s.references[0]) <= last]:
                length = f"{first} to {last}" if first < 51 else "over 50"
                bleu = self._bleu(inside).score
                rows.append({"length": length, "unit": self.unit, "segments": len(inside), "bleu": bleu})
        return rows

    def bleu_by_near_duplicates(self) -> dict[str, tuple[int, Score]]:
        """Return the number and the BLEU of lines "with" near-duplicates in the training text, and of lines "without".

        Leave out a group without lines. Return {} without --details, or if no line has near-duplicates.
        """
        near = set(self.near_duplicates.counts["near_lines"]) if self.near_duplicates and self.details else set()
        parts = {
            "with": [segment for segment in self.segments if segment.line in near],
            "without": [segment for segment in self.segments if segment.line not in near],
        }
        shown = {name: part for name, part in parts.items() if part} if near else {}
        return {name: (len(part), self._bleu(part, self.intervals and len(part) > 1)) for name, part in shown.items()}

    def json(self) -> str:
        empty = [name for name in ("robust", "pairs") if not getattr(self, name)]
        hidden = ("details", "intervals", "segments", *empty)
        values = {JSON_NAMES.get(name, name): value for name, value in vars(self).items() if name not in hidden}
        values["versions"] = {"nmt": __version__, "sacrebleu": sacrebleu.__version__}
        values |= dict(zip(("wins", "losses"), self.wins_and_losses(), strict=True)) if self.baseline else {}
        values |= {"lengths": self.lengths(), **self.extremes()} if self.details else {}
        if self.near_duplicates:
            values["twins"] = dict(self.near_duplicates.counts)
            for name, (_, bleu) in self.bleu_by_near_duplicates().items():
                values["twins"][f"bleu_{name}"] = {"score": bleu.score, "ci": bleu.ci}
        return json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False, default=json_fields)

    def _counts(self) -> str:
        count, against = len(self.hypotheses.lines), ", ".join(text.name for text in self.references)
        copies = "" if self.copies is None else f", {self.copies:,} copied from the source"
        return f"{self.hypotheses.name} against {against}: {counted(count, 'line')}, {self.empty:,} empty{copies}"

    def notes(self) -> list[str]:
        """Return sentences about glossary terms and near-duplicates."""
        terms = [self.terms.sentence] if self.terms else []
        if not self.near_duplicates:
            return terms
        notes = [*terms, self.near_duplicates.sentence]
        for name, (lines, score) in self.bleu_by_near_duplicates().items():
            notes.append(f"BLEU of the {counted(lines, 'line')} {name} near-duplicates: {score.shown()}")
        return notes

    def _tables(self) -> list[_Table]:
        tables = [self._comparison(self.baseline)] if self.baseline else []
        if self.pairs:
            tables.append(("By language pair", self._by_pair(), []))
        if self.robust:
            note = textwrap.wrap(robustness.NOTE, 100, break_on_hyphens=False)
            tables.append(("Scores with damaged sources", robustness.table(self.robust), note))
        return tables

    def _comparison(self, baseline: InputText) -> _Table:
        rows = [["metric", "baseline", "this", "difference", "p (bootstrap)", "p (randomization)"]]
        for c in self.comparisons:
            scores = [f"{c[system]:.2f} ± {c[system + '_ci']:.2f}" for system in ("baseline", "score")]
            rows.append([c["name"], *scores, f"{c['difference']:+.2f}", f"{c['p_bs']:.4f}", f"{c['p_ar']:.4f}"])
        wins, losses = self.wins_and_losses()
        equal = len(self.segments) - wins - losses
        note = f"Segments by chrF2: {wins:,} better, {losses:,} worse, {equal:,} equal."
        tests = "± gives the 95% interval of 1,000 bootstrap samples. The randomization test has 10,000 trials."
        return f"Against {baseline.name}", rows, [f"{note} {tests}"]

    def _by_pair(self) -> list[list[str]]:
        """Return the rows of the table of scores by language pair, header first."""
        rows = [["pair", "lines", *(score.name for score in self.pairs[0].scores)]]
        return rows + [[p.pair, f"{p.lines:,}", *(score.shown() for score in p.scores)] for p in self.pairs]

    def text(self) -> str:
        width = 2 + max(len(score.name) for score in self.scores)
        shown = 2 + max(len(score.shown()) for score in self.scores)
        blocks = [[self._counts(), *self.notes()], list[str]()]
        for score in self.scores:
            notes = [score.signature, *textwrap.wrap(f"compare with {score.compare_with}", 100)]
            blocks[1].append(f"{score.name:<{width}}{score.shown():<{shown}}{score.verbose}".rstrip())
            blocks[1] += [" " * width + note for note in notes]
        blocks += [[title, *_aligned(rows), *note] for title, rows, note in self._tables()]
        if self.details:
            lines = (f"  {row['length']:<10}{row['bleu']:6.2f}  {row['segments']:,} segments" for row in self.lengths())
            blocks.append([f"BLEU by {self.unit} in the reference", *lines])
        for name, group in self.extremes().items():
            for i, segment in enumerate(group):
                texts = [f"    {label:<12}{text[:1000]}" for label, text in segment.texts()]
                blocks.append([*([] if i else [HEADINGS[name]]), f"  {segment.heading()}", *texts])
        if self.gated:
            blocks.append([f"gate failed: {failure}" for failure in self.failures] or ["gate passed"])
        return "\n\n".join("\n".join(printable(line, 2000) for line in block) for block in blocks)

    def markdown(self) -> str:
        verdict = ""
        if self.gated:
            verdict = " ❌" if self.failures else " ✅"
        blocks = [f"### {self.scores[0].name} {self.scores[0].shown()}{verdict}"]
        blocks += [f"**Gate failed:** {_cell(failure)}" for failure in self.failures]
        blocks += [f"**Warning:** {_cell(warning)}" for warning in self.warnings]
        rows = [["metric", "score", "counts and signature", "compare with"]]
        for score in self.scores:
            signature = "`" + score.signature.replace("|", "\\|") + "`"
            counts = f"{score.verbose}<br>" if score.verbose else ""
            rows.append([score.name, f"**{score.shown()}**", counts + signature, _cell(score.compare_with)])
        blocks += [_cell(self._counts()), *map(_cell, self.notes()), _table(rows, "|:--|--:|:--|:--|")]
        for title, rows, note in self._tables():
            blocks += [f"**{_cell(title)}**", _table(rows, "|:--" + "|--:" * (len(rows[0]) - 1) + "|")]
            blocks += [" ".join(note)] if note else []
        if self.details:
            rows = [[row["length"], f"{row['bleu']:.2f}", f"{row['segments']:,}"] for row in self.lengths()]
            blocks.append(_table([[f"{self.unit} in the reference", "BLEU", "segments"], *rows], "|:--|--:|--:|"))
        for name, group in self.extremes().items():
            blocks.append(f"<details><summary>{HEADINGS[name]}</summary>\n")
            for segment in group:
                texts = [f"| {label} | {_cell(text)} |" for label, text in segment.texts()]
                blocks.append("\n".join([f"| {segment.heading()} | |", "|:--|:--|", *texts]))
            blocks.append("</details>")
        return "\n\n".join(blocks)


def _aligned(rows: list[list[str]]) -> list[str]:
    """Return a table as lines of text. Align the first column to the left, and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def _cell(value: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return printable(value, 1000).translate(_MARKDOWN)


def _table(rows: list[list[str]], rule: str) -> str:
    header, *lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([header, rule, *lines])
