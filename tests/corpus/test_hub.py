"""Data sets of the Hugging Face hub: from a mirror, and from a small local hub through the real client."""

import errno
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hub_server
import pyarrow
import pytest
import texts
from pyarrow import parquet

from nmt_cli.corpus import catalog, store
from nmt_cli.corpus.hub import HubSource
from nmt_cli.corpus.raw_text import RawText
from nmt_cli.corpus.readers import CHUNK, MAX_LINE_BYTES, Chunk
from nmt_cli.recipe import schema
from nmt_cli.system.errors import DataError, DownloadError, MissingError, UsageError

SECTION = {"name": "hub:some/texts", "config": "de-en", "tokenizer": {"vocabulary_size": "400"}}


def data_set(directory: Path, shards: int = 2, columns: bool = False, rows: tuple[int, ...] = (1000, 100, 100)) -> Path:
    """Write a small data set in the hub's layout, with a column `translation` or with one column per language."""
    (directory / "de-en").mkdir(parents=True)
    pairs = [{"de": tgt, "en": src} for src, tgt in texts.pairs(rows[0])]
    held_out = [{"de": f"Satz {i}", "en": f"sentence {i}"} for i in range(rows[1] + rows[2])]  # unlike training
    cuts = {"train": [pairs[i::shards] for i in range(shards)], "validation": [held_out[: rows[1]]]}
    cuts["test"] = [held_out[rows[1] :]]
    files = [{"split": split, "path": f"de-en/{split}-*"} for split in cuts]
    counts = [{"name": split, "num_bytes": 1, "num_examples": sum(map(len, parts))} for split, parts in cuts.items()]
    name = {"config_name": "de-en"}
    card = {"configs": [name | {"data_files": files}], "dataset_info": [name | {"splits": counts}]}
    (directory / "README.md").write_text(f"---\n{json.dumps(card)}\n---\n")
    for split, parts in cuts.items():
        for i, rows in enumerate(parts):
            table = pyarrow.Table.from_pylist(rows) if columns else pyarrow.table({"translation": rows})
            parquet.write_table(table, directory / "de-en" / f"{split}-{i:05}-of-{len(parts):05}.parquet")
    return directory


@pytest.mark.parametrize("name", ["some/texts", "../texts"])
def test_a_directory_never_replaces_a_hub_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The package `datasets` accepts names and paths alike."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    data_set(Path(name))
    with pytest.raises(UsageError, match=f"the local path {name} hides corpus hub:{name}"):
        texts.run(texts.corpus({**SECTION, "name": f"hub:{name}"}), tmp_path / "out")


def test_the_path_of_a_mirror_is_not_a_pattern(tmp_path: Path) -> None:
    mirror = data_set(tmp_path / "mirror [1] of *")
    assert store.open_corpus(texts.run(texts.corpus(SECTION), tmp_path / "out", mirror=mirror), content=True)


def test_a_mirror_must_have_all_shards_and_languages(tmp_path: Path) -> None:
    mirror = data_set(tmp_path / "mirror", shards=3)
    size = 3 * sum(file.stat().st_size for file in mirror.rglob("*.parquet"))
    assert HubSource(texts.corpus({**SECTION, "rows": 3}), mirror).size() == catalog.Size(0, size, 3)
    out = texts.run(texts.corpus(SECTION), tmp_path / "out", mirror=mirror)
    corpus = store.open_corpus(out)
    assert (len(corpus.src), len(corpus.lines("dev")[0]), len(corpus.lines("test")[0])) == (1000, 100, 100)
    texts.run(texts.corpus(SECTION), out, mirror=mirror)  # finished already
    with pytest.raises(DataError, match="no column for 'fr', only translation"):
        texts.run(texts.corpus({**SECTION, "tgt": "fr"}), tmp_path / "no", mirror=mirror)
    shard = mirror / "de-en" / "train-00001-of-00003.parquet"
    shard.write_bytes(b"PAR1 damaged")
    with pytest.raises(DataError, match="some/texts cannot be used"):
        texts.run(texts.corpus(SECTION), tmp_path / "no", mirror=mirror)
    shard.unlink()
    with pytest.raises(MissingError, match="only 2 of the 3 files of the train split"):
        texts.run(texts.corpus(SECTION), tmp_path / "no", mirror=mirror)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mirror", "out"]


