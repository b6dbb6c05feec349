"""What `prepare` repairs in a line and why it drops a pair, each with a name to count it by.

A pair is dropped for the first reason that holds, in the order of `DROPPED`. The last three need the whole corpus
or subword tokens, and are found by later stages.
"""

import hashlib
import html
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nmt_cli import recipe
from nmt_cli.corpus.readers import Chunk
from nmt_cli.corpus.tokenizer import normalise as normalise

LONG_LINE, NOT_UTF8, EMPTY, COPY = "line over the byte limit", "not UTF-8", "empty side", "source equals target"
SCRIPT, HELD_OUT, DUPLICATE = "wrong script", "in dev or test", "duplicate pair"
TOO_LONG, RATIO = "too many tokens", "length ratio"
DROPPED = (LONG_LINE, NOT_UTF8, EMPTY, COPY, SCRIPT, HELD_OUT, DUPLICATE, TOO_LONG, RATIO)
SOURCE_HELD_OUT = "source alone in dev or test (kept)"
EXAMPLES = 3

_REPAIRS = {
    "byte-order mark": re.compile("\ufeff"),
    "carriage return at the end": re.compile("\r$"),
    "control character inside": re.compile("[\x00-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff](?!$)"),
    "Unicode line separator": re.compile("[\x85\u2028\u2029]"),
    "Unicode space": re.compile("[\xa0\u1680\u2000-\u200b\u202f\u205f\u3000]"),
}
# Only entities with their semicolon: html.unescape alone also rewrites "&copy" in "?a=1&copy=2".
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

# By script: the ranges of its letters, and languages that are written in it.
_SCRIPTS = {
    "latin": (
        "A-Za-z\xaa\xba\xc0-\u02af\u0300-\u036f\u1e00-\u1eff\ufb00-\ufb06\uff21-\uff5a",
        "en de fr cs es it pt nl sv da no fi et lv lt pl sk sl hr hu ro tr vi id ca is ga mt",
    ),
    "cyrillic": ("\u0400-\u052f", "ru uk bg mk be kk"),
    "greek": ("\u0370-\u03ff\u1f00-\u1fff", "el"),
    "arabic": ("\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufeff", "ar fa ur"),
    "hebrew": ("\u0590-\u05ff", "he"),
    "indic": ("\u0900-\u0dff", "hi mr ne bn gu pa ta te kn ml si"),
    "hangul": ("\u1100-\u11ff\u3130-\u318f\uac00-\ud7af", "ko"),
    "han": ("\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff", "zh ja"),  # kana too: Japanese mixes them
}
_SCRIPT_OF = {language: script for script, (_, languages) in _SCRIPTS.items() for language in languages.split()}
_OWN = {script: re.compile(f"[{ranges}]") for script, (ranges, _) in _SCRIPTS.items()}
# Letters of other scripts: what is neither in these ranges nor a digit, sign or punctuation.
_OTHER = {
    script: re.compile(f"[^\x00-@\\[-`{{-\xbf\u2000-\u2bff\u3000-\u303f{ranges}]")
    for script, (ranges, _) in _SCRIPTS.items()
}
# Words that are frequent in one of these languages and rare in the others: enough to notice swapped files.
_WORDS = {
    "en": "the of and is are with that this was for not",
    "de": "der die das und ist nicht ein eine mit auf von den",
    "fr": "le la les et est des une dans pour que pas du",
    "cs": "je se na že jsou v s který není pro jako ve",
}
_FREQUENT = {language: frozenset(words.split()) for language, words in _WORDS.items()}


def unescape(line: str) -> str:
    """Undo HTML entities once: `&amp;lt;` becomes `&lt;`."""
    return _ENTITY.sub(lambda match: html.unescape(match[0]), line) if "&" in line else line


def pair_hash(src: str, tgt: str) -> bytes:
    """Return 16 bytes that stand for a pair: two of 40 million pairs share them with a chance of 1 in 10^23."""
    return hashlib.blake2b(f"{src}\n{tgt}".encode(), digest_size=16).digest()


