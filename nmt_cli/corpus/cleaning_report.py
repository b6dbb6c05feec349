"""Report which pairs were dropped, in tables, in cleaning.json and in warnings."""

from collections import Counter
from pathlib import Path
from typing import Any

from nmt_cli.corpus.bitext import SUFFIXES
from nmt_cli.corpus.cleaning import DROPPED, NOT_UTF8, TURNED, CleaningStats
from nmt_cli.corpus.opening import opened, uncompressed_name
from nmt_cli.corpus.raw_text import RawText
from nmt_cli.corpus.readers import lines_of
from nmt_cli.system import console
from nmt_cli.system.errors import DataError


def dropped(stats: CleaningStats) -> dict[str, Any]:
    """Show the dropped pairs in a table. For cleaning.json, return their counts and those of exchanged sides."""
    reasons, rows = dict[str, dict[str, Any]](), []
    for reason in DROPPED:
        count, examples = stats.dropped[reason], stats.examples.get(reason, [])
        percent = count * (100 / stats.read)
        reasons[reason] = {"pairs": count, "percent": round(percent, 3), "examples": examples}
        if count:
            rows.append((reason, f"{count:,}", f"{percent:.2f} %", " | ".join(examples[0])[:70]))
    if rows:
        console.table(f"cleaning: {stats.read:,} pairs read", ("dropped", "count", "share", "example"), rows)
    if not stats.turned:
        return {"dropped": reasons}
    console.say(f"exchanged the swapped sides of {console.counted(stats.turned, 'pair')}")
    return {"dropped": reasons, "turned": {"pairs": stats.turned, "examples": stats.examples[TURNED]}}


def parts(stats: CleaningStats, names: list[str], left: Any) -> list[dict[str, Any]]:
    """Show the counts of pairs in each part of the corpus in a table, and return them for cleaning.json.

    `left[part]` is the number of pairs after encoding, which drops further pairs that `stats` does not count.
    """
    found, rows = list[dict[str, Any]](), []
    for part, name in enumerate(names):
        dropped = {reason: stats.by_part[part, reason] for reason in DROPPED if stats.by_part[part, reason]}
        read, kept = stats.kept[part] + sum(dropped.values()), int(left[part])
        found.append({"name": name, "read": read, "kept": kept, "dropped": dropped})
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in Counter(dropped).most_common(3))
        rows.append((name[-50:], f"{read:,}", f"{kept:,}", reasons))
    console.table("parts of the corpus", ("part", "read", "kept", "dropped in cleaning"), rows)
    return found


def warn(stats: CleaningStats, text: RawText, parts: list[str], strict: bool) -> list[str]:
    """Print and return warnings about files that are probably wrong. `parts` lists the names of the corpus's parts.

    Raises DataError if over 1 % of the pairs are not UTF-8, or if `strict` is set and there is a warning.
    """
    warnings = stats.warnings() + stats.swapped_sides(parts)
    if stats.dropped[NOT_UTF8] * 100 > stats.read:
        found = f"{_name_not_utf8(text)} is {warnings[0]} ({console.counted(stats.read, 'pair')} in total)"
        raise DataError(f"{found}. Is it Latin-1 or binary? Convert it to UTF-8")
    if strict and warnings:
        raise DataError(f"{warnings[0]}. Correct the files, or run without --strict")
    for warning in warnings:
        console.warn(warning)
    return warnings


def _name_not_utf8(text: RawText) -> str:
    """Return the first training file that is not UTF-8, or the names of all training files if none is found."""
    names = text.splits["train"].name
    for file in text.files:
        kind = SUFFIXES.get(Path(uncompressed_name(file)).suffix.lower(), "text")
        if str(file) in names and kind in ("text", "tsv", "csv", "jsonl"):
            try:
                with opened(file, {}) as content:
                    for line in lines_of(content):
                        (line or b"").decode()
            except UnicodeDecodeError:
                return str(file)[:150]
    return names[:150]


def remaining_pairs(stats: CleaningStats, text: RawText) -> int:
    """Return the number of pairs that were not dropped. Raise DataError if there are none."""
    pairs = stats.read - stats.dropped.total()
    if not pairs:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in stats.dropped.most_common(4))
        found = f"{stats.read:,} read; {reasons}" if reasons else f"none in {text.splits['train'].name}"
        raise DataError(f"no usable pairs: {found}")
    return pairs
