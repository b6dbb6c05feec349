"""`nmt prepare` from text files to training ids, with its report, its dry run and its errors."""

import contextlib
import dataclasses
import errno
import gzip
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import texts

from nmt_cli.corpus import cleaning, prepare, readers, stages, store
from nmt_cli.corpus.catalog import MULTI30K_URL
from nmt_cli.corpus.raw_text import RawText, Split
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.recipe import schema
from nmt_cli.scoring.score import ScoreOptions, evaluate
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, MissingError, OutputError, StorageError, UsageError

PAIRS = texts.pairs(1200)
HUB = "https://huggingface.co/datasets/"
WMT14 = HUB + "wmt/wmt14"


def report(out: Path) -> dict[str, Any]:
    return artefact.read_json(out / "cleaning.json")


def stored(out: Path) -> list[tuple[str, str]]:
    """Return the training pairs, decoded."""
    corpus = store.open_corpus(out, content=True)
    tokenizer = Tokenizer(corpus.tokenizer_file)
    sides = []
    for side in (corpus.src, corpus.tgt):
        ids, lengths = side.gather(np.arange(len(side)))
        sentences = np.split(ids, np.cumsum(lengths)[:-1])
        assert all(sentence[-1] == EOS and EOS not in sentence[:-1] for sentence in sentences)
        sides.append(tokenizer.decode([sentence[:-1].tolist() for sentence in sentences]))
    return list(zip(*sides, strict=True))


def test_pairs_survive_unchanged_except_those_of_dev_and_test(tmp_path: Path) -> None:
    dev, test = [list(zip(*pairs, strict=True)) for pairs in (PAIRS[10:20], PAIRS[30:33])]
    sides = {
        "dev_src": ["\ufeff" + dev[0][0] + "\r", *dev[0][1:], "A B"],
        "dev_tgt": [*dev[1], "A\u2028B  "],
        "test_src": test[0],
        "test_tgt": test[1],
    }
    more = {side: str(texts.write(tmp_path / side, lines)) for side, lines in sides.items()}
    out = texts.run(texts.own(tmp_path / "in", PAIRS, **more), tmp_path / "data" / "own")
    assert stored(out) == (kept := [*PAIRS[:10], *PAIRS[20:30], *PAIRS[33:]])
    assert (report(out)["read"], report(out)["kept"]) == (1200, len(kept))
    assert report(out)["dropped"][cleaning.HELD_OUT]["pairs"] == 13
    corpus = store.open_corpus(out)
    assert corpus.lines("dev") == ([*dev[0], "A B"], [*dev[1], "A\u2028B  "])
    manifest = corpus.manifest
    assert manifest["vocabulary_size"] == manifest["recipe"]["tokenizer"]["vocabulary_size"] == 400
    assert manifest["tokens"] == {"src": len(corpus.src.ids), "tgt": len(corpus.tgt.ids)}
    ids, lengths = corpus.src.gather(np.array([7, 2]))
    assert lengths.tolist() == corpus.src.lengths()[[7, 2]].tolist()
    assert Tokenizer(corpus.tokenizer_file).decode([ids[: lengths[0] - 1].tolist()]) == [PAIRS[7][0]]
    assert sorted(path.name for path in out.parent.iterdir()) == ["own"]  # and no temporary files


def test_plain_and_gzip_files_are_read_and_hashed(tmp_path: Path) -> None:
    src, tgt = ("\n".join(lines).encode() for lines in zip(*PAIRS, strict=True))  # no line feed at the end
    plain, packed = tmp_path / "plain.en", tmp_path / "packed.de.gz"
    plain.write_bytes(src.replace(b"\n", b"\r\n"))
    packed.write_bytes(gzip.compress(tgt[:9999]) + gzip.compress(tgt[9999:]))
    section = {"train_src": [str(plain)], "train_tgt": [str(packed)], "tokenizer": {"vocabulary_size": "400"}}
    out = texts.run(texts.corpus({"name": "own", **section}), tmp_path / "out")
    assert stored(out) == PAIRS
    corpus = store.open_corpus(out)
    recorded = {source["name"]: source["sha256"] for source in corpus.manifest["sources"]}
    assert recorded == {path.name: artefact.sha256(path) for path in (plain, packed)}
    assert corpus.lines("dev") == ([], [])


def test_workers_locale_and_hash_seed_change_no_byte(tmp_path: Path) -> None:
    """In the other process, the text has enough chunks for worker processes. Here it is one chunk."""
    text = [(f"{s} {i}", f"{t} {i}") for i in range(6) for s, t in PAIRS[:500]] + PAIRS[:9] * 2
    section = texts.own(tmp_path / "in", text)
    words = ["--src", tmp_path / "in" / "train.en", "--tgt", tmp_path / "in" / "train.de"]
    words += ["--set", "corpus.tokenizer.vocabulary_size=400"]
    env = {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "Asia/Tokyo", "PYTHONUTF8": "0"}
    code = "from nmt_cli import __main__; from nmt_cli.corpus import readers, stages; "
    code += "readers.CHUNK = stages.CHUNK = 300; __main__.main()"
    done = texts.python("-c", code, "prepare", *words, "--workers", 2, "--out", tmp_path / "other", **env)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    out = texts.run(section, tmp_path / "out")
    files = [store.open_corpus(directory, content=True).manifest["files"] for directory in (tmp_path / "other", out)]
    assert files[0] == files[1]
    assert report(out)["dropped"][cleaning.DUPLICATE]["pairs"] == 9


