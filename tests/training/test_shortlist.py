"""`nmt shortlist`: learning from parallel text, the file, and searches with a shortlist."""

import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_model import WORDS, make_model

from nmt_cli.corpus import readers
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.training import shortlist as learning
from nmt_cli.training.shortlist import learn_shortlist
from nmt_cli.transformer.directory import open_model
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.segments import Segment
from nmt_cli.translation.shortlist import FILE, read_shortlist
from nmt_cli.translation.translator import Translator

ORDER = random.Random(2).sample(range(len(WORDS)), len(WORDS))
TRANSLATION = {word: WORDS[i] for word, i in zip(WORDS, ORDER, strict=True)}  # each word's translation is a random word


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Sentences and their translations, word by word in reverse order."""
    draw, parent = random.Random(1), tmp_path_factory.mktemp("text")
    lines = [draw.choices(WORDS, k=draw.randint(2, 7)) for _ in range(600)]
    for name, sides in (("src", lines), ("tgt", [[TRANSLATION[word] for word in line[::-1]] for line in lines])):
        (parent / name).write_text("".join(" ".join(line) + "\n" for line in sides))
    return parent / "src", parent / "tgt"


def listed(model: Path, line: str) -> set[int]:
    opened = open_model(model)
    shortlist = read_shortlist(model, opened.tokenizer, opened.tokenizer_file)
    assert shortlist
    options = SearchOptions(shortlist=shortlist)
    return set(shortlist.tokens(Segment([*opened.tokenizer.encode([line])[0], EOS], options)))


def test_translations_of_words_are_learned(model: Path, text: tuple[Path, Path]) -> None:
    """With one translation per token and no frequent tokens, a word lists itself and its translation."""
    assert learn_shortlist(model, *text, best=1, frequent=0) == 0
    encode = Tokenizer(model / "tokenizer.model").encode
    for word in WORDS:
        (own,), (theirs,) = encode([word]), encode([TRANSLATION[word]])
        if len(own) == len(theirs) == 1:
            assert listed(model, word) == {EOS, *own, *theirs}
    assert sum(len(encode([word])[0]) == 1 for word in WORDS) > 9


def test_the_shortlist_of_a_run_is_beside_its_model(model: Path, text: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "run" / "model", ignore=shutil.ignore_patterns(FILE))
    learn_shortlist(tmp_path / "run", *text, best=1, frequent=9)
    assert len(listed(tmp_path / "run" / "model", "")) == 10


def test_frequent_tokens_are_always_listed(model: Path, text: tuple[Path, Path]) -> None:
    learn_shortlist(model, *text, best=1, frequent=9)
    assert len(listed(model, "")) == 10


def test_long_texts_are_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MAX_LINKS", 12 * 25)
    pairs = [(list(range(i, i + 3)), [1, 2, 3]) for i in range(100)]  # 12 links each
    assert learning.within_links(pairs) == pairs[::4]
    assert learning.within_links(pairs[:25]) == pairs[:25]


def test_only_a_sample_of_a_long_text_is_in_memory(
    model: Path, text: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = open_model(model).tokenizer
    pairs, count = learning.encoded_pairs(*text, tokenizer)
    assert count == len(pairs) == 600
    monkeypatch.setattr(learning, "MAX_LINKS", sum((len(src) + 1) * len(tgt) for src, tgt in pairs) // 5)
    kept, count = learning.encoded_pairs(*text, tokenizer)
    assert count == 600
    assert [tgt.tolist() for _, tgt in kept] == [tgt.tolist() for _, tgt in pairs[::4]]
    with (text[0].parent / "long").open("w") as file:
        file.write("der Hund " * 900 + "\n" + "der Hund\n")
    assert learning.encoded_pairs(text[0].parent / "long", text[0].parent / "long", tokenizer)[1] == 1


def test_searches_with_a_shortlist_write_listed_tokens_only(model: Path, text: tuple[Path, Path]) -> None:
    learn_shortlist(model, *text, best=2, frequent=20)
    lines = ["der Hund", "das Haus ist nicht rot", "Baum und Katze"]
    with Translator(model, workers=1, precision="fp32") as translator:
        full = list(translator.translate(lines))
        found = list(translator.translate(lines, shortlist=True))
        for line, translation in zip(lines, found, strict=True):
            assert set(translation.segments[0].hypotheses[0].ids) <= listed(model, line)
        assert [each.text for each in found] != [each.text for each in full]
        (model / FILE).unlink()
    with Translator(model, workers=1, precision="fp32") as translator:
        assert [each.text for each in translator.translate(lines, shortlist=True)] == [each.text for each in full]


def test_a_shortlist_of_another_model_or_a_damaged_one_is_refused(
    model: Path, text: tuple[Path, Path], tmp_path: Path
) -> None:
    learn_shortlist(model, *text, best=2, frequent=20)
    data, opened = (model / FILE).read_bytes(), open_model(model)

    def error(changed: bytes) -> str:
        (tmp_path / FILE).write_bytes(changed)
        with pytest.raises(DataError) as caught:
            read_shortlist(tmp_path, opened.tokenizer, opened.tokenizer_file)
        return str(caught.value)

    assert "is damaged" in error(b"")
    assert "is damaged" in error(data[:-1])
    assert "is damaged" in error(data + b"\0" * 4)
    assert "another tokenizer" in error(data[:16] + bytes(32) + data[48:])
    draw = random.Random(3)
    for _ in range(300):
        changed = bytearray(data)
        at = 48 + 4 * draw.randrange((len(data) - 48) // 4)
        changed[at : at + 4] = draw.choice([-1, 1 << 30]).to_bytes(4, "little", signed=True)
        assert "is damaged" in error(bytes(changed))


def test_missing_empty_and_unequally_long_files_are_refused(
    model: Path, text: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "short").write_text("der Hund\n")
    with pytest.raises(DataError, match="has 600 lines"):
        learn_shortlist(model, text[0], tmp_path / "short", 1, 1)
    with pytest.raises(MissingError, match="is not a file"):
        learn_shortlist(model, text[0], tmp_path / "none", 1, 1)
    for name in ("a", "b"):
        (tmp_path / name).write_text("\n\n")
    with pytest.raises(DataError, match="no pair of lines"):
        learn_shortlist(model, tmp_path / "a", tmp_path / "b", 1, 1)


def test_the_best_translations_and_the_most_frequent_tokens_are_listed() -> None:
    """Each side has its own vocabulary. Of equally good tokens, the lower ids are taken."""
    target: Any = SimpleNamespace(vocabulary_size=12)
    tokenizer: Any = SimpleNamespace(vocabulary_size=6, target=target)
    pairs: Any = [([3], [9, 9, 4]), ([3, 4], [9, 5]), ([4], [5, 7]), ([5], [8])]
    pairs = [(np.array(src, np.int32), np.array(tgt, np.int32)) for src, tgt in pairs]
    found = learning.learn(pairs, tokenizer, best=2, frequent=2)
    assert found.frequent.tolist() == sorted({EOS, 9, 5})
    lists = [found.targets[start:end].tolist() for start, end in zip([0, *found.ends], found.ends, strict=False)]
    assert lists == [[], [], [], [9, 4], [5, 7], [8]]
    assert learning.learn(pairs, tokenizer, best=1, frequent=99).frequent.tolist() == [EOS, 4, 5, 7, 8, 9]
    tokenizer.vocabulary_size, tokenizer.target = 12, tokenizer
    shared = learning.learn(pairs, tokenizer, best=1, frequent=0)
    lists = [shared.targets[start:end].tolist() for start, end in zip([0, *shared.ends], shared.ends, strict=False)]
    assert (shared.frequent.tolist(), lists[:6]) == ([EOS], [[], [1], [2], [3, 9], [4, 5], [5, 8]])


def test_a_word_in_all_sentences_is_not_listed_as_a_translation_of_other_words() -> None:
    """In the first round, 6 and 7 are equally likely translations of token 4. Later rounds leave 6 to token 3."""
    tokenizer: Any = SimpleNamespace(vocabulary_size=8, target=SimpleNamespace(vocabulary_size=9))
    pairs: Any = [(np.array([3, 3 + i], np.int32), np.array([6, 6 + i], np.int32)) for i in (1, 2)]
    found = learning.learn(pairs, tokenizer, best=1, frequent=0)
    lists = [found.targets[start:end].tolist() for start, end in zip([0, *found.ends], found.ends, strict=False)]
    assert lists == [[], [], [], [6], [7], [8], [], []]


def test_the_line_number_in_an_error_is_counted_over_all_chunks(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (learning, readers):
        monkeypatch.setattr(module, "CHUNK", 2)
    (tmp_path / "src").write_bytes(b"der Hund\n" * 6)
    (tmp_path / "tgt").write_bytes(b"der Hund\n" * 4 + b"\xff\n\n")
    with pytest.raises(DataError, match=r"tgt, line 5 is not UTF-8"):
        learn_shortlist(model, tmp_path / "src", tmp_path / "tgt", 1, 1)


def test_pairs_up_to_the_greatest_length_are_used(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pairs with an empty side or a longer line are not used. The message counts the pairs that are used."""
    monkeypatch.setattr(learning, "MOST_TOKENS", 3)
    tokenizer = open_model(model).tokenizer
    word = next(word for word in WORDS if len(tokenizer.encode([word])[0]) == 1)
    lines = [word, "", f"{word} {word} {word}", f"{word} {word} {word} {word}", word]
    (tmp_path / "src").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "tgt").write_text(f"{word}\n" * 4 + "\n")
    assert learn_shortlist(model, tmp_path / "src", tmp_path / "tgt", 1, 1) == 0
    assert "shortlist.bin: 2 pairs; 2 frequent tokens, " in capsys.readouterr().err
    monkeypatch.setattr(learning, "MAX_LINKS", 4)
    assert learn_shortlist(model, tmp_path / "src", tmp_path / "tgt", 1, 1) == 0
    assert "shortlist.bin: 1 pair, of 2; " in capsys.readouterr().err
    monkeypatch.setattr(learning, "MAX_LINKS", 2)  # the second pair is dropped while reading
    assert learning.encoded_pairs(tmp_path / "src", tmp_path / "tgt", tokenizer)[0][0][0].tolist() == [
        *tokenizer.encode([word])[0]
    ]
    assert learn_shortlist(model, tmp_path / "src", tmp_path / "tgt", 1, 1) == 0
    assert "shortlist.bin: 1 pair, of 2; " in capsys.readouterr().err
