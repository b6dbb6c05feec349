"""`nmt prepare --shard`: shards prepare the same corpus as one process, byte for byte."""

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import texts

from nmt_cli.corpus import bitext, cleaning, parts, prepare, readers, shards, stages, store, tokenizer
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.corpus.shards import prepare_shard
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.recipe import schema
from nmt_cli.storage import artefact
from nmt_cli.system.errors import BusyError, DataError, OutputError, StorageError, UsageError
from nmt_cli.system.shard import Shard

NEXT = texts.pairs(530, seed=4)
# Duplicates within a chunk, within a part and between parts; a dev pair; pairs that cleaning drops early and late.
PAIRS = [*NEXT[:150], *NEXT[50:110], *NEXT[150:350], *NEXT[10:30], ("", "x"), (b"\xff", "y"), *NEXT[340:500]]
PAIRS += [("word " * 400, "wort " * 400), NEXT[0], ("one two three", "x " * 90), *NEXT[495:500], *NEXT[:3]]


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Make parts of two chunks of 40 pairs each, and buckets of about 150 hashes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (readers, stages, bitext):
            patch.setattr(module, "CHUNK", 40)
        patch.setattr(parts, "PART_PAIRS", 80)
        patch.setattr(stages, "HASHES_AT_ONCE", 150)
        patch.setattr(shards, "POLL_SECONDS", 0.01)
        yield


def section(tmp_path: Path, **more: Any) -> schema.Corpus:
    dev = {
        f"dev_{side}": str(texts.write(tmp_path / f"dev.{side}", lines))
        for side, lines in zip(("src", "tgt"), zip(*NEXT[40:44], strict=True), strict=True)
    }
    return texts.own(tmp_path / "in", PAIRS, **{**dev, **more})


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


def run(corpus: schema.Corpus, out: Path, index: int, count: int, **more: Any) -> None:
    prepare_shard(corpus, out, PrepareOptions(workers=1, **more), Shard(index, count))


def rounds(corpus: schema.Corpus, out: Path, counts: Iterator[int], **more: Any) -> int:
    """Run all shards repeatedly until the corpus is complete. `counts` gives each round's number of shards.

    Return the number of rounds.
    """
    for number, count in enumerate(counts, 1):
        for index in range(1, count + 1):
            with contextlib.suppress(BusyError):
                run(corpus, out, index, count, **more)
        if out.exists():
            return number
    raise AssertionError


Whole = tuple[schema.Corpus, dict[str, bytes]]


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The usual corpus section, and the files of its corpus as one process prepares them. Shared: do not change it."""
    directory = tmp_path_factory.mktemp("common")
    corpus = section(directory)
    return corpus, contents(texts.run(corpus, directory / "whole"))


@pytest.fixture(scope="module")
def unfinished(common: Whole, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The parts of the usual corpus after the step "cleaned", and after all steps of shard 1 of 2 except the last."""
    directory = tmp_path_factory.mktemp("unfinished")
    for index in (1, 2, 1):
        with pytest.raises(BusyError):
            run(common[0], directory / "out", index, 2)
        if index == 2:
            shutil.copytree(directory / "out.parts", directory / "cleaned")
    return {"cleaned": directory / "cleaned", "later": directory / "out.parts"}


