import errno
import gzip
import http.client
import json
import re
import urllib.error
from collections.abc import Iterator
from contextlib import nullcontext
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hub_server
import pyarrow
import pytest
import texts
from pyarrow import parquet

from nmt_cli.corpus import sources, store
from nmt_cli.recipe import schema
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, DownloadError, MissingError, UsageError


@pytest.mark.parametrize(
    ("name", "typed", "chosen"),
    [
        (None, {}, {"name": "toy-en-de", "src": "en", "tgt": "de"}),
        ("multi30k-de-en", {"limit": 5}, {"name": "multi30k-de-en", "src": "de", "limit": 5}),
        ("hub:a/b@v1", {"src": ["en"], "tgt": ["cs"]}, {"name": "hub:a/b@v1", "src": "en", "tgt": "cs"}),
        (None, {"src": ["a/news.en.gz"], "tgt": ["b.txt"]}, {"name": "out", "src": "en", "tgt": "tgt"}),
        (None, {"src": ["x.fr.txt"], "tgt": ["x.zh-CN"], "tokenizer": Path("m")}, {"src": "fr", "tgt": "zh"}),
        (None, {"src": ["a.pt.txt.gz", "b.es"], "tgt": ["a.sr_Latn", "b.cs"]}, {"src": "pt", "tgt": "sr"}),
        (None, {"src": ["in.de/a"], "tgt": ["b.text"]}, {"train_src": ["in.de/a"], "src": "src", "tgt": "tgt"}),
        ("toy", {"limit": 5}, {"name": "toy-en-de", "limit": 5}),  # a recipe
        ("recipes/toy.yaml", {"config": "x"}, {"name": "toy-en-de", "config": "x"}),
    ],
)
def test_what_is_typed_chooses_the_corpus(
    name: str | None, typed: dict[str, object], chosen: dict[str, object]
) -> None:
    section = sources.choose(name, {"dev_src": None, **typed}, Path("data/out"), ["corpus.seed=3"])
    assert {key: getattr(section, key) for key in chosen} == chosen
    assert section.seed == 3
    assert section.tokenizer.file == ("m" if "tokenizer" in typed else None)


def test_settings_are_laid_over_what_is_typed_and_that_over_the_names_own(tmp_path: Path) -> None:
    for file in ("mine.yml", "plain"):
        (tmp_path / file).write_text("corpus: {name: toy-en-de, limit: 70, rows: 80, seed: 90}")
        section = sources.choose(str(tmp_path / file), {"limit": 7}, None, ["corpus.rows=8", "training.steps=3"])
        assert (section.name, section.limit, section.rows, section.seed) == ("toy-en-de", 7, 8, 90)
    assert sources.choose(None, {"limit": 7}, None, ["corpus.limit=8"]).limit == 8
    typed = {"src": ["a.en"], "tgt": ["a.de"]}
    assert sources.choose(None, typed, None, []).name == "mine"
    assert sources.choose(None, typed, Path("data/news.v1.2"), []).name == "news.v1.2"
    assert sources.choose(None, typed, None, ["corpus.src=fr"]).src == "fr"
    for name in ("none.yaml", "none.yml"):
        with pytest.raises(MissingError, match=name):
            sources.choose(name, {}, None, [])
    with pytest.raises(UsageError, match=r"corpus\.limit must be greater than or equal to 1, not '0'"):
        sources.choose(None, {"limit": 0}, None, [])


OWN_ONLY: list[dict[str, object]] = [
    {"hold_out": 5},
    {"general_src": "a", "general_tgt": "b"},
    {"mix_src": ["a"], "mix_tgt": ["b"]},
]