def test_a_finished_corpus_is_verified_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section = texts.own(tmp_path / "in", PAIRS)
    out = texts.run(section, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    texts.run(section, out)
    assert "already prepared" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    ids = bytearray((out / "train.src.ids").read_bytes())
    ids[100] ^= 1
    (out / "train.src.ids").write_bytes(ids)
    with pytest.raises(DataError, match=r"train\.src\.ids is damaged.*--overwrite"):
        texts.run(section, out)
    assert stored(texts.run(section, out, overwrite=True)) == PAIRS


def test_other_inputs_need_overwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "CHUNK", 400)  # one limit is within a chunk, another at its end
    out = texts.run(texts.own(tmp_path / "in", PAIRS), tmp_path / "out")
    # `rows` is not checked if the limit ends the text first.
    limited = texts.own(tmp_path / "in", PAIRS, limit=700, rows=1201)
    with pytest.raises(OutputError, match=r"other inputs \(rows: None -> 1201; limit: None -> 700\)"):
        texts.run(limited, out)
    assert stored(texts.run(limited, out, overwrite=True)) == PAIRS[:700]
    with pytest.raises(DataError, match=r"1,201 are expected \(local files\)\. Correct the files, or accept"):
        texts.run(limited.model_copy(update={"limit": None}), out, overwrite=True)
    assert stored(texts.run(limited.model_copy(update={"limit": 1200}), out, overwrite=True)) == PAIRS
    with pytest.raises(OutputError, match=r"train\.en is a different file"):
        texts.run(texts.own(tmp_path / "in", PAIRS[:1000], limit=1200, rows=1201), out)


def test_exchanged_files_are_other_inputs(tmp_path: Path) -> None:
    """A user may exchange the files after a warning that the sides are swapped."""
    section = texts.own(tmp_path / "in", PAIRS[:200])
    out = texts.run(section, tmp_path / "out")
    texts.own(tmp_path / "in", [pair[::-1] for pair in PAIRS[:200]])
    with pytest.raises(OutputError, match=r"other inputs \(train\.en is a different file; train\.de is a different"):
        texts.run(section, out)


@pytest.mark.parametrize("named", [True, False])
def test_a_directory_that_is_not_a_corpus_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    monkeypatch.chdir(tmp_path / "precious")
    out = tmp_path / "precious" if named else Path()  # for pathlib, "." has no name
    with pytest.raises(OutputError, match="not a prepared corpus"):
        texts.run(texts.own(tmp_path / "in", PAIRS), out, overwrite=True)
    assert (tmp_path / "precious" / "thesis.txt").exists()


