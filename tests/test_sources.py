import gzip
from pathlib import Path

import hub_server
import pyarrow
import pytest
import texts
from pyarrow import parquet

from nmt_cli.corpus import sources, store
from nmt_cli.errors import DataError, MissingError, UsageError


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ({"name": "multi30k-en-da"}, "Did you mean multi30k-en-de"),
        ({"name": "nothing-like-it"}, "Named corpora"),
        ({"name": "hub:../../etc"}, "hub:owner/name"),
        ({"name": "toy-en-de", "train_src": ["a"], "train_tgt": ["b"]}, "another corpus.name"),
        ({"name": "own", "train_src": ["a"], "train_tgt": ["b"], "dev_src": "c"}, "both or neither"),
    ],
)
def test_contradictions_are_usage_errors(plain: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sources.family(texts.corpus(plain))


@pytest.mark.parametrize(
    ("names", "config", "train", "dev"),
    [
        (["de-en/train-00000-of-00002.parquet", "de-en/train-00001-of-00002.parquet", "fr-en/train-0.parquet"], "de-en",
         ["de-en/train-00000-of-00002.parquet", "de-en/train-00001-of-00002.parquet"], []),
        (["data/train-00000-of-00001-abc.parquet", "data/validation-00000-of-00001.parquet"], None,
         ["data/train-00000-of-00001-abc.parquet"], ["data/validation-00000-of-00001.parquet"]),
        (["en-de/train/0000.parquet", "en-de/validation/0000.parquet"], "en-de",
         ["en-de/train/0000.parquet"], ["en-de/validation/0000.parquet"]),
        (["train.parquet", "dev.parquet", "trainer.parquet", "README.md"], None, ["train.parquet"], ["dev.parquet"]),
    ],
)  # fmt: skip
def test_files_of_a_data_set_are_found_in_the_usual_layouts(
    names: list[str], config: str | None, train: list[str], dev: list[str]
) -> None:
    picked = sources._pick(names, config)
    assert (picked["train"], picked["dev"]) == (train, dev)


def multi30k(folder: Path, languages: tuple[str, str] = ("en", "fr"), train: int = 290) -> Path:
    folder.mkdir()
    counts = {"train": train, "val": 1014, "test_2016_flickr": 1000}
    for seed, (stem, count) in enumerate(counts.items()):
        for language, lines in zip(languages, zip(*texts.pairs(count, seed), strict=True), strict=True):
            (folder / f"{stem}.{language}.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


def test_a_mirror_with_other_counts_warns_with_both_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MULTI30K_PINS", {})
    section = texts.corpus({"name": "multi30k-en-fr", "tokenizer": {"vocabulary_size": "400"}})
    out = texts.run(section, tmp_path / "out", mirror=multi30k(tmp_path / "mirror"))
    assert "train has 290 pairs, 29,000 are expected" in capsys.readouterr().err
    corpus = store.open_corpus(out)
    assert len(corpus.src) == 290
    assert corpus.lines("dev")[0] == [src for src, _ in texts.pairs(1014, 1)]
    assert [source["rows"] for source in corpus.manifest["sources"]] == [290, 290, 1014, 1014, 1000, 1000]


def test_a_download_with_other_counts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub_server.serving("multi30k", multi30k(tmp_path / "served")) as hub:
        monkeypatch.setattr(sources, "MULTI30K_URL", f"{hub.url}/datasets/multi30k/resolve/x/y")
        monkeypatch.setattr(sources, "MULTI30K_PINS", {})
        monkeypatch.setattr(hub_server._Handler, "_file", lambda self, _: self._answer(200, served(self)))
        section = texts.corpus({"name": "multi30k-en-fr", "tokenizer": {"vocabulary_size": "400"}})
        with pytest.raises(DataError, match=r"290 pairs, 29,000 are expected.*corpus\.rows=290"):
            texts.run(section, tmp_path / "out")
        asked = len(hub.requests)
        section.rows = 290
        assert len(store.open_corpus(texts.run(section, tmp_path / "out")).src) == 290
        assert len(hub.requests) == asked == 6  # what was downloaded is not downloaded again


def served(handler: hub_server._Handler) -> bytes:
    return (handler.server.folder / handler.path.rpartition("/")[2]).read_bytes()


def test_pinned_files_with_other_bytes_are_refused(tmp_path: Path) -> None:
    mirror = multi30k(tmp_path / "mirror", ("en", "de"))
    with pytest.raises(DataError, match=r"train\.en\.gz has SHA-256"):
        texts.run(texts.corpus({"name": "multi30k-en-de"}), tmp_path / "out", mirror=mirror)


def test_a_mirror_without_a_file_says_which_and_where_from(tmp_path: Path) -> None:
    mirror = multi30k(tmp_path / "mirror")
    (mirror / "val.fr.gz").unlink()
    with pytest.raises(MissingError, match=r"has no val\.fr\.gz\. Fetch https://"):
        texts.run(texts.corpus({"name": "multi30k-en-fr"}), tmp_path / "out", mirror=mirror)
    with pytest.raises(MissingError, match="no directory"):
        texts.run(texts.corpus({"name": "multi30k-en-fr"}), tmp_path / "out", mirror=tmp_path / "none")
    with pytest.raises(MissingError, match=r"has no de-en/train-\*\.parquet"):
        texts.run(texts.corpus({"name": "wmt14-en-de"}), tmp_path / "out", mirror=mirror)


def test_real_multi30k_from_a_mirror(corpora: Path, tmp_path: Path) -> None:
    corpus = store.open_corpus(
        texts.run(texts.corpus({"name": "multi30k-de-en"}), tmp_path / "out", mirror=corpora / "multi30k"), content=True
    )
    assert 28_900 < len(corpus.src) <= 29_000
    assert (len(corpus.lines("dev")[0]), len(corpus.lines("test")[1])) == (1014, 1000)
    assert (corpus.manifest["src"], corpus.manifest["generated"]) == ("de", False)
    assert corpus.lines("test")[1][0].startswith("A man in an orange hat")


def data_set(folder: Path, config: str = "de-en", shards: int = 2) -> Path:
    """Write a small data set in the hub's layout."""
    (folder / config).mkdir(parents=True)
    text = [{"de": tgt, "en": src} for src, tgt in texts.pairs(1200)]
    cuts = {"train": [text[i:1000:shards] for i in range(shards)], "validation": [text[1000:1100]]}
    cuts["test"] = [text[1100:]]
    for split, parts in cuts.items():
        for i, rows in enumerate(parts):
            table = pyarrow.table({"translation": rows})
            parquet.write_table(table, folder / config / f"{split}-{i:05}-of-{len(parts):05}.parquet")
    return folder


def test_any_data_set_with_translations_and_only_as_many_shards_as_needed(tmp_path: Path) -> None:
    with hub_server.serving("some/texts", data_set(tmp_path / "hub", shards=4)) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        words = ["prepare", "hub:some/texts", "--config", "de-en", "--src", "en", "--tgt", "de"]
        words += ["--limit", "300", "--set", "corpus.tokenizer.vocabulary_size=400", "--out", tmp_path / "out"]
        done = texts.nmt(*words, **env)
        assert done.returncode == 0, done.stderr
        assert sum("GET" in r and "train-" in r for r in hub.requests) == 2
    corpus = store.open_corpus(tmp_path / "out")
    assert (len(corpus.src), len(corpus.lines("dev")[0]), len(corpus.lines("test")[0])) == (300, 100, 100)
    assert hub_server.COMMIT in corpus.manifest["origin"]


def test_a_mirror_of_a_data_set_must_have_all_shards(tmp_path: Path) -> None:
    mirror = data_set(tmp_path / "mirror", shards=3)
    (mirror / "de-en" / "train-00001-of-00003.parquet").unlink()
    section = texts.corpus({"name": "hub:some/texts", "config": "de-en"})
    with pytest.raises(MissingError, match="only 2 train files"):
        texts.run(section, tmp_path / "out", mirror=mirror)


def test_a_data_set_of_other_languages_is_refused(tmp_path: Path) -> None:
    section = texts.corpus({"name": "hub:some/texts", "config": "de-en", "src": "en", "tgt": "fr"})
    with pytest.raises(DataError, match="'translation' with 'en' and 'fr'"):
        texts.run(section, tmp_path / "out", mirror=data_set(tmp_path / "mirror"))


# The real client against a small hub, with real news text.


def wmt(
    hub: hub_server.Hub, tmp_path: Path, name: str = "wmt14-en-de", home: str = "home", **env: str
) -> tuple[int, str]:
    hub.requests.clear()
    words = ["prepare", name, "--out", tmp_path / f"out-{home}", "--workers", 1, "--set", "corpus.rows=13071"]
    words += ["--set", "corpus.tokenizer.vocabulary_size=2000", "--overwrite"]
    done = texts.nmt(*words, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / home), HF_HUB_DISABLE_XET="1", **env)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def parquet_downloads(hub: hub_server.Hub) -> int:
    return sum(r.startswith("GET") and r.endswith(".parquet") for r in hub.requests)


def test_wmt14_from_the_hub_and_again_without_it(corpora: Path, tmp_path: Path) -> None:
    with hub_server.serving("wmt/wmt14", corpora / "wmt14-mini") as hub:
        code, text = wmt(hub, tmp_path)
        assert (code, parquet_downloads(hub)) == (0, 4), text
        assert not any("fr-en" in request for request in hub.requests)
        cold = store.open_corpus(tmp_path / "out-home", content=True)
        assert (len(cold.lines("dev")[0]), len(cold.lines("test")[0])) == (3000, 3003)
        assert 12_000 < len(cold.src) < 13_071
        code, text = wmt(hub, tmp_path)
        assert (code, hub.requests) == (0, []), text
    code, text = wmt(hub, tmp_path, HF_HUB_OFFLINE="1")  # nobody listens any more
    assert code == 0, text
    assert store.open_corpus(tmp_path / "out-home").identity == cold.identity


def test_wmt14_through_cut_connections_and_a_busy_hub(corpora: Path, tmp_path: Path) -> None:
    with hub_server.serving("wmt/wmt14", corpora / "wmt14-mini") as hub:
        hub.cut, hub.busy = 2, 2
        code, text = wmt(hub, tmp_path, "wmt14-en-fr")
        assert (code, hub.cut, hub.busy) == (0, 0, 0), text
        assert store.open_corpus(tmp_path / "out-home", content=True).manifest["tgt"] == "fr"


def test_wmt14_with_a_flipped_byte_is_set_aside_and_fetched_again(corpora: Path, tmp_path: Path) -> None:
    with hub_server.serving("wmt/wmt14", corpora / "wmt14-mini") as hub:
        hub.flip = "train-00001-of-00002.parquet"
        code, text = wmt(hub, tmp_path)
        assert code == 65
        assert "train-00001-of-00002.parquet has SHA-256" in text
        assert not (tmp_path / "out-home").exists()
        hub.flip = ""
        code, text = wmt(hub, tmp_path)
        assert (code, parquet_downloads(hub)) == (0, 1), text


def test_wmt14_of_a_wrong_size_is_not_taken(corpora: Path, tmp_path: Path) -> None:
    with hub_server.serving("wmt/wmt14", corpora / "wmt14-mini") as hub:
        hub.short = "validation-00000-of-00001.parquet"
        code, text = wmt(hub, tmp_path)
        assert code == 69, text
        assert "pass --mirror DIR" in text
        hub.short = ""
        code, text = wmt(hub, tmp_path)
        assert code == 0, text


def test_wmt14_with_too_few_rows_or_no_network_says_what_to_do(corpora: Path, tmp_path: Path) -> None:
    with hub_server.serving("wmt/wmt14", corpora / "wmt14-mini") as hub:
        words = ["prepare", "wmt14-en-de", "--out", tmp_path / "out"]
        done = texts.nmt(*words, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home"))
        assert done.returncode == 65
        assert "13,071 pairs, 4,508,785 are expected" in done.stderr
    done = texts.nmt(*words, HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "empty"))
    assert done.returncode == 69
    assert "/datasets/wmt/wmt14/tree/main/de-en into DIR/de-en and pass --mirror DIR" in done.stderr