@pytest.mark.parametrize(
    ("name", "typed", "message"),
    [
        ("hub:a/b", {}, "needs its languages"),
        ("hub:../../etc", {"src": ["en"], "tgt": ["de"]}, "hub:OWNER/NAME"),
        ("multi30k-en-da", {}, "Known: .*multi30k-en-de"),
        ("recipes/toy.yaml", {"src": ["a"], "tgt": ["b"]}, "brings its own text"),
        (None, {"src": ["a"]}, "both sides"),
        (None, {"tgt": ["a"]}, "both sides"),
        ("hub:a/b", {"src": ["en"]}, "both sides"),
        ("hub:a", {"src": ["en"], "tgt": ["de"]}, "hub:OWNER/NAME"),
        ("hub:a/b@", {"src": ["en"], "tgt": ["de"]}, "hub:OWNER/NAME"),
        *((None, settings, "mix_src, general_src and hold_out go with") for settings in OWN_ONLY),
        (None, {"src": ["a"], "tgt": ["b"], "name": "toy-en-de"}, "another corpus.name"),
        (None, {"src": ["a"], "tgt": ["b"], "dev_src": "c"}, "corpus.dev_src and corpus.dev_tgt must name as many"),
        (None, {"src": ["a"], "tgt": ["b"], "test_tgt": "d"}, "corpus.test_src and corpus.test_tgt must"),
    ],
)
def test_what_does_not_fit_together_is_refused(name: str | None, typed: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sources.family(sources.choose(name, typed, None, []))


def test_each_name_has_its_kind_and_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    hub, multi30k = "https://huggingface.co/datasets", sources.MULTI30K_URL
    for name, kind, origin in (
        ("toy-en-de", "toy", "generated"),
        ("toy-de-en", "toy", "generated"),
        ("multi30k-cs-en", "multi30k", multi30k),
        ("multi30k-en-fr", "multi30k", multi30k),
        ("wmt14-de-en", "hub", f"{hub}/wmt/wmt14"),
        ("wmt14-en-fr", "hub", f"{hub}/wmt/wmt14"),
        ("hub:some.one/of_it@refs/pr/1", "hub", f"{hub}/some.one/of_it"),
    ):
        section = schema.Corpus(name=name)
        assert (sources.family(section), sources.origin(section, None)) == (kind, origin)
        assert sources.origin(section, Path("here")) == ("generated" if kind == "toy" else "here")
        assert sources.local_files(section, None) == []
        with pytest.raises(MissingError, match=r"no directory none \(--mirror\)"):
            sources.open_text(section, Path("none"), Path(), Path())
    with pytest.raises(UsageError, match="unknown corpus ''"):
        sources.family(schema.Corpus(name=None))  # as an imported model has it
    own = schema.Corpus(name="own", train_src=["a"], train_tgt=["b"])
    assert (sources.family(own), sources.origin(own, None)) == ("own", "local files")
    monkeypatch.setenv("HF_ENDPOINT", "http://near")
    assert sources.origin(schema.Corpus(name="hub:a/b"), None) == "http://near/datasets/a/b"


def test_the_users_files_are_listed_with_their_sets_in_order(tmp_path: Path) -> None:
    sets = {f"{split}_{side}": f"{split}.{side}" for split in ("dev", "test", "general") for side in ("src", "tgt")}
    sides: dict[str, Any] = {"train_src": ["a", "b"], "train_tgt": ["c", "d"]}
    section = texts.corpus({"name": "own", "rows": 9, **sides, **sets})
    text = sources.open_text(section, None, tmp_path, tmp_path)
    assert (text.origin, text.advice, text.hashes) == ("local files", "Correct the files", {})
    assert [str(file) for file in text.files] == ["a", "c", "b", "d", *sets.values()]
    assert {name: (split.name, split.rows) for name, split in text.splits.items()} == {
        "train": ("a, c, b, d", 9),
        **{split: (f"{split}.src, {split}.tgt", None) for split in ("dev", "test", "general")},
    }
    for name, pairs in {
        "a": "1\n2\n3\n",
        "b": "4\n",
        "c": "5\n6\n7\n",
        "d": "8\n",
        "e": "x\ny\n",
        "f": "z\nw\n",
    }.items():
        (tmp_path / name).write_text(pairs)
    files = {key: [str(tmp_path / name) for name in names] for key, names in sides.items()}
    mixed = texts.corpus({"name": "own", **files, "mix_src": [str(tmp_path / "e")], "mix_tgt": [str(tmp_path / "f")]})
    text = sources.open_text(mixed, None, tmp_path, tmp_path)
    assert [file.name for file in text.files] == ["a", "c", "b", "d", "e", "f"]
    assert (text.splits["train"].name.count(", "), text.splits["train"].rows) == (5, None)
    pairs_read = [(src, tgt) for c in text.splits["train"].chunks for src, tgt in zip(c.src, c.tgt, strict=True)]
    assert pairs_read[:4] == [(b"1", b"5"), (b"2", b"6"), (b"3", b"7"), (b"4", b"8")]
    assert pairs_read[4:] == [(b"x", b"z"), (b"y", b"w")] * 2
    assert {file.name: digest for file, digest in text.hashes.items()} == {
        name: artefact.sha256(tmp_path / name) for name in "abcdef"
    }


@pytest.mark.parametrize(
    ("own", "general", "share", "times", "mixed"),
    [(100, 100, 0.5, 1, 100), (100, 350, 0.5, 3, 300), (100, 9000, 0.5, 10, 1000), (100, 40, 0.5, 1, 100),
     (100, 5000, 0.2, 10, 250), (300, 100, 0.8, 1, 1000)],
)  # fmt: skip
def test_general_text_is_the_share_that_was_asked_for(
    tmp_path: Path, own: int, general: int, share: float, times: int, mixed: int
) -> None:
    files = {"mine": own, "general": general}
    for name, count in files.items():
        (tmp_path / name).write_text("".join(f"{name} {i}\n" for i in range(count)))
    chunks = list(sources._mixed(*([(str(tmp_path / name),) * 2] for name in files), share, {}))
    lines = [(line, chunk.repetition) for chunk in chunks for line in chunk.src]
    assert len(set(lines)) == len(lines)  # what comes again is no duplicate
    counts = [sum(line.startswith(name.encode()) for line, _ in lines) for name in files]
    assert counts == [times * own, mixed]
    used = [int(line.split()[1]) for line, repetition in lines if line.startswith(b"general") and not repetition]
    assert max(used) >= 0.9 * general - 1  # from all of the file


def test_general_text_is_thinned_evenly_and_repeated_to_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [
        sources.Chunk([b"%d" % i for i in part], [b"-%d" % i for i in part], 3) for part in (range(4), range(4, 10))
    ]
    for share, kept in ((0.3, "148"), (0.5, "02468"), (1.0, "0123456789"), (0.04, "")):
        thinned = list(sources._thinned(whole, share))
        assert b"".join(line or b"" for chunk in thinned for line in chunk.src) == kept.encode()
        assert [[b"-%b" % (line or b"") for line in chunk.src] for chunk in thinned] == [chunk.tgt for chunk in thinned]
        assert {chunk.repetition for chunk in thinned} == {3}
    files = {
        name: [(str(texts.write(tmp_path / name, [name] * count)),) * 2] for name, count in (("own", 3), ("mix", 8))
    }
    chunks = [(len(chunk.src), chunk.repetition) for chunk in sources._mixed(files["own"], files["mix"], 0.5, {})]
    assert chunks == [(3, 0), (3, 1), (6, 0)]  # 8 / 3 is nearer to 3 times, for which there is too little
    assert capsys.readouterr().err == "training text: 2 x your 3 pairs, and 0.75 x the 8 general pairs\n"
    nothing = [(str(texts.write(tmp_path / "empty", [])),) * 2]
    for own, mix in ((files["own"], nothing), (nothing, files["mix"])):
        with pytest.raises(DataError, match=r"^\S*empty, \S*empty: there is no text in it to mix"):
            list(sources._mixed(own, mix, 0.5, {}))


def test_sizes_are_estimated_from_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("a", 100), ("b.gz", 10), ("c", 7), ("d", 5)):
        (tmp_path / name).write_bytes(bytes(size))

    def own(*names: str, **more: Any) -> schema.Corpus:
        paths = [str(tmp_path / name) for name in names]
        return texts.corpus({"name": "own", "train_src": paths[:1], "train_tgt": paths[1:2], **more})

    assert sources.estimate(own("a", "b.gz"), None) == (0, 130, None)
    more = {"dev_src": str(tmp_path / "c"), "dev_tgt": str(tmp_path / "d")}
    assert sources.estimate(own("a", "b.gz", rows=6, **more), None) == (0, 142, 6)
    assert sources.estimate(own("a", "none", rows=6), None) == (0, None, 6)
    for name, sizes in (
        ("toy-de-en", (0, 2_200_000, 20_000)),
        ("multi30k-fr-en", (1_300_000, 4_000_000, 29_000)),
        ("wmt14-de-en", (818_467_512, 1_358_406_800, 4_508_785)),
        ("wmt14-en-fr", (7_777_527_744, 14_752_522_252, 40_836_715)),
        ("hub:a/b", (None, None, 3)),
        ("hub:wmt/wmt14", (None, None, 3)),  # of no configuration
    ):
        assert sources.estimate(texts.corpus({"name": name, "rows": 3}), None) == sizes
    assert sources.estimate(texts.corpus({"name": "hub:wmt/wmt14", "config": "fr-en"}), None)[2] == 40_836_715
    data_set(tmp_path / "mirror")
    files = list((tmp_path / "mirror").rglob("*.parquet"))
    size = 3 * sum(file.stat().st_size for file in files)
    assert sources.estimate(texts.corpus({**SECTION, "rows": 3}), tmp_path / "mirror") == (0, size, 3)