def test_a_dry_run_writes_nothing_and_needs_no_network(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = [str(tmp_path_factory.mktemp("packed") / "text.gz")]
    Path(packed[0]).write_bytes(gzip.compress(b"a line\n" * 1200))
    for plain in ({"name": "wmt14-en-fr"}, {"name": "mine", "train_src": packed, "train_tgt": packed}):
        texts.run(texts.corpus(plain), tmp_path / "data" / "out", dry_run=True)
        shown = capsys.readouterr()
        assert "training pairs" in shown.err
        assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record each printed table as its title, columns and rows. The disk seems to have 12,345 MB free."""
    shown = list[Any]()
    monkeypatch.setattr("nmt_cli.system.console.table", lambda *table: shown.append(table))
    monkeypatch.setattr("nmt_cli.storage.artefact.free_megabytes", lambda _: 12_345)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    return shown


@pytest.mark.parametrize(
    ("plain", "workers", "origin", "numbers"),
    [
        ({"name": "toy-en-de"}, 1, "generated", "0 MB|about 20,000|4 MB|1,300 MB|6 s"),
        ({"name": "toy-en-de", "limit": 9}, 1, "generated", "0 MB|about 9|1 MB|1,300 MB|0 s"),
        ({"name": "toy-en-de", "limit": 90_000}, 1, "generated", "0 MB|about 20,000|4 MB|1,300 MB|6 s"),
        ({"name": "multi30k-en-fr"}, 12, MULTI30K_URL, "1 MB|about 29,000|7 MB|1,350 MB|2 s"),
        ({"name": "wmt14-en-fr"}, 1, WMT14, "7,778 MB|about 40,836,715|25,080 MB|1,300 MB|2 h 51 min|14,753 MB"),
        ({"name": "wmt14-en-fr"}, 16, WMT14, "7,778 MB|about 40,836,715|25,080 MB|1,750 MB|11 min 38 s|14,753 MB"),
        ({"name": "wmt14-en-de", "limit": 10**6}, 2, WMT14, "818 MB|about 1,000,000|426 MB|1,300 MB|3 min 05 s"),
        ({"name": "hub:a/b"}, 1, f"{HUB}a/b", "unknown|about unknown|unknown|1,300 MB|unknown|unknown"),
        ({"name": "hub:a/b", "limit": 2000}, 1, f"{HUB}a/b", "unknown|about 2,000|unknown|1,300 MB|1 s"),
        ({"name": "hub:a/b", "rows": 4000}, 1, f"{HUB}a/b", "unknown|about 4,000|unknown|1,300 MB|1 s|unknown"),
    ],
)  # fmt: skip
def test_a_dry_run_estimates_size_time_and_memory(
    tables: list[Any], plain: dict[str, Any], workers: int, origin: str, numbers: str
) -> None:
    texts.run(texts.corpus(plain), Path("some/data/out"), dry_run=True, workers=workers)
    download, pairs, disk, memory, seconds, *arrow = numbers.split("|")
    rows = [
        ("from", origin),
        ("download", download),
        ("training pairs, about", pairs.removeprefix("about ")),
        ("disk while preparing, in some/data", disk),
        ("free there", "12,345 MB"),
        (f"memory, {workers} workers", memory),
        ("time without the download, about", seconds),
    ]
    rows[2:2] = [("Arrow files in the hub's cache", size) for size in arrow]
    assert tables == [(f"nmt prepare {plain['name']} would need", ("", ""), rows)]


def test_a_dry_run_counts_the_users_pairs(tmp_path: Path, tables: list[Any]) -> None:
    section = texts.own(tmp_path / "in", [("a" * 499_999, "b" * 499_999)] * 2)
    for limit, pairs, disk in ((None, "2", "4"), (1, "1", "1"), (50, "2", "1")):
        texts.run(section.model_copy(update={"limit": limit}), tmp_path / "out", dry_run=True, workers=3)
        assert tables.pop()[2] == [
            ("from", "local files"),
            ("download", "0 MB"),
            ("training pairs", pairs),
            (f"disk while preparing, in {tmp_path}", f"{disk} MB"),
            ("free there", "12,345 MB"),
            ("memory, 3 workers", "1,300 MB"),
            ("time without the download, about", "0 s"),
        ]
    with pytest.raises(UsageError, match="unknown corpus 'what'"):
        texts.run(schema.Corpus(name="what"), tmp_path / "out", dry_run=True)


def test_dropped_pairs_are_shown_and_stored_with_the_sources(
    tmp_path: Path, tables: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [
        ("", "leer"),
        ("x" * 90, "x" * 90),
        ("y" * 90, "y" * 90),
        PAIRS[5],
        (PAIRS[0][0], b"\xff"),
        ("see", "seh " * 40),
    ]
    named = {f"dev_{side}": str(texts.write(tmp_path / side, [f"in dev {side}"])) for side in ("src", "tgt")}
    section = texts.own(tmp_path / "in", [*PAIRS[:194], *bad, ("in dev src", "in dev tgt")], name="mine", **named)
    capsys.readouterr()
    out = texts.run(section, tmp_path / "out")
    messages = capsys.readouterr().err
    assert messages.startswith("nmt: warning: not UTF-8: 1 line, the first is line 199\n")
    assert messages.endswith(f"{out}: 194 training pairs\n")
    copies = [["x" * 90] * 2, ["y" * 90] * 2]
    dropped = {
        cleaning.NOT_UTF8: (1, 0.498, [[PAIRS[0][0], "\\xff"]]),
        cleaning.EMPTY: (1, 0.498, [["", "leer"]]),
        cleaning.COPY: (2, 0.995, copies),
        cleaning.HELD_OUT: (1, 0.498, [["in dev src", "in dev tgt"]]),
        cleaning.DUPLICATE: (1, 0.498, [list(PAIRS[5])]),
        cleaning.RATIO: (1, 0.498, [["see", ("seh " * 40).strip()]]),
    }
    found = report(out)
    near = found.pop("twins")["dev"]
    assert found == {
        "read": 201,
        "kept": 194,
        "warnings": ["not UTF-8: 1 line, the first is line 199"],
        "dropped": {
            reason: dict(zip(("pairs", "percent", "examples"), dropped.get(reason, (0, 0.0, [])), strict=True))
            for reason in cleaning.DROPPED
        },
    }
    assert near == {
        "lines": 1,
        "equal": dict.fromkeys(("source", "target", "both"), 0),
        "near": near["near"],
        "near_lines": [],
    }
    assert tables == [
        (
            "cleaning: 201 pairs read",
            ("dropped", "count", "share", "example"),
            [
                (reason, str(count), "1.00 %" if count == 2 else "0.50 %", " | ".join(examples[0])[:70])
                for reason, (count, _, examples) in dropped.items()
            ],
        )
    ]
    corpus = store.open_corpus(out)
    files = [Path(file) for file in (*section.train_src, *section.train_tgt, *named.values())]
    manifest = {
        key: corpus.manifest[key] for key in ("name", "src", "tgt", "generated", "recipe", "origin", "sources", "pairs")
    }
    assert manifest == {
        "name": "mine",
        "src": "en",
        "tgt": "de",
        "generated": False,
        "recipe": section.model_dump(exclude={"augment"}),
        "origin": "local files",
        "sources": [{"name": f.name, "bytes": f.stat().st_size, "sha256": artefact.sha256(f)} for f in files],
        "pairs": 194,
    }


def test_a_held_out_set_is_not_cleaned() -> None:
    """Only a leading BOM and one CR at each line end are removed. A line feed inside a line becomes a space."""
    raw = [["\ufeff a\r", "\ufeffb", "c\nd", "", " e  \r\r"], ["\ufeffA", "B\u2028", "C\r", "", "E&amp;"]]
    src, tgt = ([line.encode() for line in side] for side in raw)
    chunks = [readers.Chunk([*src[:2]], [*tgt[:2]]), readers.Chunk([*src[2:]], [*tgt[2:]])]

    def read(*chunks: readers.Chunk, rows: int | None = None) -> list[tuple[str, str]]:
        text = RawText("here", {"dev": Split("SET", chunks, rows)}, [], "Do it")
        return [(src, tgt) for src, tgt, *_ in prepare.held_out_set(text, "dev", schema.Corpus())]

    pairs = [(" a", "A"), ("\ufeffb", "B\u2028"), ("c d", "C"), ("", ""), (" e  \r", "E&amp;")]
    assert read(*chunks) == read(*chunks, rows=5) == pairs
    with pytest.raises(DataError, match=r"^dev has 5 pairs, but 4 are expected \(here\)\. Do it$"):
        read(*chunks, rows=4)
    for bad in (readers.Chunk([b"a", None], [b"a", b"b"]), readers.Chunk([b"a", b"b"], [b"a", b"\xff"])):
        with pytest.raises(DataError, match=r"^SET: line 7 is not UTF-8, or too long\. Correct it$"):
            read(*chunks, bad)
    with pytest.raises(DataError, match=r"^SET is empty\."):
        read()


def test_training_pairs_are_limited_or_counted(capsys: pytest.CaptureFixture[str]) -> None:
    chunks = [readers.Chunk([b"a", b"b"], [b"A", b"B"], 1), readers.Chunk([b"c", b"d"], [b"C", b"D"], 2)]

    def read(limit: int | None, rows: int | None, advice: str | None = "Do it") -> list[readers.Chunk]:
        text = RawText("here", {"train": Split("x", chunks, rows)}, [], advice)
        return list(prepare.training_chunks(text, limit))

    assert read(None, None) == read(None, 4) == read(5, 4) == read(4, 9) == chunks
    assert read(3, 9) == [chunks[0], readers.Chunk([b"c"], [b"C"], 2)]
    assert read(2, 9) == chunks[:1]
    assert read(1, 9) == [readers.Chunk([b"a"], [b"A"], 1)]
    for rows in (3, 5):
        with pytest.raises(
            DataError, match=rf"^train has 4 pairs, but {rows} are .* Do it, or accept this number with corpus\.rows=4$"
        ):
            read(5, rows)
    assert capsys.readouterr().err == ""
    assert read(None, 1234, None) == chunks
    assert "train has 4 pairs, but 1,234 are expected (here). The text is an excerpt" in capsys.readouterr().err


def test_settings_unknown_to_an_older_version_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = texts.own(tmp_path / "in", PAIRS[:200])
    out = texts.run(section, tmp_path / "out")
    manifest = artefact.read_json(out / artefact.MANIFEST)
    for name in ("moses", "synthetic", "hold_out"):
        del manifest["recipe"][name]
    (out / artefact.MANIFEST).write_bytes(artefact.json_bytes(manifest))
    capsys.readouterr()
    texts.run(section, out)
    assert capsys.readouterr().err == f"{out} is already prepared and complete\n"
    for changes in ({"seed": 2}, {"hold_out": 3}, {"tgt": "nl"}, {"mix_share": 0.4}):
        with pytest.raises(OutputError, match=f"other inputs .*{next(iter(changes))}: "):
            texts.run(section.model_copy(update=changes), out)
    (out / artefact.MANIFEST).write_bytes(artefact.json_bytes({**manifest, "kind": "model"}))
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"exists and is not a prepared corpus\. Choose another --out"):
            texts.run(section, out, overwrite=overwrite)


def test_a_finished_corpus_survives_a_kill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """nmt is killed before it removes the work directory, or before it renames the replacement into place."""
    section = texts.own(tmp_path / "in", PAIRS[:200])
    out = texts.run(section, tmp_path / "out")
    inode = out.stat().st_ino
    with artefact.locked(work := tmp_path / ".out.preparing", "it"):
        (work / "cleaned").mkdir()
    texts.run(section, out)
    assert (work.exists(), out.stat().st_ino) == (False, inode)
    out.rename(tmp_path / ".old-out")
    capsys.readouterr()
    texts.run(section, out)
    assert capsys.readouterr().err == f"{out} is already prepared and complete\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    assert out.stat().st_ino == inode


@pytest.mark.parametrize(("file", "named"), [(None, "out"), ("in/train.de", "in/train.de")])
def test_an_operating_system_error_names_its_file_or_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None, named: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", file and str(tmp_path / file))

    monkeypatch.setattr(stages, "clean", full)
    with pytest.raises(StorageError, match=rf"\({tmp_path}/{named}\): No space left"):
        texts.run(texts.own(tmp_path / "in", PAIRS[:200]), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_progress_counts_all_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each stage announces the total number of pairs, if known, and counts up to it."""
    shown = dict[str, list[Any]]()

    class Progress(contextlib.nullcontext[Any]):
        def __init__(self, what: str, total: int | None, unit: str) -> None:
            super().__init__(self)
            self.seen = shown[what] = [total, unit, 0]

        def advance(self, count: int) -> None:
            self.seen[2] += count

    monkeypatch.setattr("nmt_cli.system.console.Progress", Progress)
    monkeypatch.setattr(readers, "CHUNK", 150)
    text = [*PAIRS[:200], PAIRS[7], ("", "x"), ("see", "seh " * 40)]
    for settings, total, read in (({}, None, 203), ({"rows": 203}, 203, 203), ({"rows": 203, "limit": 199}, 199, 199)):
        texts.run(texts.own(tmp_path / "in", text, **settings), tmp_path / f"out{total}")
        kept = min(read, 202)
        assert shown == {"cleaning": [total, "pairs", read], "encoding": [kept, "pairs", kept]}


def test_a_dry_run_notices_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section = texts.own(tmp_path / "in", PAIRS, hold_out=3)
    for limit, count in ((None, len(PAIRS)), (7, 7)):
        texts.run(section.model_copy(update={"limit": limit}), tmp_path / "out", dry_run=True)
        assert f"training pairs {count:,}" in " ".join(capsys.readouterr().err.split())
    dev = texts.corpus({**section.model_dump(), "dev_src": str(tmp_path / "dev.en"), "dev_tgt": section.train_tgt[0]})
    with pytest.raises(MissingError, match=r"dev\.en does not exist"):
        texts.run(dev, tmp_path / "out", dry_run=True)
    Path(section.train_tgt[0]).unlink()
    with pytest.raises(MissingError, match=r"train\.de does not exist"):
        texts.run(section, tmp_path / "out", dry_run=True)


def test_a_dry_run_counts_the_pairs_of_a_mirror(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pyarrow import parquet, table

    (tmp_path / "de-en").mkdir()
    pairs = [{"en": "a", "de": "b"}] * 70
    for name in ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001", "test-00000-of-00001"):
        parquet.write_table(table({"translation": pairs}), tmp_path / "de-en" / f"{name}.parquet")
    texts.run(texts.corpus({"name": "wmt14-en-de"}), tmp_path / "out", dry_run=True, mirror=tmp_path)
    assert "training pairs 140" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "de-en" / "train-00001-of-00002.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"train-00001-of-00002\.parquet is not a complete parquet file"):
        texts.run(texts.corpus({"name": "wmt14-en-de"}), tmp_path / "out", dry_run=True, mirror=tmp_path)


def test_lengths_and_ratios_up_to_the_limit_are_kept(tmp_path: Path) -> None:
    text = [*PAIRS, *((" the" * i, " das" * j) for i in range(1, 9) for j in range(1, 9))]
    none = {"max_tokens": None, "max_ratio": None}
    corpus = store.open_corpus(texts.run(texts.own(tmp_path / "in", text, cleaning=none), tmp_path / "all"))
    lengths = list(zip(corpus.src.lengths() - 1, corpus.tgt.lengths() - 1, strict=True))  # without EOS
    short = [max(pair) <= 7 for pair in lengths]
    even = [max(pair) <= 2 * min(pair) for pair in lengths]
    assert {(7, 4), (4, 7), (8, 4), (4, 8), (6, 3), (3, 6), (7, 3), (3, 7)} <= set(lengths)
    limits = {"max_tokens": 7, "max_ratio": 2}
    reused = Path(shutil.copy(corpus.tokenizer_file, tmp_path))
    section = texts.own(tmp_path / "in", text, cleaning=limits, tokenizer={"file": str(reused)})
    out = texts.run(section, tmp_path / "out")
    expected = [(s.strip(), t.strip()) for (s, t), *both in zip(text, short, even, strict=True) if all(both)]
    assert stored(out) == expected
    assert artefact.sha256(out / "tokenizer.model") == artefact.sha256(reused)
    counts = {reason: entry["pairs"] for reason, entry in report(out)["dropped"].items() if entry["pairs"]}
    assert counts == {cleaning.TOO_LONG: short.count(False), cleaning.RATIO: sum(short) - len(expected)}
    texts.run(section, out)  # finished already
    reused.write_bytes(b"another")
    with pytest.raises(OutputError, match=r"tokenizer\.model is a different file"):
        texts.run(section, out)


def test_a_reused_tokenizer_that_gains_or_loses_a_target_model_counts_as_another(tmp_path: Path) -> None:
    """Even if the two models have the same bytes."""
    one = texts.run(texts.own(tmp_path / "in", PAIRS), tmp_path / "one") / "tokenizer.model"
    files = [Path(shutil.copy(one, tmp_path / name)) for name in ("reused.model", "reused.target.model")]
    section = texts.own(tmp_path / "in", PAIRS, tokenizer={"file": str(files[0])})
    texts.run(section, tmp_path / "two")
    files[1].unlink()
    texts.run(section, tmp_path / "alone")
    with pytest.raises(OutputError, match=r"reused\.model gained or lost a separate target model"):
        texts.run(section, tmp_path / "two")
    shutil.copy(one, files[1])
    texts.run(section, tmp_path / "two")
    with pytest.raises(OutputError, match=r"reused\.model gained or lost a separate target model"):
        texts.run(section, tmp_path / "alone")


@pytest.mark.parametrize(
    ("sides", "numbers"), [((1000, 900), "1,000 lines, .*de has 900"), ((1, 801), "1 line, .* 801")]
)
def test_sides_that_are_not_parallel_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sides: tuple[int, int], numbers: str
) -> None:
    monkeypatch.setattr(readers, "CHUNK", 400)
    section = texts.own(tmp_path / "in", PAIRS)
    for file, count in zip((section.train_src[0], section.train_tgt[0]), sides, strict=True):
        Path(file).write_text("a line\n" * count)
    with pytest.raises(DataError, match=f"en has {numbers}: they are not parallel"):
        list(readers.read_pairs(section.train_src[0], section.train_tgt[0], 0, {}))


@pytest.mark.parametrize(("name", "src"), [("toy-en-de", 0), ("toy-de-en", 1)])
def test_the_toy_corpus_exists_in_both_directions_and_is_marked_as_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, src: int
) -> None:
    sides = [[line.encode() for line in lines] for lines in zip(*PAIRS, strict=True)]
    splits = {"train": sides, "dev": [side[:9] for side in sides], "test": [side[5:12] for side in sides]}
    chunks = {split: readers.Chunk(*pair) for split, pair in splits.items()}
    monkeypatch.setattr("nmt_cli.corpus.toy.read_splits", lambda: chunks)
    section = texts.corpus({"name": name, "tokenizer": {"vocabulary_size": "400"}})
    corpus = store.open_corpus(texts.run(section, tmp_path / "out"))
    assert (corpus.manifest["generated"], corpus.manifest["src"]) == (True, ("en", "de")[src])
    assert corpus.lines("test")[0] == [pair[src] for pair in PAIRS[5:12]]
    assert stored(tmp_path / "out") == [(pair[src], pair[1 - src]) for pair in PAIRS[12:]]


