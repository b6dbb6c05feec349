"""The stages of `prepare`: samples, duplicates, encoding, and the pool of workers."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import texts

from nmt_cli.corpus import cleaning, readers, stages, store, tokenizer
from nmt_cli.corpus.tokenizer import Tokenizer
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, StorageError

PAIRS = texts.pairs(300, seed=11)


@pytest.fixture
def cleaned(tmp_path: Path) -> Path:
    """A directory with 100 pairs of cleaned text."""
    for side, lines in zip(("src", "tgt"), zip(*PAIRS[:100], strict=True), strict=True):
        texts.write(tmp_path / side, lines)
    return tmp_path


def test_the_sample_has_no_repeated_pairs(cleaned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If there are fewer distinct pairs than the sample needs, it has all of them."""
    monkeypatch.setattr(stages, "CHUNK", 30)
    repeated = np.arange(100) % 2 == 1
    distinct = [line for pair in PAIRS[:100:2] for line in pair]
    for wanted in (50, 1000):
        monkeypatch.setattr(stages, "SAMPLE_PAIRS", wanted)
        assert list(stages.sample(cleaned, repeated, 1)) == distinct
    monkeypatch.setattr(stages, "SAMPLE_PAIRS", 25)
    some = [list(stages.sample(cleaned, repeated, seed)) for seed in (1, 1, 2)]
    assert some[0] == some[1] != some[2]
    for lines in some:
        assert 10 < len(lines) / 2 < 40
        assert [line for line in distinct if line in lines] == lines
    assert list(stages.sample(cleaned, np.ones(100, bool), 1)) == []


def test_a_pair_is_repeated_if_an_earlier_hash_equals_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = [np.array(pair, "<u8") for pair in ((1, 2), (1, 3), (2, 2), (1, 2), (4, 3), (1, 3), (1, 2), (2, 2))]
    (tmp_path / "hashes").write_bytes(b"".join(each.tobytes() for each in hashes))
    for at_once in (3, 4, 8, 100):
        monkeypatch.setattr(stages, "HASHES_AT_ONCE", at_once)
        assert np.flatnonzero(stages.find_repeated(tmp_path / "hashes", True)).tolist() == [3, 5, 6, 7]
        assert stages.find_repeated(tmp_path / "hashes", False).tolist() == [False] * 8
    (tmp_path / "hashes").write_bytes(b"")
    assert stages.find_repeated(tmp_path / "hashes", True).tolist() == []


@pytest.fixture
def chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stages, readers):
        monkeypatch.setattr(module, "CHUNK", 90)


@pytest.mark.usefixtures("chunked")
@pytest.mark.parametrize("drop", [False, True])
def test_near_duplicates_are_found_in_every_chunk(tmp_path: Path, drop: bool) -> None:
    """Dropped pairs do not count as near-duplicates in training."""
    test = [
        ("the cat of a king", "x"),
        ("one more old song", "y"),
        ("no duplicate at all", "z"),
        ("too long a line", "v"),
    ]
    duplicates = {
        5: ("The cat of a king!", "zzz"),
        7: ("too long a line", "v " * 300),
        290: ("one more old song.", "www"),
    }
    text = [duplicates.get(i, pair) for i, pair in enumerate(PAIRS)]
    sides = {
        f"test_{side}": str(texts.write(tmp_path / side, lines))
        for side, lines in zip(("src", "tgt"), zip(*test, strict=True), strict=True)
    }
    out = texts.run(texts.own(tmp_path / "in", text, cleaning={"drop_near_twins": drop}, **sides), tmp_path / "out")
    found = artefact.read_json(out / "cleaning.json")
    assert found["twins"]["test"]["near_lines"] == ([] if drop else [1, 2])
    assert found["twins"]["test"]["equal"]["source"] == (0 if drop else 2)
    dropped = {reason: each["examples"] for reason, each in found["dropped"].items() if each["pairs"]}
    assert dropped.pop(cleaning.TOO_LONG) == [["too long a line", ("v " * 300).strip()[:200]]]
    assert dropped == ({cleaning.NEAR_DUPLICATE: [list(duplicates[5]), list(duplicates[290])]} if drop else {})
    assert found["kept"] == store.open_corpus(out).manifest["pairs"] == (297 if drop else 299)


