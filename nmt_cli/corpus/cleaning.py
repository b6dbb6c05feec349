"""Repair lines and drop pairs. A pair with several faults is counted only for the first fault found.

The faults are checked in the order of `DROPPED`, with one exception: the last two, which concern synthetic text, are
checked before all others. This module checks only the faults from LONG_LINE to HELD_OUT.
"""

import functools
import hashlib
import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from nmt_cli.corpus import filters
from nmt_cli.corpus.readers import Chunk
from nmt_cli.corpus.tokenizer import normalize, without_first_tokens
from nmt_cli.recipe import schema
from nmt_cli.recipe.cleaning import Cleaning
from nmt_cli.system.console import counted

# Reasons to drop a pair, as stored in cleaning.json.
LOW_SCORE = "score below the minimum"
LONG_LINE = "line over the byte limit"
NOT_UTF8 = "not UTF-8"
EMPTY = "empty side"
COPY = "source equals target"
SCRIPT = "wrong script"
HELD_OUT = "in dev or test"
# `stages.encode_chunk` checks the next four, which need tokens or the whole corpus.
DUPLICATE = "duplicate pair"
TOO_LONG = "too many tokens"
RATIO = "length ratio"
NEAR_DUPLICATE = "near-twin of dev or test"
# The module `synthetic` checks the last two.
LOOPING = "synthetic side loops"
OUTLYING = "synthetic side of outlying length"
DROPPED = (
    *(LONG_LINE, LOW_SCORE, NOT_UTF8, EMPTY, COPY, SCRIPT, *filters.REASONS, HELD_OUT),
    *(DUPLICATE, TOO_LONG, RATIO, NEAR_DUPLICATE, LOOPING, OUTLYING),
)
SHIFTED = "sides shifted"  # leads only to a warning
TURNED = "swapped sides, turned"  # these pairs are kept, with their sides exchanged
EXAMPLES = 3  # maximum number of examples kept for each reason
LEAST_SWAPPED = 5  # minimum number of swapped pairs in a sample for a warning
SHARE_SWAPPED = 0.05  # a warning also requires that more than this share of the sample is swapped

# Matches only entities with a semicolon. On a whole line, html.unescape would also replace "&copy" in "?a=1&copy=2".
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

# Pattern that matches the Unicode names of a script's letters -> languages written in that script.
_SCRIPTS = {
    "LATIN": "en de fr cs es it pt nl sv da no fi et lv lt pl sk sl hr hu ro tr vi id ca is ga mt",
    **{"CYRILLIC": "ru uk bg mk be kk", "GREEK": "el", "ARABIC": "ar fa ur", "HEBREW": "he", "DEVANAGARI": "hi mr ne"},
    **{"BENGALI": "bn", "GUJARATI": "gu", "GURMUKHI": "pa", "TAMIL": "ta", "TELUGU": "te", "KANNADA": "kn"},
    **{"MALAYALAM": "ml", "SINHALA": "si", "HANGUL": "ko", "CJK|HIRAGANA|KATAKANA": "zh ja"},
}
_SCRIPT_OF = {language: script for script, languages in _SCRIPTS.items() for language in languages.split()}


def pair_hash(src: str, tgt: str, repetition: int = 0) -> bytes:
    """Return a 16-byte hash of a pair. Among 40 million pairs, the probability of a collision is below 1 in 10^23."""
    salt = repetition.to_bytes(8, "little")  # a file listed twice has two salts, so its pairs are not duplicates
    return hashlib.blake2b(f"{src}\n{tgt}".encode(), digest_size=16, salt=salt).digest()


