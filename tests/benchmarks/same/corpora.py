"""Prepared corpora: the digest of every file that `nmt prepare` writes."""

import gzip
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from same import digests
from same.tree import CORPORA, INPUTS, MODEL, Tree, settings

TREES = [f"( (S (NP (DT the) (NN {noun})) (VP (VBD {verb}) (NP (DT a) (NN bird))) (. .)) )"
         for noun in ["dog", "cat", "house", "tree", "duck"] for verb in ["saw", "liked", "found"]]  # fmt: skip
PAIRS = ["--src", INPUTS / "pair-sources", "--tgt", INPUTS / "pairs"]


class Skipped(Exception):
    """A check that cannot run here."""


def prepared(tree: Tree, out: str, *arguments: object) -> dict[str, object]:
    done = tree.nmt("prepare", *arguments, "--out", f"data/{out}", "--workers", 2)
    if done.code:
        raise RuntimeError(f"prepare ended with {done.code}: {done.stderr[-300:]}")
    return digests.files(tree.folder / "data" / out)


def mirrored(tree: Tree, out: str, name: str, folder: str, *options: object) -> object:
    mirror = CORPORA / folder
    if not (tree.folder / mirror).is_dir():
        raise Skipped("the directory of --corpora has no such corpus")
    return prepared(tree, out, name, "--mirror", mirror, *options)


def moses(tree: Tree) -> object:
    if not find_spec("sacremoses"):
        raise Skipped("sacremoses is not installed")
    return mirrored(tree, "moses", str(tree.recipe("multi30k-tiny")), "multi30k", "--limit", 3000)


def own_text(tree: Tree) -> object:
    """Prepare text with repeated, copied, uneven, broken and escaped lines, compressed on one side."""
    source = [line.encode() for line in (tree.folder / INPUTS / "lines").read_text("utf-8").split("\n")[:1500]]
    target = [*source[:100], *[b"x y z"] * 50, *[b"a &amp; b &lt; c"] * 20, b"\xff\xfe", b"\xe6\x9d\xb1" * 9]
    target += [b" ".join(line.split()[::-1]) for line in source[len(target) :]]
    (tree.folder / "own.en").write_bytes(b"\n".join(source) + b"\n")
    # Without a time in its header, the compressed file has the same digest in both trees.
    (tree.folder / "own.de.gz").write_bytes(gzip.compress(b"\n".join(target) + b"\n", mtime=0))
    files = ["--src", "own.en", "--src", INPUTS / "pair-sources", "--tgt", "own.de.gz", "--tgt", INPUTS / "pairs"]
    return prepared(tree, "own", *files, *settings("corpus.hold_out=80", "corpus.tokenizer.vocabulary_size=900",
        "corpus.cleaning.drop_near_twins=yes", "corpus.cleaning.max_ratio=3"))  # fmt: skip


def parse_trees(tree: Tree) -> object:
    held_out = [line.replace("bird", "fox") for line in TREES[:6]]
    for name, lines in (("trees.mrg", TREES * 20), ("held.mrg", held_out)):
        (tree.folder / name).write_text("\n".join(lines) + "\n")
    files = [f"corpus.{split}_{side}={'[trees.mrg]' if split == 'train' else 'held.mrg'}"
             for split in ("train", "dev", "test") for side in ("src", "tgt")]  # fmt: skip
    return prepared(
        tree, "trees", str(tree.recipe("parsing")), *settings(*files, "corpus.tokenizer.vocabulary_size=310")
    )


def synthetic(tree: Tree) -> object:
    """Prepare real pairs and pairs that a model translated, as `recipes/student.yaml` does, from a little text."""
    recipe = tree.folder / "student.yaml"
    sides = {"train_src": INPUTS / "few", "train_tgt": INPUTS / "few", "dev_src": INPUTS / "pair-sources"}
    sides |= {"dev_tgt": INPUTS / "pairs", "test_src": INPUTS / "pair-sources", "test_tgt": INPUTS / "pairs"}
    files = "".join(f"  {key}: {Path(name)!s}\n" for key, name in sides.items())
    entry = f"  synthetic:\n    - {{side: src, beam: 2, files: [{INPUTS / 'pair-sources'}], model: {MODEL}, tag: st}}\n"
    text = f"corpus:\n  name: student\n{files}  limit: 150\n  tokenizer: {{vocabulary_size: 500}}\n{entry}"
    recipe.write_text(text + "  cleaning: {drop_copies: no}\n")
    return prepared(tree, "student", str(recipe))


CHECKS: dict[str, Callable[[Tree], object]] = {
    "toy-en-de": lambda tree: prepared(tree, "toy", "toy-en-de"),
    "toy-de-en": lambda tree: prepared(tree, "yot", "toy-de-en", "--limit", 5000),
    "multi30k-en-de": lambda tree: mirrored(tree, "m30", "multi30k-en-de", "multi30k"),
    "multi30k-fr-en, limited": lambda tree: mirrored(tree, "fr", "multi30k-fr-en", "multi30k", "--limit", 4000),
    "multi30k-tiny, tokenized by Moses": moses,
    "wmt14-en-de": lambda tree: mirrored(
        tree, "wmt", "wmt14-en-de", "wmt14-mini", *settings("corpus.tokenizer.vocabulary_size=4000")
    ),
    "own text, held out, near-duplicates dropped": own_text,
    "own text with a tokenizer": lambda tree: prepared(
        tree, "reused", *PAIRS, "--tokenizer", MODEL / "tokenizer.model"
    ),
    "trees": parse_trees,
    "synthetic pairs": synthetic,
}