def test_a_file_listed_twice_counts_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    once = texts.own(tmp_path / "a", [*PAIRS[:700], PAIRS[0]])
    other = texts.own(tmp_path / "b", PAIRS[600:])
    files = {side: [*getattr(once, side), *getattr(other, side)] * 2 for side in ("train_src", "train_tgt")}
    out = texts.run(once.model_copy(update=files), tmp_path / "out")
    assert stored(out) == PAIRS * 2
    assert report(out)["dropped"][cleaning.DUPLICATE]["pairs"] == 2 * (1 + 100)
    recorded = [source["name"] for source in store.open_corpus(out).manifest["sources"]]
    assert recorded == ["train.en", "train.de"] * 2, "each file of the two directories once"
    limited = once.model_copy(update={**files, "limit": 1301 + 700})
    assert stored(texts.run(limited, tmp_path / "limited")) == [*PAIRS, *PAIRS[:700]]
    assert "a/train.en is listed 2 times" in capsys.readouterr().err.replace("\n", "")


def test_chinese_needs_no_spaces(tmp_path: Path) -> None:
    words = "这 一只 小 大 老 绿色 房子 树木 狗 鸟 看见 找到 喜欢 睡觉 附近 下面 和 是 跟 那个".split()  # noqa: SIM905
    cut = [src.split() for src, _ in PAIRS]
    text = [("".join(words[texts.EN.index(w)] for w in s[:-1]) + f"， {s[-1]}。", " ".join(s)) for s in cut]
    text[5] = (f"龘{text[5][0]}", text[5][1])
    raw = [(text[0][0].replace(" ", "\u3000"), text[0][1]), *text[1:], text[-1]]
    out = texts.run(texts.own(tmp_path / "in", raw, src="zh", tgt="en"), tmp_path / "out")
    assert stored(out) == text
    tokenizer = Tokenizer(out / "tokenizer.model")
    tokens = [tokenizer.tokens(ids)[-1] for ids in tokenizer.encode(["房子", "龘"])]
    assert [token[-2:] for token in tokens] == ["房子", "8>"]  # a rare character becomes bytes
    turned = texts.own(tmp_path / "in", [pair[::-1] for pair in raw], src="en", tgt="zh")
    tokenizer = Tokenizer(texts.run(turned, tmp_path / "turned") / "tokenizer.model")
    assert tokenizer.tokens(tokenizer.encode(["龘"])[0])[-1][-2:] == "8>"


