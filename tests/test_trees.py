"""Bracketed trees: read however they are laid out, back to the same tree, and refused with the line and the reason."""

import gzip
import itertools
from pathlib import Path

import pytest
import texts
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt_cli.corpus import store
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.errors import DataError, UsageError
from nmt_cli.parsing import trees
from nmt_cli.parsing.trees import Sentence

# As in the treebank's files: over lines, in an empty bracket, with functions, indices, a trace, and a phrase of one.
TREEBANK = """
( (S
    (NP-SBJ-1 (DT The) (NN box) (-LRB- -LRB-) (CD 3\\/4) (-RRB- -RRB-) )
    (VP (VBZ is)
      (VP (VBN said) (NP=2 (-NONE- *-1))
        (SBAR (-NONE- 0) (S (NP (-NONE- *T*-3)) (ADVP|PRT-LOC (RB here)))))) (. .) ))
"""
LINEAR = "S NP DT NN -LRB- CD -RRB- /NP VP VBZ VP VBN SBAR S ADVP|PRT RB /ADVP|PRT /S /SBAR /VP /VP . /S"


def sentences(text: str) -> list[Sentence]:
    return list(trees.read(text.split("\n"), "file"))


def test_a_tree_of_the_treebank_becomes_words_and_labels() -> None:
    (sentence,) = sentences(TREEBANK)
    assert " ".join(sentence.words) == "The box -LRB- 3\\/4 -RRB- is said here ."
    assert " ".join(sentence.labels) == LINEAR
    assert trees.bracketed(sentence) == (
        "(TOP (S (NP (DT The) (NN box) (-LRB- -LRB-) (CD 3\\/4) (-RRB- -RRB-)) (VP (VBZ is) (VP (VBN said)"
        " (SBAR (S (ADVP|PRT (RB here)))))) (. .)))"
    )


@pytest.mark.parametrize("root", ["", "TOP", "ROOT", "S1"])
def test_the_outermost_bracket_goes(root: str) -> None:
    assert sentences(f"({root} (S (NN a)))") == [Sentence(["a"], ["S", "NN", "/S"])]


def test_what_stands_without_an_outermost_bracket_or_without_phrases() -> None:
    assert sentences("(S (NN a)) (NN b)\n\n(TOP (NN c) (. .))") == [
        Sentence(["a"], ["S", "NN", "/S"]),
        Sentence(["b"], ["NN"]),
        Sentence(["c", "."], ["NN", "."]),
    ]


def test_a_tree_of_nothing_but_traces_is_an_empty_sentence() -> None:
    assert sentences("( (NP (-NONE- *)) )") == [Sentence([], [])]


def test_depth_is_no_problem() -> None:
    (sentence,) = sentences("(A " * 50_000 + "(B b)" + ")" * 50_000)
    assert len(trees.spans(sentence.labels).phrases) == 50_000
    assert sentences(trees.bracketed(sentence)) == [sentence]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("(S (NN a)", 1, "1 of its brackets are never closed"),
        ("(S (NN a))\n(S (NN b)\n\n(S (NN c))", 2, "lines 2 to 4 hold no whole tree"),
        ("(S (NN a)))", 1, "a closing bracket has no opening one"),
        ("\nJust a sentence .", 2, "'Just' stands outside all brackets"),
        ("(S (NN a b))", 1, "the word 'b' has no bracket"),
        ("(S (NN a) b)", 1, "the word 'b' has no bracket"),
        ("(S (NN a (JJ b)))", 1, "the bracket of the word 'a' holds another"),
        ("(TOP word)", 1, "the word 'word' has no bracket"),
        ("( S (NN a))", 1, "the word 'S' has no bracket"),
        ("(S (NP) (NN a))", 1, "a bracket 'NP' holds nothing"),
        ("()", 1, "a bracket '' holds nothing"),
        ("(S ((NN a)))", 1, "a bracket inside the tree has no label"),
        ("(S (/NP a))", 1, "begins with the slash"),
        ("(S (N\u00a0P a))", 1, "that cleaning would change"),
        ("(S (NP (S a)))", 1, "'S' is both a phrase and a part of speech"),
    ],
)
def test_what_is_not_a_tree_is_refused(text: str, line: int, reason: str) -> None:
    with pytest.raises(DataError) as refused:
        sentences(text)
    assert reason in str(refused.value)
    assert f"line {line}" in str(refused.value) or f"lines {line}" in str(refused.value)


