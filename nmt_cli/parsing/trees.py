"""Bracketed trees as the paper parses with them (section 6.3): read, as one line of labels, and written again.

A tree is read in the style of the Penn Treebank, `( (S (NP-SBJ (PRP It)) (VP (VBZ works)) (. .)) )`, and becomes the
words of the sentence and its linear form, `S NP PRP /NP VP VBZ /VP . /S`: parts of speech stay, words go, every phrase
is closed by its name (Vinyals et al. 2015, as in the code released with the paper). Gone for good are the outermost
bracket if it is empty, TOP, ROOT or S1; function tags and indices (NP-SBJ-1, NP=2: NP); and empty elements (-NONE-)
with the phrases that hold nothing else. Words stay as they are written, -LRB- and all.
"""

import filecmp
import functools
import gzip
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nmt_cli import artefact, recipe
from nmt_cli.corpus.cleaning import normalise
from nmt_cli.errors import DataError, UsageError

_ROOTS = ("", "TOP", "ROOT", "S1")
_PART = re.compile(r"\([^\s()]*|\)|[^\s()]+", re.ASCII)  # only ASCII space separates: a word may hold a no-break space


class Sentence(NamedTuple):
    """The words of a sentence and its tree's linear form."""

    words: list[str]
    labels: list[str]


class Spans(NamedTuple):
    """The phrases of a linear form as (label, first word, word after the last), and one part of speech per word."""

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


def _close(label: str, content: list[str | Sentence], outermost: bool) -> Sentence:
    """Return the words and labels of a bracket that holds one word, or brackets that are closed already."""
    root = outermost and label in _ROOTS
    if not content:
        raise ValueError(f"a bracket {label!r} holds nothing")
    inside = [item for item in content if isinstance(item, Sentence)]
    if len(inside) < len(content):
        (word, *_) = (item for item in content if isinstance(item, str))
        if len(content) > 1 or root:
            raise ValueError(f"the word {word!r} has no bracket with a part of speech of its own")
        return Sentence([], []) if label == "-NONE-" else Sentence([word], [label])
    words, labels = ([item for sentence in inside for item in sentence[side]] for side in (0, 1))
    return Sentence(words, [label, *labels, f"/{label}"] if labels and not root else labels)


def _add(part: str, unclosed: list[tuple[str, list[str | Sentence]]]) -> Sentence | None:
    """Add "(LABEL", ")" or a word to the open brackets; return the sentence where that closes the last of them."""
    if part.startswith("("):
        label = _label(part[1:])
        if unclosed and not label:
            raise ValueError("a bracket inside the tree has no label")
        unclosed.append((label, []))
    elif not unclosed:
        raise ValueError(f"{part!r} stands outside all brackets")
    elif part != ")":
        unclosed[-1][1].append(part)
    else:
        label, content = unclosed.pop()
        sentence = _close(label, content, outermost=not unclosed)
        if not unclosed:
            for closing in {label for label in sentence.labels if label.startswith("/")}:
                if sentence.labels.count(closing) != sentence.labels.count(closing[1:]):  # X X /X: which has the word?
                    raise ValueError(f"{closing[1:]!r} is both a phrase and a part of speech in one tree")
            return sentence
        unclosed[-1][1].append(sentence)
    return None


def read(lines: Iterable[str], name: str) -> Iterator[Sentence]:
    """Yield the trees of a file, be there one a line, several on one, or one over many lines.

    Raises:
        DataError: something is not a tree; names the line and the reason.
    """
    unclosed: list[tuple[str, list[str | Sentence]]] = []
    number = first = 0  # the line, and that on which the tree begins
    for number, line in enumerate(lines, 1):
        for part in _PART.findall(line):
            first = first if unclosed else number
            try:
                sentence = _add(part, unclosed)
            except ValueError as error:
                what = "a tree" if first == number else f"part of the tree that begins on line {first:,}"
                raise DataError(f"{name}, line {number:,} is not {what}: {error}") from None
            if sentence:
                yield sentence
    if unclosed:
        where = f"line {first:,} holds" if first == number else f"lines {first:,} to {number:,} hold"
        raise DataError(f"{name}, {where} no whole tree: {len(unclosed)} of its brackets are never closed")


def spans(labels: list[str]) -> Spans:
    """Return the phrases and parts of speech of a linear form.

    A label that is closed anywhere is a phrase everywhere; the others are parts of speech, one for each word.

    Raises:
        ValueError: it is no tree; says why.
    """
    closed = {label[1:] for label in labels if label.startswith("/")}
    tree, unclosed = Spans([], []), list[tuple[str, int]]()
    for label in labels:
        if label.startswith("/"):
            name, first = unclosed.pop() if unclosed else ("nothing", -1)
            if name != label[1:]:
                raise ValueError(f"{label} closes {name}")
            if first == len(tree.tags):
                raise ValueError(f"{name} holds no word")
            tree.phrases.append((name, first, len(tree.tags)))
        elif label in closed:
            unclosed.append((label, len(tree.tags)))
        else:
            tree.tags.append(label)
    if unclosed:
        raise ValueError(f"{unclosed[-1][0]} is not closed")
    return tree


def bracketed(words: list[str], labels: list[str]) -> str:
    """Return the tree as one line of brackets under TOP, as evalb reads it: `read` gives the same sentence again.

    Raises:
        ValueError: the labels are no tree, or one of another number of words, or there are no words.
    """
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


def _lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}, line {number:,} is not UTF-8. Convert it, for example with iconv") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is truncated or corrupt: {error}. Copy it again") from None


def linearise(corpus: recipe.Corpus, directory: Path) -> recipe.Corpus:
    """Write the words and linear forms of a corpus of trees as text, and return the corpus section of these files.

    Raises:
        DataError: a file (plain or .gz) holds something else than trees.
        UsageError: the two sides of the corpus are not the same files.
    """
    changes: dict[str, Any] = {"format": "text"}
    artefact.make_directory(directory)
    for split in ("train", "dev", "test"):
        files = getattr(corpus, f"{split}_src")
        if files != getattr(corpus, f"{split}_tgt"):
            raise UsageError(
                f"a file of trees holds both sides: corpus.{split}_src and corpus.{split}_tgt must be equal"
            )
        if files:
            paths = [str(path) for path in _write(files if split == "train" else [files], directory, split)]
            sides = ([path] for path in paths) if split == "train" else paths
            changes |= dict(zip((f"{split}_src", f"{split}_tgt"), sides, strict=True))
    return corpus.model_copy(update=changes)


def _write(files: list[str], directory: Path, split: str) -> list[Path]:
    """Write the sides of a split; a file that has the same content already stays as it is."""
    paths = [directory / f"{split}.{side}" for side in Sentence._fields]
    with tempfile.TemporaryDirectory(dir=directory) as place:
        new = [Path(place) / path.name for path in paths]
        with new[0].open("wb") as words, new[1].open("wb") as labels:
            for file in files:
                for sentence in read(_lines(Path(file)), file):
                    words.write(f"{' '.join(sentence.words)}\n".encode())
                    labels.write(f"{' '.join(sentence.labels)}\n".encode())
        for path, written in zip(paths, new, strict=True):
            if not (path.exists() and filecmp.cmp(path, written, shallow=False)):
                written.replace(path)
    return paths