def test_the_identity_covers_all_files_that_training_reads(numbers_corpus: Path) -> None:
    corpus = store.open_corpus(numbers_corpus)
    files = corpus.manifest["files"]
    assert len(files) == 10
    for name in files:
        other = {"files": {**files, name: {**files[name], "sha256": "another"}}}
        assert (dataclasses.replace(corpus, manifest=other).identity == corpus.identity) == (name == "cleaning.json")


def test_duplicates_are_found_exactly_in_several_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "HASHES_AT_ONCE", 100)
    monkeypatch.setattr(stages, "CHUNK", 500)
    half_new = [(PAIRS[0][0], "anders"), ("else", PAIRS[0][1])]
    text = [*PAIRS[:600], *PAIRS[300:900], *half_new, *PAIRS[900:], PAIRS[-1]]
    out = texts.run(texts.own(tmp_path / "in", text), tmp_path / "out")
    assert stored(out) == [*PAIRS[:900], *half_new, *PAIRS[900:]]
    dropped = report(out)["dropped"][cleaning.DUPLICATE]
    assert (dropped["pairs"], dropped["percent"], dropped["examples"][0]) == (301, 20.027, list(PAIRS[300]))
    kept = texts.run(texts.own(tmp_path / "in", text, cleaning={"drop_duplicates": False}), tmp_path / "kept")
    assert len(stored(kept)) == len(text)
    clean = texts.run(texts.own(tmp_path / "in", stored(out)), tmp_path / "clean")
    hashes = [artefact.sha256(directory / "tokenizer.model") for directory in (clean, out, kept)]
    assert hashes[0] == hashes[1] != hashes[2]  # the sample has no duplicates