def test_a_lost_bracket_is_noticed_before_the_file_is_in_memory() -> None:
    lines = iter(["(S (NN a)", *["(S (NN b))"] * 1000])
    with pytest.raises(DataError, match="lines 1 to "):
        list(trees.read(lines, "file", 500))
    assert next(lines, None) is not None


@pytest.mark.parametrize(
    ("linear", "reason"),
    [
        ("S NP NN /S", None),  # NP is closed nowhere: a part of speech, and the tree has a word too many
        ("S NP NN /VP /S", "/VP closes S"),
        ("S NP VP NN /NP /VP /S", "/NP closes VP"),
        ("S NP NN /NP", "/NP"),
        ("S NN /S /S", "/S closes nothing"),
        ("S S NN /S", "S is not closed"),
        ("S NP /NP NN /S", "NP holds no word"),
        ("/S", "/S closes nothing"),
        ("", None),
    ],
)
def test_a_linear_form_is_a_tree_or_not(linear: str, reason: str | None) -> None:
    if linear == "S NP NN /NP":
        assert trees.spans(linear.split()) == ([("NP", 1, 2)], ["S", "NN"])  # no S is closed: it is a word's
    elif reason is None:
        assert trees.spans(linear.split()).tags == [label for label in linear.split() if label in ("NP", "NN")]
    else:
        with pytest.raises(ValueError, match=reason):
            trees.spans(linear.split())


PHRASES = st.sampled_from(["S", "NP", "VP", "X", "PRT|ADVP", "S.1"])
TAGS = st.sampled_from(["NN", ".", "``", "''", "-LRB-", "-RRB-", "PRP$", "#", "$", ":", "é"])
WORDS = st.text(
    st.characters(blacklist_categories=("Cs", "Zs", "Zl", "Zp", "Cc"), blacklist_characters="()"), min_size=1
)
WORDS = WORDS | st.sampled_from(["-LRB-", "-LCB-", "*", "-NONE-", "a\u00a0b", "/", "1\\/2"])
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
    return (
        f"{draw(SPACES)}({label}{draw(FUNCTIONS)}{text}{draw(SPACES)})",
        words,
        [label, *labels, f"/{label}"] if words else [],
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(written(), max_size=4), st.sampled_from(["", "TOP", "ROOT"]))
def test_trees_however_written_come_back(all_of_them: list[tuple[str, list[str], list[str]]], root: str) -> None:
    wanted = [Sentence(words, labels) for _, words, labels in all_of_them]
    assert sentences("".join(f"({root} {text})\n" for text, _, _ in all_of_them)) == wanted
    again = "\n".join(trees.bracketed(sentence) for sentence in wanted if sentence.words)
    assert sentences(again) == [sentence for sentence in wanted if sentence.words]
    for words, labels in wanted:
        assert len(trees.spans(labels).tags) == len(words)
        assert len(trees.spans(labels).phrases) == sum(label.startswith("/") for label in labels)


def test_the_words_must_be_as_many_as_the_trees() -> None:
    with pytest.raises(ValueError, match="the tree has 1 words, the sentence 2"):
        trees.bracketed(Sentence(["a", "b"], ["S", "NN", "/S"]))
    with pytest.raises(ValueError, match="the tree has 0 words, the sentence 0"):
        trees.bracketed(Sentence([], []))


# --- through prepare ------------------------------------------------------------------------------------------------


def corpus_of(folder: Path, text: str, name: str = "train.mrg", **more: object) -> dict[str, object]:
    folder.mkdir(exist_ok=True)
    data = text.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    file = str(folder / name)
    sides = {"train_src": [file], "train_tgt": [file], "dev_src": file, "dev_tgt": file}
    return {"name": "own", "tgt": "trees", **sides, "tokenizer": {"vocabulary_size": 330}, **more}


