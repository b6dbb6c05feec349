"""Several processes train on the same sentences as one process, stop together, and leave no process running."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from lab import Lab
from steps import losses

from nmt_cli.training import checkpoints


def sentences(directory: Path, step: int) -> list[list[int]]:
    """Return the sentences that each rank computed in a step."""
    records = [json.loads(line) for path in directory.iterdir() for line in path.read_text().splitlines()]
    return [record["ids"] for record in records if record["step"] == step]


def test_one_two_and_four_processes_train_the_same_model(tmp_path: Path, lab: Lab) -> None:
    """Every step has the same sentences, and the same loss to 1e-5.

    The learning rate is low, since this small model is chaotic at the recipe's own: another order of float32 sums
    (`training.memory_tokens=1`) moves the loss by a hundredth within 100 steps, even in one process.
    """
    changes = ("training.log_every=1", "training.validate_every=100", "training.rate_factor=0.1")
    specs = []
    for name, world, steps in (("alone", 1, 20), ("elastic", 1, 6), ("elastic", 2, 13), ("elastic", 4, 20)):
        ids = tmp_path / f"ids-{name}-{steps}"
        ids.mkdir()
        parts = "training.micro_batches=" + ("4" if name == "alone" else "1")  # fewer than there are processes
        settings = [*changes, parts, f"training.steps={steps}"]
        specs.append({"world": world, "name": name, "set": settings, "ids": str(ids)})
    results = lab.jobs(*specs)
    assert [result["codes"] for result in results] == [[0], [0], [0, 0], [0, 0, 0, 0]], results[0]["stderr"]
    assert results[0]["stderr"].count("; 4 x cpu, ") == 1
    whole = [sorted(sentences(tmp_path / "ids-alone-20", step)[0]) for step in range(20)]
    assert sum(map(len, whole[:15])) == len(set().union(*whole[:15])) == 500, "an epoch has every sentence once"
    for step in range(20):
        end, world = (6, 1) if step < 6 else (13, 2) if step < 13 else (20, 4)
        shares = sentences(tmp_path / f"ids-elastic-{end}", step)
        assert len(shares) == world
        assert all(shares), "each process works"
        assert sorted(i for share in shares for i in share) == whole[step]
    alone, elastic = losses(tmp_path / "alone"), losses(tmp_path / "elastic")
    assert len(alone) == 20
    assert elastic == pytest.approx(alone, rel=1e-5)


def test_a_signal_to_one_process_stops_both_after_the_same_step(lab: Lab) -> None:
    """The resumed run also skips a step whose gradient is not finite on one process."""
    stopped, resumed = lab.jobs(
        {"world": 2, "kill": ["SIGTERM", 7, 1]}, {"world": 2, "set": ["training.steps=9"], "nan": [8, 1]}
    )
    assert stopped["codes"] == [143, 143], stopped["stderr"]
    assert stopped["stderr"].count("stopped after step 7") == 1
    assert stopped["stderr"].count("resuming after step 7") == 1
    assert resumed["codes"] == [0, 0]
    assert resumed["stderr"].count("step 8: the gradient is not finite") == 1
    assert checkpoints.read_state(lab.run, 9).skipped == 1
    assert checkpoints.steps_in(lab.run) == [7, 9]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_other(lab: Lab, rank: int) -> None:
    (result,) = lab.jobs({"world": 2, "kill": ["SIGKILL", 7, rank]})
    assert (result["codes"][rank], result["codes"][1 - rank]) == (-9, 74), result["stderr"]
    assert "another process of this run does not respond" in result["stderr"]
    assert result["seconds"] < 30
    assert checkpoints.steps_in(lab.run) == []


def test_a_suspended_process_ends_the_other_after_a_timeout(lab: Lab) -> None:
    (result,) = lab.jobs({"world": 2, "kill": ["SIGSTOP", 7, 1]}, NMT_PATIENCE_SECONDS="2")
    assert result["codes"] == [74, -9], result["stderr"]
    assert "another process of this run does not respond" in result["stderr"]
    assert "Traceback" not in result["stderr"]


def test_an_error_of_one_process_ends_both_with_its_code(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other_job:
        port = other_job.getsockname()[1]
        first, changed, same_port = lab.jobs(
            {"set": ["training.steps=1"]},
            {"world": 2, "set": ["training.steps=2", "training.seed=9"]},
            {"world": 2, "started": 1, "port": port},
        )
    assert [result["codes"] for result in (first, changed, same_port)] == [[0], [65, 65], [75]]
    assert f"port {port} is in use, perhaps by another training job. Choose another with torchrun" in first["stderr"]
    assert "training.seed: 1 -> 9" in first["stderr"]
    assert first["stderr"].count(": error:") == 1 + 1


@pytest.mark.slow
def test_the_documented_launch_trains_on_two_processes(tmp_path: Path, lab: Lab) -> None:
    command = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "nmt_cli", "train"]
    words = [str(lab.recipe_file), "--set", "training.steps=10", "--data", str(lab.corpus)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [sys.executable, "-m", *command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "; 2 x cpu, " in done.stderr
    assert losses(tmp_path / "runs" / "tiny") == pytest.approx(losses(lab.reference)[:2], rel=1e-5)
