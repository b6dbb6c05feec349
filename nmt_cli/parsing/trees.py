"""Convert bracketed trees (Penn Treebank) to words and labels for training, and labels back to trees.

`( (S (NP-SBJ (PRP It)) (VP (VBZ works)) (. .)) )` becomes the words `It works .` and the labels
`S NP PRP /NP VP VBZ /VP . /S` (Vinyals et al. 2015), the form that "Attention Is All You Need" uses in section 6.3.
Three things are removed: the outermost bracket, if it has no label or its label is TOP, ROOT or S1; function tags and
indices (NP-SBJ-1, NP=2); and empty elements (-NONE-), with the phrases that contain nothing else. Words are kept as
they are, even -LRB-.
"""

import gzip
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from nmt_cli.corpus.tokenizer import normalize
from nmt_cli.recipe import schema
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, UsageError

Sentence = tuple[list[str], list[str]]  # (words, labels of the linear form)
Phrase = tuple[str, int, int]  # (label, index of the first word, index after the last word)
# Matches, in this order: a bracket with its label and word, as in `(PRP It)`; an opening bracket with its label before
# another bracket, `(S`; a closing bracket; anything else, which is an error. A word may contain a no-break space.
_PART = re.compile(r"\(([^\s()]*)(?:\s+([^\s()]+)\s*\)|(?=\s*\())|\)|\(?[^\s()]+|\(", re.ASCII)


def _label(written: str) -> str:
    """Return a label without function tags and indices. Labels such as -LRB- stay whole."""
    label = written if written[:1] in "-=" else re.sub("[-=].*", "", written)
    if label.startswith("/") or label != normalize(label):
        raise ValueError(
            f"label {label!r} starts with a slash, which ends a phrase, or has characters that cleaning changes"
        )
    return label


def _trees(text: str) -> Iterator[Sentence]:
    """Yield the words and labels of each tree in `text`. Raise ValueError if it contains anything else."""
    words, labels, unclosed = list[str](), list[str](), list[tuple[str, int]]()
    for part in _PART.finditer(text):
        label, word = part.groups()
        root = not unclosed and label in ("", "TOP", "ROOT", "S1")
        if part[0] == ")" and unclosed:
            label, start = unclosed.pop()
            if label and labels[start:]:  # drop a phrase without words
                labels[start:] = [label, *labels[start:], f"/{label}"]
        elif label is not None and not word and (label or root):  # a phrase or the outermost bracket opens
            unclosed.append(("" if root else _label(label), len(labels)))
        elif not label or not word or root:
            raise ValueError(f"{part[0]!r}: every word needs a bracket with its part of speech, every bracket a word")
        elif label != "-NONE-":
            words.append(word)
            labels.append(_label(label))
        if not unclosed:
            for closing in {label for label in labels if label.startswith("/")}:
                if labels.count(closing) != labels.count(closing[1:]):  # in X X /X, either X could be the phrase
                    raise ValueError(f"{closing[1:]!r} is both a phrase and a part of speech in one tree")
            yield words, labels
            words, labels = [], []


def read_trees(lines: Iterable[bytes], name: str) -> Iterator[Sentence]:
    """Yield the trees in UTF-8 lines. A tree may span lines. Raise DataError with line numbers for anything else."""
    text, depth, first, number = "", 0, 1, 0
    try:
        for number, line in enumerate(lines, 1):
            text += line.decode("utf-8-sig") + "\n"
            depth += line.count(b"(") - line.count(b")")
            if depth <= 0:
                yield from _trees(text)
                text, depth, first = "", 0, number + 1
        if text:
            raise ValueError("the file ends before all brackets are closed")
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{name}: the tree on lines {first:,} to {number:,} cannot be read: {error}") from None


def spans(labels: list[str]) -> tuple[list[Phrase], list[str]]:
    """Return the phrases of a linear form, and one part of speech per word. Raise ValueError for other input."""
    closed = {label[1:] for label in labels if label.startswith("/")}  # phrases; other labels are parts of speech
    phrases, tags, unclosed = list[Phrase](), list[str](), list[tuple[str, int]]()
    for label in labels:
        if label.startswith("/"):
            name, first = unclosed.pop() if unclosed else ("", 0)
            if name != label[1:] or first == len(tags):
                raise ValueError(f"{label} does not close {name or 'anything'}, or closes a phrase without words")
            phrases.append((name, first, len(tags)))
        elif label in closed:
            unclosed.append((label, len(tags)))
        else:
            tags.append(label)
    if unclosed:
        raise ValueError(f"{unclosed[-1][0]} is not closed")
    return phrases, tags


def bracketed(words: list[str], labels: list[str]) -> str:
    """Return a tree as one line of brackets under TOP, for evalb.

    Raise ValueError if the labels do not form a tree with as many words as `words`, or if `words` is empty.
    """
    tags = len(spans(labels)[1])
    if not words or tags != len(words):
        raise ValueError(f"words in the tree: {tags}, in the sentence: {len(words)}")
    tree, rest = "(TOP", iter(words)
    for label in labels:
        if label.startswith("/"):
            tree += ")"
        elif f"/{label}" in labels:  # a phrase
            tree += f" ({label}"
        else:
            tree += f" ({label} {next(rest)})"
    return f"{tree})"


def linearize(corpus: schema.Corpus, directory: Path) -> schema.Corpus:
    """Convert the trees of a corpus to text files of words (source) and labels (target) in `directory`.

    Return the corpus section with these files. Raise UsageError for settings that cannot be used with trees.
    """
    if corpus.mix_src or corpus.general_src or corpus.hold_out:
        raise UsageError("corpus.mix_src, general_src and hold_out cannot be used with trees. Remove them")
    changes: dict[str, Any] = {"format": "text"}
    artefact.make_directory(directory)
    for split in ("train", "dev", "test"):
        files = getattr(corpus, f"{split}_src")
        if files != getattr(corpus, f"{split}_tgt"):
            raise UsageError(f"a file of trees holds both sides, so corpus.{split}_src and {split}_tgt must be equal")
        if not files:
            continue
        with tempfile.TemporaryDirectory(dir=directory) as temporary:
            new = [Path(temporary, f"{split}.{side}") for side in ("words", "labels")]
            with new[0].open("wb") as words, new[1].open("wb") as labels:
                for file in [files] if isinstance(files, str) else files:
                    with (gzip.open if file.endswith(".gz") else open)(file, "rb") as lines:
                        for sentence in read_trees(lines, file):
                            words.write(f"{' '.join(sentence[0])}\n".encode())
                            labels.write(f"{' '.join(sentence[1])}\n".encode())
            written = [str(path.replace(directory / path.name)) for path in new]
        changes[f"{split}_src"], changes[f"{split}_tgt"] = ([path] for path in written) if split == "train" else written
    return corpus.model_copy(update=changes)
