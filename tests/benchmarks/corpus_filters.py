"""Put known faults into captions and news; measure the share of pairs that each filter drops, and its CPU time.

    NMT_CORPORA=... PYTHONPATH=.:tests/benchmarks python tests/benchmarks/corpus_filters.py [--detectors]

Each number is the percentage of the row's pairs that a filter drops. The row "none" has no faults, so its numbers are
false alarms. --detectors instead compares eldc with py3langid. For each range of line lengths in letters, it prints the
percentage of false alarms on lines in the expected language, and the recall on lines in the two others. py3langid
rejects a line if the line's margin exceeds the margins of all but one in a thousand lines in the expected language.
"""

import argparse
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from near_twins import multi30k, news

from nmt_cli.corpus import filters, language_id
from nmt_cli.recipe import schema

Pairs = list[tuple[str, str]]
LENGTHS = (1, 7), (8, 15), (16, 30), (31, 60), (61, 10_000)  # letters
draw = random.Random(1)


def texts(corpora: Path) -> dict[str, tuple[str, Pairs]]:
    captions = multi30k(corpora, "train")
    named = {"captions EN-DE": ("de", captions)}
    for code in ("de", "fr"):
        named[f"news EN-{code.upper()}"] = code, news(corpora, f"{code}-en", "test")
    return {name: (code, list(zip(*sides, strict=True))[:6000]) for name, (code, sides) in named.items()}


def with_other_digit(line: str) -> str:
    places = [i for i, char in enumerate(line) if char.isdecimal()]
    i = draw.choice(places)
    return line[:i] + draw.choice([digit for digit in "0123456789" if digit != line[i]]) + line[i + 1 :]


def looped(line: str) -> str:
    words = line.split()
    start = draw.randrange(len(words))
    return " ".join(words[:start] + words[start : start + 3] * 5)


def garbled(line: str) -> str:
    """Return a line with two thirds of its letters replaced by digits and symbols, as in tables and code."""
    return "".join(
        draw.choice("0123456789.|/{}_#") if char.isalpha() and draw.random() < 0.67 else char for char in line
    )


def faults(pairs: Pairs, foreign: list[str]) -> dict[str, Pairs]:
    numbered = [(src, tgt) for src, tgt in pairs if all(any(map(str.isdecimal, side)) for side in (src, tgt))]
    return {
        "none": pairs,
        "swapped": [(tgt, src) for src, tgt in pairs],
        "target in another language": [(src, line) for (src, _), line in zip(pairs, foreign, strict=False)],
        "source in another language": [(line, tgt) for (_, tgt), line in zip(pairs, foreign, strict=False)],
        "misaligned by one": [(src, tgt) for (src, _), (_, tgt) in itertools.pairwise(pairs)],
        "a digit changed": [(src, with_other_digit(tgt)) for src, tgt in numbered],
        "target in capitals": [(src, tgt.upper()) for src, tgt in pairs],
        "target loops": [(src, looped(tgt)) for src, tgt in pairs],
        "target garbled": [(src, garbled(tgt)) for src, tgt in pairs],
    }


def measure(named: dict[str, tuple[str, Pairs]]) -> None:
    print(
        "| text | fault | pairs | "
        + " | ".join(filters.REASONS)
        + " | any |\n|--|--|"
        + "--:|" * (len(filters.REASONS) + 2)
    )
    french = [tgt for _, tgt in named["news EN-FR"][1]]
    german = [tgt for _, tgt in named["news EN-DE"][1]]
    for name, (code, pairs) in named.items():
        corpus = schema.Corpus(src="en", tgt=code, filters=filters.ADVISED)
        for fault, wrong in faults(pairs, french if code == "de" else german).items():
            found = [list(filters.faults(*pair, corpus)) for pair in wrong]
            counts = Counter(reason for reasons in found for reason in reasons)
            shares = [100 * counts[reason] / len(wrong) for reason in filters.REASONS]
            shares.append(100 * sum(map(bool, found)) / len(wrong))
            print(f"| {name} | {fault} | {len(wrong):,} | " + " | ".join(f"{share:.2f}" for share in shares) + " |")


def measure_time(named: dict[str, tuple[str, Pairs]]) -> None:
    off = schema.Filters()
    for name, (code, pairs) in named.items():
        row = []
        for setting in [None, *filters.REASONS.values()]:
            chosen = off.model_copy(update={setting: getattr(filters.ADVISED, setting)} if setting else {})
            corpus = schema.Corpus(src="en", tgt=code).model_copy(update={"filters": chosen})
            seconds = []
            for _ in range(3):
                start = time.process_time()
                for pair in pairs:
                    any(filters.faults(*pair, corpus))
                seconds.append(time.process_time() - start)
            best = min(seconds)
            row.append(f"{setting or 'all off'} {1e6 * best / len(pairs):.1f}")
        print(f"{name}, microseconds of CPU for a pair: {', '.join(row)}")


def compare_detectors(named: dict[str, tuple[str, Pairs]]) -> None:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    lines = [("en", src) for _, pairs in named.values() for src, _ in pairs[:1000]]
    lines += [(code, tgt) for code, pairs in named.values() for _, tgt in pairs[:1000]]
    lines += [(code, " ".join(line.split()[: draw.randint(1, 5)])) for code, line in lines]  # beginnings
    letters = [sum(map(str.isalpha, line)) for _, line in lines]
    ranked = [dict(identifier.rank(line)) for _, line in lines]
    print("| detector | letters | lines | false alarms | recall |\n|--|--|--:|--:|--:|")
    for low, high in LENGTHS:
        inside = [i for i, count in enumerate(letters) if low <= count <= high]
        if not inside:
            continue
        margins = {
            code: [max(ranked[i].values()) - ranked[i].get(code, 0) for i in inside] for code in ("en", "de", "fr")
        }
        right = sorted(margins[lines[i][0]][at] for at, i in enumerate(inside))
        threshold = right[-1 - len(right) // 1000]
        judged: dict[str, Callable[[int, str], bool]] = {
            "eldc, sure": lambda at, code, inside=inside: language_id.is_foreign(lines[inside[at]][1], code),
            "eldc, likeliest": lambda at, code, inside=inside: not language_id.is_in(lines[inside[at]][1], code),
            f"py3langid, margin over {threshold:.2f}": lambda at, code, m=margins, t=threshold: m[code][at] > t,
        }
        for name, wrong in judged.items():
            alarms = sum(wrong(at, lines[i][0]) for at, i in enumerate(inside))
            others = [(at, code) for at, i in enumerate(inside) for code in ("en", "de", "fr") if code != lines[i][0]]
            recall = sum(wrong(*other) for other in others) / len(others)
            shares = f"{100 * alarms / len(inside):.2f} | {100 * recall:.1f}"
            print(f"| {name} | {low} to {high} | {len(inside):,} | {shares} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detectors", action="store_true")
    named = texts(Path(os.environ["NMT_CORPORA"]))
    if parser.parse_args().detectors:
        compare_detectors(named)
    else:
        measure(named)
        measure_time(named)


if __name__ == "__main__":
    main()
