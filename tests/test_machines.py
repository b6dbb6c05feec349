"""Several machines: each has its own files, and only the first one needs the run."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Lab
from test_train import losses

from nmt_cli import artefact
from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.errors import UsageError
from nmt_cli.training import checkpoints, distributed, metrics


@pytest.fixture
def other(lab: Lab) -> Path:
    """The disk of a second machine, on which there is the same corpus."""
    place = lab.run.with_name("other")
    shutil.copytree(lab.corpus, place / "data")
    return place


def two(other: Path, **spec: Any) -> dict[str, Any]:
    """Return the spec of a job of one process on each machine."""
    return {"world": 2, "elsewhere": ["--data", str(other / "data"), "--run", str(other / "run")], **spec}


def test_nodes_that_are_killed_and_restarted_end_with_the_same_bits(lab: Lab, other: Path) -> None:
    """Each of two machines runs the same command in a loop; three times one is killed at a random step."""
    draw = random.SystemRandom()
    kills = [[step, draw.randrange(2)] for step in draw.sample(range(1, 31), 3)]
    print(f"killed at {kills}")  # shown when the test fails
    loop = lab.run.with_name("loop")
    loop.mkdir()
    undisturbed, killed = lab.jobs(two(other, name="undisturbed"), two(other, kills=kills, loop=str(loop)))
    assert (undisturbed["codes"], killed["codes"]) == ([0, 0], [0, 0]), killed["stderr"]
    assert len(list(loop.iterdir())) == 3
    lab.reference = lab.run.with_name("undisturbed")
    assert [checkpoints.steps_in(run) for run in (lab.run, lab.reference)] == [[10, 20, 30]] * 2
    assert all(lab.same(step) for step in (10, 20, 30))
    models = [artefact.verify(run / "model", "model")["files"] for run in (lab.run, lab.reference)]
    assert models[0] == models[1]
    records = [[(r["step"], r.get("nll"), r.get("dev_nll")) for r in metrics.read(run / "metrics.jsonl")]
               for run in (lab.run, lab.reference)]  # fmt: skip
    assert records[0] == records[1]
    assert not (other / "run").exists()


def test_a_model_to_start_from_is_read_by_the_first_process_only(lab: Lab, other: Path) -> None:
    """The others are given its weights: they read the settings of a model of other weights."""
    start, another = lab.reference / "model", lab.run.with_name("another")
    shutil.copytree(start, another)
    (another / "model.safetensors").unlink()
    spec = two(other, set=[f"training.init_from={start}", "training.steps=10", "training.log_every=1"])
    spec["elsewhere"] += ["--set", f"training.init_from={another}"]
    alone, both = lab.jobs({**spec, "world": 1, "name": "alone"}, spec)
    assert (alone["codes"], both["codes"]) == ([0], [0, 0]), both["stderr"]
    assert losses(lab.run) == pytest.approx(losses(lab.run.with_name("alone")), rel=1e-5)


def test_another_corpus_or_recipe_elsewhere_ends_all(lab: Lab, other: Path) -> None:
    prepare(lab.recipe("corpus.limit=300").corpus, other / "less", PrepareOptions(workers=1))
    shutil.copytree(other / "data", other / "damaged")
    ids = bytearray((other / "damaged" / "train.src.ids").read_bytes())
    ids[100] ^= 1
    (other / "damaged" / "train.src.ids").write_bytes(ids)
    changes = [["--data", str(other / name)] for name in ("less", "damaged")]
    specs = [two(other) for _ in range(3)]
    for spec, change in zip(specs, [*changes, ["--set", "training.steps=9"]], strict=True):
        spec["elsewhere"] = [*spec["elsewhere"], *change]
    results = lab.jobs(*specs)
    assert [result["codes"] for result in results] == [[65, 65]] * 3, results[0]["stderr"]
    errors = [line for line in results[0]["stderr"].splitlines() if ": error: " in line]
    assert len(errors) == 3
    assert "less on " in errors[0]
    assert "is another corpus than on the first machine" in errors[0]
    assert "train.src.ids is damaged" in errors[1]
    assert "is not that of the first machine: training.steps: 30 -> 9. Give" in errors[2]
    assert checkpoints.steps_in(lab.run) == []


@pytest.mark.parametrize(
    ("environment", "refused"),
    [
        ({"MASTER_ADDR": "10.0.0.1", "ACCELERATE_MIXED_PRECISION": "no"}, True),  # --num_machines 2 --main_process_ip
        ({"MASTER_ADDR": "127.0.0.1", "ACCELERATE_MIXED_PRECISION": "no"}, False),  # --num_processes 2 on one machine
        ({"MASTER_ADDR": "10.0.0.1", "ACCELERATE_MIXED_PRECISION": "no", "WORLD_SIZE": "1"}, False),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, False),
        ({"MASTER_ADDR": "10.0.0.1"}, False),
    ],
)
def test_machines_that_accelerate_leaves_unconnected_are_refused(
    lab: Lab, environment: dict[str, str], refused: bool
) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in {"WORLD_SIZE", "MASTER_ADDR"}}
    lab.patch.setattr(os, "environ", {**kept, **environment})
    settings = lab.recipe("training.processes=1")
    if refused:
        with pytest.raises(UsageError, match=r"each would train alone\. Run torchrun --nnodes"):
            distributed.in_processes(settings, lambda: pytest.fail("it trained"))
    else:
        assert distributed.in_processes(settings, lambda: 7) == 7
