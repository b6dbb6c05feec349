"""What `prepare` repairs in a line and why it drops a pair, for the first reason in the order of `DROPPED`."""

import functools
import hashlib
import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from nmt_cli.corpus.readers import Chunk
from nmt_cli.corpus.tokenizer import normalise
from nmt_cli.recipe import schema
from nmt_cli.system.console import counted

LONG_LINE, NOT_UTF8, EMPTY, COPY = "line over the byte limit", "not UTF-8", "empty side", "source equals target"
SCRIPT, HELD_OUT, DUPLICATE = "wrong script", "in dev or test", "duplicate pair"
TOO_LONG, RATIO, NEAR_TWIN = "too many tokens", "length ratio", "near-twin of dev or test"
LOOPING, OUTLYING = "synthetic side loops", "synthetic side of outlying length"
# Four need the whole corpus or tokens, and are noticed by later stages; the last two are of synthetic text, before.
DROPPED = (LONG_LINE, NOT_UTF8, EMPTY, COPY, SCRIPT, HELD_OUT, DUPLICATE, TOO_LONG, RATIO, NEAR_TWIN, LOOPING, OUTLYING)
SHIFTED = "sides shifted"
EXAMPLES = 3

# Only entities with their semicolon: html.unescape alone also rewrites "&copy" in "?a=1&copy=2".
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")

# A word in the Unicode names of a script's letters, and the languages written in it.
_SCRIPTS = {
    "LATIN": "en de fr cs es it pt nl sv da no fi et lv lt pl sk sl hr hu ro tr vi id ca is ga mt",
    **{"CYRILLIC": "ru uk bg mk be kk", "GREEK": "el", "ARABIC": "ar fa ur", "HEBREW": "he", "DEVANAGARI": "hi mr ne"},
    **{"BENGALI": "bn", "GUJARATI": "gu", "GURMUKHI": "pa", "TAMIL": "ta", "TELUGU": "te", "KANNADA": "kn"},
    **{"MALAYALAM": "ml", "SINHALA": "si", "HANGUL": "ko", "CJK|HIRAGANA|KATAKANA": "zh ja"},
}
_SCRIPT_OF = {language: script for script, languages in _SCRIPTS.items() for language in languages.split()}


def pair_hash(src: str, tgt: str, repetition: int = 0) -> bytes:
    """Return 16 bytes that stand for a pair: two of 40 million pairs share them with a chance of 1 in 10^23."""
    salt = repetition.to_bytes(8, "little")  # in a file that is listed again the pair is no duplicate; 0: no salt
    return hashlib.blake2b(f"{src}\n{tgt}".encode(), digest_size=16, salt=salt).digest()


