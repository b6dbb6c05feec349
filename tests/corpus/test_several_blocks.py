"""Augmentation of several blocks and several languages, and of a single pair."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import texts
from texts import bitext_section

from nmt_cli.corpus import augmentation, damage, letter_case
from nmt_cli.corpus.augmentation import Augmentation, augment_block, changed, split_lines, split_table
from nmt_cli.corpus.store import Corpus, open_corpus
from nmt_cli.corpus.tokenizer import EOS, UNK, Tokenizer
from nmt_cli.recipe import schema
from nmt_cli.system.errors import DataError

LINES = 50


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A corpus of the same lines twice. One target is much longer than every other line of both sides."""
    directory = tmp_path_factory.mktemp("blocks")
    text = texts.pairs(LINES)
    text[7] = (text[7][0], " ".join(tgt for _, tgt in texts.pairs(9, seed=3)))
    corpus = texts.own(directory / "in", text, cleaning={"max_ratio": None})
    again = {"train_src": corpus.train_src * 2, "train_tgt": corpus.train_tgt * 2}
    return open_corpus(texts.run(corpus.model_copy(update=again), directory / "data"))


def lines_of(corpus: Corpus, block: int = 0, epoch: int = 0, seed: int = 1, **shares: float) -> list[list[list[int]]]:
    """Return the tokens of each line of a block, for both sides."""
    how = Augmentation(corpus.directory, corpus.identity, schema.Augment(**shares), ("en", "de"), seed)
    sides = augment_block(how, (epoch, block))
    return [[line.tolist() for line in np.split(ids, np.cumsum(lengths)[:-1])] for ids, lengths in sides]


def test_blocks_divide_the_corpus(twice: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augmentation, "BLOCK", 40)
    blocks = [lines_of(twice, block) for block in range(3)]
    assert [len(src) for src, _ in blocks] == [40, 40, 20]
    for number, side in enumerate((twice.src, twice.tgt)):
        assert [i for block in blocks for line in block[number] for i in line] == side.ids.tolist()


