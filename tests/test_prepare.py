import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import texts

from nmt_cli import artefact
from nmt_cli.corpus import cleaning, readers, stages, store
from nmt_cli.corpus.tokenizer import EOS, Tokenizer
from nmt_cli.errors import DataError, OutputError

PAIRS = texts.pairs(1200)


def report(out: Path) -> dict[str, Any]:
    return artefact.read_json(out / "cleaning.json")


def stored(out: Path) -> list[tuple[str, str]]:
    """Return the training pairs as text again."""
    corpus = store.open_corpus(out, content=True)
    tokenizer = Tokenizer(corpus.tokenizer_file)
    sides = []
    for side in (corpus.src, corpus.tgt):
        ids, lengths = side.gather(np.arange(len(side)))
        sentences = np.split(ids, np.cumsum(lengths)[:-1])
        assert all(sentence[-1] == EOS and EOS not in sentence[:-1] for sentence in sentences)
        sides.append(tokenizer.decode([sentence[:-1].tolist() for sentence in sentences]))
    return list(zip(*sides, strict=True))


def test_text_comes_out_as_it_went_in(tmp_path: Path) -> None:
    dev = texts.pairs(50, seed=5)
    more = {
        "dev_src": str(texts.write(tmp_path / "dev.en", ["\ufeff" + dev[0][0] + "\r", *(src for src, _ in dev[1:])])),
        "dev_tgt": str(texts.write(tmp_path / "dev.de", ["A\u2028B  ", *(tgt for _, tgt in dev[1:])])),
    }
    out = texts.run(texts.own(tmp_path / "in", PAIRS, **more), tmp_path / "data" / "own")
    assert stored(out) == PAIRS
    corpus = store.open_corpus(out)
    assert corpus.lines("dev") == ([src for src, _ in dev], ["A\u2028B  ", *(tgt for _, tgt in dev[1:])])
    assert corpus.lines("test") == ([], [])
    about = corpus.manifest
    assert (about["name"], about["src"], about["tgt"]) == ("own", "en", "de")
    assert (about["vocabulary_size"], about["generated"], about["pairs"]) == (400, False, 1200)
    assert about["recipe"]["tokenizer"]["vocabulary_size"] == 400
    assert {source["name"] for source in about["sources"]} == {"train.en", "train.de", "dev.en", "dev.de"}
    assert report(out)["references"]["dev"]["not_reproduced"] == 1
    assert sorted(path.name for path in out.parent.iterdir()) == ["own"]  # nothing is left beside it


def test_lines_end_at_line_feeds_only() -> None:
    assert readers.split_lines("a\rb\u2028c\n\nd".encode(), "x") == ["a\rb\u2028c", "", "d"]
    assert readers.split_lines(b"a\n\n", "x") == ["a", ""]
    with pytest.raises(DataError, match=r"x, line 3 is not UTF-8"):
        readers.split_lines(b"a\n\n\xff\n", "x")


@pytest.mark.parametrize("kind", ["CR", ".gz", "several"])
def test_every_kind_of_file_gives_the_same_pairs(tmp_path: Path, kind: str) -> None:
    plain: dict[str, Any] = {"name": "own", "tokenizer": {"vocabulary_size": "400"}, "train_src": [], "train_tgt": []}
    for name, pairs in (("a", PAIRS[:500]), ("b", PAIRS[500:])) if kind == "several" else (("a", PAIRS),):
        for side, language in enumerate(("src", "tgt")):
            data = "\n".join(pair[side] for pair in pairs).encode()  # no line feed at the end
            path = tmp_path / f"{name}.{language}{kind * (kind == '.gz')}"
            two_members = gzip.compress(data[:9999]) + gzip.compress(data[9999:])
            path.write_bytes(two_members if kind == ".gz" else data.replace(b"\n", b"\r\n") if kind == "CR" else data)
            plain[f"train_{language}"].append(str(path))
    out = texts.run(texts.corpus(plain), tmp_path / "out")
    assert stored(out) == PAIRS
    recorded = {source["name"]: source["sha256"] for source in store.open_corpus(out).manifest["sources"]}
    assert recorded == {path.name: artefact.sha256(path) for path in tmp_path.iterdir() if path.is_file()}