def test_a_word_of_its_path_assigns_a_file_to_a_split(tmp_path: Path) -> None:
    names = "train.parquet sub/train-x.parquet valid_0.parquet test/0.parquet training.parquet latest.parquet test.txt"
    for name in names.split():
        (tmp_path / "c" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "c" / name).touch()

    def found(name: str, mirror: Path = tmp_path / "c", **more: Any) -> dict[str, list[str]]:
        files = HubSource(schema.Corpus(name=name, **more), mirror).mirror_files()
        return {split: [str(Path(path).relative_to(mirror)) for path in paths] for split, paths in files.items()}

    expected = {
        "train": ["sub/train-x.parquet", "train.parquet"],
        "dev": ["valid_0.parquet"],
        "test": ["test/0.parquet"],
    }
    assert found("hub:a/b") == expected
    in_config = found("hub:a/b", tmp_path, config="c")
    assert in_config == {split: [f"c/{name}" for name in names] for split, names in expected.items()}
    (tmp_path / "c" / "valid_0.parquet").unlink()
    assert found("hub:a/b").keys() == {"train", "test"}
    with pytest.raises(
        MissingError,
        match=r"c has no data/validation-\*\.parquet\. Download these files from http\S+/datasets/wmt/wmt14",
    ):
        found("hub:wmt/wmt14")
    with pytest.raises(MissingError, match=r"has no c/train-\*\.parquet"):
        found("hub:a/b", tmp_path / "c", config="c")
    (shards := tmp_path / "shards").mkdir()
    (shards / "train-00000-of-00003.parquet").touch()
    with pytest.raises(MissingError, match="shards has only 1 of the 3 files of the train split"):
        found("hub:a/b", shards)
    (shards / "test-00001-of-00002.parquet").touch()
    with pytest.raises(MissingError, match="shards has only 1 of the 2 files of the test split"):
        found("hub:a/b", shards, limit=5)
    (shards / "test-00001-of-00002.parquet").unlink()
    assert found("hub:a/b", shards, limit=5).keys() == {"train"}


class Tables:
    """Rows as the package `datasets` returns them."""

    def __init__(self, *tables: Any) -> None:
        self.tables, self.calls, self.info = tables, list[Any](), SimpleNamespace(splits=None)

    def with_format(self, name: str) -> "Tables":
        self.calls.append(name)
        return self

    def iter(self, rows: int) -> Iterator[Any]:
        self.calls.append(rows)
        yield from self.tables


