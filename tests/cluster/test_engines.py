"""Under datatrove, Ray and Slurm (each if installed), recipes/cluster translates files as one process does."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm import Slurm, missing, running
from texts import ROOT
from tiny_model import make_model

from nmt_cli.translation.options import SearchOptions
from nmt_cli.translation.sharded import check, join
from nmt_cli.translation.translate import TranslateOptions, translate

RECIPES = ROOT / "recipes/cluster"
LINES = [f"der Hund {number} geht und die Katze" for number in range(75)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A directory with two files of text."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text/a.de").write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "text/b.de").write_text("".join(f"{line} nicht\n" for line in LINES[:32]))
    return tmp_path / "text"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("engines"))


def assert_complete(text: Path, out: Path, model: Path) -> None:
    """Compare the joined files with the files that one process translates."""
    assert check([str(text)], str(out)) == 0
    join([str(text)], str(out), None)
    for file in text.iterdir():
        whole = out / "whole"
        search = SearchOptions(beam=1)
        assert translate(TranslateOptions(models=(model,), input=file, output=whole, search=search, workers=1)) == 0
        assert (out / file.name).read_bytes() == whole.read_bytes()
        whole.unlink()


def script(name: str, changes: dict[str, str], directory: Path) -> Path:
    """Write a recipe with a user's edits."""
    source = (RECIPES / name).read_text()
    for old, new in changes.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    (directory / name).write_text(source)
    return directory / name


def test_datatrove_on_two_machines(text: Path, tmp_path: Path, model: Path) -> None:
    pytest.importorskip("datatrove")
    from datatrove.executor.local import LocalPipelineExecutor

    from nmt_cli.translation.datatrove_step import TranslateFiles

    options = TranslateOptions(models=(model,), search=SearchOptions(beam=1), workers=1)
    out = tmp_path / "out"
    for offset in (2, 0):  # the second machine starts first, and translates all units
        LocalPipelineExecutor(
            pipeline=[TranslateFiles([str(text)], str(out), options, unit_lines=10)],
            tasks=4,
            workers=1,
            local_tasks=2,
            local_rank_offset=offset,
            logging_dir=str(tmp_path / "logs"),
        ).run()
    assert len(list((tmp_path / "logs/completions").iterdir())) == 4
    assert_complete(text, out, model)


