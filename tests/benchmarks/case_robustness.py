"""Measure translation of a test set in capitals, in title case and in small letters.

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/case_robustness.py MODEL [--src en --tgt de]

Each row is sacreBLEU with decoding.case off and on. The reference is in the case of the source, except for small
letters, so plain text is scored in that case, too: the last column is the row's share of it.
"""

import argparse
import gzip
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import sacrebleu

from nmt_cli import Translator
from nmt_cli.corpus import letter_case

Change = Callable[[str, str], str]
CASES: dict[str, tuple[Change, Change]] = {  # of the source and of the reference
    "plain": (lambda text, _: text, lambda text, _: text),
    "upper": (letter_case.upper, letter_case.upper),
    "title": (letter_case.title, letter_case.title),
    "lower": (letter_case.lower, lambda text, _: text),
}


def read(name: str) -> list[str]:
    with gzip.open(Path(os.environ["NMT_CORPORA"]) / "multi30k" / f"{name}.gz", "rt", encoding="utf-8") as file:
        return file.read().rstrip("\n").split("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--src", default="en")
    parser.add_argument("--tgt", default="de")
    parser.add_argument("--lines", type=int, help="use the first lines only")
    options = parser.parse_args()
    source, reference = (read(f"test_2016_flickr.{code}")[: options.lines] for code in (options.src, options.tgt))
    with Translator(options.model) as translator:
        plain = [line.text for line in translator.translate(source, case="off")]
        print("case     BLEU off     on  share   loops off, on  untranslated off, on   seconds off, on")
        for name, (change_source, change_reference) in CASES.items():
            lines = [change_source(line, options.src) for line in source]
            references = [[change_reference(line, options.tgt) for line in reference]]
            best = sacrebleu.corpus_bleu([change_reference(line, options.tgt) for line in plain], references).score
            scores, seconds, loops, failed = [], [], [], []
            for mode in ("off", "auto"):
                translator.counts.clear()
                begin = time.monotonic()
                found = [line.text for line in translator.translate(lines, case=mode)]
                seconds.append(time.monotonic() - begin)
                scores.append(sacrebleu.corpus_bleu(found, references).score)
                counts: Counter[str] = translator.counts
                loops.append(counts["retried"])
                failed.append(counts["untranslated"])
            off, on = scores
            shown = "{:>5}, {:<5}"
            print(
                f"{name:<8} {off:8.2f} {on:6.2f} {on / best:6.3f}   {shown.format(*loops)}     "
                f"{shown.format(*failed)}            {seconds[0]:.1f}, {seconds[1]:.1f}"
            )


if __name__ == "__main__":
    main()
