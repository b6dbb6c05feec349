"""A fixture that imports named models within the test's process."""

import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from in_process import run_nmt

from nmt_cli.interop import named_models


@pytest.fixture
def imports_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run imports in this process, which has already loaded torch and transformers, instead of a new process."""

    def run(command: list[str], **_: Any) -> Any:
        code, _, stderr = run_nmt(*command[command.index("import") :])
        return subprocess.CompletedProcess(command, code, stderr=stderr.encode())

    monkeypatch.setattr(named_models, "subprocess", SimpleNamespace(run=run, PIPE=subprocess.PIPE))
