"""Training on several machines: each has its own corpus, and only the first one has the run."""

import os
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab import Lab
from steps import losses
from torch.distributed.run import get_args_parser

from nmt_cli.corpus.prepare import PrepareOptions, prepare
from nmt_cli.storage import artefact
from nmt_cli.system.errors import UsageError
from nmt_cli.training import checkpoints
from nmt_cli.training.metrics_log import read_records
from nmt_cli.training.processes import in_processes
from nmt_cli.training.train import decisive


@pytest.fixture
def other(lab: Lab) -> Path:
    """The disk of a second machine, with the same corpus."""
    disk = lab.run.with_name("other")
    shutil.copytree(lab.corpus, disk / "data")
    return disk


def two(other: Path, **spec: Any) -> dict[str, Any]:
    """Return the spec of a job with one process on each of two machines."""
    return {"world": 2, "elsewhere": ["--data", str(other / "data"), "--run", str(other / "run")], **spec}


def test_killed_and_restarted_machines_end_with_the_same_bits(lab: Lab, other: Path) -> None:
    """Each of two machines repeats the same command. Three times, one of them is killed at a random step."""
    draw = random.SystemRandom()
    kills = [[draw.randint(first, first + 9), draw.randrange(2)] for first in (1, 11, 21)]  # around each checkpoint
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
    records = [[(r["step"], r.get("nll"), r.get("dev_nll")) for r in read_records(run / "metrics.jsonl")]
               for run in (lab.run, lab.reference)]  # fmt: skip
    assert records[0] == records[1]
    assert not (other / "run").exists()


def test_only_the_first_process_reads_the_model_to_start_from(lab: Lab, other: Path) -> None:
    """The others receive its weights: on the second machine, the model directory has settings but no weights.

    The learning rate is low for the reason given in test_elastic.py.
    """
    start, another = lab.reference / "model", lab.run.with_name("another")
    shutil.copytree(start, another)
    (another / "model.safetensors").unlink()
    settings = [f"training.init_from={start}", "training.steps=10", "training.log_every=1", "training.rate_factor=0.1"]
    spec = two(other, set=settings)
    spec["elsewhere"] += ["--set", f"training.init_from={another}"]
    alone, both = lab.jobs({**spec, "world": 1, "name": "alone"}, spec)
    assert (alone["codes"], both["codes"]) == ([0], [0, 0]), both["stderr"]
    assert losses(lab.run) == pytest.approx(losses(lab.run.with_name("alone")), rel=1e-5)


def test_another_corpus_or_recipe_on_one_machine_ends_all(lab: Lab, other: Path) -> None:
    prepare(lab.recipe("corpus.limit=300").corpus, other / "less", PrepareOptions(workers=1))
    shutil.copytree(other / "data", other / "damaged")
    ids = bytearray((other / "damaged" / "train.src.ids").read_bytes())
    ids[100] ^= 1
    (other / "damaged" / "train.src.ids").write_bytes(ids)
    changes = [["--data", str(other / name)] for name in ("less", "damaged")]
    specs = [two(other) for _ in range(3)]
    for spec, change in zip(specs, [*changes, ["--set", "training.steps=9", "--set", "training.seed=2"]], strict=True):
        spec["elsewhere"] = [*spec["elsewhere"], *change]
    results = lab.jobs(*specs)
    assert [result["codes"] for result in results] == [[65, 65]] * 3, results[0]["stderr"]
    errors = [line for line in results[0]["stderr"].splitlines() if ": error: " in line]
    assert len(errors) == 3
    assert "less on " in errors[0]
    assert "differs from that on the first machine" in errors[0]
    assert "train.src.ids is damaged" in errors[1]
    assert "differs from that on the first machine: training.steps: 30 -> 9; training.seed: 1 -> 2. Use" in errors[2]
    assert checkpoints.steps_in(lab.run) == []


