"""The user's files, with general text mixed in."""

from pathlib import Path
from typing import Any

import pytest
import texts

from nmt_cli.corpus.raw_text import RawText, Split
from nmt_cli.corpus.readers import Chunk
from nmt_cli.corpus.sources import source_of
from nmt_cli.corpus.user_files import entry_chunks, mixed, split_chunks, thinned
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError


def test_files_are_read_in_order_with_their_hashes(tmp_path: Path) -> None:
    sets = {f"{split}_{side}": f"{split}.{side}" for split in ("dev", "test", "general") for side in ("src", "tgt")}
    sides: dict[str, Any] = {"train_src": ["a", "b"], "train_tgt": ["c", "d"]}
    section = texts.corpus({"name": "own", "rows": 9, **sides, **sets})
    text = source_of(section).open(tmp_path, tmp_path)
    assert (text.origin, text.advice, text.hashes) == ("local files", "Correct the files", {})
    assert [str(file) for file in text.files] == ["a", "c", "b", "d", *sets.values()]
    assert {name: (split.name, split.rows) for name, split in text.splits.items()} == {
        "train": ("a, c, b, d", 9),
        **{split: (f"{split}.src, {split}.tgt", None) for split in ("dev", "test", "general")},
    }
    lines = {"a": "1\n2\n3\n", "b": "4\n", "c": "5\n6\n7\n", "d": "8\n", "e": "x\ny\n", "f": "z\nw\n"}
    for name, content in lines.items():
        (tmp_path / name).write_text(content)
    files = {key: [str(tmp_path / name) for name in names] for key, names in sides.items()}
    section = texts.corpus({"name": "own", **files, "mix_src": [str(tmp_path / "e")], "mix_tgt": [str(tmp_path / "f")]})
    text = source_of(section).open(tmp_path, tmp_path)
    assert [file.name for file in text.files] == ["a", "c", "b", "d", "e", "f"]
    assert (text.splits["train"].name.count(", "), text.splits["train"].rows) == (5, None)
    pairs = [(src, tgt) for c in text.splits["train"].chunks for src, tgt in zip(c.src, c.tgt, strict=True)]
    assert pairs[:4] == [(b"1", b"5"), (b"2", b"6"), (b"3", b"7"), (b"4", b"8")]
    assert pairs[4:] == [(b"x", b"z"), (b"y", b"w")] * 2
    assert text.hashes == {tmp_path / name: artefact.sha256(tmp_path / name) for name in "abcdef"}


def test_held_out_lines_begin_with_the_tokens_that_the_model_needs(tmp_path: Path) -> None:
    """Cleaning adds the tokens of training lines. Empty lines stay empty."""
    pair = tmp_path / "a.en", tmp_path / "a.fr"
    for file, lines in zip(pair, (["\ufeffone", "", "two"], ["un", "vide", "deux"]), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines))
    sides = ("en", "de"), ("en", "fr")
    files = [str(file) for file in pair]
    entries = [{"files": files, "src": src, "tgt": tgt, "split": s} for s in ("train", "dev") for src, tgt in sides]
    section = texts.bitext_section(*entries)
    found = [chunk.src for chunk in split_chunks(section, "dev", [], {})]
    assert found == [[b">>de<< one", b"", b">>de<< two"], [b">>fr<< one", b"", b">>fr<< two"]]


@pytest.mark.parametrize(("split", "rows"), [("train", 4), ("dev", 6)])
def test_a_limit_ends_the_download_of_training_text_only(split: str, rows: int) -> None:
    section = texts.bitext_section({"corpus": "hub:some/texts"}, {"corpus": "hub:some/texts", "split": "dev"}, limit=3)
    text = RawText("here", {split: Split(split, [Chunk([b"a", b"b"], [b"c", b"d"])] * 3)})
    index = ["train", "dev"].index(split)
    assert sum(len(chunk.src) for chunk in entry_chunks(section, index, {}, {index: text})) == rows


@pytest.mark.parametrize(
    ("own", "general", "share", "times", "taken"),
    [(100, 100, 0.5, 1, 100), (100, 350, 0.5, 3, 300), (100, 9000, 0.5, 10, 1000), (100, 40, 0.5, 1, 100),
     (100, 5000, 0.2, 10, 250), (300, 100, 0.8, 1, 1000)],
)  # fmt: skip
def test_general_text_has_the_requested_share(
    tmp_path: Path, own: int, general: int, share: float, times: int, taken: int
) -> None:
    counts = {"own": own, "general": general}
    for name, count in counts.items():
        (tmp_path / name).write_text("".join(f"{name} {i}\n" for i in range(count)))
    chunks = list(mixed(*([(str(tmp_path / name),) * 2] for name in counts), share, {}))
    lines = [(line, chunk.repetition) for chunk in chunks for line in chunk.src]
    assert len(set(lines)) == len(lines), "repeated lines do not count as duplicates"
    assert [sum(line.startswith(name.encode()) for line, _ in lines) for name in counts] == [times * own, taken]
    used = [int(line.split()[1]) for line, repetition in lines if line.startswith(b"general") and not repetition]
    assert max(used) >= 0.9 * general - 1, "lines come from the whole file"


def test_general_text_is_thinned_evenly_or_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = [Chunk([b"%d" % i for i in part], [b"-%d" % i for i in part], 3) for part in (range(4), range(4, 10))]
    for share, kept in ((0.3, "148"), (0.5, "02468"), (1.0, "0123456789"), (0.04, "")):
        chunks = list(thinned(whole, share))
        assert b"".join(line or b"" for chunk in chunks for line in chunk.src) == kept.encode()
        assert [[b"-%b" % (line or b"") for line in chunk.src] for chunk in chunks] == [chunk.tgt for chunk in chunks]
        assert {chunk.repetition for chunk in chunks} == {3}
    own, general, empty = (
        [(str(texts.write(tmp_path / name, [name] * count)),) * 2]
        for name, count in (("own", 3), ("general", 8), ("empty", 0))
    )
    assert [(len(chunk.src), chunk.repetition) for chunk in mixed(own, general, 0.5, {})] == [(3, 0), (3, 1), (6, 0)]
    assert capsys.readouterr().err == "training text: 2 x your 3 pairs, and 0.75 x the 8 general pairs\n"
    for files in ((own, empty), (empty, general)):
        with pytest.raises(DataError, match=r"^\S*empty, \S*empty: there is no text to mix"):
            list(mixed(*files, 0.5, {}))
