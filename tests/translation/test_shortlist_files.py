"""Files of shortlists that are accepted or refused."""

import shutil
from pathlib import Path

import pytest
from tiny_model import train_tokenizer

from nmt_cli.corpus.tokenizer import Tokenizer, target_file
from nmt_cli.system.errors import DataError
from nmt_cli.transformer.directory import open_model
from nmt_cli.translation.shortlist import FILE, Shortlist, read_shortlist

V = 340  # tokens
LISTS = [1, *[2] * (V - 1)]  # ends of the lists; only the first two have a token, one each


@pytest.mark.parametrize(
    ("frequent", "ends", "targets", "more", "works"),
    [
        ([1, V - 1], LISTS, [V - 1, 1], b"", True),
        ([], [0] * V, [], b"", True),
        ([V], LISTS, [5, 6], b"", False),
        ([0], LISTS, [5, 6], b"", False),
        ([5], LISTS, [5, V], b"", False),
        ([5], LISTS, [0, 5], b"", False),
        ([5], LISTS, [5, 6, 7], b"", False),  # beyond the last list
        ([5], LISTS, [5], b"", False),
        ([5], LISTS[:-1], [5, 6], b"", False),
        ([5], [*LISTS, 2], [5, 6], b"", False),
        ([5], [2, 1, *[2] * (V - 2)], [5, 6], b"", False),
        *(([5], LISTS, [5, 6], bytes(count), False) for count in (1, 3, 4)),
    ],
)
def test_a_shortlist_needs_a_list_for_each_source_token_and_tokens_of_the_vocabulary(
    model: Path, tmp_path: Path, frequent: list[int], ends: list[int], targets: list[int], more: bytes, works: bool
) -> None:
    opened = open_model(model)
    data = Shortlist(frequent, ends, targets).to_bytes(opened.tokenizer_file)
    (tmp_path / FILE).write_bytes(data + more)
    if works:
        found = read_shortlist(tmp_path, opened.tokenizer, opened.tokenizer_file)
        assert found
        assert ([*found.frequent], [*found.ends], [*found.targets]) == (frequent, ends, targets)
    else:
        with pytest.raises(DataError, match=r"shortlist\.bin is damaged"):
            read_shortlist(tmp_path, opened.tokenizer, opened.tokenizer_file)


def test_a_shortlist_belongs_to_both_tokenizers(model: Path, tmp_path: Path) -> None:
    opened = open_model(model)
    own = shutil.copy(model / "tokenizer.model", tmp_path)
    target = target_file(Path(own))
    target.write_bytes(train_tokenizer(seed=6, size=V - 10))
    (tmp_path / FILE).write_bytes(Shortlist([5], LISTS, [5, 6]).to_bytes(Path(own)))
    assert read_shortlist(tmp_path, opened.tokenizer, Path(own))
    assert read_shortlist(tmp_path, Tokenizer(Path(own)), Path(own))
    target.write_bytes(train_tokenizer(seed=7))
    with pytest.raises(DataError, match="belongs to another tokenizer"):
        read_shortlist(tmp_path, opened.tokenizer, Path(own))
