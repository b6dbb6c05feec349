"""SIGINT and SIGTERM at any time in any command: exit code 130 or 143, one line, no traceback, no temporary files."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import texts

# Sends a signal at the n-th import of the command, or at the import of the module AT, and suppresses the exception that
# its handler raises, as torch's C code does. Prints a line if the process outlives the signal.
SITE = """
import os, signal, sys

class Finder:
    imports = 0

    def find_spec(self, name, *_):
        if "nmt_cli.commands.app" in sys.modules or name == "nmt_cli.commands.app":
            Finder.imports += 1
            try:
                if os.environ["AT"] in (name, str(Finder.imports)):
                    os.kill(os.getpid(), int(os.environ["SIGNAL"]))
                    os.write(2, b"the import continues\\n")
            except BaseException:
                pass

sys.meta_path.insert(0, Finder())
"""
COMMANDS = [
    "prepare toy-en-de", "train recipes/toy.yaml", "average-checkpoints runs/x", "translate", "env", "import x --out y",
    "score h --reference r", "report runs/x", "doctor runs/x", "attend text", "export runs/x --to hf --out y",
    "reproduce recipes/toy.yaml", "recipes", "recipes show toy",
]  # fmt: skip


def run(folder: Path, command: str, number: int, at: int | str) -> tuple[int, str, str]:
    site, work = folder / "site", folder / "work"
    for each in (site, work):
        each.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(SITE)
    variables = {"PYTHONPATH": f"{site}:{texts.ROOT}", "AT": str(at), "SIGNAL": str(int(number))}
    words = [sys.executable, "-m", "nmt_cli", *command.split()]
    done = subprocess.run(
        words, env={**os.environ, **variables}, cwd=work, capture_output=True, text=True, timeout=100, check=False
    )
    assert not list(work.iterdir())
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_during_imports_ends_a_command_at_once(tmp_path: Path, command: str) -> None:
    name = command.split()[0]
    for number, code, at in ((signal.SIGINT, 130, 1), (signal.SIGTERM, 143, 100)):
        assert run(tmp_path, command, number, at) == (code, "", f"nmt {name}: stopped by {number.name}\n")


def test_a_signal_while_a_command_imports_its_work_ends_it_at_once(tmp_path: Path) -> None:
    expected = (143, "", "nmt score: stopped by SIGTERM\n")
    assert run(tmp_path, "score h --reference r", signal.SIGTERM, "sacrebleu") == expected


@pytest.mark.parametrize("at", ["numpy", "torch.nn", "nmt_cli.engine.library"])
def test_a_signal_while_torch_is_imported_is_not_lost(tmp_path: Path, at: str) -> None:
    """Torch imports numpy from C and continues without it after any exception."""
    assert run(tmp_path, "env", signal.SIGINT, at) == (130, "", "nmt env: stopped by SIGINT\n")


def handled(act: Any) -> tuple[int, str]:
    """Call `act` in a process that handles signals as a command does; return its exit code and its stderr."""
    code = f"import os, sys, time\nfrom nmt_cli import __main__\nsys.argv = ['nmt', 'prepare']\n{act}"
    words = [sys.executable, "-c", f"{code}\n__main__._command = work\n__main__.main()"]
    done = subprocess.run(words, cwd=texts.ROOT, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stderr


def test_a_signal_during_a_later_import_waits_for_its_end(tmp_path: Path) -> None:
    """An exception within the import could be lost. After the import, the command stops and cleans up."""
    (tmp_path / "slow.py").write_text(
        "import os\ntry:\n    os.kill(os.getpid(), 15)\n    [0 for _ in range(9)]\nfinally:\n    whole = True\n"
    )
    work = f"""
def work():
    sys.path.insert(0, {str(tmp_path)!r})
    try:
        import slow
        time.sleep(20)
    finally:
        print("cleaned with", sys.modules["slow"].whole, file=sys.stderr)
work.__globals__["__name__"] = "nmt_cli.corpus.prepare"
"""
    assert handled(work) == (143, "cleaned with True\nnmt prepare: stopped by SIGTERM\n")


def test_a_second_signal_ends_a_command_that_does_not_stop() -> None:
    """A signal within a second of the first is an echo."""
    work = """
def work():
    try:
        os.kill(os.getpid(), 2)
        time.sleep(20)
    finally:
        for pause in (0, 1.2):
            time.sleep(pause)
            print("cleaning", file=sys.stderr, flush=True)
            os.kill(os.getpid(), 15)
"""
    assert handled(work) == (143, "cleaning\ncleaning\nnmt prepare: stopped by SIGTERM\n")


@pytest.mark.parametrize("error", ["RuntimeError", "OSError", "__main__.NmtError"])
def test_a_signal_that_a_library_turns_into_an_error_is_still_a_signal(error: str) -> None:
    work = f"""
def work():
    try:
        os.kill(os.getpid(), 2)
    except BaseException as error:
        raise {error}("something failed") from None
"""
    assert handled(work) == (130, "nmt prepare: stopped by SIGINT\n")


def test_a_signal_at_the_very_end_does_not_change_the_exit_code() -> None:
    work = """
import atexit
def work():
    atexit.register(os.kill, os.getpid(), 15)
    return 7
"""
    assert handled(work) == (7, "")


def test_a_command_ignores_a_signal_that_was_ignored_when_it_started() -> None:
    work = """
import signal
def work():
    os.kill(os.getpid(), 2)
    return 7
signal.signal(2, signal.SIG_IGN)
"""
    assert handled(work) == (7, "")