def test_rows_become_pairs() -> None:
    """A missing text is an empty line, an overlong one is None; a column `translation` is preferred."""
    longest = "ü" * (MAX_LINE_BYTES // 2)
    rows = [{"en": "a", "de": "b"}, {"en": None, "de": longest}, {"en": longest + "x", "de": ""}, None]
    named, columns = pyarrow.table({"translation": rows}), pyarrow.table({"en": ["c"], "de": ["d"], "x": [1]})
    data = Tables(named, columns, pyarrow.table({"translation": rows[:1], "en": ["not"], "de": ["these"]}))

    def chunks(data: Tables, **more: Any) -> Iterator[Chunk]:
        return HubSource(schema.Corpus(name="hub:a/b", **more), None).chunks(data)

    assert list(chunks(data)) == [
        Chunk([b"a", b"", None, b""], [b"b", longest.encode(), b"", b""]),
        Chunk([b"c"], [b"d"]),
        Chunk([b"a"], [b"b"]),
    ]
    assert next(chunks(data, src="de", tgt="en", limit=3)).src == [b"b", longest.encode(), b"", b""]
    assert next(chunks(data, src="de", tgt="en", limit=9999)).tgt[0] == b"a"
    assert data.calls == ["arrow", CHUNK, "arrow", 3, "arrow", CHUNK]
    with pytest.raises(DataError, match=r"a/b cannot be used: no column for 'fr', only en, de, x\. See http"):
        list(chunks(Tables(columns), src="fr"))


class Builder:
    """Stand-in for a builder of the package `datasets`, which records its calls."""

    hash, cache_dir = catalog.WMT14_REVISION, "absent"

    def __init__(self, data: dict[str, Tables]) -> None:
        self.data, self.calls = data, list[Any]()

    def __call__(self, *args: Any, **named: Any) -> "Builder":
        self.calls.append((*args, *named.items()))
        return self

    def as_streaming_dataset(self) -> dict[str, Tables]:
        self.calls.append("streaming")
        return self.data

    def download_and_prepare(self, **named: Any) -> None:
        self.calls.append(named)

    def as_dataset(self) -> dict[str, Tables]:
        self.calls.append("whole")
        return self.data


def test_a_data_set_is_read_at_its_commit_with_its_row_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    data = {name: Tables() for name in ("train", "validation", "test", "extra")}
    for name in ("train", "validation"):
        data[name].info.splits = {name: SimpleNamespace(num_examples=7)}
    builder = Builder(data)
    monkeypatch.setattr(datasets, "load_dataset_builder", builder)

    def opened(name: str, **more: Any) -> tuple[RawText, list[tuple[Any, ...]]]:
        builder.calls.clear()
        text = HubSource(texts.corpus({"name": name, **more}), None).open(tmp_path, tmp_path)
        return text, [(each, split.name, split.rows) for each, split in text.splits.items()]

    whole = [{"verification_mode": "no_checks"}, "whole"]
    text, splits = opened("wmt14-de-en")
    assert splits == [
        ("train", "de-en/train", 4_508_785),
        ("dev", "de-en/validation", 3000),
        ("test", "de-en/test", 3003),
    ]
    assert text.origin == f"https://huggingface.co/datasets/wmt/wmt14 at {builder.hash}"
    assert (text.files, text.advice) == ([], "Remove absent and run again")
    assert builder.calls == [("wmt/wmt14", "de-en", ("revision", catalog.WMT14_REVISION)), *whole]
    text, splits = opened("hub:a/b")
    assert splits == [("train", "hub:a/b/train", 7), ("dev", "hub:a/b/validation", 7), ("test", "hub:a/b/test", None)]
    assert builder.calls == [("a/b", None, ("revision", None)), *whole]
    assert opened("hub:a/b", rows=5)[1][0] == ("train", "hub:a/b/train", 5)
    assert opened("hub:a/b@v1", limit=3, config="c")[1][1] == ("dev", "c/validation", 7)
    assert builder.calls == [("a/b", "c", ("revision", "v1")), "streaming"]
    monkeypatch.setattr(Builder, "cache_dir", str(tmp_path))  # an earlier run downloaded it
    opened("hub:a/b", limit=3)
    assert builder.calls[1:] == whole
    monkeypatch.setattr(Builder, "hash", "0" * 40)
    opened("hub:a/b@v1")
    with pytest.raises(DownloadError, match=f"the cache holds commit {'0' * 40}, not {catalog.WMT14_REVISION}"):
        opened("wmt14-de-en")
    for name in ("train", "validation"):
        del data[name]
    with pytest.raises(DataError, match=r"/datasets/a/b at 0+ has no train split, only test, extra$"):
        opened("hub:a/b")


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (UsageError("ours"), UsageError, "^ours$"),
        (OSError(errno.ENOSPC, "full"), OSError, "full"),
        (caused(ValueError("x"), OSError(errno.EACCES, "no")), PermissionError, "no"),
        (OSError("no number"), DownloadError, "cannot download a/b: no number. Try again later, or download http"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), DownloadError, "reset. Try again later"),
        (caused(KeyError("x"), ConnectionRefusedError(errno.ECONNREFUSED, "refused")), DownloadError, "refused"),
        (KeyError("odd"), DownloadError, "/datasets/a/b/tree/v7/c to DIR/c and pass --mirror DIR$"),
        (ValueError("a\n  b"), DataError, "a/b cannot be used: a b. See http\\S+/datasets/a/b for its configurations"),
        (caused(RuntimeError("x"), ValueError("why")), DataError, "a/b cannot be used: why"),
    ],
    ids=str,
)
def test_errors_of_the_client_become_ours(error: Exception, kind: type[Exception], message: str) -> None:
    source = HubSource(schema.Corpus(name="hub:a/b@v7", config="c"), None)
    with pytest.raises(kind, match=message), source.converted_errors():
        raise error
    if kind is DownloadError:
        source = HubSource(schema.Corpus(name="hub:a/b"), None)
        with pytest.raises(DownloadError, match="/tree/main/data to DIR/data"), source.converted_errors():
            raise error


