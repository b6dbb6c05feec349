"""Measure whether tags enclose the translations of the phrases that they enclosed in the source (Multi30k EN-DE).

    NMT_CORPORA=... PYTHONPATH=. python tests/benchmarks/markup.py MODEL
    PYTHONPATH=. python tests/benchmarks/markup.py MODEL --training train.en train.fr --test test.en test.fr

Each line has a phrase in <b>, in <a href>, or in <i> with a part of it in <b>. The judge does not use attention. It
trains two lexicons on the training text (IBM Model 1, one per direction) and links source and target words that are
each other's best match with over 90 % of the probability. It ignores function words and unlinked words. A phrase is
right if the element contains all of its linked words and no others.

The baseline is LibreTranslate's method with the same model: it translates each element alone and searches for the
result in the translation of the line. If an element is not found, one version of LibreTranslate leaves the line
untranslated, and another translates its pieces one by one.
"""

import argparse
import functools
import html
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from terms import Lexicon, bleu, frequent, is_content, lexicon, read

from nmt_cli import Translator
from nmt_cli.corpus.tokenizer import normalize
from nmt_cli.documents import html as html_format
from nmt_cli.documents.alignment import translate_aligned
from nmt_cli.documents.placement import place_marks
from nmt_cli.documents.segment import render, segments_of
from nmt_cli.translation.lines import chunks_of
from nmt_cli.translation.options import SearchOptions

_TAG = re.compile(r"<[^>]*>")
_WORD = re.compile(r"\w+|[^\w\s]")
LONGEST, CERTAIN = 4, 0.9


@dataclass
class Tree:
    """An element; `first` and `last` are the positions of its first and last words in the line."""

    open: str
    children: "list[Tree | str]"
    first: int = 0
    last: int = 0

    @property
    def text(self) -> str:
        return "".join(each if isinstance(each, str) else each.text for each in self.children)

    @property
    def elements(self) -> "list[Tree]":
        inner = [each for each in self.children if isinstance(each, Tree)]
        return [element for each in inner for element in (each, *each.elements)]

    def write(self) -> str:
        inner = "".join(html.escape(each) if isinstance(each, str) else each.write() for each in self.children)
        close = f"</{self.open[1:].split()[0].rstrip('>')}>" if self.open else ""
        return f"{self.open}{inner}{close}"


def marked(source: str, number: int, rng: random.Random) -> Tree:
    """Return a line with a phrase of up to four words as an element; in every third line, it has a nested element.

    A phrase starts and ends with a word, not with punctuation.
    """
    spans = [(match.start(), match.end()) for match in _WORD.finditer(source)]
    ends = [i for i, (start, _) in enumerate(spans) if source[start].isalnum()]

    def phrase(first: int, last: int) -> tuple[int, int]:
        begin = rng.choice([i for i in ends if first <= i <= last])
        return begin, rng.choice([i for i in ends if begin <= i <= min(last, begin + LONGEST - 1)])

    def element(open_: str, first: int, last: int, inner: list[Tree | str] | None = None) -> Tree:
        return Tree(open_, inner or [source[spans[first][0] : spans[last][1]]], first, last)

    first, last = phrase(0, len(spans) - 1)
    start, stop = spans[first][0], spans[last][1]
    if number % 3 == 0:
        whole = element("<b>", first, last)
    elif number % 3 == 1:
        whole = element(f'<a class=link href="https://example.org/?line={number}&amp;x=%20">', first, last)
    else:
        own_first, own_last = phrase(first, last)
        before, after = source[start : spans[own_first][0]], source[spans[own_last][1] : stop]
        inner = [before, element("<b>", own_first, own_last), after]
        whole = element("<i>", first, last, [each for each in inner if each])
    return Tree("", [each for each in (source[:start], whole, source[stop:]) if each])


def ours(translator: Translator, lines: list[str]) -> list[str]:
    documents = [html_format.parse(line) for line in lines]
    segments = [segment for parts in documents for segment in segments_of(parts)]
    results = translate_aligned(translator, chunks_of(segment.text for segment in segments), SearchOptions())
    for segment, aligned in zip(segments, results, strict=True):
        segment.result = place_marks(segment, aligned)
    return [render(parts) for parts in documents]


def by_search(tree: Tree, translate: Callable[[str], str], pieces: bool) -> Tree:
    """Translate a line as LibreTranslate does. If the search fails, translate piece by piece, or not at all."""
    if not tree.elements or any(each.elements for each in tree.elements):
        return Tree(tree.open, [_by_search(each, translate, pieces) for each in tree.children], tree.first, tree.last)
    whole, found = translate(tree.text), list[tuple[int, str, Tree]]()
    for element in tree.elements:
        text = translate(element.text)
        found.append((whole.find(text), text, element))
    found.sort(key=lambda each: each[0])
    children, end = list[Tree | str](), 0
    for at, text, element in found:
        if at < end:
            return Tree(tree.open, [_by_search(each, translate, pieces) for each in tree.children]) if pieces else tree
        children += [whole[end:at], Tree(element.open, [text])]
        end = at + len(text)
    return Tree(tree.open, [*children, whole[end:]])


def _by_search(each: Tree | str, translate: Callable[[str], str], pieces: bool) -> Tree | str:
    if isinstance(each, Tree):
        return by_search(each, translate, pieces)
    spaces = " " * each.startswith(" "), " " * each.endswith(" ")
    return translate(each).join(spaces) if each.strip() else each