@dataclass
class CleaningStats:
    """Counts of dropped pairs by reason, with the first examples of each."""

    read: int = 0  # pairs
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    first_line: dict[str, int] = field(default_factory=dict)  # NOT_UTF8 or SHIFTED -> number of the first such line
    kept: Counter[int] = field(default_factory=Counter, compare=False)  # pairs by part of the corpus
    by_part: Counter[tuple[int, str]] = field(default_factory=Counter, compare=False)  # dropped pairs by (part, reason)
    sides: Counter[tuple[int, bool]] = field(default_factory=Counter, compare=False)  # sampled pairs by (part, swapped)
    turned: int = 0  # swapped pairs whose sides were exchanged

    def drop(self, reason: str, src: str, tgt: str) -> None:
        self.dropped[reason] += 1
        self.show(reason, src, tgt)

    def show(self, reason: str, src: str, tgt: str) -> None:
        """Keep a pair as an example for a reason if the reason has fewer than EXAMPLES examples."""
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append((src[:200], tgt[:200]))

    def add(self, other: "CleaningStats") -> None:
        """Add the counts of the next pairs of the same text."""
        for problem, line in other.first_line.items():
            self.first_line.setdefault(problem, self.read + line)
        self.read += other.read
        self.kept += other.kept
        self.by_part += other.by_part
        self.sides += other.sides
        self.turned += other.turned
        self.dropped += other.dropped
        for reason, new in other.examples.items():
            self.examples[reason] = [*self.examples.get(reason, []), *new][:EXAMPLES]

    def warnings(self) -> list[str]:
        """Return warnings that files may be wrong, one line each."""
        lines = []
        if first := self.first_line.get(NOT_UTF8):
            lines.append(f"not UTF-8: {counted(self.dropped[NOT_UTF8], 'line')}, the first is line {first:,}")
        if first := self.first_line.get(SHIFTED):
            lines.append(f"from about line {first:,} on, one side seems to be shifted relative to the other")
        return lines

    def swapped_sides(self, names: Iterable[str]) -> list[str]:
        """Return a warning for each part of the corpus that has many swapped pairs. `names` lists the parts' names."""
        found = []
        for part, name in enumerate(names):
            swapped, straight = (self.sides[part, value] for value in (True, False))
            if swapped >= LEAST_SWAPPED and swapped > SHARE_SWAPPED * (swapped + straight):
                share = f"{swapped / (swapped + straight):.0%} of the pairs of {name}"
                found.append(f"{share} seem to have swapped sides. Exchange the files, or set corpus.filters.swapped")
        return found


def repair(line: str, settings: Cleaning) -> str:
    """Return the normalized line, with HTML entities replaced if `settings.unescape`."""
    if settings.unescape and "&" in line:  # replace once: "&amp;lt;" becomes "&lt;"
        line = _ENTITY.sub(lambda match: html.unescape(match[0]), line)
    return normalize(line)


@functools.cache
def _foreign_letter(char: str, script: str) -> bool:
    return char.isalpha() and not re.search(script, unicodedata.name(char, ""))


def foreign(line: str, language: str) -> bool:
    """Return whether more than half of a line's letters do not belong to the script of its language.

    For Chinese and Japanese, the limit is three quarters. For unknown languages, return False.
    """
    script = _SCRIPT_OF.get(language)
    if script is None or (script == "LATIN" and line.isascii()):
        return False
    foreign_letters = {char for char in set(line) if _foreign_letter(char, script)}
    others = sum(map(foreign_letters.__contains__, line)) if foreign_letters else 0
    letters = sum(map(str.isalpha, line)) if others else 0
    weight = 4 if script.startswith("CJK") else 2  # a CJK character is about a word, so a quarter is enough
    return weight * (letters - others) < letters


def held_out_hashes(pairs: Iterable[tuple[str, str]], *settings: Cleaning) -> frozenset[bytes]:
    """Repair each held-out pair once per way of repairing text in `settings`. Return the hashes of the results."""
    repairs = different_repairs(settings)
    return frozenset(pair_hash(repair(src, each), repair(tgt, each)) for src, tgt in pairs for each in repairs)


def different_repairs(settings: Iterable[Cleaning]) -> list[Cleaning]:
    """Return `settings` without repetitions: one for each way of repairing lines."""
    return list({each.unescape: each for each in settings}.values())


def unusable(src: str, tgt: str, corpus: schema.Corpus) -> str | None:
    """Return the first reason to drop a repaired pair, or None. Does not compare it with other pairs."""
    if not src or not tgt:
        return EMPTY
    if corpus.cleaning.drop_copies and src == tgt:
        return COPY
    if corpus.cleaning.check_script and (foreign(src, corpus.src) or foreign(tgt, corpus.tgt)):
        return SCRIPT
    return next(filters.faults(src, tgt, corpus), None)