def test_the_same_bytes_whatever_the_workers_locale_or_hash_seed(tmp_path: Path) -> None:
    text = [(f"{s} {i}", f"{t} {i}") for i in range(6) for s, t in texts.pairs(5000)] + PAIRS[:9] * 2
    texts.own(tmp_path / "in", text)
    words = ["--src", tmp_path / "in" / "train.en", "--tgt", tmp_path / "in" / "train.de"]
    words += ["--set", "corpus.tokenizer.vocabulary_size=400"]
    found = []
    for workers, env in (
        (1, {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "Asia/Tokyo"}),
        (2, {"PYTHONHASHSEED": "2", "LC_ALL": "C.UTF-8", "PYTHONUTF8": "0"}),
    ):
        out = tmp_path / f"out{workers}"
        done = texts.nmt("prepare", *words, "--workers", workers, "--out", out, **env)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        files = store.open_corpus(out, content=True).manifest["files"]
        found.append({name: file["sha256"] for name, file in files.items()})
    assert found[0] == found[1]
    assert report(out)["dropped"][cleaning.DUPLICATE]["pairs"] == 9


def test_a_finished_corpus_is_verified_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section = texts.own(tmp_path / "in", PAIRS)
    out = texts.run(section, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    texts.run(section, out)
    assert "prepared already" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    ids = bytearray((out / "train.src.ids").read_bytes())
    ids[100] ^= 1
    (out / "train.src.ids").write_bytes(ids)
    with pytest.raises(DataError, match=r"train\.src\.ids is damaged.*--overwrite"):
        texts.run(section, out)
    texts.run(section, out, overwrite=True)
    assert stored(out) == PAIRS


def test_other_inputs_are_refused_unless_overwritten(tmp_path: Path) -> None:
    out = texts.run(texts.own(tmp_path / "in", PAIRS), tmp_path / "out")
    limited = texts.own(tmp_path / "in", PAIRS, limit=700)
    with pytest.raises(OutputError, match=r"other inputs \(limit: None -> 700\)"):
        texts.run(limited, out)
    assert stored(texts.run(limited, out, overwrite=True)) == PAIRS[:700]
    with pytest.raises(OutputError, match=r"train\.en is another file"):
        texts.run(texts.own(tmp_path / "in", PAIRS[:1000], limit=700), out)


@pytest.mark.parametrize("named", [True, False])
def test_a_directory_of_something_else_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    monkeypatch.chdir(tmp_path / "precious")
    out = tmp_path / "precious" if named else Path()  # "." has no name to pathlib
    with pytest.raises(OutputError, match="not a prepared corpus"):
        texts.run(texts.own(tmp_path / "in", PAIRS), out, overwrite=True)
    assert (tmp_path / "precious" / "thesis.txt").exists()


def test_dry_run_writes_nothing_and_asks_nobody(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = {"name": "mine", "train_src": ["no.en"], "train_tgt": ["no.de"]}
    for plain, expected, unknowns in (
        ({"name": "wmt14-en-fr"}, ("7,778 MB", "14,753 MB", "40,836,715", "memory", "datasets/wmt/wmt14", "Arrow"), 0),
        ({"name": "wmt14-en-fr", "limit": 1000}, ("7,778 MB", "1,000"), 0),
        ({"name": "toy-en-de"}, ("20,000", "generated"), 0),
        ({"name": "hub:owner/some"}, ("datasets/owner/some",), 5),
        (unknown, ("localfiles",), 3),
    ):
        texts.run(texts.corpus(plain), tmp_path / "data" / "out", dry_run=True)
        shown = capsys.readouterr()
        assert shown.out == ""
        table = "".join(shown.err.split())
        assert all(what.replace(" ", "") in table for what in expected), table
        assert table.count("unknown") == unknowns, table
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_is_reused_and_its_hash_kept(tmp_path: Path) -> None:
    model = texts.run(texts.own(tmp_path / "in", PAIRS), tmp_path / "first") / "tokenizer.model"
    other = texts.own(tmp_path / "other", PAIRS[:300], tokenizer={"file": str(model)})
    second = texts.run(other, tmp_path / "second")
    assert (second / "tokenizer.model").read_bytes() == model.read_bytes()
    recorded = store.open_corpus(second).manifest["sources"]
    assert artefact.sha256(model) in [source["sha256"] for source in recorded]


def test_lengths_and_ratios_are_judged_in_tokens(tmp_path: Path) -> None:
    long, lopsided = ("dog " * 80, "hund " * 80), ("the small dog sleeps under the tree", "das")
    settings = {"max_tokens": 60, "max_ratio": 3}
    out = texts.run(texts.own(tmp_path / "in", [*PAIRS, long, lopsided], cleaning=settings), tmp_path / "out")
    dropped = report(out)["dropped"]
    assert (dropped[cleaning.TOO_LONG]["pairs"], dropped[cleaning.RATIO]["pairs"]) == (1, 1)
    assert dropped[cleaning.RATIO]["examples"] == [list(lopsided)]
    assert stored(out) == PAIRS


def test_duplicates_are_found_exactly_in_any_number_of_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "HASHES_AT_ONCE", 100)
    text = [*PAIRS[:600], *PAIRS[300:900], (PAIRS[0][0], "anders"), *PAIRS[900:], PAIRS[-1]]
    out = texts.run(texts.own(tmp_path / "in", text), tmp_path / "out")
    assert stored(out) == [*PAIRS[:900], (PAIRS[0][0], "anders"), *PAIRS[900:]]
    assert report(out)["dropped"][cleaning.DUPLICATE]["pairs"] == 301
    kept = texts.run(texts.own(tmp_path / "in", text, cleaning={"drop_duplicates": False}), tmp_path / "kept")
    assert len(stored(kept)) == len(text)


def test_the_sample_is_drawn_at_random_from_all_and_stated_by_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "SAMPLE_PAIRS", 300)

    def models(seed: int, name: str) -> bytes:
        section = texts.own(tmp_path / "in", PAIRS, tokenizer={"vocabulary_size": 350}, seed=seed)
        return (texts.run(section, tmp_path / name) / "tokenizer.model").read_bytes()

    assert models(1, "a") == models(1, "b") != models(2, "c")


