from pathlib import Path

import pytest
import sentencepiece
import texts
from hypothesis import given
from hypothesis import strategies as st

from nmt_cli.corpus.tokenizer import EOS, PAD, UNK, Tokenizer, normalise, train
from nmt_cli.errors import DataError, MissingError

LINES = [line for pair in texts.pairs(500) for line in pair]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(train(LINES, 400))
    return path


def test_special_tokens_cannot_be_named_by_text(file: Path) -> None:
    tokenizer = Tokenizer(file)
    assert tokenizer.vocabulary_size == 400
    assert tokenizer.tokens([PAD, UNK, EOS]) == ["<pad>", "<unk>", "</s>"]
    assert min(tokenizer.encode(["</s> <unk> <pad> <s>"])[0]) > EOS


def test_what_was_never_seen_is_spelled_in_bytes(file: Path) -> None:
    tokenizer = Tokenizer(file)
    ids = tokenizer.encode(["Ω 東京 ☃"])
    assert UNK not in ids[0]
    assert tokenizer.decode(ids) == ["Ω 東京 ☃"]
    assert [list(array) for array in tokenizer.encode_arrays(["Ω 東京 ☃"])] == ids


@pytest.mark.parametrize("language", ["de", "zh", "ja-JP"])
def test_every_character_is_a_token_except_rare_ones_of_chinese_and_japanese(tmp_path: Path, language: str) -> None:
    (tmp_path / "model").write_bytes(train([*LINES, "東"], 400, ("en", language)))
    tokenizer = Tokenizer(tmp_path / "model")
    tokens = tokenizer.tokens(tokenizer.encode(["東"])[0])
    assert tokens[-1] == ("東" if language == "de" else "<0xB1>")
    assert all(char in tokenizer.tokens(list(range(400))) for char in "".join(LINES).replace(" ", "▁"))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
def test_normalised_text_comes_back_exactly(file: Path, text: str) -> None:
    line = normalise(text)
    tokenizer = Tokenizer(file)
    assert tokenizer.decode(tokenizer.encode([line])) == [line]


@given(st.lists(st.integers(0, 399)))
def test_output_is_one_line_whatever_the_ids(file: Path, ids: list[int]) -> None:
    [text] = Tokenizer(file).decode([ids])
    assert len((text + "x").splitlines()) == 1


def test_bytes_that_spell_line_breaks_become_spaces(file: Path) -> None:
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    for spelled in (["<0x0A>"], ["<0x0D>"], ["<0xE2>", "<0x80>", "<0xA8>"], ["<0xC2>", "<0x85>"]):
        assert Tokenizer(file).decode([[model.piece_to_id(piece) for piece in spelled]]) == [" "]


@pytest.mark.parametrize(
    ("lines", "size", "message"),
    [(LINES, 100_000, "at most"), (LINES, 250, "Raise"), (["a"], 400, "at most 262")],
)
def test_impossible_sizes_are_explained(lines: list[str], size: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        train(lines, size)


@pytest.mark.parametrize("damage", ["empty", "cut", "garbage"])
def test_damaged_models_are_refused(file: Path, tmp_path: Path, damage: str) -> None:
    data = file.read_bytes()
    bad = {"empty": b"", "cut": data[:-50], "garbage": b"model" * 100}[damage]
    (tmp_path / "bad.model").write_bytes(bad)
    with pytest.raises(DataError, match=r"bad\.model is not"):
        Tokenizer(tmp_path / "bad.model")
    with pytest.raises(MissingError):
        Tokenizer(tmp_path / "none.model")


def test_models_with_other_special_tokens_are_refused(tmp_path: Path) -> None:
    prefix = tmp_path / "other"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_prefix=str(prefix), vocab_size=300, model_type="bpe", minloglevel=2
    )
    with pytest.raises(DataError, match="nmt prepare makes"):
        Tokenizer(prefix.with_suffix(".model"))
