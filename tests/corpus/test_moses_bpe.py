"""Moses tokens split by subword-nmt's codes."""

import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from growth import is_linear
from moses_files import CODES, NAMES, SPECIAL, write_tokenizer

from nmt_cli.corpus import moses_bpe
from nmt_cli.corpus.tokenizer import EOS, PAD, UNK, Tokenizer
from nmt_cli.system.errors import DataError, UsageError

FILE = Path("bpe.model")


def named(tokenizer: Tokenizer, line: str) -> list[str]:
    return [tokenizer.vocabulary[i] for i in tokenizer.encode([line])[0]]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    pytest.importorskip("sacremoses")
    return Tokenizer(write_tokenizer(tmp_path / "tokenizer.model", ("en", "de")))


def extended(directory: Path, *more: str, language: str = "en") -> Tokenizer:
    """Return a tokenizer with further tokens."""
    file = directory / "extended.model"
    file.write_bytes(moses_bpe.to_bytes(language, CODES, [*SPECIAL, *NAMES, *more]))
    return Tokenizer(file)


def slowly_split(word: str, merges: list[tuple[str, str]], *, separate_end: bool) -> list[str]:
    """Split a word as subword-nmt describes it: merge all occurrences of the first pair until none is left."""
    symbols = [*word, "</w>"] if separate_end else [*word[:-1], word[-1] + "</w>"]
    while found := [pair for pair in itertools.pairwise(symbols) if pair in merges]:
        first, merged, index = min(found, key=merges.index), list[str](), 0
        while index < len(symbols):
            size = 2 if (*symbols[index : index + 2],) == first else 1
            merged.append("".join(symbols[index : index + size]))
            index += size
        symbols = merged
    return [symbol for symbol in [*symbols[:-1], symbols[-1].removesuffix("</w>")] if symbol]


@pytest.mark.parametrize("version", ["", "#version: 0.1\n", "#version: 0.2\n"])
def test_words_split_as_by_merging_one_pair_after_the_other(version: str) -> None:
    """Also with codes that subword-nmt would not learn: in any order, and repeated."""
    draw = random.Random(1)
    for _ in range(300):
        symbols = ["a", "b", *(["</w>"] if "0.2" not in version else ["a</w>", "b</w>"])]
        merges = []
        for _ in range(12):
            left, right = draw.choice(symbols), draw.choice(symbols)
            if not left.endswith("</w>"):
                merges.append((left, right))
                symbols.append(left + right)
        draw.shuffle(merges)
        codes = moses_bpe.Codes(version + "".join(f"{left} {right}\r\n" for left, right in merges), FILE)
        for _ in range(5):
            word = "".join(draw.choices("ab", k=draw.randint(1, 12)))
            assert codes.split(word) == slowly_split(word, merges, separate_end="0.2" not in version), (merges, word)