@dataclass
class CleaningStats:
    """How often each reason to drop a pair occurred, with the first examples of each."""

    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    first_line: dict[str, int] = field(default_factory=dict)  # of signs of a wrong file, from 1

    def drop(self, reason: str, src: str, tgt: str) -> None:
        self.dropped[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append((src[:200], tgt[:200]))

    def add(self, other: "CleaningStats") -> None:
        for what, line in other.first_line.items():
            self.first_line.setdefault(what, self.read + line)
        self.read += other.read
        self.dropped += other.dropped
        for reason, new in other.examples.items():
            self.examples[reason] = [*self.examples.get(reason, []), *new][:EXAMPLES]

    def warnings(self) -> list[str]:
        """Return what looks wrong with the files, one line each."""
        lines = []
        if first := self.first_line.get(NOT_UTF8):
            lines.append(f"not UTF-8: {counted(self.dropped[NOT_UTF8], 'line')}, the first is line {first:,}")
        if first := self.first_line.get(SHIFTED):
            lines.append(f"from about line {first:,} the lines of one side look shifted against those of the other")
        return lines


def repair(line: str, settings: schema.Cleaning) -> str:
    """Return a line unescaped (if wanted) and normalised."""
    if settings.unescape and "&" in line:  # once: "&amp;lt;" becomes "&lt;"
        line = _ENTITY.sub(lambda match: html.unescape(match[0]), line)
    return normalise(line)


@functools.cache
def _foreign_letter(char: str, script: str) -> bool:
    return char.isalpha() and not re.search(script, unicodedata.name(char, ""))


def foreign(line: str, language: str) -> bool:
    """Return whether less than half of the letters belong to the language's script. Unknown languages never are."""
    script = _SCRIPT_OF.get(language)
    if script is None or (script == "LATIN" and line.isascii()):
        return False
    strange = {char for char in set(line) if _foreign_letter(char, script)}
    others = sum(map(strange.__contains__, line)) if strange else 0
    letters = sum(map(str.isalpha, line)) if others else 0
    own_counts = 4 if script.startswith("CJK") else 2  # one such character stands for a word
    return own_counts * (letters - others) < letters


def held_out_hashes(pairs: Iterable[tuple[str, str]], settings: schema.Cleaning) -> frozenset[bytes]:
    """Return the hashes of the pairs of dev and test, cleaned like training text."""
    return frozenset(pair_hash(repair(src, settings), repair(tgt, settings)) for src, tgt in pairs)


def unusable(src: str, tgt: str, corpus: schema.Corpus) -> str | None:
    """Return why a repaired pair is dropped by itself, whatever else there is; None where it is not."""
    if not src or not tgt:
        return EMPTY
    if corpus.cleaning.drop_copies and src == tgt:
        return COPY
    if corpus.cleaning.check_script and (foreign(src, corpus.src) or foreign(tgt, corpus.tgt)):
        return SCRIPT
    return None


def clean_chunk(
    corpus: schema.Corpus, held_out: frozenset[bytes], chunk: Chunk
) -> tuple[bytes, bytes, bytes, CleaningStats]:
    """Return the lines of both sides and the hashes of the pairs that remain, and what happened to the others."""
    stats, hashes = CleaningStats(len(chunk.src)), list[bytes]()
    sides: tuple[list[str], list[str]] = ([], [])
    for number, raw in enumerate(zip(chunk.src, chunk.tgt, strict=True), 1):
        if raw[0] is None or raw[1] is None:
            stats.drop(LONG_LINE, *("(too long)" if line is None else "" for line in raw))
            continue
        try:
            src, tgt = raw[0].decode(), raw[1].decode()
        except UnicodeDecodeError:
            stats.drop(NOT_UTF8, *(line[:200].decode(errors="backslashreplace") for line in (raw[0], raw[1])))
            stats.first_line.setdefault(NOT_UTF8, number)
            continue
        src, tgt = repair(src, corpus.cleaning), repair(tgt, corpus.cleaning)
        if reason := unusable(src, tgt, corpus):
            stats.drop(reason, src, tgt)
        elif pair_hash(src, tgt) in held_out:
            stats.drop(HELD_OUT, src, tgt)
        else:
            sides[0].append(src)
            sides[1].append(tgt)
            hashes.append(pair_hash(src, tgt, chunk.repetition))
    if shifted(*sides):
        stats.first_line[SHIFTED] = 1
    src_text, tgt_text = ("".join(f"{line}\n" for line in lines).encode() for lines in sides)
    return src_text, tgt_text, b"".join(hashes), stats


def shifted(src: list[str], tgt: list[str]) -> bool:
    """Return whether the lengths of the lines agree better with those of other lines than with their own."""
    if len(src) < 500:
        return False
    x, y = (np.fromiter(map(len, side), np.float64) for side in (src, tgt))
    x, y = x - x.mean(), y - y.mean()
    others = [x[lag:] @ y[:-lag] for lag in (1, 2, 3)] + [x[:-lag] @ y[lag:] for lag in (1, 2, 3)]
    # Lengths of translations correlate at 0.6 to 0.95; lengths of unrelated sentences do not (under 0.2).
    return bool(max(others) > x @ y + 0.2 * np.sqrt((x @ x) * (y @ y)))
