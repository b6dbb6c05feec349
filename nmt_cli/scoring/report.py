"""What `score` prints: plain text for people, markdown for a pull request; and what each number compares with."""

import textwrap
from typing import Any

from nmt_cli.errors import printable

# Published figures, by metric and tokens in the references of newstest2014 (3,003 lines): these counts tell the test
# set, whatever its file is called. Source: the paper's Table 2; results published with fairseq and CTranslate2; the
# line NVIDIA fitted through both scales (0.978 x - 0.05).
COMPARABLE = {
    ("bleu", 62_688): "26.9 (OpenNMT-tf base), 28.6 (Ott et al. 2018, big) and other sacreBLEU of newstest2014 en-de. "
    "The paper's 27.3 and 28.4 are another metric, about 26.6 and 27.7 on this scale",
    ("bleu", 77_306): "41.4 (Ott et al. 2018, big) and other sacreBLEU of newstest2014 en-fr. "
    "The paper's 38.1 and 41.8 are another metric",
    ("paper-bleu", 64_496): "the paper's 27.3 (base) and 28.4 (big), and 29.3 (Ott et al. 2018). Not with sacreBLEU. "
    "Their reference had all quotation marks in ASCII: --metric paper-bleu-quotes",
    ("paper-bleu", 81_149): "the paper's 38.1 (base) and 41.8 (big), whose scorer was never published. "
    "Not with sacreBLEU, nor with the 43.2 of Ott et al. 2018 (hyphens split)",
}
SHOWN = 3  # segments of each kind
HEADINGS = {
    "worst": "Worst segments",
    "best": "Best segments",
    "lost": "Most lost against the baseline",
    "gained": "Most gained over the baseline",
}
COMPARISON = ("metric", "baseline", "this", "difference", "p (bootstrap)", "p (randomisation)")


def comparable(entry: dict[str, Any], language: str | None) -> str:
    """Return which published figures a score may be compared with."""
    family = entry["metric"].removesuffix("-quotes")
    if family == "brackets":
        return (
            "F1 by evalb with COLLINS.prm on the same trees; on section 23 of the WSJ with the paper's 91.3 (WSJ only) "
            "and 92.7. What is not a tree, or has another number of words, has all its gold brackets missed"
        )
    known = COMPARABLE.get((family, entry.get("ref_len", 0)))
    if known and "case:mixed" in entry["signature"]:
        return known
    if family == "paper-bleu":
        kind = "tokenised, compound-split" if language == "de" else "Moses-tokenised"
        return f"{kind} BLEU on the same test set. Not with sacreBLEU"
    return "figures with this signature on the same test set"