# A deliberately broken corpus: the right message or the right count for each fault.


def test_shifted_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    src, tgt = zip(*PAIRS, strict=True)
    section = texts.own(tmp_path / "in", list(zip(src[1:], tgt[:-1], strict=True)))
    message = "from about line 1 the lines of one side look shifted"
    with pytest.raises(DataError, match=message):
        texts.run(section, tmp_path / "strict", strict=True)
    out = texts.run(section, tmp_path / "out")
    assert message in capsys.readouterr().err
    assert len(report(out)["warnings"]) == 1


def test_a_few_lines_that_are_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = [*PAIRS[:700], ("a b", b"\xff\xfe"), *PAIRS[700:]]
    out = texts.run(texts.own(tmp_path / "in", text), tmp_path / "out")
    assert "1 lines are not UTF-8, the first is line 701" in capsys.readouterr().err
    assert report(out)["dropped"][cleaning.NOT_UTF8]["pairs"] == 1
    assert stored(out) == PAIRS
    with pytest.raises(DataError, match="line 701"):
        texts.run(texts.own(tmp_path / "in", text), tmp_path / "strict", strict=True)
    section = texts.own(tmp_path / "in", [(src, tgt.encode("latin-1")) for src, tgt in PAIRS])
    with pytest.raises(DataError, match=r"lines are not UTF-8, the first is line \d+.*Latin-1"):
        texts.run(section, tmp_path / "latin")


def test_a_line_of_100_megabytes(tmp_path: Path) -> None:
    texts.own(tmp_path / "in", [*PAIRS[:600], (b"x" * 100_000_000, "kurz"), *PAIRS[600:]])
    code = (
        "import re, sys, texts\nfrom pathlib import Path\n"
        "files = {'train_src': [sys.argv[1] + '/train.en'], 'train_tgt': [sys.argv[1] + '/train.de']}\n"
        "texts.run(texts.corpus({'name': 'own', **files, 'tokenizer': {'vocabulary_size': 400}}), Path(sys.argv[2]))\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
    )
    done = texts.python("-c", code, tmp_path / "in", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 512 * 1024
    assert report(tmp_path / "out")["dropped"][cleaning.LONG_LINE]["pairs"] == 1
    assert stored(tmp_path / "out") == PAIRS


def test_dev_inside_train(tmp_path: Path) -> None:
    more = {
        "dev_src": str(texts.write(tmp_path / "dev.en", (src for src, _ in PAIRS[10:20]))),
        "dev_tgt": str(texts.write(tmp_path / "dev.de", (tgt for _, tgt in PAIRS[10:20]))),
    }
    out = texts.run(texts.own(tmp_path / "in", PAIRS, **more), tmp_path / "out")
    assert report(out)["dropped"][cleaning.HELD_OUT]["pairs"] == 10
    assert stored(out) == [*PAIRS[:10], *PAIRS[20:]]


@pytest.mark.parametrize("lines", [["", " ", "\t"], ["same", "same"]])
def test_nothing_usable(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(DataError, match=r"no usable pairs: \d read; \d (empty side|source equals target)"):
        texts.run(texts.own(tmp_path / "in", [(line, line) for line in lines]), tmp_path / "out")
