"""Measure how well a model translates a test set in capitals, in title case and in lower case.

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/case_robustness.py MODEL [--src en --tgt de] [--off]

Each row has the BLEU with decoding.case=auto (with --off: off), the number of segments that were searched again in
halves, and the number that stayed untranslated. The reference has the case of the source; only for lower-case sources
it stays unchanged. The share divides the BLEU by that of the plain translation in the same case as the reference.
"""

import argparse
import gzip
import os
import time
from collections.abc import Callable
from pathlib import Path

import sacrebleu

from nmt_cli import Translator
from nmt_cli.corpus import letter_case

Change = Callable[[str, str], str]
CASES: dict[str, tuple[Change, Change]] = {  # changes of the source and of the reference
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
    parser.add_argument("--off", action="store_true", help="set decoding.case to off; capitals then take minutes")
    options = parser.parse_args()
    source, reference = (read(f"test_2016_flickr.{code}")[: options.lines] for code in (options.src, options.tgt))
    mode = "off" if options.off else "auto"
    print("case     BLEU   share  halved  untranslated  seconds")
    with Translator(options.model) as translator:
        plain = [line.text for line in translator.translate(source, case=mode)]
        for name, (change_source, change_reference) in CASES.items():
            references = [[change_reference(line, options.tgt) for line in reference]]
            best = sacrebleu.corpus_bleu([change_reference(line, options.tgt) for line in plain], references).score
            translator.counts.clear()
            begin = time.monotonic()
            lines = [change_source(line, options.src) for line in source]
            found = [line.text for line in translator.translate(lines, case=mode)]
            seconds = time.monotonic() - begin
            score = sacrebleu.corpus_bleu(found, references).score
            counts = translator.counts
            print(
                f"{name:<8} {score:5.2f} {score / best:6.3f} {counts['retried']:7,} {counts['untranslated']:13,} "
                f"{seconds:8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
