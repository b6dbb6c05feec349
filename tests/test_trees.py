"""Bracketed trees: read however they are laid out, back to the same tree, and refused with the line and the reason."""

import gzip
import itertools
from pathlib import Path

import pytest
import texts
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli import recipe
from nmt_cli.corpus import store
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.errors import DataError, UsageError
from nmt_cli.parsing import trees

# As in the treebank's files: over lines, in an empty bracket, with functions, indices, a trace, and a phrase of one.
TREEBANK = """
( (S
    (NP-SBJ-1 (DT The) (NN box) (-LRB- -LRB-) (CD 3\\/4) (-RRB- -RRB-) )
    (VP (VBZ is)
      (VP (VBN said) (NP=2 (-NONE- *-1))
        (SBAR (-NONE- 0) (S (NP (-NONE- *T*-3)) (ADVP|PRT-LOC (RB here)))))) (. .) ))
"""
LINEAR = "S NP DT NN -LRB- CD -RRB- /NP VP VBZ VP VBN SBAR S ADVP|PRT RB /ADVP|PRT /S /SBAR /VP /VP . /S"


def sentences(text: str) -> list[tuple[list[str], list[str]]]:
    return list(trees.read((line.encode() for line in text.split("\n")), "file"))


def test_a_tree_of_the_treebank_becomes_words_and_labels() -> None:
    ((words, labels),) = sentences(TREEBANK)
    assert " ".join(words) == "The box -LRB- 3\\/4 -RRB- is said here ."
    assert " ".join(labels) == LINEAR
    assert trees.bracketed(words, labels) == (
        "(TOP (S (NP (DT The) (NN box) (-LRB- -LRB-) (CD 3\\/4) (-RRB- -RRB-)) (VP (VBZ is) (VP (VBN said)"
        " (SBAR (S (ADVP|PRT (RB here)))))) (. .)))"
    )


def test_what_stands_without_an_outermost_bracket_or_without_phrases() -> None:
    read = sentences("(S (NN a)) (NN b)\n\n(TOP (NN c) (. .))\n( (NP (-NONE- *)) )")
    assert read == [(["a"], ["S", "NN", "/S"]), (["b"], ["NN"]), (["c", "."], ["NN", "."]), ([], [])]


def test_deep_trees_are_read() -> None:
    (sentence,) = sentences("(A " * 5000 + "(B b)" + ")" * 5000)
    assert len(trees.spans(sentence[1])[0]) == 5000


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("(S (NN a)", 1, "the file ends before all brackets are closed"),
        ("(S (NN a))\n(S (NN b)\n\n(S (NN c))", 4, "on lines 2 to 4"),
        ("\nJust a sentence .", 2, "'Just': every word needs a bracket with its part of speech"),
        ("(S (NN a) b)", 1, "'b': every word needs"),
        ("(TOP word)", 1, "'(TOP word)': every word needs"),
        ("(S (NP) (NN a))", 1, "'(NP': every word needs"),
        ("(S ((NN a)))", 1, "'(': every word needs"),
        ("(S (NN a)))", 1, "')': every word needs"),
        ("(S (/NP a))", 1, "begins with the slash"),
        ("(S (N\u00a0P a))", 1, "cleaning would change it"),
        ("(S (NP (S a)))", 1, "'S' is both a phrase and a part of speech"),
    ],
)
def test_what_is_not_a_tree_is_refused(text: str, line: int, reason: str) -> None:
    with pytest.raises(DataError) as refused:
        sentences(text)
    assert reason in str(refused.value)
    assert f"to {line} cannot be read" in str(refused.value)


