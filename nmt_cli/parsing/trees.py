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
from typing import Any

from nmt_cli import artefact, recipe
from nmt_cli.corpus.tokenizer import normalise
from nmt_cli.errors import DataError, UsageError

Sentence = tuple[list[str], list[str]]  # the words, and the labels of the linear form
Phrase = tuple[str, int, int]  # label, first word, word after the last
_PART = re.compile(r"\([^\s()]*|\)|[^\s()]+", re.ASCII)  # only ASCII space separates: a word may hold a no-break space


@functools.lru_cache(4096)
def _label(written: str) -> str:
    """Return a label without function tags and indices; -LRB- and its like are labels as a whole."""
    label = written if written[:1] in "-=" else re.sub("[-=].*", "", written)
    if label.startswith("/"):
        raise ValueError(f"label {label!r} begins with the slash that closes phrases")
    if label != normalise(label):
        raise ValueError(f"label {label!r} holds characters that cleaning would change")
    return label


def _tree(part: str, parts: Iterator[str], outermost: bool = False) -> Sentence:
    """Read the bracket that `part` opens up to its end."""
    if not part.startswith("("):
        raise ValueError(f"{part!r} stands outside all brackets")
    label, word, inside = _label(part[1:]), "", list[Sentence]()
    root = outermost and label in ("", "TOP", "ROOT", "S1")
    if not (label or root):
        raise ValueError("a bracket inside the tree has no label")
    while (part := next(parts, "")) != ")":
        if not part:
            raise ValueError("the file ends before all brackets are closed")
        if word or (not part.startswith("(") and (inside or root)):
            raise ValueError(f"the word {word or part!r} has no bracket with a part of speech of its own")
        if part.startswith("("):
            inside.append(_tree(part, parts))
        else:
            word = part
    if word:
        return ([], []) if label == "-NONE-" else ([word], [label])
    if not inside:
        raise ValueError(f"a bracket {label!r} holds nothing")
    words, labels = ([item for sentence in inside for item in sentence[side]] for side in (0, 1))
    return words, [label, *labels, f"/{label}"] if labels and not root else labels


def read(lines: Iterable[bytes], name: str) -> Iterator[Sentence]:
    """Yield the trees of a UTF-8 file, be there one a line, several on one, or one over many lines.

    Raises:
        DataError: something is not a tree; names the line and the reason.
    """
    number = first = 0  # the line that is read, and the one on which its tree begins; 0: between trees

    def parts() -> Iterator[str]:
        nonlocal number
        for line in lines:
            number += 1
            yield from _PART.findall(line.decode("utf-8-sig" if number == 1 else "utf-8"))

    stream = parts()
    try:
        for part in stream:
            first = number
            words, labels = _tree(part, stream, outermost=True)
            for closing in {label for label in labels if label.startswith("/")}:
                if labels.count(closing) != labels.count(closing[1:]):  # X X /X: which X has the word?
                    raise ValueError(f"{closing[1:]!r} is both a phrase and a part of speech in one tree")
            yield words, labels
            first = 0
    except (ValueError, RecursionError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        what = f"part of the tree that begins on line {first:,}" if 0 < first < number else "a tree"
        raise DataError(f"{name}, line {number:,} is not {what}: {error}") from None


def spans(labels: list[str]) -> tuple[list[Phrase], list[str]]:
    """Return the phrases of a linear form, and one part of speech per word.

    A label that is closed anywhere is a phrase everywhere; the others are parts of speech.

    Raises:
        ValueError: it is no tree; says why.
    """
    closed = {label[1:] for label in labels if label.startswith("/")}
    phrases, tags, unclosed = list[Phrase](), list[str](), list[tuple[str, int]]()
    for label in labels:
        if label.startswith("/"):
            name, first = unclosed.pop() if unclosed else ("nothing", -1)
            if name != label[1:]:
                raise ValueError(f"{label} closes {name}")
            if first == len(tags):
                raise ValueError(f"{name} holds no word")
            phrases.append((name, first, len(tags)))
        elif label in closed:
            unclosed.append((label, len(tags)))
        else:
            tags.append(label)
    if unclosed:
        raise ValueError(f"{unclosed[-1][0]} is not closed")
    return phrases, tags


def bracketed(words: list[str], labels: list[str]) -> str:
    """Return the tree as one line of brackets under TOP, as evalb reads it: `read` gives the same sentence again.

    Raises:
        ValueError: the labels are no tree, or one of another number of words, or there are no words.
    """
    tags = len(spans(labels)[1])
    if not words or tags != len(words):
        raise ValueError(f"the tree has {tags} words, the sentence {len(words)}")
    closed, rest, parts = {label[1:] for label in labels if label.startswith("/")}, iter(words), ["(TOP"]
    for label in labels:
        if label.startswith("/"):
            parts[-1] += ")"
        else:
            parts.append(f"({label}" if label in closed else f"({label} {next(rest)})")
    return " ".join(parts) + ")"


def linearise(corpus: recipe.Corpus, directory: Path) -> recipe.Corpus:
    """Write the words and linear forms of a corpus of trees as text, and return the corpus section of these files.

    Raises:
        DataError: a file (plain or .gz) holds something else than trees.
        UsageError: the two sides of the corpus are not the same files.
    """
    changes: dict[str, Any] = {"format": "text"}
    artefact.make_directory(directory)
    for split in ("train", "dev", "test"):
        src, tgt = f"{split}_src", f"{split}_tgt"
        files = getattr(corpus, src)
        if files != getattr(corpus, tgt):
            raise UsageError(f"a file of trees holds both sides: corpus.{src} and corpus.{tgt} must be the same")
        if split == "train":
            changes[src], changes[tgt] = ([path] for path in _write(files, directory, split))
        elif files:
            changes[src], changes[tgt] = _write([files], directory, split)
    return corpus.model_copy(update=changes)


def _write(files: list[str], directory: Path, split: str) -> list[str]:
    """Write the two sides of a split; a file that has the same content already stays as it is."""
    names = [f"{split}.words", f"{split}.labels"]
    with tempfile.TemporaryDirectory(dir=directory) as place:
        with Path(place, names[0]).open("wb") as words, Path(place, names[1]).open("wb") as labels:
            for file in files:
                with (gzip.open if file.endswith(".gz") else open)(file, "rb") as lines:
                    for sentence in read(lines, file):
                        words.write(f"{' '.join(sentence[0])}\n".encode())
                        labels.write(f"{' '.join(sentence[1])}\n".encode())
        for name in names:
            if not (directory / name).exists() or not filecmp.cmp(directory / name, Path(place, name), shallow=False):
                Path(place, name).replace(directory / name)
    return [str(directory / name) for name in names]
