"""Several entries of corpus.sources, several files of an entry, and the corpus section that a command line selects."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import texts
from texts import bitext_section

from nmt_cli.corpus import bitext, store
from nmt_cli.corpus.prepare import training_chunks
from nmt_cli.corpus.readers import Chunk
from nmt_cli.corpus.sources import choose, source_of
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.storage import artefact
from nmt_cli.system.errors import MissingError, UsageError


def files_of(tmp_path: Path) -> dict[str, str]:
    """Write files of one line each. Return their paths by name."""
    lines = {"a.tsv": "a\tA\n", "b.tsv": "b\tB\n", "c.en": "c\n", "c.de": "C\n", "d.tsv.en": "d\n", "d.tsv.de": "D\n"}
    return {name: str(texts.write(tmp_path / name, [line[:-1]])) for name, line in lines.items()}


def test_all_files_of_an_entry_are_read(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    hashes: dict[Path, str] = {}
    entries = [{"files": [files["a.tsv"], files["b.tsv"]]}, {"files": [files["c.en"], files["c.de"]]}]
    first, second = (
        [(list(chunk.src), list(chunk.tgt), chunk.source) for chunk in bitext.read_source(section, index, hashes)]
        for section in [bitext_section(*entries)]
        for index in range(2)
    )
    assert first == [([b"a"], [b"A"], 0), ([b"b"], [b"B"], 0)]
    assert second == [([b"c"], [b"C"], 1)]
    assert hashes == {
        Path(files[name]): artefact.sha256(Path(files[name])) for name in ("a.tsv", "b.tsv", "c.en", "c.de")
    }


def test_an_entry_that_is_listed_again_is_repeated(tmp_path: Path) -> None:
    """Pairs of a repeated entry do not count as duplicates. Equal pairs of other files do."""
    files = files_of(tmp_path)
    one, two = [files["a.tsv"]], [files["c.en"], files["c.de"]]
    corpus = bitext_section(*({"files": each} for each in (one, two, one, two, one, [files["b.tsv"]])))
    found = [(chunk.repetition, chunk.source) for i in range(6) for chunk in bitext.read_source(corpus, i, {})]
    assert found == [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (0, 5)]


def test_the_format_is_set_by_the_entry_or_else_by_the_suffix(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    plain = bitext_section(
        {"files": [files["d.tsv.en"], files["d.tsv.de"]]}, {"files": [files["a.tsv"]] * 2, "format": "text"}
    )
    [chunk] = bitext.read_source(plain, 0, {})
    assert (chunk.src, chunk.tgt) == ([b"d"], [b"D"])
    for name, both in (("a.TSV", True), ("a.xlf.gz", True), ("a.TMX.zst", True), ("a.en", False), ("tsv", False)):
        assert bitext.is_bitext(Path(name)) == both
    with pytest.raises(UsageError, match=r"plain text needs two files, source and target, not a\.en, b\.en, c\.en$"):
        list(bitext.read_source(bitext_section({"files": ["a.en", "b.en", "c.en"]}), 0, {}))


def split(corpus: Any, name: str) -> list[tuple[bytes | None, bytes | None]]:
    chunks: list[Chunk] = list(source_of(corpus).open(Path(), Path()).splits[name].chunks)
    return [pair for chunk in chunks for pair in zip(chunk.src, chunk.tgt, strict=True)]


def test_each_split_has_its_files_and_then_its_entries(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    entries = [{"files": [files["a.tsv"]], "split": "test", "tag": "x"}, {"files": [files["b.tsv"]], "split": "dev"}]
    entries += [{"files": [files["c.en"], files["c.de"]], "tag": "y"}]
    dev = {"dev_src": files["d.tsv.en"], "dev_tgt": files["d.tsv.de"]}
    corpus = bitext_section(*entries, **dev)
    assert split(corpus, "test") == [(b">>x<< a", b"A")]
    assert split(corpus, "dev") == [(b"d", b"D"), (b"b", b"B")]
    assert split(corpus, "train") == [(b"c", b"C")], "cleaning adds the tag"
    text = source_of(corpus).open(tmp_path, tmp_path)
    assert [text.splits[name].name for name in ("train", "test")] == [
        f"{files['c.en']}, {files['c.de']}",
        files["a.tsv"],
    ]
    assert {str(path) for path in text.files} == {files[name] for name in files if name != "none"}


def test_a_limit_is_shared_among_the_sources_by_size(tmp_path: Path) -> None:
    def entry(name: str, count: int) -> dict[str, Any]:
        texts.write(tmp_path / f"{name}.tsv", [f"{name}{i:05}\t{name}{i:05}" for i in range(count)])
        return {"files": [str(tmp_path / f"{name}.tsv")]}

    def taken(limit: int | None, *entries: dict[str, Any]) -> dict[str, int]:
        text = source_of(bitext_section(*entries, limit=limit)).open(Path(), Path())
        chunks = list(training_chunks(text, limit))
        lines = [(line or b"").decode() for chunk in chunks for line in chunk.src]
        counts = Counter(line[0] for line in lines)
        assert lines == [f"{name}{i:05}" for name, count in counts.items() for i in range(count)], "the first of each"
        return counts

    a, b, c, empty = entry("a", 6000), entry("b", 3000), entry("c", 3), entry("e", 0)
    assert taken(900, a, b) == {"a": 600, "b": 300}
    assert taken(900, empty, c, a) == {"c": 1, "a": 899}
    assert taken(4, a, b, c) == {"a": 2, "b": 1, "c": 1}
    assert taken(2, a, b, c) == {"a": 1, "b": 1}
    assert taken(10, a) == {"a": 10}
    assert taken(99_999, b, c) == taken(None, b, c) == {"b": 3000, "c": 3}


def test_lines_of_held_out_files_begin_with_the_language_token(tmp_path: Path) -> None:
    """A byte order mark at the beginning of the file is removed."""
    files = files_of(tmp_path)
    Path(files["d.tsv.en"]).write_bytes(b"\xef\xbb\xbfd\n")
    entries = [{"files": [files["a.tsv"]]}, {"files": [files["b.tsv"]], "tgt": "fr"}]
    corpus = bitext_section(*entries, dev_src=files["d.tsv.en"], dev_tgt=files["d.tsv.de"])
    assert split(corpus, "dev") == [(b">>de<< d", b"D")]


def test_a_plain_text_entry_has_its_language_and_its_tag(tmp_path: Path) -> None:
    some = texts.pairs(130)
    for name, side in (("en", 0), ("de", 1)):
        texts.write(tmp_path / f"all.{name}", [pair[side] for pair in some])
    two = [str(tmp_path / "all.en"), str(tmp_path / "all.de")]
    entries: list[dict[str, Any]] = [{"files": two, "tag": "tm"}, {"files": two, "tgt": "fr"}]
    out = texts.run(bitext_section(*entries, tokenizer={"vocabulary_size": 400}), tmp_path / "data")
    corpus = store.open_corpus(out)
    tokenizer = Tokenizer(corpus.tokenizer_file)
    first = tokenizer.tokens([int(corpus.src.ids[corpus.src.offsets[i]]) for i in range(len(corpus.src))])
    second = tokenizer.tokens([int(corpus.src.ids[corpus.src.offsets[i] + 1]) for i in range(len(corpus.src))])
    assert first == ["\u2581>>de<<"] * 130 + ["\u2581>>fr<<"] * 130
    assert [token == "\u2581>>tm<<" for token in second] == [True] * 130 + [False] * 130


def test_a_file_with_both_languages_may_be_named_as_the_corpus() -> None:
    typed = {"src": ["en"], "tgt": ["cs"], "limit": 9}
    for name, stem in (("in/news.v1.tsv.gz", "news"), ("a.TMX", "a")):
        section = choose(name, typed, None, ["corpus.seed=4"])
        assert (section.name, section.src, section.tgt, section.limit, section.seed) == (stem, "en", "cs", 9, 4)
        assert ([entry.files for entry in section.sources], section.train_src) == ([[name]], [])
        assert choose(name, typed, Path("data/mine.v2"), []).name == "mine.v2"
        with pytest.raises(UsageError, match=rf"^{name} requires language codes. Pass them, as in --src en --tgt de$"):
            choose(name, {}, None, [])
        for src in (["a.en"], ["english"], ["en", "fr"]):
            wrong = (
                rf"^{name} has both languages, so --src and --tgt must be codes, not '{' '.join(src)}'. Pass language "
            )
            with pytest.raises(UsageError, match=wrong):
                choose(name, {**typed, "src": src}, None, [])
    with pytest.raises(UsageError, match=r"a\.json is a \.json file\. Convert it to JSON Lines"):
        choose("a.json", typed, None, [])


def test_sources_conflict_with_named_corpora() -> None:
    for name in ("toy-en-de", "hub:a/b"):
        with pytest.raises(UsageError, match=rf"corpus\.name {name} already stands for a data set, .* Choose another"):
            source_of(bitext_section({"files": ["a.tsv"]}, name=name))
    with pytest.raises(UsageError, match=r"Did you mean multi30k-en-de\? Known corpora are "):
        source_of(choose("multi30k-en-d", {}, None, []))


def test_sizes_and_pairs_of_all_entries_are_added(tmp_path: Path) -> None:
    files = files_of(tmp_path)
    packed = [tmp_path / "p.parquet", tmp_path / "p.zip"]
    for file in packed:
        file.write_bytes(bytes(100))
    entries: list[dict[str, Any]] = [{"files": [str(file)]} for file in packed]
    size = source_of(bitext_section({"files": [files["a.tsv"], files["b.tsv"]]}, *entries)).size()
    assert size.text_bytes == 4 + 4 + 300 + 300
    entries = [{"files": [files["a.tsv"], files["b.tsv"]]}, {"files": [files["c.en"], files["c.de"]]}]
    assert source_of(bitext_section(*entries)).count_pairs() == 3
    Path(files["c.de"]).unlink()
    with pytest.raises(MissingError, match=r"c\.de does not exist\. Check the path"):
        source_of(bitext_section(*entries)).count_pairs()


def test_a_chunk_has_at_most_4000_pairs(tmp_path: Path) -> None:
    for count in (3999, 4000, 4001):
        texts.write(tmp_path / "a.tsv", ["a\tb"] * count)
        chunks = list(bitext.read_source(bitext_section({"files": [str(tmp_path / "a.tsv")]}), 0, {}))
        assert [len(chunk.src) for chunk in chunks] == [min(count, 4000), *[1] * (count > 4000)]
