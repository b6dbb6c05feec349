"""Named corpora and hub data sets as entries of corpus.sources, beside files."""

import gzip
from pathlib import Path
from typing import Any

import hub_server
import pytest
import texts
from test_hub import data_set
from test_multi30k import held_out
from texts import bitext_section

from nmt_cli.corpus import catalog, filter_stats, store, toy
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.corpus.sources import source_of
from nmt_cli.recipe import yaml_file
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError, UsageError

NUMBER_OF_TOKENS = {"tokenizer": {"vocabulary_size": 400}}
TRAINING = [f"train.{side}.{part}" for side in ("src", "tgt") for part in ("ids", "offsets")]
FILES = [*TRAINING, "tokenizer.model", "dev.src", "dev.tgt", "test.src", "test.tgt"]


def own_file(tmp_path: Path) -> dict[str, Any]:
    """Return an entry of 100 pairs, the first of which are those of `data_set`."""
    return {"files": [str(texts.write(tmp_path / "own.tsv", (f"{src}\t{tgt}" for src, tgt in texts.pairs(100))))]}


def same_text(one: Path, two: Path) -> bool:
    """Return whether two corpora are the same except for the names of their sources."""
    parts = [[part["pairs"] for part in artefact.read_json(each / "manifest.json")["parts"]] for each in (one, two)]
    return parts[0] == parts[1] and all((one / name).read_bytes() == (two / name).read_bytes() for name in FILES)


