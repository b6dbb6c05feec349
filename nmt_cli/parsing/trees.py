"""Bracketed trees as the paper parses with them (section 6.3): read, as one line of labels, and written again.

A tree is read in the style of the Penn Treebank, `( (S (NP-SBJ (PRP It)) (VP (VBZ works)) (. .)) )`, and becomes the
words of the sentence and its linear form, `S NP PRP /NP VP VBZ /VP . /S`: parts of speech stay, words go, every phrase
is closed by its name (Vinyals et al. 2015, as in the code released with the paper). Gone for good are the outermost
bracket if it is empty, TOP, ROOT or S1; function tags and indices (NP-SBJ-1, NP=2: NP); and empty elements (-NONE-)
with the phrases that hold nothing else. Words stay as they are written, -LRB- and all.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nmt_cli.corpus.cleaning import normalise
from nmt_cli.errors import DataError, printable

ROOTS = ("", "TOP", "ROOT", "S1")
EMPTY_ELEMENT = "-NONE-"
# Only ASCII space separates: a no-break space may be part of a word.
_TOKEN = re.compile(r"\(([^\s()]*)|\)|[^\s()]+", re.ASCII)


class Sentence(NamedTuple):
    """The words of a sentence and its tree's linear form: both lists are joined with single spaces in a corpus."""

    words: list[str]
    labels: list[str]


class Spans(NamedTuple):
    """What a linear form says: phrases as (label, first word, word after the last), and one part of speech per word."""

    phrases: list[tuple[str, int, int]]
    tags: list[str]


@functools.lru_cache(4096)
def _label(written: str) -> str:
    """Return a label without function tags and indices; -LRB- and its like are labels as a whole."""
    label = written if written[:1] in "-=" else re.sub("[-=].*", "", written)
    if label.startswith("/"):
        raise ValueError(f"label {label!r} begins with the slash that closes phrases")
    if label != normalise(label):
        raise ValueError(f"label {label!r} holds characters that cleaning would change")
    return label


class _Bracket:
    """A bracket that is open: its label, its place in the linear form (-1: none), and what it holds so far."""

    def __init__(self, label: str, place: int) -> None:
        self.label, self.place, self.word, self.children = label, place, "", 0


class _Reading:
    """The tree that is being read, part by part; ValueErrors say why it is none."""

    def __init__(self) -> None:
        self.open: list[_Bracket] = []
        self.sentence = Sentence([], [])

    def take(self, part: str) -> Sentence | None:
        """Take "(LABEL", ")" or a word; return the sentence if that closed the outermost bracket."""
        if part.startswith("("):
            self._opened(part[1:])
        elif part == ")":
            self._closed()
            if not self.open:
                done, self.sentence = self.sentence, Sentence([], [])
                _check_closable(done.labels)
                return done
        else:
            self._word(part)
        return None

    def _opened(self, written: str) -> None:
        label, place = _label(written), len(self.sentence.labels)
        if self.open:
            if self.open[-1].word:
                raise ValueError(f"the bracket of the word {self.open[-1].word!r} holds another bracket")
            if not label:
                raise ValueError("a bracket inside the tree has no label")
            self.open[-1].children += 1
        if self.open or label not in ROOTS:
            self.sentence.labels.append(label)
        else:
            place = -1
        self.open.append(_Bracket(label, place))

    def _word(self, word: str) -> None:
        if not self.open:
            raise ValueError(f"{word!r} stands outside all brackets")
        top = self.open[-1]
        if top.word or top.children or top.place < 0:
            raise ValueError(f"the word {word!r} has no bracket with a part of speech of its own")
        top.word = word
        if top.label == EMPTY_ELEMENT:
            self.sentence.labels.pop()
        else:
            self.sentence.words.append(word)

    def _closed(self) -> None:
        if not self.open:
            raise ValueError("a closing bracket has no opening one")
        top, labels = self.open.pop(), self.sentence.labels
        if not top.word and not top.children:
            raise ValueError(f"a bracket {top.label!r} holds nothing")
        if top.word or top.place < 0:
            return
        if len(labels) == top.place + 1:
            labels.pop()  # it held nothing but empty elements
        else:
            labels.append(f"/{top.label}")


def _check_closable(labels: list[str]) -> None:
    """Refuse a tree whose linear form would say something else: `X X /X` hides which X has the word."""
    for closing in {label for label in labels if label.startswith("/")}:
        if labels.count(closing) != labels.count(closing[1:]):
            raise ValueError(f"{closing[1:]!r} is both a phrase and a part of speech in one tree")


def read(lines: Iterable[str], name: str, max_bytes: int = 1 << 20) -> Iterator[Sentence]:
    """Yield the trees of a file, be there one a line, several on one, or one over many lines.

    Args:
        lines: of the file, in order.
        name: of the file, for messages.
        max_bytes: a tree that takes more characters than that has lost a bracket.

    Raises:
        DataError: something is not a tree; names the line and the reason.
    """
    reading, number, began, size = _Reading(), 0, 0, 0
    for number, line in enumerate(lines, 1):
        for match in _TOKEN.finditer(line):
            if not reading.open:
                began, size = number, 0
            try:
                sentence = reading.take(match[0])
            except ValueError as error:
                tree = "a tree" if began == number else f"part of the tree that begins on line {began:,}"
                raise DataError(f"{name}, line {number:,} is not {tree}: {printable(error, 120)}") from None
            if sentence is not None:
                yield sentence
        size += len(line)
        if reading.open and size > max_bytes:
            break
    if reading.open:
        where = f"line {began:,} holds" if began == number else f"lines {began:,} to {number:,} hold"
        raise DataError(f"{name}, {where} no whole tree: {len(reading.open)} of its brackets are never closed")


def spans(labels: Iterable[str]) -> Spans:
    """Return the phrases and parts of speech of a linear form.

    A label that is closed anywhere is a phrase everywhere; the others are parts of speech, one for each word.

    Raises:
        ValueError: it is no tree; says why.
    """
    labels = list(labels)
    closed = {label[1:] for label in labels if label.startswith("/")}
    found, open_ = Spans([], []), list[tuple[str, int]]()
    for label in labels:
        if label.startswith("/"):
            name, first = open_.pop() if open_ else ("nothing", -1)
            if name != label[1:]:
                raise ValueError(f"{label} closes {name}")
            if first == len(found.tags):
                raise ValueError(f"{name} holds no word")
            found.phrases.append((name, first, len(found.tags)))
        elif label in closed:
            open_.append((label, len(found.tags)))
        else:
            found.tags.append(label)
    if open_:
        raise ValueError(f"{open_[-1][0]} is not closed")
    return found


def bracketed(sentence: Sentence) -> str:
    """Return the tree as one line of brackets under TOP, as evalb reads it: `read` gives the same sentence again.

    Raises:
        ValueError: the labels are no tree, or one of another number of words, or there are no words.
    """
    words, labels = sentence
    tags = len(spans(labels).tags)
    if not words or tags != len(words):
        raise ValueError(f"the tree has {tags} words, the sentence {len(words)}")
    closed, rest, parts = {label[1:] for label in labels if label.startswith("/")}, iter(words), ["(TOP"]
    for label in labels:
        if label.startswith("/"):
            parts[-1] += ")"
        else:
            parts.append(f"({label}" if label in closed else f"({label} {next(rest)})")
    return " ".join(parts) + ")"