@dataclass
class Judge:
    forward: Lexicon  # P(target word | source word)
    backward: Lexicon  # P(source word | target word)
    common: tuple[set[str], set[str]]  # function words
    words: int = 0  # linked words in judged phrases
    wrong: int = 0  # linked words on the wrong side of a tag

    def phrase(self, source: list[str], element: Tree, target: list[tuple[str, bool]]) -> bool | None:
        """Return whether all linked words are on the right side of the element's tags; None if none belongs inside.

        `target` has the words of the translation, each with a flag for those inside the element.
        """
        links = [[self._weight(each, word) for each in source] for word, _ in target]
        certain = known = wrong = 0
        for (_, is_inside), weights in zip(target, links, strict=True):
            best = max(range(len(source)), key=weights.__getitem__)
            rivals = sum(other[best] >= weights[best] for other in links)
            if weights[best] < CERTAIN * sum(weights) or not weights[best] or rivals > 1:
                continue
            belongs = element.first <= best <= element.last
            known += belongs
            wrong += is_inside != belongs
            certain += 1
        if not known:
            return None
        self.words += certain
        self.wrong += wrong
        return not wrong

    def _weight(self, source: str, target: str) -> float:
        if not (is_content(source, self.common[0]) and is_content(target, self.common[1])):
            return 0.0
        return self.forward.get((source, target), 0.0) * self.backward.get((target, source), 0.0)


def inside(text: str, open_: str) -> Iterator[tuple[str, bool]]:
    """Yield each word of a marked-up text, and whether it begins inside an element opened by `open_`."""
    plain, flags, stack, end = "", list[bool](), list[str](), 0
    for match in [*_TAG.finditer(text), None]:
        piece = html.unescape(text[end : match.start() if match else len(text)])
        plain += piece
        flags += [open_ in stack] * len(piece)
        if match:
            end = match.end()
            stack = stack[:-1] if match[0].startswith("</") else [*stack, match[0]]
    for word in _WORD.finditer(plain):
        yield word[0], flags[word.start()]


def is_balanced(text: str) -> bool:
    stack = list[str]()
    for tag in _TAG.findall(text):
        if not tag.startswith("</"):
            stack.append(re.split(r"[\s>]", tag[1:])[0])
        elif not stack or stack.pop() != tag[2:-1]:
            return False
    return not stack


def plain_of(text: str) -> str:
    return normalize(html.unescape(_TAG.sub("", text)))


def report(
    name: str, sources: list[str], trees: list[Tree], outputs: list[str], references: list[str], judge: Judge
) -> None:
    judge.words = judge.wrong = 0
    verdicts, balanced, equal, repeated, same = Counter[bool | None](), 0, 0, 0, 0
    for source, tree, out in zip(sources, trees, outputs, strict=True):
        tags = [set(_TAG.findall(each)) for each in (tree.write(), out)]
        balanced, equal = balanced + is_balanced(out), equal + (tags[0] == tags[1])
        repeated += len(_TAG.findall(out)) > len(_TAG.findall(tree.write()))
        untranslated = plain_of(out) == normalize(source)
        same += untranslated
        for element in tree.elements:
            own = judge.phrase(_WORD.findall(source), element, list(inside(out, element.open)))
            verdicts[False if untranslated else own] += 1
    judged, lines = verdicts[True] + verdicts[False], len(sources)
    print(f"{name}: balanced {balanced / lines:.1%}, tags and attributes equal {equal / lines:.1%}")
    print(
        f"  correct phrases {verdicts[True]} of {judged} ({verdicts[True] / judged:.1%}), not judged {verdicts[None]}"
    )
    print(f"  wrong words {judge.wrong} of {judge.words}, untranslated lines {same}")
    print(f"  lines with repeated tags {repeated}, BLEU without tags {bleu(list(map(plain_of, outputs)), references)}")


def both_sides(files: list[Path] | None, stem: str) -> list[list[str]]:
    """Return the lines of two files, or of a Multi30k split."""
    if files:
        return [file.read_text(encoding="utf-8").splitlines() for file in files]
    return [read(f"{stem}.{language}") for language in ("en", "de")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--show", type=int, default=0, help="print this many lines that the judge finds wrong")
    for name in ("training", "test"):
        parser.add_argument(
            f"--{name}", nargs=2, type=Path, metavar=("SRC", "TGT"), help="text to use instead of Multi30k"
        )
    options = parser.parse_args()
    training = both_sides(options.training, "train")
    common = frequent(training[0]), frequent(training[1])
    judge = Judge(lexicon(*training), lexicon(*training[::-1]), common)
    sources, references = both_sides(options.test, "test_2016_flickr")
    sources, rng = [normalize(line) for line in sources], random.Random(1)
    trees = [marked(source, number, rng) for number, source in enumerate(sources)]
    with Translator(options.model, precision=options.precision, workers=1) as translator:
        plain = [each.text for each in translator.translate(sources)]
        outputs = ours(translator, [tree.write() for tree in trees])
        print(f"{translator.backend.about}; {len(sources)} lines, {sum(len(tree.elements) for tree in trees)} phrases")
        print(f"BLEU of the plain lines {bleu(plain, references)}; ", end="")
        print(f"{sum(a != plain_of(b) for a, b in zip(plain, outputs, strict=True))} lines differ in more than tags")
        report("nmt", sources, trees, outputs, references, judge)
        translate = functools.cache(lambda text: next(translator.translate([text])).text)
        for pieces in (False, True):
            found = [by_search(tree, translate, pieces).write() for tree in trees]
            report(f"LibreTranslate's method{', by pieces' * pieces}", sources, trees, found, references, judge)
    for source, tree, out in zip(sources, trees, outputs, strict=True):
        words = _WORD.findall(source)
        own = [judge.phrase(words, element, list(inside(out, element.open))) for element in tree.elements]
        if False in own and options.show:
            options.show -= 1
            print(f"  {tree.write()}\n    {out}")


if __name__ == "__main__":
    main()