@dataclass
class CleaningStats:
    """How often each repair and each reason occurred, with the first examples of each, and signs of a wrong file.

    Attributes:
        not_utf8_at: number of the first line that is not UTF-8, from 1.
        shifted_at: number of the first line of each chunk whose sides look shifted.
        votes: for source and target, words typical of the side's own language and of the other's.
    """

    read: int = 0
    chunks: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    not_utf8_at: int | None = None
    shifted_at: list[int] = field(default_factory=list)
    votes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, 2), np.int64))

    def drop(self, reason: str, src: str, tgt: str) -> None:
        """Count one dropped (or noted) pair."""
        self.dropped[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append((src[:200], tgt[:200]))

    def add(self, other: "CleaningStats") -> None:
        """Add what a later chunk, or stage, counted."""
        if self.not_utf8_at is None and other.not_utf8_at is not None:
            self.not_utf8_at = self.read + other.not_utf8_at
        self.shifted_at += [self.read + line for line in other.shifted_at]
        self.read += other.read
        self.chunks += other.chunks
        self.dropped += other.dropped
        self.repaired += other.repaired
        self.votes = self.votes + other.votes
        for reason, new in other.examples.items():
            examples = self.examples.setdefault(reason, [])
            examples += new[: EXAMPLES - len(examples)]

    def warnings(self, src: str, tgt: str) -> list[str]:
        """Return what looks wrong with files of these languages, one line each."""
        lines = []
        if self.dropped[NOT_UTF8]:
            lines.append(f"{self.dropped[NOT_UTF8]:,} lines are not UTF-8, the first is line {self.not_utf8_at:,}")
        if self.shifted_at:
            lines.append(
                f"from about line {self.shifted_at[0]:,} the lines of one side look shifted: their lengths fit their "
                f"neighbours' translations better than their own ({len(self.shifted_at)} of {self.chunks} chunks)"
            )
        if (self.votes[:, 1] > 2 * self.votes[:, 0]).all() and self.votes.sum() >= 50:
            lines.append(f"the sides look swapped: {src} text reads like {tgt} and vice versa")
        return lines


def repair(line: str, settings: recipe.Cleaning, stats: CleaningStats) -> str:
    """Return a line unescaped (if wanted) and normalised, and count what was done to it."""
    if settings.unescape and "&" in line:
        plain = unescape(line)
        stats.repaired["HTML entity"] += plain != line
        line = plain
    if line.isprintable() and line.isascii():
        return " ".join(line.split())
    if not line.isprintable():
        for kind, pattern in _REPAIRS.items():
            stats.repaired[kind] += bool(pattern.search(line))
    stats.repaired["NFC"] += not unicodedata.is_normalized("NFC", line)
    return normalise(line)


def foreign(line: str, language: str) -> bool:
    """Return whether less than half of the letters belong to the language's script. Unknown languages never are."""
    script = _SCRIPT_OF.get(language)
    if script is None or not _OTHER[script].search(line):
        return False
    letters = sum(map(str.isalpha, line))
    own = sum(map(str.isalpha, _OWN[script].findall(line)))
    return 2 * own < letters if script != "han" else 4 * own < letters  # one such character stands for a word


@dataclass(frozen=True)
class HeldOut:
    """Hashes of the pairs of dev and test, and of their sources alone, cleaned like training text."""

    pairs: frozenset[bytes]
    sources: frozenset[bytes]


def held_out(splits: Sequence[tuple[list[str], list[str]]], settings: recipe.Cleaning) -> HeldOut:
    """Return the hashes of held-out text that training pairs are compared with."""
    ignored = CleaningStats()
    pairs = [
        (repair(src, settings, ignored), repair(tgt, settings, ignored))
        for src_lines, tgt_lines in splits
        for src, tgt in zip(src_lines, tgt_lines, strict=True)
    ]
    return HeldOut(frozenset(pair_hash(*pair) for pair in pairs), frozenset(pair_hash(src, "") for src, _ in pairs))


@dataclass
class CleanedChunk:
    """One chunk after cleaning: its remaining pairs as UTF-8 lines, their hashes, and what happened to the others."""

    pairs: int
    src: bytes
    tgt: bytes
    hashes: bytes
    stats: CleaningStats


@dataclass(frozen=True)
class Cleaner:
    """Everything needed to clean a chunk, sent to the worker with it."""

    src: str
    tgt: str
    settings: recipe.Cleaning
    held_out: HeldOut

    def __call__(self, chunk: Chunk) -> CleanedChunk:
        """Clean a chunk of raw lines; None stands for a line that was too long to be read."""
        stats, hashes = CleaningStats(len(chunk[0]), chunks=1), []
        src_lines: list[str] = []
        tgt_lines: list[str] = []
        for number, (raw_src, raw_tgt) in enumerate(zip(*chunk, strict=True), 1):
            if raw_src is None or raw_tgt is None:
                stats.drop(LONG_LINE, *(("(too long)" if raw is None else "") for raw in (raw_src, raw_tgt)))
                continue
            try:
                src, tgt = raw_src.decode(), raw_tgt.decode()
            except UnicodeDecodeError:
                stats.drop(NOT_UTF8, *(raw[:200].decode(errors="backslashreplace") for raw in (raw_src, raw_tgt)))
                stats.not_utf8_at = stats.not_utf8_at or number
                continue
            src, tgt = repair(src, self.settings, stats), repair(tgt, self.settings, stats)
            pair = pair_hash(src, tgt)
            reason = self._reason(src, tgt, pair)
            if reason:
                stats.drop(reason, src, tgt)
                continue
            if self.held_out.sources and pair_hash(src, "") in self.held_out.sources:
                stats.drop(SOURCE_HELD_OUT, src, tgt)
            src_lines.append(src)
            tgt_lines.append(tgt)
            hashes.append(pair)
        stats.votes = np.array([_votes(src_lines, self.src, self.tgt), _votes(tgt_lines, self.tgt, self.src)])
        stats.shifted_at = [1] if shifted(src_lines, tgt_lines) else []
        src_text, tgt_text = ("".join(f"{line}\n" for line in lines).encode() for lines in (src_lines, tgt_lines))
        return CleanedChunk(len(hashes), src_text, tgt_text, b"".join(hashes), stats)

    def _reason(self, src: str, tgt: str, pair: bytes) -> str | None:
        if not src or not tgt:
            return EMPTY
        if self.settings.drop_copies and src == tgt:
            return COPY
        if self.settings.check_script and (foreign(src, self.src) or foreign(tgt, self.tgt)):
            return SCRIPT
        return HELD_OUT if pair in self.held_out.pairs else None


def shifted(src: list[str], tgt: list[str]) -> bool:
    """Return whether the lengths of the lines agree better with those of other lines than with their own.

    Lengths of translations correlate at 0.6 to 0.95; lengths of unrelated sentences do not (under 0.2).
    """
    if len(src) < 500:
        return False
    x, y = (np.fromiter(map(len, side), np.float64) for side in (src, tgt))
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    if not scale:
        return False
    straight = (x @ y) / scale
    others = [(x[lag:] @ y[:-lag]) / scale for lag in (1, 2, 3)] + [(x[:-lag] @ y[lag:]) / scale for lag in (1, 2, 3)]
    return bool(max(others) > straight + 0.2)


def _votes(lines: list[str], own: str, other: str) -> tuple[int, int]:
    """Count words typical of a side's own language and of the other's in the first lines of a chunk."""
    if own not in _FREQUENT or other not in _FREQUENT:
        return 0, 0
    words = [word for line in lines[:200] for word in line.lower().split()]
    return sum(word in _FREQUENT[own] for word in words), sum(word in _FREQUENT[other] for word in words)
