"""Commands work without the Linux functions that macOS lacks. The tests remove these functions from a process."""

import os
from pathlib import Path

import pytest
import texts
from lab import Lab

from nmt_cli.system import operating_system
from nmt_cli.translation.translator import Translator

ROOT = Path(__file__).parents[2]
WITHOUT_LINUX = os.pathsep.join([str(ROOT / "tests/helpers/without_linux"), str(ROOT)])
SMALL = ["training.processes=2", "training.steps=4", "training.log_every=1", "training.validate_every=4",
         "training.checkpoint_every=4"]  # fmt: skip


def test_the_linux_functions_are_really_gone() -> None:
    """Otherwise the tests below would prove nothing."""
    code = (
        "import ctypes, os; from nmt_cli.system import operating_system as s; from pathlib import Path;"
        "print(hasattr(os, 'sched_getaffinity'), hasattr(ctypes.CDLL(None), 'prctl'), s.START_METHOD,"
        " s.kill_with_parent_thread(), s.allowed_cores() == os.cpu_count(), s.cpu_model(), s.cpu_features());"
        "Path('/proc/self/statm').read_text()"
    )
    done = texts.python("-c", code, PYTHONPATH=WITHOUT_LINUX)
    assert done.stdout == f"False False spawn False True {os.uname().machine} set()\n"
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/proc/self/statm'" in done.stderr


@pytest.mark.timeout(300)
def test_a_corpus_is_prepared_and_a_model_trains_and_translates(lab: Lab, tmp_path: Path) -> None:
    """Spawned processes prepare the corpus and train the model, with the same bits as forked ones."""
    data, source, output = (tmp_path / name for name in ("data", "source", "output"))
    source.write_text("one two three\nfour five\n")
    settings = [word for setting in SMALL for word in ("--set", setting)]
    codes, messages = texts.commands(
        ["prepare", lab.recipe_file, "--out", data, "--workers", 2],
        ["train", lab.recipe_file, "--data", data, "--run", lab.run, *settings],
        ["average-checkpoints", lab.run, "--last", 1],
        ["translate", "--model", lab.run / "model", "--input", source, "--output", output],
        ["env"],
        PYTHONPATH=WITHOUT_LINUX,
    )
    assert codes == [0] * 5, messages
    with Translator(lab.run / "model", workers=1) as translator:
        found = [each.text for each in translator.translate(source.read_text().splitlines())]
    assert output.read_text().splitlines() == found
    lab.reference, lab.run = lab.run, lab.run.with_name("forks")
    assert lab.train(*SMALL) == 0
    assert lab.same(4)


def test_peak_memory_is_in_bytes_on_both_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    linux = operating_system.peak_bytes()
    monkeypatch.setattr(operating_system, "MACOS", True)  # macOS counts bytes, Linux counts kibibytes
    assert linux // 1100 < operating_system.peak_bytes() <= linux // 1000


def test_resident_memory_is_the_same_without_proc() -> None:
    code = "from nmt_cli.system.operating_system import resident_bytes; print(resident_bytes())"
    with_proc, without = (int(texts.python("-c", code, PYTHONPATH=p).stdout) for p in (str(ROOT), WITHOUT_LINUX))
    assert 0.5 < without / with_proc < 3
