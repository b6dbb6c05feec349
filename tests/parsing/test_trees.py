"""Bracketed trees: any layout is read, the same tree comes back, and errors name the lines and the reason."""

import gzip
import itertools
import re
from pathlib import Path

import pytest
import texts

from nmt_cli.corpus import store
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.parsing import trees
from nmt_cli.recipe import schema
from nmt_cli.system.errors import DataError, UsageError

# The treebank's layout: several lines, an empty outer bracket, functions, indices, a trace, a phrase of one word.
TREEBANK = """
( (S
    (NP-SBJ-1 (DT The) (NN box) (-LRB- -LRB-) (CD 3\\/4) (-RRB- -RRB-) )
    (VP (VBZ is)
      (VP (VBN said) (NP=2 (-NONE- *-1))
        (SBAR (-NONE- 0) (S (NP (-NONE- *T*-3)) (ADVP|PRT-LOC (RB here)))))) (. .) ))
"""


def sentences(text: str) -> list[tuple[list[str], list[str]]]:
    return list(trees.read_trees((line.encode() for line in text.split("\n")), "file"))


def test_a_tree_of_the_treebank_becomes_words_and_labels() -> None:
    ((words, labels),) = sentences(TREEBANK)
    assert " ".join(words) == "The box -LRB- 3\\/4 -RRB- is said here ."
    linear = "S NP DT NN -LRB- CD -RRB- /NP VP VBZ VP VBN SBAR S ADVP|PRT RB /ADVP|PRT /S /SBAR /VP /VP . /S"
    assert labels == linear.split()
    assert trees.bracketed(words, labels) == (
        "(TOP (S (NP (DT The) (NN box) (-LRB- -LRB-) (CD 3\\/4) (-RRB- -RRB-)) (VP (VBZ is) (VP (VBN said)"
        " (SBAR (S (ADVP|PRT (RB here)))))) (. .)))"
    )


def test_trees_without_an_outer_bracket_or_without_phrases() -> None:
    read = sentences("(S (NN a)) (NN b)\n\n(TOP (NN c) (. .))\n( (NP (-NONE- *)) )")
    assert read == [(["a"], ["S", "NN", "/S"]), (["b"], ["NN"]), (["c", "."], ["NN", "."]), ([], [])]


def test_functions_indices_and_gaps_are_removed_from_labels() -> None:
    ((words, labels),) = sentences("(S (NP=2 (NN a)) (VP-TPC=3 (VB-1 b) (PP-LOC-CLR-1 (IN c))))")
    assert (words, " ".join(labels)) == (["a", "b", "c"], "S NP NN /NP VP VB PP IN /PP /VP /S")


def test_deep_trees_are_read() -> None:
    (sentence,) = sentences("(A " * 5000 + "(B b)" + ")" * 5000)
    assert len(trees.spans(sentence[1])[0]) == 5000


@pytest.mark.parametrize(
    ("text", "lines", "reason"),
    [
        ("(S (NN a))\n(S (NN b)\n\n(S (NN c))", "2 to 4", "the file ends before all brackets are closed"),
        ("\nJust a sentence .", "2 to 2", "'Just': every word needs a bracket with its part of speech"),
        ("(S (NN a) b)", "1 to 1", "'b': every word needs"),
        ("(TOP word)", "1 to 1", "'(TOP word)': every word needs"),
        ("(S (NP) (NN a))", "1 to 1", "'(NP': every word needs"),
        ("(S ((NN a)))", "1 to 1", "'(': every word needs"),
        ("(S (NN a)))", "1 to 1", "')': every word needs"),
        ("(S (/NP a))", "1 to 1", "label '/NP' starts with a slash"),
        ("(S (N\u00a0P a))", "1 to 1", "label 'N\\xa0P' starts"),
        ("(S (NP (S a)))", "1 to 1", "'S' is both a phrase and a part of speech"),
        ("(S (X (NN a)) (NP (X b)))", "1 to 1", "'X' is both a phrase and a part of speech"),
    ],
)
def test_anything_but_trees_is_refused(text: str, lines: str, reason: str) -> None:
    with pytest.raises(DataError, match=re.escape(f"lines {lines} cannot be read: {reason}")):
        sentences(text)