def has_low_score(corpus: schema.Corpus, chunk: Chunk, index: int) -> bool:
    """Return whether the score of a pair is below the minimum of its entry of corpus.sources."""
    lowest = None if chunk.source is None else corpus.sources[chunk.source].min_score
    return lowest is not None and not (chunk.scores[index] or 0) >= lowest  # None counts as 0; NaN is too low


def read_pair(corpus: schema.Corpus, chunk: Chunk, index: int) -> tuple[str, str, str | None]:
    """Return the repaired pair and None, or excerpts of both lines and the reason to drop the pair.

    `corpus` must have the settings of the chunk's source (see `Corpus.of_source`).
    """
    raw = chunk.src[index], chunk.tgt[index]
    if raw[0] is None or raw[1] is None:
        src, tgt = ("(too long)" if line is None else "" for line in raw)
        return src, tgt, LONG_LINE
    if not has_low_score(corpus, chunk, index):
        try:
            return repair(raw[0].decode(), corpus.cleaning), repair(raw[1].decode(), corpus.cleaning), None
        except UnicodeDecodeError:
            reason = NOT_UTF8
    else:
        reason = LOW_SCORE
    src, tgt = (line[:200].decode(errors="backslashreplace") for line in (raw[0], raw[1]))
    return src, tgt, reason


def clean_chunk(
    corpus: schema.Corpus, held_out: frozenset[bytes], chunk: Chunk
) -> tuple[bytes, bytes, bytes, CleaningStats]:
    """Return the source text and target text of the remaining pairs, their hashes, and counts of the dropped pairs."""
    stats, hashes = CleaningStats(len(chunk.src)), list[bytes]()
    prefix, section = corpus.prefix(chunk.source), corpus.of_source(chunk.source)
    if chunk.languages:
        prefix, section = "", corpus.model_copy(update=dict(zip(("src", "tgt"), chunk.languages, strict=True)))
    sides: tuple[list[str], list[str]] = ([], [])
    for index in range(len(chunk.src)):
        src, tgt, reason = read_pair(section, chunk, index)
        if reason == NOT_UTF8:
            stats.first_line.setdefault(NOT_UTF8, index + 1)
        if not reason and filters.turns(src, tgt, section):
            stats.turned += 1
            stats.show(TURNED, src, tgt)
            src, tgt = tgt, src
        if reason := reason or unusable(src, tgt, section):
            stats.drop(reason, src, tgt)
        elif pair_hash(without_first_tokens(src), tgt) in held_out:  # held-out pairs have no first tokens
            stats.drop(HELD_OUT, src, tgt)
        else:
            sides[0].append(prefix + src)
            sides[1].append(tgt)
            hashes.append(pair_hash(prefix + src, tgt, chunk.repetition))
    stats.kept[chunk.part] = len(hashes)
    stats.by_part.update({(chunk.part, reason): count for reason, count in stats.dropped.items()})
    stats.sides.update((chunk.part, swapped) for swapped in filters.sample_of_sides(*sides, section))
    if shifted(*sides):
        stats.first_line[SHIFTED] = 1
    src_text, tgt_text = ("".join(f"{line}\n" for line in lines).encode() for lines in sides)
    return src_text, tgt_text, b"".join(hashes), stats


def shifted(src: list[str], tgt: list[str]) -> bool:
    """Return whether one side seems to be shifted by one to three lines. Return False for fewer than 500 pairs.

    In shifted text, the lengths of source lines correlate better with the lengths of target lines one to three
    positions away than with those at the same position.
    """
    if len(src) < 500:
        return False
    x, y = (np.fromiter(map(len, side), np.float64) for side in (src, tgt))
    x -= x.mean()
    y -= y.mean()
    others = [x[lag:] @ y[:-lag] for lag in (1, 2, 3)] + [x[:-lag] @ y[lag:] for lag in (1, 2, 3)]
    # Lengths of translations correlate at 0.6 to 0.95, lengths of unrelated sentences below 0.2.
    return bool(max(others) > x @ y + 0.2 * np.sqrt((x @ x) * (y @ y)))
