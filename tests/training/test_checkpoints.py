"""Checkpoints restore every bit, and damaged ones are never used."""

import json
import random
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nmt_cli.recipe.schema import Training
from nmt_cli.storage import artefact
from nmt_cli.system.errors import DataError, StorageError
from nmt_cli.training import checkpoints
from nmt_cli.training.checkpoints import MODEL, OPTIMIZER, STATE, State

FIELDS = {"corpus": "c"}


def tensors(step: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(step)
    model = {"w": torch.randn(7, 5, generator=draw), "b": torch.randn(5, generator=draw)}
    moments = {f"{n}.{k}": torch.rand(t.shape, generator=draw) for n, t in model.items() for k in ("exp_avg", "sq")}
    return model, moments


def save(run: Path, step: int) -> Path:
    checkpoints.save(run, State(step=step, seconds=1.5, best_nll=2.25), *tensors(step), FIELDS)
    return checkpoints.directory_of(run, step)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 10, 20 and 30."""
    for step in (10, 20, 30):
        save(tmp_path, step)
    return tmp_path


def test_a_checkpoint_restores_every_bit(run: Path) -> None:
    assert checkpoints.newest(run, "c") == 30
    assert checkpoints.read_state(run, 30) == State(step=30, seconds=1.5, best_nll=2.25)
    for saved, loaded in zip(tensors(30), checkpoints.load(run, 30), strict=True):
        assert set(saved) == set(loaded)
        assert all(torch.equal(saved[name], loaded[name]) for name in saved)


def test_a_checkpoint_survives_an_interrupted_replacement(run: Path) -> None:
    path = checkpoints.directory_of(run, 30)
    path.rename(path.with_name(f".old-{path.name}"))
    assert checkpoints.steps_in(run) == [10, 20, 30]
    assert checkpoints.newest(run, "c") == 30


def test_an_empty_run_starts_at_zero_and_foreign_entries_are_ignored(tmp_path: Path) -> None:
    assert checkpoints.newest(tmp_path, "c") == 0
    directory = tmp_path / "checkpoints"
    (directory / "step-abc").mkdir(parents=True)
    (directory / ".nfs0001").write_text("")
    (directory / "step-0000040").write_text("a file")
    assert checkpoints.newest(tmp_path, "c") == 0
    save(tmp_path, 10)
    checkpoints.prune(tmp_path, State(step=10), 10, 2)
    assert checkpoints.newest(tmp_path, "c") == 10
    assert {e.name for e in directory.iterdir()} == {"step-abc", ".nfs0001", "step-0000040", "step-0000010"}


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER, STATE])
def test_a_damaged_newest_checkpoint_falls_back_with_a_warning(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkpoints.directory_of(run, 30) / name
    content = bytearray(path.read_bytes())
    content[random.Random(1).randrange(len(content))] ^= 1
    for damaged in (b"", bytes(content[: len(content) // 2]), bytes(content)):
        path.write_bytes(damaged)
        assert checkpoints.newest(run, "c") == 20
        assert "step-0000030 is not usable" in capsys.readouterr().err


@pytest.mark.parametrize("name", [MODEL, STATE, artefact.MANIFEST, None])
def test_files_of_another_step_are_rejected(run: Path, name: str | None) -> None:
    old, new = checkpoints.directory_of(run, 10), checkpoints.directory_of(run, 30)
    if name is None:
        shutil.rmtree(new)
        shutil.copytree(old, new)
    else:
        shutil.copy(old / name, new / name)
    assert checkpoints.newest(run, "c") == 20


def test_a_state_of_another_step_is_rejected(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints.save(run, State(step=40), *tensors(40), {**FIELDS, "step": 50})
    checkpoints.directory_of(run, 40).rename(checkpoints.directory_of(run, 50))
    assert checkpoints.newest(run, "c") == 30
    assert "step-0000050 is not usable (it belongs to another step or corpus)" in capsys.readouterr().err


def test_a_checkpoint_of_another_corpus_is_skipped(run: Path) -> None:
    path = checkpoints.directory_of(run, 30) / artefact.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"corpus": "another"}))
    assert checkpoints.newest(run, "c") == 20


def test_state_fields_of_another_version_are_ignored(run: Path) -> None:
    (checkpoints.directory_of(run, 30) / STATE).write_text(json.dumps({"step": 30, "more": 1}))
    assert checkpoints.read_state(run, 30) == State(step=30)


def test_pruning_keeps_the_last_regular_the_best_and_the_newest_two_checkpoints(tmp_path: Path) -> None:
    for step in (10, 15, 20, 23, 30, 37, 40, 43):
        save(tmp_path, step)
    checkpoints.prune(tmp_path, State(step=43, best_step=15), 10, 2)
    assert checkpoints.steps_in(tmp_path) == [15, 40, 43]
    save(tmp_path, 50)
    checkpoints.prune(tmp_path, State(step=50, best_step=15), 10, 2)
    assert checkpoints.steps_in(tmp_path) == [15, 40, 43, 50]


def test_pruning_keeps_the_checkpoint_just_written_among_newer_damaged_ones(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint that cannot be removed stays, with a warning."""
    save(run, 15)
    checkpoints.prune(run, State(step=15, best_step=0), 10, 1)
    assert checkpoints.steps_in(run) == [15, 20, 30]
    monkeypatch.setattr(artefact, "remove_tree", lambda path: (_ for _ in ()).throw(OSError(13, "Not yours")))
    checkpoints.prune(run, State(step=30), 10, 1)
    assert capsys.readouterr().err == "nmt: warning: cannot remove the old checkpoint of step 15: Not yours\n"
    assert checkpoints.steps_in(run) == [15, 20, 30]


def test_metrics_are_on_disk_before_the_checkpoint_that_counts_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint stores the state at the call of `begin`, which waits for the previous checkpoint."""
    done = list[Any]()
    log = SimpleNamespace(size=77, commit=lambda: done.append("metrics"))
    monkeypatch.setattr(checkpoints, "save", lambda run, state, *rest: done.append((state, *rest)))
    monkeypatch.setattr(checkpoints, "prune", lambda *given: done.append(given[1:]))
    writer = checkpoints.Writer(tmp_path, Training(checkpoint_every=7, keep_checkpoints=3), log, FIELDS)
    state = State(step=5)
    for step in (5, 6):
        state.step = step
        writer.begin(state, {"w": torch.ones(1)}, {"m": torch.zeros(1)}, is_last=step == 6)
    states = [State(step=step, metrics_bytes=77) for step in (5, 6)]
    committed = [
        ["metrics", (each, {"w": torch.ones(1)}, {"m": torch.zeros(1)}, FIELDS), (each, 7, 3)] for each in states
    ]
    assert done == [*committed[0], *committed[1]]
    assert state == State(step=6)
    writer.pool.shutdown()


def test_training_waits_only_for_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, go = list[int](), threading.Event()

    def save(run: Path, state: State, *rest: Any) -> None:
        go.wait(60)
        time.sleep(0.1)
        saved.append(state.step)

    monkeypatch.setattr(checkpoints, "save", save)
    writer = checkpoints.Writer(tmp_path, Training(), SimpleNamespace(size=0, commit=lambda: None), FIELDS)
    one = {"w": torch.ones(1)}
    writer.begin(State(step=1), one, one, is_last=False)
    assert saved == []
    go.set()
    writer.begin(State(step=2), one, one, is_last=True)
    assert saved == [1, 2]
    writer.pool.shutdown()


def test_a_missing_moment_or_one_of_a_wrong_shape_is_named() -> None:
    model = torch.nn.Linear(3, 2)
    right = checkpoints.blank_moments(model)
    checkpoints.check_moments(model, right)
    checkpoints.check_moments(model, {})  # before the first step
    assert {name: [*tensor.shape] for name, tensor in right.items()} == {
        "weight.step": [], "weight.exp_avg": [2, 3], "weight.exp_avg_sq": [2, 3],
        "bias.step": [], "bias.exp_avg": [2], "bias.exp_avg_sq": [2],
    }  # fmt: skip
    for name in right:
        for wrong in ({}, {name: torch.zeros(1, 1, 1)}):
            moments = {**{key: value for key, value in right.items() if key != name}, **wrong}
            with pytest.raises(DataError, match=f"model.safetensors: {name} is missing or misshapen. Remove"):
                checkpoints.check_moments(model, moments)


@pytest.mark.parametrize("error", [OSError(28, "No space left"), StorageError("no memory")])
@pytest.mark.parametrize(("failing", "ends"), [({1, 2, 4, 5, 7}, None), ({2, 3, 4}, 4), ({9}, 9), ({1, 2, 4, 5, 6}, 6)])
def test_three_failed_saves_in_a_row_or_the_last_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: set[int], ends: int | None, error: Exception
) -> None:
    def save(run: Path, state: State, *rest: Any) -> None:
        if state.step in failing:
            raise error

    monkeypatch.setattr(checkpoints, "save", save)
    log = SimpleNamespace(size=0, commit=lambda: None)
    writer = checkpoints.Writer(tmp_path, Training(), log, FIELDS)
    ended, one = None, {"w": torch.ones(1)}
    for step in range(1, 10):
        try:
            writer.begin(State(step=step), one, one, is_last=step == 9)
            writer.wait()
        except (OSError, StorageError):
            ended = step
            break
    assert ended == ends
    writer.pool.shutdown()


@pytest.mark.parametrize(("present", "copies"), [(0, 8.4), (5, 3.4), (7, 1.4), (20, 1.4)])
def test_disk_space_that_a_run_still_needs(present: int, copies: float) -> None:
    training = Training(keep_checkpoints=5)
    assert checkpoints.disk_megabytes(training, 1_000_000, present) == round(12 * copies)  # weights and two moments


def test_a_run_with_only_damaged_checkpoints_is_not_started_afresh(run: Path) -> None:
    for step in (10, 20, 30):
        (checkpoints.directory_of(run, step) / MODEL).write_bytes(b"")
    with pytest.raises(DataError, match="all 3 checkpoints"):
        checkpoints.newest(run, "c")
