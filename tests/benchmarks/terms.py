"""Measure translation with terms on Multi30k EN-DE: the share of terms met, and the cost in BLEU and time.

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/terms.py MODEL

Each line has one or two terms. They are word pairs from an IBM Model 1 lexicon, trained here, that occur in the source
and in the reference. About half of the terms are missing from the translation without terms, if there are enough. Then
each line gets one wrong term: a word of its source with a random word of the references.
"""

import argparse
import gzip
import os
import random
import statistics
import time
from collections import Counter
from pathlib import Path

import numpy as np
import sacrebleu

from nmt_cli import Terms, Translator
from nmt_cli.corpus.terms import Term, words
from nmt_cli.translation.options import SearchOptions

ITERATIONS, LEAST, ROUNDS = 5, 0.05, 5
FUNCTION_WORDS = 80  # the most frequent words of each side, which are not used as terms

Lexicon = dict[tuple[str, str], float]


def read(name: str) -> list[str]:
    with gzip.open(Path(os.environ["NMT_CORPORA"]) / "multi30k" / f"{name}.gz", "rt", encoding="utf-8") as file:
        return file.read().rstrip("\n").split("\n")


def lexicon(sources: list[str], targets: list[str]) -> Lexicon:
    """Return P(target word | source word) by IBM Model 1, with an empty source word."""
    sides = [[["", *words(line)] for line in sources], [[*words(line)] for line in targets]]
    names = [list(dict.fromkeys(word for line in side for word in line)) for side in sides]
    numbers = [{word: number for number, word in enumerate(side)} for side in names]
    keys, groups, group = [], [], 0
    for source, target in zip(*sides, strict=True):
        src, tgt = (np.array([table[w] for w in line]) for table, line in zip(numbers, (source, target), strict=True))
        keys.append((src[None] * len(names[1]) + tgt[:, None]).ravel())
        groups.append(np.repeat(np.arange(group, group + len(tgt)), len(src)))
        group += len(tgt)
    pairs, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    groups_N, source_of = np.concatenate(groups), pairs // len(names[1])
    p = np.ones(len(pairs))
    for _ in range(ITERATIONS):
        shares = p[inverse] / np.bincount(groups_N, p[inverse])[groups_N]
        counts = np.bincount(inverse, shares)
        p = counts / np.bincount(source_of, counts)[source_of]
    likely = np.flatnonzero(p >= LEAST)
    return {(names[0][pairs[i] // len(names[1])], names[1][pairs[i] % len(names[1])]): float(p[i]) for i in likely}


def frequent(lines: list[str]) -> set[str]:
    return {word for word, _ in Counter(word for line in lines for word in words(line)).most_common(FUNCTION_WORDS)}


def is_content(word: str, common: set[str]) -> bool:
    return word.isalpha() and len(word) > 2 and word not in common


def choose(
    sources: list[str], references: list[str], plain: list[str], table: Lexicon, common: tuple[set[str], set[str]]
) -> dict[int, list[Term]]:
    """Return terms by line, alternately one and two per line. Lines without suitable words have no entry.

    Terms present in the plain translation and terms missing from it are balanced.
    """
    chosen, absent = dict[int, list[Term]](), 0
    for i, (source, reference, hypothesis) in enumerate(zip(sources, references, plain, strict=True)):
        translation, found = set(words(hypothesis)), dict[str, str]()
        for target in words(reference):
            if is_content(target, common[1]):
                best = max(words(source), key=lambda word: table.get((word, target), 0.0))
                if is_content(best, common[0]) and (best, target) in table:
                    found.setdefault(best, target)
        missing = [(s, t) for s, t in found.items() if t not in translation]
        present = [(s, t) for s, t in found.items() if t in translation]
        number = 1 + len(chosen) % 2
        wanted = missing + present if 2 * absent <= sum(map(len, chosen.values())) else present + missing
        if len(wanted) >= number:
            absent += sum(t not in translation for _, t in wanted[:number])
            chosen[i] = [Term(s, (t,)) for s, t in wanted[:number]]
    return chosen


def translated(translator: Translator, lines: list[str], terms: list[list[Term]]) -> tuple[list[str], float]:
    """Return the translations and their CPU time in seconds."""
    made = {id(each): Terms(each) if each else None for each in terms}
    lists, start = [made[id(each)] for each in terms], time.process_time()
    pending = [translator.submit(line, SearchOptions(terms=each)) for line, each in zip(lines, lists, strict=True)]
    texts = [each.result().text for each in pending]
    return texts, time.process_time() - start


def met(texts: list[str], terms: list[list[Term]]) -> str:
    all_ = [term.form_in(text) is not None for text, each in zip(texts, terms, strict=True) for term in each]
    return f"{sum(all_)} of {len(all_)} ({sum(all_) / len(all_):.1%})"


def bleu(texts: list[str], references: list[str]) -> str:
    return f"{sacrebleu.corpus_bleu(texts, [references]).score:.2f}"


def ratio(translator: Translator, lines: list[str], terms: list[list[Term]]) -> str:
    """Return the ratio of CPU times with and without terms: the median and the range over alternating runs."""
    ratios = []
    for _ in range(ROUNDS):
        plain = translated(translator, lines, [[] for _ in lines])[1]
        ratios.append(translated(translator, lines, terms)[1] / plain)
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()
    training = read("train.en"), read("train.de")
    sources, references = read("test_2016_flickr.en"), read("test_2016_flickr.de")
    table, common = lexicon(*training), (frequent(training[0]), frequent(training[1]))
    with Translator(options.model, precision=options.precision, workers=1) as translator:
        plain, _ = translated(translator, sources, [[] for _ in sources])
        own = dict(list(choose(sources, references, plain, table, common).items())[: options.lines])
        lines, refs, before = ([side[i] for i in own] for side in (sources, references, plain))
        terms = list(own.values())
        after, _ = translated(translator, lines, terms)
        print(f"{translator.backend.about}; {len(lines)} lines")
        print(f"terms from the reference: {met(before, terms)} without, {met(after, terms)} with")
        print(f"BLEU {bleu(before, refs)} without, {bleu(after, refs)} with")
        print(f"time ratio on these lines: {ratio(translator, lines, terms)}")
        failed = [i for i in range(len(lines)) if before[i] != after[i]]
        print(f"time ratio on the {len(failed)} lines that were searched again: ", end="")
        print(ratio(translator, [lines[i] for i in failed], [terms[i] for i in failed]))
        others = [source for i, source in enumerate(sources) if i not in own]
        absent = [Term(f"absent{i}", ("nirgends",)) for i in range(1000)]
        print(f"time ratio on {len(others)} lines without any of 1,000 terms: ", end="")
        print(ratio(translator, others, [absent] * len(others)))
        rng, any_word = random.Random(1), sorted({w for line in references for w in words(line)} - common[1])
        any_word = [word for word in any_word if is_content(word, set())]
        wrong = []
        for line in lines:
            content = [word for word in words(line) if is_content(word, common[0])]
            wrong.append([Term(rng.choice(content), (rng.choice(any_word),))])
        with_wrong, _ = translated(translator, lines, wrong)
        print(f"wrong terms: {met(before, wrong)} without, {met(with_wrong, wrong)} with")
        print(f"BLEU {bleu(with_wrong, refs)}; time ratio {ratio(translator, lines, wrong)}")
        for i in rng.sample(range(len(lines)), 8):
            print(f"  {terms[i]}\n    {before[i]}\n    {after[i]}\n  {wrong[i]}\n    {with_wrong[i]}")


if __name__ == "__main__":
    main()
