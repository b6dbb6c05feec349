"""Commands work without the functions of Linux that macOS lacks, in a process that has lost them."""

import json
import os
from pathlib import Path

import pytest
import texts
from lab import Lab

from nmt_cli.system import operating_system
from nmt_cli.training import processes
from nmt_cli.training.metrics_log import read_records

ROOT = Path(__file__).parents[2]
WITHOUT_LINUX = os.pathsep.join([str(ROOT / "tests/helpers/without_linux"), str(ROOT)])
SMALL = ["training.processes=2", "training.steps=4", "training.log_every=1", "training.validate_every=4",
         "training.checkpoint_every=4"]  # fmt: skip


def nmt(*arguments: str | Path, expected: int = 0, **environment: str) -> str:
    """Run a command without what macOS lacks; return its standard output."""
    done = texts.python("-m", "nmt_cli", *map(str, arguments), PYTHONPATH=WITHOUT_LINUX, **environment)
    assert done.returncode == expected, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return str(done.stdout)


def test_the_functions_are_really_gone() -> None:
    """Else the tests below would prove nothing."""
    code = (
        "import ctypes, os; from nmt_cli.system import operating_system as s; from pathlib import Path;"
        "print(hasattr(os, 'sched_getaffinity'), hasattr(ctypes.CDLL(None), 'prctl'), s.START_METHOD,"
        " s.kill_with_parent_thread(), s.allowed_cores() == os.cpu_count());"
        "Path('/proc/self/statm').read_text()"
    )
    done = texts.python("-c", code, PYTHONPATH=WITHOUT_LINUX)
    assert done.stdout == "False False spawn False True\n"
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/proc/self/statm'" in done.stderr


@pytest.mark.timeout(300)
def test_a_corpus_is_prepared_and_a_model_trains_and_translates(tiny_recipe_file: Path, tmp_path: Path) -> None:
    """With worker processes for the corpus and two for the training."""
    data, run = tmp_path / "data", tmp_path / "run"
    nmt("prepare", tiny_recipe_file, "--out", data, "--workers", "2")
    settings = [word for setting in SMALL for word in ("--set", setting)]
    nmt("train", tiny_recipe_file, "--data", data, "--run", run, *settings)
    records = read_records(run / "metrics.jsonl")
    assert max(record["step"] for record in records) == 4
    nmt("average-checkpoints", run, "--last", "1")
    source = tmp_path / "source"
    source.write_text("one two three\nfour five\n")
    nmt("translate", "--model", run / "model", "--input", source, "--output", tmp_path / "without")
    done = texts.python("-m", "nmt_cli", "translate", "--model", str(run / "model"), "--input", str(source))
    assert (tmp_path / "without").read_text() == done.stdout
    assert len(done.stdout.splitlines()) == 2


def test_the_environment_is_described() -> None:
    described = json.loads(nmt("env", "--json"))
    assert described["cpu"].startswith(f"{os.uname().machine}, ")
    assert described["cpu features"] == ""


def test_spawned_processes_train_the_same_bits_as_forks(lab: Lab) -> None:
    assert lab.train(*SMALL) == 0
    lab.reference, lab.run = lab.run, lab.run.with_name("spawned")
    lab.patch.setattr(operating_system, "START_METHOD", "spawn")
    lab.patch.setattr(processes, "START_METHOD", "spawn")
    assert lab.train(*SMALL) == 0
    assert lab.same(4)


def test_the_most_memory_is_in_bytes_on_both_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    linux = operating_system.peak_bytes()
    monkeypatch.setattr(operating_system, "MACOS", True)  # whose kernel counts bytes
    assert linux // 1100 < operating_system.peak_bytes() <= linux // 1000


def test_resident_memory_is_the_same_without_proc() -> None:
    code = "from nmt_cli.system.operating_system import resident_bytes; print(resident_bytes())"
    with_proc, without = (int(texts.python("-c", code, PYTHONPATH=p).stdout) for p in (str(ROOT), WITHOUT_LINUX))
    assert 0.5 < without / with_proc < 3
