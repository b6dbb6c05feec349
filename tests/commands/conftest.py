"""The fixture that runs nmt in this process."""

import functools
import signal
import sys
from pathlib import Path

import pytest
import typer.main
from command_line import Nmt

from nmt_cli import __main__

build = functools.cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build the parser of the command line once. That takes longer than most tests."""
    monkeypatch.setattr(typer.main, "get_command", build)


@pytest.fixture
def nmt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Nmt:
    """Run nmt in this process, in an empty directory, and return the exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NMT_MODEL", raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nmt", *words])
        with pytest.raises(SystemExit) as caught:
            __main__.main()
        for number, handler in before.items():
            signal.signal(number, handler)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(str(caught.value.code)), captured.out, captured.err

    return run