@pytest.mark.parametrize("name", ["train.mrg", "train.trees", "train.mrg.gz"])
def test_trees_are_prepared_as_words_and_labels_that_survive(name: str, tmp_path: Path) -> None:
    made = texts.trees(300, 1)
    # What cleaning for two languages drops: a repeated pair, one with equal sides, a very uneven one, another script.
    odd = ["( (X (NN x)) )"] * 3 + [
        "(. .)",
        "(TOP " + "(FRAG " * 30 + "(UH ah)" + ")" * 31,
        "( (S (JJ \u4e2d\u6587) (. .)) )",
    ]
    section = texts.corpus(corpus_of(tmp_path / "text", "\n".join([*made, *odd]), name))
    held_out = texts.write(tmp_path / "dev.mrg", texts.trees(20, 7))
    section.dev_src = section.dev_tgt = str(held_out)
    corpus = store.open_corpus(texts.run(section, tmp_path / "data"))
    tokenizer = Tokenizer(corpus.tokenizer_file)
    sides = [
        tokenizer.decode([side.ids[a : b - 1].tolist() for a, b in itertools.pairwise(side.offsets)])
        for side in (corpus.src, corpus.tgt)
    ]
    dev = {" ".join(sentence.words) for sentence in sentences("\n".join(texts.trees(20, 7)))}
    wanted = [s for s in sentences("\n".join([*made, *odd])) if " ".join(s.words) not in dev]
    assert sides[0] == [" ".join(sentence.words) for sentence in wanted]
    assert sides[1] == [" ".join(sentence.labels) for sentence in wanted]
    assert corpus.lines("dev")[1] == [" ".join(s.labels) for s in sentences("\n".join(texts.trees(20, 7)))]
    assert {k: v for k, v in corpus.manifest["counts"].items() if v and k not in ("read", "kept")}.keys() <= {
        "in dev or test"
    }


def test_the_command_takes_a_file_of_trees_as_both_sides(tmp_path: Path) -> None:
    file = texts.write(tmp_path / "wsj.mrg", texts.trees(300, 1))
    done = texts.nmt(
        "prepare", "--src", file, "--tgt", file, "--out", tmp_path / "data", "--workers", 1,
        "--set", "corpus.tokenizer.vocabulary_size=330",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    manifest = store.open_corpus(tmp_path / "data").manifest
    assert (manifest["tgt"], manifest["pairs"], manifest["recipe"]["cleaning"]["max_ratio"]) == ("trees", 300, None)


def test_prepare_refuses_what_is_no_tree_with_65(tmp_path: Path) -> None:
    file = texts.write(tmp_path / "wsj.mrg", ["( (S (NN a)) )", "( (S (NN a) )", "( (S (NN a)) )"])
    done = texts.nmt("prepare", "--src", file, "--tgt", file, "--out", tmp_path / "data", "--workers", 1)
    assert done.returncode == 65
    assert done.stderr.count("\n") == 1
    reason = "wsj.mrg, line 3 is not part of the tree that begins on line 2: a bracket inside the tree has no label"
    assert reason in done.stderr


def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    section = texts.corpus(corpus_of(tmp_path, "(S (NN a))\n"))
    Path(section.train_src[0]).write_bytes(b"(S (NN a))\n(S (NN \xff))\n")
    with pytest.raises(DataError, match="line 2 is not a tree: 'utf-8'"):
        texts.run(section, tmp_path / "data")


def test_trees_on_one_side_only(tmp_path: Path) -> None:
    section = texts.corpus(corpus_of(tmp_path, "(S (NN a))\n"))
    section.train_tgt = [str(texts.write(tmp_path / "train.de", ["a"]))]
    with pytest.raises(DataError, match="give it as source and as target"):
        texts.run(section, tmp_path / "data")


def test_trees_of_a_corpus_that_is_said_to_be_german(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be trees where the files are trees"):
        texts.run(texts.corpus(corpus_of(tmp_path, "(S (NN a))\n", tgt="de")), tmp_path / "data")
