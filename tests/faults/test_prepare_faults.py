"""`nmt prepare` with broken files, killed processes, full disks and directories in use."""

import errno
import gzip
import itertools
import multiprocessing
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import texts

from nmt_cli.corpus import parts, readers, shards, stages, store
from nmt_cli.corpus.prepare import PrepareOptions
from nmt_cli.storage import artefact
from nmt_cli.system.errors import BusyError, DataError, NmtError, OutputError, StorageError
from nmt_cli.system.shard import Shard

PAIRS = texts.pairs(600)
GZIP = gzip.compress("\n".join(src for src, _ in PAIRS).encode(), mtime=0)


def refused(tmp_path: Path, src: Path, tgt: Path, **more: Any) -> NmtError:
    """Prepare, expect an error, and check that no corpus was written."""
    section = texts.corpus({"name": "own", "train_src": [str(src)], "train_tgt": [str(tgt)], **more})
    with pytest.raises(NmtError) as caught:
        texts.run(section, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert len(str(caught.value)) < 300 + len(str(tmp_path)) * 3
    return caught.value


@pytest.mark.parametrize(("left", "right"), [(600, 599), (1, 4001), (8001, 8000)])
def test_sides_of_unequal_length_are_refused_with_both_counts(tmp_path: Path, left: int, right: int) -> None:
    src = texts.write(tmp_path / "a.en", ["a"] * left)
    error = refused(tmp_path, src, texts.write(tmp_path / "a.de", ["b"] * right))
    assert error.exit_code == 65
    assert re.search(rf"a\.en has {left:,} lines?, \S*a\.de has {right:,}:", str(error))


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        (b"", "a.en", "a.en has 0 lines"),
        (gzip.compress(b"", mtime=0), "a.en.gz", "has 0 lines"),
        ("a\nb\n".encode("utf-16"), "a.en", "UTF-16"),
        ("a\nb\n".encode("utf-32"), "a.en", "UTF-16 or UTF-32"),
        (gzip.compress(b"a\nb\n", mtime=0), "a.en", "gzip"),
        (b"PK\x03\x04....\n", "a.en", "looks like zip"),
        (b"PAR1....\n", "a.en", "parquet"),
        (b"no gzip\n", "a.en.gz", "truncated or corrupt"),
        (GZIP[:-1], "a.en.gz", "truncated or corrupt"),
        (GZIP + b"garbage", "a.en.gz", "truncated or corrupt"),
        (GZIP[:1000] + bytes([GZIP[1000] ^ 4]) + GZIP[1001:], "a.en.gz", "truncated or corrupt"),
        (b"a\tb\n", "a.tsv", "one file per side"),
        (b"{}\n", "a.jsonl.gz", "List it under corpus.sources"),
        (b"(S (NN a))\n", "a.mrg", "corpus.format=trees"),
    ],
)
def test_files_of_the_wrong_kind_are_refused(tmp_path: Path, data: bytes, name: str, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    error = refused(tmp_path, tmp_path / name, texts.write(tmp_path / "a.de", ["c", "d"]))
    assert (error.exit_code, message in str(error), name in str(error)) == (65, True, True)


def test_missing_files_directories_and_pipes_are_refused(tmp_path: Path) -> None:
    tgt = texts.write(tmp_path / "a.de", ["b"])
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("none", "does not exist"), ("folder", "not a file"), ("pipe", "not a file")):
        error = refused(tmp_path, tmp_path / name, tgt)
        assert (error.exit_code, message in str(error)) == (66, True)


def test_a_held_out_set_must_be_valid_as_a_whole(tmp_path: Path) -> None:
    src, tgt = texts.write(tmp_path / "a.en", ["a", "b"]), texts.write(tmp_path / "a.de", ["c", "d"])
    for lines, message in (([b"\xff"], "line 1 is not"), ([b"x", b"x" * ((1 << 20) + 1)], "line 2"), ([], "empty")):
        dev = texts.write(tmp_path / "dev.en", lines)
        other = texts.write(tmp_path / "dev.de", ["x"] * len(lines))
        error = str(refused(tmp_path, src, tgt, dev_src=str(dev), dev_tgt=str(other)))
        assert ("dev.en" in error, message in error) == (True, True)


# Killed processes.


