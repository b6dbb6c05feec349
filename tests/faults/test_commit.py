"""Commits under faults: a kill or an error at any step leaves the old state or the new state.

A child process does the work. Its k-th change of the file system (opening for writing, fsync, rename, mkdir, chmod,
unlink, ...) gets an error. Then the parent reads the result. k increases until the work completes. A kill leaves the
directory as it was before the k-th change, because what is only in a process's memory is lost. So the child copies the
directory before each change, and the parent reads the copies after the child's end. A power failure can lose more if
fsync and rename are in the wrong order, so other tests check their order.
"""

import errno
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tiny_model import make_model

from nmt_cli.corpus.store import open_corpus
from nmt_cli.recipe import loading
from nmt_cli.recipe.schema import Recipe, Training
from nmt_cli.storage import artefact
from nmt_cli.system.errors import NmtError, from_os_error
from nmt_cli.training import checkpoints
from nmt_cli.training.checkpoints import State
from nmt_cli.training.metrics_log import MetricsLog, read_records
from nmt_cli.transformer.weights import load_tensors, save_model
from nmt_cli.translation.translate import TranslateOptions, translate

CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR
# A RAM disk saves the time of real fsyncs. They do not matter here, because SIGKILL does not empty the page cache.
FAST = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
KILLED = 99
STOPPED = pytest.mark.parametrize("error", [None, errno.ENOSPC], ids=["killed", "disk full"])


def call_at_changes(function: Callable[[], None]) -> None:
    """Call `function` before each change of the file system, until this process ends."""
    fsync, within = os.fsync, threading.local()

    def change() -> None:
        if getattr(within, "function", False):
            return  # a change that `function` itself makes
        within.function = True
        try:
            function()
        finally:
            within.function = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and arguments[2] & WRITING):
            change()

    def watched_fsync(handle: int) -> None:
        change()
        fsync(handle)

    os.fsync = watched_fsync
    sys.addaudithook(hook)


def copy_at_every_point(parent: Path, work: Callable[[Path], object]) -> list[int]:
    """Do `work`, and copy its directory before each change; return the exit codes."""
    directory, points, working = parent / "work", 0, True

    def copy() -> None:
        nonlocal points
        if working:
            points += 1
            shutil.copytree(directory, parent / f"{points}", symlinks=True)

    shutil.copytree(parent / "template", directory)
    call_at_changes(copy)
    work(directory)
    working = False
    directory.rename(parent / f"{points + 1}")
    return [KILLED] * points + [0]


def fail_at_every_point(parent: Path, work: Callable[[Path], object], error: int) -> list[int]:
    """Do `work` again and again, and let its k-th change fail with `error`; return the exit codes."""
    codes, left = list[int](), 0

    def fail() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(error, os.strerror(error))

    call_at_changes(fail)
    while left <= 0:
        directory, code, left = parent / f"{len(codes) + 1}", 0, 0
        shutil.copytree(parent / "template", directory)
        left = len(codes) + 1
        try:
            work(directory)
        except NmtError as failure:
            code = failure.exit_code
        except OSError as failure:
            code = from_os_error(failure).exit_code
        codes.append(code)
    return codes


