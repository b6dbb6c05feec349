import io
from pathlib import Path

import pytest
import sentencepiece
import texts

from nmt_cli.corpus.tokenizer import EOS, PAD, UNK, Tokenizer, train
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


def test_any_text_comes_back_and_what_was_never_seen_is_spelled_in_bytes(file: Path) -> None:
    lines = [*LINES[:9], "", "Ω 東京 ☃ é ½ 👍🏽 \xad\u200d <0x41> \\"]
    tokenizer = Tokenizer(file)
    ids = tokenizer.encode(lines)
    assert UNK not in ids[-1]
    assert tokenizer.decode(ids) == lines
    assert [list(array) for array in tokenizer.encode_arrays(lines)] == ids


@pytest.mark.parametrize("language", ["de", "zh", "ja-JP"])
def test_every_character_is_a_token_except_rare_ones_of_chinese_and_japanese(tmp_path: Path, language: str) -> None:
    (tmp_path / "model").write_bytes(train([*LINES, "東"], 400, ("en", language)))
    tokenizer = Tokenizer(tmp_path / "model")
    tokens = tokenizer.tokens(tokenizer.encode(["東"])[0])
    assert tokens[-1] == ("東" if language == "de" else "<0xB1>")
    assert set("".join(LINES).replace(" ", "▁")) <= set(tokenizer.tokens(list(range(400))))


def test_bytes_that_spell_line_breaks_become_spaces(file: Path) -> None:
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    for char in "\0\t\n\v\f\r\x1c\x1f\x7f\x85\x9f\u2028\u2029":
        spelled = [model.piece_to_id(f"<0x{byte:02X}>") for byte in char.encode()]
        assert Tokenizer(file).decode([spelled]) == [" "]
    assert len(Tokenizer(file).decode([list(range(400))])[0].splitlines()) == 1


@pytest.mark.parametrize(
    ("lines", "size", "message"),
    [(LINES, 100_000, "at most"), (LINES, 250, "Raise"), (["a"], 400, "at most 262")],
)
def test_impossible_sizes_are_explained(lines: list[str], size: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        train(lines, size)


def test_damaged_and_other_models_are_refused(file: Path, tmp_path: Path) -> None:
    model = io.BytesIO()  # with other special tokens
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=300, model_type="bpe", minloglevel=2
    )
    good, bad = file.read_bytes(), tmp_path / "bad.model"
    with pytest.raises(MissingError):
        Tokenizer(bad)
    for data, message in ((b"", "is not"), (good[:-50], "is not"), (model.getvalue(), "nmt prepare makes")):
        bad.write_bytes(data)
        with pytest.raises(DataError, match=rf"bad\.model .*{message}"):
            Tokenizer(bad)
