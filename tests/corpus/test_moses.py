"""`corpus.moses` with a stand-in for sacremoses that writes its language into each line."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import texts

from nmt_cli.corpus import hold_out, moses, store, synthetic
from nmt_cli.corpus.cleaning import CleaningStats
from nmt_cli.corpus.readers import Chunk
from nmt_cli.recipe import loading
from nmt_cli.system.errors import UsageError


class Normalizer:
    def __init__(self, lang: str) -> None:
        self.lang = lang

    def normalize(self, text: str) -> str:
        return f"{self.lang}<{text}>"


class Tokenizer:
    def __init__(self, lang: str) -> None:
        self.lang = lang

    def tokenize(self, text: str, **options: Any) -> str:
        assert options == {"return_str": True, "escape": False}
        return f"{self.lang.upper()} {text} ÄÖ"


@pytest.fixture(autouse=True)
def sacremoses(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = SimpleNamespace(MosesPunctNormalizer=Normalizer, MosesTokenizer=Tokenizer)
    monkeypatch.setitem(sys.modules, "sacremoses", stand_in)


def test_each_side_is_converted_by_the_rules_of_its_language() -> None:
    src, tgt = ["\ufeffOne Dog".encode(), b"", None, b"a\xff"], ["Größe".encode(), b"B", b"C", None]
    converted = list(moses.convert([Chunk(src, tgt, 3), Chunk([b"X"], [b"Y"])], "en", "de"))
    assert converted == [
        Chunk(
            ["en en<one dog> äö".encode(), "en en<> äö".encode(), None, b"a\xff"],
            ["de de<größe> äö".encode(), "de de<b> äö".encode(), "de de<c> äö".encode(), None],
            3,
        ),
        Chunk(["en en<x> äö".encode()], ["de de<y> äö".encode()], 0),
    ]


def test_the_error_without_sacremoses_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UsageError, match=r'needs sacremoses\. Install it: pip install "nmt-cli\[moses\]"'):
        list(moses.convert([], "en", "de"))


def test_training_text_and_held_out_sets_are_tokenized_once(tmp_path: Path) -> None:
    pairs = texts.pairs(60)
    named = {f"dev_{side}": str(texts.write(tmp_path / side, ["X Y"])) for side in ("src", "tgt")}
    section = texts.own(tmp_path / "in", pairs, moses=True, hold_out=3, tokenizer={"vocabulary_size": 320}, **named)
    corpus = store.open_corpus(texts.run(section, tmp_path / "out"))
    assert corpus.lines("dev") == (["en en<x y> äö"], ["de de<x y> äö"])
    test = list(zip(*corpus.lines("test"), strict=True))
    assert len(test) == 3
    assert set(test) <= {(f"en en<{src}> äö", f"de de<{tgt}> äö") for src, tgt in pairs}
    assert len(corpus.src) == 57
    assert hold_out.held_out_pairs(section, map) == {"test": [(*pair, section.src, section.tgt) for pair in test]}


def test_files_of_synthetic_text_are_tokenized_by_the_language_of_their_side(tmp_path: Path) -> None:
    texts.write(tmp_path / "mono", ["A b"])
    for side, expected in (("src", "en en<a b> äö\n"), ("tgt", "de de<a b> äö\n")):
        entry = loading.from_plain(
            {"corpus": {"synthetic": [{"side": side, "files": [str(tmp_path / "mono")], "model": "m"}], "moses": True}},
            "x",
        ).corpus
        inputs = synthetic.Inputs(entry, tmp_path, tmp_path, [], list)
        synthetic.select_lines(entry.synthetic[0], inputs, tmp_path / "real", CleaningStats())
        assert (tmp_path / "real").read_text() == expected