def extremes(segments: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the worst and best segments by chrF2, and those that differ most from the baseline."""
    ranked = sorted(segments, key=lambda segment: segment["chrf"])
    found = {"worst": ranked[:SHOWN], "best": ranked[::-1][:SHOWN]}
    if "baseline_chrf" in segments[0]:
        ranked = sorted(segments, key=lambda segment: segment["chrf"] - segment["baseline_chrf"])
        found |= {"lost": ranked[:SHOWN], "gained": ranked[::-1][:SHOWN]}
    return found


def _detail(entry: dict[str, Any]) -> str:
    if "complete_match" in entry:
        parts = f"precision={entry['precision']:.2f}, recall={entry['recall']:.2f}, matched={entry['matched']}, "
        parts += f"gold={entry['gold']}, found={entry['found']}, complete match={entry['complete_match']:.2f} %"
        return f"{parts}, not a tree={entry['unparsable']}, wrong number of words={entry['wrong_length']}"
    if "precisions" not in entry:
        return ""
    ratio = "–" if entry["length_ratio"] is None else f"{entry['length_ratio']:.3f}"
    precisions = "/".join(f"{value:.1f}" for value in entry["precisions"])
    lengths = f"hyp_len={entry['hyp_len']}, ref_len={entry['ref_len']}"
    return f"{precisions} (BP={entry['bp']:.3f}, ratio={ratio}, {lengths})"


def _texts(segment: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the labelled texts of a segment, in reading order."""
    rows = [("source", segment["source"])] if "source" in segment else []
    rows += [("reference", reference) for reference in segment["references"]]
    rows += [("hypothesis", segment["hypothesis"])]
    return rows + ([("baseline", segment["baseline"])] if "baseline" in segment else [])


def _points(segment: dict[str, Any]) -> str:
    versus = f", baseline {segment['baseline_chrf']:.1f}" if "baseline_chrf" in segment else ""
    return f"line {segment['line']:,}, chrF2 {segment['chrf']:.1f}{versus}"


def _counts(found: dict[str, Any]) -> str:
    """Return what was scored, and what is odd about it."""
    against = ", ".join(text["name"] for text in found["references"])
    count = found["hypotheses"]["lines"]
    parts = [f"{count:,} line{'s' * (count != 1)}", f"{found['empty']:,} empty"]
    if found["copies"] is not None:
        parts.append(f"{found['copies']:,} copied from the source")
    return f"{found['hypotheses']['name']} against {against}: {', '.join(parts)}"


def _comparisons(found: dict[str, Any]) -> tuple[list[list[str]], str]:
    """Return the rows of the comparison with the baseline, and what to know about them."""
    rows = []
    for row in found["comparisons"]:
        scores = [f"{row[key]:.2f} ± {row[key + '_ci']:.2f}" for key in ("baseline", "score")]
        rows.append([row["name"], *scores, f"{row['difference']:+.2f}", f"{row['p_bs']:.4f}", f"{row['p_ar']:.4f}"])
    equal = found["hypotheses"]["lines"] - found["wins"] - found["losses"]
    wins = f"Segments by chrF2: {found['wins']:,} better, {found['losses']:,} worse, {equal:,} equal."
    return rows, f"{wins} ±: 95 % interval, 1,000 bootstrap samples; randomisation: 10,000 trials."


def text(found: dict[str, Any]) -> str:
    """Return the report as plain text."""
    lines = [_counts(found), ""]
    width = 2 + max(len(entry["name"]) for entry in found["scores"])
    for entry in found["scores"]:
        lines.append(f"{entry['name']:<{width}}{entry['score']:<7.2f}{_detail(entry)}".rstrip())
        about = [entry["signature"], *textwrap.wrap(f"compare with {entry['compare_with']}", 100)]
        lines += [" " * width + line for line in about]
    if found["comparisons"]:
        rows, about_rows = _comparisons(found)
        widths = [max(map(len, column)) for column in zip(COMPARISON, *rows, strict=True)]
        lines += ["", f"Against {found['baseline']['name']}"]
        for row in (COMPARISON, *rows):
            cells = [f"{cell:>{size}}" for cell, size in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join([f"{row[0]:<{widths[0]}}", *cells]))
        lines.append(about_rows)
    if "lengths" in found:
        lines += ["", "BLEU by words in the reference"]
        lines += [f"  {row['words']:<10}{row['bleu']:6.2f}  {row['segments']:,} segments" for row in found["lengths"]]
    for key, heading in HEADINGS.items():
        for i, segment in enumerate(found.get(key, [])):
            lines += ["", *([heading] if i == 0 else []), f"  {_points(segment)}"]
            lines += [f"    {label:<12}{printable(value, 1000)}" for label, value in _texts(segment)]
    if found["gated"]:
        lines += ["", *(f"gate failed: {failure}" for failure in found["failures"] or [])]
        lines += [] if found["failures"] else ["gate passed"]
    return "\n".join(lines)


def _cell(value: object) -> str:
    """Return text that cannot break out of a cell of a markdown table."""
    escaped = printable(value, 1000).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;")
    for mark in "|`*_[]~#@":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped


def _table(header: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    """Return a markdown table: the first column is text, the others are aligned right."""
    rule = "|".join([":--", *["--:"] * (len(header) - 1)])
    return ["", f"| {' | '.join(header)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]


def markdown(found: dict[str, Any]) -> str:
    """Return the report as GitHub's markdown, for a job summary or a comment."""
    verdict = "" if not found["gated"] else " ❌" if found["failures"] else " ✅"
    first = found["scores"][0]
    lines = [f"### {first['name']} {first['score']:.2f}{verdict}"]
    lines += [f"\n**Gate failed:** {_cell(failure)}" for failure in found["failures"]]
    lines += [f"\n**Warning:** {_cell(warning)}" for warning in found["warnings"]]
    lines += ["", _cell(_counts(found)), "", "| metric | score | counts and signature | compare with |"]
    lines.append("|:--|--:|:--|:--|")
    for entry in found["scores"]:
        signature = "`" + entry["signature"].replace("|", "\\|") + "`"
        about = "<br>".join(filter(None, [_detail(entry), signature]))
        lines.append(f"| {entry['name']} | **{entry['score']:.2f}** | {about} | {_cell(entry['compare_with'])} |")
    if found["comparisons"]:
        rows, about_rows = _comparisons(found)
        lines += ["", f"**Against {_cell(found['baseline']['name'])}**", *_table(COMPARISON, rows), "", about_rows]
    if "lengths" in found:
        rows = [[row["words"], f"{row['bleu']:.2f}", f"{row['segments']:,}"] for row in found["lengths"]]
        lines += _table(("words in the reference", "BLEU", "segments"), rows)
    for key, heading in HEADINGS.items():
        if key in found:
            lines += ["", f"<details><summary>{heading}</summary>", ""]
            for segment in found[key]:
                texts = [[label, _cell(value)] for label, value in _texts(segment)]
                lines += ["", f"| {_points(segment)} | |", "|:--|:--|", *(f"| {a} | {b} |" for a, b in texts)]
            lines += ["", "</details>"]
    return "\n".join(lines)
