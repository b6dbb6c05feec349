"""A training run that gets a signal ends with a checkpoint and resumes to the same bits."""

import os
import signal
import threading
from typing import Any

import pytest
from lab import Lab
from steps import before_each_call

from nmt_cli.storage import artefact
from nmt_cli.training import checkpoints, stopping
from nmt_cli.training import train as module
from nmt_cli.training.metrics_log import MetricsLog, read_records
from nmt_cli.training.trainer import Trainer
from nmt_cli.translation.translator import Translator


@pytest.mark.parametrize(
    ("number", "owner", "name", "code"),
    [
        (signal.SIGTERM, Trainer, "take_step", 143),
        (signal.SIGINT, artefact, "staged", 130),
        (signal.SIGUSR1, module, "validate", 143),
        (signal.SIGINT, MetricsLog, "write", 130),
        (signal.SIGTERM, Trainer, "step_batch", 143),
    ],
)
def test_a_signal_ends_the_step_and_commits(lab: Lab, number: int, owner: Any, name: str, code: int) -> None:
    handlers = [signal.getsignal(n) for n in stopping.SIGNALS]
    with pytest.MonkeyPatch.context() as patch:
        sent = []

        def send() -> None:
            if not sent and (name != "step_batch" or checkpoints.steps_in(lab.run)):
                sent.append(os.kill(os.getpid(), number))

        before_each_call(patch, owner, name, send)
        assert lab.train() == code
    assert [signal.getsignal(n) for n in stopping.SIGNALS] == handlers
    stopped = checkpoints.steps_in(lab.run)[-1]
    assert 0 < stopped < 20
    assert not (lab.run / "model").exists()
    assert lab.train("training.steps=20") == 0
    assert lab.same(20)


@pytest.mark.parametrize("step", [15, 30], ids=["midway", "at the end"])
def test_a_validation_interrupted_by_a_signal_is_repeated_on_resume(lab: Lab, step: int) -> None:
    """The validation ends in the middle of a search. The step's state is saved, and no figure is lost or doubled."""
    reached = []

    def search(*_: Any) -> Any:
        reached.append(len(reached))
        if len(reached) == step // 15:
            os.kill(os.getpid(), signal.SIGINT)
            later.wait(60)
            pytest.fail("the search continues")
        yield from real(*_)

    later, real = threading.Event(), Translator.translate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Translator, "translate", search)
        assert lab.train() == 130
    assert f"stopped after step {step}: a signal was received" in lab.stderr()
    assert checkpoints.steps_in(lab.run)[-1] == step
    assert checkpoints.read_state(lab.run, step).unvalidated
    assert not (lab.run / "model").exists()
    assert lab.train() == 0
    assert lab.same()
    runs = [read_records(run / "metrics.jsonl") for run in (lab.run, lab.reference)]
    figures = [[(record["step"], record.get("nll"), record.get("dev_nll")) for record in run] for run in runs]
    assert figures[0] == figures[1]
    states = [checkpoints.read_state(run, 30) for run in (lab.run, lab.reference)]
    assert len({(state.best_step, state.best_nll, state.not_better, state.unvalidated) for state in states}) == 1


def test_a_signal_to_the_command_interrupts_the_validation_of_all_its_forks(lab: Lab) -> None:
    forks = ["training.processes=2", "training.validate_every=3", "training.steps=6"]
    stopped, resumed = lab.jobs({"set": forks, "stuck": "SIGTERM"}, {"set": forks})
    assert (stopped["codes"], resumed["codes"]) == ([143], [0]), stopped["stderr"]
    validations = [record["step"] for record in read_records(lab.run / "metrics.jsonl") if "dev_nll" in record]
    assert (stopped["stderr"].count("stopped after step 3"), validations) == (1, [3, 6])


def test_a_signal_before_the_first_step_leaves_no_checkpoint(lab: Lab) -> None:
    before_each_call(lab.patch, module, "open_corpus", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert lab.train() == 143
    assert checkpoints.steps_in(lab.run) == []
    assert not (lab.run / "model").exists()


@pytest.mark.parametrize(("seconds", "number", "code"), [(0.1, 15, 7), (1.5, 15, 143), (1.5, 2, 130), (1.5, 10, 143)])
def test_a_second_signal_exits_at_once_unless_it_is_an_echo(seconds: float, number: int, code: int) -> None:
    """Launchers forward signals that every process has received already."""
    child = os.fork()
    if not child:
        now = [100.0]
        stopping.time.monotonic = lambda: now[0]  # type: ignore[attr-defined]
        with stopping.Stop() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            now[0] += seconds
            os.kill(os.getpid(), number)
            os._exit(7 if stop.exit_code == 143 else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
