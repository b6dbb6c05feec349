"""The commands in the server's guide run as written."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from texts import ROOT

pytest.importorskip("starlette")
from serving import server

GUIDE = (ROOT / "nmt_cli/serving/README.md").read_text()
COMMANDS = [
    command
    for block in re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)
    for command in re.split(r"(?<!\\)\n", block)
    if command.startswith("curl ")
]


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
def test_requests_of_the_guide_succeed(model: Path) -> None:
    assert len(COMMANDS) == 4
    with server(str(model), "--precision", "fp32") as (_, address):
        for command in COMMANDS:
            script = command.replace("http://127.0.0.1:5000", address).replace("curl -s", "curl -sf")
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, command
            assert "error" not in done.stdout
