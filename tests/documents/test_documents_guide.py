"""The commands and the example in the guide to documents."""

import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from fake_models import capitals, translated
from in_process import run_nmt
from tiny_model import make_model

from nmt_cli import documents
from nmt_cli.documents.document import ReadOptions

GUIDE = (Path(documents.__file__).parent / "README.md").read_text()


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "runs" / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NMT_MODEL", raising=False)
    commands = "".join(re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL))
    for command in commands.splitlines():
        if command.startswith("nmt "):
            assert run_nmt(*shlex.split(command)[1:])[0] == 0, command
        else:
            subprocess.run(["bash", "-c", command], check=True, timeout=100)
    outputs = {path.name: path.read_text() for path in tmp_path.glob("*.de.*")}
    assert outputs.keys() == set(re.findall(r"-o (\S+)", commands))
    assert '<a href="/cats">' in outputs["page.de.html"]
    assert "`code`" in outputs["guide.de.md"]
    assert "#, fuzzy\n" in outputs["app.de.po"]
    assert len(outputs["lines.de.txt"].splitlines()) == 2


def test_the_example_of_a_format_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "example_format.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    document = importlib.import_module("example_format").read("# Menu\nopen=Open {0} files\nempty=\n", ReadOptions())
    translated(document.parts, capitals)
    assert document.write() == "# Menu\nopen=OPEN {0} FILES\nempty=\n"