@pytest.mark.parametrize(
    ("environment", "refused"),
    [
        ({"MASTER_ADDR": "10.0.0.1", "ACCELERATE_MIXED_PRECISION": "no"}, True),  # --num_machines 2 --main_process_ip
        ({"MASTER_ADDR": "127.0.0.1", "ACCELERATE_MIXED_PRECISION": "no"}, False),  # --num_processes 2 on one machine
        ({"MASTER_ADDR": "localhost", "ACCELERATE_MIXED_PRECISION": "no"}, False),
        ({"MASTER_ADDR": "10.0.0.1", "ACCELERATE_MIXED_PRECISION": "no", "WORLD_SIZE": "1"}, False),
        ({"ACCELERATE_MIXED_PRECISION": "no"}, False),
        ({"MASTER_ADDR": "10.0.0.1"}, False),
    ],
)
def test_machines_that_accelerate_does_not_connect_are_refused(
    lab: Lab, environment: dict[str, str], refused: bool
) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in {"WORLD_SIZE", "MASTER_ADDR"}}
    lab.patch.setattr(os, "environ", {**kept, **environment})
    settings = lab.recipe("training.processes=1")
    if refused:
        with pytest.raises(UsageError, match=r"each would train alone\. Run torchrun --nnodes") as raised:
            in_processes(settings, lambda: pytest.fail("it trained"))
        section, guide = re.findall(r"“(.*)” in ([\w/.]+)", str(raised.value))[0]
        assert f"\n## {section}\n" in (Path(__file__).parents[2] / guide).read_text("utf-8")
    else:
        assert in_processes(settings, lambda: 7) == 7


def test_cluster_scripts_use_existing_options() -> None:
    scripts = Path(__file__).parents[2] / "recipes" / "cluster"
    subprocess.run(["bash", "-n", scripts / "slurm.sh"], check=True)
    service, job = yaml.safe_load_all((scripts / "kubernetes.yml").read_text())
    pod = job["spec"]["template"]["spec"]
    args = [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in pod["containers"][0]["args"]]
    launch = get_args_parser().parse_args(args)
    name = f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert (launch.master_addr, launch.nnodes, launch.node_rank) == (name, str(job["spec"]["completions"]), 1)
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert (scripts.parents[1] / launch.training_script_args[1]).is_file()
    assert launch.training_script_args[2].startswith("--run-dir=")


def test_the_slurm_script_requeues_only_temporary_failures(tmp_path: Path) -> None:
    """Fake commands replace Slurm and nmt. Each process gets its rank, and a user's error is not retried."""
    commands = {
        "scontrol": 'if [ "$1" = show ]; then printf "first\\nsecond\\n"; else echo "$@" >> "$LOG"; fi',
        "srun": 'shift 2; SLURM_PROCID=3 SLURM_LOCALID=1 "$@"',
        "nmt": 'echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT "$@" >> "$LOG"; '
        "exit $CODE",
    }
    for name, code in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{code}\n")
        (tmp_path / name).chmod(0o755)
    log, script = tmp_path / "log", Path(__file__).parents[2] / "recipes" / "cluster" / "slurm.sh"
    slurm = {"SLURM_JOB_ID": "10007", "SLURM_JOB_NODELIST": "x", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
    env = {**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log)}
    for code, restarts, requeued in ((0, 0, False), (74, 0, True), (143, 99, True), (74, 100, False), (65, 0, False)):
        log.unlink(missing_ok=True)
        more = {"CODE": str(code), "SLURM_RESTART_COUNT": str(restarts)}
        assert subprocess.run([script, "toy", "--run-dir", "r"], env={**env, **more}).returncode == code
        asked = ["requeue 10007"] if requeued else []
        assert log.read_text().splitlines() == ["3 4 1 2 first 20007 train toy --run-dir r", *asked]


def test_machines_compare_model_and_training_settings_but_no_paths(lab: Lab) -> None:
    settings = lab.recipe(f"training.init_from={lab.reference}/model")
    expected = {name: settings.model_dump()[name] for name in ("model", "training")}
    del expected["training"]["init_from"]
    expected["corpus"] = {"augment": settings.corpus.augment.model_dump()}  # augmentation changes the training text
    assert decisive(settings) == expected
