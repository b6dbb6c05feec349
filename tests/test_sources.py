import gzip
import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hub_server
import pyarrow
import pytest
import texts
from pyarrow import parquet

from nmt_cli import artefact
from nmt_cli.corpus import sources, store
from nmt_cli.errors import DataError, DownloadError, MissingError, UsageError


@pytest.mark.parametrize(
    ("name", "typed", "chosen"),
    [
        (None, {}, {"name": "toy-en-de", "src": "en", "tgt": "de"}),
        ("multi30k-de-en", {"limit": 5}, {"name": "multi30k-de-en", "src": "de", "limit": 5}),
        ("hub:a/b@v1", {"src": ["en"], "tgt": ["cs"]}, {"name": "hub:a/b@v1", "src": "en", "tgt": "cs"}),
        (None, {"src": ["a/news.en.gz"], "tgt": ["b.txt"]}, {"name": "out", "src": "en", "tgt": "tgt"}),
        (None, {"src": ["x.fr.txt"], "tgt": ["x.zh-CN"], "tokenizer": Path("m")}, {"src": "fr", "tgt": "zh"}),
    ],
)
def test_what_is_typed_chooses_the_corpus(
    name: str | None, typed: dict[str, object], chosen: dict[str, object]
) -> None:
    section = sources.choose(name, {"dev_src": None, **typed}, Path("data/out"), ["corpus.seed=3"])
    assert {key: getattr(section, key) for key in chosen} == chosen
    assert section.seed == 3
    assert section.tokenizer.file == ("m" if "tokenizer" in typed else None)


@pytest.mark.parametrize(
    ("name", "typed", "message"),
    [
        ("hub:a/b", {}, "needs its languages"),
        ("hub:../../etc", {"src": ["en"], "tgt": ["de"]}, "hub:OWNER/NAME"),
        ("multi30k-en-da", {}, "Known: .*multi30k-en-de"),
        ("recipes/toy.yaml", {"src": ["a"], "tgt": ["b"]}, "brings its own text"),
        (None, {"src": ["a"]}, "both sides"),
        (None, {"src": ["a"], "tgt": ["b"], "name": "toy-en-de"}, "another corpus.name"),
        (None, {"src": ["a"], "tgt": ["b"], "dev_src": "c"}, "corpus.dev_src and corpus.dev_tgt must name as many"),
        (None, {"src": ["a"], "tgt": ["b"], "test_tgt": "d"}, "corpus.test_src and corpus.test_tgt must"),
    ],
)
def test_what_does_not_fit_together_is_refused(name: str | None, typed: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sources.family(sources.choose(name, typed, None, []))


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