def every_point(
    parent: Path, prepare: Callable[[Path], None], work: Callable[[Path], object], error: int | None
) -> Iterator[tuple[Path, int]]:
    """Stop `work` at each point in turn until it completes; yield the directory and the exit code each time."""
    (parent / "template").mkdir(parents=True)
    prepare(parent / "template")
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            codes = fail_at_every_point(parent, work, error) if error else copy_at_every_point(parent, work)
            os.write(sender, json.dumps(codes).encode())
        finally:
            os._exit(0)
    os.close(sender)
    os.waitpid(child, 0)
    with os.fdopen(receiver) as file:
        codes = json.load(file)
    assert len(codes) > 3, "the work was never stopped: fault injection is broken"
    assert codes[-1] == 0
    for k, code in enumerate(codes, 1):
        # An error during cleanup does not change the exit code.
        assert code in ((KILLED, 0) if error is None else (0, 73, 74)), f"point {k}: code {code}"
        yield parent / f"{k}", code
        shutil.rmtree(parent / f"{k}")


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A temporary directory, in memory if possible."""
    with tempfile.TemporaryDirectory(dir=FAST or tmp_path) as directory:
        yield Path(directory)


def checkpoint(run: Path, step: int) -> None:
    """Write a checkpoint in a thread like training, and wait for it."""
    model, training = {"w": torch.full((40, 3), float(step))}, Training(checkpoint_every=10, keep_checkpoints=9)
    writer = checkpoints.Writer(run, training, MetricsLog(run / "metrics.jsonl", 0), {"corpus": "c"})
    writer.begin(State(step=step), model, {"w.exp_avg": -model["w"]}, is_last=True)
    writer.pool.shutdown()


def newest(run: Path) -> int:
    """Return the step from which a run resumes. Check that all parts of the checkpoint belong to that step."""
    step = checkpoints.newest(run, "c")
    if step:
        model, moments = checkpoints.load(run, step)
        assert model["w"][0, 0] == step == -moments["w.exp_avg"][0, 0] == checkpoints.read_state(run, step).step
    return step


def temporaries(run: Path) -> list[Path]:
    return list(run.rglob(".tmp-*"))


def save_all(run: Path, *steps: int) -> None:
    for step in steps:
        checkpoint(run, step)


def damage_20(run: Path) -> None:
    save_all(run, 10, 20)
    (checkpoints.directory_of(run, 20) / checkpoints.MODEL).write_bytes(b"")


@pytest.mark.parametrize(
    ("prepare", "step", "before", "error"),
    [
        (lambda run: None, 10, 0, None),
        (lambda run: save_all(run, 10, 20), 30, 20, errno.ENOSPC),
        (damage_20, 20, 10, None),
        (damage_20, 20, 10, errno.ENOSPC),
        (lambda run: save_all(run, 10, 20), 20, 20, None),
    ],
    ids=["first", "later, disk full", "over a damaged one", "over a damaged one, disk full", "over a good one"],
)
def test_a_save_leaves_the_old_checkpoint_or_the_new_one(
    tmp_path: Path, prepare: Callable[[Path], None], step: int, before: int, error: int | None
) -> None:
    for run, code in every_point(tmp_path, prepare, lambda run: checkpoint(run, step), error):
        assert newest(run) in ((before, step) if code else (step,))
        assert code in (0, KILLED) or not temporaries(run)
        checkpoint(run, step)  # the next process cleans up
        assert newest(run) == step
        assert not temporaries(run)


@STOPPED
def test_pruning_stopped_anywhere_leaves_whole_checkpoints(tmp_path: Path, error: int | None) -> None:
    def prune(run: Path) -> None:
        checkpoints.prune(run, State(step=40), 10, 2)

    for run, _ in every_point(tmp_path, lambda run: save_all(run, 10, 20, 30, 40), prune, error):
        assert newest(run) == 40
        assert {30, 40} <= set(checkpoints.steps_in(run))
        for step in checkpoints.steps_in(run):
            checkpoints.check(run, step)
        prune(run)
        checkpoint(run, 50)
        assert checkpoints.steps_in(run) == [30, 40, 50]
        assert not temporaries(run)


def save(directory: Path, value: float) -> None:
    """Write a model directory with one weight, `value`, and an arbitrary file as its tokenizer."""
    save_model(directory, {"embedding.weight": torch.tensor([value])}, Recipe(), Path(__file__), {})


def value_of(directory: Path) -> float:
    """Verify a model directory and return its weight, or 0 if there is no model."""
    if not artefact.present(directory):
        return 0.0
    artefact.verify(directory, "model")
    return float(load_tensors(directory / "model.safetensors")["embedding.weight"])


@pytest.mark.parametrize(("before", "error"), [(0.0, None), (1.0, None), (1.0, errno.ENOSPC)])
def test_a_reader_finds_the_old_model_or_the_new_one(tmp_path: Path, before: float, error: int | None) -> None:
    missing = 0
    prepare = (lambda run: save(run / "model", before)) if before else (lambda run: None)
    for run, code in every_point(tmp_path, prepare, lambda run: save(run / "model", 2.0), error):
        missing += bool(before) and not (run / "model").exists()
        left = {path.name for path in run.iterdir()}
        again = run.with_name(f"{run.name}-again")
        shutil.copytree(run, again)
        assert value_of(run / "model") in ((before, 2.0) if code else (2.0,))
        for directory in (run, again):  # the next writer cleans up, with and without a reader before it
            save(directory / "model", 3.0)
            assert value_of(directory / "model") == 3.0
            assert {path.name for path in directory.iterdir()} == {"model"}, left
        shutil.rmtree(again)
    assert bool(missing) == (before > 0 and error is None)  # a reader restores the old model


def test_a_reader_between_the_two_renames_does_not_stop_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, model, seen = os.rename, tmp_path / "model", []
    save(model, 1.0)

    def rename(source: Any, target: Any) -> None:
        if Path(target) == model and ".tmp-" in str(source) and len(seen) < 2:
            seen.append(value_of(model))
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    save(model, 2.0)
    assert seen == [1.0, 1.0], "the reader restores and reads the old model"
    assert value_of(model) == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@STOPPED
def test_a_stop_while_a_run_is_created_leaves_no_incomplete_run(
    tmp_path: Path, tiny_recipe: Callable[..., Recipe], numbers_corpus: Path, error: int | None
) -> None:
    settings = tiny_recipe()
    start = partial(checkpoints.open_run, settings, open_corpus(numbers_corpus, content=True))
    for run, code in every_point(tmp_path, lambda run: None, start, error):
        assert code or (run / "recipe.yaml").exists()
        corpus = open_corpus(numbers_corpus)
        if (run / "recipe.yaml").exists():  # the recipe marks a run, which needs the other files
            assert artefact.read_json(run / "corpus.json") == {"corpus": corpus.identity}
            assert (run / "tokenizer.model").exists()
        start(run)
        assert loading.load(run / "recipe.yaml") == settings
        assert artefact.read_json(run / "corpus.json") == {"corpus": corpus.identity}
        assert artefact.sha256(run / "tokenizer.model") == artefact.sha256(corpus.tokenizer_file)


@STOPPED
def test_a_small_file_has_the_old_or_the_new_content(tmp_path: Path, error: int | None) -> None:
    def write(value: int) -> Callable[[Path], None]:
        return lambda run: artefact.replace_file(run / "best.json", artefact.json_bytes({"step": value}))

    for run, code in every_point(tmp_path, write(1), write(2), error):
        assert artefact.read_json(run / "best.json")["step"] in ((1, 2) if code else (2,))
        assert code == KILLED or not temporaries(run)


def write_metrics(path: Path, size: int, *steps: int) -> int:
    written = MetricsLog(path, size)
    for step in steps:
        written.write({"step": step, "nll": float("nan")})
    return written.commit()


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_metrics_are_cut_back_to_the_checkpoint(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "metrics.jsonl"
    size = write_metrics(path, 0, 1, 2)
    write_metrics(path, size, 3, 4)
    os.truncate(path, max(size, path.stat().st_size - cut))  # killed while writing
    written = [record["step"] for record in read_records(path)]
    assert written == [1, 2, 3, 4][: len(written)]
    # first a log as long as in the checkpoint or longer, then a shorter one
    for length, more, steps in ((None, (3, 4, 5), [1, 2, 3, 4, 5]), (size - 3, (2,), [1, 2])):
        os.truncate(path, length or path.stat().st_size)
        write_metrics(path, size, *more)
        assert [record["step"] for record in read_records(path)] == steps


def test_a_metrics_line_without_disk_space_is_dropped_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = MetricsLog(tmp_path / "metrics.jsonl", 0)
    file.write({"step": 1})
    real = file.file
    file.file = Mock(wraps=real, write=lambda line: real.write(line[:5]))
    file.write({"step": 2})
    assert "could not be written" in capsys.readouterr().err
    file.file = real
    file.write({"step": 3})
    assert [record["step"] for record in read_records(tmp_path / "metrics.jsonl")] == [1, 3]


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The fsyncs and renames during a test in order, each with its paths."""
    events: list[tuple[str, str]] = []

    def record(name: str, real: Callable[..., None], *paths: Any) -> None:
        path = str(Path(f"/proc/self/fd/{paths[0]}").readlink()) if name == "fsync" else "->".join(map(str, paths))
        events.append((name, path))
        real(*paths)

    for name in ("fsync", "rename", "replace"):
        monkeypatch.setattr(os, name, partial(record, name, getattr(os, name)))
    return events