def test_long_words_take_linear_time(tmp_path: Path) -> None:
    doubling = moses_bpe.Codes("".join(f"{'a' * 2**i} {'a' * 2**i}\n" for i in range(20)), FILE)
    growing = moses_bpe.Codes("".join(f"{'a' * i} a\n" for i in range(1, 400)), FILE)
    assert [*map(len, doubling.split("a" * 99))] == [64, 32, 2, 1]
    assert [*map(len, growing.split("a" * 99))] == [2] * 48 + [3]
    for run in (doubling.split, growing.split):
        assert is_linear(run, "a")
    pytest.importorskip("sacremoses")
    german = Tokenizer(write_tokenizer(tmp_path / "tokenizer.model", ("de", "en")))
    for unit in (".", "…", "a.b. ", "a", "'"):
        assert is_linear(lambda text: german.encode([text]), unit), unit


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        ("#version: 0.2\nt h\nth\n", "line 3 of its codes does not have two symbols"),
        ("t h e\n", "line 1 of its codes does not have two symbols"),
        ("t h\n\n", "line 2 of its codes"),
        ("#version: 0.3\nt h\n", "codes of version '0.3', but nmt supports 0.1 and 0.2"),
        ("a b\n" * 200_001, "has 200,001 merges, but nmt supports at most 200,000"),
    ],
)
def test_codes_that_are_refused(codes: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        moses_bpe.Codes(codes, FILE)


def test_codes_without_merges_split_words_into_characters() -> None:
    for text in ("", "#version: 0.2", "#version: 0.2\n"):
        assert moses_bpe.Codes(text, FILE).split("dog") == ["d", "o", "g"]


def test_text_is_encoded_and_decoded_as_by_argostranslate(tokenizer: Tokenizer) -> None:
    expected = ["the", "old", "cat", "&apos;s", "do@@", "t@@", "s", ",", "a@@", "t", "."]
    assert named(tokenizer, "the old cat’s dots, at.") == expected
    ids = tokenizer.encode(["the old cat's dots, at."])
    assert [array.tolist() for array in tokenizer.encode_arrays(["the old cat's dots, at.", ""])] == [*ids, []]
    assert tokenizer.decode(ids) == ["the old cat's dots, at."]
    assert tokenizer.target.decode(ids) == ["the old cat 's dots, at."]  # by the rules of German
    assert tokenizer.target.target is tokenizer.target


def test_the_tokens_of_a_text_spell_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    ids = tokenizer.encode(["the old cat's dots, at."])[0]
    spelled = ["▁the", "▁old", "▁cat", "'s", "▁do", "t", "s", ",", "▁a", "t", "."]
    assert tokenizer.tokens([*ids, EOS]) == [*spelled, "</s>"]
    # Detokenization turns @-@ into a hyphen, so the tokens cannot spell the text.
    aggressive = extended(tmp_path, "@-@")
    ids = [aggressive.vocabulary.index(name) for name in ("th@@", "e", "@-@", "cat")]
    assert aggressive.decode([ids]) == ["the-cat"]
    assert aggressive.tokens(ids) == ["▁th", "e", "▁@-@", "▁cat"]


def test_unknown_hidden_and_unfinished_tokens(tokenizer: Tokenizer) -> None:
    dog, do = tokenizer.vocabulary.index("dog"), tokenizer.vocabulary.index("do@@")
    assert named(tokenizer, "dog é </s> <pad>") == ["dog", "<unk>", *named(tokenizer, "</s> <pad>")]
    assert not {PAD, EOS} & {*tokenizer.encode(["</s> <pad>"])[0]}
    assert tokenizer.decode([[dog, UNK, dog], [PAD, dog, EOS], [dog, do], []]) == ["dog ⁇ dog", "dog", "dog do", ""]
    assert tokenizer.tokens([dog, UNK, EOS, dog, do]) == ["▁dog", "▁⁇", "</s>", "▁dog", "▁do"]


def test_language_tokens_begin_a_source(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tagged = extended(tmp_path, ">>deu<<", ">>tm<<")
    assert named(tagged, ">>deu<< >>tm<< the cat") == [">>deu<<", ">>tm<<", "the", "cat"]
    assert tagged.language(tagged.encode([">>deu<< the >>deu<<"])[0]) == [len(SPECIAL + NAMES)]
    assert named(tagged, ">>tm<<") == [">>tm<<"]
    assert ">>deu<<" not in named(tagged, ">>deu<<the") + named(tagged, "the >>deu<<")
    assert named(tagged, ">>tm<< " * 3).count(">>tm<<") == 2


def test_long_words_are_cut(tokenizer: Tokenizer) -> None:
    assert len(named(tokenizer, "c" * 500 + " cat")) == 501
    assert tokenizer.decode(tokenizer.encode(["at" * 400 + " cat"])) == [f"{'at' * 250} {'at' * 150} cat"]


def test_scores_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="bpe_dropout requires a SentencePiece model"):
        tokenizer.score(5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokens": "a"}, "its tokens must be a list"),
        ({"hidden": None}, "its hidden must be a list"),
        ({"tokens": ...}, "its tokens must be a list"),  # ... stands for a value that the file lacks
        ({"hidden": ...}, "its hidden must be a list"),
        ({"language": ...}, "its values must be text"),
        ({"codes": ...}, "its values must be text"),
        ({"language": 1}, "its values must be text"),
        ({"codes": ["a b"]}, "its values must be text"),
        ({"tokens": [*SPECIAL, 5]}, "its values must be text"),
        ({"hidden": [["x"]]}, "its values must be text"),
        ({"tokens": [*SPECIAL, "\ud800"]}, "its values must be text"),
        ({"tokens": [*SPECIAL, "a", "a"]}, "its tokens must be distinct"),
        ({"tokens": SPECIAL[:2]}, "begin with <pad> <unk> </s>"),
        ({"codes": "a"}, "does not have two symbols"),
    ],
)
def test_damaged_tokenizer_files(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    values = {"language": "en", "codes": CODES, "tokens": SPECIAL, "hidden": []} | change
    present = {name: value for name, value in values.items() if value is not ...}
    (tmp_path / "tokenizer.model").write_text(json.dumps(present))
    with pytest.raises(DataError, match=reason):
        Tokenizer(tmp_path / "tokenizer.model")


def test_a_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    for text in ("{", "{" * 100_000, '{"tokens": ['):
        (tmp_path / "tokenizer.model").write_text(text)
        with pytest.raises(DataError, match="is not a JSON object"):
            Tokenizer(tmp_path / "tokenizer.model")


def test_the_error_without_sacremoses_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UsageError, match=r'bpe\.model needs sacremoses\. Install it: pip install "nmt-cli\[moses\]"'):
        Tokenizer(write_tokenizer(tmp_path / "tokenizer.model", ("en", "de")))


def test_czech_text_on_which_sacremoses_fails(tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    czech = extended(tmp_path, "e'", "-", "li", language="cs")
    first = czech.vocabulary.index("e'")
    assert czech.decode([[first, first + 1, first + 2]]) == ["e' - li"]