@pytest.mark.parametrize("counts", [[1], [4] * 4, [10] * 4, [3, 2, 5, 4, 1]])
def test_any_number_of_shards_gives_the_corpus_of_one_process(tmp_path: Path, common: Whole, counts: list[int]) -> None:
    """The number may change between runs. Ten shards are more than the text has parts."""
    corpus, whole = common
    assert rounds(corpus, tmp_path / "out", iter(counts)) <= len(counts)
    assert contents(tmp_path / "out") == whole
    found = artefact.read_json(tmp_path / "out" / "cleaning.json")
    dropped = {reason: each["pairs"] for reason, each in found["dropped"].items() if each["pairs"]}
    assert dropped.pop(cleaning.DUPLICATE) == 60 + 20 + 10 + 1 + 5 + 3
    assert dropped == {
        cleaning.EMPTY: 1, cleaning.NOT_UTF8: 1, cleaning.TOO_LONG: 1, cleaning.RATIO: 1, cleaning.HELD_OUT: 4,
    }  # fmt: skip
    assert "the first is line 432" in found["warnings"][0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize(
    "more",
    [
        {"cleaning": {"drop_duplicates": False}},
        {"cleaning": {"drop_near_twins": True, "max_tokens": 12}},
        {"hold_out": 20, "dev_src": None, "dev_tgt": None},
        {"limit": 300},
        {"dev_src": None, "dev_tgt": None},
    ],
)
def test_settings_have_the_same_effect_in_shards(tmp_path: Path, more: dict[str, Any]) -> None:
    corpus = section(tmp_path, **more)
    whole = contents(texts.run(corpus, tmp_path / "whole"))
    rounds(corpus, tmp_path / "out", iter([3] * 4))
    assert contents(tmp_path / "out") == whole


def test_parts_of_several_sources_are_counted(tmp_path: Path) -> None:
    """A part may have pairs of two sources, or lose all its pairs."""
    empty = tmp_path / "empty.tsv"
    texts.write(empty, ["\t"] * 170)
    table = texts.write(tmp_path / "a.tsv", [f"{src}\t{tgt}" for src, tgt in NEXT[400:530]])
    corpus = section(tmp_path, sources=[{"files": [str(empty)]}, {"files": [str(table)], "tag": "tm"}])
    whole = contents(texts.run(corpus, tmp_path / "whole"))
    rounds(corpus, tmp_path / "out", iter([4] * 4))
    assert contents(tmp_path / "out") == whole
    assert store.open_corpus(tmp_path / "out").parts[1:] == [0, 130]


def test_text_without_usable_pairs_is_refused_by_shards_as_by_one_process(tmp_path: Path) -> None:
    corpus = texts.own(tmp_path / "in", [("", "x"), ("same", "same"), ("same", "same")] * 30)
    with pytest.raises(DataError) as expected:
        texts.run(corpus, tmp_path / "out")
    assert "no usable pairs: 90 read; 60 source equals target, 30 empty side" in str(expected.value)
    with contextlib.suppress(BusyError):
        run(corpus, tmp_path / "out", 1, 2)
    with pytest.raises(DataError) as found:
        run(corpus, tmp_path / "out", 2, 2)
    assert str(found.value) == str(expected.value)


def test_a_foreign_directory_in_the_place_of_the_parts_is_kept(tmp_path: Path) -> None:
    corpus, theirs = section(tmp_path), tmp_path / "out.parts"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("two years of work")
    with pytest.raises(OutputError, match=r"out\.parts exists, but nmt did not create it"):
        run(corpus, tmp_path / "out", 1, 2)
    assert [path.name for path in theirs.iterdir()] == ["thesis.txt"]


def test_an_operating_system_error_of_a_shard_names_its_file_or_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = section(tmp_path)
    for file, named in ((None, tmp_path / "out.parts"), ("some/file", "some/file")):

        def full(*_: object, file: str | None = file) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", file)

        monkeypatch.setattr(prepare.Preparation, "open_text", full)
        with pytest.raises(StorageError, match=rf"\({named}\): No space left"):
            run(corpus, tmp_path / "out", 1, 2)
        assert not list((tmp_path / "out.parts").glob("work-*"))


def test_each_source_has_its_own_cleaning_in_shards(tmp_path: Path) -> None:
    """Sources begin and end within parts and chunks."""
    entries: list[dict[str, Any]] = []
    for number, (text, drops) in enumerate(((NEXT[:170], True), (NEXT[100:230], False), (NEXT[150:310], True))):
        file = texts.write(tmp_path / f"{number}.tsv", (f"{src}\t{tgt}" for src, tgt in [*text, text[3]]))
        entries.append({"files": [str(file)], "cleaning": {"drop_duplicates": drops, "max_tokens": 20 + 2 * number}})
    corpus = section(tmp_path, sources=entries, train_src=[], train_tgt=[])
    whole = contents(texts.run(corpus, tmp_path / "whole"))
    rounds(corpus, tmp_path / "out", iter([3] * 4))
    assert contents(tmp_path / "out") == whole
    parts = artefact.read_json(tmp_path / "out" / "manifest.json")["parts"]
    tokenizer = Tokenizer(tmp_path / "out" / "tokenizer.model")
    longer = [max(map(len, tokenizer.encode(list(pair)))) for pair in NEXT]
    fits = [[length <= most for length in longer] for most in (20, 22, 24)]
    expected = [sum(fits[0][:170]) - sum(fits[0][40:44]), sum(fits[1][100:230]) + fits[1][103], sum(fits[2][230:310])]
    assert [part["pairs"] for part in parts] == expected


def test_an_existing_tokenizer_is_used(tmp_path: Path) -> None:
    corpus = section(tmp_path)
    model = shutil.copy(texts.run(corpus, tmp_path / "first") / "tokenizer.model", tmp_path / "mine.model")
    (tmp_path / "mine.target.model").write_bytes(tokenizer.train([tgt for _, tgt in NEXT], 350))
    corpus = section(tmp_path, tokenizer={"file": str(model)})
    whole = contents(texts.run(corpus, tmp_path / "whole"))
    rounds(corpus, tmp_path / "out", iter([2] * 4))
    assert contents(tmp_path / "out") == whole
    assert "tokenizer.target.model" in whole


def test_there_may_be_more_shards_than_parts(tmp_path: Path) -> None:
    """The toy corpus is one chunk, so one part."""
    corpus = texts.corpus({"name": "toy-en-de", "limit": 600, "tokenizer": {"vocabulary_size": "400"}})
    whole = contents(texts.run(corpus, tmp_path / "whole"))
    rounds(corpus, tmp_path / "out", iter([2] * 4))
    assert contents(tmp_path / "out") == whole


def test_multi30k_is_the_same_in_shards(corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real files, with their published hashes."""
    monkeypatch.setattr(readers, "CHUNK", 80)
    monkeypatch.setattr(parts, "PART_PAIRS", 160)
    monkeypatch.setattr(stages, "HASHES_AT_ONCE", 320)
    section = {"name": "multi30k-de-en", "limit": 600, "tokenizer": {"vocabulary_size": "1000"}}
    mirror, corpus = corpora / "multi30k", texts.corpus(section)
    out = texts.run(corpus, tmp_path / "whole", mirror=mirror)
    rounds(corpus, tmp_path / "out", iter([2] * 4), mirror=mirror)
    assert contents(tmp_path / "out") == contents(out)
    whole = store.open_corpus(out, content=True)
    assert (len(whole.lines("dev")[0]), len(whole.lines("test")[1])) == (1014, 1000)
    assert (whole.manifest["src"], whole.manifest["generated"]) == ("de", False)
    assert whole.lines("test")[1][0].startswith("A man in an orange hat")


def test_a_finished_corpus_stays(tmp_path: Path, common: Whole, capsys: pytest.CaptureFixture[str]) -> None:
    corpus, _ = common
    run(corpus, tmp_path / "out", 1, 1)
    before = (tmp_path / "out").stat().st_ino
    run(corpus, tmp_path / "out", 2, 3)
    assert (tmp_path / "out").stat().st_ino == before
    assert "out is prepared and complete" in capsys.readouterr().err
    with pytest.raises(UsageError, match="--overwrite cannot be combined with --shard"):
        prepare_shard(corpus, tmp_path / "out", PrepareOptions(overwrite=True), Shard(1, 2))


def test_the_shards_to_run_are_named(tmp_path: Path, common: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_PAIRS", 40)
    (corpus, _), out = common, tmp_path / "out"
    found, advice = "12 of 16 parts are not cleaned yet", "Run nmt prepare with --shard"
    with pytest.raises(BusyError, match=f"{found}. {advice} 1/4, 3/4, 4/4, then repeat"):
        run(corpus, out, 2, 4)
    with pytest.raises(BusyError, match=f"{found}. {advice} 1/16, .*, 11/16 and others"):
        run(corpus, out, 2, 16)
    for count, listed in ((9, "1/9, 3/9, .*, 9/9, then"), (10, "1/10, 3/10, .*, 9/10 and others, then")):
        with pytest.raises(BusyError, match=f"{advice} {listed} repeat this command, or pass --wait"):
            run(corpus, tmp_path / f"of-{count}", 2, count)
    for index in (1, 3):
        with pytest.raises(BusyError, match="not cleaned yet"):
            run(corpus, out, index, 4)
    with pytest.raises(BusyError, match="3 of 4 buckets of hashes are not compared yet"):
        run(corpus, out, 4, 4)


def test_all_shards_must_have_the_same_options_and_text(tmp_path: Path) -> None:
    corpus, out = section(tmp_path), tmp_path / "out"
    with pytest.raises(BusyError):
        run(corpus, out, 1, 4)
    other = section(tmp_path, cleaning={"max_tokens": 99})
    with pytest.raises(OutputError, match=r"out\.parts has parts of another preparation \(.*max_tokens: 250 -> 99"):
        run(other, out, 2, 4)
    assert not (tmp_path / "out.parts" / "cleaned" / "0000001").exists()
    texts.own(tmp_path / "in", PAIRS[:-1])
    with pytest.raises(OutputError, match="another preparation"):  # the file has another size
        run(corpus, out, 2, 4)
    changed = [*PAIRS[:-1], tuple(line.swapcase() for line in PAIRS[-1])]
    texts.own(tmp_path / "in", changed)
    with pytest.raises(OutputError, match=r"train\.en is not the same on another shard"):
        run(corpus, out, 2, 4)


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("cleaned/0000002", "hashes"), ("cleaned/0000002", "manifest.json"), ("encoded/0000002", "tgt.ids"),
        ("held-out", "dev.src"), ("repeated/0000000", "positions"),
        ("tokenizer", "tokenizer.model"), ("text", "manifest.json"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_part_is_named(
    tmp_path: Path, common: Whole, unfinished: dict[str, Path], step: str, name: str, cut: bool
) -> None:
    (corpus, whole), out = common, tmp_path / "out"
    shutil.copytree(unfinished["cleaned" if step.startswith("cleaned") else "later"], tmp_path / "out.parts")
    directory = tmp_path / "out.parts" / step
    data = (directory / name).read_bytes()
    middle = data.index(b'"entries"') + 20 if name == "manifest.json" else len(data) // 2
    (directory / name).write_bytes(data[:middle] + (b"" if cut else bytes([data[middle] ^ 1]) + data[middle + 1 :]))
    advice = rf"Remove {directory}( and \S+/repeated)?, and run"
    with pytest.raises(DataError, match=rf"is damaged(: .*| or missing)\. {advice}"):
        rounds(corpus, out, iter([2, 2]))
    artefact.remove_tree(directory)
    if name == "hashes":
        artefact.remove_tree(tmp_path / "out.parts" / "repeated")
    rounds(corpus, out, iter([2] * 4))
    assert contents(out) == whole


def test_shards_of_another_version_or_tokenizer_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the other tokenizer has the same size."""
    model = tmp_path / "mine.model"
    model.write_bytes((texts.run(section(tmp_path), tmp_path / "first") / "tokenizer.model").read_bytes())
    corpus, out = section(tmp_path, tokenizer={"file": str(model)}), tmp_path / "out"
    with pytest.raises(BusyError):
        run(corpus, out, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(shards, "__version__", "0.0")
        with pytest.raises(OutputError, match=r"another preparation \(version: \S+ -> 0\.0\)"):
            run(corpus, out, 2, 2)
    data = model.read_bytes()
    model.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(OutputError, match=rf"another preparation \(models\.{model}: "):
        run(corpus, out, 2, 2)


def test_shards_that_cut_the_text_differently_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus, out = section(tmp_path), tmp_path / "out"
    with pytest.raises(BusyError):
        run(corpus, out, 1, 2)
    monkeypatch.setattr(readers, "CHUNK", 90)
    with pytest.raises(OutputError, match=r"the training text is not the same on another shard\. Remove .*out\.parts"):
        run(corpus, out, 2, 2)


def test_turned_pairs_and_swapped_sides_are_reported_by_shards(tmp_path: Path) -> None:
    straight = [
        (f"The big house number {i} is very old and beautiful", f"Das große Haus Nummer {i} ist sehr alt und schön")
        for i in range(90)
    ]
    rows = [f"{tgt}\t{src}" for src, tgt in straight]
    entries = [
        {"files": [str(texts.write(tmp_path / f"{name}.tsv", rows))], "filters": {"swapped": chosen}}
        for name, chosen in (("a", "turn"), ("b", "keep"))
    ]
    corpus = texts.bitext_section(*entries, tokenizer={"vocabulary_size": 300})
    whole = contents(texts.run(corpus, tmp_path / "whole"))
    rounds(corpus, tmp_path / "out", iter([2] * 4))
    assert contents(tmp_path / "out") == whole
    found = artefact.read_json(tmp_path / "out" / "cleaning.json")
    assert found["turned"]["pairs"] == 90
    assert ["b.tsv seem to have swapped sides" in warning for warning in found["warnings"]] == [True]


def test_too_little_space_is_reported_by_the_first_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefact, "free_megabytes", lambda _: 0)
    with pytest.raises(StorageError, match="needs about 1 MB of disk, but 0 MB are free"):
        run(section(tmp_path), tmp_path / "out", 1, 2)


def test_a_waiting_shard_reports_each_reason_once_and_ends_when_the_corpus_is_complete(
    tmp_path: Path, common: Whole, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (corpus, whole), out = common, tmp_path / "out"
    others = iter([(1, 3), None, (3, 3), (1, 1)])  # shards that run while the second one waits

    def sleep(_: float) -> None:
        if shard := next(others):
            with contextlib.suppress(BusyError):
                run(corpus, out, *shard)

    monkeypatch.setattr(shards.time, "sleep", sleep)
    prepare_shard(corpus, out, PrepareOptions(workers=1, wait=True), Shard(2, 3))
    told = [line for line in capsys.readouterr().err.split("\n") if line.startswith("waiting: ")]
    assert [line.partition(". Run nmt prepare with --shard ")[2] for line in told] == ["1/3, 3/3", "3/3", "1/3"]
    assert contents(out) == whole
    assert not (tmp_path / "out.parts").exists()


def test_only_numbered_directories_are_parts(tmp_path: Path) -> None:
    for name in ("0000001", "0000012", ".0000002", "0000003.part", "x"):
        (tmp_path / name).mkdir()
    assert parts.numbers_in(tmp_path) == {1, 12}
    assert parts.numbers_in(tmp_path / "none") == set()


def test_a_foreign_directory_is_not_mistaken_for_the_result_of_another_shard(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "thesis.txt").touch()
    with pytest.raises(OutputError):
        parts.keep(tmp_path / "job", {"a": b"b"}, {"c": 1})
    parts.keep(tmp_path / "part", {"a": b"b"}, {"c": 1})
    parts.keep(tmp_path / "part", {"a": b"other"}, {"c": 2})
    assert (parts.entries_of(tmp_path / "part"), (tmp_path / "part" / "a").read_bytes()) == ({"c": 1}, b"b")


def test_near_duplicates_in_the_first_chunk_of_a_part_are_reported(tmp_path: Path) -> None:
    pairs = [("some words unlike any others !", "ganz andere worte davon"), *NEXT[:79]]
    dev = {
        f"dev_{side}": str(texts.write(tmp_path / side, ["some words unlike any others"])) for side in ("src", "tgt")
    }
    run(texts.own(tmp_path / "in", pairs, **dev), tmp_path / "out", 1, 1)
    assert artefact.read_json(tmp_path / "out" / "cleaning.json")["twins"]["dev"]["near_lines"] == [1]