@pytest.mark.parametrize("own_first", [False, True])
def test_a_named_corpus_equals_the_same_text_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_first: bool
) -> None:
    monkeypatch.setattr(toy, "SPLIT_SIZES", {"train": 900, "dev": 50, "test": 50})
    splits, files = toy.read_splits(), dict[str, list[str]]()
    for split, chunk in splits.items():
        sides = zip(("en", "de"), chunk[:2], strict=True)
        files[split] = [str(texts.write(tmp_path / f"{split}.{side}", filter(None, lines))) for side, lines in sides]
    out = []
    for named in (True, False):
        each = [{"corpus": "toy-en-de"} if named else {"files": files[split]} for split in splits]
        each = [{**entry, "split": split, "tag": "toy"} for entry, split in zip(each, splits, strict=True)]
        entries = [own_file(tmp_path), *each] if own_first else [*each, own_file(tmp_path)]
        section = bitext_section(*entries, **NUMBER_OF_TOKENS)
        out.append(texts.run(section, tmp_path / f"out-{named}"))
    assert same_text(*out)
    manifest = store.open_corpus(out[0]).manifest
    assert manifest["origin"] == "local files; generated"
    assert [part["name"] for part in manifest["parts"]][int(own_first)] == "toy-en-de"
    assert not manifest["generated"]
    texts.run(section, out[1])  # already prepared


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with small English and French files of Multi30k, without published hashes."""
    monkeypatch.setattr(catalog, "MULTI30K_SHA256", {})
    directory = tmp_path / "mirror"
    directory.mkdir()
    for stem, pairs in (("train", texts.pairs(290)), ("val", held_out(1014)), ("test_2016_flickr", held_out(1000))):
        for language, lines in zip(("en", "fr"), zip(*pairs, strict=True), strict=True):
            (directory / f"{stem}.{language}.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return directory


def test_multi30k_is_read_from_the_mirror_and_its_hashes_are_stored(
    tmp_path: Path, mirror: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {"corpus": "multi30k-en-fr"}
    entries: list[dict[str, Any]] = [own_file(tmp_path), named, {**named, "split": "dev"}, {**named, "split": "test"}]
    section = bitext_section(*entries, tgt="fr", **NUMBER_OF_TOKENS)
    out = texts.run(section, tmp_path / "out", mirror=mirror)
    assert "train has 290 pairs, but 29,000 are expected" in capsys.readouterr().err
    corpus = store.open_corpus(out)
    assert corpus.parts == [100, 190], "100 pairs are in both"
    assert corpus.lines("dev")[0] == [src for src, _ in held_out(1014)]
    found = {each["name"]: each["sha256"] for each in corpus.manifest["sources"]}
    files = [tmp_path / "own.tsv", *mirror.iterdir()]
    assert found == {file.name: artefact.sha256(file) for file in files}
    assert corpus.manifest["origin"] == f"local files; {mirror}"
    texts.run(section, out, mirror=mirror)
    assert f"{out} is already prepared and complete" in capsys.readouterr().err
    (mirror / "val.fr.gz").unlink()
    with pytest.raises(MissingError, match=r"mirror has no val\.fr\.gz\. Download http"):
        texts.run(section, tmp_path / "other", mirror=mirror)


def test_a_named_corpus_has_its_own_languages(tmp_path: Path, mirror: Path) -> None:
    """One recipe with two language pairs can then train one model for both."""
    section = bitext_section(own_file(tmp_path), {"corpus": "multi30k-en-fr"}, {"corpus": "toy-de-en"})
    assert (section.targets, section.languages) == (["de", "fr", "en"], ["en", "de", "fr"])
    section = bitext_section({"corpus": "multi30k-en-fr"}, {"corpus": "hub:a/b"}, src="de", tgt="cs")
    assert [(each.src, each.tgt) for each in section.trained] == [("en", "fr"), ("de", "cs")]
    section = bitext_section({"corpus": "wmt14-en-fr"}, {"corpus": "toy-de-en", "tgt": "nl"})
    assert section.sources[0].config == "fr-en"
    assert (section.sources[1].src, section.sources[1].tgt) == ("de", "nl")


def test_a_mirror_may_have_a_directory_for_each_corpus(tmp_path: Path, mirror: Path) -> None:
    """Files of two hub data sets may have the same names."""
    for number, name in enumerate(("some-texts", "more-texts")):
        data_set(mirror / name, columns=bool(number))
    entries = [{"corpus": f"hub:{name}", "config": "de-en"} for name in ("some/texts", "more/texts@v1")]
    entries += [{"corpus": "multi30k-en-fr", "split": "test"}]
    out = texts.run(bitext_section(*entries, **NUMBER_OF_TOKENS), tmp_path / "out", mirror=mirror)
    corpus = store.open_corpus(out)
    assert corpus.parts == [1000, 0], "the second one has the same pairs"
    names = [part["name"] for part in corpus.manifest["parts"]]
    assert names == ["hub:some/texts/de-en", "hub:more/texts@v1/de-en"]


def test_pairs_of_a_corpus_named_twice_are_not_duplicates(tmp_path: Path) -> None:
    """The same holds for a file that is listed twice. An entry for the dev set does not count as a repetition."""
    hub = {"corpus": "hub:some/texts", "config": "de-en"}
    mirror = data_set(tmp_path / "mirror")
    entries: list[dict[str, Any]] = [{**hub, "split": "dev"}, own_file(tmp_path), hub, hub]
    corpus = store.open_corpus(texts.run(bitext_section(*entries, **NUMBER_OF_TOKENS), tmp_path / "out", mirror=mirror))
    assert corpus.parts == [100, 900, 1000]
    limited = bitext_section(*entries, **NUMBER_OF_TOKENS, limit=300)
    corpus = store.open_corpus(texts.run(limited, tmp_path / "limited", mirror=mirror))
    assert all(corpus.parts), "the limit is shared"
    assert 280 < sum(corpus.parts) <= 300, "a few of the first pairs are in both"
    assert len(corpus.lines("dev")[0]) == 100


def recipe_file(path: Path, *entries: dict[str, Any]) -> None:
    corpus = {"name": "mine", "src": "en", "tgt": "de", "sources": list(entries), **NUMBER_OF_TOKENS}
    path.write_bytes(yaml_file.dump({"corpus": corpus}))


def prepare(tmp_path: Path, *names: tuple[str, str], **env: str) -> tuple[list[int], str]:
    """Prepare recipes, each given with the name of its corpus; return the exit codes and the messages."""
    words = (["prepare", tmp_path / f"{recipe}.yaml", "--out", tmp_path / out, "--workers", 1] for recipe, out in names)
    return texts.commands(*words, **env)


def test_a_hub_data_set_beside_files(tmp_path: Path) -> None:
    hub = {"corpus": "hub:some/texts", "config": "de-en"}
    served = data_set(tmp_path / "hub")
    own = {**own_file(tmp_path), "tag": "mine"}
    recipe_file(tmp_path / "named.yaml", hub, {**hub, "split": "dev"}, {**hub, "split": "test"}, own)
    splits = {"train": "train", "dev": "validation", "test": "test"}
    files = {split: sorted(map(str, served.glob(f"de-en/{name}-*"))) for split, name in splits.items()}
    in_files = [{"files": found, "split": split, "columns": ["translation.en", "translation.de"]}
                for split, found in files.items()]  # fmt: skip
    recipe_file(tmp_path / "plain.yaml", *in_files, own)
    env = {"HF_HOME": str(tmp_path / "home"), **hub_server.CLIENT}
    with hub_server.serving("some/texts", served) as server:
        env["HF_ENDPOINT"] = server.url
        server.cut = server.busy = 1
        codes, messages = prepare(tmp_path, ("named", "online"), ("plain", "plain"), **env)
        assert codes == [0, 0], messages
        assert sum(r.startswith("GET") and r.endswith(".parquet") for r in server.requests) == 6, "two of them fail"
    assert same_text(tmp_path / "online", tmp_path / "plain")
    manifest = store.open_corpus(tmp_path / "online").manifest
    assert manifest["origin"] == f"local files; {server.url}/datasets/some/texts at {hub_server.COMMIT}"


def test_pairs_of_a_hub_data_set_are_held_out(tmp_path: Path) -> None:
    """Most data sets on the hub have no dev or test set. With a limit, pairs beyond it are not held out."""
    hub = {"corpus": "hub:some/texts", "config": "de-en"}
    mirror = data_set(tmp_path / "mirror", shards=1)
    for split in ("validation", "test"):
        next(mirror.glob(f"de-en/{split}-*")).unlink()
    section = bitext_section(own_file(tmp_path), hub, hold_out=20, **NUMBER_OF_TOKENS)
    held_out = dict[int | None, set[tuple[str, str]]]()
    for limit in (None, 400):
        limited = section.model_copy(update={"limit": limit})
        corpus = store.open_corpus(texts.run(limited, tmp_path / f"out-{limit}", mirror=mirror))
        sets = [set(zip(*corpus.lines(split), strict=True)) for split in ("dev", "test")]
        held_out[limit] = sets[0] | sets[1]
        assert [len(each) for each in (*sets, held_out[limit])] == [20, 20, 40]
        everything = texts.pairs(1000)[:limit]
        assert held_out[limit] <= set(everything)
        if not limit:
            assert sum(corpus.parts) == 1000 - 40
    assert held_out[None] - set(texts.pairs(100)), "some are from the data set"


def test_statistics_show_each_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries: list[dict[str, Any]] = [own_file(tmp_path), {"corpus": "toy-en-de"}]
    filter_stats.show(bitext_section(*entries, limit=500), tmp_path / "out", PrepareOptions(workers=1))
    shown = capsys.readouterr().out
    assert "own.tsv: 2 pairs read" in shown
    assert "toy-en-de: 498 pairs read" in shown


def test_a_dry_run_needs_no_network(tmp_path: Path, mirror: Path) -> None:
    """Sizes are those of all texts. A corpus whose splits have several entries is downloaded once."""
    wmt = [{"corpus": "wmt14-en-de", "split": split} for split in ("train", "dev", "test")]
    source = source_of(bitext_section(*wmt, own_file(tmp_path)))
    size, own = source.size(), (tmp_path / "own.tsv").stat().st_size
    assert (size.download_bytes, size.text_bytes) == (818_467_512, 1_358_406_800 + own)
    assert (source.count_pairs(), source.fills_cache, source.local_files()) == (None, True, [tmp_path / "own.tsv"])
    assert source_of(bitext_section(*wmt)).size() == catalog.WMT14_SIZES["de-en"]
    multi30k = {"corpus": "multi30k-en-fr"}
    source = source_of(bitext_section(multi30k, {**multi30k, "split": "dev"}, own_file(tmp_path)), mirror)
    assert (source.count_pairs(), source.fills_cache, source.size().download_bytes) == (390, False, 0)
    assert source.size().text_bytes == own + 3 * sum(file.stat().st_size for file in mirror.iterdir())
    assert source_of(bitext_section({"corpus": "toy-en-de"})).generated
    assert not source_of(bitext_section({"corpus": "toy-en-de"}, {"corpus": "multi30k-en-de"})).generated


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"corpus": "toy-en-de", "files": ["a.tsv"]}, "entry of a.tsv has both files and a corpus"),
        ({"corpus": "toy-en-de", "columns": ["1", "2"]}, "entry of toy-en-de is not a file. Remove format, columns,"),
        ({"corpus": "toy-en-de", "score": "1"}, "entry of toy-en-de is not a file"),
        ({"corpus": "toy-en-de", "format": "tsv"}, "entry of toy-en-de is not a file"),
        ({"corpus": "toy-en-de", "finished": True}, "entry of toy-en-de is not a file"),
        ({"corpus": "toy-en-de", "config": "x"}, "entry of toy-en-de is not a data set on the hub. Remove config"),
        ({"files": ["a.tsv"], "config": "x"}, "entry of a.tsv is not a data set on the hub. Remove config"),
        ({}, "has neither files nor corpus. Set one of them"),
        ({"files": ["a.tsv"], "split": "dev", "cleaning": {}}, "a.tsv is a dev set, which is never cleaned"),
        ({"files": ["a.tsv"], "split": "test", "augment": {}}, "a.tsv is a test set, which is never cleaned"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        bitext_section({"files": ["b.tsv"]}, entry)
    assert message in str(refused.value)


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    own = own_file(tmp_path)
    for name, message in (
        ("multi30k-en-d", r"unknown corpus 'multi30k-en-d'\. Did you mean multi30k-en-de\?"),
        ("hub:texts", r"corpus hub:texts is malformed. Write hub:OWNER/NAME"),
    ):
        with pytest.raises(UsageError, match=message):
            source_of(bitext_section(own, {"corpus": name}))
    mirror = data_set(tmp_path / "mirror")
    for file in mirror.glob("de-en/test*"):
        file.unlink()
    entry = {"corpus": "hub:some/texts", "config": "de-en", "split": "test"}
    with pytest.raises(DataError, match=r"mirror has no test set, only train, dev\. Correct corpus\.sources"):
        texts.run(bitext_section(own, entry, **NUMBER_OF_TOKENS), tmp_path / "out", mirror=mirror)