def test_pairs_are_counted_where_that_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = texts.own(tmp_path / "in", [("a", "b")] * 9)
    assert sources.count_pairs(section, None) == 9
    size = sum(Path(file).stat().st_size for file in (*section.train_src, *section.train_tgt))
    for most, count in ((size, 9), (size - 1, None)):
        monkeypatch.setattr(sources, "MOST_COUNTED", most)
        assert sources.count_pairs(section, None) == count
    assert sources.count_pairs(section.model_copy(update={"format": "trees", "train_src": ["none"]}), None) is None
    assert [sources.count_pairs(schema.Corpus(name=name), None) for name in ("multi30k-en-de", "wmt14-en-de")] == [
        None
    ] * 2


# Multi30k: six small files, downloaded one by one.


@pytest.fixture
def multi30k(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of its English and French files with fewer pairs to train on, which no pins refuse."""
    monkeypatch.setattr(sources, "MULTI30K_PINS", {})
    (tmp_path / "mirror").mkdir()
    for seed, (stem, count) in enumerate({"train": 290, "val": 1014, "test_2016_flickr": 1000}.items()):
        for language, lines in zip(("en", "fr"), zip(*texts.pairs(count, seed), strict=True), strict=True):
            (tmp_path / f"mirror/{stem}.{language}.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return tmp_path / "mirror"


FRENCH = {"name": "multi30k-en-fr", "tokenizer": {"vocabulary_size": "400"}}


def test_a_mirror_with_other_counts_warns_with_both_numbers(
    multi30k: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = texts.run(texts.corpus(FRENCH), tmp_path / "out", mirror=multi30k)
    assert "train has 290 pairs, 29,000 are expected" in capsys.readouterr().err
    corpus = store.open_corpus(out)
    assert len(corpus.src) == 290
    assert corpus.lines("dev")[0] == [src for src, _ in texts.pairs(1014, 1)]
    assert len(corpus.manifest["sources"]) == 6


def test_a_download_with_other_counts_is_refused_and_kept(
    multi30k: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_server.serving("multi30k", multi30k) as hub:
        monkeypatch.setattr(sources, "MULTI30K_URL", hub.url)
        with pytest.raises(DataError, match=r"290 pairs, 29,000 are expected.*corpus\.rows=290"):
            texts.run(texts.corpus(FRENCH), tmp_path / "out")
        out = texts.run(texts.corpus({**FRENCH, "rows": 290}), tmp_path / "out")
        assert (len(store.open_corpus(out).src), len(hub.requests)) == (290, 6)  # each is downloaded once


def test_a_file_that_is_not_the_pinned_one_is_refused_wherever_it_comes_from(
    multi30k: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, downloaded = multi30k / "val.fr.gz", tmp_path / "downloads" / "val.fr.gz"
    with hub_server.serving("multi30k", multi30k) as hub:
        monkeypatch.setattr(sources, "MULTI30K_URL", hub.url)
        for pin, fits in ((artefact.sha256(file), True), ("0" * 64, False)):
            monkeypatch.setattr(sources, "MULTI30K_PINS", {file.name: pin})
            for place, mirror in ((downloaded, None), (downloaded, None), (file, multi30k)):
                with nullcontext() if fits else pytest.raises(DataError, match="its SHA-256 differs"):
                    sources.fetch(place, mirror)
            downloaded.unlink()


def test_a_mirror_without_a_file_says_which_and_where_from(multi30k: Path, tmp_path: Path) -> None:
    (multi30k / "val.fr.gz").unlink()
    for name, folder, message in (
        ("multi30k-en-fr", multi30k, r"has no val\.fr\.gz\. Fetch https://"),
        ("multi30k-en-fr", tmp_path / "none", "no directory"),
        ("wmt14-en-de", multi30k, r"has no de-en/train-\*\.parquet"),
    ):
        with pytest.raises(MissingError, match=message):
            texts.run(texts.corpus({"name": name}), tmp_path / "out", mirror=folder)


@pytest.mark.parametrize(
    ("name", "fault", "pauses", "message"),
    [
        ("file", {}, [], None),
        *(("file", {kind: 2}, [1, 4], None) for kind in ("busy", "cut")),
        *(("file", {kind: 3}, [1, 4], "Try later") for kind in ("busy", "cut")),
        *(("file", {"busy": 1, "status": code}, [], str(code)) for code in (401, 403, 410)),  # another try is in vain
        ("none", {}, [], "404"),
        ("val.en", {}, [], "SHA-256"),
    ],
)
def test_a_download_is_tried_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: Any, pauses: list[int], message: str | None
) -> None:
    slept = list[int]()
    monkeypatch.setattr(sources.time, "sleep", slept.append)
    for served in ("file", "val.en"):
        (tmp_path / f"{served}.gz").write_bytes(bytes(range(256)) * 100)
    target = tmp_path / "deep" / f"{name}.gz"
    with hub_server.serving("x", tmp_path) as hub:
        monkeypatch.setattr(sources, "MULTI30K_URL", hub.url)
        vars(hub).update(fault)
        with pytest.raises((DataError, DownloadError), match=message) if message else nullcontext():
            sources.fetch(target, None)
    assert slept == pauses
    assert target.parent.exists() == (message in (None, "SHA-256"))
    assert message or [path.stat().st_size for path in target.parent.iterdir()] == [25_600]


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (OSError(errno.ENOSPC, "full"), 1),
        (OSError(errno.ECONNRESET, "reset"), 3),
        (TimeoutError("slow"), 3),
        (http.client.IncompleteRead(b""), 3),
        *(
            (urllib.error.HTTPError("", code, "", Message(), None), tries)
            for code, tries in ((404, 1), (500, 3), (429, 3))
        ),
        (ValueError("ours"), 1),
    ],
    ids=str,
)
def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch, error: Exception, tries: int) -> None:
    done, slept = list[int](), list[int]()
    monkeypatch.setattr(sources.time, "sleep", slept.append)

    def download() -> None:
        done.append(1)
        raise error

    with pytest.raises(type(error)) as caught:
        sources._retried(download)
    assert (caught.value is error, len(done), slept) == (True, tries, [1, 4][: tries - 1])


def test_real_multi30k_from_a_mirror(corpora: Path, tmp_path: Path) -> None:
    section = texts.corpus({"name": "multi30k-de-en"})
    corpus = store.open_corpus(texts.run(section, tmp_path / "out", mirror=corpora / "multi30k"), content=True)
    assert 28_900 < len(corpus.src) <= 29_000
    assert (len(corpus.lines("dev")[0]), len(corpus.lines("test")[1])) == (1014, 1000)
    assert (corpus.manifest["src"], corpus.manifest["generated"]) == ("de", False)
    assert corpus.lines("test")[1][0].startswith("A man in an orange hat")


# Data sets of the hub: a mirror of one, and the real client against a small hub.


def data_set(folder: Path, shards: int = 2, columns: bool = False) -> Path:
    """Write a small data set in the hub's layout, with a column `translation` or with a column for each language."""
    (folder / "de-en").mkdir(parents=True)
    pairs = [{"de": tgt, "en": src} for src, tgt in texts.pairs(1200)]
    cuts = {"train": [pairs[i:1000:shards] for i in range(shards)], "validation": [pairs[1000:1100]]}
    cuts["test"] = [pairs[1100:]]
    files = [{"split": split, "path": f"de-en/{split}-*"} for split in cuts]
    counts = [{"name": split, "num_bytes": 1, "num_examples": sum(map(len, parts))} for split, parts in cuts.items()]
    name = {"config_name": "de-en"}
    card = {"configs": [name | {"data_files": files}], "dataset_info": [name | {"splits": counts}]}
    (folder / "README.md").write_text(f"---\n{json.dumps(card)}\n---\n")
    for split, parts in cuts.items():
        for i, rows in enumerate(parts):
            table = pyarrow.Table.from_pylist(rows) if columns else pyarrow.table({"translation": rows})
            parquet.write_table(table, folder / "de-en" / f"{split}-{i:05}-of-{len(parts):05}.parquet")
    return folder


SECTION = {"name": "hub:some/texts", "config": "de-en", "tokenizer": {"vocabulary_size": "400"}}


@pytest.mark.parametrize("name", ["some/texts", "../texts"])
def test_a_directory_is_never_read_in_place_of_a_data_set_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The package `datasets` takes a name or a path."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    data_set(Path(name))
    with pytest.raises(UsageError, match=f"{name} is a directory here"):
        texts.run(texts.corpus({**SECTION, "name": f"hub:{name}"}), tmp_path / "out")


def test_the_path_of_a_mirror_is_no_pattern(tmp_path: Path) -> None:
    mirror = data_set(tmp_path / "mirror [1] of *")
    assert store.open_corpus(texts.run(texts.corpus(SECTION), tmp_path / "out", mirror=mirror), content=True)


def test_a_mirror_of_a_data_set_must_have_all_shards_and_the_languages(tmp_path: Path) -> None:
    mirror = data_set(tmp_path / "mirror", shards=3)
    out = texts.run(texts.corpus(SECTION), tmp_path / "out", mirror=mirror)
    corpus = store.open_corpus(out)
    assert (len(corpus.src), len(corpus.lines("dev")[0]), len(corpus.lines("test")[0])) == (1000, 100, 100)
    texts.run(texts.corpus(SECTION), out, mirror=mirror)  # finished
    with pytest.raises(DataError, match="no text in 'fr' among its columns translation"):
        texts.run(texts.corpus({**SECTION, "tgt": "fr"}), tmp_path / "no", mirror=mirror)
    shard = mirror / "de-en" / "train-00001-of-00003.parquet"
    shard.write_bytes(b"PAR1 damaged")
    with pytest.raises(DataError, match="some/texts cannot be used"):
        texts.run(texts.corpus(SECTION), tmp_path / "no", mirror=mirror)
    shard.unlink()
    with pytest.raises(MissingError, match="only 2 of the 3 files of train"):
        texts.run(texts.corpus(SECTION), tmp_path / "no", mirror=mirror)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mirror", "out"]


def test_files_of_a_mirror_are_found_by_a_word_of_their_names(tmp_path: Path) -> None:
    names = "train.parquet sub/train-x.parquet valid_0.parquet test/0.parquet training.parquet latest.parquet test.txt"
    for name in names.split():
        (tmp_path / "c" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "c" / name).touch()

    def found(name: str, mirror: Path = tmp_path / "c", **more: Any) -> dict[str, list[str]]:
        files = sources._mirror_files(schema.Corpus(name=name, **more), mirror)
        return {
            split: [str(Path(path).relative_to(tmp_path / "c")) for path in paths] for split, paths in files.items()
        }

    expected = {
        "train": ["sub/train-x.parquet", "train.parquet"],
        "dev": ["valid_0.parquet"],
        "test": ["test/0.parquet"],
    }
    assert found("hub:a/b") == found("hub:a/b", tmp_path, config="c") == expected
    (tmp_path / "c" / "valid_0.parquet").unlink()
    assert found("hub:a/b").keys() == {"train", "test"}
    with pytest.raises(
        MissingError, match=r"c has no data/validation-\*\.parquet\. Fetch it from http\S+/datasets/wmt/wmt14"
    ):
        found("hub:wmt/wmt14")
    with pytest.raises(MissingError, match=r"has no c/train-\*\.parquet"):
        found("hub:a/b", tmp_path / "c", config="c")
    (shards := tmp_path / "shards").mkdir()
    (shards / "train-00000-of-00003.parquet").touch()
    with pytest.raises(MissingError, match="shards has only 1 of the 3 files of train"):
        found("hub:a/b", shards)
    (shards / "test-00001-of-00002.parquet").touch()
    with pytest.raises(MissingError, match="shards has only 1 of the 2 files of test"):
        found("hub:a/b", shards, limit=5)
    (shards / "test-00001-of-00002.parquet").unlink()
    assert sources._mirror_files(schema.Corpus(name="hub:a/b", limit=5), shards).keys() == {"train"}


class Tables:
    """Rows as the package `datasets` hands them out."""

    def __init__(self, *tables: Any) -> None:
        self.tables, self.asked, self.info = tables, list[Any](), SimpleNamespace(splits=None)

    def with_format(self, name: str) -> "Tables":
        self.asked.append(name)
        return self

    def iter(self, rows: int) -> Iterator[Any]:
        self.asked.append(rows)
        yield from self.tables


def test_rows_of_a_data_set_become_pairs() -> None:
    """What is missing is an empty line, what is over the limit is none; a column of translations comes first."""
    longest = "ü" * (sources.MAX_LINE_BYTES // 2)
    rows = [{"en": "a", "de": "b"}, {"en": None, "de": longest}, {"en": longest + "x", "de": ""}, None]
    named, columns = pyarrow.table({"translation": rows}), pyarrow.table({"en": ["c"], "de": ["d"], "x": [1]})
    data = Tables(named, columns, pyarrow.table({"translation": rows[:1], "en": ["not"], "de": ["these"]}))
    chunks = list(sources._hub_chunks(schema.Corpus(name="hub:a/b"), data))
    assert chunks == [
        sources.Chunk([b"a", b"", None, b""], [b"b", longest.encode(), b"", b""]),
        sources.Chunk([b"c"], [b"d"]),
        sources.Chunk([b"a"], [b"b"]),
    ]
    turned = schema.Corpus(name="hub:a/b", src="de", tgt="en", limit=3)
    assert next(sources._hub_chunks(turned, data)).src == [b"b", longest.encode(), b"", b""]
    assert next(sources._hub_chunks(turned.model_copy(update={"limit": 9999}), data)).tgt[0] == b"a"
    assert data.asked == ["arrow", sources.CHUNK, "arrow", 3, "arrow", sources.CHUNK]
    with pytest.raises(DataError, match=r"a/b cannot be used: no text in 'fr' among its columns en, de, x\. See http"):
        list(sources._hub_chunks(schema.Corpus(name="hub:a/b", src="fr"), Tables(columns)))


class Builder:
    """What the package `datasets` knows of a data set before it is read; `asked` is what was done with it."""

    hash, cache_dir = sources.WMT14_REVISION, "absent"

    def __init__(self, data: dict[str, Tables]) -> None:
        self.data, self.asked = data, list[Any]()

    def __call__(self, *about: Any, **named: Any) -> "Builder":
        self.asked.append((*about, *named.items()))
        return self

    def as_streaming_dataset(self) -> dict[str, Tables]:
        self.asked.append("streaming")
        return self.data

    def download_and_prepare(self, **named: Any) -> None:
        self.asked.append(named)

    def as_dataset(self) -> dict[str, Tables]:
        self.asked.append("whole")
        return self.data


def test_a_data_set_of_the_hub_is_taken_at_its_commit_with_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    split = SimpleNamespace(num_examples=7)
    data = {name: Tables() for name in ("train", "validation", "test", "extra")}
    for name in ("train", "validation"):
        data[name].info.splits = {name: split}
    builder = Builder(data)
    monkeypatch.setattr(datasets, "load_dataset_builder", builder)

    def opened(name: str, **more: Any) -> tuple[sources.Text, list[tuple[Any, ...]]]:
        builder.asked.clear()
        text = sources.open_text(texts.corpus({"name": name, **more}), None, tmp_path, tmp_path)
        return text, [(each, split.name, split.rows) for each, split in text.splits.items()]

    whole, revision = [{"verification_mode": "no_checks"}, "whole"], ("revision", sources.WMT14_REVISION)
    text, splits = opened("wmt14-de-en")
    assert splits == [
        ("train", "de-en/train", 4_508_785),
        ("dev", "de-en/validation", 3000),
        ("test", "de-en/test", 3003),
    ]
    assert text.origin == f"https://huggingface.co/datasets/wmt/wmt14 at {builder.hash}"
    assert (text.files, text.advice) == ([], "Remove absent and run again")
    assert builder.asked == [("wmt/wmt14", "de-en", revision), *whole]
    text, splits = opened("hub:a/b")
    assert splits == [("train", "hub:a/b/train", 7), ("dev", "hub:a/b/validation", 7), ("test", "hub:a/b/test", None)]
    assert builder.asked == [("a/b", None, ("revision", None)), *whole]
    assert opened("hub:a/b", rows=5)[1][0] == ("train", "hub:a/b/train", 5)
    assert opened("hub:a/b@v1", limit=3, config="c")[1][1] == ("dev", "c/validation", 7)
    assert builder.asked == [("a/b", "c", ("revision", "v1")), "streaming"]
    monkeypatch.setattr(Builder, "cache_dir", str(tmp_path))  # it has been downloaded before
    opened("hub:a/b", limit=3)
    assert builder.asked[1:] == whole
    monkeypatch.setattr(Builder, "hash", "0" * 40)
    opened("hub:a/b@v1")
    with pytest.raises(DownloadError, match=f"the cache holds commit {'0' * 40}, not {sources.WMT14_REVISION}"):
        opened("wmt14-de-en")
    for name in ("train", "validation"):
        del data[name]
    with pytest.raises(DataError, match=r"/datasets/a/b at 0+ has no split train, only test, extra$"):
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
        (OSError("no number"), DownloadError, "cannot download a/b: no number. Try later, or fetch http"),
        (ConnectionResetError(errno.ECONNRESET, "reset"), DownloadError, "reset. Try later"),
        (caused(KeyError("x"), ConnectionRefusedError(errno.ECONNREFUSED, "refused")), DownloadError, "refused"),
        (KeyError("odd"), DownloadError, "/datasets/a/b/tree/v7/c into DIR/c and pass --mirror DIR$"),
        (ValueError("a\n  b"), DataError, "a/b cannot be used: a b. See http\\S+/datasets/a/b for its configurations"),
        (caused(RuntimeError("x"), ValueError("why")), DataError, "a/b cannot be used: why"),
    ],
    ids=str,
)
def test_errors_of_the_client_of_the_hub_become_ours(error: Exception, kind: type[Exception], message: str) -> None:
    section = schema.Corpus(name="hub:a/b@v7", config="c")
    with pytest.raises(kind, match=message), sources._hub_errors(section):
        raise error
    plain = schema.Corpus(name="hub:a/b")
    if kind is DownloadError:
        with pytest.raises(DownloadError, match="/tree/main/data into DIR/data"), sources._hub_errors(plain):
            raise error


