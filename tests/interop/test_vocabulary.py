"""Foreign vocabularies and SentencePiece models in our order of tokens."""

from pathlib import Path

import pytest

from nmt_cli.interop.vocabulary import convert_tokenizers, in_our_order, read_sentencepiece
from nmt_cli.system.errors import DataError

pytest.importorskip("transformers")

from random_marian import SOURCE, vocabulary


def test_tokens_get_our_order():
    """Special tokens are first, then the others by id. Ids without a token get a name."""
    theirs = {"z": 4, "</s>": 0, "<unk>": 1, "b": 3, "<pad>": 6}
    ours = in_our_order(theirs, 8, Path("v"))
    expected = {"<pad>": 6, "<unk>": 1, "</s>": 0, "<unused 2>": 2, "b": 3, "z": 4, "<unused 5>": 5, "<unused 7>": 7}
    assert list(ours.items()) == list(expected.items())
    for wrong in ({"b": 4}, {"b": 8}, {"b": -1}, {"b": "3"}, {"b": True}, {"b": 3.0}):
        with pytest.raises(DataError, match="the token numbers in v must be distinct and below 8"):
            in_our_order(theirs | wrong, 8, Path("v"))
    for name in ("<pad>", "</s>", "<unk>"):
        with pytest.raises(DataError, match=f"v has no token {name}"):
            in_our_order({token: i for token, i in theirs.items() if token != name}, 8, Path("v"))


def test_the_tokens_of_a_renumbered_model_have_the_given_order(tmp_path):
    """Only exact language tags match at the beginning of a text."""
    (tmp_path / "a.spm").write_bytes(SOURCE)
    names = vocabulary(SOURCE)
    order = ["<pad>", "<unk>", "</s>", ">>deu<<", ">>deu<<x", "x>>deu<<", *names[2:-1][::-1]]
    (made,) = convert_tokenizers([tmp_path / "a.spm"] * 2, [dict.fromkeys(order, 0)], separate=False)
    pieces = read_sentencepiece(tmp_path / "a.spm").FromString(made).pieces
    assert [piece.piece for piece in pieces] == [*order[:3], "▁>>deu<<", *order[4:]]
    kinds = {"control": 3, "unknown": 2, "user": 4, "unused": 5, "normal": 1}
    expected = ["control", "unknown", "control", "user", "unused", "unused", *["normal"] * (len(order) - 6)]
    assert [piece.type for piece in pieces] == [kinds[kind] for kind in expected]
    two = convert_tokenizers([tmp_path / "a.spm"] * 2, [dict.fromkeys(order, 0)] * 2, separate=True)
    assert two == [made, made]  # one for each side, although they are equal