def test_each_pair_is_dropped_for_the_first_reason(tmp_path: Path) -> None:
    """The order of the reasons: repeated, too long, uneven."""
    (tmp_path / "tokenizer.model").write_bytes(tokenizer.train([line for pair in PAIRS for line in pair], 400))
    model = Tokenizer(tmp_path / "tokenizer.model")
    word = next(word for word in texts.EN if len(model.encode([word])[0]) == 1)
    sizes = [(2, 9, True), (2, 9, False), (9, 2, False), (2, 7, False), (7, 2, False), (8, 8, False), (3, 6, False)]
    src, tgt = ([" ".join([word] * size[side]) for size in sizes] for side in (0, 1))
    section = texts.own(tmp_path / "in", PAIRS[:1], cleaning={"max_tokens": 8, "max_ratio": 3})
    stages.load_tokenizer.cache_clear()
    repeats = np.array([repeated for *_, repeated in sizes])
    ids, lengths, remaining, stats, flags = stages.encode_chunk(
        tmp_path / "tokenizer.model", section, (list(src), list(tgt), repeats, 0)
    )
    first = model.encode([word])[0]
    assert [side.tolist() for side in ids] == [[*first * 8, 2, *first * 3, 2], [*first * 8, 2, *first * 6, 2]]
    assert [side.tolist() for side in lengths] == [[9, 4], [9, 7]]
    assert remaining.tolist() == [5, 6]
    assert stats.dropped == {cleaning.DUPLICATE: 1, cleaning.TOO_LONG: 2, cleaning.RATIO: 2}
    assert stats.examples == {
        cleaning.DUPLICATE: [(src[0], tgt[0])],
        cleaning.TOO_LONG: [(src[1], tgt[1]), (src[2], tgt[2])],
        cleaning.RATIO: [(src[3], tgt[3]), (src[4], tgt[4])],
    }
    assert (stats.read, flags.tolist()) == (0, [])
    nothing = stages.encode_chunk(tmp_path / "tokenizer.model", section, (src[:1], tgt[:1], repeats[:1], 0))
    assert [(side.tolist(), side.dtype) for side in nothing[0]] == [([], np.int32)] * 2


def test_a_separate_target_model_encodes_target_text(tmp_path: Path) -> None:
    models = {"both.model": (0, 400), "both.target.model": (1, 350)}
    for name, (side, size) in models.items():
        (tmp_path / name).write_bytes(tokenizer.train([pair[side] for pair in PAIRS], size))
    section = texts.own(tmp_path / "in", PAIRS, tokenizer={"file": str(tmp_path / "both.model")})
    out = texts.run(section, tmp_path / "out")
    corpus = store.open_corpus(out, content=True)
    sizes = {key: corpus.manifest[key] for key in ("source_vocabulary_size", "vocabulary_size")}
    assert sizes == {"source_vocabulary_size": 400, "vocabulary_size": 350}
    for side, (name, _) in zip((corpus.src, corpus.tgt), models.items(), strict=True):
        model = Tokenizer(tmp_path / name)
        expected = [[*ids, 2] for ids in model.encode([pair[models[name][0]] for pair in PAIRS])]
        assert side.ids.tolist() == [token for ids in expected for token in ids]
        assert side.lengths().tolist() == [len(ids) for ids in expected]
    stored = {source["name"] for source in corpus.manifest["sources"]}
    assert stored == {"train.en", "train.de", *models}
    assert [artefact.sha256(out / f"tokenizer{end}") for end in (".model", ".target.model")] == [
        artefact.sha256(tmp_path / name) for name in models
    ]


def test_a_new_corpus_in_the_same_directory_uses_its_own_tokenizer_and_held_out_text(tmp_path: Path) -> None:
    for number in range(2):
        pairs = [(f"{src} {'qv'[number]}", tgt) for src, tgt in PAIRS[number * 100 : number * 100 + 100]]
        dev = {
            f"dev_{side}": str(texts.write(tmp_path / side, [pairs[3][side == "tgt"] + "!"])) for side in ("src", "tgt")
        }
        section = texts.own(tmp_path / "in", pairs, tokenizer={"vocabulary_size": 330 + number}, **dev)
        out = texts.run(section, tmp_path / "out", overwrite=True)
        model = Tokenizer(out / "tokenizer.model")
        expected = [token for ids in model.encode([src for src, _ in pairs]) for token in [*ids, 2]]
        assert store.open_corpus(out, content=True).src.ids.tolist() == expected
        assert artefact.read_json(out / "cleaning.json")["twins"]["dev"]["equal"]["both"] == 1