def test_the_seed_selects_the_sample_for_the_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "SAMPLE_PAIRS", 300)
    section = texts.own(tmp_path / "in", PAIRS, tokenizer={"vocabulary_size": 350})
    made = [texts.run(section.model_copy(update={"seed": n}), tmp_path / str(i)) for i, n in enumerate((1, 1, 2))]
    models = [artefact.sha256(out / "tokenizer.model") for out in made]
    assert models[0] == models[1] != models[2]


def test_shifted_sides_give_a_warning_or_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    src, tgt = zip(*PAIRS, strict=True)
    section = texts.own(tmp_path / "in", list(zip(src[1:], tgt[:-1], strict=True)))
    message = "from about line 1 on, one side seems to be shifted"
    with pytest.raises(DataError, match=message):
        texts.run(section, tmp_path / "strict", strict=True)
    texts.run(texts.own(tmp_path / "sound", PAIRS[:200]), tmp_path / "kept", strict=True)
    out = texts.run(section, tmp_path / "out")
    assert message in capsys.readouterr().err
    assert len(report(out)["warnings"]) == 1


def test_more_than_one_percent_of_lines_that_are_not_utf8_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "CHUNK", 500)
    text = [*PAIRS[:700], *[("a b", b"\xff\xfe")] * 12, *PAIRS[700:1188]]  # 1 % is still accepted
    out = texts.run(texts.own(tmp_path / "in", text), tmp_path / "out")
    assert report(out)["warnings"] == ["not UTF-8: 12 lines, the first is line 701"]
    assert stored(out) == PAIRS[:1188]
    with pytest.raises(DataError, match="line 701"):
        texts.run(texts.own(tmp_path / "in", text), tmp_path / "strict", strict=True)
    with pytest.raises(DataError, match=r"^\S+/train\.de is not UTF-8: 12 lines.*701 \(1,199 pairs in total.*Latin-1"):
        texts.run(texts.own(tmp_path / "in", text[:-1]), tmp_path / "more")