@pytest.mark.parametrize("again", [False, True], ids=["new", "replaced"])
def test_a_checkpoint_is_synced_before_it_is_renamed(
    tmp_path: Path, events: list[tuple[str, str]], again: bool
) -> None:
    if again:
        checkpoint(tmp_path, 10)
        events.clear()
    checkpoint(tmp_path, 10)
    target = checkpoints.directory_of(tmp_path, 10)
    (commit,) = [i for i, (kind, path) in enumerate(events) if kind == "rename" and path.endswith(f"->{target}")]
    stage = events[commit][1].split("->")[0]
    before = [path for kind, path in events[:commit] if kind == "fsync"]
    files = [f"{stage}/{name}" for name in (checkpoints.MODEL, checkpoints.OPTIMIZER, checkpoints.STATE)]
    assert {*files, f"{tmp_path}/metrics.jsonl"} <= {*before}
    assert before[-2:] == [f"{stage}/{artefact.MANIFEST}", stage], "the stage directory is synced last"
    assert ("fsync", str(target.parent)) in events[commit:]
    assert again or str(tmp_path) in before, "checkpoints/ is also a new entry"


def test_a_replaced_file_is_synced_before_it_is_renamed(tmp_path: Path, events: list[tuple[str, str]]) -> None:
    artefact.replace_file(tmp_path / "best.json", b"{}")
    (_, written), (_, renamed), (_, parent) = events
    assert [kind for kind, _ in events] == ["fsync", "replace", "fsync"]
    assert (renamed, parent) == (f"{written}->{tmp_path / 'best.json'}", str(tmp_path))


def test_translations_are_synced_before_they_are_renamed(tmp_path: Path, events: list[tuple[str, str]]) -> None:
    model, out = make_model(tmp_path / "tiny"), tmp_path / "out"
    (tmp_path / "in").write_text("der Hund\n")
    events.clear()
    assert translate(TranslateOptions(tmp_path / "in", out, (model,), precision="fp32", workers=1)) == 0
    assert events == [("fsync", f"{out}.part"), ("replace", f"{out}.part->{out}"), ("fsync", str(tmp_path))]