def start(tmp_path: Path, out: Path, workers: int, **more: Any) -> "subprocess.Popen[str]":
    words = f"--src {tmp_path}/in/train.en --tgt {tmp_path}/in/train.de --out {out} --workers {workers}".split()
    return subprocess.Popen(
        [sys.executable, "-m", "nmt_cli", "prepare", *words, "--set", "corpus.tokenizer.vocabulary_size=400"],
        env={**os.environ, "PYTHONPATH": str(texts.ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def wait_for(condition: Callable[[], Any], seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with text that keeps two workers busy for seconds."""
    directory, base = tmp_path_factory.mktemp("large"), texts.pairs(4000)
    texts.own(directory / "in", [(f"{src} {i}", f"{tgt} {i}") for i in range(25) for src, tgt in base])
    return directory


def test_a_crash_at_any_disk_operation_leaves_no_damaged_corpus(tmp_path: Path) -> None:
    """For every n, a child process exits just before its n-th fsync, rename or unlink."""
    section = texts.own(tmp_path / "in", PAIRS[:60], tokenizer={"vocabulary_size": 300})
    whole = store.open_corpus(texts.run(section, tmp_path / "whole")).identity
    out, code, point = tmp_path / "out", 9, 0
    while code == 9:
        point += 1
        pid = os.fork()
        if pid == 0:
            os.close(2)
            left = itertools.count(point - 1, -1)
            for name in ("fsync", "rename", "replace", "unlink", "rmdir"):
                setattr(os, name, _dying(getattr(os, name), left))
            try:
                texts.run(section, out)
                os._exit(0)
            finally:
                os._exit(3)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if point % 10 == 0:
            texts.run(section, out)
        if out.exists():
            assert store.open_corpus(out, content=True).identity == whole
            artefact.remove_tree(out)
    assert (code, point > 20) == (0, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "whole"]


def _dying(function: Callable[..., Any], left: Iterator[int]) -> Callable[..., Any]:
    return lambda *words, **named: function(*words, **named) if next(left) else os._exit(9)


Busy = tuple["subprocess.Popen[str]", list[int]]


@pytest.fixture
def busy(large: Path, tmp_path: Path) -> Iterator[Busy]:
    """A process of `nmt prepare`, and the ids of its two workers and of its resource tracker."""
    process = start(large, tmp_path / "out", 2)
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    yield process, wait_for(lambda: len(pids := listed.read_text().split()) > 2 and [*map(int, pids)])
    process.kill()
    process.wait()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("number", "code", "delay"), [(2, 130, 0.0), (15, 143, 0.3), (9, -9, 0.0), (9, -9, 0.3)])
def test_signals_end_all_processes(busy: Busy, number: int, code: int, delay: float) -> None:
    process, workers = busy
    time.sleep(delay)
    process.send_signal(number)
    _, text = process.communicate(timeout=30)
    # If the parent is killed while a worker starts, the worker prints a traceback of the interpreter.
    unstarted = (number, delay) == (9, 0.0) and "in spawn_main" in text and "nmt_cli" not in text
    assert (process.returncode, "Traceback" in text and not unstarted) == (code, False), text
    assert wait_for(lambda: all(map(gone, workers)), 3)


def test_a_killed_worker_is_noticed(busy: Busy) -> None:
    process, workers = busy
    os.kill(workers[-1], signal.SIGKILL)
    _, text = process.communicate(timeout=10)
    assert (process.returncode, "a worker process was killed" in text, "Traceback" in text) == (74, True, False), text


def test_an_answer_cut_off_by_a_kill_is_noticed() -> None:
    with stages.Pool(2) as pool:
        answers = pool.map(bytes, [1 << 20] * 10)  # larger than the buffer of a pipe
        assert len(next(answers)) == 1 << 20
        time.sleep(0.3)
        for worker in pool._processes.values():
            worker.kill()
        with pytest.raises(StorageError, match="a worker process was killed"):
            list(answers)
    assert not multiprocessing.active_children()


def test_a_tokenizer_trained_in_a_worker_is_the_same_and_its_errors_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = texts.run(texts.own(tmp_path / "in", PAIRS), tmp_path / "here")
    monkeypatch.setattr(stages, "LONG_TRAINING", 10)
    out = texts.run(texts.own(tmp_path / "in", PAIRS), tmp_path / "out")
    assert store.open_corpus(out).identity == store.open_corpus(here).identity
    with pytest.raises(DataError, match="at most"):
        texts.run(texts.own(tmp_path / "in", PAIRS, tokenizer={"vocabulary_size": 30_000}), tmp_path / "none")


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    texts.own(tmp_path / "in", texts.pairs(4000))
    limit = (resource.RLIMIT_FSIZE, (200_000, 200_000))
    process = start(tmp_path, tmp_path / "out", 1, preexec_fn=lambda: resource.setrlimit(*limit))
    _, text = process.communicate()
    assert (process.returncode, "Traceback" in text) == (74, False)
    assert "free some space" in text.split("\n")[-2]
    assert not (tmp_path / "out").exists()


def test_too_little_space_is_reported_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = texts.own(tmp_path / "in", PAIRS)
    monkeypatch.setattr("nmt_cli.storage.artefact.free_megabytes", lambda _: 0)
    with pytest.raises(StorageError, match="needs about 1 MB of disk, but 0 MB are free"):
        texts.run(section, tmp_path / "out")
    monkeypatch.setattr("nmt_cli.storage.artefact.free_megabytes", lambda _: 1)
    assert texts.run(section, tmp_path / "out").is_dir()


def test_a_foreign_directory_with_the_name_of_the_work_directory_is_kept(tmp_path: Path) -> None:
    section, theirs = texts.own(tmp_path / "in", PAIRS), tmp_path / ".out.preparing"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("two years of work")
    with pytest.raises(OutputError, match=r"\.out\.preparing exists, but nmt did not create it"):
        texts.run(section, tmp_path / "out")
    assert [path.name for path in theirs.iterdir()] == ["thesis.txt"]
    (theirs / "thesis.txt").unlink()
    assert texts.run(section, tmp_path / "out").is_dir()


@pytest.mark.usefixtures("small_parts")
def test_a_daemon_prepares_without_worker_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "SERIAL_JOBS", 1)  # otherwise this text would start workers
    section = texts.own(tmp_path / "in", PAIRS)
    work = {"section": section, "out": tmp_path / "out", "workers": 2}
    daemon = multiprocessing.get_context("fork").Process(target=texts.run, kwargs=work, daemon=True)
    daemon.start()
    daemon.join(100)
    assert daemon.exitcode == 0
    assert len(store.open_corpus(tmp_path / "out").src) > 500


def test_two_preparations_of_one_corpus_exclude_each_other(busy: Busy, tmp_path: Path) -> None:
    with pytest.raises(BusyError, match="is in use by host"):
        texts.run(texts.own(tmp_path / "in", PAIRS), tmp_path / "out")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (readers, stages):
        monkeypatch.setattr(module, "CHUNK", 40)
    monkeypatch.setattr(parts, "PART_PAIRS", 80)
    monkeypatch.setattr(stages, "HASHES_AT_ONCE", 90)
    monkeypatch.setattr(shards, "POLL_SECONDS", 0.05)


def forked(section: Any, out: Path, index: int, count: int, before: Callable[[], Any] = lambda: None) -> int:
    """Fork a process that calls `before` and then prepares a shard with `wait`; return its id."""
    if pid := os.fork():
        return pid
    os.close(2)
    try:
        before()
        shards.prepare_shard(section, out, PrepareOptions(workers=1, wait=True), Shard(index, count))
        os._exit(0)
    finally:
        os._exit(3)


@pytest.mark.usefixtures("small_parts")
def test_a_shard_killed_at_any_disk_operation_continues(tmp_path: Path) -> None:
    """Each process exits just before its n-th fsync, rename or unlink, and the next one continues."""
    section = texts.own(tmp_path / "in", PAIRS[:150] + PAIRS[:9], tokenizer={"vocabulary_size": 300})
    whole = store.open_corpus(texts.run(section, tmp_path / "whole")).identity
    out, code, point = tmp_path / "out", 9, 0

    def dying() -> None:
        left = itertools.count(point - 1, -1)
        for name in ("fsync", "rename", "replace", "unlink", "rmdir"):
            setattr(os, name, _dying(getattr(os, name), left))

    while code == 9:
        point += 1
        code = os.waitstatus_to_exitcode(os.waitpid(forked(section, out, 1, 1, dying), 0)[1])
    assert (code, point > 20) == (0, True)
    assert store.open_corpus(out, content=True).identity == whole
    texts.run(section, out, overwrite=True)  # removes leftovers of killed processes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "whole"]


@pytest.mark.usefixtures("small_parts")
def test_shards_that_run_together_wait_for_each_other_and_survive_kills(tmp_path: Path) -> None:
    section = texts.own(tmp_path / "in", PAIRS + PAIRS[:99], tokenizer={"vocabulary_size": 300})
    whole = store.open_corpus(texts.run(section, tmp_path / "whole")).identity
    out, running = tmp_path / "out", dict.fromkeys((1, 2, 3), 0)
    delays = random.Random(1)
    for _ in range(9):
        for index in running:
            running[index] = running[index] or forked(section, out, index, 3)
        time.sleep(delays.uniform(0.05, 0.4))
        victim = delays.choice(list(running))
        os.kill(running[victim], signal.SIGKILL)
        os.waitpid(running[victim], 0)
        running[victim] = 0
    for index in running:
        pid = running[index] or forked(section, out, index, 3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert store.open_corpus(out, content=True).identity == whole


@pytest.mark.usefixtures("small_parts")
def test_two_processes_with_one_shard_exclude_each_other(tmp_path: Path) -> None:
    section = texts.own(tmp_path / "in", PAIRS)
    pid = forked(section, tmp_path / "out", 2, 3)
    wait_for(lambda: (tmp_path / "out.parts" / "text").exists())
    with pytest.raises(BusyError, match="work-2 is in use by host"):
        shards.prepare_shard(section, tmp_path / "out", PrepareOptions(workers=1), Shard(2, 3))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.usefixtures("small_parts")
def test_a_full_disk_in_a_shard_is_reported_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, out = texts.own(tmp_path / "in", PAIRS), tmp_path / "out"
    whole, write, written = store.open_corpus(texts.run(section, tmp_path / "whole")).identity, artefact.write_file, []

    def full(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) % 23 == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    monkeypatch.setattr(artefact, "write_file", full)
    failures = list[str]()
    while not out.exists():
        try:
            shards.prepare_shard(section, out, PrepareOptions(workers=1), Shard(1, 1))
        except StorageError as error:
            failures.append(str(error))
    assert len(failures) > 2
    assert all("free some space" in failure for failure in failures)
    assert store.open_corpus(out, content=True).identity == whole