def test_lines_over_a_megabyte_are_never_held_in_memory(tmp_path: Path) -> None:
    longest = b"x" * readers.MAX_LINE_BYTES
    text = [(b"a", b"b"), (longest, b"c"), (longest + b"x", b"d"), (b"x" * 50_000_000, b"e"), (longest, b"g")]
    section = texts.own(tmp_path / "in", text)
    os.truncate(section.train_src[0], Path(section.train_src[0]).stat().st_size - 1)  # no line feed at the end
    tracemalloc.start()
    [chunk] = readers.read_pairs(section.train_src[0], section.train_tgt[0], 0, {})
    assert tracemalloc.get_traced_memory()[1] < 10 * readers.MAX_LINE_BYTES
    tracemalloc.stop()
    assert chunk.src == [b"a", longest, None, None, longest]
    assert chunk.tgt == [tgt for _, tgt in text]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["", " ", "\t"], "3 read; 3 empty side"),
        (["same", "same"], "2 read; 2 source equals target"),
        ([], r"none in \S*train\.en, \S*train\.de"),
    ],
)
def test_text_without_usable_pairs_is_refused_with_the_reasons(tmp_path: Path, lines: list[str], why: str) -> None:
    with pytest.raises(DataError, match=f"no usable pairs: {why}"):
        texts.run(texts.own(tmp_path / "in", [(line, line) for line in lines]), tmp_path / "out")