@pytest.mark.parametrize(
    ("linear", "reason"),
    [
        ("S NP NN /VP /S", "/VP does not close S"),
        ("S NN /S /S", "/S does not close anything"),
        ("S S NN /S", "S is not closed"),
        ("S NP /NP NN /S", "no word is between"),
    ],
)
def test_a_linear_form_that_is_no_tree(linear: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        trees.spans(linear.split())


@pytest.mark.parametrize(("words", "labels"), [(["a", "b"], ["S", "NN", "/S"]), ([], [])])
def test_words_must_be_as_many_as_the_tree_has(words: list[str], labels: list[str]) -> None:
    assert trees.spans(["S", "NP", "NN", "/S"])[1] == ["NP", "NN"]  # what is closed nowhere is a part of speech
    with pytest.raises(ValueError, match=f"words, the sentence {len(words)}"):
        trees.bracketed(words, labels)


PHRASES = st.sampled_from(["S", "NP", "VP", "X", "PRT|ADVP", "S.1"])
TAGS = st.sampled_from(["NN", ".", "``", "''", "-LRB-", "-RRB-", "PRP$", "#", "$", ":", "é"])
LETTERS = st.characters(blacklist_categories=("Cs", "Zs", "Zl", "Zp", "Cc"), blacklist_characters="()")
WORDS = st.text(LETTERS, min_size=1) | st.sampled_from(["-LRB-", "-LCB-", "*", "-NONE-", "a\u00a0b", "/", "1\\/2"])
SPACES = st.sampled_from(["", " ", "\n", "\n    ", "\t"])
FUNCTIONS = st.sampled_from(["", "-SBJ", "-LOC-PRD-2", "=3", "-1"])


@st.composite
def written(draw: st.DrawFn, depth: int = 0) -> tuple[str, list[str], list[str]]:
    """A tree as someone may write it, its words and its linear form."""
    if depth > 4 or draw(st.integers(0, 2)) == 0:
        if depth > 0 and draw(st.integers(0, 4)) == 0:
            return f"{draw(SPACES)}(-NONE-{draw(SPACES) or ' '}*T*-{depth})", [], []
        tag, word = draw(TAGS), draw(WORDS)
        function = draw(FUNCTIONS) if tag[0] != "-" else ""
        return f"{draw(SPACES)}({tag}{function}{draw(SPACES) or ' '}{word}{draw(SPACES)})", [word], [tag]
    label = draw(PHRASES)
    inside = draw(st.lists(written(depth + 1), min_size=1, max_size=3))
    words, labels = ([item for child in inside for item in child[side]] for side in (1, 2))
    text = "".join(child[0] for child in inside)
    text = f"{draw(SPACES)}({label}{draw(FUNCTIONS)}{text}{draw(SPACES)})"
    return text, words, [label, *labels, f"/{label}"] if words else []


@settings(max_examples=100, deadline=None)
@given(st.lists(written(), max_size=4), st.sampled_from(["", "TOP", "ROOT", "S1"]))
def test_trees_however_written_come_back(all_of_them: list[tuple[str, list[str], list[str]]], root: str) -> None:
    wanted = [(words, labels) for _, words, labels in all_of_them]
    assert sentences("".join(f"({root} {text})\n" for text, _, _ in all_of_them)) == wanted
    again = "\n".join(trees.bracketed(*sentence) for sentence in wanted if sentence[0])
    assert sentences(again) == [sentence for sentence in wanted if sentence[0]]
    for words, labels in wanted:
        phrases, tags = trees.spans(labels)
        assert (len(phrases), len(tags)) == (sum(label.startswith("/") for label in labels), len(words))


# --- a corpus of trees ----------------------------------------------------------------------------------------------

CLEANING = {"max_tokens": 512, "max_ratio": None, "drop_copies": False, "drop_duplicates": False, "check_script": False}


def section(train: list[Path], dev: Path | None = None) -> recipe.Corpus:
    files = [str(path) for path in train]
    plain = {"name": "own", "format": "trees", "tgt": "labels", "train_src": files, "train_tgt": files}
    plain |= {"dev_src": str(dev), "dev_tgt": str(dev)} if dev else {}
    return texts.corpus({**plain, "tokenizer": {"vocabulary_size": 330}, "cleaning": CLEANING})


def test_all_trees_are_prepared_as_words_and_labels(tmp_path: Path) -> None:
    # What cleaning for two languages drops: a repeated pair, one with equal sides, a very uneven one, another script.
    odd = ["( (X (NN x)) )"] * 3 + ["(. .)", "( (S (JJ \u4e2d\u6587) (. .)) )"]
    odd.append("(TOP " + "(FRAG " * 30 + "(UH ah)" + ")" * 31)
    first, second = texts.trees(300, 1)[:200], [*texts.trees(300, 1)[200:], *odd]
    files = [texts.write(tmp_path / "a.mrg", ["\ufeff" + first[0], *first[1:]]), tmp_path / "b.mrg.gz"]
    files[1].write_bytes(gzip.compress("\n".join(second).encode()))
    dev = texts.write(tmp_path / "dev.mrg", texts.trees(20, 7))
    text = trees.linearise(section(files, dev), tmp_path / "text")
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


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("wsj.mrg", b"( (S (NN a)) )\n( (S (NN a) )\n( (S (NN a)) )\n", "lines 2 to 3 cannot be read"),
        ("wsj.mrg", b"(S (NN a))\n(S (NN \xff))\n", "lines 2 to 2 cannot be read: 'utf-8'"),
        ("wsj.mrg.gz", gzip.compress(b"(S (NN a))\n" * 9, mtime=0)[:-9], "cannot be read: Compressed file ended"),
        ("wsj.mrg.gz", b"(S (NN a))\n", "cannot be read: Not a gzipped file"),
    ],
)  # fmt: skip
def test_what_is_no_tree_is_refused_and_leaves_nothing(name: str, data: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=reason):
        trees.linearise(section([tmp_path / name]), tmp_path / "text")
    assert list((tmp_path / "text").iterdir()) == []


def test_sides_that_differ(tmp_path: Path) -> None:
    corpus = section([tmp_path / "a.mrg"]).model_copy(update={"train_tgt": ["b.mrg"]})
    with pytest.raises(UsageError, match="must be the same"):
        trees.linearise(corpus, tmp_path / "text")
