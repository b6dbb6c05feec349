"""The files of a prepared corpus."""

from pathlib import Path

import numpy as np
import pytest

from nmt_cli.corpus import store
from nmt_cli.corpus.store import Corpus, Side, SideWriter


@pytest.mark.parametrize(("vocabulary", "kind"), [(300, "<u2"), (1 << 16, "<u2"), ((1 << 16) + 1, "<u4")])
def test_ids_and_offsets_have_the_documented_layout(tmp_path: Path, vocabulary: int, kind: str) -> None:
    last = vocabulary - 1
    with SideWriter(tmp_path, "tgt", vocabulary) as side:
        side.append(np.array([7, 8, 2, last, 2], np.int32), np.array([3, 2]))
        side.append(np.array([], np.int32), np.array([], np.int64))
        side.append(np.array([2], np.int32), np.array([1]))
        assert side.tokens == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.tgt.ids", "train.tgt.offsets"]
    assert (tmp_path / "train.tgt.ids").read_bytes() == np.array([7, 8, 2, last, 2, 2], kind).tobytes()
    assert (tmp_path / "train.tgt.offsets").read_bytes() == np.array([0, 3, 5, 6], "<i8").tobytes()
    with pytest.raises(FileExistsError):
        SideWriter(tmp_path, "tgt", vocabulary)


def side(*lengths: int) -> Side:
    offsets = np.cumsum([0, *lengths])
    return Side(np.arange(offsets[-1], dtype=np.uint16), offsets)


def test_blocks_have_the_lengths_of_all_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BLOCK", 2)
    assert [block.tolist() for block in side(3, 1, 4, 1, 5).length_blocks()] == [[3, 1], [4, 1], [5]]


def test_sentences_are_gathered_in_the_requested_order() -> None:
    some = side(3, 1, 2, 4)
    assert (len(some), some.lengths().tolist()) == (4, [3, 1, 2, 4])
    for sentences, ids in (
        ([0], [0, 1, 2]),
        ([3, 1, 3], [6, 7, 8, 9, 3, 6, 7, 8, 9]),
        ([2, 0], [4, 5, 0, 1, 2]),
        ([], []),
    ):
        found, lengths = some.gather(np.array(sentences, int))
        assert found.tolist() == ids
        assert lengths.tolist() == [[3, 1, 2, 4][i] for i in sentences]
        assert found.dtype == np.int64


def test_seen_tokens_cover_all_sources_but_one_in_a_thousand() -> None:
    for lengths, seen in ((range(1, 1001), 1000), ([5] * 2000 + [900], 5), ([5] * 500 + [900], 453), ([7], 7)):
        assert Corpus(Path(), {}, side(*lengths), side(*[1000] * len(lengths))).seen_tokens == seen


@pytest.mark.parametrize(
    ("counts", "parts"), [([2, 2], [2, 2]), ([4], [4]), ([0, 4], [0, 4]), ([2, 1], [4]), ([3, 2], [4]), ([], [4])]
)
def test_parts_that_do_not_add_up_count_as_one_part(counts: list[int], parts: list[int]) -> None:
    """The manifests of older versions have no parts."""
    manifest = {"parts": [{"name": "x", "pairs": count} for count in counts]}
    assert Corpus(Path(), manifest, side(1, 2, 3, 4), side(1, 1, 1, 1)).parts == parts
    assert Corpus(Path(), {}, side(1, 2, 3, 4), side(1, 1, 1, 1)).parts == [4]
