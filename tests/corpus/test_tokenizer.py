"""SentencePiece models: training, special tokens, byte fallback, target models."""

import io
from pathlib import Path

import pytest
import sentencepiece
import texts

from nmt_cli.corpus.tokenizer import EOS, PAD, UNK, Tokenizer, copy, files_of, train
from nmt_cli.system.errors import DataError, MissingError

LINES = [line for pair in texts.pairs(500) for line in pair]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(train(LINES, 400))
    return path


def test_text_never_encodes_to_special_tokens(file: Path) -> None:
    tokenizer = Tokenizer(file)
    assert tokenizer.vocabulary_size == 400
    assert tokenizer.tokens([PAD, UNK, EOS]) == ["<pad>", "<unk>", "</s>"]
    assert min(tokenizer.encode(["</s> <unk> <pad> <s>"])[0]) > EOS


def test_a_model_with_a_token_for_the_beginning_of_sentences_is_refused(tmp_path: Path) -> None:
    ids = {"pad_id": PAD, "unk_id": UNK, "eos_id": EOS, "bos_id": 3}
    prefix = tmp_path / "m"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_prefix=str(prefix), vocab_size=60, minloglevel=2, **ids
    )
    with pytest.raises(DataError, match=r"has the ids \(0, 1, 2, 3\) for pad, unk, eos and bos"):
        Tokenizer(prefix.with_suffix(".model"))


def test_any_text_decodes_to_itself_with_unseen_characters_as_bytes(file: Path) -> None:
    lines = [*LINES[:9], "", "Ω 東京 ☃ é ½ 👍🏽 \xad\u200d <0x41> \\"]
    tokenizer = Tokenizer(file)
    ids = tokenizer.encode(lines)
    assert UNK not in ids[-1]
    assert tokenizer.decode(ids) == lines
    assert [list(array) for array in tokenizer.encode_arrays(lines)] == ids


@pytest.mark.parametrize("language", ["de", "zh", "ja-JP"])
def test_every_character_is_a_token_except_rare_chinese_and_japanese_ones(tmp_path: Path, language: str) -> None:
    (tmp_path / "model").write_bytes(train([*LINES, "東"], 400, ("en", language)))
    tokenizer = Tokenizer(tmp_path / "model")
    tokens = tokenizer.tokens(tokenizer.encode(["東"])[0])
    assert tokens[-1] == ("東" if language == "de" else "<0xB1>")
    assert set("".join(LINES).replace(" ", "▁")) <= set(tokenizer.tokens(list(range(400))))


def test_line_breaks_spelled_in_bytes_become_spaces(file: Path) -> None:
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    for char in "\0\t\n\v\f\r\x1c\x1f\x7f\x80\x85\x8d\x9f\u2028\u2029":
        spelled = [model.piece_to_id(f"<0x{byte:02X}>") for byte in char.encode()]
        assert Tokenizer(file).decode([spelled]) == [" "]
    for char in "\xa0\u2027\u202a~":
        spelled = [model.piece_to_id(f"<0x{byte:02X}>") for byte in char.encode()]
        assert Tokenizer(file).decode([spelled]) == [char]
    assert len(Tokenizer(file).decode([list(range(400))])[0].splitlines()) == 1


@pytest.mark.parametrize(
    ("lines", "size", "message"),
    [(LINES, 100_000, "at most"), (LINES, 250, "Raise"), (["a"], 400, "at most 262")],
)
def test_the_error_for_an_impossible_size_names_the_limit(lines: list[str], size: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        train(lines, size)


def test_damaged_and_foreign_models_are_refused(file: Path, tmp_path: Path) -> None:
    model = io.BytesIO()  # with other special tokens
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=300, model_type="bpe", minloglevel=2
    )
    good, bad = file.read_bytes(), tmp_path / "bad.model"
    with pytest.raises(MissingError):
        Tokenizer(bad)
    for data, message in ((b"", "is not"), (good[:-50], "is not"), (model.getvalue(), "nmt requires")):
        bad.write_bytes(data)
        with pytest.raises(DataError, match=rf"bad\.model .*{message}"):
            Tokenizer(bad)


def test_rare_characters_and_long_lines(tmp_path: Path) -> None:
    """In Chinese, Japanese or Korean, a character with a share of 1/1,000 becomes a token, with 1/10,000 it does not.

    Lines of 60,000 bytes are read.
    """
    size = sum(map(len, LINES))
    lines = [*LINES, "東" * (size // 1000), "京" * (size // 10_000)]
    for languages, rare in ((("en", "zh"), 1), (("JA", "en"), 1), (("ko-KR",), 1), (("en", "de"), 0), ((), 0)):
        (tmp_path / "model").write_bytes(train(lines, 400, languages))
        tokenizer = Tokenizer(tmp_path / "model")
        spelled = [tokenizer.tokens(ids)[-1].startswith("<0x") for ids in tokenizer.encode(["東", "京"])]
        assert spelled == [False, bool(rare)]
    (tmp_path / "model").write_bytes(train([*LINES, "ж " * 20_000], 400))
    tokenizer = Tokenizer(tmp_path / "model")
    assert tokenizer.tokens(tokenizer.encode(["ж"])[0])[-1][-1] == "ж"


def test_tags_become_tokens_in_order(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(train(LINES, 400, tags=[">>de<<", ">>bt<<", ">>de<<", ">>x<<y"]))
    tokenizer = Tokenizer(tmp_path / "model")
    assert tokenizer.tokens([3, 4, 5]) == ["▁>>de<<", "▁>>bt<<", "▁>>x<<y"]
    assert [tokenizer.language(ids) for ids in ([4, 9, 3], [9, 4], [5, 9], [], [3])] == [[4], [], [], [], [3]]
    assert tokenizer.encode([">>bt<< the"])[0][0] == 4


def test_a_target_model_is_copied_and_used_with_the_source_model(file: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.model", tmp_path / "b.model"
    copy(file, first)
    assert (files_of(first), first.read_bytes()) == ([first], file.read_bytes())
    assert Tokenizer(first).target.encode_pair("  the\u2028dog", "der") == [
        [*Tokenizer(first).encode(["the dog"])[0], EOS],
        [*Tokenizer(first).encode(["der"])[0], EOS],
    ]
    target = tmp_path / "a.target.model"
    target.write_bytes(train(LINES, 350))
    copy(first, second)
    assert files_of(second) == [second, tmp_path / "b.target.model"]
    assert [path.read_bytes() for path in files_of(second)] == [file.read_bytes(), target.read_bytes()]
    both, alone = Tokenizer(second), Tokenizer(target)
    assert (both.vocabulary_size, both.target.vocabulary_size) == (400, 350)
    assert both.encode_pair("e\u0301 dog", " der \n hund ") == [
        [*both.encode(["é dog"])[0], EOS],
        [*alone.encode(["der hund"])[0], EOS],
    ]


def test_the_prefix_of_translations_is_a_token_of_the_vocabulary(file: Path) -> None:
    tokenizer = Tokenizer(file)
    assert tokenizer.prefix("") == []
    assert tokenizer.prefix("</s>") == [EOS]
    with pytest.raises(DataError, match=r"vocabulary lacks the token '>>deu<<' of decoding\.target_prefix"):
        tokenizer.prefix(">>deu<<")


def test_text_with_only_overlong_lines_trains_no_tokenizer() -> None:
    message = r"^cannot train a tokenizer of 400 tokens: the text has no line of at most 65,536 bytes$"
    with pytest.raises(DataError, match=message):
        train(["x" * 70_000], 400)
