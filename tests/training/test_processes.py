"""Forks of one command train together and end together."""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lab import Lab
from other_processes import ended
from steps import losses

from nmt_cli.recipe import loading, schema
from nmt_cli.system import console
from nmt_cli.training import checkpoints, processes
from nmt_cli.training.metrics_log import read_records
from nmt_cli.transformer.hardware import choose_device

LAUNCHERS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
# With these settings, forks add the same micro-batches in the same order as one process.
FORKS = (
    "training.processes=2",
    "training.micro_batches=2",
    "training.memory_tokens=1",
)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (64, 3)])
def test_threads_are_limited_to_the_usable_cores(
    tiny_recipe: Callable[..., schema.Recipe], monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    torch.set_num_threads(3)
    monkeypatch.setattr(processes, "usable_cores", lambda: cores)
    assert processes.in_processes(tiny_recipe("training.processes=1"), torch.get_num_threads) == threads


@pytest.mark.skipif(choose_device().type != "cpu", reason="forks are for CPUs")
def test_environment_of_a_fork(tiny_recipe: Callable[..., schema.Recipe], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(5)
    monkeypatch.setattr(processes, "usable_cores", lambda: 8)

    def work() -> int:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
        assert [os.environ[name] for name in names] == ["0", "0", "2", "2", "2"] or os.environ["RANK"] == "1"
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert processes.local_processes(tiny_recipe()) == 1, "forks do not fork"
        return torch.get_num_threads()

    assert processes.in_processes(tiny_recipe("training.processes=2"), work) == 2


def test_forks_train_the_same_bits_as_one_process_and_leave_no_trace(lab: Lab) -> None:
    """One process starts three trainings: half a run with forks, the rest of it without, and a whole run with forks."""

    def trace() -> tuple[Any, ...]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        gc.collect()  # closes files of earlier tests
        return dict(os.environ), torch.get_num_threads(), children, len([*Path("/proc/self/fd").iterdir()])

    before, changes = trace(), (*FORKS, "training.steps=10", "training.validate_every=10", "training.log_every=1")
    assert lab.train(*changes, "training.steps=5") == 0
    assert trace() == before
    assert lab.train(*changes, "training.processes=1") == 0
    lab.reference, lab.run = lab.run, lab.run.with_name("forks")
    assert lab.train(*changes) == 0
    assert lab.same(10)
    assert losses(lab.run) == pytest.approx(losses(lab.reference), rel=1e-12)
    records, others = (read_records(run / "metrics.jsonl") for run in (lab.run, lab.reference))
    assert sum("dev_nll" in record for record in records) == 1
    assert records[-1]["dev_nll"] == pytest.approx(others[-1]["dev_nll"], rel=1e-5)
    assert all(records[-1][name] == others[-1][name] for name in ("dev_bleu", "samples"))


def test_only_the_first_fork_prints(tiny_recipe: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        while os.environ["RANK"] == "0" and not (tmp_path / "second").exists():
            time.sleep(0.01)
        console.say("working")
        (tmp_path / "second").touch()
        return 0

    assert processes.in_processes(tiny_recipe(*FORKS), work) == 0
    assert capfd.readouterr().err.count("working") == 1


@pytest.mark.parametrize("quiet", [True, False])
def test_the_first_fork_is_as_quiet_as_its_command(
    tiny_recipe: Any, capfd: pytest.CaptureFixture[str], quiet: bool
) -> None:
    console.set_quiet(quiet)
    assert processes.in_processes(tiny_recipe(*FORKS), lambda: console.say("working") or 0) == 0
    assert capfd.readouterr().err == ("" if quiet else "working\n")


def test_the_command_does_not_wait_for_other_forks_once_the_first_has_finished(tiny_recipe: Any) -> None:
    def work() -> int:
        return signal.pause() or 1 if os.environ["RANK"] == "1" else 7

    began = time.monotonic()
    assert processes.in_processes(tiny_recipe(*FORKS), work) == 7
    assert time.monotonic() - began < processes.LAST_SECONDS / 2


def deep(depth: int) -> float:
    """Raise an error with a traceback of many different lines."""
    return (lambda: deep(depth - 1))() if depth else 1 / 0


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        (lambda: 7, signal.pause, 7),
        (
            signal.pause,
            lambda: os.kill(os.getpid(), signal.SIGKILL),
            r"another process of this run does not respond because signal 9",
        ),
        (signal.pause, lambda: os.kill(os.getpid(), signal.SIGTERM), 143),
        (signal.pause, lambda: os.kill(os.getppid(), signal.SIGINT), 130),
        (lambda: deep(40), lambda: sys.exit(65), "division by zero"),
        (signal.pause, lambda: os._exit(143), 143),  # as a second signal does
        (lambda: os._exit(0), signal.pause, 0),  # without a result
        (lambda: sys.exit(65), signal.pause, 65),
    ],
)
def test_the_end_of_one_fork_ends_all(lab: Lab, first: Any, second: Any, outcome: Any) -> None:
    """This also holds before the processes have connected. None waits for a process that has ended."""

    def run() -> int:
        return processes.in_processes(lab.recipe(*FORKS), lambda: (second if os.environ["RANK"] == "1" else first)())

    lab.patch.setattr(processes, "LAST_SECONDS", 0.1)  # do not wait long for a process that never ends
    if isinstance(outcome, int):
        assert run() == outcome
    else:
        with pytest.raises(Exception, match=outcome) as caught:
            run()
        notes = getattr(caught.value, "__notes__", [])
        assert [note.split("\n")[-2:] for note in notes] == [["ZeroDivisionError: division by zero", ""]] * (
            "zero" in outcome
        ), "the end of the traceback of the process that failed"


def test_a_signal_delivered_to_another_thread_ends_the_forks(lab: Lab) -> None:
    """The kernel may deliver a signal to any thread, as after `kill -CONT`. It then does not wake the main thread."""
    before = signal.getsignal(signal.SIGTERM)

    def signal_this_thread() -> None:
        while signal.getsignal(signal.SIGTERM) is before:
            time.sleep(0.01)
        time.sleep(0.3)  # the main thread waits for the forks by then
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    thread = threading.Thread(target=signal_this_thread)
    thread.start()
    assert processes.in_processes(lab.recipe(*FORKS), lambda: int(bool(time.sleep(15)))) == 143
    thread.join()


def test_a_failed_fork_ends_the_run_with_one_line_and_a_killed_command_ends_its_forks(lab: Lab) -> None:
    pids = lab.run.with_name("pids")
    pids.mkdir()
    faults = [{"kill": ["SIGKILL", 7, 0]}, {"raise": [7, 1]}, {"kill": ["SIGKILL", 7, -1]}]
    specs = [{"set": FORKS, "name": f"run-{i}", "ids": str(pids), **fault} for i, fault in enumerate(faults)]
    results = lab.jobs(*specs)
    assert [result["codes"] for result in results] == [[74], [74], [-9]], results[0]["stderr"]
    errors = [line for line in results[0]["stderr"].splitlines() if "error" in line.lower()]
    assert len(errors) == 2, errors
    assert errors[0].startswith("nmt train: error: another process of this run does not respond")
    assert errors[1].startswith("nmt train: error: out of memory. Resume with")
    assert len(ids := [path.stem.removeprefix("ids-") for path in pids.iterdir()]) == 6
    assert all(ended(int(pid)) for pid in ids)


def test_a_checkpoint_being_written_survives_the_loss_of_another_fork(lab: Lab) -> None:
    (result,) = lab.jobs({"set": [*FORKS, "training.steps=30"], "kill": ["SIGKILL", 12, 1], "slow_save": 1})
    assert result["codes"] == [74], result["stderr"]
    assert checkpoints.steps_in(lab.run) == [10]
    checkpoints.check(lab.run, 10)


def test_a_signal_to_the_command_stops_its_forks_after_the_same_step(lab: Lab) -> None:
    (stopped,) = lab.jobs({"set": FORKS, "kill": ["SIGTERM", 7, -1]})
    assert stopped["codes"] == [143], stopped["stderr"]
    assert stopped["stderr"].count("stopped after step 7") == 1
    assert checkpoints.steps_in(lab.run) == [7]


@pytest.mark.parametrize(
    ("changes", "environment", "count"),
    [
        ((), {}, 8),
        (("training.tokens_per_step=1000",), {}, 3),
        (("training.tokens_per_step=10",), {}, 1),
        (("model.d_model=8192", "model.d_ff=32768"), {}, 1),  # its weights fill the memory
        (
            ("model.d_model=2048", "model.d_ff=16384"),
            {},
            2,
        ),  # two copies with their moments fit into a quarter of the memory
        (("training.processes=3",), {}, 3),
        *((("training.processes=3",), {name: "1"}, 1) for name in LAUNCHERS),
        (("training.tokens_per_step=99999",), {"cores": "64"}, 16),
        ((), {"ACCELERATE_MIXED_PRECISION": "no"}, 2),  # accelerate launch, which sets OMP_NUM_THREADS
    ],
)
def test_number_of_processes_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch, changes: tuple[str, ...], environment: dict[str, str], count: int
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: int(environment.get("cores", 8)))
    cores = int(environment.get("cores", 2 if "ACCELERATE_MIXED_PRECISION" in environment else 16))
    monkeypatch.setattr(processes, "usable_cores", lambda: cores)
    monkeypatch.setattr(processes, "usable_memory", lambda: 64 << 30)
    for name in (*LAUNCHERS, "ACCELERATE_MIXED_PRECISION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "environ", os.environ | environment)
    assert processes.local_processes(loading.load(Path("recipes/multi30k.yaml"), changes)) == count