@pytest.mark.parametrize(
    ("words", "linear", "reason"),
    [
        ("a", "S NP NN /VP /S", "/VP does not close S"),
        ("a", "S NN /S /S", "/S does not close anything"),
        ("a", "S S NN /S", "S is not closed"),
        ("a", "S NP /NP NN /S", "closes a phrase without words"),
        ("a b", "S NN /S", "in the tree: 1, in the sentence: 2"),
        ("", "", "in the tree: 0, in the sentence: 0"),
    ],
)
def test_a_linear_form_that_does_not_fit_the_words_is_refused(words: str, linear: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        trees.bracketed(words.split(), linear.split())


@pytest.mark.parametrize("root", ["", "TOP", "ROOT", "S1"])
@pytest.mark.parametrize("space", [" ", "", "\n    ", "\t"])
def test_trees_are_read_back_from_any_layout(root: str, space: str) -> None:
    odd = "(S.1 (`` *) (PRP$ -NONE-) (# a\u00a0b) (PRT|ADVP (é 1\\/2)) (: /))"
    wanted = sentences("\n".join([odd, *texts.trees(20, 1)]))
    assert wanted[0][0] == ["*", "-NONE-", "a\u00a0b", "1\\/2", "/"]
    again = [trees.bracketed(*sentence).replace("(TOP", f"({root}") for sentence in wanted]
    layout = [tree.replace(" (", f"{space}(").replace(")", f"{space})") for tree in again]
    assert sentences("".join(layout)) == wanted


CLEANING = {"max_tokens": 512, "max_ratio": None, "drop_copies": False, "drop_duplicates": False, "check_script": False}


def section(train: list[Path], dev: Path | None = None) -> schema.Corpus:
    files = [str(path) for path in train]
    plain = {"name": "own", "format": "trees", "tgt": "labels", "train_src": files, "train_tgt": files}
    plain |= {"dev_src": str(dev), "dev_tgt": str(dev)} if dev else {}
    return texts.corpus({**plain, "tokenizer": {"vocabulary_size": 330}, "cleaning": CLEANING})


def test_all_trees_are_prepared_as_words_and_labels(tmp_path: Path) -> None:
    # Pairs that cleaning would drop from ordinary text: repeated, with equal sides, very uneven, in another script.
    odd = ["( (X (NN x)) )"] * 3 + ["(. .)", "( (S (JJ \u4e2d\u6587) (. .)) )"]
    odd.append("(TOP " + "(FRAG " * 30 + "(UH ah)" + ")" * 31)
    first, second = texts.trees(300, 1)[:200], [*texts.trees(300, 1)[200:], *odd]
    files = [texts.write(tmp_path / "a.mrg", ["\ufeff" + first[0], *first[1:]]), tmp_path / "b.mrg.gz"]
    files[1].write_bytes(gzip.compress("\n".join(second).encode()))
    dev = texts.write(tmp_path / "dev.mrg", texts.trees(20, 7))
    text = trees.linearize(section(files, dev), tmp_path / "text")
    assert (text.format, text.tgt, text.test_src) == ("text", "labels", None)
    corpus = store.open_corpus(texts.run(text, tmp_path / "data"))
    tokenizer = Tokenizer(corpus.tokenizer_file)
    sides = [
        tokenizer.decode([side.ids[a : b - 1].tolist() for a, b in itertools.pairwise(side.offsets)])
        for side in (corpus.src, corpus.tgt)
    ]
    held_out = sentences("\n".join(texts.trees(20, 7)))
    wanted = [sentence for sentence in sentences("\n".join([*first, *second])) if sentence not in held_out]
    assert sides == [[" ".join(words) for words, _ in wanted], [" ".join(labels) for _, labels in wanted]]
    assert corpus.lines("dev")[1] == [" ".join(labels) for _, labels in held_out]


def test_every_split_becomes_two_files_of_its_own(tmp_path: Path) -> None:
    files = [
        texts.write(tmp_path / f"{name}.mrg", [f"(S (NN {name}))", f"(X (Y {name}2))"]) for name in ("a", "b", "c")
    ]
    trained = section(files[:1], files[1]).model_copy(update={f"test_{side}": str(files[2]) for side in ("src", "tgt")})
    made = trees.linearize(trained, tmp_path / "new" / "text")
    for split, name in (("train", "a"), ("dev", "b"), ("test", "c")):
        paths = [str(tmp_path / "new" / "text" / f"{split}.{side}") for side in ("words", "labels")]
        sides = [getattr(made, f"{split}_{side}") for side in ("src", "tgt")]
        assert sides == ([[path] for path in paths] if split == "train" else paths)
        assert [Path(path).read_text() for path in paths] == [f"{name}\n{name}2\n", "S NN /S\nX Y /X\n"]
    assert len(list((tmp_path / "new" / "text").iterdir())) == 6
    assert made == trained.model_copy(
        update={
            "format": "text",
            **{name: getattr(made, name) for name in made.model_dump() if name.endswith(("_src", "_tgt"))},
        }
    )


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("wsj.mrg", b"(S (NN a))\n(S (NN \xff))\n", "lines 2 to 2 cannot be read: 'utf-8'"),
        ("wsj.mrg.gz", gzip.compress(b"(S (NN a))\n" * 9, mtime=0)[:-9], "cannot be read: Compressed file ended"),
        ("wsj.mrg.gz", b"(S (NN a))\n", "cannot be read: Not a gzipped file"),
    ],
)  # fmt: skip
def test_broken_files_are_refused_and_nothing_is_written(name: str, data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    good = texts.write(tmp_path / "good.mrg", ["(S (NN a))"])
    with pytest.raises(DataError, match=rf"{tmp_path}/{name}: the tree on .*{reason}"):
        trees.linearize(section([good, tmp_path / name]), tmp_path / "text")
    assert list((tmp_path / "text").iterdir()) == []


def test_settings_that_trees_do_not_support_are_refused(tmp_path: Path) -> None:
    corpus = section([tmp_path / "a.mrg"]).model_copy(update={"train_tgt": ["b.mrg"]})
    with pytest.raises(UsageError, match=r"so corpus\.train_src and train_tgt must be equal"):
        trees.linearize(corpus, tmp_path / "text")
    good = texts.write(tmp_path / "good.mrg", ["(S (NN a))"])
    corpus = section([good], good).model_copy(update={"dev_tgt": "b.mrg"})
    with pytest.raises(UsageError, match=r"so corpus\.dev_src and dev_tgt must be equal"):
        trees.linearize(corpus, tmp_path / "text")
    for name, value in (("mix_src", ["a"]), ("general_src", "a"), ("hold_out", 9)):
        with pytest.raises(UsageError, match="cannot be used with trees"):
            trees.linearize(section([tmp_path / "a.mrg"]).model_copy(update={name: value}), tmp_path / "text")
