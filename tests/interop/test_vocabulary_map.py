"""Vocabulary maps of CTranslate2 as shortlists."""

from pathlib import Path

import pytest
from tiny_model import make_model

from nmt_cli.corpus.tokenizer import EOS, UNK
from nmt_cli.interop.vocabulary_map import import_vocabulary_map, read_vocabulary_map
from nmt_cli.system.errors import DataError, MissingError
from nmt_cli.transformer.directory import open_model
from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.segments import Segment
from nmt_cli.translation.shortlist import read_shortlist


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


def test_ngrams_list_their_tokens_and_those_of_the_empty_ngram_are_always_listed(model: Path, tmp_path: Path) -> None:
    opened = open_model(model)
    names = opened.tokenizer.tokens(list(range(opened.tokenizer.vocabulary_size)))
    a, b, c, d, e, f = range(300, 306)
    lines = [f"\t{names[a]}", f"{names[b]}\t{names[c]} {names[d]} nothing", f"{names[c]} {names[e]}\t{names[f]}"]
    (tmp_path / "vmap.txt").write_text("".join(f"{line}\n" for line in [*lines, f"nothing\t{names[a]}"]))
    assert import_vocabulary_map(model, tmp_path / "vmap.txt") == 0
    shortlist = read_shortlist(model, opened.tokenizer, opened.tokenizer_file)
    assert shortlist
    found = {
        source: shortlist.tokens(Segment([source, EOS], SearchOptions(shortlist=shortlist))) for source in (a, b, c, e)
    }
    assert found == {a: [UNK, EOS, a], b: [UNK, EOS, a, c, d], c: [UNK, EOS, a, f], e: [UNK, EOS, a]}


def test_invalid_vocabulary_maps_are_refused(model: Path, tmp_path: Path) -> None:
    file, opened = tmp_path / "vmap.txt", open_model(model)
    for data, words in ((b"no tab\n", "line 1 has no tab"), (b"\xff\t\n", "is not UTF-8"), (b"x\ty\n", "has no token")):
        file.write_bytes(data)
        with pytest.raises(DataError, match=words):
            read_vocabulary_map(file, opened.tokenizer)
    with pytest.raises(MissingError, match="no file"):
        import_vocabulary_map(model, tmp_path / "none")