def test_a_poisoned_unit_fails_its_datatrove_task(text: Path, tmp_path: Path, model: Path) -> None:
    pytest.importorskip("datatrove")
    from nmt_cli.system.errors import NmtError
    from nmt_cli.translation.datatrove_step import TranslateFiles

    (text / "b.de").write_bytes(b"der Hund\n\xff\n")  # not UTF-8
    options = TranslateOptions(models=(model,), search=SearchOptions(beam=1), workers=1, strict=True)
    step = TranslateFiles([str(text)], str(tmp_path / "out"), options, unit_lines=10)
    with pytest.raises(NmtError, match=r"a unit failed with code 65.*\*\.failed"):
        step.run(None, rank=0, world_size=2)
    assert len(list((tmp_path / "out/units/000").glob("*.failed"))) == 1
    assert len(list((tmp_path / "out/units/000").glob("*.json"))) == 8, "the others are done"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ray_on_two_machines(text: Path, tmp_path: Path, model: Path) -> None:
    pytest.importorskip("ray")
    changes = {
        '["text/"], "out"': f'["{text}"], "{tmp_path / "out"}"',
        "CORES, ACTORS = 16, (1, 100)": "CORES, ACTORS = 1, (2, 2)",
        'Path("models/en-de"),), workers=CORES)': f'Path("{model}"),), workers=CORES, search=SearchOptions(beam=1))',
        "from nmt_cli.translation.sharded": "from nmt_cli.translation.options import SearchOptions\n"
        "from nmt_cli.translation.sharded",
        "OUT, OPTIONS)\n\n    def": "OUT, OPTIONS, unit_lines=10)\n\n    def",
        "OUT, OPTIONS) as": "OUT, OPTIONS, unit_lines=10) as",
    }
    recipe = script("ray_translate.py", changes, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    cluster = (
        "from ray.cluster_utils import Cluster; import runpy, os, sys\n"
        "cluster = Cluster(initialize_head=True, head_node_args={'num_cpus': 1, 'include_dashboard': False})\n"
        "cluster.add_node(num_cpus=1)\n"
        "os.environ['RAY_ADDRESS'] = cluster.address\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')\n"
        "import ray; print(len(ray.nodes()), 'nodes'); ray.shutdown(); cluster.shutdown()"
    )
    command = [sys.executable, "-c", cluster, str(recipe)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "0 units failed: []\n2 nodes" in done.stdout
    assert_complete(text, tmp_path / "out", model)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """A Slurm cluster with two nodes. Its jobs find `nmt`."""
    if reason := missing():
        pytest.skip(reason)
    directory = Path(tempfile.mkdtemp())  # munge refuses directories that others may write to
    try:
        with running(directory) as cluster:
            nmt = directory / "bin/nmt"
            nmt.parent.mkdir()
            nmt.write_text(f'#!/bin/sh\nexport PYTHONPATH={ROOT}\nexec {sys.executable} -m nmt_cli "$@"\n')
            nmt.chmod(0o755)
            cluster.environment["PATH"] = f"{nmt.parent}:{cluster.environment['PATH']}"
            yield cluster
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_slurm_array_survives_a_kill_a_lost_node_and_another_number_of_tasks(
    slurm: Slurm, text: Path, tmp_path: Path, model: Path
) -> None:
    (text / "a.de").write_text("".join(f"{line} {number}\n" for number in range(80) for line in LINES))
    out = tmp_path / "out"
    words = [str(text), "-o", str(out), "--model", str(model), "--unit-lines", "50", "--beam", "1", "--workers", "1"]

    def submit(tasks: str) -> str:
        options = ["--parsable", f"--array={tasks}", "--cpus-per-task=1", f"--output={tmp_path}/log.%A.%a"]
        return slurm.run("sbatch", *options, RECIPES / "translate.sh", *words).strip()

    def done() -> int:
        return len(list(out.glob("units/*/*.json")))

    first = submit("1-6")
    slurm.wait(lambda: done() > 5)
    slurm.run("scancel", "--signal=KILL", f"{first}_1.0")  # its script then asks for a restart
    slurm.wait(lambda: done() > 15)
    slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=lost")
    submit("1-2")
    slurm.wait(lambda: not slurm.run("squeue", "-h"))
    slurm.run("scontrol", "update", "nodename=n2", "state=resume")
    logs = {file.name: file.read_text() for file in tmp_path.glob("log.*")}
    assert len(logs) == 8, logs.keys()
    restarted = slurm.run("scontrol", "show", "job", f"{first}_1")
    assert "Restarts=1" in restarted, restarted
    assert_complete(text, out, model)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_datatrove_under_slurm(slurm: Slurm, text: Path, tmp_path: Path, model: Path) -> None:
    pytest.importorskip("datatrove")
    changes = {
        '["text/"], "out"': f'["{text}"], "{tmp_path / "out"}"',
        'Path("models/en-de"),))': f'Path("{model}"),), workers=1, search=SearchOptions(beam=1))',
        "from nmt_cli.translation.translate": "from nmt_cli.translation.options import SearchOptions\n"
        "from nmt_cli.translation.translate",
        "FILES, OUT, OPTIONS)]": "FILES, OUT, OPTIONS, unit_lines=10)]",
        "tasks=100": "tasks=4",
        "cpus_per_task=16": "cpus_per_task=1",
        'partition="cpu"': 'partition="all"',
        '"logs/translate"': f'"{tmp_path / "logs"}"',
    }
    recipe = script("datatrove_translate.py", changes, tmp_path)
    path = f"{Path(sys.executable).parent}:{slurm.environment['PATH']}"  # to find datatrove's program
    environment = {**slurm.environment, "PYTHONPATH": str(ROOT), "PATH": path}
    subprocess.run([sys.executable, recipe], env=environment, cwd=tmp_path, check=True, capture_output=True)
    slurm.wait(lambda: not slurm.run("squeue", "-h"))
    assert len(list((tmp_path / "logs/completions").iterdir())) == 4
    assert_complete(text, tmp_path / "out", model)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_poisoned_unit_fails_its_slurm_task_once(slurm: Slurm, text: Path, tmp_path: Path, model: Path) -> None:
    """The task translates all other units, fails, and is not queued again."""
    (text / "b.de").write_bytes(b"der Hund\n\xff\n")  # not UTF-8
    words = [str(text), "-o", str(tmp_path / "out"), "--model", str(model), "--unit-lines", "10", "--strict"]
    options = ["--parsable", "--array=1-2", f"--output={tmp_path}/log.%a"]
    slurm.run("sbatch", *options, RECIPES / "translate.sh", *words, "--workers", "1")
    slurm.wait(lambda: not slurm.run("squeue", "-h"))
    [failed] = (tmp_path / "out/units/000").glob("*.failed")
    assert "line 2" in failed.read_text()
    assert len(list((tmp_path / "out/units/000").glob("*.json"))) == 8
    logs = [(tmp_path / f"log.{task}").read_text() for task in (1, 2)]
    assert any("1 unit failed" in log for log in logs)
    assert check([str(text)], str(tmp_path / "out")) == 1