def test_few_jobs_or_one_worker_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes start only if there are at least eight jobs. Answers keep the order of the jobs."""

    def calls(self: stages.Pool, function: Callable[[Any], Any], jobs: Any) -> list[Any]:
        return ["by processes", *map(function, jobs)]

    monkeypatch.setattr(stages.Pool, "calls", calls)
    for workers, jobs, started in ((1, 20, False), (2, 7, False), (2, 8, True), (3, 20, True), (2, 0, False)):
        with stages.Pool(workers) as pool:
            answers = list(pool.map(str, iter(range(jobs))))
        assert answers == ["by processes"] * started + [str(i) for i in range(jobs)]


class Link:
    """The parent's end of a pipe to a worker that answers at once. It holds one job at a time."""

    def __init__(self) -> None:
        self.waiting, self.jobs, self.closed = list[Any](), list[Any](), False

    def send(self, call: Any) -> None:
        assert not self.waiting
        if call[1] == "cut":
            raise BrokenPipeError
        self.waiting.append(call)

    def recv(self) -> Any:
        if not self.waiting:
            raise EOFError
        function, job = self.waiting.pop()
        self.jobs.append(job)
        return (None, ValueError("no")) if job == "bad" else (function(job), None)

    def close(self) -> None:
        self.closed = True


def test_workers_take_turns_and_answers_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    links, ended = [Link() for _ in range(3)], list[str]()
    process = SimpleNamespace(kill=lambda: ended.append("kill"), join=lambda: ended.append("join"))
    monkeypatch.setattr(stages.Pool, "_start", lambda pool: pool._processes.update(dict.fromkeys(links, process)))
    with stages.Pool(3) as pool:
        for count in (8, 2, 0):
            assert list(pool.calls(str, range(count))) == [str(i) for i in range(count)]
        assert [link.jobs for link in links] == [[0, 3, 6, 0], [1, 4, 7, 1], [2, 5]]
        with pytest.raises(ValueError, match=r"^no$"):
            list(pool.calls(str, [1, "bad", 3]))
        for link in links:
            link.waiting.clear()
        with pytest.raises(StorageError, match="killed, perhaps because memory ran out"):
            list(pool.calls(str, [1, "cut"]))
        assert not ended
    assert ended == ["kill"] * 3 + ["join"] * 3
    assert all(link.closed for link in links)


def test_a_read_error_is_raised_after_the_answers_and_errors_of_earlier_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def jobs(*before: Any) -> Iterator[Any]:
        yield from before
        raise DataError("later")

    links = [Link() for _ in range(3)]
    process = SimpleNamespace(kill=lambda: None, join=lambda: None)
    monkeypatch.setattr(stages.Pool, "_start", lambda pool: pool._processes.update(dict.fromkeys(links, process)))
    with stages.Pool(3) as pool:
        for count in range(5):
            answers, found = pool.calls(str, jobs(*range(count))), list[str]()
            with pytest.raises(DataError, match="later"):
                found.extend(answers)
            assert found == [str(i) for i in range(count)]
            with pytest.raises(ValueError, match=r"^no$"):
                list(pool.calls(str, jobs(*range(count), "bad")))
            for link in links:
                link.waiting.clear()


def signalled(number: int) -> int:
    signal.raise_signal(signal.Signals(number))
    return number


def test_workers_go_on_after_errors_and_after_the_signals_that_schedulers_send_to_every_process() -> None:
    """An error of any kind is raised with its own cause."""
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    with stages.Pool(2) as pool:
        assert (
            list(pool.map(signalled, [int(number) for number in numbers] * stages.SERIAL_JOBS))
            == numbers * stages.SERIAL_JOBS
        )
        with pytest.raises(FileNotFoundError, match="no-such-directory"):
            list(pool.calls(os.listdir, ["no-such-directory"]))
        with pytest.raises(MemoryError):
            list(pool.calls(bytearray, [2**62]))
        assert list(pool.calls(str, range(4))) == ["0", "1", "2", "3"]