# Commands in one process, which imports the client of the hub once. Prints their exit codes.
IN_TURN = """
import json, sys
from nmt_cli import __main__

for words in json.loads(sys.argv[1]):
    sys.argv = ["nmt", *words]
    print(__main__._exit_code(__main__._command))
"""


def hub_prepare(hub: hub_server.Hub, tmp_path: Path, *commands: str, **env: str) -> tuple[list[str], str]:
    """Prepare one corpus after the other; return the exit codes and what was said."""
    more = "--workers 1 --overwrite --set corpus.tokenizer.vocabulary_size=1000 --out"
    words = [["prepare", *f"{command} {more}".split(), str(tmp_path / "out")] for command in commands]
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", **env}
    done = texts.python("-c", IN_TURN, json.dumps(words), **env)
    assert "Traceback" not in done.stderr
    return done.stdout.split(), done.stderr


def test_wmt14_from_the_hub_at_its_pinned_commit_and_again_offline(corpora: Path, tmp_path: Path) -> None:
    served, known = data_set(tmp_path / "hub"), "wmt14-en-de --set corpus.rows=13071"
    for file in (corpora / "wmt14-mini" / "de-en").iterdir():
        (served / "de-en" / file.name).unlink(missing_ok=True)
        (served / "de-en" / file.name).symlink_to(file)
    with hub_server.serving("wmt/wmt14", served, sources.WMT14_REVISION) as hub:
        hub.cut = hub.busy = 1
        codes, said = hub_prepare(hub, tmp_path, known)
        assert (codes, hub.cut, hub.busy) == (["0"], 0, 0), said
        assert hub.url not in said  # its client tells nobody what it tries again
        assert sum(r.startswith("GET") and r.endswith(".parquet") for r in hub.requests) == 6  # two of them in vain
        assert not any("/main/" in request for request in hub.requests)
    first = store.open_corpus(tmp_path / "out", content=True)
    assert (len(first.lines("dev")[0]), len(first.lines("test")[0])) == (3000, 3003)
    assert 12_000 < len(first.src) < 13_071
    assert sources.WMT14_REVISION in first.manifest["origin"]
    other = "hub:some/texts --src en --tgt de"  # nobody listens any more
    codes, said = hub_prepare(hub, tmp_path, "wmt14-en-de", known, other, HF_HUB_OFFLINE="1")
    assert codes == ["65", "0", "69"], said
    assert store.open_corpus(tmp_path / "out").identity == first.identity
    assert "13,071 pairs, 4,508,785 are expected" in said
    assert re.fullmatch("nmt prepare: error: .* and pass --mirror DIR", said.strip().split("\n")[-1])


def test_a_data_set_of_columns_streamed_to_its_limit(tmp_path: Path) -> None:
    words = "--src en --tgt de --config"
    with hub_server.serving("some/texts", data_set(tmp_path / "hub", shards=4, columns=True)) as hub:
        wrong = (f"some/texts@0000000 {words} de-en", f"some/others {words} de-en", f"some/texts {words} fr-en")
        names = [f"some/texts {words} de-en --limit 300", *wrong]
        codes, said = hub_prepare(hub, tmp_path, *(f"hub:{name}" for name in names))
    assert codes == ["0", "65", "65", "65"], said
    assert all(message in said for message in ("Revision", "doesn't exist", "Available: ['de-en']")), said
    assert not any("train-00003" in request for request in hub.requests if request.startswith("GET"))
    corpus = store.open_corpus(tmp_path / "out")
    assert (len(corpus.src), len(corpus.lines("dev")[0]), len(corpus.lines("test")[0])) == (300, 100, 100)
    assert hub_server.COMMIT in corpus.manifest["origin"]
    assert not list((tmp_path / "home").rglob("*.arrow"))