@pytest.mark.parametrize("kind", [*schema.Augment.model_fields])
def test_each_change_is_drawn_anew_in_each_block_epoch_and_run(
    twice: Corpus, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(augmentation, "BLOCK", LINES)
    if kind == "no_stop":
        monkeypatch.setattr(damage, "STOPS", "0123456789")  # the lines end with digits instead of full stops
    found = [lines_of(twice, *key, **{kind: 0.5}) for key in ((0, 0, 1), (1, 0, 1), (0, 1, 1), (0, 0, 2))]
    assert all(one not in found[:i] for i, one in enumerate(found))
    plain = lines_of(twice)
    assert plain not in found
    assert plain == lines_of(twice, 1) == lines_of(twice, 0, 1)


def test_lines_may_be_as_long_as_the_longest_of_either_side(twice: Corpus) -> None:
    lengths = [max(side.lengths()) for side in (twice.src, twice.tgt)]
    assert lengths[1] > 2 * lengths[0]
    src, tgt = lines_of(twice, joined=1)
    assert max(map(len, src)) > lengths[0]
    assert max(map(len, tgt)) == lengths[1]
    sizes = [len(group) + 1 for group in "".join("x" if line else "_" for line in src).split("x")[1:]]
    assert {2, 3} <= {*sizes} <= {1, 2, 3}
    for probability in (0.1, 0.5, 1):
        for side in lines_of(twice, bpe_dropout=probability):
            assert max(map(len, side)) <= lengths[1]


def test_subwords_split_down_to_their_last_parts(twice: Corpus) -> None:
    table = split_table(Tokenizer(twice.tokenizer_file))
    lines = [np.array(line) for line in lines_of(twice)[0]]
    rng = np.random.default_rng(1)
    whole = split_lines(lines, table, 1, rng)
    assert all((table[line, 0] < 0).all() for line in whole)
    assert sum(map(len, whole)) > 2 * sum(map(len, lines))
    assert [line.tolist() for line in split_lines(lines, table, 0, rng)] == [line.tolist() for line in lines]


def test_a_subword_splits_into_the_parts_that_were_merged_first() -> None:
    """The split whose later-merged part was merged first wins. Special tokens and unmerged tokens are never split."""
    scores = {"<pad>": 0.0, "</s>": 0.0, "a": -1.0, "c": -2.0, "ab": -20.0, "bc": -10.0, "abc": -30.0, "cab": -40.0}
    tokens = [*scores]

    def parts(**changed: float) -> tuple[str, ...]:
        own = scores | changed
        tokenizer: Any = SimpleNamespace(vocabulary=tokens, score=lambda i: own[tokens[i]])
        table = split_table(tokenizer)
        found = {token: tuple(tokens[i] for i in row if i >= 0) for token, row in zip(tokens, table, strict=True)}
        assert found.pop("cab") == ("c", "ab")
        abc = found.pop("abc")
        assert not any(found.values())
        return abc

    assert parts() == ("a", "bc")
    assert parts(ab=-10.0, bc=-20.0) == ("ab", "c")
    assert parts(ab=-3.0, bc=-2.5, c=-50.0) == ("a", "bc")


def test_pairs_of_different_languages_are_never_joined(tmp_path: Path) -> None:
    """Letter case follows the rules of the target language. Without `targets`, a token at the beginning is a tag."""
    entries: list[dict[str, Any]] = []
    for i in range(16):
        name = ("de", "tr")[i % 2]
        lines = [f"a {i} {j} gider{' x' * 40 * (i == j)}\t{name} iyi {i} {j}" for j in range(3)]
        entries.append({"files": [str(texts.write(tmp_path / f"{i}.tsv", lines))], "tgt": name})
    settings: dict[str, Any] = {"cleaning": {"check_script": False, "max_ratio": None}}
    corpus = bitext_section(*entries, **settings, tokenizer={"vocabulary_size": 310})
    opened = open_corpus(texts.run(corpus, tmp_path / "data"))
    model, changes = Tokenizer(opened.tokenizer_file), schema.Augment(joined=1, upper=1)
    for targets in (("de", "tr"), ()):
        how = Augmentation(opened.directory, opened.identity, changes, ("en", "de"), 1, targets)
        texts_of_side = [
            model.decode([line[:-1].tolist() for line in np.split(ids, np.cumsum(lengths)[:-1]) if len(line)])
            for ids, lengths in augment_block(how, (0, 0))
        ]
        assert 16 <= len(texts_of_side[0]) < 40
        for src, tgt in zip(*texts_of_side, strict=True):
            languages = {word.lower() for word in tgt.split() if word.lower() in ("de", "tr")}
            assert languages == {src[2:4]}, "joined with another language"
            assert "İYİ" in tgt if targets and src[2:4] == "tr" and tgt.isupper() else "İ" not in tgt
            assert src.count(">>") == 1


def test_a_line_with_an_unknown_token_stays_as_it_is(tmp_path: Path) -> None:
    """The unknown token may be on either side. It occurs only with tokenizers that have no byte tokens."""
    import sentencepiece

    src, tgt = ([f"{word} {i} runs." for i in range(40)] for word in ("dog", "Hund"))
    ids = {"pad_id": 0, "unk_id": 1, "eos_id": 2, "bos_id": -1}
    with (tmp_path / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*src, *tgt, "HUNDRSOG. " * 9]), model_writer=file, vocab_size=60, model_type="bpe",
            normalization_rule_name="identity", minloglevel=2, hard_vocab_limit=False, **ids,
        )  # fmt: skip
    src[3] += " ä"
    tgt[5] += " ä"
    corpus = texts.own(tmp_path / "in", [*zip(src, tgt, strict=True), (" ".join(src[9:18]), " ".join(tgt[9:18]))])
    tokenizer = schema.Tokenizer(file=str(tmp_path / "tokenizer.model"))
    opened = open_corpus(texts.run(corpus.model_copy(update={"tokenizer": tokenizer}), tmp_path / "data"))
    assert [int((side.ids == UNK).sum()) for side in (opened.src, opened.tgt)] == [1, 1]
    plain, upper = lines_of(opened), lines_of(opened, upper=1)
    for before, after in zip(plain, upper, strict=True):
        assert [i for i in range(40) if before[i] == after[i]] == [3, 5]
        assert all(line[-1] == EOS for line in after)


