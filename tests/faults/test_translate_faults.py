"""`nmt translate` under faults: signals, broken and closed pipes, full disks, damaged models, huge lines."""

import contextlib
import gc
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import texts
import torch
from searching import options, search_all
from tiny_model import make_model

from nmt_cli import Translator
from nmt_cli.system.errors import DataError, DivergedError, MissingError, NmtError, StorageError
from nmt_cli.transformer.cache import DecoderCache, for_inference
from nmt_cli.transformer.directory import open_model
from nmt_cli.transformer.weights import load_model, save_model
from nmt_cli.translation import workers
from nmt_cli.translation.engine_backend import EngineSearch
from nmt_cli.translation.queue import SegmentQueue, WorkerQueue
from nmt_cli.translation.search import search
from nmt_cli.translation.segments import Hypothesis, Segment
from nmt_cli.translation.translate import TranslateOptions, translate

COMMAND = [sys.executable, "-m", "nmt_cli", "translate", "--precision", "fp32"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


def environment(model: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "NMT_MODEL": str(model), "PYTHONPATH": str(texts.ROOT), "OMP_NUM_THREADS": "1", **more}


def start(model: Path, *arguments: str, lines: bytes = b"", **more: Any) -> subprocess.Popen[bytes]:
    """Start the command and send it lines."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([*COMMAND, *arguments], **{"env": environment(model), **pipes, "bufsize": 0, **more})
    process.stdin.write(lines)
    return process


def failed(process: subprocess.Popen[bytes], code: int, more: bytes = b"") -> str:
    """Check that the process fails with this exit code and one error line; return its stderr."""
    errors = process.communicate(more, timeout=60)[1].decode()
    assert process.returncode == code
    assert errors.count("error:") == 1
    assert "Traceback" not in errors
    return errors


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for file in files for word in file.read_text().split()]


def gone(pids: list[int]) -> bool:
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_signal_leaves_whole_lines_no_output_file_and_no_process(
    model: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """The partial output is a prefix of whole lines, and the file of --output does not appear."""
    process, part = start(model, "--output", str(tmp_path / "out"), lines=b"der Hund\n" * 50), tmp_path / "out.part"
    while not part.exists() or part.read_bytes().count(b"\n") < 50:
        assert process.poll() is None
        time.sleep(0.05)
    assert not children(process.pid), "the searches run in threads, not in processes"
    process.send_signal(number)
    assert process.wait(20) == code
    assert not (tmp_path / "out").exists()
    assert part.read_bytes().count(b"\n") == 50
    assert part.read_bytes().endswith(b"\n")
    errors = process.communicate()[1].decode()
    assert "Traceback" not in errors
    assert (f"{part} holds the first 50 lines" in errors) == (number != signal.SIGKILL)


def test_a_broken_pipe_is_silent(model: Path) -> None:
    """In `nmt translate | head -1`, the command exits with 141 soon after the reader has exited."""
    process = start(model, "--quiet", lines=b"der Hund\n" * 10)
    assert process.stdout.readline().endswith(b"\n")
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        for _ in range(1000):
            process.stdin.write(b"die Katze\n" * 10)
            time.sleep(0.02)
    assert process.wait(20) == 141
    assert process.stderr.read() == b""


@pytest.mark.parametrize(("closed", "code", "words"), [("<&-", 66, "stdin is closed"), (">&-", 74, "stdout is closed")])
def test_closed_descriptors_are_named(model: Path, closed: str, code: int, words: str) -> None:
    command = ["sh", "-c", " ".join([*COMMAND, closed])]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    assert words in failed(subprocess.Popen(command, env=environment(model), **pipes), code)


def test_a_full_disk_leaves_no_file_that_looks_finished(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"der Hund und die Katze\n" * 500)

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    arguments = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--beam", "1"]
    assert f"({tmp_path / 'out.part'})" in failed(start(model, *arguments, preexec_fn=limit), 74)
    assert not (tmp_path / "out").exists()
    with Path("/dev/full").open("wb") as full:
        assert "(standard output)" in failed(start(model, stdout=full), 74, b"der Hund\n")


# ---- damaged models


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])  # outside the header of safetensors


def pickle(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"\x80\x04cos\nsystem\n(S'touch canary'\ntR.")


FILES = ("model.safetensors", "tokenizer.model", "recipe.yaml")
DAMAGES = [*((flip, file) for file in FILES), (pickle, "manifest.json")]


@pytest.mark.parametrize(("damage", "file"), DAMAGES)
def test_a_damaged_model_translates_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_bytes(b"der Hund\n")
    damage(shutil.copytree(model, tmp_path / "model") / file)
    with pytest.raises(NmtError) as caught:
        translate(TranslateOptions(tmp_path / "in", tmp_path / "out", (tmp_path / "model",)))
    assert caught.value.exit_code in (2, 65)
    assert {path.name for path in tmp_path.iterdir()} == {"in", "model"}


def test_the_error_for_a_checkpoint_names_the_command_that_makes_a_model(model: Path, tmp_path: Path) -> None:
    """The directory of a run may be given in place of its model."""
    opened = open_model(model.parent)
    assert (opened.directory, opened.tokenizer.vocabulary_size) == (model, 340)
    with pytest.raises(MissingError, match=f"no model in {tmp_path}"):
        open_model(tmp_path)
    manifest = shutil.copytree(model, tmp_path / "run" / "checkpoints" / "9") / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "kind": "checkpoint"}))
    with pytest.raises(DataError, match=f"is a training checkpoint.*nmt average-checkpoints {tmp_path / 'run'}$"):
        open_model(manifest.parent)


@pytest.mark.parametrize("count", [1, 2])
def test_non_finite_scores_never_become_a_translation(model: Path, tmp_path: Path, count: int) -> None:
    """Finite weights that overflow end the command, with one thread and with several."""
    loaded = load_model(model)
    tensors = loaded.model.state_dict()
    weight = tensors["decoder.0.feed_forward.outer.weight"]
    for value in (float("inf"), float("nan")):
        weight[0, 0] = value
        with pytest.raises(DataError, match=r"outer\.weight is not finite, so the model is not written"):
            save_model(tmp_path / "bad", tensors, loaded.recipe, loaded.tokenizer_file, {})
    weight.fill_(3e38)
    save_model(tmp_path / "bad", tensors, loaded.recipe, loaded.tokenizer_file, {})
    with pytest.raises(DivergedError, match="scores are not finite"):
        list(Translator(tmp_path / "bad", workers=1).score([("der Hund", "rot")]))
    with pytest.raises(DivergedError), Translator(tmp_path / "bad", workers=count) as translator:
        list(translator.translate(["", "der Hund"]))


# ---- memory, threads and processes


def test_out_of_memory_halves_the_batch_and_loses_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torch raises this error on GPUs. Tests of the engine's memory are in test_engine.py."""
    translator, search_options = Translator(model, precision="fp32", workers=1), options(beam=2, extra_length=5)
    sources = [[*ids, 2] for ids in translator.tokenizer.encode([f"der Hund {i}" for i in range(50)])]
    models = [for_inference(load_model(model).model, torch.float32)]

    def results() -> list[list[int]]:
        segments = [Segment(ids, search_options) for ids in sources]
        search_all(partial(search, models, torch.float32), segments)
        return [segment.hypotheses[0].ids for segment in segments]

    expected, real = results(), DecoderCache.step

    def step(self: DecoderCache, ids: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
        if ids.numel() > 2:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        return real(self, ids, *others)

    monkeypatch.setattr(DecoderCache, "step", step)
    assert results() == expected
    assert "continuing with 3 hypotheses" in capsys.readouterr().err
    monkeypatch.setattr(DecoderCache, "step", lambda *_: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(StorageError, match="too little memory"):
        results()


def found_by(find: Callable[[Segment], list[int]]) -> Callable[..., None]:
    """Return a search that gives each segment one hypothesis with the ids `find(segment)`."""

    def run(_models: object, _dtype: object, queue: WorkerQueue) -> None:
        while taken := queue.take(1 << 20, 1 << 30, 1 << 17):
            for segment in taken:
                segment.hypotheses = [Hypothesis(find(segment), -1.0, -1.0, [-0.5] * len(segment.ids))]
                queue.finish([segment])

    return run


@contextlib.contextmanager
def pool_of(find: Callable[[Segment], list[int]]) -> Iterator[workers.Workers]:
    """Start two processes that search with `find`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "search", found_by(find))
        pool = workers.Workers([torch.device("cpu")] * 2, lambda _: ([], torch.float32))
        yield pool
        pool.close()


@contextlib.contextmanager
def queue_of(pool: workers.Workers) -> Iterator[Callable[[list[Segment]], list[list[int]]]]:
    """Yield a function that has the pool translate segments and returns the ids found for each segment."""
    done = list[Segment]()
    queue = SegmentQueue([pool.search], done.append)

    def found(segments: list[Segment]) -> list[list[int]]:
        before = len(done)
        queue.submit(segments)
        assert queue.wait_for(lambda: len(done) == before + len(segments), 60)
        if error := next((segment.error for segment in segments if segment.error), None):
            raise error
        return [segment.hypotheses[0].ids for segment in segments]

    try:
        yield found
    finally:
        queue.close()


def segments_of(*sources: list[int], beam: int = 4) -> list[Segment]:
    return [Segment(ids, options(beam)) for ids in sources]


def test_huge_segments_in_both_directions_do_not_deadlock() -> None:
    """A worker sends megabytes of results while the parent is still sending it megabytes of segments."""
    with pool_of(lambda segment: segment.ids) as pool, queue_of(pool) as found:
        for beam in (4, 2):  # 2 MB per batch, 0.2 MB per result; twice with the same processes
            sources = [[*range(10_000, 30_000), i] for i in range(64)]
            assert found(segments_of(*sources, beam=beam)) == sources


def test_workers_share_the_work_and_know_the_options_of_each_segment() -> None:
    """A segment's owner, which cannot be pickled, stays in this process. SIGINT from a terminal stops no worker."""
    pids = set[int]()
    with pool_of(lambda segment: [os.getpid(), segment.options.beam, *segment.ids]) as pool, queue_of(pool) as found:
        for beam in (1, 3, 2):
            segments = segments_of(*([i, 2] for i in range(8)), beam=beam)
            for segment in segments:
                segment.owner = threading.Lock()
                segment.unconstrained = Segment([], segment.options, owner=threading.Lock())
            results = found(segments)
            assert [ids[1:] for ids in results] == [[beam, i, 2] for i in range(8)]
            assert sorted(Counter(pid for pid, *_ in results).values()) == [4, 4]
            assert not pids or {pid for pid, *_ in results} == pids, "the same processes"
            pids = {pid for pid, *_ in results}
            for pid in pids:
                os.kill(pid, signal.SIGINT)
        child = os.fork()
        if not child:
            try:
                pool.close()  # does nothing in a fork of the owner
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert {pid for pid, *_ in found(segments_of(*[[2]] * 8))} == pids
    assert gone([*pids])


def test_the_worker_with_the_least_pending_work_gets_the_next_segment() -> None:
    """The number of segments received so far does not matter: a worker with one segment may still be busy with it."""
    out, into = os.pipe()
    with pool_of(lambda segment: [os.getpid(), *os.read(out, 1 if segment.ids == [1] else 0)]) as pool:
        done = list[Segment]()
        queue = SegmentQueue([pool.search], done.append)
        slow, *others = segments_of(*([i] for i in range(1, 6)))
        queue.submit([slow])
        for number, segment in enumerate(others, 1):
            queue.submit([segment])
            assert queue.wait_for(lambda number=number: len(done) == number, 60)
        os.write(into, b"x")
        assert queue.wait_for(lambda: len(done) == 5, 60)
        queue.close()
        assert done == [*others, slow]
        assert len({segment.hypotheses[0].ids[0] for segment in others}) == 1
    os.close(out)
    os.close(into)


def test_every_result_in_a_batch_reduces_the_count_of_open_segments() -> None:
    """The worker with the fewest open segments gets the next segment."""
    ours, theirs = Pipe()
    worker = workers._Worker(ours, 0, open=5)
    theirs.send([(4, []), (7, [])])
    assert worker.receive() == [(4, []), (7, [])]
    assert worker.open == 3
    ours.close()
    theirs.close()


def test_workers_are_sent_no_more_than_they_have_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers get segments for twice the rows of all devices. Other segments wait in this process."""
    monkeypatch.setattr(workers, "rows_at_once", lambda _: 3)
    out, into = os.pipe()
    with pool_of(lambda _: [*os.read(out, 1)]) as pool:
        done = list[Segment]()
        queue = SegmentQueue([pool.search], done.append)
        queue.submit(segments_of(*([i] for i in range(9)), beam=4))
        assert queue.wait_for(lambda: queue.searching >= 3, 60)
        for number in range(1, 10):
            time.sleep(0.05)
            assert queue.searching == min(3, 10 - number), "12 rows hold three segments with four hypotheses each"
            os.write(into, b"x")
            queue.wait_for(lambda number=number: len(done) == number, 60)
        queue.close()
    os.close(out)
    os.close(into)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (DivergedError("not finite"), DivergedError, "^not finite$"),
        (KeyError("x"), NmtError, "^a worker failed: KeyError: 'x'$"),
    ],
)
def test_an_error_in_a_worker_is_raised_and_new_workers_start(
    error: Exception, kind: type[NmtError], words: str
) -> None:
    def find(segment: Segment) -> list[int]:
        if segment.ids == [7]:
            raise error
        return [os.getpid()]

    with pool_of(find) as pool, queue_of(pool) as found:
        ((first,),) = found(segments_of([2]))
        assert first in children(os.getpid())
        with pytest.raises(NmtError, match=words) as caught:
            found(segments_of([7]))
        assert type(caught.value) is kind
        assert found(segments_of([2])) != [[first]]
        assert first not in children(os.getpid())
        bad, *good = segments_of([7], *([i] for i in range(20, 29)))
        with pytest.raises(NmtError, match=words):
            found([bad, *good])
        assert all(segment.hypotheses for segment in good), "the other segments are searched again"


def test_workers_end_when_their_owner_is_killed() -> None:
    out, into = os.pipe()
    child = os.fork()
    if not child:
        try:
            with pool_of(lambda _: [os.getpid()]) as pool, queue_of(pool) as found:
                results = found(segments_of([2], [2]))
                os.write(into, " ".join(str(pid) for (pid,) in results).encode())
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    pids = [int(word) for word in os.read(out, 99).split()]
    os.close(out)
    os.close(into)
    assert len(set(pids)) == 2
    assert gone(pids)


def test_workers_end_with_their_pool() -> None:
    """They end when it is closed or garbage-collected. If workers die, new ones start and the search does not hang."""
    ours = set(children(os.getpid()))
    with pool_of(lambda segment: [os.getpid()]) as pool:
        assert not pool.started
        with queue_of(pool) as found:
            found(segments_of([5, 2]))
            assert pool.started
            started = set(children(os.getpid())) - ours
            assert len(started) == 2
            for pid in started:
                os.kill(pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # now the worker certainly reads no more input
            ((again,),) = found(segments_of([5, 2]))
            assert again not in started
    assert gone(list(set(children(os.getpid())) - ours))
    forgotten = workers.Workers([torch.device("cpu")] * 2, lambda _: ([], torch.float32))
    forgotten.start()
    started = set(children(os.getpid())) - ours
    assert len(started) == 2
    del forgotten
    gc.collect()
    assert gone(list(started))


def test_the_unexpected_exit_of_a_worker_is_an_error() -> None:
    with pool_of(lambda _: os._exit(9)) as pool, queue_of(pool) as found:
        with pytest.raises(StorageError, match="a worker ended, probably because memory ran out"):
            found(segments_of([5, 2]))


def test_workers_that_are_still_starting_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first, a fork has the parent's SIGTERM handler, so SIGTERM would not end it."""
    end_with_parent = workers.end_with_parent
    monkeypatch.setattr(workers, "end_with_parent", lambda *a, **k: time.sleep(1) or end_with_parent(*a, **k))
    ours = set(children(os.getpid()))
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with pool_of(lambda _: [1]) as pool:
            pool.start()
            started = set(children(os.getpid())) - ours
            closing = threading.Thread(target=pool.close, daemon=True)
            closing.start()
            closing.join(20)
            hung = closing.is_alive()
            for pid in started if hung else ():
                os.kill(pid, signal.SIGKILL)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert len(started) == 2
    assert not hung


def test_a_thread_that_runs_out_of_memory_ends_the_command_with_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens if there is too little memory for one sentence. The partial output has whole lines."""
    enter = EngineSearch.enter

    def limited(search: EngineSearch, segments: Sequence[Segment]) -> None:
        if any(len(segment.ids) > 40 for segment in segments):
            raise MemoryError
        enter(search, segments)

    monkeypatch.setattr(EngineSearch, "enter", limited)
    (tmp_path / "in").write_bytes(b"der Hund\n" * 20 + b"rot " * 60 + b"\n")
    with pytest.raises(StorageError, match="too little memory"):
        translate(TranslateOptions(tmp_path / "in", tmp_path / "out", (model,), precision="fp32", workers=2))
    assert not (tmp_path / "out").exists()
    if (tmp_path / "out.part").exists():
        assert (tmp_path / "out.part").read_bytes().endswith(b"\n")


def test_the_locale_and_a_missing_home_directory_do_not_matter(model: Path, tmp_path: Path) -> None:
    more = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    surroundings = {k: v for k, v in environment(model, **more).items() if k != "HOME"}
    done = subprocess.run(COMMAND, env=surroundings, cwd=tmp_path, capture_output=True, input=b"f\xc3\xbcr\n\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"\n") == 2