def test_moses_text_is_tokenized_lower_cased_and_scored_as_tokens(tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    test = [("It's the “Old” dog.", "Das ist's, z. B. der „alte“ Hund.")]
    sides = {
        f"test_{side}": str(texts.write(tmp_path / side, [line]))
        for side, line in zip(("src", "tgt"), *test, strict=True)
    }
    section = texts.own(tmp_path / "in", [*PAIRS, ("\xff", "x")], **sides, moses=True)
    Path(section.train_src[0]).write_bytes(Path(section.train_src[0]).read_bytes().replace("\xff".encode(), b"\xff"))
    out = texts.run(section, tmp_path / "out")
    assert store.open_corpus(out).lines("test") == (
        ['it \'s the " old " dog .'],
        ['das ist \' s , z. b. der " alte " hund .'],
    )
    assert report(out)["dropped"][cleaning.NOT_UTF8]["pairs"] == 1
    scored = evaluate(ScoreOptions(corpus=out), ['das ist \' s , z. b. der " alte " hund .'])
    assert [score.score for score in scored.scores] == pytest.approx([100, 100])
    assert "|tok:none|" in scored.scores[0].signature
    assert scored.warnings == []


def test_moses_text_repeats_a_file_listed_twice(tmp_path: Path) -> None:
    pytest.importorskip("sacremoses")
    section = texts.own(tmp_path / "in", PAIRS[:300], moses=True)
    twice = {name: getattr(section, name) * 2 for name in ("train_src", "train_tgt")}
    out = texts.run(section.model_copy(update=twice), tmp_path / "out")
    assert stored(out) == PAIRS[:300] * 2


def test_settings_that_older_versions_did_not_have_are_stored_only_if_they_are_set() -> None:
    entry, made = {"files": ["a.tsv"], "weight": 2.0}, {"model": "m", "weight": 3.0}
    newer = {"src": "en", "tgt": "de"}
    for more, names in (({}, set()), (newer, newer.keys())):
        section = texts.bitext_section(
            {**entry, **({"filters": {"numbers": True}} if more else {})}, synthetic=[{**made, **more}]
        )
        settings = prepare.prepared_settings(section)
        assert settings["synthetic"][0].keys() & {*newer, "weight", "filters"} == names
        assert settings["sources"][0].keys() & {"filters", "weight"} == ({"filters"} if more else set())


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"name": "toy-en-de"}, ["toy-en-de"]),
        ({"train_src": ["a", "b"], "train_tgt": ["c", "d"]}, ["a, b"]),
        ({"train_src": ["a"], "train_tgt": ["c"], "mix_src": ["e"], "mix_tgt": ["f"]}, ["a, e"]),
        ({"sources": [{"files": ["x.tsv", "y.tsv"]}, {"files": ["z.tsv"], "split": "dev"}]}, ["x.tsv, y.tsv"]),
        ({"train_src": ["a"], "train_tgt": ["c"], "sources": [{"files": ["x.tsv"]}]}, ["a", "x.tsv"]),
    ],
)
def test_parts_are_named_by_their_files(settings: dict[str, Any], names: list[str]) -> None:
    assert prepare.part_names(texts.corpus({"name": "own", **settings})) == names
    made = [{"model": "m", "side": side} for side in ("src", "tgt")]
    more = [f"{schema.SYNTHETIC_KINDS[side]} by m" for side in ("src", "tgt")]
    for real, expected in ((True, [*names, *more]), (False, more)):
        section = texts.corpus({"name": "own", **settings, "synthetic": made, "real_pairs": real})
        assert prepare.part_names(section) == expected


def test_a_tokenizer_that_cannot_be_used_is_noticed_before_any_text_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "read_pairs", lambda *_: pytest.fail("text is read"))
    (tmp_path / "mine.model").write_bytes(b"no model")
    section = texts.own(tmp_path / "in", PAIRS[:9], tokenizer={"file": str(tmp_path / "mine.model")}, hold_out=1)
    with pytest.raises(DataError, match=r"mine\.model is not a SentencePiece model"):
        texts.run(section, tmp_path / "out")


@pytest.mark.parametrize("settings", [{"limit": 199}, {"rows": 200}])
def test_progress_has_no_total_if_the_number_of_synthetic_pairs_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int]
) -> None:
    totals = list[Any]()

    class Progress(contextlib.nullcontext[Any]):
        def __init__(self, what: str, total: int | None, unit: str) -> None:
            super().__init__(self)
            totals.append((what, total))

        def advance(self, count: int) -> None: ...

    monkeypatch.setattr("nmt_cli.system.console.Progress", Progress)
    for synthetic, total in (([], next(iter(settings.values()))), ([{"model": "m"}], None)):
        section = texts.own(tmp_path / "in", PAIRS[:3], **settings, synthetic=synthetic)
        with stages.Pool(1) as pool:
            stages.clean(tmp_path, [], section, frozenset(), pool)
        assert totals.pop() == ("cleaning", total)