def test_changes_of_one_pair() -> None:
    draw = random.Random(1)

    def change(src: str, tgt: str, *kinds: str) -> tuple[str, str]:
        names = ("noise", "typos", "no_stop", "upper", "title")
        return changed(src, tgt, [name in kinds for name in names], ("en", "tr"), draw)

    assert change("It runs.", "iyi dir.") == ("It runs.", "iyi dir.")
    assert change("It runs. ", "iyi dir.", "no_stop") == ("It runs", "iyi dir")
    for pair in (("It runs.", "iyi dir"), ("It runs", "iyi dir."), ("It runs.", "iyi mi?")):
        assert change(*pair, "no_stop") == pair, "a full stop that only one side has stays"
    assert change("it runs", "iyi dir", "title") == ("It Runs", "İyi Dir")
    assert change("it runs", "iyi dir", "title", "upper") == ("IT RUNS", "İYİ DİR")
    src, tgt = change("runs.", "dir.", "typos", "upper", "no_stop")
    assert (src != "RUNS", src.isupper(), "." in src, tgt) == (True, True, False, "DİR")


def test_typos_in_short_words_capitals_and_numbers() -> None:
    draw = random.Random(2)
    found = {damage.with_typos("5 of cat", draw, least=1) for _ in range(200)}
    assert all(text.startswith("5 of ") for text in found)
    assert {"5 of cat"} != found != {"5 of ca"}
    assert damage.with_typos("it is a1b2c3", draw, least=1) == "it is a1b2c3", "no two letters are adjacent"
    both = damage.with_typos("cat dog", draw, least=2).split(" ")
    assert both[0] != "cat"
    assert both[1] != "dog"
    forms = {damage.typo("AS", draw) for _ in range(300)}
    assert forms == {"SA", "AAS", "SS", "S"}, "the neighboring key of a capital gives a capital"
    assert {damage.typo("aa", draw) for _ in range(300)} == {"a", "aaa", "sa"}
    assert {damage.typo("öö", draw) for _ in range(300)} == {"ö", "ööö"}


def test_noise_is_added_at_the_same_end_of_both_sides() -> None:
    draw = random.Random(3)
    found = [damage.with_noise("Hello.", "Hallo.", draw) for _ in range(300)]
    before = sum(src.endswith(" Hello.") for src, _ in found)
    assert before + sum(src.startswith("Hello. ") for src, _ in found) == 300
    assert 100 < before < 200
    assert all(src.startswith("Hello.") == tgt.startswith("Hallo.") for src, tgt in found)


@pytest.mark.parametrize("language", ["tr", "az", "crh", "tt", "gag", "tr-CY"])
def test_languages_with_a_dotless_i(language: str) -> None:
    assert letter_case.upper("iı", language) == "İI"
    assert letter_case.lower("İI I\u0307", language) == "iı i"
    assert (letter_case.capitalized("izmir", language), letter_case.capitalized("ırmak", language)) == (
        "İzmir",
        "Irmak",
    )


def test_words_are_capitalized_by_the_rules_of_their_language() -> None:
    for language, word, large in (
        *(("en", "izmir", "Izmir"), ("nl", "ijs", "IJs"), ("de", "ijs", "Ijs"), ("nl", "iz", "Iz")),
        *(("en", "", ""), ("en", "iPhone", "IPhone"), ("hr", "ǆep", "ǅep")),
    ):
        assert letter_case.capitalized(word, language) == large
    assert letter_case.title("it’s o'clock in rock'n'roll 3rd", "en") == "It’s O'clock In Rock'n'roll 3rd"


def test_another_corpus_in_the_same_directory_is_refused(twice: Corpus) -> None:
    how = Augmentation(twice.directory, "another", schema.Augment(), ("en", "de"), 1)
    with pytest.raises(DataError, match=rf"{twice.directory} has changed during training\. Restore the original"):
        augment_block(how, (0, 0))
    assert lines_of(twice)