def test_progress_bars_of_the_client_are_shown_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub.utils

    libraries, source = (datasets, huggingface_hub.utils), HubSource(schema.Corpus(name="hub:a/b"), None)
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
        for library in libraries:
            library.enable_progress_bars()
        with source.converted_errors():
            disabled = [library.are_progress_bars_disabled() for library in libraries]
        assert disabled == [not terminal] * 2


def prepare(hub: hub_server.Hub, tmp_path: Path, *commands: str, **env: str) -> tuple[list[int], str]:
    """Prepare several corpora in turn; return the exit codes and the messages."""
    more = "--workers 1 --overwrite --set corpus.tokenizer.vocabulary_size=400 --out"
    words = [["prepare", *f"{command} {more}".split(), tmp_path / "out"] for command in commands]
    client = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), **hub_server.CLIENT}
    return texts.commands(*words, **client, **env)


def test_wmt14_at_its_pinned_commit_and_again_offline(tmp_path: Path) -> None:
    served, accepted = data_set(tmp_path / "hub", rows=(200, 3000, 3003)), "wmt14-en-de --set corpus.rows=200"
    with hub_server.serving("wmt/wmt14", served, catalog.WMT14_REVISION) as hub:
        hub.cut = hub.busy = 1
        codes, messages = prepare(hub, tmp_path, accepted)
        assert (codes, hub.cut, hub.busy) == ([0], 0, 0), messages
        assert hub.url not in messages, "retries are silent"
        assert sum(r.startswith("GET") and r.endswith(".parquet") for r in hub.requests) == 6  # two of them fail
        assert not any("/main/" in request for request in hub.requests)
    first = store.open_corpus(tmp_path / "out", content=True)
    assert (len(first.lines("dev")[0]), len(first.lines("test")[0])) == (3000, 3003)
    assert len(first.src) == 200
    assert catalog.WMT14_REVISION in first.manifest["origin"]
    other = "hub:some/texts --src en --tgt de"  # the server has stopped
    codes, messages = prepare(hub, tmp_path, "wmt14-en-de", accepted, other, HF_HUB_OFFLINE="1")
    assert codes == [65, 0, 69], messages
    assert store.open_corpus(tmp_path / "out").identity == first.identity
    assert "200 pairs, but 4,508,785 are expected" in messages
    assert re.fullmatch("nmt prepare: error: .* and pass --mirror DIR", messages.strip().split("\n")[-1])


def test_a_limited_data_set_with_columns_is_streamed(tmp_path: Path) -> None:
    words = "--src en --tgt de --config"
    with hub_server.serving("some/texts", data_set(tmp_path / "hub", shards=4, columns=True)) as hub:
        wrong = (f"some/texts@0000000 {words} de-en", f"some/others {words} de-en", f"some/texts {words} fr-en")
        names = [f"some/texts {words} de-en --limit 300", *wrong]
        codes, messages = prepare(hub, tmp_path, *(f"hub:{name}" for name in names))
    assert codes == [0, 65, 65, 65], messages
    assert all(message in messages for message in ("Revision", "doesn't exist", "Available: ['de-en']")), messages
    assert not any("train-00003" in request for request in hub.requests if request.startswith("GET"))
    corpus = store.open_corpus(tmp_path / "out")
    assert (len(corpus.src), len(corpus.lines("dev")[0]), len(corpus.lines("test")[0])) == (300, 100, 100)
    assert hub_server.COMMIT in corpus.manifest["origin"]
    assert not list((tmp_path / "home").rglob("*.arrow"))


def test_a_mirror_may_be_an_excerpt(tmp_path: Path) -> None:
    """An unexpected number of pairs gives only a warning if `advice` is None."""
    mirror = data_set(tmp_path / "mirror")
    text = HubSource(texts.corpus({**SECTION, "rows": 7}), mirror).open(tmp_path, tmp_path)
    assert (text.advice, text.origin, text.splits["train"].rows) == (None, str(mirror), 7)
    assert sorted(file.name for file in text.files) == sorted(file.name for file in mirror.rglob("*.parquet"))
